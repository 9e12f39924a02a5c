//! Connectionist temporal classification (Graves et al. 2006): the forward recursion over time on the labels with blanks
//! between them, unrolled over the frames. Its gradient is that of its decomposition.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, SymExpr};
use kernel_ir::ReduceOp;

use crate::ops::common::{choose, one, widen};
use crate::ops::shapes::shape;
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::ctc_loss.IntList(Tensor log_probs, Tensor targets, int[] input_lengths, int[] target_lengths, int blank=0, int reduction=Mean, bool zero_infinity=False) -> Tensor",
        ctc_loss
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::ctc_loss.Tensor(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank=0, int reduction=Mean, bool zero_infinity=False) -> Tensor",
        ctc_loss
    ).autocast(Autocast::FLOAT32_ON_CPU),
];

/// Stands for the logarithm of 0: finite, so that differences and gradients are.
const NEVER: f64 = -1e30;

/// What the recursion works on.
struct Problem {
    /// Logarithms of probabilities, `[T, N, C]`.
    log_probs: ValueId,
    /// Labels with blanks between, `[N, 2 S + 1]`, `i64`.
    labels: ValueId,
    /// Frames and labels of each sequence, `[N]`, `i64`.
    frames: ValueId,
    lengths: ValueId,
    /// Number of frames, and of labels with blanks.
    steps: i64,
    states: i64,
}

fn ctc_loss(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let log_probs = c.value("log_probs")?;
    let dtype = b.dtype(log_probs)?;
    let log_probs = widen(b, log_probs)?;
    let single = b.rank(log_probs)? == 2;
    let log_probs = if single { b.unsqueeze(log_probs, 1)? } else { log_probs };
    let p = problem(b, c, log_probs, single)?;
    let loss = negative_log_likelihood(b, &p)?;
    let compute = b.dtype(loss)?;
    let impossible = b.gt(loss, -NEVER / 2.0)?;
    let instead = if c.bool("zero_infinity")? { 0.0 } else { f64::INFINITY };
    let mut loss = choose(b, impossible, instead, loss, compute)?;
    match c.int("reduction")? {
        0 if single => loss = b.reshape(loss, &[])?,
        0 => {}
        1 => {
            let lengths = b.maximum(p.lengths, 1i64)?;
            let lengths = b.cast(lengths, compute)?;
            let each = b.div(loss, lengths)?;
            loss = b.call1("aten.mean.default", vec![each.into()])?;
        }
        _ => loss = b.call1("aten.sum.default", vec![loss.into()])?,
    }
    one(b.cast(loss, dtype)?)
}

fn lengths(b: &mut Builder<'_>, c: &Call<'_>, name: &str, n: &SymExpr) -> Result<ValueId, OpError> {
    if let Arg::Value(v) = c.arg(name) {
        let v = b.cast(*v, DType::I64)?;
        return b.reshape(v, std::slice::from_ref(n));
    }
    let list = c.syms(name)?;
    b.require_equal(n, &SymExpr::from_i64(list.len() as i64), |graph| {
        format!("`{name}` has {} items for {} sequences", list.len(), graph.size_text(n))
    })?;
    let parts = list.into_iter().map(|e| {
        let zero = b.full(&[SymExpr::ONE], 0i64, DType::I64)?;
        b.add(zero, e)
    });
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    shape::cat(b, &parts, 0)
}

fn problem(b: &mut Builder<'_>, c: &Call<'_>, log_probs: ValueId, single: bool) -> Result<Problem, OpError> {
    let sizes = b.sizes(log_probs)?;
    let steps = shape::known(c, &sizes[0], "number of frames")?;
    let n = sizes[1].clone();
    let (frames, lengths) = (lengths(b, c, "input_lengths", &n)?, lengths(b, c, "target_lengths", &n)?);
    let targets = b.cast(c.value("targets")?, DType::I64)?;
    let listed = match c.arg("target_lengths") {
        Arg::Value(_) => None,
        _ => c.ints("target_lengths")?.into_iter().max(),
    };
    let targets = if b.rank(targets)? == 1 && !single {
        concatenated(b, c, targets, lengths, listed)?
    } else if b.rank(targets)? == 1 {
        b.unsqueeze(targets, 0)?
    } else {
        targets
    };
    let labels = shape::known(c, &b.sizes(targets)?[1].clone(), "number of labels")?;
    let blank = c.int("blank")?;
    // blank, label, blank, …, label, blank
    let blanks = b.full(&[n.clone(), labels.into()], blank, DType::I64)?;
    let pairs = b.call1("aten.stack.default", vec![Arg::values([blanks, targets]), 2i64.into()])?;
    let pairs = b.reshape(pairs, &[n.clone(), (2 * labels).into()])?;
    let last = b.full(&[n, SymExpr::ONE], blank, DType::I64)?;
    let all = shape::cat(b, &[pairs, last], 1)?;
    // What fills a row up may be anything; it is read, but does not count.
    let classes = sizes[2].clone();
    let labels_of = crate::ops::indexing::index::clamped(b, all, &classes)?;
    Ok(Problem { log_probs, labels: labels_of, frames, lengths, steps, states: 2 * labels + 1 })
}

/// The rows of targets that stand one after the other, `[N, S]`; what lies beyond a row's length is its last label or
/// any other, and not read.
fn concatenated(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    targets: ValueId,
    lengths: ValueId,
    longest: Option<i64>,
) -> Result<ValueId, OpError> {
    let total = b.sizes(targets)?[0].clone();
    let longest = match longest {
        Some(n) => n,
        None => shape::known(c, &total, "number of labels")?,
    };
    if total == SymExpr::ZERO || longest == 0 {
        let n = b.sizes(lengths)?[0].clone();
        return b.full(&[n, SymExpr::ZERO], 0i64, DType::I64);
    }
    let ends = b.call1("prims.cumsum", vec![lengths.into(), 0i64.into()])?;
    let starts = b.sub(ends, lengths)?;
    let starts = b.unsqueeze(starts, 1)?;
    let numbers = shape::iota_at(b, &longest.into(), 1, 2)?;
    let places = b.add(starts, numbers)?;
    let places = b.minimum(places, total - 1)?;
    shape::index(b, targets, &[places], 0)
}

/// `-log p(labels)` for each sequence, `[N]`; beyond `-NEVER / 2` where there is no path.
fn negative_log_likelihood(b: &mut Builder<'_>, p: &Problem) -> Result<ValueId, OpError> {
    let compute = b.dtype(p.log_probs)?;
    let states: SymExpr = p.states.into();
    let state = shape::iota_at(b, &states, 1, 2)?;
    let skips = skips(b, p)?;
    // Before the first frame: at a blank that is before everything, so that a move reaches states 0 and 1.
    let alive = b.le(state, 1i64)?;
    let mut alpha: Option<ValueId> = None;
    for t in 0..p.steps {
        let frame = shape::select(b, p.log_probs, 0, t.into())?;
        let emitted = crate::ops::indexing::index::gather(b, frame, 1, p.labels)?;
        let next = match alpha {
            None => choose(b, alive, emitted, NEVER, compute)?,
            Some(alpha) => {
                let moved = step(b, alpha, skips, p.states)?;
                let next = b.add(moved, emitted)?;
                let running = b.gt(p.frames, t)?;
                let running = b.unsqueeze(running, 1)?;
                let sizes = b.sizes(next)?;
                let running = b.expand(running, &sizes)?;
                b.select(running, next, alpha)?
            }
        };
        alpha = Some(next);
    }
    let Some(alpha) = alpha else {
        // Without frames only an empty sequence of labels is possible.
        let empty = b.eq(p.lengths, 0i64)?;
        return choose(b, empty, 0.0, -NEVER, compute);
    };
    let twice = b.mul(p.lengths, 2i64)?;
    let last = b.unsqueeze(twice, 1)?;
    let before = b.sub(last, 1i64)?;
    let before = b.maximum(before, 0i64)?;
    let (at_blank, at_label) = (
        crate::ops::indexing::index::gather(b, alpha, 1, last)?,
        crate::ops::indexing::index::gather(b, alpha, 1, before)?,
    );
    let has_labels = b.gt(last, 0i64)?;
    let at_label = choose(b, has_labels, at_label, NEVER, compute)?;
    let both = shape::cat(b, &[at_blank, at_label], 1)?;
    let total = log_sum(b, both)?;
    // Without frames of its own a sequence is possible only if it has no labels.
    let none = b.le(p.frames, 0i64)?;
    let empty = b.eq(p.lengths, 0i64)?;
    let instead = choose(b, empty, 0.0, NEVER, compute)?;
    let total = b.select(none, instead, total)?;
    b.neg(total)
}

/// Where a label may follow the one before it without a blank: it is not a blank and another label, `[N, states]`.
fn skips(b: &mut Builder<'_>, p: &Problem) -> Result<ValueId, OpError> {
    let states: SymExpr = p.states.into();
    let state = shape::iota_at(b, &states, 1, 2)?;
    let odd = b.and(state, 1i64)?;
    let odd = b.eq(odd, 1i64)?;
    let shifted = moved(b, p.labels, 2, -1i64)?;
    let differs = b.ne(p.labels, shifted)?;
    let inside = b.ge(state, 2i64)?;
    let may = b.and(odd, inside)?;
    b.and(differs, may)
}

/// The row moved right by `by` positions, `fill` in front.
fn moved(
    b: &mut Builder<'_>,
    v: ValueId,
    by: i64,
    fill: impl Into<ir_core::Scalar>,
) -> Result<ValueId, OpError> {
    let sizes = b.sizes(v)?;
    let width = sizes[1].as_const().unwrap_or(by);
    let by = by.min(width);
    let kept = b.slice(v, 1, SymExpr::ZERO, (width - by).into(), 1)?;
    let dtype = b.dtype(v)?;
    let front = b.full(&[sizes[0].clone(), by.into()], fill, dtype)?;
    shape::cat(b, &[front, kept], 1)
}

/// One frame: stay, come from the state before, or skip a blank.
fn step(b: &mut Builder<'_>, alpha: ValueId, skips: ValueId, states: i64) -> Result<ValueId, OpError> {
    if states == 1 {
        return Ok(alpha);
    }
    let dtype = b.dtype(alpha)?;
    let before = moved(b, alpha, 1, NEVER)?;
    let skipped = moved(b, alpha, 2, NEVER)?;
    let skipped = choose(b, skips, skipped, NEVER, dtype)?;
    let high = b.maximum(alpha, before)?;
    let high = b.maximum(high, skipped)?;
    // A constant for the gradient: the sum does not depend on it.
    let high = b.call1("prims.detach", vec![high.into()])?;
    let mut sum: Option<ValueId> = None;
    for part in [alpha, before, skipped] {
        let shifted = b.sub(part, high)?;
        let e = b.exp(shifted)?;
        sum = Some(match sum {
            Some(sum) => b.add(sum, e)?,
            None => e,
        });
    }
    // Three terms were added: there is a sum.
    let Some(sum) = sum else { return Ok(alpha) };
    let log = b.log(sum)?;
    b.add(log, high)
}

/// `log(sum(exp(v)))` over dimension 1 of finite numbers.
fn log_sum(b: &mut Builder<'_>, v: ValueId) -> Result<ValueId, OpError> {
    let high = b.reduce(ReduceOp::Max, v, &[1], true)?;
    let high = b.call1("prims.detach", vec![high.into()])?;
    let shifted = b.sub(v, high)?;
    let e = b.exp(shifted)?;
    let sum = b.reduce(ReduceOp::Sum, e, &[1], true)?;
    let log = b.log(sum)?;
    let total = b.add(log, high)?;
    shape::drop_dim(b, total, 1)
}
