//! Templates on 16-bit floats and `f64`: products, convolutions and attention with an epilogue, against arithmetic in
//! `f64` on the rounded operands, written out here.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs)]
use crate::common::*;
use ir_core::{DType, Scalar, Shape, SymExpr};
use kernel_ir::{
    Attention, BodyBuilder, BufId, Const, Conv, Epilogue, InstKind, Matmul, Operand, Program, ScalarOp, Step,
    Storage, StoreMode,
};

const DTYPES: [DType; 3] = [DType::BF16, DType::F16, DType::F64];

fn operand(b: &Build, buf: BufId) -> Operand {
    let d = &b.program.buffers[buf];
    Operand { buf, sizes: d.sizes.clone(), strides: d.strides.clone(), offset: SymExpr::ZERO }
}

fn data(dtype: DType, sizes: &[i64], seed: u64) -> Data {
    let rng = std::cell::RefCell::new(Rng(seed));
    let mut d = Data::floats(dtype, sizes, |_| rng.borrow_mut().unit());
    d.values.iter_mut().for_each(|v| *v = round(dtype, *v));
    d
}

fn acc(dtype: DType) -> DType {
    dtype.compute()
}

/// `template + 1`, stored in the operands' dtype.
fn plus_one(b: &mut Build, dtype: DType, sizes: &[i64]) -> Epilogue {
    plus_one_in(b, dtype, sizes, ir_core::contiguous_strides(&shape(sizes)))
}

/// The same in memory with these strides.
fn plus_one_in(b: &mut Build, dtype: DType, sizes: &[i64], strides: Shape) -> Epilogue {
    let mut body = BodyBuilder::new();
    let v = body.push(acc(dtype), InstKind::Template);
    let one = body.constant(1.0, acc(dtype));
    let v = body.op(ScalarOp::Add, &[v, one]);
    let v = body.cast(v, dtype);
    let y = b.output_strided(dtype, shape(sizes), strides);
    body.store(y, (0..sizes.len() as u32).map(i).collect(), v, StoreMode::Write);
    Epilogue { ranges: shape(sizes), insts: body.finish() }
}

fn check(b: Build, dtype: DType, sizes: &[i64], inputs: &[Data], raw: &[f64], what: &str) {
    let values = raw.iter().map(|v| round(dtype, Scalar::Float(v + 1.0))).collect();
    let want = Data::new(dtype, sizes, values);
    let (ulps, abs) = if dtype == DType::F64 { (16.0, 1e-14) } else { (1.0, 1e-4) };
    let program = b.finish();
    if let [x, w] = inputs {
        let got = bound(program.clone(), x, w);
        assert_close(&got, &want, ulps, abs, &format!("{what} with a constant weight in {dtype}"));
    }
    assert_close(&run(program, inputs)[0], &want, ulps, abs, &format!("{what} in {dtype}"));
}

/// Runs a program of two inputs whose second one is a constant instead.
fn bound(mut program: Program, x: &Data, w: &Data) -> Data {
    let buf = program.inputs.remove(1).buf;
    program.buffers[buf].storage = Storage::Constant(0);
    program.constants.push(Const { name: "w".into(), buf, range: None });
    let mut bytes = w.bytes();
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let words: Vec<u64> = bytes.chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect();
    let strides = row_major(&w.sizes);
    let mut compiled = compile(program);
    // SAFETY: the memory outlives the program's only run.
    unsafe { compiled.bind(&[("w", view(w, &words, &strides))]) }.unwrap();
    execute(&compiled, std::slice::from_ref(x)).unwrap().remove(0)
}

/// A value of a row-major tensor.
fn at(t: &Data, sizes: &[i64], index: &[i64]) -> f64 {
    let offset = index.iter().zip(sizes).fold(0, |o, (i, n)| o * n + i);
    t.values[offset as usize].as_f64()
}

#[test]
fn products_with_batches_shared_and_transposed_operands() {
    let (e, m, n, k) = (3i64, 5i64, 19i64, 7i64);
    for dtype in DTYPES {
        for shared in [false, true] {
            let mut b = Build::default();
            let x = b.input(dtype, shape(&[e, m, k]));
            // Stored [n, k]: read as its transpose.
            let own: &[i64] = if shared { &[n, k] } else { &[e, n, k] };
            let w = b.input(dtype, shape(own));
            let (x, mut w) = (operand(&b, x), operand(&b, w));
            w.sizes = shape(&[e, k, n]);
            w.strides = shape(&[if shared { 0 } else { n * k }, 1, k]);
            let epilogue = plus_one(&mut b, dtype, &[e, m, n]);
            let step = Matmul {
                name: "product".into(),
                origins: vec![],
                a: x,
                b: w,
                acc: acc(dtype),
                zero: 0,
                dequant: None,
                groups: None,
                epilogue,
            };
            b.program.steps.push(Step::Matmul(step));
            let inputs = [data(dtype, &[e, m, k], 1), data(dtype, own, 2)];
            let mut raw = Vec::new();
            for (g, r, c) in (0..e).flat_map(|g| (0..m).flat_map(move |r| (0..n).map(move |c| (g, r, c)))) {
                let column = |i: i64| if shared { vec![c, i] } else { vec![g, c, i] };
                raw.push(
                    (0..k)
                        .map(|i| at(&inputs[0], &[e, m, k], &[g, r, i]) * at(&inputs[1], own, &column(i)))
                        .sum(),
                );
            }
            check(b, dtype, &[e, m, n], &inputs, &raw, if shared { "shared product" } else { "product" });
        }
    }
}

#[test]
fn convolutions_with_strides_padding_and_groups() {
    // Sizes of the last one are such that constant weights are transformed.
    for (sizes, stride, groups) in [
        ([2, 4, 6, 7], 2, 2),
        ([3, 6, 36, 5], 1, 3),
        ([2, 8, 8, 9], 1, 8),
        ([1, 5, 70, 19], 2, 1),
        ([1, 32, 40, 18], 1, 1),
    ] {
        for dtype in DTYPES {
            convolution(dtype, sizes, (stride, groups), false);
            convolution(dtype, sizes, (stride, groups), true);
        }
    }
}

/// A window of 3×3 on images of `hw` × `hw`, in memory by pixels of channels where `last`.
fn convolution(dtype: DType, [n, c, o, hw]: [i64; 4], (stride, groups): (i64, i64), last: bool) {
    let pad = 1;
    let out = (hw + 2 * pad - 3) / stride + 1;
    let (xs, ws, ys) = ([n, c, hw, hw], [o, c / groups, 3, 3], [n, o, out, out]);
    let strides = |[_, c, h, w]: [i64; 4]| match last {
        true => shape(&[c * h * w, 1, w * c, c]),
        false => shape(&[c * h * w, h * w, w, 1]),
    };
    let mut b = Build::default();
    let (x, w) = (b.input_strided(dtype, shape(&xs), strides(xs)), b.input(dtype, shape(&ws)));
    let (input, weight) = (operand(&b, x), operand(&b, w));
    let epilogue = plus_one_in(&mut b, dtype, &ys, strides(ys));
    b.program.steps.push(Step::Conv(Conv {
        name: "conv".into(),
        origins: vec![],
        input,
        weight,
        stride: vec![stride; 2],
        padding: vec![(pad, pad); 2],
        dilation: vec![1; 2],
        groups,
        transposed: false,
        acc: acc(dtype),
        zero: 0,
        epilogue,
    }));
    let inputs = [data(dtype, &xs, 3), data(dtype, &ws, 4)];
    let mut raw = Vec::new();
    for point in 0..n * o * out * out {
        let (x, y, oc, g) =
            (point % out, point / out % out, point / (out * out) % o, point / (out * out * o));
        let mut sum = 0.0;
        for (ic, p, q) in
            (0..c / groups).flat_map(|ic| (0..3).flat_map(move |p| (0..3).map(move |q| (ic, p, q))))
        {
            let (iy, ix) = (y * stride + p - pad, x * stride + q - pad);
            if (0..hw).contains(&iy) && (0..hw).contains(&ix) {
                let channel = oc / (o / groups) * (c / groups) + ic;
                sum += at(&inputs[0], &xs, &[g, channel, iy, ix]) * at(&inputs[1], &ws, &[oc, ic, p, q]);
            }
        }
        raw.push(sum);
    }
    let what = format!("convolution {ys:?} of {groups} groups, channels last {last},");
    check(b, dtype, &ys, &inputs, &raw, &what);
}

#[test]
fn attention_with_masks_and_shared_heads() {
    let (e, h, l, s, d) = (2i64, 4i64, 5i64, 6i64, 8i64);
    let (qs, ks, ms) = ([e, h, l, d], [e, 2, s, d], [l, s]);
    for dtype in DTYPES {
        for causal in [false, true] {
            let mut b = Build::default();
            let (q, k, v) =
                (b.input(dtype, shape(&qs)), b.input(dtype, shape(&ks)), b.input(dtype, shape(&ks)));
            let (q, k, v) = (operand(&b, q), operand(&b, k), operand(&b, v));
            let mut inputs = vec![data(dtype, &qs, 5), data(dtype, &ks, 6), data(dtype, &ks, 7)];
            let mask = (!causal).then(|| {
                let m = b.input(dtype, shape(&ms));
                inputs.push(data(dtype, &ms, 8));
                // The second row sees nothing.
                inputs[3].values[s as usize..2 * s as usize].fill(Scalar::Float(f64::NEG_INFINITY));
                let mut m = operand(&b, m);
                m.sizes = shape(&[e, h, l, s]);
                m.strides = shape(&[0, 0, s, 1]);
                m
            });
            let epilogue = plus_one(&mut b, dtype, &qs);
            let step = Attention {
                name: "sdpa".into(),
                origins: vec![],
                q,
                k,
                v,
                mask,
                dropout: None,
                visibility: None,
                sums: None,
                causal,
                scale: 0.5,
                acc: acc(dtype),
                epilogue,
            };
            b.program.steps.push(Step::Attention(step));
            let mut raw = Vec::new();
            for (g, hi, r) in (0..e).flat_map(|g| (0..h).flat_map(move |hi| (0..l).map(move |r| (g, hi, r))))
            {
                let score = |c: i64| {
                    let dot: f64 = (0..d)
                        .map(|i| {
                            at(&inputs[0], &qs, &[g, hi, r, i]) * at(&inputs[1], &ks, &[g, hi / 2, c, i])
                        })
                        .sum();
                    let bias = if causal { 0.0 } else { at(&inputs[3], &ms, &[r, c]) };
                    (0.5 * dot + bias).exp()
                };
                let keys = if causal { r + 1 } else { s };
                let total: f64 = (0..keys).map(score).sum();
                raw.extend((0..d).map(|i| {
                    let sum: f64 =
                        (0..keys).map(|c| score(c) * at(&inputs[2], &ks, &[g, hi / 2, c, i])).sum();
                    if total == 0.0 { 0.0 } else { sum / total }
                }));
            }
            check(b, dtype, &qs, &inputs, &raw, "attention");
        }
    }
}
