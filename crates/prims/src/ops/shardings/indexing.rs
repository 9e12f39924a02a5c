//! Sharding rules of the prims with indices from data.

use kernel_ir::Combine;

use super::way;
use crate::shard_rule::{Placement, Way, all, operands};
use crate::{LowerCall, OpError};

type Ways = Result<Vec<Way>, OpError>;

/// Dimensions that operand and index have in common; along `dim` the index alone.
pub(in crate::ops) fn gather(call: &LowerCall<'_>) -> Ways {
    let (a, index) = (call.meta("a")?, call.meta("index")?);
    let dim = call.call.dim(call.call.int("dim")?, a.rank())?;
    let mut ways = Vec::new();
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

/// Dimensions of the operand that are not indexed, and those of the indices.
pub(in crate::ops) fn index(call: &LowerCall<'_>) -> Ways {
    let places = Places::of(call)?;
    let mut ways = Vec::new();
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

/// Dimensions that all operands have in common.
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
    Ok(ways)
}

/// Dimensions of the tensor that are not indexed; those of the indices, where values are added: every rank then adds its own
/// ones, to a tensor that is a sum itself.
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
    Ok(ways)
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
    /// The dimensions that are not indexed, in the tensor and in what is read of it.
    fn kept(&self) -> Vec<(usize, usize)> {
        let behind = self.start + self.indices;
        let lead = (0..self.start).map(|d| (d, d));
        lead.chain((behind..self.of).map(|d| (d, d - self.indices + self.rank))).collect()
    }
}
