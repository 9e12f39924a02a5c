//! Singular values, and the pseudoinverse made of them. The decomposition is `faer`'s.

use crate::eigen::check_finite;
use crate::{LinalgError, Mat, Number, eigh};

/// `a = U diag(S) Vh`.
#[derive(Clone, Debug)]
pub struct Svd<T> {
    /// Left singular vectors, columns.
    pub u: Mat<T>,
    /// Singular values, descending.
    pub s: Vec<f64>,
    /// Right singular vectors, conjugated, rows.
    pub vh: Mat<T>,
}

/// Singular value decomposition of `a` `[m, n]` with `k = min(m, n)` values: `U` is `[m, k]` and `Vh` `[k, n]`, or
/// `[m, m]` and `[n, n]` where `full`.
///
/// # Errors
/// Elements that are not finite; no convergence.
pub fn svd<T: Number>(a: &Mat<T>, full: bool) -> Result<Svd<T>, LinalgError> {
    let (m, n) = (a.nrows(), a.ncols());
    if m.min(n) == 0 {
        let part = |size: usize| Mat::<T>::identity(size, if full { size } else { 0 });
        return Ok(Svd { u: part(m), s: Vec::new(), vh: part(n).transpose().to_owned() });
    }
    check_finite(a)?;
    let f = if full { a.svd() } else { a.thin_svd() };
    let f = f.map_err(|_| LinalgError::NoConvergence { batch: 0 })?;
    let s = f.S().column_vector().iter().map(|x| x.re()).collect();
    Ok(Svd { u: f.U().to_owned(), s, vh: f.V().adjoint().to_owned() })
}

/// The Moore–Penrose inverse `[n, m]` of `a` `[m, n]`: singular values up to `max(atol, rtol · largest)` count as zero.
/// Where `hermitian` only the lower triangle is read.
///
/// # Errors
/// Elements that are not finite; no convergence.
pub fn pinv<T: Number>(a: &Mat<T>, atol: f64, rtol: f64, hermitian: bool) -> Result<Mat<T>, LinalgError> {
    let (m, n) = (a.nrows(), a.ncols());
    if m.min(n) == 0 {
        return Ok(Mat::zeros(n, m));
    }
    let (left, values, right) = if hermitian {
        let (values, v) = eigh(a, false)?;
        (v.clone(), values, v)
    } else {
        let f = svd(a, false)?;
        (f.vh.adjoint().to_owned(), f.s, f.u)
    };
    let largest = values.iter().fold(0.0f64, |l, v| l.max(v.abs()));
    let limit = atol.max(rtol * largest);
    let inverse = |x: f64| T::of(if x.abs() > limit { 1.0 / x } else { 0.0 });
    let scaled = Mat::from_fn(n, values.len(), |i, j| left[(i, j)] * inverse(values[j]));
    Ok(&scaled * right.adjoint())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Complex;

    fn sample(m: usize, n: usize) -> Mat<Complex> {
        let part = |i: usize, j: usize| ((i * 31 + j * 17 + i * j) % 23) as f64 / 23.0 - 0.4;
        Mat::from_fn(m, n, |i, j| Complex::new(part(i, j), part(j + 1, i)))
    }

    #[test]
    fn the_parts_multiply_to_the_matrix() {
        for (m, n, full) in [(5, 5, false), (7, 3, false), (7, 3, true), (3, 7, true), (3, 7, false)] {
            let a = sample(m, n);
            let f = svd(&a, full).unwrap();
            assert_eq!((f.u.ncols(), f.vh.nrows()), if full { (m, n) } else { (m.min(n), m.min(n)) });
            assert!(f.s.windows(2).all(|w| w[0] >= w[1]));
            let k = m.min(n);
            let us = Mat::from_fn(m, k, |i, j| f.u[(i, j)] * f.s[j]);
            let back = &us * f.vh.as_ref().subrows(0, k);
            for i in 0..m {
                (0..n).for_each(|j| assert!((back[(i, j)] - a[(i, j)]).size() < 1e-12));
            }
        }
    }

    #[test]
    fn no_elements_have_identities_for_vectors() {
        let f = svd(&Mat::<f64>::zeros(3, 0), true).unwrap();
        assert_eq!((f.u.shape(), f.s.len(), f.vh.shape()), ((3, 3), 0, (0, 0)));
        assert_eq!(f.u[(1, 1)], 1.0);
    }

    #[test]
    fn the_pseudoinverse_of_a_deficient_matrix_ignores_small_values() {
        let a = Mat::from_fn(3, 2, |i, j| ((i + 1) * (j + 1)) as f64);
        let p = pinv(&a, 0.0, 1e-12, false).unwrap();
        // a = x yᵀ, so its pseudoinverse is y xᵀ / (|x|² |y|²).
        for i in 0..2 {
            (0..3).for_each(|j| assert!((p[(i, j)] - ((i + 1) * (j + 1)) as f64 / 70.0).abs() < 1e-14));
        }
    }
}
