//! Tensors filled with random numbers of a distribution: the values of `uniform_`, `normal_`, `bernoulli_` and their
//! kin (an in-place operator is found by the name of its counterpart), and `normal`, `bernoulli` with tensor parameters.
//! How numbers are drawn stands in `random`.

use std::f64::consts::PI;

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::ScalarOp;

use super::common::{choose, one};
use super::random::{below, bernoulli_event, normal, positive, uniform, want_float};
use crate::promotion::DEFAULT_FLOAT;
use crate::{Builder, Call, OpDef, OpError, Outs};

/// The entries. `normal` and `bernoulli.float` are no operators of ATen: they are what `normal_` and
/// `bernoulli_.float` write.
pub(super) const OPS: &[OpDef] = &[
    composite!(
        "aten::uniform(Tensor self, float from=0., float to=1., *, Generator? generator=None) -> Tensor",
        uniform_between
    ),
    composite!(
        "aten::normal(Tensor self, float mean=0., float std=1., *, Generator? generator=None) -> Tensor",
        normal_like
    ),
    composite!(
        "aten::normal_functional(Tensor self, float mean=0., float std=1., *, Generator? generator=None) -> Tensor",
        normal_like
    ),
    composite!(
        "aten::normal.Tensor_float(Tensor mean, float std=1., *, Generator? generator=None) -> Tensor",
        normal_of
    ),
    composite!(
        "aten::normal.float_Tensor(float mean, Tensor std, *, Generator? generator=None) -> Tensor",
        normal_of
    ),
    composite!(
        "aten::normal.Tensor_Tensor(Tensor mean, Tensor std, *, Generator? generator=None) -> Tensor",
        normal_of
    ),
    composite!(
        "aten::normal.float_float(float mean, float std, SymInt[] size, *, Generator? generator=None, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        |b, c| {
            let dtype = c.opt_dtype("dtype")?.unwrap_or(DEFAULT_FLOAT);
            one(scaled_normal(b, c, &c.syms("size")?, dtype)?)
        }
    ),
    composite!(
        "aten::log_normal(Tensor self, float mean=1., float std=2., *, Generator? generator=None) -> Tensor",
        |b, c| {
            filled(b, c, |b, sizes, compute| {
                let n = scaled_normal(b, c, sizes, compute)?;
                b.exp(n)
            })
        }
    ),
    composite!(
        "aten::exponential(Tensor self, float lambd=1., *, Generator? generator=None) -> Tensor",
        |b, c| {
            let rate = c.float("lambd")?;
            if rate.is_nan() || rate <= 0.0 {
                return Err(c.bad_arg("lambd", "must be positive"));
            }
            filled(b, c, |b, sizes, compute| {
                let n = exponential(b, sizes, compute)?;
                b.div(n, rate)
            })
        }
    ),
    composite!(
        "aten::cauchy(Tensor self, float median=0., float sigma=1., *, Generator? generator=None) -> Tensor",
        |b, c| {
            let (median, sigma) = (c.float("median")?, c.float("sigma")?);
            if sigma.is_nan() || sigma <= 0.0 {
                return Err(c.bad_arg("sigma", "must be positive"));
            }
            filled(b, c, |b, sizes, compute| {
                let u = positive(b, sizes, compute)?;
                let centred = b.sub(u, 0.5)?;
                let angle = b.mul(centred, PI)?;
                let tan = b.scalar_op(ScalarOp::Tan, &[angle.into()])?;
                let n = b.mul(tan, sigma)?;
                b.add(n, median)
            })
        }
    ),
    composite!("aten::geometric(Tensor self, float p, *, Generator? generator=None) -> Tensor", geometric),
    composite!("aten::random(Tensor self, *, Generator? generator=None) -> Tensor", |b, c| {
        random_range(b, c, Some(0), None)
    }),
    composite!("aten::random.to(Tensor self, int to, *, Generator? generator=None) -> Tensor", |b, c| {
        random_range(b, c, Some(0), Some(c.int("to")?))
    }),
    composite!(
        "aten::random.from(Tensor self, int from, int? to, *, Generator? generator=None) -> Tensor",
        |b, c| random_range(b, c, Some(c.int("from")?), c.opt_int("to")?)
    ),
    composite!("aten::bernoulli(Tensor self, *, Generator? generator=None) -> Tensor", |b, c| {
        let p = c.value("self")?;
        let meta = b.meta(p)?.clone();
        want_float(c, meta.dtype)?;
        bernoulli_of(b, c, p, &meta.sizes, meta.dtype)
    }),
    composite!(
        "aten::bernoulli.Tensor(Tensor self, Tensor p, *, Generator? generator=None) -> Tensor",
        |b, c| {
            let meta = b.meta(c.value("self")?)?.clone();
            bernoulli_of(b, c, c.value("p")?, &meta.sizes, meta.dtype)
        }
    ),
    composite!("aten::bernoulli.p(Tensor self, float p, *, Generator? generator=None) -> Tensor", bernoulli),
    composite!(
        "aten::bernoulli.float(Tensor self, float p=0.5, *, Generator? generator=None) -> Tensor",
        bernoulli
    ),
];

/// A tensor like `self`, which must be real floating point, drawn in the dtype of arithmetic.
fn filled(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    draw: impl FnOnce(&mut Builder<'_>, &Shape, DType) -> Result<ValueId, OpError>,
) -> Result<Outs, OpError> {
    let meta = b.meta(c.value("self")?)?.clone();
    if !meta.dtype.is_float() {
        return Err(OpError::DType { op: c.name().into(), dtype: meta.dtype });
    }
    let wide = draw(b, &meta.sizes, meta.dtype.compute())?;
    one(b.cast(wide, meta.dtype)?)
}

/// Exponential of rate 1: `-ln u`.
pub(super) fn exponential(
    b: &mut Builder<'_>,
    sizes: &[SymExpr],
    compute: DType,
) -> Result<ValueId, OpError> {
    let u = positive(b, sizes, compute)?;
    let log = b.log(u)?;
    b.neg(log)
}

/// `from + u * (to - from)`; where rounding gives `to` itself, `from`.
fn uniform_between(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let meta = b.meta(c.value("self")?)?.clone();
    let (from, to) = (c.float("from")?, c.float("to")?);
    if from.is_nan() || to.is_nan() || from > to {
        return Err(c.invalid(format!("`from` ({from}) must not exceed `to` ({to})")));
    }
    let u = uniform(b, c, &meta.sizes, meta.dtype)?;
    if meta.dtype.is_complex() || (from, to) == (0.0, 1.0) {
        return one(u);
    }
    let wide = super::common::widen(b, u)?;
    let spread = b.mul(wide, to - from)?;
    let shifted = b.add(spread, from)?;
    let narrow = b.cast(shifted, meta.dtype)?;
    if from == to {
        return one(narrow);
    }
    let end = b.ge(narrow, to)?;
    one(choose(b, end, from, narrow, meta.dtype)?)
}

fn checked_std(c: &Call<'_>) -> Result<f64, OpError> {
    let std = c.float("std")?;
    if std >= 0.0 { Ok(std) } else { Err(c.bad_arg("std", "must not be negative")) }
}

/// `mean + std * n` with numbers for both.
fn scaled_normal(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    sizes: &[SymExpr],
    dtype: DType,
) -> Result<ValueId, OpError> {
    let (mean, std) = (c.float("mean")?, checked_std(c)?);
    let n = normal(b, c, sizes, dtype.compute())?;
    let n = b.mul(n, std)?;
    let n = b.add(n, mean)?;
    b.cast(n, dtype)
}

fn normal_like(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let meta = b.meta(c.value("self")?)?.clone();
    one(scaled_normal(b, c, &meta.sizes, meta.dtype)?)
}

/// `mean + std * n` with a tensor for either or both, broadcast; the result has the first tensor's dtype.
fn normal_of(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let tensor = |name| match c.arg(name) {
        Arg::Value(v) => Some(*v),
        _ => None,
    };
    let tensors: Vec<ValueId> = [tensor("mean"), tensor("std")].into_iter().flatten().collect();
    let Some(&first) = tensors.first() else { return Err(c.invalid("no operand is a tensor")) };
    let (dtype, sizes) = (b.dtype(first)?, b.broadcast_sizes(&tensors)?);
    want_float(c, dtype)?;
    if tensor("std").is_none() {
        checked_std(c)?;
    }
    let compute = dtype.compute();
    let n = normal(b, c, &sizes, compute)?;
    let (mean, std) = (b.as_dtype(c.arg("mean"), compute)?, b.as_dtype(c.arg("std"), compute)?);
    let n = b.mul(n, std)?;
    let n = b.add(n, mean)?;
    one(b.cast(n, dtype)?)
}

/// Trials up to the first success, from 1: `ceil(ln u / ln(1 - p))`.
fn geometric(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let meta = b.meta(c.value("self")?)?.clone();
    let p = c.float("p")?;
    if !(p > 0.0 && p < 1.0) || meta.dtype.is_complex() || meta.dtype == DType::Bool {
        return Err(c.invalid("takes a real tensor and a probability between 0 and 1, both excluded"));
    }
    // Long waits are counted one by one in integers.
    let compute = if meta.dtype.is_float() { meta.dtype.compute() } else { DType::F64 };
    let u = positive(b, &meta.sizes, compute)?;
    let log = b.log(u)?;
    let ratio = b.div(log, (-p).ln_1p())?;
    let trials = b.scalar_op(ScalarOp::Ceil, &[ratio.into()])?;
    let trials = b.maximum(trials, 1.0)?;
    one(b.cast(trials, meta.dtype)?)
}

/// `random_`: integers from `from` up to below `to`, or up to the largest of the dtype.
fn random_range(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    from: Option<i64>,
    to: Option<i64>,
) -> Result<Outs, OpError> {
    let meta = b.meta(c.value("self")?)?.clone();
    if meta.dtype.is_complex() {
        return Err(OpError::DType { op: c.name().into(), dtype: meta.dtype });
    }
    let from = from.unwrap_or(0);
    let last = to.map_or(meta.dtype.integers().1, |to| to.saturating_sub(1));
    if to.is_some_and(|to| from >= to) || from > last {
        return Err(c.invalid("`from` must be smaller than `to`"));
    }
    let range = i128::from(last) - i128::from(from) + 1;
    let n = match i64::try_from(range) {
        Ok(range) => below(b, &meta.sizes, from.into(), range.into())?,
        // More than 63 bits: all of them, folded into the range by one more draw of its lower or upper half.
        Err(_) => {
            let half = ((range + 1) / 2).min(i128::from(i64::MAX)) as i64;
            let n = below(b, &meta.sizes, from.into(), half.into())?;
            let upper = bernoulli_event(b, &meta.sizes, 0.5)?;
            let moved = b.add(n, last.wrapping_sub(half).wrapping_add(1).wrapping_sub(from))?;
            b.select(upper, moved, n)?
        }
    };
    one(b.cast(n, meta.dtype)?)
}

fn bernoulli(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let meta = b.meta(c.value("self")?)?.clone();
    let p = c.float("p")?;
    if !(0.0..=1.0).contains(&p) {
        return Err(c.bad_arg("p", format!("must be a probability, not {p}")));
    }
    let happens = bernoulli_event(b, &meta.sizes, p)?;
    one(b.cast(happens, meta.dtype)?)
}

/// Every element with a probability of its own; the result has the sizes and dtype given.
fn bernoulli_of(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    p: ValueId,
    sizes: &[SymExpr],
    dtype: DType,
) -> Result<Outs, OpError> {
    if dtype.is_complex() || !b.dtype(p)?.is_float() {
        return Err(c.invalid("takes real tensors, and probabilities in a floating point dtype"));
    }
    let p = super::common::widen(b, p)?;
    let p = b.expand(p, sizes)?;
    let compute = b.dtype(p)?;
    let u = uniform(b, c, sizes, compute)?;
    let happens = b.lt(u, p)?;
    one(b.cast(happens, dtype)?)
}
