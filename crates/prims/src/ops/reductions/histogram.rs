//! Histograms of one and of several dimensions, weighted or not: counts in bins whose last is closed on both sides.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, SymExpr, numel};
use kernel_ir::ReduceOp;
use smallvec::smallvec;

use crate::ops::common::choose;
use crate::ops::indexing::index::flat;
use crate::ops::shapes::shape;
use crate::{Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::histogram.bins_tensor(Tensor self, Tensor bins, *, Tensor? weight=None, bool density=False) -> (Tensor hist, Tensor bin_edges)",
        |b, c| {
            let edges = c.value("bins")?;
            histogram(b, c, |_, _, _| Ok(edges))
        }
    ),
    composite!(
        "aten::histogram.bin_ct(Tensor self, int bins=100, *, float[]? range=None, Tensor? weight=None, bool density=False) -> (Tensor hist, Tensor bin_edges)",
        |b, c| {
            let (bins, range) = (c.int("bins")?, range_of(c, 0)?);
            histogram(b, c, |b, x, _| even_edges(b, c, x, bins, range))
        }
    ),
    composite!(
        "aten::histogramdd(Tensor self, int[] bins, float[]? range=None, Tensor? weight=None, bool density=False) -> (Tensor hist, Tensor[] bin_edges)",
        |b, c| {
            let bins = c.ints("bins")?;
            many(b, c, bins.len(), |b, x, d| even_edges(b, c, x, bins[d], range_of(c, d)?))
        }
    ),
    composite!(
        "aten::histogramdd.int_bins(Tensor self, int bins, float[]? range=None, Tensor? weight=None, bool density=False) -> (Tensor hist, Tensor[] bin_edges)",
        |b, c| {
            let bins = c.int("bins")?;
            let n = columns(b, c)?;
            many(b, c, n, |b, x, d| even_edges(b, c, x, bins, range_of(c, d)?))
        }
    ),
    composite!(
        "aten::histogramdd.TensorList_bins(Tensor self, Tensor[] bins, float[]? range=None, Tensor? weight=None, bool density=False) -> (Tensor hist, Tensor[] bin_edges)",
        |b, c| {
            let edges = c.values("bins")?;
            many(b, c, edges.len(), |_, _, d| Ok(edges[d]))
        }
    ),
];

/// The bounds given for dimension `d`, if any.
fn range_of(c: &Call<'_>, d: usize) -> Result<Option<(f64, f64)>, OpError> {
    let number = |a: &Arg| a.as_scalar().map(|s| s.as_f64());
    match c.arg("range") {
        Arg::List(list) => match (list.get(2 * d).and_then(number), list.get(2 * d + 1).and_then(number)) {
            (Some(low), Some(high)) if low <= high => Ok(Some((low, high))),
            _ => Err(c.bad_arg("range", "must hold two numbers a dimension, the lower one first")),
        },
        _ => Ok(None),
    }
}

/// `bins + 1` evenly spaced edges over the bounds given, or over the data's own; bounds that are equal are moved apart
/// by 1.
fn even_edges(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    x: ValueId,
    bins: i64,
    range: Option<(f64, f64)>,
) -> Result<ValueId, OpError> {
    if bins < 1 {
        return Err(c.bad_arg("bins", "must be positive"));
    }
    let dtype = b.dtype(x)?;
    let (low, high) = match range {
        Some((low, high)) => (b.full(&[], low, dtype)?, b.full(&[], high, dtype)?),
        None if numel(&b.sizes(x)?) == SymExpr::ZERO => {
            (b.full(&[], 0i64, dtype)?, b.full(&[], 1i64, dtype)?)
        }
        None => (b.reduce(ReduceOp::Min, x, &[0], false)?, b.reduce(ReduceOp::Max, x, &[0], false)?),
    };
    let same = b.eq(low, high)?;
    let half = choose(b, same, 0.5, 0.0, dtype)?;
    let (low, high) = (b.sub(low, half)?, b.add(high, half)?);
    let args = vec![low.into(), high.into(), (bins + 1).into(), dtype.into()];
    b.call1("aten.linspace.Tensor_Tensor", args)
}

fn columns(b: &Builder<'_>, c: &Call<'_>) -> Result<usize, OpError> {
    let sizes = b.sizes(c.value("self")?)?;
    let last = sizes.last().ok_or_else(|| c.bad_arg("self", "must have a dimension"))?;
    Ok(shape::known(c, last, "number of columns")?.max(0) as usize)
}

/// The bin of each element of `x`, `[n]`, and whether it lies in any.
fn bins_of(b: &mut Builder<'_>, x: ValueId, edges: ValueId) -> Result<(ValueId, ValueId, SymExpr), OpError> {
    let count = &b.sizes(edges)?[0] - 1;
    let found = vec![edges.into(), x.into(), false.into(), true.into()];
    let at = b.call1("aten.searchsorted.Tensor", found)?;
    let at = b.sub(at, 1i64)?;
    let at = b.maximum(at, 0i64)?;
    let at = b.minimum(at, &count - 1)?;
    let (low, high) =
        (shape::select(b, edges, 0, SymExpr::ZERO)?, shape::select(b, edges, 0, count.clone())?);
    let (above, below) = (b.ge(x, low)?, b.le(x, high)?);
    Ok((at, b.and(above, below)?, count))
}

fn histogram(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    edges: impl FnOnce(&mut Builder<'_>, ValueId, usize) -> Result<ValueId, OpError>,
) -> Result<Outs, OpError> {
    let x = flat(b, c.value("self")?)?;
    let edges = edges(b, x, 0)?;
    let hist = counted(b, c, &[x], &[edges])?;
    Ok(smallvec![hist, edges])
}

fn many(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    dims: usize,
    mut edges: impl FnMut(&mut Builder<'_>, ValueId, usize) -> Result<ValueId, OpError>,
) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    if columns(b, c)? != dims {
        return Err(c.bad_arg("bins", "must have an item for each column"));
    }
    let last = b.rank(x)? - 1;
    let mut lines = Vec::with_capacity(dims);
    let mut all = Vec::with_capacity(dims);
    for d in 0..dims {
        let column = shape::select(b, x, last, (d as i64).into())?;
        let line = flat(b, column)?;
        all.push(edges(b, line, d)?);
        lines.push(line);
    }
    let mut outs: Outs = smallvec![counted(b, c, &lines, &all)?];
    outs.extend(all);
    Ok(outs)
}

/// Weights added up in the bins of all dimensions; as a density divided by the total and the bins' volumes.
fn counted(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    lines: &[ValueId],
    edges: &[ValueId],
) -> Result<ValueId, OpError> {
    let Some(&first) = lines.first() else { return Err(c.invalid("takes a column or more")) };
    let dtype = b.dtype(first)?;
    let n = b.sizes(first)?;
    let mut place = b.full(&n, 0i64, DType::I64)?;
    let mut inside = b.full(&n, true, DType::Bool)?;
    let (mut sizes, mut total) = (Vec::new(), SymExpr::ONE);
    for (&line, &edges) in lines.iter().zip(edges) {
        let (at, within, count) = bins_of(b, line, edges)?;
        let scaled = b.mul(place, count.clone())?;
        place = b.add(scaled, at)?;
        inside = b.and(inside, within)?;
        total = total * &count;
        sizes.push(count);
    }
    let weight = match c.opt_value("weight")? {
        Some(w) => {
            let w = flat(b, w)?;
            b.cast(w, dtype)?
        }
        None => b.full(&n, 1i64, dtype)?,
    };
    let weight = choose(b, inside, weight, 0i64, dtype)?;
    let zeros = b.full(std::slice::from_ref(&total), 0i64, dtype)?;
    let sums = crate::ops::indexing::scatter::put(b, zeros, &[place], 0, weight, "add")?;
    let mut hist = b.reshape(sums, &sizes)?;
    if c.bool("density")? {
        let all = b.reduce(ReduceOp::Sum, sums, &[0], false)?;
        hist = b.div(hist, all)?;
        for (d, &edges) in edges.iter().enumerate() {
            let width = b.call1("aten.diff.default", vec![edges.into()])?;
            let width = shape::along(b, width, d, lines.len())?;
            hist = b.div(hist, width)?;
        }
    }
    Ok(hist)
}
