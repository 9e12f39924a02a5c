//! Attention whose heads of keys and values were repeated, each for a group of heads of queries: `prims.attention` takes the
//! heads as they are, and the copies are not made.

use fx_ir::{Arg, Graph, NodeId, ValueId};
use ir_core::SymExpr;

use super::matching::{sizes, through};
use super::{PassCx, Stats};

/// Finds every repetition.
pub(super) fn run(graph: &mut Graph, _: &PassCx) -> Stats {
    let order: Vec<NodeId> = graph.order.clone();
    let changed = order.into_iter().filter(|&id| use_groups(graph, id).is_some()).count();
    if changed > 0 {
        prims::scalars::eliminate_dead(graph);
    }
    Stats { changed }
}

/// Replaces the keys and values of one attention.
fn use_groups(graph: &mut Graph, id: NodeId) -> Option<()> {
    let (target, args) = graph.nodes[id].as_call()?;
    let (Arg::Value(k), Arg::Value(v)) = (args.get(1)?, args.get(2)?) else { return None };
    if target != "prims.attention" {
        return None;
    }
    let (keys, values) = (repeated(graph, *k)?, repeated(graph, *v)?);
    if sizes(graph, keys)?[1] != sizes(graph, values)?[1] {
        return None;
    }
    if let fx_ir::NodeKind::Call { args, .. } = &mut graph.nodes[id].kind {
        (args[1], args[2]) = (keys.into(), values.into());
    }
    Some(())
}

/// The tensor `[b, h, l, d]` of which `v` is `[b, h·g, l, d]`, each head `g` times in turn.
fn repeated(graph: &Graph, v: ValueId) -> Option<ValueId> {
    let wide = through(graph, v, "prims.reshape")?;
    let single = through(graph, wide, "prims.expand")?;
    let source = through(graph, single, "prims.reshape")?;
    let (all, wide, single, source_sizes) =
        (sizes(graph, v)?, sizes(graph, wide)?, sizes(graph, single)?, sizes(graph, source)?);
    let ([b, h, l, d], [b1, h1, one, l1, d1]) = (source_sizes, single) else { return None };
    let unchanged = [b, h, l, d] == [b1, h1, l1, d1] && *one == SymExpr::ONE;
    let [wb, wh, group, wl, wd] = wide else { return None };
    let grouped = [wb, wh, wl, wd] == [b, h, l, d] && all.len() == 4 && all[1] == wh * group;
    (unchanged && grouped && [&all[0], &all[2], &all[3]] == [b, l, d]).then_some(source)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_unchanged, changes};
    use super::*;

    #[test]
    fn repeated_heads_are_taken_once() {
        let repeat = |x: &str| {
            format!(
                "%{x}1: f32[2, 2, 1, 5, 4] = prims.reshape(%{x}, [2, 2, 1, 5, 4])
%{x}2: f32[2, 2, 3, 5, 4] = prims.expand(%{x}1, [2, 2, 3, 5, 4])
%{x}3: f32[2, 6, 5, 4] = prims.reshape(%{x}2, [2, 6, 5, 4])"
            )
        };
        let body = format!(
            "%q: f32[2, 6, 5, 4] = input \"q\"
%k: f32[2, 2, 5, 4] = input \"k\"
%v: f32[2, 2, 5, 4] = input \"v\"

{}
{}
%y: f32[2, 6, 5, 4], %s: f32[2, 6, 5] = prims.attention(%q, %k3, %v3, none, true, 0.5, none, 1.0)
return %y",
            repeat("k"),
            repeat("v")
        );
        changes(run, &PassCx::default(), &body, "prims.attention");
        // A head beside another one, then both again, is no group.
        let interleaved =
            body.replace("2, 2, 1, 5, 4", "2, 1, 2, 5, 4").replace("2, 2, 3, 5, 4", "2, 3, 2, 5, 4");
        assert_unchanged(run, &PassCx::default(), &interleaved);
    }
}
