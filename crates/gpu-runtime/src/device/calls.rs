//! The calls of a driver that the vendors' drivers have in common, one method a call: contexts, modules, memory, streams, events
//! and graphs have the same meaning in CUDA and HIP. A vendor writes them down once in its own words; what is made of them is
//! [`Device`](super::Device).
//!
//! Not here: the order in which they are called.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use crate::{GpuError, Grid, HostMemory, Map};

/// A handle of a driver's: a stream, an event, a module, a function, a graph, a node of one. Null is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub *mut c_void);

// SAFETY: handles of drivers are valid in every thread that has made the device current, which every call does.
unsafe impl Send for Handle {}
// SAFETY: a handle is a number for the driver, which serializes what several threads ask of one object.
unsafe impl Sync for Handle {}

impl Handle {
    /// None.
    pub const NULL: Handle = Handle(std::ptr::null_mut());

    /// Whether it is none.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// A device's driver calls. [`enter`](Calls::enter) comes before all others of a thread. Where nothing else is said, errors are
/// what the driver reports, and work is put on [`stream`](Calls::stream).
pub trait Calls: Send + Sync + Sized + 'static {
    /// A tensor map as kernels get it.
    type TensorMap;
    /// Bytes of pageable host memory that the driver itself copies before a copy to the device returns.
    const PAGEABLE: usize;

    /// Makes the device current in this thread.
    fn enter(&self) -> Result<(), GpuError>;
    /// The stream of the device's work.
    fn stream(&self) -> Handle;
    /// Makes another stream, whose work comes before that of [`stream`](Calls::stream) where the device has to choose; `None`
    /// where this driver uses one alone.
    fn create_stream(&self) -> Result<Option<Handle>, GpuError> {
        Ok(None)
    }
    /// Destroys a stream of [`create_stream`](Calls::create_stream), once; its work ends first.
    fn destroy_stream(&self, _stream: Handle) {}
    /// Waits for all work of the stream.
    fn synchronize(&self) -> Result<(), GpuError>;

    /// Loads machine code; it is never unloaded.
    ///
    /// # Safety
    /// The code is whole and made for this device.
    unsafe fn load(&self, code: &[u8]) -> Result<Handle, GpuError>;
    /// A kernel of a loaded module, allowed to use as much shared memory as a block may have.
    ///
    /// # Safety
    /// The module is loaded.
    unsafe fn function(&self, module: Handle, entry: &CStr) -> Result<Handle, GpuError>;
    /// Puts a kernel on the stream; `early`: its blocks may be placed while the kernel before still runs. The arguments are read
    /// before this returns.
    ///
    /// # Safety
    /// The arguments are what the kernel takes, and its addresses are device memory that it may use.
    unsafe fn launch(
        &self,
        function: Handle,
        grid: Grid,
        arguments: *mut *mut c_void,
        early: bool,
    ) -> Result<(), GpuError>;
    /// What a kernel gets for a tensor map whose tensor begins at `address`.
    fn encode(&self, map: &Map, address: u64) -> Result<Self::TensorMap, GpuError>;

    /// Device memory, which work of the stream may use from here on.
    fn allocate(&self, bytes: u64) -> Result<u64, GpuError>;
    /// Gives memory back behind the work of the stream so far.
    fn free(&self, address: u64);
    /// Gives what the driver keeps of freed memory back to the system.
    fn trim(&self) {}
    /// Page-locked host memory; with `mapped` kernels reach it, and its device address is told.
    fn allocate_pinned(&self, bytes: usize, mapped: bool) -> Result<HostMemory, GpuError>;
    /// Gives page-locked memory back, after the work that uses it.
    fn free_pinned(&self, host: NonNull<u8>);
    /// Copies from the host on the stream; page-locked memory is not touched until the copy is done.
    ///
    /// # Safety
    /// `from` is readable and `to` is device memory for as many bytes.
    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), GpuError>;
    /// Copies to the host on the stream.
    ///
    /// # Safety
    /// `to` is writable until the copy is done, and `from` is device memory for as many bytes.
    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize) -> Result<(), GpuError>;
    /// Copies within the device on the stream.
    ///
    /// # Safety
    /// Both are device memory for as many bytes and do not overlap.
    unsafe fn copy_within(&self, to: u64, from: u64, bytes: u64) -> Result<(), GpuError>;
    /// Sets 32-bit words on the stream.
    ///
    /// # Safety
    /// `to` is device memory for as many words.
    unsafe fn fill(&self, to: u64, word: u32, words: u64) -> Result<(), GpuError>;

    /// A mark that no stream has yet; `timed`: the time between two of them can be read.
    fn create_event(&self, timed: bool) -> Result<Handle, GpuError>;
    /// Destroys a mark of [`create_event`](Calls::create_event), once.
    fn destroy_event(&self, event: Handle);
    /// Sets a mark behind the work of a stream so far.
    fn record_event(&self, event: Handle, stream: Handle) -> Result<(), GpuError>;
    /// Returns when the work before the mark is done; at once where it was never set.
    fn wait_event(&self, event: Handle) -> Result<(), GpuError>;
    /// Makes a stream wait for a mark.
    fn hold_stream(&self, stream: Handle, event: Handle) -> Result<(), GpuError>;
    /// Seconds between two marks that have been passed.
    fn seconds_between(&self, from: Handle, to: Handle) -> Result<f64, GpuError>;
    /// Makes the stream wait until a word of mapped memory is 1.
    ///
    /// # Safety
    /// The word stays until then.
    unsafe fn hold_for_word(&self, address: u64) -> Result<(), GpuError>;

    /// Begins to record what is put on the stream. Other threads of the process may do as they like meanwhile.
    fn begin_recording(&self) -> Result<(), GpuError>;
    /// Ends recording; the graph.
    fn end_recording(&self) -> Result<Handle, GpuError>;
    /// The node that was recorded last.
    fn last_node(&self) -> Result<Handle, GpuError>;
    /// A graph that is ready to launch.
    fn instantiate(&self, graph: Handle) -> Result<Handle, GpuError>;
    /// Puts a graph on the stream.
    fn launch_graph(&self, executable: Handle) -> Result<(), GpuError>;
    /// Gives a kernel of a graph that is ready other arguments; they are read before this returns.
    ///
    /// # Safety
    /// As for [`launch`](Calls::launch); node and kernel are of this graph.
    unsafe fn set_arguments(
        &self,
        executable: Handle,
        node: Handle,
        function: Handle,
        grid: Grid,
        arguments: *mut *mut c_void,
    ) -> Result<(), GpuError>;
    /// Destroys a graph and what was made of it, where that is not null; waits for launches under way.
    fn destroy_graph(&self, graph: Handle, executable: Handle);
}
