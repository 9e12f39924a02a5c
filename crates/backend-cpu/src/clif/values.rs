//! Values of a body as registers: how many of which type a dtype takes at a width, and moving between scalars and lanes.
//!
//! 16-bit floats are held as `f32`, integers below 64 bits as `i32` (always in range of their dtype), `bool` as an
//! `i32` mask of ones or zeros (a scalar: `i8` 0 or 1).

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{F32, F64, I8, I32, I32X4, I64, I64X2};
use cranelift_codegen::ir::{InstBuilder, Type, Value};
use ir_core::{DType, Scalar};
use smallvec::SmallVec;

use super::emit::Emit;
use super::regs::Regs;
pub(super) use crate::vir::Class;
use crate::vir::round_16;

/// The registers of one value, lowest lanes first.
pub(super) type Vals = SmallVec<[Value; 4]>;

impl Class {
    /// Type of one lane in a register.
    pub(super) fn lane(self, wide: bool) -> Type {
        match self {
            Class::F32 => F32,
            Class::F64 => F64,
            Class::I32 => I32,
            Class::I64 => I64,
            Class::Mask if wide => I32,
            Class::Mask => I8,
        }
    }
    /// Lanes of a register.
    pub(super) fn per_reg(self) -> u32 {
        if matches!(self, Class::F64 | Class::I64) { 2 } else { 4 }
    }
}

impl<'f> Emit<'f, '_> {
    pub(super) fn regs(&mut self) -> Regs<'_, 'f> {
        Regs { wide: self.width > 1, fma: self.cx.fma, b: &mut self.b }
    }
    /// Type of each register of a class at the present width.
    pub(super) fn reg_type(&mut self, class: Class) -> Type {
        let wide = self.width > 1;
        let lane = class.lane(wide);
        self.regs().ty(lane)
    }
    /// Registers of a class at the present width.
    pub(super) fn reg_count(&self, class: Class) -> usize {
        if self.width == 1 { 1 } else { (self.width / class.per_reg()) as usize }
    }
    /// A number in every lane.
    pub(super) fn constant(&mut self, dtype: DType, value: Scalar) -> Vals {
        let class = Class::of(dtype);
        let n = self.reg_count(class);
        let mut r = self.regs();
        let v = match class {
            Class::F32 => r.f32(round_16(dtype, value.as_f64() as f32)),
            Class::F64 => r.f64(value.as_f64()),
            Class::I32 => r.i32(dtype.wrap(value.as_i64()) as i32),
            Class::I64 => r.i64(value.as_i64()),
            Class::Mask if r.wide => r.i32(-i32::from(value.as_bool())),
            Class::Mask => r.b.ins().iconst(I8, i64::from(value.as_bool())),
        };
        SmallVec::from_elem(v, n)
    }
    /// Copies a scalar to every lane of the present width.
    pub(super) fn splat(&mut self, class: Class, scalar: Value) -> Vals {
        if self.width == 1 {
            return SmallVec::from_elem(scalar, 1);
        }
        let v = self.regs().splat(scalar);
        SmallVec::from_elem(v, self.reg_count(class))
    }
    /// One lane as a scalar (a mask as `i8`).
    pub(super) fn lane(&mut self, class: Class, v: &Vals, lane: u32) -> Value {
        if self.width == 1 {
            return v[0];
        }
        let per = class.per_reg();
        let x = self.b.ins().extractlane(v[(lane / per) as usize], (lane % per) as u8);
        if class != Class::Mask {
            return x;
        }
        let zero = self.b.ins().iconst(I32, 0);
        self.b.ins().icmp(IntCC::NotEqual, x, zero)
    }
    /// Lanes from scalars.
    pub(super) fn gather(&mut self, class: Class, scalars: &[Value]) -> Vals {
        if self.width == 1 {
            return SmallVec::from_slice(&scalars[..1]);
        }
        let ty = self.reg_type(class);
        let chunks = scalars.chunks(class.per_reg() as usize);
        chunks
            .map(|lanes| {
                let mut r = None;
                for (i, &s) in lanes.iter().enumerate() {
                    let s = if class == Class::Mask {
                        let wide = self.b.ins().uextend(I32, s);
                        self.b.ins().ineg(wide)
                    } else {
                        s
                    };
                    r = Some(match r {
                        None => self.b.ins().splat(ty, s),
                        Some(r) => self.b.ins().insertlane(r, s, i as u8),
                    });
                }
                // PROOF: chunks are not empty.
                r.expect("a register has a lane")
            })
            .collect()
    }
    /// Applies `f` to each register.
    pub(super) fn map1(&mut self, x: &Vals, f: impl Fn(&mut Regs<'_, 'f>, Value) -> Value) -> Vals {
        let mut r = self.regs();
        x.iter().map(|&x| f(&mut r, x)).collect()
    }
    /// Applies `f` to each pair of registers.
    pub(super) fn map2(
        &mut self,
        x: &Vals,
        y: &Vals,
        f: impl Fn(&mut Regs<'_, 'f>, Value, Value) -> Value,
    ) -> Vals {
        let mut r = self.regs();
        x.iter().zip(y).map(|(&x, &y)| f(&mut r, x, y)).collect()
    }
    /// Masks of 64-bit lanes, two registers each, to masks of 32-bit lanes.
    pub(super) fn narrow_mask(&mut self, x: Vals) -> Vals {
        if self.width == 1 {
            return x;
        }
        let mut r = self.regs();
        x.chunks(2).map(|p| r.pick(p[0], p[1], [0, 2, 4, 6])).collect()
    }
    /// Masks of 32-bit lanes to masks of the lane width of `class`.
    pub(super) fn mask_for(&mut self, class: Class, x: &Vals) -> Vals {
        if self.width == 1 || class.per_reg() == 4 {
            return x.clone();
        }
        self.widen(x)
    }
    /// Sign-extends 32-bit lanes to 64-bit lanes.
    pub(super) fn widen(&mut self, x: &Vals) -> Vals {
        if self.width == 1 {
            return x.iter().map(|&x| self.b.ins().sextend(I64, x)).collect();
        }
        let mut out = Vals::new();
        for &x in x {
            debug_assert_eq!(self.b.func.dfg.value_type(x), I32X4);
            out.push(self.b.ins().swiden_low(x));
            out.push(self.b.ins().swiden_high(x));
        }
        debug_assert!(out.iter().all(|v| self.b.func.dfg.value_type(*v) == I64X2));
        out
    }
    /// `mask ? x : y` for values of a class.
    pub(super) fn select(&mut self, class: Class, mask: &Vals, x: &Vals, y: &Vals) -> Vals {
        let mask = self.mask_for(class, mask);
        let mut r = self.regs();
        (0..x.len()).map(|i| r.select(mask[i], x[i], y[i])).collect()
    }
}
