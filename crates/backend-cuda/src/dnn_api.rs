//! The functions of cuDNN that are called, with the types of `cudarc`'s bindings.
//!
//! Not here: what they are called for (`dnn`, `dnn_desc`).

use std::ffi::c_void;

use cudarc::cudnn::sys::{
    cudaStream_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, cudnnBackendDescriptor_t,
    cudnnBackendDescriptorType_t, cudnnHandle_t, cudnnStatus_t,
};

use crate::api::functions;
use crate::libraries::Library;

functions! {
    /// The functions, by what they do.
    pub(crate) struct Api in Library::Dnn, which is "cuDNN 9";
    create = "cudnnCreate": fn(*mut cudnnHandle_t) -> cudnnStatus_t;
    destroy = "cudnnDestroy": fn(cudnnHandle_t) -> cudnnStatus_t;
    set_stream = "cudnnSetStream": fn(cudnnHandle_t, cudaStream_t) -> cudnnStatus_t;
    version = "cudnnGetVersion": fn() -> usize;
    make = "cudnnBackendCreateDescriptor": fn(cudnnBackendDescriptorType_t, *mut cudnnBackendDescriptor_t) -> cudnnStatus_t;
    unmake = "cudnnBackendDestroyDescriptor": fn(cudnnBackendDescriptor_t) -> cudnnStatus_t;
    /// Descriptor, attribute, its type, number of values, values.
    set = "cudnnBackendSetAttribute": fn(
        cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, i64, *const c_void
    ) -> cudnnStatus_t;
    /// Descriptor, attribute, its type, room for values, their number, values.
    get = "cudnnBackendGetAttribute": fn(
        cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, i64, *mut i64, *mut c_void
    ) -> cudnnStatus_t;
    finalize = "cudnnBackendFinalize": fn(cudnnBackendDescriptor_t) -> cudnnStatus_t;
    /// Handle, plan, the memory that it works on.
    execute = "cudnnBackendExecute": fn(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t) -> cudnnStatus_t;
}
