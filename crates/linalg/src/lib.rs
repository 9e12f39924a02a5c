//! Dense matrix routines in double precision, real and complex: factorizations, solutions, eigenvalues.
//!
//! One function per routine on one matrix, [`run`], which applies a [`LinalgOp`](kernel_ir::LinalgOp) to a batch given as plain
//! row-major arrays, and [`host`], which does so for a step of a program. Conventions are LAPACK's: `info` codes, pivots
//! counted from 1, Householder vectors below the diagonal. Results that are unique only up to a sign or phase
//! (eigenvectors, singular vectors) are normalised but may differ from LAPACK's.
//! Single-precision operands are computed in double precision and the caller rounds once, so each routine exists twice, not
//! four times. Not here: operators, gradients; strides and dtypes are known to [`host`] alone.
//!
//! ```
//! use linalg::{Mat, eigh};
//!
//! let a = Mat::from_fn(2, 2, |i, j| if i == j { 2.0 } else { 1.0 });
//! let (values, _vectors) = eigh(&a, false)?;
//! assert!((values[0] - 1.0).abs() < 1e-14 && (values[1] - 3.0).abs() < 1e-14);
//! # Ok::<(), linalg::LinalgError>(())
//! ```

mod batch;
mod cholesky;
mod eigen;
mod error;
mod exp;
pub mod host;
mod ldl;
mod lu;
mod number;
mod qr;
mod svd;

pub use batch::{Array, Values, run};
pub use cholesky::cholesky;
pub use eigen::{eig, eigh};
pub use error::LinalgError;
pub use exp::matrix_exp;
pub use ldl::{ldl_factor, ldl_solve};
pub use lu::{lu, permutation, solve_factored, solve_triangular};
pub use number::{Complex, Mat, Number};
pub use qr::{geqrf, qr};
pub use svd::{Svd, pinv, svd};
