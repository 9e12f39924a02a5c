//! Copies between pageable host memory and the device through page-locked memory, in pieces: the device copies one piece while the
//! host fills or empties another.

use std::ptr::NonNull;
use std::sync::Arc;

use rayon::prelude::*;

use super::Calls;
use super::events::Event;
use crate::GpuError;

/// Bytes of a piece.
const PIECE: usize = 8 << 20;
/// Pieces under way at once.
const PIECES: usize = 3;
/// Bytes that one thread copies at once: one core alone is slower than the bus.
const SHARE: usize = 1 << 20;

/// Page-locked memory.
pub(super) struct Staging<C: Calls> {
    calls: Arc<C>,
    pieces: [Piece<C>; PIECES],
    next: usize,
}

struct Piece<C: Calls> {
    calls: Arc<C>,
    memory: NonNull<u8>,
    /// When the device is done with it.
    done: Event<C>,
}

// SAFETY: the memory is this value's own; whoever uses it has it exclusively.
unsafe impl<C: Calls> Send for Staging<C> {}

impl<C: Calls> Drop for Piece<C> {
    fn drop(&mut self) {
        // Copies from and to it were waited for, or the driver waits for them.
        self.calls.free_pinned(self.memory);
    }
}

impl<C: Calls> Piece<C> {
    fn new(calls: &Arc<C>) -> Result<Piece<C>, GpuError> {
        let done = Event::new(calls, false)?;
        let memory = calls.allocate_pinned(PIECE, false)?.host;
        Ok(Piece { calls: Arc::clone(calls), memory, done })
    }
}

impl<C: Calls> Staging<C> {
    /// Takes the memory; the device is current.
    pub(super) fn new(calls: &Arc<C>) -> Result<Staging<C>, GpuError> {
        let pieces = [Piece::new(calls)?, Piece::new(calls)?, Piece::new(calls)?];
        Ok(Staging { calls: Arc::clone(calls), pieces, next: 0 })
    }

    /// Copies to the device; the host memory may be reused when this returns.
    ///
    /// # Safety
    /// `from` is readable and `to` is device memory for as many bytes.
    pub(super) unsafe fn upload(&mut self, to: u64, from: *const u8, bytes: usize) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        let source = unsafe { std::slice::from_raw_parts(from, bytes) };
        for (n, part) in source.chunks(PIECE).enumerate() {
            let piece = &self.pieces[self.next];
            self.next = (self.next + 1) % PIECES;
            piece.done.wait()?;
            // SAFETY: the piece is as long, and the device is done with it.
            let pinned = unsafe { std::slice::from_raw_parts_mut(piece.memory.as_ptr(), part.len()) };
            pinned.par_chunks_mut(SHARE).zip(part.par_chunks(SHARE)).for_each(|(a, b)| a.copy_from_slice(b));
            // SAFETY: page-locked memory that is not touched until the event, and the caller's promise.
            unsafe { self.calls.copy_in(to + (n * PIECE) as u64, pinned.as_ptr(), part.len())? };
            piece.done.record(self.calls.stream())?;
        }
        Ok(())
    }

    /// Copies to the host, after all work of the stream so far.
    ///
    /// # Safety
    /// `to` is writable and `from` is device memory for as many bytes.
    pub(super) unsafe fn download(&mut self, to: *mut u8, from: u64, bytes: usize) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        let target = unsafe { std::slice::from_raw_parts_mut(to, bytes) };
        let parts = bytes.div_ceil(PIECE);
        let start = |n: usize| -> Result<(), GpuError> {
            let piece = &self.pieces[n % PIECES];
            piece.done.wait()?;
            let length = (bytes - n * PIECE).min(PIECE);
            // SAFETY: page-locked memory that nobody touches until the event, and the caller's promise.
            unsafe { self.calls.copy_out(piece.memory.as_ptr(), from + (n * PIECE) as u64, length)? };
            piece.done.record(self.calls.stream())
        };
        (0..parts.min(PIECES)).try_for_each(start)?;
        for (n, part) in target.chunks_mut(PIECE).enumerate() {
            let piece = &self.pieces[n % PIECES];
            piece.done.wait()?;
            // SAFETY: the piece is as long, and the device has written it.
            let pinned = unsafe { std::slice::from_raw_parts(piece.memory.as_ptr(), part.len()) };
            part.par_chunks_mut(SHARE).zip(pinned.par_chunks(SHARE)).for_each(|(a, b)| a.copy_from_slice(b));
            if n + PIECES < parts {
                start(n + PIECES)?;
            }
        }
        self.next = 0;
        Ok(())
    }
}
