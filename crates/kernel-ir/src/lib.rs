//! kernel-ir: the input of a backend. Fused loop kernels, templates (matrix product, convolution,
//! attention), buffers and the execution plan, as plain data with a version, a byte form and a text form.
//!
//! It holds no closures, no graph and no device code. Sizes are symbolic; a backend compiles one program once and runs
//! it at every size in range.
//!
//! ```
//! use kernel_ir::Program;
//!
//! let text = r#"kir 1.0
//! program "relu"
//! buffer b0 "x" f32[8]{1}+0 input 0
//! buffer b1 "y" f32[8]{1}+0 output
//! input "x" b0
//! output "y" b1[8]{1}+0
//! init:
//! steps:
//! loop "relu" outer [8]
//!   stage []
//!     v0: f32 = load b0[i0]
//!     v1: f32 = const 0.0
//!     v2: f32 = max v0, v1
//!     v3: f32 = store b1[i0], v2
//! plan:
//! "#;
//! let program: Program = text.parse()?;
//! kernel_ir::verify(&program)?;
//! assert_eq!(Program::from_bytes(&program.to_bytes())?, program);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod body;
mod build;
pub mod collapse;
mod collective;
mod dequant;
mod fourier;
mod groups;
mod indices;
mod integer;
mod kernel;
mod linalg;
pub mod part;
mod phases;
mod plan;
mod program;
pub mod runtime;
mod scalar_op;
mod text;
mod together;
mod verify;
mod wire;
mod wire_older;
mod written;

pub use body::{AccId, BufId, Inst, InstKind, ReduceOp, StoreMode, Val, pruned};
pub use build::BodyBuilder;
pub use collective::{Collective, CollectiveOp, Combine, SELF_GROUP, side_by_side};
pub use fourier::{Fourier, FourierForm, LARGEST_FACTOR, LONGEST, is_length};
pub use groups::{Along, Groups};
pub use indices::{ConstantRange, drop_checks, guard_indices, prove_indices};
pub use integer::is_integer_product;
/// A size symbol of a program.
pub use ir_core::{Symbol, Symbols};
pub use kernel::{
    AccDecl, Assert, Attention, Bind, Cond, Conv, Dequant, Dropout, Epilogue, ExternCall, ExternOp, For,
    LoopBounds, LoopKernel, MaskTable, Matmul, Operand, Stage, Step, Visibility, While,
};
pub use linalg::LinalgOp;
pub use phases::plain_steps;
pub use plan::{ALIGN, ArenaPlan, LiveRange, PlanError};
pub use program::{Buffer, Const, InputSpec, OutputSpec, Program, Site, Storage};
pub use scalar_op::philox::{philox_bits, philox4x32_10};
pub use scalar_op::{DTypeRule, ScalarOp};
pub use text::{MAX_TEXT_BYTES, TextError, TextProblem};
pub use together::{Footprint, Together};
pub use verify::{VerifyError, takes, verify};
pub use wire::{DROPOUT, FOURIER, IR_MAJOR, IR_MINOR, WireError};
pub use wire_older::NoOlderForm;
pub use written::{Hazard, hazards};
