//! Holds the inputs of a call against what was compiled, before a backend sees them: number, dtype, rank, sizes, ranges of size
//! symbols, integers, guards. One [`Signature`] a compiled thing, made when it is compiled, for every backend alike; a call
//! that fits costs no allocation. Not here: what numbers, text and absent inputs are to a model ([`crate::inputs`]), and what
//! sizes cannot tell (indices from data), which backends check.

use fx_ir::Symbols;
use ir_core::{Atom, Bounds, DType, Guard, SizeCode, SymExpr, SymId};
use plugin_host::Value;
use smallvec::SmallVec;
use tensor::Tensor;

use crate::Error;
use crate::inputs::{InputKind, TensorInfo};

/// Values of size symbols while a call is checked.
type Slots = SmallVec<[i64; 32]>;

/// What a call's inputs are held against.
pub(crate) struct Signature {
    inputs: Vec<Expected>,
    /// Size symbols in the order in which they get values; those that are known before the call come first.
    symbols: Vec<Bound>,
    steps: Vec<Step>,
    guards: Vec<Checked>,
}

struct Expected {
    info: TensorInfo,
    /// Whether code was compiled for dense rows, so that a tensor with other strides is copied.
    dense: bool,
}

impl Expected {
    /// Compiled code addresses inputs by the strides it was compiled for.
    fn laid_out(&self, tensor: &Tensor) -> Result<Tensor, Error> {
        let copy = self.dense && !tensor.is_contiguous();
        Ok(if copy { tensor.contiguous()? } else { tensor.clone() })
    }
    /// The size or integer at a place, in the model's symbols.
    fn at(&self, place: Place) -> &SymExpr {
        match place {
            Place::Dim(dim) => &self.info.meta.sizes[dim],
            Place::Value => self.info.value.as_ref().unwrap_or(&SymExpr::ZERO),
        }
    }
}

/// The number that a call gives at a place.
fn number<T: Given>(given: &T, place: Place) -> Option<i64> {
    match place {
        Place::Dim(dim) => given.sizes().get(dim).and_then(|s| i64::try_from(*s).ok()),
        Place::Value => given.integer(),
    }
}

/// A symbol with a value.
struct Bound {
    id: SymId,
    name: String,
    min: i64,
    max: Option<i64>,
}

/// What one size of one input says, or the integer that the input is.
struct Step {
    input: usize,
    place: Place,
    what: What,
}

/// Which number of an input.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// The size of this dimension.
    Dim(usize),
    /// The integer that a tensor without dimensions holds.
    Value,
}

enum What {
    /// It is this number.
    Number(i64),
    /// It is the value of this symbol.
    Bind(usize),
    /// It is `coef * symbol + rest`, of which only the symbol is unknown.
    Solve { slot: usize, coef: SizeCode, rest: SizeCode },
    /// It is what follows from sizes seen before.
    Same(SizeCode),
    /// The inputs' sizes do not tell the symbols in it.
    Undetermined,
}

struct Checked {
    code: SizeCode,
    guard: Guard,
}

/// A tensor on the host or on a device.
pub(crate) trait Given {
    fn dtype(&self) -> DType;
    fn sizes(&self) -> &[usize];
    /// The integer that a tensor of the host without dimensions holds.
    fn integer(&self) -> Option<i64>;
}

impl Given for Tensor {
    fn dtype(&self) -> DType {
        Tensor::dtype(self)
    }
    fn sizes(&self) -> &[usize] {
        Tensor::sizes(self)
    }
    fn integer(&self) -> Option<i64> {
        self.item().map(|n| n.as_i64())
    }
}

impl Given for Value {
    fn dtype(&self) -> DType {
        Value::dtype(self)
    }
    fn sizes(&self) -> &[usize] {
        Value::sizes(self)
    }
    fn integer(&self) -> Option<i64> {
        match self {
            Value::Host(tensor) => tensor.integer(),
            Value::Device(_) => None,
        }
    }
}

/// Where a call does not fit.
enum Misfit {
    Count,
    Type(usize),
    Step(usize),
    /// The symbol that a step gave a value is outside of its range.
    Range(usize, usize),
    Guard(usize),
}

impl Signature {
    /// For inputs whose sizes are made of these symbols.
    ///
    /// # Errors
    /// A guard that uses a symbol which the sizes of the inputs do not determine.
    pub(crate) fn of(inputs: &[TensorInfo], symbols: &Symbols, guards: &[Guard]) -> Result<Signature, Error> {
        Signature::knowing(inputs, symbols, guards, &[])
    }

    /// As [`of`](Signature::of), where the values of some symbols are known before the inputs are seen.
    pub(crate) fn knowing(
        inputs: &[TensorInfo],
        symbols: &Symbols,
        guards: &[Guard],
        known: &[SymId],
    ) -> Result<Signature, Error> {
        let mut made =
            Signature { inputs: Vec::new(), symbols: Vec::new(), steps: Vec::new(), guards: Vec::new() };
        known.iter().for_each(|id| {
            made.bind(*id, symbols);
        });
        let mut open: Vec<(usize, Place, &SymExpr)> = Vec::new();
        for (n, info) in inputs.iter().enumerate() {
            made.inputs.push(Expected { info: info.clone(), dense: info.meta.is_contiguous() });
            open.extend(info.meta.sizes.iter().enumerate().map(|(dim, size)| (n, Place::Dim(dim), size)));
            open.extend(info.value.iter().map(|value| (n, Place::Value, value)));
        }
        loop {
            let before = open.len();
            open.retain(|&(input, place, size)| match made.settle(size, symbols) {
                Some(what) => {
                    made.steps.push(Step { input, place, what });
                    false
                }
                None => true,
            });
            if open.is_empty() || open.len() == before {
                break;
            }
        }
        let undetermined = |(input, place, _)| Step { input, place, what: What::Undetermined };
        made.steps.extend(open.into_iter().map(undetermined));
        for guard in guards {
            let code = made.code(&guard.expression).ok_or_else(|| Error::Guard {
                message: guard.message.clone(),
                origin: from(guard),
                sizes: "the sizes of the inputs do not tell".into(),
            })?;
            made.guards.push(Checked { code, guard: guard.clone() });
        }
        Ok(made)
    }

    /// What a size says, given the symbols that have values by now; `None` where that is too little.
    fn settle(&mut self, size: &SymExpr, symbols: &Symbols) -> Option<What> {
        if let Some(number) = size.as_const() {
            return Some(What::Number(number));
        }
        if let Some(code) = self.code(size) {
            return Some(What::Same(code));
        }
        if let Some(id) = size.as_sym() {
            return Some(What::Bind(self.bind(id, symbols)));
        }
        let mut unknown: SmallVec<[SymId; 2]> = SmallVec::new();
        size.for_each_leaf(&mut |a| match a {
            Atom::Sym(id) if self.slot(*id).is_none() && !unknown.contains(id) => unknown.push(*id),
            _ => {}
        });
        let [id] = unknown[..] else { return None };
        let (coef, rest) = size.affine_in(&Atom::Sym(id))?;
        let (coef, rest) = (self.code(&coef)?, self.code(&rest)?);
        Some(What::Solve { slot: self.bind(id, symbols), coef, rest })
    }

    fn bind(&mut self, id: SymId, symbols: &Symbols) -> usize {
        let symbol = symbols.get(id);
        self.symbols.push(Bound {
            id,
            name: symbol.map_or_else(|| id.to_string(), |s| s.name.clone()),
            min: symbol.map_or(0, |s| s.min),
            max: symbol.and_then(|s| s.max),
        });
        self.symbols.len() - 1
    }

    fn slot(&self, id: SymId) -> Option<usize> {
        self.symbols.iter().position(|s| s.id == id)
    }

    fn code(&self, e: &SymExpr) -> Option<SizeCode> {
        SizeCode::of(e, &|a| match a {
            Atom::Sym(id) => u32::try_from(self.slot(*id)?).ok(),
            _ => None,
        })
    }

    /// The expected inputs.
    fn infos(&self) -> impl Iterator<Item = &TensorInfo> {
        self.inputs.iter().map(|e| &e.info)
    }

    /// Checks tensors wherever they lie.
    ///
    /// # Errors
    /// What does not fit, with the sizes given.
    pub(crate) fn check<T: Given>(&self, given: &[T]) -> Result<(), Error> {
        self.check_knowing(given, &[])
    }

    fn check_knowing<T: Given>(&self, given: &[T], known: &[i64]) -> Result<(), Error> {
        let mut slots: Slots = known.iter().copied().collect();
        self.holds(given, &mut slots).map_err(|misfit| self.error(&misfit, given, &slots))
    }

    /// Checks host tensors and gives each the memory layout that the model was captured with.
    ///
    /// # Errors
    /// As for [`check`](Signature::check); no memory for a copy.
    pub(crate) fn conform(&self, given: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        self.conform_knowing(given, &[])
    }

    /// As [`conform`](Signature::conform), with the values of the symbols that are known before the call.
    pub(crate) fn conform_knowing(&self, given: &[Tensor], known: &[i64]) -> Result<Vec<Tensor>, Error> {
        self.check_knowing(given, known)?;
        self.inputs.iter().zip(given).map(|(expected, tensor)| expected.laid_out(tensor)).collect()
    }

    /// As [`conform`](Signature::conform) on tensors wherever they lie; those of a device stay as they are.
    pub(crate) fn conform_values(&self, given: Vec<Value>) -> Result<Vec<Value>, Error> {
        self.check(&given)?;
        let one = |(expected, value): (&Expected, Value)| match value {
            Value::Host(tensor) => expected.laid_out(&tensor).map(Value::Host),
            device => Ok(device),
        };
        self.inputs.iter().zip(given).map(one).collect()
    }

    fn holds<T: Given>(&self, given: &[T], slots: &mut Slots) -> Result<(), Misfit> {
        if given.len() != self.inputs.len() {
            return Err(Misfit::Count);
        }
        for (n, (expected, given)) in self.inputs.iter().zip(given).enumerate() {
            if !fits(expected.info.meta.dtype, expected.info.meta.rank(), given) {
                return Err(Misfit::Type(n));
            }
        }
        slots.resize(self.symbols.len(), 0);
        for (n, step) in self.steps.iter().enumerate() {
            let size = given.get(step.input).and_then(|g| number(g, step.place));
            let size = size.ok_or(Misfit::Type(step.input))?;
            let bound = match &step.what {
                What::Number(number) if size == *number => continue,
                What::Same(code) if code.eval(slots) == Some(size) => continue,
                What::Bind(slot) => Some((*slot, size)),
                What::Solve { slot, coef, rest } => {
                    solution(size, coef.eval(slots), rest.eval(slots)).map(|value| (*slot, value))
                }
                _ => None,
            };
            let (slot, value) = bound.ok_or(Misfit::Step(n))?;
            slots[slot] = value;
            let symbol = &self.symbols[slot];
            if value < symbol.min || symbol.max.is_some_and(|max| value > max) {
                return Err(Misfit::Range(n, slot));
            }
        }
        let broken = |c: &Checked| !c.code.eval(slots).is_some_and(|value| c.guard.relation.holds(value));
        self.guards.iter().position(broken).map_or(Ok(()), |n| Err(Misfit::Guard(n)))
    }

    #[cold]
    fn error<T: Given>(&self, misfit: &Misfit, given: &[T], slots: &Slots) -> Error {
        match *misfit {
            Misfit::Count => {
                let names = self.infos().map(|i| i.name.as_str()).collect::<Vec<_>>().join(", ");
                Error::InputCount { expected: self.inputs.len(), given: given.len(), names }
            }
            Misfit::Type(input) => self.misfit(given, input, ""),
            Misfit::Step(n) => {
                let step = &self.steps[n];
                let has = number(&given[step.input], step.place).unwrap_or_default();
                let size = self.text(self.inputs[step.input].at(step.place));
                let why = match &step.what {
                    What::Number(number) if step.place == Place::Value => format!("the model wants {number}"),
                    What::Number(_) => String::new(),
                    What::Same(code) if step.place == Place::Value => {
                        let by = code.eval(slots).map_or("no number".to_string(), |n| n.to_string());
                        format!("the inputs before it make it {by}")
                    }
                    What::Same(code) => {
                        let by = code.eval(slots).map_or("no number".to_string(), |n| n.to_string());
                        format!("`{size}` is {by} by the sizes before, not {has}")
                    }
                    What::Undetermined => format!("the sizes of the inputs do not determine `{size}`"),
                    _ if step.place == Place::Value => format!("it must be `{size}` of an integer"),
                    _ => self.must(step, has),
                };
                self.misfit(given, step.input, &why)
            }
            Misfit::Range(n, slot) => {
                let (step, symbol) = (&self.steps[n], &self.symbols[slot]);
                let has = number(&given[step.input], step.place).unwrap_or_default();
                let why = match step.what {
                    What::Bind(_) if step.place == Place::Value => {
                        let (value, min, max) = (SymExpr::sym(symbol.id), symbol.min, symbol.max);
                        format!("the model wants {}", InputKind::Int { value, min, max })
                    }
                    _ => self.must(step, has),
                };
                self.misfit(given, step.input, &why)
            }
            Misfit::Guard(n) => {
                let guard = &self.guards[n].guard;
                Error::Guard {
                    message: guard.message.clone(),
                    origin: from(guard),
                    sizes: self.sizes(guard, given, slots),
                }
            }
        }
    }

    /// What a number must be, in the caller's sizes: of `2*n` the caller knows the product, not the symbol.
    fn must(&self, step: &Step, has: i64) -> String {
        let wanted = self.inputs[step.input].at(step.place);
        let must = wanted.allowed(self).unwrap_or_else(|| format!("a value of `{}`", self.text(wanted)));
        match step.place {
            Place::Dim(dim) => format!("dimension {dim} is {has}; it must be {must}"),
            Place::Value => format!("it must be {must}"),
        }
    }

    /// A size by the names of its symbols.
    fn text(&self, size: &SymExpr) -> String {
        size.text_with(&|id| {
            self.slot(id).map(|slot| self.symbols[slot].name.as_str()).filter(|n| !n.is_empty())
        })
    }

    fn misfit<T: Given>(&self, given: &[T], index: usize, why: &str) -> Error {
        let (info, tensor) = (&self.inputs[index].info, &given[index]);
        if let (Some(_), Some(number)) = (&info.value, tensor.integer()) {
            return Error::Input { index, name: info.name.clone(), problem: format!("is {number}, {why}") };
        }
        let mut problem = format!("is {}{:?}, the model wants {}", tensor.dtype(), tensor.sizes(), info.meta);
        if !why.is_empty() {
            problem = format!("{problem}: {why}");
        }
        Error::Input { index, name: info.name.clone(), problem }
    }

    /// The inputs that a guard is about, with their sizes, and the values of its symbols.
    fn sizes<T: Given>(&self, guard: &Guard, given: &[T], slots: &Slots) -> String {
        let mut list = Vec::new();
        let used = |id: SymId| guard.expression.any_leaf(|a| *a == Atom::Sym(id));
        for (info, tensor) in self.infos().zip(given) {
            let about = |s: &SymExpr| s.any_leaf(|a| matches!(a, Atom::Sym(id) if used(*id)));
            if info.meta.sizes.iter().any(about) {
                list.push(format!("`{}` has sizes {:?}", info.name, tensor.sizes()));
            }
        }
        for (symbol, value) in self.symbols.iter().zip(slots).filter(|(s, _)| used(s.id)) {
            list.push(format!("`{}` is {value}", symbol.name));
        }
        list.join(", ")
    }
}

/// The ranges of the symbols.
impl Bounds for Signature {
    fn range(&self, leaf: &Atom) -> (Option<i64>, Option<i64>) {
        let slot = if let Atom::Sym(id) = leaf { self.slot(*id) } else { None };
        slot.map_or((None, None), |slot| (Some(self.symbols[slot].min), self.symbols[slot].max))
    }
    fn extent(&self, _: u32) -> Option<SymExpr> {
        None
    }
}

/// Whether dtype and rank are right. A complex tensor may lie on a device as a real one with a last dimension of 2.
fn fits<T: Given>(dtype: DType, rank: usize, given: &T) -> bool {
    let (own, sizes) = (given.dtype(), given.sizes());
    let pairs =
        || dtype.is_complex() && own == dtype.to_real() && sizes.len() == rank + 1 && sizes[rank] == 2;
    own == dtype && sizes.len() == rank || pairs()
}

/// The whole number `x` with `coef * x + rest == size`.
fn solution(size: i64, coef: Option<i64>, rest: Option<i64>) -> Option<i64> {
    let (coef, difference) = (coef?, size.checked_sub(rest?)?);
    if difference.checked_rem(coef)? != 0 {
        return None;
    }
    difference.checked_div(coef)
}

/// Where a guard comes from, for messages.
fn from(guard: &Guard) -> String {
    guard.origin.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fx_ir::Symbol;
    use ir_core::{Origin, Relation, TensorMeta};

    fn e(text: &str) -> SymExpr {
        text.parse().unwrap()
    }

    fn input(name: &str, sizes: &[&str]) -> TensorInfo {
        let sizes: Vec<SymExpr> = sizes.iter().map(|s| e(s)).collect();
        TensorInfo::new(name, TensorMeta::contiguous(DType::F32, sizes))
    }

    fn symbols(list: &[(&str, i64, Option<i64>)]) -> Symbols {
        let one = |&(name, min, max): &(&str, i64, Option<i64>)| Symbol {
            name: name.into(),
            min,
            max,
            hint: None,
            unbacked: false,
        };
        list.iter().map(one).collect()
    }

    fn guard(expression: &str, relation: Relation) -> Guard {
        let origin = Origin { function: "add_1".into(), ..Origin::default() };
        Guard {
            expression: e(expression),
            relation,
            origin,
            message: "sizes n and m do not broadcast".into(),
        }
    }

    fn tensor(sizes: &[usize]) -> Tensor {
        Tensor::zeros(DType::F32, sizes).unwrap()
    }

    fn refusal(signature: &Signature, given: &[Tensor]) -> String {
        signature.check(given).expect_err("the call does not fit").to_string()
    }

    #[test]
    fn a_guard_names_its_message_origin_and_sizes() {
        let symbols = symbols(&[("n", 0, None), ("m", 0, None)]);
        let inputs = [input("x", &["s0"]), input("y", &["s1"])];
        let signature = Signature::of(&inputs, &symbols, &[guard("s0 - s1", Relation::Zero)]).unwrap();
        assert!(signature.check(&[tensor(&[3]), tensor(&[3])]).is_ok());
        assert_eq!(
            refusal(&signature, &[tensor(&[5]), tensor(&[3])]),
            "guard failed: sizes n and m do not broadcast (at add_1): `x` has sizes [5], `y` has sizes [3], `n` is 5, \
             `m` is 3"
        );
    }

    #[test]
    fn sizes_are_solved_and_compared() {
        let symbols = symbols(&[("n", 2, Some(64)), ("m", 0, None)]);
        let inputs = [input("x", &["2*s0", "s0*s1"]), input("y", &["s1", "3"])];
        let signature = Signature::of(&inputs, &symbols, &[]).unwrap();
        assert!(signature.check(&[tensor(&[8, 20]), tensor(&[5, 3])]).is_ok());
        let y = tensor(&[5, 3]);
        assert_eq!(
            refusal(&signature, &[tensor(&[130, 0]), y.clone()]),
            "input 0 (`x`): is f32[130, 0], the model wants f32[2*s0, s0*s1]: dimension 0 is 130; it must be a multiple \
             of 2 from 4 to 128"
        );
        let odd = refusal(&signature, &[tensor(&[7, 0]), y.clone()]);
        assert!(odd.ends_with("dimension 0 is 7; it must be a multiple of 2 from 4 to 128"), "{odd}");
        let other = refusal(&signature, &[tensor(&[8, 21]), y]);
        assert!(other.contains("`n*m`") || other.contains("21"), "{other}");
    }

    #[test]
    fn guards_of_unknown_sizes_are_refused() {
        let symbols = symbols(&[("n", 0, None), ("m", 0, None)]);
        let made = Signature::of(&[input("x", &["s0"])], &symbols, &[guard("s0 - s1", Relation::Zero)]);
        assert!(matches!(made, Err(Error::Guard { .. })));
    }

    /// The cost is printed, not judged: machines differ.
    #[test]
    fn twenty_guards_cost_little() {
        let symbols = symbols(&[("n", 0, None), ("m", 0, None), ("k", 0, None)]);
        let inputs = [input("x", &["s0", "s1"]), input("y", &["s1", "s2"])];
        let guards: Vec<Guard> = (0..20)
            .map(|n| match n % 3 {
                0 => guard(&format!("s0 - s1 + {n}"), Relation::NonNegative),
                1 => guard(&format!("s2 - 2*s1 + {}", 100 + n), Relation::NonNegative),
                _ => guard(&format!("s0 % 4 - {}", 100 + n), Relation::NonZero),
            })
            .collect();
        let signature = Signature::of(&inputs, &symbols, &guards).unwrap();
        let given = [tensor(&[16, 8]), tensor(&[8, 4])];
        let rounds = 200_000;
        let start = std::time::Instant::now();
        for _ in 0..rounds {
            assert!(std::hint::black_box(&signature).check(std::hint::black_box(&given)).is_ok());
        }
        println!("20 guards: {:.1} ns a call", start.elapsed().as_nanos() as f64 / f64::from(rounds));
    }
}
