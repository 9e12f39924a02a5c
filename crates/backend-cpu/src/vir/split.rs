//! Splits a pointwise kernel where a comparison of its own indices changes: a concatenation becomes one loop per piece, a
//! padding its border and its interior, each without the masks and selects of the whole. Works on kernel-ir, before
//! addresses are computed. Kernels with reductions or scans are not split, because their order of summation must not
//! change.

use super::spread::spread;
use ir_core::{Atom, DType, Shape, SymExpr};
use kernel_ir::{
    BodyBuilder, Inst, InstKind, LoopBounds, LoopKernel, Program, ScalarOp, Stage, StoreMode, Val,
};

/// Most parts of a kernel: each is a function of its own.
const MAX_PARTS: usize = 64;
/// Elements that a part has on average; with fewer, starting the parts costs as much as the masks.
const MIN_PART: i64 = 256;

/// The kernel's parts, which together are equivalent to it; the kernel itself where there is nothing to gain, with inner loops that
/// indices divide made two.
pub fn split(program: &Program, kernel: &LoopKernel) -> Vec<LoopKernel> {
    match boxes(program, kernel) {
        Some(boxes) => boxes.iter().map(|b| part(program, kernel, b)).collect(),
        None => vec![spread(program, kernel)],
    }
}

/// A part of the outer domain: first point and extent in each dimension.
type Region = Vec<(i64, SymExpr)>;

fn boxes(program: &Program, kernel: &LoopKernel) -> Option<Vec<Region>> {
    let [stage] = &kernel.stages[..] else { return None };
    let plain = |i: &Inst| match &i.kind {
        InstKind::Store { mode, .. } => *mode == StoreMode::Write,
        InstKind::Scan { .. } | InstKind::Reduce { .. } => false,
        _ => true,
    };
    if !stage.inner.is_empty() || !kernel.accs.is_empty() || !stage.insts.iter().all(plain) {
        return None;
    }
    let cuts = cuts(program, kernel, &stage.insts);
    let parts = cuts.iter().try_fold(1usize, |n, c| n.checked_mul(c.len() + 1))?;
    let points = kernel.outer.iter().filter_map(SymExpr::as_const).fold(1i64, i64::saturating_mul);
    let whole = kernel.outer.iter().all(|e| e.as_const().is_some());
    if !(2..=MAX_PARTS).contains(&parts) || (whole && points / (parts as i64) < MIN_PART) {
        return None;
    }
    let mut boxes: Vec<Region> = vec![Vec::new()];
    for (extent, cuts) in kernel.outer.iter().zip(&cuts) {
        let ranges: Vec<(i64, SymExpr)> = match extent.as_const() {
            Some(n) => {
                let ends = cuts.iter().copied().chain([n]);
                [0].iter().chain(cuts).zip(ends).map(|(lo, hi)| (*lo, SymExpr::from_i64(hi - lo))).collect()
            }
            None => vec![(0, extent.clone())],
        };
        let longer = |b: &Region| -> Vec<Region> {
            ranges.iter().map(|r| b.iter().cloned().chain([r.clone()]).collect()).collect()
        };
        boxes = boxes.iter().flat_map(longer).collect();
    }
    Some(boxes)
}

/// For each outer loop the points before which a comparison changes, ascending.
fn cuts(program: &Program, kernel: &LoopKernel, insts: &[Inst]) -> Vec<Vec<i64>> {
    let symbols = program.bounds();
    let bounds = LoopBounds { extents: &kernel.outer, symbols: &symbols };
    let mut cuts: Vec<Vec<i64>> = vec![Vec::new(); kernel.outer.len()];
    for inst in insts {
        let Some((op, e)) = comparison(insts, inst) else { continue };
        for &(var, [a, b]) in
            thresholds(op).iter().filter_map(|t| changes(&e, *t, &bounds)).collect::<Vec<_>>().iter()
        {
            let extent = kernel.outer[var as usize].as_const().unwrap_or(0);
            cuts[var as usize].extend([a, b].into_iter().filter(|c| (1..extent).contains(c)));
        }
    }
    for list in &mut cuts {
        list.sort_unstable();
        list.dedup();
    }
    cuts
}

/// A comparison of two index values as one of their difference with zero.
fn comparison(insts: &[Inst], inst: &Inst) -> Option<(ScalarOp, SymExpr)> {
    let InstKind::Op { op, args } = &inst.kind else { return None };
    if thresholds(*op).is_empty() {
        return None;
    }
    let side = |v: Val| match &insts[v.0 as usize].kind {
        InstKind::Index(e) => Some(e.clone()),
        InstKind::Const(s) if insts[v.0 as usize].dtype == DType::I64 => Some(SymExpr::from_i64(s.as_i64())),
        _ => None,
    };
    Some((*op, side(args[0])? - side(args[1])?))
}

/// The numbers at which the outcome of a comparison with zero changes.
fn thresholds(op: ScalarOp) -> &'static [i64] {
    match op {
        ScalarOp::Lt | ScalarOp::Ge => &[0],
        ScalarOp::Le | ScalarOp::Gt => &[1],
        ScalarOp::Eq | ScalarOp::Ne => &[0, 1],
        _ => &[],
    }
}

/// The loop along which `e >= threshold` changes, and between which of its points: outside of them it is known whatever the
/// other loops are at. `None` where it is unknown in more than one point.
fn changes(e: &SymExpr, threshold: i64, bounds: &LoopBounds<'_>) -> Option<(u32, [i64; 2])> {
    let (terms, _) = e.terms();
    let loops = terms.iter().filter_map(|(coef, factors)| match factors {
        [Atom::Loop(v)] if bounds.extents.get(*v as usize)?.as_const().is_some() => Some((*coef, *v)),
        _ => None,
    });
    let (coef, var) = loops.max_by_key(|(coef, _)| coef.unsigned_abs())?;
    let (_, rest) = e.affine_in(&Atom::Loop(var))?;
    let (Some(low), Some(high)) = rest.range(bounds) else { return None };
    // First point at which the comparison may be true (false, where `coef` is negative), and from which on it is.
    let up = |n: i64| -(-n).div_euclid(coef.abs());
    let down = |n: i64| n.div_euclid(coef.abs()) + 1;
    let at = if coef > 0 {
        [up(threshold.checked_sub(high)?), up(threshold.checked_sub(low)?)]
    } else {
        [down(low.checked_sub(threshold)?), down(high.checked_sub(threshold)?)]
    };
    (at[1] - at[0] <= 1).then_some((var, at))
}

/// The kernel over one region.
fn part(program: &Program, kernel: &LoopKernel, region: &Region) -> LoopKernel {
    let outer: Shape = region.iter().map(|(_, n)| n.clone()).collect();
    let symbols = program.bounds();
    let bounds = LoopBounds { extents: &outer, symbols: &symbols };
    let stages = kernel.stages.iter().map(|stage| {
        let known = known(&stage.insts, region, &bounds);
        Stage { inner: Shape::new(), insts: rewritten(&stage.insts, &known, region, &bounds) }
    });
    let stages = stages.collect();
    LoopKernel { name: kernel.name.clone(), origins: Vec::new(), outer, accs: Vec::new(), stages }
}

/// What is known of a value in a region.
#[derive(Clone, Copy, PartialEq)]
enum Known {
    /// Nothing.
    No,
    /// A truth value.
    Truth(bool),
    /// It is this other value.
    Same(Val),
    /// A load or check whose mask is false at every point.
    Zero,
}

fn moved(e: &SymExpr, region: &Region) -> SymExpr {
    e.subst(&|a| match a {
        Atom::Loop(v) => region.get(*v as usize).map(|(lo, _)| SymExpr::loop_var(*v) + *lo),
        _ => None,
    })
}

fn known(insts: &[Inst], region: &Region, bounds: &LoopBounds<'_>) -> Vec<Known> {
    let mut known: Vec<Known> = Vec::with_capacity(insts.len());
    for inst in insts {
        let truth = |v: Val| if let Known::Truth(t) = known[v.0 as usize] { Some(t) } else { None };
        let compared = || {
            let (op, e) = comparison(insts, inst)?;
            outcome(op, moved(&e, region).range(bounds)).map(Known::Truth)
        };
        let found = match &inst.kind {
            InstKind::Const(c) if inst.dtype == DType::Bool => Known::Truth(c.as_bool()),
            InstKind::Load { mask: Some(m), .. } | InstKind::Check { mask: Some(m), .. }
                if truth(*m) == Some(false) =>
            {
                Known::Zero
            }
            InstKind::Op { op: ScalarOp::Select, args } => match truth(args[0]) {
                Some(t) => Known::Same(args[if t { 1 } else { 2 }]),
                None => Known::No,
            },
            InstKind::Op { op, args } if inst.dtype == DType::Bool => match (op, &args[..]) {
                (ScalarOp::Not, [x]) => truth(*x).map_or(Known::No, |t| Known::Truth(!t)),
                (ScalarOp::And, [x, y]) => and_or(true, (*x, truth(*x)), (*y, truth(*y))),
                (ScalarOp::Or, [x, y]) => and_or(false, (*x, truth(*x)), (*y, truth(*y))),
                _ => compared().unwrap_or(Known::No),
            },
            _ => Known::No,
        };
        // A value equal to a known one is known.
        let through = |k: Known| match k {
            Known::Same(v) if known[v.0 as usize] != Known::No => known[v.0 as usize],
            other => other,
        };
        known.push(through(found));
    }
    known
}

/// `and` (`neutral` true) or `or` (false) of two truth values.
fn and_or(neutral: bool, x: (Val, Option<bool>), y: (Val, Option<bool>)) -> Known {
    match (x.1, y.1) {
        (Some(a), _) if a != neutral => Known::Truth(a),
        (_, Some(b)) if b != neutral => Known::Truth(b),
        (Some(_), Some(_)) => Known::Truth(neutral),
        (Some(_), None) => Known::Same(y.0),
        (None, Some(_)) => Known::Same(x.0),
        (None, None) => Known::No,
    }
}

/// A comparison with zero of a number in an interval.
fn outcome(op: ScalarOp, (low, high): (Option<i64>, Option<i64>)) -> Option<bool> {
    let at_least = |n: i64| match (low, high) {
        (Some(l), _) if l >= n => Some(true),
        (_, Some(h)) if h < n => Some(false),
        _ => None,
    };
    let zero = || match (at_least(0), at_least(1)) {
        (Some(true), Some(false)) => Some(true),
        (Some(false), _) | (_, Some(true)) => Some(false),
        _ => None,
    };
    match op {
        ScalarOp::Ge => at_least(0),
        ScalarOp::Lt => at_least(0).map(|t| !t),
        ScalarOp::Gt => at_least(1),
        ScalarOp::Le => at_least(1).map(|t| !t),
        ScalarOp::Eq => zero(),
        ScalarOp::Ne => zero().map(|t| !t),
        _ => None,
    }
}

/// The instructions that are still needed, in order, with loop variables moved into the region.
fn rewritten(insts: &[Inst], known: &[Known], region: &Region, bounds: &LoopBounds<'_>) -> Vec<Inst> {
    let live = live(insts, known);
    let mut b = BodyBuilder::new();
    let mut number: Vec<Val> = Vec::with_capacity(insts.len());
    for (n, inst) in insts.iter().enumerate() {
        if !live[n] {
            number.push(Val(0));
            continue;
        }
        let v = match known[n] {
            Known::Truth(t) => b.constant(t, DType::Bool),
            Known::Zero => b.constant(ir_core::Scalar::zero(inst.dtype), inst.dtype),
            Known::Same(v) => number[v.0 as usize],
            Known::No => rewrite(&mut b, inst, known, &number, region, bounds),
        };
        number.push(v);
    }
    b.finish()
}

/// The operands of effects, given what is known. An index is checked in any case.
fn live(insts: &[Inst], known: &[Known]) -> Vec<bool> {
    let mut live = vec![false; insts.len()];
    for n in (0..insts.len()).rev() {
        let checks = matches!(insts[n].kind, InstKind::Check { .. }) && known[n] == Known::No;
        live[n] |= checks || insts[n].kind.has_effect();
        if !live[n] {
            continue;
        }
        match known[n] {
            Known::Truth(_) | Known::Zero => {}
            Known::Same(v) => live[v.0 as usize] = true,
            Known::No => insts[n].kind.for_each_val(&mut |v| live[v.0 as usize] = true),
        }
    }
    live
}

fn rewrite(
    b: &mut BodyBuilder,
    inst: &Inst,
    known: &[Known],
    number: &[Val],
    region: &Region,
    bounds: &LoopBounds<'_>,
) -> Val {
    let new = |v: &Val| number[v.0 as usize];
    let expr = |b: &BodyBuilder, e: &SymExpr| {
        let e = e.subst(&|a| match a {
            Atom::Loop(v) => region.get(*v as usize).map(|(lo, _)| SymExpr::loop_var(*v) + *lo),
            Atom::Value(v) => Some(b.as_index(number[*v as usize])),
            _ => None,
        });
        e.simplify(bounds)
    };
    // A mask that always holds is dropped.
    let open = |m: &Val| (known[m.0 as usize] != Known::Truth(true)).then(|| new(m));
    match &inst.kind {
        InstKind::Index(e) => {
            let e = expr(b, e);
            b.index(e)
        }
        InstKind::Load { buf, index, mask } => {
            let index = index.iter().map(|e| expr(b, e)).collect();
            b.push(inst.dtype, InstKind::Load { buf: *buf, index, mask: mask.as_ref().and_then(open) })
        }
        InstKind::Store { buf, index, value, mask, mode } => {
            let index = index.iter().map(|e| expr(b, e)).collect();
            let (value, mask) = (new(value), mask.as_ref().and_then(open));
            b.push(inst.dtype, InstKind::Store { buf: *buf, index, value, mask, mode: *mode })
        }
        InstKind::Op { op, args } => {
            let args: Vec<Val> = args.iter().map(new).collect();
            b.op(*op, &args)
        }
        InstKind::Check { value, size, mask, site } => {
            let size = expr(b, size);
            let (value, mask) = (new(value), mask.as_ref().and_then(open));
            b.check(value, size, mask, *site)
        }
        InstKind::Cast(v) => b.cast(new(v), inst.dtype),
        InstKind::Bitcast(v) => b.push(inst.dtype, InstKind::Bitcast(new(v))),
        // Kernels with the other kinds are not split.
        other => b.push(inst.dtype, other.clone()),
    }
}
