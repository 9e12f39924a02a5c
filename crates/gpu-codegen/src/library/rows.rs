//! Rows of 16-bit matrices that are not whole vectors, such as scores over a vocabulary of 50,257: products read and write them
//! several times slower than rows that begin at multiples of 16 bytes. Values in the arena get rows with a gap behind each,
//! weights are copied so when they are bound.
//!
//! Not here: inputs of a call (`given_rows`), and its outputs, whose rows are as the caller has them.

use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{ArenaPlan, BufId, Matmul, Operand, Program, Step, Storage};

use super::given_rows::copy_inputs;
use crate::library::pack::{copy, for_each_step};

/// Elements of 16 bytes, of which rows are multiples so that vectors are aligned.
const VECTOR: i64 = 8;
/// Elements of a cache line, of which rows with a gap are multiples.
const LINE: i64 = 64;
/// The shortest rows that get a gap, which then is less than an eighth of them.
const SHORTEST: i64 = 512;

/// Gives the matrices of a program's products rows that begin at multiples of a cache line, where they do not and may.
pub fn align_rows(program: &mut Program) {
    let mut gaps = matrices(program);
    gaps.retain(|(buf, row)| Gap::of(program, *buf, *row).map(|gap| gap.apply(program)).is_some());
    if copy_inputs(program) || !gaps.is_empty() {
        program.plan = ArenaPlan::of(program);
    }
    let mut steps = std::mem::take(&mut program.steps);
    let mut copied: Vec<(Operand, Operand)> = Vec::new();
    for_each_product(&mut steps, &mut |k| {
        for operand in [&mut k.a, &mut k.b] {
            let Some(strides) = weight_strides(program, operand) else { continue };
            let known = copied.iter().find(|(from, _)| from == operand).map(|(_, to)| to.clone());
            let to = known.unwrap_or_else(|| {
                let to = copy(program, operand, strides);
                copied.push((operand.clone(), to.clone()));
                to
            });
            *operand = to;
        }
    });
    program.steps = steps;
}

pub(super) fn for_each_product(steps: &mut [Step], visit: &mut dyn FnMut(&mut Matmul)) {
    for step in steps {
        if let Step::Matmul(k) = step {
            visit(k);
        }
        step.nested_mut().into_iter().for_each(|list| for_each_product(list, visit));
    }
}

pub(super) fn is_half(program: &Program, buf: BufId) -> bool {
    matches!(program.buffers[buf].dtype, DType::F16 | DType::BF16)
}

/// The length of long rows that are not whole vectors.
pub(super) fn uneven(row: &SymExpr) -> Option<i64> {
    row.as_const().filter(|n| n % VECTOR != 0 && *n >= SHORTEST)
}

fn with_gap(row: i64) -> i64 {
    (row + LINE - 1) / LINE * LINE
}

/// The buffers in the arena that products read or write, or loops reduce along their rows, and that have uneven rows, with the
/// rows' lengths.
fn matrices(program: &Program) -> Vec<(BufId, i64)> {
    let mut found: Vec<(BufId, i64)> = Vec::new();
    for_each_step(&program.steps, &mut |step| {
        let counts = match step {
            Step::Matmul(_) => true,
            Step::Loop(k) => !k.accs.is_empty(),
            _ => false,
        };
        let (reads, writes) = if counts { step.accesses() } else { Default::default() };
        for buf in reads.into_iter().chain(writes) {
            let root = program.root(buf);
            let buffer = &program.buffers[root];
            let row = buffer.sizes.last().and_then(uneven);
            let fits =
                buffer.storage == Storage::Arena && is_half(program, root) && !program.is_dynamic(root);
            if let Some(row) = row.filter(|_| fits && found.iter().all(|(known, _)| *known != root)) {
                found.push((root, row));
            }
        }
    });
    found
}

/// The strides of a weight with a gap behind each row; `None` where the operand is no weight or its rows are even.
fn weight_strides(program: &Program, operand: &Operand) -> Option<Shape> {
    let root = program.root(operand.buf);
    let bound = matches!(program.buffers[root].storage, Storage::Constant(_) | Storage::Persistent);
    let fixed = operand.sizes.iter().chain(&operand.strides).all(|e| e.as_const().is_some());
    let along = operand.strides.iter().position(|s| *s == SymExpr::ONE)?;
    let row = uneven(&operand.sizes[along])?;
    let pitch = SymExpr::from_i64(row);
    let dense = operand.strides.iter().enumerate().all(|(d, s)| {
        d == along || operand.sizes[d] == SymExpr::ONE || (*s != SymExpr::ZERO && scaled(s, row).is_some())
    });
    let rows = operand.strides.contains(&pitch);
    if !(bound && fixed && dense && rows && is_half(program, root)) {
        return None;
    }
    let strides = operand.strides.iter().enumerate();
    strides
        .map(|(d, s)| if d == along { Some(SymExpr::ONE) } else { scaled(s, row).or(Some(s.clone())) })
        .collect()
}

/// A distance of whole rows, where rows have a gap.
fn scaled(e: &SymExpr, row: i64) -> Option<SymExpr> {
    let (terms, constant) = e.terms();
    let whole = constant % row == 0 && terms.iter().all(|(factor, _)| factor % row == 0);
    whole.then(|| e.floor_div(&SymExpr::from_i64(row)) * SymExpr::from_i64(with_gap(row)))
}

/// What changes where a buffer's rows get a gap.
struct Gap {
    /// The strides of the buffer, and strides and offsets of its views.
    buffers: Vec<(BufId, Shape, SymExpr)>,
    of: BufId,
    row: i64,
}

impl Gap {
    /// `None` where something reads or writes the buffer other than by rows.
    fn of(program: &Program, of: BufId, row: i64) -> Option<Gap> {
        let whole = &program.buffers[of];
        if whole.strides != ir_core::contiguous_strides(&whole.sizes) {
            return None;
        }
        let mut buffers = Vec::new();
        for (id, buffer) in program.buffers.iter() {
            if id == of || buffer.storage == Storage::View(of) {
                let (strides, offset) = moved(&buffer.sizes, &buffer.strides, &buffer.offset, row)?;
                buffers.push((id, strides, offset));
            }
        }
        let gap = Gap { buffers, of, row };
        let mut fits = program.outputs.iter().all(|o| program.root(o.buf) != of);
        for_each_step(&program.steps, &mut |step| fits &= gap.fits(program, step));
        for_each_step(&program.init, &mut |step| fits &= !gap.touches(program, step));
        fits.then_some(gap)
    }

    fn touches(&self, program: &Program, step: &Step) -> bool {
        let (reads, writes) = step.accesses();
        reads.into_iter().chain(writes).any(|b| program.root(b) == self.of)
    }

    /// Whether a step may see the buffer with gaps: its bodies name elements by their indices, and its operands are by rows.
    fn fits(&self, program: &Program, step: &Step) -> bool {
        let known = matches!(step, Step::Loop(_) | Step::Matmul(_) | Step::Together(_));
        let by_rows = |o: &&Operand| moved(&o.sizes, &o.strides, &o.offset, self.row).is_some();
        let own = |o: &&Operand| program.root(o.buf) == self.of;
        !self.touches(program, step)
            || (known && step.operands().into_iter().filter(own).all(|o| by_rows(&o)))
    }

    fn apply(self, program: &mut Program) {
        for (id, strides, offset) in &self.buffers {
            let buffer = &mut program.buffers[*id];
            buffer.strides.clone_from(strides);
            buffer.offset.clone_from(offset);
        }
        let roots: Vec<BufId> = self.buffers.iter().map(|(id, ..)| *id).collect();
        let mut steps = std::mem::take(&mut program.steps);
        for_each_product(&mut steps, &mut |k| {
            for operand in [&mut k.a, &mut k.b].into_iter().filter(|o| roots.contains(&o.buf)) {
                let made = moved(&operand.sizes, &operand.strides, &operand.offset, self.row);
                if let Some((strides, offset)) = made {
                    (operand.strides, operand.offset) = (strides, offset);
                }
            }
        });
        program.steps = steps;
    }
}

/// Strides and offset of a part of a buffer whose rows get a gap; `None` where a dimension crosses rows.
pub(super) fn moved(
    sizes: &[SymExpr],
    strides: &[SymExpr],
    offset: &SymExpr,
    row: i64,
) -> Option<(Shape, SymExpr)> {
    let mut within = 1;
    let mut all = Shape::new();
    for (size, stride) in sizes.iter().zip(strides) {
        if *size == SymExpr::ONE || *stride == SymExpr::ZERO {
            all.push(scaled(stride, row).unwrap_or_else(|| stride.clone()));
        } else if let Some(stride) = scaled(stride, row) {
            all.push(stride);
        } else {
            within += (size.as_const()? - 1) * stride.as_const().filter(|s| *s >= 1)?;
            all.push(stride.clone());
        }
    }
    let offset = scaled(offset, row)?;
    (within <= row).then_some((all, offset))
}
