//! Binds size symbols from the sizes and integers of a call's arguments and checks all of them: one equation per number
//! given, in an order that is determined once. A call that fits allocates nothing. Not here: dtypes, ranks, memory layouts,
//! and the messages to the caller.

use ir_core::{Atom, EntityId, Guard, SizeCode, SymExpr, SymId, Symbols};
use smallvec::SmallVec;

use super::Sizes;
use crate::Program;

/// The source of a number: a dimension of an argument, or its integer value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeSource {
    /// The size of a dimension of an input: number of the input, number of the dimension.
    Dim(usize, usize),
    /// The integer that an input without dimensions holds.
    Value(usize),
}

impl SizeSource {
    /// The number of the input.
    pub fn input(self) -> usize {
        match self {
            SizeSource::Dim(input, _) | SizeSource::Value(input) => input,
        }
    }
}

/// The equation of one number of the arguments.
#[derive(Clone, Debug)]
pub struct Equation {
    /// The source of the number.
    pub place: SizeSource,
    /// The expression that the number must equal.
    pub size: SymExpr,
    what: Rule,
}

#[derive(Clone, Debug)]
enum Rule {
    /// The number is this constant.
    Number(i64),
    /// The number is the value of this symbol.
    Bind(SymId),
    /// The number is `coef * symbol + rest`, of which only the symbol is unknown.
    Solve { symbol: SymId, coef: SizeCode, rest: SizeCode },
    /// The number is the value of a symbol that numbers before it determine.
    Equal(SymId),
    /// The number follows from numbers before it.
    Same(SizeCode),
    /// The arguments do not determine the symbols in it.
    Undetermined,
}

impl Equation {
    /// Whether the number is the value of a symbol.
    pub fn binds(&self) -> bool {
        matches!(self.what, Rule::Bind(_))
    }
    /// Whether the number is the same in every call.
    pub fn is_constant(&self) -> bool {
        matches!(self.what, Rule::Number(_))
    }
    /// Whether the arguments do not determine what this number must be.
    pub fn is_undetermined(&self) -> bool {
        matches!(self.what, Rule::Undetermined)
    }
    /// Whether the numbers before it determine what it must be.
    pub fn is_derived(&self) -> bool {
        matches!(self.what, Rule::Equal(_) | Rule::Same(_))
    }
    /// The expected number by the values so far; `None` where the number determines a symbol, or is not determined.
    pub fn expected(&self, values: &[i64]) -> Option<i64> {
        match &self.what {
            Rule::Number(n) => Some(*n),
            Rule::Equal(symbol) => values.get(symbol.index()).copied(),
            Rule::Same(code) => code.eval(values),
            _ => None,
        }
    }
}

/// The reason why the arguments of a call do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The call has no number where this equation requires one.
    Missing(usize),
    /// The equation of this number does not hold.
    Equation(usize),
    /// The equation of this number gives a symbol a value outside of its range.
    Range(usize, SymId),
    /// The guard of this number does not hold.
    Guard(usize),
}

/// The equations of a call's arguments and the guards on them.
#[derive(Clone, Debug)]
pub struct Binder {
    symbols: Symbols,
    /// Symbols in the order in which they get values; those that are known before the call come first.
    order: Vec<SymId>,
    equations: Vec<Equation>,
    guards: Vec<SizeCode>,
    /// One more than the number of the last symbol.
    slots: usize,
}

impl Binder {
    /// For numbers that must equal these expressions. `known` are symbols whose values a call has before its arguments are
    /// seen.
    pub fn new(
        given: impl IntoIterator<Item = (SizeSource, SymExpr)>,
        symbols: &Symbols,
        known: &[SymId],
    ) -> Binder {
        let mut made = Binder {
            symbols: symbols.clone(),
            order: known.to_vec(),
            equations: Vec::new(),
            guards: Vec::new(),
            slots: 0,
        };
        let mut open: Vec<(SizeSource, SymExpr)> = given.into_iter().collect();
        loop {
            let before = open.len();
            open.retain(|(place, size)| match made.solve_rule(size) {
                Some(what) => {
                    made.equations.push(Equation { place: *place, size: size.clone(), what });
                    false
                }
                None => true,
            });
            if open.is_empty() || open.len() == before {
                break;
            }
        }
        let undetermined = |(place, size)| Equation { place, size, what: Rule::Undetermined };
        made.equations.extend(open.into_iter().map(undetermined));
        let last = made.order.iter().map(|id| id.index() + 1).max();
        made.slots = last.unwrap_or(0).max(made.symbols.len());
        made
    }

    /// For the sizes of a program's inputs, without guards: the caller checks those before a backend is called.
    pub fn of_inputs(program: &Program) -> Binder {
        let inputs = program.inputs.iter().enumerate().flat_map(|(n, input)| {
            let sizes = program.buffers[input.buf].sizes.iter().enumerate();
            sizes.map(move |(dim, size)| (SizeSource::Dim(n, dim), size.clone()))
        });
        Binder::new(inputs, &program.symbols, &[])
    }

    /// The same, which also checks these guards.
    ///
    /// # Errors
    /// The number of a guard that uses a symbol which the arguments do not determine.
    pub fn guarded(mut self, guards: &[Guard]) -> Result<Binder, usize> {
        for (n, guard) in guards.iter().enumerate() {
            let code = self.code(&guard.expression).ok_or(n)?;
            self.guards.push(code);
        }
        Ok(self)
    }

    /// How a number is used, given the symbols that have values so far; `None` where that is too little.
    fn solve_rule(&mut self, size: &SymExpr) -> Option<Rule> {
        if let Some(number) = size.as_const() {
            return Some(Rule::Number(number));
        }
        if let Some(symbol) = size.as_sym() {
            if self.determines(symbol) {
                return Some(Rule::Equal(symbol));
            }
            self.order.push(symbol);
            return Some(Rule::Bind(symbol));
        }
        if let Some(code) = self.code(size) {
            return Some(Rule::Same(code));
        }
        let mut unknown: SmallVec<[SymId; 2]> = SmallVec::new();
        size.for_each_leaf(&mut |a| match a {
            Atom::Sym(id) if !self.determines(*id) && !unknown.contains(id) => unknown.push(*id),
            _ => {}
        });
        let [symbol] = unknown[..] else { return None };
        let (coef, rest) = size.affine_in(&Atom::Sym(symbol))?;
        let (coef, rest) = (self.code(&coef)?, self.code(&rest)?);
        self.order.push(symbol);
        Some(Rule::Solve { symbol, coef, rest })
    }

    fn code(&self, e: &SymExpr) -> Option<SizeCode> {
        SizeCode::of(e, &|a| match a {
            Atom::Sym(id) => self.determines(*id).then_some(id.0),
            _ => None,
        })
    }

    /// Whether a call's arguments determine the value of a symbol.
    pub fn determines(&self, id: SymId) -> bool {
        self.order.contains(&id)
    }
    /// The symbols that a call determines, in the order in which they get their values.
    pub fn order(&self) -> &[SymId] {
        &self.order
    }
    /// The symbols and their ranges.
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }
    /// An equation, by the number that a [`Mismatch`] has of it.
    pub fn equation(&self, number: usize) -> &Equation {
        &self.equations[number]
    }
    /// How many values [`solve`](Binder::solve) works on: one per symbol, by its number.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Finds the symbols' values, and checks ranges and guards. `values` has [`slots`](Binder::slots) places, those of the
    /// known symbols filled in; `number` is the number at a place, where the call has one.
    ///
    /// # Errors
    /// The first mismatch; `values` has what was found before it.
    pub fn solve(
        &self,
        number: impl Fn(SizeSource) -> Option<i64>,
        values: &mut [i64],
    ) -> Result<(), Mismatch> {
        for (n, equation) in self.equations.iter().enumerate() {
            let given = number(equation.place).ok_or(Mismatch::Missing(n))?;
            let found = match &equation.what {
                Rule::Number(number) if given == *number => continue,
                Rule::Equal(symbol) if values.get(symbol.index()) == Some(&given) => continue,
                Rule::Same(code) if code.eval(values) == Some(given) => continue,
                Rule::Bind(symbol) => Some((*symbol, given)),
                Rule::Solve { symbol, coef, rest } => {
                    solution(given, coef.eval(values), rest.eval(values)).map(|value| (*symbol, value))
                }
                _ => None,
            };
            let (symbol, value) = found.ok_or(Mismatch::Equation(n))?;
            let slot = values.get_mut(symbol.index()).ok_or(Mismatch::Equation(n))?;
            *slot = value;
            // A symbol that is not declared is a size.
            if !self.symbols.get(symbol).map_or(value >= 0, |s| s.contains(value)) {
                return Err(Mismatch::Range(n, symbol));
            }
        }
        Ok(())
    }

    /// The number of the first guard that the values break; `guards` are those that the binder was made with.
    ///
    /// # Errors
    /// [`Mismatch::Guard`].
    pub fn check(&self, guards: &[Guard], values: &[i64]) -> Result<(), Mismatch> {
        let holds = |(code, guard): (&SizeCode, &Guard)| {
            code.eval(values).is_some_and(|value| guard.relation.holds(value))
        };
        self.guards
            .iter()
            .zip(guards)
            .position(|pair| !holds(pair))
            .map_or(Ok(()), |n| Err(Mismatch::Guard(n)))
    }

    /// The sizes of a program's call; `size` is that of a dimension of an input, whose rank was checked.
    ///
    /// # Errors
    /// The first mismatch, and the values found before it.
    pub fn sizes(
        &self,
        program: &Program,
        size: impl Fn(usize, usize) -> Option<i64>,
    ) -> Result<Sizes, (Mismatch, Sizes)> {
        let mut values = Sizes::hints(program).into_values();
        values.resize(self.slots(), 0);
        let number = |place| match place {
            SizeSource::Dim(input, dim) => size(input, dim),
            SizeSource::Value(_) => None,
        };
        match self.solve(number, &mut values) {
            Ok(()) => Ok(Sizes::of(values)),
            Err(mismatch) => Err((mismatch, Sizes::of(values))),
        }
    }

    /// What is wrong with the size of a dimension that breaks an equation, in the caller's terms: `dimension 0 is 130; it
    /// must be a multiple of 2 from 4 to 128`. Empty for guards and numbers that are no sizes.
    pub fn problem(&self, mismatch: Mismatch, given: i64, values: &[i64]) -> String {
        let (Mismatch::Missing(n) | Mismatch::Equation(n) | Mismatch::Range(n, _)) = mismatch else {
            return String::new();
        };
        let equation = &self.equations[n];
        let SizeSource::Dim(_, dim) = equation.place else { return String::new() };
        if equation.is_undetermined() {
            return format!("the inputs' sizes do not determine `{}`", equation.size);
        }
        equation.size.describe_mismatch(dim, given, equation.expected(values), &self.symbols)
    }
}

/// The integer `x` with `coef * x + rest == size`.
fn solution(size: i64, coef: Option<i64>, rest: Option<i64>) -> Option<i64> {
    let (coef, difference) = (coef?, size.checked_sub(rest?)?);
    if difference.checked_rem(coef)? != 0 {
        return None;
    }
    difference.checked_div(coef)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir_core::Symbol;

    fn binder(sizes: &[&[&str]]) -> Binder {
        let symbol =
            |name: &str, min, max| Symbol { name: name.into(), min, max, hint: None, unbacked: false };
        let symbols: Symbols = [symbol("n", 1, Some(8)), symbol("m", 0, None)].into_iter().collect();
        let given = sizes.iter().enumerate().flat_map(|(n, sizes)| {
            sizes.iter().enumerate().map(move |(d, e)| (SizeSource::Dim(n, d), e.parse().unwrap()))
        });
        Binder::new(given, &symbols, &[])
    }

    fn solved(binder: &Binder, given: &[&[i64]]) -> Result<Vec<i64>, Mismatch> {
        let mut values = vec![0; binder.slots()];
        let number = |place| match place {
            SizeSource::Dim(input, dim) => Some(given[input][dim]),
            SizeSource::Value(_) => None,
        };
        binder.solve(number, &mut values).map(|()| values)
    }

    #[test]
    fn sizes_are_solved_in_dependency_order() {
        let binder = binder(&[&["s0*s1", "3"], &["2*s0 + 1"], &["s0 + s1"]]);
        assert_eq!(solved(&binder, &[&[20, 3], &[9], &[9]]), Ok(vec![4, 5]));
        assert_eq!(solved(&binder, &[&[20, 3], &[8], &[9]]), Err(Mismatch::Equation(1)), "8 is no 2*s0 + 1");
        assert_eq!(solved(&binder, &[&[20, 4], &[9], &[9]]), Err(Mismatch::Equation(0)));
        assert_eq!(
            solved(&binder, &[&[21, 3], &[9], &[9]]),
            Err(Mismatch::Equation(3)),
            "the last to be told"
        );
        assert_eq!(solved(&binder, &[&[20, 3], &[19], &[9]]), Err(Mismatch::Range(1, SymId(0))));
        assert_eq!(binder.order(), [SymId(0), SymId(1)]);
    }

    #[test]
    fn sizes_that_nothing_determines_do_not_match() {
        let binder = binder(&[&["s0*s1"]]);
        assert_eq!(solved(&binder, &[&[4]]), Err(Mismatch::Equation(0)));
        assert_eq!(
            binder.problem(Mismatch::Equation(0), 4, &[]),
            "the inputs' sizes do not determine `s0*s1`"
        );
    }
}
