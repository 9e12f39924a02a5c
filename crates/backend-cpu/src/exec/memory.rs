//! Host memory of the executor: 64-byte aligned blocks, and the pool of arenas that concurrent calls draw from.

use std::alloc::{Layout, alloc, dealloc};
use std::sync::{Mutex, PoisonError};

use super::ExecError;

/// Alignment of every block in bytes: one cache line, one 512-bit vector.
const ALIGN: usize = 64;

/// Uninitialised bytes at a cache-line boundary; never empty, so that its pointer can always be read.
pub(crate) struct Block {
    ptr: *mut u8,
    layout: Layout,
}

// SAFETY: plain memory with one owner; sharing is through raw pointers under the guarantees of their users.
unsafe impl Send for Block {}
// SAFETY: plain memory with one owner; sharing is through raw pointers under the guarantees of their users.
unsafe impl Sync for Block {}

impl Block {
    /// At least `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> Result<Block, ExecError> {
        let room = bytes.max(1).checked_next_multiple_of(ALIGN).ok_or(ExecError::OutOfMemory(bytes))?;
        let layout = Layout::from_size_align(room, ALIGN).ok().filter(|_| ir_core::can_allocate(room));
        let layout = layout.ok_or(ExecError::OutOfMemory(bytes))?;
        // SAFETY: the size is not zero.
        let ptr = unsafe { alloc(layout) };
        if ptr.is_null() {
            return Err(ExecError::OutOfMemory(bytes));
        }
        Ok(Block { ptr, layout })
    }
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr
    }
    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.ptr, self.layout) }
    }
}

/// Arenas that no call uses at the moment.
#[derive(Default)]
pub(crate) struct Arenas {
    free: Mutex<Vec<Block>>,
}

impl Arenas {
    /// An arena of at least `bytes`, none for 0: a free one that is large enough, or a new one (then a smaller free one is dropped).
    pub(crate) fn take(&self, bytes: usize) -> Result<Option<Block>, ExecError> {
        if bytes == 0 {
            return Ok(None);
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = free.iter().position(|b| b.len() >= bytes) {
            return Ok(Some(free.swap_remove(at)));
        }
        free.pop();
        drop(free);
        Block::new(bytes).map(Some)
    }
    /// Returns an arena to the pool.
    pub(crate) fn give(&self, block: Block) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(block);
    }
}

/// A strided region of a block of memory, in elements of `size` bytes.
#[derive(Clone, Copy)]
pub(crate) struct Region<'a> {
    pub(crate) ptr: *mut u8,
    pub(crate) strides: &'a [i64],
}

/// Copies every element of `sizes` from one region to another.
///
/// # Safety
/// All elements that sizes and strides address must be readable and writable; the regions do not overlap.
pub(crate) unsafe fn copy_strided(size: usize, sizes: &[i64], from: Region<'_>, to: Region<'_>) {
    if sizes.contains(&0) {
        return;
    }
    let Some((&last, outer)) = sizes.split_last() else {
        // SAFETY: one element each, by the caller's promise.
        return unsafe { std::ptr::copy_nonoverlapping(from.ptr, to.ptr, size) };
    };
    let rank = outer.len();
    let mut index = vec![0i64; rank];
    loop {
        let offset = |strides: &[i64]| index.iter().zip(strides).map(|(i, s)| i * s).sum::<i64>() as isize;
        let (f, t) = (offset(from.strides), offset(to.strides));
        let (fs, ts) = (from.strides[rank] as isize, to.strides[rank] as isize);
        for i in 0..last as isize {
            // SAFETY: the index is inside of the sizes.
            unsafe {
                let source = from.ptr.offset((f + i * fs) * size as isize);
                let target = to.ptr.offset((t + i * ts) * size as isize);
                std::ptr::copy_nonoverlapping(source, target, size);
            }
        }
        let Some(d) = (0..rank).rev().find(|&d| index[d] + 1 < outer[d]) else { return };
        index[d] += 1;
        index[d + 1..].fill(0);
    }
}
