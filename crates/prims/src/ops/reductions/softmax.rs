//! Softmax: `exp(x - max) / sum(exp(x - max))` along one dimension, 16-bit floats in `f32` throughout.

use fx_ir::ValueId;
use ir_core::{DType, SymExpr};
use kernel_ir::ReduceOp;

use crate::ops::common::{choose, widen};
use crate::ops::shapes::shape::{self, Made, out};
use crate::{Autocast, Builder, Call, OpDef, OpError};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!("aten::softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor", |b, c| {
        with_dtype(b, c, softmax)
    })
    .autocast(Autocast::FLOAT32_RESULT_ON_GPU),
    composite!("aten::special_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor", |b, c| {
        with_dtype(b, c, softmax)
    })
    .autocast(Autocast::FLOAT32_RESULT_ON_GPU),
    composite!("aten::log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor", |b, c| {
        with_dtype(b, c, log_softmax)
    })
    .autocast(Autocast::FLOAT32_RESULT_ON_GPU),
    composite!(
        "aten::special_log_softmax(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor",
        |b, c| { with_dtype(b, c, log_softmax) }
    )
    .autocast(Autocast::FLOAT32_RESULT_ON_GPU),
    composite!("aten::_softmax(Tensor self, int dim, bool half_to_float) -> Tensor", |b, c| half_to_float(
        b, c, softmax
    )),
    composite!("aten::_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor", |b, c| {
        half_to_float(b, c, log_softmax)
    }),
    // Rows of minus infinity alone give zeros where softmax gives NaN.
    composite!("aten::_safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor", |b, c| {
        with_dtype(b, c, |b, x, d| {
            let dtype = b.dtype(x)?;
            let masked = b.eq(x, f64::NEG_INFINITY)?;
            let all = b.reduce(ReduceOp::All, masked, &[d], true)?;
            let sizes = b.sizes(x)?;
            let all = b.expand(all, &sizes)?;
            // Rows that are masked whole are replaced first: a `NaN` in between would corrupt their gradient.
            let x = choose(b, all, 0i64, x, dtype)?;
            let y = softmax(b, x, d)?;
            choose(b, all, 0i64, y, dtype)
        })
    }),
    // grad_input = y * (grad - sum(grad * y))
    composite!(
        "aten::_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor",
        |b, c| backward(b, c, |b, grad, y, d| {
            let product = b.mul(grad, y)?;
            let sum = b.reduce(ReduceOp::Sum, product, &[d], true)?;
            let scaled = b.mul(y, sum)?;
            b.sub(product, scaled)
        })
    ),
    // grad_input = grad - exp(y) * sum(grad)
    composite!(
        "aten::_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor",
        |b, c| backward(b, c, |b, grad, y, d| {
            let sum = b.reduce(ReduceOp::Sum, grad, &[d], true)?;
            let p = b.exp(y)?;
            let scaled = b.mul(p, sum)?;
            b.sub(grad, scaled)
        })
    ),
];

type Along = fn(&mut Builder<'_>, ValueId, usize) -> Result<ValueId, OpError>;

fn with_dtype(b: &mut Builder<'_>, c: &Call<'_>, f: Along) -> Made {
    let x = c.value("self")?;
    let x = match c.opt_dtype("dtype")? {
        Some(dtype) => b.cast(x, dtype)?,
        None => x,
    };
    let dtype = b.dtype(x)?;
    along(b, c, x, dtype, f)
}

fn half_to_float(b: &mut Builder<'_>, c: &Call<'_>, f: Along) -> Made {
    let x = c.value("self")?;
    let dtype = if c.bool("half_to_float")? { DType::F32 } else { b.dtype(x)? };
    along(b, c, x, dtype, f)
}

/// Runs `f` on the dtype of arithmetic; a 0-dim tensor counts as one element.
fn along(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, dtype: DType, f: Along) -> Made {
    if !dtype.is_inexact() {
        return Err(OpError::DType { op: c.name().into(), dtype });
    }
    let sizes = b.sizes(x)?;
    let d = shape::dim(c, "dim", sizes.len())?;
    let x = if sizes.is_empty() { b.reshape(x, &[SymExpr::ONE])? } else { x };
    let x = widen(b, x)?;
    let y = f(b, x, d)?;
    let y = b.cast(y, dtype)?;
    out(b.reshape(y, &sizes)?)
}

/// `x - max(x)`, so that no exponential overflows. What is computed of it is the same for every shift, so none of the gradient
/// goes through the maximum.
fn shifted(b: &mut Builder<'_>, x: ValueId, d: usize) -> Result<ValueId, OpError> {
    let top = b.reduce(ReduceOp::Max, x, &[d], true)?;
    let top = b.call1("prims.detach", vec![top.into()])?;
    b.sub(x, top)
}

pub(in crate::ops) fn softmax(b: &mut Builder<'_>, x: ValueId, d: usize) -> Result<ValueId, OpError> {
    if b.dtype(x)?.is_complex() {
        // Complex numbers have no order.
        let e = b.exp(x)?;
        let sum = b.reduce(ReduceOp::Sum, e, &[d], true)?;
        return b.div(e, sum);
    }
    let x = shifted(b, x, d)?;
    let e = b.exp(x)?;
    let sum = b.reduce(ReduceOp::Sum, e, &[d], true)?;
    b.div(e, sum)
}

pub(in crate::ops) fn log_softmax(b: &mut Builder<'_>, x: ValueId, d: usize) -> Result<ValueId, OpError> {
    let x = if b.dtype(x)?.is_complex() { x } else { shifted(b, x, d)? };
    let e = b.exp(x)?;
    let sum = b.reduce(ReduceOp::Sum, e, &[d], true)?;
    let log = b.log(sum)?;
    b.sub(x, log)
}

fn backward(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    f: fn(&mut Builder<'_>, ValueId, ValueId, usize) -> Result<ValueId, OpError>,
) -> Made {
    let (grad, y) = (c.value("grad_output")?, c.value("output")?);
    let sizes = b.sizes(y)?;
    let d = shape::dim(c, "dim", sizes.len())?;
    let flat = |b: &mut Builder<'_>, v| {
        let v = widen(b, v)?;
        if sizes.is_empty() { b.reshape(v, &[SymExpr::ONE]) } else { Ok(v) }
    };
    let (grad, y) = (flat(b, grad)?, flat(b, y)?);
    let result = f(b, grad, y, d)?;
    let dtype = c.opt_dtype("input_dtype")?.ok_or_else(|| c.bad_arg("input_dtype", "is missing"))?;
    let result = b.cast(result, dtype)?;
    out(b.reshape(result, &sizes)?)
}
