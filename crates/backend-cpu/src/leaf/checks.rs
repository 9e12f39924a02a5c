//! Checks of indices from data, before the accesses that use them: where a lane of the loop is out of bounds, the leaf writes down
//! the lanes and returns, and the function around it reports the first that failed.

use ir_core::{DType, Scalar, SymExpr};
use kernel_ir::Val;

use super::codes as c;
use super::emit::{Emit, at, plain};
use super::encode::{Jump, RAX, RDI, Rm};
use super::ir::{Inst, V};
use super::lower::{Lower, Regs};
use super::zmm::{ALL, MASK_SCRATCH, SCRATCH};
use crate::math::Lanes;
use crate::vir::Class;

/// Lists of sixteen numbers of 64 bits that a failed check fills: the indices, their masks, and the size.
pub(super) const LISTS: u32 = 3 * 16 * 8;
/// "Not less than", unsigned.
const NOT_LESS: u8 = 5;

impl Lower<'_> {
    /// A check of an index; returns its lanes.
    pub(super) fn check(&mut self, value: Val, size: &SymExpr, mask: Option<Val>, site: u32) -> Option<Regs> {
        let index = self.get(value)?;
        // Without accesses with an address for each lane there is nothing to check.
        if self.dtype(value) != DType::I64 || !self.b.target().has_mask_registers() {
            return None;
        }
        let size = self.here(size);
        let size = match size.as_const() {
            Some(n) => self.constant(DType::I64, Scalar::Int(n.max(0)))[0],
            None => {
                let given = self.argument(&size)?;
                let zero = self.b.wide(0, Class::I64);
                self.b.extreme_integer(false, given, zero)
            }
        };
        let bad = self.map1(&index, |b, x| {
            let d = b.value(Class::Mask);
            b.push(Inst::Compare { code: c::VPCMPUQ, d, a: x, b: size, imm: NOT_LESS });
            d
        });
        let mut bad = self.join(bad)[0];
        if let Some(mask) = mask {
            let mask = self.get(mask)?[0];
            bad = self.b.and(bad, mask);
        }
        self.b.push(Inst::Check { bad, index: [index[0], index[1]], size, site });
        Some(index)
    }
}

impl Emit<'_> {
    pub(super) fn check(&mut self, bad: V, [low, high]: [V; 2], size: V, site: u32) {
        let k = self.lanes(Some(bad), 0);
        self.asm.vex(c::KORTESTW, k, 0, Rm::Reg(k), None);
        let fine = self.asm.jump(Jump::Equal);
        let lists = self.lists_at();
        let put = |e: &mut Self, register: u8, offset: u32| {
            e.asm.evex(c::VMOVUPS_STORE, register, 0, plain(at(RDI, lists + offset)), ALL, None);
        };
        for (part, v) in [low, high].into_iter().enumerate() {
            let register = self.register(v, SCRATCH[0]);
            put(self, register, 64 * part as u32);
        }
        let size = self.register(size, SCRATCH[0]);
        put(self, size, 256);
        let (mask, high) = (SCRATCH[1], MASK_SCRATCH[1]);
        self.asm.evex(c::VPMOVM2Q, mask, 0, Rm::Reg(k), ALL, None);
        put(self, mask, 128);
        self.asm.vex(c::KSHIFTRW, high, 0, Rm::Reg(k), Some(8));
        self.asm.evex(c::VPMOVM2Q, mask, 0, Rm::Reg(high), ALL, None);
        put(self, mask, 192);
        self.asm.set(RAX, site + 1);
        let out = self.asm.jump_always();
        self.failures.push(out);
        self.asm.land(fine);
    }

    /// The result of the function: 0, or one more than the number of the site whose check failed.
    pub(super) fn outcome(&mut self) {
        if self.failures.is_empty() {
            return;
        }
        self.asm.set(RAX, 0);
        std::mem::take(&mut self.failures).into_iter().for_each(|jump| self.asm.land(jump));
    }
}
