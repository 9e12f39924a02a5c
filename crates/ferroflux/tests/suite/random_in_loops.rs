//! Random numbers in the bodies of control flow: every iteration draws other ones, branches draw with the seed of the call,
//! and `eager`, `oracle` and `cpu` draw the same.

#![allow(clippy::unwrap_used)] // a failing test may panic

use ferroflux as _; // registers the `cpu` backend
use fx_ir::Graph;
use plugin_host::{CompileArgs, KERNEL_IR};
use tensor::Tensor;

const WHILE: &str = r#"fx 1.0

graph "random_while" {
  subgraph g0 "test" {
    %i: i64[] = input "i"
    %all: f32[4, 5] = input "all"
    %n: i64[] = input "n"

    %go: bool[] = aten.lt.Tensor(%i, %n)
    return %go
  }
  subgraph g1 "body" {
    %i: i64[] = input "i"
    %all: f32[4, 5] = input "all"
    %n: i64[] = input "n"

    %u: f32[1, 5] = aten.rand.default([1, 5], f32)
    %rest: f32[3, 5] = aten.slice.Tensor(%all, 0, 1, 4, 1)
    %next: f32[4, 5] = aten.cat.default([%rest, %u], 0)
    %j: i64[] = aten.add.Scalar(%i, 1, 1)
    return %j
    return %next
  }
  %x: f32[4, 5] = input "x"

  %zero: i64[] = prims.full([], 0, i64)
  %n: i64[] = prims.full([], 4, i64)
  %i: i64[], %all: f32[4, 5] = higher_order.while_loop(&g0, &g1, [%zero, %x], [%n])
  return %all
}
"#;

const MAP: &str = r#"fx 1.0

graph "random_map" {
  subgraph g0 "f" {
    %x: f32[5] = input "x"
    %w: f32[5] = input "w"

    %u: f32[5] = aten.rand.default([5], f32)
    %wide: f32[5] = aten.mul.Scalar(%w, 0.0)
    %a: f32[5] = aten.add.Tensor(%u, %wide, 1)
    return %a
  }
  %x: f32[4, 5] = input "x"

  %w: f32[5] = prims.full([5], 1.0, f32)
  %all: f32[4, 5] = higher_order.map_impl(&g0, [%x], [%w])
  return %all
}
"#;

const SCAN: &str = r#"fx 1.0

graph "random_scan" {
  subgraph g0 "step" {
    %h: f32[5] = input "h"
    %x: f32[5] = input "x"

    %u: f32[5] = aten.rand.default([5], f32)
    return %h
    return %u
  }
  %x: f32[4, 5] = input "x"

  %h: f32[5] = prims.full([5], 1.0, f32)
  %last: f32[5], %all: f32[4, 5] = higher_order.scan(&g0, [%h], [%x], [])
  return %all
}
"#;

const COND: &str = r#"fx 1.0

graph "random_cond" {
  subgraph g0 "yes" {
    %x: f32[4, 5] = input "x"

    %u: f32[4, 5] = aten.rand.default([4, 5], f32)
    return %u
  }
  subgraph g1 "no" {
    %x: f32[4, 5] = input "x"

    return %x
  }
  %x: f32[4, 5] = input "x"

  %t: bool[] = prims.full([], true, bool)
  %all: f32[4, 5] = higher_order.cond(%t, &g0, &g1, [%x])
  return %all
}
"#;

fn operand() -> Tensor {
    tensor::formula::fill("x", &[4, 5], 1.0, 0.0).unwrap()
}

fn eager(graph: &Graph, seed: u64) -> Vec<f32> {
    let outcome = interp::execute_seeded(graph, vec![interp::Value::Tensor(operand())], seed).unwrap();
    outcome.outputs[0].as_tensor().unwrap().to_vec::<f32>().unwrap()
}

fn compiled(graph: &Graph, seed: u64) -> [Vec<f32>; 2] {
    let prims = prims::decompose(graph).unwrap_or_else(|e| panic!("{}: {e:?}", graph.name));
    let program = inductor::compile(&prims, &inductor::Options::default()).unwrap();
    kernel_ir::verify(&program).unwrap();
    let inputs = [operand(), Tensor::from_vec(vec![seed as i64], &[]).unwrap()];
    let bytes = program.to_bytes();
    let options = interp::kernels::Options { planned_arena: true };
    let oracle = interp::kernels::Executable::new(program, &|_| None, options).unwrap();
    let oracle = oracle.call(&inputs).unwrap().remove(0);
    let cpu = plugin_host::Registry::from_env().load("cpu").unwrap();
    let mut code = cpu.compile(&CompileArgs::new(KERNEL_IR, &bytes).mode("default")).unwrap();
    code.bind_constants(&[]).unwrap();
    let cpu = code.execute(&inputs.iter().collect::<Vec<_>>()).unwrap().remove(0);
    [oracle, cpu].map(|t| t.to_vec::<f32>().unwrap())
}

#[test]
fn every_turn_draws_other_numbers_and_all_backends_the_same() {
    for text in [WHILE, MAP, SCAN, COND] {
        let graph: Graph = text.parse().unwrap();
        fx_ir::well_formed(&graph).unwrap();
        let numbers = eager(&graph, 17);
        let [oracle, cpu] = compiled(&graph, 17);
        assert_eq!(numbers, oracle, "{}: oracle", graph.name);
        assert_eq!(numbers, cpu, "{}: cpu", graph.name);
        let mut sorted = numbers.clone();
        sorted.sort_by(f32::total_cmp);
        sorted.dedup();
        assert_eq!(sorted.len(), 20, "{}: numbers are drawn twice: {numbers:?}", graph.name);
        assert!(sorted.iter().all(|u| (0.0..1.0).contains(u)), "{}: {numbers:?}", graph.name);
        assert_ne!(numbers, eager(&graph, 18), "{}: the seed is not read", graph.name);
    }
}
