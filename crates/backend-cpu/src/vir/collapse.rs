//! Loop collapsing: two loops whose every index expression walks memory as one longer loop become that loop. A pointwise
//! kernel over contiguous (or channels-last) tensors ends as a single loop, whatever its rank.

use ir_core::{Atom, SymExpr};

use super::Dim;

/// All index expressions of a kernel, rewritten together.
pub(super) type Exprs = Vec<SymExpr>;

/// Drops loops of extent 1 and merges what can be merged. `exprs` must hold every expression that uses the loops.
pub(super) fn collapse(dims: &mut Vec<Dim>, exprs: &mut Exprs) {
    drop_units(dims, exprs);
    while let Some((slow, fast)) = find_pair(dims, exprs) {
        let var = dims[slow].var;
        let merged = &dims[slow].extent * &dims[fast].extent;
        dims[fast].extent = merged;
        dims.remove(slow);
        replace_by_zero(var, exprs);
    }
}

/// Removes loops that run once.
pub(super) fn drop_units(dims: &mut Vec<Dim>, exprs: &mut Exprs) {
    for d in dims.iter().filter(|d| d.extent == SymExpr::ONE) {
        replace_by_zero(d.var, exprs);
    }
    dims.retain(|d| d.extent != SymExpr::ONE);
}

fn replace_by_zero(var: u32, exprs: &mut Exprs) {
    for e in exprs.iter_mut() {
        if e.any_leaf(|a| *a == Atom::Loop(var)) {
            *e = e.subst(&|a| (*a == Atom::Loop(var)).then_some(SymExpr::ZERO));
        }
    }
}

/// Positions of two loops with `step(slow) == step(fast) * extent(fast)` in every expression.
fn find_pair(dims: &[Dim], exprs: &Exprs) -> Option<(usize, usize)> {
    let steps: Vec<Option<Vec<SymExpr>>> = dims.iter().map(|d| steps_of(d.var, exprs)).collect();
    for slow in 0..dims.len() {
        for fast in 0..dims.len() {
            let (Some(s), Some(f)) = (&steps[slow], &steps[fast]) else { continue };
            if slow != fast && s.iter().zip(f).all(|(s, f)| *s == f * &dims[fast].extent) {
                return Some((slow, fast));
            }
        }
    }
    None
}

/// The factor of a loop variable in every expression; `None` where one is not affine in it, or mixes it with another.
fn steps_of(var: u32, exprs: &Exprs) -> Option<Vec<SymExpr>> {
    exprs
        .iter()
        .map(|e| {
            let (step, _) = e.affine_in(&Atom::Loop(var))?;
            (!step.any_leaf(|a| matches!(a, Atom::Loop(_) | Atom::Value(_)))).then_some(step)
        })
        .collect()
}
