//! Random loops as leaves of both widths and as Cranelift's code over the same memory: the same bits everywhere, but for sums, whose
//! order of additions differs. Lengths include every remainder of a step; operands include NaN, infinities and denormals.

use ir_core::{DType, EntityId, Scalar, Shape, SymExpr, SymId, contiguous_strides};
use kernel_ir::{
    AccDecl, AccId, BodyBuilder, BufId, Buffer, LoopKernel, Program, ReduceOp, ScalarOp, Stage, Storage,
    StoreMode, Symbol, Val,
};

use std::ops::RangeInclusive;

use iced_x86::{CpuidFeature, Decoder, DecoderOptions, Mnemonic};

use super::super::{Target, leaf};
use crate::clif::{Code, Job, compile_for};
use crate::micro::Isa;
use crate::vir::{self, VKernel};

struct Rng(u64);
impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = (self.0 ^ (self.0 >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((x >> 20) % n as u64) as usize
    }
    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

const DTYPES: [DType; 10] = [
    DType::F32,
    DType::F32,
    DType::F64,
    DType::BF16,
    DType::F16,
    DType::I32,
    DType::I64,
    DType::Bool,
    DType::U8,
    DType::I16,
];
/// The rows that a loop runs over, those that a window reaches beyond, and the longest row.
const ROWS: i64 = 3;
const WINDOW: i64 = 2;
const LONGEST: i64 = 150;
/// Most rows of a reduction over rows.
const DEEPEST: i64 = 200;

/// A program of one kernel whose last dimension has `n` points.
struct Case {
    program: Program,
    kernel: LoopKernel,
    sums: bool,
}

fn buffer(p: &mut Program, dtype: DType, sizes: Shape) -> BufId {
    let strides = contiguous_strides(&sizes);
    let name = format!("t{}", p.buffers.len());
    let buffer = Buffer { name, dtype, sizes, strides, offset: SymExpr::ZERO, storage: Storage::Arena };
    p.buffers.push(buffer)
}

fn empty(outer: Shape) -> LoopKernel {
    LoopKernel { name: "k".into(), origins: vec![], outer, accs: vec![], stages: vec![] }
}

/// A random value from those of a body.
fn grow(b: &mut BodyBuilder, rng: &mut Rng, vals: &[Val]) -> Val {
    use ScalarOp::*;
    let x = vals[rng.below(vals.len())];
    let dtype = b.dtype(x);
    let same: Vec<Val> = vals.iter().copied().filter(|v| b.dtype(*v) == dtype).collect();
    let y = rng.pick(&same);
    let unary: &[ScalarOp] = match dtype {
        DType::F32 => &[
            Neg, Abs, Floor, Ceil, Trunc, Round, Sqrt, Rsqrt, Exp, Exp2, Expm1, Log, Log2, Log1p, Tanh, Erf,
            Sin, Cos,
        ],
        DType::F64 => &[Neg, Abs, Floor, Ceil, Trunc, Round, Sqrt, Rsqrt],
        DType::Bool => &[Not],
        d if d.is_int() => &[Not, Neg, Abs],
        _ => &[],
    };
    let binary: &[ScalarOp] = match dtype {
        DType::F32 | DType::F64 => &[Add, Sub, Mul, Div, Min, Max, CopySign, Add, Mul],
        DType::Bool => &[And, Or, Xor],
        d if d.is_int() => &[Add, Sub, Mul, And, Or, Xor, Min, Max, Shl, Shr],
        _ => &[],
    };
    let masks: Vec<Val> = vals.iter().copied().filter(|v| b.dtype(*v) == DType::Bool).collect();
    match rng.below(10) {
        0..=2 if !unary.is_empty() => b.op(rng.pick(unary), &[x]),
        3..=5 if !binary.is_empty() => b.op(rng.pick(binary), &[x, y]),
        6 if !matches!(dtype, DType::BF16 | DType::F16) => b.op(rng.pick(&[Eq, Ne, Lt, Le, Gt, Ge]), &[x, y]),
        7 if !masks.is_empty() => {
            let mask = rng.pick(&masks);
            b.select(mask, x, y)
        }
        8 => {
            let number = rng.pick(&[0.0, 1.0, -2.5, 7.0, f64::NAN]);
            if dtype.is_float() && !matches!(dtype, DType::BF16 | DType::F16) {
                let c = b.constant(Scalar::Float(number), dtype);
                b.op(rng.pick(&[Min, Max, Add, Mul]), &[x, c])
            } else {
                b.cast(x, DType::F32)
            }
        }
        _ => b.cast(x, rng.pick(&DTYPES)),
    }
}

/// A loop over `[3, n]` that loads some buffers, computes and stores, and perhaps a second stage with reductions before it.
fn case(rng: &mut Rng, n: SymExpr) -> Case {
    let mut p = Program::default();
    p.symbols.push(Symbol { name: "n".into(), min: 0, max: Some(LONGEST), hint: None, unbacked: false });
    let full: Shape = [SymExpr::from_i64(ROWS), n.clone()].into_iter().collect();
    let tall: Shape = [SymExpr::from_i64(ROWS + WINDOW), n.clone()].into_iter().collect();
    let row: Shape = [SymExpr::from_i64(ROWS + WINDOW), SymExpr::from_i64(1)].into_iter().collect();
    let inputs: Vec<(BufId, DType, bool)> = (0..2 + rng.below(3))
        .map(|k| {
            let (dtype, whole) = (rng.pick(&DTYPES), k == 0 || rng.below(4) > 0);
            (buffer(&mut p, dtype, if whole { tall.clone() } else { row.clone() }), dtype, whole)
        })
        .collect();
    let reduces = rng.below(3) == 0;
    let point: Shape = [SymExpr::loop_var(0), SymExpr::loop_var(1)].into_iter().collect();
    let first: Shape = [SymExpr::loop_var(0), SymExpr::ZERO].into_iter().collect();
    let mut b = BodyBuilder::new();
    let vals = values(&mut b, rng, &inputs, (&point, &first));
    let mut case = Case { kernel: empty(full.clone()), sums: false, program: Program::default() };
    if rng.below(3) == 0 {
        case.kernel.outer = [n].into_iter().collect();
        deep(&mut case, &mut p, rng);
    } else if rng.below(3) == 0 {
        window(&mut case.kernel, &mut p, rng, &inputs);
    } else if reduces {
        let (accs, sums) = reductions(&mut b, rng, &vals);
        case.sums = sums;
        case.kernel.outer = full[..1].iter().cloned().collect();
        let inner: Shape = full[1..].iter().cloned().collect();
        case.kernel.stages.push(Stage { inner: inner.clone(), insts: std::mem::take(&mut b).finish() });
        for (k, acc) in accs.iter().enumerate() {
            let r = b.acc(AccId(k as u32), acc.dtype);
            let out = buffer(&mut p, acc.dtype, row.clone());
            b.store(out, first.clone(), r, StoreMode::Write);
        }
        case.kernel.stages.push(Stage { inner: Shape::new(), insts: std::mem::take(&mut b).finish() });
        let vals = values(&mut b, rng, &inputs, (&point, &first));
        let mut v = vals[vals.len() - 1];
        // Elements that depend on sums could differ by more than the sums.
        if let Some(acc) = accs.first().filter(|a| !case.sums && a.dtype == b.dtype(v)) {
            let r = b.acc(AccId(0), acc.dtype);
            v = b.op(ScalarOp::Sub, &[v, r]);
        }
        let out = buffer(&mut p, b.dtype(v), full.clone());
        b.store(out, point, v, StoreMode::Write);
        case.kernel.accs = accs;
        case.kernel.stages.push(Stage { inner, insts: b.finish() });
    } else {
        for _ in 0..1 + rng.below(2) {
            let v = vals[vals.len() - 1 - rng.below(vals.len().min(3))];
            let (mut to, mut sizes) = (point.clone(), full.clone());
            if rng.below(4) == 0 {
                sizes[1] = &sizes[1] * 3;
                let two = SymExpr::from_i64(2);
                to[1] = match rng.below(2) {
                    0 => &to[1] * 3 + 1,
                    _ => to[1].floor_div(&two) * 5 + to[1].modulo(&two),
                };
            }
            let out = buffer(&mut p, b.dtype(v), sizes);
            b.store(out, to, v, StoreMode::Write);
        }
        case.kernel.stages.push(Stage { inner: Shape::new(), insts: b.finish() });
    }
    case.program = p;
    case
}

/// A reduction over a window of rows at every point, and what follows from it.
fn window(k: &mut LoopKernel, p: &mut Program, rng: &mut Rng, inputs: &[(BufId, DType, bool)]) {
    let (i, down) = (SymExpr::loop_var(0), SymExpr::loop_var(2));
    let reached: Shape = [&i + &down, SymExpr::loop_var(1)].into_iter().collect();
    let first: Shape = [&i + &down, SymExpr::ZERO].into_iter().collect();
    let mut b = BodyBuilder::new();
    let vals = values(&mut b, rng, inputs, (&reached, &first));
    let row = b.index(i + down * 2 + SymExpr::loop_var(3));
    let limit = b.constant(Scalar::Int(3), DType::I64);
    let inside = b.op(ScalarOp::Lt, &[row, limit]);
    let v = vals[vals.len() - 1];
    let none = b.constant(Scalar::zero(b.dtype(v)), b.dtype(v));
    let v = b.select(inside, v, none);
    let (accs, _) = reductions(&mut b, rng, &[v, vals[0]]);
    let inner = [SymExpr::from_i64(WINDOW + 1), SymExpr::from_i64(1 + rng.below(3) as i64)];
    k.stages.push(Stage { inner: inner.into_iter().collect(), insts: b.finish() });
    let mut b = BodyBuilder::new();
    let point: Shape = [SymExpr::loop_var(0), SymExpr::loop_var(1)].into_iter().collect();
    let mut vals: Vec<Val> = accs.iter().enumerate().map(|(n, a)| b.acc(AccId(n as u32), a.dtype)).collect();
    for _ in 0..rng.below(4) {
        let v = grow(&mut b, rng, &vals);
        vals.push(v);
    }
    let v = vals[vals.len() - 1];
    let out = buffer(p, b.dtype(v), k.outer.clone());
    b.store(out, point, v, StoreMode::Write);
    k.stages.push(Stage { inner: Shape::new(), insts: b.finish() });
    k.accs = accs;
}

/// Reductions over the rows of a matrix at every column, whose loops are too long to unroll, then perhaps others that depend on
/// them, and what follows.
fn deep(case: &mut Case, p: &mut Program, rng: &mut Rng) {
    let column = case.kernel.outer[0].clone();
    let rows = match rng.below(4) {
        0 => column.clone(),
        _ => SymExpr::from_i64(rng.pick(&[5, 64, 65, 127, 128, 129, DEEPEST])),
    };
    let across = 1 + rng.below(3) as i64;
    let inner: Shape = [rows.clone(), SymExpr::from_i64(across)].into_iter().collect();
    let tall = SymExpr::from_i64(DEEPEST + 3);
    let inputs: Vec<(BufId, DType, bool)> = (0..1 + rng.below(3))
        .map(|k| {
            let (dtype, whole) = (rng.pick(&DTYPES), k == 0 || rng.below(3) > 0);
            let width = if whole { column.clone() } else { SymExpr::from_i64(1) };
            (buffer(p, dtype, [tall.clone(), width].into_iter().collect()), dtype, whole)
        })
        .collect();
    let (j, r, q) = (SymExpr::loop_var(0), SymExpr::loop_var(1), SymExpr::loop_var(2));
    let down = if rng.below(4) == 0 { r.clone() } else { &r + &q };
    let at: Shape = [down.clone(), j.clone()].into_iter().collect();
    let first: Shape = [down, SymExpr::ZERO].into_iter().collect();
    let top: Shape = [SymExpr::ZERO, j.clone()].into_iter().collect();
    let stages = 1 + rng.below(2);
    let mut accs: Vec<AccDecl> = Vec::new();
    for stage in 0..stages {
        let mut b = BodyBuilder::new();
        let mut vals = values(&mut b, rng, &inputs, (&at, &first));
        let (buf, dtype, _) = inputs[0];
        vals.push(b.load(buf, dtype, top.clone()));
        if let Some(decl) = accs.first() {
            let dtype = if decl.op.combine().is_some() { decl.dtype } else { DType::I64 };
            vals.push(b.acc(AccId(0), dtype));
        }
        for _ in 0..rng.below(6) {
            let v = grow(&mut b, rng, &vals);
            vals.push(v);
        }
        if stage > 0 && across == 1 && rng.below(2) == 0 {
            let v = vals[vals.len() - 1];
            let out = buffer(p, b.dtype(v), [tall.clone(), column.clone()].into_iter().collect());
            b.store(out, [r.clone(), j.clone()].into_iter().collect(), v, StoreMode::Write);
        }
        let place = b.index(&r * across + &q);
        reductions_of_any(&mut b, rng, &vals, place, &mut accs);
        case.kernel.stages.push(Stage { inner: inner.clone(), insts: b.finish() });
    }
    let mut b = BodyBuilder::new();
    for (n, decl) in accs.iter().enumerate() {
        let dtype = if decl.op.combine().is_some() { decl.dtype } else { DType::I64 };
        let v = b.acc(AccId(n as u32), dtype);
        let out = buffer(p, dtype, [column.clone()].into_iter().collect());
        b.store(out, [j.clone()].into_iter().collect(), v, StoreMode::Write);
    }
    case.kernel.stages.push(Stage { inner: Shape::new(), insts: b.finish() });
    case.sums = true;
    case.kernel.accs = accs;
}

/// Reductions of every kind and dtype.
fn reductions_of_any(b: &mut BodyBuilder, rng: &mut Rng, vals: &[Val], place: Val, accs: &mut Vec<AccDecl>) {
    for _ in 0..1 + rng.below(2) {
        let (v, dtype) = (vals[vals.len() - 1 - rng.below(vals.len().min(4))], rng.pick(&DTYPES));
        let dtype = if matches!(dtype, DType::BF16 | DType::F16) { DType::F32 } else { dtype };
        let v = b.cast(v, dtype);
        let ops: &[ReduceOp] = match dtype {
            DType::Bool => &[ReduceOp::Any, ReduceOp::All],
            d if d.is_float() => {
                &[ReduceOp::Max, ReduceOp::Min, ReduceOp::Sum, ReduceOp::ArgMax, ReduceOp::ArgMin]
            }
            _ => &[
                ReduceOp::Max,
                ReduceOp::Min,
                ReduceOp::Sum,
                ReduceOp::Prod,
                ReduceOp::Xor,
                ReduceOp::ArgMax,
                ReduceOp::ArgMin,
            ],
        };
        let op = rng.pick(ops);
        let v = if op == ReduceOp::Sum && dtype.is_float() { moderate(b, v) } else { v };
        let position = op.combine().is_none().then_some(place);
        b.reduce(AccId(accs.len() as u32), v, position);
        accs.push(AccDecl { op, dtype });
    }
}

/// Loads of all inputs, and values grown from them.
fn values(
    b: &mut BodyBuilder,
    rng: &mut Rng,
    inputs: &[(BufId, DType, bool)],
    at: (&Shape, &Shape),
) -> Vec<Val> {
    let mut vals: Vec<Val> = Vec::new();
    for (buf, dtype, whole) in inputs {
        let index = if *whole { at.0.clone() } else { at.1.clone() };
        let masks: Vec<Val> = vals.iter().copied().filter(|v| b.dtype(*v) == DType::Bool).collect();
        let loaded = match rng.below(3) {
            0 if !masks.is_empty() && *whole => b.load_masked(*buf, *dtype, index, rng.pick(&masks)),
            _ => b.load(*buf, *dtype, index),
        };
        vals.push(loaded);
    }
    if rng.below(4) == 0 {
        vals.push(spread(b, rng, inputs, at.0));
    }
    if rng.below(3) == 0 {
        let i = SymExpr::loop_var(1) * 3 + SymExpr::loop_var(0);
        vals.push(b.index(i));
        let five = b.constant(Scalar::Int(40), DType::I64);
        let last = *vals.last().unwrap();
        vals.push(b.op(ScalarOp::Lt, &[last, five]));
    }
    for _ in 0..rng.below(24) {
        let v = grow(b, rng, &vals);
        vals.push(v);
    }
    vals
}

/// A load with an address for each lane: with a step, of neighbours in groups, or by an index from data.
fn spread(b: &mut BodyBuilder, rng: &mut Rng, inputs: &[(BufId, DType, bool)], at: &Shape) -> Val {
    let (buf, dtype, _) = inputs[rng.below(inputs.len())];
    let mut index = at.clone();
    // The last is the column, the axis if there is one outside.
    let j = index[1].clone();
    let by = SymExpr::from_i64(rng.pick(&[2, 7, 8, 11]));
    index[1] = match rng.below(5) {
        0 => j * 2 + 1,
        1 => j.floor_div(&by) * 3 + j.modulo(&by),
        2 => SymExpr::from_i64(LONGEST) - j,
        3 => (&j * 5 + &index[0]).modulo(&by) * 2 + j,
        _ => {
            let whole =
                inputs.iter().find(|(_, dtype, whole)| *whole && matches!(dtype, DType::I32 | DType::I64));
            let v = match whole {
                Some((from, dtype, _)) => b.load(*from, *dtype, at.clone()),
                None => b.index(j * 3),
            };
            let dtype = b.dtype(v);
            let low = b.constant(Scalar::Int(63), dtype);
            let mut v = b.op(ScalarOp::And, &[v, low]);
            if dtype == DType::I64 && rng.below(2) == 0 {
                v = b.check(v, SymExpr::from_i64(64), None, 0);
            }
            b.as_index(v)
        }
    };
    b.load(buf, dtype, index)
}

fn reductions(b: &mut BodyBuilder, rng: &mut Rng, vals: &[Val]) -> (Vec<AccDecl>, bool) {
    let wanted = [DType::F32, DType::F64, DType::I32, DType::I64, DType::Bool, DType::U8, DType::I16];
    let mut accs = Vec::new();
    let mut sums = false;
    for _ in 0..1 + rng.below(2) {
        let v = vals[rng.below(vals.len())];
        let dtype = rng.pick(&wanted);
        let v = b.cast(v, dtype);
        let ops: &[ReduceOp] = match dtype {
            DType::Bool => &[ReduceOp::Any, ReduceOp::All],
            d if d.is_float() => &[ReduceOp::Max, ReduceOp::Min, ReduceOp::Sum],
            _ => &[
                ReduceOp::Max,
                ReduceOp::Min,
                ReduceOp::Sum,
                ReduceOp::Prod,
                ReduceOp::Xor,
                ReduceOp::Any,
                ReduceOp::All,
            ],
        };
        let op = rng.pick(ops);
        let sum = op == ReduceOp::Sum && dtype.is_float();
        sums |= sum;
        // Terms of moderate size: where large ones cancel, the rest depends on the order.
        let v = if sum { moderate(b, v) } else { v };
        b.reduce(AccId(accs.len() as u32), v, None);
        accs.push(AccDecl { op, dtype });
    }
    (accs, sums)
}

/// A value limited to a thousand; NaN stays.
fn moderate(b: &mut BodyBuilder, v: Val) -> Val {
    let dtype = b.dtype(v);
    let (low, high) = (b.constant(Scalar::Float(-1e3), dtype), b.constant(Scalar::Float(1e3), dtype));
    let v = b.op(ScalarOp::Min, &[v, high]);
    b.op(ScalarOp::Max, &[v, low])
}

/// Bytes of an element: special values of the dtype now and then.
fn element(dtype: DType, rng: &mut Rng) -> Vec<u8> {
    let special = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.0,
        -0.0,
        1e-40,
        -3e-39,
        1.0,
        88.9,
        3e38,
        65504.0,
        6e-8,
    ];
    let plain = (rng.below(1 << 20) as f64 / f64::from(1 << 19) - 1.0) * rng.pick(&[0.5, 4.0, 100.0, 1e6]);
    let x = if rng.below(6) == 0 { rng.pick(&special) } else { plain };
    let bits =
        (rng.below(1 << 30) as u64) << 34 ^ (rng.below(1 << 30) as u64) << 10 ^ rng.below(1 << 12) as u64;
    let int = if rng.below(3) == 0 { bits as i64 } else { plain as i64 };
    match dtype {
        DType::Bool => vec![u8::from(rng.below(2) == 0)],
        DType::U8 | DType::I8 => vec![int as u8],
        DType::I16 => (int as i16).to_le_bytes().to_vec(),
        DType::I32 => (int as i32).to_le_bytes().to_vec(),
        DType::I64 => int.to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f64(x).to_le_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f64(x).to_le_bytes().to_vec(),
        DType::F32 => (x as f32).to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    }
}

/// The number of an element, as one that is compared.
fn number(dtype: DType, b: &[u8]) -> f64 {
    match dtype {
        DType::F32 => f64::from(f32::from_le_bytes(b.try_into().unwrap())),
        DType::F64 => f64::from_le_bytes(b.try_into().unwrap()),
        DType::F16 => half::f16::from_le_bytes(b.try_into().unwrap()).to_f64(),
        DType::BF16 => half::bf16::from_le_bytes(b.try_into().unwrap()).to_f64(),
        _ => 0.0,
    }
}

/// Whether two elements are the same: equal bits, or NaN both; where sums are involved, nearly equal.
fn same(dtype: DType, x: &[u8], y: &[u8], sums: bool) -> bool {
    let (a, b) = (number(dtype, x), number(dtype, y));
    let near = || {
        let size = a.abs().max(b.abs());
        a == b || size.is_finite() && (a - b).abs() <= 1.0 + 1e-5 * size
    };
    // The sign of a zero that is the extreme of several depends on the order.
    x == y || dtype.is_float() && (a.is_nan() && b.is_nan() || a == 0.0 && b == 0.0 || sums && near())
}

struct Compiled {
    code: Code,
    kernel: VKernel,
    bases: Vec<vir::Base>,
}

fn compiled(case: &Case, set: Isa) -> Compiled {
    let mut kernel = vir::lower_kernel(&case.program, &case.kernel).unwrap();
    let bases = vir::relocate(&mut kernel);
    let code = compile_for(&[Job::Kernel(kernel.clone())], set).unwrap();
    Compiled { code, kernel, bases }
}

impl Compiled {
    /// Runs it over all points in blocks of `block`.
    fn run(&self, memory: &mut [Vec<u8>], n: i64, block: i64) {
        let mut table: Vec<*mut u8> = Vec::new();
        for base in &self.bases {
            table.push(memory[base.root.index()].as_mut_ptr().wrapping_offset(base.bytes as isize));
        }
        let eval = |e: &SymExpr| e.eval(&|a| matches!(a, ir_core::Atom::Sym(_)).then_some(n)).unwrap();
        let mut points: i64 = self.kernel.points.iter().map(|d| eval(&d.extent)).product();
        if let Some(axis) = &self.kernel.outer_axis {
            points *= (eval(&axis.extent) + block - 1) / block;
        }
        let sizes = [n];
        // SAFETY: the table has an address for each base of the kernel, within memory of the buffers' sizes.
        unsafe { self.code.kernel(0)(table.as_ptr(), sizes.as_ptr(), 0, points, block) };
    }
}

fn memory(case: &Case, rng: &mut Rng) -> Vec<Vec<u8>> {
    let fill = |b: &Buffer, rng: &mut Rng| -> Vec<u8> {
        (0..(DEEPEST + 3) * LONGEST + 70).flat_map(|_| element(b.dtype, rng)).collect()
    };
    case.program.buffers.values().map(|b| fill(b, rng)).collect()
}

fn check(set: Isa, seed: u64, leaves: &mut usize, lengths: Option<RangeInclusive<i64>>) {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let fixed = rng.below(3) == 0;
    let n = 1 + rng.below(LONGEST as usize) as i64;
    let extent = if fixed { SymExpr::from_i64(n) } else { SymExpr::sym(SymId::from_index(0)) };
    let case = case(&mut rng, extent);
    let (wide, plain) = (compiled(&case, set), compiled(&case, Isa::Portable));
    let Some(target) = Target::of(set) else { return };
    let axis = wide.kernel.outer_axis.as_ref().map(|d| d.var);
    let stages: Vec<usize> = (0..wide.kernel.stages.len()).collect();
    let any = match axis {
        Some(axis) => leaf(target, &wide.kernel, &stages, axis).is_some(),
        None => stages.iter().any(|s| {
            let stage = &wide.kernel.stages[*s];
            stage
                .loops
                .last()
                .is_some_and(|d| stage.vector && leaf(target, &wide.kernel, &[*s], d.var).is_some())
        }),
    };
    *leaves += usize::from(any);
    if target == Target::Avx2 {
        stages.iter().for_each(|s| only_old_instructions(&wide.kernel, *s));
    }
    let before = memory(&case, &mut rng);
    let random =
        if fixed { vec![n] } else { vec![n, 1 + rng.below(40) as i64, 16 * (1 + rng.below(9) as i64)] };
    for n in lengths.filter(|_| !fixed).map_or(random, Iterator::collect) {
        let block = rng.pick(&[16, 64, 128, 192]);
        let (mut got, mut want) = (before.clone(), before.clone());
        wide.run(&mut got, n, block);
        plain.run(&mut want, n, block);
        for (at, (buf, b)) in case.program.buffers.iter().enumerate() {
            let size = b.dtype.size();
            for (k, (x, y)) in got[at].chunks(size).zip(want[at].chunks(size)).enumerate() {
                // Lanes that are columns add in the same order.
                let equal = same(b.dtype, x, y, case.sums && axis.is_none());
                assert!(
                    equal,
                    "seed {seed}, n {n}, {buf:?} {}: element {k} is {x:02x?}, Cranelift's {y:02x?}\n{:#?}",
                    b.dtype, case.kernel
                );
            }
        }
    }
}

/// A leaf of 256 bits has no instruction that a processor with AVX2, FMA and F16C lacks.
fn only_old_instructions(kernel: &VKernel, stage: usize) {
    let axis = kernel.outer_axis.as_ref().or(kernel.stages[stage].loops.last()).map(|d| d.var);
    let Some(made) = axis.and_then(|axis| leaf(Target::Avx2, kernel, &[stage], axis)) else { return };
    for i in &mut Decoder::with_ip(64, &made.machine.code, 0, DecoderOptions::NONE) {
        let new = |f: &CpuidFeature| format!("{f:?}").starts_with("AVX512");
        assert!(!i.is_invalid() && !i.cpuid_features().iter().any(new), "{i:?}");
        // Behind it are the call of host functions, and constants.
        if i.mnemonic() == Mnemonic::Ret {
            return;
        }
    }
}

/// Every number of points up to five steps of eight, with the points that are left. None at all is not tried here.
fn check_every_length(set: Isa, target: Target) {
    if Target::of(set) != Some(target) {
        return;
    }
    let mut leaves = 0;
    for seed in 1..=40 {
        super::FEW.set(seed % 3 == 0);
        check(set, 0x1000 + seed, &mut leaves, Some(1..=40));
    }
    super::FEW.set(false);
    assert!(leaves > 10, "{leaves}");
}

/// Cases of one width; at least `part` in a hundred have a leaf.
fn check_all(set: Isa, target: Target, part: u64) {
    if Target::of(set) != Some(target) {
        return;
    }
    let cases = std::env::var("FERROFLUX_FUZZ_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(400u64);
    let first = std::env::var("FERROFLUX_FUZZ_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1u64);
    let mut leaves = 0;
    for seed in first..first + cases {
        // Every third has so few registers that values are spilled.
        super::FEW.set(seed % 3 == 0);
        check(set, seed, &mut leaves, None);
    }
    super::FEW.set(false);
    println!("{leaves} of {cases} cases had a leaf of {}", target.name());
    assert!(
        cases < 100 || leaves as u64 * 100 > part * cases,
        "{leaves} of {cases} cases had a leaf of {}",
        target.name()
    );
}

#[test]
fn random_loops_of_512_bits_are_those_of_cranelift() {
    check_all(Isa::Avx512, Target::Avx512, 50);
}

#[test]
fn random_loops_of_256_bits_are_those_of_cranelift() {
    check_all(Isa::Avx2, Target::Avx2, 50);
}

#[test]
fn every_length_of_512_bits() {
    check_every_length(Isa::Avx512, Target::Avx512);
}

#[test]
fn every_length_of_256_bits() {
    check_every_length(Isa::Avx2, Target::Avx2);
}
