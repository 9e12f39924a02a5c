//! Sharding rules of the prims with indices from data.
//!
//! A dimension that is read or written at indices may be in parts: every rank reads where an index lies in its part and gives
//! zeros elsewhere, so that results are summands; it writes where an index lies in its part alone. Both are how a vocabulary in
//! parts is looked up and its scores are picked (Shoeybi et al. 2019, Megatron-LM).

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Scalar, SymExpr};
use kernel_ir::Combine;

use super::{same, way};
use crate::ops::primitive::index::reduce_of;
use crate::shard_rule::{LocalPart, Placement, Way, all, operands};
use crate::{Builder, Call, LocalCall, LowerCall, OpError};

type Ways = Result<Vec<Way>, OpError>;

/// What ranks that read nothing else but zeros have of a result.
fn summand(dtype: DType) -> Placement {
    Placement::Partial(if dtype == DType::Bool { Combine::Max } else { Combine::Sum })
}

/// A way with a dimension in parts that is read or written at indices.
fn indexed(size: &SymExpr, operands: Vec<Placement>, result: Placement) -> Way {
    // That a part is empty has to be seen.
    Way { ranges: true, even: size.as_const().is_none(), ..way(operands, vec![result]) }
}

/// Dimensions that operand and index have in common; along `dim` the index alone, or the operand alone.
pub(in crate::ops) fn gather(call: &LowerCall<'_>) -> Ways {
    let (a, index) = (call.meta("a")?, call.meta("index")?);
    let dim = call.call.dim(call.call.int("dim")?, a.rank())?;
    let parts = vec![Placement::shard(dim), Placement::Replicate];
    let mut ways = vec![indexed(&a.sizes[dim], parts, summand(a.dtype))];
    for d in 0..a.rank().min(index.rank()) {
        let shard = Placement::shard(d);
        if d == dim {
            ways.push(way(vec![Placement::Replicate, shard.clone()], vec![shard]));
        } else if a.sizes[d] == index.sizes[d] {
            ways.push(way(all(2, &shard), vec![shard]));
        }
    }
    Ok(ways)
}

/// Dimensions of the operand that are not indexed, those of the indices, and those that are indexed.
pub(in crate::ops) fn index(call: &LowerCall<'_>) -> Ways {
    let (places, a) = (Places::of(call)?, call.meta("a")?);
    let mut ways = Vec::new();
    for d in places.indexed() {
        let mut operands = all(1 + places.indices, &Placement::Replicate);
        operands[0] = Placement::shard(d);
        ways.push(indexed(&a.sizes[d], operands, summand(a.dtype)));
    }
    for (from, to) in places.kept() {
        let mut operands = all(1 + places.indices, &Placement::Replicate);
        operands[0] = Placement::shard(from);
        ways.push(way(operands, vec![Placement::shard(to)]));
    }
    for d in 0..places.rank {
        let mut operands = all(1 + places.indices, &Placement::shard(d));
        operands[0] = Placement::Replicate;
        ways.push(way(operands, vec![Placement::shard(places.start + d)]));
    }
    Ok(ways)
}

/// Dimensions that all operands have in common; the one that is written along, where what a rank does not write can be something
/// that changes nothing.
pub(in crate::ops) fn scatter(call: &LowerCall<'_>) -> Ways {
    let metas = ["a", "index", "src"].map(|name| call.meta(name));
    let [Ok(a), Ok(index), Ok(src)] = metas else { return Ok(Vec::new()) };
    let dim = call.call.dim(call.call.int("dim")?, a.rank())?;
    let common = |d: &usize| {
        *d != dim && index.sizes.get(*d) == a.sizes.get(*d) && src.sizes.get(*d) == a.sizes.get(*d)
    };
    let mut ways: Vec<Way> = (0..a.rank())
        .filter(common)
        .map(|d| way(all(3, &Placement::shard(d)), vec![Placement::shard(d)]))
        .collect();
    if call.call.opt_str("mode")? == Some("add") && index.sizes.get(dim) == src.sizes.get(dim) && a.rank() > 0
    {
        // Every rank adds its part of the source.
        let sum = Placement::Partial(Combine::Sum);
        let part = Placement::shard(dim);
        ways.push(way(vec![sum.clone(), part.clone(), part], vec![sum]));
    }
    if neutral(&call.call, a.dtype)?.is_some() {
        let mut operands = all(3, &Placement::Replicate);
        operands[0] = Placement::shard(dim);
        ways.push(indexed(&a.sizes[dim], operands, Placement::shard(dim)));
    }
    Ok(ways)
}

/// Dimensions of the tensor that are not indexed; those of the indices, where values are added: every rank then adds its own
/// ones, to a tensor that is a sum itself. Those that are indexed, as in `scatter`.
pub(in crate::ops) fn index_put(call: &LowerCall<'_>) -> Ways {
    let places = Places::of(call)?;
    let count = operands(call.call.args).len();
    let mut ways = Vec::new();
    for (tensor, values) in places.kept() {
        let mut operands = all(count, &Placement::Replicate);
        operands[0] = Placement::shard(tensor);
        operands[count - 1] = Placement::shard(values);
        ways.push(way(operands, vec![Placement::shard(tensor)]));
    }
    if call.call.opt_str("mode")? == Some("add") {
        for d in 0..places.rank {
            let mut operands = all(count, &Placement::shard(d));
            operands[0] = Placement::Partial(Combine::Sum);
            operands[count - 1] = Placement::shard(places.start + d);
            ways.push(way(operands, vec![Placement::Partial(Combine::Sum)]));
        }
    }
    let a = call.meta("a")?;
    if neutral(&call.call, a.dtype)?.is_some() {
        for d in places.indexed() {
            let mut operands = all(count, &Placement::Replicate);
            operands[0] = Placement::shard(d);
            ways.push(indexed(&a.sizes[d], operands, Placement::shard(d)));
        }
    }
    Ok(ways)
}

/// What changes nothing where it is written in the call's mode.
fn neutral(call: &Call<'_>, dtype: DType) -> Result<Option<Scalar>, OpError> {
    let mode = call.opt_str("mode")?.unwrap_or("write");
    Ok(reduce_of(mode).flatten().map(|op| op.identity(dtype)))
}

/// Indices into a rank's part of a dimension.
struct Own {
    /// Places in the part: any one where the index lies in another part.
    place: ValueId,
    /// Whether it lies in this one.
    is_own: ValueId,
}

impl Own {
    /// `elsewhere` gives the place of an index that lies in another part.
    fn of(
        b: &mut Builder<'_>,
        index: ValueId,
        part: &LocalPart,
        dim: usize,
        elsewhere: impl Fn(&mut Builder<'_>, ValueId, &SymExpr) -> Result<Arg, OpError>,
    ) -> Result<Own, OpError> {
        let size = &part.sizes[dim];
        // An index that lies in no part is an error, as in the whole call.
        let whole = part.whole[dim].clone();
        let index = b.call1("prims.check", vec![index.into(), whole.into(), (dim as i64).into()])?;
        let place = b.sub(index, part.offsets[dim].clone())?;
        let (behind, before) = (b.ge(place, 0i64)?, b.lt(place, size.clone())?);
        let is_own = b.and(behind, before)?;
        let other = elsewhere(b, index, size)?;
        Ok(Own { place: b.select(is_own, place, other)?, is_own })
    }

    /// For reading: others read the first element.
    fn reading(b: &mut Builder<'_>, index: ValueId, part: &LocalPart, dim: usize) -> Result<Own, OpError> {
        Own::of(b, index, part, dim, |_, _, _| Ok(0i64.into()))
    }

    /// For writing: others write what changes nothing, all over the part, so that they do not wait for one another.
    fn writing(b: &mut Builder<'_>, index: ValueId, part: &LocalPart, dim: usize) -> Result<Own, OpError> {
        Own::of(b, index, part, dim, |b, index, size| Ok(b.rem(index, size.clone())?.into()))
    }
}

/// The indices of `index` and `index_put` in a rank's part, and whether all of an element's are, where any dimension is in parts.
fn own_indices(
    b: &mut Builder<'_>,
    call: &LocalCall<'_>,
    part: &LocalPart,
    own: fn(&mut Builder<'_>, ValueId, &LocalPart, usize) -> Result<Own, OpError>,
) -> Result<(Vec<ValueId>, Option<ValueId>), OpError> {
    let start = usize::try_from(call.call.int("start")?).unwrap_or(0);
    let (mut places, mut all_own) = (Vec::new(), None);
    for (k, index) in call.local().values("indices")?.into_iter().enumerate() {
        if !part.is_split(start + k) {
            places.push(index);
            continue;
        }
        let Own { place, is_own } = own(b, index, part, start + k)?;
        places.push(place);
        all_own = Some(match all_own {
            Some(others) => b.and(others, is_own)?,
            None => is_own,
        });
    }
    Ok((places, all_own))
}

/// Whether a rank has nothing of a tensor.
fn is_empty(part: &LocalPart) -> bool {
    part.sizes.contains(&SymExpr::ZERO)
}

/// What the rank has of the tensor that is read or written; nothing where it has all that indices may name.
fn in_parts<'a>(
    call: &'a LocalCall<'_>,
    indexed: impl IntoIterator<Item = usize>,
) -> Result<Option<&'a LocalPart>, OpError> {
    let part = call.operands.first().ok_or_else(|| call.call.invalid("has no operand"))?;
    Ok(indexed.into_iter().any(|d| part.is_split(d)).then_some(part))
}

/// The dimension along which `gather` and `scatter` go.
fn along(call: &LocalCall<'_>) -> Result<usize, OpError> {
    call.call.dim(call.call.int("dim")?, call.operands.first().map_or(0, |p| p.whole.len()))
}

/// The dimensions that `index` and `index_put` name.
fn named(call: &LocalCall<'_>) -> Result<std::ops::Range<usize>, OpError> {
    let start = usize::try_from(call.call.int("start")?).unwrap_or(0);
    Ok(start..start + call.call.values("indices")?.len())
}

/// Zeros where a rank reads nothing.
fn zeros(b: &mut Builder<'_>, call: &LocalCall<'_>) -> Result<ValueId, OpError> {
    let result = call.results.first().ok_or_else(|| call.call.invalid("has no result"))?;
    let dtype = b.dtype(call.local().value("a")?)?;
    b.full(&result.sizes, Scalar::zero(dtype), dtype)
}

/// The condition of the indices for each element that they name, with `rest` dimensions behind.
fn for_elements(b: &mut Builder<'_>, is_own: ValueId, rest: usize) -> Result<ValueId, OpError> {
    (0..rest).try_fold(is_own, |v, _| {
        let rank = b.rank(v)?;
        b.unsqueeze(v, rank)
    })
}

pub(in crate::ops) fn local_gather(b: &mut Builder<'_>, call: &LocalCall<'_>) -> Result<ValueId, OpError> {
    let dim = along(call)?;
    let Some(part) = in_parts(call, [dim])? else { return same(b, call) };
    if is_empty(part) {
        return zeros(b, call);
    }
    let (a, index) = (call.local().value("a")?, call.local().value("index")?);
    let Own { place, is_own } = Own::reading(b, index, part, dim)?;
    let read = b.call1("prims.gather", vec![a.into(), (dim as i64).into(), place.into()])?;
    let zero = Scalar::zero(b.dtype(a)?);
    b.select(is_own, read, zero)
}

pub(in crate::ops) fn local_index(b: &mut Builder<'_>, call: &LocalCall<'_>) -> Result<ValueId, OpError> {
    let Some(part) = in_parts(call, named(call)?)? else { return same(b, call) };
    if is_empty(part) {
        return zeros(b, call);
    }
    let (places, is_own) = own_indices(b, call, part, Own::reading)?;
    let a = call.local().value("a")?;
    let read = b.call_op(call.call.op, call.with("indices", Arg::values(places)))?;
    let (Some(&read), Some(is_own)) = (read.first(), is_own) else { return same(b, call) };
    let is_own = for_elements(b, is_own, part.whole.len() - named(call)?.end)?;
    let zero = Scalar::zero(b.dtype(a)?);
    b.select(is_own, read, zero)
}

pub(in crate::ops) fn local_scatter(b: &mut Builder<'_>, call: &LocalCall<'_>) -> Result<ValueId, OpError> {
    let dim = along(call)?;
    let [a, index, mut src] = {
        let [a, index, src] = ["a", "index", "src"].map(|name| call.local().value(name));
        [a?, index?, src?]
    };
    let (Some(part), Some(neutral)) = (in_parts(call, [dim])?, neutral(&call.call, b.dtype(a)?)?) else {
        return same(b, call);
    };
    if is_empty(part) {
        return Ok(a);
    }
    let Own { place, is_own } = Own::writing(b, index, part, dim)?;
    for (d, size) in b.sizes(index)?.into_iter().enumerate() {
        if b.sizes(src)?[d] != size {
            src = b.slice(src, d, SymExpr::ZERO, size, 1)?;
        }
    }
    let src = b.select(is_own, src, neutral)?;
    let mode = call.call.arg("mode").clone();
    b.call1("prims.scatter", vec![a.into(), (dim as i64).into(), place.into(), src.into(), mode])
}

pub(in crate::ops) fn local_index_put(b: &mut Builder<'_>, call: &LocalCall<'_>) -> Result<ValueId, OpError> {
    let (a, values) = (call.local().value("a")?, call.local().value("values")?);
    let (Some(part), Some(neutral)) = (in_parts(call, named(call)?)?, neutral(&call.call, b.dtype(a)?)?)
    else {
        return same(b, call);
    };
    if is_empty(part) {
        return Ok(a);
    }
    let (places, is_own) = own_indices(b, call, part, Own::writing)?;
    let Some(is_own) = is_own else { return same(b, call) };
    let is_own = for_elements(b, is_own, part.whole.len() - named(call)?.end)?;
    let values = b.select(is_own, values, neutral)?;
    let (start, mode) = (call.call.arg("start").clone(), call.call.arg("mode").clone());
    b.call1("prims.index_put", vec![a.into(), Arg::values(places), start, values.into(), mode])
}

/// What `index` and `index_put` replace: `indices` dimensions from `start` by the `rank` ones of the indices.
struct Places {
    of: usize,
    start: usize,
    indices: usize,
    rank: usize,
}

impl Places {
    fn of(call: &LowerCall<'_>) -> Result<Places, OpError> {
        let indices = call.call.values("indices")?;
        let rank = indices.first().map_or(Ok(0), |v| call.meta_of(*v).map(|m| m.rank()))?;
        let start = usize::try_from(call.call.int("start")?).unwrap_or(0);
        Ok(Places { of: call.meta("a")?.rank(), start, indices: indices.len(), rank })
    }
    /// The dimensions that are indexed.
    fn indexed(&self) -> std::ops::Range<usize> {
        self.start..self.start + self.indices
    }
    /// The dimensions that are not indexed, in the tensor and in what is read of it.
    fn kept(&self) -> Vec<(usize, usize)> {
        let behind = self.start + self.indices;
        let lead = (0..self.start).map(|d| (d, d));
        lead.chain((behind..self.of).map(|d| (d, d - self.indices + self.rank))).collect()
    }
}
