//! Batching rules of products by groups: the batch becomes more rows, more columns or more groups.

use fx_ir::ValueId;
use ir_core::{DType, SymExpr};
use kernel_ir::ReduceOp;

use crate::ops::shapes::shape::{self, Made, iota_at, out};
use crate::{BatchCall, Builder, OpError};

/// The operands of a call, and which of them have the batch.
struct Operands {
    a: ValueId,
    b: ValueId,
    ends: ValueId,
    batched: [bool; 3],
}

fn operands(call: &BatchCall<'_>) -> Result<Operands, OpError> {
    let [a, b, ends] = [call.value("a")?, call.value("b")?, call.value("ends")?];
    Ok(Operands { a, b, ends, batched: [a, b, ends].map(|v| call.is_batched(v)) })
}

/// Matrices that all have in common multiply all rows of a group; else each entry of the batch has groups of its own.
pub(in crate::ops) fn rows(b: &mut Builder<'_>, call: &BatchCall<'_>) -> Made {
    let Operands { a, b: w, ends, batched } = operands(call)?;
    let (sizes_a, sizes_w) = (call.sizes(b, a)?, call.sizes(b, w)?);
    let (m, n, size) = (&sizes_a[0], &sizes_w[2], call.size);
    match batched {
        [true, false, false] => {
            let a = b.permute(a, &[1, 0, 2])?;
            let a = shape::merge_dims(b, a, 0, 2)?;
            let ends = scaled(b, ends, size)?;
            let y = b.call1("prims.grouped_matmul", vec![a.into(), w.into(), ends.into()])?;
            let y = b.reshape(y, &[m.clone(), size.clone(), n.clone()])?;
            out(b.permute(y, &[1, 0, 2])?)
        }
        [false, true, false] => {
            let w = b.permute(w, &[1, 2, 0, 3])?;
            let w = shape::merge_dims(b, w, 2, 2)?;
            let y = b.call1("prims.grouped_matmul", vec![a.into(), w.into(), ends.into()])?;
            let y = b.reshape(y, &[m.clone(), size.clone(), n.clone()])?;
            out(b.permute(y, &[1, 0, 2])?)
        }
        _ => {
            let folded = fold(b, call, ends, m)?;
            let a = super::rules::folded(b, call, a)?;
            let w = super::rules::folded(b, call, w)?;
            let y = b.call1("prims.grouped_matmul", vec![a.into(), w.into(), folded.ends.into()])?;
            let y = b.reshape(y, &call.with_batch(&[m.clone(), n.clone()]))?;
            out(kept(b, folded.owned, y)?)
        }
    }
}

/// One operand's batch is more rows or columns; else each entry of the batch has groups of its own.
pub(in crate::ops) fn sums(b: &mut Builder<'_>, call: &BatchCall<'_>) -> Made {
    let Operands { a, b: w, ends, batched } = operands(call)?;
    let (sizes_a, sizes_w) = (call.sizes(b, a)?, call.sizes(b, w)?);
    let (m, k, n, size) = (&sizes_a[0], &sizes_a[1], &sizes_w[1], call.size);
    let groups = call.sizes(b, ends)?[0].clone();
    match batched {
        [true, false, false] => {
            let a = shape::merge_dims(b, a, 0, 2)?;
            let y = b.call1("prims.grouped_sums", vec![a.into(), w.into(), ends.into()])?;
            let y = b.reshape(y, &[groups, size.clone(), m.clone(), n.clone()])?;
            out(b.permute(y, &[1, 0, 2, 3])?)
        }
        [false, true, false] => {
            let w = b.permute(w, &[1, 0, 2])?;
            let w = shape::merge_dims(b, w, 1, 2)?;
            let y = b.call1("prims.grouped_sums", vec![a.into(), w.into(), ends.into()])?;
            let y = b.reshape(y, &[groups, m.clone(), size.clone(), n.clone()])?;
            out(b.permute(y, &[2, 0, 1, 3])?)
        }
        _ => {
            let folded = fold(b, call, ends, k)?;
            let a = call.front(b, a)?;
            let a = b.permute(a, &[1, 0, 2])?;
            let a = shape::merge_dims(b, a, 1, 2)?;
            let w = call.front(b, w)?;
            let w = kept(b, folded.owned, w)?;
            let w = shape::merge_dims(b, w, 0, 2)?;
            let y = b.call1("prims.grouped_sums", vec![a.into(), w.into(), folded.ends.into()])?;
            out(b.reshape(y, &[size.clone(), groups, m.clone(), n.clone()])?)
        }
    }
}

/// The ends where each place became `size` places, one behind the other.
fn scaled(b: &mut Builder<'_>, ends: ValueId, size: &SymExpr) -> Result<ValueId, OpError> {
    let ends = b.cast(ends, DType::I64)?;
    b.mul(ends, size.clone())
}

/// Groups of a whole batch.
struct Folded {
    /// `[batch · g]`: no group of an entry ends behind its places.
    ends: ValueId,
    /// `[batch, places, 1]`: whether a place is in a group. In the folded list the places that are in none are in the first group of the
    /// next entry.
    owned: ValueId,
}

fn fold(
    b: &mut Builder<'_>,
    call: &BatchCall<'_>,
    ends: ValueId,
    places: &SymExpr,
) -> Result<Folded, OpError> {
    let ends = call.front(b, ends)?;
    let ends = b.cast(ends, DType::I64)?;
    let numbers = iota_at(b, places, 1, 3)?;
    let later = b.unsqueeze(ends, 1)?;
    let later = b.gt(later, numbers)?;
    let owned = b.reduce(ReduceOp::Any, later, &[2], true)?;
    let ends = b.maximum(ends, 0)?;
    let ends = b.minimum(ends, places.clone())?;
    let firsts = iota_at(b, call.size, 0, 2)?;
    let firsts = b.mul(firsts, places.clone())?;
    let ends = b.add(ends, firsts)?;
    Ok(Folded { ends: shape::merge_dims(b, ends, 0, 2)?, owned })
}

/// The places that are in a group; others are zeros.
fn kept(b: &mut Builder<'_>, owned: ValueId, v: ValueId) -> Result<ValueId, OpError> {
    let meta = b.meta(v)?.clone();
    let none = b.full(&meta.sizes, 0i64, meta.dtype)?;
    let owned = b.expand(owned, &meta.sizes)?;
    b.select(owned, v, none)
}
