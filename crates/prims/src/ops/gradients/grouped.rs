//! The gradients of products by groups, which are products by the same groups. Ends have none.

use fx_ir::ValueId;

use crate::ops::gradients::index::{cotangent, none};
use crate::ops::gradients::scalar::Grads;
use crate::ops::shapes::shape::swap;
use crate::{Builder, GradCall, OpError};

/// Rows of the cotangent by the turned matrices of their groups, and sums over the rows of each group.
pub(in crate::ops) fn matmul(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let mut grads = none(call);
    let Some(g) = cotangent(b, call)? else { return Ok(grads) };
    let (x, w) = (call.call.value("a")?, call.call.value("b")?);
    let (turned_x, turned_w) = (swap(b, x, 0, 1)?, swap(b, w, 1, 2)?);
    grads[0] = Some(product(b, call, "prims.grouped_matmul", g, turned_w)?);
    grads[1] = Some(product(b, call, "prims.grouped_sums", turned_x, g)?);
    Ok(grads)
}

/// The matrices of the cotangent take the part of weights: each place of the depth is multiplied with that of its group.
pub(in crate::ops) fn sums(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let mut grads = none(call);
    let Some(g) = cotangent(b, call)? else { return Ok(grads) };
    let (x, w) = (call.call.value("a")?, call.call.value("b")?);
    let (turned_x, turned_g) = (swap(b, x, 0, 1)?, swap(b, g, 1, 2)?);
    let by_places = product(b, call, "prims.grouped_matmul", w, turned_g)?;
    grads[0] = Some(swap(b, by_places, 0, 1)?);
    grads[1] = Some(product(b, call, "prims.grouped_matmul", turned_x, g)?);
    Ok(grads)
}

fn product(
    b: &mut Builder<'_>,
    call: &GradCall<'_>,
    target: &str,
    x: ValueId,
    y: ValueId,
) -> Result<ValueId, OpError> {
    b.call1(target, vec![x.into(), y.into(), call.call.value("ends")?.into()])
}
