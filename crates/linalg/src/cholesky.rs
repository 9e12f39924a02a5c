//! Cholesky factorization.

use faer::linalg::matmul::matmul;
use faer::linalg::triangular_solve::solve_lower_triangular_in_place;
use faer::{Accum, MatMut, Par};

use crate::{Mat, Number};

/// Below this order plain loops are faster than splitting (the usual width of a LAPACK panel).
const PANEL: usize = 32;

/// Overwrites the lower triangle of `a` `[n, n]` by `L` with `L Lᴴ = a` and the rest by zeros; only the lower triangle
/// is read. Returns LAPACK's `info`: 0, or the order of the first leading minor that is not positive.
pub fn cholesky<T: Number>(a: &mut Mat<T>) -> usize {
    let n = a.nrows();
    let info = factor(a.as_mut());
    for j in 0..n {
        for i in 0..j {
            a[(i, j)] = T::ZERO;
        }
    }
    info
}

/// `L₁₁ L₁₁ᴴ = a₁₁`, `L₂₁ = a₂₁ L₁₁⁻ᴴ`, `L₂₂ L₂₂ᴴ = a₂₂ - L₂₁ L₂₁ᴴ`.
fn factor<T: Number>(a: MatMut<'_, T>) -> usize {
    let n = a.nrows();
    if n <= PANEL {
        return panel(a);
    }
    let half = n / 2;
    let (mut a11, _, mut a21, mut a22) = a.split_at_mut(half, half);
    let info = factor(a11.rb_mut());
    if info != 0 {
        return info;
    }
    solve_lower_triangular_in_place(a11.rb().conjugate(), a21.rb_mut().transpose_mut(), Par::Seq);
    matmul(a22.rb_mut(), Accum::Add, a21.rb(), a21.rb().adjoint(), T::of(-1.0), Par::Seq);
    match factor(a22) {
        0 => 0,
        info => half + info,
    }
}

fn panel<T: Number>(mut a: MatMut<'_, T>) -> usize {
    let n = a.nrows();
    for j in 0..n {
        let mut d = a[(j, j)].re();
        for k in 0..j {
            let x = a[(j, k)].size();
            d -= x * x;
        }
        // `NaN` is not positive either.
        if d.is_nan() || d <= 0.0 {
            return j + 1;
        }
        let d = d.sqrt();
        a[(j, j)] = T::of(d);
        for k in 0..j {
            let factor = a[(j, k)].cj();
            for i in j + 1..n {
                let x = a[(i, k)] * factor;
                a[(i, j)] -= x;
            }
        }
        for i in j + 1..n {
            a[(i, j)] /= T::of(d);
        }
    }
    0
}

use faer::prelude::{Reborrow as _, ReborrowMut as _};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Complex;

    /// A positive definite matrix larger than a panel.
    fn sample(n: usize) -> Mat<Complex> {
        let part = |i: usize, j: usize| ((i * 7 + j * 13) % 11) as f64 / 11.0 - 0.5;
        let m = Mat::from_fn(n, n, |i, j| Complex::new(part(i, j), part(j + 3, i)));
        let mut a = &m * m.adjoint();
        (0..n).for_each(|i| a[(i, i)] += Complex::of(1.0));
        a
    }

    #[test]
    fn the_factor_times_its_adjoint_is_the_matrix() {
        for n in [0, 1, 5, 70] {
            let a = sample(n);
            let mut l = a.clone();
            assert_eq!(cholesky(&mut l), 0);
            let back = &l * l.adjoint();
            for i in 0..n {
                for j in 0..n {
                    assert!((back[(i, j)] - a[(i, j)]).size() < 1e-10 * n as f64);
                }
            }
        }
    }

    #[test]
    fn info_is_the_order_of_the_first_minor_that_is_not_positive() {
        let mut a = sample(70);
        a[(50, 50)] = Complex::of(-1.0);
        assert_eq!(cholesky(&mut a), 51);
    }
}
