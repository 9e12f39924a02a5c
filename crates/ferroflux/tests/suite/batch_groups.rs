//! Batch norm with the statistics of each group of samples: against two halves of the batch on one device, and on meshes, where
//! each rank has a group, against one device with as many groups.

use std::num::NonZeroU32;

use ferroflux::fx_ir::Graph;
use ferroflux::mesh::{BatchNorm, LaidOut, Mesh, Plan, layout, step_layout};
use ferroflux::optim::{Optimizer, Sgd};
use ferroflux::train::TrainOptions;
use ferroflux::{DType, Options, Program, Tensor};

use crate::mesh::{Filled, alone, as_rank, assert_close, golden, inputs, on_mesh};

const RATE: f64 = 0.05;

/// What the batch norms of a model have.
#[derive(Clone, Copy)]
struct Norms {
    affine: bool,
    tracked: bool,
    dtype: &'static str,
    /// Dimensions behind the channels.
    space: usize,
}

const USUAL: Norms = Norms { affine: true, tracked: true, dtype: "f32", space: 2 };

/// Two convolutions of 1 in every direction, each with a batch norm; the loss is the mean of the result times `t`.
fn model(batch: usize, norms: Norms) -> Program {
    let Norms { affine, tracked, dtype, space } = norms;
    let list = |n: &str| format!("[{}]", vec![n; space].join(", "));
    let tail = |n: usize| vec![n.to_string(); space].iter().map(|s| format!(", {s}")).collect::<String>();
    let (mut inputs, mut calls) = (String::new(), String::new());
    let mut from = ("x".to_owned(), 3);
    for (layer, channels) in [("a", 4), ("b", 6)] {
        let of = |what: &str, kind: &str, sizes: &str, dtype: &str| {
            format!("  %{layer}_{what}: {dtype}[{sizes}] = {kind} \"{layer}.{what}\"\n")
        };
        inputs += &of("conv_weight", "parameter", &format!("{channels}, {}{}", from.1, tail(1)), dtype);
        let sizes = channels.to_string();
        let mut operands = ["none"; 4].map(str::to_owned).to_vec();
        if affine {
            inputs += &of("weight", "parameter", &sizes, dtype);
            inputs += &of("bias", "parameter", &sizes, dtype);
            operands[..2].clone_from_slice(&[format!("%{layer}_weight"), format!("%{layer}_bias")]);
        }
        if tracked {
            inputs += &of("running_mean", "buffer", &sizes, "f32");
            inputs += &of("running_var", "buffer", &sizes, "f32");
            operands[2..]
                .clone_from_slice(&[format!("%{layer}_running_mean"), format!("%{layer}_running_var")]);
        }
        let whole = format!("{dtype}[{batch}, {channels}{}]", tail(5));
        let (one, zero) = (list("1"), list("0"));
        calls += &format!(
            "  %{layer}_c: {whole} = aten.convolution.default(%{}, %{layer}_conv_weight, none, {one}, {zero}, {one}, false, {zero}, 1)\n",
            from.0
        );
        calls += &format!(
            "  %{layer}_n: {whole} = aten.batch_norm.default(%{layer}_c, {}, true, 0.1, 1e-5, true)\n",
            operands.join(", ")
        );
        calls += &format!("  %{layer}_r: {whole} = aten.relu.default(%{layer}_n)\n");
        from = (format!("{layer}_r"), channels);
    }
    let last = format!("{dtype}[{batch}, 6{}]", tail(5));
    let text = format!(
        "fx 1.0\ngraph \"norms\" {{\n{inputs}  %x: {dtype}[{batch}, 3{}] = input \"x\"\n  %t: {last} = input \"t\"\n\n{calls}  \
         %p: {last} = aten.mul.Tensor(%b_r, %t)\n  %q: {dtype}[] = aten.mean.default(%p)\n  return %q\n}}\n",
        tail(5)
    );
    program(&text)
}

fn program(text: &str) -> Program {
    let graph: Graph = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
    Program::from_graph(graph, &Filled).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn groups(n: u32) -> BatchNorm {
    BatchNorm::Groups(NonZeroU32::new(n).unwrap())
}

fn in_groups(n: u32) -> Options {
    alone().batch_norm(groups(n))
}

fn sgd() -> TrainOptions {
    TrainOptions::new(Optimizer::Sgd(Sgd::default()))
}

type Weights = std::collections::BTreeMap<String, Tensor>;

/// Losses of steps, and the state behind them: parameters and running statistics.
fn trained(program: &Program, given: &[Tensor], options: &Options, steps: usize) -> (Vec<f64>, Weights) {
    let mut step = program.train_step(&sgd(), options).unwrap_or_else(|e| panic!("{e}"));
    let losses = (0..steps).map(|_| step.step(given, RATE).unwrap_or_else(|e| panic!("{e}")).loss).collect();
    (losses, step.weights().unwrap())
}

fn halves(given: &[Tensor], half: usize) -> Vec<Tensor> {
    let part = |t: &Tensor| {
        let n = t.sizes()[0] / 2;
        t.narrow(0, half * n, n).and_then(|t| t.contiguous()).unwrap()
    };
    given.iter().map(part).collect()
}

fn mean(a: &Tensor, b: &Tensor) -> Tensor {
    let all: Vec<f64> = a.iter_f64().zip(b.iter_f64()).map(|(a, b)| (a + b) / 2.0).collect();
    Tensor::from_vec(all, a.sizes()).unwrap().to_dtype(a.dtype()).unwrap()
}

/// A step over two groups is the mean of steps over the halves of the batch; running statistics are the first half's.
fn is_the_mean_of_halves(norms: Norms, tolerance: f64) {
    let whole = model(8, norms);
    let half = model(4, norms);
    let given = inputs(&whole);
    let (losses, weights) = trained(&whole, &given, &in_groups(2), 1);
    let each = [0, 1].map(|n| trained(&half, &halves(&given, n), &alone(), 1));
    let loss = (each[0].0[0] + each[1].0[0]) / 2.0;
    assert!((losses[0] - loss).abs() <= tolerance * loss.abs().max(1e-3), "{losses:?}, not {loss}");
    let wide = trained(&whole, &given, &alone(), 1).1;
    let mut differ = false;
    for (name, got) in &weights {
        let (first, second) = (&each[0].1[name], &each[1].1[name]);
        let expected = if name.contains("running") { first.clone() } else { mean(first, second) };
        assert_close(name, got, &expected, (tolerance, 1e-3));
        differ |= got.iter_f64().zip(wide[name].iter_f64()).any(|(a, b)| (a - b).abs() > 1e-6);
    }
    assert!(differ, "the whole batch has other statistics");
}

#[test]
fn two_groups_are_the_mean_of_two_halves() {
    for space in 1..4 {
        is_the_mean_of_halves(Norms { space, ..USUAL }, 1e-5);
    }
    is_the_mean_of_halves(Norms { affine: false, ..USUAL }, 1e-5);
    is_the_mean_of_halves(Norms { tracked: false, ..USUAL }, 1e-5);
    is_the_mean_of_halves(Norms { affine: false, tracked: false, space: 1, ..USUAL }, 1e-5);
    is_the_mean_of_halves(Norms { dtype: "bf16", ..USUAL }, 2e-2);
}

/// Every form of the operator that archives and graphs have.
#[test]
fn every_form_of_batch_norm_is_in_groups() {
    let tracked = "%w, %b, %m, %v";
    let forms = [
        ("aten.batch_norm.default", format!("{tracked}, true, 0.1, 1e-5, true"), "f32[8, 3, 5]"),
        (
            "aten.cudnn_batch_norm.default",
            format!("{tracked}, true, 0.1, 1e-5"),
            "f32[8, 3, 5], %s: f32[3], %i: f32[3], %r: u8[0]",
        ),
        (
            "aten.native_batch_norm.default",
            format!("{tracked}, true, 0.1, 1e-5"),
            "f32[8, 3, 5], %s: f32[3], %i: f32[3]",
        ),
        (
            "aten._native_batch_norm_legit.default",
            format!("{tracked}, true, 0.1, 1e-5"),
            "f32[8, 3, 5], %s: f32[3], %i: f32[3]",
        ),
        (
            "aten._native_batch_norm_legit.no_stats",
            "%w, %b, true, 0.1, 1e-5".into(),
            "f32[8, 3, 5], %s: f32[3], %i: f32[3]",
        ),
        (
            "aten._batch_norm_with_update.default",
            format!("{tracked}, 0.1, 1e-5"),
            "f32[8, 3, 5], %s: f32[3], %i: f32[3], %r: u8[0]",
        ),
        (
            "aten._native_batch_norm_legit_functional.default",
            format!("{tracked}, true, 0.1, 1e-5"),
            "f32[8, 3, 5], %s: f32[3], %i: f32[3], %nm: f32[3], %nv: f32[3]",
        ),
    ];
    let of = |target: &str, args: &str, results: &str, n: usize| {
        let results = results.replace("f32[8", &format!("f32[{n}"));
        program(&format!(
            "fx 1.0\ngraph \"form\" {{\n  %w: f32[3] = parameter \"w.weight\"\n  %b: f32[3] = parameter \"b\"\n  %m: f32[3] = buffer \"m\"\n  \
             %v: f32[3] = buffer \"v\"\n  %x: f32[{n}, 3, 5] = input \"x\"\n\n  %y: {results} = {target}(%x, {args})\n  return %y\n}}\n"
        ))
    };
    for (target, args, results) in &forms {
        let (whole, half) = (of(target, args, results, 8), of(target, args, results, 4));
        let given = inputs(&whole);
        let call = |p: &Program, given: &[Tensor], options: &Options| {
            p.compile(options).unwrap_or_else(|e| panic!("{target}: {e}")).call(given).unwrap().remove(0)
        };
        let got = call(&whole, &given, &in_groups(2));
        for n in 0..2 {
            let expected = call(&half, &halves(&given, n), &alone());
            let got = halves(std::slice::from_ref(&got), n).remove(0);
            assert_close(target, &got, &expected, (1e-5, 1e-3));
        }
    }
}

/// Statistics of single samples are those of instance norm already, and evaluation has none of a batch.
#[test]
fn instance_norm_and_evaluation_stay() {
    for call in [
        "aten.instance_norm.default(%x, none, none, %m, %v, true, 0.1, 1e-5, true)",
        "aten.batch_norm.default(%x, none, none, %m, %v, false, 0.1, 1e-5, true)",
    ] {
        let program = program(&format!(
            "fx 1.0\ngraph \"g\" {{\n  %m: f32[3] = buffer \"m\"\n  %v: f32[3] = buffer \"v.weight\"\n  %x: f32[5, 3, 4] = input \"x\"\n\n  \
             %y: f32[5, 3, 4] = {call}\n  return %y\n}}\n"
        ));
        let given = inputs(&program);
        let run = |options: &Options| program.compile(options).unwrap().call(&given).unwrap().remove(0);
        assert_close(call, &run(&in_groups(2)), &run(&alone()), (0.0, 1e-3));
    }
}

/// Each rank has a group: what the mesh trains is what one device trains with as many groups.
fn trains_as_groups(name: &str, program: &Program, given: &[Tensor], meshes: &[(&str, u32)], tolerance: f64) {
    for (mesh, n) in meshes {
        let (expected, weights) = trained(program, given, &in_groups(*n), 3);
        let all = on_mesh(mesh, &format!("groups of {name}"), |member| {
            trained(program, given, &as_rank(member).batch_norm(BatchNorm::Rank), 3)
        });
        for (rank, (losses, own)) in all.iter().enumerate() {
            for (l, e) in losses.iter().zip(&expected) {
                assert!(
                    (l - e).abs() <= tolerance * e.abs().max(1e-2),
                    "{name} {mesh} rank {rank}: {losses:?}, not {expected:?}"
                );
            }
            for (parameter, e) in &weights {
                let what = format!("{name} {mesh} rank {rank} {parameter}");
                assert_close(&what, &own[parameter], e, (tolerance * 10.0, 1e-3));
            }
        }
    }
}

#[test]
fn a_mesh_trains_as_one_device_does_with_groups() {
    let meshes = [("dp=2", 2), ("fsdp=2", 2), ("dp=2,tp=2", 2), ("dp=2,fsdp=2", 4), ("tp=2", 1)];
    let norms = [
        USUAL,
        Norms { affine: false, ..USUAL },
        Norms { tracked: false, space: 1, ..USUAL },
        Norms { space: 3, ..USUAL },
    ];
    for (n, norms) in norms.into_iter().enumerate() {
        let program = model(8, norms);
        let meshes = if n == 0 { &meshes[..] } else { &meshes[..1] };
        trains_as_groups(&format!("norms {n}"), &program, &inputs(&program), meshes, 1e-4);
    }
    let half = model(8, Norms { dtype: "bf16", ..USUAL });
    trains_as_groups("norms in bf16", &half, &inputs(&half), &meshes[..1], 2e-2);
}

#[test]
fn a_residual_network_trains_as_one_device_does_with_groups() {
    let Some(program) = golden("train/resnet18_narrow") else { return };
    trains_as_groups("resnet18_narrow", &program, &inputs(&program), &[("dp=2", 2), ("fsdp=2", 2)], 2e-4);
}

/// Groups that several ranks share, and ranks that have several groups.
#[test]
fn groups_are_the_same_on_any_mesh() {
    let program = model(8, USUAL);
    let given = inputs(&program);
    for (mesh, n) in [("dp=4", 2), ("dp=2", 4)] {
        let (expected, weights) = trained(&program, &given, &in_groups(n), 2);
        for (losses, own) in on_mesh(mesh, "groups of any ranks", |member| {
            trained(&program, &given, &as_rank(member).batch_norm(groups(n)), 2)
        }) {
            assert!((losses[1] - expected[1]).abs() <= 1e-4, "{n} on {mesh}: {losses:?}, not {expected:?}");
            weights.iter().for_each(|(name, e)| assert_close(name, &own[name], e, (1e-3, 1e-3)));
        }
    }
}

fn with(mesh: &str, statistics: BatchNorm) -> (Mesh, Plan) {
    let mesh: Mesh = mesh.parse().unwrap();
    let plan = Plan { batch_norm: statistics, ..Plan::usual(&mesh) };
    (mesh, plan)
}

fn of_step(program: &Program, mesh: &str, statistics: BatchNorm) -> LaidOut {
    let (mesh, plan) = with(mesh, statistics);
    step_layout(program, &sgd(), &mesh, Some(&plan)).unwrap_or_else(|e| panic!("{e}"))
}

/// Of its batch norms a step exchanges the two running statistics of each alone, beside each gradient once.
fn exchanges_are_of_gradients(program: &Program, norms: &str) {
    let names = |kind: fn(&str) -> bool| program.exported().weights.iter().filter(|w| kind(&w.name)).count();
    let running = names(|n| n.contains("running_"));
    let gradients = names(|n| !n.contains("running_") && !n.contains("num_batches"));
    let found = of_step(program, "dp=2", BatchNorm::Rank);
    let list: Vec<String> = found.moved.iter().map(|m| format!("{} of {}", m.kind, m.name)).collect();
    let of_norms = found.moved.iter().filter(|m| m.name.contains(norms)).count();
    assert_eq!(of_norms, running, "{list:#?}");
    // Beside gradients: the loss, and how many samples a cross entropy counts.
    assert!((gradients..gradients + 3).contains(&(list.len() - running)), "{gradients} gradients: {list:#?}");
    assert!(found.moved.iter().all(|m| m.kind == "all_reduce"), "{list:#?}");
}

#[test]
fn no_statistics_are_exchanged_in_a_small_network() {
    exchanges_are_of_gradients(&model(8, USUAL), "_n");
    let (mesh, plan) = with("dp=2", BatchNorm::Rank);
    let untracked = layout(&model(8, Norms { tracked: false, ..USUAL }), &mesh, Some(&plan)).unwrap();
    assert_eq!(untracked.moved.len(), 1, "the loss alone: {:?}", untracked.moved);
}

#[test]
fn no_statistics_are_exchanged_in_a_residual_network() {
    if let Some(program) = golden("train/resnet18_narrow") {
        exchanges_are_of_gradients(&program, "batch_norm");
    }
}

#[test]
fn batches_that_are_not_divisible_are_refused() {
    let error = model(6, USUAL).compile(&in_groups(4)).err().unwrap().to_string();
    assert!(error.contains("2 of the model's batch norms") && error.contains("`a_n`"), "{error}");
    assert!(error.contains("a batch of 6 samples is not divisible into 4 groups"), "{error}");
    let (mesh, plan) = with("dp=4", BatchNorm::Rank);
    let error = layout(&model(6, USUAL), &mesh, Some(&plan)).err().unwrap().to_string();
    assert!(error.contains("into 4 groups"), "{error}");
}

fn symbolic(batch: &str) -> Program {
    program(&format!(
        "fx 1.0\ngraph \"g\" {{\n  symbol s0 \"s\" 2..=64 hint 4\n  %x: f32[{batch}, 3, 4] = input \"x\"\n\n  \
         %y: f32[{batch}, 3, 4] = aten.batch_norm.default(%x, none, none, none, none, true, 0.1, 1e-5, true)\n  return %y\n}}\n"
    ))
}

#[test]
fn batches_of_symbols_are_divisible_for_all_of_them() {
    let error = symbolic("s0").compile(&in_groups(2)).err().unwrap().to_string();
    assert!(error.contains("a batch of s samples is not divisible into 2 groups for all sizes"), "{error}");
    let data = (0..72).map(|n| f64::from(n % 17)).collect();
    let given = [Tensor::from_vec(data, &[6, 3, 4]).and_then(|t| t.to_dtype(DType::F32)).unwrap()];
    let got = symbolic("2*s0").compile(&in_groups(2)).unwrap().call(&given).unwrap();
    let any = symbolic("s0").compile(&alone()).unwrap();
    for n in 0..2 {
        let expected = any.call(&halves(&given, n)).unwrap();
        assert_close("a half of six samples", &halves(&got, n)[0], &expected[0], (1e-5, 1e-3));
    }
}

/// A batch behind another dimension is no group of consecutive samples of any rank.
#[test]
fn groups_that_ranks_do_not_have_are_refused() {
    let program = program(
        "fx 1.0\ngraph \"g\" {\n  %x: f32[4, 6, 3] = input \"x\"\n\n  %t: f32[6, 4, 3] = aten.permute.default(%x, [1, 0, 2])\n  \
         %r: f32[24, 3] = aten.reshape.default(%t, [24, 3])\n  \
         %y: f32[24, 3] = aten.batch_norm.default(%r, none, none, none, none, true, 0.1, 1e-5, true)\n  return %y\n}\n",
    );
    let (mesh, plan) = with("dp=2", BatchNorm::Rank);
    let error = layout(&program, &mesh, Some(&plan)).err().map(|e| e.to_string());
    assert!(
        error.as_ref().is_some_and(|e| e.contains("not in parts over `dp`") && e.contains("`y")),
        "{error:?}"
    );
    // Groups are computed on any placement.
    let given = inputs(&program);
    let expected = program.compile(&in_groups(2)).unwrap().call(&given).unwrap();
    for got in on_mesh("dp=2", "groups across ranks", |member| {
        program.compile(&as_rank(member).batch_norm(groups(2))).unwrap().call(&given).unwrap()
    }) {
        assert_close("groups across ranks", &got[0], &expected[0], (1e-5, 1e-3));
    }
}
