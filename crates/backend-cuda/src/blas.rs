//! cuBLASLt: products prepared for sets of sizes, and their launch.
//!
//! Not here: which product a step is (`blas_call`) and how its matrices lie (`blas_layout`).

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::cublaslt::{result, sys};
use gpu_runtime::GpuError;
use ir_core::DType;

use crate::blas_layout::{Gemm, Matrix};
use crate::vendor::{StreamContext, Workspace};

/// Prepared products at most; more begin anew.
const MAX_PLANS: usize = 4096;
/// Algorithms that the library is asked for.
pub(crate) const MAX_ALGORITHMS: usize = 5;
/// What addresses are taken to be multiples of at most, in bytes: what the widest access of a kernel needs.
const ALIGNMENT: u64 = 16;

/// The library on one stream.
pub(crate) struct Blas {
    handle: sys::cublasLtHandle_t,
    stream_context: StreamContext,
    workspace: Workspace,
    plans: Mutex<HashMap<Key, Arc<Plan>>>,
    exclusive: Mutex<()>,
}

// SAFETY: the handle may be used from several threads; descriptors are written under `exclusive`.
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

/// Dtypes and what happens to the product: with the numbers of a [`Gemm`], what a plan is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    /// Of both factors.
    pub(crate) factors: DType,
    /// Of the result, the addend and the biases.
    pub(crate) out: DType,
    /// Whether float32 factors may be rounded to tf32.
    pub(crate) tf32: bool,
    /// Whether a vector is added, one number a row of the column-major result.
    pub(crate) bias: bool,
    /// Whether negative values become 0.
    pub(crate) relu: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    gemm: Gemm,
    kind: Kind,
    alignments: [u64; 4],
    algorithm: usize,
}

/// Addresses of one product.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Addresses {
    pub(crate) first: u64,
    pub(crate) second: u64,
    pub(crate) addend: u64,
    pub(crate) out: u64,
    pub(crate) bias: u64,
}

/// A product that is ready for launch: descriptors and an algorithm.
struct Plan {
    desc: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 4],
    algo: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
}

// SAFETY: descriptors are memory of the host; they are written under `Blas::exclusive` alone.
unsafe impl Send for Plan {}
// SAFETY: as above.
unsafe impl Sync for Plan {}

/// An error of the library's, by its own name.
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

/// Whether the library multiplies factors of a dtype to a result of another.
pub(crate) fn takes(factors: DType, out: DType) -> bool {
    match factors {
        DType::F16 | DType::BF16 => out == factors || out == DType::F32,
        DType::F32 | DType::F64 => out == factors,
        _ => false,
    }
}

/// The largest power of two, at most [`ALIGNMENT`], that divides all of them.
pub(crate) fn alignment(of: &[u64]) -> u64 {
    let bits = of.iter().fold(ALIGNMENT, |all, n| all | n);
    1 << bits.trailing_zeros()
}

impl Kind {
    fn compute(&self) -> (sys::cublasComputeType_t, sys::cudaDataType) {
        use sys::cublasComputeType_t as C;
        match self.factors {
            DType::F64 => (C::CUBLAS_COMPUTE_64F, sys::cudaDataType_t::CUDA_R_64F),
            DType::F32 if self.tf32 => (C::CUBLAS_COMPUTE_32F_FAST_TF32, sys::cudaDataType_t::CUDA_R_32F),
            _ => (C::CUBLAS_COMPUTE_32F, sys::cudaDataType_t::CUDA_R_32F),
        }
    }

    fn epilogue(&self) -> sys::cublasLtEpilogue_t {
        use sys::cublasLtEpilogue_t as E;
        match (self.bias, self.relu) {
            (false, false) => E::CUBLASLT_EPILOGUE_DEFAULT,
            (false, true) => E::CUBLASLT_EPILOGUE_RELU,
            (true, false) => E::CUBLASLT_EPILOGUE_BIAS,
            (true, true) => E::CUBLASLT_EPILOGUE_RELU_BIAS,
        }
    }
}

impl Blas {
    /// Starts the library on a stream.
    ///
    /// # Errors
    /// What the library says. The library itself was found before.
    pub(crate) fn new(stream_context: StreamContext, workspace: Workspace) -> Result<Blas, GpuError> {
        let _span = tracing::debug_span!(target: "kernel", "start cuBLASLt").entered();
        stream_context.enter()?;
        let handle = result::create_handle().map_err(failed("cublasLtCreate"))?;
        tracing::debug!(target: "kernel", version = Blas::version(), "cuBLASLt");
        Ok(Blas { handle, stream_context, workspace, plans: Mutex::default(), exclusive: Mutex::default() })
    }

    /// Has the library make its tables, which its first answer does else: asks for a small product of a kind that will be
    /// asked for, since each kind has its own.
    pub(crate) fn begin(&self, factors: DType, tf32: bool) {
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
            Kind { factors, out: factors, tf32: tf32 && factors == DType::F32, bias: false, relu: false };
        if let Err(e) = self.prepare(&gemm, &kind, &Addresses::default(), 0) {
            tracing::debug!(target: "kernel", "cuBLASLt: {e}");
        }
    }

    /// Makes the context current in this thread.
    pub(crate) fn enter(&self) -> Result<(), GpuError> {
        self.stream_context.enter()
    }

    /// The library's version, `130100` for 13.1.
    pub(crate) fn version() -> usize {
        // SAFETY: no arguments; the library was found before.
        unsafe { sys::cublasLtGetVersion() }
    }

    /// Prepares a product, so that its launch allocates nothing.
    ///
    /// # Errors
    /// The library has no algorithm for it.
    pub(crate) fn prepare(
        &self,
        gemm: &Gemm,
        kind: &Kind,
        at: &Addresses,
        algorithm: usize,
    ) -> Result<(), GpuError> {
        self.stream_context.enter()?;
        let alignments = [at.first, at.second, at.addend, at.out].map(|a| alignment(&[a]));
        self.plan(Key { gemm: *gemm, kind: *kind, alignments, algorithm }, at).map(|_| ())
    }

    fn plan(&self, key: Key, at: &Addresses) -> Result<Arc<Plan>, GpuError> {
        if let Some(plan) = lock(&self.plans).get(&key) {
            return Ok(Arc::clone(plan));
        }
        let _span = tracing::debug_span!(target: "kernel", "plan of cuBLASLt").entered();
        let plan = Arc::new(self.make(&key, at)?);
        let mut plans = lock(&self.plans);
        if plans.len() >= MAX_PLANS {
            plans.clear();
        }
        plans.insert(key, Arc::clone(&plan));
        Ok(plan)
    }

    fn make(&self, key: &Key, at: &Addresses) -> Result<Plan, GpuError> {
        let Key { gemm, kind, .. } = key;
        let (Some(factors), Some(out)) = (number_type(kind.factors), number_type(kind.out)) else {
            return Err(GpuError::Malformed(format!("cuBLASLt has no products of {}", kind.factors)));
        };
        let (compute, scale) = kind.compute();
        let desc = result::create_matmul_desc(compute, scale).map_err(failed("cublasLtMatmulDescCreate"))?;
        // From here on `plan` owns what is made.
        let null = std::ptr::null_mut();
        let algo = sys::cublasLtMatmulAlgo_t { data: [0; 8] };
        let mut plan = Plan { desc, layouts: [null; 4], algo, workspace: 0 };
        use sys::cublasLtMatmulDescAttributes_t as A;
        set(desc, A::CUBLASLT_MATMUL_DESC_TRANSA, i32::from(gemm.first.transposed))?;
        set(desc, A::CUBLASLT_MATMUL_DESC_TRANSB, i32::from(gemm.second.transposed))?;
        set(desc, A::CUBLASLT_MATMUL_DESC_EPILOGUE, kind.epilogue())?;
        if kind.bias {
            set(desc, A::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, out)?;
            set(desc, A::CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.bias)?;
        }
        let addend = gemm.addend.unwrap_or(gemm.out);
        let sides = [
            (factors, gemm.rows, gemm.depth, gemm.first),
            (factors, gemm.depth, gemm.cols, gemm.second),
            (out, gemm.rows, gemm.cols, addend),
            (out, gemm.rows, gemm.cols, gemm.out),
        ];
        for (slot, (ty, rows, cols, matrix)) in plan.layouts.iter_mut().zip(sides) {
            *slot = layout(ty, rows, cols, matrix, gemm.batch)?;
        }
        self.choose(&mut plan, key)?;
        Ok(plan)
    }

    /// Asks the library for algorithms and keeps the one of the key's number, or the last there is.
    fn choose(&self, plan: &mut Plan, key: &Key) -> Result<(), GpuError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as P;
        let preference =
            Preference(result::create_matmul_pref().map_err(failed("cublasLtMatmulPreferenceCreate"))?);
        let addend = if key.gemm.addend.is_some() { key.alignments[2] } else { key.alignments[3] };
        preference.set(P::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, self.workspace.bytes())?;
        // Partial sums of a split inner dimension are added in the dtype that is computed in, in a fixed order.
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
        // SAFETY: every descriptor was made above; the array has room for as many results as are asked for.
        unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                plan.desc,
                a,
                b,
                c,
                d,
                preference.0,
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

    /// Puts a product on the stream: `out = alpha * first · second + addend + bias`, rectified where asked for.
    ///
    /// # Errors
    /// What the library says.
    ///
    /// # Safety
    /// The addresses are device memory in which the matrices of `gemm` lie.
    pub(crate) unsafe fn launch(
        &self,
        gemm: &Gemm,
        kind: &Kind,
        alpha: f64,
        at: &Addresses,
        algorithm: usize,
    ) -> Result<(), GpuError> {
        let alignments = [at.first, at.second, at.addend, at.out].map(|a| alignment(&[a]));
        let plan = self.plan(Key { gemm: *gemm, kind: *kind, alignments, algorithm }, at)?;
        let _guard = lock(&self.exclusive);
        if kind.bias {
            set(plan.desc, sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.bias)?;
        }
        let beta = if gemm.addend.is_some() { 1.0 } else { 0.0 };
        let (single, double) = ([alpha as f32, beta as f32], [alpha, beta]);
        let scalar = |n: usize| match kind.factors {
            DType::F64 => (&raw const double[n]).cast::<c_void>(),
            _ => (&raw const single[n]).cast::<c_void>(),
        };
        let addend = if gemm.addend.is_some() { at.addend } else { at.out };
        let [a, b, c, d] = plan.layouts;
        // SAFETY: the caller's promise; descriptors live through the call, and the scalars are read before it returns.
        unsafe {
            sys::cublasLtMatmul(
                self.handle,
                plan.desc,
                scalar(0),
                at.first as *const c_void,
                a,
                at.second as *const c_void,
                b,
                scalar(1),
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

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        for layout in self.layouts.iter().filter(|l| !l.is_null()) {
            // SAFETY: made in `make`, destroyed once.
            let _ = unsafe { result::destroy_matrix_layout(*layout) };
        }
        // SAFETY: as above.
        let _ = unsafe { result::destroy_matmul_desc(self.desc) };
    }
}

/// A preference, destroyed when dropped.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn set<T>(&self, name: sys::cublasLtMatmulPreferenceAttributes_t, value: T) -> Result<(), GpuError> {
        // SAFETY: the preference lives; the library copies as many bytes as it is told.
        unsafe { result::set_matmul_pref_attribute(self.0, name, (&raw const value).cast(), size_of::<T>()) }
            .map_err(failed("cublasLtMatmulPreferenceSetAttribute"))
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by the library, destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

fn set<T>(
    desc: sys::cublasLtMatmulDesc_t,
    name: sys::cublasLtMatmulDescAttributes_t,
    value: T,
) -> Result<(), GpuError> {
    // SAFETY: the descriptor lives; the library copies as many bytes as it is told.
    unsafe { result::set_matmul_desc_attribute(desc, name, (&raw const value).cast(), size_of::<T>()) }
        .map_err(failed("cublasLtMatmulDescSetAttribute"))
}

/// The layout of a matrix of `rows × cols`, or of the transposed one in memory.
fn layout(
    ty: sys::cudaDataType,
    rows: i64,
    cols: i64,
    matrix: Matrix,
    batch: i64,
) -> Result<sys::cublasLtMatrixLayout_t, GpuError> {
    let (rows, cols) = if matrix.transposed { (cols, rows) } else { (rows, cols) };
    let made = result::create_matrix_layout(ty, rows as u64, cols as u64, matrix.ld)
        .map_err(failed("cublasLtMatrixLayoutCreate"))?;
    let put = |name, value: *const c_void, size| {
        // SAFETY: the layout was just made; the library copies as many bytes as it is told.
        unsafe { result::set_matrix_layout_attribute(made, name, value, size) }
    };
    use sys::cublasLtMatrixLayoutAttribute_t as L;
    let count = batch as i32;
    let done = put(L::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, (&raw const count).cast(), 4).and_then(|()| {
        put(L::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, (&raw const matrix.step).cast(), 8)
    });
    if let Err(e) = done {
        // SAFETY: made above, destroyed once.
        let _ = unsafe { result::destroy_matrix_layout(made) };
        return Err(failed("cublasLtMatrixLayoutSetAttribute")(e));
    }
    Ok(made)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignments_are_powers_of_two() {
        assert_eq!(alignment(&[0]), 16);
        assert_eq!(alignment(&[4096, 256]), 16);
        assert_eq!(alignment(&[4096, 6]), 2);
        assert_eq!(alignment(&[8]), 8);
    }

    #[test]
    fn what_the_library_multiplies() {
        assert!(takes(DType::BF16, DType::F32) && takes(DType::F16, DType::F16));
        assert!(
            !takes(DType::BF16, DType::F16)
                && !takes(DType::F32, DType::BF16)
                && !takes(DType::I8, DType::I32)
        );
    }
}
