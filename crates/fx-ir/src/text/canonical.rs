//! The canonical form of a graph: the result of a round trip through text. This is not a simplifier: no node in the
//! execution order is changed or dropped.

use ir_core::{EntityId, Origin, Scalar};
use rustc_hash::FxHashMap;

use super::Names;
use crate::{Arg, Graph, Node, NodeKind, OriginId, Output, Value, ValueId};

pub(super) fn graph(old: &Graph) -> Graph {
    let names = Names::of(old);
    let mut new = Graph::new(old.name.clone());
    new.share_symbols(old);
    new.subgraphs = old.subgraphs.values().map(graph).collect();
    let mut values: FxHashMap<ValueId, ValueId> = FxHashMap::default();
    let mut origins: FxHashMap<Origin, OriginId> = FxHashMap::from_iter([(Origin::default(), OriginId(0))]);
    for (_, node) in old.iter() {
        let origin = old.origins.get(node.origin).cloned().unwrap_or_default();
        let origin = *origins.entry(origin).or_insert_with_key(|o| new.origins.push(o.clone()));
        let kind = match &node.kind {
            NodeKind::Call { target, args } => NodeKind::Call {
                target: target.clone(),
                args: args.iter().map(|a| arg(a, &values)).collect(),
            },
            other => other.clone(),
        };
        let def = new.nodes.next_id();
        let outputs = node.outputs.iter().filter_map(|&v| {
            let ty = old.values.get(v)?.ty.clone();
            let id = new.values.push(Value { name: names.get(v), ty, def });
            values.insert(v, id);
            Some(id)
        });
        let outputs = outputs.collect();
        new.nodes.push(Node { kind, outputs, origin });
        new.order.push(def);
    }
    let outputs = old.outputs.iter();
    new.outputs = outputs.map(|o| Output { kind: o.kind.clone(), arg: arg(&o.arg, &values) }).collect();
    new
}

/// The argument with renumbered values; an integer scalar becomes [`Arg::Int`], its one form.
fn arg(old: &Arg, values: &FxHashMap<ValueId, ValueId>) -> Arg {
    match old {
        // A value that no node defines keeps a number that is out of range, so that the verifier still reports it.
        Arg::Value(v) => {
            Arg::Value(values.get(v).copied().unwrap_or_else(|| ValueId::from_index(u32::MAX as usize)))
        }
        Arg::Scalar(Scalar::Int(i)) => Arg::int(*i),
        Arg::List(items) => Arg::List(items.iter().map(|a| arg(a, values)).collect()),
        other => other.clone(),
    }
}
