//! Reductions: sums, extrema, predicates over all elements, positions, norms.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Relation, Scalar, SymExpr};
use kernel_ir::ReduceOp;
use smallvec::smallvec;

use crate::ops::common::{count_of, dims_of, dims_or_all, one, truth, want_inexact, widen};
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!("aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor", |b, c| sum_prod(
        b,
        c,
        ReduceOp::Sum,
        Over::All
    )).autocast(Autocast::FLOAT32_RESULT_ON_GPU),
    composite!(
        "aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        |b, c| sum_prod(b, c, ReduceOp::Sum, Over::Dims)
    ).autocast(Autocast::FLOAT32_RESULT_ON_GPU),
    composite!(
        "aten::nansum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        |b, c| {
            let x = without_nan(b, c.value("self")?)?;
            b.call(
                "aten.sum.dim_IntList",
                vec![x.into(), c.arg("dim").clone(), c.arg("keepdim").clone(), c.arg("dtype").clone()],
            )
        }
    ),
    composite!("aten::prod(Tensor self, *, ScalarType? dtype=None) -> Tensor", |b, c| sum_prod(
        b,
        c,
        ReduceOp::Prod,
        Over::All
    )).autocast(Autocast::FLOAT32_ON_CPU_RESULT_ON_GPU),
    composite!(
        "aten::prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        |b, c| sum_prod(b, c, ReduceOp::Prod, Over::Dims)
    ).autocast(Autocast::FLOAT32_ON_CPU_RESULT_ON_GPU),
    composite!("aten::mean(Tensor self, *, ScalarType? dtype=None) -> Tensor", |b, c| mean(b, c, Over::All)),
    composite!(
        "aten::mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        |b, c| mean(b, c, Over::Dims)
    ),
    // sum without NaN / number of others
    composite!(
        "aten::nanmean(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        nanmean
    ),
    composite!("aten::amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor", |b, c| extreme(
        b,
        c,
        ReduceOp::Max,
        Over::Dims
    )),
    composite!("aten::amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor", |b, c| extreme(
        b,
        c,
        ReduceOp::Min,
        Over::Dims
    )),
    composite!("aten::max(Tensor self) -> Tensor", |b, c| extreme(b, c, ReduceOp::Max, Over::All)),
    composite!("aten::min(Tensor self) -> Tensor", |b, c| extreme(b, c, ReduceOp::Min, Over::All)),
    composite!(
        "aten::aminmax(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)",
        |b, c| {
            let (low, high) =
                (extreme(b, c, ReduceOp::Min, Over::Dims)?, extreme(b, c, ReduceOp::Max, Over::Dims)?);
            Ok(smallvec![low[0], high[0]])
        }
    ),
    composite!(
        "aten::max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
        |b, c| with_position(b, c, ReduceOp::Max, ReduceOp::ArgMax)
    ),
    composite!(
        "aten::min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
        |b, c| with_position(b, c, ReduceOp::Min, ReduceOp::ArgMin)
    ),
    composite!("aten::argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor", |b, c| position(
        b,
        c,
        ReduceOp::ArgMax
    )),
    composite!("aten::argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor", |b, c| position(
        b,
        c,
        ReduceOp::ArgMin
    )),
    composite!("aten::any(Tensor self) -> Tensor", |b, c| question(b, c, ReduceOp::Any, Over::All)),
    composite!("aten::any.dim(Tensor self, int dim, bool keepdim=False) -> Tensor", |b, c| question(
        b,
        c,
        ReduceOp::Any,
        Over::Dims
    )),
    composite!(
        "aten::any.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor",
        |b, c| question(b, c, ReduceOp::Any, Over::Dims)
    ),
    composite!("aten::all(Tensor self) -> Tensor", |b, c| question(b, c, ReduceOp::All, Over::All)),
    composite!("aten::all.dim(Tensor self, int dim, bool keepdim=False) -> Tensor", |b, c| question(
        b,
        c,
        ReduceOp::All,
        Over::Dims
    )),
    composite!(
        "aten::all.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor",
        |b, c| question(b, c, ReduceOp::All, Over::Dims)
    ),
    composite!("aten::count_nonzero(Tensor self, int? dim=None) -> Tensor", count_nonzero),
    composite!("aten::count_nonzero.dim_IntList(Tensor self, int[] dim) -> Tensor", count_nonzero),
    composite!("aten::logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor", logsumexp).autocast(Autocast::FLOAT32_ON_GPU),
    composite!("aten::special_logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor", logsumexp),
    composite!("aten::trace(Tensor self) -> Tensor", trace).autocast(Autocast::FLOAT32_ON_CPU),
    // self summed to a shape that broadcasts to its own
    composite!("aten::sum_to_size(Tensor self, SymInt[] size) -> Tensor", |b, c| {
        let x = c.value("self")?;
        one(sum_to(b, x, &c.syms("size")?)?)
    }),
];

/// Which dimensions a reduction runs over.
#[derive(Clone, Copy, PartialEq)]
pub(in crate::ops) enum Over {
    /// All of them; the call has no argument for it.
    All,
    /// Those of the argument `dim`; absent or empty means all.
    Dims,
}

/// The dimensions and whether they are kept.
pub(in crate::ops) fn over(c: &Call<'_>, over: Over, rank: usize) -> Result<(Vec<usize>, bool), OpError> {
    match over {
        Over::All => Ok(((0..rank).collect(), false)),
        Over::Dims => Ok((dims_or_all(c, "dim", rank)?, c.bool("keepdim")?)),
    }
}

/// Sums or multiplies in the wide dtype and rounds once.
fn sum_prod(b: &mut Builder<'_>, c: &Call<'_>, op: ReduceOp, dims: Over) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let own = b.dtype(x)?;
    let natural = if own.is_integral() { DType::I64 } else { own };
    let dtype = c.opt_dtype("dtype")?.unwrap_or(natural);
    let (dims, keepdim) = over(c, dims, b.rank(x)?)?;
    let x = b.cast(x, dtype)?;
    let x = widen(b, x)?;
    let out = b.reduce(op, x, &dims, keepdim)?;
    one(b.cast(out, dtype)?)
}

/// A number of elements as an operand of the dtype.
pub(in crate::ops) fn count_arg(count: SymExpr, dtype: DType) -> Arg {
    match count.as_const() {
        Some(n) => Arg::from(Scalar::Int(n).to_class_of(dtype)),
        None => Arg::Int(count),
    }
}

fn mean(b: &mut Builder<'_>, c: &Call<'_>, dims: Over) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dtype = c.opt_dtype("dtype")?.unwrap_or(b.dtype(x)?);
    want_inexact(c, dtype)?;
    let (dims, keepdim) = over(c, dims, b.rank(x)?)?;
    let x = b.cast(x, dtype)?;
    let out = mean_of(b, x, &dims, keepdim)?;
    one(b.cast(out, dtype)?)
}

/// The mean in the dtype of arithmetic.
pub(crate) fn mean_of(
    b: &mut Builder<'_>,
    x: ValueId,
    dims: &[usize],
    keepdim: bool,
) -> Result<ValueId, OpError> {
    let x = widen(b, x)?;
    let dtype = b.dtype(x)?;
    let count = count_of(b, x, dims)?;
    let sum = b.reduce(ReduceOp::Sum, x, dims, keepdim)?;
    b.div(sum, count_arg(count, dtype))
}

fn without_nan(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, OpError> {
    let dtype = b.dtype(x)?;
    if dtype.is_integral() {
        return Ok(x);
    }
    let nan = b.ne(x, x)?;
    b.select(nan, Scalar::zero(dtype), x)
}

fn nanmean(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dtype = c.opt_dtype("dtype")?.unwrap_or(b.dtype(x)?);
    want_inexact(c, dtype)?;
    let (dims, keepdim) = over(c, Over::Dims, b.rank(x)?)?;
    let x = b.cast(x, dtype)?;
    let x = widen(b, x)?;
    let wide = b.dtype(x)?;
    let number = b.eq(x, x)?;
    let number = b.cast(number, wide)?;
    let count = b.reduce(ReduceOp::Sum, number, &dims, keepdim)?;
    let kept = without_nan(b, x)?;
    let sum = b.reduce(ReduceOp::Sum, kept, &dims, keepdim)?;
    let mean = b.div(sum, count)?;
    one(b.cast(mean, dtype)?)
}

/// An extreme of no elements does not exist.
fn want_elements(b: &mut Builder<'_>, x: ValueId, dims: &[usize]) -> Result<(), OpError> {
    let sizes = b.sizes(x)?;
    let mut kept = (0..sizes.len()).filter(|d| !dims.contains(d));
    if kept.any(|d| sizes[d] == SymExpr::ZERO) {
        return Ok(());
    }
    dims.iter().try_for_each(|&d| {
        b.require(Relation::NonZero, sizes[d].clone(), |_| "reduces over a dimension without elements".into())
    })
}

fn extreme(b: &mut Builder<'_>, c: &Call<'_>, op: ReduceOp, dims: Over) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let (dims, keepdim) = over(c, dims, b.rank(x)?)?;
    want_elements(b, x, &dims)?;
    one(b.reduce(op, x, &dims, keepdim)?)
}

/// Position (`i64`) of the extreme along one dimension.
fn position_along(
    b: &mut Builder<'_>,
    x: ValueId,
    op: ReduceOp,
    dims: &[usize],
    keepdim: bool,
) -> Result<ValueId, OpError> {
    if dims.is_empty() {
        return b.full(&[], 0i64, DType::I64);
    }
    let x = if b.dtype(x)? == DType::Bool { b.cast(x, DType::U8)? } else { x };
    b.reduce(op, x, dims, keepdim)
}

fn with_position(b: &mut Builder<'_>, c: &Call<'_>, op: ReduceOp, at: ReduceOp) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dims = dims_of(c, &[c.int("dim")?], b.rank(x)?)?;
    want_elements(b, x, &dims)?;
    let keepdim = c.bool("keepdim")?;
    let value = b.reduce(op, x, &dims, keepdim)?;
    Ok(smallvec![value, position_along(b, x, at, &dims, keepdim)?])
}

fn position(b: &mut Builder<'_>, c: &Call<'_>, op: ReduceOp) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let (rank, keepdim) = (b.rank(x)?, c.bool("keepdim")?);
    if let Some(dim) = c.opt_int("dim")? {
        let dims = dims_of(c, &[dim], rank)?;
        want_elements(b, x, &dims)?;
        return one(position_along(b, x, op, &dims, keepdim)?);
    }
    want_elements(b, x, &(0..rank).collect::<Vec<_>>())?;
    let line = b.meta(x)?.numel();
    let flat = b.reshape(x, &[line])?;
    let out = position_along(b, flat, op, &[0], false)?;
    let sizes = vec![SymExpr::ONE; if keepdim { rank } else { 0 }];
    one(b.reshape(out, &sizes)?)
}

/// Any or all elements not zero. `u8` answers in `u8`.
fn question(b: &mut Builder<'_>, c: &Call<'_>, op: ReduceOp, dims: Over) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let rank = b.rank(x)?;
    let (dims, keepdim) = match c.op.schema.arg_index("dim") {
        // An empty list of `any.dims` reduces nothing, an absent one everything.
        Some(_) if dims == Over::Dims => {
            let list = c.opt_ints("dim")?;
            (list.map_or_else(|| Ok((0..rank).collect()), |l| dims_of(c, &l, rank))?, c.bool("keepdim")?)
        }
        _ => over(c, Over::All, rank)?,
    };
    let dtype = if b.dtype(x)? == DType::U8 { DType::U8 } else { DType::Bool };
    let x = truth(b, x)?;
    let out = b.reduce(op, x, &dims, keepdim)?;
    one(b.cast(out, dtype)?)
}

fn count_nonzero(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dims = dims_or_all(c, "dim", b.rank(x)?)?;
    let x = truth(b, x)?;
    let x = b.cast(x, DType::I64)?;
    one(b.reduce(ReduceOp::Sum, x, &dims, false)?)
}

/// `log(sum(exp(x - m))) + m` with the maximum m; an infinite m counts as 0.
fn logsumexp(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dtype = crate::ops::common::float_of(b.dtype(x)?);
    let (dims, keepdim) = over(c, Over::Dims, b.rank(x)?)?;
    let x = b.cast(x, dtype)?;
    let x = widen(b, x)?;
    let out = logsumexp_of(b, x, &dims, keepdim)?;
    one(b.cast(out, dtype)?)
}

/// `logsumexp` in the dtype of `x`.
pub(in crate::ops) fn logsumexp_of(
    b: &mut Builder<'_>,
    x: ValueId,
    dims: &[usize],
    keepdim: bool,
) -> Result<ValueId, OpError> {
    let dtype = b.dtype(x)?;
    // Complex numbers have no order: the real parts decide.
    let real = if dtype.is_complex() { b.call1("prims.real", vec![x.into()])? } else { x };
    let max = b.reduce(ReduceOp::Max, real, dims, true)?;
    // The result is the same for every shift, so none of the gradient goes through the maximum.
    let max = b.call1("prims.detach", vec![max.into()])?;
    let size = b.abs(max)?;
    let infinite = b.eq(size, f64::INFINITY)?;
    let max = b.select(infinite, 0.0, max)?;
    let max = b.cast(max, dtype)?;
    let moved = b.sub(x, max)?;
    let e = b.exp(moved)?;
    let sum = b.reduce(ReduceOp::Sum, e, dims, true)?;
    let log = b.log(sum)?;
    let out = b.add(log, max)?;
    if keepdim { Ok(out) } else { squeeze(b, out, dims) }
}

/// Drops dimensions of size 1.
pub(in crate::ops) fn squeeze(b: &mut Builder<'_>, x: ValueId, dims: &[usize]) -> Result<ValueId, OpError> {
    let sizes = b.sizes(x)?;
    let kept: Vec<SymExpr> =
        sizes.into_iter().enumerate().filter(|(d, _)| !dims.contains(d)).map(|(_, s)| s).collect();
    b.reshape(x, &kept)
}

/// Sum of the diagonal: of the matrix with zeros elsewhere.
fn trace(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    if b.rank(x)? != 2 {
        return Err(c.invalid("takes a matrix"));
    }
    let upper = b.call1("aten.triu.default", vec![x.into()])?;
    let diagonal = b.call1("aten.tril.default", vec![upper.into()])?;
    b.call("aten.sum.default", vec![diagonal.into()])
}

/// Sums over what broadcasting added to reach the sizes of `x`; the dtype stays.
pub(in crate::ops) fn sum_to_exact(
    b: &mut Builder<'_>,
    x: ValueId,
    sizes: &[SymExpr],
) -> Result<ValueId, OpError> {
    if b.meta(x)?.sizes[..] == *sizes {
        return Ok(x);
    }
    let dtype = b.dtype(x)?;
    let sum = sum_to(b, x, sizes)?;
    b.cast(sum, dtype)
}

/// Sums over what broadcasting added to reach the sizes of `x`.
pub(in crate::ops) fn sum_to(b: &mut Builder<'_>, x: ValueId, sizes: &[SymExpr]) -> Result<ValueId, OpError> {
    if sizes.is_empty() {
        return b.call1("aten.sum.default", vec![x.into()]);
    }
    let own = b.sizes(x)?;
    let lead = own.len().saturating_sub(sizes.len());
    let dims: Vec<usize> = (0..own.len())
        .filter(|&d| d < lead || (sizes[d - lead] == SymExpr::ONE && own[d] != SymExpr::ONE))
        .collect();
    if dims.is_empty() {
        return b.reshape(x, sizes);
    }
    let list: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
    let sum = b.call1("aten.sum.dim_IntList", vec![x.into(), list.as_slice().into(), true.into()])?;
    b.reshape(sum, sizes)
}
