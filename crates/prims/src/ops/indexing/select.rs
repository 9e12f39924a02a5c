//! Ternary operators and selections: clamp, where, masked_fill, lerp, addcmul, addcdiv.

use fx_ir::Arg;
use ir_core::{DType, Scalar};
use kernel_ir::ScalarOp;

use crate::ops::common::{choose, in_compute, named, one, promoted, truth};
use crate::promotion::Promote;
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!("aten::clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor", clamp),
    composite!("aten::clamp.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor", clamp),
    composite!("aten::clip(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor", clamp),
    composite!("aten::clip.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor", clamp),
    composite!("aten::clamp_min(Tensor self, Scalar min) -> Tensor", |b, c| bound(
        b,
        c,
        ScalarOp::Max,
        "min"
    )),
    composite!("aten::clamp_min.Tensor(Tensor self, Tensor min) -> Tensor", |b, c| bound(
        b,
        c,
        ScalarOp::Max,
        "min"
    )),
    composite!("aten::clamp_max(Tensor self, Scalar max) -> Tensor", |b, c| bound(
        b,
        c,
        ScalarOp::Min,
        "max"
    )),
    composite!("aten::clamp_max.Tensor(Tensor self, Tensor max) -> Tensor", |b, c| bound(
        b,
        c,
        ScalarOp::Min,
        "max"
    )),
    composite!("aten::where.self(Tensor condition, Tensor self, Tensor other) -> Tensor", choice),
    composite!("aten::where.ScalarOther(Tensor condition, Tensor self, Scalar other) -> Tensor", choice),
    composite!("aten::where.ScalarSelf(Tensor condition, Scalar self, Tensor other) -> Tensor", choice),
    composite!("aten::where.Scalar(Tensor condition, Scalar self, Scalar other) -> Tensor", choice),
    composite!("aten::masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor", masked_fill),
    composite!("aten::masked_fill.Tensor(Tensor self, Tensor mask, Tensor value) -> Tensor", masked_fill),
    composite!("aten::lerp.Scalar(Tensor self, Tensor end, Scalar weight) -> Tensor", lerp),
    composite!("aten::lerp.Tensor(Tensor self, Tensor end, Tensor weight) -> Tensor", lerp),
    // self + value * tensor1 * tensor2
    composite!(
        "aten::addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor",
        |b, c| fused_add(b, c, ScalarOp::Mul)
    )
    .autocast(Autocast::WIDEST_ON_GPU),
    // self + value * tensor1 / tensor2
    composite!(
        "aten::addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor",
        |b, c| fused_add(b, c, ScalarOp::Div)
    )
    .autocast(Autocast::WIDEST_ON_GPU),
];

/// `min(max(self, min), max)`; a `NaN` anywhere wins. As a choice rather than an extreme: at a bound the gradient is
/// that of `self`.
fn clamp(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (operands, _) = promoted(b, c, Promote::Default, &["self", "min", "max"])?;
    let [mut x, low, high] = [operands[0].clone(), operands[1].clone(), operands[2].clone()];
    if matches!((&low, &high), (Arg::None, Arg::None)) {
        return Err(c.invalid("needs `min` or `max`"));
    }
    for (op, limit) in [(ScalarOp::Max, low), (ScalarOp::Min, high)] {
        if limit != Arg::None {
            x = Arg::Value(limited(b, c, x, limit, op)?);
        }
    }
    match x {
        Arg::Value(v) => one(v),
        _ => Err(c.bad_arg("self", "must be a tensor")),
    }
}

fn bound(b: &mut Builder<'_>, c: &Call<'_>, op: ScalarOp, name: &str) -> Result<Outs, OpError> {
    let (operands, _) = promoted(b, c, Promote::Default, &["self", name])?;
    one(limited(b, c, operands[0].clone(), operands[1].clone(), op)?)
}

/// `x` where it is not beyond the limit, which is a lower one for `Max`.
fn limited(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    x: Arg,
    limit: Arg,
    op: ScalarOp,
) -> Result<fx_ir::ValueId, OpError> {
    let Arg::Value(v) = x else { return Err(c.bad_arg("self", "must be a tensor")) };
    let lower = op == ScalarOp::Max;
    if let Some(number) = limit.as_scalar() {
        let dtype = b.dtype(v)?;
        if dtype.is_float() && number.as_f64().is_nan() {
            let sizes = b.sizes(v)?;
            return b.full(&sizes, f64::NAN, dtype);
        }
        let beyond = if lower { b.lt(v, limit.clone())? } else { b.gt(v, limit.clone())? };
        return b.select(beyond, limit, v);
    }
    let within = if lower { b.ge(v, limit.clone())? } else { b.le(v, limit.clone())? };
    let nan = b.ne(v, v)?;
    let nan = match &limit {
        Arg::Value(l) => {
            let sizes = b.broadcast_sizes(&[v, *l])?;
            b.expand(nan, &sizes)?
        }
        _ => nan,
    };
    let kept = b.or(within, nan)?;
    b.scalar_op(ScalarOp::Select, &[kept.into(), v.into(), limit])
}

fn choice(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let branches = named(c, &["self", "other"]);
    let dtype = b.result_type(&branches)?;
    let mask = truth(b, c.value("condition")?)?;
    one(choose(b, mask, branches[0].clone(), branches[1].clone(), dtype)?)
}

/// The value is taken in the dtype of `self`.
fn masked_fill(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dtype = b.dtype(x)?;
    let mask = truth(b, c.value("mask")?)?;
    one(choose(b, mask, c.arg("value").clone(), x, dtype)?)
}

/// `self + weight * (end - self)`, from the other side where the weight is at least a half.
fn lerp(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    in_compute(b, c, Promote::Default, &["self", "end", "weight"], |b, xs| {
        let dtype = b.result_type(xs)?;
        let [x, y, w] = [xs[0].clone(), xs[1].clone(), xs[2].clone()];
        let distance = b.sub(y.clone(), x.clone())?;
        let unit = Scalar::Int(1).to_class_of(dtype);
        let size = match (&w, w.as_scalar()) {
            (_, Some(Scalar::Complex(re, im))) => Some(re.hypot(im)),
            (_, Some(number)) => Some(number.as_f64().abs()),
            _ => None,
        };
        let near = |b: &mut Builder<'_>| {
            let step = b.mul(distance, w.clone())?;
            b.add(x.clone(), step)
        };
        let far = |b: &mut Builder<'_>| {
            let weight = b.as_tensor(&w, dtype)?;
            let rest = b.sub(unit, weight)?;
            let step = b.mul(distance, rest)?;
            b.sub(y.clone(), step)
        };
        match size {
            Some(size) if size < 0.5 => near(b),
            Some(_) => far(b),
            None => {
                let (near, far) = (near(b)?, far(b)?);
                let size = b.call1("aten.abs.default", vec![w.clone()])?;
                let small = b.lt(size, 0.5)?;
                b.select(small, near, far)
            }
        }
    })
}

fn fused_add(b: &mut Builder<'_>, c: &Call<'_>, op: ScalarOp) -> Result<Outs, OpError> {
    in_compute(b, c, Promote::Default, &["self", "tensor1", "tensor2"], |b, xs| {
        let dtype = b.result_type(xs)?;
        if op == ScalarOp::Div && dtype.is_integral() {
            return Err(OpError::DType { op: c.name().into(), dtype: DType::I64 });
        }
        let first = if c.arg("value").as_scalar() == Some(Scalar::Int(1)) {
            xs[1].clone()
        } else {
            let value = b.as_dtype(c.arg("value"), dtype)?;
            Arg::Value(b.mul(xs[1].clone(), value)?)
        };
        let product = b.scalar_op(op, &[first, xs[2].clone()])?;
        b.add(xs[0].clone(), product)
    })
}
