//! Constants of the elementary functions as 128-bit memory operands.
//!
//! Cranelift hoists vector constants out of loops; a polynomial has more of them than there are registers, so each would be
//! spilled and loaded again by an instruction of its own. A load that may not move stays in the loop and folds into the
//! arithmetic instruction.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Slots; the functions of `math` and `convert` have about 120 different constants.
const SLOTS: usize = 512;

#[repr(align(64))]
struct Table([[AtomicU32; 4]; SLOTS]);

static TABLE: Table = Table([const { [const { AtomicU32::new(0) }; 4] }; SLOTS]);
/// Bits of the slots in use, in order.
static USED: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Address of the table.
pub(super) fn base() -> usize {
    (&raw const TABLE) as usize
}

/// Byte offset of four copies of `bits`; `None` where the table is full.
pub(super) fn offset(bits: u32) -> Option<i32> {
    let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
    let slot = match used.iter().position(|b| *b == bits) {
        Some(slot) => slot,
        None if used.len() == SLOTS => return None,
        None => {
            used.push(bits);
            TABLE.0[used.len() - 1].iter().for_each(|lane| lane.store(bits, Ordering::Release));
            used.len() - 1
        }
    };
    Some(slot as i32 * 16)
}
