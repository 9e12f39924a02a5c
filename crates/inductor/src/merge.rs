//! Merges groups that the order of definitions kept apart: a group is delayed to a later one over the same points which
//! reads it there (a value that two values of one kernel need), or which reduces the same elements. Delaying is valid where
//! no group before reads it. Where one does, as the exchange of a sum between ranks reads it at once, the later group may run
//! with the earlier one, if all that it reads is there. Groups that are merely small and independent are not merged; they
//! become members of one step (`together`).

use ir_core::{Atom, SymExpr};
use kernel_ir::BufId;
use rustc_hash::FxHashMap;

use crate::defs::{DefKind, Defs};
use crate::schedule::{Group, Member, Schedule, substituted};

/// Members of a group of merged reductions; a longer body compiles slowly and spills.
const MAX_MEMBERS: usize = 48;

/// Merges groups of `s` in place; merged groups have no members left.
pub(crate) fn merge(defs: &Defs, s: &mut Schedule) {
    // Definitions that bind a size keep their place.
    if !defs.binders.is_empty() {
        return;
    }
    let readers = readers(s);
    for at in 0..s.groups.len() {
        if !is_pointwise(defs, &s.groups[at]) {
            continue;
        }
        let mut tried: Vec<usize> = Vec::new();
        while let Some(other) = next_read(s, at, &tried) {
            tried.push(other);
            if is_unread_before(s, &readers, other, at) && fits(defs, s, other, at) {
                take(s, other, at);
            }
        }
    }
    merge_siblings(defs, s, &readers);
}

/// The readers of each definition.
fn readers(s: &Schedule) -> Readers {
    let mut readers = Readers::default();
    for (reader, loads) in &s.loads {
        for (read, _) in loads {
            readers.entry(*read).or_default().push(*reader);
        }
    }
    readers
}

type Readers = FxHashMap<BufId, Vec<BufId>>;

fn is_pointwise(defs: &Defs, group: &Group) -> bool {
    let loop_only = |m: &Member| m.inner.is_empty() && matches!(defs.get(m.def).kind, DefKind::Loop { .. });
    group.template.is_none() && !group.members.is_empty() && group.members.iter().all(loop_only)
}

/// The latest earlier group that group `at` reads and that was not tried yet.
fn next_read(s: &Schedule, at: usize, tried: &[usize]) -> Option<usize> {
    let reads = s.groups[at].members.iter().flat_map(|m| &s.loads[&m.def]);
    let groups = reads.filter_map(|(buf, _)| s.group_of.get(buf).copied());
    groups.filter(|g| *g < at && !tried.contains(g)).max()
}

/// Whether no group before `at` reads group `other`.
fn is_unread_before(s: &Schedule, readers: &Readers, other: usize, at: usize) -> bool {
    let late = |reader: &BufId| s.group_of.get(reader).is_none_or(|g| *g == other || *g >= at);
    s.groups[other].members.iter().all(|m| readers.get(&m.def).is_none_or(|list| list.iter().all(late)))
}

/// Whether `other` has the points of `at`, and `at` reads it only at its own point.
fn fits(defs: &Defs, s: &Schedule, other: usize, at: usize) -> bool {
    let (from, to) = (&s.groups[other], &s.groups[at]);
    is_pointwise(defs, from)
        && from.outer == to.outer
        && from.constant == to.constant
        && own_points(defs, s, other, at)
}

/// Whether the members of `at` read those of `other` only at their own point.
fn own_points(defs: &Defs, s: &Schedule, other: usize, at: usize) -> bool {
    let (from, to) = (&s.groups[other], &s.groups[at]);
    let outer = to.outer.len();
    let own_point = |m: &Member| {
        s.loads[&m.def].iter().all(|(buf, index)| {
            from.members.iter().find(|f| f.def == *buf).is_none_or(|f| {
                let places = &f.map[..defs.get(f.def).sizes.len().min(f.map.len())];
                let own = |(e, wanted): (&SymExpr, &SymExpr)| substituted(e, &m.map) == *wanted;
                // A value of an inner point is complete only after its stage.
                let outside =
                    |e: &SymExpr| !e.any_leaf(|a| matches!(a, Atom::Loop(v) if *v as usize >= outer));
                index.len() == places.len()
                    && index.iter().zip(places).all(own)
                    && (m.inner == f.inner || places.iter().all(outside))
            })
        })
    };
    to.members.iter().all(own_point)
}

/// Moves the members of `other` to the front of `at`.
fn take(s: &mut Schedule, other: usize, at: usize) {
    let mut members = std::mem::take(&mut s.groups[other].members);
    for m in &members {
        s.group_of.insert(m.def, at);
    }
    members.append(&mut s.groups[at].members);
    s.groups[at].members = members;
}

/// Whether all that `at` reads is there when `other`, an earlier group, runs.
fn is_ready_at(s: &Schedule, at: usize, other: usize) -> bool {
    let mut reads = s.groups[at].members.iter().flat_map(|m| &s.loads[&m.def]);
    reads.all(|(buf, _)| s.group_of.get(buf).is_none_or(|g| *g <= other || *g == at))
}

/// Moves the members of `at` to the end of `other`.
fn advance(s: &mut Schedule, at: usize, other: usize) {
    let mut members = std::mem::take(&mut s.groups[at].members);
    for m in &members {
        s.group_of.insert(m.def, other);
    }
    s.groups[other].members.append(&mut members);
}

/// Merges reductions over the same elements at the same points (the largest element of a window and its position, the two
/// sums of a normalisation's gradient after a template): one pass over memory instead of two.
fn merge_siblings(defs: &Defs, s: &mut Schedule, readers: &Readers) {
    for at in 0..s.groups.len() {
        let mut tried: Vec<usize> = Vec::new();
        while let Some(other) = next_sibling(defs, s, readers, at, &tried) {
            tried.push(other);
            let few = s.groups[other].members.len() + s.groups[at].members.len() <= MAX_MEMBERS;
            if !few || !own_points(defs, s, other, at) {
                continue;
            }
            if is_unread_before(s, readers, other, at) {
                take(s, other, at);
            } else if is_ready_at(s, at, other) {
                advance(s, at, other);
            }
        }
    }
}

/// The latest earlier group that reduces the same elements as group `at`.
fn next_sibling(defs: &Defs, s: &Schedule, readers: &Readers, at: usize, tried: &[usize]) -> Option<usize> {
    let to = &s.groups[at];
    let own = reductions(defs, to)?;
    let reads = own.iter().flat_map(|m| s.loads[&m.def].iter().map(move |load| (*m, load)));
    let siblings = reads.flat_map(|(m, (buf, index))| {
        let index: ir_core::Shape = index.iter().map(|e| substituted(e, &m.map)).collect();
        let groups = readers.get(buf).into_iter().flatten().filter_map(|r| s.group_of.get(r).copied());
        let fresh = groups.filter(|g| *g < at && !tried.contains(g));
        fresh.filter(move |g| {
            let from = &s.groups[*g];
            let same = |f: &&Member| {
                f.inner == m.inner
                    && s.loads[&f.def].iter().any(|(b, e)| {
                        b == buf && e.len() == index.len() && {
                            e.iter().zip(&index).all(|(e, wanted)| substituted(e, &f.map) == *wanted)
                        }
                    })
            };
            from.outer == to.outer
                && from.constant == to.constant
                && reductions(defs, from).is_some_and(|list| list.iter().any(same))
        })
    });
    siblings.max()
}

/// The reductions of a group of loops and reductions; `None` for any other group, or where there are none.
fn reductions<'a>(defs: &Defs, group: &'a Group) -> Option<Vec<&'a Member>> {
    let of_kind = |m: &Member| matches!(defs.get(m.def).kind, DefKind::Loop { .. } | DefKind::Reduce { .. });
    if group.template.is_some() || !group.members.iter().all(of_kind) {
        return None;
    }
    let reduces = |m: &&Member| matches!(defs.get(m.def).kind, DefKind::Reduce { .. });
    let list: Vec<&Member> = group.members.iter().filter(reduces).collect();
    (!list.is_empty()).then_some(list)
}
