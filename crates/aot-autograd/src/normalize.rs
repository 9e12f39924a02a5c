//! Runs the passes on a joint graph and restores the order of its nodes afterwards: those of the forward first.

use fx_ir::{Graph, NodeId, NodeKind, ValueId};
use ir_core::Arena;

use crate::JointGraph;
use crate::passes::{PassCx, Stats, optimize};

impl JointGraph {
    /// Runs every pass on the whole graph, so that expressions common to forward and backward are found. The cotangent of a
    /// loss is opaque: a merged graph ([`crate::Partition::merge`]) may be optimized further.
    pub fn optimize(&mut self, cx: &PassCx) -> Vec<(&'static str, Stats)> {
        let mut cx = cx.clone();
        cx.opaque.extend(self.seed);
        let stats = optimize(&mut self.graph, &cx);
        self.normalize();
        stats
    }

    /// Renumbers the nodes: what the forward outputs need, then the rest, of which the tangents' placeholders are.
    fn normalize(&mut self) {
        let forward = self.needed_by_forward();
        let old = &self.graph;
        let mut new = Graph::new(old.name.clone());
        new.share_symbols(old);
        new.origins = old.origins.clone();
        new.subgraphs = old.subgraphs.clone();
        let mut map: Arena<ValueId, ValueId> = old.values.ids().collect();
        let (first, rest): (Vec<NodeId>, Vec<NodeId>) = old.order.iter().partition(|id| forward[**id]);
        first.into_iter().for_each(|id| copy(old, id, &mut new, &mut map));
        let backward_from = new.nodes.len();
        rest.into_iter().for_each(|id| copy(old, id, &mut new, &mut map));
        // Placeholders stand first; the order among them stays.
        let is_call = |id: &NodeId| matches!(new.nodes[*id].kind, NodeKind::Call { .. });
        let mut order = new.order.clone();
        order.sort_by_key(is_call);
        new.order = order;
        new.outputs = old.outputs.clone();
        new.outputs.iter_mut().for_each(|o| o.arg.for_each_value_mut(&mut |v| *v = map[*v]));
        for v in self.tangents.iter_mut().flatten() {
            *v = map[*v];
        }
        for (input, _) in &mut self.gradients {
            *input = map[*input];
        }
        // The outputs after the forward's are the gradients that there are, in order.
        let outputs = new.outputs[self.forward_outputs..].iter();
        let gradients = self.gradients.iter_mut().filter_map(|(_, g)| g.as_mut());
        for (gradient, output) in gradients.zip(outputs) {
            output.arg.for_each_value(&mut |v| *gradient = v);
        }
        self.seed = self.seed.map(|v| map[v]);
        self.backward_from = backward_from;
        self.graph = new;
    }

    /// What the forward outputs need, and all placeholders but the tangents.
    fn needed_by_forward(&self) -> Arena<NodeId, bool> {
        let graph = &self.graph;
        let mut needed: Arena<NodeId, bool> = graph.nodes.ids().map(|_| false).collect();
        for output in &graph.outputs[..self.forward_outputs] {
            output.arg.for_each_value(&mut |v| needed[graph.values[v].def] = true);
        }
        for (id, node) in graph.iter().rev() {
            let tangent = node.outputs.first().is_some_and(|&v| self.tangents.contains(&Some(v)));
            if node.as_call().is_none() && !tangent {
                needed[id] = true;
            }
            if needed[id] {
                node.for_each_use(&mut |v| needed[graph.values[v].def] = true);
            }
        }
        needed
    }
}

fn copy(old: &Graph, id: NodeId, new: &mut Graph, map: &mut Arena<ValueId, ValueId>) {
    let node = &old.nodes[id];
    let outs = match &node.kind {
        NodeKind::Placeholder { kind, name } => {
            let Some(&v) = node.outputs.first() else { return };
            let value = &old.values[v];
            vec![new.placeholder(*kind, name.clone(), &value.name, value.ty.clone())]
        }
        NodeKind::Call { target, args } => {
            let mut args = args.clone();
            args.iter_mut().for_each(|a| a.for_each_value_mut(&mut |v| *v = map[*v]));
            let types = node.outputs.iter().map(|&v| (old.values[v].name.as_str(), old.values[v].ty.clone()));
            new.call(target.clone(), args, types, node.origin).to_vec()
        }
    };
    node.outputs.iter().zip(outs).for_each(|(&v, out)| map[v] = out);
}
