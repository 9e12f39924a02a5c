//! The CUDA backend: the driver below `gpu-runtime`, NVRTC, and the plugin. Every CUDA library is loaded at run time, so
//! this builds and starts on machines without any; [`CudaBackend`] then reports what is missing.
//!
//! ```
//! use backend_cuda::Library;
//!
//! match backend_cuda::find(Library::Nvrtc) {
//!     Ok(path) => println!("kernels are compiled by {}", path.display()),
//!     Err(missing) => println!("{missing}"),
//! }
//! ```

mod api;
mod backend;
mod blas;
mod blas_api;
mod cuda;
mod device_properties;
mod dnn;
mod dnn_api;
mod dnn_desc;
mod dnn_graph;
mod error;
mod libraries;
mod nccl;
mod nvrtc;
mod nvrtc_api;
mod preload;
mod tensor_map;
mod vendor;

pub use backend::{BackgroundWork, CudaBackend};
pub use cuda::Cuda;
pub use device_properties::target_of;
pub use libraries::{Library, find, locate};
pub use nvrtc::compile;

/// A CUDA device as `gpu-runtime` drives it.
pub type Device = gpu_runtime::Device<Cuda>;

/// A device, opened anew, for whoever wants to run single steps on it: its driver, with all ways of computing a step that
/// NVIDIA's libraries offer.
///
/// # Errors
/// There is no driver, no NVRTC, or no such device.
pub fn open(ordinal: i32) -> Result<std::sync::Arc<Device>, gpu_runtime::GpuError> {
    Device::open(ordinal).map(std::sync::Arc::new)
}
