//! Every scalar operator in every dtype, as a generated kernel (vector body and scalar tail) against `ScalarOp::eval`.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs)]
use crate::common::*;
use ir_core::{DType, Scalar};
use kernel_ir::{BodyBuilder, ScalarOp, Stage, StoreMode};

/// Largest error in units of the last place, and how many values were compared.
fn errors(op: ScalarOp, dtype: DType, args: &[Vec<Scalar>]) -> f64 {
    let count = args[0].len() as i64;
    let mut b = Build::default();
    let sizes = shape(&[count]);
    let arg_dtype = |k: usize| if op == ScalarOp::Select && k == 0 { DType::Bool } else { dtype };
    let bufs: Vec<_> = (0..args.len()).map(|k| b.input(arg_dtype(k), sizes.clone())).collect();
    let mut body = BodyBuilder::new();
    let vals: Vec<_> = bufs
        .iter()
        .enumerate()
        .map(|(k, buf)| body.load(*buf, arg_dtype(k), shape(&[]).into_iter().chain([i(0)]).collect()))
        .collect();
    let v = body.op(op, &vals);
    let result = body.dtype(v);
    let out = b.output(result, sizes.clone());
    body.store(out, [i(0)].into_iter().collect(), v, StoreMode::Write);
    b.kernel(sizes, vec![], vec![Stage { inner: shape(&[]), insts: body.finish() }]);
    let inputs: Vec<Data> =
        args.iter().enumerate().map(|(k, a)| Data::new(arg_dtype(k), &[count], a.clone())).collect();
    let got = run(b.finish(), &inputs).remove(0);
    let mut worst = 0f64;
    for (k, g) in got.values.iter().enumerate() {
        let scalars: Vec<Scalar> = inputs.iter().map(|d| round(d.dtype, d.values[k])).collect();
        let want = op.eval(dtype, &scalars);
        if close(result, *g, want, 0.0, 0.0) {
            continue;
        }
        assert!(result.is_float(), "{} {dtype} of {scalars:?}: {g}, should be {want}", op.name());
        let (g, w) = (g.as_f64(), want.as_f64());
        assert!(g.is_finite() && w.is_finite(), "{} {dtype} of {scalars:?}: {g}, should be {w}", op.name());
        let eps = if result == DType::F32 { f32::EPSILON as f64 } else { f64::EPSILON };
        let smallest = if result == DType::F32 { f32::MIN_POSITIVE as f64 } else { f64::MIN_POSITIVE };
        let ulps = (g - w).abs() / (eps * w.abs().max(smallest));
        assert!(ulps < 8.0, "{} {dtype} of {scalars:?}: {g}, should be {w}: {ulps} ulp", op.name());
        worst = worst.max(ulps);
    }
    worst
}

fn float_values(dtype: DType) -> Vec<f64> {
    let mut v = vec![
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        2.0,
        3.0,
        -3.0,
        1e-3,
        -1e-3,
        0.1,
        10.0,
        87.0,
        88.8,
        89.5,
        -87.4,
        -103.0,
        -104.5,
        100.0,
        -100.0,
        0.25,
        0.62,
        0.63,
        0.89,
        0.9,
        4.0,
        4.1,
        1e10,
        -1e10,
        1e30,
        1e-30,
        127.5,
        -149.0,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.9999999,
        1.0000001,
        1.5707964,
        f64::from(std::f32::consts::PI),
        2.5,
        3.5,
        -2.5,
        1e8,
        3e9,
        16.0,
        8.0,
    ];
    if dtype == DType::F32 {
        v.extend([1e-40, -1e-40, f32::MAX as f64, f32::MIN as f64, f32::MIN_POSITIVE as f64]);
    } else {
        v.extend([1e-310, -1e-310, f64::MAX, f64::MIN, f64::MIN_POSITIVE]);
    }
    let mut rng = Rng(7);
    for scale in [0.01, 1.0, 4.0, 30.0, 1000.0] {
        v.extend((0..101).map(|_| rng.unit() * scale));
    }
    v
}

fn int_values(dtype: DType) -> Vec<i64> {
    let bits = dtype.size() as u32 * 8;
    let (lo, hi) = match dtype {
        DType::U8 => (0, 255),
        _ => (i64::MIN >> (64 - bits), i64::MAX >> (64 - bits)),
    };
    let mut v = vec![lo, lo + 1, hi, hi - 1];
    v.extend((-9..=9).filter(|x| *x >= lo));
    v.extend([31, 32, 33, 63, 64, 65, 100].into_iter().filter(|x| *x <= hi));
    v
}

fn binary<T: Copy>(values: &[T], more: usize) -> [Vec<T>; 2] {
    let few: Vec<T> = values.iter().copied().take(more).collect();
    let mut out = [Vec::new(), Vec::new()];
    for a in values {
        for b in &few {
            out[0].push(*a);
            out[1].push(*b);
        }
    }
    out
}

fn takes(op: ScalarOp, dtype: DType) -> bool {
    use ScalarOp::*;
    match op {
        And | Or | Xor | Not => !dtype.is_float(),
        Shl | Shr => dtype.is_int(),
        Philox => dtype == DType::I64,
        Sqrt | Rsqrt | Exp | Exp2 | Expm1 | Log | Log2 | Log10 | Log1p | Sin | Cos | Tan | Asin | Acos
        | Atan | Sinh | Cosh | Tanh | Asinh | Acosh | Atanh | Erf | Erfc | Erfinv | Lgamma | Digamma
        | Atan2 | CopySign | NextAfter | ChebyshevT | ChebyshevU | ChebyshevV | ChebyshevW | HermiteH
        | HermiteHe | LaguerreL | LegendreP | Igamma | Igammac => dtype.is_float(),
        _ => true,
    }
}

fn check(dtype: DType) {
    let values: Vec<Scalar> = match dtype {
        DType::Bool => vec![Scalar::Bool(false), Scalar::Bool(true)],
        d if d.is_float() => float_values(d).into_iter().map(|x| round(d, Scalar::Float(x))).collect(),
        d => int_values(d).into_iter().map(Scalar::Int).collect(),
    };
    let mut report = Vec::new();
    for &op in ScalarOp::ALL.iter().filter(|op| takes(**op, dtype)) {
        let args: Vec<Vec<Scalar>> = match op.arity() {
            1 => vec![values.clone()],
            2 => binary(&values, 58).to_vec(),
            _ if op == ScalarOp::Philox => {
                let [a, b] = binary(&values, 40);
                let index = (0..a.len() as i64).map(Scalar::Int).collect();
                vec![a, b, index]
            }
            _ => {
                let [a, b] = binary(&values, 40);
                let mask = (0..a.len()).map(|k| Scalar::Bool(k % 3 != 1)).collect();
                vec![mask, a, b]
            }
        };
        let worst = errors(op, dtype, &args);
        if worst > 0.0 {
            report.push(format!("{} {worst:.2}", op.name()));
        }
    }
    println!("{dtype}: {}", report.join(", "));
}

macro_rules! each {
    ($($name:ident $dtype:ident;)*) => {$(#[test] fn $name() { check(DType::$dtype); })*};
}
each! {
    ops_f32 F32; ops_f64 F64; ops_bool Bool; ops_u8 U8; ops_i8 I8; ops_i16 I16; ops_i32 I32; ops_i64 I64;
}
