//! [`Tensor`]: dtype, sizes, strides and offset over a shared [`Storage`]. Construction is checked once, so every
//! element access afterwards stays inside the storage.

use std::fmt;

use ir_core::{DType, Device, Scalar, SymExpr, TensorMeta};
use smallvec::SmallVec;

use crate::{Element, Storage, TensorError, with_element};

/// Number of elements of each dimension.
pub type Sizes = SmallVec<[usize; 4]>;
/// Distance in elements between neighbours of each dimension.
pub type Strides = SmallVec<[isize; 4]>;

/// A strided view of shared bytes. Cloning is cheap and shares the bytes.
///
/// Invariants, held by every constructor: `sizes` and `strides` are of one length; the product of the sizes fits
/// `isize`; every reachable element lies within the storage; the storage is aligned for the dtype.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) storage: Storage,
    pub(crate) dtype: DType,
    pub(crate) device: Device,
    pub(crate) sizes: Sizes,
    pub(crate) strides: Strides,
    /// In elements from the start of the storage.
    pub(crate) offset: isize,
}

/// Row-major strides of `sizes`, as PyTorch makes them: a dimension of size 0 counts as 1.
pub fn contiguous_strides(sizes: &[usize]) -> Strides {
    let mut strides: Strides = SmallVec::from_elem(1, sizes.len());
    let mut next = 1isize;
    for d in (0..sizes.len()).rev() {
        strides[d] = next;
        // Saturates only for a tensor that `checked_numel` refuses.
        next = next.saturating_mul(sizes[d].max(1) as isize);
    }
    strides
}

/// The number of elements, where it and its bytes fit the address space.
///
/// # Errors
/// [`TensorError::TooLarge`] where they do not.
pub fn checked_numel(dtype: DType, sizes: &[usize]) -> Result<usize, TensorError> {
    let too_large = || TensorError::TooLarge { dtype, sizes: sizes.to_vec() };
    if sizes.contains(&0) {
        return Ok(0);
    }
    let numel = sizes.iter().try_fold(1usize, |n, &s| n.checked_mul(s)).ok_or_else(too_large)?;
    numel.checked_mul(dtype.size()).filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or_else(too_large)?;
    Ok(numel)
}

/// The lowest and highest element offset that sizes and strides reach from 0; `None` where there is no element.
pub(crate) fn reach(sizes: &[usize], strides: &[isize]) -> Option<(i128, i128)> {
    if sizes.contains(&0) {
        return None;
    }
    let (mut low, mut high) = (0i128, 0i128);
    for (&size, &stride) in sizes.iter().zip(strides) {
        // 2^63 * 2^63 is below 2^127; dimensions are few enough that a saturated sum still fails the check.
        let span = (size as i128 - 1) * stride as i128;
        if span < 0 { low = low.saturating_add(span) } else { high = high.saturating_add(span) }
    }
    Some((low, high))
}

impl Tensor {
    /// A view of `storage` on the host. `strides` and `offset` count elements.
    ///
    /// # Errors
    /// Where sizes and strides differ in length, the sizes overflow, an element lies outside the storage, or the
    /// storage is not aligned for `dtype`.
    pub fn new(
        storage: Storage,
        dtype: DType,
        sizes: &[usize],
        strides: &[isize],
        offset: isize,
    ) -> Result<Tensor, TensorError> {
        if sizes.len() != strides.len() {
            let text = format!("{} sizes but {} strides were given", sizes.len(), strides.len());
            return Err(TensorError::Shape(text));
        }
        let numel = checked_numel(dtype, sizes)?;
        let inside = match reach(sizes, strides) {
            None => true,
            Some((low, high)) => {
                let (low, high) = (low.saturating_add(offset as i128), high.saturating_add(offset as i128));
                low >= 0
                    && high.saturating_add(1).saturating_mul(dtype.size() as i128) <= storage.len() as i128
            }
        };
        if !inside {
            return Err(TensorError::OutOfStorage {
                dtype,
                sizes: sizes.to_vec(),
                strides: strides.to_vec(),
                offset,
                bytes: storage.len(),
            });
        }
        let address = storage.as_ptr().addr();
        if numel > 0 && !address.is_multiple_of(with_element!(dtype, T => align_of::<T>())) {
            return Err(TensorError::Misaligned { dtype, address });
        }
        Ok(Tensor {
            storage,
            dtype,
            device: Device::CPU,
            sizes: sizes.into(),
            strides: strides.into(),
            offset,
        })
    }

    /// Zeros in row-major order.
    pub fn zeros(dtype: DType, sizes: &[usize]) -> Result<Tensor, TensorError> {
        let bytes = checked_numel(dtype, sizes)? * dtype.size();
        Tensor::new(Storage::zeroed(bytes)?, dtype, sizes, &contiguous_strides(sizes), 0)
    }

    /// A tensor to be filled; its memory is zeroed, so that reading it is defined.
    pub fn empty(dtype: DType, sizes: &[usize]) -> Result<Tensor, TensorError> {
        Tensor::zeros(dtype, sizes)
    }

    /// A zeroed tensor with the given strides (none negative), its storage just large enough.
    pub fn empty_strided(dtype: DType, sizes: &[usize], strides: &[isize]) -> Result<Tensor, TensorError> {
        checked_numel(dtype, sizes)?;
        let too_large = || TensorError::TooLarge { dtype, sizes: sizes.to_vec() };
        let elements = reach(sizes, strides).map_or(0, |(_, high)| high.saturating_add(1));
        let bytes =
            usize::try_from(elements.saturating_mul(dtype.size() as i128)).map_err(|_| too_large())?;
        Tensor::new(Storage::zeroed(bytes)?, dtype, sizes, strides, 0)
    }

    /// Every element `value`, converted to `dtype`.
    pub fn full(dtype: DType, sizes: &[usize], value: Scalar) -> Result<Tensor, TensorError> {
        let mut tensor = Tensor::zeros(dtype, sizes)?;
        with_element!(dtype, T => if let Some(all) = tensor.as_mut_slice::<T>() {
            all.fill(T::from_scalar(value));
        });
        Ok(tensor)
    }

    /// A tensor without dimensions.
    pub fn scalar(dtype: DType, value: Scalar) -> Result<Tensor, TensorError> {
        Tensor::full(dtype, &[], value)
    }

    /// `values` in row-major order; there must be as many as `sizes` says.
    pub fn from_vec<T: Element>(values: Vec<T>, sizes: &[usize]) -> Result<Tensor, TensorError> {
        Tensor::from_slice(&values, sizes)
    }

    /// As [`from_vec`](Self::from_vec).
    pub fn from_slice<T: Element>(values: &[T], sizes: &[usize]) -> Result<Tensor, TensorError> {
        if checked_numel(T::DTYPE, sizes)? != values.len() {
            return Err(TensorError::Shape(format!("{} values do not fill sizes {sizes:?}", values.len())));
        }
        let mut tensor = Tensor::zeros(T::DTYPE, sizes)?;
        if let Some(own) = tensor.as_mut_slice::<T>() {
            own.copy_from_slice(values);
        }
        Ok(tensor)
    }

    /// Element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// Where the data is meant to be; the bytes of this crate's tensors are in host memory.
    pub fn device(&self) -> &Device {
        &self.device
    }
    /// The same tensor labelled with another device.
    pub fn with_device(mut self, device: Device) -> Tensor {
        self.device = device;
        self
    }
    /// Number of elements of each dimension.
    #[inline]
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }
    /// Distance in elements between neighbours of each dimension.
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }
    /// Elements before the first one, within the storage.
    pub fn offset(&self) -> isize {
        self.offset
    }
    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.sizes.len()
    }
    /// Number of elements.
    pub fn numel(&self) -> usize {
        // The product of the others need not fit where one is zero.
        if self.sizes.contains(&0) { 0 } else { self.sizes.iter().product() }
    }
    /// Bytes of the elements in contiguous memory.
    pub fn nbytes(&self) -> usize {
        self.numel() * self.dtype.size()
    }
    /// The shared bytes.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }
    /// dtype, device, sizes, strides and offset as numbers of a graph.
    pub fn meta(&self) -> TensorMeta {
        TensorMeta {
            dtype: self.dtype,
            device: self.device.clone(),
            sizes: self.sizes.iter().map(|&s| SymExpr::from_i64(s as i64)).collect(),
            strides: self.strides.iter().map(|&s| SymExpr::from_i64(s as i64)).collect(),
            offset: SymExpr::from_i64(self.offset as i64),
        }
    }

    /// Whether the elements lie side by side in row-major order (dimensions of size 1 may have any stride).
    pub fn is_contiguous(&self) -> bool {
        let mut next = 1isize;
        let mut same = |(&size, &stride): (&usize, &isize)| {
            let fits = size == 1 || stride == next;
            next = next.saturating_mul(size as isize);
            fits
        };
        self.sizes.iter().zip(&self.strides).rev().all(&mut same) || self.sizes.contains(&0)
    }

    /// The elements, where they are of type `T` and lie side by side in row-major order.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        if T::DTYPE != self.dtype || !self.is_contiguous() {
            return None;
        }
        let numel = self.numel();
        if numel == 0 {
            return Some(&[]);
        }
        // SAFETY: contiguous, so elements `offset..offset + numel` are exactly the reachable ones, which the
        // constructor found inside the storage and aligned; `Element` accepts every bit pattern.
        Some(unsafe { std::slice::from_raw_parts(self.data_ptr().cast::<T>(), numel) })
    }

    /// The elements for writing: contiguous, of type `T`, in owned memory that no other tensor shares.
    pub fn as_mut_slice<T: Element>(&mut self) -> Option<&mut [T]> {
        if T::DTYPE != self.dtype || !self.is_contiguous() {
            return None;
        }
        let numel = self.numel();
        if numel == 0 {
            return Some(&mut []);
        }
        let start = self.offset as usize * self.dtype.size();
        let bytes = self.storage.bytes_mut()?.get_mut(start..)?;
        // SAFETY: the tensor is contiguous and its storage aligned, and `bytes_mut` proves that there is no other handle of
        // the memory.
        Some(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast::<T>(), numel) })
    }

    /// Address of the element with index 0 in every dimension (meaningless where there is no element).
    pub fn data_ptr(&self) -> *const u8 {
        self.storage.as_ptr().wrapping_offset(self.offset.wrapping_mul(self.dtype.size() as isize))
    }
}

impl fmt::Debug for Tensor {
    /// `f32[2, 3]{3, 1}+0 [0.0, 1.0, …]`: at most eight elements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}{{{:?}}}+{} [", self.dtype, &self.sizes[..], &self.strides[..], self.offset)?;
        for (n, value) in self.iter().take(8).enumerate() {
            write!(f, "{}{value}", if n > 0 { ", " } else { "" })?;
        }
        f.write_str(if self.numel() > 8 { ", …]" } else { "]" })
    }
}
