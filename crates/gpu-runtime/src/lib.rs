//! What GPU backends share above the driver: which kernels a program needs, where its memory lies, how its steps run,
//! control flow and sizes included, and the plugin itself ([`GpuBackend`]). A backend is a [`Driver`], which compiles text,
//! launches and moves bytes, and a [`Platform`], which finds devices and opens them.
//!
//! Not here: driver calls, the text of kernels (`gpu-codegen`), anything of one vendor.
//!
//! ```
//! use gpu_runtime::Settings;
//!
//! // What a backend does where nothing else is asked for.
//! let settings = Settings::default();
//! assert_eq!((settings.tf32, settings.deterministic), (None, None));
//! ```

mod arguments;
mod autotune;
mod backend;
mod candidate;
mod compiled;
mod driver;
mod error;
mod faults;
mod graph;
mod machine;
mod maps;
mod memory;
mod plan;
mod prepare;
mod profile;
mod recorder;
mod settings;
mod transfer;

pub use backend::{CompilationRequest, GpuBackend, Platform};
pub use candidate::{Candidate, LibraryCall, Part, Work};
pub use compiled::Compiled;
pub use driver::{Driver, Grid, HostMemory, Module, Recording};
pub use error::GpuError;
pub use faults::Inputs;
pub use maps::{Arguments, Map};
pub use memory::{Block, DeviceMemory, MemoryUsage};
pub use plan::asks_libraries;
pub use plugin_sdk::Mode;
pub use profile::StepTime;
pub use recorder::Recorder;
pub use settings::Settings;
pub use transfer::{allocate, copy, to_device, to_host};

/// The texts of every kernel of a program and of every way of computing a step, in modules, for whoever wants to compile
/// them without a device.
///
/// # Errors
/// A step that has no kernel.
pub fn modules(program: &kernel_ir::Program, target: &gpu_codegen::Target) -> Result<Vec<Module>, GpuError> {
    let mut program = program.clone();
    gpu_codegen::pack_weights(&mut program);
    let mut planner = plan::Planner::new(&program, target, &|_| Vec::new(), Mode::MaxAutotune);
    planner.plan(&program.init)?;
    planner.plan_call(&program.steps)?;
    Ok(planner.kernels.modules(plan::MAX_PER_MODULE, target))
}
