//! Owned descriptors of cuDNN's graph API, and their attributes.

use std::ffi::c_void;

use cudarc::cudnn::result::CudnnError;
use cudarc::cudnn::sys::{self, cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type};
use gpu_runtime::GpuError;

use crate::dnn_api::Api;

/// The type of a descriptor.
pub(crate) use sys::cudnnBackendDescriptorType_t as Kind;

/// A descriptor, destroyed when dropped.
pub(crate) struct Desc(sys::cudnnBackendDescriptor_t, &'static Api);

// SAFETY: a descriptor is host memory, and it is only read after `finish`.
unsafe impl Send for Desc {}
// SAFETY: shared references only read a descriptor, which the library allows from several threads.
unsafe impl Sync for Desc {}

/// Converts an error of the library.
pub(crate) fn failed(call: &'static str) -> impl Fn(CudnnError) -> GpuError {
    move |e| GpuError::Driver { call, what: format!("{:?}", e.0) }
}

impl Desc {
    pub(crate) fn new(kind: Kind) -> Result<Desc, GpuError> {
        let api = Api::load()?;
        let mut made = std::ptr::null_mut();
        // SAFETY: the library writes one pointer.
        unsafe { (api.make)(kind, &mut made).result() }.map_err(failed("cudnnBackendCreateDescriptor"))?;
        Ok(Desc(made, api))
    }

    pub(crate) fn raw(&self) -> sys::cudnnBackendDescriptor_t {
        self.0
    }

    /// Sets an attribute to a list of values.
    pub(crate) fn set<T>(&mut self, name: Name, ty: Type, values: &[T]) -> Result<(), GpuError> {
        // SAFETY: the descriptor is alive, and the library copies the given number of values, whose type is `T`.
        unsafe {
            (self.1.set)(self.0, name, ty, values.len() as i64, values.as_ptr().cast::<c_void>()).result()
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

    /// Finalizes the descriptor.
    pub(crate) fn finish(self) -> Result<Desc, GpuError> {
        // SAFETY: the descriptor is alive.
        unsafe { (self.1.finalize)(self.0).result() }.map_err(failed("cudnnBackendFinalize"))?;
        Ok(self)
    }

    /// Reads the values of an attribute into `values`, and returns their number.
    pub(crate) fn get<T>(&self, name: Name, ty: Type, values: &mut [T]) -> Result<usize, GpuError> {
        let mut count = 0;
        // SAFETY: the descriptor is alive, and the library writes at most the given number of values, whose type is `T`.
        unsafe {
            (self.1.get)(
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

    /// Reads a text attribute.
    pub(crate) fn text(&self, name: Name) -> Result<Vec<u8>, GpuError> {
        let mut length = 0;
        let none = std::ptr::null_mut();
        // SAFETY: the descriptor is alive; with no room for elements only their number is written.
        unsafe { (self.1.get)(self.0, name, Type::CUDNN_TYPE_CHAR, 0, &mut length, none).result() }
            .map_err(failed("cudnnBackendGetAttribute"))?;
        let mut text = vec![0u8; usize::try_from(length).unwrap_or(0)];
        let count = self.get(name, Type::CUDNN_TYPE_CHAR, &mut text)?;
        text.truncate(count);
        Ok(text)
    }
}

impl Drop for Desc {
    fn drop(&mut self) {
        // SAFETY: the descriptor was made in `new` and is destroyed once.
        let _ = unsafe { (self.1.unmake)(self.0) };
    }
}
