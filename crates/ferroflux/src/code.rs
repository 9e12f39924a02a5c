//! The code of one graph on any backend: [`crate::Compiled`] and the training programs run it. It knows neither state nor
//! the caller's inputs; its owner supplies its inputs.

use fx_ir::Graph;
use ir_core::{DType, Guard};
use plugin_host::{
    Arg, CompileArgs, FFX_ERR_UNSUPPORTED, HostError, IrVersion, KERNEL_IR, LoadedBackend, LoadedExecutable,
    PluginFailure, Refusal, Value,
};
use smallvec::SmallVec;
use tensor::{DeviceTensor, Tensor};
use tracing::info_span;

use crate::boundary::{self, Boundary};
use crate::cache::{Caller, Form, Lookup, Stage, get_or_compile};
use crate::graph_plugin;
use crate::mesh::{Member, MeshOptions};
use crate::pipeline::{self, Cx, KernelOptions, Kernels, StageId};
use crate::profiler::{Category, as_rank, span};
use crate::seeds::{seed_place, seed_tensor};
use crate::{Error, Options};

/// Returns the tensors of constants by name, on any device.
pub(crate) type Weights<'a> = &'a dyn Fn(&str) -> Result<Option<Value>, Error>;

/// The code and facts about it.
pub(crate) struct CompiledCode {
    pub(crate) code: Code,
    /// The fused program, if the backend takes one.
    pub(crate) kernels: Option<kernel_ir::Program>,
    /// The conditions on the sizes of a call.
    pub(crate) guards: Vec<Guard>,
}

/// An executable of a plugin and its relation to a graph.
pub(crate) struct Code {
    code: LoadedExecutable,
    backend: LoadedBackend,
    /// Position of the seed among its inputs.
    seed_place: Option<usize>,
    /// The dtypes of results for the caller.
    boundary: Boundary,
    /// For each result of the graph whether the call stores it in the input that it is the new value of.
    in_place: Vec<bool>,
    /// Whether the code has the numbers of kernels alone.
    real: bool,
    /// The rank whose turn it is, of code that exchanges data.
    member: Option<Member>,
}

/// Runs `make` with new values of state written in place; where that is not `wanted`, or the backend does not read such
/// programs or refuses this one, with new values as outputs.
pub(crate) fn in_place_or_returned<T>(
    backend: &LoadedBackend,
    wanted: bool,
    make: &dyn Fn(bool) -> Result<T, Error>,
) -> Result<T, Error> {
    let reads = backend.reads().iter().any(|own| own.reads(IrVersion::kernel_ir(1, 4)));
    if wanted && reads {
        match make(true) {
            // An error of another kind would occur again.
            Err(Error::Refused { .. }) => {}
            made => return made,
        }
    }
    make(false)
}

/// The option of backends that cache files of their own; without it they store nothing.
pub(crate) const CACHE_OPTION: &str = "cache";

/// Compiles a fused program, if the backend supports all of it. Its constants must be bound afterwards; `weights` is the
/// folder in which the backend may cache the results of binding.
pub(crate) fn executable(
    kernels: &Kernels,
    backend: &LoadedBackend,
    options: &Options,
    weights: Option<&str>,
) -> Result<LoadedExecutable, Error> {
    let bytes = kernels.program.to_bytes();
    let mut list = options.backend_option_list();
    list.extend(weights.map(|folder| (CACHE_OPTION, folder)));
    let args = CompileArgs::new(KERNEL_IR, &bytes).mode(options.mode.name()).options(&list);
    compiled_or_refused(backend, &args, &|refused| refused.iter().map(ToString::to_string).collect())
}

/// Compiles a program on a backend. The backend is asked for all its refusals only if that fails, because it lowers the
/// program for either question; `lines` formats the refusals.
pub(crate) fn compiled_or_refused(
    backend: &LoadedBackend,
    args: &CompileArgs<'_>,
    lines: &dyn Fn(&[Refusal]) -> Vec<String>,
) -> Result<LoadedExecutable, Error> {
    let _span = info_span!("backend compile", backend = backend.name()).entered();
    let _range = span(Category::Compile, || format!("compile by {}", backend.name()));
    let error = match backend.compile(args) {
        Ok(executable) => return Ok(executable),
        Err(error @ HostError::Plugin { .. }) => error,
        Err(error) => return Err(error.into()),
    };
    let mut refused = backend.query_support(args)?;
    if let (true, HostError::Plugin { failure, .. }) = (refused.is_empty(), &error)
        && let PluginFailure { code: FFX_ERR_UNSUPPORTED, node: Some(node), message } = failure
    {
        refused.push(Refusal { node: node.clone(), reason: message.clone() });
    }
    if refused.is_empty() {
        return Err(error.into());
    }
    Err(Error::Refused { backend: backend.name().into(), refused: lines(&refused) })
}

/// A graph before the lowering, and the dtypes of its results for its caller.
pub(crate) struct Optimized {
    /// The result of the last stage.
    pub(crate) graph: Graph,
    /// For each result that is a value its dtype for the caller, where kernels have another.
    pub(crate) shown: Vec<Option<DType>>,
}

impl Optimized {
    /// Takes a graph after stage `joint` through the remaining stages.
    ///
    /// # Errors
    /// The errors of the stages.
    pub(crate) fn of_prims(prims: Graph, cx: &Cx<'_>) -> Result<Optimized, Error> {
        let shown = Boundary::of(&prims).all().to_vec();
        Ok(Optimized { graph: pipeline::run(prims, StageId::Real..=StageId::Optimized, cx)?, shown })
    }

    /// Lowers it and compiles it on a backend; new values of state are written in place where that is wanted and the
    /// backend supports it. `lookup` has the folder for results of binding; the cache is not searched.
    ///
    /// # Errors
    /// Errors of the lowering, and refusals of the backend.
    pub(crate) fn compile(
        &self,
        backend: &LoadedBackend,
        options: &Options,
        kernel_options: &KernelOptions,
        (lookup, cx): (Option<&Lookup<'_>>, &Cx<'_>),
    ) -> Result<(Kernels, LoadedExecutable), Error> {
        in_place_or_returned(backend, kernel_options.in_place, &|in_place| {
            let unchecked_indices = options.unchecked_indices;
            let on_device = backend.has_device_memory();
            let kernel_options =
                KernelOptions { in_place, unchecked_indices, on_device, ..kernel_options.clone() };
            let mut kernels = pipeline::lower(&self.graph, &kernel_options, cx)?;
            if in_place {
                crate::foreign::lend_results(&mut kernels, &kernel_options.lent_results);
            }
            let folder = lookup.and_then(|l| l.weights_folder(&kernels));
            let executable = executable(&kernels, backend, options, folder.as_deref())?;
            Ok((kernels, executable))
        })
    }
}

impl Code {
    /// The result of [`executable`], or a cached program, with its constants bound.
    pub(crate) fn bound(
        form: &Form,
        code: LoadedExecutable,
        backend: &LoadedBackend,
        weight: Weights<'_>,
    ) -> Result<Code, Error> {
        let mut code = Code::unbound(form, code, backend);
        code.bind(&form.kernels.program, weight)?;
        Ok(code)
    }

    /// As [`Code::bound`], before its constants are bound.
    pub(crate) fn unbound(form: &Form, code: LoadedExecutable, backend: &LoadedBackend) -> Code {
        let Kernels { program: kernels, in_place } = &form.kernels;
        let (seed_place, backend, in_place) = (seed_place(kernels), backend.clone(), in_place.clone());
        let boundary = Boundary::known(form.shown.clone());
        Code { code, backend, seed_place, boundary, in_place, real: true, member: None }
    }

    /// Makes calls of a rank of a mesh follow each other.
    pub(crate) fn take_turns(&mut self, mesh: Option<&MeshOptions>) {
        self.member = mesh.map(|m| m.member.clone());
    }

    /// Binds the constants of its program, in place of those bound before.
    ///
    /// # Errors
    /// Errors of the backend; nothing is bound then.
    pub(crate) fn bind(&mut self, kernels: &kernel_ir::Program, weight: Weights<'_>) -> Result<(), Error> {
        let mut constants: Vec<(&str, Value)> = Vec::with_capacity(kernels.constants.len());
        for c in &kernels.constants {
            let Some(value) = weight(&c.name)? else { continue };
            constants.push((&c.name, bound_form(value, &kernels.buffers[c.buf], &self.backend)?));
        }
        let _span = info_span!("bind constants", count = constants.len()).entered();
        let _range = span(Category::Compile, || "bind constants".to_owned());
        self.code.bind_values(&constants.iter().map(|(name, v)| (*name, v)).collect::<Vec<_>>())?;
        Ok(())
    }

    /// Compiles a graph after stage `joint` for the backend of `options`. Parameters and buffers to which no output of the
    /// graph gives a new value are constants; new values are results.
    pub(crate) fn of_prims(
        prims: Graph,
        weight: Weights<'_>,
        options: &Options,
    ) -> Result<CompiledCode, Error> {
        options.refuse_mesh("a function or a half of a training step")?;
        let cx = Cx::training()?;
        let backend = crate::registry().load(&options.backend)?;
        if graph_plugin::takes_graphs(&backend) {
            let (code, guards) = graph_plugin::compile_prims(prims, &backend, options, (weight, &cx))?;
            return Ok(CompiledCode { code, kernels: None, guards });
        }
        let lookup = Lookup::new(Stage::Prims { in_place: false }, &prims, "", &backend, options);
        let (form, executable, from_cache) = get_or_compile(lookup.as_ref(), || {
            let optimized = Optimized::of_prims(prims, &cx)?;
            let wanted = KernelOptions::of_optimized(&optimized.graph);
            let (kernels, executable) =
                optimized.compile(&backend, options, &wanted, (lookup.as_ref(), &cx))?;
            Ok((Form { kernels, shown: optimized.shown, caller: Caller::Graph }, executable))
        })?;
        let code = Code::bound(&form, executable, &backend, weight)?;
        if !from_cache {
            lookup.iter().for_each(|l| l.tidy(&form.kernels));
        }
        let kernels = form.kernels.program;
        Ok(CompiledCode { code, guards: kernels.guards.clone(), kernels: Some(kernels) })
    }

    /// Runs on all inputs that are not constants, in the order of the graph's placeholders, without the seed.
    pub(crate) fn run(&self, inputs: &[&Tensor], seed: u64) -> Result<Vec<Tensor>, Error> {
        let inputs: SmallVec<[Value; 8]> = inputs.iter().map(|t| Value::Host((*t).clone())).collect();
        let mut args: SmallVec<[Arg<'_>; 16]> = inputs.iter().map(Arg::Read).collect();
        let outputs = self.run_all(&mut args, seed)?;
        outputs.into_iter().flatten().enumerate().map(|(n, value)| self.to_host(n, value)).collect()
    }

    /// As [`Code::run`], but tensors may stay on the backend's device, both inputs and outputs. [`Code::to_host`] copies an
    /// output to the host.
    pub(crate) fn run_values(&self, inputs: &[&Value], seed: u64) -> Result<Vec<Value>, Error> {
        let outputs = self.run_args(inputs.iter().map(|v| Arg::Read(v)).collect(), seed)?;
        Ok(outputs.into_iter().flatten().collect())
    }

    /// As [`Code::run_values`], for code that writes new values of state in place: those are `Arg::Write`, in the form of
    /// [`Code::own`]. A result that is left in an input is `None`.
    pub(crate) fn run_args(&self, mut inputs: Vec<Arg<'_>>, seed: u64) -> Result<Vec<Option<Value>>, Error> {
        self.run_all(&mut inputs, seed)
    }

    /// Output `n` in the form that the program's caller knows.
    pub(crate) fn to_host(&self, n: usize, value: Value) -> Result<Tensor, Error> {
        self.boundary.outer(n, self.code.to_host(value)?)
    }

    /// Output `n` on a device in the form that the program's caller knows; complex ones stay real.
    pub(crate) fn outer_device(&self, n: usize, tensor: DeviceTensor) -> DeviceTensor {
        self.boundary.outer_device(n, tensor)
    }

    /// Output in host memory, in the form that the code computes.
    pub(crate) fn host_form(&self, value: Value) -> Result<Tensor, Error> {
        let tensor = self.code.to_host(value)?;
        self.form(&tensor)
    }

    /// Converts a tensor to the form that the code takes: one of numbers that kernels have, if it is made of kernels.
    pub(crate) fn form(&self, tensor: &Tensor) -> Result<Tensor, Error> {
        if self.real { boundary::inner(tensor) } else { Ok(tensor.clone()) }
    }

    /// Converts a tensor of the caller's state to the form that the code keeps: on the backend's device if tensors may stay
    /// there, else, if calls write it, in host memory of its own.
    ///
    /// # Errors
    /// No memory; an error of the device.
    pub(crate) fn own(&self, tensor: &Tensor) -> Result<Value, Error> {
        let mut tensor = self.form(tensor)?;
        if self.backend.has_device_memory() {
            return on_device(&self.backend, &tensor);
        }
        if self.in_place.contains(&true) {
            tensor.make_writable()?;
        }
        Ok(Value::Host(tensor))
    }

    /// A copy of a tensor kept by [`Code::own`], with the dtype that the program's user knows.
    ///
    /// # Errors
    /// An error of the device.
    pub(crate) fn fetch(&self, value: &Value, dtype: DType) -> Result<Tensor, Error> {
        boundary::outer(self.code.to_host(value.clone())?, dtype)
    }

    /// For a graph that the plugin took whole. `split` has the dtypes of results, where it was taken to the numbers that kernels have.
    pub(crate) fn of_graph(
        code: LoadedExecutable,
        backend: &LoadedBackend,
        seed_place: Option<usize>,
        split: Option<Boundary>,
        outputs: usize,
    ) -> Code {
        let (backend, in_place, real) = (backend.clone(), vec![false; outputs], split.is_some());
        let boundary = split.unwrap_or_else(|| Boundary::known(Vec::new()));
        Code { code, backend, seed_place, boundary, in_place, real, member: None }
    }

    /// As [`Code::run_args`], on a stream of the backend's driver; the default one where it is null.
    ///
    /// # Safety
    /// The stream is null or a live one of the backend's driver; memory of inputs and outputs stays until its work is done.
    pub(crate) unsafe fn run_on(
        &self,
        inputs: &mut [Arg<'_>],
        seed: u64,
        stream: *mut std::ffi::c_void,
    ) -> Result<Vec<Option<Value>>, Error> {
        // SAFETY: by the caller's promise.
        self.run_with(inputs, seed, &mut |code, all| unsafe { code.execute_args_on(all, stream) })
    }

    /// The executable.
    pub(crate) fn executable(&self) -> &LoadedExecutable {
        &self.code
    }

    /// Whether its calls need a seed.
    pub(crate) fn draws(&self) -> bool {
        self.seed_place.is_some()
    }

    /// The backend that runs it.
    pub(crate) fn backend(&self) -> &LoadedBackend {
        &self.backend
    }

    fn run_all(&self, inputs: &mut [Arg<'_>], seed: u64) -> Result<Vec<Option<Value>>, Error> {
        self.run_with(inputs, seed, &mut |code, all| code.execute_args(all))
    }

    fn run_with(
        &self,
        inputs: &mut [Arg<'_>],
        seed: u64,
        execute: &mut dyn FnMut(&LoadedExecutable, &mut [Arg<'_>]) -> Result<Vec<Value>, HostError>,
    ) -> Result<Vec<Option<Value>>, Error> {
        // Inputs in another form, with their places: few programs have any.
        let mut reads: Vec<(usize, Value)> = Vec::new();
        for (n, input) in inputs.iter_mut().enumerate() {
            match input {
                Arg::Read(v) if self.real && boundary::is_foreign(v.dtype()) => {
                    reads.push((n, Boundary::inner_value(v)?));
                }
                // The caller may still hold the tensor, which must keep its values.
                Arg::Write(Value::Host(t)) if self.in_place.contains(&true) => t.make_writable()?,
                Arg::Read(_) | Arg::Write(_) => {}
            }
        }
        let seed = self
            .seed_place
            .map(|place| Ok::<_, Error>((place, Value::Host(seed_tensor(seed)?))))
            .transpose()?;
        let mut all: SmallVec<[Arg<'_>; 16]> = SmallVec::with_capacity(inputs.len() + 1);
        for input in inputs.iter_mut() {
            all.push(match input {
                Arg::Read(value) => Arg::Read(value),
                Arg::Write(value) => Arg::Write(value),
            });
        }
        reads.iter().for_each(|(n, value)| all[*n] = Arg::Read(value));
        if let Some((place, seed)) = &seed {
            all.insert((*place).min(all.len()), Arg::Read(seed));
        }
        let _rank = self.member.as_ref().map(|m| as_rank(m.rank()));
        let range = span(Category::Launch, || format!("run on {}", self.backend.name()));
        let turn = self.member.as_ref().map(Member::turn);
        let outputs = execute(&self.code, &mut all)?;
        drop(turn);
        drop(range);
        let (given, wanted) = (outputs.len(), self.in_place.iter().filter(|stays| !**stays).count());
        if given != wanted {
            return Err(Error::Internal(format!(
                "{wanted} results should come out of the code, {given} did"
            )));
        }
        let mut outputs = outputs.into_iter();
        Ok(self.in_place.iter().map(|stays| if *stays { None } else { outputs.next() }).collect())
    }
}

/// A copy of the tensor on the backend's device: with its strides where it has no gaps, else row by row, as programs take what has
/// gaps: a part of a larger tensor, such as a rank's.
pub(crate) fn on_device(backend: &LoadedBackend, tensor: &Tensor) -> Result<Value, Error> {
    let device = backend.device()?;
    let mut order: Vec<usize> = (0..tensor.rank()).collect();
    order.sort_by_key(|&d| (std::cmp::Reverse(tensor.strides()[d]), d));
    let dense = tensor.permute(&order)?;
    if tensor.is_contiguous() || !dense.is_contiguous() {
        return Ok(Value::Device(backend.to_device(&tensor.contiguous()?, device)?));
    }
    let copy = backend.to_device(&dense, device)?;
    let (data, dtype, device) = (copy.data(), copy.dtype(), copy.device());
    let turned = DeviceTensor::new(data, dtype, device, tensor.sizes(), tensor.strides(), move || drop(copy));
    Ok(Value::Device(turned))
}

/// Converts a constant to the form that a plugin takes: to numbers that kernels have, one of the device to the strides of
/// the program (the plugin converts host tensors itself).
fn bound_form(value: Value, buffer: &kernel_ir::Buffer, backend: &LoadedBackend) -> Result<Value, Error> {
    let tensor = match value {
        Value::Device(tensor) => {
            let wanted = buffer.strides.iter().map(|s| s.as_const().and_then(|n| isize::try_from(n).ok()));
            let fits = wanted.zip(tensor.strides()).all(|(want, is)| want == Some(*is));
            if fits || tensor.sizes().contains(&0) {
                return Ok(Value::Device(tensor));
            }
            backend.to_host(&tensor)?
        }
        Value::Host(tensor) => tensor,
    };
    Ok(boundary::inner(&tensor).unwrap_or(tensor).into())
}
