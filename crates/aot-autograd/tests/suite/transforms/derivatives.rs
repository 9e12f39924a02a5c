//! Derivatives of graphs, and derivatives of those, against central finite differences in double precision. Elements at
//! which the one-sided differences part (kinks, poles) are left out.

use aot_autograd::transform::*;
use expect_test::expect;
use fx_ir::{Arg, Graph};
use ir_core::DType;
use prims::{Builder, Grad, OpError, Sample, Samples, all};
use tensor::{Complex, Tensor};

use super::support::*;

type Z = Complex<f64>;

/// Distance of the points of a difference.
const STEP: f64 = 1e-5;

/// Prims whose first operand is Hermitian: only such directions count.
const HERMITIAN: &[&str] = &["prims.linalg_cholesky", "prims.linalg_eigh"];

/// Elements as a tensor like another.
fn like(list: Vec<Z>, t: &Tensor) -> Tensor {
    if t.dtype().is_complex() {
        return Tensor::from_vec(list, t.sizes()).unwrap();
    }
    tensor(list.into_iter().map(|z| z.re).collect(), t.sizes())
}

/// A direction in which to move a tensor; nothing for what has no derivative.
pub(crate) fn direction(name: &str, t: &Tensor, symmetric: bool) -> Tensor {
    if !t.dtype().is_inexact() {
        return t.clone();
    }
    let u = |i: usize| f64::from(tensor::formula::uniform(name, i as u64));
    let of =
        |i: usize| if t.dtype().is_complex() { Z::new(u(2 * i), u(2 * i + 1)) } else { Z::new(u(i), 0.0) };
    let list = like((0..t.numel()).map(of).collect(), t);
    if symmetric { hermitian(&list) } else { list }
}

/// The Hermitian part of matrices `[*, n, n]`.
pub(crate) fn hermitian(t: &Tensor) -> Tensor {
    let n = t.sizes()[t.rank() - 1].max(1);
    let mirror = |i: usize| i / (n * n) * n * n + i % n * n + i / n % n;
    let old = values(t);
    like((0..old.len()).map(|i| (old[i] + old[mirror(i)].conj()) / 2.0).collect(), t)
}

fn moved(t: &Tensor, d: &Tensor, h: f64) -> Tensor {
    if !t.dtype().is_inexact() {
        return t.clone();
    }
    like(values(t).into_iter().zip(values(d)).map(|(x, d)| x + d * h).collect(), t)
}

/// The derivative at one element; `None` at kinks and poles.
fn slope(low: f64, here: f64, high: f64) -> Option<f64> {
    let (left, right, middle) = ((here - low) / STEP, (high - here) / STEP, (high - low) / (2.0 * STEP));
    let smooth = middle.is_finite() && (left - right).abs() <= 1e-2 * (1.0 + middle.abs());
    smooth.then_some(middle)
}

/// Holds the tangents that `jvp` gives against differences of the function; gives how many elements were compared and how
/// many left out.
pub(crate) fn check(
    graph: &Graph,
    inputs: &[Tensor],
    directions: &[Tensor],
) -> Result<(usize, usize), String> {
    let pushed = jvp(graph).map_err(|e| e.to_string())?;
    let given: Vec<Tensor> = inputs.iter().chain(directions).cloned().collect();
    let got = run(&pushed, &given);
    let at = |h: f64| {
        let moved: Vec<Tensor> = inputs.iter().zip(directions).map(|(t, d)| moved(t, d, h)).collect();
        run(graph, &moved)
    };
    let (low, here, high) = (at(-STEP), at(0.0), at(STEP));
    let (mut compared, mut left_out) = (0, 0);
    for n in 0..here.len() {
        assert!(close(&got[n], &here[n], 1e-12, 1e-12), "the function's own results");
        if !here[n].dtype().is_inexact() {
            continue;
        }
        let tangents = values(&got[here.len() + n]);
        let [low, here, high] = [&low[n], &here[n], &high[n]].map(values);
        for (i, tangent) in tangents.into_iter().enumerate() {
            let part = |z: fn(&Z) -> f64| (slope(z(&low[i]), z(&here[i]), z(&high[i])), z(&tangent));
            for (expected, got) in [part(|z| z.re), part(|z| z.im)] {
                let Some(expected) = expected.filter(|_| here[i].re.is_finite()) else {
                    left_out += 1;
                    continue;
                };
                compared += 1;
                if (got - expected).abs() > 2e-5 + 1e-4 * expected.abs() {
                    return Err(format!("result {n}, element {i}: tangent {got}, difference {expected}"));
                }
            }
        }
    }
    Ok((compared, left_out))
}

/// As [`check`] in directions by formula.
fn smooth(graph: &Graph, inputs: &[Tensor]) {
    let directions: Vec<Tensor> =
        inputs.iter().enumerate().map(|(n, t)| direction(&format!("direction{n}"), t, false)).collect();
    let (compared, left_out) = check(graph, inputs, &directions).unwrap_or_else(|e| panic!("{e}"));
    assert!(compared > 0 && left_out == 0, "{compared} compared, {left_out} left out");
}

/// Samples in double precision.
fn widened(sample: &Sample) -> Vec<Tensor> {
    let wide = |t: &Tensor| match t.dtype() {
        d if d.is_float() => t.to_dtype(DType::F64).unwrap(),
        d if d.is_complex() => t.to_dtype(DType::C128).unwrap(),
        _ => t.clone(),
    };
    sample.tensors.iter().map(wide).collect()
}

/// Every prim with a gradient rule, its samples, `order` times differentiated.
fn table(order: usize, without: &[&str]) {
    let mut failed = Vec::new();
    for op in all().iter().filter(|op| op.is_prim() && matches!(op.def.grad, Grad::Rule(_))) {
        if without.contains(&op.target.as_str()) {
            continue;
        }
        let mut samples = Samples::default();
        (op.def.samples)(&mut samples);
        let (mut compared, mut left_out) = (0, 0);
        for sample in &samples.list {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let mut inputs = widened(sample);
                let mut graph = function(&inputs, |b, _| Ok(b.call_op(op, sample.args.clone())?.to_vec()));
                let hermitian = HERMITIAN.contains(&op.target.as_str());
                let mut directions: Vec<Tensor> = (inputs.iter().enumerate())
                    .map(|(n, t)| direction(&format!("direction{n}"), t, hermitian && n == 0))
                    .collect();
                if order == 2 {
                    let outs = run(&graph, &inputs);
                    graph = vjp(&graph).map_err(|e| e.to_string())?;
                    // Only gradients: results were differentiated at the first order.
                    graph.outputs.drain(..outs.len());
                    for (n, out) in outs.iter().enumerate() {
                        inputs.push(direction(&format!("cotangent{n}"), out, false));
                        directions.push(direction(&format!("moved{n}"), out, false));
                    }
                }
                check(&graph, &inputs, &directions)
            }));
            match outcome {
                Ok(Ok((c, l))) => (compared, left_out) = (compared + c, left_out + l),
                Ok(Err(e)) => failed.push(format!("{} {:?}: {e}", op.target, sample.args)),
                Err(_) => failed.push(format!("{} {:?}: panics", op.target, sample.args)),
            }
        }
        if compared < 5 && op.target != "prims.convert" {
            failed.push(format!("{}: {compared} compared, {left_out} left out", op.target));
        }
    }
    assert!(failed.is_empty(), "{}: {failed:#?}", failed.len());
}

/// PyTorch has no derivative in the first operand either.
const INCOMPLETE_GAMMA: [&str; 2] = ["prims.igamma", "prims.igammac"];

#[test]
fn tangents_of_every_prim_agree_with_differences() {
    table(1, &INCOMPLETE_GAMMA);
}

#[test]
fn second_derivatives_of_every_prim_agree_with_differences() {
    table(2, &INCOMPLETE_GAMMA);
}

fn sum(b: &mut Builder<'_>, v: fx_ir::ValueId) -> Result<fx_ir::ValueId, OpError> {
    b.call1("aten.sum.default", vec![v.into()])
}

#[test]
fn grad_of_grad_of_unary_functions() {
    let mut checked = 0;
    let mut failed = Vec::new();
    for op in all().iter().filter(|op| op.is_prim() && matches!(op.def.grad, Grad::Rule(_))) {
        let prims::Kind::Prim { reference: prims::Reference::Scalar(scalar), .. } = &op.def.kind else {
            continue;
        };
        if scalar.arity() != 1 {
            continue;
        }
        // Inside the domain of every function, or of those that begin at 1.
        let list = if op.target == "prims.acosh" { vec![1.3, 1.9, 2.7] } else { vec![0.2, 0.35, 0.6, 0.85] };
        let x = tensor(list.clone(), &[list.len()]);
        let f = function(std::slice::from_ref(&x), |b, v| {
            let y = b.call_op(op, vec![v[0].into()])?[0];
            Ok(vec![sum(b, y)?])
        });
        let first = grad(&f, &[0]).unwrap();
        let mut total = first.clone();
        let Arg::Value(g) = total.outputs[0].arg else { panic!("a gradient is a tensor") };
        let s = sum(&mut Builder::new(&mut total, "sum", fx_ir::OriginId(0)), g).unwrap();
        total.outputs[0].arg = s.into();
        let second = run(&grad(&total, &[0]).unwrap(), std::slice::from_ref(&x)).remove(0);
        let at = |h: f64| {
            let x = tensor(list.iter().map(|x| x + h).collect(), &[list.len()]);
            run(&first, &[x])[0].iter_f64().collect::<Vec<f64>>()
        };
        let (low, high) = (at(-STEP), at(STEP));
        for (i, got) in second.iter_f64().enumerate() {
            let expected = (high[i] - low[i]) / (2.0 * STEP);
            if (got - expected).abs() > 1e-6 + 1e-5 * expected.abs() {
                failed.push(format!("{} at {}: {got}, difference {expected}", op.target, list[i]));
            }
        }
        checked += 1;
    }
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(checked >= 25, "{checked} functions");
}

#[test]
fn the_tangent_of_a_sine_leaves_nothing_over() {
    let x = doubles("x", &[3], 1.0, 0.0);
    let graph = function(&[x], |b, v| Ok(vec![b.sin(v[0])?]));
    let tangent = jvp(&graph).unwrap();
    expect![[r#"
        fx 1.0

        graph "function" {
          %in0: f64[3] = input "in0"
          %tangent_0: f64[3] = input "tangent_0"

          %out: f64[3] = prims.sin(%in0)
          %out_grad: f64[3] = prims.cos(%in0)
          %out_grad_grad: f64[3] = prims.mul(%tangent_0, %out_grad)
          return %out
          return %out_grad_grad
        }
    "#]]
    .assert_eq(&tangent.to_string());
}

#[test]
fn jacobians_of_both_modes_agree_with_differences() {
    let (x, w) = (doubles("x", &[3], 1.0, 0.0), doubles("w", &[2, 3], 1.0, 0.0));
    let inputs = [x, w];
    let graph = function(&inputs, |b, v| {
        let y = b.call1("aten.mv.default", vec![v[1].into(), v[0].into()])?;
        let y = b.tanh(y)?;
        Ok(vec![y, sum(b, v[0])?])
    });
    let (reverse, forward) =
        (run(&jacrev(&graph, &[0, 1]).unwrap(), &inputs), run(&jacfwd(&graph, &[0, 1]).unwrap(), &inputs));
    let sizes: Vec<&[usize]> = reverse.iter().map(Tensor::sizes).collect();
    assert_eq!(sizes, [&[2, 3][..], &[2, 2, 3], &[3], &[2, 3]]);
    for (r, f) in reverse.iter().zip(&forward) {
        assert!(close(r, f, 1e-13, 1e-13));
    }
    for (n, jacobian) in reverse.iter().enumerate() {
        let (result, argument) = (n / 2, n % 2);
        let count = inputs[argument].numel();
        for i in 0..count {
            let unit = (0..count).map(|j| Z::new(f64::from(u8::from(i == j)), 0.0)).collect();
            let unit = like(unit, &inputs[argument]);
            let at = |h: f64| {
                let mut inputs = inputs.to_vec();
                inputs[argument] = moved(&inputs[argument], &unit, h);
                run(&graph, &inputs)[result].iter_f64().collect::<Vec<f64>>()
            };
            let (low, high) = (at(-STEP), at(STEP));
            let jacobian: Vec<f64> = jacobian.iter_f64().collect();
            for r in 0..low.len() {
                let expected = (high[r] - low[r]) / (2.0 * STEP);
                assert!((jacobian[r * count + i] - expected).abs() < 1e-8);
            }
        }
    }
}

/// The Hessian of argument 0 against differences of the gradient.
fn check_hessian(graph: &Graph, inputs: &[Tensor]) {
    let first = grad(graph, &[0]).unwrap();
    let got = run(&hessian(graph, 0).unwrap(), inputs).remove(0);
    let n = inputs[0].numel();
    let sizes: Vec<usize> = inputs[0].sizes().iter().chain(inputs[0].sizes()).copied().collect();
    assert_eq!(got.sizes(), sizes);
    let got: Vec<f64> = got.iter_f64().collect();
    for j in 0..n {
        let unit = like((0..n).map(|i| Z::new(f64::from(u8::from(i == j)), 0.0)).collect(), &inputs[0]);
        let at = |h: f64| {
            let mut inputs = inputs.to_vec();
            inputs[0] = moved(&inputs[0], &unit, h);
            run(&first, &inputs)[0].iter_f64().collect::<Vec<f64>>()
        };
        let (low, high) = (at(-STEP), at(STEP));
        for i in 0..n {
            let expected = (high[i] - low[i]) / (2.0 * STEP);
            assert!((got[i * n + j] - expected).abs() < 1e-7, "{i} {j}: {} {expected}", got[i * n + j]);
            assert!((got[i * n + j] - got[j * n + i]).abs() < 1e-11, "a Hessian is symmetric");
        }
    }
}

#[test]
fn hessian_of_logsumexp() {
    let x = doubles("x", &[5], 2.0, 0.0);
    let graph = function(std::slice::from_ref(&x), |b, v| {
        let dims = Arg::from(&[0i64][..]);
        Ok(vec![b.call1("aten.logsumexp.default", vec![v[0].into(), dims])?])
    });
    check_hessian(&graph, &[x]);
}

/// Half the squared error of a network with one hidden layer.
fn network(b: &mut Builder<'_>, v: &[fx_ir::ValueId]) -> Result<Vec<fx_ir::ValueId>, OpError> {
    let hidden = b.call1("aten.linear.default", vec![v[1].into(), v[0].into(), v[2].into()])?;
    let hidden = b.call1("aten.gelu.default", vec![hidden.into()])?;
    let out = b.call1("aten.linear.default", vec![hidden.into(), v[3].into()])?;
    let error = b.sub(out, v[4])?;
    let square = b.mul(error, error)?;
    Ok(vec![sum(b, square)?])
}

fn network_inputs(batch: &[usize]) -> Vec<Tensor> {
    let of = |tail: &[usize]| -> Vec<usize> { batch.iter().chain(tail).copied().collect() };
    vec![
        doubles("w", &[4, 3], 1.0, 0.0),
        doubles("x", &of(&[3]), 1.0, 0.0),
        doubles("b", &[4], 0.5, 0.0),
        doubles("v", &[2, 4], 1.0, 0.0),
        doubles("t", &of(&[2]), 1.0, 0.0),
    ]
}

#[test]
fn hessian_of_a_network() {
    let inputs = network_inputs(&[6]);
    check_hessian(&function(&inputs, network), &inputs);
}

#[test]
fn gradients_of_each_sample_as_in_a_loop() {
    let one = function(&network_inputs(&[]), network);
    let each = grad(&one, &[0, 2, 3]).unwrap();
    let options = VmapOptions { in_dims: vec![None, Some(0), None, None, Some(0)], ..VmapOptions::new(6) };
    let inputs = network_inputs(&[6]);
    let got = run(&vmap(&each, &options).unwrap(), &inputs);
    assert_eq!(got[0].sizes(), [6, 4, 3]);
    for n in 0..6 {
        let mut own = inputs.clone();
        (own[1], own[4]) = (part(&inputs[1], n), part(&inputs[4], n));
        for (got, expected) in got.iter().zip(run(&each, &own)) {
            assert!(close(&part(got, n), &expected, 1e-12, 1e-12));
        }
    }
}

/// The second derivatives of a function of one result: differences of its gradients.
fn twice(
    inputs: &[Tensor],
    make: fn(&mut Builder<'_>, &[fx_ir::ValueId]) -> Result<fx_ir::ValueId, OpError>,
) {
    let graph = function(inputs, |b, v| {
        let y = make(b, v)?;
        let square = b.mul(y, y)?;
        let bent = b.sin(square)?;
        Ok(vec![sum(b, bent)?])
    });
    let all: Vec<usize> = (0..inputs.len()).collect();
    smooth(&grad(&graph, &all).unwrap(), inputs);
}

#[test]
fn second_derivatives_of_layers() {
    let d = |name: &str, sizes: &[usize]| doubles(name, sizes, 0.7, 0.1);
    twice(&[d("x", &[2, 4, 6, 5]), d("w", &[4, 2, 3, 2]), d("b", &[4])], |b, v| {
        let list = |l: &[i64]| Arg::from(l);
        let args = vec![v[0].into(), v[1].into(), v[2].into(), list(&[2, 1]), list(&[1, 0]), list(&[1, 2])];
        let args = args.into_iter().chain([false.into(), list(&[0, 0]), 2i64.into()]).collect();
        b.call1("aten.convolution.default", args)
    });
    twice(&[d("x", &[2, 4, 3]), d("w", &[4, 2, 3]), d("b", &[4])], |b, v| {
        let list = |l: &[i64]| Arg::from(l);
        let args = vec![v[0].into(), v[1].into(), v[2].into(), list(&[2]), list(&[1]), list(&[1])];
        let args = args.into_iter().chain([true.into(), list(&[1]), 2i64.into()]).collect();
        b.call1("aten.convolution.default", args)
    });
    twice(&[d("a", &[2, 3, 4]), d("b", &[4, 5])], |b, v| {
        b.call1("aten.matmul.default", vec![v[0].into(), v[1].into()])
    });
    twice(&[d("x", &[3, 5]), d("w", &[5]), d("b", &[5])], |b, v| {
        let sizes = Arg::from(&[5i64][..]);
        b.call1("aten.layer_norm.default", vec![v[0].into(), sizes, v[1].into(), v[2].into()])
    });
    twice(&[d("x", &[3, 5])], |b, v| b.call1("aten.softmax.int", vec![v[0].into(), 1i64.into()]));
    // Windows that overlap: an element may be the maximum of several.
    twice(&[d("x", &[2, 3, 6, 5])], |b, v| {
        let list = |l: &[i64]| Arg::from(l);
        let args = vec![v[0].into(), list(&[3, 2]), list(&[2, 1]), list(&[1, 0])];
        b.call1("aten.max_pool2d.default", args)
    });
    twice(&[d("q", &[1, 4, 3, 4]), d("k", &[1, 2, 5, 4]), d("v", &[1, 2, 5, 2])], |b, v| {
        let args = vec![v[0].into(), v[1].into(), v[2].into(), Arg::None, true.into(), 0.5.into()];
        b.call1("prims.attention", args)
    });
}

/// The gradients of rows that are longer than the kernels' are products of all scores, whoever shares keys and whatever is hidden.
#[test]
fn gradients_of_attention_with_long_rows() {
    let d = |name: &str, sizes: &[usize]| doubles(name, sizes, 0.7, 0.1);
    let inputs = [d("q", &[1, 4, 2, 4]), d("k", &[1, 2, 3, 4]), d("v", &[1, 2, 3, 257])];
    let graph = function(&inputs, |b, v| {
        let args = vec![v[0].into(), v[1].into(), v[2].into(), Arg::None, true.into(), 0.5.into()];
        let y = b.call1("prims.attention", args)?;
        let square = b.mul(y, y)?;
        let bent = b.sin(square)?;
        Ok(vec![sum(b, bent)?])
    });
    let gradients = grad(&graph, &[0, 1, 2]).unwrap();
    assert!(!gradients.to_string().contains("attention_backward"));
    let found = run(&gradients, &inputs);
    for (n, found) in found.iter().enumerate() {
        // The derivative along a direction of one operand.
        let along = direction("direction", &inputs[n], false);
        let at = |h: f64| {
            let mut all = inputs.to_vec();
            all[n] = moved(&inputs[n], &along, h);
            run(&graph, &all)[0].iter_f64().next().unwrap()
        };
        let expected = (at(STEP) - at(-STEP)) / (2.0 * STEP);
        let got: f64 = found.iter_f64().zip(along.iter_f64()).map(|(g, d)| g * d).sum();
        assert!(expected.abs() > 1e-3, "operand {n} matters");
        assert!((got - expected).abs() <= 1e-6 + 1e-5 * expected.abs(), "operand {n}: {got}, {expected}");
    }
    smooth(&graph, &inputs);
}

#[test]
fn what_has_no_derivative_gets_zeros_or_says_so() {
    let (x, i) = (doubles("x", &[2], 1.0, 0.0), Tensor::from_vec(vec![1i64, 0], &[2]).unwrap());
    let graph = function(&[x.clone(), i.clone()], |b, v| {
        let taken = b.call1("aten.index_select.default", vec![v[0].into(), 0i64.into(), v[1].into()])?;
        Ok(vec![taken, v[1]])
    });
    let cotangent = tensor(vec![3.0, 5.0], &[2]);
    let pulled = run(&vjp(&graph).unwrap(), &[x.clone(), i.clone(), cotangent.clone(), i.clone()]);
    assert_eq!(pulled[2].iter_f64().collect::<Vec<_>>(), [5.0, 3.0]);
    assert_eq!((pulled[3].dtype(), pulled[3].iter_i64().sum::<i64>()), (DType::I64, 0));
    let pushed = run(&jvp(&graph).unwrap(), &[x, i.clone(), cotangent, i]);
    assert_eq!(pushed[2].iter_f64().collect::<Vec<_>>(), [5.0, 3.0]);
    assert_eq!(pushed[3].iter_i64().sum::<i64>(), 0);
    assert!(matches!(grad(&graph, &[0]), Err(TransformError::Joint(_))), "the result is no number");
    assert!(matches!(jacfwd(&graph, &[1]), Err(TransformError::Form { .. })), "integers");
    assert!(matches!(jacrev(&graph, &[2]), Err(TransformError::Form { .. })), "there is no argument 2");
}
