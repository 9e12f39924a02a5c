//! Operators of quantized networks as `torch.export` records them: PyTorch's own (`quantized_decomposed`) and torchao's. All of
//! them are ordinary arithmetic; that a product of dequantized values is one of integers is found by a pass.
//!
//! Here: the two formulas. Arithmetic is in `f32`, also where PyTorch computes with scales in double precision.

pub(in crate::ops) mod affine;
pub(in crate::ops) mod choose;
pub(in crate::ops) mod decomposed;
pub(in crate::ops) mod packed;

use fx_ir::{Arg, ValueId};
use ir_core::DType;
use kernel_ir::ScalarOp;

use crate::{Builder, OpError};

/// The place where the zero point is added.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rounding {
    /// To the rounded value.
    BeforeZero,
    /// Before rounding, which differs where the value is half way between two integers and the zero point is odd.
    AfterZero,
}

/// The parameters of a quantization, each a number or a tensor that broadcasts to the values.
struct Affine {
    /// The factor, or its inverse where values are quantized; a tensor has dtype `f32`.
    factor: Arg,
    /// The zero point; none is 0. A tensor has any dtype.
    zero: Option<Arg>,
}

impl Affine {
    /// The zero point as an operand of `f32` arithmetic; none where it is the number 0.
    fn zero(&self, b: &mut Builder<'_>) -> Result<Option<Arg>, OpError> {
        match &self.zero {
            Some(zero) if zero.as_scalar().is_none_or(|z| z.as_f64() != 0.0) => {
                b.as_dtype(zero, DType::F32).map(Some)
            }
            _ => Ok(None),
        }
    }
}

/// `clamp(round(x * factor) + zero, low, high)` in `dtype`.
fn quantize(
    b: &mut Builder<'_>,
    x: ValueId,
    affine: &Affine,
    (low, high): (Arg, Arg),
    (dtype, rounding): (DType, Rounding),
) -> Result<ValueId, OpError> {
    let x = b.cast(x, DType::F32)?;
    let mut y = b.mul(x, affine.factor.clone())?;
    if rounding == Rounding::BeforeZero {
        y = b.scalar_op(ScalarOp::Round, &[y.into()])?;
    }
    if let Some(zero) = affine.zero(b)? {
        y = b.add(y, zero)?;
    }
    if rounding == Rounding::AfterZero {
        y = b.scalar_op(ScalarOp::Round, &[y.into()])?;
    }
    let (low, high) = (b.as_dtype(&low, DType::F32)?, b.as_dtype(&high, DType::F32)?);
    let y = b.maximum(y, low)?;
    let y = b.minimum(y, high)?;
    b.cast(y, dtype)
}

/// `(x - zero) * factor` in `dtype`.
fn dequantize(b: &mut Builder<'_>, x: ValueId, affine: &Affine, dtype: DType) -> Result<ValueId, OpError> {
    let mut y = b.cast(x, DType::F32)?;
    if let Some(zero) = affine.zero(b)? {
        y = b.sub(y, zero)?;
    }
    let y = b.mul(y, affine.factor.clone())?;
    b.cast(y, dtype)
}

/// `1 / scale` in `f32`, divided in the scale's own dtype.
fn inverse(b: &mut Builder<'_>, scale: ValueId) -> Result<ValueId, OpError> {
    let inverse = b.div(1.0, scale)?;
    b.cast(inverse, DType::F32)
}

/// The smallest and largest number of an integer dtype.
fn limits(dtype: DType) -> Option<(f64, f64)> {
    Some(match dtype {
        DType::U8 => (0.0, 255.0),
        DType::I8 => (-128.0, 127.0),
        DType::I16 => (-32768.0, 32767.0),
        DType::I32 => (-2_147_483_648.0, 2_147_483_647.0),
        _ => return None,
    })
}
