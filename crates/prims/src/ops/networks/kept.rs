//! Dropout of attention's weights: which are kept, as bits. A bit for each score is a sixteenth of what the scores themselves take in 16
//! bits, so that both passes read the same ones from memory, and drawing 32 at once takes a quarter of the random numbers that one
//! for each score would. The entries are for those who capture both passes apart, as PyTorch's operators are: the words are a value that the
//! backward reads.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, SymExpr};
use kernel_ir::{Dropout, ScalarOp};

use crate::ops::common::one;
use crate::ops::gradients::attention::{deltas, gradients};
use crate::ops::networks::attention::mask;
use crate::{Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    // Words of bits `[b, h, lq, keys / 32]` (rounded up), `i32`: each bit is set with the probability 1 - p.
    composite!("ferroflux::kept_weights(Tensor query, SymInt keys, float p) -> Tensor", words),
    // `[b, h, lq, dv]`, and the logarithms of the sums `[b, h, lq]`. A weight that is kept is multiplied by 1 / (1 - p).
    composite!(
        "ferroflux::attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, Tensor kept, float p, bool is_causal, float scale) -> (Tensor, Tensor)",
        attention
    ),
    composite!(
        "ferroflux::attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, Tensor? attn_mask, Tensor kept, float p, bool is_causal, float scale) -> (Tensor, Tensor, Tensor)",
        backward
    ),
];

/// Binary digits of the probability that count: it is off by 2⁻¹⁷ at most, next to 0 and 1, which are never reached, by 2⁻¹⁶.
const DIGITS: u32 = 16;

/// The probability to keep a weight, in units of 2⁻¹⁶, neither never nor always.
fn chance(p: f64) -> u32 {
    let unit = f64::from(1u32 << DIGITS);
    ((1.0 - p) * unit).round().clamp(1.0, unit - 1.0) as u32
}

/// The inverse of the probability with which a bit of [`words_of`] is set.
pub(in crate::ops) fn factor(p: f64) -> f64 {
    f64::from(1u32 << DIGITS) / f64::from(chance(p))
}

fn probability(c: &Call<'_>) -> Result<f64, OpError> {
    let p = c.float("p")?;
    if p > 0.0 && p < 1.0 { Ok(p) } else { Err(c.bad_arg("p", format!("must be between 0 and 1, not {p}"))) }
}

fn words(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let p = probability(c)?;
    let sizes = b.sizes(c.value("query")?)?;
    let [rows @ .., _] = &sizes[..] else { return Err(c.bad_arg("query", "has no rows")) };
    one(words_of(b, rows, &c.sym("keys")?, p)?)
}

/// Mask, order, scale, words and factor, as the prims take them.
fn optional(b: &mut Builder<'_>, c: &Call<'_>) -> Result<[Arg; 5], OpError> {
    let [q, k] = [b.sizes(c.value("query")?)?, b.sizes(c.value("key")?)?];
    if q.len() != 4 || k.len() != 4 {
        return Err(c.invalid("takes operands of four dimensions"));
    }
    let mask = mask(b, c, &q, &k)?.map_or(Arg::None, Arg::Value);
    let factor = factor(probability(c)?).into();
    Ok([mask, c.arg("is_causal").clone(), c.arg("scale").clone(), c.arg("kept").clone(), factor])
}

fn attention(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let mut args = ["query", "key", "value"].map(|name| c.arg(name).clone()).to_vec();
    args.extend(optional(b, c)?);
    b.call("prims.attention", args)
}

fn backward(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let (g, out) = (c.value("grad_out")?, c.value("out")?);
    let deltas = deltas(b, g, out, None)?;
    let sums = b.cast(c.value("logsumexp")?, b.dtype(c.value("query")?)?.compute())?;
    let mut args = ["grad_out", "query", "key", "value"].map(|name| c.arg(name).clone()).to_vec();
    args.extend([sums.into(), deltas.into()]);
    args.extend(optional(b, c)?);
    gradients(b, args)
}

/// Words `[rows…, keys / 32]` (rounded up) whose bits are set with the probability 1 - p.
///
/// A bit is set if a random binary fraction is below the probability. Comparing 32 fractions at once, from their last digit to the first,
/// takes one instruction for each digit: the result so far or the digit where the probability has a 1, the result and the digit
/// where it has a 0.
pub(in crate::ops) fn words_of(
    b: &mut Builder<'_>,
    rows: &[SymExpr],
    keys: &SymExpr,
    p: f64,
) -> Result<ValueId, OpError> {
    let words = keys.ceil_div(&SymExpr::from_i64(Dropout::KEYS));
    let sizes: Vec<SymExpr> = rows.iter().cloned().chain([words]).collect();
    let chance = chance(p);
    let last = chance.trailing_zeros();
    // What is left of the last 64 random bits, which are two digits.
    let mut bits = b.random_bits(&sizes)?;
    let mut drawn = Some(bits);
    for digit in last + 1..DIGITS {
        let random = match drawn.take() {
            Some(v) => b.scalar_op(ScalarOp::Shr, &[Arg::Value(v), 32i64.into()])?,
            None => *drawn.insert(b.random_bits(&sizes)?),
        };
        let op = if chance >> digit & 1 == 1 { ScalarOp::Or } else { ScalarOp::And };
        bits = b.scalar_op(op, &[bits.into(), random.into()])?;
    }
    b.cast(bits, DType::I32)
}
