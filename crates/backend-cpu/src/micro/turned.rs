//! Blocks of a template's result for hooks whose memory runs along rows: transposed in scratch, so that the values of a column are
//! contiguous as they are where the hook stores them.

use super::epilogue::{EpilogueBlock, Hook};
use super::{driver, scratch, transpose};

/// Rows and columns that are transposed at a time: 64 KiB.
const ROWS: usize = 256;
const COLUMNS: usize = 64;

/// The rows that a hook has as columns of its blocks.
#[derive(Debug, Clone, Copy)]
pub struct Lines {
    /// Rows of a batch entry.
    pub rows: usize,
    /// Rows of a line, which is a batch entry of the hook; all of the result where `None`.
    pub line: Option<usize>,
}

impl Lines {
    /// Calls the hook for a block with rows and columns exchanged.
    ///
    /// # Safety
    /// As for [`Hook::call`].
    pub unsafe fn call(&self, hook: &Hook<'_>, block: &EpilogueBlock) {
        let mut row = block.row0;
        while row < block.row1 {
            let number = block.batch * self.rows + row;
            let (line, at) = self.line.map_or((0, number), |len| (number / len, number % len));
            let left = self.line.map_or(ROWS, |len| len - at);
            let rows = (block.row1 - row).min(ROWS).min(left);
            let ptr = block.ptr.wrapping_add((row - block.row0) * block.row_stride);
            let (row0, row1) = (at, at + rows);
            // SAFETY: the caller's promise.
            unsafe { turned(hook, &EpilogueBlock { batch: line, row0, row1, ptr, ..*block }) };
            row += rows;
        }
    }
}

unsafe fn turned(hook: &Hook<'_>, block: &EpilogueBlock) {
    let rows = block.row1 - block.row0;
    let ld = driver::odd_lines(rows);
    for col in (block.col0..block.col1).step_by(COLUMNS) {
        let cols = (block.col1 - col).min(COLUMNS);
        let ptr = block.ptr.wrapping_add(col - block.col0).cast_const();
        let source = transpose::Source { ptr, row: 1, col: block.row_stride as isize };
        scratch::with(cols * ld, |buf| {
            let turned = EpilogueBlock {
                batch: block.batch,
                row0: col,
                row1: col + cols,
                col0: block.row0,
                col1: block.row1,
                ptr: buf,
                row_stride: ld,
            };
            // SAFETY: the caller's promise; the scratch holds the block.
            unsafe {
                transpose::copy(source, cols, rows, buf, ld);
                hook.call(&turned);
            }
        });
    }
}
