//! The Hurwitz zeta function by Euler-Maclaurin summation, and the polygamma functions based on it.

use std::f64::consts::PI;

use fx_ir::ValueId;

use crate::{Builder, OpError};

type Result<T = ValueId> = std::result::Result<T, OpError>;

/// `B(2j) / (2j)!` for j = 1, 2, … (DLMF 24.2.1).
const BERNOULLI: [f64; 8] = [
    1.0 / 12.0,
    -1.0 / 720.0,
    1.0 / 30240.0,
    -1.0 / 1209600.0,
    1.0 / 47900160.0,
    -691.0 / 1307674368000.0,
    1.0 / 74724249600.0,
    -3617.0 / 10670622842880000.0,
];

/// Terms summed before the tail: with 9 the tail is exact to double precision for q over 0.
const TERMS: u32 = 9;
/// More of them where q may be negative: q down to `TERMS - WIDE_TERMS` is exact.
const WIDE_TERMS: u32 = 24;

/// `sum over k of (q + k)^-s`, by `terms` of them and the tail (DLMF 25.11.5 with its Bernoulli terms).
fn sum(b: &mut Builder<'_>, s: ValueId, q: ValueId, terms: u32) -> Result {
    let minus = b.neg(s)?;
    let mut total = b.pow(q, minus)?;
    for k in 1..terms {
        let at = b.add(q, f64::from(k))?;
        let term = b.pow(at, minus)?;
        total = b.add(total, term)?;
    }
    let w = b.add(q, f64::from(terms))?;
    let power = b.pow(w, minus)?;
    let less = b.sub(s, 1.0)?;
    let integral = b.mul(power, w)?;
    let integral = b.div(integral, less)?;
    let half = b.mul(power, 0.5)?;
    total = b.add(total, integral)?;
    total = b.add(total, half)?;
    // s (s + 1) … (s + 2j - 2) / w^(s + 2j - 1)
    let mut factor = b.mul(s, power)?;
    factor = b.div(factor, w)?;
    for (j, coefficient) in BERNOULLI.iter().enumerate() {
        let term = b.mul(factor, *coefficient)?;
        total = b.add(total, term)?;
        for step in [2 * j + 1, 2 * j + 2] {
            let next = b.add(s, step as f64)?;
            factor = b.mul(factor, next)?;
            factor = b.div(factor, w)?;
        }
    }
    Ok(total)
}

/// `zeta(s, q)`: infinite at s = 1 and at whole q ≤ 0; `NaN` for s < 1, and for q < 0 where s is not whole. For q below
/// -15 digits are lost.
pub(super) fn zeta(b: &mut Builder<'_>, s: ValueId, q: ValueId) -> Result {
    let value = sum(b, s, q, WIDE_TERMS)?;
    let (s_floor, q_floor) = (b.floor(s)?, b.floor(q)?);
    let (s_broken, q_whole) = (b.ne(s, s_floor)?, b.eq(q, q_floor)?);
    let low = b.le(q, 0.0)?;
    let (pole, no_power) = (b.and(low, q_whole)?, b.and(low, s_broken)?);
    let out = b.select(no_power, f64::NAN, value)?;
    let out = b.select(pole, f64::INFINITY, out)?;
    let below = b.lt(s, 1.0)?;
    let out = b.select(below, f64::NAN, out)?;
    let one = b.eq(s, 1.0)?;
    b.select(one, f64::INFINITY, out)
}

/// The n-th derivative of digamma, n ≥ 1: `(-1)^(n + 1) n! zeta(n + 1, x)` for x ≥ 1/2; below, by reflection
/// (DLMF 5.15.6) `(-1)^n psi_n(1 - x) - pi d^n/dx^n cot(pi x)`.
pub(super) fn polygamma(b: &mut Builder<'_>, x: ValueId, n: u32) -> Result {
    let reflect = b.lt(x, 0.5)?;
    let mirror = b.sub(1.0, x)?;
    let argument = b.select(reflect, mirror, x)?;
    let dtype = b.dtype(x)?;
    let s = b.full(&[], f64::from(n + 1), dtype)?;
    let zeta = sum(b, s, argument, TERMS)?;
    let factorial: f64 = (1..=n).map(f64::from).product();
    let even = n.is_multiple_of(2);
    let plain = b.mul(zeta, if even { -factorial } else { factorial })?;
    // (-1)^n times the value at 1 - x, which has the sign of `plain`.
    let mirrored = if even { plain } else { b.neg(plain)? };
    let slope = cotangent_slope(b, x, n)?;
    let slope = b.mul(slope, PI)?;
    let reflected = b.sub(mirrored, slope)?;
    b.select(reflect, reflected, plain)
}

/// `d^n/dx^n cot(pi x)` as a polynomial in the cotangent: `p' -> -pi (1 + c²) p'(c)`.
fn cotangent_slope(b: &mut Builder<'_>, x: ValueId, n: u32) -> Result {
    let mut p = vec![0.0, 1.0];
    for _ in 0..n {
        let derivative: Vec<f64> = p.iter().enumerate().skip(1).map(|(k, c)| k as f64 * c).collect();
        p = vec![0.0; derivative.len() + 2];
        for (k, c) in derivative.iter().enumerate() {
            p[k] -= PI * c;
            p[k + 2] -= PI * c;
        }
    }
    // The whole part is taken off first: sin(pi x) keeps its digits next to a pole.
    let whole = b.scalar_op(kernel_ir::ScalarOp::Round, &[x.into()])?;
    let rest = b.sub(x, whole)?;
    let angle = b.mul(rest, PI)?;
    let (cos, sin) = (b.cos(angle)?, b.sin(angle)?);
    let c = b.div(cos, sin)?;
    let square = b.mul(c, c)?;
    // All terms have one parity: Horner in c².
    let odd = usize::from(p.len().is_multiple_of(2));
    let coefficients: Vec<f64> = p.iter().copied().skip(odd).step_by(2).collect();
    let (sizes, dtype) = (b.sizes(x)?, b.dtype(x)?);
    let mut value = b.full(&sizes, coefficients.last().copied().unwrap_or(0.0), dtype)?;
    for &coefficient in coefficients.iter().rev().skip(1) {
        value = b.mul(value, square)?;
        value = b.add(value, coefficient)?;
    }
    if odd == 1 { b.mul(value, c) } else { Ok(value) }
}
