//! The CUDA driver as `gpu_runtime::Driver`: one device, its primary context, one stream, stream-ordered memory.

mod launch;
mod shared;

use std::ffi::{CString, c_void};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::{result, sys};
use gpu_codegen::Target;
use gpu_runtime::{Arguments, Candidate, Driver, GpuError, Grid, HostMemory, Module, Recorder, Recording};
use kernel_ir::{Program, Step};
use plugin_sdk::dlpack::DL_CUDA;
use plugin_sdk::{DeviceId, Stream};
use rayon::prelude::*;

use crate::answer_cache::SharedCache;
use crate::cache::Cache;
use crate::device_properties::DeviceProperties;
use crate::events::{self, Event};
use crate::graph::{self, Node};
use crate::nvrtc;
use crate::staging::{SMALL, Staging};
use crate::tensor_map;
use crate::vendor::{StreamContext, Vendor};

/// Parameters of a launch that need no allocation.
const FEW: usize = 48;

/// An open CUDA device.
pub struct Device {
    ordinal: i32,
    properties: DeviceProperties,
    context: sys::CUcontext,
    stream: sys::CUstream,
    cache: SharedCache,
    staging: Mutex<Option<Staging>>,
    vendor: Arc<Vendor>,
    /// Nodes of the launches so far, while a graph is recorded.
    recorder: Recorder<Node>,
    /// Whether a kernel's blocks may be placed while the kernel before still runs; kernels wait themselves.
    overlap: AtomicBool,
    /// Why the device does not answer any more.
    lost: OnceLock<(&'static str, String)>,
}

// SAFETY: contexts and streams may be used from any thread that has made the context current, which every call does.
unsafe impl Send for Device {}
// SAFETY: as above; the driver serializes what it must.
unsafe impl Sync for Device {}

/// A kernel of a module that is never unloaded, loaded when it is first used.
pub struct Function {
    code: Arc<Code>,
    entry: CString,
    handle: OnceLock<Handle>,
}

/// A handle of the driver's, valid in every thread with the context.
#[derive(Clone, Copy)]
struct Handle(sys::CUfunction);

// SAFETY: as it says.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// Machine code.
struct Code {
    bytes: Vec<u8>,
    /// Shared memory that one block may have at most.
    shared: i32,
    module: OnceLock<LoadedModule>,
}

#[derive(Clone, Copy)]
struct LoadedModule(sys::CUmodule);

// SAFETY: a handle of the driver's, valid in every thread with the context.
unsafe impl Send for LoadedModule {}
// SAFETY: as above.
unsafe impl Sync for LoadedModule {}

impl Code {
    /// Loads the code where that has not happened; the context is current.
    fn module(&self) -> Result<sys::CUmodule, GpuError> {
        if let Some(module) = self.module.get() {
            return Ok(module.0);
        }
        let _span = tracing::debug_span!(target: "kernel", "load machine code").entered();
        // SAFETY: the code is a whole cubin, made for this device. Two threads may both load it: one module is kept, and
        // neither is unloaded.
        let module = unsafe { result::module::load_data(self.bytes.as_ptr().cast::<c_void>()) }
            .map_err(error("cuModuleLoadData"))?;
        Ok(self.module.get_or_init(|| LoadedModule(module)).0)
    }
}

impl Function {
    /// The driver's handle; the context is current.
    pub(crate) fn handle(&self) -> Result<sys::CUfunction, GpuError> {
        if let Some(handle) = self.handle.get() {
            return Ok(handle.0);
        }
        let module = self.code.module()?;
        // SAFETY: the module is loaded and never unloaded.
        let function = unsafe { result::module::get_function(module, self.entry.clone()) }
            .map_err(error("cuModuleGetFunction"))?;
        allow_shared(function, self.code.shared)?;
        Ok(self.handle.get_or_init(|| Handle(function)).0)
    }
}

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

/// Lends pointers to arguments, as the driver wants them; nothing is allocated for kernels of the usual size without
/// tensor maps.
///
/// # Errors
/// A tensor map that the driver refuses; `body` was not called then.
pub(crate) fn with_pointers<T>(
    arguments: Arguments<'_>,
    body: impl FnOnce(*mut *mut c_void) -> T,
) -> Result<T, GpuError> {
    let maps = arguments.maps.iter().map(|map| tensor_map::encode(map, arguments.start(map)));
    let maps = maps.collect::<Result<Vec<sys::CUtensorMap>, GpuError>>()?;
    let words = arguments.words;
    let pointer = |a: &u64| std::ptr::from_ref(a).cast_mut().cast::<c_void>();
    let mut few = [std::ptr::null_mut::<c_void>(); FEW];
    let mut many = Vec::new();
    let pointers = if words.len() <= FEW {
        &mut few[..words.len()]
    } else {
        many.resize(words.len(), std::ptr::null_mut());
        &mut many[..]
    };
    pointers.iter_mut().zip(words).for_each(|(p, a)| *p = pointer(a));
    for (map, encoded) in arguments.maps.iter().zip(&maps) {
        pointers[map.param] = std::ptr::from_ref(encoded).cast_mut().cast::<c_void>();
    }
    Ok(body(pointers.as_mut_ptr()))
}

/// An error of the driver's, by what the user can do.
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

impl Device {
    /// Opens a device: its primary context (shared with everything else in the process) and a stream.
    pub(crate) fn open(ordinal: i32) -> Result<Device, GpuError> {
        let _span = tracing::debug_span!(target: "kernel", "open the device").entered();
        let properties = DeviceProperties::of(ordinal)?;
        // Said before anything is done; the library is loaded when something has to be compiled.
        nvrtc::identity()?;
        // SAFETY: the device was given by the driver; the context is kept for the life of the process.
        let context = unsafe { result::primary_ctx::retain(properties.device) }
            .map_err(error("cuDevicePrimaryCtxRetain"))?;
        // SAFETY: the context was just retained.
        unsafe { result::ctx::set_current(context) }.map_err(error("cuCtxSetCurrent"))?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(error("cuStreamCreate"))?;
        let cache = Arc::new(Mutex::new(Cache::usual()));
        let stream_context = StreamContext::new(context, stream);
        let opened = Device {
            ordinal,
            vendor: Arc::new(Vendor::new(stream_context, properties.identity(), Arc::clone(&cache))),
            properties,
            context,
            stream,
            cache,
            staging: Mutex::default(),
            recorder: Recorder::default(),
            overlap: AtomicBool::new(false),
            lost: OnceLock::new(),
        };
        opened.keep_freed_memory()?;
        Ok(opened)
    }

    /// Takes back a device that was lost: everything on it is gone, and so it may be opened anew.
    pub(crate) fn reset(ordinal: i32) -> Result<(), GpuError> {
        let device = result::device::get(ordinal).map_err(error("cuDeviceGet"))?;
        // SAFETY: the device was given by the driver. Whoever still holds something of it is told that it is lost.
        unsafe { sys::cuDevicePrimaryCtxReset_v2(device) }.result().map_err(error("cuDevicePrimaryCtxReset"))
    }

    /// NVIDIA's libraries on this device.
    pub(crate) fn vendor(&self) -> &Arc<Vendor> {
        &self.vendor
    }

    /// Where compiled code is kept from now on.
    pub(crate) fn keep_code_in(&self, cache: Cache) {
        *locked(&self.cache) = cache;
    }

    fn pool(&self) -> Result<sys::CUmemoryPool, GpuError> {
        // SAFETY: the device was given by the driver.
        unsafe { result::device::get_default_mem_pool(self.properties.device) }
            .map_err(error("cuDeviceGetDefaultMemPool"))
    }

    /// What is freed stays with the process, so that memory is had quickly where the runtime's own pool is empty.
    fn keep_freed_memory(&self) -> Result<(), GpuError> {
        let mut all = u64::MAX;
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the pool belongs to the device; the attribute takes 64 bits.
        unsafe {
            result::mem_pool::set_attribute(self.pool()?, threshold, (&raw mut all).cast::<c_void>())
                .map_err(error("cuMemPoolSetAttribute"))
        }
    }

    /// Makes the context current in this thread. A device that is lost says so before anything is tried.
    pub(crate) fn enter(&self) -> Result<(), GpuError> {
        if let Some((call, what)) = self.lost.get() {
            return Err(GpuError::Lost { call, what: what.clone() });
        }
        // SAFETY: the context is retained for the life of the process.
        unsafe { result::ctx::set_current(self.context) }.map_err(error("cuCtxSetCurrent"))
    }

    /// Remembers that the device is lost.
    fn note<T>(&self, outcome: Result<T, GpuError>) -> Result<T, GpuError> {
        if let Err(GpuError::Lost { call, what }) = &outcome {
            let _ = self.lost.set((call, what.clone()));
        }
        outcome
    }

    /// Machine code of a module, from the cache or compiled.
    fn code(&self, module: &Module, compiler: &str, cache: &Cache) -> Result<(Vec<u8>, bool), GpuError> {
        let text = [module.prelude.as_bytes(), module.kernels.as_bytes()];
        let key = [text[0], text[1], self.properties.architecture.as_bytes(), compiler.as_bytes()];
        if let Some(code) = cache.get(&key) {
            return Ok((code, false));
        }
        let code = nvrtc::compile(module, &self.properties.architecture)?;
        cache.put(&key, &code);
        Ok((code, true))
    }

    /// The pinned memory; made when it is first used.
    fn staged<T>(&self, body: impl FnOnce(&mut Staging) -> Result<T, GpuError>) -> Result<T, GpuError> {
        let mut staging = locked(&self.staging);
        if staging.is_none() {
            *staging = Some(Staging::new()?);
        }
        staging.as_mut().map_or_else(|| Err(GpuError::Malformed("no pinned memory".into())), body)
    }

    /// Records work as a graph.
    fn captured(
        &self,
        work: &mut dyn FnMut() -> Result<(), GpuError>,
    ) -> Result<Box<dyn Recording<Function>>, GpuError> {
        graph::begin(self.stream)?;
        let (done, nodes) = self.recorder.during(work);
        // Recording ends whatever happened.
        let ended = graph::end(self.stream);
        done?;
        Ok(Box::new(graph::Graph::new(self.context, self.stream, ended?, nodes)?))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these is replaced whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver for Device {
    type Function = Function;

    fn compile(&self, modules: &[Module]) -> Result<Vec<Vec<Function>>, GpuError> {
        let started = std::time::Instant::now();
        let cache = locked(&self.cache).clone();
        let compiler = nvrtc::identity()?;
        let codes: Vec<(Vec<u8>, bool)> =
            modules.par_iter().map(|m| self.code(m, &compiler, &cache)).collect::<Result<_, _>>()?;
        let fresh = codes.iter().filter(|c| c.1).count();
        tracing::debug!(target: "kernel", modules = modules.len(), compiled = fresh, time = ?started.elapsed(), "machine code");
        if fresh > 0 {
            cache.tidy();
        }
        let functions = |((bytes, _), module): ((Vec<u8>, bool), &Module)| {
            let shared = self.properties.target.lds as i32;
            let code = Arc::new(Code { bytes, shared, module: OnceLock::new() });
            let function = |entry: &String| {
                let entry = CString::new(entry.as_str()).map_err(|e| GpuError::Malformed(e.to_string()))?;
                Ok(Function { code: Arc::clone(&code), entry, handle: OnceLock::new() })
            };
            module.entries.iter().map(function).collect()
        };
        codes.into_iter().zip(modules).map(functions).collect()
    }

    fn allocate(&self, bytes: u64) -> Result<u64, GpuError> {
        self.enter()?;
        // SAFETY: the stream lives as long as this value.
        let made = unsafe { result::malloc_async(self.stream, bytes as usize) };
        self.note(made.map_err(error("cuMemAllocAsync"))).map_err(|e| match e {
            GpuError::OutOfMemory { free, total, .. } => GpuError::OutOfMemory { bytes, free, total },
            other => other,
        })
    }

    fn free(&self, address: u64) {
        if self.enter().is_ok() {
            // SAFETY: allocated on this stream and freed once; what was started before runs first.
            let _ = unsafe { result::free_async(address, self.stream) };
        }
    }

    fn allocate_shared(&self, bytes: usize) -> Result<HostMemory, GpuError> {
        self.enter()?;
        self.note(shared::allocate(bytes))
    }

    fn free_shared(&self, memory: HostMemory) {
        if self.enter().is_ok() {
            shared::free(memory);
        }
    }

    unsafe fn upload(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), GpuError> {
        self.enter()?;
        if bytes > SMALL {
            // SAFETY: the caller's promise.
            return self.note(self.staged(|s| unsafe { s.upload(self.stream, to, from, bytes) }));
        }
        // SAFETY: the caller's promise. So little pageable memory is copied by the driver before the call returns.
        let done = unsafe {
            let source = std::slice::from_raw_parts(from, bytes);
            result::memcpy_htod_async(to, source, self.stream)
        };
        self.note(done.map_err(error("cuMemcpyHtoDAsync")))
    }

    unsafe fn download(&self, to: *mut u8, from: u64, bytes: usize) -> Result<(), GpuError> {
        self.enter()?;
        if bytes > SMALL {
            // SAFETY: the caller's promise.
            return self.note(self.staged(|s| unsafe { s.download(self.stream, to, from, bytes) }));
        }
        // SAFETY: the caller's promise; the copy has ended when the stream is synchronized.
        let done = unsafe {
            let target = std::slice::from_raw_parts_mut(to, bytes);
            result::memcpy_dtoh_async(target, from, self.stream)
        };
        self.note(done.map_err(error("cuMemcpyDtoHAsync")))?;
        self.synchronize()
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), GpuError> {
        self.enter()?;
        // SAFETY: the caller's promise.
        let done = unsafe { result::memcpy_dtod_async(to, from, bytes as usize, self.stream) };
        self.note(done.map_err(error("cuMemcpyDtoDAsync")))
    }

    unsafe fn fill(&self, to: u64, word: u32, words: u64) -> Result<(), GpuError> {
        self.enter()?;
        // SAFETY: the caller's promise.
        let done = unsafe { sys::cuMemsetD32Async(to, word, words as usize, self.stream) };
        self.note(done.result().map_err(error("cuMemsetD32Async")))
    }

    unsafe fn launch(
        &self,
        function: &Function,
        grid: Grid,
        arguments: Arguments<'_>,
    ) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(function, grid, arguments, false) }
    }

    unsafe fn launch_overlapped(
        &self,
        function: &Function,
        grid: Grid,
        arguments: Arguments<'_>,
    ) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(function, grid, arguments, self.overlaps()) }
    }

    fn record(
        &self,
        work: &mut dyn FnMut() -> Result<(), GpuError>,
    ) -> Result<Option<Box<dyn Recording<Function>>>, GpuError> {
        self.enter()?;
        self.note(self.captured(work)).map(Some)
    }

    fn timed(
        &self,
        pieces: usize,
        run: &mut dyn FnMut(usize) -> Result<(), GpuError>,
    ) -> Result<Vec<f64>, GpuError> {
        self.enter()?;
        self.note(events::timed(self.stream, pieces, run))
    }

    fn trim(&self) {
        let _ = self.synchronize();
        if let Ok(pool) = self.pool() {
            // SAFETY: the pool belongs to the device.
            let _ = unsafe { sys::cuMemPoolTrimTo(pool, 0) };
        }
    }

    fn identity(&self) -> String {
        let mut version = 0;
        // SAFETY: the number is written to a local; one that is not told is 0.
        let _ = unsafe { sys::cuDriverGetVersion(&mut version) };
        let compiler = nvrtc::identity().unwrap_or_default();
        let libraries = crate::vendor::versions();
        format!("{} driver {version} {compiler} {libraries}", self.properties.identity())
    }

    fn load_cached(&self, key: &str) -> Option<String> {
        let cache = locked(&self.cache).clone();
        String::from_utf8(cache.get(&[b"choice", key.as_bytes()])?).ok()
    }

    fn store_cached(&self, key: &str, value: &str) {
        let cache = locked(&self.cache).clone();
        cache.put(&[b"choice", key.as_bytes()], value.as_bytes());
    }

    fn library(&self, program: &Program, step: &Step, target: &Target) -> Vec<Candidate> {
        self.vendor.candidates(program, step, target)
    }

    fn target(&self) -> Target {
        self.properties.target.clone()
    }

    fn synchronize(&self) -> Result<(), GpuError> {
        self.enter()?;
        // SAFETY: the stream lives as long as this value.
        let done = unsafe { result::stream::synchronize(self.stream) };
        self.note(done.map_err(error("cuStreamSynchronize")))
    }

    fn device(&self) -> DeviceId {
        DeviceId { device_type: DL_CUDA, device_id: self.ordinal }
    }

    fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    fn stream(&self) -> Stream {
        Stream(self.stream.cast())
    }

    fn after(&self, other: Stream) -> Result<(), GpuError> {
        self.enter()?;
        let mark = Event::new(false)?;
        mark.record(other.0.cast())?;
        self.note(mark.hold(self.stream))
    }

    fn before(&self, other: Stream) -> Result<(), GpuError> {
        self.enter()?;
        let mark = Event::new(false)?;
        mark.record(self.stream)?;
        self.note(mark.hold(other.0.cast()))
    }
}
