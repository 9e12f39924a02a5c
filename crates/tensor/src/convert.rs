//! Conversion between dtypes, as PyTorch's `Tensor.to(dtype)` does it (the rules are documented at [`Element`]).

use ir_core::DType;

use crate::iter::read;
use crate::{Element, Tensor, TensorError, with_element};

/// An element as one of another type. Scalars have no unsigned form, so large numbers go to floats by themselves.
#[inline(always)]
fn element<S: Element, T: Element>(x: S) -> T {
    if matches!(S::DTYPE, DType::U64) && T::DTYPE.is_inexact() {
        return T::from_f64(x.to_f64());
    }
    T::from_scalar(x.to_scalar())
}

/// Row-major copy of `from` as elements of type `T`.
fn convert<S: Element, T: Element>(from: &Tensor) -> Result<Tensor, TensorError> {
    let mut own = Tensor::empty(T::DTYPE, &from.sizes)?;
    if let Some(to) = own.as_mut_slice::<T>() {
        match from.as_slice::<S>() {
            Some(all) => to.iter_mut().zip(all).for_each(|(to, &x)| *to = element(x)),
            None => to.iter_mut().zip(from.offsets()).for_each(|(to, at)| *to = element(read::<S>(from, at))),
        }
    }
    Ok(own)
}

impl Tensor {
    /// The elements converted to `dtype`, row-major; the tensor itself (same strides) where it has that dtype already.
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor, TensorError> {
        if dtype == self.dtype {
            return Ok(self.clone());
        }
        let converted = with_element!(self.dtype, S => with_element!(dtype, T => convert::<S, T>(self)))?;
        Ok(converted.with_device(self.device.clone()))
    }
}
