//! Convolutions by a vendor's library: which steps of a program it may compute, with what epilogues, in which layouts, and the
//! candidates that come of it. A vendor's library is a [`Convolutions`]: it makes a plan of a convolution with evaluated sizes and
//! launches it.
//!
//! Not here: the calls of any library.

mod call;
mod fold;
mod kept;
mod layout;
mod transposed;

use std::sync::Arc;

use ir_core::DType;

pub use self::call::{candidates, wants};
pub use self::kept::{GrowingWorkspace, Kept};
pub use self::layout::{Format, Problem, Role};
use crate::GpuError;

/// Maximum bytes of a convolution's workspace; algorithms that want more are left out.
pub const MAX_WORKSPACE: u64 = 256 << 20;

/// A library of convolutions on one stream of a device.
pub trait Convolutions: Send + Sync + 'static {
    /// The name of its candidates in the tables of the search.
    const NAME: &'static str;
    /// How many of its algorithms the search may time.
    const ALGORITHMS: usize;
    /// Whether it adds biases and residuals and applies a ReLU itself; otherwise a kernel does that afterwards.
    const EPILOGUES: bool;
    /// Whether convolutions with few channels are also offered in space-to-depth layout.
    const FOLDS: bool;
    /// A convolution that is ready for launch.
    type Plan: Send + Sync;

    /// Whether the library has a kernel for the convolution that is worth its preparation.
    fn is_ready(&self, fused: &Fused) -> bool;
    /// A convolution that is ready for launch. `number` counts the library's algorithms, the best first; a number beyond the
    /// last gives the last.
    ///
    /// # Errors
    /// The library has no algorithm for the convolution.
    fn plan(&self, fused: &Fused, number: usize) -> Result<Arc<Self::Plan>, GpuError>;
    /// Puts a convolution on the stream.
    ///
    /// # Errors
    /// An error of the library.
    ///
    /// # Safety
    /// The addresses are device memory that contains the plan's tensors.
    unsafe fn launch(&self, plan: &Self::Plan, tensors: Tensors<'_>) -> Result<(), GpuError>;
}

/// A convolution and its fused epilogue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fused {
    /// Sizes and layouts.
    pub problem: Problem,
    /// The dtype of all tensors.
    pub dtype: DType,
    /// Whether float32 operands may be rounded to tf32.
    pub tf32: bool,
    /// Whether equal runs must give equal bits.
    pub deterministic: bool,
    /// Whether a bias per output channel is added.
    pub bias: bool,
    /// Whether a tensor like the result is added.
    pub residual: bool,
    /// Whether a ReLU follows.
    pub relu: bool,
}

impl Fused {
    /// Total bytes of the convolution's tensors.
    pub fn bytes(&self) -> u64 {
        let p = &self.problem;
        let elements: i64 = [&p.x, &p.w, &p.y].into_iter().map(|t| t.iter().product::<i64>()).sum();
        elements.max(0) as u64 * self.dtype.size() as u64
    }
}

/// The tensors of a convolution `y = x * w`, by the numbers that plans know them by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uid {
    /// The input of the plain convolution.
    X = 1,
    /// Its weight.
    W = 2,
    /// Its output.
    Y = 3,
    /// A number per output channel.
    Bias = 4,
    /// A tensor like the result.
    Residual = 5,
}

/// The addresses of a convolution's tensors, by number.
pub type Tensors<'a> = &'a [(Uid, u64)];

/// Whether libraries have convolutions of a dtype.
pub fn takes(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32)
}
