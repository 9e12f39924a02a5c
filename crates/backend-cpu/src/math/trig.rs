//! Sine and cosine of `f32`: the reduction of the argument in double precision, and the polynomials. Arguments from [`LIMIT`] on
//! need an exact reduction, which is a call of the reference for each lane.

use cranelift_codegen::ir::condcodes::IntCC;

use super::Lanes;
use super::elementary::{COS, SIN};

/// Up to here the reduction is precise.
pub(crate) const LIMIT: f32 = 268_435_456.0;

/// The formulas, over any emitter.
pub(crate) trait Trig: Lanes {
    /// `x - round(x * 2/π) * π/2` by double-precision steps on lanes of `f64`, and the quadrant in the low bits; for |x| < 2^28.
    fn reduce_f64(&mut self, x: Self::V) -> (Self::V, Self::V) {
        let (inv, magic) = (self.f64(std::f64::consts::FRAC_2_PI), self.f64(6_755_399_441_055_744.0));
        let t = self.fmul(x, inv);
        let shifted = self.fadd(t, magic);
        let n = self.fsub(shifted, magic);
        // π/2 in two parts: 33 bits (its product with n < 2^28 needs at most 61, fused), then the rest.
        let (hi, lo) = (self.f64(-1.570_796_326_734_125_6), self.f64(-6.077_100_506_506_192e-11));
        let r = self.mul_add(n, hi, x);
        let r = self.mul_add(n, lo, r);
        (r, shifted)
    }

    /// Sine (`quadrant_shift` 0) or cosine (1) of a reduced argument.
    fn sin_cos(&mut self, r: Self::V, quadrant: Self::V, quadrant_shift: i32) -> Self::V {
        let shift = self.i32(quadrant_shift);
        let quadrant = self.iadd(quadrant, shift);
        let z = self.fmul(r, r);
        let q = self.poly(z, &SIN);
        let zr = self.fmul(z, r);
        let sin = self.mul_add(q, zr, r);
        let q = self.poly(z, &COS);
        let zz = self.fmul(z, z);
        let (half, one) = (self.f32(-0.5), self.f32(1.0));
        let c = self.mul_add(half, z, one);
        let cos = self.mul_add(q, zz, c);
        let odd = self.and_const(quadrant, 1);
        let zero = self.i32(0);
        let swap = self.icmp(IntCC::NotEqual, odd, zero);
        let v = self.select(swap, cos, sin);
        let second = self.and_const(quadrant, 2);
        let sign = self.shl(second, 30);
        let bits = self.as_i32(v);
        let bits = self.xor(bits, sign);
        self.as_f32(bits)
    }
}

impl<L: Lanes> Trig for L {}
