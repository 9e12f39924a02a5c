//! Errors of the CUDA driver, told apart by what the user can do.

use cudarc::driver::{result, sys};
use gpu_runtime::GpuError;

/// The error of a call.
pub(crate) fn error(call: &'static str) -> impl Fn(result::DriverError) -> GpuError {
    use sys::CUresult as R;
    move |e| {
        let what = e.error_string().map_or_else(|_| format!("{e:?}"), |s| s.to_string_lossy().into_owned());
        match e.0 {
            R::CUDA_ERROR_ILLEGAL_ADDRESS
            | R::CUDA_ERROR_MISALIGNED_ADDRESS
            | R::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | R::CUDA_ERROR_INVALID_PC
            | R::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | R::CUDA_ERROR_HARDWARE_STACK_ERROR
            | R::CUDA_ERROR_ASSERT
            | R::CUDA_ERROR_LAUNCH_FAILED
            | R::CUDA_ERROR_LAUNCH_TIMEOUT
            | R::CUDA_ERROR_ECC_UNCORRECTABLE
            | R::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | R::CUDA_ERROR_DEVICE_UNAVAILABLE => GpuError::Lost { call, what },
            R::CUDA_ERROR_OUT_OF_MEMORY => {
                let (free, total) = result::mem_get_info().unwrap_or((0, 0));
                GpuError::OutOfMemory { bytes: 0, free: free as u64, total: total as u64 }
            }
            _ => GpuError::Driver { call, what },
        }
    }
}
