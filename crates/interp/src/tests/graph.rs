//! Graphs run node by node; what does not fit is named.

use ir_core::{DType, Scalar};
use tensor::Tensor;

use super::{reals, refusal, run};

const AFFINE: &str = r#"graph "g" {
  symbol s0 "batch" 2..=8
  %x: f32[s0] = input "x"
  %y: f32[2*s0] = input "y"
  %c: f32[3] = parameter "fc.bias"
  %r: f32[s0] = aten.relu.default(%x) from layer1:relu:"net.py:3"
  %a: f32[s0] = aten.add.Tensor(%r, %r, 2) from layer1:add
  return %a
  return s0
}"#;

#[test]
fn composites_run_through_their_decomposition() {
    let inputs = [reals(&[-1.0, 2.0]), reals(&[0.0; 4]), reals(&[0.0; 3])];
    assert_eq!(run(AFFINE, &inputs).unwrap(), [vec![0.0, 6.0], vec![2.0]]);
}

#[test]
fn inputs_that_do_not_fit_are_named() {
    let (x, y, c) = (reals(&[1.0, 2.0]), reals(&[0.0; 4]), reals(&[0.0; 3]));
    let refused = |inputs: &[Tensor]| refusal(AFFINE, inputs);
    assert_eq!(refused(std::slice::from_ref(&x)), "graph `g` takes 3 inputs, 1 were given");
    let text = refused(&[x.to_dtype(DType::F64).unwrap(), y.clone(), c.clone()]);
    assert_eq!(text, "input `x` is f64, the graph wants f32: convert it first");
    let text = refused(&[x.clone(), y.clone(), reals(&[0.0; 4])]);
    assert_eq!(text, "input `fc.bias` has sizes [4], the graph wants [3]");
    let text = refused(&[x.clone(), reals(&[0.0; 6]), c.clone()]);
    assert_eq!(text, "input `y`: dimension 0 is 6; it must be 4, which the sizes before it make of `2*s0`");
    let text = refused(&[reals(&[1.0]), reals(&[0.0; 2]), c.clone()]);
    assert_eq!(text, "input `x`: dimension 0 is 1; it must be from 2 to 8");
    let text = refused(&[x.unsqueeze(0).unwrap(), y, c]);
    assert_eq!(text, "input `x` has sizes [1, 2], the graph wants [s0]");
}

#[test]
fn an_unknown_operator_names_its_node_and_line() {
    let text = refusal(
        r#"graph "g" {
  %x: f32[2] = input "x"
  %y: f32[2] = aten.no_such_thing.default(%x) from layer1.0:frob:"net.py:12"
  return %y
}"#,
        &[reals(&[1.0, 2.0])],
    );
    let expected =
        "node `y` (aten.no_such_thing.default), from layer1.0: frob at net.py:12: unknown operator";
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn a_result_that_is_not_what_the_graph_says_is_an_error() {
    let text = refusal(
        r#"graph "g" {
  %x: f32[2] = input "x"
  %y: f32[3] = aten.relu.default(%x)
  return %y
}"#,
        &[reals(&[1.0, 2.0])],
    );
    assert!(text.contains("gives f32[2], the graph says f32[3]"), "{text}");
}

#[test]
fn unbacked_sizes_are_bound_by_results() {
    let text = r#"graph "g" {
  symbol s0 "u0" 0.. unbacked
  %x: f32[4] = input "x"
  %i: i64[] = input "i"
  %n: int(s0) = aten.item.default(%i)
  %y: f32[s0] = prims.slice(%x, 0, 0, s0, 1)
  %m: int(s0 + 1) = _operator.add(%n, 1)
  %z: f32[s0] = aten.relu.default(%y)
  return %z
  return %m
}"#;
    let i = |n: i64| Tensor::scalar(DType::I64, Scalar::Int(n)).unwrap();
    let x = reals(&[1.0, -2.0, 3.0, 4.0]);
    assert_eq!(run(text, &[x.clone(), i(2)]).unwrap(), [vec![1.0, 0.0], vec![3.0]]);
    assert_eq!(run(text, &[x.clone(), i(0)]).unwrap(), [vec![], vec![1.0]]);
    assert!(refusal(text, &[x, i(5)]).contains("reach outside a storage"));
}

#[test]
fn assertions_of_the_program_are_checked() {
    let text = r#"graph "g" {
  %n: int(s0) = input "n"
  %b: bool = _operator.ge(%n, 3)
  aten._assert_scalar.default(%b, "too few rows")
  return %n
}"#;
    let text = text.replace("{\n", "{\n  symbol s0 \"n\" 0..\n");
    let n = |n: i64| Tensor::scalar(DType::I64, Scalar::Int(n)).unwrap();
    assert_eq!(run(&text, &[n(3)]).unwrap(), [vec![3.0]]);
    assert!(refusal(&text, &[n(2)]).contains("assertion failed: too few rows"));
}

const COND: &str = r#"graph "g" {
  symbol s0 "n" 0..
  subgraph g0 "yes" {
    %a: f32[s0] = input "a"
    %r: f32[s0] = aten.exp.default(%a)
    return %r
  }
  subgraph g1 "no" {
    %a: f32[s0] = input "a"
    return %a
  }
  %p: bool[] = input "p"
  %x: f32[s0] = input "x"
  %c: f32[s0] = higher_order.cond(%p, &g0, &g1, [%x])
  return %c
}"#;

#[test]
fn cond_runs_one_branch() {
    let p = |b: bool| Tensor::scalar(DType::Bool, Scalar::Bool(b)).unwrap();
    assert_eq!(run(COND, &[p(true), reals(&[0.0, 0.0])]).unwrap(), [vec![1.0, 1.0]]);
    assert_eq!(run(COND, &[p(false), reals(&[0.0, 5.0, 6.0])]).unwrap(), [vec![0.0, 5.0, 6.0]]);
    let two = Tensor::from_vec(vec![tensor::Bool(1)], &[1]).unwrap();
    assert!(refusal(COND, &[two, reals(&[0.0])]).contains("has sizes [1], the graph wants []"));
}

#[test]
fn while_loop_carries_values() {
    let text = r#"graph "g" {
  subgraph g0 "test" {
    %i: i64[] = input "i"
    %acc: f32[2] = input "acc"
    %step: f32[2] = input "step"
    %t: bool[] = aten.ge.Scalar(%i, 1)
    return %t
  }
  subgraph g1 "body" {
    %i: i64[] = input "i"
    %acc: f32[2] = input "acc"
    %step: f32[2] = input "step"
    %j: i64[] = aten.sub.Tensor(%i, 1)
    %a: f32[2] = aten.add.Tensor(%acc, %step)
    return %j
    return %a
  }
  %n: i64[] = input "n"
  %x: f32[2] = input "x"
  %i: i64[], %acc: f32[2] = higher_order.while_loop(&g0, &g1, [%n, %x], [%x])
  return %i
  return %acc
}"#;
    let n = Tensor::scalar(DType::I64, Scalar::Int(3)).unwrap();
    assert_eq!(run(text, &[n, reals(&[1.0, 2.0])]).unwrap(), [vec![0.0], vec![4.0, 8.0]]);
}

#[test]
fn scan_stacks_what_each_step_gives() {
    let text = r#"graph "g" {
  subgraph g0 "step" {
    %carry: f32[2] = input "carry"
    %x: f32[2] = input "x"
    %a: f32[2] = aten.add.Tensor(%carry, %x)
    %r: f32[2] = aten.relu.default(%a)
    return %a
    return %r
  }
  %init: f32[2] = input "init"
  %xs: f32[3, 2] = input "xs"
  %last: f32[2], %all: f32[3, 2] = higher_order.scan(&g0, [%init], [%xs], [])
  return %last
  return %all
}"#;
    let xs = Tensor::from_vec(vec![1f32, -1.0, 2.0, -2.0, -9.0, 9.0], &[3, 2]).unwrap();
    let got = run(text, &[reals(&[0.0, 0.0]), xs]).unwrap();
    assert_eq!(got, [vec![-6.0, 6.0], vec![1.0, 0.0, 3.0, 0.0, 0.0, 6.0]]);
}

#[test]
fn sixteen_bit_floats_round_after_every_operator() {
    let text = r#"graph "g" {
  %x: bf16[1] = input "x"
  %a: bf16[1] = aten.add.Tensor(%x, %x)
  %b: bf16[1] = aten.exp.default(%x)
  return %a
  return %b
}"#;
    let x = reals(&[1.0]).to_dtype(DType::BF16).unwrap();
    // e rounded to eight bits of precision.
    assert_eq!(run(text, &[x]).unwrap(), [vec![2.0], vec![2.71875]]);
}
