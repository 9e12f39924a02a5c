//! Tensors put together or repeated: cat, stack, repeat, tile, roll, flip, rot90, diff, meshgrid.

use fx_ir::{Arg, ValueId};
use ir_core::{Shape, SymExpr, numel};
use kernel_ir::ScalarOp;

use super::shape::{self, Made, out};
use super::view::at_least;
use crate::{Autocast, Builder, Call, OpDef, OpError};

/// The entries.
pub(super) const OPS: &[OpDef] = &[
    composite!("aten::cat(Tensor[] tensors, int dim=0) -> Tensor", cat).autocast(Autocast::WIDEST),
    composite!("aten::concat(Tensor[] tensors, int dim=0) -> Tensor", cat),
    composite!("aten::concatenate(Tensor[] tensors, int dim=0) -> Tensor", cat),
    composite!("aten::stack(Tensor[] tensors, int dim=0) -> Tensor", |b, c| {
        let tensors = c.values("tensors")?;
        let first = tensors.first().ok_or_else(|| c.bad_arg("tensors", "is empty"))?;
        let d = c.dim(c.int("dim")?, b.rank(*first)? + 1)?;
        let list = tensors.into_iter().map(|v| b.unsqueeze(v, d)).collect::<Result<Vec<_>, _>>()?;
        out(join(b, c, &list, d)?)
    })
    .autocast(Autocast::WIDEST),
    composite!("aten::hstack(Tensor[] tensors) -> Tensor", |b, c| {
        let list = lifted(b, c, 1)?;
        let d = usize::from(b.rank(list[0])? > 1);
        out(join(b, c, &list, d)?)
    }),
    composite!("aten::vstack(Tensor[] tensors) -> Tensor", |b, c| {
        let list = lifted(b, c, 2)?;
        out(join(b, c, &list, 0)?)
    }),
    composite!("aten::dstack(Tensor[] tensors) -> Tensor", |b, c| {
        let list = lifted(b, c, 3)?;
        out(join(b, c, &list, 2)?)
    }),
    composite!("aten::column_stack(Tensor[] tensors) -> Tensor", |b, c| {
        let mut list = Vec::new();
        for v in c.values("tensors")? {
            let sizes = b.sizes(v)?;
            list.push(if sizes.len() < 2 { b.reshape(v, &[numel(&sizes), SymExpr::ONE])? } else { v });
        }
        out(join(b, c, &list, 1)?)
    }),
    composite!("aten::_chunk_cat(Tensor[] tensors, int dim, int num_chunks) -> Tensor", chunk_cat),
    composite!("aten::block_diag(Tensor[] tensors) -> Tensor", block_diag),
    composite!("aten::repeat(Tensor self, SymInt[] repeats) -> Tensor", |b, c| {
        let x = c.value("self")?;
        let repeats = c.syms("repeats")?;
        if repeats.len() < b.rank(x)? {
            return Err(c.bad_arg("repeats", "must have an item for each dimension"));
        }
        out(tile(b, x, &repeats)?)
    }),
    composite!("aten::tile(Tensor self, SymInt[] dims) -> Tensor", |b, c| {
        let x = c.value("self")?;
        let mut repeats = c.syms("dims")?;
        while repeats.len() < b.rank(x)? {
            repeats.insert(0, SymExpr::ONE);
        }
        out(tile(b, x, &repeats)?)
    }),
    composite!(
        "aten::repeat_interleave.self_int(Tensor self, SymInt repeats, int? dim=None, *, SymInt? output_size=None) -> Tensor",
        repeat_interleave
    ),
    composite!("aten::flip(Tensor self, int[] dims) -> Tensor", |b, c| {
        let mut x = c.value("self")?;
        for d in shape::dims(c, "dims", b.rank(x)?)? {
            x = if b.rank(x)? == 0 { x } else { shape::flip(b, x, d)? };
        }
        out(x)
    }),
    composite!("aten::flipud(Tensor self) -> Tensor", |b, c| {
        let x = c.value("self")?;
        out(shape::flip(b, x, 0)?)
    }),
    composite!("aten::fliplr(Tensor self) -> Tensor", |b, c| {
        let x = c.value("self")?;
        out(shape::flip(b, x, 1)?)
    }),
    composite!("aten::rot90(Tensor self, int k=1, int[] dims=[0, 1]) -> Tensor", rot90),
    composite!("aten::roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor", roll),
    composite!(
        "aten::diff(Tensor self, int n=1, int dim=-1, Tensor? prepend=None, Tensor? append=None) -> Tensor",
        diff
    ),
    composite!("aten::meshgrid(Tensor[] tensors) -> Tensor[]", |b, c| meshgrid(b, c, false)),
    composite!("aten::meshgrid.indexing(Tensor[] tensors, *, str indexing) -> Tensor[]", |b, c| {
        let swapped = c.opt_str("indexing")? == Some("xy");
        meshgrid(b, c, swapped)
    }),
    composite!("aten::cartesian_prod(Tensor[] tensors) -> Tensor", |b, c| {
        let tensors = c.values("tensors")?;
        if let [one] = tensors[..] {
            return out(one);
        }
        let grids = meshgrid(b, c, false)?;
        let mut columns = Vec::new();
        for v in grids {
            let n = numel(&b.sizes(v)?);
            columns.push(b.reshape(v, &[n, SymExpr::ONE])?);
        }
        out(join(b, c, &columns, 1)?)
    }),
];

/// Casts to the common dtype and concatenates. Vectors without elements, which PyTorch skips, are dropped.
fn join(b: &mut Builder<'_>, c: &Call<'_>, list: &[ValueId], d: usize) -> Result<ValueId, OpError> {
    let operands: Vec<Arg> = list.iter().map(|&v| Arg::Value(v)).collect();
    let dtype = b.result_type(&operands)?;
    let mut parts = Vec::new();
    for &v in list {
        let legacy = matches!(&b.sizes(v)?[..], [n] if *n == SymExpr::ZERO);
        if !legacy {
            parts.push(b.cast(v, dtype)?);
        }
    }
    match (parts.is_empty(), list.first()) {
        (false, _) => shape::cat(b, &parts, d),
        (true, Some(&v)) => b.cast(v, dtype),
        (true, None) => Err(c.bad_arg("tensors", "is empty")),
    }
}

fn cat(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let list = c.values("tensors")?;
    let mut rank = 1;
    for &v in &list {
        rank = rank.max(b.rank(v)?);
    }
    let d = shape::dim(c, "dim", rank)?;
    out(join(b, c, &list, d)?)
}

fn lifted(b: &mut Builder<'_>, c: &Call<'_>, rank: usize) -> Result<Vec<ValueId>, OpError> {
    let list = c.values("tensors")?;
    if list.is_empty() {
        return Err(c.bad_arg("tensors", "is empty"));
    }
    list.into_iter().map(|v| at_least(b, v, rank)).collect()
}

/// Every tensor is padded along `dim` to a multiple of `num_chunks`, cut in as many chunks, what follows `dim`
/// flattened; chunks of one number lie side by side.
fn chunk_cat(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let tensors = c.values("tensors")?;
    let chunks = c.int("num_chunks")?;
    let first = *tensors.first().ok_or_else(|| c.bad_arg("tensors", "is empty"))?;
    let d = shape::dim(c, "dim", b.rank(first)?)?;
    let mut list = Vec::new();
    for v in tensors {
        let sizes = b.sizes_of_rank(v, d + 1..)?;
        let each = sizes[d].ceil_div(&SymExpr::from_i64(chunks));
        let mut high: Shape = sizes.iter().map(|_| SymExpr::ZERO).collect();
        let low = high.clone();
        high[d] = &each * chunks - &sizes[d];
        let padded = shape::pad(b, v, &low, &high, &vec![0; sizes.len()], 0)?;
        let rest = each * numel(&sizes[d + 1..]);
        let flat: Shape = sizes[..d].iter().cloned().chain([chunks.into(), rest]).collect();
        list.push(b.reshape(padded, &flat)?);
    }
    out(join(b, c, &list, d + 1)?)
}

fn block_diag(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let list = lifted(b, c, 2)?;
    let operands: Vec<Arg> = list.iter().map(|&v| Arg::Value(v)).collect();
    let dtype = b.result_type(&operands)?;
    let mut total = SymExpr::ZERO;
    for &v in &list {
        total = total + &b.sizes(v)?[1];
    }
    let (mut rows, mut before) = (Vec::new(), SymExpr::ZERO);
    for v in list {
        let v = b.cast(v, dtype)?;
        let n = b.sizes(v)?[1].clone();
        let after = &total - &before - &n;
        let (low, high) = ([SymExpr::ZERO, before.clone()], [SymExpr::ZERO, after]);
        rows.push(shape::pad(b, v, &low, &high, &[0, 0], 0)?);
        before = before + n;
    }
    out(shape::cat(b, &rows, 0)?)
}

/// The whole tensor side by side: each dimension gets a new one before it, broadcast and merged.
pub(super) fn tile(b: &mut Builder<'_>, x: ValueId, repeats: &[SymExpr]) -> Result<ValueId, OpError> {
    let have = b.sizes(x)?;
    let lead = repeats.len() - have.len();
    let (mut apart, mut wide, mut merged) = (Shape::new(), Shape::new(), Shape::new());
    for (d, times) in repeats.iter().enumerate() {
        let n = d.checked_sub(lead).map_or(SymExpr::ONE, |d| have[d].clone());
        apart.extend([SymExpr::ONE, n.clone()]);
        wide.extend([times.clone(), n.clone()]);
        merged.push(n * times);
    }
    let x = b.reshape(x, &apart)?;
    let x = b.expand(x, &wide)?;
    b.reshape(x, &merged)
}

fn repeat_interleave(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let mut x = c.value("self")?;
    let times = c.sym("repeats")?;
    let rank = b.rank(x)?;
    let d = match c.opt_int("dim")? {
        Some(d) if rank > 0 => c.dim(d, rank)?,
        _ => {
            let n = numel(&b.sizes(x)?);
            x = b.reshape(x, &[n])?;
            0
        }
    };
    let n = b.sizes(x)?[d].clone();
    let apart = b.unsqueeze(x, d + 1)?;
    let mut wide = b.sizes(apart)?;
    wide[d + 1] = times.clone();
    let wide = b.expand(apart, &wide)?;
    let mut sizes = b.sizes(x)?;
    sizes[d] = n * times;
    out(b.reshape(wide, &sizes)?)
}

fn rot90(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let x = c.value("self")?;
    let rank = b.rank(x)?;
    let plane = shape::dims(c, "dims", rank)?;
    let [d0, d1] = plane[..] else { return Err(c.bad_arg("dims", "must name two dimensions")) };
    out(match c.int("k")?.rem_euclid(4) {
        1 => {
            let x = shape::flip(b, x, d1)?;
            shape::swap(b, x, d0, d1)?
        }
        2 => {
            let x = shape::flip(b, x, d0)?;
            shape::flip(b, x, d1)?
        }
        3 => {
            let x = shape::flip(b, x, d0)?;
            shape::swap(b, x, d0, d1)?
        }
        _ => x,
    })
}

/// Dimension `d` turned by `by` places: the last ones come first.
pub(super) fn roll_dim(b: &mut Builder<'_>, x: ValueId, d: usize, by: &SymExpr) -> Result<ValueId, OpError> {
    let n = b.sizes(x)?[d].clone();
    if n == SymExpr::ZERO {
        return Ok(x);
    }
    // Without elements there is nothing to turn, and no remainder.
    let turns = shape::simplify(b, n.sym_max(&SymExpr::ONE));
    let by = shape::simplify(b, by.modulo(&turns));
    if by == SymExpr::ZERO {
        return Ok(x);
    }
    let tail = b.slice(x, d, &n - &by, by.clone(), 1)?;
    let head = b.slice(x, d, SymExpr::ZERO, &n - &by, 1)?;
    shape::cat(b, &[tail, head], d)
}

fn roll(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let x = c.value("self")?;
    let sizes = b.sizes(x)?;
    let shifts = c.syms("shifts")?;
    let list = c.ints("dims")?;
    if list.is_empty() {
        let [by] = &shifts[..] else { return Err(c.bad_arg("shifts", "must have one item without `dims`")) };
        let flat = b.reshape(x, &[numel(&sizes)])?;
        let rolled = roll_dim(b, flat, 0, by)?;
        return out(b.reshape(rolled, &sizes)?);
    }
    if list.len() != shifts.len() {
        return Err(c.bad_arg("shifts", "must have an item for each of `dims`"));
    }
    let mut x = x;
    for (d, by) in list.into_iter().zip(&shifts) {
        let d = c.dim(d, sizes.len())?;
        x = if sizes.is_empty() { x } else { roll_dim(b, x, d, by)? };
    }
    out(x)
}

/// `x[i + 1] - x[i]`, `n` times; of truth values, whether they differ.
fn diff(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let x = c.value("self")?;
    let d = shape::dim(c, "dim", b.rank(x)?)?;
    if c.int("n")? == 0 {
        // Nothing is joined either.
        return out(x);
    }
    let list: Vec<ValueId> =
        [c.opt_value("prepend")?, Some(x), c.opt_value("append")?].into_iter().flatten().collect();
    let mut x = if list.len() > 1 { join(b, c, &list, d)? } else { x };
    for _ in 0..c.int("n")? {
        let n = b.sizes_of_rank(x, d + 1..)?[d].clone();
        if n == SymExpr::ZERO {
            break;
        }
        let pairs = shape::simplify(b, (&n - 1).sym_max(&SymExpr::ZERO));
        let high = b.slice(x, d, SymExpr::ONE, pairs.clone(), 1)?;
        let low = b.slice(x, d, SymExpr::ZERO, pairs, 1)?;
        let op = if b.dtype(x)? == ir_core::DType::Bool { ScalarOp::Ne } else { ScalarOp::Sub };
        x = b.scalar_op(op, &[high.into(), low.into()])?;
    }
    out(x)
}

fn meshgrid(b: &mut Builder<'_>, c: &Call<'_>, swapped: bool) -> Made {
    let mut tensors = c.values("tensors")?;
    // `xy` counts columns before rows: the first two tensors are exchanged, and so are their grids.
    let swap = swapped && tensors.len() > 1;
    if swap {
        tensors.swap(0, 1);
    }
    let mut sizes = Shape::new();
    for &v in &tensors {
        sizes.push(numel(&b.sizes(v)?));
    }
    let mut outs = crate::Outs::new();
    for (d, &v) in tensors.iter().enumerate() {
        let v = shape::along(b, v, d, tensors.len())?;
        outs.push(b.expand(v, &sizes)?);
    }
    if swap {
        outs.swap(0, 1);
    }
    Ok(outs)
}
