//! Kernel programs built by hand: what each construct means, and that what is wrong is named.

use ir_core::{DType, Scalar, Shape, SymExpr, SymId};
use kernel_ir::{
    ArenaPlan, BodyBuilder, BufId, Buffer, Const, Epilogue, ExternCall, ExternOp, InputSpec, InstKind,
    LoopKernel, Matmul, Operand, OutputSpec, Program, ReduceOp, ScalarOp, Stage, Step, Storage as Place,
    StoreMode, Symbol,
};
use tensor::Tensor;

use super::reals;
use crate::kernels::{Executable, KernelError, Options, run};

fn shape(text: &str) -> Shape {
    text.split(',').filter(|t| !t.trim().is_empty()).map(|t| t.parse().unwrap()).collect()
}

/// A row-major buffer.
fn buffer(p: &mut Program, name: &str, dtype: DType, sizes: &str, storage: Place) -> BufId {
    let sizes = shape(sizes);
    let strides = ir_core::contiguous_strides(&sizes);
    p.buffers.push(Buffer { name: name.into(), dtype, sizes, strides, offset: SymExpr::ZERO, storage })
}

fn input(p: &mut Program, name: &str, dtype: DType, sizes: &str) -> BufId {
    let buf = buffer(p, name, dtype, sizes, Place::Input(p.inputs.len() as u32));
    p.inputs.push(InputSpec { name: name.into(), buf, written: false });
    buf
}

fn output(p: &mut Program, dtype: DType, sizes: &str) -> BufId {
    let buf = buffer(p, "out", dtype, sizes, Place::Output);
    let b = p.buffers[buf].clone();
    p.outputs.push(OutputSpec {
        name: "out".into(),
        buf,
        sizes: b.sizes,
        strides: b.strides,
        offset: b.offset,
    });
    buf
}

/// A loop kernel whose stages are given as inner extents and a body.
fn kernel(outer: &str, accs: &[(ReduceOp, DType)], stages: Vec<(&str, BodyBuilder)>) -> Step {
    let mut k = LoopKernel {
        name: "k".into(),
        origins: vec![],
        outer: shape(outer),
        accs: vec![],
        stages: stages
            .into_iter()
            .map(|(inner, b)| Stage { inner: shape(inner), insts: b.finish() })
            .collect(),
    };
    accs.iter().for_each(|&(op, dtype)| {
        k.add_acc(op, dtype);
    });
    Step::Loop(k)
}

fn body(f: impl FnOnce(&mut BodyBuilder)) -> BodyBuilder {
    let mut b = BodyBuilder::new();
    f(&mut b);
    b
}

fn call(p: &Program, inputs: &[Tensor]) -> Result<Vec<f64>, KernelError> {
    run(p, &|_| None, inputs).map(|out| out[0].iter_f64().collect())
}

/// `out = max(x, 0) + 1` over `s0` elements.
fn relu_program() -> Program {
    let mut p = Program::default();
    p.symbols.push(Symbol { name: "n".into(), min: 1, max: Some(4), hint: None, unbacked: false });
    let x = input(&mut p, "x", DType::F32, "s0");
    let out = output(&mut p, DType::F32, "s0");
    let b = body(|b| {
        let v = b.load(x, DType::F32, shape("i0"));
        let zero = b.constant(0.0, DType::F32);
        let one = b.constant(1.0, DType::F32);
        let r = b.op(ScalarOp::Max, &[v, zero]);
        let r = b.op(ScalarOp::Add, &[r, one]);
        b.store(out, shape("i0"), r, StoreMode::Write);
    });
    p.steps = vec![kernel("s0", &[], vec![("", b)])];
    p
}

#[test]
fn one_program_serves_every_size_in_range() {
    let p = relu_program();
    assert_eq!(call(&p, &[reals(&[-1.0, 2.0])]).unwrap(), [1.0, 3.0]);
    assert_eq!(call(&p, &[reals(&[5.0])]).unwrap(), [6.0]);
    let text = call(&p, &[reals(&[0.0; 5])]).unwrap_err().to_string();
    assert_eq!(text, "input `x`: dimension 0 is 5; it must be from 1 to 4");
    let text = call(&p, &[reals(&[0.0; 4]).reshape(&[2, 2]).unwrap()]).unwrap_err().to_string();
    assert_eq!(text, "`x` is f32[2, 2], the program wants f32[s0]");
}

#[test]
fn a_strided_input_is_laid_out_as_the_program_wants() {
    let p = relu_program();
    let column = Tensor::from_vec(vec![1f32, 9.0, 2.0, 9.0], &[2, 2]).unwrap().select(1, 0).unwrap();
    assert_eq!(call(&p, &[column]).unwrap(), [2.0, 3.0]);
    let tail = reals(&[7.0, 8.0, 9.0]).narrow(0, 1, 2).unwrap();
    assert_eq!(call(&p, &[tail]).unwrap(), [9.0, 10.0]);
}

/// A row's softmax: stage 0 reduces the maximum, stage 1 the sum, stage 2 stores.
#[test]
fn stages_read_the_accumulators_of_earlier_ones() {
    let mut p = Program::default();
    let x = input(&mut p, "x", DType::F32, "2, 3");
    let out = output(&mut p, DType::F32, "2, 3");
    let (max, sum) = (kernel_ir::AccId(0), kernel_ir::AccId(1));
    let exp = |b: &mut BodyBuilder| {
        let v = b.load(x, DType::F32, shape("i0, i1"));
        let m = b.acc(max, DType::F32);
        let d = b.op(ScalarOp::Sub, &[v, m]);
        b.op(ScalarOp::Exp, &[d])
    };
    let first = body(|b| {
        let v = b.load(x, DType::F32, shape("i0, i1"));
        b.reduce(max, v, None);
    });
    let second = body(|b| {
        let e = exp(b);
        b.reduce(sum, e, None);
    });
    let third = body(|b| {
        let e = exp(b);
        let s = b.acc(sum, DType::F32);
        let r = b.op(ScalarOp::Div, &[e, s]);
        b.store(out, shape("i0, i1"), r, StoreMode::Write);
    });
    let accs = [(ReduceOp::Max, DType::F32), (ReduceOp::Sum, DType::F32)];
    p.steps = vec![kernel("2", &accs, vec![("3", first), ("3", second), ("3", third)])];
    let x = Tensor::from_vec(vec![0f32, 0.0, 0.0, 1000.0, 0.0, 1000.0], &[2, 3]).unwrap();
    let third = f64::from(1.0f32 / 3.0);
    assert_eq!(call(&p, &[x]).unwrap(), [third, third, third, 0.5, 0.0, 0.5]);
}

fn reduce_row(op: ReduceOp, result: DType, x: &[f32]) -> f64 {
    let mut p = Program::default();
    let input = input(&mut p, "x", DType::F32, &x.len().to_string());
    let out = output(&mut p, result, "");
    let acc = kernel_ir::AccId(0);
    let first = body(|b| {
        let v = b.load(input, DType::F32, shape("i0"));
        let at = b.index(SymExpr::loop_var(0));
        b.reduce(acc, v, op.combine().is_none().then_some(at));
    });
    let second = body(|b| {
        let r = b.acc(acc, result);
        b.store(out, shape(""), r, StoreMode::Write);
    });
    p.steps = vec![kernel("", &[(op, DType::F32)], vec![(&x.len().to_string(), first), ("", second)])];
    call(&p, &[reals(x)]).unwrap()[0]
}

#[test]
fn reductions() {
    let nan = f32::NAN;
    assert_eq!(reduce_row(ReduceOp::ArgMax, DType::I64, &[1.0, 3.0, 3.0, 2.0]), 1.0);
    assert_eq!(reduce_row(ReduceOp::ArgMin, DType::I64, &[1.0, nan, 0.0, nan]), 1.0);
    assert_eq!(reduce_row(ReduceOp::ArgMax, DType::I64, &[f32::NEG_INFINITY; 2]), 0.0);
    assert!(reduce_row(ReduceOp::Max, DType::F32, &[1.0, nan, 2.0]).is_nan());
    assert_eq!(reduce_row(ReduceOp::Min, DType::F32, &[]), f64::INFINITY);
    assert_eq!(reduce_row(ReduceOp::Prod, DType::F32, &[2.0, 3.0]), 6.0);
    // In f32 every one of these would be lost.
    let mut small = vec![1e-8f32; 1000];
    small.push(1.0);
    small.rotate_right(1);
    assert_eq!(reduce_row(ReduceOp::Sum, DType::F32, &small), f64::from(1.00001f32));
}

#[test]
fn a_scan_restarts_with_each_row() {
    let mut p = Program::default();
    let x = input(&mut p, "x", DType::F32, "2, 3");
    let out = output(&mut p, DType::F32, "2, 3");
    let b = body(|b| {
        let v = b.load(x, DType::F32, shape("i0, i1"));
        let s = b.scan(ReduceOp::Sum, v);
        b.store(out, shape("i0, i1"), s, StoreMode::Write);
    });
    p.steps = vec![kernel("2", &[], vec![("3", b)])];
    let x = Tensor::from_vec(vec![1f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]).unwrap();
    assert_eq!(call(&p, &[x]).unwrap(), [1.0, 3.0, 6.0, 4.0, 9.0, 15.0]);
}

/// `out[idx[i]] += x[i]`, where `idx[i]` is not negative.
#[test]
fn stores_at_computed_places_and_masks() {
    let mut p = Program::default();
    let x = input(&mut p, "x", DType::F32, "4");
    let idx = input(&mut p, "idx", DType::I64, "4");
    let out = output(&mut p, DType::F32, "2");
    let zero = body(|b| {
        let z = b.constant(0.0, DType::F32);
        b.store(out, shape("i0"), z, StoreMode::Write);
    });
    let add = body(|b| {
        let i = b.load(idx, DType::I64, shape("i0"));
        let zero = b.constant(0i64, DType::I64);
        let mask = b.op(ScalarOp::Ge, &[i, zero]);
        let v = b.load_masked(x, DType::F32, shape("i0"), mask);
        let index: Shape = [b.as_index(i)].into_iter().collect();
        b.push(
            DType::F32,
            InstKind::Store { buf: out, index, value: v, mask: Some(mask), mode: StoreMode::Add },
        );
    });
    p.steps = vec![kernel("2", &[], vec![("", zero)]), kernel("4", &[], vec![("", add)])];
    let index = |v: Vec<i64>| Tensor::from_vec(v, &[4]).unwrap();
    let x = reals(&[1.0, 2.0, 4.0, 8.0]);
    assert_eq!(call(&p, &[x.clone(), index(vec![0, 1, 0, -1])]).unwrap(), [5.0, 2.0]);
    let text = call(&p, &[x, index(vec![0, 2, 0, 0])]).unwrap_err().to_string();
    assert_eq!(text, "kernel `k` uses element [2] of buffer `out` with sizes [2]");
}

#[test]
fn inputs_are_read_only_and_fresh_memory_is_nan() {
    let mut p = relu_program();
    if let Step::Loop(k) = &mut p.steps[0] {
        for inst in &mut k.stages[0].insts {
            if let InstKind::Store { buf, .. } = &mut inst.kind {
                *buf = BufId(0);
            }
        }
    }
    let text = call(&p, &[reals(&[1.0])]).unwrap_err().to_string();
    assert_eq!(text, "kernel `k` writes buffer `x`, which is read-only");
    p.steps.clear();
    assert!(call(&p, &[reals(&[1.0])]).unwrap()[0].is_nan());
}

fn operand(p: &Program, buf: BufId) -> Operand {
    let b = &p.buffers[buf];
    Operand { buf, sizes: b.sizes.clone(), strides: b.strides.clone(), offset: SymExpr::ZERO }
}

/// `relu(x · wᵀ + bias)`, the transposed weight being made once from the constant.
fn linear_program() -> Program {
    let mut p = Program::default();
    let x = input(&mut p, "x", DType::F32, "s0, 2");
    p.symbols.push(Symbol { name: "n".into(), min: 0, max: None, hint: None, unbacked: false });
    let w = buffer(&mut p, "w", DType::F32, "3, 2", Place::Constant(0));
    let bias = buffer(&mut p, "bias", DType::F32, "3", Place::Constant(1));
    p.constants = vec![
        Const { name: "fc.w".into(), buf: w, range: None },
        Const { name: "fc.bias".into(), buf: bias, range: None },
    ];
    let packed = buffer(&mut p, "packed", DType::F32, "2, 3", Place::Persistent);
    let out = output(&mut p, DType::F32, "s0, 3");
    let pack = body(|b| {
        let v = b.load(w, DType::F32, shape("i1, i0"));
        b.store(packed, shape("i0, i1"), v, StoreMode::Write);
    });
    p.init = vec![kernel("2, 3", &[], vec![("", pack)])];
    let epilogue = body(|b| {
        let v = b.push(DType::F32, InstKind::Template);
        let c = b.load(bias, DType::F32, shape("i1"));
        let zero = b.constant(0.0, DType::F32);
        let v = b.op(ScalarOp::Add, &[v, c]);
        let v = b.op(ScalarOp::Max, &[v, zero]);
        b.store(out, shape("i0, i1"), v, StoreMode::Write);
    });
    p.steps = vec![Step::Matmul(Matmul {
        name: "linear".into(),
        origins: vec![],
        a: operand(&p, x),
        b: operand(&p, packed),
        acc: DType::F32,
        zero: 0,
        dequant: None,
        groups: None,
        epilogue: Epilogue { ranges: shape("s0, 3"), insts: epilogue.finish() },
    })];
    p
}

#[test]
fn templates_epilogues_constants_and_init_steps() {
    let w = Tensor::from_vec(vec![1f32, 0.0, 0.0, 1.0, -1.0, -1.0], &[3, 2]).unwrap();
    let constants = |name: &str| match name {
        "fc.w" => Some(w.clone()),
        "fc.bias" => Some(reals(&[0.5, 0.0, 0.0])),
        _ => None,
    };
    let executable = Executable::new(linear_program(), &constants, Options::default()).unwrap();
    let x = Tensor::from_vec(vec![1f32, 2.0, -3.0, -4.0], &[2, 2]).unwrap();
    let out = executable.call(&[x]).unwrap();
    assert_eq!(out[0].to_vec::<f32>().unwrap(), [1.5, 2.0, 0.0, 0.0, 0.0, 7.0]);
    let none = Tensor::zeros(DType::F32, &[0, 2]).unwrap();
    assert_eq!(executable.call(&[none]).unwrap()[0].sizes(), [0, 3]);
    let missing = Executable::new(linear_program(), &|_| None, Options::default());
    assert!(matches!(missing.err(), Some(KernelError::MissingConstant(name)) if name == "fc.w"));
}

/// Two live arena buffers, by a plan that lets them overlap if `broken`.
fn overlapping(broken: bool) -> Program {
    let mut p = Program::default();
    let x = input(&mut p, "x", DType::F32, "2");
    let (a, c) = (
        buffer(&mut p, "a", DType::F32, "2", Place::Arena),
        buffer(&mut p, "c", DType::F32, "2", Place::Arena),
    );
    let out = output(&mut p, DType::F32, "2");
    let copy = |from: BufId, to: BufId, plus: f64| {
        let b = body(|b| {
            let v = b.load(from, DType::F32, shape("i0"));
            let one = b.constant(plus, DType::F32);
            let v = b.op(ScalarOp::Add, &[v, one]);
            b.store(to, shape("i0"), v, StoreMode::Write);
        });
        kernel("2", &[], vec![("", b)])
    };
    p.steps = vec![copy(x, a, 1.0), copy(x, c, 10.0), copy(a, out, 0.0)];
    p.plan = ArenaPlan::of(&p);
    if broken {
        // As if `a` died before `c` is written.
        p.plan.lives[0].last = 0;
    }
    p
}

#[test]
fn a_wrong_memory_plan_shows() {
    let run = |broken: bool, planned_arena: bool| {
        let options = Options { planned_arena };
        let executable = Executable::new(overlapping(broken), &|_| None, options).unwrap();
        executable.call(&[reals(&[1.0, 2.0])]).unwrap()[0].to_vec::<f32>().unwrap()
    };
    assert_eq!(run(false, false), [2.0, 3.0]);
    assert_eq!(run(false, true), [2.0, 3.0]);
    assert_eq!(run(true, false), [2.0, 3.0]);
    assert_eq!(run(true, true), [11.0, 12.0], "`c` lies over `a`");
}

#[test]
fn views_share_their_roots_memory() {
    let mut p = Program::default();
    let x = input(&mut p, "x", DType::F32, "2, 3");
    let row = p.buffers.push(Buffer {
        name: "row".into(),
        dtype: DType::F32,
        sizes: shape("3"),
        strides: shape("1"),
        offset: SymExpr::from_i64(3),
        storage: Place::View(x),
    });
    let out = output(&mut p, DType::F32, "3");
    let b = body(|b| {
        let v = b.load(row, DType::F32, shape("2 - i0"));
        b.store(out, shape("i0"), v, StoreMode::Write);
    });
    p.steps = vec![kernel("3", &[], vec![("", b)])];
    let all = Tensor::from_vec((0..9).map(|i| i as f32).collect(), &[3, 3]).unwrap();
    // The input itself begins inside a larger storage.
    let x = all.narrow(0, 1, 2).unwrap();
    assert_eq!(call(&p, &[x]).unwrap(), [8.0, 7.0, 6.0]);
}

#[test]
fn sorting_is_stable_and_nan_is_largest() {
    let mut p = Program::default();
    let x = input(&mut p, "x", DType::F32, "2, 4");
    let out = output(&mut p, DType::F32, "2, 4");
    let order = buffer(&mut p, "order", DType::I64, "2, 4", Place::Output);
    let b = p.buffers[order].clone();
    p.outputs.push(OutputSpec {
        name: "order".into(),
        buf: order,
        sizes: b.sizes,
        strides: b.strides,
        offset: b.offset,
    });
    p.steps = vec![Step::Extern(ExternCall {
        name: "sort".into(),
        origins: vec![],
        op: ExternOp::Sort { dim: 1, descending: true },
        inputs: vec![operand(&p, x)],
        outputs: vec![operand(&p, out), operand(&p, order)],
    })];
    let x = Tensor::from_vec(vec![1f32, 2.0, 1.0, 2.0, 0.0, f32::NAN, 5.0, 0.0], &[2, 4]).unwrap();
    let got = run(&p, &|_| None, &[x]).unwrap();
    assert_eq!(got[1].to_vec::<i64>().unwrap(), [1, 3, 0, 2, 1, 2, 0, 3]);
    assert_eq!(got[0].iter_f64().take(4).collect::<Vec<_>>(), [2.0, 2.0, 1.0, 1.0]);
    assert!(got[0].get(&[1, 0]).unwrap().as_f64().is_nan());
}

#[test]
fn casts_and_bitcasts() {
    let mut p = Program::default();
    let x = input(&mut p, "x", DType::F32, "2");
    let out = output(&mut p, DType::I64, "2");
    let b = body(|b| {
        let v = b.load(x, DType::F32, shape("i0"));
        let half = b.cast(v, DType::BF16);
        let v = b.cast(half, DType::F32);
        let bits = b.push(DType::I32, InstKind::Bitcast(v));
        let wide = b.cast(bits, DType::I64);
        b.store(out, shape("i0"), wide, StoreMode::Write);
    });
    p.steps = vec![kernel("2", &[], vec![("", b)])];
    let got = call(&p, &[reals(&[1.0, 1.001])]).unwrap();
    assert_eq!(got, [f64::from(1f32.to_bits()); 2], "1.001 is 1 in bfloat16");
    assert_eq!(Scalar::zero(DType::I64), Scalar::Int(0));
    assert_eq!(SymId(0).to_string(), "s0");
}
