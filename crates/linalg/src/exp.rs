//! The exponential of a matrix by scaling, a Padé approximant and repeated squaring.
//!
//! Source: N. Higham, "The scaling and squaring method for the matrix exponential revisited", 2005: degree 13 where the
//! 1-norm is at most 5.37.

use crate::{Mat, Number, lu, solve_factored};

/// Coefficients of the numerator of the Padé approximant of degree 13, `b₀` first.
const B: [f64; 14] = [
    64764752532480000.0,
    32382376266240000.0,
    7771770303897600.0,
    1187353796428800.0,
    129060195264000.0,
    10559470521600.0,
    670442572800.0,
    33522128640.0,
    1323241920.0,
    40840800.0,
    960960.0,
    16380.0,
    182.0,
    1.0,
];

/// The largest 1-norm for which degree 13 is exact to double precision.
const THETA: f64 = 5.371920351148152;

/// `exp(a)` for `a` `[n, n]`; elements that are not finite give `NaN` everywhere.
pub fn matrix_exp<T: Number>(a: &Mat<T>) -> Mat<T> {
    let n = a.nrows();
    let norm = (0..n)
        .map(|j| (0..n).map(|i| a[(i, j)].size()).sum::<f64>())
        .fold(0.0, |m: f64, x| if x.is_nan() { x } else { m.max(x) });
    if !norm.is_finite() || (0..n).any(|j| (0..n).any(|i| !a[(i, j)].finite())) {
        return Mat::from_fn(n, n, |_, _| T::of(f64::NAN));
    }
    // At most 1024, the exponents of finite numbers.
    let squarings = if norm > THETA { (norm / THETA).log2().ceil() as i32 } else { 0 };
    let mut e = approximant(&scaled(a, 0.5f64.powi(squarings)));
    for _ in 0..squarings {
        e = &e * &e;
    }
    e
}

fn scaled<T: Number>(a: &Mat<T>, by: f64) -> Mat<T> {
    Mat::from_fn(a.nrows(), a.ncols(), |i, j| a[(i, j)] * T::of(by))
}

/// `(V - U)⁻¹ (V + U)` with the odd part `U` and the even part `V`.
fn approximant<T: Number>(a: &Mat<T>) -> Mat<T> {
    let n = a.nrows();
    let a2 = a * a;
    let a4 = &a2 * &a2;
    let a6 = &a4 * &a2;
    let sum = |b: [f64; 4]| {
        Mat::from_fn(n, n, |i, j| {
            let unit = if i == j { T::of(b[0]) } else { T::ZERO };
            unit + a2[(i, j)] * T::of(b[1]) + a4[(i, j)] * T::of(b[2]) + a6[(i, j)] * T::of(b[3])
        })
    };
    let odd = a * (&a6 * sum([0.0, B[9], B[11], B[13]]) + sum([B[1], B[3], B[5], B[7]]));
    let even = &a6 * sum([0.0, B[8], B[10], B[12]]) + sum([B[0], B[2], B[4], B[6]]);
    let (mut denominator, mut x) = (&even - &odd, &even + &odd);
    let (pivots, _) = lu(&mut denominator, true);
    solve_factored(&denominator, &pivots, &mut x);
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Complex;

    #[test]
    fn rotations_and_diagonals() {
        // exp of i times a Pauli matrix, large enough to be squared.
        let t = 20.0f64;
        let a = Mat::from_fn(2, 2, |i, j| if i == j { Complex::ZERO } else { Complex::new(0.0, t) });
        let e = matrix_exp(&a);
        assert!((e[(0, 0)] - Complex::of(t.cos())).size() < 1e-12);
        assert!((e[(0, 1)] - Complex::new(0.0, t.sin())).size() < 1e-12);
        let d = Mat::from_fn(3, 3, |i, j| if i == j { i as f64 - 1.0 } else { 0.0 });
        let e = matrix_exp(&d);
        (0..3).for_each(|i| assert!((e[(i, i)] - (i as f64 - 1.0).exp()).abs() < 1e-14));
        assert!(matrix_exp(&Mat::from_fn(1, 1, |_, _| f64::INFINITY))[(0, 0)].is_nan());
    }
}
