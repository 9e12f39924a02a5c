//! Operators whose results have a data-dependent length: repetitions by a tensor, counts of integers, splits at positions
//! in a tensor. All of them use [`Builder::counted`].

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Scalar, SymExpr, numel};
use kernel_ir::ReduceOp;

use crate::ops::common::one;
use crate::ops::indexing::index::flat;
use crate::ops::shapes::shape;
use crate::{Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::repeat_interleave.Tensor(Tensor repeats, *, SymInt? output_size=None) -> Tensor",
        |b, c| {
            let repeats = c.value("repeats")?;
            let dtype = b.dtype(repeats)?;
            let places = repeated(b, c, repeats)?;
            one(b.cast(places, dtype)?)
        }
    ),
    composite!(
        "aten::repeat_interleave.self_Tensor(Tensor self, Tensor repeats, int? dim=None, *, SymInt? output_size=None) -> Tensor",
        repeat_interleave
    ),
    composite!("aten::bincount(Tensor self, Tensor? weights=None, SymInt minlength=0) -> Tensor", bincount),
    composite!(
        "aten::tensor_split.tensor_indices_or_sections(Tensor(a -> *) self, Tensor tensor_indices_or_sections, int dim=0) -> Tensor(a)[]",
        tensor_split
    ),
];

/// For every position of the result the number of the element that is there, `[sum(repeats)]`, `i64`.
fn repeated(b: &mut Builder<'_>, c: &Call<'_>, repeats: ValueId) -> Result<ValueId, OpError> {
    let dtype = b.dtype(repeats)?;
    if b.rank(repeats)? != 1 || !matches!(dtype, DType::I32 | DType::I64) {
        return Err(c.bad_arg("repeats", "must be a vector of 32- or 64-bit integers"));
    }
    let repeats = b.cast(repeats, DType::I64)?;
    let fits = b.ge(repeats, 0i64)?;
    let fits = b.reduce(ReduceOp::All, fits, &[0], false)?;
    b.assert(fits.into(), "repeats can not be negative");
    let ends = b.call1("prims.cumsum", vec![repeats.into(), 0i64.into()])?;
    let places = match c.opt_sym("output_size")? {
        Some(n) => shape::iota(b, &n, 0.into(), 1.into())?,
        None => {
            let total = b.reduce(ReduceOp::Sum, repeats, &[0], false)?;
            b.counted(total)?
        }
    };
    if b.sizes(repeats)?[0] == SymExpr::ZERO {
        return Ok(places);
    }
    let found = vec![ends.into(), places.into(), false.into(), true.into()];
    b.call1("aten.searchsorted.Tensor", found)
}

fn repeat_interleave(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let mut x = c.value("self")?;
    let rank = b.rank(x)?;
    let d = match c.opt_int("dim")? {
        Some(d) if rank > 0 => c.dim(d, rank)?,
        _ => {
            x = flat(b, x)?;
            0
        }
    };
    let n = b.sizes(x)?[d].clone();
    let repeats = flat(b, c.value("repeats")?)?;
    let repeats = b.expand(repeats, &[n])?;
    let places = repeated(b, c, repeats)?;
    one(b.call1("aten.index_select.default", vec![x.into(), (d as i64).into(), places.into()])?)
}

/// How often each integer occurs, or the sum of the weights where it does: `[max(self) + 1]`, at least `minlength`.
fn bincount(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let meta = b.meta(x)?.clone();
    let shortest = c.sym("minlength")?;
    if meta.rank() != 1 || !meta.dtype.is_int() {
        return Err(c.bad_arg("self", "must be a vector of integers that are not negative"));
    }
    let weights = c.opt_value("weights")?;
    let dtype = match weights {
        None => DType::I64,
        Some(w) if b.dtype(w)? == DType::F32 => DType::F32,
        Some(_) => DType::F64,
    };
    if numel(&meta.sizes) == SymExpr::ZERO {
        return one(b.full(&[shortest], 0i64, DType::I64)?);
    }
    let x = b.cast(x, DType::I64)?;
    let largest = b.reduce(ReduceOp::Max, x, &[0], false)?;
    let length = b.add(largest, 1i64)?;
    let length = b.maximum(length, shortest)?;
    let numbers = b.counted(length)?;
    let zeros = b.mul(numbers, 0i64)?;
    let zeros = b.cast(zeros, dtype)?;
    let values = match weights {
        Some(w) => b.cast(w, dtype)?,
        None => b.full(&meta.sizes, 1i64, dtype)?,
    };
    one(crate::ops::indexing::scatter::put(b, zeros, &[x], 0, values, "add")?)
}

/// Sections by one number, or at the positions of a vector. How many parts there are must not depend on the data; how long
/// each is may.
fn tensor_split(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let places = c.value("tensor_indices_or_sections")?;
    let rank = b.rank(places)?;
    let known = match (rank, constant(b, places)) {
        (_, Some(known)) => known,
        (1, None) => return split_at(b, c, places),
        _ => return Err(c.unsupported("a number of sections that depends on the data; give a number")),
    };
    let mut args = vec![c.arg("self").clone()];
    let target = match (rank, known.as_slice()) {
        (0, [sections]) => {
            args.push((*sections).into());
            "aten.tensor_split.sections"
        }
        (1, list) => {
            args.push(list.into());
            "aten.tensor_split.indices"
        }
        _ => return Err(c.invalid("takes one number of sections, or a vector of places")),
    };
    args.push(c.arg("dim").clone());
    b.call(target, args)
}

/// Parts from each position of a vector to the next.
fn split_at(b: &mut Builder<'_>, c: &Call<'_>, places: ValueId) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let sizes = b.sizes(x)?;
    let d = c.dim(c.int("dim")?, sizes.len())?;
    let Some(n) = sizes.get(d).cloned() else { return Err(c.invalid("a 0-dim tensor has no parts")) };
    let count = shape::known(c, &b.sizes(places)?[0].clone(), "number of places")?;
    let places = b.cast(places, DType::I64)?;
    let behind = b.add(places, n.clone())?;
    let negative = b.lt(places, 0i64)?;
    let places = b.select(negative, behind, places)?;
    let places = b.maximum(places, 0i64)?;
    let places = b.minimum(places, n.clone())?;
    let mut start = b.full(&[], 0i64, DType::I64)?;
    let mut outs = Outs::new();
    for i in 0..=count {
        let end = if i < count {
            shape::select(b, places, 0, i.into())?
        } else {
            let zero = b.full(&[], 0i64, DType::I64)?;
            b.add(zero, n.clone())?
        };
        let length = b.sub(end, start)?;
        let length = b.maximum(length, 0i64)?;
        let numbers = b.counted(length)?;
        let at = b.add(numbers, start)?;
        outs.push(b.call1("aten.index_select.default", vec![x.into(), (d as i64).into(), at.into()])?);
        start = end;
    }
    Ok(outs)
}

/// The integers of a tensor that constants of the graph make.
fn constant(b: &Builder<'_>, v: ValueId) -> Option<Vec<i64>> {
    let graph = b.graph();
    let (target, args) = graph.nodes[graph.values[v].def].as_call()?;
    let operand = |n: usize| match args.get(n) {
        Some(Arg::Value(v)) => constant(b, *v),
        _ => None,
    };
    let int = |n: usize| match args.get(n) {
        Some(Arg::Int(e)) => e.as_const(),
        Some(other) => other.as_scalar().map(Scalar::as_i64),
        None => None,
    };
    match target {
        "prims.full" => {
            let n = ir_core::numel(&graph.meta(v)?.sizes).as_const().filter(|n| *n < 1 << 16)?;
            Some(vec![int(1)?; usize::try_from(n).ok()?])
        }
        "prims.iota" => {
            let n = int(0).filter(|n| *n < 1 << 16)?;
            let (start, step) = (int(1)?, int(2)?);
            Some((0..n).map(|i| start.wrapping_add(step.wrapping_mul(i))).collect())
        }
        "prims.reshape" | "prims.detach" => operand(0),
        "prims.convert" if graph.meta(v)?.dtype.is_int() => operand(0),
        "prims.cat" => match args.first()? {
            Arg::List(items) => {
                let part = |a: &Arg| if let Arg::Value(v) = a { constant(b, *v) } else { None };
                Some(items.iter().map(part).collect::<Option<Vec<_>>>()?.concat())
            }
            _ => None,
        },
        _ => None,
    }
}
