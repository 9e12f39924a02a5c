//! Elementwise losses: the loss of every element in the dtype of arithmetic, then the mean or the sum.

use std::f64::consts::PI;

use fx_ir::{Arg, ValueId};
use ir_core::Scalar;
use kernel_ir::ReduceOp;

use crate::ops::common::in_compute;
use crate::ops::reductions::reduction::mean_of;
use crate::promotion::Promote;
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// How a loss becomes one number: PyTorch's `reduction`.
#[derive(Clone, Copy, PartialEq)]
pub(in crate::ops) enum Reduction {
    None,
    Mean,
    Sum,
}

impl Reduction {
    pub(in crate::ops) fn of(c: &Call<'_>) -> Result<Reduction, OpError> {
        match c.int("reduction")? {
            0 => Ok(Reduction::None),
            1 => Ok(Reduction::Mean),
            2 => Ok(Reduction::Sum),
            n => Err(c.bad_arg("reduction", format!("is {n}, not 0 (none), 1 (mean) or 2 (sum)"))),
        }
    }
    /// Of a loss in the dtype of arithmetic.
    pub(in crate::ops) fn apply(self, b: &mut Builder<'_>, loss: ValueId) -> Result<ValueId, OpError> {
        let dims: Vec<usize> = (0..b.rank(loss)?).collect();
        match self {
            Reduction::None => Ok(loss),
            Reduction::Mean => mean_of(b, loss, &dims, false),
            Reduction::Sum => b.reduce(ReduceOp::Sum, loss, &dims, false),
        }
    }
}

/// A loss of `self` and `target`.
macro_rules! loss {
    ($schema:literal, $f:expr) => {
        composite!($schema, |b, c| elementwise(b, c, Promote::Default, &["self", "target"], $f))
    };
}

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    // (x - y)²
    loss!("aten::mse_loss(Tensor self, Tensor target, int reduction=1) -> Tensor", |b, _, x, y| {
        let d = b.sub(x, y)?;
        b.mul(d, d)
    }).autocast(Autocast::FLOAT32),
    // |x - y|
    loss!("aten::l1_loss(Tensor self, Tensor target, int reduction=1) -> Tensor", |b, _, x, y| distance(
        b, x, y
    )).autocast(Autocast::FLOAT32),
    // d² / (2 beta) where d = |x - y| is under beta, else d - beta / 2
    loss!(
        "aten::smooth_l1_loss(Tensor self, Tensor target, int reduction=1, float beta=1.) -> Tensor",
        |b, c, x, y| {
            let beta = c.float("beta")?;
            let d = distance(b, x, y)?;
            if beta == 0.0 {
                return Ok(d);
            }
            let square = b.mul(d, d)?;
            let low = b.mul(square, 0.5 / beta)?;
            let high = b.sub(d, 0.5 * beta)?;
            let near = b.lt(d, beta)?;
            b.select(near, low, high)
        }
    ).autocast(Autocast::FLOAT32),
    // d² / 2 where d = |x - y| is at most delta, else delta (d - delta / 2)
    loss!(
        "aten::huber_loss(Tensor self, Tensor target, int reduction=1, float delta=1.) -> Tensor",
        |b, c, x, y| {
            let delta = c.float("delta")?;
            let d = distance(b, x, y)?;
            let square = b.mul(d, d)?;
            let low = b.mul(square, 0.5)?;
            let over = b.sub(d, 0.5 * delta)?;
            let high = b.mul(over, delta)?;
            let near = b.le(d, delta)?;
            b.select(near, low, high)
        }
    ).autocast(Autocast::FLOAT32),
    // log(1 + exp(-y x))
    loss!("aten::soft_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor", |b, _, x, y| {
        let product = b.mul(y, x)?;
        let minus = b.neg(product)?;
        let e = b.exp(minus)?;
        b.log1p(e)
    }).autocast(Autocast::FLOAT32),
    composite!(
        "aten::binary_cross_entropy(Tensor self, Tensor target, Tensor? weight=None, int reduction=1) -> Tensor",
        |b, c| weighted(b, c, cross_entropy)
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::binary_cross_entropy_with_logits(Tensor self, Tensor target, Tensor? weight=None, Tensor? pos_weight=None, int reduction=1) -> Tensor",
        |b, c| weighted(b, c, cross_entropy_of_logits)
    ).autocast(Autocast::FLOAT32),
    loss!(
        "aten::kl_div(Tensor self, Tensor target, int reduction=1, *, bool log_target=False) -> Tensor",
        kl_div
    ).autocast(Autocast::FLOAT32),
    composite!(
        "aten::poisson_nll_loss(Tensor input, Tensor target, bool log_input, bool full, float eps, int reduction) -> Tensor",
        |b, c| elementwise(b, c, Promote::IntToFloat, &["input", "target"], poisson)
    ).autocast(Autocast::FLOAT32),
    composite!(
        "aten::hinge_embedding_loss(Tensor self, Tensor target, float margin=1., int reduction=1) -> Tensor",
        |b, c| { elementwise(b, c, Promote::IntToFloat, &["self", "target"], hinge_embedding) }
    ).autocast(Autocast::FLOAT32),
    // max(0, margin - target (input1 - input2))
    composite!(
        "aten::margin_ranking_loss(Tensor input1, Tensor input2, Tensor target, float margin=0., int reduction=1) -> Tensor",
        |b, c| {
            let reduction = Reduction::of(c)?;
            in_compute(b, c, Promote::IntToFloat, &["input1", "input2", "target"], |b, xs| {
                let d = b.sub(xs[0].clone(), xs[1].clone())?;
                let minus = b.neg(d)?;
                let product = b.mul(xs[2].clone(), minus)?;
                let loss = hinge(b, product, c.float("margin")?)?;
                reduction.apply(b, loss)
            })
        }
    ).autocast(Autocast::FLOAT32),
];

/// `max(0, x + margin)` in the dtype of `x`.
pub(in crate::ops) fn hinge(b: &mut Builder<'_>, x: ValueId, margin: f64) -> Result<ValueId, OpError> {
    let dtype = b.dtype(x)?;
    let moved = b.add(x, Scalar::Float(margin).to_class_of(dtype))?;
    b.maximum(moved, Scalar::zero(dtype))
}

fn distance(b: &mut Builder<'_>, x: ValueId, y: ValueId) -> Result<ValueId, OpError> {
    let d = b.sub(x, y)?;
    b.call1("aten.abs.default", vec![d.into()])
}

type Loss = fn(&mut Builder<'_>, &Call<'_>, ValueId, ValueId) -> Result<ValueId, OpError>;

fn elementwise(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    rule: Promote,
    names: &[&str],
    f: Loss,
) -> Result<Outs, OpError> {
    let reduction = Reduction::of(c)?;
    in_compute(b, c, rule, names, |b, xs| {
        let [Arg::Value(x), Arg::Value(y)] = xs else { return Err(c.bad_arg("target", "must be a tensor")) };
        let loss = f(b, c, *x, *y)?;
        reduction.apply(b, loss)
    })
    .and_then(|outs| real_result(b, outs))
}

/// The loss of complex operands is real.
fn real_result(b: &mut Builder<'_>, outs: Outs) -> Result<Outs, OpError> {
    let dtype = b.dtype(outs[0])?;
    if dtype.is_complex() { b.call("prims.real", vec![outs[0].into()]) } else { Ok(outs) }
}

/// A loss of `self` and `target`, times `weight` before it is reduced.
fn weighted(b: &mut Builder<'_>, c: &Call<'_>, f: Loss) -> Result<Outs, OpError> {
    let reduction = Reduction::of(c)?;
    let weight = c.opt_value("weight")?;
    in_compute(b, c, Promote::Default, &["self", "target"], |b, xs| {
        let [Arg::Value(x), Arg::Value(y)] = xs else { return Err(c.bad_arg("target", "must be a tensor")) };
        let mut loss = f(b, c, *x, *y)?;
        if let Some(weight) = weight {
            let dtype = b.dtype(loss)?;
            let weight = b.cast(weight, dtype)?;
            loss = b.mul(loss, weight)?;
        }
        reduction.apply(b, loss)
    })
}

/// `-(y log x + (1 - y) log(1 - x))`; logarithms are at least -100, so that the loss stays finite. Its derivative for
/// `x` is `(x - y) / max(x (1 - x), 1e-12)`, finite too: that of the loss without bounds, and of `(x² / 2 - x y) / 1e-12`
/// at the ends. Both may be differentiated again.
fn cross_entropy(b: &mut Builder<'_>, _: &Call<'_>, x: ValueId, y: ValueId) -> Result<ValueId, OpError> {
    let fixed = b.call1("prims.detach", vec![x.into()])?;
    let loss = bounded_cross_entropy(b, fixed, y)?;
    let rest = b.sub(1.0, fixed)?;
    let spread = b.mul(fixed, rest)?;
    let inside = b.gt(spread, 1e-12)?;
    let safe = b.select(inside, x, 0.5)?;
    let log = b.log(safe)?;
    let minus = b.neg(safe)?;
    let log_rest = b.log1p(minus)?;
    let exact = weighted_logarithms(b, log, log_rest, y)?;
    let target = b.call1("prims.detach", vec![y.into()])?;
    let half = b.mul(x, 0.5)?;
    let half = b.sub(half, target)?;
    let end = b.mul(x, half)?;
    let end = b.mul(end, 1e12)?;
    let end = b.add(loss, end)?;
    let carrier = b.select(inside, exact, end)?;
    b.call1("prims.with_gradient_of", vec![loss.into(), carrier.into()])
}

fn bounded_cross_entropy(b: &mut Builder<'_>, x: ValueId, y: ValueId) -> Result<ValueId, OpError> {
    let log = b.log(x)?;
    let log = b.maximum(log, -100.0)?;
    let minus = b.neg(x)?;
    let log_rest = b.log1p(minus)?;
    let log_rest = b.maximum(log_rest, -100.0)?;
    weighted_logarithms(b, log, log_rest, y)
}

/// `-(y log + (1 - y) rest)`.
fn weighted_logarithms(
    b: &mut Builder<'_>,
    log: ValueId,
    log_rest: ValueId,
    y: ValueId,
) -> Result<ValueId, OpError> {
    let less = b.sub(y, 1.0)?;
    let first = b.mul(less, log_rest)?;
    let second = b.mul(y, log)?;
    b.sub(first, second)
}

/// `(1 - y) x - w log(sigmoid(x))` with `w = 1 + (pos_weight - 1) y`.
fn cross_entropy_of_logits(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    x: ValueId,
    y: ValueId,
) -> Result<ValueId, OpError> {
    let mut log = b.call1("aten.log_sigmoid.default", vec![x.into()])?;
    if let Some(pos) = c.opt_value("pos_weight")? {
        let dtype = b.dtype(x)?;
        let pos = b.cast(pos, dtype)?;
        let excess = b.sub(pos, 1.0)?;
        let excess = b.mul(excess, y)?;
        let factor = b.add(excess, 1.0)?;
        log = b.mul(log, factor)?;
    }
    let rest = b.sub(1.0, y)?;
    let linear = b.mul(rest, x)?;
    b.sub(linear, log)
}

/// `y (log y - x)`, 0 where y is 0; for a target given as logarithm `exp(y) (y - x)`.
fn kl_div(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, y: ValueId) -> Result<ValueId, OpError> {
    if c.bool("log_target")? {
        let d = b.sub(y, x)?;
        let e = b.exp(y)?;
        return b.mul(e, d);
    }
    let entropy = b.call1("aten.xlogy.Tensor", vec![y.into(), y.into()])?;
    let product = b.mul(y, x)?;
    b.sub(entropy, product)
}

/// `exp(x) - y x`, or of rates `x - y log(x + eps)`; `full` adds Stirling's `y log y - y + log(2 pi y) / 2` for y > 1.
fn poisson(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, y: ValueId) -> Result<ValueId, OpError> {
    let loss = if c.bool("log_input")? {
        let (e, product) = (b.exp(x)?, b.mul(y, x)?);
        b.sub(e, product)?
    } else {
        let safe = b.add(x, c.float("eps")?)?;
        let log = b.log(safe)?;
        let product = b.mul(y, log)?;
        b.sub(x, product)?
    };
    if !c.bool("full")? {
        return Ok(loss);
    }
    let log = b.log(y)?;
    let first = b.mul(y, log)?;
    let first = b.sub(first, y)?;
    let circle = b.mul(y, 2.0 * PI)?;
    let tail = b.log(circle)?;
    let tail = b.mul(tail, 0.5)?;
    let stirling = b.add(first, tail)?;
    let small = b.le(y, 1.0)?;
    let stirling = b.select(small, 0.0, stirling)?;
    b.add(loss, stirling)
}

/// x where the target is not -1, plus `max(0, margin - x)` where it is not 1.
fn hinge_embedding(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, y: ValueId) -> Result<ValueId, OpError> {
    let dtype = b.dtype(x)?;
    let number = |n: i64| Scalar::Int(n).to_class_of(dtype);
    let minus = b.neg(x)?;
    let clamped = hinge(b, minus, c.float("margin")?)?;
    let (not_one, not_minus) = (b.ne(y, number(1))?, b.ne(y, number(-1))?);
    let apart = b.select(not_one, clamped, number(0))?;
    let near = b.select(not_minus, x, number(0))?;
    b.add(apart, near)
}
