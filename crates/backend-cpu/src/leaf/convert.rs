//! Conversions between dtypes on the registers of a leaf, by the same rules as Cranelift's code (`clif::cast`).

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use ir_core::{DType, Scalar};
use kernel_ir::{ScalarOp, Val};

use super::codes as c;
use super::ir::V;
use super::lower::{Lower, Regs};
use super::target::Target;
use crate::math::{Halves, Lanes};
use crate::vir::{Class, Range, VKind};

impl Lower<'_> {
    /// Floats truncate to integers (saturating at 32 or 64 bits, then wrapping), integers wrap, `bool` is "not zero".
    pub(super) fn cast(&mut self, from: DType, to: DType, x: &Regs) -> Option<Regs> {
        if from == to {
            return Some(x.clone());
        }
        let (source, target) = (Class::of(from), Class::of(to));
        if target == Class::Mask {
            let zero = self.constant(from, Scalar::zero(from));
            return Some(self.compare((FloatCC::NotEqual, IntCC::NotEqual), source, x, &zero));
        }
        if source == Class::Mask {
            let (one, zero) = (Scalar::Int(1).to_class_of(to), Scalar::zero(to));
            let (one, zero) = (self.constant(to, one), self.constant(to, zero));
            return Some(self.select(x, &one, &zero));
        }
        let r = self.between(source, target, x);
        Some(match to {
            DType::BF16 => self.map1(&r, |b, x| b.round_to_bf16(x)),
            DType::F16 => self.map1(&r, |b, x| {
                let bits = b.one_with(c::VCVTPS2PH, Class::I32, x, Some(0));
                b.one(c::VCVTPH2PS, Class::F32, bits)
            }),
            _ => self.wrap(to, r),
        })
    }

    pub(super) fn between(&mut self, source: Class, target: Class, x: &Regs) -> Regs {
        match (source, target) {
            (Class::F32, Class::F64) => self.widened(c::VCVTPS2PD, target, x),
            (Class::I32, Class::F64) => self.widened(c::VCVTDQ2PD, target, x),
            (Class::I32, Class::I64) => self.widened(c::VPMOVSXDQ, target, x),
            (Class::F64, Class::F32) => self.narrowed(c::VCVTPD2PS, target, x),
            (Class::I64, Class::F32) => self.wide_to_single(x),
            (Class::I64, Class::I32) => Regs::from_elem(self.b.low_words(x[0], x[1]), 1),
            (Class::I32, Class::F32) => self.map1(x, |b, x| b.to_float(x)),
            (Class::I64, Class::F64) => self.map1(x, |b, x| b.wide_to_float(x)),
            (Class::F32 | Class::F64, Class::I32 | Class::I64) => self.truncated(source, target, x),
            _ => x.clone(),
        }
    }

    /// Integers of 64 bits as floats of 32.
    fn wide_to_single(&mut self, x: &Regs) -> Regs {
        if self.b.target() == Target::Avx512 {
            return self.narrowed(c::VCVTQQ2PS, Class::F32, x);
        }
        let floats = self.map1(x, |b, x| {
            let x = b.sticky(x);
            b.wide_to_float(x)
        });
        self.narrowed(c::VCVTPD2PS, Class::F32, &floats)
    }

    /// The lanes of a register, converted to lanes of 64 bits.
    fn widened(&mut self, code: super::encode::Code, target: Class, x: &Regs) -> Regs {
        let high = self.b.upper_half(x[0]);
        [x[0], high].into_iter().map(|x| self.b.one(code, target, x)).collect()
    }

    /// Two registers of 64-bit lanes, converted to one of 32-bit lanes.
    fn narrowed(&mut self, code: super::encode::Code, target: Class, x: &Regs) -> Regs {
        let (low, high) = (self.b.one(code, target, x[0]), self.b.one(code, target, x[1]));
        self.halves(target, low, high)
    }

    /// Two registers half full of lanes of 32 bits as one.
    pub(super) fn halves(&mut self, class: Class, low: V, high: V) -> Regs {
        Regs::from_elem(self.b.halves(class, low, high), 1)
    }

    /// Floats that surely lie in the range of an integer type of 8 or 16 bits, as integers in whose lanes the low bits are the result:
    /// of `NaN` they are 0. What is rounded to whole numbers first is rounded by the conversion.
    pub(super) fn small_integers(&mut self, to: DType, v: Val) -> Option<Regs> {
        let body = self.body();
        if self.dtype(v) != DType::F32 || !body[v.0 as usize].varies || !Range::of(body, v).is_within(to) {
            return None;
        }
        let (code, x) = match &body[v.0 as usize].kind {
            VKind::Op { op: ScalarOp::Round, args } => (c::VCVTPS2DQ, args[0]),
            _ => (c::VCVTTPS2DQ, v),
        };
        let x = self.get(x)?;
        Some(self.map1(&x, |b, x| b.one(code, Class::I32, x)))
    }

    /// Floats to integers: the instruction gives the smallest integer for all that does not fit.
    fn truncated(&mut self, source: Class, target: Class, x: &Regs) -> Regs {
        let r = match (source, target) {
            (Class::F32, Class::I32) => self.map1(x, |b, x| b.one(c::VCVTTPS2DQ, target, x)),
            (Class::F32, _) if self.b.target() == Target::Avx512 => self.widened(c::VCVTTPS2QQ, target, x),
            (Class::F32, _) => {
                let wide = self.widened(c::VCVTPS2PD, Class::F64, x);
                self.map1(&wide, |b, x| b.float_to_wide(x))
            }
            (_, Class::I32) => self.narrowed(c::VCVTTPD2DQ, target, x),
            _ => self.map1(x, |b, x| b.float_to_wide(x)),
        };
        let (float, int) = match (source, target.wide()) {
            (Class::F64, true) => (DType::F64, DType::I64),
            (Class::F64, false) => (DType::F64, DType::I32),
            (_, true) => (DType::F32, DType::I64),
            (_, false) => (DType::F32, DType::I32),
        };
        let past = if target.wide() { 63 } else { 31 };
        let past = self.constant(float, Scalar::Float(2f64.powi(past)));
        let over = self.compare((FloatCC::GreaterThanOrEqual, IntCC::Equal), source, x, &past);
        let most = self.constant(int, int.ends().1);
        let r = self.select(&over, &most, &r);
        let nan = self.compare((FloatCC::Unordered, IntCC::Equal), source, x, x);
        let zero = self.constant(int, Scalar::Int(0));
        self.select(&nan, &zero, &r)
    }

    /// The same bits as another dtype of the same size.
    pub(super) fn bitcast(&mut self, from: DType, to: DType, x: &Regs) -> Option<Regs> {
        let plain = |d: DType| matches!(d, DType::F32 | DType::I32 | DType::F64 | DType::I64);
        let class = Class::of(to);
        let relabelled = |x: &V| V { class, ..*x };
        match to {
            _ if plain(from) && plain(to) => Some(x.iter().map(relabelled).collect()),
            DType::U8 | DType::I8 | DType::I16 if Class::of(from) == Class::I32 => {
                Some(self.wrap(to, x.clone()))
            }
            _ => None,
        }
    }
}
