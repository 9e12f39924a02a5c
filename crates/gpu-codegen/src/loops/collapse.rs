//! Inner dimensions that every index of a stage walks as one: they are made one, so that no counter has to be divided.
//!
//! The kernel keeps its number of dimensions: the outer one of such a pair gets the extent 1. An index may then be larger than
//! the size of its own dimension; the address, which is all that counts here, is the same.

use ir_core::{Atom, SymExpr};
use kernel_ir::{Inst, InstKind, LoopKernel, Program, Stage};

/// The kernel with dimensions put together where that can be.
pub(crate) fn collapsed(program: &Program, k: &LoopKernel) -> LoopKernel {
    let mut k = k.clone();
    let first = k.outer.len();
    for stage in &mut k.stages {
        if stage.insts.iter().any(|i| matches!(i.kind, InstKind::Scan { .. })) {
            continue;
        }
        for d in (0..stage.inner.len().saturating_sub(1)).rev() {
            let wide = |e: &SymExpr| *e != SymExpr::ONE;
            let Some(next) = stage.inner[d + 1..].iter().position(wide).map(|n| d + 1 + n) else { continue };
            let (a, b) = ((first + d) as u32, (first + next) as u32);
            if wide(&stage.inner[d]) && walks_as_one(program, stage, a, b, &stage.inner[next]) {
                stage.inner[next] = stage.inner[d].clone() * &stage.inner[next];
                stage.inner[d] = SymExpr::ONE;
                stage.insts.iter_mut().for_each(|inst| still(inst, a));
            }
        }
    }
    k
}

/// Whether a step of `a` is as much as `extent` steps of `b`, everywhere.
fn walks_as_one(program: &Program, stage: &Stage, a: u32, b: u32, extent: &SymExpr) -> bool {
    let one = |e: &SymExpr| {
        let Some((step_a, rest)) = e.affine_in(&Atom::Loop(a)) else { return false };
        let Some((step_b, rest)) = rest.affine_in(&Atom::Loop(b)) else { return false };
        let free = |e: &SymExpr| !e.any_leaf(|l| matches!(l, Atom::Loop(n) if *n == a || *n == b));
        free(&step_a) && free(&step_b) && free(&rest) && step_a == step_b * extent
    };
    stage.insts.iter().all(|inst| match &inst.kind {
        InstKind::Load { buf, index, .. } | InstKind::Store { buf, index, .. } => {
            one(&program.buffers[*buf].address(index))
        }
        InstKind::Index(e) | InstKind::Check { size: e, .. } => one(e),
        _ => true,
    })
}

/// Puts 0 for a loop variable.
fn still(inst: &mut Inst, variable: u32) {
    let zero = |e: &mut SymExpr| *e = e.subst(&|l| (*l == Atom::Loop(variable)).then_some(SymExpr::ZERO));
    match &mut inst.kind {
        InstKind::Load { index, .. } | InstKind::Store { index, .. } => index.iter_mut().for_each(zero),
        InstKind::Index(e) | InstKind::Check { size: e, .. } => zero(e),
        _ => {}
    }
}
