//! Parts of a tensor: select, slice, narrow, split, chunk, unbind, and writing such a part back (`*_scatter`).

use fx_ir::ValueId;
use ir_core::{Shape, SymExpr};

use crate::ops::shapes::shape::{self, Made, out};
use crate::{Builder, Call, OpDef, OpError};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!("aten::select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)", select),
    composite!("aten::select_copy.int(Tensor self, int dim, SymInt index) -> Tensor", select),
    composite!(
        "aten::slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)",
        slice
    ),
    composite!(
        "aten::slice_copy.Tensor(Tensor self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor",
        slice
    ),
    composite!("aten::narrow(Tensor(a) self, int dim, SymInt start, SymInt length) -> Tensor(a)", narrow),
    composite!("aten::narrow_copy(Tensor self, int dim, SymInt start, SymInt length) -> Tensor", narrow),
    composite!("aten::split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]", split),
    composite!("aten::split_copy.Tensor(Tensor self, SymInt split_size, int dim=0) -> Tensor[]", split),
    composite!("aten::unsafe_split.Tensor(Tensor self, SymInt split_size, int dim=0) -> Tensor[]", split),
    composite!(
        "aten::split.sizes(Tensor(a -> *) self, SymInt[] split_size, int dim=0) -> Tensor(a)[]",
        |b, c| split_sizes(b, c, "split_size")
    ),
    composite!(
        "aten::split_with_sizes(Tensor(a -> *) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]",
        |b, c| split_sizes(b, c, "split_sizes")
    ),
    composite!(
        "aten::split_with_sizes_copy(Tensor self, SymInt[] split_sizes, int dim=0) -> Tensor[]",
        |b, c| split_sizes(b, c, "split_sizes")
    ),
    composite!(
        "aten::unsafe_split_with_sizes(Tensor self, SymInt[] split_sizes, int dim=0) -> Tensor[]",
        |b, c| split_sizes(b, c, "split_sizes")
    ),
    composite!("aten::chunk(Tensor(a -> *) self, int chunks, int dim=0) -> Tensor(a)[]", chunk),
    composite!("aten::unsafe_chunk(Tensor self, int chunks, int dim=0) -> Tensor[]", chunk),
    composite!("aten::unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]", unbind),
    composite!("aten::unbind_copy.int(Tensor self, int dim=0) -> Tensor[]", unbind),
    composite!(
        "aten::tensor_split.sections(Tensor(a -> *) self, SymInt sections, int dim=0) -> Tensor(a)[]",
        |b, c| {
            let d = dim_of(b, c)?;
            sections(b, c, "sections", d, false)
        }
    ),
    composite!(
        "aten::tensor_split.indices(Tensor(a -> *) self, SymInt[] indices, int dim=0) -> Tensor(a)[]",
        |b, c| {
            let d = dim_of(b, c)?;
            cut_at(b, c, "indices", d)
        }
    ),
    composite!("aten::hsplit.int(Tensor(a -> *) self, int sections) -> Tensor(a)[]", |b, c| {
        let d = usize::from(b.rank(c.value("self")?)? > 1);
        sections(b, c, "sections", d, true)
    }),
    composite!("aten::hsplit.array(Tensor(a -> *) self, int[] indices) -> Tensor(a)[]", |b, c| {
        let d = usize::from(b.rank(c.value("self")?)? > 1);
        cut_at(b, c, "indices", d)
    }),
    composite!("aten::vsplit.int(Tensor(a -> *) self, int sections) -> Tensor(a)[]", |b, c| sections(
        b, c, "sections", 0, true
    )),
    composite!("aten::vsplit.array(Tensor(a -> *) self, int[] indices) -> Tensor(a)[]", |b, c| cut_at(
        b, c, "indices", 0
    )),
    composite!("aten::dsplit.int(Tensor(a -> *) self, int sections) -> Tensor(a)[]", |b, c| sections(
        b, c, "sections", 2, true
    )),
    composite!("aten::dsplit.array(Tensor(a -> *) self, int[] indices) -> Tensor(a)[]", |b, c| cut_at(
        b, c, "indices", 2
    )),
    composite!("aten::select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor", |b, c| {
        let (x, src) = (c.value("self")?, c.value("src")?);
        let sizes = b.sizes_of_rank(x, 1..)?;
        let d = shape::dim(c, "dim", sizes.len())?;
        let at = shape::wrap(b, c.sym("index")?, &sizes[d]);
        let src = b.unsqueeze(src, d)?;
        write_slice(b, x, src, d, at, SymExpr::ONE, 1)
    }),
    composite!(
        "aten::slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor",
        |b, c| {
            let (x, src) = (c.value("self")?, c.value("src")?);
            let part = slice_of(b, c)?;
            let mut sizes = b.sizes(x)?;
            sizes[part.dim] = part.length.clone();
            let src = b.expand(src, &sizes)?;
            write_slice(b, x, src, part.dim, part.start, part.length, part.step)
        }
    ),
];

fn dim_of(b: &Builder<'_>, c: &Call<'_>) -> Result<usize, OpError> {
    let rank = b.rank(c.value("self")?)?;
    if rank == 0 {
        return Err(c.invalid("a 0-dim tensor has no parts"));
    }
    shape::dim(c, "dim", rank)
}

fn select(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let x = c.value("self")?;
    let d = dim_of(b, c)?;
    let n = b.sizes(x)?[d].clone();
    let at = c.sym("index")?;
    for left in [&at + &n, &n - 1 - &at] {
        b.require_at_least(&left, 0, |graph| {
            let (at, n) = (graph.size_text(&at), graph.size_text(&n));
            format!("index {at} is out of range for a dimension of size {n}")
        })?;
    }
    let at = shape::wrap(b, at, &n);
    out(shape::select(b, x, d, at)?)
}

/// A slice with its bounds computed.
struct Slice {
    dim: usize,
    start: SymExpr,
    length: SymExpr,
    step: i64,
}

fn slice_of(b: &Builder<'_>, c: &Call<'_>) -> Result<Slice, OpError> {
    let dim = dim_of(b, c)?;
    let n = b.sizes(c.value("self")?)?[dim].clone();
    let step = c.int("step")?;
    if step < 1 {
        return Err(c.bad_arg("step", "must be positive"));
    }
    let start = shape::clamp(b, c.opt_sym("start")?.unwrap_or_default(), &SymExpr::ZERO, &n);
    let end = match c.opt_sym("end")? {
        Some(end) if end.as_const() != Some(i64::MAX) => shape::clamp(b, end, &start, &n),
        _ => n,
    };
    let length = shape::simplify(b, (end - &start).ceil_div(&SymExpr::from_i64(step)));
    Ok(Slice { dim, start, length, step })
}

fn slice(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let part = slice_of(b, c)?;
    out(b.slice(c.value("self")?, part.dim, part.start, part.length, part.step)?)
}

fn narrow(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let x = c.value("self")?;
    let d = dim_of(b, c)?;
    let n = b.sizes(x)?[d].clone();
    let (start, length) = (shape::wrap(b, c.sym("start")?, &n), c.sym("length")?);
    for left in [start.clone(), length.clone(), &n - &start - &length] {
        b.require_at_least(&left, 0, |graph| {
            let [start, length, n] = [&start, &length, &n].map(|e| graph.size_text(e));
            format!("elements {start}..{start}+{length} lie outside a dimension of size {n}")
        })?;
    }
    out(b.slice(x, d, start, length, 1)?)
}

/// Parts of the given lengths, one after another.
fn parts(b: &mut Builder<'_>, x: ValueId, d: usize, lengths: &[SymExpr]) -> Made {
    let mut start = SymExpr::ZERO;
    let mut outs = crate::Outs::new();
    for length in lengths {
        outs.push(b.slice(x, d, start.clone(), length.clone(), 1)?);
        start = start + length;
    }
    Ok(outs)
}

/// How many parts of `size` a dimension of size `n` has; for symbolic sizes that do not divide to a number, as many as
/// the program takes of it.
fn part_count(b: &Builder<'_>, c: &Call<'_>, n: &SymExpr, size: &SymExpr) -> Result<i64, OpError> {
    n.ceil_div(size)
        .as_const()
        .or_else(|| n.floor_div(size).as_const().filter(|k| size * *k == *n))
        .or_else(|| b.expected().map(|k| k as i64))
        .ok_or_else(|| {
            c.unsupported(format!("a dimension of size {n} in parts of {size}: their number varies"))
        })
}

/// The number of parts, where they are not more than a graph can hold.
fn few(c: &Call<'_>, count: i64) -> Result<usize, OpError> {
    let few = usize::try_from(count).ok().filter(|n| *n <= crate::builder::MAX_PRIMS);
    few.ok_or_else(|| c.unsupported(format!("{count} parts")))
}

fn in_parts(b: &mut Builder<'_>, c: &Call<'_>, d: usize, size: &SymExpr) -> Made {
    let x = c.value("self")?;
    let n = b.sizes(x)?[d].clone();
    if n == SymExpr::ZERO {
        return out(x);
    }
    b.require_at_least(size, 1, |_| "parts must have at least one element".into())?;
    let count = part_count(b, c, &n, size)?.max(1);
    let parts_made = few(c, count)?;
    // The last part has the rest: at least one element, but where it is the only one.
    let rest = &n - size * (count - 1);
    for left in [&rest - i64::from(count > 1), size - &rest] {
        b.require_at_least(&left, 0, |graph| {
            let (n, size) = (graph.size_text(&n), graph.size_text(size));
            format!("{n} elements in parts of {size} are not {count} parts")
        })?;
    }
    let mut lengths = vec![size.clone(); parts_made];
    if let Some(last) = lengths.last_mut() {
        *last = rest;
    }
    parts(b, x, d, &lengths)
}

fn split(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let d = dim_of(b, c)?;
    in_parts(b, c, d, &c.sym("split_size")?)
}

fn split_sizes(b: &mut Builder<'_>, c: &Call<'_>, name: &str) -> Made {
    let (x, d) = (c.value("self")?, dim_of(b, c)?);
    let lengths = c.syms(name)?;
    let total = lengths.iter().fold(SymExpr::ZERO, |sum, n| sum + n);
    let n = b.sizes(x)?[d].clone();
    b.require_equal(&total, &n, |graph| {
        let (total, n) = (graph.size_text(&total), graph.size_text(&n));
        format!("the parts have {total} elements, the dimension {n}")
    })?;
    parts(b, x, d, &lengths)
}

fn chunk(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (x, d, chunks) = (c.value("self")?, dim_of(b, c)?, c.int("chunks")?);
    if chunks < 1 {
        return Err(c.bad_arg("chunks", "must be positive"));
    }
    let n = b.sizes(x)?[d].clone();
    if n == SymExpr::ZERO {
        // PyTorch gives as many empty parts as were requested.
        return Ok((0..few(c, chunks)?).map(|_| x).collect());
    }
    let size = n.ceil_div(&SymExpr::from_i64(chunks));
    if n.as_const().is_none() {
        // Some numbers of elements give fewer parts; none gives as many as were requested.
        let rest = &n - &size * (chunks - 1);
        b.require_at_least(&rest, n.sym_min(&SymExpr::ONE), |graph| {
            format!("{} elements are fewer than {chunks} parts", graph.size_text(&n))
        })?;
        let mut lengths = vec![size.clone(); few(c, chunks)?];
        if let Some(last) = lengths.last_mut() {
            *last = rest;
        }
        return parts(b, x, d, &lengths);
    }
    in_parts(b, c, d, &size)
}

fn unbind(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (x, d) = (c.value("self")?, dim_of(b, c)?);
    let n = shape::known(c, &b.sizes(x)?[d].clone(), "size of an unbound dimension")?;
    (0..n).map(|i| shape::select(b, x, d, i.into())).collect()
}

/// `n` parts, the first ones larger by one; `equal` demands that they are all of one size.
fn sections(b: &mut Builder<'_>, c: &Call<'_>, name: &str, d: usize, equal: bool) -> Made {
    let x = c.value("self")?;
    let sizes = b.sizes(x)?;
    let n = sizes.get(d).ok_or_else(|| c.invalid("has too few dimensions"))?;
    let count = c.int(name)?;
    if count < 1 {
        return Err(c.bad_arg(name, "must be positive"));
    }
    let parts_made = few(c, count)?;
    let each = n.floor_div(&SymExpr::from_i64(count));
    if &each * count == *n {
        return parts(b, x, d, &vec![each; parts_made]);
    }
    if equal {
        b.require_equal(&n.modulo(&count.into()), &SymExpr::ZERO, |graph| {
            format!("{} elements do not split into {count} equal parts", graph.size_text(n))
        })?;
    }
    let Some(n) = n.as_const() else {
        // n / count, and one more for the first n % count.
        let length = |i: i64| (n + (count - 1 - i)).floor_div(&SymExpr::from_i64(count));
        return parts(b, x, d, &(0..count).map(length).collect::<Vec<_>>());
    };
    let lengths: Shape =
        (0..count).map(|i| SymExpr::from_i64(n / count + i64::from(i < n % count))).collect();
    parts(b, x, d, &lengths)
}

/// Parts between the given positions.
fn cut_at(b: &mut Builder<'_>, c: &Call<'_>, name: &str, d: usize) -> Made {
    let x = c.value("self")?;
    let sizes = b.sizes(x)?;
    let n = sizes.get(d).ok_or_else(|| c.invalid("has too few dimensions"))?;
    let mut outs = crate::Outs::new();
    let mut start = SymExpr::ZERO;
    for end in c.syms(name)?.into_iter().map(Some).chain([None]) {
        let from = shape::clamp(b, start, &SymExpr::ZERO, n);
        let (to, next) = match end {
            Some(end) => (shape::clamp(b, end.clone(), &from, n), end),
            None => (n.clone(), SymExpr::ZERO),
        };
        let length = shape::simplify(b, &to - &from);
        outs.push(b.slice(x, d, from, length, 1)?);
        start = next;
    }
    Ok(outs)
}

/// `x` with `src` in place of `length` elements of dimension `d` from `start`, every `step`-th.
pub(in crate::ops) fn write_slice(
    b: &mut Builder<'_>,
    x: ValueId,
    src: ValueId,
    d: usize,
    start: SymExpr,
    length: SymExpr,
    step: i64,
) -> Made {
    let sizes = b.sizes(x)?;
    let dtype = b.dtype(x)?;
    let src = b.cast(src, dtype)?;
    let n = sizes[d].clone();
    if length == n && step == 1 {
        return out(src);
    }
    if length == SymExpr::ZERO {
        return out(x);
    }
    // A position is written where it lies between the first and the last one and a whole number of steps from the first.
    let span = (&length - 1) * step + 1;
    let mut low: Shape = sizes.iter().map(|_| SymExpr::ZERO).collect();
    let (mut high, mut interior) = (low.clone(), vec![0; sizes.len()]);
    (low[d], high[d], interior[d]) = (start.clone(), &n - &start - &span, step - 1);
    let placed = shape::pad(b, src, &low, &high, &interior, 0)?;
    let at = shape::iota_at(b, &n, d, sizes.len())?;
    let after = b.ge(at, start.clone())?;
    let before = b.lt(at, &start + span)?;
    let mut mask = b.and(after, before)?;
    if step > 1 {
        let offset = b.sub(at, start)?;
        let rest = b.scalar_op(kernel_ir::ScalarOp::Rem, &[offset.into(), step.into()])?;
        let hit = b.eq(rest, 0i64)?;
        mask = b.and(mask, hit)?;
    }
    let mask = b.expand(mask, &sizes)?;
    out(b.select(mask, placed, x)?)
}
