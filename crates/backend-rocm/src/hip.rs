//! The calls of the HIP runtime, as `gpu_runtime::Device` wants them: one device, one stream, memory in stream order where the
//! runtime has pools. Not here: how they are put together (`gpu-runtime`), what is beside the runtime (`backend`).

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr::{NonNull, null, null_mut};

use gpu_runtime::{Calls, GpuError, Grid, Handle, HostMemory, Map};

use crate::api::{Api, KernelNode, Opaque};
use crate::device_properties::DeviceProperties;
use crate::vendor::{Libraries, StreamContext};

/// `hipMemcpyKind`.
const TO_DEVICE: c_int = 1;
const TO_HOST: c_int = 2;
const WITHIN: c_int = 3;
/// `hipStreamNonBlocking`.
const NON_BLOCKING: c_uint = 1;
/// `hipEventDisableTiming`.
const UNTIMED: c_uint = 2;
/// `hipHostMallocMapped`, with which the runtime shows kernels' writes to the host.
const MAPPED: c_uint = 2;
/// `hipHostMallocCoherent`: what a kernel wrote is there when it has ended, without a copy.
const COHERENT: c_uint = 0x4000_0000;
/// `hipStreamCaptureModeRelaxed`.
const RELAXED: c_int = 2;
/// `hipStreamWaitValueEq`.
const EQUAL: c_uint = 1;
/// `hipMemPoolAttrReleaseThreshold`.
const RELEASE_THRESHOLD: c_int = 4;

/// Bytes of shared memory that every block may have; for more the runtime is asked.
const UNASKED: u32 = 64 << 10;
/// `HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES`: what a kernel declares itself.
const DECLARED: c_int = 1;
/// `hipFuncAttributeMaxDynamicSharedMemorySize`.
const MOST_SHARED: c_int = 8;

/// A ROCm device with a stream.
pub struct Hip {
    pub(crate) context: StreamContext,
    pub(crate) device: DeviceProperties,
    /// By the compiler's name.
    pub(crate) architecture: String,
    pub(crate) libraries: Libraries,
}

impl Hip {
    /// Opens a device: makes a stream, and what is freed stays with the process, so that memory is had quickly where the
    /// runtime's own pool is empty.
    pub(crate) fn new(api: &'static Api, ordinal: i32, device: DeviceProperties) -> Result<Hip, GpuError> {
        let mut stream = null_mut();
        // SAFETY: the device is there; the handle is written to a local.
        unsafe {
            api.done("hipSetDevice", (api.runtime.set_device)(ordinal))?;
            api.done("hipStreamCreateWithFlags", (api.runtime.stream_create)(&mut stream, NON_BLOCKING))?;
        }
        let architecture = device.properties.base().to_owned();
        let pool = Handle(pool(api, ordinal).unwrap_or(null_mut()));
        let context = StreamContext { api, ordinal, stream: Handle(stream), pool };
        let libraries = Libraries::new(context, architecture.clone());
        Ok(Hip { context, device, architecture, libraries })
    }
}

/// Lets a kernel have as much shared memory as a block may have. Runtimes that take no kernel of a module here need not be asked
/// or say so at the launch.
fn allow_shared(api: &Api, function: Opaque, most: u32) {
    let (Some(attribute), Some(set)) = (api.runtime.function_attribute, api.runtime.function_set) else {
        return;
    };
    let mut declared = 0;
    // SAFETY: the function is of a loaded module; the number is written to a local.
    let done = unsafe {
        api.done("hipFuncGetAttribute", attribute(&mut declared, DECLARED, function)).and_then(|()| {
            let dynamic = i32::try_from(most).unwrap_or(i32::MAX).saturating_sub(declared).max(0);
            api.done("hipFuncSetAttribute", set(function, MOST_SHARED, dynamic))
        })
    };
    if let Err(e) = done {
        tracing::debug!(target: "kernel", "more than {UNASKED} bytes of shared memory: {e}");
    }
}

/// The device's pool, where it has one.
fn pool(api: &Api, ordinal: i32) -> Option<Opaque> {
    let runtime = &api.runtime;
    let (find, set) = (runtime.default_pool?, runtime.pool_set?);
    runtime.malloc_async.and(runtime.free_async)?;
    let (mut pool, mut all) = (null_mut(), u64::MAX);
    // SAFETY: the handle is written to a local, the attribute takes 64 bits.
    unsafe {
        api.done("hipDeviceGetDefaultMemPool", find(&mut pool, ordinal)).ok()?;
        api.done("hipMemPoolSetAttribute", set(pool, RELEASE_THRESHOLD, (&raw mut all).cast::<c_void>()))
            .ok()?;
    }
    Some(pool)
}

impl Calls for Hip {
    /// There are none.
    type TensorMap = u64;
    // The runtime may read pageable memory after the call has returned.
    const PAGEABLE: usize = 0;

    fn enter(&self) -> Result<(), GpuError> {
        self.context.enter()
    }

    fn stream(&self) -> Handle {
        self.context.stream
    }

    fn synchronize(&self) -> Result<(), GpuError> {
        // SAFETY: the stream lives as long as this value.
        let done = unsafe { (self.context.api.runtime.stream_synchronize)(self.context.stream.0) };
        self.context.api.done("hipStreamSynchronize", done)
    }

    unsafe fn load(&self, code: &[u8]) -> Result<Handle, GpuError> {
        let mut module = null_mut();
        // SAFETY: the caller's promise; the handle is written to a local.
        let done = unsafe { (self.context.api.runtime.module_load)(&mut module, code.as_ptr().cast()) };
        self.context.api.done("hipModuleLoadData", done).map(|()| Handle(module))
    }

    unsafe fn function(&self, module: Handle, entry: &CStr) -> Result<Handle, GpuError> {
        let mut function = null_mut();
        // SAFETY: the caller's promise; the handle is written to a local.
        let done =
            unsafe { (self.context.api.runtime.module_function)(&mut function, module.0, entry.as_ptr()) };
        self.context.api.done("hipModuleGetFunction", done)?;
        if self.device.target.lds > UNASKED {
            allow_shared(self.context.api, function, self.device.target.lds);
        }
        Ok(Handle(function))
    }

    unsafe fn launch(
        &self,
        function: Handle,
        grid: Grid,
        arguments: *mut *mut c_void,
        _early: bool,
    ) -> Result<(), GpuError> {
        let ([x, y, z], Grid { threads, shared, .. }) = (grid.blocks, grid);
        let stream = self.context.stream.0;
        // SAFETY: the caller's promise.
        let done = unsafe {
            let launch = self.context.api.runtime.module_launch;
            launch(function.0, x, y, z, threads, 1, 1, shared, stream, arguments, null_mut())
        };
        self.context.api.done("hipModuleLaunchKernel", done)
    }

    fn encode(&self, _map: &Map, _address: u64) -> Result<u64, GpuError> {
        Err(GpuError::Malformed("a tensor map for a device without a tensor memory accelerator".into()))
    }

    fn allocate(&self, bytes: u64) -> Result<u64, GpuError> {
        self.context.allocate(bytes)
    }

    fn free(&self, address: u64) {
        let runtime = &self.context.api.runtime;
        // SAFETY: made by `allocate` in the same way and freed once. What was started before runs first; without a pool the runtime
        // waits for it.
        let _ = unsafe {
            match runtime.free_async.filter(|_| !self.context.pool.is_null()) {
                Some(free) => free(address as Opaque, self.context.stream.0),
                None => (runtime.free)(address as Opaque),
            }
        };
    }

    fn trim(&self) {
        if let Some(trim) = self.context.api.runtime.pool_trim.filter(|_| !self.context.pool.is_null()) {
            // SAFETY: the pool is the device's.
            let _ = unsafe { trim(self.context.pool.0, 0) };
        }
    }

    fn allocate_pinned(&self, bytes: usize, mapped: bool) -> Result<HostMemory, GpuError> {
        let (runtime, mut host) = (&self.context.api.runtime, null_mut());
        let flags = if mapped { MAPPED | COHERENT } else { 0 };
        // SAFETY: the address is written to a local.
        self.context.api.done("hipHostMalloc", unsafe { (runtime.host_malloc)(&mut host, bytes, flags) })?;
        let Some(host) = NonNull::new(host.cast::<u8>()) else {
            return Err(GpuError::Malformed("page-locked memory at no address".into()));
        };
        let mut device = null_mut();
        if mapped {
            // SAFETY: the memory was allocated for this, and the address is written to a local.
            let told = unsafe { (runtime.host_pointer)(&mut device, host.as_ptr().cast(), 0) };
            self.context.api.done("hipHostGetDevicePointer", told).inspect_err(|_| self.free_pinned(host))?;
        }
        Ok(HostMemory { host, device: device as u64 })
    }

    fn free_pinned(&self, host: NonNull<u8>) {
        // SAFETY: made by `allocate_pinned`, and freed once, by its owner; the runtime waits for the device.
        let _ = unsafe { (self.context.api.runtime.host_free)(host.as_ptr().cast()) };
    }

    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        let done = unsafe {
            (self.context.api.runtime.memcpy)(
                to as Opaque,
                from.cast(),
                bytes,
                TO_DEVICE,
                self.context.stream.0,
            )
        };
        self.context.api.done("hipMemcpyAsync", done)
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize) -> Result<(), GpuError> {
        let from = from as *const c_void;
        // SAFETY: the caller's promise.
        let done = unsafe {
            (self.context.api.runtime.memcpy)(to.cast(), from, bytes, TO_HOST, self.context.stream.0)
        };
        self.context.api.done("hipMemcpyAsync", done)
    }

    unsafe fn copy_within(&self, to: u64, from: u64, bytes: u64) -> Result<(), GpuError> {
        let (to, from) = (to as Opaque, from as *const c_void);
        // SAFETY: the caller's promise.
        let done = unsafe {
            (self.context.api.runtime.memcpy)(to, from, bytes as usize, WITHIN, self.context.stream.0)
        };
        self.context.api.done("hipMemcpyAsync", done)
    }

    unsafe fn fill(&self, to: u64, word: u32, words: u64) -> Result<(), GpuError> {
        let (to, word, stream) = (to as Opaque, word as c_int, self.context.stream.0);
        // SAFETY: the caller's promise.
        let done = unsafe { (self.context.api.runtime.memset_words)(to, word, words as usize, stream) };
        self.context.api.done("hipMemsetD32Async", done)
    }

    fn create_event(&self, timed: bool) -> Result<Handle, GpuError> {
        let mut event = null_mut();
        let flags = if timed { 0 } else { UNTIMED };
        // SAFETY: the handle is written to a local.
        let done = unsafe { (self.context.api.runtime.event_create)(&mut event, flags) };
        self.context.api.done("hipEventCreateWithFlags", done).map(|()| Handle(event))
    }

    fn destroy_event(&self, event: Handle) {
        // SAFETY: made by `create_event`, destroyed once; the runtime waits for what is under way.
        let _ = unsafe { (self.context.api.runtime.event_destroy)(event.0) };
    }

    fn record_event(&self, event: Handle, stream: Handle) -> Result<(), GpuError> {
        // SAFETY: the event lives, the stream is the caller's.
        self.context
            .api
            .done("hipEventRecord", unsafe { (self.context.api.runtime.event_record)(event.0, stream.0) })
    }

    fn wait_event(&self, event: Handle) -> Result<(), GpuError> {
        // SAFETY: the event lives.
        self.context
            .api
            .done("hipEventSynchronize", unsafe { (self.context.api.runtime.event_synchronize)(event.0) })
    }

    fn hold_stream(&self, stream: Handle, event: Handle) -> Result<(), GpuError> {
        // SAFETY: the event lives, the stream is the caller's.
        let done = unsafe { (self.context.api.runtime.stream_wait_event)(stream.0, event.0, 0) };
        self.context.api.done("hipStreamWaitEvent", done)
    }

    fn seconds_between(&self, from: Handle, to: Handle) -> Result<f64, GpuError> {
        let mut ms = 0f32;
        // SAFETY: both events live and have been passed; the number is written to a local.
        let told = unsafe { (self.context.api.runtime.event_elapsed)(&mut ms, from.0, to.0) };
        self.context.api.done("hipEventElapsedTime", told).map(|()| f64::from(ms) / 1e3)
    }

    unsafe fn hold_for_word(&self, address: u64) -> Result<(), GpuError> {
        let wait =
            self.context.api.runtime.stream_wait_value.ok_or_else(|| Api::absent("hipStreamWaitValue32"))?;
        // SAFETY: the caller's promise.
        let done = unsafe { wait(self.context.stream.0, address as Opaque, 1, EQUAL, u32::MAX) };
        self.context.api.done("hipStreamWaitValue32", done)
    }

    fn begin_recording(&self) -> Result<(), GpuError> {
        // SAFETY: the stream lives as long as this value.
        let done = unsafe { (self.context.api.runtime.begin_capture)(self.context.stream.0, RELAXED) };
        self.context.api.done("hipStreamBeginCapture", done)
    }

    fn end_recording(&self) -> Result<Handle, GpuError> {
        let mut graph = null_mut();
        // SAFETY: the stream lives as long as this value; the handle is written to a local.
        let done = unsafe { (self.context.api.runtime.end_capture)(self.context.stream.0, &mut graph) };
        self.context.api.done("hipStreamEndCapture", done).map(|()| Handle(graph))
    }

    fn last_node(&self) -> Result<Handle, GpuError> {
        let (mut status, mut nodes, mut count) = (0, null(), 0);
        // SAFETY: the stream lives as long as this value, results are written to locals; what is not asked for is null.
        let told = unsafe {
            let ask = self.context.api.runtime.capture_info;
            ask(self.context.stream.0, &mut status, null_mut(), null_mut(), &mut nodes, &mut count)
        };
        self.context.api.done("hipStreamGetCaptureInfo_v2", told)?;
        if count != 1 || nodes.is_null() {
            let what = format!("a launch was recorded as {count} nodes");
            return Err(GpuError::Driver { call: "hipStreamGetCaptureInfo_v2", what });
        }
        // SAFETY: the runtime says that there is one; it stays valid until the next call on the stream.
        Ok(Handle(unsafe { *nodes }))
    }

    fn instantiate(&self, graph: Handle) -> Result<Handle, GpuError> {
        let mut executable = null_mut();
        // SAFETY: the graph was recorded; the handle is written to a local, and no log is asked for.
        let done = unsafe {
            (self.context.api.runtime.graph_instantiate)(&mut executable, graph.0, null_mut(), null_mut(), 0)
        };
        self.context.api.done("hipGraphInstantiate", done).map(|()| Handle(executable))
    }

    fn launch_graph(&self, executable: Handle) -> Result<(), GpuError> {
        // SAFETY: the executable lives; its addresses are its holder's affair.
        let done = unsafe { (self.context.api.runtime.graph_launch)(executable.0, self.context.stream.0) };
        self.context.api.done("hipGraphLaunch", done)
    }

    unsafe fn set_arguments(
        &self,
        executable: Handle,
        node: Handle,
        function: Handle,
        grid: Grid,
        arguments: *mut *mut c_void,
    ) -> Result<(), GpuError> {
        let parameters = KernelNode {
            block: [grid.threads, 1, 1],
            extra: null_mut(),
            function: function.0,
            grid: grid.blocks,
            arguments,
            shared: grid.shared,
        };
        // SAFETY: the caller's promise.
        let done = unsafe { (self.context.api.runtime.graph_set_kernel)(executable.0, node.0, &parameters) };
        self.context.api.done("hipGraphExecKernelNodeSetParams", done)
    }

    fn destroy_graph(&self, graph: Handle, executable: Handle) {
        let runtime = &self.context.api.runtime;
        // SAFETY: made by the runtime, destroyed once; it waits for launches under way.
        unsafe {
            if !executable.is_null() {
                let _ = (runtime.graph_exec_destroy)(executable.0);
            }
            let _ = (runtime.graph_destroy)(graph.0);
        }
    }
}
