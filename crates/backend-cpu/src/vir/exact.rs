//! Which values are numbers of a 16-bit float whatever the data are: rounding them to it changes nothing, so a conversion or a store does without.
//!
//! A graph rounds the result of each operator to its dtype. Of operators that only choose among numbers, or change signs, that does nothing.

use ir_core::DType;
use kernel_ir::ScalarOp;

use super::{Class, VInst, VKind, round_16};

/// The 16-bit floats that have a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sixteen {
    bf16: bool,
    f16: bool,
}

impl Sixteen {
    /// Whether this dtype, a 16-bit float, is among them.
    pub fn has(self, dtype: DType) -> bool {
        match dtype {
            DType::BF16 => self.bf16,
            DType::F16 => self.f16,
            _ => false,
        }
    }

    fn of(has: impl Fn(DType) -> bool) -> Sixteen {
        Sixteen { bf16: has(DType::BF16), f16: has(DType::F16) }
    }
}

/// Those of an instruction's value, given those of the instructions before it.
pub(super) fn sixteen(dtype: DType, kind: &VKind, before: &[VInst]) -> Sixteen {
    let of = |v: &kernel_ir::Val| &before[v.0 as usize];
    match kind {
        _ if Class::of(dtype) != Class::F32 => Sixteen::default(),
        VKind::Const(c) => {
            // In memory of another dtype the number would be rounded to that first.
            let number = round_16(dtype, c.as_f64() as f32);
            Sixteen::of(|d| round_16(d, number).to_bits() == number.to_bits())
        }
        VKind::Load { at, .. } => Sixteen::of(|d| d == at.dtype),
        // Neither of these rounds.
        VKind::Cast(v) if dtype == of(v).dtype => of(v).sixteen,
        VKind::Cast(v) if dtype == DType::F32 && Class::of(of(v).dtype) == Class::F32 => of(v).sixteen,
        VKind::Cast(v) => Sixteen::of(|d| d == dtype || of(v).sixteen.has(d) && of(v).sixteen.has(dtype)),
        VKind::Op { op, args } => {
            let chooses = matches!(
                op,
                ScalarOp::Min
                    | ScalarOp::Max
                    | ScalarOp::Neg
                    | ScalarOp::Abs
                    | ScalarOp::CopySign
                    | ScalarOp::Select
            );
            let numbers = || args.iter().map(of).filter(|i| i.dtype != DType::Bool);
            Sixteen::of(|d| chooses && numbers().all(|i| i.sixteen.has(d)))
        }
        _ => Sixteen::default(),
    }
}

#[cfg(test)]
mod tests {
    use ir_core::Scalar;
    use kernel_ir::Val;

    use super::*;

    /// The values of a body by their kinds.
    fn body(kinds: &[(DType, VKind)]) -> Vec<VInst> {
        let mut all: Vec<VInst> = Vec::new();
        for (dtype, kind) in kinds {
            let sixteen = sixteen(*dtype, kind, &all);
            all.push(VInst { dtype: *dtype, varies: true, sixteen, kind: kind.clone() });
        }
        all
    }

    fn op(op: ScalarOp, args: &[u32]) -> VKind {
        VKind::Op { op, args: args.iter().map(|v| Val(*v)).collect() }
    }

    #[test]
    fn choices_among_numbers_of_a_dtype_are_numbers_of_it_and_sums_are_not() {
        let number = |x| VKind::Const(Scalar::Float(x));
        let values = body(&[
            (DType::F32, VKind::Template),
            (DType::BF16, VKind::Cast(Val(0))),
            (DType::F32, VKind::Cast(Val(1))),
            (DType::F32, number(6.0)),
            (DType::F32, op(ScalarOp::Min, &[2, 3])),
            (DType::F32, number(0.1)),
            (DType::F32, op(ScalarOp::Max, &[4, 5])),
            (DType::F32, op(ScalarOp::Add, &[2, 3])),
            (DType::BF16, op(ScalarOp::Add, &[1, 1])),
            (DType::BF16, VKind::Cast(Val(8))),
            (DType::F16, VKind::Cast(Val(2))),
            (DType::F64, VKind::Cast(Val(2))),
        ]);
        let bf16: Vec<bool> = values.iter().map(|v| v.sixteen.has(DType::BF16)).collect();
        let f16: Vec<bool> = values.iter().map(|v| v.sixteen.has(DType::F16)).collect();
        let (no, yes) = (false, true);
        assert_eq!(bf16, [no, yes, yes, yes, yes, no, no, no, no, no, no, no]);
        assert_eq!(f16, [no, no, no, yes, no, no, no, no, no, no, yes, no]);
    }
}
