//! Tensors that the host lends a backend of this crate for a call, without a copy, and what such a backend gives back.

use std::ptr::NonNull;
use std::sync::Arc;

use plugin_sdk::dlpack::DL_CPU;
use plugin_sdk::{DeviceId, OwnedTensor, PluginError, TensorView};
use tensor::Tensor;

/// The tensors that are lent for one call: none may be left when it ends.
pub(crate) struct LentTensors {
    /// Every lent tensor holds a clone until its last handle is dropped.
    out: Arc<()>,
}

impl LentTensors {
    /// Nothing is lent yet.
    pub(crate) fn new() -> LentTensors {
        LentTensors { out: Arc::new(()) }
    }

    /// A tensor over memory of the host's, with its strides; nothing is copied.
    ///
    /// # Errors
    /// A tensor on another device.
    pub(crate) fn take(&mut self, view: &TensorView<'_>) -> Result<Tensor, PluginError> {
        let held = Arc::clone(&self.out);
        // SAFETY: the host lends the elements until the call ends, and writes none meanwhile. `end` runs before that and
        // does not return while a handle of the tensor is left.
        unsafe { over(view, move || drop(held)) }
    }

    /// The call ends: what was lent is the host's again.
    pub(crate) fn end(self) {
        if Arc::strong_count(&self.out) > 1 {
            eprintln!("ferroflux: a backend kept a tensor that it was lent for a call");
            // The memory behind that tensor is about to be somebody else's: nothing may run on.
            std::process::abort();
        }
    }
}

/// A tensor over memory that the host keeps until the executable is dropped or its constants are bound again.
///
/// # Safety
/// The tensor and all its views are dropped before that.
pub(crate) unsafe fn constant(view: &TensorView<'_>) -> Result<Tensor, PluginError> {
    // SAFETY: no handle outlives the binding, by the contract of this function, and nobody writes bound memory.
    unsafe { over(view, || ()) }
}

/// A tensor over the memory of a view.
///
/// # Safety
/// Every element stays readable, and nobody writes it, until `release` runs.
unsafe fn over(
    view: &TensorView<'_>,
    release: impl FnOnce() + Send + Sync + 'static,
) -> Result<Tensor, PluginError> {
    if view.device().device_type != DL_CPU {
        return Err(PluginError::invalid("a tensor lies on a device; this backend wants it on the host"));
    }
    let size = |n: &i64| usize::try_from(*n).map_err(|_| PluginError::invalid("a size is negative"));
    let stride = |n: &i64| isize::try_from(*n).map_err(|_| PluginError::invalid("a stride is too large"));
    let sizes = view.sizes().iter().map(size).collect::<Result<Vec<_>, _>>()?;
    let strides = view.strides().iter().map(stride).collect::<Result<Vec<_>, _>>()?;
    // SAFETY: the caller keeps every element readable and unwritten until `release` runs.
    let tensor = unsafe { Tensor::from_foreign(view.as_ptr(), view.dtype(), &sizes, &strides, release) };
    tensor.map_err(|e| PluginError::invalid(e.to_string()))
}

/// A result for the host: its own memory where it is fresh, a row-major copy where it is memory of a `lent` tensor or
/// has strides that the boundary does not know.
///
/// # Errors
/// No memory.
pub(crate) fn given(tensor: Tensor, lent: &[&Tensor]) -> Result<OwnedTensor, PluginError> {
    let borrowed = lent.iter().any(|other| other.storage().ptr_eq(tensor.storage()));
    let tensor = if borrowed || tensor.strides().iter().any(|s| *s < 0) {
        tensor.copied().map_err(|e| PluginError::internal(e.to_string()))?
    } else {
        tensor
    };
    let sizes: Vec<i64> = tensor.sizes().iter().map(|n| *n as i64).collect();
    let strides: Vec<i64> = tensor.strides().iter().map(|n| *n as i64).collect();
    let data = NonNull::new(tensor.data_ptr().cast_mut()).unwrap_or(NonNull::dangling());
    let device = DeviceId { device_type: DL_CPU, device_id: 0 };
    let dtype = tensor.dtype();
    // SAFETY: `tensor`, which the result owns, keeps the memory of all elements that sizes and strides address, and nobody
    // writes memory of which there is another handle.
    unsafe { OwnedTensor::from_raw_parts(data, dtype, device, &sizes, &strides, Box::new(tensor)) }
}
