//! Sharding rules of the prims that move or create elements.

use fx_ir::Arg;
use ir_core::{Shape, SymExpr};

use super::way;
use crate::shard_rule::{LocalPart, Passes, Placement, Way, all, divide, operands, passing};
use crate::{LocalCall, LowerCall, OpError};

type Ways = Result<Vec<Way>, OpError>;

pub(in crate::ops) fn expand(call: &LowerCall<'_>) -> Ways {
    let (a, out) = (call.meta("a")?, call.out(0)?);
    let added = out.rank().saturating_sub(a.rank());
    let mut ways = Vec::new();
    for dim in 0..out.rank() {
        let from = dim.checked_sub(added);
        let operand = match from {
            Some(d) if a.sizes[d] == out.sizes[dim] => Placement::shard(d),
            _ => Placement::Replicate,
        };
        ways.push(way(vec![operand], vec![Placement::shard(dim)]));
    }
    ways.extend(passing(call, Passes::Moves, 1));
    Ok(ways)
}

pub(in crate::ops) fn permute(call: &LowerCall<'_>) -> Ways {
    let rank = call.meta("a")?.rank();
    let mut ways = Vec::new();
    for (to, from) in call.call.ints("dims")?.into_iter().enumerate() {
        let from = call.call.dim(from, rank)?;
        ways.push(way(vec![Placement::shard(from)], vec![Placement::shard(to)]));
    }
    ways.extend(passing(call, Passes::Moves, 1));
    Ok(ways)
}

/// A dimension that stays may be in any parts. Of dimensions that are joined or split the outermost one may: in whole blocks
/// of what lies within it. So may the next one, where the outermost dimension of the other side holds it or its outer part: that
/// one is then in sections, as many as the outermost one has elements.
pub(in crate::ops) fn reshape(call: &LowerCall<'_>) -> Ways {
    let (a, out) = (call.meta("a")?, call.out(0)?);
    let mut ways = Vec::new();
    for (from, to) in sides(&a.sizes, &out.sizes) {
        // The smaller of both outermost dimensions counts the blocks, which are whole on both sides.
        if let Some((first, second)) = whole_blocks(&from.within(), &to.within()) {
            ways.push(way(vec![from.blocks(first)], vec![to.blocks(second)]));
        }
        if let Some((one, many)) = sections(&from, &to, MOST_SECTIONS) {
            ways.push(way(vec![one], vec![many]));
        }
        if let Some((one, many)) = sections(&to, &from, MOST_JOINED) {
            ways.push(way(vec![many], vec![one]));
        }
    }
    ways.extend(passing(call, Passes::Moves, 1));
    Ok(ways)
}

/// A dimension that is in sections already, as many as the outermost one of those that it becomes has elements.
pub(in crate::ops) fn sectioned_reshape(call: &LowerCall<'_>, operands: &[Placement]) -> Ways {
    let (a, out) = (call.meta("a")?, call.out(0)?);
    let found = sides(&a.sizes, &out.sizes).filter_map(|(from, to)| sections(&from, &to, MOST_JOINED));
    Ok(found
        .filter(|(one, _)| operands == [one.clone()])
        .map(|(one, many)| way(vec![one], vec![many]))
        .collect())
}

/// Most sections that a reshape is thought to make of a dimension: those of fused weights, not the heads of attention.
const MOST_SECTIONS: i64 = 16;
/// Most sections that dimensions become which are joined: a batch behind the positions of a sequence has as many as there are
/// positions.
const MOST_JOINED: i64 = 1 << 12;

/// Dimensions that a reshape joins or splits, on one side of it.
struct Side<'a> {
    sizes: &'a [SymExpr],
    /// The first of them whose size is not 1.
    outer: usize,
    end: usize,
}

impl<'a> Side<'a> {
    fn of(sizes: &'a [SymExpr], range: std::ops::Range<usize>) -> Option<Side<'a>> {
        Some(Side { sizes, outer: outermost(sizes, range.clone())?, end: range.end })
    }
    /// Elements within one of the outermost dimension.
    fn within(&self) -> SymExpr {
        within(self.sizes, self.outer, self.end)
    }
    fn blocks(&self, unit: SymExpr) -> Placement {
        Placement::blocks(self.outer, unit)
    }
}

/// Both sides of the dimensions that a reshape joins or splits.
fn sides<'a>(a: &'a Shape, out: &'a Shape) -> impl Iterator<Item = (Side<'a>, Side<'a>)> {
    groups(a, out).into_iter().filter_map(|(from, to)| Some((Side::of(a, from)?, Side::of(out, to)?)))
}

/// The least numbers of elements of two dimensions that hold equally much, where these have so much within each.
fn whole_blocks(a: &SymExpr, b: &SymExpr) -> Option<(SymExpr, SymExpr)> {
    match (divide(a, b), divide(b, a)) {
        (Some(more), _) => Some((SymExpr::ONE, more)),
        (_, Some(more)) => Some((more, SymExpr::ONE)),
        _ => None,
    }
}

/// Parts of the dimension within the outermost one of `many`, and those of the outermost dimension of `one`, which holds the
/// outermost one of `many` and all or some of the one within it.
fn sections(one: &Side<'_>, many: &Side<'_>, most: i64) -> Option<(Placement, Placement)> {
    let outer = &many.sizes[many.outer];
    let count = outer.as_const().filter(|n| (2..=most).contains(n))?;
    let inner = outermost(many.sizes, many.outer + 1..many.end)?;
    let section = divide(&one.sizes[one.outer], outer).filter(|size| *size != SymExpr::ONE)?;
    let (unit, inner_unit) = whole_blocks(&one.within(), &within(many.sizes, inner, many.end))?;
    let sections = vec![section; usize::try_from(count).ok()?];
    Some((Placement::Shard { dim: one.outer, unit, sections }, Placement::blocks(inner, inner_unit)))
}

/// Product of the sizes behind a dimension, up to `end`.
fn within(sizes: &[SymExpr], dim: usize, end: usize) -> SymExpr {
    sizes[dim + 1..end].iter().fold(SymExpr::ONE, |n, s| n * s)
}

/// The first dimension of a range whose size is not 1.
fn outermost(sizes: &[SymExpr], mut range: std::ops::Range<usize>) -> Option<usize> {
    range.find(|d| sizes[*d] != SymExpr::ONE)
}

/// The ranges of dimensions with equal products, as short as they can be found without deciding about sizes.
fn groups(a: &Shape, b: &Shape) -> Vec<(std::ops::Range<usize>, std::ops::Range<usize>)> {
    let mut found = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < a.len() && j < b.len() {
        let (start, begin) = (i, j);
        let (mut left, mut right) = (a[i].clone(), b[j].clone());
        (i, j) = (i + 1, j + 1);
        while left != right {
            // The side that divides the other one grows; where neither does, the shorter one by the numbers known.
            let left_grows = match (left.as_const(), right.as_const()) {
                (Some(l), Some(r)) => l < r,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (None, None) => divide(&left, &right).is_none(),
            };
            if left_grows && i < a.len() {
                left = left * &a[i];
                i += 1;
            } else if j < b.len() {
                right = right * &b[j];
                j += 1;
            } else if i < a.len() {
                left = left * &a[i];
                i += 1;
            } else {
                break;
            }
        }
        if left != right {
            return found;
        }
        found.push((start..i, begin..j));
    }
    found
}

/// Every dimension but that which is cut; that too, where all of it is taken.
pub(in crate::ops) fn slice(call: &LowerCall<'_>) -> Ways {
    let (a, out) = (call.meta("a")?, call.out(0)?);
    let dim = call.call.dim(call.call.int("dim")?, a.rank())?;
    let whole = a.sizes.get(dim) == out.sizes.get(dim)
        && call.call.int("step")? == 1
        && call.call.sym("start")? == SymExpr::ZERO;
    let mut ways: Vec<Way> = (0..a.rank())
        .filter(|d| *d != dim || whole)
        .map(|d| way(vec![Placement::shard(d)], vec![Placement::shard(d)]))
        .collect();
    ways.extend(passing(call, Passes::Moves, 1));
    Ok(ways)
}

/// Whole sections of the dimension that is cut.
pub(in crate::ops) fn sectioned_slice(call: &LowerCall<'_>, operands: &[Placement]) -> Ways {
    let (a, out) = (call.meta("a")?, call.out(0)?);
    let dim = call.call.dim(call.call.int("dim")?, a.rank())?;
    let [operand @ Placement::Shard { dim: d, sections, .. }] = operands else { return Ok(Vec::new()) };
    if *d != dim || call.call.int("step")? != 1 {
        return Ok(Vec::new());
    }
    let (start, mut at) = (call.call.sym("start")?, SymExpr::ZERO);
    let mut rest = sections.iter();
    while at != start {
        let Some(section) = rest.next() else { return Ok(Vec::new()) };
        at = at + section;
    }
    let (mut taken, mut length) = (Vec::new(), SymExpr::ZERO);
    while length != out.sizes[dim] {
        let Some(section) = rest.next() else { return Ok(Vec::new()) };
        length = length + section;
        taken.push(section.clone());
    }
    let result = Placement::sectioned(dim, taken);
    Ok(if length == SymExpr::ZERO { Vec::new() } else { vec![way(vec![operand.clone()], vec![result])] })
}

/// The arguments of a slice of a part: of a dimension in parts all is taken, or whole sections, of which every rank has the
/// same share.
pub(in crate::ops) fn local_slice(call: &LocalCall<'_>) -> Result<Vec<Arg>, OpError> {
    let rank = call.results.first().map_or(0, |r| r.sizes.len());
    let dim = call.call.dim(call.call.int("dim")?, rank)?;
    match (call.operands.first(), call.results.first()) {
        (Some(part), Some(result)) if part.whole.get(dim) != part.sizes.get(dim) => {
            let start = share(call, &call.call.sym("start")?, &part.whole[dim], &part.sizes[dim])?;
            let mut args = call.with("length", result.sizes[dim].clone());
            if let Some(slot) = call.call.op.schema.arg_index("start").and_then(|i| args.get_mut(i)) {
                *slot = start.into();
            }
            Ok(args)
        }
        _ => Ok(call.args.clone()),
    }
}

/// What a rank has of `size` elements, where it has `part` of `whole` in the same ratio.
fn share(call: &LocalCall<'_>, size: &SymExpr, whole: &SymExpr, part: &SymExpr) -> Result<SymExpr, OpError> {
    match (size.as_const(), divide(whole, part)) {
        (Some(0), _) => Some(SymExpr::ZERO),
        (_, Some(ranks)) => divide(size, &ranks),
        _ => None,
    }
    .ok_or_else(|| call.call.unsupported("sections that are not in equal parts"))
}

/// Every dimension but that along which operands are joined; along that one they are the sections.
pub(in crate::ops) fn cat(call: &LowerCall<'_>) -> Ways {
    let (values, out) = (operands(call.call.args), call.out(0)?);
    let dim = call.call.dim(call.call.int("dim")?, out.rank())?;
    let mut ways: Vec<Way> = (0..out.rank())
        .filter(|d| *d != dim)
        .map(|d| way(all(values.len(), &Placement::shard(d)), vec![Placement::shard(d)]))
        .collect();
    let sizes = values.iter().map(|v| call.meta_of(*v).map(|m| m.sizes[dim].clone()));
    let sections = sizes.collect::<Result<Vec<_>, _>>()?;
    ways.push(way(all(values.len(), &Placement::shard(dim)), vec![Placement::sectioned(dim, sections)]));
    ways.extend(passing(call, Passes::Moves, 1));
    Ok(ways)
}

/// Dimensions that are not padded; sums, where what is added is zero. One that is padded by whole multiples of itself becomes
/// sections, as many as the result has multiples: what the gradients of slices of a fused weight's result are.
pub(in crate::ops) fn pad(call: &LowerCall<'_>) -> Ways {
    let rank = call.meta("a")?.rank();
    let (low, high) = (call.call.syms("low")?, call.call.syms("high")?);
    let interior = call.call.ints("interior")?;
    let same = |d: &usize| {
        low.get(*d) == Some(&SymExpr::ZERO)
            && high.get(*d) == Some(&SymExpr::ZERO)
            && interior.get(*d) == Some(&0)
    };
    let mut ways: Vec<Way> =
        (0..rank).filter(same).map(|d| way(vec![Placement::shard(d)], vec![Placement::shard(d)])).collect();
    let (a, out) = (call.meta("a")?, call.out(0)?);
    for d in (0..rank).filter(|d| !same(d) && interior.get(*d) == Some(&0)) {
        let multiple = |n: Option<&SymExpr>| {
            n.is_some_and(|n| n.as_const().is_some_and(|n| n >= 0) && divide(n, &a.sizes[d]).is_some())
        };
        let count = divide(&out.sizes[d], &a.sizes[d]).and_then(|n| n.as_const());
        if let Some(count) = count.filter(|n| (2..=MOST_SECTIONS).contains(n))
            && multiple(low.get(d))
            && multiple(high.get(d))
        {
            let sections = vec![a.sizes[d].clone(); usize::try_from(count).unwrap_or(0)];
            ways.push(way(vec![Placement::shard(d)], vec![Placement::sectioned(d, sections)]));
        }
    }
    if call.call.float("value").is_ok_and(|value| value == 0.0) {
        ways.push(way(
            vec![Placement::Partial(kernel_ir::Combine::Sum)],
            vec![Placement::Partial(kernel_ir::Combine::Sum)],
        ));
    }
    Ok(ways)
}

/// The padding of a part: of a dimension in sections every rank pads by its share.
pub(in crate::ops) fn local_pad(call: &LocalCall<'_>) -> Result<Vec<Arg>, OpError> {
    let Some(LocalPart { whole, sizes: part, .. }) = call.operands.first() else {
        return Ok(call.args.clone());
    };
    let mut args = call.args.clone();
    for name in ["low", "high"] {
        let sizes = call.call.syms(name)?;
        let of = |(d, size): (usize, &SymExpr)| match whole[d] == part[d] {
            true => Ok(size.clone()),
            false => share(call, size, &whole[d], &part[d]),
        };
        let local = sizes.iter().enumerate().map(of).collect::<Result<Shape, OpError>>()?;
        if let Some(slot) = call.call.op.schema.arg_index(name).and_then(|i| args.get_mut(i)) {
            *slot = Arg::ints(&local);
        }
    }
    Ok(args)
}

/// Any dimension: every rank makes its part.
pub(in crate::ops) fn full(call: &LowerCall<'_>) -> Ways {
    Ok((0..call.out(0)?.rank()).map(|d| way(Vec::new(), vec![Placement::shard(d)])).collect())
}

/// The numbers of a rank's part begin where it does.
pub(in crate::ops) fn local_iota(call: &LocalCall<'_>) -> Result<Vec<Arg>, OpError> {
    let Some(part) = call.results.first() else { return Ok(call.args.clone()) };
    let (Some(length), Some(first)) = (part.sizes.first(), part.offsets.first()) else {
        return Ok(call.args.clone());
    };
    let start = call.call.sym("start")? + first * call.call.sym("step")?;
    let mut args = call.with("length", length.clone());
    if let Some(slot) = call.call.op.schema.arg_index("start").and_then(|i| args.get_mut(i)) {
        *slot = start.into();
    }
    Ok(args)
}

/// Leading dimensions, before those with windows.
pub(in crate::ops) fn window(call: &LowerCall<'_>) -> Ways {
    leading(call, call.call.ints("window")?.len())
}

/// Leading dimensions, before those with windows and their positions.
pub(in crate::ops) fn cover(call: &LowerCall<'_>) -> Ways {
    leading(call, 2 * call.call.syms("space")?.len())
}

fn leading(call: &LowerCall<'_>, last: usize) -> Ways {
    let count = call.meta("a")?.rank().saturating_sub(last);
    Ok((0..count).map(|d| way(vec![Placement::shard(d)], vec![Placement::shard(d)])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(sizes: &[i64]) -> Shape {
        sizes.iter().map(|s| SymExpr::from_i64(*s)).collect()
    }

    #[test]
    fn dimensions_are_grouped_by_equal_products() {
        let found = groups(&shape(&[2, 3, 8]), &shape(&[6, 2, 4]));
        assert_eq!(found, [(0..2, 0..1), (2..3, 1..3)]);
        let s = SymExpr::sym(ir_core::SymId(0));
        let symbolic: Shape = [s.clone(), SymExpr::from_i64(12)].into_iter().collect();
        let split: Shape = [s, SymExpr::from_i64(3), SymExpr::from_i64(4)].into_iter().collect();
        assert_eq!(groups(&symbolic, &split), [(0..1, 0..1), (1..2, 1..3)]);
    }
}
