//! Gradients of attention, block by block: the weights are recomputed from the log-sum-exp of the scores, so that no more
//! than a block of rows by a block of keys is in memory.
//!
//! One task is one key/value head with all query heads that read it; within it keys run block by block, so that every sum
//! has one order whatever the number of threads. With queries `Q` scaled: `S = Q Kᵀ + mask`, `P = exp(S - sums)`,
//! `dS = P (G Vᵀ - deltas)`, `dV = Pᵀ G`, `dK = dSᵀ Q`, `dQ = scale · dS K`. Where weights are dropped, with `M` the factor of a
//! kept one and else 0, `dS = P (M (G Vᵀ) - deltas)` and `dV = (P M)ᵀ G`, element by element in `M`.

use std::ops::Range;

use super::weights::{self, ScoreRow};
use super::{Dropout, Mask};
use crate::micro::driver::{Small, odd_lines, small};
use crate::micro::kernel::panel_width;
use crate::micro::pack::pack_panel;
use crate::micro::transpose::{self, Source};
use crate::micro::{Isa, MicroError, scratch, team};

/// Keys in a block, whole words of kept weights, and rows: two blocks of scores and the packed keys and values then stay in the second-level cache.
const KEYS: usize = 128;
const ROWS: usize = 64;

/// A tensor of `[B, H, L, D]`; strides in elements, any sign.
#[derive(Debug, Clone, Copy)]
pub struct Tensor4<T> {
    /// Element (0, 0, 0, 0).
    pub ptr: T,
    /// Strides.
    pub strides: [isize; 4],
}

/// A value per query row, `[B, Hq, Lq]`.
#[derive(Debug, Clone, Copy)]
pub struct RowValues<T> {
    /// Element (0, 0, 0).
    pub ptr: T,
    /// Strides.
    pub strides: [isize; 3],
}

/// The gradients of an attention; sizes and mask as in [`super::Attention`].
#[derive(Debug, Clone, Copy)]
pub struct AttentionBackward {
    /// Instruction set; [`Isa::best`] but in tests.
    pub isa: Isa,
    /// B
    pub batch: usize,
    /// H of Q and of the cotangent.
    pub q_heads: usize,
    /// H of K and V; divides `q_heads`.
    pub kv_heads: usize,
    /// Queries.
    pub q_len: usize,
    /// Keys.
    pub kv_len: usize,
    /// D of Q and K.
    pub head_dim: usize,
    /// D of V and of the cotangent.
    pub v_dim: usize,
    /// The cotangent of the result.
    pub g: Tensor4<*const f32>,
    /// Queries.
    pub q: Tensor4<*const f32>,
    /// Keys.
    pub k: Tensor4<*const f32>,
    /// Values.
    pub v: Tensor4<*const f32>,
    /// Log-sum-exp of the scores.
    pub sums: RowValues<*const f32>,
    /// Sums of cotangent times result.
    pub deltas: RowValues<*const f32>,
    /// Usually `1 / sqrt(D)`.
    pub scale: f32,
    /// Mask or bias.
    pub mask: Mask,
    /// Weights that are dropped.
    pub dropout: Option<Dropout>,
    /// Query `i` attends to keys `j <= i`.
    pub causal: bool,
    /// Gradient of Q, written.
    pub dq: Tensor4<*mut f32>,
    /// Gradient of K, written.
    pub dk: Tensor4<*mut f32>,
    /// Gradient of V, written.
    pub dv: Tensor4<*mut f32>,
}

// SAFETY: the pointers are used only under the promises of `attention_backward`: good from any thread.
unsafe impl Send for AttentionBackward {}
// SAFETY: the pointers are used only under the promises of `attention_backward`: good from any thread.
unsafe impl Sync for AttentionBackward {}

/// Computes the gradients.
///
/// # Safety
/// Operands must be readable and gradients writable at their sizes and strides, from any thread; gradients overlap nothing.
///
/// # Errors
/// [`MicroError`] if `kv_heads` does not divide `q_heads`, or the processor lacks `isa`.
pub unsafe fn attention_backward(call: &AttentionBackward) -> Result<(), MicroError> {
    call.isa.require()?;
    super::check_heads(call.q_heads, call.kv_heads)?;
    let work =
        call.batch * call.q_heads * call.q_len * call.kv_len * (3 * call.head_dim + 2 * call.v_dim + 16);
    team::par_for_work(call.batch * call.kv_heads, work, &|head| {
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; heads of keys and their
        // queries are disjoint in the gradients.
        unsafe { head_of_keys(call, head) };
    });
    Ok(())
}

/// Allocates consecutive pieces of scratch.
struct ScratchCursor(*mut f32);

impl ScratchCursor {
    fn take(&mut self, len: usize) -> *mut f32 {
        let at = self.0;
        self.0 = at.wrapping_add(len.next_multiple_of(16));
        at
    }
}

/// A dense matrix in scratch: rows `ld` apart.
#[derive(Clone, Copy)]
struct Rows {
    ptr: *mut f32,
    ld: usize,
}

impl Rows {
    fn at(&self, row: usize) -> *mut f32 {
        self.ptr.wrapping_add(row * self.ld)
    }
}

/// Buffers of a task for all blocks: rows are those of all query heads, one head after another.
struct Work<'a> {
    call: &'a AttentionBackward,
    /// Batch entry, key/value head, first query head.
    b: isize,
    kv: isize,
    h: isize,
    rows: usize,
    nr: usize,
    /// Scaled queries, cotangents and gradients of queries of all rows.
    q: Rows,
    g: Rows,
    dq: Rows,
    /// The first two as panels, a block of rows after another.
    q_panels: *mut f32,
    g_panels: *mut f32,
    /// Panels of a block of keys: transposed keys and values for products with rows, keys for products with scores.
    k_turned: *mut f32,
    v_turned: *mut f32,
    k_panels: *mut f32,
    /// Weights and cotangents of scores of a block, each plain and transposed.
    p: Rows,
    ds: Rows,
    turned: Rows,
    /// Gradients of a block of keys.
    dk: Rows,
    dv: Rows,
}

unsafe fn head_of_keys(call: &AttentionBackward, head: usize) {
    let nr = panel_width(call.isa);
    let (d, dv) = (call.head_dim, call.v_dim);
    let rows = call.q_heads / call.kv_heads * call.q_len;
    let (ldq, ldv, lds, ldt) = (odd_lines(d), odd_lines(dv), odd_lines(KEYS), odd_lines(ROWS));
    let (wide_d, wide_dv) = (d.next_multiple_of(nr), dv.next_multiple_of(nr));
    let of_rows = rows * (2 * ldq + ldv + wide_d + wide_dv);
    let of_keys = KEYS.next_multiple_of(nr) * (d + dv) + KEYS * (wide_d + ldq + ldv + ldt);
    let pieces = 14 * 16;
    scratch::with(of_rows + of_keys + 2 * ROWS * lds + pieces, |buf| {
        let mut cut = ScratchCursor(buf);
        let mut matrix = |rows: usize, ld: usize| Rows { ptr: cut.take(rows * ld), ld };
        let (q, g, dq) = (matrix(rows, ldq), matrix(rows, ldv), matrix(rows, ldq));
        let (p, ds, turned) = (matrix(ROWS, lds), matrix(ROWS, lds), matrix(KEYS, ldt));
        let (dk, dv_block) = (matrix(KEYS, ldq), matrix(KEYS, ldv));
        let keys = KEYS.next_multiple_of(nr);
        let work = Work {
            call,
            b: (head / call.kv_heads) as isize,
            kv: (head % call.kv_heads) as isize,
            h: (head % call.kv_heads * (call.q_heads / call.kv_heads)) as isize,
            rows,
            nr,
            q,
            g,
            dq,
            q_panels: cut.take(rows * wide_d),
            g_panels: cut.take(rows * wide_dv),
            k_turned: cut.take(keys * d),
            v_turned: cut.take(keys * dv),
            k_panels: cut.take(KEYS * wide_d),
            p,
            ds,
            turned,
            dk,
            dv: dv_block,
        };
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the scratch is cut into the
        // pieces above.
        unsafe { work.run() };
    });
}

/// A product of rows in scratch with panels: `c (+)= a[m, k] · panels[k, n]`.
struct Product {
    a: Rows,
    m: usize,
    k: usize,
    panels: *const f32,
    /// Rows of a panel, where it has more than `k`.
    depth: usize,
    n: usize,
    c: Rows,
    accumulate: bool,
}

impl Work<'_> {
    unsafe fn run(&self) {
        let call = self.call;
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe {
            self.load_rows();
            self.dq.ptr.write_bytes(0, self.rows * self.dq.ld);
            for start in (0..call.kv_len).step_by(KEYS) {
                self.block_of_keys(start..(start + KEYS).min(call.kv_len));
            }
            for row in 0..self.rows {
                let to = self.at(call.dq.ptr, &call.dq.strides, row);
                store(self.dq.at(row), call.head_dim, to, call.dq.strides[3], call.scale);
            }
        }
    }

    /// Head and position of a row.
    fn place(&self, row: usize) -> (isize, usize) {
        (self.h + (row / self.call.q_len) as isize, row % self.call.q_len)
    }

    /// The first element of a row of queries.
    fn at<T>(&self, ptr: *mut T, s: &[isize; 4], row: usize) -> *mut T {
        let (h, i) = self.place(row);
        ptr.wrapping_offset(self.b * s[0] + h * s[1] + i as isize * s[2])
    }

    fn keys_from<T>(&self, ptr: *mut T, s: &[isize; 4], key: usize) -> *mut T {
        ptr.wrapping_offset(self.b * s[0] + self.kv * s[1] + key as isize * s[2])
    }

    /// Copies queries (scaled) and cotangents of all rows, as rows and as panels.
    unsafe fn load_rows(&self) {
        let call = self.call;
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe {
            for row in 0..self.rows {
                let (q, g) = (&call.q, &call.g);
                let from = self.at(q.ptr.cast_mut(), &q.strides, row);
                super::softmax::scaled(
                    call.isa,
                    from,
                    q.strides[3],
                    self.q.at(row),
                    call.head_dim,
                    call.scale,
                );
                let from = self.at(g.ptr.cast_mut(), &g.strides, row);
                super::softmax::scaled(call.isa, from, g.strides[3], self.g.at(row), call.v_dim, 1.0);
            }
            for start in (0..self.rows).step_by(ROWS) {
                let count = ROWS.min(self.rows - start);
                let row = |m: Rows| Source { ptr: m.at(start), row: m.ld as isize, col: 1 };
                self.pack(
                    row(self.q),
                    count,
                    call.head_dim,
                    self.panels_of(self.q_panels, start, call.head_dim),
                );
                self.pack(row(self.g), count, call.v_dim, self.panels_of(self.g_panels, start, call.v_dim));
            }
        }
    }

    fn panels_of(&self, panels: *mut f32, start: usize, width: usize) -> *mut f32 {
        panels.wrapping_add(start * width.next_multiple_of(self.nr))
    }

    /// Packs the panels of a matrix of `depth` rows and `width` columns.
    unsafe fn pack(&self, from: Source, depth: usize, width: usize, to: *mut f32) {
        for (n, j) in (0..width).step_by(self.nr).enumerate() {
            let to = to.wrapping_add(n * depth * self.nr);
            // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the panels lie in their
            // piece of the scratch.
            unsafe { pack_panel(from.at(0, j), depth, (width - j).min(self.nr), to, self.nr) };
        }
    }

    /// All work of a block of keys.
    unsafe fn block_of_keys(&self, keys: Range<usize>) {
        let call = self.call;
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe {
            let (k, v) = (&call.k, &call.v);
            let from = |ptr: *const f32, s: &[isize; 4], row: usize, col: usize| Source {
                ptr: self.keys_from(ptr.cast_mut(), s, keys.start),
                row: s[row],
                col: s[col],
            };
            self.pack(from(k.ptr, &k.strides, 3, 2), call.head_dim, keys.len(), self.k_turned);
            self.pack(from(v.ptr, &v.strides, 3, 2), call.v_dim, keys.len(), self.v_turned);
            self.pack(from(k.ptr, &k.strides, 2, 3), keys.len(), call.head_dim, self.k_panels);
            self.dk.ptr.write_bytes(0, keys.len() * self.dk.ld);
            self.dv.ptr.write_bytes(0, keys.len() * self.dv.ld);
            for start in (0..self.rows).step_by(ROWS) {
                let rows = start..(start + ROWS).min(self.rows);
                let seen = rows.clone().map(|row| self.seen(row, &keys)).max().unwrap_or(0);
                if seen > 0 {
                    self.block(&rows, &keys, seen);
                }
            }
            for key in keys.clone() {
                let to = self.keys_from(call.dk.ptr, &call.dk.strides, key);
                store(self.dk.at(key - keys.start), call.head_dim, to, call.dk.strides[3], 1.0);
                let to = self.keys_from(call.dv.ptr, &call.dv.strides, key);
                store(self.dv.at(key - keys.start), call.v_dim, to, call.dv.strides[3], 1.0);
            }
        }
    }

    /// How many of a block's keys a row attends to under the causal limit.
    fn seen(&self, row: usize, keys: &Range<usize>) -> usize {
        let end = if self.call.causal { (self.place(row).1 + 1).min(keys.end) } else { keys.end };
        end.saturating_sub(keys.start)
    }

    /// A block of rows with the first `seen` keys of a block.
    unsafe fn block(&self, rows: &Range<usize>, keys: &Range<usize>, seen: usize) {
        let call = self.call;
        let (n, d, dv) = (rows.len(), call.head_dim, call.v_dim);
        let part = |m: Rows| Rows { ptr: m.at(rows.start), ..m };
        let product = |a: Rows, k: usize, panels: *mut f32, n_columns: usize, c: Rows| Product {
            a,
            m: n,
            k,
            panels,
            depth: k,
            n: n_columns,
            c,
            accumulate: false,
        };
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; every matrix lies in its
        // piece of the scratch.
        unsafe {
            self.multiply(&product(part(self.q), d, self.k_turned, seen, self.p));
            self.multiply(&product(part(self.g), dv, self.v_turned, seen, self.ds));
            for row in rows.clone() {
                self.scores_to_weights(row, row - rows.start, keys, seen);
            }
            for (scores, panels, width, sum) in [
                (self.p, self.panels_of(self.g_panels, rows.start, dv), dv, self.dv),
                (self.ds, self.panels_of(self.q_panels, rows.start, d), d, self.dk),
            ] {
                let from = Source { ptr: scores.ptr, row: 1, col: scores.ld as isize };
                transpose::copy(from, seen, n, self.turned.ptr, self.turned.ld);
                let product = product(self.turned, n, panels, width, sum);
                self.multiply(&Product { m: seen, accumulate: true, ..product });
            }
            let onto = product(self.ds, seen, self.k_panels, d, part(self.dq));
            self.multiply(&Product { depth: keys.len(), accumulate: true, ..onto });
        }
    }

    unsafe fn multiply(&self, p: &Product) {
        let panel = p.depth * self.nr;
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe {
            small(&Small {
                isa: self.call.isa,
                m: p.m,
                n: p.n,
                k: p.k,
                a: p.a.ptr,
                lda: p.a.ld,
                b: p.panels,
                panel,
                c: p.c.ptr,
                ldc: p.c.ld,
                accumulate: p.accumulate,
            });
        }
    }

    /// Turns scores of a row into weights, and cotangents of weights into those of scores.
    unsafe fn scores_to_weights(&self, row: usize, local: usize, keys: &Range<usize>, seen: usize) {
        let (call, (h, i)) = (self.call, self.place(row));
        let i = i as isize;
        let at = |s: &[isize; 4]| self.b * s[0] + h * s[1] + i * s[2] + keys.start as isize * s[3];
        let of_row = |of: &RowValues<*const f32>| {
            let s = &of.strides;
            of.ptr.wrapping_offset(self.b * s[0] + h * s[1] + i * s[2])
        };
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe {
            let row = ScoreRow {
                scores: self.p.at(local),
                cotangents: self.ds.at(local),
                len: self.seen(row, keys).min(seen),
                padded: seen,
                seen: call.mask.of_row(at),
                kept: call.dropout.map(|d| (d.of_row([self.b, h, i], keys.start), d.factor as f32)),
                sum: *of_row(&call.sums),
                delta: *of_row(&call.deltas),
            };
            weights::scores_to_weights(call.isa, &row);
        }
    }
}

/// `to[i · step] = from[i] · factor`
unsafe fn store(from: *const f32, len: usize, to: *mut f32, step: isize, factor: f32) {
    for i in 0..len {
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe { *to.wrapping_offset(i as isize * step) = *from.add(i) * factor };
    }
}
