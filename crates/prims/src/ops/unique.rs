//! Distinct elements, and reductions of segments.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Scalar, SymExpr};
use kernel_ir::ReduceOp;
use smallvec::smallvec;

use super::common::{choose, one, want_inexact, widen};
use crate::{Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(super) const OPS: &[OpDef] = &[
    composite!(
        "aten::_unique2(Tensor self, bool sorted=True, bool return_inverse=False, bool return_counts=False) -> (Tensor, Tensor, Tensor)",
        unique
    ),
    composite!(
        "aten::unique_consecutive(Tensor self, bool return_inverse=False, bool return_counts=False, int? dim=None) -> (Tensor, Tensor, Tensor)",
        unique_consecutive
    ),
    composite!(
        "aten::segment_reduce(Tensor data, str reduce, *, Tensor? lengths=None, Tensor? indices=None, Tensor? offsets=None, int axis=0, bool unsafe=False, Scalar? initial=None) -> Tensor",
        segment_reduce
    ),
];

/// Where runs of equal slices along dimension 0 begin.
struct Runs {
    /// Whether a run begins at each slice.
    begins: ValueId,
    /// Positions of the first slices, `[runs]`.
    starts: ValueId,
    /// Number of slices.
    length: SymExpr,
}

fn runs(b: &mut Builder<'_>, x: ValueId) -> Result<Runs, OpError> {
    let sizes = b.sizes(x)?;
    let length = sizes[0].clone();
    let at = super::creation::iota(b, length.clone())?;
    // The slice before each one; the first is its own.
    let before = b.sub(at, 1i64)?;
    let before = b.maximum(before, 0i64)?;
    let previous = b.call1("prims.index", vec![x.into(), Arg::values([before]), 0i64.into()])?;
    let mut differs = b.ne(x, previous)?;
    let dims: Vec<usize> = (1..sizes.len()).collect();
    differs = b.reduce(ReduceOp::Any, differs, &dims, false)?;
    let first = b.eq(at, 0i64)?;
    let begins = b.or(differs, first)?;
    let rows = b.nonzero(begins)?;
    let count = b.meta(rows)?.sizes[0].clone();
    let starts = b.reshape(rows, &[count])?;
    Ok(Runs { begins, starts, length })
}

impl Runs {
    fn values(&self, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, OpError> {
        b.call1("prims.index", vec![x.into(), Arg::values([self.starts]), 0i64.into()])
    }
    /// The number of its run for each slice.
    fn numbers(&self, b: &mut Builder<'_>) -> Result<ValueId, OpError> {
        let begins = b.cast(self.begins, DType::I64)?;
        let count = b.call1("prims.cumsum", vec![begins.into(), 0i64.into()])?;
        b.sub(count, 1i64)
    }
    /// Slices of each run: to the next start, or the end.
    fn counts(&self, b: &mut Builder<'_>) -> Result<ValueId, OpError> {
        let count = b.meta(self.starts)?.sizes[0].clone();
        let end = b.call1(
            "prims.full",
            vec![[SymExpr::ONE].as_slice().into(), self.length.clone().into(), DType::I64.into()],
        )?;
        let edges = b.call1("prims.cat", vec![Arg::values([self.starts, end]), 0i64.into()])?;
        let low = b.slice(edges, 0, SymExpr::ZERO, count.clone(), 1)?;
        let high = b.slice(edges, 0, SymExpr::ONE, count, 1)?;
        b.sub(high, low)
    }
}

fn nothing(b: &mut Builder<'_>) -> Result<ValueId, OpError> {
    b.full(&[SymExpr::ZERO], 0i64, DType::I64)
}

fn flat(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, OpError> {
    let n = b.meta(x)?.numel();
    b.reshape(x, &[n])
}

/// Sorted distinct elements, the position of each element's value among them, and how often each occurs.
fn unique(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let line = flat(b, x)?;
    let sorted = b.call("prims.sort", vec![line.into(), 0i64.into(), false.into()])?;
    let runs = runs(b, sorted[0])?;
    let values = runs.values(b, sorted[0])?;
    let inverse = if c.bool("return_inverse")? {
        let numbers = runs.numbers(b)?;
        // Sorting the positions gives, for each element, the place it went to.
        let back = b.call("prims.sort", vec![sorted[1].into(), 0i64.into(), false.into()])?;
        let numbers = b.call1("prims.index", vec![numbers.into(), Arg::values([back[1]]), 0i64.into()])?;
        let sizes = b.sizes(x)?;
        b.reshape(numbers, &sizes)?
    } else {
        nothing(b)?
    };
    let counts = if c.bool("return_counts")? { runs.counts(b)? } else { nothing(b)? };
    Ok(smallvec![values, inverse, counts])
}

/// The first of every run of equal elements, or of equal slices along `dim`.
fn unique_consecutive(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let rank = b.rank(x)?;
    let dim = c.opt_int("dim")?.map(|d| c.dim(d, rank)).transpose()?;
    let mut order: Vec<usize> = (0..rank).collect();
    let line = match dim {
        Some(dim) if rank > 0 => {
            order.remove(dim);
            order.insert(0, dim);
            b.permute(x, &order)?
        }
        _ => flat(b, x)?,
    };
    let runs = runs(b, line)?;
    let mut values = runs.values(b, line)?;
    if dim.is_some() && rank > 0 {
        let back: Vec<usize> = (0..rank).map(|d| order.iter().position(|&o| o == d).unwrap_or(d)).collect();
        values = b.permute(values, &back)?;
    }
    let inverse = if c.bool("return_inverse")? {
        let numbers = runs.numbers(b)?;
        let sizes = if dim.is_some() { b.sizes(numbers)? } else { b.sizes(x)? };
        b.reshape(numbers, &sizes)?
    } else {
        nothing(b)?
    };
    let counts = if c.bool("return_counts")? { runs.counts(b)? } else { nothing(b)? };
    Ok(smallvec![values, inverse, counts])
}

/// Reduces consecutive segments of dimension `axis`, given by lengths or by offsets (one more than segments).
///
/// Every segment looks at all elements through a mask: one reduction, whatever the lengths are.
fn segment_reduce(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("data")?;
    let dtype = b.dtype(x)?;
    want_inexact(c, dtype)?;
    let reduce = c.opt_str("reduce")?.unwrap_or("");
    let axis = c.dim(c.int("axis")?, b.rank(x)?)?;
    let (starts, ends) = segments(b, c, axis)?;
    let x = widen(b, x)?;
    let wide = b.dtype(x)?;
    let (op, identity) = match reduce {
        "sum" | "mean" => (ReduceOp::Sum, 0.0),
        "prod" => (ReduceOp::Prod, 1.0),
        "max" => (ReduceOp::Max, f64::NEG_INFINITY),
        "min" => (ReduceOp::Min, f64::INFINITY),
        other => {
            return Err(
                c.bad_arg("reduce", format!("is `{other}`, not `sum`, `mean`, `prod`, `max` or `min`"))
            );
        }
    };
    // Segments `[batch…, segments, 1, 1…]` and elements `[batch…, 1, elements, rest…]`.
    let rank = b.rank(x)?;
    let data = b.unsqueeze(x, axis)?;
    let shaped = |b: &mut Builder<'_>, v: ValueId| {
        let mut sizes: Vec<SymExpr> = b.sizes(v)?.into_iter().collect();
        sizes.resize(rank + 1, SymExpr::ONE);
        b.reshape(v, &sizes)
    };
    let (low, high) = (shaped(b, starts)?, shaped(b, ends)?);
    let mut line = vec![SymExpr::ONE; rank + 1];
    line[axis + 1] = b.meta(x)?.sizes[axis].clone();
    let at = super::creation::iota(b, line[axis + 1].clone())?;
    let at = b.reshape(at, &line)?;
    let (from, to) = (b.ge(at, low)?, b.lt(at, high)?);
    let inside = b.and(from, to)?;
    let kept = choose(b, inside, data, identity, wide)?;
    let mut out = b.reduce(op, kept, &[axis + 1], false)?;
    let initial = c.opt_float("initial")?;
    if let Some(initial) = initial {
        let start = Scalar::Float(initial);
        out = match op.combine() {
            Some(combine) => b.scalar_op(combine, &[out.into(), start.into()])?,
            None => out,
        };
    }
    if reduce == "mean" {
        out = divide_by_length(b, out, starts, ends, rank, initial.is_some())?;
    }
    one(b.cast(out, dtype)?)
}

/// First position of each segment, and the one behind its last.
fn segments(b: &mut Builder<'_>, c: &Call<'_>, axis: usize) -> Result<(ValueId, ValueId), OpError> {
    if let Some(lengths) = c.opt_value("lengths")? {
        let lengths = b.cast(lengths, DType::I64)?;
        let ends = b.call1("prims.cumsum", vec![lengths.into(), (axis as i64).into()])?;
        return Ok((b.sub(ends, lengths)?, ends));
    }
    let Some(offsets) = c.opt_value("offsets")? else { return Err(c.unsupported("segments by `indices`")) };
    let offsets = b.cast(offsets, DType::I64)?;
    let count = &b.meta(offsets)?.sizes[axis] - 1;
    let starts = b.slice(offsets, axis, SymExpr::ZERO, count.clone(), 1)?;
    Ok((starts, b.slice(offsets, axis, SymExpr::ONE, count, 1)?))
}

/// An empty segment's mean is `NaN`, or the initial value where there is one.
fn divide_by_length(
    b: &mut Builder<'_>,
    sum: ValueId,
    starts: ValueId,
    ends: ValueId,
    rank: usize,
    keeps_initial: bool,
) -> Result<ValueId, OpError> {
    let mut length = b.sub(ends, starts)?;
    if keeps_initial {
        length = b.maximum(length, 1i64)?;
    }
    let mut sizes: Vec<SymExpr> = b.sizes(length)?.into_iter().collect();
    sizes.resize(rank, SymExpr::ONE);
    let length = b.reshape(length, &sizes)?;
    let dtype = b.dtype(sum)?;
    let length = b.cast(length, dtype)?;
    b.div(sum, length)
}
