//! The functions of the table that save compiled code and load it. The contract is that of [`slots`](super::slots).

use std::ffi::c_void;

use plugin_abi::{DLDevice, FfxArtifact, FfxBytesSink, FfxError, FfxExecutable};

use super::entry::{Instance, instance};
use super::guard::guard;
use super::request;
use super::slots::{Cell, cell, null_out};
use crate::artifact::{self, Artifact};
use crate::{Backend, DeviceId, PluginError};

pub(super) unsafe extern "C" fn compat_string<B: Backend>(
    ctx: *mut c_void,
    device: DLDevice,
    sink: FfxBytesSink,
    user: *mut c_void,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract of [`slots`](super::slots); the text lives through the call of the sink.
    unsafe {
        guard(error, || {
            let text = compat(instance::<B>(ctx)?, device)?;
            sink(user, text.as_ptr(), text.len());
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn save<B: Backend>(
    ctx: *mut c_void,
    exe: *const FfxExecutable,
    sink: FfxBytesSink,
    user: *mut c_void,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract of [`slots`](super::slots); the bytes live through the call of the sink.
    unsafe {
        guard(error, || {
            let cell = cell(exe)?;
            let compat = compat(instance::<B>(ctx)?, cell.device)?;
            let sealed = artifact::seal(&compat, &cell.read()?.executable.save_artifact()?);
            sink(user, sealed.as_ptr(), sealed.len());
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn load<B: Backend>(
    ctx: *mut c_void,
    artifact: *const FfxArtifact,
    out: *mut *mut FfxExecutable,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract of [`slots`](super::slots); `out` is checked for null.
    unsafe {
        guard(error, || {
            let out = out.as_mut().ok_or_else(null_out)?;
            let instance = instance::<B>(ctx)?;
            let FfxArtifact { device, bytes, n_bytes, .. } = request::table(artifact)?;
            let bytes = request::bytes(bytes, n_bytes, "an artifact")?;
            let payload = artifact::open(bytes, &compat(instance, device)?)?;
            let loaded = instance.backend.load_artifact(&Artifact { device, payload })?;
            *out = Cell::export(loaded, device);
            Ok(())
        })
    }
}

/// The whole compatibility string of a device.
fn compat<B: Backend>(instance: &Instance<B>, device: DeviceId) -> Result<String, PluginError> {
    let own = instance.backend.artifact_compat(device)?;
    let own = own.ok_or_else(|| PluginError::unsupported("this backend makes no artifacts"))?;
    artifact::compat(&instance.description.safe, &own)
}
