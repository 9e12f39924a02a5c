//! The interface of a vendor's driver to the runtime.

use std::ptr::NonNull;
use std::time::Instant;

use gpu_codegen::{Prelude, Target};
use kernel_ir::{Program, Step};
use plugin_sdk::{DeviceId, Stream};

use crate::{Arguments, Candidate, GpuError};

/// A device of a vendor. All work of a driver runs in the order of its calls.
pub trait Driver: Send + Sync + 'static {
    /// A launchable kernel.
    type Function: Send + Sync;

    /// Number of modules that the kernels of a program are compiled in where there are enough of them: more than compilers run at
    /// once, or few where starting a compiler takes long beside a kernel.
    fn modules(&self) -> usize {
        64
    }
    /// Compiles modules (complete texts with their entry points), several at once.
    fn compile(&self, modules: &[Module]) -> Result<Vec<Vec<Self::Function>>, GpuError>;
    /// Allocates device memory, aligned to at least 256 bytes; never called for 0 bytes.
    fn allocate(&self, bytes: u64) -> Result<u64, GpuError>;
    /// Frees memory; work that was enqueued before may still use it.
    fn free(&self, address: u64);
    /// Allocates a little zeroed memory that kernels and the host both access, aligned to 8 bytes. After waiting for a
    /// kernel the host reads what it wrote there, without a copy.
    fn allocate_shared(&self, bytes: usize) -> Result<HostMemory, GpuError>;
    /// Frees such memory; the work that uses it has ended.
    fn free_shared(&self, memory: HostMemory);
    /// Copies from the host. The host memory may be reused when this returns.
    ///
    /// # Safety
    /// `from` is readable and `to` is device memory, both for `bytes` bytes.
    unsafe fn upload(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), GpuError>;
    /// Copies to the host, after all work so far.
    ///
    /// # Safety
    /// `to` is writable and `from` is device memory, both for `bytes` bytes.
    unsafe fn download(&self, to: *mut u8, from: u64, bytes: usize) -> Result<(), GpuError>;
    /// Copies within the device.
    ///
    /// # Safety
    /// Both are device memory of `bytes` bytes and do not overlap.
    unsafe fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), GpuError>;
    /// Launches a kernel. Every argument is 64 bits, an address or a number, or a tensor map, which only occurs where
    /// [`tma`](gpu_codegen::Features::tma) is set.
    ///
    /// # Safety
    /// The arguments match the kernel's parameters, and its addresses are device memory that it may access.
    unsafe fn launch(
        &self,
        function: &Self::Function,
        grid: Grid,
        arguments: Arguments<'_>,
    ) -> Result<(), GpuError>;
    /// Launches a kernel directly after another one of the same call. Where the device supports programmatic dependent
    /// launch, its blocks may be scheduled while the other still runs: generated kernels wait themselves before they use
    /// anything but constants.
    ///
    /// # Safety
    /// The conditions of [`Driver::launch`]; no launch of the call writes its constants.
    unsafe fn launch_overlapped(
        &self,
        function: &Self::Function,
        grid: Grid,
        arguments: Arguments<'_>,
    ) -> Result<(), GpuError> {
        // SAFETY: the caller upholds the conditions of `launch`.
        unsafe { self.launch(function, grid, arguments) }
    }
    /// The default target of code generation for this device.
    fn target(&self) -> Target;
    /// The candidates that the vendor's libraries offer for a step, best first by rule; they are tried before the
    /// generated ones. Empty where the library is missing or does not support the step.
    fn library(&self, _program: &Program, _step: &Step, _target: &Target) -> Vec<Candidate> {
        Vec::new()
    }
    /// Waits for all work so far, and returns errors of kernels.
    fn synchronize(&self) -> Result<(), GpuError>;
    /// The DLPack type and ordinal of the device.
    fn device(&self) -> DeviceId;
    /// Whether the device has failed for good, and everything on it is lost.
    fn is_lost(&self) -> bool {
        false
    }
    /// The stream of all work; the default stream where calls return only when their work is done.
    fn stream(&self) -> Stream {
        Stream::DEFAULT
    }
    /// Makes later work wait for the present work of another stream.
    ///
    /// # Errors
    /// The device is lost, or the stream belongs to another one.
    fn after(&self, other: Stream) -> Result<(), GpuError> {
        let _ = other;
        Ok(())
    }
    /// Makes another stream wait for the work so far.
    ///
    /// # Errors
    /// The errors of [`Driver::after`].
    fn before(&self, other: Stream) -> Result<(), GpuError> {
        let _ = other;
        Ok(())
    }

    /// Does work from a place where the caller's device is not kept: it is current again afterwards.
    fn keeping_device(&self, work: &mut dyn FnMut()) {
        work();
    }

    /// A second stream for a program's exchanges, with so many marks; `None` where the device has one stream alone.
    ///
    /// # Errors
    /// The device is lost.
    fn side_stream(&self, marks: usize) -> Result<Option<Box<dyn SideStream>>, GpuError> {
        let _ = marks;
        Ok(None)
    }

    /// Whether freed memory may be reused by the pool, in blocks larger than requested.
    fn pooled(&self) -> bool {
        true
    }
    /// Returns the driver's cached free memory to the system.
    fn trim(&self) {}
    /// Fills memory with a 32-bit word.
    ///
    /// # Safety
    /// `to` is device memory of `words` words.
    unsafe fn fill(&self, to: u64, word: u32, words: u64) -> Result<(), GpuError> {
        let chunk = vec![word; words.min(1 << 20) as usize];
        let mut done = 0;
        while done < words {
            let n = (words - done).min(chunk.len() as u64);
            // SAFETY: the caller guarantees that `to` has `words` words, and the chunk has `n` of them.
            unsafe { self.upload(to + 4 * done, chunk.as_ptr().cast(), 4 * n as usize)? };
            done += n;
        }
        Ok(())
    }
    /// Records what `work` enqueues, instead of running it. Returns `None` where device graphs are not supported; `work`
    /// is then not called.
    ///
    /// # Errors
    /// The errors of `work`, and work that cannot be recorded. Nothing of the recording remains.
    fn record(
        &self,
        work: &mut dyn FnMut() -> Result<(), GpuError>,
    ) -> Result<Option<Box<dyn Recording<Self::Function>>>, GpuError> {
        let _ = work;
        Ok(None)
    }
    /// Runs pieces of work one after another and returns the device's times of each.
    ///
    /// # Errors
    /// The errors of the work.
    fn timed(
        &self,
        pieces: usize,
        run: &mut dyn FnMut(usize) -> Result<(), GpuError>,
    ) -> Result<Vec<Timed>, GpuError> {
        self.synchronize()?;
        let first = Instant::now();
        let mut one = |n| {
            let start = Instant::now();
            run(n)?;
            self.synchronize()?;
            Ok(Timed { begin: (start - first).as_secs_f64(), seconds: start.elapsed().as_secs_f64() })
        };
        (0..pieces).map(&mut one).collect()
    }
    /// Everything that timings depend on apart from kernels and sizes: the device's model, the versions of driver and
    /// libraries.
    fn identity(&self) -> String {
        String::new()
    }
    /// Returns the text that this process or an earlier one stored under a key.
    fn load_cached(&self, _key: &str) -> Option<String> {
        None
    }
    /// Stores a text under a key for later processes; failures are ignored.
    fn store_cached(&self, _key: &str, _value: &str) {}
}

/// When a piece of work ran on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timed {
    /// Seconds from the beginning of the first piece to that of this one.
    pub begin: f64,
    /// Seconds that it took.
    pub seconds: f64,
}

/// A second stream of a device, whose work may run beside that of the device's own one. All of it is recorded with the work of
/// the device's stream, where that is recorded: it has followed that stream, and is joined before the recording ends.
pub trait SideStream: Send + Sync {
    /// Its handle.
    fn stream(&self) -> Stream;
    /// Makes its later work wait for the present work of the device's stream.
    ///
    /// # Errors
    /// The device is lost.
    fn follow(&self) -> Result<(), GpuError>;
    /// Sets mark `n`, counted from 0, behind its present work.
    ///
    /// # Errors
    /// The device is lost; there is no such mark.
    fn mark(&self, n: usize) -> Result<(), GpuError>;
    /// Makes later work of the device's stream wait for mark `n` as it was set last.
    ///
    /// # Errors
    /// The errors of [`mark`](Self::mark).
    fn join(&self, n: usize) -> Result<(), GpuError>;
    /// Notes the times of the work between [`follow`](Self::follow) and [`mark`](Self::mark) from now on, or no longer. What was
    /// noted before is forgotten.
    fn watch(&self, _on: bool) {}
    /// The times of each such work since [`watch`](Self::watch), in order, counted from where the device's stream was followed.
    /// Waits for the work. Empty where the stream notes no times.
    ///
    /// # Errors
    /// The device is lost.
    fn spans(&self) -> Result<Vec<Timed>, GpuError> {
        Ok(Vec::new())
    }
}

/// Host memory that kernels can access ([`Driver::allocate_shared`]).
#[derive(Clone, Copy, Debug)]
pub struct HostMemory {
    /// The host's address.
    pub host: NonNull<u8>,
    /// The kernels' address.
    pub device: u64,
}

/// Recorded work that is launched as one.
pub trait Recording<F>: Send + Sync {
    /// Enqueues all of it on the stream.
    fn launch(&self) -> Result<(), GpuError>;
    /// Replaces the arguments of the recorded launch `n`, counted from 0, from the next [`launch`](Recording::launch) on.
    /// Function and grid stay those that were recorded.
    ///
    /// # Safety
    /// The conditions of [`Driver::launch`]; addresses stay valid as long as the recording is launched.
    unsafe fn update(
        &self,
        n: usize,
        function: &F,
        grid: Grid,
        arguments: Arguments<'_>,
    ) -> Result<(), GpuError>;
}

/// The evaluated shape of one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Blocks in x, y and z, none of them 0.
    pub blocks: [u32; 3],
    /// Threads per block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// A text that is compiled as a unit.
#[derive(Clone, Debug)]
pub struct Module {
    /// The helpers that the kernels use.
    pub prelude: String,
    /// The kernels.
    pub kernels: String,
    /// Their entry points.
    pub entries: Vec<String>,
}

impl Module {
    /// Combines kernels with the helpers that they use.
    pub fn new(helpers: &Prelude, kernels: String, entries: Vec<String>) -> Module {
        Module { prelude: helpers.of(&kernels), kernels, entries }
    }

    /// The complete text.
    pub fn text(&self) -> String {
        [self.prelude.as_str(), self.kernels.as_str()].concat()
    }
}
