//! The instructions of a leaf: what one step (of sixteen points, eight with AVX2) does, in static single assignment over registers. Every
//! instruction is one machine instruction, or a few that write their result last. Knows no register numbers.

use smallvec::SmallVec;

use super::encode::{Code, Constant};
use super::target::Target;
use crate::vir::Class;

/// A value: one register of lanes of 32 bits, half as many lanes of 64 bits, or a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct V {
    pub(super) id: u32,
    pub(super) class: Class,
}

/// A value that is the same in every step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Invariant {
    /// A number.
    Constant(Constant),
    /// An argument of the leaf, in its slot.
    Argument(u32),
}

/// The elements of one step at an address that the loop advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Slot of the address of the first element.
    pub(super) slot: u32,
    /// Logarithm of the bytes of an element.
    pub(super) scale: u8,
    /// Which half of a step: the points of a register of 64-bit lanes, and two for each copy of the step.
    pub(super) part: u8,
    /// Bytes from the address.
    pub(super) offset: i32,
    /// One element for all points.
    pub(super) uniform: bool,
}

/// How a value is combined into an accumulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// By an instruction with two sources.
    Two(Code),
    /// Added as the product of two values.
    Fused,
    /// The larger float (else the smaller), NaN where either is.
    Extremum { larger: bool },
}

/// One register of an accumulator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accumulator {
    pub(super) class: Class,
    /// What combining starts from.
    pub(super) identity: Constant,
    /// How copies of it are combined with each other; never fused.
    pub(super) merge: How,
    pub(super) part: u8,
}

/// An instruction.
#[derive(Clone, Copy, Debug)]
pub(super) enum Inst {
    Two {
        code: Code,
        d: V,
        a: V,
        b: V,
        imm: Option<u8>,
    },
    One {
        code: Code,
        d: V,
        a: V,
        imm: Option<u8>,
    },
    /// A shift by a constant; `digit` selects which.
    Shift {
        code: Code,
        digit: u8,
        d: V,
        a: V,
        by: u8,
    },
    /// `a * b + c`.
    Fma {
        d: V,
        a: V,
        b: V,
        c: V,
    },
    /// A comparison; `d` is a mask.
    Compare {
        code: Code,
        d: V,
        a: V,
        b: V,
        imm: u8,
    },
    /// `mask ? yes : no`.
    Blend {
        d: V,
        mask: V,
        yes: V,
        no: V,
    },
    /// Masks.
    MaskTwo {
        code: Code,
        d: V,
        a: V,
        b: V,
    },
    MaskOne {
        code: Code,
        d: V,
        a: V,
        imm: Option<u8>,
    },
    /// The low 16 bits of an argument as a mask.
    MaskArgument {
        d: V,
        slot: u32,
    },
    /// Zero where the mask is false; lanes past the end of the loop are not read.
    Load {
        code: Code,
        d: V,
        at: Place,
        mask: Option<V>,
    },
    /// Bytes that are not zero, as a mask.
    LoadMask {
        d: V,
        at: Place,
        mask: Option<V>,
    },
    /// A load with an address for each lane: that of the place and as many elements more as the index says.
    Gather {
        code: Code,
        d: V,
        at: Place,
        index: V,
        mask: Option<V>,
    },
    Scatter {
        code: Code,
        value: V,
        at: Place,
        index: V,
        mask: Option<V>,
    },
    Store {
        code: Code,
        value: V,
        at: Place,
        mask: Option<V>,
        imm: Option<u8>,
    },
    /// A mask as bytes 0 and 1.
    StoreMask {
        value: V,
        at: Place,
        mask: Option<V>,
    },
    /// Writes a value that is written several times (what a loop carries); its first write is before all others.
    Assign {
        d: V,
        a: V,
    },
    /// The lanes of a value where the mask holds become those of a function of `a`, by the host functions in two slots.
    Each {
        d: V,
        a: V,
        mask: V,
        slots: [u32; 2],
    },
    /// Ends the leaf where `bad` holds in a lane of the loop: the lanes of an index, and the size that it must be below.
    Check {
        bad: V,
        index: [V; 2],
        size: V,
        site: u32,
    },
    /// The top of the loop of this number.
    Begin {
        number: u32,
    },
    /// The end of its body.
    End {
        number: u32,
    },
    /// `argument + point * step` in lanes of 64 bits, where points are counted from the start of the loop.
    Index {
        d: V,
        slot: u32,
        step: i32,
        part: u8,
    },
    Accumulate {
        accumulator: u32,
        how: How,
        a: V,
        b: Option<V>,
    },
}

impl Inst {
    /// The value that it defines.
    pub(super) fn def(&self) -> Option<V> {
        match *self {
            Inst::Two { d, .. }
            | Inst::One { d, .. }
            | Inst::Shift { d, .. }
            | Inst::Fma { d, .. }
            | Inst::Compare { d, .. }
            | Inst::Blend { d, .. }
            | Inst::MaskTwo { d, .. }
            | Inst::MaskOne { d, .. }
            | Inst::MaskArgument { d, .. }
            | Inst::Load { d, .. }
            | Inst::LoadMask { d, .. }
            | Inst::Gather { d, .. }
            | Inst::Assign { d, .. }
            | Inst::Each { d, .. }
            | Inst::Index { d, .. } => Some(d),
            Inst::Store { .. }
            | Inst::Scatter { .. }
            | Inst::Check { .. }
            | Inst::StoreMask { .. }
            | Inst::Accumulate { .. }
            | Inst::Begin { .. }
            | Inst::End { .. } => None,
        }
    }

    /// Calls `visit` with the value that it defines and with those that it reads.
    pub(super) fn for_each_value(&mut self, visit: &mut dyn FnMut(&mut V)) {
        match self {
            Inst::Two { d, a, b, .. } | Inst::Compare { d, a, b, .. } | Inst::MaskTwo { d, a, b, .. } => {
                [d, a, b].into_iter().for_each(visit);
            }
            Inst::One { d, a, .. }
            | Inst::Shift { d, a, .. }
            | Inst::MaskOne { d, a, .. }
            | Inst::Assign { d, a } => [d, a].into_iter().for_each(visit),
            Inst::Fma { d, a, b, c } => [d, a, b, c].into_iter().for_each(visit),
            Inst::Blend { d, mask, yes, no } => [d, mask, yes, no].into_iter().for_each(visit),
            Inst::MaskArgument { d, .. } | Inst::Index { d, .. } => visit(d),
            Inst::Load { d, mask, .. } | Inst::LoadMask { d, mask, .. } => {
                visit(d);
                mask.iter_mut().for_each(visit);
            }
            Inst::Check { bad, index: [low, high], size, .. } => {
                [bad, low, high, size].into_iter().for_each(visit);
            }
            Inst::Each { d, a, mask, .. } => [d, a, mask].into_iter().for_each(visit),
            Inst::Gather { d: x, index, mask, .. } | Inst::Scatter { value: x, index, mask, .. } => {
                [x, index].into_iter().chain(mask).for_each(visit);
            }
            Inst::Store { value, mask, .. } | Inst::StoreMask { value, mask, .. } => {
                visit(value);
                mask.iter_mut().for_each(visit);
            }
            Inst::Accumulate { a, b, .. } => {
                visit(a);
                b.iter_mut().for_each(visit);
            }
            Inst::Begin { .. } | Inst::End { .. } => {}
        }
    }

    /// Where it reads or writes memory.
    pub(super) fn place(&mut self) -> Option<&mut Place> {
        match self {
            Inst::Load { at, .. }
            | Inst::LoadMask { at, .. }
            | Inst::Gather { at, .. }
            | Inst::Scatter { at, .. }
            | Inst::Store { at, .. }
            | Inst::StoreMask { at, .. } => Some(at),
            _ => None,
        }
    }

    /// Its machine instruction, where it has one that is chosen with it.
    fn code(&self) -> Option<Code> {
        match *self {
            Inst::Two { code, .. }
            | Inst::One { code, .. }
            | Inst::Shift { code, .. }
            | Inst::Compare { code, .. }
            | Inst::MaskTwo { code, .. }
            | Inst::MaskOne { code, .. }
            | Inst::Load { code, .. }
            | Inst::Gather { code, .. }
            | Inst::Scatter { code, .. }
            | Inst::Store { code, .. } => Some(code),
            Inst::Accumulate { how: How::Two(code), .. } => Some(code),
            Inst::Fma { .. }
            | Inst::Blend { .. }
            | Inst::MaskArgument { .. }
            | Inst::LoadMask { .. }
            | Inst::StoreMask { .. }
            | Inst::Assign { .. }
            | Inst::Each { .. }
            | Inst::Check { .. }
            | Inst::Begin { .. }
            | Inst::End { .. }
            | Inst::Index { .. }
            | Inst::Accumulate { how: How::Fused | How::Extremum { .. }, .. } => None,
        }
    }

    /// Whether a target has it.
    fn is_of(&self, target: Target) -> bool {
        // Those have registers of masks, and an address for each lane.
        let wide = matches!(
            self,
            Inst::Compare { .. }
                | Inst::MaskTwo { .. }
                | Inst::MaskOne { .. }
                | Inst::MaskArgument { .. }
                | Inst::LoadMask { .. }
                | Inst::StoreMask { .. }
                | Inst::Gather { .. }
                | Inst::Scatter { .. }
                | Inst::Check { .. }
        );
        self.code().is_none_or(|code| code.is_of(target)) && (!wide || target == Target::Avx512)
    }

    /// The values that it reads.
    pub(super) fn uses(&self) -> SmallVec<[V; 4]> {
        let (mut out, mut first) = (SmallVec::new(), self.def().is_some());
        let mut copy = *self;
        // The defined value is visited first.
        copy.for_each_value(&mut |v| {
            if !std::mem::take(&mut first) {
                out.push(*v);
            }
        });
        out
    }
}

/// A number that a loop within a step needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    Constant(i32),
    /// An argument, in its slot.
    Argument(u32),
}

/// A number that is added to the address or index in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) slot: u32,
    pub(super) by: Number,
}

/// How often a loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turns {
    /// This many times.
    Whole(Number),
    /// As long as turns of the loop within it are left, of which there are this many at first; `left` is a slot for them.
    Blocks { of: Number, left: u32 },
    /// This many of those left, or all.
    Within { most: i32, left: u32 },
}

/// A loop within a step.
#[derive(Clone, Debug)]
pub(super) struct Loop {
    pub(super) turns: Turns,
    /// After each turn.
    pub(super) moves: Vec<Move>,
    /// After the last turn.
    pub(super) back: Vec<Move>,
    /// The slot for its counter, if that is not in a register: there are loops within it.
    pub(super) counter: Option<u32>,
}

/// The step of a loop.
#[derive(Clone, Debug)]
pub(super) struct Body {
    pub(super) target: Target,
    pub(super) insts: Vec<Inst>,
    pub(super) invariants: Vec<(V, Invariant)>,
    /// Values are numbered below this.
    pub(super) values: u32,
    pub(super) accumulators: Vec<Accumulator>,
    /// Number of arguments.
    pub(super) slots: u32,
    /// The loops within the step.
    pub(super) loops: Vec<Loop>,
}

impl Body {
    pub(super) fn new(target: Target) -> Body {
        Body {
            target,
            insts: Vec::new(),
            invariants: Vec::new(),
            values: 0,
            accumulators: Vec::new(),
            slots: 0,
            loops: Vec::new(),
        }
    }

    /// Whether the target has all of its instructions.
    pub(super) fn is_possible(&self) -> bool {
        let merges = |a: &Accumulator| !matches!(a.merge, How::Two(code) if !code.is_of(self.target));
        self.insts.iter().all(|i| i.is_of(self.target)) && self.accumulators.iter().all(merges)
    }
}
