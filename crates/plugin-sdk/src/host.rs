//! The services of the host for a plugin: logging, and device memory where the host's process has an allocator already.

use std::ffi::c_void;

use plugin_abi::{ABI_MINOR, FfxAllocateMemory, FfxError, FfxFreeMemory, FfxHost, FfxLog, FfxStr};
use plugin_abi::{FFX_ERR_UNAVAILABLE, FFX_OK, text_bytes};

use crate::{DeviceId, ErrorKind, PluginError, Stream};

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
    memory: Option<(FfxAllocateMemory, FfxFreeMemory)>,
}

// SAFETY: the ABI requires that the host's slots may be called from any thread for the life of the process.
unsafe impl Send for Host {}
// SAFETY: the ABI requires that the host's slots may be called from many threads at once.
unsafe impl Sync for Host {}

impl Host {
    /// A host that drops every event, for an author's unit tests.
    pub const NONE: Host = Host { ctx: std::ptr::null_mut(), minor: 0, log: None, memory: None };

    /// The host of a table: [`entry`](crate::entry) makes it of the one that it is given, and an author's tests of their own.
    ///
    /// # Safety
    /// The table's slots keep the ABI's contract for the life of the process.
    pub unsafe fn of_table(table: &FfxHost) -> Self {
        let memory = table.allocate_memory.zip(table.free_memory);
        Self { ctx: table.ctx, minor: table.head.minor, log: table.log, memory }
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

    /// The address of memory of a device, of the host's allocator, for work on this stream of the device's driver; `None` where the host has
    /// none for such devices, and the plugin allocates itself. Aligned to 256 bytes at least; what the stream was given before may still use it.
    /// [`free_memory`](Self::free_memory) gives it back.
    ///
    /// # Errors
    /// The host's allocator has no memory left.
    pub fn allocate_memory(
        &self,
        device: DeviceId,
        bytes: u64,
        stream: Stream,
    ) -> Result<Option<u64>, PluginError> {
        let Some((allocate, _)) = self.memory else { return Ok(None) };
        let (mut out, mut error) = (std::ptr::null_mut(), FfxError::new());
        // SAFETY: the slot came from the host's table with its context; the places live through the call.
        match unsafe { allocate(self.ctx, device, bytes, stream.0, &mut out, &mut error) } {
            FFX_OK if !out.is_null() => Ok(Some(out as u64)),
            FFX_ERR_UNAVAILABLE => Ok(None),
            _ => {
                let text = String::from_utf8_lossy(text_bytes(&error.message)).into_owned();
                Err(PluginError::new(ErrorKind::OutOfMemory, text))
            }
        }
    }

    /// Gives memory back, in the order of the stream for which it was allocated.
    ///
    /// # Safety
    /// The address is one that [`allocate_memory`](Self::allocate_memory) gave for this device and stream, given back once; work on other
    /// streams does not use it any more.
    pub unsafe fn free_memory(&self, device: DeviceId, address: u64, stream: Stream) {
        if let Some((_, free)) = self.memory {
            // SAFETY: the slot came from the host's table with its context; the caller answers for the address.
            unsafe { free(self.ctx, device, address as *mut c_void, stream.0) }
        }
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("logs", &self.log.is_some()).finish()
    }
}
