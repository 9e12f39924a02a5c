//! Quantized networks: PyTorch's and torchao's operators against values that PyTorch 2.11 and torchao 0.18 gave, and products of
//! integers against dequantized ones.

use std::collections::BTreeMap;

use ferroflux::{Options, Program, Tensor};

const BACKENDS: [&str; 3] = ["eager", "oracle", "cpu"];

const X: [f32; 12] = [-1.3, -0.75, -0.25, 0.0, 0.25, 0.5, 0.750_000_1, 2.9, 40.0, -50.0, 0.125, 1.0];

fn x() -> Tensor {
    Tensor::from_vec(X.to_vec(), &[2, 6]).unwrap()
}

/// A program with these lines and parameters, compiled for a backend and called.
fn call(backend: &str, lines: &str, weights: &BTreeMap<String, Tensor>, inputs: &[Tensor]) -> Vec<Tensor> {
    let graph = format!("fx 1.0\ngraph \"g\" {{\n{lines}\n}}\n").parse().unwrap();
    let program = Program::from_graph(graph, weights).unwrap();
    program.compile(&Options::new().backend(backend)).unwrap().call(inputs).unwrap()
}

/// The results of one call of an operator on `x`, on every backend.
#[track_caller]
fn gives(lines: &str, weights: &[(&str, Tensor)], expected: &[&[f64]]) {
    let weights = weights.iter().map(|(name, t)| ((*name).to_owned(), t.clone())).collect();
    let lines = format!("%x: f32[2, 6] = input \"x\"\n{lines}");
    for backend in BACKENDS {
        let results = call(backend, &lines, &weights, &[x()]);
        for (got, wanted) in results.iter().zip(expected) {
            let got: Vec<f64> = got.iter_f64().collect();
            assert_eq!(got.len(), wanted.len(), "{backend}");
            for (g, w) in got.iter().zip(*wanted) {
                assert!((g - w).abs() <= 2e-7 + 4e-7 * w.abs(), "{backend}: {got:?} {wanted:?}");
            }
        }
    }
}

fn floats(values: &[f32]) -> Tensor {
    Tensor::from_vec(values.to_vec(), &[values.len()]).unwrap()
}

fn ints(values: &[i64]) -> Tensor {
    Tensor::from_vec(values.to_vec(), &[values.len()]).unwrap()
}

#[test]
fn numbers_for_a_tensor() {
    gives(
        "%q: u8[2, 6] = quantized_decomposed.quantize_per_tensor.default(%x, 0.25, 3, 0, 255, u8)
%d: f32[2, 6] = quantized_decomposed.dequantize_per_tensor.default(%q, 0.3, 7, 0, 255, u8)
return %q
return %d",
        &[],
        &[
            &[0., 0., 2., 3., 4., 5., 6., 15., 163., 0., 3., 7.],
            &[
                -2.1000001, -2.1000001, -1.5, -1.2, -0.9, -0.6, -0.3, 2.4000001, 46.8000031, -2.1000001,
                -1.2, 0.0,
            ],
        ],
    );
    gives(
        "%s: f64[1] = buffer \"s\"
%z: i64[1] = buffer \"z\"
%q: i8[2, 6] = quantized_decomposed.quantize_per_tensor.tensor(%x, %s, %z, -128, 127, i8)
return %q",
        &[("s", Tensor::from_vec(vec![0.3f64], &[1]).unwrap()), ("z", ints(&[-5]))],
        &[&[-9., -7., -6., -5., -4., -3., -2., 5., 127., -128., -5., -2.]],
    );
}

#[test]
fn numbers_for_each_channel() {
    let parameters = "%s: f32[2] = buffer \"s\"
%z: i64[2] = buffer \"z\"
%q: i8[2, 6] = quantized_decomposed.quantize_per_channel.default(%x, %s, %z, 0, -128, 127, i8)";
    let weights = [("s", floats(&[0.1, 0.37])), ("z", ints(&[0, 5]))];
    gives(
        &format!(
            "{parameters}
%d: f32[2, 6] = quantized_decomposed.dequantize_per_channel.default(%q, %s, %z, 0, -128, 127, i8)
%n: f32[2, 6] = quantized_decomposed.dequantize_per_channel.default(%q, %s, none, 0, -128, 127, i8)
return %q
return %d
return %n"
        ),
        &weights,
        &[
            &[-13., -8., -2., 0., 2., 5., 7., 13., 113., -128., 5., 8.],
            &[-1.3000001, -0.8, -0.2, 0.0, 0.2, 0.5, 0.74, 2.96, 39.9599991, -49.2099991, 0.0, 1.11],
            &[
                -1.3000001,
                -0.8,
                -0.2,
                0.0,
                0.2,
                0.5,
                2.5900002,
                4.8099999,
                41.8100014,
                -47.3600006,
                1.85,
                2.96,
            ],
        ],
    );
}

#[test]
fn numbers_from_the_data() {
    gives(
        "%s: f64[1], %z: i64[1] = quantized_decomposed.choose_qparams.tensor(%x, 0, 255, 0.000244140625, u8)
%t: f64[1], %y: i64[1] = quantized_decomposed.choose_qparams_symmetric.tensor(%x, -127, 127, 0.000244140625, i8)
return %s
return %z
return %t
return %y",
        &[],
        &[&[0.352_941_2], &[142.], &[0.393_700_8], &[0.]],
    );
    gives(
        "%s: f64[2, 1], %z: i64[2, 1] = quantized_decomposed.choose_qparams_per_token.default(%x, i8)
%t: f64[2, 1], %y: i64[2, 1] = quantized_decomposed.choose_qparams_per_token_asymmetric.default(%x, i8)
%q: i8[2, 6] = quantized_decomposed.quantize_per_token.default(%x, %t, %y, -128, 127, i8)
%d: f32[2, 6] = quantized_decomposed.dequantize_per_token.default(%q, %t, %y, -128, 127, i8, f32)
return %s
return %z
return %t
return %y
return %q
return %d",
        &[],
        &[
            &[0.010_236_22, 0.393_700_8],
            &[0., 0.],
            &[0.007_058_824, 0.352_941_2],
            &[56., 14.],
            &[-128., -50., 21., 56., 91., 127., 16., 22., 127., -128., 14., 17.],
            &[
                -1.2988235,
                -0.7482353,
                -0.2470588,
                0.0,
                0.2470588,
                0.5011765,
                0.7058824,
                2.8235295,
                39.8823547,
                -50.1176491,
                0.0,
                1.0588236,
            ],
        ],
    );
}

#[test]
fn numbers_for_groups_and_blocks() {
    gives(
        "%s: f32[4] = buffer \"s\"
%z: i64[4] = buffer \"z\"
%q: i8[2, 6] = quantized_decomposed.quantize_per_channel_group.default(%x, %s, %z, -8, 7, i8, 3)
%d: f32[2, 6] = quantized_decomposed.dequantize_per_channel_group.default(%q, %s, %z, -8, 7, i8, 3, f32)
return %q
return %d",
        &[("s", floats(&[0.1, 0.2, 0.3, 0.4])), ("z", ints(&[0, 1, 2, 3]))],
        &[
            &[-8., -8., -2., 1., 2., 4., 4., 7., 7., -8., 3., 6.],
            &[-0.8, -0.8, -0.2, 0.0, 0.2, 0.6, 0.6, 1.5, 1.5, -4.4000001, 0.0, 1.2],
        ],
    );
    gives(
        "%s: f32[2, 2], %z: i32[2, 2] = torchao.choose_qparams_affine.default(%x, \"ASYMMETRIC\", [1, 3], i8, none, none, none, f32, i32)
%q: i8[2, 6] = torchao.quantize_affine.default(%x, [1, 3], %s, %z, i8)
%d: f32[2, 6] = torchao.dequantize_affine.default(%q, [1, 3], %s, %z, i8)
%t: f32[2, 2], %y: i32[2, 2] = torchao.choose_qparams_affine.default(%x, \"SYMMETRIC\", [1, 3], i8, none, none, none, f32, i32)
%u: f32[2, 2], %v: i32[2, 2] = torchao.choose_qparams_affine.default(%x, \"SYMMETRIC_NO_CLIPPING_ERR\", [1, 3], i8, none, none, none, f32, i32)
return %z
return %q
return %d
return %t
return %u",
        &[],
        &[
            &[127., -128., -128., 122.],
            &[-128., -20., 78., -128., -1., 127., -123., -110., 127., -128., 123., 127.],
            &[-1.3, -0.7494117, -0.2498039, 0.0, 0.2490196, 0.5, 0.7843137, 2.8235295, 40.0, -50.0, 0.2, 1.0],
            &[0.010_196_08, 0.003_921_57, 0.313_725_5, 0.392_156_9],
            &[0.010_156_25, 0.003_937_01, 0.314_960_6, 0.390_625],
        ],
    );
}

/// 8-bit integers from -60 to 60.
fn bytes(sizes: &[usize], salt: usize) -> Tensor {
    let n = sizes.iter().product();
    let at = |i: usize| (((i * 2_654_435_761 + salt * 977) >> 7) % 121) as i64 - 60;
    Tensor::from_vec((0..n).map(at).collect::<Vec<i64>>(), sizes)
        .unwrap()
        .to_dtype(ir_core::DType::I8)
        .unwrap()
}

/// Floats from -2 to 2.
fn data(sizes: &[usize], salt: usize) -> Tensor {
    let n = sizes.iter().product();
    let at = |i: usize| (((i * 2_654_435_761 + salt * 977) >> 7) % 4001) as f32 / 1000.0 - 2.0;
    Tensor::from_vec((0..n).map(at).collect::<Vec<f32>>(), sizes).unwrap()
}

fn scales(n: usize) -> Tensor {
    Tensor::from_vec((0..n).map(|i| 0.002 + 0.0001 * (i % 7) as f32).collect(), &[n]).unwrap()
}

/// Rows of one layer: a weight of these sizes, its scales, its zero points, and the dequantized weight `%NAMEd`.
fn layer(weights: &mut BTreeMap<String, Tensor>, name: &str, sizes: &[usize]) -> (String, String) {
    let list = sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let n = sizes[0];
    weights.insert(name.to_owned(), bytes(sizes, n));
    weights.insert(format!("{name}s"), scales(n));
    weights.insert(format!("{name}z"), ints(&vec![0; n]));
    weights.insert(format!("{name}b"), data(&[n], 3));
    (
        format!(
            "%{name}: i8[{list}] = buffer \"{name}\"\n%{name}s: f32[{n}] = buffer \"{name}s\"\n%{name}z: i64[{n}] = buffer \"{name}z\"\n%{name}b: f32[{n}] = parameter \"{name}b\"\n"
        ),
        format!(
            "%{name}d: f32[{list}] = quantized_decomposed.dequantize_per_channel.default(%{name}, %{name}s, %{name}z, 0, -128, 127, i8)\n"
        ),
    )
}

/// `%NAME` quantized to `%NAMEq` and back to `%NAMEf`.
fn quantized(name: &str, sizes: &str, scale: f64, zero: i64) -> String {
    format!(
        "%{name}q: u8[{sizes}] = quantized_decomposed.quantize_per_tensor.default(%{name}, {scale}, {zero}, 0, 255, u8)
%{name}f: f32[{sizes}] = quantized_decomposed.dequantize_per_tensor.default(%{name}q, {scale}, {zero}, 0, 255, u8)\n"
    )
}

/// A network with all kinds of convolution, a residual and a linear layer; its weights, and its lines.
fn network() -> (String, BTreeMap<String, Tensor>) {
    let mut weights = BTreeMap::new();
    let (mut head, mut body) = ("%x: f32[2, 3, 13, 15] = input \"x\"\n".to_owned(), String::new());
    let layers: [(&str, &[usize]); 5] = [
        ("a", &[24, 3, 3, 3]),
        ("b", &[24, 1, 3, 3]),
        ("c", &[40, 24, 1, 1]),
        ("d", &[40, 20, 3, 3]),
        ("e", &[10, 40]),
    ];
    for (name, sizes) in layers {
        let (placeholders, lines) = layer(&mut weights, name, sizes);
        head += &placeholders;
        body += &lines;
    }
    body += &quantized("x", "2, 3, 13, 15", 0.016, 121);
    body += "%ca: f32[2, 24, 7, 8] = aten.conv2d.default(%xf, %ad, %ab, [2, 2], [1, 1])
%ra: f32[2, 24, 7, 8] = aten.relu.default(%ca)\n";
    body += &quantized("ra", "2, 24, 7, 8", 0.012, 0);
    body += "%cb: f32[2, 24, 7, 8] = aten.conv2d.default(%raf, %bd, %bb, [1, 1], [1, 1], [1, 1], 24)
%rb: f32[2, 24, 7, 8] = aten.hardtanh.default(%cb, 0.0, 6.0)\n";
    body += &quantized("rb", "2, 24, 7, 8", 0.02, 9);
    body += "%cc: f32[2, 40, 7, 8] = aten.conv2d.default(%rbf, %cd, %cbias)\n";
    body += &quantized("cc", "2, 40, 7, 8", 0.03, 128);
    body += "%cdd: f32[2, 40, 7, 8] = aten.conv2d.default(%ccf, %dd, %db, [1, 1], [1, 1], [1, 1], 2)
%sum: f32[2, 40, 7, 8] = aten.add.Tensor(%cdd, %ccf)
%rd: f32[2, 40, 7, 8] = aten.relu.default(%sum)
%m: f32[2, 40] = aten.mean.dim(%rd, [2, 3])\n";
    body += &quantized("m", "2, 40", 0.02, 0);
    body += "%y: f32[2, 10] = aten.linear.default(%mf, %ed, %eb)\nreturn %raq\nreturn %rbq\nreturn %ccq\nreturn %mq\nreturn %y";
    // The name `%cb` is a value's.
    let head = head.replace("%cb: f32[40]", "%cbias: f32[40]");
    (format!("{head}\n{body}"), weights)
}

/// How many steps of the fused program multiply integers.
fn integer_products(lines: &str, weights: &BTreeMap<String, Tensor>) -> usize {
    let graph = format!("fx 1.0\ngraph \"g\" {{\n{lines}\n}}\n").parse().unwrap();
    let program = Program::from_graph(graph, weights).unwrap().kernels().unwrap();
    program.one_by_one().steps.iter().filter(|s| kernel_ir::is_integer_product(&program, s)).count()
}

#[test]
fn a_network_of_integers_has_the_values_of_a_dequantized_one() {
    let (lines, weights) = network();
    assert_eq!(integer_products(&lines, &weights), 5, "{lines}");
    let input = [data(&[2, 3, 13, 15], 1)];
    let reference = call("eager", &lines, &weights, &input);
    for backend in ["oracle", "cpu"] {
        let results = call(backend, &lines, &weights, &input);
        for (n, (got, wanted)) in results.iter().zip(&reference).enumerate() {
            // One step of a quantized value, where a sum lies half way between two; one such step moves the last output by up
            // to the scale times the largest weight.
            let most = if n == 4 { 0.02 * 60.0 * 0.0026 } else { 1.0 };
            let far =
                got.iter_f64().zip(wanted.iter_f64()).filter(|(g, w)| (g - w).abs() > most + 1e-5).count();
            assert_eq!(far, 0, "{backend}: output {n}");
            let differ = got.iter_f64().zip(wanted.iter_f64()).filter(|(g, w)| (g - w).abs() > 1e-3).count();
            assert!(differ * 500 <= got.numel(), "{backend}: {differ} of {} of output {n}", got.numel());
        }
    }
}

#[test]
fn weights_with_zero_points_are_not_multiplied_as_integers() {
    let (lines, mut weights) = network();
    weights.insert("ez".into(), ints(&[1; 10]));
    assert_eq!(integer_products(&lines, &weights), 4);
}

#[test]
fn rows_may_have_scales_of_their_own() {
    let mut weights = BTreeMap::new();
    let (head, body) = layer(&mut weights, "e", &[10, 40]);
    let lines = format!(
        "%x: f32[2, 5, 40] = input \"x\"\n{head}\n{body}
%t: f64[2, 5, 1], %z: i64[2, 5, 1] = quantized_decomposed.choose_qparams_per_token_asymmetric.default(%x, i8)
%q: i8[2, 5, 40] = quantized_decomposed.quantize_per_token.default(%x, %t, %z, -128, 127, i8)
%d: f32[2, 5, 40] = quantized_decomposed.dequantize_per_token.default(%q, %t, %z, -128, 127, i8, f32)
%y: f32[2, 5, 10] = aten.linear.default(%d, %ed, %eb)
%s: f64[1], %u: i64[1] = quantized_decomposed.choose_qparams.tensor(%x, 0, 255, 0.000244140625, u8)
%v: u8[2, 5, 40] = quantized_decomposed.quantize_per_tensor.tensor(%x, %s, %u, 0, 255, u8)
%w: f32[2, 5, 40] = quantized_decomposed.dequantize_per_tensor.tensor(%v, %s, %u, 0, 255, u8)
%o: f32[2, 5, 10] = aten.linear.default(%w, %ed, %eb)
return %y
return %o"
    );
    assert_eq!(integer_products(&lines, &weights), 2);
    let input = [data(&[2, 5, 40], 2)];
    let reference = call("eager", &lines, &weights, &input);
    for backend in ["oracle", "cpu"] {
        for (got, wanted) in call(backend, &lines, &weights, &input).iter().zip(&reference) {
            let far = got.iter_f64().zip(wanted.iter_f64()).map(|(g, w)| (g - w).abs()).fold(0.0, f64::max);
            assert!(far < 1e-4, "{backend}: {far}");
        }
    }
}
