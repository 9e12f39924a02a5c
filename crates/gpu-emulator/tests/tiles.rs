//! Products and convolutions by tiles: the first ways of computing each for three kinds of device, over odd sizes, strides,
//! batches, groups, padding and dilation, against sums in double precision. Factors are small multiples of 1/8, so that every
//! product and sum is exact in all dtypes and only the last rounding differs.
#![allow(clippy::unwrap_used)] // a failing test may panic

use std::collections::BTreeMap;

use gpu_codegen::{ENTRY, Kernel, PRELUDE, Param, Target, Variant, pack_weights, variants};
use gpu_emulator::Emulator;
use gpu_runtime::{Driver, Grid, Module};
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{
    BodyBuilder, BufId, Buffer, Conv, Epilogue, InstKind, Matmul, Operand, Program, ScalarOp, Step, Storage,
    StoreMode,
};

use DType::{BF16, F16, F32};

/// Ways of each case and device that are run.
const WAYS: usize = 2;

fn shape(list: &[i64]) -> Shape {
    list.iter().map(|n| SymExpr::from_i64(*n)).collect()
}

/// Strides of memory without gaps, dimensions in `order`, outermost first.
fn dense(sizes: &[i64], order: &[usize]) -> Vec<i64> {
    let (mut strides, mut step) = (vec![1; sizes.len()], 1);
    for &d in order.iter().rev() {
        strides[d] = step;
        step *= sizes[d];
    }
    strides
}

fn row_major(sizes: &[i64]) -> Vec<i64> {
    dense(sizes, &(0..sizes.len()).collect::<Vec<_>>())
}

fn channels(sizes: &[i64], last: bool) -> Vec<i64> {
    let order: Vec<usize> = [0].into_iter().chain(2..sizes.len()).chain([1]).collect();
    if last { dense(sizes, &order) } else { row_major(sizes) }
}

fn at(index: &[i64], strides: &[i64]) -> usize {
    index.iter().zip(strides).map(|(i, s)| i * s).sum::<i64>() as usize
}

/// All points of a domain.
fn points(sizes: &[i64]) -> impl Iterator<Item = Vec<i64>> + '_ {
    let count: i64 = sizes.iter().product();
    (0..count).map(|mut n| {
        let mut index = vec![0; sizes.len()];
        for d in (0..sizes.len()).rev() {
            index[d] = n % sizes[d];
            n /= sizes[d];
        }
        index
    })
}

/// A program of one step, what its buffers hold, and what the output must.
struct Case {
    name: String,
    program: Program,
    /// Values by element of memory; of the output what is expected, and not a number in its gaps.
    data: Vec<Vec<f64>>,
    out: BufId,
}

impl Case {
    fn new(name: &str, dtype: DType) -> Case {
        Case {
            name: format!("{name}, {dtype}"),
            program: Program::default(),
            data: Vec::new(),
            out: BufId(0),
        }
    }

    fn buffer(&mut self, dtype: DType, sizes: &[i64], strides: &[i64]) -> BufId {
        let span = 1 + sizes.iter().zip(strides).map(|(n, s)| (n - 1) * s).sum::<i64>();
        let seed = self.data.len() as u64 + 1;
        let value = |i: u64| {
            let mixed = (i + seed * 7919).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((mixed >> 40) % 17) as f64 / 8.0 - 1.0
        };
        self.data.push((0..span as u64).map(value).collect());
        self.program.buffers.push(Buffer {
            name: "b".into(),
            dtype,
            sizes: shape(sizes),
            strides: shape(strides),
            offset: SymExpr::ZERO,
            storage: Storage::Arena,
        })
    }

    fn operand(&mut self, dtype: DType, sizes: &[i64], strides: &[i64]) -> Operand {
        let buf = self.buffer(dtype, sizes, strides);
        Operand { buf, sizes: shape(sizes), strides: shape(strides), offset: SymExpr::ZERO }
    }

    /// `out = max(product + bias, 0) + residual`; computes what is expected of `product`.
    fn finish(
        &mut self,
        dtype: DType,
        ranges: &[i64],
        strides: &[i64],
        channel: usize,
        product: impl Fn(&[i64], &[Vec<f64>]) -> f64,
    ) -> Epilogue {
        let bias = self.buffer(dtype, &[ranges[channel]], &[1]);
        let residual = self.buffer(dtype, ranges, strides);
        let out = self.buffer(dtype, ranges, strides);
        let index: Shape = (0..ranges.len() as u32).map(SymExpr::loop_var).collect();
        let mut e = BodyBuilder::new();
        let result = e.push(F32, InstKind::Template);
        let b = e.load(bias, dtype, [SymExpr::loop_var(channel as u32)].into_iter().collect());
        let b = e.cast(b, F32);
        let sum = e.op(ScalarOp::Add, &[result, b]);
        let zero = e.constant(0.0, F32);
        let positive = e.op(ScalarOp::Max, &[sum, zero]);
        let r = e.load(residual, dtype, index.clone());
        let r = e.cast(r, F32);
        let all = e.op(ScalarOp::Add, &[positive, r]);
        let all = e.cast(all, dtype);
        e.store(out, index, all, StoreMode::Write);
        let mut expected = vec![f64::NAN; self.data[out.0 as usize].len()];
        for i in points(ranges) {
            let sum = product(&i, &self.data) + self.data[bias.0 as usize][i[channel] as usize];
            expected[at(&i, strides)] = sum.max(0.0) + self.data[residual.0 as usize][at(&i, strides)];
        }
        self.data[out.0 as usize] = expected;
        self.out = out;
        Epilogue { ranges: shape(ranges), insts: e.finish() }
    }

    fn run(mut self, step: Step) {
        if let Err(why) = gpu_emulator::available() {
            eprintln!("skipped: {why}");
            return;
        }
        self.program.steps = vec![step];
        let hopper = Target::HOPPER;
        let ampere =
            Target { architecture: 80, multiprocessors: 108, shared_memory: 163 << 10, ..hopper.clone() };
        let mut ways: BTreeMap<String, Variant> = BTreeMap::new();
        for target in [hopper.clone(), Target { tf32: true, ..hopper }, ampere] {
            let list = variants(&self.program, &self.program.steps[0], &target).unwrap();
            ways.extend(list.into_iter().take(WAYS).map(|way| (way.name.clone(), way)));
        }
        let emulator = Emulator::default();
        let mut module = Module { source: PRELUDE.to_owned(), entries: Vec::new() };
        for kernel in ways.values().flat_map(|w| &w.kernels) {
            let entry = format!("k{}", module.entries.len());
            module.source.push_str(&kernel.source.replace(ENTRY, &entry));
            module.entries.push(entry);
        }
        let functions =
            emulator.compile(&[module]).unwrap_or_else(|e| panic!("{}: {e}", self.name)).remove(0);
        let mut next = functions.iter();
        for way in ways.values() {
            let functions: Vec<_> = way.kernels.iter().map(|_| next.next().unwrap()).collect();
            self.check(&emulator, way, &functions);
        }
    }

    fn check(&self, emulator: &Emulator, way: &Variant, functions: &[&gpu_emulator::Function]) {
        let name = format!("{}, {}", self.name, way.name);
        let upload = |bytes: &[u8]| {
            let address = emulator.allocate(bytes.len() as u64).unwrap();
            // SAFETY: the memory was just allocated with this size.
            unsafe { emulator.upload(address, bytes.as_ptr(), bytes.len()).unwrap() };
            address
        };
        let buffers: Vec<u64> = self
            .data
            .iter()
            .enumerate()
            .map(|(n, values)| {
                let id = BufId(n as u32);
                let bytes = encode(self.program.buffers[id].dtype, values);
                upload(&if id == self.out { vec![0xff; bytes.len()] } else { bytes })
            })
            .collect();
        let scratch: Vec<u64> =
            way.scratch.iter().map(|n| upload(&vec![0xff; n.as_const().unwrap() as usize])).collect();
        for (kernel, function) in way.kernels.iter().zip(functions) {
            let arguments = arguments(kernel, &buffers, &scratch);
            let blocks = kernel.launch.blocks.clone().map(|n| n.as_const().unwrap() as u32);
            let grid = Grid { blocks, threads: kernel.launch.threads, shared: kernel.launch.shared };
            // SAFETY: the arguments are those that the kernel asks for, in memory of this emulator.
            unsafe { emulator.launch(function, grid, &arguments) }.unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        let dtype = self.program.buffers[self.out].dtype;
        let expected = &self.data[self.out.0 as usize];
        let mut bytes = vec![0u8; expected.len() * dtype.size()];
        // SAFETY: the output has as many bytes.
        unsafe { emulator.download(bytes.as_mut_ptr(), buffers[self.out.0 as usize], bytes.len()).unwrap() };
        let got = decode(dtype, &bytes);
        // Half a unit in the last place of the output's dtype; sums are exact.
        let unit = if dtype == F32 {
            0.0
        } else if dtype == F16 {
            0.5f64.powi(11)
        } else {
            0.5f64.powi(8)
        };
        for (i, (g, e)) in got.iter().zip(expected).enumerate() {
            let right = if e.is_nan() { g.is_nan() } else { (g - e).abs() <= unit * e.abs() };
            assert!(right, "{name}: element {i} is {g}, expected {e}");
        }
        buffers.into_iter().chain(scratch).for_each(|address| emulator.free(address));
    }
}

fn arguments(kernel: &Kernel, buffers: &[u64], scratch: &[u64]) -> Vec<u64> {
    let value = |p: &Param| match p {
        Param::Buffer(b) => buffers[b.0 as usize],
        Param::Scratch(n) => scratch[*n as usize],
        Param::Symbol(s) => panic!("a kernel of fixed sizes takes {s}"),
        Param::Tickets => panic!("no template counts its blocks"),
    };
    kernel.params.iter().map(value).collect()
}

/// Numbers that are exact in each dtype.
fn encode(dtype: DType, values: &[f64]) -> Vec<u8> {
    let half = |x: f32| {
        let b = x.to_bits();
        let exponent = ((b >> 23) & 0xff) as u16;
        if exponent == 0 {
            0
        } else {
            (b >> 16) as u16 & 0x8000 | (exponent - 112) << 10 | (b >> 13) as u16 & 0x3ff
        }
    };
    let bytes = |x: &f64| match dtype {
        F32 => (*x as f32).to_le_bytes().to_vec(),
        BF16 => (((*x as f32).to_bits() >> 16) as u16).to_le_bytes().to_vec(),
        _ => half(*x as f32).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(bytes).collect()
}

fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let half = |h: u16| {
        let (sign, exponent, rest) =
            (if h >> 15 == 1 { -1.0 } else { 1.0 }, i32::from(h >> 10 & 31), f64::from(h & 0x3ff));
        match exponent {
            31 => f64::NAN,
            0 => sign * rest * 2f64.powi(-24),
            _ => sign * (1.0 + rest / 1024.0) * 2f64.powi(exponent - 15),
        }
    };
    let value = |b: &[u8]| match dtype {
        F32 => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        BF16 => f64::from(f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16)),
        _ => half(u16::from_le_bytes([b[0], b[1]])),
    };
    bytes.chunks(dtype.size()).map(value).collect()
}

/// `[batch, m, k] x [batch, k, n]` with the strides given.
fn product(name: &str, dtype: DType, sizes: [i64; 4], a: [i64; 3], b: [i64; 3], out: Option<[i64; 3]>) {
    let [batch, m, n, k] = sizes;
    let mut case = Case::new(name, dtype);
    let (left, right) = (case.operand(dtype, &[batch, m, k], &a), case.operand(dtype, &[batch, k, n], &b));
    let ranges = [batch, m, n];
    let strides = out.map_or(row_major(&ranges), |s| s.to_vec());
    let epilogue = case.finish(dtype, &ranges, &strides, 2, |i, data| {
        (0..k).map(|q| data[0][at(&[i[0], i[1], q], &a)] * data[1][at(&[i[0], q, i[2]], &b)]).sum()
    });
    let step = Matmul { name: name.into(), origins: vec![], a: left, b: right, acc: F32, epilogue };
    case.run(Step::Matmul(step));
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

/// The input's coordinate that an output's and a window's point meet at.
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
        epilogue,
    };
    case.run(Step::Conv(step));
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
        // Taken apart by remainders; with a window smaller than the stride some have nothing.
        let alone = Shapes { counts: [2, 16, 24, 1], ..spread };
        convolution("phases", dtype, alone, last);
        convolution("phases, some empty", dtype, Shapes { window: [1, 2], stride: [2, 3], ..alone }, last);
        let apart = Shapes { window: [4, 3], stride: [3, 2], dilation: [1, 3], ..alone };
        convolution("phases and dilation", dtype, apart, last);
    }
}

/// Weights that init steps make, and that nothing but convolutions reads, are made as they are read.
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
        epilogue,
    };
    case.program.steps = vec![Step::Conv(conv)];
    let mut alone = case.program.clone();
    pack_weights(&mut alone);
    assert!(alone.init.is_empty());
    assert_eq!(alone.buffers[w.buf].strides, shape(&[144, 1, 48, 16]));
    let Step::Conv(conv) = &alone.steps[0] else { panic!("a convolution stays one") };
    assert_eq!(conv.weight, Operand { strides: shape(&[144, 1, 48, 16]), ..w.clone() });
    // A view of it needs the strides that it was made for.
    let view = Buffer { storage: Storage::View(w.buf), ..case.program.buffers[w.buf].clone() };
    case.program.buffers.push(view);
    pack_weights(&mut case.program);
    assert_eq!(case.program.init.len(), 1);
    assert_eq!(case.program.buffers[w.buf].strides, w.strides);
}

/// Constant weights are copied by an init step and read with the channels of a point together.
#[test]
fn constant_weights_are_packed() {
    packed(false, [8, 16, 3, 3], [1, 8, 3, 3], [144, 1, 48, 16]);
    // That of a transposed one lies as that of the convolution whose gradient it is.
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
        epilogue,
    };
    case.program.steps = vec![Step::Conv(conv.clone()), Step::Conv(conv)];
    pack_weights(&mut case.program);
    // Both convolutions read the one copy.
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
