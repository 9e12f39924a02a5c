//! The facts about a training step that remain of its graph: the relation of its inputs and results to the caller and to
//! the state. They are cached with the code, so that a cached step runs without a pass.

use aot_autograd::Wrt;
use fx_ir::{Graph, InputKind, Symbols};
use ir_core::{DType, Scalar};
use serde::{Deserialize, Serialize};
use tensor::Tensor;

use super::graphs::{DiffOptions, forward, joint_for_loss, merged, mixed, written};
use super::layout::Layouts;
use super::step::TrainOptions;
use super::update::{self, append};
use super::wiring::{Sink, Source, sinks, sources, user_numbers};
use crate::code::Optimized;
use crate::mesh::BatchGroups;
use crate::pipeline::Cx;
use crate::{Error, Program};

/// The facts of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepPlan {
    /// The size symbols.
    pub(crate) symbols: Symbols,
    /// The source of each input of the code.
    pub(crate) sources: Vec<Source>,
    /// The destination of each result of the code.
    pub(crate) sinks: Vec<Sink>,
    /// The numbers that a call supplies, in order.
    pub(crate) numbers: Vec<Number>,
    /// Whether the results end with the norm of all gradients, and with whether all were finite.
    pub(crate) reports: (bool, bool),
    /// The memory layout of the state.
    pub(crate) layouts: Layouts,
    /// The program's tensors that a step changes.
    pub(crate) own: Vec<String>,
    /// The optimizer's tensors, which begin as zeros.
    pub(crate) slots: Vec<Slot>,
}

/// A number that a call supplies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Number {
    pub(crate) name: String,
    pub(crate) dtype: DType,
}

/// The numbers of a step as tensors, from those of the optimizer and the scale of the loss.
///
/// # Errors
/// A number that neither has.
pub(crate) fn numbers(
    wanted: &[Number],
    optimizer: &[(&'static str, f64)],
    scale: f64,
) -> Result<Vec<Tensor>, Error> {
    let own = [("scale", scale), ("inverse_scale", 1.0 / scale)];
    let one = |n: &Number| {
        let value = optimizer.iter().chain(&own).find(|(name, _)| *name == n.name).map(|(_, x)| *x);
        let value = value.ok_or_else(|| Error::Internal(format!("a step has no number `{}`", n.name)))?;
        Ok(Tensor::scalar(n.dtype, Scalar::Float(value))?)
    };
    wanted.iter().map(one).collect()
}

/// A tensor of the optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Slot {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) sizes: Vec<usize>,
}

/// Whether a step updates the parameter of this name.
fn is_trained(program: &Program, name: &str) -> bool {
    program.exported().weights.get(name).is_none_or(|w| w.requires_grad)
}

/// The parameters that a step updates: the part of the weights that determines the graph.
pub(crate) fn trained(program: &Program) -> Vec<&str> {
    let parameters = program.graph().inputs().filter(|(_, kind, _)| *kind == InputKind::Parameter);
    parameters.map(|(_, _, name)| name).filter(|name| is_trained(program, name)).collect()
}

impl StepPlan {
    /// The graph of a step after stage `joint`, and its facts.
    ///
    /// # Errors
    /// As for [`Program::train_step`].
    pub(crate) fn make(program: &Program, train: &TrainOptions, cx: &Cx<'_>) -> Result<Planned, Error> {
        let prims = forward(program, train.loss, cx)?;
        let users = user_numbers(&prims);
        let wanted = prims
            .inputs()
            .filter(|(_, kind, name)| *kind == InputKind::Parameter && is_trained(program, name));
        let diff = DiffOptions::new().wrt(Wrt::Values(wanted.map(|(v, _, _)| v).collect()));
        let joint = joint_for_loss(prims, &diff, train.scaler.is_some())?;
        let gradients = merged(&joint, train.memory_budget)?;
        let updated = append(gradients, train).map_err(|e| Error::Optimizer(e.to_string()))?;
        if updated.trained.is_empty() {
            return Err(Error::Optimizer("the loss depends on no parameter that requires gradients".into()));
        }
        let graph = updated.graph;
        let kept: Vec<String> = written(&graph).into_iter().map(str::to_owned).collect();
        let numbers = updated.numbers;
        let sources = sources(&graph, &|v, _, name| {
            let number = numbers.iter().position(|n| n.value == v).map(Source::Scalar);
            let user = || users.get(&v).map(|n| Source::User(*n));
            let state = || kept.iter().any(|k| k == name).then(|| Source::State(name.into()));
            number.or_else(user).or_else(state)
        });
        let own = kept.iter().filter(|k| !updated.slots.iter().any(|s| s.name == **k)).cloned().collect();
        let slots = updated.slots.iter().map(sized).collect::<Result<_, Error>>()?;
        let (sinks, symbols) = (sinks(&graph), graph.symbols.clone());
        let numbers = numbers.into_iter().map(|n| Number { name: n.name.into(), dtype: n.dtype }).collect();
        let layouts = Layouts::default();
        let plan =
            StepPlan { symbols, sources, sinks, numbers, reports: updated.reports, layouts, own, slots };
        Ok(Planned { plan, graph, kept: updated.slots })
    }
}

impl Program {
    /// The forward in prims, and the whole step after the last stage, for a layout on a mesh without a backend.
    ///
    /// # Errors
    /// As for [`Program::train_step`].
    pub(crate) fn forward_and_step(
        &self,
        train: &TrainOptions,
        groups: BatchGroups,
    ) -> Result<(Graph, Graph), Error> {
        train.optimizer.check().map_err(Error::Optimizer)?;
        let cx = mixed(None, train.autocast)?.in_groups(groups);
        let forward = forward(self, train.loss, &cx)?;
        let (_, step) = StepPlan::make(self, train, &cx)?.optimized(false, &cx)?;
        Ok((forward, step.graph))
    }
}

/// A step before compilation.
pub(crate) struct Planned {
    pub(crate) plan: StepPlan,
    /// The result of stage `joint`.
    pub(crate) graph: Graph,
    /// The optimizer's tensors.
    kept: Vec<update::Slot>,
}

impl Planned {
    /// Takes the graph through the stages after `joint`, and gives the trained weights of convolutions the channels-last
    /// layout where that is wanted.
    ///
    /// # Errors
    /// The errors of the stages.
    pub(crate) fn optimized(self, channels_last: bool, cx: &Cx<'_>) -> Result<(StepPlan, Optimized), Error> {
        let mut optimized = Optimized::of_prims(self.graph, cx)?;
        let layouts = Layouts::of(&mut optimized.graph, &self.kept, channels_last);
        Ok((StepPlan { layouts, ..self.plan }, optimized))
    }
}

fn sized(slot: &update::Slot) -> Result<Slot, Error> {
    let sizes = slot.meta.sizes.iter().map(|s| usize::try_from(s.as_const()?).ok()).collect::<Option<_>>();
    let sizes = sizes.ok_or_else(|| Error::Internal(format!("`{}` has no fixed size", slot.name)))?;
    Ok(Slot { name: slot.name.clone(), dtype: slot.meta.dtype, sizes })
}
