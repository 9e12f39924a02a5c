//! Creation of tensors: constants, ranges, triangles.

use fx_ir::{Arg, ValueId};
use ir_core::{Class, DType, Scalar, Shape, SymExpr};
use kernel_ir::{ReduceOp, ScalarOp};

use crate::ops::common::{choose, named, one};
use crate::promotion::DEFAULT_FLOAT;
use crate::{Builder, Call, OpDef, OpError, Outs};

/// A constant of the sizes given.
macro_rules! sized {
    ($schema:literal, $value:expr) => {
        composite!($schema, |b, c| {
            let dtype = c.opt_dtype("dtype")?.unwrap_or(DEFAULT_FLOAT);
            let sizes = c.syms("size")?;
            one(b.full(&sizes, $value, dtype)?)
        })
    };
}

/// A constant of the sizes given and the dtype of `self`.
macro_rules! new_sized {
    ($schema:literal, $value:expr) => {
        composite!($schema, |b, c| {
            let own = b.dtype(c.value("self")?)?;
            let dtype = c.opt_dtype("dtype")?.unwrap_or(own);
            let sizes = c.syms("size")?;
            one(b.full(&sizes, $value, dtype)?)
        })
    };
}

/// A constant of the sizes and dtype of `self`.
macro_rules! like {
    ($schema:literal, $value:expr) => {
        composite!($schema, |b, c| {
            let meta = b.meta(c.value("self")?)?.clone();
            let dtype = c.opt_dtype("dtype")?.unwrap_or(meta.dtype);
            one(b.full(&meta.sizes, $value, dtype)?)
        })
    };
}

/// The entries. `empty` gives zeros: any content is right, and a known one is reproducible.
pub(in crate::ops) const OPS: &[OpDef] = &[
    sized!(
        "aten::zeros(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        0i64
    ),
    sized!(
        "aten::_efficientzerotensor(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        0i64
    ),
    sized!(
        "aten::ones(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        1i64
    ),
    sized!(
        "aten::empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
        0i64
    ),
    sized!(
        "aten::empty_strided(SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        0i64
    ),
    sized!(
        "aten::empty_permuted(SymInt[] size, int[] physical_layout, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        0i64
    ),
    composite!(
        "aten::full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        |b, c| {
            let natural = b.result_type(&named(c, &["fill_value"]))?;
            let dtype = c.opt_dtype("dtype")?.unwrap_or(natural);
            filled(b, c, &c.syms("size")?, "fill_value", dtype)
        }
    ),
    composite!(
        "aten::scalar_tensor(Scalar s, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        |b, c| {
            let dtype = c.opt_dtype("dtype")?.unwrap_or(DEFAULT_FLOAT);
            filled(b, c, &[], "s", dtype)
        }
    ),
    new_sized!(
        "aten::new_zeros(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        0i64
    ),
    new_sized!(
        "aten::new_ones(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        1i64
    ),
    new_sized!(
        "aten::new_empty(Tensor self, SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        0i64
    ),
    new_sized!(
        "aten::new_empty_strided(Tensor self, SymInt[] size, SymInt[] stride, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        0i64
    ),
    composite!(
        "aten::new_full(Tensor self, SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        |b, c| {
            let own = b.dtype(c.value("self")?)?;
            filled(b, c, &c.syms("size")?, "fill_value", c.opt_dtype("dtype")?.unwrap_or(own))
        }
    ),
    like!(
        "aten::zeros_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
        0i64
    ),
    like!(
        "aten::ones_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
        1i64
    ),
    like!(
        "aten::empty_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
        0i64
    ),
    composite!(
        "aten::full_like(Tensor self, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
        |b, c| {
            let meta = b.meta(c.value("self")?)?.clone();
            filled(b, c, &meta.sizes, "fill_value", c.opt_dtype("dtype")?.unwrap_or(meta.dtype))
        }
    ),
    composite!(
        "aten::arange(Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        |b, c| { arange(b, c, &Arg::int(0), c.arg("end"), &Arg::int(1)) }
    ),
    composite!(
        "aten::arange.start(Scalar start, Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        |b, c| { arange(b, c, c.arg("start"), c.arg("end"), &Arg::int(1)) }
    ),
    composite!(
        "aten::arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        |b, c| { arange(b, c, c.arg("start"), c.arg("end"), c.arg("step")) }
    ),
    composite!(
        "aten::linspace(Scalar start, Scalar end, int steps, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        linspace
    ),
    composite!(
        "aten::linspace.Tensor_Tensor(Tensor start, Tensor end, int steps, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        linspace
    ),
    composite!(
        "aten::linspace.Tensor_Scalar(Tensor start, Scalar end, int steps, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        linspace
    ),
    composite!(
        "aten::linspace.Scalar_Tensor(Scalar start, Tensor end, int steps, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        linspace
    ),
    composite!(
        "aten::logspace(Scalar start, Scalar end, int steps, float base=10., *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        logspace
    ),
    composite!(
        "aten::logspace.Tensor_Tensor(Tensor start, Tensor end, int steps, float base=10., *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        logspace
    ),
    composite!(
        "aten::logspace.Tensor_Scalar(Tensor start, Scalar end, int steps, float base=10., *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        logspace
    ),
    composite!(
        "aten::logspace.Scalar_Tensor(Scalar start, Tensor end, int steps, float base=10., *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        logspace
    ),
    composite!(
        "aten::eye(SymInt n, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        |b, c| eye(b, c, "n", "n")
    ),
    composite!(
        "aten::eye.m(SymInt n, SymInt m, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        |b, c| eye(b, c, "n", "m")
    ),
    composite!("aten::tril(Tensor self, SymInt diagonal=0) -> Tensor", |b, c| triangle(b, c, ScalarOp::Le)),
    composite!("aten::triu(Tensor self, SymInt diagonal=0) -> Tensor", |b, c| triangle(b, c, ScalarOp::Ge)),
    composite!(
        "aten::tril_indices(int row, int col, int offset=0, *, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        |b, c| triangle_indices(b, c, true)
    ),
    composite!(
        "aten::triu_indices(int row, int col, int offset=0, *, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        |b, c| triangle_indices(b, c, false)
    ),
];

fn filled(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    sizes: &[SymExpr],
    arg: &str,
    dtype: DType,
) -> Result<Outs, OpError> {
    match c.arg(arg) {
        // A symbolic number stays one.
        Arg::Int(e) if e.as_const().is_none() => {
            b.call("prims.full", vec![sizes.into(), Arg::Int(e.clone()), dtype.into()])
        }
        // A number that the program computes.
        Arg::Value(v) => {
            let number = b.cast(*v, dtype)?;
            one(b.expand(number, sizes)?)
        }
        _ => one(b.full(sizes, c.scalar(arg)?, dtype)?),
    }
}

/// 0, 1, 2, … as `i64`.
pub(crate) fn iota(b: &mut Builder<'_>, length: SymExpr) -> Result<ValueId, OpError> {
    b.call1("prims.iota", vec![length.into(), 0i64.into(), 1i64.into(), DType::I64.into()])
}

fn arange(b: &mut Builder<'_>, c: &Call<'_>, start: &Arg, end: &Arg, step: &Arg) -> Result<Outs, OpError> {
    let natural = match b.result_type(&[start.clone(), end.clone(), step.clone()])?.class() {
        Class::Float => DEFAULT_FLOAT,
        _ => DType::I64,
    };
    let dtype = c.opt_dtype("dtype")?.unwrap_or(natural);
    if let (Arg::Int(start), Arg::Int(end), Arg::Int(step)) = (start, end, step) {
        let length = range_length(b, c, start, end, step)?;
        let line = b.call1(
            "prims.iota",
            vec![length.into(), start.clone().into(), step.clone().into(), DType::I64.into()],
        )?;
        return one(b.cast(line, dtype)?);
    }
    let number = |arg: &Arg| arg.as_scalar().map(Scalar::as_f64);
    let (Some(start), Some(end), Some(step)) = (number(start), number(end), number(step)) else {
        return Err(c.unsupported("symbolic sizes mixed with fractions"));
    };
    if step == 0.0 || (end - start) / step < 0.0 || !((end - start) / step).is_finite() {
        return Err(c.invalid(format!("{start} to {end} in steps of {step} is not a range")));
    }
    let length = ((end - start) / step).ceil() as i64;
    let line = iota(b, length.into())?;
    if dtype.is_integral() {
        let scaled = b.mul(line, step as i64)?;
        let moved = b.add(scaled, start as i64)?;
        return one(b.cast(moved, dtype)?);
    }
    // In double precision, as PyTorch's accumulation type on the host.
    let line = b.cast(line, DType::F64)?;
    let scaled = b.mul(line, step)?;
    let moved = b.add(scaled, start)?;
    one(b.cast(moved, dtype)?)
}

/// Number of whole steps from `start` to before `end`.
fn range_length(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    start: &SymExpr,
    end: &SymExpr,
    step: &SymExpr,
) -> Result<SymExpr, OpError> {
    let (distance, by) = match step.as_const() {
        Some(0) | None => return Err(c.bad_arg("step", "must be a number other than 0")),
        Some(s) if s > 0 => (end - start, s),
        Some(s) => (start - end, s.saturating_neg()),
    };
    b.require_at_least(&distance, 0, |graph| {
        let (start, end) = (graph.size_text(start), graph.size_text(end));
        format!("{start} to {end} in steps of {step} is not a range")
    })?;
    Ok(distance.ceil_div(&SymExpr::from_i64(by)))
}

/// `steps` points from `start` to `end`; the second half is counted back from `end`, so that it is met exactly.
fn linspace(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let dtype = line_dtype(b, c)?;
    let line = line_between(b, c, dtype)?;
    one(b.cast(line, dtype)?)
}

fn line_dtype(b: &Builder<'_>, c: &Call<'_>) -> Result<DType, OpError> {
    let natural =
        if b.result_type(&named(c, &["start", "end"]))?.is_complex() { DType::C64 } else { DEFAULT_FLOAT };
    Ok(c.opt_dtype("dtype")?.unwrap_or(natural))
}

/// Points in the dtype of arithmetic; for integers in `f64` (they are truncated afterwards).
fn line_between(b: &mut Builder<'_>, c: &Call<'_>, dtype: DType) -> Result<ValueId, OpError> {
    let steps = c.int("steps")?;
    if steps < 0 {
        return Err(c.bad_arg("steps", "must not be negative"));
    }
    let wide = if dtype.is_integral() { DType::F64 } else { dtype.compute() };
    let mut ends = named(c, &["start", "end"]);
    for end in &mut ends {
        // Tensors are taken as numbers of the result's dtype.
        if dtype.is_integral() {
            *end = b.as_dtype(end, dtype)?;
        }
        *end = Arg::Value(b.as_tensor(end, wide)?);
    }
    let [start, end] = [ends[0].clone(), ends[1].clone()];
    if steps == 1 {
        let start = b.as_tensor(&start, wide)?;
        return b.reshape(start, &[SymExpr::ONE]);
    }
    let number = |n: i64| Scalar::Int(n).to_class_of(wide);
    let distance = b.sub(end.clone(), start.clone())?;
    let step = b.div(distance, number(steps - 1))?;
    let index = iota(b, steps.into())?;
    let first = b.lt(index, steps / 2)?;
    let at = b.cast(index, wide)?;
    let up = b.mul(step, at)?;
    let up = b.add(start, up)?;
    let back = b.sub(number(steps - 1), at)?;
    let down = b.mul(step, back)?;
    let down = b.sub(end, down)?;
    b.select(first, up, down)
}

/// `base` to the power of the points of `linspace`.
fn logspace(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let dtype = line_dtype(b, c)?;
    let line = line_between(b, c, dtype)?;
    let wide = b.dtype(line)?;
    let base = c.scalar("base")?.to_class_of(wide);
    let raised = b.pow(base, line)?;
    one(b.cast(raised, dtype)?)
}

/// Row and column numbers of matrices `[n, m]`, as `[n, 1]` and `[1, m]`.
fn coordinates(b: &mut Builder<'_>, n: SymExpr, m: SymExpr) -> Result<[ValueId; 2], OpError> {
    let (rows, columns) = (iota(b, n)?, iota(b, m)?);
    Ok([b.unsqueeze(rows, 1)?, b.unsqueeze(columns, 0)?])
}

fn eye(b: &mut Builder<'_>, c: &Call<'_>, n: &str, m: &str) -> Result<Outs, OpError> {
    let dtype = c.opt_dtype("dtype")?.unwrap_or(DEFAULT_FLOAT);
    let [row, column] = coordinates(b, c.sym(n)?, c.sym(m)?)?;
    let hit = b.eq(row, column)?;
    one(b.cast(hit, dtype)?)
}

/// Zero where not `column - row <op> diagonal`.
fn triangle(b: &mut Builder<'_>, c: &Call<'_>, op: ScalarOp) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let meta = b.meta(x)?.clone();
    let rank = meta.rank();
    if rank < 2 {
        return Err(c.invalid("takes matrices"));
    }
    let [row, column] = coordinates(b, meta.sizes[rank - 2].clone(), meta.sizes[rank - 1].clone())?;
    let distance = b.sub(column, row)?;
    let kept = b.scalar_op(op, &[distance.into(), c.arg("diagonal").clone()])?;
    one(choose(b, kept, x, Scalar::zero(meta.dtype), meta.dtype)?)
}

/// The number of a triangle's elements: `clamp(r + offset + 1, 0, columns)` in each row `r` of the lower one, and what is left
/// above the diagonal in those of the upper one.
fn in_triangle(rows: i64, columns: i64, offset: i64, lower: bool) -> Option<i64> {
    let (rows, columns, offset) = (i128::from(rows), i128::from(columns), i128::from(offset));
    // The sum of min(x, columns) over x = 0 … t.
    let below = |t: i128| match t.max(0) {
        t if t <= columns => t * (t + 1) / 2,
        t => columns * (columns + 1) / 2 + (t - columns) * columns,
    };
    let first = if lower { offset + 1 } else { offset };
    let clamped = below(first + rows - 1) - below(first - 1);
    i64::try_from(if lower { clamped } else { rows * columns - clamped }).ok()
}

/// Coordinates `[2, n]` of a triangle's elements, row by row: the row of element k is the number of rows that end at or
/// before k.
fn triangle_indices(b: &mut Builder<'_>, c: &Call<'_>, lower: bool) -> Result<Outs, OpError> {
    let (rows, columns, offset) = (c.int("row")?, c.int("col")?, c.int("offset")?);
    if rows < 0 || columns < 0 {
        return Err(c.invalid("sizes must not be negative"));
    }
    let dtype = c.opt_dtype("dtype")?.unwrap_or(DType::I64);
    let count = in_triangle(rows, columns, offset, lower)
        .ok_or_else(|| c.invalid("has more elements than memory has addresses"))?;
    let row_number = iota(b, rows.into())?;
    let edge = b.add(row_number, offset)?;
    // Elements of each row, and where the row ends in the list.
    let lengths = if lower {
        let past = b.add(edge, 1i64)?;
        let low = b.maximum(past, 0i64)?;
        b.minimum(low, columns)?
    } else {
        let low = b.maximum(edge, 0i64)?;
        let first = b.minimum(low, columns)?;
        b.sub(columns, first)?
    };
    let ends = b.call1("prims.cumsum", vec![lengths.into(), 0i64.into()])?;
    let k = iota(b, count.into())?;
    let k_column = b.unsqueeze(k, 1)?;
    let passed = b.ge(k_column, ends)?;
    let passed = b.cast(passed, DType::I64)?;
    let row = b.reduce(ReduceOp::Sum, passed, &[1], false)?;
    let before = b.mul(passed, lengths)?;
    let before = b.reduce(ReduceOp::Sum, before, &[1], false)?;
    let mut column = b.sub(k, before)?;
    if !lower {
        let first = b.add(row, offset)?;
        let first = b.maximum(first, 0i64)?;
        column = b.add(column, first)?;
    }
    let pair: Shape = [SymExpr::from_i64(2), SymExpr::from_i64(count)].into_iter().collect();
    // Both lines by one choice: no concatenation is needed.
    let which = iota(b, 2i64.into())?;
    let which = b.unsqueeze(which, 1)?;
    let is_row = b.eq(which, 0i64)?;
    let both = b.select(is_row, row, column)?;
    let both = b.expand(both, &pair)?;
    one(b.cast(both, dtype)?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn triangles_have_as_many_elements_as_their_rows() {
        for (rows, columns, offset) in
            (0..6).flat_map(|r| (0..6).flat_map(move |c| (-8..9).map(move |o| (r, c, o))))
        {
            let row = |r: i64| (r + offset + 1).clamp(0, columns);
            let low = (0..rows).map(row).sum();
            let high = (0..rows).map(|r| columns - (r + offset).clamp(0, columns)).sum();
            assert_eq!(
                super::in_triangle(rows, columns, offset, true),
                Some(low),
                "{rows} {columns} {offset}"
            );
            assert_eq!(
                super::in_triangle(rows, columns, offset, false),
                Some(high),
                "{rows} {columns} {offset}"
            );
        }
        assert_eq!(super::in_triangle(i64::MAX, i64::MAX, 0, true), None);
    }
}
