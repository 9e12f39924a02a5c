//! Formulas that every code generator of this crate shares: elementary functions of `f32` and conversions of 16-bit floats,
//! written over [`Lanes`], the operations of a register. The same formula in two emitters gives the same bits.

mod elementary;
mod halves;
mod sums;
mod trig;

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};

pub(crate) use elementary::Elementary;
pub(crate) use halves::Halves;
pub(crate) use sums::Sums;
pub(crate) use trig::{LIMIT as TRIG_LIMIT, Trig};

/// 1.5 * 2^23: adding it leaves the nearest integer in the low bits.
const ROUND: f32 = 12_582_912.0;

/// Arithmetic on one register of 32-bit lanes.
pub(crate) trait Lanes {
    /// A register: floats, integers or a mask.
    type V: Copy;

    /// A number in all lanes.
    fn f32(&mut self, x: f32) -> Self::V;
    /// A number in all lanes of 64 bits.
    fn f64(&mut self, x: f64) -> Self::V;
    /// An integer in all lanes.
    fn i32(&mut self, x: i32) -> Self::V;
    fn fadd(&mut self, x: Self::V, y: Self::V) -> Self::V;
    fn fsub(&mut self, x: Self::V, y: Self::V) -> Self::V;
    fn fmul(&mut self, x: Self::V, y: Self::V) -> Self::V;
    fn fdiv(&mut self, x: Self::V, y: Self::V) -> Self::V;
    fn fabs(&mut self, x: Self::V) -> Self::V;
    /// `x * y + z`, fused where the processor can.
    fn mul_add(&mut self, x: Self::V, y: Self::V, z: Self::V) -> Self::V;
    /// `x < y ? x : y`; `y` where either is NaN.
    fn smaller(&mut self, x: Self::V, y: Self::V) -> Self::V;
    /// `y < x ? x : y`; `y` where either is NaN.
    fn larger(&mut self, x: Self::V, y: Self::V) -> Self::V;
    fn iadd(&mut self, x: Self::V, y: Self::V) -> Self::V;
    fn isub(&mut self, x: Self::V, y: Self::V) -> Self::V;
    fn and(&mut self, x: Self::V, y: Self::V) -> Self::V;
    fn or(&mut self, x: Self::V, y: Self::V) -> Self::V;
    fn xor(&mut self, x: Self::V, y: Self::V) -> Self::V;
    fn shl(&mut self, x: Self::V, by: i64) -> Self::V;
    fn sshr(&mut self, x: Self::V, by: i64) -> Self::V;
    fn ushr(&mut self, x: Self::V, by: i64) -> Self::V;
    /// The mask of a comparison of floats.
    fn fcmp(&mut self, cc: FloatCC, x: Self::V, y: Self::V) -> Self::V;
    /// The mask of a comparison of integers.
    fn icmp(&mut self, cc: IntCC, x: Self::V, y: Self::V) -> Self::V;
    /// `mask ? x : y`.
    fn select(&mut self, mask: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// The bits as integers.
    fn as_i32(&mut self, x: Self::V) -> Self::V;
    /// The bits as floats.
    fn as_f32(&mut self, x: Self::V) -> Self::V;
    /// Integers as floats.
    fn to_float(&mut self, x: Self::V) -> Self::V;

    fn and_const(&mut self, x: Self::V, bits: i32) -> Self::V {
        let c = self.i32(bits);
        self.and(x, c)
    }
    fn is_nan(&mut self, x: Self::V) -> Self::V {
        self.fcmp(FloatCC::Unordered, x, x)
    }
    /// Magnitude of `x`, sign of `s`.
    fn copysign_f32(&mut self, x: Self::V, s: Self::V) -> Self::V {
        let (x, s) = (self.as_i32(x), self.as_i32(s));
        let (x, s) = (self.and_const(x, i32::MAX), self.and_const(s, i32::MIN));
        let r = self.or(x, s);
        self.as_f32(r)
    }
    /// A polynomial in `x`, lowest coefficient first, by Horner's rule.
    fn poly(&mut self, x: Self::V, coefs: &[f32]) -> Self::V {
        // PROOF of the index: every table of coefficients has at least one.
        let mut sum = self.f32(coefs[coefs.len() - 1]);
        for &c in coefs.iter().rev().skip(1) {
            let c = self.f32(c);
            sum = self.mul_add(sum, x, c);
        }
        sum
    }
    /// `round(x)` as a float and in the form that `scale` takes, for |x| < 2^22.
    fn nearest(&mut self, x: Self::V) -> (Self::V, Self::V) {
        let magic = self.f32(ROUND);
        let shifted = self.fadd(x, magic);
        let rounded = self.fsub(shifted, magic);
        let bits = self.as_i32(shifted);
        let zero = self.i32(ROUND.to_bits() as i32);
        (rounded, self.isub(bits, zero))
    }
    /// `v * 2^n` for |n| < 254, also where the result is denormal or infinite.
    fn scale(&mut self, v: Self::V, n: Self::V) -> Self::V {
        self.scale_in_two(v, n)
    }
    /// `v * 2^n` where the result is neither denormal nor infinite.
    fn scale_bounded(&mut self, v: Self::V, n: Self::V) -> Self::V {
        self.scale_exponent(v, n)
    }
    /// [`Lanes::scale`] through two factors, so that denormal and infinite results are right.
    fn scale_in_two(&mut self, v: Self::V, n: Self::V) -> Self::V {
        let half = self.sshr(n, 1);
        let rest = self.isub(n, half);
        let mut v = v;
        for part in [half, rest] {
            let bias = self.i32(127);
            let e = self.iadd(part, bias);
            let e = self.shl(e, 23);
            let factor = self.as_f32(e);
            v = self.fmul(v, factor);
        }
        v
    }
    /// [`Lanes::scale_bounded`] by adding to the exponent's bits.
    fn scale_exponent(&mut self, v: Self::V, n: Self::V) -> Self::V {
        let n = self.shl(n, 23);
        let bits = self.as_i32(v);
        let bits = self.iadd(bits, n);
        self.as_f32(bits)
    }
}
