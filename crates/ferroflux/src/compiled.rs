//! A compiled model: call it from any thread.

use std::sync::{Mutex, PoisonError};

use fx_ir::{Arg, Graph, InputKind, OutputKind, Symbol};
use ir_core::{Arena, SymId};
use plugin_host::{LoadedBackend, Value};
use tensor::Tensor;

use crate::code::Code;
use crate::complex_boundary::ComplexBoundary;
use crate::explain::{Explanation, explain};
use crate::graph_backend::GraphCompiler;
use crate::seeds::Seeds;
use crate::{Error, InputInfo, Options, Program, check, stages};

/// A model that is ready to run. Buffers that the model writes (running statistics, caches) are kept here and carried
/// from call to call; calls of such a model run one after another.
pub struct Compiled {
    backend: String,
    inputs: Vec<InputInfo>,
    symbols: Arena<SymId, Symbol>,
    code: Code,
    /// What each input of the code is: a user input by number, or a state buffer by number.
    sources: Vec<Source>,
    /// What each output of the code is.
    sinks: Vec<Sink>,
    /// On the backend's device from the first call on, where it keeps tensors there.
    state: Mutex<Vec<Value>>,
    seeds: Seeds,
    /// Moves tensors to the backend's device, where it has one.
    memory: Option<LoadedBackend>,
    explanation: Explanation,
}

#[derive(Clone, Copy)]
enum Source {
    User(usize),
    State(usize),
}

#[derive(Clone, Copy)]
enum Sink {
    User,
    State(usize),
    Dropped,
}

impl Compiled {
    pub(crate) fn with_plugin(
        program: &Program,
        backend: &LoadedBackend,
        options: &Options,
    ) -> Result<Compiled, Error> {
        let functional = program.functional()?;
        let kernels = stages::compile(&functional)?;
        let weight = |name: &str| program.weight(name).cloned();
        let code = Code::plugin(&kernels, ComplexBoundary::of(&functional), backend, &weight, options)?;
        let state = State::of(&functional, program)?;
        let explanation = explain(program.graph(), Some(&kernels));
        Ok(Compiled {
            backend: backend.name().into(),
            inputs: program.inputs(),
            symbols: functional.symbols.clone(),
            code,
            sources: state.sources,
            sinks: state.sinks,
            state: Mutex::new(state.tensors),
            seeds: Seeds::new(options.seed),
            memory: backend.has_device_memory().then(|| backend.clone()),
            explanation,
        })
    }

    pub(crate) fn with_graph_backend(
        program: &Program,
        name: &str,
        backend: &dyn GraphCompiler,
        options: &Options,
    ) -> Result<Compiled, Error> {
        let functional = program.functional()?;
        let state = State::of(&functional, program)?;
        let weight = |name: &str| program.weight(name).cloned();
        let code = Code::graph(program.graph(), backend, &weight)?;
        let explanation = explain(program.graph(), None);
        Ok(Compiled {
            backend: name.into(),
            inputs: program.inputs(),
            symbols: functional.symbols.clone(),
            code,
            sources: state.sources,
            sinks: state.sinks,
            state: Mutex::new(state.tensors),
            seeds: Seeds::new(options.seed),
            memory: None,
            explanation,
        })
    }

    /// Runs the model on its inputs in order; returns the tensors that it returns, in order. The outputs are the
    /// caller's to keep.
    ///
    /// # Errors
    /// Inputs that do not fit the model's dtypes, ranks or size ranges, and whatever the backend runs into.
    pub fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let users = check::conform(&self.inputs, &self.symbols, inputs)?;
        let values: Vec<Value> = users.into_iter().map(Value::Host).collect();
        let outputs = self.run(&values)?;
        outputs.into_iter().map(|(n, value)| self.code.to_host(n, value)).collect()
    }

    /// As [`call`](Self::call) on tensors that may lie on the backend's device (see [`to_device`](Self::to_device));
    /// nothing is copied, and outputs stay where the backend left them. Complex outputs are real ones with a last dimension
    /// of 2. Sizes of device tensors are checked by the backend.
    ///
    /// # Errors
    /// As for `call`.
    pub fn call_values(&self, inputs: &[Value]) -> Result<Vec<Value>, Error> {
        Ok(self.run(inputs)?.into_iter().map(|(_, value)| value).collect())
    }

    /// A copy of a tensor on the backend's device; the tensor itself where the backend keeps none there.
    ///
    /// # Errors
    /// The device's: no memory, lost.
    pub fn to_device(&self, tensor: &Tensor) -> Result<Value, Error> {
        let Some(backend) = &self.memory else { return Ok(tensor.clone().into()) };
        let device = backend.first_device()?;
        Ok(backend.to_device(tensor, device)?.into())
    }

    /// A copy of a value on the host.
    ///
    /// # Errors
    /// The device's.
    pub fn to_host(&self, value: Value) -> Result<Tensor, Error> {
        match (value, &self.memory) {
            (Value::Host(tensor), _) => Ok(tensor),
            (Value::Device(tensor), Some(backend)) => Ok(backend.to_host(&tensor)?),
            (Value::Device(tensor), None) => Err(Error::OtherDevice(format!("{tensor:?}"))),
        }
    }

    /// Runs the code and keeps the state; the user's outputs with their numbers among all outputs.
    fn run(&self, users: &[Value]) -> Result<Vec<(usize, Value)>, Error> {
        // A panic of another call cannot leave the state half written: it is replaced whole.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_empty() {
            drop(state);
            let outputs = self.code.run_values(&users.iter().collect::<Vec<_>>(), self.seeds.next())?;
            return Ok(self.split(outputs, None));
        }
        let pick = |s: &Source| match *s {
            Source::User(n) => users.get(n).ok_or_else(|| self.missing_input(users.len())),
            Source::State(n) => Ok(&state[n]),
        };
        let all: Vec<&Value> = self.sources.iter().map(pick).collect::<Result<_, _>>()?;
        let outputs = self.code.run_values(&all, self.seeds.next())?;
        Ok(self.split(outputs, Some(&mut state)))
    }

    fn missing_input(&self, given: usize) -> Error {
        let names = self.inputs.iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(", ");
        Error::InputCount { expected: self.inputs.len(), given, names }
    }

    fn split(&self, outputs: Vec<Value>, mut state: Option<&mut Vec<Value>>) -> Vec<(usize, Value)> {
        let mut users = Vec::with_capacity(outputs.len());
        for (n, (value, sink)) in outputs.into_iter().zip(&self.sinks).enumerate() {
            match (sink, &mut state) {
                (Sink::User, _) => users.push((n, value)),
                (Sink::State(n), Some(state)) => state[*n] = value,
                _ => {}
            }
        }
        users
    }

    /// The backend that compiled it.
    pub fn backend(&self) -> &str {
        &self.backend
    }
    /// The tensors that a call takes, in order.
    pub fn inputs(&self) -> &[InputInfo] {
        &self.inputs
    }
    /// Operators, kernels and memory.
    pub fn explain(&self) -> &Explanation {
        &self.explanation
    }
}

/// What connects the placeholders and outputs of a functional graph with the caller and the kept buffers.
struct State {
    sources: Vec<Source>,
    sinks: Vec<Sink>,
    tensors: Vec<Value>,
}

impl State {
    fn of(functional: &Graph, program: &Program) -> Result<State, Error> {
        let mut names: Vec<&str> = Vec::new();
        let mut sinks = Vec::new();
        for output in functional.outputs.iter().filter(|o| matches!(o.arg, Arg::Value(_))) {
            sinks.push(match &output.kind {
                OutputKind::User | OutputKind::Loss => Sink::User,
                OutputKind::BufferMutation(name) => {
                    names.push(name);
                    Sink::State(names.len() - 1)
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
            } else if let Some(n) = names.iter().position(|other| *other == name) {
                sources.push(Source::State(n));
            }
        }
        let missing = |name: &str| Error::MissingWeights { count: 1, first: name.into() };
        // The buffers are written by replacement: the mapped originals stay as they are.
        let tensors = names
            .iter()
            .map(|n| program.weight(n).cloned().map(Value::Host).ok_or_else(|| missing(n)))
            .collect::<Result<_, _>>()?;
        Ok(State { sources, sinks, tensors })
    }
}

const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Compiled>();
};
