//! Padding: constant by `prims.pad`, the other modes by joining slices of the tensor itself.

use fx_ir::{Arg, ValueId};
use ir_core::{Scalar, Shape, SymExpr};

use crate::ops::shapes::shape::{self, Made, out};
use crate::{Autocast, Builder, Call, OpDef, OpError};

/// The entries. Amounts are in pairs, the last dimension first.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::pad(Tensor self, SymInt[] pad, str mode=\"constant\", float? value=None) -> Tensor",
        |b, c| {
            let mode = Mode::from_name(c, c.opt_str("mode")?.unwrap_or("constant"))?;
            padded(b, c, "pad", mode)
        }
    ),
    composite!(
        "aten::_pad_enum(Tensor self, SymInt[] pad, int mode, float? value=None) -> Tensor",
        |b, c| {
            let mode = match c.int("mode")? {
                0 => Mode::Constant,
                1 => Mode::Reflect,
                2 => Mode::Replicate,
                3 => Mode::Circular,
                other => return Err(c.bad_arg("mode", format!("is {other}, not one of 0 to 3"))),
            };
            padded(b, c, "pad", mode)
        }
    ),
    composite!("aten::constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor", |b, c| {
        padded(b, c, "pad", Mode::Constant)
    }),
    composite!("aten::_pad_circular(Tensor self, SymInt[] pad) -> Tensor", |b, c| padded(
        b,
        c,
        "pad",
        Mode::Circular
    )),
    composite!("aten::reflection_pad1d(Tensor self, SymInt[2] padding) -> Tensor", |b, c| padded(
        b,
        c,
        "padding",
        Mode::Reflect
    ))
    .autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::reflection_pad2d(Tensor self, SymInt[4] padding) -> Tensor", |b, c| padded(
        b,
        c,
        "padding",
        Mode::Reflect
    ))
    .autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::reflection_pad3d(Tensor self, SymInt[6] padding) -> Tensor", |b, c| padded(
        b,
        c,
        "padding",
        Mode::Reflect
    )),
    composite!("aten::replication_pad1d(Tensor self, SymInt[2] padding) -> Tensor", |b, c| padded(
        b,
        c,
        "padding",
        Mode::Replicate
    ))
    .autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::replication_pad2d(Tensor self, SymInt[4] padding) -> Tensor", |b, c| padded(
        b,
        c,
        "padding",
        Mode::Replicate
    ))
    .autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::replication_pad3d(Tensor self, SymInt[6] padding) -> Tensor", |b, c| padded(
        b,
        c,
        "padding",
        Mode::Replicate
    ))
    .autocast(Autocast::FLOAT32_ON_CPU),
];

/// What stands outside the tensor.
#[derive(Clone, Copy, PartialEq)]
pub(in crate::ops) enum Mode {
    /// A number.
    Constant,
    /// The tensor mirrored, the edge not repeated.
    Reflect,
    /// The edge.
    Replicate,
    /// The tensor again.
    Circular,
}

impl Mode {
    fn from_name(c: &Call<'_>, name: &str) -> Result<Mode, OpError> {
        Ok(match name {
            "constant" => Mode::Constant,
            "reflect" => Mode::Reflect,
            "replicate" => Mode::Replicate,
            "circular" => Mode::Circular,
            other => return Err(c.bad_arg("mode", format!("is `{other}`, which no padding has"))),
        })
    }
}

fn padded(b: &mut Builder<'_>, c: &Call<'_>, name: &str, mode: Mode) -> Made {
    let mut x = c.value("self")?;
    let amounts = c.syms(name)?;
    let rank = b.rank(x)?;
    if amounts.len() % 2 != 0 || amounts.len() / 2 > rank {
        return Err(c.bad_arg(name, format!("must have at most {rank} pairs")));
    }
    if mode == Mode::Constant {
        return constant(b, c, x, &amounts);
    }
    for (n, pair) in amounts.chunks(2).enumerate() {
        x = pad_along(b, c, x, rank - 1 - n, &pair[0], &pair[1], mode)?;
    }
    out(x)
}

fn constant(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, amounts: &[SymExpr]) -> Made {
    let rank = b.rank(x)?;
    let mut low: Shape = std::iter::repeat_n(SymExpr::ZERO, rank).collect();
    let mut high = low.clone();
    for (n, pair) in amounts.chunks(2).enumerate() {
        (low[rank - 1 - n], high[rank - 1 - n]) = (pair[0].clone(), pair[1].clone());
    }
    let value = match c.arg("value") {
        Arg::None => Scalar::Int(0),
        other => other.as_scalar().ok_or_else(|| c.bad_arg("value", "must be a number"))?,
    };
    out(shape::pad(b, x, &low, &high, &vec![0; rank], value)?)
}

/// Pads one dimension; negative amounts cut.
fn pad_along(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    x: ValueId,
    d: usize,
    low: &SymExpr,
    high: &SymExpr,
    mode: Mode,
) -> Result<ValueId, OpError> {
    let n = b.sizes(x)?[d].clone();
    if let (Mode::Replicate, Some(n), Some(low), Some(high)) =
        (mode, n.as_const(), low.as_const(), high.as_const())
    {
        return replicated(b, c, x, d, [n, low, high]);
    }
    let (cut_low, cut_high) = (cut(low), cut(high));
    let kept = &n - &cut_low - &cut_high;
    let x = b.slice(x, d, cut_low.clone(), kept.clone(), 1)?;
    let n = kept;
    let (low, high) = (low + &cut_low, high + &cut_high);
    let most = match mode {
        Mode::Reflect => Some(&n - 1),
        Mode::Circular => Some(n.clone()),
        _ => None,
    };
    for amount in [&low, &high] {
        let Some(most) = &most else { break };
        b.require_at_least(most, amount.clone(), |graph| {
            let [n, low, high] = [&n, &low, &high].map(|e| graph.size_text(e));
            format!("pads a dimension of size {n} by {low} and {high}")
        })?;
    }
    let mut parts = Vec::new();
    if low != SymExpr::ZERO {
        parts.push(match mode {
            // x[low], …, x[1]
            Mode::Reflect => b.slice(x, d, low.clone(), low.clone(), -1)?,
            Mode::Circular => b.slice(x, d, &n - &low, low, 1)?,
            _ => edge(b, x, d, SymExpr::ZERO, low)?,
        });
    }
    parts.push(x);
    if high != SymExpr::ZERO {
        parts.push(match mode {
            // x[n - 2], …, x[n - 1 - high]
            Mode::Reflect => b.slice(x, d, &n - 2, high, -1)?,
            Mode::Circular => b.slice(x, d, SymExpr::ZERO, high, 1)?,
            _ => edge(b, x, d, &n - 1, high)?,
        });
    }
    shape::cat(b, &parts, d)
}

/// Element `i` of the result is element `i - low` of the `n` there are, or the nearest: with negative amounts, too.
fn replicated(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    x: ValueId,
    d: usize,
    [n, low, high]: [i64; 3],
) -> Result<ValueId, OpError> {
    let total = n.saturating_add(low).saturating_add(high);
    if n < 1 || total < 1 {
        return Err(c.invalid(format!("pads a dimension of size {n} by {low} and {high}")));
    }
    let left = low.clamp(0, total);
    let start = low.saturating_neg().max(0);
    let middle = (n.min(total.saturating_sub(low)).saturating_sub(start)).max(0);
    let right = total.saturating_sub(left).saturating_sub(middle);
    let mut parts = Vec::new();
    if left > 0 {
        parts.push(edge(b, x, d, SymExpr::ZERO, SymExpr::from_i64(left))?);
    }
    if middle > 0 {
        parts.push(b.slice(x, d, SymExpr::from_i64(start), SymExpr::from_i64(middle), 1)?);
    }
    if right > 0 {
        parts.push(edge(b, x, d, SymExpr::from_i64(n - 1), SymExpr::from_i64(right))?);
    }
    shape::cat(b, &parts, d)
}

/// How much a negative amount cuts.
fn cut(amount: &SymExpr) -> SymExpr {
    match amount.as_const() {
        Some(a) if a < 0 => SymExpr::from_i64(a.saturating_neg()),
        _ => SymExpr::ZERO,
    }
}

/// Element `at` of dimension `d`, `times` times.
fn edge(b: &mut Builder<'_>, x: ValueId, d: usize, at: SymExpr, times: SymExpr) -> Result<ValueId, OpError> {
    let one = b.slice(x, d, at, SymExpr::ONE, 1)?;
    let mut sizes = b.sizes(one)?;
    sizes[d] = times;
    b.expand(one, &sizes)
}
