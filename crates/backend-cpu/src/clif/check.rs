//! Checks of indices from data: one comparison and one branch that is never taken for all lanes of a body, the cold code
//! after it, and checks that do not vary along the innermost loop, which are executed before it. The record of a failure is
//! in `fault`.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I32X4, I64};
use cranelift_codegen::ir::{
    AbiParam, Block, InstBuilder, MemFlagsData, Signature, StackSlot, StackSlotData, StackSlotKind, Value,
};
use ir_core::{Atom, DType, Scalar, SymExpr};
use kernel_ir::Val;

use super::emit::{Body, Emit};
use super::host;
use super::values::{Class, Vals};
use crate::vir::{self, VKind};

/// Most lanes of a body, and so the numbers of each list in the frame of a failed check.
pub(super) const LANES: usize = 16;
/// Flag: the lanes have masks.
pub(super) const MASKED: u64 = 1 << 8;
/// Flag: each lane has a size of its own.
pub(super) const SIZED: u64 = 1 << 9;

/// A check with its operands at the present width.
struct Check {
    value: Vals,
    mask: Option<Vals>,
    size: Size,
    site: u32,
}

/// The size that indices are compared with.
enum Size {
    /// For all lanes: a scalar that is not negative.
    One(Value),
    /// One per lane.
    Each(Vals),
}

impl<'f, 'k> Emit<'f, 'k> {
    /// Ends the function if an unmasked lane's value is not in `0..size`; returns the value.
    pub(super) fn check(&mut self, value: Val, size: &SymExpr, mask: Option<Val>, site: u32) -> Vals {
        let x = self.get(value.0 as usize);
        let mask = mask.map(|m| self.get(m.0 as usize));
        if self.width == 1 {
            self.check_lane(x[0], size, 0, mask.map(|m| m[0]), site);
            return x;
        }
        let size = self.size(size);
        let check = Check { value: x.clone(), mask, size, site };
        let narrow = self.narrow_index(value);
        let bad = match (&check.size, narrow) {
            (Size::One(size), Some(narrow)) => self.outside_narrow(&narrow, *size, &check.mask),
            _ => self.outside(&check),
        };
        let (cold, inside) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(cold);
        self.b.ins().brif(bad, cold, &[], inside, &[]);
        self.b.seal_block(cold);
        self.b.seal_block(inside);
        self.leave(cold, &check);
        self.b.switch_to_block(inside);
        x
    }

    /// Ends the function where one index is not in `0..size` and the condition `counts`, if there is one, holds.
    pub(super) fn check_lane(
        &mut self,
        x: Value,
        size: &SymExpr,
        lane: u32,
        counts: Option<Value>,
        site: u32,
    ) {
        let size = self.whole_size(size, lane);
        let bad = self.b.ins().icmp(IntCC::UnsignedGreaterThanOrEqual, x, size);
        let bad = counts.map_or(bad, |m| self.b.ins().band(bad, m));
        let (cold, inside) = (self.cold_end(site), self.b.create_block());
        self.b.ins().brif(bad, cold, &[x.into(), size.into()], inside, &[]);
        self.b.seal_block(inside);
        self.b.switch_to_block(inside);
    }

    /// The cold block for scalar checks of a site, which jump to it with the index and the size.
    fn cold_end(&mut self, site: u32) -> Block {
        if let Some((_, block)) = self.cold.iter().find(|(s, _)| *s == site) {
            return *block;
        }
        let block = self.b.create_block();
        self.b.set_cold_block(block);
        self.b.append_block_param(block, I64);
        self.b.append_block_param(block, I64);
        self.cold.push((site, block));
        block
    }

    /// Emits the cold blocks of scalar checks, once the rest of the function is complete.
    pub(super) fn cold_ends(&mut self) {
        for (site, block) in std::mem::take(&mut self.cold) {
            self.b.seal_block(block);
            self.b.switch_to_block(block);
            let (index, size) = (self.b.block_params(block)[0], self.b.block_params(block)[1]);
            let slot = self.fault_slot();
            self.lay_out(slot, 0, &[index]);
            self.lay_out(slot, 2, &[size]);
            self.report_slot(slot, site, 1);
            self.b.ins().return_(&[]);
        }
    }

    /// A size that is not negative.
    fn whole_size(&mut self, e: &SymExpr, lane: u32) -> Value {
        match e.as_const() {
            Some(n) => self.b.ins().iconst(I64, n.max(0)),
            None => {
                let (size, zero) = (self.expr(e, lane), self.b.ins().iconst(I64, 0));
                self.b.ins().smax(size, zero)
            }
        }
    }

    /// The size for all lanes, or one for each where it differs.
    fn size(&mut self, e: &SymExpr) -> Size {
        let each = e.any_leaf(|a| match a {
            Atom::Loop(v) => self.axis == Some(*v),
            Atom::Value(n) => self.stored(*n as usize).1 > 1,
            _ => false,
        });
        if each { Size::Each(self.index(e)) } else { Size::One(self.whole_size(e, 0)) }
    }

    /// The 32-bit lanes that the value was widened from, if it was: comparing those takes half the instructions.
    fn narrow_index(&mut self, value: Val) -> Option<Vals> {
        let VKind::Cast(from) = self.inst(value).kind else { return None };
        let narrow = Class::of(self.dtype_of(from.0 as usize)) == Class::I32;
        narrow.then(|| self.get(from.0 as usize))
    }

    /// Whether any 32-bit lane is out of bounds, as a condition. Negative values are large when compared unsigned.
    fn outside_narrow(&mut self, x: &Vals, size: Value, mask: &Option<Vals>) -> Value {
        let most = self.b.ins().iconst(I64, 1 << 31);
        let size = self.b.ins().smin(size, most);
        let size = self.b.ins().ireduce(I32, size);
        let size = self.b.ins().splat(I32X4, size);
        let cc = IntCC::UnsignedGreaterThanOrEqual;
        let mut any: Option<Value> = None;
        for (r, &x) in x.iter().enumerate() {
            let lanes = match mask {
                // Without masks the largest lane decides, below.
                None => x,
                Some(mask) => {
                    let bad = self.b.ins().icmp(cc, x, size);
                    self.b.ins().band(bad, mask[r])
                }
            };
            any = Some(match (any, mask) {
                (None, _) => lanes,
                (Some(any), None) => self.b.ins().umax(any, lanes),
                (Some(any), Some(_)) => self.b.ins().bor(any, lanes),
            });
        }
        // PROOF: a value has a register.
        let any = any.expect("a value has a register");
        let bad = if mask.is_none() { self.b.ins().icmp(cc, any, size) } else { any };
        self.b.ins().vany_true(bad)
    }

    /// Whether any 64-bit lane is out of bounds, as a condition: one of `x` and `size - 1 - x` is negative then. Nothing
    /// overflows: a negative size, whose difference could overflow, is detected by its own sign.
    fn outside(&mut self, check: &Check) -> Value {
        let mask = check.mask.as_ref().map(|m| self.mask_for(Class::I64, m));
        let one = self.constant(DType::I64, Scalar::Int(1));
        let last: Vals = match &check.size {
            Size::One(size) => {
                let last = self.b.ins().iadd_imm_s(*size, -1);
                self.splat(Class::I64, last)
            }
            Size::Each(sizes) => self.map2(sizes, &one, |r, n, one| r.isub(n, one)),
        };
        let sized = matches!(check.size, Size::Each(_));
        let mut any: Option<Value> = None;
        for (r, &x) in check.value.iter().enumerate() {
            let left = self.b.ins().isub(last[r], x);
            let mut bad = self.b.ins().bor(left, x);
            if sized {
                bad = self.b.ins().bor(bad, last[r]);
            }
            if let Some(mask) = &mask {
                bad = self.b.ins().band(bad, mask[r]);
            }
            any = Some(any.map_or(bad, |any| self.b.ins().bor(any, bad)));
        }
        // PROOF: a value has a register.
        let any = any.expect("a value has a register");
        let signs = self.constant(DType::I64, Scalar::Int(i64::MIN))[0];
        let signs = self.b.ins().band(any, signs);
        self.b.ins().vany_true(signs)
    }

    /// The cold block of a check of several lanes: passes all lanes to the host, which determines the first that failed.
    fn leave(&mut self, cold: Block, check: &Check) {
        self.b.switch_to_block(cold);
        let slot = self.fault_slot();
        self.lay_out(slot, 0, &check.value);
        let mut form = u64::from(self.width);
        if let Some(mask) = &check.mask {
            form |= MASKED;
            let mask = self.mask_for(Class::I64, mask);
            self.lay_out(slot, 1, &mask);
        }
        match &check.size {
            Size::One(size) => self.lay_out(slot, 2, &[*size]),
            Size::Each(sizes) => {
                form |= SIZED;
                self.lay_out(slot, 2, sizes);
            }
        }
        self.report_slot(slot, check.site, form);
        self.b.ins().return_(&[]);
    }

    /// Stores registers of 64-bit numbers consecutively in a list of the frame.
    fn lay_out(&mut self, slot: StackSlot, list: usize, registers: &[Value]) {
        let mut at = list * LANES * 8;
        for &x in registers {
            self.b.ins().stack_store(self.cx.pointer, x, slot, at as i32);
            at += self.b.func.dfg.value_type(x).bytes() as usize;
        }
    }

    fn report_slot(&mut self, slot: StackSlot, site: u32, form: u64) {
        let lanes = self.b.ins().stack_addr(self.cx.pointer, slot, 0);
        let site = self.b.ins().iconst(I64, i64::from(site));
        self.report(lanes, site, form);
    }

    /// Passes the lists of a failed check to the host.
    pub(super) fn report(&mut self, lanes: Value, site: Value, form: u64) {
        let pointer = self.cx.pointer;
        let flags = MemFlagsData::trusted().with_readonly();
        let at = self.kernel.bases as i32 * 8;
        let fault = self.b.ins().load(pointer, flags, self.table, at);
        let sites = self.b.ins().load(pointer, flags, self.table, at + 8);
        let form = self.b.ins().iconst(I64, form as i64);
        let mut sig = Signature::new(self.cx.conv);
        sig.params = vec![AbiParam::new(I64); 5];
        let sig = self.b.import_signature(sig);
        let function = host::value(&mut self.b, pointer, host::REPORT_NUMBER);
        self.b.ins().call_indirect(sig, function, &[fault, sites, site, lanes, form]);
    }

    /// The stack slot for the lanes of failed checks: one for all checks of the function.
    fn fault_slot(&mut self) -> StackSlot {
        let b = &mut self.b;
        *self.fault.get_or_insert_with(|| {
            let bytes = (3 * LANES * 8) as u32;
            b.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, bytes, 4))
        })
    }

    /// Runs `rest`, which loops over `lo..hi` of loop variable `var`, if there is any iteration; before it, the
    /// instructions of the bodies of `stages` that [`vir::before_loop`] names.
    pub(super) fn checked_before(
        &mut self,
        stages: &[usize],
        var: u32,
        (lo, hi): (Value, Value),
        rest: &mut Body<'_, 'f, 'k>,
    ) {
        let kernel = self.kernel;
        let axis = self.axis == Some(var);
        let made = |n: usize| (n, vir::before_loop(&kernel.stages[n].insts, var, axis));
        let all: Vec<(usize, Vec<bool>)> =
            stages.iter().map(|n| made(*n)).filter(|(_, made)| made.contains(&true)).collect();
        if all.is_empty() {
            return rest(self);
        }
        let (some, done) = (self.b.create_block(), self.b.create_block());
        let any = self.b.ins().icmp(IntCC::SignedLessThan, lo, hi);
        self.b.ins().brif(any, some, &[], done, &[]);
        self.b.seal_block(some);
        self.b.switch_to_block(some);
        let (stage, innermost) = (self.stage, self.innermost.take());
        for (n, made) in &all {
            self.stage = *n;
            let values = self.instructions(&kernel.stages[*n].insts, |k| made[k]);
            self.early.insert(*n, values);
        }
        (self.stage, self.innermost) = (stage, innermost);
        rest(self);
        all.iter().for_each(|(n, _)| drop(self.early.remove(n)));
        self.b.ins().jump(done, &[]);
        self.b.seal_block(done);
        self.b.switch_to_block(done);
    }
}
