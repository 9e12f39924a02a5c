//! Special functions computed by iteration: orthogonal polynomials, incomplete gamma functions, divisors.

use fx_ir::{Arg, ValueId};
use ir_core::DType;
use kernel_ir::ScalarOp;

use crate::ops::common::in_compute;
use crate::promotion::Promote;
use crate::{Builder, Call, OpDef, OpError, Outs};

/// A polynomial of a family; `shifted` ones are evaluated at `2 x - 1`.
macro_rules! polynomial {
    ($schema:literal, $op:expr, $shifted:literal) => {
        composite!($schema, |b, c| in_compute(b, c, Promote::IntToFloat, &["x", "n"], |b, xs| {
            let [mut x, n] = both(b, xs)?;
            if $shifted {
                let twice = b.mul(x, 2.0)?;
                x = b.sub(twice, 1.0)?;
            }
            b.scalar_op($op, &[x.into(), n.into()])
        }))
    };
}

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    polynomial!(
        "aten::special_chebyshev_polynomial_t(Tensor x, Tensor n) -> Tensor",
        ScalarOp::ChebyshevT,
        false
    ),
    polynomial!(
        "aten::special_chebyshev_polynomial_t.x_scalar(Scalar x, Tensor n) -> Tensor",
        ScalarOp::ChebyshevT,
        false
    ),
    polynomial!(
        "aten::special_chebyshev_polynomial_t.n_scalar(Tensor x, Scalar n) -> Tensor",
        ScalarOp::ChebyshevT,
        false
    ),
    polynomial!(
        "aten::special_chebyshev_polynomial_u(Tensor x, Tensor n) -> Tensor",
        ScalarOp::ChebyshevU,
        false
    ),
    polynomial!(
        "aten::special_chebyshev_polynomial_u.x_scalar(Scalar x, Tensor n) -> Tensor",
        ScalarOp::ChebyshevU,
        false
    ),
    polynomial!(
        "aten::special_chebyshev_polynomial_u.n_scalar(Tensor x, Scalar n) -> Tensor",
        ScalarOp::ChebyshevU,
        false
    ),
    polynomial!(
        "aten::special_chebyshev_polynomial_v(Tensor x, Tensor n) -> Tensor",
        ScalarOp::ChebyshevV,
        false
    ),
    polynomial!(
        "aten::special_chebyshev_polynomial_v.x_scalar(Scalar x, Tensor n) -> Tensor",
        ScalarOp::ChebyshevV,
        false
    ),
    polynomial!(
        "aten::special_chebyshev_polynomial_v.n_scalar(Tensor x, Scalar n) -> Tensor",
        ScalarOp::ChebyshevV,
        false
    ),
    polynomial!(
        "aten::special_chebyshev_polynomial_w(Tensor x, Tensor n) -> Tensor",
        ScalarOp::ChebyshevW,
        false
    ),
    polynomial!(
        "aten::special_chebyshev_polynomial_w.x_scalar(Scalar x, Tensor n) -> Tensor",
        ScalarOp::ChebyshevW,
        false
    ),
    polynomial!(
        "aten::special_chebyshev_polynomial_w.n_scalar(Tensor x, Scalar n) -> Tensor",
        ScalarOp::ChebyshevW,
        false
    ),
    polynomial!(
        "aten::special_hermite_polynomial_h(Tensor x, Tensor n) -> Tensor",
        ScalarOp::HermiteH,
        false
    ),
    polynomial!(
        "aten::special_hermite_polynomial_h.x_scalar(Scalar x, Tensor n) -> Tensor",
        ScalarOp::HermiteH,
        false
    ),
    polynomial!(
        "aten::special_hermite_polynomial_h.n_scalar(Tensor x, Scalar n) -> Tensor",
        ScalarOp::HermiteH,
        false
    ),
    polynomial!(
        "aten::special_hermite_polynomial_he(Tensor x, Tensor n) -> Tensor",
        ScalarOp::HermiteHe,
        false
    ),
    polynomial!(
        "aten::special_hermite_polynomial_he.x_scalar(Scalar x, Tensor n) -> Tensor",
        ScalarOp::HermiteHe,
        false
    ),
    polynomial!(
        "aten::special_hermite_polynomial_he.n_scalar(Tensor x, Scalar n) -> Tensor",
        ScalarOp::HermiteHe,
        false
    ),
    polynomial!(
        "aten::special_laguerre_polynomial_l(Tensor x, Tensor n) -> Tensor",
        ScalarOp::LaguerreL,
        false
    ),
    polynomial!(
        "aten::special_laguerre_polynomial_l.x_scalar(Scalar x, Tensor n) -> Tensor",
        ScalarOp::LaguerreL,
        false
    ),
    polynomial!(
        "aten::special_laguerre_polynomial_l.n_scalar(Tensor x, Scalar n) -> Tensor",
        ScalarOp::LaguerreL,
        false
    ),
    polynomial!(
        "aten::special_legendre_polynomial_p(Tensor x, Tensor n) -> Tensor",
        ScalarOp::LegendreP,
        false
    ),
    polynomial!(
        "aten::special_legendre_polynomial_p.x_scalar(Scalar x, Tensor n) -> Tensor",
        ScalarOp::LegendreP,
        false
    ),
    polynomial!(
        "aten::special_legendre_polynomial_p.n_scalar(Tensor x, Scalar n) -> Tensor",
        ScalarOp::LegendreP,
        false
    ),
    polynomial!(
        "aten::special_shifted_chebyshev_polynomial_t(Tensor x, Tensor n) -> Tensor",
        ScalarOp::ChebyshevT,
        true
    ),
    polynomial!(
        "aten::special_shifted_chebyshev_polynomial_t.x_scalar(Scalar x, Tensor n) -> Tensor",
        ScalarOp::ChebyshevT,
        true
    ),
    polynomial!(
        "aten::special_shifted_chebyshev_polynomial_t.n_scalar(Tensor x, Scalar n) -> Tensor",
        ScalarOp::ChebyshevT,
        true
    ),
    polynomial!(
        "aten::special_shifted_chebyshev_polynomial_u(Tensor x, Tensor n) -> Tensor",
        ScalarOp::ChebyshevU,
        true
    ),
    polynomial!(
        "aten::special_shifted_chebyshev_polynomial_u.x_scalar(Scalar x, Tensor n) -> Tensor",
        ScalarOp::ChebyshevU,
        true
    ),
    polynomial!(
        "aten::special_shifted_chebyshev_polynomial_u.n_scalar(Tensor x, Scalar n) -> Tensor",
        ScalarOp::ChebyshevU,
        true
    ),
    polynomial!(
        "aten::special_shifted_chebyshev_polynomial_v(Tensor x, Tensor n) -> Tensor",
        ScalarOp::ChebyshevV,
        true
    ),
    polynomial!(
        "aten::special_shifted_chebyshev_polynomial_v.x_scalar(Scalar x, Tensor n) -> Tensor",
        ScalarOp::ChebyshevV,
        true
    ),
    polynomial!(
        "aten::special_shifted_chebyshev_polynomial_v.n_scalar(Tensor x, Scalar n) -> Tensor",
        ScalarOp::ChebyshevV,
        true
    ),
    polynomial!(
        "aten::special_shifted_chebyshev_polynomial_w(Tensor x, Tensor n) -> Tensor",
        ScalarOp::ChebyshevW,
        true
    ),
    polynomial!(
        "aten::special_shifted_chebyshev_polynomial_w.x_scalar(Scalar x, Tensor n) -> Tensor",
        ScalarOp::ChebyshevW,
        true
    ),
    polynomial!(
        "aten::special_shifted_chebyshev_polynomial_w.n_scalar(Tensor x, Scalar n) -> Tensor",
        ScalarOp::ChebyshevW,
        true
    ),
    composite!("aten::igamma(Tensor self, Tensor other) -> Tensor", |b, c| gammainc(b, c, ScalarOp::Igamma)),
    composite!("aten::special_gammainc(Tensor self, Tensor other) -> Tensor", |b, c| gammainc(
        b,
        c,
        ScalarOp::Igamma
    )),
    composite!("aten::igammac(Tensor self, Tensor other) -> Tensor", |b, c| gammainc(
        b,
        c,
        ScalarOp::Igammac
    )),
    composite!("aten::special_gammaincc(Tensor self, Tensor other) -> Tensor", |b, c| gammainc(
        b,
        c,
        ScalarOp::Igammac
    )),
    composite!("aten::gcd(Tensor self, Tensor other) -> Tensor", |b, c| in_compute(
        b,
        c,
        Promote::Default,
        &["self", "other"],
        |b, xs| {
            let [x, y] = both(b, xs)?;
            b.call1("prims.gcd", vec![x.into(), y.into()])
        }
    )),
    // |x / gcd * y|; a division by zero gives 0
    composite!("aten::lcm(Tensor self, Tensor other) -> Tensor", |b, c| in_compute(
        b,
        c,
        Promote::Default,
        &["self", "other"],
        |b, xs| {
            let [x, y] = both(b, xs)?;
            // Narrow integers are multiplied as C does, and wrap at the end.
            let narrow = b.dtype(x)?;
            let wide = if narrow.size() < DType::I32.size() { DType::I32 } else { narrow };
            let (x, y) = (b.cast(x, wide)?, b.cast(y, wide)?);
            let divisor = b.call1("prims.gcd", vec![x.into(), y.into()])?;
            let quotient = b.div(x, divisor)?;
            let product = b.mul(quotient, y)?;
            let product = b.abs(product)?;
            b.cast(product, narrow)
        }
    )),
];

/// Both operands as tensors of one shape.
fn both(b: &mut Builder<'_>, operands: &[Arg]) -> Result<[ValueId; 2], OpError> {
    let dtype = b.result_type(operands)?;
    let (x, y) = (b.as_tensor(&operands[0], dtype)?, b.as_tensor(&operands[1], dtype)?);
    let sizes = b.broadcast_sizes(&[x, y])?;
    Ok([b.expand(x, &sizes)?, b.expand(y, &sizes)?])
}

fn gammainc(b: &mut Builder<'_>, c: &Call<'_>, op: ScalarOp) -> Result<Outs, OpError> {
    in_compute(b, c, Promote::IntToFloat, &["self", "other"], |b, xs| {
        let [a, x] = both(b, xs)?;
        b.scalar_op(op, &[a.into(), x.into()])
    })
}
