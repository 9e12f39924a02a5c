//! Bytes shared by tensors: allocated here, a range of a mapped file, or foreign memory with a closure that releases it.
//! All `unsafe` code about ownership of the bytes is here; no dtype and no shape.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use ir_core::can_allocate;
use memmap2::Mmap;

use crate::TensorError;

/// Alignment of owned storage, in bytes: a cache line, and the widest vector register.
pub(crate) const ALIGN: usize = 64;

/// Shared bytes. Cloning shares; the bytes live until the last clone is dropped.
#[derive(Clone)]
pub struct Storage(Arc<Inner>);

struct Inner {
    ptr: NonNull<u8>,
    len: usize,
    owner: Owner,
}

enum Owner {
    /// Allocated here with `layout_of(len)`; nothing where `len` is 0.
    Owned,
    /// A range of a mapping, never written.
    Mapped { _map: Arc<Mmap> },
    /// Released by the closure; written by the one handle of it where its lender permits that.
    Foreign { release: Option<Box<dyn FnOnce() + Send + Sync>>, writable: bool },
}

// SAFETY: the bytes are plain memory; safe code writes them only through `bytes_mut`, which needs the one handle.
// Foreign memory is declared shareable by the caller of the unsafe constructor.
unsafe impl Send for Inner {}
// SAFETY: shared references only read the bytes; `bytes_mut` needs the one handle, and the constructor of foreign memory
// requires that it may be shared.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        match &mut self.owner {
            Owner::Owned => {
                if let (true, Some(layout)) = (self.len > 0, layout_of(self.len)) {
                    // SAFETY: `Storage::zeroed` allocated `ptr` with this layout and nothing else frees it.
                    unsafe { dealloc(self.ptr.as_ptr(), layout) }
                }
            }
            Owner::Mapped { .. } => {}
            Owner::Foreign { release, .. } => {
                if let Some(release) = release.take() {
                    release();
                }
            }
        }
    }
}

fn layout_of(len: usize) -> Option<Layout> {
    Layout::from_size_align(len, ALIGN).ok()
}

fn dangling() -> NonNull<u8> {
    // SAFETY: the alignment is 64, which is not zero.
    unsafe { NonNull::new_unchecked(std::ptr::without_provenance_mut(ALIGN)) }
}

/// An error where this many bytes cannot be had; asks the allocator too, whose limit may be another than the system's.
///
/// # Errors
/// [`TensorError::OutOfMemory`] with the bytes.
pub fn require_room(bytes: usize) -> Result<(), TensorError> {
    // Below this size the check costs more than it is worth.
    const MIN_MAPPED: usize = 1 << 20;
    let mut probe = Vec::<u8>::new();
    match bytes < MIN_MAPPED || can_allocate(bytes) && probe.try_reserve_exact(bytes).is_ok() {
        true => Ok(()),
        false => Err(TensorError::OutOfMemory { bytes }),
    }
}

impl Storage {
    /// `len` zero bytes, aligned to 64. The allocator's refusal is an error, not an abort, and so is a request for more
    /// than the system has free.
    pub fn zeroed(len: usize) -> Result<Storage, TensorError> {
        if len == 0 {
            return Ok(Storage(Arc::new(Inner { ptr: dangling(), len, owner: Owner::Owned })));
        }
        let refused = TensorError::OutOfMemory { bytes: len };
        let layout = layout_of(len).filter(|_| can_allocate(len)).ok_or_else(|| refused.clone())?;
        // SAFETY: the layout has a size above zero.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(refused)?;
        Ok(Storage(Arc::new(Inner { ptr, len, owner: Owner::Owned })))
    }

    /// A copy of `bytes` in memory of its own.
    pub fn from_bytes(bytes: &[u8]) -> Result<Storage, TensorError> {
        let mut storage = Storage::zeroed(bytes.len())?;
        if let Some(own) = storage.bytes_mut() {
            own.copy_from_slice(bytes);
        }
        Ok(storage)
    }

    /// The bytes `range` of a mapped file. The creator of the mapping promised that the file does not change.
    pub fn mapped(map: Arc<Mmap>, range: Range<usize>) -> Result<Storage, TensorError> {
        let bytes = map.get(range.clone()).ok_or(TensorError::Range {
            start: range.start,
            end: range.end,
            len: map.len(),
        })?;
        let (ptr, len) = (NonNull::from(bytes).cast::<u8>(), bytes.len());
        Ok(Storage(Arc::new(Inner { ptr, len, owner: Owner::Mapped { _map: map } })))
    }

    /// Foreign memory, read-only through this crate; `release` runs when the last handle is dropped.
    ///
    /// # Safety
    /// `ptr` must be valid for reads of `len` bytes, from any thread, until `release` has been called, and nothing may
    /// write them while a reference made from this storage lives.
    pub unsafe fn foreign(
        ptr: *const u8,
        len: usize,
        release: Box<dyn FnOnce() + Send + Sync>,
    ) -> Result<Storage, TensorError> {
        // SAFETY: the caller vouches for reads, and nothing is written.
        unsafe { Storage::lent(ptr, len, Owner::Foreign { release: Some(release), writable: false }) }
    }

    /// Foreign memory that the one handle of it may write; `release` runs when the last handle is dropped.
    ///
    /// # Safety
    /// As for [`Storage::foreign`], and `ptr` must be valid for writes too; nothing else reads or writes the bytes while
    /// they are written through this storage.
    pub unsafe fn foreign_mut(
        ptr: *mut u8,
        len: usize,
        release: Box<dyn FnOnce() + Send + Sync>,
    ) -> Result<Storage, TensorError> {
        // SAFETY: the caller vouches for reads and writes.
        unsafe { Storage::lent(ptr, len, Owner::Foreign { release: Some(release), writable: true }) }
    }

    /// Memory of an owner outside of this crate.
    ///
    /// # Safety
    /// As for [`Storage::foreign`], or [`Storage::foreign_mut`] where the owner permits writes.
    unsafe fn lent(ptr: *const u8, len: usize, owner: Owner) -> Result<Storage, TensorError> {
        let ptr = match NonNull::new(ptr.cast_mut()) {
            Some(ptr) => ptr,
            None if len == 0 => dangling(),
            None => {
                drop(Inner { ptr: dangling(), len: 0, owner });
                return Err(TensorError::Null);
            }
        };
        Ok(Storage(Arc::new(Inner { ptr, len, owner })))
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `ptr` is valid for `len` initialised bytes as long as `self` lives (an invariant of every constructor).
        unsafe { std::slice::from_raw_parts(self.0.ptr.as_ptr(), self.0.len) }
    }

    /// All bytes for writing: only where this is the one handle of owned memory, or of memory that was lent for writing.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let inner = Arc::get_mut(&mut self.0)?;
        match inner.owner {
            // SAFETY: the memory is owned, and `get_mut` proves that there is no other handle.
            Owner::Owned => Some(unsafe { std::slice::from_raw_parts_mut(inner.ptr.as_ptr(), inner.len) }),
            Owner::Foreign { writable: true, .. } => {
                // SAFETY: the lender permits writes, and `get_mut` proves that there is no other handle.
                Some(unsafe { std::slice::from_raw_parts_mut(inner.ptr.as_ptr(), inner.len) })
            }
            Owner::Mapped { .. } | Owner::Foreign { writable: false, .. } => None,
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }
    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }
    /// Address of the first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.0.ptr.as_ptr()
    }
    /// Whether both are handles of the same bytes.
    pub fn ptr_eq(&self, other: &Storage) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
    /// Whether [`bytes_mut`](Self::bytes_mut) would succeed.
    pub fn is_unique(&mut self) -> bool {
        self.bytes_mut().is_some()
    }
    /// Whether the bytes are a mapped file.
    pub fn is_mapped(&self) -> bool {
        matches!(self.0.owner, Owner::Mapped { .. })
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.0.owner {
            Owner::Owned => "owned",
            Owner::Mapped { .. } => "mapped",
            Owner::Foreign { .. } => "foreign",
        };
        write!(f, "Storage({kind}, {} bytes)", self.0.len)
    }
}
