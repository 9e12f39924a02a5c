//! AMD GPUs: the calls of the HIP runtime behind `gpu-runtime`, hiprtc or clang, and the plugin. Every library of ROCm is loaded at run
//! time, so this builds and starts on machines without any; [`RocmBackend`] then says what is missing.
//!
//! ```
//! use backend_rocm::Library;
//!
//! match backend_rocm::find(Library::Runtime) {
//!     Ok(path) => println!("devices are driven by {}", path.display()),
//!     Err(missing) => println!("{missing}"),
//! }
//! ```

mod api;
mod backend;
mod blas;
mod clang;
mod compiler;
mod device_properties;
mod dnn;
mod hip;
mod hiprtc;
mod libraries;
mod properties;
mod rocblas;
mod vendor;

pub use backend::RocmBackend;
pub use clang::Clang;
pub use hip::Hip;
pub use hiprtc::serve;
pub use libraries::{Library, find};
