//! Nanoseconds per element and memory traffic of generated kernels: `cargo run --release --example microbench`.
//! Prints one line per kernel; takes the thread count as its first argument (default 1). Results are valid for this machine only.

use std::time::Instant;

use backend_cpu::exec::{Compiled, ExecOptions};
use ir_core::{DType, Shape, SymExpr, contiguous_strides};
use kernel_ir::{
    AccDecl, AccId, ArenaPlan, BodyBuilder, BufId, Buffer, InputSpec, LoopKernel, OutputSpec, Program,
    ReduceOp, ScalarOp, Stage, Step, Storage, StoreMode, Val,
};
use plugin_sdk::TensorView;

const ROWS: i64 = 512;
const COLS: i64 = 768;

fn shape(sizes: &[i64]) -> Shape {
    sizes.iter().map(|s| SymExpr::from_i64(*s)).collect()
}

fn at(vars: &[u32]) -> Shape {
    vars.iter().map(|v| SymExpr::loop_var(*v)).collect()
}

#[derive(Default)]
struct Build(Program);

impl Build {
    fn buffer(&mut self, sizes: &[i64], storage: Storage) -> BufId {
        let sizes = shape(sizes);
        let strides = contiguous_strides(&sizes);
        let name = format!("b{}", self.0.buffers.len());
        self.0.buffers.push(Buffer {
            name,
            dtype: DType::F32,
            sizes,
            strides,
            offset: SymExpr::ZERO,
            storage,
        })
    }
    fn input(&mut self, sizes: &[i64]) -> BufId {
        let n = self.0.inputs.len();
        let buf = self.buffer(sizes, Storage::Input(n as u32));
        self.0.inputs.push(InputSpec { name: format!("x{n}"), buf, written: false });
        buf
    }
    fn output(&mut self, sizes: &[i64]) -> BufId {
        let buf = self.buffer(sizes, Storage::Output);
        let (sizes, strides) = (shape(sizes), contiguous_strides(&shape(sizes)));
        self.0.outputs.push(OutputSpec { name: "y".into(), buf, sizes, strides, offset: SymExpr::ZERO });
        buf
    }
    fn kernel(mut self, outer: &[i64], accs: Vec<AccDecl>, stages: Vec<Stage>) -> Program {
        let kernel = LoopKernel { name: "k".into(), origins: vec![], outer: shape(outer), accs, stages };
        self.0.steps.push(Step::Loop(kernel));
        self.0.plan = ArenaPlan::of(&self.0);
        self.0
    }
}

/// A pointwise kernel of `inputs` tensors.
fn pointwise(inputs: usize, f: impl Fn(&mut BodyBuilder, &[Val]) -> Val) -> Program {
    let mut b = Build::default();
    let bufs: Vec<BufId> = (0..inputs).map(|_| b.input(&[ROWS, COLS])).collect();
    let y = b.output(&[ROWS, COLS]);
    let mut body = BodyBuilder::new();
    let vals: Vec<Val> = bufs.iter().map(|x| body.load(*x, DType::F32, at(&[0, 1]))).collect();
    let v = f(&mut body, &vals);
    body.store(y, at(&[0, 1]), v, StoreMode::Write);
    b.kernel(&[ROWS, COLS], vec![], vec![Stage { inner: Shape::new(), insts: body.finish() }])
}

fn gelu(b: &mut BodyBuilder, v: Val) -> Val {
    let c = |b: &mut BodyBuilder, x: f64| b.constant(x, DType::F32);
    let (half, one, root) = (c(b, 0.5), c(b, 1.0), c(b, 0.5f64.sqrt()));
    let t = b.op(ScalarOp::Mul, &[v, root]);
    let e = b.op(ScalarOp::Erf, &[t]);
    let e = b.op(ScalarOp::Add, &[e, one]);
    let h = b.op(ScalarOp::Mul, &[v, half]);
    b.op(ScalarOp::Mul, &[h, e])
}

/// Rows reduced in stages: `stages[i](body, accumulators so far)`.
fn softmax() -> Program {
    let mut b = Build::default();
    let (x, y) = (b.input(&[ROWS, COLS]), b.output(&[ROWS, COLS]));
    let mut max = BodyBuilder::new();
    let v = max.load(x, DType::F32, at(&[0, 1]));
    max.reduce(AccId(0), v, None);
    let exp = |b: &mut BodyBuilder| {
        let (v, m) = (b.load(x, DType::F32, at(&[0, 1])), b.acc(AccId(0), DType::F32));
        let d = b.op(ScalarOp::Sub, &[v, m]);
        b.op(ScalarOp::Exp, &[d])
    };
    let mut sum = BodyBuilder::new();
    let e = exp(&mut sum);
    sum.store(y, at(&[0, 1]), e, StoreMode::Write);
    sum.reduce(AccId(1), e, None);
    let mut out = BodyBuilder::new();
    let (e, s) = (out.load(y, DType::F32, at(&[0, 1])), out.acc(AccId(1), DType::F32));
    let r = out.op(ScalarOp::Div, &[e, s]);
    out.store(y, at(&[0, 1]), r, StoreMode::Write);
    rows(b, vec![ReduceOp::Max, ReduceOp::Sum], vec![max, sum, out])
}

fn rows(b: Build, accs: Vec<ReduceOp>, stages: Vec<BodyBuilder>) -> Program {
    let accs = accs.into_iter().map(|op| AccDecl { op, dtype: DType::F32 }).collect();
    let stages = stages.into_iter().map(|s| Stage { inner: shape(&[COLS]), insts: s.finish() }).collect();
    b.kernel(&[ROWS], accs, stages)
}

fn layer_norm() -> Program {
    let mut b = Build::default();
    let (x, w, c) = (b.input(&[ROWS, COLS]), b.input(&[COLS]), b.input(&[COLS]));
    let y = b.output(&[ROWS, COLS]);
    let mut sum = BodyBuilder::new();
    let v = sum.load(x, DType::F32, at(&[0, 1]));
    sum.reduce(AccId(0), v, None);
    let centred = |b: &mut BodyBuilder| {
        let (v, s) = (b.load(x, DType::F32, at(&[0, 1])), b.acc(AccId(0), DType::F32));
        let n = b.constant(1.0 / COLS as f64, DType::F32);
        let mean = b.op(ScalarOp::Mul, &[s, n]);
        b.op(ScalarOp::Sub, &[v, mean])
    };
    let mut var = BodyBuilder::new();
    let d = centred(&mut var);
    let d = var.op(ScalarOp::Mul, &[d, d]);
    var.reduce(AccId(1), d, None);
    let mut out = BodyBuilder::new();
    let d = centred(&mut out);
    let s = out.acc(AccId(1), DType::F32);
    let n = out.constant(1.0 / COLS as f64, DType::F32);
    let m = out.op(ScalarOp::Mul, &[s, n]);
    let eps = out.constant(1e-5, DType::F32);
    let m = out.op(ScalarOp::Add, &[m, eps]);
    let r = out.op(ScalarOp::Rsqrt, &[m]);
    let d = out.op(ScalarOp::Mul, &[d, r]);
    let (w, c) = (out.load(w, DType::F32, at(&[1])), out.load(c, DType::F32, at(&[1])));
    let d = out.op(ScalarOp::Mul, &[d, w]);
    let d = out.op(ScalarOp::Add, &[d, c]);
    out.store(y, at(&[0, 1]), d, StoreMode::Write);
    rows(b, vec![ReduceOp::Sum, ReduceOp::Sum], vec![sum, var, out])
}

/// Reductions over the rows of a matrix at every column; `stages[i](body, column, row)` may use the results so far.
fn columns(b: Build, [rows, cols]: [i64; 2], accs: Vec<AccDecl>, stages: Vec<BodyBuilder>) -> Program {
    let last = stages.len() - 1;
    let inner = |n: usize| if n == last { Shape::new() } else { shape(&[rows]) };
    let stages = stages.into_iter().enumerate();
    let stages = stages.map(|(n, s)| Stage { inner: inner(n), insts: s.finish() }).collect();
    b.kernel(&[cols], accs, stages)
}

fn column_sum(sizes: [i64; 2]) -> Program {
    let mut b = Build::default();
    let (x, y) = (b.input(&sizes), b.output(&sizes[1..]));
    let (mut sum, mut out) = (BodyBuilder::new(), BodyBuilder::new());
    let v = sum.load(x, DType::F32, at(&[1, 0]));
    sum.reduce(AccId(0), v, None);
    let s = out.acc(AccId(0), DType::F32);
    out.store(y, at(&[0]), s, StoreMode::Write);
    columns(b, sizes, vec![AccDecl { op: ReduceOp::Sum, dtype: DType::F32 }], vec![sum, out])
}

/// Mean and sum of squared differences from it, as in a batch norm of channels-last images.
fn column_moments(sizes: [i64; 2]) -> Program {
    let mut b = Build::default();
    let (x, y) = (b.input(&sizes), b.output(&sizes[1..]));
    let (mut sum, mut squares, mut out) = (BodyBuilder::new(), BodyBuilder::new(), BodyBuilder::new());
    let v = sum.load(x, DType::F32, at(&[1, 0]));
    sum.reduce(AccId(0), v, None);
    let (v, s) = (squares.load(x, DType::F32, at(&[1, 0])), squares.acc(AccId(0), DType::F32));
    let n = squares.constant(1.0 / sizes[0] as f64, DType::F32);
    let mean = squares.op(ScalarOp::Mul, &[s, n]);
    let d = squares.op(ScalarOp::Sub, &[v, mean]);
    let d = squares.op(ScalarOp::Mul, &[d, d]);
    squares.reduce(AccId(1), d, None);
    let s = out.acc(AccId(1), DType::F32);
    out.store(y, at(&[0]), s, StoreMode::Write);
    let acc = AccDecl { op: ReduceOp::Sum, dtype: DType::F32 };
    columns(b, sizes, vec![acc.clone(), acc], vec![sum, squares, out])
}

/// The row of the largest element of each column.
fn column_argmax(sizes: [i64; 2]) -> Program {
    let mut b = Build::default();
    let (x, y) = (b.input(&sizes), b.output(&sizes[1..]));
    let (mut best, mut out) = (BodyBuilder::new(), BodyBuilder::new());
    let (v, row) = (best.load(x, DType::F32, at(&[1, 0])), best.index(SymExpr::loop_var(1)));
    best.reduce(AccId(0), v, Some(row));
    let s = out.acc(AccId(0), DType::I64);
    let s = out.cast(s, DType::F32);
    out.store(y, at(&[0]), s, StoreMode::Write);
    columns(b, sizes, vec![AccDecl { op: ReduceOp::ArgMax, dtype: DType::F32 }], vec![best, out])
}

/// A copy whose input is read at `from(output's row, output's column)`.
fn copy(sizes: [i64; 2], to: [i64; 2], from: impl Fn(SymExpr, SymExpr) -> [SymExpr; 2]) -> Program {
    let mut b = Build::default();
    let (x, y) = (b.input(&sizes), b.output(&to));
    let mut body = BodyBuilder::new();
    let index = from(SymExpr::loop_var(0), SymExpr::loop_var(1)).into_iter().collect();
    let v = body.load(x, DType::F32, index);
    body.store(y, at(&[0, 1]), v, StoreMode::Write);
    b.kernel(&to, vec![], vec![Stage { inner: Shape::new(), insts: body.finish() }])
}

fn transpose() -> Program {
    let mut b = Build::default();
    let (x, y) = (b.input(&[ROWS, COLS]), b.output(&[COLS, ROWS]));
    let mut body = BodyBuilder::new();
    let v = body.load(x, DType::F32, at(&[1, 0]));
    body.store(y, at(&[0, 1]), v, StoreMode::Write);
    b.kernel(&[COLS, ROWS], vec![], vec![Stage { inner: Shape::new(), insts: body.finish() }])
}

fn time(name: &str, program: Program, threads: usize) -> Result<(), Box<dyn std::error::Error>> {
    let started = Instant::now();
    let inputs: Vec<Vec<i64>> = program
        .inputs
        .iter()
        .map(|i| program.buffers[i.buf].sizes.iter().filter_map(SymExpr::as_const).collect())
        .collect();
    let elements: i64 = inputs.iter().map(|s| s.iter().product::<i64>()).sum::<i64>()
        + program.outputs.iter().map(|o| ir_core::numel(&o.sizes).as_const().unwrap_or(0)).sum::<i64>();
    let compiled = Compiled::new(program, ExecOptions { threads, ..ExecOptions::default() })?;
    let compile = started.elapsed();
    let data: Vec<Vec<f32>> = inputs
        .iter()
        .map(|s| (0..s.iter().product::<i64>()).map(|k| (k % 1013) as f32 / 200.0 - 2.5).collect())
        .collect();
    let strides: Vec<Vec<i64>> =
        inputs.iter().map(|s| if s.len() == 2 { vec![s[1], 1] } else { vec![1; s.len()] }).collect();
    let views = (0..data.len())
        .map(|k| TensorView::from_slice(&data[k], DType::F32, &inputs[k], &strides[k]))
        .collect::<Result<Vec<_>, _>>()?;
    let mut best = f64::INFINITY;
    for _ in 0..40 {
        let started = Instant::now();
        for _ in 0..5 {
            std::hint::black_box(compiled.execute(&views)?);
        }
        best = best.min(started.elapsed().as_secs_f64() / 5.0);
    }
    let points = (ROWS * COLS) as f64;
    println!(
        "{name:16} {:7.3} ns/element {:7.1} GB/s   compiled in {:.2} ms, {} bytes of code",
        best * 1e9 / points,
        elements as f64 * 4.0 / best / 1e9,
        compile.as_secs_f64() * 1e3,
        compiled.code_bytes()
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1);
    let add_relu = pointwise(2, |b, v| {
        let s = b.op(ScalarOp::Add, &[v[0], v[1]]);
        let zero = b.constant(0.0, DType::F32);
        b.op(ScalarOp::Max, &[s, zero])
    });
    time("add+relu", add_relu, threads)?;
    time("gelu", pointwise(1, |b, v| gelu(b, v[0])), threads)?;
    time("tanh", pointwise(1, |b, v| b.op(ScalarOp::Tanh, &[v[0]])), threads)?;
    time("exp", pointwise(1, |b, v| b.op(ScalarOp::Exp, &[v[0]])), threads)?;
    time("sin", pointwise(1, |b, v| b.op(ScalarOp::Sin, &[v[0]])), threads)?;
    time("softmax", softmax(), threads)?;
    time("layer norm", layer_norm(), threads)?;
    time("column sum", column_sum([ROWS, COLS]), threads)?;
    time("of 64 columns", column_sum([ROWS * COLS / 64, 64]), threads)?;
    time("of 1000 columns", column_sum([393, 1000]), threads)?;
    time("moments", column_moments([ROWS, COLS]), threads)?;
    time("column argmax", column_argmax([ROWS, COLS]), threads)?;
    time("transpose", transpose(), threads)?;
    time("every second", copy([ROWS, 2 * COLS], [ROWS, COLS], |i, j| [i, j * 2]), threads)?;
    // Patches of 4×4 of an image, one after another.
    let patches = |i: SymExpr, j: SymExpr| {
        let (down, across) = (i.floor_div(&SymExpr::from_i64(4)), i.modulo(&SymExpr::from_i64(4)));
        let (row, col) = (j.floor_div(&SymExpr::from_i64(192)), j.modulo(&SymExpr::from_i64(192)));
        [row * 128 + down, col * 4 + across]
    };
    time("patches", copy([ROWS, COLS], [ROWS, COLS], patches), threads)
}
