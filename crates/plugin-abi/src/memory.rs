//! The extension for tensors that stay on a device between calls: copies to the device and back.
//!
//! A plugin that offers it takes device tensors as inputs of `execute`, and its outputs may be on its device.

use core::ffi::c_void;

use crate::dlpack::{DLDevice, DLManagedTensorVersioned, DLTensor};
use crate::table::{Head, tables};
use crate::{FfxError, FfxExecutable};

/// Name to ask [`FfxPlugin::get_extension`](crate::FfxPlugin::get_extension) for; the answer is a [`FfxDeviceMemory`].
pub const DEVICE_MEMORY: &str = "ferroflux.device-memory.v1";

/// Sets `*out` to a tensor of the caller on `device`, with the elements of a host tensor. The host memory may be reused
/// when the call returns.
pub type FfxToDevice = unsafe extern "C" fn(
    ctx: *mut c_void,
    host: *const DLTensor,
    device: DLDevice,
    out: *mut *mut DLManagedTensorVersioned,
    error: *mut FfxError,
) -> i32;
/// Sets `*out` to a host tensor of the caller with the elements of a tensor on one of the plugin's devices, after all work
/// that was started on it.
pub type FfxToHost = unsafe extern "C" fn(
    ctx: *mut c_void,
    tensor: *const DLTensor,
    out: *mut *mut DLManagedTensorVersioned,
    error: *mut FfxError,
) -> i32;
/// Sets `*out` to a tensor of the caller on `device` whose elements are not set: dtype, sizes and strides are those of
/// `like`, whose `data` is not read. Since minor 1.
pub type FfxAllocate = unsafe extern "C" fn(
    ctx: *mut c_void,
    like: *const DLTensor,
    device: DLDevice,
    out: *mut *mut DLManagedTensorVersioned,
    error: *mut FfxError,
) -> i32;
/// Writes the elements of `from` over those of `to`, on `stream`. Same dtype and sizes; each is on the host or on a
/// device of the plugin. Host memory may be reused when the call returns. Since minor 1.
pub type FfxCopy = unsafe extern "C" fn(
    ctx: *mut c_void,
    from: *const DLTensor,
    to: *const DLTensor,
    stream: *mut c_void,
    error: *mut FfxError,
) -> i32;

/// Sets `released[i]` to 1 where the executable does not read constant `i` of the last binding any more, in the order of that
/// call, and to 0 elsewhere. All work that reads a released constant has ended when the call returns: the host may free its
/// memory. `n` is the number of bound constants. Since minor 2.
pub type FfxReleaseConstants = unsafe extern "C" fn(
    ctx: *mut c_void,
    exe: *mut FfxExecutable,
    released: *mut u8,
    n: usize,
    error: *mut FfxError,
) -> i32;

/// The table of [`DEVICE_MEMORY`]; valid for the life of the process.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FfxDeviceMemory {
    /// Size and version.
    pub head: Head,
    /// Required.
    pub to_device: Option<FfxToDevice>,
    /// Required.
    pub to_host: Option<FfxToHost>,
    /// Optional, since minor 1.
    pub allocate: Option<FfxAllocate>,
    /// Optional, since minor 1.
    pub copy: Option<FfxCopy>,
    /// Optional, since minor 2; called after `bind_constants`.
    pub release_constants: Option<FfxReleaseConstants>,
}

// SAFETY: the table is immutable after construction and its slots may be called from any thread by contract.
unsafe impl Send for FfxDeviceMemory {}
// SAFETY: shared references only read the immutable table, and its slots may be called from any thread by contract.
unsafe impl Sync for FfxDeviceMemory {}

tables! {
    FfxDeviceMemory { to_device, to_host, allocate, copy, release_constants }
}
