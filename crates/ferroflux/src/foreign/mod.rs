//! Graphs compiled for a caller that owns every tensor: another framework in the same process. Its tensors are lent to a call
//! as they are, with any strides; inputs that the graph mutates are written in their own memory; weights are bound where they
//! lie and bound again when they change.
//!
//! Results may be in the caller's memory too ([`Results::Lent`]). [`dlpack`] makes values of DLPack's structs. Not here: the compilation, which is that of [`crate::Compiled`], and any
//! framework's objects (`crates/python`).

pub mod dlpack;
mod results;

use std::borrow::Cow;
use std::ffi::c_void;
use std::sync::{PoisonError, RwLock};

use ir_core::Guard;
use plugin_host::{Arg, LoadedBackend, Value, World};
pub use plugin_host::{Communicator, DeviceAllocator, set_device_allocator};
use smallvec::SmallVec;
use tensor::Tensor;

use crate::cache::{Caller, Lookup, Stage, Wiring};
use crate::code::Code;
use crate::compiled::{Lends, Sink, Source, compiled_form};
use crate::explain::{Explanation, explain};
use crate::inputs::{Arguments, InputInfo};
use crate::pipeline::{Cx, StageId};
use crate::{Error, Options, Program, graph_plugin};

use results::LentResults;
pub use results::{LentResult, ResultLayout};

pub(crate) use results::lend as lend_results;

/// Whose memory the results of calls are in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Results {
    /// The backend's.
    #[default]
    Returned,
    /// The caller's, for those of [`Callable::lent_results`].
    Lent,
}

/// A compiled graph that runs on its caller's tensors; from any thread.
pub struct Callable {
    code: RwLock<Code>,
    /// The program whose constants are bound; `None` for backends that take graphs, which have none.
    kernels: Option<kernel_ir::Program>,
    arguments: Arguments,
    /// Whether sizes have to be checked here: a program with fixed sizes is checked by its backend.
    checks: bool,
    sources: Vec<Source>,
    sinks: Vec<Sink>,
    /// For each input whether the graph mutates it.
    written: Vec<bool>,
    lent: LentResults,
    explanation: Explanation,
    from_cache: bool,
}

impl Program {
    /// Compiles for a caller that lends all tensors of a call. Weights are not needed yet: parameters, buffers and constants
    /// of the graph are bound by [`Callable::bind`] before the first call.
    ///
    /// With [`Results::Lent`] the caller also has the memory for results; none is lent to modes that record device graphs,
    /// whose memory stays where it is, or to backends that take graphs.
    ///
    /// # Errors
    /// As for [`compile`](Program::compile); a graph that mutates its buffers, which such a caller passes as inputs instead.
    pub fn compile_for_caller(&self, options: &Options, results: Results) -> Result<Callable, Error> {
        self.compile_for_ranks(options, results, &[])
    }

    /// As [`compile_for_caller`](Self::compile_for_caller), with the ranks of each group that the graph's exchanges name. Every rank calls the
    /// compiled code as often as the others. It makes the exchanges of the graph in their order, each by itself, so ranks whose graphs are
    /// unlike otherwise may exchange too.
    ///
    /// # Errors
    /// As for [`compile_for_caller`](Self::compile_for_caller); a backend that runs no exchanges, or in other memory than the groups'.
    pub fn compile_for_ranks(
        &self,
        options: &Options,
        results: Results,
        groups: &[(&str, &Communicator)],
    ) -> Result<Callable, Error> {
        let backend = crate::registry().load(&options.backend)?;
        if graph_plugin::takes_graphs(&backend) {
            return Callable::of_graph_plugin(self, &backend, options);
        }
        let results = results == Results::Lent && !options.mode.records();
        let stage = Stage::Lent { results };
        let lookup = Lookup::new(stage, self.graph(), self.name(), &backend, options);
        let lends = Lends { inputs: true, results };
        let (form, mut executable, from_cache) =
            compiled_form(self, &backend, options, (lookup.as_ref(), lends))?;
        if !groups.is_empty() {
            executable.attach_groups(groups)?;
        }
        let code = Code::unbound(&form, executable, &backend);
        let Caller::Model(wiring) = form.caller else {
            return Err(Error::Internal("a compiled model without its inputs and outputs".into()));
        };
        let all = wiring.sinks.iter().zip(&form.kernels.in_place).zip(&form.shown);
        let users = all.filter(|((sink, _), _)| **sink == Sink::User).enumerate();
        let places = users.filter(|(_, ((_, stays), _))| **stays).map(|(place, (_, shown))| (place, *shown));
        let lent = LentResults::of(&form.kernels.program, &places.collect::<Vec<_>>());
        let kernels = form.kernels.program;
        let explanation = explain(self.graph(), Some(&kernels));
        let unbound = kernels.constants.is_empty();
        let made = Callable::new(self, code, (wiring, &kernels.guards), explanation)?;
        let made = Callable { from_cache, kernels: Some(kernels), lent, ..made };
        if unbound {
            // Steps that run once may compute tables even where there are no weights.
            made.bind(&[])?;
        }
        Ok(made)
    }
}

impl Callable {
    fn of_graph_plugin(
        program: &Program,
        backend: &LoadedBackend,
        options: &Options,
    ) -> Result<Callable, Error> {
        let cx = Cx::inference()?.on(backend, options);
        let functional = program.through(StageId::Functional, &cx)?;
        let wiring = Wiring::of(&functional);
        let no_weight = |name: &str| {
            let backend = backend.name().into();
            let message = format!("takes no bound constants here; make `{name}` an input of the graph");
            Err(Error::GraphBackend { backend, message })
        };
        let (code, guards) = graph_plugin::compile(functional, backend, options, (&no_weight, &cx))?;
        Callable::new(program, code, (wiring, &guards), explain(program.graph(), None))
    }

    fn new(
        program: &Program,
        code: Code,
        (wiring, guards): (Wiring, &[Guard]),
        explanation: Explanation,
    ) -> Result<Callable, Error> {
        if let Some(first) = wiring.state.first() {
            let what =
                format!("the graph mutates its buffer `{first}`, which its caller must pass as an input");
            return Err(Error::Function(what));
        }
        let arguments = Arguments::of(program, &wiring.symbols, guards)?;
        let mut written = vec![false; arguments.tensors().len()];
        for sink in &wiring.sinks {
            if let Sink::Input(n) = *sink
                && let Some(place) = written.get_mut(n)
            {
                *place = true;
            }
        }
        Ok(Callable {
            code: RwLock::new(code),
            kernels: None,
            checks: !wiring.symbols.is_empty() || arguments.has_numbers() || !guards.is_empty(),
            arguments,
            sources: wiring.sources,
            sinks: wiring.sinks,
            written,
            lent: LentResults::default(),
            explanation,
            from_cache: false,
        })
    }

    /// Names of the constants to bind.
    pub fn constants(&self) -> impl Iterator<Item = &str> {
        self.kernels.iter().flat_map(|k| k.constants.iter().map(|c| &*c.name))
    }

    /// Binds constants by name, in place of those bound before; weights are packed now. Waits for calls that run. The memory
    /// of the tensors must stay as it is until they are bound again or the code is dropped; where another part of the
    /// program changes it, they are bound again before the next call.
    ///
    /// # Errors
    /// A missing constant, one of another type, or an error of the backend; no call works then until a binding succeeds.
    pub fn bind(&self, constants: &[(&str, Value)]) -> Result<(), Error> {
        let Some(kernels) = &self.kernels else { return Ok(()) };
        let find = |name: &str| {
            let found = constants.iter().find(|(other, _)| *other == name);
            Ok(found.map(|(_, value)| value.clone()))
        };
        self.code.write().unwrap_or_else(PoisonError::into_inner).bind(kernels, &find)
    }

    /// Whether calls draw random numbers and so need a seed of their own each.
    pub fn draws(&self) -> bool {
        self.read().draws()
    }

    /// The results for which the caller has the memory, by their place among all results.
    pub fn lent_results(&self) -> &[LentResult] {
        &self.lent.list
    }

    /// Sizes and strides of the [`lent_results`](Self::lent_results) for inputs of these sizes.
    ///
    /// # Errors
    /// A size beyond 64 bits.
    pub fn result_layouts(&self, inputs: &[Value]) -> Result<Cow<'_, [ResultLayout]>, Error> {
        let size = |input: usize, dim: usize| {
            let Some(Source::User(n)) = self.sources.get(input) else { return None };
            inputs.get(*n)?.sizes().get(dim).map(|n| *n as i64)
        };
        self.lent.layouts(&size)
    }

    /// Whether [`result_layouts`](Self::result_layouts) is the same for all inputs.
    pub fn has_fixed_results(&self) -> bool {
        self.lent.is_fixed()
    }

    /// Runs the graph on its inputs in order: tensors over the caller's memory, those that the graph mutates lent for writing
    /// ([`dlpack::Access::Write`]); integers as tensors without dimensions. Returns the tensors that the graph returns, in
    /// order, without the new values of mutated inputs, which are in these. `results` are values over memory for the
    /// [`lent_results`](Self::lent_results), lent for writing; those are `None` among what is returned.
    ///
    /// Complex tensors on a device are real ones with a last dimension of 2.
    ///
    /// # Safety
    /// `stream` is null, or a live stream of the driver that the backend uses. Work on a device may still run when this
    /// returns: the memory of inputs and results is freed, and used elsewhere, in the order of that stream. Inputs share no
    /// memory with those that are mutated, nor with results.
    ///
    /// # Errors
    /// Inputs that do not fit the graph's dtypes, ranks and sizes; a mutated input whose memory cannot be written; errors of
    /// the backend, after which mutated inputs may have old or new values.
    pub unsafe fn call(
        &self,
        inputs: &mut [Value],
        results: &mut [Value],
        seed: u64,
        stream: *mut c_void,
    ) -> Result<Vec<Option<Value>>, Error> {
        if self.checks || inputs.len() != self.written.len() {
            self.arguments.check(inputs)?;
        }
        self.require_writable(inputs)?;
        self.require_results(inputs, results)?;
        let code = self.read();
        let outputs = {
            let mut slots: SmallVec<[Option<&mut Value>; 16]> = inputs.iter_mut().map(Some).collect();
            let mut all: SmallVec<[Arg<'_>; 16]> =
                SmallVec::with_capacity(self.sources.len() + results.len());
            for source in &self.sources {
                let Source::User(n) = *source else { continue };
                let value = slots.get_mut(n).and_then(Option::take);
                let value = value.ok_or_else(|| Error::Internal(format!("input {n} is used twice")))?;
                all.push(if self.written[n] { Arg::Write(value) } else { Arg::Read(value) });
            }
            all.extend(results.iter_mut().map(Arg::Write));
            // SAFETY: by this function's own contract.
            unsafe { code.run_on(&mut all, seed, stream) }?
        };
        self.sort(&code, outputs, inputs)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Code> {
        self.code.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn require_writable(&self, inputs: &mut [Value]) -> Result<(), Error> {
        for (index, (value, written)) in inputs.iter_mut().zip(&self.written).enumerate() {
            if *written && !value.is_writable() {
                let name = self.arguments.tensors()[index].name.clone();
                let problem = "is mutated by the graph, but was not lent for writing".into();
                return Err(Error::Input { index, name, problem });
            }
        }
        Ok(())
    }

    /// Fails where the memory for results is not that of this call.
    fn require_results(&self, inputs: &[Value], results: &mut [Value]) -> Result<(), Error> {
        let lent = &self.lent.list;
        let layouts = if results.is_empty() { Cow::Borrowed(&[][..]) } else { self.result_layouts(inputs)? };
        let fits = |((value, result), layout): ((&mut Value, &LentResult), &ResultLayout)| {
            result.fits(value, layout) && value.is_writable()
        };
        if results.len() == lent.len() && results.iter_mut().zip(lent).zip(&*layouts).all(fits) {
            return Ok(());
        }
        let what =
            "takes memory for the results that `lent_results` names, lent for writing, by `result_layouts`";
        Err(Error::Function(format!("a call {what}")))
    }

    /// Returns the user's results, and copies new values of inputs that the code did not store in place.
    fn sort(
        &self,
        code: &Code,
        outputs: Vec<Option<Value>>,
        inputs: &mut [Value],
    ) -> Result<Vec<Option<Value>>, Error> {
        let mut given = Vec::with_capacity(outputs.len());
        for (n, (value, sink)) in outputs.into_iter().zip(&self.sinks).enumerate() {
            match (*sink, value) {
                (Sink::User, None) => given.push(None),
                (Sink::User, Some(Value::Host(t))) => {
                    given.push(Some(Value::Host(code.to_host(n, Value::Host(t))?)));
                }
                (Sink::User, Some(Value::Device(t))) => {
                    given.push(Some(Value::Device(code.outer_device(n, t))))
                }
                (Sink::Input(input), Some(value)) => store(code, value, &mut inputs[input])?,
                _ => {}
            }
        }
        Ok(given)
    }

    /// The inputs of a call, in order.
    pub fn inputs(&self) -> &[InputInfo] {
        self.arguments.inputs()
    }
    /// For each input whether the graph mutates it.
    pub fn written_inputs(&self) -> &[bool] {
        &self.written
    }
    /// Operators, kernels and memory.
    pub fn explain(&self) -> &Explanation {
        &self.explanation
    }
    /// Whether it was loaded from the cache of an earlier process.
    pub fn is_from_cache(&self) -> bool {
        self.from_cache
    }
}

/// Copies a new value over the old one.
fn store(code: &Code, new: Value, old: &mut Value) -> Result<(), Error> {
    match old {
        Value::Host(old) => {
            let new = code.host_form(new)?;
            Ok(old.assign(&new)?)
        }
        // SAFETY: the caller of `call` lent the memory for writing, and no other input shares it.
        Value::Device(old) => Ok(unsafe { code.backend().copy(&new, old) }?),
    }
}

/// To be called by the thread that is about to fork the process: threads of other runtimes that have helped it are ended, since the child
/// would wait for them.
pub fn before_fork() {
    #[cfg(feature = "cpu")]
    backend_cpu::before_fork();
}

/// To be called when the process is about to end: files for later processes that are being written are whole when it returns.
pub fn before_exit() {
    #[cfg(feature = "cpu")]
    backend_cpu::wait_for_files();
}

/// Tells that this process is the child of a fork: linked backends make threads of their own there.
pub fn after_fork() {
    #[cfg(feature = "cpu")]
    backend_cpu::after_fork();
}

/// Ranks that another part of the process has joined, as a communicator of the library of a backend's engine (`ncclComm_t` for `cuda`), for
/// [`Program::compile_for_ranks`]. No other rank is asked.
///
/// # Safety
/// The native communicator lives longer than the result and all that is compiled with it, and no one else calls its library with it while
/// compiled code does.
///
/// # Errors
/// A backend without an engine, an engine that takes none over, another rank or number of ranks.
pub unsafe fn adopt_communicator(
    backend: &str,
    native: *mut c_void,
    rank: usize,
    size: usize,
) -> Result<Communicator, Error> {
    let loaded = crate::registry().load(backend)?;
    let missing = || Error::Mesh(format!("backend `{backend}` has no engine for exchanges between ranks"));
    let engine = loaded.collectives()?.ok_or_else(missing)?;
    let world = World { rank, size, device: loaded.device()?, address: String::new(), timeout: None };
    // SAFETY: the caller's guarantee is passed on unchanged.
    Ok(unsafe { engine.adopt(native, &world) }?)
}

/// Zeros that stand for a size: see [`size_input`].
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// The input of a graph that states a size alone, `u8[s0]`: a tensor of that many elements, which takes no memory.
///
/// # Errors
/// A size beyond the address space.
pub fn size_input(size: usize) -> Result<Value, Error> {
    let stride = isize::from(size <= ZEROS.len());
    // SAFETY: a static outlives every tensor; all elements are in it, or are the first one.
    let tensor =
        unsafe { Tensor::from_foreign(ZEROS.as_ptr(), ir_core::DType::U8, &[size], &[stride], || ()) };
    Ok(Value::Host(tensor?))
}

const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Callable>();
};
