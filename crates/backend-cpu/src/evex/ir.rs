//! The instructions of a leaf: what one step of sixteen points does, in static single assignment over registers. Every
//! instruction is one machine instruction, or a few that write their result last. Knows no register numbers.

use smallvec::SmallVec;

use super::encode::{Code, Constant};
use crate::vir::Class;

/// A value: one register of sixteen lanes of 32 bits, eight lanes of 64 bits, or a mask.
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
    /// Which eight lanes of 64 bits; 0 for other values.
    pub(super) part: u8,
    /// Bytes from the address.
    pub(super) offset: i32,
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
            | Inst::Index { d, .. } => Some(d),
            Inst::Store { .. } | Inst::StoreMask { .. } | Inst::Accumulate { .. } => None,
        }
    }

    /// The values that it reads.
    pub(super) fn uses(&self) -> SmallVec<[V; 3]> {
        let mut out = SmallVec::new();
        match *self {
            Inst::Two { a, b, .. } | Inst::Compare { a, b, .. } | Inst::MaskTwo { a, b, .. } => {
                out.extend([a, b])
            }
            Inst::One { a, .. } | Inst::Shift { a, .. } | Inst::MaskOne { a, .. } => out.push(a),
            Inst::Fma { a, b, c, .. } => out.extend([a, b, c]),
            Inst::Blend { mask, yes, no, .. } => out.extend([mask, yes, no]),
            Inst::MaskArgument { .. } | Inst::Index { .. } => {}
            Inst::Load { mask, .. } | Inst::LoadMask { mask, .. } => out.extend(mask),
            Inst::Store { value, mask, .. } | Inst::StoreMask { value, mask, .. } => {
                out.push(value);
                out.extend(mask);
            }
            Inst::Accumulate { a, b, .. } => {
                out.push(a);
                out.extend(b);
            }
        }
        out
    }
}

/// The step of a loop.
#[derive(Debug, Default)]
pub(super) struct Body {
    pub(super) insts: Vec<Inst>,
    pub(super) invariants: Vec<(V, Invariant)>,
    /// Values are numbered below this.
    pub(super) values: u32,
    pub(super) accumulators: Vec<Accumulator>,
    /// Number of arguments.
    pub(super) slots: u32,
}
