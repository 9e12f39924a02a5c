//! Every candidate for attention and for products of a few rows, against plain loops in double precision. The choice among
//! them is not tested here.
#![allow(clippy::unwrap_used)] // a failing test may panic

use gpu_codegen::{ENTRY, Param, Prelude, Target, Variant, variants};
use gpu_emulator::Emulator;
use gpu_runtime::{Arguments, Driver, Grid, Map, Module};
use ir_core::{DType, EntityId, Shape, SymExpr};
use kernel_ir::{
    Attention, BodyBuilder, BufId, Buffer, Epilogue, InstKind, Matmul, Operand, Program, Step, Storage,
    StoreMode,
};

fn shape(sizes: &[i64]) -> Shape {
    sizes.iter().map(|&n| SymExpr::from_i64(n)).collect()
}

/// A program of one step with the contents of its buffers.
#[derive(Default)]
struct Case {
    program: Program,
    data: Vec<Vec<f32>>,
}

/// Reproducible pseudo-random numbers, rounded to the dtype.
fn numbers(seed: u64, count: i64, dtype: DType) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) as f32 / (1u64 << 24) as f32) * 2.0 - 1.0
    };
    (0..count).map(|_| rounded(next(), dtype)).collect()
}

fn rounded(x: f32, dtype: DType) -> f32 {
    if dtype == DType::BF16 { f32::from_bits((x.to_bits() + 0x8000) & 0xffff_0000) } else { x }
}

impl Case {
    fn buffer(&mut self, dtype: DType, sizes: &[i64], data: Vec<f32>) -> BufId {
        let sizes = shape(sizes);
        self.data.push(data);
        self.program.buffers.push(Buffer {
            name: "b".into(),
            dtype,
            strides: ir_core::contiguous_strides(&sizes),
            sizes,
            offset: SymExpr::ZERO,
            storage: Storage::Arena,
        })
    }

    fn random(&mut self, seed: u64, dtype: DType, sizes: &[i64]) -> BufId {
        self.buffer(dtype, sizes, numbers(seed, sizes.iter().product(), dtype))
    }

    /// `out = 2 x + 1` of the template's result.
    fn epilogue(&mut self, dtype: DType, sizes: &[i64]) -> (BufId, Epilogue) {
        let out = self.buffer(dtype, sizes, Vec::new());
        let mut b = BodyBuilder::new();
        let x = b.push(DType::F32, InstKind::Template);
        let (two, one) = (b.constant(2.0, DType::F32), b.constant(1.0, DType::F32));
        let y = b.op(kernel_ir::ScalarOp::Mul, &[x, two]);
        let mut y = b.op(kernel_ir::ScalarOp::Add, &[y, one]);
        if dtype != DType::F32 {
            y = b.push(dtype, InstKind::Cast(y));
        }
        let index: Shape = (0..sizes.len() as u32).map(SymExpr::loop_var).collect();
        b.push(dtype, InstKind::Store { buf: out, index, value: y, mask: None, mode: StoreMode::Write });
        (out, Epilogue { ranges: shape(sizes), insts: b.finish() })
    }

    /// The names of the ways that begin so, of devices of both vendors, and what each gives in a buffer.
    fn run(&self, step: &Step, out: BufId, names: &[&str]) -> Vec<(String, Vec<f32>)> {
        let mut all = Vec::new();
        let rdna4 = Target::of_architecture("gfx1201").unwrap();
        for target in [Target::HOPPER, Target::CDNA, Target::RDNA, rdna4] {
            let candidates = variants(&self.program, step, &target).unwrap();
            let wanted = |candidate: &&Variant| names.iter().any(|n| candidate.name.starts_with(n));
            all.extend(candidates.iter().filter(wanted).map(|candidate| {
                let name = format!("{}, {} of {}", candidate.name, target.dialect.name, target.matrix_rate);
                (name, self.compute(candidate, out, &target))
            }));
        }
        all
    }

    fn compute(&self, candidate: &Variant, out: BufId, target: &Target) -> Vec<f32> {
        let emulator = Emulator::new(target.clone());
        let size = |e: &SymExpr| e.as_const().unwrap();
        let addresses: Vec<u64> =
            self.program.buffers.iter().map(|(id, b)| self.place(&emulator, id, b)).collect();
        let scratch: Vec<u64> =
            candidate.scratch.iter().map(|n| emulator.allocate(size(n) as u64).unwrap()).collect();
        let tickets = emulator.allocate(4 * u64::from(gpu_codegen::TICKETS)).unwrap();
        // SAFETY: the memory is new and has this many words.
        unsafe { emulator.fill(tickets, 0, u64::from(gpu_codegen::TICKETS)) }.unwrap();
        for (n, kernel) in candidate.kernels.iter().enumerate() {
            let entry = format!("entry{n}");
            let text = kernel.source.replace(ENTRY, &entry);
            let module = Module::new(&Prelude::new(&emulator.target()), text, vec![entry]);
            let function = &emulator.compile(&[module]).unwrap()[0][0];
            let arguments: Vec<u64> = kernel
                .params
                .iter()
                .map(|p| match p {
                    Param::Buffer(b) => addresses[b.index()],
                    Param::Scratch(n) => scratch[*n as usize],
                    Param::Number(n) | Param::Slice(n) => *n as u64,
                    Param::Symbol(_) => unreachable!("the cases have fixed sizes"),
                    Param::Tickets => tickets,
                    Param::Fault | Param::FirstCheck => unreachable!("no index comes from data"),
                    Param::Map(n) => addresses[kernel.maps[*n as usize].buf.index()],
                })
                .collect();
            let blocks = [0, 1, 2].map(|d| size(&kernel.launch.blocks[d]) as u32);
            let grid = Grid { blocks, threads: kernel.launch.threads, shared: kernel.launch.shared };
            let maps = Map::of(&kernel.params, &kernel.maps, &|e| Ok(size(e))).unwrap();
            let arguments = Arguments { words: &arguments, maps: &maps };
            // SAFETY: the arguments are in the kernel's order, and the memory has the size of its buffers.
            unsafe { emulator.launch(function, grid, arguments) }.unwrap();
        }
        self.read(&emulator, addresses[out.index()], out)
    }

    fn place(&self, emulator: &Emulator, id: BufId, buffer: &Buffer) -> u64 {
        let count: i64 = buffer.sizes.iter().map(|e| e.as_const().unwrap()).product();
        let bytes: Vec<u8> = match buffer.dtype {
            DType::F32 => self.data[id.index()].iter().flat_map(|x| x.to_le_bytes()).collect(),
            DType::BF16 => self.data[id.index()]
                .iter()
                .flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes())
                .collect(),
            _ => self.data[id.index()].iter().map(|x| u8::from(*x > 0.0)).collect(),
        };
        let address = emulator.allocate(count as u64 * buffer.dtype.size() as u64).unwrap();
        if !bytes.is_empty() {
            // SAFETY: the memory was allocated with this many elements.
            unsafe { emulator.upload(address, bytes.as_ptr(), bytes.len()) }.unwrap();
        }
        address
    }

    fn read(&self, emulator: &Emulator, address: u64, out: BufId) -> Vec<f32> {
        let buffer = &self.program.buffers[out];
        let count: i64 = buffer.sizes.iter().map(|e| e.as_const().unwrap()).product();
        let mut bytes = vec![0u8; count as usize * buffer.dtype.size()];
        // SAFETY: the memory was allocated with this many elements.
        unsafe { emulator.download(bytes.as_mut_ptr(), address, bytes.len()) }.unwrap();
        match buffer.dtype {
            DType::F32 => bytes.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
            _ => bytes
                .chunks(2)
                .map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16))
                .collect(),
        }
    }

    fn operand(&self, buf: BufId, sizes: &[i64], strides: &[i64], offset: i64) -> Operand {
        Operand { buf, sizes: shape(sizes), strides: shape(strides), offset: SymExpr::from_i64(offset) }
    }
}

fn assert_close(name: &str, got: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    for (n, (g, e)) in got.iter().zip(expected).enumerate() {
        let close = (e.is_nan() && g.is_nan()) || (f64::from(*g) - e).abs() <= tolerance * (1.0 + e.abs());
        assert!(close, "{name}: element {n} is {g}, not {e}");
    }
}

/// A product `[batch, m, k] x [batch, k, n]` whose matrix is contiguous along the inner dimension or along the columns.
fn product(dtype: DType, [batch, m, k, n]: [i64; 4], along_inner: bool) {
    if let Err(error) = gpu_emulator::available() {
        println!("skipped: {error}");
        return;
    }
    let mut case = Case::default();
    let (a, b) = (case.random(1, dtype, &[batch, m, k]), case.random(2, dtype, &[batch, k, n]));
    let (out, epilogue) = case.epilogue(dtype, &[batch, m, n]);
    let strides = if along_inner { [k * n, 1, k] } else { [k * n, n, 1] };
    let step = Step::Matmul(Matmul {
        name: "product".into(),
        origins: Vec::new(),
        a: case.operand(a, &[batch, m, k], &[m * k, k, 1], 0),
        b: case.operand(b, &[batch, k, n], &strides, 0),
        acc: DType::F32,
        zero: 0,
        dequant: None,
        groups: None,
        epilogue,
    });
    let mut expected = Vec::new();
    for (i, r, c) in points([batch, m, n]) {
        let at =
            |q: i64| f64::from(case.data[1][(i * strides[0] + q * strides[1] + c * strides[2]) as usize]);
        let sum: f64 = (0..k).map(|q| f64::from(case.data[0][((i * m + r) * k + q) as usize]) * at(q)).sum();
        expected.push(2.0 * sum + 1.0);
    }
    let tolerance = if dtype == DType::F32 { 1e-5 } else { 1e-2 };
    let results = case.run(&step, out, &["gemv"]);
    assert!(!results.is_empty(), "no candidate for a few rows");
    results.iter().for_each(|(name, got)| assert_close(name, got, &expected, tolerance));
}

fn points([a, b, c]: [i64; 3]) -> impl Iterator<Item = (i64, i64, i64)> {
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |k| (i, j, k))))
}

#[test]
fn products_of_a_few_rows() {
    product(DType::BF16, [1, 1, 1160, 37], true);
    product(DType::BF16, [2, 3, 264, 50], true);
    product(DType::F32, [1, 2, 100, 33], true);
    product(DType::BF16, [1, 1, 300, 72], false);
    product(DType::F32, [2, 3, 130, 20], false);
}

/// The variations of a case of attention.
#[derive(Clone, Copy, Default)]
struct AttentionCase {
    causal: bool,
    /// 1 is a boolean mask, 2 an additive mask.
    mask: u8,
}

/// Attention of `[b, hq, lq, d]` queries over `[b, hkv, lk, d]` keys.
fn attention(
    dtype: DType,
    [b, hq, hkv]: [i64; 3],
    [lq, lk, d]: [i64; 3],
    look: AttentionCase,
    candidates: &[&str],
) {
    if let Err(error) = gpu_emulator::available() {
        println!("skipped: {error}");
        return;
    }
    let mut case = Case::default();
    // Queries have the layout of projections, `[b, l, h, d]`; keys and values are `[b, h, l, d]`.
    let q = case.random(3, dtype, &[b, lq, hq, d]);
    let (k, v) = (case.random(4, dtype, &[b, hkv, lk, d]), case.random(5, dtype, &[b, hkv, lk, d]));
    let mask_dtype = if look.mask == 1 { DType::Bool } else { dtype };
    let mut mask_values = numbers(6, lq * lk, dtype);
    if look.mask == 1 {
        // The first row has no visible key.
        mask_values[..lk as usize].fill(-1.0);
    }
    let mask = case.buffer(mask_dtype, &[lq, lk], mask_values);
    let (out, epilogue) = case.epilogue(dtype, &[b, hq, lq, d]);
    let qs = [lq * hq * d, d, hq * d, 1];
    let ks = [hkv * lk * d, lk * d, d, 1];
    let step = Step::Attention(Attention {
        name: "attention".into(),
        origins: Vec::new(),
        q: case.operand(q, &[b, hq, lq, d], &qs, 0),
        k: case.operand(k, &[b, hkv, lk, d], &ks, 0),
        v: case.operand(v, &[b, hkv, lk, d], &ks, 0),
        mask: (look.mask > 0).then(|| case.operand(mask, &[b, hq, lq, lk], &[0, 0, lk, 1], 0)),
        visibility: None,
        sums: None,
        dropout: None,
        causal: look.causal,
        scale: 0.25,
        acc: DType::F32,
        epilogue,
    });
    let mut expected = Vec::new();
    for (i, h, r) in points([b, hq, lq]) {
        expected.extend(row(&case.data, [i, h, r], ([hq, hkv], [lk, d], look), qs));
    }
    let tolerance = if dtype == DType::F32 { 1e-5 } else { 2e-2 };
    let results = case.run(&step, out, candidates);
    for candidate in candidates {
        assert!(results.iter().any(|(name, _)| name.starts_with(candidate)), "no candidate `{candidate}`");
    }
    results.iter().for_each(|(name, got)| assert_close(name, got, &expected, tolerance));
}

/// One row of the result, in double precision.
fn row(
    data: &[Vec<f32>],
    [i, h, r]: [i64; 3],
    ([hq, hkv], [lk, d], look): ([i64; 2], [i64; 2], AttentionCase),
    qs: [i64; 4],
) -> Vec<f64> {
    let kv = (i * hkv + h / (hq / hkv)) * lk * d;
    let score = |j: i64| {
        let q = |e: i64| f64::from(data[0][(i * qs[0] + h * qs[1] + r * qs[2] + e) as usize]);
        let dot: f64 = (0..d).map(|e| q(e) * f64::from(data[1][(kv + j * d + e) as usize])).sum();
        let m = f64::from(data[3][(r * lk + j) as usize]);
        let hidden = (look.causal && j > r) || (look.mask == 1 && m <= 0.0);
        if hidden { f64::NEG_INFINITY } else { dot * 0.25 + if look.mask == 2 { m } else { 0.0 } }
    };
    let scores: Vec<f64> = (0..lk).map(score).collect();
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> =
        scores.iter().map(|s| if s.is_finite() { (s - top).exp() } else { 0.0 }).collect();
    let total: f64 = weights.iter().sum();
    let value = |e: i64| -> f64 {
        (0..lk).map(|j| weights[j as usize] * f64::from(data[2][(kv + j * d + e) as usize])).sum()
    };
    (0..d).map(|e| 2.0 * (if total == 0.0 { 0.0 } else { value(e) / total }) + 1.0).collect()
}

#[test]
fn attention_of_many_rows() {
    let (plain, causal) = (AttentionCase::default(), AttentionCase { causal: true, mask: 0 });
    attention(DType::BF16, [1, 2, 2], [35, 35, 64], plain, &["flash", "simple"]);
    attention(DType::BF16, [1, 4, 2], [70, 150, 40], causal, &["flash"]);
    attention(DType::BF16, [2, 1, 1], [20, 67, 128], AttentionCase { causal: false, mask: 1 }, &["flash"]);
    attention(DType::BF16, [1, 2, 1], [33, 64, 16], AttentionCase { causal: true, mask: 2 }, &["flash"]);
    attention(DType::F32, [1, 2, 1], [33, 40, 24], causal, &["simple"]);
}

/// Rows longer than the registers of a warp hold: sections of the result's columns.
#[test]
fn attention_of_long_rows() {
    let (plain, causal) = (AttentionCase::default(), AttentionCase { causal: true, mask: 0 });
    let (half, whole, three) = ("wgmma_64x128_of_256", "wgmma_64x128_of_512", "wgmma_64x128_of_384");
    let narrow = "wgmma_64x128_of_128";
    attention(DType::BF16, [2, 1, 1], [70, 150, 512], plain, &[narrow, half, whole, "flash"]);
    attention(DType::BF16, [1, 4, 2], [131, 260, 320], causal, &[half, three, "flash"]);
    attention(
        DType::BF16,
        [1, 2, 1],
        [65, 140, 264],
        AttentionCase { causal: true, mask: 2 },
        &[three, "flash"],
    );
    attention(DType::BF16, [1, 1, 1], [64, 35, 1024], plain, &[narrow, half, "flash"]);
    // Rows whose queries fit in registers.
    attention(
        DType::BF16,
        [1, 2, 2],
        [130, 200, 136],
        AttentionCase { causal: false, mask: 1 },
        &[half, "flash"],
    );
    attention(DType::BF16, [2, 2, 1], [67, 129, 256], causal, &[narrow, half, "flash"]);
    // No vectors of any length, and numbers of 32 bits.
    attention(DType::BF16, [1, 1, 1], [18, 40, 519], plain, &["simple"]);
    attention(DType::F32, [1, 2, 1], [9, 70, 1100], causal, &["simple"]);
}

#[test]
fn attention_by_tma() {
    let (plain, causal) = (AttentionCase::default(), AttentionCase { causal: true, mask: 0 });
    let (candidates, long) = (["wgmma_64x128", "wgmma_128x128"], ["wgmma_128x128", "wgmma_64x64"]);
    attention(DType::BF16, [2, 2, 2], [130, 35, 64], plain, &candidates);
    attention(DType::BF16, [1, 4, 2], [150, 300, 40], causal, &candidates);
    attention(DType::BF16, [1, 2, 1], [301, 140, 128], causal, &long);
    attention(DType::BF16, [2, 1, 1], [70, 267, 96], AttentionCase { causal: false, mask: 1 }, &long);
    attention(DType::BF16, [1, 2, 1], [64, 140, 64], AttentionCase { causal: true, mask: 2 }, &candidates);
}

#[test]
fn attention_of_few_rows() {
    let plain = AttentionCase::default();
    attention(DType::BF16, [1, 4, 4], [1, 333, 64], plain, &["decode"]);
    attention(DType::BF16, [2, 8, 2], [1, 130, 128], AttentionCase { causal: false, mask: 2 }, &["decode"]);
    attention(DType::BF16, [1, 2, 1], [3, 70, 96], AttentionCase { causal: true, mask: 1 }, &["decode"]);
    attention(DType::F32, [1, 2, 2], [2, 90, 32], plain, &["decode"]);
}
