//! Whole graphs: random ones with random placements, and ones that show what a plan does.

use std::collections::HashMap;

use fx_ir::{Arg, Graph, InputKind, Output, OutputKind, ValueId, ValueType};
use ir_core::{DType, Shape, SymExpr, TensorMeta};
use prims::Builder;
use sharding::{Constraints, Costs, Kind, Link, Mesh, Placement, Plan, localize, propagate};
use tensor::Tensor;

use crate::ranks::{self, Symbols};

/// Numbers that are the same in every run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = tensor::formula::splitmix64(self.0);
        (self.0 % n.max(1) as u64) as usize
    }
    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

fn meta(sizes: &[i64]) -> ValueType {
    ValueType::Tensor(TensorMeta::contiguous(DType::F64, sizes.iter().map(|s| SymExpr::from_i64(*s))))
}

/// A graph that is grown call by call; what an operator refuses is left out.
fn random_graph(rng: &mut Rng) -> Graph {
    let mut graph = Graph::new("random");
    let dims = [1, 2, 3, 4, 5, 6, 8, 12, 24];
    let mut values: Vec<ValueId> = Vec::new();
    for n in 0..3 {
        let rank = 1 + rng.below(3);
        let sizes: Vec<i64> = (0..rank).map(|_| *rng.pick(&dims)).collect();
        let kind = if n == 0 { InputKind::User } else { InputKind::Parameter };
        values.push(graph.placeholder(kind, format!("in{n}"), &format!("in{n}"), meta(&sizes)));
    }
    let origin = graph.add_origin(Default::default());
    for n in 0..12 {
        let name = format!("v{n}");
        let mut b = Builder::new(&mut graph, name, origin);
        if let Ok(v) = random_call(rng, &mut b, &values) {
            values.push(v);
        }
    }
    let last: Vec<ValueId> = values.iter().rev().take(3).copied().collect();
    graph.outputs = last.iter().map(|v| Output { kind: OutputKind::User, arg: (*v).into() }).collect();
    prims::scalars::eliminate_dead(&mut graph);
    graph
}

fn random_call(rng: &mut Rng, b: &mut Builder<'_>, values: &[ValueId]) -> Result<ValueId, prims::OpError> {
    let x = *rng.pick(values);
    let y = *rng.pick(values);
    let sizes = b.sizes(x)?;
    let rank = sizes.len();
    let dim = rng.below(rank);
    match rng.below(16) {
        0 => b.add(x, y),
        1 => b.mul(x, y),
        2 => b.sub(x, 0.5),
        3 => b.tanh(x),
        4 if rank > 0 => b.reduce(kernel_ir::ReduceOp::Sum, x, &[dim], rng.below(2) == 0),
        5 if rank > 0 => b.reduce(kernel_ir::ReduceOp::Max, x, &[dim], true),
        6 if rank > 1 => {
            let mut order: Vec<usize> = (0..rank).collect();
            order.swap(dim, rng.below(rank));
            b.permute(x, &order)
        }
        7 if rank > 1 => {
            let mut joined: Shape = sizes.clone();
            let at = rng.below(rank - 1);
            let second = joined.remove(at + 1);
            joined[at] = &joined[at] * second;
            b.reshape(x, &joined)
        }
        8 if rank > 0 => {
            let n = sizes[dim].as_const().unwrap();
            let mut split: Shape = sizes.clone();
            let parts = if n % 2 == 0 { 2 } else { 1 };
            split[dim] = SymExpr::from_i64(n / parts);
            split.insert(dim, SymExpr::from_i64(parts));
            b.reshape(x, &split)
        }
        15 if rank > 1 => {
            // The outer part of a dimension goes to the one before it, as heads to a batch, or the inner part of that one to it.
            let mut moved: Shape = sizes.clone();
            let at = rng.below(rank - 1);
            let [outer, inner] = [at, at + 1].map(|d| sizes[d].as_const().unwrap());
            let (outer, inner) = match rng.below(2) {
                0 if inner % 2 == 0 => (outer * (inner / 2), 2),
                _ if outer % 2 == 0 => (2, outer / 2 * inner),
                _ => (outer, inner),
            };
            (moved[at], moved[at + 1]) = (SymExpr::from_i64(outer), SymExpr::from_i64(inner));
            b.reshape(x, &moved)
        }
        9 => {
            let (a, b_sizes) = (b.sizes(x)?, b.sizes(y)?);
            if a.len() < 2 || b_sizes.len() != a.len() {
                let y = b.unsqueeze(x, rank)?;
                return b.exp(y).and_then(|y| b.log1p(y));
            }
            b.call1("prims.matmul", vec![x.into(), y.into()])
        }
        10 if rank > 0 => b.call1("prims.cumsum", vec![x.into(), (dim as i64).into()]),
        11 if rank > 0 => b.call1("prims.cat", vec![Arg::values([x, x]), (dim as i64).into()]),
        12 if rank > 0 => {
            let places = random_places(rng, b, &sizes[dim])?;
            b.call1("prims.index", vec![x.into(), Arg::values([places]), (dim as i64).into()])
        }
        13 if rank > 0 => {
            let places = random_places(rng, b, &sizes[dim])?;
            let indices = Arg::values([places]);
            let read = b.call1("prims.index", vec![x.into(), indices.clone(), (dim as i64).into()])?;
            let mode = *rng.pick(&["add", "amax"]);
            b.call1("prims.index_put", vec![x.into(), indices, (dim as i64).into(), read.into(), mode.into()])
        }
        14 if rank > 0 => {
            let place = b.call1("prims.argmax", vec![x.into(), [dim as i64].as_slice().into()])?;
            b.cast(place, DType::F64)
        }
        _ => b.neg(x),
    }
}

/// Indices of a dimension, some of them several times.
fn random_places(rng: &mut Rng, b: &mut Builder<'_>, size: &SymExpr) -> Result<ValueId, prims::OpError> {
    let (count, step) = (1 + rng.below(7) as i64, 1 + rng.below(5) as i64);
    let line = b.call1("prims.iota", vec![count.into(), 0i64.into(), step.into(), DType::I64.into()])?;
    b.rem(line, size.clone())
}

/// Random placements of inputs and outputs.
fn random_constraints(rng: &mut Rng, graph: &Graph, mesh: &Mesh) -> Constraints {
    let mut found = Constraints::default();
    let place = |v: ValueId, rng: &mut Rng| -> Vec<Option<Placement>> {
        let rank = graph.meta(v).unwrap().rank();
        let one = |rng: &mut Rng| match rng.below(3) {
            0 => None,
            1 => Some(Placement::Replicate),
            _ if rank == 0 => None,
            _ => {
                let dim = rng.below(rank);
                let size = graph.meta(v).unwrap().sizes[dim].as_const().unwrap();
                // Two unequal sections, or two equal ones, where all ranks of all axes have parts of both.
                let ranks = mesh.ranks() as i64;
                let first = if rng.below(2) == 0 { size / 2 } else { size / 3 };
                let fits = first > 0 && first % ranks == 0 && (size - first) % ranks == 0;
                Some(match fits && rng.below(2) == 0 {
                    true => Placement::sectioned(dim, [first, size - first].map(SymExpr::from_i64).to_vec()),
                    false => Placement::shard(dim),
                })
            }
        };
        let mut all: Vec<Option<Placement>> = mesh.axes().iter().map(|_| one(rng)).collect();
        // Axes that split one dimension have to agree about its sections, or have whole ones.
        let spec: Vec<Placement> = all.iter().map(|p| p.clone().unwrap_or(Placement::Replicate)).collect();
        let sectioned = all.iter().flatten().find(|p| !p.sections().is_empty()).cloned();
        if let Some(found) = sectioned
            && !(sharding::spec::is_valid(mesh, &spec, &graph.meta(v).unwrap().sizes) && rng.below(2) == 0)
        {
            all.iter_mut().flatten().filter(|p| p.dim() == found.dim()).for_each(|p| *p = found.clone());
        }
        all
    };
    for (v, _, _) in graph.inputs() {
        let fixed = place(v, rng);
        found.values.insert(v, fixed);
    }
    let inner: Vec<ValueId> =
        graph.iter().filter(|(_, n)| n.as_call().is_some()).map(|(_, n)| n.outputs[0]).collect();
    if let Some(v) = (!inner.is_empty()).then(|| *rng.pick(&inner)) {
        let fixed = place(v, rng);
        found.values.insert(v, fixed);
    }
    found
}

#[test]
fn random_graphs_give_the_same_on_every_mesh() {
    let mut exchanges = HashMap::new();
    for seed in 0..400 {
        let mut rng = Rng(seed);
        let graph = random_graph(&mut rng);
        let sizes = |name: &str| -> Vec<usize> {
            let (v, _, _) = graph.inputs().find(|(_, _, n)| *n == name).unwrap();
            graph.meta(v).unwrap().static_sizes().unwrap().iter().map(|s| *s as usize).collect()
        };
        let input = |name: &str| {
            tensor::formula::fill(name, &sizes(name), 1.0, 0.1).unwrap().to_dtype(DType::F64).unwrap()
        };
        let inputs: Vec<Tensor> = graph.inputs().map(|(_, _, name)| input(name)).collect();
        let expected = interp::run(&graph, &inputs).unwrap();
        let mesh: Mesh = rng.pick(&["a=2", "a=3", "a=2,b=2", "a=2,b=3"]).parse().unwrap();
        let fixed = random_constraints(&mut rng, &graph, &mesh);
        // Links without cost favour exchanges, links without bandwidth avoid them: both must be right.
        let costs = match rng.below(3) {
            0 => Costs::default(),
            1 => Costs { operations: 1e3, memory: 1e3, ..Costs::default() },
            _ => Costs { operations: 1e30, memory: 1e30, ..Costs::default() },
        };
        let layout = propagate(&graph, &mesh, &fixed, &costs).unwrap();
        let all = ranks::run(&graph, &mesh, &layout, &input, &Symbols::new());
        let local = localize(&graph, &mesh, &layout, &mesh.coordinates(0)).unwrap();
        local.exchanges.iter().for_each(|e| *exchanges.entry(e.kind).or_insert(0) += 1);
        for got in &all {
            for (n, (g, e)) in got.iter().zip(&expected).enumerate() {
                ranks::assert_close(&format!("seed {seed} {mesh} output {n}\n{graph}"), g, e, 1e-9, 1e-30);
            }
        }
    }
    eprintln!("{exchanges:?}");
    for kind in [Kind::AllGather, Kind::AllReduce, Kind::ReduceScatter, Kind::AllToAll] {
        assert!(exchanges.contains_key(&kind), "{kind:?} is never used");
    }
}

const MLP: &str = "fx 1.0
graph \"mlp\" {
  %x: f32[4, 8] = input \"x\"
  %w1: f32[16, 8] = parameter \"up.weight\"
  %w2: f32[8, 16] = parameter \"down.weight\"

  %t1: f32[8, 16] = prims.permute(%w1, [1, 0])
  %h: f32[4, 16] = prims.matmul(%x, %t1)
  %a: f32[4, 16] = prims.tanh(%h)
  %t2: f32[16, 8] = prims.permute(%w2, [1, 0])
  %y: f32[4, 8] = prims.matmul(%a, %t2)
  return %y
}
";

fn exchanges(text: &str, mesh: &str, plan: &Plan) -> Vec<(String, Kind)> {
    let (graph, mesh): (Graph, Mesh) = (text.parse().unwrap(), mesh.parse().unwrap());
    let fixed = plan.resolve(&graph, &graph, &mesh, &Costs::default()).unwrap();
    let layout = propagate(&graph, &mesh, &fixed, &Costs::default()).unwrap();
    let local = localize(&graph, &mesh, &layout, &mesh.coordinates(1)).unwrap();
    local.exchanges.into_iter().map(|e| (e.value, e.kind)).collect()
}

#[test]
fn a_pair_of_products_takes_one_sum() {
    let mesh: Mesh = "tp=2".parse().unwrap();
    let plan = Plan::usual(&mesh);
    assert_eq!(exchanges(MLP, "tp=2", &plan), [("y".to_owned(), Kind::AllReduce)]);
    let graph: Graph = MLP.parse().unwrap();
    let fixed = plan.resolve(&graph, &graph, &mesh, &Costs::default()).unwrap();
    let of = |name: &str| {
        let (v, _, _) = graph.inputs().find(|(_, _, n)| *n == name).unwrap();
        fixed.values.get(&v).cloned()
    };
    assert_eq!(of("up.weight"), Some(vec![Some(Placement::shard(0))]));
    assert_eq!(of("down.weight"), Some(vec![Some(Placement::shard(1))]));
}

/// What takes less memory in parts is split where the other axis has not, so that one exchange makes it whole, whichever axis is first.
#[test]
fn stored_weights_are_gathered_over_one_axis() {
    let graph: Graph = MLP.parse().unwrap();
    for (text, up, down) in [
        ("fsdp=2,tp=2", ["S(1)", "S(0)"], ["S(0)", "S(1)"]),
        ("tp=2,fsdp=2", ["S(0)", "S(0)"], ["S(1)", "S(0)"]),
    ] {
        let mesh: Mesh = text.parse().unwrap();
        let plan = Plan::usual(&mesh);
        let fixed = plan.resolve(&graph, &graph, &mesh, &Costs::default()).unwrap();
        for (name, placements) in [("up.weight", up), ("down.weight", down)] {
            let (v, _, _) = graph.inputs().find(|(_, _, n)| *n == name).unwrap();
            let of = |p: &str| Some(Placement::shard(p[2..3].parse().unwrap()));
            assert_eq!(fixed.values.get(&v), Some(&placements.map(of).to_vec()), "{text} {name}");
        }
        let weights = exchanges(MLP, text, &plan).into_iter().filter(|(value, _)| value.starts_with('w'));
        let gathers = ["w1", "w2"].map(|value| (value.to_owned(), Kind::AllGather));
        assert_eq!(weights.collect::<Vec<_>>(), gathers, "{text}");
    }
}

/// Queries, keys and values by one weight, with four heads of queries for two of keys, and keys that a cache has.
const FUSED: &str = "fx 1.0
graph \"fused\" {
  %x: f32[3, 8] = input \"x\"
  %w1: f32[16, 8] = parameter \"qkv.weight\"
  %w2: f32[8, 8] = parameter \"out.weight\"
  %c: f32[1, 2, 3, 2] = buffer \"keys\"

  %t1: f32[8, 16] = prims.permute(%w1, [1, 0])
  %h: f32[3, 16] = prims.matmul(%x, %t1)
  %q: f32[3, 8] = prims.slice(%h, 1, 0, 8, 1)
  %k: f32[3, 4] = prims.slice(%h, 1, 8, 4, 1)
  %v: f32[3, 4] = prims.slice(%h, 1, 12, 4, 1)
  %q1: f32[1, 3, 4, 2] = prims.reshape(%q, [1, 3, 4, 2])
  %k1: f32[1, 3, 2, 2] = prims.reshape(%k, [1, 3, 2, 2])
  %v1: f32[1, 3, 2, 2] = prims.reshape(%v, [1, 3, 2, 2])
  %q2: f32[1, 4, 3, 2] = prims.permute(%q1, [0, 2, 1, 3])
  %k2: f32[1, 2, 3, 2] = prims.permute(%k1, [0, 2, 1, 3])
  %v2: f32[1, 2, 3, 2] = prims.permute(%v1, [0, 2, 1, 3])
  %k3: f32[1, 2, 3, 2] = prims.add(%c, %k2)
  %o: f32[1, 4, 3, 2], %s: f32[1, 4, 3] = prims.attention(%q2, %k3, %v2, none, false, 0.5, none, 1.0)
  %o1: f32[1, 3, 4, 2] = prims.permute(%o, [0, 2, 1, 3])
  %o2: f32[3, 8] = prims.reshape(%o1, [3, 8])
  %t2: f32[8, 8] = prims.permute(%w2, [1, 0])
  %y: f32[3, 8] = prims.matmul(%o2, %t2)
  return %y
  return buffer \"keys\" = %k3
}
";

/// Attention as `torch.nn.MultiheadAttention` has it: positions before the batch, and the heads of all sequences in one dimension.
const BATCHED: &str = "fx 1.0
graph \"batched\" {
  %x: f32[4, 5, 8] = input \"x\"
  %w1: f32[24, 8] = parameter \"in.weight\"
  %b1: f32[24] = parameter \"in.bias\"
  %w2: f32[8, 8] = parameter \"out.weight\"

  %x0: f32[5, 4, 8] = prims.permute(%x, [1, 0, 2])
  %t1: f32[8, 24] = prims.permute(%w1, [1, 0])
  %t3: f32[1, 8, 24] = prims.reshape(%t1, [1, 8, 24])
  %t4: f32[5, 8, 24] = prims.expand(%t3, [5, 8, 24])
  %m: f32[5, 4, 24] = prims.matmul(%x0, %t4)
  %b2: f32[5, 4, 24] = prims.expand(%b1, [5, 4, 24])
  %h: f32[5, 4, 24] = prims.add(%m, %b2)
  %u: f32[5, 4, 3, 8] = prims.reshape(%h, [5, 4, 3, 8])
  %p: f32[3, 5, 4, 8] = prims.permute(%u, [2, 0, 1, 3])
  %q: f32[1, 5, 4, 8] = prims.slice(%p, 0, 0, 1, 1)
  %k: f32[1, 5, 4, 8] = prims.slice(%p, 0, 1, 1, 1)
  %v: f32[1, 5, 4, 8] = prims.slice(%p, 0, 2, 1, 1)
  %q1: f32[5, 16, 2] = prims.reshape(%q, [5, 16, 2])
  %k1: f32[5, 16, 2] = prims.reshape(%k, [5, 16, 2])
  %v1: f32[5, 16, 2] = prims.reshape(%v, [5, 16, 2])
  %q2: f32[16, 5, 2] = prims.permute(%q1, [1, 0, 2])
  %k2: f32[16, 5, 2] = prims.permute(%k1, [1, 0, 2])
  %v2: f32[16, 5, 2] = prims.permute(%v1, [1, 0, 2])
  %q3: f32[4, 4, 5, 2] = prims.reshape(%q2, [4, 4, 5, 2])
  %k3: f32[4, 4, 5, 2] = prims.reshape(%k2, [4, 4, 5, 2])
  %v3: f32[4, 4, 5, 2] = prims.reshape(%v2, [4, 4, 5, 2])
  %o: f32[4, 4, 5, 2], %s: f32[4, 4, 5] = prims.attention(%q3, %k3, %v3, none, false, 0.5, none, 1.0)
  %o1: f32[4, 5, 4, 2] = prims.permute(%o, [0, 2, 1, 3])
  %o2: f32[4, 5, 8] = prims.reshape(%o1, [4, 5, 8])
  %t2: f32[8, 8] = prims.permute(%w2, [1, 0])
  %t5: f32[1, 8, 8] = prims.reshape(%t2, [1, 8, 8])
  %t6: f32[4, 8, 8] = prims.expand(%t5, [4, 8, 8])
  %y: f32[4, 5, 8] = prims.matmul(%o2, %t6)
  return %y
}
";

/// Checks that `tp:auto` gives these placements on two ranks with one sum as the only exchange, and that the ranks' results are
/// those of the whole.
fn assert_pair(text: &str, placements: &[(&str, Placement)]) {
    let (graph, mesh): (Graph, Mesh) = (text.parse().unwrap(), "tp=2".parse().unwrap());
    let plan = Plan::usual(&mesh);
    assert_eq!(exchanges(text, "tp=2", &plan), [("y".to_owned(), Kind::AllReduce)]);
    let fixed = plan.resolve(&graph, &graph, &mesh, &Costs::default()).unwrap();
    for (name, placement) in placements {
        let (v, _, _) = graph.inputs().find(|(_, _, n)| n == name).unwrap();
        assert_eq!(fixed.values.get(&v), Some(&vec![Some(placement.clone())]), "{name}");
    }
    assert_values(text, "tp=2");
    // Three ranks would not have equal shares of the heads.
    let three: Mesh = "tp=3".parse().unwrap();
    assert!(plan.resolve(&graph, &graph, &three, &Costs::default()).unwrap().values.is_empty());
}

/// Checks that ranks with the usual plan give what the whole program gives.
fn assert_values(text: &str, mesh: &str) {
    let (graph, mesh): (Graph, Mesh) = (text.parse().unwrap(), mesh.parse().unwrap());
    let fixed = Plan::usual(&mesh).resolve(&graph, &graph, &mesh, &Costs::default()).unwrap();
    let layout = propagate(&graph, &mesh, &fixed, &Costs::default()).unwrap();
    let input = |name: &str| {
        let (v, _, _) = graph.inputs().find(|(_, _, n)| *n == name).unwrap();
        let sizes = graph.meta(v).unwrap().static_sizes().unwrap();
        let sizes: Vec<usize> = sizes.iter().map(|s| *s as usize).collect();
        tensor::formula::fill(name, &sizes, 1.0, 0.1).unwrap()
    };
    let given: Vec<Tensor> = graph.inputs().map(|(_, _, name)| input(name)).collect();
    let expected = interp::run(&graph, &given).unwrap();
    for got in ranks::run(&graph, &mesh, &layout, &input, &HashMap::new()) {
        ranks::assert_close(&format!("{} {mesh}", graph.name), &got[0], &expected[0], 1e-5, 1e-30);
    }
}

fn sectioned(sizes: [i64; 3]) -> Placement {
    Placement::sectioned(0, sizes.map(SymExpr::from_i64).to_vec())
}

#[test]
fn a_fused_weight_is_split_by_its_sections_and_a_cache_by_heads() {
    let keys = ("keys", Placement::shard(1));
    assert_pair(FUSED, &[("qkv.weight", sectioned([8, 4, 4])), ("out.weight", Placement::shard(1)), keys]);
}

#[test]
fn attention_whose_batch_lies_outside_of_the_heads_is_split_with_its_bias() {
    let (sections, rows) = (sectioned([8, 8, 8]), Placement::shard(1));
    assert_pair(BATCHED, &[("in.weight", sections.clone()), ("in.bias", sections), ("out.weight", rows)]);
    // Another axis has sequences of the batch, whole sections of the dimension in which the heads of all are.
    for mesh in ["dp=2,tp=2", "tp=2,dp=2", "tp=2,dp=4"] {
        let plan = Plan::usual(&mesh.parse().unwrap());
        let mut found: Vec<&str> =
            exchanges(BATCHED, mesh, &plan).iter().map(|(_, kind)| kind.name()).collect();
        found.sort_unstable();
        assert_eq!(found, ["all_gather", "all_reduce"], "of the result, {mesh}");
        assert_values(BATCHED, mesh);
    }
}

#[test]
fn a_plan_may_name_sections() {
    let (graph, mesh): (Graph, Mesh) = (MLP.parse().unwrap(), "tp=2".parse().unwrap());
    let parsed = |text: &str| -> Result<Option<Vec<Option<Placement>>>, sharding::ShardingError> {
        let plan = Plan::parse(&format!("[placements]\n\"up.weight\" = \"{text}\""))?;
        let fixed = plan.resolve(&graph, &graph, &mesh, &Costs::default())?;
        propagate(&graph, &mesh, &fixed, &Costs::default())?;
        let (v, _, _) = graph.inputs().find(|(_, _, n)| *n == "up.weight").unwrap();
        Ok(fixed.values.get(&v).cloned())
    };
    let sections = Placement::sectioned(0, [12, 4].map(SymExpr::from_i64).to_vec());
    assert_eq!(parsed("tp=S(0 in 12+4)").unwrap(), Some(vec![Some(sections)]));
    for wrong in ["tp=S(0 in 12+5)", "tp=S(0 in 13+3)", "tp=S(0 in 16+0)", "tp=S(0 in )", "tp=S(0 in -4+20)"]
    {
        assert!(parsed(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_batch_in_parts_takes_no_exchange_but_that_of_the_result() {
    let plan = Plan::usual(&"dp=2".parse().unwrap());
    assert_eq!(exchanges(MLP, "dp=2", &plan), [("y".to_owned(), Kind::AllGather)]);
}

#[test]
fn stored_weights_are_gathered_and_not_what_is_computed_with_them() {
    let plan = Plan::usual(&"fsdp=2".parse().unwrap());
    let found = exchanges(MLP, "fsdp=2", &plan);
    let (gathered, result) = found.split_at(found.len() - 1);
    let weights = ["w1", "w2"].map(|name| (name.to_owned(), Kind::AllGather));
    assert_eq!(gathered, weights);
    assert_eq!(result, [("y".to_owned(), Kind::AllGather)]);
}

/// A layer over sequences that stand before the batch, as attention of PyTorch has them: rows of its products are those of the
/// batch in every position.
const BATCH_SECOND: &str = "fx 1.0
graph \"second\" {
  %x: f32[4, 20, 8] = input \"x\"
  %w: f32[8, 8] = parameter \"w\"
  %c: f32[8] = parameter \"c\"

  %p: f32[20, 4, 8] = prims.permute(%x, [1, 0, 2])
  %r: f32[80, 8] = prims.reshape(%p, [80, 8])
  %t: f32[8, 8] = prims.permute(%w, [1, 0])
  %m: f32[80, 8] = prims.matmul(%r, %t)
  %e: f32[80, 8] = prims.expand(%c, [80, 8])
  %s: f32[80, 8] = prims.add(%m, %e)
  %b: f32[20, 4, 8] = prims.reshape(%s, [20, 4, 8])
  %y: f32[4, 20, 8] = prims.permute(%b, [1, 0, 2])
  return %y
}
";

#[test]
fn a_batch_in_the_second_place_takes_no_other_exchange() {
    let (graph, mesh): (Graph, Mesh) = (BATCH_SECOND.parse().unwrap(), "dp=2".parse().unwrap());
    let plan = Plan::usual(&mesh);
    assert_eq!(exchanges(BATCH_SECOND, "dp=2", &plan), [("y".to_owned(), Kind::AllGather)]);
    let fixed = plan.resolve(&graph, &graph, &mesh, &Costs::default()).unwrap();
    let layout = propagate(&graph, &mesh, &fixed, &Costs::default()).unwrap();
    let input = |name: &str| {
        let sizes: &[usize] = match name {
            "x" => &[4, 20, 8],
            "w" => &[8, 8],
            _ => &[8],
        };
        tensor::formula::fill(name, sizes, 1.0, 0.1).unwrap()
    };
    // The bias is broadcast to the rows that a rank has, not copied out of those that all have.
    let local = localize(&graph, &mesh, &layout, &mesh.coordinates(1)).unwrap();
    let mut calls = local.graph.iter().filter_map(|(_, node)| node.as_call());
    assert!(calls.all(|(target, _)| target != "prims.cat"), "{}", local.graph);
    let expected = interp::run(&graph, &[input("x"), input("w"), input("c")]).unwrap();
    for got in ranks::run(&graph, &mesh, &layout, &input, &HashMap::new()) {
        ranks::assert_close("second", &got[0], &expected[0], 1e-5, 1e-30);
    }
}

#[test]
fn what_a_plan_names_must_exist() {
    let graph: Graph = MLP.parse().unwrap();
    let mesh: Mesh = "dp=2".parse().unwrap();
    let resolve = |text: &str| {
        Plan::parse(text).and_then(|p| p.resolve(&graph, &graph, &mesh, &Costs::default())).map(drop)
    };
    assert!(resolve("[placements]\n\"*.weight\" = \"dp=S(0)\"").is_ok());
    let wrong = resolve("[placements]\n\"*.bias\" = \"dp=S(0)\"").unwrap_err().to_string();
    assert!(wrong.contains("*.bias"), "{wrong}");
    let wrong = resolve("[placements]\n\"x\" = \"tp=S(0)\"").unwrap_err().to_string();
    assert!(wrong.contains("no axis `tp`"), "{wrong}");
    let mut plan = Plan::default();
    plan.place("x", "dp=S(2)").unwrap();
    let fixed = plan.resolve(&graph, &graph, &mesh, &Costs::default()).unwrap();
    let wrong = propagate(&graph, &mesh, &fixed, &Costs::default()).unwrap_err().to_string();
    assert!(wrong.contains("`x`") && wrong.contains("not possible"), "{wrong}");
}

#[test]
fn symbolic_and_uneven_sizes() {
    let mut graph = Graph::new("symbolic");
    let symbol = |name: &str| ir_core::Symbol {
        name: name.into(),
        min: 1,
        max: Some(1000),
        hint: Some(6),
        unbacked: false,
    };
    let (b, s) =
        (SymExpr::sym(graph.add_symbol(symbol("batch"))), SymExpr::sym(graph.add_symbol(symbol("length"))));
    let ty = |sizes: &[SymExpr]| ValueType::Tensor(TensorMeta::contiguous(DType::F64, sizes.iter().cloned()));
    let x = graph.placeholder(InputKind::User, "x", "x", ty(&[b.clone(), s.clone(), 8.into()]));
    let w = graph.placeholder(InputKind::Parameter, "w", "w", meta(&[8, 6]));
    let origin = graph.add_origin(Default::default());
    let mut build = Builder::new(&mut graph, "y", origin);
    let rows = build.reshape(x, &[&b * &s, 8.into()]).unwrap();
    let y = build.call1("prims.matmul", vec![rows.into(), w.into()]).unwrap();
    let y = build.reshape(y, &[b.clone(), s.clone(), 2.into(), 3.into()]).unwrap();
    let y = build.permute(y, &[0, 2, 1, 3]).unwrap();
    let sum = build.reduce(kernel_ir::ReduceOp::Sum, y, &[0], false).unwrap();
    graph.outputs = [y, sum].iter().map(|v| Output { kind: OutputKind::User, arg: (*v).into() }).collect();
    for (mesh, plan) in [
        ("dp=2", "[placements]\nx = \"dp=S(0)\""),
        ("dp=3", "[placements]\nx = \"dp=S(1)\""),
        ("dp=2,tp=2", "[placements]\nx = \"dp=S(0)\"\nw = \"tp=S(1)\""),
        ("dp=2,tp=4", "[placements]\nx = \"dp=S(0), tp=S(1)\"\nw = \"tp=S(0)\""),
        ("a=2,b=2", "[placements]\nx = \"a=S(0), b=S(0)\""),
    ] {
        let mesh: Mesh = mesh.parse().unwrap();
        let fixed = Plan::parse(plan).unwrap().resolve(&graph, &graph, &mesh, &Costs::default()).unwrap();
        let layout = propagate(&graph, &mesh, &fixed, &Costs::default()).unwrap();
        for (batch, length) in [(1, 1), (2, 3), (5, 7), (4, 2), (7, 1)] {
            let input = |name: &str| {
                let sizes: &[usize] = if name == "x" { &[batch, length, 8] } else { &[8, 6] };
                tensor::formula::fill(name, sizes, 1.0, 0.0).unwrap().to_dtype(DType::F64).unwrap()
            };
            let expected = interp::run(&graph, &[input("x"), input("w")]).unwrap();
            let symbols: Symbols =
                [(b.as_sym().unwrap(), batch as i64), (s.as_sym().unwrap(), length as i64)]
                    .into_iter()
                    .collect();
            for got in ranks::run(&graph, &mesh, &layout, &input, &symbols) {
                for (g, e) in got.iter().zip(&expected) {
                    ranks::assert_close(&format!("{mesh} {plan} {batch} {length}"), g, e, 1e-12, 1e-30);
                }
            }
        }
    }
}

/// Scores of a vocabulary of 101 words and the most likely one.
const SCORES: &str = "fx 1.0
graph \"scores\" {
  %x: f32[6, 4] = input \"x\"
  %w: f32[101, 4] = parameter \"head.weight\"

  %t: f32[4, 101] = prims.permute(%w, [1, 0])
  %s: f32[6, 101] = prims.matmul(%x, %t)
  %y: i64[6] = prims.argmax(%s, [1])
  return %y
}
";

/// Where ranks exchange bytes and no calls are saved, the positions of the largest scores take two numbers a row: the score and the
/// position. Ties and `NaN` are as on whole tensors.
#[test]
fn the_most_likely_word_of_a_vocabulary_in_parts() {
    let graph: Graph = SCORES.parse().unwrap();
    let mut plan = Plan::default();
    plan.place("head.weight", "tp=S(0)").unwrap();
    plan.links.insert("tp".to_owned(), Link { latency: 0.0, ..Link::default() });
    for (mesh, ranks) in [("tp=2", 2.0), ("tp=4", 4.0), ("tp=5", 5.0)] {
        let mesh: Mesh = mesh.parse().unwrap();
        let costs = plan.costs(&mesh).unwrap();
        let fixed = plan.resolve(&graph, &graph, &mesh, &costs).unwrap();
        let layout = propagate(&graph, &mesh, &fixed, &costs).unwrap();
        let local = localize(&graph, &mesh, &layout, &mesh.coordinates(1)).unwrap();
        let found: Vec<(Kind, f64)> = local.exchanges.iter().map(|e| (e.kind, e.bytes)).collect();
        let sent = |bytes: f64| 2.0 * (ranks - 1.0) / ranks * bytes;
        assert_eq!(found, [(Kind::AllReduce, sent(24.0)), (Kind::AllReduce, sent(48.0))], "{}", local.graph);
        let input = |name: &str| {
            if name == "x" {
                let rows = [
                    [1.0f32, 0.0, 0.0, 0.0],
                    [0.0, 1.0, 0.0, 0.0],
                    [0.0, 0.0, 1.0, 0.0],
                    [0.0, 0.0, 0.0, 0.0],
                    [-1.0, 0.0, 0.0, 0.0],
                    [0.0, 0.0, 0.0, 1.0],
                ];
                return Tensor::from_vec(rows.concat(), &[6, 4]).unwrap();
            }
            // The largest first scores stand in several parts, the third one is nowhere a number but at its end.
            let word = |n: usize| [(n % 4) as f32, n as f32, -(n as f32), ((n * 7) % 101) as f32];
            Tensor::from_vec((0..101).flat_map(word).collect(), &[101, 4]).unwrap()
        };
        let nan = |name: &str| {
            let whole = input(name);
            if name == "x" {
                return whole;
            }
            let mut data = whole.to_vec::<f32>().unwrap();
            data[90 * 4 + 3] = f32::NAN;
            Tensor::from_vec(data, &[101, 4]).unwrap()
        };
        for given in [&input as &dyn Fn(&str) -> Tensor, &nan] {
            let expected = interp::run(&graph, &[given("x"), given("head.weight")]).unwrap();
            for got in ranks::run(&graph, &mesh, &layout, given, &Symbols::new()) {
                ranks::assert_close("words", &got[0], &expected[0], 0.0, 1e-30);
            }
        }
    }
}

/// A table of which rows are read, and a product with the same one or with another: what `tp:auto` makes of them by their sizes.
fn language_model(words: i64, width: i64, tokens: i64, tied: bool) -> String {
    let head = if tied { "" } else { &format!("  %h: f32[{words}, {width}] = parameter \"head\"\n") };
    let last = if tied { "e" } else { "h" };
    format!(
        "fx 1.0\ngraph \"lm\" {{\n  %e: f32[{words}, {width}] = parameter \"embed\"\n{head}  %i: i64[{tokens}] = input \"i\"\n\n  \
         %x: f32[{tokens}, {width}] = prims.index(%e, [%i], 0)\n  %y: f32[{tokens}, {width}] = prims.tanh(%x)\n  \
         %t: f32[{width}, {words}] = prims.permute(%{last}, [1, 0])\n  \
         %s: f32[{tokens}, {words}] = prims.matmul(%y, %t)\n  return %s\n}}\n"
    )
}

#[test]
fn tables_are_split_where_that_costs_less() {
    let placed_by = |plan: &Plan, text: &str, mesh: &str| -> Vec<(String, Option<Placement>)> {
        let (graph, mesh): (Graph, Mesh) = (text.parse().unwrap(), mesh.parse().unwrap());
        let fixed = plan.resolve(&graph, &graph, &mesh, &plan.costs(&mesh).unwrap()).unwrap();
        let parameters = graph.inputs().filter(|(_, kind, _)| *kind == InputKind::Parameter);
        parameters
            .map(|(v, _, name)| (name.to_owned(), fixed.values.get(&v).and_then(|f| f[0].clone())))
            .collect()
    };
    let placed = |text: &str, mesh: &str| placed_by(&Plan::usual(&mesh.parse().unwrap()), text, mesh);
    let one = |name: &str, dim: Option<usize>| (name.to_owned(), dim.map(Placement::shard));
    // One token: the scores are few bytes beside the weight that a rank need not read.
    let found = placed(&language_model(50257, 768, 1, false), "tp=4");
    assert_eq!(found, [one("embed", Some(0)), one("head", Some(0))]);
    // Parts of a row that stay parts until the product need one exchange, a sum and gathered scores are two.
    assert_eq!(placed(&language_model(50257, 768, 1, true), "tp=4"), [one("embed", Some(1))]);
    // A small table is read in less time than an exchange takes: that of a classifier, that of a tiny vocabulary.
    assert_eq!(
        placed(&language_model(1000, 2048, 32, false), "tp=4"),
        [one("embed", None), one("head", None)]
    );
    assert_eq!(placed(&language_model(1000, 64, 1, true), "tp=2"), [one("embed", None)]);
    // Of many rows the parts are half the bytes of the summands.
    assert_eq!(placed(&language_model(50257, 768, 1024, false), "tp=4")[0], one("embed", Some(1)));
    // Many scores of narrow rows are more expensive to gather than to compute.
    let found = placed(&language_model(50257, 16, 4096, false), "tp=2");
    assert_eq!(found[1], one("head", None));
    // Fewer words than ranks, or a rank without any; of links whose exchanges cost their bytes alone small tables are split too.
    let mesh: Mesh = "tp=4".parse().unwrap();
    let mut plan = Plan::usual(&mesh);
    plan.links.insert("tp".to_owned(), Link { latency: 0.0, ..Link::default() });
    assert_eq!(placed_by(&plan, &language_model(3, 4096, 1, true), "tp=4"), [one("embed", Some(1))]);
    let mut plan = Plan::usual(&"tp=2".parse().unwrap());
    plan.place("embed", "tp=R").unwrap();
    let (graph, mesh): (Graph, Mesh) =
        (language_model(50257, 768, 1, true).parse().unwrap(), "tp=2".parse().unwrap());
    let fixed = plan.resolve(&graph, &graph, &mesh, &Costs::default()).unwrap();
    assert!(
        fixed.values.values().flatten().flatten().all(|p| *p == Placement::Replicate),
        "what a user fixes stays"
    );
}

#[test]
fn a_plan_tells_what_links_cost() {
    let plan = Plan::parse("use = [\"ddp\"]\n[links]\ndp = { latency = 5e-5 }\n").unwrap();
    let costs = plan.costs(&"dp=2,tp=2".parse().unwrap()).unwrap();
    assert_eq!(costs.links, [Link { latency: 5e-5, ..Link::default() }, Link::default()]);
    let wrong = |text: &str, mesh: &str| {
        let plan = Plan::parse(text).map_err(|e| e.to_string());
        plan.and_then(|p| p.costs(&mesh.parse().unwrap()).map_err(|e| e.to_string())).unwrap_err()
    };
    let missing = wrong("[links]\ndp = { latency = 5e-5 }\n", "tp=2");
    assert!(missing.contains("no axis `dp`"), "{missing}");
    for figures in ["latency = -1.0", "latency = nan", "bandwidth = 0.0", "bandwidth = nan"] {
        let found = wrong(&format!("[links]\ntp = {{ {figures} }}\n"), "tp=2");
        assert!(found.contains("`tp`") && found.contains("bandwidth above 0"), "{figures}: {found}");
    }
    assert!(wrong("[links]\ntp = { speed = 1.0 }\n", "tp=2").contains("speed"));
}
