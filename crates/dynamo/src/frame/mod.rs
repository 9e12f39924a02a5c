//! The capture of a function: while it runs, every call that it records is also appended to one graph with symbolic sizes, and
//! everything that the graph depends on is noted. One capture at a time runs on a thread; a compiled function that is called
//! within one is captured with it.
//!
//! Where the program reads a value, capture ends ([`interrupt`]): what was recorded so far is computed as any other recorded
//! values are, tensors from outside get their new values, and the program goes on. Not here: when a captured graph may be used
//! again (the facade compares the arguments), and the compilation.

mod parts;
mod variables;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fx_ir::{Arg, Graph, OriginId, Output, OutputKind, ValueId};
use ir_core::{Guard, Origin, Relation, SymExpr, TensorMeta};
use prims::{Builder, Op, OpError};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::node::{Call, Kind, Operand, Value};
use crate::{CaptureError, Cell, Condition, Size, body};

pub use parts::{Argument, Assign, Break, Capture, Observed, Outcome, Place, Returned, Source};
use variables::Held;
pub(crate) use variables::Shared;

thread_local! {
    static FRAME: RefCell<Option<Frame>> = const { RefCell::new(None) };
    static BROKEN: RefCell<Option<Break>> = const { RefCell::new(None) };
    /// What the program does, while someone asks.
    static OBSERVED: RefCell<Option<Observed>> = const { RefCell::new(None) };
}

/// The capture that runs on this thread.
pub(crate) struct Frame {
    id: u64,
    graph: Graph,
    calls: usize,
    hints: Vec<i64>,
    sources: Vec<Source>,
    tracked: Vec<bool>,
    ids: FxHashMap<(*const Call, u32), ValueId>,
    /// What `ids` and `owned` name by address.
    keep: Vec<Value>,
    held: FxHashMap<*const Cell, Held>,
    /// Variables that the function itself makes.
    owned: FxHashSet<*const Cell>,
    owned_cells: Vec<Arc<Cell>>,
    /// The function's variables for arguments, and the caller's.
    arguments: Vec<(Arc<Cell>, Arc<Cell>)>,
    absent: Vec<Place>,
    conditions: Vec<(*const (), Box<dyn Condition>)>,
    fullgraph: bool,
    failed: Option<CaptureError>,
}

/// Calls `f` with the capture that runs on this thread, if there is one.
pub(crate) fn with<R>(f: impl FnOnce(&mut Frame) -> R) -> Option<R> {
    FRAME.with(|frame| frame.try_borrow_mut().ok()?.as_mut().map(f))
}

/// Whether a capture runs on this thread.
pub fn is_active() -> bool {
    with(|_| ()).is_some()
}

/// Whether a capture runs on this thread that this variable is an argument of.
pub fn is_argument(cell: &Arc<Cell>) -> bool {
    with(|frame| frame.is_argument(cell)).unwrap_or(false)
}

/// Whether a capture runs on this thread, and the variable is from outside of it.
pub fn is_outside(cell: &Arc<Cell>) -> bool {
    with(|frame| !frame.owns(cell)).unwrap_or(false)
}

/// The type of a value, symbolic where a function is captured with dynamic sizes.
pub fn meta_of(value: &Value) -> TensorMeta {
    with(|frame| frame.meta(value)).flatten().unwrap_or_else(|| value.meta().to_meta())
}

/// Arguments without tensors as a graph has them, symbolic where a function is captured with dynamic sizes; `None` stands for
/// tensors.
pub fn plain(operands: &[Operand]) -> Vec<Option<Arg>> {
    let frame = with(|frame| frame.id).unwrap_or(0);
    let one = |o: &Operand| o.to_arg(&mut |_| Err(()), &|size| size.within(frame)).ok();
    operands.iter().map(one).collect()
}

/// Arguments of a graph as operands.
pub fn operands(args: &[Arg]) -> Vec<Operand> {
    let symbolic = |arg: &Arg| with(|frame| frame.operand(arg)).unwrap_or_else(|| Operand::Arg(arg.clone()));
    args.iter().map(symbolic).collect()
}

/// Ends the capture that runs on this thread, if there is one: the program needs something that only running it gives.
///
/// # Errors
/// The capture must not end.
#[track_caller]
pub fn interrupt(reason: impl Fn() -> String) -> Result<(), CaptureError> {
    let at = Location::caller();
    OBSERVED.with_borrow_mut(|list| {
        if let Some(seen) = list {
            seen.breaks.push(Break { at, reason: reason() });
            seen.calls.push(BTreeMap::new());
        }
    });
    let ended = FRAME.with(|slot| {
        let Ok(mut slot) = slot.try_borrow_mut() else { return Ok(None) };
        match slot.as_mut() {
            None => Ok(None),
            Some(frame) if frame.fullgraph => {
                let error = CaptureError::Break { at, reason: reason() };
                Err(frame.failed.get_or_insert(error).clone())
            }
            Some(_) => Ok(slot.take().map(|frame| (frame, reason()))),
        }
    })?;
    if let Some((frame, reason)) = ended {
        BROKEN.set(Some(Break { at, reason }));
        let mut written: Vec<Held> = frame.held.into_values().filter(|h| h.written).collect();
        written.sort_by_key(|h| h.order);
        stand_for_callers(&frame.arguments);
        // The capture is over: the variables themselves change.
        for held in written {
            match (held.assign, held.value) {
                (Some(assign), Some(value)) => assign(value),
                (_, value) => held.cell.replace(value),
            }
        }
    }
    Ok(())
}

/// Notes a recorded call for whoever asks.
pub(crate) fn note(op: &'static Op) {
    OBSERVED.with_borrow_mut(|seen| {
        if let Some(calls) = seen.as_mut().and_then(|seen| seen.calls.last_mut()) {
            *calls.entry(op.target.as_str()).or_insert(0) += 1;
        }
    });
}

/// Runs `f` and gives every place at which it needs values, and what it calls between them.
pub fn observed<R>(f: impl FnOnce() -> R) -> (R, Observed) {
    let before = OBSERVED.replace(Some(Observed { breaks: Vec::new(), calls: vec![BTreeMap::new()] }));
    let result = f();
    (result, OBSERVED.replace(before).unwrap_or_default())
}

/// From now on the function's variables for its arguments are the caller's.
fn stand_for_callers(arguments: &[(Arc<Cell>, Arc<Cell>)]) {
    arguments.iter().for_each(|(cell, target)| cell.forward_to(target));
}

/// Makes a tensor with data known to the capture that runs on this thread as one that the function itself makes.
pub fn adopt(value: &Value) {
    with(|frame| frame.constant(value));
}

/// Captures a function: runs `f`, which returns its results and the variables that hold them.
pub fn capture<R>(
    arguments: &[Argument],
    fullgraph: bool,
    f: impl FnOnce() -> (R, Vec<Arc<Cell>>),
) -> (R, Outcome) {
    struct Clear;
    impl Drop for Clear {
        fn drop(&mut self) {
            drop(FRAME.take());
            BROKEN.take();
        }
    }
    let frame = Frame::new(arguments, fullgraph);
    let _clear = Clear;
    FRAME.set(Some(frame));
    let (result, outputs) = f();
    if let Some(broken) = BROKEN.take() {
        return (result, Outcome::Broken(broken));
    }
    let outcome = match FRAME.take() {
        Some(Frame { failed: Some(error), .. }) => Outcome::Failed(error),
        Some(frame) => {
            stand_for_callers(&frame.arguments);
            frame.finish(&outputs).map_or_else(Outcome::Failed, |capture| Outcome::Whole(Box::new(capture)))
        }
        None => Outcome::Failed(CaptureError::NotComputed),
    };
    (result, outcome)
}

impl Frame {
    fn new(arguments: &[Argument], fullgraph: bool) -> Frame {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut frame = Frame {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            graph: Graph::new("function"),
            calls: 0,
            hints: Vec::new(),
            sources: Vec::new(),
            tracked: Vec::new(),
            ids: FxHashMap::default(),
            keep: Vec::new(),
            held: FxHashMap::default(),
            owned: FxHashSet::default(),
            owned_cells: Vec::new(),
            arguments: Vec::new(),
            absent: Vec::new(),
            conditions: Vec::new(),
            fullgraph,
            failed: None,
        };
        for (n, argument) in arguments.iter().enumerate() {
            frame.arguments.push((Arc::clone(&argument.cell), Arc::clone(&argument.target)));
            let (cell, root) = (Arc::clone(&argument.target), Arc::as_ptr(&argument.root));
            let place = Place::Argument(n);
            let held = Held { assign: argument.assign.clone(), ..Held::new(cell, root, place, n) };
            frame.held.insert(Arc::as_ptr(&argument.cell), held);
            if !argument.on_demand {
                let slot = argument.slot.clone();
                frame.lift(Arc::as_ptr(&argument.cell), slot, &argument.dims);
            }
        }
        frame
    }

    /// The value's place in the graph.
    fn id(&mut self, value: &Value) -> Result<ValueId, OpError> {
        match self.ids.get(&value.id()).copied().or_else(|| self.constant(value)) {
            Some(v) => Ok(v),
            None => Err(OpError::Invalid {
                op: "capture".into(),
                what: "a value of another capture is used: return it from the function instead".into(),
            }),
        }
    }

    /// Registers another name of a value, through which no gradient flows where it is `detached`.
    pub(crate) fn alias(&mut self, new: &Value, of: &Value, detached: bool) {
        let Ok(mut v) = self.id(of) else { return };
        if detached && of.is_tracked() {
            let mut b = Builder::new(&mut self.graph, "detach", OriginId(0));
            v = b.call1("prims.detach", vec![v.into()]).unwrap_or(v);
        }
        self.name(new, v);
    }

    /// Appends a call. With `cut` no gradient flows through its results.
    pub(crate) fn record(
        &mut self,
        op: &'static Op,
        operands: &[Operand],
        call: &Arc<Call>,
        cut: bool,
    ) -> Result<(), OpError> {
        let frame = self.id;
        let mut args = Vec::with_capacity(operands.len());
        for operand in operands {
            args.push(operand.to_arg(&mut |v| self.id(v), &|size: &Size| size.within(frame))?);
        }
        let n = self.calls;
        self.calls += 1;
        let key = match &call.kind {
            Kind::Operator { key: Some(key), .. } => {
                let mut b = Builder::new(&mut self.graph, format!("key_{n}"), OriginId(0));
                let v = b.random_bits(&[])?;
                self.name(key, v);
                Some(v)
            }
            _ => None,
        };
        let short = body::short_name(op);
        let origin = body::origin(&mut self.graph, short, call.at);
        let outs = body::operator(&mut self.graph, op, args, (&format!("{short}_{n}"), key, origin))?;
        for (value, mut v) in Call::results(call).iter().zip(outs) {
            if cut && value.meta().dtype.is_inexact() {
                v = Builder::new(&mut self.graph, "detach", origin).call1("prims.detach", vec![v.into()])?;
            }
            self.name(value, v);
        }
        Ok(())
    }

    /// The type of a value in the capture's symbols.
    fn meta(&mut self, value: &Value) -> Option<TensorMeta> {
        let v = self.id(value).ok()?;
        self.graph.meta(v).cloned()
    }

    /// An argument of the graph as an operand.
    fn operand(&self, arg: &Arg) -> Operand {
        match arg {
            Arg::Int(e) if e.as_const().is_none() => {
                let hint = e.eval(&|atom| match atom {
                    ir_core::Atom::Sym(id) => self.hints.get(ir_core::EntityId::index(*id)).copied(),
                    _ => None,
                });
                Operand::Size(Size::symbolic(e.clone(), hint.unwrap_or(0), self.id))
            }
            Arg::List(items) => Operand::List(items.iter().map(|item| self.operand(item)).collect()),
            other => Operand::Arg(other.clone()),
        }
    }

    /// The sizes of a value in the capture's symbols.
    pub(crate) fn sizes(&mut self, value: &Value) -> Option<Vec<Size>> {
        let v = self.id(value).ok()?;
        let meta = self.graph.meta(v)?;
        let sizes = meta.sizes.iter().zip(&value.meta().sizes);
        Some(sizes.map(|(e, &hint)| Size::symbolic(e.clone(), hint, self.id)).collect())
    }

    /// Records what the program decided about sizes.
    pub(crate) fn decide(&mut self, of: u64, relation: Relation, expression: &SymExpr, holds: bool) {
        if of != self.id
            || relation.decided_given(expression, &self.graph.symbols, &self.graph.guards).is_some()
        {
            return;
        }
        let (relation, expression) = match (holds, relation) {
            (true, relation) => (relation, expression.clone()),
            (false, Relation::Zero) => (Relation::NonZero, expression.clone()),
            (false, Relation::NonZero) => (Relation::Zero, expression.clone()),
            (false, Relation::NonNegative) => (relation, SymExpr::from_i64(-1) - expression),
        };
        let wanted = match relation {
            Relation::Zero => "must be 0",
            Relation::NonZero => "must not be 0",
            Relation::NonNegative => "must not be negative",
        };
        let message =
            format!("the program has decided about sizes: {} {wanted}", self.graph.size_text(&expression));
        let origin = Origin { function: "size".into(), ..Origin::default() };
        self.graph.add_guard(Guard { expression, relation, origin, message });
    }

    /// Notes a setting that the function has read; `at` is its address.
    pub(crate) fn require(&mut self, at: *const (), condition: Box<dyn Condition>) {
        if !self.conditions.iter().any(|(other, _)| *other == at) {
            self.conditions.push((at, condition));
        }
    }

    /// Whether gradients with respect to these values can be computed within the capture: they are inputs of it.
    pub(crate) fn are_inputs(&self, variables: &[Value]) -> bool {
        let is_input = |v: &ValueId| self.graph.inputs().any(|(input, _, _)| input == *v);
        variables.iter().all(|value| self.ids.get(&value.id()).is_some_and(is_input))
    }

    /// Appends the gradients of a value. `results` are the nodes that stand for them.
    pub(crate) fn differentiate(
        &mut self,
        of: (&Value, Option<&Value>),
        variables: &[Value],
        results: &[Value],
    ) -> Result<(), crate::history::Failed> {
        let id = |frame: &mut Frame, v: &Value| frame.id(v).map_err(crate::history::Failed::Op);
        let loss = id(self, of.0)?;
        let tangent = of.1.map(|t| id(self, t)).transpose()?;
        let wrt = variables.iter().map(|v| id(self, v)).collect::<Result<Vec<_>, _>>()?;
        let gradients = crate::history::appended(&mut self.graph, loss, tangent, &wrt)?;
        results.iter().zip(gradients).for_each(|(value, v)| self.name(value, v));
        Ok(())
    }

    /// Takes the graph apart from the capture.
    fn finish(mut self, outputs: &[Arc<Cell>]) -> Result<Capture, CaptureError> {
        let lost = |_| CaptureError::NotComputed;
        let mut results: Vec<ValueId> = Vec::new();
        let mut result = |v: ValueId| match results.iter().position(|r| *r == v) {
            Some(at) => at,
            None => {
                results.push(v);
                results.len() - 1
            }
        };
        let mut returned = Vec::with_capacity(outputs.len());
        for cell in outputs {
            let value = self.read(cell).ok().flatten().ok_or(CaptureError::NotComputed)?;
            let outside = self.held.get(&Arc::as_ptr(cell)).and_then(|h| h.source);
            returned.push(match outside {
                Some(source) => Returned::Source(source),
                None => Returned::Result(result(self.id(&value).map_err(lost)?)),
            });
        }
        let mut written: Vec<Held> = self.held.drain().map(|(_, h)| h).filter(|h| h.written).collect();
        written.sort_by_key(|h| h.order);
        let mut writes = Vec::with_capacity(written.len());
        for held in written {
            let value = held.value.map(|value| self.id(&value)).transpose().map_err(lost)?;
            writes.push((held.place, value.map(&mut result)));
        }
        let output = |v: &ValueId| Output { kind: OutputKind::User, arg: Arg::Value(*v) };
        self.graph.outputs = results.iter().map(output).collect();
        prims::scalars::eliminate_dead(&mut self.graph);
        Ok(Capture {
            graph: self.graph,
            sources: self.sources,
            tracked: self.tracked,
            returned,
            writes,
            absent: self.absent,
            conditions: self.conditions.into_iter().map(|(_, c)| c).collect(),
        })
    }
}

impl Value {
    /// The sizes: symbolic in a function that is captured with dynamic sizes.
    pub fn sizes(&self) -> Vec<Size> {
        let symbolic = with(|frame| frame.sizes(self)).flatten();
        symbolic.unwrap_or_else(|| self.meta().sizes.iter().map(|&s| s.into()).collect())
    }
}
