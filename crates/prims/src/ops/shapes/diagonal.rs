//! Diagonals and strided views: diagonal, diag_embed, diag, diagonal_scatter, as_strided.

use fx_ir::ValueId;
use ir_core::{Relation, Shape, SymExpr, contiguous_strides, numel};

use crate::ops::indexing::scatter::put;
use crate::ops::shapes::shape::{self, Made, out};
use crate::{Builder, Call, OpDef, OpError};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::diagonal(Tensor(a) self, int offset=0, int dim1=0, int dim2=1) -> Tensor(a)",
        |b, c| of(b, c, "self")
    ),
    composite!(
        "aten::diagonal_copy(Tensor self, int offset=0, int dim1=0, int dim2=1) -> Tensor",
        |b, c| of(b, c, "self")
    ),
    composite!(
        "aten::linalg_diagonal(Tensor(a) A, *, int offset=0, int dim1=-2, int dim2=-1) -> Tensor(a)",
        |b, c| of(b, c, "A")
    ),
    composite!("aten::diag_embed(Tensor self, int offset=0, int dim1=-2, int dim2=-1) -> Tensor", |b, c| {
        let x = c.value("self")?;
        let rank = b.rank(x)? + 1;
        let (d1, d2) = (shape::dim(c, "dim1", rank)?, shape::dim(c, "dim2", rank)?);
        let y = embed(b, x, c.int("offset")?)?;
        out(place_dims(b, y, d1, d2)?)
    }),
    composite!("aten::diag(Tensor self, int diagonal=0) -> Tensor", |b, c| {
        let (x, offset) = (c.value("self")?, c.int("diagonal")?);
        out(match b.rank(x)? {
            1 => embed(b, x, offset)?,
            2 => diagonal(b, c, x, offset, 0, 1)?,
            rank => return Err(c.invalid(format!("takes one or two dimensions, not {rank}"))),
        })
    }),
    composite!("aten::diagflat(Tensor self, int offset=0) -> Tensor", |b, c| {
        let x = crate::ops::indexing::index::flat(b, c.value("self")?)?;
        out(embed(b, x, c.int("offset")?)?)
    }),
    composite!(
        "aten::diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor",
        diagonal_scatter
    ),
    composite!(
        "aten::as_strided(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor(a)",
        as_strided
    ),
    composite!(
        "aten::as_strided_copy(Tensor self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor",
        as_strided
    ),
    composite!(
        "aten::as_strided_scatter(Tensor self, Tensor src, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor",
        as_strided_scatter
    ),
];

fn of(b: &mut Builder<'_>, c: &Call<'_>, name: &str) -> Made {
    let x = c.value(name)?;
    let rank = b.rank(x)?;
    let (d1, d2) = (shape::dim(c, "dim1", rank)?, shape::dim(c, "dim2", rank)?);
    out(diagonal(b, c, x, c.int("offset")?, d1, d2)?)
}

/// Row and column of a diagonal's first element.
fn corner(offset: i64) -> (i64, i64) {
    (offset.saturating_neg().max(0), offset.max(0))
}

/// Length of a diagonal of an `n` by `m` matrix.
fn length(b: &Builder<'_>, n: &SymExpr, m: &SymExpr, offset: i64) -> SymExpr {
    let (row, column) = corner(offset);
    shape::simplify(b, (n - row).sym_min(&(m - column)).sym_max(&SymExpr::ZERO))
}

/// The diagonal of dimensions `d1` and `d2` as a new last dimension: every `m + 1`-th element of the flattened matrix.
pub(in crate::ops) fn diagonal(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    x: ValueId,
    offset: i64,
    d1: usize,
    d2: usize,
) -> Result<ValueId, OpError> {
    let rank = b.rank(x)?;
    if d1 == d2 || rank < 2 {
        return Err(c.invalid("a diagonal needs two different dimensions"));
    }
    let order: Vec<usize> = (0..rank).filter(|d| *d != d1 && *d != d2).chain([d1, d2]).collect();
    let x = b.permute(x, &order)?;
    let sizes = b.sizes(x)?;
    let (n, m) = (&sizes[rank - 2], &sizes[rank - 1]);
    let len = length(b, n, m, offset);
    let (row, column) = corner(offset);
    let start = m * row + SymExpr::from_i64(column);
    let flat = shape::merge_dims(b, x, rank - 2, 2)?;
    if len == SymExpr::ZERO {
        return b.slice(flat, rank - 2, SymExpr::ZERO, len, 1);
    }
    if let Some(m) = m.as_const() {
        return b.slice(flat, rank - 2, start, len, m + 1);
    }
    // A symbolic step: strides over all elements.
    let lead: Shape = sizes[..rank - 2].iter().cloned().collect();
    let area = n * m;
    let line = crate::ops::indexing::index::flat(b, flat)?;
    let strides: Shape = contiguous_strides(&lead).into_iter().map(|s| s * &area).chain([m + 1]).collect();
    let sizes: Shape = lead.into_iter().chain([len]).collect();
    b.call1("prims.strided", vec![line.into(), sizes[..].into(), strides[..].into(), start.into()])
}

/// The last dimension as a diagonal of two new last dimensions, zeros elsewhere.
fn embed(b: &mut Builder<'_>, x: ValueId, offset: i64) -> Result<ValueId, OpError> {
    let sizes = b.sizes(x)?;
    let last = sizes.len() - 1;
    let away = offset.saturating_abs();
    let side = &sizes[last] + away;
    let mut high: Shape = sizes.iter().map(|_| SymExpr::ZERO).collect();
    let low = high.clone();
    high[last] = away.into();
    let x = shape::pad(b, x, &low, &high, &vec![0; sizes.len()], 0)?;
    // The element of row `i` where the diagonal lies above, of column `j` where it lies below.
    let x = if offset >= 0 { b.unsqueeze(x, last + 1)? } else { b.unsqueeze(x, last)? };
    let full: Shape = sizes[..last].iter().cloned().chain([side.clone(), side.clone()]).collect();
    let x = b.expand(x, &full)?;
    let mask = on_diagonal(b, &side, &side, offset)?;
    let mask = b.expand(mask, &full)?;
    let dtype = b.dtype(x)?;
    crate::ops::common::choose(b, mask, x, 0i64, dtype)
}

/// Where `row + offset == column`, of an `n` by `m` matrix.
fn on_diagonal(b: &mut Builder<'_>, n: &SymExpr, m: &SymExpr, offset: i64) -> Result<ValueId, OpError> {
    let rows = shape::iota(b, n, offset.into(), 1.into())?;
    let rows = b.unsqueeze(rows, 1)?;
    let columns = shape::iota_at(b, m, 1, 2)?;
    b.eq(rows, columns)
}

/// The last two dimensions moved to positions `d1` and `d2`.
fn place_dims(b: &mut Builder<'_>, x: ValueId, d1: usize, d2: usize) -> Result<ValueId, OpError> {
    let rank = b.rank(x)?;
    let mut rest = 0..rank - 2;
    let order: Vec<usize> = (0..rank)
        .map(|d| match d {
            d if d == d1 => rank - 2,
            d if d == d2 => rank - 1,
            _ => rest.next().unwrap_or(0),
        })
        .collect();
    b.permute(x, &order)
}

fn diagonal_scatter(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (x, src, offset) = (c.value("self")?, c.value("src")?, c.int("offset")?);
    let sizes = b.sizes(x)?;
    let rank = sizes.len();
    let (d1, d2) = (shape::dim(c, "dim1", rank)?, shape::dim(c, "dim2", rank)?);
    if d1 == d2 {
        return Err(c.invalid("a diagonal needs two different dimensions"));
    }
    let (n, m) = (&sizes[d1], &sizes[d2]);
    let len = length(b, n, m, offset);
    if len == SymExpr::ZERO {
        return out(x);
    }
    // The source along rows, shifted to the diagonal's first row, then spread over all columns.
    let (row, _) = corner(offset);
    let have = b.sizes_of_rank(src, rank - 1..rank)?;
    let mut low: Shape = have.iter().map(|_| SymExpr::ZERO).collect();
    let mut high = low.clone();
    low[rank - 2] = row.into();
    high[rank - 2] = n - row - &len;
    let wide = shape::pad(b, src, &low, &high, &vec![0; have.len()], 0)?;
    let wide = b.unsqueeze(wide, rank - 1)?;
    let wide = place_dims(b, wide, d1, d2)?;
    let wide = b.expand(wide, &sizes)?;
    let dtype = b.dtype(x)?;
    let wide = b.cast(wide, dtype)?;
    let mask = on_diagonal(b, n, m, offset)?;
    let mut ones: Shape = sizes.iter().map(|_| SymExpr::ONE).collect();
    (ones[d1], ones[d2]) = (n.clone(), m.clone());
    let mask = if d1 < d2 { mask } else { b.permute(mask, &[1, 0])? };
    let mask = b.reshape(mask, &ones)?;
    let mask = b.expand(mask, &sizes)?;
    out(b.select(mask, wide, x)?)
}

/// The elements of `x` in the order they have in memory, and the dimensions in that order. Strides are those that
/// the graph states.
fn in_memory_order(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId) -> Result<(ValueId, Vec<usize>), OpError> {
    let order = b.meta(x)?.memory_order();
    let order = order.ok_or_else(|| c.unsupported("a base that is itself a view with gaps"))?;
    let moved = b.permute(x, &order)?;
    Ok((crate::ops::indexing::index::flat(b, moved)?, order))
}

/// Sizes, strides and the start among the elements of the base.
fn geometry(b: &Builder<'_>, c: &Call<'_>) -> Result<(Vec<SymExpr>, Vec<SymExpr>, SymExpr), OpError> {
    let base = b.meta(c.value("self")?)?;
    let offset = c.opt_sym("storage_offset")?.map_or(SymExpr::ZERO, |o| o - &base.offset);
    Ok((c.syms("size")?, c.syms("stride")?, offset))
}

/// The elements of the line that sizes, strides and an offset name; PyTorch's own rules first, which are stricter than those
/// of the prim. The prim's rule refuses what lies outside of the line, or demands of a call that it does not.
fn strided(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    line: ValueId,
    (sizes, strides, offset): (&[SymExpr], &[SymExpr], &SymExpr),
) -> Result<ValueId, OpError> {
    if sizes.len() != strides.len() {
        return Err(c.invalid(format!("{} sizes but {} strides are given", sizes.len(), strides.len())));
    }
    for e in sizes.iter().chain(strides).chain([offset]) {
        b.require(Relation::NonNegative, e.clone(), |graph| {
            let of = [graph.sizes_text(sizes), graph.sizes_text(strides), graph.size_text(offset)];
            let [sizes, strides, offset] = of;
            let what = "as_strided: sizes, strides and the offset within the tensor must not be negative";
            format!("{what}, but are {sizes}, {strides} and {offset}")
        })?;
    }
    b.call1("prims.strided", vec![line.into(), sizes.into(), strides.into(), offset.clone().into()])
}

fn as_strided(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (sizes, strides, offset) = geometry(b, c)?;
    let (line, _) = in_memory_order(b, c, c.value("self")?)?;
    out(strided(b, c, line, (&sizes, &strides, &offset))?)
}

fn as_strided_scatter(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let x = c.value("self")?;
    let (sizes, strides, offset) = geometry(b, c)?;
    let (line, order) = in_memory_order(b, c, x)?;
    // Nothing reads it: what it demands holds for the positions that are written.
    strided(b, c, line, (&sizes, &strides, &offset))?;
    let full = b.sizes(x)?;
    let mut place = b.full(&sizes, 0i64, ir_core::DType::I64)?;
    place = match offset.as_const() {
        Some(0) => place,
        _ => b.add(place, offset)?,
    };
    for d in 0..sizes.len() {
        let along = shape::iota(b, &sizes[d], SymExpr::ZERO, strides[d].clone())?;
        let along = shape::along(b, along, d, sizes.len())?;
        place = b.add(place, along)?;
    }
    let place = crate::ops::indexing::index::flat(b, place)?;
    let src = b.expand(c.value("src")?, &sizes)?;
    let src = crate::ops::indexing::index::flat(b, src)?;
    let dtype = b.dtype(x)?;
    let src = b.cast(src, dtype)?;
    let y = put(b, line, &[place], 0, src, "write")?;
    let moved: Shape = order.iter().map(|&d| full[d].clone()).collect();
    let y = b.reshape(y, &moved)?;
    let mut back = vec![0; order.len()];
    order.iter().enumerate().for_each(|(to, &from)| back[from] = to);
    debug_assert_eq!(numel(&full), numel(&moved));
    out(b.permute(y, &back)?)
}
