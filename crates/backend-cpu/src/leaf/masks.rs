//! Instructions of a step that the two targets do not share. With AVX-512 a mask is a register of its own; with AVX2 it is a vector of
//! lanes of 32 bits, ones where it holds, and for a register of 64-bit lanes ([`Build::part_of_mask`]) of as wide ones.
//! Also here: halves of registers, and narrow elements before they are stored.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};

use super::build::{Build, by_width};
use super::codes as c;
use super::encode::Code;
use super::ir::{Inst, V};
use super::target::Target;
use crate::math::Lanes;
use crate::vir::Class;

/// Of four lanes of two registers the even ones, in both halves.
const EVEN: u8 = 0x88;
/// The two middle quarters exchanged.
const MIDDLE: u8 = 0xd8;

impl Build {
    pub(super) fn target(&self) -> Target {
        self.body.target
    }
    fn vex(&self) -> bool {
        self.target() == Target::Avx2
    }
    fn mask_two(&mut self, code: Code, a: V, b: V) -> V {
        let d = self.value(Class::Mask);
        self.push(Inst::MaskTwo { code, d, a, b });
        d
    }
    fn mask_one(&mut self, code: Code, a: V, imm: Option<u8>) -> V {
        let d = self.value(Class::Mask);
        self.push(Inst::MaskOne { code, d, a, imm });
        d
    }
    fn two_with(&mut self, code: Code, class: Class, (a, b): (V, V), imm: u8) -> V {
        let d = self.value(class);
        self.push(Inst::Two { code, d, a, b, imm: Some(imm) });
        d
    }

    /// An operation on masks: that of mask registers, or that of vectors.
    pub(super) fn mask_logic(&mut self, mask: Code, vector: Code, x: V, y: V) -> V {
        if self.vex() { self.two(vector, Class::Mask, x, y) } else { self.mask_two(mask, x, y) }
    }
    /// "Not the first, and the second".
    pub(super) fn and_not(&mut self, x: V, y: V) -> V {
        self.mask_logic(c::KANDNW, c::VPANDN, x, y)
    }
    pub(super) fn not_mask(&mut self, x: V) -> V {
        if !self.vex() {
            return self.mask_one(c::KNOTW, x, None);
        }
        let ones = self.narrow(u32::MAX, Class::Mask);
        self.two(c::VPXORD, Class::Mask, x, ones)
    }
    /// Where two masks are equal.
    pub(super) fn equal_masks(&mut self, x: V, y: V) -> V {
        match self.vex() {
            true => self.two(c::VPCMPEQD, Class::Mask, x, y),
            false => self.mask_two(c::KXNORW, x, y),
        }
    }
    /// The masks of two registers of 64-bit lanes as one.
    pub(super) fn join_masks(&mut self, low: V, high: V) -> V {
        match self.vex() {
            true => self.even_lanes(Class::Mask, low, high),
            false => self.mask_two(c::KUNPCKBW, high, low),
        }
    }
    /// The lanes of a mask that belong to a register of a class: to the first or second of 64-bit lanes, or to that of all.
    pub(super) fn part_of_mask(&mut self, mask: V, part: u8, class: Class) -> V {
        match (self.vex(), class.wide(), part) {
            (false, _, 0) | (_, false, _) => mask,
            (false, true, _) => self.mask_one(c::KSHIFTRW, mask, Some(8)),
            (true, true, _) => {
                let half = if part == 0 { mask } else { self.upper_half(mask) };
                self.one(c::VPMOVSXDQ, Class::Mask, half)
            }
        }
    }

    /// The mask of a comparison of floats, by the predicate's number.
    pub(super) fn compare_floats(&mut self, predicate: u8, x: V, y: V) -> V {
        let code = by_width(x.class, c::VCMPPS, c::VCMPPD);
        if self.vex() {
            return self.two_with(code, Class::Mask, (x, y), predicate);
        }
        let d = self.value(Class::Mask);
        self.push(Inst::Compare { code, d, a: x, b: y, imm: predicate });
        d
    }
    /// The mask of a comparison of signed integers. AVX2 has "equal" and "greater".
    pub(super) fn compare_integers(&mut self, cc: IntCC, x: V, y: V) -> V {
        let number = match cc {
            IntCC::Equal => 0,
            IntCC::SignedLessThan => 1,
            IntCC::SignedLessThanOrEqual => 2,
            IntCC::NotEqual => 4,
            IntCC::SignedGreaterThanOrEqual => 5,
            IntCC::SignedGreaterThan => 6,
            // PROOF: the formulas and `lower` compare signed integers alone.
            _ => unreachable!("unsigned comparisons are not used"),
        };
        if !self.vex() {
            let (d, code) = (self.value(Class::Mask), by_width(x.class, c::VPCMPD, c::VPCMPQ));
            self.push(Inst::Compare { code, d, a: x, b: y, imm: number });
            return d;
        }
        let equal = by_width(x.class, c::VPCMPEQD, c::VPCMPEQQ);
        let greater = by_width(x.class, c::VPCMPGTD, c::VPCMPGTQ);
        let (code, a, b) = match cc {
            IntCC::Equal | IntCC::NotEqual => (equal, x, y),
            IntCC::SignedGreaterThan | IntCC::SignedLessThanOrEqual => (greater, x, y),
            // Less, and its opposite.
            _ => (greater, y, x),
        };
        let d = self.two(code, Class::Mask, a, b);
        match cc {
            IntCC::Equal | IntCC::SignedGreaterThan | IntCC::SignedLessThan => d,
            _ => self.not_mask(d),
        }
    }

    /// The smaller or larger of two integers.
    pub(super) fn extreme_integer(&mut self, smaller: bool, x: V, y: V) -> V {
        if x.class.wide() && self.vex() {
            let less = self.compare_integers(IntCC::SignedLessThan, x, y);
            return if smaller { self.select(less, x, y) } else { self.select(less, y, x) };
        }
        let code = match smaller {
            true => by_width(x.class, c::VPMINSD, c::VPMINSQ),
            false => by_width(x.class, c::VPMAXSD, c::VPMAXSQ),
        };
        self.two(code, x.class, x, y)
    }

    /// Rounds to an integer; `mode`: 0 nearest even, 1 down, 2 up, 3 towards zero.
    pub(super) fn round(&mut self, x: V, mode: u8) -> V {
        let (narrow, wide) =
            if self.vex() { (c::VROUNDPS, c::VROUNDPD) } else { (c::VRNDSCALEPS, c::VRNDSCALEPD) };
        // 8: without the exception for inexact results.
        self.one_with(by_width(x.class, narrow, wide), x.class, x, Some(8 | mode))
    }
    /// `round(x)` as a float, and in the form that scaling takes.
    pub(super) fn nearest_of_target(&mut self, x: V) -> (V, V) {
        if self.vex() {
            let n = self.one(c::VCVTPS2DQ, Class::I32, x);
            return (self.to_float(n), n);
        }
        let r = self.round(x, 0);
        (r, r)
    }

    // Halves of registers.

    /// The upper half of the lanes.
    pub(super) fn upper_half(&mut self, x: V) -> V {
        let code = if self.vex() { c::VEXTRACTF128 } else { c::VEXTRACTF64X4 };
        self.one_with(code, x.class, x, Some(1))
    }
    /// The lower halves of two registers as one.
    pub(super) fn halves(&mut self, class: Class, low: V, high: V) -> V {
        let code = if self.vex() { c::VINSERTF128 } else { c::VINSERTF64X4 };
        self.two_with(code, class, (low, high), 1)
    }
    /// The low halves of the lanes of two registers of 64-bit lanes.
    pub(super) fn low_words(&mut self, low: V, high: V) -> V {
        if self.vex() {
            return self.even_lanes(Class::I32, low, high);
        }
        let (low, high) = (self.one(c::VPMOVQD, Class::I32, low), self.one(c::VPMOVQD, Class::I32, high));
        self.halves(Class::I32, low, high)
    }
    fn even_lanes(&mut self, class: Class, low: V, high: V) -> V {
        let mixed = self.two_with(c::VSHUFPS, class, (low, high), EVEN);
        self.one_with(c::VPERMQ, class, mixed, Some(MIDDLE))
    }

    // Elements of 8 and 16 bits: with AVX2 they are brought together before they are stored.

    /// The low 8 or 16 bits of the lanes, for a store, and its instruction.
    pub(super) fn integers_to_store(&mut self, x: V, bytes: usize) -> (V, Code) {
        if !self.vex() {
            return (x, if bytes == 1 { c::VPMOVDB } else { c::VPMOVDW });
        }
        // What is packed must fit, else it becomes the largest number.
        let low = self.and_const(x, if bytes == 1 { 0xff } else { 0xffff });
        let high = self.upper_half(low);
        let words = self.two(c::VPACKUSDW_X, Class::I32, low, high);
        if bytes == 2 {
            return (words, c::VMOVUPS_X_STORE);
        }
        (self.two(c::VPACKUSWB_X, Class::I32, words, words), c::VMOVQ_X_STORE)
    }
    /// Floats as `f16` for a store, its instruction and the number in it (0: to nearest even, whatever the control register says).
    pub(super) fn f16_to_store(&mut self, x: V) -> (V, Code, Option<u8>) {
        match self.vex() {
            true => (self.one_with(c::VCVTPS2PH, Class::I32, x, Some(0)), c::VMOVUPS_X_STORE, None),
            false => (x, c::VCVTPS2PH, Some(0)),
        }
    }
    /// The lanes of an element loaded for all points, zero where the mask is false: with AVX2 the load gives it to all lanes.
    pub(super) fn zero_outside(&mut self, x: V, mask: Option<V>) -> V {
        match mask {
            Some(mask) if self.vex() => self.two(c::VPANDD, x.class, x, mask),
            _ => x,
        }
    }
    /// Bytes as a mask of those that are not zero.
    pub(super) fn mask_of_bytes(&mut self, bytes: V) -> V {
        let zero = self.i32(0);
        self.compare_integers(IntCC::SignedGreaterThan, bytes, zero)
    }
}

impl Target {
    /// The instruction that fills a register of a class with one element.
    pub(super) fn broadcast(self, class: Class) -> Code {
        match (class.wide(), self) {
            (false, _) => c::VBROADCASTSS,
            (true, Target::Avx512) => c::VBROADCASTSD,
            (true, Target::Avx2) => c::VBROADCASTSD_Y,
        }
    }
}

/// The number of a predicate of floats in an instruction.
pub(super) fn float_predicate(cc: FloatCC) -> u8 {
    match cc {
        FloatCC::Equal => 0,
        FloatCC::LessThan => 0x11,
        FloatCC::LessThanOrEqual => 0x12,
        FloatCC::Unordered => 3,
        FloatCC::NotEqual => 4,
        FloatCC::UnorderedOrGreaterThanOrEqual => 0x15,
        FloatCC::UnorderedOrGreaterThan => 0x16,
        FloatCC::Ordered => 7,
        FloatCC::UnorderedOrEqual => 8,
        FloatCC::UnorderedOrLessThan => 0x19,
        FloatCC::UnorderedOrLessThanOrEqual => 0x1a,
        FloatCC::OrderedNotEqual => 0x0c,
        FloatCC::GreaterThanOrEqual => 0x1d,
        FloatCC::GreaterThan => 0x1e,
    }
}
