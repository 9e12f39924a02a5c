//! Joint graphs of small programs: their text, what is refused and how, and that the two halves of a partition compute
//! together what the joint graph computes.

#![allow(clippy::unwrap_used)] // a failing test may panic

use aot_autograd::{JointError, JointOptions, Tangents, Wrt, joint, partition};
use expect_test::expect;
use fx_ir::{Arg, Graph, InputKind, OutputKind};
use interp::Value;
use ir_core::{DType, Scalar};
use tensor::Tensor;

const LOSS: JointOptions = JointOptions { wrt: Wrt::ParametersAndInputs, tangents: Tangents::Loss };

fn prims_of(text: &str) -> Graph {
    let graph: Graph = text.parse().unwrap();
    prims::decompose(&graph).unwrap()
}

/// sin² + cos² of one number, summed with itself: its gradient is zero.
const CIRCLE: &str = r#"fx 1.0

graph "circle" {
  %x: f64[3] = input "x"

  %s: f64[3] = aten.sin.default(%x)
  %c: f64[3] = aten.cos.default(%x)
  %ss: f64[3] = aten.mul.Tensor(%s, %s)
  %cc: f64[3] = aten.mul.Tensor(%c, %c)
  %sum: f64[3] = aten.add.Tensor(%ss, %cc, 1)
  %loss: f64[] = aten.sum.default(%sum, none)
  return %loss
}
"#;

fn floats(values: &[f64], sizes: &[usize]) -> Tensor {
    Tensor::from_vec(values.to_vec(), sizes).unwrap()
}

#[test]
fn the_circle_has_no_slope() {
    let joint = joint(&prims_of(CIRCLE), &LOSS).unwrap();
    fx_ir::well_formed(&joint.graph).unwrap();
    let outs = interp::run(&joint.graph, &[floats(&[0.3, -1.2, 2.5], &[3])]).unwrap();
    assert!((outs[0].item().unwrap().as_f64() - 3.0).abs() < 1e-12);
    assert!(outs[1].iter_f64().all(|g| g.abs() < 1e-15), "{:?}", outs[1].iter_f64().collect::<Vec<_>>());
    assert_eq!(joint.graph.outputs[1].kind, OutputKind::InputGradient("x".into()));
}

#[test]
fn halves_compute_what_the_whole_computes() {
    let joint = joint(&prims_of(CIRCLE), &LOSS).unwrap();
    let x = Value::Tensor(floats(&[0.3, -1.2, 2.5], &[3]));
    let whole = interp::execute(&joint.graph, vec![x.clone()]).unwrap().outputs;
    let halves = partition(&joint).unwrap();
    fx_ir::well_formed(&halves.forward).unwrap();
    fx_ir::well_formed(&halves.backward).unwrap();
    let forward = interp::execute(&halves.forward, vec![x.clone()]).unwrap().outputs;
    let saved = &forward[joint.forward_outputs..];
    assert_eq!(saved.len(), halves.saved.len());
    let mut saved = saved.iter().cloned();
    let given = halves.backward.inputs().map(|(_, _, name)| match name {
        "x" => x.clone(),
        _ => saved.next().unwrap(),
    });
    let given: Vec<Value> = given.collect();
    let backward = interp::execute(&halves.backward, given).unwrap().outputs;
    let list = |v: &Value| v.as_tensor().unwrap().iter_f64().collect::<Vec<_>>();
    assert_eq!(list(&whole[0]), list(&forward[0]));
    assert_eq!(list(&whole[1]), list(&backward[0]));
    assert!(halves.saved_bytes().is_some_and(|n| n <= 48), "sine and cosine of three numbers");
}

#[test]
fn a_value_that_is_read_twice_gets_both_gradients() {
    let graph = prims_of(
        r#"fx 1.0

graph "twice" {
  %w: f64[2] = parameter "w"

  %a: f64[2] = aten.mul.Tensor(%w, %w)
  %b: f64[2] = aten.add.Tensor(%a, %w, 3)
  return %b
}
"#,
    );
    let options = JointOptions { wrt: Wrt::Parameters, tangents: Tangents::Placeholders };
    let joint = joint(&graph, &options).unwrap();
    let names: Vec<&str> = joint.graph.inputs().map(|(_, _, name)| name).collect();
    assert_eq!(names, ["w", "tangents_0"]);
    let outs = interp::run(&joint.graph, &[floats(&[2.0, -5.0], &[2]), floats(&[1.0, 10.0], &[2])]).unwrap();
    assert_eq!(outs[1].iter_f64().collect::<Vec<_>>(), [7.0, -70.0]);
    assert_eq!(joint.graph.outputs[1].kind, OutputKind::ParameterGradient("w".into()));
}

/// Slices of one tensor with factors, in any order and with a gap; the last one reads what others read where `last` overlaps them.
fn sliced(last: [i64; 2]) -> Graph {
    let [start, end] = last;
    let text = format!(
        r#"fx 1.0
graph "sliced" {{
  %x: f64[2, 7] = input "x"

  %a: f64[2, 2] = aten.slice.Tensor(%x, 1, 3, 5, 1)
  %b: f64[2, 2] = aten.slice.Tensor(%x, 1, 0, 2, 1)
  %c: f64[2, {n}] = aten.slice.Tensor(%x, 1, {start}, {end}, 1)
  %ab: f64[2, 2] = aten.mul.Tensor(%a, %b)
  %cc: f64[2, {n}] = aten.mul.Tensor(%c, %c)
  %p: f64[] = aten.sum.default(%ab, none)
  %q: f64[] = aten.sum.default(%cc, none)
  %loss: f64[] = aten.add.Tensor(%p, %q, 1)
  return %loss
}}
"#,
        n = end - start
    );
    prims_of(&text)
}

#[test]
fn gradients_of_slices_that_share_nothing_are_one_concatenation() {
    let x = floats(&(1..15).map(f64::from).collect::<Vec<_>>(), &[2, 7]);
    for (last, concatenations) in [([5, 7], 1), ([6, 7], 1), ([3, 5], 1), ([4, 7], 0)] {
        let joint = joint(&sliced(last), &LOSS).unwrap();
        fx_ir::well_formed(&joint.graph).unwrap();
        let text = joint.graph.to_string();
        assert_eq!(text.matches("prims.cat").count(), concatenations, "{text}");
        assert_eq!(text.contains("prims.pad"), concatenations == 0, "{text}");
        let outs = interp::run(&joint.graph, std::slice::from_ref(&x)).unwrap();
        let element = |row: i64, d: i64| (7 * row + d + 1) as f64;
        let expected = (0..14).map(|n| {
            let (row, d) = (n / 7, n % 7);
            let product = match d {
                0 | 1 => element(row, d + 3),
                3 | 4 => element(row, d - 3),
                _ => 0.0,
            };
            product + if (last[0]..last[1]).contains(&d) { 2.0 * element(row, d) } else { 0.0 }
        });
        assert_eq!(outs[1].iter_f64().collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
}

#[test]
fn integers_and_steps_pass_nothing_on() {
    let graph = prims_of(
        r#"fx 1.0

graph "steps" {
  %x: f64[2] = input "x"
  %i: i64[2] = input "i"

  %f: f64[2] = aten.floor.default(%x)
  %s: f64[2] = aten.add.Tensor(%f, %i, 1)
  return %s
}
"#,
    );
    let joint = joint(&graph, &JointOptions { wrt: Wrt::Inputs, tangents: Tangents::Placeholders }).unwrap();
    assert_eq!(joint.gradients.len(), 1);
    assert_eq!(joint.gradients[0].1, None);
    assert_eq!(joint.graph.outputs.len(), joint.forward_outputs);
}

#[test]
fn all_obstacles_are_named_in_one_report() {
    let graph: Graph = r#"fx 1.0

graph "captured" {
  %x: f64[2] = input "x"

  %a: f64[2] = aten.relu.default(%x) from act
  %b: f64[2] = aten.sin.default(%a)
  return %b
}
"#
    .parse()
    .unwrap();
    let options = JointOptions { wrt: Wrt::Inputs, tangents: Tangents::Placeholders };
    let Err(JointError::Calls(calls)) = joint(&graph, &options) else {
        panic!("captured graphs are refused")
    };
    let text: String = calls.iter().map(|c| format!("{c}\n")).collect();
    expect![[r#"
        node `b` (aten.sin.default): is not a prim: decompose the graph first
    "#]]
    .assert_eq(&text);
}

#[test]
fn a_loss_is_one_number() {
    let graph = prims_of(CIRCLE);
    let mut vector = graph.clone();
    let x = vector.inputs().next().unwrap().0;
    vector.outputs[0].arg = Arg::Value(x);
    assert!(matches!(joint(&vector, &LOSS), Err(JointError::NotScalar(_))));
    let mut none = graph;
    none.outputs.clear();
    assert!(matches!(joint(&none, &LOSS), Err(JointError::NoLoss)));
    let wrt = JointOptions { wrt: Wrt::Values(vec![fx_ir::ValueId(3)]), tangents: Tangents::Loss };
    assert!(matches!(joint(&prims_of(CIRCLE), &wrt), Err(JointError::NotPlaceholder(_))));
}

#[test]
fn sizes_that_the_backward_needs_travel_along() {
    let graph = prims_of(
        r#"fx 1.0

graph "sizes" {
  symbol s0 "n" 2..=64

  %x: f64[s0, 2] = input "x"

  %loss: f64[] = aten.sum.default(%x, none)
  return %loss
}
"#,
    );
    let joint = joint(&graph, &LOSS).unwrap();
    let halves = partition(&joint).unwrap();
    let x = Tensor::full(DType::F64, &[5, 2], Scalar::Float(2.0)).unwrap();
    let forward = interp::execute(&halves.forward, vec![Value::Tensor(x)]).unwrap().outputs;
    assert_eq!(halves.saved.len(), 1);
    assert!(halves.backward.inputs().all(|(_, kind, _)| kind == InputKind::User));
    let backward =
        interp::execute(&halves.backward, forward[joint.forward_outputs..].to_vec()).unwrap().outputs;
    assert_eq!(backward[0].as_tensor().unwrap().sizes(), [5, 2]);
}

#[test]
fn conversions_convert_back() {
    let graph = prims_of(
        r#"fx 1.0

graph "conversion" {
  %x: f64[2] = input "x"

  %narrow: f32[2] = prims.convert(%x, f32)
  %loss: f32[] = prims.sum(%narrow, [0])
  return %loss
}
"#,
    );
    let joint = joint(&graph, &LOSS).unwrap();
    let outs = interp::run(&joint.graph, &[floats(&[0.5, 2.0], &[2])]).unwrap();
    assert_eq!(outs[1].dtype(), DType::F64);
    assert_eq!(outs[1].iter_f64().collect::<Vec<_>>(), [1.0, 1.0]);
}

#[test]
fn gradients_of_complex_numbers_are_conjugated() {
    let graph = prims_of(
        r#"fx 1.0

graph "complex" {
  %x: c128[1, 1] = input "x"
  %y: c128[1, 1] = input "y"

  %product: c128[1, 1] = prims.matmul(%x, %y)
  %square: c128[1, 1] = prims.mul(%product, %y)
  return %square
}
"#,
    );
    let joint = joint(&graph, &JointOptions { wrt: Wrt::Inputs, tangents: Tangents::Placeholders }).unwrap();
    let number = |re, im| Tensor::full(DType::C128, &[1, 1], Scalar::Complex(re, im)).unwrap();
    let outs = interp::run(&joint.graph, &[number(1.0, 2.0), number(3.0, -1.0), number(1.0, 1.0)]).unwrap();
    // x y²: the tangent times conj(y²) and conj(2 x y), with y² = 8 - 6i and 2 x y = 10 + 10i.
    assert_eq!(outs[1].item().unwrap(), Scalar::Complex(2.0, 14.0));
    assert_eq!(outs[2].item().unwrap(), Scalar::Complex(20.0, 0.0));
}

/// Batch normalisation in training, weighted so that every element's gradient differs.
const BATCH_NORM: &str = r#"fx 1.0

graph "batch_norm" {
  %w: f32[2] = parameter "w"
  %b: f32[2] = parameter "b"
  %x: f32[4, 2, 3] = input "x"
  %g: f32[4, 2, 3] = input "g"

  %y: f32[4, 2, 3] = aten.batch_norm.default(%x, %w, %b, none, none, true, 0.1, 1e-5, false)
  %z: f32[4, 2, 3] = aten.mul.Tensor(%y, %g)
  %loss: f32[] = aten.sum.default(%z, none)
  return %loss
}
"#;

#[test]
fn batch_norm_sums_once_for_weight_and_deviation() {
    let options = JointOptions { wrt: Wrt::ParametersAndInputs, tangents: Tangents::Loss };
    let joint = joint(&prims_of(BATCH_NORM), &options).unwrap();
    let whole_batch = |id: &fx_ir::NodeId| match joint.graph.nodes[*id].as_call() {
        Some(("prims.sum", [Arg::Value(v), ..])) => {
            joint.graph.meta(*v).is_some_and(|m| m.numel().as_const() == Some(24))
        }
        _ => false,
    };
    let backward = joint.graph.order.iter().filter(|id| joint.is_backward(**id));
    // The bias' sum, the one of weight and deviation, and the mean's.
    assert_eq!(backward.filter(|id| whole_batch(id)).count(), 3, "{}", joint.graph);
}

#[test]
fn batch_norm_in_f32_is_near_double_precision() {
    let wide_text = BATCH_NORM.replace("f32", "f64");
    // A mean that is a hundred deviations away: E[x²] - E[x]² would keep three digits.
    let x: Vec<f64> = (0..24).map(|i| 100.0 + f64::from(((i * 37) % 24) as f32 / 24.0)).collect();
    let x: Vec<f64> = x.iter().map(|v| f64::from(*v as f32)).collect();
    let g: Vec<f64> = (0..24).map(|i| f64::from(((i * 11) % 17) as f32 / 8.0 - 1.0)).collect();
    let run = |text: &str, dtype: DType| -> Vec<Vec<f64>> {
        let joint = joint(&prims_of(text), &LOSS).unwrap();
        let given: [(Vec<f64>, &[usize]); 4] = [
            (vec![1.5, 0.75], &[2]),
            (vec![0.25, -0.5], &[2]),
            (x.clone(), &[4, 2, 3]),
            (g.clone(), &[4, 2, 3]),
        ];
        let given: Vec<Tensor> =
            given.iter().map(|(v, sizes)| floats(v, sizes).to_dtype(dtype).unwrap()).collect();
        let outs = interp::run(&joint.graph, &given).unwrap();
        outs.iter().map(|t| t.iter_f64().collect()).collect()
    };
    for (narrow, wide) in run(BATCH_NORM, DType::F32).iter().zip(&run(&wide_text, DType::F64)) {
        let largest = wide.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        for (a, b) in narrow.iter().zip(wide) {
            // Rounding the mean costs 100 * 2^-24 of a deviation of 0.3, that is 2e-5.
            assert!((a - b).abs() <= 1e-4 * largest.max(1.0), "{a} for {b}");
        }
    }
}
