//! Splits a sum over inner points whose terms are scaled by an earlier sum, `Σ (a x + b y)` with `a` and `b` constant per
//! outer point: `x` and `y` are summed in the earlier pass already, and the result is `a Σx + b Σy`.
//!
//! The gradient of a normalisation has this form: a second pass over the same numbers, once the first sums are known.

use std::collections::BTreeMap;

use ir_core::{Atom, DType, SymExpr};
use kernel_ir::{
    AccId, BodyBuilder, BufId, Inst, InstKind, LoopKernel, Program, ReduceOp, ScalarOp, Stage, Val,
};

use crate::loops::accumulate::roots;
use crate::loops::moments::{Pair, renumbered, rest, stored, without};
use crate::text::template::volume;

/// Maximum number of terms of a sum: each is an accumulator.
const MAX_TERMS: usize = 4;

/// A factor that depends on the outer point; a divisor where `inverse`.
#[derive(Clone, Copy)]
struct Factor {
    value: Val,
    inverse: bool,
}

/// The product `± Π factors * term`; without a term it is the same at every inner point.
#[derive(Clone)]
struct Term {
    negative: bool,
    factors: Vec<Factor>,
    value: Option<Val>,
}

/// Returns the kernel without the reduction of stage `c`, where that is such a sum.
pub(crate) fn split_sum(program: &Program, k: &LoopKernel, c: usize, pairs: &[Pair]) -> Option<LoopKernel> {
    let stage = &k.stages[c];
    let mut all = stage.insts.iter().enumerate().filter(|(_, i)| matches!(i.kind, InstKind::Reduce { .. }));
    let (at, Inst { kind: InstKind::Reduce { acc, value, position: None }, dtype }) = all.next()? else {
        return None;
    };
    let sums = k.accs.get(acc.0 as usize)?.op == ReduceOp::Sum;
    let ends = k.stages.get(c + 1).is_some_and(|s| s.inner.is_empty());
    let used_later = k.stages.iter().skip(c + 2).any(|s| uses_accumulator(s, *acc));
    let float = matches!(dtype, DType::F32 | DType::F64);
    let paired = pairs.iter().any(|p| p.first == acc.0 as usize);
    if all.next().is_some() || !sums || !ends || used_later || !float || paired || stage.inner.is_empty() {
        return None;
    }
    let a = (0..c).rev().find(|n| !k.stages[*n].inner.is_empty())?;
    if k.stages[a].inner != stage.inner {
        return None;
    }
    let reader = Reader { stage, dtype: *dtype, outer: outer_values(k, stage) };
    let mut terms = Vec::new();
    reader.terms(*value, Term { negative: false, factors: Vec::new(), value: None }, &mut terms)?;
    let mut k = k.clone();
    let sums = summed_earlier(program, &mut k, (a, c), &terms, *dtype, pairs)?;
    k.stages[c + 1].insts = ended(program, &k, c, *acc, &terms, &sums, *dtype)?;
    let insts = without(&k.stages[c].insts, at);
    rest(program, &k, c, insts)
}

fn uses_accumulator(stage: &Stage, acc: AccId) -> bool {
    stage.insts.iter().any(|i| i.kind == InstKind::Acc(acc))
}

/// Which values of a stage are the same at every inner point.
fn outer_values(k: &LoopKernel, stage: &Stage) -> Vec<bool> {
    let inner = |e: &SymExpr| e.any_leaf(|l| matches!(l, Atom::Loop(n) if *n as usize >= k.outer.len()));
    let mut outer: Vec<bool> = Vec::with_capacity(stage.insts.len());
    for inst in &stage.insts {
        let mut same = match &inst.kind {
            InstKind::Load { index, .. } => !index.iter().any(inner),
            InstKind::Index(e) => !inner(e),
            InstKind::Const(_)
            | InstKind::Op { .. }
            | InstKind::Cast(_)
            | InstKind::Bitcast(_)
            | InstKind::Acc(_) => true,
            _ => false,
        };
        inst.kind.for_each_val(&mut |v| same &= outer[v.0 as usize]);
        outer.push(same);
    }
    outer
}

struct Reader<'a> {
    stage: &'a Stage,
    dtype: DType,
    outer: Vec<bool>,
}

impl Reader<'_> {
    /// Collects the terms of a value that is scaled by `scale`.
    fn terms(&self, v: Val, mut scale: Term, out: &mut Vec<Term>) -> Option<()> {
        let inst = &self.stage.insts[v.0 as usize];
        if inst.dtype != self.dtype || out.len() > 4 * MAX_TERMS {
            return None;
        }
        let is_outer = |v: Val| self.outer[v.0 as usize];
        if is_outer(v) {
            volume(&self.stage.inner).as_const()?;
            scale.factors.push(Factor { value: v, inverse: false });
            out.push(scale);
            return Some(());
        }
        let negated = |t: &Term| Term { negative: !t.negative, ..t.clone() };
        match &inst.kind {
            InstKind::Op { op: ScalarOp::Neg, args } => self.terms(args[0], negated(&scale), out),
            InstKind::Op { op: op @ (ScalarOp::Add | ScalarOp::Sub), args } => {
                self.terms(args[0], scale.clone(), out)?;
                let second = if *op == ScalarOp::Sub { negated(&scale) } else { scale };
                self.terms(args[1], second, out)
            }
            InstKind::Op { op: ScalarOp::Mul, args } if is_outer(args[0]) || is_outer(args[1]) => {
                let (factor, rest) = if is_outer(args[0]) { (args[0], args[1]) } else { (args[1], args[0]) };
                scale.factors.push(Factor { value: factor, inverse: false });
                self.terms(rest, scale, out)
            }
            InstKind::Op { op: ScalarOp::Div, args } if is_outer(args[1]) => {
                scale.factors.push(Factor { value: args[1], inverse: true });
                self.terms(args[0], scale, out)
            }
            _ => {
                out.push(Term { value: Some(v), ..scale });
                let mut different: Vec<Val> = out.iter().filter_map(|t| t.value).collect();
                different.sort_unstable();
                different.dedup();
                (different.len() <= MAX_TERMS).then_some(())
            }
        }
    }
}

/// Makes stage `a` sum the terms of stage `c`, and returns the accumulator of each term's value.
fn summed_earlier(
    program: &Program,
    k: &mut LoopKernel,
    (a, c): (usize, usize),
    terms: &[Term],
    dtype: DType,
    pairs: &[Pair],
) -> Option<BTreeMap<Val, AccId>> {
    let later: Vec<BufId> = k.stages[a + 1..=c].iter().flat_map(|s| roots(program, s, true)).collect();
    let mut body = BodyBuilder::new();
    let mut same: Vec<Val> = Vec::new();
    for inst in &k.stages[a].insts {
        let inst = renumbered(inst, &|v| same[v.0 as usize]);
        same.push(body.push(inst.dtype, inst.kind));
    }
    // Existing accumulators, by the value that they sum.
    let mut sums: Vec<(Val, AccId)> = Vec::new();
    for inst in body.insts() {
        if let InstKind::Reduce { acc, value, position: None } = inst.kind
            && k.accs[acc.0 as usize].op == ReduceOp::Sum
            && k.accs[acc.0 as usize].dtype == dtype
            && pairs.iter().all(|p| p.second != acc.0 as usize)
        {
            sums.push((value, acc));
        }
    }
    let mut out = BTreeMap::new();
    let mut moved = BTreeMap::new();
    for v in terms.iter().filter_map(|t| t.value) {
        let value = moved_to(program, k, (a, c), v, &mut body, &same, &mut moved, &later)?;
        let acc = match sums.iter().find(|(x, _)| *x == value) {
            Some((_, acc)) => *acc,
            None => {
                let acc = k.add_acc(ReduceOp::Sum, dtype);
                body.reduce(acc, value, None);
                sums.push((value, acc));
                acc
            }
        };
        out.insert(v, acc);
    }
    k.stages[a].insts = body.finish();
    Some(out)
}

/// Copies the computation of a value of stage `c` to stage `a`, where everything that it needs is available there.
#[allow(clippy::too_many_arguments)] // two bodies, and what is known of both
fn moved_to(
    program: &Program,
    k: &LoopKernel,
    (a, c): (usize, usize),
    v: Val,
    body: &mut BodyBuilder,
    same: &[Val],
    moved: &mut BTreeMap<Val, Val>,
    later: &[BufId],
) -> Option<Val> {
    if let Some(&known) = moved.get(&v) {
        return Some(known);
    }
    let inst = &k.stages[c].insts[v.0 as usize];
    let mut needed = Vec::new();
    inst.kind.for_each_val(&mut |v| needed.push(v));
    for n in needed {
        moved_to(program, k, (a, c), n, body, same, moved, later)?;
    }
    let value = match &inst.kind {
        InstKind::Load { buf, index, mask } => {
            let root = program.root(*buf);
            if later.contains(&root) {
                return None;
            }
            if roots(program, &k.stages[a], true).contains(&root) {
                let value = stored(program, &k.stages[a], *buf, index).filter(|_| mask.is_none())?;
                same[value.0 as usize]
            } else {
                let inst = renumbered(inst, &|v| moved[&v]);
                body.push(inst.dtype, inst.kind)
            }
        }
        InstKind::Const(_)
        | InstKind::Index(_)
        | InstKind::Op { .. }
        | InstKind::Cast(_)
        | InstKind::Bitcast(_) => {
            let inst = renumbered(inst, &|v| moved[&v]);
            body.push(inst.dtype, inst.kind)
        }
        _ => return None,
    };
    moved.insert(v, value);
    Some(value)
}

/// The stage after `c` that computes the former value of `acc`.
fn ended(
    program: &Program,
    k: &LoopKernel,
    c: usize,
    acc: AccId,
    terms: &[Term],
    sums: &BTreeMap<Val, AccId>,
    dtype: DType,
) -> Option<Vec<Inst>> {
    let stage = &k.stages[c];
    let stored_here = roots(program, stage, true);
    let points = volume(&stage.inner).as_const();
    let mut body = BodyBuilder::new();
    let mut moved = BTreeMap::new();
    let mut total = None;
    for term in terms {
        let mut value = match term.value {
            Some(v) => body.acc(*sums.get(&v)?, dtype),
            None => body.constant(points? as f64, dtype),
        };
        for factor in &term.factors {
            let by = outer_value(program, stage, factor.value, &mut body, &mut moved, &stored_here)?;
            let op = if factor.inverse { ScalarOp::Div } else { ScalarOp::Mul };
            value = body.op(op, &[value, by]);
        }
        if term.negative {
            value = body.op(ScalarOp::Neg, &[value]);
        }
        total = Some(match total {
            Some(total) => body.op(ScalarOp::Add, &[total, value]),
            None => value,
        });
    }
    let total = total?;
    let mut now: Vec<Val> = Vec::new();
    for inst in &k.stages[c + 1].insts {
        if inst.kind == InstKind::Acc(acc) {
            now.push(total);
            continue;
        }
        let inst = renumbered(inst, &|v| now[v.0 as usize]);
        now.push(body.push(inst.dtype, inst.kind));
    }
    Some(body.finish())
}

/// Copies the computation of a value that is the same at every inner point to the stage after the loop.
fn outer_value(
    program: &Program,
    stage: &Stage,
    v: Val,
    body: &mut BodyBuilder,
    moved: &mut BTreeMap<Val, Val>,
    stored_here: &[BufId],
) -> Option<Val> {
    if let Some(&known) = moved.get(&v) {
        return Some(known);
    }
    let inst = &stage.insts[v.0 as usize];
    if let InstKind::Load { buf, .. } = &inst.kind
        && stored_here.contains(&program.root(*buf))
    {
        return None;
    }
    let mut needed = Vec::new();
    inst.kind.for_each_val(&mut |v| needed.push(v));
    for n in needed {
        outer_value(program, stage, n, body, moved, stored_here)?;
    }
    let inst = renumbered(inst, &|v| moved[&v]);
    let value = body.push(inst.dtype, inst.kind);
    moved.insert(v, value);
    Some(value)
}
