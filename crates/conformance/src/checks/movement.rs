//! Reads and writes at computed positions: masks, data-dependent indices, stores that combine, temporaries and views.

use ir_core::{DType, Scalar, SymExpr};
use kernel_ir::{BodyBuilder, InstKind, ReduceOp, ScalarOp, Storage, StoreMode, Val};

use super::Cx;
use crate::build::{Build, exprs, i, loops, shape};
use crate::case::{Case, Fault, Tolerance};
use crate::values::{filled, tensor};

fn numbers(values: &[i64]) -> Vec<Scalar> {
    values.iter().map(|v| Scalar::Int(*v)).collect()
}

pub(super) fn gather(cx: &mut Cx) -> Result<(), Fault> {
    cx.cases([padded(), rows(DType::F32), rows(DType::I64), rows(DType::BF16), computed(), spread()])
}

/// Zeros around a matrix: loads whose mask is false touch no memory.
fn padded() -> Result<Case, Fault> {
    let mut b = Build::new("pad");
    let (x, y) = (b.input(DType::F32, shape(&[3, 4])), b.output(DType::F32, shape(&[5, 7])));
    let mut body = BodyBuilder::new();
    let mut inside: Option<Val> = None;
    for (d, n) in [(0, 3), (1, 4)] {
        let at = body.index(i(d) - 1);
        let (low, high) = (body.constant(0, DType::I64), body.constant(n, DType::I64));
        for test in [body.op(ScalarOp::Ge, &[at, low]), body.op(ScalarOp::Lt, &[at, high])] {
            inside = Some(inside.map_or(test, |all| body.op(ScalarOp::And, &[all, test])));
        }
    }
    if let Some(inside) = inside {
        let v = body.load_masked(x, DType::F32, exprs([i(0) - 1, i(1) - 1]), inside);
        body.store(y, loops(2), v, StoreMode::Write);
    }
    b.point(shape(&[5, 7]), body);
    Ok(Case::new("padding", b.finish(), vec![filled(DType::F32, &[3, 4], 31)?]))
}

/// Rows by index, as in an embedding.
fn rows(dtype: DType) -> Result<Case, Fault> {
    let mut b = Build::new("rows");
    let table = b.input(dtype, shape(&[6, 5]));
    let index = b.input(DType::I64, shape(&[9]));
    let y = b.output(dtype, shape(&[9, 5]));
    let mut body = BodyBuilder::new();
    let row = body.load(index, DType::I64, exprs([i(0)]));
    let row = body.as_index(row);
    let v = body.load(table, dtype, exprs([row, i(1)]));
    body.store(y, loops(2), v, StoreMode::Write);
    b.point(shape(&[9, 5]), body);
    let at = numbers(&[5, 0, 3, 3, 1, 2, 5, 4, 0]);
    let inputs = vec![filled(dtype, &[6, 5], 32)?, tensor(DType::I64, &[9], &at)?];
    Ok(Case::new(format!("rows of {dtype}"), b.finish(), inputs))
}

/// Index expressions with products, quotients and remainders of loop variables: a flip and a reshape.
fn computed() -> Result<Case, Fault> {
    let mut b = Build::new("computed");
    let (x, y) = (b.input(DType::F32, shape(&[4, 6])), b.output(DType::F32, shape(&[3, 8])));
    let mut body = BodyBuilder::new();
    let flat = i(0) * 8 + i(1);
    let six = SymExpr::from_i64(6);
    let v = body.load(x, DType::F32, exprs([flat.floor_div(&six), SymExpr::from_i64(5) - flat.modulo(&six)]));
    let at = body.index(flat);
    let at = body.cast(at, DType::F32);
    let v = body.op(ScalarOp::Add, &[v, at]);
    body.store(y, loops(2), v, StoreMode::Write);
    b.point(shape(&[3, 8]), body);
    Ok(Case::new("computed indices", b.finish(), vec![filled(DType::F32, &[4, 6], 33)?]))
}

/// Values written to positions that another input holds.
fn spread() -> Result<Case, Fault> {
    let mut b = Build::new("spread");
    let (x, index) = (b.input(DType::F32, shape(&[7])), b.input(DType::I32, shape(&[7])));
    let y = b.output(DType::F32, shape(&[7]));
    let mut body = BodyBuilder::new();
    let to = body.load(index, DType::I32, loops(1));
    let v = body.load(x, DType::F32, loops(1));
    let to = exprs([body.as_index(to)]);
    body.store(y, to, v, StoreMode::Write);
    b.point(shape(&[7]), body);
    let at = numbers(&[6, 2, 0, 1, 5, 3, 4]);
    Ok(Case::new("spread", b.finish(), vec![filled(DType::F32, &[7], 34)?, tensor(DType::I32, &[7], &at)?]))
}

pub(super) fn scatter(cx: &mut Cx) -> Result<(), Fault> {
    let modes = [
        StoreMode::Add,
        StoreMode::Reduce(ReduceOp::Max),
        StoreMode::Reduce(ReduceOp::Min),
        StoreMode::Reduce(ReduceOp::Prod),
    ];
    let dtypes = [DType::F32, DType::F64, DType::I32, DType::I64];
    let pairs = modes.into_iter().flat_map(|m| dtypes.into_iter().map(move |d| combine(m, d)));
    cx.cases(pairs.chain([masked()]))
}

/// Four elements are initialised, then many points combine into them.
fn combine(mode: StoreMode, dtype: DType) -> Result<Case, Fault> {
    const POINTS: i64 = 25;
    let mut b = Build::new("scatter");
    let x = b.input(dtype, shape(&[POINTS]));
    let index = b.input(DType::I64, shape(&[POINTS]));
    let y = b.output(dtype, shape(&[4]));
    let mut start = BodyBuilder::new();
    let one = start.constant(1, dtype);
    start.store(y, loops(1), one, StoreMode::Write);
    b.point(shape(&[4]), start);
    let mut body = BodyBuilder::new();
    let to = body.load(index, DType::I64, loops(1));
    let v = body.load(x, dtype, loops(1));
    let to = exprs([body.as_index(to)]);
    body.store(y, to, v, mode);
    b.point(shape(&[POINTS]), body);
    let at: Vec<i64> = (0..POINTS).map(|k| k * 7 % 3).collect();
    let inputs =
        vec![filled(dtype, &[POINTS as usize], 35)?, tensor(DType::I64, &[POINTS as usize], &numbers(&at))?];
    let name = match mode {
        StoreMode::Reduce(op) => op.name(),
        _ => "add",
    };
    Ok(Case::new(format!("{name} {dtype}"), b.finish(), inputs).tolerance(Tolerance::CLOSE))
}

/// Points whose mask is false write nothing.
fn masked() -> Result<Case, Fault> {
    let mut b = Build::new("masked");
    let (x, mask) = (b.input(DType::F32, shape(&[11])), b.input(DType::Bool, shape(&[11])));
    let y = b.output(DType::F32, shape(&[11]));
    let mut start = BodyBuilder::new();
    let v = start.constant(-7.0, DType::F32);
    start.store(y, loops(1), v, StoreMode::Write);
    b.point(shape(&[11]), start);
    let mut body = BodyBuilder::new();
    let value = body.load(x, DType::F32, loops(1));
    let mask = Some(body.load(mask, DType::Bool, loops(1)));
    body.push(DType::F32, InstKind::Store { buf: y, index: loops(1), value, mask, mode: StoreMode::Write });
    b.point(shape(&[11]), body);
    Ok(Case::new(
        "masked store",
        b.finish(),
        vec![filled(DType::F32, &[11], 36)?, filled(DType::Bool, &[11], 37)?],
    ))
}

pub(super) fn temporaries(cx: &mut Cx) -> Result<(), Fault> {
    cx.cases([chain(1000), joined(), returned()])
}

/// Six kernels in sequence; the plan lets their temporaries share two offsets.
fn chain(n: i64) -> Result<Case, Fault> {
    let mut b = Build::new("chain");
    let x = b.input(DType::F32, shape(&[n]));
    let mut from = x;
    for k in 0..6 {
        let to = if k == 5 { b.output(DType::F32, shape(&[n])) } else { b.arena(DType::F32, shape(&[n])) };
        let mut body = BodyBuilder::new();
        let v = body.load(from, DType::F32, loops(1));
        let first = body.load(x, DType::F32, loops(1));
        let v = body.op(if k % 2 == 0 { ScalarOp::Add } else { ScalarOp::Sub }, &[v, first]);
        body.store(to, loops(1), v, StoreMode::Write);
        b.point(shape(&[n]), body);
        from = to;
    }
    Ok(Case::new("chain", b.finish(), vec![filled(DType::F32, &[n as usize], 38)?]))
}

/// Two halves of one temporary, written through views.
fn joined() -> Result<Case, Fault> {
    let mut b = Build::new("join");
    let (x, y) = (b.input(DType::F32, shape(&[3, 4])), b.output(DType::F32, shape(&[3, 8])));
    let whole = b.arena(DType::F32, shape(&[3, 8]));
    for part in 0..2 {
        let half = b.buffer(DType::F32, shape(&[3, 4]), shape(&[8, 1]), Storage::View(whole));
        b.program.buffers[half].offset = SymExpr::from_i64(4 * part);
        let mut body = BodyBuilder::new();
        let v = body.load(x, DType::F32, loops(2));
        let v = if part == 0 { v } else { body.op(ScalarOp::Neg, &[v]) };
        body.store(half, loops(2), v, StoreMode::Write);
        b.point(shape(&[3, 4]), body);
    }
    let mut body = BodyBuilder::new();
    let v = body.load(whole, DType::F32, loops(2));
    body.store(y, loops(2), v, StoreMode::Write);
    b.point(shape(&[3, 8]), body);
    Ok(Case::new("views of a temporary", b.finish(), vec![filled(DType::F32, &[3, 4], 39)?]))
}

/// An input that is returned comes back as a copy; an output that another kernel reads stays intact.
fn returned() -> Result<Case, Fault> {
    let mut b = Build::new("return");
    let (x, y) = (b.input(DType::F32, shape(&[5])), b.output(DType::F32, shape(&[5])));
    let z = b.output(DType::F32, shape(&[5]));
    b.returns(x);
    for (from, to) in [(x, y), (y, z)] {
        let mut body = BodyBuilder::new();
        let v = body.load(from, DType::F32, loops(1));
        let v = body.op(ScalarOp::Add, &[v, v]);
        body.store(to, loops(1), v, StoreMode::Write);
        b.point(shape(&[5]), body);
    }
    Ok(Case::new("returned input", b.finish(), vec![filled(DType::F32, &[5], 40)?]))
}

/// A few of each.
pub(super) fn samples() -> Result<Vec<Case>, Fault> {
    Ok(vec![padded()?, rows(DType::F32)?, combine(StoreMode::Add, DType::F32)?, joined()?, chain(8)?])
}
