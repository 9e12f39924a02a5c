//! From one placement of a tensor to another: which exchanges that takes, in which order, what they cost, and the prims that
//! perform them on the part of a rank. Parts that are not even are padded to the largest one around an exchange, so that
//! engines only know equal blocks.

use fx_ir::{Arg, ValueId};
use ir_core::{Scalar, Shape, SymExpr};
use kernel_ir::Combine;
use prims::{Builder, OpError, Placement};

use crate::Mesh;
use crate::spec::{self, Part, Spec};

/// A change of placement along one axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The axis.
    pub(crate) axis: usize,
    /// Before.
    pub(crate) from: Placement,
    /// After.
    pub(crate) to: Placement,
}

/// The kind of exchange that a change takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// None: every rank keeps a part of what it has, or pads it.
    Local,
    /// The parts of all ranks.
    AllGather,
    /// The combination of all ranks.
    AllReduce,
    /// A part of the combination of all ranks.
    ReduceScatter,
    /// Parts of another dimension.
    AllToAll,
}

impl Kind {
    /// The name of the exchange.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Local => "local",
            Kind::AllGather => "all_gather",
            Kind::AllReduce => "all_reduce",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::AllToAll => "all_to_all",
        }
    }
    /// What a rank sends over its link for a tensor of which it has `whole` bytes where it has all of this axis, on `ranks`
    /// ranks: that of rings.
    pub fn bytes(self, whole: f64, ranks: usize) -> f64 {
        let others = (ranks as f64 - 1.0) / ranks as f64;
        match self {
            Kind::Local => 0.0,
            Kind::AllGather | Kind::ReduceScatter => others * whole,
            Kind::AllReduce => 2.0 * others * whole,
            Kind::AllToAll => others * whole / ranks as f64,
        }
    }
}

/// The changes, in order, from one placement to another. Of axes that split one dimension the inner one is gathered before
/// the outer one changes, but where one splits sections of which the other has whole ones. What is combined whole along one axis is, where others make parts of it, a part by then.
pub(crate) fn changes(from: &[Placement], to: &[Placement]) -> Vec<Change> {
    let mut now: Spec = from.iter().cloned().collect();
    let mut all = Vec::new();
    let mut change = |now: &mut Spec, axis: usize, to: &Placement| {
        for to in stations(&now[axis], to) {
            all.push(Change { axis, from: now[axis].clone(), to: to.clone() });
            now[axis] = to;
        }
    };
    for inner in (0..now.len()).rev() {
        let Some(dim) = now[inner].dim() else { continue };
        let sections = now[inner].sections().to_vec();
        let concerns = |p: &Placement| p.dim() == Some(dim) && p.sections() == sections;
        let moved = |outer: usize| now[outer] != to[outer] && (concerns(&now[outer]) || concerns(&to[outer]));
        if (0..inner).any(moved) {
            change(&mut now, inner, &Placement::Replicate);
        }
    }
    for axis in order(from, to) {
        if now[axis] != to[axis] {
            change(&mut now, axis, &to[axis]);
        }
    }
    all
}

/// The order in which axes change: theirs, but what is combined whole is combined behind the last axis that makes parts, of
/// which it then has one. Combinations of one kind may be made in any order, those of several may not.
fn order(from: &[Placement], to: &[Placement]) -> Vec<usize> {
    let axes = 0..from.len();
    let splits = |axis: &usize| from[*axis] != to[*axis] && to[*axis].dim().is_some();
    let mut partial = from.iter().filter(|p| matches!(p, Placement::Partial(_)));
    let alike = partial.next().is_none_or(|first| partial.all(|p| p == first));
    let Some(last) = axes.clone().rev().find(splits).filter(|_| alike) else { return axes.collect() };
    let mut all: Vec<usize> = axes.collect();
    let combined = |axis: usize| axis < last && kind(&from[axis], &to[axis]) == Kind::AllReduce;
    all[..=last].sort_by_key(|axis| combined(*axis));
    all
}

/// The placements after `from` on the way to `to`; most changes are one exchange.
pub(crate) fn stations(from: &Placement, to: &Placement) -> Vec<Placement> {
    let plain = from.sections().is_empty() && to.sections().is_empty();
    let direct = match (from, to) {
        (Placement::Shard { dim: a, .. }, Placement::Shard { dim: b, .. }) => a != b && plain,
        (Placement::Partial(_), Placement::Partial(_)) => false,
        (Placement::Shard { .. }, Placement::Partial(how)) => *how == Combine::Sum && plain,
        _ => true,
    };
    match direct {
        true => vec![to.clone()],
        false => vec![Placement::Replicate, to.clone()],
    }
}

/// The exchange of a change.
pub(crate) fn kind(from: &Placement, to: &Placement) -> Kind {
    match (from, to) {
        (Placement::Shard { .. }, Placement::Replicate) => Kind::AllGather,
        (Placement::Shard { .. }, Placement::Shard { .. }) => Kind::AllToAll,
        (Placement::Partial(_), Placement::Replicate) => Kind::AllReduce,
        (Placement::Partial(_), Placement::Shard { .. }) => Kind::ReduceScatter,
        _ => Kind::Local,
    }
}

/// Whether a change has a meaning: only sums and products have a neutral element that every rank but one may have.
pub(crate) fn is_possible(from: &Placement, to: &Placement) -> bool {
    match (from, to) {
        (a, b) if a == b => true,
        (_, Placement::Partial(how)) => matches!(how, Combine::Sum | Combine::Prod),
        _ => true,
    }
}

/// Builds changes of placement for the rank at some coordinates.
pub(crate) struct Builds<'a> {
    /// The mesh.
    pub(crate) mesh: &'a Mesh,
    /// The rank's place.
    pub(crate) coordinates: &'a [usize],
}

impl Builds<'_> {
    /// The rank's part of a tensor of these sizes.
    pub(crate) fn part(&self, spec: &[Placement], sizes: &[SymExpr]) -> Part {
        spec::part(self.mesh, spec, sizes, self.coordinates)
    }

    /// The part that the rank has after a change of one axis. `sizes` are those of the whole tensor, `v` the part by `now`.
    ///
    /// # Errors
    /// What a prim refuses: none for valid placements.
    pub(crate) fn change(
        &self,
        b: &mut Builder<'_>,
        v: ValueId,
        sizes: &[SymExpr],
        now: &[Placement],
        change: &Change,
    ) -> Result<ValueId, OpError> {
        let mut next: Spec = now.iter().cloned().collect();
        next[change.axis] = change.to.clone();
        let (had, has) = (self.part(now, sizes), self.part(&next, sizes));
        let axis = &self.mesh.axes()[change.axis];
        let group = Arg::from(axis.name.as_str());
        let ranks = axis.size as i64;
        match (&change.from, &change.to) {
            (from, to) if from == to => Ok(v),
            (Placement::Replicate, Placement::Shard { dim, sections, .. }) if !sections.is_empty() => {
                let at = self.coordinates[change.axis] as i64;
                let sections = self.local_sections(now, *dim, sections);
                by_section(b, v, (*dim, *dim), &sections, |b, v, dim, length| {
                    let share = spec::share_of(length, ranks);
                    b.slice(v, dim, &share * at, share, 1)
                })
            }
            (Placement::Replicate, Placement::Shard { dim, .. }) => {
                let first = self.first(change.axis, *dim, (&had, &has));
                b.slice(v, *dim, first, has.sizes[*dim].clone(), 1)
            }
            (Placement::Replicate, Placement::Partial(how)) => {
                if self.coordinates[change.axis] == 0 {
                    return Ok(v);
                }
                let neutral = if *how == Combine::Prod { 1 } else { 0 };
                let dtype = b.dtype(v)?;
                b.full(&had.sizes, Scalar::Int(neutral), dtype)
            }
            (Placement::Shard { dim, sections, .. }, Placement::Replicate) if !sections.is_empty() => {
                let v = b.call1("prims.all_gather", vec![v.into(), ranks.into(), group])?;
                let sections = self.local_sections(now, *dim, sections);
                by_section(b, v, (dim + 1, *dim), &sections, |b, v, dim, length| {
                    self.join(b, v, dim - 1, &(length * ranks))
                })
            }
            (Placement::Shard { dim, .. }, Placement::Replicate) => {
                let largest = had.largest[*dim].clone();
                let v = pad(b, v, *dim, &largest)?;
                let v = b.call1("prims.all_gather", vec![v.into(), ranks.into(), group])?;
                self.join(b, v, *dim, &has.sizes[*dim])
            }
            (Placement::Shard { dim, .. }, Placement::Partial(_)) => {
                let first = self.first(change.axis, *dim, (&has, &had));
                let behind = &has.sizes[*dim] - &first - &had.sizes[*dim];
                padded(b, v, *dim, first, behind)
            }
            (Placement::Partial(how), Placement::Shard { dim, sections, .. }) if !sections.is_empty() => {
                let sections = self.local_sections(now, *dim, sections);
                let v = by_section(b, v, (*dim, dim + 1), &sections, |b, v, dim, length| {
                    split(b, v, dim, ranks, &spec::share_of(length, ranks))
                })?;
                b.call1("prims.reduce_scatter", vec![v.into(), how.name().into(), group])
            }
            (Placement::Partial(how), Placement::Shard { dim, .. }) => {
                let v = split(b, v, *dim, ranks, &has.largest[*dim])?;
                let v = b.call1("prims.reduce_scatter", vec![v.into(), how.name().into(), group])?;
                b.slice(v, *dim, SymExpr::ZERO, has.sizes[*dim].clone(), 1)
            }
            (Placement::Partial(how), _) => {
                b.call1("prims.all_reduce", vec![v.into(), how.name().into(), group])
            }
            (Placement::Shard { dim: from, .. }, Placement::Shard { dim: to, .. }) => {
                let largest = had.largest[*from].clone();
                let v = pad(b, v, *from, &largest)?;
                let v = split(b, v, *to, ranks, &has.largest[*to])?;
                let v = b.call1("prims.all_to_all", vec![v.into(), group])?;
                let v = self.join(b, v, *from, &has.sizes[*from])?;
                b.slice(v, *to, SymExpr::ZERO, has.sizes[*to].clone(), 1)
            }
            (Placement::Replicate, Placement::Replicate) => Ok(v),
        }
    }

    /// Where a part by blocks along an axis begins in what the rank has without this axis.
    fn first(&self, axis: usize, dim: usize, (whole, part): (&Part, &Part)) -> SymExpr {
        match part.pieces.iter().any(|(d, _)| *d == dim) {
            // The blocks are whole sections, of which the rank has but a share along another axis: places in the tensor tell nothing.
            true => &part.sizes[dim] * self.coordinates[axis] as i64,
            false => &part.offsets[dim] - &whole.offsets[dim],
        }
    }

    /// The sizes that sections have in the rank's part: all of them, or those that it has whole along other axes.
    fn local_sections(&self, spec: &[Placement], dim: usize, sections: &[SymExpr]) -> Vec<SymExpr> {
        let ranks = spec::ranks_of(self.mesh, spec, (dim, sections));
        // Where several axes have whole ones, sections are of one size.
        let count = sections.len() / spec::ranks_of(self.mesh, spec, (dim, &[])) as usize;
        sections.iter().take(count).map(|s| spec::share_of(s, ranks)).collect()
    }

    /// `[ranks, …, part, …]` as `[…, all, …]`, without the padding at its end.
    fn join(&self, b: &mut Builder<'_>, v: ValueId, dim: usize, size: &SymExpr) -> Result<ValueId, OpError> {
        let parts = b.sizes(v)?;
        let order: Vec<usize> = (1..=dim).chain([0]).chain(dim + 1..parts.len()).collect();
        let v = b.permute(v, &order)?;
        let mut joined: Shape = parts.iter().skip(1).cloned().collect();
        joined[dim] = &joined[dim] * &parts[0];
        let v = b.reshape(v, &joined)?;
        b.slice(v, dim, SymExpr::ZERO, size.clone(), 1)
    }
}

/// What a function makes of every section of dimension `dim`, one behind the other along `to` of the result. It is given a tensor,
/// which of its dimensions a section is, and the section's size. Equal sections are all one tensor, in which they have a dimension of
/// their own: there may be thousands.
fn by_section(
    b: &mut Builder<'_>,
    v: ValueId,
    (dim, to): (usize, usize),
    sections: &[SymExpr],
    one: impl Fn(&mut Builder<'_>, ValueId, usize, &SymExpr) -> Result<ValueId, OpError>,
) -> Result<ValueId, OpError> {
    if let [first, rest @ ..] = sections
        && rest.iter().all(|section| section == first)
    {
        let mut sizes = b.sizes(v)?;
        sizes[dim] = first.clone();
        sizes.insert(dim, SymExpr::from_i64(sections.len() as i64));
        let v = b.reshape(v, &sizes)?;
        let v = one(b, v, dim + 1, first)?;
        let mut joined = b.sizes(v)?;
        let count = joined.remove(to);
        joined[to] = &joined[to] * count;
        return b.reshape(v, &joined);
    }
    let (mut start, mut parts) = (SymExpr::ZERO, Vec::new());
    for section in sections {
        let part = b.slice(v, dim, start.clone(), section.clone(), 1)?;
        parts.push(one(b, part, dim, section)?);
        start = start + section;
    }
    b.call1("prims.cat", vec![Arg::values(parts), (to as i64).into()])
}

/// `[…, all, …]` as `[ranks, …, part, …]` with parts of `largest`, padded at the end.
fn split(
    b: &mut Builder<'_>,
    v: ValueId,
    dim: usize,
    ranks: i64,
    largest: &SymExpr,
) -> Result<ValueId, OpError> {
    let v = pad(b, v, dim, &(largest * ranks))?;
    let mut sizes = b.sizes(v)?;
    sizes[dim] = largest.clone();
    sizes.insert(dim, SymExpr::from_i64(ranks));
    let v = b.reshape(v, &sizes)?;
    let order: Vec<usize> = [dim].into_iter().chain(0..dim).chain(dim + 1..sizes.len()).collect();
    b.permute(v, &order)
}

/// Zeros behind a dimension, up to a size.
fn pad(b: &mut Builder<'_>, v: ValueId, dim: usize, size: &SymExpr) -> Result<ValueId, OpError> {
    let behind = size - &b.sizes(v)?[dim];
    padded(b, v, dim, SymExpr::ZERO, behind)
}

fn padded(
    b: &mut Builder<'_>,
    v: ValueId,
    dim: usize,
    before: SymExpr,
    behind: SymExpr,
) -> Result<ValueId, OpError> {
    if before == SymExpr::ZERO && behind == SymExpr::ZERO {
        return Ok(v);
    }
    let (rank, dtype) = (b.rank(v)?, b.dtype(v)?);
    let at = |n: SymExpr| -> Shape {
        (0..rank).map(|d| if d == dim { n.clone() } else { SymExpr::ZERO }).collect()
    };
    let interior = vec![0i64; rank];
    let zero = Scalar::zero(dtype);
    b.call1(
        "prims.pad",
        vec![
            v.into(),
            Arg::ints(&at(before)),
            Arg::ints(&at(behind)),
            interior.as_slice().into(),
            zero.into(),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const R: Placement = Placement::Replicate;

    #[test]
    fn inner_axes_are_gathered_before_outer_ones_change() {
        let s = Placement::shard(0);
        let found = changes(&[s.clone(), s.clone()], &[R, s.clone()]);
        let axes: Vec<(usize, Placement)> = found.into_iter().map(|c| (c.axis, c.to)).collect();
        assert_eq!(axes, [(1, R), (0, R), (1, s.clone())]);
        assert!(changes(&[s.clone(), R], &[s.clone(), R]).is_empty());
        let one = changes(&[R, Placement::Partial(Combine::Sum)], &[R, Placement::shard(1)]);
        assert_eq!(one.len(), 1);
        assert_eq!(kind(&one[0].from, &one[0].to), Kind::ReduceScatter);
    }

    #[test]
    fn what_is_combined_whole_is_a_part_by_then() {
        let order = |from: &[Placement], to: &[Placement]| -> Vec<(usize, Kind)> {
            changes(from, to).iter().map(|c| (c.axis, kind(&c.from, &c.to))).collect()
        };
        let (sum, max) = (Placement::Partial(Combine::Sum), Placement::Partial(Combine::Max));
        let s = Placement::shard(0);
        let of = order(&[sum.clone(), sum.clone()], &[R, s.clone()]);
        assert_eq!(of, [(1, Kind::ReduceScatter), (0, Kind::AllReduce)]);
        // Before what makes it larger, and in the order of axes where that matters.
        let of = order(&[sum.clone(), sum.clone(), Placement::shard(1)], &[R, s.clone(), R]);
        assert_eq!(of, [(1, Kind::ReduceScatter), (0, Kind::AllReduce), (2, Kind::AllGather)]);
        let of = order(&[max, sum.clone()], &[R, s.clone()]);
        assert_eq!(of, [(0, Kind::AllReduce), (1, Kind::ReduceScatter)]);
        let of = order(&[sum, R], &[R, s]);
        assert_eq!(of, [(1, Kind::Local), (0, Kind::AllReduce)]);
    }
}
