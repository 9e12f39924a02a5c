//! Builds the two graphs, once it is decided which nodes the backward computes.
//!
//! A node may be in both: the backward then recomputes it, just before it is first read.

use fx_ir::{Arg, Graph, InputKind, NodeId, NodeKind, Output, OutputKind, ValueId, ValueType};
use ir_core::{Arena, Atom, EntityId, SymExpr, SymId};
use rustc_hash::FxHashSet;

use super::{Contradiction, Partition, Saved};
use crate::JointGraph;

/// Splits a joint graph; `backward` says for every node whether the backward computes it if it needs it (placeholders
/// apart). What it reads beyond that is saved.
pub(super) fn split(joint: &JointGraph, backward: &Arena<NodeId, bool>) -> Result<Partition, Contradiction> {
    let order = backward_order(joint, backward);
    let mut split = Backward::new(joint, order);
    let reads = split.reads();
    split.placeholders(&reads);
    let sizes = split.unbound_sizes();
    split.sizes(&sizes);
    let recomputed = split.body()?;
    let Backward { graph, saved, .. } = split;
    let forward = forward(joint, &saved);
    Ok(Partition { forward, backward: graph, saved, recomputed })
}

/// Everything that its outputs and the saved values need.
fn forward(joint: &JointGraph, saved: &[Saved]) -> Graph {
    let mut forward = joint.graph.clone();
    forward.outputs.truncate(joint.forward_outputs);
    let dependent = joint.tangent_dependent();
    forward.order.retain(|&id| !dependent[id]);
    for value in saved {
        forward.outputs.push(Output { kind: OutputKind::Saved, arg: value.arg.clone() });
    }
    prims::scalars::eliminate_dead(&mut forward);
    forward
}

/// The calls of the backward, ordered so that calls that do not depend on a tangent come as late as possible and occupy
/// memory as briefly as possible.
fn backward_order(joint: &JointGraph, backward: &Arena<NodeId, bool>) -> Vec<NodeId> {
    let graph = &joint.graph;
    let dependent = joint.tangent_dependent();
    let is_call = |id: NodeId| matches!(graph.nodes[id].kind, NodeKind::Call { .. });
    let mut placed: Arena<NodeId, bool> = graph.nodes.ids().map(|_| false).collect();
    let mut order = Vec::new();
    let mut place = |root: NodeId, order: &mut Vec<NodeId>| {
        let mut stack = vec![(root, false)];
        while let Some((id, ready)) = stack.pop() {
            if placed[id] || !backward[id] || !is_call(id) {
                continue;
            }
            if ready {
                placed[id] = true;
                order.push(id);
                continue;
            }
            stack.push((id, true));
            let mut operands = Vec::new();
            graph.nodes[id].for_each_use(&mut |v| operands.push(graph.values[v].def));
            stack.extend(operands.into_iter().rev().filter(|&d| !placed[d]).map(|d| (d, false)));
        }
    };
    for (id, _) in graph.iter().filter(|(id, _)| dependent[*id]) {
        place(id, &mut order);
    }
    for output in &graph.outputs[joint.forward_outputs..] {
        output.arg.for_each_value(&mut |v| place(graph.values[v].def, &mut order));
    }
    order
}

/// The backward graph under construction.
struct Backward<'j> {
    joint: &'j JointGraph,
    graph: Graph,
    /// The backward's value for each of the joint graph's.
    map: Arena<ValueId, Option<ValueId>>,
    saved: Vec<Saved>,
    /// Calls of the joint graph that it makes, in order.
    order: Vec<NodeId>,
    /// Names of buffers, parameters and inputs that the forward writes: the backward cannot read their old values.
    written: FxHashSet<&'j str>,
}

impl<'j> Backward<'j> {
    fn new(joint: &'j JointGraph, order: Vec<NodeId>) -> Backward<'j> {
        let mut graph = Graph::new(format!("{}_backward", joint.graph.name));
        // The backward is called after the forward with the same sizes, which checked the guards.
        graph.symbols = joint.graph.symbols.clone();
        graph.origins = joint.graph.origins.clone();
        graph.subgraphs = joint.graph.subgraphs.clone();
        let map = joint.graph.values.ids().map(|_| None).collect();
        let written = joint.graph.outputs.iter().filter_map(|o| match &o.kind {
            OutputKind::BufferMutation(name) | OutputKind::InputMutation(name) => Some(name.as_str()),
            _ => None,
        });
        Backward { joint, graph, map, saved: Vec::new(), order, written: written.collect() }
    }

    fn gradients(&self) -> &'j [Output] {
        &self.joint.graph.outputs[self.joint.forward_outputs..]
    }

    /// Values that the backward reads and does not compute, in the order in which the joint graph makes them.
    fn reads(&self) -> Vec<ValueId> {
        let graph = &self.joint.graph;
        let mut made: Arena<NodeId, bool> = graph.nodes.ids().map(|_| false).collect();
        self.order.iter().for_each(|&id| made[id] = true);
        let mut reads: Arena<ValueId, bool> = graph.values.ids().map(|_| false).collect();
        let mut visit = |v: ValueId| reads[v] = !made[graph.values[v].def];
        self.order.iter().for_each(|&id| graph.nodes[id].for_each_use(&mut visit));
        self.gradients().iter().for_each(|o| o.arg.for_each_value(&mut visit));
        let all = graph.iter().flat_map(|(_, node)| node.outputs.iter().copied());
        all.filter(|&v| reads[v] && !self.is_tangent(v)).collect()
    }

    fn is_tangent(&self, v: ValueId) -> bool {
        self.joint.tangents.contains(&Some(v))
    }

    /// Kind and name where `v` is a placeholder that the backward can receive too.
    fn as_input(&self, v: ValueId) -> Option<(InputKind, &'j str)> {
        let joint = self.joint;
        match &joint.graph.nodes[joint.graph.values[v].def].kind {
            NodeKind::Placeholder { kind, name } if !self.written.contains(name.as_str()) => {
                Some((*kind, name))
            }
            _ => None,
        }
    }

    fn placeholder(&mut self, v: ValueId, kind: InputKind, name: String) -> ValueId {
        let value = &self.joint.graph.values[v];
        let new = self.graph.placeholder(kind, name, &value.name, value.ty.clone());
        self.map[v] = Some(new);
        new
    }

    /// Placeholders of the joint graph, then the saved values, then the tangents.
    fn placeholders(&mut self, reads: &[ValueId]) {
        for &v in reads {
            if let Some((kind, name)) = self.as_input(v) {
                self.placeholder(v, kind, name.to_owned());
            }
        }
        for &v in reads {
            if self.map[v].is_none() {
                let name = format!("saved_{}", self.saved.len());
                let new = self.placeholder(v, InputKind::User, name);
                self.saved.push(Saved { arg: Arg::Value(v), placeholder: new });
            }
        }
        for v in self.tangents() {
            if let Some((kind, name)) = self.as_input(v) {
                self.placeholder(v, kind, name.to_owned());
            }
        }
    }

    fn tangents(&self) -> Vec<ValueId> {
        self.joint.tangents.iter().copied().flatten().collect()
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
        for &id in &self.order {
            let node = &self.joint.graph.nodes[id];
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

    /// Sizes are passed as integers, before the tangents, like any saved value.
    fn sizes(&mut self, sizes: &[SymId]) {
        for &id in sizes {
            let name = format!("saved_{}", self.saved.len());
            let e = SymExpr::sym(id);
            let value_name = self.graph.symbols[id].name.clone();
            let new = self.graph.placeholder(InputKind::User, name, &value_name, ValueType::Int(e.clone()));
            // Before the tangents, after the other saved values.
            let tangents = self.tangents().len();
            if let Some(node) = self.graph.order.pop() {
                let place = self.graph.order.len() - tangents;
                self.graph.order.insert(place, node);
            }
            self.saved.push(Saved { arg: Arg::Int(e), placeholder: new });
        }
    }

    /// The calls and the gradients. Returns the calls that depend on no tangent.
    fn body(&mut self) -> Result<Vec<NodeId>, Contradiction> {
        let joint = self.joint;
        let dependent = joint.tangent_dependent();
        let mut recomputed = Vec::new();
        for id in std::mem::take(&mut self.order) {
            let node = &joint.graph.nodes[id];
            let NodeKind::Call { target, args } = &node.kind else { continue };
            let mut args = args.clone();
            args.iter_mut().try_for_each(|a| self.rename(a))?;
            let values = &joint.graph.values;
            let types = node.outputs.iter().map(|&v| (values[v].name.as_str(), values[v].ty.clone()));
            let new = self.graph.nodes.next_id();
            let outs = self.graph.call(target.clone(), args, types, node.origin);
            node.outputs.iter().zip(outs).for_each(|(&v, out)| self.map[v] = Some(out));
            if !dependent[id] {
                recomputed.push(new);
            }
        }
        for output in self.gradients() {
            let mut output = output.clone();
            self.rename(&mut output.arg)?;
            self.graph.outputs.push(output);
        }
        Ok(recomputed)
    }

    /// Replaces the joint graph's values by the backward's. All are present: what is read is computed before or is a
    /// placeholder.
    fn rename(&self, arg: &mut Arg) -> Result<(), Contradiction> {
        let mut missing = None;
        arg.for_each_value_mut(&mut |v| match self.map[*v] {
            Some(new) => *v = new,
            None => missing = Some(*v),
        });
        let Some(v) = missing else { return Ok(()) };
        let name = &self.joint.graph.values[v].name;
        Err(Contradiction(format!("the backward reads `{name}`, which it neither makes nor is given")))
    }
}

fn for_each_size(arg: &Arg, visit: &mut dyn FnMut(&SymExpr)) {
    match arg {
        Arg::Int(e) => visit(e),
        Arg::List(items) => items.iter().for_each(|a| for_each_size(a, visit)),
        _ => {}
    }
}
