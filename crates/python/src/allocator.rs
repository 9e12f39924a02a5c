//! torch's caching allocator as the memory of compiled code on CUDA devices: arenas, packed weights and recordings are counted, limited and
//! given back as torch's own tensors are. By the C functions that torch exports for compiled models: a backend allocates while it holds locks
//! of its own, and these take Python's lock only where torch records the history of its memory, so nobody may wait for a backend with
//! that lock. A torch without them leaves backends to their own memory.

use std::ffi::c_void;
use std::path::PathBuf;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

use ferroflux::foreign::dlpack::{DL_CUDA, DLDevice};
use ferroflux::foreign::{DeviceAllocator, set_device_allocator};
use pyo3::prelude::*;

/// `CU_STREAM_LEGACY` of CUDA's driver, which torch knows as null.
const LEGACY: usize = 1;
/// torch's functions return this where they did what they were asked.
const DONE: i32 = 0;

type Allocate = unsafe extern "C" fn(u64, *mut *mut c_void) -> i32;
type Free = unsafe extern "C" fn(*mut c_void) -> i32;
type CurrentDevice = unsafe extern "C" fn(*mut i32) -> i32;
type CurrentStream = unsafe extern "C" fn(i32, *mut *mut c_void) -> i32;
type Enter = unsafe extern "C" fn(*mut c_void, i32, *mut *mut c_void) -> i32;
type Leave = unsafe extern "C" fn(*mut c_void) -> i32;

/// torch's functions.
struct Torch {
    allocate: Allocate,
    free: Free,
    current_device: CurrentDevice,
    current_stream: CurrentStream,
    /// Makes a stream the current one of the thread, and its device the current one.
    enter: Enter,
    leave: Leave,
}

/// Makes torch's allocator that of backends for CUDA devices, once.
pub(crate) fn install(py: Python<'_>) {
    static DONE: OnceLock<bool> = OnceLock::new();
    if DONE.get().is_some() {
        return;
    }
    // Looked for before: an import may let another thread have Python's lock, which must not wait here.
    let torch = libraries(py).ok().and_then(|folder| Torch::of(&folder));
    DONE.get_or_init(|| torch.is_some_and(|torch| set_device_allocator(DL_CUDA, Box::new(torch))));
}

/// The folder of torch's libraries.
fn libraries(py: Python<'_>) -> PyResult<PathBuf> {
    let package: PathBuf = py.import("torch")?.getattr("__file__")?.extract()?;
    Ok(package.with_file_name("lib"))
}

impl Torch {
    /// The functions of the libraries in a folder, which the process has loaded; `None` where one is missing.
    fn of(folder: &std::path::Path) -> Option<Torch> {
        // SAFETY: torch has loaded and initialized both.
        let open = |name: &str| unsafe { libloading::Library::new(folder.join(name)) }.ok();
        let (cpu, cuda) = (open("libtorch_cpu.so")?, open("libtorch_cuda.so")?);
        // SAFETY: the types are those of torch's header `aoti_torch/c/shim.h`.
        let torch = unsafe {
            Torch {
                allocate: *cuda.get::<Allocate>(b"aoti_torch_cuda_caching_allocator_raw_alloc").ok()?,
                free: *cuda.get::<Free>(b"aoti_torch_cuda_caching_allocator_raw_delete").ok()?,
                current_device: *cpu.get::<CurrentDevice>(b"aoti_torch_get_current_device_index").ok()?,
                current_stream: *cuda.get::<CurrentStream>(b"aoti_torch_get_current_cuda_stream").ok()?,
                enter: *cuda.get::<Enter>(b"aoti_torch_create_cuda_stream_guard").ok()?,
                leave: *cuda.get::<Leave>(b"aoti_torch_delete_cuda_stream_guard").ok()?,
            }
        };
        // The functions are used as long as the process lives.
        std::mem::forget((cpu, cuda));
        Some(torch)
    }

    /// Whether the thread's current device and stream are these.
    fn is_current(&self, ordinal: i32, stream: *mut c_void) -> bool {
        let (mut device, mut current) = (-1, null_mut());
        // SAFETY: both places live through the calls.
        let told = unsafe {
            (self.current_device)(&mut device) == DONE
                && device == ordinal
                && (self.current_stream)(ordinal, &mut current) == DONE
        };
        told && current == stream
    }
}

impl DeviceAllocator for Torch {
    fn allocate(
        &self,
        device: DLDevice,
        bytes: u64,
        stream: *mut c_void,
    ) -> Result<Option<NonNull<c_void>>, String> {
        let stream = if stream.addr() == LEGACY { null_mut() } else { stream };
        let mut guard = null_mut();
        let enters = !self.is_current(device.device_id, stream);
        // SAFETY: the stream is one of the device's driver; the place lives through the call.
        if enters && unsafe { (self.enter)(stream, device.device_id, &mut guard) } != DONE {
            return Ok(None);
        }
        let mut address = null_mut();
        // SAFETY: the place lives through the call.
        let status = unsafe { (self.allocate)(bytes, &mut address) };
        if enters {
            // SAFETY: the guard was just made, by this thread.
            unsafe { (self.leave)(guard) };
        }
        match NonNull::new(address).filter(|_| status == DONE) {
            Some(address) => Ok(Some(address)),
            None => Err(format!("torch's allocator has none left of device {}", device.device_id)),
        }
    }

    unsafe fn free(&self, _device: DLDevice, address: *mut c_void, _stream: *mut c_void) {
        // SAFETY: torch gave the address, for the stream that it remembers; it is given back once.
        unsafe { (self.free)(address) };
    }
}
