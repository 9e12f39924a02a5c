//! `gradient`: derivatives of samples by second-order central differences, one-sided at the ends (first or second
//! order), for even spacing and for coordinates.

use fx_ir::{Arg, ValueId};
use ir_core::SymExpr;

use crate::ops::common::float_of;
use crate::ops::shapes::shape;
use crate::{Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::gradient.scalarint(Tensor self, *, Scalar? spacing=None, int? dim=None, int edge_order=1) -> Tensor[]",
        gradient
    ),
    composite!(
        "aten::gradient.scalararray(Tensor self, *, Scalar spacing, int[] dim, int edge_order=1) -> Tensor[]",
        gradient
    ),
    composite!("aten::gradient.array(Tensor self, *, int[] dim, int edge_order=1) -> Tensor[]", gradient),
    composite!(
        "aten::gradient.scalarrayint(Tensor self, *, Scalar[] spacing, int? dim=None, int edge_order=1) -> Tensor[]",
        gradient
    ),
    composite!(
        "aten::gradient.scalarrayarray(Tensor self, *, Scalar[] spacing, int[] dim, int edge_order=1) -> Tensor[]",
        gradient
    ),
    composite!(
        "aten::gradient.tensorarrayint(Tensor self, *, Tensor[] spacing, int? dim=None, int edge_order=1) -> Tensor[]",
        gradient
    ),
    composite!(
        "aten::gradient.tensorarray(Tensor self, *, Tensor[] spacing, int[] dim, int edge_order=1) -> Tensor[]",
        gradient
    ),
];

/// Distance of neighbouring samples along a dimension: one number, or the coordinates' differences, `[n - 1]`.
enum Spacing {
    Even(f64),
    Steps(ValueId),
}

/// A stencil's three terms, each a number or a tensor along the dimension.
type Weights = [Arg; 3];

fn gradient(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let rank = b.rank(x)?;
    let order = c.int("edge_order")?;
    if !(1..=2).contains(&order) {
        return Err(c.bad_arg("edge_order", "must be 1 or 2"));
    }
    let dims = match c.opt_ints("dim")? {
        Some(list) => list.into_iter().map(|d| c.dim(d, rank)).collect::<Result<Vec<_>, _>>()?,
        None => (0..rank).collect(),
    };
    let x = {
        let dtype = float_of(b.dtype(x)?);
        b.cast(x, dtype)?
    };
    let mut outs = Outs::new();
    for (i, &d) in dims.iter().enumerate() {
        let n = b.sizes(x)?.get(d).cloned().unwrap_or(SymExpr::ONE);
        b.require_at_least(&n, order + 1, |_| {
            format!("needs more than {order} samples along dimension {d}")
        })?;
        let spacing = spacing(b, c, i, dims.len())?;
        outs.push(along(b, x, d, &n, spacing, order == 2)?);
    }
    Ok(outs)
}

/// The spacing of the `i`-th of `count` dimensions.
fn spacing(b: &mut Builder<'_>, c: &Call<'_>, i: usize, count: usize) -> Result<Spacing, OpError> {
    if c.op.schema.arg_index("spacing").is_none() {
        return Ok(Spacing::Even(1.0));
    }
    let wrong = || c.bad_arg("spacing", format!("must have an item for each of {count} dimensions"));
    let item = match c.arg("spacing") {
        Arg::None => return Ok(Spacing::Even(1.0)),
        Arg::List(list) if list.len() == count => &list[i],
        Arg::List(_) => return Err(wrong()),
        one => one,
    };
    match item {
        Arg::Value(v) => {
            // Differences are those of the coordinates' own precision.
            let dtype = float_of(b.dtype(*v)?);
            let v = b.cast(*v, dtype)?;
            let n = &b.sizes_of_rank(v, 1..=1)?[0] - 1;
            let (low, high) =
                (b.slice(v, 0, SymExpr::ZERO, n.clone(), 1)?, b.slice(v, 0, SymExpr::ONE, n, 1)?);
            Ok(Spacing::Steps(b.sub(high, low)?))
        }
        number => number.as_scalar().map(|s| Spacing::Even(s.as_f64())).ok_or_else(wrong),
    }
}

fn along(
    b: &mut Builder<'_>,
    x: ValueId,
    d: usize,
    n: &SymExpr,
    spacing: Spacing,
    second: bool,
) -> Result<ValueId, OpError> {
    let (first, centre, last) = match spacing {
        Spacing::Even(h) => even(h, second),
        Spacing::Steps(steps) => uneven(b, steps, d, b.rank(x)?, n, second)?,
    };
    let middle = n - 2;
    let shifted = |from: i64| (SymExpr::from_i64(from), middle.clone());
    let one = |at: SymExpr| (at, SymExpr::ONE);
    let start = stencil(b, x, d, first, [one(0.into()), one(1.into()), one(2.into())])?;
    let inner = stencil(b, x, d, centre, [shifted(0), shifted(1), shifted(2)])?;
    let end = stencil(b, x, d, last, [one(n - 3), one(n - 2), one(n - 1)])?;
    shape::cat(b, &[start, inner, end], d)
}

/// Weights at the first position, in the middle and at the last position; the first and last see the outermost three samples.
fn even(h: f64, second: bool) -> (Weights, Weights, Weights) {
    let w = |list: [f64; 3]| list.map(|x| Arg::from(x / h));
    let (first, last) =
        if second { ([-1.5, 2.0, -0.5], [0.5, -2.0, 1.5]) } else { ([-1.0, 1.0, 0.0], [0.0, -1.0, 1.0]) };
    (w(first), w([-0.5, 0.0, 0.5]), w(last))
}

/// The same for steps `[n - 1]`: derivatives of the parabola through three samples.
fn uneven(
    b: &mut Builder<'_>,
    steps: ValueId,
    d: usize,
    rank: usize,
    n: &SymExpr,
    second: bool,
) -> Result<(Weights, Weights, Weights), OpError> {
    let part = |b: &mut Builder<'_>, from: SymExpr, length: SymExpr| {
        let v = b.slice(steps, 0, from, length, 1)?;
        shape::along(b, v, d, rank)
    };
    let pair = |b: &mut Builder<'_>, from: SymExpr, length: SymExpr| {
        Ok::<_, OpError>((part(b, from.clone(), length.clone())?, part(b, from + &SymExpr::ONE, length)?))
    };
    let parabola = |b: &mut Builder<'_>, at: i64, (p, q): (ValueId, ValueId)| {
        // With steps p, q: the slope at the left, middle or right sample (`at` -1, 0, 1).
        let (sum, pq) = (b.add(p, q)?, b.mul(p, q)?);
        let (ps, qs) = (b.mul(p, sum)?, b.mul(q, sum)?);
        let (left, middle, right) = match at {
            -1 => {
                let twice = b.add(p, sum)?;
                (b.neg(twice)?, sum, b.neg(p)?)
            }
            0 => (b.neg(q)?, b.sub(q, p)?, p),
            _ => (q, b.neg(sum)?, b.add(q, sum)?),
        };
        Ok::<_, OpError>([b.div(left, ps)?.into(), b.div(middle, pq)?.into(), b.div(right, qs)?.into()])
    };
    let inner = pair(b, 0.into(), n - 2)?;
    let centre = parabola(b, 0, inner)?;
    if second {
        let (low, high) = (pair(b, 0.into(), SymExpr::ONE)?, pair(b, n - 3, SymExpr::ONE)?);
        return Ok((parabola(b, -1, low)?, centre, parabola(b, 1, high)?));
    }
    let secant = |b: &mut Builder<'_>, v: ValueId| {
        let inverse = b.call1("aten.reciprocal.default", vec![v.into()])?;
        Ok::<_, OpError>((b.neg(inverse)?, inverse))
    };
    let (low, high) = (part(b, 0.into(), SymExpr::ONE)?, part(b, n - 2, SymExpr::ONE)?);
    let ((l0, l1), (h0, h1)) = (secant(b, low)?, secant(b, high)?);
    Ok(([l0.into(), l1.into(), 0.0.into()], centre, [0.0.into(), h0.into(), h1.into()]))
}

/// The weighted sum of three slices; a slice with weight 0 is not read.
fn stencil(
    b: &mut Builder<'_>,
    x: ValueId,
    d: usize,
    weights: Weights,
    slices: [(SymExpr, SymExpr); 3],
) -> Result<ValueId, OpError> {
    let mut sum: Option<ValueId> = None;
    for (weight, (from, length)) in weights.into_iter().zip(slices) {
        if weight.as_scalar().is_some_and(|w| w.as_f64() == 0.0) {
            continue;
        }
        let part = b.slice(x, d, from, length, 1)?;
        let term = b.call1("aten.mul.Tensor", vec![part.into(), weight])?;
        sum = Some(match sum {
            Some(sum) => b.call1("aten.add.Tensor", vec![sum.into(), term.into()])?,
            None => term,
        });
    }
    sum.ok_or_else(|| OpError::Invalid {
        op: "aten.gradient".into(),
        what: "a stencil without weights".into(),
    })
}
