//! Fuses two passes over the same numbers, a sum and then the sum of squared differences from the mean, into one that
//! maintains count, mean and squared differences.
//!
//! Single numbers are added by Welford's update and two sets are merged by Chan's formula (Chan, Golub and LeVeque,
//! "Algorithms for computing the sample variance", 1983). The result is as accurate as two passes, which a sum of squares
//! minus the square of a sum is not.

use std::collections::BTreeMap;

use ir_core::{Atom, DType, SymExpr};
use kernel_ir::{
    AccId, BufId, Inst, InstKind, LoopKernel, Program, ReduceOp, ScalarOp, Stage, Step, StoreMode, Val,
};

use crate::loops::accumulate::roots;
use crate::loops::linear::split_sum;
use crate::text::template::volume;

/// Two accumulators that are reduced as a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// The one whose reduction remains in the kernel.
    pub(crate) first: usize,
    pub(crate) second: usize,
    pub(crate) kind: PairKind,
}

/// What the accumulators of a pair are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PairKind {
    /// The sum of some numbers, and that of their squared differences from the mean.
    Moments,
    /// The largest of some numbers, and the sum of their exponentials less that largest (`peaks`).
    Peak {
        /// Whether zero is subtracted where the largest number is infinite.
        finite: bool,
    },
}

/// Returns the kernel with such pairs reduced in one pass, where that saves a pass.
pub(crate) fn fuse_moments(program: &Program, k: &LoopKernel) -> (LoopKernel, Vec<Pair>) {
    let (mut k, mut pairs) = (k.clone(), Vec::new());
    while let Some((next, pair)) = (0..k.stages.len()).find_map(|c| join(program, &k, c, &pairs)) {
        k = next;
        pairs.push(pair);
    }
    while let Some(next) = (0..k.stages.len()).find_map(|c| split_sum(program, &k, c, &pairs)) {
        k = next;
    }
    (k, pairs)
}

/// Returns the kernel without the reduction of stage `c`, where that is a sum of squared differences.
fn join(program: &Program, k: &LoopKernel, c: usize, pairs: &[Pair]) -> Option<(LoopKernel, Pair)> {
    let stage = &k.stages[c];
    let reduces = |i: &Inst| matches!(i.kind, InstKind::Reduce { .. });
    let mut all = stage.insts.iter().enumerate().filter(|(_, i)| reduces(i));
    let (at, Inst { kind: InstKind::Reduce { acc, value, position: None }, dtype }) = all.next()? else {
        return None;
    };
    let square = acc.0 as usize;
    let sums = |n: usize| k.accs.get(n).is_some_and(|a| a.op == ReduceOp::Sum && a.dtype == *dtype);
    if all.next().is_some() || !sums(square) || !matches!(dtype, DType::F32 | DType::F64) {
        return None;
    }
    let (number, mean) = squared_difference(stage, *value)?;
    let sum = mean_of(program, k, c, mean)?;
    let (a, summed) = sum_of(k, c, sum)?;
    let free = pairs.iter().all(|p| p.first != sum && p.second != square && p.first != square);
    let same = Same { program, k, stages: (a, c) }.values(summed, number);
    if !(sums(sum) && free && k.stages[a].inner == stage.inner && same) {
        return None;
    }
    let insts = without(&stage.insts, at);
    let pair = Pair { first: sum, second: square, kind: PairKind::Moments };
    rest(program, k, c, insts).map(|k| (k, pair))
}

/// Returns `x` and `m` of a value `(x - m)²`.
fn squared_difference(stage: &Stage, v: Val) -> Option<(Val, Val)> {
    let InstKind::Op { op: ScalarOp::Mul, args } = &stage.insts[v.0 as usize].kind else { return None };
    if args[0] != args[1] {
        return None;
    }
    match &stage.insts[args[0].0 as usize].kind {
        InstKind::Op { op: ScalarOp::Sub, args } => Some((args[0], args[1])),
        _ => None,
    }
}

/// Returns the accumulator whose sum, divided by the number of points, is this value of stage `c`.
fn mean_of(program: &Program, k: &LoopKernel, c: usize, v: Val) -> Option<usize> {
    let (mut n, mut v) = (c, v);
    loop {
        match &k.stages[n].insts[v.0 as usize].kind {
            // The mean may be stored by an earlier stage at the same place.
            InstKind::Load { buf, index, mask: None } if n == c => {
                let before =
                    (0..c).rev().find_map(|s| Some((s, stored(program, &k.stages[s], *buf, index)?)));
                (n, v) = before?;
                if !k.stages[n].inner.is_empty() {
                    return None;
                }
            }
            InstKind::Op { op: ScalarOp::Div, args } => {
                let InstKind::Acc(AccId(acc)) = k.stages[n].insts[args[0].0 as usize].kind else {
                    return None;
                };
                let InstKind::Const(points) = k.stages[n].insts[args[1].0 as usize].kind else { return None };
                let all = volume(&k.stages[c].inner).as_const()? as f64;
                return (points.as_f64() == all && all > 0.0).then_some(acc as usize);
            }
            _ => return None,
        }
    }
}

/// Returns the stage before `c` that reduces an accumulator, and the value that it combines.
pub(crate) fn sum_of(k: &LoopKernel, c: usize, acc: usize) -> Option<(usize, Val)> {
    let of = |s: usize| {
        k.stages[s].insts.iter().find_map(|i| match i.kind {
            InstKind::Reduce { acc: AccId(n), value, position: None } if n as usize == acc => {
                Some((s, value))
            }
            _ => None,
        })
    };
    (0..c).find_map(of)
}

/// Returns the value that a stage stores to an element, if it has exactly one plain store there and stores nothing else to
/// that memory.
pub(crate) fn stored(program: &Program, stage: &Stage, buf: BufId, index: &[SymExpr]) -> Option<Val> {
    let root = program.root(buf);
    let mut all = stage.insts.iter().filter_map(|i| match &i.kind {
        InstKind::Store { buf: b, index, value, mask, mode } if program.root(*b) == root => {
            Some((*b, index, *value, mask.is_none() && *mode == StoreMode::Write))
        }
        _ => None,
    });
    let (b, at, value, plain) = all.next()?;
    (all.next().is_none() && plain && b == buf && at[..] == *index).then_some(value)
}

/// Compares values of two stages over the same domain, the first of which runs earlier.
pub(crate) struct Same<'a> {
    pub(crate) program: &'a Program,
    pub(crate) k: &'a LoopKernel,
    pub(crate) stages: (usize, usize),
}

impl Same<'_> {
    pub(crate) fn values(&self, a: Val, b: Val) -> bool {
        self.known(a, b, &mut BTreeMap::default())
    }

    fn known(&self, a: Val, b: Val, seen: &mut BTreeMap<(Val, Val), bool>) -> bool {
        if let Some(&same) = seen.get(&(a, b)) {
            return same;
        }
        let same = self.compared(a, b, seen);
        seen.insert((a, b), same);
        same
    }

    fn compared(&self, a: Val, b: Val, seen: &mut BTreeMap<(Val, Val), bool>) -> bool {
        let (first, second) = (&self.k.stages[self.stages.0], &self.k.stages[self.stages.1]);
        let (x, y) = (&first.insts[a.0 as usize], &second.insts[b.0 as usize]);
        // The second stage may load what the first one stored.
        if let InstKind::Load { buf, index, mask: None } = &y.kind
            && let Some(value) = stored(self.program, first, *buf, index)
        {
            return value == a;
        }
        if x.dtype != y.dtype {
            return false;
        }
        match (&x.kind, &y.kind) {
            (InstKind::Op { op, args }, InstKind::Op { op: other, args: others }) => {
                let both = args.iter().zip(others);
                op == other
                    && args.len() == others.len()
                    && both.fold(true, |s, (a, b)| s && self.known(*a, *b, seen))
            }
            (InstKind::Cast(a), InstKind::Cast(b)) | (InstKind::Bitcast(a), InstKind::Bitcast(b)) => {
                self.known(*a, *b, seen)
            }
            (InstKind::Load { buf, mask: None, index }, other) => {
                x.kind == *other && !self.changed(*buf) && fixed(index)
            }
            (InstKind::Const(_), other) => x.kind == *other,
            (InstKind::Index(e), other) => x.kind == *other && fixed(std::slice::from_ref(e)),
            _ => false,
        }
    }

    /// Whether a stage from the first up to the second stores to this memory.
    fn changed(&self, buf: BufId) -> bool {
        let root = self.program.root(buf);
        let stores = |s: &Stage| roots(self.program, s, true).contains(&root);
        self.k.stages[self.stages.0..=self.stages.1].iter().any(stores)
    }
}

/// Whether these indices contain no value of the body: values are numbered separately in each stage.
fn fixed(index: &[SymExpr]) -> bool {
    !index.iter().any(|e| e.any_leaf(|l| matches!(l, Atom::Value(_))))
}

/// Returns the kernel with these instructions in stage `c`, which no longer reduces: its stores move to the following
/// stage over the same domain, or it is removed where it stores nothing.
pub(crate) fn rest(program: &Program, k: &LoopKernel, c: usize, insts: Vec<Inst>) -> Option<LoopKernel> {
    let mut k = k.clone();
    k.stages[c].insts = insts;
    let inner = k.stages[c].inner.clone();
    let acts = |i: &Inst| matches!(i.kind, InstKind::Store { .. } | InstKind::Check { .. });
    if !k.stages[c].insts.iter().any(acts) {
        k.stages.remove(c);
        return Some(k);
    }
    let next = (c + 1..k.stages.len()).find(|n| !k.stages[*n].inner.is_empty());
    let Some(next) = next.filter(|n| k.stages[*n].inner == inner) else {
        // The pass remains, for its stores.
        return None;
    };
    let own: Vec<BufId> = roots(program, &k.stages[c], true);
    let read = roots(program, &k.stages[c], false);
    let between = &k.stages[c + 1..next];
    let meets = |s: &Stage| {
        roots(program, s, false).iter().any(|r| own.contains(r))
            || roots(program, s, true).iter().any(|r| own.contains(r) || read.contains(r))
    };
    if between.iter().any(meets) {
        return None;
    }
    k.stages[next].insts = behind(program, &k.stages[c], &k.stages[next])?;
    k.stages.remove(c);
    drop_unread(program, &mut k, next - 1, &own);
    Some(k)
}

/// Concatenates two bodies; loads of what the first one stores become its values.
fn behind(program: &Program, first: &Stage, second: &Stage) -> Option<Vec<Inst>> {
    let stored_roots = roots(program, first, true);
    let mut insts = first.insts.clone();
    let mut now: Vec<Val> = Vec::with_capacity(second.insts.len());
    for inst in &second.insts {
        if let InstKind::Load { buf, index, mask } = &inst.kind
            && stored_roots.contains(&program.root(*buf))
        {
            let value = stored(program, first, *buf, index).filter(|_| mask.is_none())?;
            now.push(value);
            continue;
        }
        // Nothing is stored twice.
        if let InstKind::Store { buf, .. } = &inst.kind
            && stored_roots.contains(&program.root(*buf))
        {
            return None;
        }
        insts.push(renumbered(inst, &|v| now[v.0 as usize]));
        now.push(Val(insts.len() as u32 - 1));
    }
    Some(insts)
}

/// Removes stores of stage `n` to temporaries that no other step of the program reads.
pub(crate) fn drop_unread(program: &Program, k: &mut LoopKernel, n: usize, candidates: &[BufId]) {
    for &root in candidates {
        let read_here = k.stages.iter().any(|s| roots(program, s, false).contains(&root));
        if program.buffers[root].storage != kernel_ir::Storage::Arena
            || read_here
            || readers(program, root) != 1
        {
            continue;
        }
        let to_it = |i: &Inst| matches!(&i.kind, InstKind::Store { buf, .. } if program.root(*buf) == root);
        while let Some(at) = k.stages[n].insts.iter().position(to_it) {
            k.stages[n].insts = without(&k.stages[n].insts, at);
        }
    }
}

/// Number of the program's steps that read this memory, including this kernel.
fn readers(program: &Program, root: BufId) -> usize {
    fn of(program: &Program, step: &Step, root: BufId) -> usize {
        let nested: usize = step.nested().into_iter().flatten().map(|s| of(program, s, root)).sum();
        let own = step.nested().is_empty() && step.accesses().0.iter().any(|b| program.root(*b) == root);
        nested
            + usize::from(own || step.operands().iter().any(|o| program.root(o.buf) == root && nested == 0))
    }
    let returned = program.outputs.iter().filter(|o| program.root(o.buf) == root).count();
    returned + program.init.iter().chain(&program.steps).map(|s| of(program, s, root)).sum::<usize>()
}

/// The body without one effect and without instructions that only it needed. Index checks are kept: they are evaluated
/// even where nothing uses the index any more.
pub(crate) fn without(insts: &[Inst], effect: usize) -> Vec<Inst> {
    let acts = |i: &Inst| i.kind.has_effect() || matches!(i.kind, InstKind::Check { .. });
    let effects = insts.iter().enumerate().map(|(n, i)| n != effect && acts(i)).collect();
    kept(insts, effects)
}

/// The needed instructions and, transitively, those that they use.
fn kept(insts: &[Inst], mut needed: Vec<bool>) -> Vec<Inst> {
    for n in (0..insts.len()).rev() {
        if needed[n] {
            insts[n].kind.for_each_val(&mut |v| needed[v.0 as usize] = true);
        }
    }
    let mut now = vec![Val(0); insts.len()];
    let mut out = Vec::new();
    for (n, inst) in insts.iter().enumerate().filter(|(n, _)| needed[*n]) {
        out.push(renumbered(inst, &|v| now[v.0 as usize]));
        now[n] = Val(out.len() as u32 - 1);
    }
    out
}

/// The instructions that compute a value, which is the last one of the result.
pub(crate) fn computing(insts: &[Inst], value: Val) -> Vec<Inst> {
    let mut needed = vec![false; value.0 as usize + 1];
    needed[value.0 as usize] = true;
    kept(&insts[..=value.0 as usize], needed)
}

/// The instruction with its operands renumbered.
pub(crate) fn renumbered(inst: &Inst, now: &dyn Fn(Val) -> Val) -> Inst {
    let mut inst = inst.clone();
    let expr = |e: &mut SymExpr| {
        *e = e.subst(&|l| match l {
            Atom::Value(n) => Some(SymExpr::value(now(Val(*n)).0)),
            _ => None,
        });
    };
    match &mut inst.kind {
        InstKind::Const(_) | InstKind::Acc(_) | InstKind::Template => {}
        InstKind::Index(e) => expr(e),
        InstKind::Load { index, mask, .. } => {
            index.iter_mut().for_each(expr);
            *mask = mask.map(now);
        }
        InstKind::Store { index, value, mask, .. } => {
            index.iter_mut().for_each(expr);
            (*value, *mask) = (now(*value), mask.map(now));
        }
        InstKind::Check { value, size, mask, .. } => {
            expr(size);
            (*value, *mask) = (now(*value), mask.map(now));
        }
        InstKind::Op { args, .. } => args.iter_mut().for_each(|v| *v = now(*v)),
        InstKind::Cast(v) | InstKind::Bitcast(v) | InstKind::Scan { value: v, .. } => *v = now(*v),
        InstKind::Reduce { value, position, .. } => (*value, *position) = (now(*value), position.map(now)),
    }
    inst
}
