//! Common subexpression elimination. Commuting operands are compared in either order. A draw of random numbers is a call
//! like any other: it has its stream among its operands. What defines a size known only at run time is never merged, nor are exchanges
//! between ranks: other ranks may have different operands where this one has equal ones.

use std::hash::{Hash, Hasher};

use fx_ir::{Arg, Graph, NodeId, ValueId};
use ir_core::EntityId;
use rustc_hash::{FxHashMap, FxHasher};

use super::{PassCx, Stats};
use crate::symbols::defines_size;

/// Merges equal calls.
pub(super) fn run(graph: &mut Graph, cx: &PassCx) -> Stats {
    let mut replaced: Vec<Option<ValueId>> = vec![None; graph.values.len()];
    let mut seen: FxHashMap<u64, Vec<NodeId>> = FxHashMap::default();
    let mut stats = Stats::default();
    let mut order = Vec::with_capacity(graph.order.len());
    for id in std::mem::take(&mut graph.order) {
        if let fx_ir::NodeKind::Call { args, .. } = &mut graph.nodes[id].kind {
            let new = |v: &mut ValueId| *v = replaced[v.index()].unwrap_or(*v);
            args.iter_mut().for_each(|a| a.for_each_value_mut(&mut |v| new(v)));
        }
        let Some(key) = key(graph, id, cx) else {
            order.push(id);
            continue;
        };
        let same = seen.entry(key).or_default();
        match same.iter().find(|&&first| equal(graph, first, id)) {
            Some(&first) => {
                let pairs = graph.nodes[id].outputs.iter().zip(&graph.nodes[first].outputs);
                pairs.for_each(|(old, new)| replaced[old.index()] = Some(*new));
                stats.changed += 1;
            }
            None => {
                same.push(id);
                order.push(id);
            }
        }
    }
    graph.order = order;
    for output in &mut graph.outputs {
        output.arg.for_each_value_mut(&mut |v| *v = replaced[v.index()].unwrap_or(*v));
    }
    stats
}

/// A hash of what a call computes; `None` where it must stay as it is.
fn key(graph: &Graph, id: NodeId, cx: &PassCx) -> Option<u64> {
    let node = &graph.nodes[id];
    let (target, args) = node.as_call()?;
    let op = prims::lookup(target).filter(|op| op.is_prim() && !op.exchanges())?;
    if node.outputs.iter().any(|&v| defines_size(graph, v) || cx.opaque.contains(&v)) {
        return None;
    }
    let mut hasher = FxHasher::default();
    target.hash(&mut hasher);
    let of = |arg: &Arg| {
        let mut hasher = FxHasher::default();
        hash_arg(arg, &mut hasher);
        hasher.finish()
    };
    let mut hashes: Vec<u64> = args.iter().map(of).collect();
    if op.commutes() {
        hashes[..2].sort_unstable();
    }
    hashes.hash(&mut hasher);
    Some(hasher.finish())
}

fn hash_arg(arg: &Arg, hasher: &mut FxHasher) {
    std::mem::discriminant(arg).hash(hasher);
    match arg {
        Arg::Value(v) => v.hash(hasher),
        Arg::Int(e) => e.hash(hasher),
        Arg::Scalar(s) => s.hash(hasher),
        Arg::Str(s) => s.hash(hasher),
        Arg::DType(d) => d.hash(hasher),
        Arg::List(items) => items.iter().for_each(|a| hash_arg(a, hasher)),
        // The rest is compared, not hashed.
        _ => {}
    }
}

/// Whether two calls compute the same.
fn equal(graph: &Graph, a: NodeId, b: NodeId) -> bool {
    let (Some((target, x)), Some((other, y))) = (graph.nodes[a].as_call(), graph.nodes[b].as_call()) else {
        return false;
    };
    let types = |id: NodeId| graph.nodes[id].outputs.iter().map(|&v| &graph.values[v].ty);
    if target != other || x.len() != y.len() || !types(a).eq(types(b)) {
        return false;
    }
    let commutes = prims::lookup(target).is_some_and(|op| op.commutes());
    x == y || (commutes && x[0] == y[1] && x[1] == y[0] && x[2..] == y[2..])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_unchanged, changes};
    use super::*;

    #[test]
    fn equal_calls_are_made_once() {
        let text = "%x: f32[2] = input \"x\"\n%y: f32[2] = input \"y\"\n\n%a: f32[2] = prims.add(%x, %y)\n%b: f32[2] = prims.add(%y, %x)\n%c: f32[2] = prims.mul(%a, %b)\nreturn %c";
        changes(run, &PassCx::default(), text, "prims.add prims.mul");
    }

    #[test]
    fn draws_of_different_streams_stay_apart() {
        let text = "%s: i64[] = input \"s\"\n%i: i64[2] = input \"i\"\n\n%e: i64[2] = prims.expand(%s, [2])\n%a: i64[2] = prims.philox(%e, 1, %i)\n%b: i64[2] = prims.philox(%e, 2, %i)\n%c: i64[2] = prims.xor(%a, %b)\nreturn %c";
        assert_unchanged(run, &PassCx::default(), text);
    }

    #[test]
    fn a_barrier_keeps_recomputed_values_apart() {
        let text = "%x: f32[2] = input \"x\"\n\n%a: f32[2] = prims.exp(%x)\n%again: f32[2] = prims.barrier(%x)\n%b: f32[2] = prims.exp(%again)\n%c: f32[2] = prims.mul(%a, %b)\nreturn %c";
        assert_unchanged(run, &PassCx::default(), text);
    }
}
