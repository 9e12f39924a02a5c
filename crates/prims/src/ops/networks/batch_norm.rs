//! Batch and instance normalisation.
//!
//! In evaluation `y = x * scale + shift` with `scale = w / sqrt(var + eps)` and `shift = b - mean * scale` on vectors of
//! channels, which fold into constants. In training the statistics are those of the batch, or of each of several groups of
//! consecutive samples.

use fx_ir::ValueId;
use ir_core::{DType, Shape, SymExpr, numel};
use kernel_ir::ReduceOp;
use smallvec::smallvec;

use crate::ops::common::widen;
use crate::ops::networks::norm::{Moments, affine, moments, per_channel, statistics_dtype};
use crate::ops::shapes::shape::{self, Made, out};
use crate::{Builder, Call, OpDef, OpError, Outs};

/// The entries. Where a schema writes the running statistics without returning them, their new values are further
/// results after those of the schema.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float momentum, float eps, bool cudnn_enabled) -> Tensor",
        |b, c| {
            let r = batch_norm(b, c, c.bool("training")?)?;
            out(r.y)
        }
    ),
    composite!(
        "aten::_native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)",
        |b, c| {
            let r = batch_norm(b, c, c.bool("training")?)?;
            let (mean, rstd) = r.saved(b)?;
            let (new_mean, new_var) = running(b, c, &r)?;
            Ok(smallvec![r.y, mean, rstd, new_mean, new_var])
        }
    ),
    composite!(
        "aten::_native_batch_norm_legit(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!) running_mean, Tensor(b!) running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
        |b, c| updating(b, c, c.bool("training")?, false)
    ),
    composite!(
        "aten::_batch_norm_with_update(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!) running_mean, Tensor(b!) running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor)",
        |b, c| updating(b, c, true, true)
    ),
    composite!(
        "aten::_native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
        |b, c| three(b, c, false)
    ),
    composite!(
        "aten::_native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
        |b, c| three(b, c, true)
    ),
    composite!(
        "aten::native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
        |b, c| three(b, c, c.bool("training")?)
    ),
    composite!(
        "aten::_batch_norm_with_update_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)",
        |b, c| {
            let r = batch_norm(b, c, true)?;
            let (mean, rstd) = r.saved(b)?;
            let (new_mean, new_var) = running(b, c, &r)?;
            let reserve = b.full(&[SymExpr::ZERO], 0i64, DType::U8)?;
            Ok(smallvec![r.y, mean, rstd, reserve, new_mean, new_var])
        }
    ),
    composite!(
        "aten::_batch_norm_no_update(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor)",
        |b, c| {
            let mut outs = three(b, c, false)?;
            outs.push(b.full(&[SymExpr::ZERO], 0i64, DType::U8)?);
            Ok(outs)
        }
    ),
    // Each of `groups` equal groups of consecutive samples is normalised by its own statistics; those that are returned, and
    // those from which running statistics follow, are the first group's.
    composite!(
        "ferroflux::batch_norm_in_groups(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor running_var, SymInt groups, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)",
        |b, c| in_groups(b, c, true)
    ),
    composite!(
        "ferroflux::batch_norm_in_groups.no_stats(Tensor input, Tensor? weight, Tensor? bias, SymInt groups, float eps) -> (Tensor, Tensor, Tensor)",
        |b, c| in_groups(b, c, false)
    ),
    composite!(
        "aten::instance_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool use_input_stats, float momentum, float eps, bool cudnn_enabled) -> Tensor",
        instance_norm
    ),
];

/// A normalised batch with its statistics.
struct Normalised {
    y: ValueId,
    /// Statistics of the batch, in training.
    batch: Option<Moments>,
    channels: SymExpr,
    /// How many groups of samples have statistics of their own.
    groups: SymExpr,
}

impl Normalised {
    /// Of an input without elements.
    fn nothing(input: ValueId) -> Normalised {
        Normalised { y: input, batch: None, channels: SymExpr::ZERO, groups: SymExpr::ONE }
    }

    /// Statistics of the batch as a vector: those of the first group where there are several. They are a sum of which all other
    /// groups give zeros, so that ranks with a group each add them with the gradients instead of gathering all.
    fn kept(&self, b: &mut Builder<'_>, statistic: ValueId) -> Result<ValueId, OpError> {
        if self.groups == SymExpr::ONE {
            return b.reshape(statistic, std::slice::from_ref(&self.channels));
        }
        let table = b.reshape(statistic, &[self.groups.clone(), self.channels.clone()])?;
        let line = vec![self.groups.clone().into(), 0i64.into(), 1i64.into(), DType::I64.into()];
        let line = b.call1("prims.iota", line)?;
        let line = b.reshape(line, &[self.groups.clone(), SymExpr::ONE])?;
        let is_first = b.eq(line, 0i64)?;
        let first = b.select(is_first, table, 0.0)?;
        b.reduce(ReduceOp::Sum, first, &[0], false)
    }

    /// Mean and reciprocal deviation of the batch as vectors; empty in evaluation.
    fn saved(&self, b: &mut Builder<'_>) -> Result<(ValueId, ValueId), OpError> {
        match &self.batch {
            Some(m) => Ok((self.kept(b, m.mean)?, self.kept(b, m.rstd)?)),
            None => {
                let dtype = b.dtype(self.y)?.compute();
                let empty = b.full(&[SymExpr::ZERO], 0i64, dtype)?;
                Ok((empty, empty))
            }
        }
    }
}

/// The dimension of the channels, all others being reduced; the input is `[N, C, …]`.
fn batch_norm(b: &mut Builder<'_>, c: &Call<'_>, training: bool) -> Result<Normalised, OpError> {
    if training {
        return of_batch(b, c, SymExpr::ONE);
    }
    let input = c.value("input")?;
    let Some((sizes, channels)) = extent(b, c, input)? else { return Ok(Normalised::nothing(input)) };
    let (dtype, x) = (b.dtype(input)?, widen(b, input)?);
    let (weight, bias) = (c.opt_value("weight")?, c.opt_value("bias")?);
    let eps = c.float("eps")?;
    let missing = |name: &'static str| move || c.bad_arg(name, "is needed in evaluation");
    let mean = c.opt_value("running_mean")?.ok_or_else(missing("running_mean"))?;
    let var = c.opt_value("running_var")?.ok_or_else(missing("running_var"))?;
    let (mean, var) = (widen(b, mean)?, widen(b, var)?);
    let shifted = b.add(var, eps)?;
    let mut scale = b.rsqrt(shifted)?;
    if let Some(w) = weight {
        let w = widen(b, w)?;
        scale = b.mul(w, scale)?;
    }
    let moved = b.mul(mean, scale)?;
    let shift = match bias {
        Some(bias) => {
            let bias = widen(b, bias)?;
            b.sub(bias, moved)?
        }
        None => b.neg(moved)?,
    };
    let scale = shape::along(b, scale, 1, sizes.len())?;
    let shift = shape::along(b, shift, 1, sizes.len())?;
    let y = b.mul(x, scale)?;
    let y = b.add(y, shift)?;
    Ok(Normalised { y: b.cast(y, dtype)?, batch: None, channels, groups: SymExpr::ONE })
}

/// Sizes of `[N, C, …]`, and `C`; `None` of a vector without elements, which PyTorch lets pass.
fn extent(b: &Builder<'_>, c: &Call<'_>, input: ValueId) -> Result<Option<(Shape, SymExpr)>, OpError> {
    let sizes = b.sizes(input)?;
    if sizes[..] == [SymExpr::ZERO] {
        return Ok(None);
    }
    let channels = sizes.get(1).cloned().ok_or_else(|| c.invalid("takes [N, C, …]"))?;
    Ok(Some((sizes, channels)))
}

/// By the statistics of the batch, or of each of its groups of consecutive samples: these are the first dimension of
/// `[groups, N / groups, C, …]` then, which is in parts where a mesh splits the batch among as many ranks.
fn of_batch(b: &mut Builder<'_>, c: &Call<'_>, groups: SymExpr) -> Result<Normalised, OpError> {
    let input = c.value("input")?;
    let Some((sizes, channels)) = extent(b, c, input)? else { return Ok(Normalised::nothing(input)) };
    let dtype = b.dtype(input)?;
    let mut x = widen(b, input)?;
    let mut inner = sizes.clone();
    if groups != SymExpr::ONE {
        inner[0] = sizes[0].floor_div(&groups);
        inner.insert(0, groups.clone());
        x = b.reshape(x, &inner)?;
    }
    let (first, rank) = (inner.len() - sizes.len(), inner.len());
    let dims: Vec<usize> = (first..rank).filter(|d| *d != first + 1).collect();
    let m = moments(b, x, &dims, c.float("eps")?)?;
    let weight = c.opt_value("weight")?;
    let stats = statistics_dtype(b, weight, dtype)?;
    let (mean, rstd) = (rounded(b, m.mean, stats)?, rounded(b, m.rstd, stats)?);
    let centred = if mean == m.mean { m.centred } else { b.sub(x, mean)? };
    let weight = per_channel(b, weight, first + 1, rank)?;
    let bias = per_channel(b, c.opt_value("bias")?, first + 1, rank)?;
    let y = scaled(b, centred, rstd, weight, bias)?;
    let y = b.reshape(y, &sizes)?;
    Ok(Normalised { y: b.cast(y, dtype)?, batch: Some(m), channels, groups })
}

/// `centred * (rstd * weight) + bias`, statistics and parameters being one number per channel. The factors meet before
/// they meet the batch: one rounding less for each element, and the backward needs one sum over the batch for weight and
/// deviation together instead of one for each.
fn scaled(
    b: &mut Builder<'_>,
    centred: ValueId,
    rstd: ValueId,
    weight: Option<ValueId>,
    bias: Option<ValueId>,
) -> Result<ValueId, OpError> {
    let scale = affine(b, rstd, weight, None)?;
    let y = b.mul(centred, scale)?;
    affine(b, y, None, bias)
}

/// `v` as it comes back from having been kept in `dtype`.
fn rounded(b: &mut Builder<'_>, v: ValueId, dtype: DType) -> Result<ValueId, OpError> {
    let wide = b.dtype(v)?;
    let kept = b.cast(v, dtype)?;
    b.cast(kept, wide)
}

fn three(b: &mut Builder<'_>, c: &Call<'_>, training: bool) -> Made {
    let r = batch_norm(b, c, training)?;
    let (mean, rstd) = r.saved(b)?;
    let dtype = b.dtype(c.value("input")?)?;
    let dtype = statistics_dtype(b, c.opt_value("weight")?, dtype)?;
    Ok(Outs::from_iter([r.y, b.cast(mean, dtype)?, b.cast(rstd, dtype)?]))
}

/// Output and saved statistics (and an empty reserve), then the new running statistics.
fn updating(b: &mut Builder<'_>, c: &Call<'_>, training: bool, reserve: bool) -> Made {
    let r = batch_norm(b, c, training)?;
    let (mean, rstd) = r.saved(b)?;
    let dtype = b.dtype(c.value("input")?)?;
    let dtype = statistics_dtype(b, c.opt_value("weight")?, dtype)?;
    let mut outs = Outs::from_iter([r.y, b.cast(mean, dtype)?, b.cast(rstd, dtype)?]);
    if reserve {
        outs.push(b.full(&[SymExpr::ZERO], 0i64, DType::U8)?);
    }
    let (new_mean, new_var) = running(b, c, &r)?;
    outs.extend([new_mean, new_var]);
    Ok(outs)
}

/// Output and saved statistics, then the new running statistics where there are any.
fn in_groups(b: &mut Builder<'_>, c: &Call<'_>, tracked: bool) -> Made {
    let r = of_batch(b, c, c.sym("groups")?)?;
    let (mean, rstd) = r.saved(b)?;
    let dtype = b.dtype(c.value("input")?)?;
    let dtype = statistics_dtype(b, c.opt_value("weight")?, dtype)?;
    let mut outs = Outs::from_iter([r.y, b.cast(mean, dtype)?, b.cast(rstd, dtype)?]);
    if tracked {
        let (new_mean, new_var) = running(b, c, &r)?;
        outs.extend([new_mean, new_var]);
    }
    Ok(outs)
}

/// The new running statistics: `(1 - momentum) * old + momentum * batch`, the variance without bias.
fn running(b: &mut Builder<'_>, c: &Call<'_>, r: &Normalised) -> Result<(ValueId, ValueId), OpError> {
    let (old_mean, old_var) = (c.value("running_mean")?, c.value("running_var")?);
    let Some(m) = &r.batch else { return Ok((old_mean, old_var)) };
    let n = numel(&b.sizes(c.value("input")?)?).floor_div(&(r.channels.clone() * &r.groups));
    let momentum = c.float("momentum")?;
    let var = b.mul(m.var, shape::count(&n))?;
    let var = b.div(var, shape::count(&(n - 1)))?;
    let mut blend = |old: ValueId, new: ValueId| {
        let dtype = b.dtype(old)?;
        let new = r.kept(b, new)?;
        let wide = widen(b, old)?;
        let new = b.mul(new, momentum)?;
        let old = b.mul(wide, 1.0 - momentum)?;
        let sum = b.add(old, new)?;
        b.cast(sum, dtype)
    };
    Ok((blend(old_mean, m.mean)?, blend(old_var, var)?))
}

/// Batch normalisation of every sample by itself.
fn instance_norm(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    if !c.bool("use_input_stats")? {
        let r = batch_norm(b, c, false)?;
        return out(r.y);
    }
    let input = c.value("input")?;
    let sizes = b.sizes(input)?;
    if sizes.len() < 3 {
        return Err(c.invalid("takes [N, C, space…]"));
    }
    let (dtype, x) = (b.dtype(input)?, widen(b, input)?);
    let dims: Vec<usize> = (2..sizes.len()).collect();
    let m = moments(b, x, &dims, c.float("eps")?)?;
    let stats = statistics_dtype(b, c.opt_value("weight")?, dtype)?;
    let (mean, rstd) = (rounded(b, m.mean, stats)?, rounded(b, m.rstd, stats)?);
    let centred = if mean == m.mean { m.centred } else { b.sub(x, mean)? };
    let weight = per_channel(b, c.opt_value("weight")?, 1, sizes.len())?;
    let bias = per_channel(b, c.opt_value("bias")?, 1, sizes.len())?;
    let y = scaled(b, centred, rstd, weight, bias)?;
    let sizes: Shape = sizes;
    let y = b.reshape(y, &sizes)?;
    out(b.cast(y, dtype)?)
}
