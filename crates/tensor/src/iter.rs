//! Walking a strided tensor in logical (row-major) order.

use ir_core::Scalar;
use num_complex::Complex;

use crate::tensor::Sizes;
use crate::{Element, Strides, Tensor, TensorError, with_element};

/// Element offsets from the start of the storage, in row-major order of the index.
#[derive(Clone, Debug)]
pub struct Offsets {
    sizes: Sizes,
    strides: Strides,
    index: Sizes,
    current: isize,
    left: usize,
}

impl Offsets {
    pub(crate) fn new(tensor: &Tensor) -> Offsets {
        Offsets {
            sizes: tensor.sizes.clone(),
            strides: tensor.strides.clone(),
            index: Sizes::from_elem(0, tensor.rank()),
            current: tensor.offset,
            left: tensor.numel(),
        }
    }

    /// The first element of each row, rows being along the last dimension.
    pub(crate) fn of_rows(tensor: &Tensor) -> Offsets {
        let mut all = Offsets::new(tensor);
        let width = all.sizes.pop().unwrap_or(1);
        all.strides.pop();
        all.index.pop();
        all.left = all.left.checked_div(width).unwrap_or(0);
        all
    }
}

impl Iterator for Offsets {
    type Item = isize;

    #[inline]
    fn next(&mut self) -> Option<isize> {
        if self.left == 0 {
            return None;
        }
        let here = self.current;
        self.left -= 1;
        for d in (0..self.sizes.len()).rev() {
            self.index[d] += 1;
            // Wrapping: a dimension of size 1 may have any stride, which is stepped over and taken back.
            self.current = self.current.wrapping_add(self.strides[d]);
            if self.index[d] < self.sizes[d] {
                break;
            }
            self.current = self.current.wrapping_sub(self.strides[d].wrapping_mul(self.sizes[d] as isize));
            self.index[d] = 0;
        }
        Some(here)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Offsets {}

/// The elements of a tensor, each converted to `V`, in row-major order.
pub struct Values<'a, V> {
    offsets: Offsets,
    tensor: &'a Tensor,
    read: fn(&Tensor, isize) -> V,
}

impl<V> Iterator for Values<'_, V> {
    type Item = V;
    #[inline]
    fn next(&mut self) -> Option<V> {
        self.offsets.next().map(|at| (self.read)(self.tensor, at))
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.offsets.size_hint()
    }
}

impl<V> ExactSizeIterator for Values<'_, V> {}

/// The element at `at` elements from the start of the storage.
///
/// Private to the crate: `at` must come from [`Offsets`] or a checked index of the same tensor, `T` be its type.
#[inline(always)]
pub(crate) fn read<T: Element>(tensor: &Tensor, at: isize) -> T {
    debug_assert_eq!(T::DTYPE, tensor.dtype);
    // SAFETY: `at` is the offset of a reachable element of `tensor`, which its constructor found inside the storage
    // and aligned for its dtype, whose memory `T` is.
    unsafe { tensor.storage.as_ptr().cast::<T>().offset(at).read() }
}

fn read_scalar<T: Element>(tensor: &Tensor, at: isize) -> Scalar {
    read::<T>(tensor, at).to_scalar()
}
fn read_f64<T: Element>(tensor: &Tensor, at: isize) -> f64 {
    read::<T>(tensor, at).to_f64()
}
fn read_i64<T: Element>(tensor: &Tensor, at: isize) -> i64 {
    i64::from_scalar(read::<T>(tensor, at).to_scalar())
}
fn read_complex<T: Element>(tensor: &Tensor, at: isize) -> Complex<f64> {
    let x = read::<T>(tensor, at);
    if T::DTYPE.is_complex() {
        Complex::<f64>::from_scalar(x.to_scalar())
    } else {
        Complex::new(x.to_f64(), 0.0)
    }
}

impl Tensor {
    /// Element offsets from the start of the storage, in row-major order of the index.
    pub fn offsets(&self) -> Offsets {
        Offsets::new(self)
    }

    fn values<V>(&self, read: fn(&Tensor, isize) -> V) -> Values<'_, V> {
        Values { offsets: self.offsets(), tensor: self, read }
    }
    /// The elements as scalars of the dtype's class.
    pub fn iter(&self) -> Values<'_, Scalar> {
        self.values(with_element!(self.dtype, T => read_scalar::<T>))
    }
    /// The elements as real numbers (a complex one gives its real part).
    pub fn iter_f64(&self) -> Values<'_, f64> {
        self.values(with_element!(self.dtype, T => read_f64::<T>))
    }
    /// The elements as integers, floats truncated.
    pub fn iter_i64(&self) -> Values<'_, i64> {
        self.values(with_element!(self.dtype, T => read_i64::<T>))
    }
    /// The elements as complex numbers.
    pub fn iter_complex(&self) -> Values<'_, Complex<f64>> {
        self.values(with_element!(self.dtype, T => read_complex::<T>))
    }

    /// The elements in row-major order.
    ///
    /// # Errors
    /// Where the tensor is not of type `T`, or the copy does not fit in memory.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        if T::DTYPE != self.dtype {
            return Err(TensorError::DType { got: self.dtype, expected: T::DTYPE });
        }
        crate::require_room(self.nbytes())?;
        let mut all = Vec::new();
        all.try_reserve_exact(self.numel()).map_err(|_| TensorError::OutOfMemory { bytes: self.nbytes() })?;
        match self.as_slice::<T>() {
            Some(slice) => all.extend_from_slice(slice),
            None => all.extend(self.offsets().map(|at| read::<T>(self, at))),
        }
        Ok(all)
    }

    /// An element, as an integer, that does not lie in `low..=high`; `None` where all do. Nothing is copied.
    pub fn first_outside(&self, low: i64, high: i64) -> Option<i64> {
        match (self.as_slice::<i64>(), self.as_slice::<i32>()) {
            (Some(all), _) => outside(all, low, high),
            (_, Some(all)) => outside(all, low, high),
            _ => self.iter_i64().find(|n| !(low..=high).contains(n)),
        }
    }

    /// Offset in the storage of the element at `index`; `None` where there is none.
    pub(crate) fn offset_of(&self, index: &[usize]) -> Option<isize> {
        if index.len() != self.rank() || index.iter().zip(&self.sizes).any(|(i, s)| i >= s) {
            return None;
        }
        Some(index.iter().zip(&self.strides).fold(self.offset, |at, (&i, &s)| at + i as isize * s))
    }

    /// The element at `index`; `None` where there is none.
    pub fn get(&self, index: &[usize]) -> Option<Scalar> {
        let at = self.offset_of(index)?;
        Some(with_element!(self.dtype, T => read_scalar::<T>(self, at)))
    }

    /// The only element; `None` where there is none or more than one.
    pub fn item(&self) -> Option<Scalar> {
        if self.numel() == 1 { self.iter().next() } else { None }
    }
}

/// Looks at many elements between decisions, so that comparing them is vector code.
fn outside<T: Copy + Into<i64>>(all: &[T], low: i64, high: i64) -> Option<i64> {
    const AT_ONCE: usize = 4096;
    let beyond = |n: i64| (n < low) | (n > high);
    let chunk = all.chunks(AT_ONCE).find(|c| c.iter().fold(false, |any, n| any | beyond((*n).into())))?;
    chunk.iter().map(|n| (*n).into()).find(|n| beyond(*n))
}
