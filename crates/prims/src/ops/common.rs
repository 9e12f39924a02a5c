//! Helpers that several families share: promotion with 16-bit floats computed in `f32`, choices between numbers, the
//! dimensions of a reduction. No entries here.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Scalar, SymExpr};
use kernel_ir::ScalarOp;
use smallvec::smallvec;

use crate::promotion::{DEFAULT_FLOAT, Promote};
use crate::{Builder, Call, OpError, Outs};

/// One result.
pub(crate) fn one(v: ValueId) -> Result<Outs, OpError> {
    Ok(smallvec![v])
}

/// The named arguments.
pub(crate) fn named(call: &Call<'_>, names: &[&str]) -> Vec<Arg> {
    names.iter().map(|n| call.arg(n).clone()).collect()
}

/// The usual elementwise decomposition: operands promoted, one scalar operator.
pub(crate) fn plain(
    b: &mut Builder<'_>,
    call: &Call<'_>,
    rule: Promote,
    op: ScalarOp,
    names: &[&str],
) -> Result<Outs, OpError> {
    let (operands, result) = promoted(b, call, rule, names)?;
    let out = b.scalar_op(op, &operands)?;
    one(b.cast(out, result)?)
}

/// Operands in their common dtype, at least one of them a tensor, and the dtype of the result. Comparisons see
/// numbers as elements of the common dtype, 16-bit floats rounded.
pub(crate) fn promoted(
    b: &mut Builder<'_>,
    call: &Call<'_>,
    rule: Promote,
    names: &[&str],
) -> Result<(Vec<Arg>, DType), OpError> {
    let (mut operands, result) = b.promote(&named(call, names), rule)?;
    let compute = b.result_type(&operands)?;
    if rule == Promote::AlwaysBool {
        operands.iter_mut().for_each(|o| round_number(o, compute));
    }
    // `pow(2, x)` and the like always bring a tensor; a call of two numbers computes on 0-dim tensors. Their dtypes are what the
    // numbers are, which says nothing of a rule that makes floats of integers.
    if !operands.iter().any(|o| matches!(o, Arg::Value(_)))
        && let Some(first) = operands.first_mut()
    {
        let dtype = if rule == Promote::AlwaysBool { compute } else { result };
        *first = Arg::Value(b.as_tensor(&first.clone(), dtype)?);
    }
    Ok((operands, result))
}

fn round_number(operand: &mut Arg, dtype: DType) {
    if let Arg::Scalar(Scalar::Float(x)) = operand {
        *x = match dtype {
            DType::BF16 => half::bf16::from_f64(*x).to_f64(),
            DType::F16 => half::f16::from_f64(*x).to_f64(),
            _ => *x,
        };
    }
}

/// Operands promoted and brought to the dtype that arithmetic is done in (`f32` for 16-bit floats): the composite
/// `f` rounds once, at its end.
pub(crate) fn in_compute(
    b: &mut Builder<'_>,
    call: &Call<'_>,
    rule: Promote,
    names: &[&str],
    f: impl FnOnce(&mut Builder<'_>, &[Arg]) -> Result<ValueId, OpError>,
) -> Result<Outs, OpError> {
    let (operands, result) = promoted(b, call, rule, names)?;
    let mut wide = Vec::with_capacity(operands.len());
    for operand in &operands {
        wide.push(match operand {
            Arg::Value(v) => Arg::Value(widen(b, *v)?),
            number => number.clone(),
        });
    }
    let out = f(b, &wide)?;
    one(b.cast(out, result)?)
}

/// A composite of one tensor: `f` sees it in the dtype of arithmetic; the result has the promoted dtype.
pub(crate) fn unary_in_compute(
    b: &mut Builder<'_>,
    call: &Call<'_>,
    rule: Promote,
    f: impl FnOnce(&mut Builder<'_>, ValueId) -> Result<ValueId, OpError>,
) -> Result<Outs, OpError> {
    in_compute(b, call, rule, &["self"], |b, operands| match operands {
        [Arg::Value(x)] => f(b, *x),
        _ => Err(call.bad_arg("self", "must be a tensor")),
    })
}

/// The tensor in the dtype that arithmetic on it is done in.
pub(crate) fn widen(b: &mut Builder<'_>, v: ValueId) -> Result<ValueId, OpError> {
    let dtype = b.dtype(v)?.compute();
    b.cast(v, dtype)
}

/// `mask ? yes : no` in `dtype`; either may be a number.
pub(crate) fn choose(
    b: &mut Builder<'_>,
    mask: ValueId,
    yes: impl Into<Arg>,
    no: impl Into<Arg>,
    dtype: DType,
) -> Result<ValueId, OpError> {
    let (mut yes, no) = (b.as_dtype(&yes.into(), dtype)?, b.as_dtype(&no.into(), dtype)?);
    if !matches!(yes, Arg::Value(_)) && !matches!(no, Arg::Value(_)) {
        // Numbers alone do not say the dtype.
        yes = Arg::Value(b.as_tensor(&yes, dtype)?);
    }
    b.select(mask, yes, no)
}

/// Whether elements are not zero, as `bool`.
pub(crate) fn truth(b: &mut Builder<'_>, v: ValueId) -> Result<ValueId, OpError> {
    b.cast(v, DType::Bool)
}

/// The dimensions that an argument names, wrapped and sorted; an absent or empty list names all of them.
pub(crate) fn dims_or_all(call: &Call<'_>, arg: &str, rank: usize) -> Result<Vec<usize>, OpError> {
    match call.opt_ints(arg)? {
        Some(list) if !list.is_empty() => dims_of(call, &list, rank),
        _ => Ok((0..rank).collect()),
    }
}

/// Dimension numbers wrapped and sorted. A 0-dim tensor counts as rank 1 and gives none.
pub(crate) fn dims_of(call: &Call<'_>, list: &[i64], rank: usize) -> Result<Vec<usize>, OpError> {
    let mut dims: Vec<usize> = list.iter().map(|&d| call.dim(d, rank)).collect::<Result<_, _>>()?;
    dims.sort_unstable();
    if dims.windows(2).any(|w| w[0] == w[1]) {
        return Err(call.invalid("a dimension is named twice"));
    }
    dims.retain(|&d| d < rank);
    Ok(dims)
}

/// Number of elements in the given dimensions.
pub(crate) fn count_of(b: &Builder<'_>, v: ValueId, dims: &[usize]) -> Result<SymExpr, OpError> {
    let sizes = &b.meta(v)?.sizes;
    Ok(dims.iter().fold(SymExpr::ONE, |n, &d| n * &sizes[d]))
}

/// The dtype itself where it has a fraction, else the default float.
pub(crate) fn float_of(dtype: DType) -> DType {
    if dtype.is_inexact() { dtype } else { DEFAULT_FLOAT }
}

/// Refuses tensors that are not floating point.
pub(crate) fn want_inexact(call: &Call<'_>, dtype: DType) -> Result<(), OpError> {
    if dtype.is_inexact() { Ok(()) } else { Err(OpError::DType { op: call.name().into(), dtype }) }
}
