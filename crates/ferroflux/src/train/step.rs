//! A whole training step as one compiled program: forward, backward, clipping and the optimizer's update.

use std::collections::BTreeMap;

use fx_ir::InputKind;
use ir_core::{DType, Guard, Scalar};
use plugin_host::{Arg, LoadedBackend, Value};
use rayon::prelude::*;
use tensor::Tensor;

use super::graphs::mixed;
use super::plan::{self, StepPlan, numbers};
use super::wiring::{Sink, Source, State, initial, replace};
use crate::cache::{Caller, Form, Lookup, Stage, get_or_compile};
use crate::code::{Code, CompiledCode, Optimized};
use crate::inputs::{Arguments, Input, InputInfo};
use crate::mesh::{MeshOptions, Part, Parts, Sharded};
use crate::optim::Optimizer;
use crate::pipeline::{self, Cx, KernelOptions};
use crate::seeds::{fresh_base, seed_of};
use crate::{Error, Options, Program, graph_plugin, report};

/// Gradient clipping before the update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// All gradients together are scaled down so that their 2-norm is at most `max`
    /// (`torch.nn.utils.clip_grad_norm_`).
    Norm {
        /// Largest norm.
        max: f64,
        /// Whether a norm that is not a finite number is an error; nothing is updated then.
        error_if_nonfinite: bool,
    },
    /// Every element is at most this in magnitude (`clip_grad_value_`).
    Value(f64),
}

/// Dynamic scaling of the loss, as `torch.amp.GradScaler` does it, for gradients in `f16`.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaler {
    /// The current factor.
    pub scale: f64,
    /// The factor grows by this after `interval` steps without an infinity.
    pub growth: f64,
    /// It shrinks by this at an infinity.
    pub backoff: f64,
    /// Steps before it grows.
    pub interval: u64,
    /// Steps since the last change.
    pub good: u64,
}

impl Default for Scaler {
    /// PyTorch's defaults.
    fn default() -> Scaler {
        Scaler { scale: 65536.0, growth: 2.0, backoff: 0.5, interval: 2000, good: 0 }
    }
}

impl Scaler {
    fn update(&mut self, finite: bool) {
        if !finite {
            (self.scale, self.good) = (self.scale * self.backoff, 0);
            return;
        }
        self.good += 1;
        if self.good == self.interval {
            // A scale that is NaN would stop training.
            let grown = self.scale * self.growth;
            (self.scale, self.good) = (if (grown as f32).is_finite() { grown } else { self.scale }, 0);
        }
    }
}

/// The options of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainOptions {
    pub(crate) optimizer: Optimizer,
    pub(crate) clip: Option<Clip>,
    pub(crate) scaler: Option<Scaler>,
    pub(crate) loss: Option<usize>,
    pub(crate) autocast: Option<DType>,
    pub(crate) channels_last: Option<bool>,
    pub(crate) memory_budget: f64,
}

impl TrainOptions {
    /// This optimizer, no clipping, no scaling.
    pub fn new(optimizer: Optimizer) -> TrainOptions {
        TrainOptions {
            optimizer,
            clip: None,
            scaler: None,
            loss: None,
            autocast: None,
            channels_last: None,
            memory_budget: 1.0,
        }
    }
    /// Clips the gradients.
    pub fn clip(mut self, clip: Clip) -> TrainOptions {
        self.clip = Some(clip);
        self
    }
    /// Scales the loss, and skips steps whose gradients are not finite.
    pub fn scaler(mut self, scaler: Scaler) -> TrainOptions {
        self.scaler = Some(scaler);
        self
    }
    /// Enables autocast to `bf16` or `f16`; `f16` needs a [`scaler`](TrainOptions::scaler) too.
    pub fn autocast(mut self, dtype: DType) -> TrainOptions {
        self.autocast = Some(dtype);
        self
    }
    /// Whether trained weights of convolutions are stored channels-last as long as the step lives, as libraries for GPUs
    /// prefer; by default they are on backends that keep tensors on a device. Only speed differs: the results of the step,
    /// and tensors that are read from its state or set, are row-major.
    pub fn channels_last(mut self, wanted: bool) -> TrainOptions {
        self.channels_last = Some(wanted);
        self
    }
    /// How much may be saved for the backward, 0 to 1; see [`DiffOptions::memory_budget`](super::DiffOptions::memory_budget).
    pub fn memory_budget(mut self, budget: f64) -> TrainOptions {
        self.memory_budget = budget;
        self
    }
    /// Which of the returned tensors is the loss; not needed where the program marks one or returns one alone.
    pub fn loss(mut self, output: usize) -> TrainOptions {
        self.loss = Some(output);
        self
    }
    /// Whether trained weights are channels-last, explicitly or by default.
    pub(crate) fn is_channels_last(&self, options: &Options) -> Result<bool, Error> {
        self.channels_last.map_or_else(|| crate::keeps_tensors_on_a_device(&options.backend), Ok)
    }
}

/// A training step, compiled, and the state that it trains. Parameters that do not require gradients stay as they are.
pub struct TrainStep {
    program: Program,
    arguments: Arguments,
    plan: StepPlan,
    pub(super) code: Code,
    kernels: Option<kernel_ir::Program>,
    from_cache: bool,
    options: TrainOptions,
    pub(super) state: State,
    pub(super) progress: Progress,
    pub(super) parts: Parts,
}

/// The state of training.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Progress {
    /// Updates so far.
    pub(super) updates: u64,
    /// Calls so far, skipped ones included.
    pub(super) calls: u64,
    pub(super) seed: u64,
    pub(super) scaler: Option<Scaler>,
}

/// The result of a step.
#[derive(Clone, Debug)]
pub struct StepOutcome {
    /// The loss, before the update.
    pub loss: f64,
    /// All tensors that the program returns, the loss among them.
    pub outputs: Vec<Tensor>,
    /// Norm of all gradients before clipping, where they are clipped by it.
    pub grad_norm: Option<f64>,
    /// Whether the update was skipped because a scaled gradient was not finite.
    pub skipped: bool,
}

/// Results of a step by destination: the caller, the state, reports.
type Sorted = (StepOutcome, Vec<(String, Value)>, Vec<Tensor>);

impl Program {
    /// Compiles forward, backward and update as one program.
    ///
    /// # Errors
    /// As for [`differentiate`](Program::differentiate); invalid settings of the optimizer.
    pub fn train_step(&self, train: &TrainOptions, options: &Options) -> Result<TrainStep, Error> {
        self.require_weights()?;
        if let Some(whole) = self.made_on_host()? {
            return whole.train_step(train, options);
        }
        train.optimizer.check().map_err(Error::Optimizer)?;
        let CompiledStep { plan, code, kernels, from_cache, guards, parts } =
            self.made_step(train, options)?;
        let _span = tracing::info_span!("state").entered();
        let mut state = State::new();
        // Converting weights takes the host longer than a device takes to read them.
        let laid_out = initial(self, &plan.own)?.into_par_iter().map(|(name, tensor)| {
            let tensor = plan.layouts.laid_out(&name, parts.cut(&name, &tensor)?)?;
            Ok((name, tensor))
        });
        let laid_out = {
            let _span = tracing::debug_span!("lay out").entered();
            laid_out.collect::<Result<Vec<_>, Error>>()?
        };
        let _span = tracing::debug_span!("hand over").entered();
        for (name, tensor) in laid_out {
            let value = code.own(&tensor)?;
            state.insert(name, value);
        }
        for slot in &plan.slots {
            let zeros = plan.layouts.zeros(&slot.name, slot.dtype, &slot.sizes)?;
            state.insert(slot.name.clone(), code.own(&zeros)?);
        }
        let seed = options.seed.unwrap_or_else(fresh_base);
        Ok(TrainStep {
            program: self.clone(),
            arguments: Arguments::of(self, &plan.symbols, &guards)?,
            plan,
            code,
            kernels,
            from_cache,
            state,
            parts,
            progress: Progress { updates: 0, calls: 0, seed, scaler: train.scaler.clone() },
            options: train.clone(),
        })
    }

    /// The code of a step, from the cache if it is there: then no pass runs.
    fn made_step(&self, train: &TrainOptions, options: &Options) -> Result<CompiledStep, Error> {
        let channels_last = train.is_channels_last(options)?;
        let weight = |name: &str| self.weight_value(name, None);
        let backend = crate::registry().load(&options.backend)?;
        let cx = mixed(Some((&backend, options)), train.autocast)?;
        if graph_plugin::takes_graphs(&backend) {
            options.refuse_mesh("a backend that takes whole graphs")?;
            let planned = StepPlan::make(self, train, &cx)?;
            let CompiledCode { code, kernels, guards } = Code::of_prims(planned.graph, &weight, options)?;
            let (plan, parts) = (planned.plan, Parts::default());
            return Ok(CompiledStep { plan, code, kernels, from_cache: false, guards, parts });
        }
        if let Some(mesh) = &options.mesh {
            return self.step_of_rank(train, &backend, options, mesh);
        }
        let lookup = self.step_lookup(train, channels_last, &backend, options);
        let (form, executable, from_cache) = get_or_compile(lookup.as_ref(), || {
            let (plan, optimized, wanted) = self.optimized_step(train, channels_last, &cx)?;
            let (kernels, executable) =
                optimized.compile(&backend, options, &wanted, (lookup.as_ref(), &cx))?;
            Ok((Form { kernels, shown: optimized.shown, caller: Caller::Step(plan) }, executable))
        })?;
        let code = Code::bound(&form, executable, &backend, &weight)?;
        if !from_cache {
            lookup.iter().for_each(|l| l.tidy(&form.kernels));
        }
        let Caller::Step(plan) = form.caller else {
            return Err(Error::Internal("a compiled training step without its inputs and outputs".into()));
        };
        let kernels = form.kernels.program;
        report::compiled(report::Made {
            program: self,
            kernels: &kernels,
            backend: &backend,
            options,
            code: &code,
            prims: &|| Ok(self.optimized_step(train, channels_last, &Cx::training()?)?.1.graph),
        });
        let guards = kernels.guards.clone();
        Ok(CompiledStep { plan, code, guards, kernels: Some(kernels), from_cache, parts: Parts::default() })
    }

    /// The code of a step for a rank of a mesh.
    fn step_of_rank(
        &self,
        train: &TrainOptions,
        backend: &LoadedBackend,
        options: &Options,
        mesh: &MeshOptions,
    ) -> Result<CompiledStep, Error> {
        let cx = mixed(Some((backend, options)), train.autocast)?;
        let forward = super::graphs::forward(self, train.loss, &cx)?;
        let (mut plan, whole, _) = self.optimized_step(train, false, &cx)?;
        let Sharded { graph, parts } = mesh.shard(&whole.graph, &forward, &options.batch_groups())?;
        for slot in &mut plan.slots {
            slot.sizes = parts.sizes(&slot.name, &slot.sizes);
        }
        let optimized = Optimized { graph, shown: whole.shown };
        let wanted = KernelOptions { in_place: true, ..KernelOptions::of_optimized(&optimized.graph) };
        let compile = |wanted: &KernelOptions| optimized.compile(backend, options, wanted, (None, &cx));
        let (kernels, executable) = mesh.compile(&wanted, compile)?;
        let weight = |name: &str| match self.weight_value(name, None)? {
            Some(whole) => parts.cut_value(name, whole).map(Some),
            None => Ok(None),
        };
        let Optimized { graph, shown } = optimized;
        let form = Form { kernels, shown, caller: Caller::Step(plan) };
        let mut code = Code::bound(&form, executable, backend, &weight)?;
        code.take_turns(Some(mesh));
        report::compiled(report::Made {
            program: self,
            kernels: &form.kernels.program,
            backend,
            options,
            code: &code,
            prims: &|| Ok(graph.clone()),
        });
        let Caller::Step(plan) = form.caller else {
            return Err(Error::Internal("a compiled training step without its inputs and outputs".into()));
        };
        let kernels = form.kernels.program;
        let guards = kernels.guards.clone();
        Ok(CompiledStep { plan, code, guards, kernels: Some(kernels), from_cache: false, parts })
    }

    /// A step after the last stage, and how it is lowered.
    fn optimized_step(
        &self,
        train: &TrainOptions,
        channels_last: bool,
        cx: &Cx<'_>,
    ) -> Result<(StepPlan, Optimized, KernelOptions), Error> {
        let (plan, optimized) = StepPlan::make(self, train, cx)?.optimized(channels_last, cx)?;
        let wanted = KernelOptions { in_place: true, ..KernelOptions::of_optimized(&optimized.graph) };
        Ok((plan, optimized, wanted))
    }

    /// The fused program of a training step, without a backend and without weights. Where the options leave it open,
    /// convolutions are channels last, as on devices with memory of their own.
    ///
    /// # Errors
    /// As for [`train_step`](Program::train_step), without those of a backend.
    pub fn step_kernels(&self, train: &TrainOptions) -> Result<kernel_ir::Program, Error> {
        train.optimizer.check().map_err(Error::Optimizer)?;
        let cx = mixed(None, train.autocast)?;
        let (_, optimized, wanted) = self.optimized_step(train, train.channels_last.unwrap_or(true), &cx)?;
        Ok(pipeline::lower(&optimized.graph, &wanted, &cx)?.program)
    }

    /// The cache key of a step with these options: the captured graph, and all settings of the passes.
    pub(crate) fn step_lookup<'a>(
        &self,
        train: &TrainOptions,
        channels_last: bool,
        backend: &'a LoadedBackend,
        options: &'a Options,
    ) -> Option<Lookup<'a>> {
        // The numbers of the scaler are inputs of the program; whether there is one is not.
        let decides = TrainOptions { scaler: None, channels_last: Some(channels_last), ..train.clone() };
        let (scaled, trained) = (train.scaler.is_some(), plan::trained(self));
        let what = format!("step, {decides:?}, scaled {scaled}, trained {trained:?}");
        let TrainOptions { optimizer, clip, loss, autocast, .. } = &decides;
        let shown = format!(
            "step of {optimizer:?}, clip {clip:?}, loss {loss:?}, autocast {autocast:?}, scaled {scaled}, channels last {channels_last}, {} parameters",
            trained.len()
        );
        let stage = Stage::Training { what: &what, shown: &shown };
        Lookup::new(stage, self.graph(), self.name(), backend, options)
    }
}

/// A step's code and its relation to its caller.
struct CompiledStep {
    plan: StepPlan,
    code: Code,
    kernels: Option<kernel_ir::Program>,
    from_cache: bool,
    guards: Vec<Guard>,
    /// The parts of the state that a rank of a mesh has.
    parts: Parts,
}

impl TrainStep {
    /// One step on these inputs with this learning rate.
    ///
    /// # Errors
    /// Inputs that do not fit, a gradient norm that is not finite where that is configured as an error: the state is
    /// unchanged then. And errors of the backend: then each parameter, buffer and tensor of the optimizer, which the step
    /// writes in place, may be old or new.
    pub fn step(&mut self, inputs: &[Tensor], lr: f64) -> Result<StepOutcome, Error> {
        let users = self.arguments.conform(inputs)?;
        self.step_tensors(users.into_iter().map(Value::Host).collect(), lr)
    }

    /// As [`step`](TrainStep::step) on inputs of any kind, as [`Compiled::call_with`](crate::Compiled::call_with) takes them.
    ///
    /// # Errors
    /// As for `step`; an input of another kind, and another value than the one that the model was exported for.
    pub fn step_with(&mut self, inputs: &[Input], lr: f64) -> Result<StepOutcome, Error> {
        let users = self.arguments.conform_with(inputs)?;
        self.step_tensors(users, lr)
    }

    /// As [`step`](TrainStep::step) on tensors that may lie on the backend's device (see
    /// [`to_device`](TrainStep::to_device)).
    ///
    /// # Errors
    /// As for `step`.
    pub fn step_values(&mut self, inputs: Vec<Value>, lr: f64) -> Result<StepOutcome, Error> {
        self.step_with(&inputs.into_iter().map(Input::from).collect::<Vec<_>>(), lr)
    }

    fn step_tensors(&mut self, inputs: Vec<Value>, lr: f64) -> Result<StepOutcome, Error> {
        let numbers = self.number_tensors(lr)?;
        let results = self.run(inputs, numbers)?;
        let (mut outcome, new, reports) = self.sort(results)?;
        let number = |t: &Tensor| t.item().map_or(f64::NAN, Scalar::as_f64);
        let mut reports = reports.iter().map(number);
        outcome.grad_norm = if self.plan.reports.0 { reports.next() } else { None };
        let finite = !self.plan.reports.1 || reports.next() == Some(1.0);
        if let (Some(Clip::Norm { error_if_nonfinite: true, .. }), Some(norm)) =
            (self.options.clip, outcome.grad_norm)
            && finite
            && !norm.is_finite()
        {
            return Err(Error::NonFiniteGradient { norm });
        }
        outcome.skipped = !finite;
        self.progress.calls += 1;
        if let Some(scaler) = &mut self.progress.scaler {
            scaler.update(finite);
        }
        self.progress.updates += u64::from(finite);
        // Values that the step writes in place are already there. If the update is skipped, the program has not changed
        // them.
        self.state.extend(new);
        Ok(outcome)
    }

    /// Runs the program on the caller's inputs, numbers and the state, which it updates.
    fn run(&mut self, given: Vec<Value>, numbers: Vec<Tensor>) -> Result<Vec<Option<Value>>, Error> {
        let numbers: Vec<Value> = numbers.into_iter().map(Value::Host).collect();
        let mut kept: BTreeMap<&str, &mut Value> =
            self.state.iter_mut().map(|(name, value)| (name.as_str(), value)).collect();
        let mut all = Vec::with_capacity(self.plan.sources.len());
        for source in &self.plan.sources {
            all.push(match source {
                Source::User(n) => Arg::Read(&given[*n]),
                Source::State(name) => {
                    let value = kept.remove(name.as_str());
                    Arg::Write(value.ok_or_else(|| Error::Internal(format!("there is no state `{name}`")))?)
                }
                Source::Scalar(n) => Arg::Read(&numbers[*n]),
                _ => return Err(Error::Internal("a training step saves nothing".into())),
            });
        }
        self.code.run_args(all, seed_of(self.progress.seed, self.progress.calls))
    }

    /// Sorts the results by destination: the caller, the state, reports.
    fn sort(&self, results: Vec<Option<Value>>) -> Result<Sorted, Error> {
        let mut outcome =
            StepOutcome { loss: f64::NAN, outputs: Vec::new(), grad_norm: None, skipped: false };
        let (mut new, mut reports) = (Vec::new(), Vec::new());
        let lone = self.plan.sinks.iter().filter(|s| matches!(s, Sink::User | Sink::Loss)).count() == 1;
        for (n, (value, sink)) in results.into_iter().zip(&self.plan.sinks).enumerate() {
            let Some(value) = value else { continue };
            match sink {
                Sink::User | Sink::Loss => {
                    let tensor = self.code.to_host(n, value)?;
                    if *sink == Sink::Loss || lone {
                        outcome.loss = tensor.item().map_or(f64::NAN, Scalar::as_f64);
                    }
                    outcome.outputs.push(tensor);
                }
                Sink::State(name) => new.push((name.clone(), value)),
                Sink::Saved => reports.push(self.code.to_host(n, value)?),
                _ => {}
            }
        }
        Ok((outcome, new, reports))
    }

    /// The numbers of the next update as tensors.
    fn number_tensors(&self, lr: f64) -> Result<Vec<Tensor>, Error> {
        let scale = self.progress.scaler.as_ref().map_or(1.0, |s| s.scale);
        let values = self.options.optimizer.numbers(lr, self.progress.updates + 1);
        numbers(&self.plan.numbers, &values, scale)
    }

    /// A copy of a tensor on the backend's device; on the host where the backend keeps none there.
    ///
    /// # Errors
    /// An error of the device: no memory, device lost.
    pub fn to_device(&self, tensor: &Tensor) -> Result<Value, Error> {
        self.code.own(tensor)
    }

    /// Whether it was loaded from the cache of an earlier process.
    pub fn is_from_cache(&self) -> bool {
        self.from_cache
    }
    /// The tensors that a step takes.
    pub fn inputs(&self) -> &[InputInfo] {
        self.arguments.inputs()
    }
    /// Updates so far.
    pub fn updates(&self) -> u64 {
        self.progress.updates
    }
    /// The loss scaling's state.
    pub fn scaler(&self) -> Option<&Scaler> {
        self.progress.scaler.as_ref()
    }
    /// The fused program of a step, for backends that take them.
    pub fn kernels(&self) -> Option<&kernel_ir::Program> {
        self.kernels.as_ref()
    }
    /// The current value of a parameter or buffer, which later steps do not change; `None` also where the device fails to
    /// return it ([`weights`](Self::weights) reports the reason).
    pub fn get(&self, name: &str) -> Option<Tensor> {
        match self.state.get(name) {
            Some(value) => self.fetch(name, value).ok(),
            None => self.program.weight(name).cloned(),
        }
    }
    /// The part of a parameter, buffer or tensor of the optimizer that this rank of a mesh has; `None` where it has the whole.
    pub fn part(&self, name: &str) -> Option<&Part> {
        self.parts.get(name)
    }
    pub(super) fn fetch(&self, name: &str, value: &Value) -> Result<Tensor, Error> {
        self.parts.gather(name, self.fetch_own(name, value)?)
    }

    /// The part of it that this rank has.
    pub(super) fn fetch_own(&self, name: &str, value: &Value) -> Result<Tensor, Error> {
        let dtype = self.program.weight(name).map_or(value.dtype(), Tensor::dtype);
        self.plan.layouts.restored(name, self.code.fetch(value, dtype)?)
    }

    /// Replaces a trained parameter or written buffer.
    ///
    /// # Errors
    /// A name that is neither, and a tensor of another dtype or size.
    pub fn set(&mut self, name: &str, tensor: Tensor) -> Result<(), Error> {
        let own = self.parts.cut(name, &tensor)?;
        replace(&mut self.state, name, &own, &self.code)
    }
    /// All current parameters and persistent buffers of the program, by name.
    ///
    /// # Errors
    /// An error of the device.
    pub fn weights(&self) -> Result<BTreeMap<String, Tensor>, Error> {
        let all = self.program.exported().weights.iter();
        let kept =
            all.filter(|w| matches!(w.kind, InputKind::Parameter | InputKind::Buffer { persistent: true }));
        let mut weights = BTreeMap::new();
        for w in kept {
            let tensor = match self.state.get(&w.name) {
                Some(value) => Some(self.fetch(&w.name, value)?),
                None => self.program.weight(&w.name).cloned(),
            };
            weights.extend(tensor.map(|t| (w.name.clone(), t)));
        }
        Ok(weights)
    }
}

const _: fn() = || {
    fn sent<T: Send>() {}
    sent::<TrainStep>();
};
