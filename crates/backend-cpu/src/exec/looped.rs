//! Runs a generated loop kernel: how many outer points there are at the call's sizes, and how threads share them.

use ir_core::SymExpr;

use super::{Call, ExecError};
use crate::micro::team;
use crate::vir::VKernel;

/// Work of less than this is not shared, in nanoseconds.
const SHARE: f64 = 20_000.0;
/// Least work of a task, in nanoseconds.
const TASK: f64 = 8_000.0;
/// Axis blocks are multiples of this many points: every width divides it, and 64 bytes of any dtype.
const GRAIN: i64 = 64;
/// Axis points of a tile: the widest body. More lines at one power-of-two distance would not fit the ways of a cache set.
const TILE: i64 = 16;

/// A loop kernel's place in the code and what its sharing depends on.
pub(super) struct LoopOp {
    function: usize,
    points: SymExpr,
    axis: Option<SymExpr>,
    costs: Vec<(SymExpr, f64)>,
    serial: bool,
    tiled: bool,
}

impl LoopOp {
    pub(super) fn new(kernel: &VKernel, function: usize) -> LoopOp {
        let extents: Vec<SymExpr> = kernel.points.iter().map(|d| d.extent.clone()).collect();
        LoopOp {
            function,
            points: ir_core::numel(&extents),
            axis: kernel.outer_axis.as_ref().map(|d| d.extent.clone()),
            costs: kernel.costs.clone(),
            serial: kernel.serial,
            tiled: kernel.tiled,
        }
    }

    pub(super) fn run(&self, call: &Call<'_>) -> Result<(), ExecError> {
        let sizes = call.sizes;
        let points = sizes.eval(&self.points)?;
        let axis = self.axis.as_ref().map(|e| sizes.eval(e)).transpose()?;
        if points <= 0 || axis.is_some_and(|n| n <= 0) {
            return Ok(());
        }
        let mut cost = 0.0;
        for (inner, ns) in &self.costs {
            cost += sizes.eval(inner)?.max(1) as f64 * ns;
        }
        let lanes = axis.unwrap_or(1);
        let work = cost * points as f64 * lanes as f64;
        let threads = team::threads();
        let f = call.code.kernel(self.function);
        let (buffers, symbols) = (call.buffers.0.as_ptr(), sizes.0.as_ptr());
        let whole = if self.tiled { TILE } else { round_up(lanes) };
        let blocks = |block: i64| if axis.is_some() { (lanes + block - 1) / block } else { 1 };
        if self.serial || threads == 1 || work < SHARE {
            // SAFETY: the tables hold an entry for every buffer and symbol of the program the code was made from.
            unsafe { f(buffers, symbols, 0, points * blocks(whole), whole) };
            return Ok(());
        }
        let tasks = ((work / TASK) as i64).clamp(2, threads as i64 * 4);
        let block = if points >= tasks || axis.is_none() || self.tiled {
            whole
        } else {
            let per_point = (tasks + points - 1) / points;
            round_up(lanes / per_point + 1)
        };
        let items = points * blocks(block);
        let tasks = tasks.min(items);
        let (buffers, symbols) = (buffers as usize, symbols as usize);
        team::par_for(tasks as usize, &|t| {
            let t = t as i64;
            let (begin, end) = (items * t / tasks, items * (t + 1) / tasks);
            // SAFETY: as above; outer points are independent, so tasks may run at once.
            unsafe { f(buffers as *const *mut u8, symbols as *const i64, begin, end, block) };
        });
        Ok(())
    }
}

/// The next multiple of [`GRAIN`].
fn round_up(points: i64) -> i64 {
    points.saturating_add(GRAIN - 1) / GRAIN * GRAIN
}
