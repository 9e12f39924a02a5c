//! The graph IR of Ferroflux: typed nodes in arenas, symbols with ranges, subgraphs; a text format that reads back, a
//! verifier, a rewriter and a drawer.
//!
//! fx-ir knows no operator: a call's `target` is a name, and what the name means stands in `prims`. Graphs come from
//! `pt2` (archives) or `dynamo` (Rust programs) and go through `aot-autograd` and `prims` to `inductor`.

mod arg;
pub mod draw;
mod graph;
mod readable;
mod rewrite;
pub mod text;
pub mod verify;

pub use arg::Arg;
pub use graph::{
    Graph, GraphName, InputKind, Node, NodeId, NodeKind, OriginId, Output, OutputKind, SEED, SubgraphId,
    Value, ValueId, ValueType,
};
pub use ir_core::text::{TextError, TextProblem};
pub use ir_core::{Symbol, Symbols};
pub use rewrite::Uses;
pub use verify::{Dialect, Legality, VerifyError, verify, well_formed};
