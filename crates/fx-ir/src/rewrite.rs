//! Editing a graph: uses, replacement, erasing dead nodes. Rewrite rules are in the passes, not here.

use ir_core::Arena;
use smallvec::SmallVec;

use crate::{Arg, Graph, NodeId, NodeKind, ValueId};

/// For every value the nodes that read it, in execution order, and whether the graph returns it. A snapshot.
pub struct Uses {
    users: Arena<ValueId, SmallVec<[NodeId; 2]>>,
    returned: Arena<ValueId, bool>,
}

impl Uses {
    /// Counts the uses of every value of `graph`; subgraphs take their operands as arguments of the call.
    pub fn of(graph: &Graph) -> Uses {
        let mut users: Arena<ValueId, SmallVec<[NodeId; 2]>> =
            graph.values.ids().map(|_| SmallVec::new()).collect();
        let mut returned: Arena<ValueId, bool> = graph.values.ids().map(|_| false).collect();
        for (id, node) in graph.iter() {
            node.for_each_use(&mut |v| {
                if graph.values.get(v).is_some() && users[v].last() != Some(&id) {
                    users[v].push(id);
                }
            });
        }
        for output in &graph.outputs {
            output.arg.for_each_value(&mut |v| {
                if graph.values.get(v).is_some() {
                    returned[v] = true;
                }
            });
        }
        Uses { users, returned }
    }
    /// The nodes that read `value`.
    pub fn users(&self, value: ValueId) -> &[NodeId] {
        &self.users[value]
    }
    /// Whether the graph returns `value`.
    pub fn is_returned(&self, value: ValueId) -> bool {
        self.returned[value]
    }
    /// Whether nothing reads or returns `value`.
    pub fn is_dead(&self, value: ValueId) -> bool {
        self.users[value].is_empty() && !self.returned[value]
    }
}

impl Graph {
    /// Makes every reader of a value (and the graph's outputs) read `new(value)` instead.
    pub fn map_uses(&mut self, new: &dyn Fn(ValueId) -> ValueId) {
        for &id in &self.order {
            if let NodeKind::Call { args, .. } = &mut self.nodes[id].kind {
                args.iter_mut().for_each(|a| a.for_each_value_mut(&mut |v| *v = new(*v)));
            }
        }
        for output in &mut self.outputs {
            output.arg.for_each_value_mut(&mut |v| *v = new(*v));
        }
    }

    /// Erases calls whose values are all unused, unless `keep` reports, from the target and its operands, that the call has
    /// a side effect. Returns the number of erased calls. Only the operator table knows side effects: use
    /// `prims::scalars::eliminate_dead`.
    pub fn eliminate_dead(&mut self, keep: &dyn Fn(&str, &[Arg]) -> bool) -> usize {
        let mut live: Arena<ValueId, bool> = self.values.ids().map(|_| false).collect();
        for output in &self.outputs {
            output.arg.for_each_value(&mut |v| live[v] = true);
        }
        let before = self.order.len();
        let mut kept: Vec<NodeId> = Vec::with_capacity(before);
        for &id in self.order.iter().rev() {
            let node = &self.nodes[id];
            let wanted = match &node.kind {
                NodeKind::Placeholder { .. } => true,
                NodeKind::Call { target, args } => {
                    keep(target, args) || node.outputs.iter().any(|&v| live[v])
                }
            };
            if wanted {
                node.for_each_use(&mut |v| live[v] = true);
                kept.push(id);
            }
        }
        kept.reverse();
        self.order = kept;
        before - self.order.len()
    }
}
