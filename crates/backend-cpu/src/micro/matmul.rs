//! Matrix products: packed weights ([`matmul_packed`]) and strided batches ([`matmul_strided`]). Chooses the way; the loops
//! are in `driver` and `skinny`.

use super::{COut, Epilogue, MicroError, PackedB};

/// A read-only matrix: element `(i, j)` at `ptr + i * row_stride + j * col_stride`. Strides may be 0 or negative.
#[derive(Debug, Clone, Copy)]
pub struct MatRef {
    /// Element (0, 0).
    pub ptr: *const f32,
    /// Elements between rows.
    pub row_stride: isize,
    /// Elements between columns.
    pub col_stride: isize,
}

/// `C[M, N] = epilogue(A[M, K] * B[K, N])` with B packed; K and N are B's.
pub struct MatmulPacked<'a> {
    /// Rows of A and C.
    pub m: usize,
    /// `[M, K]`; `col_stride == 1` is the fast way.
    pub a: MatRef,
    /// `[K, N]`, one tap, one group.
    pub b: &'a PackedB,
    /// `[M, N]`.
    pub c: COut,
    /// Applied once to each element.
    pub epilogue: Epilogue<'a>,
}

/// One batch dimension of a strided product, outermost first. A stride of 0 broadcasts.
#[derive(Debug, Clone, Copy)]
pub struct BatchDim {
    /// Entries.
    pub size: usize,
    /// Elements between entries of A.
    pub a_stride: isize,
    /// Elements between entries of B.
    pub b_stride: isize,
    /// Elements between entries of C.
    pub c_stride: isize,
}

/// `C[.., M, N] = epilogue(A[.., M, K] * B[.., K, N])`, nothing packed ahead, any strides.
pub struct MatmulStrided<'a> {
    /// Instruction set; [`super::Isa::best`] but in tests.
    pub isa: super::Isa,
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// `[M, K]` of batch entry 0.
    pub a: MatRef,
    /// `[K, N]` of batch entry 0 (a `[N, K]` weight has row stride 1 and column stride K).
    pub b: MatRef,
    /// Element (0, 0) of batch entry 0 of C.
    pub c: *mut f32,
    /// Elements between rows of C.
    pub c_row_stride: isize,
    /// Elements between columns of C; 1 is the fast way, anything else goes through scratch.
    pub c_col_stride: isize,
    /// Batch dimensions, outermost first; empty for one product.
    pub batch: &'a [BatchDim],
    /// Applied once to each element, before C is written where `c_col_stride != 1`.
    pub epilogue: Epilogue<'a>,
}

/// Multiplies by a packed B.
///
/// # Safety
/// A's `m * K` elements must be readable and C's writable from any thread, C must not overlap A or B, and the epilogue's
/// pointers must be good for their described extent.
///
/// # Errors
/// [`MicroError`] for a bad shape.
pub unsafe fn matmul_packed(call: &MatmulPacked<'_>) -> Result<(), MicroError> { unimplemented!() }

/// Multiplies strided batches.
///
/// # Safety
/// As [`matmul_packed`], for every batch entry; entries of C must not overlap.
///
/// # Errors
/// [`MicroError`] for a bad shape.
pub unsafe fn matmul_strided(call: &MatmulStrided<'_>) -> Result<(), MicroError> { unimplemented!() }
