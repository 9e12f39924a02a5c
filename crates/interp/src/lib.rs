//! The oracle: a slow, obvious executor of graphs of any dialect, and of kernel-ir programs.
//!
//! Graphs: [`run`] walks the nodes in order. A prim is computed by the reference of its table entry, a composite is
//! decomposed through the table and its prims are computed; in-place operators are run by value, with every view of
//! the written memory updated. It is the backend `eager`.
//!
//! Kernel programs: [`kernels::run`], point by point.
//!
//! Not here: fusion, memory planning, speed, and the meaning of operators (that stands in `prims`).
//!
//! ```
//! use tensor::Tensor;
//!
//! let text = r#"fx 1.0
//! graph "clipped" {
//!   %x: f32[3] = input "x"
//!   %y: f32[3] = aten.relu.default(%x)
//!   return %y
//! }
//! "#;
//! let x = Tensor::from_slice(&[-1f32, 0.5, 2.0], &[3])?;
//! let y = interp::run(&text.parse()?, &[x])?;
//! assert_eq!(y[0].to_vec::<f32>()?, [0.0, 0.5, 2.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod graph;
pub mod kernels;
mod symbols;
mod value;

pub use error::{InterpError, Location};
pub use graph::{Outcome, execute, execute_seeded, run};
pub use symbols::{Bindings, Conflict};
pub use value::Value;

#[cfg(test)]
mod tests;
