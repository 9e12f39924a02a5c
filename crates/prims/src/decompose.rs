//! From the functional dialect to the prim dialect: every call is replaced by prims. All refusals are collected, so that
//! one report names everything that a model needs and that is not supported.

use fx_ir::{Arg, Graph, Node, NodeId, NodeKind, ValueId, ValueType};
use ir_core::{Arena, Atom, EntityId, Origin, SymExpr, SymId, TensorMeta};
use rustc_hash::FxHashMap;
use thiserror::Error;

use crate::legality::is_control_flow;
use crate::{Builder, OpError, Outs, control_types, functional_of, integer_inputs, lookup, scalars, seeds};

/// A call that could not be decomposed.
#[derive(Clone, Debug, Error)]
#[error("node `{node}` ({target}{}): {error}", at(origin))]
pub struct DecomposeError {
    /// Name of the node.
    pub node: String,
    /// Its operator.
    pub target: String,
    /// Where it comes from.
    pub origin: Origin,
    /// Why.
    #[source]
    pub error: OpError,
}

impl DecomposeError {
    /// Of a node of a graph.
    pub(crate) fn of(graph: &Graph, id: NodeId, error: OpError) -> DecomposeError {
        let target = graph.nodes[id].as_call().map_or("placeholder", |(target, _)| target).to_string();
        DecomposeError { node: graph.node_name(id).into(), target, origin: graph.origin(id).clone(), error }
    }
}

fn at(origin: &Origin) -> String {
    let text = origin.to_string();
    if text.is_empty() { text } else { format!(", from {text}") }
}

/// What decompositions may assume of where the program will run. Their results are the same but for roundings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecomposeCx {
    /// Tensors lie in memory of a device, which has so many threads that additions of several of them to one place in memory cost
    /// more than computing a value several times.
    pub device_memory: bool,
    /// The program's reader knows no attention whose weights are dropped: it gets one through all scores.
    pub whole_scores: bool,
    /// The program's reader knows no Fourier transforms: it gets products with matrices.
    pub matrix_transforms: bool,
}

/// The same program in prims. Placeholders, symbols and outputs stay; dead calls are removed, and so are the bindings of
/// integer inputs that are only computed with: these are read as tensors. Nothing is assumed of where it runs.
pub fn decompose(graph: &Graph) -> Result<Graph, Vec<DecomposeError>> {
    decompose_in(graph, DecomposeCx::default())
}

/// As [`decompose`], in the form that is quickest where the program will run.
pub fn decompose_in(graph: &Graph, cx: DecomposeCx) -> Result<Graph, Vec<DecomposeError>> {
    let (out, errors) = partial(graph, cx);
    if errors.is_empty() { Ok(out) } else { Err(errors) }
}

/// Decomposes what it can, for a report of everything that is not supported; outputs that depend on a refused call are
/// `None`, so the graph is not the program where there is an error.
pub fn decompose_partial(graph: &Graph) -> (Graph, Vec<DecomposeError>) {
    partial(graph, DecomposeCx::default())
}

fn partial(graph: &Graph, cx: DecomposeCx) -> (Graph, Vec<DecomposeError>) {
    let mut errors = Vec::new();
    let mut out = decompose_graph(graph, cx, None, &mut errors);
    if errors.is_empty() {
        integer_inputs::read_as_tensors(&mut out);
    }
    (out, errors)
}

/// Decomposes one call into `b`'s graph; `args` are values of that graph.
pub fn decompose_call(b: &mut Builder<'_>, target: &str, args: Vec<Arg>) -> Result<Outs, OpError> {
    match lookup(target).or_else(|| functional_of(target)) {
        Some(op) => b.call_op(op, args),
        None => Err(OpError::Unknown(target.into())),
    }
}

/// `outer` is the graph around a subgraph, which shares its symbols: a symbol added by one is not reused by another.
fn decompose_graph(
    graph: &Graph,
    cx: DecomposeCx,
    mut outer: Option<&mut Graph>,
    errors: &mut Vec<DecomposeError>,
) -> Graph {
    let mut out = Graph::new(graph.name.clone());
    match &mut outer {
        Some(outer) => outer.move_symbols(&mut out),
        None => out.share_symbols(graph),
    }
    out.origins = graph.origins.clone();
    for subgraph in graph.subgraphs.values() {
        let subgraph = decompose_graph(subgraph, cx, Some(&mut out), errors);
        out.subgraphs.push(subgraph);
    }
    // `None` marks values of refused calls: their readers are not reported again.
    let mut map: Arena<ValueId, Option<Arg>> = graph.values.ids().map(|_| None).collect();
    for (id, node) in graph.iter() {
        if let Err(error) = step((graph, cx), id, node, &mut out, &mut map) {
            let target = node.as_call().map_or("placeholder", |(target, _)| target).to_string();
            errors.push(DecomposeError {
                node: graph.node_name(id).into(),
                target,
                origin: graph.origin(id).clone(),
                error,
            });
        }
    }
    for output in &graph.outputs {
        let mut output = output.clone();
        output.arg = mapped(&output.arg, &map).unwrap_or(Arg::None);
        out.outputs.push(output);
    }
    if let Some(outer) = outer {
        out.move_symbols(outer);
    }
    scalars::eliminate_dead(&mut out);
    out
}

fn step(
    (graph, cx): (&Graph, DecomposeCx),
    id: NodeId,
    node: &Node,
    out: &mut Graph,
    map: &mut Arena<ValueId, Option<Arg>>,
) -> Result<(), OpError> {
    match &node.kind {
        NodeKind::Placeholder { kind, name } => {
            for &v in &node.outputs {
                let value = &graph.values[v];
                map[v] =
                    Some(Arg::Value(out.placeholder(*kind, name.clone(), &value.name, value.ty.clone())));
            }
            Ok(())
        }
        NodeKind::Call { target, args } => {
            let Some(args) = args.iter().map(|a| mapped(a, map)).collect::<Option<Vec<Arg>>>() else {
                // An operand was refused; an unknown operator is still reported.
                return if known(target) { Ok(()) } else { Err(OpError::Unknown(target.clone())) };
            };
            if target.starts_with("higher_order.") {
                return copy_higher_order(graph, node, target, args, out, map);
            }
            if scalars::is_scalar(target) {
                let types: Vec<ValueType> =
                    node.outputs.iter().map(|&v| graph.values[v].ty.clone()).collect();
                let mut b = Builder::new(out, graph.node_name(id), node.origin);
                let results = scalars::decompose(&mut b, target, &args, &types)?;
                node.outputs.iter().zip(results).for_each(|(&v, result)| map[v] = Some(result));
                return Ok(());
            }
            let symbols = out.symbols.len();
            let numbers = numbers_of(graph, node, map);
            let mut b = Builder::new(out, graph.node_name(id), node.origin).within(cx);
            b.expect(node.outputs.iter().map(|v| graph.meta(*v).map(|m| m.dtype)));
            b.weigh_as_numbers(&numbers);
            let outs = decompose_call(&mut b, target, args)?;
            if out.symbols.len() > symbols {
                unify_symbols(graph, graph.node_name(id), node, &outs, out, symbols)?;
            }
            define_sizes(graph, node, &outs, out)?;
            bind(graph, node, &outs, out, map, target)
        }
    }
}

/// The tensors that represent floats and truth values among a call's operands.
fn numbers_of(graph: &Graph, node: &Node, map: &Arena<ValueId, Option<Arg>>) -> Vec<ValueId> {
    let mut found = Vec::new();
    node.for_each_use(&mut |old| {
        let number = matches!(graph.values[old].ty, ValueType::Float | ValueType::Bool);
        if let (true, Some(Arg::Value(v))) = (number, &map[old]) {
            found.push(*v);
        }
    });
    found
}

fn known(target: &str) -> bool {
    target.starts_with("higher_order.")
        || scalars::is_scalar(target)
        || lookup(target).or_else(|| functional_of(target)).is_some()
}

/// Control flow stays a call whose subgraphs are decomposed.
fn copy_higher_order(
    graph: &Graph,
    node: &Node,
    target: &str,
    args: Vec<Arg>,
    out: &mut Graph,
    map: &mut Arena<ValueId, Option<Arg>>,
) -> Result<(), OpError> {
    if !is_control_flow(target) {
        return Err(OpError::Unknown(target.into()));
    }
    let typed = |&v: &ValueId| (graph.values[v].name.clone(), graph.values[v].ty.clone());
    let mut types: Vec<(String, ValueType)> = node.outputs.iter().map(typed).collect();
    let stated: Vec<ValueType> = types.iter().map(|(_, ty)| ty.clone()).collect();
    control_types::check(out, target, &args, &stated)?;
    let name = types.first().map_or_else(|| target.to_string(), |(name, _)| name.clone());
    let args = seeds::with_seed(out, target, args, &mut types, &name, node.origin)?;
    let types = types.iter().map(|(name, ty)| (name.as_str(), ty.clone()));
    let outs = out.call(target, args, types, node.origin);
    for (&old, &new) in node.outputs.iter().zip(&outs) {
        map[old] = Some(Arg::Value(new));
    }
    Ok(())
}

/// Sizes known only at run time have symbols in the program already: those that the decomposition made (from number
/// `first` on) are replaced by them.
fn unify_symbols(
    graph: &Graph,
    name: &str,
    node: &Node,
    outs: &[ValueId],
    out: &mut Graph,
    first: usize,
) -> Result<(), OpError> {
    let mut again = Vec::new();
    let mut known: FxHashMap<SymId, SymExpr> = FxHashMap::default();
    for (&old, &new) in node.outputs.iter().zip(outs) {
        let (Some(was), Some(is)) = (graph.meta(old), out.meta(new)) else { continue };
        for (was, is) in was.sizes.iter().zip(&is.sizes) {
            match is.as_sym() {
                // A size that the archive states is still determined by the data.
                Some(id) if id.index() >= first && was.as_const().is_none() => {
                    let bound = |v: &fx_ir::Value| v.ty == ValueType::Int(was.clone());
                    if known.insert(id, was.clone()).is_none() && out.values.values().any(bound) {
                        again.push((is.clone(), was.clone()));
                    }
                }
                _ => {}
            }
        }
    }
    // The program states that two calls have results of one length: the second number binds nothing, it is compared.
    let counted: Vec<SymExpr> = again.iter().map(|(is, _)| is.clone()).collect();
    let replace = |e: &SymExpr| {
        e.subst(&|atom| match atom {
            Atom::Sym(id) => known.get(id).cloned(),
            _ => None,
        })
    };
    for id in out.values.ids().collect::<Vec<_>>() {
        match &mut out.values[id].ty {
            ValueType::Tensor(meta) => {
                for e in meta.sizes.iter_mut().chain(&mut meta.strides) {
                    *e = replace(e);
                }
            }
            ValueType::Int(e) if !counted.contains(e) => *e = replace(e),
            _ => {}
        }
    }
    for id in out.nodes.ids().collect::<Vec<_>>() {
        if let NodeKind::Call { args, .. } = &mut out.nodes[id].kind {
            args.iter_mut().for_each(|a| replace_in(a, &replace));
        }
    }
    let mut b = Builder::new(out, name, node.origin);
    again.into_iter().try_for_each(|(is, was)| b.assert_same(is, was))
}

fn replace_in(arg: &mut Arg, replace: &dyn Fn(&SymExpr) -> SymExpr) {
    match arg {
        Arg::Int(e) => *e = replace(e),
        Arg::List(items) => items.iter_mut().for_each(|a| replace_in(a, replace)),
        _ => {}
    }
}

/// Sizes for which the program has a symbol, although the decomposition knows them: the symbol is bound to the value.
fn define_sizes(graph: &Graph, node: &Node, outs: &[ValueId], out: &mut Graph) -> Result<(), OpError> {
    for (&old, &new) in node.outputs.iter().zip(outs) {
        let (Some(was), Some(is)) = (graph.meta(old), out.meta(new)) else { continue };
        let pairs: Vec<(SymExpr, SymExpr)> =
            was.sizes.iter().cloned().zip(is.sizes.iter().cloned()).collect();
        for (was, is) in pairs.into_iter().filter(|(was, is)| was != is) {
            let unbacked = was.as_sym().is_some_and(|s| out.symbols.get(s).is_some_and(|s| s.unbacked));
            let bound = |out: &Graph| out.values.values().any(|v| v.ty == ValueType::Int(was.clone()));
            if unbacked && !bound(out) {
                let range = was.as_sym().and_then(|s| out.symbols.get(s)).map(|s| (s.min, s.max));
                let mut b = Builder::new(out, graph.values[old].name.as_str(), node.origin);
                in_range(&mut b, &is, range)?;
                let args = vec![Arg::List(vec![]), is.into(), ir_core::DType::I64.into()];
                let number = b.call1("prims.full", args)?;
                b.bind_item(number, was)?;
            }
        }
    }
    Ok(())
}

/// Asserts that a size is in the range that the program states.
fn in_range(b: &mut Builder<'_>, size: &SymExpr, range: Option<(i64, Option<i64>)>) -> Result<(), OpError> {
    let Some((min, max)) = range else { return Ok(()) };
    let ends = [Some(size - min), max.map(|max| SymExpr::from_i64(max) - size)];
    ends.into_iter().flatten().try_for_each(|left| {
        b.require_at_least(&left, 0, |graph| {
            let end = max.map_or_else(|| format!("at least {min}"), |max| format!("from {min} to {max}"));
            format!("the size is {}, it must be {end}", graph.size_text(size))
        })
    })
}

/// Maps a call's old values to its new ones, after a check that both agree.
fn bind(
    graph: &Graph,
    node: &Node,
    outs: &[ValueId],
    out: &Graph,
    map: &mut Arena<ValueId, Option<Arg>>,
    target: &str,
) -> Result<(), OpError> {
    if outs.len() < node.outputs.len() {
        let what = format!("gives {} values, the program expects {}", outs.len(), node.outputs.len());
        return Err(OpError::Invalid { op: target.into(), what });
    }
    for (&old, &new) in node.outputs.iter().zip(outs) {
        if let (ValueType::Tensor(was), ValueType::Tensor(is)) = (&graph.values[old].ty, &out.values[new].ty)
            && !agree(was, is)
            // Archives state wrong sizes for states of recurrent layers that nothing reads.
            && graph.is_read(old)
            // They state one dimension too many where such a state is read.
            && !is_recurrent(target)
        {
            return Err(wrong_meta(target, is, was));
        }
        map[old] = Some(Arg::Value(new));
    }
    Ok(())
}

/// Whether an operator is a recurrent layer.
pub(crate) fn is_recurrent(target: &str) -> bool {
    ["aten.lstm", "aten.gru", "aten.rnn_"].iter().any(|name| target.starts_with(name))
}

/// The error for a value whose stated type differs from the operator's rule.
pub(crate) fn wrong_meta(target: &str, given: &TensorMeta, stated: &TensorMeta) -> OpError {
    let what =
        format!("gives {given}, the program expects {stated}; export it again, or correct what it says");
    OpError::Invalid { op: target.into(), what }
}

pub(crate) fn agree(a: &TensorMeta, b: &TensorMeta) -> bool {
    let same = |(x, y): (&ir_core::SymExpr, &ir_core::SymExpr)| {
        x.as_const().zip(y.as_const()).is_none_or(|(x, y)| x == y)
    };
    a.dtype == b.dtype && a.rank() == b.rank() && a.sizes.iter().zip(&b.sizes).all(same)
}

/// The argument in terms of the new graph; `None` where a value was refused.
fn mapped(arg: &Arg, map: &Arena<ValueId, Option<Arg>>) -> Option<Arg> {
    match arg {
        Arg::Value(v) => map[*v].clone(),
        Arg::List(items) => items.iter().map(|a| mapped(a, map)).collect::<Option<_>>().map(Arg::List),
        other => Some(other.clone()),
    }
}
