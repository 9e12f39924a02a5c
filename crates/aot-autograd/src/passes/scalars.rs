//! Algebraic identities of scalar operators: neutral elements, idempotence, exchange of operands. Data for the rules of
//! [`super::arithmetic`].

use ir_core::{DType, Scalar};
use kernel_ir::ScalarOp;

/// A number with `op(x, number) = x`. For `x + 0` this ignores the sign of zero, as PyTorch's own passes do.
pub(super) fn right_neutral(op: ScalarOp, number: Scalar, dtype: DType) -> bool {
    use ScalarOp::*;
    let is = |x: f64| !matches!(number, Scalar::Complex(_, im) if im != 0.0) && number.as_f64() == x;
    let bits = dtype.is_integral();
    match op {
        Add | Sub => is(0.0),
        // Of truth values the logical and.
        Mul | Div => is(1.0),
        Pow => is(1.0) && !bits,
        Or | Xor | Shl | Shr => bits && is(0.0),
        And => match dtype {
            DType::Bool => number.as_bool(),
            _ => dtype.is_int() && number.as_i64() == -1,
        },
        Max => !bits && is(f64::NEG_INFINITY),
        Min => !bits && is(f64::INFINITY),
        _ => false,
    }
}

/// A number with `op(x, number) = number` for every `x`; for integers and truth values only, because a float may be `NaN`.
pub(super) fn absorbing(op: ScalarOp, number: Scalar, dtype: DType) -> bool {
    use ScalarOp::*;
    match op {
        Mul => dtype.is_integral() && number.as_i64() == 0,
        And => !number.as_bool() && dtype.is_integral(),
        Or => dtype == DType::Bool && number.as_bool(),
        _ => false,
    }
}

/// Operators with `op(op(x)) = x`.
pub(super) fn is_involution(op: ScalarOp) -> bool {
    matches!(op, ScalarOp::Neg | ScalarOp::Not)
}

/// Operators with `op(op(x)) = op(x)`.
pub(super) fn is_idempotent(op: ScalarOp) -> bool {
    use ScalarOp::*;
    matches!(op, Abs | Floor | Ceil | Trunc | Round)
}

/// Operators with `op(x, x) = x`.
pub(super) fn gives_its_operand(op: ScalarOp) -> bool {
    use ScalarOp::*;
    matches!(op, Min | Max | And | Or)
}

/// Operators with `op(-x) = op(x)`, bit for bit.
pub(super) fn is_even(op: ScalarOp) -> bool {
    matches!(op, ScalarOp::Abs | ScalarOp::Cos | ScalarOp::Cosh)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: [f64; 9] = [-3.5, -1.0, -0.0, 0.0, 0.25, 1.0, 2.0, 1e300, f64::NEG_INFINITY];

    /// Every equation, held against the reference of the operator.
    #[test]
    fn the_reference_agrees() {
        let (mut neutral, mut absorbed) = (0, 0);
        for dtype in [DType::F64, DType::I64, DType::I32, DType::U8, DType::Bool] {
            for &op in ScalarOp::ALL.iter().filter(|op| op.arity() == 2) {
                for n in [-1.0, 0.0, 1.0, f64::INFINITY, f64::NEG_INFINITY] {
                    let number = Scalar::Float(n).to_class_of(dtype);
                    for x in NUMBERS {
                        let bits = matches!(op, ScalarOp::And | ScalarOp::Or | ScalarOp::Xor);
                        if (bits && dtype.is_float()) || (x.abs() > 100.0 && dtype.is_integral()) {
                            continue;
                        }
                        let x = match dtype {
                            DType::U8 => Scalar::Int(x.abs() as i64),
                            _ => Scalar::Float(x).to_class_of(dtype),
                        };
                        if right_neutral(op, number, dtype) {
                            let y = op.eval(dtype, &[x, number]);
                            assert_eq!(y.as_f64(), x.as_f64(), "{op:?} {dtype} {x} {number}");
                            neutral += 1;
                        }
                        if absorbing(op, number, dtype) {
                            let y = op.eval(dtype, &[x, number]);
                            assert_eq!(y.as_f64(), number.as_f64(), "{op:?} {dtype} {x} {number}");
                            absorbed += 1;
                        }
                    }
                }
            }
        }
        assert!(neutral > 100 && absorbed > 20, "{neutral} {absorbed}");
    }

    #[test]
    fn equations_of_one_operand_hold() {
        for &op in ScalarOp::ALL {
            for x in NUMBERS {
                let (dtype, x) = match op {
                    ScalarOp::Not | ScalarOp::And | ScalarOp::Or if x.abs() > 100.0 => continue,
                    ScalarOp::Not | ScalarOp::And | ScalarOp::Or => (DType::I64, Scalar::Int(x as i64)),
                    _ => (DType::F64, Scalar::Float(x)),
                };
                let bits = |s: Scalar| match s {
                    Scalar::Float(f) if f.is_nan() => f64::NAN.to_bits(),
                    Scalar::Float(f) => f.to_bits(),
                    other => other.as_i64() as u64,
                };
                if is_involution(op) {
                    assert_eq!(bits(op.eval(dtype, &[op.eval(dtype, &[x])])), bits(x), "{op:?} {x}");
                }
                if is_idempotent(op) {
                    let once = op.eval(dtype, &[x]);
                    assert_eq!(bits(op.eval(dtype, &[once])), bits(once), "{op:?} {x}");
                }
                if gives_its_operand(op) {
                    assert_eq!(bits(op.eval(dtype, &[x, x])), bits(x), "{op:?} {x}");
                }
                if is_even(op) {
                    let minus = ScalarOp::Neg.eval(dtype, &[x]);
                    assert_eq!(bits(op.eval(dtype, &[minus])), bits(op.eval(dtype, &[x])), "{op:?} {x}");
                }
            }
        }
    }
}
