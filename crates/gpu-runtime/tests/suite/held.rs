//! Results of a library in device graphs: callers that hold them, and that pass tensors of several places in turn. The memory of a
//! result is never written while somebody holds it, and nothing is copied where that needs no copy.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::common::{COUNT, Counts, HERE, Mock};
use gpu_runtime::{Compiled, DeviceMemory, Mode, Settings};
use plugin_sdk::{DType, OwnedTensor, TensorView};

/// `y` is a library's result on `x`, `z` a kernel's on `y`. The library and the kernel add 1.
const LAYER: &str = r#"kir 1.3
program "layer"
buffer b0 "x" f32[40, 25]{25, 1}+0 input 0
buffer b1 "w" f32[25, 25]{25, 1}+0 input 1
buffer b2 "y" f32[40, 25]{25, 1}+0 output
buffer b3 "z" f32[40, 25]{25, 1}+0 output
input "x" b0
input "w" b1
output "y" b2[40, 25]{25, 1}+0
output "z" b3[40, 25]{25, 1}+0
init:
steps:
matmul "m" acc f32
  a b0[40, 25]{25, 1}+0
  b b1[25, 25]{25, 1}+0
  epilogue [40, 25]
    v0: f32 = template
    v1: f32 = store b2[i0, i1], v0
loop "z" outer [40, 25]
  stage []
    v0: f32 = load b2[i0, i1]
    v1: f32 = abs v0
    v2: f32 = store b3[i0, i1], v1
plan bytes 0:
"#;

/// Floats at an address that kernels take.
struct Matrix(Vec<u128>);

impl Matrix {
    fn new(first: f32) -> Matrix {
        let of = |n: usize| u128::from((first + n as f32).to_bits());
        let word = |n: usize| (0..4).fold(0, |w, lane| w | of(4 * n + lane) << (32 * lane));
        Matrix((0..COUNT as usize / 4).map(word).collect())
    }
    fn floats(&self) -> &[f32] {
        // SAFETY: the memory is aligned and has this many initialized floats.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), COUNT as usize) }
    }
    fn view(&self) -> TensorView<'_> {
        TensorView::from_slice(self.floats(), DType::F32, &[40, 25], &[25, 1]).unwrap()
    }
}

struct Layer {
    code: Compiled<Mock>,
    counts: Arc<Counts>,
    weight: Matrix,
}

/// What a call returned, and what it was called with.
struct Returned {
    first: f32,
    y: OwnedTensor,
    z: OwnedTensor,
}

impl Returned {
    fn check(&mut self) {
        let first = self.first;
        for (tensor, more) in [(&mut self.y, 1.0), (&mut self.z, 2.0)] {
            // SAFETY: the mock's memory is host memory, and the tensor has this many elements.
            let got =
                unsafe { std::slice::from_raw_parts(tensor.as_mut_ptr().cast::<f32>(), COUNT as usize) };
            assert!(
                got.iter().enumerate().all(|(n, v)| *v == first + n as f32 + more),
                "{first} {:?}",
                &got[..3]
            );
        }
    }
}

impl Layer {
    fn new() -> Layer {
        let mut driver = Mock::new(HERE);
        driver.multiplies = true;
        let counts = Arc::clone(&driver.counts);
        let settings = Settings { mode: Mode::ReduceOverhead, ..Settings::default() };
        let code =
            Compiled::with(&DeviceMemory::new(Arc::new(driver)), LAYER.parse().unwrap(), settings).unwrap();
        Layer { code, counts, weight: Matrix::new(0.0) }
    }

    fn call(&self, x: &Matrix) -> Returned {
        let w =
            TensorView::from_slice(&self.weight.floats()[..625], DType::F32, &[25, 25], &[25, 1]).unwrap();
        let mut all = self.code.execute(&[x.view(), w]).unwrap();
        let (z, y) = (all.pop().unwrap(), all.pop().unwrap());
        let mut returned = Returned { first: x.floats()[0], y, z };
        returned.check();
        returned
    }

    fn recordings(&self) -> usize {
        self.counts.of(|c| &c.recordings)
    }
    fn copies(&self) -> usize {
        self.counts.of(|c| &c.copies)
    }
}

#[test]
fn results_that_nobody_holds_are_given_away_without_copies() {
    let layer = Layer::new();
    let x = Matrix::new(1.0);
    for _ in 0..20 {
        layer.call(&x);
    }
    assert_eq!((layer.recordings(), layer.copies()), (1, 0));
}

#[test]
fn two_recordings_serve_a_caller_that_holds_the_last_results() {
    let layer = Layer::new();
    let x = Matrix::new(1.0);
    let mut last = layer.call(&x);
    for _ in 0..40 {
        let next = layer.call(&x);
        last.check();
        last = next;
    }
    assert_eq!((layer.recordings(), layer.copies()), (2, 0));
}

#[test]
fn results_that_are_held_never_change_and_only_more_than_a_few_are_copied() {
    let layer = Layer::new();
    let inputs: Vec<Matrix> = (0..10).map(|n| Matrix::new(100.0 * n as f32)).collect();
    let x = &inputs[0];
    let mut held: Vec<Returned> = (0..12).map(|_| layer.call(x)).collect();
    // One is launched by itself, and eight recordings give theirs: two, and six that were not yet of use again.
    assert_eq!((layer.recordings(), layer.copies()), (9, 12 - 9));
    held.iter_mut().for_each(Returned::check);
    // Inputs lie elsewhere at each call, so they are copied too.
    let mut more: Vec<Returned> = inputs.iter().chain(&inputs).map(|x| layer.call(x)).collect();
    held.iter_mut().chain(&mut more).for_each(Returned::check);
    drop((held, more));
    let before = layer.copies();
    (0..5).for_each(|_| drop(layer.call(x)));
    assert_eq!(layer.copies(), before, "they are given again, and the input lies where it lay");
}

#[test]
fn one_of_the_two_results_is_enough_to_hold_a_recording() {
    let layer = Layer::new();
    let x = Matrix::new(3.0);
    let mut held: Vec<OwnedTensor> = Vec::new();
    for _ in 0..4 {
        held.push(layer.call(&x).y);
    }
    let addresses: std::collections::BTreeSet<u64> = held.iter_mut().map(|y| y.as_mut_ptr() as u64).collect();
    assert_eq!(addresses.len(), held.len());
    // Kernels' results are no reason: their launches are updated.
    let layer = Layer::new();
    let _held: Vec<OwnedTensor> = (0..6).map(|_| layer.call(&x).z).collect();
    assert_eq!((layer.recordings(), layer.copies()), (1, 0));
}

#[test]
fn inputs_of_two_places_in_turn_are_read_there() {
    let layer = Layer::new();
    let inputs = [Matrix::new(0.0), Matrix::new(500.0)];
    for n in 0..20 {
        layer.call(&inputs[n % 2]);
    }
    assert_eq!((layer.recordings(), layer.copies()), (2, 0));
}

#[test]
fn inputs_of_many_places_are_copied_after_a_few_recordings() {
    let layer = Layer::new();
    let inputs: Vec<Matrix> = (0..60).map(|n| Matrix::new(n as f32)).collect();
    inputs.iter().for_each(|x| drop(layer.call(x)));
    let recordings = layer.recordings();
    assert!((3..14).contains(&recordings), "{recordings}");
    assert!(layer.copies() > 40, "{}", layer.copies());
    // The first are kept, so that these lie elsewhere.
    let others: Vec<Matrix> = (60..200).map(|n| Matrix::new(n as f32)).collect();
    others.iter().for_each(|x| drop(layer.call(x)));
    assert_eq!(layer.recordings(), recordings);
}

/// After some rounds of calls for 20 layers in turn another recording or copy is made no more.
fn settles(round: impl Fn(&Layer, &[Matrix])) {
    let layer = Layer::new();
    let inputs: Vec<Matrix> = (0..20).map(|n| Matrix::new(10.0 * n as f32)).collect();
    (0..12).for_each(|_| round(&layer, &inputs));
    let before = (layer.recordings(), layer.copies());
    (0..8).for_each(|_| round(&layer, &inputs));
    assert_eq!((layer.recordings(), layer.copies()), before);
}

#[test]
fn layers_in_turn_are_not_copied_once_each_has_a_recording() {
    settles(|layer, inputs| {
        let mut held: Vec<Returned> = inputs.iter().map(|x| layer.call(x)).collect();
        held.iter_mut().for_each(Returned::check);
    });
    settles(|layer, inputs| inputs.iter().for_each(|x| drop(layer.call(x))));
}

#[test]
fn a_caller_that_holds_everything_is_not_recorded_for_again() {
    let layer = Layer::new();
    let x = Matrix::new(1.0);
    let held: Vec<Returned> = (0..2000).map(|_| layer.call(&x)).collect();
    assert_eq!(layer.recordings(), 9);
    drop(held);
    let before = layer.copies();
    (0..5).for_each(|_| drop(layer.call(&x)));
    assert_eq!((layer.recordings(), layer.copies()), (9, before));
}

#[test]
fn a_recording_that_no_call_runs_is_dropped_with_its_memory() {
    let layer = Layer::new();
    let x = Matrix::new(1.0);
    let first = layer.call(&x);
    let held = [layer.call(&x), layer.call(&x)];
    drop((first, held));
    let used = || layer.code.memory().usage().used;
    let before = used();
    (0..200).for_each(|_| drop(layer.call(&x)));
    // Two results of 4000 bytes, in blocks of 512.
    assert_eq!((before - used(), layer.recordings()), (2 * 4096, 2));
}

#[test]
fn threads_never_see_each_others_results() {
    let layer = Layer::new();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let layer = &layer;
            scope.spawn(move || {
                let inputs: Vec<Matrix> =
                    (0..5).map(|n| Matrix::new(1000.0 * thread as f32 + n as f32)).collect();
                let mut held = Vec::new();
                for n in 0..200 {
                    held.push(layer.call(&inputs[n % 5]));
                    held.iter_mut().for_each(Returned::check);
                    if held.len() > n % 5 {
                        held.remove(0);
                    }
                }
            });
        }
    });
}
