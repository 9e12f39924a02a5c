//! What is code of 512 bits alone: registers of masks, and accesses, selections and accumulators under a mask, which the
//! instructions do themselves. `ymm` is the other target's.

use super::codes as c;
use super::emit::{Emit, at, plain};
use super::encode::{Lanes, RDI, RDX, RSI, Rm};
use super::ir::{How, Inst, V};
use crate::vir::Class;

/// Vector registers for operands that are not in a register.
pub(super) const SCRATCH: [u8; 2] = [30, 31];
/// Masks of the points that are left: of all lanes, and of the upper eight of 64 bits.
const TAIL: [u8; 2] = [1, 2];
pub(super) const MASK_SCRATCH: [u8; 2] = [3, 4];
/// The other masks; 0 cannot mask an instruction.
pub(super) const MASKS: &[u8] = &[5, 6, 7];
/// All lanes.
pub(super) const ALL: Lanes = Lanes { mask: 0, zero: false };

impl Emit<'_> {
    /// Sets the masks of the points that are left, of which `rsi` is the number.
    pub(super) fn tail_masks(&mut self) {
        self.asm.set(RDX, 0xffff);
        self.asm.vex(c::BZHI, RDX, RSI, Rm::Reg(RDX), None);
        self.asm.vex(c::KMOVW_FROM, TAIL[0], 0, Rm::Reg(RDX), None);
        self.asm.vex(c::KSHIFTRW, TAIL[1], 0, Rm::Reg(TAIL[0]), Some(8));
    }

    /// The mask of the lanes that are in the loop and where a mask holds.
    pub(super) fn lanes(&mut self, mask: Option<V>, part: u8) -> u8 {
        let tail = TAIL[usize::from(part % 2)];
        match mask {
            None if self.tail => tail,
            None => 0,
            Some(v) => {
                let k = self.register(v, MASK_SCRATCH[0]);
                if !self.tail {
                    return k;
                }
                self.asm.vex(c::KANDW, MASK_SCRATCH[0], k, Rm::Reg(tail), None);
                MASK_SCRATCH[0]
            }
        }
    }

    pub(super) fn one_zmm(&mut self, inst: &Inst) {
        match *inst {
            Inst::Compare { code, d, a, b, imm } => {
                let to = self.result(d, MASK_SCRATCH[0]);
                let a = self.register(a, SCRATCH[0]);
                let b = self.operand(code, b, SCRATCH[1]);
                self.asm.evex(code, to, a, b, ALL, Some(imm));
                self.settle(d, to);
            }
            Inst::Blend { d, mask, yes, no } => {
                let code = if d.class.wide() { c::VBLENDMPD } else { c::VBLENDMPS };
                let mask = self.register(mask, MASK_SCRATCH[0]);
                let no = self.register(no, SCRATCH[0]);
                let yes = self.operand(code, yes, SCRATCH[1]);
                let to = self.result(d, SCRATCH[1]);
                self.asm.evex(code, to, no, yes, Lanes { mask, zero: false }, None);
                self.settle(d, to);
            }
            Inst::MaskTwo { code, d, a, b } => {
                let a = self.register(a, MASK_SCRATCH[0]);
                let b = self.register(b, MASK_SCRATCH[1]);
                let to = self.result(d, MASK_SCRATCH[0]);
                self.asm.vex(code, to, a, Rm::Reg(b), None);
                self.settle(d, to);
            }
            Inst::MaskOne { code, d, a, imm } => {
                let a = self.register(a, MASK_SCRATCH[0]);
                let to = self.result(d, MASK_SCRATCH[0]);
                self.asm.vex(code, to, 0, Rm::Reg(a), imm);
                self.settle(d, to);
            }
            Inst::MaskArgument { d, slot } => {
                let to = self.result(d, MASK_SCRATCH[0]);
                self.asm.vex(c::KMOVW, to, 0, plain(at(RDI, slot * 8)), None);
                self.settle(d, to);
            }
            Inst::Check { bad, index, size, site } => self.check(bad, index, size, site),
            Inst::Each { d, a, mask, slots } => self.each(d, (a, mask), slots),
            Inst::Accumulate { accumulator, how, a, b } => self.accumulate(accumulator, how, a, b),
            _ => self.access_zmm(inst),
        }
    }

    fn access_zmm(&mut self, inst: &Inst) {
        match *inst {
            Inst::Load { code, d, at, mask } => {
                let mask = self.lanes(mask, at.part);
                let (from, to) = (self.place(at), self.result(d, SCRATCH[1]));
                self.asm.evex(code, to, 0, from, Lanes { mask, zero: mask != 0 }, None);
                self.settle(d, to);
            }
            Inst::LoadMask { d, at, mask } => {
                let mask = self.lanes(mask, 0);
                let (from, to) = (self.place(at), self.result(d, MASK_SCRATCH[1]));
                let code = if at.uniform { c::VPBROADCASTB } else { c::VMOVDQU8 };
                self.asm.evex(code, SCRATCH[0], 0, from, Lanes { mask, zero: mask != 0 }, None);
                self.asm.evex(c::VPTESTMB, to, SCRATCH[0], Rm::Reg(SCRATCH[0]), ALL, None);
                self.settle(d, to);
            }
            Inst::Gather { code, d, at, index, mask } => self.gather(code, d, (at, index), mask),
            Inst::Scatter { code, value, at, index, mask } => self.scatter(code, value, (at, index), mask),
            Inst::Store { code, value, at, mask, imm } => {
                let value = self.register(value, SCRATCH[0]);
                let mask = self.lanes(mask, at.part);
                let to = self.place(at);
                self.asm.evex(code, value, 0, to, Lanes { mask, zero: false }, imm);
            }
            Inst::StoreMask { value, at, mask } => {
                let value = self.register(value, MASK_SCRATCH[1]);
                let bytes = SCRATCH[0];
                self.asm.evex(c::VPMOVM2B, bytes, 0, Rm::Reg(value), ALL, None);
                self.asm.evex(c::VPABSB, bytes, 0, Rm::Reg(bytes), ALL, None);
                let mask = self.lanes(mask, 0);
                let to = self.place(at);
                self.asm.evex(c::VMOVDQU8_STORE, bytes, 0, to, Lanes { mask, zero: false }, None);
            }
            // PROOF: all others are emitted by `emit`.
            _ => unreachable!("an instruction is emitted once"),
        }
    }

    fn accumulate(&mut self, number: u32, how: How, a: V, b: Option<V>) {
        let acc = self.accumulator(number, self.copy);
        let class = self.body.accumulators[number as usize].class;
        let part = self.body.accumulators[number as usize].part;
        let mask = self.lanes(None, part);
        match (how, b) {
            (How::Fused, Some(b)) => {
                let code = if class.wide() { c::VFMADD231PD } else { c::VFMADD231PS };
                let (a, b) = if self.in_register(a) { (a, b) } else { (b, a) };
                let a = self.register(a, SCRATCH[0]);
                let b = self.operand(code, b, SCRATCH[1]);
                self.asm.evex(code, acc, a, b, Lanes { mask, zero: false }, None);
            }
            _ => {
                let a = self.register(a, SCRATCH[0]);
                self.merge_zmm(how, class, acc, a, mask);
            }
        }
    }

    /// Combines a register into an accumulator where the mask holds.
    pub(super) fn merge_zmm(&mut self, how: How, class: Class, acc: u8, x: u8, mask: u8) {
        let lanes = Lanes { mask, zero: false };
        match how {
            How::Two(code) => self.asm.evex(code, acc, acc, Rm::Reg(x), lanes, None),
            How::Extremum { larger } => {
                // The second source is the result where either is NaN, so one in the accumulator stays; one in `x` is copied.
                let [max, min, compare, copy] = match class.wide() {
                    true => [c::VMAXPD, c::VMINPD, c::VCMPPD, c::VMOVUPD],
                    false => [c::VMAXPS, c::VMINPS, c::VCMPPS, c::VMOVUPS],
                };
                let nan = MASK_SCRATCH[0];
                self.asm.evex(if larger { max } else { min }, acc, x, Rm::Reg(acc), lanes, None);
                self.asm.evex(compare, nan, x, Rm::Reg(x), lanes, Some(3));
                self.asm.evex(copy, acc, 0, Rm::Reg(x), Lanes { mask: nan, zero: false }, None);
            }
            // PROOF: only `accumulate` is given a fused one, and it has two operands then.
            How::Fused => {}
        }
    }
}
