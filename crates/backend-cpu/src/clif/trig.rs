//! Sine and cosine of `f32`: moving between four lanes of `f32` and two registers of `f64`, in which the argument is reduced. The
//! formulas are in [`crate::math`].

use cranelift_codegen::ir::types::{F32, F64, I32};
use cranelift_codegen::ir::{InstBuilder, Value};

use super::regs::Regs;
use crate::math::Trig;

impl Regs<'_, '_> {
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
        self.sin_cos(r, quadrant, quadrant_shift)
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
