//! Unit tests of the crate, by theme.

use fx_ir::Graph;
use tensor::Tensor;

use crate::InterpError;

mod alias;
mod graph;
mod kernels;
mod symbols;

/// Parses the text form of a graph.
fn graph(text: &str) -> Graph {
    fx_ir::text::parse(&format!("fx 1.0\n{text}")).unwrap_or_else(|e| panic!("{e}"))
}

fn reals(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, &[values.len()]).unwrap()
}

/// Runs a graph and gives each output's elements as `f64`.
fn run(text: &str, inputs: &[Tensor]) -> Result<Vec<Vec<f64>>, InterpError> {
    let outputs = crate::run(&graph(text), inputs)?;
    Ok(outputs.iter().map(|t| t.iter_f64().collect()).collect())
}

/// Runs a graph that must be refused, and gives the message.
fn refusal(text: &str, inputs: &[Tensor]) -> String {
    match run(text, inputs) {
        Err(error) => error.to_string(),
        Ok(outputs) => panic!("ran, and gave {outputs:?}"),
    }
}
