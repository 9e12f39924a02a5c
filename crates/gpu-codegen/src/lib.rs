//! Kernels for GPUs: the text of kernel-ir steps in one header-free C++ dialect, which every vendor's compiler reads after
//! a prelude of its own ([`Dialect`]).
//!
//! This crate is a pure function: it knows no driver, launches nothing and keeps no state. [`variants`] turns one step
//! into candidate lists of [`Kernel`]s: text, parameters in order and launch shape, all as expressions in the size
//! symbols, so that one compiled kernel serves every size. [`Prelude`] gives the text that precedes the kernels of a
//! module.
//!
//! ```
//! use gpu_codegen::Target;
//! use kernel_ir::Program;
//!
//! let text = r#"kir 1.0
//! program "relu"
//! buffer b0 "x" f32[800]{1}+0 input 0
//! buffer b1 "y" f32[800]{1}+0 output
//! input "x" b0
//! output "y" b1[800]{1}+0
//! init:
//! steps:
//! loop "relu" outer [800]
//!   stage []
//!     v0: f32 = load b0[i0]
//!     v1: f32 = const 0.0
//!     v2: f32 = max v0, v1
//!     v3: f32 = store b1[i0], v2
//! plan:
//! "#;
//! let program: Program = text.parse()?;
//! let candidates = gpu_codegen::variants(&program, &program.steps[0], &Target::HOPPER)?;
//! assert!(!candidates.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod address;
mod architectures;
mod attention;
mod conv;
mod cost;
mod dialect;
mod fourier;
mod fused_launch;
mod library;
mod loops;
mod product;
mod sort;
mod target;
mod text;
mod tf32;

use ir_core::{DType, SymExpr, SymId};
use kernel_ir::{BufId, ExternOp, Program, Step};
use thiserror::Error;

pub use attention::masks::prepare_masks;
pub use cost::{CostError, Costs, Measured, Model, Prediction, Speeds, StepWork, TERMS, Work, fit, may_win};
pub use dialect::{Dialect, Prelude};
pub use fused_launch::chain::{Chain, chain};
pub use fused_launch::{LaunchGroup, fuse_launches};
pub use library::blocks::{Blocks, fold};
pub use library::epilogue::{Packed, epilogue, epilogue_of, in_place, relayout, result_dtype, store_order};
pub use library::pack::pack_weights;
pub use library::rows::align_rows;
pub use library::vendor_epilogue::{Bias, StridedView, VendorEpilogue, vendor_epilogue};
pub use loops::recompute::recompute;
pub use sort::first::narrow_sorts;
pub use target::{Features, Target};
pub use tf32::Tf32;

/// A candidate implementation of a step: kernels that run one after another, with scratch memory between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// Its name in the tables of the search: `tile_128x128x32`.
    pub name: String,
    /// The kernels, in order.
    pub kernels: Vec<Kernel>,
    /// Bytes of each scratch buffer, which [`Param::Scratch`] numbers. Not zeroed.
    pub scratch: Vec<SymExpr>,
}

impl Variant {
    /// A candidate of one kernel.
    pub(crate) fn single(name: impl Into<String>, kernel: Kernel) -> Variant {
        Variant { name: name.into(), kernels: vec![kernel], scratch: Vec::new() }
    }
}

/// One generated kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// The name of its entry point.
    pub entry: String,
    /// The text, without the prelude.
    pub source: String,
    /// The parameters of the entry, in order.
    pub params: Vec<Param>,
    /// The tensor maps that [`Param::Map`] numbers.
    pub maps: Vec<TensorMap>,
    /// How it is launched.
    pub launch: Launch,
    /// The site in [`Program::sites`] of each index check, by the check's number in the text. The text has only the check
    /// numbers, so kernels that differ in their sites share a text.
    pub checks: Vec<u32>,
    /// Whether it loads constants before it waits for earlier launches, and so gains from an early launch (programmatic
    /// dependent launch).
    pub early: bool,
    /// The parts of the text, from which several kernels can be fused into one.
    pub(crate) text_parts: text::template::KernelText,
}

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Param {
    /// The address of a buffer's memory.
    Buffer(BufId),
    /// The value of a size symbol, 64 bits.
    Symbol(SymId),
    /// This number, 64 bits: a size or the bits of a float that is not a constant of the text, so that kernels which differ in such
    /// numbers alone are compiled once.
    Number(i64),
    /// The number of elements, 64 bits, between the begin of a buffer's memory and that of the slice that the kernel accesses, so
    /// that kernels which differ in the place of a slice alone, the steps of an unrolled recurrence for example, are compiled once.
    Slice(i64),
    /// The address of a scratch buffer of the variant, aligned to 256 bytes; to 64 where it is the memory of a buffer
    /// ([`in_place`]).
    Scratch(u32),
    /// The address of [`TICKETS`] 32-bit counters that are 0 when the kernel begins and 0 again when it ends. Blocks count
    /// there to find out which of them is the last. Kernels that run one after another share them.
    Tickets,
    /// The address of the program's [`Fault`], which records the first index that fails its check.
    Fault,
    /// The number in [`Fault::check`] of the kernel's first check, 64 bits; its other checks follow.
    FirstCheck,
    /// A tensor map by its number in [`Kernel::maps`], passed by value.
    Map(u32),
}

/// The record of the first index that failed its check, in memory that the host reads too. It is all 0 before. The thread
/// that sets `claimed` writes the rest; it is complete when the launch has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Fault {
    /// 1 where the other fields are valid.
    pub claimed: u32,
    /// The number of the check: its number in the kernel plus [`Param::FirstCheck`].
    pub check: u32,
    /// The index.
    pub index: i64,
    /// The size of the indexed dimension.
    pub size: i64,
}

/// A part of a buffer as the tensor memory accelerator (TMA) sees it, from which the driver encodes a 128-byte descriptor:
/// at most five dimensions, the innermost first. Elements beyond the sizes read as 0. Boxes are stored in shared memory
/// without gaps, in lines of 128 bytes of the innermost dimension, with the 128-byte swizzle.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorMap {
    /// The buffer; for a view, its root.
    pub buf: BufId,
    /// Dtype of its elements.
    pub dtype: DType,
    /// Elements before the first one; a multiple of 16 bytes.
    pub offset: SymExpr,
    /// Sizes, none of them 0.
    pub sizes: Vec<SymExpr>,
    /// Strides in elements of every dimension but the innermost, whose stride is 1; multiples of 16 bytes.
    pub strides: Vec<SymExpr>,
    /// Sizes of the box that one copy transfers, at most 256 each.
    pub window: Vec<u32>,
}

/// The shape of a launch. Nothing is launched where the number of blocks is 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Blocks in x, y and z. Kernels loop in x where the device's limit is lower; y and z are at most 65,535.
    pub blocks: [SymExpr; 3],
    /// Threads per block.
    pub threads: u32,
    /// Bytes of dynamic shared memory, at most [`Target::lds`].
    pub shared: u32,
}

impl Launch {
    /// A launch with blocks in x alone and no dynamic shared memory.
    pub(crate) fn flat(blocks: SymExpr, threads: u32) -> Launch {
        Launch { blocks: [blocks, SymExpr::ONE, SymExpr::ONE], threads, shared: 0 }
    }
}

/// Why a step has no kernel.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum GenError {
    /// The dtype has no arithmetic on a GPU.
    #[error("{0} has no arithmetic on a GPU; compute in f32 or f64")]
    DType(DType),
    /// The operator is not defined for the dtype.
    #[error("`{op}` is not defined for {dtype}")]
    Op {
        /// The operator.
        op: &'static str,
        /// The dtype.
        dtype: DType,
    },
    /// The routine does not run on the device.
    #[error("the routine `{0}` has no kernel")]
    Routine(String),
    /// The program breaks the rules of kernel-ir.
    #[error("malformed kernel: {0}")]
    Malformed(String),
}

/// Number of counters behind [`Param::Tickets`].
pub const TICKETS: u32 = 4096;

/// Threads per block by default.
pub(crate) const THREADS: u32 = 256;
/// Maximum number of blocks of a launch; kernels loop over the remaining points.
pub(crate) const MAX_BLOCKS: i64 = 1 << 20;

/// Placeholder for the name of a kernel's entry until the runtime numbers it, so that equal kernels have equal texts.
pub const ENTRY: &str = "ENTRY_POINT";

/// Whether the first of a step's [`variants`] is by rule at least about as fast as a library's kernel, so that no library
/// need be asked where candidates are not timed.
pub fn prefers_generated(program: &Program, step: &Step, target: &Target) -> bool {
    match step {
        Step::Matmul(k) => product::matmul::prefers_generated(program, k, target),
        Step::Conv(k) => conv::prefers_generated(program, k, target),
        _ => false,
    }
}

/// Whether a library's candidate for a step, which takes `kernels` kernels, is by rule slower than the first of its [`variants`].
pub fn outruns_library(program: &Program, step: &Step, target: &Target, kernels: usize) -> bool {
    match step {
        Step::Matmul(k) => product::matmul::outruns_library(program, k, target),
        Step::Conv(k) => kernels > 1 && conv::outruns_library(program, k),
        _ => false,
    }
}

/// A hash of the sources that determine the texts of kernels: what was found about kernels of a name holds for those of one
/// build.
pub const BUILD: &str = env!("FFX_GPU_BUILD");

/// Returns the candidate implementations of a step, best first by rule. The list is never empty.
///
/// # Errors
/// [`GenError`] for steps without a kernel (`bind`, control flow, matrix routines), which the runtime runs.
pub fn variants(program: &Program, step: &Step, target: &Target) -> Result<Vec<Variant>, GenError> {
    match step {
        Step::Loop(k) => loops::variants(program, k, target),
        Step::Matmul(k) => {
            let mut candidates = product::gemv::variants(program, k, target)?;
            candidates.extend(product::matmul::variants(program, k, target)?);
            Ok(candidates)
        }
        Step::Conv(k) => conv::variants(program, k, target),
        Step::Attention(k) => attention::variants(program, k, target),
        Step::Extern(k) => match k.op {
            ExternOp::AttentionBackward { .. } => attention::backward::variants(program, k, target),
            ExternOp::MaskTable(_) => attention::masks::variants(program, k, target),
            ExternOp::Fourier { .. } => fourier::variants(program, k, target),
            ExternOp::Collective(_) | ExternOp::Wait => Err(GenError::Routine(k.name.clone())),
            _ => sort::variants(program, k, target),
        },
        _ => Err(GenError::Routine(step.name().to_owned())),
    }
}
