//! Tensors on a plugin's devices, and streams: what the extensions `ferroflux.device-memory.v1` and
//! `ferroflux.streams.v1` give.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use plugin_abi::{DLDevice, DLManagedTensorVersioned, DLTensor, FfxError};
use tensor::{DeviceTensor, Tensor};

use crate::backend::Inner;
use crate::handshake::{MemorySlots, StreamSlots, call};
use crate::tensors::{Lend, Managed, Value, lend_one};
use crate::{HostError, LoadedBackend};

impl Inner {
    fn not_offered(&self, slot: &'static str) -> HostError {
        HostError::NotOffered { backend: self.described.name.clone(), slot }
    }

    fn memory(&self, slot: &'static str) -> Result<MemorySlots, HostError> {
        self.slots.memory.ok_or_else(|| self.not_offered(slot))
    }

    fn streams(&self, slot: &'static str) -> Result<StreamSlots, HostError> {
        self.slots.streams.ok_or_else(|| self.not_offered(slot))
    }

    /// See [`LoadedBackend::to_device`].
    fn to_device(&self, tensor: &Tensor, device: DLDevice) -> Result<DeviceTensor, HostError> {
        let to_device = self.memory("to_device")?.to_device;
        let moved = self.made("to_device", tensor, |tensor, out, error| {
            // SAFETY: everything lent lives through the call.
            unsafe { to_device(self.slots.ctx, tensor, device, out, error) }
        })?;
        match moved {
            Value::Device(tensor) => Ok(tensor),
            Value::Host(_) => Err(HostError::handshake(&self.described.name, "to_device gave a host tensor")),
        }
    }

    /// See [`LoadedBackend::to_host`].
    pub(crate) fn to_host(&self, tensor: &DeviceTensor) -> Result<Tensor, HostError> {
        let to_host = self.memory("to_host")?.to_host;
        let moved = self.made("to_host", tensor, |tensor, out, error| {
            // SAFETY: everything lent lives through the call.
            unsafe { to_host(self.slots.ctx, tensor, out, error) }
        })?;
        match moved {
            Value::Host(tensor) => Ok(tensor),
            Value::Device(_) => {
                Err(HostError::handshake(&self.described.name, "to_host gave a device tensor"))
            }
        }
    }

    /// Lends one tensor to a call that creates another.
    fn made(
        &self,
        name: &'static str,
        lent: &impl Lend,
        make: impl FnOnce(*const DLTensor, *mut *mut DLManagedTensorVersioned, *mut FfxError) -> i32,
    ) -> Result<Value, HostError> {
        let backend = &self.described.name;
        let mut out = std::ptr::null_mut();
        let made = lend_one(lent, |tensor| call(backend, name, |error| make(tensor, &mut out, error)));
        made.map_err(|reason| HostError::argument(backend, reason))??;
        // SAFETY: a successful call hands over the tensor that it filled in.
        let managed = unsafe { Managed::take(out) };
        let managed =
            managed.ok_or_else(|| HostError::handshake(backend, format!("{name} left its result null")))?;
        managed
            .into_value()
            .map_err(|r| HostError::handshake(backend, format!("{name} gave a malformed tensor: {r}")))
    }
}

impl LoadedBackend {
    /// Whether tensors may stay on its devices between calls.
    pub fn has_device_memory(&self) -> bool {
        self.plugin.slots.memory.is_some()
    }
    /// A copy of a host tensor on a device.
    ///
    /// # Errors
    /// The backend keeps no tensors on devices, or the plugin's error.
    pub fn to_device(&self, tensor: &Tensor, device: DLDevice) -> Result<DeviceTensor, HostError> {
        self.plugin.to_device(tensor, device)
    }
    /// A copy of a device tensor on the host.
    ///
    /// # Errors
    /// As for [`to_device`](Self::to_device).
    pub fn to_host(&self, tensor: &DeviceTensor) -> Result<Tensor, HostError> {
        self.plugin.to_host(tensor)
    }
    /// A tensor on a device with the dtype, sizes and strides of another one; its elements are not set.
    ///
    /// # Errors
    /// As for [`to_device`](Self::to_device).
    pub fn allocate_like(&self, like: &Value, device: DLDevice) -> Result<Value, HostError> {
        let allocate =
            self.plugin.memory("allocate")?.allocate.ok_or_else(|| self.plugin.not_offered("allocate"))?;
        self.plugin.made("allocate", like, |like, out, error| {
            // SAFETY: everything lent lives through the call.
            unsafe { allocate(self.plugin.slots.ctx, like, device, out, error) }
        })
    }
    /// Writes the elements of `from` over those of `to`, a tensor on one of the backend's devices; done when it returns.
    ///
    /// # Safety
    /// Nothing else may read or write the memory of `to` meanwhile; handles of a device tensor share it.
    ///
    /// # Errors
    /// The backend does not copy, or its own error (other dtypes or sizes).
    pub unsafe fn copy(&self, from: &Value, to: &DeviceTensor) -> Result<(), HostError> {
        let copy = self.plugin.memory("copy")?.copy.ok_or_else(|| self.plugin.not_offered("copy"))?;
        let done = lend_one(from, |from| {
            lend_one(to, |to| {
                call(self.name(), "copy", |error| {
                    // SAFETY: both tensors live through the call; the caller promises the rest.
                    unsafe { copy(self.plugin.slots.ctx, from, to, std::ptr::null_mut(), error) }
                })
            })
        });
        done.and_then(|done| done).map_err(|reason| HostError::argument(self.name(), reason))?
    }

    /// Whether it makes streams.
    pub fn has_streams(&self) -> bool {
        self.plugin.slots.streams.is_some()
    }
    /// A new stream of a device, for [`LoadedExecutable::execute_on`](crate::LoadedExecutable::execute_on).
    ///
    /// # Errors
    /// The backend makes no streams, or its own error.
    pub fn create_stream(&self, device: DLDevice) -> Result<DeviceStream, HostError> {
        let create = self.plugin.streams("create")?.create;
        let mut out = std::ptr::null_mut();
        call(self.name(), "stream create", |error| {
            // SAFETY: the place and the error struct live through the call.
            unsafe { create(self.plugin.slots.ctx, device, &mut out, error) }
        })?;
        let raw = NonNull::new(out).ok_or_else(|| {
            HostError::handshake(self.name(), "create gave the default stream as a new one")
        })?;
        Ok(DeviceStream { raw, device, plugin: Arc::clone(&self.plugin), lent: Mutex::default() })
    }
    /// Waits for all work on a device's default stream.
    ///
    /// # Errors
    /// The backend makes no streams, or a failure of that work.
    pub fn synchronize(&self, device: DLDevice) -> Result<(), HostError> {
        self.plugin.wait_for(device, std::ptr::null_mut())
    }
}

impl Inner {
    fn wait_for(&self, device: DLDevice, stream: *mut c_void) -> Result<(), HostError> {
        let synchronize = self.streams("synchronize")?.synchronize;
        call(&self.described.name, "stream synchronize", |error| {
            // SAFETY: null or a live stream of this plugin.
            unsafe { synchronize(self.slots.ctx, device, stream, error) }
        })
    }
}

/// A stream of a device: calls on it run in order, and may return before their work is done.
pub struct DeviceStream {
    raw: NonNull<c_void>,
    device: DLDevice,
    plugin: Arc<Inner>,
    /// Inputs of calls that may still run.
    lent: Mutex<Vec<Value>>,
}

// SAFETY: the ABI requires that a stream may be used from any thread.
unsafe impl Send for DeviceStream {}
// SAFETY: the ABI requires that a stream may be used from many threads at once.
unsafe impl Sync for DeviceStream {}

impl std::fmt::Debug for DeviceStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceStream({} of {})", self.raw.as_ptr().addr(), self.plugin.described.name)
    }
}

impl DeviceStream {
    /// Its device.
    pub fn device(&self) -> DLDevice {
        self.device
    }
    /// The native handle, for libraries of the same process that share the device.
    pub fn as_raw(&self) -> *mut c_void {
        self.raw.as_ptr()
    }
    /// Returns when all work that was started on it before is done.
    ///
    /// # Errors
    /// A failure of that work.
    pub fn synchronize(&self) -> Result<(), HostError> {
        // Taken before the wait: inputs that another thread lends meanwhile are not waited for.
        let lent = std::mem::take(&mut *self.lent.lock().unwrap_or_else(PoisonError::into_inner));
        let done = self.plugin.wait_for(self.device, self.raw.as_ptr());
        if done.is_err() {
            self.keep(lent);
        }
        done
    }

    /// Keeps values until the next synchronization.
    pub(crate) fn keep(&self, values: impl IntoIterator<Item = Value>) {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner).extend(values);
    }

    /// Whether it is a stream of this plugin.
    pub(crate) fn belongs_to(&self, plugin: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.plugin, plugin)
    }
}

impl Drop for DeviceStream {
    fn drop(&mut self) {
        if let Some(streams) = self.plugin.slots.streams {
            // SAFETY: a stream of this plugin, destroyed once; nothing else uses it while it is dropped. The inputs lent to
            // it are dropped afterwards.
            unsafe { (streams.destroy)(self.plugin.slots.ctx, self.device, self.raw.as_ptr()) }
        }
    }
}
