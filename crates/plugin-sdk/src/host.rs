//! The services of the host for a plugin: logging.

use std::ffi::c_void;

use plugin_abi::FfxStr;
use plugin_abi::{ABI_MINOR, FfxHost, FfxLog};

/// Level of a log event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum LogLevel {
    /// An error that the user should see.
    Error = plugin_abi::FFX_LOG_ERROR,
    /// Something suspicious that was handled.
    Warn = plugin_abi::FFX_LOG_WARN,
    /// A notable event.
    Info = plugin_abi::FFX_LOG_INFO,
    /// Detail for the plugin's author.
    Debug = plugin_abi::FFX_LOG_DEBUG,
    /// Everything.
    Trace = plugin_abi::FFX_LOG_TRACE,
}

/// A handle of the host; copy it wherever it is needed. Without a host it works too, and discards log events.
#[derive(Clone, Copy)]
pub struct Host {
    ctx: *mut c_void,
    minor: u16,
    log: Option<FfxLog>,
}

// SAFETY: the ABI requires that the host's slots may be called from any thread for the life of the process.
unsafe impl Send for Host {}
// SAFETY: the ABI requires that the host's slots may be called from many threads at once.
unsafe impl Sync for Host {}

impl Host {
    /// A host that drops every event, for an author's unit tests.
    pub const NONE: Host = Host { ctx: std::ptr::null_mut(), minor: 0, log: None };

    pub(crate) fn from_table(table: &FfxHost) -> Self {
        Self { ctx: table.ctx, minor: table.head.minor, log: table.log }
    }

    /// The effective minor of the ABI: the lower one of this plugin's and the host's. Later additions are not used.
    pub fn abi_minor(&self) -> u16 {
        self.minor.min(ABI_MINOR)
    }

    /// Logs one event; `target` names the part of the plugin.
    pub fn log(&self, level: LogLevel, target: &str, message: &str) {
        if let Some(log) = self.log {
            // SAFETY: the slot came from the host's table with its context; both texts outlive the call.
            unsafe { log(self.ctx, level as u32, FfxStr::new(target), FfxStr::new(message)) }
        }
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("logs", &self.log.is_some()).finish()
    }
}
