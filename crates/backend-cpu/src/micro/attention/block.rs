//! One block of query rows of one key/value head over all its keys. Rows run over the query heads of the head's
//! group, then over queries.

use std::ops::Range;

use super::softmax::{self, Row};
use super::{Attention, EmptyRow, KEYS};
use crate::micro::driver::{Small, odd_lines, small};
use crate::micro::kernel::panel_width;
use crate::micro::scratch;
use crate::micro::skinny::{self, Along, SkinnyProduct};

/// The position of a row of the block.
pub(super) struct Place {
    pub(super) b: isize,
    pub(super) h: isize,
    pub(super) i: isize,
}

/// The rows and their scratch memory.
pub(super) struct Work<'a, T = f32> {
    pub(super) call: &'a Attention<T>,
    /// Batch entry, key/value head, first query head of its group.
    pub(super) b: isize,
    pub(super) kv_head: isize,
    pub(super) h: isize,
    pub(super) rows: Range<usize>,
    /// Queries, `[rows, ldq]`; those of `f32` are scaled.
    pub(super) q: *mut T,
    pub(super) ldq: usize,
    /// Scores of a block of keys, `[rows, lds]`.
    pub(super) s: *mut f32,
    pub(super) lds: usize,
    /// Sums over keys so far, `[rows, ldo]`.
    pub(super) o: *mut f32,
    pub(super) ldo: usize,
    /// Running maximum and sum of each row.
    pub(super) max: *mut f32,
    pub(super) sum: *mut f32,
}

/// Rows `rows` of `head`, with K and V packed by the caller or (`None`) unpacked.
///
/// # Safety
/// As [`super::attention`]; `packed` holds all blocks of this head.
pub(super) unsafe fn run(call: &Attention, head: usize, rows: Range<usize>, packed: Option<*mut f32>) {
    let n = rows.len();
    let (ldq, lds, ldo) = (odd_lines(call.head_dim), odd_lines(call.kv_len.min(KEYS)), odd_lines(call.v_dim));
    let per_row = ldq + lds + ldo + 2;
    scratch::with(n * per_row, |buf| {
        let at = |columns: usize| buf.wrapping_add(n * columns);
        let work = Work {
            call,
            b: (head / call.kv_heads) as isize,
            kv_head: (head % call.kv_heads) as isize,
            h: (head % call.kv_heads * call.group()) as isize,
            rows,
            q: at(0),
            ldq,
            s: at(ldq),
            lds,
            o: at(ldq + lds),
            ldo,
            max: at(ldq + lds + ldo),
            sum: at(ldq + lds + ldo + 1),
        };
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the scratch is cut into the
        // parts above.
        unsafe { work.run(packed) };
    });
}

impl Work<'_> {
    unsafe fn run(&self, packed: Option<*mut f32>) {
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe {
            self.load_queries();
            for i in 0..self.rows.len() {
                *self.max.add(i) = f32::NEG_INFINITY;
                *self.sum.add(i) = 0.0;
            }
            self.o.write_bytes(0, self.rows.len() * self.ldo);
            for block in 0..self.call.key_blocks() {
                let keys = block * KEYS..((block + 1) * KEYS).min(self.call.kv_len);
                let seen = self.seen(&keys);
                if seen > 0 {
                    self.key_block(&keys, seen, block, packed);
                }
            }
            self.store();
        }
    }

    /// Copies the queries, scaled, so that the scores need no further pass.
    unsafe fn load_queries(&self) {
        let (call, s) = (self.call, &self.call.q_strides);
        for row in 0..self.rows.len() {
            let p = self.place(row);
            let ptr = call.q.wrapping_offset(p.b * s[0] + p.h * s[1] + p.i * s[2]);
            // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
            unsafe {
                let to = self.q.add(row * self.ldq);
                softmax::scaled(call.isa, ptr, s[3], to, call.head_dim, call.scale);
            }
        }
    }

    /// Scores, running softmax, and the sums of V, for one block of keys of which the first `seen` count.
    unsafe fn key_block(&self, keys: &Range<usize>, seen: usize, block: usize, packed: Option<*mut f32>) {
        let call = self.call;
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe {
            let (k_len, v_len) = call.block_len();
            let panels = packed.map(|p| p.add(block * (k_len + v_len)));
            match panels {
                Some(k) => self.small(
                    self.q,
                    self.ldq,
                    call.head_dim,
                    k,
                    seen,
                    call.head_dim,
                    self.s,
                    self.lds,
                    false,
                ),
                None => self.thin_scores(keys, seen),
            }
            for row in 0..self.rows.len() {
                self.softmax_row(row, keys, seen);
            }
            match panels {
                Some(k) => {
                    let v = k.add(k_len);
                    self.small(self.s, self.lds, seen, v, call.v_dim, keys.len(), self.o, self.ldo, true);
                }
                None => self.thin_values(keys, seen),
            }
        }
    }

    /// `c (+)= a[rows, k] * b[k, n]` with packed panels of `depth` rows.
    #[expect(clippy::too_many_arguments, reason = "the operands of a product, each with its stride")]
    unsafe fn small(
        &self,
        a: *const f32,
        lda: usize,
        k: usize,
        b: *const f32,
        n: usize,
        depth: usize,
        c: *mut f32,
        ldc: usize,
        accumulate: bool,
    ) {
        let (isa, m) = (self.call.isa, self.rows.len());
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe {
            small(&Small { isa, m, n, k, a, lda, b, panel: depth * panel_width(isa), c, ldc, accumulate })
        };
    }

    unsafe fn thin_scores(&self, keys: &Range<usize>, seen: usize) {
        let (call, s) = (self.call, &self.call.k_strides);
        let p = self.kv(s, keys.start);
        let thin = SkinnyProduct {
            rows: self.rows.len(),
            cols: seen,
            k: call.head_dim,
            a: self.q,
            lda: self.ldq,
            b: call.k.wrapping_offset(p),
            along: Along::K(s[2]),
            c: self.s,
            ldc: self.lds,
        };
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe { skinny::multiply(call.isa, &thin, None) };
    }

    unsafe fn thin_values(&self, keys: &Range<usize>, seen: usize) {
        let (call, s) = (self.call, &self.call.v_strides);
        let n = self.rows.len();
        if call.v_dim == 0 {
            return;
        }
        let p = self.kv(s, keys.start);
        scratch::with(n * self.ldo, |part| {
            let thin = SkinnyProduct {
                rows: n,
                cols: call.v_dim,
                k: seen,
                a: self.s,
                lda: self.lds,
                b: call.v.wrapping_offset(p),
                along: Along::N(s[2]),
                c: part,
                ldc: self.ldo,
            };
            // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
            unsafe {
                skinny::multiply(call.isa, &thin, None);
                for row in 0..n {
                    for d in 0..call.v_dim {
                        *self.o.add(row * self.ldo + d) += *part.add(row * self.ldo + d);
                    }
                }
            }
        });
    }
}

impl<T> Work<'_, T> {
    pub(super) fn place(&self, row: usize) -> Place {
        // One division, of 32 bits where that is enough: this runs several times per row.
        let (row, len) = (self.rows.start + row, self.call.q_len);
        let (h, i) = match (u32::try_from(row), u32::try_from(len)) {
            (Ok(row), Ok(len)) => ((row / len) as isize, (row % len) as isize),
            _ => ((row / len) as isize, (row % len) as isize),
        };
        Place { b: self.b, h: self.h + h, i }
    }

    /// How many keys of a block a row attends to under the causal limit.
    pub(super) fn limit(&self, row: usize, keys: &Range<usize>) -> usize {
        let Some(d) = self.call.causal else { return keys.len() };
        (self.place(row).i + d + 1 - keys.start as isize).clamp(0, keys.len() as isize).unsigned_abs()
    }

    /// How many keys of a block any row attends to.
    pub(super) fn seen(&self, keys: &Range<usize>) -> usize {
        if self.call.causal.is_none() {
            return keys.len();
        }
        (0..self.rows.len()).map(|row| self.limit(row, keys)).max().unwrap_or(0)
    }

    /// Offset of a key of this head.
    pub(super) fn kv(&self, s: &[isize; 4], key: usize) -> isize {
        self.b * s[0] + self.kv_head * s[1] + key as isize * s[2]
    }

    /// Masks one row of scores, turns it into weights and updates the row's running values.
    pub(super) unsafe fn softmax_row(&self, row: usize, keys: &Range<usize>, seen: usize) {
        let p = self.place(row);
        let at = |s: &[isize; 4]| p.b * s[0] + p.h * s[1] + p.i * s[2] + keys.start as isize * s[3];
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the row lies in the
        // scratch.
        unsafe {
            let row = Row {
                scores: self.s.add(row * self.lds),
                len: self.limit(row, keys).min(seen),
                padded: seen,
                seen: self.call.mask.of_row(at),
                kept: self.call.dropout.map(|d| d.of_row([p.b, p.h, p.i], keys.start)),
                max: self.max.add(row),
                sum: self.sum.add(row),
                o: self.o.add(row * self.ldo),
                dim: self.call.v_dim,
            };
            softmax::update(self.call.isa, &row);
        }
    }

    /// Divides by the sums, multiplies by the factor of kept weights and stores the rows at O's strides.
    pub(super) unsafe fn store(&self) {
        let (call, s) = (self.call, &self.call.o_strides);
        let factor = call.dropout.map_or(1.0, |d| d.factor as f32);
        for row in 0..self.rows.len() {
            let p = self.place(row);
            let to = call.o.wrapping_offset(p.b * s[0] + p.h * s[1] + p.i * s[2]);
            // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
            unsafe {
                let sum = *self.sum.add(row);
                if let Some((sums, s)) = call.sums {
                    let to = sums.wrapping_offset(p.b * s[0] + p.h * s[1] + p.i * s[2]);
                    *to = if sum == 0.0 { f32::NEG_INFINITY } else { *self.max.add(row) + sum.ln() };
                }
                let from = self.o.add(row * self.ldo);
                if sum != 0.0 && s[3] == 1 {
                    softmax::scaled(call.isa, from, 1, to, call.v_dim, factor / sum);
                    continue;
                }
                for d in 0..call.v_dim {
                    let v = match (sum == 0.0, call.empty_row) {
                        (false, _) => *from.add(d) / sum * factor,
                        (true, EmptyRow::Zero) => 0.0,
                        (true, EmptyRow::Nan) => f32::NAN,
                    };
                    *to.wrapping_offset(d as isize * s[3]) = v;
                }
            }
        }
    }
}
