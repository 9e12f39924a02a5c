//! Loads and stores of every dtype: contiguous lanes, one element for all lanes, or one address per lane; masked or not.
//!
//! A masked-out load reads a block of zeros instead of the tensor, so it needs no branch and gives zero by itself.

use cranelift_codegen::ir::types::{F32X4, F64X2, I8X16, I16, I32, I32X4, I64, I64X2};
use cranelift_codegen::ir::{BlockArg, InstBuilder, MemFlagsData, Type, Value, types};
use ir_core::{Atom, DType, Scalar, SymExpr};
use kernel_ir::{StoreMode, Val};
use smallvec::SmallVec;

use super::emit::Emit;
use super::host;
use super::regs::Regs;
use super::values::{Class, Vals};
use crate::math::{Halves, Lanes};
use crate::vir::{Access, Along};

/// Lanes whose addresses are computed, and so checked, before the first of them is stored to.
const TOGETHER: usize = 4;

/// The memory that masked-out lanes read. At least as long as the widest body's registers.
#[repr(align(64))]
pub(crate) struct Zeros([u8; 256]);
pub(crate) static ZEROS: Zeros = Zeros([0; 256]);

impl Zeros {
    /// The first zero.
    pub(crate) fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }
}

/// An expression as a sum of one without values of the body and one of terms that have some.
fn by_values(e: &SymExpr) -> (SymExpr, SymExpr) {
    let (terms, constant) = e.terms();
    let mut sums = (SymExpr::from_i64(constant), SymExpr::ZERO);
    for (coef, factors) in terms {
        let product = factors.iter().fold(SymExpr::from_i64(coef), |p, f| p * SymExpr::atom(f.clone()));
        if product.any_leaf(|a| matches!(a, Atom::Value(_))) {
            sums.1 = sums.1 + product;
        } else {
            sums.0 = sums.0 + product;
        }
    }
    sums
}

fn flags(at: &Access) -> MemFlagsData {
    let flags = MemFlagsData::new().with_notrap();
    match (at.read_only, at.checked) {
        (true, false) => flags.with_readonly().with_can_move(),
        // Moved out of its loop it would read before the check.
        (true, true) => flags.with_readonly(),
        (false, _) => flags,
    }
}

impl<'f> Emit<'f, '_> {
    /// Byte address of an access for a lane. The part that is invariant in the innermost loop is computed separately, so
    /// that it can be hoisted.
    pub(super) fn address(&mut self, at: &Access, lane: u32) -> Value {
        let size = at.dtype.size() as i64;
        let base = self.base(at.root);
        let split = self.innermost.and_then(|v| Some((v, at.address.affine_in(&Atom::Loop(v))?)));
        let indirect = |e: &SymExpr| e.any_leaf(|a| matches!(a, Atom::Value(_)));
        match split {
            Some((v, (step, rest))) if step != SymExpr::ZERO && !indirect(&step) && !indirect(&rest) => {
                let rest = self.expr(&rest, lane);
                let rest = self.times(rest, size);
                let row = self.b.ins().iadd(base, rest);
                let mut x = self.loops[v as usize];
                let on_axis = self.axis == Some(v);
                if let Some(step) = step.as_const() {
                    let moved = self.times(x, step.saturating_mul(size));
                    let p = self.b.ins().iadd(row, moved);
                    let offset = i64::from(lane).saturating_mul(step).saturating_mul(size);
                    return if on_axis && lane > 0 { self.b.ins().iadd_imm_s(p, offset) } else { p };
                }
                if on_axis && lane > 0 {
                    x = self.b.ins().iadd_imm_s(x, i64::from(lane));
                }
                let step = self.expr(&step, lane);
                let step = self.times(step, size);
                let moved = self.b.ins().imul(x, step);
                self.b.ins().iadd(row, moved)
            }
            _ if indirect(&at.address) => {
                // The part without values is an address of its own, most of which is hoisted and is the same for all lanes.
                let (direct, values) = by_values(&at.address);
                let row = self.address(&Access { address: direct, ..at.clone() }, lane);
                let moved = self.expr(&(values * size), lane);
                self.b.ins().iadd(row, moved)
            }
            _ => {
                let e = self.expr(&at.address, lane);
                let e = self.times(e, size);
                self.b.ins().iadd(base, e)
            }
        }
    }

    /// Loads at the present width.
    pub(super) fn load(&mut self, at: &Access, mask: Option<Val>) -> Vals {
        let mask = mask.map(|m| self.stored(m.0 as usize));
        let flags = flags(at);
        let class = Class::of(at.dtype);
        let varying_mask = mask.as_ref().is_some_and(|(_, w)| *w > 1);
        if self.width == 1 || (at.along == Along::Uniform && !varying_mask) {
            let p = self.address(at, 0);
            let p = self.masked_address(p, &mask, 0);
            let x = self.scalar(|e| e.load_scalar(p, at.dtype, flags, 0));
            return self.splat(class, x);
        }
        if at.along == Along::Unit && !varying_mask {
            let p = self.address(at, 0);
            let p = self.masked_address(p, &mask, 0);
            return self.load_wide(p, at.dtype, flags);
        }
        if let Some(step) = self.lane_step(at).filter(|_| !varying_mask) {
            return self.load_apart(at, &mask, step);
        }
        let mut lanes: SmallVec<[Value; 16]> = SmallVec::new();
        for lane in 0..self.width {
            let p = self.address(at, lane);
            let p = self.masked_address(p, &mask, lane);
            let x = self.scalar(|e| e.load_scalar(p, at.dtype, flags, 0));
            lanes.push(x);
        }
        self.gather(class, &lanes)
    }

    /// Bytes from one lane of an access to the next, where that is one number for all and small enough to be a part of an
    /// instruction.
    fn lane_step(&self, at: &Access) -> Option<i32> {
        let (step, rest) = at.address.affine_in(&Atom::Loop(self.axis?))?;
        let bytes = step.as_const()?.checked_mul(at.dtype.size() as i64)?;
        let last = bytes.checked_mul(i64::from(self.width) - 1)?;
        let fixed = !rest.any_leaf(|a| matches!(a, Atom::Value(_)));
        i32::try_from(last).ok().and_then(|_| i32::try_from(bytes).ok()).filter(|_| fixed)
    }

    /// Loads lanes `step` bytes apart, all of them or none: one address, and where there is a mask one branch, which costs less
    /// than an address of each lane that may be the zeros'.
    fn load_apart(&mut self, at: &Access, mask: &Option<(Vals, u32)>, step: i32) -> Vals {
        let first = self.address(at, 0);
        let Some((mask, width)) = mask else { return self.lanes_apart(first, at.dtype, flags(at), step) };
        let zeros = self.constant(at.dtype, Scalar::zero(at.dtype));
        let m = self.mask_lane(mask, *width, 0);
        let (read, join) = (self.b.create_block(), self.b.create_block());
        let as_args = |x: &Vals| x.iter().map(|v| BlockArg::from(*v)).collect::<SmallVec<[BlockArg; 4]>>();
        let types: SmallVec<[Type; 4]> = zeros.iter().map(|v| self.b.func.dfg.value_type(*v)).collect();
        let loaded = types.into_iter().map(|ty| self.b.append_block_param(join, ty)).collect();
        self.b.ins().brif(m, read, &[], join, &as_args(&zeros));
        self.b.switch_to_block(read);
        self.b.seal_block(read);
        // The load must not be marked movable: outside of this block it would read what the mask excludes.
        let x = self.lanes_apart(first, at.dtype, MemFlagsData::new().with_notrap(), step);
        self.b.ins().jump(join, &as_args(&x));
        self.b.switch_to_block(join);
        self.b.seal_block(join);
        loaded
    }

    /// One lane of a load without a mask.
    pub(super) fn load_lane(&mut self, at: &Access, lane: u32) -> Value {
        let p = self.address(at, lane);
        self.load_scalar(p, at.dtype, flags(at), 0)
    }

    fn lanes_apart(&mut self, first: Value, dtype: DType, flags: MemFlagsData, step: i32) -> Vals {
        let load = |e: &mut Self, lane: u32| e.load_scalar(first, dtype, flags, lane as i32 * step);
        let lanes: SmallVec<[Value; 16]> =
            (0..self.width).map(|lane| self.scalar(|e| load(e, lane))).collect();
        self.gather(Class::of(dtype), &lanes)
    }

    fn masked_address(&mut self, p: Value, mask: &Option<(Vals, u32)>, lane: u32) -> Value {
        let Some((mask, width)) = mask else { return p };
        let m = self.mask_lane(mask, *width, lane);
        let zeros = host::value(&mut self.b, self.cx.pointer, host::ZEROS_NUMBER);
        self.b.ins().select(m, p, zeros)
    }

    fn mask_lane(&mut self, mask: &Vals, width: u32, lane: u32) -> Value {
        let saved = std::mem::replace(&mut self.width, width);
        let m = self.lane(Class::Mask, mask, if width == 1 { 0 } else { lane });
        self.width = saved;
        m
    }

    /// One element, `offset` bytes after an address.
    fn load_scalar(&mut self, p: Value, dtype: DType, flags: MemFlagsData, offset: i32) -> Value {
        let ins = self.b.ins();
        match dtype {
            DType::Bool => {
                let x = ins.load(types::I8, flags, p, offset);
                self.b.ins().icmp_imm_s(cranelift_codegen::ir::condcodes::IntCC::NotEqual, x, 0)
            }
            DType::U8 => ins.uload8(I32, flags, p, offset),
            DType::I8 => ins.sload8(I32, flags, p, offset),
            DType::I16 => ins.sload16(I32, flags, p, offset),
            DType::I32 => ins.load(I32, flags, p, offset),
            DType::I64 => ins.load(I64, flags, p, offset),
            DType::F32 => ins.load(types::F32, flags, p, offset),
            DType::BF16 => {
                let x = ins.uload16(I32, flags, p, offset);
                self.regs().bf16_to_f32(x)
            }
            DType::F16 => {
                let x = ins.uload16(I32, flags, p, offset);
                self.regs().f16_to_f32(x)
            }
            // `f64`: kernels have no others.
            _ => ins.load(types::F64, flags, p, offset),
        }
    }

    /// Loads neighbouring elements into all lanes.
    pub(super) fn load_wide(&mut self, p: Value, dtype: DType, flags: MemFlagsData) -> Vals {
        let class = Class::of(dtype);
        let step = (class.per_reg() as usize * dtype.size()) as i32;
        (0..self.reg_count(class)).map(|r| self.load_reg(p, r as i32 * step, dtype, flags)).collect()
    }

    fn load_reg(&mut self, p: Value, offset: i32, dtype: DType, flags: MemFlagsData) -> Value {
        let ins = self.b.ins();
        match dtype {
            DType::F32 => ins.load(F32X4, flags, p, offset),
            DType::I64 => ins.load(I64X2, flags, p, offset),
            DType::I32 => ins.load(I32X4, flags, p, offset),
            DType::I16 => ins.sload16x4(flags, p, offset),
            DType::BF16 => {
                let x = ins.uload16x4(flags, p, offset);
                self.regs().bf16_to_f32(x)
            }
            DType::F16 => {
                let x = ins.uload16x4(flags, p, offset);
                self.regs().f16_to_f32(x)
            }
            DType::U8 | DType::I8 | DType::Bool => {
                let x = ins.load(I32, flags, p, offset);
                let x = self.b.ins().scalar_to_vector(I32X4, x);
                let x = self.regs().bits(I8X16, x);
                if dtype == DType::I8 {
                    let x = self.b.ins().swiden_low(x);
                    return self.b.ins().swiden_low(x);
                }
                let x = self.b.ins().uwiden_low(x);
                let x = self.b.ins().uwiden_low(x);
                if dtype == DType::U8 {
                    return x;
                }
                let mut r = self.regs();
                let zero = r.i32(0);
                r.icmp(cranelift_codegen::ir::condcodes::IntCC::NotEqual, x, zero)
            }
            _ => ins.load(F64X2, flags, p, offset),
        }
    }

    /// Stores at the present width.
    pub(super) fn store(&mut self, at: &Access, value: Val, mask: Option<Val>, mode: StoreMode) {
        let class = Class::of(at.dtype);
        let x = self.get(value.0 as usize);
        let form = (at.dtype, self.inst(value).sixteen.has(at.dtype));
        let mask = mask.map(|m| self.stored(m.0 as usize));
        let varying_mask = mask.as_ref().is_some_and(|(_, w)| *w > 1);
        if self.width > 1 && mode == StoreMode::Write && !varying_mask {
            match at.along {
                Along::Unit => {
                    let p = self.address(at, 0);
                    return self.guarded(&mask, 0, |e| e.store_wide(p, form, &x));
                }
                Along::Uniform => {
                    // Any lane may win; the last one does.
                    let p = self.address(at, 0);
                    let last = self.lane(class, &x, self.width - 1);
                    return self.guarded(&mask, 0, |e| e.scalar(|e| e.store_scalar(p, form, last)));
                }
                Along::Lanes => {}
            }
        }
        // Lanes are checked in groups before they are stored: more addresses than registers would be spilled.
        for first in (0..self.width).step_by(TOGETHER) {
            let lanes = first..self.width.min(first + TOGETHER as u32);
            let places: SmallVec<[Value; TOGETHER]> =
                lanes.clone().map(|lane| self.address(at, lane)).collect();
            for (lane, p) in lanes.zip(places) {
                let s = self.lane(class, &x, lane);
                self.guarded(&mask, lane, |e| e.scalar(|e| e.store_lane(p, form, s, mode)));
            }
        }
    }

    /// Runs `f` where the mask's lane is true.
    fn guarded(&mut self, mask: &Option<(Vals, u32)>, lane: u32, f: impl FnOnce(&mut Self)) {
        let Some((mask, width)) = mask else { return f(self) };
        let m = self.mask_lane(mask, *width, lane);
        let (yes, join) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(m, yes, &[], join, &[]);
        self.b.switch_to_block(yes);
        self.b.seal_block(yes);
        f(self);
        self.b.ins().jump(join, &[]);
        self.b.switch_to_block(join);
        self.b.seal_block(join);
    }

    /// Writes or combines one element.
    fn store_lane(&mut self, p: Value, form: Form, x: Value, mode: StoreMode) {
        let (dtype, exact) = form;
        let op = match mode {
            StoreMode::Write => None,
            StoreMode::Add => Some(kernel_ir::ReduceOp::Sum),
            StoreMode::Reduce(op) => Some(op),
        };
        let x = match op {
            None => x,
            Some(op) => {
                let old = self.load_scalar(p, dtype, MemFlagsData::new().with_notrap(), 0);
                self.combine(op, dtype, &SmallVec::from_elem(old, 1), &SmallVec::from_elem(x, 1))[0]
            }
        };
        self.store_scalar(p, (dtype, exact && op.is_none()), x);
    }

    fn store_scalar(&mut self, p: Value, (dtype, exact): Form, x: Value) {
        let flags = MemFlagsData::new().with_notrap();
        match dtype {
            DType::U8 | DType::I8 => self.b.ins().istore8(flags, x, p, 0),
            DType::I16 => self.b.ins().istore16(flags, x, p, 0),
            DType::BF16 => {
                let mut r = self.regs();
                let x = if exact { r.upper_bits(x) } else { r.f32_to_bf16(x) };
                self.b.ins().istore16(flags, x, p, 0)
            }
            DType::F16 => {
                let x = self.regs().f32_to_f16(x);
                self.b.ins().istore16(flags, x, p, 0)
            }
            _ => self.b.ins().store(flags, x, p, 0),
        };
    }

    /// Stores all lanes to neighbouring elements.
    fn store_wide(&mut self, p: Value, (dtype, exact): Form, x: &Vals) {
        let step = (Class::of(dtype).per_reg() as usize * dtype.size()) as i32;
        for (r, &x) in x.iter().enumerate() {
            let packed = pack(&mut self.regs(), (dtype, exact), x);
            self.b.ins().store(MemFlagsData::new().with_notrap(), packed, p, r as i32 * step);
        }
    }

    /// Runs `f` with one lane.
    pub(super) fn scalar<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let saved = std::mem::replace(&mut self.width, 1);
        let r = f(self);
        self.width = saved;
        r
    }
}

/// The dtype of what is stored, and whether the values are numbers of it, so that they need not be rounded.
type Form = (DType, bool);

/// A register's lanes at their size in memory, in the low bytes.
fn pack(r: &mut Regs<'_, '_>, (dtype, exact): Form, x: Value) -> Value {
    let low = |r: &mut Regs<'_, '_>, x: Value, ty: Type| {
        let x = r.bits(ty, x);
        r.b.ins().extractlane(x, 0)
    };
    match dtype {
        DType::BF16 | DType::F16 => {
            let bits = match dtype {
                DType::BF16 if exact => r.upper_bits(x),
                DType::BF16 => r.f32_to_bf16(x),
                _ => r.f32_to_f16(x),
            };
            let x = r.b.ins().unarrow(bits, bits);
            low(r, x, I64X2)
        }
        DType::I16 => {
            let x = r.b.ins().snarrow(x, x);
            debug_assert_eq!(r.type_of(x).lane_type(), I16);
            low(r, x, I64X2)
        }
        DType::I8 => {
            let x = r.b.ins().snarrow(x, x);
            let x = r.b.ins().snarrow(x, x);
            low(r, x, I32X4)
        }
        DType::U8 | DType::Bool => {
            let x = if dtype == DType::Bool { r.and_const(x, 1) } else { x };
            let x = r.b.ins().snarrow(x, x);
            let x = r.b.ins().unarrow(x, x);
            low(r, x, I32X4)
        }
        _ => x,
    }
}
