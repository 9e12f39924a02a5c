//! A training step whose parameters have many shapes: their updates are one step of the program, and what the program leaves
//! is, bit for bit, what its members leave one after another.

#![allow(clippy::unwrap_used)] // a failing test may panic

use ferroflux::kernel_ir::{self, Program as Kernels, Step};
use ferroflux::optim::{Adam, Optimizer, Sgd};
use ferroflux::train::{Clip, TrainOptions};
use ferroflux::{DType, Options, Program, Tensor, Value};
use plugin_host::{Arg, CompileArgs, KERNEL_IR};

fn step(options: &TrainOptions) -> Kernels {
    let path = format!("{}/../../examples/digits/digits_train.pt2", env!("CARGO_MANIFEST_DIR"));
    let step = Program::load(path).unwrap().train_step(options, &Options::new().backend("cpu")).unwrap();
    step.kernels().unwrap().clone()
}

/// Positive floats, and labels.
fn inputs(program: &Kernels) -> Vec<Tensor> {
    let one = |spec: &kernel_ir::InputSpec| {
        let buffer = &program.buffers[spec.buf];
        let sizes: Vec<usize> = buffer.sizes.iter().map(|s| s.as_const().unwrap() as usize).collect();
        if buffer.dtype == DType::I64 {
            let count = sizes.iter().product::<usize>() as i64;
            return Tensor::from_vec((0..count).map(|n| n % 10).collect(), &sizes).unwrap();
        }
        let t = tensor::formula::fill(&spec.name, &sizes, 0.1, 0.2).unwrap();
        t.to_dtype(buffer.dtype).unwrap()
    };
    program.inputs.iter().map(one).collect()
}

/// The bits of what a call leaves in its inputs and returns.
fn run(program: &Kernels, inputs: &[Tensor]) -> Vec<Vec<u64>> {
    let bytes = program.to_bytes();
    let args = CompileArgs::new(KERNEL_IR, &bytes).mode("default").options(&[("threads", "2")]);
    let mut code = plugin_host::Registry::from_env().load("cpu").unwrap().compile(&args).unwrap();
    code.bind_constants(&[]).unwrap();
    let mut values: Vec<Value> = inputs.iter().map(|t| Value::Host(t.copied().unwrap())).collect();
    let mut args: Vec<Arg<'_>> = values.iter_mut().map(Arg::Write).collect();
    let outputs = code.execute_args(&mut args).unwrap();
    drop(args);
    let all = values.into_iter().chain(outputs).map(|v| code.to_host(v).unwrap());
    all.map(|t| t.iter_f64().map(f64::to_bits).collect()).collect()
}

/// Steps that store new values of inputs, those that may run at once counted as one.
fn updating(program: &Kernels) -> usize {
    let updates = |s: &&Step| s.accesses().1.iter().any(|b| program.written_input(*b).is_some());
    program.steps.iter().filter(updates).count()
}

#[test]
fn parameters_of_all_shapes_are_updated_in_few_steps() {
    let sgd = Optimizer::Sgd(Sgd { momentum: 0.9, ..Sgd::default() });
    let clip = Clip::Norm { max: 0.5, error_if_nonfinite: false };
    for options in [TrainOptions::new(Optimizer::Adam(Adam::adamw())), TrainOptions::new(sgd).clip(clip)] {
        let program = step(&options);
        let single = program.one_by_one();
        let parameters = program.inputs.iter().filter(|i| i.written).count();
        let (before, after) = (updating(&single), updating(&program));
        println!(
            "{parameters} written inputs; {} steps, {} of them write inputs; one by one {} and {before}",
            program.steps.len(),
            after,
            single.steps.len()
        );
        assert!(after < before, "{program}");
        let given = inputs(&program);
        assert_eq!(run(&program, &given), run(&single, &given));
    }
}
