//! Which instructions of a body are made before its innermost loop because an index that is checked does not vary there:
//! the check then costs nothing in the loop. Other values that do not vary leave loops in the code generator, which does
//! not move branches.

use ir_core::Atom;

use super::{VInst, VKind};

/// For each instruction whether it is made before the loop over `var`: checks that do not vary along it, what follows from
/// them and does not vary either, and what all these are made of. `axis`: lanes are points of that loop.
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
