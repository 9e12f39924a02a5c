//! The search of `max-autotune`: results are those of the rule's choices but for roundings, and what was found is kept in the folder.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs)]
use crate::common::*;
use backend_cpu::CpuBackend;
use backend_cpu::exec::{Compiled, ExecOptions};
use ir_core::{DType, Scalar, SymExpr};
use kernel_ir::{
    BodyBuilder, BufId, Const, Conv, Epilogue, InstKind, Matmul, Operand, Program, Step, Storage, StoreMode,
};
use plugin_sdk::{Backend, Host, TensorView};

/// Channels of the convolution, rows and columns of the product.
const CHANNELS: i64 = 32;
const ROWS: i64 = 40;
const COLUMNS: i64 = 48;

fn whole(b: &Build, buf: BufId) -> Operand {
    let d = &b.program.buffers[buf];
    Operand { buf, sizes: d.sizes.clone(), strides: d.strides.clone(), offset: SymExpr::ZERO }
}

fn constant(b: &mut Build, name: &str, sizes: &[i64]) -> BufId {
    let strides = ir_core::contiguous_strides(&shape(sizes));
    let buf =
        b.buffer(DType::F32, shape(sizes), strides, Storage::Constant(b.program.constants.len() as u32));
    b.program.constants.push(Const { name: name.into(), buf, range: None });
    buf
}

/// Stores what the template computes.
fn stored(to: BufId, sizes: &[i64]) -> Epilogue {
    let mut body = BodyBuilder::new();
    let v = body.push(DType::F32, InstKind::Template);
    body.store(to, (0..sizes.len() as u32).map(i).collect(), v, StoreMode::Write);
    Epilogue { ranges: shape(sizes), insts: body.finish() }
}

/// A convolution by 3×3 with constant weights, and a product of two inputs' rows with another constant.
fn program(pixels: i64) -> Program {
    let mut b = Build::default();
    let image = [1, CHANNELS, pixels, pixels];
    let (x, a) = (b.input(DType::F32, shape(&image)), b.input(DType::F32, shape(&[ROWS, CHANNELS])));
    let window = constant(&mut b, "window", &[CHANNELS, CHANNELS, 3, 3]);
    let matrix = constant(&mut b, "matrix", &[CHANNELS, COLUMNS]);
    let (y, z) = (b.output(DType::F32, shape(&image)), b.output(DType::F32, shape(&[ROWS, COLUMNS])));
    let conv = Conv {
        name: "conv".into(),
        origins: vec![],
        input: whole(&b, x),
        weight: whole(&b, window),
        stride: vec![1; 2],
        padding: vec![(1, 1); 2],
        dilation: vec![1; 2],
        groups: 1,
        transposed: false,
        acc: DType::F32,
        zero: 0,
        epilogue: stored(y, &image),
    };
    let product = Matmul {
        name: "product".into(),
        origins: vec![],
        a: whole(&b, a),
        b: whole(&b, matrix),
        acc: DType::F32,
        zero: 0,
        dequant: None,
        epilogue: stored(z, &[ROWS, COLUMNS]),
    };
    b.program.steps.extend([Step::Conv(conv), Step::Matmul(product)]);
    b.finish()
}

fn floats(sizes: &[i64], seed: u64) -> Vec<f32> {
    let mut rng = Rng(seed);
    let count = sizes.iter().product::<i64>();
    (0..count).map(|_| rng.unit() as f32).collect()
}

/// The weights, in the order of the program's constants.
fn weights() -> [Vec<f32>; 2] {
    [floats(&[CHANNELS, CHANNELS, 3, 3], 5), floats(&[CHANNELS, COLUMNS], 6)]
}

/// The program with its weights bound, whose ways of steps are chosen by rule or by time; a folder keeps what is found.
fn bound(pixels: i64, searches: bool, folder: Option<&str>) -> Compiled {
    let [window, matrix] = weights();
    let program = program(pixels);
    let bytes = program.to_bytes();
    let mut compiled = Compiled::new(program, ExecOptions { threads: 2, searches }).unwrap();
    if let Some(folder) = folder {
        compiled.keep_weights_in(folder, &bytes);
    }
    let (square, flat) = ([CHANNELS, CHANNELS, 3, 3], [CHANNELS, COLUMNS]);
    let window = TensorView::from_slice(&window, DType::F32, &square, &[CHANNELS * 9, 9, 3, 1]).unwrap();
    let matrix = TensorView::from_slice(&matrix, DType::F32, &flat, &[COLUMNS, 1]).unwrap();
    // SAFETY: both weights are packed, so that nothing reads them afterwards.
    unsafe { compiled.bind(&[("window", window), ("matrix", matrix)]) }.unwrap();
    compiled
}

fn results(pixels: i64, searches: bool) -> Vec<Data> {
    let input = |sizes: &[i64], seed| {
        let values = floats(sizes, seed).into_iter().map(|v| Scalar::Float(v.into())).collect();
        Data::new(DType::F32, sizes, values)
    };
    let inputs = [input(&[1, CHANNELS, pixels, pixels], 7), input(&[ROWS, CHANNELS], 8)];
    execute(&bound(pixels, searches, None), &inputs).unwrap()
}

#[test]
fn ways_that_time_chooses_compute_the_same() {
    // Sizes at which the rule transforms tiles, and at which it does not.
    for pixels in [28, 5] {
        let (by_rule, by_time) = (results(pixels, false), results(pixels, true));
        for (rule, time) in by_rule.iter().zip(&by_time) {
            assert_close(time, rule, 64.0, 1e-4, &format!("{pixels} pixels"));
        }
    }
}

#[test]
fn what_is_found_is_kept_in_the_folder_and_damage_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str();
    let kept = || -> Vec<std::path::PathBuf> {
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    bound(9, false, path);
    assert!(kept().is_empty(), "nothing is timed: {:?}", kept());
    bound(9, true, path);
    let [file] = &kept()[..] else { panic!("one file: {:?}", kept()) };
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains("convolution f32 [1, 32] [1, 9, 9] -> 32, window [1, 3, 3]"), "{text}");
    assert!(text.contains("product f32 [40, 32] x [32, 48]"), "{text}");
    // Other sizes are other classes; what cannot be read is written again.
    std::fs::write(file, [0xff, b'\n', b'=']).unwrap();
    bound(11, true, path);
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains("[1, 9, 9]") && text.contains("[1, 11, 11]"), "{text}");
}

#[test]
fn the_modes_are_those_of_torch_compile() {
    let description = CpuBackend::open(Host::NONE).unwrap().describe();
    assert_eq!(description.modes, ["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]);
}
