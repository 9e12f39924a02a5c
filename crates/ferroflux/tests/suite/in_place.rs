//! Inputs, buffers and training state that calls write in place: on the CPU's plugin with tensors of every layout, through
//! [`Compiled`](ferroflux::Compiled), and through training steps, whose snapshots stay as they were taken.

#![allow(clippy::unwrap_used)] // a failing test may panic

use std::fs;
use std::path::Path;

use ferroflux::fx_ir::{Graph, OutputKind};
use ferroflux::ir_core::{Atom, Bounds, SymExpr, TensorMeta};
use ferroflux::optim::{Adam, Optimizer, Sgd};
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::train::{Clip, TrainOptions};
use ferroflux::{DType, Error, Options, Program, Tensor, Value};
use plugin_host::{Arg, CompileArgs, KERNEL_IR};

struct All(i64);

impl Bounds for All {
    fn range(&self, _: &Atom) -> (Option<i64>, Option<i64>) {
        (Some(self.0), Some(self.0))
    }
    fn extent(&self, _: u32) -> Option<SymExpr> {
        None
    }
}

/// Floats by formula; integers count from the number in their name.
fn data(name: &str, meta: &TensorMeta, n: i64) -> Tensor {
    let sizes: Vec<usize> =
        meta.sizes.iter().map(|s| usize::try_from(s.range(&All(n)).0.unwrap()).unwrap()).collect();
    if meta.dtype.is_float() {
        return tensor::formula::fill(name, &sizes, 1.0, 0.0).unwrap().to_dtype(meta.dtype).unwrap();
    }
    let first: i64 = name.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0);
    Tensor::from_vec((first..first + sizes.iter().product::<usize>() as i64).collect(), &sizes).unwrap()
}

/// The same elements with gaps between them, or as a part of a larger tensor that begins at an odd place.
fn spread(t: &Tensor, gaps: bool) -> Tensor {
    let mut strides: Vec<isize> = t.strides().to_vec();
    if gaps {
        strides.iter_mut().for_each(|s| *s *= 3);
        let like = Tensor::empty_strided(t.dtype(), t.sizes(), &strides).unwrap();
        return like.with_storage(like.storage_with(t).unwrap()).unwrap();
    }
    let room = Tensor::zeros(t.dtype(), &[t.numel() + 3]).unwrap();
    let view = room.as_strided(t.sizes(), &strides, 3).unwrap();
    view.with_storage(view.storage_with(t).unwrap()).unwrap()
}

#[test]
fn every_graph_does_on_the_cpu_what_it_does_operator_by_operator() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../inductor/tests/in_place");
    for path in testing::files::list(&folder, "fx", 12) {
        let graph: Graph = fs::read_to_string(&path).unwrap().parse().unwrap();
        let prims = prims::decompose(&graph).unwrap();
        let written = inductor::buffer_writes(&prims);
        let options = inductor::Options { written, ..inductor::Options::default() };
        let bytes = inductor::compile(&prims, &options).unwrap().to_bytes();
        let args = CompileArgs::new(KERNEL_IR, &bytes).mode("default").options(&[("threads", "2")]);
        let cpu = plugin_host::Registry::from_env().load("cpu").unwrap();
        let mut code = cpu.compile(&args).unwrap();
        code.bind_constants(&[]).unwrap();
        for (n, layout) in [(4, None), (1, None), (4, Some(true)), (4, Some(false))] {
            let all: Vec<Tensor> =
                prims.inputs().map(|(v, _, name)| data(name, prims.meta(v).unwrap(), n)).collect();
            let expected = interp::run(&prims, &all).unwrap();
            let lay = |t: &Tensor| layout.map_or_else(|| t.copied().unwrap(), |gaps| spread(t, gaps));
            let mut values: Vec<Value> = all.iter().map(|t| Value::Host(lay(t))).collect();
            let outputs = code.execute_args(&mut values.iter_mut().map(Arg::Write).collect::<Vec<_>>());
            let mut outputs = outputs.unwrap_or_else(|e| panic!("{}: {e}", path.display())).into_iter();
            for (output, expected) in prims.outputs.iter().zip(&expected) {
                let got = match &output.kind {
                    OutputKind::BufferMutation(name) => {
                        values[prims.inputs().position(|(_, _, n)| n == name).unwrap()].clone()
                    }
                    _ => outputs.next().unwrap(),
                };
                let Value::Host(got) = got else { panic!("the CPU keeps tensors on the host") };
                tensor::allclose(&got, expected, 1e-5, 1e-5)
                    .unwrap_or_else(|e| panic!("{}, {layout:?}: {:?}: {e}", path.display(), output.kind));
            }
        }
    }
}

#[test]
fn a_tensor_that_others_hold_is_not_written() {
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../inductor/tests/in_place/sgd.fx"));
    let prims = prims::decompose(&text.unwrap().parse().unwrap()).unwrap();
    let written = inductor::buffer_writes(&prims);
    let options = inductor::Options { written, ..inductor::Options::default() };
    let bytes = inductor::compile(&prims, &options).unwrap().to_bytes();
    let cpu = plugin_host::Registry::from_env().load("cpu").unwrap();
    let mut code = cpu.compile(&CompileArgs::new(KERNEL_IR, &bytes).mode("default")).unwrap();
    code.bind_constants(&[]).unwrap();
    assert_eq!(code.written_inputs(), [false, true]);
    let tensors: Vec<Tensor> =
        prims.inputs().map(|(v, _, name)| data(name, prims.meta(v).unwrap(), 1)).collect();
    let refused = code.execute(&tensors.iter().collect::<Vec<_>>()).unwrap_err().to_string();
    assert!(refused.contains("writes input 1 in place"), "{refused}");
    let mut values: Vec<Value> = tensors.iter().cloned().map(Value::Host).collect();
    let mut shared: Vec<Arg<'_>> = values.iter_mut().map(Arg::Write).collect();
    let refused = code.execute_args(&mut shared).unwrap_err().to_string();
    assert!(refused.contains("input 1 is written by the program"), "{refused}");
}

fn digits(file: &str) -> String {
    testing::cases::digits(file).display().to_string()
}

/// A program over a graph's text whose buffers are those of the digits' network.
fn program(text: &str) -> Program {
    let exported = pt2::ExportedProgram::load(digits("digits_train.pt2")).unwrap();
    Program::from_graph(text.parse().unwrap(), &exported.weights).unwrap()
}

/// Buffer and input are written; the buffer's new value is returned too.
const COUNTING: &str = r#"fx 1.0
graph "counting" {
  %x: f32[] = input "x"
  %count: i64[] = buffer "model.b1.num_batches_tracked"

  %more: i64[] = aten.add.Scalar(%count, 1, 1)
  %y: f32[] = aten.add.Tensor(%x, %more, 1)
  return buffer "model.b1.num_batches_tracked" = %more
  return input "x" = %y
  return %more
  return %y
}
"#;

#[test]
fn buffers_are_carried_from_call_to_call_and_outputs_are_the_callers() {
    for backend in ["cpu", "eager"] {
        let model = program(COUNTING).compile(&Options::new().backend(backend)).unwrap();
        let number = |t: &Tensor| t.item().unwrap().as_f64();
        let mut inputs = [Tensor::scalar(DType::F32, 0.5.into()).unwrap()];
        let old = inputs[0].clone();
        let first = model.call(&inputs).unwrap();
        let second = model.call(&inputs).unwrap();
        assert_eq!(number(&second[0]) - number(&first[0]), 1.0, "{backend}");
        // The first call's output is not the buffer.
        assert_eq!(number(&first[1]), 0.5 + number(&first[0]), "{backend}");
        assert_eq!(number(&inputs[0]), 0.5, "{backend}: `call` leaves inputs as they are");
        let third = model.call_mut(&mut inputs).unwrap();
        assert_eq!(number(&inputs[0]), number(&third[1]), "{backend}");
        assert_eq!(number(&old), 0.5, "{backend}: another handle of the old tensor");
    }
}

fn batch(n: usize) -> Vec<Tensor> {
    let data = SafetensorsFile::open(digits("digits.safetensors")).unwrap();
    let rows = |name: &str| data.tensors[name].narrow(0, n * 64, 64).unwrap();
    vec![rows("train_image"), rows("train_label")]
}

fn bytes(t: &Tensor) -> Vec<u8> {
    t.copied().unwrap().storage().bytes().to_vec()
}

#[test]
fn a_training_step_returns_the_loss_alone_and_updates_as_the_interpreter_does() {
    for optimizer in [Optimizer::Sgd(Sgd { momentum: 0.9, ..Sgd::default() }), Optimizer::Adam(Adam::adamw())]
    {
        let sgd = matches!(optimizer, Optimizer::Sgd(_));
        let options = TrainOptions::new(optimizer);
        let program = Program::load(digits("digits_train.pt2")).unwrap();
        let make = |backend| program.train_step(&options, &Options::new().backend(backend).seed(1)).unwrap();
        let (mut cpu, mut eager) = (make("cpu"), make("eager"));
        let kernels = cpu.kernels().unwrap();
        assert_eq!(kernels.outputs.len(), 1, "{kernels}");
        let written = kernels.inputs.iter().filter(|i| i.written).count();
        assert_eq!(written, cpu.snapshot().unwrap().tensors.len());
        for n in 0..3 {
            let (a, b) = (cpu.step(&batch(n), 1e-3).unwrap(), eager.step(&batch(n), 1e-3).unwrap());
            assert!((a.loss - b.loss).abs() <= 1e-4 * b.loss, "{} {}", a.loss, b.loss);
            if n > 0 {
                continue;
            }
            for (name, got) in &cpu.snapshot().unwrap().tensors {
                // Adam divides a gradient by its own size: rounding decides where one is zero but for that.
                let divided = !sgd && !name.starts_with("optimizer/") && !name.contains("running");
                let expected = eager.get(name).unwrap();
                let off = if divided { 2.1e-3 } else { 2e-5 };
                tensor::allclose(got, &expected, off, 1e-4).unwrap_or_else(|e| panic!("{name}: {e}"));
            }
        }
    }
}

#[test]
fn a_snapshot_stays_as_it_was_and_training_goes_on_from_it_to_the_bit() {
    let options = TrainOptions::new(Optimizer::Adam(Adam::adamw()));
    let program = Program::load(digits("digits_train.pt2")).unwrap();
    let make = || program.train_step(&options, &Options::new().seed(7)).unwrap();
    let mut whole = make();
    whole.step(&batch(0), 1e-3).unwrap();
    let snapshot = whole.snapshot().unwrap();
    let before: Vec<Vec<u8>> = snapshot.tensors.values().map(bytes).collect();
    let weights = whole.get("model.f2.weight").unwrap();
    let held = bytes(&weights);
    let expected: Vec<f64> = (1..4).map(|n| whole.step(&batch(n), 1e-3).unwrap().loss).collect();
    assert_eq!(snapshot.tensors.values().map(bytes).collect::<Vec<_>>(), before);
    assert_eq!(bytes(&weights), held);
    let mut resumed = make();
    resumed.restore(&snapshot).unwrap();
    let got: Vec<f64> = (1..4).map(|n| resumed.step(&batch(n), 1e-3).unwrap().loss).collect();
    assert_eq!(got, expected);
    for (name, tensor) in &whole.snapshot().unwrap().tensors {
        assert_eq!(bytes(tensor), bytes(&resumed.get(name).unwrap()), "{name}");
    }
}

#[test]
fn a_step_that_is_refused_leaves_the_state_in_place() {
    let clip = Clip::Norm { max: 1.0, error_if_nonfinite: true };
    let options = TrainOptions::new(Optimizer::Sgd(Sgd { momentum: 0.9, ..Sgd::default() })).clip(clip);
    let program = Program::load(digits("digits_train.pt2")).unwrap();
    let mut step = program.train_step(&options, &Options::new()).unwrap();
    step.step(&batch(0), 0.1).unwrap();
    let before = step.snapshot().unwrap();
    let mut inputs = batch(1);
    inputs[0] = Tensor::full(inputs[0].dtype(), inputs[0].sizes(), f64::NAN.into()).unwrap();
    assert!(matches!(step.step(&inputs, 0.1), Err(Error::NonFiniteGradient { .. })));
    for (name, tensor) in &step.snapshot().unwrap().tensors {
        assert_eq!(bytes(tensor), bytes(&before.tensors[name]), "{name}");
    }
    assert!(step.step(&batch(1), 0.1).unwrap().loss.is_finite());
}
