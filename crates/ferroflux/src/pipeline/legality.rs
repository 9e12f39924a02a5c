//! The legality predicates of the stages' results: one for each dialect, in addition to what [`fx_ir::verify()`] requires
//! of all graphs. The crates that know the operators define them (`prims::prim_legality`,
//! `aot_autograd::functional_legality`).

use fx_ir::verify::Problem;
use fx_ir::{Dialect, Graph, VerifyError, verify, well_formed};

use crate::boundary;

/// Any operator: the decomposition reports unknown ones together.
pub(super) fn captured(graph: &Graph) -> Result<(), Vec<VerifyError>> {
    well_formed(graph)
}

/// No operator that writes an operand.
pub(crate) fn functional(graph: &Graph) -> Result<(), Vec<VerifyError>> {
    verify(graph, &aot_autograd::functional_legality())
}

/// Primitive operators and control flow only.
pub(super) fn prim(graph: &Graph) -> Result<(), Vec<VerifyError>> {
    verify(graph, &prims::prim_legality())
}

/// As [`prim`], and no value whose dtype kernels do not have.
pub(super) fn real(graph: &Graph) -> Result<(), Vec<VerifyError>> {
    prim(graph)?;
    match foreign_call(graph) {
        None => Ok(()),
        Some(error) => Err(vec![error]),
    }
}

/// The first node with a result whose dtype kernels do not have.
fn foreign_call(graph: &Graph) -> Option<VerifyError> {
    let foreign = |v: &fx_ir::ValueId| graph.meta(*v).is_some_and(|m| boundary::is_foreign(m.dtype));
    let found = graph.iter().find(|(_, node)| node.outputs.iter().any(foreign));
    let inner = || graph.subgraphs.values().find_map(foreign_call);
    let Some((id, node)) = found else { return inner() };
    Some(VerifyError {
        graph: graph.name.clone(),
        node: Some(graph.node_name(id).into()),
        origin: graph.origin(id).to_string(),
        problem: Problem::Illegal {
            target: node.as_call().map_or("placeholder", |(target, _)| target).into(),
            dialect: Dialect::Prim,
            why: "kernels do not have its result's dtype, and the stage for such numbers has run".into(),
        },
    })
}
