//! What GPU backends share above the driver: which kernels a program needs, where its memory lies, how its steps run,
//! control flow and sizes included, and the plugin itself ([`GpuBackend`]). A backend is a [`Driver`], which compiles text,
//! launches and moves bytes, and a [`Platform`], which finds devices and opens them. For drivers with streams, events and graphs
//! both are made here ([`Device`]) of the driver's calls ([`Calls`]) and what else is a vendor's ([`Vendor`]).
//!
//! Not here: driver calls, the text of kernels (`gpu-codegen`), anything specific to a vendor.
//!
//! ```
//! use gpu_runtime::Settings;
//!
//! // What a backend does where nothing else is asked for.
//! let settings = Settings::default();
//! assert_eq!((settings.tf32, settings.deterministic), (None, None));
//! ```

mod answer_cache;
mod arguments;
mod autotune;
mod backend;
mod bind;
mod cache;
mod candidate;
mod choice;
mod compiled;
pub mod convolutions;
mod device;
mod driver;
mod error;
mod exchange;
mod faults;
pub mod find;
mod found;
mod graph;
mod inspection;
mod machine;
mod maps;
mod measure;
mod memory;
mod overlap;
mod plan;
mod prepare;
pub mod products;
mod profile;
mod recorder;
mod settings;
pub mod sizes;
mod transfer;

pub use answer_cache::{AnswerCache, SharedCache};
pub use backend::{CompilationRequest, GpuBackend, Platform};
pub use cache::Cache;
pub use candidate::{Candidate, Exchanged, LibraryCall, Part, Work};
pub use compiled::Compiled;
pub use device::{Calls, Device, Function, Handle, Vendor};
pub use driver::{Driver, Grid, HostMemory, Module, Recording, SideStream, Timed};
pub use error::GpuError;
pub use faults::Inputs;
pub use maps::{Arguments, Map};
pub use measure::{CandidateTime, MeasuredProgram, StepTimes, measure};
pub use memory::{Block, DeviceMemory, MemoryUsage};
pub use plan::asks_libraries;
pub use plugin_sdk::Mode;
pub use profile::StepTime;
pub use recorder::Recorder;
pub use settings::{CostModel, Settings};
pub use transfer::{allocate, copy, to_device, to_host};

/// The texts of every kernel of a program, for all candidates of its steps, in modules that can be compiled without a
/// device.
///
/// # Errors
/// A step has no kernel.
pub fn modules(program: &kernel_ir::Program, target: &gpu_codegen::Target) -> Result<Vec<Module>, GpuError> {
    // A cost model would leave out what it thinks cannot win.
    let target = gpu_codegen::Target { costs: None, ..target.clone() };
    texts(program, &target, Mode::MaxAutotune, plan::MAX_PER_MODULE)
}

/// As [`modules`], the texts that a mode compiles, each kernel in a module of its own.
///
/// # Errors
/// As for [`modules`].
pub fn single_kernels(
    program: &kernel_ir::Program,
    target: &gpu_codegen::Target,
    mode: Mode,
) -> Result<Vec<Module>, GpuError> {
    texts(program, target, mode, 1)
}

fn texts(
    program: &kernel_ir::Program,
    target: &gpu_codegen::Target,
    mode: Mode,
    each: usize,
) -> Result<Vec<Module>, GpuError> {
    let mut program = program.clone();
    adapt(&mut program, target);
    // Exchanges have no text.
    let none =
        || Candidate { name: "exchange".into(), parts: Vec::new(), scratch: Vec::new(), in_place: None };
    let library = |step: &kernel_ir::Step| Vec::from_iter(exchange::is_exchange(step).then(none));
    let mut planner = plan::Planner::new(&program, target, &library, &|_| None, mode);
    planner.plan(&program.init)?;
    planner.plan_call(&program.steps)?;
    Ok(planner.kernels.modules(each, target))
}

/// Changes a program to what kernels for this device want: results of sorts that are as long as they are read, values that are computed
/// again instead of stored, weights in another layout, rows that begin at whole vectors, masks in bits, blocks that masks hide.
pub fn adapt(program: &mut kernel_ir::Program, target: &gpu_codegen::Target) {
    gpu_codegen::narrow_sorts(program);
    gpu_codegen::recompute(program);
    gpu_codegen::pack_weights(program);
    gpu_codegen::align_rows(program);
    gpu_codegen::prepare_masks(program, target);
}
