//! Gradients of prims that index, combine and pad elements, and of the matrix product. A list of tensors has one gradient
//! per item.

use fx_ir::{Arg, ValueId};
use ir_core::{Scalar, Shape, SymExpr};
use kernel_ir::ReduceOp;

use crate::ops::common::widen;
use crate::ops::gradients::scalar::{Grads, conj};
use crate::{Builder, GradCall, OpError};

/// The cotangent of the first result, where there is one and it is a float.
pub(super) fn cotangent(b: &Builder<'_>, call: &GradCall<'_>) -> Result<Option<ValueId>, OpError> {
    match call.cotangents.first() {
        Some(Some(g)) if b.dtype(*g)?.is_inexact() => Ok(Some(*g)),
        _ => Ok(None),
    }
}

/// No gradients: one entry an argument, one an item for lists of tensors.
pub(super) fn none(call: &GradCall<'_>) -> Vec<Option<ValueId>> {
    let places = |arg: &Arg| match arg {
        Arg::List(items) if items.iter().any(|a| matches!(a, Arg::Value(_))) => items.len(),
        _ => 1,
    };
    vec![None; call.call.args.iter().map(places).sum()]
}

fn zeros_of(b: &mut Builder<'_>, v: ValueId) -> Result<ValueId, OpError> {
    let meta = b.meta(v)?.clone();
    b.full(&meta.sizes, Scalar::zero(meta.dtype), meta.dtype)
}

/// Each tensor gets its part of the cotangent.
pub(in crate::ops) fn cat(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let mut grads = none(call);
    let Some(g) = cotangent(b, call)? else { return Ok(grads) };
    let tensors = call.call.values("tensors")?;
    let dim = call.call.dim(call.call.int("dim")?, b.rank(g)?)?;
    let mut start = SymExpr::ZERO;
    for (n, t) in tensors.into_iter().enumerate() {
        let length = b.meta(t)?.sizes[dim].clone();
        grads[n] = Some(b.slice(g, dim, start.clone(), length.clone(), 1)?);
        start = start + length;
    }
    Ok(grads)
}

/// What was padded is cut off, and every `interior + 1`-th element taken; what was cut is zero.
pub(in crate::ops) fn pad(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let mut grads = none(call);
    let Some(g) = cotangent(b, call)? else { return Ok(grads) };
    let a = call.call.value("a")?;
    let (low, high) = (call.call.syms("low")?, call.call.syms("high")?);
    let interior = call.call.ints("interior")?;
    // The same padding with opposite signs undoes the edges; then the steps.
    let minus = |list: &[SymExpr]| -> Vec<SymExpr> { list.iter().map(|e| SymExpr::ZERO - e).collect() };
    let flat = vec![0i64; low.len()];
    let zero = Scalar::zero(b.dtype(g)?);
    let (low, high) = (minus(&low), minus(&high));
    let mut grad =
        b.call1("prims.pad", vec![g.into(), low[..].into(), high[..].into(), flat[..].into(), zero.into()])?;
    let sizes = b.sizes(a)?;
    for (d, &gap) in interior.iter().enumerate() {
        grad = b.slice(grad, d, SymExpr::ZERO, sizes[d].clone(), gap + 1)?;
    }
    grads[0] = Some(grad);
    Ok(grads)
}

/// The gradient of a tensor whose elements were read, some of them many times: `put` adds `g` to zeros. 16-bit sums are rounded
/// once, not at each addition: a thousand equal summands would end at a quarter of their sum.
fn summed(
    b: &mut Builder<'_>,
    read: ValueId,
    g: ValueId,
    put: impl FnOnce(&mut Builder<'_>, ValueId, ValueId) -> Result<ValueId, OpError>,
) -> Result<ValueId, OpError> {
    let meta = b.meta(read)?.clone();
    let g = widen(b, g)?;
    let compute = b.dtype(g)?;
    let zeros = b.full(&meta.sizes, Scalar::zero(compute), compute)?;
    let sums = put(b, zeros, g)?;
    b.cast(sums, meta.dtype)
}

/// Added where the elements came from. Where that is one of each line, every element compares its position with the index
/// instead: nothing is written twice, and what reads the gradient computes it.
pub(in crate::ops) fn gather(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let mut grads = none(call);
    let Some(g) = cotangent(b, call)? else { return Ok(grads) };
    if let Some(grad) = of_one_each(b, call, g)? {
        grads[0] = Some(grad);
        return Ok(grads);
    }
    let [dim, index] = ["dim", "index"].map(|name| call.call.arg(name).clone());
    grads[0] = Some(summed(b, call.call.value("a")?, g, |b, zeros, g| {
        b.call1("prims.scatter", vec![zeros.into(), dim, index, g.into(), "add".into()])
    })?);
    Ok(grads)
}

/// The gradient of a `gather` that takes one element of each line along its dimension.
fn of_one_each(b: &mut Builder<'_>, call: &GradCall<'_>, g: ValueId) -> Result<Option<ValueId>, OpError> {
    let (a, index) = (call.call.value("a")?, call.call.value("index")?);
    let (sizes, taken) = (b.sizes(a)?, b.sizes(index)?);
    let d = call.call.dim(call.call.int("dim")?, sizes.len())?;
    let one_each = (0..sizes.len()).all(|i| taken[i] == if i == d { SymExpr::ONE } else { sizes[i].clone() });
    if !one_each {
        return Ok(None);
    }
    let line = crate::ops::shapes::creation::iota(b, sizes[d].clone())?;
    let along: Shape =
        (0..sizes.len()).map(|i| if i == d { sizes[d].clone() } else { SymExpr::ONE }).collect();
    let line = b.reshape(line, &along)?;
    let is_taken = b.eq(line, index)?;
    b.select(is_taken, g, 0.0).map(Some)
}

/// Added where the elements came from.
pub(in crate::ops) fn index(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let mut grads = none(call);
    let Some(g) = cotangent(b, call)? else { return Ok(grads) };
    let [indices, start] = ["indices", "start"].map(|name| call.call.arg(name).clone());
    grads[0] = Some(summed(b, call.call.value("a")?, g, |b, zeros, g| {
        b.call1("prims.index_put", vec![zeros.into(), indices, start, g.into(), "add".into()])
    })?);
    Ok(grads)
}

/// `add`: all to both. `write`: nothing to what was overwritten. Extremes: to those that equal the result, shared.
pub(in crate::ops) fn scatter(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let mut grads = none(call);
    let Some(g) = cotangent(b, call)? else { return Ok(grads) };
    let (a, src) = (call.call.value("a")?, call.call.value("src")?);
    let [dim, index] = ["dim", "index"].map(|name| call.call.arg(name).clone());
    let put = |b: &mut Builder<'_>, to: ValueId, v: ValueId, mode: &str| {
        b.call1("prims.scatter", vec![to.into(), dim.clone(), index.clone(), v.into(), mode.into()])
    };
    let take =
        |b: &mut Builder<'_>, v: ValueId| b.call1("prims.gather", vec![v.into(), dim.clone(), index.clone()]);
    let part = {
        let index = call.call.value("index")?;
        let sizes = b.sizes(index)?;
        head(b, src, &sizes)?
    };
    let (to_a, to_part) = combined(b, call, g, a, part, &put, &take)?;
    grads[0] = Some(to_a);
    let sizes = b.sizes(src)?;
    grads[3] = Some(filled_up(b, to_part, &sizes)?);
    Ok(grads)
}

/// As [`scatter`], at positions of `index`.
pub(in crate::ops) fn index_put(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let mut grads = none(call);
    let Some(g) = cotangent(b, call)? else { return Ok(grads) };
    let (a, values) = (call.call.value("a")?, call.call.value("values")?);
    let [indices, start] = ["indices", "start"].map(|name| call.call.arg(name).clone());
    let put = |b: &mut Builder<'_>, to: ValueId, v: ValueId, mode: &str| {
        b.call1("prims.index_put", vec![to.into(), indices.clone(), start.clone(), v.into(), mode.into()])
    };
    let take = |b: &mut Builder<'_>, v: ValueId| {
        b.call1("prims.index", vec![v.into(), indices.clone(), start.clone()])
    };
    let (to_a, to_values) = combined(b, call, g, a, values, &put, &take)?;
    let places = grads.len();
    grads[0] = Some(to_a);
    grads[places - 2] = Some(to_values);
    Ok(grads)
}

type Put<'a> = &'a dyn Fn(&mut Builder<'_>, ValueId, ValueId, &str) -> Result<ValueId, OpError>;
type Take<'a> = &'a dyn Fn(&mut Builder<'_>, ValueId) -> Result<ValueId, OpError>;

/// Gradients of the base and of the values combined into it.
fn combined(
    b: &mut Builder<'_>,
    call: &GradCall<'_>,
    g: ValueId,
    a: ValueId,
    values: ValueId,
    put: Put<'_>,
    take: Take<'_>,
) -> Result<(ValueId, ValueId), OpError> {
    match call.call.opt_str("mode")?.unwrap_or("write") {
        "add" => Ok((g, take(b, g)?)),
        "write" => {
            let zeros = zeros_of(b, values)?;
            Ok((put(b, g, zeros, "write")?, take(b, g)?))
        }
        "amax" | "amin" => {
            let dtype = b.dtype(g)?;
            let result = call.outs[0];
            let at = take(b, result)?;
            let (a_hit, hit) = (b.eq(a, result)?, b.eq(values, at)?);
            let (a_hit, hit) = (b.cast(a_hit, dtype)?, b.cast(hit, dtype)?);
            let count = put(b, a_hit, hit, "add")?;
            let share = b.div(g, count)?;
            let at = take(b, share)?;
            Ok((b.mul(share, a_hit)?, b.mul(at, hit)?))
        }
        "prod" => product(b, g, a, values, put, take),
        other => Err(call.call.unsupported(format!("the gradient of mode `{other}`"))),
    }
}

/// Of a product: the other factors. Zeros are counted: one passes the product of the others to itself alone, more
/// pass nothing.
fn product(
    b: &mut Builder<'_>,
    g: ValueId,
    a: ValueId,
    values: ValueId,
    put: Put<'_>,
    take: Take<'_>,
) -> Result<(ValueId, ValueId), OpError> {
    let (a, values) = (conj(b, a)?, conj(b, values)?);
    let dtype = b.dtype(g)?;
    let (zero, one) = (Scalar::zero(dtype), Scalar::Int(1).to_class_of(dtype));
    let (a_zero, value_zero) = (b.eq(a, zero)?, b.eq(values, zero)?);
    let (a_safe, value_safe) = (b.select(a_zero, one, a)?, b.select(value_zero, one, values)?);
    let others = put(b, a_safe, value_safe, "prod")?;
    let (a_count, value_count) = (b.cast(a_zero, dtype)?, b.cast(value_zero, dtype)?);
    let zeros = put(b, a_count, value_count, "add")?;
    let weighted = b.mul(g, others)?;
    let part = |b: &mut Builder<'_>, weighted, zeros, own, safe| -> Result<ValueId, OpError> {
        // As many zeros as the factor is itself one.
        let alone = b.eq(zeros, own)?;
        let share = b.div(weighted, safe)?;
        b.select(alone, share, zero)
    };
    let to_a = part(b, weighted, zeros, a_count, a_safe)?;
    let (weighted, zeros) = (take(b, weighted)?, take(b, zeros)?);
    Ok((to_a, part(b, weighted, zeros, value_count, value_safe)?))
}

/// The first elements of every dimension.
fn head(b: &mut Builder<'_>, v: ValueId, sizes: &[SymExpr]) -> Result<ValueId, OpError> {
    let mut out = v;
    for (d, size) in sizes.iter().enumerate() {
        out = b.slice(out, d, SymExpr::ZERO, size.clone(), 1)?;
    }
    Ok(out)
}

/// Zeros after the elements of every dimension, to the sizes.
fn filled_up(b: &mut Builder<'_>, v: ValueId, sizes: &[SymExpr]) -> Result<ValueId, OpError> {
    let own = b.sizes(v)?;
    if own[..] == *sizes {
        return Ok(v);
    }
    let high: Vec<SymExpr> = sizes.iter().zip(&own).map(|(want, have)| want - have).collect();
    let low = vec![SymExpr::ZERO; sizes.len()];
    let zero = Scalar::zero(b.dtype(v)?);
    let interior = vec![0i64; sizes.len()];
    b.call1("prims.pad", vec![v.into(), low[..].into(), high[..].into(), interior[..].into(), zero.into()])
}

/// `g bᵀ` and `aᵀ g`; with conjugates where they are complex.
pub(in crate::ops) fn matmul(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let mut grads = none(call);
    let Some(g) = cotangent(b, call)? else { return Ok(grads) };
    let (x, y) = (call.call.value("a")?, call.call.value("b")?);
    let (xt, yt) = (transposed(b, x)?, transposed(b, y)?);
    grads[0] = Some(b.call1("prims.matmul", vec![g.into(), yt.into()])?);
    grads[1] = Some(b.call1("prims.matmul", vec![xt.into(), g.into()])?);
    Ok(grads)
}

fn transposed(b: &mut Builder<'_>, v: ValueId) -> Result<ValueId, OpError> {
    let rank = b.rank(v)?;
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 1, rank - 2);
    let v = conj(b, v)?;
    b.permute(v, &order)
}

/// Every position gets the sum of what windows hold of it, gathered: nothing is added to memory.
pub(in crate::ops) fn window(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let mut grads = none(call);
    let Some(g) = cotangent(b, call)? else { return Ok(grads) };
    let meta = b.meta(call.call.value("a")?)?.clone();
    let spatial = call.call.syms("sizes")?.len();
    let space: Shape = meta.sizes[meta.rank() - spatial..].iter().cloned().collect();
    let mut args = vec![Arg::Value(g), space[..].into()];
    args.extend(["stride", "dilation", "low"].map(|name| call.call.arg(name).clone()));
    let covers = b.call1("prims.cover", args)?;
    let dims: Vec<usize> = (meta.rank()..meta.rank() + spatial).collect();
    grads[0] = Some(b.reduce(ReduceOp::Sum, covers, &dims, false)?);
    Ok(grads)
}

/// `g` with the real part, and `i g` with the imaginary: gradients of complex tensors point to the steepest ascent.
pub(in crate::ops) fn real(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let Some(g) = cotangent(b, call)? else { return Ok(none(call)) };
    let zero = zeros_of(b, g)?;
    Ok(vec![Some(b.call1("prims.complex", vec![g.into(), zero.into()])?)])
}

/// See [`real`].
pub(in crate::ops) fn imag(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let Some(g) = cotangent(b, call)? else { return Ok(none(call)) };
    let zero = zeros_of(b, g)?;
    Ok(vec![Some(b.call1("prims.complex", vec![zero.into(), g.into()])?)])
}

/// The parts of the cotangent.
pub(in crate::ops) fn complex(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let Some(g) = cotangent(b, call)? else { return Ok(none(call)) };
    Ok(vec![Some(b.call1("prims.real", vec![g.into()])?), Some(b.call1("prims.imag", vec![g.into()])?)])
}
