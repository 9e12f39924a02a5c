//! Scalar operators as C++ text, one match arm per operator: a new operator does not compile until it is here.

use ir_core::{Class, DType, Scalar};
use kernel_ir::{ReduceOp, ScalarOp};

use crate::GenError;
use crate::text::body::Uses;
use crate::text::types::value_type;

/// Returns the operator applied to operands of `dtype`; the text has the result's type.
pub(crate) fn apply(op: ScalarOp, dtype: DType, args: &[String]) -> Result<String, GenError> {
    let refuse = || GenError::Op { op: op.name(), dtype };
    let text = match dtype.class() {
        _ if op == ScalarOp::Select => Some(format!("({} ? {} : {})", args[0], args[1], args[2])),
        _ if op == ScalarOp::Philox => {
            (dtype == DType::I64).then(|| format!("op_philox({}, {}, {})", args[0], args[1], args[2]))
        }
        Class::Float => float(op, dtype, args),
        Class::Int => integer(op, dtype, args)?,
        Class::Bool => boolean(op, args),
        Class::Complex => None,
    };
    text.ok_or_else(refuse)
}

/// `x / d` by the reciprocal of `d`, which CUDA approximates; it alone where `x` is 1. A rough one may be 0 where it is below
/// the smallest normal number.
pub(crate) fn by_reciprocal(args: &[String], one: bool, rough: bool) -> String {
    let name = if rough { "reciprocal_flushed" } else { "reciprocal" };
    match args {
        [x, d] if !one => format!("({x} * {name}({d}))"),
        all => format!("{name}({})", all.last().map_or("1.0f", String::as_str)),
    }
}

/// A function in `f32` to some 17 bits, where there is one that is quicker than with all digits.
pub(crate) fn rough(op: ScalarOp, args: &[String]) -> Option<String> {
    let all = args.join(", ");
    match op {
        // The product is rounded before it is an exponent.
        ScalarOp::Exp => Some(format!("exp2_flushed({all} * 1.4426950408889634f)")),
        ScalarOp::Erf => Some(format!("rough_erf({all})")),
        _ => None,
    }
}

/// The quotient `x / c` in `f32` by multiplications.
pub(crate) fn divided_by(x: &str, c: f32, uses: &mut Uses) -> Result<String, GenError> {
    let mut text = |x: f32| uses.number(Scalar::Float(x.into()), DType::F32);
    let (divisor, reciprocal) = (text(c)?, text(c.recip())?);
    // The reciprocal of a power of two is exact.
    let power = c.to_bits() & 0x007f_ffff == 0;
    Ok(if power {
        format!("({x} * {reciprocal})")
    } else {
        format!("divided_by({x}, {divisor}, {reciprocal})")
    })
}

/// `a op b`.
fn infix(args: &[String], op: &str) -> Option<String> {
    Some(format!("({} {op} {})", args.first()?, args.get(1)?))
}

fn comparison(op: ScalarOp) -> Option<&'static str> {
    Some(match op {
        ScalarOp::Eq => "==",
        ScalarOp::Ne => "!=",
        ScalarOp::Lt => "<",
        ScalarOp::Le => "<=",
        ScalarOp::Gt => ">",
        ScalarOp::Ge => ">=",
        _ => return None,
    })
}

fn float(op: ScalarOp, dtype: DType, args: &[String]) -> Option<String> {
    let single = dtype == DType::F32;
    if let Some(c) = comparison(op) {
        return infix(args, c);
    }
    let all = args.join(", ");
    // A compiler's function: `sinf` in single precision, `sin` in double.
    let libm = |name: &str| Some(format!("{name}{}({all})", if single { "f" } else { "" }));
    // Functions of the prelude that compute in double precision.
    let through_double = |call: String| Some(if single { format!("(float){call}") } else { call });
    let polynomial = |kind: &str| {
        let limit = if single { 128 } else { 512 };
        through_double(format!("polynomial<{kind}>({all}, {limit})"))
    };
    match op {
        ScalarOp::Add => infix(args, "+"),
        ScalarOp::Sub => infix(args, "-"),
        ScalarOp::Mul => infix(args, "*"),
        ScalarOp::Div => infix(args, "/"),
        ScalarOp::Rem => libm("fmod"),
        ScalarOp::Pow => libm("pow"),
        ScalarOp::Atan2 => libm("atan2"),
        ScalarOp::Min => Some(format!("op_min({all})")),
        ScalarOp::Max => Some(format!("op_max({all})")),
        ScalarOp::CopySign => libm("copysign"),
        ScalarOp::NextAfter => libm("nextafter"),
        ScalarOp::Neg => Some(format!("(-{all})")),
        ScalarOp::Abs => libm("fabs"),
        ScalarOp::Floor => libm("floor"),
        ScalarOp::Ceil => libm("ceil"),
        ScalarOp::Trunc => libm("trunc"),
        ScalarOp::Round => libm("rint"),
        ScalarOp::Sqrt => libm("sqrt"),
        ScalarOp::Rsqrt => libm("rsqrt"),
        ScalarOp::Exp => libm("exp"),
        ScalarOp::Exp2 => libm("exp2"),
        ScalarOp::Expm1 => libm("expm1"),
        ScalarOp::Log => libm("log"),
        ScalarOp::Log2 => libm("log2"),
        ScalarOp::Log10 => libm("log10"),
        ScalarOp::Log1p => libm("log1p"),
        ScalarOp::Sin => libm("sin"),
        ScalarOp::Cos => libm("cos"),
        ScalarOp::Tan => libm("tan"),
        ScalarOp::Asin => libm("asin"),
        ScalarOp::Acos => libm("acos"),
        ScalarOp::Atan => libm("atan"),
        ScalarOp::Sinh => libm("sinh"),
        ScalarOp::Cosh => libm("cosh"),
        ScalarOp::Tanh => libm("tanh"),
        ScalarOp::Asinh => libm("asinh"),
        ScalarOp::Acosh => libm("acosh"),
        ScalarOp::Atanh => libm("atanh"),
        ScalarOp::Erf => libm("erf"),
        ScalarOp::Erfc => libm("erfc"),
        ScalarOp::Erfinv => libm("erfinv"),
        ScalarOp::Lgamma => libm("lgamma"),
        ScalarOp::Digamma => through_double(format!("op_digamma({all})")),
        ScalarOp::ChebyshevT => polynomial("CHEBYSHEV_T"),
        ScalarOp::ChebyshevU => polynomial("CHEBYSHEV_U"),
        ScalarOp::ChebyshevV => polynomial("CHEBYSHEV_V"),
        ScalarOp::ChebyshevW => polynomial("CHEBYSHEV_W"),
        ScalarOp::HermiteH => polynomial("HERMITE_H"),
        ScalarOp::HermiteHe => polynomial("HERMITE_HE"),
        ScalarOp::LaguerreL => polynomial("LAGUERRE_L"),
        ScalarOp::LegendreP => polynomial("LEGENDRE_P"),
        ScalarOp::Igamma => through_double(format!("op_igamma({all}, false)")),
        ScalarOp::Igammac => through_double(format!("op_igamma({all}, true)")),
        ScalarOp::And | ScalarOp::Or | ScalarOp::Xor | ScalarOp::Not | ScalarOp::Shl | ScalarOp::Shr => None,
        ScalarOp::Eq | ScalarOp::Ne | ScalarOp::Lt | ScalarOp::Le | ScalarOp::Gt | ScalarOp::Ge => None,
        ScalarOp::Philox | ScalarOp::Select => None,
    }
}

/// Integers are computed in 64 bits and wrap to their width, in unsigned arithmetic where C++ leaves overflow undefined.
fn integer(op: ScalarOp, dtype: DType, args: &[String]) -> Result<Option<String>, GenError> {
    if let Some(c) = comparison(op) {
        return Ok(infix(args, c));
    }
    let ty = value_type(dtype)?;
    let width = dtype.size() * 8;
    let unsigned = |o: &str| Some(format!("((u64)(i64){} {o} (u64)(i64){})", args[0], args.get(1)?));
    let call =
        |name: &str, more: &str| Some(format!("{name}((i64){}, (i64){}{more})", args[0], args.get(1)?));
    let shift = format!(", {width}");
    let wide = match op {
        ScalarOp::Add => unsigned("+"),
        ScalarOp::Sub => unsigned("-"),
        ScalarOp::Mul => unsigned("*"),
        ScalarOp::Div => call("int_div", ""),
        ScalarOp::Rem => call("int_rem", ""),
        ScalarOp::Pow => call("int_pow", ""),
        ScalarOp::Min => return Ok(Some(format!("op_min({})", args.join(", ")))),
        ScalarOp::Max => return Ok(Some(format!("op_max({})", args.join(", ")))),
        ScalarOp::And => infix(args, "&"),
        ScalarOp::Or => infix(args, "|"),
        ScalarOp::Xor => infix(args, "^"),
        ScalarOp::Shl => call("int_shl", &shift),
        ScalarOp::Shr => call("int_shr", &shift),
        ScalarOp::Not => Some(format!("(~{})", args[0])),
        ScalarOp::Neg => Some(format!("(0ULL - (u64)(i64){})", args[0])),
        ScalarOp::Abs => Some(format!("({0} < 0 ? 0ULL - (u64)(i64){0} : (u64)(i64){0})", args[0])),
        ScalarOp::Floor | ScalarOp::Ceil | ScalarOp::Trunc | ScalarOp::Round => {
            return Ok(Some(args[0].clone()));
        }
        _ => None,
    };
    Ok(wide.map(|text| format!("(({ty}){text})")))
}

fn boolean(op: ScalarOp, args: &[String]) -> Option<String> {
    if let Some(c) = comparison(op) {
        return infix(args, c);
    }
    match op {
        ScalarOp::Add | ScalarOp::Or | ScalarOp::Max => infix(args, "||"),
        ScalarOp::Mul | ScalarOp::And | ScalarOp::Min => infix(args, "&&"),
        ScalarOp::Xor | ScalarOp::Sub => infix(args, "!="),
        ScalarOp::Not => Some(format!("(!{})", args[0])),
        _ => Some(args.first()?.clone()),
    }
}

/// The prelude's name of a reduction operator.
pub(crate) fn reduction(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::Sum => "SUM",
        ReduceOp::Prod => "PROD",
        ReduceOp::Max => "MAX",
        ReduceOp::Min => "MIN",
        ReduceOp::Any => "ANY",
        ReduceOp::All => "ALL",
        ReduceOp::Xor => "XOR",
        ReduceOp::ArgMax => "ARGMAX",
        ReduceOp::ArgMin => "ARGMIN",
    }
}
