//! Decides which values are realized (get memory), and the layout of that memory.
//!
//! A value without memory is recomputed wherever it is read. So memory is given to values that are expensive and read more
//! than once, to operands of templates that are not strided views, and to reductions and templates themselves.

use ir_core::{Arena, Atom, Shape, SymExpr};
use kernel_ir::{BodyBuilder, BufId, ExternOp, Inst, InstKind, LoopBounds};
use prims::TemplateSpec;
use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use crate::affine::{self, SymBounds};
use crate::defs::{Def, DefKind, Defs, template_operands};
use crate::inline::{Inliner, no_forward};
use crate::{joined, rows};

/// A body longer than this is split: compile time grows with it and registers run out.
const MAX_INLINED: u32 = 160;
/// A value read more than once is recomputed only where that takes at most this many instructions.
const MAX_RECOMPUTED: u32 = 12;
/// A concatenation that has memory computes its parts where it reads them up to this many instructions for an element, of all parts
/// together: each element takes the time of all, where one of them counts. Beyond, what computes a part stores it there.
const MAX_JOINED: u32 = 40;
/// A value that is computed again gets memory where more definitions than this read it: computing it takes less time than
/// storing and loading it, even where it is heavy.
const MAX_AGAIN: usize = 4;
/// A heavy value is stored where a reader looks at it more often than so many hundredths of its elements' number: it is computed again
/// for each look, and what pads it by a few rows looks at each element once.
const MAX_PADDED: i64 = 125;
/// A constant made of indices alone is computed where it is read up to this many instructions: a load takes as long.
const MAX_INDICES: u32 = 6;
/// What is looked up at indices from data, and has this many times fewer elements than the result, is a table.
const TABLE: i64 = 64;

/// The cost of computing one element of a value where it is read.
#[derive(Clone, Default)]
struct Cost {
    /// Instructions, operands without memory included.
    insts: u32,
    /// Loads with as many elements as the value, and the bytes of an element of each of them.
    full_loads: u32,
    full_bytes: u32,
    /// Holds an operator of tens of cycles.
    heavy: bool,
    /// Reads memory.
    loads: bool,
    /// Is computed again: from values behind barriers alone.
    again: bool,
    /// Templates whose results it reads, and whose epilogue it could join.
    templates: SmallVec<[BufId; 2]>,
}

/// The operands of each definition, and its position.
struct Order {
    reads: Arena<BufId, Vec<BufId>>,
    place: Arena<BufId, usize>,
}

impl Order {
    fn of(defs: &Defs) -> Order {
        let reads = defs.list.values().map(|d| d.as_ref().map_or(Vec::new(), Def::reads)).collect();
        let mut place: Arena<BufId, usize> = defs.list.ids().map(|_| 0).collect();
        defs.order.iter().enumerate().for_each(|(n, id)| place[*id] = n);
        Order { reads, place }
    }
    /// Whether computing `id` needs `source`, directly or not.
    fn depends(&self, id: BufId, source: BufId) -> bool {
        let (mut open, mut seen) = (vec![id], FxHashSet::default());
        while let Some(at) = open.pop() {
            if at == source {
                return true;
            }
            if self.place[at] > self.place[source] && seen.insert(at) {
                open.extend(&self.reads[at]);
            }
        }
        false
    }
}

/// Sets `realized`, `strides` and `users` of every definition.
pub(crate) fn realize(defs: &mut Defs, on_device: bool) {
    let order = Order::of(defs);
    let consumers = consumers(defs);
    let mut costs: Arena<BufId, Cost> = defs.list.ids().map(|_| Cost::default()).collect();
    for id in defs.order.clone() {
        let def = defs.get(id);
        match &def.kind {
            DefKind::Input | DefKind::Constant => continue,
            DefKind::Loop { .. } => {
                realize_parts(defs, id, &consumers, &costs);
                costs[id] = cost(defs, id, &order, &costs);
                let mut wanted = defs.get(id).realized || wants_memory(defs, id, &consumers, &costs);
                if wanted && let Some(source) = spread(defs, id) {
                    give_memory(defs, source);
                    costs[id] = cost(defs, id, &order, &costs);
                    wanted = wants_memory(defs, id, &consumers, &costs);
                }
                defs.get_mut(id).realized = wanted;
            }
            DefKind::Template(spec) => {
                let (operands, rows) = (template_operands(spec), rows::of_template(spec, on_device));
                realize_operands(defs, &operands);
                rows.into_iter().for_each(|(v, lay_out)| lay_out(defs, v));
                defs.get_mut(id).realized = true;
            }
            DefKind::Extern { op, inputs, .. } => {
                let (exchanges, inputs) = (matches!(op, ExternOp::Collective(_)), inputs.clone());
                realize_operands(defs, &inputs);
                if exchanges {
                    rows::in_rows(defs, &inputs);
                }
                defs.get_mut(id).realized = true;
            }
            DefKind::Control { call, .. } => {
                // Subgraphs read their operands as they are laid out in memory; a view is copied.
                for read in call.reads() {
                    if !defs.get(read).realized {
                        give_memory(defs, read);
                    }
                }
            }
            _ => defs.get_mut(id).realized = true,
        }
        if defs.get(id).realized && !defs.get(id).output {
            let strides = layout(defs, id);
            defs.get_mut(id).strides = strides;
        }
    }
}

fn consumers(defs: &mut Defs) -> Arena<BufId, Vec<BufId>> {
    let mut consumers: Arena<BufId, Vec<BufId>> = defs.list.ids().map(|_| Vec::new()).collect();
    for &id in &defs.order {
        for read in defs.get(id).reads() {
            consumers[read].push(id);
        }
    }
    for id in defs.order.clone() {
        let users = consumers[id].len() as u32 + u32::from(defs.get(id).output);
        defs.get_mut(id).users = users;
    }
    // A view computes nothing: its readers count instead.
    for &id in defs.order.iter().rev() {
        let direct = std::mem::take(&mut consumers[id]);
        let mut through: Vec<BufId> = Vec::with_capacity(direct.len());
        for c in direct {
            let def = defs.get(c);
            if def.is_view() && !def.output && !def.barrier {
                through.extend(&consumers[c])
            } else {
                through.push(c)
            }
        }
        through.sort();
        through.dedup();
        consumers[id] = through;
    }
    consumers
}

/// Realizes operands that are not strided views: preferably the source of the views, which then fuses with its producer;
/// else the operand itself.
fn realize_operands(defs: &mut Defs, operands: &[BufId]) {
    for &v in operands {
        let source = behind_views(defs, v);
        if affine::operand(defs, v).is_none() && source != v {
            give_memory(defs, source);
        }
        if affine::operand(defs, v).is_none() {
            give_memory(defs, v);
        }
    }
}

/// Realizes the parts of a concatenation that take long to compute, where it will have memory: `joined` then has them written to it.
fn realize_parts(defs: &mut Defs, id: BufId, readers: &Arena<BufId, Vec<BufId>>, costs: &Arena<BufId, Cost>) {
    let def = defs.get(id);
    let stored = def.realized || def.output || readers[id].iter().any(|r| computes(defs, *r));
    if !stored || def.constant {
        return;
    }
    let parts = joined::parts(defs, id).into_iter().map(|part| behind_views(defs, part));
    let computed: Vec<BufId> =
        parts.filter(|part| !defs.get(*part).realized && readers[*part] == [id]).collect();
    let total = computed.iter().map(|part| costs[*part].insts).sum::<u32>();
    if total > MAX_JOINED {
        computed.into_iter().for_each(|part| give_memory(defs, part));
    }
}

/// Whether a definition is a template or a routine, which read memory.
fn computes(defs: &Defs, id: BufId) -> bool {
    matches!(defs.get(id).kind, DefKind::Template(_) | DefKind::Extern { .. })
}

fn give_memory(defs: &mut Defs, id: BufId) {
    let strides = layout(defs, id);
    let def = defs.get_mut(id);
    (def.realized, def.strides) = (true, strides);
}

/// The first definition without memory behind `v` that is not a view itself; `v` where there is none.
fn behind_views(defs: &Defs, v: BufId) -> BufId {
    let mut at = v;
    loop {
        let def = defs.get(at);
        match def.reads().first() {
            Some(&read) if def.is_view() && !def.realized => at = read,
            _ => return if def.realized { v } else { at },
        }
    }
}

fn cost(defs: &Defs, id: BufId, order: &Order, costs: &Arena<BufId, Cost>) -> Cost {
    let def = defs.get(id);
    let numel = defs.numel_hint(&def.sizes);
    let mut total = Cost { insts: def.insts().len() as u32, heavy: def.is_heavy(), ..Cost::default() };
    let reads = &order.reads[id];
    for &read in reads {
        let source = defs.get(read);
        if source.realized {
            total.loads = true;
            if defs.numel_hint(&source.sizes) >= numel {
                total.full_loads += 1;
                total.full_bytes += source.dtype.size() as u32;
            }
            total.templates.extend(matches!(source.kind, DefKind::Template(_)).then_some(read));
        } else {
            let inner = &costs[read];
            total.insts += inner.insts;
            total.full_loads += inner.full_loads;
            total.full_bytes += inner.full_bytes;
            total.heavy |= inner.heavy;
            total.loads |= inner.loads;
            total.templates.extend(inner.templates.iter().copied());
        }
    }
    let again = |read: &BufId| {
        let source = defs.get(*read);
        costs[*read].again && !source.realized || source.as_fill().is_some()
    };
    total.again = def.barrier || (!reads.is_empty() && reads.iter().all(again));
    if def.barrier {
        total.templates.clear();
    }
    total.templates.sort_unstable();
    total.templates.dedup();
    // A value with other points (a slice of the result) is never its epilogue.
    total.templates.retain(|template| defs.numel_hint(&defs.get(*template).sizes) == numel);
    // A value that also depends on a reduction of the template's result (a mean of it) comes after it.
    total.templates.retain(|template| {
        let at_hand = |read: BufId| read == *template || costs[read].templates.contains(template);
        reads.iter().all(|&read| at_hand(read) || !order.depends(read, *template))
    });
    total
}

/// The value without memory that a definition spreads over more elements (windows of an image) or widens with little work (a sum
/// of 16 bits on its way into a norm), which needs less memory.
fn spread(defs: &Defs, id: BufId) -> Option<BufId> {
    let def = defs.get(id);
    let &[read] = &def.reads()[..] else { return None };
    let source = defs.get(read);
    let (of_source, own) = (defs.numel_hint(&source.sizes), defs.numel_hint(&def.sizes));
    let little = !def.is_heavy() && def.insts().len() as u32 <= MAX_RECOMPUTED;
    let widens = of_source == own && source.dtype.size() < def.dtype.size() && little;
    let apart = !def.realized && !source.realized && source.constant == def.constant;
    (apart && (spreads(of_source, own) || widens)).then_some(read)
}

/// Whether a reader of so many points looks at a value of so many elements more often than once each, but for some padding.
fn spreads(elements: i64, points: i64) -> bool {
    points > elements.saturating_mul(MAX_PADDED) / 100
}

/// Whether a barrier reads it: it was chosen to be kept instead of being computed again.
fn is_kept(defs: &Defs, consumers: &[BufId]) -> bool {
    consumers.iter().any(|c| defs.get(*c).barrier)
}

fn wants_memory(
    defs: &Defs,
    id: BufId,
    readers: &Arena<BufId, Vec<BufId>>,
    costs: &Arena<BufId, Cost>,
) -> bool {
    let (def, cost, consumers) = (defs.get(id), &costs[id], &readers[id][..]);
    // What follows from a template's result in a wider dtype with little work is not stored in place of that result.
    let narrower = cost.templates.iter().any(|t| defs.get(*t).dtype.size() < def.dtype.size());
    let little = narrower && !cost.heavy && cost.insts <= MAX_RECOMPUTED;
    let from_template = !cost.templates.is_empty() && !little;
    if consumers.is_empty() || def.as_fill().is_some() || def.is_view() {
        return false;
    }
    if cost.insts > MAX_INLINED || is_kept(defs, consumers) {
        return true;
    }
    // Computed once when the constants are bound, instead of at every call.
    let worth = cost.loads || cost.heavy || (!def.reads().is_empty() && cost.insts > MAX_INDICES);
    if def.constant && worth && consumers.iter().any(|c| !defs.get(*c).constant) {
        return true;
    }
    let numel = defs.numel_hint(&def.sizes);
    // The template's result is stored anyway unless all its readers are elementwise: then the final value is stored.
    if from_template && consumers.iter().any(|c| defs.numel_hint(&defs.get(*c).domain()) != numel) {
        return true;
    }
    // A reader that has memory itself computes each of its points once; another one is computed again by each of its own readers.
    let stored = |c: BufId| {
        defs.get(c).realized || defs.get(c).output || readers[c].iter().any(|r| computes(defs, *r))
    };
    let read_often = consumers.iter().any(|&c| {
        let points = defs.numel_hint(&defs.get(c).domain());
        if stored(c) { spreads(numel, points) } else { points > numel }
    });
    if cost.heavy && read_often {
        return true;
    }
    if narrows(defs, id) {
        return true;
    }
    if cost.again && consumers.len() <= MAX_AGAIN {
        return false;
    }
    consumers.len() > 1
        && (cost.heavy || from_template || takes_long_again(def, cost, consumers.len() as u32))
}

/// Whether computing a value for each of its readers takes longer than storing and loading it.
fn takes_long_again(def: &Def, cost: &Cost, readers: u32) -> bool {
    let own = def.dtype.size() as u32;
    if cost.full_bytes < cost.full_loads * own {
        // Its operands are narrower than the value: what counts is the bytes that move.
        let (again, stored) = (readers * cost.full_bytes, cost.full_bytes + (readers + 1) * own);
        return again > stored || cost.insts > 2 * MAX_RECOMPUTED;
    }
    cost.full_loads > 1 || cost.insts > MAX_RECOMPUTED
}

/// Whether it is the result of a reduction or scan without other readers, in a smaller dtype: it can be stored instead of
/// that result, with fewer bytes.
fn narrows(defs: &Defs, id: BufId) -> bool {
    let def = defs.get(id);
    if def.reads().iter().all(|read| defs.get(*read).dtype.size() <= def.dtype.size()) {
        return false;
    }
    let Some(Some(source)) = only_source(defs, id, defs.numel_hint(&def.sizes)) else { return false };
    let source = defs.get(source);
    let fuses = matches!(source.kind, DefKind::Reduce { .. } | DefKind::Scan { .. });
    fuses && def.dtype.size() < source.dtype.size()
}

/// The realized value of at least `numel` elements that a definition is computed from, where it is the only one and has no
/// other reader; `Some(None)` where there is none.
fn only_source(defs: &Defs, id: BufId, numel: i64) -> Option<Option<BufId>> {
    let mut found: Option<BufId> = None;
    for read in defs.get(id).reads() {
        let source = defs.get(read);
        let inner = match source.realized {
            true => (defs.numel_hint(&source.sizes) >= numel).then_some(read),
            false => only_source(defs, read, numel)?,
        };
        if inner.is_some() && (found.is_some() || source.users != 1 || source.output) {
            return None;
        }
        found = inner.or(found);
    }
    Some(found)
}

/// Strides for a value's memory: dense, dimensions in the order in which its largest source has them, or a Fourier transform's
/// operand, whose lines are written as they are read; convolutions channels-last; attention with the heads inside the positions, as its readers access it.
pub(crate) fn layout(defs: &Defs, id: BufId) -> Shape {
    let def = defs.get(id);
    let rank = def.sizes.len();
    let order: Vec<usize> = match &def.kind {
        DefKind::Template(TemplateSpec::Conv { .. }) if rank >= 3 => {
            [0].into_iter().chain(2..rank).chain([1]).collect()
        }
        DefKind::Template(TemplateSpec::Attention { .. })
        | DefKind::Extern { op: ExternOp::AttentionBackward { .. }, .. }
            if rank == 4 =>
        {
            vec![0, 2, 1, 3]
        }
        DefKind::Extern { op: ExternOp::Fourier { .. }, inputs, .. } => {
            let order = inputs.first().and_then(|v| memory_order(defs, *v));
            order.unwrap_or_else(|| (0..rank).collect())
        }
        DefKind::Loop { .. } | DefKind::Reduce { .. } | DefKind::Scan { .. } => {
            source_order(defs, def).unwrap_or_else(|| (0..rank).collect())
        }
        _ => (0..rank).collect(),
    };
    dense(&def.sizes, &order)
}

/// The order of the dimensions of an operand in memory, outermost first; `None` where elements share memory.
fn memory_order(defs: &Defs, v: BufId) -> Option<Vec<usize>> {
    let operand = affine::operand(defs, v)?;
    let strides: Vec<i64> = operand.strides.iter().map(|s| defs.hint(s).abs()).collect();
    let single = |d: usize| operand.sizes[d] == SymExpr::ONE;
    let apart = (0..strides.len()).all(|d| single(d) || strides[d] != 0);
    let mut order: Vec<usize> = (0..strides.len()).collect();
    // Dimensions of size 1 keep their place among the others.
    order.sort_by_key(|&d| if single(d) { 0 } else { -strides[d] });
    apart.then_some(order)
}

/// Dense strides with the dimensions in `order`, outermost first.
pub(crate) fn dense(sizes: &[SymExpr], order: &[usize]) -> Shape {
    let permuted: Shape = order.iter().map(|&d| sizes[d].clone()).collect();
    let mut strides: Shape = sizes.iter().map(|_| SymExpr::ONE).collect();
    for (stride, &d) in ir_core::contiguous_strides(&permuted).into_iter().zip(order) {
        strides[d] = stride;
    }
    strides
}

/// The order of the dimensions in the largest operand, where that is strided in every one of them.
fn source_order(defs: &Defs, def: &Def) -> Option<Vec<usize>> {
    let rank = def.sizes.len();
    if rank < 2 {
        return None;
    }
    let symbols = SymBounds(defs);
    let domain = def.domain();
    let bounds = LoopBounds { extents: &domain, symbols: &symbols };
    let at: Shape = (0..domain.len() as u32).map(SymExpr::loop_var).collect();
    let mut b = BodyBuilder::new();
    Inliner::new(defs, &bounds).body(&mut b, &mut no_forward, def.insts(), &at, None);
    let depends = dependences(b.insts());
    let own = defs.numel_hint(&def.sizes);
    let mut best: Option<((bool, i64), Vec<i64>)> = None;
    for inst in b.insts() {
        let InstKind::Load { buf, index, .. } = &inst.kind else { continue };
        let source = defs.get(*buf);
        let whole = affine::address(index, &source.strides).simplify(&bounds);
        let steps: Option<Vec<i64>> = (0..rank as u32)
            .map(|d| {
                let through = through_values(defs, &whole, d, &depends)?;
                Some(step(defs, &whole, d, &domain[d as usize])?.abs().max(through))
            })
            .collect();
        let Some(steps) = steps else { continue };
        let covers = steps.iter().zip(&def.sizes).all(|(s, size)| *s != 0 || *size == SymExpr::ONE);
        let numel = defs.numel_hint(&source.sizes);
        // A table that is looked up stays in the caches, whatever the order, and decides only where nothing else does: then its rows
        // are read as they lie.
        let table = whole.any_leaf(|a| matches!(a, Atom::Value(_))) && numel.saturating_mul(TABLE) < own;
        let size = (!table, numel);
        if covers && best.as_ref().is_none_or(|(n, _)| size > *n) {
            best = Some((size, steps));
        }
    }
    let (_, steps) = best?;
    let mut order: Vec<usize> = (0..rank).collect();
    // Dimensions of size 1 keep their place among the others.
    order.sort_by_key(|&d| if def.sizes[d] == SymExpr::ONE { 0 } else { -steps[d].abs() });
    Some(order)
}

/// Of each instruction, the loop variables that its value depends on, as bits.
fn dependences(insts: &[Inst]) -> Vec<u64> {
    let mut all: Vec<u64> = Vec::with_capacity(insts.len());
    for inst in insts {
        let mut own = 0u64;
        // A condition says whether an element is read, not which.
        let condition = match &inst.kind {
            InstKind::Load { mask, .. } | InstKind::Check { mask, .. } => *mask,
            _ => None,
        };
        inst.kind.for_each_val(&mut |v| {
            if Some(v) != condition {
                own |= all.get(v.0 as usize).copied().unwrap_or(0);
            }
        });
        let mut leaf = |a: &Atom| match a {
            Atom::Loop(d) => own |= 1u64.checked_shl(*d).unwrap_or(0),
            Atom::Value(v) => own |= all.get(*v as usize).copied().unwrap_or(0),
            _ => {}
        };
        match &inst.kind {
            InstKind::Index(e) => e.for_each_leaf(&mut leaf),
            InstKind::Load { index, .. } => index.iter().for_each(|e| e.for_each_leaf(&mut leaf)),
            _ => {}
        }
        all.push(own);
    }
    all
}

/// The stride in memory of a step of loop variable `d` that moves an index from data by one: the positions between which an image
/// is interpolated, say. `None` where an address is not affine in such an index.
fn through_values(defs: &Defs, address: &SymExpr, d: u32, depends: &[u64]) -> Option<i64> {
    let mut values: SmallVec<[u32; 4]> = SmallVec::new();
    address.for_each_leaf(&mut |a| {
        if let Atom::Value(v) = a
            && depends.get(*v as usize).is_some_and(|on| on >> d & 1 == 1)
        {
            values.push(*v);
        }
    });
    let mut all = 0i64;
    for v in values {
        let (coef, _) = address.affine_in(&Atom::Value(v))?;
        all = all.max(defs.hint(&coef).abs());
    }
    Some(all)
}

/// The stride in memory of loop variable `d`, of the given extent, at the symbols' hints: the average over some steps where
/// they are not equal (an element that is read for several points, a window's remainder). `None` where it depends on
/// values.
pub(crate) fn step(defs: &Defs, address: &SymExpr, d: u32, extent: &SymExpr) -> Option<i64> {
    const LOOKED_AT: i64 = 16;
    if let Some((coef, _)) = address.affine_in(&Atom::Loop(d)) {
        return Some(defs.hint(&coef));
    }
    if address.any_leaf(|a| matches!(a, Atom::Value(_))) {
        return None;
    }
    let place = |n: i64| {
        let at = |a: &Atom| match a {
            Atom::Loop(v) => Some(SymExpr::from_i64(if *v == d { n } else { 0 })),
            _ => None,
        };
        defs.hint(&address.subst(&at))
    };
    let steps = defs.hint(extent).saturating_sub(1).clamp(0, LOOKED_AT);
    // Operands far out of range give addresses that no number holds.
    let each = (0..steps).map(|n| place(n + 1).saturating_sub(place(n)).saturating_abs());
    let sum = each.fold(0, i64::saturating_add);
    Some(sum.saturating_add(steps - 1).checked_div(steps).unwrap_or(0))
}
