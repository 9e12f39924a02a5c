//! A graph and its tensors in double precision.

use fx_ir::{Arg, Graph, NodeKind, ValueId, ValueType};
use ir_core::DType;
use rustc_hash::FxHashSet;
use tensor::Tensor;

use crate::Error;

/// The dtype of the same kind with 64 bits a number; integers and truth values stay as they are.
pub(super) fn wide(dtype: DType) -> DType {
    match dtype {
        d if d.is_complex() => DType::C128,
        d if d.is_float() => DType::F64,
        d => d,
    }
}

/// The tensor in double precision.
pub(crate) fn widened(tensor: &Tensor) -> Result<Tensor, Error> {
    Ok(tensor.to_dtype(wide(tensor.dtype()))?)
}

/// The graph with every float in double precision, conversions between floats included.
pub(crate) fn in_double(graph: &Graph) -> Graph {
    let mut graph = graph.clone();
    graph.subgraphs.iter_mut().for_each(|(_, inner)| *inner = in_double(inner));
    for (_, value) in graph.values.iter_mut() {
        if let ValueType::Tensor(meta) = &mut value.ty {
            meta.dtype = wide(meta.dtype);
        }
    }
    for (_, node) in graph.nodes.iter_mut() {
        if let NodeKind::Call { args, .. } = &mut node.kind {
            for arg in args {
                if let Arg::DType(dtype) = arg {
                    *dtype = wide(*dtype);
                }
            }
        }
    }
    graph
}

/// The results of calls whose values are the same in double precision as in the interpreter: random numbers, whose bits depend on
/// the dtype, the bits of a number as another dtype, and floats that no float goes into (filled tensors, conversions of
/// integers), whose dtype may be nowhere in the call.
pub(super) fn without_counterpart(graph: &Graph) -> Vec<ValueId> {
    let (prims, _) = prims::decompose_partial(graph);
    let mut drawing: FxHashSet<&str> = FxHashSet::default();
    if let Some(seed) = prims.seed() {
        for (id, node) in prims.iter().filter(|(_, node)| node.as_call().is_some()) {
            node.for_each_use(&mut |v| {
                if v == seed {
                    drawing.insert(prims.node_name(id));
                }
            });
        }
    }
    let is_float = |v: ValueId| graph.meta(v).is_some_and(|m| m.dtype.is_inexact());
    let mut found = Vec::new();
    for (id, node) in graph.iter() {
        let Some((target, _)) = node.as_call() else { continue };
        let mut reads = false;
        node.for_each_use(&mut |v| reads |= is_float(v));
        let made =
            !reads && node.outputs.iter().any(|&v| is_float(v)) && !target.starts_with("higher_order.");
        if made || target == "aten.view.dtype" || drawing.contains(graph.node_name(id)) {
            found.extend(node.outputs.iter().copied().filter(|&v| graph.meta(v).is_some()));
        }
    }
    found
}
