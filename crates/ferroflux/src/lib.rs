//! Ferroflux: the PyTorch 2 compiler stack in Rust. This crate is its public interface.
//!
//! ```no_run
//! use ferroflux::{Mode, Options, Program, Tensor};
//!
//! let program = Program::load("model.pt2")?;
//! let model = program.compile(&Options::new().backend("cpu").mode(Mode::Default))?;
//! let image = Tensor::zeros(ferroflux::DType::F32, &[1, 3, 224, 224])?;
//! let outputs = model.call(&[image])?;
//! println!("{:?}", outputs[0].sizes());
//! # Ok::<(), ferroflux::Error>(())
//! ```
//!
//! - [`Program`]: a model read from a `torch.export` archive, and every stage of its compilation.
//! - [`pipeline`]: those stages as a list, and how to print the graph between them.
//! - [`Options`], [`Mode`]: the backend and its settings.
//! - [`Compiled`]: the result; call it from any thread. [`Input`]: numbers and text as inputs of a call, in addition to
//!   tensors.
//! - [`foreign`]: graphs on the tensors of another framework, lent for a call.
//! - [`cache`]: compiled programs on disk, for later processes.
//! - [`train`], [`optim`]: gradients, and training steps compiled as one program.
//! - [`prelude`]: what a program written in Rust uses: [`eager`] tensors with operators and gradients, [`nn`] modules, and
//!   [`capture`]: `compile(f)` for Rust functions.
//! - [`mesh`]: one program on many devices.
//! - [`profiler`], [`report`]: where time goes; a page about each compiled program.
//! - [`verify`], [`minify`]: the first operator with wrong numbers; small programs that still fail.
//! - [`quantize`]: models with integers for weights and activations.
//! - [`func`]: functions of tensors in Rust, and their transforms: `grad`, `vmap`, `jvp`, `hessian`, ….
//! - [`list_backends`]: the available backends, and the reasons why others are not.
//! - [`graph_backend`]: backends in Rust that take whole graphs (`eager`, `inspect`, your own), as plugins.
//!
//! Not here: the stages themselves. Each is a crate of its own; this one connects them.

// The derive macro of modules names this crate, also within it.
extern crate self as ferroflux;

mod boundary;
pub mod cache;
pub mod capture;
mod check;
mod code;
mod compiled;
pub mod eager;
mod error;
mod explain;
pub mod foreign;
pub mod func;
pub mod graph_backend;
mod graph_plugin;
mod inputs;
mod lent;
pub mod log;
pub mod mesh;
pub mod minify;
pub mod nn;
pub mod npy;
pub mod optim;
mod options;
mod oracle;
pub mod pipeline;
pub mod prelude;
pub mod profiler;
mod program;
pub mod quantize;
mod recipe;
pub mod report;
mod seeds;
mod surgery;
pub mod train;
pub mod verify;
mod zero_points;

pub use compiled::Compiled;
pub use error::Error;
pub use explain::{Explanation, KernelInfo, Unsupported};
pub use fx_ir;
pub use inductor::Problem;
pub use inputs::{Input, InputInfo, InputKind, TensorInfo};
pub use ir_core::{self, DType, Device};
pub use kernel_ir;
pub use options::{Mode, Options};
pub use plugin_host::{BackendInfo, DeviceInfo, UnknownMode, Value, nearest};
pub use prims::schema_of as prims_schema;
pub use program::Program;
pub use pt2::{Pt2Error, SafetensorsSource, Weight, WeightSource};
pub use recipe::{Recipe, RecipeSource};
pub use tensor::{self, Tensor, TensorError};

#[cfg(any(feature = "cpu", feature = "cuda", feature = "rocm"))]
mod builtin {
    //! Registers the backends that are linked in: the same tables that the plugin libraries export.

    #[cfg(feature = "cpu")]
    plugin_host::inventory::submit! {
        plugin_host::BuiltinPlugin { name: "cpu", entry: plugin_sdk::entry::<backend_cpu::CpuBackend> }
    }
    #[cfg(feature = "cuda")]
    plugin_host::inventory::submit! {
        plugin_host::BuiltinPlugin { name: "cuda", entry: plugin_sdk::entry::<backend_cuda::CudaBackend> }
    }
    #[cfg(feature = "rocm")]
    plugin_host::inventory::submit! {
        plugin_host::BuiltinPlugin { name: "rocm", entry: plugin_sdk::entry::<backend_rocm::RocmBackend> }
    }
}

/// Every backend that is linked in or found by manifest, usable or not, with its devices or the reason it cannot run.
/// The result is kept for the life of the process.
pub fn list_backends() -> Vec<BackendInfo> {
    registry().list_backends()
}

/// Whether a backend keeps tensors on a device, so that weights by formula are computed there.
///
/// # Errors
/// There is no such backend, or it cannot be loaded.
pub fn keeps_tensors_on_a_device(backend: &str) -> Result<bool, Error> {
    Ok(registry().load(backend)?.has_device_memory())
}

/// The one registry of the process: libraries are checked and loaded once.
pub(crate) fn registry() -> &'static plugin_host::Registry {
    static REGISTRY: std::sync::OnceLock<plugin_host::Registry> = std::sync::OnceLock::new();
    REGISTRY.get_or_init(|| {
        // Whatever compiles asks the registry first.
        log::from_environment();
        plugin_host::Registry::from_env()
    })
}
