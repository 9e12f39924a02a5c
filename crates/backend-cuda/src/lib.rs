//! NVIDIA GPUs: the driver behind `gpu-runtime`, NVRTC, and the plugin. Every library of CUDA is loaded at run time, so
//! this builds and starts on machines without any; [`CudaBackend`] then says what is missing.
//!
//! ```
//! use backend_cuda::Library;
//!
//! match backend_cuda::find(Library::Nvrtc) {
//!     Ok(path) => println!("kernels are compiled by {}", path.display()),
//!     Err(missing) => println!("{missing}"),
//! }
//! ```

mod answer_cache;
mod backend;
mod blas;
mod blas_call;
mod blas_layout;
mod cache;
mod device_properties;
mod dnn;
mod dnn_call;
mod dnn_desc;
mod dnn_fold;
mod dnn_graph;
mod dnn_layout;
mod dnn_transposed;
mod driver;
mod events;
mod graph;
mod libraries;
mod nvrtc;
mod preload;
mod sizes;
mod staging;
mod tensor_map;
mod vendor;

pub use backend::{BackgroundWork, CudaBackend};
pub use device_properties::target_of;
pub use driver::{Device, Function};
pub use libraries::{Library, find, locate};
pub use nvrtc::compile;

/// A device, opened anew, for whoever wants to run single steps on it: its driver, with all ways of computing a step that
/// NVIDIA's libraries offer.
///
/// # Errors
/// No driver, no NVRTC, no such device.
pub fn open(ordinal: i32) -> Result<std::sync::Arc<Device>, gpu_runtime::GpuError> {
    Device::open(ordinal).map(std::sync::Arc::new)
}
