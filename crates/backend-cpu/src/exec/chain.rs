//! Pairs of convolutions of which the first is a product of pixels and weights (a 1×1 window) and the second, depthwise, alone reads its result:
//! the step that widens an image and the one behind it in networks of inverted residuals. The second has the first compute the lines that its
//! windows reach when it wants them, so that they are read from the cache; what lies between both has no memory of its own.
//!
//! Every element is computed as by the two steps apart. Not here: pairs whose sizes only a call tells, 16-bit floats and integers, and images that
//! the second-level caches hold anyway.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use ir_core::{DType, EntityId};
use kernel_ir::runtime::{Node, Sizes};
use kernel_ir::{BufId, Footprint, InstKind, Program, Step, Storage, StoreMode};

use super::control::PlannedStep;
use super::packs::{Packed, conv_weights};
use super::template::{ConvOp, Finish};
use super::{Call, ExecError, Op};
use crate::micro::{self, Blocks, ConvWeights, Hook, MicroError};

/// Bytes between two convolutions from which on they are chained.
const LEAST: i64 = 1 << 20;

/// A convolution's place in a chain.
pub(super) enum Chained {
    /// The next step computes it.
    Left,
    /// It computes the step before it.
    After(After),
}

/// What a convolution computes itself before it reads it.
pub(super) struct After {
    first: Arc<ConvOp>,
    /// The first's packed weights.
    slot: usize,
    between: Between,
}

/// What the first stores and the second reads: lines of pixels of channels, one after another.
#[derive(Clone, Copy)]
struct Between {
    buffer: BufId,
    /// The first element, and elements between images.
    offset: i64,
    image: i64,
    /// Elements between pixels, and pixels of a line.
    row: i64,
    line: i64,
}

/// Chains the convolutions of a program's `call` that can be, and takes what lies between them out of the memory plan.
pub(super) fn form(program: &mut Program, call: &[Step], steps: &mut [PlannedStep], threads: usize) {
    for n in 1..call.len().min(steps.len()) {
        let (before, rest) = steps.split_at_mut(n);
        let (Node::Op(Op::Conv(first, slot)), Node::Op(Op::Conv(second, _))) =
            (&mut before[n - 1].node, &mut rest[0].node)
        else {
            continue;
        };
        let found = between(program, (call, n), first, second);
        let Some(between) = found.filter(|_| pays(second, threads)) else { continue };
        let (Some(own), Some(next)) = (Arc::get_mut(first), Arc::get_mut(second)) else { continue };
        own.chained = Some(Chained::Left);
        next.chained = Some(Chained::After(After { first: Arc::clone(first), slot: *slot, between }));
        outlive(program, &call[n - 1], n, between.buffer);
    }
}

/// What is between step `n` and the one before it, where these can be chained.
fn between(
    program: &Program,
    (call, n): (&[Step], usize),
    first: &ConvOp,
    second: &ConvOp,
) -> Option<Between> {
    let plain = |op: &ConvOp| op.packs && op.dtypes == [DType::F32; 2] && op.chained.is_none();
    if !plain(first) || !plain(second) || first.tall.is_some() || second.conv.epilogue.ranges.len() != 4 {
        return None;
    }
    // A failed check would be told of the second step.
    let refused = match &first.finish {
        Finish::Direct(d) => d.residual.is_some(),
        Finish::Hook(f) => f.checks(),
    };
    if refused {
        return None;
    }
    let between = stored(program, first).filter(|b| is_read(b, second))?;
    let bytes = second.input.sizes.iter().try_fold(4, |bytes: i64, s| bytes.checked_mul(s.as_const()?))?;
    // The plans are those of every call: all sizes and strides are numbers.
    let sizes = Sizes::hints(program);
    let known = |op: &ConvOp| {
        let read = op.input.sizes.iter().chain(&op.input.strides);
        op.conv.epilogue.ranges.iter().chain(read).all(|s| s.as_const().is_some())
    };
    let fits = bytes >= LEAST && known(first) && known(second);
    (fits
        && first.plan(&sizes).is_ok_and(|plan| plan.makes_pixels())
        && second.plan(&sizes).is_ok_and(|plan| plan.takes_lines())
        && is_between(program, call, n, between.buffer))
    .then_some(between)
}

/// Whether the lines that tasks compute twice are few enough.
fn pays(second: &ConvOp, threads: usize) -> bool {
    let Ok(plan) = second.plan(&Sizes::default()) else { return false };
    let (lines, stride) = (plan.output_size()[1] / plan.parts_of_made(threads), plan.shape.stride[1]);
    lines * stride >= LINES_A_BORDER * plan.shape.window_lines(1).saturating_sub(stride)
}

/// Lines of a task for each one that its neighbour computes too.
const LINES_A_BORDER: usize = 4;

/// Where a convolution's epilogue stores its only result, if that is lines of channels in a temporary of its own.
fn stored(program: &Program, first: &ConvOp) -> Option<Between> {
    let mut stores = first.conv.epilogue.insts.iter().filter(|i| matches!(i.kind, InstKind::Store { .. }));
    let (store, None) = (stores.next()?, stores.next()) else { return None };
    let InstKind::Store { buf, index, mask: None, mode: StoreMode::Write, .. } = &store.kind else {
        return None;
    };
    let buf = *buf;
    let ranges = &first.conv.epilogue.ranges;
    let [_, channels, _, line] = ranges.iter().map(|r| r.as_const()).collect::<Option<Vec<_>>>()?[..] else {
        return None;
    };
    let mut rest = program.buffers[buf].address(index);
    let mut steps = [0; 4];
    for (d, step) in steps.iter_mut().enumerate() {
        let (by, left) = rest.affine_in(&ir_core::Atom::Loop(d as u32))?;
        (*step, rest) = (by.as_const()?, left);
    }
    let [image, channel, height, row] = steps;
    let offset = rest.as_const()?;
    let buffer = program.root(buf);
    let temporary = matches!(program.buffers[buffer].storage, Storage::Arena) && !program.is_dynamic(buffer);
    let lines = channel == 1 && row >= channels && height == row * line;
    let float = program.buffers[buf].dtype == DType::F32;
    (temporary && lines && float).then_some(Between { buffer, offset, image, row, line })
}

/// Whether a convolution reads just that.
fn is_read(between: &Between, second: &ConvOp) -> bool {
    let input = &second.input;
    let strides = input.strides.iter().map(|s| s.as_const()).collect::<Option<Vec<_>>>();
    let Between { image, row, line, .. } = *between;
    input.root == between.buffer.index()
        && input.offset.as_const() == Some(between.offset)
        && input.sizes.last().and_then(|n| n.as_const()) == Some(line)
        && strides.is_some_and(|s| {
            s[1..] == [1, row * line, row] && (s[0] == image || input.sizes[0].as_const() == Some(1))
        })
}

/// Whether a buffer is stored by step `n - 1` and read by the operand of step `n` alone, and neither step uses what the other one
/// writes otherwise.
fn is_between(program: &Program, call: &[Step], n: usize, buffer: BufId) -> bool {
    let (first, second) = (&call[n - 1], &call[n]);
    let of = |step: &Step| Footprint::of(program, step);
    let uses = |step: &Step| of(step).reads.contains(&buffer) || of(step).writes.contains(&buffer);
    let others = call.iter().enumerate().any(|(i, step)| i != n && i + 1 != n && uses(step));
    let loaded = |step: &Step| {
        let mut bodies = step.bodies().into_iter().flat_map(|(_, insts)| insts);
        bodies.any(|i| matches!(&i.kind, InstKind::Load { buf, .. } if program.root(*buf) == buffer))
    };
    let returned = program.outputs.iter().any(|o| program.root(o.buf) == buffer);
    let (before, after) = (of(first), of(second));
    // Lines that are wanted late would be read where results were stored already, or a result may be placed over them.
    let constant =
        |b: &BufId| matches!(program.buffers[*b].storage, Storage::Constant(_) | Storage::Persistent);
    let apart =
        before.reads.iter().all(|b| constant(b) || !after.reads.contains(b) && !after.writes.contains(b));
    let known = !before.reads.iter().any(|b| program.is_dynamic(*b));
    let own = known
        && before.writes == [buffer]
        && !after.writes.contains(&buffer)
        && !before.reads.contains(&buffer);
    own && apart && !others && !returned && !loaded(second) && !program.init.iter().any(uses)
}

/// What the step before step `n` reads is used throughout step `n`, so that nothing which that step writes lies there; what is between them
/// is nowhere. The places of the others are no longer those of the program.
fn outlive(program: &mut Program, before: &Step, n: usize, between: BufId) {
    let read = Footprint::of(program, before).reads;
    program.plan.lives.retain(|life| life.buf != between);
    for life in program.plan.lives.iter_mut().filter(|life| read.contains(&life.buf)) {
        // A step may write over what ends in it.
        life.last = life.last.max(n as u32 + 1);
    }
    (program.plan.offsets, program.plan.bytes) = (None, None);
}

/// The buffers without memory that lie between the chained steps of a call.
pub(super) fn all_between(steps: &[PlannedStep]) -> impl Iterator<Item = BufId> + '_ {
    steps.iter().filter_map(|step| match step.op() {
        Some(Op::Conv(op, _)) => match &op.chained {
            Some(Chained::After(after)) => Some(after.between.buffer),
            _ => None,
        },
        _ => None,
    })
}

/// Runs a convolution of a call in its place in the call.
pub(super) fn run(
    op: &ConvOp,
    call: &Call<'_>,
    own: Option<&ConvWeights>,
    all: &[Option<Packed>],
) -> Result<(), ExecError> {
    match &op.chained {
        None => op.run(call, own),
        Some(Chained::Left) => Ok(()),
        Some(Chained::After(after)) => {
            let first = conv_weights(all, after.slot);
            let lost = || op.refused(MicroError::Unsupported("chained convolutions without packed weights"));
            let (first, own) = first.zip(own).ok_or_else(lost)?;
            after.run(op, call, (first, own))
        }
    }
}

impl After {
    /// Runs both.
    fn run(
        &self,
        second: &ConvOp,
        call: &Call<'_>,
        (of_first, of_second): (&ConvWeights, &ConvWeights),
    ) -> Result<(), ExecError> {
        let plan = second.plan(call.sizes)?;
        let failed = OnceLock::new();
        let make = |image: usize, lines: Range<usize>, origin: *mut f32| {
            if let Err(e) = self.lines((image, lines), origin, call, of_first) {
                // The first failure is told.
                let _ = failed.set(e);
            }
        };
        second.finish(call, &|output, epilogue| {
            // SAFETY: what is stored has memory of its own, by the plan; the lines are written as the second reads them.
            let done = unsafe { plan.run_made(&make, of_second, output, epilogue) };
            done.map_err(|e| second.refused(e))
        })?;
        failed.into_inner().map_or(Ok(()), Err)
    }

    /// Some lines of an image by the first, whose line 0 would be at `origin`.
    fn lines(
        &self,
        (image, lines): (usize, Range<usize>),
        origin: *mut f32,
        call: &Call<'_>,
        weights: &ConvWeights,
    ) -> Result<(), ExecError> {
        let (first, s, at) = (&*self.first, call.sizes, &self.between);
        let (plan, input) = (first.plan(s)?, first.input.ptr::<f32>(call.buffers, s)?);
        let pixels = lines.start * at.line as usize..lines.end * at.line as usize;
        let compute = |output, epilogue: &micro::Epilogue<'_>| {
            // SAFETY: the input lies inside of its buffer, by the program's promise, and the second's task owns the lines.
            let done = unsafe { plan.run_pixels((image, pixels.clone()), input, weights, output, epilogue) };
            done.map_err(|e| first.refused(e))
        };
        match &first.finish {
            Finish::Direct(d) => {
                let channels = s.eval(&first.conv.epilogue.ranges[1])? as usize;
                // SAFETY: columns lie inside of their buffers by the program's promise.
                let epilogue = unsafe { d.epilogue(call.buffers, s, channels)? };
                compute(Some((origin, at.row as usize)), &epilogue)
            }
            Finish::Hook(f) => {
                let start = at.offset + image as i64 * at.image;
                let buffer = origin.wrapping_offset(-start as isize).cast::<u8>();
                let table = f.table_with(call.buffers, call.fault, Some((at.buffer, buffer)));
                let context = call.context(&table);
                let hook =
                    Some(Hook::Raw { f: call.code.epilogue(f.number), ctx: (&raw const context).cast() });
                compute(None, &micro::Epilogue { hook, blocks: Blocks::Wide, ..micro::Epilogue::default() })
            }
        }
    }
}
