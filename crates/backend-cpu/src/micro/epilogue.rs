//! The epilogue of a value of C between its accumulator and memory, and the caller's hook on finished blocks. The kernels
//! apply [`Epilogue`]'s arithmetic in registers; the driver calls the [`Hook`].

use std::ffi::c_void;

use super::MicroError;
use super::error::same;

/// The last step of the built-in epilogue. NaN stays NaN, as in PyTorch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Activation {
    /// `v`
    #[default]
    None,
    /// `max(v, 0)`
    Relu,
    /// `min(max(v, lo), hi)`; ReLU6 is `Clamp(0.0, 6.0)`, hardtanh `Clamp(-1.0, 1.0)`.
    Clamp(f32, f32),
}

impl Activation {
    /// The clamp bounds, and whether there is anything to do.
    pub(crate) fn bounds(self) -> Option<(f32, f32)> {
        match self {
            Activation::None => None,
            Activation::Relu => Some((0.0, f32::INFINITY)),
            Activation::Clamp(lo, hi) => Some((lo, hi)),
        }
    }
}

/// A second operand added before the activation: element `(m, n)` of batch entry `b` (image `b` of a convolution) is at
/// `ptr + b * batch_stride + m * row_stride + n`. Columns are contiguous.
#[derive(Debug, Clone, Copy)]
pub struct Residual {
    /// Element (0, 0) of batch entry 0. May be C itself, element for element (in place), but not overlap it otherwise.
    pub ptr: *const f32,
    /// Elements between rows.
    pub row_stride: usize,
    /// Elements between batch entries (ignored where the call has no batch).
    pub batch_stride: usize,
}

/// A finished block of C: rows `row0..row1`, columns `col0..col1` of batch entry `batch`. The hook may read and overwrite it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EpilogueBlock {
    /// Flat batch index: row-major over the call's batch dimensions; the image index of a convolution.
    pub batch: usize,
    /// First row in C.
    pub row0: usize,
    /// One past the last row.
    pub row1: usize,
    /// First column in C.
    pub col0: usize,
    /// One past the last column.
    pub col1: usize,
    /// Element `(row0, col0)`, not element (0, 0).
    pub ptr: *mut f32,
    /// Elements between rows of the block; columns are contiguous.
    pub row_stride: usize,
}

/// The caller's code on finished blocks. Runs on several threads at once, on disjoint blocks.
#[derive(Clone, Copy)]
pub enum Hook<'a> {
    /// A Rust closure.
    Closure(&'a (dyn Fn(&EpilogueBlock) + Sync)),
    /// Generated code: called as `f(&block, ctx)`. Must not unwind.
    Raw {
        /// The function.
        f: unsafe extern "C" fn(*const EpilogueBlock, *const c_void),
        /// Passed through unchanged; must be usable from several threads at once.
        ctx: *const c_void,
    },
}

// SAFETY: by the contract of a raw hook its context is usable from several threads; closures are `Sync` by type.
unsafe impl Send for Hook<'_> {}
// SAFETY: by the contract of a raw hook its context is usable from several threads; closures are `Sync` by type.
unsafe impl Sync for Hook<'_> {}

impl Hook<'_> {
    /// Runs the hook on one block.
    ///
    /// # Safety
    /// `block` describes memory that this thread alone may write; a raw hook keeps its promises.
    pub(crate) unsafe fn call(&self, block: &EpilogueBlock) {
        match self {
            Hook::Closure(f) => f(block),
            // SAFETY: the caller of the template guarantees `f` and `ctx` by passing them.
            Hook::Raw { f, ctx } => unsafe { f(block, *ctx) },
        }
    }
}

/// The blocks that a hook reads and writes memory best for. They may have any form all the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Blocks {
    /// Neighbouring columns are neighbours in its memory.
    #[default]
    Wide,
    /// Neighbouring rows are.
    Tall,
    /// And so are the last row of a batch entry and the first row of the next one: a block's rows may go on in the entries after
    /// its own.
    Joined,
}

/// `v = act(v * scale[n] + shift[n] + residual[m, n])`, each part optional, then the hook.
#[derive(Clone, Copy, Default)]
pub struct Epilogue<'a> {
    /// One factor for each column (`[N]`).
    pub scale: Option<&'a [f32]>,
    /// One summand for each column (`[N]`): a bias, or a folded batch norm's shift.
    pub shift: Option<&'a [f32]>,
    /// Added after the shift.
    pub residual: Option<Residual>,
    /// Applied last.
    pub activation: Activation,
    /// Run on each finished block.
    pub hook: Option<Hook<'a>>,
    /// The form of the hook's blocks.
    pub blocks: Blocks,
}

// SAFETY: the raw pointers are read (residual) or passed on (hook context) only under the promises of the unsafe entry
// points, which state that they are usable from several threads.
unsafe impl Send for Epilogue<'_> {}
// SAFETY: the raw pointers are read (residual) or passed on (hook context) only under the promises of the unsafe entry points,
// which state that they are usable from several threads.
unsafe impl Sync for Epilogue<'_> {}

impl Epilogue<'_> {
    /// # Errors
    /// [`MicroError::Mismatch`] if a per-column operand is not `[n]` long.
    pub(crate) fn check(&self, n: usize) -> Result<(), MicroError> {
        if let Some(s) = self.scale {
            same("epilogue scale, columns", n, s.len())?;
        }
        if let Some(s) = self.shift {
            same("epilogue shift, columns", n, s.len())?;
        }
        Ok(())
    }

    /// Whether the kernels have arithmetic to apply before the store.
    pub(crate) fn in_registers(&self) -> bool {
        self.scale.is_some()
            || self.shift.is_some()
            || self.residual.is_some()
            || self.activation != Activation::None
    }
}

/// The destination of C.
#[derive(Debug, Clone, Copy)]
pub enum COut {
    /// Element `(m, n)` at `ptr + m * row_stride + n`.
    Memory {
        /// Element (0, 0).
        ptr: *mut f32,
        /// Elements between rows, `>= N` unless there is one row.
        row_stride: usize,
    },
    /// No destination: blocks are in thread-local scratch and only the hook (required) reads them.
    Scratch,
}

// SAFETY: only dereferenced under the promises of the unsafe entry points.
unsafe impl Send for COut {}
// SAFETY: only dereferenced under the promises of the unsafe entry points.
unsafe impl Sync for COut {}
