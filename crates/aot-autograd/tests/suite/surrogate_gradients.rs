//! Operators whose gradient is by definition not the derivative of what they compute, against PyTorch's values.

#![allow(clippy::unwrap_used)] // a failing test may panic

use aot_autograd::{JointOptions, Tangents, Wrt, joint};
use fx_ir::Graph;
use tensor::{Tensor, allclose};

const OPTIONS: JointOptions = JointOptions { wrt: Wrt::Parameters, tangents: Tangents::Loss };

/// The gradient of the only parameter.
fn gradient(text: &str, inputs: &[Tensor]) -> Tensor {
    let graph: Graph = text.parse().unwrap();
    let joint = joint(&prims::decompose(&graph).unwrap(), &OPTIONS).unwrap();
    interp::run(&joint.graph, inputs).unwrap()[1].clone()
}

fn floats(values: &[f64], sizes: &[usize]) -> Tensor {
    Tensor::from_vec(values.to_vec(), sizes).unwrap()
}

/// A table of three rows of two numbers, read at `[[0, 2, 2], [1, 0, 2]]`; the loss weighs what is read by 1 to 12.
fn embedding(arguments: &str) -> Tensor {
    let text = format!(
        r#"fx 1.0

graph "embedding" {{
  %w: f64[3, 2] = parameter "w"
  %i: i64[2, 3] = input "i"
  %c: f64[2, 3, 2] = input "c"

  %rows: f64[2, 3, 2] = aten.embedding.default(%w, %i, {arguments}, false)
  %weighed: f64[2, 3, 2] = aten.mul.Tensor(%rows, %c)
  %loss: f64[] = aten.sum.default(%weighed, none)
  return %loss
}}
"#
    );
    let table = floats(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], &[3, 2]);
    let index = Tensor::from_vec(vec![0i64, 2, 2, 1, 0, 2], &[2, 3]).unwrap();
    let weights: Vec<f64> = (1..=12).map(f64::from).collect();
    gradient(&text, &[table, index, floats(&weights, &[2, 3, 2])])
}

#[test]
fn nothing_goes_to_the_padding_row_of_an_embedding() {
    let expected = floats(&[10.0, 12.0, 0.0, 0.0, 19.0, 22.0], &[3, 2]);
    allclose(&embedding("1, false"), &expected, 1e-12, 0.0).unwrap();
}

#[test]
fn rows_of_an_embedding_are_scaled_by_how_often_they_are_read() {
    let expected = floats(&[5.0, 6.0, 7.0, 8.0, 19.0 / 3.0, 22.0 / 3.0], &[3, 2]);
    allclose(&embedding("-1, true"), &expected, 1e-12, 0.0).unwrap();
    let padded = floats(&[5.0, 6.0, 7.0, 8.0, 0.0, 0.0], &[3, 2]);
    allclose(&embedding("2, true"), &padded, 1e-12, 0.0).unwrap();
}

#[test]
fn cross_entropy_of_certain_predictions_has_a_finite_slope() {
    let text = r#"fx 1.0

graph "loss" {
  %p: f64[5] = parameter "p"
  %y: f64[5] = input "y"

  %loss: f64[] = aten.binary_cross_entropy.default(%p, %y, none, 2)
  return %loss
}
"#;
    let p = floats(&[0.0, 1.0, 0.0, 1.0, 0.25], &[5]);
    let y = floats(&[0.0, 1.0, 1.0, 0.0, 1.0], &[5]);
    let expected = floats(&[0.0, 0.0, -1e12, 1e12, -4.0], &[5]);
    allclose(&gradient(text, &[p, y]), &expected, 1e-12, 1e-12).unwrap();
}
