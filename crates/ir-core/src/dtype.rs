//! The element types. One row per dtype: a new dtype is one line of the table below.
//!
//! Type *promotion* is operator knowledge and lives with the operators; here are only the facts of each type.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Scalar;

/// PyTorch's categories of dtype, in promotion order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// `bool`.
    Bool,
    /// Signed and unsigned integers.
    Int,
    /// Floating point.
    Float,
    /// Complex floating point.
    Complex,
}

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident $name:literal $torch:literal pt2 $code:literal size $size:literal
       $class:ident $low:expr, $high:expr; dlpack $dl_code:literal $dl_bits:literal safetensors $st:literal;)*) => {
        /// Element type of a tensor.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum DType { $($(#[$doc])* #[serde(rename = $name)] $variant,)* }

        impl DType {
            /// Every dtype, in declaration order.
            pub const ALL: &'static [DType] = &[$(DType::$variant,)*];

            /// The short name of text formats: `f32`.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }
            /// PyTorch's name without `torch.`: `float32`.
            pub const fn torch_name(self) -> &'static str {
                match self { $(DType::$variant => $torch,)* }
            }
            /// The code of `torch.export`'s schema (`ScalarType` of schema major 8); 0 where it has none.
            pub const fn pt2_code(self) -> u32 {
                match self { $(DType::$variant => $code,)* }
            }
            /// Bytes of one element.
            pub const fn size(self) -> usize {
                match self { $(DType::$variant => $size,)* }
            }
            /// The category that promotion looks at first.
            pub const fn class(self) -> Class {
                match self { $(DType::$variant => Class::$class,)* }
            }
            /// Smallest and largest of the contiguous range of integers around 0 that the dtype represents exactly: the
            /// whole range for an integer dtype, up to the first integer without a successor for a float dtype. For a
            /// complex dtype they are those of its parts, and the largest `u64` is the `i64` with the same bits, -1.
            pub const fn integers(self) -> (i64, i64) {
                match self { $(DType::$variant => ($low, $high),)* }
            }
            /// DLPack's `(DLDataTypeCode, bits)`; lanes are always 1.
            pub const fn dlpack(self) -> (u8, u8) {
                match self { $(DType::$variant => ($dl_code, $dl_bits),)* }
            }
            /// The name in a safetensors header.
            pub const fn safetensors_name(self) -> &'static str {
                match self { $(DType::$variant => $st,)* }
            }
        }
    };
}

dtypes! {
    /// Boolean, one byte, 0 or 1.
    Bool "bool" "bool" pt2 12 size 1 Bool 0, 1; dlpack 6 8 safetensors "BOOL";
    /// Unsigned 8-bit integer.
    U8 "u8" "uint8" pt2 1 size 1 Int 0, u8::MAX as i64; dlpack 1 8 safetensors "U8";
    /// Unsigned 16-bit integer.
    U16 "u16" "uint16" pt2 28 size 2 Int 0, u16::MAX as i64; dlpack 1 16 safetensors "U16";
    /// Unsigned 32-bit integer.
    U32 "u32" "uint32" pt2 0 size 4 Int 0, u32::MAX as i64; dlpack 1 32 safetensors "U32";
    /// Unsigned 64-bit integer. A number that is to be one is the `i64` with the same bits.
    U64 "u64" "uint64" pt2 0 size 8 Int 0, -1; dlpack 1 64 safetensors "U64";
    /// Signed 8-bit integer.
    I8 "i8" "int8" pt2 2 size 1 Int i8::MIN as i64, i8::MAX as i64; dlpack 0 8 safetensors "I8";
    /// Signed 16-bit integer.
    I16 "i16" "int16" pt2 3 size 2 Int i16::MIN as i64, i16::MAX as i64; dlpack 0 16 safetensors "I16";
    /// Signed 32-bit integer.
    I32 "i32" "int32" pt2 4 size 4 Int i32::MIN as i64, i32::MAX as i64; dlpack 0 32 safetensors "I32";
    /// Signed 64-bit integer.
    I64 "i64" "int64" pt2 5 size 8 Int i64::MIN, i64::MAX; dlpack 0 64 safetensors "I64";
    /// 8-bit float with 4 bits of exponent (bias 7) and 3 of fraction, no infinities: the largest number is 448.
    F8E4M3 "f8e4m3" "float8_e4m3fn" pt2 29 size 1 Float -(1 << 4), 1 << 4; dlpack 10 8 safetensors "F8_E4M3";
    /// 8-bit float with 5 bits of exponent (bias 15) and 2 of fraction: the upper half of `f16`.
    F8E5M2 "f8e5m2" "float8_e5m2" pt2 30 size 1 Float -(1 << 3), 1 << 3; dlpack 12 8 safetensors "F8_E5M2";
    /// IEEE binary16.
    F16 "f16" "float16" pt2 6 size 2 Float -(1 << 11), 1 << 11; dlpack 2 16 safetensors "F16";
    /// The upper half of binary32.
    BF16 "bf16" "bfloat16" pt2 13 size 2 Float -(1 << 8), 1 << 8; dlpack 4 16 safetensors "BF16";
    /// IEEE binary32.
    F32 "f32" "float32" pt2 7 size 4 Float -(1 << 24), 1 << 24; dlpack 2 32 safetensors "F32";
    /// IEEE binary64.
    F64 "f64" "float64" pt2 8 size 8 Float -(1 << 53), 1 << 53; dlpack 2 64 safetensors "F64";
    /// Two binary32: real, imaginary.
    C64 "c64" "complex64" pt2 10 size 8 Complex -(1 << 24), 1 << 24; dlpack 5 64 safetensors "C64";
    /// Two binary64: real, imaginary.
    C128 "c128" "complex128" pt2 11 size 16 Complex -(1 << 53), 1 << 53; dlpack 5 128 safetensors "C128";
}

impl DType {
    /// The dtype with this code of `torch.export`'s schema.
    pub fn from_pt2_code(code: u32) -> Option<DType> {
        DType::ALL.iter().copied().find(|d| code != 0 && d.pt2_code() == code)
    }
    /// The dtype with this safetensors name.
    pub fn from_safetensors_name(name: &str) -> Option<DType> {
        DType::ALL.iter().copied().find(|d| d.safetensors_name() == name)
    }
    /// The dtype with this DLPack code and width.
    pub fn from_dlpack(code: u8, bits: u8) -> Option<DType> {
        DType::ALL.iter().copied().find(|d| d.dlpack() == (code, bits))
    }
    /// Whether values have a fraction: float and complex.
    pub const fn is_inexact(self) -> bool {
        matches!(self.class(), Class::Float | Class::Complex)
    }
    /// Real floating point.
    pub const fn is_float(self) -> bool {
        matches!(self.class(), Class::Float)
    }
    /// Complex floating point.
    pub const fn is_complex(self) -> bool {
        matches!(self.class(), Class::Complex)
    }
    /// An integer, `bool` not counted.
    pub const fn is_int(self) -> bool {
        matches!(self.class(), Class::Int)
    }
    /// `bool` or an integer.
    pub const fn is_integral(self) -> bool {
        matches!(self.class(), Class::Int | Class::Bool)
    }
    /// Smallest and largest value; infinities for floats, and of a complex dtype for its parts.
    pub const fn ends(self) -> (Scalar, Scalar) {
        match (self.class(), self.integers()) {
            (Class::Bool, _) => (Scalar::Bool(false), Scalar::Bool(true)),
            (Class::Int, (low, high)) => (Scalar::Int(low), Scalar::Int(high)),
            _ => (Scalar::Float(f64::NEG_INFINITY), Scalar::Float(f64::INFINITY)),
        }
    }
    /// The value of an integer in this dtype: what does not fit wraps, so -1 becomes 255 in `u8`. In a dtype that is not an
    /// integer the value is unchanged.
    pub const fn wrap(self, x: i64) -> i64 {
        if !self.is_int() {
            return x;
        }
        let above = 64 - 8 * self.size() as u32;
        match self.integers() {
            (0, mask) => x & mask,
            _ => (x << above) >> above,
        }
    }
    /// The real dtype of a complex one's parts; any other dtype is itself.
    pub const fn to_real(self) -> DType {
        match self {
            DType::C64 => DType::F32,
            DType::C128 => DType::F64,
            other => other,
        }
    }
    /// The dtype in which arithmetic on this one is done: shorter floats compute in `f32`.
    pub const fn compute(self) -> DType {
        match self {
            DType::F16 | DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => DType::F32,
            other => other,
        }
    }
    /// The dtype whose memory stands for this one in kernels, which have neither unsigned integers above 8 bits nor 8-bit
    /// floats: the same bits as a signed integer, or as a byte. Any other dtype is itself.
    pub const fn carrier(self) -> DType {
        match self {
            DType::U16 => DType::I16,
            DType::U32 => DType::I32,
            DType::U64 => DType::I64,
            DType::F8E4M3 | DType::F8E5M2 => DType::U8,
            other => other,
        }
    }
    /// Whether kernels have this dtype only as the bits of another one.
    pub const fn is_carried(self) -> bool {
        self.carrier() as u8 != self as u8
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = String;
    /// Accepts both the short name (`f32`) and PyTorch's (`float32`, `torch.float32`).
    fn from_str(text: &str) -> Result<Self, String> {
        let short = text.strip_prefix("torch.").unwrap_or(text);
        DType::ALL
            .iter()
            .copied()
            .find(|d| d.name() == short || d.torch_name() == short)
            .ok_or_else(|| format!("`{text}` is not a dtype: one of {}", names().join(", ")))
    }
}

fn names() -> Vec<&'static str> {
    DType::ALL.iter().map(|d| d.name()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_reads_back() {
        for &d in DType::ALL {
            assert_eq!(DType::from_pt2_code(d.pt2_code()), (d.pt2_code() != 0).then_some(d));
            assert_eq!(d.carrier().size(), d.size());
            assert!(!d.carrier().is_carried());
            assert_eq!(DType::from_dlpack(d.dlpack().0, d.dlpack().1), Some(d));
            assert_eq!(DType::from_safetensors_name(d.safetensors_name()), Some(d));
            assert_eq!(d.name().parse::<DType>(), Ok(d));
            assert_eq!(d.torch_name().parse::<DType>(), Ok(d));
            assert_eq!(d.dlpack().1 as usize, d.size() * 8);
        }
    }
    #[test]
    fn integers_wrap_into_their_limits() {
        let of = |d: DType| [-1, 255, 256, 40_000, 1 << 31, i64::MIN].map(|x| d.wrap(x));
        assert_eq!(of(DType::U8), [255, 255, 0, 64, 0, 0]);
        assert_eq!(of(DType::I8), [-1, -1, 0, 64, 0, 0]);
        assert_eq!(of(DType::I16), [-1, 255, 256, 40_000 - 65_536, 0, 0]);
        assert_eq!(of(DType::I32), [-1, 255, 256, 40_000, i64::from(i32::MIN), 0]);
        for &d in DType::ALL.iter().filter(|d| d.is_int()) {
            let (low, high) = d.integers();
            assert_eq!((d.wrap(low), d.wrap(high)), (low, high));
            assert_eq!(d.ends(), (Scalar::Int(low), Scalar::Int(high)));
            assert_eq!(d.wrap(high.wrapping_add(1)), low, "{d}");
        }
        assert_eq!(DType::F32.integers().1 as f32 + 1.0, DType::F32.integers().1 as f32);
        assert_eq!(DType::F64.integers().1 as f64 + 1.0, DType::F64.integers().1 as f64);
    }
}
