//! Depthwise convolutions of the sizes that networks have: forward, the gradient to the input of those with a stride, and the
//! gradient to the weight as the gradient rule writes it.

use ir_core::DType;

use crate::case::{Case, EpilogueKind, Window, conv, last, rows};
use crate::cases::Make;

/// Generated ways of each.
pub(crate) const CANDIDATES: usize = 16;

const BF: DType = DType::BF16;
const F32: DType = DType::F32;

/// One of two spatial dimensions, both alike, or of one.
#[derive(Clone, Copy)]
struct Depthwise {
    dtype: DType,
    batch: i64,
    channels: i64,
    size: &'static [i64],
    window: i64,
    stride: i64,
    channels_last: bool,
}

impl Depthwise {
    fn name(&self, what: &str) -> String {
        let Depthwise { dtype, batch, channels, size, window, stride, channels_last } = self;
        let order = if *channels_last { "last" } else { "first" };
        format!("{what} {dtype} {batch}x{channels}x{size:?} w{window} s{stride} {order}")
    }

    fn layout(&self, sizes: &[i64]) -> Vec<i64> {
        if self.channels_last { last(sizes) } else { rows(sizes) }
    }

    fn out(&self) -> Vec<i64> {
        let pad = self.window / 2;
        self.size.iter().map(|n| (n + 2 * pad - self.window) / self.stride + 1).collect()
    }

    fn of(&self, size: &[i64]) -> Vec<i64> {
        [&[self.batch, self.channels], size].concat()
    }

    fn weight(&self) -> Vec<i64> {
        [&[self.channels, 1][..], &vec![self.window; self.size.len()]].concat()
    }

    fn forward(self, name: &str, epilogue_kind: EpilogueKind) -> Case {
        let pad = self.window / 2;
        self.case(name, (self.size, &self.out()), (pad, pad), false, epilogue_kind)
    }

    fn to_input(self, name: &str) -> Case {
        self.case(name, (&self.out(), self.size), (self.window / 2, 0), true, EpilogueKind::Plain)
    }

    /// From the first of these spatial sizes to the second one.
    fn case(
        self,
        name: &str,
        (from, to): (&[i64], &[i64]),
        padding: (i64, i64),
        transposed: bool,
        epilogue_kind: EpilogueKind,
    ) -> Case {
        let (input, weight, result) = (self.of(from), self.weight(), self.of(to));
        let spatial = self.size.len();
        let window = Window {
            input: (&input, self.layout(&input)),
            weight: (&weight, rows(&weight)),
            result: (&result, self.layout(&result)),
            stride: &vec![self.stride; spatial],
            padding: &vec![padding; spatial],
            dilation: &vec![1; spatial],
            groups: self.channels,
            transposed,
        };
        conv(name, self.dtype, false, &window, epilogue_kind)
    }

    /// A convolution over the batch, rows and columns.
    fn to_weight(self, name: &str) -> Case {
        let (x, g) = (self.of(self.size), self.of(&self.out()));
        let swap = |sizes: &[i64], place: usize| {
            let mut strides = self.layout(sizes);
            strides.swap(0, 1);
            strides.insert(place, 1);
            strides
        };
        let input = [&[1, self.channels, self.batch], self.size].concat();
        let weight = [&[self.channels, 1, self.batch], &self.out()[..]].concat();
        let result = [&[1, self.channels, 1][..], &vec![self.window; self.size.len()]].concat();
        let spatial = self.size.len();
        let window = Window {
            input: (&input, swap(&x, 0)),
            weight: (&weight, swap(&g, 1)),
            result: (&result, rows(&result)),
            stride: &vec![1; spatial + 1],
            padding: &[&[(0, 0)][..], &vec![(self.window / 2, self.window / 2); spatial]].concat(),
            dilation: &[&[1][..], &vec![self.stride; spatial]].concat(),
            groups: self.channels,
            transposed: false,
        };
        conv(name, self.dtype, false, &window, EpilogueKind::Plain)
    }
}

/// Batch, channels, size, window, stride.
const SHAPES: &[(DType, i64, i64, &[i64], i64, i64, bool)] = &[
    // ConvNeXt.
    (BF, 16, 96, &[56, 56], 7, 1, true),
    (BF, 16, 192, &[28, 28], 7, 1, true),
    (BF, 16, 384, &[14, 14], 7, 1, true),
    (BF, 16, 768, &[7, 7], 7, 1, true),
    (BF, 64, 96, &[56, 56], 7, 1, true),
    (BF, 1, 96, &[56, 56], 7, 1, true),
    (BF, 1, 384, &[14, 14], 7, 1, true),
    (F32, 16, 192, &[28, 28], 7, 1, true),
    // MobileNet, EfficientNet.
    (BF, 64, 64, &[112, 112], 3, 2, true),
    (BF, 64, 72, &[56, 56], 3, 1, true),
    (BF, 16, 240, &[28, 28], 5, 2, true),
    (BF, 64, 672, &[14, 14], 5, 1, true),
    (BF, 1, 144, &[56, 56], 3, 1, true),
    (F32, 16, 144, &[56, 56], 3, 1, true),
    // Channels first.
    (BF, 16, 96, &[56, 56], 3, 1, false),
    (BF, 16, 192, &[28, 28], 7, 1, false),
    (F32, 16, 384, &[14, 14], 5, 1, false),
    (F32, 16, 64, &[112, 112], 3, 2, false),
    // State space models, windows of large kernels.
    (BF, 2, 5120, &[2048], 4, 1, false),
    (BF, 2, 5120, &[2048], 4, 1, true),
    (BF, 8, 128, &[56, 56], 31, 1, true),
    (BF, 32, 80, &[20, 20], 9, 1, true),
];

/// The cases, made when they are run.
pub(crate) fn cases() -> Vec<(String, Make)> {
    let mut out: Vec<(String, Make)> = Vec::new();
    for &(dtype, batch, channels, size, window, stride, channels_last) in SHAPES {
        let d = Depthwise { dtype, batch, channels, size, window, stride, channels_last };
        out.push((d.name("forward"), Box::new(move |name| d.forward(name, EpilogueKind::Bias))));
        if stride > 1 {
            out.push((d.name("to input"), Box::new(move |name| d.to_input(name))));
        }
        out.push((d.name("to weight"), Box::new(move |name| d.to_weight(name))));
    }
    out
}
