//! Tensors between Python and compiled code, without copies: by the C functions that a framework publishes as
//! `__dlpack_c_exchange_api__` on its tensor type (DLPack 1.2), else by attributes of the object.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use ferroflux::Value;
use ferroflux::foreign::dlpack::{
    Access, DL_CPU, DL_CUDA, DLDataType, DLDevice, DLManagedTensorVersioned, DLPACK_MAJOR, DLPackVersion,
    DLTensor, borrowed, given,
};
use ferroflux::ir_core::DType;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use pyo3::{ffi, intern};
use smallvec::SmallVec;

use crate::error::{Error, raised};

/// DLPack's table of functions for exchange in C. Only fields that are called have their types.
#[repr(C)]
struct Table {
    version: DLPackVersion,
    older: *const c_void,
    allocate: *const c_void,
    managed_from_object: *const c_void,
    managed_to_object: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned, *mut *mut c_void) -> c_int>,
    borrow_object: Option<unsafe extern "C" fn(*mut c_void, *mut DLTensor) -> c_int>,
    current_stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}

struct TorchTable(Option<&'static Table>);

// SAFETY: the table is constant for the life of the process; its functions are called with Python's lock.
unsafe impl Send for TorchTable {}
// SAFETY: nothing writes the table, and its functions are called with Python's lock.
unsafe impl Sync for TorchTable {}

/// torch's table; `None` where this torch has none.
fn table(py: Python<'_>) -> PyResult<Option<&'static Table>> {
    static TABLE: OnceLock<TorchTable> = OnceLock::new();
    if let Some(table) = TABLE.get() {
        return Ok(table.0);
    }
    let tensor = py.import("torch")?.getattr("Tensor")?;
    let found = match tensor.getattr_opt("__dlpack_c_exchange_api__")? {
        None => None,
        Some(capsule) => {
            // SAFETY: the object is alive; a capsule of another name is reported by null and an exception.
            let at = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dlpack_exchange_api".as_ptr()) };
            if at.is_null() {
                return Err(PyErr::fetch(py));
            }
            // SAFETY: the protocol says that the capsule holds such a table for the life of the process.
            let table = unsafe { &*at.cast::<Table>() };
            let whole = table.version.major == DLPACK_MAJOR
                && table.managed_to_object.is_some()
                && table.borrow_object.is_some();
            whole.then_some(table)
        }
    };
    Ok(TABLE.get_or_init(|| TorchTable(found)).0)
}

/// A torch tensor as a value over its memory.
///
/// The object must be alive as long as the value, and its memory used as [`borrowed`] wants it: the caller sees to both.
pub(crate) fn lend(object: &Bound<'_, PyAny>, access: Access) -> PyResult<Value> {
    with_borrow(object, |dl| {
        // SAFETY: torch's struct is well formed; the caller keeps the object.
        unsafe { borrowed(dl, access, || ()) }.map_err(raised)
    })
}

/// Address of a tensor's first element.
pub(crate) fn address(object: &Bound<'_, PyAny>) -> PyResult<usize> {
    with_borrow(object, |dl| Ok(dl.data.addr().wrapping_add(dl.byte_offset as usize)))
}

fn with_borrow<T>(object: &Bound<'_, PyAny>, read: impl FnOnce(&DLTensor) -> PyResult<T>) -> PyResult<T> {
    let Some(borrow) = table(object.py())?.and_then(|t| t.borrow_object) else {
        return by_attributes(object, read);
    };
    let mut dl = MaybeUninit::<DLTensor>::zeroed();
    // SAFETY: the object is alive, the struct is there to be filled in.
    if unsafe { borrow(object.as_ptr().cast(), dl.as_mut_ptr()) } != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    // SAFETY: the function succeeded, and zeros are valid for every field.
    read(unsafe { dl.assume_init_ref() })
}

/// The same from `data_ptr()`, `stride()`, `shape`, `dtype` and `device`.
fn by_attributes<T>(object: &Bound<'_, PyAny>, read: impl FnOnce(&DLTensor) -> PyResult<T>) -> PyResult<T> {
    let py = object.py();
    let at: usize = object.call_method0(intern!(py, "data_ptr"))?.extract()?;
    let ints = |list: Bound<'_, PyAny>| -> PyResult<SmallVec<[i64; 6]>> {
        let list = list.cast_into::<PyTuple>()?;
        list.iter().map(|n| n.extract()).collect()
    };
    let mut shape = ints(object.getattr(intern!(py, "shape"))?)?;
    let mut strides = ints(object.call_method0(intern!(py, "stride"))?)?;
    let dtype = object.getattr(intern!(py, "dtype"))?.str()?.to_string();
    let dtype = element_type(&dtype)
        .ok_or_else(|| Error::new_err(format!("tensors of {dtype} cannot be passed to compiled code")))?;
    let device = object.getattr(intern!(py, "device"))?;
    let kind: String = device.getattr(intern!(py, "type"))?.extract()?;
    let ordinal: Option<i32> = device.getattr(intern!(py, "index"))?.extract()?;
    let device_type = if kind == "cpu" { DL_CPU } else { DL_CUDA };
    read(&DLTensor {
        data: std::ptr::with_exposed_provenance_mut(at),
        device: DLDevice { device_type, device_id: ordinal.unwrap_or(0) },
        ndim: shape.len() as i32,
        dtype,
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    })
}

/// The element type of one of torch's dtypes by its printed name.
fn element_type(name: &str) -> Option<DLDataType> {
    let (code, bits) = name.strip_prefix("torch.")?.parse::<DType>().ok()?.dlpack();
    Some(DLDataType { code, bits, lanes: 1 })
}

/// A value as a torch tensor, which owns it from now on.
pub(crate) fn give(py: Python<'_>, value: Value) -> PyResult<Py<PyAny>> {
    if let Some(convert) = table(py)?.and_then(|t| t.managed_to_object) {
        let mut object: *mut c_void = std::ptr::null_mut();
        // SAFETY: the managed tensor is fresh; the function takes it over.
        if unsafe { convert(given(value), &mut object) } != 0 {
            return Err(PyErr::fetch(py));
        }
        // SAFETY: the function succeeded and gave a new reference.
        return unsafe { Bound::from_owned_ptr_or_err(py, object.cast()) }.map(Bound::unbind);
    }
    let capsule = capsule(py, value)?;
    Ok(py.import("torch.utils.dlpack")?.call_method1("from_dlpack", (capsule,))?.unbind())
}

const VERSIONED: &std::ffi::CStr = c"dltensor_versioned";

/// A value as a capsule of DLPack's Python protocol.
pub(crate) fn capsule(py: Python<'_>, value: Value) -> PyResult<Bound<'_, PyAny>> {
    let managed = given(value);
    // SAFETY: the pointer is a fresh managed tensor; the destructor frees it where nobody took it.
    let made = unsafe { ffi::PyCapsule_New(managed.cast(), VERSIONED.as_ptr(), Some(free_capsule)) };
    // SAFETY: a new reference, or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, made) }
}

unsafe extern "C" fn free_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule; one that was consumed has another name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 0 {
            return;
        }
        let managed =
            ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast::<DLManagedTensorVersioned>();
        if let Some(delete) = (*managed).deleter {
            delete(managed);
        }
    }
}

/// torch's current stream of a device, for calls there. The legacy default stream is given by its own handle, because null
/// is the backend's own stream.
pub(crate) fn current_stream(py: Python<'_>, device_type: i32, ordinal: i32) -> PyResult<*mut c_void> {
    /// `CU_STREAM_LEGACY` of CUDA's driver.
    const LEGACY: usize = 1;
    let Some(query) = table(py)?.and_then(|t| t.current_stream) else {
        let cuda = py.import("torch.cuda")?;
        let raw: usize =
            cuda.call_method1("current_stream", (ordinal,))?.getattr("cuda_stream")?.extract()?;
        return Ok(std::ptr::without_provenance_mut(if raw == 0 { LEGACY } else { raw }));
    };
    let mut stream = std::ptr::null_mut();
    // SAFETY: the place lives through the call.
    if unsafe { query(device_type, ordinal, &mut stream) } != 0 {
        return Err(PyErr::fetch(py));
    }
    Ok(if stream.is_null() { std::ptr::without_provenance_mut(LEGACY) } else { stream })
}
