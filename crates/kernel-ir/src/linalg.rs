//! The matrix routines that a program may call: names, options, number of operands. Each variant documents what it computes
//! (`*` is the batch, the same for every operand; `k = min(m, n)`); conventions are LAPACK's. The implementations are in
//! `linalg`.

use serde::{Deserialize, Serialize};

/// A matrix routine. `info` and pivots are `i32`, pivots count from 1; eigenvalues of Hermitian matrices, singular values
/// and tolerances are real.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinalgOp {
    /// `a [*, n, n]` → factor `[*, n, n]`, info `[*]`; reads and gives one triangle, the other is zero.
    Cholesky {
        /// The upper triangle.
        upper: bool,
        /// A matrix that is not positive definite is an error of the call.
        check: bool,
    },
    /// `a [*, m, n]` → factors `[*, m, n]`, pivots `[*, k]`, info `[*]`.
    Lu {
        /// With row exchanges.
        pivot: bool,
        /// A zero on the diagonal of `U` is an error of the call.
        check: bool,
    },
    /// `a [*, n, n]`, `b [*, n, r]` → `a⁻¹ b`, factors `[*, n, n]` and pivots `[*, n]` of `a`, info `[*]`.
    Solve {
        /// A singular matrix is an error of the call.
        check: bool,
    },
    /// `a [*, n, n]`, `b [*, n, r]` → `a⁻¹ b`; one triangle of `a` is read.
    SolveTriangular {
        /// The upper triangle.
        upper: bool,
        /// The diagonal counts as ones.
        unitriangular: bool,
    },
    /// factors `a [*, n, n]` as `Cholesky` gives them, `b [*, n, r]` → `x` with `a aᴴ x = b`, `aᴴ a x = b` where upper.
    CholeskySolve {
        /// The upper triangle.
        upper: bool,
    },
    /// `a [*, m, n]` → `R` and reflections `[*, m, n]`, their factors `[*, k]`.
    Geqrf,
    /// `a [*, m, n]` → `Q [*, m, k]`, `R [*, k, n]`; with `k = m` where complete.
    Qr {
        /// `Q` is square.
        complete: bool,
    },
    /// `a [*, n, n]` → eigenvalues `[*, n]` ascending, eigenvectors `[*, n, n]`; one triangle is read.
    Eigh {
        /// The upper triangle.
        upper: bool,
    },
    /// `a [*, n, n]` → eigenvalues `[*, n]`, eigenvectors `[*, n, n]`, both complex.
    Eig,
    /// `a [*, m, n]` → `U [*, m, k]`, `S [*, k]` descending, `Vh [*, k, n]`; square `U` and `Vh` where full.
    Svd {
        /// `U` and `Vh` are square.
        full: bool,
    },
    /// `a [*, n, n]` → factors `[*, n, n]`, pivots `[*, n]`, info `[*]`; the lower triangle is read.
    LdlFactor {
        /// Hermitian rather than symmetric.
        hermitian: bool,
        /// A zero block is an error of the call.
        check: bool,
    },
    /// factors `[*, n, n]`, pivots `[*, n]`, `b [*, n, r]` → `a⁻¹ b`.
    LdlSolve {
        /// Hermitian rather than symmetric.
        hermitian: bool,
    },
    /// `a [*, m, n]`, `atol [*]`, `rtol [*]` → `[*, n, m]`; singular values up to `max(atol, rtol · largest)` are zero.
    Pinv {
        /// Hermitian; the lower triangle is read.
        hermitian: bool,
    },
    /// `a [*, n, n]` → `[*, n, n]`.
    MatrixExp,
    /// pivots `[*, k]` → `[*, m]`, `i64`: the rows, from 0, in the order into which the exchanges bring them.
    Permutation,
}

impl LinalgOp {
    /// The routine with this name; `option` is called for every option that it has.
    pub fn from_name(name: &str, mut option: impl FnMut(&str) -> bool) -> Option<LinalgOp> {
        let mut is = |name| option(name);
        Some(match name {
            "cholesky" => LinalgOp::Cholesky { upper: is("upper"), check: is("check") },
            "lu" => LinalgOp::Lu { pivot: is("pivot"), check: is("check") },
            "solve" => LinalgOp::Solve { check: is("check") },
            "solve_triangular" => {
                LinalgOp::SolveTriangular { upper: is("upper"), unitriangular: is("unitriangular") }
            }
            "cholesky_solve" => LinalgOp::CholeskySolve { upper: is("upper") },
            "geqrf" => LinalgOp::Geqrf,
            "qr" => LinalgOp::Qr { complete: is("complete") },
            "eigh" => LinalgOp::Eigh { upper: is("upper") },
            "eig" => LinalgOp::Eig,
            "svd" => LinalgOp::Svd { full: is("full") },
            "ldl_factor" => LinalgOp::LdlFactor { hermitian: is("hermitian"), check: is("check") },
            "ldl_solve" => LinalgOp::LdlSolve { hermitian: is("hermitian") },
            "pinv" => LinalgOp::Pinv { hermitian: is("hermitian") },
            "matrix_exp" => LinalgOp::MatrixExp,
            "permutation" => LinalgOp::Permutation,
            _ => return None,
        })
    }

    /// The name, followed by the options that are set, in the order in which [`LinalgOp::from_name`] queries them.
    pub fn words(self) -> Vec<&'static str> {
        let list: &[(&'static str, bool)] = match self {
            LinalgOp::Cholesky { upper, check } => &[("cholesky", true), ("upper", upper), ("check", check)],
            LinalgOp::Lu { pivot, check } => &[("lu", true), ("pivot", pivot), ("check", check)],
            LinalgOp::Solve { check } => &[("solve", true), ("check", check)],
            LinalgOp::SolveTriangular { upper, unitriangular } => {
                &[("solve_triangular", true), ("upper", upper), ("unitriangular", unitriangular)]
            }
            LinalgOp::CholeskySolve { upper } => &[("cholesky_solve", true), ("upper", upper)],
            LinalgOp::Geqrf => &[("geqrf", true)],
            LinalgOp::Qr { complete } => &[("qr", true), ("complete", complete)],
            LinalgOp::Eigh { upper } => &[("eigh", true), ("upper", upper)],
            LinalgOp::Eig => &[("eig", true)],
            LinalgOp::Svd { full } => &[("svd", true), ("full", full)],
            LinalgOp::LdlFactor { hermitian, check } => {
                &[("ldl_factor", true), ("hermitian", hermitian), ("check", check)]
            }
            LinalgOp::LdlSolve { hermitian } => &[("ldl_solve", true), ("hermitian", hermitian)],
            LinalgOp::Pinv { hermitian } => &[("pinv", true), ("hermitian", hermitian)],
            LinalgOp::MatrixExp => &[("matrix_exp", true)],
            LinalgOp::Permutation => &[("permutation", true)],
        };
        list.iter().filter(|(_, set)| *set).map(|(word, _)| *word).collect()
    }

    /// Number of inputs and of outputs.
    pub fn arity(self) -> (usize, usize) {
        match self {
            LinalgOp::Cholesky { .. } | LinalgOp::Geqrf | LinalgOp::Qr { .. } => (1, 2),
            LinalgOp::Eigh { .. } | LinalgOp::Eig => (1, 2),
            LinalgOp::Lu { .. } | LinalgOp::Svd { .. } | LinalgOp::LdlFactor { .. } => (1, 3),
            LinalgOp::Solve { .. } => (2, 4),
            LinalgOp::SolveTriangular { .. } | LinalgOp::CholeskySolve { .. } => (2, 1),
            LinalgOp::LdlSolve { .. } | LinalgOp::Pinv { .. } => (3, 1),
            LinalgOp::MatrixExp | LinalgOp::Permutation => (1, 1),
        }
    }

    /// Which inputs are matrices of the routine's numbers, complex where the call is; the others are real or integers.
    pub fn complex_inputs(self) -> &'static [bool] {
        match self {
            LinalgOp::Solve { .. } => &[true, true],
            LinalgOp::SolveTriangular { .. } | LinalgOp::CholeskySolve { .. } => &[true, true],
            LinalgOp::LdlSolve { .. } => &[true, false, true],
            LinalgOp::Pinv { .. } => &[true, false, false],
            LinalgOp::Permutation => &[false],
            _ => &[true],
        }
    }

    /// Which outputs are complex, given whether the inputs are.
    pub fn complex_outputs(self, complex: bool) -> Vec<bool> {
        match self {
            LinalgOp::Eig => vec![true, true],
            LinalgOp::Cholesky { .. } => vec![complex, false],
            LinalgOp::Lu { .. } | LinalgOp::LdlFactor { .. } => vec![complex, false, false],
            LinalgOp::Solve { .. } => vec![complex, complex, false, false],
            LinalgOp::Geqrf | LinalgOp::Qr { .. } => vec![complex, complex],
            LinalgOp::Eigh { .. } => vec![false, complex],
            LinalgOp::Svd { .. } => vec![complex, false, complex],
            LinalgOp::SolveTriangular { .. }
            | LinalgOp::CholeskySolve { .. }
            | LinalgOp::LdlSolve { .. }
            | LinalgOp::Pinv { .. }
            | LinalgOp::MatrixExp => vec![complex],
            LinalgOp::Permutation => vec![false],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_every_routine_and_its_options() {
        let names = "cholesky cholesky_solve lu solve solve_triangular geqrf qr eigh eig svd ldl_factor ldl_solve pinv matrix_exp permutation";
        for name in names.split(' ') {
            for set in [false, true] {
                let op = LinalgOp::from_name(name, |_| set).unwrap();
                let words = op.words();
                assert_eq!(words[0], name);
                assert_eq!(LinalgOp::from_name(name, |o| words.contains(&o)), Some(op));
                assert_eq!(op.arity(), (op.complex_inputs().len(), op.complex_outputs(true).len()));
            }
        }
        assert_eq!(LinalgOp::from_name("sort", |_| true), None);
    }
}
