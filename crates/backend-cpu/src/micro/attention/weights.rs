//! One row of scores and of cotangents of weights to weights and cotangents of scores, in place: `p = exp(s - sum)`,
//! `ds = p (dp - delta)`.

use super::softmax::{RowMask, mask_scores};
use crate::micro::Isa;
#[cfg(target_arch = "x86_64")]
use crate::micro::simd::{Avx2, Avx512};
use crate::micro::simd::{Portable, Simd, exp_nonpositive};

/// A row and what belongs to it.
pub(super) struct ScoreRow {
    /// Scores in, weights out; with room for a whole number of vectors.
    pub(super) scores: *mut f32,
    /// Cotangents of weights in, of scores out; with as much room.
    pub(super) cotangents: *mut f32,
    /// Scores that count; both become 0 from here to `padded`.
    pub(super) len: usize,
    pub(super) padded: usize,
    pub(super) seen: RowMask,
    /// Logarithm of the sum of the scores' exponentials.
    pub(super) sum: f32,
    /// What is taken off the cotangents.
    pub(super) delta: f32,
}

/// Computes it.
///
/// # Safety
/// The row's pointers cover its sizes; the processor has `isa`.
pub(super) unsafe fn scores_to_weights(isa: Isa, row: &ScoreRow) {
    // SAFETY: the caller's promise.
    unsafe {
        match isa {
            Isa::Portable => run_isa::<Portable>(row),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => run_avx2(row),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => run_avx512(row),
            #[cfg(not(target_arch = "x86_64"))]
            _ => run_isa::<Portable>(row),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2(row: &ScoreRow) {
    // SAFETY: the caller's promise.
    unsafe { run_isa::<Avx2>(row) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn run_avx512(row: &ScoreRow) {
    // SAFETY: the caller's promise.
    unsafe { run_isa::<Avx512>(row) }
}

#[inline(always)]
unsafe fn run_isa<S: Simd>(row: &ScoreRow) {
    // SAFETY: the caller's promise.
    unsafe {
        mask_scores::<S>(row.scores, row.len, row.seen);
        let (end, padded) = (row.len.next_multiple_of(S::LANES), row.padded.next_multiple_of(S::LANES));
        for j in row.len..end {
            *row.scores.add(j) = f32::NEG_INFINITY;
            *row.cotangents.add(j) = 0.0;
        }
        // In a row without keys all scores are minus infinity: minus 0 their weights are 0 and not NaN.
        let sum = S::splat(if row.sum == f32::NEG_INFINITY { 0.0 } else { row.sum });
        let (delta, most) = (S::splat(row.delta), S::splat(MAX_EXPONENT));
        for j in (0..end).step_by(S::LANES) {
            let (p, ds) = (row.scores.add(j), row.cotangents.add(j));
            let weight = exp_nonpositive::<S>(S::min(most, S::sub(S::load(p), sum)));
            S::store(p, weight);
            S::store(ds, S::mul(weight, S::sub(S::load(ds), delta)));
        }
        if end < padded {
            row.scores.add(end).write_bytes(0, padded - end);
            row.cotangents.add(end).write_bytes(0, padded - end);
        }
    }
}

/// Sums that are those of the scores give no weight above 1; of others the exponential goes as far as this.
const MAX_EXPONENT: f32 = 88.0;
