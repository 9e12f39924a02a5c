//! Discrete Fourier transforms along one dimension ([`ExternOp::Fourier`]): the lengths that a step may have, which of its
//! sides is real, and the reference in double precision, which the references of the prims and the oracle share. Not here:
//! how a backend computes them fast, and how transforms of other lengths are composed (`prims`).

use std::f64::consts::TAU;

use crate::{ExternCall, ExternOp, Operand};

/// The largest length of a step: a line then fits the shared memory of a GPU.
pub const LONGEST: i64 = 4096;
/// The largest prime factor of a step's length: one thread of a GPU has so many numbers in its registers.
pub const LARGEST_FACTOR: i64 = 13;

/// Whether a step may have this length.
pub fn is_length(n: i64) -> bool {
    let without = |n: i64, p: i64| {
        let mut n = n;
        while n % p == 0 {
            n /= p;
        }
        n
    };
    (1..=LONGEST).contains(&n) && (2..=LARGEST_FACTOR).fold(n, without) == 1
}

/// Which side of a transform is real.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FourierForm {
    /// Neither: n numbers become n numbers. The imaginary parts of the operand are 0 where it has none.
    Complex,
    /// The operand: n real numbers become the first `n / 2 + 1` results. The others are their conjugates.
    RealToHalf,
    /// The result: the first `n / 2 + 1` numbers of a line whose others are their conjugates become n real numbers. The
    /// imaginary parts of number 0 and, of an even n, of the last one are not looked at.
    HalfToReal,
}

/// A transform with its operands: element k of the result is `scale · Σ x_j exp(∓2πi jk / n)`, minus where `forward`.
#[derive(Clone, Copy, Debug)]
pub struct Fourier<'a> {
    /// Which side is real.
    pub form: FourierForm,
    /// The length of the whole transform.
    pub length: i64,
    /// The dimension along which it is.
    pub dim: usize,
    /// Whether the exponent is negative.
    pub forward: bool,
    /// A factor on the result.
    pub scale: f64,
    /// Real and imaginary parts that are read.
    pub from: (&'a Operand, Option<&'a Operand>),
    /// Real and imaginary parts that are written.
    pub to: (&'a Operand, Option<&'a Operand>),
}

impl<'a> Fourier<'a> {
    /// The transform of a call; `None` where it is none, or its operands do not fit each other.
    pub fn of(call: &'a ExternCall) -> Option<Fourier<'a>> {
        let ExternOp::Fourier { dim, forward, scale } = call.op else { return None };
        let dim = dim as usize;
        let parts = |list: &'a [Operand]| match list {
            [re] => Some((re, None)),
            [re, im] => Some((re, Some(im))),
            _ => None,
        };
        let (from, to) = (parts(&call.inputs)?, parts(&call.outputs)?);
        let count = |o: &Operand| o.sizes.get(dim)?.as_const();
        let (read, made) = (count(from.0)?, count(to.0)?);
        let (form, length) = match (from.1, to.1) {
            (None, Some(_)) if made == read / 2 + 1 => (FourierForm::RealToHalf, read),
            (_, Some(_)) if made == read => (FourierForm::Complex, read),
            (Some(_), None) if read == made / 2 + 1 => (FourierForm::HalfToReal, made),
            _ => return None,
        };
        let along = |o: &Operand, n: i64| {
            let same = |(d, (a, b)): (usize, _)| d == dim || a == b;
            o.sizes.len() == from.0.sizes.len()
                && count(o) == Some(n)
                && o.sizes.iter().zip(&from.0.sizes).enumerate().all(same)
        };
        let fits = [(from.1, read), (Some(to.0), made), (to.1, made)];
        let whole = fits.into_iter().all(|(o, n)| o.is_none_or(|o| along(o, n)));
        whole.then_some(Fourier { form, length, dim, forward, scale, from, to })
    }

    /// How many elements of a line are read and written.
    pub fn counts(&self) -> (i64, i64) {
        self.form.counts(self.length)
    }
}

impl FourierForm {
    /// How many elements of a line are read and written, for a transform of this length.
    pub fn counts(self, length: i64) -> (i64, i64) {
        let half = length / 2 + 1;
        match self {
            FourierForm::Complex => (length, length),
            FourierForm::RealToHalf => (length, half),
            FourierForm::HalfToReal => (half, length),
        }
    }

    /// The reference: the results for one line, of which `read` gives real and imaginary parts.
    pub fn line(
        self,
        length: usize,
        forward: bool,
        scale: f64,
        read: impl Fn(usize) -> [f64; 2],
    ) -> Vec<[f64; 2]> {
        let given = |j: usize| match self {
            FourierForm::Complex => read(j),
            FourierForm::RealToHalf => [read(j)[0], 0.0],
            FourierForm::HalfToReal if j == 0 || 2 * j == length => [read(j)[0], 0.0],
            FourierForm::HalfToReal if 2 * j < length => read(j),
            FourierForm::HalfToReal => {
                let [re, im] = read(length - j);
                [re, -im]
            }
        };
        let all: Vec<[f64; 2]> = (0..length).map(given).collect();
        let made = self.counts(length as i64).1 as usize;
        let results = transform(&all, 0, 1, length, if forward { -1.0 } else { 1.0 });
        results.into_iter().take(made).map(|[re, im]| [re * scale, im * scale]).collect()
    }
}

/// The transform of the `n` numbers of `x` from `start` on, `step` apart: by its smallest factor p from p transforms of
/// every p-th number.
fn transform(x: &[[f64; 2]], start: usize, step: usize, n: usize, sign: f64) -> Vec<[f64; 2]> {
    let Some(p) = (2..=n).find(|p| n.is_multiple_of(*p)) else { return vec![x[start]] };
    let m = n / p;
    let parts: Vec<Vec<[f64; 2]>> =
        (0..p).map(|r| transform(x, start + r * step, step * p, m, sign)).collect();
    let element = |k: usize| {
        parts.iter().enumerate().fold([0.0, 0.0], |[re, im], (r, part)| {
            let (sin, cos) = (sign * TAU * ((r * k) % n) as f64 / n as f64).sin_cos();
            let [a, b] = part[k % m];
            [re + a * cos - b * sin, im + a * sin + b * cos]
        })
    };
    (0..n).map(element).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(j: usize, seed: usize) -> f64 {
        ((j * 7919 + seed * 104_729) % 1000) as f64 / 500.0 - 1.0
    }

    /// The definition, term by term.
    fn naive(x: &[[f64; 2]], forward: bool) -> Vec<[f64; 2]> {
        let n = x.len();
        let sign = if forward { -1.0 } else { 1.0 };
        let term = |k: usize, j: usize| {
            let (sin, cos) = (sign * TAU * ((j * k) % n) as f64 / n as f64).sin_cos();
            [x[j][0] * cos - x[j][1] * sin, x[j][0] * sin + x[j][1] * cos]
        };
        let sum = |k: usize| (0..n).map(|j| term(k, j)).fold([0.0, 0.0], |[a, b], [re, im]| [a + re, b + im]);
        (0..n).map(sum).collect()
    }

    fn close(got: &[[f64; 2]], wanted: &[[f64; 2]], what: &str) {
        let size = (wanted.len() as f64).sqrt();
        for (k, (a, b)) in got.iter().zip(wanted).enumerate() {
            let off = (a[0] - b[0]).abs().max((a[1] - b[1]).abs());
            assert!(off < 1e-12 * size * size.max(8.0), "{what}, element {k}: {a:?}, not {b:?}");
        }
    }

    #[test]
    fn transforms_are_those_of_the_definition() {
        let more = [97, 100, 120, 128, 243, 256, 257, 360, 1000, 1024, 1155, 4096];
        for n in (1..=64).chain(more) {
            for forward in [true, false] {
                let x: Vec<[f64; 2]> = (0..n).map(|j| [number(j, 1), number(j, 2)]).collect();
                let got = FourierForm::Complex.line(n, forward, 1.0, |j| x[j]);
                close(&got, &naive(&x, forward), &format!("{n} complex"));
                let real: Vec<[f64; 2]> = x.iter().map(|x| [x[0], 0.0]).collect();
                let whole = naive(&real, forward);
                let half = FourierForm::RealToHalf.line(n, forward, 1.0, |j| real[j]);
                assert_eq!(half.len(), n / 2 + 1);
                close(&half, &whole, &format!("{n} real to half"));
                // There and back is n times the line.
                let back = FourierForm::HalfToReal.line(n, !forward, 1.0 / n as f64, |j| half[j]);
                let back: Vec<[f64; 2]> = back.iter().map(|x| [x[0], 0.0]).collect();
                close(&back, &real, &format!("{n} half to real"));
            }
        }
    }

    #[test]
    fn lengths_have_small_factors() {
        for n in [1, 2, 13, 169, 2197, 4096, 3003, 4095] {
            assert!(is_length(n), "{n}");
        }
        for n in [0, -4, 17, 34, 257, 4097, 8192] {
            assert!(!is_length(n), "{n}");
        }
    }
}
