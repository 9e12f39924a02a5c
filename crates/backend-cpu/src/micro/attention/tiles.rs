//! Attention of `bf16` by tiles (AMX), with scores, sums of weights and sums of the result in `f32`. K and V are packed as the panels of narrow
//! products; weights are rounded to `bf16` before they are multiplied with V, as PyTorch's kernels do; those that are dropped
//! are 0 by then, and the factor on the others is applied to the result in `f32`.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;
use half::slice::HalfFloatSliceExt;

use super::block::Work;
use super::{Attention, KEYS, check_heads, softmax};
use crate::micro::driver::{odd_lines, part};
use crate::micro::narrow::{
    BLOCK, GROUP, Laid, Narrow, PANEL, PIECE, Pairs, Panels, TILE_ROWS, Tiles, has_tiles,
};
use crate::micro::{MicroError, scratch, team};

/// Rows of tiles in a block of rows.
const TILES: usize = 4;
/// Most bytes of packed K and V at once (unless one head has more).
const PACKED: usize = 2 << 20;
/// Elements of a piece of a row.
const ELEMENTS: usize = 2 * PIECE;

/// Computes attention by tiles; false where it does not: other processors, numbers that are not neighbours in pairs.
///
/// # Safety
/// As [`super::attention`].
///
/// # Errors
/// As for [`super::attention`].
pub unsafe fn attention_bf16(call: &Attention<bf16>) -> Result<bool, MicroError> {
    call.isa.require()?;
    check_heads(call.q_heads, call.kv_heads)?;
    // Tests compute what the instructions would on any processor.
    let ready = cfg!(test) || has_tiles();
    if !ready || !call.in_pairs() {
        return Ok(false);
    }
    // SAFETY: the caller's promise.
    unsafe { call.by_tiles() };
    Ok(true)
}

/// The memory of one block of keys of one head: K's panels, then V's.
struct Shape {
    /// Groups of four bytes that a panel of K, and one of V, has memory for.
    k_groups: usize,
    v_groups: usize,
    v_panels: usize,
    /// Bytes of K's panels, and of all.
    k_bytes: usize,
    bytes: usize,
}

impl Attention<bf16> {
    /// Whether pairs of a row of K are words of memory, and rows of all operands are contiguous.
    fn in_pairs(&self) -> bool {
        let rows = [&self.q_strides, &self.k_strides, &self.v_strides].into_iter().all(|s| s[3] == 1);
        let strides = [1, self.k_strides[2]];
        // Where keys are neighbours in memory, rows of one element, pairs are no words.
        let words = strides[1] != 1 && Pairs { ptr: self.k, strides, k: self.head_dim, n: self.kv_len }.fit();
        let even = self.k_strides[..2].iter().all(|s| s % 2 == 0);
        rows && words && even && self.head_dim > 0 && self.v_dim > 0 && self.kv_len > 0
    }

    fn shape(&self) -> Shape {
        let keys = self.kv_len.min(KEYS);
        let k_groups = (self.head_dim / 2).next_multiple_of(PIECE);
        let v_groups = keys.div_ceil(2).next_multiple_of(PIECE);
        let v_panels = self.v_dim.div_ceil(PANEL);
        let k_bytes = keys.div_ceil(PANEL) * k_groups * GROUP;
        Shape { k_groups, v_groups, v_panels, k_bytes, bytes: k_bytes + v_panels * v_groups * GROUP }
    }

    unsafe fn by_tiles(&self) {
        let heads = self.batch * self.kv_heads;
        let (blocks, bytes) = (self.key_blocks(), self.shape().bytes);
        let rows = self.group() * self.q_len;
        if heads == 0 || rows == 0 {
            return;
        }
        let chunk = (PACKED / (blocks * bytes)).clamp(1, heads);
        let tiles = rows.div_ceil(TILE_ROWS);
        let row_blocks = tiles.div_ceil(TILES);
        let words = bytes / size_of::<f32>();
        scratch::with(chunk * blocks * words, |buf| {
            let first = buf as usize;
            let at = |i: usize| (first as *mut u8).wrapping_add(i * bytes);
            for head0 in (0..heads).step_by(chunk) {
                let heads = (heads - head0).min(chunk);
                team::par_for_work(heads * blocks, heads * blocks * words, &|i| {
                    // SAFETY: the caller's promise; every task has its own block of the scratch.
                    unsafe { self.pack(head0 + i / blocks, i % blocks, at(i)) };
                });
                team::par_for_work(heads * row_blocks, self.work() / 4, &|i| {
                    let (head, block) = (i / row_blocks, i % row_blocks);
                    let own = part(tiles, row_blocks, block);
                    let span = own.start * TILE_ROWS..(own.end * TILE_ROWS).min(rows);
                    // SAFETY: the caller's promise; row blocks are disjoint in O.
                    unsafe { self.rows(head0 + head, span, at(head * blocks)) };
                });
            }
        });
    }

    /// Packs one block of keys of a head.
    unsafe fn pack(&self, head: usize, block: usize, to: *mut u8) {
        let shape = self.shape();
        let (b, h) = ((head / self.kv_heads) as isize, (head % self.kv_heads) as isize);
        let keys = block * KEYS..((block + 1) * KEYS).min(self.kv_len);
        let from = |ptr: *const bf16, s: &[isize; 4]| {
            ptr.wrapping_offset(b * s[0] + h * s[1] + keys.start as isize * s[2])
        };
        let (k, v) = (from(self.k, &self.k_strides), from(self.v, &self.v_strides));
        let k = Pairs { ptr: k, strides: [1, self.k_strides[2]], k: self.head_dim, n: keys.len() };
        let v = Pairs { ptr: v, strides: [self.v_strides[2], 1], k: keys.len(), n: self.v_dim };
        // SAFETY: the caller's promise; panels lie inside of the block.
        unsafe {
            let columns = |n: usize| (0..n).step_by(BLOCK * PANEL);
            let panels_of_k = panels(to, keys.len(), self.head_dim, shape.k_groups);
            columns(keys.len()).for_each(|column| k.pack(&panels_of_k, column));
            let panels_of_v = panels(to.add(shape.k_bytes), self.v_dim, keys.len(), shape.v_groups);
            columns(self.v_dim).for_each(|column| v.pack(&panels_of_v, column));
        }
    }

    /// Rows of a head, whose packed blocks begin at `packed`.
    unsafe fn rows(&self, head: usize, rows: Range<usize>, packed: *const u8) {
        let keys = self.kv_len.min(KEYS);
        let room = rows.len().next_multiple_of(TILE_ROWS);
        // An odd number of cache lines in a row, so that rows do not evict each other.
        let words = |elements: usize| odd_lines(elements.next_multiple_of(ELEMENTS) / 2);
        let (q, weights) = (words(self.head_dim), words(keys));
        let (lds, ldo) = (odd_lines(keys), odd_lines(self.v_dim));
        scratch::with(room * (lds + ldo + weights + q + 2), |buf| {
            let at = |columns: usize| buf.wrapping_add(room * columns);
            let work = Work {
                call: self,
                b: (head / self.kv_heads) as isize,
                kv_head: (head % self.kv_heads) as isize,
                h: (head % self.kv_heads * self.group()) as isize,
                rows,
                q: at(lds + ldo + weights).cast(),
                ldq: 2 * q,
                s: at(0),
                lds,
                o: at(lds),
                ldo,
                max: at(lds + ldo + weights + q),
                sum: at(lds + ldo + weights + q + 1),
            };
            let weights = Matrix { first: at(lds + ldo).cast(), ld: 2 * weights, rows: room };
            // SAFETY: the caller's promise; the scratch is cut into the parts above.
            unsafe { work.by_tiles(packed, &weights) };
        });
    }
}

/// Rows of tiles in scratch memory.
struct Matrix {
    first: *mut bf16,
    /// Elements from row to row.
    ld: usize,
    rows: usize,
}

impl Matrix {
    fn laid<'a>(&self, runs: (&'a [usize], usize)) -> Laid<'a> {
        Laid {
            first: self.first.cast_const().cast(),
            stride: (size_of::<bf16>() * self.ld) as isize,
            count: self.rows,
            lines: 1,
            line_step: 0,
            hook: [self.rows; 2],
            runs,
            piece: 4 * PIECE,
        }
    }
}

/// Weights rounded to `bf16`.
fn round(from: &[f32], to: &mut [bf16]) {
    /// Subnormal numbers become 0.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn fast(from: &[f32], to: &mut [bf16]) {
        for (from, to) in from.chunks(16).zip(to.chunks_mut(16)) {
            let mask = u16::MAX >> (16 - from.len());
            // SAFETY: lanes in the mask are those of numbers that exist; both types are 256 bits of any contents.
            unsafe {
                let x = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, from.as_ptr()));
                let x = std::mem::transmute::<__m256bh, __m256i>(x);
                _mm512_mask_storeu_epi16(to.as_mut_ptr().cast(), u32::from(mask), _mm512_castsi256_si512(x));
            }
        }
    }
    if is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512bw") {
        // SAFETY: the processor has the instructions.
        return unsafe { fast(from, to) };
    }
    to.convert_from_f32_slice(from);
}

/// Panels of `bf16` in scratch memory.
fn panels(ptr: *const u8, columns: usize, k: usize, stored: usize) -> Panels {
    let (count, steps) = (columns.div_ceil(PANEL), k.div_ceil(2));
    Panels { numbers: Narrow::Bf16, ptr, first: std::ptr::null(), count, steps, stored }
}

impl Work<'_, bf16> {
    unsafe fn by_tiles(&self, packed: *const u8, weights: &Matrix) {
        let (call, shape) = (self.call, self.call.shape());
        // SAFETY: the caller's promise.
        unsafe {
            self.load(weights.rows);
            for i in 0..self.rows.len() {
                *self.max.add(i) = f32::NEG_INFINITY;
                *self.sum.add(i) = 0.0;
            }
            self.o.write_bytes(0, weights.rows * self.ldo);
            for block in 0..call.key_blocks() {
                let keys = block * KEYS..((block + 1) * KEYS).min(call.kv_len);
                let seen = self.seen(&keys);
                if seen > 0 {
                    self.tiled_block(
                        &keys,
                        seen,
                        (&shape, packed.wrapping_add(block * shape.bytes)),
                        weights,
                    );
                }
            }
            self.store();
        }
    }

    /// Copies queries, with zeros up to whole pieces and in rows that are not there.
    unsafe fn load(&self, room: usize) {
        let (call, s) = (self.call, &self.call.q_strides);
        for row in 0..room {
            let to = self.q.wrapping_add(row * self.ldq);
            // SAFETY: the caller's promise; the scratch has room for the row.
            unsafe {
                to.write_bytes(0, self.ldq);
                if row < self.rows.len() {
                    let p = self.place(row);
                    let from = call.q.wrapping_offset(p.b * s[0] + p.h * s[1] + p.i * s[2]);
                    std::ptr::copy_nonoverlapping(from, to, call.head_dim);
                }
            }
        }
    }

    /// Scores, running softmax, and the sums of V, for one block of keys of which the first `seen` count.
    unsafe fn tiled_block(
        &self,
        keys: &Range<usize>,
        seen: usize,
        (shape, packed): (&Shape, *const u8),
        weights: &Matrix,
    ) {
        let call = self.call;
        let queries = Matrix { first: self.q, ld: self.ldq, rows: weights.rows };
        // SAFETY: the caller's promise; scores have room for whole panels, weights for whole pieces.
        unsafe {
            let scores = Tiles {
                a: &queries.laid((&[0], call.head_dim.div_ceil(ELEMENTS))),
                b: panels(packed, keys.len(), call.head_dim, shape.k_groups),
                panels: 0..seen.div_ceil(PANEL),
                c: self.s.cast(),
                ldc: self.lds,
                adds: false,
            };
            scores.run();
            let padded = seen.next_multiple_of(ELEMENTS);
            for row in 0..weights.rows {
                let to = std::slice::from_raw_parts_mut(weights.first.add(row * weights.ld), padded);
                if row >= self.rows.len() {
                    to.fill(bf16::ZERO);
                    continue;
                }
                let scores = self.s.add(row * self.lds);
                softmax::scaled(call.isa, scores, 1, scores, seen, call.scale);
                self.softmax_row(row, keys, seen);
                round(std::slice::from_raw_parts(scores, seen), &mut to[..seen]);
                to[seen..].fill(bf16::ZERO);
            }
            let sums = Tiles {
                a: &weights.laid((&[0], padded / ELEMENTS)),
                b: panels(packed.add(shape.k_bytes), call.v_dim, seen, shape.v_groups),
                panels: 0..shape.v_panels,
                c: self.o.cast(),
                ldc: self.ldo,
                adds: true,
            };
            sums.run();
        }
    }
}
