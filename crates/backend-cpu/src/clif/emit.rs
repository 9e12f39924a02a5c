//! Emits a kernel as one Cranelift function: the walk over outer points, the stages' loops at each width, and the bodies.
//!
//! The function is `fn(buffers, sizes, begin, end, block)`: outer points `begin..end` in row-major order of
//! `VKernel::points`; where the axis is an outer loop, one more dimension (the fastest; of a tiled kernel the slowest) counts
//! blocks of `block` axis points.

use std::rc::Rc;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{F32, I32, I64};
use cranelift_codegen::ir::{Block, InstBuilder, MemFlagsData, StackSlot, Type, Value};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::{FunctionBuilder, Variable};
use ir_core::{Atom, DType, EntityId, SymExpr, SymId};
use kernel_ir::{AccId, BufId, ScalarOp, Val};
use rustc_hash::FxHashMap;

use super::leaf::Placed;
use super::reduce::Acc;
use super::values::{Class, Vals};
use crate::leaf::Target;
use crate::vir::{self, Dim, VInst, VKernel, VKind, VStage};

/// Properties of the processor.
pub(super) struct Machine {
    pub(super) fma: bool,
    pub(super) pointer: Type,
    pub(super) conv: CallConv,
    /// Innermost loops may be wide code of their own (`leaf`), for this target.
    pub(super) leaves: Option<Target>,
}

/// A function that is emitted.
pub(super) struct Emitted<'f> {
    pub(super) b: FunctionBuilder<'f>,
    /// The code of the leaves that it calls, by number.
    pub(super) leaves: Vec<Vec<u8>>,
}

/// A function under construction.
pub(super) struct Emit<'f, 'k> {
    pub(super) b: FunctionBuilder<'f>,
    pub(super) cx: &'k Machine,
    pub(super) kernel: &'k VKernel,
    pub(super) stage: usize,
    /// Lanes of the code that is emitted; 1 is scalar code.
    pub(super) width: u32,
    /// Present value of each loop variable.
    pub(super) loops: Vec<Value>,
    /// Loop variable whose neighbouring points are lanes.
    pub(super) axis: Option<u32>,
    /// Variable of the loop around the current body.
    pub(super) innermost: Option<u32>,
    pub(super) values: Made,
    /// Values of stages' bodies that were computed before the innermost loop, by the stage's number.
    pub(super) early: FxHashMap<usize, Made>,
    /// Lanes of the present body's values that are computed one by one.
    pub(super) lanes: FxHashMap<(usize, u32), Value>,
    bases: FxHashMap<BufId, Value>,
    symbols: FxHashMap<SymId, Value>,
    pub(super) accs: Vec<Acc>,
    pub(super) scans: FxHashMap<usize, Vec<Variable>>,
    /// In an epilogue: address of the template's result for axis point 0 of this row.
    template: Option<Value>,
    /// Address of the function's table of base pointers.
    pub(super) table: Value,
    /// The stack slot for the lanes of failed checks.
    pub(super) fault: Option<StackSlot>,
    /// The cold block of each site's scalar checks, with the index and the size as arguments.
    pub(super) cold: Vec<(u32, Block)>,
    /// The leaf of each list of stages that one was looked for, by the loop variable of its axis.
    pub(super) leaves: FxHashMap<(Vec<usize>, u32), Option<Rc<Placed>>>,
    /// The code of those that are called.
    pub(super) leaf_codes: Vec<Vec<u8>>,
}

/// Values of a body, each with its width, as far as they are computed.
pub(super) type Made = Vec<Option<(Vals, u32)>>;
pub(super) type Body<'a, 'f, 'k> = dyn FnMut(&mut Emit<'f, 'k>) + 'a;

impl<'f, 'k> Emit<'f, 'k> {
    /// Begins a function; the entry block's parameters are appended already.
    pub(super) fn new(b: FunctionBuilder<'f>, cx: &'k Machine, kernel: &'k VKernel) -> Emit<'f, 'k> {
        Emit {
            b,
            cx,
            kernel,
            stage: 0,
            width: 1,
            loops: Vec::new(),
            axis: None,
            innermost: None,
            values: Vec::new(),
            early: FxHashMap::default(),
            lanes: FxHashMap::default(),
            bases: FxHashMap::default(),
            symbols: FxHashMap::default(),
            accs: vec![Acc::default(); kernel.accs.len()],
            scans: FxHashMap::default(),
            template: None,
            table: Value::from_u32(0),
            fault: None,
            cold: Vec::new(),
            leaves: FxHashMap::default(),
            leaf_codes: Vec::new(),
        }
    }

    /// The whole function of a loop kernel, from the entry block's parameters.
    pub(super) fn kernel_function(mut self, params: &[Value]) -> Emitted<'f> {
        let [buffers, sizes, begin, end, block] = *params else { unreachable!("five parameters") };
        self.prepare(buffers, sizes, &[]);
        let kernel = self.kernel;
        let mut extents: Vec<Value> = kernel.points.iter().map(|d| self.expr(&d.extent, 0)).collect();
        let axis_extent = kernel.outer_axis.as_ref().map(|d| self.expr(&d.extent, 0));
        if let Some(n) = axis_extent {
            let up = self.b.ins().iadd(n, block);
            let up = self.b.ins().iadd_imm_s(up, -1);
            let blocks = self.b.ins().udiv(up, block);
            extents.insert(if kernel.tile.is_some() { 0 } else { extents.len() }, blocks);
        }
        let digits = self.decompose(begin, &extents);
        self.counted(begin, end, 1, &mut |e, _| {
            let at: Vec<Value> = digits.iter().map(|v| e.b.use_var(*v)).collect();
            // The block digit is the slowest of a tiled kernel, else the fastest.
            let first = usize::from(kernel.tile.is_some());
            for (d, x) in kernel.points.iter().zip(&at[first..]) {
                e.loops[d.var as usize] = *x;
            }
            match (&kernel.outer_axis, axis_extent) {
                (Some(axis), Some(n)) => {
                    // PROOF: the block digit was pushed above.
                    let number =
                        *if kernel.tile.is_some() { at.first() } else { at.last() }.expect("the block digit");
                    let lo = e.b.ins().imul(number, block);
                    let hi = e.b.ins().iadd(lo, block);
                    let hi = e.b.ins().smin(hi, n);
                    e.axis = Some(axis.var);
                    let plain = e.plain_stages();
                    let stages: Vec<usize> = (0..kernel.stages.len()).collect();
                    e.checked_before(&plain, axis.var, (lo, hi), &mut |e| {
                        e.axis_loop(axis, (lo, hi), &stages, &mut |e| e.stages());
                    });
                }
                _ => e.stages(),
            }
            e.advance(&digits, &at, &extents);
        });
        self.b.ins().return_(&[]);
        self.cold_ends();
        Emitted { b: self.b, leaves: self.leaf_codes }
    }

    /// Stages that have no loops of their own.
    fn plain_stages(&self) -> Vec<usize> {
        (0..self.kernel.stages.len()).filter(|n| self.kernel.stages[*n].loops.is_empty()).collect()
    }

    /// Digits of the first point in the mixed radix of the extents.
    fn decompose(&mut self, begin: Value, extents: &[Value]) -> Vec<Variable> {
        let mut rest = begin;
        let mut digits = Vec::new();
        for (i, &n) in extents.iter().enumerate().rev() {
            let var = self.b.declare_var(I64);
            let digit = if i == 0 {
                rest
            } else {
                let digit = self.b.ins().urem(rest, n);
                rest = self.b.ins().udiv(rest, n);
                digit
            };
            self.b.def_var(var, digit);
            digits.push(var);
        }
        digits.reverse();
        digits
    }

    /// Counts the digits up by one, with carries and without branches.
    fn advance(&mut self, digits: &[Variable], at: &[Value], extents: &[Value]) {
        let zero = self.b.ins().iconst(I64, 0);
        let mut carry = self.b.ins().iconst(I64, 1);
        for i in (0..digits.len()).rev() {
            let next = self.b.ins().iadd(at[i], carry);
            if i == 0 {
                self.b.def_var(digits[0], next);
                break;
            }
            let over = self.b.ins().icmp(IntCC::Equal, next, extents[i]);
            let wrapped = self.b.ins().select(over, zero, next);
            self.b.def_var(digits[i], wrapped);
            carry = self.b.ins().uextend(I64, over);
        }
    }

    /// Loads base pointers and sizes in the entry block and clears the loop variables.
    pub(super) fn prepare(&mut self, buffers: Value, sizes: Value, walked: &[Dim]) {
        let flags = MemFlagsData::trusted().with_readonly().with_can_move();
        self.table = buffers;
        let zero = self.b.ins().iconst(I64, 0);
        let (mut vars, mut symbols, mut roots) = (0u32, Vec::new(), Vec::new());
        let mut visit = |e: &SymExpr| {
            e.for_each_leaf(&mut |a| match a {
                Atom::Sym(id) => symbols.push(*id),
                Atom::Loop(v) => vars = vars.max(*v + 1),
                _ => {}
            });
        };
        let k = self.kernel;
        let loops =
            k.stages.iter().flat_map(|s| &s.loops).chain(&k.points).chain(&k.outer_axis).chain(walked);
        let mut dims: Vec<u32> = Vec::new();
        for d in loops {
            visit(&d.extent);
            dims.push(d.var + 1);
        }
        for inst in k.stages.iter().flat_map(|s| &s.insts) {
            inst.kind.expr().into_iter().for_each(&mut visit);
            if let VKind::Load { at, .. } | VKind::Store { at, .. } = &inst.kind {
                roots.push(at.root);
            }
        }
        let vars = dims.into_iter().fold(vars, u32::max);
        self.loops = vec![zero; vars as usize];
        for id in symbols {
            let b = &mut self.b;
            self.symbols.entry(id).or_insert_with(|| b.ins().load(I64, flags, sizes, id.index() as i32 * 8));
        }
        let pointer = self.cx.pointer;
        for root in roots {
            let b = &mut self.b;
            self.bases
                .entry(root)
                .or_insert_with(|| b.ins().load(pointer, flags, buffers, root.index() as i32 * 8));
        }
    }

    pub(super) fn symbol(&self, id: SymId) -> Value {
        self.symbols[&id]
    }
    pub(super) fn base(&self, root: BufId) -> Value {
        self.bases[&root]
    }
    pub(super) fn set_template(&mut self, row: Value) {
        self.template = Some(row);
    }
    pub(super) fn set_loop(&mut self, var: u32, x: Value) {
        if let Some(slot) = self.loops.get_mut(var as usize) {
            *slot = x;
        }
    }

    /// `for i in (lo..hi).step_by(step)`.
    pub(super) fn counted(
        &mut self,
        lo: Value,
        hi: Value,
        step: i64,
        body: &mut dyn FnMut(&mut Emit<'f, 'k>, Value),
    ) {
        let (inside, done) = (self.b.create_block(), self.b.create_block());
        self.b.append_block_param(inside, I64);
        let any = self.b.ins().icmp(IntCC::SignedLessThan, lo, hi);
        self.b.ins().brif(any, inside, &[lo.into()], done, &[]);
        self.b.switch_to_block(inside);
        let i = self.b.block_params(inside)[0];
        body(self, i);
        let next = self.b.ins().iadd_imm_s(i, step);
        let more = self.b.ins().icmp(IntCC::SignedLessThan, next, hi);
        self.b.ins().brif(more, inside, &[next.into()], done, &[]);
        self.b.seal_block(inside);
        self.b.seal_block(done);
        self.b.switch_to_block(done);
    }

    /// Widths that a loop over an axis of this extent runs at, widest first.
    fn widths(&self, extent: &SymExpr) -> Vec<u32> {
        let mut widths = vec![self.full_width(), 4, 1];
        widths.dedup();
        let Some(n) = extent.as_const() else { return widths };
        let mut left = n.max(0) as u32;
        widths.retain(|&w| {
            let used = left >= w;
            left %= w;
            used
        });
        // Blocks of an outer axis are multiples of every width, so what holds for the extent holds for each block.
        if widths.is_empty() { vec![1] } else { widths }
    }

    /// Runs `body`, which is that of `stages`, over `lo..hi` of the axis: as a leaf if there can be one, else at falling widths.
    pub(super) fn axis_loop(
        &mut self,
        axis: &Dim,
        (lo, hi): (Value, Value),
        stages: &[usize],
        body: &mut Body<'_, 'f, 'k>,
    ) {
        if let Some(leaf) = self.leaf_of(stages, axis) {
            return self.leaf_loop(&leaf, stages, axis, (lo, hi));
        }
        let mut at = lo;
        for width in self.widths(&axis.extent) {
            let end = if width == 1 {
                hi
            } else {
                let n = self.b.ins().isub(hi, at);
                let whole = self.b.ins().band_imm_s(n, -i64::from(width));
                self.b.ins().iadd(at, whole)
            };
            self.width = width;
            self.blocks(at, end, &mut |e, i| {
                e.loops[axis.var as usize] = i;
                body(e);
            });
            self.width = 1;
            at = end;
        }
    }

    /// A loop over the axis at the present width.
    fn blocks(&mut self, lo: Value, hi: Value, body: &mut dyn FnMut(&mut Emit<'f, 'k>, Value)) {
        let step = i64::from(self.width);
        match self.present_stage().filter(|_| self.axis_is_inner()) {
            Some(stage) => self.cut_loop((lo, hi, step), stage.loops.len().saturating_sub(1), body),
            None => self.counted(lo, hi, step, body),
        }
    }

    pub(super) fn axis_is_inner(&self) -> bool {
        self.kernel.outer_axis.is_none()
    }
    pub(super) fn present_stage(&self) -> Option<&'k VStage> {
        self.kernel.stages.get(self.stage)
    }
    /// Lanes of the widest loop.
    pub(super) fn full_width(&self) -> u32 {
        4 * self.kernel.unroll
    }

    /// All stages at the present point (or points, at the present width, where the axis is an outer loop).
    fn stages(&mut self) {
        let kernel = self.kernel;
        for (n, stage) in kernel.stages.iter().enumerate() {
            self.stage = n;
            self.run_stage(stage);
        }
    }

    fn run_stage(&mut self, stage: &'k VStage) {
        let inner = self.axis_is_inner();
        if inner {
            self.axis = stage.loops.last().map(|d| d.var).filter(|_| stage.vector);
        }
        let accs = reduced(stage);
        let blocked = self.cut_of_stage().map(|c| c.accs).unwrap_or_default();
        let leaf = stage.loops.last().and_then(|_| self.leaf_of_stage());
        let widths = match stage.loops.last() {
            Some(_) if leaf.is_some() => leaf.iter().map(|l| l.lanes()).collect(),
            Some(d) if inner && stage.vector => self.widths(&d.extent),
            _ => vec![self.width],
        };
        for acc in &accs {
            self.clear_acc(*acc);
            for &width in &widths {
                let saved = std::mem::replace(&mut self.width, width);
                self.start_acc(*acc, blocked.contains(acc));
                self.width = saved;
            }
        }
        self.nest(stage, 0);
        for acc in &accs {
            self.finish_acc(*acc, !inner);
        }
    }

    /// The loops of a stage from number `depth` inwards.
    fn nest(&mut self, stage: &'k VStage, depth: usize) {
        let left = &stage.loops[depth..];
        let zero = self.b.ins().iconst(I64, 0);
        match left {
            [] => {
                self.innermost = self.axis;
                self.body(&stage.insts);
            }
            [last] => {
                self.start_scans(stage);
                self.innermost = Some(last.var);
                let hi = self.expr(&last.extent, 0);
                self.checked_before(&[self.stage], last.var, (zero, hi), &mut |e| {
                    if e.axis_is_inner() && stage.vector {
                        let stages = [e.stage];
                        return e.axis_loop(last, (zero, hi), &stages, &mut |e| e.body(&stage.insts));
                    }
                    e.cut_loop((zero, hi, 1), depth, &mut |e, i| {
                        e.loops[last.var as usize] = i;
                        e.body(&stage.insts);
                    });
                });
            }
            [first, ..] => {
                let hi = self.expr(&first.extent, 0);
                self.cut_loop((zero, hi, 1), depth, &mut |e, i| {
                    e.loops[first.var as usize] = i;
                    e.nest(stage, depth + 1);
                });
            }
        }
    }

    fn start_scans(&mut self, stage: &VStage) {
        for (n, inst) in stage.insts.iter().enumerate() {
            if let VKind::Scan { op, .. } = inst.kind {
                self.start_scan(n, op, inst.dtype);
            }
        }
    }

    /// An instruction of the present stage.
    pub(super) fn inst(&self, v: Val) -> &'k VInst {
        &self.kernel.stages[self.stage].insts[v.0 as usize]
    }
    pub(super) fn dtype_of(&self, n: usize) -> DType {
        self.kernel.stages[self.stage].insts[n].dtype
    }
    /// A value with its width, if all its lanes are computed.
    pub(super) fn made(&self, n: usize) -> Option<(Vals, u32)> {
        self.values[n].clone()
    }
    /// A value as it was computed, with its width.
    pub(super) fn stored(&self, n: usize) -> (Vals, u32) {
        // PROOF: the verifier checked that values are defined before they are used; the body is emitted in order.
        self.values[n].clone().expect("a value is made before its use")
    }
    /// A value at the present width.
    pub(super) fn get(&mut self, n: usize) -> Vals {
        let (vals, width) = self.stored(n);
        if width == self.width {
            return vals;
        }
        debug_assert_eq!(width, 1);
        self.splat(Class::of(self.dtype_of(n)), vals[0])
    }

    /// The code of a body at the present width; values that do not vary along the axis are scalar code.
    pub(super) fn body(&mut self, insts: &'k [VInst]) {
        let later = if self.width > 1 { vir::by_lane(insts) } else { Vec::new() };
        self.lanes.clear();
        self.instructions(insts, |n| !later.get(n).is_some_and(|l| *l));
    }

    /// The code of those instructions of a body that are wanted and not emitted yet; returns all that are emitted by then.
    pub(super) fn instructions(&mut self, insts: &'k [VInst], wanted: impl Fn(usize) -> bool) -> Made {
        self.values = self.early.get(&self.stage).cloned().unwrap_or_else(|| vec![None; insts.len()]);
        let width = self.width;
        for (n, inst) in insts.iter().enumerate() {
            if self.values[n].is_some() || !wanted(n) {
                continue;
            }
            self.width = if inst.varies { width } else { 1 };
            let made = self.one(n, inst);
            self.values[n] = Some(made);
        }
        self.width = width;
        std::mem::take(&mut self.values)
    }

    fn one(&mut self, n: usize, inst: &'k VInst) -> (Vals, u32) {
        let width = self.width;
        let vals = match &inst.kind {
            VKind::Const(c) => self.constant(inst.dtype, *c),
            VKind::Index(e) => self.index(e),
            VKind::Load { at, mask } => self.load(at, *mask),
            VKind::Store { at, value, mask, mode } => {
                self.store(at, *value, *mask, *mode);
                Vals::new()
            }
            VKind::Check { value, size, mask, site } => self.check(*value, size, *mask, *site),
            VKind::Op { op, args } => {
                let operand = args.last().map_or(inst.dtype, |v| self.dtype_of(v.0 as usize));
                let vals: Vec<Vals> = args.iter().map(|v| self.get(v.0 as usize)).collect();
                match self.number_of(*op, operand, args) {
                    Some(k) => self.clamp_by(*op, &vals[k], &vals[1 - k]),
                    None => self.op(*op, operand, &vals),
                }
            }
            VKind::Cast(v) => {
                let (from, x) = (self.dtype_of(v.0 as usize), self.get(v.0 as usize));
                if self.inst(*v).sixteen.has(inst.dtype) { x } else { self.cast(from, inst.dtype, &x) }
            }
            VKind::Bitcast(v) => {
                let (from, x) = (self.dtype_of(v.0 as usize), self.get(v.0 as usize));
                self.bitcast(from, inst.dtype, &x)
            }
            VKind::Reduce { acc, value, position } => {
                self.reduce(*acc, *value, *position);
                Vals::new()
            }
            VKind::Acc(acc) => {
                let (vals, made) = self.acc_result(*acc);
                if made == width {
                    vals
                } else {
                    return (vals, made);
                }
            }
            VKind::Scan { op, value } => self.scan(n, *op, *value, inst.dtype),
            VKind::Template => self.template_value(inst.dtype),
        };
        (vals, width)
    }

    /// Which operand of a float minimum or maximum is a constant that is not NaN.
    fn number_of(&self, op: ScalarOp, dtype: DType, args: &[Val]) -> Option<usize> {
        if !matches!(op, ScalarOp::Min | ScalarOp::Max) || !dtype.is_float() {
            return None;
        }
        let number = |v: &Val| matches!(self.inst(*v).kind, VKind::Const(c) if !c.as_f64().is_nan());
        args.iter().position(number)
    }

    /// An index expression in every lane.
    pub(super) fn index(&mut self, e: &SymExpr) -> Vals {
        let lanes: Vec<Value> = match self.axis.and_then(|v| e.affine_in(&Atom::Loop(v))) {
            _ if self.width == 1 => vec![self.expr(e, 0)],
            // Evenly spaced: the first lane and constant distances.
            Some((step, rest))
                if !rest.any_leaf(|a| matches!(a, Atom::Value(_))) && step.as_const().is_some() =>
            {
                let first = self.expr(e, 0);
                let step = step.as_const().unwrap_or(0);
                let base = self.splat(Class::I64, first);
                return self.spaced(base, step);
            }
            _ => (0..self.width).map(|lane| self.expr(e, lane)).collect(),
        };
        self.gather(Class::I64, &lanes)
    }

    /// Adds `lane * step` to each lane of `i64` values.
    fn spaced(&mut self, base: Vals, step: i64) -> Vals {
        use cranelift_codegen::ir::{ConstantData, types::I64X2};
        base.iter()
            .enumerate()
            .map(|(r, &x)| {
                let lanes = [2 * r as i64, 2 * r as i64 + 1].map(|l| l.wrapping_mul(step).to_le_bytes());
                let data = ConstantData::from(lanes.concat().as_slice());
                let constant = self.b.func.dfg.constants.insert(data);
                let offsets = self.b.ins().vconst(I64X2, constant);
                self.b.ins().iadd(x, offsets)
            })
            .collect()
    }

    /// The address of the template's result at the present point.
    pub(super) fn template_address(&mut self) -> Option<Value> {
        let (row, axis) = (self.template?, self.axis?);
        let column = self.loops[axis as usize];
        let moved = self.b.ins().ishl_imm_s(column, 2);
        Some(self.b.ins().iadd(row, moved))
    }

    /// The template's result: contiguous numbers of four bytes along the axis.
    fn template_value(&mut self, dtype: DType) -> Vals {
        let flags = MemFlagsData::new().with_notrap();
        let Some(p) = self.template_address() else {
            return self.constant(dtype, ir_core::Scalar::zero(dtype));
        };
        if self.width == 1 {
            let ty = if dtype == DType::I32 { I32 } else { F32 };
            return Vals::from_elem(self.b.ins().load(ty, flags, p, 0), 1);
        }
        self.load_wide(p, dtype, flags)
    }
}

/// Accumulators that a stage reduces into.
pub(super) fn reduced(stage: &VStage) -> Vec<AccId> {
    let mut accs: Vec<AccId> = stage
        .insts
        .iter()
        .filter_map(|i| match i.kind {
            VKind::Reduce { acc, .. } => Some(acc),
            _ => None,
        })
        .collect();
    accs.sort();
    accs.dedup();
    accs
}
