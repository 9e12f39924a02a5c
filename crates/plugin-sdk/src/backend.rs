//! The two traits that a backend implements. They are safe: all data that crosses is checked before it arrives here.

use std::ffi::c_void;

use crate::{
    Artifact, CollectiveEngine, CompileRequest, Constants, DType, Description, DeviceId, DeviceInfo, Groups,
    Host, Listing, OwnedTensor, PluginError, TensorView,
};

/// A backend: compiles programs for its devices. One instance lives per process, opened once.
pub trait Backend: Sized + Send + Sync + 'static {
    /// Creates the backend. It should not fail because a device is missing: report that in [`Backend::devices`], so that
    /// listings show the reason.
    fn open(host: Host) -> Result<Self, PluginError>;

    /// Name, version, program forms, modes and options. Called once, right after `open`.
    fn describe(&self) -> Description;

    /// All devices in order of preference, also those that cannot be used, with the reason.
    fn devices(&self) -> Vec<DeviceInfo>;

    /// The nodes of the program that this backend refuses, each with its reason; empty where it supports all.
    fn query_support(&self, request: &CompileRequest<'_>) -> Result<Vec<Refusal>, PluginError> {
        let _ = request;
        Ok(Vec::new())
    }

    /// Device memory that the compiled program will need, or `None` where unknown.
    fn memory_estimate(&self, request: &CompileRequest<'_>) -> Result<Option<MemoryEstimate>, PluginError> {
        let _ = request;
        Ok(None)
    }

    /// Whether [`to_device`](Backend::to_device) and [`to_host`](Backend::to_host) are implemented, so that tensors may
    /// stay on a
    /// device between calls.
    fn has_device_memory(&self) -> bool {
        false
    }

    /// A copy of a host tensor on a device.
    fn to_device(&self, tensor: &TensorView<'_>, device: DeviceId) -> Result<OwnedTensor, PluginError> {
        let _ = (tensor, device);
        Err(PluginError::unsupported("this backend keeps no tensors on a device"))
    }

    /// A copy of a device tensor on the host, after all work that was started on it.
    fn to_host(&self, tensor: &TensorView<'_>) -> Result<OwnedTensor, PluginError> {
        let _ = tensor;
        Err(PluginError::unsupported("this backend keeps no tensors on a device"))
    }

    /// A tensor on a device whose elements are not set.
    fn allocate(
        &self,
        dtype: DType,
        sizes: &[i64],
        strides: &[i64],
        device: DeviceId,
    ) -> Result<OwnedTensor, PluginError> {
        let _ = (dtype, sizes, strides, device);
        Err(PluginError::unsupported("this backend allocates no tensors for its callers"))
    }

    /// Writes the elements of `from` over those of `to` on a stream. Dtypes and sizes are equal; the host guarantees that
    /// the memory of `to` may be written.
    fn copy(&self, from: &TensorView<'_>, to: &TensorView<'_>, stream: Stream) -> Result<(), PluginError> {
        let _ = (from, to, stream);
        Err(PluginError::unsupported("this backend copies no tensors for its callers"))
    }

    /// Whether [`create_stream`](Backend::create_stream), [`synchronize`](Backend::synchronize) and
    /// [`destroy_stream`](Backend::destroy_stream) are implemented.
    fn has_streams(&self) -> bool {
        false
    }

    /// A new stream of a device, not null.
    fn create_stream(&self, device: DeviceId) -> Result<Stream, PluginError> {
        let _ = device;
        Err(PluginError::unsupported("this backend has no streams"))
    }

    /// Returns when all work that was started on the stream before is done.
    fn synchronize(&self, device: DeviceId, stream: Stream) -> Result<(), PluginError> {
        let _ = (device, stream);
        Err(PluginError::unsupported("this backend has no streams"))
    }

    /// Frees a stream of [`create_stream`](Backend::create_stream) after its work is done.
    fn destroy_stream(&self, device: DeviceId, stream: Stream) {
        let _ = (device, stream);
    }

    /// An engine that exchanges data between ranks, where this plugin has one. Called once.
    fn collectives(&self) -> Option<Box<dyn CollectiveEngine>> {
        None
    }

    /// Whether executables take [`Executable::attach_groups`].
    fn runs_collectives(&self) -> bool {
        false
    }

    /// Whether [`Executable::listings`] is implemented, and calls report their steps ([`step_ran`](crate::step_ran)) while a
    /// host observes them.
    fn has_inspection(&self) -> bool {
        false
    }

    /// Compiles a program. May run on many threads at once.
    fn compile(&self, request: &CompileRequest<'_>) -> Result<Box<dyn Executable>, PluginError>;

    /// What an artifact of a device depends on, in addition to the backend's name and version, which the SDK adds:
    /// instruction set, driver. `None`, the default, where the backend makes no artifacts.
    fn artifact_compat(&self, device: DeviceId) -> Result<Option<String>, PluginError> {
        let _ = device;
        Ok(None)
    }

    /// Creates from an artifact the executable that [`compile`](Backend::compile) created. The payload is exactly what
    /// [`Executable::save_artifact`] returned, under an equal compatibility string: the SDK refuses everything else before
    /// this call. May run on many threads at once.
    fn load_artifact(&self, artifact: &Artifact<'_>) -> Result<Box<dyn Executable>, PluginError> {
        let _ = artifact;
        Err(PluginError::unsupported("this backend loads no artifacts"))
    }
}

/// A compiled program.
pub trait Executable: Send + Sync {
    /// Numbers of inputs, outputs and constants; constant for the life of the executable.
    fn signature(&self) -> Signature;

    /// Receives the constants before the first `execute`, and again when they change: the place to pack weights. No other
    /// call uses this executable meanwhile. The same `constants` are passed to every `execute`, so that nothing has to be
    /// copied that is read in place (see [`reads_constant`](Self::reads_constant)).
    fn bind_constants(&mut self, constants: &Constants<'_>) -> Result<(), PluginError> {
        let _ = constants;
        Ok(())
    }

    /// Gives the groups of the program's collectives, before the constants are bound. No other call uses this executable
    /// meanwhile.
    fn attach_groups(&mut self, groups: Groups) -> Result<(), PluginError> {
        let _ = groups;
        Err(PluginError::unsupported("this backend runs no collectives"))
    }

    /// Whether calls still read constant `index`, in the order of the last binding, where it lies on a device: the host frees
    /// what is not read any more, and its view is not among the constants of later calls. All work that reads such a constant
    /// has ended before. Asked once after each binding, of backends with device memory.
    fn reads_constant(&self, index: usize) -> bool {
        let _ = index;
        true
    }

    /// Runs the program. May run on many threads at once. Returns as many tensors as [`Signature::outputs`], freshly
    /// allocated: their sizes may depend on the data.
    fn execute(
        &self,
        inputs: &[TensorView<'_>],
        constants: &Constants<'_>,
        stream: Stream,
    ) -> Result<Vec<OwnedTensor>, PluginError>;

    /// The compiled code as bytes, without constants: they are bound again after
    /// [`load_artifact`](Backend::load_artifact). Only called where [`Backend::artifact_compat`] returns a text.
    fn save_artifact(&self) -> Result<Vec<u8>, PluginError> {
        Err(PluginError::unsupported("this executable cannot be saved"))
    }

    /// The texts of its generated functions, in the order of the program's steps, for people to read: machine code, or the
    /// source that was given to a compiler. Only called where [`Backend::has_inspection`]; it may take as long as compiling.
    fn listings(&self) -> Result<Vec<Listing>, PluginError> {
        Err(PluginError::unsupported("this executable has no listing"))
    }
}

/// Counts of the inputs, outputs and constants of an executable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// Tensors that `execute` takes.
    pub inputs: usize,
    /// Tensors that `execute` returns.
    pub outputs: usize,
    /// Constants that must be bound first.
    pub constants: usize,
}

/// A part of a program that a backend does not support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the node or kernel.
    pub node: String,
    /// Why, and what to do.
    pub reason: String,
}

/// Bytes on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Constants as kept after packing, beyond the borrowed originals.
    pub constant_bytes: u64,
    /// Peak of temporaries and outputs of one `execute`.
    pub peak_bytes: u64,
    /// Machine code and tables.
    pub code_bytes: u64,
}

/// The device's native stream handle; null is the default stream, on which `execute` returns only when the outputs are
/// readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(pub *mut c_void);

impl Stream {
    /// The device's default stream.
    pub const DEFAULT: Stream = Stream(std::ptr::null_mut());
}

// SAFETY: the handle is only a value here; the driver defines how threads may use it.
unsafe impl Send for Stream {}
// SAFETY: the handle is only a value here; sharing it gives no access to the stream.
unsafe impl Sync for Stream {}
