//! Quantiles, covariance and correlation.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Scalar, SymExpr};
use kernel_ir::{ReduceOp, ScalarOp};

use crate::ops::common::{one, want_inexact};
use crate::ops::shapes::shape;
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::quantile(Tensor self, Tensor q, int? dim=None, bool keepdim=False, *, str interpolation=\"linear\") -> Tensor",
        |b, c| quantile(b, c, false)
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::quantile.scalar(Tensor self, float q, int? dim=None, bool keepdim=False, *, str interpolation=\"linear\") -> Tensor",
        |b, c| quantile(b, c, false)
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::nanquantile(Tensor self, Tensor q, int? dim=None, bool keepdim=False, *, str interpolation=\"linear\") -> Tensor",
        |b, c| quantile(b, c, true)
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::nanquantile.scalar(Tensor self, float q, int? dim=None, bool keepdim=False, *, str interpolation=\"linear\") -> Tensor",
        |b, c| quantile(b, c, true)
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::cov(Tensor self, *, int correction=1, Tensor? fweights=None, Tensor? aweights=None) -> Tensor",
        covariance
    ),
    composite!("aten::corrcoef(Tensor self) -> Tensor", correlation),
];

/// The value below which a part `q` of the elements along a dimension lies; every `q` gives a slice of a new first
/// dimension. A `NaN` makes the result `NaN`, or counts as absent.
fn quantile(b: &mut Builder<'_>, c: &Call<'_>, skip_nan: bool) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dtype = b.dtype(x)?;
    if !matches!(dtype, DType::F32 | DType::F64) {
        return Err(OpError::DType { op: c.name().into(), dtype });
    }
    let rank = b.rank(x)?;
    let (q, single) = match c.arg("q") {
        Arg::Value(q) => {
            if b.rank(*q)? > 1 || b.dtype(*q)? != dtype {
                return Err(c.bad_arg("q", "must be a number or a vector of the tensor's dtype"));
            }
            (crate::ops::indexing::index::flat(b, *q)?, b.rank(*q)? == 0)
        }
        _ => {
            let q = c.float("q")?;
            if !(0.0..=1.0).contains(&q) {
                return Err(c.bad_arg("q", format!("must be in [0, 1], not {q}")));
            }
            (b.full(&[SymExpr::ONE], q, dtype)?, true)
        }
    };
    // The elements lie along the last dimension of `[…, n]`.
    let lines = match c.opt_int("dim")? {
        None => crate::ops::indexing::index::flat(b, x)?,
        Some(d) if rank > 0 => shape::move_dim(b, x, c.dim(d, rank)?, rank - 1)?,
        Some(d) => {
            c.dim(d, rank)?;
            crate::ops::indexing::index::flat(b, x)?
        }
    };
    let lead: Vec<SymExpr> = {
        let sizes = b.sizes(lines)?;
        sizes[..sizes.len() - 1].to_vec()
    };
    let found = quantiles_of(b, c, lines, q, skip_nan)?;
    // `[…, q]` becomes `[q, …]`, with the reduced dimensions as 1 where they are kept.
    let count = b.sizes(q)?[0].clone();
    let found = shape::move_dim(b, found, lead.len(), 0)?;
    let mut sizes: Vec<SymExpr> = if single { Vec::new() } else { vec![count] };
    match (c.bool("keepdim")?, c.opt_int("dim")?) {
        (false, _) => sizes.extend(lead),
        (true, None) => sizes.extend(std::iter::repeat_n(SymExpr::ONE, rank)),
        (true, Some(_)) if rank == 0 => {}
        (true, Some(d)) => {
            let mut kept = lead;
            kept.insert(c.dim(d, rank)?, SymExpr::ONE);
            sizes.extend(kept);
        }
    }
    one(b.reshape(found, &sizes)?)
}

/// Quantiles `[…, q]` of lines `[…, n]`.
fn quantiles_of(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    lines: ValueId,
    q: ValueId,
    skip_nan: bool,
) -> Result<ValueId, OpError> {
    let dtype = b.dtype(lines)?;
    let sizes = b.sizes(lines)?;
    let last = sizes.len() - 1;
    let n = sizes[last].clone();
    b.require_at_least(&n, 1, |_| "a quantile of no elements".into())?;
    let sorted = b.call("aten.sort.default", vec![lines.into(), (last as i64).into(), false.into()])?[0];
    let is_nan = b.ne(lines, lines)?;
    let ranks = if skip_nan {
        let there = b.not(is_nan)?;
        let there = b.cast(there, dtype)?;
        let count = b.reduce(ReduceOp::Sum, there, &[last], true)?;
        let top = b.sub(count, 1.0)?;
        let ranks = b.mul(top, q)?;
        // Of nothing but NaN the first is as good as any.
        b.maximum(ranks, 0.0)?
    } else {
        let any = b.reduce(ReduceOp::Any, is_nan, &[last], true)?;
        let top = shape::count(&(n.clone() - 1));
        let ranks = b.mul(q, top.clone())?;
        // The last of a sorted line with a NaN is one.
        b.select(any, top, ranks)?
    };
    let round = |b: &mut Builder<'_>, op: ScalarOp| b.scalar_op(op, &[ranks.into()]);
    let pick = |b: &mut Builder<'_>, at: ValueId| {
        let at = b.cast(at, DType::I64)?;
        b.call1("prims.gather", vec![sorted.into(), (last as i64).into(), at.into()])
    };
    match c.opt_str("interpolation")? {
        Some("lower") => {
            let at = round(b, ScalarOp::Floor)?;
            pick(b, at)
        }
        Some("higher") => {
            let at = round(b, ScalarOp::Ceil)?;
            pick(b, at)
        }
        Some("nearest") => {
            let at = b.call1("aten.round.default", vec![ranks.into()])?;
            pick(b, at)
        }
        Some(how @ ("linear" | "midpoint")) => {
            let (low, high) = (round(b, ScalarOp::Floor)?, round(b, ScalarOp::Ceil)?);
            let weight = if how == "linear" { b.sub(ranks, low)? } else { b.full(&[], 0.5, dtype)? };
            let (below, above) = (pick(b, low)?, pick(b, high)?);
            b.call1("aten.lerp.Tensor", vec![below.into(), above.into(), weight.into()])
        }
        other => Err(c.bad_arg("interpolation", format!("is {other:?}"))),
    }
}

fn call1(b: &mut Builder<'_>, target: &str, args: &[Arg]) -> Result<ValueId, OpError> {
    b.call1(target, args.to_vec())
}

/// Covariance of the rows of `[variables, observations]`, weighted by how often an observation occurs (`fweights`) and
/// by its importance (`aweights`).
fn covariance(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let mut x = c.value("self")?;
    if b.rank(x)? > 2 || b.dtype(x)? == DType::Bool {
        return Err(c.bad_arg("self", "must be a matrix or less, and not of truth values"));
    }
    if b.rank(x)? < 2 {
        let n = b.meta(x)?.numel();
        x = b.reshape(x, &[SymExpr::ONE, n])?;
    }
    let (count, correction) = (b.sizes(x)?[1].clone(), c.int("correction")?);
    let (often, important) = (c.opt_value("fweights")?, c.opt_value("aweights")?);
    let weight = match (often, important) {
        (Some(f), Some(a)) => Some(call1(b, "aten.mul.Tensor", &[f.into(), a.into()])?),
        (f, a) => f.or(a),
    };
    let weight = weight.filter(|_| count != SymExpr::ZERO);
    let Some(weight) = weight else {
        let norm = (&count - correction).sym_max(&SymExpr::ZERO);
        let total = shape::count(&count);
        return about_mean(b, x, None, &total, &shape::count(&norm));
    };
    let total = call1(b, "aten.sum.default", &[weight.into()])?;
    let norm = match important {
        Some(a) if correction != 0 => {
            let share = call1(b, "aten.mul.Tensor", &[weight.into(), a.into()])?;
            let share = call1(b, "aten.sum.default", &[share.into()])?;
            let share = call1(b, "aten.mul.Scalar", &[share.into(), correction.into()])?;
            let share = call1(b, "aten.div.Tensor", &[share.into(), total.into()])?;
            call1(b, "aten.sub.Tensor", &[total.into(), share.into()])?
        }
        _ => call1(b, "aten.sub.Scalar", &[total.into(), correction.into()])?,
    };
    let norm = call1(b, "aten.clamp_min.default", &[norm.into(), 0i64.into()])?;
    about_mean(b, x, Some(weight), &total.into(), &norm.into())
}

/// `(x - m) w (x - m)ᴴ / norm` with the mean `m = sum(x w) / total`.
fn about_mean(
    b: &mut Builder<'_>,
    x: ValueId,
    weight: Option<ValueId>,
    total: &Arg,
    norm: &Arg,
) -> Result<Outs, OpError> {
    let div = |b: &mut Builder<'_>, x: ValueId, by: &Arg| match by {
        Arg::Value(_) => call1(b, "aten.div.Tensor", &[x.into(), by.clone()]),
        _ => call1(b, "aten.div.Scalar", &[x.into(), by.clone()]),
    };
    let weighted = |b: &mut Builder<'_>, x: ValueId| match weight {
        Some(w) => call1(b, "aten.mul.Tensor", &[x.into(), w.into()]),
        None => Ok(x),
    };
    let product = weighted(b, x)?;
    let sum = call1(b, "aten.sum.dim_IntList", &[product.into(), [1i64].as_slice().into(), true.into()])?;
    let mean = div(b, sum, total)?;
    let centred = call1(b, "aten.sub.Tensor", &[x.into(), mean.into()])?;
    let right = weighted(b, centred)?;
    let right = call1(b, "aten.mH.default", &[right.into()])?;
    let product = call1(b, "aten.mm.default", &[centred.into(), right.into()])?;
    let out = div(b, product, norm)?;
    one(call1(b, "aten.squeeze.default", &[out.into()])?)
}

/// Covariances over the roots of the variances' products, kept within [-1, 1].
fn correlation(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let cov = call1(b, "aten.cov.default", &[c.arg("self").clone()])?;
    let dtype = b.dtype(cov)?;
    want_inexact(c, dtype)?;
    if b.rank(cov)? == 0 {
        return one(call1(b, "aten.div.Tensor", &[cov.into(), cov.into()])?);
    }
    let mut spread = call1(b, "aten.diagonal.default", &[cov.into()])?;
    if dtype.is_complex() {
        spread = call1(b, "prims.real", &[spread.into()])?;
    }
    let spread = b.sqrt(spread)?;
    let (rows, columns) = (b.unsqueeze(spread, 1)?, b.unsqueeze(spread, 0)?);
    let scaled = call1(b, "aten.div.Tensor", &[cov.into(), rows.into()])?;
    let scaled = call1(b, "aten.div.Tensor", &[scaled.into(), columns.into()])?;
    let clip = |b: &mut Builder<'_>, v: ValueId| {
        let (low, high): (Scalar, Scalar) = ((-1.0).into(), 1.0.into());
        call1(b, "aten.clamp.default", &[v.into(), low.into(), high.into()])
    };
    if !dtype.is_complex() {
        return one(clip(b, scaled)?);
    }
    let re = call1(b, "prims.real", &[scaled.into()])?;
    let (re, im) = (clip(b, re)?, call1(b, "prims.imag", &[scaled.into()])?);
    one(call1(b, "prims.complex", &[re.into(), im.into()])?)
}
