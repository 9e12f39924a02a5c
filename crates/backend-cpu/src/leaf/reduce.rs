//! Reductions: over the points of the axis into accumulators of the loop, over the loops of a stage into values.

use ir_core::DType;
use kernel_ir::{AccId, ReduceOp, ScalarOp, Val};

use super::build::by_width;
use super::codes as c;
use super::encode::Constant;
use super::ir::{Accumulator, How, Inst};
use super::loops::Carried;
use super::lower::{Lower, Regs, bits};
use crate::math::Lanes;
use crate::vir::{Class, VKind};

impl Lower<'_> {
    /// Combines a value into what a reduction carries, or into its value so far where the loops are unrolled.
    pub(super) fn reduce_turn(&mut self, acc: AccId, value: Val, position: Option<Val>) -> Option<()> {
        let decl = self.kernel.accs[acc.0 as usize].clone();
        if Class::of(self.dtype(value)) != Class::of(decl.dtype) {
            return None;
        }
        let Some(op) = decl.op.combine() else { return self.place_of_best(acc, value, position) };
        let carried = self.carried.get(&acc).map(|c| c.value.clone());
        let old = match carried.as_ref().or(self.results.get(&acc)) {
            Some(old) => old.clone(),
            None => self.identity(acc),
        };
        let new = match self.factors(decl.op, decl.dtype, value) {
            Some((x, y)) => {
                let (x, y) = (self.get(x)?, self.get(y)?);
                (0..old.len()).map(|n| self.b.mul_add(x[n], y[n], old[n])).collect()
            }
            None => {
                let x = self.get(value)?;
                self.op(op, decl.dtype, &[old, x])?
            }
        };
        match carried {
            Some(to) => self.assign(&to, &new),
            None => drop(self.results.insert(acc, new)),
        }
        Some(())
    }

    /// `argmax` and `argmin`: the position of the better of two values: NaN first, then the extreme, then the lower position.
    fn place_of_best(&mut self, acc: AccId, value: Val, position: Option<Val>) -> Option<()> {
        let decl = self.kernel.accs[acc.0 as usize].clone();
        let Carried { value: old, position: Some(old_at), .. } = self.carried.get(&acc)?.clone() else {
            return None;
        };
        let (x, at) = (self.get(value)?, self.get(position?)?);
        let better = if decl.op == ReduceOp::ArgMax { ScalarOp::Gt } else { ScalarOp::Lt };
        let logic =
            |this: &mut Self, op, x: &Regs, y: &Regs| this.op(op, DType::Bool, &[x.clone(), y.clone()]);
        let compare =
            |this: &mut Self, op, x: &Regs, y: &Regs| this.op(op, decl.dtype, &[x.clone(), y.clone()]);
        let mut wins = compare(self, better, &x, &old)?;
        let mut equal = compare(self, ScalarOp::Eq, &x, &old)?;
        if decl.dtype.is_float() {
            let new_nan = compare(self, ScalarOp::Ne, &x, &x)?;
            let old_nan = compare(self, ScalarOp::Ne, &old, &old)?;
            let number = self.op(ScalarOp::Not, DType::Bool, std::slice::from_ref(&old_nan))?;
            let only_new = logic(self, ScalarOp::And, &new_nan, &number)?;
            let both = logic(self, ScalarOp::And, &new_nan, &old_nan)?;
            wins = logic(self, ScalarOp::Or, &wins, &only_new)?;
            equal = logic(self, ScalarOp::Or, &equal, &both)?;
        }
        let lower = self.op(ScalarOp::Lt, DType::I64, &[at.clone(), old_at.clone()])?;
        let first = logic(self, ScalarOp::And, &equal, &lower)?;
        let take = logic(self, ScalarOp::Or, &wins, &first)?;
        let (value, best_at) = (self.select(&take, &x, &old), self.select(&take, &at, &old_at));
        self.assign(&old, &value);
        self.assign(&old_at, &best_at);
        Some(())
    }

    /// A reduction over the points of the axis. Integers below 32 bits are wrapped when the lanes are combined, which is as good as
    /// at each step; truth values are lanes of ones or zeros, as in 128-bit code.
    pub(super) fn reduce(&mut self, acc: AccId, value: Val) -> Option<()> {
        let decl = &self.kernel.accs[acc.0 as usize];
        let class = Class::of(decl.dtype);
        if Class::of(self.dtype(value)) != class || self.accumulators.iter().any(|(a, _)| *a == acc) {
            return None;
        }
        let (held, identity) = match class {
            Class::Mask => (Class::I32, truth(decl.op.identity(decl.dtype).as_bool())),
            _ => (class, bits(decl.dtype, decl.op.identity(decl.dtype))),
        };
        let merge = how(decl.op, class)?;
        let first = self.b.body.accumulators.len() as u32;
        self.accumulators.push((acc, held));
        let factors = self.factors(decl.op, decl.dtype, value);
        let (how, operands) = match factors {
            Some((x, y)) => (How::Fused, (self.get(x)?, Some(self.get(y)?))),
            None => (merge, (self.get(value)?, None)),
        };
        let operands = match class {
            Class::Mask => {
                let (yes, no) = (self.b.i32(-1), self.b.i32(0));
                (Regs::from_elem(self.b.select(operands.0[0], yes, no), 1), None)
            }
            _ => operands,
        };
        for part in 0..if held.wide() { 2u8 } else { 1 } {
            self.b.body.accumulators.push(Accumulator { class: held, identity, merge, part });
            let n = usize::from(part);
            let (a, b) = (operands.0[n], operands.1.as_ref().map(|b: &Regs| b[n]));
            self.b.push(Inst::Accumulate { accumulator: first + u32::from(part), how, a, b });
        }
        Some(())
    }

    /// The factors, where a float sum adds a product.
    fn factors(&self, op: ReduceOp, dtype: DType, value: Val) -> Option<(Val, Val)> {
        match &self.body()[value.0 as usize].kind {
            VKind::Op { op: ScalarOp::Mul, args } if op == ReduceOp::Sum && dtype.is_float() => {
                Some((args[0], args[1]))
            }
            _ => None,
        }
    }
}

/// A truth value in a lane.
fn truth(x: bool) -> Constant {
    Constant::Narrow(if x { u32::MAX } else { 0 })
}

/// The instructions of a reduction that keeps no position.
fn how(op: ReduceOp, class: Class) -> Option<How> {
    let float = matches!(class, Class::F32 | Class::F64);
    let two = |narrow, wide| Some(How::Two(by_width(class, narrow, wide)));
    match op {
        ReduceOp::Max | ReduceOp::Min if float => Some(How::Extremum { larger: op == ReduceOp::Max }),
        ReduceOp::Sum if float => two(c::VADDPS, c::VADDPD),
        ReduceOp::Prod if float => two(c::VMULPS, c::VMULPD),
        _ if float => None,
        ReduceOp::Any | ReduceOp::Max | ReduceOp::Sum if class == Class::Mask => Some(How::Two(c::VPORD)),
        ReduceOp::All | ReduceOp::Min | ReduceOp::Prod if class == Class::Mask => Some(How::Two(c::VPANDD)),
        ReduceOp::Sum => two(c::VPADDD, c::VPADDQ),
        ReduceOp::Prod => two(c::VPMULLD, c::VPMULLQ),
        ReduceOp::Max => two(c::VPMAXSD, c::VPMAXSQ),
        ReduceOp::Min => two(c::VPMINSD, c::VPMINSQ),
        ReduceOp::Any => two(c::VPORD, c::VPORQ),
        ReduceOp::All => two(c::VPANDD, c::VPANDQ),
        ReduceOp::Xor => two(c::VPXORD, c::VPXORQ),
        ReduceOp::ArgMax | ReduceOp::ArgMin => None,
    }
}
