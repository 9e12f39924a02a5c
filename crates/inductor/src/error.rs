//! Errors of the lowering. One error lists every problem of a graph.

use ir_core::Origin;
use prims::OpError;
use thiserror::Error;

/// Why a graph is not compiled.
#[derive(Debug, Error)]
pub enum InductorError {
    /// Nodes that cannot be compiled: all of them, in graph order.
    #[error("{} of the graph's nodes cannot be compiled:\n{}", .0.len(), .0.iter().map(|p| format!("  {p}")).collect::<Vec<_>>().join("\n"))]
    Refused(Vec<Problem>),
    /// An internal contradiction: expected and actual state. The program would compute wrong numbers.
    #[error("internal error: {0}")]
    Internal(String),
}

impl InductorError {
    /// The nodes that cannot be compiled.
    pub fn problems(&self) -> &[Problem] {
        match self {
            InductorError::Refused(problems) => problems,
            InductorError::Internal(_) => &[],
        }
    }
}

/// One node that cannot be compiled.
#[derive(Clone, Debug, Error)]
#[error("node `{node}` ({target}){}: {what}", at(origin))]
pub struct Problem {
    /// Name of the node.
    pub node: String,
    /// Its operator.
    pub target: String,
    /// Where it comes from.
    pub origin: Origin,
    /// What is wrong and what to do.
    pub what: String,
}

fn at(origin: &Origin) -> String {
    let text = origin.to_string();
    if text.is_empty() { text } else { format!(" from {text}") }
}

impl Problem {
    pub(crate) fn of(graph: &fx_ir::Graph, id: fx_ir::NodeId, what: impl Into<String>) -> Problem {
        let target = graph.nodes[id].as_call().map_or("placeholder", |(t, _)| t).to_string();
        Problem {
            node: graph.node_name(id).into(),
            target,
            origin: graph.origin(id).clone(),
            what: what.into(),
        }
    }
    pub(crate) fn op(graph: &fx_ir::Graph, id: fx_ir::NodeId, error: &OpError) -> Problem {
        Problem::of(graph, id, error.to_string())
    }
}
