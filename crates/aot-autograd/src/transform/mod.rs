//! Function transforms on graphs of prims: [`grad`], [`vjp`], [`jvp`], [`vmap`], [`jacrev`], [`jacfwd`], [`hessian`]. Each
//! takes a graph and gives a graph, so any of them applies to the result of any other.
//!
//! A graph is a function of its placeholders, in order (the seed of random numbers is none of them), and returns its
//! outputs. Reverse mode is [`crate::joint()`]. Forward mode is the transpose of the transpose: `u -> vjp(x, u)` is linear,
//! and its own `vjp` is `v -> J v`, so that no operator has a forward rule that could disagree with its gradient; what
//! depended on `u` alone falls away. Batching rules stand with the operators (`prims::BatchRule`).

mod derivative;
mod jacobian;
mod vmap;
mod walk;

use fx_ir::{Arg, Graph, InputKind, ValueId, ValueType};
use ir_core::{Origin, TensorMeta};
use prims::OpError;
use thiserror::Error;

pub use derivative::{grad, jvp, value_and_grad, vjp};
pub use jacobian::{hessian, jacfwd, jacrev};
pub use prims::Randomness;
pub use vmap::{VmapOptions, vmap};

use crate::JointError;
use crate::passes::{self, PassCx};

/// Why a function cannot be transformed.
#[derive(Clone, Debug, Error)]
pub enum TransformError {
    /// It has no derivative.
    #[error(transparent)]
    Joint(#[from] JointError),
    /// Calls that do not act on batches: all of them.
    #[error("{} calls cannot be batched: {}", .0.len(), list(.0))]
    Batch(Vec<BatchError>),
    /// The function does not have the form that the transform needs.
    #[error("{transform}: {what}")]
    Form {
        /// The transform.
        transform: &'static str,
        /// What is wrong, and what to do.
        what: String,
    },
    /// What the transform adds is refused by an operator.
    #[error(transparent)]
    Op(#[from] OpError),
}

/// A call that does not act on batches.
#[derive(Clone, Debug, Error)]
#[error("node `{node}` ({target}{}): {error}", at(origin))]
pub struct BatchError {
    /// Name of the node.
    pub node: String,
    /// Its operator.
    pub target: String,
    /// Where it comes from.
    pub origin: Origin,
    /// Why.
    #[source]
    pub error: OpError,
}

fn at(origin: &Origin) -> String {
    let text = origin.to_string();
    if text.is_empty() { text } else { format!(", from {text}") }
}

fn list(errors: &[BatchError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn form(transform: &'static str, what: impl Into<String>) -> TransformError {
    TransformError::Form { transform, what: what.into() }
}

/// A placeholder: its value, what it is, its name outside, its type.
struct Input {
    value: ValueId,
    kind: InputKind,
    name: String,
    ty: ValueType,
}

/// The arguments of the function: every placeholder but the seed's.
fn arguments(graph: &Graph) -> Vec<Input> {
    let inputs = graph.inputs().filter(|(_, kind, _)| *kind != InputKind::Seed);
    inputs
        .map(|(value, kind, name)| Input {
            value,
            kind,
            name: name.to_owned(),
            ty: graph.values[value].ty.clone(),
        })
        .collect()
}

/// The results of the function, which are all tensors.
fn results(graph: &Graph, transform: &'static str) -> Result<Vec<(ValueId, TensorMeta)>, TransformError> {
    let one = |(n, output): (usize, &fx_ir::Output)| {
        match output.arg {
            Arg::Value(v) => graph.meta(v).map(|m| (v, m.clone())),
            _ => None,
        }
        .ok_or_else(|| form(transform, format!("output {n} is not a tensor: return tensors alone")))
    };
    graph.outputs.iter().enumerate().map(one).collect()
}

/// An empty graph about the symbols of another.
fn empty_with_symbols(graph: &Graph) -> Graph {
    let mut out = Graph::new(graph.name.clone());
    out.share_symbols(graph);
    out
}

/// Runs the passes that hold of a graph that may still be differentiated.
fn simplify(graph: &mut Graph) {
    passes::optimize(graph, &PassCx::before_joint());
    prims::scalars::eliminate_dead(graph);
}

/// A name that no placeholder has.
fn unused(graph: &Graph, name: &str) -> String {
    let mut candidate = name.to_owned();
    let mut number = 0;
    while graph.inputs().any(|(_, _, taken)| taken == candidate) {
        number += 1;
        candidate = format!("{name}_{number}");
    }
    candidate
}
