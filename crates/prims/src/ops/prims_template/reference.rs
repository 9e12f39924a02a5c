//! References of the template prims: plain loops that accumulate in double precision.

use tensor::Tensor;

use crate::ops::prims_shape::one;
use crate::{OpError, RefCall, RefOut};

fn values(c: &RefCall<'_>, t: &Tensor) -> Result<Vec<f64>, OpError> {
    t.to_dtype(ir_core::DType::F64).and_then(|t| t.to_vec::<f64>()).map_err(|e| c.tensor_error(e))
}

fn build(c: &RefCall<'_>, values: Vec<f64>) -> Result<RefOut, OpError> {
    one(c, Tensor::from_vec(values, c.out().1).and_then(|t| t.to_dtype(c.out().0)))
}

pub(super) fn matmul(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (a, b) = (c.tensor("a")?, c.tensor("b")?);
    let rank = a.rank();
    let (m, k, n) = (a.sizes()[rank - 2], a.sizes()[rank - 1], b.sizes()[rank - 1]);
    let batch: usize = a.sizes()[..rank - 2].iter().product();
    let (a, b) = (values(c, a)?, values(c, b)?);
    let mut out = vec![0.0; batch * m * n];
    for (row, target) in out.chunks_mut(n.max(1)).enumerate() {
        let b = &b[row / m.max(1) * k * n..];
        for i in 0..k {
            let x = a[row * k + i];
            target.iter_mut().zip(&b[i * n..(i + 1) * n]).for_each(|(t, y)| *t += x * y);
        }
    }
    build(c, out)
}

/// Every index of a shape, in row-major order.
fn for_each_index(sizes: &[usize], mut visit: impl FnMut(&[usize])) {
    let mut at = vec![0; sizes.len()];
    if sizes.contains(&0) {
        return;
    }
    loop {
        visit(&at);
        let Some(d) = (0..sizes.len()).rev().find(|&d| at[d] + 1 < sizes[d]) else { return };
        at[d] += 1;
        at[d + 1..].fill(0);
    }
}

fn flat(at: &[usize], sizes: &[usize]) -> usize {
    at.iter().zip(sizes).fold(0, |n, (i, s)| n * s + i)
}

pub(super) fn conv(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (x, w) = (c.tensor("input")?, c.tensor("weight")?);
    let (stride, pads, dilation) = (c.ints("stride")?, c.ints("padding")?, c.ints("dilation")?);
    let (groups, transposed) = (c.int("groups")?.max(1) as usize, c.bool("transposed")?);
    let (xs, ws, os) = (x.sizes().to_vec(), w.sizes().to_vec(), c.out().1.to_vec());
    let (xv, wv) = (values(c, x)?, values(c, w)?);
    let (in_group, out_group) = (xs[1] / groups, os[1] / groups);
    let mut out = vec![0.0; os.iter().product()];
    let (window, plane) = (&ws[2..], xs[2..].iter().product::<usize>());
    let out_plane: usize = os[2..].iter().product();
    // One pass over the points that a window position connects; channels innermost as plain loops.
    for_each_index(window, |tap| {
        let tap_at = flat(tap, window);
        let taps: usize = window.iter().product();
        let mut pairs = Vec::new();
        // Normal: output o reads input o * stride + tap * dilation - pad. Transposed: the same with roles exchanged.
        let (from, to) = if transposed { (&xs[2..], &os[2..]) } else { (&os[2..], &xs[2..]) };
        for_each_index(from, |p| {
            let q: Option<Vec<usize>> = (0..p.len())
                .map(|d| {
                    let at = p[d] as i64 * stride[d] + tap[d] as i64 * dilation[d] - pads[2 * d];
                    usize::try_from(at).ok().filter(|&i| i < to[d])
                })
                .collect();
            if let Some(q) = q {
                pairs.push((flat(p, from), flat(&q, to)));
            }
        });
        for n in 0..xs[0] {
            for o in 0..os[1] {
                let g = o / out_group.max(1);
                let target = &mut out[(n * os[1] + o) * out_plane..][..out_plane];
                for i in 0..in_group {
                    let ci = g * in_group + i;
                    let source = &xv[(n * xs[1] + ci) * plane..][..plane];
                    let at = if transposed { ci * ws[1] + o % out_group } else { o * ws[1] + i };
                    let weight = wv[at * taps + tap_at];
                    for &(p, q) in &pairs {
                        let (o, i) = if transposed { (q, p) } else { (p, q) };
                        target[o] += weight * source[i];
                    }
                }
            }
        }
    });
    build(c, out)
}

pub(super) fn attention(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (q, k, v) = (c.tensor("q")?, c.tensor("k")?, c.tensor("v")?);
    let (causal, scale) = (c.bool("causal")?, c.scalar("scale")?.as_f64());
    let (b, h, lq, d) = (q.sizes()[0], q.sizes()[1], q.sizes()[2], q.sizes()[3]);
    let (hkv, lk, dv) = (k.sizes()[1], k.sizes()[2], v.sizes()[3]);
    let mask = match c.opt_tensor("mask")? {
        Some(m) => Some((m.dtype(), values(c, &m.expand(&[b, h, lq, lk]).map_err(|e| c.tensor_error(e))?)?)),
        None => None,
    };
    let (q, k, v) = (values(c, q)?, values(c, k)?, values(c, v)?);
    let mut out = vec![0.0; b * h * lq * dv];
    for (row, target) in out.chunks_mut(dv.max(1)).enumerate().take(b * h * lq) {
        let (i, head) = (row % lq, row / lq);
        let kv = head / h * hkv + head % h / (h / hkv);
        let score = |j: usize| {
            let dot: f64 = (0..d).map(|x| q[row * d + x] * k[(kv * lk + j) * d + x]).sum();
            let score = dot * scale;
            match &mask {
                _ if causal && j > i => f64::NEG_INFINITY,
                Some((ir_core::DType::Bool, m)) => {
                    if m[row * lk + j] != 0.0 {
                        score
                    } else {
                        f64::NEG_INFINITY
                    }
                }
                Some((_, m)) => score + m[row * lk + j],
                None => score,
            }
        };
        let scores: Vec<f64> = (0..lk).map(score).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if top == f64::NEG_INFINITY {
            // Nothing takes part: zeros.
            continue;
        }
        let exps: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
        let sum: f64 = exps.iter().sum();
        for (j, e) in exps.iter().enumerate() {
            let source = &v[(kv * lk + j) * dv..][..dv];
            target.iter_mut().zip(source).for_each(|(t, x)| *t += e / sum * x);
        }
    }
    build(c, out)
}
