//! Control flow: sizes that a step determines, conditions, counted and open loops, assertions.

use ir_core::{DType, Scalar, SymExpr};
use kernel_ir::{
    AccDecl, AccId, Assert, Bind, BodyBuilder, BufId, Cond, For, ReduceOp, ScalarOp, Stage, Step, Storage,
    StoreMode, While,
};
use tensor::Tensor;

use super::Cx;
use crate::build::{Build, exprs, i, loops, shape};
use crate::case::{Case, Fault};
use crate::values::{filled, tensor};

pub(super) fn control_flow(cx: &mut Cx) -> Result<(), Fault> {
    cx.cases([nonzero(), branch(), counted(), open()])?;
    let (backend, device) = cx.device()?;
    let case = assertion()?;
    cx.case("assertion", || {
        case.run(&backend, &device)?;
        let executable = case.compile(&backend, &device)?;
        match executable.execute(&[&truth(false)?]) {
            Ok(_) => Err(Fault::wrong("a call whose assertion does not hold succeeds")),
            Err(error) if error.to_string().contains("must be true") => Ok(()),
            Err(error) => Err(Fault::wrong(format!("the assertion's message is missing in: {error}"))),
        }
    });
    Ok(())
}

fn truth(value: bool) -> Result<Tensor, Fault> {
    Ok(tensor(DType::Bool, &[], &[Scalar::Bool(value)])?)
}

/// Copies one number.
fn copy(
    b: &Build,
    from: BufId,
    to: BufId,
    dtype: DType,
    change: impl FnOnce(&mut BodyBuilder, kernel_ir::Val) -> kernel_ir::Val,
) -> Step {
    let mut body = BodyBuilder::new();
    let v = body.load(from, dtype, shape(&[]));
    let v = change(&mut body, v);
    body.store(to, shape(&[]), v, StoreMode::Write);
    b.kernel(shape(&[]), vec![], vec![Stage { inner: shape(&[]), insts: body.finish() }])
}

/// The positions of elements that are not zero: count, bind the count, scatter.
fn nonzero() -> Result<Case, Fault> {
    const N: i64 = 13;
    let mut b = Build::new("nonzero");
    let x = b.input(DType::F32, shape(&[N]));
    let (before, count) = (b.arena(DType::I64, shape(&[N])), b.arena(DType::I64, shape(&[])));
    let found = b.unbacked("found", 0, N);
    let y = b.output(DType::I64, exprs([SymExpr::sym(found)]));
    let is_there = |body: &mut BodyBuilder, at: SymExpr| {
        let v = body.load(x, DType::F32, exprs([at]));
        let zero = body.constant(0.0, DType::F32);
        body.op(ScalarOp::Ne, &[v, zero])
    };
    let mut body = BodyBuilder::new();
    let there = is_there(&mut body, i(0));
    let one = body.cast(there, DType::I64);
    let running = body.scan(ReduceOp::Sum, one);
    body.store(before, loops(1), running, StoreMode::Write);
    b.push(shape(&[]), vec![], vec![Stage { inner: shape(&[N]), insts: body.finish() }]);
    let mut body = BodyBuilder::new();
    let v = body.load(before, DType::I64, shape(&[N - 1]));
    body.store(count, shape(&[]), v, StoreMode::Write);
    b.point(shape(&[]), body);
    let from = b.whole(count);
    b.program.steps.push(Step::Bind(Bind { name: "found".into(), symbol: found, from }));
    let mut body = BodyBuilder::new();
    let there = is_there(&mut body, i(0));
    let place = body.load(before, DType::I64, loops(1));
    let at = exprs([body.as_index(place) - 1]);
    let position = body.index(i(0));
    let store = kernel_ir::InstKind::Store {
        buf: y,
        index: at,
        value: position,
        mask: Some(there),
        mode: StoreMode::Write,
    };
    body.push(DType::I64, store);
    b.point(shape(&[N]), body);
    let mut case = Case::new("sizes that depend on data", b.finish(), vec![]);
    let call = |every: usize| -> Result<Vec<Tensor>, Fault> {
        let numbers: Vec<Scalar> =
            (0..N as usize).map(|k| Scalar::Float(if k % every == 1 { k as f64 } else { 0.0 })).collect();
        Ok(vec![tensor(DType::F32, &[N as usize], &numbers)?])
    };
    case.calls = [2, 5, 100].into_iter().map(call).collect::<Result<_, _>>()?;
    Ok(case)
}

/// One of two kernels, by a truth value of the call.
fn branch() -> Result<Case, Fault> {
    let mut b = Build::new("branch");
    let (p, x) = (b.input(DType::Bool, shape(&[])), b.input(DType::F32, shape(&[4])));
    let y = b.output(DType::F32, shape(&[4]));
    let arm = |b: &Build, op: ScalarOp| {
        let mut body = BodyBuilder::new();
        let v = body.load(x, DType::F32, loops(1));
        let v = body.op(op, &[v]);
        body.store(y, loops(1), v, StoreMode::Write);
        vec![b.kernel(shape(&[4]), vec![], vec![Stage { inner: shape(&[]), insts: body.finish() }])]
    };
    let (then, otherwise, pred) = (arm(&b, ScalarOp::Neg), arm(&b, ScalarOp::Abs), b.whole(p));
    b.program.steps.push(Step::Cond(Cond { name: "branch".into(), origins: vec![], pred, then, otherwise }));
    let mut case = Case::new("condition", b.finish(), vec![]);
    let call = |p: bool| -> Result<Vec<Tensor>, Fault> { Ok(vec![truth(p)?, filled(DType::F32, &[4], 91)?]) };
    case.calls = [true, false].into_iter().map(call).collect::<Result<_, _>>()?;
    Ok(case)
}

/// Sums of the rows, one row per iteration.
fn counted() -> Result<Case, Fault> {
    let mut b = Build::new("rows");
    let (x, y) = (b.input(DType::F32, shape(&[5, 3])), b.output(DType::F32, shape(&[5])));
    let turn = b.unbacked("turn", 0, 5);
    let mut body = BodyBuilder::new();
    let v = body.load(x, DType::F32, exprs([SymExpr::sym(turn), i(0)]));
    body.reduce(AccId(0), v, None);
    let mut last = BodyBuilder::new();
    let sum = last.acc(AccId(0), DType::F32);
    last.store(y, exprs([SymExpr::sym(turn)]), sum, StoreMode::Write);
    let stages = vec![
        Stage { inner: shape(&[3]), insts: body.finish() },
        Stage { inner: shape(&[]), insts: last.finish() },
    ];
    let kernel = b.kernel(shape(&[]), vec![AccDecl { op: ReduceOp::Sum, dtype: DType::F32 }], stages);
    b.program.steps.push(Step::For(For {
        name: "rows".into(),
        origins: vec![],
        symbol: turn,
        count: 5.into(),
        body: vec![kernel],
    }));
    let case = Case::new("counted loop", b.finish(), vec![filled(DType::F32, &[5, 3], 92)?]);
    Ok(case.tolerance(crate::case::Tolerance::CLOSE))
}

/// Doubles a number until it exceeds a hundred.
fn open() -> Result<Case, Fault> {
    let mut b = Build::new("double");
    let x = b.input(DType::I64, shape(&[]));
    let state = b.buffer(DType::I64, shape(&[]), shape(&[]), Storage::Output);
    b.returns(state);
    let pred = b.arena(DType::Bool, shape(&[]));
    let start = copy(&b, x, state, DType::I64, |_, v| v);
    let test = {
        let mut body = BodyBuilder::new();
        let v = body.load(state, DType::I64, shape(&[]));
        let most = body.constant(100, DType::I64);
        let v = body.op(ScalarOp::Le, &[v, most]);
        body.store(pred, shape(&[]), v, StoreMode::Write);
        b.kernel(shape(&[]), vec![], vec![Stage { inner: shape(&[]), insts: body.finish() }])
    };
    let double = copy(&b, state, state, DType::I64, |body, v| body.op(ScalarOp::Add, &[v, v]));
    let pred = b.whole(pred);
    b.program.steps.push(start);
    b.program.steps.push(Step::While(While {
        name: "double".into(),
        origins: vec![],
        cond: vec![test],
        pred,
        body: vec![double],
    }));
    let mut case = Case::new("open loop", b.finish(), vec![]);
    let call =
        |n: i64| -> Result<Vec<Tensor>, Fault> { Ok(vec![tensor(DType::I64, &[], &[Scalar::Int(n)])?]) };
    case.calls = [3, 101, 1].into_iter().map(call).collect::<Result<_, _>>()?;
    Ok(case)
}

/// A program that asserts a condition of its input.
fn assertion() -> Result<Case, Fault> {
    let mut b = Build::new("assertion");
    let p = b.input(DType::Bool, shape(&[]));
    let y = b.output(DType::Bool, shape(&[]));
    let pred = b.whole(p);
    let assert = Assert { name: "checked".into(), pred, message: "the input must be true".into() };
    b.program.steps.push(Step::Assert(assert));
    let step = copy(&b, p, y, DType::Bool, |_, v| v);
    b.program.steps.push(step);
    Ok(Case::new("assertion", b.finish(), vec![truth(true)?]))
}

/// A few of each.
pub(super) fn samples() -> Result<Vec<Case>, Fault> {
    Ok(vec![nonzero()?, branch()?, counted()?, open()?, assertion()?])
}
