//! Blocks of products of narrow numbers and their distribution over threads: rows of A in the form that tiles read, tiles, and
//! the caller's hook on finished sums.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::dot::{self, BLOCK, GROUP, MAX_ROWS, PANEL, PIECE, TILE_ROWS, Tile};
use super::pack::join;
use super::{Narrow, NarrowWeights, Unit};
use crate::micro::driver::{odd_lines, part};
use crate::micro::error::same;
use crate::micro::transpose::{self, Source};
use crate::micro::{BatchDim, EpilogueBlock, Hook, MicroError, scratch, team};

/// Bytes of A, and bytes of sums, that a task should have at most: together with a block of B they stay in a 1 MiB cache.
const MOST: usize = 192 * 1024;
/// Multiply-adds of a task below which splitting further costs more than it balances.
const MIN_TASK: usize = 1 << 21;
/// Rows of a task of tiles at most: enough that reading B takes less time than multiplying it.
const TILED_ROWS: usize = 512;
/// Bytes of A that such a task should have at most, and of sums between two calls of the hook: they stay in a 2 MiB cache beside B.
const TILED_A: usize = 768 * 1024;
const TILED_C: usize = 256 * 1024;

/// Where rows of A are.
pub(super) trait Rows: Sync {
    /// The first byte of row 0 and the bytes between rows, where rows can be multiplied in place: k is contiguous, a multiple
    /// of four bytes, and unsigned.
    fn in_place(&self) -> Option<(*const u8, isize)>;
    /// Copies rows to `to`, `ld` bytes apart, in the form that tiles read.
    ///
    /// # Safety
    /// The rows exist; `to` has room for them.
    unsafe fn copy(&self, rows: Range<usize>, to: *mut u8, ld: usize);
}

/// `hook(sums)` with `sums[m, n] = (a[m, k] - zero) · b[k, n]` for each batch entry.
pub struct NarrowMatmul<'a> {
    /// Rows of A.
    pub m: usize,
    /// Element (0, 0) of A, of the numbers that `b` was packed for.
    pub a: *const u8,
    /// Elements between rows of A, and between columns.
    pub strides: [isize; 2],
    /// The packed B of all entries.
    pub b: &'a NarrowWeights,
    /// Batch dimensions of A, outermost first.
    pub batch: &'a [BatchDim],
    /// Runs on each block of sums: 32-bit integers, or floats for `bf16`.
    pub hook: Hook<'a>,
}

/// Multiplies.
///
/// # Safety
/// A must be readable from any thread, and the hook keep its promises.
///
/// # Errors
/// B is that of a convolution.
pub unsafe fn matmul(call: &NarrowMatmul<'_>) -> Result<(), MicroError> {
    same("groups of packed weights", 1, call.b.shape()[0])?;
    // SAFETY: the caller's promise.
    unsafe { matmul_group(call, 0) };
    Ok(())
}

/// Multiplies by one of several matrices.
///
/// # Safety
/// As [`matmul`]; there is such a matrix.
pub unsafe fn matmul_group(call: &NarrowMatmul<'_>, group: usize) {
    let size = call.b.numbers.size();
    let entries: usize = call.batch.iter().map(|d| d.size).product();
    let rows = |entry: usize| Strided {
        ptr: call.a.wrapping_offset(BatchDim::offsets(call.batch, entry).0 * size as isize),
        strides: call.strides,
        k: call.b.k(),
        numbers: call.b.numbers,
    };
    let all: Vec<Strided> = (0..entries).map(rows).collect();
    let job = |(batch, rows)| (rows as &dyn Rows, Job { group, batch, column: 0 });
    let jobs: Vec<(&dyn Rows, Job)> = all.iter().enumerate().map(job).collect();
    // SAFETY: the caller's promise.
    unsafe { run(&jobs, call.m, call.b, call.hook) };
}

/// Rows of a strided matrix.
pub(super) struct Strided {
    pub(super) ptr: *const u8,
    /// In elements.
    pub(super) strides: [isize; 2],
    pub(super) k: usize,
    pub(super) numbers: Narrow,
}

// SAFETY: the pointer is used under the promises of the unsafe entry points: good from any thread.
unsafe impl Sync for Strided {}

impl Rows for Strided {
    fn in_place(&self) -> Option<(*const u8, isize)> {
        let size = self.numbers.size();
        let whole = self.strides[1] == 1 && (self.k * size).is_multiple_of(4) && self.numbers != Narrow::I8;
        whole.then_some((self.ptr, self.strides[0] * size as isize))
    }
    unsafe fn copy(&self, rows: Range<usize>, to: *mut u8, ld: usize) {
        let (size, bias) = (self.numbers.size(), self.numbers.bias());
        if self.numbers == Narrow::Bf16 && self.strides[0] == 1 && self.strides[1] != 1 {
            // SAFETY: the caller's promise.
            return unsafe { self.copy_turned(rows, to, ld) };
        }
        let [row_stride, step] = self.strides.map(|s| s * size as isize);
        for (i, row) in rows.enumerate() {
            let from = self.ptr.wrapping_offset(row as isize * row_stride);
            let to = to.wrapping_add(i * ld);
            if self.strides[1] == 1 {
                // SAFETY: the row is readable by the caller's promise, and the copy has room for it.
                let copy = unsafe {
                    std::ptr::copy_nonoverlapping(from, to, self.k * size);
                    std::slice::from_raw_parts_mut(to, self.k * size)
                };
                if bias != 0 {
                    copy.iter_mut().for_each(|b| *b ^= bias);
                }
                continue;
            }
            for k in 0..self.k {
                // SAFETY: the element is readable by the caller's promise, and the copy has room for the row.
                unsafe {
                    let from = from.wrapping_offset(k as isize * step);
                    match size {
                        1 => to.add(k).write(from.read() ^ bias),
                        _ => to.add(2 * k).cast::<u16>().write_unaligned(from.cast::<u16>().read_unaligned()),
                    }
                }
            }
        }
    }
}

impl Strided {
    /// The same of numbers of two bytes whose rows are neighbours: pairs of k are joined to words, row by row, and words are turned.
    unsafe fn copy_turned(&self, rows: Range<usize>, to: *mut u8, ld: usize) {
        /// Words of a row at a time.
        const WORDS: usize = 64;
        let (count, words) = (rows.len(), self.k.div_ceil(2));
        scratch::with(count * WORDS, |joined| {
            for start in (0..words).step_by(WORDS) {
                let some = (words - start).min(WORDS);
                for word in 0..some {
                    let k = 2 * (start + word);
                    let line = |k: usize| {
                        let from = self.ptr.cast::<u16>().wrapping_add(rows.start);
                        // SAFETY: the rows' elements at k are readable, by the caller's promise.
                        unsafe {
                            std::slice::from_raw_parts(
                                from.wrapping_offset(k as isize * self.strides[1]),
                                count,
                            )
                        }
                    };
                    // SAFETY: the scratch has room for the words of all rows; all bits are numbers.
                    let to = unsafe {
                        std::slice::from_raw_parts_mut(joined.cast::<[u16; 2]>().add(word * count), count)
                    };
                    join(to, Some(line(k)), (k + 1 < self.k).then(|| line(k + 1)));
                }
                let words = Source { ptr: joined, row: 1, col: count as isize };
                // SAFETY: rows of the copy have room for whole words, `ld` bytes apart.
                unsafe { transpose::copy(words, count, some, to.cast::<f32>().add(start), ld / 4) };
            }
        });
    }
}

/// One product among those that share weights.
#[derive(Clone, Copy)]
pub(super) struct Job {
    /// The group of the weights.
    pub(super) group: usize,
    /// The hook's batch.
    pub(super) batch: usize,
    /// The hook's column of this product's first one.
    pub(super) column: usize,
}

/// Rows of A that tiles read, in memory.
pub(in crate::micro) struct Laid<'a> {
    pub(in crate::micro) first: *const u8,
    /// Bytes from row to row.
    pub(in crate::micro) stride: isize,
    /// Rows of a line.
    pub(in crate::micro) count: usize,
    /// Lines that are multiplied, one after another.
    pub(in crate::micro) lines: usize,
    /// Bytes from line to line.
    pub(in crate::micro) line_step: usize,
    /// Rows of sums from one call of the hook to the next, and how many of them are the product's.
    pub(in crate::micro) hook: [usize; 2],
    /// Where the pieces of a row are: so many side by side from each of these distances (in bytes) on.
    pub(in crate::micro) runs: (&'a [usize], usize),
    /// Bytes of a piece.
    pub(in crate::micro) piece: usize,
}

/// Rows of A that stay together.
pub(super) struct Units {
    /// How many such units there are.
    pub(super) count: usize,
    /// Rows of each.
    pub(super) rows: usize,
    /// Bytes that a unit reads.
    pub(super) bytes: usize,
    /// They are copied before they are multiplied.
    pub(super) copied: bool,
}

/// Parts of the rows, and of the blocks of panels, of each product.
pub(super) struct Grid {
    pub(super) rows: usize,
    pub(super) panels: usize,
}

impl Grid {
    fn choose(count: usize, m: usize, b: &NarrowWeights, threads: usize) -> Grid {
        let (bytes, blocks) = (b.steps() * 4, b.n().div_ceil(BLOCK * PANEL));
        let most = (MOST / bytes.max(1)).min(MOST / (4 * b.n().max(1))).clamp(4 * MAX_ROWS, 1024);
        let mut grid = Grid { rows: m.div_ceil(most), panels: 1 };
        let work = count * m * b.n() * b.k();
        while threads > 1 && count * grid.rows * grid.panels < 4 * threads {
            let part = work / (count * grid.rows * grid.panels).max(1);
            let must = count * grid.rows * grid.panels < threads;
            let (rows, columns) = (2 * grid.rows * MAX_ROWS <= m, 2 * grid.panels <= blocks);
            if (!must && part < 2 * MIN_TASK) || !(rows || columns) {
                break;
            }
            // Rows that are shared by several blocks of panels are copied for each.
            if rows { grid.rows *= 2 } else { grid.panels *= 2 }
        }
        grid.rows = b.cut.rows(grid.rows, m.div_ceil(MAX_ROWS));
        grid.panels = b.cut.columns(grid.panels, blocks);
        grid
    }

    /// The same for tiles, which multiply so fast that reading operands decides: the cut of which an estimate says that it takes the least time.
    pub(super) fn of_tiles(count: usize, units: &Units, b: &NarrowWeights, threads: usize) -> Grid {
        let blocks = b.n().div_ceil(BLOCK * PANEL);
        let pieces = b.steps().div_ceil(PIECE).max(1);
        let time = |rows: usize, panels: usize| {
            let (units_of_task, blocks) = (units.count.div_ceil(rows), blocks.div_ceil(panels));
            let tiles = (units_of_task * units.rows).div_ceil(TILE_ROWS);
            // In cycles: half of the rate of products, 8 bytes of B, and 4 or 16 of A.
            let product = tiles * blocks * BLOCK * pieces * 32;
            let read = blocks * BLOCK * pieces * (GROUP * PIECE / 8)
                + units_of_task * units.bytes / if units.copied { 4 } else { 16 };
            (product + read) * (count * rows * panels).div_ceil(threads)
        };
        // Where all of B stays in the cache, so few rows that sums of all columns do, too: the hook is handed whole rows.
        let small = pieces * b.n() * 4 * PIECE <= TILED_A;
        let rows = if small { (TILED_C / (4 * b.n())).clamp(4 * TILE_ROWS, TILED_ROWS) } else { TILED_ROWS };
        let most = (rows / units.rows).min(TILED_A / units.bytes.max(1)).max(1);
        let mut best = Grid { rows: units.count.div_ceil(most), panels: 1 };
        let (mut rows, mut least) = (best.rows, usize::MAX);
        loop {
            let mut panels = 1;
            while panels <= blocks && (panels == 1 || count * rows * panels <= 4 * threads) {
                if time(rows, panels) < least {
                    least = time(rows, panels);
                    best = Grid { rows, panels };
                }
                panels *= 2;
            }
            if rows == units.count || count * rows >= 4 * threads {
                break;
            }
            rows = (2 * rows).min(units.count);
        }
        let (rows, panels) = (b.cut.rows(best.rows, units.count), b.cut.columns(best.panels, blocks));
        Grid { rows, panels }
    }

    /// Tasks of each product.
    pub(super) fn tasks(&self) -> usize {
        self.rows * self.panels
    }

    /// Rows of a part.
    fn rows_of(&self, m: usize, unit: Unit, i: usize) -> Range<usize> {
        let tile = if unit.piece() == 1 { 1 } else { TILE_ROWS };
        let tiles = part(m.div_ceil(tile), self.rows, i);
        tiles.start * tile..(tiles.end * tile).min(m)
    }

    /// Panels of a part.
    pub(super) fn panels_of(&self, b: &NarrowWeights, i: usize) -> Range<usize> {
        let own = part(b.n().div_ceil(BLOCK * PANEL), self.panels, i);
        own.start * BLOCK..(own.end * BLOCK).min(b.n().div_ceil(PANEL))
    }
}

/// Runs products of `m` rows each.
///
/// # Safety
/// Rows are readable from any thread, and the hook keeps its promises.
pub(super) unsafe fn run(jobs: &[(&dyn Rows, Job)], m: usize, b: &NarrowWeights, hook: Hook<'_>) {
    if jobs.is_empty() || m == 0 || b.n() == 0 {
        return;
    }
    let work = jobs.len() * m * b.n() * b.k().max(1) / b.unit.speed();
    let threads = team::threads_for(work);
    let grid = match b.unit.piece() {
        1 => Grid::choose(jobs.len(), m, b, threads),
        _ => {
            let copied = in_place(jobs[0].0, b).is_none();
            let bytes = TILE_ROWS * 4 * b.steps();
            let units = Units { count: m.div_ceil(TILE_ROWS), rows: TILE_ROWS, bytes, copied };
            Grid::of_tiles(jobs.len(), &units, b, threads)
        }
    };
    let each = grid.tasks();
    team::par_for_work(jobs.len() * each, work, &|task| {
        let ((source, job), at) = (jobs[task / each], task % each);
        let (rows, panels) = (grid.rows_of(m, b.unit, at % grid.rows), grid.panels_of(b, at / grid.rows));
        // SAFETY: the caller's promise; blocks are disjoint.
        unsafe { Block { job, b, hook, rows, panels }.run(source) };
    });
}

/// Where rows of A are that the unit reads in place: those of whole pieces.
fn in_place(rows: &dyn Rows, b: &NarrowWeights) -> Option<(*const u8, isize)> {
    let whole = (b.k() * b.numbers.size()).is_multiple_of(4 * b.unit.piece());
    if whole { rows.in_place() } else { None }
}

/// One task: rows by panels of one product.
pub(super) struct Block<'a> {
    pub(super) job: Job,
    pub(super) b: &'a NarrowWeights,
    pub(super) hook: Hook<'a>,
    pub(super) rows: Range<usize>,
    pub(super) panels: Range<usize>,
}

impl Block<'_> {
    unsafe fn run(&self, source: &dyn Rows) {
        let count = self.rows.len();
        let laid = |first: *const u8, stride: isize| {
            let piece = 4 * self.b.unit.piece();
            let runs = (&[0][..], self.row_bytes() / piece);
            Laid { first, stride, count, lines: 1, line_step: 0, hook: [count; 2], runs, piece }
        };
        // SAFETY: the caller's promise; scratch has room for the rows.
        unsafe {
            if let Some((first, stride)) = in_place(source, self.b) {
                let first = first.wrapping_offset(self.rows.start as isize * stride);
                return self.finish(&laid(first, stride));
            }
            // An odd number of cache lines, so that rows do not evict each other.
            let ld = self.row_bytes().next_multiple_of(64) | 64;
            scratch::with(count * ld / 4, |copy| {
                source.copy(self.rows.clone(), copy.cast(), ld);
                self.clear_rest(copy.cast(), ld);
                self.finish(&laid(copy.cast(), ld as isize));
            });
        }
    }

    /// Bytes of a row of A in the form that tiles read.
    fn row_bytes(&self) -> usize {
        self.b.steps().next_multiple_of(self.b.unit.piece()) * 4
    }

    /// Multiplies some panels at a time, whose sums stay in the cache, and hands the sums to the hook.
    ///
    /// # Safety
    /// Rows are readable, and the hook keeps its promises.
    pub(super) unsafe fn finish(&self, a: &Laid<'_>) {
        let (room, most) = match self.b.unit.piece() {
            1 => (a.count, self.panels.len()),
            _ => {
                let rows = a.lines * a.count.next_multiple_of(TILE_ROWS);
                (rows, (TILED_C / (rows * GROUP * BLOCK)).max(1) * BLOCK)
            }
        };
        for start in self.panels.clone().step_by(most) {
            let panels = start..(start + most).min(self.panels.end);
            let ldc = panels.len() * PANEL;
            scratch::with(room * ldc, |sums| {
                // SAFETY: the caller's promise; scratch has room for the sums.
                unsafe {
                    self.multiply(&panels, a, sums.cast(), ldc);
                    self.call_hook(&panels, a.hook, sums, ldc);
                }
            });
        }
    }

    /// Hands the sums of panels to the hook, line by line.
    unsafe fn call_hook(
        &self,
        panels: &Range<usize>,
        [pitch, width]: [usize; 2],
        sums: *mut f32,
        ldc: usize,
    ) {
        for line in 0..self.rows.len() / width.max(1) {
            let row0 = self.rows.start + line * width;
            let block = EpilogueBlock {
                batch: self.job.batch,
                row0,
                row1: row0 + width,
                col0: self.job.column + panels.start * PANEL,
                col1: self.job.column + (panels.end * PANEL).min(self.b.n()),
                ptr: sums.wrapping_add(line * pitch * ldc),
                row_stride: ldc,
            };
            // SAFETY: the caller's promise; these sums are finished.
            unsafe { self.hook.call(&block) };
        }
    }

    /// Clears what the last group of each copied row has beyond the row: zeros of B do not cancel what may be NaN.
    unsafe fn clear_rest(&self, copy: *mut u8, ld: usize) {
        let (bytes, whole) = (self.b.k() * self.b.numbers.size(), self.row_bytes());
        for row in 0..if bytes < whole { self.rows.len() } else { 0 } {
            // SAFETY: rows are `ld` bytes apart, which is at least `whole`.
            unsafe { copy.add(row * ld + bytes).write_bytes(0, whole - bytes) };
        }
    }

    /// Panels times rows, which are made `f32` first where the unit reads these.
    unsafe fn multiply(&self, panels: &Range<usize>, laid: &Laid<'_>, c: *mut u32, ldc: usize) {
        let (a, stride, rows) = (laid.first, laid.stride, laid.count);
        // SAFETY: the caller's promise; the scratch has room for the rows.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if self.b.unit == Unit::Tiles {
                let (b, panels) = (self.b.of_group(self.job.group), panels.clone());
                return amx::Product { a: laid, b, panels, c, ldc, adds: false }.run();
            }
            if !self.b.unit.widens() {
                return self.tiles(panels, a, stride, c, ldc);
            }
            let numbers = 2 * self.b.steps();
            let ld = odd_lines(numbers);
            scratch::with(rows * ld, |wide| {
                for row in 0..rows {
                    let from = a.wrapping_offset(row as isize * stride);
                    #[cfg(target_arch = "x86_64")]
                    super::x86::widen(from.cast(), wide.wrapping_add(row * ld), numbers);
                    #[cfg(not(target_arch = "x86_64"))]
                    let _ = from;
                }
                self.tiles(panels, wide.cast(), (ld * size_of::<f32>()) as isize, c, ldc);
            });
        }
    }

    /// Panels outside, so that a panel stays in the first-level cache over all rows.
    unsafe fn tiles(&self, all: &Range<usize>, a: *const u8, stride: isize, c: *mut u32, ldc: usize) {
        let most = self.b.unit.panels();
        let mut at = all.start;
        while at < all.end {
            // Parts of panels begin and end with their blocks.
            let panels = most.min(all.end - at);
            let blocks = self.rows.len().div_ceil(self.b.unit.rows(panels));
            for i in 0..blocks {
                let rows = part(self.rows.len(), blocks, i);
                let mut tile = Tile {
                    rows: [a; MAX_ROWS],
                    groups: self.b.steps(),
                    b: self.b.panel(self.job.group, at),
                    step: self.b.step(at),
                    first: self.b.first(self.job.group, at),
                    c: c.wrapping_add(rows.start * ldc + (at - all.start) * PANEL),
                    ldc,
                };
                for (to, row) in tile.rows.iter_mut().zip(rows.clone()) {
                    *to = a.wrapping_offset(row as isize * stride);
                }
                // SAFETY: the tile lies inside of the block; packing has checked the unit.
                unsafe { code(self.b.unit, rows.len(), panels)(&tile) };
            }
            at += panels;
        }
    }
}

/// The code of a tile.
fn code(unit: Unit, rows: usize, panels: usize) -> unsafe fn(&Tile) {
    match unit {
        Unit::Portable => dot::portable,
        #[cfg(target_arch = "x86_64")]
        Unit::Avx2 => super::x86::avx2(rows, panels),
        #[cfg(target_arch = "x86_64")]
        Unit::Vnni => super::x86::vnni(rows, panels),
        #[cfg(target_arch = "x86_64")]
        Unit::Bf16 => super::x86::bf16(rows, panels),
        #[cfg(target_arch = "x86_64")]
        Unit::Widened => super::x86::widened(rows, panels),
        // Tiles are multiplied by `amx`.
        #[cfg(target_arch = "x86_64")]
        Unit::Tiles => dot::portable,
    }
}
