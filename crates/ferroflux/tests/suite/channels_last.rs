//! Training steps whose weights of convolutions lie channels-last: what is taken from the state and put there is what it
//! would be otherwise, to the byte where nothing was computed in between.

#![allow(clippy::unwrap_used)] // a failing test may panic

use ferroflux::fx_ir::Graph;
use ferroflux::kernel_ir;
use ferroflux::optim::{Adam, Optimizer, Sgd};
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::train::{Clip, TrainOptions, TrainStep};
use ferroflux::{Options, Program, Tensor};

/// The one weight of the digits' network whose order changes: the other convolution has one input channel.
const WEIGHT: &str = "model.c2.weight";

fn digits(file: &str) -> String {
    testing::cases::digits(file).display().to_string()
}

fn batch(n: usize) -> Vec<Tensor> {
    let data = SafetensorsFile::open(digits("digits.safetensors")).unwrap();
    let rows = |name: &str| data.tensors[name].narrow(0, n * 64, 64).unwrap();
    vec![rows("train_image"), rows("train_label")]
}

fn adam() -> TrainOptions {
    TrainOptions::new(Optimizer::Adam(Adam { weight_decay: 0.1, ..Adam::adamw() }))
}

fn step(options: TrainOptions, last: bool) -> TrainStep {
    let program = Program::load(digits("digits_train.pt2")).unwrap();
    program.train_step(&options.channels_last(last), &Options::new().seed(7)).unwrap()
}

fn bytes(t: &Tensor) -> Vec<u8> {
    assert!(t.is_contiguous(), "the state is given out row-major");
    t.copied().unwrap().storage().bytes().to_vec()
}

/// Strides of the inputs with these sizes that the program writes.
fn strides(program: &kernel_ir::Program, sizes: &[usize]) -> Vec<Vec<i64>> {
    let numbers = |of: &[ferroflux::ir_core::SymExpr]| -> Vec<i64> {
        of.iter().map(|e| e.as_const().unwrap()).collect()
    };
    let sizes: Vec<i64> = sizes.iter().map(|&n| n as i64).collect();
    let buffers = program.inputs.iter().filter(|i| i.written).map(|i| &program.buffers[i.buf]);
    buffers.filter(|b| numbers(&b.sizes) == sizes).map(|b| numbers(&b.strides)).collect()
}

#[test]
fn weights_and_what_the_optimizer_keeps_lie_channels_last_in_the_program_alone() {
    let (last, plain) = (step(adam(), true), step(adam(), false));
    assert_eq!(strides(last.kernels().unwrap(), &[32, 16, 3, 3]), vec![vec![144, 1, 48, 16]; 3]);
    assert_eq!(strides(plain.kernels().unwrap(), &[32, 16, 3, 3]), vec![vec![144, 9, 3, 1]; 3]);
    let (a, b) = (last.snapshot().unwrap(), plain.snapshot().unwrap());
    assert_eq!(a.tensors.len(), b.tensors.len());
    for (name, tensor) in &a.tensors {
        assert_eq!(bytes(tensor), bytes(&b.tensors[name]), "{name}");
        assert_eq!(bytes(&last.get(name).unwrap()), bytes(tensor), "{name}");
    }
    for (name, tensor) in last.weights().unwrap() {
        assert_eq!(bytes(&tensor), bytes(&plain.weights().unwrap()[&name]), "{name}");
    }
}

#[test]
fn steps_are_those_of_row_major_weights() {
    let norm = Clip::Norm { max: 0.5, error_if_nonfinite: true };
    let momentum = Sgd { momentum: 0.9, weight_decay: 1e-2, ..Sgd::default() };
    for options in [
        TrainOptions::new(Optimizer::Sgd(Sgd::default())),
        TrainOptions::new(Optimizer::Sgd(momentum)).clip(norm),
        adam(),
    ] {
        let (mut last, mut plain) = (step(options.clone(), true), step(options, false));
        for n in 0..3 {
            let (a, b) = (last.step(&batch(n), 1e-3).unwrap(), plain.step(&batch(n), 1e-3).unwrap());
            assert!((a.loss - b.loss).abs() <= 1e-5 * b.loss, "{} {}", a.loss, b.loss);
        }
        let before = Program::load(digits("digits_train.pt2")).unwrap().weight(WEIGHT).unwrap().clone();
        let (a, b) = (last.get(WEIGHT).unwrap(), plain.get(WEIGHT).unwrap());
        assert_ne!(bytes(&a), bytes(&before), "nothing was trained");
        // Adam divides a gradient by its own size, which magnifies rounding: three steps of 1e-3 are the most it can make.
        tensor::allclose(&a, &b, 3e-4, 1e-4).unwrap();
    }
}

#[test]
fn a_snapshot_of_either_layout_goes_on_in_either() {
    let mut whole = step(adam(), true);
    whole.step(&batch(0), 1e-3).unwrap();
    let snapshot = whole.snapshot().unwrap();
    let losses: Vec<f64> = (1..4).map(|n| whole.step(&batch(n), 1e-3).unwrap().loss).collect();
    // The same layout goes on to the bit.
    let mut resumed = step(adam(), true);
    resumed.restore(&snapshot).unwrap();
    let again: Vec<f64> = (1..4).map(|n| resumed.step(&batch(n), 1e-3).unwrap().loss).collect();
    assert_eq!(again, losses);
    for (name, tensor) in &whole.snapshot().unwrap().tensors {
        assert_eq!(bytes(tensor), bytes(&resumed.get(name).unwrap()), "{name}");
    }
    // The other takes the same values.
    let mut plain = step(adam(), false);
    plain.restore(&snapshot).unwrap();
    for (name, tensor) in &snapshot.tensors {
        assert_eq!(bytes(tensor), bytes(&plain.get(name).unwrap()), "{name}");
    }
    let mut last = step(adam(), true);
    last.restore(&plain.snapshot().unwrap()).unwrap();
    assert_eq!(bytes(&last.get(WEIGHT).unwrap()), bytes(&snapshot.tensors[WEIGHT]));
}

#[test]
fn a_replaced_weight_is_read_in_the_order_of_the_state() {
    let (mut last, mut plain) = (step(adam(), true), step(adam(), false));
    let weight = tensor::formula::fill("replacement", &[32, 16, 3, 3], 0.1, 0.0).unwrap();
    // In whatever order it comes.
    let turned = weight.permute(&[3, 2, 1, 0]).unwrap().copied().unwrap().permute(&[3, 2, 1, 0]).unwrap();
    last.set(WEIGHT, turned).unwrap();
    plain.set(WEIGHT, weight.clone()).unwrap();
    assert_eq!(bytes(&last.get(WEIGHT).unwrap()), bytes(&weight));
    let (a, b) = (last.step(&batch(0), 1e-3).unwrap().loss, plain.step(&batch(0), 1e-3).unwrap().loss);
    assert!((a - b).abs() <= 1e-5 * b, "{a} {b}");
}

/// One weight is read by two convolutions, by a product over its own elements and by a penalty; another is also returned.
const TIED: &str = r#"fx 1.0
graph "tied" {
  %w: f32[32, 16, 3, 3] = parameter "model.c2.weight"
  %x: f32[2, 16, 6, 6] = input "x"

  %a: f32[2, 32, 6, 6] = aten.conv2d.default(%x, %w, none, [1, 1], [1, 1], [1, 1], 1)
  %b: f32[2, 16, 6, 6] = aten.conv_transpose2d.input(%a, %w, none, [1, 1], [1, 1], [0, 0], 1, [1, 1])
  %flat: f32[32, 144] = aten.view.default(%w, [32, 144])
  %turned: f32[144, 32] = aten.t.default(%flat)
  %product: f32[32, 32] = aten.mm.default(%flat, %turned)
  %squares: f32[32, 16, 3, 3] = aten.mul.Tensor(%w, %w)
  %penalty: f32[] = aten.sum.default(%squares)
  %of_product: f32[] = aten.mean.default(%product)
  %of_images: f32[] = aten.mean.default(%b)
  %sum: f32[] = aten.add.Tensor(%penalty, %of_product, 1)
  %loss: f32[] = aten.add.Tensor(%sum, %of_images, 1)
  return loss %loss
RETURNED}
"#;

fn tied(returned: bool) -> Program {
    let exported = pt2::ExportedProgram::load(digits("digits_train.pt2")).unwrap();
    let graph: Graph = TIED.replace("RETURNED", if returned { "  return %w\n" } else { "" }).parse().unwrap();
    Program::from_graph(graph, &exported.weights).unwrap()
}

#[test]
fn a_weight_that_is_also_read_otherwise() {
    let sgd = TrainOptions::new(Optimizer::Sgd(Sgd { momentum: 0.9, ..Sgd::default() }));
    let inputs = [tensor::formula::fill("x", &[2, 16, 6, 6], 1.0, 0.0).unwrap()];
    for returned in [false, true] {
        let make = |backend: &str, last| {
            let options = sgd.clone().channels_last(last);
            tied(returned).train_step(&options, &Options::new().backend(backend)).unwrap()
        };
        let (mut last, mut plain) = (make("cpu", true), make("eager", false));
        // What the caller is given is not laid out again.
        let order = if returned { vec![144, 9, 3, 1] } else { vec![144, 1, 48, 16] };
        assert_eq!(strides(last.kernels().unwrap(), &[32, 16, 3, 3])[0], order);
        for _ in 0..2 {
            let (a, b) = (last.step(&inputs, 0.01).unwrap(), plain.step(&inputs, 0.01).unwrap());
            assert!((a.loss - b.loss).abs() <= 1e-5 * b.loss.abs(), "{} {}", a.loss, b.loss);
            for (a, b) in a.outputs.iter().zip(&b.outputs) {
                tensor::allclose(a, b, 1e-5, 1e-4).unwrap();
            }
        }
        for (name, tensor) in &plain.snapshot().unwrap().tensors {
            tensor::allclose(&last.get(name).unwrap(), tensor, 1e-5, 1e-4)
                .unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
}
