//! Splits a joint graph into a forward and a backward graph.
//!
//! [`partition()`] saves what the backward reads of the forward. [`partition_min_cut()`] saves as few bytes as possible and
//! recomputes the rest in the backward ([`MinCut`] configures how much). Both return a [`Partition`], which
//! [`merge`](Partition::merge) turns into one graph again. Not here: the half of each node (`joint`), and the cost of a
//! prim (`prims::facts`).

mod flow;
mod merge;
mod mincut;
mod split;

use fx_ir::{Arg, Graph, NodeId, ValueId, ValueType};

use thiserror::Error;

use crate::JointGraph;

pub use mincut::{MinCut, partition_min_cut};

/// The halves would not compute the same as the joint graph: expected and actual state. This is a defect of the compiler.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Contradiction(pub(crate) String);

/// The two halves of a joint graph.
#[derive(Clone, Debug)]
pub struct Partition {
    /// The joint graph's forward outputs, then the saved values.
    pub forward: Graph,
    /// Placeholders: those of the joint graph that it reads (of their own kind), one for each saved value in order, the
    /// tangents. Outputs: the gradients.
    pub backward: Graph,
    /// The saved values in order. A size that the backward needs and cannot read from a tensor is an integer.
    pub saved: Vec<Saved>,
    /// Nodes of the backward that depend on no tangent: recomputed values, and what gradient rules compute from
    /// values of the forward alone.
    pub recomputed: Vec<NodeId>,
}

/// A value that the forward keeps for the backward.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// The forward's value or size, as the forward returns it.
    pub arg: Arg,
    /// Its placeholder in the backward.
    pub placeholder: ValueId,
}

impl Partition {
    /// Bytes of the saved tensors, where their sizes are known ahead of time. Parameters and inputs that the backward
    /// reads are not kept again and do not count.
    pub fn saved_bytes(&self) -> Option<i64> {
        let bytes = |s: &Saved| match &s.arg {
            Arg::Value(v) => match &self.forward.values[*v].ty {
                ValueType::Tensor(meta) => Some(meta.numel().as_const()? * meta.dtype.size() as i64),
                _ => Some(8),
            },
            _ => Some(8),
        };
        self.saved.iter().map(bytes).sum()
    }

    /// As [`saved_bytes`](Partition::saved_bytes) with symbolic sizes at their hints.
    pub fn saved_bytes_hint(&self) -> i64 {
        let bytes = |s: &Saved| match &s.arg {
            Arg::Value(v) => prims::facts::bytes_hint(&self.forward, *v),
            _ => 8,
        };
        self.saved.iter().map(bytes).sum()
    }
}

/// Splits by the default rule: what the backward reads of the forward is saved.
///
/// # Errors
/// [`Contradiction`], which no joint graph should give.
pub fn partition(joint: &JointGraph) -> Result<Partition, Contradiction> {
    let backward = joint.graph.nodes.ids().map(|id| joint.is_backward(id)).collect();
    split::split(joint, &backward)
}
