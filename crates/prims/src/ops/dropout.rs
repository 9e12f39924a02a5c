//! Dropout in all its forms, and `rrelu`, whose slopes are random in training. The factor of an element is 0 or the
//! inverse of the probability to keep it; gradients go through the product, so they see the same factors.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Shape, SymExpr};
use smallvec::smallvec;

use super::common::{choose, float_of, one, widen};
use super::random::{bernoulli_event, uniform};
use crate::{Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(super) const OPS: &[OpDef] = &[
    composite!("aten::dropout(Tensor input, float p, bool train) -> Tensor", |b, c| drop(b, c, false, false)),
    composite!("aten::feature_dropout(Tensor input, float p, bool train) -> Tensor", |b, c| drop(
        b, c, true, false
    )),
    composite!("aten::alpha_dropout(Tensor input, float p, bool train) -> Tensor", |b, c| drop(
        b, c, false, true
    )),
    composite!("aten::feature_alpha_dropout(Tensor input, float p, bool train) -> Tensor", |b, c| drop(
        b, c, true, true
    )),
    composite!("aten::native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)", |b, c| {
        let train = c.is_none("train") || c.bool("train")?;
        with_mask(b, c, c.value("input")?, if train { probability(c)? } else { 0.0 })
    }),
    // Here `p` is the probability to keep.
    composite!(
        "aten::_fused_dropout(Tensor self, float p, Generator? generator=None) -> (Tensor, Tensor)",
        |b, c| {
            let outs = with_mask(b, c, c.value("self")?, 1.0 - probability(c)?)?;
            let mask = b.cast(outs[1], DType::U8)?;
            Ok(smallvec![outs[0], mask])
        }
    ),
    // grad_output * mask * scale
    composite!(
        "aten::native_dropout_backward(Tensor grad_output, Tensor mask, float scale) -> Tensor",
        |b, c| {
            let grad = c.value("grad_output")?;
            let dtype = float_of(b.dtype(grad)?);
            let mask = b.cast(c.value("mask")?, dtype.compute())?;
            let scaled = b.mul(mask, c.float("scale")?)?;
            let wide = b.cast(grad, dtype.compute())?;
            let product = b.mul(wide, scaled)?;
            one(b.cast(product, dtype)?)
        }
    ),
    composite!(
        "aten::rrelu(Tensor self, Scalar lower=0.125, Scalar upper=0.33333333333333331, bool training=False, Generator? generator=None) -> Tensor",
        |b, c| one(rrelu(b, c)?.0)
    ),
    // These two write `noise`, and the second `self`; `functionalize` calls the functional form in their place.
    composite!(
        "aten::rrelu_with_noise(Tensor self, Tensor(b!) noise, Scalar lower=0.125, Scalar upper=0.33333333333333331, bool training=False, Generator? generator=None) -> Tensor",
        |b, c| b.call("aten.rrelu_with_noise_functional.default", c.args.to_vec())
    ),
    composite!(
        "aten::rrelu_with_noise_(Tensor(a!) self, Tensor(b!) noise, Scalar lower=0.125, Scalar upper=0.33333333333333331, bool training=False, Generator? generator=None) -> Tensor(a!)",
        |b, c| b.call("aten.rrelu_with_noise_functional.default", c.args.to_vec())
    ),
    composite!(
        "aten::rrelu_with_noise_functional(Tensor self, Tensor noise, Scalar lower=0.125, Scalar upper=0.33333333333333331, bool training=False, Generator? generator=None) -> (Tensor, Tensor noise_out)",
        |b, c| {
            let (y, noise) = rrelu(b, c)?;
            Ok(smallvec![y, noise.map_or_else(|| c.value("noise"), Ok)?])
        }
    ),
];

fn probability(c: &Call<'_>) -> Result<f64, OpError> {
    let p = c.float("p")?;
    if (0.0..=1.0).contains(&p) { Ok(p) } else { Err(c.bad_arg("p", format!("must be in [0, 1], not {p}"))) }
}

/// Sizes of the factors: those of the tensor, or one for each sample and feature.
fn noise_sizes(c: &Call<'_>, sizes: &Shape, feature: bool) -> Result<Shape, OpError> {
    if feature && sizes.len() < 2 {
        return Err(c.invalid("drops whole features: its input has two dimensions or more"));
    }
    let of = |(d, size): (usize, &SymExpr)| if feature && d >= 2 { SymExpr::ONE } else { size.clone() };
    Ok(sizes.iter().enumerate().map(of).collect())
}

fn drop(b: &mut Builder<'_>, c: &Call<'_>, feature: bool, alpha: bool) -> Result<Outs, OpError> {
    let x = c.value("input")?;
    let p = probability(c)?;
    if p == 0.0 || !c.bool("train")? {
        return one(x);
    }
    let dtype = b.dtype(x)?;
    if dtype.is_integral() {
        return Err(OpError::DType { op: c.name().into(), dtype });
    }
    let sizes = noise_sizes(c, &b.sizes(x)?, feature)?;
    let y = if p == 1.0 {
        // Infinities and NaN stay NaN, as they do in the product.
        let wide = widen(b, x)?;
        b.mul(wide, 0.0)?
    } else if alpha {
        alpha_dropout(b, x, &sizes, p)?
    } else {
        dropped(b, x, &sizes, p)?.0
    };
    one(b.cast(y, dtype)?)
}

/// `x * keep / (1 - p)` in the dtype of arithmetic, and `keep`.
fn dropped(
    b: &mut Builder<'_>,
    x: ValueId,
    sizes: &[SymExpr],
    p: f64,
) -> Result<(ValueId, ValueId), OpError> {
    let keep = bernoulli_event(b, sizes, 1.0 - p)?;
    let wide = widen(b, x)?;
    let compute = b.dtype(wide)?;
    let noise = choose(b, keep, 1.0 / (1.0 - p), 0.0, compute.to_real())?;
    let noise = b.cast(noise, compute)?;
    Ok((b.mul(wide, noise)?, keep))
}

/// Self-normalizing dropout (Klambauer et al. 2017): what is dropped becomes `-1.7581`, then an affine map restores
/// mean 0 and variance 1.
fn alpha_dropout(b: &mut Builder<'_>, x: ValueId, sizes: &[SymExpr], p: f64) -> Result<ValueId, OpError> {
    const ALPHA: f64 = 1.758_099_340_847_376_6;
    let a = 1.0 / ((ALPHA * ALPHA * p + 1.0) * (1.0 - p)).sqrt();
    let keep = bernoulli_event(b, sizes, 1.0 - p)?;
    let wide = widen(b, x)?;
    let compute = b.dtype(wide)?;
    let shift = ALPHA * a * p;
    let scale = choose(b, keep, a, 0.0, compute.to_real())?;
    let offset = choose(b, keep, shift, shift - ALPHA * a, compute.to_real())?;
    let (scale, offset) = (b.cast(scale, compute)?, b.cast(offset, compute)?);
    let scaled = b.mul(wide, scale)?;
    b.add(scaled, offset)
}

/// The tensor with elements dropped, and which are kept.
fn with_mask(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, p: f64) -> Result<Outs, OpError> {
    let (dtype, sizes) = (b.dtype(x)?, b.sizes(x)?);
    if p == 0.0 {
        return Ok(smallvec![x, b.full(&sizes, true, DType::Bool)?]);
    }
    if dtype.is_integral() {
        return Err(OpError::DType { op: c.name().into(), dtype });
    }
    if p == 1.0 {
        let wide = widen(b, x)?;
        let y = b.mul(wide, 0.0)?;
        return Ok(smallvec![b.cast(y, dtype)?, b.full(&sizes, false, DType::Bool)?]);
    }
    let (y, keep) = dropped(b, x, &sizes, p)?;
    Ok(smallvec![b.cast(y, dtype)?, keep])
}

/// `x` where it is positive, else `slope * x`: a random slope in training, the mean of its bounds in evaluation.
/// Returns the slopes too, 1 where `x` is positive, if they are random.
fn rrelu(b: &mut Builder<'_>, c: &Call<'_>) -> Result<(ValueId, Option<ValueId>), OpError> {
    let x = c.value("self")?;
    let (lower, upper) = (c.float("lower")?, c.float("upper")?);
    let dtype = b.dtype(x)?;
    if !dtype.is_float() {
        return Err(OpError::DType { op: c.name().into(), dtype });
    }
    if !c.bool("training")? {
        let slope = Arg::from((lower + upper) / 2.0);
        return Ok((b.call1("aten.leaky_relu.default", vec![x.into(), slope])?, None));
    }
    let wide = widen(b, x)?;
    let (compute, sizes) = (b.dtype(wide)?, b.sizes(x)?);
    let u = uniform(b, c, &sizes, compute)?;
    let spread = b.mul(u, upper - lower)?;
    let slope = b.add(spread, lower)?;
    let negative = b.le(wide, 0.0)?;
    let noise = choose(b, negative, slope, 1.0, compute)?;
    let y = b.mul(wide, noise)?;
    Ok((b.cast(y, dtype)?, Some(b.cast(noise, dtype)?)))
}
