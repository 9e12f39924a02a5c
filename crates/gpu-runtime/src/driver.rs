//! What a vendor's driver does for the runtime.

use std::ptr::NonNull;
use std::time::Instant;

use gpu_codegen::{Prelude, Target};
use kernel_ir::{Program, Step};
use plugin_sdk::{DeviceId, Stream};

use crate::{Arguments, Candidate, GpuError};

/// A device of a vendor. All work of one driver runs in the order of its calls.
pub trait Driver: Send + Sync + 'static {
    /// A kernel that can be launched.
    type Function: Send + Sync;

    /// Compiles modules (whole texts with their entry points) at once.
    fn compile(&self, modules: &[Module]) -> Result<Vec<Vec<Self::Function>>, GpuError>;
    /// Device memory, aligned to 256 bytes at least; never asked for 0 bytes.
    fn allocate(&self, bytes: u64) -> Result<u64, GpuError>;
    /// Gives memory back; work that was started before may still use it.
    fn free(&self, address: u64);
    /// A little memory that kernels and the host both read and write, aligned to 8 bytes and zeroed: what a kernel wrote
    /// there the host reads where it has waited for the kernel, without a copy.
    fn allocate_shared(&self, bytes: usize) -> Result<HostMemory, GpuError>;
    /// Gives such memory back; the work that uses it has ended.
    fn free_shared(&self, memory: HostMemory);
    /// Copies from the host. The host memory may be reused when this returns.
    ///
    /// # Safety
    /// `from` is readable and `to` is device memory for as many bytes.
    unsafe fn upload(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), GpuError>;
    /// Copies to the host, after all work so far.
    ///
    /// # Safety
    /// `to` is writable and `from` is device memory for as many bytes.
    unsafe fn download(&self, to: *mut u8, from: u64, bytes: usize) -> Result<(), GpuError>;
    /// Copies within the device.
    ///
    /// # Safety
    /// Both are device memory for as many bytes and do not overlap.
    unsafe fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), GpuError>;
    /// Launches a kernel. Every argument is 64 bits, an address or a number, or a tensor map: those are asked for only where
    /// [`tma`](gpu_codegen::Features::tma) says that there are any.
    ///
    /// # Safety
    /// The arguments are what the kernel takes, and its addresses are device memory that it may use.
    unsafe fn launch(
        &self,
        function: &Self::Function,
        grid: Grid,
        arguments: Arguments<'_>,
    ) -> Result<(), GpuError>;
    /// The same for a kernel that directly follows another one of the same call: where the device can do that, its blocks may be
    /// placed while the other one still runs. Generated kernels wait themselves before they use anything but constants.
    ///
    /// # Safety
    /// As for [`Driver::launch`]; no launch of the call writes its constants.
    unsafe fn launch_overlapped(
        &self,
        function: &Self::Function,
        grid: Grid,
        arguments: Arguments<'_>,
    ) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch(function, grid, arguments) }
    }
    /// What kernels are made for where the caller of `compile` asks for nothing else.
    fn target(&self) -> Target;
    /// The ways in which libraries of the vendor compute a step, the best by rule first; they are tried before the generated
    /// ones. None where the library is missing or has nothing for the step.
    fn library(&self, _program: &Program, _step: &Step, _target: &Target) -> Vec<Candidate> {
        Vec::new()
    }
    /// Waits for all work so far; errors of kernels show here.
    fn synchronize(&self) -> Result<(), GpuError>;
    /// The DLPack type and ordinal of the device.
    fn device(&self) -> DeviceId;
    /// Whether the device has stopped answering: all that was on it is gone.
    fn is_lost(&self) -> bool {
        false
    }
    /// The stream that all work is put on; the default one where everything has happened when a call returns.
    fn stream(&self) -> Stream {
        Stream::DEFAULT
    }
    /// Makes work that follows wait for what is on another stream now.
    ///
    /// # Errors
    /// A lost device, a stream of another one.
    fn after(&self, other: Stream) -> Result<(), GpuError> {
        let _ = other;
        Ok(())
    }
    /// Makes another stream wait for the work so far.
    ///
    /// # Errors
    /// As for [`Driver::after`].
    fn before(&self, other: Stream) -> Result<(), GpuError> {
        let _ = other;
        Ok(())
    }

    /// Whether memory that was given back may be used again for something else, in larger blocks than were asked for.
    fn pooled(&self) -> bool {
        true
    }
    /// Gives what the driver itself keeps of freed memory back to the system.
    fn trim(&self) {}
    /// Sets 32-bit words.
    ///
    /// # Safety
    /// `to` is device memory for as many words.
    unsafe fn fill(&self, to: u64, word: u32, words: u64) -> Result<(), GpuError> {
        let chunk = vec![word; words.min(1 << 20) as usize];
        let mut done = 0;
        while done < words {
            let n = (words - done).min(chunk.len() as u64);
            // SAFETY: the caller's promise; the chunk has as many words.
            unsafe { self.upload(to + 4 * done, chunk.as_ptr().cast(), 4 * n as usize)? };
            done += n;
        }
        Ok(())
    }
    /// Records what `work` puts on the stream, instead of running it. `None` where there are no graphs; `work` was not
    /// called then.
    ///
    /// # Errors
    /// What `work` says, and work that cannot be recorded. Nothing is left of the recording then.
    fn record(
        &self,
        work: &mut dyn FnMut() -> Result<(), GpuError>,
    ) -> Result<Option<Box<dyn Recording<Self::Function>>>, GpuError> {
        let _ = work;
        Ok(None)
    }
    /// Runs pieces of work one after another; the time of each on the device in seconds.
    ///
    /// # Errors
    /// What the work says.
    fn timed(
        &self,
        pieces: usize,
        run: &mut dyn FnMut(usize) -> Result<(), GpuError>,
    ) -> Result<Vec<f64>, GpuError> {
        self.synchronize()?;
        let mut one = |n| {
            let start = Instant::now();
            run(n)?;
            self.synchronize()?;
            Ok(start.elapsed().as_secs_f64())
        };
        (0..pieces).map(&mut one).collect()
    }
    /// What timings depend on beside kernels and sizes: the device's model, versions of driver and libraries.
    fn identity(&self) -> String {
        String::new()
    }
    /// A text that was kept under a key, by this process or an earlier one.
    fn load_cached(&self, _key: &str) -> Option<String> {
        None
    }
    /// Keeps a text under a key; that it cannot is no error.
    fn store_cached(&self, _key: &str, _value: &str) {}
}

/// Memory of the host that kernels reach ([`Driver::allocate_shared`]).
#[derive(Clone, Copy, Debug)]
pub struct HostMemory {
    /// Where the host finds it.
    pub host: NonNull<u8>,
    /// Where kernels find it.
    pub device: u64,
}

/// Work that was recorded and runs as one.
pub trait Recording<F>: Send + Sync {
    /// Puts the whole of it on the stream.
    fn launch(&self) -> Result<(), GpuError>;
    /// Gives launch `n` of the recorded ones, counted from 0, other arguments, from the next [`launch`](Recording::launch)
    /// on. Function and grid are those that were recorded.
    ///
    /// # Safety
    /// As for [`Driver::launch`], and addresses stay valid as long as the recording is launched.
    unsafe fn update(
        &self,
        n: usize,
        function: &F,
        grid: Grid,
        arguments: Arguments<'_>,
    ) -> Result<(), GpuError>;
}

/// The shape of one launch, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Blocks in x, y and z, none of them 0.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// Text that is compiled whole.
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
    /// Kernels with the helpers that they use.
    pub fn new(helpers: &Prelude, kernels: String, entries: Vec<String>) -> Module {
        Module { prelude: helpers.of(&kernels), kernels, entries }
    }

    /// The whole text.
    pub fn text(&self) -> String {
        [self.prelude.as_str(), self.kernels.as_str()].concat()
    }
}
