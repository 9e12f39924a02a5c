//! Groups independent steps that are too small for a launch, or a parallel region, of their own (horizontal fusion): the
//! updates of all parameters whatever their shapes, sums over channels, products of a few rows. It maps a program to a
//! program, over finished steps; what each step computes is unchanged, only their order changes.
//!
//! A step joins an earlier group of its kind where no step in between depends on it or it on them; or the group is delayed
//! to the step, where no step in between depends on the group. The backend decides whether a group becomes one launch. Not
//! here: fusion of loops over the same points (`schedule`, `merge`).

use ir_core::{EntityId, SymExpr};
use kernel_ir::{ArenaPlan, BufId, Footprint, Program, Step, Storage, Together};

/// Bytes of temporary memory that a member may write, and that a delayed group may read: their live ranges grow, so larger
/// ones would enlarge the arena noticeably. New values of inputs and outputs of the call have memory of their own.
const MAX_BYTES: i64 = 1 << 16;
/// The same for all members of a group.
const MAX_GROUP_BYTES: i64 = 1 << 20;
/// Most rows of a product that is bound by reading its matrix; those of more rows fill a device by themselves.
const MAX_ROWS: i64 = 16;

/// Rewrites the steps of a call, and its memory plan where they changed.
pub(crate) fn run(program: &mut Program) {
    let before = std::mem::take(&mut program.steps);
    let count = before.len();
    let steps = arranged(program, before);
    let changed = steps.len() != count || steps.iter().any(|s| !s.nested().is_empty());
    program.steps = steps;
    if changed {
        program.plan = ArenaPlan::of(program);
    }
}

/// The common property of a group's members, by which one launch is likely to suit all of them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Points,
    Reductions,
    Products,
}

/// A step, or a group of them.
struct Slot {
    /// `None` where no other step may join.
    kind: Option<Kind>,
    steps: Vec<Step>,
    footprint: Footprint,
    /// Bytes of temporary memory that the members write, and those that they read.
    written: i64,
    read: i64,
}

fn arranged(program: &Program, steps: Vec<Step>) -> Vec<Step> {
    let mut slots: Vec<Slot> = Vec::with_capacity(steps.len());
    for mut step in steps {
        for list in step.nested_mut() {
            *list = arranged(program, std::mem::take(list));
        }
        let slot = Slot::new(program, step);
        if let Some(n) = earlier(&slots, &slot) {
            slots[n].take(slot);
        } else if let Some(n) = waiting(program, &slots, &slot) {
            let mut group = slots.remove(n);
            group.take(slot);
            slots.push(group);
        } else {
            slots.push(slot);
        }
    }
    slots.into_iter().flat_map(joined).collect()
}

impl Slot {
    fn new(program: &Program, step: Step) -> Slot {
        let footprint = Footprint::of(program, &step);
        let bytes =
            |list: &[BufId]| list.iter().map(|b| arena_bytes(program, *b)).fold(0, i64::saturating_add);
        let (written, read) = (bytes(&footprint.writes), bytes(&footprint.reads));
        let kind = kind(program, &step).filter(|_| written <= MAX_BYTES);
        Slot { kind, steps: vec![step], footprint, written, read }
    }

    fn take(&mut self, other: Slot) {
        self.footprint.extend(&other.footprint);
        self.steps.extend(other.steps);
        self.written = self.written.saturating_add(other.written);
        self.read = self.read.saturating_add(other.read);
    }

    /// Whether both may form one group as far as kind and size are concerned.
    fn suits(&self, other: &Slot) -> bool {
        self.kind.is_some()
            && self.kind == other.kind
            && self.written.saturating_add(other.written) <= MAX_GROUP_BYTES
    }
}

/// The latest group that a step may join at the group's place.
fn earlier(slots: &[Slot], step: &Slot) -> Option<usize> {
    for (n, slot) in slots.iter().enumerate().rev() {
        if step.kind.is_none() || is_fixed(slot) || slot.footprint.clash(&step.footprint).is_some() {
            return None;
        }
        if slot.suits(step) {
            return Some(n);
        }
    }
    None
}

/// The latest group that may be delayed to a step: no step after the group uses what it writes, or writes what it uses.
fn waiting(program: &Program, slots: &[Slot], step: &Slot) -> Option<usize> {
    // For each buffer whether a step after the group reads it, and whether it writes it.
    let mut behind = vec![(false, false); program.buffers.len()];
    let pass = |f: &Footprint, behind: &mut [(bool, bool)]| {
        f.reads.iter().for_each(|b| behind[b.index()].0 = true);
        f.writes.iter().for_each(|b| behind[b.index()].1 = true);
    };
    let free = |f: &Footprint, behind: &[(bool, bool)]| {
        f.reads.iter().all(|b| !behind[b.index()].1)
            && f.writes.iter().all(|b| behind[b.index()] == (false, false))
    };
    pass(&step.footprint, &mut behind);
    for (n, slot) in slots.iter().enumerate().rev() {
        if step.kind.is_none() || is_fixed(slot) {
            return None;
        }
        if slot.suits(step) && slot.read <= MAX_BYTES && free(&slot.footprint, &behind) {
            return Some(n);
        }
        pass(&slot.footprint, &mut behind);
    }
    None
}

/// Whether nothing may move past it: it binds a size, or the steps after it do not always run.
fn is_fixed(slot: &Slot) -> bool {
    let fixed = |s: &Step| matches!(s, Step::Bind(_) | Step::Assert(_)) || !s.nested().is_empty();
    slot.steps.iter().any(fixed)
}

fn joined(slot: Slot) -> Vec<Step> {
    let Slot { steps, .. } = slot;
    match &steps[..] {
        [first, _, ..] => {
            let name = format!("{}_and_{}_more", first.name(), steps.len() - 1);
            vec![Step::Together(Together { name, steps })]
        }
        _ => steps,
    }
}

fn kind(program: &Program, step: &Step) -> Option<Kind> {
    match step {
        Step::Loop(k) if k.accs.is_empty() && k.stages.iter().all(|s| s.inner.is_empty()) => {
            Some(Kind::Points)
        }
        Step::Loop(_) => Some(Kind::Reductions),
        // Their rows are spread over matrices: how many of them a launch reads is not known before.
        Step::Matmul(k) if k.groups.is_some() => None,
        Step::Matmul(k) => {
            let rows = k.epilogue.ranges.iter().rev().nth(1)?;
            (hint(program, rows) <= MAX_ROWS).then_some(Kind::Products)
        }
        _ => None,
    }
}

/// Bytes of arena memory of a buffer.
fn arena_bytes(program: &Program, buf: BufId) -> i64 {
    let buffer = &program.buffers[buf];
    match buffer.storage {
        Storage::Arena => hint(program, &buffer.span()).saturating_mul(buffer.dtype.size() as i64),
        _ => 0,
    }
}

/// The value of a size at the symbols' hints.
fn hint(program: &Program, e: &SymExpr) -> i64 {
    e.eval(&|a| program.symbols.likely(a, crate::defs::LIKELY)).unwrap_or(i64::MAX)
}
