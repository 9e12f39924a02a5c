//! Comparison within tolerance: `|got - expected| <= atol + rtol * |expected|`, NaN equals NaN, integers equal.

use ir_core::{Class, DType, Scalar};
use num_complex::Complex;

use crate::{Element, Tensor, TensorError};

/// What a successful comparison saw.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Largest absolute difference.
    pub max_abs: f64,
    /// Largest difference relative to the expected value, where that is not 0.
    pub max_rel: f64,
    /// Number of elements.
    pub count: usize,
}

/// Why two tensors are not equal within tolerance.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Mismatch {
    /// Different dtypes.
    #[error("dtype is {got}, expected {expected}")]
    DType {
        /// What was computed.
        got: DType,
        /// What should have been.
        expected: DType,
    },
    /// Different sizes.
    #[error("sizes are {got:?}, expected {expected:?}")]
    Sizes {
        /// What was computed.
        got: Vec<usize>,
        /// What should have been.
        expected: Vec<usize>,
    },
    /// Some elements differ by more than the tolerance.
    #[error(
        "{count} of {total} elements differ; the worst at {index:?} is {got}, expected {expected} (atol {atol:e}, rtol {rtol:e})"
    )]
    Values {
        /// The first index whose excess over the tolerance is largest.
        index: Vec<usize>,
        /// What was computed there.
        got: Scalar,
        /// What should have been.
        expected: Scalar,
        /// How many elements differ.
        count: usize,
        /// How many there are.
        total: usize,
        /// Absolute tolerance.
        atol: f64,
        /// Relative tolerance.
        rtol: f64,
    },
}

/// The corpus' tolerance `(atol, rtol)` for a single operator's result of this dtype.
pub const fn tolerance(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F64 | DType::C128 => (1e-10, 1e-8),
        DType::F32 | DType::C64 => (1e-5, 1.3e-4),
        DType::F16 => (1e-3, 2e-3),
        DType::BF16 => (1e-2, 1.6e-2),
        DType::F8E4M3 => (2e-3, 0.125),
        DType::F8E5M2 => (2e-5, 0.25),
        DType::Bool | DType::U8 | DType::U16 | DType::U32 | DType::U64 => (0.0, 0.0),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => (0.0, 0.0),
    }
}

/// How far apart two elements are: absolute difference, the expected value's size, and whether that is too far.
struct Difference {
    abs: f64,
    scale: f64,
    fails: bool,
}

fn difference(class: Class, got: Scalar, expected: Scalar, atol: f64, rtol: f64) -> Difference {
    if let (Class::Bool | Class::Int, Scalar::Int(_) | Scalar::Bool(_)) = (class, got) {
        let (a, b) = (got.as_i64(), expected.as_i64());
        let (abs, scale) = (a.abs_diff(b) as f64, b.unsigned_abs() as f64);
        return Difference { abs, scale, fails: a != b && abs > atol + rtol * scale };
    }
    let (a, b) = (Complex::<f64>::from_scalar(got), Complex::<f64>::from_scalar(expected));
    let (scale, same) = (b.norm(), a == b || (a.is_nan() && b.is_nan()));
    if same {
        return Difference { abs: 0.0, scale, fails: false };
    }
    let abs = (a - b).norm();
    let allowed = atol + rtol * scale;
    Difference { abs, scale, fails: !(abs.is_finite() && abs <= allowed) }
}

/// Compares `got` with `expected`, element by element.
///
/// # Errors
/// A [`Mismatch`] that names the dtype or the sizes, or the worst element and how many fail.
pub fn allclose(got: &Tensor, expected: &Tensor, atol: f64, rtol: f64) -> Result<Stats, Mismatch> {
    if got.dtype() != expected.dtype() {
        return Err(Mismatch::DType { got: got.dtype(), expected: expected.dtype() });
    }
    if got.sizes() != expected.sizes() {
        return Err(Mismatch::Sizes { got: got.sizes().to_vec(), expected: expected.sizes().to_vec() });
    }
    let class = got.dtype().class();
    let mut stats = Stats::default();
    let (mut count, mut worst) = (0, (f64::NEG_INFINITY, 0, Scalar::Int(0), Scalar::Int(0)));
    for (i, (a, b)) in got.iter().zip(expected.iter()).enumerate() {
        let d = difference(class, a, b, atol, rtol);
        stats.count += 1;
        if d.fails {
            count += 1;
            // A difference that is not a number is worse than any number.
            let excess = if d.abs.is_nan() { f64::INFINITY } else { d.abs - (atol + rtol * d.scale) };
            let excess = if excess.is_nan() { f64::INFINITY } else { excess };
            if excess > worst.0 {
                worst = (excess, i, a, b);
            }
        } else {
            stats.max_abs = stats.max_abs.max(d.abs);
            if d.scale > 0.0 && d.scale.is_finite() {
                stats.max_rel = stats.max_rel.max(d.abs / d.scale);
            }
        }
    }
    if count == 0 {
        return Ok(stats);
    }
    let (_, at, got_value, expected_value) = worst;
    Err(Mismatch::Values {
        index: unravel(at, got.sizes()),
        got: got_value,
        expected: expected_value,
        count,
        total: stats.count,
        atol,
        rtol,
    })
}

/// Every `step`-th value in row-major order, as a vector; a step of 0 is one of 1.
///
/// # Errors
/// The tensor has no row-major view and no memory for one.
pub fn every(tensor: &Tensor, step: usize) -> Result<Tensor, TensorError> {
    let step = step.max(1);
    let flat = tensor.reshape(&[tensor.numel()])?;
    let stride = isize::try_from(step).unwrap_or(isize::MAX).saturating_mul(flat.strides()[0]);
    flat.as_strided(&[tensor.numel().div_ceil(step)], &[stride], flat.offset())
}

/// The index of element number `at` in row-major order.
fn unravel(mut at: usize, sizes: &[usize]) -> Vec<usize> {
    let mut index = vec![0; sizes.len()];
    for d in (0..sizes.len()).rev() {
        index[d] = at % sizes[d].max(1);
        at /= sizes[d].max(1);
    }
    index
}
