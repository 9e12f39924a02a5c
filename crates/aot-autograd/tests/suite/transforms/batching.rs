//! `vmap`: every prim's samples as a batch against a loop over its elements, random numbers, control flow, nesting.

use aot_autograd::transform::{Randomness, TransformError, VmapOptions, vmap};
use fx_ir::{Graph, Symbol};
use ir_core::{DType, Scalar, SymExpr};
use prims::{Op, Sample, Samples, all};
use tensor::Tensor;

use super::support::*;

const BATCH: usize = 3;

/// The tensor as element `n` of a batch: floats scaled, so that matrices keep what they are; indices reversed.
fn variant(op: &Op, t: &Tensor, n: usize) -> Tensor {
    let all: Vec<Scalar> = t.iter().collect();
    // Pivots of a factorization are no independent numbers.
    let turn = if op.target == "prims.linalg_ldl_solve" || all.is_empty() { 0 } else { n };
    let factor = 1.0 + 0.125 * n as f64;
    let mut out = Tensor::empty(t.dtype(), t.sizes()).unwrap();
    let mut flat = Tensor::empty(t.dtype(), &[all.len()]).unwrap();
    for i in 0..all.len() {
        let value = match all[i] {
            Scalar::Float(x) => Scalar::Float(x * factor),
            Scalar::Complex(re, im) => Scalar::Complex(re * factor, im * factor),
            _ => all[(i + turn) % all.len()],
        };
        flat.set(&[i], value).unwrap();
    }
    if !all.is_empty() {
        out = flat.reshape(t.sizes()).unwrap();
    }
    out
}

/// One sample with the operands of `which` batched: the elements that differ from the loop's.
fn check(op: &'static Op, sample: &Sample, which: &[bool], symbolic: bool) -> Result<(), String> {
    let mut graph = function(&sample.tensors, |b, _| Ok(b.call_op(op, sample.args.clone())?.to_vec()));
    let symbol = Symbol { name: "batch".into(), min: 1, max: None, hint: None, unbacked: false };
    let size =
        if symbolic { SymExpr::sym(graph.add_symbol(symbol)) } else { SymExpr::from_i64(BATCH as i64) };
    let mut options = VmapOptions::new(size);
    options.randomness = Randomness::Same;
    options.in_dims = which.iter().map(|&w| w.then_some(0)).collect();
    let batched = vmap(&graph, &options).map_err(|e| e.to_string())?;
    let element = |n: usize| -> Vec<Tensor> {
        let each = |(t, &w): (&Tensor, &bool)| if w { variant(op, t, n) } else { t.clone() };
        sample.tensors.iter().zip(which).map(each).collect()
    };
    let elements: Vec<Vec<Tensor>> = (0..BATCH).map(element).collect();
    let inputs: Vec<Tensor> = which
        .iter()
        .enumerate()
        .map(|(i, &w)| {
            let list: Vec<Tensor> = elements.iter().map(|e| e[i].clone()).collect();
            if w { stacked(&list) } else { list[0].clone() }
        })
        .collect();
    let got = run(&batched, &inputs);
    for (n, element) in elements.iter().enumerate() {
        for (r, expected) in run(&graph, element).iter().enumerate() {
            let got = part(&got[r], n);
            if !close(&got, expected, 1e-5, 1e-5) {
                return Err(format!(
                    "{:?} {which:?}: result {r} of element {n} is {got:?}, not {expected:?}",
                    sample.args
                ));
            }
        }
    }
    Ok(())
}

#[test]
fn every_prim_acts_on_batches_as_in_a_loop() {
    let (mut failed, mut checked, mut prims) = (Vec::new(), 0, 0);
    // Ranks exchange whole tensors, which a batch on one of them is not; products of integers are made after all transforms.
    let reason = |op: &Op| match op.def.schema {
        schema if schema.contains("str group") => Some("ranks exchange whole tensors"),
        schema if schema.starts_with("prims::integer_") => {
            Some("products of integers are made of dequantized ones")
        }
        schema if schema.starts_with("prims::dequantized_") => {
            Some("products with quantized weights are made after all transforms")
        }
        _ => None,
    };
    let (refused, others): (Vec<_>, Vec<_>) =
        all().iter().filter(|op| op.is_prim()).partition(|op| reason(op).is_some());
    for op in &others {
        let mut samples = Samples::default();
        (op.def.samples)(&mut samples);
        let before = checked;
        for sample in samples.list.iter().filter(|s| !s.tensors.is_empty()) {
            let count = sample.tensors.len();
            // All of them, and each alone.
            let mut choices = vec![vec![true; count]];
            if count > 1 {
                choices.extend((0..count).map(|n| (0..count).map(|i| i == n).collect()));
            }
            // A batch of a size that is known, and of one known only at the call.
            for (which, symbolic) in choices.iter().flat_map(|w| [(w, false), (w, true)]) {
                checked += 1;
                let run = || check(op, sample, which, symbolic);
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
                match outcome {
                    Ok(Ok(())) => {}
                    Ok(Err(e)) => failed.push(format!("{} ({symbolic}): {e}", op.target)),
                    Err(_) => {
                        failed.push(format!("{}: {:?} {which:?} {symbolic} panics", op.target, sample.args))
                    }
                }
            }
        }
        prims += usize::from(checked > before);
    }
    assert!(failed.is_empty(), "{} of {checked} calls: {failed:#?}", failed.len());
    // All but those without tensor operands.
    assert_eq!(prims + 2, others.len());
    for op in refused {
        let mut samples = Samples::default();
        (op.def.samples)(&mut samples);
        let error =
            check(op, &samples.list[0], &vec![true; samples.list[0].tensors.len()], false).unwrap_err();
        assert!(
            error.contains("does not support batches") && reason(op).is_some_and(|why| error.contains(why)),
            "{error}"
        );
    }
}

fn options(in_dims: &[Option<i64>], out_dims: &[Option<i64>], size: i64) -> VmapOptions {
    VmapOptions { in_dims: in_dims.to_vec(), out_dims: out_dims.to_vec(), ..VmapOptions::new(size) }
}

#[test]
fn the_batch_may_lie_at_any_dimension() {
    let (x, w) = (doubles("x", &[4], 1.0, 0.0), doubles("w", &[4, 2], 1.0, 0.0));
    let graph = function(&[x, w], |b, v| {
        let product = b.call1("aten.matmul.default", vec![v[0].into(), v[1].into()])?;
        Ok(vec![product, v[1]])
    });
    let batched = vmap(&graph, &options(&[Some(-1), None], &[Some(1), None], 3)).unwrap();
    let (x, w) = (doubles("x", &[4, 3], 1.0, 0.0), doubles("w", &[4, 2], 1.0, 0.0));
    let got = run(&batched, &[x.clone(), w.clone()]);
    assert_eq!(got[0].sizes(), [2, 3]);
    for n in 0..3 {
        let row = x.select(1, n).unwrap().contiguous().unwrap();
        let expected = run(&graph, &[row, w.clone()]);
        assert!(close(&got[0].select(1, n).unwrap(), &expected[0], 1e-12, 0.0));
    }
    assert_eq!(got[1].sizes(), [4, 2], "what does not depend on the batch is returned as it is");
    let wrong = vmap(&graph, &options(&[Some(-1), None], &[None, None], 3));
    assert!(matches!(wrong, Err(TransformError::Form { .. })), "a batched result needs a dimension");
    let wrong = vmap(&graph, &options(&[Some(2), None], &[], 3));
    assert!(matches!(wrong, Err(TransformError::Form { .. })), "there is no dimension 2");
}

#[test]
fn the_size_of_the_batch_may_be_a_symbol() {
    let x = doubles("x", &[4], 1.0, 0.0);
    let mut graph = function(&[x], |b, v| {
        let soft = b.call1("aten.softmax.int", vec![v[0].into(), 0i64.into()])?;
        Ok(vec![b.call1("aten.cumsum.default", vec![soft.into(), 0i64.into()])?])
    });
    let symbol = Symbol { name: "batch".into(), min: 1, max: None, hint: None, unbacked: false };
    let size = SymExpr::sym(graph.add_symbol(symbol));
    let batched = vmap(&graph, &VmapOptions::new(size)).unwrap();
    for n in [1, 5] {
        let x = doubles("x", &[n, 4], 1.0, 0.0);
        let got = run(&batched, std::slice::from_ref(&x));
        for i in 0..n {
            assert!(close(&part(&got[0], i), &run(&graph, &[part(&x, i)])[0], 1e-12, 0.0));
        }
    }
}

#[test]
fn random_numbers_are_shared_different_or_refused() {
    let x = doubles("x", &[50], 1.0, 0.0);
    let graph = function(&[x], |b, v| {
        let noise = b.call1("aten.rand_like.default", vec![v[0].into()])?;
        Ok(vec![b.add(v[0], noise)?])
    });
    let x = Tensor::zeros(DType::F64, &[2, 50]).unwrap();
    let drawn = |randomness| {
        let options = VmapOptions { randomness, ..VmapOptions::new(2) };
        vmap(&graph, &options).map(|g| {
            let outs =
                interp::execute_seeded(&g, vec![interp::Value::Tensor(x.clone()), interp::Value::None], 7);
            outs.unwrap().outputs[0].as_tensor().unwrap().clone()
        })
    };
    let same = drawn(Randomness::Same).unwrap();
    assert!(close(&part(&same, 0), &part(&same, 1), 0.0, 0.0));
    let different = drawn(Randomness::Different).unwrap();
    assert!(
        close(&part(&same, 0), &part(&different, 0), 0.0, 0.0),
        "the first element draws what one call does"
    );
    let shared =
        values(&part(&different, 0)).into_iter().zip(values(&part(&different, 1))).filter(|(x, y)| x == y);
    assert_eq!(shared.count(), 0);
    assert!(matches!(drawn(Randomness::Error), Err(TransformError::Batch(_))));
}

#[test]
fn nested_batches_are_a_table() {
    let (x, y) = (doubles("x", &[2], 1.0, 0.0), doubles("y", &[2], 1.0, 0.0));
    let graph = function(&[x, y], |b, v| {
        let product = b.mul(v[0], v[1])?;
        Ok(vec![b.call1("aten.sum.default", vec![product.into()])?])
    });
    let inner = vmap(&graph, &options(&[None, Some(0)], &[], 4)).unwrap();
    let outer = vmap(&inner, &options(&[Some(0), None], &[], 3)).unwrap();
    let (x, y) = (doubles("x", &[3, 2], 1.0, 0.0), doubles("y", &[4, 2], 1.0, 0.0));
    let got = run(&outer, &[x.clone(), y.clone()]);
    assert_eq!(got[0].sizes(), [3, 4]);
    let (x, y, got): (Vec<f64>, Vec<f64>, Vec<f64>) =
        (x.iter_f64().collect(), y.iter_f64().collect(), got[0].iter_f64().collect());
    for i in 0..3 {
        for j in 0..4 {
            let expected = x[2 * i] * y[2 * j] + x[2 * i + 1] * y[2 * j + 1];
            assert!((got[4 * i + j] - expected).abs() < 1e-12);
        }
    }
}

const COND: &str = r#"fx 1.0

graph "branches" {
  subgraph g0 "yes" {
    %a: f64[2] = input "a"

    %b: f64[2] = prims.sin(%a)
    return %b
  }
  subgraph g1 "no" {
    %a: f64[2] = input "a"

    %b: f64[2] = prims.mul(%a, 3.0)
    return %b
  }
  %p: bool[] = input "p"
  %x: f64[2] = input "x"

  %y: f64[2] = higher_order.cond(%p, &g0, &g1, [%x])
  return %y
}
"#;

#[test]
fn branches_are_selected_element_by_element() {
    let graph: Graph = COND.parse().unwrap();
    let x = doubles("x", &[3, 2], 1.0, 0.0);
    let p = Tensor::from_vec([true, false, true].map(tensor::Bool::from).to_vec(), &[3]).unwrap();
    let one = Tensor::full(DType::Bool, &[], Scalar::Bool(false)).unwrap();
    let differing = vmap(&graph, &VmapOptions::new(3)).unwrap();
    assert!(!differing.to_string().contains("cond"), "both branches are computed");
    let shared = vmap(&graph, &options(&[None, Some(0)], &[], 3)).unwrap();
    assert!(shared.to_string().contains("cond"), "one branch is computed for all");
    let (a, b) = (run(&differing, &[p.clone(), x.clone()]), run(&shared, &[one.clone(), x.clone()]));
    for n in 0..3 {
        let expected = run(&graph, &[part(&p, n), part(&x, n)]);
        assert!(close(&part(&a[0], n), &expected[0], 0.0, 0.0));
        let expected = run(&graph, &[one.clone(), part(&x, n)]);
        assert!(close(&part(&b[0], n), &expected[0], 0.0, 0.0));
    }
}

#[test]
fn sizes_that_depend_on_the_data_are_refused_all_in_one_report() {
    let x = doubles("x", &[4], 1.0, 0.0);
    let graph = function(&[x], |b, v| {
        let first = b.call1("aten.nonzero.default", vec![v[0].into()])?;
        let twice = b.mul(v[0], 2.0)?;
        let second = b.call1("aten.nonzero.default", vec![twice.into()])?;
        Ok(vec![first, second])
    });
    let Err(TransformError::Batch(errors)) = vmap(&graph, &VmapOptions::new(2)) else {
        panic!("must be refused")
    };
    assert_eq!(errors.len(), 2);
    assert!(errors[0].to_string().contains("depends on the data"), "{}", errors[0]);
    assert!(matches!(errors[0].error, prims::OpError::Unsupported { .. }));
}
