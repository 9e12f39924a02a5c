//! Mixed precision of whole programs by option, and of regions that an archive recorded: which dtypes come out, and that the
//! numbers are those of float32 up to the roundings of the narrow type. What single operators do is tested in `aot-autograd`.

#![allow(clippy::unwrap_used)] // a failing test may panic

use std::path::Path;

use ferroflux::optim::{Optimizer, Sgd};
use ferroflux::train::TrainOptions;
use ferroflux::{DType, Options, Program, Tensor};

/// Two linear layers, the first in a region for GPUs.
fn regions() -> Program {
    Program::load(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/pt2/regions.pt2")).unwrap()
}

fn input() -> Tensor {
    let values: Vec<f32> = (0..12).map(|i| (i as f32 * 0.7).sin()).collect();
    Tensor::from_slice(&values, &[3, 4]).unwrap()
}

fn outputs(options: &Options) -> Vec<Tensor> {
    regions().compile(options).unwrap().call(&[input()]).unwrap()
}

#[test]
fn the_option_narrows_a_program_on_every_kind_of_backend() {
    let wide = outputs(&Options::new().backend("oracle"));
    for backend in ["cpu", "eager"] {
        for dtype in [DType::BF16, DType::F16] {
            let narrow = outputs(&Options::new().backend(backend).autocast(dtype));
            assert_eq!(narrow[0].dtype(), dtype, "{backend}");
            for (a, b) in narrow[0].iter_f64().zip(wide[0].iter_f64()) {
                assert!((a - b).abs() <= 0.02 * (1.0 + b.abs()), "{backend} {dtype}: {a} instead of {b}");
            }
            let exact = narrow[0].iter_f64().zip(wide[0].iter_f64()).all(|(a, b)| a == b);
            assert!(!exact, "{backend} {dtype}: nothing was rounded");
        }
    }
}

#[test]
fn a_region_for_gpus_means_nothing_on_the_cpu() {
    let (wide, here) = (outputs(&Options::new().backend("oracle")), outputs(&Options::new()));
    assert_eq!(here[0].dtype(), DType::F32);
    for (a, b) in here[0].iter_f64().zip(wide[0].iter_f64()) {
        assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "{a} instead of {b}");
    }
}

#[test]
fn a_training_step_takes_the_option_too() {
    let program =
        Program::load(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/pt2/loss.pt2")).unwrap();
    let values: Vec<f32> = (0..20).map(|i| (i as f32 * 0.3).cos()).collect();
    let inputs = [
        Tensor::from_slice(&values, &[5, 4]).unwrap(),
        Tensor::from_slice(&[0i64, 1, 2, 0, 1], &[5]).unwrap(),
    ];
    let train = TrainOptions::new(Optimizer::Sgd(Sgd::default()));
    let loss = |train: &TrainOptions, options: &Options| {
        let mut step = program.train_step(train, options).unwrap();
        step.step(&inputs, 0.0).unwrap().loss
    };
    let (wide, by_option) =
        (loss(&train, &Options::new()), loss(&train, &Options::new().autocast(DType::BF16)));
    let by_training = loss(&train.clone().autocast(DType::BF16), &Options::new());
    assert_eq!(by_option, by_training);
    assert!(wide != by_option && (wide - by_option).abs() <= 0.02 * wide.abs(), "{by_option}, wide {wide}");
}
