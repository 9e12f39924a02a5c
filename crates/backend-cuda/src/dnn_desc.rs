//! Descriptors of cuDNN's graph interface with an owner, and their attributes.

use std::ffi::c_void;

use cudarc::cudnn::result::CudnnError;
use cudarc::cudnn::sys::{self, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type};
use gpu_runtime::GpuError;

/// What is being described.
pub(crate) use sys::cudnnBackendDescriptorType_t as Kind;

/// A descriptor, destroyed when dropped.
pub(crate) struct Desc(sys::cudnnBackendDescriptor_t);

// SAFETY: a descriptor is memory of the host; after `finish` it is only read.
unsafe impl Send for Desc {}
// SAFETY: as above.
unsafe impl Sync for Desc {}

/// An error of the library's, by its own name.
pub(crate) fn failed(call: &'static str) -> impl Fn(CudnnError) -> GpuError {
    move |e| GpuError::Driver { call, what: format!("{:?}", e.0) }
}

impl Desc {
    pub(crate) fn new(kind: Kind) -> Result<Desc, GpuError> {
        let mut made = std::ptr::null_mut();
        // SAFETY: the library writes one pointer.
        unsafe { sys::cudnnBackendCreateDescriptor(kind, &mut made).result() }
            .map_err(failed("cudnnBackendCreateDescriptor"))?;
        Ok(Desc(made))
    }

    pub(crate) fn raw(&self) -> sys::cudnnBackendDescriptor_t {
        self.0
    }

    /// Sets an attribute of several values.
    pub(crate) fn set<T>(&mut self, name: Name, ty: Type, values: &[T]) -> Result<(), GpuError> {
        // SAFETY: the descriptor lives; the library copies as many values of the type that is named, which are `T`.
        unsafe {
            sys::cudnnBackendSetAttribute(
                self.0,
                name,
                ty,
                values.len() as i64,
                values.as_ptr().cast::<c_void>(),
            )
            .result()
        }
        .map_err(failed("cudnnBackendSetAttribute"))
    }

    pub(crate) fn integers(&mut self, name: Name, values: &[i64]) -> Result<(), GpuError> {
        self.set(name, Type::CUDNN_TYPE_INT64, values)
    }

    pub(crate) fn dtype(&mut self, name: Name, value: sys::cudnnDataType_t) -> Result<(), GpuError> {
        self.set(name, Type::CUDNN_TYPE_DATA_TYPE, &[value])
    }

    pub(crate) fn float(&mut self, name: Name, value: f32) -> Result<(), GpuError> {
        self.set(name, Type::CUDNN_TYPE_FLOAT, &[value])
    }

    pub(crate) fn refer(&mut self, name: Name, to: &[&Desc]) -> Result<(), GpuError> {
        let raw: Vec<sys::cudnnBackendDescriptor_t> = to.iter().map(|d| d.0).collect();
        self.set(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw)
    }

    /// Ends the description.
    pub(crate) fn finish(self) -> Result<Desc, GpuError> {
        // SAFETY: the descriptor lives.
        unsafe { sys::cudnnBackendFinalize(self.0).result() }.map_err(failed("cudnnBackendFinalize"))?;
        Ok(self)
    }

    /// Values of an attribute, into `values`; how many there are.
    pub(crate) fn get<T>(&self, name: Name, ty: Type, values: &mut [T]) -> Result<usize, GpuError> {
        let mut count = 0;
        // SAFETY: the descriptor lives; the library writes at most as many values of the type that is named.
        unsafe {
            sys::cudnnBackendGetAttribute(
                self.0,
                name,
                ty,
                values.len() as i64,
                &mut count,
                values.as_mut_ptr().cast::<c_void>(),
            )
            .result()
        }
        .map_err(failed("cudnnBackendGetAttribute"))?;
        Ok(count.clamp(0, values.len() as i64) as usize)
    }

    /// A text of any length.
    pub(crate) fn text(&self, name: Name) -> Result<Vec<u8>, GpuError> {
        let mut length = 0;
        let none = std::ptr::null_mut();
        // SAFETY: the descriptor lives; of no elements nothing is written but their number.
        unsafe {
            sys::cudnnBackendGetAttribute(self.0, name, Type::CUDNN_TYPE_CHAR, 0, &mut length, none).result()
        }
        .map_err(failed("cudnnBackendGetAttribute"))?;
        let mut text = vec![0u8; usize::try_from(length).unwrap_or(0)];
        let count = self.get(name, Type::CUDNN_TYPE_CHAR, &mut text)?;
        text.truncate(count);
        Ok(text)
    }
}

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { sys::cudnnBackendDestroyDescriptor(self.0) };
    }
}
