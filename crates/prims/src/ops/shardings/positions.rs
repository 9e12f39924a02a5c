//! The sharding rule of the prims that find the position of an extreme element: of parts each rank finds the extreme, all
//! agree about it, and the first rank that has it names its position.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{Combine, ReduceOp};

use super::{same, way};
use crate::ops::reduced_dims;
use crate::shard_rule::{Placement, Way, reduce};
use crate::{Builder, LocalCall, LowerCall, OpError};

/// Dimensions that are not reduced; the reduced one, where it is one.
pub(in crate::ops) fn position(call: &LowerCall<'_>) -> Result<Vec<Way>, OpError> {
    let mut ways = reduce(call, None)?;
    let a = call.meta("a")?;
    if let [dim] = reduced_dims(&call.call, a.rank())?[..]
        && a.dtype != DType::Bool
    {
        let found = way(vec![Placement::shard(dim)], vec![Placement::Partial(Combine::Min)]);
        ways.push(Way { ranges: true, combined: Some(a.dtype), ..found });
    }
    Ok(ways)
}

/// The smallest position of the rank's elements that are the extreme of all ranks; a number behind all positions where there
/// are none. As in the call on whole tensors `NaN` is the extreme where any element is.
pub(in crate::ops) fn local_position(b: &mut Builder<'_>, call: &LocalCall<'_>) -> Result<ValueId, OpError> {
    let dims = reduced_dims(&call.call, call.operands.first().map_or(0, |p| p.whole.len()))?;
    let (Some(part), [dim]) = (call.operands.first(), &dims[..]) else { return same(b, call) };
    if !part.is_split(*dim) {
        return same(b, call);
    }
    let a = call.local().value("a")?;
    let (how, combine) = match call.call.op.target.as_str() {
        "prims.argmin" => (ReduceOp::Min, Combine::Min),
        _ => (ReduceOp::Max, Combine::Max),
    };
    let mut extreme = b.reduce(how, a, &[*dim], true)?;
    for group in part.groups(*dim) {
        extreme = b.call1("prims.all_reduce", vec![extreme.into(), combine.name().into(), group.into()])?;
    }
    let is_extreme = b.eq(a, extreme)?;
    let is_nan = b.ne(a, a)?;
    let is_extreme = b.or(is_extreme, is_nan)?;
    let length = part.sizes[*dim].clone();
    let begin = part.offsets[*dim].clone();
    let line = vec![Arg::from(length.clone()), begin.into(), 1i64.into(), DType::I64.into()];
    let line = b.call1("prims.iota", line)?;
    let along: Shape =
        (0..part.sizes.len()).map(|d| if d == *dim { length.clone() } else { SymExpr::ONE }).collect();
    let line = b.reshape(line, &along)?;
    let places = b.select(is_extreme, line, i64::MAX)?;
    b.reduce(ReduceOp::Min, places, &[*dim], false)
}
