//! Conversion gives what PyTorch 2.11 gives on x86-64; the expected rows were printed by it.

use ir_core::DType;

use crate::*;

const REALS: [f64; 10] = [1.9, -1.9, 300.0, -1.0, 3e9, 1e19, f64::NAN, f64::INFINITY, -0.0, 70000.5];

fn converted(dtype: DType, to: DType) -> Vec<i64> {
    let source = Tensor::from_slice(&REALS, &[10]).unwrap().to_dtype(dtype).unwrap();
    source.to_dtype(to).unwrap().iter_i64().collect()
}

#[test]
fn float_to_integer() {
    let (i32_min, i64_min) = (i64::from(i32::MIN), i64::MIN);
    for from in [DType::F64, DType::F32] {
        assert_eq!(converted(from, DType::U8), [1, 255, 44, 255, 0, 0, 0, 0, 0, 112]);
        assert_eq!(converted(from, DType::I8), [1, -1, 44, -1, 0, 0, 0, 0, 0, 112]);
        assert_eq!(converted(from, DType::I16), [1, -1, 300, -1, 0, 0, 0, 0, 0, 4464]);
        assert_eq!(
            converted(from, DType::I32),
            [1, -1, 300, -1, i32_min, i32_min, i32_min, i32_min, 0, 70000]
        );
        assert_eq!(
            converted(from, DType::I64),
            [1, -1, 300, -1, 3_000_000_000, i64_min, i64_min, i64_min, 0, 70000]
        );
        assert_eq!(converted(from, DType::Bool), [1, 1, 1, 1, 1, 1, 1, 1, 0, 1]);
    }
}

#[test]
fn sixteen_bit_floats_round_by_way_of_f32() {
    // To the nearest bfloat16 directly this would be 1.0078125; PyTorch rounds twice and ties to even.
    let x = 1.0 + 2f64.powi(-8) + 2f64.powi(-40);
    let t = Tensor::from_vec(vec![x], &[1]).unwrap().to_dtype(DType::BF16).unwrap();
    assert_eq!(t.to_vec::<bf16>().unwrap(), [bf16::ONE]);
    let big = Tensor::from_vec(vec![70000i64], &[1]).unwrap().to_dtype(DType::F16).unwrap();
    assert_eq!(big.to_vec::<f16>().unwrap(), [f16::INFINITY]);
}

#[test]
fn large_integers_round_once() {
    // By way of f64 this would round to 2^60 first and lose the bit that breaks the tie.
    let x = (1i64 << 60) + (1 << 36) + 1;
    let t = Tensor::from_vec(vec![x], &[1]).unwrap().to_dtype(DType::F32).unwrap();
    assert_eq!(t.to_vec::<f32>().unwrap(), [x as f32]);
    assert_ne!(x as f32, (x as f64) as f32);
}

#[test]
fn complex_drops_and_gains_its_imaginary_part() {
    let z = Tensor::from_vec(vec![Complex::new(1.5f32, 2.0), Complex::new(0.0, 3.0)], &[2]).unwrap();
    assert_eq!(z.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(), [1.5, 0.0]);
    assert_eq!(z.to_dtype(DType::Bool).unwrap().to_vec::<Bool>().unwrap(), [Bool(1), Bool(1)]);
    let back = Tensor::from_vec(vec![1.5f64], &[1]).unwrap().to_dtype(DType::C128).unwrap();
    assert_eq!(back.to_vec::<Complex<f64>>().unwrap(), [Complex::new(1.5, 0.0)]);
}

#[test]
fn integers_wrap() {
    let t = Tensor::from_vec(vec![-1i64, 256, 128], &[3]).unwrap();
    assert_eq!(t.to_dtype(DType::U8).unwrap().to_vec::<u8>().unwrap(), [255, 0, 128]);
    assert_eq!(t.to_dtype(DType::I8).unwrap().to_vec::<i8>().unwrap(), [-1, 0, -128]);
}

#[test]
fn any_byte_but_zero_is_true() {
    let t = Tensor::new(Storage::from_bytes(&[0, 1, 7]).unwrap(), DType::Bool, &[3], &[1], 0).unwrap();
    assert_eq!(t.iter_i64().collect::<Vec<_>>(), [0, 1, 1]);
    assert_eq!(t.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap(), [0.0, 1.0, 1.0]);
}

#[test]
fn strided_sources_convert_in_logical_order() {
    let t = Tensor::from_vec((0..6).map(f64::from).collect(), &[2, 3]).unwrap().permute(&[1, 0]).unwrap();
    assert_eq!(t.to_dtype(DType::I32).unwrap().to_vec::<i32>().unwrap(), [0, 3, 1, 4, 2, 5]);
}

#[test]
fn every_pair_of_dtypes_keeps_zero_and_one() {
    for &a in DType::ALL {
        for &b in DType::ALL {
            let t = Tensor::from_vec(vec![0i64, 1], &[2]).unwrap();
            let there = t.to_dtype(a).unwrap().to_dtype(b).unwrap();
            assert_eq!(there.dtype(), b);
            assert_eq!(there.iter_i64().collect::<Vec<_>>(), [0, 1], "{a} to {b}");
        }
    }
}
