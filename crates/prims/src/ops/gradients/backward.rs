//! Backward operators that archives exported after differentiation call: each is the reverse pass over what its forward
//! operator decomposes to ([`vjp`]), or the formula where the call holds saved statistics in place of their arguments.

use fx_ir::{Arg, NodeKind, ValueId};
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::ReduceOp;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::ops::common::{choose, one, widen};
use crate::ops::indexing::scatter::put;
use crate::ops::shapes::shape;
use crate::{Builder, Call, Grad, GradCall, OpDef, OpError, Outs, lookup};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!("aten::_adaptive_avg_pool2d_backward(Tensor grad_output, Tensor self) -> Tensor", |b, c| {
        pooled(b, c, "aten._adaptive_avg_pool2d.default", Some(2))
    }),
    composite!("aten::_adaptive_avg_pool3d_backward(Tensor grad_output, Tensor self) -> Tensor", |b, c| {
        pooled(b, c, "aten._adaptive_avg_pool3d.default", Some(3))
    }),
    composite!(
        "aten::avg_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor",
        |b, c| pooled(b, c, "aten.avg_pool2d.default", None)
    ),
    composite!(
        "aten::avg_pool3d_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride, int[3] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor",
        |b, c| pooled(b, c, "aten.avg_pool3d.default", None)
    ),
    composite!(
        "aten::convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
        convolution
    ),
    composite!(
        "aten::embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool scale_grad_by_freq) -> Tensor",
        embedding
    ),
    composite!(
        "aten::native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
        layer_norm
    ),
    composite!(
        "aten::native_group_norm_backward(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, SymInt N, SymInt C, SymInt HxW, int group, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
        group_norm
    ),
];

/// The gradients of `wrt` for the cotangent `g` of what `forward` builds; `None` where it does not depend on one.
pub(in crate::ops) fn vjp(
    b: &mut Builder<'_>,
    wrt: &[ValueId],
    g: ValueId,
    forward: impl FnOnce(&mut Builder<'_>) -> Result<ValueId, OpError>,
) -> Result<Vec<Option<ValueId>>, OpError> {
    vjp_of_all(b, wrt, |b| Ok(vec![(forward(b)?, g)]))
}

/// As [`vjp`], for several results, each with its cotangent.
pub(in crate::ops) fn vjp_of_all(
    b: &mut Builder<'_>,
    wrt: &[ValueId],
    forward: impl FnOnce(&mut Builder<'_>) -> Result<Vec<(ValueId, ValueId)>, OpError>,
) -> Result<Vec<Option<ValueId>>, OpError> {
    let start = b.graph().order.len();
    let results = forward(b)?;
    let calls = b.graph().order[start..].to_vec();
    // What depends on `wrt`.
    let mut needs: FxHashSet<ValueId> = wrt.iter().copied().collect();
    for &id in &calls {
        let node = &b.graph().nodes[id];
        let mut any = false;
        node.for_each_use(&mut |v| any |= needs.contains(&v));
        if any {
            needs.extend(&node.outputs);
        }
    }
    let mut cotangents: FxHashMap<ValueId, ValueId> = FxHashMap::default();
    for (y, g) in results {
        accumulate(b, &mut cotangents, y, g)?;
    }
    for id in calls.into_iter().rev() {
        let node = b.graph().nodes[id].clone();
        let NodeKind::Call { target, args } = &node.kind else { continue };
        let given: Vec<Option<ValueId>> = node.outputs.iter().map(|v| cotangents.get(v).copied()).collect();
        let Some(op) = lookup(target).filter(|_| given.iter().any(Option::is_some)) else { continue };
        let rule = match op.def.grad {
            Grad::Rule(rule) => rule,
            Grad::NotDifferentiable(_) => continue,
            _ => return Err(OpError::Unsupported { op: target.clone(), what: "a gradient".into() }),
        };
        let call = Call { op, args };
        let wanted: Vec<bool> = args
            .iter()
            .map(|arg| {
                let mut any = false;
                arg.for_each_value(&mut |v| any |= needs.contains(&v));
                any
            })
            .collect();
        let grads =
            rule(b, &GradCall { call: &call, outs: &node.outputs, cotangents: &given, wanted: &wanted })?;
        let mut operands = Vec::new();
        for arg in args {
            match arg {
                Arg::List(items) if items.iter().any(|a| matches!(a, Arg::Value(_))) => {
                    operands.extend(items)
                }
                other => operands.push(other),
            }
        }
        for (operand, grad) in operands.into_iter().zip(grads) {
            if let (Arg::Value(v), Some(grad)) = (operand, grad)
                && needs.contains(v)
            {
                accumulate(b, &mut cotangents, *v, grad)?;
            }
        }
    }
    Ok(wrt.iter().map(|v| cotangents.get(v).copied()).collect())
}

fn accumulate(
    b: &mut Builder<'_>,
    cotangents: &mut FxHashMap<ValueId, ValueId>,
    v: ValueId,
    grad: ValueId,
) -> Result<(), OpError> {
    let sum = match cotangents.get(&v) {
        Some(&old) => b.add(old, grad)?,
        None => grad,
    };
    cotangents.insert(v, sum);
    Ok(())
}

/// Zeros of the sizes and the dtype of a value.
pub(in crate::ops) fn zeros_like(b: &mut Builder<'_>, v: ValueId) -> Result<ValueId, OpError> {
    let (sizes, dtype) = (b.sizes(v)?, b.dtype(v)?);
    b.full(&sizes, 0i64, dtype)
}

/// Of a pooling operator with the arguments that follow `self`, or with the spatial sizes of the result.
fn pooled(b: &mut Builder<'_>, c: &Call<'_>, target: &str, spatial: Option<usize>) -> Result<Outs, OpError> {
    let (g, x) = (c.value("grad_output")?, c.value("self")?);
    let mut args = vec![x.into()];
    match spatial {
        Some(n) => {
            let sizes = b.sizes(g)?;
            let from = sizes
                .len()
                .checked_sub(n)
                .ok_or_else(|| c.bad_arg("grad_output", "has too few dimensions"))?;
            args.push(sizes[from..].into());
        }
        None => args.extend(c.args[2..].iter().cloned()),
    }
    let grads = vjp(b, &[x], g, |b| b.call1(target, args))?;
    match grads[0] {
        Some(grad) => one(grad),
        None => one(zeros_like(b, x)?),
    }
}

/// Which gradients are requested, the first `N` that the call's mask has.
pub(in crate::ops) fn mask<const N: usize>(c: &Call<'_>) -> [bool; N] {
    std::array::from_fn(|i| match c.arg("output_mask") {
        Arg::List(items) => items.get(i).and_then(Arg::as_scalar).is_some_and(|s| s.as_bool()),
        _ => true,
    })
}

/// The requested gradients; an empty tensor stands for one that nothing reads.
fn three(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    grads: [Option<ValueId>; 3],
    dtype: DType,
) -> Result<Outs, OpError> {
    let mut outs = Outs::new();
    for (grad, wanted) in grads.into_iter().zip(mask::<3>(c)) {
        outs.push(match grad.filter(|_| wanted) {
            Some(grad) => grad,
            None => b.full(&[SymExpr::ZERO], 0i64, dtype)?,
        });
    }
    Ok(outs)
}

fn convolution(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (g, x, w) = (c.value("grad_output")?, c.value("input")?, c.value("weight")?);
    let dtype = b.dtype(x)?;
    let names = ["stride", "padding", "dilation", "transposed", "output_padding", "groups"];
    let args: Vec<Arg> =
        [x.into(), w.into(), Arg::None].into_iter().chain(names.iter().map(|n| c.arg(n).clone())).collect();
    let grads = vjp(b, &[x, w], g, |b| b.call1("aten.convolution.default", args))?;
    let bias = if mask::<3>(c)[2] {
        // An image without a batch has its channels first.
        let rank = b.rank(g)?;
        let channel = usize::from(rank == b.rank(w)?);
        let dims: Vec<usize> = (0..rank).filter(|d| *d != channel).collect();
        let wide = widen(b, g)?;
        let sum = b.reduce(ReduceOp::Sum, wide, &dims, false)?;
        Some(b.cast(sum, dtype)?)
    } else {
        None
    };
    three(b, c, [grads[0], grads[1], bias], dtype)
}

/// Rows of the gradient added up where they were looked up; those of `padding_idx` are left out.
fn embedding(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (g, indices) = (c.value("grad_output")?, c.value("indices")?);
    let dtype = b.dtype(g)?;
    let g = widen(b, g)?;
    let compute = b.dtype(g)?;
    let rank = b.rank(indices)?;
    let width = b.sizes(g)?[rank].clone();
    let indices = crate::ops::indexing::index::flat(b, indices)?;
    let indices = b.cast(indices, DType::I64)?;
    let n = b.sizes(indices)?[0].clone();
    let rows = b.reshape(g, &[n.clone(), width.clone()])?;
    let padding = b.ne(indices, c.sym("padding_idx")?)?;
    let mut weight = choose(b, padding, 1.0, 0.0, compute)?;
    let count = c.sym("num_weights")?;
    if c.bool("scale_grad_by_freq")? {
        let ones = b.full(&[n], 1.0, compute)?;
        let zeros = b.full(std::slice::from_ref(&count), 0.0, compute)?;
        let often = put(b, zeros, &[indices], 0, ones, "add")?;
        let often = shape::index(b, often, &[indices], 0)?;
        weight = b.div(weight, often)?;
    }
    let weight = b.unsqueeze(weight, 1)?;
    let rows = b.mul(rows, weight)?;
    let zeros = b.full(&[count, width], 0.0, compute)?;
    let sums = put(b, zeros, &[indices], 0, rows, "add")?;
    one(b.cast(sums, dtype)?)
}

/// `rstd * (h - mean(h) - xhat * mean(h * xhat))` over dimensions `dims`.
fn normalized(
    b: &mut Builder<'_>,
    h: ValueId,
    xhat: ValueId,
    rstd: ValueId,
    dims: &[usize],
) -> Result<ValueId, OpError> {
    let list: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
    let mean = |b: &mut Builder<'_>, v: ValueId| {
        b.call1("aten.mean.dim", vec![v.into(), list.as_slice().into(), true.into()])
    };
    let product = b.mul(h, xhat)?;
    let (first, second) = (mean(b, h)?, mean(b, product)?);
    let second = b.mul(xhat, second)?;
    let rest = b.sub(h, first)?;
    let rest = b.sub(rest, second)?;
    b.mul(rest, rstd)
}

fn layer_norm(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (g, x) = (c.value("grad_out")?, c.value("input")?);
    let dtype = b.dtype(x)?;
    let rank = b.rank(x)?;
    let inner = c.syms("normalized_shape")?.len();
    let outer =
        rank.checked_sub(inner).ok_or_else(|| c.bad_arg("normalized_shape", "is longer than the input"))?;
    let (g, x) = (widen(b, g)?, widen(b, x)?);
    let (mean, rstd) = (widen(b, c.value("mean")?)?, widen(b, c.value("rstd")?)?);
    let centred = b.sub(x, mean)?;
    let xhat = b.mul(centred, rstd)?;
    let h = match c.opt_value("weight")? {
        Some(w) => {
            let w = widen(b, w)?;
            b.mul(g, w)?
        }
        None => g,
    };
    let dims: Vec<usize> = (outer..rank).collect();
    let batch: Vec<usize> = (0..outer).collect();
    let dx = normalized(b, h, xhat, rstd, &dims)?;
    let product = b.mul(g, xhat)?;
    let (dw, db) =
        (b.reduce(ReduceOp::Sum, product, &batch, false)?, b.reduce(ReduceOp::Sum, g, &batch, false)?);
    let dx = b.cast(dx, dtype)?;
    let grads = [Some(dx), as_parameter(b, c, "weight", dw)?, as_parameter(b, c, "bias", db)?];
    three(b, c, grads, dtype)
}

/// The gradient of a parameter in its dtype, which is wider than the input's under mixed precision on CPUs; `None` where there is none.
fn as_parameter(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    name: &str,
    grad: ValueId,
) -> Result<Option<ValueId>, OpError> {
    let Some(parameter) = c.opt_value(name)? else { return Ok(None) };
    let dtype = b.dtype(parameter)?;
    b.cast(grad, dtype).map(Some)
}

fn group_norm(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (g, x) = (c.value("grad_out")?, c.value("input")?);
    let (dtype, sizes) = (b.dtype(x)?, b.sizes(x)?);
    let (n, channels, area) = (c.sym("N")?, c.sym("C")?, c.sym("HxW")?);
    let groups = c.int("group")?;
    let each = channels.as_const().filter(|k| groups > 0 && k % groups == 0).map(|k| k / groups);
    let each = each.ok_or_else(|| c.invalid("the channels are no multiple of the groups"))?;
    // [N, groups, channels of a group, H W]
    let four: Shape = [n.clone(), groups.into(), each.into(), area].into_iter().collect();
    let stat: Shape = [n, groups.into(), SymExpr::ONE, SymExpr::ONE].into_iter().collect();
    let wide = |b: &mut Builder<'_>, v: ValueId, sizes: &Shape| {
        let v = widen(b, v)?;
        b.reshape(v, sizes)
    };
    let (g, x) = (wide(b, g, &four)?, wide(b, x, &four)?);
    let (mean, rstd) = (wide(b, c.value("mean")?, &stat)?, wide(b, c.value("rstd")?, &stat)?);
    let centred = b.sub(x, mean)?;
    let xhat = b.mul(centred, rstd)?;
    let h = match c.opt_value("weight")? {
        Some(w) => {
            let row: Shape = [SymExpr::ONE, groups.into(), each.into(), SymExpr::ONE].into_iter().collect();
            let w = wide(b, w, &row)?;
            b.mul(g, w)?
        }
        None => g,
    };
    let dx = normalized(b, h, xhat, rstd, &[2, 3])?;
    let dx = b.reshape(dx, &sizes)?;
    let product = b.mul(g, xhat)?;
    let summed = |b: &mut Builder<'_>, v: ValueId| {
        let sum = b.reduce(ReduceOp::Sum, v, &[0, 3], false)?;
        b.reshape(sum, std::slice::from_ref(&channels))
    };
    let (dw, db) = (summed(b, product)?, summed(b, g)?);
    // The bias, which is not among the operands, has the weight's dtype.
    let of = match c.opt_value("weight")? {
        Some(weight) => b.dtype(weight)?,
        None => dtype,
    };
    let (dx, dw, db) = (b.cast(dx, dtype)?, b.cast(dw, of)?, b.cast(db, of)?);
    three(b, c, [Some(dx), Some(dw), Some(db)], dtype)
}
