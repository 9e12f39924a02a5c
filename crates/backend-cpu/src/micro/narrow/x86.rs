//! Tiles of products of narrow numbers in the instructions of x86-64.

#![expect(
    clippy::needless_range_loop,
    reason = "indexed loops over constant sizes unroll into registers; chains of iterators do not always"
)]

use std::arch::x86_64::*;
use std::sync::OnceLock;
use std::time::Instant;

use super::depthwise::{Line, PIXELS};
use super::dot::{GROUP, Tile};

/// The multiplication of four bytes of A, the same for all columns, with four bytes of each of sixteen columns of B.
trait Dot {
    /// Sixteen sums.
    type Sums: Copy;
    /// Four bytes of each column.
    type Columns: Copy;
    /// Four bytes of a row, for all columns, or what they were made.
    type Row: Copy;
    /// Bytes of a row of the tile in a group.
    const ROW: usize = 4;

    /// # Safety
    /// Sixteen sums must be readable, or `from` null: then they are 0.
    unsafe fn first(from: *const u32) -> Self::Sums;
    /// # Safety
    /// 64 bytes must be readable.
    unsafe fn columns(from: *const u8) -> Self::Columns;
    /// # Safety
    /// [`Dot::ROW`] bytes must be readable.
    unsafe fn row(from: *const u8) -> Self::Row;
    /// # Safety
    /// The processor has the instructions.
    unsafe fn add(sums: Self::Sums, a: Self::Row, b: Self::Columns) -> Self::Sums;
    /// # Safety
    /// Sixteen sums must be writable.
    unsafe fn store(sums: Self::Sums, to: *mut u32);
}

struct Vnni;
struct Bf16;
struct Widened;
struct Avx2;

impl Dot for Vnni {
    type Sums = __m512i;
    type Columns = __m512i;
    type Row = __m512i;

    #[inline(always)]
    unsafe fn first(from: *const u32) -> __m512i {
        // SAFETY: the trait's promise.
        unsafe { if from.is_null() { _mm512_setzero_si512() } else { _mm512_loadu_si512(from.cast()) } }
    }
    #[inline(always)]
    unsafe fn columns(from: *const u8) -> __m512i {
        // SAFETY: the trait's promise.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn row(from: *const u8) -> __m512i {
        // SAFETY: the trait's promise.
        unsafe { _mm512_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn add(sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the trait's promise.
        unsafe { _mm512_dpbusd_epi32(sums, a, b) }
    }
    #[inline(always)]
    unsafe fn store(sums: __m512i, to: *mut u32) {
        // SAFETY: the trait's promise.
        unsafe { _mm512_storeu_si512(to.cast(), sums) };
    }
}

impl Dot for Bf16 {
    type Sums = __m512;
    type Columns = __m512i;
    type Row = __m512i;

    #[inline(always)]
    unsafe fn first(from: *const u32) -> __m512 {
        // SAFETY: the trait's promise.
        unsafe { if from.is_null() { _mm512_setzero_ps() } else { _mm512_loadu_ps(from.cast()) } }
    }
    #[inline(always)]
    unsafe fn columns(from: *const u8) -> __m512i {
        // SAFETY: the trait's promise.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn row(from: *const u8) -> __m512i {
        // SAFETY: the trait's promise.
        unsafe { _mm512_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn add(sums: __m512, a: __m512i, b: __m512i) -> __m512 {
        // SAFETY: the trait's promise; both types are 512 bits of any contents.
        unsafe {
            let bits = |v: __m512i| std::mem::transmute::<__m512i, __m512bh>(v);
            _mm512_dpbf16_ps(sums, bits(a), bits(b))
        }
    }
    #[inline(always)]
    unsafe fn store(sums: __m512, to: *mut u32) {
        // SAFETY: the trait's promise.
        unsafe { _mm512_storeu_ps(to.cast(), sums) };
    }
}

impl Dot for Widened {
    type Sums = __m512;
    /// The lower numbers of the pairs, and the upper factor.
    type Columns = [__m512; 2];
    type Row = [__m512; 2];
    const ROW: usize = 8;

    #[inline(always)]
    unsafe fn first(from: *const u32) -> __m512 {
        // SAFETY: the trait's promise.
        unsafe { Bf16::first(from) }
    }
    #[inline(always)]
    unsafe fn columns(from: *const u8) -> [__m512; 2] {
        // SAFETY: the trait's promise. The bits of a `bf16` are the upper half of the same number in `f32`.
        unsafe {
            let pairs = _mm512_loadu_si512(from.cast());
            let upper = _mm512_and_si512(pairs, _mm512_set1_epi32(0xFFFF_0000_u32.cast_signed()));
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(upper)]
        }
    }
    #[inline(always)]
    unsafe fn row(from: *const u8) -> [__m512; 2] {
        // SAFETY: the trait's promise.
        unsafe {
            let from = from.cast::<f32>();
            [_mm512_set1_ps(from.read_unaligned()), _mm512_set1_ps(from.add(1).read_unaligned())]
        }
    }
    #[inline(always)]
    unsafe fn add(sums: __m512, a: [__m512; 2], b: [__m512; 2]) -> __m512 {
        // SAFETY: the trait's promise.
        unsafe { _mm512_fmadd_ps(a[1], b[1], _mm512_fmadd_ps(a[0], b[0], sums)) }
    }
    #[inline(always)]
    unsafe fn store(sums: __m512, to: *mut u32) {
        // SAFETY: the trait's promise.
        unsafe { _mm512_storeu_ps(to.cast(), sums) };
    }
}

/// Even and odd bytes of two vectors of eight columns, as signed 16-bit numbers.
#[derive(Clone, Copy)]
struct Pairs {
    even: [__m256i; 2],
    odd: [__m256i; 2],
}

impl Dot for Avx2 {
    type Sums = [__m256i; 2];
    type Columns = Pairs;
    type Row = [__m256i; 2];

    #[inline(always)]
    unsafe fn first(from: *const u32) -> [__m256i; 2] {
        // SAFETY: the trait's promise.
        unsafe {
            if from.is_null() {
                return [_mm256_setzero_si256(); 2];
            }
            [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(8).cast())]
        }
    }
    #[inline(always)]
    unsafe fn columns(from: *const u8) -> Pairs {
        // SAFETY: the trait's promise.
        unsafe {
            let b = [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())];
            let even = b.map(|b| _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(b)));
            Pairs { even, odd: b.map(|b| _mm256_srai_epi16::<8>(b)) }
        }
    }
    #[inline(always)]
    unsafe fn row(from: *const u8) -> [__m256i; 2] {
        // SAFETY: the trait's promise.
        unsafe {
            let a = _mm256_set1_epi32(from.cast::<i32>().read_unaligned());
            [_mm256_and_si256(a, _mm256_set1_epi16(255)), _mm256_srli_epi16::<8>(a)]
        }
    }
    /// Products of pairs of 16-bit numbers are exact in 32 bits, where those of bytes would saturate in 16.
    #[inline(always)]
    unsafe fn add(mut sums: [__m256i; 2], [even, odd]: [__m256i; 2], b: Pairs) -> [__m256i; 2] {
        for h in 0..2 {
            // SAFETY: the trait's promise.
            unsafe {
                let both =
                    _mm256_add_epi32(_mm256_madd_epi16(even, b.even[h]), _mm256_madd_epi16(odd, b.odd[h]));
                sums[h] = _mm256_add_epi32(sums[h], both);
            }
        }
        sums
    }
    #[inline(always)]
    unsafe fn store(sums: [__m256i; 2], to: *mut u32) {
        // SAFETY: the trait's promise.
        unsafe {
            _mm256_storeu_si256(to.cast(), sums[0]);
            _mm256_storeu_si256(to.add(8).cast(), sums[1]);
        }
    }
}

/// A tile of `MR` rows and `NP` panels.
///
/// # Safety
/// The processor has the instructions of `D`; the tile's pointers cover its sizes.
#[inline(always)]
unsafe fn tile<D: Dot, const MR: usize, const NP: usize>(t: &Tile) {
    // SAFETY: the caller guarantees the instructions and that the tile's pointers cover its sizes.
    unsafe {
        let mut first = [D::first(std::ptr::null()); NP];
        for p in 0..NP {
            if !t.first.is_null() {
                first[p] = D::first(t.first.add(16 * p));
            }
        }
        let mut sums = [first; MR];
        let mut rows = [t.rows[0]; MR];
        rows.copy_from_slice(&t.rows[..MR]);
        // A tile of several panels has all of its block.
        let step = if NP > 1 { NP * GROUP } else { t.step };
        // Wrapping arithmetic: checks of overflow in debug builds would cost as much as the products.
        let (mut from, mut at) = (t.b, 0usize);
        for _ in 0..t.groups {
            let mut b = [D::columns(from); NP];
            for p in 1..NP {
                b[p] = D::columns(from.wrapping_add(p * GROUP));
            }
            for r in 0..MR {
                let a = D::row(rows[r].wrapping_add(at));
                for p in 0..NP {
                    sums[r][p] = D::add(sums[r][p], a, b[p]);
                }
            }
            (from, at) = (from.wrapping_add(step), at.wrapping_add(D::ROW));
        }
        for r in 0..MR {
            for p in 0..NP {
                D::store(sums[r][p], t.c.add(r * t.ldc + 16 * p));
            }
        }
    }
}

/// A function from sizes to a tile's code.
macro_rules! tiles {
    ($name:ident, $dot:ident, $features:literal, [$(($rows:literal, $panels:literal)),*]) => {
        /// The code of a tile of these rows and panels, which the unit has.
        pub(super) fn $name(rows: usize, panels: usize) -> unsafe fn(&Tile) {
            #[target_feature(enable = $features)]
            unsafe fn one<const MR: usize, const NP: usize>(t: &Tile) {
                // SAFETY: the caller guarantees the instructions and that the tile's pointers cover its sizes.
                unsafe { tile::<$dot, MR, NP>(t) }
            }
            match (rows, panels) {
                $(($rows, $panels) => one::<$rows, $panels>,)*
                // The caller asks for no other sizes: tiles are cut by the unit's own limits.
                _ => one::<1, 1>,
            }
        }
    };
}

tiles!(
    vnni,
    Vnni,
    "avx512f,avx512bw,avx512vnni",
    [
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 1),
        (5, 1),
        (6, 1),
        (7, 1),
        (8, 1),
        (9, 1),
        (10, 1),
        (1, 2),
        (2, 2),
        (3, 2),
        (4, 2),
        (5, 2),
        (6, 2),
        (7, 2),
        (8, 2),
        (1, 3),
        (2, 3),
        (3, 3),
        (4, 3),
        (5, 3),
        (6, 3),
        (7, 3),
        (8, 3),
        (1, 4),
        (2, 4),
        (3, 4),
        (4, 4),
        (5, 4),
        (6, 4)
    ]
);
tiles!(
    widened,
    Widened,
    "avx512f,avx512bw",
    [
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 1),
        (5, 1),
        (6, 1),
        (7, 1),
        (8, 1),
        (9, 1),
        (10, 1),
        (1, 2),
        (2, 2),
        (3, 2),
        (4, 2),
        (5, 2),
        (6, 2),
        (7, 2),
        (8, 2),
        (1, 3),
        (2, 3),
        (3, 3),
        (4, 3),
        (5, 3),
        (6, 3),
        (7, 3),
        (1, 4),
        (2, 4),
        (3, 4),
        (4, 4),
        (5, 4)
    ]
);
tiles!(
    bf16,
    Bf16,
    "avx512f,avx512bw,avx512bf16",
    [
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 1),
        (5, 1),
        (6, 1),
        (7, 1),
        (8, 1),
        (9, 1),
        (10, 1),
        (1, 2),
        (2, 2),
        (3, 2),
        (4, 2),
        (5, 2),
        (6, 2),
        (7, 2),
        (8, 2),
        (1, 3),
        (2, 3),
        (3, 3),
        (4, 3),
        (5, 3),
        (6, 3),
        (7, 3),
        (8, 3),
        (1, 4),
        (2, 4),
        (3, 4),
        (4, 4),
        (5, 4),
        (6, 4)
    ]
);
tiles!(avx2, Avx2, "avx2", [(1, 1), (2, 1), (3, 1), (4, 1)]);

/// Copies bytes with whole registers and one masked access, without a call: runs are as short as a row of a window.
///
/// # Safety
/// AVX-512 BW; `len` bytes are readable at `from` and writable at `to`, and they do not overlap.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise; the mask keeps the last access inside of `len` bytes.
    unsafe {
        let mut at = 0;
        while at + 64 <= len {
            _mm512_storeu_si512(to.wrapping_add(at).cast(), _mm512_loadu_si512(from.wrapping_add(at).cast()));
            at += 64;
        }
        let mask = (1u64 << (len - at)) - 1;
        let rest = _mm512_maskz_loadu_epi8(mask, from.wrapping_add(at).cast());
        _mm512_mask_storeu_epi8(to.wrapping_add(at).cast(), mask, rest);
    }
}

/// Makes `bf16` numbers `f32`.
///
/// # Safety
/// AVX-512; `count` numbers are readable and writable.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn widen(from: *const u16, to: *mut f32, count: usize) {
    for at in (0..count).step_by(32) {
        let mask = u32::MAX >> (32 - (count - at).min(32));
        // SAFETY: lanes in the masks are those of numbers that exist.
        unsafe {
            let bits = _mm512_maskz_loadu_epi16(mask, from.add(at).cast());
            let half =
                |bits: __m256i| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)));
            _mm512_mask_storeu_ps(to.add(at), mask as __mmask16, half(_mm512_castsi512_si256(bits)));
            let upper = half(_mm512_extracti64x4_epi64::<1>(bits));
            _mm512_mask_storeu_ps(to.wrapping_add(at + 16), (mask >> 16) as __mmask16, upper);
        }
    }
}

/// Whether this processor has `vdpbf16ps`, and at more than half of the rate of `f32`'s multiplications, below which it gains nothing.
/// Measured once, for some microseconds.
pub(super) fn dots_pay() -> bool {
    static PAY: OnceLock<bool> = OnceLock::new();
    *PAY.get_or_init(|| {
        if !is_x86_feature_detected!("avx512bf16") {
            return false;
        }
        let best = |f: unsafe fn()| {
            let time = || {
                let start = Instant::now();
                // SAFETY: the processor has both instruction sets.
                unsafe { f() };
                start.elapsed()
            };
            (0..8).map(|_| time()).min()
        };
        // The instructions differ by a factor of four or not at all: other work on the machine does not change the answer.
        best(dots) < best(multiplications).map(|time| 2 * time)
    })
}

/// Instructions that are timed, in sets of independent factor.
const TIMED: usize = 256;
/// Independent sums: more than the latency of an instruction hides.
const SUMS: usize = 12;

#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn dots() {
    let factor = std::hint::black_box(_mm512_setzero_si512());
    // SAFETY: both types are 512 bits of any contents.
    let factor = unsafe { std::mem::transmute::<__m512i, __m512bh>(factor) };
    let mut sums = [_mm512_setzero_ps(); SUMS];
    for _ in 0..TIMED {
        for sum in &mut sums {
            *sum = _mm512_dpbf16_ps(*sum, factor, factor);
        }
    }
    std::hint::black_box(sums);
}

#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn multiplications() {
    let factor = std::hint::black_box(_mm512_setzero_ps());
    let mut sums = [_mm512_setzero_ps(); SUMS];
    for _ in 0..TIMED {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(factor, factor, *sum);
        }
    }
    std::hint::black_box(sums);
}

/// Sums of depthwise windows of `bf16`.
///
/// # Safety
/// AVX-512; the line's pointers cover its sizes.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn windows_of_floats(line: &Line) {
    // SAFETY: the caller's promise.
    unsafe {
        match line.pixels {
            PIXELS => floats_of::<PIXELS>(line, 0),
            n => (0..n).for_each(|pixel| floats_of::<1>(line, pixel)),
        }
    }
}

/// The sums of `N` pixels from `pixel` on. The bits of a `bf16` are the upper half of the same number in `f32`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn floats_of<const N: usize>(line: &Line, pixel: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [_mm512_setzero_ps(); N];
        let from = line.from.wrapping_add(pixel * line.step);
        let mut weights = line.weights;
        for tap in 0..line.count {
            let w = _mm512_loadu_ps(weights.cast());
            let mut from = from.wrapping_add(*line.taps.wrapping_add(tap));
            for p in 0..N {
                let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
                let x = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits));
                sums[p] = _mm512_fmadd_ps(x, w, sums[p]);
                from = from.wrapping_add(line.step);
            }
            weights = weights.wrapping_add(GROUP);
        }
        for p in 0..N {
            _mm512_storeu_ps(line.to.add((pixel + p) * line.ld).cast(), sums[p]);
        }
    }
}
