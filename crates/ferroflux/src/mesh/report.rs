//! A program's layout on a mesh, without any device: placements, exchanges, memory and time as they are predicted.

use fx_ir::{Graph, InputKind, NodeKind};
use sharding::{Costs, Exchange, Mesh, Plan, localize, propagate, spec};

use super::BatchGroups;
use crate::pipeline::{Cx, StageId};
use crate::train::TrainOptions;
use crate::{Error, Program};

/// A value and where it is.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedValue {
    /// Its name in the graph; that of the parameter for one.
    pub name: String,
    /// Whether it is a weight, an input, or computed.
    pub role: &'static str,
    /// Its sizes.
    pub sizes: String,
    /// `dp: S(0), tp: R`.
    pub placement: String,
    /// Bytes of the part that a rank has, of the largest; symbolic sizes by their hints.
    pub bytes: u64,
}

/// A value that ranks exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct MovedValue {
    /// Its name.
    pub name: String,
    /// The axis.
    pub axis: String,
    /// `all_reduce` and the like.
    pub kind: &'static str,
    /// Bytes that a rank sends.
    pub bytes: u64,
    /// Predicted seconds.
    pub seconds: f64,
}

/// The layout of a program.
#[derive(Clone, Debug, Default)]
pub struct LaidOut {
    /// Every tensor of the graph, in order.
    pub values: Vec<PlacedValue>,
    /// Every exchange of a call, in order.
    pub moved: Vec<MovedValue>,
    /// Calls on whole tensors: name, operator, reason.
    pub gathered: Vec<(String, String, String)>,
    /// Bytes of weights that a rank keeps, and of all.
    pub weights: (u64, u64),
    /// Bytes of temporary memory that a rank's program plans, where sizes are numbers.
    pub arena: Option<u64>,
    /// Predicted seconds of exchanges, and of work that ranks share.
    pub seconds: (f64, f64),
}

/// Lays out a model for inference on a mesh, by the plan or by what the names of the axes suggest.
///
/// # Errors
/// Those of the stages, and of a plan that does not fit.
pub fn layout(program: &Program, mesh: &Mesh, plan: Option<&Plan>) -> Result<LaidOut, Error> {
    let plan = plan.cloned().unwrap_or_else(|| Plan::usual(mesh));
    let groups = BatchGroups::on(mesh, plan.clone(), None);
    let graph = program.through(StageId::Optimized, &Cx::inference()?.in_groups(groups.clone()))?;
    laid_out((&graph, &graph), mesh, &plan, &groups)
}

/// Lays out a training step on a mesh: forward, backward and update; in other respects as [`layout`].
///
/// # Errors
/// As for [`layout`], and those of [`Program::train_step`] but for a backend's.
pub fn step_layout(
    program: &Program,
    train: &TrainOptions,
    mesh: &Mesh,
    plan: Option<&Plan>,
) -> Result<LaidOut, Error> {
    let plan = plan.cloned().unwrap_or_else(|| Plan::usual(mesh));
    let groups = BatchGroups::on(mesh, plan.clone(), None);
    let (forward, step) = program.forward_and_step(train, groups.clone())?;
    laid_out((&step, &forward), mesh, &plan, &groups)
}

/// The layout of a graph of prims; `forward` is the same program without its backward pass.
fn laid_out(
    (graph, forward): (&Graph, &Graph),
    mesh: &Mesh,
    plan: &Plan,
    groups: &BatchGroups,
) -> Result<LaidOut, Error> {
    let costs = &plan.costs(mesh)?;
    let fixed = plan.resolve(graph, forward, mesh, costs)?;
    let layout = propagate(graph, mesh, &fixed, costs)?;
    groups.check(graph, &layout)?;
    let local = localize(graph, mesh, &layout, &mesh.coordinates(0))?;
    let mut found = LaidOut::default();
    for (id, node) in graph.iter() {
        let role = match node.kind {
            NodeKind::Placeholder { kind: InputKind::User | InputKind::Seed, .. } => "input",
            NodeKind::Placeholder { .. } => "weight",
            NodeKind::Call { .. } => "value",
        };
        for &v in &node.outputs {
            let (Some(meta), Some(placed)) = (graph.meta(v), layout.values.get(&v)) else { continue };
            let shared: usize = placed
                .iter()
                .zip(mesh.axes())
                .filter(|(p, _)| p.dim().is_some())
                .map(|(_, a)| a.size)
                .product();
            let whole = prims::facts::bytes_hint(graph, v).max(0) as u64;
            let bytes = whole.div_ceil(shared as u64);
            if role == "weight" {
                found.weights = (found.weights.0 + bytes, found.weights.1 + whole);
            }
            let name = match &node.kind {
                NodeKind::Placeholder { name, .. } => name.clone(),
                NodeKind::Call { .. } => graph.values[v].name.clone(),
            };
            let (sizes, placement) = (graph.sizes_text(&meta.sizes), spec::text(mesh, placed, graph));
            found.values.push(PlacedValue { name, role, sizes, placement, bytes });
        }
        let split = layout
            .calls
            .get(&id)
            .is_some_and(|c| c.results.iter().any(|s| s.iter().any(|p| p.dim().is_some())));
        let ranks = if split { mesh.ranks() } else { 1 };
        found.seconds.1 += costs.work(graph, id) / ranks as f64;
    }
    found.moved = local.exchanges.iter().map(|e| moved(e, mesh, costs)).collect();
    found.seconds.0 = found.moved.iter().map(|m| m.seconds).sum();
    found.gathered =
        layout.gathered.iter().map(|(n, t, w)| (n.clone(), t.clone(), (*w).to_owned())).collect();
    let kernels = inductor::compile(&local.graph, &inductor::Options::default())?;
    found.arena = kernels.plan.bytes;
    Ok(found)
}

/// An exchange, and what it costs.
fn moved(e: &Exchange, mesh: &Mesh, costs: &Costs) -> MovedValue {
    MovedValue {
        name: e.value.clone(),
        axis: mesh.axes()[e.axis].name.clone(),
        kind: e.kind.name(),
        bytes: e.bytes as u64,
        seconds: costs.exchange(mesh, e.axis, e.kind, e.whole),
    }
}
