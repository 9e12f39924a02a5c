//! Merges nested loops that memory cannot distinguish from one longer loop: in every index, a step of the slow loop equals
//! all steps of the fast one. A pointwise kernel over contiguous (or channels-last) tensors becomes a single loop, whatever
//! its rank. Backends call it when they lower a kernel; programs cross the boundary as they were scheduled.

use ir_core::{Atom, SymExpr};

use crate::{Epilogue, Inst, InstKind, LoopKernel, Program};

/// A loop: its variable and extent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    /// Number of the loop variable (`Atom::Loop`).
    pub var: u32,
    /// It runs from 0 to this extent, exclusive.
    pub extent: SymExpr,
}

/// Drops loops of extent 1 and merges what can be merged. `exprs` must hold every expression that uses the loops.
pub fn collapse(dims: &mut Vec<Dim>, exprs: &mut [SymExpr]) {
    drop_units(dims, exprs);
    while let Some((slow, fast)) = find_pair(dims, exprs) {
        let var = dims[slow].var;
        dims[fast].extent = &dims[slow].extent * &dims[fast].extent;
        dims.remove(slow);
        exprs.iter_mut().for_each(|e| hold(e, var));
    }
}

/// Removes loops that run once.
pub fn drop_units(dims: &mut Vec<Dim>, exprs: &mut [SymExpr]) {
    for d in dims.iter().filter(|d| d.extent == SymExpr::ONE) {
        exprs.iter_mut().for_each(|e| hold(e, d.var));
    }
    dims.retain(|d| d.extent != SymExpr::ONE);
}

/// The kernel with the inner dimensions of its stages merged where that is possible, so that no counter has to be divided.
///
/// The kernel keeps its number of dimensions: the outer one of such a pair gets the extent 1. An index may then be larger than
/// the size of its own dimension; the address is the same.
pub fn collapsed(program: &Program, k: &LoopKernel) -> LoopKernel {
    let mut k = k.clone();
    let first = k.outer.len();
    for stage in &mut k.stages {
        if stage.insts.iter().any(|i| matches!(i.kind, InstKind::Scan { .. })) {
            continue;
        }
        merge_within(program, (first, &mut stage.inner), &mut stage.insts, &|_, _| true);
    }
    k
}

/// Merges neighbouring dimensions of a body, of which `may` tells that they may be, where memory cannot distinguish them: the outer
/// one gets the extent 1, and indices are as in [`collapsed`]. Dimension `d` is loop variable `d`, and the body has no inner loops.
pub fn merge_neighbours(
    program: &Program,
    extents: &mut [SymExpr],
    insts: &mut [Inst],
    may: &dyn Fn(usize, usize) -> bool,
) {
    merge_within(program, (0, extents), insts, may);
}

/// The same for dimensions whose loop variables begin at `first`.
fn merge_within(
    program: &Program,
    (first, extents): (usize, &mut [SymExpr]),
    insts: &mut [Inst],
    may: &dyn Fn(usize, usize) -> bool,
) {
    let wide = |e: &SymExpr| *e != SymExpr::ONE;
    for slow in (0..extents.len().saturating_sub(1)).rev() {
        let next = extents[slow + 1..].iter().position(wide).map(|n| slow + 1 + n);
        let Some(fast) = next.filter(|fast| wide(&extents[slow]) && may(slow, *fast)) else { continue };
        let dim = |n: usize| Dim { var: (first + n) as u32, extent: extents[n].clone() };
        let (outer, inner) = (dim(slow), dim(fast));
        let exprs = walks(program, insts);
        let steps = |dim: &Dim| Steps::of(dim.var, &exprs);
        if steps(&outer).zip(steps(&inner)).is_some_and(|(o, i)| o.continue_those(&i, &outer, &inner)) {
            extents[fast] = &outer.extent * &inner.extent;
            extents[slow] = SymExpr::ONE;
            insts.iter_mut().for_each(|inst| hold_in(inst, outer.var));
        }
    }
}

/// The epilogue with some of its dimensions merged into the last of them that has more than one point: its loop variable then is the
/// row-major number of all their points. The others get the extent 1; indices are as in [`collapsed`].
///
/// `None` where memory distinguishes them, or all have one point.
pub fn merged(program: &Program, e: &Epilogue, dims: &[usize]) -> Option<(Epilogue, u32)> {
    let exprs = walks(program, &e.insts);
    let dim = |d: usize| Dim { var: d as u32, extent: e.ranges[d].clone() };
    let mut wide = dims.iter().map(|d| dim(*d)).filter(|d| d.extent != SymExpr::ONE).rev();
    let mut fast = wide.next()?;
    let of_fast = Steps::of(fast.var, &exprs)?;
    let mut merged = e.clone();
    for slow in wide {
        if !Steps::of(slow.var, &exprs)?.continue_those(&of_fast, &slow, &fast) {
            return None;
        }
        fast.extent = &slow.extent * &fast.extent;
        merged.ranges[slow.var as usize] = SymExpr::ONE;
        merged.insts.iter_mut().for_each(|inst| hold_in(inst, slow.var));
    }
    merged.ranges[fast.var as usize] = fast.extent;
    Some((merged, fast.var))
}

/// The stride of a loop in every expression.
struct Steps(Vec<SymExpr>);

impl Steps {
    /// `None` where an expression is not affine in the loop variable.
    fn of(var: u32, exprs: &[SymExpr]) -> Option<Steps> {
        let step = |e: &SymExpr| e.affine_in(&Atom::Loop(var)).map(|(step, _)| step);
        exprs.iter().map(step).collect::<Option<_>>().map(Steps)
    }

    /// Whether a step of the slow loop equals all steps of the fast one in every expression.
    fn continue_those(&self, of_fast: &Steps, slow: &Dim, fast: &Dim) -> bool {
        let of_both = |l: &Atom| matches!(l, Atom::Loop(n) if *n == slow.var || *n == fast.var);
        let free = |e: &SymExpr| !e.any_leaf(of_both);
        let mut pairs = self.0.iter().zip(&of_fast.0);
        pairs.all(|(s, f)| free(s) && free(f) && *s == f * &fast.extent)
    }
}

/// Positions of two loops of which the first continues where the second ends.
fn find_pair(dims: &[Dim], exprs: &[SymExpr]) -> Option<(usize, usize)> {
    let steps: Vec<Option<Steps>> = dims.iter().map(|d| Steps::of(d.var, exprs)).collect();
    for (slow, of_slow) in steps.iter().enumerate() {
        for (fast, of_fast) in steps.iter().enumerate() {
            let (Some(s), Some(f)) = (of_slow, of_fast) else { continue };
            if slow != fast && s.continue_those(f, &dims[slow], &dims[fast]) {
                return Some((slow, fast));
            }
        }
    }
    None
}

/// Every expression of a body that depends on its loops.
fn walks(program: &Program, insts: &[Inst]) -> Vec<SymExpr> {
    let one = |inst: &Inst| match &inst.kind {
        InstKind::Load { buf, index, .. } | InstKind::Store { buf, index, .. } => {
            Some(program.buffers[*buf].address(index))
        }
        InstKind::Index(e) | InstKind::Check { size: e, .. } => Some(e.clone()),
        _ => None,
    };
    insts.iter().filter_map(one).collect()
}

/// Substitutes 0 for a loop variable.
fn hold(e: &mut SymExpr, var: u32) {
    if e.any_leaf(|a| *a == Atom::Loop(var)) {
        *e = e.subst(&|a| (*a == Atom::Loop(var)).then_some(SymExpr::ZERO));
    }
}

/// Substitutes 0 for a loop variable in the expressions of an instruction.
fn hold_in(inst: &mut Inst, var: u32) {
    match &mut inst.kind {
        InstKind::Load { index, .. } | InstKind::Store { index, .. } => {
            index.iter_mut().for_each(|e| hold(e, var))
        }
        InstKind::Index(e) | InstKind::Check { size: e, .. } => hold(e, var),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collapsed(extents: &[&str], exprs: &[&str]) -> (Vec<String>, Vec<String>) {
        let dim = |(n, e): (usize, &&str)| Dim { var: n as u32, extent: e.parse().unwrap() };
        let mut dims: Vec<Dim> = extents.iter().enumerate().map(dim).collect();
        let mut exprs: Vec<SymExpr> = exprs.iter().map(|e| e.parse().unwrap()).collect();
        collapse(&mut dims, &mut exprs);
        let dims = dims.iter().map(|d| format!("i{}: {}", d.var, d.extent)).collect();
        (dims, exprs.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn loops_that_continue_each_other_become_one() {
        let (dims, exprs) =
            collapsed(&["s0", "1", "4", "8"], &["32*i0 + 8*i2 + i3", "64*i0 + 16*i2 + 2*i3 + 5"]);
        assert_eq!((dims, exprs), (vec!["i3: 32*s0".into()], vec!["i3".into(), "2*i3 + 5".into()]));
    }

    #[test]
    fn loops_that_one_expression_tells_apart_stay_separate() {
        let (dims, _) = collapsed(&["4", "8"], &["8*i0 + i1", "i0 + 4*i1"]);
        assert_eq!(dims, ["i0: 4", "i1: 8"]);
        let (dims, _) = collapsed(&["4", "8"], &["8*i0 + i1", "(8*i0 + i1) // 3"]);
        assert_eq!(dims, ["i0: 4", "i1: 8"]);
    }
}
