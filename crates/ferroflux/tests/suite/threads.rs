//! Calls of one compiled function from many threads: right results, no lost writes, no compilation twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use ferroflux::nn::Linear;
use ferroflux::prelude::*;

/// Pseudorandom numbers, one sequence for each thread.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

fn close(got: &Tensor, expected: &[f32], what: &str) {
    let got = got.to(DType::F32).to_vec::<f32>().unwrap_or_else(|e| panic!("{what}: {e}"));
    let same = got.len() == expected.len()
        && got.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-4 * (1.0 + b.abs()));
    assert!(same, "{what}: {got:?}, not {expected:?}");
}

/// What the function computes, in plain numbers.
fn expected(x: &[f32], y: &[f32], weight: &[f32], k: i64) -> Vec<f32> {
    let columns = weight.len();
    let sum: f32 = y.iter().sum();
    x.iter().enumerate().map(|(n, x)| x * weight[n % columns] * k as f32 + sum).collect()
}

#[test]
fn whatever_threads_change_each_gets_its_own_result() {
    let weight = [0.5_f32, -2.0, 3.0];
    let captured = Tensor::from_slice(&weight, &[3]);
    let f = compile(move |(x, y, k): (Tensor, Tensor, i64)| {
        &x * captured.to(x.dtype()) * k + y.sum().to(x.dtype())
    });
    let f = Arc::new(f.limit(64).build().unwrap());
    let calls = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (f, calls) = (Arc::clone(&f), &calls);
            scope.spawn(move || {
                let mut draw = Draw(thread * 7919 + 1);
                for round in 0..60 {
                    let rows = [1, 2, 3, 5, 8][draw.below(5)];
                    let (double, alias, k) =
                        (draw.below(2) == 1, draw.below(3) == 0, 1 + draw.below(2) as i64);
                    let data: Vec<f32> =
                        (0..rows * 3).map(|n| (n as f32 * 0.3 + thread as f32).sin()).collect();
                    let make = |values: &[f32]| {
                        let t = Tensor::from_slice(values, &[values.len() / 3, 3]);
                        if double { t.to(DType::F64) } else { t }
                    };
                    let x = make(&data);
                    let (y, other) = match alias {
                        true => (x.clone(), data.clone()),
                        false => {
                            let other: Vec<f32> = data.iter().map(|v| v * 0.25).collect();
                            (make(&other), other)
                        }
                    };
                    let no_gradient = draw.below(2) == 0;
                    let run = || f.call((x.clone(), y.clone(), k)).unwrap();
                    let got = if no_gradient { no_grad(run) } else { run() };
                    let what = format!(
                        "thread {thread}, round {round}: rows {rows}, double {double}, alias {alias}"
                    );
                    close(&got, &expected(&data, &other, &weight, k), &what);
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(calls.load(Ordering::Relaxed), 480);
    // Two dtypes, two numbers, gradients or none; each for a first size, for any size, and for a size of 1.
    assert!(f.captures() <= 2 * 2 * 2 * 5, "{} captures: {:?}", f.captures(), f.recompile_reasons());
}

/// Calls that write take turns: no write is lost, whichever thread makes it, and readers see whole values.
#[test]
fn writes_from_many_threads_are_all_kept() {
    let total = Tensor::zeros(&[2]);
    let own = total.clone();
    let add = compile(move |x: Tensor| -> Result<Tensor, ferroflux::Error> {
        no_grad(|| own.add_(&x).map(|_| ()))?;
        Ok(own.sum())
    });
    let add = Arc::new(add.fullgraph(true).build().unwrap());
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let add = Arc::clone(&add);
            scope.spawn(move || {
                for _ in 0..50 {
                    let sum = add.call(Tensor::from_slice(&[1.0_f32, thread as f32], &[2])).unwrap();
                    assert!(sum.item().unwrap() >= 1.0);
                }
            });
        }
    });
    assert_eq!(total.to_vec::<f32>().unwrap(), [300.0, 50.0 * 15.0]);
    assert_eq!(add.captures(), 1, "{:?}", add.recompile_reasons());
}

/// A parameter that one thread replaces is that of a whole call in the others: never a mixture.
#[test]
fn a_parameter_that_changes_is_one_value_in_each_call() {
    let layer = Arc::new(Linear::new(4, 4).without_bias());
    let set = |value: f32| {
        let new = Tensor::from_slice(&[value; 16], &[4, 4]);
        no_grad(|| layer.weight.set_(&new).map(|_| ())).unwrap();
    };
    set(1.0);
    let own = Arc::clone(&layer);
    let f = Arc::new(compile(move |x: Tensor| own.forward(&x)).build().unwrap());
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (f, done) = (Arc::clone(&f), &done);
            scope.spawn(move || {
                for _ in 0..100 {
                    let y = no_grad(|| f.call(Tensor::ones(&[2, 4])).unwrap()).to_vec::<f32>().unwrap();
                    assert!(y.iter().all(|v| *v == y[0]) && y[0] % 4.0 == 0.0, "{y:?}");
                }
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        let mut value = 1.0;
        while done.load(Ordering::Relaxed) < 3 {
            value += 1.0;
            set(value);
        }
    });
    assert_eq!(f.captures(), 1, "{:?}", f.recompile_reasons());
}

/// The figures are printed, not asserted: machines differ.
#[test]
fn calls_from_threads_side_by_side() {
    let f = Arc::new(compile(|x: Tensor| (x.exp() + 1.0).sqrt()).build().unwrap());
    let x = Tensor::rand(&[64]);
    f.call(x.clone()).unwrap();
    for threads in [1, 2, 4] {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let (f, x) = (Arc::clone(&f), x.clone());
                scope.spawn(move || {
                    for _ in 0..2000 {
                        f.call(x.clone()).unwrap();
                    }
                });
            }
        });
        let each = start.elapsed().as_nanos() as f64 / f64::from(2000 * threads);
        println!("{threads} threads: {each:.0} ns a call");
    }
    assert_eq!(f.captures(), 1);
}
