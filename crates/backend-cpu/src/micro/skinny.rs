//! Products with few rows, which are bound by reading B: B is read once, unpacked, in rows of k (dot products) or in rows
//! of n (scaled sums), by all threads. Larger products go through `driver`.

#![expect(
    clippy::needless_range_loop,
    reason = "indexed loops over constant sizes unroll into registers; chains of iterators do not always"
)]

use std::ops::Range;

use super::driver::part;
use super::epilogue::EpilogueBlock;
use super::kernel::{Finish, finish_one};
#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512};
use super::simd::{Portable, Simd};
use super::transpose::{self, Source};
use super::{Isa, MatmulStrided, MicroError, scratch, team};

/// Most rows of such a product.
pub(crate) const MAX_ROWS: usize = 8;
/// Rows of A per sweep over B; more rows sweep again over what is then in cache.
pub(crate) const ROWS_PER_SWEEP: usize = 4;

/// Rows of B of at most this many values are prefetched [`AHEAD`] rows early: a cached key or value of one head.
const SHORT: usize = 256;
/// See [`SHORT`]: about the latency of memory at the time that eight such rows take.
const AHEAD: usize = 16;

/// The contiguous dimension of B, and the stride of the other one.
#[derive(Clone, Copy)]
pub(crate) enum Along {
    /// Element `(k, n)` at `k + n * stride`.
    K(isize),
    /// Element `(k, n)` at `k * stride + n`.
    N(isize),
}

/// A product of few rows: `c[i * ldc + j] = sum over k of a[i * lda + k] * b(k, j)`.
#[derive(Clone, Copy)]
pub(crate) struct SkinnyProduct {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) k: usize,
    pub(crate) a: *const f32,
    pub(crate) lda: usize,
    pub(crate) b: *const f32,
    pub(crate) along: Along,
    pub(crate) c: *mut f32,
    pub(crate) ldc: usize,
}

/// Runs a batch of products whose B is contiguous in one direction and whose C is in columns.
///
/// # Safety
/// As [`super::matmul_strided`].
pub(crate) unsafe fn run(call: &MatmulStrided<'_>) -> Result<(), MicroError> {
    let ld = call.k.next_multiple_of(16);
    let dense_a = call.a.col_stride == 1 && call.a.row_stride >= 0;
    let entries = call.entries();
    let blocks = column_blocks(call, entries);
    let call = Shared(call);
    let work = entries * call.get().m * call.get().n * call.get().k;
    team::par_for_work(entries * blocks, work, &|task| {
        let (entry, cols) = (task / blocks, part(call.get().n.div_ceil(16), blocks, task % blocks));
        let cols = cols.start * 16..(cols.end * 16).min(call.get().n);
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; column ranges are disjoint.
        unsafe {
            if dense_a {
                let a = call.get().a;
                return one(
                    call.get(),
                    entry,
                    cols,
                    a.ptr.wrapping_offset(call.get().offsets(entry).0),
                    a.row_stride as usize,
                );
            }
            scratch::with(call.get().m * ld, |copy| {
                let call = call.get();
                let ptr = call.a.ptr.wrapping_offset(call.offsets(entry).0);
                let src = Source { ptr, row: call.a.row_stride, col: call.a.col_stride };
                transpose::copy(src, call.m, call.k, copy, ld);
                one(call, entry, cols, copy, ld);
            });
        }
    });
    Ok(())
}

struct Shared<'a, 'b>(&'a MatmulStrided<'b>);

// SAFETY: its pointers are used under the promises of the unsafe entry points: good from any thread.
unsafe impl Sync for Shared<'_, '_> {}

impl<'a, 'b> Shared<'a, 'b> {
    fn get(&self) -> &'a MatmulStrided<'b> {
        self.0
    }
}

/// Enough blocks of columns for all threads to finish together, each worth at least 16 Ki values of B.
fn column_blocks(call: &MatmulStrided<'_>, entries: usize) -> usize {
    let threads = team::threads_for(entries * call.m * call.n * call.k);
    if threads == 1 || entries >= 4 * threads {
        return 1;
    }
    let worth = (call.n * call.k / 16_384).max(1);
    (4 * threads).div_ceil(entries).min(worth).min(call.n.div_ceil(16))
}

/// One block of columns of one product: sums, epilogue, hook.
unsafe fn one(call: &MatmulStrided<'_>, entry: usize, cols: Range<usize>, a: *const f32, lda: usize) {
    let (_, b, c) = call.offsets(entry);
    let ldc = call.c_row_stride.unsigned_abs();
    let thin = SkinnyProduct {
        rows: call.m,
        cols: cols.len(),
        k: call.k,
        a,
        lda,
        b: call.b.ptr.wrapping_offset(b + cols.start as isize * call.b.col_stride),
        along: if call.b.row_stride == 1 { Along::K(call.b.col_stride) } else { Along::N(call.b.row_stride) },
        c: call.c.wrapping_offset(c).wrapping_add(cols.start),
        ldc,
    };
    let e = &call.epilogue;
    let at = |s: Option<&[f32]>| s.map_or(std::ptr::null(), |s| s[cols.start..].as_ptr());
    let finish = e.in_registers().then(|| Finish {
        scale: at(e.scale),
        shift: at(e.shift),
        residual: e
            .residual
            .map_or(std::ptr::null(), |r| r.ptr.wrapping_add(entry * r.batch_stride + cols.start)),
        residual_stride: e.residual.map_or(0, |r| r.row_stride),
        clamp: e.activation.bounds(),
    });
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        match finish {
            // The sums would overwrite a residual that is C itself.
            Some(f) if std::ptr::eq(f.residual, thin.c) => scratch::with(call.m * thin.cols, |copy| {
                let src = Source { ptr: f.residual, row: f.residual_stride as isize, col: 1 };
                transpose::copy(src, call.m, thin.cols, copy, thin.cols);
                multiply(call.isa, &thin, Some(&Finish { residual: copy, residual_stride: thin.cols, ..f }));
            }),
            f => multiply(call.isa, &thin, f.as_ref()),
        }
        if let Some(hook) = &e.hook {
            hook.call(&EpilogueBlock {
                batch: entry,
                row0: 0,
                row1: call.m,
                col0: cols.start,
                col1: cols.end,
                ptr: thin.c,
                row_stride: ldc,
            });
        }
    }
}

/// The sums, then the epilogue's arithmetic, on the calling thread.
///
/// # Safety
/// The pointers cover the sizes; C overlaps neither A nor B; the processor has `isa`.
pub(crate) unsafe fn multiply(isa: Isa, thin: &SkinnyProduct, finish: Option<&Finish>) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        match isa {
            Isa::Portable => run_isa::<Portable>(thin, finish),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => run_avx2(thin, finish),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => run_avx512(thin, finish),
            #[cfg(not(target_arch = "x86_64"))]
            _ => run_isa::<Portable>(thin, finish),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2(thin: &SkinnyProduct, finish: Option<&Finish>) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe { run_isa::<Avx2>(thin, finish) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn run_avx512(thin: &SkinnyProduct, finish: Option<&Finish>) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe { run_isa::<Avx512>(thin, finish) }
}

#[inline(always)]
unsafe fn run_isa<S: Simd>(thin: &SkinnyProduct, finish: Option<&Finish>) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; every sweep stays inside the
    // rows, every column block inside the columns.
    unsafe {
        match thin.along {
            Along::K(stride) => dots_all::<S>(thin, stride),
            Along::N(stride) => {
                for row in (0..thin.rows).step_by(ROWS_PER_SWEEP) {
                    let sweep = thin.sweep(row);
                    match sweep.rows {
                        1 => sums::<S, 1>(&sweep, stride),
                        2 => sums::<S, 2>(&sweep, stride),
                        3 => sums::<S, 3>(&sweep, stride),
                        _ => sums::<S, 4>(&sweep, stride),
                    }
                }
            }
        }
        let Some(f) = finish else { return };
        for i in 0..thin.rows {
            for j in (0..thin.cols).step_by(S::LANES) {
                let m = S::mask((thin.cols - j).min(S::LANES));
                let c = thin.c.add(i * thin.ldc + j);
                S::store_masked(c, m, finish_one::<S>(f, i, j, m, S::load_masked(c, m)));
            }
        }
    }
}

impl SkinnyProduct {
    /// The product of up to `ROWS_PER_SWEEP` rows from `row`.
    fn sweep(&self, row: usize) -> SkinnyProduct {
        SkinnyProduct {
            rows: (self.rows - row).min(ROWS_PER_SWEEP),
            a: self.a.wrapping_add(row * self.lda),
            c: self.c.wrapping_add(row * self.ldc),
            ..*self
        }
    }
}

/// B in rows of k: four columns at a time, each row of A against all four while they are in cache.
#[inline(always)]
unsafe fn dots_all<S: Simd>(thin: &SkinnyProduct, stride: isize) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        let mut j = 0;
        while j < thin.cols {
            let wide = j + 4 <= thin.cols;
            // Short columns far apart: the hardware follows no stream across pages.
            if thin.k <= SHORT && wide && thin.rows <= ROWS_PER_SWEEP {
                for c in 0..4 {
                    let next = thin.b.wrapping_offset((j + AHEAD + c) as isize * stride);
                    for k in (0..thin.k).step_by(16) {
                        S::prefetch(next.wrapping_add(k));
                    }
                }
            }
            for row in (0..thin.rows).step_by(ROWS_PER_SWEEP) {
                let sweep = thin.sweep(row);
                match (sweep.rows, wide) {
                    (1, true) => dots::<S, 1, 4>(&sweep, stride, j),
                    (2, true) => dots::<S, 2, 4>(&sweep, stride, j),
                    (3, true) => dots::<S, 3, 4>(&sweep, stride, j),
                    (_, true) => dots::<S, 4, 4>(&sweep, stride, j),
                    (1, false) => dots::<S, 1, 1>(&sweep, stride, j),
                    (2, false) => dots::<S, 2, 1>(&sweep, stride, j),
                    (3, false) => dots::<S, 3, 1>(&sweep, stride, j),
                    (_, false) => dots::<S, 4, 1>(&sweep, stride, j),
                }
            }
            j += if wide { 4 } else { 1 };
        }
    }
}

/// `R` rows of A times `C` columns from `j`.
#[inline(always)]
unsafe fn dots<S: Simd, const R: usize, const C: usize>(t: &SkinnyProduct, stride: isize, j: usize) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the last piece of k is masked.
    unsafe {
        let mut acc = [[S::splat(0.0); C]; R];
        let b: [*const f32; C] = std::array::from_fn(|c| t.b.wrapping_offset((j + c) as isize * stride));
        let mut k = 0;
        while k + S::LANES <= t.k {
            let bv: [S::V; C] = load_all::<S, C>(&b, k);
            for r in 0..R {
                let a = S::load(t.a.add(r * t.lda + k));
                for c in 0..C {
                    acc[r][c] = S::fma(a, bv[c], acc[r][c]);
                }
            }
            k += S::LANES;
        }
        if k < t.k {
            let m = S::mask(t.k - k);
            for r in 0..R {
                let a = S::load_masked(t.a.add(r * t.lda + k), m);
                for c in 0..C {
                    acc[r][c] = S::fma(a, S::load_masked(b[c].add(k), m), acc[r][c]);
                }
            }
        }
        for r in 0..R {
            for c in 0..C {
                *t.c.add(r * t.ldc + j + c) = S::sum(acc[r][c]);
            }
        }
    }
}

#[inline(always)]
unsafe fn load_all<S: Simd, const C: usize>(b: &[*const f32; C], k: usize) -> [S::V; C] {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        let mut v = [S::splat(0.0); C];
        for c in 0..C {
            v[c] = S::load(b[c].add(k));
        }
        v
    }
}

/// B in rows of n: eight rows of B at a time are scaled and added to `R` rows of C, which stay in the first-level cache.
#[inline(always)]
unsafe fn sums<S: Simd, const R: usize>(t: &SkinnyProduct, stride: isize) {
    const KB: usize = 8;
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the last vector of columns is
    // masked.
    unsafe {
        if t.k == 0 {
            for r in 0..R {
                t.c.add(r * t.ldc).write_bytes(0, t.cols);
            }
        }
        let full = t.cols / S::LANES * S::LANES;
        let tail = S::mask(t.cols - full);
        for k0 in (0..t.k).step_by(KB) {
            let kn = (t.k - k0).min(KB);
            let b = t.b.wrapping_offset(k0 as isize * stride);
            let a = t.a.add(k0);
            if t.cols <= SHORT {
                for k in 0..KB {
                    let next = b.wrapping_offset((AHEAD + k) as isize * stride);
                    for j in (0..t.cols).step_by(16) {
                        S::prefetch(next.wrapping_add(j));
                    }
                }
            }
            for j in (0..full).step_by(S::LANES) {
                let mut acc = [S::splat(0.0); R];
                for r in 0..R {
                    if k0 > 0 {
                        acc[r] = S::load(t.c.add(r * t.ldc + j));
                    }
                }
                for k in 0..kn {
                    let bv = S::load(b.wrapping_offset(k as isize * stride).add(j));
                    for r in 0..R {
                        acc[r] = S::fma(S::splat(*a.add(r * t.lda + k)), bv, acc[r]);
                    }
                }
                for r in 0..R {
                    S::store(t.c.add(r * t.ldc + j), acc[r]);
                }
            }
            if full < t.cols {
                for r in 0..R {
                    let c = t.c.add(r * t.ldc + full);
                    let mut acc = if k0 > 0 { S::load_masked(c, tail) } else { S::splat(0.0) };
                    for k in 0..kn {
                        let bv = S::load_masked(b.wrapping_offset(k as isize * stride).add(full), tail);
                        acc = S::fma(S::splat(*a.add(r * t.lda + k)), bv, acc);
                    }
                    S::store_masked(c, tail, acc);
                }
            }
        }
    }
}
