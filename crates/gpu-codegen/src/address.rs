//! The addresses of accesses in their simplest form, within the extents of the loops around them.
//!
//! A buffer of three dimensions that a result of two fills is indexed by a quotient and a remainder (`i0 // 256`,
//! `i0 % 256`), whose address has neither. What decides by the form of an address asks here. Not here: the text of an
//! address, which the writers of bodies simplify themselves.

use ir_core::SymExpr;
use kernel_ir::{BufId, LoopBounds, Program};

/// Address in elements of the logical index, where loop variable `n` takes the values below `extents[n]`.
pub(crate) fn address(program: &Program, buf: BufId, index: &[SymExpr], extents: &[SymExpr]) -> SymExpr {
    program.buffers[buf].address(index).simplify(&LoopBounds { extents, symbols: program.bounds() })
}
