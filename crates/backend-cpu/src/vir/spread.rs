//! Makes two inner loops of one whose number indices divide: a sum over the rows of a matrix that is a view of `[batch, time, …]` with
//! other strides divides each row's number by the time, and two loops over batch and time divide nothing. Works on kernel-ir, before
//! addresses are computed; points keep their order. Outer loops are not spread: they are counted, not divided (`clif`).

use ir_core::{Atom, Shape, SymExpr};
use kernel_ir::{Inst, InstKind, LoopBounds, LoopKernel, Program, Stage};

/// Points of the faster loop below which a second loop costs as much as the divisions.
const MIN_FAST: i64 = 4;

/// The kernel with such loops made two.
pub(super) fn spread(program: &Program, kernel: &LoopKernel) -> LoopKernel {
    let mut kernel = kernel.clone();
    for stage in &mut kernel.stages {
        if stage.insts.iter().any(|i| matches!(i.kind, InstKind::Scan { .. })) {
            continue;
        }
        let mut d = 0;
        while d < stage.inner.len() {
            match spread_stage(program, &kernel.outer, stage, d) {
                // What is left may be divided again.
                Some(made) => *stage = made,
                None => d += 1,
            }
        }
    }
    kernel
}

/// The stage with inner loop `d` made two; `None` where that leaves divisions by the same number.
fn spread_stage(program: &Program, outer: &[SymExpr], stage: &Stage, d: usize) -> Option<Stage> {
    let var = (outer.len() + d) as u32;
    let extent = stage.inner[d].as_const()?;
    let fast = divisors(stage, var).into_iter().filter(|n| extent % n == 0).min()?;
    if !(MIN_FAST..extent).contains(&fast) {
        return None;
    }
    let mut inner: Shape = stage.inner.clone();
    inner[d] = SymExpr::from_i64(extent / fast);
    inner.insert(d + 1, SymExpr::from_i64(fast));
    let extents: Shape = outer.iter().chain(&inner).cloned().collect();
    let symbols = program.bounds();
    let bounds = LoopBounds { extents: &extents, symbols: &symbols };
    let mut made = Stage { inner, insts: stage.insts.clone() };
    let place = |a: &Atom| match *a {
        Atom::Loop(v) if v == var => Some(SymExpr::loop_var(v) * fast + SymExpr::loop_var(v + 1)),
        Atom::Loop(v) if v > var => Some(SymExpr::loop_var(v + 1)),
        _ => None,
    };
    each(&mut made.insts, &mut |e| *e = e.subst(&place).simplify(&bounds));
    // Each step takes at least one division away.
    let left = |v: u32| divisors(&made, v).len();
    (left(var) + left(var + 1) < divisors(stage, var).len()).then_some(made)
}

/// The numbers by which a loop's variable is divided, each once.
fn divisors(stage: &Stage, var: u32) -> Vec<i64> {
    let mut found = Vec::new();
    for inst in &stage.insts {
        for e in expressions(&inst.kind) {
            collect(e, var, &mut found);
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn collect(e: &SymExpr, var: u32, found: &mut Vec<i64>) {
    for atom in e.terms().0.into_iter().flat_map(|(_, factors)| factors) {
        match atom {
            Atom::FloorDiv(ab) | Atom::Mod(ab) => {
                if let (true, Some(n)) = (ab.0.as_atom() == Some(&Atom::Loop(var)), ab.1.as_const()) {
                    found.push(n);
                }
                collect(&ab.0, var, found);
            }
            Atom::Min(ab) | Atom::Max(ab) => {
                collect(&ab.0, var, found);
                collect(&ab.1, var, found);
            }
            Atom::Sym(_) | Atom::Loop(_) | Atom::Value(_) => {}
        }
    }
}

/// The index expressions of an instruction.
fn expressions(kind: &InstKind) -> &[SymExpr] {
    match kind {
        InstKind::Load { index, .. } | InstKind::Store { index, .. } => index,
        InstKind::Index(e) | InstKind::Check { size: e, .. } => std::slice::from_ref(e),
        _ => &[],
    }
}

fn each(insts: &mut [Inst], f: &mut dyn FnMut(&mut SymExpr)) {
    for inst in insts {
        match &mut inst.kind {
            InstKind::Load { index, .. } | InstKind::Store { index, .. } => {
                index.iter_mut().for_each(&mut *f)
            }
            InstKind::Index(e) | InstKind::Check { size: e, .. } => f(e),
            _ => {}
        }
    }
}
