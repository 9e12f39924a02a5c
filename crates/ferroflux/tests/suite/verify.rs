//! The comparison with float64: what is right is called right on every backend, and a wrong operator is named with its place.

use std::collections::BTreeMap;

use ferroflux::fx_ir::{Graph, NodeKind};
use ferroflux::graph_backend::{EAGER, GraphCompiler, GraphExecutable, PluginError, register_graph_backend};
use ferroflux::minify::{Failure, Probe, minify};
use ferroflux::optim::{Adam, Optimizer, Sgd};
use ferroflux::tensor::formula;
use ferroflux::train::{Clip, TrainOptions};
use ferroflux::{Input, Options, Program, Tensor};

/// Runs `tanh` as another operator.
struct WrongTanh(&'static str);

impl GraphCompiler for WrongTanh {
    fn compile(&self, mut graph: Graph) -> Result<Box<dyn GraphExecutable>, PluginError> {
        for (_, node) in graph.nodes.iter_mut() {
            if let NodeKind::Call { target, .. } = &mut node.kind
                && target == "aten.tanh.default"
            {
                *target = self.0.to_owned();
            }
        }
        EAGER.compile(graph)
    }
}

/// As [`WrongTanh`], but only where nothing but the last value is returned: as a wrong fusion would be.
struct WrongWhenAlone;

impl GraphCompiler for WrongWhenAlone {
    fn compile(&self, graph: Graph) -> Result<Box<dyn GraphExecutable>, PluginError> {
        match graph.outputs.len() {
            1 => WrongTanh("aten.sin.default").compile(graph),
            _ => EAGER.compile(graph),
        }
    }
}

register_graph_backend!("wrong-tanh", "runs tanh as sin", WrongTanh("aten.sin.default"));
register_graph_backend!("wrong-when-alone", "runs tanh as sin where one value is returned", WrongWhenAlone);

const NET: &str = r#"fx 1.0
graph "net" {
  %x: f32[4, 8] = input "x"
  %w: f32[8, 8] = parameter "w"
  %b: f32[8] = parameter "b"

  %h: f32[4, 8] = aten.linear.default(%x, %w, %b)
  %t: f32[4, 8] = aten.tanh.default(%h)
  %s: f32[4, 8] = aten.softmax.int(%t, 1, none)
  %e: f32[4, 8] = aten.exp.default(%s)
  %m: bool[4, 8] = aten.gt.Scalar(%e, 1.1)
  %y: f32[4, 8] = aten.mul.Tensor(%e, %m)
  return %y
}
"#;

fn net(dtype: &str) -> (Program, Vec<Input>) {
    let graph: Graph = NET.replace("f32", dtype).parse().unwrap();
    let dtype = dtype.parse().unwrap();
    let fill =
        |name: &str, sizes: &[usize]| formula::fill(name, sizes, 1.0, 0.0).unwrap().to_dtype(dtype).unwrap();
    let weights = BTreeMap::from([("w".to_owned(), fill("w", &[8, 8])), ("b".to_owned(), fill("b", &[8]))]);
    let program = Program::from_graph(graph, &weights).unwrap();
    (program, vec![fill("x", &[4, 8]).into()])
}

#[test]
fn right_programs_are_called_right() {
    for dtype in ["f32", "bf16", "f64"] {
        let (program, inputs) = net(dtype);
        for backend in ["cpu", "eager", "oracle"] {
            let found = program.verify(&inputs, &Options::new().backend(backend)).unwrap();
            assert_eq!(found.values.len(), 6);
            assert!(found.first.is_none(), "{dtype} on {backend}: {found:?}");
            // The comparison compares: rounding shows.
            let rounding = found.values.iter().map(|v| v.error).fold(0.0, f64::max);
            assert!(dtype == "f64" || rounding > 0.0, "{dtype} on {backend}");
        }
    }
}

#[test]
fn the_first_wrong_operator_is_named() {
    let (program, inputs) = net("f32");
    let found = program.verify(&inputs, &Options::new().backend("wrong-tanh")).unwrap();
    let wrong = found.first_wrong().unwrap();
    assert_eq!((wrong.node.as_str(), wrong.target.as_str()), ("t", "aten.tanh.default"));
    assert!(wrong.own_error.unwrap() > 0.01 && !found.only_fused, "{wrong:?}");
    // What follows is off, but by what it was given: its own operators are right.
    let over: Vec<&str> = found.values.iter().filter(|v| !v.fits).map(|v| v.node.as_str()).collect();
    assert_eq!(over, ["t"]);
    assert!(found.values.iter().find(|v| v.node == "e").unwrap().error > 1e-3);
}

#[test]
fn what_is_wrong_only_when_fused_is_found_by_bisection() {
    let (program, inputs) = net("f32");
    let found = program.verify(&inputs, &Options::new().backend("wrong-when-alone")).unwrap();
    let wrong = found.first_wrong().unwrap();
    assert!(found.only_fused);
    assert_eq!(wrong.node, "t", "{found:?}");
}

const RANDOM: &str = r#"fx 1.0
graph "random" {
  symbol s0 "batch" 1..=8 hint 2
  %x: f32[s0, 4] = input "x"
  %d: f32[s0, 4] = aten.dropout.default(%x, 0.5, true)
  %r: f32[s0, 4] = aten.rand_like.default(%d, none, none, none, none, none)
  %y: f32[s0, 4] = aten.add.Tensor(%d, %r, 1)
  return %y
}
"#;

#[test]
fn random_numbers_and_symbolic_sizes_are_compared_too() {
    let program = Program::from_graph(RANDOM.parse().unwrap(), &BTreeMap::new()).unwrap();
    let x = Tensor::from_vec((0..12).map(|i| i as f32 + 1.0).collect(), &[3, 4]).unwrap();
    for backend in ["cpu", "eager", "oracle"] {
        let found = program.verify(&[x.clone().into()], &Options::new().backend(backend)).unwrap();
        assert!(found.first.is_none(), "{backend}: {found:?}");
    }
}

const FILLED: &str = r#"fx 1.0
graph "filled" {
  %x: f32[4] = input "x"
  %n: i64[4] = input "n"
  %o: f32[4] = aten.ones.default([4], none, none, none, none)
  %f: f32[4] = aten.to.dtype(%n, f32, false, false, none)
  %y: f32[4] = aten.add.Tensor(%x, %o, 1)
  %z: f32[4] = aten.mul.Tensor(%y, %f)
  %m: f32[], %i: i64[] = aten.max.dim(%z, 0, false)
  return %m
}
"#;

/// The call of `ones` names no dtype, and nothing reads the position of the largest element.
#[test]
fn floats_that_no_float_goes_into_and_values_that_nothing_reads_are_no_obstacle() {
    let program = Program::from_graph(FILLED.parse().unwrap(), &BTreeMap::new()).unwrap();
    let x = Tensor::from_vec(vec![0.1_f32, 0.2, 0.3, 0.4], &[4]).unwrap();
    let n = Tensor::from_vec(vec![3_i64, 1, 4, 1], &[4]).unwrap();
    for backend in ["cpu", "eager", "oracle"] {
        let inputs = [x.clone().into(), n.clone().into()];
        let found = program.verify(&inputs, &Options::new().backend(backend)).unwrap();
        let names: Vec<&str> = found.values.iter().map(|v| v.node.as_str()).collect();
        assert_eq!(names, ["o", "f", "y", "z", "m"]);
        assert!(found.first.is_none(), "{backend}: {found:?}");
    }
}

/// Runs `cos` as `sin`. A forward that has no cosine is right on it; the backward of a sine is not.
struct WrongCos;

impl GraphCompiler for WrongCos {
    fn compile(&self, mut graph: Graph) -> Result<Box<dyn GraphExecutable>, PluginError> {
        for (_, node) in graph.nodes.iter_mut() {
            if let NodeKind::Call { target, .. } = &mut node.kind
                && target == "prims.cos"
            {
                *target = "prims.sin".to_owned();
            }
        }
        EAGER.compile(graph)
    }
}

register_graph_backend!("wrong-cos", "runs cos as sin", WrongCos);

const LOSS: &str = r#"fx 1.0
graph "net" {
  %x: f32[4, 8] = input "x"
  %target: i64[4] = input "target"
  %w: f32[8, 8] = parameter "w"
  %b: f32[8] = parameter "b"
  %v: f32[3, 8] = parameter "v"
  %count: f32[] = buffer "count"

  %h: f32[4, 8] = aten.linear.default(%x, %w, %b)
  %t: f32[4, 8] = aten.sin.default(%h)
  %d: f32[4, 8] = aten.dropout.default(%t, 0.25, true)
  %y: f32[4, 3] = aten.linear.default(%d, %v, none)
  %loss: f32[] = aten.cross_entropy_loss.default(%y, %target, none, 1, -100, 0.0)
  %new: f32[] = aten.add.Tensor(%count, 1, 1)
  return %loss
  return buffer "count" = %new
}
"#;

fn loss() -> (Program, Vec<Input>) {
    let fill = |name: &str, sizes: &[usize]| formula::fill(name, sizes, 1.0, 0.0).unwrap();
    let names: [(&str, &[usize]); 4] = [("w", &[8, 8]), ("b", &[8]), ("v", &[3, 8]), ("count", &[])];
    let weights: BTreeMap<String, Tensor> =
        names.iter().map(|(name, sizes)| ((*name).to_owned(), fill(name, sizes))).collect();
    let program = Program::from_graph(LOSS.parse().unwrap(), &weights).unwrap();
    let target = Tensor::from_vec(vec![0_i64, 2, 1, 2], &[4]).unwrap();
    (program, vec![fill("x", &[4, 8]).into(), target.into()])
}

fn steps() -> [TrainOptions; 3] {
    let sgd = || TrainOptions::new(Optimizer::Sgd(Sgd { momentum: 0.9, ..Sgd::default() }));
    let clip = Clip::Norm { max: 0.5, error_if_nonfinite: true };
    [sgd(), sgd().clip(clip), TrainOptions::new(Optimizer::Adam(Adam::adamw()))]
}

/// The values of a step as a program are those of a step that trains.
#[test]
fn a_step_as_a_program_computes_what_a_step_computes() {
    let (program, inputs) = loss();
    let tensors: Vec<Tensor> = inputs
        .iter()
        .map(|input| match input {
            Input::Tensor(ferroflux::Value::Host(t)) => t.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    for train in steps() {
        let options = Options::new().backend("eager").seed(3);
        let step = program.step_program(&train, 0.1, &options).unwrap();
        let compiled = step.program().compile(&options).unwrap();
        let outputs = compiled.call_with(&step.inputs(&inputs).unwrap()).unwrap();
        let mut trained = program.train_step(&train, &options).unwrap();
        let outcome = trained.step(&tensors, 0.1).unwrap();
        assert_eq!(outputs[0].item().unwrap().as_f64(), outcome.loss, "{train:?}");
        // Nothing of the program has changed, so a second call gives the loss of the first.
        let again = compiled.call_with(&step.inputs(&inputs).unwrap()).unwrap();
        assert_eq!(again.len(), outputs.len());
        let of = |p: &Program| p.weight("w").unwrap().to_vec::<f32>().unwrap();
        assert_eq!(of(step.program()), of(&program));
    }
}

#[test]
fn right_training_steps_are_called_right() {
    let (program, inputs) = loss();
    for (train, backend) in steps().iter().zip(["cpu", "eager", "oracle"]) {
        let options = Options::new().backend(backend);
        let step = program.step_program(train, 0.1, &options).unwrap();
        let found = step.program().verify(&step.inputs(&inputs).unwrap(), &options).unwrap();
        assert!(found.first.is_none(), "{backend}: {:?}", found.first_wrong());
        // The backward's cosine and products are among the values, and rounding shows.
        assert!(found.values.iter().any(|v| v.target == "prims.cos"), "{found:?}");
        assert!(found.values.iter().filter(|v| v.target == "prims.matmul").count() >= 4, "{found:?}");
        assert!(found.values.iter().any(|v| v.error > 0.0), "{backend}");
    }
}

#[test]
fn a_fault_in_a_backward_is_named_and_comes_out() {
    let (program, inputs) = loss();
    let options = Options::new().backend("wrong-cos");
    assert!(program.verify(&inputs, &options).unwrap().first.is_none(), "the forward is right");
    let step = program.step_program(&steps()[0], 0.1, &options).unwrap();
    let inputs = step.inputs(&inputs).unwrap();
    let found = step.program().verify(&inputs, &options).unwrap();
    let wrong = found.first_wrong().unwrap();
    assert_eq!(wrong.target, "prims.cos", "{wrong}");
    assert!(wrong.own_error.unwrap() > 0.01 && !found.only_fused, "{wrong:?}");
    let over = found.values.iter().filter(|v| !v.fits).count();
    assert_eq!(over, 1, "what follows is off by what it was given");

    let (case, probe) = (step.program().case(&inputs).unwrap(), Probe::new(&options));
    assert!(case.calls() > 20);
    let small = minify(&case, &mut |case| probe.observe(case).is(Failure::Wrong)).expect("it fails");
    assert_eq!(small.after, 1, "{}", small.case.graph);
    let targets: Vec<&str> =
        small.case.graph.iter().filter_map(|(_, n)| n.as_call()).map(|(t, _)| t).collect();
    assert_eq!(targets, ["prims.cos"]);
}
