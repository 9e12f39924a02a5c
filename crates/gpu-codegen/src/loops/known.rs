//! Values of an outer point that every thread of a team computes in its registers, such as the mean of a row, in place of their loads
//! in later stages: a load would wait until the memory has what one thread stored.
//!
//! Not here: values of inner points, which threads exchange by memory, or which are computed again (`recompute`).

use ir_core::{Atom, SymExpr};
use kernel_ir::{BodyBuilder, BufId, Inst, InstKind, LoopKernel, Program, ScalarOp, Stage, Val};

use crate::loops::accumulate::roots;
use crate::loops::moments::{computing, drop_unread, renumbered, stored};

/// Maximum instructions of such a value.
const MAX_INSTS: usize = 16;

/// Returns the kernel with such loads replaced, and without stages that stored nothing else.
pub(crate) fn with_known_values(program: &Program, k: &LoopKernel) -> LoopKernel {
    let mut k = k.clone();
    for n in 1..k.stages.len() {
        replace(program, &mut k, n);
    }
    k
}

/// Replaces the loads of stage `n`.
fn replace(program: &Program, k: &mut LoopKernel, n: usize) {
    let (mut body, mut now) = (BodyBuilder::new(), Vec::<Val>::with_capacity(k.stages[n].insts.len()));
    let mut sources: Vec<(usize, BufId)> = Vec::new();
    for inst in &k.stages[n].insts {
        if let Some((source, insts)) = known(program, k, n, inst) {
            let mut own: Vec<Val> = Vec::with_capacity(insts.len());
            for inst in &insts {
                let inst = renumbered(inst, &|v| own[v.0 as usize]);
                own.push(body.push(inst.dtype, inst.kind));
            }
            now.extend(own.last());
            sources.push(source);
            continue;
        }
        let inst = renumbered(inst, &|v| now[v.0 as usize]);
        now.push(body.push(inst.dtype, inst.kind));
    }
    k.stages[n].insts = body.finish();
    for (s, root) in sources {
        drop_unread(program, k, s, &[root]);
    }
}

/// The stage that stored what an instruction of stage `n` loads, with its memory, and the instructions that compute it, the value last.
fn known(program: &Program, k: &LoopKernel, n: usize, inst: &Inst) -> Option<((usize, BufId), Vec<Inst>)> {
    let InstKind::Load { buf, index, mask: None } = &inst.kind else { return None };
    let root = program.root(*buf);
    let s = (0..n).rfind(|s| roots(program, &k.stages[*s], true).contains(&root))?;
    let source = &k.stages[s];
    let here = roots(program, &k.stages[n], true).contains(&root);
    let value = stored(program, source, *buf, index)?;
    if here || !source.inner.is_empty() || source.insts[value.0 as usize].dtype != inst.dtype {
        return None;
    }
    let insts = computing(&source.insts, value);
    let reduces = |stage: &Stage, acc| {
        stage.insts.iter().any(|i| matches!(i.kind, InstKind::Reduce { acc: a, .. } if a == acc))
    };
    let fits = |i: &Inst| match &i.kind {
        InstKind::Const(_) | InstKind::Cast(_) | InstKind::Bitcast(_) => true,
        InstKind::Op { op, .. } => *op != ScalarOp::Philox,
        InstKind::Acc(acc) => !k.stages[s..=n].iter().any(|stage| reduces(stage, *acc)),
        InstKind::Index(e) => of_outer(e, k.outer.len()),
        _ => false,
    };
    (insts.len() <= MAX_INSTS && insts.iter().all(fits)).then_some(((s, root), insts))
}

/// Whether an index has the same value at all inner points.
fn of_outer(e: &SymExpr, outer: usize) -> bool {
    !e.any_leaf(|l| match l {
        Atom::Loop(n) => *n as usize >= outer,
        Atom::Value(_) => true,
        _ => false,
    })
}
