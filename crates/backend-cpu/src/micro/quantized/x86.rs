//! Tiles of products with quantized weights in AVX-512.

#![expect(
    clippy::needless_range_loop,
    reason = "indexed loops over constant sizes unroll into registers; chains of iterators do not always"
)]

use std::arch::x86_64::*;

use super::{Bits, FEW_ROWS, NIBBLES, Tile};

/// Bytes that are prefetched ahead of the numbers.
const AHEAD: usize = 2048;

/// The numbers that words of four bits stand for.
///
/// # Safety
/// AVX-512.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn table(lowest: f32) -> __m512 {
    let places = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    _mm512_add_ps(_mm512_cvtepi32_ps(places), _mm512_set1_ps(lowest))
}

/// Adds a group's products to sums: `sums[r][p] += Σ_k rows[r][k] · weight(numbers[k][p])`, where `weight` gets a vector of numbers and
/// its panel.
///
/// # Safety
/// AVX-512; pointers cover the tile's sizes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn group<const FOUR: bool, const MR: usize, const NP: usize>(
    t: &Tile,
    (rows, numbers, table): ([*const f32; MR], *const u8, __m512),
    sums: &mut [[__m512; NP]; MR],
    weight: impl Fn(usize, __m512) -> __m512,
) {
    // SAFETY: the caller's promise. Prefetching touches no memory that matters.
    unsafe {
        let (mut rows, mut from, step) = (rows, numbers, t.step());
        for _ in 0..t.steps {
            if FOUR {
                let mut words = [_mm512_setzero_si512(); NP];
                for p in 0..NP {
                    words[p] = _mm512_loadu_si512(from.wrapping_add(64 * p).cast());
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD + 64 * p).cast());
                }
                for j in 0..NIBBLES {
                    for p in 0..NP {
                        let w = weight(p, _mm512_permutexvar_ps(words[p], table));
                        words[p] = _mm512_srli_epi32::<4>(words[p]);
                        for r in 0..MR {
                            let x = _mm512_set1_ps(*rows[r].wrapping_add(j));
                            sums[r][p] = _mm512_fmadd_ps(x, w, sums[r][p]);
                        }
                    }
                }
                rows = rows.map(|r| r.wrapping_add(NIBBLES));
            } else {
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(AHEAD).cast());
                for p in 0..NP {
                    let bytes = _mm_loadu_si128(from.wrapping_add(16 * p).cast());
                    let w = weight(p, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
                    for r in 0..MR {
                        sums[r][p] = _mm512_fmadd_ps(_mm512_set1_ps(*rows[r]), w, sums[r][p]);
                    }
                }
                rows = rows.map(|r| r.wrapping_add(1));
            }
            from = from.wrapping_add(step);
        }
    }
}

/// A tile of `MR` rows and `NP` panels. `FEW` scales the sums of each group, else weights are scaled.
///
/// # Safety
/// AVX-512; pointers cover the tile's sizes.
#[target_feature(enable = "avx512f")]
unsafe fn tile<const FOUR: bool, const FEW: bool, const MR: usize, const NP: usize>(t: &Tile) {
    // SAFETY: the caller's promise.
    unsafe {
        let table = table(t.lowest);
        let zero = [[_mm512_setzero_ps(); NP]; MR];
        let (mut sums, mut heads, mut numbers) = (zero, t.heads, t.numbers);
        let mut rows = [t.rows[0]; MR];
        rows.copy_from_slice(&t.rows[..MR]);
        let head = |at: *const u8, p: usize| _mm512_loadu_ps(at.wrapping_add(64 * p).cast());
        for g in 0..t.groups {
            let summands = heads.wrapping_add(t.turn());
            if FEW {
                let mut part = zero;
                group::<FOUR, MR, NP>(t, (rows, numbers, table), &mut part, |_, w| w);
                for p in 0..NP {
                    let factor = head(heads, p);
                    for r in 0..MR {
                        sums[r][p] = _mm512_fmadd_ps(part[r][p], factor, sums[r][p]);
                        if t.moved {
                            let x = _mm512_set1_ps(*t.sums[r].wrapping_add(g));
                            sums[r][p] = _mm512_fmadd_ps(x, head(summands, p), sums[r][p]);
                        }
                    }
                }
            } else if t.moved {
                let weight = |p: usize, w| _mm512_fmadd_ps(w, head(heads, p), head(summands, p));
                group::<FOUR, MR, NP>(t, (rows, numbers, table), &mut sums, weight);
            } else {
                let weight = |p: usize, w| _mm512_mul_ps(w, head(heads, p));
                group::<FOUR, MR, NP>(t, (rows, numbers, table), &mut sums, weight);
            }
            (heads, numbers) = (heads.wrapping_add(t.group()), numbers.wrapping_add(t.group()));
            let depth = t.steps * t.depth();
            rows = rows.map(|r| r.wrapping_add(depth));
        }
        for r in 0..MR {
            for p in 0..NP {
                _mm512_storeu_ps(t.c.add(r * t.ldc + 16 * p), sums[r][p]);
            }
        }
    }
}

/// A function from sizes to a tile's code.
macro_rules! tiles {
    ($(($rows:literal, $panels:literal)),*) => {
        /// The code of a tile of these rows and panels.
        pub(super) fn code(bits: Bits, rows: usize, panels: usize) -> unsafe fn(&Tile) {
            match (bits, rows, panels) {
                $(
                    (Bits::Four, $rows, $panels) => tile::<true, { $rows <= FEW_ROWS }, $rows, $panels>,
                    (Bits::Eight, $rows, $panels) => tile::<false, { $rows <= FEW_ROWS }, $rows, $panels>,
                )*
                // The caller asks for no other sizes: tiles are cut by the unit's own limits.
                (Bits::Four, ..) => tile::<true, true, 1, 1>,
                (Bits::Eight, ..) => tile::<false, true, 1, 1>,
            }
        }
    };
}

tiles!(
    (1, 1),
    (2, 1),
    (3, 1),
    (4, 1),
    (5, 1),
    (6, 1),
    (1, 2),
    (2, 2),
    (3, 2),
    (4, 2),
    (5, 2),
    (6, 2),
    (1, 3),
    (2, 3),
    (3, 3),
    (4, 3),
    (5, 3),
    (6, 3),
    (1, 4),
    (2, 4),
    (3, 4),
    (4, 4),
    (5, 4),
    (6, 4)
);
