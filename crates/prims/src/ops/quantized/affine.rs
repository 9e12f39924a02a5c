//! `torchao`: quantization by blocks of any shape. A block has one scale and one zero point.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{ReduceOp, ScalarOp};
use smallvec::smallvec;

use super::{Affine, Rounding, dequantize, inverse, limits, quantize};
use crate::ops::common::{choose, one};
use crate::{Builder, Call, OpDef, OpError, Outs};

type Made = Result<Outs, OpError>;

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "torchao::quantize_affine(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, ScalarType output_dtype, Scalar? quant_min=None, Scalar? quant_max=None) -> Tensor",
        |b, c| {
            let x = c.value("input")?;
            let blocks = Blocks::of(b, c, x)?;
            let affine = blocks.affine(b, c, inverse)?;
            let dtype = dtype(c, "output_dtype")?;
            let (low, high) = range(c, dtype)?;
            let (rows, sizes) = (b.reshape(x, &blocks.split)?, b.sizes(x)?);
            let to = (dtype, Rounding::BeforeZero);
            let y = quantize(b, rows, &affine, (low.into(), high.into()), to)?;
            one(b.reshape(y, &sizes)?)
        }
    ),
    composite!(
        "torchao::dequantize_affine(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, ScalarType input_dtype, Scalar? quant_min=None, Scalar? quant_max=None, ScalarType? output_dtype=None) -> Tensor",
        |b, c| {
            let x = c.value("input")?;
            let blocks = Blocks::of(b, c, x)?;
            let affine = blocks.affine(b, c, |b, scale| b.cast(scale, DType::F32))?;
            let dtype = c.opt_dtype("output_dtype")?.unwrap_or(DType::F32);
            let (rows, sizes) = (b.reshape(x, &blocks.split)?, b.sizes(x)?);
            let y = dequantize(b, rows, &affine, dtype)?;
            one(b.reshape(y, &sizes)?)
        }
    ),
    composite!(
        "torchao::choose_qparams_affine(Tensor? input, str mapping_type, SymInt[] block_size, ScalarType target_dtype, Scalar? quant_min=None, Scalar? quant_max=None, float? eps=None, ScalarType? scale_dtype=None, ScalarType? zero_point_dtype=None, bool keepdim=False) -> (Tensor, Tensor)",
        choose_parameters
    ),
];

fn dtype(c: &Call<'_>, name: &str) -> Result<DType, OpError> {
    c.opt_dtype(name)?.ok_or_else(|| c.bad_arg(name, "is missing"))
}

/// The call's range of quantized values, by default that of the dtype.
fn range(c: &Call<'_>, dtype: DType) -> Result<(f64, f64), OpError> {
    let all = limits(dtype);
    let one = |name: &str, limit: Option<f64>| {
        let given = c.opt_float(name)?.or(limit);
        given.ok_or_else(|| {
            c.bad_arg(name, format!("is missing, and {dtype} is no dtype of quantized values"))
        })
    };
    Ok((one("quant_min", all.map(|a| a.0))?, one("quant_max", all.map(|a| a.1))?))
}

/// A tensor's division into blocks.
struct Blocks {
    /// Its sizes, a dimension with several blocks being two.
    split: Shape,
    /// The dimensions of `split` inside of a block.
    inside: Vec<usize>,
    /// Blocks along each dimension of the tensor.
    counts: Shape,
}

impl Blocks {
    fn of(b: &Builder<'_>, c: &Call<'_>, x: ValueId) -> Result<Blocks, OpError> {
        let (sizes, block) = (b.sizes(x)?, c.syms("block_size")?);
        if sizes.len() != block.len() {
            return Err(c.bad_arg("block_size", "has not one number for each dimension"));
        }
        let mut blocks = Blocks { split: Shape::new(), inside: Vec::new(), counts: Shape::new() };
        for (size, block) in sizes.iter().zip(&block) {
            // A block of -1 is the whole dimension.
            let whole = block == size || block.as_const() == Some(-1);
            if !whole && *block != SymExpr::ONE {
                blocks.split.push(size.floor_div(block));
                blocks.counts.push(size.floor_div(block));
                blocks.inside.push(blocks.split.len());
                blocks.split.push(block.clone());
                continue;
            }
            if whole && *block != SymExpr::ONE {
                blocks.inside.push(blocks.split.len());
            }
            blocks.counts.push(if whole { SymExpr::ONE } else { size.clone() });
            blocks.split.push(size.clone());
        }
        Ok(blocks)
    }

    /// The sizes of scales that broadcast to `split`.
    fn kept(&self) -> Shape {
        let one = |(d, size): (usize, &SymExpr)| {
            if self.inside.contains(&d) { SymExpr::ONE } else { size.clone() }
        };
        self.split.iter().enumerate().map(one).collect()
    }

    /// The parameters of a call; `factor` makes the factor of its scale.
    fn affine(
        &self,
        b: &mut Builder<'_>,
        c: &Call<'_>,
        factor: impl FnOnce(&mut Builder<'_>, ValueId) -> Result<ValueId, OpError>,
    ) -> Result<Affine, OpError> {
        let scale = b.reshape(c.value("scale")?, &self.kept())?;
        let zero = match c.opt_value("zero_point")? {
            // A zero point of no elements is none.
            Some(z) if ir_core::numel(&b.sizes(z)?) != SymExpr::ZERO => Some(b.reshape(z, &self.kept())?),
            _ => None,
        };
        Ok(Affine { factor: factor(b, scale)?.into(), zero: zero.map(Arg::from) })
    }
}

/// The scale and the zero point of each block.
fn choose_parameters(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let x = c.value("input")?;
    let own = b.dtype(x)?;
    let (least, most) = range(c, dtype(c, "target_dtype")?)?;
    let eps = match c.opt_float("eps")? {
        Some(eps) => eps,
        None if own == DType::F16 => 6.103_515_625e-5,
        None => f64::from(f32::MIN_POSITIVE),
    };
    let blocks = Blocks::of(b, c, x)?;
    let x = b.cast(x, DType::F32)?;
    let x = b.reshape(x, &blocks.split)?;
    let low = b.reduce(ReduceOp::Min, x, &blocks.inside, false)?;
    let high = b.reduce(ReduceOp::Max, x, &blocks.inside, false)?;
    let (low, high) = (b.minimum(low, 0.0)?, b.maximum(high, 0.0)?);
    let mapping = c.opt_str("mapping_type")?.unwrap_or_default();
    let (scale, zero) = match mapping {
        "ASYMMETRIC" => {
            let span = b.sub(high, low)?;
            let scale = b.div(span, most - least)?;
            let scale = b.maximum(scale, eps)?;
            let zero = b.div(low, scale)?;
            let zero = b.scalar_op(ScalarOp::Round, &[zero.into()])?;
            let zero = b.sub(least, zero)?;
            let zero = b.maximum(zero, least)?;
            (scale, b.minimum(zero, most)?)
        }
        "SYMMETRIC" | "SYMMETRIC_NO_CLIPPING_ERR" => {
            let scale = if mapping == "SYMMETRIC" {
                let largest = b.neg(low)?;
                let largest = b.maximum(largest, high)?;
                b.div(largest, (most - least) / 2.0)?
            } else {
                let (below, above) = (b.div(low, least)?, b.div(high, most)?);
                let larger = b.gt(below, above)?;
                choose(b, larger, below, above, DType::F32)?
            };
            let sizes = b.sizes(scale)?;
            let zero = b.full(&sizes, ((most + least + 1.0) / 2.0).trunc(), DType::F32)?;
            (b.maximum(scale, eps)?, zero)
        }
        other => return Err(c.bad_arg("mapping_type", format!("is `{other}`, which is no mapping"))),
    };
    let asymmetric = mapping == "ASYMMETRIC";
    let scale_dtype = c.opt_dtype("scale_dtype")?.unwrap_or(own);
    let zero_dtype = c.opt_dtype("zero_point_dtype")?;
    let zero_dtype = zero_dtype.unwrap_or(if asymmetric { DType::I32 } else { own });
    let (mut scale, mut zero) = (b.cast(scale, scale_dtype)?, b.cast(zero, zero_dtype)?);
    if c.bool("keepdim")? {
        (scale, zero) = (b.reshape(scale, &blocks.counts)?, b.reshape(zero, &blocks.counts)?);
    }
    Ok(smallvec![scale, zero])
}
