//! Random operators: the same numbers on `eager`, `oracle` and `cpu` for one seed, others for another, and the exact
//! distributions (Kolmogorov and Smirnov's test, moments, counts) at fixed seeds, so that a run either always passes or
//! never does.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod draw;

use draw::{Drawn, cdf_distance, drawn, eager, oracle, plugin};
use fx_ir::Arg;
use ir_core::{DType, Scalar};
use kernel_ir::ScalarOp;
use tensor::Tensor;

/// Bound of the distance between a sample's and the exact distribution function that a right generator exceeds once in
/// 10^6 samples (Kolmogorov's limit: 2 exp(-2 n d^2)).
fn bound(n: usize) -> f64 {
    ((2e6f64).ln() / (2.0 * n as f64)).sqrt()
}

fn ints(list: &[i64]) -> Arg {
    list.into()
}

fn erfc(x: f64) -> f64 {
    ScalarOp::Erfc.eval(DType::F64, &[Scalar::Float(x)]).as_f64()
}

fn normal_cdf(x: f64) -> f64 {
    0.5 * erfc(-x / std::f64::consts::SQRT_2)
}

/// Every operator that draws, once.
fn all() -> Vec<Drawn> {
    let mut list = Vec::new();
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        list.push(drawn("aten.rand.default", vec![ints(&[4, 37]), dtype.into()], dtype, &[4, 37]));
        list.push(drawn("aten.randn.default", vec![ints(&[4, 37]), dtype.into()], dtype, &[4, 37]));
        for (target, args) in [
            ("aten.uniform.default", vec![(-2.0).into(), 3.0.into()]),
            ("aten.normal.default", vec![1.0.into(), 2.0.into()]),
            ("aten.exponential.default", vec![0.5.into()]),
            ("aten.cauchy.default", vec![1.0.into(), 2.0.into()]),
            ("aten.log_normal.default", vec![0.5.into(), 0.25.into()]),
            ("aten.geometric.default", vec![0.3.into()]),
            ("aten.random.default", vec![]),
            ("aten.bernoulli.p", vec![0.3.into()]),
            ("aten.dropout.default", vec![0.3.into(), true.into()]),
            ("aten.feature_dropout.default", vec![0.3.into(), true.into()]),
            ("aten.alpha_dropout.default", vec![0.3.into(), true.into()]),
        ] {
            list.push(drawn(target, args, dtype, &[4, 37]).with_self());
        }
        let slopes = vec![0.1.into(), 0.3.into(), true.into()];
        list.push(drawn("aten.rrelu.default", slopes, dtype, &[4, 37]).with_normal());
    }
    list.push(drawn("aten.randperm.default", vec![50i64.into()], DType::I64, &[50]));
    list.push(drawn("aten.randint.low", vec![(-5i64).into(), 7i64.into(), ints(&[99])], DType::I64, &[99]));
    let weights = drawn("aten.multinomial.default", vec![3i64.into()], DType::F32, &[4, 37]).with_self();
    list.push(weights.giving(DType::I64, &[4, 3]));
    let weights = drawn("aten.multinomial.default", vec![9i64.into(), true.into()], DType::F32, &[4, 37]);
    list.push(weights.with_self().giving(DType::I64, &[4, 9]));
    list.push(drawn("aten.poisson.default", vec![], DType::F32, &[4, 37]).with_self());
    list.push(drawn("aten.bernoulli.default", vec![], DType::F32, &[4, 37]).with_self());
    list
}

/// Integers are equal on every backend; floats are the same numbers through each one's functions.
#[test]
fn one_seed_gives_the_same_numbers_everywhere() {
    for d in all() {
        let expected = eager(&d, 42);
        for (name, got) in [("oracle", oracle(&d, 42)), ("cpu", plugin(&d, 42))] {
            assert_eq!(got.sizes(), expected.sizes(), "{} on {name}", d.target);
            let relative = match d.dtype {
                DType::F64 => 1e-9,
                DType::F32 => 1e-4,
                _ => 2e-2,
            };
            for (i, (g, e)) in got.iter_f64().zip(expected.iter_f64()).enumerate() {
                let near = (g - e).abs() <= relative * (1.0 + e.abs());
                // Cauchy's tangent has no bounded error near its poles.
                let steep = d.target.contains("cauchy") && e.abs() > 50.0;
                assert!(near || steep, "{} {} on {name}: element {i} is {g}, not {e}", d.target, d.dtype);
            }
        }
        let other = eager(&d, 43);
        assert!(
            other.iter_f64().zip(expected.iter_f64()).any(|(a, b)| a != b),
            "{}: {:?}",
            d.target,
            d.dtype
        );
    }
}

#[test]
fn continuous_distributions_are_exact() {
    let n = 20_000;
    let size = [n as i64];
    for dtype in [DType::F32, DType::F64] {
        type Case = (&'static str, Vec<Arg>, fn(f64) -> f64);
        let cases: Vec<Case> = vec![
            ("aten.uniform.default", vec![(-2.0).into(), 3.0.into()], |x| ((x + 2.0) / 5.0).clamp(0.0, 1.0)),
            ("aten.normal.default", vec![1.0.into(), 2.0.into()], |x| normal_cdf((x - 1.0) / 2.0)),
            ("aten.exponential.default", vec![0.5.into()], |x| -(-0.5 * x).exp_m1()),
            ("aten.cauchy.default", vec![1.0.into(), 2.0.into()], |x| {
                0.5 + ((x - 1.0) / 2.0).atan() / std::f64::consts::PI
            }),
            ("aten.log_normal.default", vec![0.5.into(), 0.25.into()], |x| normal_cdf((x.ln() - 0.5) / 0.25)),
        ];
        for (target, args, cdf) in cases {
            let sample = eager(&drawn(target, args, dtype, &[n]).with_self(), 7);
            let distance = cdf_distance(&sample, cdf);
            assert!(distance < bound(n), "{target} {dtype}: {distance}, at most {}", bound(n));
            // A wrong distribution function is told apart by the same sample.
            assert!(cdf_distance(&sample, |x| cdf(x + 0.2)) > bound(n), "{target} {dtype}");
        }
        let rand = eager(&drawn("aten.rand.default", vec![ints(&size), dtype.into()], dtype, &[n]), 7);
        assert!(cdf_distance(&rand, |x| x.clamp(0.0, 1.0)) < bound(n));
        assert!(rand.iter_f64().all(|x| (0.0..1.0).contains(&x)));
    }
}

/// The resolution of `rand` is the significand's: an `f64` has more than 24 bits, a 16-bit float is never rounded to 1.
#[test]
fn uniform_numbers_have_the_bits_of_their_dtype() {
    for (dtype, digits) in [(DType::F64, 53), (DType::F32, 24), (DType::F16, 11), (DType::BF16, 8)] {
        let d = drawn("aten.rand.default", vec![ints(&[3000]), dtype.into()], dtype, &[3000]);
        let numbers: Vec<f64> = eager(&d, 3).iter_f64().collect();
        let scale = 2f64.powi(digits);
        assert!(numbers.iter().all(|x| (x * scale).fract() == 0.0 && *x < 1.0), "{dtype}");
        assert!(numbers.iter().any(|x| (x * scale / 2.0).fract() != 0.0), "{dtype}: fewer bits");
    }
}

#[test]
fn counts_are_as_likely_as_they_should_be() {
    let n = 20_000usize;
    // Mean and variance, within five standard errors.
    let cases: Vec<(Drawn, f64, f64)> = vec![
        (drawn("aten.bernoulli.p", vec![0.3.into()], DType::F32, &[n]).with_self(), 0.3, 0.21),
        (drawn("aten.geometric.default", vec![0.25.into()], DType::F32, &[n]).with_self(), 4.0, 12.0),
        (
            drawn("aten.randint.low", vec![(-5i64).into(), 7i64.into(), ints(&[n as i64])], DType::I64, &[n]),
            0.5,
            143.0 / 12.0,
        ),
        (drawn("aten.poisson.default", vec![], DType::F64, &[n]).with_value(3.5), 3.5, 3.5),
        (drawn("aten.poisson.default", vec![], DType::F64, &[n]).with_value(250.0), 250.0, 250.0),
        (
            drawn("aten.dropout.default", vec![0.4.into(), true.into()], DType::F32, &[n]).with_value(1.0),
            1.0,
            2.0 / 3.0,
        ),
        (
            drawn("aten.alpha_dropout.default", vec![0.4.into(), true.into()], DType::F32, &[n])
                .with_normal(),
            0.0,
            1.0,
        ),
    ];
    for (d, mean, variance) in cases {
        let sample: Vec<f64> = eager(&d, 11).iter_f64().collect();
        let m = sample.iter().sum::<f64>() / n as f64;
        let v = sample.iter().map(|x| (x - m).powi(2)).sum::<f64>() / n as f64;
        let fourth = sample.iter().map(|x| (x - m).powi(4)).sum::<f64>() / n as f64;
        let (error, wide) = ((variance / n as f64).sqrt(), ((fourth - v * v) / n as f64).sqrt());
        assert!((m - mean).abs() < 5.0 * error, "{}: mean {m}, expected {mean} ± {error}", d.target);
        assert!((v - variance).abs() < 5.0 * wide + 1e-9, "{}: variance {v}, expected {variance}", d.target);
    }
}

#[test]
fn permutations_hold_every_number_once() {
    let d = drawn("aten.randperm.default", vec![1000i64.into()], DType::I64, &[1000]);
    let mut order: Vec<f64> = eager(&d, 5).iter_f64().collect();
    let fixed = order.iter().enumerate().filter(|(i, x)| *i as f64 == **x).count();
    assert!(fixed < 12, "{fixed} of 1000 stand where they stood, expected about one");
    order.sort_by(f64::total_cmp);
    assert!(order.iter().enumerate().all(|(i, x)| i as f64 == *x));
}

/// Weights 1, 0, 3, 4: the first of a draw has these shares; what has no weight is never drawn, nothing twice.
#[test]
fn categories_are_drawn_by_weight() {
    let rows = 8000usize;
    let weights: Vec<f32> = (0..rows).flat_map(|_| [1.0, 0.0, 3.0, 4.0]).collect();
    let weights = Tensor::from_vec(weights, &[rows, 4]).unwrap();
    for replacement in [false, true] {
        let args = vec![3i64.into(), replacement.into()];
        let d = drawn("aten.multinomial.default", args, DType::F32, &[rows, 4]).with_tensor(weights.clone());
        let sample: Vec<f64> = eager(&d.giving(DType::I64, &[rows, 3]), 9).iter_f64().collect();
        let mut counts = [0usize; 4];
        for row in sample.chunks(3) {
            counts[row[0] as usize] += 1;
            assert!(row.iter().all(|k| *k != 1.0));
            let twice = row[0] == row[1] || row[0] == row[2] || row[1] == row[2];
            assert!(replacement || !twice);
        }
        for (count, share) in counts.iter().zip([0.125, 0.0, 0.375, 0.5]) {
            let error = (share * (1.0 - share) / rows as f64).sqrt();
            assert!((*count as f64 / rows as f64 - share).abs() <= 5.0 * error, "{counts:?}");
        }
    }
}

/// Two calls of one graph are independent, and so are neighbours in one tensor.
#[test]
fn streams_do_not_repeat() {
    let n = 20_000usize;
    let draw = |name: &str| -> Vec<f64> {
        let mut d = drawn("aten.randn.default", vec![ints(&[n as i64]), DType::F64.into()], DType::F64, &[n]);
        d.name = name.into();
        eager(&d, 1).iter_f64().collect()
    };
    let (a, b) = (draw("x"), draw("x_1"));
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>() / (n as f64).sqrt();
    assert!(product(&a, &b).abs() < 5.0);
    for lag in [1, 2, 64] {
        assert!(product(&a[lag..], &a[..n - lag]).abs() < 5.0, "lag {lag}");
    }
}
