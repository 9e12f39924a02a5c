//! Zero points of symmetric quantization: tensors of zeros among a program's constants, which its graph does not tell from
//! others. A call that is given one is given none instead, so that products of its weights need no correction by row sums.
//!
//! Not here: what dequantization is (`prims`), and how products of integers are found (`aot_autograd::passes`).

use std::borrow::Cow;

use fx_ir::{Arg, Graph, NodeKind, OutputKind, ValueId};
use pt2::WeightTable;

/// More elements than any weight has channels; larger tensors are not looked at.
const MOST: usize = 1 << 20;

/// The graph in which zero points that are constants of zeros are absent arguments, where the operator allows that.
pub(crate) fn without<'g>(graph: &'g Graph, weights: &WeightTable) -> Cow<'g, Graph> {
    let mut changed: Option<Graph> = None;
    for id in graph.order.clone() {
        let NodeKind::Call { target, args } = &graph.nodes[id].kind else { continue };
        let Some(at) = zero_point(target) else { continue };
        let Some(Arg::Value(v)) = args.get(at) else { continue };
        if !is_zeros(graph, weights, *v) {
            continue;
        }
        let new = changed.get_or_insert_with(|| graph.clone());
        if let NodeKind::Call { args, .. } = &mut new.nodes[id].kind {
            args[at] = Arg::None;
        }
    }
    changed.map_or(Cow::Borrowed(graph), Cow::Owned)
}

/// The number of the argument that is the zero point of an operator which may be without.
fn zero_point(target: &str) -> Option<usize> {
    let schema = prims::schema_of(target)?;
    let quantized = matches!(schema.namespace.as_str(), "quantized_decomposed" | "torchao");
    let named = |name: &str| name == "zero_point" || name == "zero_points";
    schema.args.iter().position(|a| quantized && a.ty.optional && named(&a.name))
}

/// Whether a value is a constant of zeros that the program does not write.
fn is_zeros(graph: &Graph, weights: &WeightTable, v: ValueId) -> bool {
    let NodeKind::Placeholder { name, .. } = &graph.nodes[graph.values[v].def].kind else { return false };
    let written = |kind: &OutputKind| matches!(kind, OutputKind::BufferMutation(n) if n == name);
    let tensor = weights.get(name).and_then(|w| w.tensor.as_ref());
    let zeros = tensor.is_some_and(|t| t.numel() <= MOST && t.iter().all(|x| x.as_f64() == 0.0));
    zeros && !graph.outputs.iter().any(|o| written(&o.kind))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{Program, Tensor};

    const GRAPH: &str = "fx 1.0
graph \"g\" {
  %w: i8[2, 3] = parameter \"w\"
  %s: f32[2] = buffer \"s\"
  %z: i64[2] = buffer \"z\"
  %y: f32[2, 3] = quantized_decomposed.dequantize_per_channel.default(%w, %s, %z, 0, -128, 127, i8)
  return %y
}
";

    /// Whether the call keeps its zero points.
    fn keeps(zeros: Vec<i64>) -> bool {
        let weights = BTreeMap::from([
            ("w".to_owned(), Tensor::from_vec(vec![1i8; 6], &[2, 3]).unwrap()),
            ("s".to_owned(), Tensor::from_vec(vec![0.5f32; 2], &[2]).unwrap()),
            ("z".to_owned(), Tensor::from_vec(zeros, &[2]).unwrap()),
        ]);
        let program = Program::from_graph(GRAPH.parse().unwrap(), &weights).unwrap();
        let text = without(program.graph(), &program.exported().weights).to_string();
        text.contains("(%w, %s, %z,")
    }

    #[test]
    fn zeros_are_no_argument() {
        assert!(!keeps(vec![0, 0]));
        assert!(keeps(vec![0, 1]));
    }
}
