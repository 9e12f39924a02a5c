//! Values over DLPack's structs: borrowed for a call, owned by a managed struct, and given away as one.

use std::ffi::c_void;

use ir_core::DType;
use plugin_host::Value;
pub use plugin_host::dlpack::{
    DL_CPU, DL_CUDA, DL_CUDA_HOST, DL_ROCM, DLDataType, DLDevice, DLManagedTensorVersioned, DLPACK_MAJOR,
    DLPACK_MINOR, DLPackVersion, DLTensor,
};
use smallvec::SmallVec;
use tensor::{DeviceNumber, DeviceTensor, Tensor, TensorError, contiguous_strides};

use crate::Error;

/// What a call may do with a tensor's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it.
    Read,
    /// Read and write it.
    Write,
}

type Sizes = SmallVec<[usize; 6]>;
type Strides = SmallVec<[isize; 6]>;

/// A value over the memory of a borrowed tensor, with its strides; nothing is copied. Tensors of numbers that kernels do not have
/// get the form that compiled code takes if they are written or lie on a device: complex ones become real ones with a last
/// dimension of 2. `release` runs when the last handle
/// is dropped.
///
/// # Safety
/// The struct is well formed. Every element that it reaches stays valid for reads, and for writes with [`Access::Write`],
/// until `release` runs, and no one else writes them during calls; during calls that write no one else reads them.
///
/// # Errors
/// An element type that this project does not have; sizes beyond the address space.
pub unsafe fn borrowed(
    dl: &DLTensor,
    access: Access,
    release: impl FnOnce() + Send + Sync + 'static,
) -> Result<Value, Error> {
    let dtype = DType::from_dlpack(dl.dtype.code, dl.dtype.bits).filter(|_| dl.dtype.lanes == 1);
    let Some(mut dtype) = dtype else {
        let DLDataType { code, bits, lanes } = dl.dtype;
        let text =
            format!("elements of DLPack type {code} with {bits} bits and {lanes} lanes are not supported");
        return Err(TensorError::Shape(text).into());
    };
    // SAFETY: the struct is well formed.
    let (mut sizes, mut strides) = unsafe { dims(dl) };
    let host = matches!(dl.device.device_type, DL_CPU | DL_CUDA_HOST);
    if dtype.is_complex() && (!host || access == Access::Write) {
        dtype = dtype.to_real();
        sizes.push(2);
        strides.iter_mut().for_each(|s| *s = s.saturating_mul(2));
        strides.push(1);
    }
    if dtype.is_carried() && (!host || access == Access::Write) {
        dtype = dtype.carrier();
    }
    let data = dl.data.cast::<u8>().wrapping_add(dl.byte_offset as usize);
    if !host {
        let at = DeviceNumber { kind: dl.device.device_type, ordinal: dl.device.device_id };
        return Ok(Value::Device(DeviceTensor::new(data, dtype, at, &sizes, &strides, release)));
    }
    // SAFETY: the caller vouches for the elements; a tensor is one allocation.
    let tensor = unsafe {
        match access {
            Access::Read => Tensor::from_foreign(data, dtype, &sizes, &strides, release),
            Access::Write => Tensor::from_foreign_mut(data, dtype, &sizes, &strides, release),
        }
    };
    Ok(Value::Host(tensor?))
}

/// Sizes and strides; null strides are row-major.
///
/// # Safety
/// `shape` has `ndim` values, and so has `strides` unless it is null.
unsafe fn dims(dl: &DLTensor) -> (Sizes, Strides) {
    let rank = usize::try_from(dl.ndim).unwrap_or(0);
    if rank == 0 || dl.shape.is_null() {
        return (Sizes::new(), Strides::new());
    }
    // SAFETY: the pointer is not null and has `ndim` values.
    let sizes = unsafe { std::slice::from_raw_parts(dl.shape, rank) };
    let sizes: Sizes = sizes.iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect();
    if dl.strides.is_null() {
        let strides = contiguous_strides(&sizes).into_iter().collect();
        return (sizes, strides);
    }
    // SAFETY: the pointer is not null and has `ndim` values.
    let strides = unsafe { std::slice::from_raw_parts(dl.strides, rank) };
    (sizes, strides.iter().map(|&s| s as isize).collect())
}

/// A managed tensor that somebody else frees: the value it was made of, and its sizes and strides.
struct Given {
    managed: DLManagedTensorVersioned,
    sizes: SmallVec<[i64; 6]>,
    strides: SmallVec<[i64; 6]>,
    _value: Value,
}

/// Gives a value away as a managed tensor; its receiver calls the deleter once.
pub fn given(value: Value) -> *mut DLManagedTensorVersioned {
    let (data, device) = match &value {
        Value::Host(t) => (t.raw_parts().data, DLDevice { device_type: DL_CPU, device_id: 0 }),
        Value::Device(t) => {
            let at = t.device();
            (t.data(), DLDevice { device_type: at.kind, device_id: at.ordinal })
        }
    };
    let (code, bits) = value.dtype().dlpack();
    let sizes: SmallVec<[i64; 6]> = value.sizes().iter().map(|&n| n as i64).collect();
    let strides: SmallVec<[i64; 6]> = value.strides().iter().map(|&s| s as i64).collect();
    let dl_tensor = DLTensor {
        data: data.cast_mut().cast(),
        device,
        ndim: sizes.len() as i32,
        dtype: DLDataType { code, bits, lanes: 1 },
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = DLManagedTensorVersioned {
        version: DLPackVersion { major: DLPACK_MAJOR, minor: DLPACK_MINOR },
        manager_ctx: std::ptr::null_mut(),
        deleter: Some(free),
        flags: 0,
        dl_tensor,
    };
    let given = Box::into_raw(Box::new(Given { managed, sizes, strides, _value: value }));
    // SAFETY: the box was just leaked; its fields have their final addresses now.
    unsafe {
        (*given).managed.manager_ctx = given.cast::<c_void>();
        (*given).managed.dl_tensor.shape = (*given).sizes.as_mut_ptr();
        (*given).managed.dl_tensor.strides = (*given).strides.as_mut_ptr();
        &raw mut (*given).managed
    }
}

/// Frees what [`given`] gave away.
unsafe extern "C" fn free(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: the receiver calls the deleter once, with the pointer that it was given; the context is the leaked box.
    unsafe { drop(Box::from_raw((*managed).manager_ctx.cast::<Given>())) }
}
