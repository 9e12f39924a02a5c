//! The table that every plugin receives from this host: its log goes to `tracing`, and memory of devices is that of the allocators that the
//! process has set.

use std::borrow::Cow;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{PoisonError, RwLock};

use plugin_abi::{
    DLDevice, FFX_ERR_OUT_OF_MEMORY, FFX_ERR_UNAVAILABLE, FFX_LOG_DEBUG, FFX_LOG_ERROR, FFX_LOG_INFO,
    FFX_LOG_WARN, FFX_OK, FfxError, FfxHost, FfxStr, Head, write_error,
};

/// An allocator of device memory that a program has beside the backends: another framework's in the same process. Its functions call
/// no backend, and run on any thread, also while a backend holds its locks.
pub trait DeviceAllocator: Send + Sync {
    /// The address of `bytes` bytes (at least 1) of a device's memory, aligned to 256 bytes at least, for work on a stream of the device's
    /// driver; `None` where it does not serve now, and the backend allocates itself.
    ///
    /// # Errors
    /// A message: there is no memory left.
    fn allocate(
        &self,
        device: DLDevice,
        bytes: u64,
        stream: *mut c_void,
    ) -> Result<Option<NonNull<c_void>>, String>;

    /// Takes memory back in the order of the stream for which it was allocated.
    ///
    /// # Safety
    /// The address is one that `allocate` gave for this device and stream, given back once.
    unsafe fn free(&self, device: DLDevice, address: *mut c_void, stream: *mut c_void);
}

/// The allocators by DLPack's type of the device.
static ALLOCATORS: RwLock<Vec<(i32, &'static dyn DeviceAllocator)>> = RwLock::new(Vec::new());

/// Makes backends take the memory of devices of a type (DLPack's) from an allocator, from now on and as long as the process lives. `false`:
/// there is one already, which stays.
pub fn set_device_allocator(device_type: i32, allocator: Box<dyn DeviceAllocator>) -> bool {
    let mut all = ALLOCATORS.write().unwrap_or_else(PoisonError::into_inner);
    if all.iter().any(|(other, _)| *other == device_type) {
        return false;
    }
    // What it gave may be freed at any time, so it lives as long as the process.
    all.push((device_type, Box::leak(allocator)));
    true
}

fn allocator(device: DLDevice) -> Option<&'static dyn DeviceAllocator> {
    let all = ALLOCATORS.read().unwrap_or_else(PoisonError::into_inner);
    all.iter().find(|(kind, _)| *kind == device.device_type).map(|(_, one)| *one)
}

static HOST: FfxHost = FfxHost {
    head: Head::of::<FfxHost>(),
    ctx: std::ptr::null_mut(),
    version: FfxStr::new(concat!("ferroflux ", env!("CARGO_PKG_VERSION"))),
    log: Some(log),
    allocate_memory: Some(allocate),
    free_memory: Some(free),
};

/// The host's table, for an entry call.
pub(crate) fn host() -> *const FfxHost {
    &HOST
}

unsafe extern "C" fn log(_ctx: *mut c_void, level: u32, target: FfxStr, message: FfxStr) {
    // SAFETY: the plugin lends both texts for this call.
    let (target, message) = unsafe { (lossy(target), lossy(message)) };
    // A subscriber of the host may panic; the plugin's frames below cannot take that.
    let logged = catch_unwind(|| match level {
        FFX_LOG_ERROR => tracing::error!(target: "ferroflux::plugin", part = %target, "{message}"),
        FFX_LOG_WARN => tracing::warn!(target: "ferroflux::plugin", part = %target, "{message}"),
        FFX_LOG_INFO => tracing::info!(target: "ferroflux::plugin", part = %target, "{message}"),
        FFX_LOG_DEBUG => tracing::debug!(target: "ferroflux::plugin", part = %target, "{message}"),
        _ => tracing::trace!(target: "ferroflux::plugin", part = %target, "{message}"),
    });
    if let Err(payload) = logged {
        std::mem::forget(payload);
    }
}

unsafe extern "C" fn allocate(
    _ctx: *mut c_void,
    device: DLDevice,
    bytes: u64,
    stream: *mut c_void,
    out: *mut *mut c_void,
    error: *mut FfxError,
) -> i32 {
    let Some(allocator) = allocator(device) else { return FFX_ERR_UNAVAILABLE };
    let body = AssertUnwindSafe(|| allocator.allocate(device, bytes, stream));
    let made = catch_unwind(body).unwrap_or_else(|payload| {
        std::mem::forget(payload);
        Err("the host's allocator panicked".to_owned())
    });
    match made {
        Ok(Some(address)) => {
            // SAFETY: the plugin lends a place for the address.
            unsafe { out.write(address.as_ptr()) };
            FFX_OK
        }
        Ok(None) => FFX_ERR_UNAVAILABLE,
        Err(message) => {
            // SAFETY: the plugin lends an error struct.
            unsafe { write_error(error, FFX_ERR_OUT_OF_MEMORY, "", &message) };
            FFX_ERR_OUT_OF_MEMORY
        }
    }
}

unsafe extern "C" fn free(_ctx: *mut c_void, device: DLDevice, address: *mut c_void, stream: *mut c_void) {
    let Some(allocator) = allocator(device) else { return };
    // SAFETY: the plugin gives back what it was given, once.
    let freed = catch_unwind(AssertUnwindSafe(|| unsafe { allocator.free(device, address, stream) }));
    if let Err(payload) = freed {
        std::mem::forget(payload);
    }
}

/// # Safety
/// As for [`FfxStr::bytes`].
unsafe fn lossy<'a>(text: FfxStr) -> Cow<'a, str> {
    // SAFETY: the caller's guarantee about both texts is passed on unchanged.
    String::from_utf8_lossy(unsafe { text.bytes() })
}
