//! The most frequent element along a dimension.

use ir_core::{DType, SymExpr};
use kernel_ir::ReduceOp;
use smallvec::smallvec;

use crate::ops::common::choose;
use crate::ops::shapes::shape;
use crate::{Builder, Call, OpDef, OpError, Outs};

/// The entry.
pub(in crate::ops) const OPS: &[OpDef] = &[composite!(
    "aten::mode(Tensor self, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)",
    mode
)];

/// In sorted order equal elements stand together; the first run that reaches the greatest length is the smallest of the
/// most frequent elements, and its end is the position of its last occurrence.
fn mode(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let sizes = b.sizes(x)?;
    let rank = sizes.len();
    if rank == 0 {
        return Ok(smallvec![x, b.full(&[], 0i64, DType::I64)?]);
    }
    let d = c.dim(c.int("dim")?, rank)?;
    let n = sizes[d].clone();
    b.require_at_least(&n, 1, |_| "an empty dimension has no most frequent element".into())?;
    let sorted = b.call("prims.sort", vec![x.into(), (d as i64).into(), false.into()])?;
    let (values, order) = (sorted[0], sorted[1]);
    let mut edge = sizes.clone();
    edge[d] = SymExpr::ONE;
    let first = b.full(&edge, true, DType::Bool)?;
    let (before, after) =
        (b.slice(values, d, SymExpr::ZERO, &n - 1, 1)?, b.slice(values, d, SymExpr::ONE, &n - 1, 1)?);
    let differs = b.ne(before, after)?;
    let starts = shape::cat(b, &[first, differs], d)?;
    let places = shape::iota_at(b, &n, d, rank)?;
    let places = b.expand(places, &sizes)?;
    let since = choose(b, starts, places, 0i64, DType::I64)?;
    let since = b.call1("prims.cummax", vec![since.into(), (d as i64).into()])?;
    let length = b.sub(places, since)?;
    let at = b.reduce(ReduceOp::ArgMax, length, &[d], true)?;
    let (mut value, mut index) = (
        crate::ops::indexing::index::gather(b, values, d, at)?,
        crate::ops::indexing::index::gather(b, order, d, at)?,
    );
    if !c.bool("keepdim")? {
        (value, index) = (shape::drop_dim(b, value, d)?, shape::drop_dim(b, index, d)?);
    }
    Ok(smallvec![value, index])
}
