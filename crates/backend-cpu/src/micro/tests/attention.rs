//! Fused attention against softmax written out in f64.

#[cfg(target_arch = "x86_64")]
use super::super::attention_bf16;
use super::super::{Attention, AttentionF64, Dropout, EmptyRow, Mask, MaskF64, attention, attention_f64};
use super::*;

/// Sizes of a case.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    pub(super) batch: usize,
    pub(super) heads: [usize; 2],
    pub(super) len: [usize; 2],
    pub(super) dim: [usize; 2],
    pub(super) causal: Option<isize>,
    /// 0 none, 1 additive `[1, 1, Lq, Lk]`, 2 boolean `[B, 1, 1, Lk]`, 3 additive `[1, H, Lq, Lk]` of every second element.
    pub(super) mask: usize,
    /// `[B, H, L, D]` (0), `[B, L, H, D]` (1) or `[B, H, D, L]` (2).
    pub(super) layout: usize,
    /// Words of kept weights: 0 none, 1 of all rows, 2 as 1 with every second element and the same ones in the whole batch, 3 those of a
    /// batch entry in all its rows.
    pub(super) dropout: usize,
}

/// A small case, from which others differ.
pub(super) const BASE: Case = Case {
    batch: 1,
    heads: [2, 2],
    len: [5, 7],
    dim: [16, 16],
    causal: None,
    mask: 0,
    layout: 0,
    dropout: 0,
};

/// Factor on kept weights; `f32` cannot hold it exactly.
const FACTOR: f64 = 4.0 / 3.0;

pub(super) fn strides(layout: usize, h: usize, l: usize, d: usize) -> [isize; 4] {
    let (h, l, d) = (h as isize, l as isize, d as isize);
    match layout {
        0 => [h * l * d, l * d, d, 1],
        1 => [h * l * d, d, h * d, 1],
        _ => [h * l * d, l * d, 1, l],
    }
}

pub(super) fn at(s: &[isize; 4], i: [usize; 4]) -> usize {
    (0..4).map(|d| i[d] as isize * s[d]).sum::<isize>() as usize
}

pub(super) struct Data {
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    pub(super) add: Vec<f32>,
    pub(super) seen: Vec<bool>,
    pub(super) mask_strides: [isize; 4],
    words: Vec<i32>,
    word_strides: [isize; 4],
}

impl Data {
    /// The operand of a call.
    pub(super) fn dropout(&self, c: &Case) -> Option<Dropout> {
        let (words, strides) = (self.words.as_ptr(), self.word_strides);
        (c.dropout != 0).then_some(Dropout { words, strides, factor: FACTOR })
    }

    /// What a weight is multiplied by after the softmax.
    pub(super) fn factor(&self, c: &Case, [b, h, i]: [usize; 3], j: usize) -> f64 {
        if c.dropout == 0 {
            return 1.0;
        }
        let word = self.words[at(&self.word_strides, [b, h, i, j / 32])];
        if word & (1 << (j % 32)) == 0 { 0.0 } else { FACTOR }
    }
}

/// Words in which about three of four bits are set, the highest ones, too.
fn words(len: usize) -> Vec<i32> {
    let bits = |x: f32| ((f64::from(x) + 1.0) * f64::from(1u32 << 16)) as i32;
    let numbers: Vec<i32> = random(10, 4 * len).into_iter().map(bits).collect();
    numbers.chunks(4).map(|n| n[0] << 16 | n[1] & 0xffff | n[2] << 16 | n[3] & 0xffff).collect()
}

pub(super) fn data(c: &Case) -> Data {
    let [lq, lk] = c.len;
    let seen: Vec<bool> = random(9, c.batch * lk).iter().map(|x| *x > -0.4).collect();
    let mut add = random(8, 2 * c.heads[0] * lq * lk);
    for (i, x) in add.iter_mut().enumerate() {
        *x = if i % 5 == 0 { f32::NEG_INFINITY } else { *x * 3.0 };
    }
    let (q, k) = (lq as isize, lk as isize);
    let (h, w) = (c.heads[0] as isize, lk.div_ceil(32) as isize);
    Data {
        q: random(1, c.batch * c.heads[0] * lq * c.dim[0]).iter().map(|x| x * 3.0).collect(),
        k: random(2, c.batch * c.heads[1] * lk * c.dim[0]),
        v: random(3, c.batch * c.heads[1] * lk * c.dim[1]),
        add,
        seen,
        mask_strides: match c.mask {
            1 => [0, 0, k, 1],
            2 => [k, 0, 0, 1],
            _ => [0, 2 * q * k, 2 * k, 2],
        },
        words: words(2 * c.batch * c.heads[0] * lq * lk.div_ceil(32)),
        word_strides: match c.dropout {
            1 => [h * q * w, q * w, w, 1],
            2 => [0, 2 * q * w, 2 * w, 2],
            _ => [w, 0, 0, 1],
        },
    }
}

/// A case's call of these operands; the last strides are those of the result.
fn call<T>(isa: Isa, c: &Case, d: &Data, [q, k, v]: [&[T]; 3], o: &mut [f32]) -> Attention<T> {
    let [qs, ks, vs, os] = layout(c);
    Attention {
        isa,
        batch: c.batch,
        q_heads: c.heads[0],
        kv_heads: c.heads[1],
        q_len: c.len[0],
        kv_len: c.len[1],
        head_dim: c.dim[0],
        v_dim: c.dim[1],
        q: q.as_ptr(),
        q_strides: qs,
        k: k.as_ptr(),
        k_strides: ks,
        v: v.as_ptr(),
        v_strides: vs,
        o: o.as_mut_ptr(),
        o_strides: os,
        sums: None,
        scale: 1.0 / (c.dim[0] as f32).sqrt(),
        mask: match c.mask {
            0 => Mask::None,
            2 => Mask::Boolean { ptr: d.seen.as_ptr(), strides: d.mask_strides },
            _ => Mask::Additive { ptr: d.add.as_ptr(), strides: d.mask_strides },
        },
        dropout: d.dropout(c),
        causal: c.causal,
        empty_row: EmptyRow::Zero,
    }
}

/// Strides of Q, K, V and the result.
fn layout(c: &Case) -> [[isize; 4]; 4] {
    let ([h, g], [lq, lk], [d, dv]) = (c.heads, c.len, c.dim);
    [[h, lq, d], [g, lk, d], [g, lk, dv], [h, lq, dv]].map(|[h, l, d]| strides(c.layout, h, l, d))
}

fn check(isa: Isa, c: Case) {
    let d = data(&c);
    let ([lq, lk], [qs, ks, vs, os]) = (c.len, layout(&c));
    let mut o = vec![9.0f32; c.batch * c.heads[0] * lq * c.dim[1]];
    let mut sums = vec![9.0f32; c.batch * c.heads[0] * lq];
    let of_sums = [(c.heads[0] * lq) as isize, lq as isize, 1];
    let call = call(isa, &c, &d, [&d.q, &d.k, &d.v], &mut o);
    let call = Attention { sums: Some((sums.as_mut_ptr(), of_sums)), ..call };
    // SAFETY: the buffers are as large as the strides say.
    unsafe { attention(&call) }.unwrap();
    let layout = [qs, ks, vs];
    // Scores of magnitude <= 3 sqrt(D) + 3 carry (D + 4) u of it into the exponent, twice (weight and sum); the averages of |v| <= 1 add
    // (Lk + 8) u.
    let u = f64::from(f32::EPSILON) / 2.0;
    let size = 3.0 * (c.dim[0] as f64).sqrt() + 3.0;
    let bound = u * (2.0 * (c.dim[0] + 4) as f64 * size + (2 * lk + 16) as f64);
    for b in 0..c.batch {
        for h in 0..c.heads[0] {
            for i in 0..lq {
                let (want, sum) = reference(&c, &d, &layout, [b, h, i]);
                let got = f64::from(sums[(b * c.heads[0] + h) * lq + i]);
                // What kept weights are multiplied by has no part in the sums, of which the logarithm is rounded once more.
                let off = bound + 2.0 * u * sum.abs();
                assert!(
                    got == sum || (got - sum).abs() <= off,
                    "{isa:?} {c:?} ({b}, {h}, {i}): sum {got} for {sum}"
                );
                for (x, want) in want.into_iter().enumerate() {
                    let got = f64::from(o[at(&os, [b, h, i, x])]);
                    let bound = if c.dropout == 0 { bound } else { FACTOR * bound };
                    assert!(
                        (got - want).abs() <= bound,
                        "{isa:?} {c:?} ({b}, {h}, {i}, {x}): {got} for {want}"
                    );
                }
            }
        }
    }
}

/// One row of the output, and the logarithm of the sum of its scores' exponentials, in f64.
fn reference(c: &Case, d: &Data, [qs, ks, vs]: &[[isize; 4]; 3], [b, h, i]: [usize; 3]) -> (Vec<f64>, f64) {
    let g = h / (c.heads[0] / c.heads[1]);
    let scale = f64::from(1.0 / (c.dim[0] as f32).sqrt());
    let score = |j: usize| {
        let product = |x| f64::from(d.q[at(qs, [b, h, i, x])]) * f64::from(d.k[at(ks, [b, g, j, x])]);
        let dot: f64 = (0..c.dim[0]).map(product).sum();
        let m = at(&d.mask_strides, [b, h, i, j]);
        let hidden = c.causal.is_some_and(|off| j as isize > i as isize + off) || (c.mask == 2 && !d.seen[m]);
        let bias = if c.mask == 1 || c.mask == 3 { f64::from(d.add[m]) } else { 0.0 };
        if hidden { f64::NEG_INFINITY } else { dot * scale + bias }
    };
    let scores: Vec<f64> = (0..c.len[1]).map(score).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weight = |s: &f64| if max.is_finite() { (s - max).exp() } else { 0.0 };
    let weights: Vec<f64> = scores.iter().map(weight).collect();
    let sum: f64 = weights.iter().sum();
    let kept = |(j, w): (usize, &f64)| w * d.factor(c, [b, h, i], j);
    let kept: Vec<f64> = weights.iter().enumerate().map(kept).collect();
    let value =
        |x| kept.iter().enumerate().map(|(j, w)| w * f64::from(d.v[at(vs, [b, g, j, x])])).sum::<f64>();
    let row = (0..c.dim[1]).map(|x| if sum == 0.0 { 0.0 } else { value(x) / sum }).collect();
    (row, if sum == 0.0 { f64::NEG_INFINITY } else { max + sum.ln() })
}

#[test]
fn attention_matches_f64() {
    let base = BASE;
    let cases = [
        base,
        Case { len: [1, 1], dim: [1, 1], ..base },
        Case { batch: 2, heads: [4, 2], len: [17, 33], dim: [13, 9], mask: 1, layout: 1, ..base },
        Case { heads: [6, 1], len: [3, 65], dim: [33, 40], mask: 2, batch: 3, ..base },
        Case { len: [130, 130], dim: [64, 64], causal: Some(0), layout: 1, ..base },
        Case { len: [31, 64], dim: [64, 64], causal: Some(33), mask: 3, ..base },
        Case { len: [7, 3], causal: Some(-2), ..base },
        Case { len: [20, 700], dim: [32, 48], mask: 3, layout: 2, ..base },
        Case { len: [150, 1100], dim: [8, 8], causal: Some(100), ..base },
        // Decoding: few queries, K and V as they lie; several blocks of keys.
        Case { batch: 2, heads: [8, 2], len: [1, 1500], dim: [64, 64], layout: 1, ..base },
        Case { heads: [8, 1], len: [1, 600], dim: [20, 24], mask: 2, ..base },
        Case { len: [4, 513], dim: [16, 17], causal: Some(509), mask: 1, ..base },
        Case { len: [4, 40], dim: [16, 16], layout: 2, ..base },
        Case { len: [4, 0], ..base },
        // Weights are dropped: packed, as they lie, several blocks of keys, parts of words, a strided result.
        Case { dropout: 1, ..base },
        Case { batch: 2, heads: [4, 2], len: [17, 33], dim: [13, 9], mask: 1, layout: 1, dropout: 1, ..base },
        Case { batch: 3, heads: [6, 1], len: [3, 65], dim: [33, 40], mask: 2, dropout: 2, ..base },
        Case { len: [130, 130], dim: [64, 64], causal: Some(0), layout: 1, dropout: 1, ..base },
        Case { len: [20, 700], dim: [32, 48], mask: 3, layout: 2, dropout: 2, ..base },
        Case { len: [150, 1100], dim: [8, 8], causal: Some(100), dropout: 1, ..base },
        Case { batch: 2, heads: [8, 2], len: [1, 1500], dim: [64, 64], layout: 1, dropout: 3, ..base },
        Case { batch: 2, len: [4, 513], dim: [16, 17], causal: Some(509), mask: 1, dropout: 2, ..base },
        Case { len: [4, 0], dropout: 1, ..base },
    ];
    for isa in isas() {
        for case in cases {
            check(isa, case);
        }
    }
}

/// Numbers rounded to `bf16`, and what they are in `f32`.
#[cfg(target_arch = "x86_64")]
fn rounded(x: &mut Vec<f32>) -> Vec<half::bf16> {
    let narrow: Vec<_> = x.iter().map(|x| half::bf16::from_f32(*x)).collect();
    *x = narrow.iter().map(|x| x.to_f32()).collect();
    narrow
}

/// On processors without tiles the instructions are computed in plain Rust.
#[cfg(target_arch = "x86_64")]
#[test]
fn attention_of_bf16_by_tiles_matches_f64() {
    let base = BASE;
    let cases = [
        base,
        Case { batch: 2, heads: [4, 2], len: [17, 33], dim: [14, 9], mask: 1, layout: 1, ..base },
        Case { heads: [6, 1], len: [3, 65], dim: [34, 40], mask: 2, batch: 3, ..base },
        Case { len: [130, 130], dim: [64, 64], causal: Some(0), layout: 1, ..base },
        Case { len: [31, 64], dim: [64, 80], causal: Some(33), mask: 3, ..base },
        Case { len: [7, 3], causal: Some(-2), ..base },
        Case { len: [40, 1100], dim: [8, 8], causal: Some(900), ..base },
        Case { batch: 2, heads: [8, 2], len: [1, 600], dim: [64, 64], layout: 1, ..base },
        Case { batch: 2, heads: [4, 2], len: [17, 33], dim: [14, 9], mask: 1, layout: 1, dropout: 1, ..base },
        Case { batch: 3, heads: [6, 1], len: [3, 65], dim: [34, 40], mask: 2, dropout: 2, ..base },
        Case { len: [130, 130], dim: [64, 64], causal: Some(0), layout: 1, dropout: 1, ..base },
        Case { batch: 2, len: [40, 1100], dim: [8, 8], causal: Some(900), dropout: 3, ..base },
    ];
    for c in cases {
        let mut d = data(&c);
        let (q, k, v) = (rounded(&mut d.q), rounded(&mut d.k), rounded(&mut d.v));
        let (lq, [qs, ks, vs, os]) = (c.len[0], layout(&c));
        let mut o = vec![9.0f32; c.batch * c.heads[0] * lq * c.dim[1]];
        let call = call(Isa::best(), &c, &d, [&q, &k, &v], &mut o);
        // Pairs of K are words of memory where it begins at one.
        let words = k.as_ptr().addr().is_multiple_of(4);
        // SAFETY: the buffers are as large as the strides say.
        assert_eq!(unsafe { attention_bf16(&call) }, Ok(words), "{c:?}");
        if !words {
            continue;
        }
        let at_row = |b: usize, h: usize, i: usize| reference(&c, &d, &[qs, ks, vs], [b, h, i]).0;
        let factor = if c.dropout == 0 { 1.0 } else { FACTOR };
        for (b, h, i) in
            (0..c.batch * c.heads[0] * lq).map(|r| (r / lq / c.heads[0], r / lq % c.heads[0], r % lq))
        {
            for (x, want) in at_row(b, h, i).into_iter().enumerate() {
                let got = f64::from(o[at(&os, [b, h, i, x])]);
                // Each weight is off by 2^-9 of itself, and |v| is at most 1; sums in f32 are far below that.
                assert!((got - want).abs() <= factor / 256.0, "{c:?} ({b}, {h}, {i}, {x}): {got} for {want}");
            }
        }
    }
}

#[test]
fn attention_in_f64_matches_the_definition() {
    let base = Case { layout: 1, ..BASE };
    for c in [
        Case { batch: 2, heads: [4, 2], len: [17, 33], dim: [13, 9], mask: 1, ..base },
        Case { batch: 2, heads: [4, 2], len: [17, 33], dim: [13, 9], mask: 1, dropout: 1, ..base },
        Case { batch: 3, heads: [6, 1], len: [3, 65], dim: [7, 8], mask: 2, dropout: 2, ..base },
        Case { batch: 2, len: [40, 70], causal: Some(0), dropout: 3, ..base },
        Case { len: [9, 64], mask: 3, dropout: 2, ..base },
    ] {
        let d = data(&c);
        let ([qs, ks, vs, _], [lq, dv]) = (layout(&c), [c.len[0], c.dim[1]]);
        let [q, k, v, add] = [&d.q, &d.k, &d.v, &d.add].map(|x| widened(x));
        let mut o = vec![9.0f64; c.batch * c.heads[0] * lq * dv];
        let call = AttentionF64 {
            q: (q.as_ptr(), qs),
            k: (k.as_ptr(), ks),
            v: (v.as_ptr(), vs),
            o: o.as_mut_ptr(),
            ..double(&c, &d, &add)
        };
        // SAFETY: the buffers are as large as the strides say.
        unsafe { attention_f64(&call) };
        for row in 0..c.batch * c.heads[0] * lq {
            let place = [row / lq / c.heads[0], row / lq % c.heads[0], row % lq];
            for (x, want) in reference(&c, &d, &[qs, ks, vs], place).0.into_iter().enumerate() {
                let got = o[row * dv + x];
                assert!((got - want).abs() <= 1e-13, "{c:?} row {row}, {x}: {got} for {want}");
            }
        }
    }
}

/// Numbers in `f64`.
pub(super) fn widened(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

/// A case's call in `f64`, without queries, keys, values and results; `add` has the numbers of an additive mask.
pub(super) fn double(c: &Case, d: &Data, add: &[f64]) -> AttentionF64 {
    let none = (std::ptr::null(), [0; 4]);
    AttentionF64 {
        batch: c.batch,
        q_heads: c.heads[0],
        kv_heads: c.heads[1],
        q_len: c.len[0],
        kv_len: c.len[1],
        head_dim: c.dim[0],
        v_dim: c.dim[1],
        q: none,
        k: none,
        v: none,
        o: std::ptr::null_mut(),
        sums: None,
        scale: f64::from(1.0 / (c.dim[0] as f32).sqrt()),
        mask: match c.mask {
            0 => MaskF64::None,
            2 => MaskF64::Boolean(d.seen.as_ptr(), d.mask_strides),
            _ => MaskF64::Additive(add.as_ptr(), d.mask_strides),
        },
        dropout: d.dropout(c),
        causal: c.causal.is_some(),
    }
}

#[test]
fn rows_that_see_nothing_become_what_was_asked_for() {
    let (q, v) = ([1.0f32; 4], [2.0f32; 4]);
    let additive = [f32::NEG_INFINITY; 4];
    let boolean = [false; 4];
    for isa in isas() {
        for len in [1usize, 2] {
            for boolean_mask in [true, false] {
                for (empty_row, zero) in [(EmptyRow::Zero, true), (EmptyRow::Nan, false)] {
                    let mut o = [9.0f32; 4];
                    let s = [4, 4, 2, 1];
                    let m = [0, 0, 2, 1];
                    let mask = if boolean_mask {
                        Mask::Boolean { ptr: boolean.as_ptr(), strides: m }
                    } else {
                        Mask::Additive { ptr: additive.as_ptr(), strides: m }
                    };
                    let call = Attention {
                        isa,
                        batch: 1,
                        q_heads: 1,
                        kv_heads: 1,
                        q_len: len,
                        kv_len: 2,
                        head_dim: 2,
                        v_dim: 2,
                        q: q.as_ptr(),
                        q_strides: s,
                        k: q.as_ptr(),
                        k_strides: s,
                        v: v.as_ptr(),
                        v_strides: s,
                        o: o.as_mut_ptr(),
                        o_strides: s,
                        sums: None,
                        scale: 1.0,
                        mask,
                        dropout: None,
                        causal: None,
                        empty_row,
                    };
                    // SAFETY: all operands have four elements.
                    unsafe { attention(&call).unwrap() };
                    let ok = |x: &f32| if zero { *x == 0.0 } else { x.is_nan() };
                    assert!(o[..2 * len].iter().all(ok), "{isa:?} {len} {boolean_mask} {empty_row:?}: {o:?}");
                }
            }
        }
    }
}
