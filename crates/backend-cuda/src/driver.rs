//! The CUDA driver as `gpu_runtime::Driver`: one device, its primary context, one stream, stream-ordered memory.

use std::ffi::{CString, c_void};

use cudarc::driver::{result, sys};
use gpu_codegen::Target;
use gpu_runtime::{Driver, GpuError, Grid, Module};
use plugin_sdk::DeviceId;
use plugin_sdk::dlpack::DL_CUDA;
use rayon::prelude::*;

use crate::libraries::{Library, find};
use crate::nvrtc;

/// An open device.
pub(crate) struct Device {
    ordinal: i32,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    architecture: String,
    target: Target,
}

// SAFETY: contexts and streams may be used from any thread that has made the context current, which every call does.
unsafe impl Send for Device {}
// SAFETY: as above; the driver serializes what it must.
unsafe impl Sync for Device {}

/// A kernel of a module that is never unloaded.
pub(crate) struct Function(sys::CUfunction);

// SAFETY: a handle of the driver's, valid in every thread with the context.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// What a device is.
pub(crate) struct About {
    pub(crate) name: String,
    pub(crate) memory: u64,
    pub(crate) attributes: Vec<(String, String)>,
}

/// An error of the driver's, by what the user can do.
fn error(call: &'static str) -> impl Fn(result::DriverError) -> GpuError {
    move |e| {
        let what = e.error_string().map_or_else(|_| format!("{e:?}"), |s| s.to_string_lossy().into_owned());
        match e.0 {
            sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | sys::CUresult::CUDA_ERROR_LAUNCH_FAILED
            | sys::CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | sys::CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | sys::CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => GpuError::Lost { call, what },
            _ => GpuError::Driver { call, what },
        }
    }
}

/// How many devices there are.
pub(crate) fn count() -> Result<i32, GpuError> {
    find(Library::Driver)?;
    result::init().map_err(error("cuInit"))?;
    result::device::get_count().map_err(error("cuDeviceGetCount"))
}

fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<i32, GpuError> {
    // SAFETY: the device was given by the driver.
    unsafe { result::device::get_attribute(device, which) }.map_err(error("cuDeviceGetAttribute"))
}

fn target(device: sys::CUdevice) -> Result<Target, GpuError> {
    use sys::CUdevice_attribute as A;
    let number = |which| attribute(device, which).map(|n| n.max(0) as u32);
    Ok(Target {
        architecture: 10 * number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
            + number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        multiprocessors: number(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_memory: number(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        cache: u64::from(number(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        tf32: false,
        deterministic: false,
    })
}

fn architecture(device: sys::CUdevice) -> Result<String, GpuError> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    Ok(format!("sm_{}{}", attribute(device, MAJOR)?, attribute(device, MINOR)?))
}

/// What the driver says of a device, without opening it.
pub(crate) fn about(ordinal: i32) -> Result<About, GpuError> {
    let device = result::device::get(ordinal).map_err(error("cuDeviceGet"))?;
    let name = result::device::get_name(device).map_err(error("cuDeviceGetName"))?;
    // SAFETY: the device was given by the driver.
    let memory = unsafe { result::device::total_mem(device) }.map_err(error("cuDeviceTotalMem"))? as u64;
    let processors = attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let attributes = vec![
        ("architecture".into(), architecture(device)?),
        ("multiprocessors".into(), processors.to_string()),
    ];
    Ok(About { name, memory, attributes })
}

impl Device {
    /// Opens a device: its primary context (shared with everything else in the process) and a stream.
    pub(crate) fn open(ordinal: i32) -> Result<Device, GpuError> {
        if !(0..count()?).contains(&ordinal) {
            return Err(GpuError::Argument(format!("there is no CUDA device {ordinal}")));
        }
        find(Library::Nvrtc)?;
        let device = result::device::get(ordinal).map_err(error("cuDeviceGet"))?;
        // SAFETY: the device was given by the driver; the context is kept for the life of the process.
        let context =
            unsafe { result::primary_ctx::retain(device) }.map_err(error("cuDevicePrimaryCtxRetain"))?;
        // SAFETY: the context was just retained.
        unsafe { result::ctx::set_current(context) }.map_err(error("cuCtxSetCurrent"))?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(error("cuStreamCreate"))?;
        let opened = Device {
            ordinal,
            device,
            context,
            stream,
            architecture: architecture(device)?,
            target: target(device)?,
        };
        opened.keep_freed_memory()?;
        Ok(opened)
    }

    /// What is freed stays with the process, so that a call in the steady state asks the driver for nothing.
    fn keep_freed_memory(&self) -> Result<(), GpuError> {
        let mut all = u64::MAX;
        // SAFETY: the pool belongs to the device; the attribute takes 64 bits.
        unsafe {
            let pool = result::device::get_default_mem_pool(self.device)
                .map_err(error("cuDeviceGetDefaultMemPool"))?;
            result::mem_pool::set_attribute(
                pool,
                sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                (&raw mut all).cast::<c_void>(),
            )
            .map_err(error("cuMemPoolSetAttribute"))
        }
    }

    /// Makes the context current in this thread.
    fn enter(&self) -> Result<(), GpuError> {
        // SAFETY: the context is retained for the life of the process.
        unsafe { result::ctx::set_current(self.context) }.map_err(error("cuCtxSetCurrent"))
    }

    /// Kernels may use more shared memory than the 48 KiB that need no word.
    fn allow_shared(&self, function: sys::CUfunction) -> Result<(), GpuError> {
        use sys::CUfunction_attribute::{
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as DYNAMIC,
            CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES as STATIC,
        };
        // SAFETY: the function is of a loaded module.
        unsafe {
            let used = result::function::get_function_attribute(function, STATIC)
                .map_err(error("cuFuncGetAttribute"))?;
            let most = (self.target.shared_memory as i32 - used).max(0);
            result::function::set_function_attribute(function, DYNAMIC, most)
                .map_err(error("cuFuncSetAttribute"))
        }
    }

    fn load(&self, code: &[u8], entries: &[String]) -> Result<Vec<Function>, GpuError> {
        // SAFETY: the code is a whole cubin, made for this device.
        let module = unsafe { result::module::load_data(code.as_ptr().cast::<c_void>()) }
            .map_err(error("cuModuleLoadData"))?;
        let function = |entry: &String| {
            let name = CString::new(entry.as_str()).map_err(|e| GpuError::Malformed(e.to_string()))?;
            // SAFETY: the module was just loaded and is never unloaded.
            let function = unsafe { result::module::get_function(module, name) }
                .map_err(error("cuModuleGetFunction"))?;
            self.allow_shared(function)?;
            Ok(Function(function))
        };
        entries.iter().map(function).collect()
    }
}

impl Driver for Device {
    type Function = Function;

    fn compile(&self, modules: &[Module]) -> Result<Vec<Vec<Function>>, GpuError> {
        let codes: Result<Vec<Vec<u8>>, GpuError> =
            modules.par_iter().map(|m| nvrtc::compile(m, &self.architecture)).collect();
        self.enter()?;
        codes?.iter().zip(modules).map(|(code, m)| self.load(code, &m.entries)).collect()
    }

    fn allocate(&self, bytes: u64) -> Result<u64, GpuError> {
        self.enter()?;
        // SAFETY: the stream lives as long as this value.
        match unsafe { result::malloc_async(self.stream, bytes as usize) } {
            Ok(address) => Ok(address),
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let (free, total) = result::mem_get_info().unwrap_or((0, 0));
                Err(GpuError::OutOfMemory { bytes, free: free as u64, total: total as u64 })
            }
            Err(e) => Err(error("cuMemAllocAsync")(e)),
        }
    }

    fn free(&self, address: u64) {
        if self.enter().is_ok() {
            // SAFETY: allocated on this stream and freed once; what was started before runs first.
            let _ = unsafe { result::free_async(address, self.stream) };
        }
    }

    unsafe fn upload(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), GpuError> {
        self.enter()?;
        // SAFETY: the caller's promise. Pageable memory is staged by the driver before the call returns.
        unsafe {
            let source = std::slice::from_raw_parts(from, bytes);
            result::memcpy_htod_async(to, source, self.stream).map_err(error("cuMemcpyHtoDAsync"))
        }
    }

    unsafe fn download(&self, to: *mut u8, from: u64, bytes: usize) -> Result<(), GpuError> {
        self.enter()?;
        // SAFETY: the caller's promise; the copy has ended when the stream is synchronized.
        unsafe {
            let target = std::slice::from_raw_parts_mut(to, bytes);
            result::memcpy_dtoh_async(target, from, self.stream).map_err(error("cuMemcpyDtoHAsync"))?;
        }
        self.synchronize()
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), GpuError> {
        self.enter()?;
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_dtod_async(to, from, bytes as usize, self.stream) }
            .map_err(error("cuMemcpyDtoDAsync"))
    }

    fn target(&self) -> Target {
        self.target.clone()
    }

    unsafe fn launch(&self, function: &Function, grid: Grid, arguments: &[u64]) -> Result<(), GpuError> {
        let mut pointers: Vec<*mut c_void> =
            arguments.iter().map(|a| (a as *const u64).cast_mut().cast::<c_void>()).collect();
        // SAFETY: the caller's promise; the driver copies the arguments before it returns.
        unsafe {
            result::launch_kernel(
                function.0,
                grid.blocks.into(),
                (grid.threads, 1, 1),
                grid.shared,
                self.stream,
                &mut pointers,
            )
            .map_err(error("cuLaunchKernel"))
        }
    }

    fn synchronize(&self) -> Result<(), GpuError> {
        // SAFETY: the stream lives as long as this value.
        unsafe { result::stream::synchronize(self.stream) }.map_err(error("cuStreamSynchronize"))
    }

    fn device(&self) -> DeviceId {
        DeviceId { device_type: DL_CUDA, device_id: self.ordinal }
    }
}
