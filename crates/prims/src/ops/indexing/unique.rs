//! Runs of equal elements: unique, unique_consecutive. The number of runs depends on the data.

use fx_ir::ValueId;
use ir_core::{DType, SymExpr, numel};
use smallvec::smallvec;

use crate::ops::indexing::index::flat;
use crate::ops::indexing::scatter::put;
use crate::ops::shapes::shape::{self, Made};
use crate::{Builder, Call, OpDef, OpError};

/// The entries. Results: the elements, the run of each element, the lengths of the runs; what was not requested is
/// empty.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::unique_consecutive(Tensor self, bool return_inverse=False, bool return_counts=False, int? dim=None) -> (Tensor, Tensor, Tensor)",
        |b, c| {
            let x = c.value("self")?;
            if let Some(d) = c.opt_int("dim")?
                && b.rank(x)? > 0
            {
                let d = c.dim(d, b.rank(x)?)?;
                return crate::ops::indexing::unique_dim::unique(b, c, x, d, false);
            }
            let line = flat(b, x)?;
            runs(b, c, x, line, None)
        }
    ),
    composite!(
        "aten::_unique(Tensor self, bool sorted=True, bool return_inverse=False) -> (Tensor, Tensor)",
        |b, c| {
            let args = vec![c.arg("self").clone(), c.arg("sorted").clone(), c.arg("return_inverse").clone()];
            Ok(b.call("aten._unique2.default", args)?.into_iter().take(2).collect())
        }
    ),
    composite!(
        "aten::_unique2(Tensor self, bool sorted=True, bool return_inverse=False, bool return_counts=False) -> (Tensor, Tensor, Tensor)",
        |b, c| {
            let x = c.value("self")?;
            let line = flat(b, x)?;
            let sorted = b.call("aten.sort.default", vec![line.into()])?;
            let [values, order] = sorted[..] else { return Err(c.invalid("sorting gave no positions")) };
            runs(b, c, x, values, Some(order))
        }
    ),
];

/// Runs of `line`; `order` says which element of `x` each of its elements is.
fn runs(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, line: ValueId, order: Option<ValueId>) -> Made {
    let sizes = b.sizes(x)?;
    let n = numel(&sizes);
    let starts = starts(b, line, &n)?;
    let places = crate::ops::indexing::index::mask_places(b, starts)?[0];
    let values = shape::index(b, line, &[places], 0)?;
    let empty = b.full(&[SymExpr::ZERO], 0i64, DType::I64)?;
    let inverse = if c.bool("return_inverse")? {
        let ones = b.cast(starts, DType::I64)?;
        let running = b.call1("prims.cumsum", vec![ones.into(), 0i64.into()])?;
        let mut run = b.sub(running, 1i64)?;
        if let Some(order) = order {
            let zeros = b.full(std::slice::from_ref(&n), 0i64, DType::I64)?;
            run = put(b, zeros, &[order], 0, run, "write")?;
        }
        b.reshape(run, &sizes)?
    } else {
        empty
    };
    let counts = if c.bool("return_counts")? { lengths(b, places, &n)? } else { empty };
    Ok(smallvec![values, inverse, counts])
}

/// Where an element differs from the one before it.
pub(in crate::ops) fn starts(b: &mut Builder<'_>, line: ValueId, n: &SymExpr) -> Result<ValueId, OpError> {
    if *n == SymExpr::ZERO {
        return b.full(&[SymExpr::ZERO], false, DType::Bool);
    }
    let first = b.full(&[SymExpr::ONE], true, DType::Bool)?;
    let (before, after) =
        (b.slice(line, 0, SymExpr::ZERO, n - 1, 1)?, b.slice(line, 0, SymExpr::ONE, n - 1, 1)?);
    let differs = b.ne(before, after)?;
    shape::cat(b, &[first, differs], 0)
}

/// Distances from each position to the next one, the end being the last.
pub(in crate::ops) fn lengths(b: &mut Builder<'_>, places: ValueId, n: &SymExpr) -> Result<ValueId, OpError> {
    let count = b.sizes(places)?[0].clone();
    let end = b.full(&[SymExpr::ONE], 0i64, DType::I64)?;
    let end = b.add(end, n.clone())?;
    // One element more than there are runs, the first cut off: right for no run too.
    let all = shape::cat(b, &[places, end], 0)?;
    let next = b.slice(all, 0, SymExpr::ONE, count, 1)?;
    b.sub(next, places)
}
