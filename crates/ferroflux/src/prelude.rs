//! What a program that is written with Ferroflux uses: `use ferroflux::prelude::*;`. `Tensor` is here the tensor with operators
//! ([`crate::eager::Tensor`]); the crate's own [`crate::Tensor`] is memory with a shape.
//!
//! ```
//! use ferroflux::prelude::*;
//!
//! let numbers = || {
//!     manual_seed(7);
//!     Tensor::randn(&[8]).to_vec::<f32>()
//! };
//! assert_eq!(numbers()?, numbers()?);
//! assert_ne!(Tensor::randn(&[8]).to_vec::<f32>()?, Tensor::randn(&[8]).to_vec::<f32>()?);
//! # Ok::<(), ferroflux::Error>(())
//! ```

pub use crate::capture::{CompiledFn, compile};
pub use crate::eager::{GradMode, Index, Init, Input, Tensor, cat, manual_seed, no_grad, stack};
pub use crate::nn::{Layer, Module};
pub use crate::s;
pub use dynamo::{Setting, Size};
pub use ir_core::DType;
