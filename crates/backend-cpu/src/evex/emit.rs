//! The machine code of a leaf: `fn(arguments: *mut u8, count: i64)` by the System V calling convention. The arguments are a
//! block of memory, aligned to 64 bytes: slots of 8 bytes (addresses and invariant values), then 64 bytes for each register of
//! an accumulator, which the leaf reads at the start and writes at the end, then room for spilled values.
//!
//! The loop runs several steps a turn, then single steps, then once more for the points that are left, with a mask.

use super::codes as c;
use super::copies::copied;
use super::encode::{
    Assembler, Base, Code, Constant, Gpr, Jump, Lanes, RAX, RBP, RBX, RCX, RDI, RDX, RSI, Rm,
};
use super::ir::{Body, Inst, Invariant, Place, V};
use super::regalloc::{Location, Places, Supply, allocate};
use super::turns::Open;
use super::{calls, checks};
use crate::vir::Class;

/// Points of one step.
pub(crate) const STEP: u32 = 16;
/// Vector registers for operands that are not in a register.
pub(super) const SCRATCH: [u8; 2] = [30, 31];
/// Masks of the points that are left: of all lanes, and of the upper eight of 64 bits.
const TAIL: [u8; 2] = [1, 2];
pub(super) const MASK_SCRATCH: [u8; 2] = [3, 4];
/// The other masks; 0 cannot mask an instruction.
const MASKS: &[u8] = &[5, 6, 7];
/// General registers for addresses; further addresses are loaded where they are used.
const ADDRESSES: [Gpr; 9] = [8, 9, 10, 11, RCX, RBP, 13, 14, 15];
/// How many of these a function may use without saving them.
const UNSAVED: usize = 5;
/// What a function with loops within its step saves: the counter, and the other registers for addresses. (As a base register 12
/// has another encoding.)
const SAVED: [Gpr; 5] = [RBX, RBP, 13, 14, 15];
/// Most registers for copies of accumulators.
const MOST_COPIES: usize = 16;

/// The code of a leaf and the size of its arguments.
pub(crate) struct Machine {
    /// To be placed at a multiple of 64 bytes.
    pub(crate) code: Vec<u8>,
    /// Bytes of the block of arguments.
    pub(crate) bytes: u32,
    /// Steps of a turn of the loop, each with an accumulator of its own.
    pub(crate) unroll: u32,
    /// Where in the block the lists of a failed check are, if it checks indices: it then returns 0, or one more than the site.
    pub(crate) lists: Option<u32>,
}

/// Offset of the first accumulator.
pub(crate) fn accumulators_at(slots: u32) -> u32 {
    (slots * 8).next_multiple_of(64)
}

pub(super) struct Emit<'a> {
    pub(super) asm: Assembler,
    pub(super) body: &'a Body,
    places: Places,
    /// Number of the invariant of each value that is one.
    invariant: Vec<Option<Invariant>>,
    pub(super) unroll: u32,
    /// The step of a turn that is being emitted.
    pub(super) copy: u32,
    /// Whether lanes are masked.
    tail: bool,
    spills_at: u32,
    /// Most spill slots of the forms of the body before the present one.
    spills: u32,
    /// Slots whose address is in a general register.
    addresses: Vec<u32>,
    /// The loops within the step around the present instruction.
    pub(super) open: Vec<Open>,
    /// Calls of the code behind the function.
    pub(super) calls: Vec<usize>,
    /// Where the block has room for them, and for the lists of a failed check.
    calls_at: u32,
    lists_at: u32,
    /// The jumps of failed checks.
    pub(super) failures: Vec<usize>,
}

/// The machine code of a loop over a body. A step with loops in it takes at most `most` times sixteen points.
pub(super) fn emit(body: &Body, most: u32) -> Machine {
    let accumulators = body.accumulators.len();
    let mut unroll: u32 = match body.insts.len() {
        0..=14 => 4,
        15..=60 => 2,
        _ => 1,
    };
    while unroll > 1 && accumulators * unroll as usize > MOST_COPIES {
        unroll /= 2;
    }
    if body.loops.is_empty() {
        let mut e = Emit::new(body, unroll);
        e.function();
        return e.finish();
    }
    while unroll > most.max(1) {
        unroll /= 2;
    }
    let wide = copied(body, unroll);
    let mut e = Emit::new(&wide, 1);
    e.begin();
    SAVED.into_iter().for_each(|r| e.asm.save(r));
    e.fetch_addresses();
    e.fetch_invariants();
    if unroll > 1 {
        e.turns(1, unroll);
        e.turn_to(body);
    }
    e.turns(1, 1);
    e.rest();
    e.outcome();
    SAVED.into_iter().rev().for_each(|r| e.asm.restore(r));
    e.asm.leave();
    e.shared_call();
    let machine = e.finish();
    Machine { unroll, ..machine }
}

/// The registers that a step may use; tests take most of them away, so that values are spilled.
fn supply(accumulators: usize) -> Supply {
    #[cfg(test)]
    if super::tests::few_registers() {
        return Supply { vectors: 4, masks: &MASKS[..1] };
    }
    Supply { vectors: (SCRATCH[0] as usize - accumulators) as u8, masks: MASKS }
}

fn has_checks(body: &Body) -> bool {
    body.insts.iter().any(|i| matches!(i, Inst::Check { .. }))
}

/// Where the values of a body are, and which of them are invariant; `taken` registers are those of accumulators.
fn placed(body: &Body, taken: usize) -> (Places, Vec<Option<Invariant>>) {
    let mut invariant = vec![None; body.values as usize];
    body.invariants.iter().for_each(|(v, what)| invariant[v.id as usize] = Some(*what));
    (allocate(body, &supply(taken)), invariant)
}

/// The slots that are used most as addresses.
fn addresses(body: &Body) -> Vec<u32> {
    let mut counts = vec![0usize; body.slots as usize];
    for inst in &body.insts {
        if let Inst::Load { at, .. }
        | Inst::LoadMask { at, .. }
        | Inst::Gather { at, .. }
        | Inst::Scatter { at, .. }
        | Inst::Store { at, .. }
        | Inst::StoreMask { at, .. } = inst
        {
            counts[at.slot as usize] += 1;
        }
    }
    let mut slots: Vec<u32> = (0..body.slots).filter(|s| counts[*s as usize] > 0).collect();
    slots.sort_by_key(|s| std::cmp::Reverse(counts[*s as usize]));
    slots.truncate(if body.loops.is_empty() { UNSAVED } else { ADDRESSES.len() });
    slots
}

pub(super) fn at(base: Gpr, displacement: u32) -> Base {
    Base::Gpr { base, index: None, displacement: displacement as i32 }
}
pub(super) fn plain(base: Base) -> Rm {
    Rm::Mem { base, broadcast: false }
}
pub(super) const ALL: Lanes = Lanes { mask: 0, zero: false };

impl<'a> Emit<'a> {
    fn new(body: &'a Body, unroll: u32) -> Emit<'a> {
        let accumulators = body.accumulators.len();
        let (places, invariant) = placed(body, accumulators * unroll as usize);
        let calls_at = accumulators_at(body.slots) + 64 * accumulators as u32;
        let calls = body.insts.iter().any(|i| matches!(i, Inst::Each { .. }));
        let lists_at = calls_at + if calls { calls::ROOM } else { 0 };
        let spills_at = lists_at + if has_checks(body) { checks::LISTS } else { 0 };
        Emit {
            asm: Assembler::default(),
            places,
            body,
            invariant,
            unroll,
            copy: 0,
            tail: false,
            spills_at,
            calls_at,
            lists_at,
            failures: Vec::new(),
            spills: 0,
            addresses: addresses(body),
            open: Vec::new(),
            calls: Vec::new(),
        }
    }

    /// The code, and the size of its arguments.
    fn finish(self) -> Machine {
        let spills = self.spills.max(self.places.spills);
        let lists = has_checks(self.body).then_some(self.lists_at);
        Machine { code: self.asm.finish(), bytes: self.spills_at + 64 * spills, unroll: self.unroll, lists }
    }

    /// Goes on with another form of the body.
    fn turn_to(&mut self, body: &'a Body) {
        self.spills = self.spills.max(self.places.spills);
        self.body = body;
        (self.places, self.invariant) = placed(body, 0);
        self.fetch_invariants();
    }

    fn function(&mut self) {
        self.begin();
        self.fetch_addresses();
        self.fetch_invariants();
        self.begin_accumulators();
        if self.unroll > 1 {
            self.turns(self.unroll, self.unroll);
        }
        self.turns(1, 1);
        self.rest();
        self.end_accumulators();
        self.outcome();
        self.asm.leave();
        self.shared_call();
    }

    /// No point is done.
    fn begin(&mut self) {
        self.asm.set(RAX, 0);
    }

    fn fetch_addresses(&mut self) {
        for (n, slot) in self.addresses.clone().into_iter().enumerate() {
            self.asm.load(ADDRESSES[n], RDI, slot as i32 * 8);
        }
    }

    fn fetch_invariants(&mut self) {
        let body = self.body;
        for (v, _) in &body.invariants {
            if let Location::Register(r) = self.places.of[v.id as usize] {
                self.broadcast(*v, r);
            }
        }
    }

    /// Turns of `steps` steps, which are of `width` times sixteen points together, while there are that many points.
    fn turns(&mut self, steps: u32, width: u32) {
        let points = (width * STEP) as i32;
        self.asm.lea(RDX, RAX, points);
        self.asm.compare(RDX, RSI);
        let past = self.asm.jump(Jump::Greater);
        let top = self.asm.here();
        for copy in 0..steps {
            self.copy = copy;
            self.step();
        }
        self.copy = 0;
        self.asm.lea(RAX, RAX, points);
        self.asm.lea(RDX, RAX, points);
        self.asm.compare(RDX, RSI);
        self.asm.jump_back(Jump::LessOrEqual, top);
        self.asm.land(past);
    }

    /// A step for the points that are left, fewer than a step's.
    fn rest(&mut self) {
        self.asm.subtract(RSI, RAX);
        let past = self.asm.jump(Jump::Equal);
        self.asm.set(RDX, 0xffff);
        self.asm.vex(c::BZHI, RDX, RSI, Rm::Reg(RDX), None);
        self.asm.vex(c::KMOVW_FROM, TAIL[0], 0, Rm::Reg(RDX), None);
        self.asm.vex(c::KSHIFTRW, TAIL[1], 0, Rm::Reg(TAIL[0]), Some(8));
        self.tail = true;
        self.step();
        self.tail = false;
        self.asm.land(past);
    }

    fn step(&mut self) {
        for inst in &self.body.insts {
            self.one(inst);
        }
    }

    // Operands.

    /// Fills all lanes of a register with an invariant value.
    fn broadcast(&mut self, v: V, register: u8) {
        let base = self.invariant_at(v);
        let code = if v.class.wide() { c::VBROADCASTSD } else { c::VBROADCASTSS };
        self.asm.evex(code, register, 0, plain(base), ALL, None);
    }

    fn invariant_at(&self, v: V) -> Base {
        match self.invariant[v.id as usize] {
            Some(Invariant::Constant(constant)) => Base::Pool(constant),
            Some(Invariant::Argument(slot)) => at(RDI, slot * 8),
            // PROOF: only invariants are placed in memory by `regalloc`; other values have a register or a spill slot.
            None => unreachable!("a value has a place"),
        }
    }

    pub(super) fn lists_at(&self) -> u32 {
        self.lists_at
    }
    pub(super) fn calls_at(&self) -> u32 {
        self.calls_at
    }

    fn spill_at(&self, number: u32) -> Base {
        at(RDI, self.spills_at + 64 * number)
    }

    /// A value in a register: its own, or the given one if it has none.
    pub(super) fn register(&mut self, v: V, scratch: u8) -> u8 {
        match self.places.of[v.id as usize] {
            Location::Register(r) => return r,
            Location::Spilled(n) => {
                let base = self.spill_at(n);
                match v.class {
                    Class::Mask => self.asm.vex(c::KMOVW, scratch, 0, plain(base), None),
                    _ => self.asm.evex(c::VMOVUPS, scratch, 0, plain(base), ALL, None),
                }
            }
            Location::Memory => self.broadcast(v, scratch),
        }
        scratch
    }

    pub(super) fn in_register(&self, v: V) -> bool {
        matches!(self.places.of[v.id as usize], Location::Register(_))
    }

    /// A value as the last operand of an instruction: in memory, if it has no register and the instruction can read it there.
    pub(super) fn operand(&mut self, code: Code, v: V, scratch: u8) -> Rm {
        let whole = code.memory == 64 && !code.reversed;
        match self.places.of[v.id as usize] {
            Location::Spilled(n) if whole => plain(self.spill_at(n)),
            Location::Memory if whole => Rm::Mem { base: self.invariant_at(v), broadcast: true },
            _ => Rm::Reg(self.register(v, scratch)),
        }
    }

    /// The register that a result is written to.
    pub(super) fn target(&self, v: V, scratch: u8) -> u8 {
        match self.places.of[v.id as usize] {
            Location::Register(r) => r,
            _ => scratch,
        }
    }

    /// Writes a spilled result to its slot.
    pub(super) fn settle(&mut self, v: V, register: u8) {
        let Location::Spilled(n) = self.places.of[v.id as usize] else { return };
        let base = plain(self.spill_at(n));
        match v.class {
            Class::Mask => self.asm.vex(c::KMOVW_STORE, register, 0, base, None),
            _ => self.asm.evex(c::VMOVUPS_STORE, register, 0, base, ALL, None),
        }
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

    /// The register of the address in a slot.
    pub(super) fn address_register(&self, slot: u32) -> Option<Gpr> {
        self.addresses.iter().position(|s| *s == slot).map(|n| ADDRESSES[n])
    }

    /// The elements of the present step.
    fn place(&mut self, place: Place) -> Rm {
        let base = self.address_register(place.slot).unwrap_or_else(|| {
            self.asm.load(RDX, RDI, place.slot as i32 * 8);
            RDX
        });
        if place.uniform {
            return plain(Base::Gpr { base, index: None, displacement: place.offset });
        }
        let first = self.copy * STEP + u32::from(place.part) * 8;
        let displacement = (first << place.scale) as i32 + place.offset;
        plain(Base::Gpr { base, index: Some((RAX, place.scale)), displacement })
    }

    // Instructions.

    fn one(&mut self, inst: &Inst) {
        match *inst {
            Inst::Two { code, d, a, b, imm } => self.two(code, d, (a, b), imm),
            Inst::One { code, d, a, imm } => self.unary(code, d, a, imm),
            Inst::Shift { code, digit, d, a, by } => {
                let to = self.target(d, SCRATCH[1]);
                let a = self.operand(code, a, SCRATCH[0]);
                self.asm.evex(code, digit, to, a, ALL, Some(by));
                self.settle(d, to);
            }
            Inst::Fma { d, a, b, c } => self.fma(d, a, b, c),
            Inst::Compare { code, d, a, b, imm } => {
                let to = self.target(d, MASK_SCRATCH[0]);
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
                let to = self.target(d, SCRATCH[1]);
                self.asm.evex(code, to, no, yes, Lanes { mask, zero: false }, None);
                self.settle(d, to);
            }
            Inst::MaskTwo { code, d, a, b } => {
                let a = self.register(a, MASK_SCRATCH[0]);
                let b = self.register(b, MASK_SCRATCH[1]);
                let to = self.target(d, MASK_SCRATCH[0]);
                self.asm.vex(code, to, a, Rm::Reg(b), None);
                self.settle(d, to);
            }
            Inst::MaskOne { code, d, a, imm } => {
                let a = self.register(a, MASK_SCRATCH[0]);
                let to = self.target(d, MASK_SCRATCH[0]);
                self.asm.vex(code, to, 0, Rm::Reg(a), imm);
                self.settle(d, to);
            }
            Inst::MaskArgument { d, slot } => {
                let to = self.target(d, MASK_SCRATCH[0]);
                self.asm.vex(c::KMOVW, to, 0, plain(at(RDI, slot * 8)), None);
                self.settle(d, to);
            }
            Inst::Index { d, slot, step, part } => self.index(d, slot, step, part),
            Inst::Assign { d, a } => self.assign(d, a),
            Inst::Check { bad, index, size, site } => self.check(bad, index, size, site),
            Inst::Each { d, a, mask, slots } => self.each(d, (a, mask), slots),
            Inst::Begin { number } => self.begin_loop(number),
            Inst::End { number } => self.end_loop(number),
            Inst::Accumulate { accumulator, how, a, b } => self.accumulate(accumulator, how, a, b),
            Inst::Load { .. }
            | Inst::LoadMask { .. }
            | Inst::Gather { .. }
            | Inst::Scatter { .. }
            | Inst::Store { .. }
            | Inst::StoreMask { .. } => self.access(inst),
        }
    }

    fn access(&mut self, inst: &Inst) {
        match *inst {
            Inst::Load { code, d, at, mask } => {
                let mask = self.lanes(mask, at.part);
                let (from, to) = (self.place(at), self.target(d, SCRATCH[1]));
                self.asm.evex(code, to, 0, from, Lanes { mask, zero: mask != 0 }, None);
                self.settle(d, to);
            }
            Inst::LoadMask { d, at, mask } => {
                let mask = self.lanes(mask, 0);
                let (from, to) = (self.place(at), self.target(d, MASK_SCRATCH[1]));
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
            _ => {}
        }
    }

    fn two(&mut self, code: Code, d: V, (a, b): (V, V), imm: Option<u8>) {
        let swap = code.commutes && !self.in_register(a) && self.in_register(b);
        let (a, b) = if swap { (b, a) } else { (a, b) };
        let a = self.register(a, SCRATCH[0]);
        let b = self.operand(code, b, SCRATCH[1]);
        let to = self.target(d, SCRATCH[1]);
        self.asm.evex(code, to, a, b, ALL, imm);
        self.settle(d, to);
    }

    fn unary(&mut self, code: Code, d: V, a: V, imm: Option<u8>) {
        let mask = a.class == Class::Mask;
        let a =
            if mask { Rm::Reg(self.register(a, MASK_SCRATCH[0])) } else { self.operand(code, a, SCRATCH[0]) };
        let to = self.target(d, SCRATCH[1]);
        match (code.reversed, a) {
            (true, Rm::Reg(a)) => self.asm.evex(code, a, 0, Rm::Reg(to), ALL, imm),
            (_, a) => self.asm.evex(code, to, 0, a, ALL, imm),
        }
        self.settle(d, to);
    }

    /// `d = a * b + c` in the form whose destination is one of the operands; where it is none, `c` is copied first.
    fn fma(&mut self, d: V, a: V, b: V, c: V) {
        let wide = d.class.wide();
        let (code213, code231) =
            if wide { (c::VFMADD213PD, c::VFMADD231PD) } else { (c::VFMADD213PS, c::VFMADD231PS) };
        let to = self.target(d, SCRATCH[1]);
        let is = |e: &Self, v: V| e.places.of[v.id as usize] == Location::Register(to);
        if is(self, a) || is(self, b) {
            let other = if is(self, a) { b } else { a };
            let other = self.register(other, SCRATCH[0]);
            let c = self.operand(code213, c, SCRATCH[1]);
            self.asm.evex(code213, to, other, c, ALL, None);
        } else {
            if !is(self, c) {
                match self.register(c, to) {
                    from if from == to => {}
                    from => self.asm.evex(c::VMOVUPS, to, 0, Rm::Reg(from), ALL, None),
                }
            }
            let (a, b) = if self.in_register(a) { (a, b) } else { (b, a) };
            let a = self.register(a, SCRATCH[0]);
            let b = self.operand(code231, b, SCRATCH[0]);
            self.asm.evex(code231, to, a, b, ALL, None);
        }
        self.settle(d, to);
    }

    fn assign(&mut self, d: V, a: V) {
        let mask = d.class == Class::Mask;
        let to = self.target(d, if mask { MASK_SCRATCH[0] } else { SCRATCH[1] });
        match (self.register(a, to), mask) {
            (from, _) if from == to => {}
            (from, true) => self.asm.vex(c::KMOVW, to, 0, Rm::Reg(from), None),
            (from, false) => self.asm.evex(c::VMOVUPS, to, 0, Rm::Reg(from), ALL, None),
        }
        self.settle(d, to);
    }

    fn index(&mut self, d: V, slot: u32, step: i32, part: u8) {
        let to = self.target(d, SCRATCH[1]);
        let first = self.copy * STEP + u32::from(part) * 8;
        self.asm.lea(RDX, RAX, first as i32);
        self.asm.multiply(RDX, step);
        self.asm.add_load(RDX, RDI, slot as i32 * 8);
        self.asm.evex(c::VPBROADCASTQ, to, 0, Rm::Reg(RDX), ALL, None);
        let lanes = plain(Base::Pool(Constant::Multiples(i64::from(step))));
        self.asm.evex(c::VPADDQ, to, to, lanes, ALL, None);
        self.settle(d, to);
    }
}
