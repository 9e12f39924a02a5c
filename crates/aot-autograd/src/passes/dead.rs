//! Erases calls whose results nobody reads. Every prim is pure, so none is kept for what else it does.

use fx_ir::Graph;

use super::{PassCx, Stats};

/// Erases dead calls.
pub(super) fn run(graph: &mut Graph, _: &PassCx) -> Stats {
    Stats { changed: graph.eliminate_dead(&|_| false) }
}
