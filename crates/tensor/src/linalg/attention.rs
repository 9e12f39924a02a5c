//! `softmax(q kᵀ · scale + mask) v`, one row at a time.

use ir_core::DType;
use rayon::prelude::*;

use super::{narrowed, widened};
use crate::{Tensor, TensorError};

/// Attention of `q [b, hq, lq, d]` to `k [b, hkv, lk, d]` and `v [b, hkv, lk, dv]`, `hq` a multiple of `hkv`. `mask`
/// is `[b, hq, lq, lk]` (expand first): `bool`, true takes part, or real numbers that are added to the scores. With
/// `causal` position `i` sees positions up to `i`. A row in which nothing takes part is zero. With `kept`, words of bits `[b, hq, lq,
/// lk / 32 rounded up]` of integers and a factor, the weights after the softmax are multiplied by the factor where the key's bit is
/// set (that of key 0 is the lowest of its word), and dropped elsewhere. The result is
/// `[b, hq, lq, dv]`, row-major, in `dtype`, and next to it the logarithms of the sums of the scores' exponentials, `[b, hq,
/// lq]` in the dtype of its arithmetic: minus infinity where nothing takes part.
pub fn attention(
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    (mask, kept): (Option<&Tensor>, Option<(&Tensor, f64)>),
    causal: bool,
    scale: f64,
    dtype: DType,
) -> Result<(Tensor, Tensor), TensorError> {
    let s = Shape::of(q, k, v, (mask, kept))?;
    let data = Data::of([q, k, v], (mask, kept), causal, scale)?;
    let rows = s.b * s.hq * s.lq;
    let mut sums = super::zeroed::<f64>(rows)?;
    let weigh = |n: usize| data.scores(&s, n);
    sums.par_iter_mut().enumerate().for_each(|(n, sum)| *sum = logarithm_of_sum(&weigh(n)));
    let mut out = super::zeroed::<f64>(rows * s.dv)?;
    out.par_chunks_mut(s.dv.max(1)).enumerate().for_each(|(n, row)| attend(&s, &data, n, row));
    let out = narrowed(&out, dtype, &[s.b, s.hq, s.lq, s.dv])?;
    Ok((out, narrowed(&sums, dtype.compute(), &[s.b, s.hq, s.lq])?))
}

pub(super) struct Shape {
    pub(super) b: usize,
    pub(super) hq: usize,
    pub(super) hkv: usize,
    pub(super) lq: usize,
    pub(super) lk: usize,
    pub(super) d: usize,
    pub(super) dv: usize,
}

pub(super) struct Data {
    pub(super) q: Vec<f64>,
    pub(super) k: Vec<f64>,
    pub(super) v: Vec<f64>,
    mask: Option<Vec<f64>>,
    additive: bool,
    causal: bool,
    pub(super) scale: f64,
    /// Words of bits, and the factor.
    kept: Option<(Vec<i64>, f64)>,
}

impl Data {
    pub(super) fn of(
        [q, k, v]: [&Tensor; 3],
        (mask, kept): (Option<&Tensor>, Option<(&Tensor, f64)>),
        causal: bool,
        scale: f64,
    ) -> Result<Data, TensorError> {
        let words = |t: &Tensor| t.iter().map(|word| word.as_i64()).collect();
        Ok(Data {
            q: widened::<f64>(q)?,
            k: widened::<f64>(k)?,
            v: widened::<f64>(v)?,
            mask: mask.map(widened::<f64>).transpose()?,
            additive: mask.is_some_and(|m| m.dtype() != DType::Bool),
            causal,
            scale,
            kept: kept.map(|(t, factor)| (words(t), factor)),
        })
    }

    /// What the weight of row `n` and key `j` is multiplied by after the softmax.
    pub(super) fn factor(&self, s: &Shape, n: usize, j: usize) -> f64 {
        match &self.kept {
            None => 1.0,
            Some((words, factor)) if words[n * s.words() + j / 32] >> (j % 32) & 1 == 1 => *factor,
            Some(_) => 0.0,
        }
    }

    /// The scores of row `n`, counted over batch, heads and positions.
    pub(super) fn scores(&self, s: &Shape, n: usize) -> Vec<f64> {
        let position = n % s.lq;
        let kv = s.head_of_keys(n);
        let q = &self.q[n * s.d..][..s.d];
        let score = |j: usize| {
            let k = &self.k[(kv * s.lk + j) * s.d..][..s.d];
            let score = q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() * self.scale;
            match self.mask.as_ref().map(|m| m[n * s.lk + j]) {
                _ if self.causal && j > position => f64::NEG_INFINITY,
                Some(m) if self.additive => score + m,
                Some(0.0) => f64::NEG_INFINITY,
                _ => score,
            }
        };
        (0..s.lk).map(score).collect()
    }
}

impl Shape {
    /// Words of 32 keys in a row.
    fn words(&self) -> usize {
        self.lk.div_ceil(32)
    }

    /// The head of keys, counted over the batch, that row `n` reads.
    fn head_of_keys(&self, n: usize) -> usize {
        let head = n / self.lq;
        head / self.hq * self.hkv + head % self.hq / (self.hq / self.hkv)
    }
    pub(super) fn of(
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        (mask, kept): (Option<&Tensor>, Option<(&Tensor, f64)>),
    ) -> Result<Shape, TensorError> {
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
            && mask.is_none_or(|m| m.sizes() == [b, hq, lq, lk])
            && kept.is_none_or(|(t, _)| t.dtype().is_integral() && t.sizes() == [b, hq, lq, lk.div_ceil(32)]);
        if fits { Ok(Shape { b, hq, hkv, lq, lk, d, dv }) } else { Err(refused()) }
    }
}

/// The largest score; not a number where one is none, which `f64::max` would drop.
fn largest(scores: &[f64]) -> f64 {
    let top = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) };
    scores.iter().copied().fold(f64::NEG_INFINITY, top)
}

fn logarithm_of_sum(scores: &[f64]) -> f64 {
    let top = largest(scores);
    if top == f64::NEG_INFINITY {
        return top;
    }
    top + scores.iter().map(|x| (x - top).exp()).sum::<f64>().ln()
}

/// Row `n` of the result, counted over batch, heads and positions.
fn attend(s: &Shape, data: &Data, n: usize, row: &mut [f64]) {
    let (kv, scores) = (s.head_of_keys(n), data.scores(s, n));
    let top = largest(&scores);
    if top == f64::NEG_INFINITY {
        return;
    }
    let weights: Vec<f64> = scores.iter().map(|x| (x - top).exp()).collect();
    let total: f64 = weights.iter().sum();
    for (j, weight) in weights.iter().enumerate() {
        let v = &data.v[(kv * s.lk + j) * s.dv..][..s.dv];
        let weight = weight / total * data.factor(s, n, j);
        row.iter_mut().zip(v).for_each(|(to, x)| *to += weight * x);
    }
}
