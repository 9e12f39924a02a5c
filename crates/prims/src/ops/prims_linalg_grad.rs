//! Gradients of the matrix prims. Formulas are those of PyTorch, with its conventions: a routine that reads one triangle
//! of a Hermitian matrix has a Hermitian gradient; eigenvectors and singular vectors are differentiated for losses that
//! do not depend on their phase.
//!
//! Source: M. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic differentiation",
//! 2008; for QR: H.-J. Liao et al., "Differentiable programming tensor networks", 2019.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, SymExpr};

use super::grad_scalar::Grads;
use super::linalg_util::*;
use super::view::conjugate;
use crate::{Builder, GradCall, OpError};

/// The cotangent of result `n`, where it has one.
fn cotangent(call: &GradCall<'_>, n: usize) -> Option<ValueId> {
    call.cotangents.get(n).copied().flatten()
}

fn none(call: &GradCall<'_>) -> Vec<Option<ValueId>> {
    vec![None; call.call.args.len()]
}

/// The gradient of the first argument alone.
fn only(call: &GradCall<'_>, grad: ValueId) -> Grads {
    let mut grads = none(call);
    grads[0] = Some(grad);
    Ok(grads)
}

/// The sum of what is there.
fn plus(b: &mut Builder<'_>, x: Option<ValueId>, y: Option<ValueId>) -> Result<Option<ValueId>, OpError> {
    Ok(match (x, y) {
        (Some(x), Some(y)) => Some(b.add(x, y)?),
        (x, y) => x.or(y),
    })
}

/// `L⁻ᴴ π(tril(Lᴴ g)) L⁻¹` with `π(x) = (x + xᴴ - diag(x)) / 2`.
pub(super) fn cholesky(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let Some(mut g) = cotangent(call, 0) else { return Ok(none(call)) };
    let mut l = call.outs[0];
    if call.call.bool("upper")? {
        (l, g) = (adjoint(b, l)?, adjoint(b, g)?);
    }
    let lh = adjoint(b, l)?;
    let x = mm(b, lh, g)?;
    let x = tril(b, x, 0)?;
    let strict = tril(b, x, -1)?;
    let mirrored = adjoint(b, strict)?;
    let x = b.add(x, mirrored)?;
    let x = b.mul(x, number(0.5, b.dtype(x)?))?;
    let x = solve_triangular(b, lh, x, true, false)?;
    let x = solve_triangular_right(b, l, x, false, false)?;
    only(call, x)
}

/// Zeros on the diagonal of a triangle replaced by a tiny number: singular matrices have a gradient too where the
/// cotangents make it finite, as those of determinants do.
fn nonsingular(b: &mut Builder<'_>, u: ValueId) -> ValueResult {
    let dtype = b.dtype(u)?;
    let d = diagonal(b, u)?;
    let zero = b.eq(d, number(0.0, dtype))?;
    let d = b.select(zero, number(epsilon(dtype), dtype), d)?;
    with_diagonal(b, u, d)
}

/// With `P L U = a`, square: `P L⁻ᴴ [tril(Lᴴ gL, -1) + triu(gU Uᴴ)] U⁻ᴴ`. The columns of a wide matrix beyond the square
/// get `P L⁻ᴴ gU₂`, the rows of a tall one `gL₂ U⁻ᴴ`, and the square's brackets lose `gU₂ U₂ᴴ` below the diagonal or
/// `L₂ᴴ gL₂` above it.
pub(super) fn lu(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let Some(g) = cotangent(call, 0) else { return Ok(none(call)) };
    let x = lu_of(b, call, (call.outs[0], call.outs[1]), g)?;
    only(call, x)
}

/// The gradient of the matrix with these factors and pivots.
fn lu_of(
    b: &mut Builder<'_>,
    call: &GradCall<'_>,
    (f, pivots): (ValueId, ValueId),
    g: ValueId,
) -> ValueResult {
    let (_, m, n) = parts(call.call, b, f)?;
    let k = m.sym_min(&n);
    let (tall, wide) = (m != k, n != k);
    let square = |b: &mut Builder<'_>, v: ValueId| {
        let v = narrow(b, v, 2, SymExpr::ZERO, k.clone())?;
        narrow(b, v, 1, SymExpr::ZERO, k.clone())
    };
    let (f1, g1) = (square(b, f)?, square(b, g)?);
    let u = nonsingular(b, f1)?;
    let u = triu(b, u, 0)?;
    let uh = adjoint(b, u)?;
    let l = tril(b, f1, -1)?;
    let l = with_number(b, l, 1.0)?;
    let lh = adjoint(b, l)?;
    let (gl, gu) = (tril(b, g1, -1)?, triu(b, g1, 0)?);
    let (mut low, mut high) = (mm(b, lh, gl)?, mm(b, gu, uh)?);
    let rest = |b: &mut Builder<'_>, v: ValueId, from_end: usize, total: &SymExpr| {
        narrow(b, v, from_end, k.clone(), total - &k)
    };
    if wide {
        let (u2, gu2) = (rest(b, f, 1, &n)?, rest(b, g, 1, &n)?);
        let u2h = adjoint(b, u2)?;
        let less = mm(b, gu2, u2h)?;
        low = b.sub(low, less)?;
    }
    if tall {
        let (l2, gl2) = (rest(b, f, 2, &m)?, rest(b, g, 2, &m)?);
        let l2h = adjoint(b, l2)?;
        let less = mm(b, l2h, gl2)?;
        high = b.sub(high, less)?;
    }
    let (low, high) = (tril(b, low, -1)?, triu(b, high, 0)?);
    let x = b.add(low, high)?;
    let x = solve_triangular_right(b, uh, x, false, false)?;
    let mut x = solve_triangular(b, lh, x, true, true)?;
    if wide {
        let gu2 = rest(b, g, 1, &n)?;
        let more = solve_triangular(b, lh, gu2, true, true)?;
        let last = b.rank(x)? - 1;
        x = super::shape::cat(b, &[x, more], last)?;
    }
    if tall {
        let gl2 = rest(b, g, 2, &m)?;
        let more = solve_triangular_right(b, uh, gl2, false, false)?;
        let rows = b.rank(x)? - 2;
        x = super::shape::cat(b, &[x, more], rows)?;
    }
    let order = permutation(b, pivots, &m)?;
    let order = inverse_order(b, order)?;
    rows_at(b, x, order)
}

/// `a⁻ᴴ g` by the factors of `a`: `P L⁻ᴴ U⁻ᴴ g`.
pub(super) fn adjoint_solve(b: &mut Builder<'_>, f: ValueId, pivots: ValueId, g: ValueId) -> ValueResult {
    let fh = adjoint(b, f)?;
    let x = solve_triangular(b, fh, g, false, false)?;
    let x = solve_triangular(b, fh, x, true, true)?;
    let n = b.sizes(f)?[b.rank(f)? - 1].clone();
    let order = permutation(b, pivots, &n)?;
    let order = inverse_order(b, order)?;
    rows_at(b, x, order)
}

/// To `b`: `a⁻ᴴ g`; to `a`: `-(a⁻ᴴ g) xᴴ`, and what comes through the factors, should a loss use them.
pub(super) fn solve(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let mut grads = none(call);
    if let Some(g) = cotangent(call, 1) {
        grads[0] = Some(lu_of(b, call, (call.outs[1], call.outs[2]), g)?);
    }
    let Some(g) = cotangent(call, 0) else { return Ok(grads) };
    let to_b = adjoint_solve(b, call.outs[1], call.outs[2], g)?;
    let xh = adjoint(b, call.outs[0])?;
    let to_a = mm(b, to_b, xh)?;
    let to_a = b.neg(to_a)?;
    grads[0] = plus(b, grads[0], Some(to_a))?;
    grads[1] = Some(to_b);
    Ok(grads)
}

/// With `y = (a aᴴ)⁻¹ g`: to `b` `y`, to `a` `-(y xᴴ + x yᴴ) a` (`-a (y xᴴ + x yᴴ)` where upper), not kept to the triangle:
/// PyTorch differentiates the product of `a` with its adjoint.
pub(super) fn cholesky_solve(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let mut grads = none(call);
    let Some(g) = cotangent(call, 0) else { return Ok(grads) };
    let (a, upper) = (call.call.value("a")?, call.call.bool("upper")?);
    let y = b.call1("prims.linalg_cholesky_solve", vec![a.into(), g.into(), upper.into()])?;
    let xh = adjoint(b, call.outs[0])?;
    let common = mm(b, y, xh)?;
    let mirrored = adjoint(b, common)?;
    let common = b.add(common, mirrored)?;
    let to_a = if upper { mm(b, a, common)? } else { mm(b, common, a)? };
    grads[0] = Some(b.neg(to_a)?);
    grads[1] = Some(y);
    Ok(grads)
}

/// As [`solve`], the gradient of `a` within its triangle.
pub(super) fn triangular(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let mut grads = none(call);
    let Some(g) = cotangent(call, 0) else { return Ok(grads) };
    let c = call.call;
    let (upper, unit) = (c.bool("upper")?, c.bool("unitriangular")?);
    let ah = adjoint(b, c.value("a")?)?;
    let to_b = solve_triangular(b, ah, g, !upper, unit)?;
    let xh = adjoint(b, call.outs[0])?;
    let to_a = mm(b, to_b, xh)?;
    let to_a = b.neg(to_a)?;
    let strict = i64::from(unit);
    grads[0] = Some(if upper { triu(b, to_a, strict)? } else { tril(b, to_a, -strict)? });
    grads[1] = Some(to_b);
    Ok(grads)
}

/// For square `a`: `[gQ + Q s(triu(gR Rᴴ - Qᴴ gQ))] R⁻ᴴ` with `s(x) = x + xᴴ`, its diagonal halved. The columns of a wide
/// matrix beyond the square are `Q R₂`: they get `Q gR₂` and add `a₂ gR₂ᴴ = Q R₂ gR₂ᴴ` to `gQ`.
pub(super) fn qr(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let (mut gq, gr) = (cotangent(call, 0), cotangent(call, 1));
    if gq.is_none() && gr.is_none() {
        return Ok(none(call));
    }
    let (q, r) = (call.outs[0], call.outs[1]);
    let (_, m, k) = parts(call.call, b, q)?;
    let (_, _, n) = parts(call.call, b, r)?;
    let taller = matches!((m.as_const(), n.as_const()), (Some(m), Some(n)) if m > n);
    if call.call.bool("complete")? && taller {
        return Err(call.call.unsupported(
            "the gradient of a complete factorization of matrices with more rows than columns; use mode `reduced`",
        ));
    }
    let wide = n != k;
    let first = |b: &mut Builder<'_>, v: ValueId| narrow(b, v, 1, SymExpr::ZERO, k.clone());
    let r1 = first(b, r)?;
    let gr1 = gr.map(|gr| first(b, gr)).transpose()?;
    let gr2 = if wide { gr.map(|gr| narrow(b, gr, 1, k.clone(), &n - &k)).transpose()? } else { None };
    if let Some(gr2) = gr2 {
        let r2 = narrow(b, r, 1, k.clone(), &n - &k)?;
        let gr2h = adjoint(b, gr2)?;
        let x = mm(b, r2, gr2h)?;
        let x = mm(b, q, x)?;
        gq = plus(b, gq, Some(x))?;
    }
    let x = qr_square(b, q, r1, gq, gr1)?;
    if !wide {
        return only(call, x);
    }
    let to_rest = match gr2 {
        Some(gr2) => mm(b, q, gr2)?,
        None => {
            let rest = narrow(b, r, 1, k.clone(), &n - &k)?;
            let sizes = b.sizes(rest)?;
            b.full(&sizes, 0i64, b.dtype(rest)?)?
        }
    };
    let last = b.rank(x)? - 1;
    let x = super::shape::cat(b, &[x, to_rest], last)?;
    only(call, x)
}

fn qr_square(
    b: &mut Builder<'_>,
    q: ValueId,
    r: ValueId,
    gq: Option<ValueId>,
    gr: Option<ValueId>,
) -> ValueResult {
    let (qh, rh) = (adjoint(b, q)?, adjoint(b, r)?);
    let from_r = gr.map(|gr| mm(b, gr, rh)).transpose()?;
    let from_q = match gq {
        Some(gq) => {
            let x = mm(b, qh, gq)?;
            Some(b.neg(x)?)
        }
        None => None,
    };
    // One of them is there.
    let inner = plus(b, from_r, from_q)?.unwrap_or(r);
    let x = triu(b, inner, 0)?;
    let xh = adjoint(b, x)?;
    let sum = b.add(x, xh)?;
    let d = diagonal(b, sum)?;
    let d = b.mul(d, number(0.5, b.dtype(d)?))?;
    let sum = with_diagonal(b, sum, d)?;
    let x = mm(b, q, sum)?;
    let x = plus(b, gq, Some(x))?.unwrap_or(x);
    solve_triangular_right(b, rh, x, false, false)
}

/// `1` on the diagonal and `values_j - values_i` elsewhere, for values `[*, n]`.
fn differences(b: &mut Builder<'_>, values: ValueId) -> ValueResult {
    let dtype = b.dtype(values)?;
    let (r, c) = (row(b, values, dtype)?, column(b, values, dtype)?);
    let e = b.sub(r, c)?;
    with_number(b, e, 1.0)
}

/// A matrix with `g` on its diagonal and `off`, divided by the differences of `values`, elsewhere.
fn core(
    b: &mut Builder<'_>,
    values: ValueId,
    off: Option<ValueId>,
    g: Option<ValueId>,
    dtype: DType,
) -> ValueResult {
    let on = match g {
        Some(g) => Some(b.cast(g, dtype)?),
        None => None,
    };
    match (off, on) {
        (None, Some(on)) => diag_embed(b, on),
        (None, None) => diag_embed(b, values),
        (Some(off), on) => {
            let e = differences(b, values)?;
            let e = conjugate(b, e)?;
            let e = b.cast(e, dtype)?;
            let x = b.div(off, e)?;
            match on {
                Some(on) => with_diagonal(b, x, on),
                None => with_number(b, x, 0.0),
            }
        }
    }
}

/// `V [skew(Vᴴ gV) / (l_j - l_i) + diag(gl)] Vᴴ` with `skew(x) = (x - xᴴ) / 2`.
pub(super) fn eigh(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let (gl, gv) = (cotangent(call, 0), cotangent(call, 1));
    if gl.is_none() && gv.is_none() {
        return Ok(none(call));
    }
    let (l, v) = (call.outs[0], call.outs[1]);
    let dtype = b.dtype(v)?;
    let vh = adjoint(b, v)?;
    let off = match gv {
        Some(gv) => {
            let x = mm(b, vh, gv)?;
            let xh = adjoint(b, x)?;
            let x = b.sub(x, xh)?;
            Some(b.mul(x, number(0.5, dtype))?)
        }
        None => None,
    };
    let x = core(b, l, off, gl, dtype)?;
    let x = mm(b, v, x)?;
    let x = mm(b, x, vh)?;
    only(call, x)
}

/// `V⁻ᴴ [(Vᴴ gV - Vᴴ V Re(diag(Vᴴ gV))) / conj(l_j - l_i) + diag(gl)] Vᴴ`; its real part where `a` is real.
pub(super) fn eig(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let (gl, gv) = (cotangent(call, 0), cotangent(call, 1));
    if gl.is_none() && gv.is_none() {
        return Ok(none(call));
    }
    let (l, v) = (call.outs[0], call.outs[1]);
    let dtype = b.dtype(v)?;
    let vh = adjoint(b, v)?;
    let off = match gv {
        Some(gv) => {
            let x = mm(b, vh, gv)?;
            let d = diagonal(b, x)?;
            let d = super::complex::real(b, d)?;
            let d = row(b, d, dtype)?;
            let scaled = b.mul(v, d)?;
            let less = mm(b, vh, scaled)?;
            Some(b.sub(x, less)?)
        }
        None => None,
    };
    let x = core(b, l, off, gl, dtype)?;
    let x = mm(b, x, vh)?;
    let outs = b.call("prims.linalg_solve", vec![vh.into(), x.into(), false.into()])?;
    let a = b.dtype(call.call.value("a")?)?;
    let x = outs[0];
    let x = if a.is_complex() { x } else { super::complex::real(b, x)? };
    only(call, x)
}

/// With `skew(x) = x - xᴴ`, `E_ij = s_j² - s_i²` (1 on the diagonal): `U [(skew(Uᴴ gU) S + S skew(Vᴴ gV)) / E + diag(gS)] Vᴴ`
/// and, where `a` is not square, the part of `gU` or `gV` outside of the factors' span.
pub(super) fn svd(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let (gu, gs, gvh) = (cotangent(call, 0), cotangent(call, 1), cotangent(call, 2));
    if gu.is_none() && gs.is_none() && gvh.is_none() {
        return Ok(none(call));
    }
    let s = call.outs[1];
    let k = b.sizes(s)?[b.rank(s)? - 1].clone();
    let first = |b: &mut Builder<'_>, v: ValueId, from_end| narrow(b, v, from_end, SymExpr::ZERO, k.clone());
    // Vectors beyond the values are not unique: PyTorch does not differentiate them.
    let (u, vh) = (first(b, call.outs[0], 1)?, first(b, call.outs[2], 2)?);
    let gu = gu.map(|g| first(b, g, 1)).transpose()?;
    let gvh = gvh.map(|g| first(b, g, 2)).transpose()?;
    let x = svd_core(b, (u, s, vh), (gu, gs, gvh))?;
    let (_, m, n) = parts(call.call, b, call.call.value("a")?)?;
    let dtype = b.dtype(u)?;
    let x = match (gu, gvh) {
        (Some(gu), _) if m != k => {
            let s = row(b, s, dtype)?;
            let g = b.div(gu, s)?;
            let outside = outside_columns(b, u, g)?;
            let x = mm(b, u, x)?;
            let x = b.add(x, outside)?;
            mm(b, x, vh)?
        }
        (_, Some(gvh)) if n != k => {
            let s = column(b, s, dtype)?;
            let g = b.div(gvh, s)?;
            let (gh, v) = (adjoint(b, g)?, adjoint(b, vh)?);
            let outside = outside_columns(b, v, gh)?;
            let outside = adjoint(b, outside)?;
            let x = mm(b, x, vh)?;
            let x = b.add(x, outside)?;
            mm(b, u, x)?
        }
        _ => {
            let x = mm(b, u, x)?;
            mm(b, x, vh)?
        }
    };
    only(call, x)
}

/// `g - q qᴴ g`.
fn outside_columns(b: &mut Builder<'_>, q: ValueId, g: ValueId) -> ValueResult {
    let qh = adjoint(b, q)?;
    let inside = mm(b, qh, g)?;
    let inside = mm(b, q, inside)?;
    b.sub(g, inside)
}

/// The brackets of [`svd`], `[*, k, k]`.
fn svd_core(
    b: &mut Builder<'_>,
    (u, s, vh): (ValueId, ValueId, ValueId),
    (gu, gs, gvh): (Option<ValueId>, Option<ValueId>, Option<ValueId>),
) -> ValueResult {
    let dtype = b.dtype(u)?;
    let skew = |b: &mut Builder<'_>, x: ValueId| {
        let xh = adjoint(b, x)?;
        b.sub(x, xh)
    };
    let (along, down) = (row(b, s, dtype)?, column(b, s, dtype)?);
    let mut ends = None;
    let from_u = match gu {
        Some(gu) => {
            let uh = adjoint(b, u)?;
            let x = mm(b, uh, gu)?;
            let x = skew(b, x)?;
            ends = gvh.map(|_| diagonal(b, x)).transpose()?;
            Some(b.mul(x, along)?)
        }
        None => None,
    };
    let from_v = match gvh {
        Some(gvh) => {
            let gv = adjoint(b, gvh)?;
            let x = mm(b, vh, gv)?;
            let x = skew(b, x)?;
            Some(b.mul(down, x)?)
        }
        None => None,
    };
    let squares = b.mul(s, s)?;
    let x = match plus(b, from_u, from_v)? {
        Some(off) => {
            let e = differences(b, squares)?;
            let e = b.cast(e, dtype)?;
            Some(b.div(off, e)?)
        }
        None => None,
    };
    let on = match gs {
        Some(gs) => {
            let gs = b.cast(gs, dtype)?;
            Some(diag_embed(b, gs)?)
        }
        None => None,
    };
    // The phase that both vectors share.
    let phase = match ends.filter(|_| dtype.is_complex()) {
        Some(d) => {
            let double = b.mul(s, 2.0)?;
            let double = b.cast(double, dtype)?;
            let d = b.div(d, double)?;
            Some(diag_embed(b, d)?)
        }
        None => None,
    };
    let x = plus(b, x, on)?;
    // One of the cotangents is there.
    Ok(plus(b, x, phase)?.unwrap_or(u))
}

/// Where `m <= n`, with `K = gᴴ p`: `-(p K)ᴴ + K pᴴ - a p K pᴴ + pᴴ p (gᴴ - K a)`, else the same from the other side.
pub(super) fn pinv(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let Some(g) = cotangent(call, 0) else { return Ok(none(call)) };
    let (a, p) = (call.call.value("a")?, call.outs[0]);
    let (_, m, n) = parts(call.call, b, a)?;
    let (ph, gh) = (adjoint(b, p)?, adjoint(b, g)?);
    let tall = matches!((m.as_const(), n.as_const()), (Some(m), Some(n)) if m > n);
    let x = if tall {
        let k = mm(b, p, gh)?;
        let phk = mm(b, ph, k)?;
        let kp = mm(b, k, p)?;
        let kph = adjoint(b, kp)?;
        let ak = mm(b, a, k)?;
        let rest = b.sub(gh, ak)?;
        let rest = mm(b, rest, p)?;
        let rest = mm(b, rest, ph)?;
        let less = mm(b, phk, p)?;
        let less = mm(b, less, a)?;
        let x = b.sub(rest, kph)?;
        let x = b.add(x, phk)?;
        b.sub(x, less)?
    } else {
        let k = mm(b, gh, p)?;
        let kph = mm(b, k, ph)?;
        let pk = mm(b, p, k)?;
        let pkh = adjoint(b, pk)?;
        let less = mm(b, p, kph)?;
        let less = mm(b, a, less)?;
        let ka = mm(b, k, a)?;
        let rest = b.sub(gh, ka)?;
        let rest = mm(b, p, rest)?;
        let rest = mm(b, ph, rest)?;
        let x = b.sub(kph, pkh)?;
        let x = b.sub(x, less)?;
        b.add(x, rest)?
    };
    only(call, x)
}

/// The upper right block of `exp([aᴴ, g; 0, aᴴ])`.
pub(super) fn matrix_exp(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let Some(g) = cotangent(call, 0) else { return Ok(none(call)) };
    let x = matrix_exp_of(b, call.call.value("a")?, g)?;
    only(call, x)
}

/// The gradient of `exp(a)` for the cotangent `g`.
pub(super) fn matrix_exp_of(b: &mut Builder<'_>, a: ValueId, g: ValueId) -> ValueResult {
    let ah = adjoint(b, a)?;
    let sizes = b.sizes(ah)?;
    let rank = sizes.len();
    let n = sizes[rank - 1].clone();
    let zero = b.full(&sizes, 0i64, b.dtype(ah)?)?;
    let top = super::shape::cat(b, &[ah, g], rank - 1)?;
    let bottom = super::shape::cat(b, &[zero, ah], rank - 1)?;
    let block = super::shape::cat(b, &[top, bottom], rank - 2)?;
    let e = b.call1("prims.linalg_matrix_exp", vec![Arg::Value(block)])?;
    let x = narrow(b, e, 2, SymExpr::ZERO, n.clone())?;
    narrow(b, x, 1, n.clone(), n)
}
