//! Reductions, scans, and kernels of several stages.

use ir_core::{DType, Scalar, SymExpr};
use kernel_ir::{AccDecl, AccId, BodyBuilder, ReduceOp, ScalarOp, Stage, StoreMode, Val};

use super::Cx;
use crate::build::{Build, exprs, i, loops, shape};
use crate::case::{Case, Fault, Tolerance};
use crate::values::{self, filled};

const DTYPES: &[DType] = &[
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

/// Whether a reduction is defined for a dtype.
fn takes(op: ReduceOp, dtype: DType) -> bool {
    match op {
        ReduceOp::Any | ReduceOp::All => dtype == DType::Bool,
        ReduceOp::Xor => !dtype.is_float(),
        _ => dtype != DType::Bool,
    }
}

/// Sums in another order differ by one rounding per term, each of a partial sum that is no larger than the sum of all
/// magnitudes; all other reductions are exact. `dtype` is that of the computation.
fn tolerance(op: ReduceOp, dtype: DType, terms: i64) -> Tolerance {
    /// The largest of the ordinary numbers.
    const LARGEST: f64 = 3.0;
    let unit = if dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    match op {
        ReduceOp::Sum | ReduceOp::Prod if dtype.is_float() => {
            Tolerance { units: 64.0, absolute: unit * LARGEST * terms as f64 }
        }
        _ => Tolerance::EXACT,
    }
}

pub(super) fn reductions(cx: &mut Cx) -> Result<(), Fault> {
    let full: &[(&[i64], usize)] = &[
        (&[3, 37], 1),
        (&[37, 3], 0),
        (&[5, 64], 0),
        (&[2, 128], 1),
        (&[4, 3, 21], 1),
        (&[1], 0),
        (&[2, 0], 1),
        (&[0, 4], 1),
    ];
    let few: &[(&[i64], usize)] = &[(&[3, 19], 1), (&[19, 3], 0), (&[2, 0], 1)];
    let shapes = cx.by_effort(few, full);
    let mut all = Vec::new();
    for op in ReduceOp::ALL {
        for dtype in DTYPES.iter().filter(|d| takes(*op, **d)) {
            // The position of the first of no elements is undefined.
            let shapes = shapes.iter().filter(|(s, along)| op.combine().is_some() || s[*along] > 0);
            all.extend(shapes.map(|(sizes, along)| reduction(*op, *dtype, sizes, *along)));
        }
    }
    all.push(long_sum(cx.by_effort(4_000, 100_000)));
    all.push(special_values());
    cx.cases(all)
}

fn reduction(op: ReduceOp, dtype: DType, sizes: &[i64], along: usize) -> Result<Case, Fault> {
    let (compute, keeps) = (dtype.compute(), op.combine().is_none());
    let result = if keeps { DType::I64 } else { dtype };
    let outer: Vec<i64> = (0..sizes.len()).filter(|d| *d != along).map(|d| sizes[d]).collect();
    let mut b = Build::new("reduce");
    let (x, y) = (b.input(dtype, shape(sizes)), b.output(result, shape(&outer)));
    let at = loops(outer.len());
    let mut index = at.clone();
    index.insert(along, i(outer.len() as u32));
    let mut body = BodyBuilder::new();
    let v = body.load(x, dtype, index);
    let v = body.cast(v, compute);
    let position = keeps.then(|| body.index(i(outer.len() as u32)));
    body.reduce(AccId(0), v, position);
    let mut last = BodyBuilder::new();
    let r = last.acc(AccId(0), if keeps { DType::I64 } else { compute });
    let r = last.cast(r, result);
    last.store(y, at, r, StoreMode::Write);
    let stages = vec![
        Stage { inner: shape(&sizes[along..=along]), insts: body.finish() },
        Stage { inner: shape(&[]), insts: last.finish() },
    ];
    b.push(shape(&outer), vec![AccDecl { op, dtype: compute }], stages);
    let dims: Vec<usize> = sizes.iter().map(|n| *n as usize).collect();
    let name = format!("{} {dtype}{sizes:?} along {along}", op.name());
    let case = Case::new(name, b.finish(), vec![filled(dtype, &dims, along as u64)?]);
    Ok(case.tolerance(tolerance(op, compute, sizes[along])))
}

/// A long sum of positive numbers: one running `f32` would lose three digits.
fn long_sum(n: i64) -> Result<Case, Fault> {
    let mut case = reduction(ReduceOp::Sum, DType::F32, &[n], 0)?;
    let numbers: Vec<Scalar> = values::ordinary(DType::F32, n as usize, 8)
        .into_iter()
        .map(|v| Scalar::Float(v.as_f64().abs()))
        .collect();
    case.calls = vec![vec![values::tensor(DType::F32, &[n as usize], &numbers)?]];
    case.name = format!("sum of {n} positive f32");
    Ok(case)
}

/// `NaN` wins in `max` and `argmax`, and the first of equal ones is taken.
fn special_values() -> Result<Case, Fault> {
    let mut case = reduction(ReduceOp::ArgMax, DType::F32, &[3, 40], 1)?;
    let number = |k: usize| match k {
        73 | 77 => f64::NAN,
        100 => f64::NEG_INFINITY,
        k if k % 9 == 4 => 5.0,
        _ => 1.0,
    };
    let numbers: Vec<Scalar> = (0..120).map(|k| Scalar::Float(number(k))).collect();
    case.calls = vec![vec![values::tensor(DType::F32, &[3, 40], &numbers)?]];
    case.name = "argmax with NaN and equal numbers".into();
    Ok(case)
}

pub(super) fn scans(cx: &mut Cx) -> Result<(), Fault> {
    let ops = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Min];
    let sizes = cx.by_effort(&[[3, 17]][..], &[[3, 17], [1, 130], [4, 1], [0, 5], [2, 0]][..]);
    let dtypes = [DType::I32, DType::I64, DType::F32, DType::F64];
    let pairs = ops.into_iter().flat_map(|op| dtypes.into_iter().map(move |d| (op, d)));
    cx.cases(pairs.flat_map(|(op, dtype)| sizes.iter().map(move |s| scan(op, dtype, *s))))
}

/// A running combination along the last dimension.
fn scan(op: ReduceOp, dtype: DType, sizes: [i64; 2]) -> Result<Case, Fault> {
    let mut b = Build::new("scan");
    let (x, y) = (b.input(dtype, shape(&sizes)), b.output(dtype, shape(&sizes)));
    let mut body = BodyBuilder::new();
    let v = body.load(x, dtype, loops(2));
    let v = body.scan(op, v);
    body.store(y, loops(2), v, StoreMode::Write);
    b.push(shape(&sizes[..1]), vec![], vec![Stage { inner: shape(&sizes[1..]), insts: body.finish() }]);
    // Products of numbers above 1 would leave the range of every dtype.
    let dims = sizes.map(|n| n as usize);
    let mut numbers = values::ordinary(dtype, dims[0] * dims[1], 11);
    if op == ReduceOp::Prod {
        let small = |v: &Scalar| if dtype.is_float() { v.as_f64() / 2.0 } else { (v.as_i64() % 2) as f64 };
        numbers = numbers.iter().map(|v| values::rounded(dtype, Scalar::Float(small(v)))).collect();
    }
    let case = Case::new(
        format!("{} {dtype}{sizes:?}", op.name()),
        b.finish(),
        vec![values::tensor(dtype, &dims, &numbers)?],
    );
    Ok(case.tolerance(tolerance(op, dtype, sizes[1])))
}

pub(super) fn stages(cx: &mut Cx) -> Result<(), Fault> {
    let sizes = cx.by_effort(&[[3, 7]][..], &[[3, 7], [2, 64], [4, 100], [1, 1], [0, 4]][..]);
    let soft = sizes.iter().map(|s| softmax(*s));
    cx.cases(soft.chain([nested([3, 4, 5]), nested([20, 2, 9])]))
}

/// `softmax` over the last dimension: largest, sum, quotient.
pub(super) fn softmax(sizes: [i64; 2]) -> Result<Case, Fault> {
    let mut b = Build::new("softmax");
    softmax_kernel(&mut b, sizes[0].into(), sizes[1].into());
    let input = filled(DType::F32, &sizes.map(|n| n as usize), 21)?;
    Ok(Case::new(format!("softmax {sizes:?}"), b.finish(), vec![input]).tolerance(Tolerance::CLOSE))
}

/// The kernel of [`softmax`], for sizes of any kind.
pub(super) fn softmax_kernel(b: &mut Build, rows: SymExpr, columns: SymExpr) {
    let sizes = exprs([rows.clone(), columns.clone()]);
    let (x, y) = (b.input(DType::F32, sizes.clone()), b.output(DType::F32, sizes));
    let mut largest = BodyBuilder::new();
    let v = largest.load(x, DType::F32, loops(2));
    largest.reduce(AccId(0), v, None);
    let shifted = |body: &mut BodyBuilder| -> Val {
        let v = body.load(x, DType::F32, loops(2));
        let m = body.acc(AccId(0), DType::F32);
        let d = body.op(ScalarOp::Sub, &[v, m]);
        body.op(ScalarOp::Exp, &[d])
    };
    let mut sum = BodyBuilder::new();
    let e = shifted(&mut sum);
    sum.reduce(AccId(1), e, None);
    let mut quotient = BodyBuilder::new();
    let e = shifted(&mut quotient);
    let s = quotient.acc(AccId(1), DType::F32);
    let r = quotient.op(ScalarOp::Div, &[e, s]);
    quotient.store(y, loops(2), r, StoreMode::Write);
    let inner = exprs([columns]);
    let stages = [largest, sum, quotient].map(|b| Stage { inner: inner.clone(), insts: b.finish() });
    let acc = |op| AccDecl { op, dtype: DType::F32 };
    b.push(exprs([rows]), vec![acc(ReduceOp::Max), acc(ReduceOp::Sum)], stages.into());
}

/// `y[k] = Σ x[i, k, j]` over two inner loops that are not adjacent.
fn nested(sizes: [i64; 3]) -> Result<Case, Fault> {
    let mut b = Build::new("nested");
    let (x, y) = (b.input(DType::F32, shape(&sizes)), b.output(DType::F32, shape(&sizes[1..2])));
    let mut body = BodyBuilder::new();
    let v = body.load(x, DType::F32, exprs([i(1), i(0), i(2)]));
    body.reduce(AccId(0), v, None);
    let mut last = BodyBuilder::new();
    let r = last.acc(AccId(0), DType::F32);
    last.store(y, loops(1), r, StoreMode::Write);
    let stages = vec![
        Stage { inner: shape(&[sizes[0], sizes[2]]), insts: body.finish() },
        Stage { inner: shape(&[]), insts: last.finish() },
    ];
    b.push(shape(&sizes[1..2]), vec![AccDecl { op: ReduceOp::Sum, dtype: DType::F32 }], stages);
    let input = filled(DType::F32, &sizes.map(|n| n as usize), 22)?;
    Ok(Case::new(format!("nested sum {sizes:?}"), b.finish(), vec![input]).tolerance(Tolerance::CLOSE))
}

/// A few of each.
pub(super) fn samples() -> Result<Vec<Case>, Fault> {
    Ok(vec![
        reduction(ReduceOp::Sum, DType::F32, &[3, 5], 1)?,
        reduction(ReduceOp::ArgMax, DType::I64, &[3, 5], 0)?,
        scan(ReduceOp::Sum, DType::F32, [2, 5])?,
        softmax([2, 5])?,
    ])
}
