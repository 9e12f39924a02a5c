//! Copies between pageable host memory and the device through pinned memory, in pieces: the device copies one piece while the
//! host fills or empties another.

use std::ffi::c_void;

use cudarc::driver::sys;
use gpu_runtime::GpuError;
use rayon::prelude::*;

use crate::driver::error;
use crate::events::Event;

/// Bytes of a piece.
const PIECE: usize = 8 << 20;
/// Pieces under way at once.
const PIECES: usize = 3;
/// Bytes that one thread copies at once: one core alone is slower than the bus.
const SHARE: usize = 1 << 20;
/// Below this the driver's own way is as fast.
pub(crate) const SMALL: usize = 64 << 10;

/// Pinned memory.
pub(crate) struct Staging {
    pieces: [Piece; PIECES],
    next: usize,
}

struct Piece {
    memory: *mut u8,
    /// When the device is done with it.
    done: Event,
}

// SAFETY: the memory is this value's own; whoever uses it has it exclusively.
unsafe impl Send for Staging {}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: allocated in `Piece::new`; the driver waits for copies from it.
        let _ = unsafe { sys::cuMemFreeHost(self.memory.cast::<c_void>()) };
    }
}

impl Piece {
    fn new() -> Result<Piece, GpuError> {
        let mut memory = std::ptr::null_mut();
        // SAFETY: the address is written to a local.
        unsafe { sys::cuMemHostAlloc(&mut memory, PIECE, 0) }.result().map_err(error("cuMemHostAlloc"))?;
        // Owned first: where there is no event the memory is freed.
        Ok(Piece { memory: memory.cast::<u8>(), done: Event::new(false)? })
    }
}

impl Staging {
    /// Takes the memory; the context is current.
    pub(crate) fn new() -> Result<Staging, GpuError> {
        Ok(Staging { pieces: [Piece::new()?, Piece::new()?, Piece::new()?], next: 0 })
    }

    /// Copies to the device; the host memory may be reused when this returns.
    ///
    /// # Safety
    /// `from` is readable and `to` is device memory for as many bytes.
    pub(crate) unsafe fn upload(
        &mut self,
        stream: sys::CUstream,
        to: u64,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        let source = unsafe { std::slice::from_raw_parts(from, bytes) };
        for (n, part) in source.chunks(PIECE).enumerate() {
            let piece = &self.pieces[self.next];
            self.next = (self.next + 1) % PIECES;
            piece.done.wait()?;
            // SAFETY: the piece is as long, and the device is done with it.
            let pinned = unsafe { std::slice::from_raw_parts_mut(piece.memory, part.len()) };
            pinned.par_chunks_mut(SHARE).zip(part.par_chunks(SHARE)).for_each(|(a, b)| a.copy_from_slice(b));
            // SAFETY: pinned memory that is not touched until the event, and the caller's promise.
            unsafe {
                let at = to + (n * PIECE) as u64;
                sys::cuMemcpyHtoDAsync_v2(at, pinned.as_ptr().cast::<c_void>(), part.len(), stream)
            }
            .result()
            .map_err(error("cuMemcpyHtoDAsync"))?;
            piece.done.record(stream)?;
        }
        Ok(())
    }

    /// Copies to the host, after all work of the stream so far.
    ///
    /// # Safety
    /// `to` is writable and `from` is device memory for as many bytes.
    pub(crate) unsafe fn download(
        &mut self,
        stream: sys::CUstream,
        to: *mut u8,
        from: u64,
        bytes: usize,
    ) -> Result<(), GpuError> {
        // SAFETY: the caller's promise.
        let target = unsafe { std::slice::from_raw_parts_mut(to, bytes) };
        let parts = bytes.div_ceil(PIECE);
        let start = |n: usize| -> Result<(), GpuError> {
            let piece = &self.pieces[n % PIECES];
            piece.done.wait()?;
            let length = (bytes - n * PIECE).min(PIECE);
            // SAFETY: pinned memory that nobody touches until the event, and the caller's promise.
            unsafe {
                let at = from + (n * PIECE) as u64;
                sys::cuMemcpyDtoHAsync_v2(piece.memory.cast::<c_void>(), at, length, stream)
            }
            .result()
            .map_err(error("cuMemcpyDtoHAsync"))?;
            piece.done.record(stream)
        };
        (0..parts.min(PIECES)).try_for_each(start)?;
        for (n, part) in target.chunks_mut(PIECE).enumerate() {
            let piece = &self.pieces[n % PIECES];
            piece.done.wait()?;
            // SAFETY: the piece is as long, and the device has written it.
            let pinned = unsafe { std::slice::from_raw_parts(piece.memory, part.len()) };
            part.par_chunks_mut(SHARE).zip(pinned.par_chunks(SHARE)).for_each(|(a, b)| a.copy_from_slice(b));
            if n + PIECES < parts {
                start(n + PIECES)?;
            }
        }
        self.next = 0;
        Ok(())
    }
}
