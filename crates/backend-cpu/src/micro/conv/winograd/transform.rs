//! The transforms of Winograd's F(4×4, 3×3): of a tile of the input into the factors of its products, and of the products into a tile of
//! the output. Lanes are channels; the epilogue of the output is applied on the way.

#![expect(
    clippy::needless_range_loop,
    reason = "indexed loops over constant sizes unroll into registers; chains of iterators do not always"
)]

use std::ops::Range;

use super::{REACH, SIDE};
use crate::micro::Isa;
use crate::micro::kernel::{Finish, finish_one};
#[cfg(target_arch = "x86_64")]
use crate::micro::simd::{Avx2, Avx512};
use crate::micro::simd::{Portable, Simd};

/// The points are 0, ±A, ±B and infinity; all coefficients made of them here are exact in float32.
pub(super) const A: f64 = 0.625;
pub(super) const B: f64 = 1.5;

/// A tile of the input.
pub(super) struct Gather {
    /// Its first pixel, possibly outside of the image.
    pub(super) from: *const f32,
    /// Elements between its rows and its columns.
    pub(super) down: isize,
    pub(super) across: isize,
    /// What of it is inside of the image.
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
    pub(super) channels: usize,
    /// The factor of the first product; those of the others are `apart` values further each.
    pub(super) to: *mut f32,
    pub(super) apart: usize,
}

/// A tile of the output in some columns, at most two vectors of them.
pub(super) struct Spread {
    /// The first product; the others are `apart` values further each.
    pub(super) sums: *const f32,
    pub(super) apart: usize,
    /// Its first pixel, `ld` values from the next, `down` pixels from the next row.
    pub(super) to: *mut f32,
    pub(super) ld: usize,
    pub(super) down: usize,
    /// Pixels that are inside of the image.
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) width: usize,
    pub(super) finish: Finish,
}

/// Defines a function of all instruction sets.
macro_rules! by_isa {
    ($name:ident, $wide:ident, $half:ident, $generic:ident, $work:ty) => {
        /// # Safety
        /// The pointers cover the sizes; the processor has the instruction set.
        pub(super) unsafe fn $name(isa: Isa, work: &$work) {
            // SAFETY: the caller's promise.
            unsafe {
                match isa {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => $wide(work),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => $half(work),
                    _ => $generic::<Portable>(work),
                }
            }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f")]
        unsafe fn $wide(work: &$work) {
            // SAFETY: the caller's promise.
            unsafe { $generic::<Avx512>(work) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        unsafe fn $half(work: &$work) {
            // SAFETY: the caller's promise.
            unsafe { $generic::<Avx2>(work) }
        }
    };
}

by_isa!(gather, gather_avx512, gather_avx2, gather_any, Gather);
by_isa!(spread, spread_avx512, spread_avx2, spread_any, Spread);

/// One dimension of the input's transform.
#[inline(always)]
unsafe fn factors<S: Simd>(d: [S::V; REACH]) -> [S::V; REACH] {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let n = |x: f64| S::splat(x as f32);
        let (aa, bb) = (A * A, B * B);
        let p = S::fma(n(-bb), d[2], d[4]);
        let q = S::mul(n(A), S::fma(n(-bb), d[1], d[3]));
        let r = S::fma(n(-aa), d[2], d[4]);
        let s = S::mul(n(B), S::fma(n(-aa), d[1], d[3]));
        [
            S::fma(n(aa * bb), d[0], S::fma(n(-(aa + bb)), d[2], d[4])),
            S::add(p, q),
            S::sub(p, q),
            S::add(r, s),
            S::sub(r, s),
            S::fma(n(aa * bb), d[1], S::fma(n(-(aa + bb)), d[3], d[5])),
        ]
    }
}

/// One dimension of the output's transform.
#[inline(always)]
unsafe fn outputs<S: Simd>(m: [S::V; REACH]) -> [S::V; SIDE] {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let n = |x: f64| S::splat(x as f32);
        let (p, q) = (S::add(m[1], m[2]), S::sub(m[1], m[2]));
        let (r, s) = (S::add(m[3], m[4]), S::sub(m[3], m[4]));
        [
            S::add(m[0], S::add(p, r)),
            S::fma(n(A), q, S::mul(n(B), s)),
            S::fma(n(A * A), p, S::mul(n(B * B), r)),
            S::add(m[5], S::fma(n(A * A * A), q, S::mul(n(B * B * B), s))),
        ]
    }
}

#[inline(always)]
unsafe fn gather_any<S: Simd>(work: &Gather) {
    let whole = work.rows == (0..REACH) && work.columns == (0..REACH);
    for c in (0..work.channels).step_by(S::LANES) {
        // SAFETY: what is inside of the image is readable, and the mask keeps accesses inside of the channels.
        unsafe {
            let mask = S::mask((work.channels - c).min(S::LANES));
            let zero = S::splat(0.0);
            let mut half = [[zero; REACH]; REACH];
            for y in 0..REACH {
                let mut d = [zero; REACH];
                let row = work.from.wrapping_offset(y as isize * work.down).wrapping_add(c);
                for (x, d) in d.iter_mut().enumerate() {
                    if whole || (work.rows.contains(&y) && work.columns.contains(&x)) {
                        *d = S::load_masked(row.wrapping_offset(x as isize * work.across), mask);
                    }
                }
                half[y] = factors::<S>(d);
            }
            for x in 0..REACH {
                let done =
                    factors::<S>([half[0][x], half[1][x], half[2][x], half[3][x], half[4][x], half[5][x]]);
                for (y, v) in done.into_iter().enumerate() {
                    S::store_masked(work.to.wrapping_add((y * REACH + x) * work.apart + c), mask, v);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn spread_any<S: Simd>(work: &Spread) {
    for c in (0..work.width).step_by(S::LANES) {
        // SAFETY: sums are there for whole panels; the mask keeps the output's accesses inside of the columns.
        unsafe {
            let mask = S::mask((work.width - c).min(S::LANES));
            let zero = S::splat(0.0);
            let mut half = [[zero; REACH]; SIDE];
            for x in 0..REACH {
                let sum = |y: usize| work.sums.wrapping_add((y * REACH + x) * work.apart + c);
                let mut m = [zero; REACH];
                for (y, m) in m.iter_mut().enumerate() {
                    *m = S::load(sum(y));
                }
                let done = outputs::<S>(m);
                for (y, v) in done.into_iter().enumerate() {
                    half[y][x] = v;
                }
            }
            for y in 0..work.rows {
                let done = outputs::<S>(half[y]);
                for (x, v) in done.into_iter().enumerate().take(work.columns) {
                    let pixel = y * work.down + x;
                    let v = finish_one::<S>(&work.finish, pixel, c, mask, v);
                    S::store_masked(work.to.wrapping_add(pixel * work.ld + c), mask, v);
                }
            }
        }
    }
}
