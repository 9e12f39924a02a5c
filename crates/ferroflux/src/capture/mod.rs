//! `compile(f)`: a Rust function of tensors is captured when it is first called, compiled, and used again as long as what the
//! capture depended on holds.
//!
//! ```
//! use ferroflux::capture::compile;
//! use ferroflux::prelude::*;
//!
//! let f = compile(|(x, y): (Tensor, Tensor)| (x.sin() + y.cos()).sum()).build()?;
//! let (x, y) = (Tensor::ones(&[3]), Tensor::zeros(&[3]));
//! let sum = f.call((x, y))?.item()?;
//! assert!((sum - 3.0 * (1.0_f64.sin() + 1.0)).abs() < 1e-6);
//! # Ok::<(), ferroflux::Error>(())
//! ```
//!
//! A call is compared with every compiled form, the one used last first: dtypes, sizes, numbers and text among the arguments,
//! settings that the function has read ([`Setting`](dynamo::Setting)), tensors that it captures, and which of them share memory.
//! If none fits, the function is captured again; a dimension that had another size before is symbolic then. Where the function
//! reads values, it runs, and the pieces between are compiled. `docs/capture.md` has the rules.
//!
//! Not here: recording ([`dynamo`]), and the comparison of tensors with types and guards ([`crate::check`]).

mod code;
mod entry;
mod explain;
mod options;
mod tree;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use aot_autograd::Mixed;
use dynamo::frame::{self, Argument, Assign, Outcome};
use dynamo::{Cell, DimRange, GradMode, Seen, Value};
use ir_core::Relation;

pub use code::{BackendFn, Callable};
pub use explain::{BreakInfo, Explained};
pub use options::{Compile, compile};
pub use tree::{Arguments, Constant, Leaf, Results, Spec};

use crate::eager::{AutocastMode, Tensor, force, mutate};
use crate::profiler::{Category, span};
use crate::{Error, report};
use code::EntryCode;
use entry::{CallArgs, Entry, EntryKind, Inputs};
use options::Settings;

type Function<A, R> = dyn Fn(A) -> R + Send + Sync;

/// A function that is compiled when it is called. Calls from many threads are safe.
pub struct CompiledFn<A, R> {
    function: Box<Function<A, R>>,
    settings: Settings,
    entries: RwLock<Vec<Arc<Entry>>>,
    seen: Mutex<Seen>,
    /// One capture at a time.
    capturing: Mutex<()>,
    /// One call that writes tensors from outside at a time.
    writing: Mutex<()>,
    clock: AtomicU64,
    captures: AtomicUsize,
    reasons: Mutex<Vec<String>>,
}

/// What came of an entry.
enum Ran<V> {
    Done(V),
    /// The function must run: it reads values.
    ByItself,
    /// Another call has changed what it depends on.
    Changed,
}

/// Reasons of recompilations that are kept.
const KEPT_REASONS: usize = 64;

impl<A: Arguments, R: Results> CompiledFn<A, R> {
    fn new(function: Box<Function<A, R>>, settings: Settings) -> Self {
        CompiledFn {
            function,
            settings,
            entries: RwLock::default(),
            seen: Mutex::default(),
            capturing: Mutex::default(),
            writing: Mutex::default(),
            clock: AtomicU64::new(0),
            captures: AtomicUsize::new(0),
            reasons: Mutex::default(),
        }
    }

    /// Calls the function.
    ///
    /// # Errors
    /// What the function returns, refused calls of operators within it, errors of the compiler and the backend, a graph break
    /// that is not allowed, and sizes outside of a declared range.
    pub fn call(&self, args: A) -> Result<R::Value, Error> {
        if frame::is_active() {
            // Another function that calls this one is captured: both are one graph, for the other one's backend.
            let _region = self.settings.options.autocast.map(|lower| AutocastMode::set(Some(lower)));
            return (self.function)(args).into_value();
        }
        let _modes = self.modes();
        match self.compiled(&args)? {
            Some(value) => Ok(value),
            None => (self.function)(args).into_value(),
        }
    }

    /// Sets what holds around every call of the function, until the result is dropped: whether gradients are recorded, and
    /// mixed precision by the list of the backend's kind of device.
    fn modes(&self) -> (Option<GradMode>, AutocastMode) {
        let mixed = Mixed { device: self.settings.device, whole: self.settings.options.autocast };
        (self.settings.inference.then(|| GradMode::set(false)), AutocastMode::of(mixed))
    }

    /// Runs the compiled form for these arguments, which is made now where there is none; `None` where the function must run by
    /// itself.
    fn compiled(&self, args: &A) -> Result<Option<R::Value>, Error> {
        let mut call = CallArgs::default();
        self.read(args, &mut call)?;
        while let Some((entry, inputs)) = self.lookup(&call, &mut |_| {}) {
            match self.run(&entry, &call, inputs)? {
                Ran::Done(value) => return Ok(Some(value)),
                Ran::ByItself => return Ok(None),
                Ran::Changed => {}
            }
        }
        self.within_ranges(&call)?;
        let _one = self.capturing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut failed = Vec::new();
        // Another thread may have captured the same meanwhile.
        while let Some((entry, inputs)) = self.lookup(&call, &mut |reason| failed.push(reason)) {
            match self.run(&entry, &call, inputs)? {
                Ran::Done(value) => return Ok(Some(value)),
                Ran::ByItself => return Ok(None),
                Ran::Changed => failed.clear(),
            }
        }
        self.note(failed);
        self.capture(args, &call).map(Some)
    }

    /// Reads the arguments of a call, in place: moving so many values would take as long as comparing them.
    fn read<'a>(&self, args: &'a A, call: &mut CallArgs<'a>) -> Result<(), Error> {
        args.visit(&mut |leaf| match leaf {
            Leaf::Tensor(t) => call.tensors.push(t),
            Leaf::Constant(c) => call.constants.push(c),
        });
        let outside = !frame::is_active();
        call.values.reserve(call.tensors.len());
        for t in &call.tensors {
            call.values.push(if outside { t.value_outside() } else { t.value() }?);
        }
        force(&call.values)
    }

    /// The entry for a call, the one used last first; the guards that failed otherwise.
    fn lookup(&self, call: &CallArgs<'_>, failed: &mut dyn FnMut(String)) -> Option<(Arc<Entry>, Inputs)> {
        let _range = span(Category::Guards, || "guards".to_owned());
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        // What runs by itself is the last resort.
        let whole = |e: &&Arc<Entry>| matches!(e.kind, EntryKind::Whole(_));
        let (first, last) = (entries.iter().filter(whole), entries.iter().filter(|e| !whole(e)));
        for (n, entry) in first.chain(last).enumerate() {
            match entry.check(call) {
                Ok(inputs) => {
                    let entry = Arc::clone(entry);
                    drop(entries);
                    // Nothing is written where it was the last one too: threads that call side by side share these numbers.
                    if entry.used.load(Ordering::Relaxed) != self.clock.load(Ordering::Relaxed) {
                        let last = self.clock.fetch_add(1, Ordering::Relaxed);
                        entry.used.store(last + 1, Ordering::Relaxed);
                    }
                    if n > 0 {
                        self.to_front(&entry);
                    }
                    return Some((entry, inputs));
                }
                Err(reason) => failed(reason),
            }
        }
        None
    }

    fn to_front(&self, entry: &Arc<Entry>) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = entries.iter().position(|e| Arc::ptr_eq(e, entry)) {
            entries[..=at].rotate_right(1);
        }
    }

    /// Runs an entry. Calls that write are one after another, so that none loses what another one writes: what such a call
    /// reads is read again when it is its turn.
    fn run(&self, entry: &Entry, call: &CallArgs<'_>, inputs: Inputs) -> Result<Ran<R::Value>, Error> {
        let EntryKind::Whole(whole) = &entry.kind else { return Ok(Ran::ByItself) };
        let turn = whole.writes().then(|| self.writing.lock().unwrap_or_else(PoisonError::into_inner));
        let inputs = match turn.is_some() {
            false => inputs,
            true => match entry.check(call) {
                Ok(inputs) => inputs,
                Err(_) => return Ok(Ran::Changed),
            },
        };
        let mut results = whole.run(call, &inputs)?.into_iter();
        let missing = || Tensor::failed(dynamo::CaptureError::NotComputed);
        Ok(Ran::Done(R::build(&whole.spec, &mut || results.next().unwrap_or_else(missing))))
    }

    /// Captures the function for a call, compiles it and runs it.
    fn capture(&self, args: &A, call: &CallArgs<'_>) -> Result<R::Value, Error> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .add(call.values.iter().map(|v| &v.meta().sizes[..]));
        self.captures.fetch_add(1, Ordering::Relaxed);
        let (value, outputs, outcome) = self.traced(args, call, self.settings.fullgraph)?;
        match outcome {
            Outcome::Failed(error) => Err(error.into()),
            Outcome::Broken(at) => {
                tracing::info!(target: "breaks", "graph break at {}: {}", at.at, at.reason);
                self.add(Entry::broken(call, at));
                value
            }
            Outcome::Whole(capture) => {
                let value = value?;
                for output in &outputs {
                    output.value()?;
                }
                self.refuse_fixed(&capture.graph)?;
                let spec = R::tensors(&value, &mut Vec::new());
                let compile = |graph, constants: &[_]| self.settings.code(graph, constants, call);
                let entry = Entry::whole(call, *capture, (spec, &outputs), &compile, self.settings.freeze)?;
                if tracing::enabled!(target: "guards", tracing::Level::DEBUG) {
                    entry.guards().iter().for_each(|guard| tracing::debug!(target: "guards", "{guard}"));
                }
                if let EntryKind::Whole(whole) = &entry.kind {
                    let about = report::Function {
                        guards: entry.guards(),
                        recompiles: self.recompile_reasons(),
                        captures: self.captures(),
                    };
                    report::captured(&whole.graph, &self.settings.options, &about);
                }
                let entry = self.add(entry);
                let wrong = |why: String| {
                    Error::Internal(format!(
                        "a captured function does not fit the call it was captured for: {why}"
                    ))
                };
                let inputs = entry.check(call).map_err(wrong)?;
                match self.run(&entry, call, inputs)? {
                    Ran::Done(value) => Ok(value),
                    Ran::ByItself | Ran::Changed => {
                        Err(wrong("another thread has changed what it reads".into()))
                    }
                }
            }
        }
    }

    /// Runs the function in a capture.
    #[allow(clippy::type_complexity)] // the value, its tensors, and how it ended
    fn traced(
        &self,
        args: &A,
        call: &CallArgs<'_>,
        fullgraph: bool,
    ) -> Result<(Result<R::Value, Error>, Vec<Tensor>, Outcome), Error> {
        let stand_ins = call.tensors.iter().map(|t| t.stand_in()).collect::<Result<Vec<_>, _>>()?;
        let mut arguments = Vec::with_capacity(2 * stand_ins.len());
        for (n, (own, caller)) in stand_ins.iter().zip(&call.tensors).enumerate() {
            arguments.push(Argument {
                cell: Arc::clone(own.own_cell()?),
                target: Arc::clone(caller.cell()?),
                root: Arc::clone(caller.root_cell()?),
                slot: Some(Arc::clone(own.own_grad_cell())),
                assign: caller.is_view().then(|| written_through(caller)),
                dims: self.dims(n, caller, &call.values[n]),
                on_demand: false,
            });
        }
        for (own, caller) in stand_ins.iter().zip(&call.tensors) {
            let target = Arc::clone(caller.grad_cell());
            let (cell, root) = (Arc::clone(own.own_grad_cell()), Arc::clone(&target));
            arguments.push(Argument {
                cell,
                target,
                root,
                slot: None,
                assign: None,
                dims: Vec::new(),
                on_demand: true,
            });
        }
        let mut given = stand_ins.iter();
        let args = args.with_tensors(&mut |t| given.next().unwrap_or(t).clone());
        let _range = span(Category::Capture, || "capture".to_owned());
        let ((value, outputs), outcome) = frame::capture(&arguments, fullgraph, || {
            let value = (self.function)(args).into_value();
            let mut outputs = Vec::new();
            if let Ok(value) = &value {
                R::tensors(value, &mut outputs);
            }
            // Views get their present values while the capture can still record them.
            let cells = outputs.iter().filter_map(|t| t.value().ok().and(t.own_cell().ok())).cloned();
            let cells: Vec<Arc<Cell>> = cells.collect();
            ((value, outputs), cells)
        });
        Ok((value, outputs, outcome))
    }

    /// The range of each dimension of an argument that is to be symbolic.
    fn dims(&self, argument: usize, tensor: &Tensor, value: &Value) -> Vec<Option<DimRange>> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let marks = tensor.marks();
        let usual = DimRange { min: 0, max: None };
        let sizes = value.meta().sizes.iter().enumerate();
        sizes
            .map(|(d, &size)| {
                let declared = self.settings.range(argument, d);
                let marked = marks.iter().find(|(dim, _)| *dim == d).map(|(_, range)| *range);
                let wanted = match self.settings.dynamic {
                    Some(always) => always,
                    None => seen.varied(argument, d),
                };
                // A dimension of size 1 may be meant to be repeated: it stays a number.
                declared.or(marked).or((wanted && size != 1).then_some(usual))
            })
            .collect()
    }

    /// # Errors
    /// A size outside of its declared range.
    fn within_ranges(&self, call: &CallArgs<'_>) -> Result<(), Error> {
        for (n, value) in call.values.iter().enumerate() {
            for (d, &size) in value.meta().sizes.iter().enumerate() {
                let Some(range) = self.settings.range(n, d) else { continue };
                if size < range.min || range.max.is_some_and(|max| size > max) {
                    let max = range.max.map_or_else(|| "any size".into(), |max| max.to_string());
                    let problem =
                        format!("dimension {d} is {size}; it was declared to be from {} to {max}", range.min);
                    return Err(Error::Input { index: n, name: format!("argument {n}"), problem });
                }
            }
        }
        Ok(())
    }

    /// # Errors
    /// A dimension that was declared dynamic can have one size alone.
    fn refuse_fixed(&self, graph: &fx_ir::Graph) -> Result<(), Error> {
        if self.settings.dynamic == Some(true) || self.settings.ranges.is_empty() {
            return Ok(());
        }
        let fixed = graph.guards.iter().find(|g| {
            let mut symbols = 0;
            g.expression.for_each_leaf(&mut |_| symbols += 1);
            g.relation == Relation::Zero && symbols == 1
        });
        let error = |g: &ir_core::Guard| {
            let what = format!(
                "a dimension that was declared dynamic can have one size alone: {} ({})",
                g.message, g.origin
            );
            Error::Function(what)
        };
        fixed.map_or(Ok(()), |g| Err(error(g)))
    }

    /// Adds an entry in front; where there are too many, the one that was not used for longest goes.
    fn add(&self, entry: Entry) -> Arc<Entry> {
        let entry = Arc::new(entry);
        entry.used.store(self.clock.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.insert(0, Arc::clone(&entry));
        if entries.len() > self.settings.limit {
            let oldest = entries.iter().enumerate().min_by_key(|(_, e)| e.used.load(Ordering::Relaxed));
            if let Some((at, _)) = oldest {
                entries.remove(at);
            }
        }
        entry
    }

    fn note(&self, failed: Vec<String>) {
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        for reason in failed {
            tracing::info!(target: "recompiles", "captured again, because a guard failed: {reason}");
            reasons.push(reason);
        }
        let over = reasons.len().saturating_sub(KEPT_REASONS);
        reasons.drain(..over);
    }

    /// Whether a compiled form may be used for these arguments.
    ///
    /// # Errors
    /// An argument cannot be computed.
    pub fn is_compiled_for(&self, args: &A) -> Result<bool, Error> {
        let _modes = self.modes();
        let mut call = CallArgs::default();
        self.read(args, &mut call)?;
        Ok(self.lookup(&call, &mut |_| {}).is_some())
    }

    /// How often the function was captured.
    pub fn captures(&self) -> usize {
        self.captures.load(Ordering::Relaxed)
    }

    /// The guards that failed before a capture, oldest first; a bounded number.
    pub fn recompile_reasons(&self) -> Vec<String> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Number of compiled forms that are kept.
    pub fn entries(&self) -> usize {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The graphs of the compiled forms, the one used last first.
    pub fn graphs(&self) -> Vec<fx_ir::Graph> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let graph = |e: &Arc<Entry>| match &e.kind {
            EntryKind::Whole(whole) => Some(whole.graph.clone()),
            EntryKind::Broken(..) => None,
        };
        entries.iter().filter_map(graph).collect()
    }

    /// Where captures ended early.
    pub fn breaks(&self) -> Vec<BreakInfo> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let at = |e: &Arc<Entry>| match &e.kind {
            EntryKind::Broken(at, ..) => Some(BreakInfo::of(at)),
            EntryKind::Whole(_) => None,
        };
        entries.iter().filter_map(at).collect()
    }
}

/// How a view among the arguments gets a new value where a capture ends early.
fn written_through(view: &Tensor) -> Assign {
    let view = view.clone();
    Arc::new(move |value: Value| {
        // A view that cannot be written through was refused when the function wrote it.
        let _ = dynamo::no_grad(|| mutate::assign(&view, value));
    })
}

impl Settings {
    fn code(
        &self,
        graph: fx_ir::Graph,
        constants: &[Option<tensor::Tensor>],
        call: &CallArgs<'_>,
    ) -> Result<EntryCode, Error> {
        match &self.backend {
            None => EntryCode::compiled(graph, constants, &self.options),
            Some(backend) => {
                let examples: Vec<tensor::Tensor> =
                    call.values.iter().filter_map(|v| v.data().cloned()).collect();
                EntryCode::callable(&graph, &examples, backend.as_ref())
            }
        }
    }
}
