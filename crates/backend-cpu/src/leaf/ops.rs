//! Scalar operators on the registers of a leaf. Those that would be a call for each lane have no lowering: `None`.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use ir_core::{DType, Scalar};
use kernel_ir::ScalarOp;

use super::build::{Build, by_width};
use super::codes as c;
use super::ir::{Inst, V};
use super::lower::{Input, Lower, Regs};
use crate::math::{Elementary, Lanes, TRIG_LIMIT, Trig};
use crate::vir::Class;

impl Lower<'_> {
    /// Applies an operator; `dtype` is that of the operands (of the branches for `select`).
    pub(super) fn op(&mut self, op: ScalarOp, dtype: DType, args: &[Regs]) -> Option<Regs> {
        let class = Class::of(dtype);
        if let ScalarOp::Select = op {
            return Some(self.select(&args[0], &args[1], &args[2]));
        }
        if let Some((f, i)) = comparison(op) {
            return Some(self.compare((f, i), class, &args[0], &args[1]));
        }
        match class {
            Class::F32 | Class::F64 => self.float_op(op, class, args),
            Class::I32 | Class::I64 => {
                let r = self.int_op(op, dtype, class, args)?;
                Some(self.wrap(dtype, r))
            }
            Class::Mask => self.bool_op(op, args),
        }
    }

    /// Minimum or maximum of a number that is not NaN and any value: one instruction.
    pub(super) fn clamp_by(&mut self, op: ScalarOp, number: &Regs, x: &Regs) -> Regs {
        let smaller = op == ScalarOp::Min;
        self.map2(number, x, |b, n, x| if smaller { b.smaller(n, x) } else { b.larger(n, x) })
    }

    pub(super) fn map1(&mut self, x: &Regs, f: impl Fn(&mut Build, V) -> V) -> Regs {
        x.iter().map(|x| f(&mut self.b, *x)).collect()
    }
    pub(super) fn map2(&mut self, x: &Regs, y: &Regs, f: impl Fn(&mut Build, V, V) -> V) -> Regs {
        x.iter().zip(y).map(|(x, y)| f(&mut self.b, *x, *y)).collect()
    }

    /// The masks of two registers of 64-bit lanes as one.
    pub(super) fn join(&mut self, masks: Regs) -> Regs {
        match masks[..] {
            [low, high] => Regs::from_elem(self.b.join_masks(low, high), 1),
            _ => masks,
        }
    }

    /// `mask ? x : y`.
    pub(super) fn select(&mut self, mask: &Regs, x: &Regs, y: &Regs) -> Regs {
        if x[0].class == Class::Mask {
            let yes = self.b.and(mask[0], x[0]);
            let no = self.b.and_not(mask[0], y[0]);
            return Regs::from_elem(self.b.or(yes, no), 1);
        }
        (0..x.len())
            .map(|n| {
                let mask = self.b.part_of_mask(mask[0], n as u8, x[n].class);
                self.b.select(mask, x[n], y[n])
            })
            .collect()
    }

    pub(super) fn compare(&mut self, (f, i): (FloatCC, IntCC), class: Class, x: &Regs, y: &Regs) -> Regs {
        let masks = match class {
            Class::F32 | Class::F64 => self.map2(x, y, |b, x, y| b.fcmp(f, x, y)),
            Class::I32 | Class::I64 => self.map2(x, y, |b, x, y| b.icmp(i, x, y)),
            Class::Mask => return Regs::from_elem(self.compare_masks(i, x[0], y[0]), 1),
        };
        self.join(masks)
    }

    /// Truth values as 0 and 1.
    fn compare_masks(&mut self, cc: IntCC, x: V, y: V) -> V {
        let b = &mut self.b;
        match cc {
            IntCC::Equal => b.equal_masks(x, y),
            IntCC::NotEqual => b.xor(x, y),
            IntCC::SignedLessThan => b.and_not(x, y),
            IntCC::SignedGreaterThan => b.and_not(y, x),
            IntCC::SignedLessThanOrEqual => {
                let not = b.not_mask(x);
                b.or(not, y)
            }
            _ => {
                let not = b.not_mask(y);
                b.or(not, x)
            }
        }
    }

    fn bool_op(&mut self, op: ScalarOp, args: &[Regs]) -> Option<Regs> {
        let x = args[0][0];
        let y = args.get(1).map(|y| y[0]);
        let r = match (op, y) {
            (ScalarOp::Add | ScalarOp::Or | ScalarOp::Max, Some(y)) => self.b.or(x, y),
            (ScalarOp::Mul | ScalarOp::And | ScalarOp::Min, Some(y)) => self.b.and(x, y),
            (ScalarOp::Xor | ScalarOp::Sub, Some(y)) => self.b.xor(x, y),
            (ScalarOp::Not, _) => self.b.not_mask(x),
            _ => return None,
        };
        Some(Regs::from_elem(r, 1))
    }

    /// Brings 8- and 16-bit results back into range.
    pub(super) fn wrap(&mut self, dtype: DType, x: Regs) -> Regs {
        let by = match dtype {
            DType::U8 => return self.map1(&x, |b, x| b.and_const(x, 0xff)),
            DType::I8 => 24,
            DType::I16 => 16,
            _ => return x,
        };
        self.map1(&x, |b, x| {
            let x = b.shl(x, by);
            b.sshr(x, by)
        })
    }

    fn int_op(&mut self, op: ScalarOp, dtype: DType, class: Class, args: &[Regs]) -> Option<Regs> {
        let x = &args[0];
        let code = match op {
            ScalarOp::Add => by_width(class, c::VPADDD, c::VPADDQ),
            ScalarOp::Sub => by_width(class, c::VPSUBD, c::VPSUBQ),
            ScalarOp::Mul if class.wide() => {
                return Some(self.map2(x, &args[1], |b, x, y| b.multiply_wide(x, y)));
            }
            ScalarOp::Mul => c::VPMULLD,
            ScalarOp::And => by_width(class, c::VPANDD, c::VPANDQ),
            ScalarOp::Or => by_width(class, c::VPORD, c::VPORQ),
            ScalarOp::Xor => by_width(class, c::VPXORD, c::VPXORQ),
            ScalarOp::Min => return Some(self.map2(x, &args[1], |b, x, y| b.extreme_integer(true, x, y))),
            ScalarOp::Max => return Some(self.map2(x, &args[1], |b, x, y| b.extreme_integer(false, x, y))),
            // A count that is out of range, read as unsigned, shifts all bits out.
            ScalarOp::Shl => by_width(class, c::VPSLLVD, c::VPSLLVQ),
            ScalarOp::Shr => return Some(self.shift_right(dtype, class, x, &args[1])),
            ScalarOp::Abs if class.wide() => return Some(self.map1(x, |b, x| b.absolute_wide(x))),
            ScalarOp::Abs => return Some(self.map1(x, |b, x| b.one(c::VPABSD, class, x))),
            ScalarOp::Not => {
                let ones = self.constant(if class.wide() { DType::I64 } else { DType::I32 }, Scalar::Int(-1));
                return Some(self.map2(x, &ones, |b, x, y| b.xor(x, y)));
            }
            ScalarOp::Neg => {
                let zero = self.constant(dtype, Scalar::Int(0));
                return Some(self.map2(&zero, x, |b, x, y| b.isub(x, y)));
            }
            ScalarOp::Floor | ScalarOp::Ceil | ScalarOp::Trunc | ScalarOp::Round => return Some(x.clone()),
            _ => return None,
        };
        Some(self.map2(x, &args[1], |b, x, y| b.two(code, class, x, y)))
    }

    /// A count that is out of range, also a negative one, counts as the last.
    fn shift_right(&mut self, dtype: DType, class: Class, x: &Regs, by: &Regs) -> Regs {
        if class.wide() {
            return self.map2(x, by, |b, x, y| b.shift_right_wide(x, y));
        }
        let last = self.constant(DType::I32, Scalar::Int(dtype.size() as i64 * 8 - 1));
        let by = self.map2(by, &last, |b, x, y| b.two(c::VPMINUD, class, x, y));
        self.map2(x, &by, |b, x, y| b.two(c::VPSRAVD, class, x, y))
    }

    fn float_op(&mut self, op: ScalarOp, class: Class, args: &[Regs]) -> Option<Regs> {
        let x = &args[0];
        if let Some(y) = args.get(1) {
            return match op {
                ScalarOp::Add => Some(self.map2(x, y, |b, x, y| b.fadd(x, y))),
                ScalarOp::Sub => Some(self.map2(x, y, |b, x, y| b.fsub(x, y))),
                ScalarOp::Mul => Some(self.map2(x, y, |b, x, y| b.fmul(x, y))),
                ScalarOp::Div => Some(self.map2(x, y, |b, x, y| b.fdiv(x, y))),
                ScalarOp::Min => Some(self.map2(x, y, |b, x, y| extremum(b, true, x, y))),
                ScalarOp::Max => Some(self.map2(x, y, |b, x, y| extremum(b, false, x, y))),
                ScalarOp::CopySign => Some(self.map2(x, y, copysign)),
                _ => None,
            };
        }
        let rounding = match op {
            ScalarOp::Round => Some(0),
            ScalarOp::Floor => Some(1),
            ScalarOp::Ceil => Some(2),
            ScalarOp::Trunc => Some(3),
            _ => None,
        };
        if let Some(mode) = rounding {
            return Some(self.map1(x, |b, x| b.round(x, mode)));
        }
        match op {
            ScalarOp::Neg => Some(self.map1(x, |b, x| {
                let sign = sign(b, x.class);
                b.xor(x, sign)
            })),
            ScalarOp::Abs => Some(self.map1(x, |b, x| b.fabs(x))),
            ScalarOp::Sqrt => Some(self.map1(x, root)),
            ScalarOp::Rsqrt => {
                let one =
                    self.constant(if class.wide() { DType::F64 } else { DType::F32 }, Scalar::Float(1.0));
                Some(self.map2(&one, x, |b, one, x| {
                    let s = root(b, x);
                    b.fdiv(one, s)
                }))
            }
            _ if class == Class::F32 => self.elementary(op, x),
            _ => None,
        }
    }

    fn elementary(&mut self, op: ScalarOp, x: &Regs) -> Option<Regs> {
        if matches!(op, ScalarOp::Sin | ScalarOp::Cos) {
            return Some(self.sin_or_cos(op, x));
        }
        let f: fn(&mut Build, V) -> V = match op {
            ScalarOp::Exp => Build::exp_f32,
            ScalarOp::Exp2 => Build::exp2_f32,
            ScalarOp::Expm1 => Build::expm1_f32,
            ScalarOp::Log => Build::log_f32,
            ScalarOp::Log2 => Build::log2_f32,
            ScalarOp::Log1p => Build::log1p_f32,
            ScalarOp::Tanh => Build::tanh_f32,
            ScalarOp::Erf => Build::erf_f32,
            _ => return None,
        };
        Some(self.map1(x, f))
    }
}

impl Lower<'_> {
    /// Sine or cosine; large arguments by a call for each lane.
    fn sin_or_cos(&mut self, op: ScalarOp, x: &Regs) -> Regs {
        let wide = self.between(Class::F32, Class::F64, x);
        let (r, quadrants): (Regs, Regs) = wide.iter().map(|x| self.b.reduce_f64(*x)).unzip();
        let r = self.between(Class::F64, Class::F32, &r);
        let bits: Regs = quadrants.iter().map(|q| V { class: Class::I64, ..*q }).collect();
        let quadrant = self.between(Class::I64, Class::I32, &bits);
        let fast = self.b.sin_cos(r[0], quadrant[0], i32::from(op == ScalarOp::Cos));
        let limit = self.b.f32(TRIG_LIMIT);
        let size = self.b.fabs(x[0]);
        // Not less than: also true for NaN and infinity.
        let mask = self.b.fcmp(FloatCC::UnorderedOrGreaterThanOrEqual, size, limit);
        let slots = [self.slot(Input::Host), self.slot(Input::Function(op))];
        let d = self.b.value(Class::F32);
        self.b.push(Inst::Assign { d, a: fast });
        self.b.push(Inst::Each { d, a: x[0], mask, slots });
        Regs::from_elem(d, 1)
    }
}

fn comparison(op: ScalarOp) -> Option<(FloatCC, IntCC)> {
    Some(match op {
        ScalarOp::Eq => (FloatCC::Equal, IntCC::Equal),
        ScalarOp::Ne => (FloatCC::NotEqual, IntCC::NotEqual),
        ScalarOp::Lt => (FloatCC::LessThan, IntCC::SignedLessThan),
        ScalarOp::Le => (FloatCC::LessThanOrEqual, IntCC::SignedLessThanOrEqual),
        ScalarOp::Gt => (FloatCC::GreaterThan, IntCC::SignedGreaterThan),
        ScalarOp::Ge => (FloatCC::GreaterThanOrEqual, IntCC::SignedGreaterThanOrEqual),
        _ => return None,
    })
}

fn sign(b: &mut Build, class: Class) -> V {
    if class.wide() { b.wide(1 << 63, class) } else { b.narrow(1 << 31, class) }
}

fn root(b: &mut Build, x: V) -> V {
    b.one(by_width(x.class, c::VSQRTPS, c::VSQRTPD), x.class, x)
}

fn copysign(b: &mut Build, x: V, s: V) -> V {
    let magnitude = b.fabs(x);
    let sign = sign(b, x.class);
    let s = b.and(s, sign);
    b.or(magnitude, s)
}

/// The smaller or larger, NaN where either is: the instruction gives `y` for a NaN on either side.
fn extremum(b: &mut Build, smaller: bool, x: V, y: V) -> V {
    let best = if smaller { b.smaller(x, y) } else { b.larger(x, y) };
    let nan = b.is_nan(x);
    b.select(nan, x, best)
}
