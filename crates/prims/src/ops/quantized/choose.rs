//! `quantized_decomposed`: scales and zero points from the data (dynamic quantization).

use fx_ir::ValueId;
use ir_core::{DType, SymExpr};
use kernel_ir::{ReduceOp, ScalarOp};
use smallvec::smallvec;

use super::limits;
use crate::ops::common::choose;
use crate::{Builder, Call, OpDef, OpError, Outs};

type Made = Result<Outs, OpError>;

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "quantized_decomposed::choose_qparams.tensor(Tensor input, int quant_min, int quant_max, float eps, ScalarType dtype) -> (Tensor, Tensor)",
        |b, c| {
            let (low, high) = extremes(b, c, Over::All)?;
            let (least, most) = (c.float("quant_min")?, c.float("quant_max")?);
            let span = b.sub(high, low)?;
            let scale = b.div(span, most - least)?;
            let scale = b.maximum(scale, c.float("eps")?)?;
            let zero = b.div(low, scale)?;
            let zero = b.scalar_op(ScalarOp::Round, &[zero.into()])?;
            let zero = b.sub(least, zero)?;
            let zero = b.maximum(zero, least)?;
            let zero = b.minimum(zero, most)?;
            pair(b, scale, zero)
        }
    ),
    composite!(
        "quantized_decomposed::choose_qparams_symmetric.tensor(Tensor input, int quant_min, int quant_max, float eps, ScalarType dtype) -> (Tensor, Tensor)",
        |b, c| {
            let (low, high) = extremes(b, c, Over::All)?;
            let largest = b.neg(low)?;
            let largest = b.maximum(largest, high)?;
            let scale = b.div(largest, (c.float("quant_max")? - c.float("quant_min")?) / 2.0)?;
            let scale = b.maximum(scale, c.float("eps")?)?;
            let zero = if c.opt_dtype("dtype")? == Some(DType::U8) { 128.0 } else { 0.0 };
            let sizes = b.sizes(scale)?;
            let zero = b.full(&sizes, zero, DType::F32)?;
            pair(b, scale, zero)
        }
    ),
    composite!(
        "quantized_decomposed::choose_qparams_per_token(Tensor input, ScalarType dtype) -> (Tensor, Tensor)",
        |b, c| {
            let (_, most) = range(c)?;
            let x = b.cast(c.value("input")?, DType::F32)?;
            let x = b.abs(x)?;
            let last = b.rank(x)?.saturating_sub(1);
            let largest = b.reduce(ReduceOp::Max, x, &[last], true)?;
            let scale = b.maximum(largest, 1e-5)?;
            let scale = b.div(scale, most)?;
            let sizes = b.sizes(scale)?;
            let zero = b.full(&sizes, 0.0, DType::F32)?;
            pair(b, scale, zero)
        }
    ),
    composite!(
        "quantized_decomposed::choose_qparams_per_token_asymmetric(Tensor input, ScalarType dtype) -> (Tensor, Tensor)",
        per_token_asymmetric
    ),
    composite!(
        "quantized_decomposed::_choose_qparams_per_token_asymmetric_impl(Tensor input, ScalarType dtype) -> (Tensor, Tensor)",
        per_token_asymmetric
    ),
];

/// Which elements share a scale.
#[derive(Clone, Copy)]
enum Over {
    /// All; the results are vectors of one number.
    All,
    /// Those along the last dimension, which is kept with size 1.
    Last,
}

/// The smallest and the largest element, at most and at least 0.
fn extremes(b: &mut Builder<'_>, c: &Call<'_>, over: Over) -> Result<(ValueId, ValueId), OpError> {
    let x = b.cast(c.value("input")?, DType::F32)?;
    let rank = b.rank(x)?;
    let mut found = Vec::with_capacity(2);
    for op in [ReduceOp::Min, ReduceOp::Max] {
        let mut v = match over {
            Over::All => b.reduce(op, x, &(0..rank).collect::<Vec<_>>(), false)?,
            Over::Last => b.reduce(op, x, &[rank.saturating_sub(1)], true)?,
        };
        if let Over::All = over {
            v = b.reshape(v, &[SymExpr::ONE])?;
        }
        found.push(if op == ReduceOp::Min { b.minimum(v, 0.0)? } else { b.maximum(v, 0.0)? });
    }
    Ok((found[0], found[1]))
}

/// The numbers of the call's dtype.
fn range(c: &Call<'_>) -> Result<(f64, f64), OpError> {
    let dtype = c.opt_dtype("dtype")?.unwrap_or(DType::I8);
    limits(dtype)
        .ok_or_else(|| c.bad_arg("dtype", format!("is {dtype}, which is no dtype of quantized values")))
}

/// Scales in double precision and zero points as integers, as the operators' types say.
fn pair(b: &mut Builder<'_>, scale: ValueId, zero: ValueId) -> Made {
    Ok(smallvec![b.cast(scale, DType::F64)?, b.cast(zero, DType::I64)?])
}

/// The zero point is that of the end of the range with the smaller error; always of `i8`, as in PyTorch.
fn per_token_asymmetric(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (least, most) = (-128.0, 127.0);
    let (low, high) = extremes(b, c, Over::Last)?;
    let span = b.sub(high, low)?;
    let scale = b.div(span, most - least)?;
    let scale = b.maximum(scale, f64::from(f32::EPSILON))?;
    let (low, high) = (b.div(low, scale)?, b.div(high, scale)?);
    let (from_low, from_high) = (b.add(low, least)?, b.add(high, most)?);
    let errors = b.add(from_low, from_high)?;
    let positive = b.gt(errors, 0.0)?;
    let (low, high) = (b.sub(least, low)?, b.sub(most, high)?);
    let zero = choose(b, positive, low, high, DType::F32)?;
    let zero = b.maximum(zero, least)?;
    let zero = b.minimum(zero, most)?;
    let zero = b.scalar_op(ScalarOp::Round, &[zero.into()])?;
    pair(b, scale, zero)
}
