//! Candidate implementations of a step: generated kernels, calls of a vendor's library, or a sequence of both.
//!
//! Not here: which candidate is chosen (`plan`), and how it runs (`compiled`).

use gpu_codegen::{Kernel, Variant};
use ir_core::SymExpr;
use kernel_ir::BufId;
use kernel_ir::runtime::Sizes;

use crate::GpuError;

/// A candidate implementation of a step.
pub struct Candidate {
    /// Its name in the tables of the search.
    pub name: String,
    /// The parts, in order.
    pub parts: Vec<Part>,
    /// Bytes of each scratch buffer that the parts share. Not zeroed.
    pub scratch: Vec<SymExpr>,
    /// The buffer whose memory may take the place of scratch buffer 0, where it is that buffer's alone during the step. It is aligned
    /// as buffers are, to 64 bytes.
    pub in_place: Option<BufId>,
}

/// A part of a candidate.
pub enum Part {
    /// A generated kernel, whose entry is named [`gpu_codegen::ENTRY`].
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
            in_place: None,
        }
    }
}

/// A call of a vendor's library, prepared for one step of a program and any sizes. The first call with new sizes makes
/// descriptors and chooses an algorithm, which are kept. Later calls with the same sizes allocate nothing, so they can be
/// recorded in a device graph.
pub trait LibraryCall: Send + Sync {
    /// Puts the call on the driver's stream.
    ///
    /// # Errors
    /// The library's error.
    ///
    /// # Safety
    /// The addresses are device memory as large as the step's buffers and the candidate's scratch buffers.
    unsafe fn run(&self, work: &Work<'_>) -> Result<(), GpuError>;
    /// What it exchanges with other ranks at these sizes, or waits for; `None` where it does neither.
    fn exchanged(&self, _sizes: &Sizes) -> Option<Exchanged> {
        None
    }
    /// Whether a kernel that waits for earlier launches itself may be launched early behind it: what it puts on the stream ends
    /// after all before it has ended.
    fn lets_launches_overlap(&self) -> bool {
        false
    }
}

/// What a call exchanges with other ranks, or waits for.
pub struct Exchanged {
    /// Its kind: the name of an exchange, or `wait`.
    pub what: &'static str,
    /// The group; empty of a wait.
    pub group: String,
    /// Bytes of the operands or the results, whichever are more.
    pub bytes: u64,
    /// The number of the program's exchanges.
    pub exchanges: u64,
    /// The mark behind it on a second stream, or the one that is waited for.
    pub mark: Option<usize>,
}

/// The arguments of a library call.
pub struct Work<'a> {
    /// The address of a buffer's memory; for a view, of its root.
    pub address: &'a dyn Fn(BufId) -> u64,
    /// The value of a size.
    pub size: &'a dyn Fn(&SymExpr) -> Result<i64, GpuError>,
    /// Addresses of the candidate's scratch buffers.
    pub scratch: &'a [u64],
}
