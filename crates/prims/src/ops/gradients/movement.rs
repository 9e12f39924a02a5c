//! Gradients of strided reads and of `prims.cover`.

use fx_ir::ValueId;
use ir_core::{DType, SymExpr};

use crate::ops::gradients::scalar::Grads;
use crate::ops::indexing::scatter::put;
use crate::ops::shapes::shape;
use crate::{Builder, GradCall, OpError};

/// The cotangent of the result; none where it has no fraction.
fn cotangent(b: &Builder<'_>, call: &GradCall<'_>) -> Result<Option<ValueId>, OpError> {
    match call.cotangents.first() {
        Some(Some(g)) if b.dtype(*g)?.is_inexact() => Ok(Some(*g)),
        _ => Ok(None),
    }
}

/// Elements that were read several times get the sum of their cotangents.
pub(in crate::ops) fn strided(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
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

/// The element of a window at `w` is cover `w / stride` of its position (of dilation above 1: cover `w`): read from there,
/// zero where the position lies outside.
pub(in crate::ops) fn cover(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let mut grads = vec![None; call.call.args.len()];
    let Some(g) = cotangent(b, call)? else { return Ok(grads) };
    let c = call.call;
    let sizes = b.sizes(c.value("a")?)?;
    let (space, low) = (c.syms("space")?, c.ints("low")?);
    let (stride, dilation) = (c.ints("stride")?, c.ints("dilation")?);
    let n = space.len();
    let lead = sizes.len() - 2 * n;
    // [lead, p, q, m, l] -> [lead, p, m, q, l]
    let paired = (0..n).flat_map(|d| [lead + d, lead + n + d]);
    let order: Vec<usize> = (0..lead).chain(paired).collect();
    let mut v = b.permute(g, &order)?;
    for d in (0..n).rev() {
        let (windows, window) = (&sizes[lead + d], &sizes[lead + n + d]);
        let rows = shape::iota(b, windows, (-low[d]).into(), stride[d].into())?;
        let rows = b.unsqueeze(rows, 1)?;
        let columns = shape::iota(b, window, SymExpr::ZERO, dilation[d].into())?;
        let place = b.add(rows, columns)?;
        let after = b.lt(place, space[d].clone())?;
        let before = b.lt(place, 0i64)?;
        let before = b.not(before)?;
        let inside = b.and(after, before)?;
        let place = b.minimum(place, &space[d] - 1)?;
        let place = b.maximum(place, 0i64)?;
        let number = shape::iota(b, window, SymExpr::ZERO, SymExpr::ONE)?;
        let number = if dilation[d] == 1 { b.div(number, stride[d])? } else { number };
        let number = b.unsqueeze(number, 0)?;
        let number = b.expand(number, &[windows.clone(), window.clone()])?;
        let at = lead + 2 * d;
        v = shape::index(b, v, &[place, number], at)?;
        let tail = b.rank(v)? - at - 2;
        let mut ones = b.sizes(inside)?;
        ones.extend(std::iter::repeat_n(SymExpr::ONE, tail));
        let inside = b.reshape(inside, &ones)?;
        let zero = ir_core::Scalar::zero(b.dtype(v)?);
        v = b.select(inside, v, zero)?;
    }
    let windows = (0..n).map(|d| lead + 2 * d);
    let order: Vec<usize> = (0..lead).chain(windows.clone()).chain(windows.map(|d| d + 1)).collect();
    grads[0] = Some(b.permute(v, &order)?);
    Ok(grads)
}
