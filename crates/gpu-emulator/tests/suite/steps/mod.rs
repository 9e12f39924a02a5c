//! A single step with its buffers, the expected output, and the candidates that a test selects, run on the emulator.
//! Operands are small multiples of 1/8, so that all products and sums are exact in every dtype and only the last rounding
//! differs.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;

use gpu_codegen::{ENTRY, Kernel, Param, Prelude, Variant};
use gpu_emulator::Emulator;
use gpu_runtime::{Arguments, Driver, Grid, Map, Module};
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{
    BodyBuilder, BufId, Buffer, Epilogue, InstKind, Matmul, Operand, Program, ScalarOp, Step, Storage,
    StoreMode,
};

use DType::{BF16, F16, F32};

pub fn shape(list: &[i64]) -> Shape {
    list.iter().map(|n| SymExpr::from_i64(*n)).collect()
}

/// Strides of dense memory with dimensions in `order`, outermost first.
pub fn dense(sizes: &[i64], order: &[usize]) -> Vec<i64> {
    let (mut strides, mut step) = (vec![1; sizes.len()], 1);
    for &d in order.iter().rev() {
        strides[d] = step;
        step *= sizes[d];
    }
    strides
}

pub fn row_major(sizes: &[i64]) -> Vec<i64> {
    dense(sizes, &(0..sizes.len()).collect::<Vec<_>>())
}

pub fn channels(sizes: &[i64], last: bool) -> Vec<i64> {
    let order: Vec<usize> = [0].into_iter().chain(2..sizes.len()).chain([1]).collect();
    if last { dense(sizes, &order) } else { row_major(sizes) }
}

pub fn at(index: &[i64], strides: &[i64]) -> usize {
    index.iter().zip(strides).map(|(i, s)| i * s).sum::<i64>() as usize
}

/// All points of a domain.
pub fn points(sizes: &[i64]) -> impl Iterator<Item = Vec<i64>> + '_ {
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

/// Selects the candidates of a step that a test runs, by name.
pub type Choose = fn(&Program, &Step) -> BTreeMap<String, Variant>;

/// A program of one step, the contents of its buffers, and the expected output.
pub struct Case {
    name: String,
    pub program: Program,
    /// Values by element of memory; for the output the expected ones, and NaN in its gaps.
    data: Vec<Vec<f64>>,
    out: BufId,
}

impl Case {
    pub fn new(name: &str, dtype: DType) -> Case {
        Case {
            name: format!("{name}, {dtype}"),
            program: Program::default(),
            data: Vec::new(),
            out: BufId(0),
        }
    }

    pub fn buffer(&mut self, dtype: DType, sizes: &[i64], strides: &[i64]) -> BufId {
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

    /// A list of integers.
    pub fn integers(&mut self, values: &[i64]) -> Operand {
        let operand = self.operand(DType::I32, &[values.len() as i64], &[1]);
        self.data[operand.buf.0 as usize] = values.iter().map(|x| *x as f64).collect();
        operand
    }

    pub fn operand(&mut self, dtype: DType, sizes: &[i64], strides: &[i64]) -> Operand {
        let buf = self.buffer(dtype, sizes, strides);
        Operand { buf, sizes: shape(sizes), strides: shape(strides), offset: SymExpr::ZERO }
    }

    /// Appends `out = max(product + bias, 0) + residual`, and computes the expected output from `product`.
    pub fn finish(
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

    /// Appends `out = (product + t0) * t1 + …` of tensors with these dtypes and strides over the result's dimensions, and computes
    /// the expected output from `product`.
    pub fn finish_with<const RANK: usize>(
        &mut self,
        dtype: DType,
        ranges: &[i64; RANK],
        strides: &[i64],
        tensors: &[(DType, [i64; RANK])],
        product: impl Fn(&[i64], &[Vec<f64>]) -> f64,
    ) -> Epilogue {
        let read: Vec<BufId> = tensors.iter().map(|(dtype, s)| self.buffer(*dtype, ranges, s)).collect();
        let out = self.buffer(dtype, ranges, strides);
        let index: Shape = (0..RANK as u32).map(SymExpr::loop_var).collect();
        let mut e = BodyBuilder::new();
        let mut value = e.push(F32, InstKind::Template);
        for (n, (buf, (dtype, _))) in read.iter().zip(tensors).enumerate() {
            let t = e.load(*buf, *dtype, index.clone());
            let t = e.cast(t, F32);
            value = e.op(if n % 2 == 0 { ScalarOp::Add } else { ScalarOp::Mul }, &[value, t]);
        }
        let value = e.cast(value, dtype);
        e.store(out, index, value, StoreMode::Write);
        let mut expected = vec![f64::NAN; self.data[out.0 as usize].len()];
        for i in points(ranges) {
            let mut value = product(&i, &self.data);
            for (n, (buf, (_, strides))) in read.iter().zip(tensors).enumerate() {
                let t = self.data[buf.0 as usize][at(&i, strides)];
                value = if n % 2 == 0 { value + t } else { value * t };
            }
            expected[at(&i, strides)] = value;
        }
        self.data[out.0 as usize] = expected;
        self.out = out;
        Epilogue { ranges: shape(ranges), insts: e.finish() }
    }

    /// Runs the ways that `choose` gives and compares what they leave; their names.
    pub fn run(self, step: Step, choose: Choose) -> Vec<String> {
        self.run_on(Emulator::default(), step, choose)
    }

    /// The same on a device.
    pub fn run_on(mut self, emulator: Emulator, step: Step, choose: Choose) -> Vec<String> {
        if let Err(why) = gpu_emulator::available() {
            eprintln!("skipped: {why}");
            return Vec::new();
        }
        self.program.steps = vec![step];
        let candidates = choose(&self.program, &self.program.steps[0]);
        let (mut text, mut entries) = (String::new(), Vec::new());
        for kernel in candidates.values().flat_map(|w| &w.kernels) {
            let entry = format!("k{}", entries.len());
            text.push_str(&kernel.source.replace(ENTRY, &entry));
            entries.push(entry);
        }
        let module = Module::new(&Prelude::new(&emulator.target()), text, entries);
        let functions =
            emulator.compile(&[module]).unwrap_or_else(|e| panic!("{}: {e}", self.name)).remove(0);
        let mut next = functions.iter();
        for candidate in candidates.values() {
            let functions: Vec<_> = candidate.kernels.iter().map(|_| next.next().unwrap()).collect();
            self.check(&emulator, candidate, &functions);
        }
        candidates.into_keys().collect()
    }

    fn check(&self, emulator: &Emulator, candidate: &Variant, functions: &[&gpu_emulator::Function]) {
        let name = format!("{}, {}", self.name, candidate.name);
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
            candidate.scratch.iter().map(|n| upload(&vec![0xff; n.as_const().unwrap() as usize])).collect();
        for (kernel, function) in candidate.kernels.iter().zip(functions) {
            let arguments = arguments(kernel, &buffers, &scratch);
            let blocks = kernel.launch.blocks.clone().map(|n| n.as_const().unwrap() as u32);
            let grid = Grid { blocks, threads: kernel.launch.threads, shared: kernel.launch.shared };
            let maps = Map::of(&kernel.params, &kernel.maps, &|e| Ok(e.as_const().unwrap())).unwrap();
            let arguments = Arguments { words: &arguments, maps: &maps };
            // SAFETY: the arguments match the kernel's parameters and are in memory of this emulator.
            unsafe { emulator.launch(function, grid, arguments) }.unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        let dtype = self.program.buffers[self.out].dtype;
        let expected = &self.data[self.out.0 as usize];
        let mut bytes = vec![0u8; expected.len() * dtype.size()];
        // SAFETY: the output has at least this many bytes.
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
        Param::Number(n) | Param::Slice(n) => *n as u64,
        Param::Symbol(s) => panic!("a kernel of fixed sizes takes {s}"),
        Param::Tickets => panic!("no template counts its blocks"),
        Param::Fault | Param::FirstCheck => panic!("no index comes from data"),
        Param::Map(n) => buffers[kernel.maps[*n as usize].buf.0 as usize],
    };
    kernel.params.iter().map(value).collect()
}

/// Encodes numbers that are exact in every dtype.
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
        DType::I32 => (*x as i32).to_le_bytes().to_vec(),
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
pub fn product(
    name: &str,
    dtype: DType,
    sizes: [i64; 4],
    a: [i64; 3],
    b: [i64; 3],
    out: Option<[i64; 3]>,
    choose: Choose,
) -> Vec<String> {
    product_on(Emulator::default(), name, dtype, (sizes, a, b, out), choose)
}

/// Sizes, strides of both factors and of the result where it is not row-major.
pub type Shapes = ([i64; 4], [i64; 3], [i64; 3], Option<[i64; 3]>);

/// The same on a device.
pub fn product_on(
    emulator: Emulator,
    name: &str,
    dtype: DType,
    (sizes, a, b, out): Shapes,
    choose: Choose,
) -> Vec<String> {
    let [batch, m, n, k] = sizes;
    let mut case = Case::new(name, dtype);
    let (left, right) = (case.operand(dtype, &[batch, m, k], &a), case.operand(dtype, &[batch, k, n], &b));
    let ranges = [batch, m, n];
    let strides = out.map_or(row_major(&ranges), |s| s.to_vec());
    let epilogue = case.finish(dtype, &ranges, &strides, 2, |i, data| {
        (0..k).map(|q| data[0][at(&[i[0], i[1], q], &a)] * data[1][at(&[i[0], q, i[2]], &b)]).sum()
    });
    let step = Matmul {
        name: name.into(),
        origins: vec![],
        a: left,
        b: right,
        acc: F32,
        zero: 0,
        dequant: None,
        groups: None,
        epilogue,
    };
    case.run_on(emulator, Step::Matmul(step), choose)
}
