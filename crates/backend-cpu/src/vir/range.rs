//! Between which numbers a value surely is, whatever the data are, unless it is `NaN`: what is converted to an integer type that holds them
//! all needs no saturation.

use ir_core::DType;
use kernel_ir::{ScalarOp, Val};

use super::{Class, VInst, VKind};

/// Operations that are looked at behind one another: a quantization has half as many.
const DEPTH: u32 = 12;

/// The least and the largest number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Range {
    low: f64,
    high: f64,
}

impl Range {
    const ANY: Range = Range { low: f64::NEG_INFINITY, high: f64::INFINITY };

    /// That of a value among the instructions of its body, as far as its last operations tell.
    pub(crate) fn of(body: &[VInst], v: Val) -> Range {
        Range::to_depth(body, v, DEPTH)
    }

    /// The same from so many operations, one behind another: operands that are shared would be looked at twice as often with each.
    fn to_depth(body: &[VInst], v: Val, depth: u32) -> Range {
        let Some(rest) = depth.checked_sub(1) else { return Range::ANY };
        let inst = &body[v.0 as usize];
        let of = |v: &Val| Range::to_depth(body, *v, rest);
        match &inst.kind {
            VKind::Const(c) if !c.as_f64().is_nan() => Range { low: c.as_f64(), high: c.as_f64() },
            VKind::Load { at, .. } => Range::of_integers(at.dtype),
            VKind::Cast(v)
                if inst.dtype == DType::F32
                    && !matches!(Class::of(body[v.0 as usize].dtype), Class::F64 | Class::I64) =>
            {
                // An integer is rounded, which is monotone.
                of(v).map(|x| f64::from(x as f32))
            }
            VKind::Op { op, args } => match (op, &args[..]) {
                (ScalarOp::Max, [x, y]) => of(x).both(of(y), f64::max),
                (ScalarOp::Min, [x, y]) => of(x).both(of(y), f64::min),
                (ScalarOp::Round, [x]) => of(x).map(f64::round_ties_even),
                (ScalarOp::Floor, [x]) => of(x).map(f64::floor),
                (ScalarOp::Ceil, [x]) => of(x).map(f64::ceil),
                (ScalarOp::Trunc, [x]) => of(x).map(f64::trunc),
                (ScalarOp::Add, [x, y]) if inst.dtype == DType::F32 => {
                    of(x).both(of(y), |x, y| f64::from(x as f32 + y as f32))
                }
                _ => Range::ANY,
            },
            _ => Range::ANY,
        }
    }

    /// Whether a small integer type has all whole numbers of the range. Truth values are no such type: of them all but 0 is true.
    pub(crate) fn is_within(self, dtype: DType) -> bool {
        if dtype == DType::Bool {
            return false;
        }
        let all = Range::of_integers(dtype);
        all != Range::ANY && self.low > all.low - 1.0 && self.high < all.high + 1.0
    }

    fn of_integers(dtype: DType) -> Range {
        match dtype {
            DType::U8 | DType::I8 | DType::I16 => {
                let (low, high) = dtype.ends();
                Range { low: low.as_f64(), high: high.as_f64() }
            }
            DType::Bool => Range { low: 0.0, high: 1.0 },
            _ => Range::ANY,
        }
    }

    /// The range of a function that is monotone.
    fn map(self, f: impl Fn(f64) -> f64) -> Range {
        Range { low: f(self.low), high: f(self.high) }
    }

    /// The range of a function of two that is monotone in each.
    fn both(self, other: Range, f: impl Fn(f64, f64) -> f64) -> Range {
        let (low, high) = (f(self.low, other.low), f(self.high, other.high));
        // A sum of opposite infinities says nothing.
        if low.is_nan() || high.is_nan() { Range::ANY } else { Range { low, high } }
    }
}

#[cfg(test)]
mod tests {
    use ir_core::Scalar;

    use super::super::Sixteen;
    use super::*;

    #[test]
    fn clamped_values_fit_and_others_do_not() {
        let number = |x: f64| (DType::F32, VKind::Const(Scalar::Float(x)));
        let op =
            |op, args: &[u32]| (DType::F32, VKind::Op { op, args: args.iter().map(|v| Val(*v)).collect() });
        let kinds = [
            (DType::F32, VKind::Template),
            number(0.0),
            op(ScalarOp::Max, &[0, 1]),
            number(255.4),
            op(ScalarOp::Min, &[2, 3]),
            op(ScalarOp::Round, &[4]),
            number(-128.0),
            op(ScalarOp::Add, &[5, 6]),
            op(ScalarOp::Mul, &[5, 5]),
        ];
        let inst = |(dtype, kind)| VInst { dtype, varies: true, sixteen: Sixteen::default(), kind };
        let body: Vec<VInst> = kinds.into_iter().map(inst).collect();
        let fits = |v: u32, dtype| Range::of(&body, Val(v)).is_within(dtype);
        assert_eq!(Range::of(&body, Val(5)), Range { low: 0.0, high: 255.0 });
        assert_eq!(Range::of(&body, Val(7)), Range { low: -128.0, high: 127.0 });
        assert!(fits(5, DType::U8) && fits(4, DType::U8) && fits(7, DType::I8) && fits(5, DType::I16));
        assert!(!fits(5, DType::I8) && !fits(7, DType::U8) && !fits(2, DType::U8) && !fits(8, DType::U8));
        assert!(!fits(5, DType::I32), "32 bits are not asked for");
        assert!(!fits(1, DType::Bool), "half is true");
    }
}
