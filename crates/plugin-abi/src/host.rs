//! The services that a host offers a plugin: logging. It is not a service registry; anything larger is an extension.

use core::ffi::c_void;

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
}

tables! { FfxHost { ctx, version, log } }

// SAFETY: the table is immutable after construction and its slots may be called from any thread by contract.
unsafe impl Send for FfxHost {}
// SAFETY: shared references only read the immutable table, and its slots may be called from any thread by contract.
unsafe impl Sync for FfxHost {}
