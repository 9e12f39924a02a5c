//! What crossing the boundary costs: calls of a program that takes its inputs and does nothing, by the number of inputs,
//! for the linked table and the loaded library. `cargo bench -p plugin-sdk` (after `cargo build -p plugin-sdk --examples`).
#![allow(clippy::unwrap_used, dead_code)]

#[path = "../tests/common/mod.rs"]
mod common;

use common::{compile, each_way};
use tensor::Tensor;

fn main() {
    let x = Tensor::from_slice(&[1f32; 24], &[2, 3, 4]).unwrap();
    each_way(|backend| {
        for n in [0, 1, 16] {
            let program = compile(backend, &format!("swallow {n}"));
            let inputs = vec![&x; n];
            let calls = 200_000;
            let start = std::time::Instant::now();
            for _ in 0..calls {
                program.execute(&inputs).unwrap();
            }
            println!("{:.0} ns a call with {n} inputs", start.elapsed().as_nanos() as f64 / f64::from(calls));
        }
    });
}
