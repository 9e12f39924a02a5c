//! The vector operations in AVX2+FMA and AVX-512 F.

use std::arch::x86_64::*;

use super::Simd;

/// Eight lanes, sixteen registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;
/// Sixteen lanes, thirty-two registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// One trait function as one intrinsic (or expression) of the same arguments.
macro_rules! op {
    ($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $body:expr) => {
        #[inline(always)]
        unsafe fn $name($($arg: $ty),*) -> $ret {
            // SAFETY: the trait's promise: the processor has the instructions, pointers are good for the lanes touched.
            unsafe { $body }
        }
    };
}

impl Simd for Avx512 {
    type V = __m512;
    type M = __mmask16;
    const LANES: usize = 16;
    // 14 rows x 2 vectors are 28 accumulators, two vectors of B and two broadcasts: all 32 registers.
    const MR: usize = 14;

    op!(splat(x: f32) -> __m512 = _mm512_set1_ps(x));
    op!(load(p: *const f32) -> __m512 = _mm512_loadu_ps(p));
    op!(store(p: *mut f32, v: __m512) -> () = _mm512_storeu_ps(p, v));
    #[inline(always)]
    unsafe fn mask(n: usize) -> __mmask16 {
        ((1u32 << n) - 1) as __mmask16
    }
    op!(load_masked(p: *const f32, m: __mmask16) -> __m512 = _mm512_maskz_loadu_ps(m, p));
    op!(store_masked(p: *mut f32, m: __mmask16, v: __m512) -> () = _mm512_mask_storeu_ps(p, m, v));
    op!(add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b));
    op!(sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b));
    op!(mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b));
    op!(fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c));
    op!(max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b));
    op!(min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b));
    op!(keep(v: __m512, bits: u32) -> __m512 = _mm512_maskz_mov_ps(bits as __mmask16, v));
    op!(sum(v: __m512) -> f32 = _mm512_reduce_add_ps(v));
    op!(largest(v: __m512) -> f32 = _mm512_reduce_max_ps(v));
    op!(exp2_of_shifted(v: __m512) -> __m512 = {
        let bits = _mm512_slli_epi32::<23>(_mm512_castps_si512(v));
        _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(1.0f32.to_bits() as i32)))
    });
}

/// Sliding window: eight lanes from `8 - n` have the first `n` set.
static AVX2_MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

impl Simd for Avx2 {
    type V = __m256;
    type M = __m256i;
    const LANES: usize = 8;
    // 6 rows x 2 vectors, two vectors of B and a broadcast: 15 of 16 registers.
    const MR: usize = 6;

    op!(splat(x: f32) -> __m256 = _mm256_set1_ps(x));
    op!(load(p: *const f32) -> __m256 = _mm256_loadu_ps(p));
    op!(store(p: *mut f32, v: __m256) -> () = _mm256_storeu_ps(p, v));
    op!(mask(n: usize) -> __m256i = _mm256_loadu_si256(AVX2_MASKS.as_ptr().add(8 - n).cast()));
    op!(load_masked(p: *const f32, m: __m256i) -> __m256 = _mm256_maskload_ps(p, m));
    op!(store_masked(p: *mut f32, m: __m256i, v: __m256) -> () = _mm256_maskstore_ps(p, m, v));
    op!(add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b));
    op!(sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b));
    op!(mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b));
    op!(fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c));
    op!(max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b));
    op!(min(a: __m256, b: __m256) -> __m256 = _mm256_min_ps(a, b));
    op!(keep(v: __m256, bits: u32) -> __m256 = {
        let lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        let set = _mm256_and_si256(_mm256_set1_epi32(bits as i32), lanes);
        _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lanes)))
    });
    op!(sum(v: __m256) -> f32 = {
        let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    });
    op!(largest(v: __m256) -> f32 = {
        let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
    });
    op!(exp2_of_shifted(v: __m256) -> __m256 = {
        let bits = _mm256_slli_epi32::<23>(_mm256_castps_si256(v));
        _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(1.0f32.to_bits() as i32)))
    });
}
