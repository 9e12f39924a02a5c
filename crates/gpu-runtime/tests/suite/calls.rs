//! The cost of a call and the ownership of its outputs, on a driver that counts. Arithmetic is not tested: every kernel of
//! these programs adds 1.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::common::{Counts, ELSEWHERE, HERE, Mock, TWICE};
use gpu_runtime::{Compiled, DeviceMemory, GpuError, Mode, Settings};
use plugin_sdk::{DType, OwnedTensor, TensorView};

/// `x` is incremented in place; `y` is its new value plus 1.
const IN_PLACE: &str = r#"kir 1.4
program "in place"
buffer b0 "x" f32[1000]{1}+0 input 0
buffer b1 "new" f32[1000]{1}+0 view b0
buffer b2 "y" f32[1000]{1}+0 output
input "x" b0 written
output "y" b2[1000]{1}+0
init:
steps:
loop "one" outer [1000]
  stage []
    v0: f32 = load b0[i0]
    v1: f32 = abs v0
    v2: f32 = store b1[i0], v1
loop "two" outer [1000]
  stage []
    v0: f32 = load b1[i0]
    v1: f32 = abs v0
    v2: f32 = store b2[i0], v1
plan bytes 0:
"#;

/// A product of 16-bit floats that is large enough for TMA.
const PRODUCT: &str = r#"kir 1.3
program "product"
buffer b0 "a" bf16[512, 512]{512, 1}+0 input 0
buffer b1 "b" bf16[512, 512]{512, 1}+0 input 1
buffer b2 "y" bf16[512, 512]{512, 1}+0 output
input "a" b0
input "b" b1
output "y" b2[512, 512]{512, 1}+0
init:
steps:
matmul "m" acc f32
  a b0[512, 512]{512, 1}+0
  b b1[512, 512]{1, 512}+0
  epilogue [512, 512]
    v0: f32 = template
    v1: bf16 = cast v0
    v2: bf16 = store b2[i0, i1], v1
plan bytes 0:
"#;

fn compiled(text: &str, driver: Mock, mode: Mode) -> (Compiled<Mock>, Arc<Counts>) {
    let counts = Arc::clone(&driver.counts);
    let settings = Settings { mode, ..Settings::default() };
    let memory = DeviceMemory::new(Arc::new(driver));
    (Compiled::with(&memory, text.parse().unwrap(), settings).unwrap(), counts)
}

/// Floats at an address that is aligned for kernels.
struct Numbers(Vec<u128>, usize);

impl Numbers {
    fn new(first: f32, count: usize) -> Numbers {
        let mut all = Numbers(vec![0; count.div_ceil(4) + 1], count);
        all.slice_mut().iter_mut().enumerate().for_each(|(i, x)| *x = first + i as f32);
        all
    }
    fn slice_mut(&mut self) -> &mut [f32] {
        // SAFETY: the memory is aligned and has at least this many floats.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.1) }
    }
    fn slice(&self) -> &[f32] {
        // SAFETY: the memory is aligned and has at least this many initialized floats.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.1) }
    }
}

fn call(code: &Compiled<Mock>, x: &[f32]) -> Result<OwnedTensor, GpuError> {
    let sizes = [x.len() as i64];
    let view = TensorView::from_slice(x, DType::F32, &sizes, &[1]).unwrap();
    code.execute(&[view]).map(|mut all| all.remove(0))
}

fn values(t: &mut OwnedTensor) -> Vec<f32> {
    // SAFETY: the mock's memory is host memory, and the tensor has this many elements.
    unsafe { std::slice::from_raw_parts(t.as_mut_ptr().cast::<f32>(), t.numel()) }.to_vec()
}

fn expect(t: &mut OwnedTensor, x: &[f32], more: f32) {
    assert_eq!(values(t), x.iter().map(|x| x + more).collect::<Vec<_>>());
}

#[test]
fn a_call_in_the_steady_state_asks_for_no_memory() {
    for mode in [Mode::Default, Mode::ReduceOverhead] {
        for device in [HERE, ELSEWHERE] {
            let (code, counts) = compiled(TWICE, Mock::new(device), mode);
            let x = Numbers::new(0.0, 5000);
            for _ in 0..3 {
                expect(&mut call(&code, x.slice()).unwrap(), x.slice(), 2.0);
            }
            let before = counts.of(|c| &c.allocations);
            for _ in 0..20 {
                expect(&mut call(&code, x.slice()).unwrap(), x.slice(), 2.0);
            }
            assert_eq!(counts.of(|c| &c.allocations), before, "{mode:?} {device:?}");
            assert_eq!(counts.of(|c| &c.synchronizations), 0, "only reads wait");
            if mode.records() {
                assert_eq!(counts.of(|c| &c.recordings), 1);
                assert_eq!(counts.of(|c| &c.launches), 2, "the first call alone is not the graph's");
                assert_eq!(counts.of(|c| &c.graph_launches), 22);
                assert_eq!(counts.of(|c| &c.updates), 0, "addresses stay");
            }
        }
    }
}

#[test]
fn outputs_can_be_kept() {
    let (code, counts) = compiled(TWICE, Mock::new(HERE), Mode::ReduceOverhead);
    let inputs: Vec<Numbers> = (0..6).map(|n| Numbers::new(100.0 * n as f32, 300)).collect();
    let mut kept: Vec<OwnedTensor> = inputs.iter().map(|x| call(&code, x.slice()).unwrap()).collect();
    for (y, x) in kept.iter_mut().zip(&inputs) {
        expect(y, x.slice(), 2.0);
    }
    assert_eq!(counts.of(|c| &c.recordings), 1);
    assert!(counts.of(|c| &c.updates) > 0, "inputs and outputs lie elsewhere at each call");
}

#[test]
fn inputs_that_move_from_device_to_host_and_back_are_read_where_they_are() {
    let (code, _) = compiled(TWICE, Mock::new(ELSEWHERE), Mode::ReduceOverhead);
    for n in 0..4 {
        let x = Numbers::new(n as f32, 64);
        expect(&mut call(&code, x.slice()).unwrap(), x.slice(), 2.0);
    }
    let (code, counts) = compiled(TWICE, Mock::new(HERE), Mode::ReduceOverhead);
    let x = Numbers::new(7.0, 65);
    for _ in 0..3 {
        expect(&mut call(&code, x.slice()).unwrap(), x.slice(), 2.0);
        // An unaligned view, which kernels cannot read directly.
        expect(&mut call(&code, &x.slice()[1..]).unwrap(), &x.slice()[1..], 2.0);
    }
    assert!(counts.of(|c| &c.copies) >= 3, "what is not aligned is copied");
}

/// Tensor maps are encoded again where their buffers move, in recorded launches too.
#[test]
fn tensor_maps_follow_their_tensors() {
    let (code, counts) = compiled(PRODUCT, Mock::new(HERE), Mode::ReduceOverhead);
    let b = Numbers::new(0.0, 512 * 256);
    // All of them stay alive, so that no two have the same address.
    let all: Vec<Numbers> = (0..4).map(|n| Numbers::new(100.0 * n as f32, 512 * 256)).collect();
    for a in &all {
        let view = |x: &Numbers| {
            // SAFETY: the memory has the bytes of a matrix of 16-bit floats.
            let halves = unsafe {
                std::slice::from_raw_parts(x.slice().as_ptr().cast::<plugin_sdk::bf16>(), 512 * 512)
            };
            TensorView::from_slice(halves, DType::BF16, &[512, 512], &[512, 1]).unwrap()
        };
        let mut y = code.execute(&[view(a), view(&b)]).unwrap().remove(0);
        // SAFETY: the mock's memory is host memory, and the tensor has this many bytes.
        let got = unsafe { std::slice::from_raw_parts(y.as_mut_ptr().cast::<f32>(), 1000) };
        let expected: Vec<f32> = a.slice()[..1000].iter().map(|x| x + 1.0).collect();
        assert_eq!(got, expected);
    }
    assert_eq!(counts.of(|c| &c.recordings), 1);
    assert!(counts.of(|c| &c.mapped) >= 4, "{} launches with tensor maps", counts.of(|c| &c.mapped));
}

#[test]
fn every_set_of_sizes_has_its_recording_and_there_are_not_too_many() {
    let (code, counts) = compiled(TWICE, Mock::new(HERE), Mode::ReduceOverhead);
    let inputs: Vec<Numbers> = (1..20).map(|n| Numbers::new(0.5, 100 * n)).collect();
    for _ in 0..3 {
        for x in inputs.iter().rev() {
            expect(&mut call(&code, x.slice()).unwrap(), x.slice(), 2.0);
        }
    }
    let recorded = counts.of(|c| &c.recordings);
    assert!(recorded >= inputs.len(), "{recorded}");
    // Used in turn, the last ones are still cached.
    for _ in 0..5 {
        for x in &inputs[..4] {
            expect(&mut call(&code, x.slice()).unwrap(), x.slice(), 2.0);
        }
    }
    assert_eq!(counts.of(|c| &c.recordings), recorded);
}

#[test]
fn an_arena_that_grows_does_not_leave_recordings_behind() {
    let (code, counts) = compiled(TWICE, Mock::new(HERE), Mode::ReduceOverhead);
    let (small, large) = (Numbers::new(1.0, 10), Numbers::new(2.0, 90_000));
    for x in [&small, &small, &small, &large, &small, &small, &large, &large, &small] {
        expect(&mut call(&code, x.slice()).unwrap(), x.slice(), 2.0);
    }
    assert_eq!(counts.of(|c| &c.recordings), 3, "the small one again after the arena moved");
}

#[test]
fn written_inputs_change_in_place() {
    for mode in [Mode::Default, Mode::ReduceOverhead] {
        for device in [HERE, ELSEWHERE] {
            let (code, _) = compiled(IN_PLACE, Mock::new(device), mode);
            let states = [Numbers::new(0.0, 1000), Numbers::new(500.0, 1000)];
            for iteration in 0..4 {
                for (n, x) in states.iter().enumerate() {
                    let before = x.slice().to_vec();
                    expect(&mut call(&code, x.slice()).unwrap(), &before, 2.0);
                    let first = 500.0 * n as f32 + 1.0 + iteration as f32;
                    let (x, last) = (x.slice(), first + 999.0);
                    assert_eq!((x[0], x[999]), (first, last), "{mode:?} {device:?}");
                }
            }
        }
    }
}

#[test]
fn unused_memory_is_freed_when_memory_runs_out() {
    let mut driver = Mock::new(HERE);
    driver.limit = Some(200_000);
    let (code, counts) = compiled(TWICE, driver, Mode::ReduceOverhead);
    // Each call needs 80 kB of arena and 80 kB of output; two sets do not fit.
    for n in [20_000, 19_000, 20_000, 10_000, 20_000] {
        let x = Numbers::new(0.0, n);
        expect(&mut call(&code, x.slice()).unwrap(), x.slice(), 2.0);
    }
    let x = Numbers::new(0.0, 40_000);
    let error = call(&code, x.slice()).unwrap_err();
    assert!(matches!(error, GpuError::OutOfMemory { .. }), "{error}");
    let x = Numbers::new(0.0, 20_000);
    expect(&mut call(&code, x.slice()).unwrap(), x.slice(), 2.0);
    assert!(counts.of(|c| &c.allocations) > 0);
}

#[test]
fn the_time_of_every_step_is_measured() {
    let settings = Settings { profile: 2, ..Settings::default() };
    let memory = DeviceMemory::new(Arc::new(Mock::new(HERE)));
    let code = Compiled::with(&memory, TWICE.parse().unwrap(), settings).unwrap();
    let x = Numbers::new(0.0, 1024);
    for _ in 0..4 {
        expect(&mut call(&code, x.slice()).unwrap(), x.slice(), 2.0);
    }
    let times = code.profile();
    assert_eq!(times.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["one", "two"]);
    assert!(times.iter().all(|t| t.bytes == 2 * 4 * 1024 && t.seconds > 0.0), "{times:?}");
}

#[test]
fn every_kernel_has_its_text() {
    let (code, _) = compiled(TWICE, Mock::new(HERE), Mode::Default);
    let shown = code.listings();
    assert_eq!(shown.iter().map(|l| l.step.as_str()).collect::<Vec<_>>(), ["one", "two"]);
    // Equal steps share a kernel.
    assert_eq!(shown[0].text, shown[1].text);
    assert!(shown[0].language.ends_with(" C++") && shown[0].text.contains("abs"), "{}", shown[0].text);
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    let (code, _) = compiled(TWICE, Mock::new(HERE), Mode::Default);
    let x = [0f64; 4];
    let view = TensorView::from_slice(&x, DType::F64, &[4], &[1]).unwrap();
    assert!(matches!(code.execute(&[view]), Err(GpuError::Argument(_))));
    assert!(matches!(code.execute(&[]), Err(GpuError::Argument(_))));
}
