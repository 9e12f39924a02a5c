//! Unique slices along a dimension: slices are compared as wholes, in lexicographic order.

use fx_ir::ValueId;
use ir_core::{DType, SymExpr};
use kernel_ir::ReduceOp;
use smallvec::smallvec;

use crate::ops::indexing::unique::{lengths, starts};
use crate::ops::shapes::shape::{self, Made};
use crate::{Builder, Call, OpDef, OpError};

/// The entries. Results: the slices, the run of each slice of the operand, the lengths of the runs.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::unique_dim(Tensor self, int dim, bool sorted=True, bool return_inverse=False, bool return_counts=False) -> (Tensor, Tensor, Tensor)",
        |b, c| {
            let (x, d) = operand(b, c)?;
            unique(b, c, x, d, true)
        }
    ),
    composite!(
        "aten::unique_dim_consecutive(Tensor self, int dim, bool return_inverse=False, bool return_counts=False) -> (Tensor, Tensor, Tensor)",
        |b, c| {
            let (x, d) = operand(b, c)?;
            unique(b, c, x, d, false)
        }
    ),
];

fn operand(b: &mut Builder<'_>, c: &Call<'_>) -> Result<(ValueId, usize), OpError> {
    let x = c.value("self")?;
    let rank = b.rank(x)?;
    if rank == 0 {
        return Err(c.invalid("a tensor without dimensions has no slices"));
    }
    Ok((x, c.dim(c.int("dim")?, rank)?))
}

/// Runs of equal slices, of the sorted slices or of those as they stand.
pub(in crate::ops) fn unique(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, d: usize, sorted: bool) -> Made {
    let sizes = b.sizes(x)?;
    let n = sizes[d].clone();
    let width = (0..sizes.len()).filter(|e| *e != d).fold(SymExpr::ONE, |w, e| w * &sizes[e]);
    if n == SymExpr::ZERO {
        let none = b.full(&[SymExpr::ZERO], 0i64, DType::I64)?;
        return Ok(smallvec![x, none, none]);
    }
    if width == SymExpr::ZERO {
        return Err(c.invalid("slices without elements cannot be told apart"));
    }
    let first = shape::move_dim(b, x, d, 0)?;
    let rows = b.reshape(first, &[n.clone(), width])?;
    let (order, starts) = if sorted {
        let ranks = ranks(b, c, rows)?;
        let sorted = b.call("prims.sort", vec![ranks.into(), 0i64.into(), false.into()])?;
        (Some(sorted[1]), starts(b, sorted[0], &n)?)
    } else {
        (None, row_starts(b, rows, &n)?)
    };
    let ones = b.cast(starts, DType::I64)?;
    let running = b.call1("prims.cumsum", vec![ones.into(), 0i64.into()])?;
    let mut inverse = b.sub(running, 1i64)?;
    if let Some(order) = order {
        let zeros = b.full(std::slice::from_ref(&n), 0i64, DType::I64)?;
        inverse = crate::ops::indexing::scatter::put(b, zeros, &[order], 0, inverse, "write")?;
    }
    let places = crate::ops::indexing::index::mask_places(b, starts)?[0];
    let from = match order {
        Some(order) => shape::index(b, order, &[places], 0)?,
        None => places,
    };
    let values = b.call1("aten.index_select.default", vec![x.into(), (d as i64).into(), from.into()])?;
    Ok(smallvec![values, inverse, lengths(b, places, &n)?])
}

/// Where a row differs from the one before it.
fn row_starts(b: &mut Builder<'_>, rows: ValueId, n: &SymExpr) -> Result<ValueId, OpError> {
    let first = b.full(&[SymExpr::ONE], true, DType::Bool)?;
    let (before, after) =
        (b.slice(rows, 0, SymExpr::ZERO, n - 1, 1)?, b.slice(rows, 0, SymExpr::ONE, n - 1, 1)?);
    let differs = b.ne(before, after)?;
    let any = b.reduce(ReduceOp::Any, differs, &[1], false)?;
    shape::cat(b, &[first, any], 0)
}

/// Ranks of the rows of `[n, width]` in lexicographic order, equal rows having one: columns are ranked, then
/// neighbouring columns joined to pairs of ranks and ranked again, until one is left.
fn ranks(b: &mut Builder<'_>, c: &Call<'_>, rows: ValueId) -> Result<ValueId, OpError> {
    let n = b.sizes(rows)?[0].clone();
    let mut width = shape::known(c, &b.sizes(rows)?[1].clone(), "size of a slice")?;
    let mut keys = column_ranks(b, rows, &n, width)?;
    while width > 1 {
        let pairs = width / 2;
        let left = b.slice(keys, 1, SymExpr::ZERO, pairs.into(), 2)?;
        let right = b.slice(keys, 1, SymExpr::ONE, pairs.into(), 2)?;
        let scaled = b.mul(left, n.clone())?;
        let joined = b.add(scaled, right)?;
        let ranked = column_ranks(b, joined, &n, pairs)?;
        keys = if width % 2 == 1 {
            let last = b.slice(keys, 1, (width - 1).into(), SymExpr::ONE, 1)?;
            shape::cat(b, &[ranked, last], 1)?
        } else {
            ranked
        };
        width = pairs + width % 2;
    }
    b.reshape(keys, &[n])
}

/// Ranks from 0 within each column, equal elements having one.
fn column_ranks(b: &mut Builder<'_>, v: ValueId, n: &SymExpr, width: i64) -> Result<ValueId, OpError> {
    let sorted = b.call("prims.sort", vec![v.into(), 0i64.into(), false.into()])?;
    let (values, order) = (sorted[0], sorted[1]);
    let first = b.full(&[SymExpr::ONE, width.into()], 0i64, DType::I64)?;
    let (before, after) =
        (b.slice(values, 0, SymExpr::ZERO, n - 1, 1)?, b.slice(values, 0, SymExpr::ONE, n - 1, 1)?);
    let differs = b.ne(before, after)?;
    let steps = b.cast(differs, DType::I64)?;
    let steps = shape::cat(b, &[first, steps], 0)?;
    let running = b.call1("prims.cumsum", vec![steps.into(), 0i64.into()])?;
    let args = vec![running.into(), 0i64.into(), order.into(), running.into(), "write".into()];
    b.call1("prims.scatter", args)
}
