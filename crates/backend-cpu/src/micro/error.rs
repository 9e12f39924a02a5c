//! Errors that the templates report before they touch any memory. Invalid pointers are not detected: they are the caller's
//! responsibility.

/// Why a template refused a call. Nothing was read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MicroError {
    /// Two sizes that must agree do not.
    #[error("{what}: expected {expected}, got {got}")]
    Mismatch {
        /// Which size of which operand.
        what: &'static str,
        /// The size that the other operands require.
        expected: usize,
        /// The size that was given.
        got: usize,
    },
    /// A size or parameter has no meaning here (a zero stride, a kernel larger than the padded input, ...).
    #[error("{what} cannot be {value}: {why}")]
    Invalid {
        /// Which parameter.
        what: &'static str,
        /// Its value.
        value: i64,
        /// What is allowed.
        why: &'static str,
    },
    /// The combination is legal but this template does not support it; run the parts separately.
    #[error("unsupported: {0}")]
    Unsupported(&'static str),
    /// The processor lacks the requested instruction set.
    #[error("this processor has no {0:?}")]
    NoIsa(super::Isa),
}

/// `Err(Mismatch)` unless `expected == got`.
pub(crate) fn same(what: &'static str, expected: usize, got: usize) -> Result<(), MicroError> {
    if expected == got {
        return Ok(());
    }
    Err(MicroError::Mismatch { what, expected, got })
}
