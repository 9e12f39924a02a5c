//! A driver over host memory whose only kernel adds 1 to 32-bit floats, and so does its only library: enough to test placement,
//! allocation and graphs.

#![allow(dead_code)]

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use gpu_codegen::Target;
use gpu_runtime::{
    Arguments, Candidate, Driver, GpuError, Grid, HostMemory, LibraryCall, Module, Part, Recorder, Recording,
    Work,
};
use kernel_ir::{BufId, InstKind, Program, Step};
use plugin_sdk::{DeviceId, Stream};

/// The host as a device: host tensors are in its memory.
pub(crate) const HERE: DeviceId = DeviceId { device_type: 1, device_id: 0 };
/// An extension device: host tensors have to be copied to it.
pub(crate) const ELSEWHERE: DeviceId = DeviceId { device_type: 12, device_id: 0 };

/// `y = (x + 1) + 1` through a temporary.
pub(crate) const TWICE: &str = r#"kir 1.3
program "twice"
symbol s0 "n" 1..=100000
buffer b0 "x" f32[s0]{1}+0 input 0
buffer b1 "t" f32[s0]{1}+0 arena
buffer b2 "y" f32[s0]{1}+0 output
input "x" b0
output "y" b2[s0]{1}+0
init:
steps:
loop "one" outer [s0]
  stage []
    v0: f32 = load b0[i0]
    v1: f32 = abs v0
    v2: f32 = store b1[i0], v1
loop "two" outer [s0]
  stage []
    v0: f32 = load b1[i0]
    v1: f32 = abs v0
    v2: f32 = store b2[i0], v1
plan:
  b1 live 0..1
"#;

/// Counts of the driver's calls.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) allocations: AtomicUsize,
    pub(crate) launches: AtomicUsize,
    pub(crate) recordings: AtomicUsize,
    pub(crate) graph_launches: AtomicUsize,
    pub(crate) updates: AtomicUsize,
    /// Launches, recordings and updates of launches that have tensor maps.
    pub(crate) mapped: AtomicUsize,
    pub(crate) copies: AtomicUsize,
    pub(crate) synchronizations: AtomicUsize,
}

impl Counts {
    pub(crate) fn of(&self, which: impl Fn(&Counts) -> &AtomicUsize) -> usize {
        which(self).load(SeqCst)
    }
    /// The arguments; for a tensor map the address of its first element.
    fn words(&self, arguments: Arguments<'_>) -> Launch {
        let mut words = arguments.words.to_vec();
        arguments.maps.iter().for_each(|map| words[map.param] = arguments.start(map));
        // Numbers beside tensor maps are the tiles of a product, not how many elements it has.
        if !arguments.maps.is_empty() {
            words.retain(is_address);
        }
        self.mapped.fetch_add(usize::from(!arguments.maps.is_empty()), SeqCst);
        words
    }
}

/// A launch: buffers and the number of elements.
type Launch = Vec<u64>;

/// What a graph has of a launch.
enum Noted {
    Kernel(Launch),
    Library(Launch),
}

pub(crate) struct Mock {
    pub(crate) counts: Arc<Counts>,
    pub(crate) device: DeviceId,
    live: Mutex<HashMap<u64, Box<[u64]>>>,
    /// The memory limit in bytes.
    pub(crate) limit: Option<u64>,
    /// Whether a library computes matrix products.
    pub(crate) multiplies: bool,
    recorder: Arc<Recorder<Noted>>,
    /// Its own stream.
    pub(crate) stream: Stream,
    /// What its stream waited for and was waited for by.
    pub(crate) order: Arc<Mutex<Vec<String>>>,
}

/// A call of the library from the first operand of a product to the buffer of its result.
struct Multiply {
    recorder: Arc<Recorder<Noted>>,
    from: BufId,
    to: BufId,
}

impl LibraryCall for Multiply {
    unsafe fn run(&self, work: &Work<'_>) -> Result<(), GpuError> {
        let launch = vec![(work.address)(self.from), (work.address)(self.to)];
        if self.recorder.is_on() {
            self.recorder.note(Noted::Library(launch))
        } else {
            run(&launch)
        }
        Ok(())
    }
}

impl Mock {
    pub(crate) fn new(device: DeviceId) -> Mock {
        Mock {
            counts: Arc::default(),
            device,
            live: Mutex::default(),
            limit: None,
            multiplies: false,
            recorder: Arc::default(),
            stream: Stream::DEFAULT,
            order: Arc::default(),
        }
    }
    fn used(&self) -> u64 {
        self.live.lock().unwrap().values().map(|b| 8 * b.len() as u64).sum()
    }
}

/// Number of elements where the size is not an argument.
pub(crate) const COUNT: u64 = 1000;

fn is_address(word: &u64) -> bool {
    *word > 1 << 24
}

/// Every kernel computes `y[i] = x[i] + 1`, where `x` is its first buffer and `y` its last, possibly the same.
fn run(launch: &[u64]) {
    let buffers: Vec<u64> = launch.iter().filter(|a| is_address(a)).copied().collect();
    let n = launch.iter().find(|a| !is_address(a)).copied().unwrap_or(COUNT);
    let (Some(x), Some(y)) = (buffers.first(), buffers.last()) else { panic!("{launch:?}") };
    for i in 0..n as usize {
        // SAFETY: the runtime passes addresses of buffers with this many elements.
        unsafe { *(*y as *mut f32).add(i) = *(*x as *const f32).add(i) + 1.0 };
    }
}

struct Graph {
    counts: Arc<Counts>,
    launches: Mutex<Vec<Noted>>,
}

impl Recording<()> for Graph {
    fn launch(&self) -> Result<(), GpuError> {
        self.counts.graph_launches.fetch_add(1, SeqCst);
        self.launches.lock().unwrap().iter().for_each(|(Noted::Kernel(l) | Noted::Library(l))| run(l));
        Ok(())
    }
    unsafe fn update(&self, n: usize, _: &(), _: Grid, arguments: Arguments<'_>) -> Result<(), GpuError> {
        self.counts.updates.fetch_add(1, SeqCst);
        let mut launches = self.launches.lock().unwrap();
        let mut kernels = launches.iter_mut().filter(|l| matches!(l, Noted::Kernel(_)));
        *kernels.nth(n).unwrap() = Noted::Kernel(self.counts.words(arguments));
        Ok(())
    }
}

impl Driver for Mock {
    type Function = ();

    fn compile(&self, modules: &[Module]) -> Result<Vec<Vec<()>>, GpuError> {
        Ok(modules.iter().map(|m| vec![(); m.entries.len()]).collect())
    }
    fn allocate(&self, bytes: u64) -> Result<u64, GpuError> {
        self.counts.allocations.fetch_add(1, SeqCst);
        if self.limit.is_some_and(|limit| self.used() + bytes > limit) {
            return Err(GpuError::OutOfMemory { bytes, free: 0, total: self.limit.unwrap_or(0) });
        }
        // Two words more than requested leave room to align the address to 16.
        let memory = vec![u64::MAX; bytes.div_ceil(8) as usize + 2].into_boxed_slice();
        let address = (memory.as_ptr() as u64).next_multiple_of(16);
        self.live.lock().unwrap().insert(address, memory);
        Ok(address)
    }
    fn free(&self, address: u64) {
        assert!(self.live.lock().unwrap().remove(&address).is_some(), "freed once");
    }
    fn allocate_shared(&self, bytes: usize) -> Result<HostMemory, GpuError> {
        let device = self.allocate(bytes as u64)?;
        let host = NonNull::new(device as *mut u8).unwrap();
        // SAFETY: the memory was just allocated with this length.
        unsafe { host.write_bytes(0, bytes) };
        Ok(HostMemory { host, device })
    }
    fn free_shared(&self, memory: HostMemory) {
        self.free(memory.device);
    }
    unsafe fn upload(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), GpuError> {
        // SAFETY: the caller guarantees that both ranges have this length.
        unsafe { std::ptr::copy_nonoverlapping(from, to as *mut u8, bytes) };
        Ok(())
    }
    unsafe fn download(&self, to: *mut u8, from: u64, bytes: usize) -> Result<(), GpuError> {
        // SAFETY: the caller guarantees that both ranges have this length.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to, bytes) };
        Ok(())
    }
    unsafe fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), GpuError> {
        self.counts.copies.fetch_add(1, SeqCst);
        // SAFETY: the caller guarantees that both ranges have this length.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes as usize) };
        Ok(())
    }
    unsafe fn launch(&self, _: &(), _: Grid, arguments: Arguments<'_>) -> Result<(), GpuError> {
        if self.recorder.is_on() {
            self.recorder.note(Noted::Kernel(self.counts.words(arguments)));
            return Ok(());
        }
        self.counts.launches.fetch_add(1, SeqCst);
        run(&self.counts.words(arguments));
        Ok(())
    }
    fn record(
        &self,
        work: &mut dyn FnMut() -> Result<(), GpuError>,
    ) -> Result<Option<Box<dyn Recording<()>>>, GpuError> {
        self.counts.recordings.fetch_add(1, SeqCst);
        let (done, launches) = self.recorder.during(work);
        done?;
        Ok(Some(Box::new(Graph { counts: Arc::clone(&self.counts), launches: Mutex::new(launches) })))
    }
    fn library(&self, _: &Program, step: &Step, _: &Target) -> Vec<Candidate> {
        let Step::Matmul(k) = step else { return Vec::new() };
        let stored = k.epilogue.insts.iter().find_map(|i| match i.kind {
            InstKind::Store { buf, .. } => Some(buf),
            _ => None,
        });
        let (Some(to), true) = (stored, self.multiplies) else { return Vec::new() };
        let call = Multiply { recorder: Arc::clone(&self.recorder), from: k.a.buf, to };
        let parts = vec![Part::Library(Box::new(call))];
        vec![Candidate { name: "library".into(), parts, scratch: Vec::new(), in_place: None }]
    }
    fn target(&self) -> Target {
        Target::HOPPER
    }
    fn synchronize(&self) -> Result<(), GpuError> {
        self.counts.synchronizations.fetch_add(1, SeqCst);
        Ok(())
    }
    fn device(&self) -> DeviceId {
        self.device
    }
    fn stream(&self) -> Stream {
        self.stream
    }
    fn after(&self, other: Stream) -> Result<(), GpuError> {
        self.order.lock().unwrap().push(format!("after {}", other.0.addr()));
        Ok(())
    }
    fn before(&self, other: Stream) -> Result<(), GpuError> {
        self.order.lock().unwrap().push(format!("before {}", other.0.addr()));
        Ok(())
    }
}
