//! A tensor in the memory of a device: a handle with a shape, passed on to the owner of the device and never read here.

use std::fmt;
use std::sync::Arc;

use ir_core::DType;

use crate::{Sizes, Strides};

/// A device in DLPack's numbering: type (2 is CUDA, 10 ROCm) and ordinal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceNumber {
    /// Type.
    pub kind: i32,
    /// Which one of its kind.
    pub ordinal: i32,
}

/// A tensor on a device. Cloning is cheap and shares the memory, which is freed with the last clone.
#[derive(Clone)]
pub struct DeviceTensor(Arc<Inner>);

struct Inner {
    data: *const u8,
    dtype: DType,
    device: DeviceNumber,
    sizes: Sizes,
    strides: Strides,
    release: Option<Box<dyn FnOnce() + Send + Sync>>,
}

// SAFETY: `data` is only an address or handle here; nothing in this crate dereferences it, so another thread may hold it.
unsafe impl Send for Inner {}
// SAFETY: `data` is only an address or handle here; nothing in this crate dereferences it, so threads may share it.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release();
        }
    }
}

impl DeviceTensor {
    /// A tensor at `data`, an address or handle of the device's driver. `release` runs once, when the last clone goes.
    pub fn new(
        data: *const u8,
        dtype: DType,
        device: DeviceNumber,
        sizes: &[usize],
        strides: &[isize],
        release: impl FnOnce() + Send + Sync + 'static,
    ) -> DeviceTensor {
        let (sizes, strides) = (sizes.into(), strides.into());
        DeviceTensor(Arc::new(Inner {
            data,
            dtype,
            device,
            sizes,
            strides,
            release: Some(Box::new(release)),
        }))
    }
    /// Address or handle of the element with index 0 in every dimension.
    pub fn data(&self) -> *const u8 {
        self.0.data
    }
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }
    /// Whether this is the one handle of its memory.
    pub fn is_unique(&mut self) -> bool {
        Arc::get_mut(&mut self.0).is_some()
    }
    /// Where it lies.
    pub fn device(&self) -> DeviceNumber {
        self.0.device
    }
    /// Number of elements of each dimension.
    pub fn sizes(&self) -> &[usize] {
        &self.0.sizes
    }
    /// Distance in elements between neighbours of each dimension.
    pub fn strides(&self) -> &[isize] {
        &self.0.strides
    }
}

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { dtype, device, sizes, strides, .. } = &*self.0;
        write!(f, "{dtype}{:?} strides {:?} on {}:{}", &sizes[..], &strides[..], device.kind, device.ordinal)
    }
}
