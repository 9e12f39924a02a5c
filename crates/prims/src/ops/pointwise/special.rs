//! Special functions composed of elementary ones: Bessel functions, the scaled error function, the normal distribution,
//! polygamma and zeta functions. Piecewise Chebyshev series, so that each is one fused kernel.
//!
//! Arguments of a piece are clamped to its range, so that the piece that is not selected stays finite.

use std::f64::consts::{FRAC_1_SQRT_2, PI, SQRT_2};

use fx_ir::{Arg, ValueId};
use ir_core::Scalar;
use kernel_ir::ScalarOp;

use crate::ops::common::{choose, in_compute, unary_in_compute};
use crate::promotion::Promote;
use crate::{Builder, Call, OpDef, OpError, Outs};

mod bessel;
mod tables;
mod zeta;

/// A function of one tensor; integers are computed in the default float.
macro_rules! special {
    ($schema:literal, $arg:literal, $f:expr) => {
        composite!($schema, |b, c| in_compute(b, c, Promote::IntToFloat, &[$arg], |b, xs| match xs {
            [Arg::Value(x)] => {
                let f: fn(&mut Builder<'_>, ValueId) -> Result<ValueId, OpError> = $f;
                f(b, *x)
            }
            _ => Err(c.bad_arg($arg, "must be a tensor")),
        }))
    };
}

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    special!("aten::i0(Tensor self) -> Tensor", "self", bessel::i0),
    special!("aten::special_i0(Tensor self) -> Tensor", "self", bessel::i0),
    special!("aten::special_i0e(Tensor self) -> Tensor", "self", bessel::i0e),
    special!("aten::special_i1(Tensor self) -> Tensor", "self", bessel::i1),
    special!("aten::special_i1e(Tensor self) -> Tensor", "self", bessel::i1e),
    special!("aten::special_modified_bessel_i0(Tensor self) -> Tensor", "self", bessel::i0),
    special!("aten::special_modified_bessel_i1(Tensor self) -> Tensor", "self", bessel::i1),
    special!("aten::special_modified_bessel_k0(Tensor self) -> Tensor", "self", |b, x| bessel::k(
        b, x, 0, false
    )),
    special!("aten::special_modified_bessel_k1(Tensor self) -> Tensor", "self", |b, x| bessel::k(
        b, x, 1, false
    )),
    special!("aten::special_scaled_modified_bessel_k0(Tensor x) -> Tensor", "x", |b, x| bessel::k(
        b, x, 0, true
    )),
    special!("aten::special_scaled_modified_bessel_k1(Tensor x) -> Tensor", "x", |b, x| bessel::k(
        b, x, 1, true
    )),
    special!("aten::special_bessel_j0(Tensor self) -> Tensor", "self", |b, x| bessel::j(b, x, 0)),
    special!("aten::special_bessel_j1(Tensor self) -> Tensor", "self", |b, x| bessel::j(b, x, 1)),
    special!("aten::special_bessel_y0(Tensor self) -> Tensor", "self", |b, x| bessel::y(b, x, 0)),
    special!("aten::special_bessel_y1(Tensor self) -> Tensor", "self", |b, x| bessel::y(b, x, 1)),
    special!("aten::special_airy_ai(Tensor x) -> Tensor", "x", bessel::airy_ai),
    special!("aten::special_spherical_bessel_j0(Tensor x) -> Tensor", "x", spherical_j0),
    special!("aten::special_erfcx(Tensor self) -> Tensor", "self", erfcx),
    // erfc(-x / sqrt 2) / 2
    special!("aten::special_ndtr(Tensor self) -> Tensor", "self", |b, x| {
        let scaled = b.mul(x, -FRAC_1_SQRT_2)?;
        let e = b.scalar_op(ScalarOp::Erfc, &[scaled.into()])?;
        b.mul(e, 0.5)
    }),
    special!("aten::special_log_ndtr(Tensor self) -> Tensor", "self", log_ndtr),
    // sqrt 2 erfinv(2 p - 1): to the precision of the dtype in `p`, so that far tails are those of the rounded `2 p - 1`
    special!("aten::special_ndtri(Tensor self) -> Tensor", "self", |b, p| {
        let twice = b.mul(p, 2.0)?;
        let y = b.sub(twice, 1.0)?;
        let inverse = b.scalar_op(ScalarOp::Erfinv, &[y.into()])?;
        b.mul(inverse, SQRT_2)
    }),
    special!("aten::special_entr(Tensor self) -> Tensor", "self", entr),
    composite!("aten::mvlgamma(Tensor self, int p) -> Tensor", mvlgamma),
    composite!("aten::special_multigammaln(Tensor self, int p) -> Tensor", mvlgamma),
    composite!("aten::polygamma(int n, Tensor self) -> Tensor", polygamma),
    composite!("aten::special_polygamma(int n, Tensor self) -> Tensor", polygamma),
    composite!("aten::special_zeta(Tensor self, Tensor other) -> Tensor", hurwitz),
    composite!("aten::special_zeta.other_scalar(Tensor self, Scalar other) -> Tensor", hurwitz),
    composite!("aten::special_zeta.self_scalar(Scalar self, Tensor other) -> Tensor", hurwitz),
];

/// A Chebyshev series at `t` in [-1, 1], by Clenshaw's recurrence. Terms under the precision of `f32` are left out
/// there.
fn series(b: &mut Builder<'_>, t: ValueId, coefficients: &[f64]) -> Result<ValueId, OpError> {
    let largest = coefficients.iter().fold(0.0f64, |m, c| m.max(c.abs()));
    let floor = if b.dtype(t)? == ir_core::DType::F64 { 0.0 } else { largest * 1e-9 };
    let used = coefficients.iter().rposition(|c| c.abs() > floor).map_or(1, |i| i + 1);
    let twice = b.mul(t, 2.0)?;
    let (mut next, mut last): (Arg, Arg) = (0.0.into(), 0.0.into());
    for &c in coefficients[1..used].iter().rev() {
        let value = match next.as_scalar().map(Scalar::as_f64) {
            // The first terms are numbers.
            Some(n) if last == Arg::from(0.0) && n == 0.0 => Arg::from(c),
            _ => {
                let product = b.mul(next.clone(), twice)?;
                let difference = b.sub(product, last)?;
                Arg::Value(b.add(difference, c)?)
            }
        };
        (next, last) = (value, next);
    }
    let product = b.mul(t, next)?;
    let difference = b.sub(product, last)?;
    b.add(difference, coefficients[0])
}

/// `sin(x) / x`; 1 at 0, 0 at infinity.
fn spherical_j0(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, OpError> {
    let sine = b.sin(x)?;
    let quotient = b.div(sine, x)?;
    let size = b.abs(x)?;
    let (zero, infinite) = (b.eq(x, 0.0)?, b.eq(size, f64::INFINITY)?);
    let out = b.select(zero, 1.0, quotient)?;
    b.select(infinite, 0.0, out)
}

/// `exp(x²) erfc(x)`: a series for x ≥ 0, `2 exp(x²) - erfcx(-x)` below.
fn erfcx(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, OpError> {
    let size = bessel::magnitude(b, x)?;
    let shifted = b.add(size, 4.0)?;
    let t = b.div(8.0, shifted)?;
    let t = b.sub(t, 1.0)?;
    let scaled = series(b, t, tables::ERFCX)?;
    let weight = b.add(size, 1.0)?;
    let positive = b.div(scaled, weight)?;
    let low = b.minimum(x, 0.0)?;
    let low = b.mul(low, low)?;
    let e = b.exp(low)?;
    let e = b.mul(e, 2.0)?;
    let negative = b.sub(e, positive)?;
    let below = b.lt(x, 0.0)?;
    b.select(below, negative, positive)
}

/// `log(erfcx(-x / sqrt 2) / 2) - x² / 2` below -1, `log1p(-erfc(x / sqrt 2) / 2)` above.
fn log_ndtr(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, OpError> {
    let below = b.lt(x, -1.0)?;
    // Choices rather than extremes: at -1 the gradient is that of the upper piece.
    let low = b.select(below, x, -1.0)?;
    let scaled = b.mul(low, -FRAC_1_SQRT_2)?;
    let e = erfcx(b, scaled)?;
    let half = b.mul(e, 0.5)?;
    let log = b.log(half)?;
    let square = b.mul(low, low)?;
    let square = b.mul(square, 0.5)?;
    let tail = b.sub(log, square)?;
    let high = b.select(below, -1.0, x)?;
    let scaled = b.mul(high, FRAC_1_SQRT_2)?;
    let e = b.scalar_op(ScalarOp::Erfc, &[scaled.into()])?;
    let half = b.mul(e, -0.5)?;
    let body = b.log1p(half)?;
    b.select(below, tail, body)
}

/// `-x log x`; 0 at 0, minus infinity below.
fn entr(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, OpError> {
    let log = b.log(x)?;
    let product = b.mul(x, log)?;
    let value = b.neg(product)?;
    let dtype = b.dtype(x)?;
    let (zero, below) = (b.eq(x, 0.0)?, b.lt(x, 0.0)?);
    let out = choose(b, zero, 0.0, value, dtype)?;
    choose(b, below, f64::NEG_INFINITY, out, dtype)
}

/// `log(pi) p (p - 1) / 4 + sum of lgamma(x - j / 2) for j in 0..p`.
fn mvlgamma(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let p = c.int("p")?;
    if p < 1 {
        return Err(c.bad_arg("p", "must be positive"));
    }
    unary_in_compute(b, c, Promote::IntToFloat, |b, x| {
        let mut sum: Option<ValueId> = None;
        for j in 0..p {
            let moved = if j == 0 { x } else { b.sub(x, j as f64 / 2.0)? };
            let log = b.scalar_op(ScalarOp::Lgamma, &[moved.into()])?;
            sum = Some(match sum {
                Some(sum) => b.add(sum, log)?,
                None => log,
            });
        }
        // At least one term, as `p` is positive.
        b.add(sum.unwrap_or(x), (p * (p - 1)) as f64 / 4.0 * PI.ln())
    })
}

fn polygamma(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let n = c.int("n")?;
    if !(0..=150).contains(&n) {
        return Err(c.bad_arg("n", format!("is {n}; derivatives from 0 to 150 are finite numbers")));
    }
    if n == 0 {
        return b.call("aten.digamma.default", vec![c.arg("self").clone()]);
    }
    unary_in_compute(b, c, Promote::IntToFloat, |b, x| zeta::polygamma(b, x, n as u32))
}

fn hurwitz(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    in_compute(b, c, Promote::IntToFloat, &["self", "other"], |b, xs| {
        let dtype = b.result_type(xs)?;
        let (s, q) = (b.as_tensor(&xs[0], dtype)?, b.as_tensor(&xs[1], dtype)?);
        zeta::zeta(b, s, q)
    })
}
