//! How recorded calls enter a graph: an operator by the operator table's builder, with the key of its random numbers in place
//! of the graph's seed; a graph of prims by a copy of its nodes.

use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

use fx_ir::{Arg, Graph, NodeKind, OriginId, ValueId};
use ir_core::{Arena, Origin};
use prims::{Builder, Op, OpError};
use smallvec::SmallVec;

/// A graph of prims on numeric sizes that is inlined where a recorded call uses it.
pub(crate) struct Body {
    /// Two bodies are the same computation where their numbers are equal.
    pub(crate) id: u64,
    pub(crate) graph: Graph,
    /// The placeholders that the operands of a call stand for, in order.
    pub(crate) inputs: Vec<ValueId>,
}

impl Body {
    pub(crate) fn new(graph: Graph, inputs: Vec<ValueId>) -> Body {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Body { id: NEXT.fetch_add(1, Ordering::Relaxed), graph, inputs }
    }
}

/// The results of a call in a graph.
pub(crate) type Outs = SmallVec<[ValueId; 1]>;

/// The line of a call as an origin of a graph.
pub(crate) fn origin(graph: &mut Graph, name: &str, at: &Location<'_>) -> OriginId {
    graph.add_origin(Origin {
        function: name.to_owned(),
        source: Some(format!("{}:{}", at.file(), at.line())),
        ..Origin::default()
    })
}

/// Appends a call of an operator. With a `key`, its random numbers depend on that value; else on the graph's seed and the
/// call's name.
///
/// # Errors
/// The operator refuses the call.
pub(crate) fn operator(
    graph: &mut Graph,
    op: &'static Op,
    args: Vec<Arg>,
    (name, key, origin): (&str, Option<ValueId>, OriginId),
) -> Result<Outs, OpError> {
    let (before, had_seed) = (graph.nodes.len(), graph.seed().is_some());
    // The stream of random numbers depends on the name: with a key it must be the same wherever the call is repeated.
    let name = if key.is_some() { short_name(op) } else { name };
    let outs = Builder::new(graph, name, origin).call_op(op, args)?;
    let (Some(key), Some(seed)) = (key, graph.seed()) else { return Ok(outs) };
    for (id, node) in graph.nodes.iter_mut() {
        if ir_core::EntityId::index(id) < before {
            continue;
        }
        if let NodeKind::Call { args, .. } = &mut node.kind {
            let swap = &mut |v: &mut ValueId| {
                if *v == seed {
                    *v = key;
                }
            };
            args.iter_mut().for_each(|a| a.for_each_value_mut(swap));
        }
    }
    if !had_seed {
        let node = graph.values[seed].def;
        graph.order.retain(|n| *n != node);
    }
    Ok(outs)
}

/// `relu` of `aten.relu.default`.
pub(crate) fn short_name(op: &Op) -> &str {
    op.target.split('.').nth(1).unwrap_or(&op.target)
}

/// Appends a copy of the body's calls, with its placeholders replaced by `args`.
pub(crate) fn inline(graph: &mut Graph, body: &Body, args: &[ValueId]) -> Outs {
    let from = &body.graph;
    let mut map: Arena<ValueId, Option<ValueId>> = from.values.ids().map(|_| None).collect();
    body.inputs.iter().zip(args).for_each(|(input, arg)| map[*input] = Some(*arg));
    for (_, node) in from.iter() {
        let NodeKind::Call { target, args } = &node.kind else { continue };
        let mut args = args.clone();
        args.iter_mut().for_each(|a| {
            a.for_each_value_mut(&mut |v| {
                if let Some(new) = map[*v] {
                    *v = new;
                }
            });
        });
        let outputs = node.outputs.iter().map(|&v| (from.values[v].name.as_str(), from.values[v].ty.clone()));
        let origin = from.origins.get(node.origin).cloned().unwrap_or_default();
        let origin = graph.add_origin(origin);
        let made = graph.call(target.clone(), args, outputs, origin);
        node.outputs.iter().zip(made).for_each(|(old, new)| map[*old] = Some(new));
    }
    let out = |o: &fx_ir::Output| match o.arg {
        Arg::Value(v) => map[v],
        _ => None,
    };
    from.outputs.iter().filter_map(out).collect()
}

/// Moves the placeholder of `v`, which was just appended, in front of all calls.
pub(crate) fn placed_first(graph: &mut Graph, v: ValueId) {
    let def = graph.values[v].def;
    graph.order.retain(|n| *n != def);
    let is_call = |graph: &Graph, n: fx_ir::NodeId| matches!(graph.nodes[n].kind, NodeKind::Call { .. });
    let at = graph.order.iter().position(|n| is_call(graph, *n)).unwrap_or(graph.order.len());
    graph.order.insert(at, def);
}
