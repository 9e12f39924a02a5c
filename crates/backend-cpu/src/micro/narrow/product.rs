//! Blocks of products of narrow numbers and their distribution over threads: rows of A in the form that tiles read, tiles, and
//! the caller's hook on finished sums.

use std::ops::Range;

use super::dot::{self, BLOCK, MAX_ROWS, PANEL, Tile};
use super::{Narrow, NarrowWeights, Unit};
use crate::micro::driver::{odd_lines, part};
use crate::micro::error::same;
use crate::micro::{BatchDim, EpilogueBlock, Hook, MicroError, scratch, team};

/// Bytes of A, and bytes of sums, that a task should have at most: together with a block of B they stay in a 1 MiB cache.
const MOST: usize = 192 * 1024;
/// Multiply-adds of a task below which splitting further costs more than it balances.
const MIN_TASK: usize = 1 << 21;

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
    let size = call.b.numbers.size();
    let entries: usize = call.batch.iter().map(|d| d.size).product();
    let rows = |entry: usize| Strided {
        ptr: call.a.wrapping_offset(BatchDim::offsets(call.batch, entry).0 * size as isize),
        strides: call.strides,
        k: call.b.k(),
        numbers: call.b.numbers,
    };
    let all: Vec<Strided> = (0..entries).map(rows).collect();
    let jobs: Vec<Job<'_>> =
        all.iter().enumerate().map(|(batch, rows)| Job { rows, group: 0, batch, column: 0 }).collect();
    // SAFETY: the caller's promise.
    unsafe { run(&jobs, call.m, call.b, call.hook) };
    Ok(())
}

/// Rows of a strided matrix.
struct Strided {
    ptr: *const u8,
    /// In elements.
    strides: [isize; 2],
    k: usize,
    numbers: Narrow,
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

/// One product among those that share weights.
pub(super) struct Job<'a> {
    pub(super) rows: &'a dyn Rows,
    /// The group of the weights.
    pub(super) group: usize,
    /// The hook's batch.
    pub(super) batch: usize,
    /// The hook's column of this product's first one.
    pub(super) column: usize,
}

/// Parts of the rows, and of the blocks of panels, of each product.
struct Grid {
    rows: usize,
    panels: usize,
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
        grid
    }
}

/// Runs products of `m` rows each.
///
/// # Safety
/// Rows are readable from any thread, and the hook keeps its promises.
pub(super) unsafe fn run(jobs: &[Job<'_>], m: usize, b: &NarrowWeights, hook: Hook<'_>) {
    if jobs.is_empty() || m == 0 || b.n() == 0 {
        return;
    }
    let work = jobs.len() * m * b.n() * b.k().max(1) / 4;
    let grid = Grid::choose(jobs.len(), m, b, team::threads_for(work));
    let (panels, blocks) = (b.n().div_ceil(PANEL), b.n().div_ceil(BLOCK * PANEL));
    let each = grid.rows * grid.panels;
    team::par_for_work(jobs.len() * each, work, &|task| {
        let (job, at) = (&jobs[task / each], task % each);
        let own = part(blocks, grid.panels, at / grid.rows);
        let block = Block {
            job,
            b,
            hook,
            rows: part(m, grid.rows, at % grid.rows),
            panels: own.start * BLOCK..(own.end * BLOCK).min(panels),
        };
        // SAFETY: the caller's promise; blocks are disjoint.
        unsafe { block.run() };
    });
}

/// One task: rows by panels of one product.
struct Block<'a> {
    job: &'a Job<'a>,
    b: &'a NarrowWeights,
    hook: Hook<'a>,
    rows: Range<usize>,
    panels: Range<usize>,
}

impl Block<'_> {
    unsafe fn run(&self) {
        let count = self.rows.len();
        let ldc = self.panels.len() * PANEL;
        scratch::with(count * ldc, |sums| {
            // SAFETY: the caller's promise; scratch has room for the rows and the sums.
            unsafe {
                match self.job.rows.in_place() {
                    Some((first, stride)) => {
                        let first = first.wrapping_offset(self.rows.start as isize * stride);
                        self.multiply(first, stride, sums.cast(), ldc);
                    }
                    None => {
                        // An odd number of cache lines, so that rows do not evict each other.
                        let ld = (self.b.steps() * 4).next_multiple_of(64) | 64;
                        scratch::with(count * ld / 4, |copy| {
                            self.job.rows.copy(self.rows.clone(), copy.cast(), ld);
                            self.clear_rest(copy.cast(), ld);
                            self.multiply(copy.cast(), ld as isize, sums.cast(), ldc);
                        });
                    }
                }
                let (col0, n) = (self.panels.start * PANEL, self.b.n());
                self.hook.call(&EpilogueBlock {
                    batch: self.job.batch,
                    row0: self.rows.start,
                    row1: self.rows.end,
                    col0: self.job.column + col0,
                    col1: self.job.column + (self.panels.end * PANEL).min(n),
                    ptr: sums,
                    row_stride: ldc,
                });
            }
        });
    }

    /// Clears what the last group of each copied row has beyond the row: zeros of B do not cancel what may be NaN.
    unsafe fn clear_rest(&self, copy: *mut u8, ld: usize) {
        let (bytes, whole) = (self.b.k() * self.b.numbers.size(), self.b.steps() * 4);
        for row in 0..if bytes < whole { self.rows.len() } else { 0 } {
            // SAFETY: rows are `ld` bytes apart, which is at least `whole`.
            unsafe { copy.add(row * ld + bytes).write_bytes(0, whole - bytes) };
        }
    }

    /// All tiles of rows that are `stride` bytes apart; they are made `f32` first where the unit reads these.
    unsafe fn multiply(&self, a: *const u8, stride: isize, c: *mut u32, ldc: usize) {
        // SAFETY: the caller's promise; the scratch has room for the rows.
        unsafe {
            if !self.b.unit.widens() {
                return self.tiles(a, stride, c, ldc);
            }
            let numbers = 2 * self.b.steps();
            let ld = odd_lines(numbers);
            scratch::with(self.rows.len() * ld, |wide| {
                for row in 0..self.rows.len() {
                    let from = a.wrapping_offset(row as isize * stride);
                    #[cfg(target_arch = "x86_64")]
                    super::x86::widen(from.cast(), wide.wrapping_add(row * ld), numbers);
                    #[cfg(not(target_arch = "x86_64"))]
                    let _ = from;
                }
                self.tiles(wide.cast(), (ld * size_of::<f32>()) as isize, c, ldc);
            });
        }
    }

    /// Panels outside, so that a panel stays in the first-level cache over all rows.
    unsafe fn tiles(&self, a: *const u8, stride: isize, c: *mut u32, ldc: usize) {
        let most = self.b.unit.panels();
        let mut at = self.panels.start;
        while at < self.panels.end {
            // Parts of panels begin and end with their blocks.
            let panels = most.min(self.panels.end - at);
            let blocks = self.rows.len().div_ceil(self.b.unit.rows(panels));
            for i in 0..blocks {
                let rows = part(self.rows.len(), blocks, i);
                let mut tile = Tile {
                    rows: [a; MAX_ROWS],
                    groups: self.b.steps(),
                    b: self.b.panel(self.job.group, at),
                    step: self.b.step(at),
                    first: self.b.first(self.job.group, at),
                    c: c.wrapping_add(rows.start * ldc + (at - self.panels.start) * PANEL),
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
    }
}
