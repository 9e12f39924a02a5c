//! Recognises attention written as separate operators and replaces it by `prims.attention`, which keeps neither scores nor
//! weights in memory:
//!
//! ```text
//! softmax(q kᵀ [* s | / s] [+ mask]) v  =  attention(q, k, v, mask, scale = s)
//! ```
//!
//! with 16-bit floats widened for the softmax and narrowed after it, on three or four dimensions. The decomposed form stays
//! where other nodes read the weights or scores, and where the weights have dropout. Rows in which a mask of minus infinity
//! excludes every key are zero in the prim and `NaN` in the decomposed form, as with PyTorch's own rewriting.

use fx_ir::{Arg, Graph, ValueId};
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::ScalarOp;
use prims::{Builder, OpError};

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
    mask: Option<ValueId>,
    scale: f64,
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
    let mut four = |v: ValueId| {
        let mut sizes: Shape = b.sizes(v)?;
        if sizes.len() == 3 {
            sizes.insert(1, SymExpr::ONE);
        }
        b.reshape(v, &sizes)
    };
    let (q, k, v) = (four(parts.q)?, four(k)?, four(parts.v)?);
    let mask = parts.mask.map(&mut four).transpose()?;
    let mask = mask.map(|m| b.cast(m, site.meta.dtype)).transpose()?;
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
    let (mut at, mut mask, mut scale) = (unwidened(graph, scores), None, 1.0);
    if let Some((inner, other)) = masked(graph, at) {
        (at, mask) = (inner, Some(other));
    }
    if let Some((inner, factor)) = scaled(graph, at, site) {
        (at, scale) = (inner, factor);
    }
    let product = unwidened(graph, at);
    // The softmax reads its operand twice: for the largest score and for the differences from it.
    let reads = if product == scores { 2 } else { 1 };
    let call = def_of(graph, product, "prims.matmul").filter(|_| site.reads(product) <= reads)?;
    let (q, kt) = (call.value("a").ok()?, call.value("b").ok()?);
    let mask = match mask {
        Some(mask) => Some(mask_operand(graph, mask, rank)?),
        None => None,
    };
    let dtypes = [q, kt, v].map(|v| graph.meta(v).map(|m| m.dtype));
    (dtypes.iter().all(|d| *d == Some(site.meta.dtype))).then_some(Parts { q, kt, v, mask, scale })
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
    let sum = def_of(graph, v, "prims.add")?;
    let (Arg::Value(x), Arg::Value(y)) = (&sum.args[0], &sum.args[1]) else { return None };
    let is_product = |v: ValueId| {
        let inner = unwidened(graph, v);
        let factor = def(graph, inner).filter(|c| is_scaling(c.op.scalar_op()));
        let of = factor
            .and_then(|c| c.args.iter().find_map(|a| if let Arg::Value(v) = a { Some(*v) } else { None }));
        let at = unwidened(graph, of.unwrap_or(inner));
        def_of(graph, at, "prims.matmul").is_some()
    };
    match (is_product(*x), is_product(*y)) {
        (true, false) => Some((unwidened(graph, *x), *y)),
        (false, true) => Some((unwidened(graph, *y), *x)),
        _ => None,
    }
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

/// The mask before it was broadcast, where it still has all dimensions.
fn mask_operand(graph: &Graph, mask: ValueId, rank: usize) -> Option<ValueId> {
    let meta = graph.meta(mask)?;
    if !meta.dtype.is_float() {
        return None;
    }
    let source = through(graph, mask, "prims.expand").unwrap_or(mask);
    let whole = graph.meta(source).is_some_and(|m| m.rank() == rank);
    Some(if whole { source } else { mask })
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
    fn weights_that_are_returned_stay() {
        let body =
            format!("{INPUTS}\n%s: f32[2, 3, 5, 6] = prims.mul(%p, 0.5)\n{SOFTMAX}\nreturn %y\nreturn %w");
        assert_unchanged(run, &PassCx::default(), &body);
    }
}
