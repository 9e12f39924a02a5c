//! The search of `max-autotune`: results are those of the rule's choices but for roundings, and what was found is kept in the folder.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs)]
use crate::common::*;
use backend_cpu::CpuBackend;
use backend_cpu::exec::{Compiled, ExecOptions};
use ir_core::{DType, Scalar, SymExpr};
use kernel_ir::{
    BodyBuilder, BufId, Const, Conv, Epilogue, InstKind, Matmul, Operand, Program, ScalarOp, Stage, Step,
    Storage, StoreMode,
};
use plugin_sdk::{Backend, Host, TensorView};

/// Channels of the convolution but where weights must be large; those, rows and columns of the product.
const CHANNELS: i64 = 32;
const MANY: i64 = 512;
const DEPTH: i64 = 32;
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

/// A convolution by 3×3 with weights that an init step computes, and a product of an input's rows with a constant.
fn program(channels: i64, pixels: i64) -> Program {
    let mut b = Build::default();
    let image = [1, channels, pixels, pixels];
    let (x, a) = (b.input(DType::F32, shape(&image)), b.input(DType::F32, shape(&[ROWS, DEPTH])));
    let sizes = [channels, channels, 3, 3];
    let given = constant(&mut b, "window", &sizes);
    let matrix = constant(&mut b, "matrix", &[DEPTH, COLUMNS]);
    let strides = ir_core::contiguous_strides(&shape(&sizes));
    let window = b.buffer(DType::F32, shape(&sizes), strides, Storage::Persistent);
    let mut body = BodyBuilder::new();
    let at = || (0..4).map(i).collect();
    let v = body.load(given, DType::F32, at());
    let half = body.constant(0.5, DType::F32);
    let v = body.op(ScalarOp::Mul, &[v, half]);
    body.store(window, at(), v, StoreMode::Write);
    b.kernel(shape(&sizes), vec![], vec![Stage { inner: shape(&[]), insts: body.finish() }]);
    let init = b.program.steps.pop();
    b.program.init.extend(init);
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
        groups: None,
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
fn weights(channels: i64) -> [Vec<f32>; 2] {
    [floats(&[channels, channels, 3, 3], 5), floats(&[DEPTH, COLUMNS], 6)]
}

/// The program with its weights bound, whose ways of steps are chosen by rule or by time; a folder keeps what is found.
fn bound([channels, pixels]: [i64; 2], searches: bool, folder: Option<&str>) -> Compiled {
    let [window, matrix] = weights(channels);
    let program = program(channels, pixels);
    let bytes = program.to_bytes();
    let mut compiled = Compiled::new(program, ExecOptions { threads: 2, searches }).unwrap();
    if let Some(folder) = folder {
        compiled.keep_weights_in(folder, &bytes);
    }
    let (square, flat) = ([channels, channels, 3, 3], [DEPTH, COLUMNS]);
    let steps = [channels * 9, 9, 3, 1];
    let window = TensorView::from_slice(&window, DType::F32, &square, &steps).unwrap();
    let matrix = TensorView::from_slice(&matrix, DType::F32, &flat, &[COLUMNS, 1]).unwrap();
    // SAFETY: both weights are packed, so that nothing reads them afterwards.
    unsafe { compiled.bind(&[("window", window), ("matrix", matrix)]) }.unwrap();
    compiled
}

fn results([channels, pixels]: [i64; 2], compiled: &Compiled) -> Vec<Data> {
    let input = |sizes: &[i64], seed| {
        let values = floats(sizes, seed).into_iter().map(|v| Scalar::Float(v.into())).collect();
        Data::new(DType::F32, sizes, values)
    };
    let inputs = [input(&[1, channels, pixels, pixels], 7), input(&[ROWS, DEPTH], 8)];
    execute(compiled, &inputs).unwrap()
}

#[test]
fn ways_that_time_chooses_compute_the_same() {
    // Sizes at which the rule transforms tiles, and at which it does not.
    for pixels in [28, 5] {
        let sizes = [CHANNELS, pixels];
        let [by_rule, by_time] = [false, true].map(|searches| results(sizes, &bound(sizes, searches, None)));
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
    bound([CHANNELS, 9], false, path);
    assert!(kept().is_empty(), "nothing is timed: {:?}", kept());
    bound([CHANNELS, 9], true, path);
    let [file] = &kept()[..] else { panic!("one file: {:?}", kept()) };
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains("convolution f32 [1, 32] [1, 9, 9] -> 32, window [1, 3, 3]"), "{text}");
    assert!(text.contains("product f32 [40, 32] x [32, 48]"), "{text}");
    // Other sizes are other classes; what cannot be read is written again.
    std::fs::write(file, [0xff, b'\n', b'=']).unwrap();
    bound([CHANNELS, 11], true, path);
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains("[1, 9, 9]") && text.contains("[1, 11, 11]"), "{text}");
}

/// Weights of more than 8 MiB are mapped by whoever binds them later, without what they were made of.
#[test]
fn weights_that_are_mapped_keep_their_form() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str();
    let sizes = [MANY, 5];
    let first = results(sizes, &bound(sizes, true, path));
    let files = || std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files(), 2, "weights and choices");
    for _ in 0..2 {
        let again = results(sizes, &bound(sizes, true, path));
        for (first, again) in first.iter().zip(&again) {
            let same = first.values.iter().zip(&again.values).all(|(x, y)| x.as_f64() == y.as_f64());
            assert!(same, "the same weights in the same form");
        }
    }
}

#[test]
fn the_modes_are_those_of_torch_compile() {
    let description = CpuBackend::open(Host::NONE).unwrap().describe();
    assert_eq!(description.modes, ["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]);
}
