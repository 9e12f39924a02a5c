//! f64 products, through the `gemm` crate: any strides, batches, no epilogue. f32 has kernels of its own in `matmul`.

use super::{BatchDim, team};

/// `C[.., M, N] = A[.., M, K] * B[.., K, N]` in f64; all strides in elements, any sign.
pub struct MatmulF64<'a> {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Element (0, 0) of batch entry 0 of A.
    pub a: *const f64,
    /// Row and column stride of A.
    pub a_strides: [isize; 2],
    /// Element (0, 0) of batch entry 0 of B.
    pub b: *const f64,
    /// Row and column stride of B.
    pub b_strides: [isize; 2],
    /// Element (0, 0) of batch entry 0 of C.
    pub c: *mut f64,
    /// Row and column stride of C.
    pub c_strides: [isize; 2],
    /// Batch dimensions, outermost first.
    pub batch: &'a [BatchDim],
}

// SAFETY: the pointers are used only under the promises of `matmul_f64`: good from any thread.
unsafe impl Sync for MatmulF64<'_> {}

/// Multiplies.
///
/// # Safety
/// A and B must be readable and C writable at their sizes and strides, from any thread; entries of C must not overlap each other,
/// A or B.
pub unsafe fn matmul_f64(call: &MatmulF64<'_>) {
    let entries: usize = call.batch.iter().map(|d| d.size).product();
    let threads = team::threads();
    if entries >= threads {
        // SAFETY: the caller's promise.
        return team::par_for(entries, &|entry| unsafe { one(call, entry, gemm::Parallelism::None) });
    }
    let parallel = if threads > 1 && call.m * call.n * call.k > 1 << 15 {
        gemm::Parallelism::Rayon(threads)
    } else {
        gemm::Parallelism::None
    };
    for entry in 0..entries {
        // SAFETY: the caller's promise.
        unsafe { one(call, entry, parallel) };
    }
}

unsafe fn one(call: &MatmulF64<'_>, entry: usize, parallel: gemm::Parallelism) {
    let (a, b, c) = BatchDim::offsets(call.batch, entry);
    // SAFETY: the caller's promise.
    unsafe {
        gemm::gemm(
            call.m,
            call.n,
            call.k,
            call.c.wrapping_offset(c),
            call.c_strides[1],
            call.c_strides[0],
            false,
            call.a.wrapping_offset(a),
            call.a_strides[1],
            call.a_strides[0],
            call.b.wrapping_offset(b),
            call.b_strides[1],
            call.b_strides[0],
            0.0,
            1.0,
            false,
            false,
            false,
            parallel,
        );
    }
}
