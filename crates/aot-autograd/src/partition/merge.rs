//! One graph of forward and backward again, for a training step that is compiled as one program.

use fx_ir::{Arg, Graph, NodeKind, OutputKind, ValueId, ValueType};
use ir_core::Arena;
use prims::Builder;
use rustc_hash::FxHashSet;

use super::Partition;

impl Partition {
    /// Forward and backward in one graph: the forward's placeholders, then the tangents; the forward's outputs, then
    /// the gradients. What is computed anew stands in the backward half and reads values of the forward through
    /// `prims.barrier`, so that no pass takes it for what the forward computed.
    pub fn merge(&self) -> Graph {
        let mut merge = Merge {
            graph: self.forward.clone(),
            map: self.backward.values.ids().map(|_| None).collect(),
            behind: self.backward.values.ids().map(|_| None).collect(),
        };
        merge.graph.outputs.retain(|o| o.kind != OutputKind::Saved);
        merge.inputs(self);
        merge.calls(self);
        for output in &self.backward.outputs {
            let mut output = output.clone();
            output.arg.for_each_value_mut(&mut |v| *v = merge.map[*v].unwrap_or(*v));
            merge.graph.outputs.push(output);
        }
        prims::scalars::eliminate_dead(&mut merge.graph);
        merge.graph
    }
}

struct Merge {
    graph: Graph,
    /// The merged graph's value for each of the backward's.
    map: Arena<ValueId, Option<ValueId>>,
    /// The same behind a barrier, for values of the forward.
    behind: Arena<ValueId, Option<ValueId>>,
}

impl Merge {
    /// The backward's placeholders are values of the forward, or tangents.
    fn inputs(&mut self, partition: &Partition) {
        for saved in &partition.saved {
            if let Arg::Value(v) = saved.arg {
                self.map[saved.placeholder] = Some(v);
            }
        }
        let calls = self.graph.order.iter().position(|&id| self.graph.nodes[id].as_call().is_some());
        let mut place = calls.unwrap_or(self.graph.order.len());
        for (v, kind, name) in partition.backward.inputs() {
            if self.map[v].is_some() || partition.saved.iter().any(|s| s.placeholder == v) {
                continue;
            }
            let same = self.graph.inputs().find(|(_, k, n)| *k == kind && *n == name).map(|(own, _, _)| own);
            if let Some(own) = same {
                self.map[v] = Some(own);
                continue;
            }
            let value = &partition.backward.values[v];
            let new = self.graph.placeholder(kind, name, &value.name, value.ty.clone());
            // Placeholders stand first.
            if let Some(node) = self.graph.order.pop() {
                self.graph.order.insert(place, node);
                place += 1;
            }
            self.map[v] = Some(new);
        }
    }

    fn calls(&mut self, partition: &Partition) {
        let backward = &partition.backward;
        let recomputed: FxHashSet<_> = partition.recomputed.iter().copied().collect();
        for (id, node) in backward.iter() {
            let NodeKind::Call { target, args } = &node.kind else { continue };
            let mut args = args.clone();
            for arg in &mut args {
                arg.for_each_value_mut(&mut |v| {
                    *v = if recomputed.contains(&id) { self.read_anew(backward, *v) } else { self.read(*v) };
                });
            }
            let types = node.outputs.iter().map(|&v| {
                let value = &backward.values[v];
                (value.name.as_str(), value.ty.clone())
            });
            let outs = self.graph.call(target.clone(), args, types, node.origin);
            node.outputs.iter().zip(outs).for_each(|(&v, out)| self.map[v] = Some(out));
        }
    }

    /// All values of the backward are mapped before they are read: placeholders first, then calls in order.
    fn read(&self, v: ValueId) -> ValueId {
        debug_assert!(self.map[v].is_some(), "{v} is read before it is made");
        self.map[v].unwrap_or(v)
    }

    /// A value as what is computed anew reads it: tensors of the forward through a barrier.
    fn read_anew(&mut self, backward: &Graph, v: ValueId) -> ValueId {
        let own = self.read(v);
        let value = &backward.values[v];
        let of_forward = backward.nodes[value.def].as_call().is_none();
        if !of_forward || !matches!(value.ty, ValueType::Tensor(_)) {
            return own;
        }
        if let Some(behind) = self.behind[v] {
            return behind;
        }
        let origin = self.graph.nodes[self.graph.values[own].def].origin;
        let name = format!("{}_again", value.name);
        // A barrier takes any tensor.
        let behind = Builder::new(&mut self.graph, name, origin)
            .call1("prims.barrier", vec![own.into()])
            .unwrap_or(own);
        self.behind[v] = Some(behind);
        behind
    }
}
