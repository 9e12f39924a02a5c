//! Discrete Fourier transforms of lengths that no prim has, in steps: Cooley–Tukey over two factors of the length, Bluestein's
//! convolution where a factor is a large prime. No entries; arguments, real sides and scales are `fft`'s.
//!
//! A step is a prim, or a matrix product with an r by r DFT matrix where there are no prims or r has a large prime
//! factor. All waves depend on the length alone and fold into constants.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, SymExpr};
use kernel_ir::{LARGEST_FACTOR, LONGEST, is_length};

use crate::ops::common::choose;
use crate::ops::shapes::shape;
use crate::ops::signals::fft::{Parts, has_prims, transform};
use crate::{Builder, OpError};

/// Largest radix of matrices that composite lengths are split by: products with larger matrices cost more than another pass.
const LARGEST_RADIX: i64 = 64;
/// Largest length without a small divisor that is one matrix product.
const LARGEST_DIRECT: i64 = 256;

/// How a length is transformed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// One prim, or one matrix product.
    Direct,
    /// By this radix first.
    Radix(i64),
    /// As a convolution of a length that is a power of two.
    Convolution,
}

/// The best step for a length.
fn step(n: i64, prims: bool) -> Step {
    if n <= LARGEST_RADIX || prims && is_length(n) {
        return Step::Direct;
    }
    match smooth(n) {
        1 => by_matrices(n),
        _ if !prims => by_matrices(n),
        whole if whole == n => Step::Radix(balanced(n)),
        part if is_length(part) => Step::Radix(part),
        part => Step::Radix(balanced(part)),
    }
}

/// The largest divisor whose prime factors all are those of prims.
fn smooth(n: i64) -> i64 {
    let (mut rest, mut part) = (n, 1);
    for p in 2..=LARGEST_FACTOR {
        while rest % p == 0 {
            (rest, part) = (rest / p, part * p);
        }
    }
    part
}

/// The divisor of a long length that is nearest to its root.
fn balanced(n: i64) -> i64 {
    (2..=LONGEST).filter(|r| n % r == 0 && is_length(*r)).take_while(|r| *r <= n / r).last().unwrap_or(1)
}

/// The step of matrix products: a radix that balances two steps where two do, else the largest.
fn by_matrices(n: i64) -> Step {
    let divisors = (2..=LARGEST_RADIX).filter(|r| n % r == 0);
    let cost = |r: &i64| if n / r <= LARGEST_RADIX { r + n / r } else { i64::MAX - r };
    match divisors.min_by_key(cost) {
        Some(r) => Step::Radix(r),
        None if n <= LARGEST_DIRECT => Step::Direct,
        None => Step::Convolution,
    }
}

/// Whether a length is transformed in steps.
pub(in crate::ops) fn is_worth_it(n: i64, prims: bool) -> bool {
    step(n, prims) != Step::Direct
}

/// The transform of dimension `d`, which has `n` elements.
pub(in crate::ops) fn stepwise(
    b: &mut Builder<'_>,
    z: Parts,
    d: usize,
    n: i64,
    forward: bool,
) -> Result<Parts, OpError> {
    let rank = b.rank(z.re)?;
    let mut moved = None;
    let lines = z.map(b, &mut |b, v| {
        let v = shape::move_dim(b, v, d, rank - 1)?;
        let sizes = b.sizes(v)?;
        let batch = ir_core::numel(&sizes[..rank - 1]);
        moved = Some(sizes);
        b.reshape(v, &[batch, n.into()])
    })?;
    let out = lines_of(b, lines, n, forward)?;
    out.map(b, &mut |b, v| {
        let v = match &moved {
            Some(sizes) => b.reshape(v, sizes)?,
            None => v,
        };
        shape::move_dim(b, v, rank - 1, d)
    })
}

/// The transform of every row of `[batch, n]`.
fn lines_of(b: &mut Builder<'_>, z: Parts, n: i64, forward: bool) -> Result<Parts, OpError> {
    match step(n, has_prims(b, b.dtype(z.re)?)) {
        Step::Direct => transform(b, z, 1, &n.into(), &n.into(), forward, 1.0),
        Step::Radix(r) => by_radix(b, z, n, r, forward),
        Step::Convolution => by_convolution(b, z, n, forward),
    }
}

/// With `j = j1 m + j2` and `k = k1 + r k2`: a transform of length r over j1, waves of `j2 k1 / n`, a transform of length
/// `m = n / r` over j2.
fn by_radix(b: &mut Builder<'_>, z: Parts, n: i64, r: i64, forward: bool) -> Result<Parts, OpError> {
    let m = n / r;
    let batch = b.sizes(z.re)?[0].clone();
    let (r_size, m_size) = (SymExpr::from_i64(r), SymExpr::from_i64(m));
    let grid = [batch.clone(), r_size.clone(), m_size.clone()];
    let z = z.map(b, &mut |b, v| b.reshape(v, &grid))?;
    let z = transform(b, z, 1, &r_size, &r_size, forward, 1.0)?;
    let dtype = b.dtype(z.re)?;
    let twiddles = waves(b, &n.into(), &r_size, &m_size, dtype)?;
    let z = times_twiddle(b, z, twiddles, forward)?;
    let rows = [&batch * r, m_size];
    let z = z.map(b, &mut |b, v| b.reshape(v, &rows))?;
    let z = lines_of(b, z, m, forward)?;
    z.map(b, &mut |b, v| {
        let v = b.reshape(v, &grid)?;
        let v = b.permute(v, &[0, 2, 1])?;
        b.reshape(v, &[batch.clone(), n.into()])
    })
}

/// Bluestein's way: `j k = (j² + k² - (k - j)²) / 2` makes the transform a convolution with `exp(iπ j² / n)` between two
/// products with its conjugate, and the convolution is of a length that splits well.
fn by_convolution(b: &mut Builder<'_>, z: Parts, n: i64, forward: bool) -> Result<Parts, OpError> {
    let dtype = b.dtype(z.re)?;
    let length = (2 * n - 1).max(1) as u64;
    let length = length.next_power_of_two() as i64;
    let chirp = chirp(b, n, dtype)?;
    // The filter `exp(±iπ j² / n)` at j and at -j.
    let filter = {
        let front = Parts { re: chirp.0, im: Some(chirp.1) };
        let padded = front.map(b, &mut |b, v| {
            let back = b.slice(v, 0, SymExpr::from_i64(n - 1), SymExpr::from_i64(n - 1), -1)?;
            let gap = b.full(&[SymExpr::from_i64(length - 2 * n + 1)], 0.0, dtype)?;
            let whole = b.call1("prims.cat", vec![Arg::values([v, gap, back]), 0i64.into()])?;
            b.reshape(whole, &[SymExpr::ONE, length.into()])
        })?;
        let padded = if forward { padded } else { conjugate(b, padded)? };
        lines_of(b, padded, length, true)?
    };
    let z = times_twiddle(b, z, chirp, forward)?;
    let z = z.map(b, &mut |b, v| {
        let interior = [0i64; 2];
        let lists = [Arg::from(&[0i64; 2][..]), Arg::from(&[0, length - n][..]), Arg::from(&interior[..])];
        b.call1("prims.pad", [Arg::Value(v)].into_iter().chain(lists).chain([0.0.into()]).collect())
    })?;
    let z = lines_of(b, z, length, true)?;
    let z = product(b, z, filter)?;
    let z = lines_of(b, z, length, false)?;
    let z = z.map(b, &mut |b, v| {
        let v = b.slice(v, 1, SymExpr::ZERO, n.into(), 1)?;
        b.mul(v, 1.0 / length as f64)
    })?;
    times_twiddle(b, z, chirp, forward)
}

/// `z (cos - i sin)`, or `z (cos + i sin)` backwards.
fn times_twiddle(
    b: &mut Builder<'_>,
    z: Parts,
    (cos, sin): (ValueId, ValueId),
    forward: bool,
) -> Result<Parts, OpError> {
    let wave = Parts { re: cos, im: Some(sin) };
    let wave = if forward { conjugate(b, wave)? } else { wave };
    product(b, z, wave)
}

fn conjugate(b: &mut Builder<'_>, z: Parts) -> Result<Parts, OpError> {
    Ok(Parts { re: z.re, im: z.im.map(|im| b.neg(im)).transpose()? })
}

fn product(b: &mut Builder<'_>, x: Parts, y: Parts) -> Result<Parts, OpError> {
    let re = b.mul(x.re, y.re)?;
    let re = match (x.im, y.im) {
        (Some(x), Some(y)) => {
            let other = b.mul(x, y)?;
            b.sub(re, other)?
        }
        _ => re,
    };
    let left = y.im.map(|im| b.mul(x.re, im)).transpose()?;
    let right = x.im.map(|im| b.mul(im, y.re)).transpose()?;
    let im = match (left, right) {
        (Some(x), Some(y)) => Some(b.add(x, y)?),
        (one, other) => one.or(other),
    };
    Ok(Parts { re, im })
}

/// Cosines and sines of `2π j k / n` for `j < rows`, `k < columns`, computed in double precision.
pub(in crate::ops) fn waves(
    b: &mut Builder<'_>,
    n: &SymExpr,
    rows: &SymExpr,
    columns: &SymExpr,
    dtype: DType,
) -> Result<(ValueId, ValueId), OpError> {
    let j = shape::iota_at(b, rows, 0, 2)?;
    let k = shape::iota_at(b, columns, 1, 2)?;
    let turns = b.mul(j, k)?;
    circle(b, turns, n, dtype)
}

/// Cosine and sine of `π j² / n`, `[n]`.
fn chirp(b: &mut Builder<'_>, n: i64, dtype: DType) -> Result<(ValueId, ValueId), OpError> {
    let j = shape::iota_at(b, &n.into(), 0, 1)?;
    let square = b.mul(j, j)?;
    circle(b, square, &(2 * n).into(), dtype)
}

/// Cosine and sine of `turns / n` turns. The turns are reduced as integers, so that the angle is exact.
pub(in crate::ops) fn circle(
    b: &mut Builder<'_>,
    turns: ValueId,
    n: &SymExpr,
    dtype: DType,
) -> Result<(ValueId, ValueId), OpError> {
    let turns = b.rem(turns, n.clone())?;
    let real = b.cast(turns, DType::F64)?;
    let angle = match n.as_const() {
        Some(n) => b.mul(real, std::f64::consts::TAU / n as f64)?,
        None => {
            let number =
                b.call1("prims.full", vec![Arg::List(vec![]), n.clone().into(), DType::F64.into()])?;
            let angle = b.mul(real, std::f64::consts::TAU)?;
            b.div(angle, number)?
        }
    };
    let (cos, sin) = (b.cos(angle)?, b.sin(angle)?);
    // Half a turn has no sine, but its rounded angle has.
    let twice = b.mul(turns, 2i64)?;
    let half = b.eq(twice, n.clone())?;
    let sin = choose(b, half, 0.0, sin, DType::F64)?;
    Ok((b.cast(cos, dtype)?, b.cast(sin, dtype)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_split_where_they_can_be() {
        let of = |n: i64| step(n, true);
        assert_eq!(of(64), Step::Direct);
        assert_eq!(of(4096), Step::Direct);
        assert_eq!(of(5000), Step::Radix(50));
        assert_eq!(of(8192), Step::Radix(64));
        assert_eq!(of(251), Step::Direct);
        assert_eq!(of(257), Step::Convolution);
        assert_eq!(of(2 * 1009), Step::Radix(2));
        assert_eq!(of(1 << 18), Step::Radix(512));
        // Numbers of 16 bits have no prims, nor have older readers.
        let of = |n: i64| step(n, false);
        assert_eq!(of(4096), Step::Radix(64));
        assert_eq!(of(128), Step::Radix(8));
        assert_eq!(of(1 << 18), Step::Radix(64));
    }
}
