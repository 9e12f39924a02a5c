//! Stages whose own loops are loops of the leaf, within a step of the axis: what does not move with a loop is computed before
//! it, addresses and index values advance with it, and reductions are values that it carries, long float sums in two levels
//! as everywhere ([`crate::vir::sum_blocks`]).

use ir_core::{Atom, DType, Scalar, SymExpr};
use kernel_ir::AccId;

use super::codes as c;
use super::ir::{Inst, Invariant, Loop, Move, Number, Place, Turns, V};
use super::lower::{Input, Lower, Regs};
use crate::math::Sums;
use crate::vir::{Access, Class, VKind, VStage, sum_blocks, wants_blocks};

/// A loop of the present stage that is open.
pub(super) struct Level {
    var: u32,
    extent: SymExpr,
    /// The loop that runs through its turns, and the loop of their blocks where there are some.
    inside: u32,
    blocks: Option<u32>,
}

/// What a reduction carries from turn to turn.
#[derive(Clone)]
pub(super) struct Carried {
    pub(super) value: Regs,
    /// Positions of `argmax` and `argmin`.
    pub(super) position: Option<Regs>,
    /// The total and its compensation, where `value` is a partial sum.
    total: Option<[Regs; 2]>,
}

/// For each instruction how many of the stage's loops it is in: 0 before all of them.
fn depths(stage: &VStage) -> Vec<usize> {
    let mut out: Vec<usize> = Vec::with_capacity(stage.insts.len());
    for inst in &stage.insts {
        let mut depth = match &inst.kind {
            VKind::Store { .. } | VKind::Reduce { .. } => stage.loops.len(),
            VKind::Load { at, .. } if !at.read_only => stage.loops.len(),
            _ => 0,
        };
        if let Some(e) = inst.kind.expr() {
            e.for_each_leaf(&mut |a| {
                let level = |v: u32| stage.loops.iter().position(|d| d.var == v);
                if let Atom::Loop(v) = a {
                    depth = depth.max(level(*v).map_or(0, |n| n + 1));
                }
            });
        }
        inst.kind.for_each_val(&mut |v| depth = depth.max(out[v.0 as usize]));
        out.push(depth);
    }
    out
}

impl Lower<'_> {
    /// A stage whose loops are loops of the leaf.
    pub(super) fn looped_stage(&mut self, stage: usize) -> Option<()> {
        let kernel = self.kernel;
        let all = &kernel.stages[stage];
        let depths = depths(all);
        self.enter(stage, depths.iter().map(|d| *d > 0).collect());
        let reduced = self.reduced(all);
        let sums: Vec<AccId> = reduced.iter().copied().filter(|a| self.in_blocks(*a)).collect();
        let cut = sum_blocks(&all.loops, 1).filter(|_| !sums.is_empty());
        for acc in &reduced {
            self.carry(*acc, cut.is_some() && sums.contains(acc))?;
        }
        for level in 0..=all.loops.len() {
            if let Some(above) = level.checked_sub(1) {
                let turns = cut.filter(|c| c.0 == above).map(|c| c.1);
                self.open(all, above, turns, if turns.is_some() { &sums } else { &[] })?;
            }
            for (n, inst) in all.insts.iter().enumerate() {
                if depths[n] == level && (inst.varies || level > 0) {
                    self.inst(n, inst)?;
                }
            }
        }
        for _ in &all.loops {
            self.close(&sums);
        }
        for acc in &reduced {
            self.result(*acc);
        }
        self.carried.clear();
        Some(())
    }

    fn reduced(&self, stage: &VStage) -> Vec<AccId> {
        let mut accs: Vec<AccId> = Vec::new();
        for inst in &stage.insts {
            if let VKind::Reduce { acc, .. } = inst.kind
                && !accs.contains(&acc)
            {
                accs.push(acc);
            }
        }
        accs
    }

    fn in_blocks(&self, acc: AccId) -> bool {
        let decl = &self.kernel.accs[acc.0 as usize];
        wants_blocks(decl.op, decl.dtype)
    }

    /// New values that begin as `from`.
    fn begin_as(&mut self, from: &Regs) -> Regs {
        let made: Regs = from.iter().map(|v| self.b.value(v.class)).collect();
        self.assign(&made, from);
        made
    }

    pub(super) fn assign(&mut self, to: &Regs, from: &Regs) {
        for (d, a) in to.iter().zip(from) {
            self.b.push(Inst::Assign { d: *d, a: *a });
        }
    }

    pub(super) fn identity(&mut self, acc: AccId) -> Regs {
        let decl = &self.kernel.accs[acc.0 as usize];
        self.constant(decl.dtype, decl.op.identity(decl.dtype))
    }

    /// Prepares what a reduction carries.
    fn carry(&mut self, acc: AccId, in_blocks: bool) -> Option<()> {
        let identity = self.identity(acc);
        let keeps_position = self.kernel.accs[acc.0 as usize].op.combine().is_none();
        let position = keeps_position.then(|| {
            let last = self.constant(DType::I64, Scalar::Int(i64::MAX));
            self.begin_as(&last)
        });
        let value = self.begin_as(&identity);
        let total = in_blocks.then(|| [self.begin_as(&identity), self.begin_as(&identity)]);
        self.carried.insert(acc, Carried { value, position, total });
        Some(())
    }

    // Loops.

    fn new_loop(&mut self, turns: Turns, innermost: bool) -> u32 {
        let counter = (!innermost).then(|| self.room());
        self.b.body.loops.push(Loop { turns, moves: Vec::new(), back: Vec::new(), counter });
        let number = self.b.body.loops.len() as u32 - 1;
        self.b.push(Inst::Begin { number });
        number
    }

    /// A slot that nothing is passed in.
    fn room(&mut self) -> u32 {
        self.inputs.push(Input::Room);
        self.inputs.len() as u32 - 1
    }

    /// Opens a loop of the stage, in blocks of so many turns where the float sums `sums` have them.
    fn open(&mut self, stage: &VStage, level: usize, block: Option<i64>, sums: &[AccId]) -> Option<()> {
        let (dim, innermost) = (&stage.loops[level], level + 1 == stage.loops.len());
        let of = self.number(&dim.extent)?;
        let (inside, blocks) = match block {
            None => (self.new_loop(Turns::Whole(of), innermost), None),
            Some(most) => {
                let (left, most) = (self.room(), i32::try_from(most).ok()?);
                let blocks = self.new_loop(Turns::Blocks { of, left }, false);
                for acc in sums {
                    let (identity, to) = (self.identity(*acc), self.carried[acc].value.clone());
                    self.assign(&to, &identity);
                }
                (self.new_loop(Turns::Within { most, left }, innermost), Some(blocks))
            }
        };
        self.levels.push(Level { var: dim.var, extent: dim.extent.clone(), inside, blocks });
        Some(())
    }

    /// Closes the loop that was opened last.
    fn close(&mut self, sums: &[AccId]) {
        let Some(level) = self.levels.pop() else { return };
        self.b.push(Inst::End { number: level.inside });
        let Some(blocks) = level.blocks else { return };
        for acc in sums {
            let Carried { value, total: Some([total, lost]), .. } = self.carried[acc].clone() else {
                continue;
            };
            for n in 0..value.len() {
                let (sum, left) = self.b.add_exactly(total[n], lost[n], value[n]);
                self.b.push(Inst::Assign { d: total[n], a: sum });
                self.b.push(Inst::Assign { d: lost[n], a: left });
            }
        }
        self.b.push(Inst::End { number: blocks });
    }

    /// An expression that has one value for the whole call.
    fn number(&mut self, e: &SymExpr) -> Option<Number> {
        if let Some(x) = e.as_const() {
            return Some(Number::Constant(i32::try_from(x).ok()?));
        }
        let moves = e.any_leaf(|a| match a {
            Atom::Loop(v) => *v == self.axis || self.levels.iter().any(|l| l.var == *v),
            Atom::Value(_) => true,
            _ => false,
        });
        (!moves)
            .then(|| Number::Argument(self.slot(Input::Number { stage: self.turn.stage, expr: e.clone() })))
    }

    /// The lanes of an expression that has one value for the whole call.
    pub(super) fn argument(&mut self, e: &SymExpr) -> Option<V> {
        let Number::Argument(slot) = self.number(e)? else { return None };
        Some(self.b.invariant(Invariant::Argument(slot), Class::I64))
    }

    /// Whether an expression is evenly spaced along the loops that are open.
    pub(super) fn can_follow(&self, e: &SymExpr) -> Option<()> {
        for level in &self.levels {
            let (step, _) = e.affine_in(&Atom::Loop(level.var))?;
            if self.levels.iter().any(|l| step.any_leaf(|a| *a == Atom::Loop(l.var))) {
                return None;
            }
        }
        Some(())
    }

    /// Makes the number in a slot, `e` times `unit` at the loops' first turns, follow the loops that are open.
    pub(super) fn follow(&mut self, slot: u32, e: &SymExpr, unit: i64) -> Option<()> {
        let mut moves = Vec::new();
        for n in 0..self.levels.len() {
            let Level { var, extent, inside, blocks } = &self.levels[n];
            let (step, _) = e.affine_in(&Atom::Loop(*var))?;
            if step == SymExpr::ZERO {
                continue;
            }
            let (inside, around) = (*inside as usize, blocks.unwrap_or(*inside) as usize);
            let back = &(&step * extent) * -unit;
            let (by, back) = (self.number(&(step * unit))?, self.number(&back)?);
            moves.push((inside, around, by, back));
        }
        let loops = &mut self.b.body.loops;
        for (inside, around, by, back) in moves {
            if !loops[inside].moves.iter().any(|m| m.slot == slot) {
                loops[inside].moves.push(Move { slot, by });
                loops[around].back.push(Move { slot, by: back });
            }
        }
        Some(())
    }

    /// Whether an expression depends on a value that is made in a loop.
    pub(super) fn on_moving_value(&self, e: &SymExpr) -> bool {
        self.looped() && e.any_leaf(|a| matches!(a, Atom::Value(n) if self.moves(*n as usize)))
    }

    // Memory.

    /// A load of one element for all points.
    pub(super) fn load_uniform(&mut self, at: &Access, place: Place, mask: Option<V>) -> Regs {
        let class = Class::of(at.dtype);
        let place = Place { uniform: true, ..place };
        if class == Class::Mask {
            return self.load_mask(place, mask);
        }
        let (code, widen) = match at.dtype {
            DType::BF16 => (c::VPBROADCASTW, Some(c::VPMOVZXWD)),
            DType::F16 => (c::VPBROADCASTW, Some(c::VCVTPH2PS)),
            DType::I16 => (c::VPBROADCASTW, Some(c::VPMOVSXWD)),
            DType::U8 => (c::VPBROADCASTB, Some(c::VPMOVZXBD)),
            DType::I8 => (c::VPBROADCASTB, Some(c::VPMOVSXBD)),
            _ if class.wide() => (self.b.target().broadcast(class), None),
            _ => (c::VBROADCASTSS, None),
        };
        let parts = if class.wide() { 2 } else { 1 };
        let load = |this: &mut Self, part: u8| {
            let mask = mask.map(|m| this.b.part_of_mask(m, part, class));
            let d = this.b.value(class);
            this.b.push(Inst::Load { code, d, at: Place { part, ..place }, mask });
            let d = widen.map_or(d, |code| this.b.one(code, class, d));
            let d = if at.dtype == DType::BF16 { this.bf16(d) } else { d };
            this.b.zero_outside(d, mask)
        };
        // Without a mask both halves of 64-bit lanes are the same.
        let first = load(self, 0);
        let rest = |this: &mut Self| if mask.is_some() { load(this, 1) } else { first };
        if parts == 1 { Regs::from_elem(first, 1) } else { Regs::from_slice(&[first, rest(self)]) }
    }

    /// The result of a reduction whose loops are closed.
    fn result(&mut self, acc: AccId) {
        let Some(Carried { value, position, total }) = self.carried.remove(&acc) else { return };
        let regs = match (position, total) {
            (Some(at), _) => at,
            (None, Some([total, lost])) => {
                (0..total.len()).map(|n| self.b.whole(total[n], lost[n])).collect()
            }
            (None, None) => value,
        };
        self.results.insert(acc, regs);
    }
}

/// Writes results straight to the values that they are assigned to.
pub(super) fn coalesce(insts: &mut Vec<Inst>, values: u32) {
    let (mut uses, mut defs) = (vec![0u32; values as usize], vec![0u32; values as usize]);
    insts.iter().flat_map(Inst::uses).for_each(|v| uses[v.id as usize] += 1);
    insts.iter().filter_map(Inst::def).for_each(|v| defs[v.id as usize] += 1);
    let once = |v: V| uses[v.id as usize] == 1 && defs[v.id as usize] == 1;
    let mut kept: Vec<Inst> = Vec::with_capacity(insts.len());
    for inst in insts.iter().copied() {
        match inst {
            Inst::Assign { d, a } if once(a) && retarget(&mut kept, d, a) => {}
            _ => kept.push(inst),
        }
    }
    *insts = kept;
}

/// Makes the instruction that defines `a` define `d`, unless `d` is read or written after it.
fn retarget(insts: &mut [Inst], d: V, a: V) -> bool {
    for inst in insts.iter_mut().rev() {
        let touches = inst.def().into_iter().chain(inst.uses()).any(|v| v.id == d.id);
        if inst.def().is_some_and(|v| v.id == a.id) {
            let mut first = true;
            inst.for_each_value(&mut |v| {
                if std::mem::take(&mut first) {
                    v.id = d.id;
                }
            });
            return true;
        }
        if touches || matches!(inst, Inst::Begin { .. } | Inst::End { .. }) {
            return false;
        }
    }
    false
}
