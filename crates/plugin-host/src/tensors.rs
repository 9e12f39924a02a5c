//! Between `tensor::Tensor` and DLPack: borrows for inputs and constants, owned outputs with the plugin's deleter.
//!
//! A [`Value`] is a tensor of the host or a handle of one on a device, which only its plugin can read.

use std::ptr::NonNull;

use plugin_abi::dlpack::{DL_CPU, DL_CUDA_HOST, DLPACK_MAJOR};
use plugin_abi::{DLDataType, DLDevice, DLManagedTensorVersioned, DLTensor};
use smallvec::SmallVec;
use tensor::{DeviceNumber, DeviceTensor, Tensor};

/// Most dimensions that an output may have.
const MAX_DIMS: i32 = 64;

/// A tensor on the host or on a device.
#[derive(Clone, Debug)]
pub enum Value {
    /// In host memory.
    Host(Tensor),
    /// On a device.
    Device(DeviceTensor),
}

impl Value {
    /// Number of elements of each dimension.
    pub fn sizes(&self) -> &[usize] {
        match self {
            Value::Host(t) => t.sizes(),
            Value::Device(t) => t.sizes(),
        }
    }
    /// Element type.
    pub fn dtype(&self) -> ir_core::DType {
        match self {
            Value::Host(t) => t.dtype(),
            Value::Device(t) => t.dtype(),
        }
    }
    /// Distance in elements between neighbours of each dimension.
    pub fn strides(&self) -> &[isize] {
        match self {
            Value::Host(t) => t.strides(),
            Value::Device(t) => t.strides(),
        }
    }
    /// Whether a call may write it: there is no other handle of the memory, and it is not a mapped file.
    pub fn is_writable(&mut self) -> bool {
        match self {
            Value::Host(t) => t.is_writable(),
            Value::Device(t) => t.is_unique(),
        }
    }
}

/// An input of a call.
#[derive(Debug)]
pub enum Arg<'a> {
    /// An input that the program only reads.
    Read(&'a Value),
    /// An input that the program may write in place.
    Write(&'a mut Value),
}

impl Arg<'_> {
    /// Whether the program may write the tensor.
    pub(crate) fn is_writable(&mut self) -> bool {
        match self {
            Arg::Read(_) => false,
            Arg::Write(value) => value.is_writable(),
        }
    }
}

impl From<Tensor> for Value {
    fn from(t: Tensor) -> Value {
        Value::Host(t)
    }
}
impl From<DeviceTensor> for Value {
    fn from(t: DeviceTensor) -> Value {
        Value::Device(t)
    }
}

/// A tensor that a call may borrow.
pub(crate) trait Lend {
    /// Its DLPack borrow, which points to the sizes and strides of the tensor itself.
    ///
    /// # Errors
    /// A message for negative strides, which DLPack's consumers do not take.
    fn lend(&self) -> Result<DLTensor, String>;
}

impl<T: Lend> Lend for &T {
    fn lend(&self) -> Result<DLTensor, String> {
        (**self).lend()
    }
}

impl Lend for Tensor {
    fn lend(&self) -> Result<DLTensor, String> {
        let parts = self.raw_parts();
        let device = DLDevice { device_type: DL_CPU, device_id: 0 };
        borrow(parts.data, parts.dtype, device, parts.sizes, parts.strides)
    }
}

impl Lend for DeviceTensor {
    fn lend(&self) -> Result<DLTensor, String> {
        let device = DLDevice { device_type: self.device().kind, device_id: self.device().ordinal };
        borrow(self.data(), self.dtype(), device, self.sizes(), self.strides())
    }
}

impl Lend for Value {
    fn lend(&self) -> Result<DLTensor, String> {
        match self {
            Value::Host(t) => t.lend(),
            Value::Device(t) => t.lend(),
        }
    }
}

impl Lend for Arg<'_> {
    fn lend(&self) -> Result<DLTensor, String> {
        match self {
            Arg::Read(value) => value.lend(),
            Arg::Write(value) => value.lend(),
        }
    }
}

// Sizes (which fit `isize`) and strides of a tensor are passed in place as DLPack's `i64`.
const _: () = assert!(size_of::<usize>() == size_of::<i64>() && align_of::<usize>() == align_of::<i64>());

#[inline]
fn borrow(
    data: *const u8,
    dtype: ir_core::DType,
    device: DLDevice,
    sizes: &[usize],
    strides: &[isize],
) -> Result<DLTensor, String> {
    if strides.iter().any(|s| *s < 0) {
        return Err(format!("has negative strides {strides:?}; make it contiguous"));
    }
    let (code, bits) = dtype.dlpack();
    Ok(DLTensor {
        data: data.cast_mut().cast(),
        device,
        ndim: sizes.len() as i32,
        dtype: DLDataType { code, bits, lanes: 1 },
        shape: sizes.as_ptr().cast::<i64>().cast_mut(),
        strides: strides.as_ptr().cast::<i64>().cast_mut(),
        byte_offset: 0,
    })
}

/// Lends tensors to a call as the array of pointers that the ABI takes, valid while `body` runs. A typical call allocates
/// nothing for it, and copies neither sizes nor strides.
///
/// # Errors
/// A message for a tensor that cannot be lent; `body` has not run then.
#[inline]
pub(crate) fn lend_all<T: Lend, R>(
    of: &[T],
    body: impl FnOnce(&[*const DLTensor]) -> R,
) -> Result<R, String> {
    let mut tensors: SmallVec<[DLTensor; 16]> = SmallVec::with_capacity(of.len());
    for (i, tensor) in of.iter().enumerate() {
        tensors.push(tensor.lend().map_err(|reason| format!("tensor {i} {reason}"))?);
    }
    let pointers: SmallVec<[*const DLTensor; 16]> = tensors.iter().map(std::ptr::from_ref).collect();
    Ok(body(&pointers))
}

/// As [`lend_all`], one tensor.
pub(crate) fn lend_one<R>(of: &impl Lend, body: impl FnOnce(*const DLTensor) -> R) -> Result<R, String> {
    let tensor = of.lend().map_err(|reason| format!("the tensor {reason}"))?;
    Ok(body(&tensor))
}

/// A plugin's tensor that this host owns: calls the deleter once, when dropped.
pub(crate) struct Managed(NonNull<DLManagedTensorVersioned>);

// SAFETY: the ABI requires that the deleter may be called on any thread, and that nothing else uses the tensor.
unsafe impl Send for Managed {}
// SAFETY: a shared reference only reads plain fields.
unsafe impl Sync for Managed {}

impl Drop for Managed {
    fn drop(&mut self) {
        // SAFETY: the tensor is owned and not deleted yet: only `drop` deletes it.
        unsafe {
            if let Some(delete) = self.0.as_ref().deleter {
                delete(self.0.as_ptr());
            }
        }
    }
}

impl Managed {
    /// Takes ownership of the tensor that `execute` filled in; `None` for null.
    ///
    /// # Safety
    /// `raw` is null or a managed tensor that the caller owns.
    pub(crate) unsafe fn take(raw: *mut DLManagedTensorVersioned) -> Option<Self> {
        NonNull::new(raw).map(Self)
    }

    /// A tensor over the plugin's memory, without a copy.
    ///
    /// # Errors
    /// A message for a malformed tensor, which is then deleted.
    pub(crate) fn into_value(self) -> Result<Value, String> {
        // SAFETY: the managed tensor is live; its version comes first and is readable at every major.
        let version = unsafe { self.0.as_ref().version };
        if version.major != DLPACK_MAJOR {
            return Err(format!("it has DLPack version {}.{}", version.major, version.minor));
        }
        // SAFETY: the major was checked, so the rest has the layout known here.
        let dl = unsafe { &(*self.0.as_ptr()).dl_tensor };
        let dtype = ir_core::DType::from_dlpack(dl.dtype.code, dl.dtype.bits)
            .filter(|_| dl.dtype.lanes == 1)
            .ok_or_else(|| format!("it has the unknown DLPack type {:?}", dl.dtype))?;
        // SAFETY: these are the sizes and strides of a live tensor of the plugin.
        let (sizes, strides) = unsafe { dims_of(dl)? };
        let data = (dl.data as *const u8).wrapping_add(dl.byte_offset as usize);
        if data.is_null() && !sizes.contains(&0) {
            return Err("it has elements but no memory".to_owned());
        }
        let (device, release) = (dl.device, move || drop(self));
        if !matches!(device.device_type, DL_CPU | DL_CUDA_HOST) {
            let at = DeviceNumber { kind: device.device_type, ordinal: device.device_id };
            return Ok(Value::Device(DeviceTensor::new(data, dtype, at, &sizes, &strides, release)));
        }
        // SAFETY: the plugin promises that every element stays valid until the deleter runs, and writes none after
        // `execute`.
        let tensor = unsafe { Tensor::from_foreign(data, dtype, &sizes, &strides, release) };
        tensor.map(Value::Host).map_err(|e| e.to_string())
    }
}

type Dims = (SmallVec<[usize; 6]>, SmallVec<[isize; 6]>);

/// Sizes and strides of a plugin's tensor; null strides mean row-major.
///
/// # Safety
/// `shape` and `strides` are null or hold `ndim` values.
unsafe fn dims_of(dl: &DLTensor) -> Result<Dims, String> {
    if !(0..=MAX_DIMS).contains(&dl.ndim) {
        return Err(format!("it has {} dimensions", dl.ndim));
    }
    let rank = dl.ndim as usize;
    if rank == 0 {
        return Ok(Dims::default());
    }
    if dl.shape.is_null() {
        return Err("it has no sizes".to_owned());
    }
    // SAFETY: the pointer is not null, and the caller promises `ndim` values.
    let sizes = unsafe { std::slice::from_raw_parts(dl.shape, rank) };
    let sizes = sizes.iter().map(|&s| usize::try_from(s)).collect::<Result<SmallVec<[usize; 6]>, _>>();
    let sizes = sizes.map_err(|_| "it has a negative size".to_owned())?;
    let strides = if dl.strides.is_null() {
        tensor::contiguous_strides(&sizes).into_iter().collect()
    } else {
        // SAFETY: the pointer is not null, and the caller promises `ndim` values.
        unsafe { std::slice::from_raw_parts(dl.strides, rank) }.iter().map(|&s| s as isize).collect()
    };
    Ok((sizes, strides))
}
