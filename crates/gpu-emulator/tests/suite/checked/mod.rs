//! Shared helpers of the tests of checked indices: programs as text, their inputs, and every candidate of their steps on
//! the emulator against `interp`.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::Arc;

pub use crate::present::available;
use gpu_codegen::{Target, variants};
use gpu_emulator::Emulator;
use gpu_runtime::{Compiled, DeviceMemory, GpuError, Mode, Settings};
use interp::kernels::KernelError;
use ir_core::DType;
use kernel_ir::{Program, Site, Step};
use plugin_sdk::{OwnedTensor, TensorView, bf16};
use tensor::Tensor;

/// The outcome of a call: the elements of its outputs, or an index that is out of bounds: its site, the index and the
/// size.
pub type Outcome = Result<Vec<Vec<f64>>, (u32, i64, i64)>;

pub const MODES: [Mode; 4] =
    [Mode::Default, Mode::ReduceOverhead, Mode::MaxAutotune, Mode::MaxAutotuneNoCudagraphs];

/// Out-of-bounds indices.
pub const BAD: [i64; 4] = [-1, 1_000_000_000, i64::MIN, i64::MAX];

pub fn program(text: &str) -> Program {
    text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))
}

pub fn ints(values: &[i64]) -> Tensor {
    Tensor::from_slice(values, &[values.len()]).unwrap()
}

/// Small whole numbers, whose sums are exact.
pub fn floats(sizes: &[usize]) -> Tensor {
    let values: Vec<f32> = (0..sizes.iter().product()).map(|i: usize| (i * 7 % 23) as f32 - 9.0).collect();
    Tensor::from_vec(values, sizes).unwrap()
}

/// The same numbers in another dtype.
pub fn numbers(dtype: DType, sizes: &[usize]) -> Tensor {
    floats(sizes).to_dtype(dtype).unwrap()
}

/// A program on an emulated device.
pub struct Code {
    pub code: Compiled<Emulator>,
    pub memory: Arc<DeviceMemory<Emulator>>,
}

impl Code {
    pub fn new(program: &Program, device: Emulator, settings: Settings) -> Code {
        let memory = DeviceMemory::new(Arc::new(device));
        let mut code =
            Compiled::with(&memory, program.clone(), settings).unwrap_or_else(|e| panic!("{e}\n{program}"));
        code.bind(&[]).unwrap();
        Code { code, memory }
    }

    pub fn of(text: &str, mode: Mode) -> Code {
        Code::new(&program(text), Emulator::default(), Settings { mode, ..Settings::default() })
    }

    pub fn call(&self, inputs: &[Tensor]) -> Result<Vec<Vec<f64>>, GpuError> {
        with_views(inputs, |views| self.code.call(views)).map(|all| all.into_iter().map(elements).collect())
    }

    /// A call that nobody waits for.
    pub fn start(&self, inputs: &[Tensor]) -> Result<(), GpuError> {
        with_views(inputs, |views| self.code.execute(views)).map(drop)
    }

    pub fn outcome(&self, program: &Program, inputs: &[Tensor]) -> Outcome {
        match self.call(inputs) {
            Ok(values) => Ok(values),
            Err(GpuError::Index { site, index, size, .. }) => Err((number(program, &site), index, size)),
            Err(e) => panic!("{e}\n{program}"),
        }
    }
}

pub fn with_views<T>(inputs: &[Tensor], run: impl FnOnce(&[TensorView<'_>]) -> T) -> T {
    fn view(t: &Tensor) -> TensorView<'_> {
        let sizes: Vec<i64> = t.sizes().iter().map(|n| *n as i64).collect();
        let strides: Vec<i64> = tensor::contiguous_strides(t.sizes()).iter().map(|s| *s as i64).collect();
        let (sizes, strides): (&'static [i64], &'static [i64]) = (sizes.leak(), strides.leak());
        let made = match t.dtype() {
            DType::F32 => TensorView::from_slice(slice::<f32>(t), DType::F32, sizes, strides),
            DType::I64 => TensorView::from_slice(slice::<i64>(t), DType::I64, sizes, strides),
            DType::BF16 => TensorView::from_slice(slice::<bf16>(t), DType::BF16, sizes, strides),
            DType::Bool => TensorView::from_slice(slice::<u8>(t), DType::Bool, sizes, strides),
            other => panic!("no test has inputs of {other}"),
        };
        made.unwrap()
    }
    let views: Vec<TensorView<'_>> = inputs.iter().map(view).collect();
    run(&views)
}

/// The memory of a contiguous tensor.
fn slice<T>(t: &Tensor) -> &[T] {
    let raw = t.raw_parts();
    // SAFETY: the tensor is contiguous and has this many elements of the dtype of `T`.
    unsafe { std::slice::from_raw_parts(raw.data.cast::<T>(), t.numel()) }
}

fn elements(mut t: OwnedTensor) -> Vec<f64> {
    let (count, data) = (t.numel(), t.as_mut_ptr());
    tensor::with_element!(t.dtype(), T => {
        // SAFETY: outputs of these programs are contiguous, and memory of the emulated device is host memory.
        let all = unsafe { std::slice::from_raw_parts(data.cast::<T>(), count) };
        all.iter().map(|x| tensor::Element::to_scalar(*x).as_f64()).collect()
    })
}

fn number(program: &Program, site: &Site) -> u32 {
    program.sites.iter().position(|s| s == site).unwrap() as u32
}

/// The outcome of a call by `interp`.
pub fn expected(program: &Program, inputs: &[Tensor]) -> Outcome {
    match interp::kernels::run(program, &|_| None, inputs) {
        Ok(all) => Ok(all.iter().map(|t| t.iter_f64().collect()).collect()),
        Err(KernelError::Index { site, index, size, .. }) => Err((number(program, &site), index, size)),
        Err(e) => panic!("{e}\n{program}"),
    }
}

/// The names of all candidates of any step of a program.
pub fn candidates(program: &Program, target: &Target) -> BTreeSet<String> {
    fn of(program: &Program, steps: &[Step], target: &Target, out: &mut BTreeSet<String>) {
        for step in steps {
            out.extend(variants(program, step, target).into_iter().flatten().map(|v| v.name));
            step.nested().into_iter().for_each(|s| of(program, s, target, out));
        }
    }
    let mut out = BTreeSet::new();
    of(program, &program.steps, target, &mut out);
    out
}

/// Runs calls with every candidate. Each call is followed by the first one, whose outcome must not depend on earlier
/// calls. With several bad indices any of them may be reported: `bad` has all of them.
pub fn agrees(text: &str, wanted: &[&str], calls: &[Vec<Tensor>]) {
    if !available() {
        return;
    }
    let program = program(text);
    let truth: Vec<Outcome> = calls.iter().map(|c| expected(&program, c)).collect();
    assert!(truth[0].is_ok(), "the first call is a good one: {:?}", truth[0]);
    let in_order = |deterministic| Target { deterministic, ..Target::HOPPER };
    for target in [in_order(false), in_order(true), Target::CDNA, Target::RDNA] {
        let (all, on) = (candidates(&program, &target), format!("wave {}", target.wave));
        if target == Target::HOPPER {
            for candidate in wanted {
                assert!(
                    all.iter().any(|w| w.starts_with(candidate)),
                    "no candidate `{candidate}` among {all:?}"
                );
            }
        }
        for candidate in all.iter().map(String::as_str).chain([""]) {
            let device = Emulator::new(target.clone());
            let device = if candidate.is_empty() { device } else { device.prefer(candidate) };
            let code = Code::new(&program, device, Settings::default());
            for (call, truth_of) in calls.iter().zip(&truth) {
                let got = code.outcome(&program, call);
                assert_eq!(&got, truth_of, "{candidate} {on}\n{program}");
                assert_eq!(
                    code.outcome(&program, &calls[0]),
                    truth[0],
                    "{candidate} {on}: a good call after it"
                );
            }
        }
    }
}
