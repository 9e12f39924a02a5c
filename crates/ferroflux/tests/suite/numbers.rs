//! Integers, floats, truth values and what exporting specialised on as inputs: real archives against what PyTorch gave for
//! them, on the interpreters, the CPU and the emulated GPU; and what a call refuses before anything runs.

#![allow(clippy::unwrap_used)] // a failing test may panic

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ferroflux::optim::{Optimizer, Sgd};
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::train::TrainOptions;
use ferroflux::{Compiled, DType, Error, Input, InputKind, Options, Program, Tensor, Value};

plugin_host::inventory::submit! {
    plugin_host::BuiltinPlugin { name: "gpu-emulator", entry: plugin_sdk::entry::<gpu_emulator::EmulatorBackend> }
}

/// The backends of this machine; the emulator needs a C++ compiler.
fn backends() -> Vec<&'static str> {
    let mut all = vec!["eager", "oracle", "cpu"];
    match gpu_emulator::available() {
        Ok(()) => all.push("gpu-emulator"),
        Err(why) => eprintln!("without the emulated GPU: {why}"),
    }
    all
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/pt2")
}

fn load(name: &str) -> (Program, SafetensorsFile) {
    let program = Program::load(folder().join(format!("{name}.pt2"))).unwrap();
    (program, SafetensorsFile::open(folder().join(format!("{name}.safetensors"))).unwrap())
}

/// The inputs of sample `s`: numbers as numbers, without those that the model was exported for.
fn sample(program: &Program, golden: &SafetensorsFile, s: usize) -> Option<Vec<Input>> {
    let infos = program.inputs();
    let given = infos.iter().filter(|i| !i.is_constant());
    let one = |i: &ferroflux::InputInfo| {
        let tensor = golden.tensors.get(&format!("s{s}.{}", i.name))?;
        Some(match i.kind {
            InputKind::Tensor(_) => tensor.into(),
            _ => tensor.item().unwrap().as_i64().into(),
        })
    };
    given.map(one).collect()
}

/// A layer in 16 bits rounds once, as PyTorch's does: its product is not rounded before the bias is added, which may cancel most
/// of it.
#[test]
fn a_layer_in_16_bits_is_rounded_once() {
    const LAYER: &str = r#"fx 1.0
graph "layer" {
  %x: bf16[4, 32] = input "x"
  %w: bf16[8, 32] = input "w"
  %b: bf16[8] = input "b"
  %y: bf16[4, 8] = aten.linear.default(%x, %w, %b)
  %z: bf16[4, 8] = aten.relu.default(%y)
  return %z
}
"#;
    let program = Program::from_graph(LAYER.parse().unwrap(), &BTreeMap::new()).unwrap();
    let made = |name: &str, sizes: &[usize], scale: f32| {
        let wide = ferroflux::tensor::formula::fill(name, sizes, scale, 0.0).unwrap();
        wide.to_dtype(DType::BF16).unwrap()
    };
    let (x, w) = (made("x", &[4, 32], 3.0), made("w", &[8, 32], 3.0));
    let values = |t: &Tensor| t.iter_f64().collect::<Vec<f64>>();
    let (a, c) = (values(&x), values(&w));
    let product = |i: usize, j: usize| (0..32).map(|k| a[32 * i + k] * c[32 * j + k]).sum::<f64>();
    // Nearly the product of the first row, so that little is left of it.
    let bias: Vec<f32> = (0..8).map(|j| 0.05 - product(0, j) as f32).collect();
    let b = Tensor::from_vec(bias, &[8]).unwrap().to_dtype(DType::BF16).unwrap();
    let biases = values(&b);
    for backend in backends().into_iter().filter(|b| ["cpu", "gpu-emulator"].contains(b)) {
        let code = program.compile(&Options::new().backend(backend)).unwrap();
        let z = code.call(&[x.clone(), w.clone(), b.clone()]).unwrap().remove(0);
        for (n, got) in z.iter_f64().enumerate() {
            let exact = (product(n / 8, n % 8) + biases[n % 8]).max(0.0);
            // Half a unit in the last place, and what the sum in float32 rounds.
            let allowed = exact / 256.0 + 1e-4;
            assert!((got - exact).abs() <= allowed, "{backend}: {got} instead of {exact}");
        }
    }
}

/// The quotient of two integers is a float, also where both are numbers of the call.
#[test]
fn integers_are_divided_as_floats() {
    const QUOTIENTS: &str = r#"fx 1.0
graph "quotients" {
  symbol s0 "m" 0..=100000 hint 1024
  symbol s1 "n" 1..=100000 hint 100
  %a: int(s0) = input "a"
  %b: int(s1) = input "b"
  %x: f32[] = aten.div.Tensor(s0, s1)
  %y: f32[] = aten.div.Tensor_mode(s0, s1, none)
  %z: i64[] = aten.div.Tensor_mode(s0, s1, "floor")
  %l: bool[] = aten.lt.Tensor(s0, s1)
  return %x
  return %y
  return %z
  return %l
}
"#;
    let program = Program::from_graph(QUOTIENTS.parse().unwrap(), &BTreeMap::new()).unwrap();
    for backend in backends() {
        let code = program.compile(&Options::new().backend(backend)).unwrap();
        let all = code.call_with(&[1024.into(), 100.into()]).unwrap();
        let got: Vec<f64> = all.iter().map(|t| t.item().unwrap().as_f64()).collect();
        assert_eq!(got, [f64::from(10.24_f32), f64::from(10.24_f32), 10.0, 0.0], "{backend}");
    }
}

/// float32 within 2e-5 of itself, or of 1e-5; all else equal.
fn assert_close(got: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!((got.dtype(), got.sizes()), (expected.dtype(), expected.sizes()), "{what}");
    for (a, b) in got.iter_f64().zip(expected.iter_f64()) {
        let allowed = if got.dtype().is_float() { 1e-5 + 2e-5 * b.abs() } else { 0.0 };
        assert!(a == b || (a - b).abs() <= allowed, "{what}: {a} instead of {b}");
    }
}

/// Every sample of an archive on every backend, all through one compilation, gives what PyTorch gave.
fn holds(name: &str, samples: usize) {
    let (program, golden) = load(name);
    for backend in backends() {
        let compiled = program.compile(&Options::new().backend(backend)).unwrap();
        let mut seen = 0;
        while let Some(inputs) = sample(&program, &golden, seen) {
            let outputs = compiled.call_with(&inputs).unwrap();
            assert!(!outputs.is_empty());
            for (n, output) in outputs.iter().enumerate() {
                let expected = &golden.tensors[&format!("s{seen}.out{n}")];
                assert_close(output, expected, &format!("{name}, sample {seen}, out{n}, {backend}"));
            }
            assert!(!golden.tensors.contains_key(&format!("s{seen}.out{}", outputs.len())));
            seen += 1;
        }
        assert_eq!(seen, samples, "{name}");
    }
}

#[test]
fn integers_that_are_computed_with() {
    holds("number", 4);
}

#[test]
fn integers_that_are_sizes() {
    holds("number_sizes", 3);
}

#[test]
fn integers_that_agree_with_sizes_and_with_each_other() {
    holds("number_agree", 2);
}

#[test]
fn constants_may_be_left_out() {
    holds("constants", 2);
}

/// What is only computed with is loaded by the kernels: nothing waits for it and no shape depends on it.
#[test]
fn symbols_are_bound_only_where_sizes_depend_on_them() {
    let binds = |name: &str| {
        let kernels = load(name).0.kernels().unwrap();
        kernels.steps.iter().filter(|s| s.kind() == "bind").count()
    };
    assert_eq!([binds("number"), binds("constants"), binds("number_agree")], [0, 0, 0]);
    assert_eq!(binds("number_sizes"), 2);
}

fn kinds(program: &Program) -> Vec<String> {
    program.inputs().iter().map(|i| format!("{}: {}", i.name, i.kind)).collect()
}

#[test]
fn inputs_say_what_they_are() {
    assert_eq!(
        kinds(&load("constants").0),
        [
            "x: f32[s0, 4]",
            "n: 3",
            "k: an integer",
            "scale: 2.5",
            "flag: true",
            "mode: \"sine\"",
            "mask: none"
        ]
    );
    assert_eq!(
        kinds(&load("number_sizes").0),
        ["x: f32[8, 4]", "k: an integer from 0 to 8", "j: an integer of at least 1"]
    );
}

fn compiled(name: &str) -> (Compiled, Tensor) {
    let (program, golden) = load(name);
    let x = golden.tensors["s0.x"].clone();
    (program.compile(&Options::new().backend("eager")).unwrap(), x)
}

fn refused(model: &Compiled, inputs: &[Input]) -> String {
    model.call_with(inputs).unwrap_err().to_string()
}

#[test]
fn constants_are_compared() {
    let (model, x) = compiled("constants");
    let x = || Input::from(&x);
    let good = [x(), 3.into(), 5.into(), 2.5.into(), true.into(), "sine".into(), ().into()];
    let expected = model.call_with(&[x(), 5.into()]).unwrap();
    let with = |n: usize, input: Input| {
        let mut inputs = good.clone();
        inputs[n] = input;
        inputs
    };
    // Equal is what Python calls equal.
    for inputs in [good.to_vec(), with(1, 3.0.into()).into(), with(4, 1.into()).into()] {
        assert_close(&model.call_with(&inputs).unwrap()[0], &expected[0], "constants");
    }
    let zero_dim = Tensor::from_vec(vec![3i64], &[]).unwrap();
    assert!(model.call_with(&with(1, zero_dim.into())).is_ok());
    for (n, input, message) in [
        (1, Input::Int(4), "expected input 1 (`n`) to be equal to 3, but got the integer 4"),
        (1, "3".into(), "to be equal to 3, but got the text \"3\""),
        (3, 2.into(), "expected input 3 (`scale`) to be equal to 2.5, but got the integer 2"),
        (4, false.into(), "expected input 4 (`flag`) to be equal to true, but got the bool false"),
        (
            5,
            "cosine".into(),
            "expected input 5 (`mode`) to be equal to \"sine\", but got the text \"cosine\"",
        ),
        (6, x(), "expected input 6 (`mask`) to be equal to none, but got the tensor f32[3, 4]"),
    ] {
        let inputs = with(n, input);
        assert!(matches!(model.call_with(&inputs), Err(Error::ConstantInput { index, .. }) if index == n));
        assert!(refused(&model, &inputs).contains(message), "{}", refused(&model, &inputs));
    }
}

#[test]
fn other_kinds_and_counts_are_refused() {
    let (model, x) = compiled("constants");
    let x = || Input::from(&x);
    for (inputs, message) in [
        (vec![x(), 2.5.into()], "input 1 (`k`) is the float 2.5, the model wants an integer"),
        (vec![x(), "5".into()], "input 1 (`k`) is the text \"5\", the model wants an integer"),
        (vec![x(), x()], "input 1 (`k`) is the tensor f32[3, 4], the model wants an integer"),
        (vec![3.into(), 5.into()], "input 0 (`x`) is the integer 3, the model wants f32[s0, 4]"),
    ] {
        assert!(matches!(model.call_with(&inputs), Err(Error::InputKind { .. })));
        assert_eq!(refused(&model, &inputs), message);
    }
    let message = refused(&model, &[x()]);
    let names = "(x, n = 3, k, scale = 2.5, flag = true, mode = \"sine\", mask = none)";
    assert_eq!(message, format!("the model takes 7 inputs {names}, 1 were given"));
    // A truth value is an integer, and so is a tensor of one integer.
    let expected = model.call_with(&[x(), 1.into()]).unwrap();
    for one in [true.into(), Tensor::from_vec(vec![1i32], &[]).unwrap().into()] {
        assert_close(&model.call_with(&[x(), one]).unwrap()[0], &expected[0], "one");
    }
}

#[test]
fn integers_out_of_range_and_in_disagreement_are_refused() {
    let (model, x) = compiled("number_sizes");
    let call = |k: i64, j: i64| model.call_with(&[(&x).into(), k.into(), j.into()]);
    assert!(call(8, 2).is_ok());
    let refused = |k, j| call(k, j).unwrap_err().to_string();
    assert_eq!(refused(9, 2), "input 1 (`k`): is 9, the model wants an integer from 0 to 8");
    assert_eq!(refused(-1, 2), "input 1 (`k`): is -1, the model wants an integer from 0 to 8");
    assert_eq!(refused(3, 0), "input 2 (`j`): is 0, the model wants an integer of at least 1");

    let (model, x) = compiled("number_agree");
    let y = Tensor::zeros(DType::F32, &[5, 2]).unwrap();
    let refused = |k: i64, m: i64, j: i64| {
        let inputs = [(&x).into(), (&y).into(), k.into(), m.into(), j.into()];
        model.call_with(&inputs).unwrap_err().to_string()
    };
    assert_eq!(refused(4, 4, 2), "input 2 (`k`): is 4, the inputs before it make it 3");
    assert_eq!(refused(3, 6, 2), "input 4 (`j`): is 2, the inputs before it make it 3");
    assert_eq!(refused(3, 5, 2), "input 3 (`m`): is 5, it must be `2*s60` of an integer");
}

/// What PyTorch's module refuses with "Guard failed", though range and sizes allow it.
#[test]
fn guards_on_integers_hold() {
    let (program, golden) = load("number_sizes");
    let x = &golden.tensors["s0.x"];
    let (agreeing, golden) = load("number_agree");
    let (x_of_agreeing, y) = (&golden.tensors["s0.x"], Tensor::zeros(DType::F32, &[6, 2]).unwrap());
    let (loss, golden) = load("number_loss");
    let x_of_loss = &golden.tensors["s0.x"];
    for backend in backends() {
        let options = Options::new().backend(backend);
        let guarded = |result: Result<Vec<Tensor>, Error>, code: &str| match result {
            Err(Error::Guard { message, .. }) => assert!(message.contains(code), "{backend}: {message}"),
            other => panic!("{backend}: {other:?}"),
        };
        let model = program.compile(&options).unwrap();
        let call = |k: i64, j: i64| model.call_with(&[x.into(), k.into(), j.into()]);
        guarded(call(1, 2), "L['k'] != 1");
        guarded(call(0, 2), "4*L['k'] >= 2");
        guarded(call(2, 1), "L['j'] != 1");
        let model = agreeing.compile(&options).unwrap();
        let inputs = [x_of_agreeing.into(), (&y).into(), 3.into(), 4.into(), 2.into()];
        guarded(model.call_with(&inputs), "L['y'].size()[0] == (L['k'] + L['j'])");
        let model = loss.differentiate(&loss.usual_gradients(), &options).unwrap();
        let forward = model.forward_with(&[x_of_loss.into(), 1.into(), 2.into()]);
        guarded(forward.map(|(outputs, _)| outputs), "L['k'] != 1");
        let sgd = TrainOptions::new(Optimizer::Sgd(Sgd::default()));
        let mut step = loss.train_step(&sgd, &options).unwrap();
        let step = step.step_with(&[x_of_loss.into(), 1.into(), 2.into()], 0.1);
        guarded(step.map(|outcome| outcome.outputs), "L['k'] != 1");
    }
}

/// Tensors without dimensions stand for numbers, on the host and through the calls for tensors of a device.
#[test]
fn tensors_stand_for_numbers() {
    let (program, golden) = load("number");
    let (x, k) = (golden.tensors["s0.x"].clone(), golden.tensors["s0.k"].clone());
    for backend in backends() {
        let model = program.compile(&Options::new().backend(backend)).unwrap();
        let expected = &golden.tensors["s0.out0"];
        assert_close(&model.call(&[x.clone(), k.clone()]).unwrap()[0], expected, backend);
        let placed = [model.to_device(&x).unwrap(), Value::Host(k.clone())];
        let outputs = model.call_values(&placed).unwrap();
        assert_close(&model.to_host(outputs[0].clone()).unwrap(), expected, backend);
        let mixed = [placed[0].clone().into(), 3.into()];
        let outputs = model.call_values_with(&mixed).unwrap();
        assert_close(&model.to_host(outputs[0].clone()).unwrap(), expected, backend);
        let many = [x.clone(), k.clone(), k.clone()];
        assert!(matches!(model.call(&many), Err(Error::InputCount { expected: 2, given: 3, .. })));
        let values = many.map(Value::Host);
        assert!(matches!(model.call_values(&values), Err(Error::InputCount { .. })));
    }
}

/// Gradients and training steps of a loss that numbers decide about.
#[test]
fn numbers_of_a_loss() {
    let (program, golden) = load("number_loss");
    for backend in backends() {
        let options = Options::new().backend(backend);
        let model = program.differentiate(&program.usual_gradients(), &options).unwrap();
        for s in 0..2 {
            let inputs = sample(&program, &golden, s).unwrap();
            let (outputs, saved) = model.forward_with(&inputs).unwrap();
            assert_close(&outputs[0], &golden.tensors[&format!("s{s}.out0")], backend);
            let gradients = saved.backward(&[]).unwrap();
            for name in ["l.weight", "l.bias"] {
                let expected = &golden.tensors[&format!("s{s}.grad:{name}")];
                let gradient = gradients.0.iter().find(|g| g.name == name).unwrap();
                assert_close(gradient.tensor.as_ref().unwrap(), expected, &format!("{name}, {backend}"));
            }
        }
        let sgd = TrainOptions::new(Optimizer::Sgd(Sgd::default()));
        let mut step = program.train_step(&sgd, &options).unwrap();
        let inputs = sample(&program, &golden, 0).unwrap();
        let before = step.weights().unwrap()["l.bias"].clone();
        step.step_with(&inputs, 0.5).unwrap();
        let after = step.weights().unwrap()["l.bias"].clone();
        let moved = before.iter_f64().zip(golden.tensors["s0.grad:l.bias"].iter_f64());
        let expected: Vec<f32> = moved.map(|(w, g)| (w - 0.5 * g) as f32).collect();
        assert_close(&after, &Tensor::from_vec(expected, &[3]).unwrap(), backend);
        assert!(matches!(step.step_with(&inputs[..1], 0.5), Err(Error::InputCount { .. })));
    }
}

/// Exporting makes no floats and truth values dynamic; other front ends may. An integer of several symbols, and a size that
/// integers alone determine, are rare in archives too.
const OTHER: &str = r#"fx 1.0
graph "other" {
  symbol s0 "k" 0..=100
  symbol s1 "half" 0..
  symbol s2 "j" 1..
  %x: i64[3] = input "x"
  %y: f32[2, s0*s2] = input "y"
  %scale: float = input "scale"
  %flag: bool = input "flag"
  %k: int(s0) = input "k"
  %m: int(2*s1 + s0) = input "m"
  %j: int(s2) = input "j"

  %mul: f32[3] = aten.mul.Tensor(%x, %scale)
  %add: f32[3] = aten.add.Tensor(%mul, %flag, 1)
  %full: f64[s1] = aten.full.default([s1], %scale, f64, none, none, none)
  %sum: f32[2] = aten.sum.dim_IntList(%y, [1], false, none)
  %twice: f32[2, s0*s2] = aten.mul_.Tensor(%y, %j)
  return %add
  return %full
  return %sum
  return %m
  return %flag
}
"#;

fn other() -> Program {
    Program::from_graph(OTHER.parse().unwrap(), &BTreeMap::new()).unwrap()
}

#[test]
fn floats_truth_values_and_sizes_of_several_integers() {
    let program = other();
    let x = Tensor::from_vec(vec![1i64, -2, 5], &[3]).unwrap();
    let y = Tensor::from_vec((0..12).map(|n| n as f32).collect(), &[2, 6]).unwrap();
    for backend in backends() {
        let model = program.compile(&Options::new().backend(backend)).unwrap();
        let call = |k: i64, m: i64, j: i64, flag: Input| {
            let y = Input::from(&y);
            model.call_with(&[(&x).into(), y, 2.5.into(), flag, k.into(), m.into(), j.into()])
        };
        let outputs = call(2, 8, 3, true.into()).unwrap();
        // Integers times a float are PyTorch's default float, whatever the width of the number.
        let expected = Tensor::from_vec(vec![3.5f32, -4.0, 13.5], &[3]).unwrap();
        assert_close(&outputs[0], &expected, backend);
        assert_close(&outputs[1], &Tensor::from_vec(vec![2.5f64; 3], &[3]).unwrap(), backend);
        assert_close(&outputs[2], &Tensor::from_vec(vec![15f32, 51.0], &[2]).unwrap(), backend);
        assert_close(&outputs[3], &Tensor::from_vec(vec![8i64], &[]).unwrap(), backend);
        assert_close(&outputs[4], &Tensor::scalar(DType::Bool, true.into()).unwrap(), backend);
        let outputs = call(6, 6, 1, false.into()).unwrap();
        assert_eq!(outputs[1].sizes(), [0]);
        assert_close(&outputs[3], &Tensor::from_vec(vec![6i64], &[]).unwrap(), backend);
        for (refused, message) in [
            (call(2, 8, 2, true.into()), "`k*j` is 4 by the sizes before, not 6"),
            (call(2, 7, 3, true.into()), "input 5 (`m`): is 7, it must be `k + 2*half` of an integer"),
            (call(101, 101, 1, true.into()), "the model wants an integer from 0 to 100"),
            (call(2, 8, 3, 1.into()), "input 3 (`flag`) is the integer 1, the model wants a bool"),
        ] {
            let message_of = refused.unwrap_err().to_string();
            assert!(message_of.contains(message), "{message_of}");
        }
        // What the model writes is the caller's second input.
        let mut inputs = [&x, &y].map(Tensor::clone).to_vec();
        let number = |n: i64| Tensor::from_vec(vec![n], &[]).unwrap();
        inputs.push(Tensor::from_vec(vec![2.5f64], &[]).unwrap());
        inputs.push(Tensor::scalar(DType::Bool, true.into()).unwrap());
        inputs.extend([2, 8, 3].map(number));
        model.call_mut(&mut inputs).unwrap();
        let expected: Vec<f32> = (0..12).map(|n| 3.0 * n as f32).collect();
        assert_close(&inputs[1], &Tensor::from_vec(expected, &[2, 6]).unwrap(), backend);
    }
}
