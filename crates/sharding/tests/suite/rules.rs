//! Every way of every prim's sharding rule, on the prim's own samples: the parts of all ranks give what the whole call gives.

use std::collections::HashMap;

use fx_ir::{Arg, Graph, InputKind, NodeId, Output, OutputKind, ValueId, ValueType};
use ir_core::{SymExpr, TensorMeta};
use prims::shard_rule::{self, operands};
use prims::{Builder, Call, Kind, LowerCall, Samples, ShardRule, Way};
use sharding::{Choice, Layout, Mesh, Placement, Spec, spec};
use tensor::Tensor;

use crate::ranks;

/// The graph of a sample: a placeholder for each tensor, and the call.
fn graph_of(op: &'static prims::Op, tensors: &[Tensor], args: &[Arg]) -> Graph {
    let mut graph = Graph::new("sample");
    for (n, t) in tensors.iter().enumerate() {
        let sizes = t.sizes().iter().map(|s| SymExpr::from_i64(*s as i64));
        let ty = ValueType::Tensor(TensorMeta::contiguous(t.dtype(), sizes));
        graph.placeholder(InputKind::User, format!("in{n}"), &format!("in{n}"), ty);
    }
    let origin = graph.add_origin(Default::default());
    let outs = Builder::new(&mut graph, "out", origin).call_op(op, args.to_vec()).unwrap();
    graph.outputs = outs.iter().map(|v| Output { kind: OutputKind::User, arg: (*v).into() }).collect();
    graph
}

/// The layout in which the only call is spread in one way along the first axis.
fn layout(graph: &Graph, mesh: &Mesh, way: &prims::Way) -> Layout {
    let mut layout = Layout::default();
    let whole = spec::whole(mesh);
    let placed = |v: ValueId, placement: &Placement| -> Spec {
        let mut spec = whole.clone();
        spec[0] = placement.clone();
        spec::normalize(mesh, &mut spec, &graph.meta(v).unwrap().sizes);
        spec
    };
    let id = *graph.order.last().unwrap();
    let (_, args) = graph.nodes[id].as_call().unwrap();
    let outs = &graph.nodes[id].outputs;
    let choice = Choice {
        operands: operands(args).iter().zip(&way.operands).map(|(v, p)| placed(*v, p)).collect(),
        results: outs.iter().zip(&way.results).map(|(v, p)| placed(*v, p)).collect(),
    };
    graph.inputs().for_each(|(v, _, _)| drop(layout.values.insert(v, whole.clone())));
    outs.iter().zip(&choice.results).for_each(|(v, s)| drop(layout.values.insert(*v, s.clone())));
    layout.calls.insert(id, choice);
    layout.outputs = graph.outputs.iter().map(|_| whole.clone()).collect();
    layout
}

#[test]
fn every_way_of_every_rule_gives_the_whole() {
    let (mut ways_run, mut with_ways, mut without) = (0, 0, Vec::new());
    for op in prims::all().iter().filter(|op| op.is_prim()) {
        let Kind::Prim { shard, .. } = &op.def.kind else { continue };
        if matches!(shard, ShardRule::Local) {
            continue;
        }
        let mut samples = Samples::default();
        (op.def.samples)(&mut samples);
        let mut of_op = 0;
        for sample in samples.list {
            // Kernels and meshes know only real numbers.
            if sample.tensors.iter().any(|t| t.dtype().is_complex()) {
                continue;
            }
            let graph = graph_of(op, &sample.tensors, &sample.args);
            if graph
                .outputs
                .iter()
                .any(|o| matches!(&o.arg, Arg::Value(v) if graph.meta(*v).unwrap().dtype.is_complex()))
            {
                continue;
            }
            of_op += check(op, &graph, &sample.tensors);
        }
        ways_run += of_op;
        if of_op > 0 { with_ways += 1 } else { without.push(op.target.as_str()) }
    }
    eprintln!("{ways_run} ways of {with_ways} prims; none of {without:?}");
    assert!(with_ways > 100 && without.len() < 12, "{without:?}");
}

/// The ways, and each with the first dimension that it splits in two sections of different sizes, where the blocks are enough.
fn with_sections(graph: &Graph, id: NodeId, ways: Vec<Way>) -> Vec<Way> {
    let (target, args) = graph.nodes[id].as_call().unwrap();
    let values = operands(args);
    let size = |v: ValueId, dim: usize| graph.meta(v).unwrap().sizes[dim].as_const();
    let mut all = Vec::new();
    for way in ways {
        let split = values.iter().zip(&way.operands).find_map(|(v, p)| Some((*v, p, p.dim()?)));
        if let Some((v, of, dim)) = split
            && let Placement::Shard { unit, .. } = of
            && let Some(size) = size(v, dim)
        {
            let first = unit.as_const().unwrap() * 2;
            let sections = [first, size - first].map(SymExpr::from_i64).to_vec();
            all.extend(way.refined(of, &Placement::sectioned(dim, sections)));
        }
        all.push(way);
    }
    // Ways that depend on the operand's sections.
    let call = LowerCall {
        call: Call { op: prims::lookup(target).unwrap(), args },
        graph,
        outs: &graph.nodes[id].outputs,
    };
    for (n, v) in values.iter().enumerate() {
        for dim in 0..graph.meta(*v).unwrap().rank() {
            let Some(size) = size(*v, dim) else { continue };
            for sections in [[2, 2, size - 4], [4, 2, size - 6]] {
                let mut placed = vec![Placement::Replicate; values.len()];
                placed[n] = Placement::sectioned(dim, sections.map(SymExpr::from_i64).to_vec());
                all.extend(shard_rule::sectioned_ways(&call, &placed).unwrap());
            }
        }
    }
    all
}

fn check(op: &'static prims::Op, graph: &Graph, tensors: &[Tensor]) -> usize {
    let id = *graph.order.last().unwrap();
    let Some((_, args)) = graph.nodes[id].as_call() else { return 0 };
    let outs = &graph.nodes[id].outputs;
    let ways = shard_rule::ways(&LowerCall { call: Call { op, args }, graph, outs }).unwrap();
    let expected = interp::run(graph, tensors).unwrap();
    let named: HashMap<String, Tensor> =
        tensors.iter().enumerate().map(|(n, t)| (format!("in{n}"), t.clone())).collect();
    let mut run = 0;
    for way in &with_sections(graph, id, ways) {
        // No call makes these of whole tensors.
        let open = |p: &Placement| {
            matches!(p, Placement::Partial(kernel_ir::Combine::Max | kernel_ir::Combine::Min))
        };
        if way.operands.iter().any(open) {
            continue;
        }
        for mesh in ["a=2", "a=3", "a=5"] {
            let mesh: Mesh = mesh.parse().unwrap();
            let layout = layout(graph, &mesh, way);
            let sizes = |v: &ValueId| graph.meta(*v).unwrap().sizes.clone();
            let choice = &layout.calls[&id];
            let placed = || {
                operands(args)
                    .into_iter()
                    .zip(&choice.operands)
                    .chain(outs.iter().copied().zip(&choice.results))
            };
            if way.even && placed().any(|(v, s)| !spec::is_even(&mesh, s, &sizes(&v))) {
                continue;
            }
            let invalid = placed().find(|(v, s)| !spec::is_valid(&mesh, s, &sizes(v)));
            if let Some((v, s)) = invalid {
                // Sections are for equal parts alone.
                let sectioned = placed().any(|(_, s)| !s[0].sections().is_empty());
                assert!(sectioned, "{}: {way:?} for sizes {:?} as {s:?}", op.target, sizes(&v));
                continue;
            }
            let all = ranks::run(graph, &mesh, &layout, &|name| named[name].clone(), &HashMap::new());
            for (rank, got) in all.iter().enumerate() {
                for (g, e) in got.iter().zip(&expected) {
                    let what = format!("{} {mesh} rank {rank} {way:?}", op.target);
                    ranks::assert_close(&what, g, e, 1e-5, 1e-30);
                }
            }
            run += 1;
        }
    }
    run
}
