//! Calls of leaves: innermost loops that [`crate::leaf`] compiles to wide code. Here are the choice whether a loop is one, and the
//! block of arguments: addresses, values that do not vary, and accumulators.

use std::rc::Rc;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{
    AbiParam, ExtFuncData, ExternalName, InstBuilder, MemFlagsData, Signature, StackSlot, StackSlotData,
    StackSlotKind, UserExternalName, Value,
};

use super::calls;
use super::check::MASKED;
use super::emit::Emit;
use super::host;
use super::values::{Class, Vals};
use crate::leaf::{self, Input, Leaf, Turn, accumulators_at};
use crate::vir::{Dim, VKind};

/// Loops of fewer points are emitted in place: a call would take longer than they do.
const FEWEST: i64 = 16;

/// A leaf of the function.
pub(super) struct Placed {
    leaf: Leaf,
    number: u32,
    /// Room for the arguments, which begin at its first multiple of 64 bytes.
    block: StackSlot,
}

impl Placed {
    /// Lanes of its accumulators, the points of one step.
    pub(super) fn lanes(&self) -> u32 {
        self.leaf.target.step()
    }
    /// Points of a turn.
    fn turn(&self) -> u32 {
        self.leaf.machine.unroll * self.lanes()
    }
}

impl<'k> Emit<'_, 'k> {
    /// The leaf of a loop over `axis` around the bodies of `stages`, if it can be one.
    pub(super) fn leaf_of(&mut self, stages: &[usize], axis: &Dim) -> Option<Rc<Placed>> {
        let short = axis.extent.as_const().is_some_and(|n| n < FEWEST);
        let target = self.cx.leaves.filter(|_| !stages.is_empty() && !short)?;
        let key = (stages.to_vec(), axis.var);
        if let Some(known) = self.leaves.get(&key) {
            return known.clone();
        }
        let made = leaf::leaf(target, self.kernel, stages, axis.var).map(|mut leaf| {
            let number = self.leaf_codes.len() as u32;
            self.leaf_codes.push(std::mem::take(&mut leaf.machine.code));
            let data = StackSlotData::new(StackSlotKind::ExplicitSlot, leaf.machine.bytes + 64, 4);
            let block = self.b.create_sized_stack_slot(data);
            Rc::new(Placed { leaf, number, block })
        });
        self.leaves.insert(key, made.clone());
        made
    }

    /// The leaf of the present stage's own axis.
    pub(super) fn leaf_of_stage(&mut self) -> Option<Rc<Placed>> {
        let stage = self.present_stage().filter(|s| self.axis_is_inner() && s.vector)?;
        self.leaf_of(&[self.stage], stage.loops.last()?)
    }

    /// Lanes of the widest body of the present stage, all steps of a turn together.
    pub(super) fn stage_lanes(&mut self) -> u32 {
        match self.leaf_of_stage() {
            Some(placed) => placed.turn(),
            None => self.full_width(),
        }
    }

    /// Runs a leaf over `lo..hi` of the axis, in blocks where the stage's sums have them.
    pub(super) fn leaf_loop(
        &mut self,
        placed: &Placed,
        stages: &[usize],
        axis: &Dim,
        (lo, hi): (Value, Value),
    ) {
        self.axis = Some(axis.var);
        self.innermost = Some(axis.var);
        let depth = self.present_stage().map_or(0, |s| s.loops.len());
        let inner = self.axis_is_inner() && depth > 0;
        let cut = if inner { self.cut_of_stage().filter(|c| c.level + 1 == depth) } else { None };
        let Some(cut) = cut else { return self.leaf_rows(placed, stages, axis.var, (lo, hi)) };
        let points = cut.turns * i64::from(placed.turn());
        self.counted(lo, hi, points, &mut |e, first| {
            let last = e.b.ins().iadd_imm_s(first, points);
            let last = e.b.ins().smin(last, hi);
            e.width = placed.lanes();
            e.each_partial(&cut, Emit::open_block);
            e.width = 1;
            e.call_leaf(placed, stages, axis.var, (first, last));
            e.width = placed.lanes();
            e.each_partial(&cut, Emit::close_block);
            e.width = 1;
        });
    }

    /// Calls a leaf if there is any point.
    fn leaf_rows(&mut self, placed: &Placed, stages: &[usize], var: u32, (lo, hi): (Value, Value)) {
        let (some, done) = (self.b.create_block(), self.b.create_block());
        let any = self.b.ins().icmp(IntCC::SignedLessThan, lo, hi);
        self.b.ins().brif(any, some, &[], done, &[]);
        self.b.seal_block(some);
        self.b.switch_to_block(some);
        self.call_leaf(placed, stages, var, (lo, hi));
        self.b.ins().jump(done, &[]);
        self.b.seal_block(done);
        self.b.switch_to_block(done);
    }

    fn call_leaf(&mut self, placed: &Placed, stages: &[usize], var: u32, (lo, hi): (Value, Value)) {
        let saved = self.stage;
        self.loops[var as usize] = lo;
        let pointer = self.cx.pointer;
        let block = self.b.ins().stack_addr(pointer, placed.block, 0);
        let block = self.b.ins().iadd_imm_s(block, 63);
        let block = self.b.ins().band_imm_s(block, -64);
        for &stage in stages {
            self.stage = stage;
            self.pass_values(placed, stage, block);
        }
        self.stage = saved;
        self.pass_accumulators(placed, block);
        let count = self.b.ins().isub(hi, lo);
        let mut sig = Signature::new(self.cx.conv);
        sig.params = vec![AbiParam::new(I64); 2];
        let lists = placed.leaf.machine.lists;
        sig.returns.extend(lists.map(|_| AbiParam::new(I64)));
        let signature = self.b.import_signature(sig);
        let name = UserExternalName::new(host::LEAVES, placed.number);
        let name = ExternalName::user(self.b.func.declare_imported_user_function(name));
        let data = ExtFuncData { name, signature, colocated: true, patchable: false };
        let function = self.b.func.import_function(data);
        let call = self.b.ins().call(function, &[block, count]);
        if let Some(lists) = lists {
            let outcome = self.b.inst_results(call)[0];
            self.end_where_failed(outcome, (block, lists), placed.lanes());
        }
        self.take_accumulators(placed, block);
    }

    /// Reports a failed check of a leaf, and ends the function.
    fn end_where_failed(&mut self, outcome: Value, (block, lists): (Value, u32), step: u32) {
        let (cold, fine) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(cold);
        self.b.ins().brif(outcome, cold, &[], fine, &[]);
        self.b.seal_block(cold);
        self.b.seal_block(fine);
        self.b.switch_to_block(cold);
        let lanes = self.b.ins().iadd_imm_s(block, i64::from(lists));
        let site = self.b.ins().iadd_imm_s(outcome, -1);
        self.report(lanes, site, u64::from(step) | MASKED);
        self.b.ins().return_(&[]);
        self.b.switch_to_block(fine);
    }

    /// Computes the values of a stage that do not vary and fills the slots that are of this stage, for each turn that has some.
    fn pass_values(&mut self, placed: &Placed, stage: usize, block: Value) {
        let turns = placed.leaf.inputs.iter().filter_map(Input::turn).filter(|t| t.stage == stage);
        let mut turns: Vec<usize> = turns.map(|t| t.number).collect();
        // A check that is the same along the axis is made here, also in a turn of which the leaf reads nothing.
        let source = &self.kernel.stages[stage];
        let checks = source.insts.iter().any(|i| !i.varies && matches!(i.kind, VKind::Check { .. }));
        if checks && !placed.leaf.moving.contains_key(&stage) {
            turns.extend(0..if placed.leaf.whole { leaf::turns(source).unwrap_or(1) } else { 1 });
        }
        turns.sort_unstable();
        turns.dedup();
        let template = placed.leaf.inputs.iter().position(|i| *i == Input::Template);
        if let (Some(slot), Some(x)) = (template, self.template_address()) {
            self.b.ins().store(MemFlagsData::trusted(), x, block, slot as i32 * 8);
        }
        for (slot, input) in placed.leaf.inputs.iter().enumerate() {
            let number = match input {
                Input::Host => host::EACH_NUMBER,
                Input::Function(op) => calls::of(*op, Class::F32).number,
                _ => continue,
            };
            let x = host::value(&mut self.b, self.cx.pointer, number);
            self.b.ins().store(MemFlagsData::trusted(), x, block, slot as i32 * 8);
        }
        for number in turns {
            if placed.leaf.whole {
                for (var, x) in leaf::variables(&self.kernel.stages[stage], number) {
                    self.loops[var as usize] = self.b.ins().iconst(I64, x);
                }
            }
            self.pass_turn(placed, Turn { stage, number }, block);
        }
    }

    fn pass_turn(&mut self, placed: &Placed, present: Turn, block: Value) {
        let insts = &self.kernel.stages[present.stage].insts;
        self.lanes.clear();
        // Values that are made in loops of the leaf are not there before it.
        let moving = placed.leaf.moving.get(&present.stage);
        self.values = self.instructions(insts, |n| !insts[n].varies && !moving.is_some_and(|m| m[n]));
        for (slot, input) in placed.leaf.inputs.iter().enumerate() {
            let x = match input {
                Input::Address { turn, at } if *turn == present => self.address(at, 0),
                Input::Index { turn, expr } if *turn == present => self.expr(expr, 0),
                Input::Number { stage, expr } if present == (Turn { stage: *stage, number: 0 }) => {
                    self.expr(expr, 0)
                }
                Input::Value { turn, value, class } if *turn == present => {
                    let x = self.stored(*value).0[0];
                    match class {
                        Class::Mask => {
                            let x = self.b.ins().uextend(I32, x);
                            self.b.ins().ineg(x)
                        }
                        _ => x,
                    }
                }
                _ => continue,
            };
            self.b.ins().store(MemFlagsData::trusted(), x, block, slot as i32 * 8);
        }
        self.values.clear();
    }

    /// Offsets of the registers of each accumulator, as Cranelift's vectors of 16 bytes.
    fn accumulator_offsets(placed: &Placed) -> Vec<(kernel_ir::AccId, Class, i32)> {
        let mut at = accumulators_at(placed.leaf.inputs.len() as u32) as i32;
        let bytes = placed.leaf.target.bytes() as i32;
        let all = placed.leaf.accumulators.iter();
        all.map(|(acc, class)| {
            let first = at;
            at += if class.wide() { 2 * bytes } else { bytes };
            (*acc, *class, first)
        })
        .collect()
    }

    fn pass_accumulators(&mut self, placed: &Placed, block: Value) {
        self.width = placed.lanes();
        for (acc, _, at) in Self::accumulator_offsets(placed) {
            let parts = self.partial(acc);
            for (n, x) in parts.into_iter().enumerate() {
                self.b.ins().store(MemFlagsData::trusted(), x, block, at + n as i32 * 16);
            }
        }
        self.width = 1;
    }

    fn take_accumulators(&mut self, placed: &Placed, block: Value) {
        self.width = placed.lanes();
        for (acc, class, at) in Self::accumulator_offsets(placed) {
            let ty = self.reg_type(class);
            let load = |n: usize| at + n as i32 * 16;
            let parts: Vals = (0..self.reg_count(class))
                .map(|n| self.b.ins().load(ty, MemFlagsData::trusted(), block, load(n)))
                .collect();
            self.set_partial(acc, &parts);
        }
        self.width = 1;
    }
}
