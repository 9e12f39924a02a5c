//! NVIDIA GPUs: the driver behind `gpu-runtime`, NVRTC, and the plugin. Every library of CUDA is loaded at run time, so
//! this builds and starts on machines without any; [`CudaBackend`] then says what is missing.

mod backend;
mod driver;
mod libraries;
mod nvrtc;

pub use backend::CudaBackend;
pub use libraries::{Library, find};
pub use nvrtc::compile;
