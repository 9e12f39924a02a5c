//! Gradients through control flow against finite differences, in the joint graph and in its two halves put together.

#![allow(clippy::unwrap_used)] // a failing test may panic

use aot_autograd::{JointOptions, Tangents, Wrt, joint, partition};
use fx_ir::Graph;
use tensor::Tensor;

const LOSS: JointOptions = JointOptions { wrt: Wrt::ParametersAndInputs, tangents: Tangents::Loss };

/// Both branches read the same operands, one of them only in one branch, and one branch holds a `cond` itself.
const COND: &str = r#"fx 1.0

graph "cond" {
  subgraph g0 "then" {
    subgraph g0 "inner_then" {
      %a: f64[3] = input "a"

      %b: f64[3] = aten.exp.default(%a)
      return %b
    }
    subgraph g1 "inner_else" {
      %a: f64[3] = input "a"

      %b: f64[3] = aten.mul.Tensor(%a, %a)
      return %b
    }
    %a: f64[3] = input "a"
    %w: f64[3] = input "w"
    %q: bool[] = input "q"

    %m: f64[3] = aten.mul.Tensor(%a, %w)
    %x: f64[3] = higher_order.cond(%q, &g0, &g1, [%m])
    return %x
    return %m
  }
  subgraph g1 "else" {
    %a: f64[3] = input "a"
    %w: f64[3] = input "w"
    %q: bool[] = input "q"

    %s: f64[3] = aten.sin.default(%a)
    return %s
    return %a
  }
  %x: f64[3] = input "x"
  %w: f64[3] = parameter "w"
  %p: bool[] = input "p"
  %q: bool[] = input "q"

  %y: f64[3] = aten.tanh.default(%x)
  %c: f64[3], %d: f64[3] = higher_order.cond(%p, &g0, &g1, [%y, %w, %q])
  %e: f64[3] = aten.mul.Tensor(%c, %y)
  %f: f64[3] = aten.add.Tensor(%e, %d, 1)
  %loss: f64[] = aten.sum.default(%f, none)
  return %loss
}
"#;

/// A recurrent layer with weights, a counter next to the state, and one result that nothing reads.
const SCAN: &str = r#"fx 1.0

graph "scan" {
  subgraph g0 "turn" {
    %h: f64[2] = input "h"
    %n: i64[] = input "n"
    %x: f64[2] = input "x"
    %w: f64[2, 2] = input "w"

    %wh: f64[2] = aten.mv.default(%w, %h)
    %s: f64[2] = aten.add.Tensor(%wh, %x, 1)
    %t: f64[2] = aten.tanh.default(%s)
    %u: f64[2] = aten.mul.Tensor(%t, %n)
    %m: i64[] = aten.add.Scalar(%n, 1, 1)
    %z: f64[2] = aten.exp.default(%x)
    return %t
    return %m
    return %u
    return %z
  }
  %xs: f64[4, 2] = input "xs"
  %h: f64[2] = parameter "h"
  %w: f64[2, 2] = parameter "w"
  %n: i64[] = input "n"

  %last: f64[2], %count: i64[], %ys: f64[4, 2], %zs: f64[4, 2] = higher_order.scan(&g0, [%h, %n], [%xs], [%w])
  %a: f64[] = aten.sum.default(%ys, none)
  %b: f64[2] = aten.mul.Tensor(%last, %h)
  %c: f64[] = aten.sum.default(%b, none)
  %loss: f64[] = aten.add.Tensor(%a, %c, 1)
  return %loss
}
"#;

/// A linear recurrence with a factor that every combination reads.
const ASSOCIATIVE: &str = r#"fx 1.0

graph "associative" {
  subgraph g0 "combine" {
    %a: f64[2] = input "a"
    %b: f64[2] = input "b"
    %c: f64[2] = input "c"
    %d: f64[2] = input "d"
    %w: f64[2] = input "w"

    %ac: f64[2] = aten.mul.Tensor(%a, %c)
    %bc: f64[2] = aten.mul.Tensor(%b, %c)
    %bw: f64[2] = aten.mul.Tensor(%bc, %w)
    %e: f64[2] = aten.add.Tensor(%bw, %d, 1)
    return %ac
    return %e
  }
  %xs: f64[4, 2] = input "xs"
  %zs: f64[4, 2] = input "zs"
  %w: f64[2] = parameter "w"

  %p: f64[4, 2], %q: f64[4, 2] = higher_order.associative_scan(&g0, [%xs, %zs], [%w])
  %sq: f64[4, 2] = aten.mul.Tensor(%q, %xs)
  %t: f64[4, 2] = aten.sin.default(%p)
  %u: f64[4, 2] = aten.add.Tensor(%sq, %t, 1)
  %loss: f64[] = aten.sum.default(%u, none)
  return %loss
}
"#;

const MAP: &str = r#"fx 1.0

graph "map" {
  subgraph g0 "entry" {
    %x: f64[2] = input "x"
    %w: f64[2] = input "w"

    %y: f64[2] = aten.mul.Tensor(%x, %w)
    %z: f64[2] = aten.sin.default(%y)
    return %z
  }
  %xs: f64[3, 2] = input "xs"
  %w: f64[2] = parameter "w"

  %ys: f64[3, 2] = higher_order.map(&g0, [%xs], [%w])
  %sq: f64[3, 2] = aten.mul.Tensor(%ys, %xs)
  %loss: f64[] = aten.sum.default(%sq, none)
  return %loss
}
"#;

const WHILE: &str = r#"fx 1.0

graph "while" {
  subgraph g0 "test" {
    %x: f64[2] = input "x"

    %s: f64[] = aten.sum.default(%x, none)
    %p: bool[] = aten.lt.Scalar(%s, 10.0)
    return %p
  }
  subgraph g1 "turn" {
    %x: f64[2] = input "x"

    %y: f64[2] = aten.mul.Scalar(%x, 2.0)
    return %y
  }
  %x: f64[2] = input "x"

  %y: f64[2] = higher_order.while_loop(&g0, &g1, [%x], [])
  %loss: f64[] = aten.sum.default(%y, none)
  return %loss
}
"#;

fn floats(sizes: &[usize]) -> Tensor {
    let n: usize = sizes.iter().product();
    let values: Vec<f64> = (0..n).map(|i| 0.4 + 0.3 * (1.7 * i as f64 + 0.2).sin()).collect();
    Tensor::from_vec(values, sizes).unwrap()
}

fn truth(value: bool) -> Tensor {
    Tensor::from_vec(vec![tensor::Bool::from(value)], &[]).unwrap()
}

fn loss(graph: &Graph, inputs: &[Tensor]) -> f64 {
    interp::run(graph, inputs).unwrap()[0].item().unwrap().as_f64()
}

/// Gradients of the joint graph, and of its halves merged, against central differences.
fn check(text: &str, inputs: &[Tensor]) {
    let graph: Graph = text.parse().unwrap();
    let graph = prims::decompose(&graph).unwrap();
    let joint = joint(&graph, &LOSS).unwrap();
    fx_ir::well_formed(&joint.graph).unwrap();
    let merged = partition(&joint).unwrap().merge().unwrap();
    fx_ir::well_formed(&merged).unwrap();
    for with_backward in [&joint.graph, &merged] {
        let outs = interp::run(with_backward, inputs).unwrap();
        assert_eq!(outs[0].item().unwrap().as_f64(), loss(&graph, inputs));
        let mut gradients = outs[1..].iter();
        for (n, x) in inputs.iter().enumerate().filter(|(_, x)| x.dtype().is_float()) {
            let gradient: Vec<f64> = gradients.next().unwrap().iter_f64().collect();
            let values: Vec<f64> = x.iter_f64().collect();
            for (i, got) in gradient.iter().enumerate() {
                let at = |step: f64| {
                    let mut moved = values.clone();
                    moved[i] += step;
                    let mut inputs = inputs.to_vec();
                    inputs[n] = Tensor::from_vec(moved, x.sizes()).unwrap();
                    loss(&graph, &inputs)
                };
                let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                assert!((got - slope).abs() < 1e-8, "input {n} element {i}: {got}, slope {slope}");
            }
        }
        assert!(gradients.next().is_none());
    }
}

#[test]
fn cond_takes_the_gradient_of_the_branch_that_ran() {
    for (p, q) in [(true, true), (true, false), (false, true)] {
        check(COND, &[floats(&[3]), floats(&[3]), truth(p), truth(q)]);
    }
}

#[test]
fn scan_goes_back_from_its_last_turn() {
    let n = Tensor::from_vec(vec![2i64], &[]).unwrap();
    check(SCAN, &[floats(&[4, 2]), floats(&[2]), floats(&[2, 2]), n]);
}

#[test]
fn associative_scan_goes_back_from_its_last_result() {
    check(ASSOCIATIVE, &[floats(&[4, 2]), floats(&[4, 2]), floats(&[2])]);
    let single = ASSOCIATIVE.replace("[4, 2]", "[1, 2]");
    check(&single, &[floats(&[1, 2]), floats(&[1, 2]), floats(&[2])]);
}

#[test]
fn map_sums_the_gradients_of_what_every_entry_reads() {
    check(MAP, &[floats(&[3, 2]), floats(&[2])]);
}

#[test]
fn while_loop_is_refused_by_name() {
    let graph: Graph = WHILE.parse().unwrap();
    let error = joint(&prims::decompose(&graph).unwrap(), &LOSS).unwrap_err().to_string();
    assert!(error.contains("while_loop") && error.contains("use `scan`"), "{error}");
}
