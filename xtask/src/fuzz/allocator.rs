//! An allocator that places memory between inaccessible pages, so that compiled code which reads or writes past a tensor
//! ends its process at once instead of corrupting other memory. It is the allocator of this whole program but guards
//! nothing until [`guard_allocations`] is called, which worker processes of the fuzzer do. It is not a sanitizer: accesses
//! within a page before a tensor's first byte are not detected.
//!
//! Guarded blocks come from one large reserved range, each in pages of its own whose last byte is the block's last byte.
//! Freed pages are made inaccessible and their addresses are never used again, so a use after free is seen too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Smaller blocks are the system allocator's: vectors of sizes and names, of which there are too many for a page each.
const SMALLEST: usize = 128;
/// Addresses reserved for guarded blocks; none is used twice, so a process guards this much in its life.
const RESERVED: usize = 1 << 40;
const PAGE: usize = 4096;

/// First address of the reserved range; 0 as long as nothing is guarded.
static BASE: AtomicUsize = AtomicUsize::new(0);
/// Next address of the range that was never used.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, and guarded blocks once that is asked for.
pub(crate) struct Guarded;

/// From now on every larger allocation of this process is followed by an inaccessible page. False if the system reserves no
/// addresses; then nothing changes.
pub(crate) fn guard_allocations() -> bool {
    // SAFETY: a new mapping of no access at an address of the system's choice touches no memory of anyone.
    let base = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(std::ptr::null_mut(), RESERVED, libc::PROT_NONE, flags, -1, 0)
    };
    if base == libc::MAP_FAILED {
        return false;
    }
    NEXT.store(base as usize, Ordering::SeqCst);
    BASE.store(base as usize, Ordering::SeqCst);
    true
}

/// Pages of a block, without the one after it.
fn pages(layout: Layout) -> usize {
    layout.size().next_multiple_of(layout.align()).div_ceil(PAGE)
}

/// A guarded block; `None` if the block is not to be guarded or there is no room.
fn guarded(layout: Layout) -> Option<*mut u8> {
    let base = BASE.load(Ordering::Relaxed);
    if base == 0 || layout.size() < SMALLEST || layout.align() > PAGE {
        return None;
    }
    let bytes = pages(layout).checked_mul(PAGE)?;
    let start = NEXT.fetch_add(bytes.checked_add(PAGE)?, Ordering::Relaxed);
    if start.checked_add(bytes)? >= base + RESERVED {
        return None;
    }
    // SAFETY: the pages lie in the range that was reserved and were handed out to nobody before.
    let opened = unsafe { libc::mprotect(start as *mut _, bytes, libc::PROT_READ | libc::PROT_WRITE) };
    let at = start + bytes - layout.size().next_multiple_of(layout.align());
    (opened == 0).then_some(at as *mut u8)
}

// SAFETY: blocks are those of the system's allocator, or pages that are handed out once, are as long and as aligned as the
// layout says, and are given back to the same place that they came from.
unsafe impl GlobalAlloc for Guarded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match guarded(layout) {
            Some(block) => block,
            // SAFETY: the caller's guarantee about the layout is passed on.
            None => unsafe { System.alloc(layout) },
        }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let base = BASE.load(Ordering::Relaxed);
        let at = block as usize;
        if base == 0 || !(base..base + RESERVED).contains(&at) {
            // SAFETY: a block outside of the range is the system's, of this layout by the caller's promise.
            return unsafe { System.dealloc(block, layout) };
        }
        let bytes = pages(layout) * PAGE;
        let start = at / PAGE * PAGE;
        // SAFETY: the pages were opened for this block alone; nothing uses it any more.
        unsafe {
            libc::madvise(start as *mut _, bytes, libc::MADV_DONTNEED);
            libc::mprotect(start as *mut _, bytes, libc::PROT_NONE);
        }
    }
}

/// Bounds the memory of this process, so that an allocation beyond it fails instead of exhausting the machine.
pub(crate) fn limit_memory(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: the call reads the struct alone. Where it is refused, the limit is not set, and nothing else changes.
    unsafe {
        libc::setrlimit(libc::RLIMIT_DATA, &raw const limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guarded_block_ends_with_its_page_and_is_usable() {
        assert!(guard_allocations());
        let mut block = vec![7u8; 1000];
        let end = block.as_ptr() as usize + 1000;
        assert_eq!(end % PAGE, 0);
        block[999] = 1;
        block.extend_from_slice(&[2; 5000]);
        assert_eq!((block[0], block[999], block[5999]), (7, 1, 2));
    }
}
