//! What crossing the boundary costs: calls of a program that takes its inputs and does nothing, by the number of inputs and
//! outputs, for the linked table and the loaded library; the best of several rounds. `cargo bench -p ferroflux-plugin-sdk` (after
//! `cargo build --release -p ferroflux-plugin-sdk --examples`). With the argument `once` every program is called once a round, for
//! counting instructions: `valgrind --tool=callgrind --toggle-collect='*LoadedExecutable::execute' BENCH once`.
#![allow(clippy::unwrap_used, dead_code)]

#[path = "../tests/suite/common/mod.rs"]
mod common;

use common::{compile, with_each_backend};
use tensor::Tensor;

fn main() {
    let x = Tensor::from_slice(&[1f32; 24], &[2, 3, 4]).unwrap();
    let calls = if std::env::args().any(|a| a == "once") { 1 } else { 50_000 };
    with_each_backend(|backend| {
        for (n, m) in [(0, 0), (1, 0), (16, 0), (0, 1), (8, 8), (16, 16)] {
            let program = compile(backend, &format!("swallow {n} {m}"));
            let inputs = vec![&x; n];
            let round = || {
                let start = std::time::Instant::now();
                for _ in 0..calls {
                    program.execute(&inputs).unwrap();
                }
                start.elapsed().as_nanos() as f64 / f64::from(calls)
            };
            let best = (0..9).map(|_| round()).fold(f64::INFINITY, f64::min);
            println!("{best:.0} ns a call with {n} inputs and {m} outputs");
        }
    });
}
