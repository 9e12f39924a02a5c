//! Values that a GPU computes again sooner than it stores and loads them: the exponentials of a softmax, which both its sum and
//! its gradient need. Schedules store a value with a costly operator that is read twice, which is right where an operator costs as
//! much as an access of memory. On a GPU it costs a fraction of that, and the scores are often narrower than their
//! exponentials.
//!
//! Not here: values without costly operators, which the schedule judges by the bytes that move.

use std::collections::BTreeMap;

use ir_core::{Atom, DType, Shape, SymExpr};
use kernel_ir::{
    AccId, ArenaPlan, BodyBuilder, BufId, Buffer, Inst, InstKind, LoopKernel, Program, ScalarOp, Stage, Step,
    Storage, StoreMode, Val,
};

use crate::loops::accumulate::roots;
use crate::loops::hint;
use crate::loops::moments::{computing, renumbered, without};
use crate::text::checks::from_data;
use crate::text::template::volume;

/// Elements from which a value is not left to the caches.
const ENOUGH: i64 = 64 * 1024;
/// Maximum instructions of a value that is computed again.
const MAX_INSTS: usize = 16;
/// Maximum number of costly operators among them: each takes about a third of the time of storing four bytes.
const MAX_COSTLY: usize = 2;

/// Replaces loads of such values by their computation, where that moves no more bytes.
pub fn recompute(program: &mut Program) {
    let mut changed = false;
    for s in 0..program.steps.len() {
        let Step::Loop(k) = &program.steps[s] else { continue };
        let mut stored: Vec<BufId> = k.stages.iter().flat_map(|stage| roots(program, stage, true)).collect();
        stored.sort_unstable();
        stored.dedup();
        for buf in stored {
            if let Some(again) = Again::of(program, s, buf) {
                again.apply(program);
                changed = true;
            }
        }
    }
    if changed {
        program.plan = ArenaPlan::of(program);
    }
}

/// A value that is computed where it is read.
struct Again {
    buf: BufId,
    /// The step, its stage and the instruction that stores it.
    step: usize,
    stage: usize,
    store: usize,
    /// Its computation, the value last.
    insts: Vec<Inst>,
    /// The dimension of the buffer along which each loop variable of the step runs.
    dims: BTreeMap<u32, usize>,
    /// Where other steps find the accumulators that it needs; none where the step does not store them yet.
    saved: BTreeMap<u32, Option<(BufId, Shape)>>,
    /// The later steps that read it.
    readers: Vec<usize>,
}

impl Again {
    fn of(program: &Program, step: usize, buf: BufId) -> Option<Again> {
        let Step::Loop(k) = &program.steps[step] else { return None };
        let buffer = &program.buffers[buf];
        let elements = hint(program, &volume(&buffer.sizes));
        if buffer.storage != Storage::Arena
            || program.is_dynamic(buf)
            || elements < ENOUGH
            || is_seen(program, buf)
        {
            return None;
        }
        let (stage, store, value, index) = only_store(program, k, buf)?;
        let extents: Vec<SymExpr> = k.outer.iter().chain(&k.stages[stage].inner).cloned().collect();
        let dims = dims(&index, &buffer.sizes, &extents)?;
        let insts = computing(&k.stages[stage].insts, value);
        let mut again =
            Again { buf, step, stage, store, insts, dims, saved: BTreeMap::new(), readers: Vec::new() };
        let accs = again.accumulators(program, k)?;
        let inside = again.readers(program, k)?;
        let acts = |s: &Stage| s.insts.iter().filter(|i| i.kind.has_effect()).count();
        let rest = acts(&k.stages[stage]) > 1 || k.stages.len() > 1;
        let own = buffer.dtype.size() as i64;
        let readers = again.readers.len() as i64 + i64::from(inside);
        let bytes = again.bytes(program, elements);
        if !rest || readers * bytes > (1 + readers) * own {
            return None;
        }
        if !again.readers.is_empty() {
            for acc in accs {
                let place = saved(program, k, acc);
                let outer: Vec<u32> =
                    (0..k.outer.len() as u32).filter(|n| k.outer[*n as usize] != SymExpr::ONE).collect();
                if !outer.iter().all(|n| again.dims.contains_key(n)) {
                    return None;
                }
                again.saved.insert(acc.0, place);
            }
        }
        Some(again)
    }

    /// The accumulators that the value needs; `None` where it cannot be computed elsewhere or costs too much.
    fn accumulators(&self, program: &Program, k: &LoopKernel) -> Option<Vec<AccId>> {
        let (mut accs, mut costly) = (Vec::new(), 0);
        for inst in &self.insts {
            let moved = |e: &SymExpr| {
                !e.any_leaf(|l| match l {
                    Atom::Loop(n) => !self.dims.contains_key(n) && self.extent(k, *n) != Some(&SymExpr::ONE),
                    Atom::Value(_) => true,
                    _ => false,
                })
            };
            if inst.dtype == DType::F64 {
                return None;
            }
            let fits = match &inst.kind {
                InstKind::Load { buf, index, mask: None } => {
                    index.iter().all(moved) && is_kept(program, self.step, program.root(*buf))
                }
                InstKind::Index(e) => moved(e),
                InstKind::Const(_) | InstKind::Cast(_) | InstKind::Bitcast(_) => true,
                InstKind::Op { op, .. } => {
                    costly += usize::from(is_costly(*op));
                    *op != ScalarOp::Philox && (is_costly(*op) || !is_long(*op))
                }
                InstKind::Acc(acc) => {
                    accs.push(*acc);
                    true
                }
                _ => false,
            };
            if !fits {
                return None;
            }
        }
        accs.sort_unstable();
        accs.dedup();
        ((1..=MAX_COSTLY).contains(&costly) && self.insts.len() <= MAX_INSTS).then_some(accs)
    }

    fn extent<'k>(&self, k: &'k LoopKernel, n: u32) -> Option<&'k SymExpr> {
        k.outer.iter().chain(&k.stages[self.stage].inner).nth(n as usize)
    }

    /// Bytes that its computation loads for each element.
    fn bytes(&self, program: &Program, elements: i64) -> i64 {
        let of = |i: &Inst| match &i.kind {
            InstKind::Load { buf, .. } => {
                let buffer = &program.buffers[*buf];
                let full = hint(program, &volume(&buffer.sizes)) > elements / 2;
                if full { buffer.dtype.size() as i64 } else { 0 }
            }
            _ => 0,
        };
        self.insts.iter().map(of).sum()
    }

    /// Finds the later steps that read the value, and returns whether later stages of its own step do; `None` where something
    /// reads it that no computation can stand in for.
    fn readers(&mut self, program: &Program, k: &LoopKernel) -> Option<bool> {
        for (n, step) in program.steps.iter().enumerate() {
            let (reads, writes) = step.accesses();
            let mut all = reads.iter().chain(&writes).map(|b| program.root(*b));
            if n == self.step || !all.any(|b| b == self.buf) {
                continue;
            }
            let Step::Loop(k) = step else { return None };
            if n < self.step || !k.stages.iter().all(|s| replaceable(program, s, self.buf)) {
                return None;
            }
            self.readers.push(n);
        }
        let loads = |s: &Stage| roots(program, s, false).contains(&self.buf);
        let (before, after) = k.stages.split_at(self.stage + 1);
        let fits = !before.iter().any(loads) && after.iter().all(|s| replaceable(program, s, self.buf));
        fits.then(|| after.iter().any(loads))
    }

    fn apply(mut self, program: &mut Program) {
        let mut added = Vec::new();
        for (acc, place) in &mut self.saved {
            if place.is_none() {
                let new = new_place(program, self.step, AccId(*acc));
                added.push((AccId(*acc), new.clone()));
                *place = Some(new);
            }
        }
        let mut steps = std::mem::take(&mut program.steps);
        for n in self.readers.clone().into_iter().chain([self.step]) {
            let Some(Step::Loop(k)) = steps.get_mut(n) else { continue };
            let own = n == self.step;
            for stage in &mut k.stages {
                if roots(program, stage, false).contains(&self.buf) {
                    stage.insts = self.replaced(program, &stage.insts, own);
                }
            }
            if own {
                self.without_store(k, &added);
            }
        }
        program.steps = steps;
    }

    /// Removes the store, and the stage where it has no other effect; stores the accumulators that later steps need.
    fn without_store(&self, k: &mut LoopKernel, added: &[(AccId, (BufId, Shape))]) {
        let insts = without(&k.stages[self.stage].insts, self.store);
        let acts = insts.iter().any(|i| i.kind.has_effect() || matches!(i.kind, InstKind::Check { .. }));
        k.stages[self.stage].insts = insts;
        if !acts {
            k.stages.remove(self.stage);
        }
        if added.is_empty() {
            return;
        }
        let mut body = BodyBuilder::new();
        for (acc, (buf, index)) in added {
            let value = body.acc(*acc, k.accs[acc.0 as usize].dtype);
            body.store(*buf, index.clone(), value, StoreMode::Write);
        }
        k.stages.push(Stage { inner: Shape::new(), insts: body.finish() });
    }

    /// A body with the value's computation in place of its loads.
    fn replaced(&self, program: &Program, insts: &[Inst], own: bool) -> Vec<Inst> {
        let mut body = BodyBuilder::new();
        let mut now: Vec<Val> = Vec::with_capacity(insts.len());
        for inst in insts {
            let inst = renumbered(inst, &|v| now[v.0 as usize]);
            let value = match &inst.kind {
                InstKind::Load { buf, index, .. } if program.root(*buf) == self.buf => {
                    self.computed(&mut body, index, own)
                }
                _ => body.push(inst.dtype, inst.kind),
            };
            now.push(value);
        }
        body.finish()
    }

    /// Writes the computation of the element at `index`.
    fn computed(&self, body: &mut BodyBuilder, index: &[SymExpr], own: bool) -> Val {
        let at = |e: &SymExpr| {
            e.subst(&|l| match l {
                Atom::Loop(n) => Some(self.dims.get(n).map_or(SymExpr::ZERO, |d| index[*d].clone())),
                _ => None,
            })
        };
        let mut now: Vec<Val> = Vec::with_capacity(self.insts.len());
        for inst in &self.insts {
            let mut inst = renumbered(inst, &|v| now[v.0 as usize]);
            match &mut inst.kind {
                InstKind::Load { index, .. } => index.iter_mut().for_each(|e| *e = at(e)),
                InstKind::Index(e) => *e = at(e),
                InstKind::Acc(acc) if !own => {
                    if let Some(Some((buf, place))) = self.saved.get(&acc.0) {
                        let index = place.iter().map(at).collect();
                        inst.kind = InstKind::Load { buf: *buf, index, mask: None };
                    }
                }
                _ => {}
            }
            now.push(body.push(inst.dtype, inst.kind));
        }
        now.last().copied().unwrap_or(Val(0))
    }
}

/// Operators that take some ten instructions on a GPU.
fn is_costly(op: ScalarOp) -> bool {
    matches!(op, ScalarOp::Exp | ScalarOp::Exp2)
}

/// Operators that take tens of instructions or more; the comparison of one with a load is the schedule's.
fn is_long(op: ScalarOp) -> bool {
    !matches!(
        op,
        ScalarOp::Add
            | ScalarOp::Sub
            | ScalarOp::Mul
            | ScalarOp::Neg
            | ScalarOp::Abs
            | ScalarOp::Min
            | ScalarOp::Max
            | ScalarOp::Select
            | ScalarOp::Eq
            | ScalarOp::Ne
            | ScalarOp::Lt
            | ScalarOp::Le
            | ScalarOp::Gt
            | ScalarOp::Ge
            | ScalarOp::And
            | ScalarOp::Or
            | ScalarOp::Not
    )
}

/// Whether a view shows the buffer, or it leaves the program.
fn is_seen(program: &Program, buf: BufId) -> bool {
    program.buffers.iter().any(|(_, b)| b.storage == Storage::View(buf))
        || program.outputs.iter().any(|o| program.root(o.buf) == buf)
}

/// Whether nothing from this step on writes to the memory.
fn is_kept(program: &Program, step: usize, root: BufId) -> bool {
    let writes = |s: &Step| s.accesses().1.iter().any(|b| program.root(*b) == root);
    !program.steps[step..].iter().any(writes)
}

/// The stage, the instruction, the value and the index of the only store to a buffer.
fn only_store(program: &Program, k: &LoopKernel, buf: BufId) -> Option<(usize, usize, Val, Shape)> {
    let mut found = None;
    for (s, stage) in k.stages.iter().enumerate() {
        for (n, inst) in stage.insts.iter().enumerate() {
            let InstKind::Store { buf: to, index, value, mask, mode } = &inst.kind else { continue };
            if program.root(*to) != buf {
                continue;
            }
            if found.is_some() || mask.is_some() || *mode != StoreMode::Write {
                return None;
            }
            found = Some((s, n, *value, index.clone()));
        }
    }
    found
}

/// The dimension along which each loop variable runs, where a store covers a buffer point by point.
fn dims(index: &[SymExpr], sizes: &[SymExpr], extents: &[SymExpr]) -> Option<BTreeMap<u32, usize>> {
    let mut dims = BTreeMap::new();
    for (d, (e, size)) in index.iter().zip(sizes).enumerate() {
        if *size == SymExpr::ONE {
            continue;
        }
        let Some(Atom::Loop(n)) = e.as_atom() else { return None };
        if extents.get(*n as usize) != Some(size) || dims.insert(*n, d).is_some() {
            return None;
        }
    }
    Some(dims)
}

/// Whether a stage reads the buffer at points alone, or not at all, and does not write it.
fn replaceable(program: &Program, stage: &Stage, buf: BufId) -> bool {
    stage.insts.iter().all(|i| match &i.kind {
        InstKind::Load { buf: b, index, mask } if program.root(*b) == buf => {
            mask.is_none() && !from_data(index)
        }
        InstKind::Store { buf: b, .. } => program.root(*b) != buf,
        _ => true,
    })
}

/// Where a kernel stores an accumulator for every outer point, in memory that keeps it.
fn saved(program: &Program, k: &LoopKernel, acc: AccId) -> Option<(BufId, Shape)> {
    for stage in k.stages.iter().filter(|s| s.inner.is_empty()) {
        for inst in &stage.insts {
            let InstKind::Store { buf, index, value, .. } = &inst.kind else { continue };
            let of = &stage.insts[value.0 as usize];
            let buffer = &program.buffers[*buf];
            let same =
                of.kind == InstKind::Acc(acc) && buffer.dtype == of.dtype && buffer.storage == Storage::Arena;
            let writers = |s: &Step| s.accesses().1.iter().any(|b| program.root(*b) == *buf);
            let alone = program.steps.iter().filter(|s| writers(s)).count() == 1;
            let covers =
                || only_store(program, k, *buf).is_some() && dims(index, &buffer.sizes, &k.outer).is_some();
            if same && alone && !program.is_dynamic(*buf) && covers() {
                return Some((*buf, index.clone()));
            }
        }
    }
    None
}

/// Memory for an accumulator of every outer point.
fn new_place(program: &mut Program, step: usize, acc: AccId) -> (BufId, Shape) {
    let Step::Loop(k) = &program.steps[step] else { return (BufId(0), Shape::new()) };
    let sizes = k.outer.clone();
    let buffer = Buffer {
        name: format!("{}_acc{}", k.name, acc.0),
        dtype: k.accs[acc.0 as usize].dtype,
        strides: ir_core::contiguous_strides(&sizes),
        sizes: sizes.clone(),
        offset: SymExpr::ZERO,
        storage: Storage::Arena,
    };
    let index = (0..sizes.len() as u32).map(SymExpr::loop_var).collect();
    (program.buffers.push(buffer), index)
}
