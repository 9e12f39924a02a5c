//! Sizes before a program runs: those at capture, and others in range that a rule must hold for too.

use ir_core::{Atom, Shape, SymExpr};
use kernel_ir::Program;

/// Values at capture.
pub(crate) fn at_capture(program: &Program) -> impl Fn(&SymExpr) -> Option<i64> + '_ {
    move |e| e.eval(&|a| program.symbols.likely(a, 1))
}

/// Values that differ from those at capture where the range allows it, so that a stride which happens to be 1 shows.
pub(crate) fn perturbed(program: &Program) -> impl Fn(&SymExpr) -> Option<i64> + '_ {
    move |e| {
        e.eval(&|a| match a {
            Atom::Sym(id) => program.symbols.get(*id).map(|s| {
                let next = s.likely(1) + 1;
                s.max.map_or(next, |max| next.min(max))
            }),
            _ => None,
        })
    }
}

/// Strides of dense memory whose dimensions lie in `order`, outermost first.
pub(crate) fn dense(sizes: &[SymExpr], order: &[usize]) -> Shape {
    let mut strides: Shape = sizes.iter().map(|_| SymExpr::ONE).collect();
    let mut step = SymExpr::ONE;
    for &d in order.iter().rev() {
        strides[d] = step.clone();
        step = step * &sizes[d];
    }
    strides
}
