//! The pipeline as a list: the stages of a captured graph until it is lowered to kernels ([`STAGES`]).
//!
//! Inference, functions ([`crate::func`]) and training use the same stages in the same order. `joint` does
//! nothing in inference; a function begins after `prim`, because its tracing produces prims; training builds the joint
//! graph at `joint` and continues with the whole step, or with each half.
//!
//! Complex numbers are split into real ones after `joint` and before the passes. After `joint`, because the gradient of a
//! complex operator is a rule on complex values. Before the passes, because these remove the residue of splitting (parts
//! that are joined and split again, imaginary parts that are zero), and because their patterns then match the operators of
//! kernels.
//!
//! In debug builds [`fx_ir::verify()`] checks the graph against the dialect of its stage after every stage and every pass;
//! in all builds it does so once for graphs from outside. `FERROFLUX_PRINT=after-all` prints the graph after each of them,
//! `FERROFLUX_PRINT=after:NAME` after the stage or pass of that name; `FERROFLUX_SKIP_PASSES=NAME,…` leaves passes out.
//!
//! Not here: the work of the stages, which is in the crates that they call, and the backends.

mod kernels;
mod legality;
mod observe;

use std::ops::RangeInclusive;

use aot_autograd::Mixed;
use aot_autograd::passes::{self, PassCx};
use fx_ir::{Dialect, Graph, VerifyError};
use ir_core::{AutocastDevice, DType};
use plugin_host::{IrVersion, LoadedBackend};
use prims::DecomposeCx;
use tracing::info_span;

pub(crate) use kernels::{KernelOptions, Kernels, lower};
pub(crate) use legality::functional as verify_functional;
use observe::Observer;
pub use observe::names;
pub(crate) use observe::{known, not_a_graph};

use crate::mesh::BatchGroups;
use crate::profiler::{Category, span};
use crate::{Error, Options};

/// One stage: a function from a graph to a graph, and the dialect of its result.
pub struct Stage {
    /// Its name, by which its result can be printed.
    pub name: &'static str,
    /// Its description, in a line.
    pub about: &'static str,
    /// The dialect of its result.
    pub dialect: Dialect,
    run: fn(Graph, &Cx<'_>) -> Result<Graph, Error>,
    /// Whether a graph is legal after it; every violation.
    legality: fn(&Graph) -> Result<(), Vec<VerifyError>>,
}

/// Every stage of graphs, in order. After the last one stand the kernels (named [`KERNELS`]).
pub const STAGES: &[Stage] = &[
    Stage {
        name: "captured",
        about: "takes the graph as it was exported, and holds its values against the operators' rules",
        dialect: Dialect::Captured,
        run: captured,
        legality: legality::captured,
    },
    Stage {
        name: "functional",
        about: "removes mutation: what the program writes is an extra output",
        dialect: Dialect::Functional,
        run: functional,
        legality: legality::functional,
    },
    Stage {
        name: "autocast",
        about: "inserts the conversions of mixed precision: in captured regions for the device, and where options ask for them",
        dialect: Dialect::Functional,
        run: autocast,
        legality: legality::functional,
    },
    Stage {
        name: "grouped",
        about: "gives batch norms the statistics of each of several groups of samples, where options ask for them",
        dialect: Dialect::Functional,
        run: grouped,
        legality: legality::functional,
    },
    Stage {
        name: "prim",
        about: "decomposes every operator to primitive ones",
        dialect: Dialect::Prim,
        run: prim,
        legality: legality::prim,
    },
    Stage {
        name: "joint",
        about: "appends the backward pass and the optimizer's update, where training asks for them",
        dialect: Dialect::Prim,
        run: joint,
        legality: legality::prim,
    },
    Stage {
        name: "real",
        about: "leaves the numbers that kernels have: two real values for a complex one, bits for 8-bit floats and large unsigned integers",
        dialect: Dialect::Prim,
        run: real,
        legality: legality::real,
    },
    Stage {
        name: "optimized",
        about: "runs the passes of `aot_autograd::passes::PASSES`",
        dialect: Dialect::Prim,
        run: optimized,
        legality: legality::real,
    },
];

/// The name of the result after the last stage: the fused program.
pub const KERNELS: &str = "kernels";

/// A stage by its index in [`STAGES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StageId {
    Captured,
    Functional,
    Autocast,
    Grouped,
    Prim,
    Joint,
    Real,
    Optimized,
}

impl StageId {
    fn stage(self) -> &'static Stage {
        &STAGES[self as usize]
    }
}

/// The context of the stages.
pub(crate) struct Cx<'a> {
    passes: PassCx,
    decompose: DecomposeCx,
    mixed: Mixed,
    groups: BatchGroups,
    observer: Observer<'a>,
}

impl<'a> Cx<'a> {
    /// For a model whose weights are frozen.
    ///
    /// # Errors
    /// The environment names a stage or pass that does not exist.
    pub(crate) fn inference() -> Result<Cx<'a>, Error> {
        Cx::of(PassCx::inference())
    }

    /// For functions, and for training, whose weights change from call to call.
    ///
    /// # Errors
    /// As for [`Cx::inference`].
    pub(crate) fn training() -> Result<Cx<'a>, Error> {
        Cx::of(PassCx::training())
    }

    fn of(passes: PassCx) -> Result<Cx<'a>, Error> {
        let passes = PassCx { skip: observe::skipped()?, ..passes };
        let mixed = Mixed { device: AutocastDevice::Cpu, whole: None };
        let (decompose, groups) = (DecomposeCx::default(), BatchGroups::default());
        Ok(Cx { passes, decompose, mixed, groups, observer: Observer::of_environment()? })
    }

    /// For a program that this backend compiles. Without it decompositions and mixed precision are those of a CPU, and no region of
    /// mixed precision is around the whole program.
    pub(crate) fn on(self, backend: &LoadedBackend, options: &Options) -> Cx<'a> {
        let lacks = |minor: u16| {
            let version = IrVersion::kernel_ir(kernel_ir::IR_MAJOR, minor);
            !backend.reads().iter().any(|own| own.reads(version))
        };
        let decompose = DecomposeCx {
            device_memory: backend.has_device_memory(),
            whole_scores: lacks(kernel_ir::DROPOUT),
            matrix_transforms: lacks(kernel_ir::FOURIER),
        };
        Cx { decompose, mixed: options.mixed(backend), groups: options.batch_groups(), ..self }
    }

    /// Sets whose statistics batch norms of training have.
    pub(crate) fn in_groups(self, groups: BatchGroups) -> Cx<'a> {
        Cx { groups, ..self }
    }

    /// Sets the dtype of a region of mixed precision around the whole program, if there is one.
    pub(crate) fn autocast(mut self, dtype: Option<DType>) -> Cx<'a> {
        self.mixed.whole = dtype.or(self.mixed.whole);
        self
    }

    /// For a program that is not split among devices.
    pub(crate) fn on_one_device(mut self) -> Cx<'a> {
        self.passes.side_by_side = self.decompose.device_memory;
        self
    }

    /// Calls `see` with the graph after every stage and pass, and the name of each.
    pub(crate) fn watched(mut self, see: &'a dyn Fn(&str, &Graph)) -> Cx<'a> {
        self.observer.see = Some(see);
        self
    }
}

/// Names of passes that do not run (`FERROFLUX_SKIP_PASSES`).
///
/// # Errors
/// One of them does not exist.
pub(crate) fn skipped() -> Result<Vec<String>, Error> {
    observe::skipped()
}

/// Takes a graph through some of the stages. It is the result of the stage before the first of them.
///
/// # Errors
/// The errors of the stages; a violation after a stage is an [`Error::Internal`].
pub(crate) fn run(mut graph: Graph, stages: RangeInclusive<StageId>, cx: &Cx<'_>) -> Result<Graph, Error> {
    let (first, last) = (*stages.start() as usize, *stages.end() as usize);
    if cfg!(debug_assertions) && first > 0 {
        observe::verified(&STAGES[first - 1], None, &graph)?;
    }
    for stage in &STAGES[first..=last] {
        let span = span(Category::Compile, || stage.name.to_owned());
        graph = (stage.run)(graph, cx)?;
        drop(span);
        cx.observer.behind(stage, None, &graph)?;
    }
    Ok(graph)
}

/// The stage of this name, or the one that the pass of this name is in.
pub(crate) fn stage_of(name: &str) -> StageId {
    let all = [
        StageId::Captured,
        StageId::Functional,
        StageId::Autocast,
        StageId::Grouped,
        StageId::Prim,
        StageId::Joint,
        StageId::Real,
    ];
    all.into_iter().find(|at| at.stage().name == name).unwrap_or(StageId::Optimized)
}

/// Reports a stage whose work its caller has done: the graph is verified and shown as after any other.
///
/// # Errors
/// A violation.
pub(crate) fn reached(at: StageId, graph: &Graph, cx: &Cx<'_>) -> Result<(), Error> {
    cx.observer.behind(at.stage(), None, graph)
}

/// Runs the passes within a stage, whose dialect holds after each of them.
///
/// # Errors
/// A violation after a pass.
pub(crate) fn passes(graph: &mut Graph, at: StageId, passes: &PassCx, cx: &Cx<'_>) -> Result<(), Error> {
    let passes = PassCx { skip: cx.passes.skip.clone(), ..passes.clone() };
    let mut first = Ok(());
    passes::optimize_watched(graph, &passes, &mut |name, graph| {
        if first.is_ok() {
            first = cx.observer.behind(at.stage(), Some(name), graph);
        }
    });
    first
}

/// A captured graph comes from outside, so it is verified in all builds.
fn captured(graph: Graph, _: &Cx<'_>) -> Result<Graph, Error> {
    let _span = info_span!("verify").entered();
    legality::captured(&graph).map_err(Error::Graph)?;
    prims::check_values(&graph).map_err(Error::Misstated)?;
    Ok(graph)
}

fn functional(graph: Graph, _: &Cx<'_>) -> Result<Graph, Error> {
    let _span = info_span!("functionalize").entered();
    aot_autograd::functionalize(&graph).map_err(Error::Functionalize)
}

fn autocast(graph: Graph, cx: &Cx<'_>) -> Result<Graph, Error> {
    aot_autograd::autocast(&graph, cx.mixed).map_err(Error::Autocast)
}

fn grouped(graph: Graph, cx: &Cx<'_>) -> Result<Graph, Error> {
    let groups = cx.groups.count(&graph)?;
    aot_autograd::batch_groups(&graph, groups).map_err(Error::BatchGroups)
}

fn prim(graph: Graph, cx: &Cx<'_>) -> Result<Graph, Error> {
    let _span = info_span!("decompose").entered();
    prims::decompose_in(&graph, cx.decompose).map_err(Error::Unsupported)
}

/// Callers that differentiate do it themselves, because the joint graph has more than a graph's outputs: see [`reached`].
fn joint(graph: Graph, _: &Cx<'_>) -> Result<Graph, Error> {
    Ok(graph)
}

fn real(graph: Graph, _: &Cx<'_>) -> Result<Graph, Error> {
    let _span = info_span!("numbers of kernels").entered();
    let graph = match prims::split_complex::has_complex(&graph) {
        true => prims::split_complex::split_complex(&graph).map_err(Error::Unsupported)?,
        false => graph,
    };
    match prims::carry::has_carried(&graph) {
        true => prims::carry::carry(&graph).map_err(Error::Unsupported),
        false => Ok(graph),
    }
}

fn optimized(mut graph: Graph, cx: &Cx<'_>) -> Result<Graph, Error> {
    let _span = info_span!("passes").entered();
    passes(&mut graph, StageId::Optimized, &cx.passes, cx)?;
    Ok(graph)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_are_those_of_the_list() {
        let all = [
            StageId::Captured,
            StageId::Functional,
            StageId::Autocast,
            StageId::Grouped,
            StageId::Prim,
            StageId::Joint,
            StageId::Real,
            StageId::Optimized,
        ];
        assert_eq!(all.len(), STAGES.len());
        for at in all {
            assert_eq!(at.stage().name, format!("{at:?}").to_lowercase());
        }
    }

    #[test]
    fn no_stage_is_named_as_a_pass() {
        let mut all: Vec<&str> = names().collect();
        all.sort_unstable();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
