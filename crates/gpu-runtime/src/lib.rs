//! What GPU backends share above the driver: which kernels a program needs, where its memory lies, how its steps run,
//! control flow and sizes included. A backend is a [`Driver`]: it compiles text, launches and moves bytes.
//!
//! Not here: driver calls, the text of kernels (`gpu-codegen`), anything of one vendor.

mod choice;
mod compiled;
mod error;
mod machine;
mod memory;
mod plan;
mod sizes;

pub use choice::{Choice, LibraryCall, Part, Work};
pub use compiled::{Compiled, to_device, to_host};
pub use error::GpuError;
pub use memory::Block;

/// The texts of every kernel of a program and of every way of computing a step, in modules, for whoever wants to compile
/// them without a device.
///
/// # Errors
/// A step that has no kernel.
pub fn modules(program: &kernel_ir::Program, target: &gpu_codegen::Target) -> Result<Vec<Module>, GpuError> {
    let mut planner = plan::Planner::new(program, target, &|_| Vec::new(), true);
    planner.plan(&program.init)?;
    planner.plan(&program.steps)?;
    Ok(planner.kernels.modules())
}

/// What a vendor's driver does for the runtime. All work of one driver runs in the order of its calls.
pub trait Driver: Send + Sync + 'static {
    /// A kernel that can be launched.
    type Function: Send + Sync;

    /// Compiles modules (whole texts with their entry points) at once.
    fn compile(&self, modules: &[Module]) -> Result<Vec<Vec<Self::Function>>, GpuError>;
    /// Device memory, aligned to 256 bytes at least; never asked for 0 bytes.
    fn allocate(&self, bytes: u64) -> Result<u64, GpuError>;
    /// Gives memory back; work that was started before may still use it.
    fn free(&self, address: u64);
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
    /// Launches a kernel with `shared` bytes of dynamic shared memory. Every argument is 64 bits: an address or a number.
    ///
    /// # Safety
    /// The arguments are what the kernel takes, and its addresses are device memory that it may use.
    unsafe fn launch(&self, function: &Self::Function, grid: Grid, arguments: &[u64]) -> Result<(), GpuError>;
    /// What kernels are made for.
    fn target(&self) -> gpu_codegen::Target;
    /// The ways in which libraries of the vendor compute a step, the best by rule first; they are tried before the generated
    /// ones. None where the library is missing or has nothing for the step.
    fn library(&self, _program: &kernel_ir::Program, _step: &kernel_ir::Step) -> Vec<Choice> {
        Vec::new()
    }
    /// Waits for all work so far; errors of kernels show here.
    fn synchronize(&self) -> Result<(), GpuError>;
    /// The DLPack type and ordinal of the device.
    fn device(&self) -> plugin_sdk::DeviceId;
}

/// The shape of one launch, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// The text, prelude included.
    pub source: String,
    /// Its entry points.
    pub entries: Vec<String>,
}
