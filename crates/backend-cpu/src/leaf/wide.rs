//! Arithmetic on integers of 64 bits: one instruction each with AVX-512 DQ, and with AVX2 what has the same result.

use cranelift_codegen::ir::condcodes::IntCC;

use super::build::Build;
use super::codes as c;
use super::ir::{Inst, V};
use super::target::Target;
use crate::math::Lanes;
use crate::vir::Class;

/// Digits of a shift by a constant.
const LOGICAL_RIGHT: u8 = 2;
const LEFT: u8 = 6;
/// Neighbouring lanes of 32 bits exchanged.
const SWAPPED: u8 = 0xb1;

/// 2^52 as a float: added to the bits, a number below 2^52 is its fraction.
const LOW_ONE: u64 = 0x4330_0000_0000_0000;
/// 2^84 + 2^63 as a float: with the upper 32 bits of an integer in the low bits (the sign's bit flipped) it is 2^32 times these more.
const HIGH_ONE: u64 = 0x4530_0000_8000_0000;
const LOW_WORD: u64 = 0xffff_ffff;

impl Build {
    fn shift_wide(&mut self, digit: u8, a: V, by: u8) -> V {
        let d = self.value(a.class);
        self.push(Inst::Shift { code: c::VPSHIFTQ, digit, d, a, by });
        d
    }
    fn negative(&mut self, x: V) -> V {
        let zero = self.wide(0, Class::I64);
        let mask = self.icmp(IntCC::SignedLessThan, x, zero);
        V { class: Class::I64, ..mask }
    }

    /// The low 64 bits of a product.
    pub(super) fn multiply_wide(&mut self, x: V, y: V) -> V {
        if self.target() == Target::Avx512 {
            return self.two(c::VPMULLQ, Class::I64, x, y);
        }
        let swapped = self.one_with(c::VPSHUFD, Class::I64, y, Some(SWAPPED));
        let mixed = self.two(c::VPMULLD, Class::I64, x, swapped);
        let upper = self.shift_wide(LOGICAL_RIGHT, mixed, 32);
        let sum = self.two(c::VPADDD, Class::I64, mixed, upper);
        let high = self.shift_wide(LEFT, sum, 32);
        let low = self.two(c::VPMULUDQ, Class::I64, x, y);
        self.iadd(low, high)
    }

    /// The magnitude; that of the smallest number is itself.
    pub(super) fn absolute_wide(&mut self, x: V) -> V {
        if self.target() == Target::Avx512 {
            return self.one(c::VPABSQ, Class::I64, x);
        }
        let sign = self.negative(x);
        let flipped = self.xor(x, sign);
        self.isub(flipped, sign)
    }

    /// Shifts right by lanes, read as unsigned; by 64 and more all bits are the sign.
    pub(super) fn shift_right_wide(&mut self, x: V, by: V) -> V {
        if self.target() == Target::Avx512 {
            return self.two(c::VPSRAVQ, Class::I64, x, by);
        }
        let sign = self.negative(x);
        let flipped = self.xor(x, sign);
        let shifted = self.two(c::VPSRLVQ, Class::I64, flipped, by);
        self.xor(shifted, sign)
    }

    /// An integer as a float, rounded once: both halves are exact, and only their sum is rounded.
    pub(super) fn wide_to_float(&mut self, x: V) -> V {
        if self.target() == Target::Avx512 {
            return self.one(c::VCVTQQ2PD, Class::F64, x);
        }
        let (word, one) = (self.wide(LOW_WORD, Class::I64), self.wide(LOW_ONE, Class::I64));
        let low = self.and(x, word);
        let low = self.or(low, one);
        let high_one = self.wide(HIGH_ONE, Class::I64);
        let high = self.shift_wide(LOGICAL_RIGHT, x, 32);
        let high = self.xor(high, high_one);
        let ones = self.f64(2f64.powi(84) + 2f64.powi(63) + 2f64.powi(52));
        let float = |v: V| V { class: Class::F64, ..v };
        let high = self.fsub(float(high), ones);
        self.fadd(high, float(low))
    }

    /// An integer whose float of 64 bits, rounded to 32, is that of `x` rounded once. What a float of 64 bits may not hold becomes one bit
    /// that it does: floats of 32 bits are so far apart there that it still lies between the same two.
    pub(super) fn sticky(&mut self, x: V) -> V {
        let (most, least) = (self.wide(1 << 53, Class::I64), self.wide((-1i64 << 53) as u64, Class::I64));
        let above = self.icmp(IntCC::SignedGreaterThan, x, most);
        let below = self.icmp(IntCC::SignedLessThan, x, least);
        let large = self.or(above, below);
        let (rest, half, zero) =
            (self.wide(0x7ff, Class::I64), self.wide(0x400, Class::I64), self.wide(0, Class::I64));
        let kept = self.wide(!0x7ff, Class::I64);
        let (rest, kept) = (self.and(x, rest), self.and(x, kept));
        let exact = self.icmp(IntCC::Equal, rest, zero);
        let bit = self.select(exact, zero, half);
        let odd = self.or(kept, bit);
        self.select(large, odd, x)
    }

    /// A float towards zero; below all integers the smallest. From 2^63 on and for NaN the result is any number.
    pub(super) fn float_to_wide(&mut self, x: V) -> V {
        if self.target() == Target::Avx512 {
            return self.one(c::VCVTTPD2QQ, Class::I64, x);
        }
        let least = self.f64(-(2f64.powi(63)));
        let x = self.larger(least, x);
        let whole = self.round(x, 3);
        let (down, up) = (self.f64(2f64.powi(-32)), self.f64(-(2f64.powi(32))));
        let high = self.fmul(whole, down);
        let high = self.round(high, 1);
        let low = self.mul_add(high, up, whole);
        // 1.5 * 2^52: the low bits of the sum are the number, also a negative one.
        let (low_one, high_one) = (self.f64(2f64.powi(52)), self.f64(1.5 * 2f64.powi(52)));
        let (low, high) = (self.fadd(low, low_one), self.fadd(high, high_one));
        let bits = |v: V| V { class: Class::I64, ..v };
        let word = self.wide(LOW_WORD, Class::I64);
        let low = self.and(bits(low), word);
        let high = self.shift_wide(LEFT, bits(high), 32);
        self.or(low, high)
    }
}
