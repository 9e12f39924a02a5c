//! In-place operators change every view of the memory they write, and nothing else.

use tensor::Tensor;

use super::{graph, reals, run};
use crate::Value;

#[test]
fn an_in_place_result_is_the_operand() {
    let text = r#"graph "g" {
  %x: f32[2] = input "x"
  %before: f32[2] = aten.add.Tensor(%x, 1)
  %r: f32[2] = aten.relu_.default(%x)
  %s: f32[2] = aten.add_.Tensor(%r, %before)
  return %x
  return %s
  return %before
}"#;
    let got = run(text, &[reals(&[-1.0, 2.0])]).unwrap();
    assert_eq!(got, [vec![0.0, 5.0], vec![0.0, 5.0], vec![0.0, 3.0]]);
}

#[test]
fn written_inputs_are_reported_and_the_callers_tensor_is_not_written() {
    let g = graph(
        r#"graph "g" {
  %x: f32[2] = input "x"
  %y: f32[2] = input "y"
  %r: f32[2] = aten.relu_.default(%y)
  return %x
}"#,
    );
    let (x, y) = (reals(&[1.0, 2.0]), reals(&[-1.0, 2.0]));
    let outcome = crate::execute(&g, vec![Value::Tensor(x), Value::Tensor(y.clone())]).unwrap();
    let written: Vec<(usize, Vec<f32>)> =
        outcome.mutated.iter().map(|(n, t)| (*n, t.to_vec().unwrap())).collect();
    assert_eq!(written, [(1, vec![0.0, 2.0])]);
    assert_eq!(y.to_vec::<f32>().unwrap(), [-1.0, 2.0]);
}

#[test]
fn the_result_keeps_the_operands_dtype() {
    let text = r#"graph "g" {
  %x: f32[2] = input "x"
  %i: i64[2] = input "i"
  %r: i64[2] = aten.add_.Tensor(%i, %i)
  %s: f32[2] = aten.add_.Tensor(%x, %i)
  return %x
}"#;
    let i = Tensor::from_vec(vec![1i64, 2], &[2]).unwrap();
    assert_eq!(run(text, &[reals(&[0.5, 0.5]), i]).unwrap(), [vec![2.5, 4.5]]);
}
