//! Helpers that the families of views, indexing, windows and norms share: wrapped dimensions, symbolic starts and
//! lengths, and one-line forms of the shape prims. Holds no entries.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Shape, SymExpr, numel};
use smallvec::smallvec;

use crate::{Builder, Call, OpError, Outs};

/// What a decomposition returns.
pub(in crate::ops) type Made = Result<Outs, OpError>;

/// One result.
pub(in crate::ops) fn out(v: ValueId) -> Made {
    Ok(smallvec![v])
}

/// The expression with what the ranges of the graph's symbols allow taken out (`min(s0, s0 + 1)` is `s0`).
pub(in crate::ops) fn simplify(b: &Builder<'_>, e: SymExpr) -> SymExpr {
    if e.as_const().is_some() { e } else { e.simplify(&b.graph().symbols) }
}

/// A position within a dimension of size `n`, counted from the end where it is negative.
pub(in crate::ops) fn wrap(b: &Builder<'_>, at: SymExpr, n: &SymExpr) -> SymExpr {
    let known = &b.graph().symbols;
    match ir_core::Relation::NonNegative.decided(&at, &known) {
        Some(true) => at,
        Some(false) => simplify(b, at + n),
        None => {
            let negative = (SymExpr::ZERO - &at).sym_max(&SymExpr::ZERO).sym_min(&SymExpr::ONE);
            simplify(b, at + n * negative)
        }
    }
}

/// A slice's bound: wrapped, then moved into `low..=n`.
pub(in crate::ops) fn clamp(b: &Builder<'_>, at: SymExpr, low: &SymExpr, n: &SymExpr) -> SymExpr {
    let at = wrap(b, at, n);
    simplify(b, at.sym_min(n).sym_max(low))
}

/// The dimensions that a list argument names, wrapped.
pub(in crate::ops) fn dims(call: &Call<'_>, name: &str, rank: usize) -> Result<Vec<usize>, OpError> {
    let list: Vec<usize> =
        call.ints(name)?.into_iter().map(|d| call.dim(d, rank)).collect::<Result<_, _>>()?;
    let mut seen = vec![false; rank.max(1)];
    for &d in &list {
        if std::mem::replace(&mut seen[d], true) {
            return Err(call.bad_arg(name, "names a dimension twice"));
        }
    }
    Ok(list)
}

/// A dimension argument, wrapped.
pub(in crate::ops) fn dim(call: &Call<'_>, name: &str, rank: usize) -> Result<usize, OpError> {
    call.dim(call.int(name)?, rank)
}

/// A number of elements as an operand of float arithmetic.
pub(in crate::ops) fn count(n: &SymExpr) -> Arg {
    match n.as_const() {
        Some(c) => Arg::from(c as f64),
        None => Arg::Int(n.clone()),
    }
}

/// A size that must be a number, for rules that unroll over it.
pub(in crate::ops) fn known(call: &Call<'_>, n: &SymExpr, what: &str) -> Result<i64, OpError> {
    n.as_const()
        .ok_or_else(|| call.unsupported(format!("a symbolic {what} (`{n}`); export it with a fixed one")))
}

/// Drops dimension `d`, which has size 1.
pub(in crate::ops) fn drop_dim(b: &mut Builder<'_>, v: ValueId, d: usize) -> Result<ValueId, OpError> {
    let mut sizes = b.sizes(v)?;
    if d < sizes.len() {
        sizes.remove(d);
    }
    b.reshape(v, &sizes)
}

/// Element `at` of dimension `d`, without the dimension.
pub(in crate::ops) fn select(
    b: &mut Builder<'_>,
    v: ValueId,
    d: usize,
    at: SymExpr,
) -> Result<ValueId, OpError> {
    let one = b.slice(v, d, at, SymExpr::ONE, 1)?;
    drop_dim(b, one, d)
}

/// Dimension `from` moved to position `to`.
pub(in crate::ops) fn move_dim(
    b: &mut Builder<'_>,
    v: ValueId,
    from: usize,
    to: usize,
) -> Result<ValueId, OpError> {
    let mut order: Vec<usize> = (0..b.rank(v)?).collect();
    let d = order.remove(from);
    order.insert(to, d);
    b.permute(v, &order)
}

/// Exchanges two dimensions.
pub(in crate::ops) fn swap(b: &mut Builder<'_>, v: ValueId, x: usize, y: usize) -> Result<ValueId, OpError> {
    let mut order: Vec<usize> = (0..b.rank(v)?).collect();
    if x < order.len() && y < order.len() {
        order.swap(x, y);
    }
    b.permute(v, &order)
}

/// Dimension `d` backwards.
pub(in crate::ops) fn flip(b: &mut Builder<'_>, v: ValueId, d: usize) -> Result<ValueId, OpError> {
    let n = b.sizes_of_rank(v, d + 1..)?[d].clone();
    if n == SymExpr::ZERO || n == SymExpr::ONE {
        return Ok(v);
    }
    b.slice(v, d, &n - 1, n, -1)
}

/// The sizes of `v` with dimension `d` (of size `product(parts)`) replaced by `parts`.
pub(in crate::ops) fn split_dim(
    b: &mut Builder<'_>,
    v: ValueId,
    d: usize,
    parts: &[SymExpr],
) -> Result<ValueId, OpError> {
    let mut sizes = b.sizes(v)?;
    sizes.remove(d);
    sizes.insert_many(d, parts.iter().cloned());
    b.reshape(v, &sizes)
}

/// Dimensions `first..first + n` made one.
pub(in crate::ops) fn merge_dims(
    b: &mut Builder<'_>,
    v: ValueId,
    first: usize,
    n: usize,
) -> Result<ValueId, OpError> {
    let sizes = b.sizes(v)?;
    let merged = numel(&sizes[first..first + n]);
    let list: Shape =
        sizes[..first].iter().cloned().chain([merged]).chain(sizes[first + n..].iter().cloned()).collect();
    b.reshape(v, &list)
}

/// One value after another along `d`; equal dtypes.
pub(in crate::ops) fn cat(b: &mut Builder<'_>, list: &[ValueId], d: usize) -> Result<ValueId, OpError> {
    match list {
        [one] => Ok(*one),
        _ => b.call1("prims.cat", vec![Arg::values(list.iter().copied()), (d as i64).into()]),
    }
}

/// `value` around `v`: `low[d]` before and `high[d]` after dimension `d`; negative amounts cut.
pub(in crate::ops) fn pad(
    b: &mut Builder<'_>,
    v: ValueId,
    low: &[SymExpr],
    high: &[SymExpr],
    interior: &[i64],
    value: impl Into<ir_core::Scalar>,
) -> Result<ValueId, OpError> {
    let zero = |e: &[SymExpr]| e.iter().all(|e| *e == SymExpr::ZERO);
    if zero(low) && zero(high) && interior.iter().all(|i| *i == 0) {
        return Ok(v);
    }
    let value = value.into().to_class_of(b.dtype(v)?);
    b.call1("prims.pad", vec![v.into(), low.into(), high.into(), interior.into(), value.into()])
}

/// `0, 1, …, n - 1` along dimension `d` of `rank` dimensions, every other size being 1.
pub(in crate::ops) fn iota_at(
    b: &mut Builder<'_>,
    n: &SymExpr,
    d: usize,
    rank: usize,
) -> Result<ValueId, OpError> {
    iota(b, n, 0.into(), 1.into()).and_then(|v| {
        let mut sizes: Shape = std::iter::repeat_n(SymExpr::ONE, rank).collect();
        sizes[d] = n.clone();
        b.reshape(v, &sizes)
    })
}

/// `start + i * step` for `i` below `n`, as `i64`.
pub(in crate::ops) fn iota(
    b: &mut Builder<'_>,
    n: &SymExpr,
    start: SymExpr,
    step: SymExpr,
) -> Result<ValueId, OpError> {
    b.call1("prims.iota", vec![n.clone().into(), start.into(), step.into(), DType::I64.into()])
}

/// `v` reshaped so that its only dimension lies at `d` of `rank`, to broadcast against that many dimensions.
pub(in crate::ops) fn along(
    b: &mut Builder<'_>,
    v: ValueId,
    d: usize,
    rank: usize,
) -> Result<ValueId, OpError> {
    let n = numel(&b.sizes(v)?);
    let mut sizes: Shape = std::iter::repeat_n(SymExpr::ONE, rank).collect();
    sizes[d] = n;
    b.reshape(v, &sizes)
}

/// Elements of `a` at `indices` (no negative ones), which replace the dimensions from `start` on by their own.
pub(in crate::ops) fn index(
    b: &mut Builder<'_>,
    a: ValueId,
    indices: &[ValueId],
    start: usize,
) -> Result<ValueId, OpError> {
    b.call1("prims.index", vec![a.into(), Arg::values(indices.iter().copied()), (start as i64).into()])
}

/// Calls `visit` for every index of a shape, in row-major order.
pub(in crate::ops) fn for_each_index(sizes: &[usize], mut visit: impl FnMut(&[usize])) {
    if sizes.contains(&0) {
        return;
    }
    let mut at = vec![0; sizes.len()];
    loop {
        visit(&at);
        let Some(d) = (0..sizes.len()).rev().find(|&d| at[d] + 1 < sizes[d]) else { return };
        at[d] += 1;
        at[d + 1..].fill(0);
    }
}
