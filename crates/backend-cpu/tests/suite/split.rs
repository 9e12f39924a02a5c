//! Kernels that are split where a comparison of their indices changes: that the parts have no masks left where none are
//! needed, and that together they do what the whole does. Inner loops that indices divide.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs)]
use crate::common::*;
use backend_cpu::vir::split;
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{
    AccDecl, AccId, BodyBuilder, BufId, InstKind, LoopKernel, ReduceOp, ScalarOp, Stage, Step, StoreMode, Val,
};

fn idx(e: impl IntoIterator<Item = SymExpr>) -> Shape {
    e.into_iter().collect()
}

fn ramp(dtype: DType, sizes: &[i64], from: f64) -> Data {
    Data::floats(dtype, sizes, |k| from + ((k * 7919 % 1013) as f64 - 500.0) / 250.0)
}

fn kernel(b: &mut Build, outer: Shape, body: BodyBuilder) -> LoopKernel {
    b.kernel(outer, Vec::new(), vec![Stage { inner: shape(&[]), insts: body.finish() }]);
    let Some(Step::Loop(k)) = b.program.steps.last() else { unreachable!() };
    k.clone()
}

/// `low <= e < high`.
fn within(body: &mut BodyBuilder, e: &SymExpr, low: i64, high: i64) -> Val {
    let place = body.index(e.clone());
    let (low, high) = (body.constant(low, DType::I64), body.constant(high, DType::I64));
    let above = body.op(ScalarOp::Ge, &[place, low]);
    let below = body.op(ScalarOp::Lt, &[place, high]);
    body.op(ScalarOp::And, &[above, below])
}

/// Three buffers of these lengths in dimension 1, after one another at `e`, as `select(m0, x0, select(m1, x1, x2))`.
fn joined(body: &mut BodyBuilder, parts: &[(BufId, i64)], row: SymExpr, e: &SymExpr) -> Val {
    let mut start: i64 = parts.iter().map(|p| p.1).sum();
    let mut result = None;
    for (buf, n) in parts.iter().rev() {
        start -= n;
        let mask = within(body, e, start, start + n);
        let v = body.load_masked(*buf, DType::F32, idx([row.clone(), e - start]), mask);
        result = Some(match result {
            Some(rest) => body.select(mask, v, rest),
            None => v,
        });
    }
    result.unwrap()
}

fn masks(parts: &[LoopKernel]) -> usize {
    let insts = parts.iter().flat_map(|k| &k.stages).flat_map(|s| &s.insts);
    insts
        .filter(|i| {
            let select = matches!(i.kind, InstKind::Op { op: ScalarOp::Select, .. });
            select || matches!(i.kind, InstKind::Load { mask: Some(_), .. })
        })
        .count()
}

fn check(b: Build, inputs: &[Data], sizes: &[i64]) {
    let program = b.finish();
    let want = evaluate(&program, inputs, sizes);
    let text = program.to_string();
    let got = run(program, inputs);
    for (g, w) in got.iter().zip(&want) {
        assert_close(g, w, 0.0, 0.0, &text);
    }
}

/// A concatenation read at `e` of the kernel's loops, which run over `outer`.
fn concatenation(outer: &[i64], e: SymExpr, row: SymExpr, parts: usize) {
    let lengths = [5i64, 96, 27];
    let rows = 32;
    let mut b = Build::default();
    let bufs: Vec<(BufId, i64)> =
        lengths.iter().map(|n| (b.input(DType::F32, shape(&[rows, *n])), *n)).collect();
    let y = b.output(DType::F32, shape(outer));
    let mut body = BodyBuilder::new();
    let v = joined(&mut body, &bufs, row, &e);
    let two = body.constant(2.0, DType::F32);
    let v = body.op(ScalarOp::Mul, &[v, two]);
    body.store(y, (0..outer.len() as u32).map(i).collect(), v, StoreMode::Write);
    let k = kernel(&mut b, shape(outer), body);
    let made = split(&b.program, &k);
    assert_eq!((made.len(), masks(&made)), (parts, 0));
    check(b, &[0, 1, 2].map(|p| ramp(DType::F32, &[rows, lengths[p]], 10.0 * p as f64)), &[]);
}

#[test]
fn a_concatenation_is_one_loop_a_piece() {
    concatenation(&[32, 128], i(1), i(0), 3);
    concatenation(&[128, 32], i(0), i(1), 3);
    // Backwards.
    concatenation(&[32, 128], n(127) - i(1), i(0), 3);
}

#[test]
fn pieces_that_end_within_a_point_keep_their_masks_there() {
    // Piece ends at 5 and 101 lie within points 2 and 50 of the loop over pairs.
    let lengths = [5i64, 96, 27];
    let mut b = Build::default();
    let bufs: Vec<(BufId, i64)> =
        lengths.iter().map(|l| (b.input(DType::F32, shape(&[32, *l])), *l)).collect();
    let y = b.output(DType::F32, shape(&[32, 64, 2]));
    let mut body = BodyBuilder::new();
    let v = joined(&mut body, &bufs, i(0), &(i(1) * 2 + i(2)));
    body.store(y, idx([i(0), i(1), i(2)]), v, StoreMode::Write);
    let k = kernel(&mut b, shape(&[32, 64, 2]), body);
    let made = split(&b.program, &k);
    assert_eq!(made.len(), 5);
    assert!(masks(&made) > 0);
    let free = made.iter().filter(|k| masks(std::slice::from_ref(k)) == 0).count();
    assert_eq!(free, 3);
    check(b, &[0, 1, 2].map(|p| ramp(DType::F32, &[32, lengths[p]], 10.0 * p as f64)), &[]);
}

#[test]
fn a_padding_is_its_border_and_its_interior() {
    for dtype in [DType::F32, DType::BF16, DType::I64] {
        let mut b = Build::default();
        let batch = b.symbol("batch", 1, 8);
        let x = b.input(dtype, idx([batch.clone(), n(30), n(40)]));
        let y = b.output(dtype, idx([batch.clone(), n(33), n(44)]));
        let mut body = BodyBuilder::new();
        let (row, column) = (i(1) - 1, i(2) - 3);
        let rows = within(&mut body, &row, 0, 30);
        let columns = within(&mut body, &column, 0, 40);
        let mask = body.op(ScalarOp::And, &[rows, columns]);
        let v = body.load_masked(x, dtype, idx([i(0), row, column]), mask);
        let v = body.cast(v, dtype.compute());
        let fill = body
            .constant(if dtype.is_float() { 0.5.into() } else { ir_core::Scalar::Int(3) }, dtype.compute());
        let v = body.select(mask, v, fill);
        let v = body.cast(v, dtype);
        body.store(y, idx([i(0), i(1), i(2)]), v, StoreMode::Write);
        let k = kernel(&mut b, idx([batch, n(33), n(44)]), body);
        let made = split(&b.program, &k);
        assert_eq!((made.len(), masks(&made)), (9, 0));
        let mut data = ramp(dtype, &[2, 30, 40], 0.0);
        data.values.iter_mut().for_each(|v| *v = round(dtype, *v));
        check(b, &[data], &[2]);
    }
}

#[test]
fn what_adds_up_and_what_is_small_stays_whole() {
    let build = |rows: i64, mode: StoreMode| {
        let mut b = Build::default();
        let x = b.input(DType::F32, shape(&[rows, 8]));
        let y = b.output(DType::F32, shape(&[rows, 10]));
        let mut body = BodyBuilder::new();
        let e = i(1) - 1;
        let mask = within(&mut body, &e, 0, 8);
        let v = body.load_masked(x, DType::F32, idx([i(0), e]), mask);
        body.store(y, idx([i(0), i(1)]), v, mode);
        let k = kernel(&mut b, shape(&[rows, 10]), body);
        split(&b.program, &k).len()
    };
    assert_eq!(build(4, StoreMode::Write), 1);
    assert_eq!(build(400, StoreMode::Write), 3);
    assert_eq!(build(400, StoreMode::Add), 1);
}

/// A reduction of a matrix `[rows, 120]` by columns, where the matrix is a view of `[3, 15, 17, 40]`; `index` gives the place of an element from
/// row and column. The inner loops that it is made of.
fn by_divided_rows(op: ReduceOp, rows: i64, index: impl Fn(SymExpr, SymExpr) -> Shape) -> Shape {
    let mut b = Build::default();
    let sizes = [3, 15, 17, 40];
    let x = b.input(DType::F32, shape(&sizes));
    let place = op == ReduceOp::ArgMax;
    let dtype = if place { DType::I64 } else { DType::F32 };
    let y = b.output(dtype, shape(&[120]));
    let mut body = BodyBuilder::new();
    let v = body.load(x, DType::F32, index(i(1), i(0)));
    let position = place.then(|| body.index(i(1)));
    body.reduce(AccId(0), v, position);
    let mut done = BodyBuilder::new();
    let r = done.acc(AccId(0), dtype);
    done.store(y, idx([i(0)]), r, StoreMode::Write);
    let inner = [shape(&[rows]), shape(&[])];
    let stages = inner.into_iter().zip([body, done]).map(|(inner, b)| Stage { inner, insts: b.finish() });
    b.kernel(shape(&[120]), vec![AccDecl { op, dtype: DType::F32 }], stages.collect());
    let Some(Step::Loop(k)) = b.program.steps.last() else { unreachable!() };
    let made = split(&b.program, k);
    assert_eq!(made.len(), 1);
    let program = b.finish();
    let inputs = [ramp(DType::F32, &sizes, 0.25)];
    let want = evaluate(&program, &inputs, &[]);
    let text = program.to_string();
    let got = run(program, &inputs);
    assert_close(&got[0], &want[0], 16.0, 1e-4, &text);
    made[0].stages[0].inner.clone()
}

#[test]
fn an_inner_loop_that_indices_divide_is_two() {
    let view = |row: SymExpr, column: SymExpr| {
        let (time, width) = (n(17), n(40));
        idx([column.floor_div(&width), row.floor_div(&time), row.modulo(&time), column.modulo(&width)])
    };
    for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::ArgMax] {
        assert_eq!(by_divided_rows(op, 255, view), shape(&[15, 17]));
        // Loops of which no whole number of turns is done stay as they are.
        assert_eq!(by_divided_rows(op, 250, view), shape(&[250]));
    }
    // Twice: rows that go through three dimensions.
    let three = |row: SymExpr, column: SymExpr| {
        let (time, width) = (n(17), n(40));
        let rest = row.floor_div(&time);
        idx([rest.floor_div(&n(15)), rest.modulo(&n(15)), row.modulo(&time), column.modulo(&width)])
    };
    assert_eq!(by_divided_rows(ReduceOp::Sum, 765, three), shape(&[3, 15, 17]));
}
