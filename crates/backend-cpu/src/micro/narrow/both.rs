//! Products of `bf16` whose operands both change from call to call (training, products of two activations), by tiles or by `vdpbf16ps` where it has the
//! rate of `f32`'s multiplications: B is packed in each call, by all threads, and the result is stored in `f32`. Also the packing of pairs,
//! which attention has in common.

use std::ops::Range;

use half::bf16;

use super::dot::{BLOCK, GROUP, PANEL, PIECE};
use super::pack::{Form, Panels, join};
use super::product::{Job, Rows, Strided, run};
use super::{Narrow, NarrowWeights, Unit};
use crate::micro::pack::pack_panel;
use crate::micro::scratch::AlignedBuf;
use crate::micro::transpose::Source;
use crate::micro::{BatchDim, EpilogueBlock, Hook, Isa, scratch, team};

/// Most bytes of packed B at once (unless one block of columns has more).
const PACKED: usize = 8 << 20;
/// Columns of a block of panels.
const WIDE: usize = BLOCK * PANEL;

/// `c[.., m, n] = a[.., m, k] · b[.., k, n]`.
pub struct Bf16Product<'a> {
    /// Rows of A.
    pub m: usize,
    /// Columns of B.
    pub n: usize,
    /// Columns of A.
    pub k: usize,
    /// Element (0, 0) of A, and the elements between rows and between columns.
    pub a: (*const bf16, [isize; 2]),
    /// The same of B.
    pub b: (*const bf16, [isize; 2]),
    /// The first element of the result, whose rows are dense.
    pub c: *mut f32,
    /// Batch dimensions, outermost first.
    pub batch: &'a [BatchDim],
}

// SAFETY: pointers are used under the promises of `Bf16Product::run`: good from any thread.
unsafe impl Sync for Bf16Product<'_> {}

/// A matrix B whose panels are packed.
#[derive(Clone, Copy)]
pub(in crate::micro) struct Pairs {
    /// Element (0, 0).
    pub(in crate::micro) ptr: *const bf16,
    /// Elements between rows, and between columns; one of them is 1.
    pub(in crate::micro) strides: [isize; 2],
    pub(in crate::micro) k: usize,
    pub(in crate::micro) n: usize,
}

impl Pairs {
    /// Whether pairs of k are words of memory, or columns neighbours.
    pub(in crate::micro) fn fit(&self) -> bool {
        let [row, column] = self.strides;
        column == 1
            || row == 1 && column % 2 == 0 && self.k.is_multiple_of(2) && self.ptr.addr().is_multiple_of(4)
    }

    /// Packs a block of panels, which begins at a multiple of its columns.
    ///
    /// # Safety
    /// [`Pairs::fit`]; elements are readable, and the panels have memory of their own.
    pub(in crate::micro) unsafe fn pack(&self, panels: &Panels, column: usize) {
        let columns = (self.n - column).min(WIDE);
        let width = columns.next_multiple_of(PANEL);
        let to = panels.panel(column / PANEL).cast_mut();
        // SAFETY: the caller's promise; a block has `stored` groups of `width` words.
        unsafe {
            if self.strides[1] == 1 {
                return self.neighbours(column..column + columns, to.cast(), width, panels.stored);
            }
            // A column is a line of words.
            let from = self.ptr.wrapping_offset(column as isize * self.strides[1]).cast::<f32>();
            let words = Source { ptr: from, row: 1, col: self.strides[1] / 2 };
            let groups = self.k / 2;
            let to = to.cast::<f32>();
            pack_panel(words, groups, columns, to, width);
            to.add(groups * width).write_bytes(0, (panels.stored - groups) * width);
        }
    }

    /// Pairs of rows, element by element.
    unsafe fn neighbours(&self, columns: Range<usize>, to: *mut [bf16; 2], width: usize, stored: usize) {
        let count = columns.len();
        let row = |k: usize| {
            let from = self.ptr.wrapping_offset(k as isize * self.strides[0]).wrapping_add(columns.start);
            // SAFETY: the row exists, by the caller's promise.
            unsafe { std::slice::from_raw_parts(from, count) }
        };
        for group in 0..stored {
            // SAFETY: the group has room for a block of panels; all bits are numbers.
            let to = unsafe { std::slice::from_raw_parts_mut(to.add(group * width), width) };
            let (to, rest) = to.split_at_mut(count);
            rest.fill([bf16::ZERO; 2]);
            let there = |k: usize| (k < self.k).then(|| row(k));
            join(to, there(2 * group), there(2 * group + 1));
        }
    }
}

impl Bf16Product<'_> {
    /// Multiplies; false where it does not: other processors, operands of which neither dimension is contiguous.
    ///
    /// # Safety
    /// Operands must be readable and the result writable at their sizes and strides, from any thread.
    pub unsafe fn run(&self) -> bool {
        let unit =
            Unit::of(Narrow::Bf16, Isa::best()).filter(|unit| matches!(unit, Unit::Tiles | Unit::Bf16));
        // SAFETY: the caller's promise.
        unit.is_some_and(|unit| unsafe { self.run_by(unit) })
    }

    /// The same by instructions that the processor has; in tests, those of tiles may be computed otherwise.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    pub(in crate::micro) unsafe fn run_by(&self, unit: Unit) -> bool {
        let entries: usize = self.batch.iter().map(|d| d.size).product();
        let even = self.b.1[1] == 1 || self.batch.iter().all(|d| d.b_stride % 2 == 0);
        let fits = even && self.columns_of(0).fit() && self.a.1.contains(&1);
        if !fits {
            return false;
        }
        if entries * self.m * self.n == 0 {
            return true;
        }
        // Entries that have the same B are multiplied with one packed matrix.
        let shared = self.batch.iter().all(|d| d.size == 1 || d.b_stride == 0);
        let bytes = self.k.div_ceil(2).next_multiple_of(PIECE).max(PIECE) * GROUP / PANEL;
        let columns = (PACKED / bytes / WIDE).max(1) * WIDE;
        let matrices = if shared { 1 } else { entries };
        let each = (PACKED / (bytes * self.n.next_multiple_of(PANEL))).clamp(1, matrices);
        for first in (0..matrices).step_by(each) {
            let own = first..(first + each).min(matrices);
            for column in (0..self.n).step_by(columns) {
                let columns = column..(column + columns).min(self.n);
                let entries = if shared { 0..entries } else { own.clone() };
                // SAFETY: the caller's promise.
                unsafe { self.part(unit, entries, own.clone(), columns) };
            }
        }
        true
    }

    /// B of an entry.
    fn columns_of(&self, entry: usize) -> Pairs {
        let ptr = self.b.0.wrapping_offset(BatchDim::offsets(self.batch, entry).1);
        Pairs { ptr, strides: self.b.1, k: self.k, n: self.n }
    }

    /// Some entries by some columns, with the matrices B of `packed`.
    unsafe fn part(&self, unit: Unit, entries: Range<usize>, packed: Range<usize>, columns: Range<usize>) {
        let sizes = [packed.len(), self.k, columns.len()];
        scratch::with(NarrowWeights::words_of(sizes), |buf| {
            // SAFETY: the memory is ours for as long as the weights.
            let b = unsafe {
                let buf = AlignedBuf::lent(buf, NarrowWeights::words_of(sizes));
                NarrowWeights::in_buffer((Narrow::Bf16, unit, Form::Panels), sizes, buf)
            };
            let blocks = columns.len().div_ceil(WIDE);
            team::par_for_work(packed.len() * blocks, packed.len() * self.k * columns.len(), &|i| {
                let (group, block) = (i / blocks, i % blocks);
                let all = self.columns_of(packed.start + group);
                let ptr = all.ptr.wrapping_offset(columns.start as isize * self.b.1[1]);
                // SAFETY: the caller's promise; blocks of panels are disjoint.
                unsafe { Pairs { ptr, n: columns.len(), ..all }.pack(&b.of_group(group), block * WIDE) };
            });
            let rows: Vec<Strided> = entries
                .clone()
                .map(|entry| {
                    let ptr = self.a.0.wrapping_offset(BatchDim::offsets(self.batch, entry).0).cast();
                    Strided { ptr, strides: self.a.1, k: self.k, numbers: Narrow::Bf16 }
                })
                .collect();
            let jobs: Vec<(&dyn Rows, Job)> = rows
                .iter()
                .enumerate()
                .map(|(i, rows)| {
                    let group = if packed.len() == 1 { 0 } else { i };
                    (rows as &dyn Rows, Job { group, batch: entries.start + i, column: columns.start })
                })
                .collect();
            let store = |block: &EpilogueBlock| self.store(block);
            // SAFETY: the caller's promise; blocks are disjoint in C.
            unsafe { run(&jobs, self.m, &b, Hook::Closure(&store)) };
        });
    }

    /// Copies finished sums to the result.
    fn store(&self, block: &EpilogueBlock) {
        let to = self.c.wrapping_offset(BatchDim::offsets(self.batch, block.batch).2);
        let count = block.col1 - block.col0;
        for row in block.row0..block.row1 {
            let from = block.ptr.wrapping_add((row - block.row0) * block.row_stride);
            let to = to.wrapping_add(row * self.n + block.col0);
            // SAFETY: the block has these sums, and the result these places, by the promise of `run`.
            unsafe { std::ptr::copy_nonoverlapping(from, to, count) };
        }
    }
}
