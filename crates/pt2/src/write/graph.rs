//! The graph and its signature: inputs in the order that PyTorch gives them (parameters, buffers, constants, arguments), calls with
//! named arguments, outputs.

use std::collections::{HashMap, HashSet};

use fx_ir::{Arg, Graph, InputKind, Node, NodeId, NodeKind, OutputKind, ValueId, ValueType};
use ir_core::SymExpr;
use prims::Schema;
use serde_json::{Map, Value, json};

use super::args;
use crate::error::Result;
use crate::json_path::JsonPath;
use crate::program::{UserInput, default, is_symbolic};

/// The state of writing a graph.
pub(super) struct Writer<'a> {
    pub(super) graph: &'a Graph,
    /// Name of every value: an identifier of Python, each once.
    pub(super) names: HashMap<ValueId, String>,
    taken: HashSet<String>,
    inputs: Vec<Value>,
    pub(super) nodes: Vec<Value>,
    tensors: Map<String, Value>,
    pub(super) sym_ints: Map<String, Value>,
    /// Nodes that have a size as their value.
    pub(super) made: HashMap<SymExpr, String>,
}

/// The place of an input of this kind: that of its class among all inputs.
fn rank(kind: InputKind) -> usize {
    match kind {
        InputKind::Parameter => 0,
        InputKind::Buffer { .. } => 1,
        InputKind::Constant => 2,
        InputKind::User | InputKind::Seed => 3,
    }
}

impl<'a> Writer<'a> {
    pub(super) fn new(graph: &'a Graph) -> Result<Writer<'a>> {
        let mut writer = Writer {
            graph,
            names: HashMap::new(),
            taken: HashSet::new(),
            inputs: Vec::new(),
            nodes: Vec::new(),
            tensors: Map::new(),
            sym_ints: Map::new(),
            made: HashMap::new(),
        };
        for (_, node) in graph.iter() {
            for &v in &node.outputs {
                let name = writer.fresh(&graph.values[v].name);
                writer.names.insert(v, name);
            }
        }
        Ok(writer)
    }

    /// An identifier that no value has, made from `wanted`.
    pub(super) fn fresh(&mut self, wanted: &str) -> String {
        let mut base: String =
            wanted.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
        if !base.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            base.insert(0, '_');
        }
        let numbered = (0..).map(|n| if n == 0 { base.clone() } else { format!("{base}_{n}") });
        for name in numbered {
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
        base
    }

    /// Describes a value in the tables.
    fn describe(&mut self, v: ValueId, requires_grad: bool, at: &JsonPath<'_>) -> Result<()> {
        match &self.graph.values[v].ty {
            ValueType::Tensor(meta) => {
                let described = args::meta(self.graph, meta, requires_grad);
                self.tensors.insert(self.names[&v].clone(), described);
            }
            ValueType::Int(_) => self.integer(v),
            ValueType::None => {}
            ValueType::Float | ValueType::Bool => {
                let what = format!("`{}` is a number that the program computes", self.names[&v]);
                return Err(at.unsupported(what, "write the model without numbers taken from tensors"));
            }
        }
        Ok(())
    }

    /// The inputs; returns their specs.
    pub(super) fn inputs(&mut self, users: &[UserInput], at: &JsonPath<'_>) -> Result<Vec<Value>> {
        let at = at.field("graph");
        let mut all: Vec<(ValueId, InputKind, String)> =
            self.graph.inputs().map(|(v, kind, name)| (v, kind, name.to_owned())).collect();
        all.sort_by_key(|(_, kind, _)| rank(*kind));
        let mut specs = Vec::new();
        for (v, kind, outside) in &all {
            if *kind == InputKind::Seed {
                let what = "random numbers with a seed that the caller gives";
                return Err(at.unsupported(what, "write the graph before it is prepared for an executor"));
            }
            self.describe(*v, *kind == InputKind::Parameter, &at)?;
            if *kind == InputKind::User {
                continue;
            }
            let arg = json!({ "name": self.names[v] });
            specs.push(match kind {
                InputKind::Parameter => json!({ "parameter": { "arg": arg, "parameter_name": outside } }),
                InputKind::Buffer { persistent } => {
                    json!({ "buffer": { "arg": arg, "buffer_name": outside, "persistent": persistent } })
                }
                _ => json!({ "tensor_constant": { "arg": arg, "tensor_constant_name": outside } }),
            });
            self.inputs.push(self.value(*v));
        }
        for user in users {
            let value = match (user.value, &user.constant) {
                (Some(v), _) => {
                    let value = self.value(v);
                    specs.push(json!({ "user_input": { "arg": value } }));
                    value
                }
                (None, constant) => {
                    let value = self.arg(constant.as_ref().unwrap_or(&Arg::None), None, &at)?;
                    specs.push(json!({ "constant_input": { "name": user.name, "value": value } }));
                    value
                }
            };
            self.inputs.push(value);
        }
        Ok(specs)
    }

    /// All calls.
    pub(super) fn calls(&mut self, at: &JsonPath<'_>) -> Result<()> {
        let at = at.field("graph");
        let at = at.field("nodes");
        for (n, (id, node)) in self.graph.iter().enumerate() {
            if let NodeKind::Call { target, args } = &node.kind {
                self.call((id, node), target, args, &at.item(n))?;
            }
        }
        Ok(())
    }

    fn call(
        &mut self,
        (id, node): (NodeId, &Node),
        target: &str,
        args: &[Arg],
        at: &JsonPath<'_>,
    ) -> Result<()> {
        let schema = prims::schema_of(target).filter(|_| !target.starts_with("prims."));
        let Some(schema) = schema else {
            if is_symbolic(target) {
                let what = format!(
                    "`{target}` of a size that is no whole number, or of a number that the program computes"
                );
                return Err(at.unsupported(what, "write the model without arithmetic on such numbers"));
            }
            let what =
                format!("the operator `{target}`, which PyTorch does not have or whose schema is not known");
            return Err(at.unsupported(what, "write the graph as it was captured or functionalized"));
        };
        let inputs = self.given(schema, args, at)?;
        let mut outputs = Vec::with_capacity(node.outputs.len());
        for &v in &node.outputs {
            self.describe(v, false, at)?;
            outputs.push(self.value(v));
        }
        // The items of a list are values of their own.
        if let [one] = &schema.returns[..]
            && one.ty.list
        {
            let names: Vec<Value> = node.outputs.iter().map(|v| json!({ "name": self.names[v] })).collect();
            outputs = vec![json!({ "as_tensors": names })];
        }
        let name = node
            .outputs
            .first()
            .map_or_else(|| self.graph.node_name(id).to_owned(), |v| self.names[v].clone());
        self.nodes.push(json!({
            "target": format!("torch.ops.{target}"),
            "inputs": inputs,
            "outputs": outputs,
            "metadata": self.metadata(id),
            "is_hop_single_tensor_return": null,
            "name": name,
        }));
        Ok(())
    }

    /// The arguments that are not what the schema says for a missing one. All before the last such positional argument are written,
    /// since positions count.
    fn given(&mut self, schema: &Schema, args: &[Arg], at: &JsonPath<'_>) -> Result<Vec<Value>> {
        let at = at.field("inputs");
        let is_default =
            |n: usize| schema.args.get(n).and_then(|d| default(d).ok()).as_ref() == Some(&args[n]);
        let positional = |n: usize| schema.args.get(n).is_some_and(|d| !d.keyword_only);
        let last = (0..args.len()).rev().find(|&n| positional(n) && !is_default(n));
        let mut out = Vec::new();
        for (n, (arg, declared)) in args.iter().zip(&schema.args).enumerate() {
            let by_position = !declared.keyword_only;
            if by_position && last.is_none_or(|last| n > last) || !by_position && is_default(n) {
                continue;
            }
            let value = self.arg(arg, Some(&declared.ty), &at.item(n))?;
            let kind = if by_position { 1 } else { 2 };
            out.push(json!({ "name": declared.name, "arg": value, "kind": kind }));
        }
        Ok(out)
    }

    /// The module and the line that a node comes from.
    fn metadata(&self, id: NodeId) -> Value {
        let origin = self.graph.origin(id);
        let mut metadata = Map::new();
        if !origin.module.is_empty() {
            // `key,path,class` of the module.
            let module = &origin.module;
            let key = format!("L__self__{}", module.replace('.', "_"));
            let stack = format!("L__self__,,torch.nn.Module;{key},{module},torch.nn.Module");
            metadata.insert("nn_module_stack".into(), stack.into());
        }
        if !origin.function.is_empty() {
            metadata.insert("torch_fn".into(), format!("{};", origin.function).into());
        }
        if let Some(source) = &origin.source {
            metadata.insert("stack_trace".into(), trace(source).into());
        }
        metadata.into()
    }

    /// The results and their specs.
    pub(super) fn outputs(&mut self, at: &JsonPath<'_>) -> Result<(Vec<Value>, Vec<Value>)> {
        let at = at.field("graph");
        let at = at.field("outputs");
        let (mut outputs, mut specs) = (Vec::new(), Vec::new());
        for (n, output) in self.graph.outputs.iter().enumerate() {
            let at = at.item(n);
            let value = self.arg(&output.arg, None, &at)?;
            let named = || value.get("as_tensor").cloned().unwrap_or_default();
            specs.push(match &output.kind {
                OutputKind::User => json!({ "user_output": { "arg": value } }),
                OutputKind::Loss => json!({ "loss_output": { "arg": named() } }),
                OutputKind::BufferMutation(name) => {
                    json!({ "buffer_mutation": { "arg": named(), "buffer_name": name } })
                }
                OutputKind::InputMutation(name) => {
                    json!({ "user_input_mutation": { "arg": named(), "user_input_name": name } })
                }
                OutputKind::ParameterGradient(name) => {
                    json!({ "gradient_to_parameter": { "arg": named(), "parameter_name": name } })
                }
                OutputKind::InputGradient(name) => {
                    json!({ "gradient_to_user_input": { "arg": named(), "user_input_name": name } })
                }
                OutputKind::Saved => {
                    let what = "a graph that keeps values for its backward pass";
                    return Err(at.unsupported(what, "write the graph before it is partitioned"));
                }
            });
            outputs.push(value);
        }
        Ok((outputs, specs))
    }

    /// The graph's JSON.
    pub(super) fn finish(self, outputs: Vec<Value>) -> Value {
        json!({
            "inputs": self.inputs,
            "outputs": outputs,
            "nodes": self.nodes,
            "tensor_values": self.tensors,
            "sym_int_values": self.sym_ints,
            "sym_bool_values": {},
            "sym_float_values": {},
            "custom_obj_values": {},
            "is_single_tensor_return": false,
        })
    }
}

/// A Python stack trace of one frame, from `model.py:12 in forward, x = self.conv(x)`.
fn trace(source: &str) -> String {
    let (head, code) = source.split_once(", ").unwrap_or((source, ""));
    let (place, function) = head.split_once(" in ").unwrap_or((head, ""));
    let (file, line) = place.rsplit_once(':').unwrap_or((place, "0"));
    format!("  File \"{file}\", line {line}, in {function}\n    {code}")
}
