//! Models quantized here: accuracy on digits, products of integers in the compiled program, and archives that read back.

use std::path::PathBuf;

use ferroflux::kernel_ir::{self, Step};
use ferroflux::quantize::{Observation, Quantized, Scheme, Settings};
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::{Error, Input, Options, Program, Tensor};

fn digits(file: &str) -> PathBuf {
    testing::cases::digits(file)
}

fn images() -> (Tensor, Vec<i64>) {
    let file = SafetensorsFile::open(digits("digits.safetensors")).unwrap();
    (file.tensors["image"].clone(), file.tensors["label"].iter_i64().collect())
}

/// Batches of images.
fn samples(count: usize) -> Vec<Vec<Input>> {
    let (images, _) = images();
    (0..count).map(|n| vec![images.narrow(0, n * 32, 32).unwrap().contiguous().unwrap().into()]).collect()
}

/// The share of images whose class is right.
fn accuracy(program: &Program) -> f64 {
    let (images, labels) = images();
    let scores = program.compile(&Options::new()).unwrap().call(&[images]).unwrap().remove(0);
    let rows: Vec<f64> = scores.iter_f64().collect();
    let classes = scores.sizes()[1];
    let best = |row: &[f64]| (0..classes).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as i64;
    let right = rows.chunks(classes).zip(&labels).filter(|(row, label)| best(row) == **label).count();
    right as f64 / labels.len() as f64
}

fn quantized(settings: &Settings) -> Quantized {
    let program = Program::load(digits("digits.pt2")).unwrap();
    program.quantize(&samples(4), settings, &Options::new()).unwrap()
}

/// Steps that multiply integers, and steps that keep their weights quantized.
fn steps(program: &Program) -> [usize; 2] {
    let kernels = program.kernels().unwrap();
    let kernels = kernels.one_by_one();
    let count = |f: &dyn Fn(&Step) -> bool| kernels.steps.iter().filter(|s| f(s)).count();
    [
        count(&|s| kernel_ir::is_integer_product(&kernels, s)),
        count(&|s| matches!(s, Step::Matmul(m) if m.dequant.is_some())),
    ]
}

#[test]
fn accuracy_of_digits_is_kept() {
    let float = accuracy(&Program::load(digits("digits.pt2")).unwrap());
    for observation in [Observation::Histogram, Observation::MinMax, Observation::MovingAverage] {
        let q = quantized(&Settings { observation, ..Settings::default() });
        assert!(q.layers.iter().all(|l| l.quantized && l.decibels > 20.0), "{:?}", q.layers);
        assert_eq!(steps(&q.program), [4, 0], "{:?}", q.layers);
        let int8 = accuracy(&q.program);
        assert!((float - int8).abs() <= 0.003, "{observation:?}: {float} {int8}");
        assert!(q.decibels.unwrap() > 20.0, "{:?}", q.decibels);
    }
}

#[test]
fn weights_alone_may_be_quantized() {
    let float = accuracy(&Program::load(digits("digits.pt2")).unwrap());
    for (scheme, least) in [(Scheme::WeightsInt8, 35.0), (Scheme::WeightsInt4 { group: 32 }, 15.0)] {
        let q = quantized(&Settings { scheme, ..Settings::default() });
        assert_eq!(steps(&q.program), [0, 2], "{:?}", q.layers);
        assert!(q.layers.iter().all(|l| l.decibels > least), "{:?}", q.layers);
        assert!((float - accuracy(&q.program)).abs() <= 0.003, "{scheme:?}");
        // Errors of the weights alone need no samples.
        let program = Program::load(digits("digits.pt2")).unwrap();
        let q = program.quantize(&[], &Settings { scheme, ..Settings::default() }, &Options::new()).unwrap();
        assert!(q.decibels.is_none() && q.layers.len() == 2);
    }
}

#[test]
fn layers_with_much_noise_stay_floats() {
    let q = quantized(&Settings { least_layer: 200.0, ..Settings::default() });
    assert!(q.layers.iter().all(|l| !l.quantized), "{:?}", q.layers);
    let exact = q.decibels.unwrap();
    assert!(exact > 90.0, "{exact}");
    let q = quantized(&Settings { least_model: Some(80.0), ..Settings::default() });
    assert!(q.decibels.unwrap() >= 80.0, "{:?}", q.decibels);
    let none =
        Program::load(digits("digits.pt2")).unwrap().quantize(&[], &Settings::default(), &Options::new());
    assert!(matches!(none, Err(Error::Quantize(_))));
}

#[test]
fn archives_of_quantized_models_read_back() {
    let folder = tempfile::tempdir().unwrap();
    for scheme in [Scheme::Static, Scheme::WeightsInt8, Scheme::WeightsInt4 { group: 64 }] {
        let q = quantized(&Settings { scheme, ..Settings::default() });
        let path = folder.path().join("digits.pt2");
        q.program.save(&path).unwrap();
        let read = Program::load(&path).unwrap();
        assert_eq!(steps(&read), steps(&q.program));
        let (images, _) = images();
        let run = |p: &Program| {
            p.compile(&Options::new()).unwrap().call(std::slice::from_ref(&images)).unwrap()[0]
                .to_vec::<f32>()
        };
        assert_eq!(run(&read).unwrap(), run(&q.program).unwrap());
        // Half of the parameters' bytes and more are gone.
        let bytes = |p: &PathBuf| std::fs::metadata(p).unwrap().len();
        assert!(bytes(&path) < bytes(&digits("digits.pt2")), "{scheme:?}");
    }
}
