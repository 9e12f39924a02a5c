//! The functions of the extension by which a host sees into compiled programs. The contract is that of
//! [`slots`](super::slots).

use std::ffi::c_void;

use plugin_abi::{
    FfxError, FfxExecutable, FfxInspection, FfxListing, FfxListingSink, FfxStepSink, FfxStr, Head,
};

use super::guard::guard;
use super::slots::cell;

/// The table of the extension, the same for all backend types.
pub(super) const TABLE: &FfxInspection =
    &FfxInspection { head: Head::of::<FfxInspection>(), listings: Some(listings), observe: Some(observe) };

unsafe extern "C" fn listings(
    _ctx: *mut c_void,
    exe: *const FfxExecutable,
    sink: FfxListingSink,
    user: *mut c_void,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract of [`slots`](super::slots); each text lives through the call of the sink.
    unsafe {
        guard(error, || {
            for listing in cell(exe)?.read()?.executable.listings()? {
                let table = FfxListing {
                    head: Head::of::<FfxListing>(),
                    step: FfxStr::new(&listing.step),
                    language: FfxStr::new(&listing.language),
                    text: FfxStr::new(&listing.text),
                };
                sink(user, &table);
            }
            Ok(())
        })
    }
}

unsafe extern "C" fn observe(_ctx: *mut c_void, sink: Option<FfxStepSink>, user: *mut c_void) {
    crate::inspection::observe(sink, user);
}
