//! The gradients of attention from the logarithms of its sums, one row of scores at a time.

use ir_core::DType;
use rayon::prelude::*;

use super::attention::{Data, Shape};
use super::{narrowed, widened};
use crate::{Tensor, TensorError};

/// What the backward is given next to the operands of the attention: the cotangent `[b, hq, lq, dv]` of its result, and a
/// number for each row `[b, hq, lq]` of each of the others.
pub struct AttentionCotangent<'a> {
    /// The cotangent.
    pub cotangent: &'a Tensor,
    /// Logarithms of the sums of the scores' exponentials.
    pub sums: &'a Tensor,
    /// Sums of the cotangent times the result, less the cotangent of `sums`.
    pub deltas: &'a Tensor,
}

/// Gradients of [`attention`](super::attention), whose mask and kept weights are `optional`, with respect to `q`, `k` and `v`,
/// row-major, in `dtype`. A row in which nothing takes part adds nothing.
pub fn attention_backward(
    given: &AttentionCotangent<'_>,
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    optional: (Option<&Tensor>, Option<(&Tensor, f64)>),
    causal: bool,
    scale: f64,
    dtype: DType,
) -> Result<[Tensor; 3], TensorError> {
    let s = Shape::of(q, k, v, optional)?;
    let rows = [s.b, s.hq, s.lq];
    let of_rows = given.sums.sizes() == rows && given.deltas.sizes() == rows;
    if !of_rows || given.cotangent.sizes() != [s.b, s.hq, s.lq, s.dv] {
        let sizes = [given.cotangent.sizes(), given.sums.sizes(), given.deltas.sizes()];
        return Err(TensorError::Shape(format!("backward of attention with rows of sizes {sizes:?}")));
    }
    let data = Data::of([q, k, v], optional, causal, scale)?;
    let (g, sums, deltas) =
        (widened::<f64>(given.cotangent)?, widened::<f64>(given.sums)?, widened::<f64>(given.deltas)?);
    let given = Given { g, sums, deltas };
    // A head of keys with all heads of queries that read it is one task, so that sums have one order.
    let heads: Vec<[Vec<f64>; 3]> =
        (0..s.b * s.hkv).into_par_iter().map(|head| of_head(&s, &data, &given, head)).collect();
    let join = |n: usize, sizes: &[usize]| {
        let all: Vec<f64> = heads.iter().flat_map(|h| h[n].iter().copied()).collect();
        narrowed(&all, dtype, sizes)
    };
    Ok([
        join(0, &[s.b, s.hq, s.lq, s.d])?,
        join(1, &[s.b, s.hkv, s.lk, s.d])?,
        join(2, &[s.b, s.hkv, s.lk, s.dv])?,
    ])
}

struct Given {
    g: Vec<f64>,
    sums: Vec<f64>,
    deltas: Vec<f64>,
}

/// The gradients of one head of keys: of its queries, keys and values.
fn of_head(s: &Shape, data: &Data, given: &Given, head: usize) -> [Vec<f64>; 3] {
    // Heads of queries that share keys lie side by side.
    let rows = s.hq / s.hkv * s.lq;
    let (mut dq, mut dk, mut dv) = (vec![0.0; rows * s.d], vec![0.0; s.lk * s.d], vec![0.0; s.lk * s.dv]);
    for row in 0..rows {
        let n = head * rows + row;
        let sum = given.sums[n];
        if sum == f64::NEG_INFINITY {
            continue;
        }
        let g = &given.g[n * s.dv..][..s.dv];
        let q = &data.q[n * s.d..][..s.d];
        for (j, score) in data.scores(s, n).into_iter().enumerate() {
            let (weight, factor) = ((score - sum).exp(), data.factor(s, n, j));
            let v = &data.v[(head * s.lk + j) * s.dv..][..s.dv];
            let k = &data.k[(head * s.lk + j) * s.d..][..s.d];
            let dp: f64 = g.iter().zip(v).map(|(a, b)| a * b).sum();
            let ds = weight * (factor * dp - given.deltas[n]) * data.scale;
            dv[j * s.dv..][..s.dv].iter_mut().zip(g).for_each(|(to, x)| *to += weight * factor * x);
            dq[row * s.d..][..s.d].iter_mut().zip(k).for_each(|(to, x)| *to += ds * x);
            dk[j * s.d..][..s.d].iter_mut().zip(q).for_each(|(to, x)| *to += ds * x);
        }
    }
    [dq, dk, dv]
}
