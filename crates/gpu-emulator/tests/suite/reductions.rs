//! Reductions that several blocks share: what the last block computes, the number of passes, and equal bits of two calls
//! over the same scratch memory. Results are compared with double precision.
#![allow(clippy::unwrap_used)] // a failing test may panic

use crate::common::{Case, emulator};
use fx_ir::{Arg, ValueId};
use ir_core::DType::{self, BF16, Bool, F16, F32, F64, I32, I64};

fn ints(list: &[i64]) -> Arg {
    Arg::List(list.iter().map(|n| (*n).into()).collect())
}

/// Many and few columns, with and without full vectors, of one row and of none.
#[test]
fn columns_of_every_shape() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("columns");
    for sizes in
        [[9000, 40], [4097, 64], [700, 3], [300, 130], [2500, 1], [90, 24], [1, 40], [0, 8], [33, 520]]
    {
        let x = c.any(F32, &sizes);
        c.shows("aten.sum.dim_IntList", vec![x.into(), ints(&[0])]);
        if sizes[0] > 0 {
            c.shows("aten.amax.default", vec![x.into(), ints(&[0])]);
            c.shows("aten.argmin.default", vec![x.into(), 0i64.into()]);
        }
        if sizes[0] > 1 {
            c.shows("aten.var.correction", vec![x.into(), ints(&[0])]);
        }
    }
    c.check_twice(&emulator);
}

#[test]
fn columns_of_every_dtype() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("column_dtypes");
    for dtype in [F64, BF16, F16] {
        for sizes in [[3000, 48], [2000, 18]] {
            let x = c.any(dtype, &sizes);
            c.shows("aten.mean.dim", vec![x.into(), ints(&[0])]);
            c.shows("aten.argmax.default", vec![x.into(), 0i64.into()]);
            c.shows("aten.var.correction", vec![x.into(), ints(&[0])]);
        }
    }
    for dtype in [I64, I32] {
        let x = c.any(dtype, &[5000, 12]);
        c.shows("aten.sum.dim_IntList", vec![x.into(), ints(&[0])]);
        c.shows("aten.amin.default", vec![x.into(), ints(&[0])]);
    }
    let x = c.any(Bool, &[4000, 9]);
    c.shows("aten.any.dim", vec![x.into(), 0i64.into()]);
    c.shows("aten.all.dim", vec![x.into(), 0i64.into()]);
    c.check_twice(&emulator);
}

#[test]
fn rows_in_parts() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("rows");
    for (dtype, sizes) in [(F32, [1, 70_001]), (F32, [3, 40_000]), (F64, [2, 30_000]), (BF16, [1, 50_000])] {
        let x = c.any(dtype, &sizes);
        c.shows("aten.sum.dim_IntList", vec![x.into(), ints(&[1])]);
        c.shows("aten.argmax.default", vec![x.into(), 1i64.into()]);
        c.shows("aten.var.correction", vec![x.into(), ints(&[1])]);
        let w = c.any(dtype, &[sizes[1]]);
        c.shows("aten.layer_norm.default", vec![x.into(), ints(&[sizes[1]]), w.into(), w.into()]);
    }
    let x = c.any(I64, &[1, 20_000]);
    c.shows("aten.sum.dim_IntList", vec![x.into(), ints(&[1])]);
    c.check_twice(&emulator);
}

/// Groups of adjacent channels in images whose channels lie side by side: many short rows for one result, read as vectors.
/// Columns that a view divides into heads and elements: sums over its rows are those of the memory behind it.
#[test]
fn columns_behind_views() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("views");
    let x = c.any(BF16, &[4, 500, 6, 40]);
    let rows = c.call("prims.permute", vec![x.into(), ints(&[0, 2, 1, 3])]);
    let rows = c.call("prims.permute", vec![rows.into(), ints(&[0, 2, 1, 3])]);
    let rows = c.call("prims.reshape", vec![rows.into(), ints(&[2000, 240])]);
    c.shows("aten.sum.dim_IntList", vec![rows.into(), ints(&[0])]);
    c.check_candidates(&emulator, &["columns"]);
}

/// A factor for each image and channel, which is stored, and every token of the image by it: two launches, since adjacent tokens of a
/// channel are not adjacent in memory.
#[test]
fn factors_of_channels() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("factors");
    let (x, scale) = (c.any(BF16, &[6, 64, 768]), c.any(BF16, &[6, 768]));
    let one = c.input(BF16, &[6, 768], |_| 1.0);
    let factor = c.shows("prims.add", vec![scale.into(), one.into()]);
    let rows = c.call("prims.reshape", vec![factor.into(), ints(&[6, 1, 768])]);
    let rows = c.call("prims.expand", vec![rows.into(), ints(&[6, 64, 768])]);
    c.shows("prims.mul", vec![x.into(), rows.into()]);
    c.check_candidates(&emulator, &["apart"]);
}

#[test]
fn groups_of_channels() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("groups");
    for (dtype, [n, size, channels], groups) in
        [(BF16, [2, 61, 64], 4i64), (F16, [1, 70, 48], 3), (F32, [2, 50, 32], 4), (BF16, [1, 90, 36], 3)]
    {
        let x = c.any(dtype, &[n, size, size + 1, channels]);
        let x = c.call("aten.permute.default", vec![x.into(), ints(&[0, 3, 1, 2])]);
        let (w, b) = (c.any(dtype, &[channels]), c.any(dtype, &[channels]));
        let eps = Arg::from(1e-5);
        c.shows("aten.group_norm.default", vec![x.into(), groups.into(), w.into(), b.into(), eps]);
        let parts = c.call("aten.view.default", vec![x.into(), ints(&[n, groups, channels / groups, -1])]);
        c.shows("aten.amax.default", vec![parts.into(), ints(&[2, 3])]);
        c.shows("aten.logsumexp.default", vec![parts.into(), ints(&[2, 3])]);
    }
    let program = c.program();
    let modules = gpu_runtime::modules(&program, &gpu_codegen::Target::HOPPER).unwrap();
    let text: String = modules.into_iter().map(|m| m.kernels).collect();
    assert!(text.contains("q = begin + rank * 8; q < end"), "16-bit numbers are read eight at once");
    c.check_twice(&emulator);
}

/// The mean is 10,000 times the deviation, where a sum of squares would lose all digits.
#[test]
fn variances_far_from_zero() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("far");
    let far = |i: usize| 1e4 + f64::from(tensor::formula::uniform("far", i as u64));
    for sizes in [[6000, 32], [1, 90_000]] {
        let x = c.input(F32, &sizes, far);
        let dim = i64::from(sizes[0] == 1);
        c.shows("aten.var.correction", vec![x.into(), ints(&[dim])]);
        c.shows("aten.mean.dim", vec![x.into(), ints(&[dim])]);
    }
    c.check_twice(&emulator);
}

/// `(x - mean) / sqrt(variance + eps) * w + b` over all but the last dimension, and its gradient with respect to `x`.
fn normalised(c: &mut Case, dtype: DType, sizes: &[i64]) {
    let channels = *sizes.last().unwrap();
    let dims: Vec<i64> = (0..sizes.len() as i64 - 1).collect();
    let (x, g) = (c.any(dtype, sizes), c.any(dtype, sizes));
    let (w, b) = (c.any(dtype, &[channels]), c.any(dtype, &[channels]));
    let two = |c: &mut Case, op: &str, a: ValueId, b: ValueId| {
        c.call(&format!("aten.{op}.Tensor"), vec![a.into(), b.into()])
    };
    let mean_of =
        |c: &mut Case, v: ValueId| c.call("aten.mean.dim", vec![v.into(), ints(&dims), true.into()]);
    let mean = mean_of(c, x);
    let centred = two(c, "sub", x, mean);
    let squares = two(c, "mul", centred, centred);
    let variance = mean_of(c, squares);
    let variance = c.call("aten.add.Scalar", vec![variance.into(), 1e-5.into()]);
    let scale = c.call("aten.rsqrt.default", vec![variance.into()]);
    let hat = two(c, "mul", centred, scale);
    let scaled = two(c, "mul", hat, w);
    let result = two(c, "add", scaled, b);
    c.output(result);
    // A second use of the centred numbers, as in a gradient: the second sum depends on the first.
    let product = two(c, "mul", g, centred);
    let first = c.call("aten.sum.dim_IntList", vec![product.into(), ints(&dims), true.into()]);
    let cube = two(c, "mul", scale, first);
    let points: i64 = sizes[..sizes.len() - 1].iter().product();
    let factor = c.call("aten.mul.Scalar", vec![cube.into(), (-1.0 / points as f64).into()]);
    let (left, right) = (two(c, "mul", g, scale), two(c, "mul", centred, factor));
    let sum = two(c, "add", left, right);
    let whole = mean_of(c, sum);
    let gradient = two(c, "sub", sum, whole);
    c.output(gradient);
}

#[test]
fn normalisation_and_its_gradient() {
    let Some(emulator) = emulator() else { return };
    for (dtype, sizes) in
        [(F32, [3, 17, 19, 32]), (F32, [2, 30, 31, 5]), (F64, [2, 20, 20, 6]), (F32, [4, 40, 41, 64])]
    {
        let mut c = Case::new("normalised");
        normalised(&mut c, dtype, &sizes);
        c.check_twice(&emulator);
    }
}

/// Short loops at many points: several adjacent points per thread, borders of windows, 16-bit numbers, booleans.
#[test]
fn windows() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("windows");
    for (dtype, sizes) in [(F32, [600, 3, 256]), (BF16, [1200, 2, 256]), (F64, [260, 3, 258])] {
        let x = c.any(dtype, &sizes);
        c.shows("aten.sum.dim_IntList", vec![x.into(), ints(&[1])]);
        let padded =
            c.call("aten.constant_pad_nd.default", vec![x.into(), ints(&[0, 0, 1, 1]), (-0.25).into()]);
        c.shows("aten.amax.default", vec![padded.into(), ints(&[1])]);
        c.shows("aten.softmax.int", vec![x.into(), 1i64.into()]);
    }
    let x = c.any(Bool, &[600, 3, 256]);
    c.shows("aten.any.dim", vec![x.into(), 1i64.into()]);
    c.check_twice(&emulator);
}

/// Scans of long rows between other stages of one kernel, as in sampling of words: blocks share the rows, and a scan goes on from what the
/// parts before a block's add up to.
#[test]
fn scans_between_reductions() {
    let Some(emulator) = emulator() else { return };
    for (dtype, rows, length) in [(F32, 3, 30_011i64), (F64, 2, 20_000), (F32, 1, 9_000)] {
        let mut c = Case::new("sampling");
        let x = c.any(dtype, &[rows, length]);
        let weights = c.call("aten._softmax.default", vec![x.into(), 1i64.into(), false.into()]);
        let sums = c.call("aten.cumsum.default", vec![weights.into(), 1i64.into()]);
        let before = c.call("aten.sub.Tensor", vec![sums.into(), weights.into()]);
        let kept = c.call("aten.mul.Tensor", vec![weights.into(), before.into()]);
        let all = c.call("aten.sum.dim_IntList", vec![kept.into(), ints(&[1]), true.into()]);
        let again = c.call("aten.div.Tensor", vec![kept.into(), all.into()]);
        let sums = c.shows("aten.cumsum.default", vec![again.into(), 1i64.into()]);
        c.shows("aten.mean.dim", vec![sums.into(), ints(&[1])]);
        c.check_candidates(&emulator, &["rows_"]);
    }
}

/// Rows shorter than what a wave loads at once: several share a wave, where the waves are full of them.
#[test]
fn several_rows_in_a_wave() {
    let Some(emulator) = emulator() else { return };
    // Of the last three some threads have no vector in the last turn.
    for (dtype, row, team) in [
        (BF16, 32, 4),
        (F16, 96, 4),
        (F32, 32, 8),
        (BF16, 128, 16),
        (BF16, 48, 4),
        (F32, 40, 8),
        (F16, 120, 8),
    ] {
        let mut c = Case::new("rows of a wave");
        let x = c.any(dtype, &[16384, row]);
        let wide = c.call("prims.convert", vec![x.into(), F32.into()]);
        let square = c.call("aten.mul.Tensor", vec![wide.into(), wide.into()]);
        let sum = c.call("aten.sum.dim_IntList", vec![square.into(), ints(&[1]), true.into()]);
        let scale = c.call("aten.rsqrt.default", vec![sum.into()]);
        let y = c.call("aten.mul.Tensor", vec![wide.into(), scale.into()]);
        c.shows("prims.convert", vec![y.into(), dtype.into()]);
        assert!(
            source(&mut c).contains(&format!("threadIdx.x % {team};")),
            "teams of {team} for rows of {row}"
        );
        c.check_twice(&emulator);
    }
    // Of rows in an odd number the last wave would have too few.
    let mut c = Case::new("an odd number of rows");
    let x = c.any(BF16, &[16385, 32]);
    c.shows("aten._softmax.default", vec![x.into(), 1i64.into(), false.into()]);
    assert!(source(&mut c).contains("threadIdx.x % 32;"));
    c.check(&emulator);
}

/// Softmax and the position of the largest element of short rows.
#[test]
fn peaks_and_positions_of_short_rows() {
    let Some(emulator) = emulator() else { return };
    let mut c = Case::new("short rows");
    for (dtype, row) in [(BF16, 64), (F32, 64)] {
        let x = c.any(dtype, &[16384, row]);
        c.shows("aten._softmax.default", vec![x.into(), 1i64.into(), false.into()]);
        c.shows("aten.argmax.default", vec![x.into(), 1i64.into()]);
    }
    c.check_twice(&emulator);
}

/// The texts of a case's kernels, the first candidates alone.
fn source(c: &mut Case) -> String {
    let modules = gpu_runtime::modules(&c.program(), &gpu_codegen::Target::HOPPER).unwrap();
    modules.into_iter().map(|m| m.kernels).collect()
}
