//! Relations between values and size symbols. The symbols themselves are in `ir-core`.

use fx_ir::{Graph, ValueId, ValueType};

/// Whether a value is a number that the program computes, or has a size known only at run time: the call that gives
/// it defines that number, and may neither be made twice nor be merged with another.
pub(crate) fn defines_size(graph: &Graph, v: ValueId) -> bool {
    let ValueType::Tensor(meta) = &graph.values[v].ty else { return true };
    meta.sizes.iter().any(|e| e.any_leaf(|leaf| graph.symbols.is_unbacked(leaf)))
}
