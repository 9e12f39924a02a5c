//! Copies of strided matrices into dense ones, transposing in 8x8 blocks where the source has the other order. Feeds packing
//! and layout conversion; does no arithmetic.

/// A strided source: element `(i, j)` at `ptr + i * row + j * col`.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    pub(crate) ptr: *const f32,
    pub(crate) row: isize,
    pub(crate) col: isize,
}

impl Source {
    /// The source with its origin at element `(i, j)`.
    #[inline(always)]
    pub(crate) fn at(self, i: usize, j: usize) -> Source {
        let offset = (i as isize).wrapping_mul(self.row).wrapping_add((j as isize).wrapping_mul(self.col));
        Source { ptr: self.ptr.wrapping_offset(offset), ..self }
    }
}

/// `dst[i * ld + j] = src(i, j)` for `i < rows`, `j < cols`.
///
/// # Safety
/// All elements named must be readable and writable, and source and destination must not overlap.
pub(crate) unsafe fn copy(src: Source, rows: usize, cols: usize, dst: *mut f32, ld: usize) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        if src.col == 1 {
            lines(src, rows, cols, dst, ld);
        } else if src.row == 1 {
            transposed(src, rows, cols, dst, ld);
        } else {
            elements(src, 0..rows, 0..cols, dst, ld);
        }
    }
}

/// Rows of at most this many values are copied without a call for each, which would take longer than the copy.
const SHORT: usize = 64;

/// Rows by which the source is fetched ahead: the processor's own prefetchers do not follow distances of kilobytes.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 16;

/// `src.col == 1`: rows of the source are contiguous.
unsafe fn lines(src: Source, rows: usize, cols: usize, dst: *mut f32, ld: usize) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the instruction set is
    // detected.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if cols <= SHORT && is_x86_feature_detected!("avx512f") {
            return lines_avx512(src, rows, cols, dst, ld);
        }
        for i in 0..rows {
            std::ptr::copy_nonoverlapping(src.at(i, 0).ptr, dst.add(i * ld), cols);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn lines_avx512(src: Source, rows: usize, cols: usize, dst: *mut f32, ld: usize) {
    use std::arch::x86_64::*;
    let mask = |at: usize| if cols - at < 16 { (1u16 << (cols - at)) - 1 } else { u16::MAX };
    for i in 0..rows {
        let (from, to) = (src.at(i, 0).ptr, dst.wrapping_add(i * ld));
        let ahead = src.at(i + AHEAD, 0).ptr;
        for j in (0..cols).step_by(16) {
            // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the mask keeps every
            // access inside the row.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(j).cast());
                let v = _mm512_maskz_loadu_ps(mask(j), from.add(j));
                _mm512_mask_storeu_ps(to.add(j), mask(j), v);
            }
        }
    }
}

/// The general case, one element at a time.
unsafe fn elements(
    src: Source,
    rows: std::ops::Range<usize>,
    cols: std::ops::Range<usize>,
    dst: *mut f32,
    ld: usize,
) {
    for i in rows {
        for j in cols.clone() {
            // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
            unsafe { *dst.add(i * ld + j) = *src.at(i, j).ptr };
        }
    }
}

/// `src.row == 1`: columns of the source are contiguous.
unsafe fn transposed(src: Source, rows: usize, cols: usize, dst: *mut f32, ld: usize) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the instruction set is
    // detected.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            return transposed_avx2(src, rows, cols, dst, ld);
        }
        elements(src, 0..rows, 0..cols, dst, ld);
    }
}

/// Values of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 16;

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn transposed_avx2(src: Source, rows: usize, cols: usize, dst: *mut f32, ld: usize) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; blocks stay inside `rows` x
    // `cols`.
    unsafe {
        let (rows8, cols8) = (rows / 8 * 8, cols / 8 * 8);
        for i in (0..rows8).step_by(8) {
            for j in (0..cols8).step_by(8) {
                if i % LINE == 0 {
                    // Of each column the line after next.
                    for c in 0..8 {
                        let ahead = src.at(i + 2 * LINE, j + c).ptr;
                        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(ahead.cast());
                    }
                }
                block8(src.at(i, j), dst.add(i * ld + j), ld);
            }
        }
        elements(src, 0..rows8, cols8..cols, dst, ld);
        elements(src, rows8..rows, 0..cols, dst, ld);
    }
}

/// One 8x8 block in registers: eight columns in, eight rows out.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn block8(src: Source, dst: *mut f32, ld: usize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; 8 x 8 elements on both sides.
    unsafe {
        let c: [__m256; 8] = std::array::from_fn(|j| _mm256_loadu_ps(src.at(0, j).ptr));
        let mut t = [_mm256_setzero_ps(); 8];
        for j in 0..4 {
            t[2 * j] = _mm256_unpacklo_ps(c[2 * j], c[2 * j + 1]);
            t[2 * j + 1] = _mm256_unpackhi_ps(c[2 * j], c[2 * j + 1]);
        }
        let mut s = [_mm256_setzero_ps(); 8];
        for h in 0..2 {
            s[4 * h] = _mm256_shuffle_ps::<0x44>(t[4 * h], t[4 * h + 2]);
            s[4 * h + 1] = _mm256_shuffle_ps::<0xEE>(t[4 * h], t[4 * h + 2]);
            s[4 * h + 2] = _mm256_shuffle_ps::<0x44>(t[4 * h + 1], t[4 * h + 3]);
            s[4 * h + 3] = _mm256_shuffle_ps::<0xEE>(t[4 * h + 1], t[4 * h + 3]);
        }
        for r in 0..4 {
            _mm256_storeu_ps(dst.add(r * ld), _mm256_permute2f128_ps::<0x20>(s[r], s[r + 4]));
            _mm256_storeu_ps(dst.add((r + 4) * ld), _mm256_permute2f128_ps::<0x31>(s[r], s[r + 4]));
        }
    }
}
