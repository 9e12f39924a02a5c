//! Which values of a body need no more digits than 16-bit floats have: what is computed from them is rounded to those, and
//! goes nowhere else. Functions of such values may be those instructions of a GPU that are right to some 17 bits.
//!
//! Here: the analysis. Not here: the texts (`body`, `ops`).

use ir_core::DType;
use kernel_ir::{Inst, InstKind, ScalarOp, Val};

/// Whether a value in `f32` ends in 16-bit floats alone, by operators that do not look at its last digits: none that counts
/// whole numbers or compares.
pub(crate) fn ends_narrow(insts: &[Inst], v: Val) -> bool {
    let first = v.0 as usize;
    if insts.get(first).is_none_or(|i| i.dtype != DType::F32) {
        return false;
    }
    // For each value from `v` on, whether it is used, and whether somewhere with all its digits.
    let mut used = vec![false; insts.len()];
    let mut whole = vec![false; insts.len()];
    for n in (first..insts.len()).rev() {
        let inst = &insts[n];
        let rounded = match &inst.kind {
            InstKind::Cast(_) => inst.dtype.is_float() && inst.dtype.size() == 2,
            InstKind::Op { op, .. } => {
                inst.dtype == DType::F32 && keeps_roughness(*op) && used[n] && !whole[n]
            }
            _ => false,
        };
        inst.kind.for_each_val(&mut |a| {
            let a = a.0 as usize;
            used[a] = true;
            whole[a] |= !rounded;
        });
    }
    used[first] && !whole[first]
}

/// Whether a function may be computed to some 17 bits. An error function must be added to a number, as in a GELU: near 0 the
/// rough one is off by as much as elsewhere, which is many of its own digits.
pub(crate) fn may_be_rough(insts: &[Inst], v: Val) -> bool {
    let InstKind::Op { op, .. } = &insts[v.0 as usize].kind else { return false };
    ends_narrow(insts, v) && (*op != ScalarOp::Erf || is_added_to_a_number(insts, v))
}

fn is_added_to_a_number(insts: &[Inst], v: Val) -> bool {
    let number = |a: &Val| matches!(&insts[a.0 as usize].kind, InstKind::Const(c) if c.as_f64().abs() >= 0.5);
    insts[v.0 as usize..].iter().all(|inst| {
        let mut reads = false;
        inst.kind.for_each_val(&mut |a| reads |= a == v);
        match &inst.kind {
            InstKind::Op { op: ScalarOp::Add, args } => !reads || args.iter().any(number),
            _ => !reads,
        }
    })
}

fn keeps_roughness(op: ScalarOp) -> bool {
    use ScalarOp as O;
    matches!(op, O::Add | O::Sub | O::Mul | O::Div | O::Neg | O::Abs | O::Max | O::Min | O::Select)
}
