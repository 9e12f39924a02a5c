//! Scaled dot-product attention in all its argument forms, as `prims.attention` on four dimensions.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Shape, SymExpr};

use crate::ops::common::choose;
use crate::ops::gradients::attention::kept_weights;
use crate::ops::matrices::matmul::broadcast;
use crate::ops::networks::kept;
use crate::ops::shapes::shape::{self, out};
use crate::{Autocast, Builder, Call, OpDef, OpError};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[composite!(
    "aten::scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0., bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor",
    |b, c| {
        let (y, _) = attention(b, c)?;
        out(y)
    }
).autocast(Autocast::LOWER)];

/// `[…, l, d]` as `[b, h, l, d]`: leading dimensions merged or added.
fn to_rank_4(b: &mut Builder<'_>, v: ValueId) -> Result<ValueId, OpError> {
    let sizes = b.sizes(v)?;
    match sizes.len() {
        4 => Ok(v),
        n if n < 4 => {
            let ones = std::iter::repeat_n(SymExpr::ONE, 4 - n);
            b.reshape(v, &ones.chain(sizes).collect::<Shape>())
        }
        n => shape::merge_dims(b, v, 0, n - 3),
    }
}

/// The longest rows of queries, keys and values that `prims.attention` is made of. Kernels for longer ones compute the scores once for each part of
/// the result's columns, where scores are little memory beside the operands: the channels of an image that attend to one another
/// have a row for each, as long as the image has pixels.
pub const LONGEST_ATTENTION: i64 = 512;

/// Whether the rows of one of these operands are known to be longer than that.
pub fn has_long_rows(operands: [&[SymExpr]; 2], longest: i64) -> bool {
    let is_long = |s: &[SymExpr]| s.last().and_then(SymExpr::as_const).is_some_and(|n| n > longest);
    operands.into_iter().any(is_long)
}

/// The result of a call of the entry, and the logarithms of its sums `[…, l]`, which there are none of where all weights are dropped, rows
/// are long, or the program's reader knows no dropout.
pub(in crate::ops) fn attention(
    b: &mut Builder<'_>,
    c: &Call<'_>,
) -> Result<(ValueId, Option<ValueId>), OpError> {
    let (q, k, v) = (c.value("query")?, c.value("key")?, c.value("value")?);
    let (sizes_q, sizes_k, sizes_v) = (b.sizes(q)?, b.sizes(k)?, b.sizes(v)?);
    let rank = sizes_q.len();
    if rank < 2 || sizes_k.len() < 2 || sizes_v.len() < 2 {
        return Err(c.invalid("takes operands of two dimensions or more"));
    }
    let grouped = c.bool("enable_gqa")?;
    // Heads are not broadcast where groups of queries share a head of keys; they stand just before the matrices.
    let own = usize::from(grouped);
    let lead = |s: &Shape| -> Shape { s[..s.len().saturating_sub(2 + own)].iter().cloned().collect() };
    let batch = broadcast(c, &lead(&sizes_q), &broadcast(c, &lead(&sizes_k), &lead(&sizes_v))?)?;
    let wide = |s: &Shape| -> Shape { batch.iter().chain(&s[s.len() - 2 - own..]).cloned().collect() };
    let (wide_q, wide_k, wide_v) = (wide(&sizes_q), wide(&sizes_k), wide(&sizes_v));
    let depth = &sizes_q[rank - 1];
    let (q, scale) = match (c.opt_float("scale")?, depth.as_const()) {
        (Some(scale), _) => (q, scale),
        (None, Some(depth)) => (q, 1.0 / (depth as f64).sqrt()),
        (None, None) => (scaled_by_depth(b, q, depth)?, 1.0),
    };
    let p = c.float("dropout_p")?;
    if !(0.0..=1.0).contains(&p) {
        return Err(c.bad_arg("dropout_p", format!("must be in [0, 1], not {p}")));
    }
    let long = has_long_rows([&wide_q, &wide_v], LONGEST_ATTENTION);
    if p == 1.0 || p > 0.0 && b.cx().whole_scores || long {
        return Ok((through_scores(b, c, [(q, &wide_q), (k, &wide_k), (v, &wide_v)], scale)?, None));
    }
    let mask = mask(b, c, &wide_q, &wide_k)?;
    let mut operand = |v: ValueId, sizes: &Shape| {
        let v = b.expand(v, sizes)?;
        to_rank_4(b, v)
    };
    let (q4, k4, v4) = (operand(q, &wide_q)?, operand(k, &wide_k)?, operand(v, &wide_v)?);
    let (kept, factor) = match p > 0.0 {
        true => {
            let (sizes, keys) = (b.sizes(q4)?, b.sizes(k4)?[2].clone());
            (Arg::Value(kept::words_of(b, &sizes[..3], &keys, p)?), kept::factor(p))
        }
        false => (Arg::None, 1.0),
    };
    let args = vec![
        q4.into(),
        k4.into(),
        v4.into(),
        mask.map_or(Arg::None, Arg::Value),
        c.bool("is_causal")?.into(),
        scale.into(),
        kept,
        factor.into(),
    ];
    let outs = b.call("prims.attention", args)?;
    let rows = &wide_q[..wide_q.len() - 1];
    let result: Shape = rows.iter().chain(wide_v.last()).cloned().collect();
    let sums = outs.get(1).map(|sums| b.reshape(*sums, rows)).transpose()?;
    Ok((b.reshape(outs[0], &result)?, sums))
}

/// `q / sqrt(depth)`, where the head size is known only at run time.
fn scaled_by_depth(b: &mut Builder<'_>, q: ValueId, depth: &SymExpr) -> Result<ValueId, OpError> {
    let dtype = b.dtype(q)?;
    let depth =
        b.call1("prims.full", vec![Arg::List(vec![]), depth.clone().into(), dtype.compute().into()])?;
    let root = b.call1("aten.sqrt.default", vec![depth.into()])?;
    let wide = b.cast(q, dtype.compute())?;
    let scaled = b.div(wide, root)?;
    b.cast(scaled, dtype)
}

/// Attention `dropout(softmax(q k' scale + mask)) v` whose scores are in memory.
fn through_scores(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    operands: [(ValueId, &Shape); 3],
    scale: f64,
) -> Result<ValueId, OpError> {
    let heads = |s: &Shape| s.len().checked_sub(3).map(|d| s[d].clone());
    let mut wide = Vec::with_capacity(3);
    for (v, sizes) in operands {
        let v = b.expand(v, sizes)?;
        let (have, want) = (heads(sizes), heads(operands[0].1));
        wide.push(match (have.and_then(|h| h.as_const()), want.and_then(|h| h.as_const())) {
            (Some(have), Some(want)) if c.bool("enable_gqa")? && have != want && have > 0 => {
                let dim = sizes.len() as i64 - 3;
                let args = vec![v.into(), (want / have).into(), dim.into()];
                b.call1("aten.repeat_interleave.self_int", args)?
            }
            _ => v,
        });
    }
    let own = b.dtype(wide[0])?;
    let dtype = own.compute();
    // Scores and weights are rounded to 16 bits once, as operands of the second product.
    let (q, k) = (b.cast(wide[0], dtype)?, b.cast(wide[1], dtype)?);
    let keys = b.call1("aten.transpose.int", vec![k.into(), (-2i64).into(), (-1i64).into()])?;
    let scores = b.call1("aten.matmul.default", vec![q.into(), keys.into()])?;
    let mut scores = b.call1("aten.mul.Scalar", vec![scores.into(), scale.into()])?;
    if c.bool("is_causal")? {
        if c.opt_value("attn_mask")?.is_some() {
            return Err(c.invalid("`is_causal` and a mask exclude each other"));
        }
        let sizes = b.sizes(scores)?;
        let ones = b.full(&sizes[sizes.len() - 2..], true, DType::Bool)?;
        let lower = b.call1("aten.tril.default", vec![ones.into()])?;
        scores = choose(b, lower, scores, f64::NEG_INFINITY, dtype)?;
    } else if let Some(mask) = c.opt_value("attn_mask")? {
        scores = if b.dtype(mask)? == DType::Bool {
            choose(b, mask, scores, f64::NEG_INFINITY, dtype)?
        } else {
            let mask = b.cast(mask, dtype)?;
            b.call1("aten.add.Tensor", vec![scores.into(), mask.into()])?
        };
    }
    let weights = b.call1("aten._safe_softmax.default", vec![scores.into(), (-1i64).into()])?;
    let p = c.float("dropout_p")?;
    let kept = if p == 1.0 {
        b.call1("aten.dropout.default", vec![weights.into(), p.into(), true.into()])?
    } else if p == 0.0 {
        weights
    } else {
        let sizes = b.sizes(weights)?;
        let [rows @ .., keys] = &sizes[..] else { return Err(c.invalid("has no keys")) };
        let words = kept::words_of(b, rows, keys, p)?;
        let kept = kept_weights(b, words, &sizes)?;
        let factors = choose(b, kept, kept::factor(p), 0.0, dtype)?;
        b.mul(weights, factors)?
    };
    let kept = b.cast(kept, own)?;
    b.call1("aten.matmul.default", vec![kept.into(), wide[2].into()])
}

/// The mask with four dimensions that broadcast to `[b, h, lq, lk]`.
pub(in crate::ops) fn mask(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    sizes_q: &Shape,
    sizes_k: &Shape,
) -> Result<Option<ValueId>, OpError> {
    let Some(mask) = c.opt_value("attn_mask")? else { return Ok(None) };
    if c.bool("is_causal")? {
        return Err(c.invalid("`is_causal` and a mask exclude each other"));
    }
    let dtype = b.dtype(mask)?;
    let want = b.dtype(c.value("query")?)?;
    let mask = if dtype == DType::Bool { mask } else { b.cast(mask, want)? };
    let have = b.sizes(mask)?;
    let rank = sizes_q.len();
    if have.len() <= 4 && rank <= 4 {
        return to_rank_4(b, mask).map(Some);
    }
    // Merged leading dimensions need their full sizes.
    let mut full: Shape = sizes_q[..rank - 1].iter().cloned().collect();
    full.push(sizes_k[sizes_k.len() - 2].clone());
    let mask = b.expand(mask, &full)?;
    to_rank_4(b, mask).map(Some)
}
