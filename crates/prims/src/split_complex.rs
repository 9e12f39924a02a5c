//! From a graph of prims to one without complex numbers: a complex value becomes two real ones, a prim on complex values
//! becomes prims on real ones, by the rule of its entry ([`crate::ComplexRule`]).
//!
//! At the program's boundary a complex tensor `[…]` with strides `s` is the real tensor `[…, 2]` with strides `2 s, 1` over
//! the same memory (PyTorch's `view_as_real`). At that of a subgraph it is two tensors. A graph without complex values is
//! only copied. Not here: the formulas (`ops/complex_*.rs`), and the tensors at the boundary (`tensor::complex_view`).

use fx_ir::{Arg, Graph, InputKind, Node, NodeId, NodeKind, Output, ValueId, ValueType};
use ir_core::{Arena, Shape, SymExpr, TensorMeta};
use smallvec::SmallVec;

use crate::complex_rule::halves;
use crate::decompose::DecomposeError;
use crate::{Builder, ComplexCall, ComplexRule, Kind, OpError, Outs, Parts, Split, SplitArg, lookup};

/// The meta of the real tensor that a complex one is at the boundary; others stay.
pub fn boundary_meta(meta: &TensorMeta) -> TensorMeta {
    if !meta.dtype.is_complex() {
        return meta.clone();
    }
    let twice = |e: &SymExpr| e * 2;
    TensorMeta {
        dtype: meta.dtype.to_real(),
        device: meta.device.clone(),
        sizes: meta.sizes.iter().cloned().chain([SymExpr::from_i64(2)]).collect(),
        strides: boundary_strides(&meta.strides),
        offset: twice(&meta.offset),
    }
}

/// The strides of a complex tensor's real form.
pub fn boundary_strides(strides: &[SymExpr]) -> Shape {
    strides.iter().map(|s| s * 2).chain([SymExpr::ONE]).collect()
}

/// Whether a value of the graph or of one of its subgraphs is complex.
pub fn has_complex(graph: &Graph) -> bool {
    let complex = |v: &ValueId| graph.meta(*v).is_some_and(|m| m.dtype.is_complex());
    graph.iter().any(|(_, node)| node.outputs.iter().any(&complex))
        || graph.subgraphs.values().any(has_complex)
}

/// The program in real tensors.
///
/// # Errors
/// Every call without a rule for complex values, in one report.
pub fn split_complex(graph: &Graph) -> Result<Graph, Vec<DecomposeError>> {
    if !has_complex(graph) {
        return Ok(graph.clone());
    }
    let mut errors = Vec::new();
    let out = split_graph(graph, None, &mut errors);
    if errors.is_empty() { Ok(out) } else { Err(errors) }
}

/// What the values of the old graph are in the new one; `None` where a call was refused.
type Map = Arena<ValueId, Option<Split>>;

/// `outer` is the graph around a subgraph, which shares its symbols.
fn split_graph(graph: &Graph, mut outer: Option<&mut Graph>, errors: &mut Vec<DecomposeError>) -> Graph {
    let outermost = outer.is_none();
    let mut out = Graph::new(graph.name.clone());
    match &mut outer {
        Some(outer) => outer.move_symbols(&mut out),
        None => out.share_symbols(graph),
    }
    out.origins = graph.origins.clone();
    for subgraph in graph.subgraphs.values() {
        let subgraph = split_graph(subgraph, Some(&mut out), errors);
        out.subgraphs.push(subgraph);
    }
    let mut map: Map = graph.values.ids().map(|_| None).collect();
    for (_, node) in graph.iter() {
        if let NodeKind::Placeholder { kind, name } = &node.kind {
            placeholder(graph, node, (*kind, name.as_str()), outermost, &mut out, &mut map);
        }
    }
    // Placeholders stand first: the parts of complex ones are taken after the last.
    for (id, node) in graph.iter() {
        let done = match &node.kind {
            NodeKind::Placeholder { .. } if outermost => take_parts(graph, id, &mut out, &mut map),
            NodeKind::Placeholder { .. } => Ok(()),
            NodeKind::Call { target, args } => call(graph, id, target, args, &mut out, &mut map),
        };
        if let Err(error) = done {
            errors.push(DecomposeError::of(graph, id, error));
        }
    }
    if let Err(error) = outputs(graph, outermost, &mut out, &map)
        && let Some(&last) = graph.order.last()
    {
        errors.push(DecomposeError::of(graph, last, error));
    }
    if let Some(outer) = outer {
        out.move_symbols(outer);
    }
    crate::scalars::eliminate_dead(&mut out);
    out
}

fn placeholder(
    graph: &Graph,
    node: &Node,
    (kind, name): (InputKind, &str),
    outermost: bool,
    out: &mut Graph,
    map: &mut Map,
) {
    for &v in &node.outputs {
        let value = &graph.values[v];
        map[v] = Some(match value.ty.as_tensor().filter(|m| m.dtype.is_complex()) {
            None => Split::Real(out.placeholder(kind, name, &value.name, value.ty.clone())),
            Some(meta) if outermost => {
                let ty = ValueType::Tensor(boundary_meta(meta));
                Split::Real(out.placeholder(kind, name, &value.name, ty))
            }
            Some(meta) => {
                let mut part = |suffix: &str| {
                    let ty = TensorMeta::contiguous(meta.dtype.to_real(), meta.sizes.iter().cloned());
                    let value = format!("{}_{suffix}", value.name);
                    out.placeholder(kind, format!("{name}.{suffix}"), &value, ValueType::Tensor(ty))
                };
                Split::Complex(Parts { re: part("re"), im: part("im") })
            }
        });
    }
}

/// A complex placeholder, which is a real tensor now, gets its parts.
fn take_parts(graph: &Graph, id: NodeId, out: &mut Graph, map: &mut Map) -> Result<(), OpError> {
    let node = &graph.nodes[id];
    for &v in &node.outputs {
        let complex = graph.meta(v).is_some_and(|m| m.dtype.is_complex());
        if let (true, Some(Split::Real(buffer))) = (complex, map[v]) {
            let mut b = Builder::new(out, graph.values[v].name.as_str(), node.origin);
            map[v] = Some(Split::Complex(unstacked(&mut b, buffer)?));
        }
    }
    Ok(())
}

/// The parts of a real tensor `[…, 2]`.
pub fn unstacked(b: &mut Builder<'_>, v: ValueId) -> Result<Parts, OpError> {
    let mut sizes = b.sizes(v)?;
    let Some(last) = sizes.len().checked_sub(1) else {
        return Err(OpError::Invalid {
            op: "view_as_complex".into(),
            what: "the tensor has no dimension".into(),
        });
    };
    sizes.pop();
    let mut part = |n: i64| {
        let half = b.slice(v, last, SymExpr::from_i64(n), SymExpr::ONE, 1)?;
        b.reshape(half, &sizes)
    };
    Ok(Parts { re: part(0)?, im: part(1)? })
}

/// The real tensor `[…, 2]` of two parts.
pub fn stacked(b: &mut Builder<'_>, z: Parts) -> Result<ValueId, OpError> {
    let rank = b.rank(z.re)?;
    let parts = [b.unsqueeze(z.re, rank)?, b.unsqueeze(z.im, rank)?];
    b.call1("prims.cat", vec![Arg::values(parts), (rank as i64).into()])
}

fn outputs(graph: &Graph, outermost: bool, out: &mut Graph, map: &Map) -> Result<(), OpError> {
    for output in &graph.outputs {
        let push = |out: &mut Graph, arg: Arg| out.outputs.push(Output { kind: output.kind.clone(), arg });
        let Arg::Value(v) = output.arg else {
            push(out, output.arg.clone());
            continue;
        };
        match map[v] {
            // Refused and reported already.
            None => push(out, Arg::None),
            Some(Split::Real(v)) => push(out, v.into()),
            Some(Split::Complex(z)) if outermost => {
                let old = &graph.values[v];
                let origin = graph.nodes[old.def].origin;
                let whole = stacked(&mut Builder::new(out, old.name.as_str(), origin), z)?;
                push(out, whole.into());
            }
            Some(Split::Complex(z)) => {
                push(out, z.re.into());
                push(out, z.im.into());
            }
        }
    }
    Ok(())
}

fn is_complex_type(ty: &ValueType) -> bool {
    ty.as_tensor().is_some_and(|m| m.dtype.is_complex())
}

fn call(
    graph: &Graph,
    id: NodeId,
    target: &str,
    args: &[Arg],
    out: &mut Graph,
    map: &mut Map,
) -> Result<(), OpError> {
    let node = &graph.nodes[id];
    // An operand was refused and reported.
    let Some(args) = args.iter().map(|a| mapped(a, map)).collect::<Option<Vec<SplitArg>>>() else {
        return Ok(());
    };
    let types: Vec<ValueType> = node.outputs.iter().map(|&v| graph.values[v].ty.clone()).collect();
    if target.starts_with("higher_order.") {
        return higher_order(graph, node, target, &args, out, map);
    }
    let complex = args.iter().any(|a| !matches!(a, SplitArg::Real(_))) || types.iter().any(is_complex_type);
    if !complex {
        let args = args.into_iter().filter_map(|a| if let SplitArg::Real(a) = a { Some(a) } else { None });
        let types = node.outputs.iter().map(|&v| (graph.values[v].name.as_str(), graph.values[v].ty.clone()));
        let outs = out.call(target, args.collect(), types, node.origin);
        node.outputs.iter().zip(&outs).for_each(|(&old, &new)| map[old] = Some(Split::Real(new)));
        return Ok(());
    }
    let op = lookup(target).ok_or_else(|| OpError::Unknown(target.into()))?;
    let call = ComplexCall { op, args: &args, outs: &types };
    let mut b = Builder::new(out, graph.node_name(id), node.origin);
    let results = apply(&mut b, &call)?;
    if results.len() < node.outputs.len() {
        return Err(call.invalid("its rule for complex values gives too few results"));
    }
    for (&old, new) in node.outputs.iter().zip(results) {
        map[old] = Some(new);
    }
    Ok(())
}

/// The results of a call with complex values.
fn apply(b: &mut Builder<'_>, call: &ComplexCall<'_>) -> Result<SmallVec<[Split; 1]>, OpError> {
    let Kind::Prim { complex, .. } = &call.op.def.kind else {
        return Err(call.invalid("is not a prim: decompose the graph first"));
    };
    match complex {
        ComplexRule::Parts => by_parts(b, call),
        ComplexRule::Rule(rule) => rule(b, call),
        ComplexRule::Refused(why) => Err(call.unsupported(format!("complex tensors: {why}"))),
    }
}

/// The prim on the real and on the imaginary parts.
fn by_parts(b: &mut Builder<'_>, call: &ComplexCall<'_>) -> Result<SmallVec<[Split; 1]>, OpError> {
    let re = b.call_op(call.op, half_args(call, true))?;
    let im = b.call_op(call.op, half_args(call, false))?;
    Ok(re.into_iter().zip(im).map(|(re, im)| Split::Complex(Parts { re, im })).collect())
}

/// The arguments of one half: parts of tensors and of numbers that stand for elements; all else as it is.
fn half_args(call: &ComplexCall<'_>, real: bool) -> Vec<Arg> {
    let types = &call.op.schema.args;
    let each = |(n, arg): (usize, &SplitArg)| {
        let element = types.get(n).is_some_and(|a| matches!(a.ty.base.as_str(), "Tensor" | "Scalar"));
        half_arg(arg, element, real)
    };
    call.args.iter().enumerate().map(each).collect()
}

fn half_arg(arg: &SplitArg, element: bool, real: bool) -> Arg {
    match arg {
        SplitArg::Complex(z) => Arg::Value(if real { z.re } else { z.im }),
        SplitArg::List(items) => Arg::List(items.iter().map(|a| half_arg(a, element, real)).collect()),
        SplitArg::Real(Arg::DType(d)) => Arg::DType(d.to_real()),
        SplitArg::Real(arg @ (Arg::Int(_) | Arg::Scalar(_))) if element => {
            let (re, im) = halves(arg);
            if real { re } else { im }
        }
        SplitArg::Real(arg) => arg.clone(),
    }
}

/// Control flow: a complex operand or result becomes two real ones.
fn higher_order(
    graph: &Graph,
    node: &Node,
    target: &str,
    args: &[SplitArg],
    out: &mut Graph,
    map: &mut Map,
) -> Result<(), OpError> {
    let args = args.iter().flat_map(flattened).collect();
    let mut types = Vec::new();
    for &v in &node.outputs {
        let value = &graph.values[v];
        match value.ty.as_tensor().filter(|m| m.dtype.is_complex()) {
            None => types.push((value.name.as_str(), value.ty.clone())),
            Some(meta) => {
                let half = TensorMeta::contiguous(meta.dtype.to_real(), meta.sizes.iter().cloned());
                types.extend([(); 2].map(|()| (value.name.as_str(), ValueType::Tensor(half.clone()))));
            }
        }
    }
    let outs: Outs = out.call(target, args, types, node.origin);
    let mut next = outs.into_iter();
    for &v in &node.outputs {
        let split = if is_complex_type(&graph.values[v].ty) {
            next.next().zip(next.next()).map(|(re, im)| Split::Complex(Parts { re, im }))
        } else {
            next.next().map(Split::Real)
        };
        map[v] = split;
    }
    Ok(())
}

fn flattened(arg: &SplitArg) -> Vec<Arg> {
    match arg {
        SplitArg::Real(arg) => vec![arg.clone()],
        SplitArg::Complex(z) => vec![z.re.into(), z.im.into()],
        SplitArg::List(items) => vec![Arg::List(items.iter().flat_map(flattened).collect())],
    }
}

/// The argument in real tensors; `None` where a value was refused.
fn mapped(arg: &Arg, map: &Map) -> Option<SplitArg> {
    Some(match arg {
        Arg::Value(v) => match map[*v]? {
            Split::Real(v) => SplitArg::Real(v.into()),
            Split::Complex(z) => SplitArg::Complex(z),
        },
        Arg::List(items) => {
            let items = items.iter().map(|a| mapped(a, map)).collect::<Option<Vec<SplitArg>>>()?;
            let real = |a: &SplitArg| if let SplitArg::Real(a) = a { Some(a.clone()) } else { None };
            match items.iter().map(real).collect::<Option<Vec<Arg>>>() {
                Some(list) => SplitArg::Real(Arg::List(list)),
                None => SplitArg::List(items),
            }
        }
        other => SplitArg::Real(other.clone()),
    })
}

/// A prim that is a routine on complex buffers (`[…, 2]`, interleaved): its complex operands are stacked, its complex
/// results split. `args` are made of the stacked operands, in the order of the schema; `outs` are the types of the results
/// of the routine (complex ones in their boundary form, row-major).
pub fn by_buffers(b: &mut Builder<'_>, call: &ComplexCall<'_>) -> Result<SmallVec<[Split; 1]>, OpError> {
    let mut args = Vec::with_capacity(call.args.len());
    for arg in call.args {
        args.push(match arg {
            SplitArg::Complex(z) => stacked(b, *z)?.into(),
            SplitArg::Real(arg) => arg.clone(),
            SplitArg::List(_) => return Err(call.unsupported("lists of complex tensors")),
        });
    }
    let row_major = |ty: &ValueType| match ty.as_tensor() {
        Some(m) if m.dtype.is_complex() => {
            let sizes = m.sizes.iter().cloned().chain([SymExpr::from_i64(2)]);
            ValueType::Tensor(TensorMeta::contiguous(m.dtype.to_real(), sizes))
        }
        _ => ty.clone(),
    };
    let types: Vec<ValueType> = call.outs.iter().map(row_major).collect();
    let outs = call.reissue(b, args, &types);
    let mut results = SmallVec::new();
    for (&v, ty) in outs.iter().zip(call.outs) {
        results.push(if is_complex_type(ty) { unstacked(b, v)?.into() } else { v.into() });
    }
    Ok(results)
}
