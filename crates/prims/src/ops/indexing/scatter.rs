//! Writing at data-dependent indices: scatter, index_put and related operators, composed of `prims.scatter` and
//! `prims.index_put`.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Scalar, Shape, SymExpr, numel};
use kernel_ir::ReduceOp;

use crate::ops::common::choose;
use crate::ops::indexing::index::{Places, clamped, flat, wrapped};
use crate::ops::shapes::shape::{self, Made, out};
use crate::{Autocast, Builder, Call, OpDef, OpError};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!("aten::scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor", |b, c| {
        scatter_src(b, c, "write")
    }),
    composite!("aten::scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor", |b, c| {
        scatter_src(b, c, "add")
    }).autocast(Autocast::WIDEST_ON_GPU),
    composite!(
        "aten::scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> Tensor",
        |b, c| scatter_src(b, c, old_mode(c)?)
    ),
    composite!("aten::scatter.value(Tensor self, int dim, Tensor index, Scalar value) -> Tensor", |b, c| {
        scatter_value(b, c, "write")
    }),
    composite!(
        "aten::scatter.value_reduce(Tensor self, int dim, Tensor index, Scalar value, *, str reduce) -> Tensor",
        |b, c| scatter_value(b, c, old_mode(c)?)
    ),
    composite!(
        "aten::scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool include_self=True) -> Tensor",
        |b, c| {
            let index = c.value("index")?;
            let write = |b: &mut Builder<'_>, x: ValueId, src: ValueId, mode: &str| {
                scatter(b, c, x, index, src, mode)
            };
            let sizes = b.sizes(index)?;
            reduced(b, c, c.value("src")?, &sizes, &write)
        }
    ),
    composite!(
        "aten::index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor",
        index_put
    ).autocast(Autocast::WIDEST_ON_GPU),
    composite!(
        "aten::_unsafe_index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor",
        index_put
    ),
    composite!(
        "aten::_index_put_impl(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False, bool unsafe=False) -> Tensor",
        index_put
    ),
    composite!(
        "aten::_unsafe_masked_index_put_accumulate(Tensor self, Tensor mask, Tensor?[] indices, Tensor values) -> Tensor",
        masked_index_put
    ),
    composite!(
        "aten::index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor",
        |b, c| {
            let source = c.value("source")?;
            let alpha = c.scalar("alpha")?;
            let dtype = b.dtype(source)?;
            let source = if alpha.as_f64() == 1.0 && !matches!(alpha, Scalar::Complex(..)) {
                source
            } else {
                b.mul(source, alpha.to_class_of(dtype))?
            };
            rows(b, c, source, "add")
        }
    ),
    composite!("aten::index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor", |b, c| {
        rows(b, c, c.value("source")?, "write")
    }).autocast(Autocast::WIDEST_ON_CPU),
    composite!(
        "aten::index_fill.int_Scalar(Tensor self, int dim, Tensor index, Scalar value) -> Tensor",
        |b, c| {
            let dtype = b.dtype(c.value("self")?)?;
            let value = b.full(&[], c.scalar("value")?, dtype)?;
            filled_rows(b, c, value)
        }
    ),
    composite!(
        "aten::index_fill.int_Tensor(Tensor self, int dim, Tensor index, Tensor value) -> Tensor",
        |b, c| filled_rows(b, c, c.value("value")?)
    ),
    composite!(
        "aten::index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, bool include_self=True) -> Tensor",
        |b, c| {
            let source = c.value("source")?;
            let sizes = b.sizes(source)?;
            let write = |b: &mut Builder<'_>, x: ValueId, src: ValueId, mode: &str| {
                put_rows(b, c, x, src, mode, Negative::Refused)
            };
            reduced(b, c, source, &sizes, &write)
        }
    ),
    composite!(
        "aten::put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor",
        |b, c| {
            let x = c.value("self")?;
            let sizes = b.sizes(x)?;
            let all = flat(b, x)?;
            let index = wrapped(b, c.value("index")?, &numel(&sizes))?;
            let (index, source) = (flat(b, index)?, flat(b, c.value("source")?)?);
            let mode = if c.bool("accumulate")? { "add" } else { "write" };
            let y = put(b, all, &[index], 0, source, mode)?;
            out(b.reshape(y, &sizes)?)
        }
    ),
    composite!("aten::masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor", masked_scatter),
    composite!("aten::max_unpool2d(Tensor self, Tensor indices, SymInt[2] output_size) -> Tensor", |b, c| {
        unpool(b, c, 2)
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::max_unpool3d(Tensor self, Tensor indices, SymInt[3] output_size, int[3] stride, int[3] padding) -> Tensor",
        |b, c| unpool(b, c, 3)
    ).autocast(Autocast::FLOAT32_ON_CPU),
];

/// `prims.index_put`.
pub(in crate::ops) fn put(
    b: &mut Builder<'_>,
    x: ValueId,
    indices: &[ValueId],
    start: usize,
    values: ValueId,
    mode: &str,
) -> Result<ValueId, OpError> {
    let indices = Arg::values(indices.iter().copied());
    b.call1("prims.index_put", vec![x.into(), indices, (start as i64).into(), values.into(), mode.into()])
}

/// `prims.scatter` along the argument `dim`; 0-dim operands count as one element, an empty index writes nothing.
fn scatter(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    x: ValueId,
    index: ValueId,
    src: ValueId,
    mode: &str,
) -> Result<ValueId, OpError> {
    let sizes = b.sizes(x)?;
    if numel(&b.sizes(index)?) == SymExpr::ZERO {
        return Ok(x);
    }
    let d = shape::dim(c, "dim", sizes.len())?;
    let lift = |b: &mut Builder<'_>, v: ValueId| if b.rank(v)? == 0 { flat(b, v) } else { Ok(v) };
    let (lifted, index, src) = (lift(b, x)?, lift(b, index)?, lift(b, src)?);
    let index = b.cast(index, DType::I64)?;
    if mode == "write"
        && let Some(y) = into_filled(b, (lifted, index, src), d)?
    {
        return b.reshape(y, &sizes);
    }
    let args = vec![lifted.into(), (d as i64).into(), index.into(), src.into(), mode.into()];
    let y = b.call1("prims.scatter", args)?;
    b.reshape(y, &sizes)
}

/// One number for each line along `d`, written into a tensor that is one number throughout, as the gradient of a loss over classes and
/// one-hot vectors are: every element compares its position with the index. So it has no memory of its own, and what reads it computes it.
fn into_filled(
    b: &mut Builder<'_>,
    (x, index, src): (ValueId, ValueId, ValueId),
    d: usize,
) -> Result<Option<ValueId>, OpError> {
    let (sizes, taken) = (b.sizes(x)?, b.sizes(index)?);
    let of_line = |i: usize| if i == d { SymExpr::ONE } else { sizes[i].clone() };
    let one_each = taken.len() == sizes.len() && (0..sizes.len()).all(|i| taken[i] == of_line(i));
    // An empty line has no place where its index would be looked at.
    let known = sizes.get(d).and_then(SymExpr::as_const).is_some_and(|n| n > 0);
    if !known || !one_each || b.sizes(src)? != taken || !is_filled(b, x) || !is_filled(b, src) {
        return Ok(None);
    }
    let index = b.call1("prims.check", vec![index.into(), sizes[d].clone().into(), (d as i64).into()])?;
    let line = shape::iota_at(b, &sizes[d], d, sizes.len())?;
    let is_taken = b.eq(line, index)?;
    b.select(is_taken, src, x).map(Some)
}

/// Whether a tensor is one number throughout.
fn is_filled(b: &Builder<'_>, v: ValueId) -> bool {
    let graph = b.graph();
    match graph.nodes[graph.values[v].def].as_call() {
        Some(("prims.full", _)) => true,
        Some(("prims.expand" | "prims.reshape" | "prims.convert", [Arg::Value(of), ..])) => is_filled(b, *of),
        _ => false,
    }
}

fn old_mode(c: &Call<'_>) -> Result<&'static str, OpError> {
    match c.opt_str("reduce")? {
        Some("add") => Ok("add"),
        Some("multiply") => Ok("prod"),
        _ => Err(c.bad_arg("reduce", "must be `add` or `multiply`")),
    }
}

fn scatter_src(b: &mut Builder<'_>, c: &Call<'_>, mode: &str) -> Made {
    out(scatter(b, c, c.value("self")?, c.value("index")?, c.value("src")?, mode)?)
}

fn scatter_value(b: &mut Builder<'_>, c: &Call<'_>, mode: &str) -> Made {
    let (x, index) = (c.value("self")?, c.value("index")?);
    let sizes = b.sizes(index)?;
    let dtype = b.dtype(x)?;
    let src = b.full(&sizes, c.scalar("value")?, dtype)?;
    out(scatter(b, c, x, index, src, mode)?)
}

type Write<'w> = dyn Fn(&mut Builder<'_>, ValueId, ValueId, &str) -> Result<ValueId, OpError> + 'w;

/// `scatter_reduce` and `index_reduce`: `write` combines values of the given sizes into a tensor. Without
/// `include_self`, positions that something is written to start from the reduction's neutral number.
fn reduced(b: &mut Builder<'_>, c: &Call<'_>, src: ValueId, sizes: &[SymExpr], write: &Write<'_>) -> Made {
    let x = c.value("self")?;
    let (dtype, include) = (b.dtype(x)?, c.bool("include_self")?);
    let (mode, op) = match c.opt_str("reduce")? {
        Some("sum") => ("add", ReduceOp::Sum),
        Some("mean") => ("mean", ReduceOp::Sum),
        Some("prod") => ("prod", ReduceOp::Prod),
        Some("amax") => ("amax", ReduceOp::Max),
        Some("amin") => ("amin", ReduceOp::Min),
        _ => return Err(c.bad_arg("reduce", "must be sum, prod, mean, amax or amin")),
    };
    // 16-bit sums are rounded once.
    let wide = crate::ops::common::widen(b, x)?;
    let src = b.cast(src, dtype)?;
    let src = crate::ops::common::widen(b, src)?;
    let compute = b.dtype(wide)?;
    let neutral = b.full(sizes, op.identity(compute), compute)?;
    let base = if include { wide } else { write(b, wide, neutral, "write")? };
    let combined = write(b, base, src, if mode == "mean" { "add" } else { mode })?;
    if mode != "mean" {
        return out(b.cast(combined, dtype)?);
    }
    let shape_x = b.sizes(x)?;
    let start = b.full(&shape_x, i64::from(include), compute)?;
    let ones = b.full(sizes, 1i64, compute)?;
    let counts = write(b, start, ones, "add")?;
    let one = b.full(&shape_x, 1i64, compute)?;
    let counts = b.maximum(counts, one)?;
    let mean = if compute.is_inexact() {
        b.div(combined, counts)?
    } else {
        b.call1("aten.div.Tensor_mode", vec![combined.into(), counts.into(), Arg::Str("floor".into())])?
    };
    out(b.cast(mean, dtype)?)
}

/// `values` (broadcast) written to the rows that `index` names along `dim`.
fn rows(b: &mut Builder<'_>, c: &Call<'_>, values: ValueId, mode: &str) -> Made {
    out(put_rows(b, c, c.value("self")?, values, mode, Negative::Refused)?)
}

/// One value for all rows that `index` names: chosen by a mask, so that a row named twice counts once in its gradient.
fn filled_rows(b: &mut Builder<'_>, c: &Call<'_>, value: ValueId) -> Made {
    let x = c.value("self")?;
    let (sizes, dtype) = (b.sizes(x)?, b.dtype(x)?);
    let no = b.full(&sizes, false, DType::Bool)?;
    let yes = b.full(&[], true, DType::Bool)?;
    let mask = put_rows(b, c, no, yes, "write", Negative::FromEnd)?;
    let value = b.cast(value, dtype)?;
    let value = b.reshape(value, &[])?;
    let value = b.expand(value, &sizes)?;
    out(b.select(mask, value, x)?)
}

/// What a negative number of a row means.
#[derive(Clone, Copy, PartialEq)]
enum Negative {
    /// It counts from the end.
    FromEnd,
    /// Nothing: it is out of bounds.
    Refused,
}

fn put_rows(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    x: ValueId,
    values: ValueId,
    mode: &str,
    negative: Negative,
) -> Result<ValueId, OpError> {
    let sizes = b.sizes(x)?;
    let d = shape::dim(c, "dim", sizes.len())?;
    let lifted = if sizes.is_empty() { flat(b, x)? } else { x };
    let mut wanted = b.sizes(lifted)?;
    let index = c.value("index")?;
    let index = match negative {
        Negative::FromEnd => wrapped(b, index, &wanted[d])?,
        Negative::Refused => b.cast(index, DType::I64)?,
    };
    let index = flat(b, index)?;
    wanted[d] = b.sizes(index)?[0].clone();
    let dtype = b.dtype(x)?;
    let values = b.cast(values, dtype)?;
    let have = b.sizes(values)?;
    // A source without the row's dimension (or of a 0-dim tensor) stands for one element or row.
    let values =
        if numel(&have) == numel(&wanted) { b.reshape(values, &wanted)? } else { b.expand(values, &wanted)? };
    let y = put(b, lifted, &[index], d, values, mode)?;
    b.reshape(y, &sizes)
}

fn index_put(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (x, values) = (c.value("self")?, c.value("values")?);
    let dtype = b.dtype(x)?;
    let values = b.cast(values, dtype)?;
    let indices = c.opt_values("indices")?;
    let accumulate = c.bool("accumulate")?;
    if let Some(mask) = whole_mask(b, &indices)? {
        return masked_put(b, x, mask, values, accumulate);
    }
    let places = Places::new(b, c, x, indices)?;
    out(put_at(b, x, &places, values, if accumulate { "add" } else { "write" })?)
}

/// `values`, broadcast to the positions, combined into `x`.
fn put_at(
    b: &mut Builder<'_>,
    x: ValueId,
    places: &Places,
    values: ValueId,
    mode: &str,
) -> Result<ValueId, OpError> {
    let values = b.expand(values, &places.sizes)?;
    if places.indices.is_empty() {
        return if mode == "add" { b.add(x, values) } else { Ok(values) };
    }
    let moved = b.permute(x, &places.order)?;
    let y = put(b, moved, &places.indices, places.start, values, mode)?;
    let mut back = vec![0; places.order.len()];
    places.order.iter().enumerate().for_each(|(to, &from)| back[from] = to);
    b.permute(y, &back)
}

/// A single mask among the indices and the dimension it starts at.
fn whole_mask(b: &Builder<'_>, indices: &[Option<ValueId>]) -> Result<Option<(ValueId, usize)>, OpError> {
    let mut given = indices.iter().enumerate().filter_map(|(d, i)| Some((d, (*i)?)));
    match (given.next(), given.next()) {
        (Some((d, v)), None) if b.dtype(v)? == DType::Bool => Ok(Some((v, d))),
        _ => Ok(None),
    }
}

/// `x[…, mask, …] = values`, one for all masked positions or one for each.
fn masked_put(
    b: &mut Builder<'_>,
    x: ValueId,
    (mask, start): (ValueId, usize),
    values: ValueId,
    accumulate: bool,
) -> Made {
    let (sizes, inner) = (b.sizes(x)?, b.rank(mask)?);
    let rest = sizes.len() - start - inner;
    let mut have = b.sizes(values)?;
    // Sizes of the values against `[lead…, places, rest…]`.
    if have.len() > rest {
        let places = have.len() - rest - 1;
        if have[places] != SymExpr::ONE {
            let spread = one_for_each(b, (mask, start), values, &sizes)?;
            return put_where(b, x, (mask, rest), spread, accumulate);
        }
        have.remove(places);
        have.insert_many(places, std::iter::repeat_n(SymExpr::ONE, inner));
    }
    let values = b.reshape(values, &have)?;
    let values = b.expand(values, &sizes)?;
    put_where(b, x, (mask, rest), values, accumulate)
}

/// Values of `[lead…, places, rest…]`, one for each position where the mask is true, at those positions: `sizes`. How many there
/// are is checked when it runs.
fn one_for_each(
    b: &mut Builder<'_>,
    (mask, start): (ValueId, usize),
    values: ValueId,
    sizes: &[SymExpr],
) -> Result<ValueId, OpError> {
    let inner = b.rank(mask)?;
    let have = b.sizes(values)?;
    let n = have[have.len() + start + inner - sizes.len() - 1].clone();
    let mut wide: Shape = sizes[..start].iter().cloned().collect();
    wide.push(n.clone());
    wide.extend(sizes[start + inner..].iter().cloned());
    let values = b.expand(values, &wide)?;
    // A row after the last, so that there is something to read where there are none.
    let mut high = vec![SymExpr::ZERO; wide.len()];
    let low = high.clone();
    high[start] = SymExpr::ONE;
    let values = shape::pad(b, values, &low, &high, &vec![0; wide.len()], 0)?;
    let mask = crate::ops::indexing::index::flat(b, mask)?;
    let ones = b.cast(mask, DType::I64)?;
    let running = b.call1("prims.cumsum", vec![ones.into(), 0i64.into()])?;
    let total = b.reduce(ReduceOp::Sum, ones, &[0], false)?;
    let same = b.eq(total, n.clone())?;
    b.assert(same.into(), "as many values as the mask has places are wanted");
    let place = b.sub(running, 1i64)?;
    let place = b.maximum(place, 0i64)?;
    let place = b.minimum(place, n)?;
    let rows = shape::index(b, values, &[place], start)?;
    b.reshape(rows, sizes)
}

/// `values` (of the size of `x`) where the mask, which has `rest` dimensions after it, is true.
fn put_where(
    b: &mut Builder<'_>,
    x: ValueId,
    (mask, rest): (ValueId, usize),
    values: ValueId,
    accumulate: bool,
) -> Made {
    let sizes = b.sizes(x)?;
    let mut along: Shape = b.sizes(mask)?;
    along.extend(std::iter::repeat_n(SymExpr::ONE, rest));
    let mask = b.reshape(mask, &along)?;
    let mask = b.expand(mask, &sizes)?;
    let new = if accumulate { b.add(x, values)? } else { values };
    out(b.select(mask, new, x)?)
}

fn masked_index_put(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (x, mask, values) = (c.value("self")?, c.value("mask")?, c.value("values")?);
    let sizes = b.sizes(x)?;
    if numel(&sizes) == SymExpr::ZERO {
        return out(x);
    }
    let mut indices = Vec::new();
    let too_many = || c.bad_arg("indices", "are more than there are dimensions");
    for (d, index) in c.opt_values("indices")?.into_iter().enumerate() {
        indices.push(match index {
            Some(index) => Some(clamped(b, index, sizes.get(d).ok_or_else(too_many)?)?),
            None => None,
        });
    }
    let places = Places::new(b, c, x, indices)?;
    let dtype = b.dtype(x)?;
    let values = b.cast(values, dtype)?;
    let values = b.expand(values, &places.sizes)?;
    let mask = b.expand(mask, &places.sizes)?;
    let values = choose(b, mask, values, 0i64, dtype)?;
    out(put_at(b, x, &places, values, "add")?)
}

/// Masked positions take the elements of `source` in order: position `n` among them reads element `n`.
fn masked_scatter(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (x, mask, source) = (c.value("self")?, c.value("mask")?, c.value("source")?);
    let sizes = b.broadcast_sizes(&[x, mask])?;
    let (x, mask) = (b.expand(x, &sizes)?, b.expand(mask, &sizes)?);
    let source = flat(b, source)?;
    let n = b.sizes(source)?[0].clone();
    if n == SymExpr::ZERO || numel(&sizes) == SymExpr::ZERO {
        return out(x);
    }
    let line = flat(b, mask)?;
    let numbers = b.cast(line, DType::I64)?;
    let running = b.call1("prims.cumsum", vec![numbers.into(), 0i64.into()])?;
    let place = b.sub(running, 1i64)?;
    // A source that may be empty, where no element of the mask is true, has an element for the places that nothing is taken from.
    let some = n.range(&b.graph().symbols).0.is_some_and(|least| least >= 1);
    let (source, n) = if some {
        (source, n)
    } else {
        let dtype = b.dtype(source)?;
        let zero = b.full(&[SymExpr::ONE], 0i64, dtype)?;
        let parts = Arg::List(vec![source.into(), zero.into()]);
        (b.call1("aten.cat.default", vec![parts, 0i64.into()])?, n + 1)
    };
    let place = clamped(b, place, &n)?;
    let values = shape::index(b, source, &[place], 0)?;
    let values = b.reshape(values, &sizes)?;
    out(b.select(mask, values, x)?)
}

/// `values` combined into zeros of the given sizes, at flat positions in their last `n` dimensions.
pub(in crate::ops) fn planes(
    b: &mut Builder<'_>,
    values: ValueId,
    places: ValueId,
    sizes: &[SymExpr],
    n: usize,
    mode: &str,
) -> Result<ValueId, OpError> {
    let lead = b.sizes_of_rank(values, n.max(sizes.len())..=sizes.len())?.len() - n;
    let (area, rows) = (numel(&sizes[lead..]), numel(&sizes[..lead]));
    let per = numel(&b.sizes(values)?[lead..]);
    let dtype = b.dtype(values)?;
    let zeros = b.full(&[rows.clone(), area], 0i64, dtype)?;
    let values = b.reshape(values, &[rows.clone(), per.clone()])?;
    let places = b.reshape(places, &[rows, per])?;
    let args = vec![zeros.into(), 1i64.into(), places.into(), values.into(), mode.into()];
    let y = b.call1("prims.scatter", args)?;
    b.reshape(y, sizes)
}

fn unpool(b: &mut Builder<'_>, c: &Call<'_>, n: usize) -> Made {
    let (x, indices) = (c.value("self")?, c.value("indices")?);
    let have = b.sizes(x)?;
    if have.len() <= n {
        return Err(c.invalid(format!("takes more than {n} dimensions")));
    }
    let lead = have[..have.len() - n].iter().cloned();
    let sizes: Shape = lead.chain(c.syms("output_size")?).collect();
    out(planes(b, x, indices, &sizes, n, "write")?)
}
