//! The vector operations on plain arrays, for every architecture; the compiler vectorises them as it can.

use super::Simd;

/// Four lanes of plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

const N: usize = 4;

#[inline(always)]
fn zip(a: [f32; N], b: [f32; N], f: impl Fn(f32, f32) -> f32) -> [f32; N] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    type V = [f32; N];
    type M = usize;
    const LANES: usize = N;
    const MR: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; four readable values.
        unsafe { p.cast::<[f32; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; four writable values.
        unsafe { p.cast::<[f32; N]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn mask(n: usize) -> usize {
        n
    }
    #[inline(always)]
    unsafe fn load_masked(p: *const f32, m: usize) -> Self::V {
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the first `m` values are
        // readable.
        std::array::from_fn(|i| if i < m { unsafe { *p.add(i) } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn store_masked(p: *mut f32, m: usize, v: Self::V) {
        for (i, x) in v.into_iter().enumerate().take(m) {
            // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the first `m` values
            // are writable.
            unsafe { *p.add(i) = x };
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // `mul_add` is a library call where the target has no fused instruction.
        if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
            return std::array::from_fn(|i| a[i].mul_add(b[i], c[i]));
        }
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn keep(v: Self::V, bits: u32) -> Self::V {
        let kept = |i: usize| 0u32.wrapping_sub(bits >> i & 1);
        std::array::from_fn(|i| f32::from_bits(v[i].to_bits() & kept(i)))
    }
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        (v[0] + v[2]) + (v[1] + v[3])
    }
    #[inline(always)]
    unsafe fn largest(v: Self::V) -> f32 {
        v[0].max(v[2]).max(v[1].max(v[3]))
    }
    #[inline(always)]
    unsafe fn exp2_of_shifted(v: Self::V) -> Self::V {
        v.map(|x| f32::from_bits((x.to_bits() << 23).wrapping_add(1.0f32.to_bits())))
    }
}
