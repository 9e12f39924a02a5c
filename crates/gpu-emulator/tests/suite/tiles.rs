//! Products and convolutions by tiles: the first candidates of each for three kinds of device, over odd sizes, strides,
//! batches, groups, padding and dilation, against sums in double precision.
#![allow(clippy::unwrap_used)] // a failing test may panic

use std::collections::BTreeMap;

use gpu_codegen::{Target, Variant, pack_weights, variants};
use ir_core::DType;
use kernel_ir::{Buffer, Conv, Operand, Program, Step, Storage};

use crate::steps::{self, Case, at, channels, points, row_major, shape};
use DType::{BF16, F16, F32};

/// Candidates that run per case and device.
const CANDIDATES: usize = 2;

/// The first candidates for three kinds of device, and those that `besides` selects.
fn candidates(program: &Program, step: &Step, besides: fn(&Variant) -> bool) -> BTreeMap<String, Variant> {
    let hopper = Target::HOPPER;
    let mut candidates = BTreeMap::new();
    for target in [hopper.clone(), Target { tf32: true.into(), ..hopper }, Target::AMPERE] {
        let list = variants(program, step, &target).unwrap();
        let wanted = |(n, candidate): &(usize, Variant)| *n < CANDIDATES || besides(candidate);
        candidates.extend(
            list.into_iter()
                .enumerate()
                .filter(wanted)
                .map(|(_, candidate)| (candidate.name.clone(), candidate)),
        );
    }
    candidates
}

/// Candidates of products; `tma.rs` has those by TMA.
fn of_product(program: &Program, step: &Step) -> BTreeMap<String, Variant> {
    candidates(program, step, |_| false)
}

/// Candidates of convolutions, including all by TMA, which exist for windows of one point.
fn of_convolution(program: &Program, step: &Step) -> BTreeMap<String, Variant> {
    candidates(program, step, |candidate| candidate.name.starts_with("wgmma"))
}

fn product(name: &str, dtype: DType, sizes: [i64; 4], a: [i64; 3], b: [i64; 3], out: Option<[i64; 3]>) {
    steps::product(name, dtype, sizes, a, b, out, of_product);
}

#[test]
fn products_of_every_layout() {
    for dtype in [BF16, F16, F32] {
        product("rows by columns", dtype, [1, 100, 72, 200], [0, 200, 1], [0, 1, 200], None);
        product("a batch", dtype, [2, 70, 136, 96], [70 * 96, 96, 1], [96 * 136, 136, 1], None);
    }
    for dtype in [BF16, F32] {
        product("both transposed", dtype, [1, 72, 48, 333], [0, 1, 72], [0, 48, 1], None);
        product("odd sizes", dtype, [3, 37, 51, 77], [37 * 77, 77, 1], [77 * 51, 51, 1], None);
        product("columns in memory", dtype, [1, 64, 40, 128], [0, 128, 1], [0, 1, 128], Some([0, 1, 64]));
        product("no unit stride", dtype, [1, 33, 20, 40], [0, 80, 2], [0, 3, 120], None);
        product("a shared inner dimension", dtype, [1, 49, 64, 1152], [0, 1152, 1], [0, 1, 1152], None);
    }
}

/// A convolution of two spatial dimensions.
#[derive(Clone, Copy)]
struct Shapes {
    /// Batch, input channels, output channels, groups.
    counts: [i64; 4],
    size: [i64; 2],
    window: [i64; 2],
    stride: [i64; 2],
    padding: [(i64, i64); 2],
    dilation: [i64; 2],
    transposed: bool,
}

const PLAIN: Shapes = Shapes {
    counts: [2, 24, 40, 1],
    size: [9, 11],
    window: [3, 3],
    stride: [1, 1],
    padding: [(1, 1), (1, 1)],
    dilation: [1, 1],
    transposed: false,
};

/// The input coordinate at which an output point and a window point meet.
fn meets(s: &Shapes, d: usize, out: i64, window: i64) -> Option<i64> {
    let (stride, before, reach) = (s.stride[d], s.padding[d].0, window * s.dilation[d]);
    let x = match s.transposed {
        false => out * stride - before + reach,
        true if (out + before - reach) % stride == 0 => (out + before - reach) / stride,
        true => return None,
    };
    (0..s.size[d]).contains(&x).then_some(x)
}

fn convolution(name: &str, dtype: DType, s: Shapes, last: bool) {
    let [n, inputs, outputs, groups] = s.counts;
    let (in_group, out_group) = (inputs / groups, outputs / groups);
    let mut case = Case::new(&format!("{name}, channels {}", if last { "last" } else { "first" }), dtype);
    let input = [n, inputs, s.size[0], s.size[1]];
    let [first, second] = if s.transposed { [inputs, out_group] } else { [outputs, in_group] };
    let weight = [first, second, s.window[0], s.window[1]];
    let out = |d: usize| {
        let (reach, (before, after)) = (s.dilation[d] * (s.window[d] - 1) + 1, s.padding[d]);
        match s.transposed {
            true => (s.size[d] - 1) * s.stride[d] - before - after + reach,
            false => (s.size[d] + before + after - reach) / s.stride[d] + 1,
        }
    };
    let ranges = [n, outputs, out(0), out(1)];
    let (xs, ws, os) = (channels(&input, last), channels(&weight, last), channels(&ranges, last));
    let (x, w) = (case.operand(dtype, &input, &xs), case.operand(dtype, &weight, &ws));
    let epilogue = case.finish(dtype, &ranges, &os, 1, |i, data| {
        let group = i[1] / out_group;
        let mut sum = 0.0;
        for p in points(&[in_group, s.window[0], s.window[1]]) {
            let channel = group * in_group + p[0];
            let (Some(y), Some(z)) = (meets(&s, 0, i[2], p[1]), meets(&s, 1, i[3], p[2])) else { continue };
            let of = if s.transposed { [channel, i[1] % out_group] } else { [i[1], p[0]] };
            sum += data[0][at(&[i[0], channel, y, z], &xs)] * data[1][at(&[of[0], of[1], p[1], p[2]], &ws)];
        }
        sum
    });
    let step = Conv {
        name: name.into(),
        origins: vec![],
        input: x,
        weight: w,
        stride: s.stride.to_vec(),
        padding: s.padding.to_vec(),
        dilation: s.dilation.to_vec(),
        groups,
        transposed: s.transposed,
        acc: F32,
        zero: 0,
        epilogue,
    };
    let names = case.run(Step::Conv(step), of_convolution);
    let point = s.window == [1, 1] && s.stride == [1, 1] && groups == 1 && last;
    let there = names.iter().any(|n| n.starts_with("wgmma"));
    assert!(names.is_empty() || there == point, "{name}: {names:?}");
}

#[test]
fn convolutions() {
    for (dtype, last) in [(BF16, true), (F32, true), (F32, false)] {
        convolution("a window", dtype, PLAIN, last);
        let wide = Shapes {
            counts: [1, 3, 24, 1],
            size: [23, 25],
            window: [7, 7],
            stride: [2, 2],
            padding: [(3, 3), (3, 2)],
            ..PLAIN
        };
        convolution("few channels", dtype, wide, last);
        let point =
            Shapes { counts: [1, 64, 48, 1], size: [7, 7], window: [1, 1], padding: [(0, 0); 2], ..PLAIN };
        convolution("a point", dtype, point, last);
        convolution("every other point", dtype, Shapes { stride: [2, 2], ..point }, last);
        let grouped = Shapes {
            counts: [1, 32, 48, 2],
            size: [8, 8],
            window: [3, 2],
            stride: [1, 2],
            padding: [(2, 0), (1, 1)],
            dilation: [2, 1],
            ..PLAIN
        };
        convolution("two groups", dtype, grouped, last);
        convolution("depthwise", dtype, Shapes { counts: [1, 20, 20, 20], ..PLAIN }, last);
    }
}

#[test]
fn transposed_convolutions() {
    for (dtype, last) in [(BF16, true), (F32, false)] {
        let one = Shapes {
            counts: [1, 16, 24, 1],
            size: [6, 7],
            padding: [(1, 1), (0, 0)],
            dilation: [1, 2],
            transposed: true,
            ..PLAIN
        };
        convolution("transposed", dtype, one, last);
        let spread = Shapes { counts: [1, 16, 24, 2], stride: [2, 2], dilation: [1, 1], ..one };
        convolution("transposed and spread", dtype, spread, last);
        // The convolution is split by remainders; with a window smaller than the stride some phases are empty.
        let alone = Shapes { counts: [2, 16, 24, 1], ..spread };
        convolution("phases", dtype, alone, last);
        convolution("phases, some empty", dtype, Shapes { window: [1, 2], stride: [2, 3], ..alone }, last);
        let apart = Shapes { window: [4, 3], stride: [3, 2], dilation: [1, 3], ..alone };
        convolution("phases and dilation", dtype, apart, last);
    }
}

/// Weights that init steps compute and only convolutions read are computed in the layout in which they are read.
#[test]
fn weights_made_at_binding_are_laid_out_in_place() {
    let mut case = Case::new("laid out", F32);
    let (input, weight, ranges) = ([1, 16, 5, 5], [8, 16, 3, 3], [1, 8, 3, 3]);
    let (x, w) =
        (case.operand(F32, &input, &channels(&input, true)), case.operand(F32, &weight, &row_major(&weight)));
    case.program.buffers[w.buf].storage = Storage::Persistent;
    let epilogue = case.finish(F32, &ranges, &channels(&ranges, true), 1, |_, _| 0.0);
    let conv = Conv {
        name: "conv".into(),
        origins: vec![],
        input: x,
        weight: w.clone(),
        stride: vec![1, 1],
        padding: vec![(0, 0); 2],
        dilation: vec![1, 1],
        groups: 1,
        transposed: false,
        acc: F32,
        zero: 0,
        epilogue,
    };
    case.program.steps = vec![Step::Conv(conv)];
    let mut alone = case.program.clone();
    pack_weights(&mut alone);
    assert!(alone.init.is_empty());
    assert_eq!(alone.buffers[w.buf].strides, shape(&[144, 1, 48, 16]));
    let Step::Conv(conv) = &alone.steps[0] else { panic!("a convolution stays one") };
    assert_eq!(conv.weight, Operand { strides: shape(&[144, 1, 48, 16]), ..w.clone() });
    // A view needs the strides for which it was made.
    let view = Buffer { storage: Storage::View(w.buf), ..case.program.buffers[w.buf].clone() };
    case.program.buffers.push(view);
    pack_weights(&mut case.program);
    assert_eq!(case.program.init.len(), 1);
    assert_eq!(case.program.buffers[w.buf].strides, w.strides);
}

/// Constant weights are copied by an init step and read with contiguous channels.
#[test]
fn constant_weights_are_packed() {
    packed(false, [8, 16, 3, 3], [1, 8, 3, 3], [144, 1, 48, 16]);
    // A transposed convolution's weight has the layout of the convolution whose gradient it is.
    packed(true, [16, 8, 3, 3], [1, 8, 11, 11], [72, 1, 24, 8]);
}

fn packed(transposed: bool, weight: [i64; 4], ranges: [i64; 4], strides: [i64; 4]) {
    let mut case = Case::new("packed", BF16);
    let input = [1, 16, 5, 5];
    let (x, w) = (
        case.operand(BF16, &input, &channels(&input, true)),
        case.operand(BF16, &weight, &row_major(&weight)),
    );
    case.program.buffers[w.buf].storage = Storage::Constant(0);
    let epilogue = case.finish(BF16, &ranges, &channels(&ranges, true), 1, |_, _| 0.0);
    let conv = Conv {
        name: "conv".into(),
        origins: vec![],
        input: x,
        weight: w.clone(),
        stride: vec![1 + i64::from(transposed); 2],
        padding: vec![(0, 0); 2],
        dilation: vec![1, 1],
        groups: 1,
        transposed,
        acc: F32,
        zero: 0,
        epilogue,
    };
    case.program.steps = vec![Step::Conv(conv.clone()), Step::Conv(conv)];
    pack_weights(&mut case.program);
    // Both convolutions read the same copy.
    assert_eq!(case.program.init.len(), 1);
    for step in &case.program.steps {
        let Step::Conv(conv) = step else { panic!("a convolution stays one") };
        assert_eq!(conv.weight.strides, shape(&strides));
        assert_eq!(case.program.buffers[conv.weight.buf].storage, Storage::Persistent);
        assert_ne!(conv.weight.buf, w.buf);
    }
    let before = case.program.clone();
    pack_weights(&mut case.program);
    assert_eq!(case.program, before);
}
