//! Why a routine gave no result. The caller adds the operator or kernel.

use thiserror::Error;

/// A routine's refusal; `batch` is the number of the matrix in its batch.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LinalgError {
    /// A Cholesky factorization met a minor that is not positive.
    #[error(
        "(batch element {batch}): the factorization could not be completed because the input is not \
         positive-definite (the leading minor of order {order} is not positive-definite)"
    )]
    NotPositiveDefinite {
        /// Which matrix.
        batch: usize,
        /// Order of the first such minor.
        order: usize,
    },
    /// A system has no unique solution.
    #[error(
        "(batch element {batch}): the solver failed because the input matrix is singular (the diagonal element \
         {pivot} of its factor is zero)"
    )]
    Singular {
        /// Which matrix.
        batch: usize,
        /// Number of the first zero on the factor's diagonal, from 1.
        pivot: usize,
    },
    /// Eigenvalues or singular values of a matrix that holds an infinity or `NaN`.
    #[error(
        "(batch element {batch}): the input matrix contains non-finite values, so the algorithm cannot converge"
    )]
    NotFinite {
        /// Which matrix.
        batch: usize,
    },
    /// An iteration did not end.
    #[error("(batch element {batch}): the algorithm failed to converge; the matrix is ill-conditioned")]
    NoConvergence {
        /// Which matrix.
        batch: usize,
    },
    /// Pivots that no factorization gives.
    #[error("(batch element {batch}): the pivots are out of range: pass those that the factorization gave")]
    Pivots {
        /// Which matrix.
        batch: usize,
    },
    /// Operands of the wrong number, rank or kind: a bug in the caller.
    #[error("operands do not fit the routine: {0}")]
    Malformed(&'static str),
}

impl LinalgError {
    /// The same error about another matrix of the batch.
    pub(crate) fn at(self, number: usize) -> LinalgError {
        match self {
            LinalgError::NotPositiveDefinite { order, .. } => {
                LinalgError::NotPositiveDefinite { batch: number, order }
            }
            LinalgError::Singular { pivot, .. } => LinalgError::Singular { batch: number, pivot },
            LinalgError::NotFinite { .. } => LinalgError::NotFinite { batch: number },
            LinalgError::NoConvergence { .. } => LinalgError::NoConvergence { batch: number },
            LinalgError::Pivots { .. } => LinalgError::Pivots { batch: number },
            other => other,
        }
    }
}
