//! Eigenvalues and eigenvectors. `faer` computes the decompositions; this module prepares its input and normalises its
//! results.

use faer::Side;
use faer::linalg::solvers::SelfAdjointEigen;

use crate::{Complex, LinalgError, Mat, Number};

/// Whether every element is finite; the iterations need that.
pub(crate) fn check_finite<T: Number>(a: &Mat<T>) -> Result<(), LinalgError> {
    let finite = (0..a.ncols()).all(|j| (0..a.nrows()).all(|i| a[(i, j)].finite()));
    if finite { Ok(()) } else { Err(LinalgError::NotFinite { batch: 0 }) }
}

/// Eigenvalues in ascending order and orthonormal eigenvectors (columns) of the Hermitian matrix whose `upper` or lower
/// triangle `a` `[n, n]` holds; an imaginary part on the diagonal counts as zero.
///
/// # Errors
/// Elements that are not finite; no convergence.
pub fn eigh<T: Number>(a: &Mat<T>, upper: bool) -> Result<(Vec<f64>, Mat<T>), LinalgError> {
    let n = a.nrows();
    if n == 0 {
        return Ok((Vec::new(), Mat::zeros(0, 0)));
    }
    // The whole matrix is filled from one triangle, because the other one may hold anything.
    let whole = Mat::from_fn(n, n, |i, j| match i.cmp(&j) {
        std::cmp::Ordering::Equal => T::of(a[(i, i)].re()),
        std::cmp::Ordering::Less if upper => a[(i, j)],
        std::cmp::Ordering::Greater if !upper => a[(i, j)],
        _ => a[(j, i)].cj(),
    });
    check_finite(&whole)?;
    let e = SelfAdjointEigen::new(whole.as_ref(), Side::Lower)
        .map_err(|_| LinalgError::NoConvergence { batch: 0 })?;
    Ok((e.S().column_vector().iter().map(|x| x.re()).collect(), e.U().to_owned()))
}

/// Eigenvalues and eigenvectors (columns) of a square matrix. As in LAPACK's `geev` each vector has length 1 and a real
/// largest element; here that element is also positive.
///
/// # Errors
/// Elements that are not finite; no convergence.
pub fn eig<T: Number>(a: &Mat<T>) -> Result<(Vec<Complex>, Mat<Complex>), LinalgError> {
    if a.nrows() == 0 {
        return Ok((Vec::new(), Mat::zeros(0, 0)));
    }
    check_finite(a)?;
    let (values, mut vectors) = T::eigen(a).ok_or(LinalgError::NoConvergence { batch: 0 })?;
    for j in 0..vectors.ncols() {
        let (mut norm, mut largest) = (0.0f64, Complex::new(0.0, 0.0));
        for i in 0..vectors.nrows() {
            let x = vectors[(i, j)];
            norm = norm.hypot(x.size());
            if x.size() > largest.size() {
                largest = x;
            }
        }
        let factor = largest.conj() / (largest.size() * norm);
        for i in 0..vectors.nrows() {
            vectors[(i, j)] *= factor;
        }
    }
    Ok((values, vectors))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(n: usize) -> Mat<Complex> {
        let part = |i: usize, j: usize| ((i * 31 + j * 17 + i * j) % 23) as f64 / 23.0 - 0.4;
        Mat::from_fn(n, n, |i, j| Complex::new(part(i, j), part(j + 1, i)))
    }

    #[test]
    fn eigenvectors_of_a_triangle_solve_the_whole_matrix() {
        for upper in [false, true] {
            let m = sample(6);
            let a = Mat::from_fn(6, 6, |i, j| m[(i, j)] + m[(j, i)].cj());
            let half = Mat::from_fn(6, 6, |i, j| {
                if i == j || (i < j) == upper { a[(i, j)] } else { Complex::new(f64::NAN, 0.0) }
            });
            let (values, v) = eigh(&half, upper).unwrap();
            assert!(values.windows(2).all(|w| w[0] <= w[1]));
            let (left, unit) = (&a * &v, v.adjoint() * &v);
            for i in 0..6 {
                for j in 0..6 {
                    assert!((left[(i, j)] - v[(i, j)] * values[j]).size() < 1e-10);
                    let want = f64::from(u8::from(i == j));
                    assert!((unit[(i, j)] - Complex::of(want)).size() < 1e-10);
                }
            }
        }
    }

    #[test]
    fn eigenvectors_have_length_one_and_a_real_largest_element() {
        let a = sample(7);
        let real = Mat::from_fn(7, 7, |i, j| a[(i, j)].re);
        let wide = Mat::from_fn(7, 7, |i, j| Complex::of(a[(i, j)].re));
        for (m, (values, v)) in [(a.clone(), eig(&a).unwrap()), (wide, eig(&real).unwrap())] {
            let left = &m * &v;
            for j in 0..7 {
                let largest = (0..7).map(|i| v[(i, j)]).max_by(|x, y| x.size().total_cmp(&y.size())).unwrap();
                let norm: f64 = (0..7).map(|i| v[(i, j)].norm_sqr()).sum();
                assert!((norm - 1.0).abs() < 1e-12 && largest.im.abs() < 1e-12 && largest.re > 0.0);
                (0..7).for_each(|i| assert!((left[(i, j)] - v[(i, j)] * values[j]).size() < 1e-10));
            }
        }
    }

    #[test]
    fn non_finite_elements_are_an_error() {
        let a = Mat::from_fn(2, 2, |i, _| if i == 0 { f64::NAN } else { 1.0 });
        assert_eq!(eigh(&a, false).map(|_| ()), Err(LinalgError::NotFinite { batch: 0 }));
        assert_eq!(eig(&a).map(|_| ()), Err(LinalgError::NotFinite { batch: 0 }));
    }
}
