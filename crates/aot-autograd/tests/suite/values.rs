//! Functional programs compute what PyTorch computed for the captured ones: programs of the golden corpus that write,
//! run by the interpreter in their functional form. Skipped, with a line, where the corpus does not stand next to the
//! project.

#![allow(clippy::unwrap_used)] // a failing test may panic

use std::collections::BTreeMap;

use aot_autograd::functionalize;
use fx_ir::{Graph, InputKind, OutputKind, text};
use interp::Value;
use prims::Tolerance;
use pt2::ExportedProgram;
use tensor::safetensors::SafetensorsFile;
use tensor::{Tensor, allclose};
use testing::cases::{Cases, corpus};
use testing::compare::thinned;

/// Weights and golden inputs in the order of the graph's inputs.
fn inputs(program: &ExportedProgram, golden: &SafetensorsFile) -> Result<Vec<Value>, String> {
    let mut users = 0;
    let mut input = |(_, kind, name): (_, InputKind, &str)| {
        if kind != InputKind::User {
            let tensor = program.weights.get(name).and_then(|w| w.tensor.clone());
            return tensor.map(Value::Tensor).ok_or_else(|| format!("no weight `{name}`"));
        }
        users += 1;
        let key = format!("in{}", users - 1);
        golden.tensors.get(&key).cloned().map(Value::Tensor).ok_or_else(|| format!("no golden `{key}`"))
    };
    program.graph.inputs().map(&mut input).collect()
}

/// Runs the functional form; compares user results with `out0…` and what is written with `buf:name`, where given.
/// The number of comparisons, or why it could not run (`Err(None)`: an operator is not in the table).
fn check(
    program: &ExportedProgram,
    functional: &Graph,
    golden: &SafetensorsFile,
) -> Result<usize, Option<String>> {
    let inputs = inputs(program, golden).map_err(Some)?;
    let run = |graph: &Graph| {
        interp::execute(graph, inputs.clone()).map_err(|e| match e.to_string() {
            text if text.contains("unknown operator") => None,
            text => Some(text),
        })
    };
    // What the interpreter cannot run as captured is judged by the golden tensors alone.
    let (captured, outcome) = (run(&program.graph).ok(), run(functional)?);
    let mut written: BTreeMap<(bool, &str), &Tensor> = BTreeMap::new();
    let (mut users, mut compared) = (0, 0);
    for (output, value) in functional.outputs.iter().zip(&outcome.outputs) {
        let Some(tensor) = value.as_tensor() else { continue };
        let name = match &output.kind {
            OutputKind::User => format!("out{users}"),
            OutputKind::Loss => "loss".to_string(),
            OutputKind::BufferMutation(name) => {
                written.insert((false, name), tensor);
                format!("buf:{name}")
            }
            OutputKind::InputMutation(name) => {
                written.insert((true, name), tensor);
                continue;
            }
            _ => continue,
        };
        users += usize::from(matches!(output.kind, OutputKind::User));
        let expected =
            golden.tensors.get(&name).or_else(|| golden.tensors.get("loss").filter(|_| name == "out0"));
        let Some(expected) = expected else { continue };
        let (atol, rtol) = Tolerance::of_graph(&program.graph).of(tensor.dtype());
        if tensor.dtype().size() == 2 {
            // PyTorch rounds within an operator where the tables do not; here only the pass is judged.
            let eager = captured.as_ref().and_then(|c| user_output(&program.graph, c, users - 1));
            let Some(eager) = eager else { continue };
            allclose(tensor, eager, atol, rtol)
                .map_err(|e| Some(format!("{name} against the captured: {e}")))?;
            compared += 1;
            continue;
        }
        let got = thinned(tensor, expected).map_err(|e| Some(e.to_string()))?;
        allclose(&got, expected, atol, rtol).map_err(|e| Some(format!("{name}: {e}")))?;
        compared += 1;
    }
    if let Some(captured) = &captured {
        same_writes(&program.graph, captured, &written)?;
    }
    Ok(compared)
}

/// A captured program's user result.
fn user_output<'a>(graph: &Graph, outcome: &'a interp::Outcome, n: usize) -> Option<&'a Tensor> {
    let users = graph.outputs.iter().zip(&outcome.outputs).filter(|(o, _)| o.kind == OutputKind::User);
    users.map(|(_, v)| v).nth(n)?.as_tensor()
}

/// What the captured program left in its inputs is what the functional one returns for them.
fn same_writes(
    graph: &Graph,
    captured: &interp::Outcome,
    written: &BTreeMap<(bool, &str), &Tensor>,
) -> Result<(), Option<String>> {
    let places: Vec<(InputKind, &str)> = graph.inputs().map(|(_, kind, name)| (kind, name)).collect();
    for (place, left) in &captured.mutated {
        let (kind, name) = places[*place];
        let Some(now) = written.get(&(kind == InputKind::User, name)) else {
            return Err(Some(format!("the captured program writes `{name}`, the functional one does not")));
        };
        let (atol, rtol) = Tolerance::of_graph(graph).of(left.dtype());
        allclose(now, left, atol, rtol)
            .map_err(|e| Some(format!("{name} against the captured program: {e}")))?;
    }
    Ok(())
}

#[test]
fn programs_that_write_give_pytorchs_values() {
    let Some(root) = corpus() else { return };
    let (mut ran, mut compared, mut unknown, mut failures) = (0, 0, 0, Vec::new());
    let zips = ["ops.zip", "train/mlp.zip", "train/resnet18_narrow.zip", "dynamic/cond.zip"];
    for zip in zips {
        let mut zip = Cases::open(&root.join(zip)).unwrap();
        for name in zip.names() {
            let program =
                pt2::Archive::from_bytes(zip.archive(&name).unwrap()).and_then(|a| a.program(None)).unwrap();
            let Ok(functional) = functionalize(&program.graph) else {
                failures.push(format!("{name}: not functional"));
                continue;
            };
            if text::print(&functional) == text::print(&program.graph) {
                continue;
            }
            match check(&program, &functional, &zip.golden(&name).unwrap()) {
                Ok(n) => (ran, compared) = (ran + 1, compared + n),
                Err(None) => unknown += 1,
                Err(Some(problem)) => failures.push(format!("{name}: {problem}")),
            }
        }
    }
    eprintln!(
        "{ran} programs that write, {compared} tensors compared; {unknown} have operators not in the table"
    );
    assert!(failures.is_empty(), "{} fail:\n{}", failures.len(), failures.join("\n"));
}
