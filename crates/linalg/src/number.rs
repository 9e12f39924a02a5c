//! The two element types, `f64` and `Complex<f64>`, under one trait. No single precision: see the crate's page.

use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub, SubAssign};

use faer::traits::ComplexField;

use crate::Values;

/// A complex number of two `f64`.
pub type Complex = num_complex::Complex<f64>;
/// A matrix, column-major.
pub type Mat<T> = faer::Mat<T>;

/// An element of a matrix.
pub trait Number:
    ComplexField<Real = f64>
    + Copy
    + PartialEq
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + DivAssign
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// The number with an imaginary part of 0.
    fn of(re: f64) -> Self;
    /// The conjugate.
    fn cj(self) -> Self;
    /// The real part.
    fn re(self) -> f64;
    /// The imaginary part.
    fn im(self) -> f64;
    /// `|re| + |im|`, by which LAPACK chooses pivots.
    fn abs1(self) -> f64;
    /// The magnitude.
    fn size(self) -> f64;
    /// The list as an array's values.
    fn wrap(list: Vec<Self>) -> Values;
    /// An array's values of this type.
    fn values(values: &Values) -> Option<&[Self]>;
    /// Eigenvalues and normalised eigenvectors of a square matrix.
    fn eigen(a: &Mat<Self>) -> Option<(Vec<Complex>, Mat<Complex>)>;

    /// Whether no part is infinite or `NaN`.
    fn finite(self) -> bool {
        self.re().is_finite() && self.im().is_finite()
    }
}

impl Number for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    fn of(re: f64) -> f64 {
        re
    }
    fn cj(self) -> f64 {
        self
    }
    fn re(self) -> f64 {
        self
    }
    fn im(self) -> f64 {
        0.0
    }
    fn abs1(self) -> f64 {
        self.abs()
    }
    fn size(self) -> f64 {
        self.abs()
    }
    fn wrap(list: Vec<f64>) -> Values {
        Values::Real(list)
    }
    fn values(values: &Values) -> Option<&[f64]> {
        if let Values::Real(list) = values { Some(list) } else { None }
    }
    fn eigen(a: &Mat<f64>) -> Option<(Vec<Complex>, Mat<Complex>)> {
        let e = faer::linalg::solvers::Eigen::new_from_real(a.as_ref()).ok()?;
        Some((e.S().column_vector().iter().copied().collect(), e.U().to_owned()))
    }
}

impl Number for Complex {
    const ZERO: Complex = Complex::new(0.0, 0.0);
    const ONE: Complex = Complex::new(1.0, 0.0);
    fn of(re: f64) -> Complex {
        Complex::new(re, 0.0)
    }
    fn cj(self) -> Complex {
        self.conj()
    }
    fn re(self) -> f64 {
        self.re
    }
    fn im(self) -> f64 {
        self.im
    }
    fn abs1(self) -> f64 {
        self.re.abs() + self.im.abs()
    }
    fn size(self) -> f64 {
        self.re.hypot(self.im)
    }
    fn wrap(list: Vec<Complex>) -> Values {
        Values::Complex(list)
    }
    fn values(values: &Values) -> Option<&[Complex]> {
        if let Values::Complex(list) = values { Some(list) } else { None }
    }
    fn eigen(a: &Mat<Complex>) -> Option<(Vec<Complex>, Mat<Complex>)> {
        let e = faer::linalg::solvers::Eigen::new(a.as_ref()).ok()?;
        Some((e.S().column_vector().iter().copied().collect(), e.U().to_owned()))
    }
}
