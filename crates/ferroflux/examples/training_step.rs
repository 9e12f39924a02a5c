//! The cost of a training step: `cargo run --example training_step MODEL_WITH_LOSS.pt2 GOLDEN.safetensors [STEPS]` prints
//! the median time of a step, the peak memory of the process, and the bytes that the program writes in place and returns.
//! The safetensors file holds the inputs as `in0`, `in1`, …. With `FERROFLUX_SKIP_PASSES=in_place` new values are returned
//! as
//! new tensors, for comparison.

// An example may fail as a test does.
#![allow(clippy::unwrap_used)]

use std::time::Instant;

use ferroflux::optim::{Adam, Optimizer};
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::train::TrainOptions;
use ferroflux::{Options, Program, Tensor, kernel_ir};

fn bytes<'a>(program: &kernel_ir::Program, bufs: impl Iterator<Item = &'a kernel_ir::BufId>) -> i64 {
    let one = |b: &kernel_ir::BufId| {
        let buffer = &program.buffers[*b];
        buffer.span().as_const().unwrap_or(0) * buffer.dtype.size() as i64
    };
    bufs.map(one).sum()
}

fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or("unknown").trim().into()
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let steps: usize = args.get(3).map_or(30, |n| n.parse().unwrap());
    let data = SafetensorsFile::open(&args[2]).unwrap();
    let inputs: Vec<Tensor> = (0..).map_while(|n| data.tensors.get(&format!("in{n}")).cloned()).collect();
    let program = Program::load(&args[1]).unwrap();
    let options = TrainOptions::new(Optimizer::Adam(Adam::adamw()));
    let mut step = program.train_step(&options, &Options::new().seed(1)).unwrap();
    let kernels = step.kernels().unwrap();
    let written = bytes(kernels, kernels.inputs.iter().filter(|i| i.written).map(|i| &i.buf));
    let returned = bytes(kernels, kernels.outputs.iter().map(|o| &o.buf));
    let arena = kernels.plan.place(kernels, &|_| None).map_or(0, |(_, bytes)| bytes);
    let count = kernels.steps.len();
    let mut times: Vec<f64> = Vec::new();
    let mut loss = 0.0;
    for _ in 0..steps {
        let start = Instant::now();
        loss = step.step(&inputs, 1e-3).unwrap().loss;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    println!(
        "{count} kernels, {written} bytes written in place, {returned} returned, arena {arena}, \
         {:.3} ms a step (median of {steps}), peak {}, loss {loss}",
        times[times.len() / 2],
        peak()
    );
}
