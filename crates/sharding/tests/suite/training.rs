//! The training cases of the corpus, where it is next to the project: loss and gradients of the joint graph on meshes, against
//! one rank.

use std::collections::{HashMap, HashSet};

use aot_autograd::passes::{PassCx, optimize};
use aot_autograd::{JointOptions, Tangents, Wrt, batch_groups, functionalize, joint};
use fx_ir::{Graph, InputKind, NodeId, OutputKind};
use sharding::{Costs, Mesh, Plan, propagate, spec};
use tensor::Tensor;
use testing::cases::{Cases, corpus};

use crate::ranks::{self, Symbols};

/// Forward and joint graph of a case.
fn graphs(name: &str) -> Option<(Graph, Graph)> {
    graphs_in(name, 1)
}

/// The same with the statistics of batch norms over this many groups of samples.
fn graphs_in(name: &str, groups: u32) -> Option<(Graph, Graph)> {
    let mut zip = Cases::open(&corpus()?.join(format!("train/{name}.zip"))).unwrap();
    let archive = zip.archive(&zip.names()[0]).unwrap();
    let captured = pt2::Archive::from_bytes(archive).and_then(|a| a.program(None)).unwrap().graph;
    let functional = functionalize(&captured).unwrap_or_else(|e| panic!("{}", e[0]));
    let functional = batch_groups(&functional, groups).unwrap_or_else(|e| panic!("{}", e[0]));
    let mut prims = prims::decompose(&functional).unwrap_or_else(|e| panic!("{}", e[0]));
    optimize(&mut prims, &PassCx::before_joint());
    let options = JointOptions { wrt: Wrt::Parameters, tangents: Tangents::Loss };
    let mut joint = joint(&prims, &options).unwrap_or_else(|e| panic!("{e}"));
    joint.optimize(&PassCx::training());
    Some((prims, joint.graph))
}

/// Inputs by a formula: small numbers, indices that are in range of any table.
fn inputs(graph: &Graph) -> HashMap<String, Tensor> {
    let given = graph.inputs().map(|(v, kind, name)| {
        let meta = graph.meta(v).unwrap();
        let sizes: Vec<usize> = meta.static_sizes().unwrap().iter().map(|&s| s as usize).collect();
        let salt = name.bytes().map(u64::from).sum::<u64>();
        let whole = !meta.dtype.is_float();
        let at = |i: usize| {
            let n = (i as u64 * 7919 + salt * 31) % 101;
            match (whole, kind) {
                (true, _) => (n % 2) as f64,
                // Variances among them.
                (false, InputKind::Buffer { .. }) => 0.5 + n as f64 / 101.0,
                _ => (n as f64 / 101.0 - 0.5) * 0.3,
            }
        };
        let data: Vec<f64> = (0..sizes.iter().product()).map(at).collect();
        (name.to_owned(), Tensor::from_vec(data, &sizes).unwrap().to_dtype(meta.dtype).unwrap())
    });
    given.collect()
}

fn check(name: &str, meshes: &[&str]) {
    let Some((forward, graph)) = graphs(name) else { return };
    let given = inputs(&graph);
    let list: Vec<Tensor> = graph.inputs().map(|(_, _, n)| given[n].clone()).collect();
    let expected = interp::run(&graph, &list).unwrap();
    meshes.iter().for_each(|mesh| on_mesh((name, mesh), (&forward, &graph), &given, &expected));
}

fn on_mesh(
    (name, mesh): (&str, &str),
    (forward, graph): (&Graph, &Graph),
    given: &HashMap<String, Tensor>,
    expected: &[Tensor],
) {
    let mesh: Mesh = mesh.parse().unwrap();
    let plan = Plan::usual(&mesh);
    let fixed = plan.resolve(graph, forward, &mesh, &Costs::default()).unwrap();
    let layout = propagate(graph, &mesh, &fixed, &Costs::default()).unwrap();
    let split = fixed.values.len();
    let local = sharding::localize(graph, &mesh, &layout, &mesh.coordinates(0)).unwrap();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    local.exchanges.iter().for_each(|e| *counts.entry(e.kind.name()).or_insert(0) += 1);
    eprintln!("{name} {mesh}: {split} placed, {counts:?}, on whole tensors: {:?}", layout.gathered);
    if std::env::var_os("SHOW_EXCHANGES").is_some() {
        local.exchanges.iter().for_each(|e| eprintln!("  {:?}", e));
    }
    // Gradients that are zero but for rounding (of a bias before a normalisation) are judged by the others.
    let floor = 1e-3 * expected.iter().map(ranks::largest).fold(0.0, f64::max);
    let all = ranks::run(graph, &mesh, &layout, &|n| given[n].clone(), &Symbols::new());
    for (rank, got) in all.iter().enumerate() {
        for (n, (g, e)) in got.iter().zip(expected).enumerate() {
            let part = spec::part(&mesh, &layout.outputs[n], &sizes(e), &mesh.coordinates(rank));
            let e = ranks::cut(e, &part, &Symbols::new());
            let kind: &OutputKind = &graph.outputs[n].kind;
            ranks::assert_close(&format!("{name} {mesh} rank {rank} {kind:?}"), g, &e, 2e-4, floor);
        }
    }
}

fn sizes(t: &Tensor) -> Vec<ir_core::SymExpr> {
    t.sizes().iter().map(|s| (*s as i64).into()).collect()
}

const MESHES: [&str; 4] = ["dp=2", "fsdp=2", "tp=2", "dp=2,tp=2"];

#[test]
fn an_mlp_on_meshes() {
    check("mlp", &["dp=2", "fsdp=2", "tp=2", "dp=2,tp=2", "dp=3"]);
}

#[test]
fn a_causal_transformer_on_meshes() {
    check("gpt2_tiny", &MESHES);
}

#[test]
fn a_transformer_of_words_on_meshes() {
    check("bert_tiny", &MESHES);
}

#[test]
fn a_transformer_of_patches_on_meshes() {
    check("vit_tiny", &MESHES);
}

#[test]
fn other_networks_on_meshes() {
    ["dlrm", "gcn", "lstm"].into_iter().for_each(|name| check(name, &MESHES));
}

/// Collectives that a call depends on, by name.
fn behind(graph: &Graph, of: NodeId) -> Vec<String> {
    let (mut wanted, mut found) = (HashSet::from([of]), Vec::new());
    for (id, node) in graph.iter().rev().filter(|(_, node)| node.as_call().is_some()) {
        if wanted.contains(&id) {
            node.for_each_use(&mut |v| _ = wanted.insert(graph.values[v].def));
            if node.as_call().is_some_and(|(target, _)| target == "prims.all_reduce") {
                found.push(graph.node_name(id).to_owned());
            }
        }
    }
    found
}

/// With the statistics of each rank's samples no convolution waits for those of another rank, forward or backward; with those of
/// the whole batch nearly all do.
#[test]
fn convolutions_wait_for_no_statistics_of_other_ranks() {
    let waiting = |groups: u32| {
        let (forward, graph) = graphs_in("resnet18_narrow", groups)?;
        let mesh: Mesh = "dp=2".parse().unwrap();
        let fixed = Plan::usual(&mesh).resolve(&graph, &forward, &mesh, &Costs::default()).unwrap();
        let layout = propagate(&graph, &mesh, &fixed, &Costs::default()).unwrap();
        sharding::check_batch_norms(&graph, &mesh, &layout, (groups, &[0])).unwrap();
        let local = sharding::localize(&graph, &mesh, &layout, &[1]).unwrap().graph;
        let is_conv = |id: &NodeId| local.nodes[*id].as_call().is_some_and(|(t, _)| t.contains("conv"));
        let convs: Vec<NodeId> = local.order.iter().copied().filter(is_conv).collect();
        let waits = |id: &&NodeId| behind(&local, **id).iter().any(|name| name.contains("batch_norm"));
        Some((convs.iter().filter(waits).count(), convs.len()))
    };
    let (Some((own, all)), Some((whole, _))) = (waiting(2), waiting(1)) else { return };
    assert_eq!(own, 0, "of {all} convolutions");
    assert!(whole * 10 >= all * 9, "{whole} of {all} convolutions wait for the whole batch");
}
