//! Norms that look at matrices, and small vector algebra: cross products, Vandermonde matrices, combinations.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Scalar, SymExpr};
use kernel_ir::ReduceOp;

use super::common::{one, want_inexact, widen};
use super::reduction::squeeze;
use super::statistics::norm_of;
use crate::promotion::Promote;
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(super) const OPS: &[OpDef] = &[
    composite!(
        "aten::linalg_norm(Tensor self, Scalar? ord=None, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        linalg_norm
    ).autocast(Autocast::FLOAT32_ON_GPU),
    composite!(
        "aten::linalg_norm.ord_str(Tensor self, str ord, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        |b, c| {
            let rank = b.rank(c.value("self")?)?;
            let dims = matrix_dims(c, rank)?;
            matrix_norm(b, c, named_norm(c)?, dims)
        }
    ).autocast(Autocast::FLOAT32_ON_GPU),
    composite!(
        "aten::linalg_matrix_norm(Tensor self, Scalar ord, int[] dim=[-2, -1], bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        |b, c| {
            let rank = b.rank(c.value("self")?)?;
            let dims = matrix_dims(c, rank)?;
            matrix_norm(b, c, Norm::Order(c.float("ord")?), dims)
        }
    ).autocast(Autocast::FLOAT32_RESULT_ON_GPU),
    composite!(
        "aten::linalg_matrix_norm.str_ord(Tensor self, str ord=\"fro\", int[] dim=[-2, -1], bool keepdim=False, *, ScalarType? dtype=None) -> Tensor",
        |b, c| {
            let rank = b.rank(c.value("self")?)?;
            let dims = matrix_dims(c, rank)?;
            matrix_norm(b, c, named_norm(c)?, dims)
        }
    ).autocast(Autocast::FLOAT32_RESULT_ON_GPU),
    composite!("aten::linalg_cross(Tensor self, Tensor other, *, int dim=-1) -> Tensor", cross),
    composite!("aten::cross(Tensor self, Tensor other, int? dim=None) -> Tensor", cross).autocast(Autocast::WIDEST_ON_GPU),
    composite!("aten::linalg_vander(Tensor x, *, SymInt? N=None) -> Tensor", vander),
];

/// Which norm of a matrix.
enum Norm {
    Frobenius,
    Nuclear,
    Order(f64),
}

fn named_norm(c: &Call<'_>) -> Result<Norm, OpError> {
    match c.opt_str("ord")?.unwrap_or("fro") {
        "fro" => Ok(Norm::Frobenius),
        "nuc" => Ok(Norm::Nuclear),
        other => Err(c.bad_arg("ord", format!("is `{other}`, not `fro` or `nuc`"))),
    }
}

/// Rows and columns of the matrices.
fn matrix_dims(c: &Call<'_>, rank: usize) -> Result<[usize; 2], OpError> {
    let list = c.opt_ints("dim")?.unwrap_or_else(|| vec![-2, -1]);
    let [rows, columns] = list[..] else { return Err(c.bad_arg("dim", "must name two dimensions")) };
    let dims = [c.dim(rows, rank)?, c.dim(columns, rank)?];
    if rank < 2 || dims[0] == dims[1] {
        return Err(c.invalid("takes matrices"));
    }
    Ok(dims)
}

/// Without an order the 2-norm of the elements; with one that of vectors or of matrices, by the number of dimensions.
fn linalg_norm(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let rank = b.rank(c.value("self")?)?;
    let dims = c.opt_ints("dim")?;
    let Some(ord) = c.opt_float("ord")? else { return vector(b, c, 2.0) };
    match dims.as_ref().map_or(rank, Vec::len) {
        2 => {
            let dims = matrix_dims(c, rank)?;
            matrix_norm(b, c, Norm::Order(ord), dims)
        }
        _ => vector(b, c, ord),
    }
}

fn vector(b: &mut Builder<'_>, c: &Call<'_>, ord: f64) -> Result<Outs, OpError> {
    let rest = ["dim", "keepdim", "dtype"].map(|name| c.arg(name).clone());
    let args = [c.arg("self").clone(), ord.into()].into_iter().chain(rest).collect();
    b.call("aten.linalg_vector_norm.default", args)
}

/// Singular values of the matrices that two dimensions hold, which then have size 1, and the last one more.
fn singular(b: &mut Builder<'_>, x: ValueId, dims: [usize; 2], op: ReduceOp) -> Result<ValueId, OpError> {
    let rank = b.rank(x)?;
    let mut kept = b.sizes(x)?;
    dims.iter().for_each(|&d| kept[d] = SymExpr::ONE);
    let order: Vec<usize> = (0..rank).filter(|d| !dims.contains(d)).chain(dims).collect();
    let transposed = b.permute(x, &order)?;
    let s = super::linalg_spectrum::svdvals(b, transposed)?;
    let out = b.reduce(op, s, &[rank - 2], false)?;
    b.reshape(out, &kept)
}

/// Frobenius; nuclear the sum of the singular values; ±2 their extreme; ±1 the extreme of the columns' sums of magnitudes; ±infinity of the rows'.
fn matrix_norm(b: &mut Builder<'_>, c: &Call<'_>, norm: Norm, dims: [usize; 2]) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dtype = c.opt_dtype("dtype")?.unwrap_or(b.dtype(x)?);
    want_inexact(c, dtype)?;
    let x = b.cast(x, dtype)?;
    let x = widen(b, x)?;
    let out = match norm {
        Norm::Frobenius => norm_of(b, x, 2.0, &dims, true)?,
        Norm::Order(ord) if ord.abs() == 1.0 || ord.is_infinite() => {
            let [summed, compared] = if ord.is_infinite() { [dims[1], dims[0]] } else { dims };
            let sums = norm_of(b, x, 1.0, &[summed], true)?;
            let op = if ord > 0.0 { ReduceOp::Max } else { ReduceOp::Min };
            b.reduce(op, sums, &[compared], true)?
        }
        Norm::Nuclear => singular(b, x, dims, ReduceOp::Sum)?,
        Norm::Order(2.0) => singular(b, x, dims, ReduceOp::Max)?,
        Norm::Order(-2.0) => singular(b, x, dims, ReduceOp::Min)?,
        Norm::Order(ord) => {
            return Err(c.bad_arg(
                "ord",
                format!("is {ord}: matrices have norms of order 1, -1, 2, -2 and infinity"),
            ));
        }
    };
    let out = if c.bool("keepdim")? { out } else { squeeze(b, out, &dims)? };
    one(b.cast(out, dtype.to_real())?)
}

/// `a[i + 1] b[i + 2] - a[i + 2] b[i + 1]` along a dimension of size 3 (by default the first such).
fn cross(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (operands, _) = b.promote(&[c.arg("self").clone(), c.arg("other").clone()], Promote::Default)?;
    let [Arg::Value(x), Arg::Value(y)] = operands[..] else {
        return Err(c.bad_arg("other", "must be a tensor"));
    };
    let sizes = b.broadcast_sizes(&[x, y])?;
    let (x, y) = (b.expand(x, &sizes)?, b.expand(y, &sizes)?);
    let three = SymExpr::from_i64(3);
    let dim = match c.opt_int("dim")? {
        Some(dim) => c.dim(dim, sizes.len())?,
        None => sizes.iter().position(|s| *s == three).ok_or_else(|| c.invalid("no dimension has size 3"))?,
    };
    if sizes.get(dim) != Some(&three) {
        return Err(c.invalid(format!("dimension {dim} must have size 3")));
    }
    let at =
        |b: &mut Builder<'_>, v: ValueId, i: i64| b.slice(v, dim, SymExpr::from_i64(i % 3), SymExpr::ONE, 1);
    let mut parts = Vec::with_capacity(3);
    for i in 0..3 {
        let (x1, y2) = (at(b, x, i + 1)?, at(b, y, i + 2)?);
        let (x2, y1) = (at(b, x, i + 2)?, at(b, y, i + 1)?);
        let (up, down) = (b.mul(x1, y2)?, b.mul(x2, y1)?);
        parts.push(b.sub(up, down)?);
    }
    b.call("prims.cat", vec![Arg::values(parts), (dim as i64).into()])
}

/// Powers 0 to N - 1 of every element, along a new last dimension: a running product of 1, x, x, ….
fn vander(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("x")?;
    let own = b.dtype(x)?;
    let dtype = if own.is_integral() { DType::I64 } else { own };
    let x = b.cast(x, dtype)?;
    let x = widen(b, x)?;
    // A number counts as a vector of one.
    let x = if b.rank(x)? == 0 { b.reshape(x, &[SymExpr::ONE])? } else { x };
    let rank = b.rank(x)?;
    let mut sizes = b.sizes(x)?;
    let last = sizes[rank - 1].clone();
    let count = c.opt_sym("N")?.unwrap_or(last);
    sizes.push(count.clone());
    let column = b.unsqueeze(x, rank)?;
    let wide = b.expand(column, &sizes)?;
    let number = super::creation::iota(b, count)?;
    let first = b.eq(number, 0i64)?;
    let wide_dtype = b.dtype(x)?;
    let factors = b.select(first, Scalar::Int(1).to_class_of(wide_dtype), wide)?;
    let powers = b.call1("prims.cumprod", vec![factors.into(), (rank as i64).into()])?;
    one(b.cast(powers, dtype)?)
}
