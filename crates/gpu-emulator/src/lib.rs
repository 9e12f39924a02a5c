//! A GPU that is none: generated kernels compiled by the system's C++ compiler and run on the host, threads of a block as
//! fibers. For tests and tooling on machines without a GPU; slow, and nothing of the shipped command.
//!
//! What it finds beyond wrong numbers: barriers and warp collectives that threads come to differently, threads that wait
//! for each other, writes outside of buffers (guard zones, checked after every launch), reads of memory that nobody wrote
//! (new memory, shared memory and guard zones hold not-a-number patterns), asynchronous copies that are read before they
//! were waited for, misaligned vector accesses of the tensor-core helpers. What it does not find: races between blocks,
//! which run one after another, and most races within one (fibers run in turn, each pass in the opposite order).
//!
//! Kernels are those of a Hopper, with warps of 32 lanes, or (`wave=64`) those of an AMD GPU with waves of 64 in HIP's words.
//! [`Emulator`] is a `gpu_runtime::Driver`; [`EmulatorBackend`] is the backend `gpu-emulator`.

mod backend;
mod compiler;
mod driver;
mod error;
mod launch;
mod memory;
mod recording;

pub use backend::EmulatorBackend;
pub use compiler::available;
pub use driver::Emulator;
pub use error::EmulatorError;
pub use launch::Function;
