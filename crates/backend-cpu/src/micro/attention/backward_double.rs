//! Gradients of attention in f64, a row of scores at a time: for checking models in double precision.

use super::super::team;
use super::backward::{RowValues, Tensor4};
use super::double::AttentionF64;

/// As `AttentionBackward`, in f64.
#[derive(Debug, Clone, Copy)]
pub struct AttentionBackwardF64 {
    /// The attention; its results are not written.
    pub attention: AttentionF64,
    /// The cotangent of the result.
    pub g: Tensor4<*const f64>,
    /// Log-sum-exp of the scores.
    pub sums: RowValues<*const f64>,
    /// Sums of cotangent times result.
    pub deltas: RowValues<*const f64>,
    /// Gradient of Q, written.
    pub dq: Tensor4<*mut f64>,
    /// Gradient of K, written.
    pub dk: Tensor4<*mut f64>,
    /// Gradient of V, written.
    pub dv: Tensor4<*mut f64>,
}

// SAFETY: the pointers are used only under the promises of `attention_backward_f64`: good from any thread.
unsafe impl Sync for AttentionBackwardF64 {}

/// Computes the gradients; `kv_heads` divides `q_heads`.
///
/// # Safety
/// Operands must be readable and gradients writable at their sizes and strides, from any thread; gradients overlap nothing.
pub unsafe fn attention_backward_f64(call: &AttentionBackwardF64) {
    let a = &call.attention;
    let work = a.batch * a.q_heads * a.q_len * a.kv_len * (3 * a.head_dim + 2 * a.v_dim + 16);
    team::par_for_work(a.batch * a.kv_heads, work, &|head| {
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; heads of keys and their
        // queries are disjoint in the gradients.
        unsafe { head_of_keys(call, head / a.kv_heads, head % a.kv_heads) };
    });
}

unsafe fn head_of_keys(call: &AttentionBackwardF64, b: usize, kv: usize) {
    let a = &call.attention;
    let group = a.q_heads / a.kv_heads;
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given, here and below.
    unsafe {
        clear(&call.dk, [b, kv], [a.kv_len, a.head_dim]);
        clear(&call.dv, [b, kv], [a.kv_len, a.v_dim]);
        for h in kv * group..(kv + 1) * group {
            clear(&call.dq, [b, h], [a.q_len, a.head_dim]);
            for i in 0..a.q_len {
                row(call, [b, h, i], kv);
            }
        }
    }
}

impl<T> Tensor4<*mut T> {
    fn at(&self, b: usize, h: usize, l: usize) -> *mut T {
        let s = &self.strides;
        self.ptr.wrapping_offset(b as isize * s[0] + h as isize * s[1] + l as isize * s[2])
    }
}

unsafe fn clear(to: &Tensor4<*mut f64>, [b, h]: [usize; 2], [rows, columns]: [usize; 2]) {
    for row in 0..rows {
        for d in 0..columns as isize {
            // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
            unsafe { *to.at(b, h, row).wrapping_offset(d * to.strides[3]) = 0.0 };
        }
    }
}

/// `to[d · stride] += factor · from[d · step]`
unsafe fn add(to: (*mut f64, isize), from: (*const f64, isize), count: usize, factor: f64) {
    for d in 0..count as isize {
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe { *to.0.wrapping_offset(d * to.1) += factor * *from.0.wrapping_offset(d * from.1) };
    }
}

/// The contribution of one row of scores.
unsafe fn row(call: &AttentionBackwardF64, [b, h, i]: [usize; 3], kv: usize) {
    let a = &call.attention;
    let row = a.row(b, h, i);
    let of_row = |of: &RowValues<*const f64>| {
        let s = &of.strides;
        of.ptr.wrapping_offset(row.b * s[0] + row.h * s[1] + row.i * s[2])
    };
    let gs = &call.g.strides;
    let g = call.g.ptr.wrapping_offset(row.b * gs[0] + row.h * gs[1] + row.i * gs[2]);
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        let (sum, delta) = (*of_row(&call.sums), *of_row(&call.deltas));
        if sum == f64::NEG_INFINITY {
            return;
        }
        for (j, score) in a.scores(&row).into_iter().enumerate() {
            let (weight, factor) = ((score - sum).exp(), a.factor(&row, j));
            let key = row.k.wrapping_offset(j as isize * a.k.1[2]);
            let value = row.v.wrapping_offset(j as isize * a.v.1[2]);
            let mut dp = 0.0;
            for d in 0..a.v_dim as isize {
                dp += *g.wrapping_offset(d * gs[3]) * *value.wrapping_offset(d * a.v.1[3]);
            }
            let ds = weight * (factor * dp - delta) * a.scale;
            add((call.dv.at(b, kv, j), call.dv.strides[3]), (g, gs[3]), a.v_dim, weight * factor);
            add((call.dq.at(b, h, i), call.dq.strides[3]), (key, a.k.1[3]), a.head_dim, ds);
            add((call.dk.at(b, kv, j), call.dk.strides[3]), (row.q, a.q.1[3]), a.head_dim, ds);
        }
    }
}
