//! Loop kernels through the executor against the plain evaluator: reductions, several stages, layouts, masks, indirection,
//! dynamic sizes, memory reuse, and random kernels.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs)]
use crate::common::*;
use ir_core::{DType, Scalar, Shape, SymExpr};
use kernel_ir::{AccDecl, AccId, BodyBuilder, InstKind, Program, ReduceOp, ScalarOp, Stage, StoreMode, Val};

fn idx(e: impl IntoIterator<Item = SymExpr>) -> Shape {
    e.into_iter().collect()
}

fn ramp(k: usize) -> f64 {
    ((k * 7919 % 1013) as f64 - 500.0) / 250.0
}

fn values(dtype: DType, sizes: &[i64], seed: u64) -> Data {
    let rng = std::cell::RefCell::new(Rng(seed * 77 + 13));
    Data::floats(dtype, sizes, |_| {
        let mut r = rng.borrow_mut();
        match dtype {
            DType::Bool => (r.below(2)) as f64,
            d if d.is_float() => r.unit() * 3.0,
            DType::U8 => r.below(20) as f64,
            _ => r.below(20) as f64 - 10.0,
        }
    })
    .rounded()
}

trait Rounded {
    fn rounded(self) -> Data;
}
impl Rounded for Data {
    fn rounded(mut self) -> Data {
        let d = self.dtype;
        self.values.iter_mut().for_each(|v| *v = round(d, *v));
        self
    }
}

/// Compiles, runs, and compares with the evaluator.
fn check(p: Program, inputs: &[Data], ulps: f64, abs: f64, what: &str) -> Vec<Data> {
    let want = evaluate(&p, inputs, &[]);
    let text = p.to_string();
    let got = run(p, inputs);
    for (g, w) in got.iter().zip(&want) {
        assert_close(g, w, ulps, abs, &format!("{what}\n{text}"));
    }
    got
}

fn reduction(op: ReduceOp, dtype: DType, sizes: &[i64], along: usize) -> (Program, Vec<Data>) {
    let mut b = Build::default();
    let x = b.input(dtype, shape(sizes));
    let outer: Vec<i64> = (0..sizes.len()).filter(|d| *d != along).map(|d| sizes[d]).collect();
    let result = if op.combine().is_none() { DType::I64 } else { dtype };
    let y = b.output(result, shape(&outer));
    let inner = outer.len() as u32;
    let mut index: Vec<SymExpr> = (0..inner).map(i).collect();
    let out_index = idx(index.clone());
    index.insert(along, i(inner));
    let mut body = BodyBuilder::new();
    let v = body.load(x, dtype, idx(index));
    let v = body.cast(v, dtype.compute());
    let p = (op.combine().is_none()).then(|| body.index(i(inner)));
    body.reduce(AccId(0), v, p);
    let mut done = BodyBuilder::new();
    let r = done.acc(AccId(0), if op.combine().is_none() { DType::I64 } else { dtype.compute() });
    let r = done.cast(r, result);
    done.store(y, out_index, r, StoreMode::Write);
    let stages = vec![
        Stage { inner: shape(&[sizes[along]]), insts: body.finish() },
        Stage { inner: shape(&[]), insts: done.finish() },
    ];
    b.kernel(shape(&outer), vec![AccDecl { op, dtype: dtype.compute() }], stages);
    (b.finish(), vec![values(dtype, sizes, sizes[along] as u64)])
}

#[test]
fn reductions_of_every_kind_and_axis() {
    for &op in ReduceOp::ALL {
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::I32, DType::I64, DType::U8, DType::Bool] {
            let logical = matches!(op, ReduceOp::Any | ReduceOp::All);
            if (logical && dtype != DType::Bool)
                || (dtype == DType::Bool && !logical && op != ReduceOp::Xor)
                || (op == ReduceOp::Xor && dtype.is_float())
            {
                continue;
            }
            for (sizes, along) in [
                (&[3, 37][..], 1),
                (&[37, 3], 0),
                (&[5, 64], 0),
                (&[2, 128], 1),
                (&[4, 3, 21], 1),
                (&[1], 0),
                (&[2, 0], 1),
            ] {
                if sizes.contains(&0) && op.combine().is_none() {
                    continue;
                }
                let (p, inputs) = reduction(op, dtype, sizes, along);
                check(p, &inputs, 60.0, 1e-5, &format!("{op:?} {dtype} {sizes:?} along {along}"));
            }
        }
    }
}

/// `y[k] = sum over i and j of x[i, k, j]`: two loops that do not collapse.
fn nested_sum(sizes: [i64; 3]) -> (Program, Vec<Data>) {
    let mut b = Build::default();
    let x = b.input(DType::F32, shape(&sizes));
    let y = b.output(DType::F32, shape(&[sizes[1]]));
    let mut body = BodyBuilder::new();
    let v = body.load(x, DType::F32, idx([i(1), i(0), i(2)]));
    body.reduce(AccId(0), v, None);
    let mut done = BodyBuilder::new();
    let r = done.acc(AccId(0), DType::F32);
    done.store(y, idx([i(0)]), r, StoreMode::Write);
    let inner = [shape(&[sizes[0], sizes[2]]), shape(&[])];
    let stages = inner.into_iter().zip([body, done]).map(|(inner, b)| Stage { inner, insts: b.finish() });
    b.kernel(shape(&[sizes[1]]), vec![AccDecl { op: ReduceOp::Sum, dtype: DType::F32 }], stages.collect());
    (b.finish(), vec![values(DType::F32, &sizes, 7)])
}

#[test]
fn long_sums_keep_their_digits() {
    let single = [(&[100_003][..], 0), (&[3000, 17], 0), (&[1024, 64], 0), (&[200, 5], 0), (&[3, 4097], 1)];
    let single = single.map(|(sizes, along)| reduction(ReduceOp::Sum, DType::F32, sizes, along));
    let nested =
        [[64, 3, 49], [500, 7, 3], [5000, 2, 1], [3, 2, 3000], [70, 33, 40], [2000, 20, 2]].map(nested_sum);
    for (p, mut inputs) in single.into_iter().chain(nested) {
        inputs[0].values.iter_mut().for_each(|v| *v = round(DType::F32, Scalar::Float(v.as_f64().abs())));
        check(p, &inputs, 1.5, 0.0, "long sum");
    }
}

#[test]
fn infinite_terms_of_long_sums_stay() {
    for (at, value, want) in [(0, f64::INFINITY, f64::INFINITY), (4000, f64::NEG_INFINITY, f64::NEG_INFINITY)]
    {
        for (p, mut inputs) in [
            reduction(ReduceOp::Sum, DType::F32, &[5000], 0),
            reduction(ReduceOp::Sum, DType::F32, &[5000, 4], 0),
        ] {
            inputs[0].values[at] = Scalar::Float(value);
            let got = run(p, &inputs);
            assert_eq!(got[0].values[0].as_f64(), want);
        }
    }
}

#[test]
fn argmax_takes_the_first_and_nan_wins() {
    let (p, _) = reduction(ReduceOp::ArgMax, DType::F32, &[2, 40], 1);
    let mut x = Data::floats(DType::F32, &[2, 40], |k| if k % 9 == 4 { 5.0 } else { 1.0 });
    x.values[40 + 33] = Scalar::Float(f64::NAN);
    x.values[40 + 37] = Scalar::Float(f64::NAN);
    let got = run(p, &[x]).remove(0);
    assert_eq!(got.values, [Scalar::Int(4), Scalar::Int(33)]);
}

/// `softmax` over the last dimension as three stages.
fn softmax(b: &mut Build, rows: SymExpr, cols: SymExpr) {
    let sizes: Shape = idx([rows.clone(), cols.clone()]);
    let (x, y) = (b.input(DType::F32, sizes.clone()), b.output(DType::F32, sizes));
    let at = || idx([i(0), i(1)]);
    let mut max = BodyBuilder::new();
    let v = max.load(x, DType::F32, at());
    max.reduce(AccId(0), v, None);
    let shifted = |b: &mut BodyBuilder| -> Val {
        let v = b.load(x, DType::F32, at());
        let m = b.acc(AccId(0), DType::F32);
        let d = b.op(ScalarOp::Sub, &[v, m]);
        b.op(ScalarOp::Exp, &[d])
    };
    let mut sum = BodyBuilder::new();
    let e = shifted(&mut sum);
    sum.reduce(AccId(1), e, None);
    let mut out = BodyBuilder::new();
    let e = shifted(&mut out);
    let s = out.acc(AccId(1), DType::F32);
    let r = out.op(ScalarOp::Div, &[e, s]);
    out.store(y, at(), r, StoreMode::Write);
    let inner = idx([cols]);
    let stages = [max, sum, out].map(|b| Stage { inner: inner.clone(), insts: b.finish() }).to_vec();
    let acc = |op| AccDecl { op, dtype: DType::F32 };
    b.kernel(idx([rows]), vec![acc(ReduceOp::Max), acc(ReduceOp::Sum)], stages);
}

#[test]
fn softmax_of_static_and_dynamic_sizes() {
    for (r, c) in [(3, 5), (2, 64), (4, 100), (1, 1), (0, 4)] {
        let mut b = Build::default();
        softmax(&mut b, n(r), n(c));
        check(b.finish(), &[Data::floats(DType::F32, &[r, c], ramp).rounded()], 4.0, 1e-7, "softmax");
    }
    let mut b = Build::default();
    let (r, c) = (b.symbol("rows", 1, 100), b.symbol("cols", 1, 500));
    softmax(&mut b, r, c);
    let p = b.finish();
    let compiled = compile(p.clone());
    for (r, c) in [(3, 7), (10, 500), (1, 1), (7, 33)] {
        let x = Data::floats(DType::F32, &[r, c], ramp).rounded();
        let want = evaluate(&p, std::slice::from_ref(&x), &[r, c]);
        assert_close(&execute(&compiled, &[x]).unwrap()[0], &want[0], 4.0, 1e-7, "dynamic softmax");
    }
    let x = Data::floats(DType::F32, &[3, 501], ramp);
    let refused = execute(&compiled, &[x]).unwrap_err().to_string();
    assert_eq!(refused, "`x0`: dimension 1 is 501; it must be from 1 to 500");
}

#[test]
fn layouts_broadcasts_and_transposes() {
    // y[c, r] = x[r, c] + bias[c], then a channels-last product with a scalar.
    for (r, c) in [(5i64, 7i64), (16, 32), (33, 20)] {
        let mut b = Build::default();
        let (x, bias) = (b.input(DType::F32, shape(&[r, c])), b.input(DType::F32, shape(&[c])));
        let y = b.output(DType::F32, shape(&[c, r]));
        let mut body = BodyBuilder::new();
        let v = body.load(x, DType::F32, idx([i(1), i(0)]));
        let w = body.load(bias, DType::F32, idx([i(0)]));
        let s = body.op(ScalarOp::Add, &[v, w]);
        body.store(y, idx([i(0), i(1)]), s, StoreMode::Write);
        b.kernel(shape(&[c, r]), vec![], vec![Stage { inner: shape(&[]), insts: body.finish() }]);
        let inputs = [values(DType::F32, &[r, c], 1), values(DType::F32, &[c], 2)];
        check(b.finish(), &inputs, 0.0, 0.0, "transpose");
    }
    let (nn, c, h, w) = (2, 5, 3, 4);
    let mut b = Build::default();
    let last = shape(&[c * h * w, 1, w * c, c]);
    let x = b.input(DType::F32, shape(&[nn, c, h, w]));
    let t = b.buffer(DType::F32, shape(&[nn, c, h, w]), last, kernel_ir::Storage::Arena);
    let y = b.output(DType::F32, shape(&[nn, c, h, w]));
    let at = || idx([i(0), i(1), i(2), i(3)]);
    for (from, to) in [(x, t), (t, t), (t, y)] {
        let mut body = BodyBuilder::new();
        let v = body.load(from, DType::F32, at());
        let two = body.constant(2.0, DType::F32);
        let s = body.op(ScalarOp::Mul, &[v, two]);
        body.store(to, at(), s, StoreMode::Write);
        b.kernel(shape(&[nn, c, h, w]), vec![], vec![Stage { inner: shape(&[]), insts: body.finish() }]);
    }
    check(b.finish(), &[values(DType::F32, &[nn, c, h, w], 3)], 0.0, 0.0, "channels last");
}

#[test]
fn masked_window_and_floor_indices() {
    // Max-pool 3x3 with padding, and nearest upsampling through // and %.
    let (c, h, w) = (3i64, 7i64, 9i64);
    let mut b = Build::default();
    let x = b.input(DType::F32, shape(&[c, h, w]));
    let y = b.output(DType::F32, shape(&[c, h, w]));
    let mut body = BodyBuilder::new();
    let (row, col) = (i(1) + i(3) - 1, i(2) + i(4) - 1);
    let mut mask = None;
    for (e, size) in [(&row, h), (&col, w)] {
        let (v, zero, top) =
            (body.index(e.clone()), body.constant(0i64, DType::I64), body.constant(size, DType::I64));
        for m in [body.op(ScalarOp::Ge, &[v, zero]), body.op(ScalarOp::Lt, &[v, top])] {
            mask = Some(mask.map_or(m, |o| body.op(ScalarOp::And, &[o, m])));
        }
    }
    let m = mask.unwrap();
    let v = body.load_masked(x, DType::F32, idx([i(0), row, col]), m);
    let low = body.constant(f64::NEG_INFINITY, DType::F32);
    let v = body.select(m, v, low);
    body.reduce(AccId(0), v, None);
    let mut out = BodyBuilder::new();
    let r = out.acc(AccId(0), DType::F32);
    out.store(y, idx([i(0), i(1), i(2)]), r, StoreMode::Write);
    let stages = vec![
        Stage { inner: shape(&[3, 3]), insts: body.finish() },
        Stage { inner: shape(&[]), insts: out.finish() },
    ];
    b.kernel(shape(&[c, h, w]), vec![AccDecl { op: ReduceOp::Max, dtype: DType::F32 }], stages);
    let up = b.output(DType::F32, shape(&[c, 2 * h, 3 * w]));
    let mut body = BodyBuilder::new();
    let v = body.load(y, DType::F32, idx([i(0), i(1).floor_div(&n(2)), i(2).floor_div(&n(3))]));
    let k = body.index(i(2).modulo(&n(5)));
    let k = body.cast(k, DType::F32);
    let s = body.op(ScalarOp::Add, &[v, k]);
    body.store(up, idx([i(0), i(1), i(2)]), s, StoreMode::Write);
    b.kernel(shape(&[c, 2 * h, 3 * w]), vec![], vec![Stage { inner: shape(&[]), insts: body.finish() }]);
    check(b.finish(), &[values(DType::F32, &[c, h, w], 5)], 0.0, 0.0, "pool and upsample");
}

/// `out[h, c] = a[c, h - 1]`, 0 in the first row: where `c` is the axis its lanes lie apart and share a mask.
#[test]
fn lanes_apart_under_one_mask() {
    for dtype in
        [DType::F32, DType::F64, DType::BF16, DType::F16, DType::I32, DType::I64, DType::U8, DType::Bool]
    {
        for [rows, columns] in [[5, 64], [64, 5], [3, 21], [1, 40]] {
            let mut b = Build::default();
            let a = b.input(dtype, shape(&[columns, rows]));
            let out = b.output(dtype, shape(&[rows, columns]));
            let mut body = BodyBuilder::new();
            let above = &i(0) - 1;
            let at = body.index(above.clone());
            let zero = body.constant(0i64, DType::I64);
            let mask = body.op(ScalarOp::Ge, &[at, zero]);
            let x = body.load_masked(a, dtype, idx([i(1), above]), mask);
            body.store(out, idx([i(0), i(1)]), x, StoreMode::Write);
            let stages = vec![Stage { inner: shape(&[]), insts: body.finish() }];
            b.kernel(shape(&[rows, columns]), Vec::new(), stages);
            let inputs = [values(dtype, &[columns, rows], 5)];
            check(b.finish(), &inputs, 0.0, 0.0, &format!("{dtype} {rows} by {columns}"));
        }
    }
}

#[test]
fn gather_scatter_and_combining_stores() {
    let (rows, d, count) = (11i64, 13i64, 29i64);
    for dtype in [DType::F32, DType::BF16, DType::I64, DType::I32] {
        let mut b = Build::default();
        b.program.sites.push(kernel_ir::Site::default());
        let table = b.input(dtype, shape(&[rows, d]));
        let ids = b.input(DType::I64, shape(&[count]));
        let y = b.output(dtype, shape(&[count, d]));
        let sum = b.output(dtype, shape(&[rows, d]));
        let mut body = BodyBuilder::new();
        let zero = body.constant(Scalar::zero(dtype), dtype);
        body.store(sum, idx([i(0), i(1)]), zero, StoreMode::Write);
        b.kernel(shape(&[rows, d]), vec![], vec![Stage { inner: shape(&[]), insts: body.finish() }]);
        let mut body = BodyBuilder::new();
        let id = body.load(ids, DType::I64, idx([i(0)]));
        let id = body.check(id, n(rows), None, 0);
        let at = body.as_index(id);
        let v = body.load(table, dtype, idx([at.clone(), i(1)]));
        body.store(y, idx([i(0), i(1)]), v, StoreMode::Write);
        body.store(sum, idx([at, i(1)]), v, StoreMode::Add);
        b.kernel(shape(&[count, d]), vec![], vec![Stage { inner: shape(&[]), insts: body.finish() }]);
        let mut ids = values(DType::I64, &[count], 9);
        ids.values.iter_mut().for_each(|v| *v = Scalar::Int(v.as_i64().rem_euclid(rows)));
        check(b.finish(), &[values(dtype, &[rows, d], 4), ids], 3.0, 1e-5, &format!("gather {dtype}"));
    }
}

#[test]
fn scans_and_masked_stores() {
    for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Prod] {
        for sizes in [[3i64, 10], [70, 1], [4, 65]] {
            let mut b = Build::default();
            let x = b.input(DType::F32, shape(&sizes));
            let y = b.output(DType::F32, shape(&sizes));
            let mut body = BodyBuilder::new();
            let v = body.load(x, DType::F32, idx([i(0), i(1)]));
            let s = body.scan(op, v);
            body.store(y, idx([i(0), i(1)]), s, StoreMode::Write);
            let stages = vec![Stage { inner: shape(&sizes[1..]), insts: body.finish() }];
            b.kernel(shape(&sizes[..1]), vec![], stages);
            check(b.finish(), &[values(DType::F32, &sizes, 6)], 40.0, 1e-5, "scan");
        }
    }
}

#[test]
fn casts_and_bitcasts_between_all_dtypes() {
    let all = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];
    for from in all {
        for to in all {
            let mut b = Build::default();
            let x = b.input(from, shape(&[37]));
            let y = b.output(to, shape(&[37]));
            let mut body = BodyBuilder::new();
            let v = body.load(x, from, idx([i(0)]));
            let c = body.cast(v, to);
            body.store(y, idx([i(0)]), c, StoreMode::Write);
            if from.size() == to.size() && to != DType::Bool {
                let z = b.output(to, shape(&[37]));
                let c = body.push(to, kernel_ir::InstKind::Bitcast(v));
                body.store(z, idx([i(0)]), c, StoreMode::Write);
            }
            b.kernel(shape(&[37]), vec![], vec![Stage { inner: shape(&[]), insts: body.finish() }]);
            let mut x = values(from, &[37], 8);
            if from.is_float() {
                for (k, v) in
                    [0.0, -0.0, 1e-7, -6e-8, 65519.0, 65520.0, 3e38, 1e-40, f64::INFINITY].iter().enumerate()
                {
                    let special = round(from, Scalar::Float(*v));
                    if !(to.is_int() && special.as_f64().abs() > 1e9) {
                        x.values[k * 4] = special;
                    }
                }
            } else if from.is_int() {
                x.values[3] = round(from, Scalar::Int(i64::MAX));
                x.values[8] = round(from, Scalar::Int(1 << 30 | 77));
            }
            check(b.finish(), &[x], 0.0, 0.0, &format!("{from} to {to}"));
        }
    }
}

#[test]
fn arena_memory_is_reused_and_calls_run_at_once() {
    let mut b = Build::default();
    let x = b.input(DType::F32, shape(&[1000]));
    let mut from = x;
    for k in 0..6 {
        let to =
            if k == 5 { b.output(DType::F32, shape(&[1000])) } else { b.arena(DType::F32, shape(&[1000])) };
        let mut body = BodyBuilder::new();
        let v = body.load(from, DType::F32, idx([i(0)]));
        let s = body.op(ScalarOp::Add, &[v, v]);
        body.store(to, idx([i(0)]), s, StoreMode::Write);
        b.kernel(shape(&[1000]), vec![], vec![Stage { inner: shape(&[]), insts: body.finish() }]);
        from = to;
    }
    let p = b.finish();
    assert!(p.plan.bytes.unwrap() <= 2 * 4032, "two buffers at most live at once");
    let compiled = compile(p);
    std::thread::scope(|s| {
        for t in 0..4 {
            let compiled = &compiled;
            s.spawn(move || {
                for _ in 0..20 {
                    let x = Data::floats(DType::F32, &[1000], |k| (k + t) as f64);
                    let y = execute(compiled, &[x]).unwrap().remove(0);
                    assert!(y.values.iter().enumerate().all(|(k, v)| v.as_f64() == 64.0 * (k + t) as f64));
                }
            });
        }
    });
}

#[test]
fn wrong_inputs_are_named() {
    let mut b = Build::default();
    let s = b.symbol("batch", 1, 8);
    let x = b.input(DType::F32, idx([s.clone(), n(3)]));
    b.input(DType::F32, idx([s.clone() * 2]));
    let y = b.output(DType::F32, idx([s.clone(), n(3)]));
    let mut body = BodyBuilder::new();
    let v = body.load(x, DType::F32, idx([i(0), i(1)]));
    body.store(y, idx([i(0), i(1)]), v, StoreMode::Write);
    b.kernel(idx([s, n(3)]), vec![], vec![Stage { inner: shape(&[]), insts: body.finish() }]);
    let c = compile(b.finish());
    let d = |sizes: &[i64]| Data::floats(DType::F32, sizes, |_| 1.0);
    assert!(execute(&c, &[d(&[2, 3]), d(&[4])]).is_ok());
    let message = |inputs: &[Data]| execute(&c, inputs).unwrap_err().to_string();
    assert!(message(&[d(&[2, 4]), d(&[4])]).contains("dimension 1 of `x0` is 4, but must be 3"));
    assert!(message(&[d(&[2, 3]), d(&[5])]).contains("dimension 0 of `x1` is 5, but must be 4"));
    assert!(message(&[d(&[9, 3]), d(&[18])]).contains("`x0`: dimension 0 is 9; it must be from 1 to 8"));
    assert!(message(&[d(&[2, 3])]).contains("2 inputs"));
    assert!(message(&[d(&[2, 3, 1]), d(&[4])]).contains("3 dimensions"));
    let ints = Data::floats(DType::I32, &[2, 3], |_| 1.0);
    assert!(message(&[ints, d(&[4])]).contains("dtype i32"));
}

/// A random pointwise-and-reduce kernel.
fn random(seed: u64) -> (Program, Vec<Data>) {
    let mut r = Rng(seed);
    let mut b = Build::default();
    let rank = 1 + r.below(3) as usize;
    let sizes: Vec<i64> = (0..rank).map(|_| [1, 2, 3, 4, 5, 8, 17, 32][r.below(8) as usize]).collect();
    let reduce = r.below(2) == 0 && rank > 1;
    let outer = if reduce { rank - 1 } else { rank };
    let mut inputs = Vec::new();
    let mut body = BodyBuilder::new();
    let mut vals: Vec<Val> = Vec::new();
    for k in 0..1 + r.below(3) {
        // A permuted, possibly broadcast operand.
        let mut order: Vec<usize> = (0..rank).collect();
        (0..rank).for_each(|d| order.swap(d, r.below(rank as u64) as usize));
        let kept: Vec<usize> = order.into_iter().filter(|_| r.below(4) > 0).collect();
        let dtype =
            [DType::F32, DType::F32, DType::BF16, DType::F64, DType::I32, DType::Bool][r.below(6) as usize];
        let own: Vec<i64> = kept.iter().map(|d| sizes[*d]).collect();
        let buf = b.input(dtype, shape(&own));
        inputs.push(values(dtype, &own, seed * 10 + k));
        let v = body.load(buf, dtype, kept.iter().map(|d| i(*d as u32)).collect());
        vals.push(body.cast(v, DType::F32));
    }
    for _ in 0..r.below(8) {
        use ScalarOp::*;
        let pick = |r: &mut Rng, vals: &[Val]| vals[r.below(vals.len() as u64) as usize];
        let (x, y, z) = (pick(&mut r, &vals), pick(&mut r, &vals), pick(&mut r, &vals));
        let v = match r.below(8) {
            0 => body.op(Add, &[x, y]),
            1 => body.op(Mul, &[x, y]),
            2 => body.op(Max, &[x, y]),
            3 => body.op(Tanh, &[x]),
            4 => body.op(Sub, &[x, y]),
            5 => {
                let m = body.op(Lt, &[x, y]);
                body.select(m, y, z)
            }
            6 => body.op(Abs, &[x]),
            _ => {
                let e = body.index(i(r.below(rank as u64) as u32));
                body.cast(e, DType::F32)
            }
        };
        vals.push(v);
    }
    let v = *vals.last().unwrap();
    let out_sizes = &sizes[..outer];
    let at: Shape = (0..outer as u32).map(i).collect();
    let y = b.output(DType::F32, shape(out_sizes));
    let mut accs = vec![];
    let mut stages = vec![];
    if reduce {
        let op = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min][r.below(3) as usize];
        accs.push(AccDecl { op, dtype: DType::F32 });
        body.reduce(AccId(0), v, None);
        stages.push(Stage { inner: shape(&sizes[outer..]), insts: body.finish() });
        let mut done = BodyBuilder::new();
        let r = done.acc(AccId(0), DType::F32);
        done.store(y, at, r, StoreMode::Write);
        stages.push(Stage { inner: shape(&[]), insts: done.finish() });
    } else {
        body.store(y, at, v, StoreMode::Write);
        stages.push(Stage { inner: shape(&[]), insts: body.finish() });
    }
    b.kernel(shape(out_sizes), accs, stages);
    (b.finish(), inputs)
}

#[test]
fn random_kernels() {
    for seed in 0..300 {
        let (p, inputs) = random(seed);
        // Magnitudes reach some thousands; tanh and sums differ in the last digits.
        check(p, &inputs, 200.0, 1e-3, &format!("seed {seed}"));
    }
}

#[test]
fn threads_share_work_without_changing_results() {
    use backend_cpu::exec::{Compiled, ExecOptions};
    let (rows, cols) = (331i64, 1027i64);
    let x = values(DType::F32, &[rows, cols], 12);
    let mut programs = vec![
        reduction(ReduceOp::Sum, DType::F32, &[rows, cols], 1).0,
        reduction(ReduceOp::Sum, DType::F32, &[rows, cols], 0).0,
    ];
    for transposed in [false, true] {
        let mut b = Build::default();
        let x = b.input(DType::F32, shape(&[rows, cols]));
        let sizes = if transposed { [cols, rows] } else { [rows, cols] };
        let y = b.output(DType::F32, shape(&sizes));
        let mut body = BodyBuilder::new();
        let from = if transposed { idx([i(1), i(0)]) } else { idx([i(0), i(1)]) };
        let v = body.load(x, DType::F32, from);
        let v = body.op(ScalarOp::Tanh, &[v]);
        body.store(y, idx([i(0), i(1)]), v, StoreMode::Write);
        b.kernel(shape(&sizes), vec![], vec![Stage { inner: shape(&[]), insts: body.finish() }]);
        programs.push(b.finish());
    }
    for p in programs {
        let make =
            |threads| Compiled::new(p.clone(), ExecOptions { threads, ..ExecOptions::default() }).unwrap();
        let one = execute(&make(1), std::slice::from_ref(&x)).unwrap();
        let three = execute(&make(3), std::slice::from_ref(&x)).unwrap();
        assert_eq!(one[0].values, three[0].values);
    }
}

#[test]
fn what_is_clamped_to_one_is_true_unless_it_is_nought() {
    let n = 40i64;
    let mut b = Build::default();
    let (x, y) = (b.input(DType::F32, shape(&[n])), b.output(DType::Bool, shape(&[n])));
    let z = b.output(DType::U8, shape(&[n]));
    let at = || [i(0)].into_iter().collect();
    let mut body = BodyBuilder::new();
    let v = body.load(x, DType::F32, at());
    let (zero, one) = (body.constant(0.0, DType::F32), body.constant(1.0, DType::F32));
    let v = body.op(ScalarOp::Max, &[v, zero]);
    let v = body.op(ScalarOp::Min, &[v, one]);
    let truth = body.push(DType::Bool, InstKind::Cast(v));
    body.store(y, at(), truth, StoreMode::Write);
    let whole = body.push(DType::U8, InstKind::Cast(v));
    body.store(z, at(), whole, StoreMode::Write);
    b.kernel(shape(&[n]), vec![], vec![Stage { inner: shape(&[]), insts: body.finish() }]);
    let given = [0.5, f64::NAN, -1.0, 0.0, 2.0, 1e-30, 1.0, f64::INFINITY];
    let values: Vec<f64> = given.into_iter().cycle().take(n as usize).collect();
    let input = Data::new(DType::F32, &[n], values.iter().map(|v| Scalar::Float(*v)).collect());
    let got = run(b.finish(), &[input]);
    for (k, v) in values.iter().enumerate() {
        let clamped = if v.is_nan() { *v } else { v.clamp(0.0, 1.0) };
        assert_eq!(got[0].values[k].as_bool(), clamped != 0.0, "{v}");
        assert_eq!(got[1].values[k].as_i64(), clamped as i64, "{v}");
    }
}
