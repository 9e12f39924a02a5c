//! New values of inputs that are stored in the inputs' own memory: partial updates are reduced to the part that changes,
//! chains of them are found, and groups are ordered so that old values are read before they are overwritten.
//!
//! This is preparation, not proof: [`kernel_ir::hazards`] judges the finished program, and what it refuses is computed into
//! a temporary and copied at the end of the call (`emit`).

use fx_ir::{Arg, Graph, InputKind, OutputKind, ValueId};
use ir_core::{Atom, DType, Scalar, Shape, SymExpr};
use kernel_ir::{BodyBuilder, BufId, Inst, InstKind, LoopBounds, ScalarOp, StoreMode, Val};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::affine::SymBounds;
use crate::defs::{DefKind, Defs};
use crate::inline::{Inliner, convert};
use crate::schedule::Schedule;

/// For each output of the graph the parameter or buffer that it is the new value of, where that can be written in place:
/// it has the new value's dtype and sizes and is dense. For [`Options::written`](crate::Options).
pub fn buffer_writes(graph: &Graph) -> Vec<Option<ValueId>> {
    writes(graph, false)
}

/// As [`buffer_writes`], and inputs of the call of which an output is the new value: for callers that lend inputs for
/// writing.
pub fn input_writes(graph: &Graph) -> Vec<Option<ValueId>> {
    writes(graph, true)
}

fn writes(graph: &Graph, of_inputs: bool) -> Vec<Option<ValueId>> {
    let mut taken: FxHashSet<ValueId> = FxHashSet::default();
    let one = |output: &fx_ir::Output| {
        let Arg::Value(new) = &output.arg else { return None };
        let (wanted, is_state) = match &output.kind {
            OutputKind::BufferMutation(name) => (name, true),
            OutputKind::InputMutation(name) if of_inputs => (name, false),
            _ => return None,
        };
        let fits = |kind: InputKind| match is_state {
            true => !matches!(kind, InputKind::User | InputKind::Seed),
            false => kind == InputKind::User,
        };
        let (old, _, _) = graph.inputs().find(|(_, kind, name)| fits(*kind) && name == wanted)?;
        let (was, is) = (graph.meta(old)?, graph.meta(*new)?);
        (was.dtype == is.dtype && was.sizes == is.sizes && was.memory_order().is_some() && taken.insert(old))
            .then_some(old)
    };
    graph.outputs.iter().map(one).collect()
}

/// A new value that is stored in an input's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    /// The new value.
    pub(crate) def: BufId,
    /// The input.
    pub(crate) input: BufId,
}

/// Reduces new values that differ from the old ones only in a part (`slice_scatter`) to that part, and gives updates in
/// several steps (`index_put` of `index_put`) the input's layout. Runs after `realize`.
pub(crate) fn narrow(defs: &mut Defs) {
    for write in defs.written.clone() {
        if let Some(part) = part(defs, write) {
            defs.get_mut(write.def).kind = part;
        }
        let strides = defs.get(write.input).strides.clone();
        for def in lineage(defs, write) {
            defs.get_mut(def).strides = strides.clone();
        }
    }
}

/// The scatters that compute the new value from the old one, last first; none where it is computed in another way.
pub(crate) fn lineage(defs: &Defs, write: Write) -> Vec<BufId> {
    let mut chain = Vec::new();
    let mut at = write.def;
    loop {
        let def = defs.get(at);
        let DefKind::Scatter { base, .. } = &def.kind else { return Vec::new() };
        if at != write.def && (def.output || def.constant) {
            return Vec::new();
        }
        chain.push(at);
        if *base == write.input {
            return chain;
        }
        at = *base;
    }
}

/// Most nested choices that are examined.
const MAX_DEPTH: usize = 4;

/// The new value as a scatter of the elements that differ from the old ones, where it is one box of them.
fn part(defs: &Defs, write: Write) -> Option<DefKind> {
    let def = defs.get(write.def);
    if !matches!(def.kind, DefKind::Loop { .. }) {
        return None;
    }
    let mut ranges = def.sizes.clone();
    let mut at: Shape = (0..ranges.len() as u32).map(SymExpr::loop_var).collect();
    // A slice of a slice is a nested choice; the outer one is decided once the loops are restricted.
    let mut spliced = InlinedBody::new(defs, write, &at, &ranges);
    for _ in 0..MAX_DEPTH {
        let Some(cut) = spliced.cut() else { break };
        for (d, (start, extent)) in cut.into_iter().enumerate() {
            let Some(extent) = extent else { continue };
            let moved = if extent == SymExpr::ONE { start } else { SymExpr::loop_var(d as u32) + start };
            let here = |a: &Atom| (*a == Atom::Loop(d as u32)).then(|| moved.clone());
            at.iter_mut().for_each(|e| *e = e.subst(&here));
            ranges[d] = extent;
        }
        spliced = InlinedBody::new(defs, write, &at, &ranges);
    }
    if ranges == def.sizes {
        return None;
    }
    let InlinedBody { b, value, .. } = spliced;
    Some(DefKind::Scatter {
        base: write.input,
        ranges,
        insts: b.finish(),
        index: at,
        value,
        mode: StoreMode::Write,
    })
}

/// The start of each loop, and its extent where that is less than the whole.
type IterationRange = Vec<(SymExpr, Option<SymExpr>)>;

/// The body of a new value over a part of its points, with everything without memory inlined.
struct InlinedBody<'a> {
    write: Write,
    at: Shape,
    ranges: Shape,
    symbols: SymBounds<'a>,
    b: BodyBuilder,
    value: Val,
}

impl<'a> InlinedBody<'a> {
    fn new(defs: &'a Defs, write: Write, at: &Shape, ranges: &Shape) -> InlinedBody<'a> {
        let symbols = SymBounds(defs);
        let bounds = LoopBounds { extents: ranges, symbols: &symbols };
        let mut b = BodyBuilder::new();
        let def = defs.get(write.def);
        // Masks that are computed once, before every call, are used as they are.
        let mut seen_through = |b: &mut BodyBuilder, id: BufId, index: &[SymExpr]| {
            let of = defs.get(id);
            let DefKind::Loop { insts, value } = &of.kind else { return None };
            if !of.realized || !index_only(defs, id, 8) {
                return None;
            }
            let vals = whole(defs, &bounds, b, insts, index);
            Some(convert(b, vals[value.0 as usize], of.dtype))
        };
        let vals = Inliner::new(defs, &bounds).body(&mut b, &mut seen_through, def.insts(), at, None);
        let mut value = match &def.kind {
            DefKind::Loop { value, .. } => convert(&mut b, vals[value.0 as usize], def.dtype),
            _ => Val(0),
        };
        (b, value) = folded(&b, value, &bounds);
        InlinedBody { write, at: at.clone(), ranges: ranges.clone(), symbols, b, value }
    }

    fn kind(&self, v: Val) -> &InstKind {
        &self.b.insts()[v.0 as usize].kind
    }

    /// The operand of a chain of conversions.
    fn without_conversions(&self, mut v: Val) -> Val {
        while let InstKind::Cast(of) = self.kind(v) {
            v = *of;
        }
        v
    }

    /// `mask ? new : old`, where the value has this form: the mask and the new value.
    fn choice(&self) -> Option<(Val, Val)> {
        let InstKind::Op { op: ScalarOp::Select, args } = self.kind(self.without_conversions(self.value))
        else {
            return None;
        };
        let old = self.kind(self.without_conversions(args[2]));
        let same = |index: &[SymExpr]| {
            let bounds = LoopBounds { extents: &self.ranges, symbols: &self.symbols };
            index.iter().zip(&self.at).all(|(e, at)| *e == *at || e.simplify(&bounds) == at.simplify(&bounds))
        };
        // A conversion to fewer bits and back would not give the old value; there is none where its dtype is that of a
        // choice in a wider one.
        let kept = matches!(old, InstKind::Load { buf, index, mask: None } if *buf == self.write.input && same(index));
        kept.then_some((args[0], args[1]))
    }

    /// The box of points where the new value is selected.
    fn cut(&self) -> Option<IterationRange> {
        let (mask, _) = self.choice()?;
        let mut limits: Vec<[Option<SymExpr>; 2]> = vec![[None, None]; self.ranges.len()];
        self.limit(mask, &mut limits)?;
        let bounds = LoopBounds { extents: &self.ranges, symbols: &self.symbols };
        let one = |([low, high], extent): ([Option<SymExpr>; 2], &SymExpr)| {
            if low.is_none() && high.is_none() {
                return (SymExpr::ZERO, None);
            }
            let low = low.unwrap_or_default().sym_max(&SymExpr::ZERO).simplify(&bounds);
            let high = high.unwrap_or_else(|| extent.clone()).sym_min(extent).simplify(&bounds);
            let length = (high - &low).sym_max(&SymExpr::ZERO).simplify(&bounds);
            (low, Some(length))
        };
        Some(limits.into_iter().zip(&self.ranges).map(one).collect())
    }

    /// Adds the bounds that a mask implies for the loops; `None` where it implies anything else.
    fn limit(&self, mask: Val, limits: &mut [[Option<SymExpr>; 2]]) -> Option<()> {
        let InstKind::Op { op, args } = self.kind(mask) else { return None };
        if *op == ScalarOp::And {
            self.limit(args[0], limits)?;
            return self.limit(args[1], limits);
        }
        let e = number(&self.b, args[0])? - number(&self.b, args[1])?;
        let at = (0..self.ranges.len() as u32)
            .find(|d| e.any_leaf(|a| *a == Atom::Loop(*d)) && self.ranges[*d as usize] != SymExpr::ONE)?;
        let (coef, rest) = e.affine_in(&Atom::Loop(at))?;
        if rest.any_leaf(|a| !matches!(a, Atom::Sym(_))) {
            return None;
        }
        // `i` against `place`, or the other way round.
        let (op, place) = match coef.as_const()? {
            1 => (*op, -rest),
            -1 => (mirrored(*op)?, rest),
            _ => return None,
        };
        let (low, high) = match op {
            ScalarOp::Ge => (Some(place), None),
            ScalarOp::Gt => (Some(place + 1), None),
            ScalarOp::Lt => (None, Some(place)),
            ScalarOp::Le => (None, Some(place + 1)),
            ScalarOp::Eq => (Some(place.clone()), Some(place + 1)),
            _ => return None,
        };
        let [from, to] = &mut limits[at as usize];
        if let Some(low) = low {
            *from = Some(from.take().map_or(low.clone(), |other| other.sym_max(&low)));
        }
        if let Some(high) = high {
            *to = Some(to.take().map_or(high.clone(), |other| other.sym_min(&high)));
        }
        Some(())
    }
}

/// Whether a value depends on its index alone: loops over numbers, at most `depth` levels deep.
fn index_only(defs: &Defs, id: BufId, depth: usize) -> bool {
    let def = defs.get(id);
    depth > 0
        && matches!(def.kind, DefKind::Loop { .. })
        && def.reads().into_iter().all(|read| index_only(defs, read, depth - 1))
}

/// A body with everything that it reads inlined, where [`index_only`] holds for that.
fn whole(
    defs: &Defs,
    bounds: &LoopBounds<'_>,
    b: &mut BodyBuilder,
    insts: &[Inst],
    at: &[SymExpr],
) -> Vec<Val> {
    let mut inner = |b: &mut BodyBuilder, id: BufId, index: &[SymExpr]| {
        let of = defs.get(id);
        let DefKind::Loop { insts, value } = &of.kind else { return None };
        let vals = whole(defs, bounds, b, insts, index);
        Some(convert(b, vals[value.0 as usize], of.dtype))
    };
    Inliner::new(defs, bounds).body(b, &mut inner, insts, at, None)
}

/// The same body with the comparisons folded that the loops' extents decide, and their consequences.
fn folded(from: &BodyBuilder, value: Val, bounds: &LoopBounds<'_>) -> (BodyBuilder, Val) {
    let mut b = BodyBuilder::new();
    let mut new: Vec<Val> = Vec::with_capacity(from.insts().len());
    for inst in from.insts() {
        let at = |v: &Val| new[v.0 as usize];
        let expr = |b: &BodyBuilder, e: &SymExpr| {
            let e = e.subst(&|a| match a {
                Atom::Value(v) => Some(b.as_index(new[*v as usize])),
                _ => None,
            });
            e.simplify(bounds)
        };
        let v = match &inst.kind {
            InstKind::Const(s) => b.constant(*s, inst.dtype),
            InstKind::Index(e) => {
                let e = expr(&b, e);
                b.index(e)
            }
            InstKind::Load { buf, index, mask } => {
                let index: Shape = index.iter().map(|e| expr(&b, e)).collect();
                let mask = mask.as_ref().map(at);
                match mask.and_then(|m| b.as_const(m)).map(Scalar::as_bool) {
                    Some(false) => b.constant(Scalar::zero(inst.dtype), inst.dtype),
                    Some(true) => b.push(inst.dtype, InstKind::Load { buf: *buf, index, mask: None }),
                    None => b.push(inst.dtype, InstKind::Load { buf: *buf, index, mask }),
                }
            }
            InstKind::Op { op, args } => {
                let args: Vec<Val> = args.iter().map(at).collect();
                decided(&mut b, *op, &args, bounds).unwrap_or_else(|| b.op(*op, &args))
            }
            InstKind::Cast(v) => match b.insts()[at(v).0 as usize].kind {
                // A conversion there and back is the identity where the first one loses nothing.
                InstKind::Cast(of) if b.dtype(of) == inst.dtype && b.dtype(at(v)) == inst.dtype.compute() => {
                    of
                }
                _ => b.cast(at(v), inst.dtype),
            },
            InstKind::Bitcast(v) => b.push(inst.dtype, InstKind::Bitcast(at(v))),
            InstKind::Check { value, size, mask, site } => {
                let size = expr(&b, size);
                let mask = mask.as_ref().map(at);
                match mask.and_then(|m| b.as_const(m)).map(Scalar::as_bool) {
                    Some(false) => at(value),
                    Some(true) => b.check(at(value), size, None, *site),
                    None => b.check(at(value), size, mask, *site),
                }
            }
            // Recorded bodies hold nothing else.
            other => b.push(inst.dtype, other.clone()),
        };
        new.push(v);
    }
    let value = new[value.0 as usize];
    (b, value)
}

/// The value of an operator where it is known.
fn decided(b: &mut BodyBuilder, op: ScalarOp, args: &[Val], bounds: &LoopBounds<'_>) -> Option<Val> {
    let truth = |b: &BodyBuilder, v: Val| {
        if b.dtype(v) == DType::Bool { b.as_const(v).map(Scalar::as_bool) } else { None }
    };
    match (op, args) {
        (ScalarOp::Select, [mask, yes, no]) => {
            truth(b, *mask).map(|m| if m { *yes } else { *no }).or((yes == no).then_some(*yes))
        }
        (ScalarOp::And, [x, y]) => match (truth(b, *x), truth(b, *y)) {
            (Some(true), _) => Some(*y),
            (_, Some(true)) => Some(*x),
            (Some(false), _) => Some(*x),
            (_, Some(false)) => Some(*y),
            _ => None,
        },
        (ScalarOp::Ge | ScalarOp::Gt | ScalarOp::Lt | ScalarOp::Le, [x, y]) => {
            let (x, y) = (number(b, *x)?, number(b, *y)?);
            let holds = |low: &SymExpr, high: &SymExpr| (high - low).is_non_negative(bounds);
            let less = |low: &SymExpr, high: &SymExpr| low.is_less_than(high, bounds);
            let known = match op {
                ScalarOp::Ge if holds(&y, &x) => true,
                ScalarOp::Ge if less(&x, &y) => false,
                ScalarOp::Gt if less(&y, &x) => true,
                ScalarOp::Gt if holds(&x, &y) => false,
                ScalarOp::Lt if less(&x, &y) => true,
                ScalarOp::Lt if holds(&y, &x) => false,
                ScalarOp::Le if holds(&x, &y) => true,
                ScalarOp::Le if less(&y, &x) => false,
                _ => return None,
            };
            Some(b.constant(known, DType::Bool))
        }
        _ => None,
    }
}

/// An integer known from loops and sizes.
fn number(b: &BodyBuilder, v: Val) -> Option<SymExpr> {
    match &b.insts()[v.0 as usize].kind {
        InstKind::Index(e) if !e.any_leaf(|a| matches!(a, Atom::Value(_))) => Some(e.clone()),
        InstKind::Const(s) if b.dtype(v) == DType::I64 => Some(SymExpr::from_i64(s.as_i64())),
        _ => None,
    }
}

/// The comparison with exchanged operands.
fn mirrored(op: ScalarOp) -> Option<ScalarOp> {
    Some(match op {
        ScalarOp::Ge => ScalarOp::Le,
        ScalarOp::Gt => ScalarOp::Lt,
        ScalarOp::Le => ScalarOp::Ge,
        ScalarOp::Lt => ScalarOp::Gt,
        ScalarOp::Eq => ScalarOp::Eq,
        _ => return None,
    })
}

/// Bytes of temporaries from which an update that reads them runs as soon as it can, so that their memory is free for the next. Smaller
/// updates keep their order, side by side with others that they share a launch with.
const LARGE: i64 = 8 << 20;

/// Moves groups that overwrite an input after those that read its old value, where these do not need the new one, and updates
/// by large gradients to where these are computed. Groups keep their order otherwise, exchanges among themselves always.
pub(crate) fn postpone(defs: &Defs, s: &mut Schedule) {
    // Definitions that bind a size or assert something keep their place.
    if defs.written.is_empty() || !defs.binders.is_empty() || !defs.effects.is_empty() {
        return;
    }
    let mut order = Order::new(defs, s);
    for write in &defs.written {
        let mut old = write.input;
        let chain = lineage(defs, *write);
        let steps: Vec<BufId> =
            if chain.is_empty() { vec![write.def] } else { chain.into_iter().rev().collect() };
        for new in steps {
            order.read_before(s, old, new);
            old = new;
        }
    }
    let sorted = order.sorted(&frees(defs, s));
    debug_assert_eq!(sorted.len(), s.groups.len(), "the order of groups has a cycle");
    if sorted.len() != s.groups.len() {
        return;
    }
    let mut place = vec![0; sorted.len()];
    sorted.iter().enumerate().for_each(|(to, from)| place[*from] = to);
    let mut groups: Vec<_> = std::mem::take(&mut s.groups).into_iter().map(Some).collect();
    s.groups = sorted.iter().filter_map(|from| groups[*from].take()).collect();
    s.group_of.values_mut().for_each(|g| *g = place[*g]);
}

/// The groups that overwrite an input and read large temporaries. None where ranks exchange gradients, whose updates have a place
/// among the exchanges.
fn frees(defs: &Defs, s: &Schedule) -> FxHashSet<usize> {
    let writes = defs.written.iter().filter(|_| defs.exchanges.is_empty());
    let groups = writes.filter_map(|write| s.group_of.get(&write.def).copied());
    let read = |g: &usize| {
        let loads = s.groups[*g].members.iter().filter_map(|m| s.loads.get(&m.def)).flatten();
        let roots: FxHashSet<BufId> =
            loads.map(|(buf, _)| *buf).filter(|buf| is_temporary(defs, *buf)).collect();
        let bytes = roots.into_iter().map(|buf| {
            let def = defs.get(buf);
            defs.numel_hint(&def.sizes).saturating_mul(def.dtype.size() as i64)
        });
        bytes.fold(0, i64::saturating_add)
    };
    groups.filter(|g| read(g) >= LARGE).collect()
}

/// Whether a definition has memory for the time of the call alone.
fn is_temporary(defs: &Defs, id: BufId) -> bool {
    let def = defs.get(id);
    def.realized && !def.output && !def.constant && !matches!(def.kind, DefKind::Input | DefKind::Constant)
}

/// The groups and their order constraints.
struct Order {
    /// For each group its successors.
    after: Vec<Vec<usize>>,
    /// For each value the groups that read it.
    readers: FxHashMap<BufId, Vec<usize>>,
}

impl Order {
    fn new(defs: &Defs, s: &Schedule) -> Order {
        let mut order = Order { after: vec![Vec::new(); s.groups.len()], readers: FxHashMap::default() };
        // Ranks exchange in one order, that of the graph: what else differs between their programs must not change it.
        let exchanges = defs.exchanges.iter().filter_map(|id| s.group_of.get(id));
        let mut exchanges: Vec<usize> = exchanges.copied().collect();
        exchanges.sort_unstable();
        exchanges.windows(2).for_each(|pair| order.after[pair[0]].push(pair[1]));
        for (g, group) in s.groups.iter().enumerate() {
            for member in &group.members {
                for (read, _) in s.loads.get(&member.def).into_iter().flatten() {
                    order.readers.entry(*read).or_default().push(g);
                    if let Some(&from) = s.group_of.get(read)
                        && from != g
                    {
                        order.after[from].push(g);
                    }
                }
                // All results of one call are computed with the first one.
                if let DefKind::Extern { outputs, .. } | DefKind::Control { outputs, .. } =
                    &defs.get(member.def).kind
                    && let Some(&first) = outputs.iter().find_map(|o| s.group_of.get(o))
                    && first < g
                {
                    order.after[first].push(g);
                }
            }
        }
        order
    }

    /// Orders all groups that read `old` before the one that computes `new`, except those that come after it.
    fn read_before(&mut self, s: &Schedule, old: BufId, new: BufId) {
        let Some(&writer) = s.group_of.get(&new) else { return };
        for reader in self.readers.get(&old).cloned().unwrap_or_default() {
            if reader != writer && !self.reaches(writer, reader) {
                self.after[reader].push(writer);
            }
        }
    }

    fn reaches(&self, from: usize, to: usize) -> bool {
        let (mut open, mut seen) = (vec![from], FxHashSet::default());
        while let Some(at) = open.pop() {
            if at == to {
                return true;
            }
            if seen.insert(at) {
                open.extend(&self.after[at]);
            }
        }
        false
    }

    /// All groups in topological order: of those that are ready one of `first` if there is one, else the lowest number.
    fn sorted(&self, first: &FxHashSet<usize>) -> Vec<usize> {
        let mut waits = vec![0usize; self.after.len()];
        self.after.iter().flatten().for_each(|g| waits[*g] += 1);
        let key = |g: usize| (!first.contains(&g), g);
        let mut ready: std::collections::BTreeSet<(bool, usize)> =
            (0..waits.len()).filter(|g| waits[*g] == 0).map(key).collect();
        let mut sorted = Vec::with_capacity(waits.len());
        while let Some((_, g)) = ready.pop_first() {
            sorted.push(g);
            for &next in &self.after[g] {
                waits[next] -= 1;
                if waits[next] == 0 {
                    ready.insert(key(next));
                }
            }
        }
        sorted
    }
}
