//! `vmap`: a function of one element as a function of a batch. The walk itself is [`super::walk`].

use fx_ir::{Arg, Graph, OriginId, Output, ValueId, ValueType};
use ir_core::{SymExpr, TensorMeta};
use prims::{Builder, Randomness};

use super::walk::Walk;
use super::{TransformError, arguments, empty_with_symbols, form, simplify};

/// Over which dimensions of what [`vmap`] maps.
#[derive(Clone, Debug, PartialEq)]
pub struct VmapOptions {
    /// For every argument the dimension of the batch, counted in the batched tensor (from its end where negative), or
    /// none where all elements share it. Empty: dimension 0 of every argument.
    pub in_dims: Vec<Option<i64>>,
    /// For every result the place of the batch; none returns what does not depend on the batch as it is. Empty:
    /// dimension 0 of every result.
    pub out_dims: Vec<Option<i64>>,
    /// Size of the batch: a number, or a symbol of the graph.
    pub size: SymExpr,
    /// What random numbers are.
    pub randomness: Randomness,
}

impl VmapOptions {
    /// Over dimension 0 of every argument and result.
    pub fn new(size: impl Into<SymExpr>) -> VmapOptions {
        let (in_dims, out_dims) = (Vec::new(), Vec::new());
        VmapOptions { in_dims, out_dims, size: size.into(), randomness: Randomness::Error }
    }
}

/// A dimension number wrapped into `0..rank`.
fn wrapped(d: i64, rank: usize, what: &str) -> Result<usize, TransformError> {
    let rank = rank as i64;
    let at = if d < 0 { d + rank } else { d };
    usize::try_from(at).ok().filter(|_| at < rank).ok_or_else(|| {
        form(
            "vmap",
            format!("{what} has {rank} dimensions with that of the batch: there is no dimension {d}"),
        )
    })
}

/// The function of a batch: argument `n` has the dimension `in_dims[n]` more, result `n` the dimension `out_dims[n]`.
///
/// # Errors
/// All calls that cannot act on batches; dimension numbers that are out of range; a result that differs within the
/// batch where `out_dims` says that it does not.
pub fn vmap(graph: &Graph, options: &VmapOptions) -> Result<Graph, TransformError> {
    let list = arguments(graph);
    let count = |list: &[Option<i64>], n: usize, what: &str| match list.len() {
        0 => Ok(vec![Some(0); n]),
        len if len == n => Ok(list.to_vec()),
        len => Err(form("vmap", format!("{len} dimensions are given for {n} {what}"))),
    };
    let in_dims = count(&options.in_dims, list.len(), "arguments")?;
    let out_dims = count(&options.out_dims, graph.outputs.len(), "results")?;
    let mut out = empty_with_symbols(graph);
    let mut given = Vec::new();
    for (input, dim) in list.iter().zip(&in_dims) {
        let (ty, at) = match (&input.ty, dim) {
            (ty, None) => (ty.clone(), None),
            (ValueType::Tensor(meta), Some(d)) => {
                let at = wrapped(*d, meta.rank() + 1, &format!("argument `{}`", input.name))?;
                (ValueType::Tensor(with_size(meta, at, &options.size)), Some(at))
            }
            _ => return Err(form("vmap", format!("argument `{}` is not a tensor", input.name))),
        };
        let name = &graph.values[input.value].name;
        given.push((out.placeholder(input.kind, input.name.clone(), name, ty), at));
    }
    let mut walk = Walk::new(&mut out, options.size.clone(), options.randomness);
    let mut inputs = Vec::new();
    for (v, at) in given {
        inputs.push(match at {
            None => v,
            Some(at) => {
                let v = moved(walk.out, v, at, 0)?;
                walk.batched.insert(v);
                v
            }
        });
    }
    let results = walk.run(graph, &inputs)?;
    let mut outputs = Vec::new();
    for (n, (arg, dim)) in results.into_iter().zip(&out_dims).enumerate() {
        let arg = placed(&mut walk, n, arg, *dim)?;
        outputs.push(Output { kind: graph.outputs[n].kind.clone(), arg });
    }
    out.outputs = outputs;
    simplify(&mut out);
    Ok(out)
}

/// A result with the batch at its place.
fn placed(walk: &mut Walk<'_>, n: usize, arg: Arg, dim: Option<i64>) -> Result<Arg, TransformError> {
    let (v, d) = match (arg, dim) {
        (Arg::Value(v), Some(d)) => (v, d),
        (Arg::Value(v), None) if walk.batched.contains(&v) => {
            let what = format!("result {n} differs within the batch: `out_dims` must give it a dimension");
            return Err(form("vmap", what));
        }
        (arg, _) => return Ok(arg),
    };
    let v = walk.front(v)?;
    let rank = walk.out.meta(v).map_or(0, TensorMeta::rank);
    let at = wrapped(d, rank, &format!("result {n}"))?;
    Ok(moved(walk.out, v, 0, at)?.into())
}

/// Dimension `from` at place `to`.
fn moved(graph: &mut Graph, v: ValueId, from: usize, to: usize) -> Result<ValueId, TransformError> {
    let name = graph.values[v].name.clone();
    let mut b = Builder::new(graph, name, OriginId(0));
    let mut order: Vec<usize> = (0..b.rank(v)?).collect();
    let d = order.remove(from);
    order.insert(to, d);
    Ok(b.permute(v, &order)?)
}

/// The type with one more dimension.
fn with_size(meta: &TensorMeta, at: usize, size: &SymExpr) -> TensorMeta {
    let mut sizes = meta.sizes.clone();
    sizes.insert(at, size.clone());
    TensorMeta { device: meta.device.clone(), ..TensorMeta::contiguous(meta.dtype, sizes) }
}
