//! Samples of the gamma and the Dirichlet distribution, with gradients to their parameters.

use fx_ir::ValueId;
use ir_core::DType;
use kernel_ir::{ReduceOp, ScalarOp};

use crate::ops::common::{choose, one};
use crate::ops::random::distributions::{normal, positive};
use crate::{Builder, Call, OpDef, OpError};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!("aten::_standard_gamma(Tensor self, Generator? generator=None) -> Tensor", |b, c| {
        let (shape, dtype) = parameter(b, c)?;
        let sample = gamma(b, c, shape)?;
        let tiny = smallest(dtype);
        let sample = b.maximum(sample, tiny)?;
        one(b.cast(sample, dtype)?)
    }),
    composite!("aten::_standard_gamma_grad(Tensor self, Tensor output) -> Tensor", |b, c| {
        let (shape, dtype) = parameter(b, c)?;
        let sample = b.cast(c.value("output")?, DType::F64)?;
        let slope = gamma_slope(b, shape, sample)?;
        one(b.cast(slope, dtype)?)
    }),
    composite!("aten::_sample_dirichlet(Tensor self, Generator? generator=None) -> Tensor", |b, c| {
        let (shape, dtype) = parameter(b, c)?;
        let sample = gamma(b, c, shape)?;
        let sample = b.maximum(sample, smallest(DType::F64))?;
        let last =
            b.rank(sample)?.checked_sub(1).ok_or_else(|| c.invalid("takes a dimension of parameters"))?;
        let total = b.reduce(ReduceOp::Sum, sample, &[last], true)?;
        let share = b.div(sample, total)?;
        let share = b.maximum(share, smallest(dtype))?;
        one(b.cast(share, dtype)?)
    }),
];

/// Rounds of proposal and rejection. A proposal is accepted with a probability above 0.95, so that all fail in fewer
/// than one of 10^13 samples; then the last proposal stands.
const ROUNDS: usize = 10;

/// The smallest positive normal number: no sample is 0.
fn smallest(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MIN_POSITIVE,
        DType::F16 => half::f16::MIN_POSITIVE.to_f64(),
        _ => f64::from(f32::MIN_POSITIVE),
    }
}

/// The parameters in `f64`, and their own dtype.
fn parameter(b: &mut Builder<'_>, c: &Call<'_>) -> Result<(ValueId, DType), OpError> {
    let x = c.value("self")?;
    let dtype = b.dtype(x)?;
    if !dtype.is_float() {
        return Err(OpError::DType { op: c.name().into(), dtype });
    }
    Ok((b.cast(x, DType::F64)?, dtype))
}

/// Gamma variates of the given shapes (`f64`) and rate 1.
///
/// Marsaglia and Tsang (2000), "A simple method for generating gamma variables", for the shape plus 1, times
/// `u^(1 / shape)`. The gradient is that of the implicit function `P(shape, x) = const`.
fn gamma(b: &mut Builder<'_>, c: &Call<'_>, shape: ValueId) -> Result<ValueId, OpError> {
    let fixed = b.call1("prims.detach", vec![shape.into()])?;
    let sizes = b.sizes(fixed)?;
    let d = b.add(fixed, 2.0 / 3.0)?;
    let nine = b.mul(d, 9.0)?;
    let scale = b.rsqrt(nine)?;
    let mut found: Option<(ValueId, ValueId)> = None;
    for _ in 0..ROUNDS {
        let (n, u) = (normal(b, c, &sizes, DType::F64)?, positive(b, &sizes, DType::F64)?);
        let t = b.mul(scale, n)?;
        let t = b.add(t, 1.0)?;
        let squared = b.mul(t, t)?;
        let v = b.mul(squared, t)?;
        let allowed = b.gt(t, 0.0)?;
        let safe = choose(b, allowed, v, 1.0, DType::F64)?;
        // ln u < n²/2 + d - d v + d ln v
        let square = b.mul(n, n)?;
        let half = b.mul(square, 0.5)?;
        let log = b.log(safe)?;
        let rest = b.sub(log, safe)?;
        let rest = b.add(rest, 1.0)?;
        let rest = b.mul(d, rest)?;
        let bound = b.add(half, rest)?;
        let log_u = b.log(u)?;
        let below = b.lt(log_u, bound)?;
        let taken = b.and(below, allowed)?;
        found = Some(match found {
            None => (safe, taken),
            Some((v, done)) => (b.select(done, v, safe)?, b.or(done, taken)?),
        });
    }
    let (v, _) = found.ok_or_else(|| c.invalid("no proposal was made"))?;
    let larger = b.mul(d, v)?;
    let u = positive(b, &sizes, DType::F64)?;
    let inverse = b.div(1.0, fixed)?;
    let shrunk = b.pow(u, inverse)?;
    let sample = b.mul(larger, shrunk)?;
    let slope = gamma_slope(b, fixed, sample)?;
    // The value is the sample; the gradient comes from the difference, which is 0.
    let moved = b.sub(shape, fixed)?;
    let moved = b.mul(moved, slope)?;
    let sample = b.call1("prims.detach", vec![sample.into()])?;
    b.add(sample, moved)
}

/// `dx / da = -(dP(a, x) / da) / p(x; a)`, the numerator as a central difference of the tail that is smaller. 0 where
/// the density is not a positive number.
fn gamma_slope(b: &mut Builder<'_>, a: ValueId, x: ValueId) -> Result<ValueId, OpError> {
    let sizes = b.broadcast_sizes(&[a, x])?;
    let (a, x) = (b.expand(a, &sizes)?, b.expand(x, &sizes)?);
    // The cube root of the unit roundoff balances rounding against curvature.
    let step = b.mul(a, 6e-6)?;
    let (up, down) = (b.add(a, step)?, b.sub(a, step)?);
    let mut tails = Vec::new();
    for op in [ScalarOp::Igamma, ScalarOp::Igammac] {
        let (high, low) =
            (b.scalar_op(op, &[up.into(), x.into()])?, b.scalar_op(op, &[down.into(), x.into()])?);
        tails.push(b.sub(high, low)?);
    }
    let lower = b.neg(tails[0])?;
    let left = b.lt(x, a)?;
    let change = b.select(left, lower, tails[1])?;
    let width = b.sub(up, down)?;
    let change = b.div(change, width)?;
    let (log, gamma) = (b.log(x)?, b.scalar_op(ScalarOp::Lgamma, &[a.into()])?);
    let power = b.sub(a, 1.0)?;
    let power = b.mul(power, log)?;
    let density = b.sub(power, x)?;
    let density = b.sub(density, gamma)?;
    let density = b.exp(density)?;
    let slope = b.div(change, density)?;
    let size = b.abs(slope)?;
    let finite = b.lt(size, f64::INFINITY)?;
    let slope = choose(b, finite, slope, 0.0, DType::F64)?;
    b.call1("prims.detach", vec![slope.into()])
}
