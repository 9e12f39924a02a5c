//! 16-bit floats in registers of `f32`: `bf16` and `f16` bits to `f32` and back, rounding to nearest even. One register at a time.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};

use super::Lanes;

/// The conversions, over any emitter.
pub(crate) trait Halves: Lanes {
    /// 16 bits in the low half of each 32-bit lane to `f32`.
    fn bf16_to_f32(&mut self, bits: Self::V) -> Self::V {
        let x = self.shl(bits, 16);
        self.as_f32(x)
    }

    /// `f32` to `bf16` bits in the low half of each lane, rounded; NaN stays NaN (with its sign) and becomes quiet.
    fn f32_to_bf16(&mut self, x: Self::V) -> Self::V {
        let r = self.upper_half_rounded(x);
        self.ushr(r, 16)
    }

    /// `f32` rounded to numbers of `bf16`, as [`Halves::f32_to_bf16`] does.
    fn round_to_bf16(&mut self, x: Self::V) -> Self::V {
        let r = self.upper_half_rounded(x);
        let r = self.and_const(r, -0x1_0000);
        self.as_f32(r)
    }

    /// The `bf16` bits of numbers of `bf16` in the low half of each lane.
    fn upper_bits(&mut self, x: Self::V) -> Self::V {
        let bits = self.as_i32(x);
        self.ushr(bits, 16)
    }

    /// Rounded `bf16` bits in the upper half of each lane, anything in the lower one.
    fn upper_half_rounded(&mut self, x: Self::V) -> Self::V {
        let bits = self.as_i32(x);
        let odd = self.ushr(bits, 16);
        let odd = self.and_const(odd, 1);
        let bias = self.i32(0x7fff);
        let r = self.iadd(bits, bias);
        let r = self.iadd(r, odd);
        let quiet = self.i32(0x40_0000);
        let payload = self.or(bits, quiet);
        let nan = self.is_nan(x);
        self.select(nan, payload, r)
    }

    /// `f16` bits in the low half of each lane to `f32`.
    fn f16_to_f32(&mut self, bits: Self::V) -> Self::V {
        let magnitude = self.and_const(bits, 0x7fff);
        let sign = self.xor(bits, magnitude);
        let sign = self.shl(sign, 16);
        let shifted = self.shl(magnitude, 13);
        let f = self.as_f32(shifted);
        // 2^112 moves the exponent from bias 15 to bias 127 and normalises denormals.
        let rebias = self.f32(f32::from_bits(0x7780_0000));
        let f = self.fmul(f, rebias);
        let r = self.as_i32(f);
        let limit = self.i32(0x7bff);
        let special = self.icmp(IntCC::SignedGreaterThan, magnitude, limit);
        let ones = self.i32(0x7f80_0000);
        let inf = self.or(shifted, ones);
        let r = self.select(special, inf, r);
        let r = self.or(r, sign);
        self.as_f32(r)
    }

    /// `f32` to `f16` bits in the low half of each lane, rounded to nearest even.
    fn f32_to_f16(&mut self, x: Self::V) -> Self::V {
        let bits = self.as_i32(x);
        let magnitude = self.and_const(bits, 0x7fff_ffff);
        let sign = self.xor(bits, magnitude);
        let sign = self.ushr(sign, 16);
        let a = self.as_f32(magnitude);
        // Normal results: rebias, then round half to even at bit 13.
        let odd = self.ushr(magnitude, 13);
        let odd = self.and_const(odd, 1);
        let rebias = self.i32((15 - 127) * (1 << 23) + 0xfff);
        let normal = self.iadd(magnitude, rebias);
        let normal = self.iadd(normal, odd);
        let normal = self.ushr(normal, 13);
        // Denormal results: adding 0.5 aligns the last bit to 2^-24, and the addition rounds.
        let half = self.f32(0.5);
        let aligned = self.fadd(a, half);
        let aligned = self.as_i32(aligned);
        let half_bits = self.i32(0.5f32.to_bits() as i32);
        let denormal = self.isub(aligned, half_bits);
        let smallest = self.f32(6.103_515_6e-5);
        let small = self.fcmp(FloatCC::LessThan, a, smallest);
        let r = self.select(small, denormal, normal);
        // From 65520 on the result is infinite.
        let over = self.f32(65520.0);
        let large = self.fcmp(FloatCC::GreaterThanOrEqual, a, over);
        let inf = self.i32(0x7c00);
        let r = self.select(large, inf, r);
        let nan = self.is_nan(x);
        let quiet = self.i32(0x7e00);
        let r = self.select(nan, quiet, r);
        self.or(r, sign)
    }
}

impl<L: Lanes> Halves for L {}
