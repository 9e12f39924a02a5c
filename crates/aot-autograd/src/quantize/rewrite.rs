//! The graph of a quantized network: activations are quantized and dequantized before a layer, weights are integers that are
//! dequantized where they are read. Everything else stays as it was captured.

use std::collections::HashMap;

use fx_ir::{Arg, Graph, InputKind, NodeId, NodeKind, OriginId, Uses, ValueId, ValueType};
use ir_core::{DType, SymExpr, TensorMeta};

use super::{Affine, Layer, WeightForm};

/// What becomes of a layer.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The layer.
    pub layer: Layer,
    /// The form of its weight.
    pub form: WeightForm,
    /// The quantization of its input; none where it stays a float.
    pub input: Option<Affine>,
}

/// A rewritten graph.
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// The graph, with buffers for integers and factors.
    pub graph: Graph,
    /// For each quantized weight the names of its integers, its factors and, with a factor for each channel, its zero points.
    pub weights: HashMap<String, [String; 3]>,
}

/// Rewrites a graph. Values keep their numbers.
pub fn rewrite(graph: &Graph, choices: &[Choice]) -> Rewritten {
    let mut writer = Rewriting {
        graph: graph.clone(),
        inputs: HashMap::new(),
        weights: HashMap::new(),
        dequantized: HashMap::new(),
    };
    let by_node: HashMap<NodeId, &Choice> = choices.iter().map(|c| (c.layer.node, c)).collect();
    let mut placeholders = Vec::new();
    let mut order = Vec::new();
    for id in std::mem::take(&mut writer.graph.order) {
        if let Some(choice) = by_node.get(&id) {
            writer.layer(choice);
        }
        // What was made for the layer stands before it.
        for made in std::mem::take(&mut writer.graph.order) {
            let input = matches!(writer.graph.nodes[made].kind, NodeKind::Placeholder { .. });
            if input { placeholders.push(made) } else { order.push(made) }
        }
        order.push(id);
    }
    writer.graph.order = order;
    let calls = writer.graph.order.iter().position(|id| writer.graph.nodes[*id].as_call().is_some());
    let at = calls.unwrap_or(writer.graph.order.len());
    writer.graph.order.splice(at..at, placeholders);
    drop_replaced(&mut writer.graph, writer.weights.keys());
    Rewritten { graph: writer.graph, weights: writer.weights }
}

/// Leaves out parameters that nothing reads since their integers are read.
fn drop_replaced<'n>(graph: &mut Graph, replaced: impl Iterator<Item = &'n String>) {
    // A transposed view of a weight that only replaced products read is dead.
    let names: Vec<&String> = replaced.collect();
    graph.eliminate_dead(&|target, _| {
        !matches!(target, "aten.t.default" | "aten.transpose.int" | "aten.permute.default")
    });
    let uses = Uses::of(graph);
    let nodes = &graph.nodes;
    graph.order.retain(|id| match &nodes[*id].kind {
        NodeKind::Placeholder { kind: InputKind::Parameter, name } if names.contains(&name) => {
            nodes[*id].outputs.iter().any(|v| !uses.is_dead(*v))
        }
        _ => true,
    });
}

struct Rewriting {
    graph: Graph,
    /// The dequantized form of each activation.
    inputs: HashMap<ValueId, ValueId>,
    weights: HashMap<String, [String; 3]>,
    /// The dequantized form of each weight.
    dequantized: HashMap<ValueId, ValueId>,
}

impl Rewriting {
    fn layer(&mut self, choice: &Choice) {
        let (layer, origin) = (&choice.layer, self.graph.nodes[choice.layer.node].origin);
        let weight = match self.dequantized.get(&layer.weight) {
            Some(v) => *v,
            None => self.weight(choice, origin),
        };
        self.dequantized.insert(layer.weight, weight);
        let input = choice.input.map(|affine| self.activation(layer.input, affine, origin));
        let operand = self.operand(layer, weight, origin);
        let NodeKind::Call { args, .. } = &mut self.graph.nodes[layer.node].kind else { return };
        for (old, new) in operand.into_iter().chain(input.map(|new| (layer.input, new))) {
            // The first operand is the activation where both are one value.
            let mut at = args.iter_mut().filter(|a| matches!(a, Arg::Value(v) if *v == old));
            if let Some(arg) = at.next() {
                *arg = Arg::Value(new);
            }
        }
    }

    /// The layer's operand that is its weight, or the weight transposed, and what replaces it.
    fn operand(&mut self, layer: &Layer, weight: ValueId, origin: OriginId) -> Option<(ValueId, ValueId)> {
        let (_, args) = self.graph.nodes[layer.node].as_call()?;
        let is_weight = |a: &Arg| matches!(a, Arg::Value(v) if *v == layer.weight);
        if args.iter().any(is_weight) {
            return Some((layer.weight, weight));
        }
        let views = args.iter().filter_map(|a| if let Arg::Value(v) = a { Some(*v) } else { None });
        let view = views.into_iter().find(|v| {
            let def = self.graph.nodes[self.graph.values[*v].def].as_call();
            def.is_some_and(|(_, args)| args.first().is_some_and(is_weight))
        })?;
        let (target, args) = self.graph.nodes[self.graph.values[view].def].as_call()?;
        let (target, mut args) = (target.to_owned(), args.to_vec());
        args[0] = Arg::Value(weight);
        let value = &self.graph.values[view];
        let (name, ty) = (value.name.clone(), value.ty.clone());
        Some((view, self.graph.call(target, args, [(name.as_str(), ty)], origin)[0]))
    }

    /// Quantizes an activation, and dequantizes it, once for all layers that read it.
    fn activation(&mut self, v: ValueId, affine: Affine, origin: OriginId) -> ValueId {
        if let Some(known) = self.inputs.get(&v) {
            return *known;
        }
        let Some(meta) = self.graph.meta(v).cloned() else { return v };
        let name = self.graph.values[v].name.clone();
        let parameters = |v: ValueId| -> Vec<Arg> {
            vec![
                v.into(),
                affine.scale.into(),
                affine.zero_point.into(),
                0.into(),
                255.into(),
                DType::U8.into(),
            ]
        };
        let integers = TensorMeta { dtype: DType::U8, ..dense(&meta) };
        let q = self.call(
            "quantized_decomposed.quantize_per_tensor.default",
            parameters(v),
            (&name, "u8"),
            integers,
            origin,
        );
        let mut args = parameters(q);
        args.push(Arg::None);
        let d = self.call(
            "quantized_decomposed.dequantize_per_tensor.default",
            args,
            (&name, "rounded"),
            dense(&meta),
            origin,
        );
        self.inputs.insert(v, d);
        d
    }

    /// The buffers of a weight's integers and factors, and the dequantized weight.
    fn weight(&mut self, choice: &Choice, origin: OriginId) -> ValueId {
        let layer = &choice.layer;
        let Some(meta) = self.graph.meta(layer.weight).cloned() else { return layer.weight };
        let (low, high) = choice.form.range();
        let names = ["int8", "scale", "zero_point"].map(|what| format!("{}_{what}", layer.weight_name));
        let value = self.graph.values[layer.weight].name.clone();
        let (scales, zeros) = match choice.form {
            WeightForm::PerChannel => (vec![meta.sizes[layer.axis].clone()], true),
            WeightForm::Groups(length) => {
                let groups = meta.sizes[1].floor_div(&SymExpr::from_i64(length as i64));
                (vec![meta.sizes[0].clone(), groups], false)
            }
        };
        let of = |dtype: DType, sizes: Vec<SymExpr>| TensorMeta::contiguous(dtype, sizes);
        let integers = self.buffer(&names[0], (&value, "int8"), of(DType::I8, meta.sizes.to_vec()));
        let factors = self.buffer(&names[1], (&value, "scale"), of(DType::F32, scales.clone()));
        let zero = if zeros {
            self.buffer(&names[2], (&value, "zero_point"), of(DType::I64, scales)).into()
        } else {
            Arg::None
        };
        let mut args = vec![integers.into(), factors.into(), zero];
        let target = match choice.form {
            WeightForm::PerChannel => {
                let own = if meta.dtype == DType::F32 { Arg::None } else { meta.dtype.into() };
                args.extend([(layer.axis as i64).into(), low.into(), high.into(), DType::I8.into(), own]);
                "quantized_decomposed.dequantize_per_channel.default"
            }
            WeightForm::Groups(length) => {
                args.extend([
                    low.into(),
                    high.into(),
                    DType::I8.into(),
                    (length as i64).into(),
                    meta.dtype.into(),
                ]);
                "quantized_decomposed.dequantize_per_channel_group.default"
            }
        };
        self.weights.insert(layer.weight_name.clone(), names);
        self.call(target, args, (&value, "rounded"), dense(&meta), origin)
    }

    fn buffer(&mut self, name: &str, (value, what): (&str, &str), meta: TensorMeta) -> ValueId {
        let kind = InputKind::Buffer { persistent: true };
        self.graph.placeholder(kind, name, &format!("{value}_{what}"), ValueType::Tensor(meta))
    }

    fn call(
        &mut self,
        target: &str,
        args: Vec<Arg>,
        (value, what): (&str, &str),
        meta: TensorMeta,
        origin: OriginId,
    ) -> ValueId {
        let name = format!("{value}_{what}");
        self.graph.call(target, args, [(name.as_str(), ValueType::Tensor(meta))], origin)[0]
    }
}

/// The same tensor without gaps.
fn dense(meta: &TensorMeta) -> TensorMeta {
    TensorMeta {
        device: meta.device.clone(),
        ..TensorMeta::contiguous(meta.dtype, meta.sizes.iter().cloned())
    }
}
