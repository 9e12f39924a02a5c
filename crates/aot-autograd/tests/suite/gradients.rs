//! Every prim's gradient rule against central finite differences in double precision: the joint graph of each sample call
//! is run by the interpreter. Elements at which the one-sided differences part (kinks, poles) are left out.

#![allow(clippy::unwrap_used)] // a failing test may panic

use aot_autograd::{JointGraph, JointOptions, Tangents, Wrt, joint};
use fx_ir::{Arg, Graph, InputKind, OriginId, Output, OutputKind, ValueType};
use ir_core::{DType, SymExpr, TensorMeta};
use prims::{Builder, Grad, Op, Sample, Samples, all};
use tensor::{Complex, Tensor};

type Z = Complex<f64>;

/// Distance of the points of a difference.
const STEP: f64 = 1e-5;

/// The sample in double precision.
fn widened(sample: &Sample) -> Vec<Tensor> {
    let wide = |t: &Tensor| match t.dtype() {
        d if d.is_float() => t.to_dtype(DType::F64).unwrap(),
        d if d.is_complex() => t.to_dtype(DType::C128).unwrap(),
        _ => t.clone(),
    };
    sample.tensors.iter().map(wide).collect()
}

/// A graph of the one call. Placeholder n is value n, as the sample's arguments have it.
fn graph_of(op: &'static Op, tensors: &[Tensor], args: &[Arg]) -> Graph {
    let mut graph = Graph::new("sample");
    for (n, t) in tensors.iter().enumerate() {
        let sizes = t.sizes().iter().map(|&s| SymExpr::from_i64(s as i64));
        let ty = ValueType::Tensor(TensorMeta::contiguous(t.dtype(), sizes));
        graph.placeholder(InputKind::User, format!("in{n}"), &format!("in{n}"), ty);
    }
    let outs = Builder::new(&mut graph, "out", OriginId(0)).call_op(op, args.to_vec()).unwrap();
    for v in outs {
        graph.outputs.push(Output { kind: OutputKind::User, arg: Arg::Value(v) });
    }
    graph
}

fn values(t: &Tensor) -> Vec<Z> {
    t.iter_complex().collect()
}

/// Values as a tensor of the dtype and sizes of another.
fn like(values: &[Z], t: &Tensor) -> Tensor {
    if t.dtype().is_complex() {
        return Tensor::from_vec(values.to_vec(), t.sizes()).unwrap();
    }
    Tensor::from_vec(values.iter().map(|z| z.re).collect::<Vec<f64>>(), t.sizes()).unwrap()
}

/// `sum of Re(conj(tangent) out)` over the outputs that have a tangent.
fn pulled(graph: &Graph, inputs: &[Tensor], tangents: &[Option<Tensor>]) -> f64 {
    let outs = interp::run(graph, inputs).unwrap();
    let mut sum = 0.0;
    for (out, tangent) in outs.iter().zip(tangents) {
        let Some(tangent) = tangent else { continue };
        for (y, t) in values(out).into_iter().zip(values(tangent)) {
            if t != Z::new(0.0, 0.0) {
                sum += (t.conj() * y).re;
            }
        }
    }
    sum
}

/// Cotangents of the outputs: zero where the output is not finite.
fn tangents(joint: &JointGraph, outs: &[Tensor]) -> Vec<Option<Tensor>> {
    let of = |(n, t): (usize, &Option<fx_ir::ValueId>)| {
        t.as_ref()?;
        let u = |i: usize| f64::from(tensor::formula::uniform("cotangent", (n * 1000 + i) as u64)) + 1.5;
        let list = values(&outs[n]).into_iter().enumerate().map(|(i, y)| {
            match y.re.is_finite() && y.im.is_finite() {
                true if outs[n].dtype().is_complex() => Z::new(u(2 * i), u(2 * i + 1)),
                true => Z::new(u(i), 0.0),
                false => Z::new(0.0, 0.0),
            }
        });
        Some(like(&list.collect::<Vec<_>>(), &outs[n]))
    };
    joint.tangents.iter().enumerate().map(of).collect()
}

/// The derivative in one direction of one element; `None` at kinks and poles.
fn difference(at: impl Fn(f64) -> f64) -> Option<f64> {
    let (low, here, high) = (at(-STEP), at(0.0), at(STEP));
    let (left, right) = ((here - low) / STEP, (high - here) / STEP);
    let middle = (high - low) / (2.0 * STEP);
    let smooth = middle.is_finite() && (left - right).abs() <= 1e-2 * (1.0 + middle.abs());
    smooth.then_some(middle)
}

/// Prims whose first operand is Hermitian: one triangle is read, the gradient is that for moving both.
const HERMITIAN: &[&str] = &["prims.linalg_cholesky", "prims.linalg_eigh"];

/// The element that mirrors element `i` of the Hermitian matrices `[*, n, n]`.
fn mirror(i: usize, t: &Tensor) -> usize {
    let n = t.sizes()[t.rank() - 1];
    i / (n * n) * n * n + i % n * n + i / n % n
}

/// Compares the gradients of one sample; gives the elements compared and those left out.
fn check(op: &'static Op, sample: &Sample) -> (usize, usize) {
    let inputs = widened(sample);
    let graph = graph_of(op, &inputs, &sample.args);
    // Of the incomplete gamma functions only the derivative in the second operand is known.
    let wrt = match op.target.as_str() {
        "prims.igamma" | "prims.igammac" => Wrt::Values(vec![fx_ir::ValueId(1)]),
        _ => Wrt::Inputs,
    };
    let options = JointOptions { wrt, tangents: Tangents::Placeholders };
    let joint = joint(&graph, &options).unwrap_or_else(|e| panic!("{}: {e}", op.target));
    fx_ir::well_formed(&joint.graph).unwrap_or_else(|e| panic!("{}: {e:?}", op.target));
    let outs = interp::run(&graph, &inputs).unwrap();
    let tangents = tangents(&joint, &outs);
    let mut given = inputs.clone();
    given.extend(tangents.iter().flatten().cloned());
    let results = interp::run(&joint.graph, &given).unwrap_or_else(|e| panic!("{}: {e}", op.target));
    let mut grads = results[joint.forward_outputs..].iter();
    let (mut compared, mut left_out) = (0, 0);
    for &(v, gradient) in &joint.gradients {
        let Some(grad) = gradient.and_then(|_| grads.next()) else { continue };
        let n = v.0 as usize;
        let base = values(&inputs[n]);
        let grads = values(grad);
        for (i, &g) in grads.iter().enumerate() {
            // Its diagonal is real.
            let hermitian = n == 0 && HERMITIAN.contains(&op.target.as_str());
            let twin = hermitian.then(|| mirror(i, &inputs[n]));
            let twin = twin.filter(|&j| j != i);
            let along = |direction: Z| {
                let moved = |h: f64| {
                    let mut moved = base.clone();
                    moved[i] += direction * h;
                    if let Some(j) = twin {
                        moved[j] += direction.conj() * h;
                    }
                    let mut inputs = inputs.clone();
                    inputs[n] = like(&moved, &inputs[n]);
                    pulled(&graph, &inputs, &tangents)
                };
                difference(moved)
            };
            let g = g + twin.map_or(Z::new(0.0, 0.0), |j| grads[j].conj());
            let mut parts = vec![(along(Z::new(1.0, 0.0)), g.re)];
            if inputs[n].dtype().is_complex() && (!hermitian || twin.is_some()) {
                parts.push((along(Z::new(0.0, 1.0)), g.im));
            }
            for (expected, got) in parts {
                let broken = !got.is_finite() && outs.iter().any(|o| values(o).iter().any(|y| y.is_nan()));
                let Some(expected) = expected.filter(|_| !broken) else {
                    left_out += 1;
                    continue;
                };
                compared += 1;
                assert!(
                    (got - expected).abs() <= 1e-5 + 1e-4 * expected.abs(),
                    "{}{:?}: input {n}, element {i}: rule {got}, difference {expected}",
                    op.target,
                    sample.args
                );
            }
        }
    }
    (compared, left_out)
}

/// Prims whose samples give no float results to differentiate.
const WITHOUT: &[&str] = &["prims.convert"];

#[test]
fn rules_agree_with_finite_differences() {
    let mut failed = Vec::new();
    let mut rules = 0;
    for op in all().iter().filter(|op| op.is_prim() && matches!(op.def.grad, Grad::Rule(_))) {
        rules += 1;
        let mut samples = Samples::default();
        (op.def.samples)(&mut samples);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            samples.list.iter().map(|s| check(op, s)).fold((0, 0), |(a, b), (c, d)| (a + c, b + d))
        }));
        let Ok((compared, left_out)) = outcome else {
            failed.push(op.target.clone());
            continue;
        };
        // Samples reach beyond the domain of inverse functions: there nothing can be compared.
        let enough = compared > left_out || compared >= 10;
        if !enough && !WITHOUT.contains(&op.target.as_str()) {
            failed.push(format!("{} ({compared} compared, {left_out} left out)", op.target));
        }
    }
    assert!(failed.is_empty(), "{} of {rules} rules: {failed:#?}", failed.len());
}

#[test]
fn only_these_prims_wait_for_a_rule() {
    let waiting: Vec<&str> = all()
        .iter()
        .filter(|op| op.is_prim() && matches!(op.def.grad, Grad::Unwritten))
        .map(|op| op.target.as_str())
        .collect();
    // PyTorch has no gradients of these either.
    let polynomials = expect_test::expect![[
        r#"["prims.chebyshev_t", "prims.chebyshev_u", "prims.chebyshev_v", "prims.chebyshev_w", "prims.hermite_h", "prims.hermite_he", "prims.laguerre_l", "prims.legendre_p"]"#
    ]];
    polynomials.assert_eq(&format!("{waiting:?}"));
}

/// A call of cuDNN's recurrent layers for sequences of two time steps, or for packed ones: two layers in both directions.
fn recurrence(mode: usize, projection: usize, packed: &[i64]) -> Sample {
    let (features, hidden, batch) = (2, 3, 2);
    let shown = if projection > 0 { projection } else { hidden };
    let gates = hidden * [1, 1, 4, 3][mode];
    let mut tensors: Vec<Tensor> = Vec::new();
    let mut add = |sizes: &[usize]| {
        let value = Arg::Value(fx_ir::ValueId(tensors.len() as u32));
        tensors
            .push(tensor::formula::fill(&format!("recurrence{}", tensors.len()), sizes, 0.8, 0.0).unwrap());
        value
    };
    let rows = packed.iter().sum::<i64>() as usize;
    let input = if packed.is_empty() { add(&[2, batch, features]) } else { add(&[rows, features]) };
    let hx = add(&[4, batch, shown]);
    let cx = if mode == 2 { add(&[4, batch, hidden]) } else { Arg::None };
    let mut weights = Vec::new();
    for layer in 0..4 {
        let width = if layer < 2 { features } else { 2 * shown };
        weights.extend([add(&[gates, width]), add(&[gates, shown]), add(&[gates]), add(&[gates])]);
        if projection > 0 {
            weights.push(add(&[projection, hidden]));
        }
    }
    let each = if projection > 0 { 5i64 } else { 4 };
    let sizes = [mode as i64, hidden as i64, projection as i64, 2].map(Arg::from);
    let mut args = vec![input, Arg::List(weights), each.into(), Arg::None, hx, cx];
    args.extend(sizes);
    args.extend([false.into(), 0.0.into(), true.into(), true.into(), packed.into(), Arg::None]);
    Sample { tensors, args }
}

#[test]
fn gradients_of_recurrent_layers_of_cudnn_agree_with_finite_differences() {
    let op = prims::lookup("aten._cudnn_rnn.default").unwrap();
    for mode in 0..4 {
        for packed in [&[][..], &[2, 2, 1]] {
            let projections = if mode == 2 { &[0, 2][..] } else { &[0] };
            for &projection in projections {
                let sample = recurrence(mode, projection, packed);
                let numbers: usize = sample.tensors.iter().map(|t| t.numel()).sum();
                let (compared, left_out) = check(op, &sample);
                // Only a kink of the rectifier leaves an element out.
                assert_eq!(compared + left_out, numbers);
                assert!(
                    left_out == 0 || mode == 0 && left_out < numbers / 4,
                    "{mode}: {left_out} of {numbers}"
                );
            }
        }
    }
}
