//! The step of a Fourier transform: which lines its operands have, in blocks of neighbours that threads share.
//! `micro::fourier` transforms a block.

use ir_core::DType;
use kernel_ir::runtime::Sizes;
use kernel_ir::{ExternCall, Fourier, Operand, Program, is_length};

use super::template::View;
use super::{Call, ExecError};
use crate::micro::fourier::{FourierPlan, Part, Real, Side};
use crate::micro::team;

/// Most dimensions beside that of the lines.
type Numbers = smallvec::SmallVec<[isize; 8]>;
/// Blocks of lines for each thread, so that threads that are done early help others.
const SHARES: usize = 8;

/// The step. Its plan is made once.
pub(super) struct FourierOp {
    dim: usize,
    plan: Plan,
    /// Real and imaginary parts that are read, then those that are written.
    places: [Option<View>; 4],
}

enum Plan {
    Single(FourierPlan<f32>),
    Double(FourierPlan<f64>),
}

impl FourierOp {
    pub(super) fn new(program: &Program, call: &ExternCall) -> Result<FourierOp, ExecError> {
        let wrong = || ExecError::Malformed(format!("`{}` is no Fourier transform", call.name));
        let lines = Fourier::of(call).filter(|lines| is_length(lines.length)).ok_or_else(wrong)?;
        let dtype = |o: &Operand| program.buffers[o.buf].dtype;
        let own = dtype(lines.from.0);
        if call.inputs.iter().chain(&call.outputs).any(|o| dtype(o) != own) {
            return Err(wrong());
        }
        let length = usize::try_from(lines.length).map_err(|_| wrong())?;
        let (forward, scale) = (lines.forward, lines.scale);
        let plan = match own {
            DType::F32 => Plan::Single(FourierPlan::new(lines.form, length, forward, scale)),
            DType::F64 => Plan::Double(FourierPlan::new(lines.form, length, forward, scale)),
            _ => return Err(wrong()),
        };
        let view = |o: Option<&Operand>| o.map(|o| View::new(program, o));
        let places = [Some(lines.from.0), lines.from.1, Some(lines.to.0), lines.to.1].map(view);
        Ok(FourierOp { dim: lines.dim, plan, places })
    }

    pub(super) fn run(&self, call: &Call<'_>) -> Result<(), ExecError> {
        match &self.plan {
            Plan::Single(plan) => self.run_as(plan, call),
            Plan::Double(plan) => self.run_as(plan, call),
        }
    }

    fn run_as<T: Real>(&self, plan: &FourierPlan<T>, call: &Call<'_>) -> Result<(), ExecError> {
        let Some(lines) = Lines::of(self, plan, call)? else { return Ok(()) };
        let blocks = lines.blocks();
        let tasks = blocks.min(SHARES * team::threads());
        let work = lines.count().saturating_mul(plan.work());
        team::par_for_work(tasks, work, &|task| {
            let own = blocks * task / tasks..blocks * (task + 1) / tasks;
            own.for_each(|block| lines.block(plan, block));
        });
        Ok(())
    }
}

/// The lines of a call.
struct Lines<T> {
    /// Sizes of the dimensions beside that of the lines and that of neighbours, outermost first.
    outer: Numbers,
    /// The strides there of each part.
    steps: [Numbers; 4],
    /// The block of neighbours with number 0.
    first: [Part<T>; 4],
    /// How many neighbours there are, and how many of them are one block.
    neighbours: usize,
    together: usize,
}

// SAFETY: addresses of the call's buffers; the blocks of lines that threads take are different ones.
unsafe impl<T: Sync> Sync for Lines<T> {}

impl<T: Real> Lines<T> {
    /// `None` where there are none.
    fn of(op: &FourierOp, plan: &FourierPlan<T>, call: &Call<'_>) -> Result<Option<Lines<T>>, ExecError> {
        let Some(read) = &op.places[0] else { return Ok(None) };
        let sizes = call.sizes.extents(&read.sizes)?;
        if sizes.contains(&0) {
            return Ok(None);
        }
        let mut strides: [Numbers; 4] = Default::default();
        let absent = Part { ptr: std::ptr::null_mut(), along: 0, across: 0 };
        let mut first = [absent; 4];
        for (n, place) in op.places.iter().enumerate() {
            let Some(place) = place else { continue };
            strides[n] = numbers(call.sizes, place)?;
            let ptr = place.ptr::<T>(call.buffers, call.sizes)?.cast_mut();
            first[n] = Part { ptr, along: strides[n][op.dim], across: 0 };
        }
        let others: smallvec::SmallVec<[usize; 8]> =
            (0..sizes.len()).filter(|d| *d != op.dim && sizes[*d] > 1).collect();
        // Neighbours are taken together: where the elements of a line lie apart, those of its neighbours lie between them.
        let side = [0, 2].into_iter().find(|n| first[*n].along.abs() > 2).unwrap_or(0);
        let across = others.iter().copied().min_by_key(|d| strides[side][*d].abs());
        let (neighbours, together) = match across {
            Some(d) => (sizes[d] as usize, plan.lines_at_once().min(sizes[d] as usize)),
            None => (1, 1),
        };
        let beside = || others.iter().copied().filter(|d| Some(*d) != across);
        let mut steps: [Numbers; 4] = Default::default();
        for n in 0..4 {
            if first[n].ptr.is_null() {
                continue;
            }
            first[n].across = across.map_or(0, |d| strides[n][d]);
            steps[n] = beside().map(|d| strides[n][d]).collect();
        }
        let outer = beside().map(|d| sizes[d] as isize).collect();
        Ok(Some(Lines { outer, steps, first, neighbours, together }))
    }

    /// Blocks of neighbours beside each other.
    fn abreast(&self) -> usize {
        self.neighbours.div_ceil(self.together)
    }

    fn blocks(&self) -> usize {
        self.outer.iter().product::<isize>() as usize * self.abreast()
    }

    fn count(&self) -> usize {
        self.outer.iter().product::<isize>() as usize * self.neighbours
    }

    fn block(&self, plan: &FourierPlan<T>, number: usize) {
        let (row, begin) = (number / self.abreast(), number % self.abreast() * self.together);
        let mut parts = self.first;
        for (part, steps) in parts.iter_mut().zip(&self.steps) {
            part.ptr = part.ptr.wrapping_offset(begin as isize * part.across);
            let mut left = row as isize;
            for (size, step) in self.outer.iter().zip(steps).rev() {
                part.ptr = part.ptr.wrapping_offset(left % size * step);
                left /= size;
            }
        }
        let lines = self.together.min(self.neighbours - begin);
        let [a, b, c, d] = parts;
        let (from, to): (Side<T>, Side<T>) = ([a, b], [c, d]);
        // SAFETY: lines of the operands, within their buffers by the program's promise; what is written is no other line's, and
        // overlaps neither that nor what is read.
        unsafe { plan.run(&from, &to, lines) };
    }
}

fn numbers(sizes: &Sizes, place: &View) -> Result<Numbers, ExecError> {
    Ok(sizes.extents(&place.strides)?.iter().map(|s| *s as isize).collect())
}
