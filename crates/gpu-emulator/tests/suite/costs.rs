//! Candidates are chosen by the cost model of a target, and those that it cannot tell apart are timed; without a model the
//! rule chooses. Timing every candidate of a step, from which models are made.

use std::sync::Arc;

use gpu_codegen::{Costs, Model, TERMS, Target};
use gpu_emulator::Emulator;
use gpu_runtime::{Compiled, CostModel, DeviceMemory, Mode, Settings, measure};
use kernel_ir::Program;
use plugin_sdk::{TensorView, bf16};

const N: usize = 192;

fn product() -> Program {
    r#"kir 1.3
program "product"
buffer b0 "a" bf16[192, 192]{192, 1}+0 input 0
buffer b1 "b" bf16[192, 192]{192, 1}+0 input 1
buffer b2 "y" bf16[192, 192]{192, 1}+0 output
input "a" b0
input "b" b1
output "y" b2[192, 192]{192, 1}+0
init:
steps:
matmul "m" acc f32
  a b0[192, 192]{192, 1}+0
  b b1[192, 192]{192, 1}+0
  epilogue [192, 192]
    v0: f32 = template
    v1: bf16 = cast v0
    v2: bf16 = store b2[i0, i1], v1
plan bytes 0:
"#
    .parse()
    .unwrap()
}

/// A made-up model in which a kind takes as many microseconds for each launch, and the same time for what it computes.
fn costs(kinds: &[(&str, f64)]) -> CostModel {
    let mut text = "ferroflux costs 1\narchitecture sm_90\n".to_owned();
    for (kind, us) in kinds {
        text.push_str(&format!("kind {kind}\nerror 0\nlaunch {us}e-6\ncompute 1e-9\n"));
        TERMS[2..].iter().for_each(|term| text.push_str(&format!("{term} 0\n")));
    }
    CostModel::Given(Costs(Arc::new(Model::parse(&text).unwrap())))
}

/// The implementation that is chosen, after a call whose result is compared with a loop.
fn chosen(costs: CostModel, mode: Mode) -> String {
    let device = Arc::new(Emulator::new(Target::HOPPER));
    let settings = Settings { costs, mode, profile: 1, ..Settings::default() };
    let mut code = Compiled::with(&DeviceMemory::new(device), product(), settings).unwrap();
    code.bind(&[]).unwrap();
    let values = |salt: usize| -> Vec<bf16> {
        (0..N * N).map(|i| bf16::from_f32(((i * 7919 + salt) % 17) as f32 - 8.0)).collect()
    };
    let (a, b) = (values(1), values(5));
    let inputs = [&a, &b]
        .map(|x| TensorView::from_slice(&x[..], ir_core::DType::BF16, &[192, 192], &[192, 1]).unwrap());
    let mut got = Vec::new();
    for _ in 0..2 {
        got = code.execute(&inputs).unwrap();
    }
    // SAFETY: the tensor is contiguous with this many numbers, and memory of the emulated device is host memory.
    let got = unsafe { std::slice::from_raw_parts(got[0].as_mut_ptr().cast::<bf16>(), N * N) };
    for (i, j) in [(0, 0), (5, 170), (191, 191), (100, 3)] {
        let sum: f64 = (0..N).map(|q| a[i * N + q].to_f64() * b[q * N + j].to_f64()).sum();
        assert!((got[i * N + j].to_f64() - sum).abs() <= sum.abs() / 256.0, "{i}, {j}");
    }
    code.profile()[0].implementation.clone()
}

#[test]
fn the_model_chooses_and_without_one_the_rule_does() {
    if let Err(why) = gpu_emulator::available() {
        eprintln!("skipped: {why}");
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
    if let Err(why) = gpu_emulator::available() {
        eprintln!("skipped: {why}");
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
