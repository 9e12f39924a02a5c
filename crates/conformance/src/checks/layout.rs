//! Layouts: strides, broadcasting, tensors without elements, sizes that are known only at a call.

use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{BodyBuilder, ScalarOp, StoreMode};

use super::{Cx, reduce};
use crate::build::{Build, exprs, i, loops, shape};
use crate::case::{Case, Fault, Tolerance};
use crate::values::{filled, ordinary, tensor_strided};

pub(super) fn strides(cx: &mut Cx) -> Result<(), Fault> {
    let dtypes =
        cx.by_effort(&[DType::F32][..], &[DType::F32, DType::F64, DType::BF16, DType::I64, DType::U8][..]);
    let all = dtypes.iter().flat_map(|d| {
        [
            laid_out(*d, "transposed", &[5, 7], &[1, 5]),
            laid_out(*d, "padded rows", &[4, 6], &[9, 1]),
            laid_out(*d, "every third", &[11], &[3]),
            laid_out(*d, "channels last", &[2, 3, 4, 5], &[60, 1, 15, 3]),
            laid_out(*d, "one row many times", &[4, 6], &[0, 1]),
            laid_out(*d, "one number many times", &[3, 4], &[0, 0]),
            written(*d, "transposed", &[5, 7], &[1, 5]),
            written(*d, "channels last", &[2, 3, 4, 5], &[60, 1, 15, 3]),
            written(*d, "padded rows", &[4, 6], &[9, 1]),
        ]
    });
    cx.cases(all)
}

/// `y = -x` (or `!x`) of an input with strides, which begins in the middle of its memory.
fn laid_out(dtype: DType, what: &str, sizes: &[i64], strides: &[i64]) -> Result<Case, Fault> {
    let mut b = Build::new("strided");
    let x = b.input_strided(dtype, shape(sizes), shape(strides));
    let y = b.output(dtype, shape(sizes));
    copy_changed(&mut b, x, y, dtype, shape(sizes));
    let dims: Vec<usize> = sizes.iter().map(|n| *n as usize).collect();
    let steps: Vec<isize> = strides.iter().map(|n| *n as isize).collect();
    // Where a stride is 0 all elements of that dimension are the same.
    let own: Vec<usize> = dims.iter().zip(&steps).map(|(n, s)| if *s == 0 { 1 } else { *n }).collect();
    let numbers = ordinary(dtype, own.iter().product(), 41);
    let narrow = tensor_strided(dtype, &own, &steps, &numbers)?;
    let input = tensor::Tensor::new(narrow.storage().clone(), dtype, &dims, &steps, narrow.offset())?;
    Ok(Case::new(format!("{what} input of {dtype}"), b.finish(), vec![input]))
}

/// A row-major input, an output with strides.
fn written(dtype: DType, what: &str, sizes: &[i64], strides: &[i64]) -> Result<Case, Fault> {
    let mut b = Build::new("strided");
    let x = b.input(dtype, shape(sizes));
    let y = b.output_strided(dtype, shape(sizes), shape(strides));
    copy_changed(&mut b, x, y, dtype, shape(sizes));
    let dims: Vec<usize> = sizes.iter().map(|n| *n as usize).collect();
    Ok(Case::new(format!("{what} output of {dtype}"), b.finish(), vec![filled(dtype, &dims, 42)?]))
}

fn copy_changed(b: &mut Build, x: kernel_ir::BufId, y: kernel_ir::BufId, dtype: DType, sizes: Shape) {
    let mut body = BodyBuilder::new();
    let v = body.load(x, dtype, loops(sizes.len()));
    let v = body.cast(v, dtype.compute());
    let v = body.op(ScalarOp::Add, &[v, v]);
    let v = body.cast(v, dtype);
    body.store(y, loops(sizes.len()), v, StoreMode::Write);
    b.point(sizes, body);
}

pub(super) fn broadcast(cx: &mut Cx) -> Result<(), Fault> {
    let places: [(&str, &[i64], &[u32]); 5] = [
        ("a row", &[5], &[2]),
        ("a column", &[4, 1], &[1, 9]),
        ("a plane", &[3, 5], &[0, 2]),
        ("a number", &[], &[]),
        ("one element", &[1, 1, 1], &[9, 9, 9]),
    ];
    cx.cases(places.map(|(what, sizes, dims)| broadcasted(what, sizes, dims)))
}

/// `y[i, j, k] = x[i, j, k] * z[…]`, where `z` is indexed by some of the loops; dimension 9 means none.
fn broadcasted(what: &str, sizes: &[i64], dims: &[u32]) -> Result<Case, Fault> {
    let full = [3, 4, 5];
    let mut b = Build::new("broadcast");
    let x = b.input(DType::F32, shape(&full));
    let z = b.input(DType::F32, shape(sizes));
    let y = b.output(DType::F32, shape(&full));
    let mut body = BodyBuilder::new();
    let v = body.load(x, DType::F32, loops(3));
    let at = dims.iter().map(|d| if *d < 3 { i(*d) } else { SymExpr::ZERO });
    let w = body.load(z, DType::F32, exprs(at));
    let v = body.op(ScalarOp::Mul, &[v, w]);
    body.store(y, loops(3), v, StoreMode::Write);
    b.point(shape(&full), body);
    let own: Vec<usize> = sizes.iter().map(|n| *n as usize).collect();
    Ok(Case::new(what, b.finish(), vec![filled(DType::F32, &[3, 4, 5], 43)?, filled(DType::F32, &own, 44)?]))
}

pub(super) fn zero_sizes(cx: &mut Cx) -> Result<(), Fault> {
    let shapes: [&[i64]; 4] = [&[0], &[0, 3], &[3, 0], &[2, 0, 4]];
    let dtypes = [DType::F32, DType::I64, DType::Bool];
    let all = shapes.iter().flat_map(|s| dtypes.map(|d| empty(d, s)));
    cx.cases(all.chain([no_dimensions(), no_inputs()]))
}

fn empty(dtype: DType, sizes: &[i64]) -> Result<Case, Fault> {
    let mut b = Build::new("empty");
    let (x, y) = (b.input(dtype, shape(sizes)), b.output(dtype, shape(sizes)));
    let mut body = BodyBuilder::new();
    let v = body.load(x, dtype, loops(sizes.len()));
    body.store(y, loops(sizes.len()), v, StoreMode::Write);
    b.point(shape(sizes), body);
    let dims: Vec<usize> = sizes.iter().map(|n| *n as usize).collect();
    Ok(Case::new(format!("{dtype}{sizes:?}"), b.finish(), vec![filled(dtype, &dims, 45)?]))
}

/// A number as a tensor: no dimensions, one element.
fn no_dimensions() -> Result<Case, Fault> {
    let mut b = Build::new("scalar");
    let (x, y) = (b.input(DType::F32, shape(&[])), b.output(DType::F32, shape(&[])));
    copy_changed(&mut b, x, y, DType::F32, shape(&[]));
    Ok(Case::new("no dimensions", b.finish(), vec![filled(DType::F32, &[], 46)?]))
}

/// A program without inputs.
fn no_inputs() -> Result<Case, Fault> {
    let mut b = Build::new("range");
    let y = b.output(DType::I64, shape(&[7]));
    let mut body = BodyBuilder::new();
    let v = body.index(i(0) * 3 + 1);
    body.store(y, loops(1), v, StoreMode::Write);
    b.point(shape(&[7]), body);
    Ok(Case::new("no inputs", b.finish(), vec![]))
}

pub(super) fn dynamic(cx: &mut Cx) -> Result<(), Fault> {
    cx.cases([rows(), derived(), soft()])?;
    let (backend, device) = cx.device()?;
    let case = rows()?;
    cx.case("sizes out of range", || {
        let executable = case.compile(&backend, &device)?;
        for (what, sizes) in [
            ("a size above the range", &[65, 3][..]),
            ("a size below the range", &[0, 3]),
            ("another fixed size", &[4, 4]),
            ("another rank", &[4, 3, 1]),
        ] {
            let input = filled(DType::F32, &sizes.iter().map(|n| *n as usize).collect::<Vec<_>>(), 47)?;
            if executable.execute(&[&input]).is_ok() {
                return Err(Fault::wrong(format!("{what} ({sizes:?} for [1..=64, 3]) is taken")));
            }
        }
        // A refused call leaves the executable unchanged.
        let inputs: Vec<_> = case.calls[0].iter().collect();
        let expected = case.oracle()?;
        crate::case::compare(&executable.execute(&inputs)?, &expected[0], Tolerance::EXACT)
    });
    Ok(())
}

/// `[s, 3]`, at several `s`.
fn rows() -> Result<Case, Fault> {
    let mut b = Build::new("rows");
    let s = b.symbol("rows", 1, 64);
    let sizes = exprs([s, 3.into()]);
    let (x, y) = (b.input(DType::F32, sizes.clone()), b.output(DType::F32, sizes.clone()));
    copy_changed(&mut b, x, y, DType::F32, sizes);
    calls(b, "rows", [1usize, 7, 64, 2].map(|n| vec![[n, 3]]))
}

/// Sizes that are computed from others: `[s, t] -> [t + 1, 2 * s]`.
fn derived() -> Result<Case, Fault> {
    let mut b = Build::new("derived");
    let (s, t) = (b.symbol("s", 1, 30), b.symbol("t", 2, 30));
    let x = b.input(DType::F32, exprs([s.clone(), t.clone()]));
    let sizes = exprs([t.clone() + 1, s.clone() * 2]);
    let y = b.output(DType::F32, sizes.clone());
    let temporary = b.arena(DType::F32, exprs([t.clone(), s.clone()]));
    let mut body = BodyBuilder::new();
    let v = body.load(x, DType::F32, exprs([i(1), i(0)]));
    body.store(temporary, loops(2), v, StoreMode::Write);
    b.point(exprs([t.clone(), s.clone()]), body);
    let mut body = BodyBuilder::new();
    let v = body.load(temporary, DType::F32, exprs([i(0).modulo(&t), i(1).modulo(&s)]));
    let n = body.index(s);
    let n = body.cast(n, DType::F32);
    let v = body.op(ScalarOp::Mul, &[v, n]);
    body.store(y, loops(2), v, StoreMode::Write);
    b.point(sizes, body);
    calls(b, "derived sizes", [[3usize, 5], [1, 2], [30, 29], [4, 4]].map(|s| vec![s]))
}

fn soft() -> Result<Case, Fault> {
    let mut b = Build::new("softmax");
    let (rows, columns) = (b.symbol("rows", 1, 100), b.symbol("columns", 1, 500));
    reduce::softmax_kernel(&mut b, rows, columns);
    calls(b, "softmax", [[3usize, 7], [10, 130], [1, 1], [2, 33]].map(|s| vec![s]))
}

fn calls<const N: usize>(b: Build, name: &str, sizes: [Vec<[usize; 2]>; N]) -> Result<Case, Fault> {
    let mut case = Case::new(name, b.finish(), vec![]).tolerance(Tolerance::CLOSE);
    let inputs = |call: Vec<[usize; 2]>| {
        call.iter().map(|s| Ok(filled(DType::F32, s, s[0] as u64)?)).collect::<Result<Vec<_>, Fault>>()
    };
    case.calls = sizes.into_iter().map(inputs).collect::<Result<_, _>>()?;
    Ok(case)
}

/// A few of each.
pub(super) fn samples() -> Result<Vec<Case>, Fault> {
    Ok(vec![
        laid_out(DType::F32, "transposed", &[5, 7], &[1, 5])?,
        written(DType::F32, "padded rows", &[4, 6], &[9, 1])?,
        empty(DType::F32, &[2, 0])?,
        rows()?,
        derived()?,
    ])
}
