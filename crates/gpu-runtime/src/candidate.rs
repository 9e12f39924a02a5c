//! Ways of computing a step: generated kernels, calls of a vendor's library, or both one after another.
//!
//! Not here: which of them is taken, and how (`plan`, `compiled`).

use gpu_codegen::{Kernel, Variant};
use ir_core::SymExpr;
use kernel_ir::BufId;

use crate::GpuError;

/// One way of computing a step.
pub struct Candidate {
    /// What the tables of the search call it.
    pub name: String,
    /// What runs, in order.
    pub parts: Vec<Part>,
    /// Bytes of each scratch buffer that the parts share. Not zeroed.
    pub scratch: Vec<SymExpr>,
}

/// A part of a way.
pub enum Part {
    /// A generated kernel, its entry named [`gpu_codegen::ENTRY`].
    Kernel(Kernel),
    /// A call of a library.
    Library(Box<dyn LibraryCall>),
}

impl From<Variant> for Candidate {
    fn from(v: Variant) -> Candidate {
        Candidate {
            name: v.name,
            parts: v.kernels.into_iter().map(Part::Kernel).collect(),
            scratch: v.scratch,
        }
    }
}

/// A call of a vendor's library, prepared for one step of a program and any sizes. Descriptors and the choice of an algorithm
/// are made at the first call with new sizes and kept: a later call with the same sizes allocates nothing, so that it may be
/// recorded in a device graph.
pub trait LibraryCall: Send + Sync {
    /// Puts the call on the driver's stream.
    ///
    /// # Errors
    /// What the library says.
    ///
    /// # Safety
    /// The addresses are device memory as large as the step's buffers and the choice's scratch.
    unsafe fn run(&self, work: &Work<'_>) -> Result<(), GpuError>;
}

/// What a library call works on.
pub struct Work<'a> {
    /// The address of a buffer's memory; of a view: that of its root.
    pub address: &'a dyn Fn(BufId) -> u64,
    /// The value of a size.
    pub size: &'a dyn Fn(&SymExpr) -> Result<i64, GpuError>,
    /// Addresses of the choice's scratch buffers.
    pub scratch: &'a [u64],
}
