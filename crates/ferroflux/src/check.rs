//! Checks the inputs of a call before a backend sees them: number, dtype, rank, sizes, ranges of size symbols, integers,
//! guards. Each compiled program has one [`Signature`], created when it is compiled, for all backends; a call that fits
//! allocates nothing. [`Binder`] binds the symbols; this module writes the messages. Not here: the conversion of numbers,
//! text and absent inputs ([`crate::inputs`]), and what sizes cannot show (indices from data), which backends check.

use fx_ir::Symbols;
use ir_core::{Atom, DType, EntityId, Guard, SymExpr, SymId};
use kernel_ir::runtime::{Binder, Equation, Mismatch, SizeSource};
use plugin_host::Value;
use smallvec::SmallVec;
use tensor::Tensor;

use crate::Error;
use crate::inputs::{InputKind, TensorInfo};

/// Values of size symbols while a call is checked.
type Slots = SmallVec<[i64; 32]>;

/// The requirements on a call's inputs.
pub(crate) struct Signature {
    inputs: Vec<Expected>,
    /// Symbols whose values are known before the call.
    known: Vec<SymId>,
    binder: Binder,
    guards: Vec<Guard>,
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
}

/// The number of a call at a source.
fn number<T: CallTensor>(given: &[T], place: SizeSource) -> Option<i64> {
    let tensor = given.get(place.input())?;
    match place {
        SizeSource::Dim(_, dim) => tensor.sizes().get(dim).and_then(|s| i64::try_from(*s).ok()),
        SizeSource::Value(_) => tensor.integer(),
    }
}

/// A tensor on the host or on a device.
pub(crate) trait CallTensor {
    fn dtype(&self) -> DType;
    fn sizes(&self) -> &[usize];
    /// The integer that a tensor of the host without dimensions holds.
    fn integer(&self) -> Option<i64>;
}

impl CallTensor for Tensor {
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

impl<T: CallTensor> CallTensor for &T {
    fn dtype(&self) -> DType {
        (**self).dtype()
    }
    fn sizes(&self) -> &[usize] {
        (**self).sizes()
    }
    fn integer(&self) -> Option<i64> {
        (**self).integer()
    }
}

impl CallTensor for Value {
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

/// The reason why a call does not fit.
enum InputMismatch {
    Count,
    Type(usize),
    Number(Mismatch),
}

impl Signature {
    /// For inputs whose sizes are expressions of these symbols.
    ///
    /// # Errors
    /// A guard that uses a symbol which the sizes of the inputs do not determine.
    pub(crate) fn of(inputs: &[TensorInfo], symbols: &Symbols, guards: &[Guard]) -> Result<Signature, Error> {
        Signature::with_known(inputs, symbols, guards, &[])
    }

    /// As [`of`](Signature::of), where the values of some symbols are known before the inputs are seen.
    pub(crate) fn with_known(
        inputs: &[TensorInfo],
        symbols: &Symbols,
        guards: &[Guard],
        known: &[SymId],
    ) -> Result<Signature, Error> {
        let given = inputs.iter().enumerate().flat_map(|(n, info)| {
            let sizes = info.meta.sizes.iter().enumerate();
            let sizes = sizes.map(move |(dim, size)| (SizeSource::Dim(n, dim), size.clone()));
            sizes.chain(info.value.iter().map(move |value| (SizeSource::Value(n), value.clone())))
        });
        let binder = Binder::new(given, symbols, known).guarded(guards).map_err(|n| Error::Guard {
            message: guards[n].message.clone(),
            origin: from(&guards[n]),
            sizes: "the sizes of the inputs do not tell".into(),
        })?;
        let expected = |info: &TensorInfo| Expected { info: info.clone(), dense: info.meta.is_contiguous() };
        let inputs = inputs.iter().map(expected).collect();
        Ok(Signature { inputs, known: known.to_vec(), binder, guards: guards.to_vec() })
    }

    /// The expected inputs.
    fn infos(&self) -> impl Iterator<Item = &TensorInfo> {
        self.inputs.iter().map(|e| &e.info)
    }

    /// Checks tensors on any device.
    ///
    /// # Errors
    /// The mismatch, with the given sizes.
    pub(crate) fn check<T: CallTensor>(&self, given: &[T]) -> Result<(), Error> {
        self.check_with_known(given, &[])
    }

    fn check_with_known<T: CallTensor>(&self, given: &[T], known: &[i64]) -> Result<(), Error> {
        // Filled in place: what a function returns would be copied, all places that it has.
        let mut slots = Slots::new();
        slots.resize(self.binder.slots(), 0);
        self.known.iter().zip(known).for_each(|(id, value)| slots[id.index()] = *value);
        self.holds(given, &mut slots).map_err(|mismatch| self.error(&mismatch, given, &slots))
    }

    /// Checks host tensors and converts each to the memory layout that the model was captured with.
    ///
    /// # Errors
    /// As for [`check`](Signature::check); no memory for a copy.
    pub(crate) fn conform(&self, given: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        self.conform_with_known(given, &[])
    }

    /// As [`conform`](Signature::conform), with the values of the symbols that are known before the call.
    pub(crate) fn conform_with_known(&self, given: &[Tensor], known: &[i64]) -> Result<Vec<Tensor>, Error> {
        self.check_with_known(given, known)?;
        self.laid_out(given)
    }

    /// Converts host tensors that fit to the memory layout that the model was captured with.
    ///
    /// # Errors
    /// No memory for a copy.
    pub(crate) fn laid_out(&self, given: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        self.inputs.iter().zip(given).map(|(expected, tensor)| expected.laid_out(tensor)).collect()
    }

    /// As [`conform`](Signature::conform) for tensors on any device; those of a device are not converted.
    pub(crate) fn conform_values(&self, given: Vec<Value>) -> Result<Vec<Value>, Error> {
        self.check(&given)?;
        let one = |(expected, value): (&Expected, Value)| match value {
            Value::Host(tensor) => expected.laid_out(&tensor).map(Value::Host),
            device => Ok(device),
        };
        self.inputs.iter().zip(given).map(one).collect()
    }

    fn holds<T: CallTensor>(&self, given: &[T], slots: &mut Slots) -> Result<(), InputMismatch> {
        if given.len() != self.inputs.len() {
            return Err(InputMismatch::Count);
        }
        for (n, (expected, given)) in self.inputs.iter().zip(given).enumerate() {
            if !fits(expected.info.meta.dtype, expected.info.meta.rank(), given) {
                return Err(InputMismatch::Type(n));
            }
        }
        let solved = self.binder.solve(|place| number(given, place), slots);
        solved.and_then(|()| self.binder.check(&self.guards, slots)).map_err(InputMismatch::Number)
    }

    #[cold]
    fn error<T: CallTensor>(&self, mismatch: &InputMismatch, given: &[T], slots: &Slots) -> Error {
        match *mismatch {
            InputMismatch::Count => {
                let names = self.infos().map(|i| i.name.as_str()).collect::<Vec<_>>().join(", ");
                Error::InputCount { expected: self.inputs.len(), given: given.len(), names }
            }
            InputMismatch::Type(input) => self.mismatch(given, input, ""),
            InputMismatch::Number(Mismatch::Missing(n)) => {
                self.mismatch(given, self.binder.equation(n).place.input(), "")
            }
            InputMismatch::Number(Mismatch::Equation(n)) => {
                let equation = self.binder.equation(n);
                let has = number(given, equation.place).unwrap_or_default();
                self.mismatch(given, equation.place.input(), &self.unequal(equation, has, slots))
            }
            InputMismatch::Number(Mismatch::Range(n, id)) => {
                let equation = self.binder.equation(n);
                let has = number(given, equation.place).unwrap_or_default();
                let why = match (equation.place, self.binder.symbols().get(id)) {
                    (SizeSource::Value(_), Some(symbol)) if equation.binds() => {
                        let (value, min, max) = (SymExpr::sym(id), symbol.min, symbol.max);
                        format!("the model wants {}", InputKind::Int { value, min, max })
                    }
                    _ => self.required(equation, has),
                };
                self.mismatch(given, equation.place.input(), &why)
            }
            InputMismatch::Number(Mismatch::Guard(n)) => {
                let guard = &self.guards[n];
                Error::Guard {
                    message: guard.message.clone(),
                    origin: from(guard),
                    sizes: self.sizes(guard, given, slots),
                }
            }
        }
    }

    /// Why a number does not satisfy its equation.
    fn unequal(&self, equation: &Equation, has: i64, slots: &Slots) -> String {
        let size = self.text(&equation.size);
        let by = || equation.expected(slots).map_or("no number".to_string(), |n| n.to_string());
        let is_value = matches!(equation.place, SizeSource::Value(_));
        match () {
            () if equation.is_constant() && is_value => format!("the model wants {}", by()),
            () if equation.is_constant() => String::new(),
            () if equation.is_derived() && is_value => format!("the inputs before it make it {}", by()),
            () if equation.is_derived() => format!("`{size}` is {} by the sizes before, not {has}", by()),
            () if equation.is_undetermined() => {
                format!("the sizes of the inputs do not determine `{size}`")
            }
            () if is_value => format!("it must be `{size}` of an integer"),
            () => self.required(equation, has),
        }
    }

    /// The required number in the caller's terms: of `2*n` the caller knows the product, not the symbol.
    fn required(&self, equation: &Equation, has: i64) -> String {
        let wanted = &equation.size;
        let required = wanted.allowed(self.binder.symbols());
        let required = required.unwrap_or_else(|| format!("a value of `{}`", self.text(wanted)));
        match equation.place {
            SizeSource::Dim(_, dim) => format!("dimension {dim} is {has}; it must be {required}"),
            SizeSource::Value(_) => format!("it must be {required}"),
        }
    }

    /// A size by the names of its symbols.
    fn text(&self, size: &SymExpr) -> String {
        size.text_with(&|id| self.name(id).filter(|_| self.binder.determines(id)).filter(|n| !n.is_empty()))
    }

    fn name(&self, id: SymId) -> Option<&str> {
        self.binder.symbols().get(id).map(|s| s.name.as_str())
    }

    fn mismatch<T: CallTensor>(&self, given: &[T], index: usize, why: &str) -> Error {
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

    /// The inputs that a guard depends on, with their sizes, and the values of its symbols.
    fn sizes<T: CallTensor>(&self, guard: &Guard, given: &[T], slots: &Slots) -> String {
        let mut list = Vec::new();
        let used = |id: SymId| guard.expression.any_leaf(|a| *a == Atom::Sym(id));
        for (info, tensor) in self.infos().zip(given) {
            let about = |s: &SymExpr| s.any_leaf(|a| matches!(a, Atom::Sym(id) if used(*id)));
            if info.meta.sizes.iter().any(about) {
                list.push(format!("`{}` has sizes {:?}", info.name, tensor.sizes()));
            }
        }
        for &id in self.binder.order().iter().filter(|id| used(**id)) {
            let name = self.name(id).map_or_else(|| id.to_string(), str::to_owned);
            list.push(format!("`{name}` is {}", slots[id.index()]));
        }
        list.join(", ")
    }
}

/// Whether dtype and rank are right. A tensor may already have the form that kernels take, as one on a device has: a complex one
/// is real with a last dimension of 2.
fn fits<T: CallTensor>(dtype: DType, rank: usize, given: &T) -> bool {
    let (own, sizes) = (given.dtype(), given.sizes());
    let pairs =
        || dtype.is_complex() && own == dtype.to_real() && sizes.len() == rank + 1 && sizes[rank] == 2;
    (own == dtype || own == dtype.carrier()) && sizes.len() == rank || pairs()
}

/// The origin of a guard, for messages.
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

    /// The cost is printed, not asserted: machines differ.
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
