//! An emulated GPU: generated kernels are compiled by the system's C++ compiler and run on the host, with the threads of a
//! block as fibers. It serves tests and tooling on machines without a GPU; it is slow and not a part of the shipped
//! command.
//!
//! Besides wrong numbers it detects divergent barriers and warp collectives, deadlocks within a block, writes outside of
//! buffers (guard zones are checked after every launch), reads of uninitialized memory (new memory, shared memory and
//! guard zones hold NaN patterns), asynchronous copies that are read before they are waited for, and misaligned vector
//! accesses of the tensor-core helpers. It does not detect races between blocks, which run one after another, and most
//! races within a block (fibers run in turn, in alternating order).
//!
//! The kernels are those for a Hopper, with warps of 32 lanes, or (`wave=64`) those for an AMD GPU in HIP with waves of
//! 64. [`Emulator`] is a `gpu_runtime::Driver`; [`EmulatorBackend`] is the backend `gpu-emulator`.

mod backend;
mod compiler;
mod driver;
mod error;
mod launch;
mod memory;
mod recording;
mod side;

pub use backend::EmulatorBackend;
pub use compiler::available;
pub use driver::Emulator;
pub use error::EmulatorError;
pub use launch::Function;
