//! Losses of class scores against class numbers, and distances and losses of whole vectors.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Scalar, SymExpr};
use kernel_ir::ReduceOp;

use crate::ops::common::{choose, count_of, one, want_inexact, widen};
use crate::ops::networks::loss::{Reduction, hinge};
use crate::ops::reductions::reduction::count_arg;
use crate::ops::reductions::statistics::norm_of;
use crate::promotion::Promote;
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::nll_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, SymInt ignore_index=-100) -> Tensor",
        nll_loss
    ).autocast(Autocast::FLOAT32),
    composite!(
        "aten::nll_loss2d(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, SymInt ignore_index=-100) -> Tensor",
        nll_loss
    ).autocast(Autocast::FLOAT32),
    composite!(
        "aten::nll_loss_nd(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, SymInt ignore_index=-100) -> Tensor",
        nll_loss
    ).autocast(Autocast::FLOAT32),
    composite!(
        "aten::cross_entropy_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, SymInt ignore_index=-100, float label_smoothing=0.) -> Tensor",
        cross_entropy
    ).autocast(Autocast::FLOAT32),
    composite!(
        "aten::multi_margin_loss(Tensor self, Tensor target, Scalar p=1, Scalar margin=1, Tensor? weight=None, int reduction=1) -> Tensor",
        multi_margin
    ).autocast(Autocast::FLOAT32),
    composite!(
        "aten::multilabel_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor",
        multilabel_margin
    ).autocast(Autocast::FLOAT32),
    composite!(
        "aten::pairwise_distance(Tensor x1, Tensor x2, float p=2., float eps=9.9999999999999995e-07, bool keepdim=False) -> Tensor",
        pairwise_distance
    ).autocast(Autocast::FLOAT32_ON_GPU),
    composite!(
        "aten::cosine_similarity(Tensor x1, Tensor x2, int dim=1, float eps=1e-08) -> Tensor",
        cosine_similarity
    ).autocast(Autocast::FLOAT32_ON_GPU),
    composite!(
        "aten::cosine_embedding_loss(Tensor input1, Tensor input2, Tensor target, float margin=0., int reduction=1) -> Tensor",
        cosine_embedding
    ).autocast(Autocast::FLOAT32),
    composite!(
        "aten::triplet_margin_loss(Tensor anchor, Tensor positive, Tensor negative, float margin=1., float p=2., float eps=9.9999999999999995e-07, bool swap=False, int reduction=1) -> Tensor",
        triplet_margin
    ).autocast(Autocast::FLOAT32),
    composite!("aten::cdist(Tensor x1, Tensor x2, float p=2., int? compute_mode=None) -> Tensor", cdist).autocast(Autocast::FLOAT32),
    composite!("aten::_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor", cdist),
    composite!("aten::_euclidean_dist(Tensor x1, Tensor x2) -> Tensor", |b, c| b
        .call("aten.cdist.default", vec![c.arg("x1").clone(), c.arg("x2").clone()])),
    composite!("aten::pdist(Tensor self, float p=2.) -> Tensor", pdist).autocast(Autocast::FLOAT32_ON_GPU),
    composite!("aten::_pdist_forward(Tensor self, float p=2.) -> Tensor", pdist),
];

/// The dimension of the classes: the first of one sample, else the second.
fn class_dim(b: &Builder<'_>, x: ValueId) -> Result<usize, OpError> {
    Ok(usize::from(b.rank(x)? > 1))
}

/// Class numbers with those that are ignored replaced by 0.
struct Targets {
    /// Which count.
    valid: ValueId,
    /// Class numbers.
    class: ValueId,
    /// Weight of each, 0 where ignored, in the dtype of arithmetic.
    weight: ValueId,
}

fn targets(b: &mut Builder<'_>, c: &Call<'_>, target: ValueId, dtype: DType) -> Result<Targets, OpError> {
    let target = b.cast(target, DType::I64)?;
    let valid = b.ne(target, c.arg("ignore_index").clone())?;
    let class = b.select(valid, target, 0i64)?;
    let weight = match c.opt_value("weight")? {
        Some(w) => {
            let w = b.cast(w, dtype)?;
            let taken = take(b, w, class)?;
            b.select(valid, taken, 0.0)?
        }
        None => b.cast(valid, dtype)?,
    };
    Ok(Targets { valid, class, weight })
}

/// Elements of a vector by number.
fn take(b: &mut Builder<'_>, vector: ValueId, index: ValueId) -> Result<ValueId, OpError> {
    b.call1("prims.index", vec![vector.into(), Arg::values([index]), 0i64.into()])
}

/// The scores of the target classes.
fn pick(b: &mut Builder<'_>, x: ValueId, class: ValueId) -> Result<ValueId, OpError> {
    let dim = class_dim(b, x)?;
    let wide = b.unsqueeze(class, dim)?;
    let picked = b.call1("prims.gather", vec![x.into(), (dim as i64).into(), wide.into()])?;
    let sizes = b.sizes(class)?;
    b.reshape(picked, &sizes)
}

/// `-weight[y] * x[y]`; the mean is over the weights.
fn nll_loss(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dtype = b.dtype(x)?;
    want_inexact(c, dtype)?;
    let wide = widen(b, x)?;
    let out = nll_of(b, c, wide)?;
    one(b.cast(out, dtype)?)
}

fn nll_of(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId) -> Result<ValueId, OpError> {
    let dtype = b.dtype(x)?;
    let t = targets(b, c, c.value("target")?, dtype)?;
    let picked = pick(b, x, t.class)?;
    let product = b.mul(picked, t.weight)?;
    let loss = b.neg(product)?;
    // An ignored class may have an infinite score.
    let loss = b.select(t.valid, loss, 0.0)?;
    weighted_mean(b, Reduction::of(c)?, loss, t.weight)
}

/// The mean divides by the sum of the weights.
fn weighted_mean(
    b: &mut Builder<'_>,
    reduction: Reduction,
    loss: ValueId,
    weight: ValueId,
) -> Result<ValueId, OpError> {
    if reduction != Reduction::Mean {
        return reduction.apply(b, loss);
    }
    let (sum, total) = (Reduction::Sum.apply(b, loss)?, Reduction::Sum.apply(b, weight)?);
    b.div(sum, total)
}

fn cross_entropy(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (x, target) = (c.value("self")?, c.value("target")?);
    let dtype = b.dtype(x)?;
    want_inexact(c, dtype)?;
    let dim = class_dim(b, x)?;
    let wide = widen(b, x)?;
    let log = b.call1("aten.log_softmax.int", vec![wide.into(), (dim as i64).into()])?;
    let smoothing = c.float("label_smoothing")?;
    let out = if b.dtype(target)?.is_inexact() {
        probabilities(b, c, log, target, dim)?
    } else if smoothing > 0.0 {
        smoothed(b, c, log, dim, smoothing)?
    } else {
        nll_of(b, c, log)?
    };
    one(b.cast(out, dtype)?)
}

/// `weight` in a shape that broadcasts to scores.
fn class_weight(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    x: ValueId,
    dim: usize,
) -> Result<Option<ValueId>, OpError> {
    let Some(weight) = c.opt_value("weight")? else { return Ok(None) };
    let meta = b.meta(x)?;
    let (dtype, rank) = (meta.dtype, meta.rank());
    let mut sizes = vec![SymExpr::ONE; rank];
    sizes[dim] = meta.sizes[dim].clone();
    let weight = b.cast(weight, dtype)?;
    Ok(Some(b.reshape(weight, &sizes)?))
}

/// Targets are probabilities of all classes. The mean is over samples, not weights.
fn probabilities(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    log: ValueId,
    target: ValueId,
    dim: usize,
) -> Result<ValueId, OpError> {
    let dtype = b.dtype(log)?;
    let mut target = b.cast(target, dtype)?;
    let smoothing = c.float("label_smoothing")?;
    if smoothing > 0.0 {
        let classes = count_arg(count_of(b, log, &[dim])?, dtype);
        let kept = b.mul(target, 1.0 - smoothing)?;
        // A 0-dim tensor, so that a symbolic number of classes works too.
        let share = b.full(&[], smoothing, dtype)?;
        let share = b.div(share, classes)?;
        target = b.add(kept, share)?;
    }
    let mut product = b.mul(log, target)?;
    if let Some(weight) = class_weight(b, c, log, dim)? {
        product = b.mul(product, weight)?;
    }
    let sum = b.reduce(ReduceOp::Sum, product, &[dim], false)?;
    let loss = b.neg(sum)?;
    Reduction::of(c)?.apply(b, loss)
}

/// `(1 - s)` of the loss and `s / classes` of the sum of all classes' losses.
fn smoothed(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    log: ValueId,
    dim: usize,
    smoothing: f64,
) -> Result<ValueId, OpError> {
    let dtype = b.dtype(log)?;
    let nll = nll_of(b, c, log)?;
    let t = targets(b, c, c.value("target")?, dtype)?;
    let weighted = match class_weight(b, c, log, dim)? {
        Some(weight) => b.mul(log, weight)?,
        None => log,
    };
    let sum = b.reduce(ReduceOp::Sum, weighted, &[dim], false)?;
    let all = b.neg(sum)?;
    let all = b.select(t.valid, all, 0.0)?;
    let all = weighted_mean(b, Reduction::of(c)?, all, t.weight)?;
    let classes = count_arg(count_of(b, log, &[dim])?, dtype);
    let share = b.mul(all, smoothing)?;
    let share = b.div(share, classes)?;
    let kept = b.mul(nll, 1.0 - smoothing)?;
    b.add(kept, share)
}

/// `sum over j ≠ y of weight[y] max(0, margin - x[y] + x[j])^p / classes`.
fn multi_margin(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dtype = b.dtype(x)?;
    let mut x = widen(b, x)?;
    if b.rank(x)? == 0 {
        x = b.reshape(x, &[SymExpr::ONE])?;
    }
    let dim = class_dim(b, x)?;
    let wide = b.dtype(x)?;
    let target = c.value("target")?;
    // One sample may have a target of one element.
    let target = if dim == 0 { b.reshape(target, &[])? } else { target };
    let picked = pick(b, x, target)?;
    let picked = b.unsqueeze(picked, dim)?;
    let d = b.sub(x, picked)?;
    let mut loss = hinge(b, d, c.float("margin")?)?;
    if c.float("p")? == 2.0 {
        loss = b.mul(loss, loss)?;
    }
    if let Some(weight) = c.opt_value("weight")? {
        let weight = b.cast(weight, wide)?;
        let weight = take(b, weight, target)?;
        let weight = b.unsqueeze(weight, dim)?;
        loss = b.mul(loss, weight)?;
    }
    let classes = b.meta(x)?.sizes[dim].clone();
    let number = crate::ops::shapes::creation::iota(b, classes.clone())?;
    let own = b.unsqueeze(target, dim)?;
    let is_own = b.eq(number, own)?;
    let loss = choose(b, is_own, 0.0, loss, wide)?;
    let sum = b.reduce(ReduceOp::Sum, loss, &[dim], false)?;
    let mean = b.div(sum, count_arg(classes, wide))?;
    let out = Reduction::of(c)?.apply(b, mean)?;
    one(b.cast(out, dtype)?)
}

/// Targets of a row are the class numbers before its first -1:
/// `sum over targets y and others i of max(0, 1 - x[y] + x[i]) / classes`.
fn multilabel_margin(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (x, target) = (c.value("self")?, c.value("target")?);
    let dtype = b.dtype(x)?;
    let mut x = widen(b, x)?;
    let mut target = target;
    if b.rank(x)? == 0 {
        x = b.reshape(x, &[SymExpr::ONE])?;
        target = b.reshape(target, &[SymExpr::ONE])?;
    }
    let (wide, rank) = (b.dtype(x)?, b.rank(x)?);
    let dim = rank - 1;
    let there = b.ge(target, 0i64)?;
    let there = b.cast(there, DType::I64)?;
    let there = b.call1("prims.cummin", vec![there.into(), (dim as i64).into()])?;
    let valid = b.cast(there, DType::Bool)?;
    let classes = b.meta(x)?.sizes[dim].clone();
    // After the first -1 numbers mean nothing, but out of range they are wrong all the same.
    let end = b.eq(target, -1i64)?;
    let class = b.select(end, 0i64, target)?;
    let class = b.call1("prims.check", vec![class.into(), classes.clone().into(), (dim as i64).into()])?;
    let class = b.select(valid, class, 0i64)?;
    let picked = b.call1("prims.gather", vec![x.into(), (dim as i64).into(), class.into()])?;
    // Rows over the targets, columns over the classes.
    let number = crate::ops::shapes::creation::iota(b, classes.clone())?;
    let [valid, class, picked] = {
        let mut columns = [valid, class, picked];
        for v in &mut columns {
            *v = b.unsqueeze(*v, rank)?;
        }
        columns
    };
    let same = b.eq(class, number)?;
    let same = b.and(same, valid)?;
    let is_target = b.reduce(ReduceOp::Any, same, &[dim], true)?;
    let is_other = b.not(is_target)?;
    let scores = b.unsqueeze(x, dim)?;
    let d = b.sub(scores, picked)?;
    let loss = hinge(b, d, 1.0)?;
    let counts = b.and(valid, is_other)?;
    let loss = choose(b, counts, loss, 0.0, wide)?;
    let sum = b.reduce(ReduceOp::Sum, loss, &[dim, rank], false)?;
    let mean = b.div(sum, count_arg(classes, wide))?;
    let out = Reduction::of(c)?.apply(b, mean)?;
    one(b.cast(out, dtype)?)
}

/// Two tensors of one float dtype, in the dtype of arithmetic, and that dtype before widening.
fn float_pair(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    x: &str,
    y: &str,
) -> Result<(ValueId, ValueId, DType), OpError> {
    let (operands, _) = b.promote(&[c.arg(x).clone(), c.arg(y).clone()], Promote::IntToFloat)?;
    let [Arg::Value(x), Arg::Value(y)] = operands[..] else { return Err(c.bad_arg(x, "must be a tensor")) };
    let dtype = b.dtype(x)?;
    Ok((widen(b, x)?, widen(b, y)?, dtype))
}

/// `|x1 - x2 + eps|_p` along the last dimension.
fn pairwise_distance(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (x, y, dtype) = float_pair(b, c, "x1", "x2")?;
    let out = distance_of(b, x, y, c.float("p")?, c.float("eps")?, c.bool("keepdim")?)?;
    one(b.cast(out, dtype.to_real())?)
}

fn distance_of(
    b: &mut Builder<'_>,
    x: ValueId,
    y: ValueId,
    p: f64,
    eps: f64,
    keepdim: bool,
) -> Result<ValueId, OpError> {
    let d = b.sub(x, y)?;
    let dtype = b.dtype(d)?;
    let d = b.add(d, Scalar::Float(eps).to_class_of(dtype))?;
    let last = b.rank(d)?.saturating_sub(1);
    let dims: Vec<usize> = (0..b.rank(d)?).filter(|&d| d == last).collect();
    norm_of(b, d, p, &dims, keepdim)
}

/// `x1 · x2 / (max(|x1|, eps) max(|x2|, eps))`.
fn cosine_similarity(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (x, y, dtype) = float_pair(b, c, "x1", "x2")?;
    let sizes = b.broadcast_sizes(&[x, y])?;
    let dim = c.dim(c.int("dim")?, sizes.len())?;
    let dims: Vec<usize> = (0..sizes.len()).filter(|&d| d == dim).collect();
    let mut units = [x, y];
    for v in &mut units {
        let full = b.expand(*v, &sizes)?;
        let norm = norm_of(b, full, 2.0, &dims, true)?;
        let safe = b.maximum(norm, c.float("eps")?)?;
        *v = b.div(full, safe)?;
    }
    let product = b.mul(units[0], units[1])?;
    let sum = b.reduce(ReduceOp::Sum, product, &dims, false)?;
    one(b.cast(sum, dtype)?)
}

/// `1 - cos` where the target is 1, `max(0, cos - margin)` where it is -1.
fn cosine_embedding(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (x, y, dtype) = float_pair(b, c, "input1", "input2")?;
    let dim = b.rank(x)?.saturating_sub(1).min(1);
    let dot = |b: &mut Builder<'_>, x: ValueId, y: ValueId| {
        let product = b.mul(x, y)?;
        b.reduce(ReduceOp::Sum, product, &[dim], false)
    };
    let (xy, xx, yy) = (dot(b, x, y)?, dot(b, x, x)?, dot(b, y, y)?);
    // 1e-12 keeps the quotient finite, as PyTorch has it.
    let (xx, yy) = (b.add(xx, 1e-12)?, b.add(yy, 1e-12)?);
    let square = b.mul(xx, yy)?;
    let root = b.sqrt(square)?;
    let cos = b.div(xy, root)?;
    let apart = b.sub(1.0, cos)?;
    let near = hinge(b, cos, -c.float("margin")?)?;
    let target = c.value("target")?;
    let wide = b.dtype(cos)?;
    let target = b.cast(target, wide)?;
    let (is_one, is_minus) = (b.eq(target, 1.0)?, b.eq(target, -1.0)?);
    let near = b.select(is_minus, near, 0.0)?;
    let loss = b.select(is_one, apart, near)?;
    let out = Reduction::of(c)?.apply(b, loss)?;
    one(b.cast(out, dtype)?)
}

/// `max(0, margin + |a - p| - |a - n|)`; `swap` takes `|p - n|` where it is smaller.
fn triplet_margin(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (anchor, positive, dtype) = float_pair(b, c, "anchor", "positive")?;
    let (negative, _, _) = float_pair(b, c, "negative", "positive")?;
    let (p, eps) = (c.float("p")?, c.float("eps")?);
    let near = distance_of(b, anchor, positive, p, eps, false)?;
    let mut far = distance_of(b, anchor, negative, p, eps, false)?;
    if c.bool("swap")? {
        let other = distance_of(b, positive, negative, p, eps, false)?;
        far = b.minimum(far, other)?;
    }
    let d = b.sub(near, far)?;
    let loss = hinge(b, d, c.float("margin")?)?;
    let out = Reduction::of(c)?.apply(b, loss)?;
    one(b.cast(out, dtype.to_real())?)
}

/// p-distances of all rows of `x1` `[…, n, k]` to all rows of `x2` `[…, m, k]`.
fn cdist(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (x, y, dtype) = float_pair(b, c, "x1", "x2")?;
    let (rx, ry) = (b.rank(x)?, b.rank(y)?);
    if rx < 2 || ry < 2 {
        return Err(c.invalid("takes matrices"));
    }
    let (x, y) = (b.unsqueeze(x, rx - 1)?, b.unsqueeze(y, ry - 2)?);
    let d = b.sub(x, y)?;
    let last = b.rank(d)? - 1;
    let out = norm_of(b, d, c.float("p")?, &[last], false)?;
    one(b.cast(out, dtype)?)
}

/// p-distances of all pairs of rows, i < j, row by row.
fn pdist(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let Some(n) = b.sizes(x)?.first().and_then(SymExpr::as_const) else {
        return Err(c.unsupported("a symbolic number of rows"));
    };
    let dtype = b.dtype(x)?;
    let pairs = b.call1("aten.triu_indices.default", vec![n.into(), n.into(), 1i64.into()])?;
    let count = SymExpr::from_i64(n * (n - 1).max(0) / 2);
    let wide = widen(b, x)?;
    let mut sides = [wide, wide];
    for (i, side) in sides.iter_mut().enumerate() {
        let row = b.slice(pairs, 0, SymExpr::from_i64(i as i64), SymExpr::ONE, 1)?;
        let row = b.reshape(row, std::slice::from_ref(&count))?;
        *side = take(b, wide, row)?;
    }
    let d = b.sub(sides[0], sides[1])?;
    let out = norm_of(b, d, c.float("p")?, &[1], false)?;
    one(b.cast(out, dtype)?)
}
