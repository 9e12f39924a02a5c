//! Arithmetic on one register: a scalar or four 32-bit or two 64-bit lanes. A thin layer over the function builder that
//! hides whether there is one lane or several. Knows no dtype and no kernel.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::{F32, F32X4, F64, F64X2, I8, I8X16, I32, I32X4, I64, I64X2};
use cranelift_codegen::ir::{ConstantData, Endianness, InstBuilder, MemFlagsData, Type, Value};
use cranelift_frontend::FunctionBuilder;

use crate::math::Lanes;

/// The shape of the registers of one body.
pub(super) struct Regs<'a, 'f> {
    pub(super) b: &'a mut FunctionBuilder<'f>,
    /// Several lanes.
    pub(super) wide: bool,
    /// The processor has fused multiply-add.
    pub(super) fma: bool,
}

/// Flags of a bitcast between vector types.
pub(super) fn cast_flags() -> MemFlagsData {
    MemFlagsData::new().with_endianness(Endianness::Little)
}

macro_rules! binary {
    ($($name:ident $inst:ident)*) => {$(
        pub(super) fn $name(&mut self, x: Value, y: Value) -> Value { self.b.ins().$inst(x, y) }
    )*};
}

impl Regs<'_, '_> {
    binary! { fadd fadd fsub fsub fmul fmul fdiv fdiv iadd iadd isub isub and band or bor xor bxor }

    /// Lanes or scalar of a 32-bit or 64-bit type.
    pub(super) fn ty(&self, scalar: Type) -> Type {
        match (self.wide, scalar) {
            (true, F32) => F32X4,
            (true, F64) => F64X2,
            (true, I32) => I32X4,
            (true, I64) => I64X2,
            (_, scalar) => scalar,
        }
    }
    pub(super) fn type_of(&self, v: Value) -> Type {
        self.b.func.dfg.value_type(v)
    }
    fn pool(&mut self, ty: Type, lane: &[u8]) -> Value {
        let bytes: Vec<u8> = lane.iter().copied().cycle().take(16).collect();
        let constant = self.b.func.dfg.constants.insert(ConstantData::from(bytes.as_slice()));
        self.b.ins().vconst(ty, constant)
    }
    /// `x < y ? x : y`; `y` where either is NaN. One instruction on x86-64.
    pub(super) fn smaller(&mut self, x: Value, y: Value) -> Value {
        let less = self.fcmp(FloatCC::LessThan, x, y);
        self.pick_by(less, x, y)
    }
    /// `y < x ? x : y`; `y` where either is NaN.
    pub(super) fn larger(&mut self, x: Value, y: Value) -> Value {
        let less = self.fcmp(FloatCC::LessThan, y, x);
        self.pick_by(less, x, y)
    }
    /// The form of a selection that instruction selection recognises as minimum and maximum.
    fn pick_by(&mut self, mask: Value, x: Value, y: Value) -> Value {
        if !self.wide {
            return self.b.ins().select(mask, x, y);
        }
        let ty = self.type_of(x);
        let mask = self.bits(ty, mask);
        self.b.ins().bitselect(mask, x, y)
    }
    pub(super) fn f32(&mut self, x: f32) -> Value {
        if self.wide { self.pool(F32X4, &x.to_le_bytes()) } else { self.b.ins().f32const(x) }
    }
    pub(super) fn f64(&mut self, x: f64) -> Value {
        if self.wide { self.pool(F64X2, &x.to_le_bytes()) } else { self.b.ins().f64const(x) }
    }
    pub(super) fn i32(&mut self, x: i32) -> Value {
        if self.wide {
            self.pool(I32X4, &x.to_le_bytes())
        } else {
            self.b.ins().iconst(I32, i64::from(x as u32))
        }
    }
    pub(super) fn i64(&mut self, x: i64) -> Value {
        if self.wide { self.pool(I64X2, &x.to_le_bytes()) } else { self.b.ins().iconst(I64, x) }
    }
    /// `x` of the float type of `like`.
    pub(super) fn float_like(&mut self, like: Value, x: f64) -> Value {
        if self.type_of(like).lane_type() == F32 { self.f32(x as f32) } else { self.f64(x) }
    }
    /// `x * y + z`, fused where the processor can.
    pub(super) fn mul_add(&mut self, x: Value, y: Value, z: Value) -> Value {
        if self.fma {
            return self.b.ins().fma(x, y, z);
        }
        let p = self.fmul(x, y);
        self.fadd(p, z)
    }
    /// The same bits as another type of the same size.
    pub(super) fn bits(&mut self, to: Type, x: Value) -> Value {
        if self.type_of(x) == to { x } else { self.b.ins().bitcast(to, cast_flags(), x) }
    }
    pub(super) fn as_i32(&mut self, x: Value) -> Value {
        let ty = self.ty(I32);
        self.bits(ty, x)
    }
    pub(super) fn as_f32(&mut self, x: Value) -> Value {
        let ty = self.ty(F32);
        self.bits(ty, x)
    }
    pub(super) fn shl(&mut self, x: Value, by: i64) -> Value {
        self.b.ins().ishl_imm_s(x, by)
    }
    pub(super) fn sshr(&mut self, x: Value, by: i64) -> Value {
        self.b.ins().sshr_imm_s(x, by)
    }
    pub(super) fn ushr(&mut self, x: Value, by: i64) -> Value {
        self.b.ins().ushr_imm_s(x, by)
    }
    /// A mask of the operands' lane width (all ones or zeros; `i8` 0 or 1 for a scalar).
    pub(super) fn fcmp(&mut self, cc: FloatCC, x: Value, y: Value) -> Value {
        self.b.ins().fcmp(cc, x, y)
    }
    pub(super) fn icmp(&mut self, cc: IntCC, x: Value, y: Value) -> Value {
        self.b.ins().icmp(cc, x, y)
    }
    /// `mask ? x : y`; the mask has the lane width of `x`.
    pub(super) fn select(&mut self, mask: Value, x: Value, y: Value) -> Value {
        if !self.wide {
            return self.b.ins().select(mask, x, y);
        }
        let ty = self.type_of(x);
        if cfg!(target_arch = "x86_64") {
            // One blend by the sign bit, whatever made the mask.
            let int = if ty.lane_type().bits() == 32 { I32X4 } else { I64X2 };
            let (m, x, y) = (self.bits(int, mask), self.bits(int, x), self.bits(int, y));
            let r = self.b.ins().blendv(m, x, y);
            return self.bits(ty, r);
        }
        let mask = self.bits(ty, mask);
        self.b.ins().bitselect(mask, x, y)
    }
    /// Two registers' 32-bit lanes picked by `lanes` (0..4 of `x`, 4..8 of `y`).
    pub(super) fn pick(&mut self, x: Value, y: Value, lanes: [u8; 4]) -> Value {
        let (x, y) = (self.bits(I8X16, x), self.bits(I8X16, y));
        let bytes: Vec<u8> = lanes.iter().flat_map(|l| (0..4).map(move |i| l * 4 + i)).collect();
        let mask = self.b.func.dfg.immediates.push(ConstantData::from(bytes.as_slice()));
        let r = self.b.ins().shuffle(x, y, mask);
        self.bits(I32X4, r)
    }
    pub(super) fn splat(&mut self, x: Value) -> Value {
        let ty = self.type_of(x);
        match ty {
            F32 | F64 | I32 | I64 => {
                let wide = self.ty(ty);
                self.b.ins().splat(wide, x)
            }
            // A bool: 0 or 1 becomes zeros or ones.
            _ => {
                debug_assert_eq!(ty, I8);
                let x = self.b.ins().uextend(I32, x);
                let x = self.b.ins().ineg(x);
                self.b.ins().splat(I32X4, x)
            }
        }
    }
}

impl Lanes for Regs<'_, '_> {
    type V = Value;

    fn f32(&mut self, x: f32) -> Value {
        Regs::f32(self, x)
    }
    fn f64(&mut self, x: f64) -> Value {
        Regs::f64(self, x)
    }
    fn i32(&mut self, x: i32) -> Value {
        Regs::i32(self, x)
    }
    fn fadd(&mut self, x: Value, y: Value) -> Value {
        Regs::fadd(self, x, y)
    }
    fn fsub(&mut self, x: Value, y: Value) -> Value {
        Regs::fsub(self, x, y)
    }
    fn fmul(&mut self, x: Value, y: Value) -> Value {
        Regs::fmul(self, x, y)
    }
    fn fdiv(&mut self, x: Value, y: Value) -> Value {
        Regs::fdiv(self, x, y)
    }
    fn fabs(&mut self, x: Value) -> Value {
        self.b.ins().fabs(x)
    }
    fn mul_add(&mut self, x: Value, y: Value, z: Value) -> Value {
        Regs::mul_add(self, x, y, z)
    }
    fn smaller(&mut self, x: Value, y: Value) -> Value {
        Regs::smaller(self, x, y)
    }
    fn larger(&mut self, x: Value, y: Value) -> Value {
        Regs::larger(self, x, y)
    }
    fn iadd(&mut self, x: Value, y: Value) -> Value {
        Regs::iadd(self, x, y)
    }
    fn isub(&mut self, x: Value, y: Value) -> Value {
        Regs::isub(self, x, y)
    }
    fn and(&mut self, x: Value, y: Value) -> Value {
        Regs::and(self, x, y)
    }
    fn or(&mut self, x: Value, y: Value) -> Value {
        Regs::or(self, x, y)
    }
    fn xor(&mut self, x: Value, y: Value) -> Value {
        Regs::xor(self, x, y)
    }
    fn shl(&mut self, x: Value, by: i64) -> Value {
        Regs::shl(self, x, by)
    }
    fn sshr(&mut self, x: Value, by: i64) -> Value {
        Regs::sshr(self, x, by)
    }
    fn ushr(&mut self, x: Value, by: i64) -> Value {
        Regs::ushr(self, x, by)
    }
    fn fcmp(&mut self, cc: FloatCC, x: Value, y: Value) -> Value {
        Regs::fcmp(self, cc, x, y)
    }
    fn icmp(&mut self, cc: IntCC, x: Value, y: Value) -> Value {
        Regs::icmp(self, cc, x, y)
    }
    fn select(&mut self, mask: Value, x: Value, y: Value) -> Value {
        Regs::select(self, mask, x, y)
    }
    fn as_i32(&mut self, x: Value) -> Value {
        Regs::as_i32(self, x)
    }
    fn as_f32(&mut self, x: Value) -> Value {
        Regs::as_f32(self, x)
    }
    fn to_float(&mut self, x: Value) -> Value {
        let ty = self.ty(F32);
        self.b.ins().fcvt_from_sint(ty, x)
    }
}
