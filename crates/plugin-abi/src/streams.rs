//! The extension by which a host orders work on a device without knowing its driver: makes streams and waits for them.
//!
//! A host that already has native streams (of another library in the same process) passes those to `execute` and does not
//! need this extension.

use core::ffi::c_void;

use crate::FfxError;
use crate::dlpack::DLDevice;
use crate::table::{Head, tables};

/// Name to ask [`FfxPlugin::get_extension`](crate::FfxPlugin::get_extension) for; the answer is a [`FfxStreams`].
pub const STREAMS: &str = "ferroflux.streams.v1";

/// Sets `*out` to a new stream of `device`: a native handle, not null, for `execute` and `copy`.
pub type FfxStreamCreate = unsafe extern "C" fn(
    ctx: *mut c_void,
    device: DLDevice,
    out: *mut *mut c_void,
    error: *mut FfxError,
) -> i32;
/// Returns when all work that was started on `stream` before is done; null is the device's default stream. A failure of
/// that work is reported here.
pub type FfxStreamSynchronize = unsafe extern "C" fn(
    ctx: *mut c_void,
    device: DLDevice,
    stream: *mut c_void,
    error: *mut FfxError,
) -> i32;
/// Frees a stream of `create` after its work is done. No other call uses it meanwhile.
pub type FfxStreamDestroy = unsafe extern "C" fn(ctx: *mut c_void, device: DLDevice, stream: *mut c_void);

/// The table of [`STREAMS`]; valid for the life of the process. Since minor 1.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FfxStreams {
    /// Size and version.
    pub head: Head,
    /// Required.
    pub create: Option<FfxStreamCreate>,
    /// Required.
    pub synchronize: Option<FfxStreamSynchronize>,
    /// Required.
    pub destroy: Option<FfxStreamDestroy>,
}

// SAFETY: the table is immutable after construction and its slots may be called from any thread by contract.
unsafe impl Send for FfxStreams {}
// SAFETY: shared references only read the immutable table, and its slots may be called from any thread by contract.
unsafe impl Sync for FfxStreams {}

tables! {
    FfxStreams { create, synchronize, destroy }
}
