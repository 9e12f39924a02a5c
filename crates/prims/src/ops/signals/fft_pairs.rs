//! Discrete Fourier transforms of real lines whose even length no prim has: n real numbers are n / 2 complex ones, whose transform
//! (`fft`) is taken apart into those of the elements with even and with odd numbers. No entries.

use fx_ir::{Arg, ValueId};
use ir_core::SymExpr;

use crate::ops::shapes::shape;
use crate::ops::signals::fft::{Parts, transform};
use crate::ops::signals::fft_fast::{circle, is_worth_it};
use crate::{Builder, OpError};

/// Whether real lines of this length are transformed as pairs.
pub(in crate::ops) fn is_paired(n: i64, prims: bool) -> bool {
    n % 2 == 0 && prims && is_worth_it(n, prims)
}

/// Cosine and sine of `2π k / n` for the first `count` k, along dimension `d`; the sine of the exponent's sign.
fn waves(
    b: &mut Builder<'_>,
    like: ValueId,
    d: usize,
    n: i64,
    count: i64,
    forward: bool,
) -> Result<(ValueId, ValueId), OpError> {
    let (rank, dtype) = (b.rank(like)?, b.dtype(like)?);
    let k = shape::iota_at(b, &count.into(), d, rank)?;
    let (cos, sin) = circle(b, k, &n.into(), dtype)?;
    let sin = if forward { b.neg(sin)? } else { sin };
    Ok((cos, sin))
}

/// The product of complex numbers with waves.
fn turned(
    b: &mut Builder<'_>,
    (re, im): (ValueId, ValueId),
    (cos, sin): (ValueId, ValueId),
) -> Result<(ValueId, ValueId), OpError> {
    let (rc, is) = (b.mul(re, cos)?, b.mul(im, sin)?);
    let (rs, ic) = (b.mul(re, sin)?, b.mul(im, cos)?);
    Ok((b.sub(rc, is)?, b.add(rs, ic)?))
}

/// `count` elements from `start` on, in steps of `step`.
fn part(b: &mut Builder<'_>, v: ValueId, d: usize, start: i64, count: i64, step: i64) -> PartResult {
    b.slice(v, d, SymExpr::from_i64(start), SymExpr::from_i64(count), step)
}

type PartResult = Result<ValueId, OpError>;

/// The first `n / 2 + 1` results of n real numbers: with `e` and `o` the transforms of the elements with even and odd numbers,
/// result k is `e + w o`.
pub(in crate::ops) fn of_real(
    b: &mut Builder<'_>,
    x: ValueId,
    d: usize,
    n: i64,
    forward: bool,
) -> Result<Parts, OpError> {
    let m = n / 2;
    let pairs = Parts { re: part(b, x, d, 0, m, 2)?, im: Some(part(b, x, d, 1, m, 2)?) };
    let z = transform(b, pairs, d, &m.into(), &m.into(), forward, 1.0)?;
    // Element m is element 0 again.
    let around = |b: &mut Builder<'_>, v: ValueId| -> Result<(ValueId, ValueId), OpError> {
        let first = part(b, v, d, 0, 1, 1)?;
        let whole = b.call1("prims.cat", vec![Arg::values([v, first]), (d as i64).into()])?;
        Ok((whole, part(b, whole, d, m, m + 1, -1)?))
    };
    let (re, back_re) = around(b, z.re)?;
    let im = z.im.ok_or_else(|| OpError::Invalid { op: "fft".into(), what: "has one part".into() })?;
    let (im, back_im) = around(b, im)?;
    let half = |b: &mut Builder<'_>, v: ValueId| b.mul(v, 0.5);
    let (even_re, even_im) = (b.add(re, back_re)?, b.sub(im, back_im)?);
    let (even_re, even_im) = (half(b, even_re)?, half(b, even_im)?);
    let (odd_re, odd_im) = (b.add(im, back_im)?, b.sub(back_re, re)?);
    let (odd_re, odd_im) = (half(b, odd_re)?, half(b, odd_im)?);
    let w = waves(b, re, d, n, m + 1, forward)?;
    let (odd_re, odd_im) = turned(b, (odd_re, odd_im), w)?;
    Ok(Parts { re: b.add(even_re, odd_re)?, im: Some(b.add(even_im, odd_im)?) })
}

/// The n real results from the first half of a line's numbers.
pub(in crate::ops) fn to_real(
    b: &mut Builder<'_>,
    z: Parts,
    d: usize,
    n: i64,
    forward: bool,
) -> Result<ValueId, OpError> {
    let (m, rank) = (n / 2, b.rank(z.re)?);
    let (re, back_re) = (part(b, z.re, d, 0, m, 1)?, part(b, z.re, d, m, m, -1)?);
    let (mut sums, mut differences) = (b.add(re, back_re)?, b.sub(re, back_re)?);
    let w = waves(b, re, d, n, m, forward)?;
    let zero = |b: &mut Builder<'_>| -> PartResult {
        let (sizes, dtype) = (b.sizes(re)?, b.dtype(re)?);
        b.full(&sizes, 0.0, dtype)
    };
    let (mut even_im, mut odd_im) = (zero(b)?, zero(b)?);
    if let Some(im) = z.im {
        let (own, back) = (part(b, im, d, 0, m, 1)?, part(b, im, d, m, m, -1)?);
        // The imaginary parts of the first and of the last number are not looked at.
        let sizes = b.sizes(own)?;
        let k = shape::iota_at(b, &sizes[d], d, rank)?;
        let first = b.eq(k, 0i64)?;
        let first = b.expand(first, &sizes)?;
        let (even, odd) = (b.sub(own, back)?, b.add(own, back)?);
        (even_im, odd_im) = (b.select(first, 0.0, even)?, b.select(first, 0.0, odd)?);
    }
    let (odd_re, odd_im) = turned(b, (differences, odd_im), w)?;
    (sums, differences) = (b.sub(sums, odd_im)?, b.add(even_im, odd_re)?);
    let pairs = Parts { re: sums, im: Some(differences) };
    let x = transform(b, pairs, d, &m.into(), &m.into(), forward, 1.0)?;
    let im = x.im.ok_or_else(|| OpError::Invalid { op: "fft".into(), what: "has one part".into() })?;
    let both = [b.unsqueeze(x.re, d + 1)?, b.unsqueeze(im, d + 1)?];
    let both = b.call1("prims.cat", vec![Arg::values(both), (d as i64 + 1).into()])?;
    let mut sizes = b.sizes(x.re)?;
    sizes[d] = n.into();
    b.reshape(both, &sizes)
}
