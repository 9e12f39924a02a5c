//! `quantized_decomposed`: what PyTorch's PT2E quantization puts into graphs, except the choice of scales.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Shape, SymExpr};

use super::{Affine, Rounding, dequantize, inverse, quantize};
use crate::ops::common::one;
use crate::{Builder, Call, OpDef, OpError, Outs};

type Made = Result<Outs, OpError>;

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "quantized_decomposed::quantize_per_tensor(Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype) -> Tensor",
        |b, c| {
            let factor = (1.0 / c.float("scale")?).into();
            let affine = Affine { factor, zero: Some(c.arg("zero_point").clone()) };
            quantized(b, c, &affine, Rounding::BeforeZero)
        }
    ),
    composite!(
        "quantized_decomposed::quantize_per_tensor.tensor(Tensor input, Tensor scale, Tensor zero_point, int quant_min, int quant_max, ScalarType dtype) -> Tensor",
        quantize_by_tensors
    ),
    composite!(
        "quantized_decomposed::quantize_per_tensor.tensor2(Tensor input, Tensor scale, Tensor zero_point, Tensor quant_min, Tensor quant_max, ScalarType dtype) -> Tensor",
        quantize_by_tensors
    ),
    composite!(
        "quantized_decomposed::dequantize_per_tensor(Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor",
        |b, c| {
            let factor = c.float("scale")?.into();
            let affine = Affine { factor, zero: Some(c.arg("zero_point").clone()) };
            dequantized(b, c, &affine)
        }
    ),
    composite!(
        "quantized_decomposed::dequantize_per_tensor.tensor(Tensor input, Tensor scale, Tensor zero_point, int quant_min, int quant_max, ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor",
        dequantize_by_tensors
    ),
    composite!(
        "quantized_decomposed::dequantize_per_tensor.tensor2(Tensor input, Tensor scale, Tensor zero_point, Tensor quant_min, Tensor quant_max, ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor",
        dequantize_by_tensors
    ),
    composite!(
        "quantized_decomposed::quantize_per_channel(Tensor input, Tensor scales, Tensor zero_points, int axis, int quant_min, int quant_max, ScalarType dtype) -> Tensor",
        |b, c| {
            let scales = along_axis(b, c, c.value("scales")?)?;
            let zero = along_axis(b, c, c.value("zero_points")?)?;
            let factor = inverse(b, scales)?.into();
            quantized(b, c, &Affine { factor, zero: Some(zero.into()) }, Rounding::BeforeZero)
        }
    ),
    composite!(
        "quantized_decomposed::dequantize_per_channel(Tensor input, Tensor scales, Tensor? zero_points, int axis, int quant_min, int quant_max, ScalarType dtype, *, ScalarType? out_dtype=None) -> Tensor",
        |b, c| {
            let scales = along_axis(b, c, c.value("scales")?)?;
            let zero = c.opt_value("zero_points")?.map(|z| along_axis(b, c, z)).transpose()?;
            let factor = b.cast(scales, DType::F32)?.into();
            dequantized(b, c, &Affine { factor, zero: zero.map(Arg::from) })
        }
    ),
    composite!(
        "quantized_decomposed::quantize_per_token(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, ScalarType dtype) -> Tensor",
        |b, c| {
            let factor = inverse(b, c.value("scales")?)?.into();
            let affine = Affine { factor, zero: Some(c.arg("zero_points").clone()) };
            quantized(b, c, &affine, Rounding::AfterZero)
        }
    ),
    composite!(
        "quantized_decomposed::dequantize_per_token(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, ScalarType dtype, ScalarType output_dtype) -> Tensor",
        |b, c| {
            let factor = b.cast(c.value("scales")?, DType::F32)?.into();
            dequantized(b, c, &Affine { factor, zero: Some(c.arg("zero_points").clone()) })
        }
    ),
    composite!(
        "quantized_decomposed::quantize_per_channel_group(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, ScalarType dtype, int group_size) -> Tensor",
        |b, c| grouped(b, c, "input", |b, x, scales, zero| {
            let factor = inverse(b, scales)?.into();
            let affine = Affine { factor, zero: zero.map(Arg::from) };
            let range = (c.arg("quant_min").clone(), c.arg("quant_max").clone());
            quantize(b, x, &affine, range, (dtype(c)?, Rounding::AfterZero))
        })
    ),
    composite!(
        "quantized_decomposed::dequantize_per_channel_group(Tensor input, Tensor scales, Tensor? zero_points, int quant_min, int quant_max, ScalarType dtype, int group_size, ScalarType output_dtype) -> Tensor",
        |b, c| grouped(b, c, "input", |b, x, scales, zero| {
            let factor = b.cast(scales, DType::F32)?.into();
            let out = c.opt_dtype("output_dtype")?.unwrap_or(DType::F32);
            dequantize(b, x, &Affine { factor, zero: zero.map(Arg::from) }, out)
        })
    ),
    composite!(
        "quantized_decomposed::convert_element_type.no_fuse(Tensor input, ScalarType dtype) -> Tensor",
        |b, c| {
            let to = dtype(c)?;
            one(b.cast(c.value("input")?, to)?)
        }
    ),
];

fn dtype(c: &Call<'_>) -> Result<DType, OpError> {
    c.opt_dtype("dtype")?.ok_or_else(|| c.bad_arg("dtype", "is missing"))
}

/// The call's input, quantized within its range.
fn quantized(b: &mut Builder<'_>, c: &Call<'_>, affine: &Affine, rounding: Rounding) -> Made {
    let mut range = Vec::with_capacity(2);
    for name in ["quant_min", "quant_max"] {
        range.push(match c.arg(name) {
            Arg::Value(v) => b.reshape(*v, &[])?.into(),
            number => number.clone(),
        });
    }
    let [low, high] = [range[0].clone(), range[1].clone()];
    one(quantize(b, c.value("input")?, affine, (low, high), (dtype(c)?, rounding))?)
}

/// The call's input as floats.
fn dequantized(b: &mut Builder<'_>, c: &Call<'_>, affine: &Affine) -> Made {
    let name = if c.op.schema.arg_index("out_dtype").is_some() { "out_dtype" } else { "output_dtype" };
    let out = c.opt_dtype(name)?.unwrap_or(DType::F32);
    one(dequantize(b, c.value("input")?, affine, out)?)
}

fn quantize_by_tensors(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (scale, zero) = (b.reshape(c.value("scale")?, &[])?, b.reshape(c.value("zero_point")?, &[])?);
    let factor = inverse(b, scale)?.into();
    quantized(b, c, &Affine { factor, zero: Some(zero.into()) }, Rounding::BeforeZero)
}

fn dequantize_by_tensors(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (scale, zero) = (b.reshape(c.value("scale")?, &[])?, b.reshape(c.value("zero_point")?, &[])?);
    let factor = b.cast(scale, DType::F32)?.into();
    dequantized(b, c, &Affine { factor, zero: Some(zero.into()) })
}

/// One number for each index of the call's `axis`, in a shape that broadcasts to its input.
fn along_axis(b: &mut Builder<'_>, c: &Call<'_>, v: ValueId) -> Result<ValueId, OpError> {
    let rank = b.rank(c.value("input")?)?;
    let mut sizes: Shape = std::iter::repeat_n(SymExpr::ONE, rank).collect();
    sizes[c.dim(c.int("axis")?, rank)?] = b.sizes_of_rank(v, 1..=1)?[0].clone();
    b.reshape(v, &sizes)
}

/// Calls `f` with a matrix as rows of one group each, and with scales and zero points of one number for each.
fn grouped(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    name: &str,
    f: impl FnOnce(&mut Builder<'_>, ValueId, ValueId, Option<ValueId>) -> Result<ValueId, OpError>,
) -> Made {
    let (x, scales) = (c.value(name)?, c.value("scales")?);
    let sizes = b.sizes_of_rank(x, 2..=2)?;
    let groups = ir_core::numel(&b.sizes(scales)?);
    let mut length = SymExpr::from_i64(c.int("group_size")?);
    // One group for each row may be given by any larger size.
    if groups == sizes[0] {
        length = sizes[1].clone();
    }
    let rows = b.reshape(x, &[groups.clone(), length])?;
    let scales = b.reshape(scales, &[groups.clone(), SymExpr::ONE])?;
    let zero = c.opt_value("zero_points")?;
    let zero = zero.map(|z| b.reshape(z, &[groups.clone(), SymExpr::ONE])).transpose()?;
    let y = f(b, rows, scales, zero)?;
    one(b.reshape(y, &sizes)?)
}
