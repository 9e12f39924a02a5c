//! Reduction piece by piece: one output, one result, one call at a time.

use fx_ir::{Arg, Graph, NodeId, ValueId};

use super::{Case, Search, replaced};
use crate::surgery::drop_unused_inputs;

/// Reduces as long as anything can be left out.
pub(super) fn reduce(mut best: Case, search: &mut Search<'_>) -> Case {
    while let Some(smaller) = candidates(&best, search) {
        best = smaller;
        if search.is_spent() {
            break;
        }
    }
    best
}

/// The first smaller case that fails.
fn candidates(case: &Case, search: &mut Search<'_>) -> Option<Case> {
    let mut failing = |candidate: Option<Case>| candidate.filter(|c| smaller(c, case) && search.fails(c));
    for keep in 0..case.graph.outputs.len() {
        if case.graph.outputs.len() > 1 {
            let only = edited(case, |g| g.outputs = vec![g.outputs[keep].clone()]);
            if let Some(found) = failing(Some(only)) {
                return Some(found);
            }
        }
    }
    let calls: Vec<NodeId> =
        case.graph.iter().filter(|(_, n)| n.as_call().is_some()).map(|(id, _)| id).collect();
    for &id in calls.iter().rev() {
        let read: Vec<ValueId> =
            case.graph.nodes[id].outputs.iter().copied().filter(|v| !returned(&case.graph, *v)).collect();
        if !read.is_empty()
            && let Some(found) = failing(replaced(case, &read))
        {
            return Some(found);
        }
        if let Some(found) = failing(bypassed(case, id)) {
            return Some(found);
        }
    }
    None
}

fn returned(graph: &Graph, v: ValueId) -> bool {
    graph.outputs.iter().any(|o| o.arg == Arg::Value(v))
}

/// Fewer calls, or as many with fewer outputs.
fn smaller(new: &Case, old: &Case) -> bool {
    (new.calls(), new.graph.outputs.len()) < (old.calls(), old.graph.outputs.len())
}

/// The case in which an operand of the same type stands for the first result of a call.
fn bypassed(case: &Case, id: NodeId) -> Option<Case> {
    let node = &case.graph.nodes[id];
    let &result = node.outputs.first()?;
    let of = |v: ValueId| case.graph.meta(v).map(|m| (m.dtype, m.sizes.clone()));
    let mut operand = None;
    node.for_each_use(&mut |v| {
        if operand.is_none() && of(v).is_some() && of(v) == of(result) {
            operand = Some(v);
        }
    });
    let operand = operand?;
    Some(edited(case, |g| g.map_uses(&|v| if v == result { operand } else { v })))
}

fn edited(case: &Case, change: impl FnOnce(&mut Graph)) -> Case {
    let mut new = case.clone();
    change(&mut new.graph);
    prims::scalars::eliminate_dead(&mut new.graph);
    drop_unused_inputs(&mut new.graph);
    new.tidied()
}
