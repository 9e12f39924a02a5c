//! Steps that may run at once, with several threads: what they leave is, bit for bit, what their members leave one after
//! another, and what the plain evaluator says.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs)]
use crate::common::*;
use backend_cpu::exec::{Compiled, ExecOptions};
use ir_core::{DType, Shape};
use kernel_ir::{
    AccDecl, AccId, BodyBuilder, BufId, Epilogue, InstKind, LoopKernel, Matmul, Program, ReduceOp, ScalarOp,
    Stage, Step, StoreMode, Together,
};

fn loops(rank: usize) -> Shape {
    (0..rank as u32).map(i).collect()
}

fn numbers(sizes: &[i64]) -> Data {
    Data::floats(DType::F32, sizes, |k| ((k * 7919 % 1013) as f64 - 500.0) / 250.0)
}

fn looped(name: &str, outer: Shape, accs: Vec<AccDecl>, stages: Vec<Stage>) -> Step {
    Step::Loop(LoopKernel { name: name.into(), origins: vec![], outer, accs, stages })
}

/// `to = op(from)`.
fn points(p: &Program, from: BufId, to: BufId, op: ScalarOp) -> Step {
    let outer = p.buffers[to].sizes.clone();
    let mut b = BodyBuilder::new();
    let v = b.load(from, DType::F32, loops(outer.len()));
    let v = b.op(op, &[v]);
    b.store(to, loops(outer.len()), v, StoreMode::Write);
    looped("points", outer, vec![], vec![Stage { inner: Shape::new(), insts: b.finish() }])
}

/// The largest number of each row.
fn rows(p: &Program, from: BufId, to: BufId) -> Step {
    let sizes = &p.buffers[from].sizes;
    let (outer, inner): (Shape, Shape) =
        (sizes[..1].iter().cloned().collect(), sizes[1..].iter().cloned().collect());
    let mut b = BodyBuilder::new();
    let v = b.load(from, DType::F32, loops(2));
    b.reduce(AccId(0), v, None);
    let mut after = BodyBuilder::new();
    let v = after.acc(AccId(0), DType::F32);
    after.store(to, loops(1), v, StoreMode::Write);
    let stages =
        vec![Stage { inner, insts: b.finish() }, Stage { inner: Shape::new(), insts: after.finish() }];
    looped("rows", outer, vec![AccDecl { op: ReduceOp::Max, dtype: DType::F32 }], stages)
}

/// Every third element of `from` added into few places: one thread takes the points in their order.
fn scattered(from: BufId, to: BufId, count: i64) -> Step {
    let mut b = BodyBuilder::new();
    let v = b.load(from, DType::F32, loops(1));
    let at = b.index(i(0).modulo(&n(3)));
    let at = b.as_index(at);
    b.store(to, [at].into_iter().collect(), v, StoreMode::Add);
    looped("scattered", shape(&[count]), vec![], vec![Stage { inner: Shape::new(), insts: b.finish() }])
}

fn bits(all: &[Data]) -> Vec<Vec<u8>> {
    all.iter().map(Data::bytes).collect()
}

/// Runs a program with and without members at once, on one thread and on two.
fn check(p: &Program, inputs: &[Data], sizes: &[i64]) -> Vec<Data> {
    kernel_ir::verify(p).unwrap();
    let single = p.one_by_one();
    kernel_ir::verify(&single).unwrap();
    let run = |p: &Program, threads: usize| {
        let compiled = Compiled::new(p.clone(), ExecOptions { threads, ..ExecOptions::default() }).unwrap();
        execute(&compiled, inputs).unwrap()
    };
    let wanted = run(&single, 1);
    for (program, threads) in [(p, 1), (p, 2), (&single, 2)] {
        assert_eq!(
            bits(&run(program, threads)),
            bits(&wanted),
            "{threads} threads, sizes {sizes:?}\n{program}"
        );
    }
    wanted
}

#[test]
fn members_leave_what_they_leave_one_after_another() {
    // As long as the call has it: work of one thread, and work that two share.
    let mut b = Build::default();
    let len = b.symbol("n", 0, 100_000);
    let x = b.input(DType::F32, [len.clone()].into_iter().collect());
    let m = b.input(DType::F32, shape(&[37, 300]));
    let y = b.output(DType::F32, [len].into_iter().collect());
    let (top, small, few) = (
        b.output(DType::F32, shape(&[37])),
        b.output(DType::F32, shape(&[5])),
        b.output(DType::F32, shape(&[3])),
    );
    let s = b.input(DType::F32, shape(&[5]));
    let zeros = {
        let mut body = BodyBuilder::new();
        let v = body.constant(0.0, DType::F32);
        body.store(few, loops(1), v, StoreMode::Write);
        looped("zeros", shape(&[3]), vec![], vec![Stage { inner: Shape::new(), insts: body.finish() }])
    };
    b.program.steps.push(zeros);
    let p = &b.program;
    let steps = vec![
        points(p, x, y, ScalarOp::Exp),
        rows(p, m, top),
        scattered(s, few, 5),
        points(p, s, small, ScalarOp::Sqrt),
    ];
    b.program.steps.push(Step::Together(Together { name: "all".into(), steps }));
    let p = b.finish();
    for n in [0, 1, 63, 100_000] {
        let inputs = [numbers(&[n]), numbers(&[37, 300]), Data::floats(DType::F32, &[5], |k| 0.5 + k as f64)];
        let got = check(&p, &inputs, &[n]);
        let want = evaluate(&p.one_by_one(), &inputs, &[n]);
        for (g, w) in got.iter().zip(&want) {
            assert_close(g, w, 8.0, 1e-6, &format!("n = {n}"));
        }
    }
}

#[test]
fn temporaries_of_members_do_not_meet() {
    let mut b = Build::default();
    let x = b.input(DType::F32, shape(&[40_000]));
    let [p, q, r, s] = [(); 4].map(|()| b.arena(DType::F32, shape(&[40_000])));
    let (y, z) = (b.output(DType::F32, shape(&[40_000])), b.output(DType::F32, shape(&[40_000])));
    for pairs in
        [[(x, p, ScalarOp::Neg), (x, q, ScalarOp::Abs)], [(p, r, ScalarOp::Exp), (q, s, ScalarOp::Sqrt)]]
    {
        let steps = pairs.map(|(from, to, op)| points(&b.program, from, to, op)).into();
        b.program.steps.push(Step::Together(Together { name: "both".into(), steps }));
    }
    let last = [(r, y, ScalarOp::Neg), (s, z, ScalarOp::Neg)].map(|(f, t, op)| points(&b.program, f, t, op));
    b.program.steps.push(Step::Together(Together { name: "last".into(), steps: last.into() }));
    let p = b.finish();
    let inputs = [numbers(&[40_000])];
    let got = check(&p, &inputs, &[]);
    for (g, w) in got.iter().zip(&evaluate(&p.one_by_one(), &inputs, &[])) {
        assert_close(g, w, 8.0, 1e-6, "temporaries");
    }
}

#[test]
fn products_keep_their_packed_weights() {
    let mut b = Build::default();
    let x = b.input(DType::F32, shape(&[2, 64]));
    let weights = [48, 16].map(|n| b.input(DType::F32, shape(&[64, n])));
    let outs = [48, 16].map(|n| b.output(DType::F32, shape(&[2, n])));
    let side = b.output(DType::F32, shape(&[2, 64]));
    let operand = |p: &Program, buf: BufId| {
        let kernel_ir::Buffer { sizes, strides, offset, .. } = p.buffers[buf].clone();
        kernel_ir::Operand { buf, sizes, strides, offset }
    };
    let product = |p: &Program, w: BufId, to: BufId| {
        let mut body = BodyBuilder::new();
        let v = body.push(DType::F32, InstKind::Template);
        body.store(to, loops(2), v, StoreMode::Write);
        let epilogue = Epilogue { ranges: p.buffers[to].sizes.clone(), insts: body.finish() };
        let (a, b) = (operand(p, x), operand(p, w));
        Step::Matmul(Matmul {
            name: "product".into(),
            origins: vec![],
            a,
            b,
            acc: DType::F32,
            zero: 0,
            dequant: None,
            groups: None,
            epilogue,
        })
    };
    let p = &b.program;
    let steps = vec![
        product(p, weights[0], outs[0]),
        points(p, x, side, ScalarOp::Neg),
        product(p, weights[1], outs[1]),
    ];
    b.program.steps.push(Step::Together(Together { name: "all".into(), steps }));
    let inputs = [numbers(&[2, 64]), numbers(&[64, 48]), numbers(&[64, 16])];
    check(&b.finish(), &inputs, &[]);
}
