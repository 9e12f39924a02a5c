//! Machine code of x86-64 as bytes: EVEX instructions on 512-bit registers and masks (AVX-512 F, BW, DQ, VL), VEX instructions on
//! 256-bit registers (AVX2, FMA, F16C) and masks, and the few scalar instructions of a loop. Constants are in a pool behind the code and addressed relative
//! to the instruction pointer, so the code may be placed anywhere. Knows nothing of values and registers in use.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use super::target::Target;

/// Number of a general register.
pub(super) type Gpr = u8;
pub(super) const RAX: Gpr = 0;
pub(super) const RCX: Gpr = 1;
pub(super) const RDX: Gpr = 2;
pub(super) const RBX: Gpr = 3;
const RSP: Gpr = 4;
pub(super) const RBP: Gpr = 5;
pub(super) const RSI: Gpr = 6;
pub(super) const RDI: Gpr = 7;

/// An EVEX or VEX instruction without its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code {
    /// Map of opcodes: 1 is `0F`, 2 `0F38`, 3 `0F3A`.
    pub(super) map: u8,
    /// Prefix: 0 none, 1 `66`, 2 `F3`, 3 `F2`.
    pub(super) prefix: u8,
    /// The opcode.
    pub(super) op: u8,
    /// The bit W; with EVEX, whether elements have 64 bits.
    pub(super) w: bool,
    /// Bytes of an operand in memory that is not broadcast; with EVEX displacements of 8 bits count in these. Where `length` is 2,
    /// the VEX form has registers and operands half as long.
    pub(super) memory: u8,
    /// Length of the registers: 0 is 128 bits, 1 is 256, 2 is 512.
    pub(super) length: u8,
    /// The destination is in the place of the last operand (ModRM.rm) instead of the first.
    pub(super) reversed: bool,
    /// The two sources may be exchanged.
    pub(super) commutes: bool,
    /// Whether leaves of 512 bits, and whether those of 256 bits may have it.
    pub(super) avx512: bool,
    pub(super) avx2: bool,
}

impl Code {
    /// Whether its last operand in memory is as long as a register.
    pub(super) fn whole(self) -> bool {
        self.memory == 16 << self.length && !self.reversed
    }
    pub(super) fn is_of(self, target: Target) -> bool {
        match target {
            Target::Avx2 => self.avx2,
            Target::Avx512 => self.avx512,
        }
    }
}

/// Where an operand in memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// At a general register, perhaps plus another one times `1 << scale`.
    Gpr { base: Gpr, index: Option<(Gpr, u8)>, displacement: i32 },
    /// For each lane at a general register plus the lane of a vector register times `1 << scale`.
    Lanes { base: Gpr, index: u8, scale: u8, displacement: i32 },
    /// A constant of the pool.
    Pool(Constant),
}

/// The last operand (ModRM.rm).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rm {
    /// A register.
    Reg(u8),
    /// Memory; broadcast: one element for all lanes.
    Mem { base: Base, broadcast: bool },
}

/// A constant of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Constant {
    /// 32 bits.
    Narrow(u32),
    /// 64 bits.
    Wide(u64),
    /// Eight lanes of 64 bits: the multiples 0 to 7 of a step.
    Multiples(i64),
    /// Eight lanes of 32 bits: the numbers 0 to 7.
    Places,
}

impl Constant {
    /// Its bytes in the pool: with VEX an instruction reads a whole register of equal lanes.
    fn bytes(self, target: Target) -> Vec<u8> {
        let lanes = |bytes: &[u8], vex: usize| bytes.repeat(if target == Target::Avx2 { vex } else { 1 });
        match self {
            Constant::Narrow(bits) => lanes(&bits.to_le_bytes(), 8),
            Constant::Wide(bits) => lanes(&bits.to_le_bytes(), 4),
            Constant::Multiples(step) => (0..8i64).flat_map(|k| k.wrapping_mul(step).to_le_bytes()).collect(),
            Constant::Places => (0..8u32).flat_map(u32::to_le_bytes).collect(),
        }
    }
}

/// The lanes that an instruction writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lanes {
    /// Mask register; 0 is all lanes.
    pub(super) mask: u8,
    /// The other lanes become zero instead of keeping their value.
    pub(super) zero: bool,
}

/// Condition of a jump: the opcode after `0F`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Jump {
    Equal = 0x84,
    NotEqual = 0x85,
    LessOrEqual = 0x8e,
    Greater = 0x8f,
}

/// Code under construction.
pub(super) struct Assembler {
    target: Target,
    bytes: Vec<u8>,
    /// Places of displacements to constants, each with the number of bytes from there to the end of the instruction.
    uses: Vec<(usize, usize, Constant)>,
}

impl Assembler {
    pub(super) fn new(target: Target) -> Assembler {
        Assembler { target, bytes: Vec::new(), uses: Vec::new() }
    }

    /// A vector instruction on all lanes: EVEX or VEX, whichever the target has.
    pub(super) fn vector(&mut self, code: Code, reg: u8, vvvv: u8, rm: Rm, imm: Option<u8>) {
        debug_assert!(code.is_of(self.target), "{code:?} is not of {:?}", self.target);
        match self.target {
            Target::Avx512 => self.evex(code, reg, vvvv, rm, Lanes::default(), imm),
            Target::Avx2 => self.vex(code, reg, vvvv, rm, imm),
        }
    }

    /// An EVEX instruction: destination `reg`, first source `vvvv` (0 where there is none), last operand `rm`.
    pub(super) fn evex(&mut self, code: Code, reg: u8, vvvv: u8, rm: Rm, lanes: Lanes, imm: Option<u8>) {
        let (x, b) = match rm {
            Rm::Reg(r) => (r >> 4 & 1, r >> 3 & 1),
            Rm::Mem { base: Base::Gpr { base, index, .. }, .. } => {
                (index.map_or(0, |(i, _)| i >> 3 & 1), base >> 3 & 1)
            }
            Rm::Mem { base: Base::Lanes { base, index, .. }, .. } => (index >> 3 & 1, base >> 3 & 1),
            Rm::Mem { base: Base::Pool(_), .. } => (0, 0),
        };
        // The fifth bit of a vector of indices is where that of a first source is, which such instructions do not have.
        let vvvv = match rm {
            Rm::Mem { base: Base::Lanes { index, .. }, .. } => index & 16,
            _ => vvvv,
        };
        let broadcast = matches!(rm, Rm::Mem { broadcast: true, .. });
        let p0 = (!reg >> 3 & 1) << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | (!reg >> 4 & 1) << 4 | code.map;
        let p1 = u8::from(code.w) << 7 | (!vvvv & 15) << 3 | 4 | code.prefix;
        let p2 = u8::from(lanes.zero) << 7
            | code.length << 5
            | u8::from(broadcast) << 4
            | (!vvvv >> 4 & 1) << 3
            | lanes.mask;
        self.bytes.extend_from_slice(&[0x62, p0, p1, p2, code.op]);
        let unit = match broadcast {
            true if code.w => 8,
            true => 4,
            false => i32::from(code.memory),
        };
        self.operand(reg & 7, rm, unit, usize::from(imm.is_some()));
        self.bytes.extend(imm);
    }

    /// A VEX instruction of 128 bits (256 where `code.length` is not 0): operands as in [`Assembler::evex`].
    pub(super) fn vex(&mut self, code: Code, reg: u8, vvvv: u8, rm: Rm, imm: Option<u8>) {
        let (x, b) = match rm {
            Rm::Reg(r) => (0, r >> 3 & 1),
            Rm::Mem { base: Base::Gpr { base, index, .. }, .. } => {
                (index.map_or(0, |(i, _)| i >> 3 & 1), base >> 3 & 1)
            }
            Rm::Mem { base: Base::Lanes { base, index, .. }, .. } => (index >> 3 & 1, base >> 3 & 1),
            Rm::Mem { base: Base::Pool(_), .. } => (0, 0),
        };
        let first = (!reg >> 3 & 1) << 7 | (x ^ 1) << 6 | (b ^ 1) << 5 | code.map;
        let second = u8::from(code.w) << 7 | (!vvvv & 15) << 3 | u8::from(code.length > 0) << 2 | code.prefix;
        self.bytes.extend_from_slice(&[0xc4, first, second, code.op]);
        self.operand(reg & 7, rm, 1, usize::from(imm.is_some()));
        self.bytes.extend(imm);
    }

    /// ModRM and what belongs to it. `unit`: bytes that a displacement of 8 bits counts in.
    fn operand(&mut self, reg: u8, rm: Rm, unit: i32, after: usize) {
        let reg = reg << 3;
        match rm {
            Rm::Reg(r) => self.bytes.push(0xc0 | reg | r & 7),
            Rm::Mem { base: Base::Pool(constant), .. } => {
                self.bytes.push(reg | 5);
                self.uses.push((self.bytes.len(), 4 + after, constant));
                self.bytes.extend_from_slice(&[0; 4]);
            }
            Rm::Mem { base: Base::Lanes { base, index, scale, displacement }, .. } => {
                let index = Some((index, scale));
                self.operand(
                    reg >> 3,
                    Rm::Mem { base: Base::Gpr { base, index, displacement }, broadcast: false },
                    unit,
                    after,
                );
            }
            Rm::Mem { base: Base::Gpr { base, index, displacement }, .. } => {
                let short = (displacement % unit == 0).then(|| displacement / unit);
                let short = short.and_then(|d| i8::try_from(d).ok());
                let mode = if short.is_some() { 0x40 } else { 0x80 };
                match index {
                    Some((index, scale)) => {
                        self.bytes.push(mode | reg | 4);
                        self.bytes.push(scale << 6 | (index & 7) << 3 | base & 7);
                    }
                    None => self.bytes.push(mode | reg | base & 7),
                }
                match short {
                    Some(d) => self.bytes.push(d as u8),
                    None => self.bytes.extend_from_slice(&displacement.to_le_bytes()),
                }
            }
        }
    }

    /// `to = [base + displacement]`, 64 bits.
    pub(super) fn load(&mut self, to: Gpr, base: Gpr, displacement: i32) {
        self.bytes.extend_from_slice(&[
            0x48 | to >> 3 << 2 | base >> 3,
            0x8b,
            0x80 | (to & 7) << 3 | base & 7,
        ]);
        self.bytes.extend_from_slice(&displacement.to_le_bytes());
    }
    /// `to += [base + displacement]`, 64 bits.
    pub(super) fn add_load(&mut self, to: Gpr, base: Gpr, displacement: i32) {
        self.bytes.extend_from_slice(&[
            0x48 | to >> 3 << 2 | base >> 3,
            0x03,
            0x80 | (to & 7) << 3 | base & 7,
        ]);
        self.bytes.extend_from_slice(&displacement.to_le_bytes());
    }
    /// `to = base + displacement`, 64 bits.
    pub(super) fn lea(&mut self, to: Gpr, base: Gpr, displacement: i32) {
        self.bytes.extend_from_slice(&[
            0x48 | to >> 3 << 2 | base >> 3,
            0x8d,
            0x80 | (to & 7) << 3 | base & 7,
        ]);
        self.bytes.extend_from_slice(&displacement.to_le_bytes());
    }
    /// `[base + displacement] = from`, 64 bits.
    pub(super) fn store(&mut self, from: Gpr, base: Gpr, displacement: i32) {
        self.bytes.extend_from_slice(&[
            0x48 | from >> 3 << 2 | base >> 3,
            0x89,
            0x80 | (from & 7) << 3 | base & 7,
        ]);
        self.bytes.extend_from_slice(&displacement.to_le_bytes());
    }
    /// `[base + displacement] += from`, 64 bits; sets the flags.
    pub(super) fn add_to(&mut self, from: Gpr, base: Gpr, displacement: i32) {
        self.bytes.extend_from_slice(&[
            0x48 | from >> 3 << 2 | base >> 3,
            0x01,
            0x80 | (from & 7) << 3 | base & 7,
        ]);
        self.bytes.extend_from_slice(&displacement.to_le_bytes());
    }
    /// `[base + displacement] += by`, 64 bits; sets the flags.
    pub(super) fn add_constant_to(&mut self, base: Gpr, displacement: i32, by: i32) {
        self.bytes.extend_from_slice(&[0x48 | base >> 3, 0x81, 0x80 | base & 7]);
        self.bytes.extend_from_slice(&displacement.to_le_bytes());
        self.bytes.extend_from_slice(&by.to_le_bytes());
    }
    /// `to += by`, 64 bits; sets the flags.
    pub(super) fn add(&mut self, to: Gpr, by: i32) {
        self.bytes.extend_from_slice(&[0x48 | to >> 3, 0x81, 0xc0 | to & 7]);
        self.bytes.extend_from_slice(&by.to_le_bytes());
    }
    /// Compares a register of 64 bits with a number.
    pub(super) fn compare_with(&mut self, a: Gpr, number: i32) {
        self.bytes.extend_from_slice(&[0x48 | a >> 3, 0x81, 0xf8 | a & 7]);
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }
    /// `to = value`, 64 bits, with the sign of the 32.
    pub(super) fn set_signed(&mut self, to: Gpr, value: i32) {
        self.bytes.extend_from_slice(&[0x48 | to >> 3, 0xc7, 0xc0 | to & 7]);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }
    /// `to = from` if the first operand of the last comparison was less, 64 bits.
    pub(super) fn copy_if_less(&mut self, to: Gpr, from: Gpr) {
        self.bytes.extend_from_slice(&[
            0x48 | to >> 3 << 2 | from >> 3,
            0x0f,
            0x4c,
            0xc0 | (to & 7) << 3 | from & 7,
        ]);
    }
    /// Saves a register on the stack.
    pub(super) fn save(&mut self, register: Gpr) {
        self.bytes.extend_from_slice(&[0x40 | register >> 3, 0x50 | register & 7]);
    }
    /// Restores the register that was saved last.
    pub(super) fn restore(&mut self, register: Gpr) {
        self.bytes.extend_from_slice(&[0x40 | register >> 3, 0x58 | register & 7]);
    }
    /// `to *= by`, 64 bits.
    pub(super) fn multiply(&mut self, to: Gpr, by: i32) {
        self.bytes.extend_from_slice(&[0x48 | to >> 3 << 2 | to >> 3, 0x69, 0xc0 | (to & 7) << 3 | to & 7]);
        self.bytes.extend_from_slice(&by.to_le_bytes());
    }
    /// Compares two registers of 64 bits.
    pub(super) fn compare(&mut self, a: Gpr, b: Gpr) {
        self.bytes.extend_from_slice(&[0x48 | b >> 3 << 2 | a >> 3, 0x39, 0xc0 | (b & 7) << 3 | a & 7]);
    }
    /// `a -= b`, 64 bits; sets the flags.
    pub(super) fn subtract(&mut self, a: Gpr, b: Gpr) {
        self.bytes.extend_from_slice(&[0x48 | b >> 3 << 2 | a >> 3, 0x29, 0xc0 | (b & 7) << 3 | a & 7]);
    }
    /// `to = value`, 32 bits, zero-extended; one of the first eight registers.
    pub(super) fn set(&mut self, to: Gpr, value: u32) {
        self.bytes.push(0xb8 | to & 7);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }
    /// `to = from`, 64 bits; two of the first eight registers.
    pub(super) fn copy(&mut self, to: Gpr, from: Gpr) {
        self.bytes.extend_from_slice(&[0x48, 0x89, 0xc0 | (from & 7) << 3 | to & 7]);
    }
    /// Keeps the stack pointer in a register, and moves it to a multiple of 16.
    pub(super) fn align_stack(&mut self, keep: Gpr) {
        self.copy(keep, RSP);
        self.bytes.extend_from_slice(&[0x48, 0x83, 0xe4, 0xf0]);
    }
    /// Takes back the stack pointer that [`Assembler::align_stack`] kept.
    pub(super) fn restore_stack(&mut self, kept: Gpr) {
        self.copy(RSP, kept);
    }
    /// A call of the place that [`Assembler::land`] is called at.
    pub(super) fn call(&mut self) -> usize {
        self.bytes.extend_from_slice(&[0xe8, 0, 0, 0, 0]);
        self.bytes.len()
    }
    /// A call of an address, which one of the first eight registers holds, with the upper parts of the vectors cleared.
    pub(super) fn call_register(&mut self, register: Gpr) {
        self.bytes.extend_from_slice(&[0xc5, 0xf8, 0x77, 0xff, 0xd0 | register & 7]);
    }
    /// `to = base + index << scale + displacement`, 64 bits; the index is one of the first eight registers.
    pub(super) fn lea_element(&mut self, to: Gpr, base: Gpr, (index, scale): (Gpr, u8), displacement: i32) {
        self.bytes.extend_from_slice(&[0x48 | to >> 3 << 2 | base >> 3, 0x8d]);
        self.element(to, base, (index, scale), displacement);
    }
    /// `to = [base + index << scale + displacement]`: 8 bits (scale 0) or 16 (scale 1), zero-extended; all are of the first eight
    /// registers.
    pub(super) fn load_element(&mut self, to: Gpr, base: Gpr, (index, scale): (Gpr, u8), displacement: i32) {
        self.bytes.extend_from_slice(&[0x0f, if scale == 0 { 0xb6 } else { 0xb7 }]);
        self.element(to, base, (index, scale), displacement);
    }
    /// Stores the low 8 bits (scale 0) or 16 (scale 1) of a register as [`Assembler::load_element`] reads them.
    pub(super) fn store_element(
        &mut self,
        from: Gpr,
        base: Gpr,
        (index, scale): (Gpr, u8),
        displacement: i32,
    ) {
        // An empty REX prefix makes the low byte of `rsi` and the like addressable.
        let code: [u8; 2] = if scale == 0 { [0x40, 0x88] } else { [0x66, 0x89] };
        self.bytes.extend_from_slice(&code);
        self.element(from, base, (index, scale), displacement);
    }
    fn element(&mut self, reg: Gpr, base: Gpr, (index, scale): (Gpr, u8), displacement: i32) {
        self.bytes.extend_from_slice(&[0x84 | (reg & 7) << 3, scale << 6 | (index & 7) << 3 | base & 7]);
        self.bytes.extend_from_slice(&displacement.to_le_bytes());
    }
    /// `to` = number of the lowest bit of `from`, which is not zero; 32 bits, two of the first eight registers.
    pub(super) fn lowest_bit(&mut self, to: Gpr, from: Gpr) {
        self.bytes.extend_from_slice(&[0x0f, 0xbc, 0xc0 | (to & 7) << 3 | from & 7]);
    }
    /// `to &= from`, 32 bits; sets the flags; two of the first eight registers.
    pub(super) fn and(&mut self, to: Gpr, from: Gpr) {
        self.bytes.extend_from_slice(&[0x21, 0xc0 | (from & 7) << 3 | to & 7]);
    }
    pub(super) fn ret(&mut self) {
        self.bytes.push(0xc3);
    }
    /// `vzeroupper` and a return.
    pub(super) fn leave(&mut self) {
        self.bytes.extend_from_slice(&[0xc5, 0xf8, 0x77, 0xc3]);
    }

    /// A jump forwards, to the place that [`Assembler::land`] is called at.
    pub(super) fn jump(&mut self, when: Jump) -> usize {
        self.bytes.extend_from_slice(&[0x0f, when as u8, 0, 0, 0, 0]);
        self.bytes.len()
    }
    /// A jump forwards in any case.
    pub(super) fn jump_always(&mut self) -> usize {
        self.bytes.extend_from_slice(&[0xe9, 0, 0, 0, 0]);
        self.bytes.len()
    }
    /// Makes a jump lead here.
    pub(super) fn land(&mut self, jump: usize) {
        let distance = (self.bytes.len() - jump) as i32;
        self.bytes[jump - 4..jump].copy_from_slice(&distance.to_le_bytes());
    }
    /// A jump backwards to a place that [`Assembler::here`] gave.
    pub(super) fn jump_back(&mut self, when: Jump, to: usize) {
        let distance = to as i32 - (self.bytes.len() as i32 + 6);
        self.bytes.extend_from_slice(&[0x0f, when as u8]);
        self.bytes.extend_from_slice(&distance.to_le_bytes());
    }
    /// The present place, moved to a multiple of 32 bytes by instructions that do nothing.
    pub(super) fn here(&mut self) -> usize {
        const NOPS: [&[u8]; 8] = [
            &[0x90],
            &[0x66, 0x90],
            &[0x0f, 0x1f, 0x00],
            &[0x0f, 0x1f, 0x40, 0x00],
            &[0x0f, 0x1f, 0x44, 0x00, 0x00],
            &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
            &[0x0f, 0x1f, 0x80, 0, 0, 0, 0],
            &[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
        ];
        while !self.bytes.len().is_multiple_of(32) {
            let missing = 32 - self.bytes.len() % 32;
            self.bytes.extend_from_slice(NOPS[missing.min(8) - 1]);
        }
        self.bytes.len()
    }

    /// The code with its pool. It must be placed at a multiple of 64 bytes.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let mut order: Vec<(Constant, Vec<u8>)> =
            self.uses.iter().map(|u| (u.2, u.2.bytes(self.target))).collect();
        // Largest first, so that each is aligned to its size.
        order.sort_by_key(|(_, bytes)| std::cmp::Reverse(bytes.len()));
        if !order.is_empty() {
            self.bytes.resize(self.bytes.len().next_multiple_of(64), 0xcc);
        }
        let mut places: FxHashMap<Constant, usize> = FxHashMap::default();
        for (constant, bytes) in order {
            if let Entry::Vacant(place) = places.entry(constant) {
                place.insert(self.bytes.len());
                self.bytes.extend_from_slice(&bytes);
            }
        }
        for (at, rest, constant) in self.uses {
            let distance = places[&constant] as i32 - (at + rest) as i32;
            self.bytes[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        }
        self.bytes
    }
}
