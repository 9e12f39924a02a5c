//! Products of which each group of rows, or of places of what is summed over, is one of its own.

use std::ops::Range;

use ir_core::DType;

use super::matmul;
use crate::{Tensor, TensorError};

/// The rows of `a` `[m, k]` in `groups[g]` by matrix `g` of `b` `[g, k, n]`, in `dtype`; rows in no group give zeros.
pub fn grouped_matmul(
    a: &Tensor,
    b: &Tensor,
    groups: &[Range<usize>],
    dtype: DType,
) -> Result<Tensor, TensorError> {
    let (&[m, _], &[matrices, _, n]) = (a.sizes(), b.sizes()) else { return Err(refused(a, b)) };
    if matrices != groups.len() {
        return Err(refused(a, b));
    }
    crate::tensor::checked_numel(DType::F64, &[m, n])?;
    let mut out = vec![0.0; m * n];
    for (g, rows) in groups.iter().enumerate().filter(|(_, rows)| !rows.is_empty()) {
        let own = matmul(&a.narrow(0, rows.start, rows.len())?, &b.select(0, g)?, DType::F64)?;
        let place = out.get_mut(rows.start * n..rows.end * n).ok_or_else(|| refused(a, b))?;
        place.iter_mut().zip(own.iter_f64()).for_each(|(to, x)| *to = x);
    }
    Tensor::from_vec(out, &[m, n])?.to_dtype(dtype)
}

/// `a` `[m, k]` by `b` `[k, n]` summed over `groups[g]` of `k` alone: `[g, m, n]` in `dtype`.
pub fn grouped_sums(
    a: &Tensor,
    b: &Tensor,
    groups: &[Range<usize>],
    dtype: DType,
) -> Result<Tensor, TensorError> {
    let (&[m, _], &[_, n]) = (a.sizes(), b.sizes()) else { return Err(refused(a, b)) };
    let sizes = [groups.len(), m, n];
    crate::tensor::checked_numel(DType::F64, &sizes)?;
    let mut out: Vec<f64> = Vec::with_capacity(sizes.iter().product());
    for places in groups {
        let left = a.narrow(1, places.start, places.len())?;
        let right = b.narrow(0, places.start, places.len())?;
        out.extend(matmul(&left, &right, DType::F64)?.iter_f64());
    }
    Tensor::from_vec(out, &sizes)?.to_dtype(dtype)
}

fn refused(a: &Tensor, b: &Tensor) -> TensorError {
    TensorError::Shape(format!("cannot multiply {:?} by groups of {:?}", a.sizes(), b.sizes()))
}
