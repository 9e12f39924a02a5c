//! Views share bytes and follow PyTorch's rules of which reshapes need no copy.

use ir_core::DType;

use crate::*;

fn iota(sizes: &[usize]) -> Tensor {
    let n: usize = sizes.iter().product();
    Tensor::from_vec((0..n as i64).collect(), sizes).unwrap()
}
fn values(t: &Tensor) -> Vec<i64> {
    t.to_vec().unwrap()
}

#[test]
fn permute_reads_in_the_new_order() {
    let t = iota(&[2, 3]).permute(&[1, 0]).unwrap();
    assert_eq!(t.sizes(), [3, 2]);
    assert_eq!(values(&t), [0, 3, 1, 4, 2, 5]);
    assert!(!t.is_contiguous());
    assert!(t.as_slice::<i64>().is_none());
    assert_eq!(t.contiguous().unwrap().as_slice::<i64>(), Some(&[0, 3, 1, 4, 2, 5][..]));
    assert!(iota(&[2, 3]).permute(&[0, 0]).is_err());
    assert!(iota(&[2, 3]).permute(&[0]).is_err());
    assert!(iota(&[2, 3]).permute(&[0, 2]).is_err());
    assert!(iota(&[2, 3]).transpose(0, 2).is_err());
}

#[test]
fn expand_repeats_without_memory() {
    let t = iota(&[2, 1]).expand(&[3, 2, 2]).unwrap();
    assert_eq!(values(&t), [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1]);
    assert_eq!(t.storage().len(), 16);
    assert!(iota(&[2, 3]).expand(&[2, 4]).is_err());
    assert!(iota(&[2, 3]).expand(&[3]).is_err());
    assert!(iota(&[1]).expand(&[usize::MAX, usize::MAX]).is_err());
}

#[test]
fn narrow_and_select_stay_inside() {
    let t = iota(&[4, 3]);
    assert_eq!(values(&t.narrow(0, 1, 2).unwrap()), [3, 4, 5, 6, 7, 8]);
    assert_eq!(values(&t.select(1, 2).unwrap()), [2, 5, 8, 11]);
    assert!(t.narrow(0, 3, 2).is_err());
    assert!(t.narrow(0, usize::MAX, 2).is_err());
    assert!(t.narrow(2, 0, 1).is_err());
    assert!(t.select(0, 4).is_err());
    assert_eq!(t.narrow(0, 4, 0).unwrap().numel(), 0);
}

#[test]
fn unsqueeze_anywhere() {
    let t = iota(&[2, 3]);
    assert_eq!(t.unsqueeze(0).unwrap().sizes(), [1, 2, 3]);
    assert_eq!(t.unsqueeze(2).unwrap().sizes(), [2, 3, 1]);
    assert!(t.unsqueeze(1).unwrap().is_contiguous());
    assert!(t.unsqueeze(3).is_err());
}

#[test]
fn a_view_merges_only_what_continues_in_memory() {
    let t = iota(&[2, 3, 4]);
    assert_eq!(t.view_as_sizes(&[6, 4]).unwrap().strides(), [4, 1]);
    assert_eq!(t.view_as_sizes(&[2, 2, 6]).unwrap().strides(), [12, 6, 1]);
    let swapped = t.permute(&[1, 0, 2]).unwrap();
    assert!(swapped.view_as_sizes(&[6, 4]).is_none());
    // The last dimension alone may still be split, and ones put anywhere.
    let split = swapped.view_as_sizes(&[3, 1, 2, 2, 2, 1]).unwrap();
    assert_eq!(values(&split), values(&swapped));
    assert_eq!(values(&swapped.reshape(&[24]).unwrap()), values(&swapped));
    assert!(t.view_as_sizes(&[5, 5]).is_none());
    assert!(t.reshape(&[5, 5]).is_err());
}

#[test]
fn views_of_scalars_ones_and_nothing() {
    let one = iota(&[1, 1]);
    assert_eq!(one.view_as_sizes(&[]).unwrap().rank(), 0);
    assert_eq!(iota(&[]).view_as_sizes(&[1, 1, 1]).unwrap().sizes(), [1, 1, 1]);
    let none = Tensor::zeros(DType::F32, &[0, 3]).unwrap();
    assert_eq!(none.view_as_sizes(&[3, 0, 9]).unwrap().sizes(), [3, 0, 9]);
}

#[test]
fn a_view_of_expanded_memory() {
    let t = iota(&[3, 1]).expand(&[3, 4]).unwrap();
    assert!(t.view_as_sizes(&[12]).is_none());
    assert_eq!(values(&t.view_as_sizes(&[3, 2, 2]).unwrap()), values(&t));
    let constant = iota(&[1]).expand(&[6]).unwrap();
    assert_eq!(constant.view_as_sizes(&[2, 3]).unwrap().strides(), [0, 0]);
}

#[test]
fn channels_last_is_found_by_its_strides() {
    let t = Tensor::empty_strided(DType::F32, &[2, 3, 4, 5], &[60, 1, 15, 3]).unwrap();
    assert_eq!(t.storage().len(), 120 * 4);
    assert!(!t.is_contiguous());
    assert!(t.permute(&[0, 2, 3, 1]).unwrap().is_contiguous());
}
