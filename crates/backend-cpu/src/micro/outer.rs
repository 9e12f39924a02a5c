//! The register tile of sums of outer products: rows of A lie side by side for each k, as B's columns do, and k is runs of steps that
//! follow each other on both sides. It is the inner loop of convolutions whose rows are images (`conv::sums`).

#![expect(
    clippy::needless_range_loop,
    reason = "indexed loops over constant sizes unroll into registers; chains of iterators do not always"
)]

use super::Isa;
use super::kernel::{Acc, MAX_MR, Target, joined, panel_width, store_sums};
#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512};
use super::simd::{Portable, Simd};

/// Steps of k that follow each other in both operands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Run {
    /// The first step in A.
    pub(crate) a: usize,
    /// The first step in B.
    pub(crate) b: usize,
    /// How many.
    pub(crate) len: usize,
}

/// One tile: `C[i, n] (+)= sum over runs, k < len of a[(run.a + k) * width + i] * b[(run.b + k) * NR + n]`.
pub(crate) struct Outer<'a> {
    pub(crate) runs: &'a [Run],
    /// Value of row 0 at step 0.
    pub(crate) a: *const f32,
    /// Values between steps of A.
    pub(crate) width: usize,
    /// Step 0 of a packed panel.
    pub(crate) b: *const f32,
    /// Where the sums go.
    pub(crate) to: Target,
}

type OuterFn = unsafe fn(&Outer<'_>);

/// Runs a tile of `rows` rows.
///
/// # Safety
/// The processor has the instruction set; `rows` is at most `tile_rows`; the pointers cover what the sizes say.
pub(crate) unsafe fn outer(isa: Isa, rows: usize, tile: &Outer<'_>) {
    let wide = usize::from(tile.to.cols * 2 > panel_width(isa));
    let table = match isa {
        Isa::Portable => &PORTABLE,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &AVX2,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &AVX512,
        #[cfg(not(target_arch = "x86_64"))]
        _ => &PORTABLE,
    };
    // SAFETY: the caller's promise.
    unsafe { table[rows - 1][wide](tile) }
}

/// `[rows - 1][one or two vectors]`; rows beyond the tile of the instruction set repeat its last kernel and are not used.
type Table = [[OuterFn; 2]; MAX_MR];

macro_rules! table {
    ($f:ident, $(($mr:literal, $u:literal)),*) => { [$([$f::<$mr, 1, $u> as OuterFn, $f::<$mr, 2, $u>]),*] };
}

// Few rows give too few independent sums to cover the latency of fma: then there are several sets of them, as in `kernel`.
macro_rules! narrow {
    ($f:ident) => {
        table!(
            $f,
            (1, 4),
            (2, 2),
            (3, 1),
            (4, 1),
            (5, 1),
            (6, 1),
            (6, 1),
            (6, 1),
            (6, 1),
            (6, 1),
            (6, 1),
            (6, 1),
            (6, 1),
            (6, 1)
        )
    };
}

static PORTABLE: Table = narrow!(outer_portable);
#[cfg(target_arch = "x86_64")]
static AVX2: Table = narrow!(outer_avx2);
#[cfg(target_arch = "x86_64")]
static AVX512: Table = table!(
    outer_avx512,
    (1, 4),
    (2, 4),
    (3, 2),
    (4, 2),
    (5, 1),
    (6, 1),
    (7, 1),
    (8, 1),
    (9, 1),
    (10, 1),
    (11, 1),
    (12, 1),
    (13, 1),
    (14, 1)
);

unsafe fn outer_portable<const MR: usize, const NV: usize, const U: usize>(tile: &Outer<'_>) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe { run::<Portable, MR, NV, U>(tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn outer_avx2<const MR: usize, const NV: usize, const U: usize>(tile: &Outer<'_>) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe { run::<Avx2, MR, NV, U>(tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn outer_avx512<const MR: usize, const NV: usize, const U: usize>(tile: &Outer<'_>) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe { run::<Avx512, MR, NV, U>(tile) }
}

#[inline(always)]
unsafe fn run<S: Simd, const MR: usize, const NV: usize, const U: usize>(tile: &Outer<'_>) {
    // SAFETY: the caller promises a processor with `S` and a tile whose pointers cover what its sizes say.
    unsafe {
        let mut acc = [[[S::splat(0.0); NV]; MR]; U];
        for run in tile.runs {
            let mut a = tile.a.add(run.a * tile.width);
            let mut b = tile.b.add(run.b * 2 * S::LANES);
            for _ in 0..run.len / 4 {
                for u in 0..4 {
                    step::<S, MR, NV>(a, b, &mut acc[u % U]);
                    a = a.add(tile.width);
                    b = b.add(2 * S::LANES);
                }
            }
            for _ in 0..run.len % 4 {
                step::<S, MR, NV>(a, b, &mut acc[0]);
                a = a.add(tile.width);
                b = b.add(2 * S::LANES);
            }
        }
        store_sums::<S, MR, NV>(&tile.to, joined::<S, MR, NV, U>(acc));
    }
}

/// One step of k: `MR` broadcasts times `NV` vectors of B.
#[inline(always)]
unsafe fn step<S: Simd, const MR: usize, const NV: usize>(
    a: *const f32,
    b: *const f32,
    acc: &mut Acc<S, MR, NV>,
) {
    // SAFETY: the caller guarantees the instruction set and that the tile's pointers cover its sizes.
    unsafe {
        let mut columns = [S::splat(0.0); NV];
        for (j, v) in columns.iter_mut().enumerate() {
            *v = S::load(b.add(j * S::LANES));
        }
        for i in 0..MR {
            let x = S::splat(*a.add(i));
            for j in 0..NV {
                acc[i][j] = S::fma(x, columns[j], acc[i][j]);
            }
        }
    }
}
