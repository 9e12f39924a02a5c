//! Jacobians and Hessians: products with every vector of a basis at once, by the batching rules.

use fx_ir::{Arg, Graph, OriginId, Output, OutputKind, ValueId};
use ir_core::{DType, Shape, TensorMeta, numel};
use prims::{Builder, Randomness};

use super::derivative::{jvp_of, placeholder, vjp_of};
use super::walk::Walk;
use super::{TransformError, arguments, empty_with_symbols, form, results, simplify};

/// Jacobians by reverse mode: for each result, and within it for each argument of `wrt`, a tensor `[result…, argument…]`.
/// The function itself is computed once; cheap where results are smaller than arguments. Gradients of complex tensors
/// are conjugated, as everywhere.
///
/// # Errors
/// Calls without a gradient, and gradients that do not act on batches.
pub fn jacrev(graph: &Graph, wrt: &[usize]) -> Result<Graph, TransformError> {
    let (list, metas) = (arguments(graph), results(graph, "jacrev")?);
    let of = sizes_of(graph, wrt, "jacrev")?;
    let mut out = empty_with_symbols(graph);
    let given: Vec<ValueId> = list.iter().map(|input| placeholder(&mut out, graph, input)).collect();
    let mut outputs = Vec::new();
    for (n, (_, meta)) in metas.iter().enumerate() {
        differentiable(meta, "jacrev", &format!("result {n}"))?;
        let pullback = gradients_alone(vjp_of(graph, wrt, &[n])?, metas.len());
        let products = each_direction(&mut out, &pullback, &given, meta)?;
        let mut b = Builder::new(&mut out, "jacobian", OriginId(0));
        for (v, argument) in products.into_iter().zip(&of) {
            let sizes: Shape = meta.sizes.iter().chain(&argument.sizes).cloned().collect();
            outputs.push(b.reshape(v, &sizes)?);
        }
    }
    finished(out, outputs)
}

/// Jacobians by forward mode: for each result, and within it for each argument of `wrt`, a tensor `[result…, argument…]`.
/// Cheap where arguments are smaller than results.
///
/// # Errors
/// Calls without a gradient, and products that do not act on batches.
pub fn jacfwd(graph: &Graph, wrt: &[usize]) -> Result<Graph, TransformError> {
    let (list, metas) = (arguments(graph), results(graph, "jacfwd")?);
    let of = sizes_of(graph, wrt, "jacfwd")?;
    let mut out = empty_with_symbols(graph);
    let given: Vec<ValueId> = list.iter().map(|input| placeholder(&mut out, graph, input)).collect();
    let mut columns = Vec::new();
    for (&n, meta) in wrt.iter().zip(&of) {
        let push = gradients_alone(jvp_of(graph, &[n])?, metas.len());
        columns.push(each_direction(&mut out, &push, &given, meta)?);
    }
    let mut outputs = Vec::new();
    for (n, (_, result)) in metas.iter().enumerate() {
        for (column, meta) in columns.iter().zip(&of) {
            let mut b = Builder::new(&mut out, "jacobian", OriginId(0));
            let order: Vec<usize> = (1..=result.rank()).chain([0]).collect();
            let v = b.permute(column[n], &order)?;
            let sizes: Shape = result.sizes.iter().chain(&meta.sizes).cloned().collect();
            outputs.push(b.reshape(v, &sizes)?);
        }
    }
    finished(out, outputs)
}

/// The second derivatives of each result by one argument, `[result…, argument…, argument…]`: the forward Jacobian of the
/// reverse one.
///
/// # Errors
/// As [`jacrev`] and [`jacfwd`].
pub fn hessian(graph: &Graph, wrt: usize) -> Result<Graph, TransformError> {
    jacfwd(&jacrev(graph, &[wrt])?, &[wrt])
}

fn differentiable(meta: &TensorMeta, transform: &'static str, what: &str) -> Result<(), TransformError> {
    if meta.dtype.is_inexact() {
        return Ok(());
    }
    Err(form(transform, format!("{what} is {}: integers and truth values have no derivative", meta.dtype)))
}

/// The types of the arguments with these places.
fn sizes_of(
    graph: &Graph,
    wrt: &[usize],
    transform: &'static str,
) -> Result<Vec<TensorMeta>, TransformError> {
    let list = arguments(graph);
    let one = |&n: &usize| {
        let missing =
            || form(transform, format!("there is no argument {n}: the function takes {}", list.len()));
        let meta = list.get(n).and_then(|input| input.ty.as_tensor()).ok_or_else(missing)?;
        differentiable(meta, transform, &format!("argument {n}"))?;
        Ok(meta.clone())
    };
    wrt.iter().map(one).collect()
}

/// The graph without the results of the function itself.
fn gradients_alone(mut graph: Graph, results: usize) -> Graph {
    graph.outputs.drain(..results.min(graph.outputs.len()));
    graph
}

/// The results of a linear function of its last argument, of type `meta`, for every vector of the basis: `[basis, …]`.
fn each_direction(
    out: &mut Graph,
    linear: &Graph,
    given: &[ValueId],
    meta: &TensorMeta,
) -> Result<Vec<ValueId>, TransformError> {
    let count = numel(&meta.sizes);
    let basis = basis(&mut Builder::new(out, "basis", OriginId(0)), meta)?;
    let mut walk = Walk::new(out, count, Randomness::Same);
    walk.batched.insert(basis);
    let arguments: Vec<ValueId> = given.iter().copied().chain([basis]).collect();
    walk.run_batched(linear, &arguments)
}

/// The unit vectors of a space, `[numel, sizes…]`.
fn basis(b: &mut Builder<'_>, meta: &TensorMeta) -> Result<ValueId, TransformError> {
    let count = numel(&meta.sizes);
    let numbers =
        b.call1("prims.iota", vec![count.clone().into(), 0i64.into(), 1i64.into(), DType::I64.into()])?;
    let rows = b.unsqueeze(numbers, 1)?;
    let equal = b.eq(rows, numbers)?;
    let units = b.cast(equal, meta.dtype)?;
    let sizes: Shape = std::iter::once(count).chain(meta.sizes.iter().cloned()).collect();
    Ok(b.reshape(units, &sizes)?)
}

fn finished(mut out: Graph, outputs: Vec<ValueId>) -> Result<Graph, TransformError> {
    out.outputs =
        outputs.into_iter().map(|v| Output { kind: OutputKind::User, arg: Arg::Value(v) }).collect();
    simplify(&mut out);
    Ok(out)
}
