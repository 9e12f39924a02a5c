//! What a call costs, printed: the guards of compiled functions for growing numbers of tensors, calls of one function from
//! several threads, and elementwise chains that are not compiled by hand. With `--python PY`, an interpreter that has torch,
//! the chains run beside PyTorch's eager operators, in turns.
//!
//! ```text
//! cargo run --release -p ferroflux --example calls -- --python PY
//! ```
//!
//! The figures are of the machine: nothing is asserted. Not here: whole models, which `cargo xtask compare` measures.

mod chains;
mod peer;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroflux::Options;
use ferroflux::prelude::*;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Runs for this long for one figure, in one turn.
const TURN: Duration = Duration::from_millis(200);
/// Batches take at least so long, so that reading the clock does not count.
const BATCH: Duration = Duration::from_millis(1);

/// Nanoseconds of one run.
struct Time {
    median: f64,
    best: f64,
}

/// Runs something again and again for a turn, in batches.
fn timed(run: &mut dyn FnMut() -> Outcome<()>) -> Outcome<Time> {
    let mut batch = |n: u32| -> Outcome<f64> {
        let start = Instant::now();
        for _ in 0..n {
            run()?;
        }
        Ok(start.elapsed().as_nanos() as f64 / f64::from(n))
    };
    let mut n = 1u32;
    while batch(n)? * f64::from(n) < BATCH.as_nanos() as f64 {
        n *= 2;
    }
    let (start, mut times) = (Instant::now(), Vec::new());
    while start.elapsed() < TURN || times.len() < 5 {
        times.push(batch(n)?);
    }
    times.sort_by(f64::total_cmp);
    Ok(Time { median: times[times.len() / 2], best: times[0] })
}

fn guards() -> Outcome<()> {
    println!(
        "guards and cache hit of a compiled function, sizes symbolic (ns, median and best of many batches)"
    );
    println!("| tensors | median | best | best ÷ tensor |\n|--:|--:|--:|--:|");
    for count in [1, 4, 16, 64, 256] {
        let sum =
            |list: Vec<Tensor>| list.into_iter().reduce(|a, b| a + b).unwrap_or_else(|| Tensor::zeros(&[1]));
        let f = compile(sum).dynamic(true).build()?;
        let list: Vec<Tensor> = (0..count).map(|_| Tensor::rand(&[3, 4])).collect();
        f.call(list.clone())?;
        let time = timed(&mut || {
            assert!(f.is_compiled_for(black_box(&list))?);
            Ok(())
        })?;
        println!("| {count} | {:.0} | {:.0} | {:.0} |", time.median, time.best, time.best / f64::from(count));
    }
    Ok(())
}

fn whole_calls() -> Outcome<()> {
    println!("\nwhole calls (ns, median and best)\n| call | median | best |\n|---|--:|--:|");
    let x = Tensor::zeros(&[4]);
    let one = compile(|x: Tensor| x + 1.0).build()?;
    one.call(x.clone())?;
    let row = |what: &str, run: &mut dyn FnMut() -> Outcome<()>| -> Outcome<()> {
        let time = timed(run)?;
        println!("| {what} | {:.0} | {:.0} |", time.median, time.best);
        Ok(())
    };
    row("a compiled function of one tensor of 4 elements", &mut || {
        one.call(black_box(x.clone()))?;
        Ok(())
    })?;
    row("two recorded operators on it, computed", &mut || {
        (black_box(&x) * 2.0 + 1.0).compute()?;
        Ok(())
    })
}

/// Calls a second of `threads` threads, each with tensors of its own.
fn rate(f: &Arc<CompiledFn<Tensor, Tensor>>, sizes: &[i64], threads: usize) -> Outcome<f64> {
    let inputs: Vec<Tensor> = (0..threads).map(|_| Tensor::rand(sizes)).collect();
    for x in &inputs {
        f.call(x.clone())?;
    }
    let start = Instant::now();
    let calls: usize = std::thread::scope(|scope| {
        let one = |x: &Tensor| {
            let mut calls = 0;
            while start.elapsed() < 2 * TURN {
                calls += (0..16).filter(|_| f.call(x.clone()).is_ok()).count();
            }
            calls
        };
        let workers: Vec<_> = inputs.iter().map(|x| scope.spawn(move || one(x))).collect();
        workers.into_iter().map(|w| w.join().unwrap_or(0)).sum()
    });
    Ok(calls as f64 / start.elapsed().as_secs_f64())
}

fn threads() -> Outcome<()> {
    println!(
        "\ncalls of one compiled function from several threads (calls a second; each call on one thread)"
    );
    println!("| function | 1 thread | 2 threads | 4 threads | 2 ÷ 1 |\n|---|--:|--:|--:|--:|");
    let one = || Options::new().threads(1);
    let chain = compile(|x: Tensor| (x.exp() + 1.0).sqrt()).options(one()).build()?;
    let product = compile(|x: Tensor| x.matmul(&x).relu()).options(one()).build()?;
    let all: [(&str, CompiledFn<Tensor, Tensor>, &[i64]); 3] = [
        ("3 operators on 64 elements", chain, &[64]),
        (
            "the same on 65,536",
            compile(|x: Tensor| (x.exp() + 1.0).sqrt()).options(one()).build()?,
            &[65_536],
        ),
        ("a product of 256×256 by itself, ReLU", product, &[256, 256]),
    ];
    for (name, f, sizes) in all {
        let f = Arc::new(f);
        // In turns, the best of each: other work on the machine only takes away.
        let mut best = [0.0f64; 3];
        for _ in 0..5 {
            for (slot, threads) in best.iter_mut().zip([1, 2, 4]) {
                *slot = slot.max(rate(&f, sizes, threads)?);
            }
        }
        let [a, b, c] = best;
        println!("| {name} | {a:.0} | {b:.0} | {c:.0} | {:.2} |", b / a);
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| args.iter().position(|a| a == name).and_then(|n| args.get(n + 1));
    let only = value("--only").map(String::as_str);
    let wanted = |part: &str| only.is_none_or(|o| o == part);
    if wanted("guards") {
        guards()?;
        whole_calls()?;
    }
    if wanted("threads") {
        threads()?;
    }
    if wanted("chains") {
        chains::compare(value("--python").map(String::as_str))?;
    }
    Ok(())
}
