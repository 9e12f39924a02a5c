//! Formulas over real and complex tensors written as formulas: operators build scalar prims, and the first error is kept
//! until the end. No entries, and no knowledge of single functions.

use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};

use fx_ir::{Arg, ValueId};
use ir_core::DType;
use kernel_ir::ScalarOp;

use crate::{Builder, OpError, Parts};

/// Where a formula is built.
pub(super) struct Formula<'b, 'g> {
    b: RefCell<&'b mut Builder<'g>>,
    dtype: DType,
    error: RefCell<Option<OpError>>,
}

/// What numbers need of the place where they are built, without its lifetimes.
trait Place {
    fn op(&self, op: ScalarOp, args: &[Arg]) -> Option<ValueId>;
    fn call(&self, target: &str, args: Vec<Arg>) -> Option<ValueId>;
    fn dtype(&self) -> DType;
}

impl<'b, 'g> Formula<'b, 'g> {
    /// A formula over parts of this dtype (`f32` or `f64`).
    pub(super) fn new(b: &'b mut Builder<'g>, dtype: DType) -> Formula<'b, 'g> {
        Formula { b: RefCell::new(b), dtype, error: RefCell::new(None) }
    }
    pub(super) fn num(&self, v: ValueId) -> Num<'_> {
        Num { at: self, v }
    }
    pub(super) fn complex(&self, z: Parts) -> Z<'_> {
        Z { re: self.num(z.re), im: self.num(z.im) }
    }
    /// The first error on the way, or else `result`.
    pub(super) fn done<T>(self, result: T) -> Result<T, OpError> {
        match self.error.into_inner() {
            Some(error) => Err(error),
            None => Ok(result),
        }
    }
    fn keep(&self, result: Result<ValueId, OpError>) -> Option<ValueId> {
        result.map_err(|e| self.error.borrow_mut().get_or_insert(e).clone()).ok()
    }
}

impl Place for Formula<'_, '_> {
    fn op(&self, op: ScalarOp, args: &[Arg]) -> Option<ValueId> {
        let made = self.b.borrow_mut().scalar_op(op, args);
        self.keep(made)
    }
    fn call(&self, target: &str, args: Vec<Arg>) -> Option<ValueId> {
        let made = self.b.borrow_mut().call1(target, args);
        self.keep(made)
    }
    fn dtype(&self) -> DType {
        self.dtype
    }
}

/// A real tensor in a formula.
#[derive(Clone, Copy)]
pub(super) struct Num<'f> {
    at: &'f dyn Place,
    /// The value; meaningless once there is an error.
    pub(super) v: ValueId,
}

/// A `bool` tensor in a formula.
#[derive(Clone, Copy)]
pub(super) struct Mask<'f>(pub(super) Num<'f>);

/// A complex tensor in a formula.
#[derive(Clone, Copy)]
pub(super) struct Z<'f> {
    pub(super) re: Num<'f>,
    pub(super) im: Num<'f>,
}

/// A tensor or a number among the operands of a formula.
#[derive(Clone, Copy)]
pub(super) enum Operand<'f> {
    Tensor(Num<'f>),
    Number(f64),
}

impl<'f> From<Num<'f>> for Operand<'f> {
    fn from(n: Num<'f>) -> Self {
        Operand::Tensor(n)
    }
}
impl From<f64> for Operand<'_> {
    fn from(x: f64) -> Self {
        Operand::Number(x)
    }
}
impl Operand<'_> {
    fn arg(self) -> Arg {
        match self {
            Operand::Tensor(n) => Arg::Value(n.v),
            Operand::Number(x) => Arg::from(x),
        }
    }
}

macro_rules! unary {
    ($($name:ident $op:ident;)*) => {
        impl<'f> Num<'f> {$(
            pub(super) fn $name(self) -> Num<'f> {
                self.apply(ScalarOp::$op, &[Arg::Value(self.v)])
            }
        )*}
    };
}

unary! {
    abs Abs; sqrt Sqrt; exp Exp; expm1 Expm1; log Log; log1p Log1p; sin Sin; cos Cos; tan Tan;
    sinh Sinh; cosh Cosh; tanh Tanh; asinh Asinh;
}

macro_rules! comparisons {
    ($($name:ident $op:ident;)*) => {
        impl<'f> Num<'f> {$(
            pub(super) fn $name(self, other: impl Into<Operand<'f>>) -> Mask<'f> {
                Mask(self.with(ScalarOp::$op, other.into()))
            }
        )*}
    };
}

comparisons! { eq Eq; ne Ne; lt Lt; le Le; gt Gt; ge Ge; }

impl<'f> Num<'f> {
    fn apply(self, op: ScalarOp, args: &[Arg]) -> Num<'f> {
        Num { v: self.at.op(op, args).unwrap_or(self.v), ..self }
    }
    fn with(self, op: ScalarOp, other: Operand<'f>) -> Num<'f> {
        self.apply(op, &[Arg::Value(self.v), other.arg()])
    }
    pub(super) fn max(self, other: Num<'f>) -> Num<'f> {
        self.with(ScalarOp::Max, other.into())
    }
    pub(super) fn min(self, other: Num<'f>) -> Num<'f> {
        self.with(ScalarOp::Min, other.into())
    }
    pub(super) fn atan2(self, other: impl Into<Operand<'f>>) -> Num<'f> {
        self.with(ScalarOp::Atan2, other.into())
    }
    /// This magnitude with the sign of `other`.
    pub(super) fn with_sign_of(self, other: Num<'f>) -> Num<'f> {
        self.with(ScalarOp::CopySign, other.into())
    }
    /// 1 with this sign.
    pub(super) fn sign_one(self) -> Num<'f> {
        self.apply(ScalarOp::CopySign, &[Arg::from(1.0), Arg::Value(self.v)])
    }
    /// `sqrt(self² + other²)` without overflow.
    pub(super) fn hypot(self, other: Num<'f>) -> Num<'f> {
        let v = self.at.call("aten.hypot.default", vec![self.v.into(), other.v.into()]);
        Num { v: v.unwrap_or(self.v), ..self }
    }
    /// Whether the parts are doubles.
    pub(super) fn is_double(self) -> bool {
        self.at.dtype() == DType::F64
    }
    /// `single` or `double`, as the dtype is.
    pub(super) fn limit(self, single: f64, double: f64) -> f64 {
        if self.is_double() { double } else { single }
    }
    /// A tensor of one number, which broadcasts.
    pub(super) fn constant(self, x: f64) -> Num<'f> {
        let args = vec![Arg::List(Vec::new()), x.into(), self.at.dtype().into()];
        Num { v: self.at.call("prims.full", args).unwrap_or(self.v), ..self }
    }
}

impl<'f> Mask<'f> {
    /// `yes` where the mask holds, else `no`.
    pub(super) fn pick(self, yes: impl Into<Operand<'f>>, no: impl Into<Operand<'f>>) -> Num<'f> {
        let (mut yes, no) = (yes.into(), no.into());
        if let (Operand::Number(x), Operand::Number(_)) = (yes, no) {
            // Numbers alone do not say the dtype.
            yes = Operand::Tensor(self.0.constant(x));
        }
        self.0.apply(ScalarOp::Select, &[Arg::Value(self.0.v), yes.arg(), no.arg()])
    }
    pub(super) fn and(self, other: Mask<'f>) -> Mask<'f> {
        Mask(self.0.with(ScalarOp::And, other.0.into()))
    }
    pub(super) fn or(self, other: Mask<'f>) -> Mask<'f> {
        Mask(self.0.with(ScalarOp::Or, other.0.into()))
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident;)*) => {$(
        impl<'f, T: Into<Operand<'f>>> $trait<T> for Num<'f> {
            type Output = Num<'f>;
            fn $method(self, other: T) -> Num<'f> {
                self.with(ScalarOp::$op, other.into())
            }
        }
        impl<'f> $trait<Num<'f>> for f64 {
            type Output = Num<'f>;
            fn $method(self, other: Num<'f>) -> Num<'f> {
                other.apply(ScalarOp::$op, &[Arg::from(self), Arg::Value(other.v)])
            }
        }
    )*};
}

operators! { Add add Add; Sub sub Sub; Mul mul Mul; Div div Div; }

impl<'f> Neg for Num<'f> {
    type Output = Num<'f>;
    fn neg(self) -> Num<'f> {
        self.apply(ScalarOp::Neg, &[Arg::Value(self.v)])
    }
}

impl<'f> Mul for Z<'f> {
    type Output = Z<'f>;
    fn mul(self, other: Z<'f>) -> Z<'f> {
        let (a, b, c, d) = (self.re, self.im, other.re, other.im);
        Z { re: a * c - b * d, im: a * d + b * c }
    }
}

impl<'f> Z<'f> {
    pub(super) fn parts(self) -> Parts {
        Parts { re: self.re.v, im: self.im.v }
    }
    /// `i z`.
    pub(super) fn times_i(self) -> Z<'f> {
        Z { re: -self.im, im: self.re }
    }
    /// `-i z`.
    pub(super) fn times_minus_i(self) -> Z<'f> {
        Z { re: self.im, im: -self.re }
    }
}
