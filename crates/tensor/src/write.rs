//! Writing elements: always into memory that no other tensor shares.

use ir_core::Scalar;

use crate::iter::{Offsets, read};
use crate::{Element, Storage, Tensor, TensorError, with_element};

fn write<T: Element>(bytes: &mut [u8], at: isize, value: T) {
    let start = at as usize * size_of::<T>();
    // In bounds for every reachable element; an index from elsewhere writes nothing.
    let Some(place) = bytes.get_mut(start..start + size_of::<T>()) else { return };
    // SAFETY: `place` has the size of `T`, which is plain memory without padding.
    unsafe { place.as_mut_ptr().cast::<T>().write_unaligned(value) }
}

/// The elements in row-major order, row by row: the index is only counted between rows.
fn gather<T: Element>(from: &Tensor, to: &mut [T]) {
    let width = from.sizes.last().copied().unwrap_or(1);
    let step = from.strides.last().copied().unwrap_or(0);
    if width == 0 {
        return;
    }
    for (row, start) in to.chunks_exact_mut(width).zip(Offsets::of_rows(from)) {
        for (n, place) in row.iter_mut().enumerate() {
            *place = read::<T>(from, start + n as isize * step);
        }
    }
}

impl Tensor {
    /// Sets one element. Where the bytes are shared, mapped or foreign the tensor first gets its own, contiguous copy:
    /// other tensors never see the change.
    pub fn set(&mut self, index: &[usize], value: Scalar) -> Result<(), TensorError> {
        let outside =
            || TensorError::Shape(format!("index {index:?} lies outside sizes {:?}", &self.sizes[..]));
        self.offset_of(index).ok_or_else(outside)?;
        if !self.storage.is_unique() {
            *self = self.copied()?;
        }
        let at = self.offset_of(index).unwrap_or(0);
        if let Some(bytes) = self.storage.bytes_mut() {
            with_element!(self.dtype, T => write::<T>(bytes, at, T::from_scalar(value)));
        }
        Ok(())
    }

    /// A row-major copy in memory of its own.
    pub fn copied(&self) -> Result<Tensor, TensorError> {
        let mut own = Tensor::empty(self.dtype, &self.sizes)?;
        own.device = self.device.clone();
        with_element!(self.dtype, T => if let Some(to) = own.as_mut_slice::<T>() {
            match self.as_slice::<T>() {
                Some(from) => to.copy_from_slice(from),
                None => gather(self, to),
            }
        });
        Ok(own)
    }

    /// Whether this is the one handle of memory that may be written.
    pub fn is_writable(&mut self) -> bool {
        self.storage.is_unique()
    }

    /// Overwrites the elements by those of `values`, in the memory that the tensor has.
    ///
    /// # Errors
    /// Other sizes or another dtype; memory that is shared, mapped or foreign and read-only.
    pub fn assign(&mut self, values: &Tensor) -> Result<(), TensorError> {
        if values.sizes != self.sizes || values.dtype != self.dtype {
            let (from, to) = (&values.sizes[..], &self.sizes[..]);
            let text =
                format!("cannot write {} of sizes {from:?} into {} of {to:?}", values.dtype, self.dtype);
            return Err(TensorError::Shape(text));
        }
        let offsets = self.offsets();
        let whole = self.is_contiguous().then(|| self.offset as usize * self.dtype.size());
        let Some(bytes) = self.storage.bytes_mut() else {
            return Err(TensorError::Shape("the tensor shares its memory, or may not write it".into()));
        };
        with_element!(self.dtype, T => match (whole, values.as_slice::<T>()) {
            (Some(start), Some(from)) if values.numel() > 0 => {
                // SAFETY: elements are plain memory without padding; as bytes they have any alignment.
                let from = unsafe { std::slice::from_raw_parts(from.as_ptr().cast::<u8>(), size_of_val(from)) };
                if let Some(to) = bytes.get_mut(start..start + from.len()) {
                    to.copy_from_slice(from);
                }
            }
            _ => offsets.zip(values.offsets()).for_each(|(to, from)| write::<T>(bytes, to, read(values, from))),
        });
        Ok(())
    }

    /// Gives the tensor memory of its own that may be written, in the same strides: a copy where the bytes are shared,
    /// mapped or foreign.
    ///
    /// # Errors
    /// No memory; negative strides.
    pub fn make_writable(&mut self) -> Result<(), TensorError> {
        if self.is_writable() {
            return Ok(());
        }
        *self = if self.is_contiguous() {
            self.copied()?
        } else {
            let like = Tensor::empty_strided(self.dtype, &self.sizes, &self.strides)?;
            like.with_storage(like.storage_with(self)?)?.with_device(self.device.clone())
        };
        Ok(())
    }

    /// The tensor itself where its elements lie side by side in row-major order, else a copy that does.
    pub fn contiguous(&self) -> Result<Tensor, TensorError> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.copied() }
    }

    /// A copy of the whole storage in which the elements that this view reaches are those of `values` (same sizes,
    /// converted to this dtype). This is how an in-place operator is run without writing shared memory: every other
    /// view of the old storage is then moved to the new one with [`with_storage`](Self::with_storage).
    pub fn storage_with(&self, values: &Tensor) -> Result<Storage, TensorError> {
        if values.sizes != self.sizes {
            let text = format!("cannot write sizes {:?} into {:?}", &values.sizes[..], &self.sizes[..]);
            return Err(TensorError::Shape(text));
        }
        let values = values.to_dtype(self.dtype)?;
        let mut storage = Storage::from_bytes(self.storage.bytes())?;
        if let Some(bytes) = storage.bytes_mut() {
            with_element!(self.dtype, T => {
                self.offsets().zip(values.offsets()).for_each(|(to, from)| write::<T>(bytes, to, read(&values, from)))
            });
        }
        Ok(storage)
    }

    /// The same view of other bytes.
    pub fn with_storage(&self, storage: Storage) -> Result<Tensor, TensorError> {
        let view = Tensor::new(storage, self.dtype, &self.sizes, &self.strides, self.offset)?;
        Ok(view.with_device(self.device.clone()))
    }
}
