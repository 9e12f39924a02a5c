//! Samples of distributions that tensors describe: categories (`multinomial`) and counts (`poisson`).

use fx_ir::{Arg, ValueId};
use ir_core::{DType, SymExpr};
use kernel_ir::ScalarOp;

use super::common::one;
use super::random::{positive, uniform};
use super::random_fill::exponential;
use crate::{Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(super) const OPS: &[OpDef] = &[
    composite!(
        "aten::multinomial(Tensor self, SymInt num_samples, bool replacement=False, *, Generator? generator=None) -> Tensor",
        multinomial
    ),
    composite!("aten::poisson(Tensor self, Generator? generator=None) -> Tensor", poisson),
];

/// Positions of categories drawn by weight, `[num_samples]` or `[rows, num_samples]`, `i64`.
fn multinomial(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let weights = c.value("self")?;
    let meta = b.meta(weights)?.clone();
    let rank = meta.rank();
    if !(1..=2).contains(&rank) || !meta.dtype.is_float() {
        return Err(c.bad_arg("self", "must be floating point weights of one or two dimensions"));
    }
    let count = c.sym("num_samples")?;
    b.require_at_least(&count, 1, |_| "`num_samples` must be positive".into())?;
    let weights = b.cast(weights, DType::F64)?;
    if c.bool("replacement")? { with_replacement(b, c, weights, count) } else { without(b, weights, count) }
}

/// Inverts the distribution function at uniform numbers.
fn with_replacement(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    weights: ValueId,
    count: SymExpr,
) -> Result<Outs, OpError> {
    let mut sizes = b.sizes(weights)?;
    let last = sizes.len() - 1;
    let categories = sizes[last].clone();
    let running = b.call1("prims.cumsum", vec![weights.into(), (last as i64).into()])?;
    let total = b.slice(running, last, &categories - &SymExpr::ONE, SymExpr::ONE, 1)?;
    sizes[last] = count;
    let u = uniform(b, c, &sizes, DType::F64)?;
    let total = b.expand(total, &sizes)?;
    let at = b.mul(u, total)?;
    // The first category whose running weight exceeds the number, so one without weight is never drawn.
    let args = vec![running.into(), at.into(), false.into(), true.into()];
    let found = b.call1("aten.searchsorted.Tensor", args)?;
    let end = &categories - &SymExpr::ONE;
    one(b.scalar_op(ScalarOp::Min, &[found.into(), end.into()])?)
}

/// The largest of `weight / exponential`: the race of exponential clocks gives an order by weight without repetition.
fn without(b: &mut Builder<'_>, weights: ValueId, count: SymExpr) -> Result<Outs, OpError> {
    let sizes = b.sizes(weights)?;
    let last = sizes.len() - 1;
    b.require_at_least(&sizes[last], count.clone(), |graph| {
        let (want, have) = (graph.size_text(&count), graph.size_text(&sizes[last]));
        format!("`num_samples` is {want}, of {have} categories without replacement")
    })?;
    let clock = exponential(b, &sizes, DType::F64)?;
    let race = b.div(weights, clock)?;
    let args = vec![race.into(), Arg::Int(count), (last as i64).into(), true.into(), true.into()];
    one(b.call("aten.topk.default", args)?[1])
}

/// Halvings of the interval in which a count is searched: enough for rates up to 2^40.
const MAX_BISECTIONS: u32 = 26;

/// Counts of the rates in `self`: the smallest `k` with `P(X <= k) = Q(k + 1, rate) >= u`, found by bisection within
/// 12 standard deviations (and 40 more, for small rates) of the rate.
fn poisson(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let rate = c.value("self")?;
    let meta = b.meta(rate)?.clone();
    if !meta.dtype.is_float() {
        return Err(OpError::DType { op: c.name().into(), dtype: meta.dtype });
    }
    let rate = b.cast(rate, DType::F64)?;
    let u = positive(b, &meta.sizes, DType::F64)?;
    let root = b.sqrt(rate)?;
    let spread = b.mul(root, 12.0)?;
    let spread = b.add(spread, 40.0)?;
    let (low, high) = (b.sub(rate, spread)?, b.add(rate, spread)?);
    let (low, high) = (b.floor(low)?, b.floor(high)?);
    // `low` is below the count, `high` is not.
    let (mut low, mut high) = (b.maximum(low, -1.0)?, high);
    for _ in 0..MAX_BISECTIONS {
        let sum = b.add(low, high)?;
        let half = b.mul(sum, 0.5)?;
        let middle = b.floor(half)?;
        let next = b.add(middle, 1.0)?;
        let known = b.call1("prims.igammac", vec![next.into(), rate.into()])?;
        let inside = b.ge(known, u)?;
        let above = b.gt(middle, low)?;
        let down = b.and(inside, above)?;
        let up = b.not(inside)?;
        high = b.select(down, middle, high)?;
        low = b.select(up, middle, low)?;
    }
    let none = b.le(rate, 0.0)?;
    let count = b.select(none, 0.0, high)?;
    one(b.cast(count, meta.dtype)?)
}
