//! The interface for plugin authors: the safe traits [`Backend`] and [`Executable`] and the macro [`export_plugin!`].
//!
//! What this is not: the ABI itself (`plugin-abi`, whose tables this crate fills) and not a registry (`plugin-host`).
//! It is kept light: a plugin built against it compiles in seconds.
//!
//! # A backend in one page
//!
//! ```
//! use plugin_sdk::{
//!     Backend, CompileRequest, Constants, Description, DeviceInfo, Executable, Host, IrVersion, OwnedTensor,
//!     PluginError, Signature, Stream, TensorView,
//! };
//!
//! /// Returns the first input unchanged, whatever the program says.
//! struct Echo;
//!
//! impl Backend for Echo {
//!     fn open(_host: Host) -> Result<Self, PluginError> {
//!         Ok(Echo)
//!     }
//!     fn describe(&self) -> Description {
//!         Description::new("echo", "0.1.0").reads(IrVersion::fx_ir(1, 0))
//!     }
//!     fn devices(&self) -> Vec<DeviceInfo> {
//!         vec![DeviceInfo::cpu("host")]
//!     }
//!     fn compile(&self, _request: &CompileRequest<'_>) -> Result<Box<dyn Executable>, PluginError> {
//!         Ok(Box::new(EchoExecutable))
//!     }
//! }
//!
//! struct EchoExecutable;
//!
//! impl Executable for EchoExecutable {
//!     fn signature(&self) -> Signature {
//!         Signature { inputs: 1, outputs: 1, constants: 0 }
//!     }
//!     fn execute(
//!         &self,
//!         inputs: &[TensorView<'_>],
//!         _constants: &Constants<'_>,
//!         _stream: Stream,
//!     ) -> Result<Vec<OwnedTensor>, PluginError> {
//!         Ok(vec![OwnedTensor::from_slice(inputs[0].as_slice::<f32>()?, inputs[0].sizes())?])
//!     }
//! }
//!
//! plugin_sdk::export_plugin!(Echo);
//! # fn main() {}
//! ```
//!
//! With `crate-type = ["cdylib"]` that is a plugin library. A host that links the backend statically registers
//! [`entry::<Echo>`](entry) instead; both ways go through the same table and the same checks.
//!
//! # From here to a backend
//!
//! 1. **Declare what you read**: [`KERNEL_IR`] for fused loops and templates, which [`CompileRequest::kernels`] decodes, or
//!    `IrVersion::fx_ir(1, 0)` for whole graphs as text. The host writes programs in an older form for a plugin that declares an
//!    older minor.
//! 2. **Report what you do not support**, in [`Backend::query_support`]: every step, with a reason that tells the user what
//!    to do.
//! 3. **Compile**: [`Backend::compile`] gets device, mode and options, all checked against [`Description`]. Do work here
//!    that need not be repeated at every call.
//! 4. **Keep weights**: [`Executable::bind_constants`] receives them once. Their memory stays valid until the next binding,
//!    so read them in place or pack a copy.
//! 5. **Run**: [`Executable::execute`] gets [`TensorView`]s with any strides and returns [`OwnedTensor`]s.
//! 6. **Save**: with [`Backend::artifact_compat`], [`Executable::save_artifact`] and [`Backend::load_artifact`] the host
//!    keeps compiled code on disk. Foreign and damaged bytes are refused before you receive them.
//! 7. **Test it**: `ferroflux plugin check LIBRARY` runs the conformance suite; `ferroflux plugin new NAME` creates a
//!    project that passes it.
//!
//! A backend with the central part of that, which supports programs of loops and saves them:
//!
//! ```
//! use plugin_sdk::kernel_ir::{Program, Step};
//! use plugin_sdk::{
//!     Artifact, Backend, CompileRequest, Constants, Description, DeviceId, DeviceInfo, Executable, Host, KERNEL_IR,
//!     OptionKind, OptionSpec, OwnedTensor, PluginError, Refusal, Signature, Stream, TensorView,
//! };
//!
//! struct Loops;
//!
//! impl Backend for Loops {
//!     fn open(_host: Host) -> Result<Self, PluginError> {
//!         Ok(Loops)
//!     }
//!     fn describe(&self) -> Description {
//!         let threads = OptionSpec::new("threads", OptionKind::Int, 1, "worker threads");
//!         Description::new("loops", "0.1.0").summary("loops alone").reads(KERNEL_IR).option(threads)
//!     }
//!     fn devices(&self) -> Vec<DeviceInfo> {
//!         vec![DeviceInfo::cpu("host").attribute("cores", 1)]
//!     }
//!     fn query_support(&self, request: &CompileRequest<'_>) -> Result<Vec<Refusal>, PluginError> {
//!         let program = request.kernels()?;
//!         let others = program.steps.iter().filter(|step| !matches!(step, Step::Loop(_)));
//!         let refusal = |step: &Step| Refusal {
//!             node: step.name().to_owned(),
//!             reason: format!("only loops are taken, no {}", step.kind()),
//!         };
//!         Ok(others.map(refusal).collect())
//!     }
//!     fn compile(&self, request: &CompileRequest<'_>) -> Result<Box<dyn Executable>, PluginError> {
//!         if let Some(refused) = self.query_support(request)?.into_iter().next() {
//!             return Err(PluginError::unsupported(refused.reason).at(refused.node));
//!         }
//!         let threads = request.options.int("threads")?;
//!         if threads != 1 {
//!             return Err(PluginError::invalid("option `threads` must be 1"));
//!         }
//!         Ok(Box::new(Compiled { program: request.kernels()? }))
//!     }
//!     fn artifact_compat(&self, _device: DeviceId) -> Result<Option<String>, PluginError> {
//!         // The SDK adds name and version. Whatever else the code depends on is here.
//!         Ok(Some("interpreted".to_owned()))
//!     }
//!     fn load_artifact(&self, artifact: &Artifact<'_>) -> Result<Box<dyn Executable>, PluginError> {
//!         let program = Program::from_bytes(artifact.payload).map_err(|e| PluginError::damaged(e.to_string()))?;
//!         Ok(Box::new(Compiled { program }))
//!     }
//! }
//!
//! struct Compiled {
//!     program: Program,
//! }
//!
//! impl Executable for Compiled {
//!     fn signature(&self) -> Signature {
//!         let p = &self.program;
//!         Signature { inputs: p.inputs.len(), outputs: p.outputs.len(), constants: p.constants.len() }
//!     }
//!     fn bind_constants(&mut self, constants: &Constants<'_>) -> Result<(), PluginError> {
//!         // An error names the constant; the host then counts none as bound.
//!         self.program.constants.iter().try_for_each(|c| constants.by_name(&c.name).map(drop))
//!     }
//!     fn execute(
//!         &self,
//!         inputs: &[TensorView<'_>],
//!         constants: &Constants<'_>,
//!         _stream: Stream,
//!     ) -> Result<Vec<OwnedTensor>, PluginError> {
//!         # let _ = (inputs, constants);
//!         // Your machine code. Until it is there, say so:
//!         Err(PluginError::unsupported("nothing is computed yet").at(self.program.name.as_str()))
//!     }
//!     fn save_artifact(&self) -> Result<Vec<u8>, PluginError> {
//!         Ok(self.program.to_bytes())
//!     }
//! }
//!
//! plugin_sdk::export_plugin!(Loops);
//!
//! // A unit test needs no host:
//! # fn main() -> Result<(), PluginError> {
//! let loops = Loops::open(Host::NONE)?;
//! let saved = Compiled { program: Program::default() }.save_artifact()?;
//! let device = DeviceId { device_type: plugin_sdk::dlpack::DL_CPU, device_id: 0 };
//! let loaded = loops.load_artifact(&Artifact { device, payload: &saved })?;
//! assert_eq!(loaded.signature(), Signature::default());
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees to the author
//!
//! - `compile` and `execute` are called from many threads at once; `bind_constants` and the destructor are exclusive.
//! - A panic anywhere, with any payload, becomes an error of that call; a panic of a destructor is ignored. Build plugins with
//!   `panic = "unwind"` (the default).
//! - Programs of another IR major, unknown modes and options, and malformed tensors never reach the backend.
//! - The number of inputs is checked against [`Signature`]; the backend checks dtypes and sizes.
//! - No `unsafe` is needed for host memory. Device memory enters through [`OwnedTensor::from_raw_parts`].

mod artifact;
mod backend;
mod collectives;
mod describe;
mod error;
mod host;
mod inspection;
mod options;
mod owned;
mod program;
pub mod rendezvous;
mod tensor;
mod thunk;

pub use artifact::Artifact;
pub use backend::{Backend, Executable, MemoryEstimate, Refusal, Signature, Stream};
pub use collectives::{BlockExchange, CollectiveEngine, Communicator, Groups, World};
pub use describe::{Description, DeviceInfo};
pub use error::{ErrorKind, PluginError};
pub use host::{Host, LogLevel};
pub use inspection::{ExchangeRun, Listing, exchange_ran, step_ran, steps_wanted};
pub use options::{OptionKind, OptionSpec, Options};
pub use owned::{OwnedTensor, UninitTensor};
pub use program::{CompileRequest, ProgramBytes};
pub use tensor::{Constants, Element, TensorView};
pub use thunk::{engine_table, entry};

/// Half-precision element types.
pub use half::{bf16, f16};
/// Sizes, index expressions and numbers of programs.
pub use ir_core::{self, DType};
/// The programs that a device backend receives, and the meaning of their operators.
pub use kernel_ir;
/// Device type and ordinal in DLPack's numbering.
pub use plugin_abi::DLDevice as DeviceId;
/// A program form: level, major and newest minor.
pub use plugin_abi::FfxIrVersion as IrVersion;
/// DLPack's device types (`DL_CPU`, `DL_CUDA`, …) and more.
pub use plugin_abi::dlpack;
pub use plugin_abi::{Mode, UnknownMode};

/// The kernel-ir version that [`CompileRequest::kernels`] decodes, for [`Description::reads`].
pub const KERNEL_IR: IrVersion = IrVersion::kernel_ir(kernel_ir::IR_MAJOR, kernel_ir::IR_MINOR);

/// Names that [`export_plugin!`] expands to; not for direct use.
#[doc(hidden)]
pub mod __private {
    pub use plugin_abi::{FfxError, FfxHost, FfxPlugin};
}

/// Exports a [`Backend`] as the plugin of this `cdylib`: defines the symbol `ffx_plugin_entry_v1`. Once per library.
#[macro_export]
macro_rules! export_plugin {
    ($backend:ty) => {
        /// Entry of this plugin library; called by the host.
        ///
        /// # Safety
        /// As the plugin ABI requires: `host` is null or lives as long as the process, `error` is null or writable.
        // SAFETY: the name is reserved for this ABI, and this macro is the only thing that defines it.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn ffx_plugin_entry_v1(
            host: *const $crate::__private::FfxHost,
            error: *mut $crate::__private::FfxError,
        ) -> *const $crate::__private::FfxPlugin {
            // SAFETY: the caller's contract is passed on unchanged.
            unsafe { $crate::entry::<$backend>(host, error) }
        }
    };
}
