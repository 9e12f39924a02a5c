//! Batching rules that are functions: for prims whose shape arguments, windows or indices change under one more dimension
//! in front. No entries; rules that only shift dimension numbers are in the entries themselves.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Shape, SymExpr, numel};
use kernel_ir::ScalarOp;

use crate::ops::shapes::shape::{self, Made, out};
use crate::{BatchCall, Builder, OpError, Randomness};

/// One number before a list of them.
fn prepended(call: &BatchCall<'_>, name: &str, first: impl Into<Arg>) -> Result<Arg, OpError> {
    match call.call.arg(name) {
        Arg::List(items) => {
            Ok(Arg::List(std::iter::once(first.into()).chain(items.iter().cloned()).collect()))
        }
        _ => Err(call.call.bad_arg(name, "must be a list")),
    }
}

/// The dimensions that broadcasting adds are after the batch.
pub(in crate::ops) fn expand(b: &mut Builder<'_>, call: &BatchCall<'_>) -> Made {
    let (v, sizes) = (call.value("a")?, call.call.syms("sizes")?);
    let own = call.sizes(b, v)?;
    let new = sizes.len().saturating_sub(own.len());
    let aligned: Shape = std::iter::repeat_n(SymExpr::ONE, new).chain(own).collect();
    let v = b.reshape(v, &call.with_batch(&aligned))?;
    out(b.expand(v, &call.with_batch(&sizes))?)
}

/// The batch stays in front.
pub(in crate::ops) fn permute(b: &mut Builder<'_>, call: &BatchCall<'_>) -> Made {
    let v = call.value("a")?;
    let rank = call.rank(b, v)?;
    let mut order = vec![0];
    for d in call.call.ints("dims")? {
        order.push(call.call.dim(d, rank)? + 1);
    }
    out(b.permute(v, &order)?)
}

/// The batch stays in front.
pub(in crate::ops) fn reshape(b: &mut Builder<'_>, call: &BatchCall<'_>) -> Made {
    let sizes = call.with_batch(&call.call.syms("sizes")?);
    out(b.reshape(call.value("a")?, &sizes)?)
}

/// Nothing around the batch.
pub(in crate::ops) fn pad(b: &mut Builder<'_>, call: &BatchCall<'_>) -> Made {
    let mut args = call.call.args.to_vec();
    for (i, name) in [(1, "low"), (2, "high"), (3, "interior")] {
        args[i] = prepended(call, name, 0i64)?;
    }
    b.call_op(call.call.op, args)
}

/// The batch is one more stride, as long as one element's memory.
pub(in crate::ops) fn strided(b: &mut Builder<'_>, call: &BatchCall<'_>) -> Made {
    let v = call.value("a")?;
    let length = numel(&call.sizes(b, v)?);
    let flat = b.reshape(v, &[call.size * &length])?;
    let mut args = call.call.args.to_vec();
    args[0] = flat.into();
    args[1] = prepended(call, "sizes", call.size.clone())?;
    args[2] = prepended(call, "strides", length)?;
    b.call_op(call.call.op, args)
}

/// The numbers of the batch in a shape `[batch, 1, …]` of `rank` dimensions after it.
fn numbers(b: &mut Builder<'_>, call: &BatchCall<'_>, rank: usize) -> Result<ValueId, OpError> {
    shape::iota_at(b, call.size, 0, rank + 1)
}

/// The indices with the batch in front, and before them the number of the batch.
fn batched_indices(b: &mut Builder<'_>, call: &BatchCall<'_>) -> Result<Vec<ValueId>, OpError> {
    let indices = call.call.values("indices")?;
    let first = *indices.first().ok_or_else(|| call.call.bad_arg("indices", "is empty"))?;
    let inner = call.sizes(b, first)?;
    let numbers = numbers(b, call, inner.len())?;
    let mut all = vec![b.expand(numbers, &call.with_batch(&inner))?];
    for v in indices {
        all.push(call.front(b, v)?);
    }
    Ok(all)
}

fn any_batched(call: &BatchCall<'_>, name: &str) -> Result<bool, OpError> {
    Ok(call.call.values(name)?.into_iter().any(|v| call.is_batched(v)))
}

/// Batched indices into a batched tensor are indices into the batch too, which then is before what they index.
pub(in crate::ops) fn index(b: &mut Builder<'_>, call: &BatchCall<'_>) -> Made {
    let (a, start) = (call.value("a")?, call.call.int("start")?);
    let place = usize::try_from(start).map_err(|_| call.call.bad_arg("start", "is negative"))?;
    if !any_batched(call, "indices")? {
        return b.call_op(call.call.op, call.args_with("start", start + 1));
    }
    if !call.is_batched(a) {
        let indices = call.call.values("indices")?;
        let indices = indices.into_iter().map(|v| call.front(b, v)).collect::<Result<Vec<_>, _>>()?;
        let v = shape::index(b, a, &indices, place)?;
        return out(shape::move_dim(b, v, place, 0)?);
    }
    let indices = batched_indices(b, call)?;
    let a = shape::move_dim(b, a, 0, place)?;
    let v = shape::index(b, a, &indices, place)?;
    out(shape::move_dim(b, v, place, 0)?)
}

/// As [`index`]; the base is broadcast to the batch.
pub(in crate::ops) fn index_put(b: &mut Builder<'_>, call: &BatchCall<'_>) -> Made {
    let start = call.call.int("start")?;
    let place = usize::try_from(start).map_err(|_| call.call.bad_arg("start", "is negative"))?;
    let (a, values) = (call.front_arg(b, "a")?, call.front_arg(b, "values")?);
    let (target, mode) = (call.call.op.target.as_str(), call.call.arg("mode").clone());
    if !any_batched(call, "indices")? {
        let indices = call.call.arg("indices").clone();
        return b.call(target, vec![a.into(), indices, (start + 1).into(), values.into(), mode]);
    }
    let indices = batched_indices(b, call)?;
    let (a, values) = (shape::move_dim(b, a, 0, place)?, shape::move_dim(b, values, 0, place)?);
    let v = b.call1(target, vec![a.into(), Arg::values(indices), start.into(), values.into(), mode])?;
    out(shape::move_dim(b, v, 0, 0).and_then(|v| shape::move_dim(b, v, place, 0))?)
}

/// Every element of the batch draws numbers of its own: those after the numbers of the elements before it. So a batch
/// draws what one call for the whole shape would.
pub(in crate::ops) fn philox(b: &mut Builder<'_>, call: &BatchCall<'_>) -> Made {
    if call.randomness == Randomness::Error {
        return Err(call.call.unsupported(
            "random numbers in a batch: say whether elements draw different or the same ones (`randomness`)",
        ));
    }
    let mut operands = Vec::with_capacity(3);
    let mut sizes = Shape::new();
    for arg in call.call.args {
        if let Arg::Value(v) = arg {
            sizes = call.sizes(b, *v)?;
        }
    }
    for arg in call.call.args {
        operands.push(match arg {
            Arg::Value(v) => call.front(b, *v)?.into(),
            other => other.clone(),
        });
    }
    if call.randomness == Randomness::Different {
        let index = match &operands[2] {
            Arg::Value(v) => *v,
            number => {
                let number = b.as_tensor(number, DType::I64)?;
                b.expand(number, &call.with_batch(&sizes))?
            }
        };
        let count = numel(&sizes);
        let first = shape::iota(b, call.size, SymExpr::ZERO, count)?;
        let first = shape::along(b, first, 0, sizes.len() + 1)?;
        operands[2] = b.add(index, first)?.into();
    }
    out(b.scalar_op(ScalarOp::Philox, &operands)?)
}

/// One matrix for the whole batch takes it as more rows or columns; otherwise the batch is one more of the product's own.
pub(in crate::ops) fn matmul(b: &mut Builder<'_>, call: &BatchCall<'_>) -> Made {
    let (x, y) = (call.value("a")?, call.value("b")?);
    let (xs, ys) = (call.sizes(b, x)?, call.sizes(b, y)?);
    let product =
        |b: &mut Builder<'_>, x: ValueId, y: ValueId| b.call1("prims.matmul", vec![x.into(), y.into()]);
    if xs.len() == 2 && !call.is_batched(y) {
        let rows = b.reshape(x, &[call.size * &xs[0], xs[1].clone()])?;
        let v = product(b, rows, y)?;
        return out(b.reshape(v, &call.with_batch(&[xs[0].clone(), ys[1].clone()]))?);
    }
    if xs.len() == 2 && !call.is_batched(x) {
        let columns = b.permute(y, &[1, 0, 2])?;
        let columns = b.reshape(columns, &[ys[0].clone(), call.size * &ys[1]])?;
        let v = product(b, x, columns)?;
        let v = b.reshape(v, &[xs[0].clone(), call.size.clone(), ys[1].clone()])?;
        return out(b.permute(v, &[1, 0, 2])?);
    }
    let (x, y) = (call.front(b, x)?, call.front(b, y)?);
    out(product(b, x, y)?)
}

/// The batch and the first dimension made one.
pub(in crate::ops) fn folded(
    b: &mut Builder<'_>,
    call: &BatchCall<'_>,
    v: ValueId,
) -> Result<ValueId, OpError> {
    let v = call.front(b, v)?;
    shape::merge_dims(b, v, 0, 2)
}

/// The batch joins the one of the operator. A mask that is the same for a whole batch of it stays as it is.
pub(in crate::ops) fn attention(b: &mut Builder<'_>, call: &BatchCall<'_>) -> Made {
    attention_of(b, call, &["q", "k", "v"])
}

/// As that of the attention.
pub(in crate::ops) fn attention_backward(b: &mut Builder<'_>, call: &BatchCall<'_>) -> Made {
    attention_of(b, call, &["grad", "q", "k", "v", "sums", "deltas"])
}

/// A call whose first arguments begin with the batch of the operator.
fn attention_of(b: &mut Builder<'_>, call: &BatchCall<'_>, names: &[&str]) -> Made {
    let q = call.value("q")?;
    let own = call.sizes(b, q)?[0].clone();
    let mut args = call.call.args.to_vec();
    for (i, name) in names.iter().enumerate() {
        args[i] = folded(b, call, call.value(name)?)?.into();
    }
    for name in ["mask", "kept"] {
        let (Some(v), Some(place)) = (call.call.opt_value(name)?, call.call.op.schema.arg_index(name)) else {
            continue;
        };
        let mut sizes = call.sizes(b, v)?;
        while sizes.len() < 4 {
            sizes.insert(0, SymExpr::ONE);
        }
        if call.is_batched(v) || sizes[0] != SymExpr::ONE {
            let mut v = call.front(b, v)?;
            v = b.reshape(v, &call.with_batch(&sizes))?;
            sizes[0] = own.clone();
            v = b.expand(v, &call.with_batch(&sizes))?;
            args[place] = shape::merge_dims(b, v, 0, 2)?.into();
        }
    }
    let outs = b.call_op(call.call.op, args)?;
    let parts = [call.size.clone(), own];
    outs.into_iter().map(|v| shape::split_dim(b, v, 0, &parts)).collect()
}
