//! Construction is where every later access is made safe.

use ir_core::{DType, Scalar};

use crate::*;

fn bytes(n: usize) -> Storage {
    Storage::zeroed(n).unwrap()
}

#[test]
fn last_element_must_end_inside_the_storage() {
    // 2 x 3 f32 with strides (4, 1) from offset 1 ends at element 1 + 4 + 2 = 7, that is byte 32.
    assert!(Tensor::new(bytes(32), DType::F32, &[2, 3], &[4, 1], 1).is_ok());
    let refused = Tensor::new(bytes(31), DType::F32, &[2, 3], &[4, 1], 1);
    assert!(matches!(refused, Err(TensorError::OutOfStorage { bytes: 31, .. })), "{refused:?}");
}

#[test]
fn first_element_must_not_lie_before_the_storage() {
    assert!(Tensor::new(bytes(16), DType::F32, &[4], &[-1], 3).is_ok());
    assert!(Tensor::new(bytes(16), DType::F32, &[4], &[-1], 2).is_err());
    assert!(Tensor::new(bytes(16), DType::F32, &[1], &[1], -1).is_err());
}

#[test]
fn sizes_that_overflow_are_errors() {
    let huge = usize::MAX / 2;
    for (sizes, strides) in
        [(vec![huge, 4], vec![0, 0]), (vec![huge, 2], vec![isize::MAX, 1]), (vec![1 << 62], vec![0])]
    {
        let refused = Tensor::new(bytes(64), DType::F32, &sizes, &strides, 0);
        assert!(matches!(refused, Err(TensorError::TooLarge { .. })), "{sizes:?}: {refused:?}");
    }
    let refused = Tensor::new(bytes(64), DType::U8, &[2, 2], &[isize::MAX, isize::MAX], isize::MAX);
    assert!(matches!(refused, Err(TensorError::OutOfStorage { .. })));
    assert!(Tensor::zeros(DType::F64, &[usize::MAX]).is_err());
}

#[test]
fn an_empty_tensor_needs_no_storage() {
    let t = Tensor::new(bytes(0), DType::F64, &[usize::MAX, 0, 7], &[0, 0, 0], 5).unwrap();
    assert_eq!(t.numel(), 0);
    assert_eq!(t.iter().count(), 0);
    assert_eq!(t.as_slice::<f64>(), Some(&[][..]));
}

#[test]
fn misaligned_storage_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), [0u8; 64]).unwrap();
    // SAFETY: the file is this test's own.
    let map = std::sync::Arc::new(unsafe { memmap2::Mmap::map(file.as_file()) }.unwrap());
    let shifted = Storage::mapped(map.clone(), 1..64).unwrap();
    let refused = Tensor::new(shifted.clone(), DType::F32, &[2], &[1], 0);
    assert!(matches!(refused, Err(TensorError::Misaligned { .. })), "{refused:?}");
    assert!(Tensor::new(shifted, DType::U8, &[63], &[1], 0).is_ok());
    assert!(matches!(Storage::mapped(map, 10..65), Err(TensorError::Range { .. })));
}

#[test]
fn owned_storage_is_aligned_to_a_cache_line() {
    for n in [1, 7, 64, 1000] {
        assert_eq!(bytes(n).as_ptr().addr() % 64, 0);
    }
}

#[test]
fn full_and_scalar_convert_to_the_dtype() {
    let ones = Tensor::full(DType::BF16, &[2], Scalar::Int(1)).unwrap();
    assert_eq!(ones.to_vec::<bf16>().unwrap(), [bf16::ONE, bf16::ONE]);
    let i = Tensor::scalar(DType::C64, Scalar::Complex(0.0, 1.0)).unwrap();
    assert_eq!(i.item(), Some(Scalar::Complex(0.0, 1.0)));
    assert_eq!(i.rank(), 0);
}

#[test]
fn set_never_changes_another_tensor() {
    let mut a = Tensor::from_vec(vec![1i64, 2, 3], &[3]).unwrap();
    let b = a.clone();
    a.set(&[1], Scalar::Int(9)).unwrap();
    assert_eq!(a.to_vec::<i64>().unwrap(), [1, 9, 3]);
    assert_eq!(b.to_vec::<i64>().unwrap(), [1, 2, 3]);
    assert!(a.set(&[3], Scalar::Int(0)).is_err());
    assert!(a.set(&[0, 0], Scalar::Int(0)).is_err());
}

#[test]
fn shared_memory_is_not_writable() {
    let mut a = Tensor::from_vec(vec![1f32, 2.0], &[2]).unwrap();
    let b = a.clone();
    assert!(a.as_mut_slice::<f32>().is_none());
    drop(b);
    assert!(a.as_mut_slice::<f32>().is_some());
    assert!(a.as_mut_slice::<f64>().is_none(), "another type");
}

#[test]
fn storage_with_writes_through_a_view() {
    let base = Tensor::from_vec((0..6).map(|x| x as f32).collect(), &[2, 3]).unwrap();
    let column = base.select(1, 1).unwrap();
    let storage = column.storage_with(&Tensor::from_vec(vec![10i32, 40], &[2]).unwrap()).unwrap();
    let changed = base.with_storage(storage).unwrap();
    assert_eq!(changed.to_vec::<f32>().unwrap(), [0.0, 10.0, 2.0, 3.0, 40.0, 5.0]);
    assert_eq!(base.to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert!(column.storage_with(&base).is_err());
}

#[test]
fn debug_shows_at_most_eight_elements() {
    let t = Tensor::from_vec((0..9).collect::<Vec<i32>>(), &[9]).unwrap();
    assert_eq!(format!("{t:?}"), "i32[9]{[1]}+0 [0, 1, 2, 3, 4, 5, 6, 7, …]");
}

#[test]
fn a_dimension_of_one_may_have_any_stride() {
    let t = Tensor::new(bytes(8), DType::F32, &[1, 2, 1], &[isize::MAX, 1, isize::MIN], 0).unwrap();
    assert!(t.is_contiguous());
    assert_eq!(t.permute(&[1, 2, 0]).unwrap().offsets().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(t.unsqueeze(0).unwrap().iter_f64().count(), 2);
}
