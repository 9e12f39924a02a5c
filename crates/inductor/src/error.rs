//! What inductor refuses. One error lists every problem of a graph.

use ir_core::Origin;
use prims::OpError;
use thiserror::Error;

/// A graph that cannot be compiled.
#[derive(Debug, Error)]
#[error("{} of the graph's nodes cannot be compiled:\n{}", problems.len(), problems.iter().map(|p| format!("  {p}")).collect::<Vec<_>>().join("\n"))]
pub struct InductorError {
    /// All problems, in graph order.
    pub problems: Vec<Problem>,
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
