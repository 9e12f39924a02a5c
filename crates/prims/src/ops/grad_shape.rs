//! Gradients of prims that reduce, scan, sort and move elements. Cotangents of integers are none.

use fx_ir::{Arg, ValueId};
use ir_core::{Scalar, Shape, SymExpr};
use kernel_ir::ReduceOp;

use super::grad_scalar::{Grads, conj};
use super::prims_reduce::reduced_dims;
use crate::{Builder, GradCall, OpError};

/// Operand `a`, and the cotangent of the first result where it is a float.
fn parts(b: &Builder<'_>, call: &GradCall<'_>) -> Result<Option<(ValueId, ValueId)>, OpError> {
    let a = call.call.value("a")?;
    match call.cotangents.first() {
        Some(Some(g)) if b.dtype(*g)?.is_inexact() => Ok(Some((a, *g))),
        _ => Ok(None),
    }
}

/// The gradient of the first argument alone.
fn first(call: &GradCall<'_>, grad: Option<ValueId>) -> Vec<Option<ValueId>> {
    let mut grads = vec![None; call.call.args.len()];
    if let Some(slot) = grads.first_mut() {
        *slot = grad;
    }
    grads
}

/// A rule of operand `a` alone.
macro_rules! unary_rule {
    ($(#[doc = $doc:literal] $name:ident $f:expr;)*) => {$(
        #[doc = $doc]
        pub(super) fn $name(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
            let Some((a, g)) = parts(b, call)? else { return Ok(vec![None; call.call.args.len()]) };
            let f: fn(&mut Builder<'_>, &GradCall<'_>, ValueId, ValueId) -> Result<ValueId, OpError> = $f;
            let grad = f(b, call, a, g)?;
            Ok(first(call, Some(grad)))
        }
    )*};
}

unary_rule! {
    #[doc = "Every element gets the sum's cotangent."]
    sum |b, call, a, g| spread(b, call, a, g);
    #[doc = "The elements that equal the extreme share its cotangent."]
    extreme extreme_of;
    #[doc = "The element whose number is given gets the cotangent."]
    extreme_at extreme_at_of;
    #[doc = "The cotangent times the product of the other elements."]
    prod prod_of;
    #[doc = "The running sum from the other end."]
    cumsum |b, call, a, g| {
        let dim = call.call.dim(call.call.int("dim")?, b.rank(a)?)?;
        backwards(b, "prims.cumsum", g, dim)
    };
    #[doc = "`reverse cumsum(g y) / a`; at the first zero that of the products without it, at later ones nothing."]
    cumprod cumprod_of;
    #[doc = "Each cotangent goes to the last element so far that equals the extreme."]
    cumulative_extreme cumulative_extreme_of;
    #[doc = "Summed over what was broadcast."]
    expand |b, _, a, g| {
        let sizes = b.sizes(a)?;
        super::reduction::sum_to_exact(b, g, &sizes)
    };
    #[doc = "The inverse permutation."]
    permute |b, call, a, g| {
        let rank = b.rank(a)?;
        let dims = call.call.ints("dims")?;
        let mut inverse = vec![0; rank];
        for (d, &from) in dims.iter().enumerate() {
            inverse[call.call.dim(from, rank)?] = d;
        }
        b.permute(g, &inverse)
    };
    #[doc = "The shape from before."]
    reshape |b, _, a, g| {
        let sizes = b.sizes(a)?;
        b.reshape(g, &sizes)
    };
    #[doc = "Zeros where nothing was taken from."]
    slice slice_of;
}

/// Back to the operand's dtype; integers have no gradient.
pub(super) fn convert(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let Some((a, g)) = parts(b, call)? else { return Ok(vec![None; call.call.args.len()]) };
    let dtype = b.dtype(a)?;
    if !dtype.is_inexact() {
        return Ok(first(call, None));
    }
    // A real operand of a complex result gets the real part.
    let g = if b.dtype(g)?.is_complex() && !dtype.is_complex() {
        b.call1("prims.real", vec![g.into()])?
    } else {
        g
    };
    let g = b.cast(g, dtype)?;
    Ok(first(call, Some(g)))
}

/// The cotangent of the values goes to where they came from.
pub(super) fn sort(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let Some((a, g)) = parts(b, call)? else { return Ok(vec![None; call.call.args.len()]) };
    let Some(&positions) = call.outs.get(1) else { return Ok(first(call, None)) };
    let dim = call.call.dim(call.call.int("dim")?, b.rank(a)?)? as i64;
    // Sorting the positions gives, for each element, the place it went to.
    let back = b.call("prims.sort", vec![positions.into(), dim.into(), false.into()])?;
    let grad = b.call1("prims.gather", vec![g.into(), dim.into(), back[1].into()])?;
    Ok(first(call, Some(grad)))
}

/// A value without the reduced dimensions, broadcast over them to the sizes of `a`.
fn spread(b: &mut Builder<'_>, call: &GradCall<'_>, a: ValueId, v: ValueId) -> Result<ValueId, OpError> {
    let sizes = b.sizes(a)?;
    let dims = reduced_dims(call.call, sizes.len())?;
    let kept: Shape = sizes
        .iter()
        .enumerate()
        .map(|(d, s)| if dims.contains(&d) { SymExpr::ONE } else { s.clone() })
        .collect();
    let v = b.reshape(v, &kept)?;
    b.expand(v, &sizes)
}

fn extreme_of(b: &mut Builder<'_>, call: &GradCall<'_>, a: ValueId, g: ValueId) -> Result<ValueId, OpError> {
    let dims = reduced_dims(call.call, b.rank(a)?)?;
    let best = spread(b, call, a, call.outs[0])?;
    let equal = b.eq(a, best)?;
    let dtype = b.dtype(a)?;
    let equal = b.cast(equal, dtype)?;
    let count = b.reduce(ReduceOp::Sum, equal, &dims, false)?;
    let share = b.div(g, count)?;
    let share = spread(b, call, a, share)?;
    b.mul(share, equal)
}

fn extreme_at_of(
    b: &mut Builder<'_>,
    call: &GradCall<'_>,
    a: ValueId,
    g: ValueId,
) -> Result<ValueId, OpError> {
    let sizes = b.sizes(a)?;
    let dims = reduced_dims(call.call, sizes.len())?;
    if dims.is_empty() {
        return Ok(g);
    }
    let count = dims.iter().fold(SymExpr::ONE, |n, d| n * &sizes[*d]);
    let number = super::creation::iota(b, count.clone())?;
    let ones: Shape =
        (0..sizes.len()).map(|d| if dims.contains(&d) { sizes[d].clone() } else { SymExpr::ONE }).collect();
    let number = b.reshape(number, &ones)?;
    // Lanes as wide as those of `f32`.
    let short = count.as_const().is_some_and(|n| i32::try_from(n).is_ok());
    let wide = if short { ir_core::DType::I32 } else { ir_core::DType::I64 };
    let (number, at) = (b.cast(number, wide)?, b.cast(call.call.value("at")?, wide)?);
    let at = spread(b, call, a, at)?;
    let own = b.eq(at, number)?;
    let g = spread(b, call, a, g)?;
    let zero = Scalar::zero(b.dtype(g)?);
    b.select(own, g, zero)
}

fn cumprod_of(b: &mut Builder<'_>, call: &GradCall<'_>, a: ValueId, g: ValueId) -> Result<ValueId, OpError> {
    let meta = b.meta(a)?.clone();
    let dim = call.call.dim(call.call.int("dim")?, meta.rank())?;
    if meta.rank() == 0 {
        return Ok(g);
    }
    let along = Arg::from(dim as i64);
    let (zero, one) = (Scalar::zero(meta.dtype), Scalar::Int(1).to_class_of(meta.dtype));
    let is_zero = b.eq(a, zero)?;
    let number = b.cast(is_zero, ir_core::DType::I64)?;
    let count = b.call1("prims.cumsum", vec![number.into(), along.clone()])?;
    let only = b.eq(count, 1i64)?;
    let first = b.and(is_zero, only)?;
    let without = b.select(first, one, a)?;
    let products = b.call1("prims.cumprod", vec![without.into(), along])?;
    let sums = |b: &mut Builder<'_>, y: ValueId| {
        let y = conj(b, y)?;
        let weighted = b.mul(g, y)?;
        backwards(b, "prims.cumsum", weighted, dim)
    };
    let (plain, at_zero) = (sums(b, call.outs[0])?, sums(b, products)?);
    let divisor = b.select(is_zero, one, a)?;
    let divisor = conj(b, divisor)?;
    let plain = b.div(plain, divisor)?;
    let rest = b.select(is_zero, zero, plain)?;
    b.select(first, at_zero, rest)
}

/// The running combination from the end of the dimension.
fn backwards(b: &mut Builder<'_>, prim: &str, v: ValueId, dim: usize) -> Result<ValueId, OpError> {
    if b.rank(v)? == 0 {
        return Ok(v);
    }
    let flipped = flip(b, v, dim)?;
    let scanned = b.call1(prim, vec![flipped.into(), (dim as i64).into()])?;
    flip(b, scanned, dim)
}

fn flip(b: &mut Builder<'_>, v: ValueId, dim: usize) -> Result<ValueId, OpError> {
    let size = b.meta(v)?.sizes[dim].clone();
    b.slice(v, dim, &size - 1, size, -1)
}

/// Products of the elements before each one and behind it, along the reduced dimensions made one: right with zeros too.
fn prod_of(b: &mut Builder<'_>, call: &GradCall<'_>, a: ValueId, g: ValueId) -> Result<ValueId, OpError> {
    let sizes = b.sizes(a)?;
    let rank = sizes.len();
    let dims = reduced_dims(call.call, rank)?;
    if dims.is_empty() {
        return Ok(g);
    }
    let order: Vec<usize> = (0..rank).filter(|d| !dims.contains(d)).chain(dims.iter().copied()).collect();
    let moved = b.permute(a, &order)?;
    let moved_sizes = b.sizes(moved)?;
    let kept = rank - dims.len();
    let row = moved_sizes[kept..].iter().fold(SymExpr::ONE, |n, s| n * s);
    let flat: Shape = moved_sizes[..kept].iter().cloned().chain([row.clone()]).collect();
    let line = b.reshape(moved, &flat)?;
    let before = exclusive(b, line, kept)?;
    let flipped = flip(b, line, kept)?;
    let behind = exclusive(b, flipped, kept)?;
    let behind = flip(b, behind, kept)?;
    let others = b.mul(before, behind)?;
    let others = conj(b, others)?;
    let g = b.unsqueeze(g, kept)?;
    let grad = b.mul(others, g)?;
    let grad = b.reshape(grad, &moved_sizes)?;
    let mut inverse = vec![0; rank];
    order.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
    b.permute(grad, &inverse)
}

/// The running product of the elements before each one: 1 first.
fn exclusive(b: &mut Builder<'_>, v: ValueId, dim: usize) -> Result<ValueId, OpError> {
    let meta = b.meta(v)?.clone();
    let mut edge = meta.sizes.clone();
    edge[dim] = SymExpr::ONE;
    let one = b.full(&edge, Scalar::Int(1).to_class_of(meta.dtype), meta.dtype)?;
    let shifted = b.call1("prims.cat", vec![Arg::values([one, v]), (dim as i64).into()])?;
    let shifted = b.slice(shifted, dim, SymExpr::ZERO, meta.sizes[dim].clone(), 1)?;
    b.call1("prims.cumprod", vec![shifted.into(), (dim as i64).into()])
}

fn cumulative_extreme_of(
    b: &mut Builder<'_>,
    call: &GradCall<'_>,
    a: ValueId,
    g: ValueId,
) -> Result<ValueId, OpError> {
    let meta = b.meta(a)?.clone();
    let dim = call.call.dim(call.call.int("dim")?, meta.rank())?;
    if meta.rank() == 0 {
        return Ok(g);
    }
    let mut line = vec![SymExpr::ONE; meta.rank()];
    line[dim] = meta.sizes[dim].clone();
    let at = super::creation::iota(b, line[dim].clone())?;
    let at = b.reshape(at, &line)?;
    let (equal, nan) = (b.eq(a, call.outs[0])?, b.ne(a, a)?);
    let hit = b.or(equal, nan)?;
    let at = b.select(hit, at, 0i64)?;
    let at = b.call1("prims.cummax", vec![at.into(), (dim as i64).into()])?;
    let zeros = b.full(&meta.sizes, Scalar::zero(meta.dtype), meta.dtype)?;
    b.call1("prims.scatter", vec![zeros.into(), (dim as i64).into(), at.into(), g.into(), "add".into()])
}

fn slice_of(b: &mut Builder<'_>, call: &GradCall<'_>, a: ValueId, g: ValueId) -> Result<ValueId, OpError> {
    let meta = b.meta(a)?.clone();
    let rank = meta.rank();
    let dim = call.call.dim(call.call.int("dim")?, rank)?;
    let (mut start, length, mut step) =
        (call.call.sym("start")?, call.call.sym("length")?, call.call.int("step")?);
    if length == SymExpr::ZERO {
        return b.full(&meta.sizes, Scalar::zero(meta.dtype), meta.dtype);
    }
    let mut g = g;
    if step < 0 {
        g = flip(b, g, dim)?;
        start = start + (&length - 1) * step;
        step = -step;
    }
    let end = &start + (&length - 1) * step;
    let (mut low, mut high, mut interior) =
        (vec![SymExpr::ZERO; rank], vec![SymExpr::ZERO; rank], vec![0i64; rank]);
    high[dim] = &meta.sizes[dim] - end - 1;
    low[dim] = start;
    interior[dim] = step - 1;
    let zero = Scalar::zero(meta.dtype);
    b.call1(
        "prims.pad",
        vec![g.into(), low[..].into(), high[..].into(), interior[..].into(), Arg::from(zero)],
    )
}
