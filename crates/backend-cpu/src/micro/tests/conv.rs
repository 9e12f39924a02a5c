//! Convolutions of every kind: direct, grouped, depthwise, few channels, copied layouts, three dimensions.

use super::super::{Blocks, ConvPlan, ConvShape, Lines, MicroError, Strides5};
use super::*;

/// Layouts of a tensor: channels last, channels first, channels last with gaps between pixels, channels first with gaps.
fn strides(layout: usize, c: usize, [d, h, w]: [usize; 3]) -> Strides5 {
    match layout {
        0 => Strides5::channels_last(c, [d, h, w]),
        1 => Strides5::contiguous(c, [d, h, w]),
        2 => Strides5 { c: 1, ..Strides5::channels_last(c + 3, [d, h, w]) },
        _ => Strides5::contiguous(c, [d, h + 1, w + 2]),
    }
}

fn at(s: &Strides5, n: usize, c: usize, p: [usize; 3]) -> usize {
    let [d, h, w] = p.map(|x| x as isize);
    (n as isize * s.n + c as isize * s.c + d * s.d + h * s.h + w * s.w) as usize
}

fn len(s: &Strides5, n: usize, c: usize, size: [usize; 3]) -> usize {
    at(s, n - 1, c - 1, size.map(|x| x - 1)) + 1
}

fn reference(
    s: &ConvShape,
    x: &dyn Fn(usize, usize, [usize; 3]) -> f32,
    w: &[f32],
    n: usize,
    o: usize,
    p: [usize; 3],
) -> Sum {
    let (ci, co) = (s.in_channels / s.groups, s.out_channels / s.groups);
    let taps = s.kernel.iter().product::<usize>();
    let mut sum = Sum::default();
    for t in 0..taps {
        let k = [t / s.kernel[2] / s.kernel[1], t / s.kernel[2] % s.kernel[1], t % s.kernel[2]];
        let mut q = [0; 3];
        let inside = (0..3).all(|i| {
            let v = (p[i] * s.stride[i] + k[i] * s.dilation[i]) as isize - s.pad_lo[i] as isize;
            q[i] = v.max(0) as usize;
            v >= 0 && (v as usize) < s.input[i]
        });
        if inside {
            (0..ci).for_each(|c| sum.add(x(n, o / co * ci + c, q), w[(o * ci + c) * taps + t]));
        }
    }
    sum
}

/// How a convolution gets its weights.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Given {
    Packed,
    Transformed,
    /// As they lie: dense, with the outputs inside, with the channels inside, or with exchanged outputs and channels and a reversed window (as
    /// gradients to inputs have them).
    Plain(usize),
}

/// Packed weights, and weights as they lie.
fn check(isa: Isa, s: ConvShape, layouts: [usize; 2], kind: usize) {
    check_given(isa, s, layouts, kind, Given::Packed);
    check_given(isa, s, layouts, kind, Given::Plain((layouts[0] + kind) % 4));
}

/// A dense weight `[O, C, taps]` in another order, with the place and strides of its first element.
fn laid(
    w: &[f32],
    [o, c]: [usize; 2],
    [kd, kh, kw]: [usize; 3],
    order: usize,
) -> (Vec<f32>, usize, [isize; 5]) {
    let taps = kd * kh * kw;
    let [so, sc, st] = match order {
        0 => [c * taps, taps, 1],
        1 => [1, o, o * c],
        2 => [c * taps, 1, c],
        _ => [taps, o * taps, 1],
    };
    let mut out = vec![0.0; w.len()];
    for (i, value) in w.iter().enumerate() {
        let (tap, channel, output) = (i % taps, i / taps % c, i / taps / c);
        let tap = if order == 3 { taps - 1 - tap } else { tap };
        out[output * so + channel * sc + tap * st] = *value;
    }
    let (first, sign) = if order == 3 { ((taps - 1) * st, -1) } else { (0, 1) };
    let spatial = [kh * kw, kw, 1].map(|n| sign * (n * st) as isize);
    (out, first, [so as isize, sc as isize, spatial[0], spatial[1], spatial[2]])
}

fn check_given(isa: Isa, s: ConvShape, layouts: [usize; 2], kind: usize, given: Given) {
    let what = format!("{isa:?} {s:?} layouts {layouts:?} kind {kind} {given:?}");
    let transformed = given == Given::Transformed;
    let out = s.output().unwrap();
    let xs = strides(layouts[0], s.in_channels, s.input);
    let ys = strides(layouts[1], s.out_channels, out);
    let pixels: usize = out.iter().product();
    let plan = ConvPlan::new(isa, s, xs, ys).unwrap();
    assert_eq!(plan.pixels(), pixels);
    let x = random(3, len(&xs, s.batch, s.in_channels, s.input));
    let taps: usize = s.kernel.iter().product();
    let ci = s.in_channels / s.groups;
    let w = random(4, s.out_channels * ci * taps);
    let mut y = vec![9.0f32; len(&ys, s.batch, s.out_channels, out)];
    let epilogue = TestEpilogue::new(kind, s.batch, pixels, s.out_channels);
    let counter = Counter::new(s.batch, pixels, s.out_channels);
    let visit = |block: &EpilogueBlock| counter.visit(block);
    let (kh, kw) = (s.kernel[1] as isize, s.kernel[2] as isize);
    // SAFETY: the buffers are as large as the strides say.
    unsafe {
        let strides = [(ci * taps) as isize, taps as isize, kh * kw, kw, 1];
        let e = Epilogue { hook: hook(&visit), ..epilogue.borrow() };
        if let Given::Plain(order) = given {
            let (plain, first, strides) = laid(&w, [s.out_channels, ci], s.kernel, order);
            plan.run_with(x.as_ptr(), (plain[first..].as_ptr(), strides), y.as_mut_ptr(), &e).unwrap();
        } else {
            let weights = match transformed {
                true => plan.pack_transformed(w.as_ptr(), strides).expect("it has transformed weights"),
                false => plan.pack_weights(w.as_ptr(), strides),
            };
            assert!(weights.bytes() >= w.len() * 4);
            plan.run(x.as_ptr(), &weights, y.as_mut_ptr(), &e).unwrap();
        }
    }
    counter.assert_once(&what);
    // What the other pixels of a transformed tile add to a pixel cancels but for roundings: its error follows the largest sum of
    // magnitudes of an image.
    let least = |n: usize, o: usize| {
        let sum = |i: usize| {
            let p = [i / out[2] / out[1], i / out[2] % out[1], i % out[2]];
            let mut sum = reference(&s, &|n, c, p| x[at(&xs, n, c, p)], &w, n, o, p);
            epilogue.apply(&mut sum, n, i, o);
            sum.bound()
        };
        if transformed { 2.0 * (0..pixels).map(sum).fold(0.0, f64::max) } else { 0.0 }
    };
    for n in 0..s.batch {
        for o in 0..s.out_channels {
            let least = least(n, o);
            for i in 0..pixels {
                let p = [i / out[2] / out[1], i / out[2] % out[1], i % out[2]];
                let mut sum = reference(&s, &|n, c, p| x[at(&xs, n, c, p)], &w, n, o, p);
                epilogue.apply(&mut sum, n, i, o);
                assert_within(
                    y[at(&ys, n, o, p)] / 2.0,
                    &sum,
                    sum.bound().max(least),
                    &format!("{what} ({n}, {o}, {p:?})"),
                );
            }
        }
    }
}

fn shape(batch: usize, c: usize, input: [usize; 3], o: usize, kernel: [usize; 3]) -> ConvShape {
    ConvShape { input, kernel, ..ConvShape::conv2d(batch, c, [1, 1], o, [1, 1]) }
}

/// Shapes of every kind; `pad_lo` and `pad_hi` differ where they can.
fn shapes() -> Vec<ConvShape> {
    let same = |k: usize| ([0, k / 2, k / 2], [0, k / 2, k / 2]);
    let pad = |s: ConvShape, (pad_lo, pad_hi): ([usize; 3], [usize; 3])| ConvShape { pad_lo, pad_hi, ..s };
    vec![
        pad(shape(1, 16, [1, 7, 7], 33, [1, 3, 3]), same(3)),
        pad(shape(2, 13, [1, 9, 6], 17, [1, 3, 3]), ([0, 1, 0], [0, 0, 2])),
        shape(1, 31, [1, 5, 5], 64, [1, 1, 1]),
        shape(3, 64, [1, 4, 4], 7, [1, 1, 1]),
        ConvShape { stride: [1, 2, 2], ..shape(1, 32, [1, 9, 7], 31, [1, 1, 1]) },
        ConvShape { stride: [1, 2, 2], ..shape(1, 1024, [1, 8, 8], 40, [1, 1, 1]) },
        shape(1, 1024, [1, 4, 5], 40, [1, 1, 1]),
        ConvShape { stride: [1, 2, 3], ..pad(shape(1, 10, [1, 13, 17], 20, [1, 3, 5]), same(3)) },
        ConvShape { dilation: [1, 2, 3], ..pad(shape(1, 9, [1, 13, 17], 12, [1, 3, 3]), same(5)) },
        ConvShape { groups: 3, ..pad(shape(2, 12, [1, 7, 5], 9, [1, 3, 3]), same(3)) },
        ConvShape { groups: 2, ..shape(1, 66, [1, 3, 3], 70, [1, 1, 1]) },
        // Depthwise, and a channel multiplier of 2.
        ConvShape { groups: 33, ..pad(shape(2, 33, [1, 9, 11], 33, [1, 3, 3]), same(3)) },
        ConvShape { groups: 16, stride: [1, 2, 2], ..pad(shape(1, 16, [1, 14, 23], 16, [1, 5, 5]), same(5)) },
        ConvShape {
            groups: 17,
            dilation: [1, 2, 2],
            ..pad(shape(1, 17, [1, 9, 20], 17, [1, 3, 3]), ([0, 0, 3], [0, 2, 1]))
        },
        ConvShape { groups: 20, ..pad(shape(1, 20, [1, 7, 16], 20, [1, 7, 7]), same(7)) },
        ConvShape { groups: 20, stride: [1, 2, 2], ..pad(shape(1, 20, [1, 8, 15], 20, [1, 3, 3]), same(3)) },
        ConvShape { groups: 5, ..pad(shape(1, 5, [1, 6, 6], 10, [1, 3, 3]), same(3)) },
        // Few channels: rows of the window.
        ConvShape { stride: [1, 2, 2], ..pad(shape(1, 3, [1, 23, 21], 24, [1, 7, 7]), same(7)) },
        ConvShape {
            stride: [1, 2, 2],
            ..pad(shape(2, 3, [1, 12, 10], 16, [1, 3, 3]), ([0, 0, 0], [0, 1, 1]))
        },
        ConvShape { stride: [1, 4, 4], ..shape(1, 3, [1, 16, 16], 33, [1, 4, 4]) },
        ConvShape { stride: [1, 8, 8], ..shape(1, 3, [1, 24, 16], 33, [1, 8, 8]) },
        pad(shape(3, 1, [1, 8, 8], 32, [1, 3, 3]), same(3)),
        ConvShape { dilation: [1, 2, 2], ..pad(shape(1, 3, [1, 12, 12], 5, [1, 3, 3]), same(5)) },
        // One dimension and three.
        pad(shape(1, 24, [1, 1, 50], 31, [1, 1, 10]), ([0, 0, 4], [0, 0, 5])),
        ConvShape { stride: [1, 1, 5], ..shape(1, 1, [1, 1, 100], 33, [1, 1, 10]) },
        ConvShape { stride: [2, 1, 2], ..pad(shape(1, 8, [5, 6, 7], 18, [3, 3, 3]), ([1, 1, 1], [1, 1, 1])) },
        ConvShape { groups: 8, ..pad(shape(1, 8, [4, 5, 6], 8, [3, 3, 3]), ([1, 1, 1], [1, 1, 1])) },
        ConvShape { stride: [1, 2, 2], ..pad(shape(1, 3, [4, 9, 9], 16, [3, 7, 7]), ([1, 3, 3], [1, 3, 3])) },
        // More kernel positions than bits of a validity mask; k in several pieces.
        pad(shape(1, 9, [1, 12, 12], 8, [1, 9, 9]), same(9)),
        pad(shape(1, 200, [1, 5, 5], 40, [1, 3, 3]), same(3)),
        pad(shape(1, 600, [1, 3, 3], 40, [1, 3, 3]), same(3)),
    ]
}

#[test]
fn convolutions_match_f64_in_every_layout() {
    for isa in isas() {
        for (i, s) in shapes().into_iter().enumerate() {
            for (layouts, kind) in
                [([0, 0], i % 8), ([1, 1], (i + 3) % 8), ([2, 2], (i + 5) % 8), ([3, 3], (i + 6) % 8)]
            {
                check(isa, s, layouts, kind);
            }
        }
    }
}

/// Shapes drawn from small sizes, every field independent.
fn drawn(count: usize) -> Vec<ConvShape> {
    let mut values = random(17, count * 256).into_iter();
    let mut pick = move |n: usize| ((values.next().unwrap() + 1.0) / 2.0 * n as f32) as usize % n;
    let mut shapes = Vec::new();
    while shapes.len() < count {
        let groups = [1, 1, 2, 3, 8, 20][pick(6)];
        let per = [1, 1, 2, 5, 17][pick(5)];
        let mut s = shape(1 + pick(2), groups * per, [1; 3], groups * [1, per, 3, 7][pick(4)], [1; 3]);
        s.groups = groups;
        for i in 0..3 {
            let flat = i == 0 && pick(4) > 0;
            s.input[i] = if flat { 1 } else { 1 + pick(16) };
            s.kernel[i] = if flat { 1 } else { [1, 2, 3, 3, 5, 7, 9][pick(7)] };
            s.stride[i] = [1, 1, 2, 3][pick(4)];
            s.dilation[i] = [1, 1, 1, 2][pick(4)];
            s.pad_lo[i] = if flat { 0 } else { pick(s.kernel[i] + 1) };
            s.pad_hi[i] = if flat { 0 } else { pick(s.kernel[i] + 1) };
        }
        let work = s.input.iter().product::<usize>() * s.in_channels * s.out_channels / groups * s.taps();
        if s.output().is_ok() && work < 4 << 20 {
            shapes.push(s);
        }
    }
    shapes
}

/// Images of few pixels, several of them, and windows as large as gradients to weights have: sums of outer products.
#[test]
fn sums_of_outer_products_match_f64() {
    let wide = |s: ConvShape, pad: usize| ConvShape { pad_lo: [0, pad, pad], pad_hi: [0, pad, pad], ..s };
    let gradient = |images: usize, c: usize, input: usize, o: usize, output: usize, step: usize| ConvShape {
        dilation: [1, step, step],
        ..wide(shape(c, images, [1, input, input], o, [1, output, output]), 1)
    };
    let shapes = [
        wide(shape(16, 40, [1, 2, 2], 65, [1, 3, 3]), 1),
        wide(shape(15, 130, [1, 3, 3], 33, [1, 3, 3]), 1),
        ConvShape { stride: [1, 2, 2], ..wide(shape(29, 9, [1, 5, 4], 31, [1, 3, 3]), 1) },
        ConvShape { dilation: [1, 2, 2], ..wide(shape(17, 5, [1, 4, 4], 7, [1, 3, 3]), 2) },
        gradient(3, 19, 9, 40, 9, 1),
        gradient(2, 3, 20, 33, 20, 1),
        gradient(5, 13, 10, 8, 5, 2),
        // Passes over columns of one line, over several lines, and channels in several pieces.
        gradient(40, 3, 30, 9, 30, 1),
        ConvShape { dilation: [1, 19, 19], ..shape(2, 100, [1, 60, 60], 5, [1, 4, 4]) },
        shape(30, 24, [3, 3, 3], 20, [3, 3, 3]),
    ];
    let mut taken = 0;
    for isa in isas() {
        for (i, s) in shapes.into_iter().enumerate() {
            for (layouts, kind) in [([0, 0], i % 8), ([1, 1], (i + 3) % 8), ([2, 3], (i + 5) % 8)] {
                let ys = strides(layouts[1], s.out_channels, s.output().unwrap());
                let xs = strides(layouts[0], s.in_channels, s.input);
                taken += usize::from(ConvPlan::new(isa, s, xs, ys).unwrap().sums_of_outer_products());
                check_given(isa, s, layouts, kind, Given::Plain(i % 4));
            }
        }
    }
    // What is tested must be what runs: nearly all of these shapes.
    assert!(taken >= isas().len() * 3 * (shapes.len() - 2), "{taken}");
}

/// Shapes drawn with many images of few pixels, and with windows of most of the input.
#[test]
fn drawn_weight_gradients_match_f64() {
    let mut values = random(23, 4096).into_iter();
    let mut pick = move |n: usize| ((values.next().unwrap() + 1.0) / 2.0 * n as f32) as usize % n;
    let mut tried = 0;
    while tried < 100 {
        let mut s = shape(1 + pick(40), 1 + pick(20), [1; 3], 1 + pick(70), [1; 3]);
        for i in 1..3 {
            s.dilation[i] = [1, 1, 2, 3][pick(4)];
            s.stride[i] = [1, 1, 2][pick(3)];
            s.kernel[i] = 1 + pick(9);
            s.input[i] = (s.kernel[i] * s.dilation[i] + pick(3)).max(2) - pick(2);
            s.pad_lo[i] = pick(3);
            s.pad_hi[i] = pick(3);
        }
        if s.output().is_err() {
            continue;
        }
        let isas = isas();
        let (layouts, kind) = ([tried % 4, tried / 4 % 4], tried % 8);
        check_given(isas[tried % isas.len()], s, layouts, kind, Given::Plain(tried / 2 % 4));
        tried += 1;
    }
}

/// Adds a block's values, each at the place that its row and column have.
fn record(to: &Mutex<Vec<f32>>, block: &EpilogueBlock, place: impl Fn(usize, usize) -> usize) {
    let mut to = to.lock().unwrap();
    for row in block.row0..block.row1 {
        for col in block.col0..block.col1 {
            // SAFETY: the block has these rows and columns.
            to[place(row, col)] +=
                unsafe { *block.ptr.add((row - block.row0) * block.row_stride + col - block.col0) };
        }
    }
}

/// Without an output the hook reads all results, whatever computes them.
#[test]
fn results_without_an_output_reach_the_hook() {
    let padded = |s: ConvShape| ConvShape { pad_lo: [0, 1, 1], pad_hi: [0, 1, 1], ..s };
    let shapes = [
        padded(shape(3, 16, [1, 9, 9], 40, [1, 3, 3])),
        padded(shape(20, 16, [1, 2, 2], 40, [1, 3, 3])),
        ConvShape { groups: 12, ..padded(shape(2, 12, [1, 6, 6], 12, [1, 3, 3])) },
    ];
    for s in shapes {
        let (out, c, o) = (s.output().unwrap(), s.in_channels, s.out_channels);
        let st = Strides5::channels_last(o, out);
        let plan = ConvPlan::new(Isa::best(), s, Strides5::channels_last(c, s.input), st).unwrap();
        let x = random(5, s.batch * c * s.input.iter().product::<usize>());
        let (taps, pixels) = (s.taps(), plan.pixels());
        let w = random(6, o * c / s.groups * taps);
        let strides = [(c / s.groups * taps) as isize, taps as isize, 9, 3, 1];
        let mut direct = vec![0.0f32; s.batch * pixels * o];
        let (x, w) = (x.as_ptr(), (w.as_ptr(), strides));
        let none = std::ptr::null_mut();
        // SAFETY: the buffers are as large as the shape says.
        unsafe {
            plan.run_with(x, w, direct.as_mut_ptr(), &Epilogue::default()).unwrap();
            let refused = plan.run_with(x, w, none, &Epilogue::default());
            assert!(matches!(refused, Err(MicroError::Unsupported(_))));
        }
        let forms = [
            (Blocks::Wide, None),
            (Blocks::Tall, Some(pixels)),
            (Blocks::Tall, Some(out[2])),
            (Blocks::Joined, None),
        ];
        for (blocks, line) in forms {
            let seen = Mutex::new(vec![0.0f32; s.batch * pixels * o]);
            let wide = |block: &EpilogueBlock| {
                record(&seen, block, |row, col| (block.batch * pixels + row) * o + col)
            };
            let tall = |block: &EpilogueBlock| {
                record(&seen, block, |row, col| (block.batch * line.unwrap_or(0) + col) * o + row)
            };
            let turned = |block: &EpilogueBlock| {
                // SAFETY: the block is this call's own.
                unsafe { Lines { rows: pixels, line }.call(&Hook::Closure(&tall), block) }
            };
            let hook =
                Some(if blocks == Blocks::Wide { Hook::Closure(&wide) } else { Hook::Closure(&turned) });
            let e = Epilogue { hook, blocks, ..Epilogue::default() };
            // SAFETY: the buffers are as large as the shape says.
            unsafe { plan.run_with(x, w, none, &e).unwrap() };
            assert_eq!(direct, *seen.lock().unwrap(), "{s:?} {blocks:?} {line:?}");
        }
    }
}

#[test]
fn drawn_convolutions_match_f64() {
    for (i, s) in drawn(150).into_iter().enumerate() {
        let isas = isas();
        check(isas[i % isas.len()], s, [i % 4, i / 4 % 4], i % 8);
    }
}

/// Windows of 3×3 in tiles of 4×4: images that tiles fit and do not fit, edges on each side, several images in a tile of registers,
/// several panels of columns, and a last vector that is not full.
#[test]
fn transformed_tiles_match_f64() {
    let padded =
        |s: ConvShape, lo: usize, hi: usize| ConvShape { pad_lo: [0, lo, hi], pad_hi: [0, hi, lo], ..s };
    let shapes = [
        padded(shape(1, 16, [1, 8, 8], 33, [1, 3, 3]), 1, 1),
        padded(shape(2, 13, [1, 9, 6], 17, [1, 3, 3]), 1, 0),
        padded(shape(5, 40, [1, 2, 2], 7, [1, 3, 3]), 1, 1),
        padded(shape(1, 19, [1, 1, 5], 70, [1, 3, 3]), 2, 2),
        shape(3, 64, [1, 7, 11], 32, [1, 3, 3]),
        padded(shape(1, 200, [1, 14, 14], 40, [1, 3, 3]), 1, 1),
        padded(shape(1, 9, [1, 61, 130], 80, [1, 3, 3]), 1, 1),
    ];
    for isa in isas() {
        for (i, s) in shapes.into_iter().enumerate() {
            for (layouts, kind) in [([0, 0], i % 8), ([1, 1], (i + 3) % 8), ([2, 3], (i + 5) % 8)] {
                check_given(isa, s, layouts, kind, Given::Transformed);
            }
        }
    }
}

/// Which weights are transformed is known from the shape, and a plan of other convolutions refuses them.
#[test]
fn transformed_weights_are_for_their_convolution() {
    let plan = |s: ConvShape| {
        let st = |c, size| Strides5::channels_last(c, size);
        ConvPlan::new(Isa::best(), s, st(s.in_channels, s.input), st(s.out_channels, s.output().unwrap()))
            .unwrap()
    };
    let large = shape(1, 64, [1, 58, 58], 64, [1, 3, 3]);
    let strided = ConvShape { stride: [1, 2, 2], ..large };
    let w = random(1, 64 * 64 * 9);
    let strides = [64 * 9, 9, 9, 3, 1];
    // SAFETY: the weight is as large as the shape says; the plan that refuses it reads nothing.
    unsafe {
        assert!(plan(large).pack_constant(w.as_ptr(), strides).is_winograd());
        let few = shape(1, 64, [1, 4, 4], 64, [1, 3, 3]);
        assert!(!plan(few).pack_constant(w.as_ptr(), strides).is_winograd());
        assert!(plan(strided).pack_transformed(w.as_ptr(), strides).is_none());
        let weights = plan(large).pack_constant(w.as_ptr(), strides);
        let mut y = vec![0.0f32; 64 * 28 * 28];
        let refused = plan(strided).run(w.as_ptr(), &weights, y.as_mut_ptr(), &Epilogue::default());
        assert!(matches!(refused, Err(MicroError::Unsupported(_))));
    }
}

#[test]
fn plan_is_reused_for_other_data() {
    let s = ConvShape { pad_lo: [0, 1, 1], pad_hi: [0, 1, 1], ..shape(1, 8, [1, 4, 4], 8, [1, 3, 3]) };
    let st = Strides5::channels_last(8, [1, 4, 4]);
    let plan = ConvPlan::new(Isa::best(), s, st, st).unwrap();
    let w = random(1, 8 * 8 * 9);
    let (zero, one) = (vec![0.0f32; 128], vec![1.0f32; 128]);
    let (mut y0, mut y1) = (vec![5.0f32; 128], vec![5.0f32; 128]);
    // SAFETY: the buffers are as large as the shape says.
    unsafe {
        let weights = plan.pack_weights(w.as_ptr(), [72, 9, 9, 3, 1]);
        plan.run(one.as_ptr(), &weights, y1.as_mut_ptr(), &Epilogue::default()).unwrap();
        plan.run(zero.as_ptr(), &weights, y0.as_mut_ptr(), &Epilogue::default()).unwrap();
    }
    assert!(y0.iter().all(|v| *v == 0.0) && y1.iter().any(|v| *v != 0.0));
}

#[test]
fn bad_shapes_are_refused() {
    let s = shape(1, 4, [1, 2, 2], 4, [1, 3, 3]);
    assert!(matches!(s.output(), Err(MicroError::Invalid { what: "convolution kernel span", .. })));
    assert!(ConvShape { groups: 3, ..shape(1, 4, [1, 5, 5], 4, [1, 3, 3]) }.output().is_err());
    assert!(ConvShape { stride: [1, 0, 1], ..shape(1, 4, [1, 5, 5], 4, [1, 3, 3]) }.output().is_err());
    assert!(ConvShape { groups: 0, ..shape(1, 4, [1, 5, 5], 4, [1, 3, 3]) }.output().is_err());
}

/// A depthwise convolution whose input a product makes line by line gives the bits of both one after the other: windows of every known width and
/// others, strides, padding on one side, images of few and many lines, an epilogue in registers and a hook.
#[test]
fn lines_that_are_made_give_the_same_bits() {
    let mut seed = 31;
    let mut draw = |list: &[usize]| {
        seed += 1;
        list[((random(seed, 8)[7] + 1.0) * list.len() as f32 / 2.0) as usize % list.len()]
    };
    for n in 0..60 {
        let (batch, c) = (draw(&[1, 2, 3]), draw(&[3, 16, 40, 70]));
        let (h, w) = (draw(&[1, 5, 19, 64]), draw(&[4, 7, 23, 40]));
        let (kernel, stride) = (draw(&[1, 3, 5, 7, 9, 4]), draw(&[1, 2, 3]));
        let dilation = draw(&[1, 1, 2]);
        let reach = (kernel - 1) * dilation;
        let widen = shape(batch, draw(&[5, 16, 24]), [1, h, w], c, [1; 3]);
        let (high, wide) = (draw(&[1, 2, kernel]), draw(&[1, kernel]));
        let filter = ConvShape {
            groups: c,
            stride: [1, stride, draw(&[1, 2])],
            dilation: [1, dilation, dilation],
            pad_lo: [0, reach.div_ceil(2), reach],
            pad_hi: [0, reach, reach.div_ceil(2)],
            ..shape(batch, c, [1, h, w], c, [1, high, wide])
        };
        let isas = isas();
        let isa = isas[n % isas.len()];
        let rows = |c: usize, size: [usize; 3]| Strides5::channels_last(c, size);
        let out = filter.output().unwrap();
        let between = rows(c, filter.input);
        let first = ConvPlan::new(isa, widen, rows(widen.in_channels, widen.input), between).unwrap();
        let second = ConvPlan::new(isa, filter, between, rows(c, out)).unwrap();
        assert!(first.makes_pixels() && second.takes_lines());
        let x = random(41, batch * widen.in_channels * h * w);
        let (a, b) = (random(42, c * widen.in_channels), random(43, c * filter.taps()));
        let shift = random(44, c);
        let relu = Epilogue { shift: Some(&shift), activation: Activation::Relu, ..Epilogue::default() };
        let doubled = |block: &EpilogueBlock| {
            for row in 0..block.row1 - block.row0 {
                for col in 0..block.col1 - block.col0 {
                    // SAFETY: the block has these rows and columns.
                    unsafe { *block.ptr.add(row * block.row_stride + col) *= 2.0 };
                }
            }
        };
        let after = Epilogue { hook: Some(Hook::Closure(&doubled)), ..relu };
        let line = w * c;
        let mut middle = vec![0.0f32; batch * h * line];
        let values = batch * c * out.iter().product::<usize>();
        let (mut apart, mut chained) = (vec![0.0f32; values], vec![9.0f32; values]);
        // SAFETY: the buffers are as large as the shapes say; each task makes lines in memory of its own.
        unsafe {
            let k = widen.in_channels as isize;
            let a = first.pack_weights(a.as_ptr(), [k, 1, 1, 1, 1]);
            let (taps, wide) = (filter.taps() as isize, wide as isize);
            let b = second.pack_weights(b.as_ptr(), [taps, taps, taps, wide, 1]);
            first.run(x.as_ptr(), &a, middle.as_mut_ptr(), &relu).unwrap();
            second.run(middle.as_ptr(), &b, apart.as_mut_ptr(), &after).unwrap();
            let x = x.as_ptr() as usize;
            let make = |image: usize, lines: std::ops::Range<usize>, origin: *mut f32| {
                let pixels = lines.start * w..lines.end * w;
                first.run_pixels((image, pixels), x as *const f32, &a, Some((origin, c)), &relu).unwrap();
            };
            second.run_made(&make, &b, chained.as_mut_ptr(), &after).unwrap();
            let refused = first.run_made(&make, &a, chained.as_mut_ptr(), &relu);
            assert!(matches!(refused, Err(MicroError::Unsupported(_))));
        }
        assert!(apart == chained, "{isa:?} {widen}; {filter}");
    }
}
