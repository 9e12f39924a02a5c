//! The steps: every kind of call, and sizes of the networks that are measured.

use ir_core::DType;

use crate::case::{Case, EpilogueKind, Product, Window, conv, dense, last, matmul, rows};

const BF: DType = DType::BF16;
const F16: DType = DType::F16;
const F32: DType = DType::F32;
const F64: DType = DType::F64;

pub(crate) fn all() -> Vec<Case> {
    let mut out = products();
    out.extend(batches());
    out.extend(convolutions());
    out.extend(kinds_of_convolution());
    out.extend(gradients());
    out.extend(networks());
    out
}

/// Row by row; `transposed` has `b` column by column, as the weight of a linear layer.
fn plain(m: i64, n: i64, k: i64, transposed: bool) -> Product<'static> {
    let b = if transposed { vec![1, k] } else { vec![n, 1] };
    Product { batch: &[], m, n, k, a: vec![k, 1], b, out: vec![n, 1] }
}

/// A product that is made when it is run.
pub(crate) type Make = Box<dyn Fn(&str) -> Case>;

/// Products of the sizes that networks have: large ones, those of a vision transformer for one image, a batch.
pub(crate) fn large() -> Vec<(String, Make)> {
    let mut out: Vec<(String, Make)> = Vec::new();
    for (dtype, tf32, [m, n, k], transposed, epilogue_kind) in [
        (BF, false, [4096, 4096, 4096], true, EpilogueKind::Plain),
        (BF, false, [8192, 8192, 8192], true, EpilogueKind::Plain),
        (BF, false, [4096, 4096, 4096], false, EpilogueKind::ResidualBiasRelu),
        (BF, false, [2048, 4096, 1024], true, EpilogueKind::Plain),
        (BF, false, [2048, 4096, 1024], true, EpilogueKind::ErfBias),
        (BF, false, [197, 768, 3072], true, EpilogueKind::ResidualBiasRelu),
        (BF, false, [197, 3072, 768], true, EpilogueKind::ErfBias),
        (F16, false, [1576, 768, 768], true, EpilogueKind::Bias),
        (F32, true, [4096, 4096, 4096], true, EpilogueKind::Plain),
    ] {
        let name =
            format!("{dtype} {m}x{n}x{k} {epilogue_kind:?}{}", if transposed { "" } else { " by rows" });
        out.push((
            name,
            Box::new(move |name| matmul(name, dtype, tf32, &plain(m, n, k, transposed), epilogue_kind)),
        ));
    }
    let heads = || Product {
        batch: &[32],
        m: 512,
        n: 512,
        k: 64,
        a: vec![512 * 64, 64, 1],
        b: vec![64 * 512, 512, 1],
        out: vec![512 * 512, 512, 1],
    };
    out.push((
        "bf16 batch of 32 512x512x64".into(),
        Box::new(move |name| matmul(name, BF, false, &heads(), EpilogueKind::Plain)),
    ));
    out
}

fn products() -> Vec<Case> {
    vec![
        matmul("matmul f32", F32, false, &plain(512, 512, 512, false), EpilogueKind::Plain),
        matmul("matmul f32 tf32", F32, true, &plain(512, 512, 512, true), EpilogueKind::BiasRelu),
        matmul("matmul f64", F64, false, &plain(256, 200, 300, true), EpilogueKind::Plain),
        matmul("matmul f64 bias", F64, false, &plain(256, 200, 300, true), EpilogueKind::Bias),
        matmul("matmul bf16", BF, false, &plain(1024, 1024, 1024, false), EpilogueKind::Plain),
        matmul("linear f16 bias", F16, false, &plain(256, 512, 1024, true), EpilogueKind::Bias),
        matmul("linear bf16 bias relu", BF, false, &plain(256, 512, 1024, true), EpilogueKind::BiasRelu),
        matmul("linear bf16 residual", BF, false, &plain(256, 512, 1024, true), EpilogueKind::Residual),
        matmul(
            "linear bf16 residual bias relu",
            BF,
            false,
            &plain(256, 512, 1024, true),
            EpilogueKind::ResidualBiasRelu,
        ),
        matmul("linear bf16 erf gelu", BF, false, &plain(256, 512, 1024, true), EpilogueKind::ErfBias),
        matmul("linear f32 erf gelu", F32, false, &plain(100, 300, 200, true), EpilogueKind::ErfBias),
        matmul("odd bf16", BF, false, &plain(37, 53, 29, false), EpilogueKind::BiasRelu),
        matmul("odd f16 erf", F16, false, &plain(37, 53, 29, true), EpilogueKind::ErfBias),
        matmul(
            "result by columns bf16",
            BF,
            false,
            &Product { out: vec![1, 128], ..plain(128, 96, 64, false) },
            EpilogueKind::Plain,
        ),
        matmul(
            "result by columns erf f32",
            F32,
            false,
            &Product { out: vec![1, 128], ..plain(128, 96, 64, false) },
            EpilogueKind::ErfBias,
        ),
        matmul("one row f32", F32, false, &plain(1, 1000, 512, true), EpilogueKind::Bias),
    ]
}

fn batches() -> Vec<Case> {
    let (b, h, l, d) = (2, 12, 197, 64);
    // Heads inside of the positions, as attention without a fused kernel has them.
    let heads = vec![l * h * d, d, h * d, 1];
    let transposed = vec![l * h * d, d, 1, h * d];
    let scores = rows(&[b, h, l, l]);
    vec![
        matmul(
            "batch of heads bf16",
            BF,
            false,
            &Product {
                batch: &[2, 12],
                m: l,
                n: l,
                k: d,
                a: heads.clone(),
                b: transposed,
                out: scores.clone(),
            },
            EpilogueKind::Plain,
        ),
        matmul(
            "batch of values f32",
            F32,
            false,
            &Product { batch: &[2, 12], m: l, n: d, k: l, a: scores, b: heads.clone(), out: heads },
            EpilogueKind::Plain,
        ),
        matmul(
            "shared weight bf16",
            BF,
            false,
            &Product {
                batch: &[4],
                m: 50,
                n: 256,
                k: 128,
                a: vec![50 * 128, 128, 1],
                b: vec![0, 1, 128],
                out: vec![50 * 256, 256, 1],
            },
            EpilogueKind::BiasRelu,
        ),
        matmul(
            "shared factor f32",
            F32,
            false,
            &Product {
                batch: &[4],
                m: 50,
                n: 256,
                k: 128,
                a: vec![0, 128, 1],
                b: vec![128 * 256, 256, 1],
                out: vec![50 * 256, 256, 1],
            },
            EpilogueKind::Plain,
        ),
    ]
}

/// A square window over two dimensions; `last` says whether tensors are channels-last.
#[derive(Clone, Copy)]
struct Square {
    n: i64,
    c: i64,
    o: i64,
    size: i64,
    taps: i64,
    stride: i64,
    pad: i64,
    groups: i64,
    channels_last: bool,
}

fn square(name: &str, dtype: DType, tf32: bool, s: Square, epilogue_kind: EpilogueKind) -> Case {
    let out = (s.size + 2 * s.pad - s.taps) / s.stride + 1;
    let layout = |sizes: &[i64]| if s.channels_last { last(sizes) } else { rows(sizes) };
    let (x, w, y) = ([s.n, s.c, s.size, s.size], [s.o, s.c / s.groups, s.taps, s.taps], [s.n, s.o, out, out]);
    let window = Window {
        input: (&x, layout(&x)),
        // Weights lie as PyTorch keeps them.
        weight: (&w, rows(&w)),
        result: (&y, layout(&y)),
        stride: &[s.stride, s.stride],
        padding: &[(s.pad, s.pad), (s.pad, s.pad)],
        dilation: &[1, 1],
        groups: s.groups,
        transposed: false,
    };
    conv(name, dtype, tf32, &window, epilogue_kind)
}

const SMALL: Square =
    Square { n: 2, c: 32, o: 64, size: 28, taps: 3, stride: 1, pad: 1, groups: 1, channels_last: true };

fn convolutions() -> Vec<Case> {
    let first = Square { channels_last: false, ..SMALL };
    vec![
        square("conv f32 nchw", F32, false, first, EpilogueKind::Plain),
        square("conv f32 nhwc", F32, false, SMALL, EpilogueKind::Plain),
        square("conv f32 nhwc bias relu", F32, false, SMALL, EpilogueKind::BiasRelu),
        square("conv tf32 nhwc residual", F32, true, SMALL, EpilogueKind::ResidualBiasRelu),
        square("conv f16 nhwc bias", F16, false, SMALL, EpilogueKind::Bias),
        square("conv bf16 nhwc", BF, false, SMALL, EpilogueKind::Plain),
        square("conv bf16 nhwc bias relu", BF, false, SMALL, EpilogueKind::BiasRelu),
        square("conv bf16 nhwc residual bias relu", BF, false, SMALL, EpilogueKind::ResidualBiasRelu),
        square("conv bf16 nhwc erf gelu", BF, false, SMALL, EpilogueKind::ErfBias),
        square("conv bf16 nchw", BF, false, first, EpilogueKind::BiasRelu),
        square("conv bf16 stride 2", BF, false, Square { stride: 2, ..SMALL }, EpilogueKind::BiasRelu),
        square("conv bf16 1x1", BF, false, Square { taps: 1, pad: 0, ..SMALL }, EpilogueKind::BiasRelu),
        square("conv bf16 groups", BF, false, Square { groups: 4, ..SMALL }, EpilogueKind::Bias),
        square("conv f32 depthwise", F32, false, Square { groups: 32, o: 32, ..SMALL }, EpilogueKind::Bias),
        square("conv bf16 depthwise", BF, false, Square { groups: 32, o: 32, ..SMALL }, EpilogueKind::Bias),
        square("conv bf16 odd channels", BF, false, Square { c: 3, o: 5, ..SMALL }, EpilogueKind::Bias),
    ]
}

fn kinds_of_convolution() -> Vec<Case> {
    let line = ([2, 16, 100], [24, 16, 5], [2, 24, 50]);
    let cube = ([1, 8, 6, 10, 12], [16, 8, 3, 3, 3], [1, 16, 6, 10, 12]);
    let wide = ([2, 16, 20, 20], [24, 16, 3, 3], [2, 24, 20, 20]);
    let up = ([2, 32, 14, 14], [32, 16, 3, 3], [2, 16, 28, 28]);
    let base = |input, weight, result| Window {
        input,
        weight,
        result,
        stride: &[1, 1],
        padding: &[(1, 1), (1, 1)],
        dilation: &[1, 1],
        groups: 1,
        transposed: false,
    };
    let lined = Window {
        stride: &[2],
        padding: &[(2, 2)],
        dilation: &[1],
        ..base((&line.0, rows(&line.0)), (&line.1, rows(&line.1)), (&line.2, last(&line.2)))
    };
    let cubed = Window {
        stride: &[1; 3],
        padding: &[(1, 1); 3],
        dilation: &[1; 3],
        ..base((&cube.0, last(&cube.0)), (&cube.1, rows(&cube.1)), (&cube.2, last(&cube.2)))
    };
    let dilated = Window {
        padding: &[(2, 2); 2],
        dilation: &[2, 2],
        ..base((&wide.0, last(&wide.0)), (&wide.1, rows(&wide.1)), (&wide.2, last(&wide.2)))
    };
    // As the gradient to the input of a strided convolution has it.
    let uneven = ([4, 64, 27, 27], [32, 64, 3, 3], [4, 32, 28, 28]);
    let one_sided = Window {
        padding: &[(1, 2); 2],
        ..base((&uneven.0, last(&uneven.0)), (&uneven.1, rows(&uneven.1)), (&uneven.2, last(&uneven.2)))
    };
    // One element more at the end, as `output_padding` gives it.
    let transposed = || Window {
        stride: &[2, 2],
        padding: &[(1, 0); 2],
        transposed: true,
        ..base((&up.0, last(&up.0)), (&up.1, rows(&up.1)), (&up.2, last(&up.2)))
    };
    vec![
        conv("conv1d f32", F32, false, &lined, EpilogueKind::Bias),
        conv("conv1d bf16", BF, false, &lined, EpilogueKind::Bias),
        conv("conv3d f32", F32, false, &cubed, EpilogueKind::Bias),
        conv("conv3d bf16", BF, false, &cubed, EpilogueKind::Bias),
        conv("dilated bf16", BF, false, &dilated, EpilogueKind::Plain),
        conv("padding of one side bf16", BF, false, &one_sided, EpilogueKind::Bias),
        conv("padding of one side tf32", F32, true, &one_sided, EpilogueKind::Plain),
        conv("padding of one side f32", F32, false, &one_sided, EpilogueKind::Plain),
        conv("transposed f32", F32, false, &transposed(), EpilogueKind::Bias),
        conv("transposed bf16", BF, false, &transposed(), EpilogueKind::Plain),
    ]
}

/// The gradient to the weight of a square convolution, as the gradient rule writes it.
fn gradient(name: &str, dtype: DType, tf32: bool, s: Square) -> Case {
    let out = (s.size + 2 * s.pad - s.taps) / s.stride + 1;
    // Perhaps more of the window than there is, where the stride left something over.
    let taps = s.size + 2 * s.pad - (out - 1) * s.stride;
    let layout = |sizes: &[i64]| if s.channels_last { last(sizes) } else { rows(sizes) };
    let swap = |v: Vec<i64>| vec![v[1], v[0], v[2], v[3]];
    let (x, g) = ([s.n, s.c, s.size, s.size], [s.n, s.o, out, out]);
    let (input, weight, result) = ([s.c, s.n, s.size, s.size], [s.o, s.n, out, out], [s.c, s.o, taps, taps]);
    let window = Window {
        input: (&input, swap(layout(&x))),
        weight: (&weight, swap(layout(&g))),
        // As parameters lie: [o, c, window].
        result: (&result, dense(&result, &[1, 0, 2, 3])),
        stride: &[1, 1],
        padding: &[(s.pad, s.pad), (s.pad, s.pad)],
        dilation: &[s.stride, s.stride],
        groups: 1,
        transposed: false,
    };
    conv(name, dtype, tf32, &window, EpilogueKind::Plain)
}

fn gradients() -> Vec<Case> {
    vec![
        gradient("weight gradient f32", F32, false, SMALL),
        gradient("weight gradient f32 nchw", F32, false, Square { channels_last: false, ..SMALL }),
        gradient("weight gradient tf32 stride 2", F32, true, Square { stride: 2, ..SMALL }),
        gradient("weight gradient bf16", BF, false, SMALL),
        gradient(
            "weight gradient f32 1x1 stride 2",
            F32,
            false,
            Square { taps: 1, pad: 0, stride: 2, ..SMALL },
        ),
    ]
}

/// Sizes of ViT-B/16, ResNet-152 (batch 1) and ResNet-18 (batch 16, training).
fn networks() -> Vec<Case> {
    let one = |c, o, size, taps, stride| Square { n: 1, c, o, size, taps, stride, pad: taps / 2, ..SMALL };
    let train = |c, o, size, taps, stride| Square { n: 16, ..one(c, o, size, taps, stride) };
    let stem = Square { pad: 3, ..train(3, 64, 224, 7, 2) };
    vec![
        matmul("vit qkv", BF, false, &plain(197, 2304, 768, true), EpilogueKind::Bias),
        matmul("vit mlp up", BF, false, &plain(197, 3072, 768, true), EpilogueKind::ErfBias),
        matmul("vit mlp down", BF, false, &plain(197, 768, 3072, true), EpilogueKind::ResidualBiasRelu),
        matmul("llama prefill", BF, false, &plain(2048, 4096, 4096, true), EpilogueKind::Plain),
        square("r152 stem", BF, false, Square { n: 1, ..stem }, EpilogueKind::BiasRelu),
        square("r152 56 1x1 64-256", BF, false, one(64, 256, 56, 1, 1), EpilogueKind::ResidualBiasRelu),
        square("r152 56 1x1 256-64", BF, false, one(256, 64, 56, 1, 1), EpilogueKind::BiasRelu),
        square("r152 56 3x3 64", BF, false, one(64, 64, 56, 3, 1), EpilogueKind::BiasRelu),
        square("r152 28 3x3 128", BF, false, one(128, 128, 28, 3, 1), EpilogueKind::BiasRelu),
        square("r152 14 3x3 256", BF, false, one(256, 256, 14, 3, 1), EpilogueKind::BiasRelu),
        square("r152 14 1x1 256-1024", BF, false, one(256, 1024, 14, 1, 1), EpilogueKind::ResidualBiasRelu),
        square("r152 14 1x1 1024-256", BF, false, one(1024, 256, 14, 1, 1), EpilogueKind::BiasRelu),
        square("r152 7 3x3 512", BF, false, one(512, 512, 7, 3, 1), EpilogueKind::BiasRelu),
        square("r18 stem f32", F32, false, stem, EpilogueKind::Plain),
        square("r18 56 3x3 64 f32", F32, false, train(64, 64, 56, 3, 1), EpilogueKind::Plain),
        square("r18 56 3x3 64 tf32", F32, true, train(64, 64, 56, 3, 1), EpilogueKind::Plain),
        square("r18 28 3x3 128 f32", F32, false, train(128, 128, 28, 3, 1), EpilogueKind::Plain),
        square("r18 14 3x3 256 f32", F32, false, train(256, 256, 14, 3, 1), EpilogueKind::Plain),
        square("r18 7 3x3 512 f32", F32, false, train(512, 512, 7, 3, 1), EpilogueKind::Plain),
        square("r18 7 3x3 512 tf32", F32, true, train(512, 512, 7, 3, 1), EpilogueKind::Plain),
        gradient("r18 weight 56 3x3 64 f32", F32, false, train(64, 64, 56, 3, 1)),
        gradient("r18 weight 56 3x3 64 tf32", F32, true, train(64, 64, 56, 3, 1)),
        gradient("r18 weight 14 3x3 256 f32", F32, false, train(256, 256, 14, 3, 1)),
        gradient("r18 weight stem f32", F32, false, stem),
    ]
}
