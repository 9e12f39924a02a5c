//! The graph IR of Ferroflux: typed nodes in arenas, symbols with ranges, subgraphs; a text format that reads back, a
//! verifier, a rewriter and a drawer.
//!
//! fx-ir knows no operator: a call's `target` is a name, and what the name means is in `prims`. Graphs come from
//! `pt2` (archives) or from traced Rust functions and go through `aot-autograd` and `prims` to `inductor`.
//!
//! ```
//! use fx_ir::Graph;
//!
//! let text = r#"fx 1.0
//! graph "double" {
//!   symbol s0 "batch" 1..=64
//!   %x: f32[s0, 4] = input "x"
//!   %y: f32[s0, 4] = aten.add.Tensor(%x, %x, 1)
//!   return %y
//! }
//! "#;
//! let graph: Graph = text.parse()?;
//! assert!(fx_ir::well_formed(&graph).is_ok());
//! assert_eq!(graph.to_string().parse::<Graph>()?, graph);
//! # Ok::<(), fx_ir::TextError>(())
//! ```

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
