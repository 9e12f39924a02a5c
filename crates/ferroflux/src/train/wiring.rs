//! Connects the placeholders and results of a training graph with the caller, the kept state and each other.

use std::collections::BTreeMap;

use fx_ir::{Arg, Graph, InputKind, OutputKind, ValueId};
use ir_core::SymExpr;
use plugin_host::Value;
use serde::{Deserialize, Serialize};
use tensor::Tensor;

use super::layout::restrided;
use crate::code::Code;
use crate::{Error, Program};

/// Parameters, buffers and whatever else outlives a step, by name; on the backend's device where it keeps tensors there.
pub(crate) type State = BTreeMap<String, Value>;

/// Where a graph's input comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Source {
    /// The caller's input of this number.
    User(usize),
    /// The state of this name.
    State(String),
    /// What the forward saved.
    Saved(usize),
    /// The cotangent of this number.
    Tangent(usize),
    /// A number that the step is given.
    Scalar(usize),
}

/// What a graph's result is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Sink {
    /// Returned to the caller.
    User,
    /// The loss, returned to the caller too.
    Loss,
    /// The state's new value.
    State(String),
    /// Kept for the backward.
    Saved,
    /// A gradient.
    Gradient,
    /// Nobody's.
    Dropped,
}

/// The inputs of a graph that are tensors and no constants, in order, but for the seed.
pub(crate) fn sources(
    graph: &Graph,
    source: &dyn Fn(ValueId, InputKind, &str) -> Option<Source>,
) -> Vec<Source> {
    let tensors = graph.inputs().filter(|(v, kind, _)| graph.meta(*v).is_some() && *kind != InputKind::Seed);
    tensors.filter_map(|(v, kind, name)| source(v, kind, name)).collect()
}

/// The results of a graph that are tensors, in order.
pub(crate) fn sinks(graph: &Graph) -> Vec<Sink> {
    let tensors = graph.outputs.iter().filter(|o| matches!(o.arg, Arg::Value(_)));
    let sink = |kind: &OutputKind| match kind {
        OutputKind::User => Sink::User,
        OutputKind::Loss => Sink::Loss,
        OutputKind::BufferMutation(name) => Sink::State(name.clone()),
        OutputKind::ParameterGradient(_) | OutputKind::InputGradient(_) => Sink::Gradient,
        OutputKind::Saved => Sink::Saved,
        OutputKind::InputMutation(_) => Sink::Dropped,
    };
    tensors.map(|o| sink(&o.kind)).collect()
}

/// Numbers of the user inputs by their place among the graph's inputs of kind `User`.
pub(crate) fn user_numbers(graph: &Graph) -> BTreeMap<ValueId, usize> {
    let users = graph.inputs().filter(|(v, kind, _)| *kind == InputKind::User && graph.meta(*v).is_some());
    users.enumerate().map(|(n, (v, _, _))| (v, n)).collect()
}

/// The weights that a step changes or that gradients are taken of, from the program.
pub(crate) fn initial(program: &Program, names: &[String]) -> Result<BTreeMap<String, Tensor>, Error> {
    let missing = |name: &String| Error::MissingWeights { count: 1, first: name.clone() };
    let one = |name: &String| Ok((name.clone(), program.weight(name).cloned().ok_or_else(|| missing(name))?));
    names.iter().map(one).collect()
}

/// Replaces a tensor of the state, which `code` owns, by one of the same type.
pub(crate) fn replace(state: &mut State, name: &str, tensor: &Tensor, code: &Code) -> Result<(), Error> {
    let Some(old) = state.get_mut(name) else {
        let near = plugin_host::nearest(name, state.keys().map(String::as_str));
        return Err(Error::UnknownState { name: name.into(), near });
    };
    let real = code.form(tensor)?;
    if old.dtype() != real.dtype() || old.sizes() != real.sizes() {
        let is = format!("{}{:?}", real.dtype(), real.sizes());
        let wanted = format!("{}{:?}", old.dtype(), old.sizes());
        return Err(Error::Snapshot(format!("`{name}` is {is}, the model wants {wanted}")));
    }
    // Compiled code addresses the state by the strides it was compiled for.
    *old = code.own(&restrided(&real, old.strides())?)?;
    Ok(())
}

/// A tensor of size `n` without memory to speak of: it tells a program the value of a size symbol.
pub(crate) fn size_tensor(n: i64) -> Result<Tensor, Error> {
    let size = usize::try_from(n).map_err(|_| {
        Error::Internal(format!("a size that the backward needs should not be negative, but is {n}"))
    })?;
    let one = Tensor::zeros(ir_core::DType::U8, &[1])?;
    Ok(one.as_strided(&[size], &[0], 0)?)
}

/// The type of [`size_tensor`] for a size.
pub(crate) fn size_meta(size: &SymExpr) -> ir_core::TensorMeta {
    let mut meta = ir_core::TensorMeta::contiguous(ir_core::DType::U8, [size.clone()]);
    meta.strides = [SymExpr::ZERO].into_iter().collect();
    meta
}
