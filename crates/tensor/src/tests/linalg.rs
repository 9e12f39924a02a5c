//! The typed loops against numbers that PyTorch printed, and against the definition.

use ir_core::DType;

use crate::linalg::{ConvGeometry, conv, matmul};
use crate::*;

/// -3, -2, … 3, -3, … as `f64`.
fn sevens(sizes: &[usize]) -> Tensor {
    let n: usize = sizes.iter().product();
    Tensor::from_vec((0..n).map(|i| (i % 7) as f64 - 3.0).collect(), sizes).unwrap()
}

/// Sum, and sum weighted by 0, 1, … 10, 0, …: order matters.
fn sums(t: &Tensor) -> (f64, f64) {
    let weighted = t.iter_f64().enumerate().map(|(i, x)| x * (i % 11) as f64).sum();
    (t.iter_f64().sum(), weighted)
}

#[test]
fn matmul_is_the_definition_at_any_stride() {
    let (m, k, n) = (11, 5, 300);
    let a = sevens(&[2, k, m]).permute(&[0, 2, 1]).unwrap();
    let b = sevens(&[k, n]).unsqueeze(0).unwrap().expand(&[2, k, n]).unwrap();
    let out = matmul(&a, &b, DType::F64).unwrap();
    assert_eq!(out.sizes(), [2, m, n]);
    let at = |t: &Tensor, i: &[usize]| t.get(i).unwrap().as_f64();
    for (i, r, c) in [(0, 0, 0), (1, 10, 299), (0, 8, 256), (1, 7, 255)] {
        let expected: f64 = (0..k).map(|p| at(&a, &[i, r, p]) * at(&b, &[i, p, c])).sum();
        assert_eq!(at(&out, &[i, r, c]), expected, "{i} {r} {c}");
    }
}

#[test]
fn matmul_in_other_classes() {
    let big = Tensor::from_vec(vec![i64::MAX, 2], &[1, 2]).unwrap();
    let out = matmul(&big, &big.permute(&[1, 0]).unwrap(), DType::I64).unwrap();
    assert_eq!(out.to_vec::<i64>().unwrap(), [5], "integers wrap");
    let i = Tensor::from_vec(vec![Complex::new(0f32, 1.0)], &[1, 1]).unwrap();
    let out = matmul(&i, &i, DType::C64).unwrap();
    assert_eq!(out.to_vec::<Complex<f32>>().unwrap(), [Complex::new(-1.0, 0.0)]);
    // 1 + 2^-9 eight times: rounded to bfloat16 only once, at the end.
    let small = Tensor::full(DType::BF16, &[1, 256], ir_core::Scalar::Float(2f64.powi(-9))).unwrap();
    let ones = Tensor::full(DType::BF16, &[256, 1], ir_core::Scalar::Int(1)).unwrap();
    assert_eq!(matmul(&small, &ones, DType::BF16).unwrap().iter_f64().next(), Some(0.5));
}

#[test]
fn matmul_of_nothing_is_zero() {
    let out = matmul(&sevens(&[2, 0]), &sevens(&[0, 3]), DType::F32).unwrap();
    assert_eq!(out.to_vec::<f32>().unwrap(), [0.0; 6]);
    assert_eq!(matmul(&sevens(&[0, 2]), &sevens(&[2, 3]), DType::F32).unwrap().numel(), 0);
    assert!(matmul(&sevens(&[2, 3]), &sevens(&[2, 3]), DType::F32).is_err());
    assert!(matmul(&sevens(&[3]), &sevens(&[3]), DType::F32).is_err());
}

#[test]
fn grouped_strided_dilated_convolution() {
    let geometry = ConvGeometry {
        stride: &[2, 1],
        padding: &[1, 0],
        dilation: &[1, 2],
        output: &[3, 4],
        groups: 2,
        transposed: false,
    };
    let out = conv(&sevens(&[2, 4, 5, 6]), &sevens(&[6, 2, 3, 2]), &geometry, DType::F64).unwrap();
    assert_eq!(out.sizes(), [2, 6, 3, 4]);
    let first: Vec<f64> = out.iter_f64().take(12).collect();
    assert_eq!(first, [3.0, -4.0, -4.0, 3.0, -1.0, 1.0, 3.0, -9.0, 5.0, -11.0, -6.0, 6.0]);
    assert_eq!(sums(&out), (-112.0, -471.0));
}

#[test]
fn transposed_convolution() {
    let geometry = ConvGeometry {
        stride: &[2, 3],
        padding: &[1, 0],
        dilation: &[2, 1],
        output: &[12, 19],
        groups: 2,
        transposed: true,
    };
    let out = conv(&sevens(&[2, 4, 5, 6]), &sevens(&[4, 3, 3, 2]), &geometry, DType::F64).unwrap();
    assert_eq!(out.sizes(), [2, 6, 12, 19]);
    assert_eq!(sums(&out), (60.0, 533.0));
}

#[test]
fn one_spatial_dimension() {
    let geometry = ConvGeometry {
        stride: &[1],
        padding: &[2],
        dilation: &[1],
        output: &[9],
        groups: 1,
        transposed: false,
    };
    let out = conv(&sevens(&[1, 2, 7]), &sevens(&[3, 2, 3]), &geometry, DType::I32).unwrap();
    let expected =
        [-3, 1, 10, 7, 4, 1, -2, -9, -9, 3, 11, 1, -1, -3, -5, -7, -5, 6, 9, 0, -1, -2, -3, -4, -5, 6, 0];
    assert_eq!(out.to_vec::<i32>().unwrap(), expected);
}

#[test]
fn impossible_convolutions_are_errors() {
    let good = ConvGeometry {
        stride: &[1],
        padding: &[0],
        dilation: &[1],
        output: &[2],
        groups: 1,
        transposed: false,
    };
    let run = |g: &ConvGeometry<'_>, x: &[usize], w: &[usize]| conv(&sevens(x), &sevens(w), g, DType::F32);
    assert!(run(&good, &[1, 2, 3], &[1, 2, 2]).is_ok());
    assert!(run(&good, &[1, 3, 3], &[1, 2, 2]).is_err(), "channels");
    assert!(run(&good, &[1, 2, 3, 1], &[1, 2, 2, 1]).is_err(), "rank");
    assert!(run(&ConvGeometry { groups: 0, ..good.clone() }, &[1, 2, 3], &[1, 2, 2]).is_err());
    assert!(run(&ConvGeometry { stride: &[0], ..good.clone() }, &[1, 2, 3], &[1, 2, 2]).is_err());
    assert!(run(&ConvGeometry { dilation: &[usize::MAX], ..good.clone() }, &[1, 2, 3], &[1, 2, 2]).is_err());
    assert!(run(&ConvGeometry { output: &[usize::MAX], ..good }, &[1, 2, 3], &[1, 2, 2]).is_err());
}

#[test]
fn attention_is_what_pytorch_gives() {
    let half = |sizes: &[usize]| {
        let all = sevens(sizes).iter_f64().map(|x| x / 2.0).collect();
        Tensor::from_vec::<f64>(all, sizes).unwrap()
    };
    let (q, k, v) = (half(&[2, 4, 3, 5]), half(&[2, 2, 4, 5]), half(&[2, 2, 4, 3]));
    let run = |mask: Option<&Tensor>, causal| {
        sums(&crate::linalg::attention((&q, &k, &v), (mask, None), causal, 0.3, DType::F64).unwrap().0)
    };
    let close = |got: (f64, f64), expected: (f64, f64)| {
        assert!((got.0 - expected.0).abs() < 1e-12 && (got.1 - expected.1).abs() < 1e-12, "{got:?}");
    };
    // Row [0, 0, 1] takes part in nothing: zeros.
    let bools = (0..96).map(|i| Bool::from(i % 3 != 0 && !(4..8).contains(&i))).collect();
    let mask = Tensor::from_vec(bools, &[2, 4, 3, 4]).unwrap();
    close(run(Some(&mask), false), (-7.908019160973129, -54.37682272781118));
    close(run(None, true), (-5.104900914462382, -37.99781109005022));
    close(run(Some(&half(&[2, 4, 3, 4])), false), (-5.94806708493039, -38.428236462587584));
    assert!(crate::linalg::attention((&q, &v, &v), (None, None), false, 1.0, DType::F64).is_err());
}
