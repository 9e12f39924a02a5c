//! Networks whose weights alone are quantized: weights stay integers in the compiled program, in every form that PyTorch and torchao
//! write, and results are those of the dequantized network.

use std::collections::BTreeMap;

use ferroflux::ir_core::DType;
use ferroflux::kernel_ir::Step;
use ferroflux::{Options, Program, Tensor};

/// Whole numbers in a range, by a formula.
fn integers(sizes: &[usize], (low, count): (i64, i64), dtype: DType) -> Tensor {
    let n: usize = sizes.iter().product();
    let at = |i: usize| low + ((i.wrapping_mul(2_654_435_761) >> 9) as i64) % count;
    Tensor::from_vec((0..n).map(at).collect::<Vec<i64>>(), sizes).unwrap().to_dtype(dtype).unwrap()
}

fn floats(sizes: &[usize], scale: f32, dtype: DType) -> Tensor {
    let n: usize = sizes.iter().product();
    let at = |i: usize| ((i.wrapping_mul(2_654_435_761) >> 7) % 4001) as f32 / 2000.0 * scale;
    let positive: Vec<f32> = (0..n).map(|i| at(i) + 0.1 * scale).collect();
    Tensor::from_vec(positive, sizes).unwrap().to_dtype(dtype).unwrap()
}

/// Compiles lines, and compares the backends with the interpreter's operators in double precision of the same weights.
#[track_caller]
fn keeps(lines: &str, weights: &[(&str, Tensor)], x: &Tensor, tolerance: f64) {
    let weights: BTreeMap<String, Tensor> =
        weights.iter().map(|(n, t)| ((*n).to_owned(), t.clone())).collect();
    let graph = format!("fx 1.0\ngraph \"g\" {{\n{lines}\n}}\n").parse().unwrap();
    let program = Program::from_graph(graph, &weights).unwrap();
    let kernels = program.kernels().unwrap();
    let kept = kernels.steps.iter().filter(|s| matches!(s, Step::Matmul(m) if m.dequant.is_some())).count();
    assert_eq!(kept, 1, "{kernels}");
    let run = |backend: &str| -> Vec<f64> {
        let compiled = program.compile(&Options::new().backend(backend)).unwrap();
        compiled.call(std::slice::from_ref(x)).unwrap()[0].iter_f64().collect()
    };
    let wanted = run("eager");
    let largest = wanted.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    for backend in ["oracle", "cpu"] {
        for (g, w) in run(backend).iter().zip(&wanted) {
            assert!((g - w).abs() <= tolerance * largest, "{backend}: {g} {w}");
        }
    }
}

#[test]
fn rows_of_int8_with_a_factor_for_each_channel() {
    for (dtype, tolerance) in [("f32", 1e-5), ("bf16", 1.5e-2)] {
        let d: DType = dtype.parse().unwrap();
        let lines = format!(
            "%w: i8[48, 64] = buffer \"w\"
%s: {dtype}[48] = buffer \"s\"
%x: {dtype}[1, 3, 64] = input \"x\"

%v: {dtype}[3, 64] = aten.view.default(%x, [3, 64])
%m: {dtype}[3, 48] = aten._weight_int8pack_mm.default(%v, %w, %s)
%y: {dtype}[3, 48] = aten.gelu.default(%m)
return %y"
        );
        let weights = [("w", integers(&[48, 64], (-127, 255), DType::I8)), ("s", floats(&[48], 0.01, d))];
        keeps(&lines, &weights, &floats(&[1, 3, 64], 1.0, d), tolerance);
    }
}

#[test]
fn groups_as_pytorch_and_torchao_write_them() {
    let group = "%w: i8[40, 96] = buffer \"w\"
%s: f32[40, 3] = buffer \"s\"
%z: i64[40, 3] = buffer \"z\"
%b: f32[40] = parameter \"b\"
%x: f32[2, 5, 96] = input \"x\"
";
    let weights = [
        ("w", integers(&[40, 96], (-8, 16), DType::I8)),
        ("s", floats(&[40, 3], 0.02, DType::F32)),
        ("z", integers(&[40, 3], (-3, 7), DType::I64)),
        ("b", floats(&[40], 1.0, DType::F32)),
    ];
    let x = floats(&[2, 5, 96], 1.0, DType::F32);
    let decomposed = "%d: f32[40, 96] = quantized_decomposed.dequantize_per_channel_group.default(%w, %s, %z, -8, 7, i8, 32, f32)
%y: f32[2, 5, 40] = aten.linear.default(%x, %d, %b)
return %y";
    keeps(&format!("{group}\n{decomposed}"), &weights, &x, 1e-5);
    let affine = "%d: f32[40, 96] = torchao.dequantize_affine.default(%w, [1, 32], %s, %z, i8, -8, 7)
%y: f32[2, 5, 40] = aten.linear.default(%x, %d, %b)
return %y";
    keeps(&format!("{group}\n{affine}"), &weights, &x, 1e-5);
    // bf16, as most language models are.
    let half = |t: &Tensor| t.to_dtype(DType::BF16).unwrap();
    let lines = group.replace("b: f32", "b: bf16").replace("x: f32", "x: bf16").replace("s: f32", "s: bf16");
    let affine = "%d: bf16[40, 96] = torchao.dequantize_affine.default(%w, [1, 32], %s, %z, i8, -8, 7, bf16)
%y: bf16[2, 5, 40] = aten.linear.default(%x, %d, %b)
return %y";
    let [w, s, z, b] = weights.clone();
    let weights = [w, ("s", half(&s.1)), z, ("b", half(&b.1))];
    keeps(&format!("{lines}\n{affine}"), &weights, &half(&x), 1.5e-2);
}

#[test]
fn channels_with_zero_points_and_stored_columns() {
    let lines = "%w: u8[64, 24] = buffer \"w\"
%s: f32[24] = buffer \"s\"
%z: i64[24] = buffer \"z\"
%x: f32[20, 64] = input \"x\"

%d: f32[64, 24] = quantized_decomposed.dequantize_per_channel.default(%w, %s, %z, 1, 0, 255, u8)
%y: f32[20, 24] = aten.mm.default(%x, %d)
return %y";
    let weights = [
        ("w", integers(&[64, 24], (0, 256), DType::U8)),
        ("s", floats(&[24], 0.01, DType::F32)),
        ("z", integers(&[24], (100, 60), DType::I64)),
    ];
    keeps(lines, &weights, &floats(&[20, 64], 1.0, DType::F32), 1e-5);
}
