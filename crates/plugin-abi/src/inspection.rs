//! The extension by which a host sees into compiled programs: the text of their kernels, and which steps a call runs for how
//! long. Nothing that a program computes depends on it.

use core::ffi::c_void;

use crate::FfxError;
use crate::dlpack::DLDevice;
use crate::plugin::{FfxExecutable, FfxStr};
use crate::table::{Head, tables};

/// Name to ask [`FfxPlugin::get_extension`](crate::FfxPlugin::get_extension) for; the answer is an [`FfxInspection`].
pub const INSPECTION: &str = "ferroflux.inspection.v1";

/// The text of one function of a compiled program, borrowed for one call of an [`FfxListingSink`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FfxListing {
    /// Size and version.
    pub head: Head,
    /// Name of the program's step that it belongs to.
    pub step: FfxStr,
    /// What the text is, for the user: `machine code (x86_64)`, `CUDA C++`.
    pub language: FfxStr,
    /// The text.
    pub text: FfxStr,
}

/// One run of a step, borrowed for one call of an [`FfxStepSink`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FfxStepRun {
    /// Size and version.
    pub head: Head,
    /// Where it ran.
    pub device: DLDevice,
    /// Name of the program.
    pub program: FfxStr,
    /// Name of the step.
    pub step: FfxStr,
    /// Nanoseconds from its beginning to this call of the sink.
    pub ago: u64,
    /// Nanoseconds that it took.
    pub duration: u64,
    /// What it exchanges with other ranks: `all_reduce` and the like, or `wait` where it waits for exchanges that were started;
    /// empty of a step that computes.
    pub exchange: FfxStr,
    /// Name of the group whose ranks exchange; empty of a step that computes.
    pub group: FfxStr,
    /// Of an exchange the bytes of its operand or its result on this rank, whichever are more; 0 of a step that computes.
    pub bytes: u64,
    /// How many exchanges of the program it is: several where they run as one; 0 of a step that computes.
    pub exchanges: u64,
    /// The number of the order on the device in which it ran: 0 is the one of the device's other steps, others run beside it.
    pub stream: u64,
}

/// Receives one text, which is borrowed for the call. `user` is the pointer that the caller passed with this function.
pub type FfxListingSink = unsafe extern "C" fn(user: *mut c_void, listing: *const FfxListing);
/// Receives one run of a step, which is borrowed for the call, on the thread that calls `execute`, before that returns.
pub type FfxStepSink = unsafe extern "C" fn(user: *mut c_void, run: *const FfxStepRun);
/// Passes the texts of an executable to `sink`, in the order of its steps: several for a step of several functions, none for one
/// that calls hand-written code.
pub type FfxListings = unsafe extern "C" fn(
    ctx: *mut c_void,
    exe: *const FfxExecutable,
    sink: FfxListingSink,
    user: *mut c_void,
    error: *mut FfxError,
) -> i32;
/// From now on every step that a call runs is passed to `sink`; null ends that. Calls that are under way may pass more. `user` is
/// valid for the life of the process. Calls may be slower meanwhile: a device may run them step by step.
pub type FfxObserve = unsafe extern "C" fn(ctx: *mut c_void, sink: Option<FfxStepSink>, user: *mut c_void);

/// The table of [`INSPECTION`]; valid for the life of the process. Since minor 2.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FfxInspection {
    /// Size and version.
    pub head: Head,
    /// Optional.
    pub listings: Option<FfxListings>,
    /// Optional.
    pub observe: Option<FfxObserve>,
}

// SAFETY: the table is immutable after construction and its slots may be called from any thread by contract.
unsafe impl Send for FfxInspection {}
// SAFETY: shared references only read the immutable table, and its slots may be called from any thread by contract.
unsafe impl Sync for FfxInspection {}

tables! {
    FfxListing { step, language, text }
    FfxStepRun { device, program, step, ago, duration, exchange, group, bytes, exchanges, stream }
    FfxInspection { listings, observe }
}
