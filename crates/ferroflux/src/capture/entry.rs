//! One compiled form of a captured function: when it may be used, and how it runs. The comparison of tensors with what was
//! captured is that of all compiled programs ([`crate::check`]); here are the conditions on everything else.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use dynamo::frame::{Break, Capture, Place, Returned, Source};
use dynamo::{Cell, Condition, GradMode, Lru, Recomputed, Value};
use fx_ir::{Graph, InputKind, NodeKind};
use ir_core::DType;
use smallvec::SmallVec;
use tensor::Tensor as HostTensor;

use super::code::EntryCode;
use super::tree::{Constant, Spec};
use crate::Error;
use crate::eager::{Tensor, autocast_dtype, force};

/// What a call gives to a compiled function. A call of as many tensors as most have allocates nothing here.
#[derive(Default)]
pub(super) struct CallArgs<'a> {
    pub(super) tensors: SmallVec<[&'a Tensor; 16]>,
    pub(super) values: SmallVec<[Value; 16]>,
    pub(super) constants: Vec<Constant>,
}

/// The inputs of a compiled form that are no arguments of a call which fits it, in their order.
pub(super) struct Inputs(SmallVec<[Value; 4]>);

impl Inputs {
    /// Of a form that needs none: the function runs by itself.
    fn none() -> Inputs {
        Inputs(SmallVec::new())
    }

    /// Computes what is only recorded, all of it as one piece. Arguments are computed already.
    fn compute(&self) -> Result<(), Error> {
        match self.0.is_empty() {
            true => Ok(()),
            false => force(&self.0),
        }
    }
}

impl CallArgs<'_> {
    /// Whether two of the tensors share memory.
    fn share_memory(&self) -> bool {
        let roots = self.tensors.iter().filter_map(|t| t.root_cell().ok()).map(Arc::as_ptr);
        let mut roots: Vec<*const Cell> = roots.collect();
        let before = roots.len();
        roots.sort_unstable();
        roots.dedup();
        roots.len() < before
    }
}

/// A compiled form.
pub(super) struct Entry {
    constants: Vec<Constant>,
    grad: bool,
    /// The type of mixed precision around the call.
    autocast: Option<DType>,
    conditions: Vec<Box<dyn Condition>>,
    absent: Vec<Place>,
    pub(super) kind: EntryKind,
    /// When it was last used.
    pub(super) used: AtomicU64,
}

pub(super) enum EntryKind {
    /// The whole function as one graph.
    Whole(Box<Whole>),
    /// The function reads values: it runs, and its pieces are compiled. For tensors of these dtypes and ranks, two of which share
    /// memory or not.
    Broken(Break, Vec<(DType, usize)>, bool),
}

/// What an input of the code is.
enum Input {
    Variable(Place),
    Constant(Value),
}

impl Input {
    fn of(source: Source) -> Input {
        match source {
            Source::Variable(place) => Input::Variable(place),
            Source::Constant(tensor) => Input::Constant(Value::of(tensor)),
        }
    }
}

pub(super) struct Whole {
    code: EntryCode,
    pub(super) graph: Graph,
    inputs: Vec<Input>,
    tracked: Vec<bool>,
    returned: Vec<Returned>,
    /// For results that are captured tensors themselves: these.
    outside: Vec<Option<Tensor>>,
    writes: Vec<(Place, Option<usize>)>,
    /// Variables whose values are constants of the code, and how often each had been written.
    frozen: Vec<(Arc<Cell>, u64)>,
    pub(super) spec: Spec,
    /// The graph for gradients through a call, for each set of sizes.
    recomputed: Mutex<Lru<Vec<usize>, Arc<Recomputed>>>,
}

/// Sets of sizes for which the graph of gradients is kept.
const KEPT_SIZES: usize = 16;

impl Entry {
    pub(super) fn broken(args: &CallArgs<'_>, at: Break) -> Entry {
        let types = args.values.iter().map(|v| (v.meta().dtype, v.meta().sizes.len())).collect();
        Entry {
            constants: args.constants.clone(),
            grad: dynamo::grad_enabled(),
            autocast: autocast_dtype(),
            conditions: Vec::new(),
            absent: Vec::new(),
            kind: EntryKind::Broken(at, types, args.share_memory()),
            used: AtomicU64::new(0),
        }
    }

    /// Compiles a captured function.
    pub(super) fn whole(
        args: &CallArgs<'_>,
        capture: Capture,
        (spec, outputs): (Spec, &[Tensor]),
        compile: &dyn Fn(Graph, &[Option<HostTensor>]) -> Result<EntryCode, Error>,
        freeze: bool,
    ) -> Result<Entry, Error> {
        let Capture { mut graph, sources, tracked, returned, writes, absent, conditions } = capture;
        let grad = dynamo::grad_enabled();
        let mut frozen = Vec::new();
        let mut constants: Vec<Option<HostTensor>> = vec![None; sources.len()];
        if freeze && !grad {
            for (n, source) in sources.iter().enumerate() {
                constants[n] = match source {
                    Source::Constant(tensor) => Some(tensor.clone()),
                    Source::Variable(Place::Cell(cell)) if !is_written(&writes, cell) => {
                        frozen.push((Arc::clone(cell), cell.version()));
                        Some(host(&cell.actual().ok_or_else(gone)?)?)
                    }
                    Source::Variable(_) => None,
                };
            }
            make_constants(&mut graph, &constants);
        }
        let outside = returned.iter().zip(outputs).map(|(r, t)| match r {
            Returned::Source(_) => Some(t.clone()),
            Returned::Result(_) => None,
        });
        let outside = outside.collect();
        let whole = Whole {
            code: compile(graph.clone(), &constants)?,
            graph,
            inputs: sources.into_iter().map(Input::of).collect(),
            tracked,
            returned,
            outside,
            writes,
            frozen,
            spec,
            recomputed: Mutex::new(Lru::new(KEPT_SIZES)),
        };
        Ok(Entry {
            constants: args.constants.clone(),
            grad,
            autocast: autocast_dtype(),
            conditions,
            absent,
            kind: EntryKind::Whole(Box::new(whole)),
            used: AtomicU64::new(0),
        })
    }

    /// The inputs of the code, if the entry may be used for a call; the guard that failed otherwise.
    pub(super) fn check(&self, args: &CallArgs<'_>) -> Result<Inputs, String> {
        if self.constants != args.constants {
            let pairs = self.constants.iter().zip(&args.constants).find(|(a, b)| a != b);
            return Err(pairs.map_or_else(
                || "the arguments have another structure".into(),
                |(was, is)| {
                    let advice = match is {
                        Constant::Float(_) => ": a tensor without dimensions may change freely",
                        _ => "",
                    };
                    format!("a constant argument is {is}, it was {was}{advice}")
                },
            ));
        }
        if self.grad != dynamo::grad_enabled() {
            return Err(format!("whether gradients are recorded was {}, it is {}", self.grad, !self.grad));
        }
        if self.autocast != autocast_dtype() {
            let name = |d: Option<DType>| d.map_or_else(|| "off".to_owned(), |d| d.to_string());
            let (was, is) = (name(self.autocast), name(autocast_dtype()));
            return Err(format!("mixed precision around the call was {was}, it is {is}"));
        }
        if let Some(condition) = self.conditions.iter().find(|c| !c.holds()) {
            return Err(condition.describe());
        }
        if self.absent.iter().any(|place| value_at(place, args).is_some()) {
            return Err("a variable has a value that had none (a gradient)".into());
        }
        match &self.kind {
            EntryKind::Whole(whole) => whole.check(args),
            EntryKind::Broken(_, _, share) if *share != args.share_memory() => {
                Err(format!("whether two arguments share memory was {share}, it is {}", !share))
            }
            EntryKind::Broken(_, types, _) => {
                let same = |((dtype, rank), v): (&(DType, usize), &Value)| {
                    v.meta().dtype == *dtype && v.meta().sizes.len() == *rank
                };
                match types.len() == args.values.len() && types.iter().zip(&args.values).all(same) {
                    true => Ok(Inputs::none()),
                    false => Err("the dtype or the number of dimensions of an argument differs".into()),
                }
            }
        }
    }

    /// The guards as text, for the log.
    pub(super) fn guards(&self) -> Vec<String> {
        let mut list: Vec<String> =
            self.constants.iter().map(|c| format!("a constant argument is {c}")).collect();
        list.push(format!("gradients are recorded: {}", self.grad));
        list.extend(self.conditions.iter().map(|c| c.describe()));
        if let EntryKind::Whole(whole) = &self.kind {
            let graph = &whole.graph;
            list.extend(
                graph.inputs().filter_map(|(v, _, name)| Some(format!("{name}: {}", graph.meta(v)?))),
            );
            list.extend(graph.guards.iter().map(|g| g.message.clone()));
            list.extend(
                whole.writes.iter().map(|_| "no argument shares memory with a written tensor".into()),
            );
        }
        list
    }
}

fn is_written(writes: &[(Place, Option<usize>)], cell: &Arc<Cell>) -> bool {
    writes.iter().any(|(place, _)| matches!(place, Place::Cell(other) if Arc::ptr_eq(other, cell)))
}

fn gone() -> Error {
    Error::Internal("a captured tensor has no value".into())
}

/// Makes inputs constants of the graph: the code may change their layout once.
fn make_constants(graph: &mut Graph, constants: &[Option<HostTensor>]) {
    for id in graph.order.clone() {
        if let NodeKind::Placeholder { kind, name } = &mut graph.nodes[id].kind
            && let Some(n) = name.strip_prefix('x').and_then(|n| n.parse::<usize>().ok())
            && constants.get(n).is_some_and(Option::is_some)
        {
            *kind = InputKind::Parameter;
        }
    }
}

/// The value of a variable from outside, for this call.
fn value_at(place: &Place, args: &CallArgs<'_>) -> Option<Value> {
    match place {
        Place::Argument(n) => match args.values.get(*n) {
            Some(value) => Some(value.clone()),
            None => args.tensors.get(n - args.values.len())?.grad_cell().actual(),
        },
        Place::Cell(cell) => cell.actual(),
    }
}

/// The tensor with data of a value, computed now if need be.
fn host(value: &Value) -> Result<HostTensor, Error> {
    force(std::slice::from_ref(value))?;
    value.data().cloned().ok_or_else(gone)
}

impl Whole {
    fn check(&self, args: &CallArgs<'_>) -> Result<Inputs, String> {
        if let Some((cell, _)) = self.frozen.iter().find(|(cell, version)| cell.version() != *version) {
            let what = cell.peek(|v| v.map(|v| format!("{:?}", v.meta())));
            return Err(format!("a frozen tensor was written: {}", what.unwrap_or_default()));
        }
        let mut inputs = SmallVec::new();
        for (n, (source, tracked)) in self.inputs.iter().zip(&self.tracked).enumerate() {
            if self.code.is_constant(n) {
                continue;
            }
            let flows = |value: &Value| match value.is_tracked() == *tracked {
                true => Ok(()),
                false => {
                    Err(format!("whether a tensor requires a gradient was {tracked}, it is {}", !tracked))
                }
            };
            match source {
                Input::Constant(value) => inputs.push(value.clone()),
                Input::Variable(Place::Argument(n)) if *n < args.values.len() => flows(&args.values[*n])?,
                Input::Variable(place) => {
                    let value =
                        value_at(place, args).ok_or("a variable has no value that had one (a gradient)")?;
                    flows(&value)?;
                    inputs.push(value);
                }
            }
        }
        if !self.writes.is_empty() {
            self.shares_nothing(args)?;
        }
        let inputs = Inputs(inputs);
        inputs.compute().map_err(|e| e.to_string())?;
        // Filled in place, as the values of a call are: a collected list is copied.
        let mut tensors: SmallVec<[&HostTensor; 16]> = SmallVec::new();
        tensors.reserve(self.inputs.len());
        self.values(&inputs, args).filter_map(Value::data).for_each(|t| tensors.push(t));
        let fits = self.code.fits(&tensors);
        drop(tensors);
        fits.map(|()| inputs).map_err(|e| e.to_string())
    }

    /// The values of the inputs of the code: arguments, and what `own` has of others.
    fn values<'a>(&'a self, own: &'a Inputs, args: &'a CallArgs<'_>) -> impl Iterator<Item = &'a Value> {
        let mut own = own.0.iter();
        let given = self.inputs.iter().enumerate().filter(|(n, _)| !self.code.is_constant(*n));
        given.filter_map(move |(_, input)| match input {
            Input::Variable(Place::Argument(n)) if *n < args.values.len() => Some(&args.values[*n]),
            _ => own.next(),
        })
    }

    /// Whether it writes tensors from outside.
    pub(super) fn writes(&self) -> bool {
        !self.writes.is_empty()
    }

    /// What is written must not share memory with another tensor of the call.
    fn shares_nothing(&self, args: &CallArgs<'_>) -> Result<(), String> {
        let root = |n: usize| args.tensors.get(n).and_then(|t| t.root_cell().ok()).map(Arc::as_ptr);
        let place = |place: &Place| match place {
            Place::Argument(n) => root(*n),
            Place::Cell(cell) => Some(Arc::as_ptr(cell)),
        };
        let all = self.inputs.iter().filter_map(|input| match input {
            Input::Variable(of) => place(of),
            Input::Constant(_) => None,
        });
        let all: Vec<*const Cell> = all.collect();
        for (written, _) in &self.writes {
            let Some(at) = place(written) else { continue };
            if all.iter().filter(|other| **other == at).count() > 1 {
                return Err("a written tensor shares memory with another one".into());
            }
        }
        Ok(())
    }

    /// Runs the code, gives variables from outside their new values, and gives the results.
    pub(super) fn run(&self, args: &CallArgs<'_>, inputs: &Inputs) -> Result<Vec<Tensor>, Error> {
        let tensors: Vec<HostTensor> = self.values(inputs, args).filter_map(|v| v.data().cloned()).collect();
        let (results, seed) = self.code.run(&tensors)?;
        let history = self.history(&tensors, &mut self.values(inputs, args), &results, seed)?;
        {
            let _mode = GradMode::set(false);
            for (place, number) in &self.writes {
                let new = number.and_then(|n| results.get(n)).cloned().map(Value::of);
                write(place, args, new)?;
            }
        }
        let one = |(n, returned): (usize, &Returned)| match *returned {
            Returned::Result(k) => match &history {
                Some(values) => values.get(k).cloned().map(Tensor::new),
                None => results.get(k).cloned().map(|t| Tensor::new(Value::of(t))),
            },
            Returned::Source(k) => match self.inputs.get(k) {
                Some(Input::Variable(Place::Argument(a))) => args.tensors.get(*a).map(|t| (*t).clone()),
                _ => self.outside.get(n).cloned().flatten(),
            },
        };
        let all: Option<Vec<Tensor>> = self.returned.iter().enumerate().map(one).collect();
        all.ok_or_else(|| Error::Internal("the code returned too few tensors".into()))
    }

    /// The results as values through which gradients flow, where an input requires one.
    fn history(
        &self,
        tensors: &[HostTensor],
        inputs: &mut dyn Iterator<Item = &Value>,
        results: &[HostTensor],
        seed: u64,
    ) -> Result<Option<Vec<Value>>, Error> {
        let grad = dynamo::grad_enabled() && self.tracked.contains(&true);
        if !grad || !self.returned.iter().any(|r| matches!(r, Returned::Result(_))) {
            return Ok(None);
        }
        let sizes: Vec<usize> = tensors.iter().flat_map(|t| t.sizes().iter().copied()).collect();
        let mut cache = self.recomputed.lock().unwrap_or_else(PoisonError::into_inner);
        let graph = match cache.get(&sizes) {
            Some(graph) => graph,
            None => {
                let made = Arc::new(Recomputed::new(&self.graph, tensors).ok_or_else(gone)?);
                cache.insert(sizes, Arc::clone(&made));
                made
            }
        };
        drop(cache);
        Ok(Some(graph.record(inputs.cloned().collect(), seed, results.to_vec())?))
    }
}

/// Gives a variable from outside its new value.
fn write(place: &Place, args: &CallArgs<'_>, new: Option<Value>) -> Result<(), Error> {
    match place {
        Place::Argument(n) => match (args.tensors.get(*n), new) {
            (Some(tensor), Some(new)) if *n < args.values.len() => {
                tensor.set_(&Tensor::new(new))?;
            }
            (_, new) => {
                let of = args.tensors.get(n.wrapping_sub(args.values.len())).ok_or_else(gone)?;
                of.grad_cell().replace(new);
            }
        },
        Place::Cell(cell) => {
            let slot = cell.peek(|old| old.and_then(|v| v.slot().cloned()));
            cell.replace(match (new, slot) {
                (Some(new), Some(slot)) => Some(Value::variable(new, slot)),
                (new, _) => new,
            });
        }
    }
    Ok(())
}
