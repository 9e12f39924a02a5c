//! What the tests share: programs of one loop kernel, buffers of any dtype, and a plain evaluator of loop kernels as
//! the oracle. Not fast and not complete: it knows what the tests use.
#![allow(dead_code, unreachable_pub, missing_docs)]

use backend_cpu::exec::{Compiled, ExecOptions};
use ir_core::{Atom, DType, Scalar, Shape, SymExpr, contiguous_strides};
use kernel_ir::{
    AccDecl, ArenaPlan, BufId, Buffer, InputSpec, InstKind, LoopKernel, OutputSpec, Program, ReduceOp, Stage,
    Step, Storage, StoreMode, Symbol,
};
use plugin_sdk::{OwnedTensor, TensorView};

/// A size.
pub fn n(x: i64) -> SymExpr {
    SymExpr::from_i64(x)
}
/// Sizes.
pub fn shape(sizes: &[i64]) -> Shape {
    sizes.iter().map(|s| n(*s)).collect()
}
/// Loop variable.
pub fn i(v: u32) -> SymExpr {
    SymExpr::loop_var(v)
}

/// A program under construction.
#[derive(Default)]
pub struct Build {
    pub program: Program,
}

impl Build {
    pub fn symbol(&mut self, name: &str, min: i64, max: i64) -> SymExpr {
        let decl = Symbol { name: name.into(), min, max: Some(max), hint: None, unbacked: false };
        SymExpr::sym(self.program.symbols.push(decl))
    }
    pub fn buffer(&mut self, dtype: DType, sizes: Shape, strides: Shape, storage: Storage) -> BufId {
        let name = format!("t{}", self.program.buffers.len());
        self.program.buffers.push(Buffer { name, dtype, sizes, strides, offset: SymExpr::ZERO, storage })
    }
    pub fn input(&mut self, dtype: DType, sizes: Shape) -> BufId {
        let strides = contiguous_strides(&sizes);
        self.input_strided(dtype, sizes, strides)
    }
    pub fn input_strided(&mut self, dtype: DType, sizes: Shape, strides: Shape) -> BufId {
        let number = self.program.inputs.len();
        let buf = self.buffer(dtype, sizes, strides, Storage::Input(number as u32));
        self.program.inputs.push(InputSpec { name: format!("x{number}"), buf, written: false });
        buf
    }
    pub fn output(&mut self, dtype: DType, sizes: Shape) -> BufId {
        let strides = contiguous_strides(&sizes);
        self.output_strided(dtype, sizes, strides)
    }
    pub fn output_strided(&mut self, dtype: DType, sizes: Shape, strides: Shape) -> BufId {
        let buf = self.buffer(dtype, sizes.clone(), strides.clone(), Storage::Output);
        let name = format!("y{}", self.program.outputs.len());
        self.program.outputs.push(OutputSpec { name, buf, sizes, strides, offset: SymExpr::ZERO });
        buf
    }
    pub fn arena(&mut self, dtype: DType, sizes: Shape) -> BufId {
        let strides = contiguous_strides(&sizes);
        self.buffer(dtype, sizes, strides, Storage::Arena)
    }
    pub fn kernel(&mut self, outer: Shape, accs: Vec<AccDecl>, stages: Vec<Stage>) {
        let name = format!("k{}", self.program.steps.len());
        self.program.steps.push(Step::Loop(LoopKernel { name, origins: vec![], outer, accs, stages }));
    }
    pub fn finish(mut self) -> Program {
        self.program.plan = ArenaPlan::of(&self.program);
        self.program
    }
}

/// Values of a dtype as scalars, with their sizes.
#[derive(Clone, Debug)]
pub struct Data {
    pub dtype: DType,
    pub sizes: Vec<i64>,
    pub values: Vec<Scalar>,
}

impl Data {
    pub fn new(dtype: DType, sizes: &[i64], values: Vec<Scalar>) -> Data {
        assert_eq!(values.len() as i64, sizes.iter().product::<i64>());
        Data { dtype, sizes: sizes.to_vec(), values }
    }
    pub fn floats(dtype: DType, sizes: &[i64], f: impl Fn(usize) -> f64) -> Data {
        let count = sizes.iter().product::<i64>() as usize;
        Data::new(dtype, sizes, (0..count).map(|k| Scalar::Float(f(k)).to_class_of(dtype)).collect())
    }
    pub fn bytes(&self) -> Vec<u8> {
        self.values.iter().flat_map(|v| encode(self.dtype, *v)).collect()
    }
}

pub fn encode(dtype: DType, v: Scalar) -> Vec<u8> {
    match dtype {
        DType::Bool => vec![v.as_bool() as u8],
        DType::U8 | DType::I8 => vec![v.as_i64() as u8],
        DType::I16 => (v.as_i64() as i16).to_le_bytes().to_vec(),
        DType::I32 => (v.as_i64() as i32).to_le_bytes().to_vec(),
        DType::I64 => v.as_i64().to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f64(v.as_f64()).to_le_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f64(v.as_f64()).to_le_bytes().to_vec(),
        DType::F32 => (v.as_f64() as f32).to_le_bytes().to_vec(),
        _ => v.as_f64().to_le_bytes().to_vec(),
    }
}

pub fn decode(dtype: DType, b: &[u8]) -> Scalar {
    match dtype {
        DType::Bool => Scalar::Bool(b[0] != 0),
        DType::U8 => Scalar::Int(b[0] as i64),
        DType::I8 => Scalar::Int(b[0] as i8 as i64),
        DType::I16 => Scalar::Int(i16::from_le_bytes(b.try_into().unwrap()) as i64),
        DType::I32 => Scalar::Int(i32::from_le_bytes(b.try_into().unwrap()) as i64),
        DType::I64 => Scalar::Int(i64::from_le_bytes(b.try_into().unwrap())),
        DType::F16 => Scalar::Float(half::f16::from_le_bytes(b.try_into().unwrap()).to_f64()),
        DType::BF16 => Scalar::Float(half::bf16::from_le_bytes(b.try_into().unwrap()).to_f64()),
        DType::F32 => Scalar::Float(f32::from_le_bytes(b.try_into().unwrap()) as f64),
        _ => Scalar::Float(f64::from_le_bytes(b.try_into().unwrap())),
    }
}

/// Sizes of 64-byte aligned element storage for any dtype.
pub fn view<'a>(data: &'a Data, store: &'a [u64], strides: &'a [i64]) -> TensorView<'a> {
    let bytes = store.len() * 8;
    macro_rules! of {
        ($t:ty) => {{
            let first = store.as_ptr().cast::<$t>();
            // SAFETY: plain numbers over aligned, initialised memory.
            let s = unsafe { std::slice::from_raw_parts(first, bytes / size_of::<$t>()) };
            TensorView::from_slice(s, data.dtype, &data.sizes, strides).unwrap()
        }};
    }
    match data.dtype {
        DType::Bool | DType::U8 => of!(u8),
        DType::I8 => of!(i8),
        DType::I16 => of!(i16),
        DType::I32 => of!(i32),
        DType::I64 => of!(i64),
        DType::F16 => of!(half::f16),
        DType::BF16 => of!(half::bf16),
        DType::F32 => of!(f32),
        _ => of!(f64),
    }
}

pub fn row_major(sizes: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; sizes.len()];
    for d in (1..sizes.len()).rev() {
        strides[d - 1] = strides[d] * sizes[d].max(1);
    }
    strides
}

/// Reads a result in logical order.
pub fn read(t: &mut OwnedTensor) -> Data {
    let (dtype, sizes, strides) = (t.dtype(), t.sizes().to_vec(), t.strides().to_vec());
    let p = t.as_mut_ptr();
    let count: i64 = sizes.iter().product();
    let values = (0..count)
        .map(|k| {
            let mut rest = k;
            let mut at = 0;
            for d in (0..sizes.len()).rev() {
                at += rest % sizes[d] * strides[d];
                rest /= sizes[d];
            }
            // SAFETY: an element of the tensor.
            let b = unsafe { std::slice::from_raw_parts(p.add(at as usize * dtype.size()), dtype.size()) };
            decode(dtype, b)
        })
        .collect();
    Data { dtype, sizes, values }
}

/// Runs a compiled program on contiguous inputs.
pub fn execute(c: &Compiled, inputs: &[Data]) -> Result<Vec<Data>, backend_cpu::exec::ExecError> {
    let stores: Vec<Vec<u64>> = inputs
        .iter()
        .map(|d| {
            let mut b = d.bytes();
            b.resize(b.len().next_multiple_of(8) + 8, 0);
            b.chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect()
        })
        .collect();
    let strides: Vec<Vec<i64>> = inputs.iter().map(|d| row_major(&d.sizes)).collect();
    let views: Vec<TensorView<'_>> =
        inputs.iter().zip(&stores).zip(&strides).map(|((d, s), st)| view(d, s, st)).collect();
    Ok(c.execute(&views)?.iter_mut().map(read).collect())
}

pub fn compile(p: Program) -> Compiled {
    let text = p.to_string();
    Compiled::new(p, ExecOptions { threads: 1, ..ExecOptions::default() })
        .unwrap_or_else(|e| panic!("{e}\n{text}"))
}

pub fn run(p: Program, inputs: &[Data]) -> Vec<Data> {
    execute(&compile(p), inputs).unwrap()
}

/// Whether two numbers agree: floats within `ulps` of the dtype or `abs`.
pub fn close(dtype: DType, got: Scalar, want: Scalar, ulps: f64, abs: f64) -> bool {
    if !dtype.is_float() {
        return got == want;
    }
    let (g, w) = (got.as_f64(), want.as_f64());
    if g.is_nan() || w.is_nan() || g.is_infinite() || w.is_infinite() {
        return g == w || (g.is_nan() && w.is_nan());
    }
    let eps = match dtype {
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        DType::F32 => f32::EPSILON as f64,
        _ => f64::EPSILON,
    };
    let tiny = if dtype == DType::F64 { f64::MIN_POSITIVE } else { f32::MIN_POSITIVE as f64 };
    (g - w).abs() <= abs + ulps * eps * w.abs().max(tiny)
}

pub fn assert_close(got: &Data, want: &Data, ulps: f64, abs: f64, what: &str) {
    assert_eq!(got.sizes, want.sizes, "{what}");
    for (k, (g, w)) in got.values.iter().zip(&want.values).enumerate() {
        assert!(close(got.dtype, *g, *w, ulps, abs), "{what}: element {k} is {g}, should be {w}");
    }
}

/// Rounds to what a dtype can hold.
pub fn round(dtype: DType, v: Scalar) -> Scalar {
    decode(dtype, &encode(dtype, v.to_class_of(dtype)))
}

/// The plain evaluator: runs every loop kernel of a program, point by point, in scalars.
pub fn evaluate(p: &Program, inputs: &[Data], sizes: &[i64]) -> Vec<Data> {
    let mut memory: Vec<Vec<Scalar>> = Vec::new();
    let size = |e: &SymExpr| {
        e.eval(&|a| if let Atom::Sym(s) = a { sizes.get(s.0 as usize).copied() } else { None }).unwrap()
    };
    for (_, b) in p.buffers.iter() {
        memory.push(vec![Scalar::zero(b.dtype); size(&b.span()).max(1) as usize]);
    }
    for (spec, d) in p.inputs.iter().zip(inputs) {
        let b = &p.buffers[spec.buf];
        for (k, v) in d.values.iter().enumerate() {
            let at = offset(&d.sizes, &b.strides.iter().map(&size).collect::<Vec<_>>(), k as i64);
            memory[spec.buf.0 as usize][at as usize] = *v;
        }
    }
    for step in &p.steps {
        let Step::Loop(k) = step else { panic!("only loop kernels") };
        let outer: Vec<i64> = k.outer.iter().map(&size).collect();
        for point in 0..outer.iter().product::<i64>() {
            let mut loops = digits(&outer, point);
            let mut accs: Vec<(Scalar, i64)> =
                k.accs.iter().map(|a| (a.op.identity(a.dtype), i64::MAX)).collect();
            for stage in &k.stages {
                let inner: Vec<i64> = stage.inner.iter().map(&size).collect();
                let mut scans: Vec<Option<Scalar>> = vec![None; stage.insts.len()];
                for q in 0..inner.iter().product::<i64>() {
                    loops.truncate(outer.len());
                    loops.extend(digits(&inner, q));
                    if loops.last() == Some(&0) || inner.is_empty() {
                        scans.fill(None);
                    }
                    point_of(p, k, stage, &loops, sizes, &mut memory, &mut accs, &mut scans);
                }
            }
        }
    }
    p.outputs
        .iter()
        .map(|o| {
            let (b, extent) = (&p.buffers[o.buf], o.sizes.iter().map(&size).collect::<Vec<_>>());
            let strides: Vec<i64> = o.strides.iter().map(&size).collect();
            let count = extent.iter().product::<i64>();
            let values =
                (0..count).map(|k| memory[o.buf.0 as usize][offset(&extent, &strides, k) as usize]).collect();
            Data::new(b.dtype, &extent, values)
        })
        .collect()
}

fn digits(sizes: &[i64], mut k: i64) -> Vec<i64> {
    let mut out = vec![0; sizes.len()];
    for d in (0..sizes.len()).rev() {
        out[d] = k % sizes[d];
        k /= sizes[d];
    }
    out
}

fn offset(sizes: &[i64], strides: &[i64], k: i64) -> i64 {
    digits(sizes, k).iter().zip(strides).map(|(i, s)| i * s).sum()
}

fn better(op: ReduceOp, old: Scalar, new: Scalar) -> bool {
    let (a, b) = (old.as_f64(), new.as_f64());
    (b.is_nan() && !a.is_nan()) || if op == ReduceOp::ArgMax { b > a } else { b < a }
}

#[allow(clippy::too_many_arguments)]
fn point_of(
    p: &Program,
    k: &LoopKernel,
    stage: &Stage,
    loops: &[i64],
    sizes: &[i64],
    memory: &mut [Vec<Scalar>],
    accs: &mut [(Scalar, i64)],
    scans: &mut [Option<Scalar>],
) {
    let mut vals: Vec<Scalar> = Vec::new();
    for (n, inst) in stage.insts.iter().enumerate() {
        let expr = |e: &SymExpr, vals: &[Scalar]| {
            e.eval(&|a| match a {
                Atom::Sym(s) => sizes.get(s.0 as usize).copied(),
                Atom::Loop(v) => loops.get(*v as usize).copied(),
                Atom::Value(v) => Some(vals[*v as usize].as_i64()),
                _ => None,
            })
            .unwrap()
        };
        let v = match &inst.kind {
            InstKind::Const(c) => round(inst.dtype, *c),
            InstKind::Index(e) => Scalar::Int(expr(e, &vals)),
            InstKind::Load { buf, index, mask } => {
                if mask.is_some_and(|m| !vals[m.0 as usize].as_bool()) {
                    Scalar::zero(inst.dtype)
                } else {
                    memory[p.root(*buf).0 as usize][expr(&p.buffers[*buf].address(index), &vals) as usize]
                }
            }
            InstKind::Store { buf, index, value, mask, mode } => {
                let v = vals[value.0 as usize];
                if mask.is_none_or(|m| vals[m.0 as usize].as_bool()) {
                    let at = expr(&p.buffers[*buf].address(index), &vals) as usize;
                    let old = memory[p.root(*buf).0 as usize][at];
                    let op = match mode {
                        StoreMode::Write => None,
                        StoreMode::Add => ReduceOp::Sum.combine(),
                        StoreMode::Reduce(op) => op.combine(),
                    };
                    let new = op.map_or(v, |op| op.eval(inst.dtype.compute(), &[old, v]));
                    memory[p.root(*buf).0 as usize][at] = round(inst.dtype, new);
                }
                v
            }
            InstKind::Op { op, args } => {
                let operand = stage.insts[args.last().unwrap().0 as usize].dtype;
                let args: Vec<Scalar> = args.iter().map(|a| vals[a.0 as usize]).collect();
                op.eval(operand, &args)
            }
            InstKind::Check { value, size, mask, .. } => {
                let index = vals[value.0 as usize].as_i64();
                let counts = mask.is_none_or(|m| vals[m.0 as usize].as_bool());
                assert!(!counts || (0..expr(size, &vals)).contains(&index), "index {index}");
                vals[value.0 as usize]
            }
            InstKind::Cast(x) => cast(vals[x.0 as usize], inst.dtype),
            InstKind::Bitcast(x) => {
                decode(inst.dtype, &encode(stage.insts[x.0 as usize].dtype, vals[x.0 as usize]))
            }
            InstKind::Reduce { acc, value, position } => {
                let decl = &k.accs[acc.0 as usize];
                let (old, new) = (accs[acc.0 as usize], vals[value.0 as usize]);
                match decl.op.combine() {
                    Some(op) => {
                        accs[acc.0 as usize].0 = op.eval(DType::F64.min_with(decl.dtype), &[old.0, new])
                    }
                    None if old.1 == i64::MAX || better(decl.op, old.0, new) => {
                        accs[acc.0 as usize] = (new, vals[position.unwrap().0 as usize].as_i64());
                    }
                    None => {}
                }
                new
            }
            InstKind::Acc(a) => {
                let decl = &k.accs[a.0 as usize];
                match decl.op.combine() {
                    Some(_) => round(decl.dtype, accs[a.0 as usize].0),
                    None => Scalar::Int(accs[a.0 as usize].1),
                }
            }
            InstKind::Scan { op, value } => {
                let new = vals[value.0 as usize];
                let old = scans[n].unwrap_or(op.identity(inst.dtype));
                let v = op.combine().unwrap().eval(inst.dtype, &[old, new]);
                scans[n] = Some(v);
                v
            }
            InstKind::Template => panic!("no template in a loop kernel"),
        };
        vals.push(v);
    }
}

trait Wider {
    fn min_with(self, other: DType) -> DType;
}
impl Wider for DType {
    /// Float reductions are evaluated in `f64`, others in their own dtype.
    fn min_with(self, other: DType) -> DType {
        if other.is_float() { self } else { other }
    }
}

/// PyTorch's conversion, saturating at 32 bits (64 for `i64`) before it wraps.
pub fn cast(v: Scalar, to: DType) -> Scalar {
    match (v, to) {
        (Scalar::Float(f), DType::I64) => Scalar::Int(f as i64),
        (Scalar::Float(f), d) if d.is_int() => round(d, Scalar::Int(f as i32 as i64)),
        _ => round(to, v),
    }
}

/// A small generator of numbers that is the same on every machine.
pub struct Rng(pub u64);
impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = self.0 ^ (self.0 >> 29);
        x.wrapping_mul(0xbf58476d1ce4e5b9) >> 16
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    /// In `[-1, 1)`.
    pub fn unit(&mut self) -> f64 {
        self.below(1 << 24) as f64 / (1 << 23) as f64 - 1.0
    }
}
