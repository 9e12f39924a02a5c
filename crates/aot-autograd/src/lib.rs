//! Ahead-of-time autograd: from the captured program to graphs that a compiler may reorder.
//!
//! [`functionalize()`]: captured → functional dialect (no mutation, what the program writes is an extra output).
//! [`autocast()`]: the same program in mixed precision. [`batch_groups()`]: with batch norms over groups of samples. [`joint()`]: prims → forward and backward in one graph.
//! [`partition()`], [`partition_min_cut()`]: the two halves. [`passes`]: simplifications of any graph of prims.
//! [`transform`]: `grad`, `vjp`, `jvp`, `vmap` and the transforms built on them, from graph to graph. The operators, their
//! gradients included, are in `prims`, as is decomposition (`prims::decompose`).
//!
//! ```
//! let text = r#"fx 1.0
//! graph "in place" {
//!   %x: f32[3] = input "x"
//!   %y: f32[3] = aten.add.Tensor(%x, %x, 1)
//!   %z: f32[3] = aten.relu_.default(%y)
//!   return %z
//! }
//! "#;
//! let functional = aot_autograd::functionalize(&text.parse().unwrap()).unwrap();
//! assert!(functional.to_string().contains("aten.relu.default"), "nothing is written any more");
//! ```

mod autocast;
mod batch_groups;
mod functionalize;
mod joint;
mod normalize;
mod partition;
pub mod passes;
pub mod quantize;
mod symbols;
pub mod transform;

pub use autocast::{AutocastError, CastOperands, Mixed, autocast, is_cast, operand_dtype};
pub use batch_groups::{BatchGroupsError, BatchGroupsProblem, batch_groups};
pub use functionalize::{
    FunctionalizeError, FunctionalizeProblem, ViewInverse, ViewRule, functional_legality, functionalize,
    view_rule,
};
pub use joint::{GradError, GradProblem, JointError, JointGraph, JointOptions, Tangents, Wrt, joint};
pub use partition::{Contradiction, MinCut, Partition, Saved, partition, partition_min_cut};
