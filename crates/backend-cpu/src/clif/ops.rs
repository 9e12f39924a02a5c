//! Scalar operators on values: every [`ScalarOp`] for every class of dtype. Operators without short machine code are a call for
//! each lane (`calls`).

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::F32;
use cranelift_codegen::ir::{InstBuilder, Value};
use ir_core::{DType, Scalar};
use kernel_ir::ScalarOp;
use smallvec::SmallVec;

use super::emit::Emit;
use super::regs::Regs;
use super::values::{Class, Vals};
use super::{calls, host};
use crate::math::{Elementary, Lanes, TRIG_LIMIT};

impl<'f> Emit<'f, '_> {
    /// Applies an operator; `dtype` is that of the operands (of the branches for `select`).
    pub(super) fn op(&mut self, op: ScalarOp, dtype: DType, args: &[Vals]) -> Vals {
        let class = Class::of(dtype);
        match op {
            ScalarOp::Select => self.select(class, &args[0], &args[1], &args[2]),
            ScalarOp::Eq => self.compare(FloatCC::Equal, IntCC::Equal, class, args),
            ScalarOp::Ne => self.compare(FloatCC::NotEqual, IntCC::NotEqual, class, args),
            ScalarOp::Lt => self.compare(FloatCC::LessThan, IntCC::SignedLessThan, class, args),
            ScalarOp::Le => self.compare(FloatCC::LessThanOrEqual, IntCC::SignedLessThanOrEqual, class, args),
            ScalarOp::Gt => self.compare(FloatCC::GreaterThan, IntCC::SignedGreaterThan, class, args),
            ScalarOp::Ge => {
                self.compare(FloatCC::GreaterThanOrEqual, IntCC::SignedGreaterThanOrEqual, class, args)
            }
            _ => match class {
                Class::F32 | Class::F64 => self.float_op(op, class, args),
                Class::I32 | Class::I64 => {
                    let r = self.int_op(op, dtype, class, args);
                    self.wrap(dtype, r)
                }
                Class::Mask => self.bool_op(op, args),
            },
        }
    }

    /// Minimum or maximum of a number that is not NaN and any value: one instruction.
    pub(super) fn clamp_by(&mut self, op: ScalarOp, number: &Vals, x: &Vals) -> Vals {
        self.map2(number, x, |r, c, x| r.extremum_of_number(op == ScalarOp::Min, c, x))
    }

    fn compare(&mut self, f: FloatCC, i: IntCC, class: Class, args: &[Vals]) -> Vals {
        let (x, y) = (&args[0], &args[1]);
        match class {
            Class::F32 => self.map2(x, y, |r, x, y| r.fcmp(f, x, y)),
            Class::I32 => self.map2(x, y, |r, x, y| r.icmp(i, x, y)),
            Class::F64 => {
                let m = self.map2(x, y, |r, x, y| r.fcmp(f, x, y));
                self.narrow_mask(m)
            }
            Class::I64 => {
                let m = self.map2(x, y, |r, x, y| r.icmp(i, x, y));
                self.narrow_mask(m)
            }
            Class::Mask => {
                // True is -1 in lanes, 1 in a scalar: compare as 0 and 1.
                let (x, y) = (self.mask_bits(x), self.mask_bits(y));
                self.map2(&x, &y, |r, x, y| r.icmp(i, x, y))
            }
        }
    }

    /// A mask as the integers 0 and 1.
    pub(super) fn mask_bits(&mut self, x: &Vals) -> Vals {
        if self.width == 1 {
            return x.clone();
        }
        self.map1(x, |r, x| r.and_const(x, 1))
    }

    fn bool_op(&mut self, op: ScalarOp, args: &[Vals]) -> Vals {
        match op {
            ScalarOp::Add | ScalarOp::Or | ScalarOp::Max => {
                self.map2(&args[0], &args[1], |r, x, y| r.or(x, y))
            }
            ScalarOp::Mul | ScalarOp::And | ScalarOp::Min => {
                self.map2(&args[0], &args[1], |r, x, y| r.and(x, y))
            }
            ScalarOp::Xor | ScalarOp::Sub => self.map2(&args[0], &args[1], |r, x, y| r.xor(x, y)),
            ScalarOp::Not => {
                let ones = self.constant(DType::Bool, Scalar::Bool(true));
                self.map2(&args[0], &ones, |r, x, y| r.xor(x, y))
            }
            // The reference returns `a` for operators without a meaning on truth values.
            _ => args[0].clone(),
        }
    }

    /// Brings 8- and 16-bit results back into range.
    pub(super) fn wrap(&mut self, dtype: DType, x: Vals) -> Vals {
        let by = match dtype {
            DType::U8 => return self.map1(&x, |r, x| r.and_const(x, 0xff)),
            DType::I8 => 24,
            DType::I16 => 16,
            _ => return x,
        };
        self.map1(&x, |r, x| {
            let x = r.shl(x, by);
            r.sshr(x, by)
        })
    }

    fn int_op(&mut self, op: ScalarOp, dtype: DType, class: Class, args: &[Vals]) -> Vals {
        let a = &args[0];
        match op {
            ScalarOp::Add => self.map2(a, &args[1], |r, x, y| r.iadd(x, y)),
            ScalarOp::Sub => self.map2(a, &args[1], |r, x, y| r.isub(x, y)),
            ScalarOp::Mul => self.map2(a, &args[1], |r, x, y| r.b.ins().imul(x, y)),
            ScalarOp::And => self.map2(a, &args[1], |r, x, y| r.and(x, y)),
            ScalarOp::Or => self.map2(a, &args[1], |r, x, y| r.or(x, y)),
            ScalarOp::Xor => self.map2(a, &args[1], |r, x, y| r.xor(x, y)),
            ScalarOp::Not => self.map1(a, |r, x| r.b.ins().bnot(x)),
            ScalarOp::Neg => self.map1(a, |r, x| r.b.ins().ineg(x)),
            ScalarOp::Abs if class == Class::I64 && self.width > 1 => {
                let zero = self.constant(dtype, Scalar::Int(0));
                let minus = self.map2(&zero, a, |r, x, y| r.isub(x, y));
                self.map2(a, &minus, |r, x, m| {
                    let z = r.i64(0);
                    let c = r.icmp(IntCC::SignedLessThan, x, z);
                    r.select(c, m, x)
                })
            }
            ScalarOp::Abs => self.map1(a, |r, x| r.b.ins().iabs(x)),
            ScalarOp::Min => self.map2(a, &args[1], |r, x, y| {
                let c = r.icmp(IntCC::SignedLessThan, x, y);
                r.select(c, x, y)
            }),
            ScalarOp::Max => self.map2(a, &args[1], |r, x, y| {
                let c = r.icmp(IntCC::SignedGreaterThan, x, y);
                r.select(c, x, y)
            }),
            ScalarOp::Floor | ScalarOp::Ceil | ScalarOp::Trunc | ScalarOp::Round => a.clone(),
            ScalarOp::Div | ScalarOp::Rem => {
                let (a, b) = (a.clone(), args[1].clone());
                self.each_lane(class, &[&a, &b], |e, s| e.divide(op == ScalarOp::Rem, s[0], s[1]))
            }
            ScalarOp::Shl | ScalarOp::Shr => {
                let (a, b) = (a.clone(), args[1].clone());
                self.each_lane(class, &[&a, &b], |e, s| e.shift(op == ScalarOp::Shl, dtype, s[0], s[1]))
            }
            _ => self.call_each(op, dtype, args),
        }
    }

    /// Truncated quotient or remainder of scalars; 0 for a zero divisor, wrapping for the smallest integer by -1.
    fn divide(&mut self, rem: bool, a: Value, b: Value) -> Value {
        let ty = self.b.func.dfg.value_type(b);
        let (zero, one) = (self.b.ins().iconst(ty, 0), self.b.ins().iconst(ty, 1));
        let is_zero = self.b.ins().icmp(IntCC::Equal, b, zero);
        let minus = self.b.ins().iadd_imm_s(b, 1);
        let is_minus = self.b.ins().icmp(IntCC::Equal, minus, zero);
        // The machine traps on both divisors: divide by 1 instead and choose the result afterwards.
        let bad = self.b.ins().bor(is_zero, is_minus);
        let safe = self.b.ins().select(bad, one, b);
        let q = if rem { self.b.ins().srem(a, safe) } else { self.b.ins().sdiv(a, safe) };
        let negated = self.b.ins().ineg(a);
        let by_minus = if rem { zero } else { negated };
        let r = self.b.ins().select(is_minus, by_minus, q);
        self.b.ins().select(is_zero, zero, r)
    }

    fn shift(&mut self, left: bool, dtype: DType, a: Value, by: Value) -> Value {
        let ty = self.b.func.dfg.value_type(by);
        let width = dtype.size() as i64 * 8;
        let limit = self.b.ins().iconst(ty, width);
        let inside = self.b.ins().icmp(IntCC::UnsignedLessThan, by, limit);
        let last = self.b.ins().iconst(ty, width - 1);
        let count = self.b.ins().select(inside, by, last);
        if !left {
            return self.b.ins().sshr(a, count);
        }
        let r = self.b.ins().ishl(a, count);
        let zero = self.b.ins().iconst(ty, 0);
        self.b.ins().select(inside, r, zero)
    }

    /// Applies scalar code to each lane.
    pub(super) fn each_lane(
        &mut self,
        class: Class,
        args: &[&Vals],
        mut f: impl FnMut(&mut Self, &[Value]) -> Value,
    ) -> Vals {
        let mut out: SmallVec<[Value; 16]> = SmallVec::new();
        for lane in 0..self.width {
            let scalars: SmallVec<[Value; 3]> = args.iter().map(|a| self.lane(class, a, lane)).collect();
            out.push(f(self, &scalars));
        }
        self.gather(class, &out)
    }

    /// Calls the reference function for each lane.
    fn call_each(&mut self, op: ScalarOp, dtype: DType, args: &[Vals]) -> Vals {
        let class = Class::of(dtype);
        let args: SmallVec<[&Vals; 3]> = args.iter().collect();
        self.each_lane(class, &args, |e, s| {
            let call = calls::of(op, class);
            e.call(&call, s)
        })
    }

    fn float_op(&mut self, op: ScalarOp, class: Class, args: &[Vals]) -> Vals {
        let a = &args[0];
        let single = class == Class::F32;
        match op {
            ScalarOp::Add => self.map2(a, &args[1], |r, x, y| r.fadd(x, y)),
            ScalarOp::Sub => self.map2(a, &args[1], |r, x, y| r.fsub(x, y)),
            ScalarOp::Mul => self.map2(a, &args[1], |r, x, y| r.fmul(x, y)),
            ScalarOp::Div => self.map2(a, &args[1], |r, x, y| r.fdiv(x, y)),
            ScalarOp::Min => self.map2(a, &args[1], |r, x, y| r.extremum(true, x, y)),
            ScalarOp::Max => self.map2(a, &args[1], |r, x, y| r.extremum(false, x, y)),
            ScalarOp::CopySign => self.map2(a, &args[1], |r, x, y| r.copysign(x, y)),
            ScalarOp::Neg => self.map1(a, |r, x| r.b.ins().fneg(x)),
            ScalarOp::Abs => self.map1(a, |r, x| r.b.ins().fabs(x)),
            ScalarOp::Floor => self.map1(a, |r, x| r.b.ins().floor(x)),
            ScalarOp::Ceil => self.map1(a, |r, x| r.b.ins().ceil(x)),
            ScalarOp::Trunc => self.map1(a, |r, x| r.b.ins().trunc(x)),
            ScalarOp::Round => self.map1(a, |r, x| r.b.ins().nearest(x)),
            ScalarOp::Sqrt => self.map1(a, |r, x| r.b.ins().sqrt(x)),
            ScalarOp::Rsqrt => self.map1(a, |r, x| {
                let s = r.b.ins().sqrt(x);
                let one = r.float_like(x, 1.0);
                r.fdiv(one, s)
            }),
            ScalarOp::Exp if single => self.map1(a, |r, x| r.exp_f32(x)),
            ScalarOp::Exp2 if single => self.map1(a, |r, x| r.exp2_f32(x)),
            ScalarOp::Expm1 if single => self.map1(a, |r, x| r.expm1_f32(x)),
            ScalarOp::Log if single => self.map1(a, |r, x| r.log_f32(x)),
            ScalarOp::Log2 if single => self.map1(a, |r, x| r.log2_f32(x)),
            ScalarOp::Log1p if single => self.map1(a, |r, x| r.log1p_f32(x)),
            ScalarOp::Tanh if single => self.map1(a, |r, x| r.tanh_f32(x)),
            ScalarOp::Erf if single => self.map1(a, |r, x| r.erf_f32(x)),
            ScalarOp::Sin if single => self.trig(op, 0, a.clone()),
            ScalarOp::Cos if single => self.trig(op, 1, a.clone()),
            // Calls: f64 functions, and those that are rare in f32.
            ScalarOp::Exp
            | ScalarOp::Exp2
            | ScalarOp::Expm1
            | ScalarOp::Log
            | ScalarOp::Log2
            | ScalarOp::Log1p
            | ScalarOp::Tanh
            | ScalarOp::Erf
            | ScalarOp::Sin
            | ScalarOp::Cos
            | ScalarOp::Rem
            | ScalarOp::Pow
            | ScalarOp::Atan2
            | ScalarOp::NextAfter
            | ScalarOp::Log10
            | ScalarOp::Tan
            | ScalarOp::Asin
            | ScalarOp::Acos
            | ScalarOp::Atan
            | ScalarOp::Sinh
            | ScalarOp::Cosh
            | ScalarOp::Asinh
            | ScalarOp::Acosh
            | ScalarOp::Atanh
            | ScalarOp::Erfc
            | ScalarOp::Erfinv
            | ScalarOp::Lgamma
            | ScalarOp::Digamma
            | ScalarOp::ChebyshevT
            | ScalarOp::ChebyshevU
            | ScalarOp::ChebyshevV
            | ScalarOp::ChebyshevW
            | ScalarOp::HermiteH
            | ScalarOp::HermiteHe
            | ScalarOp::LaguerreL
            | ScalarOp::LegendreP
            | ScalarOp::Igamma
            | ScalarOp::Igammac => {
                let dtype = if single { DType::F32 } else { DType::F64 };
                self.call_each(op, dtype, args)
            }
            // Meaningless on floats (refused by the verifier) or handled by the caller.
            ScalarOp::And
            | ScalarOp::Or
            | ScalarOp::Xor
            | ScalarOp::Shl
            | ScalarOp::Shr
            | ScalarOp::Not
            | ScalarOp::Philox
            | ScalarOp::Eq
            | ScalarOp::Ne
            | ScalarOp::Lt
            | ScalarOp::Le
            | ScalarOp::Gt
            | ScalarOp::Ge
            | ScalarOp::Select => a.clone(),
        }
    }

    /// Sine or cosine: polynomial code, and where arguments are too large for its reduction a call. Which it is depends on the
    /// lane's own argument, not on those of its neighbours.
    fn trig(&mut self, op: ScalarOp, quadrant: i32, x: Vals) -> Vals {
        let fast = self.map1(&x, |r, x| r.sin_cos_f32(x, quadrant));
        let limit = self.constant(DType::F32, Scalar::Float(f64::from(TRIG_LIMIT)));
        // Not less than: also true for NaN and infinity.
        let large = self.map2(&x, &limit, |r, x, limit| {
            let a = r.b.ins().fabs(x);
            r.fcmp(FloatCC::UnorderedOrGreaterThanOrEqual, a, limit)
        });
        let any = self.any(&large);
        let tys: Vec<_> = fast.iter().map(|v| self.b.func.dfg.value_type(*v)).collect();
        let (slow, join) = (self.b.create_block(), self.b.create_block());
        for ty in tys {
            self.b.append_block_param(join, ty);
        }
        let args: Vec<_> = fast.iter().map(|v| (*v).into()).collect();
        self.b.ins().brif(any, slow, &[], join, &args);
        self.b.switch_to_block(slow);
        self.b.seal_block(slow);
        let called = self.call_each(op, DType::F32, &[x]);
        let called = self.select(Class::F32, &large, &called, &fast);
        let called: Vec<_> = called.iter().map(|v| (*v).into()).collect();
        self.b.ins().jump(join, &called);
        self.b.switch_to_block(join);
        self.b.seal_block(join);
        self.b.block_params(join).iter().copied().collect()
    }

    /// Whether any lane of a 32-bit mask is set, as `i8`.
    fn any(&mut self, mask: &Vals) -> Value {
        let mut all = mask[0];
        for &m in &mask[1..] {
            all = self.b.ins().bor(all, m);
        }
        if self.width == 1 { all } else { self.b.ins().vany_true(all) }
    }

    /// A call of a host function on scalars.
    pub(super) fn call(&mut self, call: &calls::Call, args: &[Value]) -> Value {
        let pointer = self.cx.pointer;
        let mut sig = cranelift_codegen::ir::Signature::new(self.cx.conv);
        let param = cranelift_codegen::ir::AbiParam::new;
        sig.params.extend(args.iter().map(|_| param(call.ty)));
        sig.returns.push(param(call.ty));
        let sig = self.b.import_signature(sig);
        let address = host::value(&mut self.b, pointer, call.number);
        let inst = self.b.ins().call_indirect(sig, address, args);
        self.b.inst_results(inst)[0]
    }
}

impl Regs<'_, '_> {
    /// The smaller or larger, NaN where either is: the two-operand instruction gives `y` for a NaN on either side, so only
    /// one in `x` has to be put back.
    pub(super) fn extremum(&mut self, smaller: bool, x: Value, y: Value) -> Value {
        let best = if smaller { self.smaller(x, y) } else { self.larger(x, y) };
        let nan = self.is_nan(x);
        self.select(nan, x, best)
    }

    /// The same where `x` is known not to be NaN.
    fn extremum_of_number(&mut self, smaller: bool, x: Value, y: Value) -> Value {
        if smaller { self.smaller(x, y) } else { self.larger(x, y) }
    }

    fn copysign(&mut self, x: Value, s: Value) -> Value {
        if self.type_of(x).lane_type() == F32 {
            return self.copysign_f32(x, s);
        }
        if !self.wide {
            return self.b.ins().fcopysign(x, s);
        }
        let ty = self.ty(cranelift_codegen::ir::types::I64);
        let float = self.type_of(x);
        let (x, s) = (self.bits(ty, x), self.bits(ty, s));
        let (rest, sign) = (self.i64(i64::MAX), self.i64(i64::MIN));
        let (x, s) = (self.and(x, rest), self.and(s, sign));
        let r = self.or(x, s);
        self.bits(float, r)
    }
}
