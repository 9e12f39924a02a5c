//! The Rust types that represent the dtypes, and the conversions between classes of numbers.

use half::{bf16, f16};
use ir_core::{DType, Scalar};
use num_complex::Complex;

use crate::float8::{F8E4M3, F8E5M2};

/// One byte that holds a truth value. Unlike in Rust's `bool`, any byte is valid: memory from a file may hold anything, and
/// what is not zero is true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Bool(pub u8);

impl Bool {
    /// The truth value.
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}
impl From<bool> for Bool {
    fn from(b: bool) -> Self {
        Bool(b as u8)
    }
}

/// A Rust type that is the memory of one dtype.
///
/// The `from_*` functions are PyTorch's conversions as an x86-64 build does them: integers wrap; a float becomes an
/// integer by truncation, and where it does not fit (or is NaN) it becomes what `cvttsd2si` gives (the smallest `i64`
/// or `i32`), of which narrower types keep the low bits: `u8` and `u32` go by way of `i64`, `i8`, `i16` and `u16` by way of
/// `i32`. Shorter floats go by way of `f32`. Scalars have no unsigned form: a `u64` is the `i64` with the same bits. A real type takes the real part of a complex number; `bool` is "not zero".
///
/// # Safety
/// The type must have the size of `DTYPE`, alignment of at most that size, no padding, and every bit pattern valid.
pub unsafe trait Element:
    Copy + Send + Sync + PartialEq + std::fmt::Debug + Default + 'static
{
    /// The dtype whose memory this is.
    const DTYPE: DType;
    /// From a truth value.
    fn from_bool(b: bool) -> Self;
    /// From an integer.
    fn from_i64(i: i64) -> Self;
    /// From a real number.
    fn from_f64(x: f64) -> Self;
    /// From a complex number.
    fn from_complex(z: Complex<f64>) -> Self;
    /// As a scalar of the dtype's class; exact.
    fn to_scalar(self) -> Scalar;
    /// As a real number, the nearest one.
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self.to_scalar().as_f64()
    }

    /// From a scalar of any class.
    #[inline(always)]
    fn from_scalar(s: Scalar) -> Self {
        match s {
            Scalar::Bool(b) => Self::from_bool(b),
            Scalar::Int(i) => Self::from_i64(i),
            Scalar::Float(x) => Self::from_f64(x),
            Scalar::Complex(re, im) => Self::from_complex(Complex::new(re, im)),
        }
    }
}

/// `cvttsd2si r64`: truncates; what does not fit is the smallest integer.
#[inline(always)]
pub(crate) fn trunc_i64(x: f64) -> i64 {
    let fits = (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&x);
    if fits { x as i64 } else { i64::MIN }
}

/// `cvttsd2si r32`.
#[inline(always)]
fn trunc_i32(x: f64) -> i32 {
    if x > -2_147_483_649.0 && x < 2_147_483_648.0 { x as i32 } else { i32::MIN }
}

/// An unsigned 64-bit integer, of a number from 2^63 on by the difference to that.
#[inline(always)]
fn trunc_u64(x: f64) -> u64 {
    const HALF: f64 = 9_223_372_036_854_775_808.0;
    if x >= HALF { (trunc_i64(x - HALF) as u64).wrapping_add(1 << 63) } else { trunc_i64(x) as u64 }
}

macro_rules! int_element {
    ($($t:ty, $dtype:ident, $via:ident;)*) => {$(
        // SAFETY: a primitive integer of the dtype's size; every bit pattern is a value.
        unsafe impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            #[inline(always)]
            fn from_bool(b: bool) -> Self { b as $t }
            #[inline(always)]
            fn from_i64(i: i64) -> Self { i as $t }
            #[inline(always)]
            fn from_f64(x: f64) -> Self { $via(x) as $t }
            #[inline(always)]
            fn from_complex(z: Complex<f64>) -> Self { $via(z.re) as $t }
            #[inline(always)]
            fn to_scalar(self) -> Scalar { Scalar::Int(self as i64) }
        }
    )*};
}

int_element! {
    u8, U8, trunc_i64;
    u16, U16, trunc_i32;
    u32, U32, trunc_i64;
    i8, I8, trunc_i32;
    i16, I16, trunc_i32;
    i32, I32, trunc_i32;
    i64, I64, trunc_i64;
}

// SAFETY: a primitive integer of the dtype's size; every bit pattern is a value.
unsafe impl Element for u64 {
    const DTYPE: DType = DType::U64;
    #[inline(always)]
    fn from_bool(b: bool) -> Self {
        b as u64
    }
    #[inline(always)]
    fn from_i64(i: i64) -> Self {
        i as u64
    }
    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        trunc_u64(x)
    }
    #[inline(always)]
    fn from_complex(z: Complex<f64>) -> Self {
        trunc_u64(z.re)
    }
    #[inline(always)]
    fn to_scalar(self) -> Scalar {
        Scalar::Int(self as i64)
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self as f64
    }
}

macro_rules! float_element {
    ($($t:ty, $dtype:ident, |$x:ident| $from:expr, |$i:ident| $from_int:expr;)*) => {$(
        // SAFETY: a floating type of the dtype's size (`half`'s types are transparent over `u16`, those of 8 bits over `u8`); every bit pattern
        // is a value.
        unsafe impl Element for $t {
            const DTYPE: DType = DType::$dtype;
            #[inline(always)]
            fn from_bool(b: bool) -> Self { Self::from_i64(b as i64) }
            #[inline(always)]
            fn from_i64($i: i64) -> Self { $from_int }
            #[inline(always)]
            fn from_f64($x: f64) -> Self { $from }
            #[inline(always)]
            fn from_complex(z: Complex<f64>) -> Self { Self::from_f64(z.re) }
            #[inline(always)]
            fn to_scalar(self) -> Scalar { Scalar::Float(f64::from(self)) }
        }
    )*};
}

float_element! {
    F8E4M3, F8E4M3, |x| F8E4M3::from_f32(x as f32), |i| F8E4M3::from_f32(i as f32);
    F8E5M2, F8E5M2, |x| F8E5M2::from_f32(x as f32), |i| F8E5M2::from_f32(i as f32);
    f16, F16, |x| f16::from_f32(x as f32), |i| f16::from_f32(i as f32);
    bf16, BF16, |x| bf16::from_f32(x as f32), |i| bf16::from_f32(i as f32);
    f32, F32, |x| x as f32, |i| i as f32;
    f64, F64, |x| x, |i| i as f64;
}

macro_rules! complex_element {
    ($($part:ty, $dtype:ident;)*) => {$(
        // SAFETY: `Complex` is `repr(C)` with two floats of half the dtype's size.
        unsafe impl Element for Complex<$part> {
            const DTYPE: DType = DType::$dtype;
            #[inline(always)]
            fn from_bool(b: bool) -> Self { Self::from_i64(b as i64) }
            #[inline(always)]
            fn from_i64(i: i64) -> Self { Complex::new(i as $part, 0.0) }
            #[inline(always)]
            fn from_f64(x: f64) -> Self { Complex::new(x as $part, 0.0) }
            #[inline(always)]
            fn from_complex(z: Complex<f64>) -> Self { Complex::new(z.re as $part, z.im as $part) }
            #[inline(always)]
            fn to_scalar(self) -> Scalar { Scalar::Complex(f64::from(self.re), f64::from(self.im)) }
        }
    )*};
}

complex_element! {
    f32, C64;
    f64, C128;
}

// SAFETY: transparent over `u8`; every bit pattern is a value.
unsafe impl Element for Bool {
    const DTYPE: DType = DType::Bool;
    #[inline(always)]
    fn from_bool(b: bool) -> Self {
        Bool(b as u8)
    }
    #[inline(always)]
    fn from_i64(i: i64) -> Self {
        Bool((i != 0) as u8)
    }
    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        Bool((x != 0.0) as u8)
    }
    #[inline(always)]
    fn from_complex(z: Complex<f64>) -> Self {
        Bool((z.re != 0.0 || z.im != 0.0) as u8)
    }
    #[inline(always)]
    fn to_scalar(self) -> Scalar {
        Scalar::Bool(self.get())
    }
}

/// Runs an expression with `$t` bound to the [`Element`] type of a [`DType`]:
/// `with_element!(tensor.dtype(), T => sum::<T>(&tensor))`.
#[macro_export]
macro_rules! with_element {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            $crate::__ir_core::DType::Bool => {
                type $t = $crate::Bool;
                $body
            }
            $crate::__ir_core::DType::U8 => {
                type $t = u8;
                $body
            }
            $crate::__ir_core::DType::U16 => {
                type $t = u16;
                $body
            }
            $crate::__ir_core::DType::U32 => {
                type $t = u32;
                $body
            }
            $crate::__ir_core::DType::U64 => {
                type $t = u64;
                $body
            }
            $crate::__ir_core::DType::I8 => {
                type $t = i8;
                $body
            }
            $crate::__ir_core::DType::I16 => {
                type $t = i16;
                $body
            }
            $crate::__ir_core::DType::I32 => {
                type $t = i32;
                $body
            }
            $crate::__ir_core::DType::I64 => {
                type $t = i64;
                $body
            }
            $crate::__ir_core::DType::F8E4M3 => {
                type $t = $crate::F8E4M3;
                $body
            }
            $crate::__ir_core::DType::F8E5M2 => {
                type $t = $crate::F8E5M2;
                $body
            }
            $crate::__ir_core::DType::F16 => {
                type $t = $crate::f16;
                $body
            }
            $crate::__ir_core::DType::BF16 => {
                type $t = $crate::bf16;
                $body
            }
            $crate::__ir_core::DType::F32 => {
                type $t = f32;
                $body
            }
            $crate::__ir_core::DType::F64 => {
                type $t = f64;
                $body
            }
            $crate::__ir_core::DType::C64 => {
                type $t = $crate::Complex<f32>;
                $body
            }
            $crate::__ir_core::DType::C128 => {
                type $t = $crate::Complex<f64>;
                $body
            }
        }
    };
}
