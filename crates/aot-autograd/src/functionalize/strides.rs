//! Decides which reshapes are views, by PyTorch's rule on strides with symbolic sizes. A reshape that cannot be shown to be
//! a view is treated as a copy, as PyTorch's own symbolic shapes do when they find no proof.

use ir_core::{SymExpr, TensorMeta};

/// Whether `input` can be viewed with `sizes` without moving an element.
///
/// Dimensions that follow one another in memory form a chunk; each chunk must split into new dimensions exactly.
pub(super) fn is_view(input: &TensorMeta, sizes: &[SymExpr]) -> bool {
    if input.sizes.contains(&SymExpr::ZERO) {
        return true;
    }
    let mut left = sizes.iter().rev().filter(|s| **s != SymExpr::ONE).peekable();
    let mut chunk = SymExpr::ONE;
    let dims: Vec<(&SymExpr, &SymExpr)> =
        input.sizes.iter().zip(&input.strides).filter(|(size, _)| **size != SymExpr::ONE).collect();
    for (d, (size, stride)) in dims.iter().enumerate().rev() {
        chunk = chunk * *size;
        let joins_next = d > 0 && *dims[d - 1].1 == (*size).clone() * *stride;
        if joins_next {
            continue;
        }
        let mut taken = SymExpr::ONE;
        while taken != chunk {
            match left.next() {
                Some(size) => taken = taken * size,
                None => return false,
            }
        }
        chunk = SymExpr::ONE;
    }
    left.peek().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(sizes: &[i64], strides: &[i64]) -> TensorMeta {
        let exprs = |x: &[i64]| x.iter().map(|&i| SymExpr::from_i64(i)).collect();
        let mut meta = TensorMeta::contiguous(ir_core::DType::F32, []);
        (meta.sizes, meta.strides) = (exprs(sizes), exprs(strides));
        meta
    }

    #[test]
    fn chunks_split_and_join() {
        let to = |sizes: &[i64]| sizes.iter().map(|&i| SymExpr::from_i64(i)).collect::<Vec<_>>();
        assert!(is_view(&meta(&[2, 3, 4], &[12, 4, 1]), &to(&[6, 4])));
        assert!(is_view(&meta(&[2, 3, 4], &[12, 4, 1]), &to(&[24])));
        assert!(!is_view(&meta(&[3, 2], &[1, 3]), &to(&[6])));
        assert!(is_view(&meta(&[3, 2], &[1, 3]), &to(&[3, 1, 2])));
        assert!(is_view(&meta(&[4, 6], &[8, 1]), &to(&[2, 2, 3, 2])));
        assert!(!is_view(&meta(&[4, 6], &[8, 1]), &to(&[24])));
    }
}
