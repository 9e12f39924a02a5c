//! Cotangents of tensors that are read slice by slice: the steps of a recurrent layer, the heads of one product, the halves of a gate. Each
//! slice's gradient is the cotangent of the slice between zeros; the sum of several that share no element is their concatenation, whose
//! parts their producers can write in place, where a sum reads every slice's gradient for each element.
//!
//! Those of one slice that was taken several times are added first. Slices that overlap otherwise, that have a step, and whose places are no
//! numbers are added up as they are. Not here: the order in which cotangents are added (`joint`).

use fx_ir::{Arg, Graph, OriginId, ValueId};
use ir_core::{Scalar, SymExpr};
use prims::{Builder, OpError};

use crate::passes::matching::def_of;

/// The cotangent of a slice, and the same between zeros.
pub(super) struct Slice {
    dim: usize,
    start: i64,
    length: i64,
    value: ValueId,
    padded: ValueId,
}

impl Slice {
    /// That of a gradient which is something between zeros along one dimension.
    pub(super) fn of(graph: &Graph, g: ValueId) -> Option<Slice> {
        let call = def_of(graph, g, "prims.pad")?;
        let value = call.value("a").ok()?;
        let (low, high) = (call.syms("low").ok()?, call.syms("high").ok()?);
        let whole = call.ints("interior").ok()?.iter().all(|n| *n == 0);
        let zero = call.scalar("value").ok()?.as_f64() == 0.0 && !graph.meta(value)?.dtype.is_complex();
        let numbers = |list: &[SymExpr]| list.iter().map(SymExpr::as_const).collect::<Option<Vec<i64>>>();
        let (low, high) = (numbers(&low)?, numbers(&high)?);
        let mut moved = (0..low.len()).filter(|&d| low[d] != 0 || high[d] != 0);
        let (dim, none) = (moved.next()?, moved.next());
        let length = graph.meta(value)?.sizes.get(dim)?.as_const()?;
        let inside = whole && zero && none.is_none() && low[dim] >= 0 && high[dim] >= 0 && length > 0;
        inside.then_some(Slice { dim, start: low[dim], length, value, padded: g })
    }
}

/// The terms of the sum of gradients of slices, in the order in which they came: one for several that share no element.
pub(super) fn terms(
    graph: &mut Graph,
    (name, origin): (&str, OriginId),
    mut slices: Vec<Slice>,
) -> Result<Vec<ValueId>, OpError> {
    let mut terms = Vec::new();
    while let Some(first) = slices.first() {
        let dim = first.dim;
        let (own, others): (Vec<Slice>, Vec<Slice>) = slices.into_iter().partition(|s| s.dim == dim);
        slices = others;
        let padded: Vec<ValueId> = own.iter().map(|s| s.padded).collect();
        let mut b = Builder::new(graph, name, origin);
        let own = merged(&mut b, own)?;
        let apart = own.windows(2).all(|pair| pair[0].start + pair[0].length <= pair[1].start);
        match own.len() > 1 && apart {
            true => terms.push(joined(&mut b, dim, &own)?),
            false => terms.extend(padded),
        }
    }
    Ok(terms)
}

/// The slices in the order of their places, with those of the same place added up.
fn merged(b: &mut Builder<'_>, mut slices: Vec<Slice>) -> Result<Vec<Slice>, OpError> {
    slices.sort_by_key(|s| (s.start, s.length));
    let mut merged: Vec<Slice> = Vec::with_capacity(slices.len());
    for slice in slices {
        match merged.last_mut() {
            Some(last) if (last.start, last.length) == (slice.start, slice.length) => {
                last.value = b.add(last.value, slice.value)?;
            }
            _ => merged.push(slice),
        }
    }
    Ok(merged)
}

/// The concatenation of slices in the order of their places, with zeros between them.
fn joined(b: &mut Builder<'_>, dim: usize, slices: &[Slice]) -> Result<ValueId, OpError> {
    let whole = b.meta(slices[0].padded)?.clone();
    let end = whole.sizes[dim].as_const().unwrap_or(0);
    let mut parts = Vec::new();
    let mut at = 0;
    let ends = slices.iter().map(|s| (s.start, s.length, Some(s.value))).chain([(end, 0, None)]);
    for (start, length, value) in ends {
        if start > at {
            let mut sizes = whole.sizes.clone();
            sizes[dim] = SymExpr::from_i64(start - at);
            parts.push(b.full(&sizes, Scalar::zero(whole.dtype), whole.dtype)?);
        }
        parts.extend(value);
        at = start + length;
    }
    b.call1("prims.cat", vec![Arg::values(parts), (dim as i64).into()])
}
