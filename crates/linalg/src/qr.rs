//! Householder reflections, as LAPACK's `geqrf` keeps them, and the QR factorization made of them.

use crate::{Mat, Number};

/// Overwrites `a` `[m, n]` by `R` (upper triangle) and, below the diagonal, the vectors `vᵢ` (their first element, 1,
/// is not stored) of the reflections `Hᵢ = I - τᵢ vᵢ vᵢᴴ` with `H₁ … Hₖ R = a`; gives the `τ`.
pub fn geqrf<T: Number>(a: &mut Mat<T>) -> Vec<T> {
    let (m, n) = (a.nrows(), a.ncols());
    let mut taus = Vec::with_capacity(m.min(n));
    for k in 0..m.min(n) {
        let (tau, beta) = reflection(a, k);
        a[(k, k)] = T::ONE;
        let v: Vec<T> = (k..m).map(|i| a[(i, k)]).collect();
        for j in k + 1..n {
            reflect(a, j, k, &v, tau.cj());
        }
        a[(k, k)] = beta;
        taus.push(tau);
    }
    taus
}

/// LAPACK's `larfg` on column `k` from the diagonal down: the vector replaces the column; `τ` and the diagonal of `R`.
fn reflection<T: Number>(a: &mut Mat<T>, k: usize) -> (T, T) {
    let m = a.nrows();
    let alpha = a[(k, k)];
    let norm = (k + 1..m).fold(0.0f64, |n, i| n.hypot(a[(i, k)].size()));
    if norm == 0.0 && alpha.im() == 0.0 {
        return (T::ZERO, alpha);
    }
    let beta = -alpha.size().hypot(norm).copysign(alpha.re());
    let scale = T::ONE / (alpha - T::of(beta));
    for i in k + 1..m {
        a[(i, k)] *= scale;
    }
    ((T::of(beta) - alpha) / T::of(beta), T::of(beta))
}

/// `(I - τ v vᴴ)` on column `j` from row `first` down.
fn reflect<T: Number>(a: &mut Mat<T>, j: usize, first: usize, v: &[T], tau: T) {
    let mut dot = T::ZERO;
    for (i, x) in v.iter().enumerate() {
        dot += x.cj() * a[(first + i, j)];
    }
    dot *= tau;
    for (i, x) in v.iter().enumerate() {
        a[(first + i, j)] -= *x * dot;
    }
}

/// `a = Q R` for `a` `[m, n]`: `Q` `[m, k]` and `R` `[k, n]` with `k = min(m, n)`, or `k = m` where `complete`.
pub fn qr<T: Number>(a: &Mat<T>, complete: bool) -> (Mat<T>, Mat<T>) {
    let (m, n) = (a.nrows(), a.ncols());
    let k = if complete { m } else { m.min(n) };
    let mut f = a.clone();
    let taus = geqrf(&mut f);
    let r = Mat::from_fn(k, n, |i, j| if i <= j { f[(i, j)] } else { T::ZERO });
    let mut q = Mat::from_fn(m, k, |i, j| if i == j { T::ONE } else { T::ZERO });
    for (c, &tau) in taus.iter().enumerate().rev() {
        let v: Vec<T> = (c..m).map(|i| if i == c { T::ONE } else { f[(i, c)] }).collect();
        // The columns before are unit vectors that this reflection does not touch.
        for j in c..k {
            reflect(&mut q, j, c, &v, tau);
        }
    }
    (q, r)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Complex;

    #[test]
    fn factors_are_orthogonal_and_triangular_and_multiply_to_the_matrix() {
        let part = |i: usize, j: usize| ((i * 31 + j * 17 + i * j) % 23) as f64 / 23.0 - 0.4;
        for (m, n, complete) in [(4, 4, false), (7, 3, false), (7, 3, true), (3, 7, true), (3, 0, true)] {
            let a = Mat::from_fn(m, n, |i, j| Complex::new(part(i, j), part(j + 1, i)));
            let (q, r) = qr(&a, complete);
            let (back, unit) = (&q * &r, q.adjoint() * &q);
            for i in 0..m {
                (0..n).for_each(|j| assert!((back[(i, j)] - a[(i, j)]).size() < 1e-12));
            }
            for i in 0..q.ncols() {
                for j in 0..q.ncols() {
                    let want = Complex::of(f64::from(u8::from(i == j)));
                    assert!((unit[(i, j)] - want).size() < 1e-12);
                }
                (0..i.min(n)).for_each(|j| assert_eq!(r[(i, j)], Complex::ZERO));
                // LAPACK's reflections leave a real diagonal.
                assert_eq!(if i < n && i + 1 < m { r[(i, i)].im } else { 0.0 }, 0.0);
            }
        }
    }
}
