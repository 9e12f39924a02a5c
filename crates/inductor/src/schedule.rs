//! Fuses definitions into groups, one kernel each.
//!
//! Definitions are taken in order; each may join the group of the latest definition that it reads (so no cycle can arise), else
//! it starts a group. A loop group has an *outer* domain whose points are independent; a member runs over it and, at
//! each point, over an inner domain of its own. A member may read another one at the same outer point only: then the
//! earlier stage is complete when the later one begins.

use ir_core::{Atom, Shape, SymExpr};
use kernel_ir::{BodyBuilder, BufId, InstKind, LoopBounds};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::affine::{self, SymBounds};
use crate::defs::{Def, DefKind, Defs, template_operands};
use crate::inline::{Inliner, no_forward};

/// Below this many outer points a kernel cannot use all threads: large work is not fused under a small outer domain.
const MIN_PARALLEL: i64 = 8;
/// Elements that one thread computes in less time than a kernel launch.
const SMALL_WORK: i64 = 1 << 14;

/// Definitions that become one kernel (a scatter: two).
#[derive(Clone, Debug)]
pub struct Group {
    /// The template at its head, where it has one: `outer` then has its sizes.
    pub template: Option<BufId>,
    /// Extents of the outer domain: loop variables `i0…`.
    pub outer: Shape,
    /// The members, in order. A template itself is the first.
    pub members: Vec<Member>,
    /// Runs once when the constants are bound.
    pub constant: bool,
}

/// A definition in a group.
#[derive(Clone, Debug)]
pub struct Member {
    /// The definition.
    pub def: BufId,
    /// For each loop of the definition's domain, its value in the kernel's loop variables.
    pub map: Vec<SymExpr>,
    /// Extents of the inner domain: loop variables from `outer.len()` on.
    pub inner: Shape,
}

/// Groups in execution order, and their readers.
#[derive(Default)]
pub(crate) struct Schedule {
    /// The groups.
    pub groups: Vec<Group>,
    /// The group of each definition with memory that is computed.
    pub group_of: FxHashMap<BufId, usize>,
    /// For each definition with memory the definitions with memory that it reads, and where.
    pub loads: FxHashMap<BufId, Vec<(BufId, Shape)>>,
    /// For each definition with memory the groups that read it, in no order, once per reader.
    readers: FxHashMap<BufId, Vec<usize>>,
    /// For each definition those, with memory or without, whose own instructions load it.
    loaded_by: FxHashMap<BufId, Vec<BufId>>,
}

impl Schedule {
    /// The definitions, with memory or without, whose own instructions load `id`.
    pub(crate) fn loaded_by(&self, id: BufId) -> &[BufId] {
        self.loaded_by.get(&id).map_or(&[], Vec::as_slice)
    }
    /// Whether a definition outside its group, or the caller, reads `id`.
    pub(crate) fn is_read_outside(&self, defs: &Defs, id: BufId) -> bool {
        let own = self.group_of.get(&id);
        let outside = |readers: &Vec<usize>| readers.iter().any(|g| Some(g) != own);
        let def = defs.get(id);
        // What reads the whole that it is a part of is outside of its group.
        def.output || def.place.is_some() || self.readers.get(&id).is_some_and(outside)
    }
    fn note_readers(&mut self, defs: &Defs) {
        for (reader, def) in defs.list.iter() {
            for inst in def.iter().flat_map(Def::insts) {
                if let InstKind::Load { buf, .. } = inst.kind {
                    self.loaded_by.entry(buf).or_default().push(reader);
                }
            }
        }
        let is_secondary = |id: &BufId| matches!(defs.get(*id).kind, DefKind::SecondaryOutput { .. });
        for (reader, reads) in self.loads.iter().filter(|(reader, _)| !is_secondary(reader)) {
            let Some(&group) = self.group_of.get(reader) else { continue };
            for (read, _) in reads {
                self.readers.entry(*read).or_default().push(group);
            }
        }
        // A secondary output of a template is written with it and reads nothing of it; but a step stores something.
        for (reader, reads) in self.loads.iter().filter(|(reader, _)| is_secondary(reader)) {
            let Some(&group) = self.group_of.get(reader) else { continue };
            for (read, _) in reads {
                self.readers.entry(*read).or_insert_with(|| vec![group]);
            }
        }
    }
}

/// Groups all definitions that have memory and are needed.
pub(crate) fn schedule(defs: &mut Defs) -> Schedule {
    let mut s = Schedule::default();
    let needed = needed(defs, &mut s);
    for &id in &defs.order {
        if !needed.contains(&id)
            || matches!(defs.get(id).kind, DefKind::Input | DefKind::Constant | DefKind::Joined { .. })
        {
            continue;
        }
        // Values that are computed once, before every call, are not a hindrance.
        let relevant = |read: &BufId| defs.get(*read).constant == defs.get(id).constant;
        let reads = s.loads[&id].iter().filter(|(read, _)| relevant(read));
        let latest = reads.filter_map(|(read, _)| Some((s.group_of.get(read).copied()?, *read))).max();
        // What is computed again belongs to its readers, not to what it is computed from.
        let latest = latest.filter(|(_, read)| !only_behind_barriers(defs, id, *read)).map(|(g, _)| g);
        let latest = latest.filter(|g| !lives_earlier(defs, &s, id, *g));
        let joined = latest.and_then(|g| Some((g, join(defs, &s.groups[g], id, &s.loads[&id])?)));
        let at = match joined {
            Some((g, group)) => {
                s.groups[g] = group;
                g
            }
            None => {
                s.groups.push(start(defs, id));
                s.groups.len() - 1
            }
        };
        s.group_of.insert(id, at);
    }
    crate::merge::merge(defs, &mut s);
    crate::in_place::postpone(defs, &mut s);
    s.note_readers(defs);
    s
}

/// Whether `id` reads the memory of `source` through barriers alone.
fn only_behind_barriers(defs: &Defs, id: BufId, source: BufId) -> bool {
    let (mut open, mut seen) = (vec![(id, false)], FxHashSet::default());
    let mut behind = false;
    while let Some((at, hidden)) = open.pop() {
        for read in defs.get(at).reads() {
            let hidden = hidden || defs.get(at).barrier;
            match read == source {
                true if !hidden => return false,
                true => behind = true,
                false if !defs.get(read).realized && seen.insert((read, hidden)) => open.push((read, hidden)),
                false => {}
            }
        }
    }
    behind
}

/// Whether a copy into a concatenation that is made in this group would be there before any other part of that: all of it would
/// live from then on.
fn lives_earlier(defs: &Defs, s: &Schedule, id: BufId, group: usize) -> bool {
    let of = |id: BufId| defs.get(id).place.as_ref().map(|place| place.of);
    let whole = of(id).filter(|_| defs.get(id).is_view());
    whole.is_some() && !s.group_of.iter().any(|(part, g)| *g <= group && of(*part) == whole)
}

/// An index of a member's body in the kernel's loop variables.
pub(crate) fn substituted(e: &SymExpr, map: &[SymExpr]) -> SymExpr {
    e.subst(&|a| if let Atom::Loop(d) = a { map.get(*d as usize).cloned() } else { None })
}

/// Definitions with memory that the outputs need, with the operands of each.
fn needed(defs: &Defs, s: &mut Schedule) -> FxHashSet<BufId> {
    let always = defs.effects.iter().chain(&defs.exchanges);
    let mut needed: FxHashSet<BufId> = defs.outputs.iter().chain(always).copied().collect();
    needed.extend(defs.written.iter().map(|w| w.def));
    for &id in defs.order.iter().rev() {
        if !needed.contains(&id) {
            continue;
        }
        let loads = loads_of(defs, id);
        needed.extend(loads.iter().map(|(read, _)| *read));
        if let DefKind::Extern { outputs, .. } | DefKind::Control { outputs, .. } = &defs.get(id).kind {
            needed.extend(outputs.iter().copied());
        }
        s.loads.insert(id, loads);
    }
    // A routine writes all its results, the unused ones too.
    for &id in &needed {
        s.loads.entry(id).or_insert_with(|| loads_of(defs, id));
    }
    needed
}

/// The loads of a definition once everything without memory is inlined; the definitions that bind its symbols count as
/// loaded completely.
fn loads_of(defs: &Defs, id: BufId) -> Vec<(BufId, Shape)> {
    let def = defs.get(id);
    let mut loads = loads_of_memory(defs, id);
    // A concatenation is there when its parts are, which are read as a whole.
    let parts: Vec<BufId> = loads.iter().flat_map(|(read, _)| defs.stored_parts(*read)).collect();
    loads.extend(parts.into_iter().map(|part| (part, Shape::new())));
    let own = def.sizes.iter().chain(&def.strides);
    let mut binders = defs.binders_of(own);
    binders.extend(defs.binders_of(loads.iter().flat_map(|(_, index)| index)));
    let mut operands: Vec<BufId> = Vec::new();
    match &def.kind {
        DefKind::Template(spec) => operands = template_operands(spec),
        DefKind::Extern { inputs, .. } => operands.clone_from(inputs),
        DefKind::Control { call, .. } => binders.extend(defs.binders_of(call.expressions())),
        _ => binders.extend(spliced_binders(defs, id)),
    }
    for o in operands.iter().filter_map(|v| affine::operand(defs, *v)) {
        binders.extend(defs.binders_of(o.sizes.iter().chain(&o.strides).chain([&o.offset])));
    }
    binders.sort_unstable();
    binders.dedup();
    loads.extend(
        binders.into_iter().filter(|b| *b != id && !same_call(defs, id, *b)).map(|b| (b, Shape::new())),
    );
    loads
}

/// Whether both are results of one call.
fn same_call(defs: &Defs, a: BufId, b: BufId) -> bool {
    matches!(&defs.get(a).kind, DefKind::Control { outputs, .. } if outputs.contains(&b))
}

/// The definitions that bind the symbols in the body of a definition, with everything that is inlined into it.
fn spliced_binders(defs: &Defs, id: BufId) -> Vec<BufId> {
    if defs.binders.is_empty() {
        return Vec::new();
    }
    let def = defs.get(id);
    let (mut found, mut open) = (defs.binders_of(def.domain().iter()), vec![id]);
    let mut seen: FxHashSet<BufId> = FxHashSet::default();
    while let Some(at) = open.pop() {
        let body = defs.get(at);
        if !seen.insert(at) || (at != id && body.realized) {
            continue;
        }
        for inst in body.insts() {
            match &inst.kind {
                InstKind::Index(e) => found.extend(defs.binders_of([e])),
                InstKind::Load { index, .. } => found.extend(defs.binders_of(index)),
                _ => {}
            }
        }
        if let DefKind::Scatter { index, .. } = &body.kind {
            found.extend(defs.binders_of(index));
        }
        open.extend(body.reads());
    }
    found
}

/// The loads of memory of a definition once everything without memory is inlined.
fn loads_of_memory(defs: &Defs, id: BufId) -> Vec<(BufId, Shape)> {
    let def = defs.get(id);
    let whole = |v: &BufId| affine::operand(defs, *v).map(|o| (o.buf, Shape::new()));
    match &def.kind {
        DefKind::Template(spec) => return template_operands(spec).iter().filter_map(whole).collect(),
        DefKind::SecondaryOutput { template } => return whole(template).into_iter().collect(),
        DefKind::Extern { inputs, .. } => return inputs.iter().filter_map(whole).collect(),
        DefKind::Control { call, .. } => return call.reads().iter().filter_map(whole).collect(),
        DefKind::Joined { .. } => {
            return defs.stored_parts(id).into_iter().map(|part| (part, Shape::new())).collect();
        }
        DefKind::Input | DefKind::Constant => return Vec::new(),
        _ => {}
    }
    let domain = def.domain();
    let symbols = SymBounds(defs);
    let bounds = LoopBounds { extents: &domain, symbols: &symbols };
    let at: Shape = (0..domain.len() as u32).map(SymExpr::loop_var).collect();
    let mut b = BodyBuilder::new();
    let mut inliner = Inliner::new(defs, &bounds);
    inliner.body(&mut b, &mut no_forward, def.insts(), &at, None);
    if let DefKind::Scatter { base, .. } = &def.kind {
        let at: Shape = (0..def.sizes.len() as u32).map(SymExpr::loop_var).collect();
        inliner.element(&mut b, &mut no_forward, *base, at, None);
    }
    let loads = b.insts().iter().filter_map(|i| match &i.kind {
        InstKind::Load { buf, index, .. } => Some((*buf, index.clone())),
        _ => None,
    });
    loads.collect()
}

/// A group with one member.
fn start(defs: &Defs, id: BufId) -> Group {
    let def = defs.get(id);
    let (template, split) = match &def.kind {
        DefKind::Template(_) => (Some(id), def.sizes.len()),
        DefKind::Reduce { .. } => (None, def.sizes.len()),
        _ => (None, def.domain().len()),
    };
    if template.is_some() {
        // All dimensions stay, so that the epilogue's loops are the template's; the variable of one of size 1 is 0.
        let map = vars_or_zero(&def.sizes, 0);
        let member = Member { def: id, map, inner: Shape::new() };
        return Group { template, outer: def.sizes.clone(), members: vec![member], constant: def.constant };
    }
    let domain = def.domain();
    let is_inner = |d: usize| d >= split || matches!(def.kind, DefKind::Scan { dim, .. } if dim == d);
    let (mut outer, mut inner) = (Shape::new(), Shape::new());
    for (d, size) in domain.iter().enumerate().filter(|(_, s)| **s != SymExpr::ONE) {
        if is_inner(d) { inner.push(size.clone()) } else { outer.push(size.clone()) }
    }
    let (mut next_outer, mut next_inner) = (0u32, outer.len() as u32);
    let map = domain.iter().enumerate().map(|(d, size)| {
        if *size == SymExpr::ONE {
            return SymExpr::ZERO;
        }
        let counter = if is_inner(d) { &mut next_inner } else { &mut next_outer };
        *counter += 1;
        SymExpr::loop_var(*counter - 1)
    });
    let member = Member { def: id, map: map.collect(), inner };
    Group { template: None, outer, members: vec![member], constant: def.constant }
}

fn vars_or_zero(sizes: &[SymExpr], first: u32) -> Vec<SymExpr> {
    let var = |(d, s): (usize, &SymExpr)| {
        if *s == SymExpr::ONE { SymExpr::ZERO } else { SymExpr::loop_var(first + d as u32) }
    };
    sizes.iter().enumerate().map(var).collect()
}

/// The group with `id` in it, where that is possible.
fn join(defs: &Defs, group: &Group, id: BufId, loads: &[(BufId, Shape)]) -> Option<Group> {
    let def = defs.get(id);
    let single = |k: &DefKind| {
        matches!(
            k,
            DefKind::Scatter { .. }
                | DefKind::Extern { .. }
                | DefKind::Control { .. }
                | DefKind::Template(_)
                | DefKind::SecondaryOutput { .. }
        )
    };
    if group.constant != def.constant || single(&def.kind) {
        return None;
    }
    if group.template.is_none() && group.members.iter().any(|m| single(&defs.get(m.def).kind)) {
        return None;
    }
    let reads: Vec<(&Member, &Shape)> = loads
        .iter()
        .filter_map(|(buf, index)| group.members.iter().find(|m| m.def == *buf).map(|m| (m, index)))
        .collect();
    // What is read as a whole is complete only after the kernel.
    if reads.iter().any(|(member, index)| index.len() < defs.get(member.def).sizes.len()) {
        return None;
    }
    let pure = group.members.iter().all(|m| m.inner.is_empty());
    if matches!(def.kind, DefKind::Loop { .. })
        && pure
        && let Some(map) = same_points(defs, group, id, &reads)
    {
        let mut group = group.clone();
        group.members.push(Member { def: id, map, inner: Shape::new() });
        return Some(group);
    }
    if group.template.is_some() {
        return None;
    }
    if pure && matches!(def.kind, DefKind::Reduce { .. } | DefKind::Scan { .. }) {
        return split_outer(defs, group, id, &reads);
    }
    staged(defs, group, id, &reads)
}

/// The map of a loop that visits each point of a group without inner domains once and reads members at that point.
fn same_points(defs: &Defs, group: &Group, id: BufId, reads: &[(&Member, &Shape)]) -> Option<Vec<SymExpr>> {
    let def = defs.get(id);
    let outer_numel = ir_core::numel(&group.outer);
    if ir_core::numel(&def.sizes) != outer_numel {
        return None;
    }
    let symbols = SymBounds(defs);
    let bounds = LoopBounds { extents: &group.outer, symbols: &symbols };
    let fits = |map: &[SymExpr]| {
        reads.iter().all(|(member, index)| {
            index.iter().zip(&member.map).all(|(e, at)| {
                let e =
                    e.subst(&|a| if let Atom::Loop(d) = a { map.get(*d as usize).cloned() } else { None });
                e.simplify(&bounds) == *at
            })
        })
    };
    if let Some(map) = solve(&group.outer, &def.sizes, reads)
        && fits(&map)
    {
        return Some(map);
    }
    let vars: Shape = vars_or_zero(&group.outer, 0).into_iter().collect();
    let map: Vec<SymExpr> = prims::ops::reshape_index(&group.outer, &vars, &def.sizes)
        .iter()
        .map(|e| e.simplify(&bounds))
        .collect();
    fits(&map).then_some(map)
}

/// Derives the map from indices that are loop variables alone: member dimension at `i3`, read at `i0`, implies that
/// loop 0 is kernel variable 3. Every loop must be found (those of size 1 are at 0), with the extent that the kernel's
/// variable has, and no two loops may be one variable: the map then visits every point once.
fn solve(outer: &[SymExpr], extents: &[SymExpr], reads: &[(&Member, &Shape)]) -> Option<Vec<SymExpr>> {
    let mut map: Vec<Option<SymExpr>> =
        extents.iter().map(|s| (*s == SymExpr::ONE).then_some(SymExpr::ZERO)).collect();
    for (member, index) in reads {
        for (e, at) in index.iter().zip(&member.map) {
            if let (Some(Atom::Loop(v)), Some(_)) = (e.as_atom(), loop_number(at)) {
                match map.get(*v as usize)? {
                    None => map[*v as usize] = Some(at.clone()),
                    Some(have) if have == at => {}
                    Some(_) => return None,
                }
            }
        }
    }
    (one_to_one(&map) && extents_agree(&map, extents, outer)).then_some(())?;
    map.into_iter().collect()
}

/// Whether no two loops map to the same variable of the kernel.
fn one_to_one(map: &[Option<SymExpr>]) -> bool {
    let mut seen = FxHashSet::default();
    map.iter().flatten().filter_map(loop_number).all(|v| seen.insert(v))
}

/// Whether every loop that maps to an outer variable has that variable's extent: a slice of a value does not visit the
/// points of the value.
fn extents_agree(map: &[Option<SymExpr>], extents: &[SymExpr], outer: &[SymExpr]) -> bool {
    map.iter().zip(extents).all(|(m, size)| match m.as_ref().and_then(loop_number) {
        Some(k) => outer.get(k as usize).is_none_or(|o| o == size),
        None => true,
    })
}

/// A reduction or scan over some of the outer loops of a group without inner domains: these become inner loops.
fn split_outer(defs: &Defs, group: &Group, id: BufId, reads: &[(&Member, &Shape)]) -> Option<Group> {
    let def = defs.get(id);
    let domain = def.domain();
    // The members of the group get the inner loops, which would repeat a reduction that has none.
    if group.members.iter().any(|m| !matches!(defs.get(m.def).kind, DefKind::Loop { .. })) {
        return None;
    }
    let map = solve(&group.outer, &domain, reads)?;
    let exact = |(member, index): &(&Member, &Shape)| {
        index.iter().zip(&member.map).all(|(e, at)| match e.as_atom() {
            Some(Atom::Loop(v)) => map[*v as usize] == *at,
            _ => *e == *at,
        })
    };
    let used: FxHashSet<&SymExpr> = map.iter().filter(|e| **e != SymExpr::ZERO).collect();
    let loops = domain.iter().filter(|s| **s != SymExpr::ONE).count();
    if !reads.iter().all(exact) || used.len() != loops || loops != group.outer.len() {
        return None;
    }
    let is_inner = |d: usize| match def.kind {
        DefKind::Scan { dim, .. } => d == dim,
        _ => d >= def.sizes.len(),
    };
    let inner_vars: Vec<u32> =
        (0..map.len()).filter(|&d| is_inner(d)).filter_map(|d| loop_number(&map[d])).collect();
    let outer_vars: Vec<u32> = (0..group.outer.len() as u32).filter(|v| !inner_vars.contains(v)).collect();
    let pick = |vars: &[u32]| -> Shape { vars.iter().map(|v| group.outer[*v as usize].clone()).collect() };
    let (outer, inner) = (pick(&outer_vars), pick(&inner_vars));
    if defs.numel_hint(&outer) < MIN_PARALLEL && defs.numel_hint(&inner) > SMALL_WORK {
        return None;
    }
    let order: Vec<u32> = outer_vars.iter().chain(&inner_vars).copied().collect();
    let rename = |e: &SymExpr| renamed(e, &order);
    let mut members: Vec<Member> = group.members.clone();
    members.push(Member { def: id, map, inner: Shape::new() });
    for m in &mut members {
        m.map = m.map.iter().map(rename).collect();
        m.inner = inner.clone();
    }
    Some(Group { template: None, outer, members, constant: group.constant })
}

fn loop_number(e: &SymExpr) -> Option<u32> {
    match e.as_atom() {
        Some(Atom::Loop(v)) => Some(*v),
        _ => None,
    }
}

/// Loop variable `order[n]` becomes `n`.
pub(crate) fn renamed(e: &SymExpr, order: &[u32]) -> SymExpr {
    e.subst(&|a| match a {
        Atom::Loop(v) => order.iter().position(|o| o == v).map(|n| SymExpr::loop_var(n as u32)),
        _ => None,
    })
}

/// A member with an inner domain of its own: its outer loops are derived from its operands, the rest are inner.
fn staged(defs: &Defs, group: &Group, id: BufId, reads: &[(&Member, &Shape)]) -> Option<Group> {
    let def = defs.get(id);
    let domain = def.domain();
    let outer_count = group.outer.len();
    let mut map: Vec<Option<SymExpr>> =
        domain.iter().map(|s| (*s == SymExpr::ONE).then_some(SymExpr::ZERO)).collect();
    for (member, index) in reads {
        for (e, at) in index.iter().zip(&member.map) {
            let is_outer = match loop_number(at) {
                Some(k) => (k as usize) < outer_count,
                None if *at == SymExpr::ZERO => continue,
                // A member that was reshaped into the group is not read across stages.
                None => return None,
            };
            if !is_outer {
                continue;
            }
            let v = loop_number(e)? as usize;
            match &map[v] {
                None => map[v] = Some(at.clone()),
                Some(have) if have == at => {}
                Some(_) => return None,
            }
        }
    }
    let bound: FxHashSet<u32> = map.iter().flatten().filter_map(loop_number).collect();
    if bound.len() != outer_count || !one_to_one(&map) || !extents_agree(&map, &domain, &group.outer) {
        return None;
    }
    let must_be_inner = |d: usize| match def.kind {
        DefKind::Reduce { .. } => d >= def.sizes.len(),
        DefKind::Scan { dim, .. } => d == dim,
        _ => map[d].is_none(),
    };
    let (mut inner, mut full) = (Shape::new(), Vec::with_capacity(map.len()));
    for (d, m) in map.iter().enumerate() {
        match m {
            Some(e) if *e != SymExpr::ZERO && must_be_inner(d) => return None,
            Some(e) => full.push(e.clone()),
            None if must_be_inner(d) => {
                full.push(SymExpr::loop_var((outer_count + inner.len()) as u32));
                inner.push(domain[d].clone());
            }
            // An output loop of a reduction that is not an outer loop of the group.
            None => return None,
        }
    }
    if defs.numel_hint(&group.outer) < MIN_PARALLEL && defs.numel_hint(&inner) > SMALL_WORK {
        return None;
    }
    let mut group = group.clone();
    group.members.push(Member { def: id, map: full, inner });
    Some(group)
}
