//! Tensors of a function that is being traced. Not here: capture of control flow and of mutation; a Rust `if` or `for` runs
//! while tracing, and its outcome is fixed in the graph.

use std::cell::{Cell, RefCell};
use std::ops::{Add, Div, Mul, Neg, Sub};

use fx_ir::{Arg, Graph, OriginId, ValueId};
use ir_core::{DType, Shape};
use prims::{Builder, OpError};

/// The trace so far. The first error ends the trace: later operations do nothing.
pub(super) struct Tape {
    pub(super) graph: RefCell<Graph>,
    pub(super) error: RefCell<Option<OpError>>,
    calls: Cell<usize>,
}

impl Tape {
    pub(super) fn new(graph: Graph) -> Tape {
        Tape { graph: RefCell::new(graph), error: RefCell::new(None), calls: Cell::new(0) }
    }
    /// Calls an operator; does nothing after an error.
    fn call(&self, target: &str, args: Vec<Arg>) -> Vec<ValueId> {
        if self.error.borrow().is_some() {
            return Vec::new();
        }
        // Random numbers depend on the name: every call has one of its own.
        let number = self.calls.get();
        self.calls.set(number + 1);
        let short = target.split('.').nth(1).unwrap_or(target);
        let mut graph = self.graph.borrow_mut();
        let mut b = Builder::new(&mut graph, format!("{short}_{number}"), OriginId(0));
        match b.call(target, args) {
            Ok(outs) => outs.to_vec(),
            Err(error) => {
                *self.error.borrow_mut() = Some(error);
                Vec::new()
            }
        }
    }
}

/// A tensor of a traced function. Operators and methods append calls; the error of a refused call (dtypes or sizes that do
/// not fit) is returned by [`super::Func::graph`], and the results of such a call have no values.
#[derive(Clone, Copy)]
pub struct Var<'t> {
    pub(super) tape: &'t Tape,
    pub(super) value: Option<ValueId>,
}

/// An argument of [`Var::call`].
#[derive(Clone)]
pub enum Operand<'t> {
    /// A traced tensor.
    Var(Var<'t>),
    /// Several, for operators that take lists.
    Vars(Vec<Var<'t>>),
    /// Anything else: numbers, lists of numbers, dtypes, `Arg::None`.
    Arg(Arg),
}

impl<'t> From<Var<'t>> for Operand<'t> {
    fn from(v: Var<'t>) -> Operand<'t> {
        Operand::Var(v)
    }
}

impl<'t> From<&[Var<'t>]> for Operand<'t> {
    fn from(list: &[Var<'t>]) -> Operand<'t> {
        Operand::Vars(list.to_vec())
    }
}

macro_rules! operands {
    ($($ty:ty),*) => {$(
        impl From<$ty> for Operand<'_> {
            fn from(x: $ty) -> Self {
                Operand::Arg(Arg::from(x))
            }
        }
    )*};
}
operands!(f64, i64, bool, &[i64], DType, &str);

impl From<Arg> for Operand<'_> {
    fn from(arg: Arg) -> Self {
        Operand::Arg(arg)
    }
}

impl<'t> Var<'t> {
    /// Calls any operator of the table by its full name (`aten.linear.default`), with positional arguments; the first is
    /// this tensor. Missing trailing ones have the schema's defaults. Gives the first result.
    pub fn call(self, target: &str, rest: impl IntoIterator<Item = Operand<'t>>) -> Var<'t> {
        self.call_all(target, rest).first().copied().unwrap_or(Var { tape: self.tape, value: None })
    }

    /// As [`call`](Var::call), for operators with several results: none where the call is refused.
    pub fn call_all(self, target: &str, rest: impl IntoIterator<Item = Operand<'t>>) -> Vec<Var<'t>> {
        let list = std::iter::once(Operand::Var(self)).chain(rest);
        let arg = |operand: Operand<'t>| match operand {
            Operand::Var(v) => v.value.map(Arg::Value),
            Operand::Vars(list) => list.iter().map(|v| v.value).collect::<Option<Vec<_>>>().map(Arg::values),
            Operand::Arg(arg) => Some(arg),
        };
        let Some(args) = list.map(arg).collect::<Option<Vec<Arg>>>() else { return Vec::new() };
        let outs = self.tape.call(target, args);
        outs.into_iter().map(|v| Var { tape: self.tape, value: Some(v) }).collect()
    }

    /// Sizes; none after an error.
    pub fn sizes(self) -> Shape {
        let graph = self.tape.graph.borrow();
        self.value.and_then(|v| graph.meta(v)).map(|m| m.sizes.clone()).unwrap_or_default()
    }
    /// The sum of all elements.
    pub fn sum(self) -> Var<'t> {
        self.call("aten.sum.default", [])
    }
    /// The sum over dimensions.
    pub fn sum_dims(self, dims: &[i64], keepdim: bool) -> Var<'t> {
        self.call("aten.sum.dim_IntList", [dims.into(), keepdim.into()])
    }
    /// The mean of all elements.
    pub fn mean(self) -> Var<'t> {
        self.call("aten.mean.default", [])
    }
    /// The logarithm of the sum of exponentials over dimensions.
    pub fn logsumexp(self, dims: &[i64]) -> Var<'t> {
        self.call("aten.logsumexp.default", [dims.into()])
    }
    /// Softmax along a dimension.
    pub fn softmax(self, dim: i64) -> Var<'t> {
        self.call("aten.softmax.int", [dim.into()])
    }
    /// The matrix product, as `torch.matmul`.
    pub fn matmul(self, other: Var<'t>) -> Var<'t> {
        self.call("aten.matmul.default", [other.into()])
    }
    /// To the power of a number.
    pub fn pow(self, exponent: f64) -> Var<'t> {
        self.call("aten.pow.Tensor_Scalar", [exponent.into()])
    }
    /// In another shape; one size may be -1.
    pub fn reshape(self, sizes: &[i64]) -> Var<'t> {
        self.call("aten.reshape.default", [sizes.into()])
    }
    /// Exchanges two dimensions.
    pub fn transpose(self, x: i64, y: i64) -> Var<'t> {
        self.call("aten.transpose.int", [x.into(), y.into()])
    }
}

macro_rules! unary {
    ($($name:ident $doc:literal;)*) => {
        impl<'t> Var<'t> {$(
            #[doc = $doc]
            pub fn $name(self) -> Var<'t> {
                self.call(concat!("aten.", stringify!($name), ".default"), [])
            }
        )*}
    };
}

unary! {
    sin "Sine of every element.";
    cos "Cosine of every element.";
    exp "e to the power of every element.";
    log "Natural logarithm of every element.";
    sqrt "Square root of every element.";
    tanh "Hyperbolic tangent of every element.";
    sigmoid "Logistic function of every element.";
    relu "Every element, zero where it is negative.";
    gelu "Gaussian error linear unit of every element.";
    abs "Magnitude of every element.";
    square "Every element times itself.";
    reciprocal "One over every element.";
    detach "The tensor itself, through which nothing is differentiated.";
}

macro_rules! binary {
    ($($trait:ident $method:ident $target:literal |$x:ident, $number:ident| $reversed:expr;)*) => {$(
        impl<'t> $trait for Var<'t> {
            type Output = Var<'t>;
            fn $method(self, other: Var<'t>) -> Var<'t> {
                self.call($target, [other.into()])
            }
        }
        impl<'t> $trait<f64> for Var<'t> {
            type Output = Var<'t>;
            fn $method(self, other: f64) -> Var<'t> {
                self.call($target, [other.into()])
            }
        }
        impl<'t> $trait<Var<'t>> for f64 {
            type Output = Var<'t>;
            fn $method(self, other: Var<'t>) -> Var<'t> {
                let ($x, $number) = (other, self);
                $reversed
            }
        }
    )*};
}

binary! {
    Add add "aten.add.Tensor" |x, number| x + number;
    Sub sub "aten.sub.Tensor" |x, number| x.call("aten.rsub.Scalar", [number.into()]);
    Mul mul "aten.mul.Tensor" |x, number| x * number;
    Div div "aten.div.Tensor" |x, number| over(number, x);
}

/// A number over a tensor, as PyTorch rounds it.
fn over(number: f64, x: Var<'_>) -> Var<'_> {
    x.reciprocal() * number
}

impl<'t> Neg for Var<'t> {
    type Output = Var<'t>;
    fn neg(self) -> Var<'t> {
        self.call("aten.neg.default", [])
    }
}
