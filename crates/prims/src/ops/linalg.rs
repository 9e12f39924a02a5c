//! Factorizations as operators: Cholesky, LU, LDL, QR, Householder products. Each is one prim with what PyTorch puts
//! around it; solving stands in `linalg_solve`, eigenvalues and singular values in `linalg_spectrum`.

use fx_ir::ValueId;
use ir_core::{DType, Shape, SymExpr};
use smallvec::smallvec;

use super::common::one;
use super::linalg_util::*;
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(super) const OPS: &[OpDef] = &[
    composite!("aten::linalg_cholesky(Tensor self, *, bool upper=False) -> Tensor", |b, c| {
        one(cholesky(b, c, true)?[0])
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::cholesky(Tensor self, bool upper=False) -> Tensor", |b, c| {
        one(cholesky(b, c, true)?[0])
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::linalg_cholesky_ex(Tensor self, *, bool upper=False, bool check_errors=False) -> (Tensor L, Tensor info)",
        |b, c| cholesky(b, c, c.bool("check_errors")?)
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::linalg_lu_factor(Tensor A, *, bool pivot=True) -> (Tensor LU, Tensor pivots)",
        |b, c| {
            let outs = lu(b, c, "A", true)?;
            Ok(smallvec![outs[0], outs[1]])
        }
    ),
    composite!(
        "aten::linalg_lu_factor_ex(Tensor A, *, bool pivot=True, bool check_errors=False) -> (Tensor LU, Tensor pivots, Tensor info)",
        |b, c| lu(b, c, "A", c.bool("check_errors")?)
    ),
    composite!(
        "aten::_lu_with_info(Tensor self, bool pivot=True, bool check_errors=True) -> (Tensor LU, Tensor pivots, Tensor info)",
        |b, c| lu(b, c, "self", c.bool("check_errors")?)
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::linalg_lu(Tensor A, *, bool pivot=True) -> (Tensor P, Tensor L, Tensor U)", |b, c| {
        let outs = lu(b, c, "A", false)?;
        unpack(b, c, outs[0], outs[1], true, c.bool("pivot")?)
    }),
    composite!(
        "aten::lu_unpack(Tensor LU_data, Tensor LU_pivots, bool unpack_data=True, bool unpack_pivots=True) -> (Tensor P, Tensor L, Tensor U)",
        |b, c| {
            let (f, pivots) = (c.value("LU_data")?, c.value("LU_pivots")?);
            unpack(b, c, f, pivots, c.bool("unpack_data")?, c.bool("unpack_pivots")?)
        }
    ),
    composite!(
        "aten::linalg_ldl_factor(Tensor self, *, bool hermitian=False) -> (Tensor LD, Tensor pivots)",
        |b, c| {
            let outs = ldl_factor(b, c, true)?;
            Ok(smallvec![outs[0], outs[1]])
        }
    ),
    composite!(
        "aten::linalg_ldl_factor_ex(Tensor self, *, bool hermitian=False, bool check_errors=False) -> (Tensor LD, Tensor pivots, Tensor info)",
        |b, c| ldl_factor(b, c, c.bool("check_errors")?)
    ),
    composite!("aten::linalg_qr(Tensor A, str mode=\"reduced\") -> (Tensor Q, Tensor R)", |b, c| match c
        .opt_str("mode")?
        .unwrap_or("reduced")
    {
        "reduced" => qr(b, c.value("A")?, false),
        "complete" => qr(b, c.value("A")?, true),
        "r" => {
            let a = c.value("A")?;
            let outs = qr(b, a, false)?;
            Ok(smallvec![nothing(b, a)?, outs[1]])
        }
        other => Err(c.bad_arg("mode", format!("is `{other}`, not `reduced`, `complete` or `r`"))),
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::qr(Tensor self, bool some=True) -> (Tensor Q, Tensor R)", |b, c| {
        qr(b, c.value("self")?, !c.bool("some")?)
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::geqrf(Tensor self) -> (Tensor a, Tensor tau)", |b, c| {
        b.call("prims.linalg_geqrf", vec![c.value("self")?.into()])
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::linalg_householder_product(Tensor input, Tensor tau) -> Tensor", |b, c| {
        householder_product(b, c, c.value("input")?, c.value("tau")?)
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::orgqr(Tensor self, Tensor input2) -> Tensor", |b, c| {
        householder_product(b, c, c.value("self")?, c.value("input2")?)
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::ormqr(Tensor self, Tensor input2, Tensor input3, bool left=True, bool transpose=False) -> Tensor",
        ormqr
    ).autocast(Autocast::FLOAT32_ON_CPU),
];

/// A tensor without elements: what PyTorch returns for results that were not asked for.
pub(super) fn nothing(b: &mut Builder<'_>, like: ValueId) -> ValueResult {
    let dtype = b.dtype(like)?;
    b.full(&[SymExpr::ZERO], 0i64, dtype)
}

fn cholesky(b: &mut Builder<'_>, c: &Call<'_>, check: bool) -> Result<Outs, OpError> {
    b.call("prims.linalg_cholesky", vec![c.value("self")?.into(), c.bool("upper")?.into(), check.into()])
}

fn lu(b: &mut Builder<'_>, c: &Call<'_>, arg: &str, check: bool) -> Result<Outs, OpError> {
    b.call("prims.linalg_lu", vec![c.value(arg)?.into(), c.bool("pivot")?.into(), check.into()])
}

/// `P`, `L` and `U` out of packed factors.
fn unpack(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    f: ValueId,
    pivots: ValueId,
    data: bool,
    order: bool,
) -> Result<Outs, OpError> {
    let (batch, m, n) = parts(c, b, f)?;
    let dtype = b.dtype(f)?;
    let k = m.sym_min(&n);
    let p = if order {
        // Column i of P is the unit vector of the row that stands at i.
        let at = permutation(b, pivots, &m)?;
        let at = row(b, at, DType::I64)?;
        let rows = super::shape::iota_at(b, &m, 0, 2)?;
        let hit = b.eq(rows, at)?;
        let sizes: Shape = batch.iter().chain([&m, &m]).cloned().collect();
        let hit = b.expand(hit, &sizes)?;
        b.cast(hit, dtype)?
    } else {
        nothing(b, f)?
    };
    if !data {
        return Ok(smallvec![p, nothing(b, f)?, nothing(b, f)?]);
    }
    let l = narrow(b, f, 1, SymExpr::ZERO, k.clone())?;
    let l = tril(b, l, -1)?;
    let l = with_number(b, l, 1.0)?;
    let u = narrow(b, f, 2, SymExpr::ZERO, k)?;
    let u = triu(b, u, 0)?;
    Ok(smallvec![p, l, u])
}

fn ldl_factor(b: &mut Builder<'_>, c: &Call<'_>, check: bool) -> Result<Outs, OpError> {
    let args = vec![c.value("self")?.into(), c.bool("hermitian")?.into(), check.into()];
    b.call("prims.linalg_ldl_factor", args)
}

pub(super) fn qr(b: &mut Builder<'_>, a: ValueId, complete: bool) -> Result<Outs, OpError> {
    b.call("prims.linalg_qr", vec![a.into(), complete.into()])
}

/// `V` (unit lower, `[*, m, k]`) and `T` (upper, `[*, k, k]`) with `H₁ … Hₖ = I - V T Vᴴ`:
/// `T = (I + D S)⁻¹ D` with `D = diag(tau)` and the strictly upper part `S` of `Vᴴ V`.
///
/// Source: R. Schreiber, C. Van Loan, "A storage-efficient WY representation for products of Householder
/// transformations", 1989, whose recursion this solves at once.
fn compact(b: &mut Builder<'_>, a: ValueId, tau: ValueId) -> Result<(ValueId, ValueId), OpError> {
    let dtype = b.dtype(a)?;
    let k = b.sizes_of_rank(tau, 1..)?.last().cloned().unwrap_or(SymExpr::ONE);
    let v = narrow(b, a, 1, SymExpr::ZERO, k)?;
    let v = tril(b, v, -1)?;
    let v = with_number(b, v, 1.0)?;
    let vh = adjoint(b, v)?;
    let s = mm(b, vh, v)?;
    let s = triu(b, s, 1)?;
    let scale = column(b, tau, dtype)?;
    let m = b.mul(s, scale)?;
    let d = diag_embed(b, tau)?;
    Ok((v, solve_triangular(b, m, d, true, true)?))
}

/// The first columns of a product of reflections.
fn householder_product(b: &mut Builder<'_>, c: &Call<'_>, a: ValueId, tau: ValueId) -> Result<Outs, OpError> {
    let (batch, m, n) = parts(c, b, a)?;
    let dtype = want_matrix_dtype(c, b, a)?;
    let k = b.sizes(tau)?.last().cloned().ok_or_else(|| c.bad_arg("tau", "must have a dimension"))?;
    for (more, less) in [(&m, &n), (&n, &k)] {
        b.require_at_least(more, less.clone(), |graph| {
            let [m, n, k] = [&m, &n, &k].map(|e| graph.size_text(e));
            format!("takes at least as many rows as columns as reflections, not {m}, {n}, {k}")
        })?;
    }
    let (v, t) = compact(b, a, tau)?;
    let vh = adjoint(b, v)?;
    let ends = narrow(b, vh, 1, SymExpr::ZERO, n.clone())?;
    let x = mm(b, t, ends)?;
    let x = mm(b, v, x)?;
    let unit = eye(b, &batch, &m, &n, dtype)?;
    one(b.sub(unit, x)?)
}

/// `Q C`, `Qᴴ C`, `C Q` or `C Qᴴ` for the square product `Q` of the reflections.
fn ormqr(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (a, tau, other) = (c.value("self")?, c.value("input2")?, c.value("input3")?);
    let (left, transposed) = (c.bool("left")?, c.bool("transpose")?);
    parts(c, b, other)?;
    parts(c, b, a)?;
    let (v, mut t) = compact(b, a, tau)?;
    if transposed {
        t = adjoint(b, t)?;
    }
    let vh = adjoint(b, v)?;
    let x = if left {
        let x = mm(b, vh, other)?;
        let x = mm(b, t, x)?;
        mm(b, v, x)?
    } else {
        let x = mm(b, other, v)?;
        let x = mm(b, x, t)?;
        mm(b, x, vh)?
    };
    one(b.sub(other, x)?)
}
