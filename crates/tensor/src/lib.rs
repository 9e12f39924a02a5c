//! Strided tensors in host memory: shared [`Storage`], [`Tensor`] views of it, typed element access, conversion
//! between dtypes, comparison within tolerance, safetensors files and the corpus' weight formula.
//!
//! Not here: arithmetic (`interp` and the backends have it), symbolic sizes (`ir_core::TensorMeta`), and the DLPack
//! structs themselves (`plugin-abi` has the layouts; this crate gives and takes the raw parts).
//!
//! ```
//! use tensor::Tensor;
//!
//! let x = Tensor::from_vec(vec![1f32, 2., 3., 4., 5., 6.], &[2, 3])?;
//! let turned = x.transpose(0, 1)?; // a view of the same memory
//! assert_eq!((turned.sizes(), turned.strides()), (&[3, 2][..], &[1, 3][..]));
//! assert_eq!(turned.to_vec::<f32>()?, [1., 4., 2., 5., 3., 6.]);
//! # Ok::<(), tensor::TensorError>(())
//! ```

pub mod compare;
mod convert;
mod device_tensor;
mod dtype_view;
mod element;
mod error;
mod float8;
mod foreign;
pub mod formula;
mod iter;
pub mod linalg;
pub mod safetensors;
mod storage;
mod tensor;
mod view;
mod write;

pub use compare::{Mismatch, Stats, allclose};
pub use device_tensor::{DeviceNumber, DeviceTensor};
pub use element::{Bool, Element};
pub use error::TensorError;
pub use float8::{F8E4M3, F8E5M2};
pub use foreign::RawParts;
pub use iter::{Offsets, Values};
pub use storage::{Storage, require_room};
pub use tensor::{Sizes, Strides, Tensor, checked_numel, contiguous_strides};
pub use view::view_strides;

pub use half::{bf16, f16};
#[doc(hidden)]
pub use ir_core as __ir_core;
pub use num_complex::Complex;

#[cfg(test)]
mod tests;
