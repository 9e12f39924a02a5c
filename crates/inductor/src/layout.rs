//! Sanitizes the strides at a graph's boundary. Those of inputs and outputs come from the captured graph, and compiled code
//! addresses memory by them: strides with overlaps are replaced by row-major ones, and so are those with gaps unless the caller has
//! such tensors. Strides of all other values are chosen by `realize`.

use std::borrow::Cow;

use fx_ir::{Arg, Graph, InputKind, OutputKind, ValueId, ValueType};
use ir_core::{SymExpr, TensorMeta, contiguous_strides};

use crate::Options;

/// The graph with placeholders in strides of dense tensors or, with `gaps`, of tensors whose elements lie apart. A user's input that nothing reads keeps its own: it has no
/// memory then, and may exist for its sizes alone.
pub(crate) fn of_inputs(graph: &Graph, gaps: bool) -> Cow<'_, Graph> {
    let strange = |v: &ValueId| graph.meta(*v).is_some_and(|m| m.memory_order().is_none());
    let changes = |name: &str| {
        graph.outputs.iter().any(|o| matches!(&o.kind, OutputKind::InputMutation(of) if of == name))
    };
    let mut changed: Vec<ValueId> = Vec::new();
    for (v, kind, name) in graph.inputs().filter(|(v, _, _)| strange(v)) {
        let apart = gaps && kind == InputKind::User && !changes(name);
        if apart && graph.meta(v).is_some_and(|m| m.is_apart() && m.offset == SymExpr::ZERO) {
            continue;
        }
        if kind != InputKind::User || graph.is_read(v) {
            changed.push(v);
        }
    }
    if changed.is_empty() {
        return Cow::Borrowed(graph);
    }
    let mut graph = graph.clone();
    for v in changed {
        if let ValueType::Tensor(meta) = &mut graph.values[v].ty {
            (meta.strides, meta.offset) = (contiguous_strides(&meta.sizes), SymExpr::ZERO);
        }
    }
    Cow::Owned(graph)
}

/// The options with strides of dense tensors for outputs.
pub(crate) fn of_outputs(graph: &Graph, options: &Options) -> Options {
    let mut options = options.clone();
    for (output, strides) in graph.outputs.iter().zip(&mut options.output_strides) {
        let Arg::Value(v) = output.arg else { continue };
        let (Some(meta), Some(wanted)) = (graph.meta(v), &strides) else { continue };
        let laid = TensorMeta { strides: wanted.clone(), ..meta.clone() };
        if laid.memory_order().is_none() {
            *strides = None;
        }
    }
    options
}
