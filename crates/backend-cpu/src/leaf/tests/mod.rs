//! Tests of the emitter: its bytes against another decoder, and its loops against Cranelift's.
// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]

mod differential;
mod encoding;
mod encoding_vex;

use std::cell::Cell;

thread_local! {
    static FEW: Cell<bool> = const { Cell::new(false) };
}

/// Whether code of this thread has only a few registers.
pub(super) fn few_registers() -> bool {
    FEW.get()
}
