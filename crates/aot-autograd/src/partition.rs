//! Splits a joint graph into a forward and a backward graph.
//!
//! The default partition: the forward computes what it computed before, and keeps (outputs of kind `Saved`) every value
//! of its own that the backward reads. Not here yet: the min-cut partition, which recomputes cheap values instead.

use fx_ir::{Arg, Graph, InputKind, Node, NodeKind, Output, OutputKind, ValueId, ValueType};
use ir_core::{Atom, EntityId, SymExpr, SymId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::JointGraph;

/// The two halves of a joint graph.
#[derive(Clone, Debug)]
pub struct Partition {
    /// The joint graph's forward outputs, then the saved values.
    pub forward: Graph,
    /// Placeholders: those of the joint graph that it reads (of their own kind), one for each saved value in order, the
    /// tangents. Outputs: the gradients.
    pub backward: Graph,
    /// The saved values in order. A size that the backward needs and cannot read off a tensor is an integer.
    pub saved: Vec<Saved>,
}

/// A value that the forward keeps for the backward.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// The forward's value or size, as the forward returns it.
    pub arg: Arg,
    /// Its placeholder in the backward.
    pub placeholder: ValueId,
}

impl Partition {
    /// Bytes of the saved tensors, where their sizes are known ahead of time. Parameters and inputs that the backward
    /// reads are not kept anew and do not count.
    pub fn saved_bytes(&self) -> Option<i64> {
        let bytes = |s: &Saved| match &s.arg {
            Arg::Value(v) => {
                let meta = self.forward.meta(*v)?;
                Some(meta.numel().as_const()? * meta.dtype.size() as i64)
            }
            _ => Some(8),
        };
        self.saved.iter().map(bytes).sum()
    }
}

/// Splits by the default rule: what the backward reads of the forward is saved.
pub fn partition(joint: &JointGraph) -> Partition {
    let mut forward = joint.graph.clone();
    forward.outputs.truncate(joint.forward_outputs);
    forward.order.retain(|&id| !joint.is_backward(id));
    let mut split = Backward::new(joint);
    let reads = split.reads();
    split.placeholders(&reads);
    let sizes = split.unbound_sizes();
    split.sizes(&sizes);
    split.body();
    let Backward { graph: backward, saved, .. } = split;
    for value in &saved {
        forward.outputs.push(Output { kind: OutputKind::Saved, arg: value.arg.clone() });
    }
    forward.eliminate_dead(&|_| false);
    Partition { forward, backward, saved }
}

/// The backward graph under construction.
struct Backward<'j> {
    joint: &'j JointGraph,
    graph: Graph,
    map: FxHashMap<ValueId, ValueId>,
    saved: Vec<Saved>,
}

impl<'j> Backward<'j> {
    fn new(joint: &'j JointGraph) -> Backward<'j> {
        let mut graph = Graph::new(format!("{}_backward", joint.graph.name));
        graph.symbols = joint.graph.symbols.clone();
        graph.origins = joint.graph.origins.clone();
        Backward { joint, graph, map: FxHashMap::default(), saved: Vec::new() }
    }

    fn gradients(&self) -> &'j [Output] {
        &self.joint.graph.outputs[self.joint.forward_outputs..]
    }

    fn nodes(&self) -> impl Iterator<Item = &'j Node> + use<'j> {
        let joint = self.joint;
        joint.graph.iter().filter(|(id, _)| joint.is_backward(*id)).map(|(_, node)| node)
    }

    /// Values of the forward that the backward reads, in the order in which the forward makes them.
    fn reads(&self) -> Vec<ValueId> {
        let mut reads = FxHashSet::default();
        let graph = &self.joint.graph;
        let mut visit = |v: ValueId| {
            if !self.joint.is_backward(graph.values[v].def) {
                reads.insert(v);
            }
        };
        self.nodes().for_each(|node| node.for_each_use(&mut visit));
        self.gradients().iter().for_each(|o| o.arg.for_each_value(&mut visit));
        let made = graph.iter().flat_map(|(_, node)| node.outputs.iter().copied());
        made.filter(|v| reads.contains(v)).collect()
    }

    /// Placeholders of the joint graph, then the saved values, then the tangents.
    fn placeholders(&mut self, reads: &[ValueId]) {
        let joint = self.joint;
        for &v in reads {
            let value = &joint.graph.values[v];
            if let NodeKind::Placeholder { kind, name } = &joint.graph.nodes[value.def].kind {
                let new = self.graph.placeholder(*kind, name.clone(), &value.name, value.ty.clone());
                self.map.insert(v, new);
            }
        }
        for &v in reads {
            let value = &joint.graph.values[v];
            if !self.map.contains_key(&v) {
                let name = format!("saved_{}", self.saved.len());
                let new = self.graph.placeholder(InputKind::User, name, &value.name, value.ty.clone());
                self.map.insert(v, new);
                self.saved.push(Saved { arg: Arg::Value(v), placeholder: new });
            }
        }
        for node in self.nodes() {
            if let (NodeKind::Placeholder { kind, name }, Some(&v)) = (&node.kind, node.outputs.first()) {
                let value = &joint.graph.values[v];
                let new = self.graph.placeholder(*kind, name.clone(), &value.name, value.ty.clone());
                self.map.insert(v, new);
            }
        }
    }

    /// Size symbols that the backward computes with and that none of its placeholders has as a size by itself.
    fn unbound_sizes(&self) -> Vec<SymId> {
        let mut bound = FxHashSet::default();
        for (v, _, _) in self.graph.inputs() {
            match &self.graph.values[v].ty {
                ValueType::Tensor(meta) => bound.extend(meta.sizes.iter().filter_map(SymExpr::as_sym)),
                ValueType::Int(e) => bound.extend(e.as_sym()),
                _ => {}
            }
        }
        let mut free: Vec<SymId> = Vec::new();
        let mut visit = |e: &SymExpr| {
            e.for_each_leaf(&mut |atom| match atom {
                Atom::Sym(id) if !bound.contains(id) && !free.contains(id) => free.push(*id),
                _ => {}
            });
        };
        for node in self.nodes() {
            if let NodeKind::Call { args, .. } = &node.kind {
                args.iter().for_each(|a| for_each_size(a, &mut visit));
            }
            for &v in &node.outputs {
                if let ValueType::Tensor(meta) = &self.joint.graph.values[v].ty {
                    meta.sizes.iter().for_each(&mut visit);
                }
            }
        }
        free.sort_unstable_by_key(|id| id.index());
        free
    }

    /// Sizes travel as integers, before the tangents as any saved value.
    fn sizes(&mut self, sizes: &[SymId]) {
        for &id in sizes {
            let name = format!("saved_{}", self.saved.len());
            let e = SymExpr::sym(id);
            let value_name = self.graph.symbols[id].name.clone();
            let new = self.graph.placeholder(InputKind::User, name, &value_name, ValueType::Int(e.clone()));
            // Before the tangents, behind the other saved values.
            let tangents = self.nodes().filter(|n| matches!(n.kind, NodeKind::Placeholder { .. })).count();
            if let Some(node) = self.graph.order.pop() {
                let place = self.graph.order.len() - tangents;
                self.graph.order.insert(place, node);
            }
            self.saved.push(Saved { arg: Arg::Int(e), placeholder: new });
        }
    }

    /// The calls of the backward pass and the gradients.
    fn body(&mut self) {
        for node in self.nodes() {
            let NodeKind::Call { target, args } = &node.kind else { continue };
            let mut args = args.clone();
            args.iter_mut().for_each(|a| a.for_each_value_mut(&mut |v| *v = self.map[v]));
            let values = &self.joint.graph.values;
            let types = node.outputs.iter().map(|&v| (values[v].name.as_str(), values[v].ty.clone()));
            let outs = self.graph.call(target.clone(), args, types, node.origin);
            self.map.extend(node.outputs.iter().copied().zip(outs));
        }
        for output in self.gradients() {
            let mut output = output.clone();
            output.arg.for_each_value_mut(&mut |v| *v = self.map[v]);
            self.graph.outputs.push(output);
        }
    }
}

fn for_each_size(arg: &Arg, visit: &mut dyn FnMut(&SymExpr)) {
    match arg {
        Arg::Int(e) => visit(e),
        Arg::List(items) => items.iter().for_each(|a| for_each_size(a, visit)),
        _ => {}
    }
}
