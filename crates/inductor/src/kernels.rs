//! Builds one kernel per group: stages are laid out, bodies inlined, values forwarded in registers or through memory.

use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{
    AccId, BodyBuilder, BufId, Epilogue, Inst, InstKind, LoopBounds, LoopKernel, ReduceOp, Stage, StoreMode,
    Val, pruned,
};
use rustc_hash::FxHashMap;

use crate::affine::{self, SymBounds};
use crate::defs::{Def, DefKind, Defs};
use crate::inline::{Inliner, convert};
use crate::realize::step;
use crate::schedule::{Group, Member, Schedule, renamed, substituted};

/// Where a member's value is while its kernel is built.
#[derive(Clone)]
enum Place {
    /// In a register of the stage, at the member's own point.
    Value(usize, Val),
    /// In an accumulator, complete after the stage.
    Acc(usize, AccId, DType),
}

struct StageBuilder<'a> {
    inner: Shape,
    extents: Shape,
    b: BodyBuilder,
    symbols: SymBounds<'a>,
}

/// A loop group as a kernel; bodies name definitions.
pub(crate) fn loop_kernel(defs: &Defs, s: &Schedule, group: &Group) -> LoopKernel {
    let group = &ordered(defs, s, group);
    let mut kernel = LoopKernel {
        name: String::new(),
        origins: Vec::new(),
        outer: group.outer.clone(),
        accs: Vec::new(),
        stages: Vec::new(),
    };
    let mut stages: Vec<StageBuilder<'_>> = Vec::new();
    let mut places: FxHashMap<BufId, Place> = FxHashMap::default();
    let mut stored: Vec<BufId> =
        group.members.iter().map(|m| m.def).filter(|d| s.is_read_outside(defs, *d)).collect();
    for member in &group.members {
        let at = stage_for(defs, s, group, member, &places, &mut stages, &mut stored);
        let place = emit_member(defs, group, member, at, &mut stages, &places, &mut kernel);
        places.insert(member.def, place);
    }
    store_members(defs, group, &mut stages, &places, &stored);
    kernel.stages =
        stages.into_iter().map(|st| Stage { inner: st.inner, insts: pruned(st.b.finish()) }).collect();
    kernel.stages.retain(|st| !st.insts.is_empty());
    kernel
}

/// The first stage that is late enough and has the member's inner domain; a new one where there is none.
fn stage_for<'a>(
    defs: &'a Defs,
    s: &Schedule,
    group: &Group,
    member: &Member,
    places: &FxHashMap<BufId, Place>,
    stages: &mut Vec<StageBuilder<'a>>,
    stored: &mut Vec<BufId>,
) -> usize {
    let mut earliest = 0;
    for (buf, index) in &s.loads[&member.def] {
        let Some(source) = group.members.iter().find(|m| m.def == *buf) else { continue };
        match &places[buf] {
            Place::Acc(stage, ..) => earliest = earliest.max(stage + 1),
            Place::Value(stage, _) => {
                let forwarded = source.inner == member.inner && reads_own_point(source, member, index);
                earliest = earliest.max(if forwarded { *stage } else { stage + 1 });
            }
        }
    }
    let found = (earliest..stages.len()).find(|&n| stages[n].inner == member.inner);
    let at = found.unwrap_or_else(|| {
        let extents = group.outer.iter().chain(&member.inner).cloned().collect();
        stages.push(StageBuilder {
            inner: member.inner.clone(),
            extents,
            b: BodyBuilder::new(),
            symbols: SymBounds(defs),
        });
        stages.len() - 1
    });
    // Values of an earlier stage are read from memory.
    for (buf, _) in &s.loads[&member.def] {
        if let Some(Place::Value(stage, _)) = places.get(buf)
            && (*stage != at || !reads_all_own_point(s, group, member, *buf))
            && !stored.contains(buf)
        {
            stored.push(*buf);
        }
    }
    at
}

fn reads_all_own_point(s: &Schedule, group: &Group, member: &Member, buf: BufId) -> bool {
    let source = group.members.iter().find(|m| m.def == buf);
    source.is_some_and(|source| {
        s.loads[&member.def]
            .iter()
            .filter(|(b, _)| *b == buf)
            .all(|(_, index)| reads_own_point(source, member, index))
    })
}

/// Whether `member` reads `source` at its own point.
fn reads_own_point(source: &Member, member: &Member, index: &[SymExpr]) -> bool {
    index.iter().zip(&source.map).all(|(e, at)| substituted(e, &member.map) == *at)
}

fn emit_member(
    defs: &Defs,
    group: &Group,
    member: &Member,
    at: usize,
    stages: &mut [StageBuilder<'_>],
    places: &FxHashMap<BufId, Place>,
    kernel: &mut LoopKernel,
) -> Place {
    let def = defs.get(member.def);
    let StageBuilder { b, extents, symbols, .. } = &mut stages[at];
    let bounds = LoopBounds { extents, symbols };
    let mut forward = |b: &mut BodyBuilder, buf: BufId, index: &[SymExpr]| match places.get(&buf)? {
        Place::Acc(stage, acc, dtype) if *stage < at => {
            let v = b.acc(*acc, *dtype);
            Some(convert(b, v, defs.get(buf).dtype))
        }
        Place::Value(stage, v) if *stage == at => {
            let source = group.members.iter().find(|m| m.def == buf)?;
            index.iter().zip(&source.map).all(|(e, at)| e == at).then_some(*v)
        }
        _ => None,
    };
    let mut inliner = Inliner::new(defs, &bounds);
    let vals = inliner.body(b, &mut forward, def.insts(), &member.map, None);
    match &def.kind {
        DefKind::Reduce { value, op, .. } => {
            let value = vals[value.0 as usize];
            let dtype = b.dtype(value);
            let positional = matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin);
            let position = positional.then(|| b.index(row_major(def, &member.map)));
            let acc = kernel.add_acc(*op, dtype);
            b.reduce(acc, value, position);
            Place::Acc(at, acc, if positional { DType::I64 } else { dtype })
        }
        DefKind::Scan { value, op, .. } => {
            let v = vals[value.0 as usize];
            // A dimension of size 1 has no loop.
            let v = if member.inner.is_empty() { v } else { b.scan(*op, v) };
            Place::Value(at, convert(b, v, def.dtype))
        }
        DefKind::Loop { value, .. } => Place::Value(at, convert(b, vals[value.0 as usize], def.dtype)),
        // Other kinds are not members of loop groups.
        _ => Place::Value(at, Val(0)),
    }
}

/// The number of a point among those that are reduced.
fn row_major(def: &Def, map: &[SymExpr]) -> SymExpr {
    let reduced = map.iter().zip(def.domain()).skip(def.sizes.len());
    reduced.fold(SymExpr::ZERO, |n, (at, size)| n * size + at)
}

fn store_members<'a>(
    defs: &'a Defs,
    group: &Group,
    stages: &mut Vec<StageBuilder<'a>>,
    places: &FxHashMap<BufId, Place>,
    stored: &[BufId],
) {
    for member in group.members.iter().filter(|m| stored.contains(&m.def)) {
        let def = defs.get(member.def);
        let index: Shape = member.map[..def.sizes.len()].iter().cloned().collect();
        match &places[&member.def] {
            Place::Value(stage, v) => stages[*stage].b.store(member.def, index, *v, StoreMode::Write),
            Place::Acc(stage, acc, dtype) => {
                let found = (stage + 1..stages.len()).find(|&n| stages[n].inner.is_empty());
                let at = found.unwrap_or_else(|| {
                    let symbols = SymBounds(defs);
                    stages.push(StageBuilder {
                        inner: Shape::new(),
                        extents: group.outer.clone(),
                        b: BodyBuilder::new(),
                        symbols,
                    });
                    stages.len() - 1
                });
                let b = &mut stages[at].b;
                let v = b.acc(*acc, *dtype);
                let v = convert(b, v, def.dtype);
                b.store(member.def, index, v, StoreMode::Write);
            }
        }
    }
}

/// The body of a template's epilogue: the members after the template, at its points.
pub(crate) fn epilogue(defs: &Defs, s: &Schedule, group: &Group, template: BufId, acc: DType) -> Epilogue {
    let mut b = BodyBuilder::new();
    let symbols = SymBounds(defs);
    let bounds = LoopBounds { extents: &group.outer, symbols: &symbols };
    let raw = b.push(acc, InstKind::Template);
    let mut values: FxHashMap<BufId, Val> = FxHashMap::default();
    values.insert(template, convert(&mut b, raw, defs.get(template).dtype));
    for member in &group.members[1..] {
        let def = defs.get(member.def);
        let DefKind::Loop { insts, value } = &def.kind else { continue };
        let mut forward = |_: &mut BodyBuilder, buf: BufId, _: &[SymExpr]| values.get(&buf).copied();
        let vals = Inliner::new(defs, &bounds).body(&mut b, &mut forward, insts, &member.map, None);
        values.insert(member.def, convert(&mut b, vals[value.0 as usize], def.dtype));
    }
    for member in &group.members {
        if s.is_read_outside(defs, member.def) {
            let index = member.map[..defs.get(member.def).sizes.len()].iter().cloned().collect();
            b.store(member.def, index, values[&member.def], StoreMode::Write);
        }
    }
    let mut insts = pruned(b.finish());
    if is_rounded_later(defs, s, template) {
        keep_precision(&mut insts, acc);
    }
    Epilogue { ranges: group.outer.clone(), insts: pruned(insts) }
}

/// Whether a template's result is an intermediate value of one call of the captured graph, whose result alone is rounded: the
/// product of a linear layer before its bias.
fn is_rounded_later(defs: &Defs, s: &Schedule, template: BufId) -> bool {
    let (own, readers) = (defs.get(template), s.loaded_by(template));
    let of_call = |id: &BufId| {
        let reader = defs.get(*id);
        reader.origin == own.origin && matches!(reader.kind, DefKind::Loop { .. })
    };
    !readers.is_empty() && readers.iter().all(of_call) && !s.is_read_outside(defs, template)
}

/// Lets what reads a template's result in 16 bits, and only to widen it again, read the accumulator.
fn keep_precision(insts: &mut [Inst], acc: DType) {
    let is_raw = |i: &Inst| matches!(i.kind, InstKind::Template);
    let Some(raw) = insts.iter().position(is_raw).map(|n| Val(n as u32)) else { return };
    let is_narrow = |i: &Inst| matches!(i.kind, InstKind::Cast(v) if v == raw) && i.dtype.size() < acc.size();
    let Some(narrow) = insts.iter().position(is_narrow).map(|n| Val(n as u32)) else { return };
    let widens = |i: &Inst| matches!(i.kind, InstKind::Cast(v) if v == narrow) && i.dtype == acc;
    let mut other = false;
    for inst in insts.iter().filter(|i| !widens(i)) {
        inst.kind.for_each_val(&mut |v| other |= v == narrow);
    }
    if other {
        return;
    }
    let wide: Vec<bool> = insts.iter().map(widens).collect();
    for inst in insts {
        inst.kind.map_vals(&|v| if wide[v.0 as usize] { raw } else { v });
    }
}

/// A scatter: a kernel that copies the base and one that combines the values in; the latter alone where the base's memory
/// is the result's.
pub(crate) fn scatter_kernels(defs: &Defs, id: BufId, in_place: bool) -> Vec<LoopKernel> {
    let def = defs.get(id);
    let DefKind::Scatter { base, ranges, insts, index, value, mode } = &def.kind else {
        defs.contradict(|| format!("`{}` is to be scattered and is no scatter", def.name));
        return Vec::new();
    };
    let symbols = SymBounds(defs);
    let kernel = |outer: &Shape, b: BodyBuilder| LoopKernel {
        name: String::new(),
        origins: Vec::new(),
        outer: outer.clone(),
        accs: Vec::new(),
        stages: vec![Stage { inner: Shape::new(), insts: pruned(b.finish()) }],
    };
    let at = |n: usize| -> Shape { (0..n as u32).map(SymExpr::loop_var).collect() };
    let mut kernels = Vec::new();
    let mut copy = BodyBuilder::new();
    let bounds = LoopBounds { extents: &def.sizes, symbols: &symbols };
    let v = Inliner::new(defs, &bounds).element(
        &mut copy,
        &mut crate::inline::no_forward,
        *base,
        at(def.sizes.len()),
        None,
    );
    copy.store(id, at(def.sizes.len()), v, StoreMode::Write);
    if !in_place {
        kernels.push(kernel(&def.sizes, copy));
    }
    let mut b = BodyBuilder::new();
    let bounds = LoopBounds { extents: ranges, symbols: &symbols };
    let mut inliner = Inliner::new(defs, &bounds);
    let vals = inliner.body(&mut b, &mut crate::inline::no_forward, insts, &at(ranges.len()), None);
    let index = inliner.index(&b, index, &at(ranges.len()), &vals);
    let v = convert(&mut b, vals[value.0 as usize], def.dtype);
    b.store(id, index, v, *mode);
    kernels.push(kernel(ranges, b));
    kernels
}

/// The group with its outer loops in the order of memory: the innermost has the smallest stride.
fn ordered(defs: &Defs, s: &Schedule, group: &Group) -> Group {
    let outer = group.outer.len();
    let most_inner = group.members.iter().map(|m| m.inner.len()).max().unwrap_or(0);
    let mut steps: Vec<(i64, i64)> = vec![(0, 0); outer + most_inner];
    for member in &group.members {
        let def = defs.get(member.def);
        let own: Shape = member.map[..def.sizes.len()].iter().cloned().collect();
        let loads = s.loads[&member.def]
            .iter()
            .map(|(buf, index)| (*buf, index.iter().map(|e| substituted(e, &member.map)).collect::<Shape>()));
        for (buf, index) in loads.chain([(member.def, own)]) {
            let target = defs.get(buf);
            let address = affine::address(&index, &target.strides);
            let numel = defs.numel_hint(&target.sizes);
            let extents = group.outer.iter().chain(&member.inner);
            for ((v, slot), extent) in steps.iter_mut().enumerate().zip(extents) {
                if let Some(step) = step(defs, &address, v as u32, extent)
                    && step != 0
                    && numel > slot.0
                {
                    *slot = (numel, step.abs());
                }
            }
        }
    }
    let by_step = |range: std::ops::Range<usize>| {
        let mut vars: Vec<u32> = range.map(|v| v as u32).collect();
        vars.sort_by_key(|&v| std::cmp::Reverse(steps[v as usize].1));
        vars
    };
    let order: Vec<u32> = by_step(0..outer).into_iter().chain(by_step(outer..outer + most_inner)).collect();
    let pick = |from: &Shape, vars: &[u32], base: usize| -> Shape {
        vars.iter().map(|v| from[*v as usize - base].clone()).collect()
    };
    let mut group = group.clone();
    group.outer = pick(&group.outer, &order[..outer], 0);
    let full = most_inner;
    for member in &mut group.members {
        // Inner loops are reordered only where a member has all of them, so that equal domains stay equal.
        let order: Vec<u32> = if member.inner.len() == full {
            order.clone()
        } else {
            order[..outer].iter().copied().chain(outer as u32..(outer + member.inner.len()) as u32).collect()
        };
        member.inner = pick(&member.inner, &order[outer..], outer);
        member.map = member.map.iter().map(|e| renamed(e, &order)).collect();
    }
    group
}
