//! Control flow: each body becomes functional by itself; operands that a branch of `cond` writes are extra results of both
//! branches and of the call.

use fx_ir::{Arg, Graph, Node, Output, OutputKind, SubgraphId, ValueId, ValueType};
use ir_core::EntityId;

use super::{Binding, FunctionalizeProblem, Pass, Step};

/// A functional graph with the last value of each of its inputs, and whether the graph wrote it.
pub(super) struct Body {
    pub(super) graph: Graph,
    pub(super) inputs: Vec<(ValueId, bool)>,
}

impl Pass<'_> {
    /// A call with subgraphs. Its operands are the items of its last argument.
    pub(super) fn higher_order(&mut self, node: &Node, target: &str, args: &[Arg]) -> Step<()> {
        let mut new_args = self.read_args(args)?;
        let written = self.written_operands(args);
        if !written.is_empty() && target != "higher_order.cond" {
            return Err(FunctionalizeProblem::Subgraph);
        }
        for arg in &mut new_args {
            if let Arg::Graph(body) = arg {
                *body = self.extended(*body, &written);
            }
        }
        let operands = match args.last() {
            Some(Arg::List(items)) => items.as_slice(),
            _ => &[],
        };
        let mut types: Vec<(String, ValueType)> = Vec::new();
        types.extend(
            node.outputs.iter().map(|&v| (self.old.values[v].name.clone(), self.old.values[v].ty.clone())),
        );
        let mut views = Vec::new();
        for &n in &written {
            let view =
                operands.get(n..).and_then(|o| self.viewed(o)).ok_or(FunctionalizeProblem::NoOperand)?;
            types.push(("written".into(), ValueType::Tensor(self.storages.view(view).meta.clone())));
            views.push(view);
        }
        let named = types.iter().map(|(name, ty)| (name.as_str(), ty.clone()));
        let outs = self.out.call(target, new_args, named, node.origin);
        for (&old, &new) in node.outputs.iter().zip(&outs) {
            let value = &self.old.values[old];
            self.bindings[old] = Some(match &value.ty {
                ValueType::Tensor(meta) => {
                    Binding::View(self.storages.add(new, meta.clone(), &value.name, None))
                }
                _ => Binding::Plain(new),
            });
        }
        for (&view, &new) in views.iter().zip(&outs[node.outputs.len()..]) {
            self.write(view, new, node.origin)?;
        }
        Ok(())
    }

    /// Positions of the operands that any of the call's subgraphs writes.
    fn written_operands(&self, args: &[Arg]) -> Vec<usize> {
        let mut written = Vec::new();
        for arg in args {
            let Arg::Graph(body) = arg else { continue };
            let Some(body) = self.bodies.get(body.index()) else { continue };
            let here = body.inputs.iter().enumerate().filter(|(_, (_, w))| *w).map(|(n, _)| n);
            written.extend(here);
        }
        written.sort_unstable();
        written.dedup();
        written
    }

    /// The subgraph with the last values of the inputs at `written` as further results. A subgraph that another call
    /// has taken already is copied.
    fn extended(&mut self, id: SubgraphId, written: &[usize]) -> SubgraphId {
        let Some(body) = self.bodies.get(id.index()) else { return id };
        if written.is_empty() && !self.taken[id.index()] {
            self.taken[id.index()] = true;
            return id;
        }
        let mut graph = body.graph.clone();
        for &n in written {
            let arg = body.inputs.get(n).map_or(Arg::None, |(value, _)| Arg::Value(*value));
            graph.outputs.push(Output { kind: OutputKind::User, arg });
        }
        if std::mem::replace(&mut self.taken[id.index()], true) {
            return self.out.subgraphs.push(graph);
        }
        self.out.subgraphs[id] = graph;
        id
    }
}
