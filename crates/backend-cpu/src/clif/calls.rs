//! Host functions that generated code calls for operators without machine code of their own: the reference evaluation
//! of `kernel-ir`, one `extern "C"` function per operator and class. Code names them by number (`host`).

use cranelift_codegen::ir::Type;
use cranelift_codegen::ir::types::{F32, F64, I32, I64};
use ir_core::{DType, Scalar};
use kernel_ir::ScalarOp;

use super::values::Class;
use crate::leaf::Each;

/// A host function on values of one type.
pub(super) struct Call {
    /// For [`address`].
    pub(super) number: u32,
    pub(super) ty: Type,
}

macro_rules! calls {
    (unary: $($one:ident)*; binary: $($two:ident)*) => {
        /// The function for a float operator.
        fn float(op: ScalarOp, single: bool) -> Option<usize> {
            match op {
                $(ScalarOp::$one => {
                    extern "C" fn f64_(a: f64) -> f64 {
                        ScalarOp::$one.eval(DType::F64, &[Scalar::Float(a)]).as_f64()
                    }
                    extern "C" fn f32_(a: f32) -> f32 {
                        ScalarOp::$one.eval(DType::F32, &[Scalar::Float(f64::from(a))]).as_f64() as f32
                    }
                    Some(if single { f32_ as *const () as usize } else { f64_ as *const () as usize })
                })*
                $(ScalarOp::$two => {
                    extern "C" fn f64_(a: f64, b: f64) -> f64 {
                        ScalarOp::$two.eval(DType::F64, &[Scalar::Float(a), Scalar::Float(b)]).as_f64()
                    }
                    extern "C" fn f32_(a: f32, b: f32) -> f32 {
                        let args = [Scalar::Float(f64::from(a)), Scalar::Float(f64::from(b))];
                        ScalarOp::$two.eval(DType::F32, &args).as_f64() as f32
                    }
                    Some(if single { f32_ as *const () as usize } else { f64_ as *const () as usize })
                })*
                _ => None,
            }
        }
    };
}

calls! {
    unary: Exp Exp2 Expm1 Log Log2 Log10 Log1p Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh Acosh Atanh Erf Erfc
        Erfinv Lgamma Digamma;
    binary: Rem Pow Atan2 NextAfter ChebyshevT ChebyshevU ChebyshevV ChebyshevW HermiteH HermiteHe
        LaguerreL LegendreP Igamma Igammac
}

extern "C" fn pow_i32(a: i32, b: i32) -> i32 {
    ScalarOp::Pow.eval(DType::I32, &[Scalar::Int(i64::from(a)), Scalar::Int(i64::from(b))]).as_i64() as i32
}

extern "C" fn pow_i64(a: i64, b: i64) -> i64 {
    ScalarOp::Pow.eval(DType::I64, &[Scalar::Int(a), Scalar::Int(b)]).as_i64()
}

extern "C" fn philox(seed: i64, stream: i64, index: i64) -> i64 {
    kernel_ir::philox_bits(seed, stream, index)
}

extern "C" fn nan_f32(_: f32) -> f32 {
    f32::NAN
}

extern "C" fn nan_f64(_: f64) -> f64 {
    f64::NAN
}

extern "C" fn same_i32(a: i32) -> i32 {
    a
}

extern "C" fn same_i64(a: i64) -> i64 {
    a
}

/// Called by leaves for the lanes of a mask.
///
/// # Safety
/// The pointer is to the leaf's block of arguments.
pub(super) unsafe extern "C" fn each(lanes: *mut Each) {
    // SAFETY: the leaf has written all of it.
    let lanes = unsafe { &mut *lanes };
    for n in (0..lanes.x.len()).filter(|n| lanes.mask >> n & 1 != 0) {
        lanes.result[n] = (lanes.function)(lanes.x[n]);
    }
}

/// Classes, in the order of their numbers.
const CLASSES: [Class; 5] = [Class::F32, Class::F64, Class::I32, Class::I64, Class::Mask];

/// The function for an operator on scalars of a class.
pub(super) fn of(op: ScalarOp, class: Class) -> Call {
    let ty = match class {
        Class::F32 => F32,
        Class::F64 => F64,
        Class::I64 => I64,
        Class::I32 | Class::Mask => I32,
    };
    Call { number: op as u32 * CLASSES.len() as u32 + class as u32, ty }
}

/// The address of the function of a number; `None` where there is no such operator.
pub(super) fn address(number: u32) -> Option<usize> {
    let classes = CLASSES.len() as u32;
    let op = *ScalarOp::ALL.get((number / classes) as usize)?;
    Some(address_of(op, CLASSES[(number % classes) as usize]))
}

/// Operators without a meaning for a class return what the reference does: NaN for floats, the operand for integers.
fn address_of(op: ScalarOp, class: Class) -> usize {
    let pow = op == ScalarOp::Pow;
    match class {
        Class::F32 => float(op, true).unwrap_or(nan_f32 as *const () as usize),
        Class::F64 => float(op, false).unwrap_or(nan_f64 as *const () as usize),
        Class::I64 if pow => pow_i64 as *const () as usize,
        Class::I64 if op == ScalarOp::Philox => philox as *const () as usize,
        Class::I64 => same_i64 as *const () as usize,
        Class::I32 | Class::Mask if pow => pow_i32 as *const () as usize,
        Class::I32 | Class::Mask => same_i32 as *const () as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_to_their_function() {
        for &op in ScalarOp::ALL {
            for (n, class) in CLASSES.into_iter().enumerate() {
                assert_eq!(class as usize, n);
                assert_eq!(address(of(op, class).number), Some(address_of(op, class)), "{op:?}");
            }
        }
        assert_eq!(address(u32::MAX), None);
    }
}
