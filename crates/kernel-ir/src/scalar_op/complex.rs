//! Reference evaluation on complex numbers. Kernels have none: only executors of graphs come here.

use ir_core::{DType, Scalar};
use num_complex::Complex;

use super::ScalarOp;

type C = Complex<f64>;

fn number(s: Scalar) -> C {
    match s {
        Scalar::Complex(re, im) => C::new(re, im),
        real => C::new(real.as_f64(), 0.0),
    }
}

/// An operator on complex operands; operators without a complex meaning give `NaN`.
pub(super) fn eval(op: ScalarOp, dtype: DType, args: &[Scalar]) -> Scalar {
    let (a, b) = (number(args[0]), args.get(1).copied().map_or(C::new(0.0, 0.0), number));
    let z = match op {
        ScalarOp::Eq => return Scalar::Bool(a == b),
        ScalarOp::Ne => return Scalar::Bool(a != b),
        ScalarOp::Add => a + b,
        ScalarOp::Sub => a - b,
        ScalarOp::Mul => a * b,
        ScalarOp::Div => divide(a, b),
        ScalarOp::Pow => power(a, b),
        _ => unary(op, a),
    };
    let round = |x: f64| if dtype == DType::C64 { x as f32 as f64 } else { x };
    Scalar::Complex(round(z.re), round(z.im))
}

/// Smith's quotient: the larger part of the divisor is scaled out, so that squares do not overflow.
fn divide(a: C, b: C) -> C {
    if b.re.abs() >= b.im.abs() {
        let (ratio, rest) = if b.re == 0.0 { (0.0, 0.0) } else { (b.im / b.re, b.re + b.im * (b.im / b.re)) };
        C::new((a.re + a.im * ratio) / rest, (a.im - a.re * ratio) / rest)
    } else {
        let ratio = b.re / b.im;
        let rest = b.re * ratio + b.im;
        C::new((a.re * ratio + a.im) / rest, (a.im * ratio - a.re) / rest)
    }
}

/// `exp(b log a)`, with 0 to the power of 0 being 1.
fn power(a: C, b: C) -> C {
    if b == C::new(0.0, 0.0) {
        return C::new(1.0, 0.0);
    }
    if a == C::new(0.0, 0.0) {
        return if b.re > 0.0 { a } else { C::new(f64::NAN, f64::NAN) };
    }
    a.powc(b)
}

fn unary(op: ScalarOp, a: C) -> C {
    let one = C::new(1.0, 0.0);
    match op {
        ScalarOp::Neg => -a,
        ScalarOp::Sqrt => a.sqrt(),
        ScalarOp::Rsqrt => divide(one, a.sqrt()),
        ScalarOp::Exp => a.exp(),
        ScalarOp::Exp2 => (a * std::f64::consts::LN_2).exp(),
        ScalarOp::Expm1 => expm1(a),
        ScalarOp::Log => a.ln(),
        ScalarOp::Log2 => a.ln() / std::f64::consts::LN_2,
        ScalarOp::Log10 => a.ln() / std::f64::consts::LN_10,
        ScalarOp::Log1p => log1p(a),
        ScalarOp::Sin => a.sin(),
        ScalarOp::Cos => a.cos(),
        ScalarOp::Tan => a.tan(),
        ScalarOp::Asin => a.asin(),
        ScalarOp::Acos => a.acos(),
        ScalarOp::Atan => a.atan(),
        ScalarOp::Sinh => a.sinh(),
        ScalarOp::Cosh => a.cosh(),
        ScalarOp::Tanh => a.tanh(),
        ScalarOp::Asinh => a.asinh(),
        ScalarOp::Acosh => a.acosh(),
        ScalarOp::Atanh => a.atanh(),
        _ => C::new(f64::NAN, f64::NAN),
    }
}

/// `exp(a) - 1`: the real part by `expm1(x) cos y - 2 sin²(y / 2)`.
fn expm1(a: C) -> C {
    let half = (a.im / 2.0).sin();
    C::new(a.re.exp_m1() * a.im.cos() - 2.0 * half * half, a.re.exp() * a.im.sin())
}

/// `log(1 + a)`: the real part by `log1p(x (2 + x) + y²) / 2`.
fn log1p(a: C) -> C {
    C::new(0.5 * (a.re * (2.0 + a.re) + a.im * a.im).ln_1p(), a.im.atan2(1.0 + a.re))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_definitions() {
        let z = Scalar::Complex(0.5, -1.25);
        let at = |op: ScalarOp, args: &[Scalar]| number(op.eval(DType::C128, args));
        let close = |a: C, b: C| assert!((a - b).norm() < 1e-12, "{a} {b}");
        close(at(ScalarOp::Expm1, &[z]), at(ScalarOp::Exp, &[z]) - 1.0);
        close(at(ScalarOp::Log1p, &[z]), at(ScalarOp::Log, &[Scalar::Complex(1.5, -1.25)]));
        close(at(ScalarOp::Div, &[z, z]), C::new(1.0, 0.0));
        close(at(ScalarOp::Mul, &[z, at_div(z)]), C::new(1.0, 0.0));
        assert_eq!(ScalarOp::Eq.eval(DType::C64, &[z, z]), Scalar::Bool(true));
    }

    fn at_div(z: Scalar) -> Scalar {
        ScalarOp::Div.eval(DType::C128, &[Scalar::Int(1), z])
    }
}
