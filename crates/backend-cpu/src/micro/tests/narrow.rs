//! Products and convolutions of narrow numbers against plain sums: exact for integers, in double precision for `bf16`.

use std::sync::Mutex;

use half::bf16;

use crate::micro::narrow::{Narrow, NarrowConv, NarrowMatmul, NarrowWeights, matmul};
use crate::micro::{BatchDim, ConvShape, EpilogueBlock, Hook, Isa, Strides5};

/// A number that depends on its place.
pub(super) fn at(i: usize, salt: usize) -> u8 {
    (i.wrapping_mul(2_654_435_761).wrapping_add(salt * 977) >> 7) as u8
}

fn bytes(n: usize, salt: usize) -> Vec<u8> {
    (0..n).map(|i| at(i, salt)).collect()
}

/// A byte of A as a number.
fn number(numbers: Narrow, byte: u8) -> i64 {
    if numbers == Narrow::I8 { i64::from(byte.cast_signed()) } else { i64::from(byte) }
}

/// Collects blocks of 32-bit sums in `[batch, rows, columns]`; each element exactly once.
pub(super) struct Results {
    sizes: [usize; 3],
    sums: Mutex<Vec<Option<u32>>>,
}

impl Results {
    pub(super) fn new(sizes: [usize; 3]) -> Results {
        Results { sizes, sums: Mutex::new(vec![None; sizes.iter().product()]) }
    }
    pub(super) fn store(&self, block: &EpilogueBlock) {
        let mut sums = self.sums.lock().unwrap();
        for row in block.row0..block.row1 {
            for col in block.col0..block.col1 {
                let from = (row - block.row0) * block.row_stride + (col - block.col0);
                let to = (block.batch * self.sizes[1] + row) * self.sizes[2] + col;
                // SAFETY: the block has these rows and columns.
                let sum = unsafe { block.ptr.add(from).read() }.to_bits();
                assert_eq!(sums[to].replace(sum), None, "row {row}, column {col} twice");
            }
        }
    }
    pub(super) fn all(self) -> Vec<u32> {
        let sums = self.sums.into_inner().unwrap();
        sums.into_iter().enumerate().map(|(i, s)| s.unwrap_or_else(|| panic!("{i} is missing"))).collect()
    }
}

/// Whether tests look at tiles: once, and not on other architectures, which have none.
fn tiles(isa: Isa) -> bool {
    cfg!(target_arch = "x86_64") && isa == Isa::best()
}

pub(super) fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.detected())
}

#[test]
fn integer_products_are_exact() {
    let sizes = [
        (1, 1, 1),
        (7, 33, 37),
        (64, 64, 64),
        (13, 130, 256),
        (3, 16, 1000),
        (130, 48, 75),
        (17, 40, 5300),
        (31, 90, 64),
        (48, 16, 1024),
    ];
    for isa in isas() {
        for ((m, n, k), numbers, zero) in
            sizes.into_iter().flat_map(|s| [(s, Narrow::U8, 131), (s, Narrow::I8, -7), (s, Narrow::U8, 0)])
        {
            let (a, b) = (bytes(2 * m * k, 1), bytes(k * n, 2));
            // B is `[n, k]` in memory.
            let strides = [1, k as isize];
            // SAFETY: B has `k * n` elements.
            let packed = unsafe { NarrowWeights::pack((numbers, isa), b.as_ptr(), [k, n], strides, zero) };
            packed.unwrap().for_each_unit(isa, |packed| {
                let results = Results::new([2, m, n]);
                let store = |block: &EpilogueBlock| results.store(block);
                let batch = [BatchDim { size: 2, a_stride: (m * k) as isize, b_stride: 0, c_stride: 0 }];
                let call = NarrowMatmul {
                    m,
                    a: a.as_ptr(),
                    strides: [k as isize, 1],
                    b: packed,
                    batch: &batch,
                    hook: Hook::Closure(&store),
                };
                // SAFETY: A has two matrices.
                unsafe { matmul(&call) }.unwrap();
                for (i, sum) in results.all().into_iter().enumerate() {
                    let (row, col) = (i / n, i % n);
                    let term = |t: usize| {
                        let x = number(numbers, a[row * k + t]) - i64::from(zero);
                        x * i64::from(b[col * k + t].cast_signed())
                    };
                    let wanted: i64 = (0..k).map(term).sum();
                    assert_eq!(
                        i64::from(sum.cast_signed()),
                        wanted,
                        "{isa:?} {numbers:?} {m} {n} {k} at {i}"
                    );
                }
            });
        }
    }
}

#[test]
fn sums_of_integers_are_the_same_in_all_ways() {
    for isa in isas() {
        for [m, n, k] in [[3, 70, 64], [67, 200, 300], [150, 33, 4]] {
            let (a, b) = (bytes(m * k, 1), bytes(k * n, 2));
            // SAFETY: B has `k * n` elements.
            let packed =
                unsafe { NarrowWeights::pack((Narrow::U8, isa), b.as_ptr(), [k, n], [1, k as isize], 3) };
            let mut packed = packed.unwrap();
            let mut all = Vec::new();
            for way in packed.ways(isa) {
                packed.set_way(way);
                let results = Results::new([1, m, n]);
                let store = |block: &EpilogueBlock| results.store(block);
                let (strides, hook) = ([k as isize, 1], Hook::Closure(&store));
                let call = NarrowMatmul { m, a: a.as_ptr(), strides, b: &packed, batch: &[], hook };
                // SAFETY: A has `m * k` elements.
                unsafe { matmul(&call) }.unwrap();
                all.push((way, results.all()));
            }
            for (way, sums) in &all[1..] {
                assert!(*sums == all[0].1, "{isa:?} {m} {n} {k}: {way}");
            }
        }
    }
}

#[test]
fn extreme_integers_do_not_saturate() {
    let k = 4096;
    for isa in isas() {
        let (a, b) = (vec![255u8; k], vec![0x80u8; k]);
        // SAFETY: B is one column of `k` elements.
        let packed = unsafe { NarrowWeights::pack((Narrow::U8, isa), b.as_ptr(), [k, 1], [1, 1], 0) };
        packed.unwrap().for_each_unit(isa, |packed| {
            let results = Results::new([1, 1, 1]);
            let store = |block: &EpilogueBlock| results.store(block);
            let hook = Hook::Closure(&store);
            let strides = [k as isize, 1];
            let call = NarrowMatmul { m: 1, a: a.as_ptr(), strides, b: packed, batch: &[], hook };
            // SAFETY: A is one row of `k` elements.
            unsafe { matmul(&call) }.unwrap();
            assert_eq!(results.all()[0].cast_signed(), 255 * -128 * k as i32, "{isa:?}");
        });
    }
}

#[test]
fn strided_rows_are_copied() {
    let (m, n, k) = (9, 20, 31);
    let (a, b) = (bytes(m * k, 3), bytes(k * n, 4));
    for isa in isas() {
        // SAFETY: B has `k * n` elements.
        let packed =
            unsafe { NarrowWeights::pack((Narrow::U8, isa), b.as_ptr(), [k, n], [n as isize, 1], 5) };
        let results = Results::new([1, m, n]);
        let store = |block: &EpilogueBlock| results.store(block);
        let hook = Hook::Closure(&store);
        // A is `[k, m]` in memory.
        let call = NarrowMatmul {
            m,
            a: a.as_ptr(),
            strides: [1, m as isize],
            b: &packed.unwrap(),
            batch: &[],
            hook,
        };
        // SAFETY: A has `m * k` elements.
        unsafe { matmul(&call) }.unwrap();
        for (i, sum) in results.all().into_iter().enumerate() {
            let term =
                |t: usize| (i64::from(a[t * m + i / n]) - 5) * i64::from(b[t * n + i % n].cast_signed());
            assert_eq!(i64::from(sum.cast_signed()), (0..k).map(term).sum::<i64>(), "{isa:?} at {i}");
        }
    }
}

#[test]
fn sums_of_bf16_are_in_single_precision() {
    let float = |i: usize, salt: usize| bf16::from_f32((f32::from(at(i, salt)) - 128.0) / 64.0);
    for isa in isas().filter(|isa| Narrow::Bf16.is_fast(*isa)) {
        let sizes = [
            (5, 17, 3),
            (33, 96, 257),
            (2, 64, 64),
            (50, 40, 100),
            (9, 150, 30),
            (23, 33, 1),
            (49, 40, 2700),
            (1, 200, 600),
            (32, 16, 0),
        ];
        for (m, n, k) in sizes {
            let a: Vec<bf16> = (0..m * k).map(|i| float(i, 1)).collect();
            let b: Vec<bf16> = (0..n * k).map(|i| float(i, 2)).collect();
            let numbers = (Narrow::Bf16, isa);
            // SAFETY: B has `k * n` elements.
            let packed =
                unsafe { NarrowWeights::pack(numbers, b.as_ptr().cast(), [k, n], [1, k as isize], 0) };
            let check = |packed: &NarrowWeights| {
                let results = Results::new([1, m, n]);
                let store = |block: &EpilogueBlock| results.store(block);
                let hook = Hook::Closure(&store);
                let strides = [k as isize, 1];
                let call = NarrowMatmul { m, a: a.as_ptr().cast(), strides, b: packed, batch: &[], hook };
                // SAFETY: A has `m * k` elements.
                unsafe { matmul(&call) }.unwrap();
                for (i, sum) in results.all().into_iter().enumerate() {
                    let term = |t: usize| a[i / n * k + t].to_f64() * b[i % n * k + t].to_f64();
                    let (wanted, size) =
                        (0..k).map(term).fold((0.0, 0.0), |(s, m): (f64, f64), x| (s + x, m + x.abs()));
                    let got = f64::from(f32::from_bits(sum));
                    assert!((got - wanted).abs() <= 1e-5 * size + 1e-6, "{m} {n} {k}: {got} {wanted} at {i}");
                }
            };
            packed.unwrap().for_each_unit(isa, check);
        }
    }
}

#[test]
fn what_lies_behind_rows_is_not_multiplied() {
    let (m, n, k, stride) = (20, 24, 40, 48);
    for isa in isas().filter(|isa| Narrow::Bf16.is_fast(*isa)) {
        let a: Vec<bf16> = (0..m * stride)
            .map(|i| if i % stride < k { bf16::from_f32((i % 7) as f32) } else { bf16::NAN })
            .collect();
        let b = vec![bf16::ONE; n * k];
        let numbers = (Narrow::Bf16, isa);
        // SAFETY: B has `k * n` elements.
        let packed = unsafe { NarrowWeights::pack(numbers, b.as_ptr().cast(), [k, n], [1, k as isize], 0) };
        packed.unwrap().for_each_unit(isa, |packed| {
            let results = Results::new([1, m, n]);
            let store = |block: &EpilogueBlock| results.store(block);
            let hook = Hook::Closure(&store);
            let strides = [stride as isize, 1];
            let call = NarrowMatmul { m, a: a.as_ptr().cast(), strides, b: packed, batch: &[], hook };
            // SAFETY: A has `m` rows.
            unsafe { matmul(&call) }.unwrap();
            for (i, sum) in results.all().into_iter().enumerate() {
                let wanted: f32 = (0..k).map(|t| ((i / n * stride + t) % 7) as f32).sum();
                assert_eq!(f32::from_bits(sum), wanted, "at {i}");
            }
        });
    }
}

/// A product whose operands both change, with contiguous rows (true) or columns of each, by every unit that there is.
#[cfg(target_arch = "x86_64")]
fn changing(sizes: [usize; 4], rows: [bool; 2], shared: bool) {
    use crate::micro::narrow::Unit;
    changing_by(Unit::Tiles, sizes, rows, shared);
    if is_x86_feature_detected!("avx512bf16") {
        changing_by(Unit::Bf16, sizes, rows, shared);
    }
}

#[cfg(target_arch = "x86_64")]
fn changing_by(
    unit: crate::micro::narrow::Unit,
    [entries, m, n, k]: [usize; 4],
    [a_rows, b_rows]: [bool; 2],
    shared: bool,
) {
    use crate::micro::narrow::Bf16Product;
    let float = |i: usize, salt: usize| bf16::from_f32((f32::from(at(i, salt)) - 128.0) / 64.0);
    let a: Vec<bf16> = (0..entries * m * k).map(|i| float(i, 1)).collect();
    let b: Vec<bf16> = (0..entries * n * k).map(|i| float(i, 2)).collect();
    let strides = |rows: bool, [r, c]: [usize; 2]| if rows { [c as isize, 1] } else { [1, r as isize] };
    let (a_strides, b_strides) = (strides(a_rows, [m, k]), strides(b_rows, [k, n]));
    let b_stride = if shared { 0 } else { (k * n) as isize };
    let batch =
        [BatchDim { size: entries, a_stride: (m * k) as isize, b_stride, c_stride: (m * n) as isize }];
    let mut c = vec![9.0f32; entries * m * n];
    let call = Bf16Product {
        m,
        n,
        k,
        a: (a.as_ptr(), a_strides),
        b: (b.as_ptr(), b_strides),
        c: c.as_mut_ptr(),
        batch: &batch,
    };
    let words = b_strides[1] == 1 || k.is_multiple_of(2) && b.as_ptr().addr().is_multiple_of(4);
    // SAFETY: the buffers are as large as the sizes say.
    assert_eq!(unsafe { call.run_by(unit) }, words, "{entries} {m} {n} {k} {a_rows} {b_rows} {unit:?}");
    if !words {
        return;
    }
    for (i, got) in c.into_iter().enumerate() {
        let (entry, row, col) = (i / (m * n), i / n % m, i % n);
        let term = |t: usize| {
            let x = (entry * m * k) as isize + row as isize * a_strides[0] + t as isize * a_strides[1];
            let w = entry as isize * b_stride + t as isize * b_strides[0] + col as isize * b_strides[1];
            a[x as usize].to_f64() * b[w as usize].to_f64()
        };
        let (wanted, size) = (0..k).map(term).fold((0.0, 0.0), |(s, m): (f64, f64), x| (s + x, m + x.abs()));
        let close = (f64::from(got) - wanted).abs() <= 1e-5 * size + 1e-6;
        assert!(close, "{entries} {m} {n} {k} {a_rows} {b_rows} {shared} {unit:?}: {got} {wanted} at {i}");
    }
}

/// On processors without tiles the instructions are computed in plain Rust.
#[cfg(target_arch = "x86_64")]
#[test]
fn products_of_changing_bf16() {
    for layout in [[true, true], [true, false], [false, true], [false, false]] {
        for sizes in
            [[1, 33, 70, 66], [3, 17, 20, 130], [2, 5, 96, 31], [1, 1, 1, 1], [2, 3, 4, 0], [1, 300, 8, 6]]
        {
            changing(sizes, layout, false);
            changing(sizes, layout, true);
        }
    }
    // More than is packed at once: in parts of columns, and of entries.
    changing([1, 2, 8500, 520], [true, true], false);
    changing([5, 2, 3000, 520], [true, false], false);
}

/// Runs a convolution and compares all sums; `last` has channels last.
fn convolves(isa: Isa, numbers: Narrow, shape: ConvShape, last: bool, zero: i32) {
    let [d, h, w] = shape.input;
    let (c, o) = (shape.in_channels, shape.out_channels);
    let out = shape.output().unwrap();
    let input = bytes(shape.batch * c * d * h * w, 5);
    let (per_in, per_out) = (c / shape.groups, o / shape.groups);
    let [kd, kh, kw] = shape.kernel;
    let weight = bytes(o * per_in * kd * kh * kw, 6);
    let strides =
        if last { Strides5::channels_last(c, shape.input) } else { Strides5::contiguous(c, shape.input) };
    let plan = NarrowConv::new((isa, numbers), shape, strides, zero).unwrap();
    let wide = [per_in * kd * kh * kw, kd * kh * kw, kh * kw, kw, 1].map(|s| s as isize);
    // SAFETY: the weight is dense.
    let gathered = unsafe { plan.pack_for(weight.as_ptr(), wide, false) }.unwrap();
    let pixels = out.iter().product();
    // SAFETY: the weight is dense.
    let windows = unsafe { plan.pack_for(weight.as_ptr(), wide, tiles(isa)) }.unwrap();
    let check = |packed: &NarrowWeights| {
        let results = Results::new([shape.batch, pixels, o]);
        let store = |block: &EpilogueBlock| results.store(block);
        // SAFETY: the input is dense.
        unsafe { plan.run(input.as_ptr(), packed, Hook::Closure(&store)) }.unwrap();
        for (i, sum) in results.all().into_iter().enumerate() {
            let (image, pixel, channel) = (i / (pixels * o), i / o % pixels, i % o);
            let place = [pixel / (out[1] * out[2]), pixel / out[2] % out[1], pixel % out[2]];
            let mut wanted = 0;
            for t in 0..kd * kh * kw {
                let tap = [t / (kh * kw), t / kw % kh, t % kw];
                let from: Vec<isize> = (0..3)
                    .map(|d| {
                        (place[d] * shape.stride[d] + tap[d] * shape.dilation[d]) as isize
                            - shape.pad_lo[d] as isize
                    })
                    .collect();
                if from.iter().zip(shape.input).any(|(x, n)| !(0..n as isize).contains(x)) {
                    continue;
                }
                for ci in 0..per_in {
                    let at = channel / per_out * per_in + ci;
                    let x = image as isize * strides.n
                        + at as isize * strides.c
                        + from[0] * strides.d
                        + from[1] * strides.h
                        + from[2] * strides.w;
                    let x = number(numbers, input[x as usize]) - i64::from(zero);
                    wanted += x * i64::from(weight[(channel * per_in + ci) * kd * kh * kw + t].cast_signed());
                }
            }
            assert_eq!(i64::from(sum.cast_signed()), wanted, "{isa:?} {numbers:?} {shape:?} {last} at {i}");
        }
    };
    gathered.for_each_unit(isa, check);
    windows.for_each_unit(isa, check);
}

/// Images that are smaller than those that weights were packed for.
#[cfg(target_arch = "x86_64")]
#[test]
fn weights_of_windows_are_good_for_images_of_any_size() {
    let shape = |size| ConvShape {
        stride: [1, 2, 2],
        pad_lo: [0, 3, 3],
        pad_hi: [0, 3, 3],
        ..ConvShape::conv2d(1, 3, size, 8, [7, 7])
    };
    let plan = |s: ConvShape| {
        NarrowConv::new((Isa::best(), Narrow::U8), s, Strides5::channels_last(3, s.input), 7).unwrap()
    };
    let (large, small) = (shape([40, 40]), shape([6, 6]));
    let (weight, input) = (bytes(8 * 3 * 49, 1), bytes(3 * 36, 2));
    let packed = |s, windows| {
        // SAFETY: the weight is dense.
        unsafe { plan(s).pack_for(weight.as_ptr(), [147, 49, 49, 7, 1], windows) }.unwrap()
    };
    let sums = |weights: &NarrowWeights| {
        let results = Results::new([1, 9, 8]);
        let store = |block: &EpilogueBlock| results.store(block);
        // SAFETY: the input is dense.
        unsafe { plan(small).run(input.as_ptr(), weights, Hook::Closure(&store)) }.unwrap();
        results.all()
    };
    assert_eq!(sums(&packed(large, true)), sums(&packed(large, false)));
}

#[test]
fn integer_convolutions_are_exact() {
    let plain = |c, size, o, kernel| ConvShape::conv2d(2, c, size, o, kernel);
    let padded = |s: ConvShape, stride: usize| ConvShape {
        stride: [1, stride, stride],
        pad_lo: [0, 1, 1],
        pad_hi: [0, 1, 2],
        ..s
    };
    let shapes = [
        plain(16, [5, 7], 24, [1, 1]),
        padded(plain(3, [9, 11], 20, [3, 3]), 2),
        padded(plain(8, [6, 6], 16, [3, 3]), 1),
        ConvShape { stride: [1, 2, 2], ..plain(12, [7, 7], 8, [1, 1]) },
        ConvShape { dilation: [1, 2, 2], ..padded(plain(6, [9, 9], 10, [3, 2]), 1) },
        ConvShape { groups: 2, ..padded(plain(8, [6, 5], 6, [3, 3]), 1) },
        ConvShape { groups: 24, ..padded(plain(24, [9, 19], 24, [3, 3]), 1) },
        ConvShape { groups: 32, ..padded(plain(32, [9, 9], 32, [3, 3]), 2) },
        // Windows by columns: one to four panels at a time and more, four rows and more, fewer pixels than are computed at once.
        ConvShape { groups: 96, ..padded(plain(96, [6, 11], 96, [5, 5]), 1) },
        ConvShape {
            groups: 40,
            stride: [1, 2, 2],
            pad_lo: [0, 3, 3],
            pad_hi: [0, 2, 3],
            ..plain(40, [9, 13], 40, [7, 7])
        },
        ConvShape { groups: 16, dilation: [1, 2, 3], pad_lo: [0, 2, 0], ..plain(16, [9, 17], 16, [3, 3]) },
        ConvShape { groups: 130, stride: [1, 1, 3], ..plain(130, [5, 9], 130, [4, 2]) },
        ConvShape { groups: 64, ..plain(64, [3, 1], 64, [2, 1]) },
        ConvShape { groups: 5, ..padded(plain(5, [7, 8], 10, [3, 3]), 1) },
        padded(plain(64, [5, 11], 40, [3, 3]), 1),
        ConvShape { groups: 2, ..padded(plain(128, [5, 5], 34, [3, 3]), 1) },
        ConvShape { dilation: [1, 2, 1], ..padded(plain(64, [8, 37], 8, [3, 3]), 1) },
        ConvShape { batch: 1, ..plain(64, [20, 30], 20, [2, 2]) },
        padded(plain(3, [9, 40], 20, [7, 7]), 2),
        padded(plain(16, [9, 29], 20, [3, 3]), 2),
        padded(plain(20, [6, 9], 12, [3, 3]), 1),
        ConvShape { dilation: [1, 1, 2], ..padded(plain(28, [6, 9], 12, [3, 3]), 1) },
        padded(plain(64, [7, 33], 20, [3, 3]), 2),
        ConvShape {
            input: [3, 5, 20],
            stride: [2, 1, 1],
            pad_lo: [1, 1, 1],
            ..plain(64, [5, 20], 9, [3, 3])
        },
        ConvShape { input: [4, 5, 6], kernel: [2, 3, 3], pad_lo: [1, 0, 1], ..plain(4, [5, 6], 5, [3, 3]) },
    ];
    for isa in isas() {
        for shape in shapes {
            for last in [true, false] {
                convolves(isa, Narrow::U8, shape, last, 121);
                convolves(isa, Narrow::I8, shape, last, -9);
            }
        }
    }
}

#[test]
fn windows_of_bf16_are_summed_in_single_precision() {
    let plain = |c, size, kernel| ConvShape { groups: c, ..ConvShape::conv2d(2, c, size, c, kernel) };
    let dense = |c, size, o, kernel| ConvShape::conv2d(2, c, size, o, kernel);
    let padded = |s: ConvShape, stride| ConvShape {
        stride: [1, stride, stride],
        pad_lo: [0, 1, 1],
        pad_hi: [0, 1, 2],
        ..s
    };
    let shapes = [
        padded(plain(24, [9, 19], [3, 3]), 1),
        padded(plain(32, [9, 9], [3, 3]), 2),
        ConvShape { dilation: [1, 2, 1], ..plain(16, [11, 8], [3, 2]) },
        padded(plain(7, [17, 9], [5, 5]), 1),
        padded(dense(3, [17, 12], 20, [3, 3]), 2),
        padded(dense(3, [9, 34], 20, [7, 7]), 2),
        padded(dense(24, [9, 9], 20, [3, 3]), 1),
        padded(dense(32, [10, 19], 40, [3, 3]), 1),
        ConvShape { groups: 2, ..padded(dense(64, [7, 7], 34, [3, 3]), 1) },
    ];
    for isa in isas().filter(|isa| Narrow::Bf16.is_fast(*isa)) {
        for shape in shapes {
            let ([_, h, w], c, [_, kh, kw]) = (shape.input, shape.in_channels, shape.kernel);
            let (o, per_in, per_out) =
                (shape.out_channels, c / shape.groups, shape.out_channels / shape.groups);
            let float = |i: usize, salt: usize| bf16::from_f32((f32::from(at(i, salt)) - 128.0) / 64.0);
            let input: Vec<bf16> = (0..2 * c * h * w).map(|i| float(i, 3)).collect();
            let weight: Vec<bf16> = (0..o * per_in * kh * kw).map(|i| float(i, 4)).collect();
            let plan =
                NarrowConv::new((isa, Narrow::Bf16), shape, Strides5::channels_last(c, shape.input), 0)
                    .unwrap();
            let strides = [per_in * kh * kw, kh * kw, kh * kw, kw, 1].map(|s| s as isize);
            // SAFETY: the weight is dense.
            let packed = unsafe { plan.pack_for(weight.as_ptr().cast(), strides, tiles(isa)) };
            let packed = packed.unwrap();
            let [_, oh, ow] = shape.output().unwrap();
            packed.for_each_unit(isa, |packed| {
                let results = Results::new([2, oh * ow, o]);
                let store = |block: &EpilogueBlock| results.store(block);
                // SAFETY: the input is dense.
                unsafe { plan.run(input.as_ptr().cast(), packed, Hook::Closure(&store)) }.unwrap();
                for (i, sum) in results.all().into_iter().enumerate() {
                    let (image, pixel, channel) = (i / (oh * ow * o), i / o % (oh * ow), i % o);
                    let (mut wanted, mut size) = (0.0, 0.0f64);
                    for t in 0..per_in * kh * kw {
                        let (ci, t) = (t / (kh * kw), t % (kh * kw));
                        let y = (pixel / ow * shape.stride[1] + t / kw * shape.dilation[1])
                            .wrapping_sub(shape.pad_lo[1]);
                        let x = (pixel % ow * shape.stride[2] + t % kw * shape.dilation[2])
                            .wrapping_sub(shape.pad_lo[2]);
                        if y < h && x < w {
                            let from = ((image * h + y) * w + x) * c + channel / per_out * per_in + ci;
                            let term =
                                input[from].to_f64() * weight[(channel * per_in + ci) * kh * kw + t].to_f64();
                            (wanted, size) = (wanted + term, size + term.abs());
                        }
                    }
                    let got = f64::from(f32::from_bits(sum));
                    assert!((got - wanted).abs() <= 1e-6 * size, "{shape:?}: {got} {wanted} at {i}");
                }
            });
        }
    }
}
