//! Reference implementations that need typed loops to be fast enough for tests: matrix product, convolution and attention,
//! over any strides.
//!
//! They accumulate in `f64` (integers in wrapping `i64`, complex in `Complex<f64>`) in ascending order of the summed
//! index, so results do not depend on threads, and round once to the result's dtype. They are the oracle: there is no
//! other arithmetic in this crate, and backends do not call these.

mod attention;
mod attention_backward;
mod conv;
mod grouped;
mod matmul;

use std::num::Wrapping;
use std::ops::{AddAssign, Mul};

use ir_core::{Class, DType, Scalar};
use num_complex::Complex;

pub use attention::attention;
pub use attention_backward::{AttentionCotangent, attention_backward};
pub use conv::{ConvGeometry, conv};
pub use grouped::{grouped_matmul, grouped_sums};
pub use matmul::matmul;

use crate::iter::read;
use crate::{Element, Tensor, TensorError, with_element};

/// The type that sums are accumulated in.
trait Accumulator: Copy + Default + Send + Sync + AddAssign + Mul<Output = Self> {
    fn from_element<T: Element>(x: T) -> Self;
    fn to_element<T: Element>(self) -> T;
}

impl Accumulator for f64 {
    #[inline(always)]
    fn from_element<T: Element>(x: T) -> f64 {
        x.to_scalar().as_f64()
    }
    #[inline(always)]
    fn to_element<T: Element>(self) -> T {
        T::from_f64(self)
    }
}
impl Accumulator for Wrapping<i64> {
    #[inline(always)]
    fn from_element<T: Element>(x: T) -> Self {
        Wrapping(x.to_scalar().as_i64())
    }
    #[inline(always)]
    fn to_element<T: Element>(self) -> T {
        T::from_i64(self.0)
    }
}
impl Accumulator for Complex<f64> {
    #[inline(always)]
    fn from_element<T: Element>(x: T) -> Self {
        Complex::<f64>::from_scalar(x.to_scalar())
    }
    #[inline(always)]
    fn to_element<T: Element>(self) -> T {
        T::from_scalar(Scalar::Complex(self.re, self.im))
    }
}

/// Runs an expression with `$a` bound to the accumulator type of a dtype.
macro_rules! with_accumulator {
    ($dtype:expr, $a:ident => $body:expr) => {
        match ir_core::DType::class($dtype) {
            ir_core::Class::Bool | ir_core::Class::Int => {
                type $a = std::num::Wrapping<i64>;
                $body
            }
            ir_core::Class::Float => {
                type $a = f64;
                $body
            }
            ir_core::Class::Complex => {
                type $a = num_complex::Complex<f64>;
                $body
            }
        }
    };
}
use with_accumulator;

/// The class both operands are computed in: the higher one.
fn common_class(a: &Tensor, b: &Tensor) -> DType {
    let higher = |a: DType, b: DType| if a.class() >= b.class() { a } else { b };
    debug_assert!(Class::Bool < Class::Complex);
    higher(a.dtype(), b.dtype())
}

/// The elements in row-major order as accumulators.
fn widened<A: Accumulator>(tensor: &Tensor) -> Result<Vec<A>, TensorError> {
    let numel = tensor.numel();
    let mut all = Vec::new();
    let bytes = numel.saturating_mul(size_of::<A>());
    all.try_reserve_exact(numel).map_err(|_| TensorError::OutOfMemory { bytes })?;
    with_element!(tensor.dtype(), T => match tensor.as_slice::<T>() {
        Some(slice) => all.extend(slice.iter().map(|&x| A::from_element(x))),
        None => all.extend(tensor.offsets().map(|at| A::from_element(read::<T>(tensor, at)))),
    });
    Ok(all)
}

/// A row-major tensor of `dtype` from accumulators.
fn narrowed<A: Accumulator>(values: &[A], dtype: DType, sizes: &[usize]) -> Result<Tensor, TensorError> {
    let mut tensor = Tensor::empty(dtype, sizes)?;
    with_element!(dtype, T => if let Some(all) = tensor.as_mut_slice::<T>() {
        all.iter_mut().zip(values).for_each(|(to, x)| *to = x.to_element());
    });
    Ok(tensor)
}

fn zeroed<A: Accumulator>(numel: usize) -> Result<Vec<A>, TensorError> {
    let mut all = Vec::new();
    let bytes = numel.saturating_mul(size_of::<A>());
    all.try_reserve_exact(numel).map_err(|_| TensorError::OutOfMemory { bytes })?;
    all.resize(numel, A::default());
    Ok(all)
}
