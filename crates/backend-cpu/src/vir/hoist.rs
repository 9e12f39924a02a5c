//! Selects the instructions of a body that are executed before its innermost loop because a checked index does not vary
//! there: the check then costs nothing in the loop. Other invariant values are hoisted by the code generator, which does
//! not move branches.

use ir_core::Atom;

use super::{VInst, VKind};

/// For each instruction whether it is executed before the loop over `var`: checks that do not vary along it, invariant
/// values that depend on them, and the operands of all these. `axis`: lanes are points of that loop.
pub(crate) fn before_loop(insts: &[VInst], var: u32, axis: bool) -> Vec<bool> {
    let (mut varies, mut checked) = (Vec::with_capacity(insts.len()), Vec::with_capacity(insts.len()));
    for inst in insts {
        let mut moves = match &inst.kind {
            VKind::Store { .. } | VKind::Reduce { .. } | VKind::Scan { .. } => true,
            VKind::Acc(_) | VKind::Template => true,
            VKind::Load { at, .. } => !at.read_only,
            _ => false,
        };
        moves |= axis && inst.varies;
        moves |= inst.kind.expr().is_some_and(|e| e.any_leaf(|a| *a == Atom::Loop(var)));
        let mut after = matches!(inst.kind, VKind::Check { .. });
        inst.kind.for_each_val(&mut |v| {
            moves |= varies[v.0 as usize];
            after |= checked[v.0 as usize];
        });
        varies.push(moves);
        checked.push(after);
    }
    let mut made: Vec<bool> = varies.iter().zip(&checked).map(|(moves, after)| *after && !moves).collect();
    for n in (0..insts.len()).rev() {
        if made[n] {
            insts[n].kind.for_each_val(&mut |v| made[v.0 as usize] = true);
        }
    }
    made
}
