//! Binary arithmetic of ATen: promotion and broadcasting, then prims.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Scalar};
use kernel_ir::ScalarOp;

use super::common::{choose, in_compute, one, plain, promoted};
use crate::promotion::Promote;
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// Operands promoted, one scalar operator.
macro_rules! binary {
    ($schema:literal, $promote:ident, $op:ident) => {
        composite!($schema, |b, c| plain(b, c, Promote::$promote, ScalarOp::$op, &["self", "other"]))
    };
}

/// Operands promoted, computed by several prims (16-bit floats in `f32`).
macro_rules! binary_composite {
    ($schema:literal, $promote:ident, $f:expr) => {
        composite!($schema, |b, c| in_compute(b, c, Promote::$promote, &["self", "other"], |b, xs| {
            let [x, y] = pair(b, xs)?;
            $f(b, x, y)
        }))
    };
}

/// The entries.
pub(super) const OPS: &[OpDef] = &[
    // self + alpha * other
    composite!("aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", |b, c| {
        add_sub(b, c, ScalarOp::Add)
    }),
    composite!("aten::add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", |b, c| add_sub(
        b,
        c,
        ScalarOp::Add
    )),
    composite!("aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", |b, c| {
        add_sub(b, c, ScalarOp::Sub)
    }),
    composite!("aten::sub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", |b, c| add_sub(
        b,
        c,
        ScalarOp::Sub
    )),
    alias!(
        "aten::subtract.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
        "aten.sub.Tensor"
    ),
    alias!("aten::subtract.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", "aten.sub.Scalar"),
    // other - alpha * self
    composite!("aten::rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", |b, c| b.call(
        "aten.sub.Tensor",
        vec![c.arg("other").clone(), c.arg("self").clone(), c.arg("alpha").clone()]
    )),
    composite!("aten::rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", |b, c| b.call(
        "aten.sub.Tensor",
        vec![c.arg("other").clone(), c.arg("self").clone(), c.arg("alpha").clone()]
    )),
    binary!("aten::mul.Tensor(Tensor self, Tensor other) -> Tensor", Default, Mul),
    binary!("aten::mul.Scalar(Tensor self, Scalar other) -> Tensor", Default, Mul),
    binary!("aten::multiply.Tensor(Tensor self, Tensor other) -> Tensor", Default, Mul),
    binary!("aten::multiply.Scalar(Tensor self, Scalar other) -> Tensor", Default, Mul),
    binary!("aten::div.Tensor(Tensor self, Tensor other) -> Tensor", IntToFloat, Div),
    binary!("aten::div.Scalar(Tensor self, Scalar other) -> Tensor", IntToFloat, Div),
    binary!("aten::divide.Tensor(Tensor self, Tensor other) -> Tensor", IntToFloat, Div),
    binary!("aten::divide.Scalar(Tensor self, Scalar other) -> Tensor", IntToFloat, Div),
    binary!("aten::true_divide.Tensor(Tensor self, Tensor other) -> Tensor", IntToFloat, Div),
    binary!("aten::true_divide.Scalar(Tensor self, Scalar other) -> Tensor", IntToFloat, Div),
    composite!("aten::div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor", div_mode),
    composite!("aten::div.Scalar_mode(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor", div_mode),
    composite!(
        "aten::divide.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor",
        div_mode
    ),
    composite!(
        "aten::divide.Scalar_mode(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor",
        div_mode
    ),
    binary_composite!("aten::floor_divide(Tensor self, Tensor other) -> Tensor", Default, floor_div),
    binary_composite!("aten::floor_divide.Scalar(Tensor self, Scalar other) -> Tensor", Default, floor_div),
    binary!("aten::fmod.Tensor(Tensor self, Tensor other) -> Tensor", Default, Rem),
    binary!("aten::fmod.Scalar(Tensor self, Scalar other) -> Tensor", Default, Rem),
    binary_composite!("aten::remainder.Tensor(Tensor self, Tensor other) -> Tensor", Default, remainder),
    binary_composite!("aten::remainder.Scalar(Tensor self, Scalar other) -> Tensor", Default, remainder),
    binary_composite!(
        "aten::remainder.Scalar_Tensor(Scalar self, Tensor other) -> Tensor",
        Default,
        remainder
    ),
    composite!("aten::pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor", pow)
        .autocast(Autocast::FLOAT32_ON_GPU),
    composite!("aten::pow.Scalar(Scalar self, Tensor exponent) -> Tensor", pow)
        .autocast(Autocast::FLOAT32_ON_GPU),
    composite!("aten::pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor", pow_scalar)
        .autocast(Autocast::FLOAT32_ON_GPU),
    composite!("aten::float_power.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor", float_power),
    composite!("aten::float_power.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor", float_power),
    composite!("aten::float_power.Scalar(Scalar self, Tensor exponent) -> Tensor", float_power),
    binary!("aten::maximum(Tensor self, Tensor other) -> Tensor", Default, Max),
    binary!("aten::minimum(Tensor self, Tensor other) -> Tensor", Default, Min),
    binary!("aten::max.other(Tensor self, Tensor other) -> Tensor", Default, Max),
    binary!("aten::min.other(Tensor self, Tensor other) -> Tensor", Default, Min),
    binary_composite!("aten::fmax(Tensor self, Tensor other) -> Tensor", Default, |b, x, y| skip_nan(
        b,
        ScalarOp::Max,
        x,
        y
    )),
    binary_composite!("aten::fmin(Tensor self, Tensor other) -> Tensor", Default, |b, x, y| skip_nan(
        b,
        ScalarOp::Min,
        x,
        y
    )),
    binary!("aten::atan2(Tensor self, Tensor other) -> Tensor", IntToFloat, Atan2)
        .autocast(Autocast::WIDEST_ON_GPU),
    binary!("aten::arctan2(Tensor self, Tensor other) -> Tensor", IntToFloat, Atan2),
    binary!("aten::copysign.Tensor(Tensor self, Tensor other) -> Tensor", IntToFloat, CopySign),
    binary!("aten::copysign.Scalar(Tensor self, Scalar other) -> Tensor", IntToFloat, CopySign),
    composite!("aten::nextafter(Tensor self, Tensor other) -> Tensor", nextafter),
    binary_composite!("aten::hypot(Tensor self, Tensor other) -> Tensor", Default, hypot),
    binary_composite!("aten::logaddexp(Tensor self, Tensor other) -> Tensor", IntToFloat, logaddexp),
    binary_composite!("aten::logaddexp2(Tensor self, Tensor other) -> Tensor", IntToFloat, logaddexp2),
    binary_composite!("aten::xlogy.Tensor(Tensor self, Tensor other) -> Tensor", IntToFloat, xlogy),
    binary_composite!("aten::xlogy.Scalar_Other(Tensor self, Scalar other) -> Tensor", IntToFloat, xlogy),
    binary_composite!("aten::xlogy.Scalar_Self(Scalar self, Tensor other) -> Tensor", IntToFloat, xlogy),
    binary_composite!("aten::special_xlogy(Tensor self, Tensor other) -> Tensor", IntToFloat, xlogy),
    binary_composite!("aten::special_xlog1py(Tensor self, Tensor other) -> Tensor", IntToFloat, xlog1py),
    binary_composite!(
        "aten::special_xlog1py.other_scalar(Tensor self, Scalar other) -> Tensor",
        IntToFloat,
        xlog1py
    ),
    binary_composite!(
        "aten::special_xlog1py.self_scalar(Scalar self, Tensor other) -> Tensor",
        IntToFloat,
        xlog1py
    ),
    // self * 2 ^ other
    composite!("aten::ldexp.Tensor(Tensor self, Tensor other) -> Tensor", |b, c| {
        let power = b.call1("aten.pow.Scalar", vec![2.0.into(), c.arg("other").clone()])?;
        b.call("aten.mul.Tensor", vec![c.arg("self").clone(), power.into()])
    }),
    composite!("aten::heaviside(Tensor self, Tensor values) -> Tensor", heaviside),
];

/// Both operands as tensors: rules that use one twice need it.
fn pair(b: &mut Builder<'_>, operands: &[Arg]) -> Result<[ValueId; 2], OpError> {
    let dtype = b.result_type(operands)?;
    Ok([b.as_tensor(&operands[0], dtype)?, b.as_tensor(&operands[1], dtype)?])
}

fn add_sub(b: &mut Builder<'_>, c: &Call<'_>, op: ScalarOp) -> Result<Outs, OpError> {
    if c.arg("alpha").as_scalar() == Some(Scalar::Int(1)) {
        return plain(b, c, Promote::Default, op, &["self", "other"]);
    }
    in_compute(b, c, Promote::Default, &["self", "other"], |b, xs| {
        let dtype = b.result_type(xs)?;
        let alpha = b.as_dtype(c.arg("alpha"), dtype)?;
        let other = b.as_tensor(&xs[1], dtype)?;
        let scaled = b.mul(other, alpha)?;
        b.scalar_op(op, &[xs[0].clone(), scaled.into()])
    })
}

fn div_mode(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    match c.opt_str("rounding_mode")? {
        None => plain(b, c, Promote::IntToFloat, ScalarOp::Div, &["self", "other"]),
        Some("floor") => in_compute(b, c, Promote::Default, &["self", "other"], |b, xs| {
            let [x, y] = pair(b, xs)?;
            floor_div(b, x, y)
        }),
        Some("trunc") => in_compute(b, c, Promote::Default, &["self", "other"], |b, xs| {
            let quotient = b.div(xs[0].clone(), xs[1].clone())?;
            b.trunc(quotient)
        }),
        Some(other) => Err(c.bad_arg("rounding_mode", format!("is `{other}`, not `floor` or `trunc`"))),
    }
}

/// Whether a remainder and its divisor have different signs.
fn signs_differ(b: &mut Builder<'_>, rest: ValueId, y: ValueId) -> Result<ValueId, OpError> {
    let zero = Scalar::zero(b.dtype(y)?);
    let some = b.ne(rest, zero)?;
    let (low, below) = (b.lt(rest, zero)?, b.lt(y, zero)?);
    let differ = b.xor(low, below)?;
    b.and(some, differ)
}

/// `rem` with the sign of the divisor.
fn remainder(b: &mut Builder<'_>, x: ValueId, y: ValueId) -> Result<ValueId, OpError> {
    let rest = b.rem(x, y)?;
    let fix = signs_differ(b, rest, y)?;
    let moved = b.add(rest, y)?;
    b.select(fix, moved, rest)
}

/// Quotient rounded to minus infinity. Floats go by way of the exact remainder, as Python's `//`: the rounded
/// quotient may lie on the wrong side of a whole number.
fn floor_div(b: &mut Builder<'_>, x: ValueId, y: ValueId) -> Result<ValueId, OpError> {
    let dtype = b.dtype(x)?;
    let one = Scalar::Int(1).to_class_of(dtype);
    let rest = b.rem(x, y)?;
    let fix = signs_differ(b, rest, y)?;
    if dtype.is_integral() {
        let quotient = b.div(x, y)?;
        let below = b.sub(quotient, one)?;
        return b.select(fix, below, quotient);
    }
    let exact = b.sub(x, rest)?;
    let whole = b.div(exact, y)?;
    let below = b.sub(whole, one)?;
    let whole = b.select(fix, below, whole)?;
    let floor = b.floor(whole)?;
    let above = b.sub(whole, floor)?;
    let above = b.gt(above, 0.5)?;
    let up = b.add(floor, one)?;
    let floor = b.select(above, up, floor)?;
    let quotient = b.div(x, y)?;
    let signed_zero = b.copysign(0.0, quotient)?;
    let is_zero = b.eq(whole, 0.0)?;
    let result = b.select(is_zero, signed_zero, floor)?;
    let by_zero = b.eq(y, 0.0)?;
    b.select(by_zero, quotient, result)
}

fn pow(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    plain(b, c, Promote::Default, ScalarOp::Pow, &["self", "exponent"])
}

/// PyTorch computes the common exponents without `pow`.
fn pow_scalar(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let Some(exponent) = c.arg("exponent").as_scalar() else { return pow(b, c) };
    let common = b.result_type(&[c.arg("self").clone(), exponent.into()])?;
    let e = match exponent {
        Scalar::Complex(..) => f64::NAN,
        real => real.as_f64(),
    };
    let special = if common == DType::Bool {
        true
    } else if common.is_integral() {
        [2.0, 3.0].contains(&e)
    } else {
        [0.0, 1.0, 0.5, 2.0, 3.0, -0.5, -1.0, -2.0].contains(&e)
    };
    if !special {
        return pow(b, c);
    }
    in_compute(b, c, Promote::Default, &["self", "exponent"], |b, xs| {
        let dtype = b.result_type(xs)?;
        let x = b.as_tensor(&xs[0], dtype)?;
        let one = Scalar::Int(1).to_class_of(dtype);
        if e == 0.0 {
            let sizes = b.sizes(x)?;
            return b.full(&sizes, one, dtype);
        }
        let raised = match e.abs() {
            1.0 => x,
            2.0 => b.mul(x, x)?,
            3.0 => {
                let square = b.mul(x, x)?;
                b.mul(square, x)?
            }
            _ if e > 0.0 => b.sqrt(x)?,
            _ => return b.rsqrt(x),
        };
        if e < 0.0 { b.div(one, raised) } else { Ok(raised) }
    })
}

/// `pow` in double precision.
fn float_power(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (base, exponent) = (c.arg("self"), c.arg("exponent"));
    let wide =
        if b.result_type(&[base.clone(), exponent.clone()])?.is_complex() { DType::C128 } else { DType::F64 };
    let (base, exponent) = (b.as_tensor(base, wide)?, b.as_dtype(exponent, wide)?);
    let target =
        if matches!(exponent, Arg::Value(_)) { "aten.pow.Tensor_Tensor" } else { "aten.pow.Tensor_Scalar" };
    b.call(target, vec![base.into(), exponent])
}

/// The extremum that a `NaN` does not win.
fn skip_nan(b: &mut Builder<'_>, op: ScalarOp, x: ValueId, y: ValueId) -> Result<ValueId, OpError> {
    let best = b.scalar_op(op, &[x.into(), y.into()])?;
    if b.dtype(x)?.is_integral() {
        return Ok(best);
    }
    let (x_nan, y_nan) = (b.ne(x, x)?, b.ne(y, y)?);
    let best = b.select(y_nan, x, best)?;
    b.select(x_nan, y, best)
}

/// `sqrt(x² + y²)` without overflow; infinite where either is.
fn hypot(b: &mut Builder<'_>, x: ValueId, y: ValueId) -> Result<ValueId, OpError> {
    let (x, y) = (b.abs(x)?, b.abs(y)?);
    let (large, small) = (b.maximum(x, y)?, b.minimum(x, y)?);
    let ratio = b.div(small, large)?;
    let square = b.mul(ratio, ratio)?;
    let sum = b.add(square, 1.0)?;
    let root = b.sqrt(sum)?;
    let scaled = b.mul(large, root)?;
    let zero = b.eq(large, 0.0)?;
    let finite = b.select(zero, 0.0, scaled)?;
    let (x_inf, y_inf) = (b.eq(x, f64::INFINITY)?, b.eq(y, f64::INFINITY)?);
    let infinite = b.or(x_inf, y_inf)?;
    b.select(infinite, f64::INFINITY, finite)
}

/// `max(x, y) + log1p(exp(-|x - y|))`; equal infinities stay.
/// The neighbour of a number in its own precision. Of a 16-bit float it is what a step of a little more than half the
/// distance, taken in `f32`, rounds to.
fn nextafter(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (operands, dtype) = promoted(b, c, Promote::Default, &["self", "other"])?;
    // Relative distance of neighbours, the least distance, and the largest number.
    let (relative, least, largest) = match dtype {
        DType::F16 => (2f64.powi(-11), 2f64.powi(-24), 65504.0),
        DType::BF16 => (2f64.powi(-8), 2f64.powi(-133), 255.0 * 2f64.powi(120)),
        _ => {
            let out = b.scalar_op(ScalarOp::NextAfter, &operands)?;
            return one(b.cast(out, dtype)?);
        }
    };
    let x = b.as_tensor(&operands[0], DType::F32)?;
    let y = b.as_tensor(&operands[1], DType::F32)?;
    let magnitude = b.abs(x)?;
    let step = b.mul(magnitude, 1.25 * relative)?;
    let step = b.maximum(step, least)?;
    let (up, down) = (b.gt(y, x)?, b.lt(y, x)?);
    let (higher, lower) = (b.add(x, step)?, b.sub(x, step)?);
    let out = choose(b, up, higher, y, DType::F32)?;
    let out = choose(b, down, lower, out, DType::F32)?;
    // Away from an infinity the largest number comes next.
    let largest = b.full(&[], largest, DType::F32)?;
    let inward = b.scalar_op(ScalarOp::CopySign, &[largest.into(), x.into()])?;
    let infinite = b.eq(magnitude, f64::INFINITY)?;
    let moves = b.or(up, down)?;
    let infinite = b.and(infinite, moves)?;
    let out = choose(b, infinite, inward, out, DType::F32)?;
    // NaN on either side.
    let (x_nan, y_nan) = (b.ne(x, x)?, b.ne(y, y)?);
    let nan = b.or(x_nan, y_nan)?;
    let out = choose(b, nan, f64::NAN, out, DType::F32)?;
    one(b.cast(out, dtype)?)
}

fn logaddexp(b: &mut Builder<'_>, x: ValueId, y: ValueId) -> Result<ValueId, OpError> {
    log_add(b, x, y, |b, minus| {
        let e = b.exp(minus)?;
        b.log1p(e)
    })
}

/// The same to base 2.
fn logaddexp2(b: &mut Builder<'_>, x: ValueId, y: ValueId) -> Result<ValueId, OpError> {
    log_add(b, x, y, |b, minus| {
        let e = b.scalar_op(ScalarOp::Exp2, &[minus.into()])?;
        let log = b.log1p(e)?;
        b.mul(log, std::f64::consts::LOG2_E)
    })
}

fn log_add(
    b: &mut Builder<'_>,
    x: ValueId,
    y: ValueId,
    tail: impl FnOnce(&mut Builder<'_>, ValueId) -> Result<ValueId, OpError>,
) -> Result<ValueId, OpError> {
    if b.dtype(x)?.is_complex() {
        return super::complex::log_add(b, x, y, tail);
    }
    let difference = b.sub(x, y)?;
    let distance = b.abs(difference)?;
    let minus = b.neg(distance)?;
    let tail = tail(b, minus)?;
    let best = b.maximum(x, y)?;
    let sum = b.add(best, tail)?;
    let size = b.abs(x)?;
    let (infinite, equal) = (b.eq(size, f64::INFINITY)?, b.eq(x, y)?);
    let exact = b.and(infinite, equal)?;
    b.select(exact, x, sum)
}

/// `x * log(y)`, 0 where `x` is 0 and `y` is a number.
fn xlogy(b: &mut Builder<'_>, x: ValueId, y: ValueId) -> Result<ValueId, OpError> {
    x_times(b, x, y, 0.0, |b, y| b.log(y))
}

fn xlog1py(b: &mut Builder<'_>, x: ValueId, y: ValueId) -> Result<ValueId, OpError> {
    x_times(b, x, y, -1.0, |b, y| b.log1p(y))
}

/// `x * log(y)`. Where `x` is 0 and the logarithm of `y` is no finite number, `y` counts as one whose logarithm is 0:
/// elsewhere the gradient to `x` is the logarithm, at 0 too.
fn x_times(
    b: &mut Builder<'_>,
    x: ValueId,
    y: ValueId,
    pole: f64,
    log: impl FnOnce(&mut Builder<'_>, ValueId) -> Result<ValueId, OpError>,
) -> Result<ValueId, OpError> {
    let zero = b.eq(x, 0.0)?;
    let (low, high) = (b.le(y, pole)?, b.eq(y, f64::INFINITY)?);
    let outside = b.or(low, high)?;
    let replaced = b.and(zero, outside)?;
    let sizes = b.sizes(replaced)?;
    let y = b.expand(y, &sizes)?;
    let y = b.select(replaced, pole + 1.0, y)?;
    let log = log(b, y)?;
    b.mul(x, log)
}

/// 0 below zero, `values` at zero, 1 above; `NaN` gives 0.
fn heaviside(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (operands, dtype) = promoted(b, c, Promote::Default, &["self", "values"])?;
    let zero = Scalar::zero(dtype);
    let x = b.as_tensor(&operands[0], dtype)?;
    let at_zero = b.eq(x, zero)?;
    let above = if dtype == DType::Bool { x } else { b.gt(x, zero)? };
    let above = b.cast(above, dtype)?;
    one(b.select(at_zero, operands[1].clone(), above)?)
}
