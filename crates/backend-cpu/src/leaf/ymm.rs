//! What is code of 256 bits alone: masks are vectors, so that what is masked takes more than the instruction itself. Elements of 32
//! and 64 bits are read and written by `vmaskmov`; smaller ones, where lanes are missing, one by one by way of the block of
//! arguments, which is for the few points that are left and for masked accesses. `zmm` is the other target's.

use super::codes as c;
use super::emit::{Emit, at, plain};
use super::encode::{Base, Code, Constant, Jump, RAX, RBX, RDI, RDX, RSI, Rm};
use super::ir::{How, Inst, Place, V};
use crate::vir::Class;

/// Bytes of the block of arguments: the mask of the points that are left, and as many elements as a step has.
pub(super) const ROOM: u32 = 64;
/// Where the elements are in it.
const ELEMENTS: u32 = 32;
/// Registers that copying single elements needs: the lane, the lanes that are left, an element.
const SAVED: [u8; 3] = [RAX, RBX, RSI];
/// Elements of this many bytes (its logarithm) and more are read and written under a mask.
const MASKABLE: u8 = 2;
/// "Unordered", as a predicate of floats.
const UNORDERED: u8 = 3;

impl Emit<'_> {
    /// Writes the mask of the points that are left, of which `rsi` is the number, to its place in the block.
    pub(super) fn tail_mask(&mut self) {
        let mask = self.scratch(0);
        self.asm.vector(c::VMOVD_FROM, mask, 0, Rm::Reg(RSI), None);
        self.asm.vector(c::VPBROADCASTD_Y, mask, 0, Rm::Reg(mask), None);
        self.asm.vector(c::VPCMPGTD, mask, mask, plain(Base::Pool(Constant::Places)), None);
        let to = plain(at(RDI, self.tail_at));
        self.asm.vector(c::VMOVUPS_STORE, mask, 0, to, None);
    }

    /// The mask of the lanes of a class that are in the loop and where a mask holds, perhaps in the given register; `None`: all.
    fn lanes_ymm(&mut self, mask: Option<V>, part: u8, class: Class, scratch: u8) -> Option<u8> {
        if !self.tail {
            return mask.map(|v| self.register(v, scratch));
        }
        let (code, offset) = match class.wide() {
            true => (c::VPMOVSXDQ, 16 * u32::from(part % 2)),
            false => (c::VMOVUPS, 0),
        };
        let tail = plain(at(RDI, self.tail_at + offset));
        self.asm.vector(code, scratch, 0, tail, None);
        if let Some(v) = mask {
            // A value without a register is read from memory.
            let v = self.operand(c::VPANDD, v, scratch);
            self.asm.vector(c::VPANDD, scratch, scratch, v, None);
        }
        Some(scratch)
    }

    pub(super) fn one_ymm(&mut self, inst: &Inst) {
        match *inst {
            Inst::Blend { d, mask, yes, no } => {
                let mask = self.register(mask, self.scratch(0));
                let no = self.register(no, self.scratch(1));
                let yes = self.operand(c::VBLENDVPS, yes, self.scratch(2));
                let to = self.result(d, self.scratch(1));
                self.asm.vector(c::VBLENDVPS, to, no, yes, Some(mask << 4));
                self.settle(d, to);
            }
            Inst::Load { code, d, at, mask } => {
                let to = self.result(d, self.scratch(1));
                match at.uniform {
                    true => self.load_one(code, to, at, (mask, d.class)),
                    false => self.load_ymm(code, to, at, (mask, d.class)),
                }
                self.settle(d, to);
            }
            Inst::Store { code, value, at, mask, imm } => {
                let class = value.class;
                let value = self.register(value, self.scratch(0));
                let lanes = self.lanes_ymm(mask, at.part, class, self.scratch(1));
                self.store_ymm(code, value, at, lanes, imm);
            }
            Inst::Each { d, a, mask, slots } => self.each(d, (a, mask), slots),
            Inst::Accumulate { accumulator, how, a, b } => self.accumulate_ymm(accumulator, how, a, b),
            // PROOF: `Body::is_possible` refuses the instructions of the other target, and `emit` has those of both.
            _ => unreachable!("an instruction is emitted once"),
        }
    }

    // Memory.

    /// One element in all lanes, if there is any lane; else zeros.
    fn load_one(&mut self, code: Code, to: u8, place: Place, (mask, class): (Option<V>, Class)) {
        let mut past = None;
        if mask.is_some()
            && let Some(lanes) = self.lanes_ymm(mask, place.part, class, self.scratch(0))
        {
            self.asm.vector(c::VMOVMSKPS, RDX, 0, Rm::Reg(lanes), None);
            self.asm.vector(c::VPXORD, to, to, Rm::Reg(to), None);
            self.asm.compare_with(RDX, 0);
            past = Some(self.asm.jump(Jump::Equal));
        }
        let from = self.place(place);
        self.asm.vector(code, to, 0, from, None);
        if let Some(past) = past {
            self.asm.land(past);
        }
    }

    /// Neighbouring elements, zero where the mask is false.
    fn load_ymm(&mut self, code: Code, to: u8, place: Place, (mask, class): (Option<V>, Class)) {
        let from = match self.lanes_ymm(mask, place.part, class, self.scratch(0)) {
            None => self.place(place),
            Some(lanes) if place.scale >= MASKABLE => {
                let code = if class.wide() { c::VMASKMOVPD } else { c::VMASKMOVPS };
                let from = self.place(place);
                return self.asm.vector(code, to, lanes, from, None);
            }
            Some(lanes) => {
                let (zero, elements) = (self.scratch(2), plain(at(RDI, self.tail_at + ELEMENTS)));
                self.asm.vector(c::VPXORD, zero, zero, Rm::Reg(zero), None);
                self.asm.vector(c::VMOVUPS_STORE, zero, 0, elements, None);
                self.copy_elements(lanes, place, false);
                elements
            }
        };
        self.asm.vector(code, to, 0, from, None);
    }

    fn store_ymm(&mut self, code: Code, value: u8, place: Place, lanes: Option<u8>, imm: Option<u8>) {
        match lanes {
            None => {
                let to = self.place(place);
                self.asm.vector(code, value, 0, to, imm);
            }
            Some(lanes) if place.scale >= MASKABLE => {
                let wide = code == c::VMOVUPD_STORE;
                let code = if wide { c::VMASKMOVPD_STORE } else { c::VMASKMOVPS_STORE };
                let to = self.place(place);
                self.asm.vector(code, value, lanes, to, None);
            }
            Some(lanes) => {
                let elements = plain(at(RDI, self.tail_at + ELEMENTS));
                self.asm.vector(code, value, 0, elements, imm);
                self.copy_elements(lanes, place, true);
            }
        }
    }

    /// Copies the elements of the lanes of a mask from their place to the block, or back.
    fn copy_elements(&mut self, lanes: u8, place: Place, to_place: bool) {
        let block = (self.tail_at + ELEMENTS) as i32;
        // PROOF: loads of one element for all lanes are others, and nothing is stored to one place.
        let Base::Gpr { base, index: Some(index), displacement } = self.address(place) else {
            unreachable!("neighbouring elements are counted by the point")
        };
        self.asm.lea_element(RDX, base, index, displacement);
        SAVED.into_iter().for_each(|r| self.asm.save(r));
        self.asm.vector(c::VMOVMSKPS, RBX, 0, Rm::Reg(lanes), None);
        self.asm.compare_with(RBX, 0);
        let none = self.asm.jump(Jump::Equal);
        let top = self.asm.here();
        self.asm.lowest_bit(RAX, RBX);
        let at = (RAX, place.scale);
        let [(from, first), (to, last)] =
            if to_place { [(RDI, block), (RDX, 0)] } else { [(RDX, 0), (RDI, block)] };
        self.asm.load_element(RSI, from, at, first);
        self.asm.store_element(RSI, to, at, last);
        self.asm.lea(RSI, RBX, -1);
        self.asm.and(RBX, RSI);
        self.asm.jump_back(Jump::NotEqual, top);
        self.asm.land(none);
        SAVED.into_iter().rev().for_each(|r| self.asm.restore(r));
    }

    // Accumulators.

    /// Points that are not in the loop keep what is accumulated.
    fn accumulate_ymm(&mut self, number: u32, how: How, a: V, b: Option<V>) {
        let acc = self.accumulator(number, self.copy);
        let this = self.body.accumulators[number as usize];
        let [x, combined, mask] = [self.scratch(0), self.scratch(1), self.scratch(2)];
        let to = if self.tail { combined } else { acc };
        match (how, b) {
            (How::Fused, Some(b)) => {
                let code = if this.class.wide() { c::VFMADD231PD } else { c::VFMADD231PS };
                let (a, b) = if self.in_register(a) { (a, b) } else { (b, a) };
                let a = self.register(a, x);
                let b = self.operand(code, b, mask);
                if to != acc {
                    self.asm.vector(c::VMOVUPS, to, 0, Rm::Reg(acc), None);
                }
                self.asm.vector(code, to, a, b, None);
            }
            _ => {
                let a = self.register(a, x);
                self.merge_ymm(how, this.class, (to, acc), a);
            }
        }
        if let Some(lanes) = self.lanes_ymm(None, this.part, this.class, mask) {
            self.asm.vector(c::VBLENDVPS, acc, acc, Rm::Reg(to), Some(lanes << 4));
        }
    }

    /// `to` = `acc` combined with `x`. `to` may be `acc`; `x` is neither of them.
    pub(super) fn merge_ymm(&mut self, how: How, class: Class, (to, acc): (u8, u8), x: u8) {
        match how {
            How::Two(code) => self.asm.vector(code, to, acc, Rm::Reg(x), None),
            How::Extremum { larger } => {
                // The second source is the result where either is NaN, so one in the accumulator stays; one in `x` is copied.
                let [max, min, compare] = match class.wide() {
                    true => [c::VMAXPD, c::VMINPD, c::VCMPPD],
                    false => [c::VMAXPS, c::VMINPS, c::VCMPPS],
                };
                let nan = self.scratch(2);
                self.asm.vector(if larger { max } else { min }, to, x, Rm::Reg(acc), None);
                self.asm.vector(compare, nan, x, Rm::Reg(x), Some(UNORDERED));
                self.asm.vector(c::VBLENDVPS, to, to, Rm::Reg(x), Some(nan << 4));
            }
            // PROOF: only `accumulate_ymm` is given a fused one, and it has two operands then.
            How::Fused => {}
        }
    }
}
