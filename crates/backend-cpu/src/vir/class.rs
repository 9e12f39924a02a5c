//! The forms that values take in registers: 16-bit floats are held as `f32`, integers below 64 bits as `i32` (always in range of
//! their dtype), `bool` as a mask.

use ir_core::DType;

/// How a dtype is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    F32,
    F64,
    I32,
    I64,
    Mask,
}

impl Class {
    pub(crate) fn of(dtype: DType) -> Class {
        match dtype {
            DType::Bool => Class::Mask,
            DType::U8 | DType::I8 | DType::I16 | DType::I32 => Class::I32,
            DType::I64 => Class::I64,
            DType::F16 | DType::BF16 | DType::F32 => Class::F32,
            DType::F64 => Class::F64,
            // Complex kernels are refused before code is generated, and kernels have no other dtypes.
            _ => Class::F64,
        }
    }
    /// Whether lanes have 64 bits.
    pub(crate) fn wide(self) -> bool {
        matches!(self, Class::F64 | Class::I64)
    }
}

/// `x` rounded to a 16-bit float where the dtype is one.
pub(crate) fn round_16(dtype: DType, x: f32) -> f32 {
    match dtype {
        DType::BF16 => half::bf16::from_f32(x).to_f32(),
        DType::F16 => half::f16::from_f32(x).to_f32(),
        _ => x,
    }
}
