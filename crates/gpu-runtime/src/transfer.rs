//! Tensors between host and device.

use std::ptr::NonNull;
use std::sync::Arc;

use ir_core::DType;
use plugin_sdk::dlpack::{DL_CPU, DL_CUDA_HOST};
use plugin_sdk::{DeviceId, OwnedTensor, PluginError, TensorView};

use crate::memory::{copy_strided, span};
use crate::{Block, DeviceMemory, Driver, GpuError};

fn refused(e: PluginError) -> GpuError {
    GpuError::Argument(e.to_string())
}

/// Whether the host reads the memory of this device itself.
pub(crate) fn on_host(device: DeviceId) -> bool {
    matches!(device.device_type, DL_CPU | DL_CUDA_HOST)
}

/// Whether a layout addresses its elements as another does.
pub(crate) fn same_layout(extent: &[i64], one: &[i64], other: &[i64]) -> bool {
    (0..extent.len()).all(|d| extent[d] <= 1 || one[d] == other[d])
}

/// A tensor of the caller in a block of the device.
pub(crate) fn owned<D: Driver>(
    driver: &D,
    block: Arc<Block<D>>,
    address: u64,
    dtype: DType,
    sizes: &[i64],
    strides: &[i64],
) -> Result<OwnedTensor, GpuError> {
    let data =
        NonNull::new(address as *mut u8).ok_or_else(|| GpuError::Malformed("a null address".into()))?;
    // SAFETY: the block lives as long as the tensor and nobody else writes it; all work is in the stream's order, which
    // every reader waits for.
    unsafe { OwnedTensor::from_raw_parts(data, dtype, driver.device(), sizes, strides, Box::new(block)) }
        .map_err(refused)
}

/// A tensor on the device whose elements are not set.
///
/// # Errors
/// No memory, a lost device, strides that make no sense.
pub fn allocate<D: Driver>(
    memory: &Arc<DeviceMemory<D>>,
    dtype: DType,
    sizes: &[i64],
    strides: &[i64],
) -> Result<OwnedTensor, GpuError> {
    let block = memory.block(span(sizes, strides) * dtype.size() as u64)?;
    let address = block.address();
    owned(&**memory.driver(), Arc::new(block), address, dtype, sizes, strides)
}

/// A copy of a host tensor on the device, row-major.
///
/// # Errors
/// No memory, a lost device, a tensor that is not the host's.
pub fn to_device<D: Driver>(
    memory: &Arc<DeviceMemory<D>>,
    view: &TensorView<'_>,
) -> Result<OwnedTensor, GpuError> {
    let (sizes, dtype) = (view.sizes(), view.dtype());
    let mut strides = vec![1i64; sizes.len()];
    for d in (1..sizes.len()).rev() {
        strides[d - 1] = strides[d] * sizes[d].max(1);
    }
    let _guard = memory.exclusive();
    let block = memory.block(span(sizes, &strides) * dtype.size() as u64)?;
    let address = block.address();
    upload(&**memory.driver(), view, &strides, address)?;
    owned(&**memory.driver(), Arc::new(block), address, dtype, sizes, &strides)
}

/// A copy of a device tensor on the host, with the same strides.
///
/// # Errors
/// A lost device, errors of work that was started before (an index of a call that nobody waited for), a tensor of another
/// device.
pub fn to_host<D: Driver>(
    memory: &Arc<DeviceMemory<D>>,
    view: &TensorView<'_>,
) -> Result<OwnedTensor, GpuError> {
    let driver = memory.driver();
    if view.device() != driver.device() {
        return Err(GpuError::Argument("the tensor lies on another device".into()));
    }
    let bytes = span(view.sizes(), view.strides()) as usize * view.dtype().size();
    let mut tensor =
        OwnedTensor::zeroed_strided(view.dtype(), view.sizes(), view.strides()).map_err(refused)?;
    if bytes > 0 {
        let _guard = memory.exclusive();
        // SAFETY: the tensor was allocated for this span, and the view's memory is the device's.
        unsafe { memory.download(tensor.as_mut_ptr(), view.as_ptr() as u64, bytes)? };
    }
    Ok(tensor)
}

/// Writes the elements of one tensor over those of another; each lies on the host or on this device.
///
/// # Errors
/// Tensors that differ in dtype or sizes, different strides on the device, other devices, a lost device.
///
/// # Safety
/// The memory behind `to` may be written.
pub unsafe fn copy<D: Driver>(
    memory: &Arc<DeviceMemory<D>>,
    from: &TensorView<'_>,
    to: &TensorView<'_>,
) -> Result<(), GpuError> {
    if from.dtype() != to.dtype() || from.sizes() != to.sizes() {
        return Err(GpuError::Argument("a copy wants tensors of one dtype and the same sizes".into()));
    }
    let driver = memory.driver();
    let here = |t: &TensorView<'_>| t.device() == driver.device();
    let bytes = span(to.sizes(), to.strides()) * to.dtype().size() as u64;
    if bytes == 0 {
        return Ok(());
    }
    let _guard = memory.exclusive();
    if on_host(from.device()) && here(to) {
        return upload(&**driver, from, to.strides(), to.as_ptr() as u64);
    }
    let known = [from, to].into_iter().all(|t| here(t) || on_host(t.device()));
    if !known || !same_layout(to.sizes(), from.strides(), to.strides()) {
        let what = format!("a copy from strides {:?} to {:?}", from.strides(), to.strides());
        return Err(GpuError::Argument(format!("{what}: the strides must be equal, the devices this one")));
    }
    let (source, target) = (from.as_ptr(), to.as_ptr().cast_mut());
    // SAFETY: both views address this span, and the caller promises that the target may be written.
    unsafe {
        match (here(from), here(to)) {
            (true, true) => driver.copy(target as u64, source as u64, bytes),
            (true, false) => memory.download(target, source as u64, bytes as usize),
            _ => {
                std::ptr::copy(source, target, bytes as usize);
                Ok(())
            }
        }
    }
}

/// The elements of a host tensor at an address of the device that has room for these strides.
pub(crate) fn upload<D: Driver>(
    driver: &D,
    view: &TensorView<'_>,
    strides: &[i64],
    address: u64,
) -> Result<(), GpuError> {
    if !on_host(view.device()) {
        return Err(GpuError::Argument(
            "the tensor lies on another device: copy it to the host first".into(),
        ));
    }
    let (extent, width) = (view.sizes(), view.dtype().size());
    let bytes = span(extent, strides) as usize * width;
    if bytes == 0 {
        return Ok(());
    }
    if same_layout(extent, view.strides(), strides) {
        // SAFETY: the view's span is readable host memory, and the block is as long.
        return unsafe { driver.upload(address, view.as_ptr(), bytes) };
    }
    let mut staged = vec![0u8; bytes];
    // SAFETY: the view addresses its elements; the staging memory has the span of the layout.
    unsafe {
        copy_strided(width, extent, (view.as_ptr(), view.strides()), (staged.as_mut_ptr(), strides));
        driver.upload(address, staged.as_ptr(), bytes)
    }
}
