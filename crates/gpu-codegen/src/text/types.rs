//! Dtypes and literals as C++ text.

use ir_core::{Class, DType, Scalar};

use crate::GenError;

/// The C++ type of a value.
pub(crate) fn value_type(dtype: DType) -> Result<&'static str, GenError> {
    Ok(match dtype {
        DType::F64 => "double",
        DType::F32 => "float",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::U8 => "u8",
        DType::Bool => "bool",
        other => return Err(GenError::DType(other)),
    })
}

/// The type of an element in memory: `bool` is a byte, since any byte but 0 is true.
pub(crate) fn memory_type(dtype: DType) -> Result<&'static str, GenError> {
    if dtype == DType::Bool { Ok("u8") } else { value_type(dtype) }
}

/// A literal of a dtype.
pub(crate) fn number(value: Scalar, dtype: DType) -> Result<String, GenError> {
    Ok(match dtype.class() {
        Class::Bool => value.as_bool().to_string(),
        Class::Int => {
            let v = value.as_i64();
            match dtype {
                DType::I64 if v == i64::MIN => "(-9223372036854775807LL - 1)".into(),
                DType::I64 => format!("({v}LL)"),
                DType::I32 if v == i64::from(i32::MIN) => "(-2147483647 - 1)".into(),
                _ => format!("(({})({v}))", value_type(dtype)?),
            }
        }
        Class::Float => match dtype {
            DType::F64 => double(value.as_f64()),
            DType::F32 => float(value.as_f64() as f32),
            _ => format!("to<{}>({})", value_type(dtype)?, float(value.as_f64() as f32)),
        },
        Class::Complex => return Err(GenError::DType(dtype)),
    })
}

/// Writes a float by its bits, so that nothing is rounded.
fn float(x: f32) -> String {
    format!("as_float(0x{:08x}u)", x.to_bits())
}

fn double(x: f64) -> String {
    format!("as_double(0x{:016x}LL)", x.to_bits())
}
