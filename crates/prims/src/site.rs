//! Prims that take indices from data, and the origin that an out-of-bounds error names: the operator of the user's program,
//! its place, and the dimension as its author counts them. References and compiled code share this description.

use fx_ir::{Arg, Graph, NodeId, ValueId};
use kernel_ir::Site;

use crate::{Call, lookup};

/// Prims whose indices come from data.
const INDEXING: [&str; 5] =
    ["prims.index", "prims.gather", "prims.scatter", "prims.index_put", "prims.check"];

/// Most data movements that are looked through.
const MAX_STEPS: usize = 8;

/// Whether the prim of this name takes indices from data, so that its node must know the user's operator.
pub(crate) fn is_indexing(target: &str) -> bool {
    INDEXING.contains(&target)
}

/// The site of index checks for `node`, a call of a prim with indices, along dimension `dim` of its operand.
pub fn site(graph: &Graph, node: NodeId, dim: usize) -> Site {
    let origin = graph.origin(node);
    let Some((target, args)) = graph.nodes[node].as_call() else { return Site::default() };
    let operator = if origin.operator.is_empty() { target } else { &origin.operator };
    let call = lookup(target).map(|op| Call { op, args });
    let index = call.and_then(|call| index_of(&call, dim));
    let operand = call.and_then(|call| call.opt_value("a").ok().flatten());
    Site {
        operator: operator.to_string(),
        origin: origin.to_string(),
        dim: operand.map_or(dim, |v| users_dim(graph, v, dim)) as u32,
        wraps: index.is_some_and(|v| wraps(graph, v)),
        constant: None,
    }
}

/// The index of a call along a dimension of its operand.
fn index_of(call: &Call<'_>, dim: usize) -> Option<ValueId> {
    match call.name() {
        "prims.check" => call.value("a").ok(),
        "prims.gather" | "prims.scatter" => call.value("index").ok(),
        _ => {
            let start = usize::try_from(call.int("start").ok()?).ok()?;
            call.values("indices").ok()?.get(dim.checked_sub(start)?).copied()
        }
    }
}

/// Name and arguments of the call that makes a value.
fn made_by(graph: &Graph, v: ValueId) -> Option<(&str, &[Arg])> {
    graph.nodes[graph.values[v].def].as_call()
}

/// The number of a dimension before indexed dimensions were brought side by side.
fn users_dim(graph: &Graph, operand: ValueId, dim: usize) -> usize {
    let Some(("prims.permute", [_, Arg::List(order)])) = made_by(graph, operand) else { return dim };
    let old = order.get(dim).and_then(|d| if let Arg::Int(e) = d { e.as_const() } else { None });
    old.and_then(|d| usize::try_from(d).ok()).unwrap_or(dim)
}

/// Whether the index is one whose negative values had the size added: `select(lt(i, 0), i + n, i)`, possibly moved.
fn wraps(graph: &Graph, index: ValueId) -> bool {
    let mut v = index;
    for _ in 0..MAX_STEPS {
        match made_by(graph, v) {
            Some((
                "prims.expand" | "prims.reshape" | "prims.permute" | "prims.slice",
                [Arg::Value(of), ..],
            )) => v = *of,
            Some(("prims.select", [Arg::Value(mask), _, Arg::Value(plain)])) => {
                let negative = match made_by(graph, *mask) {
                    Some(("prims.lt", [Arg::Value(of), zero])) => {
                        of == plain && zero.as_scalar().is_some_and(|s| s.as_f64() == 0.0)
                    }
                    _ => false,
                };
                return negative;
            }
            _ => return false,
        }
    }
    false
}
