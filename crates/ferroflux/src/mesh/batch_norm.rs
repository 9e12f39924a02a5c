//! How many groups of samples the batch norms of a compilation have, from what options and a plan say and from the mesh. Not here:
//! the rewriting of the graph (`aot_autograd::batch_groups`), which knows no mesh.

use fx_ir::Graph;
use sharding::{BatchNorm, Layout, Mesh, Plan, check_batch_norms};

use super::MeshOptions;
use crate::Error;

/// Whose statistics batch norms have.
#[derive(Clone, Debug, Default)]
pub(crate) struct BatchGroups {
    statistics: BatchNorm,
    /// The mesh, and the plan that says which of its axes split the batch.
    laid_out: Option<(Mesh, Plan)>,
}

impl BatchGroups {
    /// What an option says, or else the plan of a mesh.
    pub(crate) fn of(given: Option<BatchNorm>, options: Option<&MeshOptions>) -> BatchGroups {
        let Some(options) = options else {
            return BatchGroups { statistics: given.unwrap_or_default(), laid_out: None };
        };
        let mesh = options.member.mesh();
        // What is wrong with a plan is reported where the program is laid out.
        BatchGroups::on(mesh, options.whole_plan(mesh).unwrap_or_default(), given)
    }

    /// What is given, or else the plan of a mesh.
    pub(crate) fn on(mesh: &Mesh, plan: Plan, given: Option<BatchNorm>) -> BatchGroups {
        BatchGroups { statistics: given.unwrap_or(plan.batch_norm), laid_out: Some((mesh.clone(), plan)) }
    }

    /// The number of groups in a program's batch.
    ///
    /// # Errors
    /// A plan over axes that the mesh lacks.
    pub(crate) fn count(&self, graph: &Graph) -> Result<u32, Error> {
        match (self.statistics, &self.laid_out) {
            (BatchNorm::Groups(n), _) => Ok(n.get()),
            (BatchNorm::Whole, _) | (BatchNorm::Rank, None) => Ok(1),
            (BatchNorm::Rank, Some((mesh, plan))) => {
                let axes = plan.batch_axes(graph, mesh)?;
                // A mesh has at most 2^20 ranks.
                Ok(axes.into_iter().map(|axis| mesh.axes()[axis].size as u32).product())
            }
        }
    }

    /// Refuses a layout of a graph of prims in which ranks have no groups of their own although that was asked for.
    ///
    /// # Errors
    /// The first batch norm whose samples are placed otherwise.
    pub(crate) fn check(&self, graph: &Graph, layout: &Layout) -> Result<(), Error> {
        let (BatchNorm::Rank, Some((mesh, plan))) = (self.statistics, &self.laid_out) else { return Ok(()) };
        let axes = plan.batch_axes(graph, mesh)?;
        let axes: Vec<usize> = axes.into_iter().filter(|axis| mesh.axes()[*axis].size > 1).collect();
        Ok(check_batch_norms(graph, mesh, layout, (self.count(graph)?, &axes))?)
    }
}
