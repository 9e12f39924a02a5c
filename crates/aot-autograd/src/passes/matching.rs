//! Queries of rules about a graph: which call defines a value, and whether all its elements are one number.

use fx_ir::{Arg, Graph, ValueId};
use ir_core::{DType, Scalar, SymExpr};
use prims::Call;
use tensor::Tensor;

/// The prim call that defines a value, where it has no other result.
pub(super) fn def(graph: &Graph, v: ValueId) -> Option<Call<'_>> {
    let node = &graph.nodes[graph.values[v].def];
    let (target, args) = node.as_call()?;
    let op = prims::lookup(target).filter(|op| op.is_prim())?;
    (node.outputs.len() == 1).then_some(Call { op, args })
}

/// The call that defines a value, where it is this prim.
pub(crate) fn def_of<'g>(graph: &'g Graph, v: ValueId, target: &str) -> Option<Call<'g>> {
    def(graph, v).filter(|call| call.op.target == target)
}

/// The operand of a call with one tensor operand `a`, where that made `v` and is this prim.
pub(super) fn through(graph: &Graph, v: ValueId, target: &str) -> Option<ValueId> {
    def_of(graph, v, target)?.value("a").ok()
}

/// Most consecutive views that are looked through.
const DEEPEST: usize = 16;

/// The number that every element of an argument is.
pub(super) fn uniform(graph: &Graph, arg: &Arg, opaque: &[ValueId]) -> Option<Scalar> {
    let Arg::Value(v) = arg else { return arg.as_scalar() };
    let mut v = *v;
    for _ in 0..DEEPEST {
        if opaque.contains(&v) {
            return None;
        }
        let call = def(graph, v)?;
        match call.op.target.as_str() {
            "prims.full" => {
                let n = call.opt_scalar("value").ok().flatten()?;
                return held(n, call.opt_dtype("dtype").ok().flatten()?);
            }
            "prims.expand" | "prims.reshape" | "prims.permute" | "prims.slice" => v = call.value("a").ok()?,
            _ => return None,
        }
    }
    None
}

/// The number as a tensor of 16-bit floats holds it; other dtypes round it wherever it is used.
fn held(n: Scalar, dtype: DType) -> Option<Scalar> {
    if dtype.compute() == dtype {
        return Some(n);
    }
    Tensor::full(dtype, &[], n).ok()?.item()
}

/// The dimensions of a permutation, none negative.
pub(super) fn permutation(call: &Call<'_>) -> Option<Vec<usize>> {
    let dims = call.ints("dims").ok()?;
    let rank = dims.len();
    dims.into_iter().map(|d| call.dim(d, rank).ok()).collect()
}

/// Whether a permutation exchanges the last two dimensions alone.
pub(super) fn swaps_last_two(dims: &[usize]) -> bool {
    let n = dims.len();
    n >= 2
        && dims[..n - 2].iter().enumerate().all(|(i, &d)| i == d)
        && dims[n - 2] == n - 1
        && dims[n - 1] == n - 2
}

/// Sizes of a tensor.
pub(super) fn sizes(graph: &Graph, v: ValueId) -> Option<&[SymExpr]> {
    graph.meta(v).map(|m| &m.sizes[..])
}
