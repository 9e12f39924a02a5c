//! Programs of graphs that no archive holds: what they are given as weights, and what is refused.

use std::collections::BTreeMap;

use ferroflux::{Error, Options, Program, Tensor, Weight};

const LINEAR: &str = r#"fx 1.0
graph "linear" {
  symbol s0 "batch" 1..=8 hint 2
  %x: f32[s0, 2] = input "x"
  %w: f32[2, 2] = parameter "w"
  %count: i64[] = buffer "count"

  %y: f32[s0, 2] = aten.mm.default(%x, %w)
  %more: i64[] = aten.add_.Scalar(%count, 1, 1)
  return %y
  return %more
}
"#;

fn weights() -> BTreeMap<String, Tensor> {
    let w = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
    let count = Tensor::from_vec(vec![7_i64], &[]).unwrap();
    BTreeMap::from([("w".into(), w), ("count".into(), count)])
}

#[test]
fn it_runs_and_keeps_its_buffers() {
    let program = Program::from_graph(LINEAR.parse().unwrap(), &weights()).unwrap();
    assert_eq!(program.name(), "linear");
    assert_eq!(program.inputs().len(), 1);
    for backend in ["cpu", "eager", "oracle"] {
        let model = program.compile(&Options::new().backend(backend)).unwrap();
        for (rows, count) in [(1, 8), (3, 9)] {
            let x = Tensor::from_vec(vec![1.0_f32; 2 * rows], &[rows, 2]).unwrap();
            let outputs = model.call(&[x]).unwrap();
            assert_eq!(outputs[0].to_vec::<f32>().unwrap(), [4.0, 6.0].repeat(rows), "{backend}");
            assert_eq!(outputs[1].to_vec::<i64>().unwrap(), [count], "{backend}");
        }
    }
}

#[test]
fn weights_may_be_given_later() {
    let only_count = |w: &Weight| Ok(weights().remove(&w.name).filter(|_| w.name == "count"));
    let mut program = Program::from_graph(LINEAR.parse().unwrap(), &only_count).unwrap();
    let missing: Vec<String> = program.missing_weights().map(ToString::to_string).collect();
    assert_eq!(missing, ["w: f32[2, 2]"]);
    let refused = program.compile(&Options::new()).err().unwrap();
    assert!(matches!(refused, Error::MissingWeights { count: 1, .. }), "{refused}");
    program.set_weight("w", weights()["w"].clone()).unwrap();
    program.compile(&Options::new()).unwrap();
}

#[test]
fn what_does_not_fit_is_refused() {
    let error = |text: &str, weights: &BTreeMap<String, Tensor>| {
        Program::from_graph(text.parse().unwrap(), weights).err().unwrap().to_string()
    };
    let mut wrong = weights();
    wrong.insert("w".into(), Tensor::from_vec(vec![1.0_f32; 6], &[3, 2]).unwrap());
    let message = error(LINEAR, &wrong);
    assert!(
        message.contains("`w`") && message.contains("f32[3, 2]") && message.contains("f32[2, 2]"),
        "{message}"
    );
    let symbolic = LINEAR.replace("%w: f32[2, 2]", "%w: f32[2, s0]");
    assert!(error(&symbolic, &weights()).contains("sizes are numbers"));
    let twice = LINEAR.replace("buffer \"count\"", "buffer \"w\"");
    assert!(error(&twice, &weights()).contains("two weights have this name"));
    let unknown = LINEAR.replace("return %y", "return buffer \"none\" = %y");
    assert!(error(&unknown, &weights()).contains("no such input exists"));
}

/// A product of a matrix with its own transpose, both expanded: dimensions of size 1 stand between the expanded one and the rows.
const EXPANDED_PRODUCT: &str = r#"fx 1.0
graph "gram" {
  %x: f32[1, 1, 1, 8, 9] = input "x"
  %a: f32[1, 4, 1, 8, 9] = aten.expand.default(%x, [1, 4, 1, 8, 9])
  %t: f32[1, 4, 1, 9, 8] = aten.transpose.int(%a, 3, 4)
  %y: f32[1, 4, 1, 8, 8] = aten.matmul.default(%a, %t)
  return %y
}
"#;

#[test]
fn expanded_products_fill_every_entry() {
    let program = Program::from_graph(EXPANDED_PRODUCT.parse().unwrap(), &BTreeMap::new()).unwrap();
    let x: Vec<f32> = (0..72).map(|i| (i % 11) as f32 - 5.0).collect();
    let x = Tensor::from_vec(x, &[1, 1, 1, 8, 9]).unwrap();
    let run = |backend: &str| {
        let model = program.compile(&Options::new().backend(backend)).unwrap();
        model.call(std::slice::from_ref(&x)).unwrap()[0].to_vec::<f32>().unwrap()
    };
    assert_eq!(run("cpu"), run("eager"));
}

/// A number that `f32` cannot hold: the order of a norm, whose reciprocal is 0 there.
const NORM: &str = r#"fx 1.0
graph "norm" {
  %x: f32[3] = input "x"
  %y: f32[] = aten.linalg_vector_norm.default(%x, 1.7976931348623157e308, [0], false)
  return %y
}
"#;

#[test]
fn numbers_are_rounded_to_the_dtype_they_meet() {
    let program = Program::from_graph(NORM.parse().unwrap(), &BTreeMap::new()).unwrap();
    let x = Tensor::from_vec(vec![3.0_f32, 2.0, 0.5], &[3]).unwrap();
    for backend in ["eager", "oracle", "cpu"] {
        let model = program.compile(&Options::new().backend(backend)).unwrap();
        // The sum of infinite powers is infinite; its power of 0 is 1.
        let y = model.call(std::slice::from_ref(&x)).unwrap();
        assert_eq!(y[0].to_vec::<f32>().unwrap(), [1.0], "{backend}");
    }
}

/// The gradient of pooling from positions adds to memory of a host, where windows overlap, and gathers in memory of a device.
#[test]
fn decompositions_know_whose_memory_a_program_runs_in() {
    const POOL: &str = r#"fx 1.0
graph "pool" {
  %g: f32[1, 2, 3, 3] = input "g"
  %x: f32[1, 2, 6, 6] = input "x"
  %at: i64[1, 2, 3, 3] = input "at"
  %dx: f32[1, 2, 6, 6] = aten.max_pool2d_with_indices_backward.default(%g, %x, [3, 3], [2, 2], [1, 1], [1, 1], false, %at)
  return %dx
}
"#;
    let program = Program::from_graph(POOL.parse().unwrap(), &BTreeMap::new()).unwrap();
    // In each row of windows the first two have chosen the same element.
    let at: Vec<i64> = (0..18).map(|i| [1, 1, 3][i % 3] + 6 * [0, 1, 3][i / 3 % 3]).collect();
    let given = [
        Tensor::from_vec((1..19).map(|i| i as f32).collect(), &[1, 2, 3, 3]).unwrap(),
        Tensor::zeros(ferroflux::DType::F32, &[1, 2, 6, 6]).unwrap(),
        Tensor::from_vec(at.clone(), &[1, 2, 3, 3]).unwrap(),
    ];
    let mut wanted = vec![0.0_f32; 72];
    at.iter().enumerate().for_each(|(i, place)| wanted[36 * (i / 9) + *place as usize] += (i + 1) as f32);
    let mut backends = vec![("cpu", true)];
    if gpu_emulator::available().is_ok() {
        backends.push(("gpu-emulator", false));
    }
    for (backend, adds) in backends {
        let code = program.compile(&Options::new().backend(backend)).unwrap();
        assert_eq!(code.call(&given).unwrap()[0].to_vec::<f32>().unwrap(), wanted, "{backend}");
        // What gathers is one loop; what adds has to begin with zeros.
        let count = code.explain().kernels.len();
        assert_eq!(count > 1, adds, "{backend}: {count} kernels");
    }
}
