//! Kernels for GPUs: kernel-ir steps as text of one C++ dialect, header-free, which the compilers of all vendors
//! read behind the words of their own ([`Dialect`]).
//!
//! A function from data to data: it knows no driver, launches nothing and keeps nothing. [`generate`] turns one step into
//! one [`Kernel`]: text, parameters in order and the shape of its launch, all as expressions in the size symbols, so that
//! one compiled kernel serves every size. [`Prelude`] gives what stands before the kernels of a module.
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
//! let ways = gpu_codegen::variants(&program, &program.steps[0], &Target::HOPPER)?;
//! assert!(!ways.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod architectures;
mod attention;
mod conv;
mod dialect;
mod fused_launch;
mod library;
mod loops;
mod product;
mod sort;
mod target;
mod text;

use ir_core::{DType, SymExpr, SymId};
use kernel_ir::{BufId, ExternOp, Program, Step};
use thiserror::Error;

pub use dialect::{Dialect, Prelude};
pub use fused_launch::chain::{Chain, chain};
pub use fused_launch::{LaunchGroup, fuse_launches};
pub use library::blocks::{Blocks, fold};
pub use library::epilogue::{Packed, epilogue, epilogue_of, relayout, result_dtype, store_order};
pub use library::pack::pack_weights;
pub use library::vendor_epilogue::{Bias, StridedView, VendorEpilogue, vendor_epilogue};
pub use target::{Features, Target};

/// One way of computing a step: kernels that run one after another, with memory between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// What the tables of the search call it: `tile_128x128x32`.
    pub name: String,
    /// The kernels, in their order.
    pub kernels: Vec<Kernel>,
    /// Bytes of each scratch buffer, which [`Param::Scratch`] numbers. Not zeroed.
    pub scratch: Vec<SymExpr>,
}

impl Variant {
    /// A step that is one kernel.
    pub(crate) fn single(name: impl Into<String>, kernel: Kernel) -> Variant {
        Variant { name: name.into(), kernels: vec![kernel], scratch: Vec::new() }
    }
}

/// One generated kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// Its entry point.
    pub entry: String,
    /// The text, without the prelude.
    pub source: String,
    /// What the entry takes, in order.
    pub params: Vec<Param>,
    /// The tensor maps that [`Param::Map`] numbers.
    pub maps: Vec<TensorMap>,
    /// How it is launched.
    pub launch: Launch,
    /// For each check of an index, by its number in the text, the number of its site in [`Program::sites`]. The text has
    /// the numbers of the checks alone, so that kernels which differ in their sites have one text.
    pub checks: Vec<u32>,
    /// Whether it asks for constants before it waits for earlier launches: it gains where it may begin before they end.
    pub early: bool,
    /// What it is made of, for whoever makes one kernel of several.
    pub(crate) text_parts: text::template::KernelText,
}

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Param {
    /// The address of a buffer's memory.
    Buffer(BufId),
    /// The value of a size symbol, 64 bits.
    Symbol(SymId),
    /// The address of a scratch buffer of the variant, aligned to 256 bytes.
    Scratch(u32),
    /// The address of [`TICKETS`] 32-bit words that are 0 when the kernel begins and 0 again when it ends: blocks count
    /// there which of them comes last. Kernels that run one after another share them.
    Tickets,
    /// The address of the program's [`Fault`], where the first index is noted that fails its check.
    Fault,
    /// The number that the first check of the kernel has in [`Fault::check`], 64 bits; the others follow.
    FirstCheck,
    /// A tensor map by its number in [`Kernel::maps`], passed by value.
    Map(u32),
}

/// What kernels leave of the first index that fails its check, in memory that the host reads too. All of it is 0 before, and
/// written by the one thread that sets `claimed`; a launch that has ended has written it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Fault {
    /// 1 where the rest counts.
    pub claimed: u32,
    /// Which check: its number in the kernel, added to [`Param::FirstCheck`].
    pub check: u32,
    /// The index that was found.
    pub index: i64,
    /// One more than the largest that is allowed.
    pub size: i64,
}

/// A part of a buffer's memory as the copy engine is told of it: 128 bytes that the driver makes of this, at most five
/// dimensions, the innermost first. What is read beyond the sizes is 0. Boxes lie in shared memory without gaps, 128 bytes
/// of the innermost dimension a line, in the order of the 128-byte swizzle.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorMap {
    /// The buffer; of a view: what it is a view of.
    pub buf: BufId,
    /// Dtype of its elements.
    pub dtype: DType,
    /// Elements before the first one: a multiple of 16 bytes.
    pub offset: SymExpr,
    /// Sizes, none of them 0.
    pub sizes: Vec<SymExpr>,
    /// Elements from one to the next, of every dimension but the innermost, where it is 1: multiples of 16 bytes.
    pub strides: Vec<SymExpr>,
    /// Sizes of the box that is copied at once, at most 256 each.
    pub window: Vec<u32>,
}

/// The shape of a launch. Nothing is launched where the number of blocks is 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Blocks in x, y and z. In x kernels loop where the device's limit is lower; y and z are at most 65,535.
    pub blocks: [SymExpr; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory, at most [`Target::lds`].
    pub shared: u32,
}

impl Launch {
    /// Blocks in x alone, no dynamic shared memory.
    pub(crate) fn flat(blocks: SymExpr, threads: u32) -> Launch {
        Launch { blocks: [blocks, SymExpr::ONE, SymExpr::ONE], threads, shared: 0 }
    }
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

/// Words of [`Param::Tickets`].
pub const TICKETS: u32 = 4096;

/// Threads of a block where nothing else is called for.
pub(crate) const THREADS: u32 = 256;
/// Blocks of a launch at most; kernels stride over what is more.
pub(crate) const MAX_BLOCKS: i64 = 1 << 20;

/// What stands for the name of a kernel's entry until the runtime numbers it: equal kernels then have equal texts.
pub const ENTRY: &str = "ENTRY_POINT";

/// Whether the first of a step's [`variants`] is by rule at least about as fast as a library's kernel, so that no library
/// need be asked where ways are not timed.
pub fn prefers_generated(program: &Program, step: &Step, target: &Target) -> bool {
    match step {
        Step::Matmul(k) => product::matmul::prefers_generated(program, k, target),
        Step::Conv(k) => conv::prefers_generated(program, k, target),
        _ => false,
    }
}

/// The ways of computing a step, the one that is best by rule first. Never empty.
///
/// # Errors
/// Steps that are no kernels (`bind`, control flow, routines of matrices) are the runtime's.
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
            _ => sort::variants(program, k, target),
        },
        _ => Err(GenError::Routine(step.name().to_owned())),
    }
}
