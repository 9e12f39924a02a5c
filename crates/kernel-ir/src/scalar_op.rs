//! The scalar operators of loop bodies. One row per operator: name, arity, dtype rule, doc and reference evaluation.
//!
//! Every operator is total: no input traps. Integer arithmetic wraps at the width of its dtype. Operators compute in
//! the dtype of their operands; 16-bit floats never reach an operator (bodies cast to `f32` first).

use ir_core::{DType, Scalar};
use serde::{Deserialize, Serialize};

/// Dtype of an operator's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DTypeRule {
    /// All operands have one dtype and so has the result.
    Same,
    /// All operands have one dtype, the result is `bool`.
    Compare,
    /// `(bool, T, T) -> T`.
    Select,
}

/// One row: `Variant "name" arity rule "doc" { float |args| expr, int |args| expr }`.
macro_rules! scalar_ops {
    ($($variant:ident $name:literal $arity:literal $rule:ident $doc:literal;)*) => {
        /// A scalar operator.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum ScalarOp { $(#[doc = $doc] #[serde(rename = $name)] $variant,)* }

        impl ScalarOp {
            /// Every operator, in table order.
            pub const ALL: &'static [ScalarOp] = &[$(ScalarOp::$variant,)*];
            /// Name in the text form.
            pub const fn name(self) -> &'static str {
                match self { $(ScalarOp::$variant => $name,)* }
            }
            /// Number of operands.
            pub const fn arity(self) -> usize {
                match self { $(ScalarOp::$variant => $arity,)* }
            }
            /// Dtype of the result.
            pub const fn dtype_rule(self) -> DTypeRule {
                match self { $(ScalarOp::$variant => DTypeRule::$rule,)* }
            }
            /// Exact meaning.
            pub const fn doc(self) -> &'static str {
                match self { $(ScalarOp::$variant => $doc,)* }
            }
        }
    };
}

scalar_ops! {
    Add "add" 2 Same "`a + b`; for `bool` the logical or.";
    Sub "sub" 2 Same "`a - b`.";
    Mul "mul" 2 Same "`a * b`; for `bool` the logical and.";
    Div "div" 2 Same "Floats: IEEE quotient. Integers: truncated towards zero; division by zero gives 0.";
    Rem "rem" 2 Same "Remainder of `div` with the sign of `a` (C's `fmod` and `%`); integers by zero give 0.";
    Pow "pow" 2 Same "Floats: C's `pow`. Integers: by repeated squaring, wrapping; a negative exponent gives 0 but for bases 1 and -1.";
    Atan2 "atan2" 2 Same "C's `atan2(a, b)`; floats only.";
    Min "min" 2 Same "The smaller; `NaN` where either is.";
    Max "max" 2 Same "The larger; `NaN` where either is.";
    CopySign "copysign" 2 Same "Magnitude of `a` with the sign of `b`; floats only.";
    NextAfter "nextafter" 2 Same "The neighbour of `a` towards `b`; floats only.";
    And "and" 2 Same "Bitwise and; `bool` or integers.";
    Or "or" 2 Same "Bitwise or; `bool` or integers.";
    Xor "xor" 2 Same "Bitwise exclusive or; `bool` or integers.";
    Shl "shl" 2 Same "`a << b`; 0 where `b` is negative or not less than the width.";
    Shr "shr" 2 Same "Arithmetic `a >> b` (logical for unsigned); a shift out of range counts as width - 1.";
    Not "not" 1 Same "Bitwise complement; logical for `bool`.";
    Neg "neg" 1 Same "`-a`.";
    Abs "abs" 1 Same "Magnitude; wraps for the smallest integer.";
    Floor "floor" 1 Same "Rounds down; integers stay.";
    Ceil "ceil" 1 Same "Rounds up; integers stay.";
    Trunc "trunc" 1 Same "Rounds towards zero; integers stay.";
    Round "round" 1 Same "Rounds half to even; integers stay.";
    Sqrt "sqrt" 1 Same "Square root; floats only, as all below up to `digamma`.";
    Rsqrt "rsqrt" 1 Same "`1 / sqrt(a)`.";
    Exp "exp" 1 Same "e to the power of `a`.";
    Exp2 "exp2" 1 Same "2 to the power of `a`.";
    Expm1 "expm1" 1 Same "`exp(a) - 1` without cancellation.";
    Log "log" 1 Same "Natural logarithm.";
    Log2 "log2" 1 Same "Logarithm to base 2.";
    Log10 "log10" 1 Same "Logarithm to base 10.";
    Log1p "log1p" 1 Same "`log(1 + a)` without cancellation.";
    Sin "sin" 1 Same "Sine.";
    Cos "cos" 1 Same "Cosine.";
    Tan "tan" 1 Same "Tangent.";
    Asin "asin" 1 Same "Inverse sine.";
    Acos "acos" 1 Same "Inverse cosine.";
    Atan "atan" 1 Same "Inverse tangent.";
    Sinh "sinh" 1 Same "Hyperbolic sine.";
    Cosh "cosh" 1 Same "Hyperbolic cosine.";
    Tanh "tanh" 1 Same "Hyperbolic tangent.";
    Asinh "asinh" 1 Same "Inverse hyperbolic sine.";
    Acosh "acosh" 1 Same "Inverse hyperbolic cosine.";
    Atanh "atanh" 1 Same "Inverse hyperbolic tangent.";
    Erf "erf" 1 Same "Error function.";
    Erfc "erfc" 1 Same "Complementary error function.";
    Erfinv "erfinv" 1 Same "Inverse error function.";
    Lgamma "lgamma" 1 Same "Logarithm of the magnitude of the gamma function.";
    Digamma "digamma" 1 Same "Derivative of `lgamma`.";
    ChebyshevT "chebyshev_t" 2 Same "Chebyshev polynomial of the first kind of degree `b` (truncated) at `a`; 0 for a negative degree and floats only, as all below up to `igammac`.";
    ChebyshevU "chebyshev_u" 2 Same "Chebyshev polynomial of the second kind.";
    ChebyshevV "chebyshev_v" 2 Same "Chebyshev polynomial of the third kind.";
    ChebyshevW "chebyshev_w" 2 Same "Chebyshev polynomial of the fourth kind.";
    HermiteH "hermite_h" 2 Same "Physicist's Hermite polynomial; `NaN` for degrees over 512 (128 in single precision).";
    HermiteHe "hermite_he" 2 Same "Probabilist's Hermite polynomial; `NaN` as `hermite_h`.";
    LaguerreL "laguerre_l" 2 Same "Laguerre polynomial.";
    LegendreP "legendre_p" 2 Same "Legendre polynomial.";
    Igamma "igamma" 2 Same "Regularized lower incomplete gamma function P(a, b); `NaN` for negative operands and at (0, 0).";
    Igammac "igammac" 2 Same "Regularized upper incomplete gamma function, 1 - P(a, b).";
    Eq "eq" 2 Compare "Equal; false with a `NaN`.";
    Ne "ne" 2 Compare "Not equal; true with a `NaN`.";
    Lt "lt" 2 Compare "Less; false with a `NaN`, as the next three.";
    Le "le" 2 Compare "Less or equal.";
    Gt "gt" 2 Compare "Greater.";
    Ge "ge" 2 Compare "Greater or equal.";
    Philox "philox" 3 Same "64 random bits, a function of `a` (the seed), `b` (the stream) and `c` (the index): words 0 (low half) and 1 of the Philox 4x32-10 block with key `a` and counter `c`, `b`; `i64` only.";
    Select "select" 3 Select "`b` where `a`, else `c`; neither is evaluated lazily.";
}

impl ScalarOp {
    /// The operator with this name.
    pub fn from_name(name: &str) -> Option<ScalarOp> {
        ScalarOp::ALL.iter().copied().find(|op| op.name() == name)
    }

    /// Dtype of the result for operands of these dtypes; `None` where the operator does not take them.
    pub fn result_dtype(self, args: &[DType]) -> Option<DType> {
        if args.len() != self.arity() {
            return None;
        }
        let same = |a: &[DType]| a.iter().all(|d| *d == a[0]).then(|| a[0]);
        match self.dtype_rule() {
            DTypeRule::Same => same(args),
            DTypeRule::Compare => same(args).map(|_| DType::Bool),
            DTypeRule::Select => (args[0] == DType::Bool).then(|| same(&args[1..]))?,
        }
    }

    /// The reference meaning: operands in the class of `dtype`, the result rounded or wrapped to it (`bool` for
    /// comparisons). `dtype` is that of the operands (of the branches for `select`).
    pub fn eval(self, dtype: DType, args: &[Scalar]) -> Scalar {
        eval::eval(self, dtype, args)
    }
}

mod complex;
mod eval;
pub(crate) mod philox;
mod special;
