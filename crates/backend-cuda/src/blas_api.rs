//! The functions of cuBLASLt that are called, with the types of `cudarc`'s bindings.
//!
//! Not here: what they are called for (`blas`).

use std::ffi::{c_int, c_void};

use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t, cublasLtMatmulHeuristicResult_t, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t,
    cublasStatus_t, cudaDataType, cudaStream_t,
};

use crate::api::functions;
use crate::libraries::Library;

functions! {
    /// The functions, by what they do.
    pub(crate) struct Api in Library::Blas, which is "cuBLASLt 12 or later";
    version = "cublasLtGetVersion": fn() -> usize;
    create = "cublasLtCreate": fn(*mut cublasLtHandle_t) -> cublasStatus_t;
    destroy = "cublasLtDestroy": fn(cublasLtHandle_t) -> cublasStatus_t;
    make_desc = "cublasLtMatmulDescCreate": fn(*mut cublasLtMatmulDesc_t, cublasComputeType_t, cudaDataType) -> cublasStatus_t;
    unmake_desc = "cublasLtMatmulDescDestroy": fn(cublasLtMatmulDesc_t) -> cublasStatus_t;
    /// Descriptor, attribute, value, its bytes.
    set_desc = "cublasLtMatmulDescSetAttribute": fn(
        cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, *const c_void, usize
    ) -> cublasStatus_t;
    /// Layout, type of elements, rows, columns, distance between columns.
    make_layout = "cublasLtMatrixLayoutCreate": fn(*mut cublasLtMatrixLayout_t, cudaDataType, u64, u64, i64) -> cublasStatus_t;
    unmake_layout = "cublasLtMatrixLayoutDestroy": fn(cublasLtMatrixLayout_t) -> cublasStatus_t;
    /// Layout, attribute, value, its bytes.
    set_layout = "cublasLtMatrixLayoutSetAttribute": fn(
        cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, *const c_void, usize
    ) -> cublasStatus_t;
    make_preference = "cublasLtMatmulPreferenceCreate": fn(*mut cublasLtMatmulPreference_t) -> cublasStatus_t;
    unmake_preference = "cublasLtMatmulPreferenceDestroy": fn(cublasLtMatmulPreference_t) -> cublasStatus_t;
    /// Preference, attribute, value, its bytes.
    set_preference = "cublasLtMatmulPreferenceSetAttribute": fn(
        cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, *const c_void, usize
    ) -> cublasStatus_t;
    /// Handle, descriptor, layouts of both operands, addend and result, preference, wanted algorithms, these, their number.
    heuristic = "cublasLtMatmulAlgoGetHeuristic": fn(
        cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
        cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, c_int, *mut cublasLtMatmulHeuristicResult_t, *mut c_int
    ) -> cublasStatus_t;
    /// Handle, descriptor, factor, operands with their layouts, factor of the addend, it and the result with their layouts,
    /// algorithm, workspace with its bytes, stream.
    matmul = "cublasLtMatmul": fn(
        cublasLtHandle_t, cublasLtMatmulDesc_t, *const c_void, *const c_void, cublasLtMatrixLayout_t, *const c_void,
        cublasLtMatrixLayout_t, *const c_void, *const c_void, cublasLtMatrixLayout_t, *mut c_void, cublasLtMatrixLayout_t,
        *const cublasLtMatmulAlgo_t, *mut c_void, usize, cudaStream_t
    ) -> cublasStatus_t;
}
