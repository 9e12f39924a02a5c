//! References of the template prims, accumulating in double precision: matrix product and convolution are the typed
//! loops of `tensor::linalg`, attention is written out here.

use tensor::{Tensor, linalg};

use crate::ops::prims_shape::one;
use crate::{OpError, RefCall, RefOut};

fn values(c: &RefCall<'_>, t: &Tensor) -> Result<Vec<f64>, OpError> {
    t.to_dtype(ir_core::DType::F64).and_then(|t| t.to_vec::<f64>()).map_err(|e| c.tensor_error(e))
}

fn build(c: &RefCall<'_>, values: Vec<f64>) -> Result<RefOut, OpError> {
    one(c, Tensor::from_vec(values, c.out().1).and_then(|t| t.to_dtype(c.out().0)))
}

pub(super) fn matmul(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    one(c, linalg::matmul(c.tensor("a")?, c.tensor("b")?, c.out().0))
}

pub(super) fn conv(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let positive = |name: &str| -> Result<Vec<usize>, OpError> {
        let wrong = |_| c.bad_arg(name, "must not be negative");
        c.ints(name)?.into_iter().map(|x| usize::try_from(x).map_err(wrong)).collect()
    };
    // What is added after the last element shows in the output's size alone.
    let padding: Vec<isize> = c.ints("padding")?.into_iter().step_by(2).map(|p| p as isize).collect();
    let geometry = linalg::ConvGeometry {
        stride: &positive("stride")?,
        padding: &padding,
        dilation: &positive("dilation")?,
        output: c.out().1.get(2..).unwrap_or(&[]),
        groups: usize::try_from(c.int("groups")?).unwrap_or(0),
        transposed: c.bool("transposed")?,
    };
    one(c, linalg::conv(c.tensor("input")?, c.tensor("weight")?, &geometry, c.out().0))
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
