//! Elementary functions of `f32` as straight-line polynomial code, the same for every emitter and number of lanes.
//!
//! All coefficients are this project's own weighted minimax fits (Lawson iteration on Chebyshev nodes in double
//! precision, rounded to `f32`). Errors are the largest seen by the tests in `tests/suite/scalar_ops.rs` against the double-precision
//! reference: `exp`, `exp2` 2 ulp, `expm1` 3 ulp, `log`, `log2`, `log1p` 3 ulp, `tanh` 3 ulp, `erf` 3 ulp, `sin`, `cos` 2 ulp.
//! Special values (NaN, infinities, signed zeros, denormals) come out as the reference has them.

use cranelift_codegen::ir::condcodes::FloatCC;

use super::Lanes;

/// `(e^r - 1 - r) / r²` on |r| <= ln 2 / 2.
const EXP: [f32; 5] = [0.5, 0.166_665_12, 0.041_666_187, 0.008_369_599, 0.001_395_171_7];
/// The same on |r| <= 1.
const EXPM1: [f32; 8] = [
    0.5,
    0.166_666_66,
    0.041_666_795,
    0.008_333_359,
    0.001_388_420_5,
    0.000_198_346_7,
    2.542_688_7e-5,
    2.824_528e-6,
];
/// `(log(1 + f) - f + f²/2) / f³` for 1 + f in [√½, √2].
const LOG: [f32; 9] = [
    0.333_333_1,
    -0.249_999_87,
    0.200_022_27,
    -0.166_692_51,
    0.142_186_52,
    -0.123_843_305,
    0.118_730_08,
    -0.117_899_336,
    0.069_154_47,
];
/// `(tanh(x)/x - 1) / x²` in x² for |x| <= 0.625.
const TANH: [f32; 5] = [-0.333_332_84, 0.133_314_91, -0.053_743_497, 0.020_650_579, -0.005_717_037];
/// `erf(x)/x - 1` in x² for |x| <= 0.9.
const ERF_SMALL: [f32; 7] = [
    0.128_379_17,
    -0.376_126_35,
    0.112_837_195,
    -0.026_860_753,
    0.005_204_436,
    -0.000_818_192_7,
    8.538_839e-5,
];
/// `log(erfc(t))` for t in [0.88, 4].
const ERF_LARGE: [f32; 9] = [
    0.000_143_965,
    -1.129_346_3,
    -0.633_744_66,
    -0.107_754_014,
    0.024_692_845,
    -0.003_954_021_3,
    0.000_366_825_93,
    -9.295_921e-6,
    -8.819_526e-7,
];
/// `(sin(r)/r - 1) / r²` in r² for |r| <= π/4.
pub(super) const SIN: [f32; 4] = [-0.166_666_67, 0.008_333_329, -0.000_198_392_56, 2.717_564_5e-6];
/// `(cos(r) - 1 + r²/2) / r⁴` in r² for |r| <= π/4.
pub(super) const COS: [f32; 3] = [0.041_666_646, -0.001_388_730_6, 2.443_120_3e-5];

/// ln 2 in two parts; the first has trailing zeros, so that its product with an exponent is exact.
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = -0.000_212_194_44;

/// The functions, over any emitter.
pub(crate) trait Elementary: Lanes {
    /// `x` limited to `[lo, hi]`; NaN stays.
    fn clamp(&mut self, x: Self::V, lo: f32, hi: f32) -> Self::V {
        let (lo, hi) = (self.f32(lo), self.f32(hi));
        let x = self.smaller(hi, x);
        self.larger(lo, x)
    }

    /// `e^r` for small r.
    fn exp_small(&mut self, r: Self::V) -> Self::V {
        let q = self.poly(r, &EXP);
        let rr = self.fmul(r, r);
        let p = self.mul_add(q, rr, r);
        let one = self.f32(1.0);
        self.fadd(p, one)
    }

    /// `x = n * ln 2 + r`: `(r, n)`, for |x| < 2^20.
    fn exp_split(&mut self, x: Self::V) -> (Self::V, Self::V) {
        let log2e = self.f32(std::f32::consts::LOG2_E);
        let t = self.fmul(x, log2e);
        let (nf, n) = self.nearest(t);
        let (hi, lo) = (self.f32(-LN2_HI), self.f32(-LN2_LO));
        let r = self.mul_add(nf, hi, x);
        (self.mul_add(nf, lo, r), n)
    }

    fn exp_f32(&mut self, x: Self::V) -> Self::V {
        let x = self.clamp(x, -104.0, 89.0);
        let (r, n) = self.exp_split(x);
        let p = self.exp_small(r);
        self.scale(p, n)
    }

    /// `e^x` for -87 <= x <= 88: neither denormal nor infinite, so that scaling is simpler.
    fn exp_bounded(&mut self, x: Self::V) -> Self::V {
        let (r, n) = self.exp_split(x);
        let p = self.exp_small(r);
        self.scale_bounded(p, n)
    }

    fn exp2_f32(&mut self, x: Self::V) -> Self::V {
        let x = self.clamp(x, -151.0, 129.0);
        let (nf, n) = self.nearest(x);
        let f = self.fsub(x, nf);
        let ln2 = self.f32(std::f32::consts::LN_2);
        let r = self.fmul(f, ln2);
        let p = self.exp_small(r);
        self.scale(p, n)
    }

    fn expm1_f32(&mut self, x: Self::V) -> Self::V {
        let q = self.poly(x, &EXPM1);
        let xx = self.fmul(x, x);
        let small = self.mul_add(q, xx, x);
        let one = self.f32(1.0);
        let e = self.exp_f32(x);
        let large = self.fsub(e, one);
        // Keeps the sign of zero, which x² * q + x loses for -0.0 + 0.0.
        let zero = self.f32(0.0);
        let is_zero = self.fcmp(FloatCC::Equal, x, zero);
        let small = self.select(is_zero, x, small);
        let a = self.fabs(x);
        let inside = self.fcmp(FloatCC::LessThan, a, one);
        self.select(inside, small, large)
    }

    /// `x = 2^e * (1 + f)` with 1 + f in [√½, √2]: `(e as float, f)`, for positive x.
    fn split(&mut self, x: Self::V) -> (Self::V, Self::V) {
        let tiny = self.f32(f32::MIN_POSITIVE);
        let denormal = self.fcmp(FloatCC::LessThan, x, tiny);
        let up = self.f32(8_388_608.0);
        let scaled = self.fmul(x, up);
        let x = self.select(denormal, scaled, x);
        let (down, none) = (self.f32(-23.0), self.f32(0.0));
        let shift = self.select(denormal, down, none);
        let bits = self.as_i32(x);
        let root = self.i32(0x3f35_04f3);
        let over = self.isub(bits, root);
        let e = self.sshr(over, 23);
        let exponent = self.shl(e, 23);
        let m = self.isub(bits, exponent);
        let m = self.as_f32(m);
        let one = self.f32(1.0);
        let f = self.fsub(m, one);
        let e = self.to_float(e);
        (self.fadd(e, shift), f)
    }

    /// `log(1 + f) - f` for the f of `split`.
    fn log_tail(&mut self, f: Self::V) -> Self::V {
        let q = self.poly(f, &LOG);
        let ff = self.fmul(f, f);
        let fff = self.fmul(ff, f);
        let cubic = self.fmul(q, fff);
        let half = self.f32(-0.5);
        self.mul_add(half, ff, cubic)
    }

    /// Logarithms outside of the positive finite numbers.
    fn log_special(&mut self, x: Self::V, result: Self::V) -> Self::V {
        let (zero, inf) = (self.f32(0.0), self.f32(f32::INFINITY));
        let (low, nan) = (self.f32(f32::NEG_INFINITY), self.f32(f32::NAN));
        let finite = self.fcmp(FloatCC::LessThan, x, inf);
        // Infinity and NaN are returned unchanged.
        let r = self.select(finite, result, x);
        let is_zero = self.fcmp(FloatCC::Equal, x, zero);
        let r = self.select(is_zero, low, r);
        let negative = self.fcmp(FloatCC::LessThan, x, zero);
        self.select(negative, nan, r)
    }

    fn log_f32(&mut self, x: Self::V) -> Self::V {
        let (e, f) = self.split(x);
        let tail = self.log_tail(f);
        let (hi, lo) = (self.f32(LN2_HI), self.f32(LN2_LO));
        let small = self.mul_add(e, lo, tail);
        let sum = self.fadd(small, f);
        let r = self.mul_add(e, hi, sum);
        self.log_special(x, r)
    }

    fn log2_f32(&mut self, x: Self::V) -> Self::V {
        let (e, f) = self.split(x);
        let tail = self.log_tail(f);
        // log2(e) = 1.4375 + the rest, so that the large part of the product is nearly exact.
        let (hi, lo) = (self.f32(1.4375), self.f32(0.005_195_041));
        let low = self.fmul(f, lo);
        let low = self.mul_add(tail, lo, low);
        let low = self.mul_add(tail, hi, low);
        let sum = self.mul_add(f, hi, low);
        let r = self.fadd(sum, e);
        self.log_special(x, r)
    }

    /// `log(u) + (x - (u - 1)) / u` with `u = 1 + x`: the quotient restores what rounding u lost.
    fn log1p_f32(&mut self, x: Self::V) -> Self::V {
        let (one, zero) = (self.f32(1.0), self.f32(0.0));
        let u = self.fadd(x, one);
        let log = self.log_f32(u);
        let um1 = self.fsub(u, one);
        let lost = self.fsub(x, um1);
        let correction = self.fdiv(lost, u);
        let sum = self.fadd(log, correction);
        let same = self.fcmp(FloatCC::Equal, u, one);
        let r = self.select(same, x, sum);
        // u = 0 and u = infinity: the correction is not a number, the logarithm is right.
        let inf = self.f32(f32::INFINITY);
        let at_zero = self.fcmp(FloatCC::Equal, u, zero);
        let r = self.select(at_zero, log, r);
        let at_inf = self.fcmp(FloatCC::Equal, u, inf);
        self.select(at_inf, log, r)
    }

    fn tanh_f32(&mut self, x: Self::V) -> Self::V {
        let a = self.fabs(x);
        let z = self.fmul(x, x);
        let q = self.poly(z, &TANH);
        let zq = self.fmul(z, q);
        let small = self.mul_add(zq, x, x);
        // 1 - 2 / (e^2a + 1); beyond 10 the result is 1 and the exponential would only grow.
        let twice = self.fadd(a, a);
        let limit = self.f32(40.0);
        let twice = self.smaller(twice, limit);
        let e = self.exp_bounded(twice);
        let one = self.f32(1.0);
        let e1 = self.fadd(e, one);
        let two = self.f32(2.0);
        let q = self.fdiv(two, e1);
        let large = self.fsub(one, q);
        let large = self.copysign_f32(large, x);
        let limit = self.f32(0.625);
        let inside = self.fcmp(FloatCC::LessThan, a, limit);
        let r = self.select(inside, small, large);
        let nan = self.is_nan(x);
        self.select(nan, x, r)
    }

    fn erf_f32(&mut self, x: Self::V) -> Self::V {
        let a = self.fabs(x);
        let z = self.fmul(x, x);
        let q = self.poly(z, &ERF_SMALL);
        let small = self.mul_add(q, x, x);
        let limit = self.f32(4.0);
        let t = self.smaller(a, limit);
        let p = self.poly(t, &ERF_LARGE);
        let e = self.exp_bounded(p);
        let one = self.f32(1.0);
        let large = self.fsub(one, e);
        let large = self.copysign_f32(large, x);
        let edge = self.f32(0.89);
        let inside = self.fcmp(FloatCC::LessThan, a, edge);
        let r = self.select(inside, small, large);
        let nan = self.is_nan(x);
        self.select(nan, x, r)
    }
}

impl<L: Lanes> Elementary for L {}
