//! Layers that can be quantized: products and convolutions of an activation with a parameter.

use fx_ir::{Arg, Graph, InputKind, NodeId, NodeKind, ValueId};
use prims::Call;

/// A product or a convolution with a constant weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The call.
    pub node: NodeId,
    /// The module that it comes from, else the name of its result.
    pub name: String,
    /// The operator.
    pub target: String,
    /// The activation.
    pub input: ValueId,
    /// The parameter, `[o, i, …]` or `[i, o]`.
    pub weight: ValueId,
    /// The parameter's name.
    pub weight_name: String,
    /// The parameter's dimension of output channels.
    pub axis: usize,
    /// Whether the weight is a matrix that a product sums over, rather than the windows of a convolution.
    pub is_product: bool,
    /// The result.
    pub output: ValueId,
}

/// The places of an operator's operands: the activation's argument, the weight's, and the weight's dimension of output channels.
struct Form {
    input: usize,
    weight: usize,
    axis: usize,
    is_product: bool,
}

/// What is known of an operator with weights.
fn form(target: &str, args: &[Arg]) -> Option<Form> {
    let conv = Some(Form { input: 0, weight: 1, axis: 0, is_product: false });
    match target {
        "aten.linear.default" => Some(Form { input: 0, weight: 1, axis: 0, is_product: true }),
        "aten.mm.default" | "aten.matmul.default" => {
            Some(Form { input: 0, weight: 1, axis: 1, is_product: true })
        }
        "aten.addmm.default" => Some(Form { input: 1, weight: 2, axis: 1, is_product: true }),
        "aten.conv1d.default"
        | "aten.conv2d.default"
        | "aten.conv3d.default"
        | "aten.conv1d.padding"
        | "aten.conv2d.padding"
        | "aten.conv3d.padding" => conv,
        "aten.convolution.default" => {
            let op = prims::lookup(target)?;
            conv.filter(|_| matches!(Call { op, args }.bool("transposed"), Ok(false)))
        }
        _ => None,
    }
}

/// Every layer of a graph, in its order.
pub fn layers(graph: &Graph) -> Vec<Layer> {
    graph.iter().filter_map(|(id, _)| layer(graph, id)).collect()
}

fn layer(graph: &Graph, id: NodeId) -> Option<Layer> {
    let node = &graph.nodes[id];
    let (target, args) = node.as_call()?;
    let form = form(target, args)?;
    let (Arg::Value(input), Arg::Value(operand)) = (args.get(form.input)?, args.get(form.weight)?) else {
        return None;
    };
    let rank = graph.meta(*operand)?.rank();
    if form.is_product && rank != 2 {
        return None;
    }
    let (weight, axis) = stored(graph, *operand, form.axis)?;
    let NodeKind::Placeholder { kind: InputKind::Parameter, name } =
        &graph.nodes[graph.values[weight].def].kind
    else {
        return None;
    };
    let floats = graph.meta(weight)?.dtype.is_float() && graph.meta(*input)?.dtype.is_float();
    let output = *node.outputs.first()?;
    let module = &graph.origin(id).module;
    let result = &graph.values[output].name;
    let shown = if module.is_empty() { result.clone() } else { module.clone() };
    floats.then(|| Layer {
        node: id,
        name: shown,
        target: target.to_owned(),
        input: *input,
        weight,
        weight_name: name.clone(),
        axis,
        is_product: form.is_product,
        output,
    })
}

/// The value that a transposed matrix is of, and the dimension there that `axis` of the operand is.
fn stored(graph: &Graph, v: ValueId, axis: usize) -> Option<(ValueId, usize)> {
    let Some((target, args)) = graph.nodes[graph.values[v].def].as_call() else { return Some((v, axis)) };
    let swaps = match target {
        "aten.t.default" => true,
        "aten.transpose.int" | "aten.permute.default" => graph.meta(v)?.rank() == 2,
        _ => false,
    };
    let Some(Arg::Value(of)) = args.first().filter(|_| swaps) else { return None };
    let same =
        graph.meta(*of)?.sizes == graph.meta(v)?.sizes && graph.meta(*of)?.strides == graph.meta(v)?.strides;
    // A permutation that moves nothing is of no use here, and is not worth a case of its own.
    (!same).then_some((*of, 1 - axis))
}
