//! Turns a program's steps into operations: lowers loop kernels, finds templates' epilogues, and lists the functions to
//! compile.

use std::sync::Arc;

use ::linalg::host::MatrixRoutine;
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::runtime::{ExchangeStep, Node, Plan, control};
use kernel_ir::{Attention, Conv, Epilogue, ExternOp, LoopKernel, Matmul, Program, Step, plain_steps};

use super::attention_backward::AttentionBackwardOp;
use super::control::PlannedStep;
use super::finish::recognise;
use super::fourier::FourierOp;
use super::jobs::Jobs;
use super::loop_op::LoopOp;
use super::narrow::{self, NarrowOp};
use super::quantized::{self, QuantizedOp};
use super::sort::SortOp;
use super::staged::{self, StagedOp};
use super::tall::tall;
use super::template::{AttentionOp, ConvOp, Finish, MatmulOp, flattens};
use super::{ExecError, Op, fallback};
use crate::clif::Walk;
use crate::vir::{Dim, LowerError, VKernel, lower_epilogue, lower_kernel, split};

/// Lowers all steps; functions are appended to `jobs`.
pub(super) fn steps(
    program: &mut Program,
    steps: &[Step],
    jobs: &mut Jobs,
) -> Result<Vec<PlannedStep>, ExecError> {
    Lowering { program, jobs }.list(steps)
}

/// A program whose steps become operations.
struct Lowering<'a> {
    program: &'a mut Program,
    jobs: &'a mut Jobs,
}

impl Plan for Lowering<'_> {
    type Op = Op;
    type Error = ExecError;

    fn program(&self) -> &Program {
        self.program
    }
    fn list(&mut self, steps: &[Step]) -> Result<Vec<PlannedStep>, ExecError> {
        steps.iter().map(|step| planned(self.program, step, self.jobs)).collect()
    }
}

fn planned(program: &mut Program, step: &Step, jobs: &mut Jobs) -> Result<PlannedStep, ExecError> {
    let node = match control(&mut Lowering { program, jobs }, step)? {
        Some(node) => node,
        None => Node::Op(prepare(program, step, jobs)?),
    };
    Ok(PlannedStep::new(program, step, node))
}

/// The operation of a step that is not control flow.
fn prepare(program: &mut Program, step: &Step, jobs: &mut Jobs) -> Result<Op, ExecError> {
    match step {
        Step::Loop(k) => loop_op(program, k, jobs),
        Step::Matmul(m) => matmul(program, m, jobs),
        Step::Conv(c) => conv(program, c, jobs),
        Step::Attention(a) => attention(program, a, jobs),
        Step::Extern(e) => match e.op {
            ExternOp::Sort { .. } => Ok(Op::Sort(SortOp::new(program, e)?)),
            ExternOp::AttentionBackward { causal, scale, .. } => {
                Ok(Op::AttentionBackward(Box::new(AttentionBackwardOp::new(program, e, causal, scale)?)))
            }
            ExternOp::Linalg { op, complex } => Ok(Op::Linalg(MatrixRoutine::new(program, e, op, complex)?)),
            ExternOp::Fourier { .. } => Ok(Op::Fourier(Box::new(FourierOp::new(program, e)?))),
            ExternOp::MaskTable(_) => {
                Err(ExecError::Malformed(format!("`{}` is a step that another backend adds", e.name)))
            }
            ExternOp::Collective(_) | ExternOp::Wait => {
                let step = ExchangeStep::new(program, e)?;
                let other = || ExecError::Malformed(format!("`{}` is no exchange", e.name));
                Ok(Op::Exchange(step.ok_or_else(other)?))
            }
        },
        Step::Together(t) => together(program, &t.steps, jobs).map(Op::Several),
        Step::Bind(_) | Step::Assert(_) | Step::Cond(_) | Step::For(_) | Step::While(_) => {
            Err(ExecError::Malformed(format!("`{}` is control flow, and no operation", step.name())))
        }
    }
}

fn loop_op(program: &Program, k: &LoopKernel, jobs: &mut Jobs) -> Result<Op, ExecError> {
    Ok(Op::Loop(LoopOp::new(lowered(program, k)?, jobs)))
}

fn lowered(program: &Program, k: &LoopKernel) -> Result<Vec<VKernel>, ExecError> {
    Ok(split(program, k).iter().map(|k| lower_kernel(program, k)).collect::<Result<_, _>>()?)
}

/// Concurrent steps: all loops with independent points form one operation, whose points threads share; the other members
/// follow in order, as in [`members`].
fn together(program: &mut Program, steps: &[Step], jobs: &mut Jobs) -> Result<Vec<PlannedStep>, ExecError> {
    let (mut shared, mut serial, mut first) = (Vec::new(), Vec::new(), None);
    for step in steps {
        let Step::Loop(k) = step else { continue };
        first = first.or(Some(step));
        let kernels = lowered(program, k)?;
        match kernels.iter().any(|k| k.serial) {
            true => {
                serial.push(PlannedStep::new(program, step, Node::Op(Op::Loop(LoopOp::new(kernels, jobs)))))
            }
            false => shared.extend(kernels),
        }
    }
    let mut all = Vec::new();
    if let Some(first) = first.filter(|_| !shared.is_empty()) {
        all.push(PlannedStep::new(program, first, Node::Op(Op::Loop(LoopOp::new(shared, jobs)))));
    }
    all.extend(serial);
    for step in steps.iter().filter(|s| !matches!(s, Step::Loop(_))) {
        all.push(planned(program, step, jobs)?);
    }
    Ok(all)
}

/// The members of concurrent steps, each with its operation where it has one of its own.
pub(super) fn members<'a>(
    steps: &'a [Step],
    planned: &'a [PlannedStep],
) -> Vec<(&'a Step, Option<&'a PlannedStep>)> {
    let (loops, others): (Vec<&Step>, Vec<&Step>) = steps.iter().partition(|s| matches!(s, Step::Loop(_)));
    let own = planned.iter().skip(planned.len().saturating_sub(others.len())).map(Some);
    loops.into_iter().map(|s| (s, None)).chain(others.into_iter().zip(own)).collect()
}

fn dims(ranges: &Shape, vars: impl Iterator<Item = usize>) -> Vec<Dim> {
    vars.map(|v| Dim { var: v as u32, extent: ranges[v].clone() }).collect()
}

/// The hand-written form of the epilogue where there is one, else a generated function.
fn finish(
    program: &Program,
    name: &str,
    body: &Epilogue,
    walk: Walk,
    jobs: &mut Jobs,
) -> Result<Finish, ExecError> {
    if let Some(direct) = recognise(program, body, &walk) {
        return Ok(Finish::Direct(Box::new(direct)));
    }
    hook(program, name, body, walk, jobs)
}

fn hook(
    program: &Program,
    name: &str,
    body: &Epilogue,
    walk: Walk,
    jobs: &mut Jobs,
) -> Result<Finish, ExecError> {
    let kernel = lower_epilogue(program, name, body, walk.column)?;
    Ok(Finish::Hook(jobs.epilogue(kernel, walk)))
}

fn is_f32(program: &Program, bufs: &[kernel_ir::BufId], acc: DType) -> bool {
    acc == DType::F32 && bufs.iter().all(|b| program.buffers[*b].dtype == DType::F32)
}

/// Whether the template is computed in another dtype than its operands' or in `f64`.
fn is_staged(program: &Program, bufs: &[kernel_ir::BufId], acc: DType) -> bool {
    let dtypes: Vec<DType> = bufs.iter().map(|b| program.buffers[*b].dtype).collect();
    staged::takes(&dtypes, acc)
}

fn matmul(program: &mut Program, m: &Matmul, jobs: &mut Jobs) -> Result<Op, ExecError> {
    if let Some(groups) = &m.groups {
        return Ok(Op::Staged(Box::new(StagedOp::grouped(program, m, groups, jobs)?), 0));
    }
    let rank = m.epilogue.ranges.len();
    let ranks = [m.a.sizes.len(), m.b.sizes.len(), m.a.strides.len(), m.b.strides.len()];
    if rank < 2 || ranks.iter().any(|r| *r != rank) {
        return Err(ExecError::Malformed(format!("matmul `{}` has operands of different ranks", m.name)));
    }
    let empty = m.a.sizes[rank - 1] == SymExpr::ZERO;
    if let Some(d) = &m.dequant {
        let dtype = program.buffers[m.a.buf].dtype;
        let refused = || LowerError::DType { kernel: m.name.clone(), dtype };
        let floats = quantized::floats(dtype).ok_or_else(refused)?;
        let finish = hook(program, &m.name, &m.epilogue, rows_of(m, rank), jobs)?;
        return Ok(Op::Quantized(Box::new(QuantizedOp::new(program, (m, d), floats, finish)), 0));
    }
    if let Some(numbers) = narrow::of_matmul(program, m).filter(|_| !empty) {
        let finish = hook(program, &m.name, &m.epilogue, rows_of(m, rank), jobs)?;
        return Ok(Op::Narrow(Box::new(NarrowOp::matmul(program, m, numbers, finish)), 0));
    }
    if !is_f32(program, &[m.a.buf, m.b.buf], m.acc) || empty {
        if is_staged(program, &[m.a.buf, m.b.buf], m.acc) && !empty {
            return Ok(Op::Staged(Box::new(StagedOp::matmul(program, m, jobs)?), 0));
        }
        let k = fallback::matmul(program, m);
        return loop_op(program, &k, jobs);
    }
    let finish = finish(program, &m.name, &m.epilogue, rows_of(m, rank), jobs)?;
    Ok(Op::Matmul(MatmulOp::new(program, m, finish), 0))
}

/// The rows of a product's result: those of all batch entries, where these lie one after another.
fn rows_of(m: &Matmul, rank: usize) -> Walk {
    let (ranges, lead) = (&m.epilogue.ranges, if flattens(m) { 0 } else { rank - 2 });
    Walk { batch: dims(ranges, 0..lead), rows: dims(ranges, lead..rank - 1), column: rank as u32 - 1 }
}

fn conv(program: &mut Program, c: &Conv, jobs: &mut Jobs) -> Result<Op, ExecError> {
    let rank = c.epilogue.ranges.len();
    let fits = (3..=5).contains(&rank)
        && [
            c.input.sizes.len(),
            c.weight.sizes.len(),
            c.stride.len() + 2,
            c.dilation.len() + 2,
            c.padding.len() + 2,
        ]
        .iter()
        .all(|r| *r == rank);
    if !fits || c.groups < 1 || c.stride.iter().chain(&c.dilation).any(|s| *s < 1) {
        return Err(ExecError::Malformed(format!(
            "convolution `{}` has operands of wrong rank or steps",
            c.name
        )));
    }
    if let Some(parts) = plain_steps(c) {
        return steps(program, &parts, jobs).map(Op::Several);
    }
    let c = &cut(c);
    let negative = c.padding.iter().any(|p| p.0 < 0 || p.1 < 0);
    let static_weight = c.weight.sizes.iter().all(|s| s.as_const().is_some());
    let window = !c.transposed && !negative && static_weight;
    if window && let Some(numbers) = narrow::of_conv(program, c) {
        let finish = hook(program, &c.name, &c.epilogue, pixels_of(c, rank), jobs)?;
        return Ok(Op::Narrow(Box::new(NarrowOp::conv(program, c, numbers, finish)), 0));
    }
    if !is_f32(program, &[c.input.buf, c.weight.buf], c.acc) || !window {
        if is_staged(program, &[c.input.buf, c.weight.buf], c.acc) && window && c.acc == DType::F32 {
            return pixels(program, c, pixels_of(c, rank), jobs);
        }
        let k = fallback::conv(program, c);
        return loop_op(program, &k, jobs);
    }
    let walk = pixels_of(c, rank);
    if let Some(direct) = recognise(program, &c.epilogue, &walk) {
        let direct = Finish::Direct(Box::new(direct));
        return Ok(Op::Conv(Arc::new(ConvOp::new(program, c, direct, None)), 0));
    }
    pixels(program, c, walk, jobs)
}

/// A convolution with a generated epilogue.
fn pixels(program: &Program, c: &Conv, walk: Walk, jobs: &mut Jobs) -> Result<Op, ExecError> {
    let (finish, tall) = match tall(program, &c.epilogue) {
        Some((body, walk, tall)) => (hook(program, &c.name, &body, walk, jobs)?, Some(tall)),
        None => (hook(program, &c.name, &c.epilogue, walk, jobs)?, None),
    };
    Ok(Op::Conv(Arc::new(ConvOp::new(program, c, finish, tall)), 0))
}

/// The rows of a convolution's result: the pixels of an image.
fn pixels_of(c: &Conv, rank: usize) -> Walk {
    let ranges = &c.epilogue.ranges;
    Walk { batch: dims(ranges, 0..1), rows: dims(ranges, 2..rank), column: 1 }
}

/// A plain convolution whose negative padding removes elements of its input.
fn cut(c: &Conv) -> Conv {
    let mut c = c.clone();
    for (d, (before, after)) in c.padding.iter_mut().enumerate().filter(|_| !c.transposed) {
        let (first, last) = ((-*before).max(0), (-*after).max(0));
        let (stride, size) = (&c.input.strides[d + 2], &mut c.input.sizes[d + 2]);
        c.input.offset = &c.input.offset + stride * first;
        *size = &*size - (first + last);
        (*before, *after) = ((*before).max(0), (*after).max(0));
    }
    c
}

fn attention(program: &mut Program, a: &Attention, jobs: &mut Jobs) -> Result<Op, ExecError> {
    let all = [&a.q, &a.k, &a.v].into_iter().chain(&a.mask);
    if a.epilogue.ranges.len() != 4 || all.into_iter().any(|o| o.sizes.len() != 4 || o.strides.len() != 4) {
        return Err(ExecError::Malformed(format!("attention `{}` has operands of wrong rank", a.name)));
    }
    let mask = a.mask.as_ref().map(|m| program.buffers[m.buf].dtype);
    let mask_fits = mask.is_none_or(|d| d == DType::Bool || d == DType::F32);
    if !is_f32(program, &[a.q.buf, a.k.buf, a.v.buf], a.acc) || !mask_fits {
        let dtype = program.buffers[a.q.buf].dtype;
        let floats = [a.q.buf, a.k.buf, a.v.buf].into_iter();
        let added = a.mask.as_ref().map(|m| m.buf).filter(|_| mask != Some(DType::Bool));
        if is_staged(program, &floats.chain(added).collect::<Vec<_>>(), a.acc) {
            return Ok(Op::Staged(Box::new(StagedOp::attention(program, a, jobs)?), 0));
        }
        return Err(LowerError::DType { kernel: a.name.clone(), dtype }.into());
    }
    let ranges = &a.epilogue.ranges;
    let walk = Walk { batch: dims(ranges, 0..2), rows: dims(ranges, 2..3), column: 3 };
    // The hand-written attention stores only; anything more is a generated pass over the result.
    let finish = match recognise(program, &a.epilogue, &walk) {
        Some(d) if d.is_plain() => Finish::Direct(Box::new(d)),
        _ => hook(program, &a.name, &a.epilogue, walk, jobs)?,
    };
    Ok(Op::Attention(AttentionOp::new(program, a, finish)?))
}

/// Whether a step can be compiled, without compiling it; its functions are added to `jobs`. Preparing the step may add buffers
/// to the program.
///
/// # Errors
/// The reason.
pub(super) fn supports(program: &mut Program, step: &Step, jobs: &mut Jobs) -> Result<(), ExecError> {
    planned(program, step, jobs).map(|_| ())
}
