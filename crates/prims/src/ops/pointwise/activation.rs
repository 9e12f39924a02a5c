//! Activation functions. Each is a few elementwise prims, computed in `f32` for 16-bit floats and rounded once.

use fx_ir::{Arg, ValueId};
use ir_core::{Scalar, SymExpr};

use crate::ops::common::{in_compute, one, unary_in_compute};
use crate::ops::pointwise::unary::{one_like, sigmoid};
use crate::promotion::Promote;
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// One tensor in, one out, computed in the dtype of arithmetic.
macro_rules! activation {
    ($schema:literal, $f:expr) => {
        composite!($schema, |b, c| unary_in_compute(b, c, Promote::Default, |b, x| {
            let f: fn(&mut Builder<'_>, &Call<'_>, ValueId) -> Result<ValueId, OpError> = $f;
            f(b, c, x)
        }))
    };
}

/// `alpha` and `scale` of `selu` (Klambauer et al. 2017, section 2).
const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
const SELU_SCALE: f64 = 1.050_700_987_355_480_5;

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    // max(x, 0)
    composite!("aten::relu(Tensor self) -> Tensor", |b, c| {
        let x = c.value("self")?;
        let zero = Scalar::zero(b.dtype(x)?);
        one(b.maximum(x, zero)?)
    }),
    composite!("aten::relu6(Tensor self) -> Tensor", |b, c| b
        .call("aten.hardtanh.default", vec![c.arg("self").clone(), 0i64.into(), 6i64.into()])),
    // The bounds do not promote: the result has the dtype of `self`.
    composite!("aten::hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor", |b, c| {
        let x = c.value("self")?;
        let dtype = b.dtype(x)?;
        let low = b.maximum(x, c.scalar("min_val")?.to_class_of(dtype))?;
        one(b.minimum(low, c.scalar("max_val")?.to_class_of(dtype))?)
    }),
    activation!("aten::gelu(Tensor self, *, str approximate=\"none\") -> Tensor", gelu),
    // x / (1 + exp(-x))
    activation!("aten::silu(Tensor self) -> Tensor", |b, _, x| {
        let one = one_like(b, x)?;
        let minus = b.neg(x)?;
        let e = b.exp(minus)?;
        let sum = b.add(e, one)?;
        b.div(x, sum)
    }),
    // x * tanh(log(1 + exp(x)))
    activation!("aten::mish(Tensor self) -> Tensor", |b, _, x| {
        let e = b.exp(x)?;
        let log = b.log1p(e)?;
        let t = b.tanh(log)?;
        b.mul(x, t)
    }),
    // log(1 + exp(beta x)) / beta; x itself where beta x is over the threshold
    activation!("aten::softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor", |b, c, x| {
        let (beta, threshold) = (c.float("beta")?, c.float("threshold")?);
        let scaled = b.mul(x, beta)?;
        let e = b.exp(scaled)?;
        let log = b.log1p(e)?;
        let soft = b.div(log, beta)?;
        let linear = b.gt(scaled, threshold)?;
        b.select(linear, x, soft)
    })
    .autocast(Autocast::FLOAT32_ON_GPU),
    // min(x, 0) - log(1 + exp(-|x|))
    activation!("aten::log_sigmoid(Tensor self) -> Tensor", |b, _, x| {
        let size = b.abs(x)?;
        let minus = b.neg(size)?;
        let e = b.exp(minus)?;
        let log = b.log1p(e)?;
        let low = b.minimum(x, 0.0)?;
        b.sub(low, log)
    }),
    activation!(
        "aten::elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor",
        |b, c, x| elu(b, x, c.float("alpha")?, c.float("scale")?, c.float("input_scale")?)
    ),
    activation!("aten::selu(Tensor self) -> Tensor", |b, _, x| elu(b, x, SELU_ALPHA, SELU_SCALE, 1.0)),
    activation!("aten::celu(Tensor self, Scalar alpha=1.) -> Tensor", |b, c, x| {
        let alpha = c.float("alpha")?;
        elu(b, x, alpha, 1.0, 1.0 / alpha)
    }),
    // clamp(x + 3, 0, 6) / 6
    activation!("aten::hardsigmoid(Tensor self) -> Tensor", |b, _, x| {
        let gate = gate6(b, x)?;
        b.div(gate, 6.0)
    }),
    // x * clamp(x + 3, 0, 6) / 6
    activation!("aten::hardswish(Tensor self) -> Tensor", |b, _, x| {
        let gate = gate6(b, x)?;
        let product = b.mul(x, gate)?;
        b.div(product, 6.0)
    }),
    activation!("aten::leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor", |b, c, x| leaky(
        b,
        x,
        c.float("negative_slope")?.into()
    )),
    // In training the slope is random.
    composite!("aten::prelu(Tensor self, Tensor weight) -> Tensor", prelu).autocast(Autocast::LOWER),
    composite!("aten::_prelu_kernel(Tensor self, Tensor weight) -> Tensor", |b, c| in_compute(
        b,
        c,
        Promote::Default,
        &["self", "weight"],
        |b, xs| {
            let [Arg::Value(x), w] = xs else { return Err(c.bad_arg("self", "must be a tensor")) };
            leaky(b, *x, w.clone())
        }
    )),
    // value where x <= threshold
    composite!("aten::threshold(Tensor self, Scalar threshold, Scalar value) -> Tensor", |b, c| {
        let x = c.value("self")?;
        let dtype = b.dtype(x)?;
        let low = b.le(x, c.scalar("threshold")?.to_class_of(dtype))?;
        one(b.select(low, c.scalar("value")?.to_class_of(dtype), x)?)
    }),
    // 0 where -lambda <= x <= lambda
    activation!("aten::hardshrink(Tensor self, Scalar lambd=0.5) -> Tensor", |b, c, x| {
        let size = b.abs(x)?;
        let small = b.le(size, c.float("lambd")?)?;
        b.select(small, 0.0, x)
    }),
    // x moved towards 0 by lambda; the product keeps a NaN
    activation!("aten::softshrink(Tensor self, Scalar lambd=0.5) -> Tensor", |b, c, x| {
        let lambda = c.float("lambd")?;
        let (above, below) = (b.sub(x, lambda)?, b.add(x, lambda)?);
        let (is_above, is_below) = (b.gt(x, lambda)?, b.lt(x, -lambda)?);
        let zero = b.mul(x, 0.0)?;
        let low = b.select(is_below, below, zero)?;
        b.select(is_above, above, low)
    }),
    composite!("aten::glu(Tensor self, int dim=-1) -> Tensor", glu),
    composite!("aten::logit(Tensor self, float? eps=None) -> Tensor", logit),
    composite!("aten::special_logit(Tensor self, float? eps=None) -> Tensor", logit),
];

fn gelu(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId) -> Result<ValueId, OpError> {
    let inner = match c.opt_str("approximate")?.unwrap_or("none") {
        // 0.5 x (1 + erf(x / sqrt 2))
        "none" => {
            let scaled = b.mul(x, std::f64::consts::FRAC_1_SQRT_2)?;
            b.erf(scaled)?
        }
        // 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x³)))
        "tanh" => {
            let square = b.mul(x, x)?;
            let cube = b.mul(square, x)?;
            let small = b.mul(cube, 0.044715)?;
            let sum = b.add(x, small)?;
            let scaled = b.mul(sum, std::f64::consts::SQRT_2 * std::f64::consts::FRAC_2_SQRT_PI * 0.5)?;
            b.tanh(scaled)?
        }
        other => return Err(c.bad_arg("approximate", format!("is `{other}`, not `none` or `tanh`"))),
    };
    let sum = b.add(inner, 1.0)?;
    let half = b.mul(x, 0.5)?;
    b.mul(half, sum)
}

/// `scale * x` above 0, `scale * alpha * (exp(input_scale * x) - 1)` below.
fn elu(
    b: &mut Builder<'_>,
    x: ValueId,
    alpha: f64,
    scale: f64,
    input_scale: f64,
) -> Result<ValueId, OpError> {
    let inner = if input_scale == 1.0 { x } else { b.mul(x, input_scale)? };
    let e = b.expm1(inner)?;
    let low = b.mul(e, alpha * scale)?;
    let high = if scale == 1.0 { x } else { b.mul(x, scale)? };
    let below = b.le(x, 0.0)?;
    b.select(below, low, high)
}

fn gate6(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, OpError> {
    let moved = b.add(x, 3.0)?;
    let low = b.maximum(moved, 0.0)?;
    b.minimum(low, 6.0)
}

fn leaky(b: &mut Builder<'_>, x: ValueId, slope: Arg) -> Result<ValueId, OpError> {
    let low = b.mul(x, slope)?;
    let above = b.gt(x, 0.0)?;
    b.select(above, x, low)
}

/// One weight for all, or one a channel (dimension 1).
fn prelu(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (x, w) = (c.value("self")?, c.value("weight")?);
    let rank = b.rank(x)?;
    let mut sizes = vec![SymExpr::ONE; rank];
    if rank > 0 {
        sizes[usize::from(rank > 1)] = b.meta(w)?.numel();
    }
    let w = b.reshape(w, &sizes)?;
    b.call("aten._prelu_kernel.default", vec![x.into(), w.into()])
}

/// First half of dimension `dim` times the sigmoid of the second.
fn glu(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let rank = b.rank(c.value("self")?)?;
    let dim = c.dim(c.int("dim")?, rank)?;
    unary_in_compute(b, c, Promote::Default, |b, x| {
        let sizes = b.sizes(x)?;
        let Some(size) = sizes.get(dim) else { return Err(c.invalid("a 0-dim tensor has no halves")) };
        b.require_equal(&size.modulo(&2.into()), &SymExpr::ZERO, |graph| {
            format!("dimension {dim} has an odd size, {}", graph.size_text(size))
        })?;
        let half = size.floor_div(&SymExpr::from_i64(2));
        let first = b.slice(x, dim, SymExpr::ZERO, half.clone(), 1)?;
        let second = b.slice(x, dim, half.clone(), half, 1)?;
        let gate = sigmoid(b, second)?;
        b.mul(first, gate)
    })
}

/// `log(x / (1 - x))`, `x` clamped to `[eps, 1 - eps]` first.
fn logit(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let eps = c.opt_float("eps")?;
    unary_in_compute(b, c, Promote::IntToFloat, |b, x| {
        let x = match eps {
            Some(eps) => {
                let low = b.maximum(x, eps)?;
                b.minimum(low, 1.0 - eps)?
            }
            None => x,
        };
        let rest = b.sub(1.0, x)?;
        let odds = b.div(x, rest)?;
        b.log(odds)
    })
}
