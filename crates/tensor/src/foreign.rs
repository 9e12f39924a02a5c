//! Raw parts of a tensor, exported and imported: the contents of a DLPack struct. The structs are in `plugin-abi`; this
//! file holds the contract on the memory.

use ir_core::{DType, Device};

use crate::tensor::{checked_numel, reach};
use crate::{Storage, Tensor, TensorError};

/// Pointer, sizes and strides of a tensor, borrowed from it.
#[derive(Clone, Copy, Debug)]
pub struct RawParts<'a> {
    /// The element with index 0 in every dimension.
    pub data: *const u8,
    /// Element type.
    pub dtype: DType,
    /// Where the data is.
    pub device: &'a Device,
    /// Number of elements of each dimension.
    pub sizes: &'a [usize],
    /// Distance in elements between neighbours of each dimension.
    pub strides: &'a [isize],
}

impl Tensor {
    /// Pointer, sizes and strides, valid as long as the tensor.
    pub fn raw_parts(&self) -> RawParts<'_> {
        RawParts {
            data: self.data_ptr(),
            dtype: self.dtype,
            device: &self.device,
            sizes: &self.sizes,
            strides: &self.strides,
        }
    }

    /// Address for writing, where the bytes are owned and no other tensor shares them. Valid until the tensor is
    /// moved into a shared place or dropped; the memory around the elements belongs to the tensor too.
    pub fn data_ptr_mut(&mut self) -> Option<*mut u8> {
        let offset = self.offset.wrapping_mul(self.dtype.size() as isize);
        let base = self.storage.bytes_mut()?.as_mut_ptr();
        Some(base.wrapping_offset(offset))
    }

    /// A tensor over memory that somebody else owns. `ptr` is the element with index 0 in every dimension; `release`
    /// runs once, when the last view is dropped, and at once where the construction fails.
    ///
    /// # Safety
    /// Every element that sizes and strides reach from `ptr` must be valid for reads, from any thread, until
    /// `release` is called, and nothing may write it meanwhile.
    pub unsafe fn from_foreign(
        ptr: *const u8,
        dtype: DType,
        sizes: &[usize],
        strides: &[isize],
        release: impl FnOnce() + Send + Sync + 'static,
    ) -> Result<Tensor, TensorError> {
        let reads = |start, bytes, release| {
            // SAFETY: the caller vouches for every reachable element; the span from the lowest to the highest of them is
            // one allocation, so the bytes between are readable too.
            unsafe { Storage::foreign(start, bytes, release) }
        };
        Tensor::over_foreign(ptr, dtype, (sizes, strides), Box::new(release), reads)
    }

    /// As [`from_foreign`](Self::from_foreign), over memory that the one handle of it may write, such as an input that a
    /// program updates in place.
    ///
    /// # Safety
    /// As for `from_foreign`; every reachable element is valid for writes too, and nothing else reads or writes the memory
    /// between the lowest and the highest of them while it is written through this tensor.
    pub unsafe fn from_foreign_mut(
        ptr: *mut u8,
        dtype: DType,
        sizes: &[usize],
        strides: &[isize],
        release: impl FnOnce() + Send + Sync + 'static,
    ) -> Result<Tensor, TensorError> {
        let writes = |start: *const u8, bytes, release| {
            // SAFETY: the caller vouches for the span, as in `from_foreign`, for writes too.
            unsafe { Storage::foreign_mut(start.cast_mut(), bytes, release) }
        };
        Tensor::over_foreign(ptr, dtype, (sizes, strides), Box::new(release), writes)
    }

    /// A tensor over the storage that `make` creates from the start and the length of the memory.
    fn over_foreign(
        ptr: *const u8,
        dtype: DType,
        (sizes, strides): (&[usize], &[isize]),
        release: Box<dyn FnOnce() + Send + Sync>,
        make: impl FnOnce(*const u8, usize, Box<dyn FnOnce() + Send + Sync>) -> Result<Storage, TensorError>,
    ) -> Result<Tensor, TensorError> {
        let span = match span(dtype, sizes, strides) {
            Ok(span) => span,
            Err(error) => {
                release();
                return Err(error);
            }
        };
        let start = if ptr.is_null() { ptr } else { ptr.wrapping_offset(-span.before) };
        let storage = make(start, span.bytes, release)?;
        Tensor::new(storage, dtype, sizes, strides, span.before / dtype.size() as isize)
    }
}

struct Span {
    /// Bytes from the lowest element to the one with index 0.
    before: isize,
    /// Bytes from the start of the lowest element to the end of the highest.
    bytes: usize,
}

fn span(dtype: DType, sizes: &[usize], strides: &[isize]) -> Result<Span, TensorError> {
    checked_numel(dtype, sizes)?;
    if sizes.len() != strides.len() {
        return Err(TensorError::Shape(format!(
            "{} sizes but {} strides were given",
            sizes.len(),
            strides.len()
        )));
    }
    let Some((low, high)) = reach(sizes, strides) else { return Ok(Span { before: 0, bytes: 0 }) };
    let size = dtype.size() as i128;
    let too_large = |_| TensorError::TooLarge { dtype, sizes: sizes.to_vec() };
    let before = isize::try_from(low.saturating_mul(-size)).map_err(too_large)?;
    let bytes = isize::try_from((high.saturating_sub(low).saturating_add(1)).saturating_mul(size))
        .map_err(too_large)? as usize;
    Ok(Span { before, bytes })
}
