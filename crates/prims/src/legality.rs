//! The prim dialect as a predicate: which calls a graph of prims may have. Not here: the types of operands, which the
//! operators' rules check when a call is built, and the invariants of all graphs (`fx_ir::verify`).

use fx_ir::{Arg, Dialect, Legality};

use crate::{lookup, scalars};

/// Calls of control flow, which have no entry in the table and keep their subgraphs.
const CONTROL_FLOW: [&str; 6] = [
    "higher_order.cond",
    "higher_order.while_loop",
    "higher_order.map",
    "higher_order.map_impl",
    "higher_order.scan",
    "higher_order.associative_scan",
];

/// Whether a call is control flow that graphs of prims may have.
pub(crate) fn is_control_flow(target: &str) -> bool {
    CONTROL_FLOW.contains(&target)
}

/// The predicate of the prim dialect for [`fx_ir::verify()`]: entries of the closed set with all their arguments, control
/// flow, and the two calls that bind and assert numbers.
pub fn prim_legality() -> impl Legality {
    (Dialect::Prim, |target: &str, args: &[Arg]| {
        if is_control_flow(target) || matches!(target, scalars::ITEM | scalars::ASSERT) {
            return Ok(());
        }
        let Some(op) = lookup(target).filter(|op| op.is_prim()) else {
            return Err("it is no primitive operator: run `prims::decompose` first".to_string());
        };
        let (given, wanted) = (args.len(), op.schema.args.len());
        match given == wanted {
            true => Ok(()),
            false => Err(format!("it has {given} arguments where its schema has {wanted}")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn composites_and_incomplete_calls_are_illegal() {
        let legality = prim_legality();
        assert!(legality.is_legal("prims.neg", &[Arg::None]).is_ok());
        assert!(legality.is_legal("prims.neg", &[]).is_err());
        assert!(legality.is_legal("aten.neg.default", &[Arg::None]).is_err());
        assert!(legality.is_legal("higher_order.cond", &[]).is_ok());
        assert!(legality.is_legal("prims.nothing", &[]).is_err());
    }
}
