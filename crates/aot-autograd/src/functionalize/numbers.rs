//! Numbers that a program returns (`x.shape[0]`, `n.item()`, `2.5`) become tensors without dimensions, so that every
//! backend returns one tensor for each: integers as `i64`, floats as `f64`, truth values as `bool`.

use fx_ir::{Arg, Graph, OriginId, OutputKind, ValueType};
use ir_core::{DType, Scalar, Shape, TensorMeta};

/// Replaces the user's results that are numbers. Floats and truth values that a call computes are such tensors after the
/// decomposition.
pub(super) fn to_tensors(graph: &mut Graph) {
    for n in 0..graph.outputs.len() {
        let output = &graph.outputs[n];
        if output.kind != OutputKind::User {
            continue;
        }
        let (number, dtype) = match &output.arg {
            Arg::Value(v) => match &graph.values[*v].ty {
                ValueType::Int(e) => (Arg::Int(e.clone()), DType::I64),
                _ => continue,
            },
            Arg::Int(e) => (Arg::Int(e.clone()), DType::I64),
            Arg::Scalar(s) => (Arg::Scalar(*s), dtype_of(*s)),
            _ => continue,
        };
        let ty = ValueType::Tensor(TensorMeta::contiguous(dtype, Shape::new()));
        let args = vec![number, dtype.into(), Arg::None, Arg::None, Arg::None];
        let name = format!("number_{n}");
        let made = graph.call("aten.scalar_tensor.default", args, [(name.as_str(), ty)], OriginId(0));
        graph.outputs[n].arg = Arg::Value(made[0]);
    }
}

fn dtype_of(number: Scalar) -> DType {
    match number {
        Scalar::Bool(_) => DType::Bool,
        Scalar::Int(_) => DType::I64,
        Scalar::Float(_) => DType::F64,
        Scalar::Complex(..) => DType::C128,
    }
}
