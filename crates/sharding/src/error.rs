//! Errors of this crate.

use ir_core::Origin;
use prims::OpError;
use thiserror::Error;

/// Why a program cannot be laid out on a mesh.
#[derive(Debug, Error)]
pub enum ShardingError {
    /// A text or list that is no mesh.
    #[error("the mesh: {0}")]
    Mesh(String),
    /// A plan that cannot be read.
    #[error("the plan: {0}")]
    Plan(String),
    /// A placement that its tensor cannot have.
    #[error("the placement of `{name}`: {what}")]
    Placement {
        /// The value.
        name: String,
        /// Why, and what to do.
        what: String,
    },
    /// A pattern that matches nothing.
    #[error(
        "the plan's pattern `{0}` matches no parameter, buffer, input or value: see `ferroflux explain --mesh`"
    )]
    Unmatched(String),
    /// A batch norm of each rank's own samples that ranks would have to exchange samples for.
    #[error(
        "`{node}` ({origin}) is of a batch norm with each rank's own statistics, but the batch of its input is not in parts over `{axis}`: place it so, or choose `whole` statistics, or `groups=N`, which runs on any placement"
    )]
    BatchNorm {
        /// The node.
        node: String,
        /// Its place in the program.
        origin: Box<Origin>,
        /// The axis of the mesh.
        axis: String,
    },
    /// A call whose local form its operator refuses.
    #[error("`{node}` ({origin}) has no local form: {source}")]
    Call {
        /// The node.
        node: String,
        /// Its place in the program.
        origin: Box<Origin>,
        /// The refusal.
        source: OpError,
    },
    /// A mistake in this crate or in an operator's sharding rule.
    #[error(
        "`{node}`: the part of a rank has sizes {found}, its placement means {expected}: this is a bug in the compiler, please report the model"
    )]
    Sizes {
        /// The node.
        node: String,
        /// Of the local call.
        found: String,
        /// Of the placement.
        expected: String,
    },
    /// A graph that is not as a graph of prims is.
    #[error("the graph is malformed at `{0}`: this is a bug in the compiler, please report the model")]
    Graph(String),
}
