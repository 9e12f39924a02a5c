//! Tensors seen as such of another dtype: complex ones as real ones and back (PyTorch's `view_as_real` and `view_as_complex`), and
//! the bits of elements as those of another dtype of the same size. Bytes are shared where the strides allow it.

use ir_core::DType;

use crate::{Sizes, Strides, Tensor, TensorError};

impl Tensor {
    /// The same bits as elements of another dtype of the same size, without copying.
    ///
    /// # Errors
    /// A dtype of another size.
    pub fn view_bits(&self, dtype: DType) -> Result<Tensor, TensorError> {
        if dtype.size() != self.dtype.size() {
            let text = format!("elements of {} and {dtype} differ in size", self.dtype);
            return Err(TensorError::Shape(text));
        }
        let view = Tensor::new(self.storage.clone(), dtype, &self.sizes, &self.strides, self.offset)?;
        Ok(view.with_device(self.device.clone()))
    }

    /// A complex tensor `[…]` with strides `s` as the real tensor `[…, 2]` with strides `2 s, 1`, without copying; a tensor
    /// of another dtype is itself.
    ///
    /// # Errors
    /// Where the strides overflow.
    pub fn view_as_real(&self) -> Result<Tensor, TensorError> {
        if !self.dtype.is_complex() {
            return Ok(self.clone());
        }
        let sizes: Sizes = self.sizes.iter().copied().chain([2]).collect();
        let strides: Strides = self.strides.iter().map(|s| s.saturating_mul(2)).chain([1]).collect();
        let offset = if self.numel() == 0 { 0 } else { self.offset.saturating_mul(2) };
        let view = Tensor::new(self.storage.clone(), self.dtype.to_real(), &sizes, &strides, offset)?;
        Ok(view.with_device(self.device.clone()))
    }

    /// A tensor `[…, 2]` of `f32` or `f64` as the complex tensor `[…]`; copied where the parts of an element do not lie side
    /// by side, or elements at odd places.
    ///
    /// # Errors
    /// A last dimension of another size than 2, or another dtype.
    pub fn view_as_complex(&self) -> Result<Tensor, TensorError> {
        let dtype = match self.dtype {
            DType::F32 => DType::C64,
            DType::F64 => DType::C128,
            other => {
                return Err(TensorError::Shape(format!("{other} elements are no parts of complex ones")));
            }
        };
        let Some((&2, sizes)) = self.sizes.split_last() else {
            let text = format!("sizes {:?} do not end with the 2 parts of complex numbers", &self.sizes[..]);
            return Err(TensorError::Shape(text));
        };
        let (&last, strides) = self.strides.split_last().unwrap_or((&1, &[]));
        let even = |(&stride, &size): (&isize, &usize)| size == 1 || stride % 2 == 0;
        if last != 1 || self.offset % 2 != 0 || !strides.iter().zip(sizes).all(even) {
            return self.copied()?.view_as_complex();
        }
        // A dimension of size 1 may have any stride.
        let halves: Strides = strides.iter().map(|s| s / 2).collect();
        let view = Tensor::new(self.storage.clone(), dtype, sizes, &halves, self.offset / 2)?;
        Ok(view.with_device(self.device.clone()))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Complex, Tensor};

    fn numbers() -> Tensor {
        let list: Vec<Complex<f32>> = (0..6).map(|i| Complex::new(i as f32, -(i as f32))).collect();
        Tensor::from_vec(list, &[2, 3]).unwrap()
    }

    #[test]
    fn a_view_there_and_back_shares_the_bytes() {
        let z = numbers().transpose(0, 1).unwrap();
        let parts = z.view_as_real().unwrap();
        assert_eq!((parts.sizes(), parts.strides()), (&[3, 2, 2][..], &[2, 6, 1][..]));
        assert_eq!(parts.get(&[2, 1, 1]).unwrap().as_f64(), -5.0);
        let back = parts.view_as_complex().unwrap();
        assert!(back.storage().ptr_eq(z.storage()));
        assert_eq!((back.sizes(), back.strides()), (z.sizes(), z.strides()));
    }

    #[test]
    fn parts_that_lie_apart_are_copied() {
        let parts = numbers().view_as_real().unwrap();
        // [2, 3, 2] with the last dimension in front in memory.
        let apart = parts.permute(&[2, 0, 1]).unwrap().contiguous().unwrap().permute(&[1, 2, 0]).unwrap();
        let z = apart.view_as_complex().unwrap();
        assert_eq!(z.iter_complex().collect::<Vec<_>>(), numbers().iter_complex().collect::<Vec<_>>());
    }

    #[test]
    fn other_shapes_are_refused() {
        assert!(Tensor::from_vec(vec![1.0f32; 3], &[3]).unwrap().view_as_complex().is_err());
        assert!(Tensor::from_vec(vec![1i64; 2], &[2]).unwrap().view_as_complex().is_err());
    }
}
