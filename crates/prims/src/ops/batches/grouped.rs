//! Batching rules of products by groups: the batch becomes more rows or more columns.

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

/// Matrices that all have in common multiply all rows of a group; where entries have groups of their own, which may be any number, each
/// group is a product of all rows.
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
            let (a, w) = (call.front(b, a)?, call.front(b, w)?);
            let (own, groups) = owners(b, call, ends, m)?;
            let full = call.with_batch(&[m.clone(), n.clone()]);
            let mut result = b.full(&full, 0i64, b.dtype(a)?)?;
            for g in 0..groups {
                let matrix = shape::select(b, w, 1, SymExpr::from_i64(g))?;
                let y = b.call1("prims.matmul", vec![a.into(), matrix.into()])?;
                let own = b.eq(own, g)?;
                let own = b.expand(own, &full)?;
                result = b.select(own, y, result)?;
            }
            out(result)
        }
    }
}

/// One operand's batch is more rows or columns; where entries have groups of their own each group is a product of the whole depth.
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
            let (a, w) = (call.front(b, a)?, call.front(b, w)?);
            let (own, count) = owners(b, call, ends, k)?;
            let (full, dtype) = (call.with_batch(&[k.clone(), n.clone()]), b.dtype(w)?);
            let none = b.full(&full, 0i64, dtype)?;
            let mut parts = Vec::new();
            for g in 0..count {
                let own = b.eq(own, g)?;
                let own = b.expand(own, &full)?;
                let kept = b.select(own, w, none)?;
                let y = b.call1("prims.matmul", vec![a.into(), kept.into()])?;
                parts.push(b.unsqueeze(y, 1)?);
            }
            if parts.is_empty() {
                return out(b.full(&call.with_batch(&[groups, m.clone(), n.clone()]), 0i64, dtype)?);
            }
            out(shape::cat(b, &parts, 1)?)
        }
    }
}

/// The ends where each place became `size` places, one behind the other.
fn scaled(b: &mut Builder<'_>, ends: ValueId, size: &SymExpr) -> Result<ValueId, OpError> {
    let ends = b.cast(ends, DType::I64)?;
    b.mul(ends, size.clone())
}

/// The group of each place of each entry, `[batch, places, 1]`, and the number of groups, which is that of a place without one.
fn owners(
    b: &mut Builder<'_>,
    call: &BatchCall<'_>,
    ends: ValueId,
    places: &SymExpr,
) -> Result<(ValueId, i64), OpError> {
    let groups = shape::known(call.call, &call.sizes(b, ends)?[0], "number of groups")?;
    let ends = call.front(b, ends)?;
    let ends = b.cast(ends, DType::I64)?;
    let ends = b.unsqueeze(ends, 1)?;
    let numbers = iota_at(b, places, 1, 3)?;
    let later = b.gt(ends, numbers)?;
    let own = iota_at(b, &SymExpr::from_i64(groups), 2, 3)?;
    let sizes = b.sizes(later)?;
    let own = b.expand(own, &sizes)?;
    let none = b.full(&sizes, groups, DType::I64)?;
    let own = b.select(later, own, none)?;
    Ok((b.reduce(ReduceOp::Min, own, &[2], true)?, groups))
}
