//! A whole network through every stage: what it fuses to, and that compiling needs no weights.
//!
//! The archive has no weight payloads, so it is small; values are the corpus' business.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]

use ferroflux::{Error, Options, Program};
use testing::cases::{Cases, data};

fn resnet18() -> Program {
    let mut zip = Cases::open(&data("models/resnet18.zip")).unwrap();
    Program::from_bytes(zip.archive("resnet18").unwrap()).unwrap()
}

#[test]
fn fuses_to_one_kernel_a_layer() {
    let explanation = resnet18().explain().unwrap();
    let count = |kind: &str| explanation.kernels.iter().filter(|k| k.kind == kind).count();
    // 20 convolutions with batch norm, relu and residual in their epilogues, two pools, the classifier.
    assert_eq!((count("conv"), count("loop"), count("matmul")), (20, 2, 1));
    assert_eq!(explanation.kernels.len(), 23);
    let convs = explanation.kernels.iter().filter(|k| k.kind == "conv");
    let has = |k: &ferroflux::KernelInfo, name: &str| k.nodes.iter().any(|n| n.starts_with(name));
    let residual = convs.filter(|k| has(k, "add") && has(k, "relu") && has(k, "batch_norm"));
    // The eighth block's sum goes into the pool that is all that reads it.
    assert_eq!(residual.count(), 7);
    // Scale and shift of each batch norm are made once, from the weights alone.
    assert_eq!(explanation.init_kernels.len(), 20);
}

#[test]
fn memory_is_planned_ahead() {
    let explanation = resnet18().explain().unwrap();
    let largest = 64 * 112 * 112 * 4;
    let arena = explanation.arena_bytes.unwrap();
    assert!(arena >= largest && arena <= 3 * largest, "{arena} bytes for activations of at most {largest}");
}

#[test]
fn missing_weights_are_named_when_it_matters() {
    let error = resnet18().compile(&Options::new()).err().unwrap();
    let Error::MissingWeights { first, .. } = &error else { panic!("{error}") };
    assert!(first.starts_with("m.conv1.weight: f32[64, 3, 7, 7]"), "{error}");
}
