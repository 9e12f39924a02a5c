//! Matrix routines on the executor's memory; `linalg::host` implements them.

use ir_core::SymExpr;
use linalg::host::{MatrixRoutine, Memory};

use super::{Call, ExecError};

impl Memory for Call<'_> {
    fn address(&self, root: usize) -> *mut u8 {
        self.buffers.0[root]
    }
    fn size(&self, e: &SymExpr) -> Option<i64> {
        self.sizes.eval(e).ok()
    }
}

/// Runs a routine.
pub(super) fn run(routine: &MatrixRoutine, call: &Call<'_>) -> Result<(), ExecError> {
    // SAFETY: every buffer of the call is in host memory as large as its sizes require.
    Ok(unsafe { routine.run(call) }?)
}
