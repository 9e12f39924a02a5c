//! A subgraph made ready to be compiled as a program of its own: its placeholders become inputs with the sizes and strides
//! of what they are given, its results tensors.

use fx_ir::{Arg, Graph, InputKind, NodeKind, OriginId, Output, OutputKind, ValueType};
use ir_core::{Atom, DType, Scalar, Shape, SymExpr, SymId, TensorMeta};
use rustc_hash::FxHashMap;

/// What a placeholder is given.
pub(super) enum PlaceholderOperand {
    /// Memory of these sizes and strides.
    Tensor(Shape, Shape),
    /// An integer.
    Int(SymExpr),
}

/// The subgraph with its placeholders as given; those that are integers are replaced by what they are given. `None`
/// where the numbers of placeholders and operands differ.
pub(super) fn prepare(subgraph: &Graph, given: &[PlaceholderOperand]) -> Option<Graph> {
    let mut graph = subgraph.clone();
    let places: Vec<_> = graph.inputs().map(|(v, _, _)| v).collect();
    if places.len() != given.len() {
        return None;
    }
    let mut known: FxHashMap<SymId, SymExpr> = FxHashMap::default();
    for (v, given) in places.iter().zip(given) {
        match (&graph.values[*v].ty, given) {
            (ValueType::Tensor(meta), PlaceholderOperand::Tensor(sizes, _)) => {
                for (own, outer) in meta.sizes.iter().zip(sizes) {
                    learn(&mut known, own, outer);
                }
            }
            (ValueType::Int(own), PlaceholderOperand::Int(e)) => learn(&mut known, own, e),
            _ => {}
        }
    }
    if !known.is_empty() {
        substitute(&mut graph, &known);
    }
    for (n, (v, given)) in places.iter().zip(given).enumerate() {
        let PlaceholderOperand::Tensor(sizes, strides) = given else { continue };
        if let ValueType::Tensor(meta) = &mut graph.values[*v].ty {
            (meta.sizes, meta.strides, meta.offset) = (sizes.clone(), strides.clone(), SymExpr::ZERO);
        }
        let def = graph.values[*v].def;
        if let NodeKind::Placeholder { kind, name } = &mut graph.nodes[def].kind {
            (*kind, *name) = (InputKind::User, format!("operand{n}"));
        }
    }
    results(&mut graph);
    Some(graph)
}

fn learn(known: &mut FxHashMap<SymId, SymExpr>, own: &SymExpr, outer: &SymExpr) {
    if let Some(id) = own.as_sym()
        && own != outer
    {
        known.entry(id).or_insert_with(|| outer.clone());
    }
}

/// Replaces symbols everywhere, in nested subgraphs too.
fn substitute(graph: &mut Graph, known: &FxHashMap<SymId, SymExpr>) {
    let replace = |e: &mut SymExpr| {
        *e = e.subst(&|a| if let Atom::Sym(id) = a { known.get(id).cloned() } else { None });
    };
    for (_, value) in graph.values.iter_mut() {
        match &mut value.ty {
            ValueType::Tensor(meta) => {
                meta.sizes.iter_mut().chain(&mut meta.strides).for_each(replace);
                replace(&mut meta.offset);
            }
            ValueType::Int(e) => replace(e),
            _ => {}
        }
    }
    for (_, node) in graph.nodes.iter_mut() {
        if let NodeKind::Call { args, .. } = &mut node.kind {
            args.iter_mut().for_each(|a| in_arg(a, &replace));
        }
    }
    graph.outputs.iter_mut().for_each(|o| in_arg(&mut o.arg, &replace));
    graph.subgraphs.iter_mut().for_each(|(_, g)| substitute(g, known));
}

fn in_arg(arg: &mut Arg, replace: &dyn Fn(&mut SymExpr)) {
    match arg {
        Arg::Int(e) => replace(e),
        Arg::List(items) => items.iter_mut().for_each(|a| in_arg(a, replace)),
        _ => {}
    }
}

/// Results that are numbers become tensors without dimensions, and each is what the caller gets.
fn results(graph: &mut Graph) {
    let outputs = std::mem::take(&mut graph.outputs);
    for Output { arg, .. } in outputs {
        let number = match &arg {
            Arg::Value(v) => match &graph.values[*v].ty {
                ValueType::Int(e) => Some((Arg::Int(e.clone()), DType::I64)),
                _ => None,
            },
            Arg::Int(e) => Some((Arg::Int(e.clone()), DType::I64)),
            Arg::Scalar(s @ Scalar::Bool(_)) => Some((Arg::Scalar(*s), DType::Bool)),
            Arg::Scalar(s @ Scalar::Float(_)) => Some((Arg::Scalar(*s), DType::F64)),
            Arg::Scalar(s) => Some((Arg::Scalar(*s), DType::I64)),
            _ => None,
        };
        let arg = number.map_or(arg, |(number, dtype)| Arg::Value(full(graph, number, dtype)));
        graph.outputs.push(Output { kind: OutputKind::User, arg });
    }
}

fn full(graph: &mut Graph, number: Arg, dtype: DType) -> fx_ir::ValueId {
    let ty = ValueType::Tensor(TensorMeta::contiguous(dtype, Shape::new()));
    let args = vec![Arg::List(Vec::new()), number, Arg::DType(dtype)];
    graph.call("prims.full", args, [("number", ty)], OriginId(0))[0]
}
