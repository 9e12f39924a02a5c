//! Reference evaluation of scalar operators, through `libm` in double precision and rounded to the dtype.

use ir_core::{Class, DType, Scalar};

use super::ScalarOp;
use super::special::{igamma, polynomial};

pub(super) fn eval(op: ScalarOp, dtype: DType, args: &[Scalar]) -> Scalar {
    if op == ScalarOp::Select {
        return if args[0].as_bool() { args[1] } else { args[2] };
    }
    if op == ScalarOp::Philox {
        let [seed, stream, index] = [0, 1, 2].map(|n| args[n].as_i64());
        return Scalar::Int(super::philox::philox_bits(seed, stream, index));
    }
    if dtype.is_complex() {
        return super::complex::eval(op, dtype, args);
    }
    let real = dtype.class() == Class::Float;
    match op {
        ScalarOp::Eq | ScalarOp::Ne | ScalarOp::Lt | ScalarOp::Le | ScalarOp::Gt | ScalarOp::Ge if real => {
            Scalar::Bool(compare(op, args[0].as_f64().partial_cmp(&args[1].as_f64())))
        }
        ScalarOp::Eq | ScalarOp::Ne | ScalarOp::Lt | ScalarOp::Le | ScalarOp::Gt | ScalarOp::Ge => {
            let (a, b) = (args[0].as_i64(), args[1].as_i64());
            let large = dtype == DType::U64;
            Scalar::Bool(compare(op, Some(if large { (a as u64).cmp(&(b as u64)) } else { a.cmp(&b) })))
        }
        _ if real => {
            round_to(dtype, float(op, args[0].as_f64(), args.get(1).map_or(0.0, |b| b.as_f64()), dtype))
        }
        _ if dtype == DType::Bool => {
            Scalar::Bool(boolean(op, args[0].as_bool(), args.get(1).is_some_and(|b| b.as_bool())))
        }
        _ => {
            let (a, b) = (args[0].as_i64(), args.get(1).map_or(0, |b| b.as_i64()));
            let large = if dtype == DType::U64 { unsigned(op, a as u64, b as u64) } else { None };
            Scalar::Int(dtype.wrap(large.map_or_else(|| integer(op, a, b, dtype), |x| x as i64)))
        }
    }
}

fn compare(op: ScalarOp, order: Option<std::cmp::Ordering>) -> bool {
    match op {
        ScalarOp::Eq => order.is_some_and(|o| o.is_eq()),
        ScalarOp::Ne => order.is_none_or(|o| o.is_ne()),
        ScalarOp::Lt => order.is_some_and(|o| o.is_lt()),
        ScalarOp::Le => order.is_some_and(|o| o.is_le()),
        ScalarOp::Gt => order.is_some_and(|o| o.is_gt()),
        _ => order.is_some_and(|o| o.is_ge()),
    }
}

fn round_to(dtype: DType, x: f64) -> Scalar {
    Scalar::Float(if dtype == DType::F32 { x as f32 as f64 } else { x })
}

fn float(op: ScalarOp, a: f64, b: f64, dtype: DType) -> f64 {
    match op {
        ScalarOp::Add => a + b,
        ScalarOp::Sub => a - b,
        ScalarOp::Mul => a * b,
        ScalarOp::Div => a / b,
        ScalarOp::Rem => libm::fmod(a, b),
        ScalarOp::Pow => libm::pow(a, b),
        ScalarOp::Atan2 => libm::atan2(a, b),
        ScalarOp::Min if a.is_nan() || b.is_nan() => f64::NAN,
        ScalarOp::Max if a.is_nan() || b.is_nan() => f64::NAN,
        ScalarOp::Min => a.min(b),
        ScalarOp::Max => a.max(b),
        ScalarOp::CopySign => libm::copysign(a, b),
        ScalarOp::NextAfter if dtype == DType::F32 => libm::nextafterf(a as f32, b as f32) as f64,
        ScalarOp::NextAfter => libm::nextafter(a, b),
        ScalarOp::ChebyshevT
        | ScalarOp::ChebyshevU
        | ScalarOp::ChebyshevV
        | ScalarOp::ChebyshevW
        | ScalarOp::HermiteH
        | ScalarOp::HermiteHe
        | ScalarOp::LaguerreL
        | ScalarOp::LegendreP => polynomial(op, a, b, dtype),
        ScalarOp::Igamma => igamma(a, b, false),
        ScalarOp::Igammac => igamma(a, b, true),
        _ => unary(op, a),
    }
}

fn unary(op: ScalarOp, a: f64) -> f64 {
    match op {
        ScalarOp::Neg => -a,
        ScalarOp::Abs => a.abs(),
        ScalarOp::Floor => a.floor(),
        ScalarOp::Ceil => a.ceil(),
        ScalarOp::Trunc => a.trunc(),
        ScalarOp::Round => libm::rint(a),
        ScalarOp::Sqrt => a.sqrt(),
        ScalarOp::Rsqrt => 1.0 / a.sqrt(),
        ScalarOp::Exp => libm::exp(a),
        ScalarOp::Exp2 => libm::exp2(a),
        ScalarOp::Expm1 => libm::expm1(a),
        ScalarOp::Log => libm::log(a),
        ScalarOp::Log2 => libm::log2(a),
        ScalarOp::Log10 => libm::log10(a),
        ScalarOp::Log1p => libm::log1p(a),
        ScalarOp::Sin => libm::sin(a),
        ScalarOp::Cos => libm::cos(a),
        ScalarOp::Tan => libm::tan(a),
        ScalarOp::Asin => libm::asin(a),
        ScalarOp::Acos => libm::acos(a),
        ScalarOp::Atan => libm::atan(a),
        ScalarOp::Sinh => libm::sinh(a),
        ScalarOp::Cosh => libm::cosh(a),
        ScalarOp::Tanh => libm::tanh(a),
        ScalarOp::Asinh => libm::asinh(a),
        // `libm` has finite values below its domain, where a difference of two large numbers is rounded.
        ScalarOp::Acosh if a < 1.0 => f64::NAN,
        ScalarOp::Acosh => libm::acosh(a),
        ScalarOp::Atanh => libm::atanh(a),
        ScalarOp::Erf => libm::erf(a),
        ScalarOp::Erfc => libm::erfc(a),
        ScalarOp::Erfinv => erfinv(a),
        ScalarOp::Lgamma => libm::lgamma(a),
        ScalarOp::Digamma => digamma(a),
        // Bitwise operators have no meaning on floats; the verifier refuses them before anything is evaluated.
        _ => f64::NAN,
    }
}

/// Inverse error function: a starting value by Winitzki's formula, then Newton steps on `erf`.
fn erfinv(y: f64) -> f64 {
    if !(-1.0..=1.0).contains(&y) {
        return f64::NAN;
    }
    if y.abs() == 1.0 {
        return f64::INFINITY.copysign(y);
    }
    let a = 0.147;
    let ln = libm::log1p(-y * y);
    let t = 2.0 / (std::f64::consts::PI * a) + ln / 2.0;
    let mut x = ((t * t - ln / a).sqrt() - t).max(0.0).sqrt().copysign(y);
    for _ in 0..4 {
        // Near the ends erfc keeps the digits that 1 - erf would lose.
        let err = if y.abs() < 0.5 {
            libm::erf(x) - y
        } else {
            y.signum() * ((1.0 - y.abs()) - libm::erfc(x.abs()))
        };
        let slope = std::f64::consts::FRAC_2_SQRT_PI * libm::exp(-x * x);
        if slope == 0.0 {
            break;
        }
        let step = err / slope;
        x -= step / (1.0 + x * step);
    }
    x
}

/// Derivative of `lgamma`: reflection, recurrence up to 10, then the asymptotic series (DLMF 5.11.2).
fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return f64::NEG_INFINITY.copysign(-x.signum());
    }
    if x < 0.0 {
        if x.floor() == x {
            return f64::NAN;
        }
        let pi = std::f64::consts::PI;
        // The period is taken off first, which is exact: tan of a large multiple of pi has no digits left.
        return digamma(1.0 - x) - pi / libm::tan(pi * (x - x.round()));
    }
    let (mut x, mut sum) = (x, 0.0);
    while x < 10.0 {
        sum -= 1.0 / x;
        x += 1.0;
    }
    let z = 1.0 / (x * x);
    let series = z
        * (1.0 / 12.0
            - z * (1.0 / 120.0
                - z * (1.0 / 252.0 - z * (1.0 / 240.0 - z * (1.0 / 132.0 - z * 691.0 / 32760.0)))));
    sum + libm::log(x) - 0.5 / x - series
}

fn boolean(op: ScalarOp, a: bool, b: bool) -> bool {
    match op {
        ScalarOp::Add | ScalarOp::Or | ScalarOp::Max => a | b,
        ScalarOp::Mul | ScalarOp::And | ScalarOp::Min => a & b,
        ScalarOp::Xor | ScalarOp::Sub => a ^ b,
        ScalarOp::Not => !a,
        _ => a,
    }
}

fn integer(op: ScalarOp, a: i64, b: i64, dtype: DType) -> i64 {
    let width = dtype.size() as i64 * 8;
    match op {
        ScalarOp::Add => a.wrapping_add(b),
        ScalarOp::Sub => a.wrapping_sub(b),
        ScalarOp::Mul => a.wrapping_mul(b),
        ScalarOp::Div => {
            if b == 0 {
                0
            } else {
                a.wrapping_div(b)
            }
        }
        ScalarOp::Rem => {
            if b == 0 {
                0
            } else {
                a.wrapping_rem(b)
            }
        }
        ScalarOp::Pow => int_pow(a, b),
        ScalarOp::Min => a.min(b),
        ScalarOp::Max => a.max(b),
        ScalarOp::And => a & b,
        ScalarOp::Or => a | b,
        ScalarOp::Xor => a ^ b,
        ScalarOp::Shl => {
            if (0..width).contains(&b) {
                a.wrapping_shl(b as u32)
            } else {
                0
            }
        }
        ScalarOp::Shr => a >> if (0..width).contains(&b) { b } else { width - 1 },
        ScalarOp::Not => !a,
        ScalarOp::Neg => a.wrapping_neg(),
        ScalarOp::Abs => a.wrapping_abs(),
        _ => a,
    }
}

/// Operators that give other bits on unsigned integers of 64 bits than on signed ones.
fn unsigned(op: ScalarOp, a: u64, b: u64) -> Option<u64> {
    Some(match op {
        ScalarOp::Div => a.checked_div(b).unwrap_or(0),
        ScalarOp::Rem => a.checked_rem(b).unwrap_or(0),
        ScalarOp::Min => a.min(b),
        ScalarOp::Max => a.max(b),
        ScalarOp::Shr => u32::try_from(b).ok().and_then(|b| a.checked_shr(b)).unwrap_or(0),
        ScalarOp::Abs => a,
        _ => return None,
    })
}

/// The power modulo 2^64; exponents may be beyond those of `i64::wrapping_pow`.
fn wrapping_pow(mut base: i64, mut exp: u64) -> i64 {
    let mut power = 1i64;
    while exp != 0 {
        if exp & 1 == 1 {
            power = power.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exp >>= 1;
    }
    power
}

fn int_pow(base: i64, exp: i64) -> i64 {
    match (base, exp) {
        (_, 0..) => wrapping_pow(base, exp as u64),
        (1, _) => 1,
        (-1, e) => {
            if e % 2 == 0 {
                1
            } else {
                -1
            }
        }
        _ => 0,
    }
}
