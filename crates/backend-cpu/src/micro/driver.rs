//! Cache blocking and the distribution over threads of products with packed B: the rows and panels of a task, the order of
//! its tiles, and the calls of the hook. It knows nothing of convolutions beyond rows made of taps.

use std::ops::Range;

use super::epilogue::{COut, Epilogue, EpilogueBlock, Residual};
use super::grid::Grid;
use super::kernel::{Finish, MAX_MR, Target, Tile, panel_width, tile_fn, tile_rows};
use super::outer::{Outer, Run, outer};
use super::pack::pack_panel;
use super::transpose::{self, Source};
use super::{Cut, Isa, MicroError, scratch, team};

/// Values of k in one pass over a block: a panel slice of 32 columns is then 48 KiB and is read by every tile of the
/// block from the second-level cache at a small part of its bandwidth.
pub(super) const KC: usize = 384;
/// Values of B below which a slice of it stays in half of a 48 KiB first-level cache.
const SMALL_B: usize = 6 * 1024;
/// Values that a step of k takes in a tile of rows that lie side by side.
const SIDE: usize = MAX_MR.next_multiple_of(16);
/// Most values of A copied ahead for all tasks; more are copied block by block.
const MAX_COPY: usize = 4 << 20;

/// The location of the rows of A.
#[derive(Clone, Copy)]
pub(crate) enum Rows<'a> {
    /// Row `m` at `a + m * row_stride`, k at `col_stride`; one tap.
    Strided { row_stride: isize, col_stride: isize },
    /// Row `m` at `a + offsets[m]`; `valid[m]` has a bit for each tap (empty: all valid). k is contiguous.
    Pixels { offsets: &'a [isize], valid: &'a [u64] },
}

/// One product: `C[m, n] = epilogue(sum over t, k of A[m][taps[t] + k] * B[t * kc + k][n])`.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    pub(crate) isa: Isa,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) a: *const f32,
    pub(crate) rows: Rows<'a>,
    pub(crate) taps: &'a [isize],
    /// Row at which each tile begins, and `m`; empty for even tiles.
    pub(crate) cuts: &'a [usize],
    /// Values of k for each tap.
    pub(crate) kc: usize,
    /// `kc` zeros; only read if some tap is invalid.
    pub(crate) zero: *const f32,
    /// First panel; not read where there is a source.
    pub(crate) b: *const f32,
    /// B as it lies in memory, `[k, n]`, where nothing has packed it: each task packs what it multiplies, so that no thread reads
    /// what another one has written.
    pub(crate) source: Option<Source>,
    pub(crate) c: COut,
    pub(crate) epilogue: Epilogue<'a>,
    /// The batch index for the hook and the residual.
    pub(crate) batch: usize,
    /// First column of this product in the epilogue's columns (a group of a convolution).
    pub(crate) col0: usize,
    /// How it is cut into tasks beside the rule.
    pub(crate) cut: Cut,
}

// SAFETY: the pointers are used under the promises of the unsafe entry points: good from any thread.
unsafe impl Send for Product<'_> {}
// SAFETY: the pointers are used under the promises of the unsafe entry points: good from any thread.
unsafe impl Sync for Product<'_> {}

/// Runs `count` products of the same sizes, `make(i)` describing each.
///
/// # Safety
/// Every product's pointers must cover its sizes, and outputs must not overlap each other or an input.
pub(crate) unsafe fn run<'a>(
    count: usize,
    like: &Product<'_>,
    make: &(dyn Fn(usize) -> Product<'a> + Sync),
) -> Result<(), MicroError> {
    if like.c_is_scratch_without_hook() {
        return Err(MicroError::Unsupported(
            "COut::Scratch without a hook: the result would have no destination",
        ));
    }
    if count == 0 || like.m == 0 || like.n == 0 {
        return Ok(());
    }
    let work = count * like.m * like.n * like.depth();
    let grid = Grid::choose(count, like, team::threads_for(work));
    let run_isa = |make: &(dyn Fn(usize) -> Product<'a> + Sync)| {
        team::par_for_work(grid.tasks(), work, &|task| {
            let (product, rows, panels) = grid.task(task, like);
            // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; tasks are disjoint
            // blocks of C.
            unsafe { block(&make(product), rows, panels) };
        });
    };
    let ld = odd_lines(like.kc);
    let apart = matches!(like.copies(like.n), Copies::Apart(_));
    // Else each task copies the rows that it needs, which no other task copies or which are too many to keep.
    let kept = apart && grid.panel_blocks > 1 && count * like.m * ld <= MAX_COPY;
    if !kept || (0..count).any(|i| make(i).strides().is_none()) {
        run_isa(make);
        return Ok(());
    }
    scratch::with(count * like.m * ld, |buf| {
        let copy = Copied { buf, ld, m: like.m };
        let tiles = like.m.div_ceil(MAX_MR);
        team::par_for_work(count * tiles, count * like.m * like.kc, &|i| {
            let (product, tile) = (i / tiles, i % tiles);
            let rows = tile * MAX_MR..((tile + 1) * MAX_MR).min(like.m);
            // SAFETY: the rows exist in A and in the copy.
            unsafe {
                let p = make(product);
                let Some(strides) = p.strides() else { return };
                copy_rows(&p, strides, &rows, 0, like.kc, copy.row(product, rows.start), ld);
            };
        });
        run_isa(&|i| copy.product(make(i), i));
    });
    Ok(())
}

/// Rows of A of all products, copied for all tasks.
struct Copied {
    buf: *mut f32,
    ld: usize,
    m: usize,
}

// SAFETY: written in disjoint rows, then only read.
unsafe impl Sync for Copied {}

impl Copied {
    fn row(&self, product: usize, row: usize) -> *mut f32 {
        self.buf.wrapping_add((product * self.m + row) * self.ld)
    }

    fn product<'a>(&self, p: Product<'a>, i: usize) -> Product<'a> {
        let rows = Rows::Strided { row_stride: self.ld as isize, col_stride: 1 };
        Product { a: self.row(i, 0), rows, ..p }
    }
}

/// At least `len` values in an odd number of cache lines: as a row stride it spreads the rows of a tile over all sets of
/// the first-level cache.
pub(crate) fn odd_lines(len: usize) -> usize {
    (len.div_ceil(16) | 1) * 16
}

impl Product<'_> {
    fn c_is_scratch_without_hook(&self) -> bool {
        matches!(self.c, COut::Scratch) && self.epilogue.hook.is_none()
    }

    pub(super) fn panels(&self) -> usize {
        self.n.div_ceil(panel_width(self.isa))
    }

    /// Tiles of rows.
    pub(super) fn tiles(&self) -> usize {
        if self.cuts.is_empty() { self.m.div_ceil(tile_rows(self.isa)) } else { self.cuts.len() - 1 }
    }

    /// The rows of some tiles.
    pub(super) fn rows_of(&self, tiles: Range<usize>) -> Range<usize> {
        let starts = self.starts();
        starts.of(tiles.start)..starts.of(tiles.end)
    }

    fn starts(&self) -> Starts<'_> {
        let tiles = self.tiles();
        Starts { cuts: self.cuts, rows: self.m / tiles, longer: self.m % tiles }
    }

    pub(super) fn depth(&self) -> usize {
        self.taps.len() * self.kc
    }
}

/// The first row of each tile.
struct Starts<'a> {
    cuts: &'a [usize],
    /// Without cuts: the rows of a tile, of which the first `longer` ones have one more.
    rows: usize,
    longer: usize,
}

impl Starts<'_> {
    #[inline]
    fn of(&self, tile: usize) -> usize {
        match self.cuts {
            [] => tile * self.rows + tile.min(self.longer),
            cuts => cuts[tile],
        }
    }

    /// The tile that begins at this row.
    fn tile(&self, row: usize) -> usize {
        let long = self.longer * (self.rows + 1);
        match self.cuts {
            [] if row <= long => row / (self.rows + 1),
            [] => self.longer + (row - long) / self.rows,
            cuts => cuts.partition_point(|c| *c < row),
        }
    }
}

/// Part `i` of `parts` nearly equal ranges of `0..len`.
pub(crate) fn part(len: usize, parts: usize, i: usize) -> Range<usize> {
    len * i / parts..len * (i + 1) / parts
}

/// One task: rows x panels of one product, all of k, then the hook.
unsafe fn block(p: &Product<'_>, rows: Range<usize>, panels: Range<usize>) {
    let nr = panel_width(p.isa);
    let cols = panels.start * nr..(panels.end * nr).min(p.n);
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        match p.c {
            COut::Memory { ptr, row_stride } => {
                let at = ptr.wrapping_add(rows.start * row_stride + cols.start);
                let Some(own) = p.in_place(&rows, &cols, at, row_stride) else {
                    return block_into(p, rows, cols, at, row_stride);
                };
                // Sums of the first passes would overwrite the residual before the last pass reads it.
                let ld = cols.len().next_multiple_of(16);
                scratch::with(rows.len() * ld, |copy| {
                    let src = Source { ptr: own, row: row_stride as isize, col: 1 };
                    transpose::copy(src, rows.len(), cols.len(), copy, ld);
                    let ptr = copy.wrapping_sub(rows.start * ld + p.col0 + cols.start);
                    let residual = Some(Residual { ptr, row_stride: ld, batch_stride: 0 });
                    let p = Product { epilogue: Epilogue { residual, ..p.epilogue }, ..*p };
                    block_into(&p, rows, cols, at, row_stride);
                });
            }
            COut::Scratch => {
                let ld = cols.len().next_multiple_of(16);
                scratch::with(rows.len() * ld, |at| block_into(p, rows, cols, at, ld));
            }
        }
    }
}

/// The passes over k of one task, into `c` (element `(rows.start, cols.start)`).
unsafe fn block_into(p: &Product<'_>, rows: Range<usize>, cols: Range<usize>, c: *mut f32, ldc: usize) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        match (p.copies(cols.len()), p.strides()) {
            (Copies::Apart(ld), Some(strides)) => scratch::with(rows.len() * ld, |copy| {
                p.passes(|pass, taps, k0, kc| {
                    copy_rows(p, strides, &rows, k0, kc, copy, ld);
                    let a = A::Apart(copy.cast_const(), ld as isize);
                    tiles(p, &rows, &cols, &Pass { a, taps, k0, kc, ..pass }, c, ldc);
                });
            }),
            (Copies::Side, Some(strides)) => {
                let len = p.tiles_of(&rows).len() * SIDE * p.kc.min(KC + KC / 4);
                scratch::with(len, |copy| {
                    p.passes(|pass, taps, k0, kc| {
                        copy_tiles(p, strides, &rows, k0, kc, copy);
                        let a = A::Side(copy.cast_const());
                        tiles(p, &rows, &cols, &Pass { a, taps, k0, kc, ..pass }, c, ldc);
                    });
                });
            }
            _ => p.passes(|pass, taps, k0, kc| {
                tiles(p, &rows, &cols, &Pass { taps, k0, kc, ..pass }, c, ldc);
            }),
        }
        if let Some(hook) = &p.epilogue.hook {
            hook.call(&EpilogueBlock {
                batch: p.batch,
                row0: rows.start,
                row1: rows.end,
                col0: p.col0 + cols.start,
                col1: p.col0 + cols.end,
                ptr: c,
                row_stride: ldc,
            });
        }
    }
}

/// A part of k: taps `taps`, values `k0 .. k0 + kc` of each.
#[derive(Clone)]
struct Pass {
    taps: Range<usize>,
    k0: usize,
    kc: usize,
    first: bool,
    last: bool,
    a: A,
}

/// The rows of A of a block in one pass.
#[derive(Clone, Copy)]
enum A {
    /// Those of the product.
    There,
    /// Copies (k0 first) and their stride.
    Apart(*const f32, isize),
    /// Copies tile by tile: for each k the rows side by side.
    Side(*const f32),
}

/// How rows of A are copied first.
enum Copies {
    No,
    /// Each by itself, with this stride.
    Apart(usize),
    /// Side by side, as they are in memory.
    Side,
}

impl Product<'_> {
    /// The residual of a block if it is the block itself and k takes several passes.
    fn in_place(
        &self,
        rows: &Range<usize>,
        cols: &Range<usize>,
        c: *mut f32,
        ldc: usize,
    ) -> Option<*const f32> {
        let r = self.epilogue.residual?;
        let at = self.batch * r.batch_stride + rows.start * r.row_stride + self.col0 + cols.start;
        let own = r.ptr.wrapping_add(at);
        let same = std::ptr::eq(own, c) && (r.row_stride == ldc || rows.len() == 1);
        (same && self.depth() > KC).then_some(own)
    }

    /// Calls `f(pass, taps, k0, kc)` for each part of k in order: several whole taps, or a piece of one.
    fn passes(&self, mut f: impl FnMut(Pass, Range<usize>, usize, usize)) {
        let taps = self.taps.len();
        let mut run_isa = |taps: Range<usize>, k0, kc, first, last| {
            f(Pass { taps: 0..0, k0, kc, first, last, a: A::There }, taps, k0, kc);
        };
        if self.depth() == 0 {
            return run_isa(0..0, 0, 0, true, true);
        }
        let pieces = self.kc.div_ceil(KC + KC / 4);
        let groups = if pieces > 1 { taps } else { self.depth().div_ceil(KC + KC / 4).min(taps) };
        for g in 0..groups {
            for piece in 0..pieces {
                let k = part(self.kc, pieces, piece);
                let last = g + 1 == groups && piece + 1 == pieces;
                run_isa(part(taps, groups, g), k.start, k.len(), g + piece == 0, last);
            }
        }
    }

    /// The strides of A along rows and k; `None` where rows lie at offsets of their own.
    fn strides(&self) -> Option<(isize, isize)> {
        match self.rows {
            Rows::Strided { row_stride, col_stride } => Some((row_stride, col_stride)),
            Rows::Pixels { .. } => None,
        }
    }

    /// The tiles of a block of rows, which begins and ends where tiles do.
    fn tiles_of(&self, rows: &Range<usize>) -> Range<usize> {
        let starts = self.starts();
        starts.tile(rows.start)..starts.tile(rows.end)
    }

    /// Whether rows of A must be copied first: where k is not contiguous, or where the row stride maps the rows of a tile to so few sets of
    /// the first-level cache (64 sets of 64 bytes, 12 ways) that they evict each other, unless each row is read once only.
    fn copies(&self, cols: usize) -> Copies {
        let Some((row_stride, col_stride)) = self.strides() else { return Copies::No };
        let aliases = row_stride % 1024 == 0 && self.m > 6 && cols > panel_width(self.isa);
        match (row_stride, col_stride) {
            (_, 1) if !aliases => Copies::No,
            (1, stride) if stride != 1 => Copies::Side,
            _ => Copies::Apart(odd_lines(self.kc.min(KC + KC / 4))),
        }
    }
}

/// Copies rows of A, which has these strides.
unsafe fn copy_rows(
    p: &Product<'_>,
    (row, col): (isize, isize),
    rows: &Range<usize>,
    k0: usize,
    kc: usize,
    dst: *mut f32,
    ld: usize,
) {
    let src = Source { ptr: p.a, row, col };
    // SAFETY: the rows exist; the copy is `rows * ld` long and `kc <= ld`.
    unsafe { transpose::copy(src.at(rows.start, k0), rows.len(), kc, dst, ld) };
}

/// Copies rows of A that are neighbours in memory, tile by tile.
unsafe fn copy_tiles(
    p: &Product<'_>,
    (row, col): (isize, isize),
    rows: &Range<usize>,
    k0: usize,
    kc: usize,
    dst: *mut f32,
) {
    // Steps of k are the rows of the copy.
    let src = Source { ptr: p.a, row: col, col: row };
    let (starts, tiles) = (p.starts(), p.tiles_of(rows));
    for tile in tiles.clone() {
        let (at, end) = (starts.of(tile), starts.of(tile + 1));
        let to = dst.wrapping_add((tile - tiles.start) * kc * SIDE);
        // SAFETY: the rows exist; the copy has `SIDE` values for each tile and step.
        unsafe { transpose::copy(src.at(k0, at), kc, end - at, to, SIDE) };
    }
}

/// The tiles of one pass: panel by panel, so that a panel's slice stays in the first-level cache over all rows, or row
/// by row where all panels do.
unsafe fn tiles(
    p: &Product<'_>,
    rows: &Range<usize>,
    cols: &Range<usize>,
    pass: &Pass,
    c: *mut f32,
    ldc: usize,
) {
    let nr = panel_width(p.isa);
    let padded = matches!(p.rows, Rows::Pixels { valid, .. } if !valid.is_empty());
    let (starts, own) = (p.starts(), p.tiles_of(rows));
    let mut tile = Tile {
        rows: [p.a; MAX_MR],
        valid: [0; MAX_MR],
        // An empty sum (K = 0) has no taps.
        taps: p.taps.as_ptr().wrapping_add(pass.taps.start),
        tap_count: pass.taps.len(),
        first_tap: pass.taps.start as u32,
        zero: p.zero,
        kc: pass.kc,
        b: p.b,
        to: Target { c, ldc, cols: nr, accumulate: !pass.first, finish: None },
    };
    let panels = cols.len().div_ceil(nr);
    // A slice of B that fills less than half the first-level cache stays there: then C is better written row by row.
    let rows_outside = pass.taps.len() * pass.kc * panels * nr <= SMALL_B;
    let (outer, inner) = if rows_outside { (own.len(), panels) } else { (panels, own.len()) };
    let kept = if rows_outside { panels } else { 1 };
    scratch::with(p.source.map_or(0, |_| kept * pass.kc * nr), |packed| {
        for o in 0..outer {
            for i in 0..inner {
                let (panel, row) = if rows_outside { (i, o) } else { (o, i) };
                let col = cols.start + panel * nr;
                let r = starts.of(own.start + row)..starts.of(own.start + row + 1);
                let local = r.start - rows.start;
                tile.to.cols = (cols.end - col).min(nr);
                let packed = packed.wrapping_add(panel % kept * pass.kc * nr);
                // SAFETY: the columns exist, and the scratch has a place for each panel that is kept.
                tile.b = unsafe { p.slice(pass, col, tile.to.cols, packed, row == 0) };
                tile.to.c = c.wrapping_add(local * ldc + (col - cols.start));
                tile.to.finish = if pass.last { p.finish(r.start, col) } else { None };
                // SAFETY: the tile lies inside the block; the kernel is for an instruction set that `PackedB`, the plan or the
                // call has checked.
                unsafe {
                    if let A::Side(a) = pass.a {
                        let a = a.wrapping_add(row * pass.kc * SIDE);
                        side_tile(p.isa, r.len(), a, &tile);
                        continue;
                    }
                    if i == 0 || !rows_outside {
                        p.point_rows(&mut tile, r.start, local, r.len(), pass);
                    }
                    tile_fn(p.isa, r.len(), tile.to.cols, padded)(&tile);
                }
            }
        }
    });
}

impl Product<'_> {
    /// A pass's slice of the panel that begins at a column. Where B is not packed it is what `packed` has, and what is put there now where
    /// it is `fresh`.
    unsafe fn slice(
        &self,
        pass: &Pass,
        col: usize,
        cols: usize,
        packed: *mut f32,
        fresh: bool,
    ) -> *const f32 {
        let nr = panel_width(self.isa);
        let Some(b) = self.source else {
            let first = (pass.taps.start * self.kc + pass.k0) * nr;
            return self.b.wrapping_add((col / nr) * self.depth() * nr + first);
        };
        if fresh {
            // SAFETY: the caller's promise.
            unsafe { pack_panel(b.at(pass.k0, col), pass.kc, cols, packed, nr) };
        }
        packed
    }
}

/// A tile whose rows of A lie side by side.
unsafe fn side_tile(isa: Isa, rows: usize, a: *const f32, tile: &Tile) {
    let runs = [Run { a: 0, b: 0, len: tile.kc }];
    // SAFETY: the caller's promise.
    unsafe { outer(isa, rows, &Outer { runs: &runs, a, width: SIDE, b: tile.b, to: tile.to }) }
}

impl Product<'_> {
    /// Points the tile at rows `row .. row + len` of A; `local` is the position of the first one in the block.
    #[inline]
    fn point_rows(&self, tile: &mut Tile, row: usize, local: usize, len: usize, pass: &Pass) {
        match (pass.a, self.rows) {
            (A::Side(_), _) => {}
            (A::Apart(copy, ld), _) => {
                for i in 0..len {
                    tile.rows[i] = copy.wrapping_offset((local + i) as isize * ld);
                }
            }
            (A::There, Rows::Strided { row_stride, .. }) => {
                let a = self.a.wrapping_add(pass.k0);
                for i in 0..len {
                    tile.rows[i] = a.wrapping_offset((row + i) as isize * row_stride);
                }
            }
            (A::There, Rows::Pixels { offsets, valid }) => {
                let a = self.a.wrapping_add(pass.k0);
                for (to, offset) in tile.rows.iter_mut().zip(&offsets[row..row + len]) {
                    *to = a.wrapping_offset(*offset);
                }
                if !valid.is_empty() {
                    tile.valid[..len].copy_from_slice(&valid[row..row + len]);
                }
            }
        }
    }

    /// The epilogue at row `row`, column `col` of this product.
    #[inline]
    pub(crate) fn finish(&self, row: usize, col: usize) -> Option<Finish> {
        let e = &self.epilogue;
        if !e.in_registers() {
            return None;
        }
        let col = self.col0 + col;
        let at = |s: Option<&[f32]>| s.map_or(std::ptr::null(), |s| s[col..].as_ptr());
        let residual = e.residual.map_or(std::ptr::null(), |r| {
            r.ptr.wrapping_add(self.batch * r.batch_stride + row * r.row_stride + col)
        });
        Some(Finish {
            scale: at(e.scale),
            shift: at(e.shift),
            residual,
            residual_stride: e.residual.map_or(0, |r| r.row_stride),
            clamp: e.activation.bounds(),
        })
    }
}

/// A product on the calling thread with all of k in one pass: `c (+)= a[m, k] * b[k, n]`.
pub(crate) struct Small {
    pub(crate) isa: Isa,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) a: *const f32,
    pub(crate) lda: usize,
    /// First panel; panels are `panel` values apart.
    pub(crate) b: *const f32,
    pub(crate) panel: usize,
    pub(crate) c: *mut f32,
    pub(crate) ldc: usize,
    pub(crate) accumulate: bool,
}

/// Runs it.
///
/// # Safety
/// The pointers cover the sizes; C overlaps neither A nor B; the processor has the instruction set.
pub(crate) unsafe fn small(p: &Small) {
    let (nr, count) = (panel_width(p.isa), p.m.div_ceil(tile_rows(p.isa)));
    let mut tile = Tile {
        rows: [p.a; MAX_MR],
        valid: [0; MAX_MR],
        taps: &0,
        tap_count: 1,
        first_tap: 0,
        zero: p.a,
        kc: p.k,
        b: p.b,
        to: Target { c: p.c, ldc: p.ldc, cols: nr, accumulate: p.accumulate, finish: None },
    };
    for col in (0..p.n).step_by(nr) {
        tile.b = p.b.wrapping_add(col / nr * p.panel);
        tile.to.cols = (p.n - col).min(nr);
        for i in 0..count {
            let r = part(p.m, count, i);
            for j in 0..r.len() {
                tile.rows[j] = p.a.wrapping_add((r.start + j) * p.lda);
            }
            tile.to.c = p.c.wrapping_add(r.start * p.ldc + col);
            // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
            unsafe { tile_fn(p.isa, r.len(), tile.to.cols, false)(&tile) };
        }
    }
}
