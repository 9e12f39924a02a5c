//! Unary mathematics of ATen: one tensor in, one of the same shape out.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Scalar};
use kernel_ir::ScalarOp;

use crate::ops::common::{choose, one, plain, unary_in_compute};
use crate::promotion::Promote;
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// A float function; integers are computed in the default float.
macro_rules! float_fn {
    ($schema:literal, $op:ident) => {
        composite!($schema, |b, c| plain(b, c, Promote::IntToFloat, ScalarOp::$op, &["self"]))
    };
}

/// A function that keeps the dtype.
macro_rules! same {
    ($schema:literal, $op:ident) => {
        composite!($schema, |b, c| plain(b, c, Promote::Default, ScalarOp::$op, &["self"]))
    };
}

/// A float function made of several prims, computed in `f32` for 16-bit floats.
macro_rules! float_composite {
    ($schema:literal, $f:expr) => {
        composite!($schema, |b, c| unary_in_compute(b, c, Promote::IntToFloat, $f))
    };
}

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!("aten::abs(Tensor self) -> Tensor", abs),
    composite!("aten::absolute(Tensor self) -> Tensor", abs),
    float_fn!("aten::acos(Tensor self) -> Tensor", Acos).autocast(Autocast::FLOAT32_ON_GPU),
    float_fn!("aten::arccos(Tensor self) -> Tensor", Acos),
    float_fn!("aten::acosh(Tensor self) -> Tensor", Acosh),
    float_fn!("aten::arccosh(Tensor self) -> Tensor", Acosh),
    float_fn!("aten::asin(Tensor self) -> Tensor", Asin).autocast(Autocast::FLOAT32_ON_GPU),
    float_fn!("aten::arcsin(Tensor self) -> Tensor", Asin),
    float_fn!("aten::asinh(Tensor self) -> Tensor", Asinh),
    float_fn!("aten::arcsinh(Tensor self) -> Tensor", Asinh),
    float_fn!("aten::atan(Tensor self) -> Tensor", Atan),
    float_fn!("aten::arctan(Tensor self) -> Tensor", Atan),
    float_fn!("aten::atanh(Tensor self) -> Tensor", Atanh),
    float_fn!("aten::arctanh(Tensor self) -> Tensor", Atanh),
    same!("aten::ceil(Tensor self) -> Tensor", Ceil),
    float_fn!("aten::cos(Tensor self) -> Tensor", Cos),
    float_fn!("aten::cosh(Tensor self) -> Tensor", Cosh).autocast(Autocast::FLOAT32_ON_GPU),
    // x * pi / 180
    float_composite!("aten::deg2rad(Tensor self) -> Tensor", |b, x| b.mul(x, std::f64::consts::PI / 180.0)),
    float_fn!("aten::digamma(Tensor self) -> Tensor", Digamma),
    float_fn!("aten::special_digamma(Tensor self) -> Tensor", Digamma),
    float_fn!("aten::special_psi(Tensor self) -> Tensor", Digamma),
    float_fn!("aten::erf(Tensor self) -> Tensor", Erf),
    float_fn!("aten::special_erf(Tensor self) -> Tensor", Erf),
    float_fn!("aten::erfc(Tensor self) -> Tensor", Erfc),
    float_fn!("aten::special_erfc(Tensor self) -> Tensor", Erfc),
    float_fn!("aten::erfinv(Tensor self) -> Tensor", Erfinv).autocast(Autocast::FLOAT32_ON_GPU),
    float_fn!("aten::special_erfinv(Tensor self) -> Tensor", Erfinv),
    float_fn!("aten::exp(Tensor self) -> Tensor", Exp).autocast(Autocast::FLOAT32_ON_GPU),
    float_fn!("aten::exp2(Tensor self) -> Tensor", Exp2),
    float_fn!("aten::special_exp2(Tensor self) -> Tensor", Exp2),
    float_fn!("aten::expm1(Tensor self) -> Tensor", Expm1).autocast(Autocast::FLOAT32_ON_GPU),
    float_fn!("aten::special_expm1(Tensor self) -> Tensor", Expm1),
    same!("aten::floor(Tensor self) -> Tensor", Floor),
    // x - trunc(x)
    composite!("aten::frac(Tensor self) -> Tensor", |b, c| unary_in_compute(
        b,
        c,
        Promote::Default,
        |b, x| {
            let whole = b.trunc(x)?;
            b.sub(x, whole)
        }
    )),
    float_fn!("aten::lgamma(Tensor self) -> Tensor", Lgamma),
    float_fn!("aten::special_gammaln(Tensor self) -> Tensor", Lgamma),
    float_fn!("aten::log(Tensor self) -> Tensor", Log).autocast(Autocast::FLOAT32_ON_GPU),
    float_fn!("aten::log10(Tensor self) -> Tensor", Log10).autocast(Autocast::FLOAT32_ON_GPU),
    float_fn!("aten::log1p(Tensor self) -> Tensor", Log1p).autocast(Autocast::FLOAT32_ON_GPU),
    float_fn!("aten::special_log1p(Tensor self) -> Tensor", Log1p),
    float_fn!("aten::log2(Tensor self) -> Tensor", Log2).autocast(Autocast::FLOAT32_ON_GPU),
    composite!(
        "aten::nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor",
        nan_to_num
    ),
    same!("aten::neg(Tensor self) -> Tensor", Neg),
    same!("aten::negative(Tensor self) -> Tensor", Neg),
    composite!("aten::positive(Tensor self) -> Tensor", |_, c| one(c.value("self")?)),
    // x * 180 / pi
    float_composite!("aten::rad2deg(Tensor self) -> Tensor", |b, x| b.mul(x, 180.0 / std::f64::consts::PI)),
    float_composite!("aten::reciprocal(Tensor self) -> Tensor", |b, x| b.div(1.0, x))
        .autocast(Autocast::FLOAT32_ON_GPU),
    same!("aten::round(Tensor self) -> Tensor", Round),
    composite!("aten::round.decimals(Tensor self, *, int decimals) -> Tensor", round_decimals),
    float_fn!("aten::rsqrt(Tensor self) -> Tensor", Rsqrt).autocast(Autocast::FLOAT32_ON_GPU),
    composite!("aten::sgn(Tensor self) -> Tensor", sgn),
    float_composite!("aten::sigmoid(Tensor self) -> Tensor", sigmoid),
    float_composite!("aten::special_expit(Tensor self) -> Tensor", sigmoid),
    composite!("aten::sign(Tensor self) -> Tensor", sign),
    float_fn!("aten::sin(Tensor self) -> Tensor", Sin),
    float_composite!("aten::sinc(Tensor self) -> Tensor", sinc),
    float_composite!("aten::special_sinc(Tensor self) -> Tensor", sinc),
    float_fn!("aten::sinh(Tensor self) -> Tensor", Sinh).autocast(Autocast::FLOAT32_ON_GPU),
    float_fn!("aten::sqrt(Tensor self) -> Tensor", Sqrt),
    composite!("aten::square(Tensor self) -> Tensor", |b, c| b
        .call("aten.pow.Tensor_Scalar", vec![c.value("self")?.into(), 2i64.into()])),
    float_fn!("aten::tan(Tensor self) -> Tensor", Tan).autocast(Autocast::FLOAT32_ON_GPU),
    float_fn!("aten::tanh(Tensor self) -> Tensor", Tanh),
    same!("aten::trunc(Tensor self) -> Tensor", Trunc),
    same!("aten::fix(Tensor self) -> Tensor", Trunc),
    same!("aten::special_round(Tensor self, *, int decimals=0) -> Tensor", Round),
];

fn abs(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dtype = b.dtype(x)?;
    match dtype {
        DType::Bool => one(x),
        _ if dtype.is_complex() => one(crate::ops::complex_numbers::numbers::magnitude(b, x)?),
        _ => one(b.abs(x)?),
    }
}

/// `1 / (1 + exp(-x))`.
pub(in crate::ops) fn sigmoid(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, OpError> {
    let minus = b.neg(x)?;
    let e = b.exp(minus)?;
    let sum = b.add(e, one_like(b, x)?)?;
    b.div(one_like(b, x)?, sum)
}

/// The number 1 in the class of `x`'s dtype.
pub(in crate::ops) fn one_like(b: &Builder<'_>, x: ValueId) -> Result<Arg, OpError> {
    Ok(Arg::from(Scalar::Int(1).to_class_of(b.dtype(x)?)))
}

/// `sin(pi x) / (pi x)`, 1 at 0.
fn sinc(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, OpError> {
    let dtype = b.dtype(x)?;
    let (zero, pi) = (Scalar::zero(dtype), Scalar::Float(std::f64::consts::PI).to_class_of(dtype));
    let angle = b.mul(x, pi)?;
    let sine = b.sin(angle)?;
    let quotient = b.div(sine, angle)?;
    let at_zero = b.eq(x, zero)?;
    choose(b, at_zero, 1.0, quotient, dtype)
}

/// -1, 0 or 1; `NaN` gives 0. `bool` stays.
fn sign(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dtype = b.dtype(x)?;
    if dtype == DType::Bool {
        return one(x);
    }
    let zero = Scalar::zero(dtype);
    let (positive, negative) = (b.gt(x, zero)?, b.lt(x, zero)?);
    let (positive, negative) = (b.cast(positive, dtype)?, b.cast(negative, dtype)?);
    one(b.sub(positive, negative)?)
}

fn sgn(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    if !b.dtype(x)?.is_complex() {
        return sign(b, c);
    }
    let dtype = b.dtype(x)?;
    let size = b.call1("aten.abs.default", vec![x.into()])?;
    let size = b.cast(size, dtype)?;
    let unit = b.div(x, size)?;
    let zero = b.eq(x, Scalar::zero(dtype))?;
    one(choose(b, zero, Scalar::zero(dtype), unit, dtype)?)
}

/// Largest finite value of a float dtype.
pub(in crate::ops) fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => half::f16::MAX.to_f64(),
        DType::BF16 => half::bf16::MAX.to_f64(),
        DType::F64 => f64::MAX,
        _ => f32::MAX as f64,
    }
}

/// `NaN` by `nan`, infinities by the largest finite values unless given.
fn nan_to_num(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dtype = b.dtype(x)?;
    if dtype.is_integral() {
        return one(x);
    }
    let nan = c.opt_float("nan")?.unwrap_or(0.0);
    let high = c.opt_float("posinf")?.unwrap_or(largest(dtype));
    let low = c.opt_float("neginf")?.unwrap_or(-largest(dtype));
    if dtype.is_complex() {
        let view = b.call1("aten.view_as_real.default", vec![x.into()])?;
        let fixed =
            b.call1("aten.nan_to_num.default", vec![view.into(), nan.into(), high.into(), low.into()])?;
        return b.call("aten.view_as_complex.default", vec![fixed.into()]);
    }
    let is_nan = b.ne(x, x)?;
    let is_high = b.eq(x, f64::INFINITY)?;
    let is_low = b.eq(x, f64::NEG_INFINITY)?;
    let out = b.select(is_nan, nan, x)?;
    let out = b.select(is_high, high, out)?;
    one(b.select(is_low, low, out)?)
}

/// `round(x * 10^n) / 10^n`; for negative n by `round(x / 10^-n) * 10^-n`.
fn round_decimals(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let decimals = c.int("decimals")?;
    if decimals == 0 || !b.dtype(c.value("self")?)?.is_inexact() {
        return b.call("aten.round.default", vec![c.value("self")?.into()]);
    }
    let ten = 10f64.powi(decimals.unsigned_abs().min(400) as i32);
    unary_in_compute(b, c, Promote::Default, |b, x| {
        let scaled = if decimals > 0 { b.mul(x, ten)? } else { b.div(x, ten)? };
        let whole = b.scalar_op(ScalarOp::Round, &[scaled.into()])?;
        if decimals > 0 { b.div(whole, ten) } else { b.mul(whole, ten) }
    })
}
