//! `softmax(q kᵀ · scale + mask) v`, one row at a time.

use ir_core::DType;
use rayon::prelude::*;

use super::{narrowed, widened};
use crate::{Tensor, TensorError};

/// Attention of `q [b, hq, lq, d]` to `k [b, hkv, lk, d]` and `v [b, hkv, lk, dv]`, `hq` a multiple of `hkv`. `mask`
/// is `[b, hq, lq, lk]` (expand first): `bool`, true takes part, or real numbers that are added to the scores. With
/// `causal` position `i` sees positions up to `i`. A row in which nothing takes part is zero. The result is
/// `[b, hq, lq, dv]`, row-major, in `dtype`.
pub fn attention(
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    mask: Option<&Tensor>,
    causal: bool,
    scale: f64,
    dtype: DType,
) -> Result<Tensor, TensorError> {
    let s = Shape::of(q, k, v, mask)?;
    let data = Data {
        q: widened::<f64>(q)?,
        k: widened::<f64>(k)?,
        v: widened::<f64>(v)?,
        mask: mask.map(widened::<f64>).transpose()?,
        additive: mask.is_some_and(|m| m.dtype() != DType::Bool),
    };
    let mut out = super::zeroed::<f64>(s.b * s.hq * s.lq * s.dv)?;
    out.par_chunks_mut(s.dv.max(1)).enumerate().for_each(|(n, row)| attend(&s, &data, causal, scale, n, row));
    narrowed(&out, dtype, &[s.b, s.hq, s.lq, s.dv])
}

struct Shape {
    b: usize,
    hq: usize,
    hkv: usize,
    lq: usize,
    lk: usize,
    d: usize,
    dv: usize,
}

struct Data {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    mask: Option<Vec<f64>>,
    additive: bool,
}

impl Shape {
    fn of(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Shape, TensorError> {
        let refused = || {
            let sizes = [q.sizes(), k.sizes(), v.sizes(), mask.map_or(&[], |m| m.sizes())];
            TensorError::Shape(format!("attention of q, k, v, mask with sizes {sizes:?}"))
        };
        let (&[b, hq, lq, d], &[bk, hkv, lk, dk], &[bv, hv, lv, dv]) = (q.sizes(), k.sizes(), v.sizes())
        else {
            return Err(refused());
        };
        let fits = b == bk
            && b == bv
            && hkv == hv
            && lk == lv
            && d == dk
            && hkv > 0
            && hq % hkv == 0
            && mask.is_none_or(|m| m.sizes() == [b, hq, lq, lk]);
        if fits { Ok(Shape { b, hq, hkv, lq, lk, d, dv }) } else { Err(refused()) }
    }
}

/// Row `n` of the result, counted over batch, heads and positions.
fn attend(s: &Shape, data: &Data, causal: bool, scale: f64, n: usize, row: &mut [f64]) {
    let (position, head) = (n % s.lq, n / s.lq);
    let kv = head / s.hq * s.hkv + head % s.hq / (s.hq / s.hkv);
    let q = &data.q[n * s.d..][..s.d];
    let mut scores: Vec<f64> = Vec::with_capacity(s.lk);
    for j in 0..s.lk {
        let k = &data.k[(kv * s.lk + j) * s.d..][..s.d];
        let score = q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() * scale;
        let mask = data.mask.as_ref().map(|m| m[n * s.lk + j]);
        scores.push(match mask {
            _ if causal && j > position => f64::NEG_INFINITY,
            Some(m) if data.additive => score + m,
            Some(0.0) => f64::NEG_INFINITY,
            _ => score,
        });
    }
    // `f64::max` drops a NaN on either side.
    let top = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) };
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, top);
    if top == f64::NEG_INFINITY {
        return;
    }
    let weights: Vec<f64> = scores.iter().map(|x| (x - top).exp()).collect();
    let total: f64 = weights.iter().sum();
    for (j, weight) in weights.iter().enumerate() {
        let v = &data.v[(kv * s.lk + j) * s.dv..][..s.dv];
        row.iter_mut().zip(v).for_each(|(to, x)| *to += weight / total * x);
    }
}
