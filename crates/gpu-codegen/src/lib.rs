//! Kernels for GPUs: kernel-ir steps as text of one C++ dialect, header-free, which NVRTC compiles (hiprtc is to follow).
//!
//! A function from data to data: it knows no driver, launches nothing and keeps nothing. [`generate`] turns one step into
//! one [`Kernel`]: text, parameters in order and the shape of its launch, all as expressions in the size symbols, so that
//! one compiled kernel serves every size. [`PRELUDE`] stands before the kernels of a module.

mod attention;
mod body;
mod conv;
mod flat;
mod index;
mod looped;
mod matmul;
mod ops;
mod sort;
mod template;
mod types;

use ir_core::{DType, SymExpr, SymId};
use kernel_ir::{BufId, Program, Step};
use thiserror::Error;

/// What every module begins with.
pub const PRELUDE: &str = include_str!("prelude.cu");

/// One generated kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// Its entry point.
    pub entry: String,
    /// The text, without the prelude.
    pub source: String,
    /// What the entry takes, in order.
    pub params: Vec<Param>,
    /// How it is launched.
    pub launch: Launch,
}

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Param {
    /// The address of a buffer's memory.
    Buffer(BufId),
    /// The value of a size symbol, 64 bits.
    Symbol(SymId),
}

/// The shape of a launch. Nothing is launched where the number of blocks is 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Blocks in x; kernels loop where the device's limit is lower.
    pub blocks: SymExpr,
    /// Threads of a block.
    pub threads: u32,
}

/// A step that has no kernel.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum GenError {
    /// A dtype without arithmetic.
    #[error("{0} has no arithmetic on a GPU; compute in f32 or f64")]
    DType(DType),
    /// An operator that a dtype does not have.
    #[error("`{op}` is not defined for {dtype}")]
    Op {
        /// The operator.
        op: &'static str,
        /// The dtype.
        dtype: DType,
    },
    /// A routine that is run elsewhere.
    #[error("the routine `{0}` has no kernel")]
    Routine(String),
    /// A program that breaks the rules of kernel-ir.
    #[error("malformed kernel: {0}")]
    Malformed(String),
}

/// Threads of a block where nothing else is called for.
pub(crate) const THREADS: u32 = 256;
/// Blocks of a launch at most; kernels stride over what is more.
pub(crate) const MOST_BLOCKS: i64 = 1 << 20;

/// The kernel of a step; `entry` becomes its name. Steps that are no kernels (`bind`, control flow) are the runtime's.
pub fn generate(program: &Program, step: &Step, entry: &str) -> Result<Kernel, GenError> {
    match step {
        Step::Loop(k) => looped::generate(program, k, entry),
        Step::Matmul(k) => matmul::generate(program, k, entry),
        Step::Conv(k) => conv::generate(program, k, entry),
        Step::Attention(k) => attention::generate(program, k, entry),
        Step::Extern(k) => sort::generate(program, k, entry),
        _ => Err(GenError::Routine(step.name().to_owned())),
    }
}
