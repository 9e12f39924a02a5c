//! Norms, variances and distances.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Scalar, SymExpr};
use kernel_ir::ReduceOp;
use smallvec::smallvec;

use crate::ops::common::{count_of, dims_or_all, one, want_inexact, widen};
use crate::ops::reductions::reduction::{count_arg, mean_of, squeeze};
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        |b, c| { norm(b, c, c.float("ord")?, true) }
    ).autocast(Autocast::FLOAT32_RESULT_ON_GPU),
    composite!("aten::norm.Scalar(Tensor self, Scalar p=2) -> Tensor", |b, c| norm(
        b,
        c,
        c.float("p")?,
        false
    )).autocast(Autocast::FLOAT32_ON_GPU),
    composite!(
        "aten::norm.ScalarOpt_dim(Tensor self, Scalar? p, int[1] dim, bool keepdim=False) -> Tensor",
        |b, c| { norm(b, c, c.opt_float("p")?.unwrap_or(2.0), true) }
    ).autocast(Autocast::FLOAT32_ON_GPU),
    composite!(
        "aten::norm.ScalarOpt_dim_dtype(Tensor self, Scalar? p, int[1] dim, bool keepdim, *, ScalarType dtype) -> Tensor",
        |b, c| { norm(b, c, c.opt_float("p")?.unwrap_or(2.0), true) }
    ).autocast(Autocast::FLOAT32_ON_GPU),
    composite!(
        "aten::norm.ScalarOpt_dtype(Tensor self, Scalar? p, *, ScalarType dtype) -> Tensor",
        |b, c| { norm(b, c, c.opt_float("p")?.unwrap_or(2.0), false) }
    ).autocast(Autocast::FLOAT32_ON_GPU),
    composite!("aten::frobenius_norm.dim(Tensor self, int[1] dim, bool keepdim=False) -> Tensor", |b, c| {
        norm(b, c, 2.0, true)
    }).autocast(Autocast::FLOAT32_ON_GPU),
    composite!("aten::dist(Tensor self, Tensor other, Scalar p=2) -> Tensor", |b, c| {
        let difference = b.call1("aten.sub.Tensor", vec![c.arg("self").clone(), c.arg("other").clone()])?;
        b.call("aten.norm.Scalar", vec![difference.into(), c.arg("p").clone()])
    }).autocast(Autocast::FLOAT32_ON_GPU),
    composite!("aten::renorm(Tensor self, Scalar p, int dim, Scalar maxnorm) -> Tensor", renorm).autocast(Autocast::FLOAT32_ON_GPU),
    composite!("aten::var(Tensor self, bool unbiased=True) -> Tensor", |b, c| variance(b, c, Want::VAR)),
    composite!(
        "aten::var.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor",
        |b, c| variance(b, c, Want::VAR)
    ),
    composite!(
        "aten::var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor",
        |b, c| variance(b, c, Want::VAR)
    ),
    composite!("aten::var_mean(Tensor self, bool unbiased=True) -> (Tensor, Tensor)", |b, c| variance(
        b,
        c,
        Want::VAR_MEAN
    )),
    composite!(
        "aten::var_mean.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> (Tensor, Tensor)",
        |b, c| variance(b, c, Want::VAR_MEAN)
    ),
    composite!(
        "aten::var_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)",
        |b, c| variance(b, c, Want::VAR_MEAN)
    ),
    composite!("aten::std(Tensor self, bool unbiased=True) -> Tensor", |b, c| variance(b, c, Want::STD)),
    composite!(
        "aten::std.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor",
        |b, c| variance(b, c, Want::STD)
    ),
    composite!(
        "aten::std.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor",
        |b, c| variance(b, c, Want::STD)
    ),
    composite!("aten::std_mean(Tensor self, bool unbiased=True) -> (Tensor, Tensor)", |b, c| variance(
        b,
        c,
        Want::STD_MEAN
    )),
    composite!(
        "aten::std_mean.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> (Tensor, Tensor)",
        |b, c| variance(b, c, Want::STD_MEAN)
    ),
    composite!(
        "aten::std_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)",
        |b, c| variance(b, c, Want::STD_MEAN)
    ),
];

/// `dim`, `keepdim` and `dtype` where the overload has them.
fn norm(b: &mut Builder<'_>, c: &Call<'_>, ord: f64, has_dims: bool) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let has_dtype = c.op.schema.arg_index("dtype").is_some();
    let dtype = if has_dtype { c.opt_dtype("dtype")? } else { None }.unwrap_or(b.dtype(x)?);
    want_inexact(c, dtype)?;
    let rank = b.rank(x)?;
    let (dims, keepdim) = if has_dims {
        (dims_or_all(c, "dim", rank)?, c.bool("keepdim")?)
    } else {
        ((0..rank).collect(), false)
    };
    let x = b.cast(x, dtype)?;
    let x = widen(b, x)?;
    let out = norm_of(b, x, ord, &dims, keepdim)?;
    one(b.cast(out, dtype.to_real())?)
}

/// The p-norm over dimensions, in the (real) dtype of `x`: the largest or smallest magnitude for infinite p, the
/// number of elements other than 0 for p = 0.
pub(crate) fn norm_of(
    b: &mut Builder<'_>,
    x: ValueId,
    ord: f64,
    dims: &[usize],
    keepdim: bool,
) -> Result<ValueId, OpError> {
    let dtype = b.dtype(x)?.to_real();
    let sizes = b.sizes(x)?;
    if ord != 0.0 && dims.iter().all(|&d| sizes.get(d) == Some(&SymExpr::ONE)) {
        // Of one element, so that no power of it overflows.
        let size = b.call1("aten.abs.default", vec![x.into()])?;
        return b.reduce(ReduceOp::Sum, size, dims, keepdim);
    }
    if ord == 2.0 && !b.dtype(x)?.is_complex() {
        let squares = b.mul(x, x)?;
        let sum = b.reduce(ReduceOp::Sum, squares, dims, keepdim)?;
        return root(b, sum, 2.0);
    }
    if ord == 2.0 {
        let (re, im) = (b.call1("prims.real", vec![x.into()])?, b.call1("prims.imag", vec![x.into()])?);
        let (re, im) = (b.mul(re, re)?, b.mul(im, im)?);
        let squares = b.add(re, im)?;
        let sum = b.reduce(ReduceOp::Sum, squares, dims, keepdim)?;
        return root(b, sum, 2.0);
    }
    let size = b.call1("aten.abs.default", vec![x.into()])?;
    if ord == 0.0 {
        let some = b.ne(size, 0.0)?;
        let some = b.cast(some, dtype)?;
        return b.reduce(ReduceOp::Sum, some, dims, keepdim);
    }
    if ord.is_infinite() {
        return b.reduce(if ord > 0.0 { ReduceOp::Max } else { ReduceOp::Min }, size, dims, keepdim);
    }
    if ord == 1.0 {
        return b.reduce(ReduceOp::Sum, size, dims, keepdim);
    }
    let powers = if ord >= 2.0 {
        b.pow(size, ord)?
    } else {
        // Elements that are 0 get no gradient.
        let zero = b.eq(size, 0.0)?;
        let safe = b.select(zero, 1.0, size)?;
        let power = b.pow(safe, ord)?;
        b.select(zero, 0.0f64.powf(ord), power)?
    };
    let sum = b.reduce(ReduceOp::Sum, powers, dims, keepdim)?;
    root(b, sum, ord)
}

/// `x^(1 / ord)`, with the gradient 0 at 0: the subgradient of norms and deviations that PyTorch takes.
fn root(b: &mut Builder<'_>, x: ValueId, ord: f64) -> Result<ValueId, OpError> {
    let zero = b.eq(x, 0.0)?;
    let safe = b.select(zero, 1.0, x)?;
    let value = if ord == 2.0 { b.sqrt(safe)? } else { b.pow(safe, 1.0 / ord)? };
    b.select(zero, 0.0f64.powf(1.0 / ord), value)
}

/// Slices along `dim` whose norm is over the limit are scaled down to it.
fn renorm(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let (dtype, rank) = (b.dtype(x)?, b.rank(x)?);
    let dim = c.dim(c.int("dim")?, rank)?;
    let dims: Vec<usize> = (0..rank).filter(|&d| d != dim).collect();
    let wide = widen(b, x)?;
    let norm = norm_of(b, wide, c.float("p")?, &dims, true)?;
    let limit = c.float("maxnorm")?;
    // 1e-7 keeps the quotient finite, as PyTorch has it.
    let safe = b.add(norm, 1e-7)?;
    let scale = b.div(limit, safe)?;
    let over = b.gt(norm, limit)?;
    let scale = b.select(over, scale, 1.0)?;
    let wide_dtype = b.dtype(wide)?;
    let scale = b.cast(scale, wide_dtype)?;
    let out = b.mul(wide, scale)?;
    one(b.cast(out, dtype)?)
}

/// Which of the results an operator returns.
#[derive(Clone, Copy)]
struct Want {
    root: bool,
    mean: bool,
}

impl Want {
    const VAR: Want = Want { root: false, mean: false };
    const STD: Want = Want { root: true, mean: false };
    const VAR_MEAN: Want = Want { root: false, mean: true };
    const STD_MEAN: Want = Want { root: true, mean: true };
}

/// What is taken off the number of elements: 1 unless the call says otherwise.
fn correction(c: &Call<'_>) -> Result<f64, OpError> {
    let has = |name: &str| c.op.schema.arg_index(name).is_some();
    if has("correction") {
        return Ok(c.opt_float("correction")?.unwrap_or(1.0));
    }
    Ok(if has("unbiased") && !c.bool("unbiased")? { 0.0 } else { 1.0 })
}

fn variance(b: &mut Builder<'_>, c: &Call<'_>, want: Want) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dtype = b.dtype(x)?;
    want_inexact(c, dtype)?;
    let rank = b.rank(x)?;
    let has = |name: &str| c.op.schema.arg_index(name).is_some();
    let dims = if has("dim") { dims_or_all(c, "dim", rank)? } else { (0..rank).collect() };
    let keepdim = has("keepdim") && c.bool("keepdim")?;
    let wide = widen(b, x)?;
    let mean = mean_of(b, wide, &dims, true)?;
    let var = variance_about(b, wide, mean, &dims, correction(c)?)?;
    let var = if want.root { root(b, var, 2.0)? } else { var };
    let var = b.cast(var, dtype.to_real())?;
    let shaped = |b: &mut Builder<'_>, v: ValueId| if keepdim { Ok(v) } else { squeeze(b, v, &dims) };
    let var = shaped(b, var)?;
    if !want.mean {
        return one(var);
    }
    let mean = b.cast(mean, dtype)?;
    Ok(smallvec![var, shaped(b, mean)?])
}

/// `sum(|x - mean|²) / max(n - correction, 0)` with kept dimensions, in the real dtype of `x`.
pub(crate) fn variance_about(
    b: &mut Builder<'_>,
    x: ValueId,
    mean: ValueId,
    dims: &[usize],
    correction: f64,
) -> Result<ValueId, OpError> {
    let distance = b.sub(x, mean)?;
    let distance =
        if b.dtype(x)?.is_complex() { b.call1("aten.abs.default", vec![distance.into()])? } else { distance };
    let squares = b.mul(distance, distance)?;
    let sum = b.reduce(ReduceOp::Sum, squares, dims, true)?;
    let dtype = b.dtype(sum)?;
    let count = count_of(b, x, dims)?;
    let divisor = match count.as_const() {
        Some(n) => Arg::from(Scalar::Float((n as f64 - correction).max(0.0)).to_class_of(dtype)),
        None if correction.fract() == 0.0 => {
            let left = count - SymExpr::from_i64(correction as i64);
            count_arg(crate::ops::shapes::shape::simplify(b, left.sym_max(&SymExpr::ZERO)), dtype)
        }
        None => {
            let count = b.call1("prims.full", vec![Arg::List(vec![]), count.into(), DType::F64.into()])?;
            let left = b.sub(count, correction)?;
            let left = b.maximum(left, 0.0)?;
            b.cast(left, dtype)?.into()
        }
    };
    b.div(sum, divisor)
}
