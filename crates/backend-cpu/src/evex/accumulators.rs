//! Accumulators of a loop: several registers for each, one for each step of a turn, which are combined at the end.

use super::codes as c;
use super::emit::{ALL, Emit, MASK_SCRATCH, SCRATCH, accumulators_at, at, plain};
use super::encode::{Base, Lanes, RDI, Rm};
use super::ir::{How, V};
use crate::vir::Class;

impl Emit<'_> {
    /// The register of a copy of an accumulator.
    fn accumulator(&self, number: u32, copy: u32) -> u8 {
        SCRATCH[0] - 1 - (number * self.unroll + copy) as u8
    }

    pub(super) fn accumulate(&mut self, number: u32, how: How, a: V, b: Option<V>) {
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
                self.merge(how, class, acc, a, mask);
            }
        }
    }

    /// Combines a register into an accumulator where the mask holds.
    fn merge(&mut self, how: How, class: Class, acc: u8, x: u8, mask: u8) {
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

    /// All copies begin with the identity. What the caller passed is combined at the end: it was written in parts just before
    /// the call, and a load of the whole would wait for them.
    pub(super) fn begin_accumulators(&mut self) {
        for (n, acc) in self.body.accumulators.iter().enumerate() {
            for copy in 0..self.unroll {
                let code = if acc.class.wide() { c::VBROADCASTSD } else { c::VBROADCASTSS };
                let register = self.accumulator(n as u32, copy);
                self.asm.evex(code, register, 0, plain(Base::Pool(acc.identity)), ALL, None);
            }
        }
    }

    pub(super) fn end_accumulators(&mut self) {
        let first = accumulators_at(self.body.slots);
        for (n, acc) in self.body.accumulators.iter().enumerate() {
            let to = self.accumulator(n as u32, 0);
            let mut stride = 1;
            while stride < self.unroll {
                for copy in (0..self.unroll).step_by(2 * stride as usize) {
                    let (into, from) = (self.accumulator(n as u32, copy), copy + stride);
                    let from = self.accumulator(n as u32, from);
                    self.merge(acc.merge, acc.class, into, from, 0);
                }
                stride *= 2;
            }
            let memory = plain(at(RDI, first + 64 * n as u32));
            self.asm.evex(c::VMOVUPS, SCRATCH[1], 0, memory, ALL, None);
            self.merge(acc.merge, acc.class, to, SCRATCH[1], 0);
            self.asm.evex(c::VMOVUPS_STORE, to, 0, memory, ALL, None);
        }
    }
}
