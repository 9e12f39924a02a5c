//! The services that a host offers a plugin: logging, and device memory of the program that the host is a part of. It is not a service
//! registry; anything larger is an extension.

use core::ffi::c_void;

use crate::dlpack::DLDevice;
use crate::error::FfxError;
use crate::plugin::FfxStr;
use crate::table::{Head, tables};

/// Log level: an error that the user should see.
pub const FFX_LOG_ERROR: u32 = 1;
/// Log level: something suspicious that was handled.
pub const FFX_LOG_WARN: u32 = 2;
/// Log level: a notable event.
pub const FFX_LOG_INFO: u32 = 3;
/// Log level: detail for the plugin's author.
pub const FFX_LOG_DEBUG: u32 = 4;
/// Log level: everything.
pub const FFX_LOG_TRACE: u32 = 5;

/// One log event; `target` names the part of the plugin. Both texts are borrowed for the call.
pub type FfxLog = unsafe extern "C" fn(ctx: *mut c_void, level: u32, target: FfxStr, message: FfxStr);

/// Writes the address of `bytes` bytes (at least 1) of a device's memory to `*out`, aligned to 256 bytes at least, for work on `stream`: what that
/// stream was given before may still use it. `stream` is a stream of the device's driver, never null. `FFX_ERR_UNAVAILABLE`, without a
/// message: the host has no memory of such devices, and the plugin allocates itself. `FFX_ERR_OUT_OF_MEMORY`: it has none left.
///
/// It may be called on any thread, also while the plugin holds locks: it calls no function of a plugin.
pub type FfxAllocateMemory = unsafe extern "C" fn(
    ctx: *mut c_void,
    device: DLDevice,
    bytes: u64,
    stream: *mut c_void,
    out: *mut *mut c_void,
    error: *mut FfxError,
) -> i32;

/// Takes memory back that [`FfxAllocateMemory`] gave for `stream`, in the order of that stream: what it was given before may still use
/// the memory, and other streams do not any more. On any thread.
pub type FfxFreeMemory =
    unsafe extern "C" fn(ctx: *mut c_void, device: DLDevice, address: *mut c_void, stream: *mut c_void);

/// The host's table; valid for the whole life of the process.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FfxHost {
    /// Size and version.
    pub head: Head,
    /// First argument of every slot.
    pub ctx: *mut c_void,
    /// Name and version of the host program's library, for messages.
    pub version: FfxStr,
    /// Optional: takes one log event, on any thread.
    pub log: Option<FfxLog>,
    /// Optional, since 1.3, with `free_memory`: device memory of the host's own allocator.
    pub allocate_memory: Option<FfxAllocateMemory>,
    /// Optional, since 1.3, with `allocate_memory`.
    pub free_memory: Option<FfxFreeMemory>,
}

tables! { FfxHost { ctx, version, log, allocate_memory, free_memory } }

// SAFETY: the table is immutable after construction and its slots may be called from any thread by contract.
unsafe impl Send for FfxHost {}
// SAFETY: shared references only read the immutable table, and its slots may be called from any thread by contract.
unsafe impl Sync for FfxHost {}
