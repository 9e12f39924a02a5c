//! Running sums, products and extrema along a dimension, and operators composed of them.

use fx_ir::ValueId;
use ir_core::{DType, SymExpr};
use smallvec::smallvec;

use crate::ops::common::{float_of, one, widen};
use crate::ops::shapes::creation::iota;
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!("aten::cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor", |b, c| running(
        b,
        c,
        "prims.cumsum"
    ))
    .autocast(Autocast::FLOAT32_RESULT_ON_GPU),
    composite!("aten::cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor", |b, c| running(
        b,
        c,
        "prims.cumprod"
    ))
    .autocast(Autocast::FLOAT32_RESULT_ON_GPU),
    composite!("aten::cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)", |b, c| {
        running_extreme(b, c, "prims.cummax")
    }),
    composite!("aten::cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)", |b, c| {
        running_extreme(b, c, "prims.cummin")
    }),
    composite!("aten::logcumsumexp(Tensor self, int dim) -> Tensor", logcumsumexp),
    composite!("aten::trapezoid.x(Tensor y, Tensor x, *, int dim=-1) -> Tensor", |b, c| trapezoid(
        b, c, false
    )),
    composite!("aten::trapezoid.dx(Tensor y, *, Scalar dx=1, int dim=-1) -> Tensor", |b, c| trapezoid(
        b, c, false
    )),
    composite!("aten::trapz.x(Tensor y, Tensor x, *, int dim=-1) -> Tensor", |b, c| trapezoid(b, c, false)),
    composite!("aten::trapz.dx(Tensor y, *, float dx=1., int dim=-1) -> Tensor", |b, c| trapezoid(
        b, c, false
    )),
    composite!(
        "aten::cumulative_trapezoid.x(Tensor y, Tensor x, *, int dim=-1) -> Tensor",
        |b, c| trapezoid(b, c, true)
    ),
    composite!("aten::cumulative_trapezoid.dx(Tensor y, *, Scalar dx=1, int dim=-1) -> Tensor", |b, c| {
        trapezoid(b, c, true)
    }),
];

/// The running combination; a 0-dim tensor is its own.
fn scan(b: &mut Builder<'_>, prim: &str, x: ValueId, dim: usize) -> Result<ValueId, OpError> {
    if b.rank(x)? == 0 {
        return Ok(x);
    }
    b.call1(prim, vec![x.into(), (dim as i64).into()])
}

fn running(b: &mut Builder<'_>, c: &Call<'_>, prim: &str) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dim = c.dim(c.int("dim")?, b.rank(x)?)?;
    let own = b.dtype(x)?;
    let dtype = c.opt_dtype("dtype")?.unwrap_or(if own.is_integral() { DType::I64 } else { own });
    let x = b.cast(x, dtype)?;
    let x = widen(b, x)?;
    let out = scan(b, prim, x, dim)?;
    one(b.cast(out, dtype)?)
}

/// The position is that of the last element so far that equals the extreme (or is a `NaN`).
fn running_extreme(b: &mut Builder<'_>, c: &Call<'_>, prim: &str) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let rank = b.rank(x)?;
    let dim = c.dim(c.int("dim")?, rank)?;
    if rank == 0 {
        return Ok(smallvec![x, b.full(&[], 0i64, DType::I64)?]);
    }
    let best = scan(b, prim, x, dim)?;
    let (is_best, is_nan) = (b.eq(x, best)?, b.ne(x, x)?);
    let hit = b.or(is_best, is_nan)?;
    let at = positions(b, x, dim)?;
    let at = b.select(hit, at, 0i64)?;
    Ok(smallvec![best, scan(b, "prims.cummax", at, dim)?])
}

/// The number of each element along `dim`, in a shape that broadcasts to `x`.
fn positions(b: &mut Builder<'_>, x: ValueId, dim: usize) -> Result<ValueId, OpError> {
    let mut sizes = vec![SymExpr::ONE; b.rank(x)?];
    sizes[dim] = b.meta(x)?.sizes[dim].clone();
    let line = iota(b, sizes[dim].clone())?;
    b.reshape(line, &sizes)
}

/// `log(cumsum(exp(x - m))) + m` with the maximum m of the whole line, in double precision: its range keeps what is
/// far below the maximum. The imaginary part of a complex result is that of adding one element after the other.
fn logcumsumexp(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let rank = b.rank(x)?;
    let dim = c.dim(c.int("dim")?, rank)?;
    let dtype = float_of(b.dtype(x)?);
    if rank == 0 || b.meta(x)?.sizes[dim] == SymExpr::ZERO {
        return one(b.cast(x, dtype)?);
    }
    let wide = b.cast(x, if dtype.is_complex() { DType::C128 } else { DType::F64 })?;
    let real = if dtype.is_complex() { b.call1("prims.real", vec![wide.into()])? } else { wide };
    let max = b.reduce(kernel_ir::ReduceOp::Max, real, &[dim], true)?;
    let size = b.abs(max)?;
    let infinite = b.eq(size, f64::INFINITY)?;
    let max = b.select(infinite, 0.0, max)?;
    let wide_dtype = b.dtype(wide)?;
    let max = b.cast(max, wide_dtype)?;
    let moved = b.sub(wide, max)?;
    let e = b.exp(moved)?;
    let sum = scan(b, "prims.cumsum", e, dim)?;
    let log = b.log(sum)?;
    let mut out = b.add(log, max)?;
    if dtype.is_complex() {
        out = crate::ops::complex_numbers::numbers::unwound(b, wide, out, dim)?;
    }
    one(b.cast(out, dtype)?)
}

/// Sum of `(y[i] + y[i + 1]) / 2 * (x[i + 1] - x[i])` along `dim`, running where `cumulative`.
fn trapezoid(b: &mut Builder<'_>, c: &Call<'_>, cumulative: bool) -> Result<Outs, OpError> {
    let y = c.value("y")?;
    let rank = b.rank(y)?;
    if rank == 0 {
        return Err(c.invalid("needs at least one dimension"));
    }
    let dim = c.dim(c.int("dim")?, rank)?;
    if !cumulative && b.meta(y)?.sizes[dim] == SymExpr::ZERO {
        let sum = b.call1("aten.sum.dim_IntList", vec![y.into(), [dim as i64].as_slice().into()])?;
        return one(sum);
    }
    let [low, high] = neighbours(b, y, dim)?;
    let pair = b.call1("aten.add.Tensor", vec![low.into(), high.into()])?;
    let area = match c.op.schema.arg_index("x") {
        Some(_) => {
            let width = widths(b, c, rank, dim)?;
            b.call1("aten.mul.Tensor", vec![pair.into(), width.into()])?
        }
        None => b.call1("aten.mul.Scalar", vec![pair.into(), c.arg("dx").clone()])?,
    };
    let total = if cumulative {
        b.call1("aten.cumsum.default", vec![area.into(), (dim as i64 - rank as i64).into()])?
    } else {
        b.call1("aten.sum.dim_IntList", vec![area.into(), [dim as i64 - rank as i64].as_slice().into()])?
    };
    b.call("aten.div.Scalar", vec![total.into(), 2.0.into()])
}

/// Elements without the last, and without the first.
fn neighbours(b: &mut Builder<'_>, x: ValueId, dim: usize) -> Result<[ValueId; 2], OpError> {
    let length = &b.meta(x)?.sizes[dim] - 1;
    let length = crate::ops::shapes::shape::simplify(b, length.sym_max(&SymExpr::ZERO));
    let first = b.slice(x, dim, SymExpr::ZERO, length.clone(), 1)?;
    Ok([first, b.slice(x, dim, SymExpr::ONE, length, 1)?])
}

/// Distances of the points `x`: one line for all, or of the rank of `y`.
fn widths(b: &mut Builder<'_>, c: &Call<'_>, rank: usize, dim: usize) -> Result<ValueId, OpError> {
    let x = c.value("x")?;
    let x = if b.rank(x)? == 1 {
        let mut sizes = vec![SymExpr::ONE; rank];
        sizes[dim] = b.meta(x)?.sizes[0].clone();
        b.reshape(x, &sizes)?
    } else {
        let own = b.sizes(x)?;
        let lead = rank.saturating_sub(own.len());
        let sizes: Vec<SymExpr> = std::iter::repeat_n(SymExpr::ONE, lead).chain(own).collect();
        b.reshape(x, &sizes)?
    };
    let [low, high] = neighbours(b, x, dim)?;
    b.call1("aten.sub.Tensor", vec![high.into(), low.into()])
}
