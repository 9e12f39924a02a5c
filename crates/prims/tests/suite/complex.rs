//! Complex values as pairs of real ones: functions against values that C's complex mathematics (by way of Python's `cmath`,
//! exact fractions for quotients) gives in double precision, one a line of `complex.txt` as `target | operands | results` with
//! real and imaginary parts in turn; and every prim against its complex reference.

use crate::support::{run, run_split};
use fx_ir::{Arg, ValueId};
use ir_core::{DType, Scalar};
use prims::{ComplexRule, Kind, all};
use tensor::{Complex, Tensor};

fn numbers(text: &str) -> Tensor {
    let list: Vec<f64> = text.split_whitespace().map(|t| t.parse().expect("a number")).collect();
    let list: Vec<Complex<f64>> = list.chunks(2).map(|p| Complex::new(p[0], p[1])).collect();
    let count = list.len();
    Tensor::from_vec(list, &[count]).expect("a line fits memory")
}

/// Equal but for rounding, each part by itself where the other does not dwarf it; zeros have the same sign.
fn agree(got: Complex<f64>, expected: Complex<f64>) -> bool {
    let size = expected.norm();
    let part = |g: f64, e: f64| {
        if e == 0.0 && g == 0.0 {
            return g.is_sign_negative() == e.is_sign_negative();
        }
        (g - e).abs() <= 4e-15 * e.abs() + 2e-15 * size + 1e-323
    };
    part(got.re, expected.re) && part(got.im, expected.im)
}

#[test]
fn functions_agree_with_c() {
    let mut wrong = Vec::new();
    for line in include_str!("../complex.txt").lines() {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let tensors: Vec<Tensor> = fields[1].split(';').map(numbers).collect();
        let args: Vec<Arg> = (0..tensors.len() as u32).map(|n| Arg::Value(ValueId(n))).collect();
        let got = run_split(fields[0], &tensors, &args).expect(fields[0]).remove(0);
        let expected = numbers(fields[2]);
        assert_eq!(got.numel(), expected.numel());
        for (n, (g, e)) in got.iter_complex().zip(expected.iter_complex()).enumerate() {
            if !agree(g, e) {
                let of: Vec<String> =
                    tensors.iter().filter_map(|t| t.iter().nth(n)).map(|s| s.to_string()).collect();
                wrong.push(format!("{} of {}: {g:e}, expected {e:e}", fields[0], of.join(" and ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// The float tensors of a sample made complex: the imaginary part is the real one, shifted by an element and halved.
fn complex_of(t: &Tensor) -> Tensor {
    if !t.dtype().is_float() {
        return t.clone();
    }
    let re: Vec<f64> = t.iter_f64().collect();
    let n = re.len();
    let list: Vec<Complex<f64>> = (0..n).map(|i| Complex::new(re[i], 0.5 * re[(i + 1) % n] - 0.25)).collect();
    Tensor::from_vec(list, t.sizes()).expect("a sample fits memory")
}

#[test]
fn every_prim_agrees_with_its_complex_reference() {
    let mut compared = 0;
    for op in all() {
        let Kind::Prim { complex, .. } = &op.def.kind else { continue };
        if matches!(complex, ComplexRule::Refused(_)) {
            continue;
        }
        let mut samples = prims::Samples::default();
        (op.def.samples)(&mut samples);
        for sample in &samples.list {
            // Some operands are real by definition: all of `complex`, all but the first of some others.
            let first = |n: usize| -> Vec<Tensor> {
                let each = |(i, t)| if i < n { complex_of(t) } else { Tensor::clone(t) };
                sample.tensors.iter().enumerate().map(each).collect()
            };
            let all = sample.tensors.len();
            let fits = |n: &usize| run(&op.target, &first(*n), &sample.args).is_ok();
            let tensors = first([all, 1, 0].into_iter().find(fits).unwrap_or(all));
            let mode =
                sample.args.iter().any(|a| matches!(a, Arg::Str(m) if matches!(&**m, "amax" | "amin")));
            if mode {
                assert!(run_split(&op.target, &tensors, &sample.args).is_err(), "{}", op.target);
                continue;
            }
            let expected = run(&op.target, &tensors, &sample.args).expect(&op.target);
            let got = run_split(&op.target, &tensors, &sample.args).expect(&op.target);
            for (got, expected) in got.iter().zip(&expected) {
                assert_eq!(got.dtype(), expected.dtype(), "{}", op.target);
                let same = tensor::allclose(got, expected, 1e-10, 1e-8);
                assert!(same.is_ok(), "{}: {:?}", op.target, same.err());
                compared += 1;
            }
        }
    }
    assert!(compared > 80, "{compared} results");
}

#[test]
fn numbers_among_operands_are_complex_too() {
    let z = numbers("1.5 -2.0 0.25 3.0");
    for target in ["prims.mul", "prims.div", "prims.add", "prims.pow"] {
        for number in [Scalar::Complex(0.5, -1.0), Scalar::Float(2.0), Scalar::Int(-3)] {
            let args = [Arg::Value(ValueId(0)), number.into()];
            let got = run_split(target, std::slice::from_ref(&z), &args).expect(target);
            let expected = run(target, std::slice::from_ref(&z), &args).expect(target);
            assert!(tensor::allclose(&got[0], &expected[0], 1e-12, 1e-12).is_ok(), "{target} {number}");
        }
    }
}

#[test]
fn what_has_no_order_is_refused() {
    let z = numbers("1.5 -2.0 0.25 3.0");
    let error = run_split("prims.amax", &[z], &[Arg::Value(ValueId(0)), [0i64].as_slice().into()]);
    assert!(error.is_err_and(|e| e.to_string().contains("no order")));
}

/// Element k of the transform of the numbers by its definition.
fn by_definition(list: &[Complex<f64>], waves: &[Complex<f64>], k: usize) -> Complex<f64> {
    list.iter().enumerate().map(|(j, x)| x * waves[j * k % waves.len()]).sum()
}

fn waves(n: usize, sign: f64) -> Vec<Complex<f64>> {
    (0..n).map(|k| Complex::from_polar(1.0, sign * std::f64::consts::TAU * k as f64 / n as f64)).collect()
}

#[test]
fn transforms_agree_with_the_definition() {
    let prims = [1usize, 2, 3, 13, 96, 128, 600, 1155, 4096];
    let steps = [17, 64, 97, 257, 514, 1009, 5000, 8192];
    for n in prims.into_iter().chain(steps) {
        let list: Vec<Complex<f64>> =
            (0..n).map(|i| Complex::new((i as f64 * 0.7).sin(), (i as f64 * 0.3).cos())).collect();
        let z = Tensor::from_vec(list.clone(), &[n]).expect("a test fits memory");
        for (target, sign) in [("aten.fft_fft.default", -1.0), ("aten.fft_ifft.default", 1.0)] {
            let got = run_split(target, std::slice::from_ref(&z), &[Arg::Value(ValueId(0))]).expect(target);
            let scale = if sign > 0.0 { 1.0 / n as f64 } else { 1.0 };
            let waves = waves(n, sign);
            for (k, got) in got[0].iter_complex().enumerate().step_by(1 + n / 512) {
                let expected = by_definition(&list, &waves, k) * scale;
                assert!(
                    (got - expected).norm() < 1e-11 * n as f64 * scale,
                    "{target} {n} at {k}: {got} {expected}"
                );
            }
        }
    }
}

#[test]
fn real_transforms_have_half_a_spectrum() {
    for n in [1usize, 2, 9, 16, 130, 131, 262, 1000, 5000, 5001, 8192, 8194] {
        let list: Vec<f64> = (0..n).map(|i| (i as f64 * 0.7).sin() + 0.01 * (i % 10) as f64).collect();
        let x = Tensor::from_vec(list.clone(), &[n]).expect("a test fits memory");
        let a = Arg::Value(ValueId(0));
        let half = run_split("aten.fft_rfft.default", std::slice::from_ref(&x), std::slice::from_ref(&a))
            .expect("rfft");
        assert_eq!((half[0].dtype(), half[0].sizes()), (DType::C128, &[n / 2 + 1][..]));
        let list: Vec<Complex<f64>> = list.into_iter().map(|x| Complex::new(x, 0.0)).collect();
        let waves = waves(n, -1.0);
        for (k, got) in half[0].iter_complex().enumerate().step_by(1 + n / 512) {
            let expected = by_definition(&list, &waves, k);
            assert!((got - expected).norm() < 1e-11 * n as f64, "{n} at {k}: {got} {expected}");
        }
        let back = run_split("aten.fft_irfft.default", &half, &[a, (n as i64).into()]).expect("irfft");
        assert!(tensor::allclose(&back[0], &x, 1e-10, 1e-10).is_ok(), "{n}");
    }
}
