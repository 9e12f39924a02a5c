//! Templates: matrix products, convolutions and attention, each with the epilogues that fusion creates; sorting, Fourier
//! transforms.

use ir_core::{DType, Scalar, Shape, SymExpr, contiguous_strides};
use kernel_ir::{
    Along, Attention, BodyBuilder, Conv, Dropout, Epilogue, ExternCall, ExternOp, FourierForm, Groups,
    InstKind, Matmul, Operand, ScalarOp, Step, StoreMode,
};

use super::Cx;
use crate::build::{Build, exprs, i, loops, shape};
use crate::case::{Case, Fault, Tolerance};
use crate::values::{filled, tensor};

/// Sums of a few dozen products in another order.
const SUMS: Tolerance = Tolerance { units: 256.0, absolute: 1e-4 };

/// The epilogue of a template.
#[derive(Clone, Copy, Debug, PartialEq)]
enum EpilogueKind {
    /// It is stored.
    Nothing,
    /// A bias over one dimension is added, and negative values become 0.
    BiasRelu(u32),
    /// It is stored with its dimensions reversed, in `bf16`.
    Reversed,
}

/// The epilogue over `sizes`; its bias becomes the last input.
fn epilogue(b: &mut Build, after: EpilogueKind, acc: DType, sizes: &Shape) -> Epilogue {
    let rank = sizes.len();
    let mut body = BodyBuilder::new();
    let mut v = body.push(acc, InstKind::Template);
    let (mut dtype, mut out, mut at) = (acc, sizes.clone(), loops(rank));
    match after {
        EpilogueKind::Nothing => {}
        EpilogueKind::BiasRelu(d) => {
            let bias = b.input(acc, exprs([sizes[d as usize].clone()]));
            let w = body.load(bias, acc, exprs([i(d)]));
            v = body.op(ScalarOp::Add, &[v, w]);
            let zero = body.constant(0.0, acc);
            v = body.op(ScalarOp::Max, &[v, zero]);
        }
        EpilogueKind::Reversed => {
            dtype = DType::BF16;
            v = body.cast(v, dtype);
            out.reverse();
            at = (0..rank as u32).rev().map(i).collect();
        }
    }
    let y = b.output(dtype, out);
    body.store(y, at, v, StoreMode::Write);
    Epilogue { ranges: sizes.clone(), insts: body.finish() }
}

fn dims(sizes: &[i64]) -> Vec<usize> {
    sizes.iter().map(|n| *n as usize).collect()
}

pub(super) fn matmul(cx: &mut Cx) -> Result<(), Fault> {
    let mut all = vec![
        product(DType::F32, &[], [5, 7, 3], EpilogueKind::Nothing, false),
        product(DType::F32, &[], [33, 65, 17], EpilogueKind::BiasRelu(1), false),
        product(DType::F32, &[], [4, 9, 6], EpilogueKind::Nothing, true),
        product(DType::F32, &[3], [4, 5, 6], EpilogueKind::BiasRelu(2), false),
        product(DType::F32, &[2, 3], [2, 8, 4], EpilogueKind::Reversed, true),
        product(DType::F32, &[], [0, 3, 4], EpilogueKind::Nothing, false),
        product(DType::F32, &[], [3, 0, 4], EpilogueKind::Nothing, false),
        product(DType::F32, &[], [1, 1, 1], EpilogueKind::Nothing, false),
        product(DType::F64, &[], [6, 11, 5], EpilogueKind::BiasRelu(1), false),
        product(DType::BF16, &[], [6, 32, 5], EpilogueKind::Nothing, false),
        product(DType::F16, &[2], [6, 16, 5], EpilogueKind::Nothing, false),
        integer_product(DType::U8, [5, 12, 7], 131),
        integer_product(DType::I8, [3, 9, 18], -6),
        shared_batch(),
        grouped(Along::Rows),
        grouped(Along::Depth),
        dynamic_rows(),
    ];
    if cx.by_effort(false, true) {
        all.push(product(DType::F32, &[], [130, 200, 70], EpilogueKind::BiasRelu(1), true));
        all.push(product(DType::F32, &[4], [17, 64, 33], EpilogueKind::Reversed, false));
    }
    cx.cases(all)
}

/// `[batch…, m, k] × [batch…, k, n]`; where `flipped`, the right one is stored as `[batch…, n, k]`.
fn product(
    dtype: DType,
    batch: &[i64],
    [m, k, n]: [i64; 3],
    after: EpilogueKind,
    flipped: bool,
) -> Result<Case, Fault> {
    let acc = dtype.compute();
    let of = |a: i64, b: i64| batch.iter().copied().chain([a, b]).collect::<Vec<_>>();
    let mut b = Build::new("matmul");
    let (left, right) = (of(m, k), if flipped { of(n, k) } else { of(k, n) });
    let (x, w) = (b.input(dtype, shape(&left)), b.input(dtype, shape(&right)));
    let a = b.whole(x);
    let mut right_operand = b.whole(w);
    if flipped {
        let rank = right_operand.sizes.len();
        right_operand.sizes.swap(rank - 1, rank - 2);
        right_operand.strides.swap(rank - 1, rank - 2);
    }
    let sizes = shape(&of(m, n));
    let epilogue = epilogue(&mut b, after, acc, &sizes);
    let step = Matmul {
        name: "matmul".into(),
        origins: vec![],
        a,
        b: right_operand,
        acc,
        zero: 0,
        dequant: None,
        groups: None,
        epilogue,
    };
    b.program.steps.push(Step::Matmul(step));
    let mut inputs = vec![filled(dtype, &dims(&left), 51)?, filled(dtype, &dims(&right), 52)?];
    if let EpilogueKind::BiasRelu(d) = after {
        inputs.push(filled(acc, &dims(&of(m, n)[d as usize..=d as usize]), 53)?);
    }
    let flip = if flipped { ", right one transposed" } else { "" };
    let name = format!("{dtype} {left:?} x {:?}{flip}, {after:?}", of(k, n));
    Ok(Case::new(name, b.finish(), inputs).tolerance(SUMS))
}

/// A product of 8-bit integers with a zero point: sums are exact.
fn integer_product(dtype: DType, [m, k, n]: [i64; 3], zero: i64) -> Result<Case, Fault> {
    let mut b = Build::new("integers");
    let (x, w) = (b.input(dtype, shape(&[m, k])), b.input(DType::I8, shape(&[k, n])));
    let (left, right) = (b.whole(x), b.whole(w));
    let epilogue = epilogue(&mut b, EpilogueKind::Nothing, DType::I32, &shape(&[m, n]));
    let step = Matmul {
        name: "integers".into(),
        origins: vec![],
        a: left,
        b: right,
        acc: DType::I32,
        zero,
        dequant: None,
        groups: None,
        epilogue,
    };
    b.program.steps.push(Step::Matmul(step));
    let inputs = vec![filled(dtype, &dims(&[m, k]), 58)?, filled(DType::I8, &dims(&[k, n]), 59)?];
    Ok(Case::new(format!("{dtype} [{m}, {k}] less {zero} x i8 [{k}, {n}]"), b.finish(), inputs))
}

/// A convolution of 8-bit integers: padding is zero after the zero point is subtracted.
fn integer_convolution() -> Result<Case, Fault> {
    let mut b = Build::new("integers");
    let (x, w) = (b.input(DType::U8, shape(&[2, 5, 6, 7])), b.input(DType::I8, shape(&[4, 5, 3, 3])));
    let (input, weight) = (b.whole(x), b.whole(w));
    let epilogue = epilogue(&mut b, EpilogueKind::Nothing, DType::I32, &shape(&[2, 4, 6, 7]));
    b.program.steps.push(Step::Conv(Conv {
        name: "integers".into(),
        origins: vec![],
        input,
        weight,
        stride: vec![1, 1],
        padding: vec![(1, 1), (1, 1)],
        dilation: vec![1, 1],
        groups: 1,
        transposed: false,
        acc: DType::I32,
        zero: 117,
        epilogue,
    }));
    let inputs = vec![filled(DType::U8, &[2, 5, 6, 7], 64)?, filled(DType::I8, &[4, 5, 3, 3], 65)?];
    Ok(Case::new("u8 less 117, window [3, 3] of i8", b.finish(), inputs))
}

/// Rows, or places of the depth, of groups that data tells: empty groups, places in none, and numbers that are no ends.
fn grouped(along: Along) -> Result<Case, Fault> {
    let (m, k, n, g) = (7, 9, 5, 4);
    let mut b = Build::new("grouped");
    let right = if along == Along::Rows { vec![g, k, n] } else { vec![k, n] };
    let ranges = if along == Along::Rows { vec![m, n] } else { vec![g, m, n] };
    let (x, w) = (b.input(DType::F32, shape(&[m, k])), b.input(DType::F32, shape(&right)));
    let ends = b.input(DType::I64, shape(&[g]));
    let (left, right_operand, ends) = (b.whole(x), b.whole(w), b.whole(ends));
    let epilogue = epilogue(&mut b, EpilogueKind::Nothing, DType::F32, &shape(&ranges));
    b.program.steps.push(Step::Matmul(Matmul {
        name: "grouped".into(),
        origins: vec![],
        a: left,
        b: right_operand,
        acc: DType::F32,
        zero: 0,
        dequant: None,
        groups: Some(Groups { ends, along }),
        epilogue,
    }));
    let name = format!("groups of {}", along.name());
    let mut case = Case::new(name, b.finish(), vec![]).tolerance(SUMS);
    let call = |ends: [i64; 4]| -> Result<Vec<_>, Fault> {
        let (x, w) = (filled(DType::F32, &dims(&[m, k]), 66)?, filled(DType::F32, &dims(&right), 67)?);
        Ok(vec![x, w, tensor(DType::I64, &[4], &ends.map(Scalar::Int))?])
    };
    case.calls =
        [[2, 2, 3, 7], [0, 4, 5, 5], [3, -1, i64::MAX, 1]].into_iter().map(call).collect::<Result<_, _>>()?;
    Ok(case)
}

/// One right matrix for all of a batch, by stride 0.
fn shared_batch() -> Result<Case, Fault> {
    let mut b = Build::new("matmul");
    let (x, w) = (b.input(DType::F32, shape(&[3, 4, 5])), b.input(DType::F32, shape(&[5, 6])));
    let a = b.whole(x);
    let right =
        Operand { buf: w, sizes: shape(&[3, 5, 6]), strides: shape(&[0, 6, 1]), offset: SymExpr::ZERO };
    let epilogue = epilogue(&mut b, EpilogueKind::Nothing, DType::F32, &shape(&[3, 4, 6]));
    let step = Matmul {
        name: "matmul".into(),
        origins: vec![],
        a,
        b: right,
        acc: DType::F32,
        zero: 0,
        dequant: None,
        groups: None,
        epilogue,
    };
    b.program.steps.push(Step::Matmul(step));
    let inputs = vec![filled(DType::F32, &[3, 4, 5], 54)?, filled(DType::F32, &[5, 6], 55)?];
    Ok(Case::new("one right matrix for a batch", b.finish(), inputs).tolerance(SUMS))
}

/// As many rows as a call has; the weight is a constant, as in a linear layer.
fn dynamic_rows() -> Result<Case, Fault> {
    let mut b = Build::new("linear");
    let rows = b.symbol("rows", 1, 50);
    let x = b.input(DType::F32, exprs([rows.clone(), 8.into()]));
    let w = b.constant("fc.weight", DType::F32, shape(&[6, 8]));
    let a = b.whole(x);
    let right = Operand { buf: w, sizes: shape(&[8, 6]), strides: shape(&[1, 8]), offset: SymExpr::ZERO };
    let epilogue = epilogue(&mut b, EpilogueKind::BiasRelu(1), DType::F32, &exprs([rows, 6.into()]));
    let step = Matmul {
        name: "linear".into(),
        origins: vec![],
        a,
        b: right,
        acc: DType::F32,
        zero: 0,
        dequant: None,
        groups: None,
        epilogue,
    };
    b.program.steps.push(Step::Matmul(step));
    let mut case = Case::new("linear layer of any number of rows", b.finish(), vec![]).tolerance(SUMS);
    case.constants = vec![("fc.weight".into(), filled(DType::F32, &[6, 8], 56)?)];
    let call = |rows: usize| -> Result<Vec<_>, Fault> {
        Ok(vec![filled(DType::F32, &[rows, 8], rows as u64)?, filled(DType::F32, &[6], 57)?])
    };
    case.calls = [1, 50, 13].into_iter().map(call).collect::<Result<_, _>>()?;
    Ok(case)
}

/// Shape of a convolution.
#[derive(Clone, Copy, Debug)]
struct Window<'a> {
    /// `[n, c, spatial…]`.
    input: &'a [i64],
    /// Output channels.
    out: i64,
    kernel: &'a [i64],
    stride: i64,
    padding: i64,
    dilation: i64,
    groups: i64,
    transposed: bool,
}

pub(super) fn convolution(cx: &mut Cx) -> Result<(), Fault> {
    let plain = Window {
        input: &[2, 4, 7, 6],
        out: 6,
        kernel: &[3, 3],
        stride: 1,
        padding: 1,
        dilation: 1,
        groups: 1,
        transposed: false,
    };
    let mut all = vec![
        conv(plain, EpilogueKind::Nothing),
        conv(plain, EpilogueKind::BiasRelu(1)),
        conv(Window { kernel: &[1, 1], padding: 0, ..plain }, EpilogueKind::BiasRelu(1)),
        conv(Window { stride: 2, ..plain }, EpilogueKind::Nothing),
        conv(Window { dilation: 2, padding: 2, ..plain }, EpilogueKind::Nothing),
        conv(Window { groups: 2, ..plain }, EpilogueKind::Nothing),
        conv(Window { groups: 4, out: 4, ..plain }, EpilogueKind::BiasRelu(1)),
        conv(Window { input: &[2, 3, 11], kernel: &[4], ..plain }, EpilogueKind::Nothing),
        conv(Window { input: &[1, 2, 4, 5, 6], out: 3, kernel: &[2, 3, 3], ..plain }, EpilogueKind::Nothing),
        conv(Window { transposed: true, ..plain }, EpilogueKind::Nothing),
        conv(Window { transposed: true, stride: 2, groups: 2, ..plain }, EpilogueKind::Nothing),
        integer_convolution(),
    ];
    if cx.by_effort(false, true) {
        all.push(conv(Window { input: &[1, 16, 20, 20], out: 32, ..plain }, EpilogueKind::BiasRelu(1)));
    }
    cx.cases(all)
}

fn conv(w: Window<'_>, after: EpilogueKind) -> Result<Case, Fault> {
    let spatial = w.kernel.len();
    let size = |d: usize| {
        let (n, reach) = (w.input[d + 2], w.dilation * (w.kernel[d] - 1));
        if w.transposed {
            (n - 1) * w.stride - 2 * w.padding + reach + 1
        } else {
            (n + 2 * w.padding - reach - 1) / w.stride + 1
        }
    };
    let sizes: Vec<i64> = [w.input[0], w.out].into_iter().chain((0..spatial).map(size)).collect();
    let channels = if w.transposed { [w.input[1], w.out / w.groups] } else { [w.out, w.input[1] / w.groups] };
    let weights: Vec<i64> = channels.into_iter().chain(w.kernel.iter().copied()).collect();
    let mut b = Build::new("conv");
    let (x, k) = (b.input(DType::F32, shape(w.input)), b.input(DType::F32, shape(&weights)));
    let (input, weight) = (b.whole(x), b.whole(k));
    let epilogue = epilogue(&mut b, after, DType::F32, &shape(&sizes));
    b.program.steps.push(Step::Conv(Conv {
        name: "conv".into(),
        origins: vec![],
        input,
        weight,
        stride: vec![w.stride; spatial],
        padding: vec![(w.padding, w.padding); spatial],
        dilation: vec![w.dilation; spatial],
        groups: w.groups,
        transposed: w.transposed,
        acc: DType::F32,
        zero: 0,
        epilogue,
    }));
    let mut inputs = vec![filled(DType::F32, &dims(w.input), 61)?, filled(DType::F32, &dims(&weights), 62)?];
    if let EpilogueKind::BiasRelu(d) = after {
        inputs.push(filled(DType::F32, &dims(&sizes[d as usize..=d as usize]), 63)?);
    }
    let turned = if w.transposed { "transposed " } else { "" };
    let name = format!(
        "{turned}{:?} window {:?} stride {} dilation {} groups {}, {after:?}",
        w.input, w.kernel, w.stride, w.dilation, w.groups
    );
    Ok(Case::new(name, b.finish(), inputs).tolerance(SUMS))
}

/// A mask.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mask {
    None,
    Causal,
    /// False masks a position; one row is masked entirely.
    Truth,
    /// Added to the scores.
    Added,
    /// Weights are dropped after the softmax.
    Dropout,
}

pub(super) fn attention(cx: &mut Cx) -> Result<(), Fault> {
    let masks = [Mask::None, Mask::Causal, Mask::Truth, Mask::Added];
    let shapes = cx.by_effort(
        &[([2, 2, 2], [5, 7], [4, 4])][..],
        &[([2, 2, 2], [5, 7], [4, 4]), ([1, 4, 2], [9, 9], [8, 6]), ([1, 1, 1], [33, 40], [16, 16])],
    );
    cx.cases(shapes.iter().flat_map(|s| masks.map(|m| attend(*s, m))))
}

pub(super) fn dropout(cx: &mut Cx) -> Result<(), Fault> {
    let shapes = [([2, 2, 2], [5, 7], [4, 4]), ([1, 4, 2], [9, 70], [8, 6])];
    cx.cases(shapes.into_iter().map(|s| attend(s, Mask::Dropout)))
}

/// `[batch, heads, heads of keys]`, `[queries, keys]`, `[dimensions, those of values]`.
type AttentionSizes = ([i64; 3], [i64; 2], [i64; 2]);

fn attend(([n, hq, hk], [lq, lk], [d, dv]): AttentionSizes, kind: Mask) -> Result<Case, Fault> {
    let mut b = Build::new("attention");
    let shapes = [[n, hq, lq, d], [n, hk, lk, d], [n, hk, lk, dv]];
    let [q, k, v] = shapes.map(|s| b.input(DType::F32, shape(&s))).map(|buf| b.whole(buf));
    let mut inputs = (71..)
        .zip(&shapes)
        .map(|(seed, s)| filled(DType::F32, &dims(s), seed))
        .collect::<Result<Vec<_>, _>>()?;
    let mask = match kind {
        Mask::None | Mask::Causal | Mask::Dropout => None,
        Mask::Truth => {
            let truths: Vec<Scalar> =
                (0..lq * lk).map(|p| Scalar::Bool(p / lk != 1 && p * 5 % 3 != 0)).collect();
            inputs.push(tensor(DType::Bool, &dims(&[lq, lk]), &truths)?);
            Some(DType::Bool)
        }
        Mask::Added => {
            inputs.push(filled(DType::F32, &dims(&[lq, lk]), 74)?);
            Some(DType::F32)
        }
    };
    let mask = mask.map(|dtype| {
        let buf = b.input(dtype, shape(&[lq, lk]));
        let strides =
            exprs([SymExpr::ZERO, SymExpr::ZERO].into_iter().chain(contiguous_strides(&shape(&[lq, lk]))));
        Operand { buf, sizes: shape(&[n, hq, lq, lk]), strides, offset: SymExpr::ZERO }
    });
    let dropout = if kind == Mask::Dropout {
        let words = [n, hq, lq, (lk + Dropout::KEYS - 1) / Dropout::KEYS];
        let bits = |p: i64| Scalar::Int(i64::from((p as i32).wrapping_mul(0x45d9_f3b7).rotate_left(11)));
        let all: Vec<Scalar> = (0..words.iter().product()).map(bits).collect();
        inputs.push(tensor(DType::I32, &dims(&words), &all)?);
        let buf = b.input(DType::I32, shape(&words));
        Some(Dropout { kept: b.whole(buf), factor: 1.25 })
    } else {
        None
    };
    let epilogue = epilogue(&mut b, EpilogueKind::Nothing, DType::F32, &shape(&[n, hq, lq, dv]));
    b.program.steps.push(Step::Attention(Attention {
        name: "attention".into(),
        origins: vec![],
        q,
        k,
        v,
        mask,
        visibility: None,
        sums: None,
        dropout,
        causal: kind == Mask::Causal,
        scale: 1.0 / (d as f64).sqrt(),
        acc: DType::F32,
        epilogue,
    }));
    let name = format!("heads {hq}/{hk}, {lq} queries, {lk} keys, mask {kind:?}");
    Ok(Case::new(name, b.finish(), inputs).tolerance(SUMS))
}

pub(super) fn sort(cx: &mut Cx) -> Result<(), Fault> {
    let dtypes = [DType::F32, DType::F64, DType::I64, DType::I32, DType::BF16, DType::U8, DType::Bool];
    let mut all = Vec::new();
    for dtype in dtypes {
        for (dim, descending) in [(1, false), (0, true)] {
            all.push(sorted(dtype, &[4, 9], dim, descending));
        }
    }
    all.extend([
        sorted(DType::F32, &[2, 0], 1, false),
        sorted(DType::F32, &[2, 300, 3], 1, true),
        unordered(),
    ]);
    cx.cases(all)
}

fn sorted(dtype: DType, sizes: &[i64], dim: u32, descending: bool) -> Result<Case, Fault> {
    let mut b = Build::new("sort");
    let x = b.input(dtype, shape(sizes));
    let (values, positions) = (b.output(dtype, shape(sizes)), b.output(DType::I64, shape(sizes)));
    let (input, outputs) = (b.whole(x), vec![b.whole(values), b.whole(positions)]);
    b.program.steps.push(Step::Extern(ExternCall {
        name: "sort".into(),
        origins: vec![],
        op: ExternOp::Sort { dim, descending },
        inputs: vec![input],
        outputs,
    }));
    let way = if descending { "down" } else { "up" };
    let input = filled(dtype, &dims(sizes), 81)?;
    Ok(Case::new(format!("{dtype}{sizes:?} along {dim}, {way}"), b.finish(), vec![input]))
}

/// `NaN` counts as the largest, and equal numbers keep their order.
fn unordered() -> Result<Case, Fault> {
    let mut case = sorted(DType::F32, &[12], 0, false)?;
    let numbers =
        [3.0, f64::NAN, 1.0, 3.0, -0.0, 0.0, f64::INFINITY, 1.0, f64::NAN, -2.0, f64::NEG_INFINITY, 3.0];
    case.calls = vec![vec![tensor(DType::F32, &[12], &numbers.map(Scalar::Float))?]];
    case.name = "NaN, infinities and equal numbers".into();
    Ok(case)
}

pub(super) fn fourier(cx: &mut Cx) -> Result<(), Fault> {
    let mut all = Vec::new();
    for form in [FourierForm::Complex, FourierForm::RealToHalf, FourierForm::HalfToReal] {
        for (others, dim, length) in
            [(vec![3], 1, 16), (vec![2, 5], 1, 15), (vec![7], 0, 22), (vec![1], 1, 1)]
        {
            all.push(transformed(form, DType::F32, &others, dim, length, length % 2 == 0));
        }
        all.push(transformed(form, DType::F64, &[3], 1, 360, true));
    }
    cx.cases(all)
}

/// The transform of lines of this length along `dim`, beside dimensions of the sizes `others`.
fn transformed(
    form: FourierForm,
    dtype: DType,
    others: &[i64],
    dim: usize,
    length: i64,
    forward: bool,
) -> Result<Case, Fault> {
    let mut b = Build::new("fourier");
    let (read, made) = form.counts(length);
    let with = |count: i64| {
        let mut sizes = others.to_vec();
        sizes.insert(dim, count);
        sizes
    };
    let (ins, outs) = match form {
        FourierForm::Complex => (2, 2),
        FourierForm::RealToHalf => (1, 2),
        FourierForm::HalfToReal => (2, 1),
    };
    let inputs: Vec<Operand> = (0..ins)
        .map(|_| {
            let buf = b.input(dtype, shape(&with(read)));
            b.whole(buf)
        })
        .collect();
    let outputs = (0..outs)
        .map(|_| {
            let buf = b.output(dtype, shape(&with(made)));
            b.whole(buf)
        })
        .collect();
    let op = ExternOp::Fourier { dim: dim as u32, forward, scale: 0.25 };
    let (name, origins) = ("fourier".into(), vec![]);
    b.program.steps.push(Step::Extern(ExternCall { name, origins, op, inputs, outputs }));
    let numbers = (0..ins).map(|n| filled(dtype, &dims(&with(read)), 91 + n)).collect::<Result<_, _>>()?;
    let mut case =
        Case::new(format!("{form:?} of {length}, {dtype}{others:?} along {dim}"), b.finish(), numbers);
    case.tolerance = SUMS;
    Ok(case)
}

/// One of each.
pub(super) fn samples() -> Result<Vec<Case>, Fault> {
    let window = Window {
        input: &[1, 2, 5, 5],
        out: 4,
        kernel: &[3, 3],
        stride: 1,
        padding: 1,
        dilation: 1,
        groups: 1,
        transposed: false,
    };
    let heads = ([1, 2, 2], [3, 4], [4, 4]);
    Ok(vec![
        product(DType::F32, &[], [3, 4, 5], EpilogueKind::BiasRelu(1), false)?,
        product(DType::BF16, &[2], [3, 4, 5], EpilogueKind::Nothing, false)?,
        conv(window, EpilogueKind::Nothing)?,
        attend(heads, Mask::Causal)?,
        sorted(DType::F32, &[3, 4], 1, false)?,
    ])
}
