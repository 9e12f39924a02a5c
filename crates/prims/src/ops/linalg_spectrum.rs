//! Eigenvalues and singular values as operators, and what is made of them: pseudoinverses, ranks, condition numbers, least
//! squares, nuclear norms.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Relation, Scalar, Shape, SymExpr};
use kernel_ir::ReduceOp;
use smallvec::smallvec;

use super::common::one;
use super::linalg::nothing;
use super::linalg_solve::{inverse, is_vector};
use super::linalg_util::*;
use super::shape;
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(super) const OPS: &[OpDef] = &[
    composite!(
        "aten::linalg_eigh(Tensor self, str UPLO=\"L\") -> (Tensor eigenvalues, Tensor eigenvectors)",
        |b, c| eigh(b, c, c.value("self")?)
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::linalg_eigvalsh(Tensor self, str UPLO=\"L\") -> Tensor", |b, c| {
        one(eigh(b, c, c.value("self")?)?[0])
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::_linalg_eigh(Tensor A, str UPLO=\"L\", bool compute_v=True) -> (Tensor eigenvalues, Tensor eigenvectors)",
        |b, c| {
            let a = c.value("A")?;
            let outs = eigh(b, c, a)?;
            let vectors = if c.bool("compute_v")? { outs[1] } else { nothing(b, a)? };
            Ok(smallvec![outs[0], vectors])
        }
    ),
    composite!("aten::linalg_eig(Tensor self) -> (Tensor eigenvalues, Tensor eigenvectors)", |b, c| {
        b.call("prims.linalg_eig", vec![c.value("self")?.into()])
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::linalg_eigvals(Tensor self) -> Tensor", |b, c| {
        one(b.call("prims.linalg_eig", vec![c.value("self")?.into()])?[0])
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::_linalg_eigvals(Tensor self) -> Tensor", |b, c| {
        one(b.call("prims.linalg_eig", vec![c.value("self")?.into()])?[0])
    }),
    composite!(
        "aten::linalg_svd(Tensor A, bool full_matrices=True, *, str? driver=None) -> (Tensor U, Tensor S, Tensor Vh)",
        |b, c| svd_of(b, c.value("A")?, c.bool("full_matrices")?)
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::_linalg_svd(Tensor A, bool full_matrices=False, bool compute_uv=True, *, str? driver=None) -> (Tensor U, Tensor S, Tensor Vh)",
        |b, c| {
            let a = c.value("A")?;
            if c.bool("compute_uv")? {
                return svd_of(b, a, c.bool("full_matrices")?);
            }
            let s = svdvals(b, a)?;
            Ok(smallvec![nothing(b, a)?, s, nothing(b, a)?])
        }
    ),
    composite!("aten::linalg_svdvals(Tensor A, *, str? driver=None) -> Tensor", |b, c| {
        one(svdvals(b, c.value("A")?)?)
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::svd(Tensor self, bool some=True, bool compute_uv=True) -> (Tensor U, Tensor S, Tensor V)",
        old_svd
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::linalg_pinv(Tensor self, float rcond, bool hermitian=False) -> Tensor", |b, c| {
        pinv(b, c, &Arg::None, c.arg("rcond"), c.bool("hermitian")?)
    }),
    composite!(
        "aten::linalg_pinv.rcond_tensor(Tensor self, Tensor rcond, bool hermitian=False) -> Tensor",
        |b, c| pinv(b, c, &Arg::None, c.arg("rcond"), c.bool("hermitian")?)
    ),
    composite!(
        "aten::linalg_pinv.atol_rtol_float(Tensor self, *, float? atol=None, float? rtol=None, bool hermitian=False) -> Tensor",
        |b, c| pinv(b, c, c.arg("atol"), c.arg("rtol"), c.bool("hermitian")?)
    ),
    composite!(
        "aten::linalg_pinv.atol_rtol_tensor(Tensor self, *, Tensor? atol=None, Tensor? rtol=None, bool hermitian=False) -> Tensor",
        |b, c| pinv(b, c, c.arg("atol"), c.arg("rtol"), c.bool("hermitian")?)
    ),
    composite!("aten::pinverse(Tensor self, float rcond=1.0000000000000001e-15) -> Tensor", |b, c| {
        pinv(b, c, &Arg::None, c.arg("rcond"), false)
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::linalg_matrix_rank(Tensor self, float tol, bool hermitian=False) -> Tensor", |b, c| {
        rank(b, c, c.value("self")?, c.arg("tol"), &Arg::from(0.0))
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::linalg_matrix_rank.tol_tensor(Tensor input, Tensor tol, bool hermitian=False) -> Tensor",
        |b, c| rank(b, c, c.value("input")?, c.arg("tol"), &Arg::from(0.0))
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::linalg_matrix_rank.atol_rtol_float(Tensor self, *, float? atol=None, float? rtol=None, bool hermitian=False) -> Tensor",
        |b, c| rank(b, c, c.value("self")?, c.arg("atol"), c.arg("rtol"))
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::linalg_matrix_rank.atol_rtol_tensor(Tensor input, *, Tensor? atol=None, Tensor? rtol=None, bool hermitian=False) -> Tensor",
        |b, c| rank(b, c, c.value("input")?, c.arg("atol"), c.arg("rtol"))
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::linalg_cond(Tensor self, Scalar? p=None) -> Tensor", |b, c| {
        let p = c.opt_float("p")?;
        match p.unwrap_or(2.0) {
            2.0 => spread(b, c, false),
            -2.0 => spread(b, c, true),
            p => cond(b, c, "aten.linalg_matrix_norm.default", p.into()),
        }
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::linalg_cond.p_str(Tensor self, str p) -> Tensor", |b, c| {
        cond(b, c, "aten.linalg_matrix_norm.str_ord", c.arg("p").clone())
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::linalg_lstsq(Tensor self, Tensor b, float? rcond=None, *, str? driver=None) -> (Tensor solution, Tensor residuals, Tensor rank, Tensor singular_values)",
        lstsq
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::nuclear_norm(Tensor self, bool keepdim=False) -> Tensor", |b, c| {
        nuclear(b, c, &[-2, -1])
    }).autocast(Autocast::FLOAT32_ON_GPU),
    composite!("aten::nuclear_norm.dim(Tensor self, int[2] dim, bool keepdim=False) -> Tensor", |b, c| {
        let dims = c.ints("dim")?;
        nuclear(b, c, &dims)
    }).autocast(Autocast::FLOAT32_ON_GPU),
];

fn eigh(b: &mut Builder<'_>, c: &Call<'_>, a: ValueId) -> Result<Outs, OpError> {
    let upper = match c.opt_str("UPLO")?.unwrap_or("L") {
        "L" | "l" => false,
        "U" | "u" => true,
        other => return Err(c.bad_arg("UPLO", format!("is `{other}`, not `L` or `U`"))),
    };
    b.call("prims.linalg_eigh", vec![a.into(), upper.into()])
}

fn svd_of(b: &mut Builder<'_>, a: ValueId, full: bool) -> Result<Outs, OpError> {
    b.call("prims.linalg_svd", vec![a.into(), full.into()])
}

/// Singular values `[*, min(m, n)]`, descending.
pub(super) fn svdvals(b: &mut Builder<'_>, a: ValueId) -> ValueResult {
    Ok(svd_of(b, a, false)?[1])
}

/// With `V` rather than its adjoint; zeros for vectors that were not asked for.
fn old_svd(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let a = c.value("self")?;
    if !c.bool("compute_uv")? {
        let (batch, m, n) = parts(c, b, a)?;
        let dtype = b.dtype(a)?;
        let mut zeros = |n: &SymExpr| {
            let sizes: Shape = batch.iter().chain([n, n]).cloned().collect();
            b.full(&sizes, 0i64, dtype)
        };
        let (u, v) = (zeros(&m)?, zeros(&n)?);
        return Ok(smallvec![u, svdvals(b, a)?, v]);
    }
    let mut outs = svd_of(b, a, !c.bool("some")?)?;
    outs[2] = adjoint(b, outs[2])?;
    Ok(outs)
}

/// A tolerance as a real tensor that broadcasts against the batch.
fn tolerance(b: &mut Builder<'_>, given: &Arg, dtype: DType) -> Result<Option<ValueId>, OpError> {
    match given {
        Arg::None => Ok(None),
        given => Ok(Some(b.as_tensor(given, dtype)?)),
    }
}

/// Absolute and relative tolerance of matrices `[m, n]`: 0 and `eps · max(m, n)` where none is given; a positive absolute
/// tolerance alone makes the relative one 0.
fn tolerances(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    a: ValueId,
    (atol, rtol): (&Arg, &Arg),
) -> Result<(ValueId, ValueId), OpError> {
    let (_, m, n) = parts(c, b, a)?;
    let dtype = want_matrix_dtype(c, b, a)?;
    let (real, eps) = (dtype.to_real(), epsilon(dtype));
    let given = tolerance(b, atol, real)?;
    let rtol = match tolerance(b, rtol, real)? {
        Some(rtol) => rtol,
        None => {
            let most = m.sym_max(&n);
            let most = b.call1("prims.full", vec![Arg::List(Vec::new()), most.into(), DType::I64.into()])?;
            let most = b.cast(most, real)?;
            let usual = b.mul(most, eps)?;
            match given {
                Some(atol) => {
                    let positive = b.gt(atol, 0.0)?;
                    b.select(positive, Scalar::Float(0.0), usual)?
                }
                None => usual,
            }
        }
    };
    let atol = match given {
        Some(atol) => atol,
        None => b.full(&[], 0.0, real)?,
    };
    Ok((atol, rtol))
}

fn pinv(b: &mut Builder<'_>, c: &Call<'_>, atol: &Arg, rtol: &Arg, hermitian: bool) -> Result<Outs, OpError> {
    let a = c.value("self")?;
    let (atol, rtol) = tolerances(b, c, a, (atol, rtol))?;
    one(pinv_of(b, c, a, (atol, rtol), hermitian)?)
}

fn pinv_of(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    a: ValueId,
    (atol, rtol): (ValueId, ValueId),
    hermitian: bool,
) -> ValueResult {
    let (batch, ..) = parts(c, b, a)?;
    let (atol, rtol) = (b.expand(atol, &batch)?, b.expand(rtol, &batch)?);
    b.call1("prims.linalg_pinv", vec![a.into(), atol.into(), rtol.into(), hermitian.into()])
}

/// Whether the matrices are known to have no elements.
fn is_empty(m: &SymExpr, n: &SymExpr) -> bool {
    *m == SymExpr::ZERO || *n == SymExpr::ZERO
}

fn rank(b: &mut Builder<'_>, c: &Call<'_>, a: ValueId, atol: &Arg, rtol: &Arg) -> Result<Outs, OpError> {
    let tols = tolerances(b, c, a, (atol, rtol))?;
    one(rank_of(b, c, a, tols, c.bool("hermitian")?)?)
}

/// How many singular values are above the tolerance.
fn rank_of(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    a: ValueId,
    (atol, rtol): (ValueId, ValueId),
    hermitian: bool,
) -> ValueResult {
    let (batch, m, n) = parts(c, b, a)?;
    if is_empty(&m, &n) {
        return b.full(&batch, 0i64, DType::I64);
    }
    let s = if hermitian {
        let l = b.call("prims.linalg_eigh", vec![a.into(), false.into()])?[0];
        b.abs(l)?
    } else {
        svdvals(b, a)?
    };
    let last = b.rank(s)? - 1;
    let most = b.reduce(ReduceOp::Max, s, &[last], false)?;
    let relative = b.mul(rtol, most)?;
    let limit = b.maximum(atol, relative)?;
    let rank = b.rank(limit)?;
    let limit = b.unsqueeze(limit, rank)?;
    let above = b.gt(s, limit)?;
    let above = b.cast(above, DType::I64)?;
    let last = b.rank(above)? - 1;
    b.reduce(ReduceOp::Sum, above, &[last], false)
}

/// Largest by smallest singular value, or the other way.
fn spread(b: &mut Builder<'_>, c: &Call<'_>, inverted: bool) -> Result<Outs, OpError> {
    let a = c.value("self")?;
    let (batch, m, n) = parts(c, b, a)?;
    let real = want_matrix_dtype(c, b, a)?.to_real();
    if is_empty(&m, &n) {
        return one(b.full(&batch, 0.0, real)?);
    }
    let s = svdvals(b, a)?;
    let last = b.rank(s)? - 1;
    let k = b.sizes(s)?[last].clone();
    let (most, least) = (shape::select(b, s, last, SymExpr::ZERO)?, shape::select(b, s, last, k - 1)?);
    one(if inverted { b.div(least, most)? } else { b.div(most, least)? })
}

/// The norm times that of the inverse; infinite for singular matrices.
fn cond(b: &mut Builder<'_>, c: &Call<'_>, norm: &str, order: Arg) -> Result<Outs, OpError> {
    let a = c.value("self")?;
    let (batch, n) = square(c, b, a)?;
    let dtype = want_matrix_dtype(c, b, a)?;
    if n == SymExpr::ZERO {
        return one(b.full(&batch, 0.0, dtype.to_real())?);
    }
    let outs = inverse(b, c, a, false)?;
    let singular = b.gt(outs[1], 0i64)?;
    let own = b.call1(norm, vec![a.into(), order.clone()])?;
    // A singular matrix has no finite inverse to take the norm of: its place is taken by ones.
    let rank = b.rank(singular)?;
    let wide = b.unsqueeze(singular, rank)?;
    let wide = b.unsqueeze(wide, rank + 1)?;
    let sizes = b.sizes(a)?;
    let wide = b.expand(wide, &sizes)?;
    let safe = b.select(wide, number(1.0, dtype), outs[0])?;
    let other = b.call1(norm, vec![safe.into(), order])?;
    let product = b.mul(own, other)?;
    one(b.select(singular, f64::INFINITY, product)?)
}

/// Least squares by the pseudoinverse. Which further results there are depends on the driver, as in PyTorch; residuals are
/// given where there are more rows than columns (PyTorch leaves them out where it finds a deficient rank, which sizes
/// known before the run cannot tell).
fn lstsq(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (a, rhs) = (c.value("self")?, c.value("b")?);
    let driver = c.opt_str("driver")?.unwrap_or("gelsy");
    if !["gels", "gelsy", "gelsd", "gelss"].contains(&driver) {
        return Err(c.bad_arg("driver", format!("is `{driver}`, not `gels`, `gelsy`, `gelsd` or `gelss`")));
    }
    let vector = is_vector(b, a, rhs)?;
    let matrix = if vector { b.unsqueeze(rhs, b.rank(rhs)?)? } else { rhs };
    let (wide, matrix) = same_batch(b, c, a, matrix)?;
    let rcond = if driver == "gels" { &Arg::None } else { c.arg("rcond") };
    let tols = tolerances(b, c, wide, (&Arg::None, rcond))?;
    let inverse = pinv_of(b, c, wide, tols, false)?;
    let x = mm(b, inverse, matrix)?;
    let (_, m, n) = parts(c, b, wide)?;
    let tall = b.choose(Relation::NonNegative, &(&m - &n - 1), false, |graph| {
        let (m, n) = (graph.size_text(&m), graph.size_text(&n));
        format!("whether {m} rows are more than {n} columns was decided at capture")
    })?;
    let real = b.dtype(a)?.to_real();
    let residuals = if tall && driver != "gelsy" {
        let ax = mm(b, wide, x)?;
        let rest = b.sub(ax, matrix)?;
        let size = b.call1("aten.abs.default", vec![rest.into()])?;
        let squares = b.mul(size, size)?;
        let rows = b.rank(squares)? - 2;
        b.reduce(ReduceOp::Sum, squares, &[rows], false)?
    } else {
        b.full(&[SymExpr::ZERO], 0.0, real)?
    };
    let rank = if driver == "gels" {
        b.full(&[SymExpr::ZERO], 0i64, DType::I64)?
    } else {
        rank_of(b, c, a, tols, false)?
    };
    let values = if matches!(driver, "gelsd" | "gelss") {
        svdvals(b, a)?
    } else {
        b.full(&[SymExpr::ZERO], 0.0, real)?
    };
    let last = b.rank(x)? - 1;
    let x = if vector { shape::drop_dim(b, x, last)? } else { x };
    Ok(smallvec![x, residuals, rank, values])
}

fn nuclear(b: &mut Builder<'_>, c: &Call<'_>, dims: &[i64]) -> Result<Outs, OpError> {
    let args = vec![c.arg("self").clone(), "nuc".into(), dims.into(), c.bool("keepdim")?.into()];
    b.call("aten.linalg_matrix_norm.str_ord", args)
}
