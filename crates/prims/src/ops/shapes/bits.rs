//! Tensors whose bits are seen as elements of another dtype: `view(dtype)`. No entries: `view` lists them.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, SymExpr};
use kernel_ir::ScalarOp;

use crate::carry::bitcast;
use crate::{Builder, Call, OpError, Outs};

/// `view(dtype)`: the last dimension shrinks or grows with the size of elements, the lowest bytes first.
pub(super) fn view_dtype(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let to = c.opt_dtype("dtype")?.ok_or_else(|| c.bad_arg("dtype", "is missing"))?;
    let x = c.value("self")?;
    if b.dtype(x)?.is_complex() || to.is_complex() {
        return complex(b, c, x, to);
    }
    Ok([viewed(b, c, x, to)?].into_iter().collect())
}

/// A complex tensor is its parts side by side.
fn complex(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, to: DType) -> Result<Outs, OpError> {
    let from = b.dtype(x)?;
    if from == to {
        return Ok([x].into_iter().collect());
    }
    let x = match from.is_complex() {
        false => x,
        true => {
            let rank = b.rank(x)?;
            if rank == 0 {
                return Err(c.unsupported("complex tensors without dimensions"));
            }
            let parts = b.call1("aten.view_as_real.default", vec![x.into()])?;
            let mut sizes = b.sizes(x)?;
            sizes[rank - 1] = &sizes[rank - 1] * 2;
            b.reshape(parts, &sizes)?
        }
    };
    let x = viewed(b, c, x, to.to_real())?;
    if !to.is_complex() {
        return Ok([x].into_iter().collect());
    }
    let pairs = paired(b, c, x, 2)?;
    b.call("aten.view_as_complex.default", vec![pairs.into()])
}

/// The signed integer of this many bytes.
fn integer(bytes: usize) -> DType {
    match bytes {
        1 => DType::I8,
        2 => DType::I16,
        4 => DType::I32,
        _ => DType::I64,
    }
}

/// The bits as integers; truth values are 0 and 1.
fn to_integer(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, OpError> {
    let from = b.dtype(x)?;
    let int = integer(from.size());
    if from == DType::Bool { b.cast(x, int) } else { bitcast(b, x, int) }
}

fn from_integer(b: &mut Builder<'_>, x: ValueId, to: DType) -> Result<ValueId, OpError> {
    if to == DType::Bool { b.ne(x, 0i64) } else { bitcast(b, x, to) }
}

fn viewed(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, to: DType) -> Result<ValueId, OpError> {
    let from = b.dtype(x)?;
    if from == to {
        return Ok(x);
    }
    let bits = to_integer(b, x)?;
    let bits = match (from.size(), to.size()) {
        (old, new) if old > new => shorter(b, c, bits, new)?,
        (old, new) if old < new => longer(b, c, bits, new)?,
        _ => bits,
    };
    from_integer(b, bits, to)
}

/// Integers as several of fewer bytes, the lowest first.
fn shorter(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, bytes: usize) -> Result<ValueId, OpError> {
    let ratio = b.dtype(x)?.size() / bytes;
    let (rank, mut sizes) = (b.rank(x)?, b.sizes(x)?);
    if rank == 0 {
        return Err(c.unsupported("tensors without dimensions as elements of another size"));
    }
    let mut parts = Vec::with_capacity(ratio);
    for n in 0..ratio {
        let part = b.scalar_op(ScalarOp::Shr, &[x.into(), (8 * (n * bytes) as i64).into()])?;
        let part = b.cast(part, integer(bytes))?;
        parts.push(b.unsqueeze(part, rank)?);
    }
    let all = b.call1("prims.cat", vec![Arg::values(parts), (rank as i64).into()])?;
    sizes[rank - 1] = &sizes[rank - 1] * ratio as i64;
    b.reshape(all, &sizes)
}

/// Several integers as one of more bytes.
fn longer(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, bytes: usize) -> Result<ValueId, OpError> {
    let old = b.dtype(x)?.size();
    let (groups, wide) = (paired(b, c, x, (bytes / old) as i64)?, integer(bytes));
    let (rank, mut all) = (b.rank(groups)?, None);
    for n in 0..bytes / old {
        let part = b.slice(groups, rank - 1, SymExpr::from_i64(n as i64), SymExpr::ONE, 1)?;
        let part = b.cast(part, wide)?;
        let part = b.and(part, (1i64 << (8 * old)) - 1)?;
        let part = b.scalar_op(ScalarOp::Shl, &[part.into(), (8 * (n * old) as i64).into()])?;
        all = Some(match all {
            Some(lower) => b.or(lower, part)?,
            None => part,
        });
    }
    let all = all.ok_or_else(|| c.invalid("elements of no bytes"))?;
    let mut sizes = b.sizes(groups)?;
    sizes.pop();
    b.reshape(all, &sizes)
}

/// The last dimension in groups of `ratio`, which are a dimension of their own.
fn paired(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, ratio: i64) -> Result<ValueId, OpError> {
    let mut sizes = b.sizes(x)?;
    let Some(last) = sizes.pop() else {
        return Err(c.unsupported("tensors without dimensions as elements of another size"));
    };
    let groups = last.floor_div(&SymExpr::from_i64(ratio));
    b.require_equal(&(&groups * ratio), &last, |graph| {
        format!("a last dimension of {} is no multiple of {ratio}", graph.size_text(&last))
    })?;
    sizes.extend([groups, SymExpr::from_i64(ratio)]);
    b.reshape(x, &sizes)
}
