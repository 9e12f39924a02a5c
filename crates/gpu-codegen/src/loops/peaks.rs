//! Fuses two passes over the same numbers, their largest and then the sum of their exponentials less that largest, into one that
//! maintains both: a larger number scales the sum so far ("Online normalizer calculation for softmax", Milakov and Gimelshein,
//! 2018). Softmax, its logarithm and the logarithm of a sum of exponentials begin with these passes.
//!
//! Not here: the arithmetic (`Peak` in `dialect/common/loops.cu`).

use ir_core::DType;
use kernel_ir::{AccId, Inst, InstKind, LoopKernel, Program, ReduceOp, ScalarOp, Stage, Val};

use crate::loops::moments::{Pair, PairKind, Same, rest, stored, sum_of, without};
use crate::text::template::volume;

/// Returns the kernel with such pairs reduced in one pass, where that saves a pass; `pairs` are those that it has already.
pub(crate) fn fuse_peaks(program: &Program, k: &LoopKernel, mut pairs: Vec<Pair>) -> (LoopKernel, Vec<Pair>) {
    let mut k = k.clone();
    while let Some((next, pair)) = (0..k.stages.len()).find_map(|c| join(program, &k, c, &pairs)) {
        k = next;
        pairs.push(pair);
    }
    (k, pairs)
}

/// Returns the kernel without the reduction of stage `c`, where that is a sum of exponentials.
fn join(program: &Program, k: &LoopKernel, c: usize, pairs: &[Pair]) -> Option<(LoopKernel, Pair)> {
    let stage = &k.stages[c];
    let mut all = reductions(stage);
    let (at, Inst { kind: InstKind::Reduce { acc, value, position: None }, dtype }) = all.next()? else {
        return None;
    };
    let is = |n: usize, op: ReduceOp| k.accs.get(n).is_some_and(|a| a.op == op && a.dtype == *dtype);
    let sum = acc.0 as usize;
    if all.next().is_some() || !is(sum, ReduceOp::Sum) || !matches!(dtype, DType::F32 | DType::F64) {
        return None;
    }
    let [less] = operands(stage, *value, ScalarOp::Exp)?[..] else { return None };
    let [number, shift] = operands(stage, less, ScalarOp::Sub)?[..] else { return None };
    let finder = Finder { program, k, c };
    let (largest, finite) = finder.largest(shift)?;
    let (a, of) = sum_of(k, c, largest)?;
    let once = |n: usize| k.stages.iter().flat_map(reductions).filter(|(_, i)| reduces(i, n)).count() == 1;
    let free = |n: usize| pairs.iter().all(|p| p.first != n && p.second != n);
    // Without a point the sum is 0, not that of a row without numbers.
    let bounds = program.bounds();
    let some = (volume(&stage.inner) - 1).is_non_negative(&bounds);
    let fits = is(largest, ReduceOp::Max) && [largest, sum].into_iter().all(|n| once(n) && free(n));
    let same = Same { program, k, stages: (a, c) }.values(of, number);
    if !(fits && same && some && !stage.inner.is_empty() && k.stages[a].inner == stage.inner) {
        return None;
    }
    let insts = without(&stage.insts, at);
    let pair = Pair { first: largest, second: sum, kind: PairKind::Peak { finite } };
    rest(program, k, c, insts).map(|k| (k, pair))
}

fn reductions(stage: &Stage) -> impl Iterator<Item = (usize, &Inst)> {
    stage.insts.iter().enumerate().filter(|(_, i)| matches!(i.kind, InstKind::Reduce { .. }))
}

fn reduces(inst: &Inst, n: usize) -> bool {
    matches!(inst.kind, InstKind::Reduce { acc: AccId(a), .. } if a as usize == n)
}

/// The operands of a value, if this operator computes it.
fn operands(stage: &Stage, v: Val, wanted: ScalarOp) -> Option<&[Val]> {
    match &stage.insts[v.0 as usize].kind {
        InstKind::Op { op, args } if *op == wanted => Some(args),
        _ => None,
    }
}

/// Finds the accumulator behind a value of stage `c`.
struct Finder<'a> {
    program: &'a Program,
    k: &'a LoopKernel,
    c: usize,
}

impl Finder<'_> {
    /// The accumulator that is subtracted, and whether zero is where it is infinite.
    fn largest(&self, v: Val) -> Option<(usize, bool)> {
        let (n, v) = self.source((self.c, v))?;
        if let Some(acc) = self.accumulator((n, v)) {
            return Some((acc, false));
        }
        let stage = &self.k.stages[n];
        let [infinite, zero, number] = operands(stage, v, ScalarOp::Select)?[..] else { return None };
        let [size, limit] = operands(stage, infinite, ScalarOp::Eq)?[..] else { return None };
        let [of] = operands(stage, size, ScalarOp::Abs)?[..] else { return None };
        let constant = |v: Val| match stage.insts[v.0 as usize].kind {
            InstKind::Const(c) => Some(c.as_f64()),
            _ => None,
        };
        let acc = self.accumulator((n, number))?;
        let fits =
            constant(zero)? == 0.0 && constant(limit)? == f64::INFINITY && self.accumulator((n, of))? == acc;
        fits.then_some((acc, true))
    }

    fn accumulator(&self, at: (usize, Val)) -> Option<usize> {
        let (n, v) = self.source(at)?;
        match self.k.stages[n].insts[v.0 as usize].kind {
            InstKind::Acc(AccId(acc)) => Some(acc as usize),
            _ => None,
        }
    }

    /// A value, or what an earlier stage without a loop stored where it is loaded.
    fn source(&self, (n, v): (usize, Val)) -> Option<(usize, Val)> {
        let InstKind::Load { buf, index, mask: None } = &self.k.stages[n].insts[v.0 as usize].kind else {
            return Some((n, v));
        };
        let before = |s: usize| Some((s, stored(self.program, &self.k.stages[s], *buf, index)?));
        let found = (0..n).rev().find_map(before)?;
        self.k.stages[found.0].inner.is_empty().then_some(found)
    }
}
