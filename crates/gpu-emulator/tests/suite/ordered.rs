//! Additions to memory in a fixed order: the sums of `index_add` equal those of a loop over the rows bit by bit.
#![allow(clippy::unwrap_used)] // a failing test may panic

use std::sync::Arc;

use crate::common::Case;
use gpu_codegen::Target;
use gpu_emulator::Emulator;
use gpu_runtime::Compiled;
use ir_core::DType;
use plugin_sdk::TensorView;

const ROWS: usize = 9000;
const WIDTH: usize = 3;
const PLACES: usize = 50;

#[test]
fn sums_have_the_order_of_the_points() {
    if let Err(why) = gpu_emulator::available() {
        eprintln!("skipped: {why}");
        return;
    }
    let mut c = Case::new("ordered");
    let base = c.any(DType::F32, &[PLACES as i64, WIDTH as i64]);
    let at = c.any(DType::I64, &[ROWS as i64]);
    let more = c.any(DType::F32, &[ROWS as i64, WIDTH as i64]);
    c.shows("aten.index_add.default", vec![base.into(), 0i64.into(), at.into(), more.into()]);
    let program = inductor::compile(&c.graph, &inductor::Options::default()).unwrap();
    let device = Arc::new(Emulator::new(Target { deterministic: true, ..Target::HOPPER }));
    let mut code = Compiled::new(device, program).unwrap();
    code.bind(&[]).unwrap();

    // Sums of numbers of very different magnitudes depend on their order.
    let number = |i: usize| ((i * 7919 % 1009) as f32 - 500.0) * 10f32.powi((i * 31 % 13) as i32 - 6);
    let base: Vec<f32> = (0..PLACES * WIDTH).map(number).collect();
    let more: Vec<f32> = (0..ROWS * WIDTH).map(|i| number(i + 77)).collect();
    let at: Vec<i64> = (0..ROWS).map(|i| (i * i % PLACES) as i64).collect();
    let mut expected = base.clone();
    for (row, place) in at.iter().enumerate() {
        for w in 0..WIDTH {
            expected[*place as usize * WIDTH + w] += more[row * WIDTH + w];
        }
    }
    const P: i64 = PLACES as i64;
    const R: i64 = ROWS as i64;
    const W: i64 = WIDTH as i64;
    let inputs = [
        TensorView::from_slice(&base, DType::F32, &[P, W], &[W, 1]).unwrap(),
        TensorView::from_slice(&at, DType::I64, &[R], &[1]).unwrap(),
        TensorView::from_slice(&more, DType::F32, &[R, W], &[W, 1]).unwrap(),
    ];
    let mut result = code.execute(&inputs).unwrap();
    // SAFETY: the tensor is contiguous with this many floats, and memory of the emulated device is host memory.
    let got = unsafe { std::slice::from_raw_parts(result[0].as_mut_ptr().cast::<f32>(), PLACES * WIDTH) };
    assert_eq!(got, expected);
}
