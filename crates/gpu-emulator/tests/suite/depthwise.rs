//! Grouped convolutions with few channels per group: every candidate, over odd sizes, strides, dilations, paddings,
//! channel multipliers and both memory formats, against sums in double precision; and gradients to depthwise weights,
//! which are convolutions with a window larger than their result.
#![allow(clippy::unwrap_used)] // a failing test may panic

use std::collections::BTreeMap;

use gpu_codegen::{Target, Variant, variants};
use ir_core::DType;
use kernel_ir::{Conv, Operand, Program, Step};

use crate::steps::{Case, at, channels, dense, points, row_major, shape};
use DType::{BF16, F16, F32};

/// All candidates except the one with a thread per point.
fn candidates(program: &Program, step: &Step) -> BTreeMap<String, Variant> {
    let list = variants(program, step, &Target::HOPPER).unwrap().into_iter();
    list.filter(|candidate| candidate.name != "direct")
        .map(|candidate| (candidate.name.clone(), candidate))
        .collect()
}

/// A convolution of any number of spatial dimensions.
#[derive(Clone)]
pub(crate) struct Shapes {
    /// Batch, input channels, output channels, groups.
    pub(crate) counts: [i64; 4],
    pub(crate) size: Vec<i64>,
    pub(crate) window: Vec<i64>,
    pub(crate) stride: Vec<i64>,
    pub(crate) padding: Vec<(i64, i64)>,
    pub(crate) dilation: Vec<i64>,
    pub(crate) transposed: bool,
}

impl Shapes {
    /// A square window of stride 1 that preserves the size.
    pub(crate) fn square(counts: [i64; 4], size: [i64; 2], window: i64) -> Shapes {
        Shapes {
            counts,
            size: size.to_vec(),
            window: vec![window; 2],
            stride: vec![1; 2],
            padding: vec![(window / 2, window / 2); 2],
            dilation: vec![1; 2],
            transposed: false,
        }
    }

    /// The input coordinate at which an output point and a window point meet.
    fn meets(&self, d: usize, out: i64, window: i64) -> Option<i64> {
        let (stride, before, reach) = (self.stride[d], self.padding[d].0, window * self.dilation[d]);
        let x = match self.transposed {
            false => out * stride - before + reach,
            true if (out + before - reach) % stride == 0 => (out + before - reach) / stride,
            true => return None,
        };
        (0..self.size[d]).contains(&x).then_some(x)
    }

    fn out(&self, d: usize) -> i64 {
        let (reach, (before, after)) = (self.dilation[d] * (self.window[d] - 1) + 1, self.padding[d]);
        match self.transposed {
            true => (self.size[d] - 1) * self.stride[d] - before - after + reach,
            false => (self.size[d] + before + after - reach) / self.stride[d] + 1,
        }
    }

    /// The sizes of the result.
    fn ranges(&self) -> Vec<i64> {
        [self.counts[0], self.counts[2]]
            .into_iter()
            .chain((0..self.size.len()).map(|d| self.out(d)))
            .collect()
    }

    /// The convolution's sum for the point `i` of the result.
    fn sum(&self, i: &[i64], x: (&[f64], &[i64]), w: (&[f64], &[i64])) -> f64 {
        let [_, inputs, outputs, groups] = self.counts;
        let (in_group, out_group) = (inputs / groups, outputs / groups);
        let group = i[1] / out_group;
        let mut sum = 0.0;
        for p in points(&[&[in_group], &self.window[..]].concat()) {
            let places: Option<Vec<i64>> =
                (0..self.size.len()).map(|d| self.meets(d, i[d + 2], p[d + 1])).collect();
            let Some(places) = places else { continue };
            let channel = group * in_group + p[0];
            let of = if self.transposed { [channel, i[1] % out_group] } else { [i[1], p[0]] };
            sum += x.0[at(&[&[i[0], channel], &places[..]].concat(), x.1)]
                * w.0[at(&[&of[..], &p[1..]].concat(), w.1)];
        }
        sum
    }
}

/// Runs all candidates; `orders` says whether input and result are channels-last.
pub(crate) fn convolution(name: &str, dtype: DType, s: &Shapes, orders: [bool; 2]) -> Vec<String> {
    let os = channels(&s.ranges(), orders[1]);
    convolution_to(&format!("{name}, channels last {orders:?}"), dtype, s, orders[0], &os)
}

/// The same with a result of these strides.
pub(crate) fn convolution_to(name: &str, dtype: DType, s: &Shapes, last: bool, os: &[i64]) -> Vec<String> {
    let [n, inputs, outputs, groups] = s.counts;
    let mut case = Case::new(name, dtype);
    let input = [&[n, inputs], &s.size[..]].concat();
    let [first, second] = if s.transposed { [inputs, outputs / groups] } else { [outputs, inputs / groups] };
    let weight = [&[first, second], &s.window[..]].concat();
    let (xs, ws) = (channels(&input, last), row_major(&weight));
    let (x, w) = (case.operand(dtype, &input, &xs), case.operand(dtype, &weight, &ws));
    let sum = |i: &[i64], data: &[Vec<f64>]| s.sum(i, (&data[0], &xs), (&data[1], &ws));
    let epilogue = case.finish(dtype, &s.ranges(), os, 1, sum);
    run(case, s, (x, w), epilogue)
}

fn run(
    case: Case,
    s: &Shapes,
    (input, weight): (Operand, Operand),
    epilogue: kernel_ir::Epilogue,
) -> Vec<String> {
    let step = Conv {
        name: "conv".into(),
        origins: vec![],
        input,
        weight,
        stride: s.stride.clone(),
        padding: s.padding.clone(),
        dilation: s.dilation.clone(),
        groups: s.counts[3],
        transposed: s.transposed,
        acc: F32,
        zero: 0,
        epilogue,
    };
    case.run(Step::Conv(step), candidates)
}

/// Checks that a candidate ran, unless there is no emulator.
fn has(names: &[String], start: &str) {
    assert!(names.is_empty() || names.iter().all(|n| n.starts_with(start)), "{names:?}");
}

#[test]
fn windows_of_every_size() {
    for (dtype, last) in [(BF16, true), (F32, true), (F16, false), (F32, false)] {
        for (counts, size, window) in [
            ([2, 24, 24, 24], [9, 13], 3),
            ([1, 20, 20, 20], [11, 7], 5),
            ([2, 12, 12, 12], [14, 16], 7),
            ([1, 5, 5, 5], [7, 24], 9),
        ] {
            let names = convolution("window", dtype, &Shapes::square(counts, size, window), [last; 2]);
            has(&names, if last { "depthwise_" } else { "depthwise_columns" });
        }
    }
}

#[test]
fn large_windows_are_taken_in_parts() {
    for (dtype, last) in [(BF16, true), (F32, false)] {
        let s = Shapes::square([1, 8, 8, 8], [15, 24], 13);
        has(&convolution("large", dtype, &s, [last; 2]), "depthwise");
        let uneven =
            Shapes { window: vec![11, 20], padding: vec![(3, 5), (9, 9)], dilation: vec![1, 2], ..s };
        has(
            &convolution("large, uneven", dtype, &Shapes { size: vec![12, 40], ..uneven }, [last; 2]),
            "depthwise",
        );
    }
}

#[test]
fn strides_and_dilations() {
    for (dtype, last) in [(BF16, true), (F32, true), (BF16, false), (F32, false)] {
        let s = Shapes { stride: vec![2, 2], ..Shapes::square([2, 16, 16, 16], [15, 16], 3) };
        has(&convolution("stride", dtype, &s, [last; 2]), "depthwise");
        let odd =
            Shapes { stride: vec![1, 3], dilation: vec![2, 1], padding: vec![(2, 1), (0, 2)], ..s.clone() };
        has(&convolution("stride and dilation", dtype, &odd, [last; 2]), "depthwise");
        let far = Shapes { stride: vec![2, 1], dilation: vec![3, 4], padding: vec![(0, 0), (5, 4)], ..s };
        has(&convolution("dilation", dtype, &far, [last; 2]), "depthwise");
    }
}

#[test]
fn one_dimension() {
    for (dtype, last) in [(BF16, true), (F32, true), (F16, false), (F32, false)] {
        let line = |channels: i64, size, window: i64, stride, before| Shapes {
            counts: [2, channels, channels, channels],
            size: vec![size],
            window: vec![window],
            stride: vec![stride],
            padding: vec![(before, 0)],
            dilation: vec![1],
            transposed: false,
        };
        // Causal convolutions of state space models have this form.
        has(&convolution("causal line", dtype, &line(24, 40, 4, 1, 3), [last; 2]), "depthwise");
        has(&convolution("line", dtype, &line(6, 33, 31, 2, 15), [last; 2]), "depthwise");
    }
}

#[test]
fn three_dimensions() {
    for (dtype, last) in [(BF16, true), (F32, true), (F16, false), (F32, false)] {
        let cube = |counts: [i64; 4], stride: [i64; 3]| Shapes {
            counts,
            size: vec![4, 7, 8],
            window: vec![3, 3, 3],
            stride: stride.to_vec(),
            padding: vec![(1, 1); 3],
            dilation: vec![1; 3],
            transposed: false,
        };
        has(&convolution("cube", dtype, &cube([2, 16, 16, 16], [1, 1, 1]), [last; 2]), "depthwise");
        has(&convolution("cube, stride", dtype, &cube([1, 12, 24, 12], [2, 1, 2]), [last; 2]), "depthwise");
        let few = Shapes {
            dilation: vec![2, 1, 1],
            padding: vec![(2, 1), (1, 0), (0, 1)],
            ..cube([2, 9, 6, 3], [1, 1, 1])
        };
        has(&convolution("cube, groups", dtype, &few, [last; 2]), "depthwise");
        let back = Shapes { transposed: true, window: vec![2, 3, 3], ..cube([2, 8, 8, 8], [1, 2, 1]) };
        has(&convolution("cube, transposed", dtype, &back, [last; 2]), "depthwise");
    }
}

#[test]
fn memory_in_two_orders() {
    for dtype in [BF16, F32] {
        let s = Shapes::square([2, 16, 16, 16], [10, 16], 3);
        has(&convolution("last to first", dtype, &s, [true, false]), "depthwise_");
        has(&convolution("first to last", dtype, &s, [false, true]), "depthwise_columns");
    }
}

#[test]
fn channel_multipliers() {
    for (dtype, last) in [(BF16, true), (F32, true), (F32, false)] {
        for (inputs, outputs) in [(6, 12), (4, 16), (12, 6), (9, 6)] {
            let groups = if inputs == 9 { 3 } else { inputs.min(outputs) };
            let s = Shapes::square([2, inputs, outputs, groups], [9, 11], 3);
            has(&convolution("multiplier", dtype, &s, [last; 2]), "depthwise");
        }
    }
}

#[test]
fn transposed() {
    for (dtype, last) in [(BF16, true), (F16, false), (F32, false), (F32, true)] {
        let s = Shapes {
            stride: vec![2, 2],
            padding: vec![(1, 0), (1, 0)],
            transposed: true,
            ..Shapes::square([2, 16, 16, 16], [7, 8], 3)
        };
        has(&convolution("transposed", dtype, &s, [last; 2]), "depthwise");
        let wide =
            Shapes { window: vec![5, 7], stride: vec![3, 2], padding: vec![(2, 2), (3, 3)], ..s.clone() };
        has(&convolution("transposed, wide", dtype, &wide, [last; 2]), "depthwise");
        let narrow = Shapes { window: vec![2, 1], stride: vec![3, 2], padding: vec![(0, 0); 2], ..s.clone() };
        has(&convolution("transposed, holes", dtype, &narrow, [last; 2]), "depthwise");
        let plain = Shapes { stride: vec![1, 1], dilation: vec![2, 3], counts: [1, 4, 8, 4], ..s.clone() };
        has(&convolution("transposed, stride 1", dtype, &plain, [last; 2]), "depthwise");
        // With both a stride and a dilation the rows are computed separately.
        let apart = Shapes { dilation: vec![3, 3], ..s };
        has(&convolution("transposed, dilated", dtype, &apart, [last; 2]), "phases_depthwise");
    }
}

/// The gradient to the weight of `s` in the form of the gradient rule: a convolution over the batch, rows and columns.
fn gradient(name: &str, dtype: DType, s: &Shapes, last: bool) {
    let [n, inputs, outputs, _] = s.counts;
    let spatial = s.size.len();
    let mut case = Case::new(&format!("{name}, channels last {last}"), dtype);
    let out: Vec<i64> = (0..spatial).map(|d| s.out(d)).collect();
    // [n, c, …] as [1, c, n, …], and the cotangents as [c, 1, n, …].
    let strides = |c: i64, size: &[i64]| channels(&[&[n, c], size].concat(), last);
    let (of_x, of_g) = (strides(inputs, &s.size), strides(outputs, &out));
    let (mut xs, mut gs) = (of_x, of_g);
    xs.swap(0, 1);
    xs.insert(0, 1);
    gs.swap(0, 1);
    gs.insert(1, 1);
    let (input, weight) = ([&[1, inputs, n], &s.size[..]].concat(), [&[outputs, 1, n], &out[..]].concat());
    let transposed = Shapes {
        counts: [1, inputs, outputs, inputs],
        size: input[2..].to_vec(),
        window: weight[2..].to_vec(),
        stride: [&[1], &s.dilation[..]].concat(),
        dilation: [&[1], &s.stride[..]].concat(),
        padding: [&[(0, 0)], &s.padding[..]].concat(),
        transposed: false,
    };
    // Positions beyond the weight's window are not part of the result.
    let ranges: Vec<i64> = [1, outputs, 1].into_iter().chain(s.window.iter().copied()).collect();
    let os = dense(&ranges, &(0..ranges.len()).collect::<Vec<_>>());
    let (x, g) = (case.operand(dtype, &input, &xs), case.operand(dtype, &weight, &gs));
    let epilogue =
        case.finish(dtype, &ranges, &os, 1, |i, data| transposed.sum(i, (&data[0], &xs), (&data[1], &gs)));
    assert_eq!(epilogue.ranges, shape(&ranges));
    let names = run(case, &transposed, (x, g), epilogue);
    has(&names, "depthwise_sums");
}

#[test]
fn gradients_to_weights() {
    for (dtype, last) in [(BF16, true), (F32, true), (F16, false), (F32, false)] {
        gradient("3x3", dtype, &Shapes::square([3, 24, 24, 24], [9, 16], 3), last);
        gradient("7x7", dtype, &Shapes::square([2, 20, 20, 20], [14, 11], 7), last);
        gradient("11x11", dtype, &Shapes::square([1, 4, 4, 4], [12, 24], 11), last);
        let strided = Shapes { stride: vec![2, 2], ..Shapes::square([2, 16, 16, 16], [15, 17], 5) };
        gradient("stride", dtype, &strided, last);
        let dilated = Shapes { dilation: vec![2, 3], padding: vec![(1, 0), (3, 2)], ..strided };
        gradient("stride and dilation", dtype, &dilated, last);
        gradient("multiplier", dtype, &Shapes::square([2, 4, 12, 4], [8, 8], 3), last);
        let line = Shapes {
            counts: [2, 8, 8, 8],
            size: vec![40],
            window: vec![4],
            stride: vec![1],
            padding: vec![(3, 0)],
            dilation: vec![1],
            transposed: false,
        };
        gradient("line", dtype, &line, last);
    }
}

#[test]
fn matrix_cores() {
    for dtype in [BF16, F16] {
        let line = |size, window: i64, before| Shapes {
            counts: [5, 24, 24, 24],
            size: vec![size],
            window: vec![window],
            stride: vec![1],
            padding: vec![(before, window - 1 - before)],
            dilation: vec![1],
            transposed: false,
        };
        let dilated = Shapes {
            dilation: vec![1, 2],
            padding: vec![(0, 0), (5, 4)],
            ..Shapes::square([2, 16, 16, 16], [21, 30], 5)
        };
        let back = Shapes { padding: vec![(1, 0), (4, 2)], transposed: true, ..dilated.clone() };
        let flat = Shapes { window: vec![2, 13], padding: vec![(1, 0), (7, 2)], ..dilated.clone() };
        for (name, s) in [
            ("many images", Shapes::square([5, 24, 24, 24], [7, 7], 7)),
            ("bands of rows", Shapes::square([1, 16, 16, 16], [35, 41], 5)),
            ("wide", Shapes::square([1, 8, 8, 8], [17, 75], 9)),
            ("more than a fragment wide", Shapes::square([1, 16, 16, 16], [9, 150], 5)),
            ("dilated", dilated),
            ("flat", flat),
            ("turned", back),
            ("line", line(50, 31, 15)),
            ("causal line", line(300, 25, 24)),
        ] {
            let names = convolution(name, dtype, &s, [true; 2]);
            let matrix = |n: &String| n.starts_with("depthwise_mma_");
            assert!(names.is_empty() || names.iter().any(matrix), "{name}: {names:?}");
        }
    }
}
