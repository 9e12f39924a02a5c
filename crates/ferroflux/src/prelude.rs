//! What a program that is written with Ferroflux uses: `use ferroflux::prelude::*;`. `Tensor` is here the tensor with operators
//! ([`crate::eager::Tensor`]); the crate's own [`crate::Tensor`] is memory with a shape.

pub use crate::eager::{GradMode, Index, Init, Input, Tensor, cat, manual_seed, no_grad, stack};
pub use crate::s;
pub use dynamo::{Setting, Size};
pub use ir_core::DType;
