//! Values of size symbols while a program runs: bound from the sizes of inputs (`s0`, `2*s0 + 1`), and unbacked ones
//! from results. Not a solver: one equation determines at most one symbol, which must occur in it affinely.

use ir_core::{Atom, Bounds, EntityId, SymExpr, SymId};

/// What is known of the symbols' values.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    values: Vec<Option<i64>>,
}

/// Sizes that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// A symbol outside its range.
    #[error("size `{symbol}` is {value}, it must be {}", range(*min, *max))]
    Range {
        /// The symbol's name in the user's program.
        symbol: String,
        /// Its value.
        value: i64,
        /// Smallest allowed.
        min: i64,
        /// Largest allowed.
        max: Option<i64>,
    },
    /// An expression has another value than is wanted.
    #[error("a size is {value}, but `{expr}` is {expected} by the sizes seen before")]
    Differs {
        /// The expression.
        expr: String,
        /// What the tensor has.
        value: i64,
        /// What follows from the other sizes.
        expected: i64,
    },
    /// No whole number solves the equation.
    #[error("a size is {value}, which `{expr}` cannot be")]
    NoSolution {
        /// The expression.
        expr: String,
        /// What the tensor has.
        value: i64,
    },
    /// The inputs do not determine an expression.
    #[error("the inputs' sizes do not determine `{expr}`")]
    Undetermined {
        /// The expression.
        expr: String,
    },
}

fn range(min: i64, max: Option<i64>) -> String {
    match max {
        Some(max) if max == min => format!("{min}"),
        Some(max) => format!("from {min} to {max}"),
        None => format!("at least {min}"),
    }
}

impl Conflict {
    /// The conflict in the caller's terms: dimension `dim` of a tensor, `given`, must equal `expr`.
    pub fn of_size(&self, dim: usize, expr: &SymExpr, given: i64, known: &dyn Bounds) -> String {
        match self {
            Conflict::Differs { expected, .. } => expr.describe_mismatch(dim, given, Some(*expected), known),
            Conflict::Range { .. } | Conflict::NoSolution { .. } => {
                expr.describe_mismatch(dim, given, None, known)
            }
            Conflict::Undetermined { .. } => self.to_string(),
        }
    }
}

impl Bindings {
    /// No symbol has a value.
    pub fn new() -> Bindings {
        Bindings::default()
    }
    /// The value of a symbol.
    pub fn get(&self, id: SymId) -> Option<i64> {
        self.values.get(id.index()).copied().flatten()
    }
    /// Sets a symbol.
    pub fn set(&mut self, id: SymId, value: i64) {
        if self.values.len() <= id.index() {
            self.values.resize(id.index() + 1, None);
        }
        self.values[id.index()] = Some(value);
    }
    /// The value of an expression; `None` where a symbol has none or the result does not fit.
    pub fn eval(&self, expr: &SymExpr) -> Option<i64> {
        if let Some(c) = expr.as_const() {
            return Some(c);
        }
        expr.eval(&|atom| match atom {
            Atom::Sym(id) => self.get(*id),
            _ => None,
        })
    }
    /// The expression with bound symbols replaced by their values.
    pub fn subst(&self, expr: &SymExpr) -> SymExpr {
        if expr.as_const().is_some() {
            return expr.clone();
        }
        expr.subst(&|atom| match atom {
            Atom::Sym(id) => self.get(*id).map(SymExpr::from_i64),
            _ => None,
        })
    }

    /// Makes `expr == value` hold: checks it where all is known, else binds the one unknown symbol. `Ok(false)` where
    /// the equation has several unknown symbols, or one that is not affine: the caller tries again when more is known.
    pub fn unify(&mut self, expr: &SymExpr, value: i64) -> Result<bool, Conflict> {
        let rest = self.subst(expr);
        if let Some(expected) = rest.as_const() {
            return if expected == value {
                Ok(true)
            } else {
                Err(Conflict::Differs { expr: expr.to_string(), value, expected })
            };
        }
        let Some(id) = only_symbol(&rest) else { return Ok(false) };
        let Some((coef, constant)) = rest.affine_in(&Atom::Sym(id)) else { return Ok(false) };
        let (Some(coef), Some(constant)) = (coef.as_const(), constant.as_const()) else { return Ok(false) };
        let no_solution = || Conflict::NoSolution { expr: expr.to_string(), value };
        let difference = value.checked_sub(constant).ok_or_else(no_solution)?;
        if coef == 0 || difference.checked_rem(coef) != Some(0) {
            return Err(no_solution());
        }
        self.set(id, difference.checked_div(coef).ok_or_else(no_solution)?);
        Ok(true)
    }

    /// The first symbol whose value is outside of its range, with the number of the equation that it is in. Symbols have
    /// their names and ranges.
    pub fn out_of_range<'s>(
        &self,
        symbols: impl IntoIterator<Item = (SymId, &'s str, i64, Option<i64>)>,
        equations: &[(SymExpr, i64)],
    ) -> Option<(usize, Conflict)> {
        symbols.into_iter().find_map(|(id, name, min, max)| {
            let value = self.get(id).filter(|&v| v < min || max.is_some_and(|max| v > max))?;
            let of = |(expr, _): &(SymExpr, i64)| expr.any_leaf(|a| *a == Atom::Sym(id));
            let at = equations.iter().position(of)?;
            Some((at, Conflict::Range { symbol: name.into(), value, min, max }))
        })
    }

    /// Solves a list of equations in any order; `Ok` when all hold. The error carries the index of its equation.
    pub fn solve(&mut self, equations: &[(SymExpr, i64)]) -> Result<(), (usize, Conflict)> {
        let mut open: Vec<usize> = (0..equations.len()).collect();
        loop {
            let before = open.len();
            let mut left = Vec::new();
            for &i in &open {
                let (expr, value) = &equations[i];
                if !self.unify(expr, *value).map_err(|c| (i, c))? {
                    left.push(i);
                }
            }
            match left.first() {
                None => return Ok(()),
                Some(&i) if left.len() == before => {
                    return Err((i, Conflict::Undetermined { expr: equations[i].0.to_string() }));
                }
                Some(_) => open = left,
            }
        }
    }
}

/// The symbol, where exactly one occurs.
fn only_symbol(expr: &SymExpr) -> Option<SymId> {
    let (mut found, mut many) = (None, false);
    expr.for_each_leaf(&mut |atom| match atom {
        Atom::Sym(id) if found.is_none() || found == Some(*id) => found = Some(*id),
        _ => many = true,
    });
    found.filter(|_| !many)
}
