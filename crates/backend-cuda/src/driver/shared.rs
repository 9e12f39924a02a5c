//! Pinned host memory that kernels access: a few words that the host reads without a copy. Not here: staging memory of
//! copies (`staging`).

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use cudarc::driver::sys;
use gpu_runtime::{GpuError, HostMemory};

use super::error;

/// Allocates zeroed memory; the context is current.
pub(super) fn allocate(bytes: usize) -> Result<HostMemory, GpuError> {
    let mut host: *mut c_void = null_mut();
    // SAFETY: the address is written to a local.
    unsafe { sys::cuMemHostAlloc(&mut host, bytes, sys::CU_MEMHOSTALLOC_DEVICEMAP) }
        .result()
        .map_err(error("cuMemHostAlloc"))?;
    let Some(host) = NonNull::new(host.cast::<u8>()) else {
        return Err(GpuError::Malformed("pinned memory at no address".into()));
    };
    // SAFETY: the memory was just allocated with this length.
    unsafe { host.write_bytes(0, bytes) };
    let mut memory = HostMemory { host, device: 0 };
    // SAFETY: the memory was allocated as mapped memory, and the address is written to a local.
    let mapped = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut memory.device, host.as_ptr().cast(), 0) };
    if let Err(e) = mapped.result() {
        free(memory);
        return Err(error("cuMemHostGetDevicePointer")(e));
    }
    Ok(memory)
}

/// Frees memory; the driver waits for the device.
pub(super) fn free(memory: HostMemory) {
    // SAFETY: the memory was allocated by `allocate` and is freed once, by its owner.
    let _ = unsafe { sys::cuMemFreeHost(memory.host.as_ptr().cast()) };
}
