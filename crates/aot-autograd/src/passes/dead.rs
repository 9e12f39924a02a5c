//! Erases calls whose results nothing reads. Every prim is pure; what binds a size or asserts stays.

use fx_ir::Graph;

use super::{PassCx, Stats};

/// Erases dead calls.
pub(super) fn run(graph: &mut Graph, _: &PassCx) -> Stats {
    Stats { changed: prims::scalars::eliminate_dead(graph) }
}
