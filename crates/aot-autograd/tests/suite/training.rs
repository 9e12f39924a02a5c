//! The training cases of the corpus, where it is next to the project: what the min-cut partition saves, next to what
//! PyTorch's saves, and that halves and merged graph give what the joint graph gives.

#![allow(clippy::unwrap_used)] // a failing test may panic

use aot_autograd::passes::{PassCx, optimize};
use aot_autograd::{
    JointGraph, JointOptions, MinCut, Tangents, Wrt, functionalize, joint, partition, partition_min_cut,
};
use fx_ir::{Graph, InputKind};
use interp::Value;
use tensor::Tensor;
use testing::cases::{Cases, corpus};

/// Bytes of tensors saved for the backward by PyTorch 2.11's `min_cut_rematerialization_partition` with inductor's
/// decompositions, parameters and inputs apart.
const PYTORCH: [(&str, i64); 11] = [
    ("bert_tiny", 139652),
    ("convnext_tiny2", 783282),
    ("dlrm", 4452),
    ("gcn", 6244),
    ("gpt2_tiny", 164100),
    ("lstm", 67588),
    ("mlp", 17604),
    ("mobilenet_v2", 1505924),
    ("resnet18_narrow", 3393348),
    ("unet", 1786244),
    ("vit_tiny", 239524),
];

/// The captured loss graph of a case.
fn captured(name: &str) -> Option<Graph> {
    let mut zip = Cases::open(&corpus()?.join(format!("train/{name}.zip"))).unwrap();
    let archive = zip.archive(&zip.names()[0]).unwrap();
    Some(pt2::Archive::from_bytes(archive).and_then(|a| a.program(None)).unwrap().graph)
}

/// The joint graph, with and without passes.
fn joint_of(captured: &Graph, passes: bool) -> JointGraph {
    let functional = functionalize(captured).unwrap_or_else(|e| panic!("{}", e[0]));
    let mut prims = prims::decompose(&functional).unwrap_or_else(|e| panic!("{}", e[0]));
    if passes {
        optimize(&mut prims, &PassCx::before_joint());
    }
    let options = JointOptions { wrt: Wrt::Parameters, tangents: Tangents::Loss };
    let mut joint = joint(&prims, &options).unwrap_or_else(|e| panic!("{e}"));
    if passes {
        joint.optimize(&PassCx::training());
        fx_ir::well_formed(&joint.graph).unwrap_or_else(|e| panic!("{}", e[0]));
    }
    joint
}

#[test]
fn at_most_what_pytorch_saves() {
    let mut failures = Vec::new();
    for (name, pytorch) in PYTORCH {
        let Some(graph) = captured(name) else { return };
        let joint = joint_of(&graph, true);
        let bytes = |budget| {
            let p =
                partition_min_cut(&joint, &MinCut { memory_budget: budget, ..MinCut::default() }).unwrap();
            fx_ir::well_formed(&p.merge().unwrap()).unwrap_or_else(|e| panic!("{name}: {}", e[0]));
            p.saved_bytes().unwrap()
        };
        let all = [1.0, 0.5, 0.25, 0.0].map(bytes);
        let default = partition(&joint).unwrap().saved_bytes().unwrap();
        eprintln!("{name}: default {default}, min-cut at budgets 1, 1/2, 1/4, 0: {all:?}; PyTorch {pytorch}");
        assert!(all.is_sorted_by(|a, b| a >= b) && default >= all[0], "{name}: {default} {all:?}");
        assert!(all[1] * 2 <= all[0] && all[2] * 4 <= all[0], "{name}: budgets are kept: {all:?}");
        if all[0] > pytorch {
            failures.push(format!("{name}: {} bytes, PyTorch {pytorch}", all[0]));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Inputs by a formula: small numbers, indices that are in range of any table.
fn inputs(graph: &Graph) -> Vec<(String, Value)> {
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
                _ => n as f64 / 101.0 - 0.5,
            }
        };
        let data: Vec<f64> = (0..sizes.iter().product()).map(at).collect();
        let tensor = Tensor::from_vec(data, &sizes).unwrap().to_dtype(meta.dtype).unwrap();
        (name.to_owned(), Value::Tensor(tensor))
    });
    given.collect()
}

fn execute(graph: &Graph, given: &[(String, Value)]) -> Vec<Vec<f64>> {
    let of = |name: &str| given.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone()).unwrap();
    let inputs = graph.inputs().map(|(_, _, name)| of(name)).collect();
    let outs = interp::execute(graph, inputs).unwrap_or_else(|e| panic!("{e}")).outputs;
    outs.iter().map(|v| v.as_tensor().map_or(Vec::new(), |t| t.iter_f64().collect())).collect()
}

fn close(a: &[Vec<f64>], b: &[Vec<f64>], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    // Gradients that are zero but for rounding are judged by the largest of all.
    let largest = a.iter().flatten().fold(0.0f64, |m, x| m.max(x.abs()));
    for (n, (x, y)) in a.iter().zip(b).enumerate() {
        let scale = x.iter().fold(1e-3 * largest, |m, x| m.max(x.abs()));
        let far = x.iter().zip(y).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
        assert!(far <= 1e-4 * scale && x.len() == y.len(), "{what}, result {n}: {far} of {scale}");
    }
}

#[test]
fn training_steps_compute_the_same_in_halves() {
    for name in ["mlp", "dlrm", "gcn", "vit_tiny", "mobilenet_v2", "lstm", "bert_tiny"] {
        let Some(graph) = captured(name) else { return };
        let plain = joint_of(&graph, false);
        let given = inputs(&plain.graph);
        let expected = execute(&plain.graph, &given);
        let joint = joint_of(&graph, true);
        close(&expected, &execute(&joint.graph, &given), &format!("{name}, passes"));
        for budget in [1.0, 0.3] {
            let p =
                partition_min_cut(&joint, &MinCut { memory_budget: budget, ..MinCut::default() }).unwrap();
            let mut merged = p.merge().unwrap();
            close(&expected, &execute(&merged, &given), &format!("{name}, merged at {budget}"));
            optimize(&mut merged, &PassCx::training());
            close(&expected, &execute(&merged, &given), &format!("{name}, merged and optimized at {budget}"));
        }
    }
}

/// A step in mixed precision: the loss is that of the step in single precision to the precision of the narrow type, and
/// every gradient has its parameter's type.
#[test]
fn training_steps_in_mixed_precision() {
    use aot_autograd::{Mixed, autocast};
    use ir_core::{AutocastDevice, DType};
    for (name, _) in PYTORCH {
        let Some(graph) = captured(name) else { return };
        let functional = functionalize(&graph).unwrap_or_else(|e| panic!("{}", e[0]));
        for device in [AutocastDevice::Cpu, AutocastDevice::Cuda] {
            for dtype in [DType::BF16, DType::F16] {
                let what = format!("{name}, {dtype} for {device:?}");
                let mixed = Mixed { device, whole: Some(dtype) };
                let cast = autocast(&functional, mixed).unwrap_or_else(|e| panic!("{what}: {}", e[0]));
                fx_ir::well_formed(&cast).unwrap_or_else(|e| panic!("{what}: {}", e[0]));
                let prims = prims::decompose(&cast).unwrap_or_else(|e| panic!("{what}: {}", e[0]));
                let options = JointOptions { wrt: Wrt::Parameters, tangents: Tangents::Loss };
                let mut mixed = joint(&prims, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
                mixed.optimize(&PassCx::training());
                for &(v, g) in &mixed.gradients {
                    let dtype = |v| mixed.graph.meta(v).map(|m| m.dtype);
                    assert!(g.is_none_or(|g| dtype(g) == dtype(v)), "{what}");
                }
                let narrow = mixed.graph.values.values().filter_map(|v| v.ty.as_tensor());
                assert!(narrow.filter(|m| m.dtype == dtype).count() > 3, "{what}: nothing is narrow");
                if ["mlp", "vit_tiny"].contains(&name) {
                    let given = inputs(&mixed.graph);
                    let (wide, got) =
                        (execute(&joint_of(&graph, false).graph, &given), execute(&mixed.graph, &given));
                    let (a, b) = (wide[0][0], got[0][0]);
                    assert!((a - b).abs() <= 0.02 * a.abs(), "{what}: loss {b}, in single precision {a}");
                }
            }
        }
    }
}
