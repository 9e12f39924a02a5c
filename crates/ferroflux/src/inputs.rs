//! The inputs of a model and of its calls: tensors, numbers, and values that the model was exported for. Numbers are passed
//! to every backend as tensors without dimensions; values that the model was exported for are only compared here.
//!
//! Not here: checks of tensors against the model's dtypes and sizes, and of integers against their ranges
//! ([`crate::check`]).

use std::fmt;

use fx_ir::{Arg, Graph, InputKind as Kind, Symbols, ValueType};
use ir_core::{DType, Guard, Scalar, Shape, SymExpr, TensorMeta};
use plugin_host::Value;
use pt2::UserInput;
use tensor::{DeviceTensor, Tensor};

use crate::check::Signature;
use crate::{Error, Program};

/// One input of a call: `model.call_with(&[x.into(), 7.into(), "mean".into()])`.
#[derive(Clone, Debug)]
pub enum Input {
    /// A tensor, on the host or on the backend's device. One without dimensions may stand for a number.
    Tensor(Value),
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Text.
    Str(Box<str>),
    /// Nothing, where the model was exported with `None`.
    None,
}

/// An input of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct InputInfo {
    /// Name of the argument.
    pub name: String,
    /// Its kind.
    pub kind: InputKind,
}

/// The kind of an input of a model.
#[derive(Clone, Debug, PartialEq)]
pub enum InputKind {
    /// A tensor of this dtype and these sizes, which may be symbolic.
    Tensor(TensorMeta),
    /// An integer.
    Int {
        /// The integer in the graph's symbols, which sizes may depend on.
        value: SymExpr,
        /// Smallest value, inclusive; `i64::MIN` is unbounded.
        min: i64,
        /// Largest value, inclusive; `None` is unbounded.
        max: Option<i64>,
    },
    /// A float.
    Float,
    /// A truth value.
    Bool,
    /// The one value that the model was exported for; a call may leave such inputs out.
    Constant(Arg),
}

/// A tensor that is passed to a backend: an input that is a tensor, or a number as a tensor without dimensions.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Name of the argument.
    pub name: String,
    /// dtype and sizes; sizes may be symbolic.
    pub meta: TensorMeta,
    /// The integer that it holds, in the graph's symbols.
    pub(crate) value: Option<SymExpr>,
}

impl Input {
    /// As a tensor of the host; `None` for text and for nothing.
    ///
    /// # Errors
    /// A tensor on a device.
    pub(crate) fn host(&self) -> Result<Option<Tensor>, Error> {
        let number = |s: Scalar, dtype| Tensor::scalar(dtype, s).map(Some).map_err(Error::from);
        match self {
            Input::Tensor(Value::Host(tensor)) => Ok(Some(tensor.clone())),
            Input::Tensor(Value::Device(tensor)) => Err(Error::OtherDevice(format!("{tensor:?}"))),
            Input::Int(n) => number(Scalar::Int(*n), DType::I64),
            Input::Float(x) => number(Scalar::Float(*x), DType::F64),
            Input::Bool(b) => number(Scalar::Bool(*b), DType::Bool),
            Input::Str(_) | Input::None => Ok(None),
        }
    }
}

/// The inputs of a call without those that the model was exported for, which a call may leave out.
pub(crate) fn varying<'a>(infos: &[InputInfo], inputs: &'a [Input]) -> Vec<&'a Input> {
    let all = inputs.len() == infos.len();
    let given = inputs.iter().enumerate().filter(|(n, _)| !(all && infos[*n].is_constant()));
    given.map(|(_, input)| input).collect()
}

impl InputInfo {
    /// The input of this type; `None` for a value that is not an input.
    pub(crate) fn of(name: &str, ty: &ValueType, symbols: &Symbols) -> Option<InputInfo> {
        let kind = match ty {
            // The storage offset of the example tensor at capture does not matter.
            ValueType::Tensor(meta) => {
                InputKind::Tensor(TensorMeta { offset: SymExpr::ZERO, ..meta.clone() })
            }
            ValueType::Int(value) => {
                let symbol = value.as_sym().and_then(|id| symbols.get(id));
                let (min, max) = match (value.as_const(), symbol) {
                    (Some(n), _) => (n, Some(n)),
                    (None, Some(symbol)) => (symbol.min, symbol.max),
                    (None, None) => (i64::MIN, None),
                };
                InputKind::Int { value: value.clone(), min, max }
            }
            ValueType::Float => InputKind::Float,
            ValueType::Bool => InputKind::Bool,
            ValueType::None => return None,
        };
        Some(InputInfo { name: name.into(), kind })
    }

    /// dtype and sizes, where it is a tensor.
    pub fn meta(&self) -> Option<&TensorMeta> {
        match &self.kind {
            InputKind::Tensor(meta) => Some(meta),
            _ => None,
        }
    }

    /// Whether it is the one value that the model was exported for.
    pub fn is_constant(&self) -> bool {
        matches!(self.kind, InputKind::Constant(_))
    }

    /// The tensor that is passed to a backend for it.
    fn tensor(&self) -> Option<TensorInfo> {
        let number = |dtype| TensorMeta::contiguous(dtype, Shape::new());
        let (meta, value) = match &self.kind {
            InputKind::Tensor(meta) => (meta.clone(), None),
            InputKind::Int { value, .. } => (number(DType::I64), Some(value.clone())),
            InputKind::Float => (number(DType::F64), None),
            InputKind::Bool => (number(DType::Bool), None),
            InputKind::Constant(_) => return None,
        };
        Some(TensorInfo { name: self.name.clone(), meta, value })
    }
}

/// The inputs of an exported model in calling order, constants included.
pub(crate) fn of_model(graph: &Graph, users: &[UserInput]) -> Vec<InputInfo> {
    let one = |user: &UserInput| match (&user.constant, user.value) {
        (Some(constant), _) => {
            Some(InputInfo { name: user.path.clone(), kind: InputKind::Constant(constant.clone()) })
        }
        (None, Some(v)) => {
            let (_, _, name) = graph.inputs().find(|(other, _, _)| *other == v)?;
            InputInfo::of(name, &graph.values[v].ty, &graph.symbols)
        }
        (None, None) => None,
    };
    users.iter().filter_map(one).collect()
}

/// The tensors that a graph of tensors takes, without the seed.
pub(crate) fn of_graph(graph: &Graph) -> Vec<TensorInfo> {
    let users = graph.inputs().filter(|(_, kind, _)| *kind != Kind::Seed);
    users.filter_map(|(v, _, name)| Some(TensorInfo::new(name, graph.meta(v)?.clone()))).collect()
}

impl TensorInfo {
    /// A tensor.
    pub(crate) fn new(name: &str, meta: TensorMeta) -> TensorInfo {
        TensorInfo { name: name.into(), meta, value: None }
    }

    /// What a tensor of this type determines about the symbols.
    pub(crate) fn equations(&self, given: &Value) -> Vec<(SymExpr, i64)> {
        let sizes = given.sizes().iter().map(|&s| s as i64);
        let mut equations: Vec<(SymExpr, i64)> = self.meta.sizes.iter().cloned().zip(sizes).collect();
        if let (Some(value), Value::Host(tensor)) = (&self.value, given) {
            equations.extend(tensor.item().map(|n| (value.clone(), n.as_i64())));
        }
        equations
    }
}

/// The inputs of a compiled model, and the tensors that are passed to its backend for them.
pub(crate) struct Arguments {
    inputs: Vec<InputInfo>,
    tensors: Vec<TensorInfo>,
    signature: Signature,
}

impl Arguments {
    /// The inputs of a program, with the guards of its compiled form. Only the captured graph has guards on integers that
    /// are inputs and that no size determines.
    ///
    /// # Errors
    /// A guard that uses a symbol which the inputs do not determine.
    pub(crate) fn of(program: &Program, symbols: &Symbols, compiled: &[Guard]) -> Result<Arguments, Error> {
        let mut guards = compiled.to_vec();
        for guard in &program.graph().guards {
            let same = |g: &Guard| g.expression == guard.expression && g.relation == guard.relation;
            if !guards.iter().any(same) {
                guards.push(guard.clone());
            }
        }
        Arguments::new(program.inputs(), symbols, &guards)
    }

    fn new(inputs: Vec<InputInfo>, symbols: &Symbols, guards: &[Guard]) -> Result<Arguments, Error> {
        let tensors: Vec<TensorInfo> = inputs.iter().filter_map(InputInfo::tensor).collect();
        let signature = Signature::of(&tensors, symbols, guards)?;
        Ok(Arguments { inputs, tensors, signature })
    }

    pub(crate) fn inputs(&self) -> &[InputInfo] {
        &self.inputs
    }

    /// The tensors that are passed to the backend.
    pub(crate) fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The position among the caller's `given` inputs of the tensor of this number.
    pub(crate) fn place(&self, tensor: usize, given: usize) -> usize {
        if given != self.inputs.len() {
            return tensor;
        }
        let crossing = self.inputs.iter().enumerate().filter(|(_, i)| !i.is_constant());
        crossing.map(|(n, _)| n).nth(tensor).unwrap_or(tensor)
    }

    /// Whether all inputs are tensors.
    fn is_plain(&self) -> bool {
        self.inputs.iter().all(|i| matches!(i.kind, InputKind::Tensor(_)))
    }

    /// The tensors of a call whose inputs are tensors.
    pub(crate) fn conform(&self, given: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        if self.is_plain() {
            return self.signature.conform(given);
        }
        let given: Vec<Input> = given.iter().map(Input::from).collect();
        let host = |value| match value {
            Value::Host(tensor) => Ok(tensor),
            Value::Device(t) => Err(Error::OtherDevice(format!("{t:?}"))),
        };
        self.conform_with(&given)?.into_iter().map(host).collect()
    }

    /// The tensors of a call, on any device.
    ///
    /// # Errors
    /// A wrong number of inputs, inputs of other kinds, other values than those that the model was exported for, and errors
    /// of [`crate::check`].
    pub(crate) fn conform_with(&self, given: &[Input]) -> Result<Vec<Value>, Error> {
        let all = given.len() == self.inputs.len();
        if !all && given.len() != self.tensors.len() {
            return Err(self.count(given.len()));
        }
        let mut tensors = Vec::with_capacity(self.tensors.len());
        let mut given_inputs = given.iter().enumerate();
        for info in self.inputs.iter().filter(|i| all || !i.is_constant()) {
            let Some((index, input)) = given_inputs.next() else { break };
            tensors.extend(crossing(info, index, input)?);
        }
        self.signature.conform_values(tensors).map_err(|e| match e {
            Error::Input { index, name, problem } => {
                Error::Input { index: self.place(index, given.len()), name, problem }
            }
            other => other,
        })
    }

    /// Checks tensors that are passed on as they are, on any device.
    ///
    /// # Errors
    /// As for [`conform_with`](Self::conform_with).
    pub(crate) fn check(&self, tensors: &[Value]) -> Result<(), Error> {
        self.signature.check(tensors)
    }

    /// Whether some inputs are numbers.
    pub(crate) fn has_numbers(&self) -> bool {
        self.tensors.iter().any(|t| t.value.is_some())
    }

    /// The error for a wrong number of inputs.
    pub(crate) fn count(&self, given: usize) -> Error {
        let name = |i: &InputInfo| match &i.kind {
            InputKind::Constant(_) => format!("{} = {}", i.name, i.kind),
            _ => i.name.clone(),
        };
        let names = self.inputs.iter().map(name).collect::<Vec<_>>().join(", ");
        Error::InputCount { expected: self.inputs.len(), given, names }
    }
}

/// The tensor of an input for the backend; none for an input that is only compared.
fn crossing(info: &InputInfo, index: usize, given: &Input) -> Result<Option<Value>, Error> {
    let mismatch = || Error::InputKind {
        index,
        name: info.name.clone(),
        wanted: info.kind.to_string(),
        given: given.to_string(),
    };
    let number = |dtype: DType, fits: fn(Scalar) -> bool| -> Result<Option<Value>, Error> {
        let scalar = given.scalar().filter(|s| fits(*s)).ok_or_else(mismatch)?;
        Ok(Some(Tensor::scalar(dtype, scalar)?.into()))
    };
    match (&info.kind, given) {
        (InputKind::Tensor(_), Input::Tensor(value)) => Ok(Some(value.clone())),
        (InputKind::Tensor(_), _) => Err(mismatch()),
        // A truth value is an integer in Python, and both convert to floats.
        (InputKind::Int { .. }, _) => number(DType::I64, |s| matches!(s, Scalar::Int(_) | Scalar::Bool(_))),
        (InputKind::Float, _) => number(DType::F64, |s| !matches!(s, Scalar::Complex(..))),
        (InputKind::Bool, _) => number(DType::Bool, |s| matches!(s, Scalar::Bool(_))),
        (InputKind::Constant(expected), _) if given.equals(expected) => Ok(None),
        (InputKind::Constant(_), _) => Err(Error::ConstantInput {
            index,
            name: info.name.clone(),
            expected: info.kind.to_string(),
            given: given.to_string(),
        }),
    }
}

impl Input {
    /// The number, where it is one or a tensor of the host without dimensions.
    fn scalar(&self) -> Option<Scalar> {
        match self {
            Input::Int(n) => Some(Scalar::Int(*n)),
            Input::Float(x) => Some(Scalar::Float(*x)),
            Input::Bool(b) => Some(Scalar::Bool(*b)),
            Input::Tensor(Value::Host(t)) if t.rank() == 0 => t.item(),
            _ => None,
        }
    }

    /// Whether it is the value that a model was exported for. Numbers are compared as Python does: `3.0 == 3`, `True == 1`.
    fn equals(&self, expected: &Arg) -> bool {
        match (self, expected) {
            (Input::None, Arg::None) => true,
            (Input::Str(text), Arg::Str(expected)) => text == expected,
            // Any other value is given as it prints.
            (Input::Str(text), other) => Some(&**text) == printed(other).as_deref(),
            (_, expected) => match (self.scalar(), expected.as_scalar()) {
                (Some(a), Some(b)) => same_number(a, b),
                _ => false,
            },
        }
    }
}

fn same_number(a: Scalar, b: Scalar) -> bool {
    let integer = |s| matches!(s, Scalar::Int(_) | Scalar::Bool(_));
    match (a, b) {
        (Scalar::Complex(re, im), other) | (other, Scalar::Complex(re, im)) => match other {
            Scalar::Complex(other_re, other_im) => (re, im) == (other_re, other_im),
            real => im == 0.0 && re == real.as_f64(),
        },
        (a, b) if integer(a) && integer(b) => a.as_i64() == b.as_i64(),
        (a, b) => a.as_f64() == b.as_f64(),
    }
}

/// The printed form of values that are neither numbers nor text nor absent.
fn printed(constant: &Arg) -> Option<String> {
    match constant {
        Arg::DType(dtype) => Some(dtype.to_string()),
        Arg::Device(device) => Some(device.to_string()),
        _ => None,
    }
}

impl fmt::Display for InputKind {
    /// `f32[3, s0]`, `an integer from 2 to 10`, `a float`, `a bool`; a constant prints its value: `3`, `"mean"`, `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InputKind::Tensor(meta) => write!(f, "{meta}"),
            InputKind::Int { min: i64::MIN, max: None, .. } => f.write_str("an integer"),
            InputKind::Int { min, max: None, .. } => write!(f, "an integer of at least {min}"),
            InputKind::Int { min: i64::MIN, max: Some(max), .. } => {
                write!(f, "an integer of at most {max}")
            }
            InputKind::Int { min, max: Some(max), .. } if min == max => write!(f, "the integer {min}"),
            InputKind::Int { min, max: Some(max), .. } => write!(f, "an integer from {min} to {max}"),
            InputKind::Float => f.write_str("a float"),
            InputKind::Bool => f.write_str("a bool"),
            InputKind::Constant(Arg::None) => f.write_str("none"),
            InputKind::Constant(Arg::Str(text)) => write!(f, "{text:?}"),
            InputKind::Constant(other) => match (other.as_scalar(), printed(other)) {
                (Some(number), _) => write!(f, "{number}"),
                (None, Some(text)) => f.write_str(&text),
                (None, None) => write!(f, "{other:?}"),
            },
        }
    }
}

impl fmt::Display for Input {
    /// `f32[3, 4]`, `7`, `2.5`, `true`, `"mean"`, `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Input::Tensor(value) => write!(f, "the tensor {}{:?}", value.dtype(), value.sizes()),
            Input::Int(n) => write!(f, "the integer {n}"),
            Input::Float(x) => write!(f, "the float {x:?}"),
            Input::Bool(b) => write!(f, "the bool {b}"),
            Input::Str(text) => write!(f, "the text {text:?}"),
            Input::None => f.write_str("none"),
        }
    }
}

macro_rules! input_from {
    ($($from:ty => |$x:ident| $to:expr;)*) => {$(
        impl From<$from> for Input {
            fn from($x: $from) -> Input {
                $to
            }
        }
    )*};
}
input_from! {
    Tensor => |t| Input::Tensor(Value::Host(t));
    &Tensor => |t| Input::Tensor(Value::Host(t.clone()));
    DeviceTensor => |t| Input::Tensor(Value::Device(t));
    Value => |v| Input::Tensor(v);
    &Value => |v| Input::Tensor(v.clone());
    i64 => |n| Input::Int(n);
    i32 => |n| Input::Int(n.into());
    f64 => |x| Input::Float(x);
    bool => |b| Input::Bool(b);
    &str => |text| Input::Str(text.into());
    String => |text| Input::Str(text.into());
    () => |_nothing| Input::None;
}
