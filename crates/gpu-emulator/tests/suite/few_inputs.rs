//! Convolutions of few input channels, and to few output channels, by matrix cores: every candidate, over one to three spatial dimensions, strides, dilations, paddings,
//! both memory formats of the input and uneven numbers of output channels, against sums in double precision.

use ir_core::DType;

use crate::depthwise::{Shapes, convolution, convolution_to};
use DType::{BF16, F16};

/// Checks that there are candidates for few input channels, unless there is no emulator.
fn runs(name: &str, dtype: DType, s: &Shapes, orders: [bool; 2]) {
    has("few_mma", name, dtype, s, orders);
}

fn has(kind: &str, name: &str, dtype: DType, s: &Shapes, orders: [bool; 2]) {
    let names = convolution(name, dtype, s, orders);
    assert!(names.is_empty() || names.iter().any(|n| n.starts_with(kind)), "{name}: {names:?}");
}

fn square(counts: [i64; 3], size: [i64; 2], window: i64) -> Shapes {
    Shapes::square([counts[0], counts[1], counts[2], 1], size, window)
}

#[test]
fn images() {
    for (dtype, first) in [(BF16, true), (F16, false)] {
        runs("3x3", dtype, &square([2, 3, 32], [11, 37], 3), [first, true]);
        let stem = Shapes { stride: vec![2, 2], ..square([1, 3, 64], [23, 30], 7) };
        runs("7x7, stride", dtype, &stem, [first, true]);
        let uneven = Shapes {
            stride: vec![1, 3],
            dilation: vec![3, 1],
            padding: vec![(2, 1), (0, 2)],
            ..square([3, 1, 12], [20, 20], 5)
        };
        runs("dilation", dtype, &uneven, [first, true]);
    }
}

#[test]
fn more_channels() {
    // Five to eight channels fill eight; more output channels than a block has.
    for (inputs, outputs) in [(5, 72), (8, 136), (4, 4)] {
        runs("channels", BF16, &square([1, inputs, outputs], [6, 18], 3), [true, true]);
    }
}

/// Channels beside those of the result are another's: vectors do not reach them.
#[test]
fn a_part_of_the_channels() {
    let s = square([2, 3, 12], [5, 9], 3);
    let names = convolution_to("twelve of sixteen", BF16, &s, true, &[5 * 9 * 16, 1, 9 * 16, 16]);
    assert!(names.is_empty() || names.iter().any(|n| n.starts_with("few_mma")), "{names:?}");
    // All other dimensions are of size 1, so that no stride says how many channels there are.
    let single = Shapes { padding: vec![(0, 0); 2], ..square([1, 3, 10], [4, 4], 4) };
    convolution_to("ten", BF16, &single, true, &[10, 1, 10, 10]);
}

#[test]
fn sounds_and_volumes() {
    let line = Shapes {
        size: vec![300],
        window: vec![10],
        stride: vec![5],
        padding: vec![(0, 3)],
        dilation: vec![1],
        ..square([2, 1, 40], [1, 1], 1)
    };
    runs("line", BF16, &line, [false, true]);
    let volume = Shapes {
        size: vec![5, 7, 9],
        window: vec![3, 3, 2],
        stride: vec![2, 1, 1],
        padding: vec![(1, 1), (2, 0), (0, 1)],
        dilation: vec![1, 2, 1],
        ..square([2, 2, 16], [1, 1], 1)
    };
    runs("volume", F16, &volume, [true, true]);
}

#[test]
fn few_outputs() {
    let to = |name: &str, dtype, s: &Shapes, last| has("few_outputs", name, dtype, s, [true, last]);
    to("3x3", BF16, &square([2, 64, 3], [11, 37], 3), false);
    to("channels last", F16, &square([1, 32, 8], [9, 20], 3), true);
    // Several chunks of channels, and a window with holes.
    let dilated =
        Shapes { dilation: vec![2, 1], padding: vec![(1, 2), (0, 3)], ..square([1, 192, 1], [12, 17], 3) };
    to("dilation", BF16, &dilated, false);
    let apart = Shapes { stride: vec![2, 3], ..square([3, 16, 5], [13, 40], 3) };
    to("stride", BF16, &apart, true);
    let line = Shapes {
        size: vec![300],
        window: vec![7],
        stride: vec![1],
        padding: vec![(3, 3)],
        dilation: vec![1],
        ..square([2, 48, 1], [1, 1], 1)
    };
    to("line", F16, &line, false);
    let volume = Shapes {
        size: vec![4, 6, 9],
        window: vec![3, 1, 3],
        stride: vec![1, 1, 1],
        padding: vec![(1, 1), (0, 0), (1, 1)],
        dilation: vec![1, 1, 1],
        ..square([1, 32, 4], [1, 1], 1)
    };
    to("volume", BF16, &volume, true);
}
