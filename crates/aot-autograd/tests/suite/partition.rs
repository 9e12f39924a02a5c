//! Partitions: the halves, and the graph merged of them, compute what the joint graph computes; on random programs and
//! on the training cases of the corpus. What is saved shrinks with the budget.

#![allow(clippy::unwrap_used)] // a failing test may panic

use std::collections::BTreeMap;

use aot_autograd::{
    JointGraph, JointOptions, MinCut, Partition, Tangents, Wrt, joint, partition, partition_min_cut,
};
use fx_ir::{Arg, Graph, InputKind, OriginId, Output, OutputKind, ValueId, ValueType};
use interp::Value;
use ir_core::{DType, SymExpr, TensorMeta};
use prims::Builder;
use tensor::Tensor;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

/// A random differentiable program of prims on 4x4 matrices, with random draws, views, products and reductions.
fn program(seed: u64) -> Graph {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut graph = Graph::new("random");
    let square = |e: DType| ValueType::Tensor(TensorMeta::contiguous(e, [4, 4].map(SymExpr::from_i64)));
    let mut values: Vec<ValueId> = Vec::new();
    values.push(graph.placeholder(InputKind::User, "x", "x", square(DType::F64)));
    values.push(graph.placeholder(InputKind::Parameter, "w", "w", square(DType::F64)));
    let buffer = graph.placeholder(InputKind::Buffer { persistent: true }, "b", "b", square(DType::F64));
    values.push(buffer);
    for n in 0..4 + rng.below(16) {
        let (x, y) = (values[rng.below(values.len())], values[rng.below(values.len())]);
        let full = [4, 4].map(SymExpr::from_i64);
        let mut b = Builder::new(&mut graph, format!("v{n}"), OriginId(0));
        let v = match rng.below(10) {
            0 => b.sin(x),
            1 => b.mul(x, y),
            2 => b.add(x, y),
            3 => b.tanh(x),
            4 => b.call1("prims.matmul", vec![x.into(), y.into()]),
            5 => b.permute(x, &[1, 0]),
            6 => {
                b.reduce(kernel_ir::ReduceOp::Sum, x, &[rng.below(2)], true).and_then(|s| b.expand(s, &full))
            }
            7 => b.reduce(kernel_ir::ReduceOp::Max, x, &[1], true).and_then(|s| b.sub(x, s)),
            8 => b.random_bits(&full).and_then(|bits| {
                let keep = b.lt(bits, 0i64)?;
                b.select(keep, x, 0.0)
            }),
            _ => b
                .exp(x)
                .and_then(|e| b.call1("prims.div", vec![x.into(), 3.0.into()]).and_then(|d| b.sub(e, d))),
        };
        // Keep numbers small: every value through tanh before it may grow.
        let v = Builder::new(&mut graph, format!("t{n}"), OriginId(0)).tanh(v.unwrap()).unwrap();
        values.push(v);
    }
    let last = *values.last().unwrap();
    graph.outputs.push(Output { kind: OutputKind::User, arg: Arg::Value(last) });
    let other = values[rng.below(values.len())];
    graph.outputs.push(Output { kind: OutputKind::User, arg: Arg::Value(other) });
    if rng.below(2) == 0 {
        let new = values[3 + rng.below(values.len() - 3)];
        graph.outputs.push(Output { kind: OutputKind::BufferMutation("b".into()), arg: Arg::Value(new) });
    }
    graph
}

type Named = BTreeMap<String, Value>;

/// What each placeholder is given, by name.
fn inputs(graph: &Graph) -> Named {
    let given = graph.inputs().filter_map(|(v, kind, name)| {
        let meta = graph.meta(v)?;
        let sizes: Vec<usize> = meta.static_sizes()?.iter().map(|&s| s as usize).collect();
        let count: usize = sizes.iter().product();
        let salt = name.bytes().map(u64::from).sum::<u64>();
        let mut rng = Rng(salt * 77 + 5);
        let value = if kind == InputKind::Seed {
            Tensor::from_vec(vec![1234i64], &[]).unwrap()
        } else {
            let data: Vec<f64> = (0..count).map(|_| rng.below(2000) as f64 / 1000.0 - 1.0).collect();
            Tensor::from_vec(data, &sizes).unwrap().to_dtype(meta.dtype).unwrap()
        };
        Some((name.to_owned(), Value::Tensor(value)))
    });
    given.collect()
}

fn execute(graph: &Graph, given: &Named) -> Vec<Value> {
    fx_ir::well_formed(graph).unwrap_or_else(|e| panic!("{}\n{graph}", e[0]));
    let inputs = graph.inputs().map(|(_, _, name)| given[name].clone()).collect();
    interp::execute(graph, inputs).unwrap_or_else(|e| panic!("{e}\n{graph}")).outputs
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_tensor().map_or(Vec::new(), |t| t.iter_f64().collect())
}

/// Runs the halves as a caller does: the forward's saved values go to the backward.
fn run_halves(p: &Partition, forward_outputs: usize, given: &Named) -> Vec<Value> {
    let mut outs = execute(&p.forward, given);
    let mut all = given.clone();
    for (n, value) in outs.split_off(forward_outputs).into_iter().enumerate() {
        all.insert(format!("saved_{n}"), value);
    }
    outs.extend(execute(&p.backward, &all));
    outs
}

fn same(expected: &[Value], got: &[Value], what: &str) {
    assert_eq!(expected.len(), got.len(), "{what}");
    for (n, (a, b)) in expected.iter().zip(got).enumerate() {
        let (a, b) = (numbers(a), numbers(b));
        assert!(
            a.iter().zip(&b).all(|(x, y)| x.to_bits() == y.to_bits()) && a.len() == b.len(),
            "{what}, result {n}: {a:?} {b:?}"
        );
    }
}

fn check(joint: &JointGraph, p: &Partition, expected: &[Value], given: &Named, what: &str) {
    same(expected, &run_halves(p, joint.forward_outputs, given), &format!("{what}, halves"));
    let merged = p.merge().unwrap();
    same(expected, &execute(&merged, given), &format!("{what}, merged"));
}

#[test]
fn partitions_of_random_programs_compute_the_same() {
    let (mut smaller, mut recomputed) = (0, 0);
    for seed in 0..400 {
        let graph = program(seed);
        let options = JointOptions { wrt: Wrt::ParametersAndInputs, tangents: Tangents::Placeholders };
        let joint = joint(&graph, &options).unwrap();
        let given = inputs(&joint.graph);
        let expected = execute(&joint.graph, &given);
        let default = partition(&joint).unwrap();
        check(&joint, &default, &expected, &given, &format!("seed {seed}, default"));
        let mut last = default.saved_bytes().unwrap();
        for budget in [1.0, 0.75, 0.5, 0.25, 0.0] {
            let p =
                partition_min_cut(&joint, &MinCut { memory_budget: budget, ..MinCut::default() }).unwrap();
            check(&joint, &p, &expected, &given, &format!("seed {seed}, budget {budget}"));
            let bytes = p.saved_bytes().unwrap();
            assert!(bytes <= last, "seed {seed}: {bytes} bytes at {budget}, {last} before");
            smaller += usize::from(bytes < last);
            recomputed += p.recomputed.len();
            last = bytes;
        }
        // Only the buffer's old value cannot be computed from what the backward is given.
        assert!(last <= 128, "seed {seed}: {last} bytes without a budget");
    }
    assert!(smaller > 200 && recomputed > 2000, "{smaller} {recomputed}");
}

/// Two products with arithmetic between them, of this many rows of 256 numbers.
fn layer(rows: usize) -> JointGraph {
    let text = format!(
        r#"fx 1.0

graph "layer" {{
  %x: f32[{rows}, 256] = input "x"
  %w: f32[256, 256] = parameter "w"
  %u: f32[256, 256] = parameter "u"

  %h: f32[{rows}, 256] = prims.matmul(%x, %w)
  %t: f32[{rows}, 256] = prims.tanh(%h)
  %s: f32[{rows}, 256] = prims.sin(%t)
  %y: f32[{rows}, 256] = prims.matmul(%s, %u)
  return %y
}}
"#
    );
    let graph: Graph = text.parse().unwrap();
    joint(&graph, &JointOptions { wrt: Wrt::Parameters, tangents: Tangents::Placeholders }).unwrap()
}

fn recomputed(p: &Partition) -> Vec<&str> {
    p.recomputed.iter().filter_map(|&id| Some(p.backward.nodes[id].as_call()?.0)).collect()
}

#[test]
fn arithmetic_is_recomputed_and_products_are_saved() {
    let (joint, value) = (layer(2048), 2048 * 256 * 4);
    let bytes = |p: &Partition| p.saved_bytes().unwrap();
    let default = partition(&joint).unwrap();
    let cut = partition_min_cut(&joint, &MinCut::default()).unwrap();
    // sin(t) for the gradient of u, t for cos(t) and for 1 - t²; one of them is enough to have both.
    assert_eq!((bytes(&default), bytes(&cut)), (2 * value, value));
    assert!(recomputed(&cut).contains(&"prims.sin"), "{:?}", recomputed(&cut));
    assert!(!recomputed(&cut).contains(&"prims.tanh"), "the nearest cut recomputes least");
    let none = partition_min_cut(&joint, &MinCut { memory_budget: 0.0, ..MinCut::default() }).unwrap();
    assert_eq!(bytes(&none), 0);
    assert!(recomputed(&none).contains(&"prims.matmul"));
}

#[test]
fn small_results_of_slow_operators_are_saved() {
    let joint = layer(8);
    let cached = MinCut { cached: 1 << 20, ..MinCut::default() };
    let (default, cut) = (partition(&joint).unwrap(), partition_min_cut(&joint, &cached).unwrap());
    assert_eq!(cut.saved_bytes(), default.saved_bytes());
    assert!(!recomputed(&cut).contains(&"prims.sin"), "{:?}", recomputed(&cut));
}

/// Without a limit each block's sum would be computed again from those of all blocks before it.
#[test]
fn residuals_are_saved() {
    let mut text = String::from("fx 1.0\n\ngraph \"blocks\" {\n  %x0: f32[1024, 512] = input \"x\"\n");
    let blocks = 4;
    (1..=blocks).for_each(|n| text += &format!("  %w{n}: f32[512, 512] = parameter \"w{n}\"\n"));
    text += "\n";
    for n in 1..=blocks {
        let before = n - 1;
        text += &format!("  %r{n}: f32[1024, 512] = prims.max(%x{before}, 0.0)\n");
        text += &format!("  %h{n}: f32[1024, 512] = prims.matmul(%r{n}, %w{n})\n");
        text += &format!("  %x{n}: f32[1024, 512] = prims.add(%x{before}, %h{n})\n");
    }
    text += &format!("  return %x{blocks}\n}}\n");
    let graph: Graph = text.parse().unwrap();
    let options = JointOptions { wrt: Wrt::Parameters, tangents: Tangents::Placeholders };
    let joint = joint(&graph, &options).unwrap();
    let cut = partition_min_cut(&joint, &MinCut::default()).unwrap();
    assert!(!recomputed(&cut).contains(&"prims.add"), "{:?}", recomputed(&cut));
    assert!(recomputed(&cut).contains(&"prims.max"), "{:?}", recomputed(&cut));
    // The sums of three blocks; the caller keeps the input.
    assert_eq!(cut.saved_bytes(), Some(3 * 1024 * 512 * 4));
}

/// A loss of attention over 64 keys of 8 numbers, with projections before it.
fn attends(dtype: DType) -> JointGraph {
    let mut graph = Graph::new("attends");
    let input = |graph: &mut Graph, name: &str, kind, sizes: &[i64]| {
        let meta = TensorMeta::contiguous(dtype, sizes.iter().map(|&n| SymExpr::from_i64(n)));
        graph.placeholder(kind, name, name, ValueType::Tensor(meta))
    };
    let x = input(&mut graph, "x", InputKind::User, &[2, 4, 64, 8]);
    let weights = ["wq", "wk", "wv"].map(|name| input(&mut graph, name, InputKind::Parameter, &[2, 4, 8, 8]));
    let mut b = Builder::new(&mut graph, "v", OriginId(0));
    let mut args: Vec<Arg> = Vec::new();
    for w in weights {
        args.push(b.call1("prims.matmul", vec![x.into(), w.into()]).unwrap().into());
    }
    args.extend([Arg::None, true.into(), 0.35.into()]);
    let y = b.call1("prims.attention", args).unwrap();
    let y = b.tanh(y).unwrap();
    let loss = b.call1("aten.sum.default", vec![y.into()]).unwrap();
    graph.outputs.push(Output { kind: OutputKind::Loss, arg: Arg::Value(loss) });
    joint(&graph, &JointOptions { wrt: Wrt::Parameters, tangents: Tangents::Loss }).unwrap()
}

#[test]
fn attention_saves_its_sums_and_no_scores() {
    for dtype in [DType::F32, DType::BF16] {
        let joint = attends(dtype);
        let scores = |g: &Graph| {
            let of = |v: &ValueId| g.meta(*v).is_some_and(|m| m.sizes.ends_with(&[64.into(), 64.into()]));
            g.iter().flat_map(|(_, n)| n.outputs.clone()).filter(of).count()
        };
        for p in [partition(&joint), partition_min_cut(&joint, &MinCut::default())].map(Result::unwrap) {
            assert_eq!((scores(&p.forward), scores(&p.backward)), (0, 0));
        }
        // Queries, keys, values and the result, and a number for each row.
        let rows = 2 * 4 * 64;
        let p = partition_min_cut(&joint, &MinCut::default()).unwrap();
        assert_eq!(p.saved_bytes(), Some(rows * 4 + 4 * rows * 8 * dtype.size() as i64));
    }
}

/// A half that is given less than it reads is an error, and never another value.
#[test]
fn a_backward_that_reads_what_nobody_gives_is_no_graph() {
    let options = JointOptions { wrt: Wrt::Parameters, tangents: Tangents::Placeholders };
    let joint = joint(&program(3), &options).unwrap();
    let mut halves = partition(&joint).unwrap();
    let lost = halves.saved.remove(0).placeholder;
    let node = halves.backward.values[lost].def;
    halves.backward.order.retain(|id| *id != node);
    let error = halves.merge().unwrap_err().to_string();
    let name = &halves.backward.values[lost].name;
    assert_eq!(error, format!("`{name}` is read before it is made"));
}
