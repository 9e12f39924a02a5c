//! References of the template prims: the typed loops of `tensor::linalg`, which accumulate in double precision.

use tensor::{Tensor, linalg};

use crate::ops::primitive::shape::one;
use crate::{OpError, RefCall, RefOut};

pub(super) fn matmul(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    one(c, linalg::matmul(c.tensor("a")?, c.tensor("b")?, c.out().0))
}

pub(super) fn conv(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    with_geometry(c, c.bool("transposed")?, |geometry| {
        one(c, linalg::conv(c.tensor("input")?, c.tensor("weight")?, geometry, c.out().0))
    })
}

/// Calls `run` with the geometry of a convolution's call.
pub(in crate::ops::primitive) fn with_geometry(
    c: &RefCall<'_>,
    transposed: bool,
    run: impl FnOnce(&linalg::ConvGeometry<'_>) -> Result<RefOut, OpError>,
) -> Result<RefOut, OpError> {
    let positive = |name: &str| -> Result<Vec<usize>, OpError> {
        let wrong = |_| c.bad_arg(name, "must not be negative");
        c.ints(name)?.into_iter().map(|x| usize::try_from(x).map_err(wrong)).collect()
    };
    // What is added after the last element shows in the output's size alone.
    let padding: Vec<isize> = c.ints("padding")?.into_iter().step_by(2).map(|p| p as isize).collect();
    let geometry = linalg::ConvGeometry {
        stride: &positive("stride")?,
        padding: &padding,
        dilation: &positive("dilation")?,
        output: c.out().1.get(2..).unwrap_or(&[]),
        groups: usize::try_from(c.int("groups")?).map_err(|_| c.bad_arg("groups", "must not be negative"))?,
        transposed,
    };
    run(&geometry)
}

pub(super) fn attention(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (operands, mask, kept) = attention_operands(c)?;
    let optional = (mask.as_ref(), kept.as_ref().map(|(words, factor)| (words, *factor)));
    let (causal, scale) = (c.bool("causal")?, c.scalar("scale")?.as_f64());
    let result = linalg::attention(operands, optional, causal, scale, c.out().0);
    result.map(|(y, sums)| vec![y, sums]).map_err(|e| c.tensor_error(e))
}

pub(super) fn attention_backward(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (operands, mask, kept) = attention_operands(c)?;
    let optional = (mask.as_ref(), kept.as_ref().map(|(words, factor)| (words, *factor)));
    let (causal, scale) = (c.bool("causal")?, c.scalar("scale")?.as_f64());
    let given = linalg::AttentionCotangent {
        cotangent: c.tensor("grad")?,
        sums: c.tensor("sums")?,
        deltas: c.tensor("deltas")?,
    };
    let grads = linalg::attention_backward(&given, operands, optional, causal, scale, c.out().0);
    grads.map(Vec::from).map_err(|e| c.tensor_error(e))
}

type AttentionOperands<'a> = ((&'a Tensor, &'a Tensor, &'a Tensor), Option<Tensor>, Option<(Tensor, f64)>);

/// Queries, keys and values, the mask broadcast to all scores, and the words of the weights that are kept with their factor.
fn attention_operands<'a>(c: &RefCall<'a>) -> Result<AttentionOperands<'a>, OpError> {
    let (q, k, v) = (c.tensor("q")?, c.tensor("k")?, c.tensor("v")?);
    let expanded = |t: Option<&Tensor>, keys: fn(usize) -> usize| match (t, q.sizes(), k.sizes()) {
        (Some(t), &[b, h, lq, _], &[_, _, lk, _]) => {
            t.expand(&[b, h, lq, keys(lk)]).map(Some).map_err(|e| c.tensor_error(e))
        }
        (t, _, _) => Ok(t.cloned()),
    };
    let mask = expanded(c.opt_tensor("mask")?, |lk| lk)?;
    let kept = match expanded(c.opt_tensor("kept")?, |lk| lk.div_ceil(32))? {
        Some(words) => Some((words, c.scalar("factor")?.as_f64())),
        None => None,
    };
    Ok(((q, k, v), mask, kept))
}
