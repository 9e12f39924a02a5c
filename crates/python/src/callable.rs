//! A compiled graph as a Python callable: a list of torch tensors and integers in, a list of torch tensors out.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ferroflux::foreign::dlpack::{Access, DL_CUDA, DL_ROCM, DLDevice};
use ferroflux::foreign::{Callable as Code, Communicator, Results, adopt_communicator, size_input};
use ferroflux::fx_ir::Graph;
use ferroflux::{Mode, Options, Program, Tensor, Value};
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use smallvec::SmallVec;

use crate::allocator;
use crate::error::{Error, guarded, raised};
use crate::exchange::{current_stream, lend};
use crate::process::without_lock;
use crate::results::{Made, Ready, ordered};
use crate::weights::{BoundCode, Change, Stamp};

/// Sets of weights for which one graph is kept with packed weights each; layers that share their code are such sets.
const MOST_BOUND: usize = 64;
/// Changes of weights, less the calls between them, after which weights are passed like other inputs.
const RESTLESS: u32 = 3;

/// What is done with an argument of a call.
#[derive(Clone, Debug, PartialEq)]
enum Place {
    /// A tensor that is read.
    Read,
    /// A tensor that is mutated.
    Write,
    /// A weight of this name, bound where it does not change.
    Constant(String),
    /// A size that no tensor's shape gives.
    Size,
    /// Another integer.
    Int,
    /// It is not needed.
    Skip,
}

impl Place {
    fn parse(text: &str) -> PyResult<Place> {
        Ok(match text {
            "read" => Place::Read,
            "write" => Place::Write,
            "size" => Place::Size,
            "int" => Place::Int,
            "skip" => Place::Skip,
            other => match other.strip_prefix("constant:") {
                Some(name) => Place::Constant(name.to_owned()),
                None => return Err(PyValueError::new_err(format!("no kind of argument: `{other}`"))),
            },
        })
    }
}

/// A compiled graph: `Callable(text, places, backend, mode, options, seed, cache, groups)`.
///
/// `text` is fx text; `places` has for each argument of a call `read`, `write`, `constant:NAME`, `size`, `int` or `skip`;
/// `seed` is called for each call that draws random numbers; `groups` has the process groups of the graph's exchanges.
#[pyclass(frozen, dict, module = "ferroflux")]
pub(crate) struct Callable {
    text: String,
    options: Options,
    places: Vec<Place>,
    constants: usize,
    seed: Py<PyAny>,
    groups: Groups,
    /// The device of another kind than the host that it runs on.
    device: Option<DLDevice>,
    /// The code of each set of weights, the last used one first.
    bound: Mutex<Vec<Arc<BoundCode>>>,
    /// The code that takes weights as inputs.
    open: OnceLock<Ready>,
    restless: AtomicU32,
}

/// The values of a call. They are filled in where they stay: so many in line are slow to move.
#[derive(Default)]
struct Given<'py> {
    values: SmallVec<[Value; 16]>,
    /// The objects whose memory they are over.
    held: SmallVec<[Bound<'py, PyAny>; 16]>,
}

/// The device of a backend's name, as torch numbers them (`cuda:1`); `None` for the host.
fn device_named(backend: &str) -> Option<DLDevice> {
    let (name, number) = backend.split_once(':').unwrap_or((backend, "0"));
    let device_type = match name {
        "cuda" => DL_CUDA,
        "rocm" => DL_ROCM,
        _ => return None,
    };
    Some(DLDevice { device_type, device_id: number.parse().ok()? })
}

/// Empties a list, without the slice that Python's own protocol makes for that.
fn emptied(list: &Bound<'_, PyList>) -> PyResult<()> {
    // SAFETY: the list is alive; null stands for no new elements.
    let done = unsafe { ffi::PyList_SetSlice(list.as_ptr(), 0, ffi::PY_SSIZE_T_MAX, std::ptr::null_mut()) };
    if done == 0 { Ok(()) } else { Err(PyErr::fetch(list.py())) }
}

/// Ranks by the name of their group.
type Groups = Vec<(String, Communicator)>;

/// The communicators of torch's process groups: name, native address, this process's rank and the number of ranks of each.
fn adopted(backend: &str, groups: Vec<(String, usize, usize, usize)>) -> Result<Groups, ferroflux::Error> {
    let one = |(name, native, rank, size): (String, usize, usize, usize)| {
        let native = std::ptr::with_exposed_provenance_mut(native);
        // SAFETY: torch's communicator; Python's half asks before each call whether it is still there. torch and compiled code exchange on a
        // group one after another, as all ranks have to do it in one order: a program that uses a group in several threads at once is wrong by
        // itself.
        let group = unsafe { adopt_communicator(backend, native, rank, size) }?;
        Ok((name, group))
    };
    groups.into_iter().map(one).collect()
}

fn compiled(text: &str, options: &Options, groups: &Groups) -> Result<Code, ferroflux::Error> {
    guarded(|| {
        let graph: Graph = text
            .parse()
            .map_err(|e: ferroflux::fx_ir::text::TextError| ferroflux::Error::Internal(e.to_string()))?;
        let nothing = |_: &ferroflux::Weight| Ok(None);
        let groups: Vec<_> = groups.iter().map(|(name, group)| (name.as_str(), group)).collect();
        Program::from_graph(graph, &nothing)?.compile_for_ranks(options, Results::Lent, &groups)
    })
}

impl Callable {
    /// The code for the weights of a call, with these bound; `None` where weights are passed as inputs.
    fn with_weights(&self, args: &Bound<'_, PyList>) -> PyResult<Option<Arc<BoundCode>>> {
        let py = args.py();
        let Some((weights, stamps)) = self.stamps(args)? else { return Ok(None) };
        let bound = self.list();
        let mut change = Change::Tensors;
        let found = bound.iter().position(|b| {
            change = b.compare(&stamps);
            change != Change::Tensors
        });
        let one = match found {
            Some(n) => Arc::clone(&bound[n]),
            None if bound.len() >= MOST_BOUND => return Ok(None),
            // Code that was compiled and has no weights yet.
            None if bound.len() == 1 && bound[0].compare(&[]) == Change::Same => Arc::clone(&bound[0]),
            None => {
                drop(bound);
                let code =
                    without_lock(py, || compiled(&self.text, &self.options, &self.groups)).map_err(raised)?;
                let one = BoundCode::new(Ready::new(py, code, self.device.is_some())?);
                self.list().insert(0, Arc::clone(&one));
                one.bind(py, &weights, stamps)?;
                return Ok(Some(one));
            }
        };
        drop(bound);
        match change {
            Change::Same => {
                if found != Some(0) {
                    self.move_to_front(&one);
                } else if self.restless.load(Ordering::Relaxed) > 0 {
                    self.restless.fetch_sub(1, Ordering::Relaxed);
                }
            }
            Change::Values if self.restless.fetch_add(2, Ordering::Relaxed) >= 2 * RESTLESS => {
                return Ok(None);
            }
            _ => one.bind(py, &weights, stamps)?,
        }
        Ok(Some(one))
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<Arc<BoundCode>>> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn move_to_front(&self, one: &Arc<BoundCode>) {
        let mut list = self.list();
        if let Some(n) = list.iter().position(|other| Arc::ptr_eq(other, one)) {
            list[..=n].rotate_right(1);
        }
    }

    /// The weights among the arguments with their stamps; `None` where one has no version counter.
    #[allow(clippy::type_complexity)]
    fn stamps<'a, 'py>(
        &'a self,
        args: &Bound<'py, PyList>,
    ) -> PyResult<Option<(Vec<(&'a str, Bound<'py, PyAny>)>, Vec<Stamp>)>> {
        let mut weights = Vec::with_capacity(self.constants);
        let mut stamps = Vec::with_capacity(self.constants);
        for (n, place) in self.places.iter().enumerate() {
            let Place::Constant(name) = place else { continue };
            let object = args.get_item(n)?;
            let Some(stamp) = Stamp::of(&object)? else { return Ok(None) };
            weights.push((name.as_str(), object));
            stamps.push(stamp);
        }
        Ok(Some((weights, stamps)))
    }

    /// The code that takes weights as inputs.
    fn open(&self, py: Python<'_>) -> PyResult<&Ready> {
        if let Some(code) = self.open.get() {
            return Ok(code);
        }
        // Quotes within names are escaped, so this is found at placeholders alone.
        let text = self.text.replace("= parameter \"", "= input \"");
        let code = without_lock(py, || compiled(&text, &self.options, &self.groups)).map_err(raised)?;
        let code = Ready::new(py, code, self.device.is_some())?;
        self.list().clear();
        Ok(self.open.get_or_init(|| code))
    }

    /// Appends the tensors of a call to `given`; weights too where `all`.
    fn append<'py>(&self, given: &mut Given<'py>, args: &Bound<'py, PyList>, all: bool) -> PyResult<()> {
        for (n, place) in self.places.iter().enumerate() {
            let access = match place {
                Place::Skip => continue,
                Place::Constant(_) if !all => continue,
                Place::Write => Access::Write,
                Place::Read | Place::Constant(_) => Access::Read,
                Place::Size => {
                    let size = args.get_item(n)?.extract()?;
                    given.values.push(size_input(size).map_err(raised)?);
                    continue;
                }
                Place::Int => {
                    let number: i64 = args.get_item(n)?.extract()?;
                    let number = Tensor::from_vec(vec![number], &[]);
                    given.values.push(Value::Host(number.map_err(|e| Error::new_err(e.to_string()))?));
                    continue;
                }
            };
            let object = args.get_item(n)?;
            given.values.push(lend(&object, access)?);
            given.held.push(object);
        }
        Ok(())
    }

    fn run<'py>(&self, ready: &Ready, args: &Bound<'py, PyList>, all: bool) -> PyResult<Bound<'py, PyList>> {
        let (py, code) = (args.py(), &ready.code);
        let mut given = Given::default();
        self.append(&mut given, args, all)?;
        let values = &mut given.values;
        let seed = if code.draws() { self.seed.call0(py)?.extract::<i64>(py)? as u64 } else { 0 };
        let ordinal = self.device.map_or(0, |device| device.device_id);
        let stream = match self.device {
            Some(device) => current_stream(py, device.device_type, ordinal)?,
            None => std::ptr::null_mut(),
        };
        let mut made = Made::default();
        ready.results(py, values, ordinal, &mut made)?;
        struct Stream(*mut std::ffi::c_void);
        // SAFETY: only an address, which is passed on.
        unsafe impl Send for Stream {}
        // SAFETY: only an address, which no thread dereferences here.
        unsafe impl Sync for Stream {}
        let stream = Stream(stream);
        let results = &mut made.values;
        let outputs = without_lock(py, || {
            let stream = &stream;
            // SAFETY: torch's current stream is live; torch frees memory in the order of that stream. The graph's caller
            // sees to inputs that share memory (AOTAutograd).
            guarded(|| unsafe { code.call(values, results, seed, stream.0) })
        });
        drop(given);
        let outputs = outputs.map_err(raised)?;
        // The convention of boxed calls: the callee lets go of the arguments. A call that fails leaves them.
        emptied(args)?;
        PyList::new(py, ordered(py, outputs, made.tensors)?)
    }

    fn called<'py>(&self, args: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyList>> {
        if args.len() != self.places.len() {
            let (wanted, given) = (self.places.len(), args.len());
            return Err(Error::new_err(format!("the graph takes {wanted} arguments, {given} were given")));
        }
        if let Some(code) = self.open.get() {
            return self.run(code, args, true);
        }
        match self.with_weights(args)? {
            Some(bound) => self.run(&bound.ready, args, false),
            None => self.run(self.open(args.py())?, args, true),
        }
    }
}

#[pymethods]
impl Callable {
    // The keyword arguments of a Python constructor.
    #[allow(clippy::too_many_arguments)]
    #[new]
    #[pyo3(signature = (text, places, backend, mode, options, seed, cache, groups = Vec::new()))]
    fn new(
        py: Python<'_>,
        text: String,
        places: Vec<String>,
        backend: &str,
        mode: &str,
        options: Vec<(String, String)>,
        seed: Py<PyAny>,
        cache: bool,
        groups: Vec<(String, usize, usize, usize)>,
    ) -> PyResult<Callable> {
        let mode: Mode =
            mode.parse().map_err(|e: ferroflux::UnknownMode| PyValueError::new_err(e.to_string()))?;
        let mut chosen = Options::new().backend(backend).mode(mode);
        for (name, value) in options {
            chosen = chosen.backend_option(name, value);
        }
        if !cache {
            chosen = chosen.cache(ferroflux::cache::Cache::Off);
        }
        let places = places.iter().map(|p| Place::parse(p)).collect::<PyResult<Vec<_>>>()?;
        let constants = places.iter().filter(|p| matches!(p, Place::Constant(_))).count();
        let device = device_named(backend);
        if device.is_some_and(|device| device.device_type == DL_CUDA) {
            allocator::install(py);
        }
        let (code, groups) = without_lock(py, || {
            let groups = guarded(|| adopted(backend, groups))?;
            Ok((compiled(&text, &chosen, &groups)?, groups))
        })
        .map_err(raised)?;
        let (bound, open) = (Mutex::new(Vec::new()), OnceLock::new());
        let made = Callable {
            text,
            options: chosen,
            places,
            constants,
            seed,
            groups,
            device,
            bound,
            open,
            restless: AtomicU32::new(0),
        };
        let code = Ready::new(py, code, device.is_some())?;
        if constants == 0 {
            made.open.get_or_init(|| code);
        } else {
            made.list().push(BoundCode::new(code));
        }
        Ok(made)
    }

    /// Runs the graph on a list of arguments, which is empty afterwards; returns the list of its tensors. Where that fails the
    /// list is as it was, and the result is that of the attribute `otherwise`, where it is set, of the list and the error.
    fn __call__<'py>(slf: &Bound<'py, Self>, args: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyList>> {
        let py = args.py();
        let failed = match slf.get().called(args) {
            Err(e) if e.is_instance_of::<Error>(py) => e,
            done => return done,
        };
        let Ok(otherwise) = slf.getattr(pyo3::intern!(py, "otherwise")) else { return Err(failed) };
        Ok(otherwise.call1((args, failed))?.cast_into::<PyList>()?)
    }

    /// Whether the code came from the cache of an earlier process.
    #[getter(from_cache)]
    fn is_from_cache(&self) -> bool {
        match self.open.get() {
            Some(ready) => ready.code.is_from_cache(),
            None => self.list().first().is_some_and(|b| b.ready.code.is_from_cache()),
        }
    }

    /// Operators with counts, kernels as (name, kind, nodes), and bytes of memory.
    fn explain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = match self.open.get() {
            Some(ready) => ready.code.explain().clone(),
            None => self.list().first().map(|b| b.ready.code.explain().clone()).unwrap_or_default(),
        };
        explained(py, &found)
    }
}

/// An explanation as a dictionary.
pub(crate) fn explained<'py>(
    py: Python<'py>,
    found: &ferroflux::Explanation,
) -> PyResult<Bound<'py, PyDict>> {
    let kernel = |k: &ferroflux::KernelInfo| (k.name.clone(), k.kind, k.nodes.clone());
    let all = PyDict::new(py);
    all.set_item("operators", found.operators.clone())?;
    all.set_item("kernels", found.kernels.iter().map(kernel).collect::<Vec<_>>())?;
    all.set_item("init_kernels", found.init_kernels.iter().map(kernel).collect::<Vec<_>>())?;
    all.set_item("arena_bytes", found.arena_bytes)?;
    all.set_item("constant_bytes", found.constant_bytes)?;
    all.set_item("output_bytes", found.output_bytes)?;
    Ok(all)
}
