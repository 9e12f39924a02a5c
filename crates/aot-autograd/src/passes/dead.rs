//! Dead code elimination. Every prim is pure; calls that bind a size or assert stay.

use fx_ir::Graph;

use super::{PassCx, Stats};

/// Erases dead calls.
pub(super) fn run(graph: &mut Graph, _: &PassCx) -> Stats {
    Stats { changed: prims::scalars::eliminate_dead(graph) }
}
