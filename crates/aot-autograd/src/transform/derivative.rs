//! `grad`, `vjp` and `jvp`: derivatives of a graph as graphs.

use fx_ir::{Arg, Graph, InputKind, OriginId, Output, OutputKind, ValueId, ValueType};
use ir_core::{Scalar, TensorMeta};
use prims::{Builder, Randomness};

use super::walk::Walk;
use super::{Input, TransformError, arguments, empty_with_symbols, form, results, simplify};
use crate::{JointGraph, JointOptions, Tangents, Wrt, joint};

/// The gradients of a function that returns one number, with respect to the arguments with these places.
///
/// # Errors
/// A result that is not one real number, and calls without a gradient.
pub fn grad(graph: &Graph, wrt: &[usize]) -> Result<Graph, TransformError> {
    with_gradients(graph, wrt, false)
}

/// The results of a function whose first one is one number, then the gradients of that number. The other results are
/// returned as they are (`has_aux` of `torch.func`).
///
/// # Errors
/// As [`grad`].
pub fn value_and_grad(graph: &Graph, wrt: &[usize]) -> Result<Graph, TransformError> {
    with_gradients(graph, wrt, true)
}

fn with_gradients(graph: &Graph, wrt: &[usize], keep: bool) -> Result<Graph, TransformError> {
    let list = arguments(graph);
    let wanted = chosen(&list, wrt, "grad")?;
    let metas = results(graph, "grad")?;
    let mut source = graph.clone();
    for (n, output) in source.outputs.iter_mut().enumerate() {
        output.kind = if n == 0 { OutputKind::Loss } else { OutputKind::Saved };
    }
    let options = JointOptions { wrt: Wrt::Values(wanted.clone()), tangents: Tangents::Loss };
    let JointGraph { graph: mut out, gradients, .. } = joint(&source, &options)?;
    let mut outputs = Vec::new();
    if keep {
        outputs.extend(metas.iter().map(|(v, _)| Arg::Value(*v)));
    }
    for v in wanted {
        outputs.push(match gradients.iter().find(|(of, _)| *of == v) {
            Some((_, Some(g))) => Arg::Value(*g),
            _ => zeros(&mut out, &graph.values[v].ty)?.into(),
        });
    }
    out.outputs = outputs.into_iter().map(|arg| Output { kind: OutputKind::User, arg }).collect();
    simplify(&mut out);
    Ok(out)
}

/// The vector-Jacobian product: `(arguments, cotangents of the results)` to `(results, gradients of the arguments)`.
/// What has no derivative (integers) gets zeros.
///
/// # Errors
/// Calls without a gradient.
pub fn vjp(graph: &Graph) -> Result<Graph, TransformError> {
    let all: Vec<usize> = (0..arguments(graph).len()).collect();
    let through: Vec<usize> = (0..graph.outputs.len()).collect();
    vjp_of(graph, &all, &through)
}

/// As [`vjp`], with cotangents of some results alone, and gradients of some arguments alone.
pub(super) fn vjp_of(graph: &Graph, wrt: &[usize], through: &[usize]) -> Result<Graph, TransformError> {
    let list = arguments(graph);
    let wanted = chosen(&list, wrt, "vjp")?;
    let metas = results(graph, "vjp")?;
    let mut source = graph.clone();
    for (n, output) in source.outputs.iter_mut().enumerate() {
        output.kind = if through.contains(&n) { OutputKind::User } else { OutputKind::Saved };
    }
    let options = JointOptions { wrt: Wrt::Values(wanted.clone()), tangents: Tangents::Placeholders };
    let joint = joint(&source, &options)?;
    let mut out = empty_with_symbols(graph);
    let mut given: Vec<ValueId> = list.iter().map(|input| placeholder(&mut out, graph, input)).collect();
    for &n in through {
        let meta =
            metas.get(n).map(|(_, m)| m).ok_or_else(|| form("vjp", format!("there is no result {n}")))?;
        let cotangent = added(&mut out, &format!("cotangent_{n}"), meta);
        if joint.tangents.get(n).copied().flatten().is_some() {
            given.push(cotangent);
        }
    }
    let outs = copied(&mut out, &joint.graph, &given)?;
    let (forward, mut grads) = outs.split_at(joint.forward_outputs.min(outs.len()));
    let mut outputs = forward.to_vec();
    for v in wanted {
        let has = joint.gradients.iter().any(|(of, g)| *of == v && g.is_some());
        outputs.push(match grads.split_first().filter(|_| has) {
            Some((first, rest)) => {
                grads = rest;
                first.clone()
            }
            None => zeros(&mut out, &graph.values[v].ty)?.into(),
        });
    }
    out.outputs = outputs.into_iter().map(|arg| Output { kind: OutputKind::User, arg }).collect();
    simplify(&mut out);
    Ok(out)
}

/// The Jacobian-vector product: `(arguments, tangents of the arguments)` to `(results, tangents of the results)`.
/// Tangents of what has no derivative are not read.
///
/// # Errors
/// Calls without a gradient.
pub fn jvp(graph: &Graph) -> Result<Graph, TransformError> {
    let all: Vec<usize> = (0..arguments(graph).len()).collect();
    jvp_of(graph, &all)
}

/// As [`jvp`], with tangents of some arguments alone.
pub(super) fn jvp_of(graph: &Graph, wrt: &[usize]) -> Result<Graph, TransformError> {
    let list = arguments(graph);
    let wanted = chosen(&list, wrt, "jvp")?;
    let metas = results(graph, "jvp")?;
    let twice = DoubleTranspose::of(graph, &wanted)?;
    let mut out = empty_with_symbols(graph);
    let mut given: Vec<ValueId> = list.iter().map(|input| placeholder(&mut out, graph, input)).collect();
    let mut tangents = Vec::new();
    for (&v, &n) in wanted.iter().zip(wrt) {
        let ValueType::Tensor(meta) = &graph.values[v].ty else {
            return Err(form("jvp", format!("argument {n} is not a tensor")));
        };
        tangents.push((v, added(&mut out, &format!("tangent_{n}"), meta)));
    }
    // The product is linear in the cotangents of the first transpose and does not read them.
    for &u in &twice.cotangents {
        let ty = twice.joint.graph.values[u].ty.clone();
        given.push(zeros(&mut out, &ty)?);
    }
    for v in &twice.moved {
        given.extend(tangents.iter().find(|(of, _)| of == v).map(|(_, t)| *t));
    }
    let outs = copied(&mut out, &twice.joint.graph, &given)?;
    let mut outputs = outs[twice.primals.clone()].to_vec();
    let mut products = outs[twice.joint.forward_outputs..].iter();
    for (n, (_, meta)) in metas.iter().enumerate() {
        outputs.push(match products.as_slice().first().filter(|_| twice.has[n]) {
            Some(product) => {
                products.next();
                product.clone()
            }
            None => zeros(&mut out, &ValueType::Tensor(meta.clone()))?.into(),
        });
    }
    out.outputs = outputs.into_iter().map(|arg| Output { kind: OutputKind::User, arg }).collect();
    simplify(&mut out);
    Ok(out)
}

/// The transpose of the transpose of a graph.
struct DoubleTranspose {
    /// Placeholders: the arguments, cotangents of the results, tangents of the arguments.
    joint: JointGraph,
    /// The cotangents' placeholders.
    cotangents: Vec<ValueId>,
    /// The arguments whose tangents it takes, in order.
    moved: Vec<ValueId>,
    /// Where among its outputs those of the graph stand.
    primals: std::ops::Range<usize>,
    /// For every result of the graph whether it has a tangent.
    has: Vec<bool>,
}

impl DoubleTranspose {
    fn of(graph: &Graph, wanted: &[ValueId]) -> Result<DoubleTranspose, TransformError> {
        let mut source = graph.clone();
        source.outputs.iter_mut().for_each(|o| o.kind = OutputKind::User);
        let options = JointOptions { wrt: Wrt::Values(wanted.to_vec()), tangents: Tangents::Placeholders };
        let first = joint(&source, &options)?;
        let mut linear = first.graph;
        // Results are not differentiated again, gradients are.
        let primals = linear.outputs.drain(..first.forward_outputs).collect::<Vec<_>>();
        linear.outputs.iter_mut().for_each(|o| o.kind = OutputKind::User);
        let gradients = linear.outputs.len();
        linear.outputs.extend(primals.into_iter().map(|o| Output { kind: OutputKind::Saved, arg: o.arg }));
        let cotangents: Vec<ValueId> = first.tangents.iter().copied().flatten().collect();
        let options = JointOptions { wrt: Wrt::Values(cotangents.clone()), tangents: Tangents::Placeholders };
        let second = joint(&linear, &options)?;
        let of = first.gradients.iter().filter(|(_, g)| g.is_some()).map(|(v, _)| *v);
        let moved = of.zip(&second.tangents).filter(|(_, t)| t.is_some()).map(|(v, _)| v).collect();
        let reached = |u: &ValueId| second.gradients.iter().any(|(of, g)| of == u && g.is_some());
        let has = first.tangents.iter().map(|t| t.as_ref().is_some_and(reached)).collect();
        let primals = gradients..gradients + first.forward_outputs;
        Ok(DoubleTranspose { cotangents, moved, primals, has, joint: second })
    }
}

/// The arguments with these places.
fn chosen(list: &[Input], wrt: &[usize], transform: &'static str) -> Result<Vec<ValueId>, TransformError> {
    let one = |&n: &usize| {
        let missing =
            || form(transform, format!("there is no argument {n}: the function takes {}", list.len()));
        list.get(n).map(|input| input.value).ok_or_else(missing)
    };
    wrt.iter().map(one).collect()
}

/// The placeholder of an argument in another graph.
pub(super) fn placeholder(out: &mut Graph, graph: &Graph, input: &Input) -> ValueId {
    let name = graph.values[input.value].name.clone();
    out.placeholder(input.kind, input.name.clone(), &name, input.ty.clone())
}

/// One more argument, of the type of a tensor.
fn added(out: &mut Graph, name: &str, meta: &TensorMeta) -> ValueId {
    let name = super::unused(out, name);
    let meta = TensorMeta {
        device: meta.device.clone(),
        ..TensorMeta::contiguous(meta.dtype, meta.sizes.iter().cloned())
    };
    out.placeholder(InputKind::User, name.clone(), &name, ValueType::Tensor(meta))
}

/// Zeros of a type.
pub(super) fn zeros(out: &mut Graph, ty: &ValueType) -> Result<ValueId, TransformError> {
    let Some(meta) = ty.as_tensor() else { return Err(form("grad", "an argument is not a tensor")) };
    let mut b = Builder::new(out, "zeros", OriginId(0));
    Ok(b.full(&meta.sizes, Scalar::zero(meta.dtype), meta.dtype)?)
}

/// The graph with these arguments, copied into another.
fn copied(out: &mut Graph, graph: &Graph, given: &[ValueId]) -> Result<Vec<Arg>, TransformError> {
    Walk::new(out, 1.into(), Randomness::Same).run(graph, given)
}
