//! Kernels around a library call: the epilogue over a result in scratch memory, with every order of dimensions of result
//! and buffers, and the copy of an operand into another order.
#![allow(clippy::unwrap_used)] // a failing test may panic

use gpu_codegen::{
    Blocks, ENTRY, Kernel, Packed, Param, Prelude, epilogue, fold, in_place, relayout, result_dtype,
    store_order, vendor_epilogue,
};
use gpu_emulator::Emulator;
use gpu_runtime::{Arguments, Driver, Grid, Module};
use ir_core::{DType, EntityId, Scalar, Shape, SymExpr};
use kernel_ir::{
    BodyBuilder, BufId, Buffer, Epilogue, InstKind, Matmul, Operand, Program, ScalarOp, Step, Storage,
    StoreMode,
};

fn shape(sizes: &[i64]) -> Shape {
    sizes.iter().map(|&n| SymExpr::from_i64(n)).collect()
}

/// Strides of dense memory whose dimensions are in `order`.
fn dense(sizes: &[i64], order: &[usize]) -> Vec<i64> {
    let mut strides = vec![1; sizes.len()];
    let mut step = 1;
    for &d in order.iter().rev() {
        strides[d] = step;
        step *= sizes[d];
    }
    strides
}

fn points(sizes: &[i64]) -> Vec<Vec<i64>> {
    let mut all = vec![Vec::new()];
    for &n in sizes {
        all = all.iter().flat_map(|p: &Vec<i64>| (0..n).map(|i| [&p[..], &[i]].concat())).collect();
    }
    all
}

fn at(index: &[i64], strides: &[i64]) -> usize {
    index.iter().zip(strides).map(|(i, s)| i * s).sum::<i64>() as usize
}

/// Small multiples of 1/2, which every float dtype represents exactly.
fn number(seed: usize, i: usize) -> f32 {
    ((i * 37 + seed * 101) % 61) as f32 * 0.5 - 15.0
}

fn to_bytes(dtype: DType, numbers: &[f32]) -> Vec<u8> {
    match dtype {
        DType::BF16 => numbers.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect(),
        _ => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

fn from_bytes(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::BF16 => bytes
            .chunks(2)
            .map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16))
            .collect(),
        _ => bytes.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
    }
}

/// A program under construction and the contents of its buffers.
#[derive(Default)]
struct Case {
    program: Program,
    data: Vec<Vec<f32>>,
}

impl Case {
    fn buffer(&mut self, dtype: DType, sizes: &[i64], order: &[usize]) -> BufId {
        let count: i64 = sizes.iter().product();
        let seed = self.data.len();
        self.data.push((0..count as usize).map(|i| number(seed, i)).collect());
        self.program.buffers.push(Buffer {
            name: "b".into(),
            dtype,
            sizes: shape(sizes),
            strides: shape(&dense(sizes, order)),
            offset: SymExpr::ZERO,
            storage: Storage::Arena,
        })
    }

    /// Runs a kernel with these scratch buffers, and returns the contents of `out` and of the scratch buffers.
    fn run(&self, kernel: &Kernel, scratch: &[Vec<u8>], out: BufId) -> (Vec<f32>, Vec<Vec<u8>>) {
        self.run_with(kernel, scratch, out, None)
    }

    /// The same, where the first scratch buffer is in the memory of a buffer.
    fn run_with(
        &self,
        kernel: &Kernel,
        scratch: &[Vec<u8>],
        out: BufId,
        over: Option<BufId>,
    ) -> (Vec<f32>, Vec<Vec<u8>>) {
        let emulator = Emulator::default();
        let upload = |bytes: &[u8]| {
            let address = emulator.allocate(bytes.len() as u64).unwrap();
            // SAFETY: the memory was just allocated for these bytes.
            unsafe { emulator.upload(address, bytes.as_ptr(), bytes.len()) }.unwrap();
            address
        };
        let download = |address: u64, len: usize| {
            let mut bytes = vec![0u8; len];
            // SAFETY: the memory was allocated with this many bytes.
            unsafe { emulator.download(bytes.as_mut_ptr(), address, len) }.unwrap();
            bytes
        };
        let memory: Vec<u64> = self
            .program
            .buffers
            .iter()
            .map(|(id, b)| upload(&to_bytes(b.dtype, &self.data[id.index()])))
            .collect();
        let mut extra: Vec<u64> = scratch.iter().map(|s| upload(s)).collect();
        if let Some(buf) = over {
            extra[0] = memory[buf.index()];
            // SAFETY: the buffer is as large as the scratch buffer.
            unsafe { emulator.upload(extra[0], scratch[0].as_ptr(), scratch[0].len()) }.unwrap();
        }
        let text = kernel.source.replace(ENTRY, "entry");
        let module = Module::new(&Prelude::new(&emulator.target()), text, vec!["entry".into()]);
        let function = &emulator.compile(&[module]).unwrap()[0][0];
        let arguments: Vec<u64> = kernel
            .params
            .iter()
            .map(|p| match p {
                Param::Buffer(b) => memory[b.index()],
                Param::Scratch(n) => extra[*n as usize],
                Param::Number(n) | Param::Slice(n) => *n as u64,
                Param::Symbol(_) => unreachable!("the cases have fixed sizes"),
                Param::Tickets => unreachable!("no template counts its blocks"),
                Param::Fault | Param::FirstCheck => unreachable!("no index comes from data"),
                Param::Map(_) => unreachable!("an epilogue reads no tiles"),
            })
            .collect();
        let blocks = [0, 1, 2].map(|d| kernel.launch.blocks[d].as_const().unwrap() as u32);
        let grid = Grid { blocks, threads: kernel.launch.threads, shared: kernel.launch.shared };
        // SAFETY: the arguments are in the kernel's order, and the memory has the size of its buffers.
        unsafe { emulator.launch(function, grid, Arguments::plain(&arguments)) }.unwrap();
        let dtype = self.program.buffers[out].dtype;
        let result =
            from_bytes(dtype, &download(memory[out.index()], self.data[out.index()].len() * dtype.size()));
        (result, extra.iter().zip(scratch).map(|(a, s)| download(*a, s.len())).collect())
    }

    fn operand(&self, buf: BufId) -> Operand {
        let b = &self.program.buffers[buf];
        Operand { buf, sizes: b.sizes.clone(), strides: b.strides.clone(), offset: SymExpr::ZERO }
    }
}

/// `out = max(result + residual + bias[last], 0)` with buffers of these orders.
fn sum(
    case: &mut Case,
    dtype: DType,
    sizes: &[i64],
    residual: &[usize],
    out: &[usize],
) -> (Step, [BufId; 3]) {
    let last = sizes.len() - 1;
    let residual = case.buffer(dtype, sizes, residual);
    let bias = case.buffer(dtype, &sizes[last..], &[0]);
    let out = case.buffer(dtype, sizes, out);
    let mut b = BodyBuilder::new();
    let index: Shape = (0..sizes.len() as u32).map(SymExpr::loop_var).collect();
    let x = b.push(DType::F32, InstKind::Template);
    let r = b.load(residual, dtype, index.clone());
    let r = b.cast(r, DType::F32);
    let x = b.op(ScalarOp::Add, &[x, r]);
    let v = b.load(bias, dtype, [SymExpr::loop_var(last as u32)].into_iter().collect());
    let v = b.cast(v, DType::F32);
    let x = b.op(ScalarOp::Add, &[x, v]);
    let zero = b.constant(Scalar::Float(0.0), DType::F32);
    let x = b.op(ScalarOp::Max, &[x, zero]);
    let x = b.cast(x, dtype);
    b.store(out, index, x, StoreMode::Write);
    let epilogue = Epilogue { ranges: shape(sizes), insts: b.finish() };
    (product(case.operand(residual), epilogue), [residual, bias, out])
}

/// A product whose operands are not used.
fn product(operand: Operand, epilogue: Epilogue) -> Step {
    Step::Matmul(Matmul {
        name: "m".into(),
        origins: Vec::new(),
        a: operand.clone(),
        b: operand,
        acc: DType::F32,
        zero: 0,
        dequant: None,
        groups: None,
        epilogue,
    })
}

fn check(dtype: DType, sizes: &[i64], order: &[usize], residual: &[usize], out: &[usize]) -> Kernel {
    let mut case = Case::default();
    let (step, [r, v, o]) = sum(&mut case, dtype, sizes, residual, out);
    let kernel = epilogue(&case.program, &step, dtype, Packed::Dense(order)).unwrap();
    let count: i64 = sizes.iter().product();
    let result: Vec<f32> = (0..count as usize).map(|i| number(9, i)).collect();
    let result_bytes = [to_bytes(dtype, &result)];
    let (got, _) = case.run(&kernel, &result_bytes, o);
    let over = in_place(&case.program, &step, dtype, order);
    if sizes.iter().all(|n| *n > 1) {
        assert_eq!(over, (order == out).then_some(o), "a result has the order of what is stored, or has not");
    }
    if over.is_some() {
        assert_eq!(
            case.run_with(&kernel, &result_bytes, o, over).0,
            got,
            "{dtype} {sizes:?} {order:?}, in place"
        );
    }
    for p in points(sizes) {
        let x = result[at(&p, &dense(sizes, order))];
        let y = x + case.data[r.index()][at(&p, &dense(sizes, residual))];
        let y = (y + case.data[v.index()][p[sizes.len() - 1] as usize]).max(0.0);
        assert_eq!(
            got[at(&p, &dense(sizes, out))],
            y,
            "{dtype} {sizes:?} {order:?} at {p:?}\n{}",
            kernel.source
        );
    }
    kernel
}

#[test]
fn epilogues_in_every_order() {
    for dtype in [DType::F32, DType::BF16] {
        let orders = [[0, 1, 2], [0, 2, 1], [1, 2, 0], [2, 1, 0]];
        for order in orders {
            for out in orders {
                check(dtype, &[3, 5, 16], &order, &out, &out);
            }
        }
        // Sizes that leave a remainder, and dimensions of size 1.
        check(dtype, &[3, 5, 7], &[0, 1, 2], &[0, 1, 2], &[0, 1, 2]);
        check(dtype, &[4, 1, 8], &[0, 1, 2], &[0, 1, 2], &[0, 1, 2]);
        check(dtype, &[1, 1], &[0, 1], &[0, 1], &[0, 1]);
    }
}

/// `out = weight - result`, as an update writes a row-major weight whose gradient has its channels innermost: the points of the window
/// are one dimension of a tile, in either direction.
#[test]
fn results_that_an_update_transposes() {
    let channels_last = [0, 2, 3, 1];
    let row_major = [0, 1, 2, 3];
    for (sizes, order, out) in [
        ([3, 100, 3, 3], channels_last, row_major),
        ([2, 33, 3, 2], channels_last, row_major),
        ([2, 40, 5, 7], channels_last, row_major),
        ([1, 260, 2, 2], row_major, channels_last),
        ([5, 16, 4, 4], row_major, channels_last),
    ] {
        for dtype in [DType::F32, DType::BF16] {
            let mut case = Case::default();
            let [weight, to] = [0, 1].map(|_| case.buffer(dtype, &sizes, &out));
            let mut b = BodyBuilder::new();
            let index: Shape = (0..4).map(SymExpr::loop_var).collect();
            let x = b.push(DType::F32, InstKind::Template);
            let w = b.load(weight, dtype, index.clone());
            let w = b.cast(w, DType::F32);
            let x = b.op(ScalarOp::Sub, &[w, x]);
            let x = b.cast(x, dtype);
            b.store(to, index, x, StoreMode::Write);
            let body = Epilogue { ranges: shape(&sizes), insts: b.finish() };
            let step = product(case.operand(weight), body);
            let kernel = epilogue(&case.program, &step, dtype, Packed::Dense(&order)).unwrap();
            assert!(kernel.source.contains("__shared__"), "{sizes:?} goes through tiles\n{}", kernel.source);
            let count: i64 = sizes.iter().product();
            let result: Vec<f32> = (0..count as usize).map(|i| number(9, i)).collect();
            let (got, _) = case.run(&kernel, &[to_bytes(dtype, &result)], to);
            for p in points(&sizes) {
                let place = at(&p, &dense(&sizes, &out));
                let wanted = case.data[weight.index()][place] - result[at(&p, &dense(&sizes, &order))];
                assert_eq!(got[place], wanted, "{dtype} {sizes:?} at {p:?}\n{}", kernel.source);
            }
        }
    }
}

/// What is stored elsewhere too, under a mask or in another dtype is not where the result was; nor is it where the epilogue reads
/// another element of the same buffer.
#[test]
fn results_in_place_are_stored_as_they_are_read() {
    let place = |dtype: DType, change: &dyn Fn(&mut BodyBuilder, BufId, &Shape)| {
        let mut case = Case::default();
        let out = case.buffer(DType::F32, &[4, 6], &[0, 1]);
        let mut b = BodyBuilder::new();
        let index: Shape = (0..2).map(SymExpr::loop_var).collect();
        change(&mut b, out, &index);
        let other = case.buffer(DType::F32, &[4, 6], &[0, 1]);
        let step = |operand| {
            let epilogue = Epilogue { ranges: shape(&[4, 6]), insts: b.insts().to_vec() };
            product(case.operand(operand), epilogue)
        };
        let read = in_place(&case.program, &step(out), dtype, &[0, 1]);
        assert_eq!(read, None, "the product reads it");
        in_place(&case.program, &step(other), dtype, &[0, 1]) == Some(out)
    };
    let store = |b: &mut BodyBuilder, buf, index: &Shape, mask| {
        let value = b.push(DType::F32, InstKind::Template);
        let (index, mode) = (index.clone(), StoreMode::Write);
        b.push(DType::F32, InstKind::Store { buf, index, value, mask, mode });
    };
    assert!(place(DType::F32, &|b, out, index| store(b, out, index, None)));
    assert!(!place(DType::BF16, &|b, out, index| store(b, out, index, None)));
    assert!(!place(DType::F32, &|b, out, index| {
        let mask = b.constant(Scalar::Bool(true), DType::Bool);
        store(b, out, index, Some(mask));
    }));
    assert!(!place(DType::F32, &|b, out, index| {
        let other: Shape = [SymExpr::loop_var(0), SymExpr::ZERO].into_iter().collect();
        b.load(out, DType::F32, other);
        store(b, out, index, None);
    }));
    assert!(!place(DType::F32, &|b, out, index| {
        let value = b.push(DType::F32, InstKind::Template);
        b.store(out, index.clone(), value, StoreMode::Add);
    }));
    assert!(!place(DType::F32, &|b, out, index| {
        store(b, out, index, None);
        store(b, out, &[SymExpr::ZERO, SymExpr::loop_var(1)].into_iter().collect(), None);
    }));
}

#[test]
fn contiguous_elements_are_vectors() {
    let kernel = check(DType::BF16, &[6, 32], &[0, 1], &[0, 1], &[0, 1]);
    // The result, the residual, the biases and the store are vectors of eight elements of 2 bytes.
    assert_eq!(kernel.source.matches("const Vec<bf16, 8> *)").count(), 3, "{}", kernel.source);
    assert_eq!(kernel.launch.blocks[0].as_const(), Some(1));
    let odd = check(DType::BF16, &[6, 12], &[0, 1], &[0, 1], &[0, 1]);
    assert!(odd.source.contains("Vec<bf16, 4>"), "{}", odd.source);
}

#[test]
fn copies_into_another_order() {
    let (sizes, order) = ([3i64, 4, 5, 2], [0usize, 2, 3, 1]);
    for dtype in [DType::F32, DType::BF16] {
        let mut case = Case::default();
        let from = case.buffer(dtype, &sizes, &[0, 1, 2, 3]);
        let kernel = relayout(&case.program, &case.operand(from), &order, 1).unwrap();
        let empty = vec![0u8; 120 * dtype.size()];
        let (_, scratch) = case.run(&kernel, &[Vec::from([0u8]), empty], from);
        let got = from_bytes(dtype, &scratch[1]);
        for p in points(&sizes) {
            let wanted = case.data[from.index()][at(&p, &dense(&sizes, &[0, 1, 2, 3]))];
            assert_eq!(got[at(&p, &dense(&sizes, &order))], wanted, "{p:?}");
        }
    }
}

/// Epilogues that a library supports are recognised, and results are stored in the order of the epilogue's store.
#[test]
fn vendor_epilogues() {
    let mut case = Case::default();
    let (step, [residual, bias, out]) = sum(&mut case, DType::BF16, &[4, 6, 8], &[0, 2, 1], &[0, 2, 1]);
    let body = gpu_codegen::epilogue_of(&step).unwrap();
    let t = vendor_epilogue(&case.program, body).unwrap();
    assert_eq!((t.out.buf, t.residual.unwrap().buf, t.relu, t.alpha), (out, residual, true, 1.0));
    assert_eq!((t.bias.as_ref().unwrap().buf, t.bias.unwrap().dim), (bias, 2));
    assert_eq!(t.out.strides, shape(&[48, 1, 6]));
    assert_eq!(store_order(&case.program, body), [0, 2, 1]);
    assert_eq!(result_dtype(&case.program, body, DType::F32, DType::F32), DType::F32);
    assert_eq!(result_dtype(&case.program, body, DType::BF16, DType::F32), DType::BF16);

    let mut rounded = body.clone();
    rounded.insts.clear();
    let mut b = BodyBuilder::new();
    let x = b.push(DType::F32, InstKind::Template);
    let narrow = b.cast(x, DType::BF16);
    let wide = b.cast(narrow, DType::F32);
    let y = b.op(ScalarOp::Tanh, &[wide]);
    let y = b.cast(y, DType::BF16);
    b.store(out, (0..3).map(SymExpr::loop_var).collect(), y, StoreMode::Write);
    rounded.insts = b.finish();
    assert!(vendor_epilogue(&case.program, &rounded).is_none());
    assert_eq!(result_dtype(&case.program, &rounded, DType::F32, DType::F32), DType::BF16);
}

/// The index in the folded tensor of the element at `p`, and the length of the folded tensor.
fn place(blocks: &Blocks, sizes: &[i64], p: &[i64]) -> (usize, usize) {
    let outer = 1 - blocks.channel;
    let (mut at, mut point, mut all) = (p[outer], 0, sizes[outer]);
    for d in 0..blocks.points.len() {
        let from = p[d + 2] + blocks.lead[d];
        at = at * blocks.counts[d] + from / blocks.points[d];
        point = point * blocks.points[d] + from % blocks.points[d];
        all *= blocks.counts[d];
    }
    let at = at * blocks.filled + point * blocks.channels + p[blocks.channel];
    (at as usize, (all * blocks.filled) as usize)
}

fn folds() -> Vec<(Blocks, [i64; 4])> {
    let blocks = |channel, points: [i64; 2], lead: [i64; 2], counts: [i64; 2], filled| Blocks {
        channel,
        channels: 3,
        filled,
        points: points.to_vec(),
        lead: lead.to_vec(),
        counts: counts.to_vec(),
    };
    vec![
        (blocks(1, [2, 2], [4, 4], [6, 7], 16), [2, 3, 7, 9]),
        // Dimension 0 has the channels; the blocks extend beyond the tensor on both sides.
        (blocks(0, [2, 3], [1, 0], [5, 4], 24), [3, 2, 7, 9]),
        (blocks(1, [1, 1], [0, 0], [4, 5], 8), [2, 3, 4, 5]),
    ]
}

#[test]
fn tensors_of_few_channels_are_folded() {
    for (blocks, sizes) in folds() {
        for dtype in [DType::F32, DType::BF16] {
            let mut case = Case::default();
            let from = case.buffer(dtype, &sizes, &[0, 1, 2, 3]);
            let kernel = fold(&case.program, &case.operand(from), &blocks, 1).unwrap();
            let (_, len) = place(&blocks, &sizes, &[0; 4]);
            assert_eq!(blocks.elements(&shape(&sizes)).as_const(), Some(len as i64));
            // The old contents are overwritten.
            let (_, scratch) = case.run(&kernel, &[vec![0], vec![0x41; len * dtype.size()]], from);
            let mut wanted = vec![0.0; len];
            for p in points(&sizes) {
                let value = case.data[from.index()][at(&p, &dense(&sizes, &[0, 1, 2, 3]))];
                wanted[place(&blocks, &sizes, &p).0] = value;
            }
            assert_eq!(from_bytes(dtype, &scratch[1]), wanted, "{dtype} {blocks:?}\n{}", kernel.source);
        }
    }
    let (blocks, sizes) = folds().remove(0);
    let mut case = Case::default();
    let from = case.buffer(DType::F32, &sizes, &[0, 1, 2, 3]);
    let bad = [
        Blocks { filled: 10, ..blocks.clone() },
        Blocks { filled: 8, ..blocks.clone() },
        Blocks { points: vec![2], ..blocks.clone() },
        Blocks { channel: 2, ..blocks },
    ];
    for blocks in bad {
        assert!(fold(&case.program, &case.operand(from), &blocks, 1).is_err(), "{blocks:?}");
    }
}

#[test]
fn epilogues_of_folded_results() {
    for (blocks, sizes) in folds() {
        for out in [blocks.order(), vec![0, 1, 2, 3]] {
            let mut case = Case::default();
            let (step, [r, v, o]) = sum(&mut case, DType::F32, &sizes, &out, &out);
            let kernel = epilogue(&case.program, &step, DType::F32, Packed::Folded(&blocks)).unwrap();
            let (_, len) = place(&blocks, &sizes, &[0; 4]);
            let result: Vec<f32> = (0..len).map(|i| number(9, i)).collect();
            let (got, _) = case.run(&kernel, &[to_bytes(DType::F32, &result)], o);
            for p in points(&sizes) {
                let x = result[place(&blocks, &sizes, &p).0];
                let y = x + case.data[r.index()][at(&p, &dense(&sizes, &out))];
                let y = (y + case.data[v.index()][p[3] as usize]).max(0.0);
                assert_eq!(got[at(&p, &dense(&sizes, &out))], y, "{blocks:?} {out:?} {p:?}");
            }
        }
    }
}

#[test]
fn in_place_stores_are_vectors() {
    // `old - result / 2`, stored over `old`, as in an update of a weight. The new value is a view of the old one's memory.
    let (sizes, order) = ([8i64, 3, 4], [1usize, 2, 0]);
    let mut case = Case::default();
    let old = case.buffer(DType::F32, &sizes, &order);
    let own = case.program.buffers[old].clone();
    let new = case.program.buffers.push(Buffer { storage: Storage::View(old), ..own });
    // The view has no memory of its own.
    case.data.push(vec![0.0]);
    let mut b = BodyBuilder::new();
    let index: Shape = (0..3).map(SymExpr::loop_var).collect();
    let x = b.push(DType::F32, InstKind::Template);
    let half = b.constant(Scalar::Float(-0.5), DType::F32);
    let x = b.op(ScalarOp::Mul, &[x, half]);
    let w = b.load(old, DType::F32, index.clone());
    let x = b.op(ScalarOp::Add, &[w, x]);
    b.store(new, index, x, StoreMode::Write);
    let epilogue_of_update = Epilogue { ranges: shape(&sizes), insts: b.finish() };
    let (a, w) = (case.operand(old), case.operand(old));
    let matmul = Matmul {
        name: "m".into(),
        origins: Vec::new(),
        a,
        b: w,
        acc: DType::F32,
        zero: 0,
        dequant: None,
        groups: None,
        epilogue: epilogue_of_update,
    };
    let step = Step::Matmul(matmul);
    let kernel = epilogue(&case.program, &step, DType::F32, Packed::Dense(&order)).unwrap();
    assert_eq!(kernel.source.matches("Vec<float, 4> *)(b0").count(), 2, "{}", kernel.source);
    let result: Vec<f32> = (0..96).map(|i| number(9, i)).collect();
    let (got, _) = case.run(&kernel, &[to_bytes(DType::F32, &result)], old);
    for (i, (got, old)) in got.iter().zip(&case.data[old.index()]).enumerate() {
        assert_eq!(*got, old - 0.5 * result[i], "{i}");
    }
}
