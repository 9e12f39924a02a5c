//! Attention in f64, a row of scores at a time: for checking models in double precision. No blocks, no packing.

use super::super::team;
use super::kept::Dropout;

/// The mask, with strides of `[B, H, Lq, Lk]` in elements; 0 broadcasts.
#[derive(Debug, Clone, Copy)]
pub enum MaskF64 {
    /// All.
    None,
    /// Added to the scaled scores; -inf hides a key.
    Additive(*const f64, [isize; 4]),
    /// True means that the query attends to the key.
    Boolean(*const bool, [isize; 4]),
}

/// As `Attention`, in f64; operands are pointers and strides of `[B, H, L, D]`.
#[derive(Debug, Clone, Copy)]
pub struct AttentionF64 {
    /// B
    pub batch: usize,
    /// H of Q and O.
    pub q_heads: usize,
    /// H of K and V; divides `q_heads`.
    pub kv_heads: usize,
    /// Queries.
    pub q_len: usize,
    /// Keys.
    pub kv_len: usize,
    /// D of Q and K.
    pub head_dim: usize,
    /// D of V and O.
    pub v_dim: usize,
    /// `[B, Hq, Lq, D]`
    pub q: (*const f64, [isize; 4]),
    /// `[B, Hkv, Lk, D]`
    pub k: (*const f64, [isize; 4]),
    /// `[B, Hkv, Lk, Dv]`
    pub v: (*const f64, [isize; 4]),
    /// `[B, Hq, Lq, Dv]`, dense.
    pub o: *mut f64,
    /// `[B, Hq, Lq]` and strides: the destination of each row's log-sum-exp, -inf where every key is masked.
    pub sums: Option<(*mut f64, [isize; 3])>,
    /// Usually `1 / sqrt(D)`.
    pub scale: f64,
    /// Mask or bias.
    pub mask: MaskF64,
    /// Weights that are dropped.
    pub dropout: Option<Dropout>,
    /// Query `i` attends to keys `j <= i`.
    pub causal: bool,
}

// SAFETY: the pointers are used only under the promises of `attention_f64`: good from any thread.
unsafe impl Sync for AttentionF64 {}

/// Computes attention; rows in which every key is masked are 0.
///
/// # Safety
/// Q, K, V, the mask and the words of kept weights must be readable and O writable at their sizes and strides, from any thread; O must not overlap the
/// others.
pub unsafe fn attention_f64(call: &AttentionF64) {
    let rows = call.batch * call.q_heads * call.q_len;
    let work = rows * call.kv_len * (call.head_dim + call.v_dim + 16);
    team::par_for_work(rows, work, &|row| {
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; rows are disjoint in O.
        unsafe { one(call, row) };
    });
}

/// A row of queries and its operands.
pub(super) struct Row {
    pub(super) b: isize,
    pub(super) h: isize,
    pub(super) i: isize,
    /// First elements of the query, and of keys and values of its head.
    pub(super) q: *const f64,
    pub(super) k: *const f64,
    pub(super) v: *const f64,
}

impl AttentionF64 {
    /// Row `i` of head `h` of queries in batch entry `b`.
    pub(super) fn row(&self, b: usize, h: usize, i: usize) -> Row {
        let kv = (h / (self.q_heads / self.kv_heads).max(1)) as isize;
        let (b, h, i) = (b as isize, h as isize, i as isize);
        let base = |(ptr, s): (*const f64, [isize; 4]), h: isize| ptr.wrapping_offset(b * s[0] + h * s[1]);
        let q = base(self.q, h).wrapping_offset(i * self.q.1[2]);
        Row { b, h, i, q, k: base(self.k, kv), v: base(self.v, kv) }
    }

    /// Factor on the weight of key `j`, after the softmax.
    ///
    /// # Safety
    /// As [`attention_f64`].
    pub(super) unsafe fn factor(&self, row: &Row, j: usize) -> f64 {
        let Some(dropout) = &self.dropout else { return 1.0 };
        let bits = dropout.of_row([row.b, row.h, row.i], 0);
        // SAFETY: there is a word for every key, by the caller's promise.
        if unsafe { bits.at(j) } & 1 == 1 { dropout.factor } else { 0.0 }
    }

    /// Its scores, up to the causal limit.
    ///
    /// # Safety
    /// As [`attention_f64`].
    pub(super) unsafe fn scores(&self, row: &Row) -> Vec<f64> {
        let keys = if self.causal { self.kv_len.min(row.i as usize + 1) } else { self.kv_len };
        let mut scores = vec![f64::NEG_INFINITY; keys];
        for (j, score) in scores.iter_mut().enumerate() {
            let at = |s: &[isize; 4]| row.b * s[0] + row.h * s[1] + row.i * s[2] + j as isize * s[3];
            let bias = match &self.mask {
                MaskF64::None => 0.0,
                // SAFETY: the mask has an element for every score, by the caller's promise.
                MaskF64::Additive(ptr, s) => unsafe { *ptr.offset(at(s)) },
                MaskF64::Boolean(ptr, s) => {
                    // SAFETY: the mask has an element for every score, by the caller's promise.
                    if unsafe { *ptr.offset(at(s)).cast::<u8>() } == 0 {
                        continue;
                    }
                    0.0
                }
            };
            let key = row.k.wrapping_offset(j as isize * self.k.1[2]);
            let mut sum = 0.0;
            for d in 0..self.head_dim as isize {
                // SAFETY: query and key rows have `head_dim` elements, by the caller's promise.
                sum += unsafe { *row.q.offset(d * self.q.1[3]) * *key.offset(d * self.k.1[3]) };
            }
            *score = sum * self.scale + bias;
        }
        scores
    }
}

unsafe fn one(call: &AttentionF64, number: usize) {
    let (i, head) = (number % call.q_len, number / call.q_len);
    let row = call.row(head / call.q_heads, head % call.q_heads, i);
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given, here and below.
    let out = unsafe { std::slice::from_raw_parts_mut(call.o.add(number * call.v_dim), call.v_dim) };
    out.fill(0.0);
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given, here and below.
    let scores = unsafe { call.scores(&row) };
    let most = scores.iter().fold(f64::NEG_INFINITY, |m, s| if *s > m || s.is_nan() { *s } else { m });
    let mut total = 0.0;
    if most != f64::NEG_INFINITY {
        for (j, score) in scores.iter().enumerate() {
            let weight = (score - most).exp();
            total += weight;
            // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
            let weight = weight * unsafe { call.factor(&row, j) };
            let value = row.v.wrapping_offset(j as isize * call.v.1[2]);
            for (d, o) in out.iter_mut().enumerate() {
                // SAFETY: value rows have `v_dim` elements, as many as `out`.
                *o += weight * unsafe { *value.offset(d as isize * call.v.1[3]) };
            }
        }
        out.iter_mut().for_each(|o| *o /= total);
    }
    if let Some((sums, s)) = call.sums {
        let to = sums.wrapping_offset(row.b * s[0] + row.h * s[1] + row.i * s[2]);
        // SAFETY: there is a sum for every row, by the caller's promise.
        unsafe { *to = if total == 0.0 { f64::NEG_INFINITY } else { most + total.ln() } };
    }
}
