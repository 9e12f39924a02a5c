//! Gradients: the joint graph of a case is run by the interpreter on the goldens' cotangents.
//!
//! Of training cases the loss, the gradients of the parameters and the written buffers of one step are compared; the loss
//! curves of the optimizers are not yet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use aot_autograd::{JointError, JointGraph, JointOptions, Tangents, Wrt, joint};
use fx_ir::{Graph, InputKind, NodeKind, OutputKind};
use interp::Value;
use ir_core::SymExpr;
use tensor::compare::tolerance;
use tensor::{Tensor, allclose};

use super::Status;
use super::backend::{Failure, classify_interp};
use super::case::{Loaded, inputs};
use super::check::{MODEL_TOLERANCE, Times, differs, every, milliseconds};

/// Largest relative difference of a loss.
const LOSS_TOLERANCE: f64 = 1e-5;

/// Compares `grad<i>`, the gradient of input i, for the cotangents `cot<i>`.
pub(crate) fn gradient(loaded: &Loaded, backend: &str, times: &mut Times) -> Result<(), Failure> {
    let options = JointOptions { wrt: Wrt::Inputs, tangents: Tangents::Placeholders };
    let joint = joint_of(loaded, backend, &options, times)?;
    let results = run(loaded, &joint, times)?;
    let found = gradients(&joint, &results);
    let users: Vec<_> = joint.graph.inputs().filter(|(_, kind, _)| *kind == InputKind::User).collect();
    let mut compared = 0;
    for (n, (v, _, _)) in users.iter().enumerate() {
        let name = format!("grad{n}");
        let Some(expected) = loaded.golden.tensors.get(&name) else { continue };
        let (atol, rtol) = tolerance(expected.dtype());
        let given = found.iter().find(|(input, _)| input == v).and_then(|(_, g)| g.clone());
        let zero = || Tensor::zeros(expected.dtype(), expected.sizes());
        let got = given.map_or_else(zero, Ok).map_err(|e| Failure::error(&e))?;
        allclose(&got, expected, atol, rtol).map_err(|m| differs(&name, &m))?;
        compared += 1;
    }
    if compared == 0 {
        return Err(Failure::new(Status::Error, "the goldens have no gradient of an input"));
    }
    Ok(())
}

/// Compares `loss`, `grad:<parameter>` and `buf:<name>` of one step.
pub(crate) fn train(loaded: &Loaded, backend: &str, times: &mut Times) -> Result<(), Failure> {
    let options = JointOptions { wrt: Wrt::Parameters, tangents: Tangents::Loss };
    let joint = joint_of(loaded, backend, &options, times)?;
    let results = run(loaded, &joint, times)?;
    let wanted = |name: &&String| *name == "loss" || name.starts_with("grad:") || name.starts_with("buf:");
    let mut golden: BTreeMap<&String, &Tensor> =
        loaded.golden.tensors.iter().filter(|(name, _)| wanted(name)).collect();
    let noise = |prefix: &str| {
        let same_kind = golden.iter().filter(|(name, _)| name.starts_with(prefix));
        same_kind.map(|(_, t)| largest(t)).fold(0.0, f64::max) * f64::from(f32::EPSILON)
    };
    let noise = [("grad:", noise("grad:")), ("buf:", noise("buf:"))];
    let mut unnamed = Vec::new();
    for (name, got) in step_values(loaded, &joint, &results) {
        match golden.remove(&name) {
            Some(expected) => close(&name, &got, expected, &noise)?,
            None if name.starts_with("grad:") => unnamed.push(got),
            None => {}
        }
    }
    // A tied parameter may have another of its names in the archive: the only one of that size is meant.
    let left: Vec<(&String, &Tensor)> = golden.iter().map(|(name, t)| (*name, *t)).collect();
    for (name, expected) in left {
        let alike: Vec<&Tensor> = unnamed.iter().filter(|t| kept(t) == expected.numel()).collect();
        if let ([got], true) = (&alike[..], name.starts_with("grad:")) {
            close(name, got, expected, &noise)?;
            golden.remove(name);
        }
    }
    match golden.keys().next() {
        Some(name) => Err(Failure::new(Status::Fail, format!("gives no `{name}`"))),
        None => Ok(()),
    }
}

/// What one step gives, by the goldens' names; buffers that it does not write keep their values.
fn step_values(loaded: &Loaded, joint: &JointGraph, results: &[Value]) -> Vec<(String, Tensor)> {
    let mut list: BTreeMap<String, Tensor> = BTreeMap::new();
    for (_, kind, name) in joint.graph.inputs() {
        let kept = loaded.program.weights.get(name).and_then(|w| w.tensor.clone());
        if let (InputKind::Buffer { .. }, Some(tensor)) = (kind, kept) {
            list.insert(format!("buf:{name}"), tensor);
        }
    }
    for (output, value) in joint.graph.outputs.iter().zip(results) {
        let name = match &output.kind {
            OutputKind::User | OutputKind::Loss => "loss".to_owned(),
            OutputKind::ParameterGradient(name) => format!("grad:{name}"),
            OutputKind::BufferMutation(name) => format!("buf:{name}"),
            _ => continue,
        };
        list.extend(value.as_tensor().map(|t| (name, t.clone())));
    }
    list.into_iter().collect()
}

/// The largest finite magnitude.
fn largest(t: &Tensor) -> f64 {
    t.iter_f64().filter(|x| x.is_finite()).map(f64::abs).fold(0.0, f64::max)
}

/// Compares relative to the golden's largest value, or to rounding of the largest value of its kind: some gradients
/// (of key biases in attention) are zero but for rounding.
fn close(name: &str, got: &Tensor, expected: &Tensor, noise: &[(&str, f64)]) -> Result<(), Failure> {
    let got = thinned(got, expected)?;
    let floor = noise.iter().find(|(prefix, _)| name.starts_with(prefix)).map_or(0.0, |(_, n)| *n);
    let relative = if name == "loss" { LOSS_TOLERANCE } else { MODEL_TOLERANCE };
    let atol = (relative * largest(expected)).max(floor);
    allclose(&got, expected, atol, 0.0).map(drop).map_err(|m| differs(name, &m))
}

/// How many values the goldens keep of a gradient.
fn kept(t: &Tensor) -> usize {
    t.numel().div_ceil((t.numel() / 512).max(1))
}

/// The values that the goldens keep of a tensor: all, or every so-manieth.
fn thinned(got: &Tensor, expected: &Tensor) -> Result<Tensor, Failure> {
    let thin = || {
        if got.numel() == expected.numel() {
            return got.reshape(expected.sizes());
        }
        every(got, (got.numel() / 512).max(1))
    };
    thin().map_err(|e| Failure::error(&e))
}

/// Captured to joint.
fn joint_of(
    loaded: &Loaded,
    backend: &str,
    options: &JointOptions,
    times: &mut Times,
) -> Result<JointGraph, Failure> {
    if backend != "eager" {
        let what = format!("gradients on `{backend}`: joint graphs run on `eager` alone yet");
        return Err(Failure::new(Status::Unsupported, what));
    }
    let start = Instant::now();
    let made = functional(&loaded.program.graph).and_then(|graph| joint(&graph, options).map_err(refused));
    times.compile_ms += milliseconds(start);
    made
}

fn functional(captured: &Graph) -> Result<Graph, Failure> {
    let unsupported = |reason: Vec<String>, groups: BTreeSet<String>| Failure {
        status: Status::Unsupported,
        reason: reason.join("; "),
        groups: groups.into_iter().collect(),
    };
    let functional = aot_autograd::functionalize(captured).map_err(|errors| {
        let groups = errors.iter().map(|e| format!("mutation: {}", e.problem)).collect();
        unsupported(errors.iter().map(ToString::to_string).collect(), groups)
    })?;
    prims::decompose(&functional).map_err(|errors| {
        let groups = errors.iter().map(|e| e.error.to_string()).collect();
        unsupported(errors.iter().map(ToString::to_string).collect(), groups)
    })
}

fn refused(error: JointError) -> Failure {
    let JointError::Calls(calls) = &error else { return Failure::error(&error) };
    let groups: BTreeSet<String> = calls.iter().map(|c| format!("`{}` {}", c.target, c.problem)).collect();
    Failure { status: Status::Unsupported, reason: error.to_string(), groups: groups.into_iter().collect() }
}

/// Runs the joint graph: weights, the goldens' inputs, the cotangents.
fn run(loaded: &Loaded, joint: &JointGraph, times: &mut Times) -> Result<Vec<Value>, Failure> {
    let error = |what: String| Failure::new(Status::Error, what);
    let given = inputs(&loaded.golden, "").map_err(|e| error(format!("{e:#}")))?;
    let mut given = given.into_iter();
    let cotangents = cotangents(loaded, joint)?;
    let mut values = Vec::new();
    for (v, kind, name) in joint.graph.inputs() {
        let tangent = cotangents.iter().find(|(input, _)| *input == v).map(|(_, t)| t.clone());
        let tensor = match (tangent, kind) {
            (Some(tangent), _) => Some(tangent),
            (None, InputKind::User) => given.next(),
            (None, _) => loaded.program.weights.get(name).and_then(|w| w.tensor.clone()),
        };
        values.push(Value::Tensor(tensor.ok_or_else(|| error(format!("no value for the input `{name}`")))?));
    }
    let start = Instant::now();
    let outcome = interp::execute(&joint.graph, values).map_err(|e| classify_interp(&e));
    times.run_ms += milliseconds(start);
    Ok(outcome?.outputs)
}

/// The goldens' cotangents of the outputs that the caller sees; zeros where they have none.
fn cotangents(loaded: &Loaded, joint: &JointGraph) -> Result<Vec<(fx_ir::ValueId, Tensor)>, Failure> {
    let mut user = 0;
    let mut list = Vec::new();
    for (output, tangent) in joint.graph.outputs.iter().zip(&joint.tangents) {
        if !matches!(output.kind, OutputKind::User | OutputKind::Loss) {
            continue;
        }
        let name = format!("cot{user}");
        user += 1;
        let Some(tangent) = *tangent else { continue };
        let Some(meta) = joint.graph.meta(tangent) else { continue };
        let sizes: Option<Vec<usize>> = meta.sizes.iter().map(size).collect();
        let made = match (loaded.golden.tensors.get(&name), sizes) {
            (Some(cotangent), _) => cotangent.to_dtype(meta.dtype),
            (None, Some(sizes)) => Tensor::zeros(meta.dtype, &sizes),
            (None, None) => {
                return Err(Failure::new(Status::Error, format!("`{name}` is not in the goldens")));
            }
        };
        list.push((tangent, made.map_err(|e| Failure::error(&e))?));
    }
    Ok(list)
}

fn size(e: &SymExpr) -> Option<usize> {
    usize::try_from(e.as_const()?).ok()
}

/// Each placeholder asked for with its gradient.
fn gradients(joint: &JointGraph, results: &[Value]) -> Vec<(fx_ir::ValueId, Option<Tensor>)> {
    let mut values = results[joint.forward_outputs..].iter();
    let of = |&(v, g): &(fx_ir::ValueId, Option<fx_ir::ValueId>)| {
        debug_assert!(matches!(
            joint.graph.nodes[joint.graph.values[v].def].kind,
            NodeKind::Placeholder { .. }
        ));
        (v, g.and_then(|_| values.next()).and_then(Value::as_tensor).cloned())
    };
    joint.gradients.iter().map(of).collect()
}
