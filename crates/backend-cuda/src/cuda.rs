//! The calls of the CUDA driver, as `gpu_runtime::Device` wants them: one device, its primary context, one stream, memory in stream
//! order. Not here: how they are put together (`gpu-runtime`), what is beside the driver (`backend`).

use std::ffi::{CStr, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use cudarc::driver::{result, sys};
use gpu_runtime::{Calls, GpuError, Grid, Handle, HostMemory, Map};

use crate::device_properties::DeviceProperties;
use crate::error::error;
use crate::tensor_map;
use crate::vendor::Libraries;

/// Blocks may be placed while the kernel before still runs; the kernels wait for it themselves (programmatic dependent launch).
pub(crate) const EARLY: sys::CUlaunchAttribute = sys::CUlaunchAttribute {
    id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
    pad: [0; 4],
    value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
};

/// A CUDA device: its primary context, which is kept for the life of the process, a stream, NVIDIA's libraries.
pub struct Cuda {
    pub(crate) properties: DeviceProperties,
    pub(crate) context: sys::CUcontext,
    pub(crate) stream: sys::CUstream,
    pub(crate) libraries: Arc<Libraries>,
}

// SAFETY: contexts and streams may be used from any thread that has made the context current, which every call does.
unsafe impl Send for Cuda {}
// SAFETY: the driver serializes calls on one context, which is all that threads share through this value.
unsafe impl Sync for Cuda {}

/// Kernels may use more shared memory than the 48 KiB that need no word.
fn allow_shared(function: sys::CUfunction, most: i32) -> Result<(), GpuError> {
    use sys::CUfunction_attribute::{
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as DYNAMIC,
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES as STATIC,
    };
    // SAFETY: the function is of a loaded module.
    unsafe {
        let used = result::function::get_function_attribute(function, STATIC)
            .map_err(error("cuFuncGetAttribute"))?;
        result::function::set_function_attribute(function, DYNAMIC, (most - used).max(0))
            .map_err(error("cuFuncSetAttribute"))
    }
}

impl Cuda {
    fn pool(&self) -> Result<sys::CUmemoryPool, GpuError> {
        // SAFETY: the device was given by the driver.
        unsafe { result::device::get_default_mem_pool(self.properties.device) }
            .map_err(error("cuDeviceGetDefaultMemPool"))
    }

    /// What is freed stays with the process, so that memory is had quickly where the runtime's own pool is empty.
    pub(crate) fn keep_freed_memory(&self) -> Result<(), GpuError> {
        let mut all = u64::MAX;
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the pool belongs to the device; the attribute takes 64 bits.
        unsafe {
            result::mem_pool::set_attribute(self.pool()?, threshold, (&raw mut all).cast::<c_void>())
                .map_err(error("cuMemPoolSetAttribute"))
        }
    }

    /// A launch whose blocks may be placed while the kernel before still runs (programmatic dependent launch).
    ///
    /// # Safety
    /// As for [`Calls::launch`].
    unsafe fn launch_early(
        &self,
        function: sys::CUfunction,
        grid: Grid,
        arguments: *mut *mut c_void,
    ) -> sys::CUresult {
        let mut attribute = EARLY;
        let configuration = sys::CUlaunchConfig {
            gridDimX: grid.blocks[0],
            gridDimY: grid.blocks[1],
            gridDimZ: grid.blocks[2],
            blockDimX: grid.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: grid.shared,
            hStream: self.stream,
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        // SAFETY: the caller's promise; configuration and attribute live through the call.
        unsafe { sys::cuLaunchKernelEx(&configuration, function, arguments, null_mut()) }
    }
}

impl Calls for Cuda {
    type TensorMap = sys::CUtensorMap;
    const PAGEABLE: usize = 64 << 10;

    fn enter(&self) -> Result<(), GpuError> {
        // SAFETY: the context is retained for the life of the process.
        unsafe { result::ctx::set_current(self.context) }.map_err(error("cuCtxSetCurrent"))
    }

    fn stream(&self) -> Handle {
        Handle(self.stream.cast())
    }

    /// With the greatest priority: what it is for waits for other devices, and few blocks of it run.
    fn create_stream(&self) -> Result<Option<Handle>, GpuError> {
        let (mut least, mut greatest, mut stream) = (0, 0, null_mut());
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; results are written to locals.
        unsafe {
            sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest)
                .result()
                .map_err(error("cuCtxGetStreamPriorityRange"))?;
            sys::cuStreamCreateWithPriority(&mut stream, flags, greatest)
                .result()
                .map_err(error("cuStreamCreateWithPriority"))?;
        }
        Ok(Some(Handle(stream.cast())))
    }

    fn destroy_stream(&self, stream: Handle) {
        // SAFETY: made by `create_stream`, destroyed once; the driver ends what is under way.
        let _ = unsafe { sys::cuStreamDestroy_v2(stream.0.cast()) };
    }

    fn synchronize(&self) -> Result<(), GpuError> {
        // SAFETY: the stream lives as long as this value.
        unsafe { result::stream::synchronize(self.stream) }.map_err(error("cuStreamSynchronize"))
    }

    unsafe fn load(&self, code: &[u8]) -> Result<Handle, GpuError> {
        // SAFETY: the caller's promise.
        let module = unsafe { result::module::load_data(code.as_ptr().cast::<c_void>()) };
        Ok(Handle(module.map_err(error("cuModuleLoadData"))?.cast()))
    }

    unsafe fn function(&self, module: Handle, entry: &CStr) -> Result<Handle, GpuError> {
        // SAFETY: the caller's promise.
        let function = unsafe { result::module::get_function(module.0.cast(), entry.to_owned()) }
            .map_err(error("cuModuleGetFunction"))?;
        allow_shared(function, self.properties.target.lds as i32)?;
        Ok(Handle(function.cast()))
    }

    unsafe fn launch(
        &self,
        function: Handle,
        grid: Grid,
        arguments: *mut *mut c_void,
        early: bool,
    ) -> Result<(), GpuError> {
        let ([x, y, z], function) = (grid.blocks, function.0.cast());
        // SAFETY: the caller's promise.
        let done = unsafe {
            if early {
                self.launch_early(function, grid, arguments)
            } else {
                let (threads, shared) = (grid.threads, grid.shared);
                sys::cuLaunchKernel(
                    function,
                    x,
                    y,
                    z,
                    threads,
                    1,
                    1,
                    shared,
                    self.stream,
                    arguments,
                    null_mut(),
                )
            }
        };
        done.result().map_err(error("cuLaunchKernel"))
    }

    fn encode(&self, map: &Map, address: u64) -> Result<sys::CUtensorMap, GpuError> {
        tensor_map::encode(map, address)
    }

    fn allocate(&self, bytes: u64) -> Result<u64, GpuError> {
        // SAFETY: the stream lives as long as this value.
        unsafe { result::malloc_async(self.stream, bytes as usize) }.map_err(error("cuMemAllocAsync"))
    }

    fn free(&self, address: u64) {
        // SAFETY: allocated on this stream and freed once; what was started before runs first.
        let _ = unsafe { result::free_async(address, self.stream) };
    }

    fn trim(&self) {
        if let Ok(pool) = self.pool() {
            // SAFETY: the pool belongs to the device.
            let _ = unsafe { sys::cuMemPoolTrimTo(pool, 0) };
        }
    }

    fn allocate_pinned(&self, bytes: usize, mapped: bool) -> Result<HostMemory, GpuError> {
        let mut host: *mut c_void = null_mut();
        let flags = if mapped { sys::CU_MEMHOSTALLOC_DEVICEMAP } else { 0 };
        // SAFETY: the address is written to a local.
        unsafe { sys::cuMemHostAlloc(&mut host, bytes, flags) }.result().map_err(error("cuMemHostAlloc"))?;
        let Some(host) = NonNull::new(host.cast::<u8>()) else {
            return Err(GpuError::Malformed("page-locked memory at no address".into()));
        };
        let mut memory = HostMemory { host, device: 0 };
        if mapped {
            let to = &mut memory.device;
            // SAFETY: the memory was allocated for this, and the address is written to a local.
            let told = unsafe { sys::cuMemHostGetDevicePointer_v2(to, host.as_ptr().cast(), 0) };
            if let Err(e) = told.result() {
                self.free_pinned(host);
                return Err(error("cuMemHostGetDevicePointer")(e));
            }
        }
        Ok(memory)
    }

    fn free_pinned(&self, host: NonNull<u8>) {
        // SAFETY: made by `allocate_pinned`, and freed once, by its owner; the driver waits for the device.
        let _ = unsafe { sys::cuMemFreeHost(host.as_ptr().cast()) };
    }

    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.stream) }
            .result()
            .map_err(error("cuMemcpyHtoDAsync"))
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.stream) }
            .result()
            .map_err(error("cuMemcpyDtoHAsync"))
    }

    unsafe fn copy_within(&self, to: u64, from: u64, bytes: u64) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_dtod_async(to, from, bytes as usize, self.stream) }
            .map_err(error("cuMemcpyDtoDAsync"))
    }

    unsafe fn fill(&self, to: u64, word: u32, words: u64) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        unsafe { sys::cuMemsetD32Async(to, word, words as usize, self.stream) }
            .result()
            .map_err(error("cuMemsetD32Async"))
    }

    fn create_event(&self, timed: bool) -> Result<Handle, GpuError> {
        let flags = match timed {
            true => sys::CUevent_flags_enum::CU_EVENT_DEFAULT,
            false => sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING,
        };
        let mut event = null_mut();
        // SAFETY: the handle is written to a local.
        unsafe { sys::cuEventCreate(&mut event, flags as u32) }.result().map_err(error("cuEventCreate"))?;
        Ok(Handle(event.cast()))
    }

    fn destroy_event(&self, event: Handle) {
        // SAFETY: made by `create_event`, destroyed once; the driver waits for what is under way.
        let _ = unsafe { sys::cuEventDestroy_v2(event.0.cast()) };
    }

    fn record_event(&self, event: Handle, stream: Handle) -> Result<(), GpuError> {
        // SAFETY: the event lives, the stream is the caller's.
        unsafe { sys::cuEventRecord(event.0.cast(), stream.0.cast()) }
            .result()
            .map_err(error("cuEventRecord"))
    }

    fn wait_event(&self, event: Handle) -> Result<(), GpuError> {
        // SAFETY: the event lives.
        unsafe { sys::cuEventSynchronize(event.0.cast()) }.result().map_err(error("cuEventSynchronize"))
    }

    fn hold_stream(&self, stream: Handle, event: Handle) -> Result<(), GpuError> {
        // SAFETY: the event lives, the stream is the caller's.
        unsafe { sys::cuStreamWaitEvent(stream.0.cast(), event.0.cast(), 0) }
            .result()
            .map_err(error("cuStreamWaitEvent"))
    }

    fn seconds_between(&self, from: Handle, to: Handle) -> Result<f64, GpuError> {
        let mut ms = 0f32;
        // SAFETY: both events live and have been passed; the number is written to a local.
        unsafe { sys::cuEventElapsedTime_v2(&mut ms, from.0.cast(), to.0.cast()) }
            .result()
            .map_err(error("cuEventElapsedTime"))?;
        Ok(f64::from(ms) / 1e3)
    }

    unsafe fn hold_for_word(&self, address: u64) -> Result<(), GpuError> {
        let equal = sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_EQ as u32;
        // SAFETY: the caller's promise.
        unsafe { sys::cuStreamWaitValue32_v2(self.stream, address, 1, equal) }
            .result()
            .map_err(error("cuStreamWaitValue32"))
    }

    fn begin_recording(&self) -> Result<(), GpuError> {
        // Other threads of the process may do as they like: what is recorded allocates nothing.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream lives as long as this value.
        unsafe { sys::cuStreamBeginCapture_v2(self.stream, mode) }
            .result()
            .map_err(error("cuStreamBeginCapture"))
    }

    fn end_recording(&self) -> Result<Handle, GpuError> {
        let mut graph = null_mut();
        // SAFETY: the stream lives as long as this value; the handle is written to a local.
        unsafe { sys::cuStreamEndCapture(self.stream, &mut graph) }
            .result()
            .map_err(error("cuStreamEndCapture"))?;
        Ok(Handle(graph.cast()))
    }

    fn last_node(&self) -> Result<Handle, GpuError> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let mut nodes: *const sys::CUgraphNode = null();
        // Asked for as well: without it launches that may overlap are an error here.
        let mut edges: *const sys::CUgraphEdgeData = null();
        let mut count = 0usize;
        // SAFETY: the stream lives as long as this value, results are written to locals; what is not asked for is null.
        unsafe {
            sys::cuStreamGetCaptureInfo_v3(
                self.stream,
                &mut status,
                null_mut(),
                null_mut(),
                &mut nodes,
                &mut edges,
                &mut count,
            )
        }
        .result()
        .map_err(error("cuStreamGetCaptureInfo"))?;
        if count != 1 || nodes.is_null() {
            return Err(GpuError::Driver {
                call: "cuStreamGetCaptureInfo",
                what: format!("a launch was recorded as {count} nodes"),
            });
        }
        // SAFETY: the driver says that there is one; it stays valid until the next call on the stream.
        Ok(Handle(unsafe { *nodes }.cast()))
    }

    fn instantiate(&self, graph: Handle) -> Result<Handle, GpuError> {
        let mut executable = null_mut();
        // SAFETY: the graph was recorded; the handle is written to a local.
        unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph.0.cast(), 0) }
            .result()
            .map_err(error("cuGraphInstantiate"))?;
        // SAFETY: the executable was just made.
        let there = unsafe { sys::cuGraphUpload(executable, self.stream) }.result();
        if let Err(e) = there {
            // SAFETY: the executable was just made, and no handle of it leaves this function before it is destroyed.
            let _ = unsafe { sys::cuGraphExecDestroy(executable) };
            return Err(error("cuGraphUpload")(e));
        }
        Ok(Handle(executable.cast()))
    }

    fn launch_graph(&self, executable: Handle) -> Result<(), GpuError> {
        // SAFETY: the executable lives; its addresses are its holder's affair.
        unsafe { sys::cuGraphLaunch(executable.0.cast(), self.stream) }
            .result()
            .map_err(error("cuGraphLaunch"))
    }

    unsafe fn set_arguments(
        &self,
        executable: Handle,
        node: Handle,
        function: Handle,
        grid: Grid,
        arguments: *mut *mut c_void,
    ) -> Result<(), GpuError> {
        let parameters = sys::CUDA_KERNEL_NODE_PARAMS {
            func: function.0.cast(),
            gridDimX: grid.blocks[0],
            gridDimY: grid.blocks[1],
            gridDimZ: grid.blocks[2],
            blockDimX: grid.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: grid.shared,
            kernelParams: arguments,
            extra: null_mut(),
            kern: null_mut(),
            ctx: null_mut(),
        };
        let executable = executable.0.cast();
        // SAFETY: the caller's promise.
        unsafe { sys::cuGraphExecKernelNodeSetParams_v2(executable, node.0.cast(), &parameters) }
            .result()
            .map_err(error("cuGraphExecKernelNodeSetParams"))
    }

    fn destroy_graph(&self, graph: Handle, executable: Handle) {
        // SAFETY: made by the driver, destroyed once; it waits for launches under way.
        unsafe {
            if !executable.is_null() {
                let _ = sys::cuGraphExecDestroy(executable.0.cast());
            }
            let _ = sys::cuGraphDestroy(graph.0.cast());
        }
    }
}
