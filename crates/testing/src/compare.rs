//! How computed values are compared with goldens beside `tensor::allclose` and the dtype's `tensor::compare::tolerance`:
//! goldens of large tensors keep a part of the values, and gradients are judged by the size of the largest.

use tensor::compare::every;
use tensor::{Tensor, TensorError};

/// How many values the goldens of a training case keep of a large tensor, at least.
const KEPT_VALUES: usize = 512;

/// The values of a computed tensor that its golden keeps: all of them, or every so-manieth in row-major order.
///
/// # Errors
/// The sizes cannot be viewed so.
pub fn thinned(computed: &Tensor, golden: &Tensor) -> Result<Tensor, TensorError> {
    if computed.numel() == golden.numel() {
        return computed.reshape(golden.sizes());
    }
    every(computed, computed.numel() / KEPT_VALUES)
}

/// The largest finite magnitude; 0 where there is none.
pub fn largest(tensor: &Tensor) -> f64 {
    tensor.iter_complex().map(|z| z.norm()).filter(|x| x.is_finite()).fold(0.0, f64::max)
}
