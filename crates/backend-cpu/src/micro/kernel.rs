//! The register tile: up to `MR` rows by one or two vectors of columns of C, summed over taps and k. The one inner loop
//! of matrix products and convolutions. Does no blocking and calls no hook; that is `driver`.

#![expect(
    clippy::needless_range_loop,
    reason = "indexed loops over constant sizes unroll into registers; chains of iterators do not always"
)]

use super::Isa;
#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512};
use super::simd::{Portable, Simd};

/// Most rows of a tile of any instruction set.
pub(crate) const MAX_MR: usize = 14;

/// Steps of k by which B is fetched ahead: with vectors of 16 lanes they are two pages, which the processor's own prefetchers do not cross.
const AHEAD: usize = 64;

/// The epilogue of a tile before its last store; every pointer is at the tile's first column (and row).
#[derive(Clone, Copy)]
pub(crate) struct Finish {
    /// Per-column factors, or null.
    pub(crate) scale: *const f32,
    /// Per-column summands, or null.
    pub(crate) shift: *const f32,
    /// Residual, or null.
    pub(crate) residual: *const f32,
    /// Elements between rows of the residual.
    pub(crate) residual_stride: usize,
    /// Bounds of the activation, if there is one.
    pub(crate) clamp: Option<(f32, f32)>,
}

/// One tile: `C[i, n] (+)= sum over t, k of rows[i][taps[t] + k] * b[(t * kc + k) * NR + n]`.
pub(crate) struct Tile {
    /// Base of each row; the first `MR` count.
    pub(crate) rows: [*const f32; MAX_MR],
    /// Bit `first_tap + t` of `valid[i]` is set if tap `t` of row `i` is inside the input; else `zero` is read.
    pub(crate) valid: [u64; MAX_MR],
    /// Offset of each tap.
    pub(crate) taps: *const isize,
    /// How many taps.
    pub(crate) tap_count: usize,
    /// Index of the first tap in `valid`.
    pub(crate) first_tap: u32,
    /// `kc` zeros.
    pub(crate) zero: *const f32,
    /// Values of k for each tap.
    pub(crate) kc: usize,
    /// Packed panel: `tap_count * kc` rows of `NR` values.
    pub(crate) b: *const f32,
    /// Where the sums go.
    pub(crate) to: Target,
}

/// The place of a tile in C, and what happens to its sums.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// Element (0, 0) of the tile in C.
    pub(crate) c: *mut f32,
    /// Elements between rows of C.
    pub(crate) ldc: usize,
    /// Columns that exist, `1 ..= NR`.
    pub(crate) cols: usize,
    /// Add to the contents of C.
    pub(crate) accumulate: bool,
    /// The epilogue, if these are the last taps.
    pub(crate) finish: Option<Finish>,
}

/// Runs one tile.
pub(crate) type TileFn = unsafe fn(&Tile);

/// Columns of a packed panel.
pub(crate) fn panel_width(isa: Isa) -> usize {
    match isa {
        Isa::Portable => 2 * Portable::LANES,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => 2 * Avx2::LANES,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => 2 * Avx512::LANES,
        #[cfg(not(target_arch = "x86_64"))]
        _ => 2 * Portable::LANES,
    }
}

/// Most rows of a tile.
pub(crate) fn tile_rows(isa: Isa) -> usize {
    match isa {
        Isa::Portable => Portable::MR,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => Avx2::MR,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => Avx512::MR,
        #[cfg(not(target_arch = "x86_64"))]
        _ => Portable::MR,
    }
}

/// The kernel for `rows` rows (`1 ..= tile_rows`) and `cols` columns; `padded` if some row's taps may be invalid.
pub(crate) fn tile_fn(isa: Isa, rows: usize, cols: usize, padded: bool) -> TileFn {
    let wide = usize::from(cols * 2 > panel_width(isa));
    let table = match isa {
        Isa::Portable => &PORTABLE,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &AVX2,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &AVX512,
        #[cfg(not(target_arch = "x86_64"))]
        _ => &PORTABLE,
    };
    table[rows - 1][wide][usize::from(padded)]
}

/// As [`tile_fn`], with one chain of sums along k whatever the number of rows: a row's result does not depend on the tile that it
/// is in.
pub(crate) fn chain_fn(isa: Isa, rows: usize, cols: usize) -> TileFn {
    let wide = usize::from(cols * 2 > panel_width(isa));
    let few = match isa {
        Isa::Portable => &PORTABLE_CHAINS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &AVX2_CHAINS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &AVX512_CHAINS,
        #[cfg(not(target_arch = "x86_64"))]
        _ => &PORTABLE_CHAINS,
    };
    few.get(rows - 1).map_or_else(|| tile_fn(isa, rows, cols, false), |row| row[wide][0])
}

/// Rows of a tile up to which [`tile_fn`] has several sets of sums, for any instruction set.
pub(crate) const FEW_ROWS: usize = 4;

/// `[rows - 1][one or two vectors][padded]`; rows beyond the tile of the instruction set repeat its last kernel and are not used.
type Table = [[[TileFn; 2]; 2]; MAX_MR];

/// Those with one chain of sums, for rows that have several sets in the table.
type Chains = [[[TileFn; 2]; 2]; FEW_ROWS];

macro_rules! row {
    // Few rows give too few independent sums to cover the latency of fma (4 cycles, 2 a cycle on Zen 5): the k loop
    // then runs on `$u` sets of accumulators.
    ($f:ident, $mr:literal, $u:literal) => {
        [
            [$f::<$mr, 1, false, $u> as TileFn, $f::<$mr, 1, true, $u>],
            [$f::<$mr, 2, false, $u>, $f::<$mr, 2, true, $u>],
        ]
    };
}

macro_rules! chains {
    ($f:ident) => {
        [row!($f, 1, 1), row!($f, 2, 1), row!($f, 3, 1), row!($f, 4, 1)]
    };
}

macro_rules! table {
    ($f:ident, wide) => {
        [
            row!($f, 1, 4),
            row!($f, 2, 4),
            row!($f, 3, 2),
            row!($f, 4, 2),
            row!($f, 5, 1),
            row!($f, 6, 1),
            row!($f, 7, 1),
            row!($f, 8, 1),
            row!($f, 9, 1),
            row!($f, 10, 1),
            row!($f, 11, 1),
            row!($f, 12, 1),
            row!($f, 13, 1),
            row!($f, 14, 1),
        ]
    };
    ($f:ident, narrow) => {
        [
            row!($f, 1, 4),
            row!($f, 2, 2),
            row!($f, 3, 1),
            row!($f, 4, 1),
            row!($f, 5, 1),
            row!($f, 6, 1),
            row!($f, 6, 1),
            row!($f, 6, 1),
            row!($f, 6, 1),
            row!($f, 6, 1),
            row!($f, 6, 1),
            row!($f, 6, 1),
            row!($f, 6, 1),
            row!($f, 6, 1),
        ]
    };
}

static PORTABLE_CHAINS: Chains = chains!(tile_portable);
#[cfg(target_arch = "x86_64")]
static AVX2_CHAINS: Chains = chains!(tile_avx2);
#[cfg(target_arch = "x86_64")]
static AVX512_CHAINS: Chains = chains!(tile_avx512);

static PORTABLE: Table = table!(tile_portable, narrow);
#[cfg(target_arch = "x86_64")]
static AVX2: Table = table!(tile_avx2, narrow);
#[cfg(target_arch = "x86_64")]
static AVX512: Table = table!(tile_avx512, wide);

unsafe fn tile_portable<const MR: usize, const NV: usize, const PADDED: bool, const U: usize>(tile: &Tile) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe { run::<Portable, MR, NV, PADDED, U>(tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn tile_avx2<const MR: usize, const NV: usize, const PADDED: bool, const U: usize>(tile: &Tile) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe { run::<Avx2, MR, NV, PADDED, U>(tile) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn tile_avx512<const MR: usize, const NV: usize, const PADDED: bool, const U: usize>(tile: &Tile) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe { run::<Avx512, MR, NV, PADDED, U>(tile) }
}

/// The accumulators of a tile.
pub(crate) type Acc<S, const MR: usize, const NV: usize> = [[<S as Simd>::V; NV]; MR];

#[inline(always)]
unsafe fn run<S: Simd, const MR: usize, const NV: usize, const PADDED: bool, const U: usize>(tile: &Tile) {
    // SAFETY: the caller promises a processor with `S` and a tile whose pointers cover what its sizes say.
    unsafe { store_sums::<S, MR, NV>(&tile.to, sum_taps::<S, MR, NV, PADDED, U>(tile)) }
}

/// Adds C where it is to be added, applies the epilogue and stores.
///
/// # Safety
/// The processor has the instruction set; the target's pointers cover `MR` rows of its columns.
#[inline(always)]
pub(crate) unsafe fn store_sums<S: Simd, const MR: usize, const NV: usize>(
    to: &Target,
    mut acc: Acc<S, MR, NV>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if to.cols != NV * S::LANES {
            return finish_narrow::<S, MR, NV>(to, &acc);
        }
        if to.accumulate {
            add_c::<S, MR, NV>(to, &mut acc);
        }
        if let Some(finish) = &to.finish {
            apply::<S, MR, NV>(finish, &mut acc);
        }
        for (i, row) in acc.iter().enumerate() {
            for (j, v) in row.iter().enumerate() {
                S::store(to.c.add(i * to.ldc + j * S::LANES), *v);
            }
        }
    }
}

/// The products: `U` independent sets of sums, added at the end.
#[inline(always)]
unsafe fn sum_taps<S: Simd, const MR: usize, const NV: usize, const PADDED: bool, const U: usize>(
    tile: &Tile,
) -> Acc<S, MR, NV> {
    // SAFETY: the caller guarantees the instruction set and that the tile's pointers cover its sizes.
    unsafe {
        let mut acc = [[[S::splat(0.0); NV]; MR]; U];
        let mut b = tile.b;
        let kc = tile.kc;
        let any = tile.valid[..MR].iter().fold(0, |all, v| all | v);
        for t in 0..tile.tap_count {
            if PADDED && (any >> (tile.first_tap + t as u32)) & 1 == 0 {
                b = b.add(kc * 2 * S::LANES);
                continue;
            }
            let offset = *tile.taps.add(t);
            let mut rows = [tile.zero; MR];
            for i in 0..MR {
                if !PADDED || (tile.valid[i] >> (tile.first_tap + t as u32)) & 1 == 1 {
                    rows[i] = tile.rows[i].offset(offset);
                }
            }
            let mut k = 0;
            while k + 4 <= kc {
                for u in 0..4 {
                    for j in 0..NV {
                        S::prefetch(b.wrapping_add((u + AHEAD) * 2 * S::LANES + j * S::LANES));
                    }
                    step::<S, MR, NV>(&rows, k + u, b.add(u * 2 * S::LANES), &mut acc[u % U]);
                }
                b = b.add(8 * S::LANES);
                k += 4;
            }
            while k < kc {
                step::<S, MR, NV>(&rows, k, b, &mut acc[0]);
                b = b.add(2 * S::LANES);
                k += 1;
            }
        }
        joined::<S, MR, NV, U>(acc)
    }
}

/// The sum of the sets.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
pub(crate) unsafe fn joined<S: Simd, const MR: usize, const NV: usize, const U: usize>(
    mut acc: [Acc<S, MR, NV>; U],
) -> Acc<S, MR, NV> {
    for u in 1..U {
        for i in 0..MR {
            for j in 0..NV {
                // SAFETY: the caller's promise.
                acc[0][i][j] = unsafe { S::add(acc[0][i][j], acc[u][i][j]) };
            }
        }
    }
    acc[0]
}

/// One step of k: `MR` broadcasts times `NV` vectors of B.
#[inline(always)]
unsafe fn step<S: Simd, const MR: usize, const NV: usize>(
    rows: &[*const f32; MR],
    k: usize,
    b: *const f32,
    acc: &mut Acc<S, MR, NV>,
) {
    // SAFETY: the caller guarantees the instruction set and that the tile's pointers cover its sizes.
    unsafe {
        let mut bv = [S::splat(0.0); NV];
        for (j, v) in bv.iter_mut().enumerate() {
            *v = S::load(b.add(j * S::LANES));
        }
        for i in 0..MR {
            let a = S::splat(*rows[i].add(k));
            for j in 0..NV {
                acc[i][j] = S::fma(a, bv[j], acc[i][j]);
            }
        }
    }
}

#[inline(always)]
unsafe fn add_c<S: Simd, const MR: usize, const NV: usize>(to: &Target, acc: &mut Acc<S, MR, NV>) {
    for (i, row) in acc.iter_mut().enumerate() {
        for (j, v) in row.iter_mut().enumerate() {
            // SAFETY: the caller guarantees the instruction set and that the tile's pointers cover its sizes.
            unsafe { *v = S::add(*v, S::load(to.c.add(i * to.ldc + j * S::LANES))) };
        }
    }
}

/// The epilogue on full vectors.
#[inline(always)]
unsafe fn apply<S: Simd, const MR: usize, const NV: usize>(f: &Finish, acc: &mut Acc<S, MR, NV>) {
    // SAFETY: the caller guarantees the instruction set and that the tile's pointers cover its sizes; the epilogue's pointers
    // cover `NV` vectors.
    unsafe {
        let mut scale = [S::splat(1.0); NV];
        let mut shift = [S::splat(0.0); NV];
        for j in 0..NV {
            if !f.scale.is_null() {
                scale[j] = S::load(f.scale.add(j * S::LANES));
            }
            if !f.shift.is_null() {
                shift[j] = S::load(f.shift.add(j * S::LANES));
            }
        }
        for (i, row) in acc.iter_mut().enumerate() {
            for (j, v) in row.iter_mut().enumerate() {
                *v = S::fma(*v, scale[j], shift[j]);
                if !f.residual.is_null() {
                    *v = S::add(*v, S::load(f.residual.add(i * f.residual_stride + j * S::LANES)));
                }
                if let Some((lo, hi)) = f.clamp {
                    *v = S::min(S::splat(hi), S::max(S::splat(lo), *v));
                }
            }
        }
    }
}

/// The same where the last vector is not full: masked, one vector at a time (rare, so not unrolled over rows).
#[inline(always)]
unsafe fn finish_narrow<S: Simd, const MR: usize, const NV: usize>(to: &Target, acc: &Acc<S, MR, NV>) {
    // SAFETY: the caller guarantees the instruction set and that the tile's pointers cover its sizes; the masks keep every
    // access inside `to.cols`.
    unsafe {
        let mut masks = [S::mask(0); NV];
        for (j, m) in masks.iter_mut().enumerate() {
            *m = S::mask(to.cols.saturating_sub(j * S::LANES).min(S::LANES));
        }
        for (i, row) in acc.iter().enumerate() {
            for (j, v) in row.iter().enumerate() {
                let (m, at) = (masks[j], j * S::LANES);
                let c = to.c.add(i * to.ldc + at);
                let mut v = *v;
                if to.accumulate {
                    v = S::add(v, S::load_masked(c, m));
                }
                if let Some(f) = &to.finish {
                    v = finish_one::<S>(f, i, at, m, v);
                }
                S::store_masked(c, m, v);
            }
        }
    }
}

/// The epilogue on one masked vector at row `i`, column `at` of the tile.
#[inline(always)]
pub(crate) unsafe fn finish_one<S: Simd>(f: &Finish, i: usize, at: usize, m: S::M, mut v: S::V) -> S::V {
    // SAFETY: the caller guarantees the instruction set and that the tile's pointers cover its sizes.
    unsafe {
        if !f.scale.is_null() {
            v = S::mul(v, S::load_masked(f.scale.add(at), m));
        }
        if !f.shift.is_null() {
            v = S::add(v, S::load_masked(f.shift.add(at), m));
        }
        if !f.residual.is_null() {
            v = S::add(v, S::load_masked(f.residual.add(i * f.residual_stride + at), m));
        }
        if let Some((lo, hi)) = f.clamp {
            v = S::min(S::splat(hi), S::max(S::splat(lo), v));
        }
        v
    }
}
