//! Thread-local scratch: buffers that grow to the largest need and are reused, so that the steady state allocates nothing.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;

/// Cache lines: no vector load of an aligned row crosses one.
const ALIGN: usize = 64;

/// Uninitialised f32s at a cache-line boundary.
pub(crate) struct AlignedBuf {
    ptr: *mut f32,
    len: usize,
}

// SAFETY: the buffer owns its memory; there is no interior sharing.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access is reads through raw pointers, under the readers' own promises.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// `len` values, uninitialised.
    pub(crate) fn new(len: usize) -> AlignedBuf {
        if len == 0 {
            return AlignedBuf { ptr: std::ptr::dangling_mut(), len: 0 };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout has a size above 0.
        let ptr = unsafe { alloc(layout) }.cast::<f32>();
        if ptr.is_null() {
            handle_alloc_error(layout);
        }
        AlignedBuf { ptr, len }
    }

    /// `len` zeros.
    pub(crate) fn zeroed(len: usize) -> AlignedBuf {
        let buf = AlignedBuf::new(len);
        // SAFETY: the buffer is `len` values long.
        unsafe { buf.ptr.write_bytes(0, len) };
        buf
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
        if self.len > 0 {
            // SAFETY: allocated in `new` with the same layout.
            unsafe { dealloc(self.ptr.cast(), Self::layout(self.len)) };
        }
    }
}

thread_local! {
    static FREE: RefCell<Vec<AlignedBuf>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` with at least `len` uninitialised values of this thread's own, 64-byte aligned. Nests: an inner call gets
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
