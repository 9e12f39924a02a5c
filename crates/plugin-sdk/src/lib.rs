//! What a plugin author uses: the safe traits [`Backend`] and [`Executable`] and the macro [`export_plugin!`].
//!
//! What this is not: the ABI itself (`plugin-abi`, which this crate fills in) and not a registry (`plugin-host`).
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
//! # What the author may rely on
//!
//! - `compile` and `execute` are called from many threads at once; `bind_constants` and the destructor are exclusive.
//! - A panic anywhere becomes an error of that call. Build plugins with `panic = "unwind"` (the default).
//! - Programs of another IR major, unknown modes and options, and malformed tensors never reach the backend.
//! - The number of inputs is checked against [`Signature`]; dtypes and sizes are the backend's to check.

mod artifact;
mod backend;
mod describe;
mod error;
mod host;
mod options;
mod owned;
mod program;
mod tensor;
mod thunk;

pub use artifact::Artifact;
pub use backend::{Backend, Executable, MemoryEstimate, Refusal, Signature, Stream};
pub use describe::{Description, DeviceInfo};
pub use error::{ErrorKind, PluginError};
pub use host::{Host, LogLevel};
pub use options::{OptionKind, OptionSpec, Options};
pub use owned::{OwnedTensor, UninitTensor};
pub use program::{CompileRequest, ProgramBytes};
pub use tensor::{Constants, Element, TensorView};
pub use thunk::entry;

/// Half-precision element types.
pub use half::{bf16, f16};
/// Sizes, index expressions and numbers of programs.
pub use ir_core::{self, DType};
/// The programs that a device backend gets, and what their operators mean.
pub use kernel_ir;
/// Device type and ordinal in DLPack's numbering.
pub use plugin_abi::DLDevice as DeviceId;
/// A program form: level, major and newest minor.
pub use plugin_abi::FfxIrVersion as IrVersion;
/// DLPack's device types (`DL_CPU`, `DL_CUDA`, …) and more.
pub use plugin_abi::dlpack;

/// The kernel-ir that [`CompileRequest::kernels`] decodes: what a device backend says that it
/// [reads](Description::reads).
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
        /// As the plugin ABI says: `host` is null or lives as long as the process, `error` is null or writable.
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
