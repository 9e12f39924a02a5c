//! Accumulators of a loop: several registers for each, one for each step of a turn, which are combined at the end.

use super::codes as c;
use super::emit::{Emit, accumulators_at, at, plain};
use super::encode::{Base, RDI};
use super::ir::How;
use super::target::Target;
use crate::vir::Class;

impl Emit<'_> {
    /// The register of a copy of an accumulator.
    pub(super) fn accumulator(&self, number: u32, copy: u32) -> u8 {
        self.scratch(0) - 1 - (number * self.unroll + copy) as u8
    }

    /// Combines a register into an accumulator, in all lanes.
    fn merge(&mut self, how: How, class: Class, acc: u8, x: u8) {
        match self.target {
            Target::Avx512 => self.merge_zmm(how, class, acc, x, 0),
            Target::Avx2 => self.merge_ymm(how, class, (acc, acc), x),
        }
    }

    /// All copies begin with the identity. What the caller passed is combined at the end: it was written in parts just before
    /// the call, and a load of the whole would wait for them.
    pub(super) fn begin_accumulators(&mut self) {
        for (n, acc) in self.body.accumulators.iter().enumerate() {
            for copy in 0..self.unroll {
                let code = self.target.broadcast(acc.class);
                let register = self.accumulator(n as u32, copy);
                self.asm.vector(code, register, 0, plain(Base::Pool(acc.identity)), None);
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
                    self.merge(acc.merge, acc.class, into, from);
                }
                stride *= 2;
            }
            let memory = plain(at(RDI, first + self.target.bytes() * n as u32));
            let scratch = self.scratch(0);
            self.asm.vector(c::VMOVUPS, scratch, 0, memory, None);
            self.merge(acc.merge, acc.class, to, scratch);
            self.asm.vector(c::VMOVUPS_STORE, to, 0, memory, None);
        }
    }
}
