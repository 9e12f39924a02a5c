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
  %h: bf16[2] = prims.convert(%x, bf16)
  %k: bf16[2] = aten.mul_.Tensor(%h, %x)
  return %x
  return %h
}"#;
    let i = Tensor::from_vec(vec![1i64, 2], &[2]).unwrap();
    let got = run(text, &[reals(&[0.5, 0.5]), i]).unwrap();
    assert_eq!(got, [vec![2.5, 4.5], vec![6.25, 20.25]], "bf16 * f32 is f32, written back as bf16");
}

#[test]
fn a_write_through_a_view_reaches_its_base_and_its_other_views() {
    let text = r#"graph "g" {
  %x: f32[2, 3] = input "x"
  %base: f32[2, 3] = aten.add.Tensor(%x, 0)
  %copy: f32[2, 3] = aten.clone.default(%base)
  %t: f32[3, 2]{1, 3} = aten.permute.default(%base, [1, 0])
  %row: f32[2]{3} = aten.select.int(%t, 0, 1)
  %flat: f32[6] = aten.view.default(%base, [6])
  %w: f32[2]{3} = aten.fill_.Scalar(%row, 9.0)
  return %base
  return %flat
  return %t
  return %copy
  return %x
}"#;
    let x = Tensor::from_vec((0..6).map(|i| i as f32).collect(), &[2, 3]).unwrap();
    let got = run(text, &[x]).unwrap();
    let written = vec![0.0, 9.0, 2.0, 3.0, 9.0, 5.0];
    let kept = vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
    assert_eq!(got, [written.clone(), written, vec![0.0, 3.0, 9.0, 9.0, 2.0, 5.0], kept.clone(), kept]);
}

#[test]
fn reshape_shares_only_where_the_stated_strides_allow() {
    // Of the transposed tensor a reshape is a copy; of the plain one it is a view.
    let text = r#"graph "g" {
  %x: f32[2, 3] = input "x"
  %base: f32[2, 3] = aten.add.Tensor(%x, 0)
  %t: f32[3, 2]{1, 3} = aten.permute.default(%base, [1, 0])
  %copied: f32[6] = aten.reshape.default(%t, [6])
  %viewed: f32[6] = aten.reshape.default(%base, [6])
  %a: f32[6] = aten.add_.Tensor(%copied, 100)
  %b: f32[6] = aten.mul_.Tensor(%viewed, 2)
  return %base
}"#;
    let x = Tensor::from_vec((0..6).map(|i| i as f32).collect(), &[2, 3]).unwrap();
    assert_eq!(run(text, &[x]).unwrap(), [vec![0.0, 2.0, 4.0, 6.0, 8.0, 10.0]]);
}

#[test]
fn a_conversion_to_the_same_dtype_is_its_operand() {
    let text = r#"graph "g" {
  %x: f32[2] = input "x"
  %base: f32[2] = aten.add.Tensor(%x, 0)
  %same: f32[2] = aten.to.dtype(%base, f32)
  %other: f64[2] = aten.to.dtype(%base, f64)
  %w: f32[2] = aten.relu_.default(%same)
  %v: f64[2] = aten.add_.Tensor(%other, 1)
  return %base
  return %other
}"#;
    let got = run(text, &[reals(&[-1.0, 2.0])]).unwrap();
    assert_eq!(got, [vec![0.0, 2.0], vec![0.0, 3.0]]);
}
