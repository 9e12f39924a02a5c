//! The oracle: a slow, obvious executor of graphs of any dialect, and of kernel-ir programs.
//!
//! Graphs: [`run`] walks the nodes in order. A prim is computed by the reference of its table entry, a composite is
//! decomposed through the table and its prims are computed; in-place operators are run by value, with every view of
//! the written memory updated. It is the backend `eager`.
//!
//! Kernel programs: [`kernels::run`], point by point.
//!
//! Not here: fusion, memory planning, speed, and the meaning of operators (that stands in `prims`).

mod error;
mod graph;
pub mod kernels;
mod symbols;
mod value;

pub use error::{At, InterpError};
pub use graph::{Outcome, execute, execute_seeded, run};
pub use symbols::{Bindings, Conflict};
pub use value::Value;

#[cfg(test)]
mod tests;
