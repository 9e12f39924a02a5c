//! Numbers in the precision of a dtype: rounding, reading and writing elements, bit casts. No arithmetic.

use plugin_sdk::ir_core::Scalar;
use plugin_sdk::{DType, OwnedTensor, PluginError, TensorView, bf16, f16};

/// The number that an element of `dtype` holds after `value` was stored in it. Floats become integers by truncation.
pub(crate) fn rounded(dtype: DType, value: Scalar) -> Scalar {
    let int = || match value {
        // A value that does not fit 32 bits becomes the smallest integer, before the upper bits are dropped; PyTorch does
        // so on x86.
        Scalar::Float(x) if !matches!(dtype, DType::I64 | DType::U8) => i64::from(truncated(x) as i32),
        Scalar::Float(x) => x as i64,
        other => other.as_i64(),
    };
    match dtype {
        DType::Bool => Scalar::Bool(value.as_bool()),
        DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => Scalar::Int(dtype.wrap(int())),
        DType::F16 => Scalar::Float(f16::from_f32(single(value)).to_f64()),
        DType::BF16 => Scalar::Float(bf16::from_f32(single(value)).to_f64()),
        DType::F32 => Scalar::Float(f64::from(single(value))),
        DType::F64 => Scalar::Float(value.as_f64()),
        // Kernels have no others but complex ones.
        _ => value.to_class_of(dtype),
    }
}

fn truncated(x: f64) -> i64 {
    if x > -2_147_483_649.0 && x < 2_147_483_648.0 { x as i64 } else { i64::from(i32::MIN) }
}

fn single(value: Scalar) -> f32 {
    match value {
        // Directly from the integer: through `f64` it would be rounded twice.
        Scalar::Int(i) => i as f32,
        other => other.as_f64() as f32,
    }
}

/// Runs `$body` with `$t` as the Rust type of an element and `$to` as its conversion to a [`Scalar`].
macro_rules! with_element {
    ($dtype:expr, $t:ident, $back:ident => $body:expr) => {
        match $dtype {
            DType::Bool => with_element!(@ u8, $t, $back, |v: u8| Scalar::Bool(v != 0), $body),
            DType::U8 => with_element!(@ u8, $t, $back, |v: u8| Scalar::Int(v.into()), $body),
            DType::I8 => with_element!(@ i8, $t, $back, |v: i8| Scalar::Int(v.into()), $body),
            DType::I16 => with_element!(@ i16, $t, $back, |v: i16| Scalar::Int(v.into()), $body),
            DType::I32 => with_element!(@ i32, $t, $back, |v: i32| Scalar::Int(v.into()), $body),
            DType::I64 => with_element!(@ i64, $t, $back, Scalar::Int, $body),
            DType::F16 => with_element!(@ f16, $t, $back, |v: f16| Scalar::Float(v.to_f64()), $body),
            DType::BF16 => with_element!(@ bf16, $t, $back, |v: bf16| Scalar::Float(v.to_f64()), $body),
            DType::F32 => with_element!(@ f32, $t, $back, |v: f32| Scalar::Float(v.into()), $body),
            DType::F64 => with_element!(@ f64, $t, $back, Scalar::Float, $body),
            dtype => {
                Err(PluginError::unsupported(format!("acme has no arithmetic for {dtype}")))
            }
        }
    };
    (@ $ty:ty, $t:ident, $back:ident, $to:expr, $body:expr) => {{
        type $t = $ty;
        let $back = $to;
        $body
    }};
}

/// The element of a tensor at an index.
pub(crate) fn get(tensor: &TensorView<'_>, index: &[i64]) -> Result<Scalar, PluginError> {
    with_element!(tensor.dtype(), T, scalar => tensor.get::<T>(index).map(scalar))
}

/// Writes the element of a tensor at an index; the dtype can represent `value`.
pub(crate) fn set(tensor: &mut OwnedTensor, index: &[i64], value: Scalar) -> Result<(), PluginError> {
    let (int, float) = (value.as_i64(), value.as_f64());
    match tensor.dtype() {
        DType::Bool => tensor.set(index, u8::from(value.as_bool())),
        DType::U8 => tensor.set(index, int as u8),
        DType::I8 => tensor.set(index, int as i8),
        DType::I16 => tensor.set(index, int as i16),
        DType::I32 => tensor.set(index, int as i32),
        DType::I64 => tensor.set(index, int),
        DType::F16 => tensor.set(index, f16::from_f64(float)),
        DType::BF16 => tensor.set(index, bf16::from_f64(float)),
        DType::F32 => tensor.set(index, float as f32),
        DType::F64 => tensor.set(index, float),
        dtype => Err(PluginError::unsupported(format!("acme has no arithmetic for {dtype}"))),
    }
}

/// The same bits as another dtype of the same size.
pub(crate) fn bitcast(from: DType, to: DType, value: Scalar) -> Scalar {
    let bits = match from {
        DType::F16 => u64::from(f16::from_f64(value.as_f64()).to_bits()),
        DType::BF16 => u64::from(bf16::from_f64(value.as_f64()).to_bits()),
        DType::F32 => u64::from((value.as_f64() as f32).to_bits()),
        DType::F64 => value.as_f64().to_bits(),
        _ => value.as_i64() as u64,
    };
    match to {
        DType::F16 => Scalar::Float(f16::from_bits(bits as u16).to_f64()),
        DType::BF16 => Scalar::Float(bf16::from_bits(bits as u16).to_f64()),
        DType::F32 => Scalar::Float(f32::from_bits(bits as u32).into()),
        DType::F64 => Scalar::Float(f64::from_bits(bits)),
        _ => rounded(to, Scalar::Int(bits as i64)),
    }
}
