//! Runs a generated loop kernel: the number of outer points at the call's sizes, and their distribution over threads.

use std::ops::Range;

use ir_core::SymExpr;
use smallvec::SmallVec;

use super::jobs::{Function, Jobs};
use super::{Call, ExecError};
use crate::micro::team;
use crate::vir::VKernel;

/// Work of less than this is not split, in nanoseconds.
const SHARE: f64 = 20_000.0;
/// Least work of a task, in nanoseconds.
const TASK: f64 = 8_000.0;
/// Axis blocks are multiples of this many points: every width divides it, and 64 bytes of any dtype.
const GRAIN: i64 = 64;
/// A loop kernel: the generated functions that implement it, in any order.
pub(super) struct LoopOp {
    parts: Vec<Part>,
    serial: bool,
}

/// One function in the code and the parameters of its split.
struct Part {
    function: Function,
    points: SymExpr,
    axis: Option<SymExpr>,
    costs: Vec<(SymExpr, f64)>,
    tile: Option<i64>,
}

/// A part at the sizes of a call.
struct SizedPart<'a> {
    part: &'a Part,
    points: i64,
    /// Points along the axis; 1 without one.
    lanes: i64,
    /// Estimated nanoseconds in total.
    work: f64,
}

/// Outer points of one function.
struct Task {
    /// Number of the part.
    part: usize,
    begin: i64,
    end: i64,
    block: i64,
    /// Estimated nanoseconds.
    work: f64,
}

impl LoopOp {
    /// The kernels' functions are added to `jobs`.
    pub(super) fn new(kernels: Vec<VKernel>, jobs: &mut Jobs) -> LoopOp {
        let serial = kernels.iter().any(|k| k.serial);
        let part = |kernel: VKernel| {
            let extents: Vec<SymExpr> = kernel.points.iter().map(|d| d.extent.clone()).collect();
            Part {
                points: ir_core::numel(&extents),
                axis: kernel.outer_axis.as_ref().map(|d| d.extent.clone()),
                costs: kernel.costs.clone(),
                tile: kernel.tile,
                function: jobs.kernel(kernel),
            }
        };
        LoopOp { parts: kernels.into_iter().map(part).collect(), serial }
    }

    pub(super) fn run(&self, call: &Call<'_>) -> Result<(), ExecError> {
        let loads = self.parts.iter().map(|p| p.load(call)).collect::<Result<SmallVec<[_; 2]>, _>>()?;
        let work: f64 = loads.iter().map(|l| l.work).sum();
        let threads = team::threads();
        let symbols = call.sizes.values().as_ptr();
        if self.serial || threads == 1 || work < SHARE {
            for load in loads.iter().filter(|l| l.points > 0 && l.lanes > 0) {
                let block = load.whole();
                let f = call.code.kernel(load.part.function.number);
                let table = load.part.function.table(call.buffers, call.fault);
                // SAFETY: the tables hold an entry for every buffer and symbol of the kernel the code was made from.
                unsafe { f(table.as_ptr(), symbols, 0, load.points * load.blocks(block), block) };
            }
            return Ok(());
        }
        let least = if loads.len() == 1 { 2 } else { 1 };
        let mut tasks = Vec::new();
        for (n, load) in loads.iter().enumerate() {
            load.tasks(n, least, threads as i64 * 4, &mut tasks);
        }
        let batches = batches(&tasks);
        let table = |p: &Part| p.function.table(call.buffers, call.fault);
        let own: SmallVec<[_; 2]> = self.parts.iter().map(table).collect();
        let tables: SmallVec<[usize; 2]> = own.iter().map(|t| t.as_ptr() as usize).collect();
        let symbols = symbols as usize;
        team::par_for(batches.len(), &|n| {
            for &Task { part, begin, end, block, .. } in &tasks[batches[n].clone()] {
                // A failed check ends the call: the remaining tasks are skipped.
                if self.parts[part].function.checks() && call.fault.is_set() {
                    return;
                }
                let f = call.code.kernel(self.parts[part].function.number);
                // SAFETY: the tables hold an entry for every buffer and symbol of the kernel the code was made from; outer
                // points are independent, so tasks may run at once.
                unsafe { f(tables[part] as *const *mut u8, symbols as *const i64, begin, end, block) };
            }
        });
        Ok(())
    }
}

/// Neighbouring tasks that one thread runs: many small parts are not worth scheduling separately.
fn batches(tasks: &[Task]) -> Vec<Range<usize>> {
    let mut all = Vec::new();
    let (mut begin, mut work) = (0, 0.0);
    for (n, task) in tasks.iter().enumerate() {
        if n > begin && work + task.work > TASK {
            all.push(begin..n);
            (begin, work) = (n, 0.0);
        }
        work += task.work;
    }
    all.push(begin..tasks.len());
    all
}

impl Part {
    fn load(&self, call: &Call<'_>) -> Result<SizedPart<'_>, ExecError> {
        let sizes = call.sizes;
        let points = sizes.eval(&self.points)?.max(0);
        let lanes = self.axis.as_ref().map(|e| sizes.eval(e)).transpose()?.unwrap_or(1).max(0);
        let mut cost = 0.0;
        for (inner, ns) in &self.costs {
            cost += sizes.eval(inner)?.max(1) as f64 * ns;
        }
        Ok(SizedPart { part: self, points, lanes, work: cost * points as f64 * lanes as f64 })
    }
}

impl SizedPart<'_> {
    fn whole(&self) -> i64 {
        self.part.tile.unwrap_or_else(|| round_up(self.lanes))
    }

    fn blocks(&self, block: i64) -> i64 {
        if self.part.axis.is_some() { (self.lanes + block - 1) / block } else { 1 }
    }

    /// Splits the part into tasks, `least` to `most` of them.
    fn tasks(&self, part: usize, least: i64, most: i64, tasks: &mut Vec<Task>) {
        if self.points == 0 || self.lanes == 0 {
            return;
        }
        let wanted = ((self.work / TASK) as i64).clamp(least, most);
        let block = if self.points >= wanted || self.part.axis.is_none() || self.part.tile.is_some() {
            self.whole()
        } else {
            let per_point = (wanted + self.points - 1) / self.points;
            round_up(self.lanes / per_point + 1)
        };
        let items = self.points * self.blocks(block);
        let count = team::even(wanted.min(items) as usize) as i64;
        let work = self.work / count.max(1) as f64;
        let task =
            |t: i64| Task { part, begin: items * t / count, end: items * (t + 1) / count, block, work };
        tasks.extend((0..count).map(task));
    }
}

/// The next multiple of [`GRAIN`].
fn round_up(points: i64) -> i64 {
    points.saturating_add(GRAIN - 1) / GRAIN * GRAIN
}
