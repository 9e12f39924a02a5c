//! Why a graph cannot be run. Every error names the node or the input, and where the node comes from.

use ir_core::{DType, Origin};
use kernel_ir::Site;
use prims::OpError;
use tensor::TensorError;

use crate::symbols::Conflict;

/// Where in the graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Location {
    /// Name of the node.
    pub node: String,
    /// Its operator.
    pub target: String,
    /// Where it comes from.
    pub origin: Origin,
}

impl std::fmt::Display for Location {
    /// `node `add_1` (aten.add.Tensor), from layer1: add at model.py:3`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node `{}` ({})", self.node, self.target)?;
        let origin = self.origin.to_string();
        if origin.is_empty() { Ok(()) } else { write!(f, ", from {origin}") }
    }
}

/// A refused run.
#[derive(Clone, Debug, thiserror::Error)]
pub enum InterpError {
    /// Too few or too many inputs.
    #[error("graph `{graph}` takes {expected} inputs, {got} were given")]
    InputCount {
        /// Name of the graph.
        graph: String,
        /// Placeholders.
        expected: usize,
        /// What was given.
        got: usize,
    },
    /// An input is no tensor where one is wanted, or the other way round.
    #[error("input `{input}` must be {expected}")]
    InputKind {
        /// Name of the argument.
        input: String,
        /// `a tensor`, `an integer`…
        expected: &'static str,
    },
    /// An input has another element type.
    #[error("input `{input}` is {got}, the graph wants {expected}: convert it first")]
    InputDType {
        /// Name of the argument.
        input: String,
        /// What was given.
        got: DType,
        /// What is wanted.
        expected: DType,
    },
    /// An input's sizes do not fit.
    #[error("input `{input}` has sizes {got:?}, the graph wants [{expected}]")]
    InputSizes {
        /// Name of the argument.
        input: String,
        /// What was given.
        got: Vec<usize>,
        /// What is wanted, symbols included.
        expected: String,
    },
    /// The inputs contradict each other or a symbol's range.
    #[error("input `{input}`: {problem}")]
    Symbol {
        /// Name of the argument.
        input: String,
        /// What does not fit, in the caller's sizes.
        problem: String,
        /// The same in the graph's symbols.
        conflict: Conflict,
    },
    /// An operator refused.
    #[error("{at}: {error}")]
    Node {
        /// Which node.
        at: Box<Location>,
        /// Why.
        #[source]
        error: OpError,
    },
    /// An index from data does not lie in its dimension.
    #[error("{}", site.message(*index, *size))]
    Index {
        /// Who asks for it.
        site: Box<Site>,
        /// The index.
        index: i64,
        /// Size of the dimension.
        size: i64,
    },
    /// A result is not what the graph says of it.
    #[error("{at}: gives {got}, the graph says {expected}")]
    Result {
        /// Which node.
        at: Box<Location>,
        /// What was computed.
        got: String,
        /// What the graph says.
        expected: String,
    },
    /// A size has no value when it is needed.
    #[error("{at}: the size `{expr}` is not known yet")]
    Unbound {
        /// Which node.
        at: Box<Location>,
        /// The expression.
        expr: String,
    },
    /// A size of a result is negative in this call.
    #[error("{at}: dimension {dim} of its result, `{expr}`, is {size}: the inputs are too small for it")]
    NegativeSize {
        /// Which node.
        at: Box<Location>,
        /// Which dimension.
        dim: usize,
        /// The size as the graph writes it.
        expr: String,
        /// Its value.
        size: i64,
    },
    /// A value is used before it is made: the graph is broken.
    #[error("{at}: {what}")]
    Graph {
        /// Which node.
        at: Box<Location>,
        /// What is wrong.
        what: String,
    },
    /// A form that this executor does not run.
    #[error("{at}: {what} is not supported by eager")]
    Unsupported {
        /// Which node.
        at: Box<Location>,
        /// What.
        what: String,
    },
    /// A tensor could not be made.
    #[error("{at}: {error}")]
    Tensor {
        /// Which node.
        at: Box<Location>,
        /// Why.
        #[source]
        error: TensorError,
    },
}
