//! Temporary memory over the steps of a program, from its plan.

use ir_core::{Atom, SymExpr};
use kernel_ir::Program;

/// The bytes that live in the arena during each step; sizes that are symbols have their values at capture. None where a size
/// has no value.
pub(super) fn over_steps(program: &Program) -> Option<Vec<u64>> {
    let hint = |atom: &Atom| match atom {
        Atom::Sym(id) => program.symbols.get(*id).and_then(|s| s.hint),
        _ => None,
    };
    let mut live = vec![0u64; program.steps.len()];
    for range in program.plan.lives.iter().chain(&program.plan.dynamic) {
        let buffer = program.buffers.get(range.buf)?;
        let span: SymExpr = buffer.span();
        let elements = u64::try_from(span.eval(&hint)?).unwrap_or(0);
        let bytes = elements.saturating_mul(buffer.dtype.size() as u64);
        let (first, last) = (range.first as usize, range.last as usize);
        for step in live.iter_mut().take(last + 1).skip(first) {
            *step = step.saturating_add(bytes);
        }
    }
    Some(live)
}
