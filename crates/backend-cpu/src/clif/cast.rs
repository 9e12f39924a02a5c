//! Conversions between dtypes at the present width.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::{F32, F32X4, F64, F64X2, I32, I32X4, I64};
use cranelift_codegen::ir::{InstBuilder, Type, Value};
use ir_core::{DType, Scalar};
use smallvec::SmallVec;

use super::emit::Emit;
use super::regs::Regs;
use super::values::{Class, Vals};
use crate::math::{Halves, Lanes};

impl<'f> Emit<'f, '_> {
    /// Converts by PyTorch's rules: floats truncate to integers (saturating at 32 or 64 bits, then wrapping to the
    /// narrower dtype), integers wrap, `bool` is "not zero".
    pub(super) fn cast(&mut self, from: DType, to: DType, x: &Vals) -> Vals {
        if from == to {
            return x.clone();
        }
        let (source, target) = (Class::of(from), Class::of(to));
        if target == Class::Mask {
            return self.not_zero(from, source, x);
        }
        if source == Class::Mask {
            let bits = self.mask_bits(x);
            let ints =
                if self.width == 1 { self.map1(&bits, |r, x| r.b.ins().uextend(I32, x)) } else { bits };
            return self.cast(DType::U8, to, &ints);
        }
        let r = self.between(source, target, x);
        match to {
            DType::BF16 if from != DType::BF16 => self.map1(&r, |r, x| r.round_to_bf16(x)),
            DType::F16 if from != DType::F16 => self.map1(&r, |r, x| {
                let bits = r.f32_to_f16(x);
                r.f16_to_f32(bits)
            }),
            _ => self.wrap(to, r),
        }
    }

    fn not_zero(&mut self, from: DType, class: Class, x: &Vals) -> Vals {
        let zero = self.constant(from, Scalar::zero(from));
        let float = matches!(class, Class::F32 | Class::F64);
        let mask = self.map2(x, &zero, |r, x, z| {
            if float { r.fcmp(FloatCC::NotEqual, x, z) } else { r.icmp(IntCC::NotEqual, x, z) }
        });
        if class.per_reg() == 2 { self.narrow_mask(mask) } else { mask }
    }

    fn between(&mut self, source: Class, target: Class, x: &Vals) -> Vals {
        let wide = self.width > 1;
        match (source, target) {
            (Class::F32, Class::F64) if wide => {
                let mut r = self.regs();
                x.iter().flat_map(|&x| <[Value; 2]>::from(r.promote(x))).collect()
            }
            (Class::F32, Class::F64) => self.map1(x, |r, x| r.b.ins().fpromote(F64, x)),
            (Class::F64, Class::F32) if wide => {
                let mut r = self.regs();
                x.chunks(2).map(|p| r.demote(p[0], p[1])).collect()
            }
            (Class::F64, Class::F32) => self.map1(x, |r, x| r.b.ins().fdemote(F32, x)),
            (Class::F32, Class::I32) if wide => self.map1(x, |r, x| r.b.ins().fcvt_to_sint_sat(I32X4, x)),
            (Class::I32, Class::F32) if wide => self.map1(x, |r, x| r.b.ins().fcvt_from_sint(F32X4, x)),
            (Class::I32, Class::F64) if wide => {
                let mut r = self.regs();
                x.iter()
                    .flat_map(|&x| {
                        let high = r.pick(x, x, [2, 3, 2, 3]);
                        [x, high].map(|x| low_to_f64(&mut r, x))
                    })
                    .collect()
            }
            (Class::I32, Class::I64) => self.widen(x),
            (Class::I64, Class::I32) if wide => {
                let mut r = self.regs();
                x.chunks(2).map(|p| r.pick(p[0], p[1], [0, 2, 4, 6])).collect()
            }
            (Class::I64, Class::I32) => self.map1(x, |r, x| r.b.ins().ireduce(I32, x)),
            (Class::F32 | Class::F64, Class::I32) => {
                self.lanes_to(source, target, x, |e, x| to_int(e, I32, x))
            }
            (Class::F32 | Class::F64, Class::I64) => {
                self.lanes_to(source, target, x, |e, x| to_int(e, I64, x))
            }
            (Class::I32 | Class::I64, Class::F32) => {
                self.lanes_to(source, target, x, |e, x| to_float(e, F32, x))
            }
            (Class::I32 | Class::I64, Class::F64) => {
                self.lanes_to(source, target, x, |e, x| to_float(e, F64, x))
            }
            (Class::F32, Class::F32)
            | (Class::F64, Class::F64)
            | (Class::I32, Class::I32)
            | (Class::I64, Class::I64)
            | (Class::Mask, _)
            | (_, Class::Mask) => x.clone(),
        }
    }

    /// Scalar code on each lane, from one class to another.
    fn lanes_to(
        &mut self,
        source: Class,
        target: Class,
        x: &Vals,
        f: impl Fn(&mut Self, Value) -> Value,
    ) -> Vals {
        let mut out: SmallVec<[Value; 16]> = SmallVec::new();
        for lane in 0..self.width {
            let s = self.lane(source, x, lane);
            out.push(f(self, s));
        }
        self.gather(target, &out)
    }

    /// The same bits as another dtype of the same size.
    pub(super) fn bitcast(&mut self, from: DType, to: DType, x: &Vals) -> Vals {
        let bits = match from {
            DType::BF16 => self.map1(x, |r, x| r.f32_to_bf16(x)),
            DType::F16 => self.map1(x, |r, x| r.f32_to_f16(x)),
            DType::Bool => self.cast(DType::Bool, DType::U8, x),
            _ => x.clone(),
        };
        let class = Class::of(to);
        match to {
            DType::BF16 => self.map1(&bits, |r, x| r.bf16_to_f32(x)),
            DType::F16 => {
                let low = self.map1(&bits, |r, x| r.and_const(x, 0xffff));
                self.map1(&low, |r, x| r.f16_to_f32(x))
            }
            DType::Bool => self.cast(from, DType::Bool, &bits),
            DType::U8 | DType::I8 | DType::I16 => self.wrap(to, bits),
            _ => {
                let ty = self.reg_type(class);
                self.map1(&bits, |r, x| r.bits(ty, x))
            }
        }
    }
}

fn low_to_f64(r: &mut Regs<'_, '_>, x: Value) -> Value {
    let wide = r.b.ins().swiden_low(x);
    r.b.ins().fcvt_from_sint(F64X2, wide)
}

fn to_int(e: &mut Emit<'_, '_>, ty: Type, x: Value) -> Value {
    e.b.ins().fcvt_to_sint_sat(ty, x)
}

fn to_float(e: &mut Emit<'_, '_>, ty: Type, x: Value) -> Value {
    e.b.ins().fcvt_from_sint(ty, x)
}
