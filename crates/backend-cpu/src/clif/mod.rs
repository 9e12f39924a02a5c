//! Vector IR to machine code through Cranelift: 128-bit vectors of every architecture that Cranelift has, scalar code for
//! tails, and calls of leaves (`leaf`) where innermost loops are wider. One function per kernel or epilogue; see `emit` for its shape. Knows no executor.

mod blocks;
mod calls;
mod cast;
mod check;
mod compile;
mod emit;
mod epilogue;
mod fault;
mod host;
mod index;
mod lanes;
mod leaf;
mod memory;
mod ops;
mod reduce;
mod regs;
mod saved;
mod trig;
mod values;

#[cfg(test)]
pub(crate) use compile::compile_for;
pub use compile::{Code, EpilogueFn, JitError, Job, KernelFn, compile};
pub(crate) use compile::{MachineFunction, instruction_set, listing, load};
pub use epilogue::{EpilogueContext, Walk};
pub(crate) use fault::{Fault, OutOfBounds};
pub(crate) use memory::ZEROS;
pub(crate) use saved::{Bytes, Saved};
