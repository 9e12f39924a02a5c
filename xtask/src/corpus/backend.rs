//! Prepares a loaded program for execution: the one place where a case uses the stack.
//!
//! Backends come from the facade. One more name, `captured`, runs the captured graph in the interpreter as it is, in-place
//! operators included: an oracle that does not go through functionalization.

use std::collections::BTreeSet;

use ferroflux::{Error, Options, Program};
use fx_ir::{Graph, InputKind, NodeKind, OutputKind};
use interp::{InterpError, Value};
use plugin_host::FFX_ERR_UNSUPPORTED;
use prims::OpError;
use pt2::ExportedProgram;
use tensor::Tensor;

use super::Status;

/// Why a case did not pass, with what the report counts it under.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) reason: String,
    pub(crate) groups: Vec<String>,
}

impl Failure {
    /// One reason, counted as it is.
    pub(crate) fn new(status: Status, reason: impl Into<String>) -> Failure {
        let reason = reason.into();
        Failure { status, groups: vec![reason.clone()], reason }
    }
    /// An error, counted under its innermost cause.
    pub(crate) fn error(error: &(dyn std::error::Error + 'static)) -> Failure {
        let mut inner = error;
        let mut reason = error.to_string();
        while let Some(source) = inner.source() {
            inner = source;
            let text = inner.to_string();
            if !reason.contains(&text) {
                reason = format!("{reason}: {text}");
            }
        }
        Failure { status: Status::Error, reason, groups: vec![inner.to_string()] }
    }
}

/// A program that is ready to run.
pub(crate) enum Compiled {
    /// By a backend of the facade.
    Facade(ferroflux::Compiled),
    /// The captured graph and its weights, in the order of its placeholders.
    Captured(Graph, Vec<(InputKind, Option<Tensor>)>),
}

/// A backend of the command line: its name, and after a colon its options as `name=value,…`.
pub(crate) fn options(backend: &str) -> Options {
    let (name, given) = backend.split_once(':').unwrap_or((backend, ""));
    let pairs = given.split(',').filter_map(|pair| pair.split_once('='));
    pairs.fold(Options::new().backend(name), |options, (name, value)| options.backend_option(name, value))
}

/// Prepares a program for the backend of that name.
pub(crate) fn compile(program: &ExportedProgram, backend: &str) -> Result<Compiled, Failure> {
    let mut unknown = BTreeSet::new();
    unknown_operators(&program.graph, &mut unknown);
    if !unknown.is_empty() {
        let names: Vec<String> = unknown.iter().map(|t| format!("`{t}`")).collect();
        let groups = unknown.iter().map(|t| format!("unknown operator `{t}`")).collect();
        let reason = format!("unknown operators {}", names.join(", "));
        return Err(Failure { status: Status::Unsupported, reason, groups });
    }
    if backend == "captured" {
        let weight = |name: &str| program.weights.get(name).and_then(|w| w.tensor.clone());
        let inputs = program.graph.inputs();
        let weights =
            inputs.map(|(_, kind, name)| (kind, if kind == InputKind::User { None } else { weight(name) }));
        return Ok(Compiled::Captured(program.graph.clone(), weights.collect()));
    }
    let compiled = Program::from(program.clone()).compile(&options(backend));
    compiled.map(Compiled::Facade).map_err(|e| classify(&e))
}

/// Every operator that the table lacks, in subgraphs too.
fn unknown_operators(graph: &Graph, into: &mut BTreeSet<String>) {
    for (_, node) in graph.iter() {
        let NodeKind::Call { target, .. } = &node.kind else { continue };
        let runs = ["higher_order.", "aten.sym_"].iter().any(|prefix| target.starts_with(prefix))
            || prims::scalars::is_scalar(target)
            || prims::lookup(target).or_else(|| prims::functional_of(target)).is_some();
        if !runs {
            into.insert(target.clone());
        }
    }
    graph.subgraphs.values().for_each(|g| unknown_operators(g, into));
}

impl Compiled {
    /// Runs the program on the caller's inputs; returns the caller's outputs.
    pub(crate) fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Failure> {
        match self {
            Compiled::Facade(compiled) => compiled.call(inputs).map_err(|e| classify(&e)),
            Compiled::Captured(graph, weights) => captured(graph, weights, inputs),
        }
    }
}

fn captured(
    graph: &Graph,
    weights: &[(InputKind, Option<Tensor>)],
    inputs: &[Tensor],
) -> Result<Vec<Tensor>, Failure> {
    let mut given = inputs.iter();
    let mut values = Vec::with_capacity(weights.len());
    for (kind, weight) in weights {
        let tensor = if *kind == InputKind::User { given.next() } else { weight.as_ref() };
        let tensor = tensor.ok_or_else(|| Failure::new(Status::Error, "too few inputs for the program"))?;
        values.push(Value::Tensor(tensor.clone()));
    }
    let outcome = interp::execute(graph, values).map_err(|e| classify_interp(&e))?;
    let kinds = graph.outputs.iter().map(|o| &o.kind);
    let users = outcome.outputs.into_iter().zip(kinds);
    let users = users.filter(|(_, kind)| matches!(kind, OutputKind::User | OutputKind::Loss));
    let tensors = users.map(|(value, _)| value.into_tensor());
    tensors.filter_map(Result::transpose).collect::<Result<_, _>>().map_err(|e| Failure::error(&e))
}

/// A list of refusals: all of them in the reason, each counted by itself.
fn refusals<T: std::fmt::Display>(error: &Error, items: &[T], group: impl Fn(&T) -> String) -> Failure {
    let groups: BTreeSet<String> = items.iter().map(group).collect();
    Failure { status: Status::Unsupported, reason: error.to_string(), groups: groups.into_iter().collect() }
}

pub(super) fn classify(error: &Error) -> Failure {
    match error {
        Error::Backend(e) if e.plugin_failure().is_some_and(|f| f.code == FFX_ERR_UNSUPPORTED) => {
            Failure { status: Status::Unsupported, ..Failure::error(error) }
        }
        Error::Unsupported(errors) => {
            let mut failure = refusals(error, errors, |e| e.error.to_string());
            if !errors.iter().any(|e| is_unsupported(&e.error)) {
                failure.status = Status::Error;
            }
            failure
        }
        Error::Functionalize(errors) => refusals(error, errors, |e| format!("mutation: {}", e.problem)),
        Error::Compile(error_of) => {
            let groups = error_of.problems().iter().map(|p| format!("`{}`: {}", p.target, p.what));
            let groups: BTreeSet<String> = groups.collect();
            let groups = groups.into_iter().collect();
            Failure { status: Status::Unsupported, reason: error.to_string(), groups }
        }
        Error::Joint(ferroflux::train::JointError::Calls(calls)) => {
            refusals(error, calls, |c| format!("`{}` {}", c.target, c.problem))
        }
        Error::Refused { refused, .. } => refusals(error, refused, Clone::clone),
        other => Failure::error(other),
    }
}

fn is_unsupported(error: &OpError) -> bool {
    matches!(error, OpError::Unknown(_) | OpError::Unsupported { .. } | OpError::DType { .. })
}

fn classify_interp(error: &InterpError) -> Failure {
    let mut failure = Failure::error(error);
    match error {
        InterpError::Unsupported { .. } => failure.status = Status::Unsupported,
        InterpError::Node { error, .. } => {
            failure.groups = vec![error.to_string()];
            if is_unsupported(error) {
                failure.status = Status::Unsupported;
            }
        }
        // Grouped by operator, whatever the node is called.
        InterpError::Result { at, .. } => {
            failure.groups = vec![format!("`{}` gives another type than the graph says", at.target)];
        }
        _ => {}
    }
    failure
}
