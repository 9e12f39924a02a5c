//! The views: for every operator whose result shares memory with its first operand, how it is replayed on a new value and
//! how a new value of the view is written back to its parent. One row of the `match` per family.
//!
//! That a result may alias an operand is in the operator table's schemas (`Tensor(a)`); *whether* it does in a given
//! call (`reshape`, `to`, `contiguous`, `dropout` outside training) and how to undo it is knowledge of this pass alone.

use fx_ir::Arg;
use ir_core::{Scalar, SymExpr, TensorMeta};

use super::strides;

/// How a view is computed from its parent, and its inverse.
#[derive(Clone, Debug)]
pub struct ViewRule {
    /// The operator that creates the view.
    pub target: String,
    /// Its arguments after the first.
    pub args: Vec<Arg>,
    /// The inverse.
    pub inverse: ViewInverse,
    /// Whether it addresses the storage and not the operand's elements (`as_strided`).
    pub of_storage: bool,
}

/// How a new value of the view becomes a new value of its parent.
#[derive(Clone, Debug)]
pub enum ViewInverse {
    /// The value is unchanged.
    Identity,
    /// The same elements in the operand's shape.
    Reshape,
    /// An operator on the new value: name, further arguments.
    Call(String, Vec<Arg>),
    /// An operator on the old operand and the new value: name, further arguments.
    Scatter(String, Vec<Arg>),
    /// Not possible, and why ("through a view that …").
    Refused(&'static str),
}

/// The rule of a call's result number `n`, or `None` where the result does not share memory with operand 0.
/// `args` are complete, `outs` the metas of all results.
pub fn view_rule(
    target: &str,
    args: &[Arg],
    input: &TensorMeta,
    outs: &[&TensorMeta],
    n: usize,
) -> Option<ViewRule> {
    let (namespace, rest) = target.split_once('.')?;
    let name = rest.split('.').next().unwrap_or(rest);
    if namespace != "aten" {
        return None;
    }
    let out = *outs.get(n)?;
    let inverse = match name {
        "alias" | "detach" | "lift_fresh" | "resolve_conj" | "resolve_neg" | "positive" => {
            ViewInverse::Identity
        }
        "to" | "contiguous" | "type_as" => same_memory(name, target, args, input, out)?,
        "dropout" | "feature_dropout" | "alpha_dropout" | "feature_alpha_dropout" => passes_through(args)?,
        "reshape" | "reshape_as" | "flatten" | "ravel" => {
            strides::is_view(input, &out.sizes).then_some(ViewInverse::Reshape)?
        }
        "view" if target == "aten.view.dtype" => view_dtype(input, out),
        "view" | "view_as" | "_unsafe_view" | "unflatten" | "squeeze" | "unsqueeze" | "_reshape_alias" => {
            ViewInverse::Reshape
        }
        "transpose" | "t" | "swapaxes" | "swapdims" | "numpy_T" | "mT" | "_conj" | "_neg_view" => {
            ViewInverse::Call(target.into(), args[1..].to_vec())
        }
        "matrix_H" | "mH" | "adjoint" => ViewInverse::Call(target.into(), args[1..].to_vec()),
        "permute" => ViewInverse::Call(target.into(), vec![inverse_permutation(args.get(1)?, input.rank())?]),
        "movedim" | "moveaxis" => {
            ViewInverse::Call(target.into(), vec![args.get(2)?.clone(), args.get(1)?.clone()])
        }
        "view_as_real" => ViewInverse::Call("aten.view_as_complex.default".into(), vec![]),
        "view_as_complex" => ViewInverse::Call("aten.view_as_real.default".into(), vec![]),
        "real" if !input.dtype.is_complex() => ViewInverse::Identity,
        "expand" | "expand_as" | "broadcast_to" => expanded(input, out),
        "select" => ViewInverse::Scatter("aten.select_scatter.default".into(), args[1..].to_vec()),
        "slice" => ViewInverse::Scatter("aten.slice_scatter.default".into(), args[1..].to_vec()),
        "diagonal" => ViewInverse::Scatter("aten.diagonal_scatter.default".into(), args[1..].to_vec()),
        "narrow" => return narrow(args, input, out),
        "as_strided" => return as_strided(args, input),
        "resize" | "resize_as" | "resize_as_sparse" => return resize(input, out),
        "unbind" => return unbind(args, n),
        "split" | "split_with_sizes" | "chunk" | "tensor_split" | "hsplit" | "vsplit" | "dsplit" => {
            return split(name, args, input, outs, n);
        }
        // Shares memory by its schema, but how to write through it is not known: reads are replayed.
        _ if outs.len() == 1 && aliases_by_schema(target) => {
            ViewInverse::Refused("has no rule for writing through it")
        }
        _ => return None,
    };
    Some(ViewRule { target: target.into(), args: args[1..].to_vec(), inverse, of_storage: false })
}

/// Whether the operator table says that the first result shares memory with the first argument.
fn aliases_by_schema(target: &str) -> bool {
    let Some(schema) = prims::schema_of(target) else { return false };
    let set = |alias: &Option<(String, bool)>| alias.as_ref().map(|(set, _)| set.clone());
    let first = schema.args.first().and_then(|a| set(&a.alias));
    first.is_some() && schema.returns.first().and_then(|r| set(&r.alias)) == first
}

/// `to`, `contiguous` and `type_as` return the operand itself where there is nothing to change. Otherwise they would have
/// new
/// strides otherwise, but for `copy=True`.
fn same_memory(
    name: &str,
    target: &str,
    args: &[Arg],
    input: &TensorMeta,
    out: &TensorMeta,
) -> Option<ViewInverse> {
    // The position of `copy` in the schemas of `to`.
    let copy = match (name, target) {
        ("to", "aten.to.dtype") => Some(3),
        ("to", "aten.to.dtype_layout") => Some(6),
        ("to", "aten.to.device") => Some(4),
        ("to", "aten.to.other") => Some(3),
        _ => None,
    };
    let copies = copy.and_then(|n| args.get(n)).and_then(Arg::as_scalar).is_some_and(Scalar::as_bool);
    let same = input.dtype == out.dtype && input.device == out.device && input.strides == out.strides;
    (same && !copies).then_some(ViewInverse::Identity)
}

/// `dropout(input, p, train)` returns its operand outside training and for `p = 0`.
fn passes_through(args: &[Arg]) -> Option<ViewInverse> {
    let number = |n: usize| args.get(n).and_then(Arg::as_scalar);
    let drops = number(2).is_some_and(Scalar::as_bool) && number(1).is_none_or(|p| p.as_f64() != 0.0);
    (!drops).then_some(ViewInverse::Identity)
}

fn view_dtype(input: &TensorMeta, out: &TensorMeta) -> ViewInverse {
    match input.dtype.size() == out.dtype.size() || input.rank() > 0 {
        true => ViewInverse::Call("aten.view.dtype".into(), vec![Arg::DType(input.dtype)]),
        false => ViewInverse::Refused("changes the dtype's size"),
    }
}

/// An expansion is written through only where it repeats nothing.
fn expanded(input: &TensorMeta, out: &TensorMeta) -> ViewInverse {
    match input.numel() == out.numel() {
        true => ViewInverse::Reshape,
        false => {
            ViewInverse::Refused("repeats elements (`expand`), so that one element would get several values")
        }
    }
}

fn int(args: &[Arg], n: usize) -> Option<i64> {
    match args.get(n)? {
        Arg::Int(e) => e.as_const(),
        _ => None,
    }
}

fn sym(args: &[Arg], n: usize) -> Option<SymExpr> {
    match args.get(n)? {
        Arg::Int(e) => Some(e.clone()),
        _ => None,
    }
}

/// A dimension number, counted from the end where negative.
fn wrap(dim: i64, rank: usize) -> Option<usize> {
    usize::try_from(if dim < 0 { dim + rank as i64 } else { dim }).ok().filter(|&d| d < rank)
}

/// `permute(dims)` is inverted by the inverse permutation.
fn inverse_permutation(dims: &Arg, rank: usize) -> Option<Arg> {
    let Arg::List(dims) = dims else { return None };
    let mut back = vec![0i64; rank];
    for n in 0..dims.len() {
        *back.get_mut(wrap(int(dims, n)?, rank)?)? = n as i64;
    }
    Some(back.as_slice().into())
}

/// The part of `dim` from `start`, as `slice` and `slice_scatter`.
fn part(dim: i64, start: SymExpr, length: SymExpr) -> ViewRule {
    let end = &start + &length;
    let args = vec![dim.into(), start.into(), end.into(), 1.into()];
    ViewRule {
        target: "aten.slice.Tensor".into(),
        inverse: ViewInverse::Scatter("aten.slice_scatter.default".into(), args.clone()),
        args,
        of_storage: false,
    }
}

/// `narrow(dim, start, length)`.
fn narrow(args: &[Arg], input: &TensorMeta, out: &TensorMeta) -> Option<ViewRule> {
    let dim = int(args, 1)?;
    let d = wrap(dim, input.rank())?;
    match sym(args, 2) {
        Some(start) if start.as_const().is_some_and(|s| s < 0) => {
            Some(part(dim, start + &input.sizes[d], out.sizes[d].clone()))
        }
        Some(start) => Some(part(dim, start, out.sizes[d].clone())),
        // `narrow.Tensor` takes its start from a tensor.
        None => Some(ViewRule {
            target: "aten.narrow.Tensor".into(),
            args: args[1..].to_vec(),
            inverse: ViewInverse::Refused("begins where a tensor says (`narrow`)"),
            of_storage: false,
        }),
    }
}

/// Result `n` of `unbind(dim)` is `select(dim, n)`.
fn unbind(args: &[Arg], n: usize) -> Option<ViewRule> {
    let dim = int(args, 1).unwrap_or(0);
    let args: Vec<Arg> = vec![dim.into(), (n as i64).into()];
    let inverse = ViewInverse::Scatter("aten.select_scatter.default".into(), args.clone());
    Some(ViewRule { target: "aten.select.int".into(), args, inverse, of_storage: false })
}

/// Result `n` of a split is the part after those before it.
fn split(name: &str, args: &[Arg], input: &TensorMeta, outs: &[&TensorMeta], n: usize) -> Option<ViewRule> {
    let dim = match name {
        "hsplit" => i64::from(input.rank() > 1),
        "vsplit" => 0,
        "dsplit" => 2,
        _ => int(args, 2).unwrap_or(0),
    };
    let d = wrap(dim, input.rank())?;
    let start =
        outs[..n].iter().fold(SymExpr::ZERO, |sum, o| o.sizes.get(d).map_or(sum.clone(), |s| sum + s));
    Some(part(dim, start, outs[n].sizes.get(d)?.clone()))
}

/// `as_strided(size, stride, offset)` addresses the storage; without an offset it keeps the operand's.
fn as_strided(args: &[Arg], input: &TensorMeta) -> Option<ViewRule> {
    let offset = sym(args, 3).unwrap_or_else(|| input.offset.clone());
    let args = vec![args.get(1)?.clone(), args.get(2)?.clone(), offset.into()];
    let inverse = ViewInverse::Scatter("aten.as_strided_scatter.default".into(), args.clone());
    Some(ViewRule { target: "aten.as_strided.default".into(), args, inverse, of_storage: true })
}

/// `resize_` sees the first elements of the storage in another shape. (A storage that would have to grow is refused by
/// the caller: its new elements have no value.)
fn resize(input: &TensorMeta, out: &TensorMeta) -> Option<ViewRule> {
    let (have, want) = (input.numel().as_const()?, out.numel().as_const()?);
    if want > have {
        return None;
    }
    let args = vec![Arg::ints(&out.sizes), Arg::ints(&out.strides), out.offset.clone().into()];
    let inverse = ViewInverse::Scatter("aten.as_strided_scatter.default".into(), args.clone());
    Some(ViewRule { target: "aten.as_strided.default".into(), args, inverse, of_storage: true })
}

/// The permutation that brings a storage's tensor into the order of its elements in memory, with the resulting meta: a
/// functional value is row-major, so that `as_strided` counts along its last dimension first. `None` where it is in that
/// order already.
///
/// # Errors
/// The tensor has gaps or an offset, or its strides cannot be compared.
pub(super) fn in_memory_order(root: &TensorMeta) -> Result<Option<(ViewRule, TensorMeta)>, &'static str> {
    const REFUSED: &str = "addresses memory that is not dense (`as_strided`)";
    if root.offset != SymExpr::ZERO {
        return Err(REFUSED);
    }
    if root.is_contiguous() {
        return Ok(None);
    }
    let dims = root.memory_order().ok_or(REFUSED)?;
    let meta = root.with_sizes(dims.iter().map(|&d| root.sizes[d].clone()));
    let target = "aten.permute.default";
    let order: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
    let order = Arg::from(order.as_slice());
    let back = inverse_permutation(&order, root.rank()).ok_or(REFUSED)?;
    let inverse = ViewInverse::Call(target.into(), vec![back]);
    Ok(Some((ViewRule { target: target.into(), args: vec![order], inverse, of_storage: false }, meta)))
}
