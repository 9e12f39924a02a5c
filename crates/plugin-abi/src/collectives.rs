//! The extensions by which programs run on many ranks: an engine that exchanges data between them ([`COLLECTIVES`]), and a
//! backend whose programs use an engine ([`COLLECTIVE_PROGRAMS`]). Both may be one plugin, or two: an engine for memory of a
//! kind of device serves every backend for these devices.
//!
//! Every rank of a communicator makes the same calls on it in the same order, from one thread at a time.

use core::ffi::c_void;

use crate::FfxError;
use crate::dlpack::{DLDataType, DLDevice};
use crate::plugin::{FfxExecutable, FfxStr};
use crate::table::{Head, tables};

/// Name to ask [`FfxPlugin::get_extension`](crate::FfxPlugin::get_extension) for; the answer is a [`FfxCollectives`].
pub const COLLECTIVES: &str = "ferroflux.collectives.v1";
/// Name to ask [`FfxPlugin::get_extension`](crate::FfxPlugin::get_extension) for; the answer is a [`FfxCollectivePrograms`].
pub const COLLECTIVE_PROGRAMS: &str = "ferroflux.collective-programs.v1";

/// Exchange: one block to one block, the combination of all ranks.
pub const FFX_ALL_REDUCE: u32 = 1;
/// Exchange: one block to one for each rank.
pub const FFX_ALL_GATHER: u32 = 2;
/// Exchange: one block for each rank to one block, the combination of those with this rank's number.
pub const FFX_REDUCE_SCATTER: u32 = 3;
/// Exchange: one block for each rank to as many.
pub const FFX_ALL_TO_ALL: u32 = 4;
/// Exchange: one block to one block, that of rank `parameter`.
pub const FFX_BROADCAST: u32 = 5;
/// Exchange: one block to one block, that of the rank `parameter` before this one; zeros where there is none.
pub const FFX_SHIFT: u32 = 6;
/// Exchange: as [`FFX_SHIFT`], with numbers modulo the number of ranks.
pub const FFX_SHIFT_AROUND: u32 = 7;

/// Combination: sum.
pub const FFX_COMBINE_SUM: u32 = 1;
/// Combination: sum, divided by the number of ranks.
pub const FFX_COMBINE_MEAN: u32 = 2;
/// Combination: product.
pub const FFX_COMBINE_PROD: u32 = 3;
/// Combination: largest; `NaN` wins.
pub const FFX_COMBINE_MAX: u32 = 4;
/// Combination: smallest; `NaN` wins.
pub const FFX_COMBINE_MIN: u32 = 5;

/// The ranks that join, as a launcher names them. Borrowed for the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FfxWorld {
    /// Size and version.
    pub head: Head,
    /// This rank's number.
    pub rank: u32,
    /// The number of ranks.
    pub size: u32,
    /// The device whose memory this rank exchanges.
    pub device: DLDevice,
    /// Where the ranks meet: `host:port`, or a name within a process; empty where the engine's launcher knows.
    pub address: FfxStr,
    /// Milliseconds after which a rank that does not answer is an error; 0 is the engine's own limit.
    pub timeout_ms: u64,
}

/// One exchange. Borrowed for the call, its memory until the exchange has been waited for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FfxExchange {
    /// Size and version.
    pub head: Head,
    /// One of the exchanges above.
    pub kind: u32,
    /// One of the combinations above; 0 where nothing is combined.
    pub combine: u32,
    /// Element type.
    pub dtype: DLDataType,
    /// Zero.
    pub reserved: u32,
    /// Elements of a block.
    pub count: u64,
    /// One block, or one for each rank.
    pub send: *const c_void,
    /// One block, or one for each rank; does not overlap `send`.
    pub receive: *mut c_void,
    /// Rank or distance.
    pub parameter: i64,
    /// The device's native stream: the exchange comes after the work on it, and later work on it after the exchange. Null is
    /// host memory, or the default stream.
    pub stream: *mut c_void,
    /// The step of the program, for messages.
    pub step: FfxStr,
}

/// Ranks that have joined; only its engine knows what is inside.
#[repr(C)]
#[derive(Debug)]
pub struct FfxCommunicator {
    _opaque: [u8; 0],
}

/// Sets `*out` to a communicator of all ranks of `world`; returns when all have joined.
pub type FfxJoin = unsafe extern "C" fn(
    ctx: *mut c_void,
    world: *const FfxWorld,
    out: *mut *mut FfxCommunicator,
    error: *mut FfxError,
) -> i32;
/// Sets `*out` to a communicator of the ranks that pass the same `color`, numbered in the order of `key`. Every rank calls it.
pub type FfxSplit = unsafe extern "C" fn(
    ctx: *mut c_void,
    communicator: *mut FfxCommunicator,
    color: u32,
    key: u32,
    out: *mut *mut FfxCommunicator,
    error: *mut FfxError,
) -> i32;
/// Starts an exchange and sets `*ticket` to its number, which is less than 2^56. With a stream it is complete when the stream is; without, when `wait`
/// has returned.
pub type FfxStartExchange = unsafe extern "C" fn(
    ctx: *mut c_void,
    communicator: *mut FfxCommunicator,
    exchange: *const FfxExchange,
    ticket: *mut u64,
    error: *mut FfxError,
) -> i32;
/// Starts `n` exchanges of one communicator as [`FfxStartExchange`] starts each, in their order, and sets as many tickets. An engine
/// may run them as one where that costs less. All have the same stream, and no memory of one overlaps a result of another. Every
/// rank passes the same exchanges at once. Where it fails no ticket is set.
pub type FfxStartExchanges = unsafe extern "C" fn(
    ctx: *mut c_void,
    communicator: *mut FfxCommunicator,
    exchanges: *const *const FfxExchange,
    n: usize,
    tickets: *mut u64,
    error: *mut FfxError,
) -> i32;
/// Returns when the exchange is complete, or orders it before later work on its stream. For an exchange with a stream it may be
/// called more than once, and tells whether the ranks are still there.
pub type FfxWaitExchange = unsafe extern "C" fn(
    ctx: *mut c_void,
    communicator: *mut FfxCommunicator,
    ticket: u64,
    error: *mut FfxError,
) -> i32;
/// Ends all exchanges of a communicator with an error on every rank that can be reached. May be called from any thread.
pub type FfxAbort = unsafe extern "C" fn(ctx: *mut c_void, communicator: *mut FfxCommunicator);
/// Frees a communicator; null is allowed. No other call uses it meanwhile.
pub type FfxLeave = unsafe extern "C" fn(ctx: *mut c_void, communicator: *mut FfxCommunicator);

/// Sets `*out` to a communicator over one that the caller has of the engine's own library (`ncclComm_t` of the library that this process has
/// loaded), with this rank's number, the number of ranks and the device in `world`. No other rank is asked or waited for. The native one stays
/// the caller's: it lives longer than `*out`, and nobody else calls its library with it at the same time.
pub type FfxAdoptCommunicator = unsafe extern "C" fn(
    ctx: *mut c_void,
    native: *mut c_void,
    world: *const FfxWorld,
    out: *mut *mut FfxCommunicator,
    error: *mut FfxError,
) -> i32;

/// The table of [`COLLECTIVES`]; valid for the life of the process, also for other plugins than the one that has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FfxCollectives {
    /// Size and version.
    pub head: Head,
    /// First argument of every slot.
    pub ctx: *mut c_void,
    /// Required.
    pub join: Option<FfxJoin>,
    /// Required.
    pub split: Option<FfxSplit>,
    /// Required.
    pub start: Option<FfxStartExchange>,
    /// Required.
    pub wait: Option<FfxWaitExchange>,
    /// Optional: null means that ranks only end by their time limit.
    pub abort: Option<FfxAbort>,
    /// Required.
    pub leave: Option<FfxLeave>,
    /// Optional: null means that exchanges are started one by one.
    pub start_several: Option<FfxStartExchanges>,
    /// Optional, since 1.3: null means that communicators are not taken over.
    pub adopt: Option<FfxAdoptCommunicator>,
}

/// A group of ranks as a program names it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FfxGroup {
    /// Size and version.
    pub head: Head,
    /// Name, as the program's collectives have it.
    pub name: FfxStr,
    /// The engine.
    pub engine: *const FfxCollectives,
    /// Its ranks; valid until the executable is destroyed or has other groups.
    pub communicator: *mut FfxCommunicator,
    /// This rank's number in the group.
    pub rank: u32,
    /// The number of ranks.
    pub size: u32,
}

/// Gives an executable the groups of its collectives, before its constants are bound; replaces earlier ones. No other call
/// uses the executable meanwhile.
pub type FfxAttachGroups = unsafe extern "C" fn(
    ctx: *mut c_void,
    exe: *mut FfxExecutable,
    groups: *const *const FfxGroup,
    n_groups: usize,
    error: *mut FfxError,
) -> i32;

/// The table of [`COLLECTIVE_PROGRAMS`]; valid for the life of the process.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FfxCollectivePrograms {
    /// Size and version.
    pub head: Head,
    /// Required.
    pub attach: Option<FfxAttachGroups>,
}

// SAFETY: the table is immutable after construction and its slots may be called from any thread by contract.
unsafe impl Send for FfxCollectives {}
// SAFETY: shared references only read the immutable table, and its slots may be called from any thread by contract.
unsafe impl Sync for FfxCollectives {}
// SAFETY: the table is immutable after construction and its slots may be called from any thread by contract.
unsafe impl Send for FfxCollectivePrograms {}
// SAFETY: shared references only read the immutable table, and its slots may be called from any thread by contract.
unsafe impl Sync for FfxCollectivePrograms {}

tables! {
    FfxWorld { rank, size, device, address, timeout_ms }
    FfxExchange { kind, combine, dtype, reserved, count, send, receive, parameter, stream, step }
    FfxCollectives { ctx, join, split, start, wait, abort, leave, start_several, adopt }
    FfxGroup { name, engine, communicator, rank, size }
    FfxCollectivePrograms { attach }
}
