//! Merges forward and backward into one graph, for a training step that is compiled as one program.

use fx_ir::{Arg, Graph, NodeKind, OutputKind, ValueId, ValueType};
use ir_core::Arena;
use prims::Builder;
use rustc_hash::FxHashSet;

use super::{Contradiction, Partition};

impl Partition {
    /// Forward and backward in one graph: the forward's placeholders, then the tangents; the forward's outputs, then
    /// the gradients. Recomputed values are in the backward half and read values of the forward through `prims.barrier`, so
    /// that no pass merges them with what the forward computed.
    ///
    /// # Errors
    /// [`Contradiction`], which no partition should give.
    pub fn merge(&self) -> Result<Graph, Contradiction> {
        let mut merge = Merge {
            graph: self.forward.clone(),
            map: self.backward.values.ids().map(|_| None).collect(),
            behind: self.backward.values.ids().map(|_| None).collect(),
        };
        merge.graph.outputs.retain(|o| o.kind != OutputKind::Saved);
        merge.inputs(self);
        merge.calls(self)?;
        for output in &self.backward.outputs {
            let mut output = output.clone();
            merge.rename(self, &mut output.arg, false)?;
            merge.graph.outputs.push(output);
        }
        prims::scalars::eliminate_dead(&mut merge.graph);
        Ok(merge.graph)
    }
}

struct Merge {
    graph: Graph,
    /// The merged graph's value for each of the backward's.
    map: Arena<ValueId, Option<ValueId>>,
    /// The same after a barrier, for values of the forward.
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

    fn calls(&mut self, partition: &Partition) -> Result<(), Contradiction> {
        let backward = &partition.backward;
        let recomputed: FxHashSet<_> = partition.recomputed.iter().copied().collect();
        for (id, node) in backward.iter() {
            let NodeKind::Call { target, args } = &node.kind else { continue };
            let mut args = args.clone();
            for arg in &mut args {
                self.rename(partition, arg, recomputed.contains(&id))?;
            }
            let types = node.outputs.iter().map(|&v| {
                let value = &backward.values[v];
                (value.name.as_str(), value.ty.clone())
            });
            let outs = self.graph.call(target.clone(), args, types, node.origin);
            node.outputs.iter().zip(outs).for_each(|(&v, out)| self.map[v] = Some(out));
        }
        Ok(())
    }

    /// Replaces the backward's values by the merged graph's; `recomputed` for an operand of a recomputed call. All values are
    /// mapped before they are read: placeholders first, then calls in order.
    fn rename(
        &mut self,
        partition: &Partition,
        arg: &mut Arg,
        recomputed: bool,
    ) -> Result<(), Contradiction> {
        let backward = &partition.backward;
        let mut wrong = None;
        arg.for_each_value_mut(&mut |v| {
            let missing =
                || Contradiction(format!("`{}` is read before it is made", backward.values[*v].name));
            let own = self.map[*v].ok_or_else(missing);
            match own
                .and_then(|own| if recomputed { self.read_recomputed(backward, *v, own) } else { Ok(own) })
            {
                Ok(new) => *v = new,
                Err(e) => wrong = Some(e),
            }
        });
        wrong.map_or(Ok(()), Err)
    }

    /// A value as a recomputed call reads it: tensors of the forward through a barrier.
    fn read_recomputed(
        &mut self,
        backward: &Graph,
        v: ValueId,
        own: ValueId,
    ) -> Result<ValueId, Contradiction> {
        let value = &backward.values[v];
        let of_forward = backward.nodes[value.def].as_call().is_none();
        if !of_forward || !matches!(value.ty, ValueType::Tensor(_)) {
            return Ok(own);
        }
        if let Some(behind) = self.behind[v] {
            return Ok(behind);
        }
        let origin = self.graph.nodes[self.graph.values[own].def].origin;
        let name = format!("{}_again", value.name);
        let refused = |e| Contradiction(format!("`{}` does not go through a barrier: {e}", value.name));
        let barrier = Builder::new(&mut self.graph, name, origin).call1("prims.barrier", vec![own.into()]);
        let behind = barrier.map_err(refused)?;
        self.behind[v] = Some(behind);
        Ok(behind)
    }
}
