//! cuBLASLt: preparing products for sets of sizes, and launching them.
//!
//! Not here: which product a step is, how its matrices lie and which plans are kept (`gpu_runtime::products`).

use std::ffi::c_void;

use cudarc::cublaslt::{result, sys};
use gpu_runtime::GpuError;
use gpu_runtime::products::{
    Addresses, Gemm, Key, Kind, MAX_ALGORITHMS, Matrix, ProductLibrary, Products, Scalars,
};
use ir_core::DType;

use crate::blas_api::Api;
use crate::vendor::{StreamContext, Workspace};

/// The library on one stream.
pub(crate) struct Blas {
    api: &'static Api,
    handle: sys::cublasLtHandle_t,
    stream_context: StreamContext,
    workspace: Workspace,
}

// SAFETY: the handle may be used from several threads; descriptors are written by one launch at a time.
unsafe impl Send for Blas {}
// SAFETY: shared use of the handle is allowed by the library; descriptors are written only while `exclusive` is held.
unsafe impl Sync for Blas {}

/// A product that is ready for launch: descriptors and an algorithm.
pub(crate) struct Plan {
    api: &'static Api,
    desc: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 4],
    algo: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
}

// SAFETY: descriptors are host memory, written only while `Blas::exclusive` is held.
unsafe impl Send for Plan {}
// SAFETY: descriptors are host memory, written only while `Blas::exclusive` is held.
unsafe impl Sync for Plan {}

/// Converts an error of the library.
fn failed(call: &'static str) -> impl Fn(result::CublasError) -> GpuError {
    move |e| GpuError::Driver { call, what: format!("{:?}", e.0) }
}

/// The library's name for a dtype that it multiplies.
fn number_type(dtype: DType) -> Option<sys::cudaDataType> {
    use sys::cudaDataType_t as T;
    Some(match dtype {
        DType::F16 => T::CUDA_R_16F,
        DType::BF16 => T::CUDA_R_16BF,
        DType::F32 => T::CUDA_R_32F,
        DType::F64 => T::CUDA_R_64F,
        _ => return None,
    })
}

fn compute(kind: &Kind) -> (sys::cublasComputeType_t, sys::cudaDataType) {
    use sys::cublasComputeType_t as C;
    match kind.operands {
        DType::F64 => (C::CUBLAS_COMPUTE_64F, sys::cudaDataType_t::CUDA_R_64F),
        DType::F32 if kind.tf32 => (C::CUBLAS_COMPUTE_32F_FAST_TF32, sys::cudaDataType_t::CUDA_R_32F),
        _ => (C::CUBLAS_COMPUTE_32F, sys::cudaDataType_t::CUDA_R_32F),
    }
}

fn epilogue(kind: &Kind) -> sys::cublasLtEpilogue_t {
    use sys::cublasLtEpilogue_t as E;
    match (kind.bias, kind.relu) {
        (false, false) => E::CUBLASLT_EPILOGUE_DEFAULT,
        (false, true) => E::CUBLASLT_EPILOGUE_RELU,
        (true, false) => E::CUBLASLT_EPILOGUE_BIAS,
        (true, true) => E::CUBLASLT_EPILOGUE_RELU_BIAS,
    }
}

impl Blas {
    /// Starts the library on a stream.
    ///
    /// # Errors
    /// An error of the library, which was found before.
    pub(crate) fn new(stream_context: StreamContext, workspace: Workspace) -> Result<Blas, GpuError> {
        let _span = tracing::debug_span!(target: "kernel", "start cuBLASLt").entered();
        stream_context.enter()?;
        let api = Api::load()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library writes one pointer.
        unsafe { (api.create)(&mut handle).result() }.map_err(failed("cublasLtCreate"))?;
        tracing::debug!(target: "kernel", version = Blas::version(), "cuBLASLt");
        Ok(Blas { api, handle, stream_context, workspace })
    }

    /// The library's version, `130100` for 13.1; 0 where there is none.
    pub(crate) fn version() -> usize {
        // SAFETY: the function has no arguments.
        Api::load().map_or(0, |api| unsafe { (api.version)() })
    }

    /// Asks the library for algorithms and keeps the one of the key's number, or the last there is.
    fn choose(&self, plan: &mut Plan, key: &Key) -> Result<(), GpuError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as P;
        let preference = Preference::new(self.api)?;
        let addend = if key.gemm.addend.is_some() { key.alignments[2] } else { key.alignments[3] };
        preference.set(P::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, self.workspace.bytes())?;
        // Partial sums of a split inner dimension are added in the compute dtype, in a fixed order.
        let schemes = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        preference.set(P::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes)?;
        preference.set(P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.alignments[0] as u32)?;
        preference.set(P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.alignments[1] as u32)?;
        preference.set(P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, addend as u32)?;
        preference.set(P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.alignments[3] as u32)?;
        let nothing = sys::cublasLtMatmulHeuristicResult_t {
            algo: plan.algo,
            workspaceSize: 0,
            state: sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
            wavesCount: 0.0,
            reserved: [0; 4],
        };
        let mut found = [nothing; MAX_ALGORITHMS];
        let mut count = 0;
        let [a, b, c, d] = plan.layouts;
        let wanted = (key.algorithm + 1).min(MAX_ALGORITHMS) as i32;
        // SAFETY: every descriptor was made above, and the array has room for the number of results that is passed.
        unsafe {
            (self.api.heuristic)(
                self.handle,
                plan.desc,
                a,
                b,
                c,
                d,
                preference.handle,
                wanted,
                found.as_mut_ptr(),
                &mut count,
            )
            .result()
            .map_err(failed("cublasLtMatmulAlgoGetHeuristic"))?;
        }
        let mut good = found[..count.clamp(0, wanted) as usize]
            .iter()
            .filter(|r| r.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        let Some(chosen) = good.next_back() else {
            let what = format!("no algorithm for {:?}", key.gemm);
            return Err(GpuError::Driver { call: "cublasLtMatmulAlgoGetHeuristic", what });
        };
        plan.algo = chosen.algo;
        plan.workspace = chosen.workspaceSize;
        Ok(())
    }
}

impl Products for Blas {
    const NAME: &'static str = "cublaslt";
    type Plan = Plan;

    fn enter(&self) -> Result<(), GpuError> {
        self.stream_context.enter()
    }

    fn make(&self, key: &Key, at: &Addresses) -> Result<Plan, GpuError> {
        let Key { gemm, kind, .. } = key;
        let (Some(operands), Some(out)) = (number_type(kind.operands), number_type(kind.out)) else {
            return Err(GpuError::Malformed(format!("cuBLASLt has no products of {}", kind.operands)));
        };
        let (compute, scale) = compute(kind);
        let api = self.api;
        let mut desc = std::ptr::null_mut();
        // SAFETY: the library writes one pointer.
        unsafe { (api.make_desc)(&mut desc, compute, scale).result() }
            .map_err(failed("cublasLtMatmulDescCreate"))?;
        // From here on `plan` owns what is made.
        let null = std::ptr::null_mut();
        let algo = sys::cublasLtMatmulAlgo_t { data: [0; 8] };
        let mut plan = Plan { api, desc, layouts: [null; 4], algo, workspace: 0 };
        use sys::cublasLtMatmulDescAttributes_t as A;
        plan.set(A::CUBLASLT_MATMUL_DESC_TRANSA, i32::from(gemm.first.transposed))?;
        plan.set(A::CUBLASLT_MATMUL_DESC_TRANSB, i32::from(gemm.second.transposed))?;
        plan.set(A::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(kind))?;
        if kind.bias {
            plan.set(A::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, out)?;
            plan.set(A::CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.bias)?;
        }
        let addend = gemm.addend.unwrap_or(gemm.out);
        let sides = [
            (operands, gemm.rows, gemm.depth, gemm.first),
            (operands, gemm.depth, gemm.cols, gemm.second),
            (out, gemm.rows, gemm.cols, addend),
            (out, gemm.rows, gemm.cols, gemm.out),
        ];
        for (slot, (ty, rows, cols, matrix)) in plan.layouts.iter_mut().zip(sides) {
            *slot = layout(api, ty, rows, cols, matrix, gemm.batch)?;
        }
        self.choose(&mut plan, key)?;
        Ok(plan)
    }

    unsafe fn launch(&self, plan: &Plan, key: &Key, alpha: f64, at: &Addresses) -> Result<(), GpuError> {
        let Key { gemm, kind, .. } = key;
        if kind.bias {
            plan.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.bias)?;
        }
        let scalars = Scalars::new(key, alpha);
        let addend = if gemm.addend.is_some() { at.addend } else { at.out };
        let [a, b, c, d] = plan.layouts;
        // SAFETY: the caller guarantees the addresses; descriptors outlive the call, and the scalars are read before it
        // returns.
        unsafe {
            (self.api.matmul)(
                self.handle,
                plan.desc,
                scalars.pointer(0),
                at.first as *const c_void,
                a,
                at.second as *const c_void,
                b,
                scalars.pointer(1),
                addend as *const c_void,
                c,
                at.out as *mut c_void,
                d,
                &plan.algo,
                self.workspace.address() as *mut c_void,
                plan.workspace,
                self.stream_context.stream().cast(),
            )
            .result()
            .map_err(failed("cublasLtMatmul"))
        }
    }
}

/// Has the library make its tables, which its first answer does else: asks for a small product of a kind that will be
/// asked for, since each kind has its own.
pub(crate) fn begin(blas: &ProductLibrary<Blas>, operands: DType, tf32: bool) {
    let _span = tracing::debug_span!(target: "kernel", "begin with cuBLASLt").entered();
    let matrix = Matrix { transposed: false, ld: 64, step: 0 };
    let gemm = Gemm {
        rows: 64,
        cols: 64,
        depth: 64,
        batch: 1,
        first: matrix,
        second: matrix,
        out: matrix,
        addend: None,
        swapped: false,
    };
    let kind =
        Kind { operands, out: operands, tf32: tf32 && operands == DType::F32, bias: false, relu: false };
    if let Err(e) = blas.prepare(&gemm, &kind, &Addresses::default(), 0) {
        tracing::debug!(target: "kernel", "cuBLASLt: {e}");
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: the handle was made in `new` and is destroyed once.
        let _ = unsafe { (self.api.destroy)(self.handle) };
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        for layout in self.layouts.iter().filter(|l| !l.is_null()) {
            // SAFETY: the layout was made in `make` and is destroyed once.
            let _ = unsafe { (self.api.unmake_layout)(*layout) };
        }
        // SAFETY: the descriptor was made in `make` and is destroyed once.
        let _ = unsafe { (self.api.unmake_desc)(self.desc) };
    }
}

/// A preference, destroyed when dropped.
struct Preference {
    api: &'static Api,
    handle: sys::cublasLtMatmulPreference_t,
}

impl Preference {
    fn new(api: &'static Api) -> Result<Preference, GpuError> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the library writes one pointer.
        unsafe { (api.make_preference)(&mut handle).result() }
            .map_err(failed("cublasLtMatmulPreferenceCreate"))?;
        Ok(Preference { api, handle })
    }

    fn set<T>(&self, name: sys::cublasLtMatmulPreferenceAttributes_t, value: T) -> Result<(), GpuError> {
        // SAFETY: the preference is alive, and the library copies the number of bytes that is passed.
        unsafe {
            (self.api.set_preference)(self.handle, name, (&raw const value).cast(), size_of::<T>()).result()
        }
        .map_err(failed("cublasLtMatmulPreferenceSetAttribute"))
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: the preference was made by the library and is destroyed once.
        let _ = unsafe { (self.api.unmake_preference)(self.handle) };
    }
}

impl Plan {
    fn set<T>(&self, name: sys::cublasLtMatmulDescAttributes_t, value: T) -> Result<(), GpuError> {
        // SAFETY: the descriptor is alive, and the library copies the number of bytes that is passed.
        unsafe { (self.api.set_desc)(self.desc, name, (&raw const value).cast(), size_of::<T>()).result() }
            .map_err(failed("cublasLtMatmulDescSetAttribute"))
    }
}

/// The layout of a matrix of `rows × cols`, or of its transpose in memory.
fn layout(
    api: &Api,
    ty: sys::cudaDataType,
    rows: i64,
    cols: i64,
    matrix: Matrix,
    batch: i64,
) -> Result<sys::cublasLtMatrixLayout_t, GpuError> {
    let (rows, cols) = if matrix.transposed { (cols, rows) } else { (rows, cols) };
    let mut made = std::ptr::null_mut();
    // SAFETY: the library writes one pointer.
    unsafe { (api.make_layout)(&mut made, ty, rows as u64, cols as u64, matrix.ld).result() }
        .map_err(failed("cublasLtMatrixLayoutCreate"))?;
    let put = |name, value: *const c_void, size| {
        // SAFETY: the layout was just made, and the library copies the number of bytes that is passed.
        unsafe { (api.set_layout)(made, name, value, size).result() }
    };
    use sys::cublasLtMatrixLayoutAttribute_t as L;
    let count = batch as i32;
    let done = put(L::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, (&raw const count).cast(), 4).and_then(|()| {
        put(L::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, (&raw const matrix.step).cast(), 8)
    });
    if let Err(e) = done {
        // SAFETY: the layout was made above and is destroyed once.
        let _ = unsafe { (api.unmake_layout)(made) };
        return Err(failed("cublasLtMatrixLayoutSetAttribute")(e));
    }
    Ok(made)
}
