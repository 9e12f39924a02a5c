//! Ahead-of-time autograd: from the captured program to graphs that a compiler may reorder.
//!
//! Stands: [`functionalize()`] (captured → functional dialect: no mutation, what the program writes is an extra output),
//! [`joint()`] (prims → forward and backward in one graph), [`partition()`] (the default split of the two). Not here
//! yet: the min-cut partitioner. Operators themselves, their gradients included, are `prims`' knowledge; decomposition to
//! prims is `prims::decompose`.

mod functionalize;
mod joint;
mod partition;

pub use functionalize::{FunctionalizeError, FunctionalizeProblem, functional_legality, functionalize};
pub use joint::{GradError, GradProblem, JointError, JointGraph, JointOptions, Tangents, Wrt, joint};
pub use partition::{MinCut, Partition, Saved, partition, partition_min_cut};
