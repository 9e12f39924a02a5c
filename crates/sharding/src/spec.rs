//! The placement of a tensor on a whole mesh, and the part of it that a rank has: sizes, place, and the size that the
//! largest part has, to which collectives pad.

use fx_ir::Graph;
use ir_core::{Shape, SymExpr};
use prims::Placement;
use prims::shard_rule::divide;
use smallvec::SmallVec;

use crate::Mesh;

/// One placement for each axis of the mesh. Where several axes split one dimension, the outer axis splits first, and all
/// have one unit. Where some of them split every section of it, the others have whole sections, whichever axis is the outer one:
/// heads of attention lie within a batch, and both may be in parts of the one dimension that they are.
pub type Spec = SmallVec<[Placement; 2]>;

/// The part of a tensor that a rank has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its sizes.
    pub sizes: Shape,
    /// The place of its first element.
    pub offsets: Shape,
    /// The sizes of the largest part of any rank.
    pub largest: Shape,
    /// Dimensions in sections: the pieces of the whole that lie one behind the other in the part, each by its place and its
    /// size. The first one begins at `offsets`.
    pub pieces: Vec<(usize, Pieces)>,
}

/// Places and sizes, in order.
pub type Pieces = Vec<(SymExpr, SymExpr)>;

/// The whole tensor on every rank.
pub fn whole(mesh: &Mesh) -> Spec {
    mesh.axes().iter().map(|_| Placement::Replicate).collect()
}

/// Whether every rank has the whole tensor.
pub fn is_whole(spec: &[Placement]) -> bool {
    spec.iter().all(|p| *p == Placement::Replicate)
}

/// Whether a tensor of these sizes may have the placement: the dimensions exist, consist of whole blocks, axes that
/// share a dimension agree about them, and sections are all of a dimension and have equal parts on all ranks. Axes that have whole
/// sections have equally many of one size.
pub fn is_valid(mesh: &Mesh, spec: &[Placement], sizes: &[SymExpr]) -> bool {
    spec.iter().enumerate().all(|(n, placement)| {
        let Placement::Shard { dim, unit, sections } = placement else { return true };
        let Some(size) = sizes.get(*dim) else { return false };
        let shared = sections_of(spec, *dim);
        let whole_sections = || {
            shared.windows(2).all(|pair| pair[0] == pair[1])
                && shared.len() as i64 % ranks_of(mesh, spec, (*dim, &[])) == 0
        };
        let agree = |other: &Placement| match other {
            Placement::Shard { dim: d, unit: u, sections: s } if d == dim => {
                (u == unit && s == sections) || (s.is_empty() != sections.is_empty() && whole_sections())
            }
            _ => true,
        };
        let step = unit * ranks_of(mesh, spec, (*dim, sections));
        let all = || sections.iter().fold(SymExpr::ZERO, |sum, s| sum + s) == *size;
        let even = |s: &SymExpr| s.as_const().is_none_or(|n| n > 0) && divide(s, &step).is_some();
        divide(size, unit).is_some()
            && (sections.is_empty() || (all() && sections.iter().all(even)))
            && spec[..n].iter().all(agree)
    })
}

/// Among how many ranks a dimension is split, or of one in sections each of these.
pub(crate) fn ranks_of(mesh: &Mesh, spec: &[Placement], (dim, sections): (usize, &[SymExpr])) -> i64 {
    let alike = |p: &Placement| p.dim() == Some(dim) && p.sections() == sections;
    let axes = spec.iter().zip(mesh.axes()).filter(|(p, _)| alike(p));
    axes.map(|(_, a)| a.size as i64).product()
}

/// The sections of a dimension that an axis splits; empty where none does.
fn sections_of(spec: &[Placement], dim: usize) -> &[SymExpr] {
    let of_dim = spec.iter().filter(|p| p.dim() == Some(dim)).map(Placement::sections);
    of_dim.into_iter().find(|sections| !sections.is_empty()).unwrap_or_default()
}

/// Whether all ranks have equal parts, as far as the sizes' forms show.
pub fn is_even(mesh: &Mesh, spec: &[Placement], sizes: &[SymExpr]) -> bool {
    (0..sizes.len()).all(|dim| {
        let Some((unit, sections)) = split_of(spec, dim) else { return true };
        !sections.is_empty() || divide(&sizes[dim], &(unit * ranks_of(mesh, spec, (dim, &[])))).is_some()
    })
}

/// The same parts, in units of single elements and without sections where that makes no difference.
pub fn normalize(mesh: &Mesh, spec: &mut [Placement], sizes: &[SymExpr]) {
    for placement in spec.iter_mut() {
        if let Placement::Shard { sections, .. } = placement
            && sections.len() == 1
        {
            sections.clear();
        }
    }
    for (dim, size) in sizes.iter().enumerate() {
        let ranks: Vec<i64> = spec.iter().map(|p| ranks_of(mesh, spec, (dim, p.sections()))).collect();
        for (placement, ranks) in spec.iter_mut().zip(ranks) {
            if let Placement::Shard { dim: d, unit, .. } = placement
                && *d == dim
                && divide(size, &(&*unit * ranks)).is_some()
            {
                *unit = SymExpr::ONE;
            }
        }
    }
}

/// What the rank at these coordinates has of a tensor of these sizes.
pub fn part(mesh: &Mesh, spec: &[Placement], sizes: &[SymExpr], coordinates: &[usize]) -> Part {
    let mut part = Part {
        sizes: sizes.iter().cloned().collect(),
        offsets: sizes.iter().map(|_| SymExpr::ZERO).collect(),
        largest: sizes.iter().cloned().collect(),
        pieces: Vec::new(),
    };
    for (dim, size) in sizes.iter().enumerate() {
        let Some((unit, sections)) = split_of(spec, dim) else { continue };
        if !sections.is_empty() {
            sectioned(mesh, spec, (dim, sections), coordinates, &mut part);
            continue;
        }
        let blocks = divide(size, &unit).unwrap_or_else(|| size.ceil_div(&unit));
        let (mut most, mut have, mut first) = (blocks.clone(), blocks, SymExpr::ZERO);
        let axes = spec.iter().zip(mesh.axes()).zip(coordinates).filter(|((p, _), _)| p.dim() == Some(dim));
        for ((_, axis), &at) in axes {
            let ranks = SymExpr::from_i64(axis.size as i64);
            let even = divide(&most, &ranks);
            let chunk = even.clone().unwrap_or_else(|| most.ceil_div(&ranks));
            let begin = &chunk * at as i64;
            let full = have == most && (even.is_some() || at == 0);
            let (begin, own) = match full {
                true => (begin, chunk.clone()),
                false => {
                    let begin = begin.sym_min(&have);
                    let own = (&have - &begin).sym_min(&chunk);
                    (begin, own)
                }
            };
            first = first + begin;
            (most, have) = (chunk, own);
        }
        part.sizes[dim] = have * &unit;
        part.offsets[dim] = first * &unit;
        part.largest[dim] = most * &unit;
    }
    part
}

/// The part of a dimension in sections: the same share of each, or of those that the axes beside have.
fn sectioned(
    mesh: &Mesh,
    spec: &[Placement],
    (dim, sections): (usize, &[SymExpr]),
    coordinates: &[usize],
    part: &mut Part,
) {
    let place = |of: &[SymExpr]| {
        let alike = |p: &Placement| p.dim() == Some(dim) && p.sections() == of;
        let axes = spec.iter().zip(mesh.axes()).zip(coordinates).filter(|((p, _), _)| alike(p));
        axes.fold((1, 0), |(ranks, rank), ((_, axis), at)| (ranks * axis.size, rank * axis.size + at))
    };
    let ((ranks, at), (between, which)) = (place(sections), place(&[]));
    let count = sections.len() / between;
    let (mut begin, mut pieces, mut size) = (SymExpr::ZERO, Vec::new(), SymExpr::ZERO);
    for (n, section) in sections.iter().enumerate() {
        if n / count.max(1) == which {
            let share = share_of(section, ranks as i64);
            pieces.push((&begin + &share * at as i64, share.clone()));
            size = size + share;
        }
        begin = begin + section;
    }
    part.offsets[dim] = pieces.first().map_or(SymExpr::ZERO, |(first, _)| first.clone());
    (part.sizes[dim], part.largest[dim]) = (size.clone(), size);
    part.pieces.push((dim, pieces));
}

/// A section's share on each of so many ranks; sections of valid placements are divisible.
pub(crate) fn share_of(section: &SymExpr, ranks: i64) -> SymExpr {
    let ranks = SymExpr::from_i64(ranks);
    divide(section, &ranks).unwrap_or_else(|| section.floor_div(&ranks))
}

fn split_of(spec: &[Placement], dim: usize) -> Option<(SymExpr, &[SymExpr])> {
    let unit = spec.iter().find_map(|p| match p {
        Placement::Shard { dim: d, unit, .. } if *d == dim => Some(unit.clone()),
        _ => None,
    });
    Some((unit?, sections_of(spec, dim)))
}

/// `dp: S(0), tp: R`, for messages and reports.
pub fn text(mesh: &Mesh, spec: &[Placement], graph: &Graph) -> String {
    let one = |(axis, p): (&crate::Axis, &Placement)| format!("{}: {}", axis.name, placement_text(p, graph));
    mesh.axes().iter().zip(spec).map(one).collect::<Vec<_>>().join(", ")
}

/// `R`, `S(0)`, `S(0 by 64)`, `S(0 in 64+16+16)`, `P(sum)`.
pub fn placement_text(placement: &Placement, graph: &Graph) -> String {
    match placement {
        Placement::Replicate => "R".into(),
        Placement::Shard { dim, sections, .. } if !sections.is_empty() => {
            let sizes: Vec<String> = sections.iter().map(|s| graph.size_text(s)).collect();
            format!("S({dim} in {})", sizes.join("+"))
        }
        Placement::Shard { dim, unit, .. } if *unit == SymExpr::ONE => format!("S({dim})"),
        Placement::Shard { dim, unit, .. } => format!("S({dim} by {})", graph.size_text(unit)),
        Placement::Partial(how) => format!("P({})", how.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(shape: &Shape) -> Vec<i64> {
        shape.iter().map(|e| e.as_const().expect("a number")).collect()
    }

    /// Every element is in exactly one part, whatever the sizes, units and axes are.
    #[test]
    fn parts_cover_a_dimension_once() {
        let mesh: Mesh = "a=2,b=3".parse().expect("a mesh");
        for (blocks, unit) in (0..20).flat_map(|n| [(n, 1), (n, 4)]) {
            let unit_expr = SymExpr::from_i64(unit);
            let shard = Placement::blocks(0, unit_expr);
            for spec in [
                vec![shard.clone(), shard.clone()],
                vec![Placement::Replicate, shard.clone()],
                vec![shard.clone(), Placement::Replicate],
            ] {
                let size = [SymExpr::from_i64(blocks * unit)];
                let copies: usize = spec
                    .iter()
                    .zip(mesh.axes())
                    .filter(|(p, _)| p.dim().is_none())
                    .map(|(_, a)| a.size)
                    .product();
                let mut seen = vec![0usize; (blocks * unit) as usize];
                for rank in 0..mesh.ranks() {
                    let part = part(&mesh, &spec, &size, &mesh.coordinates(rank));
                    let (n, at) = (numbers(&part.sizes)[0], numbers(&part.offsets)[0]);
                    assert!(n <= numbers(&part.largest)[0] && n % unit == 0 && at + n <= blocks * unit);
                    seen[at as usize..(at + n) as usize].iter_mut().for_each(|s| *s += 1);
                }
                assert!(seen.iter().all(|s| *s == copies), "{blocks} {unit} {spec:?} {seen:?}");
            }
        }
    }

    #[test]
    fn units_disappear_where_parts_are_even() {
        let mesh: Mesh = "a=2,b=2".parse().expect("a mesh");
        let blocks = |unit: i64| Placement::blocks(0, SymExpr::from_i64(unit));
        let mut spec = vec![blocks(4), Placement::Replicate];
        normalize(&mesh, &mut spec, &[SymExpr::from_i64(16)]);
        assert_eq!(spec[0], Placement::shard(0));
        let mut nested = vec![blocks(4), blocks(4)];
        normalize(&mesh, &mut nested, &[SymExpr::from_i64(24)]);
        assert_eq!(nested[0], blocks(4), "six blocks on four ranks");
    }
}
