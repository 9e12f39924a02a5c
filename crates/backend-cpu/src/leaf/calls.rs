//! Functions of single lanes within a leaf: where a mask has a lane, all registers are saved, and a host function computes the
//! lanes of the mask. Made for what is rare: saving takes longer than sixteen short calls.

use super::codes as c;
use super::emit::{Emit, at, plain};
use super::encode::{Gpr, Jump, RAX, RBP, RBX, RCX, RDI, RDX, RSI, Rm};
use super::ir::V;
use super::target::Target;
use super::zmm::MASK_SCRATCH;

/// What a host function is given: the arguments, and the results, which it replaces in the lanes of the mask by those of
/// `function`.
#[repr(C, align(64))]
pub(crate) struct Each {
    pub(crate) x: [f32; 16],
    pub(crate) result: [f32; 16],
    pub(crate) mask: u16,
    pub(crate) function: extern "C" fn(f32) -> f32,
}

/// Offsets in [`Each`].
const RESULT: u32 = std::mem::offset_of!(Each, result) as u32;
const MASK: u32 = std::mem::offset_of!(Each, mask) as u32;
const FUNCTION: i32 = std::mem::offset_of!(Each, function) as i32;
const EACH: u32 = std::mem::size_of::<Each>() as u32;
/// Bytes of the arguments' block that calls need: [`Each`], the vector registers and the masks.
pub(super) const ROOM: u32 = EACH + 32 * 64 + 64;
/// General registers that a host function may change, and two that the code around the call uses.
const SAVED: [Gpr; 11] = [RAX, RCX, RDX, RSI, RDI, 8, 9, 10, 11, RBX, RBP];

impl Emit<'_> {
    /// Replaces the lanes of `d` where the mask holds by the function of those of `a`. The slots: the host function, and that of
    /// a lane.
    pub(super) fn each(&mut self, d: V, (a, mask): (V, V), [host, function]: [u32; 2]) {
        let base = self.calls_at();
        let none = self.lanes_of_call(mask, base + MASK);
        let to = self.register(d, self.scratch(1));
        let x = self.register(a, self.scratch(0));
        self.asm.vector(c::VMOVUPS_STORE, x, 0, plain(at(RDI, base)), None);
        self.asm.vector(c::VMOVUPS_STORE, to, 0, plain(at(RDI, base + RESULT)), None);
        self.asm.load(RDX, RDI, function as i32 * 8);
        self.asm.store(RDX, RDI, base as i32 + FUNCTION);
        self.asm.load(RDX, RDI, host as i32 * 8);
        let call = self.asm.call();
        self.calls.push(call);
        self.asm.vector(c::VMOVUPS, to, 0, plain(at(RDI, base + RESULT)), None);
        self.settle(d, to);
        self.asm.land(none);
    }

    /// Writes a bit for each lane of a mask to the block; returns the jump past the call where there is none.
    fn lanes_of_call(&mut self, mask: V, to: u32) -> usize {
        match self.target {
            Target::Avx512 => {
                let k = self.register(mask, MASK_SCRATCH[0]);
                self.asm.vex(c::KORTESTW, k, 0, Rm::Reg(k), None);
                let none = self.asm.jump(Jump::Equal);
                self.asm.vex(c::KMOVW_STORE, k, 0, plain(at(RDI, to)), None);
                none
            }
            Target::Avx2 => {
                let lanes = self.register(mask, self.scratch(0));
                self.asm.vector(c::VMOVMSKPS, RDX, 0, Rm::Reg(lanes), None);
                self.asm.compare_with(RDX, 0);
                let none = self.asm.jump(Jump::Equal);
                // The six bytes behind the mask are of nothing.
                self.asm.store(RDX, RDI, to as i32);
                none
            }
        }
    }

    /// The code that all calls share, behind the function: saves what is in use and calls the function in `rdx`.
    pub(super) fn shared_call(&mut self) {
        if self.calls.is_empty() {
            return;
        }
        std::mem::take(&mut self.calls).into_iter().for_each(|call| self.asm.land(call));
        let base = self.calls_at();
        let (vectors, masks) = (base + EACH, base + EACH + 32 * 64);
        let width = self.target.bytes();
        let masks_in_use = if self.target.has_mask_registers() { 1..8u8 } else { 0..0 };
        SAVED.into_iter().for_each(|r| self.asm.save(r));
        self.asm.copy(RBX, RDI);
        self.asm.align_stack(RBP);
        for n in 0..self.target.vectors() {
            let to = plain(at(RBX, vectors + width * u32::from(n)));
            self.asm.vector(c::VMOVUPS_STORE, n, 0, to, None);
        }
        for n in masks_in_use.clone() {
            self.asm.vex(c::KMOVW_STORE, n, 0, plain(at(RBX, masks + 8 * u32::from(n))), None);
        }
        self.asm.lea(RDI, RBX, base as i32);
        self.asm.call_register(RDX);
        for n in 0..self.target.vectors() {
            let from = plain(at(RBX, vectors + width * u32::from(n)));
            self.asm.vector(c::VMOVUPS, n, 0, from, None);
        }
        for n in masks_in_use.clone() {
            self.asm.vex(c::KMOVW, n, 0, plain(at(RBX, masks + 8 * u32::from(n))), None);
        }
        self.asm.restore_stack(RBP);
        SAVED.into_iter().rev().for_each(|r| self.asm.restore(r));
        self.asm.ret();
    }
}
