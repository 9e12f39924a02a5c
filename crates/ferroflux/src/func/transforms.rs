//! The transforms as functions of functions: each traces its argument for the given types and transforms the graph.

use aot_autograd::transform::{self, VmapOptions};
use ir_core::{SymExpr, TensorMeta};

use super::{Func, Randomness, Types};
use crate::Error;

/// The gradient with respect to the first argument of a function that returns one number.
pub fn grad(f: &Func) -> Func {
    grad_of(f, &[0])
}

/// The gradients with respect to some arguments (`argnums` of `torch.func`), one result each. Results of `f` after the
/// first are not differentiated, nor returned.
pub fn grad_of(f: &Func, wrt: &[usize]) -> Func {
    let (f, wrt) = (f.clone(), wrt.to_vec());
    Func::new(f.inputs, wrt.len(), move |types| Ok(transform::grad(&f.graph(types)?, &wrt)?))
}

/// The results of a function and the gradient of the first one with respect to the first argument.
pub fn value_and_grad(f: &Func) -> Func {
    value_and_grad_of(f, &[0])
}

/// As [`value_and_grad`], with respect to some arguments.
pub fn value_and_grad_of(f: &Func, wrt: &[usize]) -> Func {
    let (f, wrt) = (f.clone(), wrt.to_vec());
    let outputs = f.outputs + wrt.len();
    Func::new(f.inputs, outputs, move |types| Ok(transform::value_and_grad(&f.graph(types)?, &wrt)?))
}

/// The first `n` types.
fn first(types: &Types, n: usize) -> Types {
    types.with(types.metas.iter().take(n).cloned().collect())
}

/// The vector-Jacobian product: takes the arguments of `f` and a cotangent for each result, returns the results and a
/// gradient for each argument (zeros where there is none).
pub fn vjp(f: &Func) -> Func {
    let f = f.clone();
    let (inputs, outputs) = (f.inputs + f.outputs, f.inputs + f.outputs);
    Func::new(inputs, outputs, move |types| Ok(transform::vjp(&f.graph(&first(types, f.inputs))?)?))
}

/// The Jacobian-vector product: takes the arguments of `f` and a tangent for each, returns the results and a tangent for
/// each of them.
pub fn jvp(f: &Func) -> Func {
    let f = f.clone();
    Func::new(2 * f.inputs, 2 * f.outputs, move |types| {
        Ok(transform::jvp(&f.graph(&first(types, f.inputs))?)?)
    })
}

/// The Jacobian of each result with respect to one argument, `[result…, argument…]`, by reverse mode.
pub fn jacrev(f: &Func, wrt: usize) -> Func {
    let f = f.clone();
    Func::new(f.inputs, f.outputs, move |types| Ok(transform::jacrev(&f.graph(types)?, &[wrt])?))
}

/// The Jacobian of each result with respect to one argument, `[result…, argument…]`, by forward mode.
pub fn jacfwd(f: &Func, wrt: usize) -> Func {
    let f = f.clone();
    Func::new(f.inputs, f.outputs, move |types| Ok(transform::jacfwd(&f.graph(types)?, &[wrt])?))
}

/// The second derivatives of each result with respect to one argument, `[result…, argument…, argument…]`.
pub fn hessian(f: &Func, wrt: usize) -> Func {
    let f = f.clone();
    Func::new(f.inputs, f.outputs, move |types| Ok(transform::hessian(&f.graph(types)?, wrt)?))
}

/// The function of a batch: `in_dims` has for every argument the dimension of the batch, or none where all elements share
/// it; `out_dims` its place in each result. Empty lists stand for dimension 0 everywhere. Random numbers are refused; see
/// [`vmap_with`].
pub fn vmap(f: &Func, in_dims: &[Option<i64>], out_dims: &[Option<i64>]) -> Func {
    vmap_with(f, in_dims, out_dims, Randomness::Error)
}

/// As [`vmap`]; `randomness` defines the random numbers of the batch's elements.
pub fn vmap_with(
    f: &Func,
    in_dims: &[Option<i64>],
    out_dims: &[Option<i64>],
    randomness: Randomness,
) -> Func {
    let (f, in_dims, out_dims) = (f.clone(), in_dims.to_vec(), out_dims.to_vec());
    Func::new(f.inputs, f.outputs, move |types| {
        let in_dims = if in_dims.is_empty() { vec![Some(0); f.inputs] } else { in_dims.clone() };
        let (metas, size) = one_element(types, &in_dims)?;
        let options = VmapOptions { in_dims, out_dims: out_dims.clone(), size, randomness };
        Ok(transform::vmap(&f.graph(&types.with(metas))?, &options)?)
    })
}

/// The types of one element of the batch, and the size of the batch.
fn one_element(types: &Types, in_dims: &[Option<i64>]) -> Result<(Vec<TensorMeta>, SymExpr), Error> {
    if in_dims.len() != types.metas.len() {
        let what = format!("vmap: {} dimensions for {} arguments", in_dims.len(), types.metas.len());
        return Err(Error::Function(what));
    }
    let mut size: Option<SymExpr> = None;
    let mut metas = Vec::with_capacity(types.metas.len());
    for (n, (meta, dim)) in types.metas.iter().zip(in_dims).enumerate() {
        let Some(dim) = *dim else {
            metas.push(meta.clone());
            continue;
        };
        let at = if dim < 0 { dim + meta.rank() as i64 } else { dim };
        let at = usize::try_from(at).ok().filter(|&at| at < meta.rank()).ok_or_else(|| {
            Error::Function(format!("vmap: argument {n} is {meta}: it has no dimension {dim}"))
        })?;
        let mut sizes = meta.sizes.clone();
        let own = sizes.remove(at);
        match &size {
            Some(other) if *other != own => {
                let what = format!("vmap: the batch of argument {n} has size {own}, that before it {other}");
                return Err(Error::Function(what));
            }
            _ => size = Some(own),
        }
        metas.push(TensorMeta { device: meta.device.clone(), ..TensorMeta::contiguous(meta.dtype, sizes) });
    }
    let size = size.ok_or_else(|| Error::Function("vmap: no argument has a dimension to map over".into()))?;
    Ok((metas, size))
}
