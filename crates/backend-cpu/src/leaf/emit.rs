//! The machine code of a leaf: `fn(arguments: *mut u8, count: i64)` by the System V calling convention. The arguments are a
//! block of memory, aligned to 64 bytes: slots of 8 bytes (addresses and invariant values), then the bytes of each register of
//! an accumulator, which the leaf reads at the start and writes at the end, then room for spilled values.
//!
//! The loop runs several steps a turn, then single steps, then once more for the points that are left, with a mask.

use rustc_hash::FxHashSet;

use super::codes as c;
use super::copies::copied;
use super::encode::{Assembler, Base, Code, Constant, Gpr, Jump, RAX, RBP, RBX, RCX, RDI, RDX, RSI, Rm};
use super::ir::{Body, Inst, Invariant, Place, V};
use super::regalloc::{Location, Places, allocate};
use super::target::Target;
use super::turns::Open;
use super::zmm::MASK_SCRATCH;
use super::{calls, checks, ymm};
use crate::vir::Class;

/// General registers for addresses; further addresses are loaded where they are used.
const ADDRESSES: [Gpr; 9] = [8, 9, 10, 11, RCX, RBP, 13, 14, 15];
/// How many of these a function may use without saving them.
const UNSAVED: usize = 5;
/// What a function with loops within its step saves: the counter, and the other registers for addresses. (As a base register 12
/// has another encoding.)
const SAVED: [Gpr; 5] = [RBX, RBP, 13, 14, 15];

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
    pub(super) target: Target,
    pub(super) asm: Assembler,
    pub(super) body: &'a Body,
    places: Places,
    /// Number of the invariant of each value that is one.
    invariant: Vec<Option<Invariant>>,
    pub(super) unroll: u32,
    /// The step of a turn that is being emitted.
    pub(super) copy: u32,
    /// Whether lanes are masked.
    pub(super) tail: bool,
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
    /// Where the block has room for what `ymm` needs for the points that are left.
    pub(super) tail_at: u32,
    /// The jumps of failed checks.
    pub(super) failures: Vec<usize>,
}

/// The machine code of a loop over a body. A step with loops in it takes at most `most` times the points of one without.
pub(super) fn emit(body: &Body, most: u32) -> Machine {
    let accumulators = body.accumulators.len();
    let mut unroll: u32 = match body.insts.len() {
        0..=14 => 4,
        15..=60 => 2,
        _ => 1,
    };
    while unroll > 1 && accumulators * unroll as usize > body.target.most_copies() {
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

fn has_checks(body: &Body) -> bool {
    body.insts.iter().any(|i| matches!(i, Inst::Check { .. }))
}

/// Where the values of a body are, and which of them are invariant; `taken` registers are those of accumulators.
fn placed(body: &Body, taken: usize) -> (Places, Vec<Option<Invariant>>) {
    let mut invariant = vec![None; body.values as usize];
    body.invariants.iter().for_each(|(v, what)| invariant[v.id as usize] = Some(*what));
    let mut places = allocate(body, &body.target.supply(taken));
    if body.target == Target::Avx2 {
        spread_arguments(body, &mut places);
    }
    (places, invariant)
}

/// VEX has no operands that are one element for all lanes: arguments without a register are spread into spill slots.
fn spread_arguments(body: &Body, places: &mut Places) {
    let used: FxHashSet<u32> = body.insts.iter().flat_map(Inst::uses).map(|v| v.id).collect();
    for (v, what) in &body.invariants {
        let place = &mut places.of[v.id as usize];
        if matches!(what, Invariant::Argument(_)) && *place == Location::Memory && used.contains(&v.id) {
            *place = Location::Spilled(places.spills);
            places.spills += 1;
        }
    }
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

impl<'a> Emit<'a> {
    fn new(body: &'a Body, unroll: u32) -> Emit<'a> {
        let accumulators = body.accumulators.len();
        let (places, invariant) = placed(body, accumulators * unroll as usize);
        let accumulated = body.target.bytes() * accumulators as u32;
        let calls_at = (accumulators_at(body.slots) + accumulated).next_multiple_of(64);
        let calls = body.insts.iter().any(|i| matches!(i, Inst::Each { .. }));
        let lists_at = calls_at + if calls { calls::ROOM } else { 0 };
        let lists = if has_checks(body) { checks::LISTS } else { 0 };
        let tail_at = lists_at + lists;
        let spills_at = tail_at + if body.target == Target::Avx2 { ymm::ROOM } else { 0 };
        Emit {
            target: body.target,
            asm: Assembler::new(body.target),
            places,
            body,
            invariant,
            unroll,
            copy: 0,
            tail: false,
            spills_at,
            calls_at,
            lists_at,
            tail_at,
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
        let bytes = self.spills_at + self.target.bytes() * spills;
        Machine { code: self.asm.finish(), bytes, unroll: self.unroll, lists }
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
            match self.places.of[v.id as usize] {
                Location::Register(r) => self.broadcast(*v, r),
                Location::Spilled(_) => {
                    let register = self.scratch(0);
                    self.broadcast(*v, register);
                    self.settle(*v, register);
                }
                Location::Memory => {}
            }
        }
    }

    /// Turns of `steps` steps, which are of `width` times a step's points together, while there are that many points.
    fn turns(&mut self, steps: u32, width: u32) {
        let points = (width * self.target.step()) as i32;
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
        match self.target {
            Target::Avx512 => self.tail_masks(),
            Target::Avx2 => self.tail_mask(),
        }
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
        let code = self.target.broadcast(v.class);
        self.asm.vector(code, register, 0, plain(base), None);
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
        at(RDI, self.spills_at + self.target.bytes() * number)
    }

    /// A value in a register: its own, or the given one if it has none.
    pub(super) fn register(&mut self, v: V, scratch: u8) -> u8 {
        match self.places.of[v.id as usize] {
            Location::Register(r) => return r,
            Location::Spilled(n) => {
                let base = self.spill_at(n);
                match self.in_masks(v) {
                    true => self.asm.vex(c::KMOVW, scratch, 0, plain(base), None),
                    false => self.asm.vector(c::VMOVUPS, scratch, 0, plain(base), None),
                }
            }
            Location::Memory => self.broadcast(v, scratch),
        }
        scratch
    }

    /// Whether a value is in mask registers.
    fn in_masks(&self, v: V) -> bool {
        v.class == Class::Mask && self.target.has_mask_registers()
    }
    /// A vector register for an operand or result that is not in a register.
    pub(super) fn scratch(&self, n: usize) -> u8 {
        self.target.scratch()[n]
    }

    pub(super) fn in_register(&self, v: V) -> bool {
        matches!(self.places.of[v.id as usize], Location::Register(_))
    }

    /// A value as the last operand of an instruction: in memory, if it has no register and the instruction can read it there.
    pub(super) fn operand(&mut self, code: Code, v: V, scratch: u8) -> Rm {
        let whole = code.whole();
        match self.places.of[v.id as usize] {
            Location::Spilled(n) if whole => plain(self.spill_at(n)),
            // Constants of the pool are whole registers with VEX.
            Location::Memory if whole => {
                Rm::Mem { base: self.invariant_at(v), broadcast: self.target == Target::Avx512 }
            }
            _ => Rm::Reg(self.register(v, scratch)),
        }
    }

    /// The register that a result is written to.
    pub(super) fn result(&self, v: V, scratch: u8) -> u8 {
        match self.places.of[v.id as usize] {
            Location::Register(r) => r,
            _ => scratch,
        }
    }

    /// Writes a spilled result to its slot.
    pub(super) fn settle(&mut self, v: V, register: u8) {
        let Location::Spilled(n) = self.places.of[v.id as usize] else { return };
        let base = plain(self.spill_at(n));
        match self.in_masks(v) {
            true => self.asm.vex(c::KMOVW_STORE, register, 0, base, None),
            false => self.asm.vector(c::VMOVUPS_STORE, register, 0, base, None),
        }
    }

    /// The register of the address in a slot.
    pub(super) fn address_register(&self, slot: u32) -> Option<Gpr> {
        self.addresses.iter().position(|s| *s == slot).map(|n| ADDRESSES[n])
    }

    /// The first point of a part of the present step, from the first of the turn.
    fn first_point(&self, part: u8) -> u32 {
        self.copy * self.target.step() + u32::from(part) * self.target.part()
    }

    /// The elements of the present step.
    pub(super) fn place(&mut self, place: Place) -> Rm {
        plain(self.address(place))
    }

    /// The address of the first element of the present step.
    pub(super) fn address(&mut self, place: Place) -> Base {
        let base = self.address_register(place.slot).unwrap_or_else(|| {
            self.asm.load(RDX, RDI, place.slot as i32 * 8);
            RDX
        });
        if place.uniform {
            return Base::Gpr { base, index: None, displacement: place.offset };
        }
        let first = self.first_point(place.part);
        let displacement = (first << place.scale) as i32 + place.offset;
        Base::Gpr { base, index: Some((RAX, place.scale)), displacement }
    }

    // Instructions.

    fn one(&mut self, inst: &Inst) {
        match *inst {
            Inst::Two { code, d, a, b, imm } => self.two(code, d, (a, b), imm),
            Inst::One { code, d, a, imm } => self.unary(code, d, a, imm),
            Inst::Shift { code, digit, d, a, by } => {
                let to = self.result(d, self.scratch(1));
                // VEX shifts only registers by a constant.
                let a = match self.target {
                    Target::Avx512 => self.operand(code, a, self.scratch(0)),
                    Target::Avx2 => Rm::Reg(self.register(a, self.scratch(0))),
                };
                self.asm.vector(code, digit, to, a, Some(by));
                self.settle(d, to);
            }
            Inst::Fma { d, a, b, c } => self.fma(d, a, b, c),
            Inst::Index { d, slot, step, part } => self.index(d, slot, step, part),
            Inst::Assign { d, a } => self.assign(d, a),
            Inst::Begin { number } => self.begin_loop(number),
            Inst::End { number } => self.end_loop(number),
            _ => match self.target {
                Target::Avx512 => self.one_zmm(inst),
                Target::Avx2 => self.one_ymm(inst),
            },
        }
    }

    fn two(&mut self, code: Code, d: V, (a, b): (V, V), imm: Option<u8>) {
        let swap = code.commutes && !self.in_register(a) && self.in_register(b);
        let (a, b) = if swap { (b, a) } else { (a, b) };
        let a = self.register(a, self.scratch(0));
        let b = self.operand(code, b, self.scratch(1));
        let to = self.result(d, self.scratch(1));
        self.asm.vector(code, to, a, b, imm);
        self.settle(d, to);
    }

    fn unary(&mut self, code: Code, d: V, a: V, imm: Option<u8>) {
        let a = self.operand(code, a, self.scratch(0));
        let to = self.result(d, self.scratch(1));
        match (code.reversed, a) {
            (true, Rm::Reg(a)) => self.asm.vector(code, a, 0, Rm::Reg(to), imm),
            (_, a) => self.asm.vector(code, to, 0, a, imm),
        }
        self.settle(d, to);
    }

    /// `d = a * b + c` in the form whose destination is one of the operands; where it is none, `c` is copied first.
    fn fma(&mut self, d: V, a: V, b: V, c: V) {
        let wide = d.class.wide();
        let (code213, code231) =
            if wide { (c::VFMADD213PD, c::VFMADD231PD) } else { (c::VFMADD213PS, c::VFMADD231PS) };
        let to = self.result(d, self.scratch(1));
        let is = |e: &Self, v: V| e.places.of[v.id as usize] == Location::Register(to);
        if is(self, a) || is(self, b) {
            let other = if is(self, a) { b } else { a };
            let other = self.register(other, self.scratch(0));
            let c = self.operand(code213, c, self.scratch(1));
            self.asm.vector(code213, to, other, c, None);
        } else {
            if !is(self, c) {
                match self.register(c, to) {
                    from if from == to => {}
                    from => self.asm.vector(c::VMOVUPS, to, 0, Rm::Reg(from), None),
                }
            }
            let (a, b) = if self.in_register(a) { (a, b) } else { (b, a) };
            let a = self.register(a, self.scratch(0));
            let b = self.operand(code231, b, self.scratch(0));
            self.asm.vector(code231, to, a, b, None);
        }
        self.settle(d, to);
    }

    fn assign(&mut self, d: V, a: V) {
        let mask = d.class == Class::Mask;
        let to = self.result(d, if mask { MASK_SCRATCH[0] } else { self.scratch(1) });
        match (self.register(a, to), mask) {
            (from, _) if from == to => {}
            (from, true) => self.asm.vex(c::KMOVW, to, 0, Rm::Reg(from), None),
            (from, false) => self.asm.vector(c::VMOVUPS, to, 0, Rm::Reg(from), None),
        }
        self.settle(d, to);
    }

    fn index(&mut self, d: V, slot: u32, step: i32, part: u8) {
        let to = self.result(d, self.scratch(1));
        let first = self.first_point(part);
        self.asm.lea(RDX, RAX, first as i32);
        self.asm.multiply(RDX, step);
        self.asm.add_load(RDX, RDI, slot as i32 * 8);
        match self.target {
            Target::Avx512 => self.asm.vector(c::VPBROADCASTQ, to, 0, Rm::Reg(RDX), None),
            Target::Avx2 => {
                self.asm.vector(c::VMOVQ_FROM, to, 0, Rm::Reg(RDX), None);
                self.asm.vector(c::VPBROADCASTQ_Y, to, 0, Rm::Reg(to), None);
            }
        }
        let lanes = plain(Base::Pool(Constant::Multiples(i64::from(step))));
        self.asm.vector(c::VPADDQ, to, to, lanes, None);
        self.settle(d, to);
    }
}
