//! `out[…, m, n] = Σ_k a[…, m, k] * b[…, k, n]`.

use ir_core::DType;
use rayon::prelude::*;

use super::{Accumulator, common_class, narrowed, widened, with_accumulator, zeroed};
use crate::{Tensor, TensorError};

/// Rows of `a` that are multiplied with `b` together, so that `b` is read from memory once for all of them.
const ROWS: usize = 8;
/// Columns whose sums stay in the first-level cache meanwhile: 8 rows of 256 `f64` are 16 KiB.
const COLUMNS: usize = 256;

/// The product of `[batch…, m, k]` and `[batch…, k, n]` (equal batch sizes; expand first to broadcast), row-major, in
/// `dtype`.
pub fn matmul(a: &Tensor, b: &Tensor, dtype: DType) -> Result<Tensor, TensorError> {
    let refused = || {
        TensorError::Shape(format!("cannot multiply matrices of sizes {:?} and {:?}", a.sizes(), b.sizes()))
    };
    let ([batch @ .., m, k], [batch_b @ .., k_b, n]) = (a.sizes(), b.sizes()) else { return Err(refused()) };
    if batch != batch_b || k != k_b {
        return Err(refused());
    }
    let mut sizes = batch.to_vec();
    sizes.extend([*m, *n]);
    crate::tensor::checked_numel(dtype, &sizes)?;
    with_accumulator!(common_class(a, b), A => batched::<A>(a, b, [*m, *k, *n], dtype, &sizes))
}

fn batched<A: Accumulator>(
    a: &Tensor,
    b: &Tensor,
    [m, k, n]: [usize; 3],
    dtype: DType,
    sizes: &[usize],
) -> Result<Tensor, TensorError> {
    let (left, right) = (widened::<A>(a)?, widened::<A>(b)?);
    let mut out = zeroed::<A>(sizes.iter().product())?;
    if out.is_empty() || k == 0 {
        return narrowed(&out, dtype, sizes);
    }
    // One task is a few rows of one matrix of the batch.
    let blocks = m.div_ceil(ROWS);
    let rows: Vec<(usize, &mut [A])> = out
        .chunks_mut(m * n)
        .enumerate()
        .flat_map(|(i, c)| c.chunks_mut(ROWS * n).enumerate().map(move |(r, c)| (i * blocks + r, c)))
        .collect();
    rows.into_par_iter().for_each(|(task, c)| {
        let (i, r) = (task / blocks, task % blocks);
        let a = &left[i * m * k + r * ROWS * k..][..c.len() / n * k];
        accumulate(a, &right[i * k * n..][..k * n], c, k, n);
    });
    narrowed(&out, dtype, sizes)
}

/// `c += a b` for row-major `a` (rows of length `k`), `b` (`k` rows of length `n`) and `c` (rows of length `n`).
pub(super) fn accumulate<A: Accumulator>(a: &[A], b: &[A], c: &mut [A], k: usize, n: usize) {
    for start in (0..n).step_by(COLUMNS) {
        let end = (start + COLUMNS).min(n);
        for p in 0..k {
            let row = &b[p * n + start..p * n + end];
            for (c, a) in c.chunks_mut(n).zip(a.chunks(k)) {
                let factor = a[p];
                c[start..end].iter_mut().zip(row).for_each(|(c, &x)| *c += factor * x);
            }
        }
    }
}
