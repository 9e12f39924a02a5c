//! Gradients of the scalar prims: the rule maps the cotangent of the result to those of the tensor operands, which have its
//! shape and dtype. Formulas are PyTorch's, at kinks and poles too, where one prim decides it. For

use std::f64::consts::{FRAC_2_SQRT_PI, LN_2, LN_10};

use fx_ir::{Arg, ValueId};
use ir_core::{Class, Scalar};
use kernel_ir::ScalarOp;

use crate::{Builder, GradCall, OpError};

/// The gradients of the arguments, in order.
pub(in crate::ops) type Grads = Result<Vec<Option<ValueId>>, OpError>;

/// What a rule works with.
struct Parts {
    /// Cotangent of the result.
    g: ValueId,
    /// The operands.
    a: Arg,
    b: Arg,
    /// The result.
    y: ValueId,
}

/// Gradient of one operand.
type Formula = fn(&mut Builder<'_>, &Parts) -> Result<ValueId, OpError>;

/// Applies the formulas of the operands that are tensors.
fn apply(b: &mut Builder<'_>, call: &GradCall<'_>, formulas: &[Formula]) -> Grads {
    let (Some(Some(g)), Some(&y)) = (call.cotangents.first(), call.outs.first()) else {
        return Ok(vec![None; call.call.args.len()]);
    };
    let dtype = b.dtype(y)?;
    if dtype.is_integral() {
        return Ok(vec![None; call.call.args.len()]);
    }
    // Of a holomorphic function the gradient is `g conj(f'(a))`, which is `conj(conj(g) f'(a))`.
    let complex = dtype.is_complex();
    if complex && !is_holomorphic(call) {
        return Err(call.call.unsupported("gradients of complex tensors: it is not holomorphic"));
    }
    let g = if complex { &conj(b, *g)? } else { g };
    let operand = |i: usize| call.call.args.get(i).cloned().unwrap_or(Arg::None);
    let parts = Parts { g: *g, a: operand(0), b: operand(1), y };
    let mut grads = Vec::with_capacity(call.call.args.len());
    for (i, arg) in call.call.args.iter().enumerate() {
        grads.push(match (arg, formulas.get(i)) {
            (Arg::Value(_), Some(formula)) => {
                let grad = formula(b, &parts)?;
                Some(if complex { conj(b, grad)? } else { grad })
            }
            _ => None,
        });
    }
    Ok(grads)
}

/// Whether the formulas hold for complex operands too.
fn is_holomorphic(call: &GradCall<'_>) -> bool {
    const HOLOMORPHIC: &[&str] = &[
        "add", "sub", "mul", "div", "neg", "pow", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2",
        "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh",
        "acosh", "atanh",
    ];
    HOLOMORPHIC.contains(&call.call.name().trim_start_matches("prims."))
}

/// The conjugate; a real tensor is its own.
pub(in crate::ops) fn conj(b: &mut Builder<'_>, v: ValueId) -> Result<ValueId, OpError> {
    if !b.dtype(v)?.is_complex() {
        return Ok(v);
    }
    b.call1("aten.conj_physical.default", vec![v.into()])
}

macro_rules! rules {
    ($($name:ident $doc:literal [$($formula:expr),+];)*) => {$(
        #[doc = $doc]
        pub(in crate::ops) fn $name(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
            apply(b, call, &[$($formula),+])
        }
    )*};
}

rules! {
    add "g, g" [|_, p| Ok(p.g), |_, p| Ok(p.g)];
    sub "g, -g" [|_, p| Ok(p.g), |b, p| b.neg(p.g)];
    mul "g b, g a" [|b, p| b.mul(p.g, p.b.clone()), |b, p| b.mul(p.g, p.a.clone())];
    div "g / b, -g y / b" [
        |b, p| b.div(p.g, p.b.clone()),
        |b, p| {
            let ratio = b.div(p.y, p.b.clone())?;
            let product = b.mul(p.g, ratio)?;
            b.neg(product)
        }
    ];
    rem "g, -g trunc(a / b)" [
        |_, p| Ok(p.g),
        |b, p| {
            let quotient = b.div(p.a.clone(), p.b.clone())?;
            let whole = b.trunc(quotient)?;
            let product = b.mul(p.g, whole)?;
            b.neg(product)
        }
    ];
    pow "g b a^(b - 1), g y log a; 0 where b = 0, and where a = 0 and b ≥ 0" [pow_base, pow_exponent];
    atan2 "g b / (a² + b²), -g a / (a² + b²)" [
        |b, p| over_norm(b, p, p.b.clone()),
        |b, p| {
            let value = over_norm(b, p, p.a.clone())?;
            b.neg(value)
        }
    ];
    max "g to the larger" [|b, p| larger(b, p, ScalarOp::Gt, true), |b, p| larger(b, p, ScalarOp::Gt, false)];
    min "g to the smaller" [|b, p| larger(b, p, ScalarOp::Lt, true), |b, p| larger(b, p, ScalarOp::Lt, false)];
    copysign "g y / a, 0 where a = 0; nothing to the sign" [
        |b, p| {
            let ratio = b.div(p.y, p.a.clone())?;
            let zero = b.eq(tensor(&p.a, p.y), 0.0)?;
            let ratio = b.select(zero, 0.0, ratio)?;
            b.mul(p.g, ratio)
        },
        |b, p| b.mul(p.g, 0.0)
    ];
    neg "-g" [|b, p| b.neg(p.g)];
    abs "g sign(a)" [|b, p| {
        let sign = b.call1("aten.sign.default", vec![p.a.clone()])?;
        b.mul(p.g, sign)
    }];
    sqrt "g / (2 y)" [|b, p| {
        let twice = b.mul(p.y, 2.0)?;
        b.div(p.g, twice)
    }];
    rsqrt "-g y³ / 2" [|b, p| {
        let square = b.mul(p.y, p.y)?;
        let cube = b.mul(square, p.y)?;
        let scaled = b.mul(p.g, -0.5)?;
        b.mul(scaled, cube)
    }];
    exp "g y" [|b, p| b.mul(p.g, p.y)];
    exp2 "g y log 2" [|b, p| {
        let product = b.mul(p.g, p.y)?;
        b.mul(product, LN_2)
    }];
    expm1 "g (y + 1)" [|b, p| {
        let e = b.add(p.y, 1.0)?;
        b.mul(p.g, e)
    }];
    log "g / a" [|b, p| b.div(p.g, p.a.clone())];
    log2 "g / (a log 2)" [|b, p| over_scaled(b, p, LN_2)];
    log10 "g / (a log 10)" [|b, p| over_scaled(b, p, LN_10)];
    log1p "g / (a + 1)" [|b, p| {
        let sum = b.add(p.a.clone(), 1.0)?;
        b.div(p.g, sum)
    }];
    sin "g cos a" [|b, p| times(b, p, ScalarOp::Cos, 1.0)];
    cos "-g sin a" [|b, p| times(b, p, ScalarOp::Sin, -1.0)];
    tan "g (1 + y²)" [|b, p| {
        let square = b.mul(p.y, p.y)?;
        let slope = b.add(square, 1.0)?;
        b.mul(p.g, slope)
    }];
    asin "g / sqrt(1 - a²)" [|b, p| root_slope(b, p, -1.0, 1.0, 1.0)];
    acos "-g / sqrt(1 - a²)" [|b, p| root_slope(b, p, -1.0, 1.0, -1.0)];
    atan "g / (a² + 1)" [|b, p| {
        let square = b.mul(p.a.clone(), p.a.clone())?;
        let sum = b.add(square, 1.0)?;
        b.div(p.g, sum)
    }];
    sinh "g cosh a" [|b, p| times(b, p, ScalarOp::Cosh, 1.0)];
    cosh "g sinh a" [|b, p| times(b, p, ScalarOp::Sinh, 1.0)];
    tanh "g (1 - y²)" [|b, p| {
        let square = b.mul(p.y, p.y)?;
        let slope = b.sub(1.0, square)?;
        b.mul(p.g, slope)
    }];
    asinh "g / sqrt(a² + 1)" [|b, p| root_slope(b, p, 1.0, 1.0, 1.0)];
    acosh "g / sqrt(a² - 1)" [|b, p| root_slope(b, p, 1.0, -1.0, 1.0)];
    atanh "g / (1 - a²)" [|b, p| {
        let square = b.mul(p.a.clone(), p.a.clone())?;
        let rest = b.sub(1.0, square)?;
        b.div(p.g, rest)
    }];
    erf "g 2 / sqrt(pi) exp(-a²)" [|b, p| bell(b, p, FRAC_2_SQRT_PI)];
    erfc "-g 2 / sqrt(pi) exp(-a²)" [|b, p| bell(b, p, -FRAC_2_SQRT_PI)];
    erfinv "g sqrt(pi) / 2 exp(y²)" [|b, p| {
        let square = b.mul(p.y, p.y)?;
        let e = b.exp(square)?;
        let scaled = b.mul(e, 1.0 / FRAC_2_SQRT_PI)?;
        b.mul(p.g, scaled)
    }];
    lgamma "g digamma(a)" [|b, p| times(b, p, ScalarOp::Digamma, 1.0)];
    digamma "g times the first polygamma function" [|b, p| {
        let slope = b.call1("aten.polygamma.default", vec![1i64.into(), p.a.clone()])?;
        b.mul(p.g, slope)
    }];
}

/// The density of the gamma distribution to `x`, `g x^(a - 1) exp(-x) / gamma(a)`; nothing to `a`.
pub(in crate::ops) fn igamma(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    incomplete_gamma(b, call, 1.0)
}

/// As `igamma` with the other sign.
pub(in crate::ops) fn igammac(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    incomplete_gamma(b, call, -1.0)
}

fn incomplete_gamma(b: &mut Builder<'_>, call: &GradCall<'_>, sign: f64) -> Grads {
    if call.wanted.first().copied().unwrap_or(false) {
        return Err(call
            .call
            .unsupported("a gradient with respect to the first operand (PyTorch has none either)"));
    }
    let (Some(Some(g)), [a, x]) = (call.cotangents.first(), call.call.args) else { return Ok(vec![None; 2]) };
    if !matches!(x, Arg::Value(_)) {
        return Ok(vec![None; 2]);
    }
    let dtype = b.dtype(*g)?;
    let a = b.as_tensor(a, dtype)?;
    let log = b.log(x.clone())?;
    let less = b.sub(a, 1.0)?;
    let power = b.mul(less, log)?;
    let power = b.sub(power, x.clone())?;
    let gamma = b.scalar_op(ScalarOp::Lgamma, &[a.into()])?;
    let exponent = b.sub(power, gamma)?;
    let density = b.exp(exponent)?;
    let grad = b.mul(*g, density)?;
    Ok(vec![None, Some(if sign == 1.0 { grad } else { b.neg(grad)? })])
}

/// `g` where the mask holds to the first branch, elsewhere to the second.
pub(in crate::ops) fn select(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let [mask, yes, no] = call.call.args else { return Ok(vec![None; call.call.args.len()]) };
    let (Some(Some(g)), Arg::Value(mask)) = (call.cotangents.first(), mask) else { return Ok(vec![None; 3]) };
    let dtype = b.dtype(*g)?;
    if dtype.is_integral() {
        return Ok(vec![None; 3]);
    }
    let zero = Scalar::zero(dtype);
    let yes = if matches!(yes, Arg::Value(_)) { Some(b.select(*mask, *g, zero)?) } else { None };
    let no = if matches!(no, Arg::Value(_)) { Some(b.select(*mask, zero, *g)?) } else { None };
    Ok(vec![None, yes, no])
}

/// The operand where it is a tensor; formulas are only asked for those.
fn tensor(arg: &Arg, otherwise: ValueId) -> ValueId {
    if let Arg::Value(v) = arg { *v } else { otherwise }
}

fn over_scaled(b: &mut Builder<'_>, p: &Parts, scale: f64) -> Result<ValueId, OpError> {
    let scaled = b.mul(p.a.clone(), scale)?;
    b.div(p.g, scaled)
}

/// `g scale op(a)`.
fn times(b: &mut Builder<'_>, p: &Parts, op: ScalarOp, scale: f64) -> Result<ValueId, OpError> {
    let slope = b.scalar_op(op, std::slice::from_ref(&p.a))?;
    let product = b.mul(p.g, slope)?;
    if scale == 1.0 { Ok(product) } else { b.mul(product, scale) }
}

/// `sign g / sqrt(square a² + constant)`.
fn root_slope(
    b: &mut Builder<'_>,
    p: &Parts,
    square: f64,
    constant: f64,
    sign: f64,
) -> Result<ValueId, OpError> {
    let power = b.mul(p.a.clone(), p.a.clone())?;
    let power = if square == 1.0 { power } else { b.mul(power, square)? };
    let sum = b.add(power, constant)?;
    let root = b.rsqrt(sum)?;
    let product = b.mul(p.g, root)?;
    if sign == 1.0 { Ok(product) } else { b.mul(product, sign) }
}

fn bell(b: &mut Builder<'_>, p: &Parts, scale: f64) -> Result<ValueId, OpError> {
    let square = b.mul(p.a.clone(), p.a.clone())?;
    let minus = b.neg(square)?;
    let e = b.exp(minus)?;
    let scaled = b.mul(e, scale)?;
    b.mul(p.g, scaled)
}

fn over_norm(b: &mut Builder<'_>, p: &Parts, factor: Arg) -> Result<ValueId, OpError> {
    let (x, y) = (b.mul(p.a.clone(), p.a.clone()), b.mul(p.b.clone(), p.b.clone()));
    let norm = match (x, y) {
        (Ok(x), Ok(y)) => b.add(x, y)?,
        // One operand is a number: its square is one too.
        (Ok(x), _) => b.add(x, square_of(&p.b))?,
        (_, y) => b.add(y?, square_of(&p.a))?,
    };
    let ratio = b.div(factor, norm)?;
    b.mul(p.g, ratio)
}

fn square_of(number: &Arg) -> f64 {
    number.as_scalar().map_or(0.0, |s| s.as_f64() * s.as_f64())
}

fn pow_base(b: &mut Builder<'_>, p: &Parts) -> Result<ValueId, OpError> {
    if let Some(exponent) = p.b.as_scalar() {
        if !exponent.as_bool() {
            return b.mul(p.g, 0.0);
        }
        let less = match exponent {
            Scalar::Complex(re, im) => Scalar::Complex(re - 1.0, im),
            real => Scalar::Float(real.as_f64() - 1.0),
        };
        let exponent = if exponent.class() == Class::Complex { exponent } else { exponent.as_f64().into() };
        let power = b.pow(p.a.clone(), less)?;
        let slope = b.mul(power, exponent)?;
        return b.mul(p.g, slope);
    }
    let less = b.sub(p.b.clone(), 1.0)?;
    let power = b.pow(p.a.clone(), less)?;
    let slope = b.mul(p.b.clone(), power)?;
    let product = b.mul(p.g, slope)?;
    let zero = b.eq(p.b.clone(), 0.0)?;
    b.select(zero, 0.0, product)
}

fn pow_exponent(b: &mut Builder<'_>, p: &Parts) -> Result<ValueId, OpError> {
    // A base that is a number has a logarithm that is one.
    let (log, base_zero) = match p.a.as_scalar() {
        Some(base) => (log_of(b, base, p.y)?, if base.as_bool() { None } else { Some(None) }),
        None => {
            let zero = b.eq(p.a.clone(), 0.0)?;
            (Arg::Value(b.log(p.a.clone())?), Some(Some(zero)))
        }
    };
    let slope = b.mul(p.y, log)?;
    let product = b.mul(p.g, slope)?;
    let Some(base_zero) = base_zero else { return Ok(product) };
    let positive = not_negative(b, &p.b)?;
    let flat = match base_zero {
        Some(zero) => b.and(zero, positive)?,
        None => positive,
    };
    b.select(flat, 0.0, product)
}

/// The logarithm of a number in the class of `like`: that of a negative one is complex there.
fn log_of(b: &Builder<'_>, base: Scalar, like: ValueId) -> Result<Arg, OpError> {
    if !b.dtype(like)?.is_complex() {
        return Ok(base.as_f64().ln().into());
    }
    let (re, im) = if let Scalar::Complex(re, im) = base { (re, im) } else { (base.as_f64(), 0.0) };
    Ok(Scalar::Complex(re.hypot(im).ln(), im.atan2(re)).into())
}

/// Where an exponent is zero or positive (real and so, where it is complex).
fn not_negative(b: &mut Builder<'_>, exponent: &Arg) -> Result<ValueId, OpError> {
    match exponent {
        Arg::Value(v) if b.dtype(*v)?.is_complex() => {
            let (re, im) =
                (b.call1("prims.real", vec![(*v).into()])?, b.call1("prims.imag", vec![(*v).into()])?);
            let (positive, real) = (b.ge(re, 0.0)?, b.eq(im, 0.0)?);
            b.and(positive, real)
        }
        other => b.ge(other.clone(), 0.0),
    }
}

/// `g` where this operand wins. Two tensors that are equal share it; against a number the tensor must be beyond it,
/// as in `relu`: where it is, the result is too, which is at hand more often than the operand.
fn larger(b: &mut Builder<'_>, p: &Parts, beats: ScalarOp, first: bool) -> Result<ValueId, OpError> {
    let (own, other) = if first { (&p.a, &p.b) } else { (&p.b, &p.a) };
    if !matches!(other, Arg::Value(_)) {
        // The result is beyond the number where the tensor is, and whoever is next keeps it anyway: the tensor need not be.
        let wins = b.scalar_op(beats, &[p.y.into(), other.clone()])?;
        return b.select(wins, p.g, 0.0);
    }
    let loses = b.scalar_op(beats, &[other.clone(), own.clone()])?;
    let kept = b.select(loses, 0.0, p.g)?;
    let equal = b.eq(own.clone(), other.clone())?;
    let half = b.mul(kept, 0.5)?;
    b.select(equal, half, kept)
}
