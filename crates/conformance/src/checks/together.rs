//! Groups of concurrent steps: loops and products of several shapes in one step, at sizes of the call, with temporaries
//! that must not share memory with another member's.

use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{
    AccDecl, AccId, BodyBuilder, BufId, Epilogue, InstKind, Matmul, ReduceOp, ScalarOp, Stage, Step,
    StoreMode, Together,
};

use super::Cx;
use crate::build::{Build, exprs, i, loops, shape};
use crate::case::{Case, Fault, Tolerance};
use crate::values::filled;

pub(super) fn together(cx: &mut Cx) -> Result<(), Fault> {
    cx.cases([many_shapes(), one_after_another(), many_alike()])
}

/// `to[…] = op(from[…])` over the whole of both.
fn point(b: &Build, from: BufId, to: BufId, op: ScalarOp) -> Step {
    let buffer = &b.program.buffers[to];
    let (outer, dtype) = (buffer.sizes.clone(), buffer.dtype);
    let mut body = BodyBuilder::new();
    let v = body.load(from, dtype, loops(outer.len()));
    let v = body.op(op, &[v]);
    body.store(to, loops(outer.len()), v, StoreMode::Write);
    b.kernel(outer, vec![], vec![Stage { inner: Shape::new(), insts: body.finish() }])
}

/// The sums of the rows of `from`.
fn row_sums(b: &Build, from: BufId, to: BufId) -> Step {
    let buffer = &b.program.buffers[from];
    let (sizes, dtype) = (buffer.sizes.clone(), buffer.dtype);
    let mut body = BodyBuilder::new();
    let v = body.load(from, dtype, loops(2));
    body.reduce(AccId(0), v, None);
    let mut after = BodyBuilder::new();
    let v = after.acc(AccId(0), dtype);
    after.store(to, loops(1), v, StoreMode::Write);
    let stages = [(exprs([sizes[1].clone()]), body), (Shape::new(), after)];
    let stages = stages.map(|(inner, body)| Stage { inner, insts: body.finish() });
    b.kernel(exprs([sizes[0].clone()]), vec![AccDecl { op: ReduceOp::Sum, dtype }], stages.into())
}

/// The product of two matrices.
fn product(b: &Build, x: BufId, w: BufId, to: BufId) -> Step {
    let mut body = BodyBuilder::new();
    let v = body.push(DType::F32, InstKind::Template);
    body.store(to, exprs([i(0), i(1)]), v, StoreMode::Write);
    let epilogue = Epilogue { ranges: b.program.buffers[to].sizes.clone(), insts: body.finish() };
    let (name, origins) = ("product".into(), vec![]);
    Step::Matmul(Matmul {
        name,
        origins,
        a: b.whole(x),
        b: b.whole(w),
        acc: DType::F32,
        zero: 0,
        dequant: None,
        groups: None,
        epilogue,
    })
}

fn push(b: &mut Build, steps: Vec<Step>) {
    b.program.steps.push(Step::Together(Together { name: "together".into(), steps }));
}

/// Loops, reductions and products that read one input of as many rows as the call has.
fn many_shapes() -> Result<Case, Fault> {
    let mut b = Build::new("many shapes");
    let n = b.symbol("n", 0, 40);
    let (x, z) = (
        b.input(DType::F32, exprs([n.clone(), SymExpr::from_i64(6)])),
        b.input(DType::F64, shape(&[5, 3, 2])),
    );
    let (w, v) = (b.input(DType::F32, shape(&[6, 4])), b.input(DType::F32, shape(&[6, 9])));
    let outs = [
        exprs([n.clone(), SymExpr::from_i64(6)]),
        exprs([n.clone()]),
        exprs([n.clone(), SymExpr::from_i64(4)]),
    ];
    let [same, sums, left] = outs.map(|sizes| b.output(DType::F32, sizes));
    let (right, other) =
        (b.output(DType::F32, exprs([n, SymExpr::from_i64(9)])), b.output(DType::F64, shape(&[5, 3, 2])));
    let steps = vec![
        point(&b, x, same, ScalarOp::Neg),
        row_sums(&b, x, sums),
        product(&b, x, w, left),
        product(&b, x, v, right),
        point(&b, z, other, ScalarOp::Abs),
    ];
    push(&mut b, steps);
    let mut case =
        Case::new("several shapes at sizes of the call", b.finish(), vec![]).tolerance(Tolerance::CLOSE);
    case.calls.clear();
    let rest = [
        filled(DType::F64, &[5, 3, 2], 2)?,
        filled(DType::F32, &[6, 4], 3)?,
        filled(DType::F32, &[6, 9], 4)?,
    ];
    for n in [1, 0, 7, 40] {
        let x = filled(DType::F32, &[n, 6], 1)?;
        case.calls.push([x].into_iter().chain(rest.iter().cloned()).collect());
    }
    Ok(case)
}

/// Two such steps: the members of the second one must not overwrite memory that another member still reads.
fn one_after_another() -> Result<Case, Fault> {
    let mut b = Build::new("temporaries");
    let x = b.input(DType::F32, shape(&[33]));
    let [p, q, r, s] = [33; 4].map(|n| b.arena(DType::F32, shape(&[n])));
    let (y, z) = (b.output(DType::F32, shape(&[33])), b.output(DType::F32, shape(&[33])));
    let first = vec![point(&b, x, p, ScalarOp::Neg), point(&b, x, q, ScalarOp::Abs)];
    push(&mut b, first);
    let second = vec![point(&b, p, r, ScalarOp::Exp), point(&b, q, s, ScalarOp::Sqrt)];
    push(&mut b, second);
    let third = vec![point(&b, r, y, ScalarOp::Neg), point(&b, s, z, ScalarOp::Neg)];
    push(&mut b, third);
    let inputs = vec![filled(DType::F32, &[33], 5)?];
    Ok(Case::new("temporaries of steps that may run at once", b.finish(), inputs).tolerance(Tolerance::CLOSE))
}

/// As many members as a training step has parameters, many of them of one shape.
fn many_alike() -> Result<Case, Fault> {
    let mut b = Build::new("many members");
    let mut steps = Vec::new();
    let mut inputs = Vec::new();
    for n in 0..96 {
        let sizes: &[i64] = [&[3][..], &[65], &[7, 11], &[300], &[1]][n % 5];
        let x = b.input(DType::F32, shape(sizes));
        let y = b.output(DType::F32, shape(sizes));
        steps.push(point(&b, x, y, if n % 2 == 0 { ScalarOp::Neg } else { ScalarOp::Abs }));
        let dims: Vec<usize> = sizes.iter().map(|n| *n as usize).collect();
        inputs.push(filled(DType::F32, &dims, n as u64)?);
    }
    push(&mut b, steps);
    Ok(Case::new("many members", b.finish(), inputs))
}
