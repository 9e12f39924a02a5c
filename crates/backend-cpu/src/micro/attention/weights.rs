//! Turns one row of scores and of cotangents of weights into weights and cotangents of scores, in place: `p = exp(s -
//! sum)`, `ds = p (dp - delta)`. Where weights are dropped, with `m` the factor of a kept one and else 0, they are `p m` and
//! `p (m dp - delta)`.

use super::kept::RowBits;
use super::softmax::{RowMask, mask_scores};
use crate::micro::Isa;
#[cfg(target_arch = "x86_64")]
use crate::micro::simd::{Avx2, Avx512};
use crate::micro::simd::{Portable, Simd, exp_nonpositive};

/// A row of scores and its parameters.
pub(super) struct ScoreRow {
    /// Scores in, weights out; padded to a whole number of vectors.
    pub(super) scores: *mut f32,
    /// Cotangents of weights in, of scores out; padded in the same way.
    pub(super) cotangents: *mut f32,
    /// Scores that count; both become 0 from here to `padded`.
    pub(super) len: usize,
    pub(super) padded: usize,
    pub(super) seen: RowMask,
    /// The weights that are kept and the factor on them, where some are dropped.
    pub(super) kept: Option<(RowBits, f32)>,
    /// Log-sum-exp of the scores.
    pub(super) sum: f32,
    /// The value subtracted from the cotangents.
    pub(super) delta: f32,
}

/// Computes the row.
///
/// # Safety
/// The row's pointers cover its sizes; the processor has `isa`.
pub(super) unsafe fn scores_to_weights(isa: Isa, row: &ScoreRow) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
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
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe { run_isa::<Avx2>(row) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn run_avx512(row: &ScoreRow) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe { run_isa::<Avx512>(row) }
}

#[inline(always)]
unsafe fn run_isa<S: Simd>(row: &ScoreRow) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        mask_scores::<S>(row.scores, row.len, row.seen);
        let (end, padded) = (row.len.next_multiple_of(S::LANES), row.padded.next_multiple_of(S::LANES));
        for j in row.len..end {
            *row.scores.add(j) = f32::NEG_INFINITY;
            *row.cotangents.add(j) = 0.0;
        }
        // Each has a loop of its own.
        match row.kept {
            None => weigh::<S>(row, end, None),
            Some(kept) => weigh::<S>(row, end, Some(kept)),
        }
        if end < padded {
            row.scores.add(end).write_bytes(0, padded - end);
            row.cotangents.add(end).write_bytes(0, padded - end);
        }
    }
}

/// The first `end` weights and cotangents, whole vectors.
#[inline(always)]
unsafe fn weigh<S: Simd>(row: &ScoreRow, end: usize, kept: Option<(RowBits, f32)>) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; a vector begins before `len`, so that
    // there is a word for it, and lies in one word.
    unsafe {
        // In a row without keys all scores are minus infinity: with 0 subtracted their weights are 0 and not NaN.
        let sum = S::splat(if row.sum == f32::NEG_INFINITY { 0.0 } else { row.sum });
        let (delta, most) = (S::splat(row.delta), S::splat(MAX_EXPONENT));
        for j in (0..end).step_by(S::LANES) {
            let (p, ds) = (row.scores.add(j), row.cotangents.add(j));
            let weight = exp_nonpositive::<S>(S::min(most, S::sub(S::load(p), sum)));
            let (mut dropped, mut dp) = (weight, S::load(ds));
            if let Some((bits, factor)) = kept {
                let m = S::keep(S::splat(factor), bits.at(j));
                (dropped, dp) = (S::mul(weight, m), S::mul(dp, m));
            }
            S::store(p, dropped);
            S::store(ds, S::mul(weight, S::sub(dp, delta)));
        }
    }
}

/// The log-sum-exp of the scores gives no weight above 1; for other values the exponential is limited to this.
const MAX_EXPONENT: f32 = 88.0;
