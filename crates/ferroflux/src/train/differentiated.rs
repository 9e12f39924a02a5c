//! A program and its backward pass as two compiled halves: `forward` returns the outputs and what it saved, `backward`
//! takes the cotangents.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use fx_ir::{Arg, Graph, InputKind, OutputKind, Symbols, ValueId, ValueType};
use interp::Bindings;
use ir_core::{DType, SymExpr, SymId};
use plugin_host::Value;
use tensor::Tensor;

use super::graphs::{
    DiffOptions, bind_sizes, forward, joint, mixed, per_call, save_computed_sizes, split, written,
};
use super::wiring::{
    Sink, Source, State, initial, replace, sinks, size_meta, size_tensor, sources, user_numbers,
};
use crate::check::Signature;
use crate::code::{Code, CompiledCode};
use crate::inputs::{Arguments, Input, InputInfo, TensorInfo};
use crate::seeds::Seeds;
use crate::{Error, Options, Program};

/// A program with its gradients, compiled. Buffers that the program writes are kept here from call to call, as are the
/// parameters, which [`set`](Differentiated::set) replaces.
pub struct Differentiated {
    arguments: Arguments,
    symbols: Symbols,
    forward: Half,
    backward: Half,
    sinks: Vec<Sink>,
    tangents: Vec<TangentInfo>,
    gradients: Vec<GradientInfo>,
    /// Sizes that are passed to the backward, in the order of its saved values after the tensors.
    sizes: Vec<SymExpr>,
    /// Positions among the saved values of numbers that are sizes of the backward's inputs.
    computed: Vec<(usize, SymExpr)>,
    saved_bytes: Option<i64>,
    state: Mutex<State>,
    /// The types of the state, as the program's user knows them.
    dtypes: BTreeMap<String, DType>,
    seeds: Seeds,
}

struct Half {
    code: Code,
    sources: Vec<Source>,
    kernels: Option<kernel_ir::Program>,
}

/// A cotangent that `backward` takes.
#[derive(Clone, Debug, PartialEq)]
pub struct TangentInfo {
    /// Number of the returned tensor that it belongs to.
    pub output: usize,
    /// Its type.
    pub info: TensorInfo,
}

struct GradientInfo {
    name: String,
    parameter: bool,
    /// Whether an output depends on it differentiably.
    exists: bool,
}

/// One gradient.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// Name of the parameter or input.
    pub name: String,
    /// Whether it is a parameter.
    pub parameter: bool,
    /// The gradient; `None` where no differentiated output depends on it.
    pub tensor: Option<Tensor>,
}

/// All requested gradients, in the order of the graph's inputs.
#[derive(Clone, Debug, Default)]
pub struct Gradients(pub Vec<Gradient>);

impl Gradients {
    /// The gradient of the parameter with this name.
    pub fn parameter(&self, name: &str) -> Option<&Tensor> {
        self.0.iter().find(|g| g.parameter && g.name == name)?.tensor.as_ref()
    }
    /// The gradient of the input with this name.
    pub fn input(&self, name: &str) -> Option<&Tensor> {
        self.0.iter().find(|g| !g.parameter && g.name == name)?.tensor.as_ref()
    }
}

/// The saved values of a forward call for its backward call.
pub struct Saved<'d> {
    of: &'d Differentiated,
    /// Inputs of the backward except the cotangents.
    tensors: BTreeMap<usize, Value>,
    /// The sizes of the inputs.
    sizes: Vec<(SymExpr, i64)>,
    seed: u64,
}

impl Program {
    /// Compiles the program and its backward pass, each half fused by itself.
    ///
    /// # Errors
    /// As for [`compile`](Program::compile); all calls without a gradient where one is needed; no loss.
    pub fn differentiate(&self, diff: &DiffOptions, options: &Options) -> Result<Differentiated, Error> {
        self.require_weights()?;
        if let Some(whole) = self.made_on_host()? {
            return whole.differentiate(diff, options);
        }
        let backend = crate::registry().load(&options.backend)?;
        let cx = mixed(Some((&backend, options)), diff.autocast)?;
        let joint = joint(forward(self, diff.loss, &cx)?, diff)?;
        let mut partition = split(&joint, diff.memory_budget)?;
        let computed = save_computed_sizes(&mut partition).map_err(|e| Error::Internal(e.to_string()))?;
        let requested: Vec<GradientInfo> = joint
            .gradients
            .iter()
            .filter_map(|(v, g)| {
                let (_, kind, name) = joint.graph.inputs().find(|(input, _, _)| input == v)?;
                let parameter = kind == InputKind::Parameter;
                Some(GradientInfo { name: name.into(), parameter, exists: g.is_some() })
            })
            .collect();
        let users = user_numbers(&partition.forward);
        let kept = kept(&partition.forward);
        let sinks = sinks(&partition.forward);
        let saved_bytes = partition.saved_bytes();
        let tangents = tangent_infos(&joint);
        let sizes = partition.saved.iter().filter_map(|s| match &s.arg {
            Arg::Int(e) => Some(e.clone()),
            _ => None,
        });
        let sizes = sizes.collect();
        let forward = self.forward_half(partition.forward.clone(), &users, &kept, options)?;
        let backward = self.backward_half(&partition, &kept, tangents.len(), options)?;
        // Both halves share the memory of parameters. A forward call replaces the buffers that it writes: the backward half
        // reads their old values.
        let state = initial(self, &kept)?.into_iter().map(|(name, t)| Ok((name, forward.code.own(&t)?)));
        let state = state.collect::<Result<State, Error>>()?;
        let dtypes = kept.iter().filter_map(|n| Some((n.clone(), self.weight(n)?.dtype()))).collect();
        Ok(Differentiated {
            arguments: Arguments::of(self, &joint.graph.symbols, &joint.graph.guards)?,
            symbols: joint.graph.symbols.clone(),
            forward,
            backward,
            sinks,
            tangents,
            gradients: requested,
            sizes,
            computed,
            saved_bytes,
            state: Mutex::new(state),
            dtypes,
            seeds: Seeds::new(options.seed),
        })
    }

    fn forward_half(
        &self,
        mut graph: Graph,
        users: &BTreeMap<ValueId, usize>,
        kept: &[String],
        options: &Options,
    ) -> Result<Half, Error> {
        let sources = sources(&graph, &|v, kind, name| match kind {
            InputKind::User => users.get(&v).map(|n| Source::User(*n)),
            _ => kept.iter().any(|k| k == name).then(|| Source::State(name.into())),
        });
        let written: Vec<String> = written(&graph).into_iter().map(str::to_owned).collect();
        per_call(&mut graph, &|_, kind, name| {
            kind == InputKind::Parameter
                && kept.iter().any(|k| k == name)
                && !written.iter().any(|w| w == name)
        });
        let weight = |name: &str| self.weight_value(name, None);
        let CompiledCode { code, kernels, .. } = Code::of_prims(graph, &weight, options)?;
        Ok(Half { code, sources, kernels })
    }

    fn backward_half(
        &self,
        partition: &aot_autograd::Partition,
        kept: &[String],
        tangents: usize,
        options: &Options,
    ) -> Result<Half, Error> {
        let mut graph = partition.backward.clone();
        let saved: BTreeMap<ValueId, usize> =
            partition.saved.iter().enumerate().map(|(n, s)| (s.placeholder, n)).collect();
        for s in &partition.saved {
            if let Arg::Int(e) = &s.arg {
                graph.values[s.placeholder].ty = ValueType::Tensor(size_meta(e));
            }
        }
        let places: Vec<ValueId> =
            graph.inputs().filter(|(_, kind, _)| *kind != InputKind::Seed).map(|(v, _, _)| v).collect();
        let last = places.len() - tangents.min(places.len());
        let tangent = |v: ValueId| places[last..].iter().position(|other| *other == v);
        // By name, because the backward has placeholders of its own.
        let users: Vec<&str> = partition
            .forward
            .inputs()
            .filter(|(v, k, _)| *k == InputKind::User && partition.forward.meta(*v).is_some())
            .map(|(_, _, n)| n)
            .collect();
        let sources = sources(&graph, &|v, kind, name| {
            if let Some(n) = saved.get(&v) {
                return Some(Source::Saved(*n));
            }
            if let Some(n) = tangent(v) {
                return Some(Source::Tangent(n));
            }
            match kind {
                InputKind::User => users.iter().position(|u| *u == name).map(Source::User),
                _ => kept.iter().any(|k| k == name).then(|| Source::State(name.into())),
            }
        });
        per_call(&mut graph, &|_, kind, name| {
            matches!(kind, InputKind::Parameter | InputKind::Buffer { .. }) && kept.iter().any(|k| k == name)
        });
        bind_sizes(&mut graph);
        let weight = |name: &str| self.weight_value(name, None);
        let CompiledCode { code, kernels, .. } = Code::of_prims(graph, &weight, options)?;
        Ok(Half { code, sources, kernels })
    }
}

/// Parameters, and buffers that the graph writes.
fn kept(forward: &Graph) -> Vec<String> {
    let written = written(forward);
    let kept = forward.inputs().filter(|(v, kind, name)| {
        forward.meta(*v).is_some()
            && (*kind == InputKind::Parameter || *kind != InputKind::User && written.contains(name))
    });
    kept.map(|(_, _, name)| name.to_owned()).collect()
}

/// The cotangents' placeholders in order.
fn tangent_infos(joint: &aot_autograd::JointGraph) -> Vec<TangentInfo> {
    let mut list = Vec::new();
    let mut output = 0;
    for (o, tangent) in joint.graph.outputs.iter().zip(&joint.tangents) {
        let visible = matches!(o.kind, OutputKind::User | OutputKind::Loss);
        if let Some(meta) = tangent.and_then(|t| joint.graph.meta(t)) {
            let info = TensorInfo::new(&format!("tangents[{output}]"), meta.clone());
            list.push(TangentInfo { output, info });
        }
        output += usize::from(visible && matches!(o.arg, Arg::Value(_)));
    }
    list
}

impl Differentiated {
    /// Runs the forward half; returns the program's outputs, and what the backward half needs. Buffers that the
    /// program writes (running statistics) have their new values afterwards.
    ///
    /// # Errors
    /// Inputs that do not fit, and errors of the backend.
    pub fn forward(&self, inputs: &[Tensor]) -> Result<(Vec<Tensor>, Saved<'_>), Error> {
        self.forward_tensors(self.arguments.conform(inputs)?.into_iter().map(Value::Host).collect())
    }

    /// As [`forward`](Differentiated::forward) on inputs of any kind, as
    /// [`Compiled::call_with`](crate::Compiled::call_with) takes them.
    ///
    /// # Errors
    /// As for `forward`; an input of another kind, and another value than the one that the program was exported for.
    pub fn forward_with(&self, inputs: &[Input]) -> Result<(Vec<Tensor>, Saved<'_>), Error> {
        self.forward_tensors(self.arguments.conform_with(inputs)?)
    }

    fn forward_tensors(&self, users: Vec<Value>) -> Result<(Vec<Tensor>, Saved<'_>), Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let lookup = |state: &State, name: &str| {
            state.get(name).cloned().ok_or_else(|| Error::MissingWeights { count: 1, first: name.into() })
        };
        let pick = |s: &Source| match s {
            Source::User(n) => Ok(users[*n].clone()),
            Source::State(name) => lookup(&state, name),
            _ => Err(Error::Internal("a forward graph reads what only the backward has".into())),
        };
        let all = self.forward.sources.iter().map(pick).collect::<Result<Vec<_>, _>>()?;
        let seed = self.seeds.next();
        let results = self.forward.code.run_values(&all.iter().collect::<Vec<_>>(), seed)?;
        let (mut outputs, mut saved, mut new) = (Vec::new(), Vec::new(), Vec::new());
        for (n, (value, sink)) in results.into_iter().zip(&self.sinks).enumerate() {
            match sink {
                Sink::User | Sink::Loss => outputs.push(self.forward.code.to_host(n, value)?),
                Sink::Saved => saved.push(value),
                Sink::State(name) => new.push((name.clone(), value)),
                _ => {}
            }
        }
        let mut sizes = self.input_sizes(&users);
        for (place, size) in &self.computed {
            let lost = || Error::Internal("the forward did not save a size".into());
            let number = saved.get_mut(*place).ok_or_else(lost)?;
            let n = self.forward.code.fetch(number, DType::I64)?.item().ok_or_else(lost)?.as_i64();
            *number = size_tensor(n)?.into();
            sizes.push((size.clone(), n));
        }
        for size in &self.sizes {
            saved.push(size_tensor(self.size(size, &users)?)?.into());
        }
        let mut tensors = BTreeMap::new();
        for (n, source) in self.backward.sources.iter().enumerate() {
            let tensor = match source {
                Source::Saved(k) => saved.get(*k).cloned(),
                Source::User(k) => users.get(*k).cloned(),
                // The value that the forward read, before its own writes.
                Source::State(name) => Some(lookup(&state, name)?),
                _ => None,
            };
            tensors.extend(tensor.map(|t| (n, t)));
        }
        state.extend(new);
        Ok((outputs, Saved { of: self, tensors, sizes, seed }))
    }

    /// The sizes of these inputs by symbol.
    fn input_sizes(&self, users: &[Value]) -> Vec<(SymExpr, i64)> {
        self.arguments.tensors().iter().zip(users).flat_map(|(info, value)| info.equations(value)).collect()
    }

    /// The value of a size for these inputs.
    fn size(&self, size: &SymExpr, users: &[Value]) -> Result<i64, Error> {
        let mut bindings = Bindings::new();
        // `conform` has solved the same equations.
        let _ = bindings.solve(&self.input_sizes(users));
        bindings
            .eval(size)
            .ok_or_else(|| Error::Internal(format!("the inputs do not determine the size {size}")))
    }

    /// The cotangents that `backward` takes, in order; none where the loss is differentiated.
    pub fn tangents(&self) -> &[TangentInfo] {
        &self.tangents
    }
    /// What a forward call takes, in order.
    pub fn inputs(&self) -> &[InputInfo] {
        self.arguments.inputs()
    }
    /// Bytes that a forward call saves for its backward call in addition to inputs and parameters, where sizes are numbers.
    pub fn saved_bytes(&self) -> Option<i64> {
        self.saved_bytes
    }
    /// The fused programs of both halves, for backends that take them.
    pub fn kernels(&self) -> Option<(&kernel_ir::Program, &kernel_ir::Program)> {
        Some((self.forward.kernels.as_ref()?, self.backward.kernels.as_ref()?))
    }
    /// The current value of a parameter, or of a buffer that the program writes; `None` also where the device fails to
    /// return
    /// it.
    pub fn get(&self, name: &str) -> Option<Tensor> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.forward.code.fetch(state.get(name)?, *self.dtypes.get(name)?).ok()
    }
    /// Replaces a parameter or written buffer.
    ///
    /// # Errors
    /// A name that is neither, and a tensor of another dtype or size.
    pub fn set(&self, name: &str, tensor: Tensor) -> Result<(), Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        replace(&mut state, name, &tensor, &self.forward.code)
    }
}

impl Saved<'_> {
    /// Runs the backward half on the cotangents (see [`Differentiated::tangents`]); may be called again.
    ///
    /// # Errors
    /// Cotangents that do not fit, and errors of the backend.
    pub fn backward(&self, tangents: &[Tensor]) -> Result<Gradients, Error> {
        let of = self.of;
        let infos: Vec<TensorInfo> = of.tangents.iter().map(|t| t.info.clone()).collect();
        let mut bindings = Bindings::new();
        // The forward's check has solved the same equations.
        let _ = bindings.solve(&self.sizes);
        let known = of.symbols.ids().filter_map(|id| Some((id, bindings.get(id)?)));
        let (known, values): (Vec<SymId>, Vec<i64>) = known.unzip();
        // The guards were checked in the forward too.
        let signature = Signature::with_known(&infos, &of.symbols, &[], &known)?;
        let tangents = signature.conform_with_known(tangents, &values)?;
        let tangents: Vec<Value> = tangents.into_iter().map(Value::Host).collect();
        let mut all = Vec::with_capacity(of.backward.sources.len());
        for (n, source) in of.backward.sources.iter().enumerate() {
            all.push(match source {
                Source::Tangent(k) => &tangents[*k],
                _ => self
                    .tensors
                    .get(&n)
                    .ok_or_else(|| Error::Internal("the backward reads what was not saved".into()))?,
            });
        }
        let results = of.backward.code.run_values(&all, self.seed)?;
        let results = results.into_iter().enumerate().map(|(n, value)| of.backward.code.to_host(n, value));
        let mut results = results.collect::<Result<Vec<_>, _>>()?.into_iter();
        let gradient = |info: &GradientInfo| Gradient {
            name: info.name.clone(),
            parameter: info.parameter,
            tensor: if info.exists { results.next() } else { None },
        };
        Ok(Gradients(of.gradients.iter().map(gradient).collect()))
    }
}
