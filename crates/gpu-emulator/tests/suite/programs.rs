//! Small programs that represent every kind of generated kernel, from graph to emulated GPU against `interp`, in sizes
//! that leave remainders.
#![allow(clippy::unwrap_used)] // a failing test may panic

use crate::common::{Case, emulator};
use fx_ir::Arg;
use ir_core::DType;

use DType::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8};

fn ints(list: &[i64]) -> Arg {
    Arg::from(list)
}

#[test]
fn elementwise_of_every_dtype() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("elementwise");
    for dtype in [F32, F64, F16, BF16] {
        let (x, y) = (c.any(dtype, &[3, 37]), c.any(dtype, &[37]));
        let sum = c.call("aten.add.Tensor", vec![x.into(), y.into()]);
        let e = c.call("aten.exp.default", vec![sum.into()]);
        c.shows("aten.mul.Tensor", vec![e.into(), y.into()]);
        c.shows("aten.gelu.default", vec![x.into()]);
    }
    for dtype in [I8, I16, I32, I64, U8] {
        let (x, y) = (c.any(dtype, &[5, 19]), c.any(dtype, &[5, 1]));
        let sum = c.call("aten.add.Tensor", vec![x.into(), y.into()]);
        c.shows("aten.mul.Tensor", vec![sum.into(), x.into()]);
    }
    let (p, q) = (c.any(Bool, &[77]), c.any(Bool, &[77]));
    c.shows("aten.logical_xor.default", vec![p.into(), q.into()]);
    c.check(&emulator);
}

#[test]
fn functions_of_the_mathematics_library() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("functions");
    for dtype in [F32, F64] {
        let x = c.input(dtype, &[61], |i| -3.0 + 0.1 * i as f64);
        let inside = c.input(dtype, &[61], |i| -0.99 + 0.033 * i as f64);
        let positive = c.input(dtype, &[61], |i| 0.05 + 0.2 * i as f64);
        for name in ["sin", "cos", "tan", "tanh", "erf", "erfc", "expm1", "sinh", "asinh", "atan"] {
            c.shows(&format!("aten.{name}.default"), vec![x.into()]);
        }
        for name in ["asin", "acos", "atanh", "erfinv"] {
            c.shows(&format!("aten.{name}.default"), vec![inside.into()]);
        }
        for name in ["log", "log2", "log1p", "sqrt", "rsqrt", "lgamma", "digamma"] {
            c.shows(&format!("aten.{name}.default"), vec![positive.into()]);
        }
        c.shows("aten.pow.Tensor_Tensor", vec![positive.into(), x.into()]);
        c.shows("aten.atan2.default", vec![x.into(), inside.into()]);
    }
    c.check(&emulator);
}

#[test]
fn conversions() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("conversions");
    let wild = [0.0, -0.0, 1.5, 2.5, -2.5, 1e-8, 6e-8, 65519.0, 65520.0, 3e38, 1e300, -1e300, 300.7, -129.2];
    let x = c.input(F64, &[14], |i| wild[i]);
    for dtype in [F32, F16, BF16, Bool] {
        c.shows("aten._to_copy.default", vec![x.into(), dtype.into()]);
    }
    let small = c.input(F32, &[12], |i| 31.7 * i as f64 - 120.0);
    for dtype in [I64, I32, I16, F16, BF16] {
        let y = c.shows("aten._to_copy.default", vec![small.into(), dtype.into()]);
        c.shows("aten._to_copy.default", vec![y.into(), F64.into()]);
    }
    c.check(&emulator);
}

#[test]
fn reductions() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("reductions");
    // Short rows, rows for a warp, rows for a block, one result of many numbers.
    for sizes in [[40, 9], [70, 300], [3, 5000], [1, 70_000]] {
        let x = c.any(F32, &sizes);
        c.shows("aten.sum.dim_IntList", vec![x.into(), ints(&[1])]);
        c.shows("aten.amax.default", vec![x.into(), ints(&[0])]);
        c.shows("aten.argmax.default", vec![x.into(), 1i64.into()]);
        c.shows("aten.var.correction", vec![x.into(), ints(&[1])]);
    }
    // Columns that are split into parts.
    let x = c.any(F32, &[9000, 40]);
    c.shows("aten.mean.dim", vec![x.into(), ints(&[0])]);
    c.shows("aten.argmin.default", vec![x.into(), 0i64.into()]);
    c.shows("aten.var.correction", vec![x.into(), ints(&[0])]);
    c.shows("aten.log_softmax.int", vec![x.into(), 0i64.into()]);
    let x = c.any(F32, &[3, 5, 40, 50]);
    c.shows("aten.mean.dim", vec![x.into(), ints(&[0, 2, 3])]);
    c.shows("aten.var.correction", vec![x.into(), ints(&[0, 1, 2, 3])]);
    let x = c.any(F64, &[6, 2000]);
    c.shows("aten.sum.default", vec![x.into()]);
    let x = c.any(BF16, &[6, 2000]);
    c.shows("aten.mean.dim", vec![x.into(), ints(&[0, 1])]);
    let x = c.any(I64, &[6, 500]);
    c.shows("aten.prod.dim_int", vec![x.into(), 0i64.into()]);
    c.shows("aten.min.default", vec![x.into()]);
    let x = c.any(Bool, &[600]);
    c.shows("aten.any.default", vec![x.into()]);
    c.shows("aten.all.default", vec![x.into()]);
    c.check(&emulator);
}

#[test]
fn softmax_and_normalisation() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("softmax");
    for (dtype, sizes) in [(F32, [65, 77]), (F32, [3, 3001]), (BF16, [9, 1024]), (F64, [80, 5])] {
        let x = c.any(dtype, &sizes);
        c.shows("aten.softmax.int", vec![x.into(), 1i64.into()]);
        c.shows("aten.log_softmax.int", vec![x.into(), 0i64.into()]);
        let w = c.any(dtype, &[sizes[1]]);
        c.shows("aten.layer_norm.default", vec![x.into(), ints(&[sizes[1]]), w.into(), w.into()]);
    }
    c.check(&emulator);
}

#[test]
fn scans() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("scans");
    for sizes in [[50, 7], [9, 333], [1, 9000], [300, 40]] {
        let x = c.any(F32, &sizes);
        c.shows("aten.cumsum.default", vec![x.into(), 1i64.into()]);
        c.shows("aten.cumsum.default", vec![x.into(), 0i64.into()]);
        let n = c.any(I64, &sizes);
        c.shows("aten.cumsum.default", vec![n.into(), 1i64.into()]);
    }
    // Rows that are split into parts, with two scans each.
    let x = c.any(F32, &[2, 20_000]);
    let y = c.call("aten.exp.default", vec![x.into()]);
    c.shows("aten.cumsum.default", vec![y.into(), 1i64.into()]);
    c.shows("aten.cumsum.default", vec![x.into(), 1i64.into()]);
    let x = c.input(F64, &[4, 200], |i| 1.0 + 0.001 * (i % 17) as f64);
    c.shows("aten.cumprod.default", vec![x.into(), 1i64.into()]);
    c.check(&emulator);
}

#[test]
fn sorts() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("sorts");
    for (dtype, sizes) in [
        (F32, [7, 100]),
        (I64, [3, 1000]),
        (BF16, [2, 33]),
        (F64, [2, 3000]),
        (Bool, [2, 65]),
        (F32, [2, 20_000]),
    ] {
        let x = c.any(dtype, &sizes);
        for descending in [false, true] {
            for v in c.calls("aten.sort.stable", vec![x.into(), true.into(), 1i64.into(), descending.into()])
            {
                c.output(v);
            }
        }
    }
    let wild =
        c.input(F32, &[70], |i| [f64::NAN, 0.0, -0.0, f64::INFINITY, -1.0, f64::NEG_INFINITY, 2.0][i % 7]);
    for v in c.calls("aten.sort.stable", vec![wild.into(), true.into(), 0i64.into()]) {
        c.output(v);
    }
    let x = c.any(F32, &[4, 50]);
    for v in c.calls("aten.topk.default", vec![x.into(), 5i64.into(), 1i64.into()]) {
        c.output(v);
    }
    let equal = c.input(I32, &[3, 9000], |i| (i * i % 5) as f64);
    for v in c.calls("aten.sort.stable", vec![equal.into(), true.into(), 1i64.into(), true.into()]) {
        c.output(v);
    }
    let x = c.any(F32, &[65, 6]);
    for v in c.calls("aten.sort.default", vec![x.into(), 0i64.into()]) {
        c.output(v);
    }
    c.check_candidates(&emulator, &["count", "block", "merge"]);
}

#[test]
fn gather_scatter_and_views() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("gather");
    let x = c.any(F32, &[20, 30]);
    let at = c.input(I64, &[20, 11], |i| (i * 7 % 30) as f64);
    c.shows("aten.gather.default", vec![x.into(), 1i64.into(), at.into()]);
    let from = c.any(F32, &[20, 11]);
    c.shows("aten.scatter_add.default", vec![x.into(), 1i64.into(), at.into(), from.into()]);
    let rows = c.input(I64, &[90], |i| (i * i % 20) as f64);
    c.shows("aten.index_select.default", vec![x.into(), 0i64.into(), rows.into()]);
    for dtype in [F32, F64, BF16, I64, I32] {
        let (base, more) = (c.any(dtype, &[20, 6]), c.any(dtype, &[90, 6]));
        c.shows("aten.index_add.default", vec![base.into(), 0i64.into(), rows.into(), more.into()]);
    }
    c.shows("aten.embedding.default", vec![x.into(), rows.into()]);
    let transposed = c.call("aten.permute.default", vec![x.into(), ints(&[1, 0])]);
    let transposed = c.call("aten.clone.default", vec![transposed.into()]);
    c.output(transposed);
    c.shows("aten.cat.default", vec![Arg::values([x, x]), 1i64.into()]);
    c.shows("aten.flip.default", vec![x.into(), ints(&[0, 1])]);
    c.shows("aten.constant_pad_nd.default", vec![x.into(), ints(&[1, 2]), 0.5.into()]);
    c.check(&emulator);
}

/// Reads along one dimension, writes along another.
#[test]
fn transposes() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("transposes");
    for (dtype, sizes) in [(F32, [3, 40, 70]), (BF16, [2, 33, 64]), (F64, [1, 17, 100]), (Bool, [2, 50, 31])]
    {
        let [x, y] = [0, 1].map(|_| c.any(dtype, &sizes));
        let transposed = c.call("aten.permute.default", vec![x.into(), ints(&[0, 2, 1])]);
        c.shows("aten.clone.default", vec![transposed.into(), Arg::None]);
        let first = c.call("aten.permute.default", vec![y.into(), ints(&[2, 1, 0])]);
        let straight = c.any(dtype, &[sizes[2], sizes[1], sizes[0]]);
        c.shows("aten.logical_or.default", vec![first.into(), straight.into()]);
    }
    // Windows between channels, and the other way round; sizes that are no multiples of a tile's.
    for (dtype, sizes) in [(F32, [3, 100, 9]), (BF16, [2, 9, 100]), (F64, [2, 4, 260]), (Bool, [5, 12, 16])] {
        let x = c.any(dtype, &sizes);
        let transposed = c.call("aten.permute.default", vec![x.into(), ints(&[0, 2, 1])]);
        c.shows("aten.clone.default", vec![transposed.into(), Arg::None]);
    }
    let weight = c.any(F32, &[4, 70, 3, 3]);
    let innermost = c.call("aten.permute.default", vec![weight.into(), ints(&[0, 2, 3, 1])]);
    c.shows("aten.clone.default", vec![innermost.into(), Arg::None]);
    let x = c.any(F32, &[64, 48]);
    let transposed = c.call("aten.t.default", vec![x.into()]);
    let other = c.any(F32, &[48, 64]);
    let sum = c.call("aten.add.Tensor", vec![transposed.into(), other.into()]);
    let row = c.any(F32, &[64]);
    c.shows("aten.mul.Tensor", vec![sum.into(), row.into()]);
    c.check(&emulator);
}

#[test]
fn products() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("products");
    for dtype in [F32, BF16, F16, F64] {
        let (a, b) = (c.any(dtype, &[70, 33]), c.any(dtype, &[33, 65]));
        let y = c.call("aten.mm.default", vec![a.into(), b.into()]);
        c.shows("aten.relu.default", vec![y.into()]);
        let (w, bias) = (c.any(dtype, &[40, 33]), c.any(dtype, &[40]));
        c.shows("aten.linear.default", vec![a.into(), w.into(), bias.into()]);
        let (a, b) = (c.any(dtype, &[3, 17, 64]), c.any(dtype, &[3, 64, 8]));
        c.shows("aten.bmm.default", vec![a.into(), b.into()]);
    }
    c.check(&emulator);
}

#[test]
fn convolutions() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("convolutions");
    for dtype in [F32, BF16] {
        let (x, w) = (c.any(dtype, &[2, 6, 13, 11]), c.any(dtype, &[8, 6, 3, 3]));
        let none = Arg::None;
        c.shows("aten.conv2d.default", vec![x.into(), w.into(), none.clone(), ints(&[2, 1]), ints(&[1, 1])]);
        let grouped = c.any(dtype, &[6, 1, 3, 3]);
        let args =
            vec![x.into(), grouped.into(), none, ints(&[1, 1]), ints(&[2, 2]), ints(&[2, 2]), 6i64.into()];
        c.shows("aten.conv2d.default", args);
    }
    let (x, w) = (c.any(F32, &[2, 4, 9]), c.any(F32, &[4, 5, 4]));
    c.shows("aten.conv_transpose1d.default", vec![x.into(), w.into(), Arg::None, ints(&[2]), ints(&[1])]);
    let x = c.any(F32, &[1, 3, 12, 12]);
    c.shows("aten.max_pool2d.default", vec![x.into(), ints(&[3, 3]), ints(&[2, 2]), ints(&[1, 1])]);
    c.shows("aten.avg_pool2d.default", vec![x.into(), ints(&[2, 2])]);
    c.check(&emulator);
}

#[test]
fn gradients_of_max_pooling_from_positions() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("gradients of max pooling");
    for dtype in [F32, BF16] {
        for (kernel, sizes) in [([3i64, 3], [2i64, 5, 7, 9]), ([2, 2], [2, 5, 6, 9])] {
            let (x, g) = (c.any(dtype, &sizes), c.any(dtype, &[2, 5, 3, 4]));
            // The largest element is in the first row of its window, and is that of two windows where these overlap.
            let at = |i: usize| (i / 4 % 3 * 2 * 9 + i % 4 * 2 + i % kernel[1] as usize) as f64;
            let at = c.input(I64, &[2, 5, 3, 4], at);
            let lists = [&kernel[..], &[2, 2], &[0, 0], &[1, 1]].map(Arg::from);
            let args: Vec<Arg> =
                [g.into(), x.into()].into_iter().chain(lists).chain([false.into(), at.into()]).collect();
            c.shows("aten.max_pool2d_with_indices_backward.default", args);
        }
    }
    c.check(&emulator);
}

/// Attention over channels, whose rows are the tokens of an image: these lie apart in memory, so rows are copied, and matrix cores read
/// them.
#[test]
fn attention_over_channels() {
    let Some(emulator) = emulator() else { return };
    for (dtype, tokens, way) in [(BF16, 196, "flash"), (F32, 52, "simple")] {
        let mut c = Case::new("channels");
        let rows = [3i64; 3].map(|_| {
            let x = c.any(dtype, &[2, tokens, 3, 44]);
            let order = Arg::from(&[0i64, 2, 3, 1][..]);
            c.call("aten.permute.default", vec![x.into(), order])
        });
        c.shows("aten.scaled_dot_product_attention.default", rows.map(Arg::from).to_vec());
        c.check_candidates(&emulator, &[way]);
    }
}

#[test]
fn attention() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("attention");
    for (dtype, causal) in [(F32, false), (BF16, true), (F32, true)] {
        let [q, k, v] = [45, 70, 70].map(|n| c.any(dtype, &[2, 3, if causal { 50 } else { n }, 40]));
        let args = vec![q.into(), k.into(), v.into(), Arg::None, 0.0.into(), causal.into()];
        c.shows("aten.scaled_dot_product_attention.default", args);
    }
    let [q, k, v] = [33, 37, 37].map(|n| c.any(F32, &[1, 2, n, 16]));
    let mask = c.any(Bool, &[33, 37]);
    let args = vec![q.into(), k.into(), v.into(), mask.into()];
    c.shows("aten.scaled_dot_product_attention.default", args);
    c.check(&emulator);
}
