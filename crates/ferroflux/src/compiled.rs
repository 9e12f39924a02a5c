//! A compiled model: call it from any thread.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fx_ir::{Graph, InputKind, OutputKind};
use ir_core::DType;
use ir_core::Guard;
use plugin_host::{Arg, LoadedBackend, LoadedExecutable, Value};
use serde::{Deserialize, Serialize};
use tensor::Tensor;

use crate::boundary::Boundary;
use crate::cache::{Caller, Form, Lookup, Stage, Wiring, get_or_compile};
use crate::code::{Code, Optimized, Weights, on_device};
use crate::explain::{Explanation, explain};
use crate::graph_plugin;
use crate::inputs::{Arguments, Input, InputInfo};
use crate::mesh::{MeshOptions, Sharded};
use crate::pipeline::{self, Cx, KernelOptions, StageId};
use crate::profiler::{self, Category, span};
use crate::recipe::Maker;
use crate::seeds::Seeds;
use crate::{Error, Options, Program, report};

/// A model that is ready to run. Buffers that the model writes (running statistics, caches) are kept here, on the backend's
/// device where it keeps tensors there, and are updated in place by calls; calls of such a model run one after another. A
/// call that fails in the backend may leave them between their old and new values.
pub struct Compiled {
    /// The program's name.
    name: String,
    backend: String,
    arguments: Arguments,
    code: Code,
    /// What each input of the code is: a user input by number, or a state buffer by number.
    sources: Vec<Source>,
    /// What each output of the code is.
    sinks: Vec<Sink>,
    /// On the backend's device, where it keeps tensors there.
    state: Mutex<Vec<Value>>,
    seeds: Seeds,
    /// Moves tensors to the backend's device, where it has one.
    memory: Option<LoadedBackend>,
    explanation: Explanation,
    making_weights: Duration,
    from_cache: bool,
}

/// The source of an input of the code.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Source {
    /// The user's input of this number.
    User(usize),
    /// The kept buffer of this number.
    State(usize),
}

/// The destination of an output of the code.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Sink {
    /// The caller.
    User,
    /// The new value of the kept buffer of this number.
    State(usize),
    /// The new value of the user's input of this number.
    Input(usize),
    /// It is discarded.
    Dropped,
}

/// The results of a call for the caller: tensors with their numbers among all outputs.
struct Given {
    users: Vec<(usize, Value)>,
    /// New values of inputs by the input's number.
    inputs: Vec<(usize, usize, Value)>,
}

impl Compiled {
    pub(crate) fn with_plugin(
        program: &Program,
        backend: &LoadedBackend,
        options: &Options,
    ) -> Result<Compiled, Error> {
        if graph_plugin::takes_graphs(backend) {
            options.refuse_mesh("a backend that takes whole graphs")?;
            return Compiled::with_graph_plugin(program, backend, options);
        }
        let graph = program.known_graph();
        let lookup = Lookup::new(Stage::Captured, &graph, program.name(), backend, options);
        let lookup = lookup.filter(|_| options.mesh.is_none());
        let ((form, code, from_cache), local) = match &options.mesh {
            None => {
                let form = compiled_form(program, backend, options, (lookup.as_ref(), Lends::default()))?;
                (form, None)
            }
            Some(mesh) => {
                let (form, code, local) = form_of_rank(program, backend, options, mesh)?;
                ((form, code, false), Some(local))
            }
        };
        let parts = local.as_ref().map(|l| &l.parts);
        let maker = Maker::of(backend, options);
        let weight = |name: &str| {
            let part = parts.map(|p| p.placed(name)).transpose()?.flatten();
            if let (Some(part), Some(maker)) = (&part, &maker)
                && let Some(made) = program.weight_part(name, maker, part)?
            {
                return Ok(Some(made));
            }
            let whole = program.weight_value(name, maker.as_ref())?;
            match (parts, whole) {
                // A part of a weight is cut from the whole on the host.
                (Some(parts), Some(Value::Device(whole))) if parts.get(name).is_some() => {
                    parts.cut_value(name, backend.to_host(&whole)?.into()).map(Some)
                }
                (Some(parts), Some(whole)) => parts.cut_value(name, whole).map(Some),
                (_, whole) => Ok(whole),
            }
        };
        let mut code = Code::bound(&form, code, backend, &weight)?;
        code.take_turns(options.mesh.as_ref());
        if !from_cache {
            lookup.iter().for_each(|l| l.tidy(&form.kernels));
        }
        let explanation = explain(program.graph(), Some(&form.kernels.program));
        report::compiled(report::Made {
            program,
            kernels: &form.kernels.program,
            backend,
            options,
            code: &code,
            prims: &|| local.as_ref().map_or_else(|| program.optimized(), |l| Ok(l.graph.clone())),
        });
        let Caller::Model(wiring) = form.caller else {
            return Err(Error::Internal("a compiled model without its inputs and outputs".into()));
        };
        Ok(Compiled {
            from_cache,
            memory: backend.has_device_memory().then(|| backend.clone()),
            making_weights: maker.as_ref().map_or(Duration::ZERO, Maker::spent),
            ..Compiled::of(
                program,
                backend.name(),
                (wiring, &form.kernels.program.guards),
                code,
                &weight,
                options,
                explanation,
            )?
        })
    }

    fn with_graph_plugin(
        program: &Program,
        backend: &LoadedBackend,
        options: &Options,
    ) -> Result<Compiled, Error> {
        let cx = Cx::inference()?.on(backend, options);
        let functional = program.through(StageId::Functional, &cx)?;
        let wiring = Wiring::of(&functional);
        let weight = |name: &str| program.weight_value(name, None);
        let (code, guards) = graph_plugin::compile(functional, backend, options, (&weight, &cx))?;
        let explanation = explain(program.graph(), None);
        Ok(Compiled {
            memory: backend.has_device_memory().then(|| backend.clone()),
            ..Compiled::of(program, backend.name(), (wiring, &guards), code, &weight, options, explanation)?
        })
    }

    fn of(
        program: &Program,
        backend: &str,
        (wiring, guards): (Wiring, &[Guard]),
        code: Code,
        weight: Weights<'_>,
        options: &Options,
        explanation: Explanation,
    ) -> Result<Compiled, Error> {
        let state = initial(&wiring.state, weight, &code)?;
        Ok(Compiled {
            name: program.name().to_owned(),
            backend: backend.into(),
            arguments: Arguments::of(program, &wiring.symbols, guards)?,
            code,
            sources: wiring.sources,
            sinks: wiring.sinks,
            state: Mutex::new(state),
            seeds: Seeds::new(options.seed),
            memory: None,
            explanation,
            making_weights: Duration::ZERO,
            from_cache: false,
        })
    }

    /// Runs the model on its inputs in order; returns the tensors that it returns, in order. The outputs are the
    /// caller's to keep. Inputs stay as they are, also those that the model writes (see [`call_mut`](Self::call_mut)).
    /// A tensor without dimensions may stand for a number; values that the model was exported for are left out.
    ///
    /// # Errors
    /// Inputs that do not fit the model's dtypes, ranks or size ranges, and errors of the backend.
    pub fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let users = self.arguments.conform(inputs)?;
        let values: Vec<Value> = users.into_iter().map(Value::Host).collect();
        self.outputs(self.run(&values)?)
    }

    /// As [`call`](Self::call) on inputs of any kind: `model.call_with(&[x.into(), 7.into(), "mean".into()])`. All inputs of
    /// [`inputs`](Self::inputs) are given, or all but those that are [constant](InputInfo::is_constant).
    ///
    /// # Errors
    /// As for `call`; an input of another kind, and another value than the one that the model was exported for.
    pub fn call_with(&self, inputs: &[Input]) -> Result<Vec<Tensor>, Error> {
        let values = self.arguments.conform_with(inputs)?;
        self.outputs(self.run(&values)?)
    }

    fn outputs(&self, given: Given) -> Result<Vec<Tensor>, Error> {
        given.users.into_iter().map(|(n, value)| self.code.to_host(n, value)).collect()
    }

    /// As [`call`](Self::call), and replaces the inputs that the model writes by their new values, as a call in PyTorch
    /// does: the caller's variables hold new tensors afterwards. Other handles of the old tensors keep the old values,
    /// because a shared [`Tensor`] never changes; where PyTorch's views would show the new ones, views taken before do not.
    ///
    /// # Errors
    /// As for `call`; the inputs are unchanged then.
    pub fn call_mut(&self, inputs: &mut [Tensor]) -> Result<Vec<Tensor>, Error> {
        let users = self.arguments.conform(inputs)?;
        let values: Vec<Value> = users.into_iter().map(Value::Host).collect();
        let given = self.run(&values)?;
        let new = given.inputs.into_iter().map(|(input, n, value)| Ok((input, self.code.to_host(n, value)?)));
        let new: Vec<(usize, Tensor)> = new.collect::<Result<_, Error>>()?;
        let outputs = given.users.into_iter().map(|(n, value)| self.code.to_host(n, value));
        let outputs = outputs.collect::<Result<_, _>>()?;
        let count = inputs.len();
        for (input, tensor) in new {
            if let Some(place) = inputs.get_mut(self.arguments.place(input, count)) {
                *place = tensor;
            }
        }
        Ok(outputs)
    }

    /// As [`call`](Self::call) on tensors that may lie on the backend's device (see [`to_device`](Self::to_device));
    /// nothing of the device is copied, and outputs stay where the backend left them. Complex outputs are real ones with a
    /// last dimension of 2. Numbers are tensors of the host without dimensions.
    ///
    /// # Errors
    /// As for `call`.
    pub fn call_values(&self, inputs: &[Value]) -> Result<Vec<Value>, Error> {
        let given = self.run(&self.values(inputs)?)?;
        Ok(given.users.into_iter().map(|(_, value)| value).collect())
    }

    /// As [`call_values`](Self::call_values) on inputs of any kind (see [`call_with`](Self::call_with)).
    ///
    /// # Errors
    /// As for `call_with`.
    pub fn call_values_with(&self, inputs: &[Input]) -> Result<Vec<Value>, Error> {
        let given = self.run(&self.arguments.conform_with(inputs)?)?;
        Ok(given.users.into_iter().map(|(_, value)| value).collect())
    }

    fn values(&self, inputs: &[Value]) -> Result<Vec<Value>, Error> {
        self.arguments.conform_with(&inputs.iter().map(Input::from).collect::<Vec<_>>())
    }

    /// As [`call_values`](Self::call_values), and replaces the inputs that the model writes by their new values, as
    /// [`call_mut`](Self::call_mut) does.
    ///
    /// # Errors
    /// As for `call`.
    pub fn call_values_mut(&self, inputs: &mut [Value]) -> Result<Vec<Value>, Error> {
        let values = self.values(inputs)?;
        let given = self.run(&values)?;
        let count = inputs.len();
        for (input, _, value) in given.inputs {
            if let Some(place) = inputs.get_mut(self.arguments.place(input, count)) {
                *place = value;
            }
        }
        Ok(given.users.into_iter().map(|(_, value)| value).collect())
    }

    /// A copy of a tensor on the backend's device, with its strides where it has no gaps; the tensor itself where the backend keeps none
    /// there.
    ///
    /// # Errors
    /// An error of the device: no memory, device lost.
    pub fn to_device(&self, tensor: &Tensor) -> Result<Value, Error> {
        let Some(backend) = &self.memory else { return Ok(tensor.clone().into()) };
        on_device(backend, tensor)
    }

    /// A copy of a value on the host.
    ///
    /// # Errors
    /// An error of the device.
    pub fn to_host(&self, value: Value) -> Result<Tensor, Error> {
        match (value, &self.memory) {
            (Value::Host(tensor), _) => Ok(tensor),
            (Value::Device(tensor), Some(backend)) => Ok(backend.to_host(&tensor)?),
            (Value::Device(tensor), None) => Err(Error::OtherDevice(format!("{tensor:?}"))),
        }
    }

    /// Runs the code and keeps the state.
    fn run(&self, users: &[Value]) -> Result<Given, Error> {
        let _range = span(Category::Launch, || format!("call of {}", self.name));
        let arena = self.explanation.arena_bytes.unwrap_or(0);
        profiler::memory("arena", arena);
        let given = self.run_once(users);
        profiler::memory("arena", 0);
        given
    }

    fn run_once(&self, users: &[Value]) -> Result<Given, Error> {
        let state = self.state.lock();
        // A panic of another call cannot leave a tensor without memory; its values may be old or new, as documented above.
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.is_empty() {
            drop(state);
            let outputs = self.code.run_values(&users.iter().collect::<Vec<_>>(), self.seeds.next())?;
            return self.split(outputs.into_iter().map(Some).collect(), &mut []);
        }
        let mut kept: Vec<Option<&mut Value>> = state.iter_mut().map(Some).collect();
        let mut all: Vec<Arg<'_>> = Vec::with_capacity(self.sources.len());
        for source in &self.sources {
            all.push(match *source {
                Source::User(n) => Arg::Read(users.get(n).ok_or_else(|| self.arguments.count(users.len()))?),
                Source::State(n) => Arg::Write(kept[n].take().ok_or_else(|| {
                    Error::Internal(format!("buffer {n} is two inputs of the compiled model"))
                })?),
            });
        }
        let outputs = self.code.run_args(all, self.seeds.next())?;
        self.split(outputs, &mut state)
    }

    /// Sorts the results by destination; new values of buffers go to the state.
    fn split(&self, outputs: Vec<Option<Value>>, state: &mut [Value]) -> Result<Given, Error> {
        let (results, known) = (outputs.len(), self.sinks.len());
        if results != known {
            return Err(Error::Internal(format!(
                "the model should give {known} results, its code gives {results}"
            )));
        }
        let mut given = Given { users: Vec::with_capacity(outputs.len()), inputs: Vec::new() };
        for (n, (value, sink)) in outputs.into_iter().zip(&self.sinks).enumerate() {
            // New values that the call wrote to the state's memory are already there.
            let Some(value) = value else { continue };
            match *sink {
                Sink::User => given.users.push((n, value)),
                Sink::Input(input) => given.inputs.push((input, n, value)),
                Sink::State(at) => {
                    let kept = state.len();
                    let lost =
                        || Error::Internal(format!("result {n} is buffer {at}, of {kept} that are kept"));
                    *state.get_mut(at).ok_or_else(lost)? = value;
                }
                Sink::Dropped => {}
            }
        }
        Ok(given)
    }

    /// The time that the compilation spent on weights by formula ([`Program::make_weights`]).
    pub fn making_weights(&self) -> Duration {
        self.making_weights
    }
    /// Whether it was loaded from the cache of an earlier process.
    pub fn is_from_cache(&self) -> bool {
        self.from_cache
    }
    /// The backend that compiled it.
    pub fn backend(&self) -> &str {
        &self.backend
    }
    /// The inputs of a call, in order.
    pub fn inputs(&self) -> &[InputInfo] {
        self.arguments.inputs()
    }
    /// Operators, kernels and memory.
    pub fn explain(&self) -> &Explanation {
        &self.explanation
    }
}

/// What the caller of a program lends it for writing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lends {
    /// Inputs that the program mutates.
    pub(crate) inputs: bool,
    /// Memory for results.
    pub(crate) results: bool,
}

/// The compiled form of a captured graph, from the cache or else made now.
///
/// # Errors
/// Errors of the stages, and refusals of the backend.
pub(crate) fn compiled_form(
    program: &Program,
    backend: &LoadedBackend,
    options: &Options,
    (lookup, lends): (Option<&Lookup<'_>>, Lends),
) -> Result<(Form, LoadedExecutable, bool), Error> {
    options.refuse_mesh("a graph on another framework's tensors")?;
    get_or_compile(lookup, || {
        let cx = Cx::inference()?.on(backend, options).on_one_device();
        let functional = program.through(StageId::Functional, &cx)?;
        let wiring = Wiring::of(&functional);
        let shown = Boundary::of(&functional).all().to_vec();
        let complex = |d: &Option<DType>| d.is_some_and(DType::is_complex);
        let real = wiring.sinks.iter().zip(&shown).map(|(sink, d)| *sink == Sink::User && !complex(d));
        let wanted = KernelOptions {
            in_place: true,
            inputs_in_place: lends.inputs,
            gaps: lends.inputs,
            // The ranks are not asked whether their programs are alike.
            apart: true,
            lent_results: if lends.results { real.collect() } else { Vec::new() },
            ..KernelOptions::of_model(&functional)
        };
        let caller = Caller::Model(wiring);
        let graph = pipeline::run(functional, StageId::Autocast..=StageId::Optimized, &cx)?;
        let optimized = Optimized { graph, shown };
        let (kernels, executable) = optimized.compile(backend, options, &wanted, (lookup, &cx))?;
        Ok((Form { kernels, shown: optimized.shown, caller }, executable))
    })
}

/// The compiled form of a captured graph for a rank of a mesh, and the parts of the weights that it has.
///
/// # Errors
/// As for [`compiled_form`], and those of a layout on a mesh.
fn form_of_rank(
    program: &Program,
    backend: &LoadedBackend,
    options: &Options,
    mesh: &MeshOptions,
) -> Result<(Form, LoadedExecutable, Sharded), Error> {
    let cx = Cx::inference()?.on(backend, options);
    let functional = program.through(StageId::Functional, &cx)?;
    let caller = Caller::Model(Wiring::of(&functional));
    let shown = Boundary::of(&functional).all().to_vec();
    let wanted = KernelOptions { in_place: true, ..KernelOptions::of_model(&functional) };
    let whole = pipeline::run(functional, StageId::Autocast..=StageId::Optimized, &cx)?;
    let Sharded { graph, parts } = mesh.shard(&whole, &whole, &options.batch_groups())?;
    let optimized = Optimized { graph, shown };
    let compile = |wanted: &KernelOptions| optimized.compile(backend, options, wanted, (None, &cx));
    let (kernels, executable) = mesh.compile(&wanted, compile)?;
    let Optimized { graph, shown } = optimized;
    Ok((Form { kernels, shown, caller }, executable, Sharded { graph, parts }))
}

impl Wiring {
    /// The wiring of a functional graph.
    pub(crate) fn of(functional: &Graph) -> Wiring {
        let inputs = functional
            .inputs()
            .filter(|(v, kind, _)| *kind == InputKind::User && functional.meta(*v).is_some());
        let inputs: Vec<&str> = inputs.map(|(_, _, name)| name).collect();
        let mut state: Vec<String> = Vec::new();
        let mut sinks = Vec::new();
        for output in functional.outputs.iter().filter(|o| matches!(o.arg, fx_ir::Arg::Value(_))) {
            sinks.push(match &output.kind {
                OutputKind::User | OutputKind::Loss => Sink::User,
                OutputKind::BufferMutation(name) => {
                    state.push(name.clone());
                    Sink::State(state.len() - 1)
                }
                OutputKind::InputMutation(name) => {
                    inputs.iter().position(|input| input == name).map_or(Sink::Dropped, Sink::Input)
                }
                _ => Sink::Dropped,
            });
        }
        let (mut sources, mut users) = (Vec::new(), 0);
        for (v, kind, name) in functional.inputs() {
            if functional.meta(v).is_none() {
                continue;
            }
            if kind == InputKind::User {
                sources.push(Source::User(users));
                users += 1;
            } else if let Some(n) = state.iter().position(|other| other == name) {
                sources.push(Source::State(n));
            }
        }
        Wiring { symbols: functional.symbols.clone(), state, sources, sinks }
    }
}

/// The kept buffers as before the model's first call.
fn initial(names: &[String], weight: Weights<'_>, code: &Code) -> Result<Vec<Value>, Error> {
    let missing = |name: &str| Error::MissingWeights { count: 1, first: name.into() };
    // The archive's tensors must not change; a tensor created for this model on the device is its own.
    let one = |name: &String| match weight(name)?.ok_or_else(|| missing(name))? {
        Value::Host(tensor) => code.own(&tensor),
        made => Ok(made),
    };
    names.iter().map(one).collect()
}

const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Compiled>();
};
