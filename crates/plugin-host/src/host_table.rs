//! The table that every plugin receives from this host: its log goes to `tracing`.

use std::borrow::Cow;
use std::ffi::c_void;
use std::panic::catch_unwind;

use plugin_abi::{FFX_LOG_DEBUG, FFX_LOG_ERROR, FFX_LOG_INFO, FFX_LOG_WARN, FfxHost, FfxStr, Head};

static HOST: FfxHost = FfxHost {
    head: Head::of::<FfxHost>(),
    ctx: std::ptr::null_mut(),
    version: FfxStr::new(concat!("ferroflux ", env!("CARGO_PKG_VERSION"))),
    log: Some(log),
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

/// # Safety
/// As for [`FfxStr::bytes`].
unsafe fn lossy<'a>(text: FfxStr) -> Cow<'a, str> {
    // SAFETY: the caller's guarantee about both texts is passed on unchanged.
    String::from_utf8_lossy(unsafe { text.bytes() })
}
