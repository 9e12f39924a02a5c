//! Ahead-of-time autograd: from the captured program to graphs that a compiler may reorder.
//!
//! Stands: [`functionalize()`] (captured → functional dialect: no mutation, what the program writes is an extra output).
//! Not here yet: the joint forward/backward graph and the min-cut partitioner. Operators themselves are `prims`'
//! knowledge; decomposition to prims is `prims::decompose`.

mod functionalize;

pub use functionalize::{FunctionalizeError, FunctionalizeProblem, functional_legality, functionalize};
