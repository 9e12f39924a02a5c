//! Cutting graphs apart: other outputs, inner values as inputs, what nothing reads left out. [`crate::verify`] and
//! [`crate::minify`] look into graphs this way. Not here: running them.

use fx_ir::{Arg, Graph, InputKind, NodeId, NodeKind, Output, OutputKind, Uses, ValueId, ValueType};
use ir_core::TensorMeta;

/// The name of the input that stands for an inner value.
pub(crate) fn cut_name(v: ValueId) -> String {
    format!("cut{}", v.0)
}

/// The tensors that calls of the graph compute, in order.
pub(crate) fn computed(graph: &Graph) -> Vec<ValueId> {
    let calls = graph.iter().filter(|(_, node)| node.as_call().is_some());
    let values = calls.flat_map(|(_, node)| node.outputs.iter().copied());
    values.filter(|&v| graph.meta(v).is_some()).collect()
}

/// The graph that returns these values and nothing else. All inputs stay, so that a call is as before.
pub(crate) fn returning(graph: &Graph, values: &[ValueId]) -> Graph {
    let mut new = graph.clone();
    let output = |v: &ValueId| Output { kind: OutputKind::User, arg: Arg::Value(*v) };
    new.outputs = values.iter().map(output).collect();
    prims::scalars::eliminate_dead(&mut new);
    new
}

/// The graph in which inner values are inputs, named by [`cut_name`], after the other ones. Calls that nothing reads any more
/// are left out.
pub(crate) fn cut(graph: &Graph, values: &[ValueId]) -> Graph {
    let mut new = graph.clone();
    for &v in values {
        let Some(meta) = new.meta(v) else { continue };
        let ty = ValueType::Tensor(TensorMeta::contiguous(meta.dtype, meta.sizes.iter().cloned()));
        let name = cut_name(v);
        let input = new.placeholder(InputKind::User, name.clone(), &name, ty);
        new.map_uses(&|u| if u == v { input } else { u });
    }
    placeholders_first(&mut new);
    prims::scalars::eliminate_dead(&mut new);
    new
}

fn placeholders_first(graph: &mut Graph) {
    let nodes = &graph.nodes;
    graph.order.sort_by_key(|id| !matches!(nodes[*id].kind, NodeKind::Placeholder { .. }));
}

/// Leaves out inputs that nothing reads and that determine no symbolic size.
pub(crate) fn drop_unused_inputs(graph: &mut Graph) {
    let uses = Uses::of(graph);
    let binds = |ty: &ValueType| match ty {
        ValueType::Tensor(meta) => meta.sizes.iter().any(|s| s.as_const().is_none()),
        ValueType::Int(value) => value.as_const().is_none(),
        _ => false,
    };
    let (nodes, values) = (&graph.nodes, &graph.values);
    graph.order.retain(|id| {
        let node = &nodes[*id];
        node.as_call().is_some() || node.outputs.iter().any(|v| !uses.is_dead(*v) || binds(&values[*v].ty))
    });
}

/// The calls that a call depends on, itself included, in order.
pub(crate) fn ancestors(graph: &Graph, of: NodeId) -> Vec<NodeId> {
    let mut wanted = rustc_hash::FxHashSet::from_iter([of]);
    let mut found: Vec<NodeId> = Vec::new();
    for (id, node) in graph.iter().rev() {
        if node.as_call().is_some() && wanted.contains(&id) {
            node.for_each_use(&mut |v| {
                wanted.insert(graph.values[v].def);
            });
            found.push(id);
        }
    }
    found.reverse();
    found
}

/// The tensors that a call reads and another call computes, each once.
pub(crate) fn computed_operands(graph: &Graph, of: NodeId) -> Vec<ValueId> {
    let mut operands = Vec::new();
    graph.nodes[of].for_each_use(&mut |v| {
        let is_call = graph.nodes[graph.values[v].def].as_call().is_some();
        if is_call && graph.meta(v).is_some() && !operands.contains(&v) {
            operands.push(v);
        }
    });
    operands
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const CHAIN: &str = r#"fx 1.0
graph "chain" {
  %x: f32[2] = input "x"
  %w: f32[2] = parameter "w"
  %a: f32[2] = aten.mul.Tensor(%x, %w)
  %b: f32[2] = aten.sin.default(%a)
  %c: f32[2] = aten.add.Tensor(%b, %a, 1)
  return %c
}
"#;

    #[test]
    fn graphs_are_cut_at_values() {
        let graph: Graph = CHAIN.parse().unwrap();
        let all = computed(&graph);
        assert_eq!(all.len(), 3);
        let first = returning(&graph, &all[..1]);
        assert_eq!((first.order.len(), first.outputs.len()), (3, 1));
        let mut last = cut(&graph, &all[..2]);
        drop_unused_inputs(&mut last);
        fx_ir::well_formed(&last).unwrap();
        let names: Vec<String> = last.inputs().map(|(_, _, name)| name.to_owned()).collect();
        assert_eq!(names, [cut_name(all[0]), cut_name(all[1])]);
        assert_eq!(ancestors(&graph, graph.values[all[1]].def).len(), 2);
        assert_eq!(computed_operands(&graph, graph.values[all[2]].def), [all[1], all[0]]);
    }
}
