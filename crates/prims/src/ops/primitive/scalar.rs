//! Prims that apply one scalar operator to every element: one row per operator of `kernel_ir::ScalarOp`.
//!
//! Operands are tensors of one shape and dtype, or numbers; composites have broadcast and promoted before.

use fx_ir::{Arg, ValueType};
use ir_core::{DType, TensorMeta};
use kernel_ir::{Combine, DTypeRule, ScalarOp};
use smallvec::SmallVec;

use crate::ops::gradients::scalar as grad_scalar;
use crate::shard_rule::{Passes, ShardRule};
use crate::{
    Autocast, BatchRule, Call, ComplexRule, Grad, Kind, Lower, MetaCx, OpDef, OpError, Reference, Samples,
    Tolerance,
};

macro_rules! scalar_prims {
    ($($op:ident $schema:literal $grad:expr, $complex:expr;)*) => {
        /// The entries.
        pub(in crate::ops) const OPS: &[OpDef] = &[$(OpDef {
            schema: $schema,
            kind: Kind::Prim {
                doc: ScalarOp::$op.doc(),
                meta: |cx, call| meta(ScalarOp::$op, cx, call),
                lower: Lower::Scalar(ScalarOp::$op),
                complex: $complex,
                batch: batch(ScalarOp::$op),
                shard: ShardRule::Pointwise(passes(ScalarOp::$op)),
                reference: Reference::Scalar(ScalarOp::$op),
            },
            grad: $grad,
            tolerance: Tolerance::FLOAT,
            autocast: Autocast::NONE,
            samples: |s| samples(ScalarOp::$op, s),
        },)*];

        #[cfg(test)]
        const COVERED: &[ScalarOp] = &[$(ScalarOp::$op,)*];
    };
}

const STEP: Grad = Grad::NotDifferentiable("it is constant but for jumps");
/// PyTorch has no derivatives of orthogonal polynomials either: refused rather than taken for zero.
const POLYNOMIAL: Grad = Grad::Unwritten;
const PARTS: ComplexRule = ComplexRule::Parts;
const ORDER: ComplexRule = ComplexRule::NO_ORDER;
const REAL: ComplexRule = ComplexRule::REAL_ONLY;
macro_rules! complex {
    ($f:ident) => {
        ComplexRule::Rule(crate::ops::complex_numbers::scalar::$f)
    };
}
const BITS: Grad = Grad::NotDifferentiable("it works on bits");

scalar_prims! {
    Add "prims::add(Tensor a, Tensor b) -> Tensor" Grad::Rule(grad_scalar::add), PARTS;
    Sub "prims::sub(Tensor a, Tensor b) -> Tensor" Grad::Rule(grad_scalar::sub), PARTS;
    Mul "prims::mul(Tensor a, Tensor b) -> Tensor" Grad::Rule(grad_scalar::mul), complex!(mul);
    Div "prims::div(Tensor a, Tensor b) -> Tensor" Grad::Rule(grad_scalar::div), complex!(div);
    Rem "prims::rem(Tensor a, Tensor b) -> Tensor" Grad::Rule(grad_scalar::rem), ORDER;
    Pow "prims::pow(Tensor a, Tensor b) -> Tensor" Grad::Rule(grad_scalar::pow), complex!(pow);
    Atan2 "prims::atan2(Tensor a, Tensor b) -> Tensor" Grad::Rule(grad_scalar::atan2), REAL;
    Min "prims::min(Tensor a, Tensor b) -> Tensor" Grad::Rule(grad_scalar::min), ORDER;
    Max "prims::max(Tensor a, Tensor b) -> Tensor" Grad::Rule(grad_scalar::max), ORDER;
    CopySign "prims::copysign(Tensor a, Tensor b) -> Tensor" Grad::Rule(grad_scalar::copysign), REAL;
    NextAfter "prims::nextafter(Tensor a, Tensor b) -> Tensor" STEP, REAL;
    And "prims::and(Tensor a, Tensor b) -> Tensor" BITS, REAL;
    Or "prims::or(Tensor a, Tensor b) -> Tensor" BITS, REAL;
    Xor "prims::xor(Tensor a, Tensor b) -> Tensor" BITS, REAL;
    Shl "prims::shl(Tensor a, Tensor b) -> Tensor" BITS, REAL;
    Shr "prims::shr(Tensor a, Tensor b) -> Tensor" BITS, REAL;
    Not "prims::not(Tensor a) -> Tensor" BITS, REAL;
    Neg "prims::neg(Tensor a) -> Tensor" Grad::Rule(grad_scalar::neg), PARTS;
    Abs "prims::abs(Tensor a) -> Tensor" Grad::Rule(grad_scalar::abs), REAL;
    Floor "prims::floor(Tensor a) -> Tensor" STEP, ORDER;
    Ceil "prims::ceil(Tensor a) -> Tensor" STEP, ORDER;
    Trunc "prims::trunc(Tensor a) -> Tensor" STEP, ORDER;
    Round "prims::round(Tensor a) -> Tensor" STEP, ORDER;
    Sqrt "prims::sqrt(Tensor a) -> Tensor" Grad::Rule(grad_scalar::sqrt), complex!(sqrt);
    Rsqrt "prims::rsqrt(Tensor a) -> Tensor" Grad::Rule(grad_scalar::rsqrt), complex!(rsqrt);
    Exp "prims::exp(Tensor a) -> Tensor" Grad::Rule(grad_scalar::exp), complex!(exp);
    Exp2 "prims::exp2(Tensor a) -> Tensor" Grad::Rule(grad_scalar::exp2), complex!(exp2);
    Expm1 "prims::expm1(Tensor a) -> Tensor" Grad::Rule(grad_scalar::expm1), complex!(expm1);
    Log "prims::log(Tensor a) -> Tensor" Grad::Rule(grad_scalar::log), complex!(log);
    Log2 "prims::log2(Tensor a) -> Tensor" Grad::Rule(grad_scalar::log2), complex!(log2);
    Log10 "prims::log10(Tensor a) -> Tensor" Grad::Rule(grad_scalar::log10), complex!(log10);
    Log1p "prims::log1p(Tensor a) -> Tensor" Grad::Rule(grad_scalar::log1p), complex!(log1p);
    Sin "prims::sin(Tensor a) -> Tensor" Grad::Rule(grad_scalar::sin), complex!(sin);
    Cos "prims::cos(Tensor a) -> Tensor" Grad::Rule(grad_scalar::cos), complex!(cos);
    Tan "prims::tan(Tensor a) -> Tensor" Grad::Rule(grad_scalar::tan), complex!(tan);
    Asin "prims::asin(Tensor a) -> Tensor" Grad::Rule(grad_scalar::asin), complex!(asin);
    Acos "prims::acos(Tensor a) -> Tensor" Grad::Rule(grad_scalar::acos), complex!(acos);
    Atan "prims::atan(Tensor a) -> Tensor" Grad::Rule(grad_scalar::atan), complex!(atan);
    Sinh "prims::sinh(Tensor a) -> Tensor" Grad::Rule(grad_scalar::sinh), complex!(sinh);
    Cosh "prims::cosh(Tensor a) -> Tensor" Grad::Rule(grad_scalar::cosh), complex!(cosh);
    Tanh "prims::tanh(Tensor a) -> Tensor" Grad::Rule(grad_scalar::tanh), complex!(tanh);
    Asinh "prims::asinh(Tensor a) -> Tensor" Grad::Rule(grad_scalar::asinh), complex!(asinh);
    Acosh "prims::acosh(Tensor a) -> Tensor" Grad::Rule(grad_scalar::acosh), complex!(acosh);
    Atanh "prims::atanh(Tensor a) -> Tensor" Grad::Rule(grad_scalar::atanh), complex!(atanh);
    Erf "prims::erf(Tensor a) -> Tensor" Grad::Rule(grad_scalar::erf), REAL;
    Erfc "prims::erfc(Tensor a) -> Tensor" Grad::Rule(grad_scalar::erfc), REAL;
    Erfinv "prims::erfinv(Tensor a) -> Tensor" Grad::Rule(grad_scalar::erfinv), REAL;
    Lgamma "prims::lgamma(Tensor a) -> Tensor" Grad::Rule(grad_scalar::lgamma), REAL;
    Digamma "prims::digamma(Tensor a) -> Tensor" Grad::Rule(grad_scalar::digamma), REAL;
    ChebyshevT "prims::chebyshev_t(Tensor a, Tensor b) -> Tensor" POLYNOMIAL, REAL;
    ChebyshevU "prims::chebyshev_u(Tensor a, Tensor b) -> Tensor" POLYNOMIAL, REAL;
    ChebyshevV "prims::chebyshev_v(Tensor a, Tensor b) -> Tensor" POLYNOMIAL, REAL;
    ChebyshevW "prims::chebyshev_w(Tensor a, Tensor b) -> Tensor" POLYNOMIAL, REAL;
    HermiteH "prims::hermite_h(Tensor a, Tensor b) -> Tensor" POLYNOMIAL, REAL;
    HermiteHe "prims::hermite_he(Tensor a, Tensor b) -> Tensor" POLYNOMIAL, REAL;
    LaguerreL "prims::laguerre_l(Tensor a, Tensor b) -> Tensor" POLYNOMIAL, REAL;
    LegendreP "prims::legendre_p(Tensor a, Tensor b) -> Tensor" POLYNOMIAL, REAL;
    Igamma "prims::igamma(Tensor a, Tensor b) -> Tensor" Grad::Rule(grad_scalar::igamma), REAL;
    Igammac "prims::igammac(Tensor a, Tensor b) -> Tensor" Grad::Rule(grad_scalar::igammac), REAL;
    Eq "prims::eq(Tensor a, Tensor b) -> Tensor" STEP, complex!(eq);
    Ne "prims::ne(Tensor a, Tensor b) -> Tensor" STEP, complex!(ne);
    Lt "prims::lt(Tensor a, Tensor b) -> Tensor" STEP, ORDER;
    Le "prims::le(Tensor a, Tensor b) -> Tensor" STEP, ORDER;
    Gt "prims::gt(Tensor a, Tensor b) -> Tensor" STEP, ORDER;
    Ge "prims::ge(Tensor a, Tensor b) -> Tensor" STEP, ORDER;
    Philox "prims::philox(Tensor a, Tensor b, Tensor c) -> Tensor" BITS, REAL;
    Select "prims::select(Tensor mask, Tensor a, Tensor b) -> Tensor" Grad::Rule(grad_scalar::select), PARTS;
}

/// Element by element; random numbers are a question of their own.
const fn batch(op: ScalarOp) -> BatchRule {
    match op {
        ScalarOp::Philox => BatchRule::Random(crate::ops::batches::rules::philox),
        _ => BatchRule::Leading,
    }
}

/// The combinations that pass through an operator.
const fn passes(op: ScalarOp) -> Passes {
    match op {
        ScalarOp::Add | ScalarOp::Sub | ScalarOp::Neg => Passes::Sums,
        ScalarOp::Mul => Passes::SumsIn(&[0, 1]),
        ScalarOp::Div => Passes::SumsIn(&[0]),
        ScalarOp::Max => Passes::Only(Combine::Max),
        ScalarOp::Min => Passes::Only(Combine::Min),
        _ => Passes::No,
    }
}

fn meta(op: ScalarOp, cx: &MetaCx<'_>, call: &Call<'_>) -> Result<SmallVec<[ValueType; 1]>, OpError> {
    let tensors: SmallVec<[(usize, &TensorMeta); 3]> = call
        .args
        .iter()
        .enumerate()
        .filter_map(|(i, a)| if let Arg::Value(v) = a { cx.graph.meta(*v).map(|m| (i, m)) } else { None })
        .collect();
    let Some((_, first)) = tensors.first() else { return Err(call.invalid("no operand is a tensor")) };
    let mut operand: Option<DType> = None;
    for (i, meta) in &tensors {
        cx.equal_sizes(call, &first.sizes, &meta.sizes, || {
            format!("operands have sizes {} and {}", cx.text(&first.sizes), cx.text(&meta.sizes))
        })?;
        let is_mask = op.dtype_rule() == DTypeRule::Select && *i == 0;
        let wanted = if is_mask { DType::Bool } else { *operand.get_or_insert(meta.dtype) };
        if meta.dtype != wanted {
            return Err(call.invalid(format!("operand {i} is {}, not {wanted}", meta.dtype)));
        }
    }
    // Only the mask of a select is a tensor: the branches are numbers and say the dtype.
    let operand = operand.unwrap_or_else(|| branch_dtype(call));
    let dtype = if op.dtype_rule() == DTypeRule::Compare { DType::Bool } else { operand };
    Ok(crate::builder::tensor(dtype, first.sizes.iter().cloned()))
}

fn branch_dtype(call: &Call<'_>) -> DType {
    let class = call.args.iter().skip(1).filter_map(Arg::as_scalar).map(|s| s.class()).max();
    match class {
        Some(ir_core::Class::Bool) => DType::Bool,
        Some(ir_core::Class::Int) => DType::I64,
        _ => DType::F32,
    }
}

fn samples(op: ScalarOp, s: &mut Samples) {
    for sizes in [&[7usize][..], &[2, 3, 5], &[], &[0, 3]] {
        let (a, b, m) = (s.float("a", sizes), s.float("b", sizes), s.bools("m", sizes));
        let bits = matches!(
            op,
            ScalarOp::And | ScalarOp::Or | ScalarOp::Xor | ScalarOp::Shl | ScalarOp::Shr | ScalarOp::Not
        );
        let (a, b) = if bits { (s.ints("a", sizes, 100), s.ints("b", sizes, 7)) } else { (a, b) };
        let tensors = match (op.dtype_rule(), op.arity()) {
            (DTypeRule::Select, _) => vec![m, a, b],
            (_, 3) => vec![
                s.ints("seed", sizes, 1 << 20),
                s.ints("stream", sizes, 1 << 20),
                s.ints("index", sizes, 1 << 20),
            ],
            (_, 1) => vec![a],
            _ => vec![a, b],
        };
        let args = (0..tensors.len() as u32).map(|n| Arg::Value(fx_ir::ValueId(n))).collect();
        s.add(tensors, args);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scalar_operator_has_a_prim() {
        assert_eq!(COVERED, ScalarOp::ALL);
        for (op, def) in ScalarOp::ALL.iter().zip(OPS) {
            assert!(def.schema.starts_with(&format!("prims::{}(", op.name())), "{}", def.schema);
        }
    }
}
