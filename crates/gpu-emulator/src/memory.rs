//! Memory of the emulated device: host memory between guard zones. New memory and the zones hold a pattern that is NaN in
//! every float dtype and out of range as an index.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;

use crate::EmulatorError;

/// Bytes of each guard zone; a multiple of the alignment.
const GUARD: usize = 1024;
/// The alignment that the driver guarantees.
const ALIGNMENT: usize = 256;
/// The repeated pattern, little-endian: 0xfff9 is a quiet NaN as f16 and bf16, 0xfff9fff9… as f32 and f64.
const PATTERN: [u8; 2] = [0xf9, 0xff];

/// The live allocations by address.
#[derive(Default)]
pub(crate) struct Memory {
    live: BTreeMap<u64, u64>,
}

fn layout(bytes: u64) -> Option<Layout> {
    let bytes = usize::try_from(bytes).ok()?.checked_next_multiple_of(2)?.checked_add(2 * GUARD)?;
    Layout::from_size_align(bytes, ALIGNMENT).ok()
}

impl Memory {
    /// Allocates memory; `None` where the host has none.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let layout = layout(bytes)?;
        // SAFETY: the layout has a nonzero size.
        let base = unsafe { alloc(layout) };
        if base.is_null() {
            return None;
        }
        // SAFETY: the block was just allocated with this length.
        let all = unsafe { std::slice::from_raw_parts_mut(base.cast::<[u8; 2]>(), layout.size() / 2) };
        all.fill(PATTERN);
        let address = base as u64 + GUARD as u64;
        self.live.insert(address, bytes);
        Some(address)
    }

    pub(crate) fn free(&mut self, address: u64) {
        let Some(layout) = self.live.remove(&address).and_then(layout) else { return };
        // SAFETY: the memory was allocated by `allocate` with this layout and removed from the list, so it is freed once.
        unsafe { dealloc((address as usize - GUARD) as *mut u8, layout) };
    }

    /// Rejects ranges that are not within one live buffer.
    pub(crate) fn check(&self, call: &'static str, address: u64, bytes: u64) -> Result<(), EmulatorError> {
        let found = self.live.range(..=address).next_back();
        match found.filter(|(at, length)| address - *at + bytes <= **length) {
            Some(_) => Ok(()),
            None => Err(EmulatorError::Address { call, address, bytes }),
        }
    }

    /// Checks every guard zone and returns the first damage, which is repaired so that the next launch is not blamed.
    pub(crate) fn damage(&self, kernel: &str) -> Result<(), EmulatorError> {
        for (&address, &bytes) in &self.live {
            let at = address as usize;
            // The zone after a buffer begins at the next even byte: the length may be odd, and the pattern counts from the
            // base.
            let behind = bytes as usize + bytes as usize % 2;
            // SAFETY: both zones belong to the live block, and no kernel runs meanwhile.
            let (before, after) = unsafe {
                (
                    std::slice::from_raw_parts_mut((at - GUARD) as *mut [u8; 2], GUARD / 2),
                    std::slice::from_raw_parts_mut((at + behind) as *mut [u8; 2], GUARD / 2),
                )
            };
            let first = before.iter().rposition(|w| *w != PATTERN).map(|n| ("before", GUARD - 2 * n));
            let last = after.iter().position(|w| *w != PATTERN).map(|n| ("behind", 2 * n + 1));
            if let Some((side, distance)) = first.or(last) {
                before.fill(PATTERN);
                after.fill(PATTERN);
                return Err(EmulatorError::OutOfBounds { kernel: kernel.into(), side, distance, bytes });
            }
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let all: Vec<u64> = self.live.keys().copied().collect();
        all.into_iter().for_each(|address| self.free(address));
    }
}
