//! Operators of the golden corpus, where it is next to the project; else a line says so. Composites go through their
//! parts: each case as a batch against a loop, and second derivatives of the cases in float64 against differences.
//! `FERROFLUX_CORPUS_EVERY` says of how many cases one is taken.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use aot_autograd::transform::{Randomness, TransformError, VmapOptions, vjp, vmap};
use fx_ir::{Graph, InputKind, NodeKind, OutputKind};
use ir_core::DType;
use tensor::Tensor;
use tensor::safetensors::SafetensorsFile;
use testing::cases::{Cases, corpus};

use super::derivatives::{check, direction, hermitian};
use super::support::*;

/// A case in prims, all of whose placeholders are tensors, with their values and which of them the caller gives.
struct Case {
    graph: Graph,
    inputs: Vec<Tensor>,
    given: Vec<bool>,
}

fn every(default: usize) -> usize {
    std::env::var("FERROFLUX_CORPUS_EVERY").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Calls `each` with some of the cases whose name `wanted` accepts.
fn cases(step: usize, wanted: impl Fn(&str) -> bool, mut each: impl FnMut(&str, Case)) {
    let Some(corpus) = corpus() else { return };
    let mut zip = Cases::open(&corpus.join("ops.zip")).unwrap();
    let names: Vec<String> = zip.names().into_iter().filter(|name| wanted(name)).collect();
    for name in names.iter().step_by(step) {
        let archive = zip.archive(name).unwrap();
        let program = pt2::Archive::from_bytes(archive).and_then(|a| a.program(None)).unwrap();
        if let Some(case) = case(&program, &zip.golden(name).unwrap()) {
            each(name, case);
        }
    }
}

fn case(program: &pt2::ExportedProgram, golden: &SafetensorsFile) -> Option<Case> {
    let functional = aot_autograd::functionalize(&program.graph).ok()?;
    let mut graph = prims::decompose(&functional).ok()?;
    let (mut inputs, mut given, mut users) = (Vec::new(), Vec::new(), 0);
    for (v, kind, name) in graph.inputs() {
        graph.meta(v)?;
        given.push(kind == InputKind::User);
        inputs.push(match kind {
            InputKind::User => {
                users += 1;
                golden.tensors.get(&format!("in{}", users - 1))?.contiguous().ok()?
            }
            InputKind::Seed => return None,
            _ => program.weights.get(name)?.tensor.clone()?.contiguous().ok()?,
        });
    }
    graph.outputs.retain(|o| matches!(o.arg, fx_ir::Arg::Value(_)));
    let tensors = |o: &fx_ir::Output| matches!(o.arg, fx_ir::Arg::Value(v) if graph.meta(v).is_some());
    if graph.outputs.is_empty() || !graph.outputs.iter().all(tensors) {
        return None;
    }
    graph.outputs.iter_mut().for_each(|o| o.kind = OutputKind::User);
    Some(Case { graph, inputs, given })
}

/// The elements one place on, where the function takes them so: other numbers that are as good.
fn other(case: &Case) -> Option<Vec<Tensor>> {
    let turned = |t: &Tensor| {
        let all: Vec<_> = t.iter().collect();
        let mut out = Tensor::empty(t.dtype(), &[all.len()]).unwrap();
        (0..all.len()).for_each(|i| out.set(&[i], all[(i + 1) % all.len()]).unwrap());
        out.reshape(t.sizes()).unwrap()
    };
    let inputs: Vec<Tensor> = case
        .inputs
        .iter()
        .zip(&case.given)
        .map(|(t, &given)| if given { turned(t) } else { t.clone() })
        .collect();
    interp::run(&case.graph, &inputs).ok().map(|_| inputs)
}

/// Whether the batch agrees with a loop over it; a refusal that is meant is `Ok(false)`.
fn batched(case: &Case) -> Result<bool, String> {
    let mut options = VmapOptions::new(2);
    options.in_dims = case.given.iter().map(|&g| g.then_some(0)).collect();
    options.randomness = Randomness::Same;
    let batch = match vmap(&case.graph, &options) {
        Ok(batch) => batch,
        Err(TransformError::Batch(errors))
            if errors.iter().all(|e| {
                let text = e.error.to_string();
                text.contains("depends on the data") || text.contains("loops over batched")
            }) =>
        {
            return Ok(false);
        }
        Err(e) => return Err(e.to_string()),
    };
    let elements = [case.inputs.clone(), other(case).unwrap_or_else(|| case.inputs.clone())];
    let inputs: Vec<Tensor> = (0..case.inputs.len())
        .map(|i| {
            if !case.given[i] {
                return case.inputs[i].clone();
            }
            stacked(&[elements[0][i].clone(), elements[1][i].clone()])
        })
        .collect();
    let got = interp::run(&batch, &inputs).map_err(|e| e.to_string())?;
    for (n, element) in elements.iter().enumerate() {
        for (r, expected) in interp::run(&case.graph, element).map_err(|e| e.to_string())?.iter().enumerate()
        {
            let tolerance = match expected.dtype() {
                DType::F64 | DType::C128 => 1e-10,
                DType::BF16 | DType::F16 => 1e-2,
                _ => 1e-5,
            };
            if !close(&part(&got[r], n), expected, tolerance, 10.0 * tolerance) {
                return Err(format!("result {r} of element {n} differs"));
            }
        }
    }
    Ok(true)
}

/// What one outcome after another adds up to.
#[derive(Default)]
struct Tally {
    good: usize,
    refused: usize,
    failed: BTreeMap<String, String>,
}

impl Tally {
    fn add(&mut self, stem: &str, outcome: std::thread::Result<Result<bool, String>>) {
        match outcome {
            Ok(Ok(true)) => self.good += 1,
            Ok(Ok(false)) => self.refused += 1,
            Ok(Err(e)) => drop(self.failed.insert(stem.into(), e)),
            Err(_) => drop(self.failed.insert(stem.into(), "panics".into())),
        }
    }
    fn report(&self, what: &str) {
        eprintln!("{what}: {} agree, {} are refused, {} fail", self.good, self.refused, self.failed.len());
        assert!(self.failed.is_empty(), "{:#?}", self.failed);
    }
}

#[test]
fn composites_act_on_batches_as_in_a_loop() {
    let mut tally = Tally::default();
    cases(
        every(1),
        |_| true,
        |stem, case| {
            tally.add(stem, catch_unwind(AssertUnwindSafe(|| batched(&case))));
        },
    );
    tally.report("batches");
}

/// Operators of which only one triangle of the first operand is read: symmetric directions count.
const SYMMETRIC: &[&str] =
    &["cholesky/", "linalg.cholesky/", "linalg.eigvalsh/", "linalg.eigh/", "linalg.pinv.hermitian/"];

/// At zero a norm has a kink; its gradient there is by definition.
const KINKS: &[&str] = &["linalg.norm.subgradients_at_zero/"];

fn is_double(t: &Tensor) -> bool {
    !t.dtype().is_inexact() || matches!(t.dtype(), DType::F64 | DType::C128)
}

/// Whether second derivatives agree with differences; `Ok(false)` where there is nothing to compare.
fn second(stem: &str, mut case: Case) -> Result<bool, String> {
    for id in case.graph.order.clone() {
        if let NodeKind::Placeholder { kind, .. } = &mut case.graph.nodes[id].kind {
            *kind = InputKind::User;
        }
    }
    let results = case.graph.outputs.len();
    let symmetric = SYMMETRIC.iter().any(|name| stem.starts_with(name));
    if symmetric {
        case.inputs[0] = hermitian(&case.inputs[0]);
    }
    let outs = interp::run(&case.graph, &case.inputs).map_err(|e| e.to_string())?;
    let sized_by_data = case.graph.symbols.values().any(|s| s.unbacked);
    if sized_by_data
        || !outs.iter().chain(&case.inputs).all(is_double)
        || KINKS.iter().any(|k| stem.starts_with(k))
    {
        return Ok(false);
    }
    let mut graph = match vjp(&case.graph) {
        Ok(graph) => graph,
        // PyTorch has no derivative of these either.
        Err(e)
            if e.to_string().contains("PyTorch has none") || e.to_string().contains("no gradient rule") =>
        {
            return Ok(false);
        }
        Err(e) => return Err(e.to_string()),
    };
    graph.outputs.drain(..results);
    let still = |t: &Tensor| Tensor::zeros(t.dtype(), t.sizes()).unwrap();
    let mut directions: Vec<Tensor> = (case.inputs.iter().zip(&case.given).enumerate())
        .map(
            |(n, (t, &given))| {
                if given { direction(&format!("direction{n}"), t, symmetric && n == 0) } else { still(t) }
            },
        )
        .collect();
    let mut inputs = case.inputs;
    for (n, out) in outs.iter().enumerate() {
        inputs.push(direction(&format!("cotangent{n}"), out, false));
        directions.push(still(out));
    }
    check(&graph, &inputs, &directions).map(|(compared, _)| compared > 0)
}

#[test]
fn second_derivatives_of_composites_agree_with_differences() {
    let mut tally = Tally::default();
    cases(
        every(1),
        |stem| stem.contains("float64"),
        |stem, case| {
            tally.add(stem, catch_unwind(AssertUnwindSafe(|| second(stem, case))));
        },
    );
    tally.report("second derivatives");
}
