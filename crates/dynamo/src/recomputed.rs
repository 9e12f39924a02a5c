//! A compiled call in the history of its results: the captured graph on the sizes of the call, as one recorded node whose
//! results are there already. Only a gradient looks into it.

use std::sync::Arc;

use fx_ir::{Arg, Graph, InputKind, NodeKind, ValueId, ValueType};
use ir_core::{Atom, SymExpr, SymId, TensorMeta};
use rustc_hash::FxHashMap;
use tensor::{Tensor, TensorError};

use crate::body::Body;
use crate::node::{Call, Kind, Meta, Operand, Value};

/// A captured graph on numeric sizes.
pub struct Recomputed {
    body: Arc<Body>,
    seeded: bool,
}

impl Recomputed {
    /// The graph for inputs of these sizes; `None` where they do not determine its symbols.
    pub fn new(graph: &Graph, inputs: &[Tensor]) -> Option<Recomputed> {
        let mut graph = graph.clone();
        let users: Vec<(ValueId, InputKind)> = graph.inputs().map(|(v, kind, _)| (v, kind)).collect();
        let mut places: Vec<ValueId> =
            users.iter().filter(|(_, kind)| *kind != InputKind::Seed).map(|(v, _)| *v).collect();
        let mut sizes: FxHashMap<SymId, i64> = FxHashMap::default();
        for (v, tensor) in places.iter().zip(inputs) {
            let known = graph.meta(*v)?.sizes.iter().zip(tensor.sizes());
            sizes.extend(known.filter_map(|(e, &n)| Some((e.as_sym()?, n as i64))));
        }
        on_sizes(&mut graph, &sizes);
        let seed = users.iter().find(|(_, kind)| *kind == InputKind::Seed).map(|(v, _)| *v);
        places.extend(seed);
        Some(Recomputed { body: Arc::new(Body::new(graph, places)), seeded: seed.is_some() })
    }

    /// A call whose results are known, in the history of these.
    ///
    /// # Errors
    /// No memory.
    pub fn record(
        &self,
        operands: Vec<Value>,
        seed: u64,
        results: Vec<Tensor>,
    ) -> Result<Vec<Value>, TensorError> {
        let mut operands: Vec<Operand> = operands.into_iter().map(Operand::Value).collect();
        if self.seeded {
            operands.push(Operand::Value(Value::of(Tensor::from_vec(vec![seed as i64], &[])?)));
        }
        let metas: Vec<Meta> = results.iter().map(Meta::of).collect();
        let call = Call::new(Kind::Graph(Arc::clone(&self.body)), operands, metas, true);
        call.store(results);
        Ok(Call::results(&call))
    }
}

/// Replaces symbols by numbers.
fn on_sizes(graph: &mut Graph, sizes: &FxHashMap<SymId, i64>) {
    let number = |e: &SymExpr| {
        e.subst(&|atom| match atom {
            Atom::Sym(id) => sizes.get(id).map(|n| SymExpr::from_i64(*n)),
            _ => None,
        })
    };
    for (_, value) in graph.values.iter_mut() {
        match &mut value.ty {
            ValueType::Tensor(TensorMeta { sizes, strides, offset, .. }) => {
                sizes.iter_mut().chain(strides.iter_mut()).chain([offset]).for_each(|e| *e = number(e));
            }
            ValueType::Int(e) => *e = number(e),
            _ => {}
        }
    }
    for (_, node) in graph.nodes.iter_mut() {
        if let NodeKind::Call { args, .. } = &mut node.kind {
            args.iter_mut().for_each(|arg| in_arg(arg, &number));
        }
    }
    graph.guards.clear();
    for (_, sub) in graph.subgraphs.iter_mut() {
        on_sizes(sub, sizes);
    }
}

fn in_arg(arg: &mut Arg, number: &dyn Fn(&SymExpr) -> SymExpr) {
    match arg {
        Arg::Int(e) => *e = number(e),
        Arg::List(items) => items.iter_mut().for_each(|item| in_arg(item, number)),
        _ => {}
    }
}
