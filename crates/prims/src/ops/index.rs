//! Reading at data-dependent places: index, gather, index_select, take, embedding, one_hot.
//!
//! Negative indices are wrapped here, so that the prims see none.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Scalar, Shape, SymExpr, numel};
use kernel_ir::{ReduceOp, ScalarOp};

use super::common::choose;
use super::shape::{self, Made, out};
use crate::{Builder, Call, OpDef, OpError};

/// The entries.
pub(super) const OPS: &[OpDef] = &[
    composite!("aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor", |b, c| {
        let (x, indices) = (c.value("self")?, c.opt_values("indices")?);
        let places = Places::new(b, c, x, indices)?;
        out(places.read(b, x)?)
    }),
    composite!("aten::_unsafe_index.Tensor(Tensor self, Tensor?[] indices) -> Tensor", |b, c| {
        let (x, indices) = (c.value("self")?, c.opt_values("indices")?);
        let places = Places::new(b, c, x, indices)?;
        out(places.read(b, x)?)
    }),
    composite!(
        "aten::_unsafe_masked_index(Tensor self, Tensor mask, Tensor?[] indices, Scalar fill) -> Tensor",
        masked_index
    ),
    composite!(
        "aten::gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor",
        |b, c| {
            let (x, index) = (c.value("self")?, c.value("index")?);
            let d = shape::dim(c, "dim", b.rank(x)?)?;
            out(gather(b, x, d, index)?)
        }
    ),
    composite!("aten::index_select(Tensor self, int dim, Tensor index) -> Tensor", |b, c| {
        let (x, index) = (c.value("self")?, c.value("index")?);
        let sizes = b.sizes(x)?;
        let d = shape::dim(c, "dim", sizes.len())?;
        let index = b.cast(index, DType::I64)?;
        let n = numel(&b.sizes(index)?);
        let index = b.reshape(index, &[n])?;
        let lifted = if sizes.is_empty() { b.reshape(x, &[SymExpr::ONE])? } else { x };
        let y = shape::index(b, lifted, &[index], d)?;
        out(if sizes.is_empty() { b.reshape(y, &[])? } else { y })
    }),
    composite!("aten::take(Tensor self, Tensor index) -> Tensor", |b, c| {
        let x = flat(b, c.value("self")?)?;
        let n = b.sizes(x)?[0].clone();
        let index = wrapped(b, c.value("index")?, &n)?;
        out(shape::index(b, x, &[index], 0)?)
    }),
    composite!("aten::take_along_dim(Tensor self, Tensor indices, int? dim=None) -> Tensor", take_along),
    composite!(
        "aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor",
        |b, c| {
            let index = b.cast(c.value("indices")?, DType::I64)?;
            let rows = shape::index(b, c.value("weight")?, &[index], 0)?;
            let padding = c.sym("padding_idx")?;
            let padding = Some(padding).filter(|p| p.as_const().is_none_or(|p| p >= 0));
            let table = b.sizes(c.value("weight")?)?[0].clone();
            let frequency = c.bool("scale_grad_by_freq")?.then_some(&table);
            out(rows_for_gradient(b, rows, index, padding, frequency)?)
        }
    ),
    composite!("aten::nonzero(Tensor self) -> Tensor", |b, c| out(nonzero(b, c.value("self")?)?)),
    composite!("aten::nonzero_numpy(Tensor self) -> Tensor[]", |b, c| {
        let x = c.value("self")?;
        nonzero_numpy(b, x)
    }),
    composite!("aten::where(Tensor condition) -> Tensor[]", |b, c| {
        let x = c.value("condition")?;
        nonzero_numpy(b, x)
    }),
    composite!("aten::argwhere(Tensor self) -> Tensor", |b, c| out(nonzero(b, c.value("self")?)?)),
    composite!(
        "aten::nonzero_static(Tensor self, *, SymInt size, int fill_value=-1) -> Tensor",
        nonzero_static
    ),
    composite!("aten::masked_select(Tensor self, Tensor mask) -> Tensor", |b, c| {
        let (x, mask) = (c.value("self")?, c.value("mask")?);
        let sizes = b.broadcast_sizes(&[x, mask])?;
        let (x, mask) = (b.expand(x, &sizes)?, b.expand(mask, &sizes)?);
        let (x, mask) = (flat(b, x)?, flat(b, mask)?);
        let places = mask_places(b, mask)?;
        out(shape::index(b, x, &places, 0)?)
    }),
    composite!("aten::one_hot(Tensor self, int num_classes=-1) -> Tensor", one_hot),
];

/// One vector a dimension: where the elements that are not zero stand.
fn nonzero_numpy(b: &mut Builder<'_>, x: ValueId) -> Result<crate::Outs, OpError> {
    // NumPy takes a number for a vector of one element.
    let x = if b.rank(x)? == 0 { flat(b, x)? } else { x };
    Ok(mask_places(b, x)?.into_iter().collect())
}

/// Rows `[index…, columns]` of a table, differentiated as an embedding is: nothing goes to the row `padding`; where
/// `frequency` gives the number of the table's rows, what goes to a row is divided by how often it was read.
pub(super) fn rows_for_gradient(
    b: &mut Builder<'_>,
    rows: ValueId,
    index: ValueId,
    padding: Option<SymExpr>,
    frequency: Option<&SymExpr>,
) -> Result<ValueId, OpError> {
    let dtype = b.dtype(rows)?;
    if (padding.is_none() && frequency.is_none()) || dtype.is_integral() {
        return Ok(rows);
    }
    let sizes = b.sizes(rows)?;
    let mut carrier = rows;
    if let Some(padding) = padding {
        let kept = b.ne(index, padding)?;
        let kept = b.unsqueeze(kept, sizes.len() - 1)?;
        let kept = b.expand(kept, &sizes)?;
        carrier = super::common::choose(b, kept, carrier, 0.0, dtype)?;
    }
    if let Some(table) = frequency {
        let places = flat(b, index)?;
        let ones = b.full(&b.sizes(places)?, 1i64, DType::I64)?;
        let counts = b.full(std::slice::from_ref(table), 0i64, DType::I64)?;
        let counts = super::scatter::put(b, counts, &[places], 0, ones, "add")?;
        let times = shape::index(b, counts, &[index], 0)?;
        let times = b.cast(times, dtype)?;
        let times = b.unsqueeze(times, sizes.len() - 1)?;
        carrier = b.div(carrier, times)?;
    }
    b.call1("prims.with_gradient_of", vec![rows.into(), carrier.into()])
}

/// All elements in one dimension.
pub(super) fn flat(b: &mut Builder<'_>, v: ValueId) -> Result<ValueId, OpError> {
    let n = numel(&b.sizes(v)?);
    b.reshape(v, &[n])
}

/// An index as `i64` with negative numbers counted from the end of a dimension of size `n`.
pub(super) fn wrapped(b: &mut Builder<'_>, index: ValueId, n: &SymExpr) -> Result<ValueId, OpError> {
    let index = b.cast(index, DType::I64)?;
    let negative = b.lt(index, 0i64)?;
    let moved = b.add(index, n.clone())?;
    b.select(negative, moved, index)
}

/// `prims.gather`; a 0-dim operand or index counts as one element.
pub(super) fn gather(b: &mut Builder<'_>, x: ValueId, d: usize, index: ValueId) -> Result<ValueId, OpError> {
    let index = b.cast(index, DType::I64)?;
    let sizes = b.sizes(index)?;
    let x = if b.rank(x)? == 0 { flat(b, x)? } else { x };
    if sizes.len() != b.rank(x)? && numel(&sizes) == SymExpr::ZERO {
        // PyTorch allows an empty index of any shape.
        let dtype = b.dtype(x)?;
        return b.full(&sizes, Scalar::Int(0), dtype);
    }
    let lifted = if sizes.is_empty() { flat(b, index)? } else { index };
    let y = b.call1("prims.gather", vec![x.into(), (d as i64).into(), lifted.into()])?;
    if sizes.is_empty() { b.reshape(y, &[]) } else { Ok(y) }
}

/// Advanced indexing with its indices brought to one shape and its indexed dimensions side by side.
pub(super) struct Places {
    /// Indices of one shape, none negative.
    pub indices: Vec<ValueId>,
    /// How the dimensions of the operand are reordered first.
    pub order: Vec<usize>,
    /// The first indexed dimension, in that order.
    pub start: usize,
    /// Sizes of the values, in that order.
    pub sizes: Shape,
}

impl Places {
    pub(super) fn new(
        b: &mut Builder<'_>,
        c: &Call<'_>,
        x: ValueId,
        given: Vec<Option<ValueId>>,
    ) -> Result<Places, OpError> {
        let sizes = b.sizes(x)?;
        let mut list = Vec::new();
        // A mask of `k` dimensions stands for `k` indices.
        let mut d = 0;
        for index in given {
            match index {
                None => d += 1,
                Some(mask) if matches!(b.dtype(mask)?, DType::Bool | DType::U8) => {
                    for place in mask_places(b, mask)? {
                        list.push((d, place));
                        d += 1;
                    }
                }
                Some(index) => {
                    let n = sizes.get(d).ok_or_else(|| c.invalid("has too many indices"))?;
                    list.push((d, wrapped(b, index, n)?));
                    d += 1;
                }
            }
        }
        if d > sizes.len() {
            return Err(c.invalid(format!("indexes {d} of {} dimensions", sizes.len())));
        }
        let indices: Vec<ValueId> = list.iter().map(|(_, v)| *v).collect();
        let common = b.broadcast_sizes(&indices)?;
        let indices = indices.into_iter().map(|v| b.expand(v, &common)).collect::<Result<Vec<_>, _>>()?;
        let dims: Vec<usize> = list.iter().map(|(d, _)| *d).collect();
        // Side by side they stay in place; apart, the indexed dimensions come first.
        let adjacent = dims.windows(2).all(|w| w[1] == w[0] + 1);
        let (order, start): (Vec<usize>, usize) = if adjacent {
            ((0..sizes.len()).collect(), dims.first().copied().unwrap_or(0))
        } else {
            (dims.iter().copied().chain((0..sizes.len()).filter(|d| !dims.contains(d))).collect(), 0)
        };
        let ordered: Vec<SymExpr> = order.iter().map(|&d| sizes[d].clone()).collect();
        let rest = ordered[start + dims.len()..].iter().cloned();
        let sizes = ordered[..start].iter().cloned().chain(common).chain(rest).collect();
        Ok(Places { indices, order, start, sizes })
    }
    /// The values at these places.
    pub(super) fn read(&self, b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, OpError> {
        if self.indices.is_empty() {
            return Ok(x);
        }
        let x = b.permute(x, &self.order)?;
        shape::index(b, x, &self.indices, self.start)
    }
}

/// The places where a mask holds: one index a dimension, of a length that only running tells.
pub(super) fn mask_places(b: &mut Builder<'_>, mask: ValueId) -> Result<Vec<ValueId>, OpError> {
    let rank = b.rank(mask)?;
    let line = flat(b, mask)?;
    let hit = b.cast(line, DType::Bool)?;
    let sizes = b.sizes(mask)?;
    let places = compacted(b, hit)?;
    (0..rank).map(|d| coordinate(b, &sizes, d, &places)).collect()
}

/// Where the elements go that a mask keeps.
struct KeptPositions {
    /// For each element of the mask its place among those kept; the others all go to the place behind the last.
    row: ValueId,
    /// How many are kept.
    count: SymExpr,
}

/// Counts the elements of a mask without more than one dimension; the number becomes a symbol.
fn compacted(b: &mut Builder<'_>, hit: ValueId) -> Result<KeptPositions, OpError> {
    let n = b.sizes(hit)?[0].clone();
    let ones = b.cast(hit, DType::I64)?;
    let total = b.reduce(ReduceOp::Sum, ones, &[0], false)?;
    let count = b.item(total, 0, n.as_const())?;
    let running = b.call1("prims.cumsum", vec![ones.into(), 0i64.into()])?;
    let row = b.sub(running, 1i64)?;
    let row = choose(b, hit, row, Arg::Int(count.clone()), DType::I64)?;
    Ok(KeptPositions { row, count })
}

/// Coordinate `d` of the elements kept, of a tensor of these sizes.
fn coordinate(
    b: &mut Builder<'_>,
    sizes: &[SymExpr],
    d: usize,
    places: &KeptPositions,
) -> Result<ValueId, OpError> {
    let numbers = shape::iota_at(b, &sizes[d], d, sizes.len())?;
    let wide = b.expand(numbers, sizes)?;
    let values = flat(b, wide)?;
    let base = b.full(&[&places.count + 1], 0i64, DType::I64)?;
    let all = super::scatter::put(b, base, &[places.row], 0, values, "write")?;
    b.slice(all, 0, SymExpr::ZERO, places.count.clone(), 1)
}

/// The places of elements that are not zero, `[n, rank]` as `i64` in row-major order; `n` is a new unbacked symbol.
fn nonzero(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, OpError> {
    let rank = b.rank(x)?;
    if rank == 0 {
        let line = flat(b, x)?;
        let hit = b.cast(line, DType::Bool)?;
        let count = compacted(b, hit)?.count;
        return b.full(&[count, SymExpr::ZERO], 0i64, DType::I64);
    }
    let mut columns = Vec::new();
    for column in mask_places(b, x)? {
        columns.push(b.unsqueeze(column, 1)?);
    }
    shape::cat(b, &columns, 1)
}

/// The first `size` places, `fill_value` where there are fewer: a running count says which row each place goes to.
fn nonzero_static(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (x, size) = (c.value("self")?, c.sym("size")?);
    let sizes = b.sizes(x)?;
    let rank = sizes.len() as i64;
    let base = b.full(&[&size + 1, rank.into()], c.int("fill_value")?, DType::I64)?;
    let result = if rank == 0 || numel(&sizes) == SymExpr::ZERO {
        base
    } else {
        let line = flat(b, x)?;
        let hit = b.cast(line, DType::Bool)?;
        let ones = b.cast(hit, DType::I64)?;
        let running = b.call1("prims.cumsum", vec![ones.into(), 0i64.into()])?;
        let row = b.sub(running, 1i64)?;
        // What does not fit goes to a last row that is cut off.
        let row = b.minimum(row, size.clone())?;
        let row = choose(b, hit, row, Arg::Int(size.clone()), DType::I64)?;
        let mut columns = Vec::new();
        for d in 0..sizes.len() {
            let numbers = shape::iota_at(b, &sizes[d], d, sizes.len())?;
            let wide = b.expand(numbers, &sizes)?;
            let column = flat(b, wide)?;
            columns.push(b.unsqueeze(column, 1)?);
        }
        let places = shape::cat(b, &columns, 1)?;
        super::scatter::put(b, base, &[row], 0, places, "write")?
    };
    out(b.slice(result, 0, SymExpr::ZERO, size, 1)?)
}

/// `mask ? x[indices] : fill`; indices where the mask is false may lie anywhere.
fn masked_index(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (x, mask) = (c.value("self")?, c.value("mask")?);
    let sizes = b.sizes(x)?;
    let mut indices = Vec::new();
    let too_many = || c.bad_arg("indices", "are more than there are dimensions");
    for (d, index) in c.opt_values("indices")?.into_iter().enumerate() {
        indices.push(match index {
            Some(index) => Some(clamped(b, index, sizes.get(d).ok_or_else(too_many)?)?),
            None => None,
        });
    }
    let dtype = b.dtype(x)?;
    let fill = c.scalar("fill")?;
    if numel(&sizes) == SymExpr::ZERO {
        let shape = b.sizes(mask)?;
        return out(b.full(&shape, fill, dtype)?);
    }
    let places = Places::new(b, c, x, indices)?;
    let values = places.read(b, x)?;
    let shape = b.sizes(values)?;
    let mask = b.expand(mask, &shape)?;
    out(choose(b, mask, values, fill.to_class_of(dtype), dtype)?)
}

/// An index moved into its dimension.
pub(super) fn clamped(b: &mut Builder<'_>, index: ValueId, n: &SymExpr) -> Result<ValueId, OpError> {
    let index = b.cast(index, DType::I64)?;
    let index = b.maximum(index, 0i64)?;
    b.minimum(index, n - 1)
}

fn take_along(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (x, index) = (c.value("self")?, c.value("indices")?);
    let Some(d) = c.opt_int("dim")? else {
        let (x, index) = (flat(b, x)?, flat(b, index)?);
        return out(gather(b, x, 0, index)?);
    };
    let d = c.dim(d, b.rank(x)?)?;
    let (mut sizes_x, mut sizes_i) = (b.sizes(x)?, b.sizes(index)?);
    let n = sizes_x.get(d).cloned().unwrap_or(SymExpr::ONE);
    // Broadcast but for `dim`.
    let along = sizes_i.get(d).cloned().unwrap_or(SymExpr::ONE);
    if let (Some(x), Some(i)) = (sizes_x.get_mut(d), sizes_i.get_mut(d)) {
        (*x, *i) = (SymExpr::ONE, SymExpr::ONE);
    }
    let mut common = super::matmul::broadcast(c, &sizes_x, &sizes_i)?;
    let mut set = |value: &SymExpr| {
        if let Some(s) = common.get_mut(d) {
            *s = value.clone();
        }
        common.clone()
    };
    let (wide_x, wide_i) = (set(&n), set(&along));
    let x = b.expand(x, &wide_x)?;
    let index = b.expand(index, &wide_i)?;
    // Numbers go around the dimension as often as it takes.
    let index = b.cast(index, DType::I64)?;
    let index = b.rem(index, n.clone())?;
    let index = wrapped(b, index, &n)?;
    out(gather(b, x, d, index)?)
}

fn one_hot(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let x = c.value("self")?;
    let classes = c.int("num_classes")?;
    if classes < 0 {
        return Err(c.unsupported("a number of classes that depends on the data; give `num_classes`"));
    }
    let rank = b.rank(x)?;
    let x = b.cast(x, DType::I64)?;
    let x = b.call1("prims.check", vec![x.into(), classes.into(), (rank as i64).into()])?;
    let x = b.unsqueeze(x, rank)?;
    let numbers = shape::iota_at(b, &classes.into(), rank, rank + 1)?;
    let hit = b.scalar_op(ScalarOp::Eq, &[Arg::Value(x), Arg::Value(numbers)])?;
    out(b.cast(hit, DType::I64)?)
}
