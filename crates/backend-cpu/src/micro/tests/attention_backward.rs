//! Gradients of attention against loops in f64, with error bounds that follow from the operands.

use super::super::{
    AttentionBackward, AttentionBackwardF64, AttentionF64, Mask, RowValues, Tensor4, attention_backward,
    attention_backward_f64,
};
use super::attention::{BASE, Case, Data, at, data, double, strides, widened};
use super::*;

/// A number and how far f32 may be from it.
#[derive(Clone, Copy, Default)]
struct Bounded {
    value: f64,
    magnitude: f64,
    error: f64,
    terms: usize,
}

const U: f64 = f32::EPSILON as f64 / 2.0;

impl Bounded {
    /// Adds `x y`, of which `x` is off by `error`.
    fn add(&mut self, x: f64, error: f64, y: f64) {
        self.value += x * y;
        self.magnitude += (x * y).abs();
        self.error += error * y.abs();
        self.terms += 1;
    }
    fn bound(&self) -> f64 {
        self.error + (self.terms + 8) as f64 * U * self.magnitude + 1e-30
    }
}

/// A case with what its backward is given, and strides of queries, keys, values and of the cotangent.
struct Given {
    d: Data,
    g: Vec<f32>,
    sums: Vec<f32>,
    deltas: Vec<f32>,
    strides: [[isize; 4]; 4],
}

/// The weight that is left of a score and the score's cotangent, with bounds on their errors.
struct Score {
    weight: (f64, f64),
    ds: (f64, f64),
}

impl Given {
    fn of(c: &Case) -> Given {
        let d = data(c);
        let [lq, lk] = c.len;
        let qs = strides(c.layout, c.heads[0], lq, c.dim[0]);
        let ks = strides(c.layout, c.heads[1], lk, c.dim[0]);
        let vs = strides(c.layout, c.heads[1], lk, c.dim[1]);
        let gs = strides(c.layout, c.heads[0], lq, c.dim[1]);
        let g = random(7, c.batch * c.heads[0] * lq * c.dim[1]);
        let rows = c.batch * c.heads[0] * lq;
        let mut given =
            Given { d, g, sums: vec![0.0; rows], deltas: vec![0.0; rows], strides: [qs, ks, vs, gs] };
        for row in 0..rows {
            let place = place(c, row);
            let scores: Vec<f64> = (0..lk).map(|j| given.score(c, place, j)).collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if top == f64::NEG_INFINITY {
                given.sums[row] = f32::NEG_INFINITY;
                continue;
            }
            let sum = top + scores.iter().map(|s| (s - top).exp()).sum::<f64>().ln();
            let weight = |j: usize| (scores[j] - sum).exp() * given.d.factor(c, place, j);
            let delta = (0..lk).map(|j| weight(j) * given.dp(c, place, j).0).sum::<f64>();
            (given.sums[row], given.deltas[row]) = (sum as f32, delta as f32);
        }
        given
    }

    fn score(&self, c: &Case, [b, h, i]: [usize; 3], j: usize) -> f64 {
        let ([qs, ks, ..], g) = (&self.strides, h / (c.heads[0] / c.heads[1]));
        let product =
            |x| f64::from(self.d.q[at(qs, [b, h, i, x])]) * f64::from(self.d.k[at(ks, [b, g, j, x])]);
        let dot: f64 = (0..c.dim[0]).map(product).sum();
        let m = at(&self.d.mask_strides, [b, h, i, j]);
        if (c.causal.is_some() && j > i) || (c.mask == 2 && !self.d.seen[m]) {
            return f64::NEG_INFINITY;
        }
        let bias = if c.mask == 1 || c.mask == 3 { f64::from(self.d.add[m]) } else { 0.0 };
        dot * scale(c) + bias
    }

    /// The cotangent of a weight, and the sum of the magnitudes in it.
    fn dp(&self, c: &Case, [b, h, i]: [usize; 3], j: usize) -> (f64, f64) {
        let ([.., vs, gs], kv) = (&self.strides, h / (c.heads[0] / c.heads[1]));
        let product =
            |x| f64::from(self.g[at(gs, [b, h, i, x])]) * f64::from(self.d.v[at(vs, [b, kv, j, x])]);
        (0..c.dim[1]).map(product).fold((0.0, 0.0), |(s, m), p| (s + p, m + p.abs()))
    }

    /// Scores of magnitude `3 sqrt(D) + 3` at most carry `(D + 4) u` of it into the exponent.
    fn weighed(&self, c: &Case, row: usize, j: usize) -> Score {
        let (sum, delta) = (f64::from(self.sums[row]), f64::from(self.deltas[row]));
        if sum == f64::NEG_INFINITY {
            return Score { weight: (0.0, 0.0), ds: (0.0, 0.0) };
        }
        let size = 3.0 * (c.dim[0] as f64).sqrt() + 3.0;
        let weight = (self.score(c, place(c, row), j) - sum).exp();
        let relative = U * ((c.dim[0] + 4) as f64 * size + 2.0 * sum.abs() + 16.0);
        let factor = self.d.factor(c, place(c, row), j);
        let (dp, magnitude) = self.dp(c, place(c, row), j);
        let (dp, magnitude, kept) = (factor * dp, factor * magnitude, factor * weight);
        let ds = weight * (dp - delta);
        let off = U * ((c.dim[1] + 4) as f64 * magnitude + 2.0 * (dp.abs() + delta.abs()));
        Score { weight: (kept, kept * relative), ds: (ds, ds.abs() * relative + weight * off) }
    }
}

fn scale(c: &Case) -> f64 {
    f64::from(1.0 / (c.dim[0] as f32).sqrt())
}

fn place(c: &Case, row: usize) -> [usize; 3] {
    let (i, head) = (row % c.len[0], row / c.len[0]);
    [head / c.heads[0], head % c.heads[0], i]
}

/// Gradients of queries, keys and values with bounds, in the memory order of the operands.
fn expected(c: &Case, given: &Given) -> [Vec<Bounded>; 3] {
    let [qs, ks, vs, gs] = &given.strides;
    let count =
        |h: usize, l: usize, d: usize| vec![Bounded::default(); c.batch * c.heads[h] * c.len[l] * c.dim[d]];
    let (mut dq, mut dk, mut dv) = (count(0, 0, 0), count(1, 1, 0), count(1, 1, 1));
    for row in 0..given.sums.len() {
        let [b, h, i] = place(c, row);
        let kv = h / (c.heads[0] / c.heads[1]);
        for j in 0..c.len[1] {
            let s = given.weighed(c, row, j);
            for x in 0..c.dim[0] {
                let (q, k) = (at(qs, [b, h, i, x]), at(ks, [b, kv, j, x]));
                dq[q].add(s.ds.0, s.ds.1, f64::from(given.d.k[k]) * scale(c));
                dk[k].add(s.ds.0, s.ds.1, f64::from(given.d.q[q]) * scale(c));
            }
            for x in 0..c.dim[1] {
                let g = given.g[at(gs, [b, h, i, x])];
                dv[at(vs, [b, kv, j, x])].add(s.weight.0, s.weight.1, f64::from(g));
            }
        }
    }
    [dq, dk, dv]
}

/// What is computed, in the order of [`expected`].
fn computed(isa: Isa, c: &Case, given: &Given) -> [Vec<f32>; 3] {
    let [qs, ks, vs, gs] = given.strides;
    let mut grads = [given.d.q.len(), given.d.k.len(), given.d.v.len()].map(|n| vec![9.0f32; n]);
    let mask = match c.mask {
        0 => Mask::None,
        2 => Mask::Boolean { ptr: given.d.seen.as_ptr(), strides: given.d.mask_strides },
        _ => Mask::Additive { ptr: given.d.add.as_ptr(), strides: given.d.mask_strides },
    };
    let rows = [(c.heads[0] * c.len[0]) as isize, c.len[0] as isize, 1];
    let [dq, dk, dv] = &mut grads;
    let call = AttentionBackward {
        isa,
        batch: c.batch,
        q_heads: c.heads[0],
        kv_heads: c.heads[1],
        q_len: c.len[0],
        kv_len: c.len[1],
        head_dim: c.dim[0],
        v_dim: c.dim[1],
        g: Tensor4 { ptr: given.g.as_ptr(), strides: gs },
        q: Tensor4 { ptr: given.d.q.as_ptr(), strides: qs },
        k: Tensor4 { ptr: given.d.k.as_ptr(), strides: ks },
        v: Tensor4 { ptr: given.d.v.as_ptr(), strides: vs },
        sums: RowValues { ptr: given.sums.as_ptr(), strides: rows },
        deltas: RowValues { ptr: given.deltas.as_ptr(), strides: rows },
        scale: scale(c) as f32,
        mask,
        dropout: given.d.dropout(c),
        causal: c.causal.is_some(),
        dq: Tensor4 { ptr: dq.as_mut_ptr(), strides: qs },
        dk: Tensor4 { ptr: dk.as_mut_ptr(), strides: ks },
        dv: Tensor4 { ptr: dv.as_mut_ptr(), strides: vs },
    };
    // SAFETY: the buffers are as large as the strides say.
    unsafe { attention_backward(&call) }.unwrap();
    grads
}

#[test]
fn gradients_match_f64() {
    let base = BASE;
    let cases = [
        base,
        Case { len: [1, 1], dim: [1, 1], ..base },
        Case { batch: 2, heads: [4, 2], len: [17, 33], dim: [13, 9], mask: 1, layout: 1, ..base },
        Case { heads: [6, 1], len: [3, 65], dim: [33, 40], mask: 2, batch: 3, ..base },
        Case { len: [130, 130], dim: [64, 64], causal: Some(0), layout: 1, ..base },
        Case { heads: [4, 2], len: [90, 40], dim: [24, 128], causal: Some(0), mask: 3, ..base },
        Case { len: [20, 300], dim: [32, 48], mask: 3, layout: 2, ..base },
        Case { len: [4, 0], ..base },
        Case { len: [0, 4], ..base },
        // Weights are dropped: several blocks of keys and of rows, parts of words, a broadcast operand.
        Case { dropout: 1, ..base },
        Case { batch: 2, heads: [4, 2], len: [17, 33], dim: [13, 9], mask: 1, layout: 1, dropout: 2, ..base },
        Case { batch: 3, heads: [6, 1], len: [3, 65], dim: [33, 40], mask: 2, dropout: 1, ..base },
        Case { len: [130, 130], dim: [64, 64], causal: Some(0), layout: 1, dropout: 1, ..base },
        Case { batch: 2, heads: [4, 2], len: [90, 40], dim: [24, 128], causal: Some(0), dropout: 3, ..base },
        Case { len: [20, 300], dim: [32, 48], mask: 3, layout: 2, dropout: 2, ..base },
        Case { len: [4, 0], dropout: 1, ..base },
    ];
    for isa in isas() {
        for c in cases {
            let given = Given::of(&c);
            let expected = expected(&c, &given);
            for (n, (got, want)) in computed(isa, &c, &given).iter().zip(&expected).enumerate() {
                for (x, (got, want)) in got.iter().zip(want).enumerate() {
                    let off = (f64::from(*got) - want.value).abs();
                    assert!(
                        off <= want.bound(),
                        "{isa:?} {c:?} gradient {n} element {x}: {got} for {}, bound {}",
                        want.value,
                        want.bound()
                    );
                }
            }
        }
    }
}

/// What is computed in `f64`, in the order of [`expected`].
fn computed_in_double(c: &Case, given: &Given) -> [Vec<f64>; 3] {
    let [qs, ks, vs, gs] = given.strides;
    let d = &given.d;
    let [q, k, v, g, sums, deltas, add] =
        [&d.q, &d.k, &d.v, &given.g, &given.sums, &given.deltas, &d.add].map(|x| widened(x));
    let mut grads = [&q, &k, &v].map(|x| vec![9.0f64; x.len()]);
    let rows = [(c.heads[0] * c.len[0]) as isize, c.len[0] as isize, 1];
    let [dq, dk, dv] = &mut grads;
    let (q, k, v) = ((q.as_ptr(), qs), (k.as_ptr(), ks), (v.as_ptr(), vs));
    let call = AttentionBackwardF64 {
        attention: AttentionF64 { q, k, v, ..double(c, d, &add) },
        g: Tensor4 { ptr: g.as_ptr(), strides: gs },
        sums: RowValues { ptr: sums.as_ptr(), strides: rows },
        deltas: RowValues { ptr: deltas.as_ptr(), strides: rows },
        dq: Tensor4 { ptr: dq.as_mut_ptr(), strides: qs },
        dk: Tensor4 { ptr: dk.as_mut_ptr(), strides: ks },
        dv: Tensor4 { ptr: dv.as_mut_ptr(), strides: vs },
    };
    // SAFETY: the buffers are as large as the strides say.
    unsafe { attention_backward_f64(&call) };
    grads
}

#[test]
fn gradients_in_f64_match_the_definition() {
    for c in [
        Case { batch: 2, heads: [4, 2], len: [17, 33], dim: [13, 9], mask: 1, layout: 1, ..BASE },
        Case { batch: 2, heads: [4, 2], len: [17, 33], dim: [13, 9], mask: 1, layout: 1, dropout: 1, ..BASE },
        Case { batch: 3, heads: [6, 1], len: [3, 65], dim: [7, 8], mask: 2, dropout: 2, ..BASE },
        Case { batch: 2, len: [40, 70], causal: Some(0), dropout: 3, ..BASE },
    ] {
        let given = Given::of(&c);
        let expected = expected(&c, &given);
        for (n, (got, want)) in computed_in_double(&c, &given).iter().zip(&expected).enumerate() {
            for (x, (got, want)) in got.iter().zip(want).enumerate() {
                let off = (got - want.value).abs();
                assert!(
                    off <= 1e-13 * (1.0 + want.magnitude),
                    "{c:?} gradient {n} element {x}: {got} for {}",
                    want.value
                );
            }
        }
    }
}

#[test]
fn rows_that_see_nothing_add_nothing() {
    let c = Case { heads: [2, 1], len: [3, 70], dim: [8, 8], mask: 2, ..BASE };
    for isa in isas() {
        let mut given = Given::of(&c);
        given.d.seen.fill(false);
        given.sums.fill(f32::NEG_INFINITY);
        given.deltas.fill(0.0);
        let grads = computed(isa, &c, &given);
        assert!(grads.iter().flatten().all(|x| *x == 0.0), "{isa:?}");
    }
}
