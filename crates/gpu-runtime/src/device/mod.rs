//! A vendor's device as [`Driver`]: one stream, machine code from the cache or compiled, copies through page-locked memory, graphs
//! and timings, all made of the [`Calls`] of the vendor's driver. What was lost stays lost until it is opened anew.
//!
//! Not here: the calls themselves, compilers and libraries, which are the vendor's ([`Vendor`]).

mod calls;
mod code;
mod events;
mod graph;
mod platform;
mod side;
mod staging;
mod vendor;

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use gpu_codegen::Target;
use kernel_ir::{Program, Step};
use plugin_sdk::{DeviceId, Stream};

pub use self::calls::{Calls, Handle};
pub use self::code::Function;
use self::events::Event;
use self::staging::Staging;
pub use self::vendor::Vendor;
use crate::{
    Arguments, Cache, Candidate, Driver, GpuError, Grid, HostMemory, Module, Recorder, Recording,
    SharedCache, SideStream, Timed,
};

/// Parameters of a launch that need no allocation.
const FEW: usize = 48;

/// An open device of a vendor.
pub struct Device<V: Vendor> {
    ordinal: i32,
    vendor: Arc<V>,
    cache: SharedCache,
    staging: Mutex<Option<Staging<V>>>,
    /// Nodes of the launches so far, while a graph is recorded.
    recorder: Recorder<Handle>,
    /// Whether a kernel's blocks may be placed while the kernel before still runs; kernels wait themselves.
    overlap: AtomicBool,
    /// Why the device does not answer any more.
    lost: OnceLock<(&'static str, String)>,
}

/// Lends pointers to arguments, as drivers want them; nothing is allocated for kernels of the usual size without tensor maps.
///
/// # Errors
/// A tensor map that the driver refuses; `body` was not called then.
fn with_pointers<V: Vendor, T>(
    vendor: &V,
    arguments: Arguments<'_>,
    body: impl FnOnce(*mut *mut c_void) -> T,
) -> Result<T, GpuError> {
    let maps = arguments.maps.iter().map(|map| vendor.encode(map, arguments.start(map)));
    let maps = maps.collect::<Result<Vec<V::TensorMap>, GpuError>>()?;
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

impl<V: Vendor> Device<V> {
    /// Opens a device.
    ///
    /// # Errors
    /// No such device, a library that is missing.
    pub fn open(ordinal: i32) -> Result<Device<V>, GpuError> {
        let _span = tracing::debug_span!(target: "kernel", "open the device").entered();
        let cache = Arc::new(Mutex::new(Cache::usual(V::NAME)));
        Ok(Device {
            ordinal,
            vendor: Arc::new(V::open(ordinal, &cache)?),
            cache,
            staging: Mutex::default(),
            recorder: Recorder::default(),
            overlap: AtomicBool::new(false),
            lost: OnceLock::new(),
        })
    }

    /// The vendor's side of it.
    pub fn vendor(&self) -> &Arc<V> {
        &self.vendor
    }

    /// Where compiled code is kept from now on.
    pub(crate) fn keep_code_in(&self, cache: Cache) {
        *locked(&self.cache) = cache;
    }

    /// Whether kernels that may begin before the previous one has ended do so from now on; without effect on devices that lack
    /// early launches.
    pub fn let_launches_overlap(&self, overlap: bool) {
        self.overlap.store(overlap && self.vendor.target().features.early_launch, Ordering::Relaxed);
    }

    /// Makes the device current in this thread. One that is lost says so before anything is tried.
    fn enter(&self) -> Result<&V, GpuError> {
        if let Some((call, what)) = self.lost.get() {
            return Err(GpuError::Lost { call, what: what.clone() });
        }
        self.vendor.enter()?;
        Ok(&self.vendor)
    }

    /// Remembers that the device is lost.
    fn note<T>(&self, outcome: Result<T, GpuError>) -> Result<T, GpuError> {
        if let Err(GpuError::Lost { call, what }) = &outcome {
            let _ = self.lost.set((call, what.clone()));
        }
        outcome
    }

    /// The page-locked memory; made when it is first used.
    fn staged<T>(&self, body: impl FnOnce(&mut Staging<V>) -> Result<T, GpuError>) -> Result<T, GpuError> {
        let mut staging = locked(&self.staging);
        if staging.is_none() {
            *staging = Some(Staging::new(&self.vendor)?);
        }
        staging.as_mut().map_or_else(|| Err(GpuError::Malformed("no page-locked memory".into())), body)
    }

    /// Records work as a graph.
    fn captured(
        &self,
        work: &mut dyn FnMut() -> Result<(), GpuError>,
    ) -> Result<Box<dyn Recording<Function>>, GpuError> {
        self.vendor.begin_recording()?;
        let (done, nodes) = self.recorder.during(work);
        // Recording ends whatever happened.
        let ended = self.vendor.end_recording();
        done?;
        Ok(Box::new(graph::Graph::new(&self.vendor, ended?, nodes)?))
    }

    /// Puts a kernel on the stream; `early`: its blocks may be placed while the kernel before still runs.
    ///
    /// # Safety
    /// As for [`Driver::launch`].
    unsafe fn enqueue(
        &self,
        function: &Function,
        grid: Grid,
        arguments: Arguments<'_>,
        early: bool,
    ) -> Result<(), GpuError> {
        let vendor = self.enter()?;
        let handle = self.note(function.handle(vendor))?;
        // SAFETY: the caller's promise; the driver copies the arguments before it returns.
        let done = with_pointers(vendor, arguments, |pointers| unsafe {
            vendor.launch(handle, grid, pointers, early)
        })?;
        self.note(done)?;
        if self.recorder.is_on() {
            self.recorder.note(vendor.last_node()?);
        }
        Ok(())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these is replaced whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<V: Vendor> Driver for Device<V> {
    type Function = Function;

    fn compile(&self, modules: &[Module]) -> Result<Vec<Vec<Function>>, GpuError> {
        let cache = locked(&self.cache).clone();
        code::compile(&*self.vendor, modules, &cache)
    }

    fn allocate(&self, bytes: u64) -> Result<u64, GpuError> {
        self.note(self.enter()?.allocate(bytes)).map_err(|e| match e {
            GpuError::OutOfMemory { free, total, .. } => GpuError::OutOfMemory { bytes, free, total },
            other => other,
        })
    }

    fn free(&self, address: u64) {
        if let Ok(vendor) = self.enter() {
            vendor.free(address);
        }
    }

    fn allocate_shared(&self, bytes: usize) -> Result<HostMemory, GpuError> {
        let memory = self.note(self.enter()?.allocate_pinned(bytes, true))?;
        // SAFETY: the memory was just allocated with this length.
        unsafe { memory.host.write_bytes(0, bytes) };
        Ok(memory)
    }

    fn free_shared(&self, memory: HostMemory) {
        if let Ok(vendor) = self.enter() {
            vendor.free_pinned(memory.host);
        }
    }

    unsafe fn upload(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), GpuError> {
        let vendor = self.enter()?;
        if bytes > V::PAGEABLE {
            // SAFETY: the caller's promise.
            return self.note(self.staged(|s| unsafe { s.upload(to, from, bytes) }));
        }
        // SAFETY: the caller's promise. So little pageable memory is copied by the driver before the call returns.
        self.note(unsafe { vendor.copy_in(to, from, bytes) })
    }

    unsafe fn download(&self, to: *mut u8, from: u64, bytes: usize) -> Result<(), GpuError> {
        let vendor = self.enter()?;
        if bytes > V::PAGEABLE {
            // SAFETY: the caller's promise.
            return self.note(self.staged(|s| unsafe { s.download(to, from, bytes) }));
        }
        // SAFETY: the caller's promise; the copy has ended when the stream is synchronized.
        self.note(unsafe { vendor.copy_out(to, from, bytes) })?;
        self.synchronize()
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), GpuError> {
        let vendor = self.enter()?;
        // SAFETY: the caller's promise.
        self.note(unsafe { vendor.copy_within(to, from, bytes) })
    }

    unsafe fn fill(&self, to: u64, word: u32, words: u64) -> Result<(), GpuError> {
        let vendor = self.enter()?;
        // SAFETY: the caller's promise.
        self.note(unsafe { vendor.fill(to, word, words) })
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
        unsafe { self.enqueue(function, grid, arguments, self.overlap.load(Ordering::Relaxed)) }
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
    ) -> Result<Vec<Timed>, GpuError> {
        self.enter()?;
        self.note(events::timed(&self.vendor, pieces, run))
    }

    fn trim(&self) {
        let _ = self.synchronize();
        if let Ok(vendor) = self.enter() {
            vendor.trim();
        }
    }

    fn identity(&self) -> String {
        self.vendor.identity()
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
        self.vendor.target()
    }

    fn synchronize(&self) -> Result<(), GpuError> {
        self.note(self.enter()?.synchronize())
    }

    fn device(&self) -> DeviceId {
        DeviceId { device_type: V::DEVICE_TYPE, device_id: self.ordinal }
    }

    fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    fn stream(&self) -> Stream {
        Stream(self.vendor.stream().0)
    }

    fn after(&self, other: Stream) -> Result<(), GpuError> {
        self.enter()?;
        let mark = Event::new(&self.vendor, false)?;
        mark.record(Handle(other.0))?;
        self.note(mark.hold(self.vendor.stream()))
    }

    fn keeping_device(&self, work: &mut dyn FnMut()) {
        let _caller = V::caller();
        work();
    }

    fn side_stream(&self, marks: usize) -> Result<Option<Box<dyn SideStream>>, GpuError> {
        self.enter()?;
        let side = self.note(side::Side::new(&self.vendor, marks))?;
        Ok(side.map(|side| Box::new(side) as Box<dyn SideStream>))
    }

    fn before(&self, other: Stream) -> Result<(), GpuError> {
        self.enter()?;
        let mark = Event::new(&self.vendor, false)?;
        mark.record(self.vendor.stream())?;
        self.note(mark.hold(Handle(other.0)))
    }
}
