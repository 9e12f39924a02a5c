//! f64 products, through the `gemm` crate: any strides, batches, no epilogue. f32 has kernels of its own in `matmul`.

use std::ops::Range;

use super::driver::part;
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

/// Computes the product.
///
/// # Safety
/// A and B must be readable and C writable at their sizes and strides, from any thread; entries of C must not overlap each other,
/// A or B.
pub unsafe fn matmul_f64(call: &MatmulF64<'_>) {
    let entries: usize = call.batch.iter().map(|d| d.size).product();
    let work = entries * call.m * call.n * call.k;
    let threads = team::threads_for(work);
    // Columns are split here, and not by the crate's own threads, which would not find the pool's (see `team::with`).
    let blocks = if threads == 1 { 1 } else { (2 * threads).div_ceil(entries).clamp(1, call.n.div_ceil(16)) };
    team::par_for_work(entries * blocks, work, &|task| {
        let cols = part(call.n, blocks, task % blocks);
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; column ranges are disjoint.
        unsafe { one(call, task / blocks, cols) };
    });
}

unsafe fn one(call: &MatmulF64<'_>, entry: usize, cols: Range<usize>) {
    let (a, b, c) = BatchDim::offsets(call.batch, entry);
    let first = cols.start as isize;
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        gemm::gemm(
            call.m,
            cols.len(),
            call.k,
            call.c.wrapping_offset(c + first * call.c_strides[1]),
            call.c_strides[1],
            call.c_strides[0],
            false,
            call.a.wrapping_offset(a),
            call.a_strides[1],
            call.a_strides[0],
            call.b.wrapping_offset(b + first * call.b_strides[1]),
            call.b_strides[1],
            call.b_strides[0],
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
