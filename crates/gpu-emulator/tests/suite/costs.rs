//! Candidates are chosen by the cost model of a target, and those that it cannot tell apart are timed; without a model the
//! rule chooses. Choices that timing found are kept for each class of steps. What the built-in model chooses for products of any
//! size computes them. Timing every candidate of a step, from which models are made.

use std::sync::Arc;

use gpu_codegen::{Costs, Model, TERMS, Target};
use gpu_emulator::Emulator;
use gpu_runtime::{Compiled, CostModel, DeviceMemory, Mode, Settings, measure};
use kernel_ir::Program;
use plugin_sdk::{TensorView, bf16};

use crate::present::available;

/// A product of rows, columns and inner points; `transposed` says that the right operand is contiguous along the inner ones.
fn sized([m, n, k]: [usize; 3], transposed: bool) -> Program {
    let right = if transposed { [1, k] } else { [n, 1] };
    let shape = if transposed { [n, k] } else { [k, n] };
    format!(
        r#"kir 1.3
program "product"
buffer b0 "a" bf16[{m}, {k}]{{{k}, 1}}+0 input 0
buffer b1 "b" bf16[{}, {}]{{{}, 1}}+0 input 1
buffer b2 "y" bf16[{m}, {n}]{{{n}, 1}}+0 output
input "a" b0
input "b" b1
output "y" b2[{m}, {n}]{{{n}, 1}}+0
init:
steps:
matmul "m" acc f32
  a b0[{m}, {k}]{{{k}, 1}}+0
  b b1[{k}, {n}]{{{}, {}}}+0
  epilogue [{m}, {n}]
    v0: f32 = template
    v1: bf16 = cast v0
    v2: bf16 = store b2[i0, i1], v1
plan bytes 0:
"#,
        shape[0], shape[1], shape[1], right[0], right[1]
    )
    .parse()
    .unwrap()
}

fn product() -> Program {
    sized([192; 3], false)
}

/// A made-up model in which a kind takes as many microseconds for each launch, and the same time for what it computes.
fn costs(kinds: &[(&str, f64)]) -> CostModel {
    let mut text = "ferroflux costs 1\narchitecture sm_90\n".to_owned();
    for (kind, us) in kinds {
        text.push_str(&format!("kind {kind}\nerror 0.5\nlaunch {us}e-6\ncompute 1e-9\n"));
        TERMS[2..].iter().for_each(|term| text.push_str(&format!("{term} 0\n")));
    }
    CostModel::Given(Costs(Arc::new(Model::parse(&text).unwrap())))
}

/// The implementation that is chosen on a new device, after a call whose result is compared with a loop.
fn chosen(costs: CostModel, mode: Mode) -> String {
    let memory = DeviceMemory::new(Arc::new(Emulator::new(Target::HOPPER)));
    run(&memory, ([192; 3], false), Settings { costs, mode, ..Settings::default() })
}

/// The same on a device, for a product of these sizes and layout.
fn run(
    memory: &Arc<DeviceMemory<Emulator>>,
    (sizes @ [m, n, k], transposed): ([usize; 3], bool),
    settings: Settings,
) -> String {
    let settings = Settings { profile: 1, ..settings };
    let mut code = Compiled::with(memory, sized(sizes, transposed), settings).unwrap();
    code.bind(&[]).unwrap();
    let values = |count: usize, salt: usize| -> Vec<bf16> {
        (0..count).map(|i| bf16::from_f32(((i * 7919 + salt) % 17) as f32 - 8.0)).collect()
    };
    let (a, b) = (values(m * k, 1), values(k * n, 5));
    let of_right = if transposed { [n, k] } else { [k, n] };
    let shapes = [[m, k], of_right].map(|sizes| (sizes.map(|s| s as i64), [sizes[1] as i64, 1]));
    let inputs = [(&a, &shapes[0]), (&b, &shapes[1])].map(|(x, (sizes, strides))| {
        TensorView::from_slice(&x[..], ir_core::DType::BF16, sizes, strides).unwrap()
    });
    let mut got = Vec::new();
    for _ in 0..2 {
        got = code.execute(&inputs).unwrap();
    }
    // SAFETY: the tensor is contiguous with this many numbers, and memory of the emulated device is host memory.
    let got = unsafe { std::slice::from_raw_parts(got[0].as_mut_ptr().cast::<bf16>(), m * n) };
    let right = |q: usize, j: usize| b[if transposed { j * k + q } else { q * n + j }].to_f64();
    for (i, j) in [(0, 0), (m / 3, n - 1), (m - 1, n - 1), (m / 2, n / 5)] {
        let sum: f64 = (0..k).map(|q| a[i * k + q].to_f64() * right(q, j)).sum();
        assert!((got[i * n + j].to_f64() - sum).abs() <= sum.abs() / 256.0, "{sizes:?} at {i}, {j}");
    }
    code.profile()[0].implementation.clone()
}

#[test]
fn the_model_chooses_and_without_one_the_rule_does() {
    if !available() {
        return;
    }
    let kinds = |mma: f64, wgmma: f64| {
        [("mma", mma), ("wgmma", wgmma), ("wgmma_persistent", wgmma + 50.0), ("library", 90.0)]
    };
    for mode in [Mode::Default, Mode::ReduceOverhead] {
        assert!(chosen(costs(&kinds(1.0, 9.0)), mode).starts_with("mma_"));
        assert!(chosen(costs(&kinds(9.0, 1.0)), mode).starts_with("wgmma_"));
    }
    // Other architectures, and a model that does not know a kind, leave it to the rule.
    let by_rule = chosen(CostModel::Off, Mode::Default);
    assert_eq!(chosen(CostModel::BuiltIn, Mode::Default), by_rule);
    assert_eq!(chosen(costs(&kinds(1.0, 9.0)[..2]), Mode::Default), by_rule);
}

#[test]
fn every_candidate_of_a_step_is_timed() {
    if !available() {
        return;
    }
    let memory = DeviceMemory::new(Arc::new(Emulator::new(Target::HOPPER)));
    let measured = measure(&memory, &[(product(), Settings::default())]).unwrap();
    let [program] = &measured[..] else { panic!("one program") };
    let [step] = &program.steps[..] else { panic!("one step") };
    let variants = gpu_codegen::variants(&product(), &product().steps[0], &Target::HOPPER).unwrap();
    assert_eq!((step.step.as_str(), step.times.len()), ("m", variants.len()));
    for variant in &variants {
        let time = step.times.iter().find(|t| t.name == variant.name).unwrap();
        assert_eq!((time.kernels, time.is_library), (variant.kernels.len(), false));
        assert!(time.seconds > 0.0);
    }
    assert!(step.times.windows(2).all(|w| w[0].seconds <= w[1].seconds));
}

#[test]
fn a_choice_that_a_search_found_is_taken_by_modes_without_one() {
    if !available() {
        return;
    }
    let memory = DeviceMemory::new(Arc::new(Emulator::new(Target::HOPPER)));
    // All may win, and all are timed.
    let even = [("mma", 1.0), ("wgmma", 1.0), ("wgmma_persistent", 1.0), ("library", 90.0)];
    let settings =
        |kinds: &[(&str, f64)], mode| Settings { costs: costs(kinds), mode, ..Settings::default() };
    let found = run(&memory, ([192; 3], false), settings(&even, Mode::MaxAutotune));
    let other = if found.starts_with("mma") { "wgmma_" } else { "mma_" };
    // A model that would choose another kind.
    let against = [("mma", 9.0), ("wgmma", 9.0), ("wgmma_persistent", 99.0), ("library", 90.0)]
        .map(|(kind, us)| (kind, if other.starts_with(kind) { 1.0 } else { us }));
    for mode in [Mode::Default, Mode::ReduceOverhead] {
        assert_eq!(run(&memory, ([192; 3], false), settings(&against, mode)), found);
        assert!(chosen(costs(&against), mode).starts_with(other));
    }
    // Another class of steps has no choice yet.
    let larger = run(&memory, ([256, 192, 192], false), settings(&against, Mode::Default));
    assert!(larger.starts_with(other), "{larger}");
}

#[test]
fn what_was_found_among_few_is_taken_where_nothing_is_timed() {
    if !available() {
        return;
    }
    let memory = DeviceMemory::new(Arc::new(Emulator::new(Target::HOPPER)));
    let even = [("mma", 1.0), ("wgmma", 1.0), ("wgmma_persistent", 1.0), ("library", 90.0)];
    let settings =
        |kinds: &[(&str, f64)], mode| Settings { costs: costs(kinds), mode, ..Settings::default() };
    // As many candidates are timed as half the threads, which the machine's number must not decide here.
    let threads = rayon::ThreadPoolBuilder::new().num_threads(8).build().unwrap();
    threads.install(|| {
        let found = run(&memory, ([192; 3], false), settings(&even, Mode::ReduceOverhead));
        assert_eq!(run(&memory, ([192; 3], false), settings(&even, Mode::ReduceOverhead)), found);
        let other = if found.starts_with("mma") { "wgmma_" } else { "mma_" };
        let against = even.map(|(kind, us)| (kind, if other.starts_with(kind) { us } else { 9.0 * us }));
        assert!(chosen(costs(&against), Mode::Default).starts_with(other));
        assert_eq!(run(&memory, ([192; 3], false), settings(&against, Mode::Default)), found);
        // A mode that times a few itself compiles the same texts at every compilation.
        let own = run(&memory, ([192; 3], false), settings(&against, Mode::ReduceOverhead));
        assert!(own.starts_with(other), "{own}");
    });
}

#[test]
fn what_the_built_in_model_chooses_computes_products_of_any_size() {
    if !available() {
        return;
    }
    let target = Target::of_architecture("sm_90a").unwrap();
    assert!(target.costs.is_some());
    let memory = DeviceMemory::new(Arc::new(Emulator::new(target)));
    let mut seed = 7u64;
    let mut below = |end: u64| {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        ((seed >> 33) % end) as usize
    };
    for mode in [Mode::Default, Mode::ReduceOverhead] {
        for _ in 0..4 {
            let sizes = [0; 3].map(|_| [9 + below(240), 8 + 8 * below(24)][below(2)]);
            run(&memory, (sizes, below(2) == 1), Settings { mode, ..Settings::default() });
        }
    }
}
