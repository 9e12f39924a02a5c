//! Optimizers and clipping next to PyTorch 2.11: six losses of `examples/digits/digits_train.pt2` on batches of 64 in order,
//! computed with `torch.optim` (`foreach=False`) on a CPU.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]

use ferroflux::optim::{Adam, Optimizer, Sgd};
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::train::{Clip, Scaler, TrainOptions, TrainStep};
use ferroflux::{Error, Options, Program, Tensor};

/// Relative; six steps of a network with batch norm amplify rounding.
const TOLERANCE: f64 = 1e-4;

fn path(file: &str) -> String {
    testing::cases::digits(file).display().to_string()
}

fn step(options: &TrainOptions) -> TrainStep {
    let program = Program::load(path("digits_train.pt2")).unwrap();
    program.train_step(options, &Options::new().backend("eager")).unwrap()
}

fn batch(n: usize) -> Vec<Tensor> {
    let data = SafetensorsFile::open(path("digits.safetensors")).unwrap();
    let rows = |name: &str| data.tensors[name].narrow(0, n * 64, 64).unwrap();
    vec![rows("train_image"), rows("train_label")]
}

fn check(name: &str, options: &TrainOptions, lr: f64, wanted: [f64; 6]) {
    let mut step = step(options);
    for (n, wanted) in wanted.into_iter().enumerate() {
        let loss = step.step(&batch(n), lr).unwrap().loss;
        assert!(
            (loss - wanted).abs() <= TOLERANCE * wanted,
            "{name}: loss {n} is {loss}, PyTorch has {wanted}"
        );
    }
}

#[test]
fn sgd_is_pytorchs() {
    let sgd = Sgd { momentum: 0.9, ..Sgd::default() };
    let nesterov = Sgd { nesterov: true, weight_decay: 1e-2, ..sgd.clone() };
    let wanted = [2.31559514, 2.24058389, 2.34236049, 2.08498692, 1.99030971, 1.95630621];
    check("nesterov", &TrainOptions::new(Optimizer::Sgd(nesterov)), 0.05, wanted);
    let dampened = Sgd { dampening: 0.5, maximize: true, ..sgd };
    let wanted = [2.31559514, 2.41762518, 2.56618189, 2.77061700, 2.98917126, 3.46779680];
    check("dampening", &TrainOptions::new(Optimizer::Sgd(dampened)), 0.05, wanted);
}

#[test]
fn adam_is_pytorchs() {
    let adam = Adam { weight_decay: 0.1, ..Adam::default() };
    let wanted = [2.31559514, 2.19684386, 2.07320284, 1.95389544, 1.78676211, 1.66539895];
    check("adam", &TrainOptions::new(Optimizer::Adam(adam)), 1e-2, wanted);
    let amsgrad = Adam { beta1: 0.3, beta2: 0.9, eps: 1e-3, amsgrad: true, ..Adam::default() };
    let wanted = [2.31559514, 2.21861600, 2.07756495, 1.95484220, 1.57337152, 1.23175883];
    check("amsgrad", &TrainOptions::new(Optimizer::Adam(amsgrad)), 1e-2, wanted);
    let adamw = Adam { weight_decay: 0.1, maximize: true, ..Adam::adamw() };
    let wanted = [2.31559514, 2.43311882, 2.55627918, 2.66894483, 2.69996619, 2.71558952];
    check("adamw", &TrainOptions::new(Optimizer::Adam(adamw)), 1e-3, wanted);
}

#[test]
fn clipping_is_pytorchs() {
    let options = TrainOptions::new(Optimizer::Sgd(Sgd::default()));
    let norm = options.clone().clip(Clip::Norm { max: 0.5, error_if_nonfinite: false });
    let wanted = [2.31559514, 2.16395854, 2.27755641, 2.07200956, 1.95790374, 1.86008036];
    check("norm", &norm, 0.5, wanted);
    let wanted = [2.31559514, 2.13852190, 2.14641928, 1.96887636, 1.81952071, 1.74390959];
    check("value", &options.clip(Clip::Value(0.01)), 0.5, wanted);
}

#[test]
fn a_scaled_loss_gives_the_same_updates_and_infinities_are_left_out() {
    let options = TrainOptions::new(Optimizer::Adam(Adam::default()));
    let mut plain = step(&options);
    let mut scaled =
        step(&options.clone().scaler(Scaler { scale: 1024.0, interval: 2, ..Scaler::default() }));
    for n in 0..4 {
        let (a, b) = (plain.step(&batch(n), 1e-3).unwrap(), scaled.step(&batch(n), 1e-3).unwrap());
        assert!((a.loss - b.loss).abs() <= 1e-5 * a.loss, "{} {}", a.loss, b.loss);
        assert!(!b.skipped);
    }
    // Twice two good steps: it has grown twice.
    assert_eq!(scaled.scaler().unwrap().scale, 4096.0);
    let mut wild = step(&options.scaler(Scaler { scale: 1e40, ..Scaler::default() }));
    let before = wild.get("model.f2.weight").unwrap().to_vec::<f32>().unwrap();
    let outcome = wild.step(&batch(0), 1e-3).unwrap();
    assert!(outcome.skipped && wild.updates() == 0);
    assert_eq!(wild.scaler().unwrap().scale, 0.5e40);
    assert_eq!(wild.get("model.f2.weight").unwrap().to_vec::<f32>().unwrap(), before);
}

#[test]
fn a_norm_that_is_not_finite_changes_nothing() {
    let clip = Clip::Norm { max: 1.0, error_if_nonfinite: true };
    let mut step = step(&TrainOptions::new(Optimizer::Sgd(Sgd::default())).clip(clip));
    let mut inputs = batch(0);
    inputs[0] = Tensor::full(inputs[0].dtype(), inputs[0].sizes(), f64::NAN.into()).unwrap();
    let before = step.get("model.b1.running_mean").unwrap().to_vec::<f32>().unwrap();
    assert!(matches!(step.step(&inputs, 0.1), Err(Error::NonFiniteGradient { .. })));
    assert_eq!(step.get("model.b1.running_mean").unwrap().to_vec::<f32>().unwrap(), before);
    assert!(step.step(&batch(0), 0.1).unwrap().loss.is_finite());
}
