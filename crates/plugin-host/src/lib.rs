//! The registry of backends: built-ins that register through `inventory`, libraries found by manifest, and a library
//! named by its path. Everything that crosses to a plugin crosses here.
//!
//! What this is not: a compiler (it passes programs on as bytes) and not a device runtime. It does not know
//! fx-ir: graphs cross as text.
//!
//! - [`Registry`]: finds backends by name and lists them with reasons. Start here.
//! - [`manifest`], [`SearchPath`]: what is found where, and the checks before anything is loaded.
//! - [`LoadedBackend`], [`LoadedExecutable`]: safe handles over the plugin's table.
//! - [`HostError`]: what can go wrong, and what to do.
//!
//! ```no_run
//! use plugin_host::{CompileArgs, Registry};
//! # fn main() -> Result<(), plugin_host::HostError> {
//! # let (ir, bytes) = (plugin_host::IrVersion::kernel_ir(1, 0), vec![]);
//! let registry = Registry::from_env();
//! for backend in registry.list_backends() {
//!     println!("{}: {}", backend.name, backend.unavailable_because.as_deref().unwrap_or("ready"));
//! }
//! let cpu = registry.load("cpu")?;
//! let executable = cpu.compile(&CompileArgs::new(ir, &bytes))?;
//! # Ok(()) }
//! ```

mod artifact;
mod backend;
mod collectives;
mod discovery;
mod elf;
mod error;
mod executable;
mod handshake;
mod host_table;
mod info;
mod inspection;
mod library;
pub mod manifest;
mod memory;
mod permissions;
mod program;
mod read;
mod registry;
mod tensors;

pub use backend::{CompileArgs, LoadedBackend, set_local_rank};
pub use collectives::{Communicator, Engine, World};
pub use discovery::{Folder, PATH_VARIABLE, SearchPath};
pub use error::{HostError, PluginFailure};
pub use executable::LoadedExecutable;
pub use host_table::{DeviceAllocator, set_device_allocator};
pub use info::{BackendInfo, DeviceInfo, MemoryEstimate, OptionInfo, OptionKind, Refusal, Source};
pub use inspection::{ExchangeRun, Listing, StepObserver, StepRun, observe_steps};
pub use ir_core::nearest;
pub use library::entry_of;
pub use manifest::{Manifest, target_triple};
pub use memory::DeviceStream;
pub use permissions::check as check_permissions;
pub use registry::{BuiltinPlugin, Registry};
pub use tensors::{Arg, Value};

/// Re-exports what `inventory::submit!` needs, so that a crate that registers a backend need not depend on it.
pub use inventory;
/// Device type and ordinal in DLPack's numbering.
pub use plugin_abi::DLDevice as DeviceId;
/// The code of a plugin that does not support a request.
pub use plugin_abi::FFX_ERR_UNSUPPORTED;
/// A program form: level, major, minor.
pub use plugin_abi::FfxIrVersion as IrVersion;
/// DLPack's device types.
pub use plugin_abi::dlpack;
pub use plugin_abi::{Mode, UnknownMode};

/// The kernel-ir that this host writes.
pub const KERNEL_IR: IrVersion = IrVersion::kernel_ir(kernel_ir::IR_MAJOR, kernel_ir::IR_MINOR);
