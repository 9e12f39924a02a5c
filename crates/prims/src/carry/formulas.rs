//! Elements of dtypes that kernels do not have, from and to the bits that carry them, as prims. The formulas are those of
//! `tensor`'s number types, which are their reference.

use fx_ir::ValueId;
use ir_core::DType;
use kernel_ir::ScalarOp;

use super::bitcast;
use crate::{Builder, OpError};

type Value = Result<ValueId, OpError>;

/// The layout of an 8-bit float.
struct Layout {
    /// Bits of the fraction.
    fraction: i64,
    /// By how much the exponent's bias is below that of `f32`.
    below: i64,
    /// The smallest `f32` that no pattern is near to, as bits.
    beyond: i64,
    /// The pattern of such numbers.
    at: i64,
}

const E4M3: Layout = Layout { fraction: 3, below: 120, beyond: 480f32.to_bits() as i64, at: 0x7f };
const E5M2: Layout = Layout { fraction: 2, below: 112, beyond: 65536f32.to_bits() as i64, at: 0x7c };
const NAN: i64 = 0x7f;
/// Bits of the infinity of `f32`: larger magnitudes are `NaN`.
const INFINITE: i64 = f32::INFINITY.to_bits() as i64;

/// The dtype in which values are computed with.
pub(super) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::U16 => DType::I32,
        DType::U32 | DType::U64 => DType::I64,
        DType::F8E4M3 | DType::F8E5M2 => DType::F32,
        other => other,
    }
}

/// The values of carried bits in the wide dtype; of `u64` the bits.
pub(super) fn decode(b: &mut Builder<'_>, v: ValueId, dtype: DType) -> Value {
    match dtype {
        DType::U16 | DType::U32 => {
            let v = b.cast(v, wide(dtype))?;
            b.and(v, dtype.integers().1)
        }
        DType::F8E4M3 => e4m3_to_float(b, v),
        DType::F8E5M2 => {
            // The upper half of an `f16`.
            let v = b.cast(v, DType::I16)?;
            let bits = b.scalar_op(ScalarOp::Shl, &[v.into(), 8i64.into()])?;
            let half = bitcast(b, bits, DType::F16)?;
            b.cast(half, DType::F32)
        }
        _ => Ok(v),
    }
}

/// The bits that carry values of the wide dtype: what does not fit wraps, or is rounded.
pub(super) fn encode(b: &mut Builder<'_>, v: ValueId, dtype: DType) -> Value {
    match dtype {
        DType::F8E4M3 => from_float(b, v, &E4M3),
        DType::F8E5M2 => from_float(b, v, &E5M2),
        other => b.cast(v, other.carrier()),
    }
}

/// Conversion of carried or other values to a carried or another dtype.
pub(super) fn convert(b: &mut Builder<'_>, v: ValueId, from: DType, to: DType) -> Value {
    if from == DType::U64 && to.is_float() {
        let float = if to == DType::F64 { to } else { DType::F32 };
        let value = large_to_float(b, v, float)?;
        return if to.is_carried() { encode(b, value, to) } else { b.cast(value, to) };
    }
    let value = decode(b, v, from)?;
    match to {
        DType::U64 if from.is_float() => float_to_large(b, value),
        // A float goes by way of the integer that it is truncated to.
        DType::U16 | DType::U32 if from.is_float() => {
            let value = b.cast(value, wide(to))?;
            encode(b, value, to)
        }
        DType::F8E4M3 | DType::F8E5M2 => {
            let value = b.cast(value, DType::F32)?;
            encode(b, value, to)
        }
        other => b.cast(value, other.carrier()),
    }
}

fn and_shifted(b: &mut Builder<'_>, v: ValueId, mask: i64, by: i64) -> Value {
    let v = b.and(v, mask)?;
    b.scalar_op(ScalarOp::Shl, &[v.into(), by.into()])
}

/// Exponent and fraction stand at the top of those of `f32`, whose exponent has another bias: a product with a power of two puts
/// that right, also for subnormal numbers.
fn e4m3_to_float(b: &mut Builder<'_>, v: ValueId) -> Value {
    let v = b.cast(v, DType::I32)?;
    let magnitude = b.and(v, 0x7fi64)?;
    let bits = b.scalar_op(ScalarOp::Shl, &[magnitude.into(), (23 - E4M3.fraction).into()])?;
    let scaled = bitcast(b, bits, DType::F32)?;
    let value = b.mul(scaled, 2f64.powi(E4M3.below as i32))?;
    let nan = b.eq(magnitude, NAN)?;
    let value = b.select(nan, f64::NAN, value)?;
    let (sign, bits) = (and_shifted(b, v, 0x80, 24)?, bitcast(b, value, DType::I32)?);
    let bits = b.or(bits, sign)?;
    bitcast(b, bits, DType::F32)
}

/// Rounds to the nearest pattern, and to even, on the bits of `f32`.
fn from_float(b: &mut Builder<'_>, v: ValueId, layout: &Layout) -> Value {
    let cut = 23 - layout.fraction;
    let bits = bitcast(b, v, DType::I32)?;
    let magnitude = b.and(bits, i64::from(i32::MAX))?;
    // Below the smallest normal number: adding one whose last place is the smallest subnormal rounds to a multiple of that.
    let aligned = (layout.below + 1 + cut) << 23;
    let small = bitcast(b, magnitude, DType::F32)?;
    let small = b.add(small, f64::from(f32::from_bits(aligned as u32)))?;
    let small = bitcast(b, small, DType::I32)?;
    let small = b.sub(small, aligned)?;
    let last = b.scalar_op(ScalarOp::Shr, &[magnitude.into(), cut.into()])?;
    let last = b.and(last, 1i64)?;
    let normal = b.add(magnitude, (1i64 << (cut - 1)) - 1 - (layout.below << 23))?;
    let normal = b.add(normal, last)?;
    let normal = b.scalar_op(ScalarOp::Shr, &[normal.into(), cut.into()])?;
    let subnormal = b.lt(magnitude, (layout.below + 1) << 23)?;
    let pattern = b.select(subnormal, small, normal)?;
    let beyond = b.ge(magnitude, layout.beyond)?;
    let pattern = b.select(beyond, layout.at, pattern)?;
    let nan = b.gt(magnitude, INFINITE)?;
    let pattern = b.select(nan, NAN, pattern)?;
    let sign = b.scalar_op(ScalarOp::Shr, &[bits.into(), 24i64.into()])?;
    let sign = b.and(sign, 0x80i64)?;
    let pattern = b.or(pattern, sign)?;
    b.cast(pattern, DType::U8)
}

/// Of a number from 2^63 on half is converted, with a bit for what is lost, and doubled.
fn large_to_float(b: &mut Builder<'_>, v: ValueId, float: DType) -> Value {
    let large = b.lt(v, 0i64)?;
    let half = b.scalar_op(ScalarOp::Shr, &[v.into(), 1i64.into()])?;
    let half = b.and(half, i64::MAX)?;
    let lost = b.and(v, 1i64)?;
    let half = b.or(half, lost)?;
    let (half, small) = (b.cast(half, float)?, b.cast(v, float)?);
    let twice = b.mul(half, 2.0)?;
    b.select(large, twice, small)
}

/// Of a number from 2^63 on the difference to that is truncated.
fn float_to_large(b: &mut Builder<'_>, v: ValueId) -> Value {
    let middle = 2f64.powi(63);
    let v = if b.dtype(v)? == DType::F64 { v } else { b.cast(v, DType::F32)? };
    let large = b.ge(v, middle)?;
    let rest = b.sub(v, middle)?;
    let (rest, small) = (b.cast(rest, DType::I64)?, b.cast(v, DType::I64)?);
    let rest = b.xor(rest, i64::MIN)?;
    b.select(large, rest, small)
}
