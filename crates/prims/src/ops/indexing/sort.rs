//! Sorting and operators based on it: positions, largest elements, medians; search in sorted lists; histograms.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Scalar, SymExpr};
use kernel_ir::{ReduceOp, ScalarOp};
use smallvec::smallvec;

use crate::ops::common::{choose, one};
use crate::ops::reductions::reduction::squeeze;
use crate::ops::shapes::creation::iota;
use crate::{Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)",
        sort
    ),
    composite!(
        "aten::sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)",
        sort
    ),
    composite!("aten::argsort(Tensor self, int dim=-1, bool descending=False) -> Tensor", |b, c| {
        Ok(smallvec![sort(b, c)?[1]])
    }),
    composite!(
        "aten::argsort.stable(Tensor self, *, bool stable, int dim=-1, bool descending=False) -> Tensor",
        |b, c| Ok(smallvec![sort(b, c)?[1]])
    ),
    composite!("aten::msort(Tensor self) -> Tensor", |b, c| {
        one(sorted(b, c.value("self")?, 0, false)?[0])
    }),
    composite!(
        "aten::topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)",
        topk
    ),
    composite!(
        "aten::kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)",
        kthvalue
    ),
    composite!("aten::median(Tensor self) -> Tensor", |b, c| median(b, c, false, true)),
    composite!(
        "aten::median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
        |b, c| { median(b, c, false, false) }
    ),
    composite!("aten::nanmedian(Tensor self) -> Tensor", |b, c| median(b, c, true, true)),
    composite!(
        "aten::nanmedian.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
        |b, c| { median(b, c, true, false) }
    ),
    composite!(
        "aten::searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool right=False, str? side=None, Tensor? sorter=None) -> Tensor",
        searchsorted
    ),
    composite!(
        "aten::searchsorted.Scalar(Tensor sorted_sequence, Scalar self, *, bool out_int32=False, bool right=False, str? side=None, Tensor? sorter=None) -> Tensor",
        searchsorted
    ),
    composite!(
        "aten::bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor",
        |b, c| {
            let boundaries = c.value("boundaries")?;
            let right = c.bool("right")?;
            search(b, c, boundaries, c.arg("self"), right)
        }
    ),
    composite!(
        "aten::bucketize.Scalar(Scalar self, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor",
        |b, c| {
            let boundaries = c.value("boundaries")?;
            let right = c.bool("right")?;
            search(b, c, boundaries, c.arg("self"), right)
        }
    ),
    composite!("aten::histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor", histc),
];

/// Values and positions along a dimension; a 0-dim tensor is in order.
fn sorted(b: &mut Builder<'_>, x: ValueId, dim: usize, descending: bool) -> Result<[ValueId; 2], OpError> {
    if b.rank(x)? == 0 {
        return Ok([x, b.full(&[], 0i64, DType::I64)?]);
    }
    let outs = b.call("prims.sort", vec![x.into(), (dim as i64).into(), descending.into()])?;
    Ok([outs[0], outs[1]])
}

fn sort(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dim = c.dim(c.int("dim")?, b.rank(x)?)?;
    sorted(b, x, dim, c.bool("descending")?).map(|pair| pair.into_iter().collect())
}

/// The first `k` in order; where `sorted=False` any order is right.
fn topk(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dim = c.dim(c.int("dim")?, b.rank(x)?)?;
    let k = c.sym("k")?;
    if b.rank(x)? == 0 {
        return sorted(b, x, 0, false).map(|pair| pair.into_iter().collect());
    }
    let n = b.meta(x)?.sizes[dim].clone();
    for left in [k.clone(), &n - &k] {
        b.require_at_least(&left, 0, |graph| {
            let (k, n) = (graph.size_text(&k), graph.size_text(&n));
            format!("`k` is {k}, but the dimension has {n} elements")
        })?;
    }
    let [values, positions] = sorted(b, x, dim, c.bool("largest")?)?;
    let first = |b: &mut Builder<'_>, v: ValueId| b.slice(v, dim, SymExpr::ZERO, k.clone(), 1);
    Ok(smallvec![first(b, values)?, first(b, positions)?])
}

/// The k-th smallest, counted from 1.
fn kthvalue(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dim = c.dim(c.int("dim")?, b.rank(x)?)?;
    let mut pair = sorted(b, x, dim, false)?;
    if b.rank(x)? > 0 {
        let (k, n) = (c.sym("k")?, b.meta(x)?.sizes[dim].clone());
        let at = &k - 1;
        for left in [at.clone(), &n - &k] {
            b.require_at_least(&left, 0, |graph| {
                let (k, n) = (graph.size_text(&k), graph.size_text(&n));
                format!("`k` is {k}, but the dimension has {n} elements")
            })?;
        }
        for v in &mut pair {
            *v = b.slice(*v, dim, at.clone(), SymExpr::ONE, 1)?;
            *v = if c.bool("keepdim")? { *v } else { squeeze(b, *v, &[dim])? };
        }
    }
    Ok(pair.into_iter().collect())
}

/// The lower of the middle elements. A `NaN` wins, or with `skip_nan` does not count.
fn median(b: &mut Builder<'_>, c: &Call<'_>, skip_nan: bool, flat: bool) -> Result<Outs, OpError> {
    let mut x = c.value("self")?;
    if flat {
        let n = b.meta(x)?.numel();
        x = b.reshape(x, &[n])?;
    }
    let rank = b.rank(x)?;
    let dim = if flat { 0 } else { c.dim(c.int("dim")?, rank)? };
    let keepdim = !flat && c.bool("keepdim")?;
    if rank == 0 {
        return sorted(b, x, 0, false).map(|pair| pair.into_iter().collect());
    }
    if b.meta(x)?.sizes[dim] == SymExpr::ZERO {
        return no_median(b, c, x, flat);
    }
    let n = b.meta(x)?.sizes[dim].clone();
    b.require_at_least(&n, 1, |_| "the median of no elements".into())?;
    let [values, positions] = sorted(b, x, dim, false)?;
    let at = middle(b, x, dim, skip_nan)?;
    let mut outs = Outs::new();
    for v in [values, positions] {
        let mut out = b.call1("prims.gather", vec![v.into(), (dim as i64).into(), at.into()])?;
        if !keepdim {
            out = squeeze(b, out, &[dim])?;
        }
        outs.push(out);
    }
    outs.truncate(if flat { 1 } else { 2 });
    Ok(outs)
}

/// The median of nothing is `NaN`, of no integers the smallest one.
fn no_median(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, flat: bool) -> Result<Outs, OpError> {
    if !flat {
        return Err(c.invalid("reduces over a dimension without elements"));
    }
    let dtype = b.dtype(x)?;
    one(b.full(
        &[],
        if dtype.is_float() { Scalar::Float(f64::NAN) } else { ReduceOp::Max.identity(dtype) },
        dtype,
    )?)
}

/// Where the median stands among the sorted elements, as an index with one element along `dim`.
fn middle(b: &mut Builder<'_>, x: ValueId, dim: usize, skip_nan: bool) -> Result<ValueId, OpError> {
    let n = b.meta(x)?.sizes[dim].clone();
    let mut sizes = b.sizes(x)?;
    sizes[dim] = SymExpr::ONE;
    let half = (&n - 1).floor_div(&SymExpr::from_i64(2));
    if b.dtype(x)?.is_integral() {
        return b.call1("prims.full", vec![sizes[..].into(), half.into(), DType::I64.into()]);
    }
    let nan = b.ne(x, x)?;
    let nan = b.cast(nan, DType::I64)?;
    let nans = b.reduce(ReduceOp::Sum, nan, &[dim], true)?;
    if skip_nan {
        // (numbers - 1) / 2, at least 0.
        let numbers = b.sub(n - 1, nans)?;
        let numbers = b.maximum(numbers, 0i64)?;
        return b.div(numbers, 2i64);
    }
    // The first NaN is after the numbers.
    let any = b.gt(nans, 0i64)?;
    let first = b.sub(n, nans)?;
    b.select(any, first, half)
}

fn searchsorted(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let mut sequence = c.value("sorted_sequence")?;
    let right = match c.opt_str("side")? {
        Some("right") => true,
        Some("left") | None => c.bool("right")?,
        Some(other) => return Err(c.bad_arg("side", format!("is `{other}`, not `left` or `right`"))),
    };
    if let Some(sorter) = c.opt_value("sorter")? {
        let last = b.rank(sequence)?.saturating_sub(1) as i64;
        sequence = b.call1("prims.gather", vec![sequence.into(), last.into(), sorter.into()])?;
    }
    search(b, c, sequence, c.arg("self"), right)
}

/// How many elements of the sequence are before the value: those less than it, and with `right` those equal. A
/// `NaN` is after all.
fn search(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    sequence: ValueId,
    value: &Arg,
    right: bool,
) -> Result<Outs, OpError> {
    let rank = b.rank(sequence)?;
    if rank == 0 {
        return Err(c.invalid("the sequence needs a dimension"));
    }
    let common = b.result_type(&[sequence.into(), value.clone()])?;
    let value = b.as_tensor(value, common)?;
    let sequence = b.cast(sequence, common)?;
    // Values get a dimension behind, over which the sequence runs.
    let wide = b.rank(value)?;
    let values = b.unsqueeze(value, wide)?;
    let lines = if rank == 1 { sequence } else { b.unsqueeze(sequence, rank - 1)? };
    let behind =
        b.scalar_op(if right { ScalarOp::Gt } else { ScalarOp::Ge }, &[lines.into(), values.into()])?;
    let before = b.not(behind)?;
    let dtype = if c.bool("out_int32")? { DType::I32 } else { DType::I64 };
    let before = b.cast(before, DType::I64)?;
    let count = b.reduce(ReduceOp::Sum, before, &[wide], false)?;
    one(b.cast(count, dtype)?)
}

/// Counts in `bins` equal intervals from `min` to `max`, both included; where both are equal, of the data's range.
fn histc(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let (dtype, bins) = (b.dtype(x)?, c.int("bins")?);
    if bins < 1 {
        return Err(c.bad_arg("bins", "must be positive"));
    }
    let n = b.meta(x)?.numel();
    let flat = b.reshape(x, std::slice::from_ref(&n))?;
    // PyTorch finds the bin in the tensor's own precision.
    let wide = dtype;
    let (low, high) = (c.float("min")?, c.float("max")?);
    let (low, high) = if low != high {
        (b.full(&[], low, wide)?, b.full(&[], high, wide)?)
    } else if n == SymExpr::ZERO {
        (b.full(&[], low, wide)?, b.full(&[], low + 1.0, wide)?)
    } else {
        let (min, max) =
            (b.reduce(ReduceOp::Min, flat, &[0], false)?, b.reduce(ReduceOp::Max, flat, &[0], false)?);
        // Of one value: an interval around it.
        let same = b.eq(min, max)?;
        let same = b.cast(same, wide)?;
        (b.sub(min, same)?, b.add(max, same)?)
    };
    let number = Scalar::Int(bins).to_class_of(wide);
    let (moved, width) = (b.sub(flat, low)?, b.sub(high, low)?);
    let scaled = b.mul(moved, number)?;
    let at = b.div(scaled, width)?;
    let at = b.cast(at, DType::I64)?;
    let at = b.minimum(at, bins - 1)?;
    let (above, below) = (b.ge(flat, low)?, b.le(flat, high)?);
    let inside = b.and(above, below)?;
    let row = iota(b, bins.into())?;
    let row = b.unsqueeze(row, 1)?;
    let hit = b.eq(row, at)?;
    let hit = b.and(hit, inside)?;
    let hit = choose(b, hit, 1.0, 0.0, wide.compute())?;
    let counts = b.reduce(ReduceOp::Sum, hit, &[1], false)?;
    one(b.cast(counts, dtype)?)
}
