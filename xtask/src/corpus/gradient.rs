//! Gradients and training: a case's two compiled halves run on the goldens' inputs and cotangents, and training cases
//! are trained for six steps by each optimizer of the goldens.

use std::collections::BTreeMap;
use std::time::Instant;

use ferroflux::Program;
use ferroflux::optim::{Adam, Optimizer, Sgd};
use ferroflux::train::{DiffOptions, Differentiated, Gradients, TrainOptions, Wrt};
use fx_ir::{Arg, Graph, InputKind, ValueId};
use tensor::{Tensor, allclose};
use testing::compare::{largest, thinned};

use super::backend::{Failure, classify, options};
use super::case::{Loaded, inputs};
use super::check::{MODEL_TOLERANCE, Times, differs, milliseconds};
use super::{Status, Wide};

/// Largest relative difference of a loss.
const LOSS_TOLERANCE: f64 = 1e-5;

/// Compares `grad<i>`, the gradient of input i, for the cotangents `cot<i>`.
pub(crate) fn gradient(loaded: &Loaded, backend: &str, times: &mut Times) -> Result<(), Failure> {
    let model = differentiated(loaded, backend, &DiffOptions::new().wrt(Wrt::Inputs).tangents(), times)?;
    let (_, found) = run(loaded, &model, times)?;
    let entries = prims::Tolerance::of_graph(&loaded.program.graph);
    let mut compared = 0;
    for (n, input) in model.inputs().iter().enumerate() {
        let name = format!("grad{n}");
        let Some(expected) = loaded.golden.tensors.get(&name) else { continue };
        let (atol, rtol) = entries.of(expected.dtype());
        let zero = || Tensor::zeros(expected.dtype(), expected.sizes());
        let got = found.input(&input.name).cloned();
        let got = got.map_or_else(zero, Ok).map_err(|e| Failure::error(&e))?;
        allclose(&got, expected, atol, rtol).map_err(|m| differs(&name, &m))?;
        compared += 1;
    }
    if compared == 0 {
        return Err(Failure::new(Status::Error, "the goldens have no gradient of an input"));
    }
    Ok(())
}

/// Compares `loss`, `grad:<parameter>` and `buf:<name>` of one step, and the losses of six steps.
pub(crate) fn train(loaded: &Loaded, backend: &str, times: &mut Times) -> Result<(), Failure> {
    let model = differentiated(loaded, backend, &DiffOptions::new(), times)?;
    let (outputs, gradients) = run(loaded, &model, times)?;
    let wanted = |name: &&String| *name == "loss" || name.starts_with("grad:") || name.starts_with("buf:");
    let mut golden: BTreeMap<&String, &Tensor> =
        loaded.golden.tensors.iter().filter(|(name, _)| wanted(name)).collect();
    let noise = |prefix: &str| {
        let same_kind = golden.iter().filter(|(name, _)| name.starts_with(prefix));
        same_kind.map(|(_, t)| largest(t)).fold(0.0, f64::max) * f64::from(f32::EPSILON)
    };
    let noise = [("grad:", noise("grad:")), ("buf:", noise("buf:"))];
    for (name, got) in step_values(loaded, &model, &outputs, &gradients) {
        // A tied parameter may have another of its names in the goldens.
        let known = names(loaded, &name).into_iter().find(|name| golden.contains_key(name));
        let Some((name, expected)) = known.and_then(|name| golden.remove_entry(&name)) else { continue };
        let checked = close(name, &got, expected, &noise);
        checked.or_else(|failure| judged_wide(loaded, name, &got, expected).ok_or(failure))?;
    }
    match golden.keys().next() {
        Some(name) => Err(Failure::new(Status::Fail, format!("gives no `{name}`"))),
        None => curves(loaded, backend, times),
    }
}

/// The names of a gradient: its own, and those of parameters that are the same memory.
fn names(loaded: &Loaded, name: &str) -> Vec<String> {
    let memory = |name: &str| {
        let tensor = loaded.program.weights.get(name)?.tensor.as_ref()?;
        Some((tensor.data_ptr(), tensor.dtype(), tensor.sizes().to_vec()))
    };
    let mut names = vec![name.to_owned()];
    if let Some((parameter, place)) = name.strip_prefix("grad:").and_then(|p| Some((p, memory(p)?))) {
        let others = loaded.program.weights.iter().filter(|w| w.name != parameter);
        let tied = others.filter(|w| memory(&w.name).is_some_and(|other| other == place));
        names.extend(tied.map(|w| format!("grad:{}", w.name)));
    }
    names
}

/// Judges a gradient outside its tolerance by its value in double precision, from the same graph. One kind is accepted: a
/// sum whose terms cancel. No implementation can compute it more precisely than the rounding of the sum of the terms'
/// magnitudes, and both PyTorch and this project must be that close. Examples are biases before a batch normalisation,
/// which subtracts the mean.
fn judged_wide(loaded: &Loaded, name: &str, got: &Tensor, expected: &Tensor) -> Option<()> {
    let wide = Wide::of(loaded).ok()?;
    let known = names(loaded, name);
    let (_, gradient) = wide.gradients.iter().find(|(n, _)| known.contains(&format!("grad:{n}")))?;
    let terms = terms(&wide.wide, *gradient);
    let wanted: Vec<ValueId> = [Some(*gradient), terms].into_iter().flatten().collect();
    let values = wide.values(loaded, &wanted).ok()?;
    let exact = values.first()?;
    let thin = thinned(&exact.to_dtype(expected.dtype()).ok()?, expected).ok()?;
    let (ours, theirs) = (distance(&thinned(got, expected).ok()?, &thin), distance(expected, &thin));
    let mass = values.get(1)?.iter_f64().map(f64::abs).sum::<f64>() / exact.numel().max(1) as f64;
    (ours.max(theirs) <= mass * f64::from(f32::EPSILON)).then_some(())
}

/// The largest difference of two tensors of one size; not a number where any is not.
fn distance(a: &Tensor, b: &Tensor) -> f64 {
    let differences = a.iter_f64().zip(b.iter_f64()).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |most: f64, d| if d.is_nan() || most.is_nan() { f64::NAN } else { most.max(d) })
}

/// What a value is the sum of: the operand of the sum after reshapes and conversions.
fn terms(graph: &Graph, value: ValueId) -> Option<ValueId> {
    let mut value = value;
    loop {
        let (target, args) = graph.nodes[graph.values[value].def].as_call()?;
        let Some(Arg::Value(operand)) = args.first() else { return None };
        match target {
            "prims.sum" => return Some(*operand),
            "prims.reshape" | "prims.cast" | "prims.permute" | "prims.barrier" => value = *operand,
            _ => return None,
        }
    }
}

/// The results of one step, by the goldens' names; buffers that it does not write keep their values.
fn step_values(
    loaded: &Loaded,
    model: &Differentiated,
    outputs: &[Tensor],
    gradients: &Gradients,
) -> Vec<(String, Tensor)> {
    let mut list: BTreeMap<String, Tensor> = BTreeMap::new();
    for (_, kind, name) in loaded.program.graph.inputs() {
        let kept = || loaded.program.weights.get(name).and_then(|w| w.tensor.clone());
        if matches!(kind, InputKind::Buffer { .. }) {
            list.extend(model.get(name).or_else(kept).map(|t| (format!("buf:{name}"), t)));
        }
    }
    list.extend(outputs.first().map(|loss| ("loss".to_owned(), loss.clone())));
    for g in gradients.0.iter().filter(|g| g.parameter) {
        list.extend(g.tensor.clone().map(|t| (format!("grad:{}", g.name), t)));
    }
    list.into_iter().collect()
}

/// Six losses of each optimizer, within PyTorch's own drift between `f32` and `f64`.
fn curves(loaded: &Loaded, backend: &str, times: &mut Times) -> Result<(), Failure> {
    let read = |key: &str| cli::golden::metadata::<Option<serde_json::Value>>(&loaded.golden, key);
    let error = |e: anyhow::Error| Failure::new(Status::Error, format!("{e:#}"));
    let Some(curves) = read("curves").map_err(|e| Failure::error(&e))? else { return Ok(()) };
    let wide = read("sgd_float64").map_err(|e| Failure::error(&e))?.unwrap_or_default();
    let drift = drift(&numbers(&curves["sgd"]), &numbers(&wide));
    let given = inputs(&loaded.golden, "").map_err(error)?;
    for (name, optimizer, rate) in optimizers() {
        let expected = numbers(&curves[name]);
        let start = Instant::now();
        let program = Program::from(loaded.program.clone());
        let step = program.train_step(&TrainOptions::new(optimizer), &options(backend));
        times.compile_ms += milliseconds(start);
        let mut step = step.map_err(|e| classify(&e))?;
        for (n, wanted) in expected.iter().enumerate() {
            let start = Instant::now();
            let outcome = step.step(&given, rate).map_err(|e| classify(&e))?;
            times.run_ms += milliseconds(start);
            let allowed = LOSS_TOLERANCE.max(drift.get(n).copied().unwrap_or(0.0)) * wanted.abs();
            let off = (outcome.loss - wanted).abs();
            if off.is_nan() || off > allowed {
                let what = format!("{name}: loss {n} is {}, expected {wanted} to {allowed:e}", outcome.loss);
                return Err(Failure {
                    status: Status::Fail,
                    reason: what,
                    groups: vec![format!("losses of {name}")],
                });
            }
        }
    }
    Ok(())
}

/// The optimizers of the goldens' curves, with their learning rates.
fn optimizers() -> [(&'static str, Optimizer, f64); 3] {
    let momentum = Sgd { momentum: 0.9, weight_decay: 1e-3, ..Sgd::default() };
    [
        ("sgd", Optimizer::Sgd(Sgd::default()), 0.01),
        ("sgd_momentum", Optimizer::Sgd(momentum), 0.01),
        ("adamw", Optimizer::Adam(Adam::adamw()), 1e-3),
    ]
}

fn numbers(list: &serde_json::Value) -> Vec<f64> {
    list.as_array().into_iter().flatten().filter_map(serde_json::Value::as_f64).collect()
}

/// The largest difference of two curves up to each of their points, relative to the first.
fn drift(narrow: &[f64], wide: &[f64]) -> Vec<f64> {
    let mut largest = 0.0f64;
    let point = |(a, b): (&f64, &f64)| {
        largest = largest.max((a - b).abs() / a.abs());
        largest
    };
    narrow.iter().zip(wide).map(point).collect()
}

/// Compares relative to the golden's largest value, or to rounding of the largest value of its kind: some gradients
/// (of key biases in attention) are zero but for rounding.
fn close(name: &str, got: &Tensor, expected: &Tensor, noise: &[(&str, f64)]) -> Result<(), Failure> {
    let got = thinned(got, expected).map_err(|e| Failure::error(&e))?;
    let floor = noise.iter().find(|(prefix, _)| name.starts_with(prefix)).map_or(0.0, |(_, n)| *n);
    let relative = if name == "loss" { LOSS_TOLERANCE } else { MODEL_TOLERANCE };
    let atol = (relative * largest(expected)).max(floor);
    allclose(&got, expected, atol, 0.0).map(drop).map_err(|m| differs(name, &m))
}

/// Captured to two compiled halves.
fn differentiated(
    loaded: &Loaded,
    backend: &str,
    diff: &DiffOptions,
    times: &mut Times,
) -> Result<Differentiated, Failure> {
    let start = Instant::now();
    let program = Program::from(loaded.program.clone());
    let made = program.differentiate(diff, &options(backend));
    times.compile_ms += milliseconds(start);
    made.map_err(|e| classify(&e))
}

/// Runs both halves: the goldens' inputs, their cotangents; zeros where an output has none.
fn run(
    loaded: &Loaded,
    model: &Differentiated,
    times: &mut Times,
) -> Result<(Vec<Tensor>, Gradients), Failure> {
    let given = inputs(&loaded.golden, "").map_err(|e| Failure::new(Status::Error, format!("{e:#}")))?;
    let start = Instant::now();
    let (outputs, saved) = model.forward(&given).map_err(|e| classify(&e))?;
    let mut tangents = Vec::new();
    for tangent in model.tangents() {
        let golden = loaded.golden.tensors.get(&format!("cot{}", tangent.output));
        let dtype = tangent.info.meta.dtype;
        let made = match golden {
            Some(cotangent) => cotangent.to_dtype(dtype),
            None => Tensor::zeros(dtype, outputs[tangent.output].sizes()),
        };
        tangents.push(made.map_err(|e| Failure::error(&e))?);
    }
    let gradients = saved.backward(&tangents).map_err(|e| classify(&e));
    times.run_ms += milliseconds(start);
    gradients.map(|g| (outputs, g))
}
