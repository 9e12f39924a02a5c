//! Sharding rules of primitive operators that are functions. What each file has is said at its head; this one only lists
//! them, and has their common helpers.

pub(in crate::ops) mod indexing;
pub(in crate::ops) mod movement;
pub(in crate::ops) mod positions;
pub(in crate::ops) mod templates;

use fx_ir::ValueId;

use crate::shard_rule::{Placement, Way};
use crate::{Builder, LocalCall, OpError};

/// A way by its placements.
fn way(operands: Vec<Placement>, results: Vec<Placement>) -> Way {
    Way::new(operands, results)
}

/// The call on parts, as it is.
fn same(b: &mut Builder<'_>, call: &LocalCall<'_>) -> Result<ValueId, OpError> {
    let outs = b.call_op(call.call.op, call.args.clone())?;
    outs.first().copied().ok_or_else(|| call.call.invalid("has no result"))
}
