//! Reductions over segments of a dimension, and combinations of a vector's elements.

use fx_ir::ValueId;
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::ReduceOp;

use crate::ops::common::{choose, widen};
use crate::ops::shapes::shape::{self, Made, out};
use crate::{Builder, Call, OpDef, OpError};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::segment_reduce(Tensor data, str reduce, *, Tensor? lengths=None, Tensor? indices=None, Tensor? offsets=None, int axis=0, bool unsafe=False, Scalar? initial=None) -> Tensor",
        segment_reduce
    ),
    composite!("aten::combinations(Tensor self, int r=2, bool with_replacement=False) -> Tensor", |b, c| {
        let x = c.value("self")?;
        let n = shape::known(c, &b.sizes_of_rank(x, 1..=1)?[0].clone(), "number of elements to combine")?;
        let r = c.int("r")?;
        if r < 0 {
            return Err(c.bad_arg("r", "must not be negative"));
        }
        if r == 0 {
            let dtype = b.dtype(x)?;
            return out(b.full(&[SymExpr::ZERO], 0i64, dtype)?);
        }
        let y = combinations(b, x, 0, n, r, c.bool("with_replacement")?)?;
        match y {
            Some(y) => out(y),
            None => {
                let dtype = b.dtype(x)?;
                out(b.full(&[SymExpr::ZERO, r.into()], 0i64, dtype)?)
            }
        }
    }),
];

/// First and last position (not included) of every segment, `[lead…, segments]`.
fn bounds(b: &mut Builder<'_>, c: &Call<'_>, axis: usize) -> Result<(ValueId, ValueId), OpError> {
    if let Some(offsets) = c.opt_value("offsets")? {
        let offsets = b.cast(offsets, DType::I64)?;
        let n = &b.sizes_of_rank(offsets, axis + 1..)?[axis] - 1;
        let start = b.slice(offsets, axis, SymExpr::ZERO, n.clone(), 1)?;
        return Ok((start, b.slice(offsets, axis, SymExpr::ONE, n, 1)?));
    }
    let lengths = c.opt_value("lengths")?.ok_or_else(|| c.invalid("takes either lengths or offsets"))?;
    let lengths = b.cast(lengths, DType::I64)?;
    let end = b.call1("prims.cumsum", vec![lengths.into(), (axis as i64).into()])?;
    Ok((b.sub(end, lengths)?, end))
}

/// Every segment looks at the whole dimension and leaves out what is not its own.
fn segment_reduce(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let data = c.value("data")?;
    let (sizes, dtype) = (b.sizes_of_rank(data, 1..)?, b.dtype(data)?);
    let axis = shape::dim(c, "axis", sizes.len())?;
    let (op, mean) = match c.opt_str("reduce")? {
        Some("sum") => (ReduceOp::Sum, false),
        Some("mean") => (ReduceOp::Sum, true),
        Some("prod") => (ReduceOp::Prod, false),
        Some("max") => (ReduceOp::Max, false),
        Some("min") => (ReduceOp::Min, false),
        _ => return Err(c.bad_arg("reduce", "must be sum, mean, prod, max or min")),
    };
    let (start, end) = bounds(b, c, axis)?;
    let segments = b.sizes_of_rank(start, axis + 1..)?[axis].clone();
    let x = widen(b, data)?;
    let compute = b.dtype(x)?;
    // [lead…, segments, positions, rest…]
    let full: Shape = sizes[..axis]
        .iter()
        .cloned()
        .chain([segments.clone()])
        .chain(sizes[axis..].iter().cloned())
        .collect();
    let numbers = shape::iota_at(b, &sizes[axis], axis + 1, axis + 2)?;
    let (low, high) = (b.unsqueeze(start, axis + 1)?, b.unsqueeze(end, axis + 1)?);
    let (after, before) = (b.ge(numbers, low)?, b.lt(numbers, high)?);
    let own = b.and(after, before)?;
    let mut own_sizes = b.sizes(own)?;
    own_sizes.extend(std::iter::repeat_n(SymExpr::ONE, sizes.len() - axis - 1));
    let own = b.reshape(own, &own_sizes)?;
    let own = b.expand(own, &full)?;
    let wide = b.unsqueeze(x, axis)?;
    let wide = b.expand(wide, &full)?;
    let kept = choose(b, own, wide, op.identity(compute), compute)?;
    let mut y = b.reduce(op, kept, &[axis + 1], false)?;
    let initial = c.opt_float("initial")?;
    if let (Some(initial), Some(combine)) = (initial, op.combine()) {
        y = b.scalar_op(combine, &[y.into(), initial.into()])?;
    }
    if mean {
        let length = b.sub(end, start)?;
        y = averaged(b, y, length, initial, sizes.len() - axis - 1)?;
    }
    out(b.cast(y, dtype)?)
}

/// Sums divided by the lengths of their segments; an empty segment gives `initial`, else `NaN`.
fn averaged(
    b: &mut Builder<'_>,
    sums: ValueId,
    length: ValueId,
    initial: Option<f64>,
    tail: usize,
) -> Result<ValueId, OpError> {
    let (dtype, full) = (b.dtype(sums)?, b.sizes(sums)?);
    let mut sizes = b.sizes(length)?;
    sizes.extend(std::iter::repeat_n(SymExpr::ONE, tail));
    let length = b.reshape(length, &sizes)?;
    let empty = b.eq(length, 0i64)?;
    let empty = b.expand(empty, &full)?;
    let count = b.cast(length, dtype)?;
    let mean = b.div(sums, count)?;
    choose(b, empty, initial.unwrap_or(f64::NAN), mean, dtype)
}

/// Rows of `r` elements out of `first..n`, in lexicographic order; `None` where there is none.
fn combinations(
    b: &mut Builder<'_>,
    x: ValueId,
    first: i64,
    n: i64,
    r: i64,
    again: bool,
) -> Result<Option<ValueId>, OpError> {
    if r == 1 {
        if first >= n {
            return Ok(None);
        }
        let part = b.slice(x, 0, first.into(), (n - first).into(), 1)?;
        return b.unsqueeze(part, 1).map(Some);
    }
    let mut blocks = Vec::new();
    for i in first..n {
        let Some(rest) = combinations(b, x, if again { i } else { i + 1 }, n, r - 1, again)? else {
            continue;
        };
        let rows = b.sizes(rest)?[0].clone();
        let head = b.slice(x, 0, i.into(), SymExpr::ONE, 1)?;
        let head = b.unsqueeze(head, 1)?;
        let head = b.expand(head, &[rows, SymExpr::ONE])?;
        blocks.push(shape::cat(b, &[head, rest], 1)?);
    }
    if blocks.is_empty() { Ok(None) } else { shape::cat(b, &blocks, 0).map(Some) }
}
