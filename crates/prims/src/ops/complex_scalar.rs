//! The scalar prims on complex tensors, as formulas over real and imaginary parts. No entries.
//!
//! Branch cuts and signs of zeros are those of C99 (Annex G): the inverse functions are made of square roots and real
//! functions as in Kahan, "Branch Cuts for Complex Elementary Functions" (1987).

use std::f64::consts::{FRAC_PI_2, LN_2, LN_10};

use ir_core::Scalar;
use smallvec::smallvec;

use super::complex_formula::{Formula, Mask, Num, Z};
use crate::{Builder, ComplexCall, OpError, SplitArg};

type SplitResult = Result<crate::complex_rule::Splits, OpError>;

/// A function of the operand `a`.
fn unary(b: &mut Builder<'_>, call: &ComplexCall<'_>, f: fn(Z<'_>) -> Z<'_>) -> SplitResult {
    let z = call.operand(b, "a")?;
    let dtype = call.part_dtype(b)?;
    let at = Formula::new(b, dtype);
    let out = f(at.complex(z)).parts();
    Ok(smallvec![at.done(out)?.into()])
}

/// A function of the operands `a` and `b`.
fn binary(b: &mut Builder<'_>, call: &ComplexCall<'_>, f: for<'f> fn(Z<'f>, Z<'f>) -> Z<'f>) -> SplitResult {
    let (x, y) = (call.operand(b, "a")?, call.operand(b, "b")?);
    let dtype = call.part_dtype(b)?;
    let at = Formula::new(b, dtype);
    let out = f(at.complex(x), at.complex(y)).parts();
    Ok(smallvec![at.done(out)?.into()])
}

fn comparison(
    b: &mut Builder<'_>,
    call: &ComplexCall<'_>,
    f: for<'f> fn(Z<'f>, Z<'f>) -> Mask<'f>,
) -> SplitResult {
    let (x, y) = (call.operand(b, "a")?, call.operand(b, "b")?);
    let dtype = call.part_dtype(b)?;
    let at = Formula::new(b, dtype);
    let out = f(at.complex(x), at.complex(y)).0.v;
    Ok(smallvec![at.done(out)?.into()])
}

macro_rules! rules {
    ($($kind:ident $name:ident $f:expr;)*) => {$(
        pub(super) fn $name(b: &mut Builder<'_>, call: &ComplexCall<'_>) -> SplitResult {
            $kind(b, call, $f)
        }
    )*};
}

rules! {
    binary mul |x, y| x * y;
    binary div quotient;
    comparison eq |x, y| x.re.eq(y.re).and(x.im.eq(y.im));
    comparison ne |x, y| x.re.ne(y.re).or(x.im.ne(y.im));
    unary sqrt root;
    unary rsqrt |z| reciprocal(root(z));
    unary exp exponential;
    unary exp2 |z| exponential(Z { re: z.re * LN_2, im: z.im * LN_2 });
    unary expm1 exponential_less_one;
    unary log logarithm;
    unary log2 |z| over(logarithm(z), LN_2);
    unary log10 |z| over(logarithm(z), LN_10);
    unary log1p logarithm_of_one_more;
    // sin z = -i sinh(i z), and so on.
    unary sin |z| hyperbolic_sine(z.times_i()).times_minus_i();
    unary cos |z| hyperbolic_cosine(z.times_i());
    unary tan |z| hyperbolic_tangent(z.times_i()).times_minus_i();
    unary asin |z| inverse_hyperbolic_sine(z.times_i()).times_minus_i();
    unary acos inverse_cosine;
    unary atan |z| inverse_hyperbolic_tangent(z.times_i()).times_minus_i();
    unary sinh hyperbolic_sine;
    unary cosh hyperbolic_cosine;
    unary tanh hyperbolic_tangent;
    unary asinh inverse_hyperbolic_sine;
    unary acosh inverse_hyperbolic_cosine;
    unary atanh inverse_hyperbolic_tangent;
}

fn over(z: Z<'_>, x: f64) -> Z<'_> {
    Z { re: z.re / x, im: z.im / x }
}

/// Smith's quotient: the larger part of the divisor is divided out, so that squares do not overflow. By zero both parts
/// are divided as real numbers.
pub(super) fn quotient<'f>(a: Z<'f>, b: Z<'f>) -> Z<'f> {
    let swap = b.re.abs().lt(b.im.abs());
    let (p, q) = (swap.pick(b.im, b.re), swap.pick(b.re, b.im));
    let (u, v) = (swap.pick(a.im, a.re), swap.pick(a.re, a.im));
    let zero = p.eq(0.0);
    let ratio = zero.pick(0.0, q / p);
    let rest = zero.pick(p.abs(), p + q * ratio);
    let cross = v - u * ratio;
    Z { re: (u + v * ratio) / rest, im: swap.pick(-cross, cross) / rest }
}

pub(super) fn reciprocal(z: Z<'_>) -> Z<'_> {
    quotient(Z { re: z.re.constant(1.0), im: z.re.constant(0.0) }, z)
}

/// `(s, y / 2s)` with `s = sqrt((|x| + |z|) / 2)`, or the other way round where x is negative. Computed on an eighth of z
/// (against overflow), tiny numbers scaled up.
fn root(z: Z<'_>) -> Z<'_> {
    let (x, y) = (z.re, z.im);
    let (ax, ay) = (x.abs(), y.abs());
    let tiny = ax.max(ay).lt(x.limit(1e-30, 1e-290));
    // The scale is a power of 4: 2^48 in single, 2^108 in double precision.
    let up = x.limit(2f64.powi(48), 2f64.powi(108));
    let scale = tiny.pick(up / 8.0, 0.125);
    let back = tiny.pick(2.0 / up.sqrt(), 2.0);
    let (sx, sy) = (ax * scale, ay * scale);
    let infinite = ay.eq(f64::INFINITY);
    let s = infinite.pick(f64::INFINITY, back * (sx + sx.hypot(sy)).sqrt());
    let other = ay / (s * 2.0);
    let other = s.eq(0.0).pick(0.0, infinite.pick(f64::INFINITY, other));
    let right = x.ge(0.0);
    Z { re: right.pick(s, other), im: right.pick(other, s).with_sign_of(y) }
}

fn exponential(z: Z<'_>) -> Z<'_> {
    let e = z.re.exp();
    // An infinite magnitude times the sine of a zero is that zero.
    Z { re: e * z.im.cos(), im: z.im.eq(0.0).pick(z.im, e * z.im.sin()) }
}

/// `expm1(x) cos y - 2 sin²(y / 2)`, so that nothing is lost near zero.
fn exponential_less_one(z: Z<'_>) -> Z<'_> {
    let half = (z.im * 0.5).sin();
    let re = z.re.expm1() * z.im.cos() - half * half * 2.0;
    Z { re, im: z.im.eq(0.0).pick(z.im, z.re.exp() * z.im.sin()) }
}

/// `log |z|` and the angle. Near the unit circle the magnitude's logarithm is half that of `1 + (|z|² - 1)`; numbers at
/// the ends of the range are scaled first.
fn logarithm(z: Z<'_>) -> Z<'_> {
    let (ax, ay) = (z.re.abs(), z.im.abs());
    let (large, small) = (ax.max(ay), ax.min(ay));
    let (tiny, huge) = (large.lt(ax.limit(1e-30, 1e-290)), large.gt(ax.limit(1e37, 1e307)));
    let up = ax.limit(48.0, 108.0);
    let scale = tiny.pick(2f64.powf(up), huge.pick(0.25, 1.0));
    let shift = tiny.pick(-up * LN_2, huge.pick(2.0 * LN_2, 0.0));
    let h = (ax * scale).hypot(ay * scale);
    let far = h.log() + shift;
    let near = ((large - 1.0) * (large + 1.0) + small * small).log1p() * 0.5;
    let close = h.ge(0.71).and(h.le(1.73)).and(scale.eq(1.0));
    Z { re: close.pick(near, far), im: z.im.atan2(z.re) }
}

/// `log(1 + z)`; for small z the real part is half of `log1p(|1 + z|² - 1)`.
fn logarithm_of_one_more(z: Z<'_>) -> Z<'_> {
    let (x, y) = (z.re, z.im);
    let far = logarithm(Z { re: x + 1.0, im: y });
    let near = (x * (x + 2.0) + y * y).log1p() * 0.5;
    let small = x.abs().max(y.abs()).lt(0.5);
    Z { re: small.pick(near, far.re), im: far.im }
}

/// `sinh x cos y + i cosh x sin y`.
fn hyperbolic_sine(z: Z<'_>) -> Z<'_> {
    let (x, y) = (z.re, z.im);
    let cos = y.cos();
    // A zero stays one even where the other factor is infinite.
    Z { re: x.eq(0.0).pick(x * cos.sign_one(), x.sinh() * cos), im: y.eq(0.0).pick(y, x.cosh() * y.sin()) }
}

/// `cosh x cos y + i sinh x sin y`.
fn hyperbolic_cosine(z: Z<'_>) -> Z<'_> {
    let (x, y) = (z.re, z.im);
    let flat = x.eq(0.0).or(y.eq(0.0));
    // A zero of x or y is kept, with the sign that the product has.
    let sin = y.sin();
    let zero = x.sign_one() * sin.sign_one() * 0.0;
    Z { re: x.cosh() * y.cos(), im: flat.pick(zero, x.sinh() * sin) }
}

/// With `t = tanh x`, `u = tan y`: `(t (1 + u²) + i u / cosh² x) / (1 + t² u²)`; far out `±1 + 4 i sin y cos y exp(-2|x|)`.
fn hyperbolic_tangent(z: Z<'_>) -> Z<'_> {
    let (x, y) = (z.re, z.im);
    let ax = x.abs();
    let far = ax.gt(x.limit(40.0, 350.0));
    let (t, u) = (x.tanh(), y.tan());
    let product = t * u;
    let rest = product * product + 1.0;
    let narrow = 1.0 / x.cosh();
    let re = t * (u * u + 1.0) / rest;
    let im = (u / rest * narrow) * narrow;
    let tail = y.sin() * y.cos() * 4.0 * (ax * -2.0).exp();
    let tail = ax.eq(f64::INFINITY).pick((y * 0.0).abs().with_sign_of(tail), tail);
    Z { re: far.pick(x.sign_one(), re), im: far.pick(tail, im) }
}

/// Magnitudes from which on `z² ± 1` is `z²`, a fourth of the largest number.
fn is_large<'f>(z: Z<'f>) -> Mask<'f> {
    z.re.abs().max(z.im.abs()).gt(z.re.limit(8e37, 4e307))
}

/// `log 2|z|` of a large z.
fn log_of_twice<'f>(z: Z<'f>) -> Num<'f> {
    (z.re * 0.5).hypot(z.im * 0.5).log() + 2.0 * LN_2
}

fn inverse_hyperbolic_sine(z: Z<'_>) -> Z<'_> {
    let (x, y) = (z.re, z.im);
    let s = root(Z { re: y + 1.0, im: -x });
    let t = root(Z { re: 1.0 - y, im: x });
    let large = is_large(z);
    let re = large.pick(log_of_twice(z).with_sign_of(x), (s.re * t.im - t.re * s.im).asinh());
    let im = y.atan2(large.pick(x.abs(), s.re * t.re - s.im * t.im));
    Z { re, im }
}

fn inverse_cosine(z: Z<'_>) -> Z<'_> {
    let (x, y) = (z.re, z.im);
    let s = root(Z { re: 1.0 - x, im: -y });
    let t = root(Z { re: x + 1.0, im: y });
    let large = is_large(z);
    let re = large.pick(y.abs().atan2(x), s.re.atan2(t.re) * 2.0);
    let im = large.pick(log_of_twice(z).with_sign_of(-y), (t.re * s.im - t.im * s.re).asinh());
    Z { re, im }
}

fn inverse_hyperbolic_cosine(z: Z<'_>) -> Z<'_> {
    let (x, y) = (z.re, z.im);
    let s = root(Z { re: x - 1.0, im: y });
    let t = root(Z { re: x + 1.0, im: y });
    let large = is_large(z);
    let re = large.pick(log_of_twice(z), (s.re * t.re + s.im * t.im).asinh());
    let im = large.pick(y.atan2(x), s.im.atan2(t.re) * 2.0);
    Z { re, im }
}

/// On the right half plane `log1p(4x / ((1 - x)² + y²)) / 4` and `-atan2(-2y, (1 - x)(1 + x) - y²) / 2`; the left half is
/// its mirror image.
fn inverse_hyperbolic_tangent(z: Z<'_>) -> Z<'_> {
    let sign = z.re.sign_one();
    let (x, y) = (z.re.abs(), z.im * sign);
    let ay = y.abs();
    let far = x.max(ay).gt(x.limit(9e18, 6e153));
    let h = (x * 0.5).hypot(y * 0.5);
    let far_re = h.eq(f64::INFINITY).pick(0.0, x / 4.0 / h / h);
    // Close to the pole at 1 the square of y is lost.
    let pole = x.eq(1.0).and(ay.lt(x.limit(1e-19, 1e-154)));
    let pole_re = -(ay.sqrt() / ay.hypot(ay.constant(2.0)).sqrt()).log();
    let pole_im = (ay.constant(2.0).atan2(-ay) * 0.5).with_sign_of(y);
    let pole_im = ay.eq(0.0).pick(y, pole_im);
    let one_less = 1.0 - x;
    let re = (x * 4.0 / (one_less * one_less + ay * ay)).log1p() * 0.25;
    let im = (y * -2.0).atan2(one_less * (x + 1.0) - ay * ay) * -0.5;
    let re = far.pick(far_re, pole.pick(pole_re, re));
    let im = far.pick(ay.constant(FRAC_PI_2).with_sign_of(y), pole.pick(pole_im, im));
    Z { re: re * sign, im: im * sign }
}

/// Largest whole exponent that is multiplied out.
const LARGEST_POWER: i64 = 32;

/// Powers: whole numbers by repeated squaring, halves by roots, all else by `exp(b log a)`.
pub(super) fn pow(b: &mut Builder<'_>, call: &ComplexCall<'_>) -> SplitResult {
    let exponent = match call.arg("b") {
        SplitArg::Real(arg) => arg.as_scalar().and_then(real_exponent),
        _ => None,
    };
    let z = call.operand(b, "a")?;
    let w = call.operand(b, "b")?;
    let dtype = call.part_dtype(b)?;
    let at = Formula::new(b, dtype);
    let (z, w) = (at.complex(z), at.complex(w));
    let out = match exponent {
        Some(0.5) => root(z),
        Some(-0.5) => reciprocal(root(z)),
        Some(n) if n.fract() == 0.0 && n != 0.0 && n.abs() <= LARGEST_POWER as f64 => {
            let power = whole_power(z, n.abs() as i64);
            if n < 0.0 { reciprocal(power) } else { power }
        }
        _ => general_power(z, w),
    };
    let out = out.parts();
    Ok(smallvec![at.done(out)?.into()])
}

fn real_exponent(s: Scalar) -> Option<f64> {
    match s {
        Scalar::Complex(re, 0.0) => Some(re),
        Scalar::Complex(..) => None,
        real => Some(real.as_f64()),
    }
}

/// `n` is positive.
fn whole_power(z: Z<'_>, n: i64) -> Z<'_> {
    let (mut square, mut result, mut n) = (z, None, n);
    loop {
        if n & 1 == 1 {
            result = Some(result.map_or(square, |r: Z<'_>| r * square));
        }
        n >>= 1;
        match result {
            Some(result) if n == 0 => return result,
            _ => square = square * square,
        }
    }
}

/// `exp(b log a)`; of zero 1, 0 or `NaN` as the exponent is zero, has a positive real part, or not.
fn general_power<'f>(a: Z<'f>, b: Z<'f>) -> Z<'f> {
    let power = exponential(b * logarithm(a));
    let zero = a.re.eq(0.0).and(a.im.eq(0.0));
    let flat = b.re.eq(0.0).and(b.im.eq(0.0));
    let of_zero = b.re.gt(0.0).pick(0.0, f64::NAN);
    let re = flat.pick(1.0, zero.pick(of_zero, power.re));
    let im = flat.pick(0.0, zero.pick(of_zero, power.im));
    Z { re, im }
}
