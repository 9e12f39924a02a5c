//! The gradient of strided reads.

use fx_ir::ValueId;
use ir_core::{DType, SymExpr};

use super::grad_scalar::Grads;
use super::scatter::put;
use super::shape;
use crate::{Builder, GradCall, OpError};

/// The cotangent of the result; none where it has no fraction.
fn cotangent(b: &Builder<'_>, call: &GradCall<'_>) -> Result<Option<ValueId>, OpError> {
    match call.cotangents.first() {
        Some(Some(g)) if b.dtype(*g)?.is_inexact() => Ok(Some(*g)),
        _ => Ok(None),
    }
}

/// Elements that were read several times get the sum of their cotangents.
pub(super) fn strided(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let Some(g) = cotangent(b, call)? else { return Ok(vec![None; call.call.args.len()]) };
    let (a, strides) = (call.call.value("a")?, call.call.syms("strides")?);
    let (sizes, dtype) = (b.sizes(g)?, b.dtype(g)?);
    let mut place = b.full(&sizes, 0i64, DType::I64)?;
    place = b.add(place, call.call.sym("offset")?)?;
    for d in 0..sizes.len() {
        let along = shape::iota(b, &sizes[d], SymExpr::ZERO, strides[d].clone())?;
        let along = shape::along(b, along, d, sizes.len())?;
        place = b.add(place, along)?;
    }
    let total = b.sizes(a)?;
    let zeros = b.full(&total, 0i64, dtype)?;
    let grad = put(b, zeros, &[place], 0, g, "add")?;
    // `a` is the first argument, the others are numbers.
    let mut grads = vec![None; call.call.args.len()];
    grads[0] = Some(grad);
    Ok(grads)
}
