//! Somebody else's memory is released exactly once, whatever happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ir_core::DType;

use crate::*;

fn counter() -> (Arc<AtomicUsize>, impl FnOnce() + Send + Sync + 'static) {
    let count = Arc::new(AtomicUsize::new(0));
    let inside = count.clone();
    let release = move || {
        inside.fetch_add(1, Ordering::SeqCst);
    };
    (count, release)
}

#[test]
fn released_with_the_last_view() {
    let memory: Arc<[f32]> = Arc::new([1.0, 2.0, 3.0, 4.0]);
    let (count, release) = counter();
    let keep = memory.clone();
    // SAFETY: `keep` moves into the closure, so the memory outlives every view.
    let t = unsafe {
        Tensor::from_foreign(memory.as_ptr().cast(), DType::F32, &[2, 2], &[1, 2], move || {
            drop(keep);
            release();
        })
    }
    .unwrap();
    let row = t.select(0, 1).unwrap();
    drop(t);
    assert_eq!(count.load(Ordering::SeqCst), 0);
    assert_eq!(row.to_vec::<f32>().unwrap(), [2.0, 4.0]);
    drop(row);
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[test]
fn negative_strides_reach_before_the_pointer() {
    static MEMORY: [i32; 4] = [10, 20, 30, 40];
    // SAFETY: a static outlives every view; elements 3, 2, 1, 0 are reached from element 3.
    let t = unsafe { Tensor::from_foreign((&raw const MEMORY[3]).cast(), DType::I32, &[4], &[-1], || {}) };
    assert_eq!(t.unwrap().to_vec::<i32>().unwrap(), [40, 30, 20, 10]);
}

#[test]
fn released_at_once_where_refused() {
    static MEMORY: [i32; 4] = [0; 4];
    let good: *const u8 = (&raw const MEMORY).cast();
    let cases: [(*const u8, &[usize], &[isize]); 4] = [
        (std::ptr::null(), &[1], &[1]),
        (good, &[1, 1], &[1]),
        (good, &[usize::MAX, 2], &[0, 0]),
        (good.wrapping_add(1), &[1], &[1]),
    ];
    for (ptr, sizes, strides) in cases {
        let (count, release) = counter();
        // SAFETY: construction is refused before anything is read.
        let refused = unsafe { Tensor::from_foreign(ptr, DType::I32, sizes, strides, release) };
        assert!(refused.is_err());
        assert_eq!(count.load(Ordering::SeqCst), 1, "{sizes:?} {strides:?}");
    }
}

#[test]
fn foreign_and_shared_memory_is_not_written() {
    static MEMORY: [i32; 2] = [5, 6];
    // SAFETY: a static outlives every view.
    let t = unsafe { Tensor::from_foreign((&raw const MEMORY).cast(), DType::I32, &[2], &[1], || {}) };
    let mut t = t.unwrap();
    assert!(t.data_ptr_mut().is_none());
    assert!(t.as_mut_slice::<i32>().is_none());
    t.set(&[0], ir_core::Scalar::Int(7)).unwrap();
    assert_eq!(MEMORY, [5, 6]);
    assert!(t.data_ptr_mut().is_some(), "the tensor has its own copy now");
}

#[test]
fn memory_that_is_lent_for_writing_is_written() {
    let mut memory = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    // SAFETY: the array outlives the tensor; nothing else uses it meanwhile.
    let t =
        unsafe { Tensor::from_foreign_mut(memory.as_mut_ptr().cast(), DType::F32, &[2, 2], &[3, 2], || {}) };
    let mut t = t.unwrap();
    assert!(t.is_writable());
    let values = Tensor::from_vec(vec![10.0f32, 20.0, 30.0, 40.0], &[2, 2]).unwrap();
    let shared = t.clone();
    assert!(t.assign(&values).is_err(), "it has two handles");
    drop(shared);
    t.assign(&values).unwrap();
    assert!(t.assign(&Tensor::zeros(DType::F32, &[4]).unwrap()).is_err());
    assert!(t.assign(&Tensor::zeros(DType::I64, &[2, 2]).unwrap()).is_err());
    drop(t);
    assert_eq!(memory, [10.0, 2.0, 20.0, 30.0, 5.0, 40.0]);
}

#[test]
fn contiguous_values_are_written_at_once() {
    let mut own = Tensor::zeros(DType::F64, &[3]).unwrap();
    own.assign(&Tensor::from_vec(vec![1.0f64, 2.0, 3.0], &[3]).unwrap()).unwrap();
    assert_eq!(own.to_vec::<f64>().unwrap(), [1.0, 2.0, 3.0]);
}
