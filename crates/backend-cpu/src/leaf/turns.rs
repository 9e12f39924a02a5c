//! The loops within a step: counters, and what each turn adds to addresses and index values. An address that is in a register
//! is advanced there, other numbers in their slots.

use super::emit::Emit;
use super::encode::{Gpr, Jump, RBX, RDI, RDX};
use super::ir::{Move, Number, Turns};

/// The counter of a loop that has none within it.
const COUNTER: Gpr = RBX;

/// A loop whose end is not emitted yet.
pub(super) struct Open {
    top: usize,
    /// The jump past a loop without turns.
    past: Option<usize>,
}

impl Emit<'_> {
    /// `to = number`.
    fn number(&mut self, to: Gpr, number: Number) {
        match number {
            Number::Constant(x) => self.asm.set_signed(to, x),
            Number::Argument(slot) => self.asm.load(to, RDI, slot as i32 * 8),
        }
    }

    /// The top of a loop.
    pub(super) fn begin_loop(&mut self, number: u32) {
        let (turns, counter) =
            (self.body.loops[number as usize].turns, self.body.loops[number as usize].counter);
        let mut past = None;
        let to = if counter.is_some() { RDX } else { COUNTER };
        match turns {
            Turns::Whole(n) | Turns::Blocks { of: n, .. } => {
                let blocks = matches!(turns, Turns::Blocks { .. });
                let to = if blocks { RDX } else { to };
                self.number(to, n);
                if !matches!(n, Number::Constant(x) if x > 0) {
                    self.asm.compare_with(to, 0);
                    past = Some(self.asm.jump(Jump::LessOrEqual));
                }
                if let Turns::Blocks { left, .. } = turns {
                    self.asm.store(RDX, RDI, left as i32 * 8);
                }
            }
            Turns::Within { most, left } => {
                self.asm.set_signed(to, most);
                let from = if to == RDX { COUNTER } else { RDX };
                self.asm.load(from, RDI, left as i32 * 8);
                self.asm.compare(from, to);
                self.asm.copy_if_less(to, from);
                self.asm.add_constant_to(RDI, left as i32 * 8, -most);
            }
        }
        if let (Some(slot), false) = (counter, matches!(turns, Turns::Blocks { .. })) {
            self.asm.store(RDX, RDI, slot as i32 * 8);
        }
        let top = self.asm.here();
        self.open.push(Open { top, past });
    }

    /// The end of the loop that began last.
    pub(super) fn end_loop(&mut self, number: u32) {
        // PROOF: `lower` closes every loop that it opens, innermost first.
        let Some(open) = self.open.pop() else { return };
        let body = self.body;
        let this = &body.loops[number as usize];
        this.moves.iter().for_each(|m| self.advance(*m));
        match (this.turns, this.counter) {
            // What is left may have become negative.
            (Turns::Blocks { left, .. }, _) => {
                self.asm.load(RDX, RDI, left as i32 * 8);
                self.asm.compare_with(RDX, 0);
                self.asm.jump_back(Jump::Greater, open.top);
            }
            (_, Some(slot)) => {
                self.asm.add_constant_to(RDI, slot as i32 * 8, -1);
                self.asm.jump_back(Jump::NotEqual, open.top);
            }
            (_, None) => {
                self.asm.add(COUNTER, -1);
                self.asm.jump_back(Jump::NotEqual, open.top);
            }
        }
        this.back.iter().for_each(|m| self.advance(*m));
        if let Some(past) = open.past {
            self.asm.land(past);
        }
    }

    fn advance(&mut self, Move { slot, by }: Move) {
        let at = slot as i32 * 8;
        match (self.address_register(slot), by) {
            (Some(r), Number::Constant(by)) => self.asm.add(r, by),
            (Some(r), Number::Argument(by)) => self.asm.add_load(r, RDI, by as i32 * 8),
            (None, Number::Constant(by)) => self.asm.add_constant_to(RDI, at, by),
            (None, Number::Argument(by)) => {
                self.asm.load(RDX, RDI, by as i32 * 8);
                self.asm.add_to(RDX, RDI, at);
            }
        }
    }
}
