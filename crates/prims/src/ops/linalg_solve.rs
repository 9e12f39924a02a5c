//! Systems of equations, inverses, determinants and powers, made of factorizations and triangular solutions.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Shape, SymExpr, numel};
use kernel_ir::ReduceOp;
use smallvec::smallvec;

use super::common::{one, widen};
use super::linalg_util::*;
use super::prims_linalg_grad::adjoint_solve;
use super::shape;
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(super) const OPS: &[OpDef] = &[
    composite!("aten::linalg_solve(Tensor A, Tensor B, *, bool left=True) -> Tensor", |b, c| {
        one(solve(b, c, true)?[0])
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::linalg_solve_ex(Tensor A, Tensor B, *, bool left=True, bool check_errors=False) -> (Tensor result, Tensor info)",
        |b, c| {
            let outs = solve(b, c, c.bool("check_errors")?)?;
            Ok(smallvec![outs[0], outs[3]])
        }
    ),
    composite!(
        "aten::_linalg_solve_ex(Tensor A, Tensor B, *, bool left=True, bool check_errors=False) -> (Tensor result, Tensor LU, Tensor pivots, Tensor info)",
        |b, c| solve(b, c, c.bool("check_errors")?)
    ),
    composite!("aten::linalg_inv(Tensor A) -> Tensor", |b, c| {
        one(inverse(b, c, c.value("A")?, true)?[0])
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::inverse(Tensor self) -> Tensor", |b, c| {
        one(inverse(b, c, c.value("self")?, true)?[0])
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::linalg_inv_ex(Tensor A, *, bool check_errors=False) -> (Tensor inverse, Tensor info)",
        |b, c| inverse(b, c, c.value("A")?, c.bool("check_errors")?)
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::linalg_solve_triangular(Tensor self, Tensor B, *, bool upper, bool left=True, bool unitriangular=False) -> Tensor",
        |b, c| {
            let (a, rhs) = same_batch(b, c, c.value("self")?, c.value("B")?)?;
            let (upper, unit) = (c.bool("upper")?, c.bool("unitriangular")?);
            one(if c.bool("left")? {
                solve_triangular(b, a, rhs, upper, unit)?
            } else {
                solve_triangular_right(b, a, rhs, upper, unit)?
            })
        }
    ),
    composite!(
        "aten::triangular_solve(Tensor self, Tensor A, bool upper=True, bool transpose=False, bool unitriangular=False) -> (Tensor solution, Tensor cloned_coefficient)",
        |b, c| {
            let (a, rhs) = same_batch(b, c, c.value("A")?, c.value("self")?)?;
            let (upper, transposed) = (c.bool("upper")?, c.bool("transpose")?);
            let used = if transposed { transpose(b, a)? } else { a };
            let x = solve_triangular(b, used, rhs, upper != transposed, c.bool("unitriangular")?)?;
            Ok(smallvec![x, a])
        }
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::cholesky_solve(Tensor self, Tensor input2, bool upper=False) -> Tensor", |b, c| {
        let (l, rhs) = same_batch(b, c, c.value("input2")?, c.value("self")?)?;
        b.call("prims.linalg_cholesky_solve", vec![l.into(), rhs.into(), c.bool("upper")?.into()])
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::_cholesky_solve_helper(Tensor self, Tensor A, bool upper) -> Tensor", |b, c| {
        let (l, rhs) = same_batch(b, c, c.value("A")?, c.value("self")?)?;
        b.call("prims.linalg_cholesky_solve", vec![l.into(), rhs.into(), c.bool("upper")?.into()])
    }),
    composite!("aten::cholesky_inverse(Tensor self, bool upper=False) -> Tensor", |b, c| {
        let l = c.value("self")?;
        let (batch, n) = square(c, b, l)?;
        let unit = eye(b, &batch, &n, &n, b.dtype(l)?)?;
        b.call("prims.linalg_cholesky_solve", vec![l.into(), unit.into(), c.bool("upper")?.into()])
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::linalg_lu_solve(Tensor LU, Tensor pivots, Tensor B, *, bool left=True, bool adjoint=False) -> Tensor",
        |b, c| {
            let (f, pivots, rhs) = (c.value("LU")?, c.value("pivots")?, c.value("B")?);
            one(lu_solve(b, c, (f, pivots), rhs, c.bool("left")?, c.bool("adjoint")?)?)
        }
    ),
    composite!("aten::lu_solve(Tensor self, Tensor LU_data, Tensor LU_pivots) -> Tensor", |b, c| {
        let (f, pivots, rhs) = (c.value("LU_data")?, c.value("LU_pivots")?, c.value("self")?);
        one(lu_solve(b, c, (f, pivots), rhs, true, false)?)
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::linalg_ldl_solve(Tensor LD, Tensor pivots, Tensor B, *, bool hermitian=False) -> Tensor",
        |b, c| {
            let (f, rhs) = same_batch(b, c, c.value("LD")?, c.value("B")?)?;
            let pivots = widened_pivots(b, c.value("pivots")?, f)?;
            let args = vec![f.into(), pivots.into(), rhs.into(), c.bool("hermitian")?.into()];
            b.call("prims.linalg_ldl_solve", args)
        }
    ),
    composite!("aten::_linalg_det(Tensor A) -> (Tensor result, Tensor LU, Tensor pivots)", |b, c| {
        let (det, f, pivots) = determinant(b, c, c.value("A")?)?;
        Ok(smallvec![det, f, pivots])
    }),
    composite!("aten::linalg_det(Tensor A) -> Tensor", |b, c| one(determinant(b, c, c.value("A")?)?.0)),
    composite!("aten::det(Tensor self) -> Tensor", |b, c| one(determinant(b, c, c.value("self")?)?.0)),
    composite!(
        "aten::_linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet, Tensor LU, Tensor pivots)",
        |b, c| slogdet(b, c, c.value("A")?)
    ),
    composite!("aten::linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet)", |b, c| {
        let outs = slogdet(b, c, c.value("A")?)?;
        Ok(smallvec![outs[0], outs[1]])
    }),
    composite!("aten::slogdet(Tensor self) -> (Tensor sign, Tensor logabsdet)", |b, c| {
        let outs = slogdet(b, c, c.value("self")?)?;
        Ok(smallvec![outs[0], outs[1]])
    }),
    composite!("aten::logdet(Tensor self) -> Tensor", logdet),
    composite!("aten::linalg_matrix_power(Tensor self, int n) -> Tensor", |b, c| {
        one(power(b, c, c.value("self")?, c.int("n")?)?)
    }),
    composite!("aten::matrix_power(Tensor self, int n) -> Tensor", |b, c| {
        one(power(b, c, c.value("self")?, c.int("n")?)?)
    }),
    composite!("aten::matrix_exp(Tensor self) -> Tensor", matrix_exp),
    composite!("aten::linalg_matrix_exp(Tensor self) -> Tensor", matrix_exp),
    composite!("aten::matrix_exp_backward(Tensor self, Tensor grad) -> Tensor", |b, c| {
        one(super::prims_linalg_grad::matrix_exp_of(b, c.value("self")?, c.value("grad")?)?)
    }),
    composite!("aten::linalg_tensorinv(Tensor self, int ind=2) -> Tensor", tensorinv).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::linalg_tensorsolve(Tensor self, Tensor other, int[]? dims=None) -> Tensor",
        tensorsolve
    ).autocast(Autocast::FLOAT32_ON_CPU),
];

/// Whether a right-hand side is a batch of vectors: one dimension, or the sizes of `a` without its last.
pub(super) fn is_vector(b: &Builder<'_>, a: ValueId, rhs: ValueId) -> Result<bool, OpError> {
    let (a, rhs) = (b.sizes(a)?, b.sizes(rhs)?);
    Ok(rhs.len() == 1 || (rhs.len() + 1 == a.len() && rhs[..] == a[..a.len() - 1]))
}

/// `[x, LU, pivots, info]`; the last three are those of `A` alone.
fn solve(b: &mut Builder<'_>, c: &Call<'_>, check: bool) -> Result<Outs, OpError> {
    let (a, rhs) = (c.value("A")?, c.value("B")?);
    square(c, b, a)?;
    let (left, vector) = (c.bool("left")?, is_vector(b, a, rhs)?);
    if vector && !left {
        return Err(c.invalid("vectors stand on the right; `left=False` takes matrices"));
    }
    let matrix = if vector { b.unsqueeze(rhs, b.rank(rhs)?)? } else { rhs };
    let (wide, matrix) = same_batch(b, c, a, matrix)?;
    let mut outs = if left {
        b.call("prims.linalg_solve", vec![wide.into(), matrix.into(), check.into()])?
    } else {
        let (at, bt) = (transpose(b, wide)?, transpose(b, matrix)?);
        let mut outs = b.call("prims.linalg_solve", vec![at.into(), bt.into(), check.into()])?;
        outs[0] = transpose(b, outs[0])?;
        outs
    };
    if vector {
        let last = b.rank(outs[0])? - 1;
        outs[0] = shape::drop_dim(b, outs[0], last)?;
    }
    if !left || b.sizes(wide)? != b.sizes(a)? {
        let own = b.call("prims.linalg_lu", vec![a.into(), true.into(), false.into()])?;
        outs.truncate(1);
        outs.extend(own);
    }
    Ok(outs)
}

/// `[inverse, info]`.
pub(super) fn inverse(b: &mut Builder<'_>, c: &Call<'_>, a: ValueId, check: bool) -> Result<Outs, OpError> {
    let (batch, n) = square(c, b, a)?;
    let dtype = want_matrix_dtype(c, b, a)?;
    let unit = eye(b, &batch, &n, &n, dtype)?;
    let outs = b.call("prims.linalg_solve", vec![a.into(), unit.into(), check.into()])?;
    Ok(smallvec![outs[0], outs[3]])
}

/// Pivots expanded to the batch of their factors.
fn widened_pivots(b: &mut Builder<'_>, pivots: ValueId, f: ValueId) -> ValueResult {
    let sizes = b.sizes(f)?;
    b.expand(pivots, &sizes[..sizes.len() - 1])
}

/// Solves by given factors: `x = U⁻¹ L⁻¹ Pᵀ b`, or with the adjoint; from the right by the adjoint system.
fn lu_solve(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    (f, pivots): (ValueId, ValueId),
    rhs: ValueId,
    left: bool,
    adjoined: bool,
) -> ValueResult {
    let (_, n) = square(c, b, f)?;
    if !left {
        let transposed = adjoint(b, rhs)?;
        let x = lu_solve(b, c, (f, pivots), transposed, true, !adjoined)?;
        return adjoint(b, x);
    }
    let (f, rhs) = same_batch(b, c, f, rhs)?;
    let pivots = widened_pivots(b, pivots, f)?;
    if adjoined {
        return adjoint_solve(b, f, pivots, rhs);
    }
    let order = permutation(b, pivots, &n)?;
    let x = rows_at(b, rhs, order)?;
    let x = solve_triangular(b, f, x, false, true)?;
    solve_triangular(b, f, x, true, false)
}

/// Factors of a square matrix: diagonal of `U`, sign of the permutation, `LU`, pivots.
fn factored(b: &mut Builder<'_>, c: &Call<'_>, a: ValueId) -> Result<[ValueId; 4], OpError> {
    let (_, n) = square(c, b, a)?;
    let outs = b.call("prims.linalg_lu", vec![a.into(), true.into(), false.into()])?;
    let d = diagonal(b, outs[0])?;
    let unchanged_rows = shape::iota(b, &n, 1.into(), 1.into())?;
    let pivots = b.cast(outs[1], DType::I64)?;
    let moved = b.ne(pivots, unchanged_rows)?;
    let moved = b.cast(moved, DType::I64)?;
    let last = b.rank(moved)? - 1;
    let swaps = b.reduce(ReduceOp::Sum, moved, &[last], false)?;
    let odd = b.and(swaps, 1i64)?;
    let twice = b.mul(odd, 2i64)?;
    let sign = b.sub(1i64, twice)?;
    let dtype = b.dtype(a)?;
    Ok([d, b.cast(sign, dtype)?, outs[0], outs[1]])
}

fn determinant(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    a: ValueId,
) -> Result<(ValueId, ValueId, ValueId), OpError> {
    let [d, sign, f, pivots] = factored(b, c, a)?;
    let last = b.rank(d)? - 1;
    let product = b.call1("aten.prod.dim_int", vec![d.into(), (last as i64).into()])?;
    Ok((b.mul(product, sign)?, f, pivots))
}

/// `[sign, log of the magnitude, LU, pivots]`.
fn slogdet(b: &mut Builder<'_>, c: &Call<'_>, a: ValueId) -> Result<Outs, OpError> {
    let [d, sign, f, pivots] = factored(b, c, a)?;
    let last = b.rank(d)? - 1;
    let signs = b.call1("aten.sgn.default", vec![d.into()])?;
    let product = b.call1("aten.prod.dim_int", vec![signs.into(), (last as i64).into()])?;
    let sign = b.mul(product, sign)?;
    let size = b.call1("aten.abs.default", vec![d.into()])?;
    let log = b.log(size)?;
    let log = b.reduce(ReduceOp::Sum, log, &[last], false)?;
    Ok(smallvec![sign, log, f, pivots])
}

/// `NaN` for real matrices with a negative determinant.
fn logdet(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let a = c.value("self")?;
    let outs = slogdet(b, c, a)?;
    let (sign, log) = (outs[0], outs[1]);
    let dtype = b.dtype(a)?;
    if dtype.is_complex() {
        let phase = b.log(sign)?;
        let log = b.cast(log, dtype)?;
        return one(b.add(phase, log)?);
    }
    let negative = b.eq(sign, -1.0)?;
    one(b.select(negative, f64::NAN, log)?)
}

/// By repeated squaring; negative powers are those of the inverse.
fn power(b: &mut Builder<'_>, c: &Call<'_>, a: ValueId, n: i64) -> ValueResult {
    let (batch, size) = square(c, b, a)?;
    if n == 0 {
        return eye(b, &batch, &size, &size, b.dtype(a)?);
    }
    let mut base = if n < 0 { inverse(b, c, a, true)?[0] } else { a };
    let mut left = n.unsigned_abs();
    let mut result = None;
    loop {
        if left & 1 == 1 {
            result = Some(match result {
                Some(r) => mm(b, r, base)?,
                None => base,
            });
        }
        left >>= 1;
        match result {
            Some(r) if left == 0 => return Ok(r),
            _ => base = mm(b, base, base)?,
        }
    }
}

/// The one routine that takes 16-bit floats.
fn matrix_exp(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let a = c.value("self")?;
    let own = b.dtype(a)?;
    let wide = widen(b, a)?;
    let e = b.call1("prims.linalg_matrix_exp", vec![wide.into()])?;
    one(b.cast(e, own)?)
}

/// The inverse of the matrix whose rows are the first `ind` dimensions.
fn tensorinv(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (a, ind) = (c.value("self")?, c.int("ind")?);
    let sizes = b.sizes(a)?;
    let ind = usize::try_from(ind).ok().filter(|&i| i > 0 && i <= sizes.len());
    let ind = ind.ok_or_else(|| c.bad_arg("ind", "must be a positive number of dimensions"))?;
    let (rows, columns) = (numel(&sizes[..ind]), numel(&sizes[ind..]));
    let flat = b.reshape(a, &[rows, columns])?;
    let x = inverse(b, c, flat, true)?[0];
    let back: Shape = sizes[ind..].iter().chain(&sizes[..ind]).cloned().collect();
    one(b.reshape(x, &back)?)
}

/// Solves for the trailing dimensions of `self`, after `dims` were moved to its end.
fn tensorsolve(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (mut a, rhs) = (c.value("self")?, c.value("other")?);
    let rank = b.rank(a)?;
    if !c.is_none("dims") {
        let moved = shape::dims(c, "dims", rank)?;
        let order: Vec<usize> =
            (0..rank).filter(|d| !moved.contains(d)).chain(moved.iter().copied()).collect();
        a = b.permute(a, &order)?;
    }
    let sizes = b.sizes(a)?;
    let split = b.rank(rhs)?;
    if split > rank {
        return Err(c.bad_arg("other", "has more dimensions than the tensor"));
    }
    let (rows, columns): (SymExpr, SymExpr) = (b.meta(rhs)?.numel(), numel(&sizes[split..]));
    let a = b.reshape(a, &[rows.clone(), columns])?;
    square(c, b, a)?;
    let rhs = b.reshape(rhs, &[rows, SymExpr::ONE])?;
    let args: Vec<Arg> = vec![a.into(), rhs.into(), true.into()];
    let x = b.call("prims.linalg_solve", args)?[0];
    one(b.reshape(x, &sizes[split..])?)
}
