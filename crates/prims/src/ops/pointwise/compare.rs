//! Comparisons, logic, bitwise operators, and predicates of floats.

use fx_ir::Arg;
use ir_core::{DType, Scalar};
use kernel_ir::{ReduceOp, ScalarOp};

use crate::ops::common::{named, one, plain, truth};
use crate::promotion::{DEFAULT_FLOAT, Promote};
use crate::{Builder, Call, OpDef, OpError, Outs};

/// `self <op> other` in the common dtype, as `bool`.
macro_rules! compare {
    ($schema:literal, $op:ident) => {
        composite!($schema, |b, c| plain(b, c, Promote::AlwaysBool, ScalarOp::$op, &["self", "other"]))
    };
}

/// `self <op> other` on bits (truth values for `bool`).
macro_rules! bits {
    ($schema:literal, $op:ident) => {
        composite!($schema, |b, c| bitwise(b, c, ScalarOp::$op))
    };
}

/// Of truth values.
macro_rules! logical {
    ($schema:literal, $op:ident) => {
        composite!($schema, |b, c| {
            let (x, y) = (c.value("self")?, c.value("other")?);
            let (x, y) = (truth(b, x)?, truth(b, y)?);
            one(b.scalar_op(ScalarOp::$op, &[x.into(), y.into()])?)
        })
    };
}

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    compare!("aten::eq.Tensor(Tensor self, Tensor other) -> Tensor", Eq),
    compare!("aten::eq.Scalar(Tensor self, Scalar other) -> Tensor", Eq),
    compare!("aten::ne.Tensor(Tensor self, Tensor other) -> Tensor", Ne),
    compare!("aten::ne.Scalar(Tensor self, Scalar other) -> Tensor", Ne),
    compare!("aten::not_equal.Tensor(Tensor self, Tensor other) -> Tensor", Ne),
    compare!("aten::not_equal.Scalar(Tensor self, Scalar other) -> Tensor", Ne),
    compare!("aten::lt.Tensor(Tensor self, Tensor other) -> Tensor", Lt),
    compare!("aten::lt.Scalar(Tensor self, Scalar other) -> Tensor", Lt),
    compare!("aten::less.Tensor(Tensor self, Tensor other) -> Tensor", Lt),
    compare!("aten::less.Scalar(Tensor self, Scalar other) -> Tensor", Lt),
    compare!("aten::le.Tensor(Tensor self, Tensor other) -> Tensor", Le),
    compare!("aten::le.Scalar(Tensor self, Scalar other) -> Tensor", Le),
    compare!("aten::less_equal.Tensor(Tensor self, Tensor other) -> Tensor", Le),
    compare!("aten::less_equal.Scalar(Tensor self, Scalar other) -> Tensor", Le),
    compare!("aten::gt.Tensor(Tensor self, Tensor other) -> Tensor", Gt),
    compare!("aten::gt.Scalar(Tensor self, Scalar other) -> Tensor", Gt),
    compare!("aten::greater.Tensor(Tensor self, Tensor other) -> Tensor", Gt),
    compare!("aten::greater.Scalar(Tensor self, Scalar other) -> Tensor", Gt),
    compare!("aten::ge.Tensor(Tensor self, Tensor other) -> Tensor", Ge),
    compare!("aten::ge.Scalar(Tensor self, Scalar other) -> Tensor", Ge),
    compare!("aten::greater_equal.Tensor(Tensor self, Tensor other) -> Tensor", Ge),
    compare!("aten::greater_equal.Scalar(Tensor self, Scalar other) -> Tensor", Ge),
    logical!("aten::logical_and(Tensor self, Tensor other) -> Tensor", And),
    logical!("aten::logical_or(Tensor self, Tensor other) -> Tensor", Or),
    logical!("aten::logical_xor(Tensor self, Tensor other) -> Tensor", Xor),
    composite!("aten::logical_not(Tensor self) -> Tensor", |b, c| {
        let x = truth(b, c.value("self")?)?;
        one(b.not(x)?)
    }),
    bits!("aten::bitwise_and.Tensor(Tensor self, Tensor other) -> Tensor", And),
    bits!("aten::bitwise_and.Scalar(Tensor self, Scalar other) -> Tensor", And),
    bits!("aten::bitwise_and.Scalar_Tensor(Scalar self, Tensor other) -> Tensor", And),
    bits!("aten::bitwise_or.Tensor(Tensor self, Tensor other) -> Tensor", Or),
    bits!("aten::bitwise_or.Scalar(Tensor self, Scalar other) -> Tensor", Or),
    bits!("aten::bitwise_or.Scalar_Tensor(Scalar self, Tensor other) -> Tensor", Or),
    bits!("aten::bitwise_xor.Tensor(Tensor self, Tensor other) -> Tensor", Xor),
    bits!("aten::bitwise_xor.Scalar(Tensor self, Scalar other) -> Tensor", Xor),
    bits!("aten::bitwise_xor.Scalar_Tensor(Scalar self, Tensor other) -> Tensor", Xor),
    bits!("aten::bitwise_left_shift.Tensor(Tensor self, Tensor other) -> Tensor", Shl),
    bits!("aten::bitwise_left_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor", Shl),
    bits!("aten::bitwise_left_shift.Scalar_Tensor(Scalar self, Tensor other) -> Tensor", Shl),
    bits!("aten::bitwise_right_shift.Tensor(Tensor self, Tensor other) -> Tensor", Shr),
    bits!("aten::bitwise_right_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor", Shr),
    bits!("aten::bitwise_right_shift.Scalar_Tensor(Scalar self, Tensor other) -> Tensor", Shr),
    bits!("aten::__and__.Tensor(Tensor self, Tensor other) -> Tensor", And),
    bits!("aten::__and__.Scalar(Tensor self, Scalar other) -> Tensor", And),
    bits!("aten::__or__.Tensor(Tensor self, Tensor other) -> Tensor", Or),
    bits!("aten::__or__.Scalar(Tensor self, Scalar other) -> Tensor", Or),
    bits!("aten::__xor__.Tensor(Tensor self, Tensor other) -> Tensor", Xor),
    bits!("aten::__xor__.Scalar(Tensor self, Scalar other) -> Tensor", Xor),
    bits!("aten::__lshift__.Tensor(Tensor self, Tensor other) -> Tensor", Shl),
    bits!("aten::__lshift__.Scalar(Tensor self, Scalar other) -> Tensor", Shl),
    bits!("aten::__rshift__.Tensor(Tensor self, Tensor other) -> Tensor", Shr),
    bits!("aten::__rshift__.Scalar(Tensor self, Scalar other) -> Tensor", Shr),
    composite!("aten::bitwise_not(Tensor self) -> Tensor", |b, c| {
        let x = c.value("self")?;
        refuse_inexact(b, c, b.dtype(x)?)?;
        one(b.not(x)?)
    }),
    composite!("aten::isnan(Tensor self) -> Tensor", |b, c| {
        let x = c.value("self")?;
        one(b.ne(x, x)?)
    }),
    composite!("aten::isinf(Tensor self) -> Tensor", |b, c| {
        let size = b.call1("aten.abs.default", vec![c.value("self")?.into()])?;
        about_float(b, size, |b| b.eq(size, f64::INFINITY), false)
    }),
    composite!("aten::isfinite(Tensor self) -> Tensor", |b, c| {
        let size = b.call1("aten.abs.default", vec![c.value("self")?.into()])?;
        about_float(b, size, |b| b.lt(size, f64::INFINITY), true)
    }),
    composite!("aten::isposinf(Tensor self) -> Tensor", |b, c| {
        let x = c.value("self")?;
        about_float(b, x, |b| b.eq(x, f64::INFINITY), false)
    }),
    composite!("aten::isneginf(Tensor self) -> Tensor", |b, c| {
        let x = c.value("self")?;
        about_float(b, x, |b| b.eq(x, f64::NEG_INFINITY), false)
    }),
    composite!("aten::isreal(Tensor self) -> Tensor", |b, c| {
        let x = c.value("self")?;
        if !b.dtype(x)?.is_complex() {
            let sizes = b.sizes(x)?;
            return one(b.full(&sizes, true, DType::Bool)?);
        }
        let imag = b.call1("prims.imag", vec![x.into()])?;
        one(b.eq(imag, 0.0)?)
    }),
    composite!("aten::signbit(Tensor self) -> Tensor", signbit),
    composite!(
        "aten::isclose(Tensor self, Tensor other, float rtol=1.0000000000000001e-05, float atol=1e-08, bool equal_nan=False) -> Tensor",
        isclose
    ),
    composite!(
        "aten::isin.Tensor_Tensor(Tensor elements, Tensor test_elements, *, bool assume_unique=False, bool invert=False) -> Tensor",
        isin
    ),
    composite!(
        "aten::isin.Tensor_Scalar(Tensor elements, Scalar test_element, *, bool assume_unique=False, bool invert=False) -> Tensor",
        |b, c| {
            let target = if c.bool("invert")? { "aten.ne.Scalar" } else { "aten.eq.Scalar" };
            b.call(target, named(c, &["elements", "test_element"]))
        }
    ),
    composite!(
        "aten::isin.Scalar_Tensor(Scalar element, Tensor test_elements, *, bool assume_unique=False, bool invert=False) -> Tensor",
        |b, c| {
            let hits = b.call1("aten.eq.Scalar", named(c, &["test_elements", "element"]))?;
            let dims: Vec<usize> = (0..b.rank(hits)?).collect();
            let any = b.reduce(ReduceOp::Any, hits, &dims, false)?;
            one(if c.bool("invert")? { b.not(any)? } else { any })
        }
    ),
];

fn refuse_inexact(_: &Builder<'_>, c: &Call<'_>, dtype: DType) -> Result<(), OpError> {
    if dtype.is_inexact() { Err(OpError::DType { op: c.name().into(), dtype }) } else { Ok(()) }
}

fn bitwise(b: &mut Builder<'_>, c: &Call<'_>, op: ScalarOp) -> Result<Outs, OpError> {
    let common = b.result_type(&named(c, &["self", "other"]))?;
    refuse_inexact(b, c, common)?;
    plain(b, c, Promote::Default, op, &["self", "other"])
}

/// A question that only floats answer differently.
fn about_float(
    b: &mut Builder<'_>,
    x: fx_ir::ValueId,
    ask: impl FnOnce(&mut Builder<'_>) -> Result<fx_ir::ValueId, OpError>,
    otherwise: bool,
) -> Result<Outs, OpError> {
    if b.dtype(x)?.is_integral() {
        let sizes = b.sizes(x)?;
        return one(b.full(&sizes, otherwise, DType::Bool)?);
    }
    one(ask(b)?)
}

/// Whether the sign is negative; `-0.0` and negative `NaN` count.
fn signbit(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    match b.dtype(x)? {
        DType::Bool => {
            let sizes = b.sizes(x)?;
            one(b.full(&sizes, false, DType::Bool)?)
        }
        dtype if dtype.is_float() => {
            let unit = b.copysign(1.0, x)?;
            one(b.lt(unit, 0.0)?)
        }
        dtype => one(b.lt(x, Scalar::zero(dtype))?),
    }
}

/// `x == y`, or both finite and `|x - y| <= atol + |rtol * y|`.
fn isclose(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (x, y) = (c.value("self")?, c.value("other")?);
    let mut close = b.call1("aten.eq.Tensor", vec![x.into(), y.into()])?;
    if c.bool("equal_nan")? && b.dtype(x)?.is_inexact() {
        let (x_nan, y_nan) = (b.ne(x, x)?, b.ne(y, y)?);
        let both = b.and(x_nan, y_nan)?;
        close = b.or(close, both)?;
    }
    let (rtol, atol) = (c.float("rtol")?, c.float("atol")?);
    if rtol == 0.0 && atol == 0.0 {
        return one(close);
    }
    let y = if b.dtype(y)?.is_integral() { b.cast(y, DEFAULT_FLOAT)? } else { y };
    let scaled = b.call1("aten.mul.Scalar", vec![y.into(), rtol.into()])?;
    let scaled = b.call1("aten.abs.default", vec![scaled.into()])?;
    let allowed = b.add(scaled, atol)?;
    let distance = b.call1("aten.sub.Tensor", vec![x.into(), y.into()])?;
    let distance = b.call1("aten.abs.default", vec![distance.into()])?;
    let finite = b.lt(distance, f64::INFINITY)?;
    let near = b.call1("aten.le.Tensor", vec![distance.into(), allowed.into()])?;
    let near = b.and(finite, near)?;
    one(b.or(close, near)?)
}

fn isin(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (x, tests) = (c.value("elements")?, c.value("test_elements")?);
    let n = b.meta(tests)?.numel();
    let line = b.reshape(tests, &[n])?;
    let rank = b.rank(x)?;
    let column = b.unsqueeze(x, rank)?;
    let hits = b.call1("aten.eq.Tensor", vec![Arg::Value(column), line.into()])?;
    let any = b.reduce(ReduceOp::Any, hits, &[rank], false)?;
    one(if c.bool("invert")? { b.not(any)? } else { any })
}
