//! Matrix products: all of them become `prims.matmul` on operands with equal batch sizes.
//!
//! Operands with many leading dimensions are folded into one matrix where the other operand is a plain matrix, so that
//! a linear layer is one product of `[rows, k]` with `[k, n]`.

use fx_ir::{Arg, ValueId};
use ir_core::{Scalar, Shape, SymExpr, numel};

use crate::ops::shapes::shape::{self, Made, out};
use crate::ops::shapes::view::conjugate;
use crate::{Autocast, Builder, Call, OpDef, OpError};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!("aten::matmul(Tensor self, Tensor other) -> Tensor", |b, c| named(b, c, "self", "other")).autocast(Autocast::LOWER),
    composite!("aten::linalg_matmul(Tensor self, Tensor other) -> Tensor", |b, c| named(
        b, c, "self", "other"
    )).autocast(Autocast::LOWER),
    composite!("aten::mm(Tensor self, Tensor mat2) -> Tensor", |b, c| named(b, c, "self", "mat2")).autocast(Autocast::LOWER),
    composite!("aten::bmm(Tensor self, Tensor mat2) -> Tensor", |b, c| named(b, c, "self", "mat2")).autocast(Autocast::LOWER),
    composite!("aten::mv(Tensor self, Tensor vec) -> Tensor", |b, c| named(b, c, "self", "vec")).autocast(Autocast::LOWER_ON_GPU),
    composite!("aten::dot(Tensor self, Tensor tensor) -> Tensor", |b, c| named(b, c, "self", "tensor")).autocast(Autocast::WIDEST_ON_GPU),
    composite!("aten::vdot(Tensor self, Tensor other) -> Tensor", |b, c| {
        let x = conjugate(b, c.value("self")?)?;
        out(product(b, c, x, c.value("other")?)?)
    }).autocast(Autocast::WIDEST_ON_GPU),
    composite!("aten::inner(Tensor self, Tensor other) -> Tensor", |b, c| {
        let (x, y) = (c.value("self")?, c.value("other")?);
        if b.rank(x)? == 0 || b.rank(y)? == 0 {
            return out(b.mul(x, y)?);
        }
        let (rank_x, rank_y) = (b.rank(x)?, b.rank(y)?);
        out(contract(b, x, y, &[rank_x - 1], &[rank_y - 1])?)
    }).autocast(Autocast::LOWER),
    composite!("aten::outer(Tensor self, Tensor vec2) -> Tensor", outer),
    composite!("aten::ger(Tensor self, Tensor vec2) -> Tensor", outer),
    composite!("aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor", linear).autocast(Autocast::LOWER),
    composite!(
        "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        |b, c| added(b, c, "mat1", "mat2")
    ).autocast(Autocast::LOWER),
    composite!(
        "aten::baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        |b, c| added(b, c, "batch1", "batch2")
    ).autocast(Autocast::LOWER),
    composite!(
        "aten::addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        |b, c| added(b, c, "mat", "vec")
    ).autocast(Autocast::LOWER_ON_GPU),
    composite!(
        "aten::addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        addbmm
    ).autocast(Autocast::LOWER),
    composite!(
        "aten::addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        |b, c| {
            let x = outer_of(b, c.value("vec1")?, c.value("vec2")?)?;
            scaled_sum(b, c, x)
        }
    ).autocast(Autocast::LOWER_ON_GPU),
    composite!(
        "aten::tensordot(Tensor self, Tensor other, int[] dims_self, int[] dims_other) -> Tensor",
        |b, c| {
            let (x, y) = (c.value("self")?, c.value("other")?);
            let (dx, dy) = (b.rank(x)?, b.rank(y)?);
            let (dx, dy) = (shape::dims(c, "dims_self", dx)?, shape::dims(c, "dims_other", dy)?);
            if dx.len() != dy.len() {
                return Err(c.invalid("as many dimensions of one as of the other are needed"));
            }
            // Contracting a dimension of size 1 with a wider one sums the wider one.
            let (x, y) = (summed(b, x, y, &dx, &dy)?, summed(b, y, x, &dy, &dx)?);
            out(contract(b, x, y, &dx, &dy)?)
        }
    ).autocast(Autocast::WIDEST_ON_GPU),
    composite!("aten::kron(Tensor self, Tensor other) -> Tensor", kron),
    composite!(
        "aten::bilinear(Tensor input1, Tensor input2, Tensor weight, Tensor? bias=None) -> Tensor",
        bilinear
    ).autocast(Autocast::WIDEST_ON_GPU),
    composite!("aten::linalg_vecdot(Tensor x, Tensor y, *, int dim=-1) -> Tensor", |b, c| {
        let x = conjugate(b, c.value("x")?)?;
        let xy = b.mul(x, c.value("y")?)?;
        out(b.call1("aten.sum.dim_IntList", vec![xy.into(), Arg::List(vec![c.int("dim")?.into()])])?)
    }).autocast(Autocast::LOWER),
    composite!("aten::linalg_multi_dot(Tensor[] tensors) -> Tensor", |b, c| chain(b, c, "tensors")).autocast(Autocast::LOWER_ON_GPU),
    composite!("aten::chain_matmul(Tensor[] matrices) -> Tensor", |b, c| chain(b, c, "matrices")).autocast(Autocast::LOWER_ON_GPU),
];

fn named(b: &mut Builder<'_>, c: &Call<'_>, x: &str, y: &str) -> Made {
    out(product(b, c, c.value(x)?, c.value(y)?)?)
}

/// `prims.matmul` of one dtype, in one matrix where `y` is a plain matrix.
fn matmul(b: &mut Builder<'_>, x: ValueId, y: ValueId) -> Result<ValueId, OpError> {
    b.call1("prims.matmul", vec![x.into(), y.into()])
}

/// `torch.matmul`: vectors, matrices, and batches of them that broadcast.
pub(in crate::ops) fn product(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    x: ValueId,
    y: ValueId,
) -> Result<ValueId, OpError> {
    let (rank_x, rank_y) = (b.rank(x)?, b.rank(y)?);
    if rank_x == 0 || rank_y == 0 {
        return Err(c.invalid("0-dim tensors have no matrix product"));
    }
    if rank_x == 1 || rank_y == 1 {
        let row = if rank_x == 1 { b.unsqueeze(x, 0)? } else { x };
        let column = if rank_y == 1 { b.unsqueeze(y, 1)? } else { y };
        let result = product(b, c, row, column)?;
        let mut sizes = b.sizes(result)?;
        if rank_y == 1 {
            sizes.pop();
        }
        if rank_x == 1 {
            let row = sizes.len() - usize::from(rank_y > 1) - 1;
            sizes.remove(row);
        }
        return b.reshape(result, &sizes);
    }
    if rank_y == 2 {
        let sizes = b.sizes(x)?;
        let rows = numel(&sizes[..rank_x - 1]);
        let flat = b.reshape(x, &[rows, sizes[rank_x - 1].clone()])?;
        let result = matmul(b, flat, y)?;
        let n = b.sizes(y)?[1].clone();
        let list: Shape = sizes[..rank_x - 1].iter().cloned().chain([n]).collect();
        return b.reshape(result, &list);
    }
    let (sizes_x, sizes_y) = (b.sizes(x)?, b.sizes(y)?);
    let batch = broadcast(c, &sizes_x[..rank_x - 2], &sizes_y[..rank_y - 2])?;
    let wide = |own: &[SymExpr]| -> Shape { batch.iter().chain(&own[own.len() - 2..]).cloned().collect() };
    let x = b.expand(x, &wide(&sizes_x))?;
    let y = b.expand(y, &wide(&sizes_y))?;
    matmul(b, x, y)
}

/// The sizes that two lists of sizes broadcast to.
pub(in crate::ops) fn broadcast(c: &Call<'_>, x: &[SymExpr], y: &[SymExpr]) -> Result<Shape, OpError> {
    let rank = x.len().max(y.len());
    let at = |list: &[SymExpr], d: usize| {
        (d + list.len()).checked_sub(rank).map_or(SymExpr::ONE, |d| list[d].clone())
    };
    (0..rank)
        .map(|d| match (at(x, d), at(y, d)) {
            (x, y) if x == y || y == SymExpr::ONE => Ok(x),
            (x, y) if x == SymExpr::ONE => Ok(y),
            (x, y) if x.as_const().is_none() => Ok(y),
            (x, y) if y.as_const().is_none() => Ok(x),
            (x, y) => Err(c.invalid(format!("sizes {x} and {y} do not broadcast"))),
        })
        .collect()
}

fn outer_of(b: &mut Builder<'_>, x: ValueId, y: ValueId) -> Result<ValueId, OpError> {
    let (operands, _) = b.promote(&[x.into(), y.into()], crate::promotion::Promote::Default)?;
    let [Arg::Value(x), Arg::Value(y)] = operands[..] else { return Ok(x) };
    let x = b.unsqueeze(x, 1)?;
    let y = b.unsqueeze(y, 0)?;
    b.mul(x, y)
}

fn outer(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    out(outer_of(b, c.value("self")?, c.value("vec2")?)?)
}

fn linear(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (x, w) = (c.value("input")?, c.value("weight")?);
    let w = if b.rank(w)? == 2 { b.permute(w, &[1, 0])? } else { w };
    let y = product(b, c, x, w)?;
    out(match c.opt_value("bias")? {
        Some(bias) => b.add(y, bias)?,
        None => y,
    })
}

/// `beta * self + alpha * x`; with `beta` zero the values of `self` do not count, not even `NaN`.
fn scaled_sum(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId) -> Made {
    let (alpha, beta) = (c.scalar("alpha")?, c.scalar("beta")?);
    let is = |s: Scalar, n: f64| !matches!(s, Scalar::Complex(_, im) if im != 0.0) && s.as_f64() == n;
    let dtype = b.dtype(x)?;
    let x = if is(alpha, 1.0) { x } else { b.mul(x, alpha.to_class_of(dtype))? };
    let base = c.value("self")?;
    if is(beta, 0.0) {
        return out(x);
    }
    let base = b.cast(base, dtype)?;
    let base = if is(beta, 1.0) { base } else { b.mul(base, beta.to_class_of(dtype))? };
    out(b.add(x, base)?)
}

fn added(b: &mut Builder<'_>, c: &Call<'_>, x: &str, y: &str) -> Made {
    let xy = product(b, c, c.value(x)?, c.value(y)?)?;
    scaled_sum(b, c, xy)
}

/// The sum over the batch is a product with batch and inner dimension merged. PyTorch adds one product after another
/// and rounds each sum to the dtype, which for 16-bit floats is another number.
fn addbmm(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (x, y) = (c.value("batch1")?, c.value("batch2")?);
    let dtype = b.dtype(x)?;
    let batch = b.sizes(x)?.first().and_then(SymExpr::as_const).filter(|n| (1..=64).contains(n));
    let Some(batch) = batch.filter(|_| dtype != dtype.compute()) else {
        let xy = contract(b, x, y, &[0, 2], &[0, 1])?;
        return scaled_sum(b, c, xy);
    };
    let (alpha, beta) = (c.float("alpha")?, c.float("beta")?);
    let (x, y) = (crate::ops::common::widen(b, x)?, crate::ops::common::widen(b, y)?);
    let mut sum = c.value("self")?;
    for n in 0..batch {
        let (x, y) = (shape::select(b, x, 0, n.into())?, shape::select(b, y, 0, n.into())?);
        let xy = matmul(b, x, y)?;
        let mut next = b.mul(xy, alpha)?;
        let factor = if n == 0 { beta } else { 1.0 };
        if factor != 0.0 {
            let wide = crate::ops::common::widen(b, sum)?;
            let scaled = b.mul(wide, factor)?;
            next = b.add(next, scaled)?;
        }
        sum = b.cast(next, dtype)?;
    }
    out(sum)
}

/// `x` summed over contracted dimensions where `y` has size 1 and `x` more.
fn summed(
    b: &mut Builder<'_>,
    x: ValueId,
    y: ValueId,
    dims_x: &[usize],
    dims_y: &[usize],
) -> Result<ValueId, OpError> {
    let (sizes_x, sizes_y) = (b.sizes(x)?, b.sizes(y)?);
    let wider = |(dx, dy): &(&usize, &usize)| sizes_y[**dy] == SymExpr::ONE && sizes_x[**dx] != SymExpr::ONE;
    let list: Vec<usize> = dims_x.iter().zip(dims_y).filter(wider).map(|(dx, _)| *dx).collect();
    b.reduce(kernel_ir::ReduceOp::Sum, x, &list, true)
}

/// The sum over pairs of dimensions: the other dimensions of `x`, then those of `y`.
pub(in crate::ops) fn contract(
    b: &mut Builder<'_>,
    x: ValueId,
    y: ValueId,
    dims_x: &[usize],
    dims_y: &[usize],
) -> Result<ValueId, OpError> {
    let last = |dims: &[usize]| dims.iter().max().map_or(0, |d| d + 1);
    let (sizes_x, sizes_y) = (b.sizes_of_rank(x, last(dims_x)..)?, b.sizes_of_rank(y, last(dims_y)..)?);
    let free =
        |rank: usize, used: &[usize]| -> Vec<usize> { (0..rank).filter(|d| !used.contains(d)).collect() };
    let (free_x, free_y) = (free(sizes_x.len(), dims_x), free(sizes_y.len(), dims_y));
    let pick =
        |sizes: &[SymExpr], dims: &[usize]| -> Shape { dims.iter().map(|&d| sizes[d].clone()).collect() };
    let (rows, columns) = (pick(&sizes_x, &free_x), pick(&sizes_y, &free_y));
    for (&dx, &dy) in dims_x.iter().zip(dims_y) {
        b.require_equal(&sizes_x[dx], &sizes_y[dy], |graph| {
            let (x, y) = (graph.sizes_text(&sizes_x), graph.sizes_text(&sizes_y));
            format!("dimension {dx} of {x} is summed with dimension {dy} of {y}")
        })?;
    }
    let inner = numel(&pick(&sizes_x, dims_x));
    let order_x: Vec<usize> = free_x.iter().chain(dims_x).copied().collect();
    let order_y: Vec<usize> = dims_y.iter().chain(&free_y).copied().collect();
    let x = b.permute(x, &order_x)?;
    let x = b.reshape(x, &[numel(&rows), inner.clone()])?;
    let y = b.permute(y, &order_y)?;
    let y = b.reshape(y, &[inner, numel(&columns)])?;
    let xy = matmul(b, x, y)?;
    let sizes: Shape = rows.into_iter().chain(columns).collect();
    b.reshape(xy, &sizes)
}

fn kron(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (x, y) = (c.value("self")?, c.value("other")?);
    let (operands, _) = b.promote(&[x.into(), y.into()], crate::promotion::Promote::Default)?;
    let [Arg::Value(x), Arg::Value(y)] = operands[..] else { return Err(c.invalid("takes tensors")) };
    let (sizes_x, sizes_y) = (b.sizes(x)?, b.sizes(y)?);
    let rank = sizes_x.len().max(sizes_y.len());
    let at =
        |list: &Shape, d: usize| (d + list.len()).checked_sub(rank).map_or(SymExpr::ONE, |d| list[d].clone());
    let (mut apart_x, mut apart_y, mut sizes) = (Shape::new(), Shape::new(), Shape::new());
    for d in 0..rank {
        let (n, m) = (at(&sizes_x, d), at(&sizes_y, d));
        apart_x.extend([n.clone(), SymExpr::ONE]);
        apart_y.extend([SymExpr::ONE, m.clone()]);
        sizes.push(n * m);
    }
    let x = b.reshape(x, &apart_x)?;
    let y = b.reshape(y, &apart_y)?;
    let xy = b.mul(x, y)?;
    out(b.reshape(xy, &sizes)?)
}

/// `y[o] = x1ᵀ W[o] x2 + bias[o]`.
fn bilinear(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (x1, x2, w) = (c.value("input1")?, c.value("input2")?, c.value("weight")?);
    let (sizes, sizes_w) = (b.sizes(x1)?, b.sizes(w)?);
    let rank = sizes.len();
    if rank == 0 || sizes_w.len() != 3 {
        return Err(c.invalid("takes inputs of one dimension or more and a weight of three"));
    }
    let rows = numel(&sizes[..rank - 1]);
    let (n1, n2) = (sizes_w[1].clone(), sizes_w[2].clone());
    let x1 = b.reshape(x1, &[rows.clone(), n1.clone()])?;
    let x2 = b.reshape(x2, &[rows, SymExpr::ONE, n2])?;
    // [rows, i] · [i, o, j] = [rows, o, j]
    let half = contract(b, x1, w, &[1], &[1])?;
    let xy = b.mul(half, x2)?;
    let y = b.reduce(kernel_ir::ReduceOp::Sum, xy, &[2], false)?;
    let list: Shape = sizes[..rank - 1].iter().chain([&sizes_w[0]]).cloned().collect();
    let y = b.reshape(y, &list)?;
    out(match c.opt_value("bias")? {
        Some(bias) => b.add(y, bias)?,
        None => y,
    })
}

/// A chain of products in the order that needs the fewest multiplications (from left to right where sizes are
/// symbolic).
fn chain(b: &mut Builder<'_>, c: &Call<'_>, name: &str) -> Made {
    let list = c.values(name)?;
    let mut sizes = Vec::new();
    for (n, &v) in list.iter().enumerate() {
        let own = b.sizes(v)?;
        match &own[..] {
            // A vector at either end is a row or a column.
            [k] if n == 0 => sizes.extend([Some(1), k.as_const()]),
            [_] => sizes.push(Some(1)),
            [m, k] if n == 0 => sizes.extend([m.as_const(), k.as_const()]),
            [_, k] => sizes.push(k.as_const()),
            _ => return Err(c.invalid("takes matrices, and vectors at the ends")),
        }
    }
    let sizes: Option<Vec<f64>> = sizes.into_iter().map(|s| s.map(|s| s as f64)).collect();
    match list.len() {
        0 => Err(c.bad_arg(name, "is empty")),
        n => {
            let split = sizes.map(|s| cheapest(&s, n));
            out(chain_range(b, c, &list, split.as_deref(), 0, n)?)
        }
    }
}

/// For every range `[i, j)` of `n` matrices (at `i * (n + 1) + j`) the position where it is best split.
fn cheapest(sizes: &[f64], n: usize) -> Vec<usize> {
    let (mut cost, mut split) = (vec![0.0; (n + 1) * (n + 1)], vec![0; (n + 1) * (n + 1)]);
    for length in 2..=n {
        for i in 0..=n - length {
            let j = i + length;
            let best = (i + 1..j)
                .map(|k| (cost[i * (n + 1) + k] + cost[k * (n + 1) + j] + sizes[i] * sizes[k] * sizes[j], k))
                .min_by(|a, b| a.0.total_cmp(&b.0));
            if let Some((c, k)) = best {
                (cost[i * (n + 1) + j], split[i * (n + 1) + j]) = (c, k);
            }
        }
    }
    split
}

fn chain_range(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    list: &[ValueId],
    split: Option<&[usize]>,
    i: usize,
    j: usize,
) -> Result<ValueId, OpError> {
    if j == i + 1 {
        return Ok(list[i]);
    }
    let k = split.map_or(j - 1, |s| s[i * (list.len() + 1) + j]);
    let x = chain_range(b, c, list, split, i, k)?;
    let y = chain_range(b, c, list, split, k, j)?;
    product(b, c, x, y)
}
