//! Reference evaluation of the scalar operators that iterate as often as their operands demand: orthogonal polynomials
//! and the incomplete gamma functions. Plain loops over numbers, so that a device function can follow them line by line.

use ir_core::DType;

use super::ScalarOp;

/// Loops end here whatever the operands are; polynomials of a higher degree are `NaN`.
const MAX_STEPS: i64 = 1 << 20;

/// Above this degree Chebyshev polynomials within (-1, 1) are waves rather than recurrences.
const WAVE_DEGREE: f64 = 9.0;

/// The polynomial of degree `n`, truncated, at `x`; 0 for a negative degree.
pub(super) fn polynomial(op: ScalarOp, x: f64, n: f64, dtype: DType) -> f64 {
    let n = n as i64;
    if n < 0 {
        return 0.0;
    }
    if x.abs() < 1.0 && n as f64 >= WAVE_DEGREE && is_chebyshev(op) {
        return wave(op, n as f64, x);
    }
    if n > largest_degree(op, dtype) {
        return f64::NAN;
    }
    if n == 0 {
        return 1.0;
    }
    let (mut before, mut at) = (1.0, first(op, x));
    let mut k = 1;
    while k < n && !at.is_nan() {
        let next = next(op, k as f64, x, at, before);
        before = at;
        at = next;
        k += 1;
    }
    at
}

fn is_chebyshev(op: ScalarOp) -> bool {
    use ScalarOp::{ChebyshevT, ChebyshevU, ChebyshevV, ChebyshevW};
    matches!(op, ChebyshevT | ChebyshevU | ChebyshevV | ChebyshevW)
}

/// Hermite polynomials of higher degree are `NaN`, as PyTorch has it.
fn largest_degree(op: ScalarOp, dtype: DType) -> i64 {
    match (op, dtype) {
        (ScalarOp::HermiteH | ScalarOp::HermiteHe, DType::F64) => 512,
        (ScalarOp::HermiteH | ScalarOp::HermiteHe, _) => 128,
        _ => MAX_STEPS,
    }
}

/// The polynomial of degree 1.
fn first(op: ScalarOp, x: f64) -> f64 {
    match op {
        ScalarOp::ChebyshevU | ScalarOp::HermiteH => 2.0 * x,
        ScalarOp::ChebyshevV => 2.0 * x - 1.0,
        ScalarOp::ChebyshevW => 2.0 * x + 1.0,
        ScalarOp::LaguerreL => 1.0 - x,
        _ => x,
    }
}

/// The polynomial of degree k + 1 from those of degree k and k - 1 (DLMF table 18.9.1).
fn next(op: ScalarOp, k: f64, x: f64, at: f64, before: f64) -> f64 {
    match op {
        ScalarOp::HermiteH => 2.0 * x * at - 2.0 * k * before,
        ScalarOp::HermiteHe => x * at - k * before,
        ScalarOp::LaguerreL => ((2.0 * k + 1.0 - x) * at - k * before) / (k + 1.0),
        ScalarOp::LegendreP => ((2.0 * k + 1.0) * x * at - k * before) / (k + 1.0),
        _ => 2.0 * x * at - before,
    }
}

/// Within (-1, 1) the Chebyshev polynomials are quotients of waves (DLMF 18.5.1 to 18.5.4).
fn wave(op: ScalarOp, n: f64, x: f64) -> f64 {
    let angle = libm::acos(x);
    match op {
        ScalarOp::ChebyshevT => libm::cos(n * angle),
        ScalarOp::ChebyshevU => libm::sin((n + 1.0) * angle) / libm::sin(angle),
        ScalarOp::ChebyshevV => libm::cos((n + 0.5) * angle) / libm::cos(angle / 2.0),
        _ => libm::sin((n + 0.5) * angle) / libm::sin(angle / 2.0),
    }
}

/// The regularized incomplete gamma functions, P(a, x) or with `upper` Q(a, x) = 1 - P(a, x): edge values, then the
/// series (DLMF 8.11.4) below a + 1 and the continued fraction (DLMF 8.9.2) above.
pub(super) fn igamma(a: f64, x: f64, upper: bool) -> f64 {
    if a.is_nan() || x.is_nan() || a < 0.0 || x < 0.0 {
        return f64::NAN;
    }
    if (a == 0.0 && x == 0.0) || (a.is_infinite() && x.is_infinite()) {
        return f64::NAN;
    }
    if a == 0.0 || x.is_infinite() {
        return if upper { 0.0 } else { 1.0 };
    }
    if x == 0.0 || a.is_infinite() {
        return if upper { 1.0 } else { 0.0 };
    }
    let scale = libm::exp(a * libm::log(x) - x - libm::lgamma(a));
    if x < a + 1.0 {
        let p = scale * lower_series(a, x);
        return if upper { 1.0 - p } else { p };
    }
    let q = scale * upper_fraction(a, x);
    if upper { q } else { 1.0 - q }
}

/// `sum over n of x^n / (a (a + 1) … (a + n))`.
fn lower_series(a: f64, x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (1.0 / a, 1.0 / a, a);
    for _ in 0..MAX_STEPS {
        n += 1.0;
        term *= x / n;
        sum += term;
        if term < sum * f64::EPSILON {
            break;
        }
    }
    sum
}

/// The continued fraction by Lentz's method.
fn upper_fraction(a: f64, x: f64) -> f64 {
    let tiny = f64::MIN_POSITIVE / f64::EPSILON;
    let mut denominator = x + 1.0 - a;
    let (mut c, mut d) = (1.0 / tiny, 1.0 / denominator);
    let mut h = d;
    for i in 1..MAX_STEPS {
        let i = i as f64;
        let an = -i * (i - a);
        denominator += 2.0;
        d = an * d + denominator;
        d = if d.abs() < tiny { tiny } else { d };
        c = denominator + an / c;
        c = if c.abs() < tiny { tiny } else { c };
        d = 1.0 / d;
        let step = d * c;
        h *= step;
        if (step - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    h
}
