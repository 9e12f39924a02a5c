//! Views: other sizes over the same elements. All are composed of reshape, permute, slice and expand.

use fx_ir::ValueId;
use ir_core::{Relation, Shape, SymExpr, numel};
use smallvec::SmallVec;

use crate::ops::shapes::bits;
use crate::ops::shapes::shape::{self, Made, out};
use crate::{Builder, Call, OpDef, OpError};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!("aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)", |b, c| reshape(b, c, "size")),
    composite!("aten::view_copy(Tensor self, SymInt[] size) -> Tensor", |b, c| reshape(b, c, "size")),
    composite!("aten::view.dtype(Tensor(a) self, ScalarType dtype) -> Tensor(a)", bits::view_dtype),
    composite!("aten::view_copy.dtype(Tensor self, ScalarType dtype) -> Tensor", bits::view_dtype),
    composite!("aten::_unsafe_view(Tensor self, SymInt[] size) -> Tensor", |b, c| reshape(b, c, "size")),
    composite!("aten::_reshape_copy(Tensor self, SymInt[] size) -> Tensor", |b, c| reshape(b, c, "size")),
    composite!(
        "aten::_reshape_alias(Tensor(a) self, SymInt[] size, SymInt[] stride) -> Tensor(a)",
        |b, c| reshape(b, c, "size")
    ),
    composite!("aten::reshape(Tensor(a) self, SymInt[] shape) -> Tensor(a)", |b, c| reshape(b, c, "shape")),
    composite!("aten::view_as(Tensor(a) self, Tensor other) -> Tensor(a)", reshape_as),
    composite!("aten::reshape_as(Tensor(a) self, Tensor other) -> Tensor(a)", reshape_as),
    composite!(
        "aten::resize(Tensor self, SymInt[] size, *, MemoryFormat? memory_format=None) -> Tensor",
        |b, c| {
            let sizes = c.syms("size")?;
            resize(b, c, &sizes)
        }
    ),
    composite!(
        "aten::resize_as(Tensor self, Tensor the_template, *, MemoryFormat? memory_format=None) -> Tensor",
        |b, c| {
            let sizes = b.sizes(c.value("the_template")?)?;
            resize(b, c, &sizes)
        }
    ),
    composite!("aten::ravel(Tensor(a) self) -> Tensor(a)", |b, c| {
        let x = c.value("self")?;
        let n = numel(&b.sizes(x)?);
        out(b.reshape(x, &[n])?)
    }),
    composite!(
        "aten::flatten.using_ints(Tensor(a) self, int start_dim=0, int end_dim=-1) -> Tensor(a)",
        flatten
    ),
    composite!("aten::unflatten.int(Tensor(a) self, int dim, SymInt[] sizes) -> Tensor(a)", unflatten),
    composite!("aten::permute(Tensor(a) self, int[] dims) -> Tensor(a)", permute),
    composite!("aten::permute_copy(Tensor self, int[] dims) -> Tensor", permute),
    composite!("aten::transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)", |b, c| transpose(
        b, c, "dim0", "dim1"
    )),
    composite!("aten::transpose_copy.int(Tensor self, int dim0, int dim1) -> Tensor", |b, c| transpose(
        b, c, "dim0", "dim1"
    )),
    composite!("aten::swapdims(Tensor(a) self, int dim0, int dim1) -> Tensor(a)", |b, c| transpose(
        b, c, "dim0", "dim1"
    )),
    composite!("aten::swapaxes(Tensor(a) self, int axis0, int axis1) -> Tensor(a)", |b, c| transpose(
        b, c, "axis0", "axis1"
    )),
    composite!("aten::t(Tensor(a) self) -> Tensor(a)", t),
    composite!("aten::t_copy(Tensor self) -> Tensor", t),
    composite!("aten::numpy_T(Tensor(a) self) -> Tensor(a)", |b, c| {
        let x = c.value("self")?;
        let order: Vec<usize> = (0..b.rank(x)?).rev().collect();
        out(b.permute(x, &order)?)
    }),
    composite!("aten::mT(Tensor(a) self) -> Tensor(a)", |b, c| matrix_transpose(b, c, false)),
    composite!("aten::mH(Tensor(a) self) -> Tensor(a)", |b, c| matrix_transpose(b, c, true)),
    composite!("aten::adjoint(Tensor(a) self) -> Tensor(a)", |b, c| matrix_transpose(b, c, true)),
    composite!("aten::matrix_H(Tensor(a) self) -> Tensor(a)", |b, c| {
        let rank = b.rank(c.value("self")?)?;
        if rank == 2 { matrix_transpose(b, c, true) } else { out(conjugate(b, c.value("self")?)?) }
    }),
    composite!("aten::movedim.int(Tensor(a) self, int source, int destination) -> Tensor(a)", movedim),
    composite!(
        "aten::movedim.intlist(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)",
        movedim
    ),
    composite!("aten::moveaxis.int(Tensor(a) self, int source, int destination) -> Tensor(a)", movedim),
    composite!(
        "aten::moveaxis.intlist(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)",
        movedim
    ),
    composite!("aten::squeeze(Tensor(a) self) -> Tensor(a)", |b, c| squeeze(b, c, false)),
    composite!("aten::squeeze_copy(Tensor self) -> Tensor", |b, c| squeeze(b, c, false)),
    composite!("aten::squeeze.dim(Tensor(a) self, int dim) -> Tensor(a)", |b, c| squeeze(b, c, true)),
    composite!("aten::squeeze_copy.dim(Tensor self, int dim) -> Tensor", |b, c| squeeze(b, c, true)),
    composite!("aten::squeeze.dims(Tensor(a) self, int[] dim) -> Tensor(a)", |b, c| squeeze(b, c, true)),
    composite!("aten::squeeze_copy.dims(Tensor self, int[] dim) -> Tensor", |b, c| squeeze(b, c, true)),
    composite!("aten::unsqueeze(Tensor(a) self, int dim) -> Tensor(a)", unsqueeze),
    composite!("aten::unsqueeze_copy(Tensor self, int dim) -> Tensor", unsqueeze),
    composite!("aten::expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)", expand),
    composite!("aten::expand_copy(Tensor self, SymInt[] size, *, bool implicit=False) -> Tensor", expand),
    composite!("aten::broadcast_to(Tensor(a) self, SymInt[] size) -> Tensor(a)", expand),
    composite!("aten::expand_as(Tensor(a) self, Tensor other) -> Tensor(a)", |b, c| {
        let sizes = b.sizes(c.value("other")?)?;
        let x = c.value("self")?;
        expand_to(b, c, x, &sizes)
    }),
    composite!("aten::broadcast_tensors(Tensor[] tensors) -> Tensor[]", |b, c| {
        let tensors = c.values("tensors")?;
        let sizes = b.broadcast_sizes(&tensors)?;
        tensors.into_iter().map(|v| b.expand(v, &sizes)).collect()
    }),
    composite!("aten::atleast_1d(Tensor self) -> Tensor", |b, c| {
        let x = c.value("self")?;
        out(at_least(b, x, 1)?)
    }),
    composite!("aten::atleast_2d(Tensor self) -> Tensor", |b, c| {
        let x = c.value("self")?;
        out(at_least(b, x, 2)?)
    }),
    composite!("aten::atleast_3d(Tensor self) -> Tensor", |b, c| {
        let x = c.value("self")?;
        out(at_least(b, x, 3)?)
    }),
    composite!("aten::atleast_1d.Sequence(Tensor[] tensors) -> Tensor[]", |b, c| all_at_least(b, c, 1)),
    composite!("aten::atleast_2d.Sequence(Tensor[] tensors) -> Tensor[]", |b, c| all_at_least(b, c, 2)),
    composite!("aten::atleast_3d.Sequence(Tensor[] tensors) -> Tensor[]", |b, c| all_at_least(b, c, 3)),
];

/// The wanted sizes with the one `-1` computed.
fn inferred(
    b: &mut Builder<'_>,
    call: &Call<'_>,
    total: &SymExpr,
    mut sizes: Vec<SymExpr>,
) -> Result<Vec<SymExpr>, OpError> {
    let open: Vec<usize> = (0..sizes.len()).filter(|&d| sizes[d].as_const() == Some(-1)).collect();
    match open[..] {
        [] => Ok(sizes),
        [d] => {
            sizes[d] = SymExpr::ONE;
            let rest = numel(&sizes);
            b.require(Relation::NonZero, rest.clone(), |_| "-1 is ambiguous beside a size of 0".into())?;
            sizes[d] = total.floor_div(&rest);
            b.require_equal(&(&sizes[d] * &rest), total, |graph| {
                let (total, rest) = (graph.size_text(total), graph.size_text(&rest));
                format!("{total} elements are no multiple of {rest}")
            })?;
            Ok(sizes)
        }
        _ => Err(call.invalid("more than one size is -1")),
    }
}

/// The first elements in row-major order in another shape. More elements than there are have no value and are refused.
fn resize(b: &mut Builder<'_>, c: &Call<'_>, sizes: &[SymExpr]) -> Made {
    let x = c.value("self")?;
    let template = c.op.schema.arg_index("the_template").map(|_| c.value("the_template")).transpose()?;
    let row_major = match c.arg("memory_format") {
        fx_ir::Arg::MemoryFormat(ir_core::MemoryFormat::Preserve) => match template {
            Some(t) => b.meta(t)?.is_contiguous(),
            None => true,
        },
        fx_ir::Arg::MemoryFormat(format) => *format == ir_core::MemoryFormat::Contiguous,
        _ => true,
    };
    if !row_major || !b.meta(x)?.is_contiguous() {
        return Err(c.unsupported("tensors that are not row-major: the order of elements is that of memory"));
    }
    let (have, want) = (numel(&b.sizes(x)?), numel(sizes));
    b.require_at_least(&have, want.clone(), |graph| {
        let (have, want) = (graph.size_text(&have), graph.size_text(&want));
        format!("of {have} elements {want} cannot be made: the new ones would have no value")
    })?;
    let line = b.reshape(x, &[have])?;
    let line = b.slice(line, 0, SymExpr::ZERO, want, 1)?;
    out(b.reshape(line, sizes)?)
}

fn reshape(b: &mut Builder<'_>, c: &Call<'_>, name: &str) -> Made {
    let x = c.value("self")?;
    let total = numel(&b.sizes(x)?);
    let sizes = inferred(b, c, &total, c.syms(name)?)?;
    out(b.reshape(x, &sizes)?)
}

fn reshape_as(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let sizes = b.sizes(c.value("other")?)?;
    out(b.reshape(c.value("self")?, &sizes)?)
}

fn flatten(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let x = c.value("self")?;
    let rank = b.rank(x)?;
    let (first, last) = (shape::dim(c, "start_dim", rank)?, shape::dim(c, "end_dim", rank)?);
    if first > last {
        return Err(c.invalid("start_dim comes after end_dim"));
    }
    if rank == 0 {
        return out(b.reshape(x, &[SymExpr::ONE])?);
    }
    out(shape::merge_dims(b, x, first, last - first + 1)?)
}

fn unflatten(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let x = c.value("self")?;
    let sizes = b.sizes(x)?;
    let d = shape::dim(c, "dim", sizes.len())?;
    let n = sizes.get(d).ok_or_else(|| c.invalid("a 0-dim tensor cannot be unflattened"))?;
    let parts = inferred(b, c, n, c.syms("sizes")?)?;
    out(shape::split_dim(b, x, d, &parts)?)
}

fn permute(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let x = c.value("self")?;
    let rank = b.rank(x)?;
    let order = shape::dims(c, "dims", rank)?;
    if order.len() != rank {
        return Err(c.bad_arg("dims", format!("must name {rank} dimensions")));
    }
    out(b.permute(x, &order)?)
}

fn transpose(b: &mut Builder<'_>, c: &Call<'_>, d0: &str, d1: &str) -> Made {
    let x = c.value("self")?;
    let rank = b.rank(x)?;
    let (d0, d1) = (shape::dim(c, d0, rank)?, shape::dim(c, d1, rank)?);
    out(shape::swap(b, x, d0, d1)?)
}

fn t(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let x = c.value("self")?;
    match b.rank(x)? {
        0 | 1 => out(x),
        2 => out(b.permute(x, &[1, 0])?),
        rank => Err(c.invalid(format!("takes at most 2 dimensions, not {rank}"))),
    }
}

/// The complex conjugate; a real tensor is its own.
pub(in crate::ops) fn conjugate(b: &mut Builder<'_>, v: ValueId) -> Result<ValueId, OpError> {
    if b.dtype(v)?.is_complex() { b.call1("aten.conj_physical.default", vec![v.into()]) } else { Ok(v) }
}

fn matrix_transpose(b: &mut Builder<'_>, c: &Call<'_>, conjugated: bool) -> Made {
    let x = c.value("self")?;
    let rank = b.rank(x)?;
    if rank == 0 && conjugated {
        return out(conjugate(b, x)?);
    }
    if rank < 2 {
        return Err(c.invalid(format!("takes matrices, not {rank} dimensions")));
    }
    let moved = shape::swap(b, x, rank - 2, rank - 1)?;
    out(if conjugated { conjugate(b, moved)? } else { moved })
}

fn movedim(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let x = c.value("self")?;
    let rank = b.rank(x)?;
    let (from, to) = (shape::dims(c, "source", rank)?, shape::dims(c, "destination", rank)?);
    if from.len() != to.len() {
        return Err(c.invalid("as many destinations as sources are needed"));
    }
    if rank == 0 {
        return out(x);
    }
    let mut order = vec![usize::MAX; rank];
    from.iter().zip(&to).for_each(|(&f, &t)| order[t] = f);
    let mut rest = (0..rank).filter(|d| !from.contains(d));
    for slot in order.iter_mut().filter(|s| **s == usize::MAX) {
        // As many free positions as sources that were not named.
        *slot = rest.next().unwrap_or(0);
    }
    out(b.permute(x, &order)?)
}

/// Drops the named (or all) dimensions of size 1. Whether a symbolic size is 1 is decided here, for all calls.
fn squeeze(b: &mut Builder<'_>, c: &Call<'_>, named: bool) -> Made {
    let x = c.value("self")?;
    let sizes = b.sizes(x)?;
    let list = if named { shape::dims(c, "dim", sizes.len())? } else { (0..sizes.len()).collect() };
    let mut kept = Shape::new();
    for (d, size) in sizes.iter().enumerate() {
        let one = list.contains(&d)
            && b.choose(Relation::Zero, &(size - 1), false, |graph| {
                format!("whether the size {} is 1 was decided at capture", graph.size_text(size))
            })?;
        if !one {
            kept.push(size.clone());
        }
    }
    out(b.reshape(x, &kept)?)
}

fn unsqueeze(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let x = c.value("self")?;
    let d = c.dim(c.int("dim")?, b.rank(x)? + 1)?;
    out(b.unsqueeze(x, d)?)
}

fn expand(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let sizes = c.syms("size")?;
    let x = c.value("self")?;
    expand_to(b, c, x, &sizes)
}

fn expand_to(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, wanted: &[SymExpr]) -> Made {
    let have = b.sizes(x)?;
    let Some(lead) = wanted.len().checked_sub(have.len()) else {
        return Err(c.invalid(format!("{} dimensions do not expand to {}", have.len(), wanted.len())));
    };
    let mut sizes = Shape::new();
    for (d, want) in wanted.iter().enumerate() {
        let own = d.checked_sub(lead).map(|d| &have[d]);
        sizes.push(match (own, want.as_const()) {
            (Some(own), Some(-1)) => own.clone(),
            (None, Some(-1)) => return Err(c.invalid("a new dimension cannot be -1")),
            _ => want.clone(),
        });
    }
    out(b.expand(x, &sizes)?)
}

/// NumPy's rule: a vector becomes a row, for three dimensions `[1, n, 1]`; a matrix becomes `[m, n, 1]`.
pub(in crate::ops) fn at_least(b: &mut Builder<'_>, x: ValueId, rank: usize) -> Result<ValueId, OpError> {
    let sizes = b.sizes(x)?;
    let ones = |n: usize| std::iter::repeat_n(SymExpr::ONE, n);
    let list: Shape = match (sizes.len(), rank) {
        (have, want) if have >= want => return Ok(x),
        (0, want) => ones(want).collect(),
        (1, 3) => ones(1).chain(sizes).chain(ones(1)).collect(),
        (1, _) => ones(1).chain(sizes).collect(),
        (have, want) => sizes.into_iter().chain(ones(want - have)).collect(),
    };
    b.reshape(x, &list)
}

fn all_at_least(b: &mut Builder<'_>, c: &Call<'_>, rank: usize) -> Made {
    c.values("tensors")?.into_iter().map(|v| at_least(b, v, rank)).collect::<Result<SmallVec<_>, _>>()
}
