//! Tensors that a backend returns: host memory aligned to 64 bytes, or memory of the backend, exported as DLPack.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use ir_core::DType;
use plugin_abi::dlpack::{DL_CPU, DLPACK_MAJOR, DLPACK_MINOR};
use plugin_abi::{DLDataType, DLDevice, DLManagedTensorVersioned, DLPackVersion, DLTensor};
use smallvec::SmallVec;

use crate::tensor::{check_element, is_contiguous, numel, span_of};
use crate::thunk::discard;
use crate::{Element, PluginError};

/// Alignment of host memory in bytes: one cache line, and one AVX-512 register.
pub(crate) const ALIGNMENT: usize = 64;

/// A block of host memory whose usable part begins at a multiple of [`ALIGNMENT`].
struct Block {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the block is plain memory with a single owner.
unsafe impl Send for Block {}

impl Block {
    /// `bytes` usable bytes. The base is unaligned on purpose: `calloc` then hands out untouched zero pages, where an
    /// aligned allocation would be cleared by hand.
    fn new(bytes: usize, zeroed: bool) -> Result<Self, PluginError> {
        let room = bytes.checked_add(ALIGNMENT).ok_or_else(|| PluginError::out_of_memory(bytes))?;
        let layout = Layout::from_size_align(room, 1).map_err(|_| PluginError::out_of_memory(bytes))?;
        // SAFETY: the layout's size is at least `ALIGNMENT`, so not zero.
        let base = unsafe { if zeroed { alloc_zeroed(layout) } else { alloc(layout) } };
        let base = NonNull::new(base).ok_or_else(|| PluginError::out_of_memory(bytes))?;
        Ok(Self { base, layout })
    }

    fn aligned(&self) -> NonNull<u8> {
        let offset = self.base.align_offset(ALIGNMENT);
        // SAFETY: the offset is below `ALIGNMENT` bytes, by which the block is larger than requested.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated in `new` with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// A tensor of the backend, on its way to the host. Sizes and strides count elements.
pub struct OwnedTensor {
    data: NonNull<u8>,
    dtype: DType,
    device: DLDevice,
    sizes: Dims,
    strides: Dims,
    /// Keeps the memory; freed by the host through DLPack's deleter, on any thread.
    owner: Owner,
}

/// Sizes or strides; those of typical tensors are stored inline.
type Dims = SmallVec<[i64; 6]>;

/// The owner of the memory.
enum Owner {
    /// Allocated here, so that nothing else reads it.
    Own { _block: Block },
    /// The backend.
    Backend { _keeps: Box<dyn Any + Send> },
}

// SAFETY: `data` points into memory that `owner` (which is `Send`) keeps and nothing else writes.
unsafe impl Send for OwnedTensor {}

/// Host memory that the backend has yet to fill.
pub struct UninitTensor(OwnedTensor);

impl OwnedTensor {
    /// A row-major host tensor of zeros.
    pub fn zeroed(dtype: DType, sizes: &[i64]) -> Result<Self, PluginError> {
        Self::allocate(dtype, sizes, &row_major(sizes), true)
    }

    /// A host tensor of zeros with strides of the backend's choice (channels-last, padded rows).
    pub fn zeroed_strided(dtype: DType, sizes: &[i64], strides: &[i64]) -> Result<Self, PluginError> {
        Self::allocate(dtype, sizes, strides, true)
    }

    /// A host tensor that is not cleared: for backends whose machine code writes every element.
    pub fn uninit(dtype: DType, sizes: &[i64]) -> Result<UninitTensor, PluginError> {
        Self::allocate(dtype, sizes, &row_major(sizes), false).map(UninitTensor)
    }

    /// As [`OwnedTensor::uninit`], with strides.
    pub fn uninit_strided(dtype: DType, sizes: &[i64], strides: &[i64]) -> Result<UninitTensor, PluginError> {
        Self::allocate(dtype, sizes, strides, false).map(UninitTensor)
    }

    /// A row-major host tensor with a copy of `values`; its dtype is the first one of `T`.
    pub fn from_slice<T: Element>(values: &[T], sizes: &[i64]) -> Result<Self, PluginError> {
        let mut tensor = Self::zeroed(T::DTYPES[0], sizes)?;
        if tensor.numel() != values.len() {
            return Err(PluginError::invalid(format!("{} values for sizes {sizes:?}", values.len())));
        }
        tensor.as_mut_slice::<T>()?.copy_from_slice(values);
        Ok(tensor)
    }

    /// A tensor over memory that `owner` keeps: a device buffer, a block of the backend's pool.
    ///
    /// # Safety
    /// Until `owner` is dropped `data` is valid (on `device`) and initialised for every element that sizes and strides
    /// address, and nothing writes it.
    pub unsafe fn from_raw_parts(
        data: NonNull<u8>,
        dtype: DType,
        device: DLDevice,
        sizes: &[i64],
        strides: &[i64],
        owner: Box<dyn Any + Send>,
    ) -> Result<Self, PluginError> {
        check_shape(dtype, sizes, strides)?;
        Ok(Self {
            data,
            dtype,
            device,
            sizes: Dims::from_slice(sizes),
            strides: Dims::from_slice(strides),
            owner: Owner::Backend { _keeps: owner },
        })
    }

    fn allocate(dtype: DType, sizes: &[i64], strides: &[i64], zeroed: bool) -> Result<Self, PluginError> {
        let block = Block::new(check_shape(dtype, sizes, strides)?, zeroed)?;
        Ok(Self {
            data: block.aligned(),
            dtype,
            device: DLDevice { device_type: DL_CPU, device_id: 0 },
            sizes: Dims::from_slice(sizes),
            strides: Dims::from_slice(strides),
            owner: Owner::Own { _block: block },
        })
    }

    fn is_own(&self) -> bool {
        matches!(self.owner, Owner::Own { .. })
    }
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// Sizes, in elements.
    pub fn sizes(&self) -> &[i64] {
        &self.sizes
    }
    /// Strides, in elements.
    pub fn strides(&self) -> &[i64] {
        &self.strides
    }
    /// Number of elements.
    pub fn numel(&self) -> usize {
        numel(&self.sizes)
    }
    /// Address of the first element.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.data.as_ptr()
    }

    /// The elements of a contiguous host tensor that was allocated by this type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], PluginError> {
        check_element::<T>(self.dtype)?;
        if !self.is_own() || !is_contiguous(&self.sizes, &self.strides) {
            let reason = "only a contiguous tensor over memory of its own can be written as a slice";
            return Err(PluginError::invalid(reason));
        }
        if !self.data.cast::<T>().is_aligned() {
            return Err(PluginError::invalid(format!("memory is not aligned for {}", self.dtype)));
        }
        // SAFETY: aligned host memory with `numel` initialised elements of `T`'s dtype, borrowed mutably through `self`.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr().cast::<T>(), self.numel()) })
    }

    /// Writes the element at an index of a host tensor that was allocated by this type, whatever its strides.
    pub fn set<T: Element>(&mut self, index: &[i64], value: T) -> Result<(), PluginError> {
        check_element::<T>(self.dtype)?;
        let inside = index.len() == self.sizes.len()
            && index.iter().zip(&self.sizes).all(|(&i, &size)| (0..size).contains(&i));
        if !self.is_own() || !inside {
            let reason =
                format!("index {index:?} of sizes {:?} is not an element that can be written", self.sizes);
            return Err(PluginError::invalid(reason));
        }
        let offset: i64 = index.iter().zip(&self.strides).map(|(&i, &stride)| i * stride).sum();
        // SAFETY: memory allocated here, aligned to 64 bytes; the index is in range, so the offset is within the allocated
        // span; `T` is an element type of the tensor's dtype.
        unsafe { self.data.as_ptr().cast::<T>().add(offset as usize).write(value) };
        Ok(())
    }

    /// Exports the tensor to the host: a heap struct that its own deleter frees.
    pub(crate) fn into_dlpack(self) -> *mut DLManagedTensorVersioned {
        let (code, bits) = self.dtype.dlpack();
        let exported = Box::new(Exported {
            managed: DLManagedTensorVersioned {
                version: DLPackVersion { major: DLPACK_MAJOR, minor: DLPACK_MINOR },
                manager_ctx: std::ptr::null_mut(),
                deleter: Some(delete),
                flags: 0,
                dl_tensor: DLTensor {
                    data: self.data.as_ptr().cast(),
                    device: self.device,
                    ndim: self.sizes.len() as i32,
                    dtype: DLDataType { code, bits, lanes: 1 },
                    shape: std::ptr::null_mut(),
                    strides: std::ptr::null_mut(),
                    byte_offset: 0,
                },
            },
            tensor: self,
        });
        let raw = Box::into_raw(exported);
        // SAFETY: `raw` was just created from a box; nothing else refers to it. Sizes and strides may be stored inline, so
        // their addresses are final only here.
        unsafe {
            let Exported { managed, tensor } = &mut *raw;
            managed.manager_ctx = raw.cast();
            managed.dl_tensor.shape = tensor.sizes.as_mut_ptr();
            managed.dl_tensor.strides = tensor.strides.as_mut_ptr();
            &raw mut (*raw).managed
        }
    }
}

impl UninitTensor {
    /// Address of the first element, aligned to 64 bytes.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }
    /// Sizes, in elements.
    pub fn sizes(&self) -> &[i64] {
        self.0.sizes()
    }
    /// Strides, in elements.
    pub fn strides(&self) -> &[i64] {
        self.0.strides()
    }
    /// The tensor, now filled.
    ///
    /// # Safety
    /// Every element was written.
    pub unsafe fn assume_init(self) -> OwnedTensor {
        self.0
    }
}

impl std::fmt::Debug for OwnedTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?} strides {:?}", self.dtype, self.sizes, self.strides)
    }
}

/// The struct that the host holds: the DLPack struct and its tensor.
struct Exported {
    managed: DLManagedTensorVersioned,
    tensor: OwnedTensor,
}

/// DLPack's deleter. A panic of the owner's destructor must not reach the host, and cannot be reported here.
unsafe extern "C" fn delete(managed: *mut DLManagedTensorVersioned) {
    if managed.is_null() {
        return;
    }
    let freed = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the host passes the pointer from `into_dlpack` exactly once; `manager_ctx` is its box.
        drop(unsafe { Box::from_raw((*managed).manager_ctx.cast::<Exported>()) });
    }));
    if let Err(payload) = freed {
        discard(payload);
    }
}

/// Strides of a row-major tensor.
fn row_major(sizes: &[i64]) -> Dims {
    let mut strides = Dims::from_elem(1, sizes.len());
    for i in (1..sizes.len()).rev() {
        strides[i - 1] = strides[i].saturating_mul(sizes[i].max(1));
    }
    strides
}

/// Bytes that sizes and strides address.
fn check_shape(dtype: DType, sizes: &[i64], strides: &[i64]) -> Result<usize, PluginError> {
    if sizes.len() != strides.len() || sizes.len() > crate::tensor::MAX_DIMS as usize {
        return Err(PluginError::invalid(format!("sizes {sizes:?} with strides {strides:?}")));
    }
    let span = span_of(sizes, strides)?;
    span.checked_mul(dtype.size())
        .filter(|&bytes| bytes <= isize::MAX as usize)
        .ok_or_else(|| PluginError::out_of_memory(format!("{span} elements of {dtype}, that is too many")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_written_by_index_whatever_the_strides() {
        let mut t = OwnedTensor::zeroed_strided(DType::I16, &[2, 3], &[1, 2]).unwrap();
        for (at, value) in [([0, 0], 1i16), ([1, 0], 2), ([0, 2], 5)] {
            t.set(&at, value).unwrap();
        }
        // SAFETY: six elements were allocated.
        let memory = unsafe { std::slice::from_raw_parts(t.as_mut_ptr().cast::<i16>(), 6) };
        assert_eq!(memory, [1, 2, 0, 0, 5, 0]);
        assert!(
            t.set(&[2, 0], 1i16).is_err() && t.set(&[0], 1i16).is_err() && t.set(&[0, -1], 1i16).is_err()
        );
        assert!(t.set(&[0, 0], 1i32).is_err(), "another dtype");
    }

    #[test]
    fn memory_is_aligned_and_sized_as_asked() {
        for sizes in [&[][..], &[0, 3], &[3, 5], &[1, 1, 1]] {
            let mut t = OwnedTensor::zeroed(DType::F64, sizes).unwrap();
            assert_eq!(t.as_mut_ptr() as usize % ALIGNMENT, 0);
            assert!(t.as_mut_slice::<f64>().unwrap().iter().all(|&x| x == 0.0));
            assert_eq!(t.numel(), sizes.iter().product::<i64>() as usize);
        }
    }

    #[test]
    fn absurd_sizes_are_errors() {
        assert!(OwnedTensor::zeroed(DType::F64, &[i64::MAX]).is_err());
        assert!(OwnedTensor::zeroed(DType::F64, &[i64::MAX, i64::MAX]).is_err());
        assert!(OwnedTensor::zeroed(DType::U8, &[-1]).is_err());
        assert!(OwnedTensor::zeroed_strided(DType::U8, &[2, 2], &[1]).is_err());
    }

    #[test]
    fn the_deleter_drops_the_owner_once() {
        struct Count(std::sync::Arc<std::sync::atomic::AtomicUsize>);
        impl Drop for Count {
            fn drop(&mut self) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                panic!("must not leave the deleter");
            }
        }
        let drops = std::sync::Arc::default();
        let mut memory = Box::new([1u8; 4]);
        let data = NonNull::from(&mut memory[0]);
        let device = DLDevice { device_type: DL_CPU, device_id: 0 };
        let owner = Box::new(Count(std::sync::Arc::clone(&drops)));
        // SAFETY: `memory` outlives the tensor.
        let t = unsafe { OwnedTensor::from_raw_parts(data, DType::U8, device, &[4], &[1], owner) }.unwrap();
        let raw = t.into_dlpack();
        // SAFETY: made by `into_dlpack`, deleted once.
        unsafe { ((*raw).deleter.unwrap())(raw) };
        assert_eq!(drops.load(std::sync::atomic::Ordering::SeqCst), 1);
    }
}
