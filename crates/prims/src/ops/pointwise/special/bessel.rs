//! Bessel functions of orders 0 and 1, and the Airy function Ai.

use std::f64::consts::{FRAC_1_PI, FRAC_PI_4, PI};

use fx_ir::ValueId;

use super::{series, tables};
use crate::{Builder, OpError};

type Result<T = ValueId> = std::result::Result<T, OpError>;

/// `scale * x - 1`, the variable of a series.
fn linear(b: &mut Builder<'_>, x: ValueId, scale: f64) -> Result {
    let scaled = b.mul(x, scale)?;
    b.sub(scaled, 1.0)
}

/// `scale / x - 1`.
fn inverse(b: &mut Builder<'_>, x: ValueId, scale: f64) -> Result {
    let quotient = b.div(scale, x)?;
    b.sub(quotient, 1.0)
}

/// Below `edge` the first piece, above it the second; each sees x clamped to its range.
fn pieces(
    b: &mut Builder<'_>,
    x: ValueId,
    edge: f64,
    low: impl FnOnce(&mut Builder<'_>, ValueId) -> Result,
    high: impl FnOnce(&mut Builder<'_>, ValueId) -> Result,
) -> Result {
    let (below, above) = (b.minimum(x, edge)?, b.maximum(x, edge)?);
    let (below, above) = (low(b, below)?, high(b, above)?);
    let is_low = b.le(x, edge)?;
    b.select(is_low, below, above)
}

/// `exp(-|x|) I0(x)`.
pub(super) fn i0e(b: &mut Builder<'_>, x: ValueId) -> Result {
    let x = b.abs(x)?;
    pieces(
        b,
        x,
        8.0,
        |b, x| at_linear(b, x, 0.25, tables::I0E_LOW),
        |b, x| over_root(b, x, 16.0, tables::I0E_HIGH),
    )
}

fn at_linear(b: &mut Builder<'_>, x: ValueId, scale: f64, table: &[f64]) -> Result {
    let t = linear(b, x, scale)?;
    series(b, t, table)
}

/// A series in `scale / x - 1`, over the square root of x.
fn over_root(b: &mut Builder<'_>, x: ValueId, scale: f64, table: &[f64]) -> Result {
    let t = inverse(b, x, scale)?;
    let value = series(b, t, table)?;
    let root = b.rsqrt(x)?;
    b.mul(value, root)
}

/// `exp(|x|) * i0e(x)`.
pub(super) fn i0(b: &mut Builder<'_>, x: ValueId) -> Result {
    let scaled = i0e(b, x)?;
    grow(b, x, scaled)
}

fn grow(b: &mut Builder<'_>, x: ValueId, scaled: ValueId) -> Result {
    let size = b.abs(x)?;
    let e = b.exp(size)?;
    b.mul(scaled, e)
}

/// The magnitude, whose slope at 0 is 1.
pub(super) fn magnitude(b: &mut Builder<'_>, x: ValueId) -> Result {
    let minus = b.neg(x)?;
    let below = b.lt(x, 0.0)?;
    b.select(below, minus, x)
}

/// `exp(-|x|) I1(x)`, odd.
pub(super) fn i1e(b: &mut Builder<'_>, x: ValueId) -> Result {
    let size = magnitude(b, x)?;
    let value = pieces(
        b,
        size,
        8.0,
        |b, x| {
            let value = at_linear(b, x, 0.25, tables::I1E_LOW)?;
            b.mul(value, x)
        },
        |b, x| over_root(b, x, 16.0, tables::I1E_HIGH),
    )?;
    odd(b, x, value)
}

/// The value for |x| with the sign of x.
fn odd(b: &mut Builder<'_>, x: ValueId, value: ValueId) -> Result {
    let minus = b.neg(value)?;
    let below = b.lt(x, 0.0)?;
    b.select(below, minus, value)
}

/// `exp(|x|) * i1e(x)`.
pub(super) fn i1(b: &mut Builder<'_>, x: ValueId) -> Result {
    let scaled = i1e(b, x)?;
    grow(b, x, scaled)
}

/// `K0` or `K1`, `scaled` by `exp(x)`: infinite at 0, `NaN` below.
pub(super) fn k(b: &mut Builder<'_>, x: ValueId, order: u32, scaled: bool) -> Result {
    let value = pieces(
        b,
        x,
        2.0,
        |b, x| {
            let square = b.mul(x, x)?;
            let smooth = at_linear(b, square, 0.5, if order == 0 { tables::K0_LOW } else { tables::K1_LOW })?;
            let half = b.mul(x, 0.5)?;
            let log = b.log(half)?;
            let i = if order == 0 { i0(b, x)? } else { i1(b, x)? };
            let product = b.mul(log, i)?;
            let value = if order == 0 {
                b.sub(smooth, product)?
            } else {
                let smooth = b.div(smooth, x)?;
                b.add(smooth, product)?
            };
            if !scaled {
                return Ok(value);
            }
            let e = b.exp(x)?;
            b.mul(value, e)
        },
        |b, x| {
            let value = over_root(b, x, 4.0, if order == 0 { tables::K0_HIGH } else { tables::K1_HIGH })?;
            if scaled {
                return Ok(value);
            }
            let minus = b.neg(x)?;
            let e = b.exp(minus)?;
            b.mul(value, e)
        },
    )?;
    edge(b, x, value, f64::INFINITY)
}

/// `at_zero` at 0 and `NaN` below.
fn edge(b: &mut Builder<'_>, x: ValueId, value: ValueId, at_zero: f64) -> Result {
    let (zero, below) = (b.eq(x, 0.0)?, b.lt(x, 0.0)?);
    let out = b.select(zero, at_zero, value)?;
    b.select(below, f64::NAN, out)
}

/// Cosine and sine parts of the wave for x over 8: `sqrt(2 / (pi x)) (P cos χ - Q sin χ)` and with `P sin χ + Q cos χ`.
fn wave(b: &mut Builder<'_>, x: ValueId, order: u32, second: bool) -> Result {
    let (p, q) = if order == 0 { (tables::P0, tables::Q0) } else { (tables::P1, tables::Q1) };
    let square = b.mul(x, x)?;
    let t = inverse(b, square, 128.0)?;
    let (p, q) = (series(b, t, p)?, series(b, t, q)?);
    let q = b.mul(q, 8.0)?;
    let q = b.div(q, x)?;
    let angle = b.sub(x, FRAC_PI_4 * f64::from(2 * order + 1))?;
    let (cos, sin) = (b.cos(angle)?, b.sin(angle)?);
    let value = if second {
        let (ps, qc) = (b.mul(p, sin)?, b.mul(q, cos)?);
        b.add(ps, qc)?
    } else {
        let (pc, qs) = (b.mul(p, cos)?, b.mul(q, sin)?);
        b.sub(pc, qs)?
    };
    let scale = b.div(2.0 * FRAC_1_PI, x)?;
    let scale = b.sqrt(scale)?;
    b.mul(value, scale)
}

/// `J0` (even) or `J1` (odd).
pub(super) fn j(b: &mut Builder<'_>, x: ValueId, order: u32) -> Result {
    let size = b.abs(x)?;
    let value = pieces(b, size, 8.0, |b, x| j_low(b, x, order), |b, x| wave(b, x, order, false))?;
    if order == 0 { Ok(value) } else { odd(b, x, value) }
}

fn j_low(b: &mut Builder<'_>, x: ValueId, order: u32) -> Result {
    let square = b.mul(x, x)?;
    if order == 0 {
        return at_linear(b, square, 1.0 / 32.0, tables::J0_LOW);
    }
    let value = at_linear(b, square, 1.0 / 32.0, tables::J1_LOW)?;
    b.mul(value, x)
}

/// `Y0` or `Y1`: minus infinity at 0, `NaN` below.
pub(super) fn y(b: &mut Builder<'_>, x: ValueId, order: u32) -> Result {
    let value = pieces(
        b,
        x,
        8.0,
        |b, x| {
            let square = b.mul(x, x)?;
            let smooth =
                at_linear(b, square, 1.0 / 32.0, if order == 0 { tables::Y0_LOW } else { tables::Y1_LOW })?;
            let (log, j) = (b.log(x)?, j_low(b, x, order)?);
            let mut product = b.mul(log, j)?;
            let mut smooth = smooth;
            if order == 1 {
                smooth = b.mul(smooth, x)?;
                let pole = b.div(1.0, x)?;
                product = b.sub(product, pole)?;
            }
            let product = b.mul(product, 2.0 * FRAC_1_PI)?;
            b.add(smooth, product)
        },
        |b, x| wave(b, x, order, true),
    )?;
    edge(b, x, value, f64::NEG_INFINITY)
}

/// `Ai(x)`: a series about 0, an exponential above 3, a wave below -3. `NaN` at the infinities, as PyTorch has it.
pub(super) fn airy_ai(b: &mut Builder<'_>, x: ValueId) -> Result {
    let low = b.maximum(x, -3.0)?;
    let mid = b.minimum(low, 3.0)?;
    let t = b.mul(mid, 1.0 / 3.0)?;
    let mid = series(b, t, tables::AIRY_MID)?;
    let above = {
        let x = b.maximum(x, 3.0)?;
        airy_high(b, x)?
    };
    let below = {
        let minus = b.neg(x)?;
        let x = b.maximum(minus, 3.0)?;
        airy_wave(b, x)?
    };
    let (is_high, is_low) = (b.gt(x, 3.0)?, b.lt(x, -3.0)?);
    let out = b.select(is_high, above, mid)?;
    let out = b.select(is_low, below, out)?;
    let size = b.abs(x)?;
    let infinite = b.eq(size, f64::INFINITY)?;
    b.select(infinite, f64::NAN, out)
}

/// `2/3 x^(3/2)` at 3, where the series of the outer pieces begin.
const Z3: f64 = 3.464_101_615_137_754_4;

/// `2/3 x^(3/2)` and `x^(-1/4)`.
fn airy_parts(b: &mut Builder<'_>, x: ValueId) -> Result<(ValueId, ValueId)> {
    let root = b.sqrt(x)?;
    let cube = b.mul(x, root)?;
    let z = b.mul(cube, 2.0 / 3.0)?;
    Ok((z, b.rsqrt(root)?))
}

fn airy_high(b: &mut Builder<'_>, x: ValueId) -> Result {
    let (z, quarter) = airy_parts(b, x)?;
    let t = inverse(b, z, 2.0 * Z3)?;
    let value = series(b, t, tables::AIRY_HIGH)?;
    let minus = b.neg(z)?;
    let e = b.exp(minus)?;
    let scale = b.mul(quarter, 0.5 / PI.sqrt())?;
    let scale = b.mul(scale, e)?;
    b.mul(value, scale)
}

/// `(P cos χ + Q sin χ) / (sqrt(pi) x^(1/4))` with `χ = z - pi / 4`, for the argument -x.
fn airy_wave(b: &mut Builder<'_>, x: ValueId) -> Result {
    let (z, quarter) = airy_parts(b, x)?;
    let square = b.mul(z, z)?;
    let t = inverse(b, square, 2.0 * Z3 * Z3)?;
    let (p, q) = (series(b, t, tables::AIRY_P)?, series(b, t, tables::AIRY_Q)?);
    let q = b.div(q, z)?;
    let angle = b.sub(z, FRAC_PI_4)?;
    let (cos, sin) = (b.cos(angle)?, b.sin(angle)?);
    let (pc, qs) = (b.mul(p, cos)?, b.mul(q, sin)?);
    let value = b.add(pc, qs)?;
    let scale = b.mul(quarter, 1.0 / PI.sqrt())?;
    b.mul(value, scale)
}
