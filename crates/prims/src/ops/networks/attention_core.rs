//! The forms of attention that ATen dispatches to: with the log-sum-exp or the weights as additional
//! results, and the fused layers that `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` call in evaluation.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Shape, SymExpr};
use smallvec::smallvec;

use crate::ops::common::{choose, one, widen};
use crate::ops::gradients::attention::{deltas, gradients};
use crate::ops::networks::attention::mask;
use crate::ops::shapes::shape;
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs, lookup};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p=0., bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)",
        |b, c| {
            let (y, sums) = attend(b, c, c.arg("attn_mask"))?;
            Ok(smallvec![y, sums])
        }
    ),
    composite!(
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)",
        attend_backward
    ),
    composite!(
        "aten::_scaled_dot_product_efficient_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_bias, bool compute_log_sumexp, float dropout_p=0., bool is_causal=False, *, float? scale=None) -> (Tensor output, Tensor log_sumexp, Tensor philox_seed, Tensor philox_offset)",
        efficient
    ),
    composite!(
        "aten::_scaled_dot_product_attention_math(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0., bool is_causal=False, Tensor? dropout_mask=None, *, float? scale=None, bool enable_gqa=False) -> (Tensor, Tensor)",
        math
    ),
    composite!(
        "aten::_transform_bias_rescale_qkv(Tensor qkv, Tensor qkv_bias, int num_heads) -> (Tensor, Tensor, Tensor)",
        |b, c| {
            let heads = c.int("num_heads")?;
            let [q, k, v] = split_heads(b, c, c.value("qkv")?, c.value("qkv_bias")?, heads)?;
            let depth = shape::known(c, &b.sizes(q)?[3].clone(), "head size")?;
            let q = b.mul(q, 1.0 / (depth as f64).sqrt())?;
            Ok(smallvec![q, k, v])
        }
    ),
    composite!(
        "aten::_native_multi_head_attention(Tensor query, Tensor key, Tensor value, int embed_dim, int num_head, Tensor qkv_weight, Tensor qkv_bias, Tensor proj_weight, Tensor proj_bias, Tensor? mask=None, bool need_weights=True, bool average_attn_weights=True, int? mask_type=None) -> (Tensor, Tensor)",
        |b, c| {
            let q = c.value("query")?;
            let operands = [q, c.value("key")?, c.value("value")?];
            let (y, weights) = projected_attention(b, c, operands, c.int("num_head")?)?;
            let weights = match (c.bool("need_weights")?, c.bool("average_attn_weights")?) {
                (false, _) => b.full(&[SymExpr::ZERO], 0i64, b.dtype(q)?)?,
                (true, false) => weights,
                (true, true) => {
                    b.call1("aten.mean.dim", vec![weights.into(), [1i64].as_slice().into(), false.into()])?
                }
            };
            Ok(smallvec![y, weights])
        }
    ).autocast(Autocast::LOWER_ON_CPU),
    composite!(
        "aten::_transformer_encoder_layer_fwd(Tensor src, int embed_dim, int num_heads, Tensor qkv_weight, Tensor qkv_bias, Tensor proj_weight, Tensor proj_bias, bool use_gelu, bool norm_first, float eps, Tensor norm_weight_1, Tensor norm_bias_1, Tensor norm_weight_2, Tensor norm_bias_2, Tensor ffn_weight_1, Tensor ffn_bias_1, Tensor ffn_weight_2, Tensor ffn_bias_2, Tensor? mask=None, int? mask_type=None) -> Tensor",
        encoder_layer
    ),
];

/// Whether groups of the queries' heads share one of the keys'. The kernels behind these forms do that without being told.
fn is_grouped(b: &Builder<'_>, c: &Call<'_>) -> Result<bool, OpError> {
    let (q, k) = (b.sizes(c.value("query")?)?, b.sizes(c.value("key")?)?);
    Ok(q.len() == 4 && k.len() == 4 && q[1] != k[1])
}

/// The result, and the logarithms of the sums of the scores' exponentials.
fn attend(b: &mut Builder<'_>, c: &Call<'_>, mask: &Arg) -> Result<(ValueId, ValueId), OpError> {
    let grouped = is_grouped(b, c)?;
    let args = vec![
        c.arg("query").clone(),
        c.arg("key").clone(),
        c.arg("value").clone(),
        mask.clone(),
        c.arg("dropout_p").clone(),
        c.arg("is_causal").clone(),
        c.arg("scale").clone(),
        grouped.into(),
    ];
    let target = "aten.scaled_dot_product_attention.default";
    let op = lookup(target).ok_or_else(|| OpError::Unknown(target.into()))?;
    let (y, sums) = crate::ops::networks::attention::attention(b, &Call { op, args: &args })?;
    if let Some(sums) = sums {
        return Ok((y, sums));
    }
    let scores = scores(b, c, mask, grouped)?;
    Ok((y, b.call1("aten.logsumexp.default", vec![scores.into(), [-1i64].as_slice().into()])?))
}

/// The gradients of queries, keys and values `[B, H, L, D]` from the forward's result and its logarithms of sums.
fn attend_backward(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    if c.float("dropout_p")? != 0.0 {
        return Err(c.unsupported("dropout: its mask is not among the operands"));
    }
    let (q, k) = (c.value("query")?, c.value("key")?);
    let (sizes_q, sizes_k) = (b.sizes(q)?, b.sizes(k)?);
    if sizes_q.len() != 4 || sizes_k.len() != 4 {
        return Err(c.invalid("takes operands of four dimensions"));
    }
    let scale = match c.opt_float("scale")? {
        Some(scale) => scale,
        None => 1.0 / (shape::known(c, &sizes_q[3], "head size")? as f64).sqrt(),
    };
    let mask = mask(b, c, &sizes_q, &sizes_k)?;
    let (g, out) = (c.value("grad_out")?, c.value("out")?);
    let deltas = deltas(b, g, out, None)?;
    let wide = b.dtype(q)?.compute();
    let sums = b.cast(c.value("logsumexp")?, wide)?;
    let args = vec![
        g.into(),
        q.into(),
        k.into(),
        c.arg("value").clone(),
        sums.into(),
        deltas.into(),
        mask.map_or(Arg::None, Arg::Value),
        c.arg("is_causal").clone(),
        scale.into(),
    ];
    gradients(b, args)
}

/// `left right`, where groups of heads of `left` share one of `right` if `grouped`: their rows are rows of one matrix then.
fn by_heads(b: &mut Builder<'_>, left: ValueId, right: ValueId, grouped: bool) -> Result<ValueId, OpError> {
    let (of_left, of_right) = (b.sizes(left)?, b.sizes(right)?);
    let rank = of_left.len();
    let shared = of_right.len().checked_sub(3).map(|d| &of_right[d]);
    let Some(shared) = shared.filter(|heads| grouped && rank >= 3 && **heads != of_left[rank - 3]) else {
        return b.call1("aten.matmul.default", vec![left.into(), right.into()]);
    };
    let rest = of_left[rank - 3].modulo(shared);
    b.require_equal(&rest, &SymExpr::ZERO, |_| {
        "the heads of queries are no multiple of those of keys".into()
    })?;
    let rows = &of_left[rank - 2] * &of_left[rank - 3].floor_div(shared);
    let lead = of_left[..rank - 3].iter().cloned();
    let folded: Shape = lead.chain([shared.clone(), rows, of_left[rank - 1].clone()]).collect();
    let left = b.reshape(left, &folded)?;
    let product = b.call1("aten.matmul.default", vec![left.into(), right.into()])?;
    let columns = of_right[of_right.len() - 1].clone();
    let whole: Shape = of_left[..rank - 1].iter().cloned().chain([columns]).collect();
    b.reshape(product, &whole)
}

/// `q kᵀ scale + mask` in the dtype of arithmetic.
fn scores(b: &mut Builder<'_>, c: &Call<'_>, mask: &Arg, grouped: bool) -> Result<ValueId, OpError> {
    let (q, k) = (widen(b, c.value("query")?)?, widen(b, c.value("key")?)?);
    let rank = b.rank(q)?;
    if rank < 2 {
        return Err(c.bad_arg("query", "has too few dimensions"));
    }
    let scale = match c.opt_float("scale")? {
        Some(scale) => scale,
        None => 1.0 / (shape::known(c, &b.sizes(q)?[rank - 1].clone(), "head size")? as f64).sqrt(),
    };
    let keys = b.call1("aten.mT.default", vec![k.into()])?;
    let scores = by_heads(b, q, keys, grouped)?;
    let scores = b.mul(scores, scale)?;
    let dtype = b.dtype(scores)?;
    if c.bool("is_causal")? {
        let sizes = b.sizes(scores)?;
        let ones = b.full(&sizes[sizes.len() - 2..], true, DType::Bool)?;
        let lower = b.call1("aten.tril.default", vec![ones.into()])?;
        return choose(b, lower, scores, f64::NEG_INFINITY, dtype);
    }
    match mask {
        Arg::Value(m) if b.dtype(*m)? == DType::Bool => choose(b, *m, scores, f64::NEG_INFINITY, dtype),
        Arg::Value(m) => {
            let m = b.cast(*m, dtype)?;
            b.add(scores, m)
        }
        _ => Ok(scores),
    }
}

/// The sums are `float32`, their rows filled up to a multiple of 32 with infinities; the numbers of the random stream
/// are those of another generator and 0.
fn efficient(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let bias = c.arg("attn_bias");
    let (y, sums) = attend(b, c, bias)?;
    let sizes = b.sizes(c.value("query")?)?;
    let sums = if c.bool("compute_log_sumexp")? {
        let sums = b.cast(sums, DType::F32)?;
        let rows = &sizes[sizes.len() - 2];
        let missing = rows.ceil_div(&32.into()) * 32 - rows;
        let rank = sizes.len() - 1;
        let mut high = vec![SymExpr::ZERO; rank];
        high[rank - 1] = missing;
        shape::pad(b, sums, &vec![SymExpr::ZERO; rank], &high, &vec![0; rank], f64::INFINITY)?
    } else {
        let mut empty = sizes[..sizes.len() - 2].to_vec();
        empty.push(SymExpr::ZERO);
        b.full(&empty, 0i64, DType::F32)?
    };
    let zero = b.full(&[], 0i64, DType::I64)?;
    Ok(smallvec![y, sums, zero, zero])
}

/// Decomposed attention, with the weights after dropout.
fn math(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (q, v) = (c.value("query")?, c.value("value")?);
    let dtype = b.dtype(q)?;
    let grouped = c.bool("enable_gqa")?;
    // A mask of truth values is added like any other here.
    let mask = match c.opt_value("attn_mask")? {
        Some(mask) => Arg::Value(b.cast(mask, dtype)?),
        None => Arg::None,
    };
    let scores = scores(b, c, &mask, grouped)?;
    let weights = b.call1("aten._safe_softmax.default", vec![scores.into(), (-1i64).into()])?;
    let mut weights = b.cast(weights, dtype)?;
    let p = c.float("dropout_p")?;
    let mut values = v;
    if p > 0.0 {
        weights = match c.opt_value("dropout_mask")? {
            Some(keep) => {
                let dtype = b.dtype(v)?;
                let scaled = b.call1("aten.mul.Scalar", vec![v.into(), (1.0 / (1.0 - p)).into()])?;
                values = b.cast(scaled, dtype)?;
                choose(b, keep, weights, 0.0, b.dtype(weights)?)?
            }
            None => b.call1("aten.dropout.default", vec![weights.into(), p.into(), true.into()])?,
        };
    }
    let y = by_heads(b, weights, values, grouped)?;
    Ok(smallvec![y, weights])
}

/// `[B, T, 3 H D]` plus a bias as queries, keys and values `[B, H, T, D]`.
fn split_heads(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    qkv: ValueId,
    bias: ValueId,
    heads: i64,
) -> Result<[ValueId; 3], OpError> {
    let sizes = b.sizes(qkv)?;
    let [batch, time, width] = &sizes[..] else { return Err(c.invalid("takes [batch, time, 3 * features]")) };
    let depth = width.floor_div(&(3 * heads).into());
    let sum = b.call1("aten.add.Tensor", vec![qkv.into(), bias.into()])?;
    let parts = [batch.clone(), time.clone(), 3.into(), heads.into(), depth];
    let parts = b.reshape(sum, &parts)?;
    let parts = b.permute(parts, &[2, 0, 3, 1, 4])?;
    let mut part = |n: i64| shape::select(b, parts, 0, n.into());
    Ok([part(0)?, part(1)?, part(2)?])
}

/// Attention of `[B, T, E]` with projections in and out, and its weights `[B, H, T, S]`. Here a mask is true (or minus
/// infinity) where nothing is read: `mask_type` 0 is `[T, S]`, 1 is `[B, S]` over keys, 2 has all dimensions.
fn projected_attention(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    operands: [ValueId; 3],
    heads: i64,
) -> Result<(ValueId, ValueId), OpError> {
    let sizes = b.sizes(operands[0])?;
    let [q, k, v] = projected(b, c, operands, heads)?;
    let depth = shape::known(c, &b.sizes(q)?[3].clone(), "head size")?;
    let q = b.call1("aten.mul.Scalar", vec![q.into(), (1.0 / (depth as f64).sqrt()).into()])?;
    let keys = b.call1("aten.mT.default", vec![k.into()])?;
    let mut scores = b.call1("aten.matmul.default", vec![q.into(), keys.into()])?;
    let dtype = b.dtype(scores)?;
    if let Some(mask) = c.opt_value("mask")? {
        let have = b.sizes(mask)?;
        let mask = match (c.opt_int("mask_type")?, &have[..]) {
            (Some(1), [batch, time]) => {
                let wide = [batch.clone(), SymExpr::ONE, SymExpr::ONE, time.clone()];
                b.reshape(mask, &wide)?
            }
            _ => mask,
        };
        let hidden = b.cast(mask, DType::Bool)?;
        scores = choose(b, hidden, f64::NEG_INFINITY, scores, dtype)?;
    }
    let weights = b.call1("aten._softmax.default", vec![scores.into(), (-1i64).into(), false.into()])?;
    let y = b.call1("aten.matmul.default", vec![weights.into(), v.into()])?;
    let y = b.permute(y, &[0, 2, 1, 3])?;
    let y = b.reshape(y, &sizes)?;
    let args = vec![y.into(), c.arg("proj_weight").clone(), c.arg("proj_bias").clone()];
    Ok((b.call1("aten.linear.default", args)?, weights))
}

/// Queries, keys and values `[B, H, T, D]`. Of one tensor all three are one product.
fn projected(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    [q, k, v]: [ValueId; 3],
    heads: i64,
) -> Result<[ValueId; 3], OpError> {
    let (weight, bias) = (c.value("qkv_weight")?, c.value("qkv_bias")?);
    if k == q && v == q {
        let qkv = b.call1("aten.linear.default", vec![q.into(), weight.into()])?;
        return split_heads(b, c, qkv, bias, heads);
    }
    let width = b.sizes(weight)?[0].floor_div(&3.into());
    let mut parts = [q, k, v];
    for (n, part) in parts.iter_mut().enumerate() {
        let from = &width * n as i64;
        let weight = b.slice(weight, 0, from.clone(), width.clone(), 1)?;
        let bias = b.slice(bias, 0, from, width.clone(), 1)?;
        let y = b.call1("aten.linear.default", vec![(*part).into(), weight.into(), bias.into()])?;
        let sizes = b.sizes(y)?;
        let [batch, time, width] = &sizes[..] else {
            return Err(c.invalid("takes [batch, time, features]"));
        };
        let split = [batch.clone(), time.clone(), heads.into(), width.floor_div(&heads.into())];
        let y = b.reshape(y, &split)?;
        *part = b.permute(y, &[0, 2, 1, 3])?;
    }
    Ok(parts)
}

/// A layer of a transformer's encoder: attention and a network of two layers, each added to what it reads.
fn encoder_layer(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (x, heads, first) = (c.value("src")?, c.int("num_heads")?, c.bool("norm_first")?);
    let norm = |b: &mut Builder<'_>, v: ValueId, weight: &str, bias: &str| {
        let width: &[i64] = &[c.int("embed_dim")?];
        let args =
            vec![v.into(), width.into(), c.arg(weight).clone(), c.arg(bias).clone(), c.arg("eps").clone()];
        b.call1("aten.layer_norm.default", args)
    };
    let add =
        |b: &mut Builder<'_>, x: ValueId, y: ValueId| b.call1("aten.add.Tensor", vec![x.into(), y.into()]);
    let network = |b: &mut Builder<'_>, v: ValueId| {
        let args = vec![v.into(), c.arg("ffn_weight_1").clone(), c.arg("ffn_bias_1").clone()];
        let v = b.call1("aten.linear.default", args)?;
        let f = if c.bool("use_gelu")? { "aten.gelu.default" } else { "aten.relu.default" };
        let v = b.call1(f, vec![v.into()])?;
        b.call1(
            "aten.linear.default",
            vec![v.into(), c.arg("ffn_weight_2").clone(), c.arg("ffn_bias_2").clone()],
        )
    };
    let read = if first { norm(b, x, "norm_weight_1", "norm_bias_1")? } else { x };
    let (y, _) = projected_attention(b, c, [read; 3], heads)?;
    let mut x = add(b, x, y)?;
    if !first {
        x = norm(b, x, "norm_weight_1", "norm_bias_1")?;
    }
    let read = if first { norm(b, x, "norm_weight_2", "norm_bias_2")? } else { x };
    let y = network(b, read)?;
    let x = add(b, x, y)?;
    one(if first { x } else { norm(b, x, "norm_weight_2", "norm_bias_2")? })
}
