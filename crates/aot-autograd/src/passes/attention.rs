//! Recognises attention written as separate operators and replaces it by `prims.attention`, which keeps neither scores nor
//! weights in memory:
//!
//! ```text
//! softmax(q kᵀ [* s | / s] [+ mask …]) v  =  attention(q, k, v, mask + …, scale = s)
//! ```
//!
//! Scores that are replaced by minus infinity, or by a number that is as good, where a condition holds are masked too.
//! A factor that is a tensor and the same for all keys, such as a learned scale of each head, multiplies the queries instead. All this
//! with 16-bit floats widened for the softmax and narrowed after it, on three or four dimensions. A mask may be added to the
//! scores with their first dimension split in two, for each part of the second alone (shifted windows of an image): the parts
//! then are heads. The decomposed form stays
//! where other nodes read the weights or scores, where the weights have dropout, and where rows are long
//! ([`prims::LONGEST_ATTENTION`]). Rows in which a mask of minus infinity excludes every key are zero in the prim and `NaN` in the decomposed form, as with PyTorch's own rewriting.

use fx_ir::{Arg, Graph, ValueId};
use ir_core::{DType, Scalar, Shape, SymExpr};
use kernel_ir::ScalarOp;
use prims::{Builder, OpError};

use super::masks::HIDES;
use super::matching::{def, def_of, sizes, through, uniform};
use super::rewrite::{Rule, Site, apply};
use super::{PassCx, Stats};

const RULES: &[Rule] = &[attention];

/// Finds every attention.
pub(super) fn run(graph: &mut Graph, cx: &PassCx) -> Stats {
    apply(graph, cx, RULES)
}

/// The parts of a decomposed attention.
struct Parts {
    q: ValueId,
    /// Transposed.
    kt: ValueId,
    v: ValueId,
    added: Added,
    scale: f64,
    /// Factors of the scores, the same for all keys: tensors that broadcast with the scores, whose last dimension has size 1.
    factors: Vec<ValueId>,
}

/// What is added to the scores.
#[derive(Default)]
struct Added {
    /// Masks with all dimensions of the scores, some of them 1.
    masks: Vec<ValueId>,
    hidden: Vec<Hidden>,
    windows: Option<Windows>,
}

/// Scores that are replaced.
struct Hidden {
    /// Truth values with all dimensions of the scores, some of them 1.
    condition: ValueId,
    /// Which of them hide a score.
    when: bool,
    /// Minus infinity, or a number beside which any score is lost.
    by: f64,
}

/// What stands for such a number where it is the only mask: any score is lost beside it, so that in a row without a shown key all weights
/// are the same, as if it replaced them.
const FAINT: f64 = -1e30;
/// Beside a number of at most this any score is lost.
const LOSES: f64 = -1e20;
/// The least finite number of `bf16`.
const LEAST_BF16: f64 = -3.3895313892515355e38;

/// A mask `[1, windows, heads, rows, keys]` (the last three may be 1) on scores whose first dimension is `batch` times `windows`.
struct Windows {
    mask: ValueId,
    batch: SymExpr,
    count: SymExpr,
}

fn attention(b: &mut Builder<'_>, site: &Site<'_>) -> Result<Option<ValueId>, OpError> {
    if site.call.op.target != "prims.matmul" || !site.meta.dtype.is_float() {
        return Ok(None);
    }
    let Some(parts) = parts(b.graph(), site) else { return Ok(None) };
    let rank = site.meta.rank();
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 1, rank - 2);
    let k = b.permute(parts.kt, &order)?;
    let q = scaled_queries(b, &parts)?;
    let windows = parts.added.windows.as_ref();
    let mut four = |v: ValueId| {
        let mut sizes: Shape = b.sizes(v)?;
        match windows {
            Some(w) => {
                sizes[0] = w.batch.clone();
                sizes[1] = &sizes[1] * &w.count;
            }
            None if sizes.len() == 3 => sizes.insert(1, SymExpr::ONE),
            None => {}
        }
        b.reshape(v, &sizes)
    };
    let (q, k, v) = (four(q)?, four(k)?, four(parts.v)?);
    let mask = mask(b, &parts.added, parts.q)?;
    let args = vec![
        q.into(),
        k.into(),
        v.into(),
        mask.map_or(Arg::None, Arg::Value),
        false.into(),
        parts.scale.into(),
    ];
    let y = b.call1("prims.attention", args)?;
    b.reshape(y, &site.meta.sizes).map(Some)
}

/// The queries times the factors of their scores, in what 16-bit floats are computed in.
fn scaled_queries(b: &mut Builder<'_>, parts: &Parts) -> Result<ValueId, OpError> {
    if parts.factors.is_empty() {
        return Ok(parts.q);
    }
    let (dtype, sizes) = (b.dtype(parts.q)?, b.sizes(parts.q)?);
    let mut q = b.cast(parts.q, dtype.compute())?;
    for &factor in &parts.factors {
        let wide = b.cast(factor, dtype.compute())?;
        let wide = b.expand(wide, &sizes)?;
        q = b.mul(q, wide)?;
    }
    b.cast(q, dtype)
}

/// The sum of the masks, of four dimensions. `q` tells the number of heads.
fn mask(b: &mut Builder<'_>, added: &Added, q: ValueId) -> Result<Option<ValueId>, OpError> {
    if let ([], [only], None) = (&added.masks[..], &added.hidden[..], &added.windows)
        && only.by == f64::NEG_INFINITY
    {
        let shown = shown(b, only)?;
        let mut sizes: Shape = b.sizes(shown)?;
        while sizes.len() < 4 {
            sizes.insert(1, SymExpr::ONE);
        }
        return b.reshape(shown, &sizes).map(Some);
    }
    let mut masks = Vec::new();
    let whole = if added.windows.is_some() { 5 } else { 4 };
    // A bias that was added in a wider dtype is not rounded: those that grow with the distance of query and key would lose whole
    // units. What only hides fits either.
    let own = b.dtype(q)?;
    let added_in = |m: &ValueId| b.dtype(*m);
    let given = added.masks.iter().chain(added.windows.as_ref().map(|w| &w.mask)).map(added_in);
    let given = given.collect::<Result<Vec<DType>, OpError>>()?;
    let dtype = if given.iter().all(|d| *d == own) { own } else { own.compute() };
    let replaced = added.hidden.iter().map(|hidden| replaced(b, hidden, dtype));
    let replaced = replaced.collect::<Result<Vec<ValueId>, OpError>>()?;
    for &mask in added.masks.iter().chain(&replaced) {
        let mut sizes: Shape = b.sizes(mask)?;
        while sizes.len() < whole {
            sizes.insert(1, SymExpr::ONE);
        }
        masks.push(b.reshape(mask, &sizes)?);
    }
    let mut all = Shape::new();
    if let Some(windows) = &added.windows {
        masks.push(windows.mask);
        let heads = b.sizes(q)?[1].clone();
        all = [SymExpr::ONE, windows.count.clone(), heads, SymExpr::ONE, SymExpr::ONE].into_iter().collect();
    }
    let Some((&first, others)) = masks.split_first() else { return Ok(None) };
    for &mask in &masks {
        let sizes: Shape = b.sizes(mask)?;
        all.resize(sizes.len(), SymExpr::ONE);
        for (size, own) in all.iter_mut().zip(sizes).filter(|(_, own)| *own != SymExpr::ONE) {
            *size = own;
        }
    }
    let mut sum = b.cast(first, dtype)?;
    if !others.is_empty() {
        sum = b.expand(sum, &all)?;
    }
    for &other in others {
        let other = b.cast(other, dtype)?;
        let other = b.expand(other, &all)?;
        sum = b.add(sum, other)?;
    }
    if added.windows.is_some() {
        let sum_of_all = b.expand(sum, &all)?;
        let heads = &all[1] * &all[2];
        sum = b.reshape(sum_of_all, &[SymExpr::ONE, heads, all[3].clone(), all[4].clone()])?;
    }
    Ok(Some(sum))
}

/// The truth values that show scores.
fn shown(b: &mut Builder<'_>, hidden: &Hidden) -> Result<ValueId, OpError> {
    if hidden.when { b.not(hidden.condition) } else { Ok(hidden.condition) }
}

/// What hides scores, as a mask that is added.
fn replaced(b: &mut Builder<'_>, hidden: &Hidden, dtype: DType) -> Result<ValueId, OpError> {
    let shown = shown(b, hidden)?;
    let zero = b.full(&[], Scalar::zero(dtype), dtype)?;
    let by = b.full(&[], Scalar::from(hidden.by), dtype)?;
    b.select(shown, zero, by)
}

/// The parts, where the product is one of weights and values.
fn parts(graph: &Graph, site: &Site<'_>) -> Option<Parts> {
    let (weights, v) = (site.call.value("a").ok()?, site.call.value("b").ok()?);
    let rank = site.meta.rank();
    if !(3..=4).contains(&rank) || !site.reads_alone(weights) {
        return None;
    }
    let narrow =
        through(graph, weights, "prims.convert").filter(|&w| site.reads_alone(w) && widened(graph, w));
    let scores = softmax(graph, narrow.unwrap_or(weights))?;
    let (mut at, mut added, mut scale) = (unwidened(graph, scores), Added::default(), 1.0);
    loop {
        if let Some((inner, mask)) = masked(graph, at) {
            added.masks.push(mask_operand(graph, mask, rank)?);
            at = inner;
        } else if let Some((inner, hidden)) = hidden(graph, at, rank, site) {
            added.hidden.push(hidden);
            at = inner;
        } else if let Some((inner, windows)) = windowed(graph, at).filter(|_| added.windows.is_none()) {
            added.windows = Some(windows);
            at = inner;
        } else {
            break;
        }
    }
    settle(&mut added, site)?;
    // What is added for each window is the same for all of the batch.
    let repeated = |m: &ValueId| sizes(graph, *m).is_some_and(|s| s[0] == SymExpr::ONE);
    let mut masks = added.masks.iter().chain(added.hidden.iter().map(|h| &h.condition));
    if added.windows.is_some() && !(rank == 4 && masks.all(repeated)) {
        return None;
    }
    let mut factors = Vec::new();
    loop {
        if let Some((inner, factor)) = scaled(graph, at, site) {
            (at, scale) = (inner, scale * factor);
        } else if let Some((inner, factor)) = scaled_by_tensor(graph, at, rank) {
            factors.push(factor);
            at = inner;
        } else {
            break;
        }
    }
    let product = unwidened(graph, at);
    // The softmax reads its operand twice: for the largest score and for the differences from it.
    let reads = if product == scores { 2 } else { 1 };
    let call = def_of(graph, product, "prims.matmul").filter(|_| site.reads(product) <= reads)?;
    let (q, kt) = (call.value("a").ok()?, call.value("b").ok()?);
    // Of long rows the decomposed form is the better one.
    if prims::has_long_rows([sizes(graph, q)?, sizes(graph, v)?], prims::LONGEST_ATTENTION) {
        return None;
    }
    let dtypes = [q, kt, v].map(|v| graph.meta(v).map(|m| m.dtype));
    (dtypes.iter().all(|d| *d == Some(site.meta.dtype))).then_some(Parts { q, kt, v, added, scale, factors })
}

/// Whether a value is what 16-bit floats are computed in.
fn widened(graph: &Graph, v: ValueId) -> bool {
    graph.meta(v).is_some_and(|m| m.dtype == DType::F32)
}

/// The 16-bit floats that a value widens, or itself.
fn unwidened(graph: &Graph, v: ValueId) -> ValueId {
    let narrow = |x: ValueId| graph.meta(x).is_some_and(|m| m.dtype.compute() != m.dtype);
    through(graph, v, "prims.convert").filter(|&x| narrow(x) && widened(graph, v)).unwrap_or(v)
}

/// The operand of the softmax over the last dimension: `e / sum(e)` with `e = exp(x - max(x))`.
fn softmax(graph: &Graph, weights: ValueId) -> Option<ValueId> {
    let quotient = def_of(graph, weights, "prims.div")?;
    let (e, sum) = (quotient.value("a").ok()?, quotient.value("b").ok()?);
    if reduced(graph, sum, "prims.sum")? != e {
        return None;
    }
    let moved = def_of(graph, through(graph, e, "prims.exp")?, "prims.sub")?;
    let (x, max) = (moved.value("a").ok()?, moved.value("b").ok()?);
    (reduced(graph, max, "prims.amax")? == x).then_some(x)
}

/// The operand of the reduction over the last dimension that a value broadcasts back.
fn reduced(graph: &Graph, v: ValueId, target: &str) -> Option<ValueId> {
    let kept = through(graph, v, "prims.expand").unwrap_or(v);
    let kept = through(graph, kept, "prims.detach").unwrap_or(kept);
    let flat = through(graph, kept, "prims.reshape").unwrap_or(kept);
    let call = def_of(graph, flat, target)?;
    let source = call.value("a").ok()?;
    let (from, kept) = (sizes(graph, source)?, sizes(graph, kept)?);
    let last = from.len().checked_sub(1)?;
    let over_last = matches!(call.ints("dims").ok()?[..], [d] if call.dim(d, from.len()).ok() == Some(last));
    let keeps = kept.len() == from.len() && kept[..last] == from[..last] && kept[last] == SymExpr::ONE;
    (over_last && keeps).then_some(source)
}

/// The scores and the mask added to them.
fn masked(graph: &Graph, v: ValueId) -> Option<(ValueId, ValueId)> {
    let (x, y) = added_to(graph, v)?;
    Some((unwidened(graph, x), y))
}

/// The operand of a sum that scores are computed in, and the other one.
fn added_to(graph: &Graph, v: ValueId) -> Option<(ValueId, ValueId)> {
    let sum = def_of(graph, v, "prims.add")?;
    let (Arg::Value(x), Arg::Value(y)) = (&sum.args[0], &sum.args[1]) else { return None };
    match (is_scores(graph, *x, DEEPEST), is_scores(graph, *y, DEEPEST)) {
        (true, false) => Some((*x, *y)),
        (false, true) => Some((*y, *x)),
        _ => None,
    }
}

/// The scores of which some are replaced, and which.
fn hidden(graph: &Graph, v: ValueId, rank: usize, site: &Site<'_>) -> Option<(ValueId, Hidden)> {
    let call = def(graph, v).filter(|c| c.op.scalar_op() == Some(ScalarOp::Select))?;
    let [Arg::Value(condition), yes, no] = call.args else { return None };
    let (scores, number, when) = match (yes, no) {
        (number, Arg::Value(x)) if is_scores(graph, *x, DEEPEST) => (*x, number, true),
        (Arg::Value(x), number) if is_scores(graph, *x, DEEPEST) => (*x, number, false),
        _ => return None,
    };
    let n = uniform(graph, number, &site.cx.opaque)?.as_f64();
    if n.is_nan() || n > HIDES {
        return None;
    }
    let condition = unexpanded(graph, *condition, rank);
    Some((unwidened(graph, scores), Hidden { condition, when, by: n }))
}

/// Decides on what is added in the place of what replaced. `None` where rows without a shown key would differ: such a row has equal weights
/// where a number replaces its scores, and no gradient flows to these.
fn settle(added: &mut Added, site: &Site<'_>) -> Option<()> {
    let finite = added.hidden.iter().filter(|h| h.by.is_finite()).count();
    let alone = added.hidden.len() == 1;
    if finite == 0 {
        return Some(());
    }
    // Masks have the dtype of the result, whose least number `f16` does not lose scores beside.
    let refused = site.cx.to_be_differentiated || site.meta.dtype == DType::F16 || !alone;
    let hidden = added.hidden.first_mut().filter(|_| !refused)?;
    let least = if site.meta.dtype == DType::BF16 { LEAST_BF16 } else { f64::from(f32::MIN) };
    hidden.by = match hidden.by {
        n if n <= LOSES => n.max(least),
        _ if added.masks.is_empty() && added.windows.is_none() => FAINT,
        _ => return None,
    };
    Some(())
}

/// Most operators between a product and its softmax that are looked through.
const DEEPEST: u32 = 6;

/// Whether a value is a product, or one that was scaled, split into windows or added to.
fn is_scores(graph: &Graph, v: ValueId, depth: u32) -> bool {
    let at = unwidened(graph, v);
    let Some(call) = def(graph, at).filter(|_| depth > 0) else { return false };
    let target = call.op.target.as_str();
    let computed = is_scaling(call.op.scalar_op()) || call.op.scalar_op() == Some(ScalarOp::Select);
    let looked = target == "prims.reshape" || target == "prims.add" || computed;
    let operand = |a: &Arg| matches!(a, Arg::Value(v) if is_scores(graph, *v, depth - 1));
    target == "prims.matmul" || (looked && call.args.iter().any(operand))
}

/// Scores before a mask was added for each window, and that mask.
fn windowed(graph: &Graph, v: ValueId) -> Option<(ValueId, Windows)> {
    let sum = through(graph, v, "prims.reshape")?;
    let (split, mask) = added_to(graph, sum)?;
    let inner = through(graph, unwidened(graph, split), "prims.reshape")?;
    let (whole, parts) = (sizes(graph, inner)?, sizes(graph, sum)?);
    let [batch, count, rest @ ..] = parts else { return None };
    let fits = parts.len() == 5 && sizes(graph, v)? == whole && whole[1..] == *rest;
    let mask = mask_operand(graph, mask, 5)?;
    let repeats = sizes(graph, mask)?[0] == SymExpr::ONE;
    let windows = Windows { mask, batch: batch.clone(), count: count.clone() };
    (fits && repeats).then_some((unwidened(graph, inner), windows))
}

fn is_scaling(op: Option<ScalarOp>) -> bool {
    matches!(op, Some(ScalarOp::Mul | ScalarOp::Div))
}

/// Scores before they are multiplied or divided by a number, and the factor.
fn scaled(graph: &Graph, v: ValueId, site: &Site<'_>) -> Option<(ValueId, f64)> {
    let call = def(graph, v).filter(|c| is_scaling(c.op.scalar_op()))?;
    let divides = call.op.scalar_op() == Some(ScalarOp::Div);
    let number = |a: &Arg| uniform(graph, a, &site.cx.opaque).map(|n| n.as_f64());
    match (&call.args[0], &call.args[1]) {
        (Arg::Value(x), n) if number(n).is_some_and(|n| n.is_finite() && (n != 0.0 || !divides)) => {
            let n = number(n)?;
            Some((*x, if divides { 1.0 / n } else { n }))
        }
        (n, Arg::Value(x)) if !divides => number(n).filter(|n| n.is_finite()).map(|n| (*x, n)),
        _ => None,
    }
}

/// Scores before they are multiplied by a tensor that is the same for all keys, and that tensor.
fn scaled_by_tensor(graph: &Graph, v: ValueId, rank: usize) -> Option<(ValueId, ValueId)> {
    let call = def(graph, v).filter(|c| c.op.scalar_op() == Some(ScalarOp::Mul))?;
    let (Arg::Value(x), Arg::Value(y)) = (&call.args[0], &call.args[1]) else { return None };
    let factor = |v: ValueId| {
        let source = through(graph, v, "prims.expand")?;
        let sizes = sizes(graph, source)?;
        (sizes.len() <= rank && sizes.last() == Some(&SymExpr::ONE)).then_some(source)
    };
    let scores = |v: ValueId| is_scores(graph, v, DEEPEST).then(|| unwidened(graph, v));
    let either = |x: ValueId, y: ValueId| Some((scores(x)?, factor(y)?));
    either(*x, *y).or_else(|| either(*y, *x))
}

/// The mask before it was broadcast, where it still has all dimensions.
fn mask_operand(graph: &Graph, mask: ValueId, rank: usize) -> Option<ValueId> {
    graph.meta(mask)?.dtype.is_float().then(|| unexpanded(graph, mask, rank))
}

/// What a value broadcasts, where that still has all dimensions.
fn unexpanded(graph: &Graph, v: ValueId, rank: usize) -> ValueId {
    let source = through(graph, v, "prims.expand").unwrap_or(v);
    let whole = graph.meta(source).is_some_and(|m| m.rank() == rank);
    if whole { source } else { v }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_unchanged, changes};
    use super::*;

    /// Softmax of `%s` as the table decomposes it, on [2, 3, 5, 6].
    const SOFTMAX: &str = "%top: f32[2, 3, 5] = prims.amax(%s, [3])
%top1: f32[2, 3, 5, 1] = prims.reshape(%top, [2, 3, 5, 1])
%tope: f32[2, 3, 5, 6] = prims.expand(%top1, [2, 3, 5, 6])
%d: f32[2, 3, 5, 6] = prims.sub(%s, %tope)
%e: f32[2, 3, 5, 6] = prims.exp(%d)
%sum: f32[2, 3, 5] = prims.sum(%e, [3])
%sum1: f32[2, 3, 5, 1] = prims.reshape(%sum, [2, 3, 5, 1])
%sume: f32[2, 3, 5, 6] = prims.expand(%sum1, [2, 3, 5, 6])
%w: f32[2, 3, 5, 6] = prims.div(%e, %sume)
%y: f32[2, 3, 5, 4] = prims.matmul(%w, %v)";
    const INPUTS: &str = "%q: f32[2, 3, 5, 4] = input \"q\"
%k: f32[2, 3, 6, 4] = input \"k\"
%v: f32[2, 3, 6, 4] = input \"v\"
%m: f32[2, 1, 1, 6] = input \"m\"

%kt: f32[2, 3, 4, 6] = prims.permute(%k, [0, 1, 3, 2])
%p: f32[2, 3, 5, 6] = prims.matmul(%q, %kt)";

    #[test]
    fn plain() {
        let body = format!("{INPUTS}\n{}\nreturn %y", SOFTMAX.replace("%s,", "%p,"));
        changes(run, &PassCx::default(), &body, "prims.permute prims.permute prims.attention");
    }

    #[test]
    fn scaled_and_masked() {
        let scores = "%x: f32[2, 3, 5, 6] = prims.div(%p, 2.0)
%me: f32[2, 3, 5, 6] = prims.expand(%m, [2, 3, 5, 6])
%s: f32[2, 3, 5, 6] = prims.add(%x, %me)";
        let body = format!("{INPUTS}\n{scores}\n{SOFTMAX}\nreturn %y");
        changes(run, &PassCx::default(), &body, "prims.permute prims.permute prims.attention");
    }

    #[test]
    fn a_factor_of_each_head() {
        let scores = "%f: f32[3, 1, 1] = input \"f\"
%fe: f32[2, 3, 5, 6] = prims.expand(%f, [2, 3, 5, 6])
%x: f32[2, 3, 5, 6] = prims.mul(%p, %fe)
%s: f32[2, 3, 5, 6] = prims.mul(%x, 2.0)";
        let (input, scores) = scores.split_once('\n').unwrap();
        let inputs = INPUTS.replacen("\n\n", &format!("\n{input}\n\n"), 1);
        let body = format!("{inputs}\n{scores}\n{SOFTMAX}\nreturn %y");
        let prims = "prims.permute prims.permute prims.expand prims.mul prims.attention";
        changes(run, &PassCx::default(), &body, prims);
        // A factor of each key is none of the queries.
        let body = body.replace("f32[3, 1, 1]", "f32[3, 1, 6]");
        assert_unchanged(run, &PassCx::default(), &body);
    }

    #[test]
    fn several_masks() {
        let scores = "%b: f32[1, 3, 5, 6] = input \"b\"
%x: f32[2, 3, 5, 6] = prims.mul(%p, 2.0)
%me: f32[2, 3, 5, 6] = prims.expand(%m, [2, 3, 5, 6])
%t: f32[2, 3, 5, 6] = prims.add(%me, %x)
%be: f32[2, 3, 5, 6] = prims.expand(%b, [2, 3, 5, 6])
%s: f32[2, 3, 5, 6] = prims.add(%t, %be)";
        let (input, scores) = scores.split_once('\n').unwrap();
        let inputs = INPUTS.replacen("\n\n", &format!("\n{input}\n\n"), 1);
        let body = format!("{inputs}\n{scores}\n{SOFTMAX}\nreturn %y");
        let prims = "prims.permute prims.permute prims.expand prims.expand prims.add prims.attention";
        changes(run, &PassCx::default(), &body, prims);
    }

    #[test]
    fn a_bias_of_widened_scores_stays_wide() {
        let inputs = INPUTS.replace("f32", "bf16").replace("%m: bf16", "%m: f32");
        let scores = "%x: f32[2, 3, 5, 6] = prims.convert(%p, f32)
%me: f32[2, 3, 5, 6] = prims.expand(%m, [2, 3, 5, 6])
%s: f32[2, 3, 5, 6] = prims.add(%x, %me)";
        let product = "%wn: bf16[2, 3, 5, 6] = prims.convert(%w, bf16)
%y: bf16[2, 3, 5, 4] = prims.matmul(%wn, %v)";
        let softmax = SOFTMAX.replace("%y: f32[2, 3, 5, 4] = prims.matmul(%w, %v)", product);
        let body = format!("{inputs}\n{scores}\n{softmax}\nreturn %y");
        // The mask is not converted.
        changes(run, &PassCx::default(), &body, "prims.permute prims.permute prims.attention");
    }

    #[test]
    fn windows_become_heads() {
        let scores = "%w0: f32[1, 2, 1, 5, 6] = input \"w0\"
%x: f32[1, 2, 3, 5, 6] = prims.reshape(%p, [1, 2, 3, 5, 6])
%we: f32[1, 2, 3, 5, 6] = prims.expand(%w0, [1, 2, 3, 5, 6])
%t: f32[1, 2, 3, 5, 6] = prims.add(%x, %we)
%s: f32[2, 3, 5, 6] = prims.reshape(%t, [2, 3, 5, 6])";
        let (input, scores) = scores.split_once('\n').unwrap();
        let inputs = INPUTS.replacen("\n\n", &format!("\n{input}\n\n"), 1);
        let body = format!("{inputs}\n{scores}\n{SOFTMAX}\nreturn %y");
        let prims = "prims.permute prims.permute prims.reshape prims.reshape prims.reshape prims.expand \
                     prims.reshape prims.attention prims.reshape";
        changes(run, &PassCx::default(), &body, prims);
    }

    #[test]
    fn weights_that_are_returned_stay() {
        let body =
            format!("{INPUTS}\n%s: f32[2, 3, 5, 6] = prims.mul(%p, 0.5)\n{SOFTMAX}\nreturn %y\nreturn %w");
        assert_unchanged(run, &PassCx::default(), &body);
    }
}
