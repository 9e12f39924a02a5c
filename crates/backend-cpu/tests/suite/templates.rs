//! Templates through the executor: products, convolutions and attention with recognised and generated epilogues, packed and
//! unpacked weights, odd layouts and dtypes; sort. The oracle is arithmetic in `f64` written out here.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs)]
use crate::common::*;
use backend_cpu::exec::{Compiled, ExecOptions};
use ir_core::{DType, Scalar, Shape, SymExpr};
use kernel_ir::{
    Attention, BodyBuilder, BufId, Const, Conv, Epilogue, ExternCall, ExternOp, InstKind, Matmul, Operand,
    ScalarOp, Step, Storage, StoreMode, Val,
};
use plugin_sdk::TensorView;

fn operand(b: &Build, buf: BufId) -> Operand {
    let d = &b.program.buffers[buf];
    Operand { buf, sizes: d.sizes.clone(), strides: d.strides.clone(), offset: SymExpr::ZERO }
}

fn data(sizes: &[i64], seed: u64) -> Data {
    let rng = std::cell::RefCell::new(Rng(seed));
    let mut d = Data::floats(DType::F32, sizes, |_| rng.borrow_mut().unit());
    d.values.iter_mut().for_each(|v| *v = round(DType::F32, *v));
    d
}

fn vars(rank: usize) -> Shape {
    (0..rank as u32).map(i).collect()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Plain,
    BiasRelu,
    BiasResidual,
    /// Nothing the hand-written kernels know: goes through a generated function.
    Gelu,
    /// Transposed store in bf16, generated.
    Transposed,
}

const KINDS: [Kind; 5] = [Kind::Plain, Kind::BiasRelu, Kind::BiasResidual, Kind::Gelu, Kind::Transposed];

/// Adds the epilogue's buffers (bias over `channel`, residual over all) and its body; returns the inputs that it reads.
fn epilogue(
    b: &mut Build,
    kind: Kind,
    sizes: &[i64],
    channel: usize,
    strides: Option<Shape>,
) -> (Epilogue, Vec<Data>) {
    let rank = sizes.len();
    let mut body = BodyBuilder::new();
    let mut inputs = Vec::new();
    let mut v = body.push(DType::F32, InstKind::Template);
    if kind != Kind::Plain && kind != Kind::Transposed {
        let bias = b.input(DType::F32, shape(&sizes[channel..=channel]));
        inputs.push(data(&sizes[channel..=channel], 91));
        let w = body.load(bias, DType::F32, [i(channel as u32)].into_iter().collect());
        v = body.op(ScalarOp::Add, &[v, w]);
    }
    if kind == Kind::BiasResidual {
        let strides = strides.clone().unwrap_or_else(|| ir_core::contiguous_strides(&shape(sizes)));
        // Inputs are given row-major: other strides are copied by the executor.
        let r = b.input_strided(DType::F32, shape(sizes), strides);
        inputs.push(data(sizes, 92));
        let r = body.load(r, DType::F32, vars(rank));
        v = body.op(ScalarOp::Add, &[v, r]);
    }
    if kind == Kind::BiasRelu {
        let zero = body.constant(0.0, DType::F32);
        v = body.op(ScalarOp::Max, &[v, zero]);
    }
    if kind == Kind::Gelu {
        v = gelu(&mut body, v);
    }
    let (dtype, index, out) = if kind == Kind::Transposed {
        let flipped: Vec<i64> = sizes.iter().rev().copied().collect();
        v = body.cast(v, DType::BF16);
        (DType::BF16, (0..rank as u32).rev().map(i).collect(), shape(&flipped))
    } else {
        (DType::F32, vars(rank), shape(sizes))
    };
    let y = match strides {
        Some(s) if kind != Kind::Transposed => b.output_strided(dtype, out, s),
        _ => b.output(dtype, out),
    };
    body.store(y, index, v, StoreMode::Write);
    (Epilogue { ranges: shape(sizes), insts: body.finish() }, inputs)
}

fn gelu(b: &mut BodyBuilder, v: Val) -> Val {
    let (half, one, root) =
        (b.constant(0.5, DType::F32), b.constant(1.0, DType::F32), b.constant(0.5f64.sqrt(), DType::F32));
    let t = b.op(ScalarOp::Mul, &[v, root]);
    let e = b.op(ScalarOp::Erf, &[t]);
    let e = b.op(ScalarOp::Add, &[e, one]);
    let h = b.op(ScalarOp::Mul, &[v, half]);
    b.op(ScalarOp::Mul, &[h, e])
}

/// The epilogue in `f64` on a row-major result.
fn after(kind: Kind, sizes: &[i64], channel: usize, raw: &[f64], inputs: &[Data]) -> Data {
    let inner: i64 = sizes[channel + 1..].iter().product();
    let mut values: Vec<f64> = raw.to_vec();
    for (k, v) in values.iter_mut().enumerate() {
        if kind != Kind::Plain && kind != Kind::Transposed {
            *v += inputs[0].values[(k as i64 / inner % sizes[channel]) as usize].as_f64();
        }
        match kind {
            Kind::BiasResidual => *v += inputs[1].values[k].as_f64(),
            Kind::BiasRelu => *v = v.max(0.0),
            Kind::Gelu => *v *= 0.5 * (1.0 + libm::erf(*v * 0.5f64.sqrt())),
            _ => {}
        }
    }
    if kind != Kind::Transposed {
        return Data::new(DType::F32, sizes, values.into_iter().map(Scalar::Float).collect());
    }
    let flipped: Vec<i64> = sizes.iter().rev().copied().collect();
    let mut out = vec![Scalar::Float(0.0); values.len()];
    for (k, v) in values.iter().enumerate() {
        let (mut rest, mut index) = (k as i64, vec![0; sizes.len()]);
        for d in (0..sizes.len()).rev() {
            index[d] = rest % sizes[d];
            rest /= sizes[d];
        }
        let at = index.iter().rev().zip(row_major(&flipped)).map(|(i, s)| i * s).sum::<i64>();
        out[at as usize] = Scalar::Float(*v);
    }
    Data::new(DType::BF16, &flipped, out)
}

fn product(a: &Data, b: &Data, batch: i64, m: i64, k: i64, n: i64, shared: bool) -> Vec<f64> {
    let mut out = Vec::new();
    for e in 0..batch {
        for r in 0..m {
            for c in 0..n {
                let at = if shared { 0 } else { e * k * n };
                out.push(
                    (0..k)
                        .map(|t| {
                            a.values[(e * m * k + r * k + t) as usize].as_f64()
                                * b.values[(at + t * n + c) as usize].as_f64()
                        })
                        .sum(),
                );
            }
        }
    }
    out
}

fn tolerance(kind: Kind) -> (f64, f64) {
    if kind == Kind::Transposed { (1.0, 1e-4) } else { (20.0, 1e-4) }
}

#[test]
fn products_with_every_epilogue() {
    for (batch, m, k, n, shared) in
        [(1, 5, 7, 9, true), (3, 17, 32, 40, false), (2, 33, 16, 48, true), (2, 1, 64, 31, true)]
    {
        for kind in KINDS {
            let mut b = Build::default();
            let x = b.input(DType::F32, shape(&[batch, m, k]));
            let wsizes: &[i64] = if shared { &[k, n] } else { &[batch, k, n] };
            let w = b.input(DType::F32, shape(wsizes));
            let (a, mut o) = (operand(&b, x), operand(&b, w));
            if shared {
                (o.sizes, o.strides) = (shape(&[batch, k, n]), shape(&[0, n, 1]));
            }
            let sizes = [batch, m, n];
            let (e, more) = epilogue(&mut b, kind, &sizes, 2, None);
            b.program.steps.push(Step::Matmul(Matmul {
                name: "mm".into(),
                origins: vec![],
                a,
                b: o,
                acc: DType::F32,
                zero: 0,
                dequant: None,
                groups: None,
                epilogue: e,
            }));
            let mut inputs = vec![data(&[batch, m, k], 1), data(wsizes, 2)];
            let raw = product(&inputs[0], &inputs[1], batch, m, k, n, shared);
            let want = after(kind, &sizes, 2, &raw, &more);
            inputs.extend(more);
            let got = run(b.finish(), &inputs);
            let (ulps, abs) = tolerance(kind);
            assert_close(&got[0], &want, ulps, abs, &format!("{kind:?} {batch} {m} {k} {n}"));
        }
    }
}

#[test]
fn constant_weights_are_packed_and_any_number_of_rows_runs() {
    for kind in KINDS {
        let (k, n) = (24i64, 40i64);
        let mut b = Build::default();
        let rows = b.symbol("rows", 0, 4096);
        let x = b.input(DType::F32, [rows.clone(), SymExpr::from_i64(k)].into_iter().collect());
        // The weight is [N, K], read transposed.
        let w = b.buffer(DType::F32, shape(&[n, k]), shape(&[k, 1]), Storage::Constant(0));
        b.program.constants.push(Const { name: "w".into(), buf: w, range: None });
        let a = operand(&b, x);
        let o = Operand { buf: w, sizes: shape(&[k, n]), strides: shape(&[1, k]), offset: SymExpr::ZERO };
        if kind == Kind::BiasResidual || kind == Kind::Transposed {
            continue; // Their helper makes buffers of fixed size.
        }
        let mut body = BodyBuilder::new();
        let mut v = body.push(DType::F32, InstKind::Template);
        match kind {
            Kind::Gelu => v = gelu(&mut body, v),
            Kind::BiasRelu => {
                let zero = body.constant(0.0, DType::F32);
                v = body.op(ScalarOp::Max, &[v, zero]);
            }
            _ => {}
        }
        let out: Shape = [rows, SymExpr::from_i64(n)].into_iter().collect();
        let y = b.output(DType::F32, out.clone());
        body.store(y, vars(2), v, StoreMode::Write);
        let epilogue = Epilogue { ranges: out, insts: body.finish() };
        b.program.steps.push(Step::Matmul(Matmul {
            name: "mm".into(),
            origins: vec![],
            a,
            b: o,
            acc: DType::F32,
            zero: 0,
            dequant: None,
            groups: None,
            epilogue,
        }));
        let weight = data(&[n, k], 5);
        let floats: Vec<f32> = weight.values.iter().map(|v| v.as_f64() as f32).collect();
        let mut c = Compiled::new(b.finish(), ExecOptions { threads: 2, ..ExecOptions::default() }).unwrap();
        assert!(execute(&c, &[data(&[1, k], 1)]).unwrap_err().to_string().contains("bind_constants"));
        let view = TensorView::from_slice(&floats, DType::F32, &[40, 24], &[24, 1]).unwrap();
        // SAFETY: `floats` outlives the program.
        unsafe { c.bind(&[("w", view)]) }.unwrap();
        assert!(c.constant_bytes() > 0, "packed");
        let mut turned = Vec::new();
        (0..k).for_each(|t| (0..n).for_each(|j| turned.push(weight.values[(j * k + t) as usize])));
        let turned = Data::new(DType::F32, &[k, n], turned);
        for m in [0, 1, 8, 9, 100] {
            let x = data(&[m, k], 3);
            let raw = product(&x, &turned, 1, m, k, n, true);
            let want: Vec<f64> = raw
                .into_iter()
                .map(|v| match kind {
                    Kind::Gelu => v * 0.5 * (1.0 + libm::erf(v * 0.5f64.sqrt())),
                    Kind::BiasRelu => v.max(0.0),
                    _ => v,
                })
                .collect();
            let want = Data::new(DType::F32, &[m, n], want.into_iter().map(Scalar::Float).collect());
            assert_close(&execute(&c, &[x]).unwrap()[0], &want, 20.0, 1e-4, &format!("{kind:?} {m} rows"));
        }
    }
}

#[test]
fn products_of_other_dtypes() {
    for dtype in [DType::BF16, DType::I64, DType::F64] {
        let (m, k, n) = (5i64, 8i64, 6i64);
        let mut b = Build::default();
        let (x, w) = (b.input(dtype, shape(&[m, k])), b.input(dtype, shape(&[k, n])));
        let acc = dtype.compute();
        let mut body = BodyBuilder::new();
        let v = body.push(acc, InstKind::Template);
        let y = b.output(acc, shape(&[m, n]));
        body.store(y, vars(2), v, StoreMode::Write);
        let epilogue = Epilogue { ranges: shape(&[m, n]), insts: body.finish() };
        let (a, o) = (operand(&b, x), operand(&b, w));
        b.program.steps.push(Step::Matmul(Matmul {
            name: "mm".into(),
            origins: vec![],
            a,
            b: o,
            acc,
            zero: 0,
            dequant: None,
            groups: None,
            epilogue,
        }));
        let make = |sizes: &[i64], seed| {
            let mut d = data(sizes, seed);
            d.dtype = dtype;
            d.values.iter_mut().for_each(|v| *v = round(dtype, Scalar::Float(v.as_f64() * 10.0)));
            d
        };
        let inputs = [make(&[m, k], 1), make(&[k, n], 2)];
        let raw = product(&inputs[0], &inputs[1], 1, m, k, n, true);
        let want =
            Data::new(acc, &[m, n], raw.into_iter().map(|v| Scalar::Float(v).to_class_of(acc)).collect());
        assert_close(&run(b.finish(), &inputs)[0], &want, 20.0, 1e-4, &format!("{dtype}"));
    }
}

struct Case {
    n: i64,
    c: i64,
    o: i64,
    hw: [i64; 2],
    k: [i64; 2],
    stride: i64,
    pad: i64,
    groups: i64,
    transposed: bool,
    layout: Layout,
}

/// The order of a result's dimensions in memory, and of the input's where that has one of these.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    /// N, H, W, C
    Last,
    /// N, C, H, W
    First,
    /// C, N, H, W: a gradient to a weight.
    Weight,
}

impl Layout {
    fn strides(self, [n, c, h, w]: [i64; 4]) -> Shape {
        match self {
            Layout::Last => shape(&[c * h * w, 1, w * c, c]),
            Layout::First => shape(&[c * h * w, h * w, w, 1]),
            Layout::Weight => shape(&[h * w, n * h * w, w, 1]),
        }
    }
}

fn convolve(case: &Case, x: &Data, w: &Data, out: [i64; 2]) -> Vec<f64> {
    let Case { n, c, o, hw, k, stride, pad, groups, .. } = *case;
    let (ci, oi) = (c / groups, o / groups);
    let mut y = vec![0.0; (n * o * out[0] * out[1]) as usize];
    for b in 0..n {
        for oc in 0..o {
            for icl in 0..ci {
                let ic = oc / oi * ci + icl;
                for (p, q) in (0..k[0]).flat_map(|p| (0..k[1]).map(move |q| (p, q))) {
                    for (oy, ox) in (0..out[0]).flat_map(|y| (0..out[1]).map(move |x| (y, x))) {
                        let (iy, ix) = if case.transposed {
                            let (ty, tx) = (oy + pad - p, ox + pad - q);
                            if ty % stride != 0 || tx % stride != 0 {
                                continue;
                            }
                            (ty / stride, tx / stride)
                        } else {
                            (oy * stride + p - pad, ox * stride + q - pad)
                        };
                        if !(0..hw[0]).contains(&iy) || !(0..hw[1]).contains(&ix) {
                            continue;
                        }
                        let wi = if case.transposed {
                            (ic * oi + oc % oi) * k[0] * k[1]
                        } else {
                            (oc * ci + icl) * k[0] * k[1]
                        };
                        let xv = x.values[(((b * c + ic) * hw[0] + iy) * hw[1] + ix) as usize].as_f64();
                        y[(((b * o + oc) * out[0] + oy) * out[1] + ox) as usize] +=
                            xv * w.values[(wi + p * k[1] + q) as usize].as_f64();
                    }
                }
            }
        }
    }
    y
}

#[test]
fn convolutions_with_every_epilogue_and_layout() {
    let base = Case {
        n: 2,
        c: 6,
        o: 8,
        hw: [7, 9],
        k: [3, 3],
        stride: 1,
        pad: 1,
        groups: 1,
        transposed: false,
        layout: Layout::Last,
    };
    let cases = [
        Case { ..base },
        Case { layout: Layout::First, stride: 2, ..base },
        Case { layout: Layout::First, n: 3, o: 70, hw: [19, 18], ..base },
        Case { layout: Layout::First, transposed: true, stride: 2, hw: [5, 12], o: 9, ..base },
        Case { layout: Layout::First, transposed: true, c: 20, o: 70, ..base },
        Case { layout: Layout::First, c: 8, o: 68, groups: 4, ..base },
        Case { layout: Layout::First, n: 1, c: 70, o: 70, groups: 70, ..base },
        Case { layout: Layout::Weight, n: 9, o: 34, groups: 2, ..base },
        Case { layout: Layout::First, n: 20, c: 20, o: 70, hw: [3, 3], ..base },
        Case { layout: Layout::Weight, n: 33, c: 4, o: 70, hw: [5, 5], k: [3, 3], ..base },
        Case { layout: Layout::Weight, n: 7, c: 5, o: 3, hw: [1, 9], k: [1, 3], pad: 0, ..base },
        Case { c: 8, groups: 8, ..base },
        Case { groups: 2, k: [1, 1], pad: 0, ..base },
        Case { transposed: true, stride: 2, groups: 2, ..base },
        Case { n: 1, hw: [1, 1], pad: 1, ..base },
    ];
    for case in &cases {
        for kind in KINDS {
            let Case { n, c, o, hw, k, stride, pad, groups, transposed, layout } = *case;
            let size = |d: usize| {
                if transposed {
                    (hw[d] - 1) * stride - 2 * pad + k[d]
                } else {
                    (hw[d] + 2 * pad - k[d]) / stride + 1
                }
            };
            let out = [size(0), size(1)];
            let mut b = Build::default();
            let xs = [n, c, hw[0], hw[1]];
            let x = b.input_strided(DType::F32, shape(&xs), layout.strides(xs));
            let wsizes = if transposed { [c, o / groups, k[0], k[1]] } else { [o, c / groups, k[0], k[1]] };
            let w = b.input(DType::F32, shape(&wsizes));
            let sizes = [n, o, out[0], out[1]];
            let (input, weight) = (operand(&b, x), operand(&b, w));
            let (epilogue, more) = epilogue(&mut b, kind, &sizes, 1, Some(layout.strides(sizes)));
            b.program.steps.push(Step::Conv(Conv {
                name: "conv".into(),
                origins: vec![],
                input,
                weight,
                stride: vec![stride; 2],
                padding: vec![(pad, pad); 2],
                dilation: vec![1; 2],
                groups,
                transposed,
                acc: DType::F32,
                zero: 0,
                epilogue,
            }));
            let mut inputs = vec![data(&[n, c, hw[0], hw[1]], 1), data(&wsizes, 2)];
            let raw = convolve(case, &inputs[0], &inputs[1], out);
            let want = after(kind, &sizes, 1, &raw, &more);
            inputs.extend(more);
            let (ulps, abs) = tolerance(kind);
            let got = run(b.finish(), &inputs);
            assert_close(
                &got[0],
                &want,
                ulps,
                abs,
                &format!("{kind:?} groups {groups} transposed {transposed} {layout:?}"),
            );
        }
    }
}

#[test]
fn attention_with_and_without_epilogue() {
    for kind in [Kind::Plain, Kind::Gelu] {
        let (b_, h, l, d) = (2i64, 4i64, 9i64, 16i64);
        let sizes = [b_, h, l, d];
        let mut b = Build::default();
        let (q, k, v) = (
            b.input(DType::F32, shape(&sizes)),
            b.input(DType::F32, shape(&[b_, 2, l, d])),
            b.input(DType::F32, shape(&[b_, 2, l, d])),
        );
        let (q, k, v) = (operand(&b, q), operand(&b, k), operand(&b, v));
        let (epilogue, more) = epilogue(&mut b, kind, &sizes, 3, None);
        let step = Attention {
            name: "sdpa".into(),
            origins: vec![],
            q,
            k,
            v,
            mask: None,
            sums: None,
            dropout: None,
            visibility: None,
            causal: true,
            scale: 0.25,
            acc: DType::F32,
            epilogue,
        };
        b.program.steps.push(Step::Attention(step));
        let mut inputs = vec![data(&sizes, 1), data(&[b_, 2, l, d], 2), data(&[b_, 2, l, d], 3)];
        let at = |t: &Data, bi: i64, hi: i64, li: i64, di: i64, heads: i64| {
            t.values[(((bi * heads + hi) * l + li) * d + di) as usize].as_f64()
        };
        let mut raw = Vec::new();
        for (bi, hi) in (0..b_).flat_map(|x| (0..h).map(move |y| (x, y))) {
            for r in 0..l {
                let scores: Vec<f64> = (0..=r)
                    .map(|c| {
                        0.25 * (0..d)
                            .map(|e| at(&inputs[0], bi, hi, r, e, h) * at(&inputs[1], bi, hi / 2, c, e, 2))
                            .sum::<f64>()
                    })
                    .collect();
                let total: f64 = scores.iter().map(|s| s.exp()).sum();
                raw.extend((0..d).map(|e| {
                    scores
                        .iter()
                        .enumerate()
                        .map(|(c, s)| s.exp() / total * at(&inputs[2], bi, hi / 2, c as i64, e, 2))
                        .sum::<f64>()
                }));
            }
        }
        let want = after(kind, &sizes, 3, &raw, &more);
        inputs.extend(more);
        assert_close(&run(b.finish(), &inputs)[0], &want, 20.0, 1e-5, &format!("attention {kind:?}"));
    }
}

#[test]
fn sort_is_stable_with_nan_last() {
    let mut b = Build::default();
    let x = b.input(DType::F32, shape(&[2, 5]));
    let (v, p) = (b.output(DType::F32, shape(&[2, 5])), b.output(DType::I64, shape(&[2, 5])));
    let (x, v, p) = (operand(&b, x), operand(&b, v), operand(&b, p));
    let op = ExternOp::Sort { dim: 1, descending: false };
    b.program.steps.push(Step::Extern(ExternCall {
        name: "sort".into(),
        origins: vec![],
        op,
        inputs: vec![x],
        outputs: vec![v, p],
    }));
    let values = [3.0, f64::NAN, 1.0, 3.0, -2.0, 0.0, 0.0, -1.0, 5.0, 0.0];
    let x = Data::new(DType::F32, &[2, 5], values.iter().map(|v| Scalar::Float(*v)).collect());
    let got = run(b.finish(), &[x]);
    let positions: Vec<i64> = got[1].values.iter().map(|v| v.as_i64()).collect();
    assert_eq!(positions, [4, 2, 0, 3, 1, 2, 0, 1, 4, 3]);
    assert_eq!(got[0].values[0], Scalar::Float(-2.0));
    assert!(got[0].values[4].as_f64().is_nan());
}
