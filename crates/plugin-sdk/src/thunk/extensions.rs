//! The tables of the extensions: device memory, streams and (in its own module) inspection. The contract is that of [`slots`](super::slots).

use std::ffi::c_void;

use plugin_abi::{
    COLLECTIVE_PROGRAMS, COLLECTIVES, DEVICE_MEMORY, DLDevice, DLManagedTensorVersioned, DLTensor,
    FfxDeviceMemory, FfxError, FfxStr, FfxStreams, Head, INSPECTION, STREAMS,
};

use super::entry::instance;
use super::guard::{catch, guard};
use super::request;
use super::slots::{null_out, release_constants};
use crate::{Backend, OwnedTensor, PluginError, Stream, TensorView};

pub(super) unsafe extern "C" fn get_extension<B: Backend>(ctx: *mut c_void, name: FfxStr) -> *const c_void {
    let found = catch(|| {
        // SAFETY: pointers keep the contract that all slots share (`slots`).
        let (instance, name) = unsafe { (instance::<B>(ctx)?, request::text(name, "an extension's name")?) };
        Ok(match name {
            DEVICE_MEMORY if instance.backend.has_device_memory() => {
                std::ptr::from_ref(device_memory::<B>()).cast()
            }
            INSPECTION if instance.backend.has_inspection() => {
                std::ptr::from_ref(super::inspection::TABLE).cast()
            }
            STREAMS if instance.backend.has_streams() => std::ptr::from_ref(streams::<B>()).cast(),
            COLLECTIVES => instance.engine().map_or(std::ptr::null(), |t| std::ptr::from_ref(t).cast()),
            COLLECTIVE_PROGRAMS if instance.backend.runs_collectives() => {
                std::ptr::from_ref(super::collectives::programs()).cast()
            }
            _ => std::ptr::null(),
        })
    });
    found.unwrap_or(std::ptr::null())
}

/// The table of the extension for a backend type.
fn device_memory<B: Backend>() -> &'static FfxDeviceMemory {
    const {
        &FfxDeviceMemory {
            head: Head::of::<FfxDeviceMemory>(),
            to_device: Some(to_device::<B>),
            to_host: Some(to_host::<B>),
            allocate: Some(allocate::<B>),
            copy: Some(copy::<B>),
            release_constants: Some(release_constants),
        }
    }
}

/// The table of the extension for a backend type.
fn streams<B: Backend>() -> &'static FfxStreams {
    const {
        &FfxStreams {
            head: Head::of::<FfxStreams>(),
            create: Some(create_stream::<B>),
            synchronize: Some(synchronize::<B>),
            destroy: Some(destroy_stream::<B>),
        }
    }
}

unsafe extern "C" fn to_device<B: Backend>(
    ctx: *mut c_void,
    tensor: *const DLTensor,
    device: DLDevice,
    out: *mut *mut DLManagedTensorVersioned,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`); `out` is checked for null.
    unsafe { made::<B>(ctx, tensor, out, error, |backend, view| backend.to_device(view, device)) }
}

unsafe extern "C" fn to_host<B: Backend>(
    ctx: *mut c_void,
    tensor: *const DLTensor,
    out: *mut *mut DLManagedTensorVersioned,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`); `out` is checked for null.
    unsafe { made::<B>(ctx, tensor, out, error, |backend, view| backend.to_host(view)) }
}

unsafe extern "C" fn allocate<B: Backend>(
    ctx: *mut c_void,
    like: *const DLTensor,
    device: DLDevice,
    out: *mut *mut DLManagedTensorVersioned,
    error: *mut FfxError,
) -> i32 {
    // The `data` of the pattern is unused; a non-null value lets it pass as a tensor with elements.
    // SAFETY: null or a readable tensor by the module's contract.
    let pattern = unsafe { like.as_ref() }
        .map(|t| DLTensor { data: std::ptr::NonNull::<u64>::dangling().as_ptr().cast(), ..*t });
    let like = pattern.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: pointers keep the contract that all slots share (`slots`); `out` is checked for null; the pattern's elements are
    // not read.
    unsafe {
        made::<B>(ctx, like, out, error, |backend, view| {
            backend.allocate(view.dtype(), view.sizes(), view.strides(), device)
        })
    }
}

/// # Safety
/// The pointers are those of the functions above.
unsafe fn made<B: Backend>(
    ctx: *mut c_void,
    tensor: *const DLTensor,
    out: *mut *mut DLManagedTensorVersioned,
    error: *mut FfxError,
    make: impl FnOnce(&B, &TensorView<'_>) -> Result<OwnedTensor, PluginError>,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`).
    unsafe {
        guard(error, || {
            let out = out.as_mut().ok_or_else(null_out)?;
            let mut views = request::Views::new();
            request::views(&mut views, &tensor, 1, "tensors")?;
            let view = views.first().ok_or_else(null_out)?;
            *out = make(&instance::<B>(ctx)?.backend, view)?.into_dlpack();
            Ok(())
        })
    }
}

unsafe extern "C" fn copy<B: Backend>(
    ctx: *mut c_void,
    from: *const DLTensor,
    to: *const DLTensor,
    stream: *mut c_void,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`).
    unsafe {
        guard(error, || {
            let mut both = request::Views::new();
            request::views(&mut both, [from, to].as_ptr(), 2, "tensors")?;
            let [from, to] = both[..] else { return Err(null_out()) };
            if from.dtype() != to.dtype() || from.sizes() != to.sizes() {
                return Err(PluginError::invalid(format!("a copy from {from:?} to {to:?}")));
            }
            instance::<B>(ctx)?.backend.copy(&from, &to, Stream(stream))
        })
    }
}

unsafe extern "C" fn create_stream<B: Backend>(
    ctx: *mut c_void,
    device: DLDevice,
    out: *mut *mut c_void,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`); `out` is checked for null.
    unsafe {
        guard(error, || {
            let out = out.as_mut().ok_or_else(null_out)?;
            let stream = instance::<B>(ctx)?.backend.create_stream(device)?;
            if stream == Stream::DEFAULT {
                return Err(PluginError::internal("the backend made the default stream as a new one"));
            }
            *out = stream.0;
            Ok(())
        })
    }
}

unsafe extern "C" fn synchronize<B: Backend>(
    ctx: *mut c_void,
    device: DLDevice,
    stream: *mut c_void,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`).
    unsafe { guard(error, || instance::<B>(ctx)?.backend.synchronize(device, Stream(stream))) }
}

unsafe extern "C" fn destroy_stream<B: Backend>(ctx: *mut c_void, device: DLDevice, stream: *mut c_void) {
    // There is no caller to report a failure to.
    let _ = catch(|| {
        if !stream.is_null() {
            // SAFETY: pointers keep the contract that all slots share (`slots`).
            unsafe { instance::<B>(ctx)? }.backend.destroy_stream(device, Stream(stream));
        }
        Ok(())
    });
}
