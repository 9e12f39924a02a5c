//! Sharding rules of primitive operators that are functions. What each file has is said at its head; this one only lists
//! them, and has their common helpers.

pub(in crate::ops) mod indexing;
pub(in crate::ops) mod movement;
pub(in crate::ops) mod templates;

use crate::shard_rule::{Placement, Way};

/// A way by its placements.
fn way(operands: Vec<Placement>, results: Vec<Placement>) -> Way {
    Way::new(operands, results)
}
