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

/// Copies every element of `sizes` from one region to another, along the dimension in which the target's elements are nearest to each
/// other.
///
/// # Safety
/// All elements that sizes and strides address must be readable and writable; the regions do not overlap.
pub(crate) unsafe fn copy_strided(size: usize, sizes: &[i64], from: Region<'_>, to: Region<'_>) {
    if sizes.contains(&0) {
        return;
    }
    let mut dims: Vec<usize> = (0..sizes.len()).filter(|d| sizes[*d] > 1).collect();
    dims.sort_by_key(|d| std::cmp::Reverse((to.strides[*d].abs(), from.strides[*d].abs())));
    let Some((&last, outer)) = dims.split_last() else {
        // SAFETY: one element each, by the caller's promise.
        return unsafe { std::ptr::copy_nonoverlapping(from.ptr, to.ptr, size) };
    };
    let row = Row {
        len: sizes[last] as usize,
        from: from.strides[last] as isize * size as isize,
        to: to.strides[last] as isize * size as isize,
    };
    let mut index = vec![0i64; outer.len()];
    loop {
        let offset = |strides: &[i64]| {
            outer.iter().zip(&index).map(|(d, i)| strides[*d] * i).sum::<i64>() as isize * size as isize
        };
        // SAFETY: the row is inside of the sizes.
        unsafe { row.copy(size, from.ptr.offset(offset(from.strides)), to.ptr.offset(offset(to.strides))) };
        let Some(at) = (0..outer.len()).rev().find(|&at| index[at] + 1 < sizes[outer[at]]) else { return };
        index[at] += 1;
        index[at + 1..].fill(0);
    }
}

/// Elements at one distance each, in bytes.
struct Row {
    len: usize,
    from: isize,
    to: isize,
}

impl Row {
    /// # Safety
    /// As for [`copy_strided`].
    unsafe fn copy(&self, size: usize, from: *const u8, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.from == size as isize && self.to == size as isize {
                return std::ptr::copy_nonoverlapping(from, to, self.len * size);
            }
            match size {
                1 => self.elements::<1>(from, to),
                2 => self.elements::<2>(from, to),
                4 => self.elements::<4>(from, to),
                8 => self.elements::<8>(from, to),
                _ => {
                    for i in 0..self.len as isize {
                        std::ptr::copy_nonoverlapping(
                            from.offset(i * self.from),
                            to.offset(i * self.to),
                            size,
                        );
                    }
                }
            }
        }
    }

    /// # Safety
    /// As for [`copy_strided`].
    unsafe fn elements<const SIZE: usize>(&self, from: *const u8, to: *mut u8) {
        for i in 0..self.len as isize {
            // SAFETY: the caller's promise; arrays of bytes need no alignment.
            unsafe {
                let value = from.offset(i * self.from).cast::<[u8; SIZE]>().read();
                to.offset(i * self.to).cast::<[u8; SIZE]>().write(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element arrives at its place, for each size of an element and for dimensions in any order, with gaps, repeated and backwards.
    #[test]
    fn elements_keep_their_index() {
        let cases: [(&[i64], &[i64], &[i64]); 6] = [
            (&[], &[], &[]),
            (&[3, 4, 5], &[20, 5, 1], &[20, 5, 1]),
            (&[2, 3, 4, 8], &[120, 8, 24, 1], &[96, 32, 8, 1]),
            (&[6, 7], &[1, 6], &[7, 1]),
            (&[4, 1, 3], &[0, 9, 2], &[3, 3, 1]),
            (&[2, 5], &[5, -1], &[1, 2]),
        ];
        for (sizes, from, to) in cases {
            for size in [1usize, 2, 4, 8, 16] {
                let bytes: Vec<u8> = (0..400 * size).map(|i| (i * 7 % 251) as u8).collect();
                let mut copy = vec![0u8; 400 * size];
                let start = 100 * size;
                let source = Region { ptr: bytes[start..].as_ptr().cast_mut(), strides: from };
                let target = Region { ptr: copy[start..].as_mut_ptr(), strides: to };
                // SAFETY: all elements lie within 100 before and 300 after the regions' first ones.
                unsafe { copy_strided(size, sizes, source, target) };
                let count: i64 = sizes.iter().product();
                for number in 0..count {
                    let (mut rest, mut f, mut t) = (number, 100, 100);
                    for d in (0..sizes.len()).rev() {
                        let i = rest % sizes[d];
                        rest /= sizes[d];
                        (f, t) = (f + i * from[d], t + i * to[d]);
                    }
                    let (f, t) = (f as usize * size, t as usize * size);
                    assert_eq!(bytes[f..f + size], copy[t..t + size], "{sizes:?} {from:?} {to:?} {size}");
                }
            }
        }
    }
}
