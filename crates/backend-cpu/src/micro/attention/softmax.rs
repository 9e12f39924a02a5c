//! The online softmax of one row of scores, with the running maximum and sum of the row. Scores in, `exp(score - max)` out,
//! in place; weights that are dropped are 0, though they count in the sum.

use super::kept::RowBits;
use crate::micro::Isa;
#[cfg(target_arch = "x86_64")]
use crate::micro::simd::{Avx2, Avx512};
use crate::micro::simd::{Portable, Simd, exp_nonpositive};

/// The mask of one row: pointer to the first key's entry and the stride between keys.
#[derive(Clone, Copy)]
pub(super) enum RowMask {
    All,
    Additive(*const f32, isize),
    Boolean(*const bool, isize),
}

/// A row of scores and its running values.
pub(super) struct Row {
    /// Padded to a whole number of vectors.
    pub(super) scores: *mut f32,
    /// Scores that count; those from here to `padded` become weight 0.
    pub(super) len: usize,
    pub(super) padded: usize,
    pub(super) seen: RowMask,
    /// The weights that are kept, where some are dropped.
    pub(super) kept: Option<RowBits>,
    /// Running maximum.
    pub(super) max: *mut f32,
    /// Running sum.
    pub(super) sum: *mut f32,
    /// Sums of V so far, rescaled when the maximum grows.
    pub(super) o: *mut f32,
    pub(super) dim: usize,
}

/// Updates the row with a block of scores.
///
/// # Safety
/// The row's pointers cover its sizes; the processor has `isa`.
pub(super) unsafe fn update(isa: Isa, row: &Row) {
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

/// `to[i] = from[i * stride] * factor`; only a stride of 1 is fast.
///
/// # Safety
/// `len` values on both sides.
pub(super) unsafe fn scaled(
    isa: Isa,
    from: *const f32,
    stride: isize,
    to: *mut f32,
    len: usize,
    factor: f32,
) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        if stride != 1 {
            for i in 0..len {
                *to.add(i) = *from.wrapping_offset(i as isize * stride) * factor;
            }
            return;
        }
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => scaled_avx512(from, to, len, factor),
            _ => {
                for i in 0..len {
                    *to.add(i) = *from.add(i) * factor;
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn scaled_avx512(from: *const f32, to: *mut f32, len: usize, factor: f32) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the mask ends at `len`.
    unsafe {
        for j in (0..len).step_by(Avx512::LANES) {
            let m = Avx512::mask((len - j).min(Avx512::LANES));
            let v = Avx512::load_masked(from.add(j), m);
            Avx512::store_masked(to.add(j), m, Avx512::mul(v, Avx512::splat(factor)));
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2(row: &Row) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe { run_isa::<Avx2>(row) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn run_avx512(row: &Row) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe { run_isa::<Avx512>(row) }
}

#[inline(always)]
unsafe fn run_isa<S: Simd>(row: &Row) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        mask_scores::<S>(row.scores, row.len, row.seen);
        // The last vector is filled up with -inf, whose weight is 0.
        let end = row.len.next_multiple_of(S::LANES);
        for j in row.len..end {
            *row.scores.add(j) = f32::NEG_INFINITY;
        }
        let before = *row.max;
        let max = largest::<S>(row, end).max(before);
        // A row without unmasked keys so far keeps -inf; subtracting 0 then gives weights 0 and not NaN.
        let shift = if max == f32::NEG_INFINITY { 0.0 } else { max };
        if max != before && *row.sum != 0.0 {
            let factor = (before - shift).exp();
            *row.sum *= factor;
            scale::<S>(row.o, row.dim, factor);
        }
        *row.max = max;
        // Each has a loop of its own.
        *row.sum += match row.kept {
            None => weights::<S>(row, end, shift, None),
            Some(kept) => weights::<S>(row, end, shift, Some(kept)),
        };
    }
}

/// Adds or applies the mask to the first `len` scores.
///
/// # Safety
/// The pointers cover `len` scores.
#[inline(always)]
pub(super) unsafe fn mask_scores<S: Simd>(scores: *mut f32, len: usize, seen: RowMask) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        match seen {
            RowMask::All => {}
            RowMask::Additive(mask, 1) => {
                for j in (0..len).step_by(S::LANES) {
                    let m = S::mask((len - j).min(S::LANES));
                    let p = scores.add(j);
                    S::store_masked(p, m, S::add(S::load_masked(p, m), S::load_masked(mask.add(j), m)));
                }
            }
            RowMask::Additive(mask, stride) => {
                for j in 0..len {
                    *scores.add(j) += *mask.wrapping_offset(j as isize * stride);
                }
            }
            RowMask::Boolean(mask, stride) => {
                for j in 0..len {
                    let p = scores.add(j);
                    // Any byte but zero is true: the mask may be foreign memory.
                    let seen = *mask.wrapping_offset(j as isize * stride).cast::<u8>() != 0;
                    *p = if seen { *p } else { f32::NEG_INFINITY };
                }
            }
        }
    }
}

/// The largest score; -inf if there is none. The row ends in -inf up to a whole vector.
#[inline(always)]
unsafe fn largest<S: Simd>(row: &Row, end: usize) -> f32 {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        let mut acc = [S::splat(f32::NEG_INFINITY); 2];
        let mut j = 0;
        while j + 2 * S::LANES <= end {
            acc[0] = S::max(S::load(row.scores.add(j)), acc[0]);
            acc[1] = S::max(S::load(row.scores.add(j + S::LANES)), acc[1]);
            j += 2 * S::LANES;
        }
        if j < end {
            acc[0] = S::max(S::load(row.scores.add(j)), acc[0]);
        }
        S::largest(S::max(acc[0], acc[1]))
    }
}

#[inline(always)]
unsafe fn scale<S: Simd>(p: *mut f32, len: usize, factor: f32) {
    for j in (0..len).step_by(S::LANES) {
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the mask ends at `len`.
        unsafe {
            let m = S::mask((len - j).min(S::LANES));
            S::store_masked(p.add(j), m, S::mul(S::load_masked(p.add(j), m), S::splat(factor)));
        }
    }
}

/// Replaces scores by `exp(score - shift)`, zeros from `len` to `padded`; returns their sum. Those that are not kept become zeros, too,
/// and count in the sum.
#[inline(always)]
unsafe fn weights<S: Simd>(row: &Row, end: usize, shift: f32, kept: Option<RowBits>) -> f32 {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        let shift = S::splat(shift);
        let mut acc = S::splat(0.0);
        for j in (0..end).step_by(S::LANES) {
            let p = row.scores.add(j);
            let e = exp_nonpositive::<S>(S::sub(S::load(p), shift));
            // A vector begins before `len`, so that there is a word for it, and lies in one word.
            match kept {
                None => S::store(p, e),
                Some(bits) => S::store(p, S::keep(e, bits.at(j))),
            }
            acc = S::add(acc, e);
        }
        if end < row.padded {
            row.scores.add(end).write_bytes(0, row.padded - end);
        }
        S::sum(acc)
    }
}
