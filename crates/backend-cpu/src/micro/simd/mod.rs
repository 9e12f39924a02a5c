//! The vector operations of the kernels, once for each [`Isa`](super::Isa). Not a general SIMD library: only what the
//! templates use. Every function is `inline(always)`, so that it takes the instruction set of the
//! `#[target_feature]` function that it is inlined into.

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

/// Vectors of f32 of one instruction set.
///
/// # Safety
/// Every function may only run on a processor that has the instruction set; pointers must be good for the lanes touched
/// (all of them, or those in the mask). No alignment is required.
pub(crate) trait Simd: Copy + 'static {
    /// A vector of [`Simd::LANES`] values.
    type V: Copy;
    /// The lanes of a masked access: always the first ones.
    type M: Copy;
    /// Values in a vector.
    const LANES: usize;
    /// Most rows of a register tile of two vectors per row.
    const MR: usize;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    /// The first `n` lanes, `n <= LANES`.
    unsafe fn mask(n: usize) -> Self::M;
    /// Lanes outside the mask are 0.
    unsafe fn load_masked(p: *const f32, m: Self::M) -> Self::V;
    unsafe fn store_masked(p: *mut f32, m: Self::M, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger; `b` where either is NaN, so that `max(bound, v)` keeps a NaN in `v`.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// The smaller; `b` where either is NaN.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// Prefetches the cache line at `p`, which need not be readable.
    #[inline(always)]
    fn prefetch(p: *const f32) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch never faults; SSE is part of every x86-64.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = p;
    }
    /// The lanes whose bit is set, that of the first lane the lowest; the others become 0. Bits beyond the lanes mean nothing.
    unsafe fn keep(v: Self::V, bits: u32) -> Self::V;
    /// Sum of the lanes.
    unsafe fn sum(v: Self::V) -> f32;
    /// Largest lane.
    unsafe fn largest(v: Self::V) -> f32;
    /// `2^i` for the integer `i` held in the low bits of `1.5 * 2^23 + i`, `-127 <= i <= 127` (0 for -127).
    unsafe fn exp2_of_shifted(v: Self::V) -> Self::V;
}

/// `e^x` for `x <= 0` (softmax after subtracting the row's maximum), to about 2 units in the last place; below
/// -87.3 the result is 0, NaN stays NaN.
///
/// # Safety
/// As [`Simd`].
#[inline(always)]
pub(crate) unsafe fn exp_nonpositive<S: Simd>(x: S::V) -> S::V {
    // e^x = 2^i * e^r, i = round(x / ln 2), |r| <= ln 2 / 2; ln 2 in two parts keeps r exact; e^r by its Taylor
    // polynomial of degree 7, whose remainder (ln 2 / 2)^8 / 8! is 5e-9.
    const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer in the low bits
    const LN2_HI: f32 = 0.693_359_4; // 355 / 512: nine bits, so that i times it is exact
    const LN2_LO: f32 = -2.121_944_4e-4;
    const TAYLOR: [f32; 6] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5];
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        let x = S::max(S::splat(-87.9), x);
        let shifted = S::fma(x, S::splat(std::f32::consts::LOG2_E), S::splat(SHIFT));
        let i = S::sub(shifted, S::splat(SHIFT));
        let r = S::fma(i, S::splat(-LN2_LO), S::fma(i, S::splat(-LN2_HI), x));
        let mut p = S::splat(TAYLOR[0]);
        for c in &TAYLOR[1..] {
            p = S::fma(p, r, S::splat(*c));
        }
        let one = S::splat(1.0);
        p = S::fma(S::fma(p, r, one), r, one);
        S::mul(p, S::exp2_of_shifted(shifted))
    }
}
