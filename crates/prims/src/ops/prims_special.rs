//! Prims that iterate as often as their operands demand: orthogonal polynomials of a degree given by a tensor, the
//! incomplete gamma function, the greatest common divisor.

use fx_ir::{Arg, ValueId, ValueType};
use ir_core::DType;
use kernel_ir::{ScalarOp, Val};
use smallvec::SmallVec;
use tensor::Tensor;

use super::prims_shape::one;
use crate::builder::tensor;
use crate::{Call, Grad, Kind, LoopCx, Lower, MetaCx, OpDef, OpError, RefCall, RefOut, Reference, Tolerance};

type Types = SmallVec<[ValueType; 1]>;

const NO_LOOP: &str = "the number of iterations depends on the data, and kernels have no loops over it";

/// The entries.
pub(super) const OPS: &[OpDef] = &[
    // The polynomial of a family ("chebyshev_t", "chebyshev_u", "chebyshev_v", "chebyshev_w", "hermite_h", "hermite_he",
    // "laguerre_l", "legendre_p") and of degree `n`, truncated, at `x`; 0 for a negative degree. Floats of one dtype.
    OpDef {
        schema: "prims::polynomial(Tensor x, Tensor n, str family) -> Tensor",
        kind: Kind::Prim {
            meta: |cx, call| {
                Family::of(call.opt_str("family")?.unwrap_or(""))
                    .ok_or_else(|| call.bad_arg("family", "is unknown"))?;
                meta_pair(cx, call, "x", "n", DType::is_float)
            },
            lower: Lower::Unsupported(NO_LOOP),
            reference: Reference::Fn(ref_polynomial),
        },
        grad: Grad::Unwritten,
        tolerance: Tolerance::ACCUMULATE,
        samples: |s| {
            for family in FAMILIES {
                let n = Tensor::from_vec((0..12).map(|i| i as f64 - 1.0).collect::<Vec<_>>(), &[12]);
                let n = n.and_then(|t| t.to_dtype(DType::F32)).expect("a sample fits memory");
                let args = vec![Arg::Value(ValueId(0)), Arg::Value(ValueId(1)), family.0.into()];
                s.add(vec![s.float("x", &[12]), n], args);
            }
        },
    },
    // The regularized lower incomplete gamma function P(a, x), with `upper` Q(a, x) = 1 - P(a, x). Floats of one dtype.
    OpDef {
        schema: "prims::gammainc(Tensor a, Tensor x, bool upper) -> Tensor",
        kind: Kind::Prim {
            meta: |cx, call| meta_pair(cx, call, "a", "x", DType::is_float),
            lower: Lower::Unsupported(NO_LOOP),
            reference: Reference::Fn(ref_gammainc),
        },
        grad: Grad::Unwritten,
        tolerance: Tolerance::ACCUMULATE,
        samples: |s| {
            for upper in [false, true] {
                let args = vec![Arg::Value(ValueId(0)), Arg::Value(ValueId(1)), upper.into()];
                s.add(vec![s.float("a", &[12]), s.float("x", &[12])], args);
            }
        },
    },
    // The greatest common divisor of integers of one dtype; not negative, 0 for two zeros.
    OpDef {
        schema: "prims::gcd(Tensor a, Tensor b) -> Tensor",
        kind: Kind::Prim {
            meta: |cx, call| meta_pair(cx, call, "a", "b", DType::is_int),
            lower: Lower::Loop(lower_gcd),
            reference: Reference::Fn(ref_gcd),
        },
        grad: Grad::NotDifferentiable("it works on integers"),
        tolerance: Tolerance::EXACT,
        samples: |s| {
            s.add(
                vec![s.ints("a", &[20], 100), s.ints("b", &[20], 30)],
                vec![Arg::Value(ValueId(0)), Arg::Value(ValueId(1))],
            )
        },
    },
];

fn meta_pair(
    cx: &MetaCx<'_>,
    call: &Call<'_>,
    a: &str,
    b: &str,
    takes: fn(DType) -> bool,
) -> Result<Types, OpError> {
    let (a, b) = (cx.meta(call, a)?, cx.meta(call, b)?);
    if !takes(a.dtype) {
        return Err(OpError::DType { op: call.name().into(), dtype: a.dtype });
    }
    if a.dtype != b.dtype || a.sizes != b.sizes {
        return Err(call.invalid(format!("{a} and {b} differ in dtype or sizes")));
    }
    Ok(tensor(a.dtype, a.sizes.iter().cloned()))
}

/// Applies a function of two numbers to every pair.
fn pairs(c: &RefCall<'_>, a: &str, b: &str, f: impl Fn(f64, f64) -> f64) -> Result<RefOut, OpError> {
    let (a, b) = (c.tensor(a)?, c.tensor(b)?);
    let values: Vec<f64> = a.iter_f64().zip(b.iter_f64()).map(|(a, b)| f(a, b)).collect();
    one(c, Tensor::from_vec(values, a.sizes()).and_then(|t| t.to_dtype(c.out().0)))
}

/// A family of polynomials.
#[derive(Clone, Copy)]
struct Family(&'static str);

const FAMILIES: [Family; 8] = [
    Family("chebyshev_t"),
    Family("chebyshev_u"),
    Family("chebyshev_v"),
    Family("chebyshev_w"),
    Family("hermite_h"),
    Family("hermite_he"),
    Family("laguerre_l"),
    Family("legendre_p"),
];

/// Degrees over this are not iterated: the result is `NaN`.
const LARGEST_DEGREE: i64 = 1 << 20;

impl Family {
    fn of(name: &str) -> Option<Family> {
        FAMILIES.into_iter().find(|f| f.0 == name)
    }
    /// The polynomial of degree 1.
    fn first(self, x: f64) -> f64 {
        match self.0 {
            "chebyshev_u" | "hermite_h" => 2.0 * x,
            "chebyshev_v" => 2.0 * x - 1.0,
            "chebyshev_w" => 2.0 * x + 1.0,
            "laguerre_l" => 1.0 - x,
            _ => x,
        }
    }
    /// The polynomial of degree k + 1 from those of degree k and k - 1 (DLMF table 18.9.1).
    fn next(self, k: f64, x: f64, at: f64, before: f64) -> f64 {
        match self.0 {
            "hermite_h" => 2.0 * x * at - 2.0 * k * before,
            "hermite_he" => x * at - k * before,
            "laguerre_l" => ((2.0 * k + 1.0 - x) * at - k * before) / (k + 1.0),
            "legendre_p" => ((2.0 * k + 1.0) * x * at - k * before) / (k + 1.0),
            _ => 2.0 * x * at - before,
        }
    }
    /// Within (-1, 1) the Chebyshev polynomials are quotients of waves (DLMF 18.5.1 to 18.5.4).
    fn wave(self, n: f64, x: f64) -> Option<f64> {
        let angle = x.acos();
        match self.0 {
            _ if x.abs() >= 1.0 || n < 9.0 => None,
            "chebyshev_t" => Some((n * angle).cos()),
            "chebyshev_u" => Some(((n + 1.0) * angle).sin() / angle.sin()),
            "chebyshev_v" => Some(((n + 0.5) * angle).cos() / (angle / 2.0).cos()),
            "chebyshev_w" => Some(((n + 0.5) * angle).sin() / (angle / 2.0).sin()),
            _ => None,
        }
    }
    /// Hermite polynomials of higher degree are `NaN`, as PyTorch has it.
    fn limit(self, dtype: DType) -> i64 {
        match (self.0, dtype) {
            ("hermite_h" | "hermite_he", DType::F64) => 512,
            ("hermite_h" | "hermite_he", _) => 128,
            _ => LARGEST_DEGREE,
        }
    }
    fn eval(self, n: i64, x: f64, limit: i64) -> f64 {
        if n < 0 {
            return 0.0;
        }
        if let Some(value) = self.wave(n as f64, x) {
            return value;
        }
        if n > limit {
            return f64::NAN;
        }
        let (mut before, mut at) = (1.0, self.first(x));
        if n == 0 {
            return before;
        }
        for k in 1..n {
            if at.is_nan() {
                break;
            }
            (before, at) = (at, self.next(k as f64, x, at, before));
        }
        at
    }
}

fn ref_polynomial(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let family = match c.arg("family") {
        crate::RefArg::Str(name) => Family::of(name),
        _ => None,
    };
    let family = family.ok_or_else(|| c.bad_arg("family", "is unknown"))?;
    let limit = family.limit(c.out().0);
    pairs(c, "x", "n", |x, n| family.eval(n as i64, x, limit))
}

fn ref_gammainc(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let upper = c.bool("upper")?;
    pairs(c, "a", "x", |a, x| gammainc(a, x, upper))
}

/// Edge values, then the series (DLMF 8.11.4) below a + 1 and the continued fraction (DLMF 8.9.2) above.
fn gammainc(a: f64, x: f64, upper: bool) -> f64 {
    let side = |lower: f64| if upper { 1.0 - lower } else { lower };
    if a.is_nan()
        || x.is_nan()
        || a < 0.0
        || x < 0.0
        || (a == 0.0 && x == 0.0)
        || (a.is_infinite() && x.is_infinite())
    {
        return f64::NAN;
    }
    if a == 0.0 || x.is_infinite() {
        return side(1.0);
    }
    if x == 0.0 || a.is_infinite() {
        return side(0.0);
    }
    let scale = (a * x.ln() - x - lgamma(a)).exp();
    if x < a + 1.0 {
        return side(scale * lower_series(a, x));
    }
    let q = scale * upper_fraction(a, x);
    if upper { q } else { 1.0 - q }
}

fn lgamma(a: f64) -> f64 {
    ScalarOp::Lgamma.eval(DType::F64, &[a.into()]).as_f64()
}

/// `sum over n of x^n / (a (a + 1) … (a + n))`.
fn lower_series(a: f64, x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (1.0 / a, 1.0 / a, a);
    for _ in 0..LARGEST_DEGREE {
        n += 1.0;
        term *= x / n;
        sum += term;
        if term < sum * f64::EPSILON {
            break;
        }
    }
    sum
}

/// The continued fraction by Lentz's method.
fn upper_fraction(a: f64, x: f64) -> f64 {
    let tiny = f64::MIN_POSITIVE / f64::EPSILON;
    let mut denominator = x + 1.0 - a;
    let (mut c, mut d) = (1.0 / tiny, 1.0 / denominator);
    let mut h = d;
    for i in 1..LARGEST_DEGREE {
        let i = i as f64;
        let an = -i * (i - a);
        denominator += 2.0;
        d = an * d + denominator;
        d = if d.abs() < tiny { tiny } else { d };
        c = denominator + an / c;
        c = if c.abs() < tiny { tiny } else { c };
        d = 1.0 / d;
        let step = d * c;
        h *= step;
        if (step - 1.0).abs() < f64::EPSILON {
            break;
        }
    }
    h
}

/// Euclid's steps for a dtype: Fibonacci numbers take the most.
fn gcd_steps(dtype: DType) -> usize {
    dtype.size() * 8 * 3 / 2
}

fn lower_gcd(cx: &mut LoopCx<'_>) -> Result<Val, OpError> {
    let index = cx.index.clone();
    let mut a = cx.load_arg("a", index.clone())?;
    let mut b = cx.load_arg("b", index)?;
    let dtype = cx.b.dtype(a);
    let zero = cx.b.constant(0i64, dtype);
    for _ in 0..gcd_steps(dtype) {
        // The remainder by zero is zero: a finished pair stays.
        let done = cx.b.op(ScalarOp::Eq, &[b, zero]);
        let rest = cx.b.op(ScalarOp::Rem, &[a, b]);
        (a, b) = (cx.b.select(done, a, b), rest);
    }
    Ok(if dtype == DType::U8 { a } else { cx.b.op(ScalarOp::Abs, &[a]) })
}

fn ref_gcd(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (a, b) = (c.tensor("a")?, c.tensor("b")?);
    let gcd = |(mut a, mut b): (i64, i64)| {
        while b != 0 {
            (a, b) = (b, a.wrapping_rem(b));
        }
        a.wrapping_abs()
    };
    let values: Vec<i64> = a.iter_i64().zip(b.iter_i64()).map(gcd).collect();
    one(c, Tensor::from_vec(values, a.sizes()).and_then(|t| t.to_dtype(c.out().0)))
}
