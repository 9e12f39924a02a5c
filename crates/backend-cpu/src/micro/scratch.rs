//! Thread-local scratch: buffers that grow to the largest need and are reused, so that the steady state allocates nothing.
//! Also the memory of packed weights.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::sync::Arc;

use memmap2::{Mmap, MmapMut};

/// Alignment to cache lines: no vector load of an aligned row crosses one.
const ALIGN: usize = 64;

/// Zeroed memory of this many bytes and more is requested from the system in huge pages: otherwise packing a gigabyte of
/// weights would mostly consist of page faults of 4 KiB each.
const HUGE: usize = 4 << 20;

/// Uninitialised f32s at a cache-line boundary.
pub(crate) struct AlignedBuf {
    ptr: *mut f32,
    len: usize,
    /// Owns the memory, where that is a map.
    map: Option<Owner>,
}

/// The owner of a mapping.
enum Owner {
    /// The buffer.
    Own { _map: MmapMut },
    /// A part of a file, which is only read.
    File { _map: Arc<Mmap> },
    /// Whoever lent the memory.
    Lender,
}

// SAFETY: the buffer owns its memory; there is no interior sharing.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access is reads through raw pointers, under the guarantees of the readers.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// `len` values, uninitialised.
    pub(crate) fn new(len: usize) -> AlignedBuf {
        if len == 0 {
            return AlignedBuf { ptr: std::ptr::dangling_mut(), len: 0, map: None };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout has a size above 0.
        let ptr = unsafe { alloc(layout) }.cast::<f32>();
        if ptr.is_null() {
            handle_alloc_error(layout);
        }
        AlignedBuf { ptr, len, map: None }
    }

    /// `len` zeros.
    pub(crate) fn zeroed(len: usize) -> AlignedBuf {
        if len == 0 {
            return AlignedBuf::new(0);
        }
        if len.saturating_mul(size_of::<f32>()) >= HUGE
            && let Some(buf) = AlignedBuf::mapped(len)
        {
            return buf;
        }
        let layout = Self::layout(len);
        // SAFETY: the layout has a size above 0.
        let ptr = unsafe { alloc_zeroed(layout) }.cast::<f32>();
        if ptr.is_null() {
            handle_alloc_error(layout);
        }
        AlignedBuf { ptr, len, map: None }
    }

    /// Fresh zeros from the system, at a page boundary; `None` where it refuses.
    fn mapped(len: usize) -> Option<AlignedBuf> {
        let mut map = MmapMut::map_anon(len.checked_mul(size_of::<f32>())?).ok()?;
        // This is only advice: without huge pages the memory is as valid.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Some(AlignedBuf { ptr: map.as_mut_ptr().cast(), len, map: Some(Owner::Own { _map: map }) })
    }

    /// `len` values of a file from byte `at` on, a multiple of 64 inside of it; nothing may write them.
    pub(crate) fn of_file(map: Arc<Mmap>, at: usize, len: usize) -> AlignedBuf {
        let bytes = &map[at..at + len * size_of::<f32>()];
        let ptr = bytes.as_ptr().cast::<f32>().cast_mut();
        AlignedBuf { ptr, len, map: Some(Owner::File { _map: map }) }
    }

    /// Memory that somebody else owns.
    ///
    /// # Safety
    /// It is valid for `len` values for as long as the buffer, and nobody else uses it.
    pub(crate) unsafe fn lent(ptr: *mut f32, len: usize) -> AlignedBuf {
        AlignedBuf { ptr, len, map: Some(Owner::Lender) }
    }

    /// The memory of all values, which must have been set.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        // SAFETY: the buffer owns this many bytes; packing has set them all, and nothing writes a finished pack.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.len * size_of::<f32>()) }
    }

    /// First value.
    pub(crate) fn ptr(&self) -> *mut f32 {
        self.ptr
    }

    /// Values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn layout(len: usize) -> Layout {
        // PROOF: fails only where the bytes exceed isize::MAX, which no allocation could satisfy either.
        Layout::array::<f32>(len)
            .and_then(|l| l.align_to(ALIGN))
            .expect("scratch larger than the address space")
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.len > 0 && self.map.is_none() {
            // SAFETY: allocated in `new` or `zeroed` with the same layout.
            unsafe { dealloc(self.ptr.cast(), Self::layout(self.len)) };
        }
    }
}

thread_local! {
    static FREE: RefCell<Vec<AlignedBuf>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` with at least `len` uninitialised values of thread-local memory, 64-byte aligned. Nests: an inner call gets
/// another buffer.
pub(crate) fn with<R>(len: usize, f: impl FnOnce(*mut f32) -> R) -> R {
    let mut buf = FREE.with_borrow_mut(Vec::pop).unwrap_or_else(|| AlignedBuf::new(0));
    if buf.len() < len {
        buf = AlignedBuf::new(len.next_power_of_two());
    }
    let result = f(buf.ptr());
    FREE.with_borrow_mut(|free| free.push(buf));
    result
}
