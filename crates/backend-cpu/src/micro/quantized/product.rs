//! Blocks of products with quantized weights and their distribution over threads.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::{BLOCK, MAX_ROWS, PANEL, QuantizedWeights, Tile, Unit, plain};
use crate::micro::driver::part;
use crate::micro::{BatchDim, EpilogueBlock, Hook, scratch, team};

/// Bytes of A, and bytes of sums, that a task should have at most: they stay in the second-level cache.
const MOST: usize = 256 * 1024;

/// The numbers of A.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floats {
    /// `f32`
    F32,
    /// `bf16`
    Bf16,
    /// `f16`
    F16,
}

impl Floats {
    /// Bytes of a number.
    const fn size(self) -> usize {
        if let Floats::F32 = self { 4 } else { 2 }
    }
}

/// `hook(sums)` with `sums[m, n] = a[m, k] · weights[k, n]` for each batch entry.
pub struct QuantizedMatmul<'a> {
    /// Rows of A.
    pub m: usize,
    /// Element (0, 0) of A.
    pub a: *const u8,
    /// Its numbers.
    pub floats: Floats,
    /// Elements between rows of A, and between columns.
    pub strides: [isize; 2],
    /// The weights of all entries.
    pub b: &'a QuantizedWeights,
    /// Batch dimensions of A, outermost first.
    pub batch: &'a [BatchDim],
    /// Runs on each block of sums.
    pub hook: Hook<'a>,
}

// SAFETY: the pointer is used under the promises of `matmul`: good from any thread.
unsafe impl Sync for QuantizedMatmul<'_> {}

/// Multiplies.
///
/// # Safety
/// A must be readable from any thread, and the hook keep its promises.
pub unsafe fn matmul(call: &QuantizedMatmul<'_>) {
    let (b, entries) = (call.b, call.batch.iter().map(|d| d.size).product::<usize>());
    if entries * call.m == 0 || b.n == 0 {
        return;
    }
    let work = entries * call.m * b.n * b.k.max(1) / 4;
    let threads = team::threads_for(work);
    let row = b.groups * (b.padded() + 1) * size_of::<f32>();
    let rows = call.m.div_ceil((MOST / row.max(1)).clamp(4 * MAX_ROWS, 1024));
    let blocks = b.panels().div_ceil(BLOCK);
    let cached = (call.m.div_ceil(rows) * b.n * size_of::<f32>()).div_ceil(MOST);
    let shared = if threads > 1 { (4 * threads).div_ceil(entries * rows) } else { 1 };
    let columns = cached.max(shared).clamp(1, blocks);
    team::par_for_work(entries * rows * columns, work, &|task| {
        let (entry, at) = (task / (rows * columns), task % (rows * columns));
        let own = part(blocks, columns, at / rows);
        let block = Block {
            call,
            entry,
            rows: part(call.m, rows, at % rows),
            panels: own.start * BLOCK..(own.end * BLOCK).min(b.panels()),
        };
        // SAFETY: the caller's promise; blocks are disjoint.
        unsafe { block.run() };
    });
}

/// One task: rows by panels of one entry.
struct Block<'a> {
    call: &'a QuantizedMatmul<'a>,
    entry: usize,
    rows: Range<usize>,
    panels: Range<usize>,
}

impl Block<'_> {
    unsafe fn run(&self) {
        let (b, count) = (self.call.b, self.rows.len());
        let (ldc, ld) = (self.panels.len() * PANEL, (b.groups * b.padded()).next_multiple_of(PANEL) | PANEL);
        scratch::with(count * ldc, |sums| {
            scratch::with(count * (ld + b.groups), |copy| {
                let groups = copy.wrapping_add(count * ld);
                for i in 0..count {
                    // SAFETY: the row exists; the copy has room for it and for the sums of its groups.
                    unsafe { self.copy(self.rows.start + i, copy.add(i * ld), groups.add(i * b.groups)) };
                }
                // SAFETY: the sums have room for the block.
                unsafe { self.tiles((copy, ld), groups, (sums, ldc)) };
            });
            let block = EpilogueBlock {
                batch: self.entry,
                row0: self.rows.start,
                row1: self.rows.end,
                col0: self.panels.start * PANEL,
                col1: (self.panels.end * PANEL).min(b.n),
                ptr: sums,
                row_stride: ldc,
            };
            // SAFETY: the block is this task's own.
            unsafe { self.call.hook.call(&block) };
        });
    }

    /// Converts one row, each group padded to whole steps with zeros, and adds up its groups.
    unsafe fn copy(&self, row: usize, to: *mut f32, sums: *mut f32) {
        let (b, [row_stride, stride]) = (self.call.b, self.call.strides);
        let (length, padded) = (b.length(), b.padded());
        let start = BatchDim::offsets(self.call.batch, self.entry).0 + row as isize * row_stride;
        for g in 0..b.groups {
            let first = start + (g * length) as isize * stride;
            // SAFETY: the group is readable by the caller's promise, and the copy has room for it.
            unsafe {
                let to = std::slice::from_raw_parts_mut(to.add(g * padded), padded);
                let (own, rest) = to.split_at_mut(length);
                rest.fill(0.0);
                self.floats(first, stride, own);
                if b.moved {
                    sums.add(g).write(sum(own));
                }
            }
        }
    }

    /// Numbers of A from an element on, as `f32`.
    unsafe fn floats(&self, first: isize, stride: isize, to: &mut [f32]) {
        let (a, size) = (self.call.a, self.call.floats.size() as isize);
        let from = a.wrapping_offset(first * size);
        // SAFETY: the elements are readable by the caller's promise.
        unsafe {
            match self.call.floats {
                Floats::F32 if stride == 1 => {
                    std::ptr::copy_nonoverlapping(from.cast::<f32>(), to.as_mut_ptr(), to.len());
                }
                Floats::Bf16 if stride == 1 => {
                    std::slice::from_raw_parts(from.cast::<bf16>(), to.len()).convert_to_f32_slice(to);
                }
                Floats::F16 if stride == 1 => {
                    std::slice::from_raw_parts(from.cast::<f16>(), to.len()).convert_to_f32_slice(to);
                }
                floats => {
                    for (i, to) in to.iter_mut().enumerate() {
                        let from = from.wrapping_offset(i as isize * stride * size);
                        *to = match floats {
                            Floats::F32 => from.cast::<f32>().read(),
                            Floats::Bf16 => from.cast::<bf16>().read().to_f32(),
                            Floats::F16 => from.cast::<f16>().read().to_f32(),
                        };
                    }
                }
            }
        }
    }

    /// Panels outside, so that they stay in the cache over all rows.
    unsafe fn tiles(&self, (a, ld): (*const f32, usize), groups: *const f32, (c, ldc): (*mut f32, usize)) {
        let b = self.call.b;
        let [most_rows, most_panels] = b.unit.tile();
        let parts = self.rows.len().div_ceil(most_rows);
        let mut at = self.panels.start;
        while at < self.panels.end {
            // A tile of several panels has all of its block.
            let panels = most_panels.min(self.panels.end - at);
            let (first, block) = b.block(at);
            let within = at % BLOCK;
            for i in 0..parts {
                let rows = part(self.rows.len(), parts, i);
                let mut tile = Tile {
                    rows: [a; MAX_ROWS],
                    sums: [groups; MAX_ROWS],
                    groups: b.groups,
                    steps: b.steps(),
                    bits: b.bits,
                    heads: first.wrapping_add(within * 4 * PANEL),
                    numbers: first,
                    block,
                    moved: b.moved,
                    lowest: b.lowest,
                    c: c.wrapping_add(rows.start * ldc + (at - self.panels.start) * PANEL),
                    ldc,
                };
                let heads = tile.turn() * (1 + usize::from(b.moved));
                tile.numbers = first.wrapping_add(heads + within * tile.width());
                for (n, row) in rows.clone().enumerate() {
                    (tile.rows[n], tile.sums[n]) =
                        (a.wrapping_add(row * ld), groups.wrapping_add(row * b.groups));
                }
                // SAFETY: the tile lies inside of the block; packing has checked the instruction set.
                unsafe {
                    match b.unit {
                        Unit::Portable => plain::portable(&tile),
                        #[cfg(target_arch = "x86_64")]
                        Unit::Avx2 => plain::avx2(&tile),
                        #[cfg(target_arch = "x86_64")]
                        Unit::Avx512 => super::x86::code(b.bits, rows.len(), panels)(&tile),
                    }
                }
            }
            at += panels;
        }
    }
}

/// The sum of a group, in sixteen parts.
fn sum(x: &[f32]) -> f32 {
    let mut parts = [0.0f32; PANEL];
    for chunk in x.chunks(PANEL) {
        parts.iter_mut().zip(chunk).for_each(|(part, x)| *part += x);
    }
    parts.iter().sum()
}
