//! Computes recorded values: the piece that they need is compiled for its structure and types, kept, and run. Not here: what
//! belongs to a piece ([`dynamo::Piece`]).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use dynamo::{Lru, Piece, PieceKey, Seen, SeenFloats, Value};
use fx_ir::Graph;
use ir_core::{AutocastDevice, DType, Scalar};
use tensor::Tensor as HostTensor;

use crate::cache::Cache;
use crate::func::CompiledFunc;
use crate::options::autocast_device;
use crate::profiler::{Category, span};
use crate::{Error, Options};

/// Pieces that are kept. A training loop has a handful; shapes that vary make one each.
const KEPT: usize = 512;

/// Exact sizes and floats for which the form that serves them is remembered: few, because a loop over many sizes forgets
/// one at every turn, which looks at all of them.
const SERVED: usize = 64;

/// A recorded chain is computed at this length even if no value is wanted, so that a loop does not grow without bound.
pub(super) const LONGEST: u32 = 512;

/// Computes values and stores them in their nodes.
///
/// # Errors
/// Errors of the compiler and of the backend.
pub(crate) fn force(values: &[Value]) -> Result<(), Error> {
    let missing: Vec<Value> = values.iter().filter(|v| v.data().is_none()).cloned().collect();
    if missing.is_empty() {
        return Ok(());
    }
    let piece = Piece::of(&missing);
    if piece.is_empty() {
        return Ok(());
    }
    let _range = span(Category::Launch, || format!("recorded piece of {} calls", piece.calls()));
    let mut inputs = piece.inputs();
    let form = compiled(&piece, &mut inputs)?;
    let results = form.call(&inputs)?;
    piece.store(results);
    Ok(())
}

/// Compiled pieces: by their exact sizes and floats, by their structure with these floats, and by their structure alone.
struct Pieces {
    exact: Lru<PieceKey, Arc<CompiledFunc>>,
    /// For exact sizes and floats the form for several that serves them. Apart from `exact`, which is all that has its code.
    served: Lru<PieceKey, Served>,
    classes: Lru<PieceKey, Arc<Mutex<Class>>>,
    schedules: Lru<PieceKey, Arc<Mutex<Schedule>>>,
}

/// The code that serves exact sizes and floats, and what it takes behind the tensors.
#[derive(Clone)]
struct Served {
    code: Arc<CompiledFunc>,
    given: Vec<HostTensor>,
}

/// The pieces of one structure.
#[derive(Default)]
struct Class {
    seen: Seen,
    /// Forms for several sizes or floats, the one used last first.
    forms: Vec<Form>,
}

/// The pieces of one structure whose floats differ.
#[derive(Default)]
struct Schedule {
    floats: SeenFloats,
    /// Floats that their operators do not take as tensors.
    refused: Vec<usize>,
    class: Class,
}

/// A compiled form for several sizes or floats.
#[derive(Clone)]
struct Form {
    code: Arc<CompiledFunc>,
    /// The floats that it takes behind the tensors, by their number among the piece's, and their dtypes.
    given: Vec<(usize, DType)>,
    /// The bits of those that it was compiled for.
    constants: Vec<(usize, u64)>,
}

/// Forms that are kept of one structure.
const KEPT_FORMS: usize = 8;

impl Pieces {
    fn none() -> Pieces {
        Pieces {
            exact: Lru::new(KEPT),
            served: Lru::new(SERVED),
            classes: Lru::new(KEPT),
            schedules: Lru::new(KEPT),
        }
    }
}

fn pieces() -> MutexGuard<'static, Pieces> {
    static PIECES: OnceLock<Mutex<Pieces>> = OnceLock::new();
    PIECES.get_or_init(|| Mutex::new(Pieces::none())).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The compiled form of a piece, from the cache or made now; what it takes besides the piece's tensors is appended to `inputs`.
/// Where the same structure ran on other sizes before, the sizes that differ are symbols, so that further sizes compile nothing;
/// so are floats inputs that have had several values.
fn compiled(piece: &Piece, inputs: &mut Vec<HostTensor>) -> Result<Arc<CompiledFunc>, Error> {
    let key = piece.key();
    {
        let mut pieces = pieces();
        if let Some(found) = pieces.exact.get(key) {
            return Ok(found);
        }
        if let Some(Served { code, given }) = pieces.served.get(key) {
            inputs.extend(given);
            return Ok(code);
        }
    }
    let tensors = inputs.len();
    if let Some(code) = of_class(piece, inputs) {
        let served = Served { code: Arc::clone(&code), given: inputs[tensors..].to_vec() };
        pieces().served.insert(key.clone(), served);
        return Ok(code);
    }
    let (graph, _) = graph(piece, &|_, _| false, &|_| false)?;
    let made = code(graph)?;
    pieces().exact.insert(key.clone(), Arc::clone(&made));
    Ok(made)
}

/// A form for several sizes or floats.
fn of_class(piece: &Piece, inputs: &mut Vec<HostTensor>) -> Option<Arc<CompiledFunc>> {
    let floats = piece.floats();
    if !floats.is_empty() {
        let schedule = known(&mut pieces().schedules, piece.class(true));
        let mut schedule = schedule.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = schedule.form(piece, &floats, inputs) {
            return Some(found);
        }
    }
    let class = known(&mut pieces().classes, piece.class(false));
    let mut class = class.lock().unwrap_or_else(PoisonError::into_inner);
    class.form(piece, &floats, &|_| false, inputs)
}

/// What is known of a key, which may be nothing yet.
fn known<T: Default>(all: &mut Lru<PieceKey, Arc<Mutex<T>>>, key: PieceKey) -> Arc<Mutex<T>> {
    all.get(&key).unwrap_or_else(|| {
        let new = Arc::default();
        all.insert(key, Arc::clone(&new));
        new
    })
}

impl Form {
    /// What the code takes, where it may be used for these tensors and floats.
    fn inputs(&self, tensors: &[HostTensor], floats: &[f64]) -> Option<Vec<HostTensor>> {
        if self.constants.iter().any(|&(n, bits)| floats.get(n).is_none_or(|x| x.to_bits() != bits)) {
            return None;
        }
        let one =
            |&(n, dtype): &(usize, DType)| HostTensor::scalar(dtype, Scalar::Float(*floats.get(n)?)).ok();
        let given = self.given.iter().map(one).collect::<Option<Vec<_>>>()?;
        let all: Vec<HostTensor> = tensors.iter().cloned().chain(given).collect();
        self.code.fits(&all).is_ok().then_some(all)
    }

    fn gives(&self, n: usize) -> bool {
        self.given.iter().any(|(given, _)| *given == n)
    }
}

impl Schedule {
    /// A form that takes the floats that have varied as inputs; none where they are few, or where only numbers will do.
    fn form(
        &mut self,
        piece: &Piece,
        floats: &[f64],
        inputs: &mut Vec<HostTensor>,
    ) -> Option<Arc<CompiledFunc>> {
        self.floats.add(floats);
        let varied = |n: usize| self.floats.varied(n) && !self.refused.contains(&n);
        let wanted: Vec<usize> = (0..floats.len()).filter(|n| varied(*n)).collect();
        if wanted.is_empty() {
            return None;
        }
        let found = self.class.form(piece, floats, &|n| wanted.contains(&n), inputs);
        let used = found.as_ref().and(self.class.forms.first());
        let refused = wanted.into_iter().filter(|n| used.is_none_or(|form| !form.gives(*n)));
        self.refused.extend(refused);
        found
    }
}

impl Class {
    /// A form in which sizes that have varied are symbols and the floats for which `given` holds are inputs; none where there are
    /// neither, or where only numbers will do.
    fn form(
        &mut self,
        piece: &Piece,
        floats: &[f64],
        given: &dyn Fn(usize) -> bool,
        inputs: &mut Vec<HostTensor>,
    ) -> Option<Arc<CompiledFunc>> {
        let found = self.forms.iter().enumerate().find_map(|(n, f)| Some((n, f.inputs(inputs, floats)?)));
        if let Some((n, all)) = found {
            self.forms[..=n].rotate_right(1);
            *inputs = all;
            return Some(Arc::clone(&self.forms[0].code));
        }
        self.seen.add(piece.sizes());
        // What cannot be compiled for several sizes is compiled for these.
        let form = self.made(piece, inputs, (floats, given))?;
        let all = form.inputs(inputs, floats);
        self.forms.insert(0, form.clone());
        self.forms.truncate(KEPT_FORMS);
        *inputs = all?;
        Some(form.code)
    }

    fn made(
        &self,
        piece: &Piece,
        inputs: &[HostTensor],
        (floats, wanted): (&[f64], &dyn Fn(usize) -> bool),
    ) -> Option<Form> {
        // A dimension of size 1 may be meant to be repeated: it stays a number.
        let symbolic = |n: usize, d: usize| self.seen.varied(n, d) && inputs[n].sizes().get(d) != Some(&1);
        let any_size = inputs.iter().enumerate().any(|(n, t)| (0..t.rank()).any(|d| symbolic(n, d)));
        let any_float = (0..floats.len()).any(wanted);
        if !any_size && !any_float {
            return None;
        }
        let (graph, given) = graph(piece, &symbolic, wanted).ok()?;
        if any_float && given.is_empty() {
            return None;
        }
        let is_given = |n: usize| given.iter().any(|(given, _)| *given == n);
        let constants = floats.iter().enumerate().filter(|(n, _)| !is_given(*n));
        let constants = constants.map(|(n, x)| (n, x.to_bits())).collect();
        Some(Form { code: code(graph).ok()?, given, constants })
    }
}

/// The graph of a piece, and the floats that are its inputs.
#[allow(clippy::type_complexity)] // the numbers of floats and their dtypes
fn graph(
    piece: &Piece,
    symbolic: &dyn Fn(usize, usize) -> bool,
    given: &dyn Fn(usize) -> bool,
) -> Result<(Graph, Vec<(usize, DType)>), Error> {
    let made = piece.graph(symbolic, given).map_err(|e| Error::Function(e.to_string()))?;
    tracing::debug!(target: "graph", calls = piece.calls(), "recorded calls are compiled\n{}", made.0);
    Ok(made)
}

fn code(graph: Graph) -> Result<Arc<CompiledFunc>, Error> {
    COMPILED.fetch_add(1, Ordering::Relaxed);
    CompiledFunc::new(graph, &options()).map(Arc::new)
}

/// Pieces that were compiled.
static COMPILED: AtomicUsize = AtomicUsize::new(0);

/// How many recorded pieces this process has compiled: a loop that makes it grow at every turn records another structure, or
/// other numbers, each time.
///
/// ```
/// use ferroflux::eager::compiled_pieces;
/// use ferroflux::prelude::*;
///
/// for n in [3, 4, 5, 60, 7] {
///     let data = vec![1.0_f32; n];
///     let y = (Tensor::from_slice(&data, &[n]) * 2.0).exp().sum();
///     assert!((y.item()? - n as f64 * 2.0_f64.exp()).abs() < 1e-3);
/// }
/// // For three elements, and for any number of them.
/// assert_eq!(compiled_pieces(), 2);
/// let x = Tensor::from_slice(&[1.0_f32; 4], &[4]);
/// for step in 1..=50 {
///     let rate = 1.0 / f64::from(step);
///     assert!(((&x * rate).sum().item()? - 4.0 * rate).abs() < 1e-6);
/// }
/// // For the first three rates, and for any rate.
/// assert_eq!(compiled_pieces(), 6);
/// # Ok::<(), ferroflux::Error>(())
/// ```
pub fn compiled_pieces() -> usize {
    COMPILED.load(Ordering::Relaxed)
}

/// The backend of recorded operators and of functions for which none is named, and the kind of its device.
static DEVICE: RwLock<Option<(String, AutocastDevice)>> = RwLock::new(None);

/// The backend that computes recorded operators, and functions for which [`compile`](crate::capture::compile) is given none: the
/// CPU's where it is linked in, else the interpreter, until [`set_default_device`] names another.
pub fn default_device() -> String {
    let named = DEVICE.read().unwrap_or_else(PoisonError::into_inner).clone();
    named
        .map(|(name, _)| name)
        .unwrap_or_else(|| if cfg!(feature = "cpu") { "cpu" } else { "eager" }.to_owned())
}

/// The kind of device of [`default_device`].
pub(super) fn default_autocast_device() -> AutocastDevice {
    let named = DEVICE.read().unwrap_or_else(PoisonError::into_inner);
    named.as_ref().map_or(AutocastDevice::Cpu, |(_, device)| *device)
}

/// Names the backend that computes recorded operators from now on, in all threads, and functions that are compiled for no other.
/// Tensors stay in the host's memory: what is computed on a device comes back.
///
/// ```
/// use ferroflux::eager::{default_device, set_default_device};
/// use ferroflux::prelude::*;
///
/// set_default_device("oracle")?;
/// assert_eq!((Tensor::ones(&[2]) + 1.0).sum().item()?, 4.0);
/// assert_eq!(default_device(), "oracle");
/// assert!(set_default_device("abacus").is_err());
/// # Ok::<(), ferroflux::Error>(())
/// ```
///
/// # Errors
/// There is no such backend, or it cannot be loaded.
pub fn set_default_device(name: &str) -> Result<(), Error> {
    let device = autocast_device(&crate::registry().load(name)?);
    *DEVICE.write().unwrap_or_else(PoisonError::into_inner) = Some((name.to_owned(), device));
    // What was compiled for another one is not used again.
    *pieces() = Pieces::none();
    Ok(())
}

/// The options of pieces. They are too many and too small for the cache on disk.
fn options() -> Options {
    Options::new().backend(default_device()).cache(Cache::Off)
}
