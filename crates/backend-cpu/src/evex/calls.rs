//! Functions of single lanes within a leaf: where a mask has a lane, all registers are saved, and a host function computes the
//! lanes of the mask. Made for what is rare: saving takes longer than sixteen short calls.

use super::codes as c;
use super::emit::{ALL, Emit, MASK_SCRATCH, SCRATCH, at, plain};
use super::encode::{Gpr, Jump, RAX, RBP, RBX, RCX, RDI, RDX, RSI, Rm};
use super::ir::V;

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
        let k = self.register(mask, MASK_SCRATCH[0]);
        self.asm.vex(c::KORTESTW, k, 0, Rm::Reg(k), None);
        let none = self.asm.jump(Jump::Equal);
        let base = self.calls_at();
        let to = self.register(d, SCRATCH[1]);
        let x = self.register(a, SCRATCH[0]);
        self.asm.evex(c::VMOVUPS_STORE, x, 0, plain(at(RDI, base)), ALL, None);
        self.asm.evex(c::VMOVUPS_STORE, to, 0, plain(at(RDI, base + RESULT)), ALL, None);
        self.asm.vex(c::KMOVW_STORE, k, 0, plain(at(RDI, base + MASK)), None);
        self.asm.load(RDX, RDI, function as i32 * 8);
        self.asm.store(RDX, RDI, base as i32 + FUNCTION);
        self.asm.load(RDX, RDI, host as i32 * 8);
        let call = self.asm.call();
        self.calls.push(call);
        self.asm.evex(c::VMOVUPS, to, 0, plain(at(RDI, base + RESULT)), ALL, None);
        self.settle(d, to);
        self.asm.land(none);
    }

    /// The code that all calls share, behind the function: saves what is in use and calls the function in `rdx`.
    pub(super) fn shared_call(&mut self) {
        if self.calls.is_empty() {
            return;
        }
        std::mem::take(&mut self.calls).into_iter().for_each(|call| self.asm.land(call));
        let base = self.calls_at();
        let (vectors, masks) = (base + EACH, base + EACH + 32 * 64);
        SAVED.into_iter().for_each(|r| self.asm.save(r));
        self.asm.copy(RBX, RDI);
        self.asm.align_stack(RBP);
        for n in 0..32u8 {
            let to = plain(at(RBX, vectors + 64 * u32::from(n)));
            self.asm.evex(c::VMOVUPS_STORE, n, 0, to, ALL, None);
        }
        for n in 1..8u8 {
            self.asm.vex(c::KMOVW_STORE, n, 0, plain(at(RBX, masks + 8 * u32::from(n))), None);
        }
        self.asm.lea(RDI, RBX, base as i32);
        self.asm.call_register(RDX);
        for n in 0..32u8 {
            let from = plain(at(RBX, vectors + 64 * u32::from(n)));
            self.asm.evex(c::VMOVUPS, n, 0, from, ALL, None);
        }
        for n in 1..8u8 {
            self.asm.vex(c::KMOVW, n, 0, plain(at(RBX, masks + 8 * u32::from(n))), None);
        }
        self.asm.restore_stack(RBP);
        SAVED.into_iter().rev().for_each(|r| self.asm.restore(r));
        self.asm.ret();
    }
}
