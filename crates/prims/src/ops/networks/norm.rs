//! Normalisation over rows and groups: layer, group, RMS and local response norm, weight norm.
//!
//! 16-bit floats are normalised in `f32` and rounded once. Values are centred first (sum, centre, sum of squares), which
//! becomes one kernel after fusion.

use fx_ir::ValueId;
use ir_core::{DType, Shape, SymExpr, numel};
use kernel_ir::ReduceOp;
use smallvec::smallvec;

use crate::ops::common::widen;
use crate::ops::shapes::shape::{self, count, out};
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1.0000000000000001e-05, bool cudnn_enable=True) -> Tensor",
        |b, c| {
            let (y, _) = layer_norm(b, c)?;
            out(y)
        }
    ).autocast(Autocast::FLOAT32_ON_GPU),
    composite!(
        "aten::native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)",
        |b, c| {
            let (y, m) = layer_norm(b, c)?;
            let dtype = b.dtype(c.value("input")?)?;
            let dtype = statistics_dtype(b, c.opt_value("weight")?, dtype)?;
            Ok(smallvec![y, b.cast(m.mean, dtype)?, b.cast(m.rstd, dtype)?])
        }
    ).autocast(Autocast::FLOAT32_ON_GPU),
    composite!(
        "aten::rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor",
        |b, c| {
            let (y, _) = rms_norm(b, c)?;
            out(y)
        }
    ),
    composite!(
        "aten::_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)",
        |b, c| {
            let (y, rstd) = rms_norm(b, c)?;
            Ok(smallvec![y, rstd])
        }
    ),
    composite!(
        "aten::group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1.0000000000000001e-05, bool cudnn_enabled=True) -> Tensor",
        |b, c| {
            let (y, _) = group_norm(b, c, c.int("num_groups")?)?;
            out(y)
        }
    ).autocast(Autocast::FLOAT32_ON_GPU),
    composite!(
        "aten::native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, float eps) -> (Tensor, Tensor, Tensor)",
        |b, c| {
            let (y, m) = group_norm(b, c, c.int("group")?)?;
            let sizes = [c.sym("N")?, c.sym("group")?];
            let dtype = b.dtype(c.value("input")?)?;
            let mut outs = smallvec![y];
            for v in [m.mean, m.rstd] {
                let v = b.reshape(v, &sizes)?;
                outs.push(b.cast(v, dtype)?);
            }
            Ok(outs)
        }
    ),
    composite!("aten::_weight_norm(Tensor v, Tensor g, int dim=0) -> Tensor", |b, c| {
        let (y, _) = weight_norm(b, c)?;
        out(y)
    }),
    composite!("aten::_weight_norm_interface(Tensor v, Tensor g, int dim=0) -> (Tensor, Tensor)", |b, c| {
        let (y, norm) = weight_norm(b, c)?;
        Ok(smallvec![y, norm])
    }),
    composite!(
        "aten::_weight_norm_interface_backward(Tensor grad_w, Tensor saved_v, Tensor saved_g, Tensor saved_norms, int dim) -> (Tensor, Tensor)",
        weight_norm_backward
    ),
];

/// Mean and `1 / sqrt(var + eps)`, with the reduced dimensions kept at size 1.
pub(in crate::ops) struct Moments {
    pub mean: ValueId,
    pub var: ValueId,
    pub rstd: ValueId,
    pub centred: ValueId,
}

/// Number of elements in the given dimensions.
fn count_in(b: &Builder<'_>, x: ValueId, dims: &[usize]) -> Result<SymExpr, OpError> {
    crate::ops::common::count_of(b, x, dims)
}

/// The dtype in which an operator gives the mean and the deviation of an input of `dtype`: on CPUs that of the parameters, which may be wider
/// (mixed precision), on other devices that of arithmetic. A graph that was captured on such a device states the latter.
pub(super) fn statistics_dtype(
    b: &Builder<'_>,
    weight: Option<ValueId>,
    dtype: DType,
) -> Result<DType, OpError> {
    match b.stated_dtype(1) {
        Some(stated) if stated == dtype.compute() => Ok(stated),
        _ => weight.map_or(Ok(dtype), |w| b.dtype(w)),
    }
}

/// Statistics of `x` (of the dtype of arithmetic) over `dims`; the variance is that of the whole population.
pub(in crate::ops) fn moments(
    b: &mut Builder<'_>,
    x: ValueId,
    dims: &[usize],
    eps: f64,
) -> Result<Moments, OpError> {
    let n = count(&count_in(b, x, dims)?);
    let sum = b.reduce(ReduceOp::Sum, x, dims, true)?;
    let mean = b.div(sum, n.clone())?;
    let centred = b.sub(x, mean)?;
    let squares = b.mul(centred, centred)?;
    let sum = b.reduce(ReduceOp::Sum, squares, dims, true)?;
    let var = b.div(sum, n)?;
    let shifted = b.add(var, eps)?;
    let rstd = b.rsqrt(shifted)?;
    Ok(Moments { mean, var, rstd, centred })
}

/// The last dimensions, which must have the sizes of the argument `normalized_shape`.
fn normalised_dims(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId) -> Result<Vec<usize>, OpError> {
    let (sizes, want) = (b.sizes(x)?, c.syms("normalized_shape")?);
    let first = sizes.len().checked_sub(want.len()).filter(|_| !want.is_empty());
    let first = first.ok_or_else(|| c.bad_arg("normalized_shape", "has more dimensions than the input"))?;
    for (have, wanted) in sizes[first..].iter().zip(&want) {
        b.require_equal(have, wanted, |graph| {
            let (have, want) = (graph.sizes_text(&sizes[first..]), graph.sizes_text(&want));
            format!("`normalized_shape` is {want}, the input ends in {have}")
        })?;
    }
    Ok((first..sizes.len()).collect())
}

/// `y * weight + bias`, each where it is given.
pub(in crate::ops) fn affine(
    b: &mut Builder<'_>,
    y: ValueId,
    weight: Option<ValueId>,
    bias: Option<ValueId>,
) -> Result<ValueId, OpError> {
    let mut y = y;
    if let Some(w) = weight {
        let w = widen(b, w)?;
        y = b.mul(y, w)?;
    }
    if let Some(bias) = bias {
        let bias = widen(b, bias)?;
        y = b.add(y, bias)?;
    }
    Ok(y)
}

fn layer_norm(b: &mut Builder<'_>, c: &Call<'_>) -> Result<(ValueId, Moments), OpError> {
    let input = c.value("input")?;
    let dims = normalised_dims(b, c, input)?;
    let x = widen(b, input)?;
    let m = moments(b, x, &dims, c.float("eps")?)?;
    let y = b.mul(m.centred, m.rstd)?;
    let y = affine(b, y, c.opt_value("weight")?, c.opt_value("bias")?)?;
    let dtype = b.dtype(input)?;
    Ok((b.cast(y, dtype)?, m))
}

fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 | DType::C128 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    }
}

fn rms_norm(b: &mut Builder<'_>, c: &Call<'_>) -> Result<(ValueId, ValueId), OpError> {
    let input = c.value("input")?;
    let dims = normalised_dims(b, c, input)?;
    let x = widen(b, input)?;
    // The default is the precision of the dtype that the norm is computed in.
    let eps = match c.opt_float("eps")? {
        Some(eps) => eps,
        None => epsilon(b.dtype(x)?),
    };
    let n = count(&count_in(b, x, &dims)?);
    let squares = b.mul(x, x)?;
    let sum = b.reduce(ReduceOp::Sum, squares, &dims, true)?;
    let mean = b.div(sum, n)?;
    let shifted = b.add(mean, eps)?;
    let rstd = b.rsqrt(shifted)?;
    let y = b.mul(x, rstd)?;
    let y = affine(b, y, c.opt_value("weight")?, None)?;
    let dtype = b.dtype(input)?;
    Ok((b.cast(y, dtype)?, rstd))
}

/// `[N, C, …]` in groups of channels; each group of each sample is normalised.
fn group_norm(b: &mut Builder<'_>, c: &Call<'_>, groups: i64) -> Result<(ValueId, Moments), OpError> {
    let input = c.value("input")?;
    let sizes = b.sizes(input)?;
    if sizes.len() < 2 || groups < 1 {
        return Err(c.invalid("takes [N, C, …] and a positive number of groups"));
    }
    let x = widen(b, input)?;
    let each = sizes[1].floor_div(&groups.into());
    let rest = numel(&sizes[2..]);
    let x = b.reshape(x, &[sizes[0].clone(), groups.into(), each, rest])?;
    let m = moments(b, x, &[2, 3], c.float("eps")?)?;
    let y = b.mul(m.centred, m.rstd)?;
    let y = b.reshape(y, &sizes)?;
    let weight = per_channel(b, c.opt_value("weight")?, 1, sizes.len())?;
    let bias = per_channel(b, c.opt_value("bias")?, 1, sizes.len())?;
    let y = affine(b, y, weight, bias)?;
    let dtype = b.dtype(input)?;
    Ok((b.cast(y, dtype)?, m))
}

/// A vector placed along dimension `d` of `rank`.
pub(in crate::ops) fn per_channel(
    b: &mut Builder<'_>,
    v: Option<ValueId>,
    d: usize,
    rank: usize,
) -> Result<Option<ValueId>, OpError> {
    v.map(|v| shape::along(b, v, d, rank)).transpose()
}

/// `g * v / |v|`, the norm over all dimensions but `dim`.
fn weight_norm(b: &mut Builder<'_>, c: &Call<'_>) -> Result<(ValueId, ValueId), OpError> {
    let (v, g) = (c.value("v")?, c.value("g")?);
    let dims = normed_dims(c, b.rank(v)?)?;
    let dtype = b.dtype(v)?;
    let (x, scale) = (widen(b, v)?, widen(b, g)?);
    let squares = b.mul(x, x)?;
    let sum = b.reduce(ReduceOp::Sum, squares, &dims, true)?;
    let norm = b.sqrt(sum)?;
    let factor = b.div(scale, norm)?;
    let y = b.mul(x, factor)?;
    let norm_sizes: Shape = b.sizes(norm)?;
    let norm = b.reshape(norm, &norm_sizes)?;
    Ok((b.cast(y, dtype)?, norm))
}

/// The dimensions over which a weight's norm is taken: all but `dim`.
fn normed_dims(c: &Call<'_>, rank: usize) -> Result<Vec<usize>, OpError> {
    let dim = c.int("dim")?;
    // -1 is "over everything" here, not the last dimension.
    if dim == -1 {
        return Ok((0..rank).collect());
    }
    let kept = c.dim(dim, rank)?;
    Ok((0..rank).filter(|d| *d != kept).collect())
}

/// With `s = Σ grad · v` over the normed dimensions: `g / |v| (grad - v s / |v|²)` for `v`, and `s / |v|` for `g`.
fn weight_norm_backward(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (v, g) = (c.value("saved_v")?, c.value("saved_g")?);
    let dims = normed_dims(c, b.rank(v)?)?;
    let (dtype_v, dtype_g) = (b.dtype(v)?, b.dtype(g)?);
    let (grad, v, g) = (widen(b, c.value("grad_w")?)?, widen(b, v)?, widen(b, g)?);
    let wide = b.dtype(v)?;
    let norm = b.cast(c.value("saved_norms")?, wide)?;
    let product = b.mul(grad, v)?;
    let sum = b.reduce(ReduceOp::Sum, product, &dims, true)?;
    let of_g = b.div(sum, norm)?;
    let along = b.div(of_g, norm)?;
    let along = b.mul(v, along)?;
    let across = b.sub(grad, along)?;
    let factor = b.div(g, norm)?;
    let of_v = b.mul(across, factor)?;
    Ok(smallvec![b.cast(of_v, dtype_v)?, b.cast(of_g, dtype_g)?])
}
