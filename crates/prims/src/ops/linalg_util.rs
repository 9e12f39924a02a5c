//! Small matrix algebra on batches that the linear algebra families share: products, adjoints, triangles, diagonals.
//! Holds no entries.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Scalar, Shape, SymExpr};
use kernel_ir::ScalarOp;

use super::matmul::broadcast;
use super::shape;
use super::view::conjugate;
use crate::{Builder, Call, OpError};

/// One value.
pub(super) type ValueResult = Result<ValueId, OpError>;

/// The last two dimensions exchanged.
pub(super) fn transpose(b: &mut Builder<'_>, v: ValueId) -> ValueResult {
    let rank = b.rank(v)?;
    shape::swap(b, v, rank - 2, rank - 1)
}

/// The conjugate transpose.
pub(super) fn adjoint(b: &mut Builder<'_>, v: ValueId) -> ValueResult {
    let t = transpose(b, v)?;
    conjugate(b, t)
}

/// The product of two batches of matrices with the same batch.
pub(super) fn mm(b: &mut Builder<'_>, x: ValueId, y: ValueId) -> ValueResult {
    b.call1("prims.matmul", vec![x.into(), y.into()])
}

/// Where row and column (of matrices like `v`) stand in a relation: `Le` below and on the diagonal `offset`.
fn triangle_mask(b: &mut Builder<'_>, v: ValueId, op: ScalarOp, offset: i64) -> ValueResult {
    let sizes = b.sizes(v)?;
    let rank = sizes.len();
    let rows = shape::iota_at(b, &sizes[rank - 2], 0, 2)?;
    let columns = shape::iota_at(b, &sizes[rank - 1], 1, 2)?;
    let edge = b.add(rows, offset)?;
    let mask = b.scalar_op(op, &[columns.into(), edge.into()])?;
    b.expand(mask, &sizes)
}

/// Elements at which the mask holds, zeros elsewhere.
fn kept(b: &mut Builder<'_>, v: ValueId, mask: ValueId) -> ValueResult {
    let zero = Scalar::zero(b.dtype(v)?);
    b.select(mask, v, zero)
}

/// The part on and below diagonal `offset`.
pub(super) fn tril(b: &mut Builder<'_>, v: ValueId, offset: i64) -> ValueResult {
    let mask = triangle_mask(b, v, ScalarOp::Le, offset)?;
    kept(b, v, mask)
}

/// The part on and above diagonal `offset`.
pub(super) fn triu(b: &mut Builder<'_>, v: ValueId, offset: i64) -> ValueResult {
    let mask = triangle_mask(b, v, ScalarOp::Ge, offset)?;
    kept(b, v, mask)
}

/// The diagonal of square matrices, `[*, n]`, or of others, `[*, min(m, n)]`: the only nonzero element of each row of
/// the masked matrix.
pub(super) fn diagonal(b: &mut Builder<'_>, v: ValueId) -> ValueResult {
    let args = vec![v.into(), 0i64.into(), (-2i64).into(), (-1i64).into()];
    b.call1("aten.diagonal.default", args)
}

/// Square matrices with `d [*, n]` on the diagonal.
pub(super) fn diag_embed(b: &mut Builder<'_>, d: ValueId) -> ValueResult {
    let mut sizes = b.sizes(d)?;
    let n = sizes[sizes.len() - 1].clone();
    let rank = sizes.len();
    sizes.push(n);
    let wide = b.unsqueeze(d, rank)?;
    let wide = b.expand(wide, &sizes)?;
    let mask = triangle_mask(b, wide, ScalarOp::Eq, 0)?;
    kept(b, wide, mask)
}

/// `v` with its diagonal replaced by `d [*, n]`; `v` is square.
pub(super) fn with_diagonal(b: &mut Builder<'_>, v: ValueId, d: ValueId) -> ValueResult {
    let sizes = b.sizes(v)?;
    let rank = b.rank(d)?;
    let wide = b.unsqueeze(d, rank)?;
    let wide = b.expand(wide, &sizes)?;
    let mask = triangle_mask(b, v, ScalarOp::Eq, 0)?;
    b.select(mask, wide, v)
}

/// `v` with a number on its diagonal.
pub(super) fn with_number(b: &mut Builder<'_>, v: ValueId, number: f64) -> ValueResult {
    let mask = triangle_mask(b, v, ScalarOp::Eq, 0)?;
    let number = Scalar::Float(number).to_class_of(b.dtype(v)?);
    b.select(mask, number, v)
}

/// Identity matrices `[*, n, m]`.
pub(super) fn eye(
    b: &mut Builder<'_>,
    batch: &[SymExpr],
    n: &SymExpr,
    m: &SymExpr,
    dtype: DType,
) -> ValueResult {
    let sizes: Shape = batch.iter().chain([n, m]).cloned().collect();
    let zeros = b.full(&sizes, 0i64, dtype)?;
    with_number(b, zeros, 1.0)
}

/// `d [*, n]` as a row of factors for the columns of a matrix, in its dtype.
pub(super) fn row(b: &mut Builder<'_>, d: ValueId, dtype: DType) -> ValueResult {
    let rank = b.rank(d)?;
    let d = b.cast(d, dtype)?;
    b.unsqueeze(d, rank - 1)
}

/// `d [*, n]` as a column of factors for the rows of a matrix, in its dtype.
pub(super) fn column(b: &mut Builder<'_>, d: ValueId, dtype: DType) -> ValueResult {
    let rank = b.rank(d)?;
    let d = b.cast(d, dtype)?;
    b.unsqueeze(d, rank)
}

/// The first `n` along a dimension counted from the end (1 is the last).
pub(super) fn narrow(
    b: &mut Builder<'_>,
    v: ValueId,
    from_end: usize,
    start: SymExpr,
    n: SymExpr,
) -> ValueResult {
    let rank = b.rank(v)?;
    b.slice(v, rank - from_end, start, n, 1)
}

/// Rows `order [*, m]` of `v [*, m, n]`.
pub(super) fn rows_at(b: &mut Builder<'_>, v: ValueId, order: ValueId) -> ValueResult {
    let sizes = b.sizes(v)?;
    let index = column(b, order, DType::I64)?;
    let mut wide = b.sizes(index)?;
    let last = wide.len() - 1;
    wide[last] = sizes[last].clone();
    let index = b.expand(index, &wide)?;
    b.call1("prims.gather", vec![v.into(), (last as i64 - 1).into(), index.into()])
}

/// The order that undoes an order of rows.
pub(super) fn inverse_order(b: &mut Builder<'_>, order: ValueId) -> ValueResult {
    let last = b.rank(order)? as i64 - 1;
    Ok(b.call("prims.sort", vec![order.into(), last.into(), false.into()])?[1])
}

/// The order into which pivots bring `rows` rows.
pub(super) fn permutation(b: &mut Builder<'_>, pivots: ValueId, rows: &SymExpr) -> ValueResult {
    b.call1("prims.linalg_permutation", vec![pivots.into(), rows.clone().into()])
}

/// `a⁻¹ b` for triangular `a` of the same batch.
pub(super) fn solve_triangular(
    b: &mut Builder<'_>,
    a: ValueId,
    rhs: ValueId,
    upper: bool,
    unit: bool,
) -> ValueResult {
    let args = vec![a.into(), rhs.into(), upper.into(), unit.into()];
    b.call1("prims.linalg_solve_triangular", args)
}

/// `b a⁻¹` for triangular `a` of the same batch.
pub(super) fn solve_triangular_right(
    b: &mut Builder<'_>,
    a: ValueId,
    rhs: ValueId,
    upper: bool,
    unit: bool,
) -> ValueResult {
    let (at, bt) = (transpose(b, a)?, transpose(b, rhs)?);
    let x = solve_triangular(b, at, bt, !upper, unit)?;
    transpose(b, x)
}

/// Sizes of matrices: batch, rows, columns.
pub(super) fn parts(
    call: &Call<'_>,
    b: &Builder<'_>,
    v: ValueId,
) -> Result<(Shape, SymExpr, SymExpr), OpError> {
    let sizes = b.sizes(v)?;
    match &sizes[..] {
        [batch @ .., rows, columns] => Ok((batch.iter().cloned().collect(), rows.clone(), columns.clone())),
        _ => Err(call.invalid("the input must have at least 2 dimensions")),
    }
}

/// Square matrices: batch and order.
pub(super) fn square(call: &Call<'_>, b: &mut Builder<'_>, v: ValueId) -> Result<(Shape, SymExpr), OpError> {
    let (batch, rows, columns) = parts(call, b, v)?;
    b.require_equal(&rows, &columns, |graph| {
        let (m, n) = (graph.size_text(&rows), graph.size_text(&columns));
        format!("the input must be batches of square matrices, not {m} by {n}")
    })?;
    Ok((batch, rows))
}

/// Refuses what linear algebra has no routines for.
pub(super) fn want_matrix_dtype(call: &Call<'_>, b: &Builder<'_>, v: ValueId) -> Result<DType, OpError> {
    match b.dtype(v)? {
        dtype @ (DType::F32 | DType::F64 | DType::C64 | DType::C128) => Ok(dtype),
        dtype => Err(OpError::DType { op: call.name().into(), dtype }),
    }
}

/// Two batches of matrices brought to one batch.
pub(super) fn same_batch(
    b: &mut Builder<'_>,
    call: &Call<'_>,
    x: ValueId,
    y: ValueId,
) -> Result<(ValueId, ValueId), OpError> {
    let ((bx, rx, cx), (by, ry, cy)) = (parts(call, b, x)?, parts(call, b, y)?);
    let batch = broadcast(call, &bx, &by)?;
    let wide = |r: SymExpr, c: SymExpr| -> Shape { batch.iter().cloned().chain([r, c]).collect() };
    Ok((b.expand(x, &wide(rx, cx))?, b.expand(y, &wide(ry, cy))?))
}

/// The machine epsilon of a dtype's parts.
pub(super) fn epsilon(dtype: DType) -> f64 {
    match dtype.to_real() {
        DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    }
}

/// The number as an operand of arithmetic in `dtype`.
pub(super) fn number(x: f64, dtype: DType) -> Arg {
    Arg::from(Scalar::Float(x).to_class_of(dtype))
}
