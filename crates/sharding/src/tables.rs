//! What the built-in plan `tp:auto` may do with parameters that no pair of products has: the last product of a program (a language
//! model's scores of a vocabulary) by columns, and tables that are read at indices (embeddings) by rows or by columns. A
//! parameter that is both, as where weights are tied, is one parameter with one placement.
//!
//! Whether one is split, and how, is judged by the whole layout that results: exchanges, work, and bytes of weights that a rank has.
//! A small table costs less to read than an exchange takes, and stays whole.
//!
//! Parts may be uneven, but none is empty.

use fx_ir::{Graph, NodeId, ValueId};
use prims::facts::bytes_hint;
use prims::shard_rule::operands;
use prims::{Lower, Placement, Way};
use rustc_hash::FxHashSet;

use crate::tensor_parallel::Search;
use crate::{Constraints, Costs, Mesh, ShardingError, localize, propagate};

/// Tables by name, large ones first, with the placements along an axis that they may have, in order of preference: by rows
/// ranks add few numbers up, which engines do quickest. `is_open` tells whether the plan has not placed a parameter yet.
///
/// # Errors
/// A call that its operator refuses.
pub(crate) fn find(
    graph: &Graph,
    mesh: &Mesh,
    axis: usize,
    is_open: impl Fn(&str) -> bool,
) -> Result<Vec<(String, Vec<Placement>)>, ShardingError> {
    let search = Search::new(graph, mesh, axis)?;
    let mut found: Vec<(ValueId, Vec<Placement>)> = Vec::new();
    for &id in &graph.order {
        for (parameter, placement) in search.split(id)? {
            if !search.has_parts(parameter, &placement) {
                continue;
            }
            match found.iter_mut().find(|(v, _)| *v == parameter) {
                Some((_, all)) if all.contains(&placement) => {}
                Some((_, all)) => all.push(placement),
                None => found.push((parameter, vec![placement])),
            }
        }
    }
    found.sort_by_key(|(v, _)| std::cmp::Reverse(bytes_hint(graph, *v)));
    let name = |v: ValueId| graph.inputs().find(|(input, _, _)| *input == v).map(|(_, _, name)| name);
    let named = found.into_iter().filter_map(|(v, all)| Some((name(v)?.to_owned(), all)));
    Ok(named.filter(|(name, _)| is_open(name)).collect())
}

/// Seconds of the layout that follows from constraints; infinite where there is none.
pub(crate) fn seconds(graph: &Graph, mesh: &Mesh, constraints: &Constraints, costs: &Costs) -> f64 {
    let laid_out = || {
        let layout = propagate(graph, mesh, constraints, costs)?;
        let local = localize(graph, mesh, &layout, &mesh.coordinates(0))?;
        Ok::<f64, ShardingError>(costs.layout(graph, mesh, &layout, &local))
    };
    laid_out().unwrap_or(f64::INFINITY)
}

impl Search<'_> {
    /// The parameters that a call may have in parts, with their placements.
    fn split(&self, id: NodeId) -> Result<Vec<(ValueId, Placement)>, ShardingError> {
        let Some(call) = self.call(id) else { return Ok(Vec::new()) };
        let values = operands(call.call.args);
        // The operand that is the table; what else the call reads is whole.
        let table = match (self.product(id), &*call.call.op.target) {
            (Some((_, weight)), _) if self.is_last(id) => weight,
            (None, "prims.index" | "prims.gather") => values[0],
            _ => return Ok(Vec::new()),
        };
        let alone = |way: &Way| {
            let pairs = values.iter().zip(&way.operands);
            pairs.into_iter().all(|(v, p)| (*v == table) == p.dim().is_some())
        };
        let mut found = Vec::new();
        for way in self.ways(id)?.iter().filter(|way| alone(way)) {
            let of_table = values.iter().zip(&way.operands).find(|(v, _)| **v == table);
            if let Some((_, placement)) = of_table {
                found.extend(self.back(table, placement)?);
            }
        }
        Ok(found)
    }

    /// Whether no other product, nor attention, computes with what a call gives.
    fn is_last(&self, id: NodeId) -> bool {
        let mut reached: FxHashSet<ValueId> = self.graph.nodes[id].outputs.iter().copied().collect();
        for next in self.behind(id) {
            let Some((target, args)) = self.graph.nodes[next].as_call() else { continue };
            if !operands(args).iter().any(|v| reached.contains(v)) {
                continue;
            }
            if prims::lookup(target).is_some_and(|op| matches!(op.lower(), Some(Lower::Template(_)))) {
                return false;
            }
            reached.extend(&self.graph.nodes[next].outputs);
        }
        true
    }

    /// Whether every rank has a part: of unequal ones the last ranks have less.
    fn has_parts(&self, v: ValueId, placement: &Placement) -> bool {
        let Placement::Shard { dim, unit, sections } = placement else { return false };
        let (Some(size), Some(unit)) =
            (self.sizes(v).get(*dim).and_then(|s| s.as_const()), unit.as_const().filter(|n| *n > 0))
        else {
            return false;
        };
        let blocks = size / unit;
        let most = (blocks + self.ranks - 1) / self.ranks;
        sections.is_empty() && most * (self.ranks - 1) < blocks
    }
}
