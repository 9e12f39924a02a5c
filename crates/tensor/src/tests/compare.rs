//! The comparison fails when it should.

use ir_core::{DType, Scalar};

use crate::*;

fn reals(values: &[f64]) -> Tensor {
    Tensor::from_slice(values, &[values.len()]).unwrap()
}

#[test]
fn the_tolerance_is_relative_to_the_expected_value() {
    assert!(allclose(&reals(&[1010.0]), &reals(&[1000.0]), 0.0, 0.01).is_ok());
    assert!(allclose(&reals(&[1000.0]), &reals(&[989.0]), 0.0, 0.01).is_err());
    let stats = allclose(&reals(&[1.5, 2.0]), &reals(&[1.0, 2.0]), 1.0, 0.0).unwrap();
    assert_eq!((stats.max_abs, stats.max_rel, stats.count), (0.5, 0.5, 2));
}

#[test]
fn the_first_worst_index_is_named() {
    let expected = Tensor::zeros(DType::F64, &[2, 3]).unwrap();
    let mut got = expected.clone();
    got.set(&[0, 1], Scalar::Float(1.0)).unwrap();
    got.set(&[1, 0], Scalar::Float(2.0)).unwrap();
    got.set(&[1, 2], Scalar::Float(2.0)).unwrap();
    match allclose(&got, &expected, 0.5, 0.0) {
        Err(Mismatch::Values { index, count, total, .. }) => {
            assert_eq!((index, count, total), (vec![1, 0], 3, 6))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn nan_and_infinity() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    assert!(allclose(&reals(&[nan, inf, -inf]), &reals(&[nan, inf, -inf]), 0.0, 0.0).is_ok());
    for (a, b) in [(nan, 1.0), (1.0, nan), (inf, 1.0), (1.0, inf), (inf, -inf), (nan, inf)] {
        assert!(allclose(&reals(&[a]), &reals(&[b]), 1e9, 1e9).is_err(), "{a} against {b}");
    }
}

#[test]
fn integers_are_compared_as_integers() {
    let a = Tensor::from_vec(vec![i64::MAX], &[1]).unwrap();
    let b = Tensor::from_vec(vec![i64::MAX - 1], &[1]).unwrap();
    assert!(allclose(&a, &b, 0.0, 0.0).is_err(), "as floats both would be 2^63");
    assert!(allclose(&a, &b, 1.0, 0.0).is_ok());
}

#[test]
fn complex_numbers_compare_by_modulus() {
    let z = |re, im| Tensor::from_vec(vec![Complex::<f32>::new(re, im)], &[1]).unwrap();
    assert!(allclose(&z(3.0, 4.0), &z(3.0, 4.5), 0.5, 0.0).is_ok());
    assert!(allclose(&z(3.0, 4.0), &z(3.5, 4.5), 0.5, 0.0).is_err());
    assert!(allclose(&z(f32::NAN, 0.0), &z(0.0, f32::NAN), 0.0, 0.0).is_ok());
}

#[test]
fn dtype_and_sizes_must_agree() {
    let a = Tensor::zeros(DType::F32, &[2]).unwrap();
    let wrong = allclose(&a, &Tensor::zeros(DType::F64, &[2]).unwrap(), 1.0, 1.0);
    assert!(matches!(wrong, Err(Mismatch::DType { .. })));
    let wrong = allclose(&a, &Tensor::zeros(DType::F32, &[2, 1]).unwrap(), 1.0, 1.0);
    assert!(matches!(wrong, Err(Mismatch::Sizes { .. })));
}
