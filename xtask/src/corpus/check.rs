//! Runs a loaded case and compares what comes out with the goldens.

use std::time::Instant;

use cli::golden::sampled;
use fx_ir::{Arg, Graph, OutputKind, ValueType};
use ir_core::{Class, DType};
use tensor::compare::{every, tolerance};
use tensor::{Mismatch, Tensor, allclose};

use testing::compare::largest;

use super::backend::{Compiled, Failure, compile};
use super::case::{Loaded, inputs};
use super::{Kind, Status, gradient};

/// Largest difference allowed in a model's output, relative to the output's largest value.
pub(crate) const MODEL_TOLERANCE: f64 = 1e-3;

/// Milliseconds that a case took.
#[derive(Default)]
pub(crate) struct Times {
    pub(crate) compile_ms: f64,
    pub(crate) run_ms: f64,
}

/// Checks a case; `Ok` where everything is within tolerance.
pub(crate) fn check(kind: Kind, loaded: &Loaded, backend: &str, times: &mut Times) -> Result<(), Failure> {
    match kind {
        Kind::Gradient => return gradient::gradient(loaded, backend, times),
        Kind::Train => return gradient::train(loaded, backend, times),
        Kind::Forward | Kind::Dynamic | Kind::Model => {}
    }
    let start = Instant::now();
    let compiled = compile(&loaded.program, backend);
    times.compile_ms += milliseconds(start);
    let compiled = compiled?;
    match kind {
        Kind::Dynamic => dynamic(loaded, &compiled, times),
        Kind::Model => model(loaded, &compiled, times),
        _ => forward(loaded, &compiled, "", times),
    }
}

pub(crate) fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn call(compiled: &Compiled, inputs: &[Tensor], times: &mut Times) -> Result<Vec<Tensor>, Failure> {
    let start = Instant::now();
    let outputs = compiled.call(inputs);
    times.run_ms += milliseconds(start);
    outputs
}

/// One call, every output compared whole. `prefix` is before the goldens' names.
fn forward(loaded: &Loaded, compiled: &Compiled, prefix: &str, times: &mut Times) -> Result<(), Failure> {
    let given = inputs(&loaded.golden, prefix).map_err(|e| Failure::new(Status::Error, format!("{e:#}")))?;
    let mut outputs = call(compiled, &given, times)?;
    let wanted = loaded.golden.tensors.keys().filter(|k| is_output(k, prefix)).count();
    let mut numbers = returned_numbers(&loaded.program.graph);
    if wanted + numbers.iter().filter(|n| **n).count() == outputs.len() {
        // Goldens of the tensors alone.
        let mut number = numbers.into_iter();
        outputs.retain(|_| !number.next().unwrap_or(false));
        numbers = Vec::new();
    }
    let entries = prims::Tolerance::of_graph(&loaded.program.graph);
    let mut compared = 0;
    for (n, got) in outputs.iter().enumerate() {
        let name = format!("{prefix}out{n}");
        let Some(expected) = loaded.golden.tensors.get(&name) else { continue };
        let (atol, rtol) = entries.of(expected.dtype());
        let same = if numbers.get(n) == Some(&true) {
            // A number in a golden has the width of its producer's format: Python's have no dtype.
            let [got, expected] = [got, expected].map(|t| t.to_dtype(DType::F64));
            let pair = got.and_then(|got| Ok((got, expected?))).map_err(|e| Failure::error(&e))?;
            allclose(&pair.0, &pair.1, atol, rtol)
        } else {
            allclose(got, expected, atol, rtol)
        };
        same.map_err(|m| differs(&name, &m))?;
        compared += 1;
    }
    if compared != wanted || wanted == 0 {
        return Err(Failure::new(Status::Fail, format!("gives {compared} outputs, {wanted} are expected")));
    }
    Ok(())
}

/// For each of the caller's outputs whether the program returns a number there.
fn returned_numbers(graph: &Graph) -> Vec<bool> {
    let users = graph.outputs.iter().filter(|o| o.kind == OutputKind::User);
    let number = |o: &fx_ir::Output| match &o.arg {
        Arg::Value(v) => match graph.values[*v].ty {
            ValueType::Tensor(_) => Some(false),
            ValueType::None => None,
            _ => Some(true),
        },
        Arg::Int(_) | Arg::Scalar(_) => Some(true),
        _ => None,
    };
    users.filter_map(number).collect()
}

fn is_output(name: &str, prefix: &str) -> bool {
    let number = name.strip_prefix(prefix).and_then(|n| n.strip_prefix("out"));
    number.is_some_and(|n| n.chars().all(|c| c.is_ascii_digit()))
}

pub(crate) fn differs(name: &str, mismatch: &Mismatch) -> Failure {
    let group = match mismatch {
        Mismatch::DType { got, expected } => format!("dtype is {got}, expected {expected}"),
        Mismatch::Sizes { .. } => "sizes differ".to_owned(),
        Mismatch::Values { .. } => "values differ".to_owned(),
    };
    Failure { status: Status::Fail, reason: format!("{name}: {mismatch}"), groups: vec![group] }
}

/// Every sample through the same compiled program.
fn dynamic(loaded: &Loaded, compiled: &Compiled, times: &mut Times) -> Result<(), Failure> {
    let mut samples = 0;
    while loaded.golden.tensors.contains_key(&format!("s{samples}.out0")) {
        forward(loaded, compiled, &format!("s{samples}."), times)?;
        samples += 1;
    }
    if samples == 0 {
        return Err(Failure::new(Status::Error, "the goldens have no sample"));
    }
    Ok(())
}

/// One call; the goldens hold every n-th value of each output.
fn model(loaded: &Loaded, compiled: &Compiled, times: &mut Times) -> Result<(), Failure> {
    let error = |e: anyhow::Error| Failure::new(Status::Error, format!("{e:#}"));
    let given = inputs(&loaded.golden, "").map_err(error)?;
    let sampled = sampled(&loaded.golden).map_err(|e| Failure::error(&e))?;
    let outputs = call(compiled, &given, times)?;
    if outputs.len() < sampled.len() || sampled.is_empty() {
        let what = format!("gives {} outputs, {} are expected", outputs.len(), sampled.len());
        return Err(Failure::new(Status::Fail, what));
    }
    for (n, (got, about)) in outputs.iter().zip(&sampled).enumerate() {
        let name = format!("out{n}");
        let Some(expected) = loaded.golden.tensors.get(&name) else { continue };
        if got.sizes() != about.shape {
            return Err(differs(
                &name,
                &Mismatch::Sizes { got: got.sizes().to_vec(), expected: about.shape.clone() },
            ));
        }
        let got = every(got, about.step).map_err(|e| Failure::error(&e))?;
        let (atol, rtol) = model_tolerance(expected);
        allclose(&got, expected, atol, rtol).map_err(|m| differs(&name, &m))?;
    }
    Ok(())
}

/// Absolute, from the largest finite value; the dtype's own where that is wider.
fn model_tolerance(expected: &Tensor) -> (f64, f64) {
    if !matches!(expected.dtype().class(), Class::Float | Class::Complex) {
        return (0.0, 0.0);
    }
    let relative = if expected.dtype() == DType::BF16 { tolerance(DType::BF16).1 } else { MODEL_TOLERANCE };
    (relative * largest(expected), 0.0)
}
