//! Gradients of attention: `prims.attention_backward`, and the decomposed form over all scores where the gradient of an
//! added mask or of the backward itself is wanted. No entries.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, SymExpr};
use kernel_ir::{Dropout, ReduceOp, ScalarOp};

use crate::ops::gradients::scalar::Grads;
use crate::ops::networks::attention::has_long_rows;
use crate::ops::reductions::reduction::sum_to_exact;
use crate::{Builder, Call, GradCall, OpError, Outs};

/// `deltas` is all that the backward has to know of the result and of the cotangent of the sums: `p (g vᵀ - deltas)` is the
/// cotangent of the scores, for `Σ p (g vᵀ)` over a row is `Σ g · out`, and the derivative of the logarithm of a sum by a
/// score is its weight.
pub(in crate::ops) fn attention(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let c = call.call;
    let mut grads = vec![None; c.args.len()];
    let (&[out, sums], &[of_out, of_sums]) = (call.outs, call.cotangents) else {
        return Err(c.invalid("has two results"));
    };
    if of_out.is_none() && of_sums.is_none() {
        return Ok(grads);
    }
    let meta = b.meta(out)?.clone();
    let g = match of_out {
        Some(g) => g,
        None => b.full(&meta.sizes, 0i64, meta.dtype)?,
    };
    let deltas = deltas(b, g, out, of_sums)?;
    let mut args: Vec<Arg> = vec![g.into()];
    args.extend(["q", "k", "v"].map(|name| c.arg(name).clone()));
    args.extend([sums.into(), deltas.into()]);
    args.extend(["mask", "causal", "scale", "kept", "factor"].map(|name| c.arg(name).clone()));
    for (slot, grad) in gradients(b, args)?.into_iter().enumerate() {
        grads[slot] = Some(grad);
    }
    if call.wanted.get(3) == Some(&true)
        && let Some(mask) = added_mask(b, c)?
    {
        let scores = Scores::of(b, c, g, sums, deltas)?;
        grads[3] = Some(scores.to_mask(b, scores.ds, mask)?);
    }
    Ok(grads)
}

/// The longest rows of queries, keys and values of which `prims.attention_backward` makes gradients. On an H200 its kernels reach 40
/// TFLOP/s with rows of 512 elements, products of all scores ten times as much.
const LONGEST: i64 = 256;

/// The gradients of queries, keys and values, from the arguments of `prims.attention_backward`: those of long rows by products of all scores,
/// whose memory is little beside theirs.
///
/// # Errors
/// Arguments that do not fit.
pub(in crate::ops) fn gradients(b: &mut Builder<'_>, args: Vec<Arg>) -> Result<Outs, OpError> {
    let target = "prims.attention_backward";
    let op = crate::lookup(target).ok_or_else(|| OpError::Unknown(target.into()))?;
    let c = Call { op, args: &args };
    let (q, v) = (b.sizes(c.value("q")?)?, b.sizes(c.value("v")?)?);
    if !has_long_rows([&q, &v], LONGEST) {
        return b.call(target, args);
    }
    let s = Scores::of(b, &c, c.value("grad")?, c.value("sums")?, c.value("deltas")?)?;
    // Weights and cotangents are rounded as operands of products, like the others.
    let own = b.dtype(c.value("q")?)?;
    let [q, k, g] = [s.q, s.k, s.g].map(|v| b.cast(v, own));
    let kept = s.dropped(b, s.p)?;
    let kept = b.cast(kept, own)?;
    let ds = b.mul(s.ds, s.scale)?;
    let ds = b.cast(ds, own)?;
    let (turned_kept, turned_ds) = (transpose_last(b, kept)?, transpose_last(b, ds)?);
    let grads = [product(b, ds, k?)?, product(b, turned_ds, q?)?, product(b, turned_kept, g?)?];
    let like = |(n, grad): (usize, ValueId)| s.like_argument(b, &c, n + 1, grad);
    grads.into_iter().enumerate().map(like).collect()
}

/// The sums of `g · out` over rows less the cotangent of the logarithms of sums.
pub(in crate::ops) fn deltas(
    b: &mut Builder<'_>,
    g: ValueId,
    out: ValueId,
    of_sums: Option<ValueId>,
) -> Result<ValueId, OpError> {
    let wide = b.dtype(out)?.compute();
    let (g, out) = (b.cast(g, wide)?, b.cast(out, wide)?);
    let product = b.mul(g, out)?;
    let deltas = b.reduce(ReduceOp::Sum, product, &[3], false)?;
    match of_sums {
        Some(s) => b.sub(deltas, s),
        None => Ok(deltas),
    }
}

/// The mask where it is one that is added.
fn added_mask(b: &Builder<'_>, c: &Call<'_>) -> Result<Option<ValueId>, OpError> {
    Ok(match c.opt_value("mask")? {
        Some(mask) if b.dtype(mask)?.is_inexact() => Some(mask),
        _ => None,
    })
}

/// The backward of the backward, written out. With cotangents `a`, `e`, `f` of `dq`, `dk`, `dv`, that of `ds` is
/// `x = (a kᵀ + q eᵀ) scale`, that of the weights `y = m (g fᵀ) + x (m (g vᵀ) - deltas)`, that of the scores `w = p y`, that of
/// `g vᵀ` `z = p m x`, where `m` is what dropout multiplies a weight by; all others are sums and products of these.
pub(in crate::ops) fn attention_backward(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let c = call.call;
    let mut grads = vec![None; c.args.len()];
    let &[a, e, f] = call.cotangents else { return Err(c.invalid("has three results")) };
    let (sums, deltas) = (c.value("sums")?, c.value("deltas")?);
    let s = Scores::of(b, c, c.value("grad")?, sums, deltas)?;
    let a = a.map(|a| s.grouped(b, a)).transpose()?;
    let wide = |b: &mut Builder<'_>, v: Option<ValueId>| v.map(|v| b.cast(v, s.wide)).transpose();
    let (e, f) = (wide(b, e)?, wide(b, f)?);
    let mut x = None;
    for (left, right) in [(a, Some(s.k)), (Some(s.q), e)] {
        if let (Some(left), Some(right)) = (left, right) {
            let product = matmul_transposed(b, left, right)?;
            x = plus(b, x, Some(product))?;
        }
    }
    let x = x.map(|x| b.mul(x, s.scale)).transpose()?;
    let of_weights = x.map(|x| b.mul(s.p, x)).transpose()?;
    let z = of_weights.map(|z| s.dropped(b, z)).transpose()?;
    let of_dv = f.map(|f| matmul_transposed(b, s.g, f)).transpose()?;
    let of_dv = of_dv.map(|y| s.dropped(b, y)).transpose()?;
    let of_ds = x.map(|x| b.mul(x, s.rest)).transpose()?;
    let y = plus(b, of_dv, of_ds)?;
    let Some(y) = y else { return Ok(grads) };
    let w = b.mul(s.p, y)?;
    let scaled = b.mul(w, s.scale)?;
    let ds = b.mul(s.ds, s.scale)?;
    let mut sum_of =
        |b: &mut Builder<'_>, slot: usize, parts: [Option<(ValueId, ValueId)>; 2]| -> Result<(), OpError> {
            let mut sum = None;
            for (left, right) in parts.into_iter().flatten() {
                let part = product(b, left, right)?;
                sum = plus(b, sum, Some(part))?;
            }
            grads[slot] = sum.map(|sum| s.like_argument(b, c, slot, sum)).transpose()?;
            Ok(())
        };
    let kept = s.dropped(b, s.p)?;
    let z_transposed = z.map(|z| transpose_last(b, z)).transpose()?;
    let (turned_w, turned_ds) = (transpose_last(b, scaled)?, transpose_last(b, ds)?);
    sum_of(b, 0, [f.map(|f| (kept, f)), z.map(|z| (z, s.v))])?;
    sum_of(b, 1, [Some((scaled, s.k)), e.map(|e| (ds, e))])?;
    sum_of(b, 2, [Some((turned_w, s.q)), a.map(|a| (turned_ds, a))])?;
    sum_of(b, 3, [z_transposed.map(|z| (z, s.g)), None])?;
    grads[4] = Some(s.minus_rows(b, w, sums)?);
    grads[5] = of_weights.map(|z| s.minus_rows(b, z, deltas)).transpose()?;
    if let Some(mask) = added_mask(b, c)? {
        grads[6] = Some(s.to_mask(b, w, mask)?);
    }
    Ok(grads)
}

fn plus(b: &mut Builder<'_>, x: Option<ValueId>, y: Option<ValueId>) -> Result<Option<ValueId>, OpError> {
    Ok(match (x, y) {
        (Some(x), Some(y)) => Some(b.add(x, y)?),
        (x, y) => x.or(y),
    })
}

/// All scores of an attention and what follows from them, in the dtype of arithmetic. Query heads that share keys are rows
/// of one head: `[b, hkv, hq / hkv · lq, …]`.
struct Scores {
    q: ValueId,
    k: ValueId,
    v: ValueId,
    g: ValueId,
    /// Weights.
    p: ValueId,
    /// What dropout multiplies weights by.
    factors: Option<ValueId>,
    /// `g vᵀ`, with dropout times the factors, less `deltas`.
    rest: ValueId,
    /// The cotangent of the scores.
    ds: ValueId,
    scale: f64,
    wide: DType,
    /// `[b, hq, lq, lk]`.
    full: [SymExpr; 4],
    /// Heads of keys, and rows of each.
    shared: SymExpr,
    rows: SymExpr,
}

impl Scores {
    /// Of a call of the attention or of its backward.
    fn of(
        b: &mut Builder<'_>,
        c: &Call<'_>,
        g: ValueId,
        sums: ValueId,
        deltas: ValueId,
    ) -> Result<Scores, OpError> {
        let (q, k, v) = (c.value("q")?, c.value("k")?, c.value("v")?);
        let wide = b.dtype(q)?.compute();
        let [q_sizes, k_sizes] = [b.sizes(q)?, b.sizes(k)?];
        let (heads, shared) = (&q_sizes[1], k_sizes[1].clone());
        let rows = heads.floor_div(&shared) * &q_sizes[2];
        let full = [q_sizes[0].clone(), heads.clone(), q_sizes[2].clone(), k_sizes[2].clone()];
        let (k, v) = (b.cast(k, wide)?, b.cast(v, wide)?);
        let scale = c.float("scale")?;
        // The scores are filled in below.
        let mut s =
            Scores { q, k, v, g, p: q, factors: None, rest: q, ds: q, scale, wide, full, shared, rows };
        (s.q, s.g) = (s.grouped(b, q)?, s.grouped(b, g)?);
        let p = s.weights(b, c, sums)?;
        s.p = s.grouped(b, p)?;
        if let Some(kept) = c.opt_value("kept")? {
            let factors = kept_weights(b, kept, &s.full)?;
            let factors = b.select(factors, c.float("factor")?, 0.0)?;
            s.factors = Some(s.grouped(b, factors)?);
        }
        let dp = matmul_transposed(b, s.g, v)?;
        let dp = s.dropped(b, dp)?;
        let deltas = b.unsqueeze(deltas, 3)?;
        let deltas = s.grouped(b, deltas)?;
        s.rest = b.sub(dp, deltas)?;
        s.ds = b.mul(s.p, s.rest)?;
        Ok(s)
    }

    /// `[b, hq, lq, n]` as `[b, hkv, rows, n]`.
    fn grouped(&self, b: &mut Builder<'_>, v: ValueId) -> Result<ValueId, OpError> {
        let v = b.cast(v, self.wide)?;
        let sizes = b.sizes(v)?;
        b.reshape(v, &[sizes[0].clone(), self.shared.clone(), self.rows.clone(), sizes[3].clone()])
    }

    /// What dropout makes of weights, or of the cotangents of what it made.
    fn dropped(&self, b: &mut Builder<'_>, v: ValueId) -> Result<ValueId, OpError> {
        self.factors.map_or(Ok(v), |factors| b.mul(v, factors))
    }

    /// `exp(s - sums)` `[b, hq, lq, lk]`, zero in rows in which every key is masked.
    fn weights(&self, b: &mut Builder<'_>, c: &Call<'_>, sums: ValueId) -> Result<ValueId, OpError> {
        let scores = matmul_transposed(b, self.q, self.k)?;
        let scores = b.mul(scores, self.scale)?;
        let scores = b.reshape(scores, &self.full)?;
        let scores = masked(b, scores, c.opt_value("mask")?, c.bool("causal")?)?;
        let sums = b.unsqueeze(sums, 3)?;
        let moved = b.sub(scores, sums)?;
        let weights = b.exp(moved)?;
        let nothing = b.eq(sums, f64::NEG_INFINITY)?;
        b.select(nothing, 0.0, weights)
    }

    /// A cotangent of scores as one of an added mask.
    fn to_mask(&self, b: &mut Builder<'_>, ds: ValueId, mask: ValueId) -> Result<ValueId, OpError> {
        let (sizes, dtype) = (b.sizes(mask)?, b.dtype(mask)?);
        let full = b.reshape(ds, &self.full)?;
        let sum = sum_to_exact(b, full, &sizes)?;
        b.cast(sum, dtype)
    }

    /// The negative sums of rows, like `of`.
    fn minus_rows(&self, b: &mut Builder<'_>, v: ValueId, of: ValueId) -> Result<ValueId, OpError> {
        let sum = b.reduce(ReduceOp::Sum, v, &[3], false)?;
        let sizes = b.sizes(of)?;
        let sum = b.reshape(sum, &sizes)?;
        b.neg(sum)
    }

    /// In shape and dtype of argument `slot`.
    fn like_argument(
        &self,
        b: &mut Builder<'_>,
        c: &Call<'_>,
        slot: usize,
        v: ValueId,
    ) -> Result<ValueId, OpError> {
        let Some(Arg::Value(argument)) = c.args.get(slot) else { return Ok(v) };
        let (sizes, dtype) = (b.sizes(*argument)?, b.dtype(*argument)?);
        let v = b.reshape(v, &sizes)?;
        b.cast(v, dtype)
    }
}

/// The words of kept weights, which broadcast to `[b, h, lq, lk / 32]`, as truth values that broadcast to `full`.
pub(in crate::ops) fn kept_weights(
    b: &mut Builder<'_>,
    words: ValueId,
    full: &[SymExpr],
) -> Result<ValueId, OpError> {
    let keys = &full[full.len() - 1];
    let words = if b.rank(words)? == 0 { b.unsqueeze(words, 0)? } else { words };
    let mut sizes = b.sizes(words)?;
    let last = sizes.len() - 1;
    sizes[last] = keys.ceil_div(&SymExpr::from_i64(Dropout::KEYS));
    let words = b.expand(words, &sizes)?;
    let words = b.unsqueeze(words, last + 1)?;
    let places = crate::ops::shapes::creation::iota(b, SymExpr::from_i64(Dropout::KEYS))?;
    let places = b.cast(places, DType::I32)?;
    let bits = b.scalar_op(ScalarOp::Shr, &[words.into(), places.into()])?;
    let bits = b.and(bits, 1)?;
    let wide = &sizes[last] * Dropout::KEYS;
    sizes[last] = wide;
    let bits = b.reshape(bits, &sizes)?;
    let bits = b.slice(bits, last, SymExpr::ZERO, keys.clone(), 1)?;
    b.ne(bits, 0)
}

/// Scores `[b, h, lq, lk]` with the mask: minus infinity where nothing is seen.
fn masked(
    b: &mut Builder<'_>,
    scores: ValueId,
    mask: Option<ValueId>,
    causal: bool,
) -> Result<ValueId, OpError> {
    let mut s = scores;
    let dtype = b.dtype(s)?;
    if let Some(mask) = mask {
        s = if b.dtype(mask)? == DType::Bool {
            b.select(mask, s, f64::NEG_INFINITY)?
        } else {
            let mask = b.cast(mask, dtype)?;
            b.add(s, mask)?
        };
    }
    if causal {
        let sizes = b.sizes(s)?;
        let rows = crate::ops::shapes::creation::iota(b, sizes[2].clone())?;
        let columns = crate::ops::shapes::creation::iota(b, sizes[3].clone())?;
        let rows = b.unsqueeze(rows, 1)?;
        let past = b.scalar_op(ScalarOp::Le, &[Arg::Value(columns), rows.into()])?;
        s = b.select(past, s, f64::NEG_INFINITY)?;
    }
    Ok(s)
}

/// The last two dimensions exchanged.
fn transpose_last(b: &mut Builder<'_>, v: ValueId) -> Result<ValueId, OpError> {
    let rank = b.rank(v)?;
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 1, rank - 2);
    b.permute(v, &order)
}

fn product(b: &mut Builder<'_>, x: ValueId, y: ValueId) -> Result<ValueId, OpError> {
    b.call1("prims.matmul", vec![x.into(), y.into()])
}

/// `x yᵀ`.
fn matmul_transposed(b: &mut Builder<'_>, x: ValueId, y: ValueId) -> Result<ValueId, OpError> {
    let y = transpose_last(b, y)?;
    product(b, x, y)
}
