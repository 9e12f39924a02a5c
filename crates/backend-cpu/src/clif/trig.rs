//! Sine and cosine of `f32`: the reduction of the argument in double precision, and moving between four lanes of `f32` and two
//! registers of `f64`. The polynomials are in [`crate::math`].

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{F32, F64, I32};
use cranelift_codegen::ir::{InstBuilder, Value};

use super::regs::Regs;
use crate::math::{COS, Lanes, SIN};

impl Regs<'_, '_> {
    /// `x - round(x * 2/π) * π/2` by double-precision steps on one half of the lanes, and the quadrant; for |x| < 2^28.
    fn reduce_f64(&mut self, x: Value) -> (Value, Value) {
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

    /// Sine (`quadrant_shift` 0) or cosine (1) for |x| < 2^28.
    pub(super) fn sin_cos_f32(&mut self, x: Value, quadrant_shift: i32) -> Value {
        let (r, quadrant) = if self.wide {
            let (lo, hi) = self.promote(x);
            let ((r0, q0), (r1, q1)) = (self.reduce_f64(lo), self.reduce_f64(hi));
            (self.demote(r0, r1), self.pick(q0, q1, [0, 2, 4, 6]))
        } else {
            let wide = self.b.ins().fpromote(F64, x);
            let (r, q) = self.reduce_f64(wide);
            let q = self.bits(cranelift_codegen::ir::types::I64, q);
            (self.b.ins().fdemote(F32, r), self.b.ins().ireduce(I32, q))
        };
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

    /// Four `f32` as two registers of `f64`.
    pub(super) fn promote(&mut self, x: Value) -> (Value, Value) {
        let lo = self.b.ins().fvpromote_low(x);
        let high = self.pick(x, x, [2, 3, 2, 3]);
        let high = self.as_f32(high);
        (lo, self.b.ins().fvpromote_low(high))
    }

    /// Two registers of `f64` as four `f32`.
    pub(super) fn demote(&mut self, lo: Value, hi: Value) -> Value {
        let (lo, hi) = (self.b.ins().fvdemote(lo), self.b.ins().fvdemote(hi));
        let r = self.pick(lo, hi, [0, 1, 4, 5]);
        self.as_f32(r)
    }
}
