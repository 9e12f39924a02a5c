//! Float sums in two levels: a lane's partial sum takes some tens of terms ([`crate::vir::sum_blocks`]), and partial sums are
//! added to a total with compensation ([`crate::math::Sums`]). The error of a sum is then that of its blocks, however long it is.
//!
//! Here: the loop of a stage that is split into blocks, and the total. Not here: the accumulators (`reduce`) and the loops
//! (`emit`).

use cranelift_codegen::ir::{InstBuilder, Value};
use kernel_ir::AccId;

use super::emit::{Emit, reduced};
use super::values::Vals;
use crate::math::Sums;

/// The blocks of a stage's sums.
pub(super) struct SumBlocks {
    /// Number of the loop, outermost first, that runs in blocks.
    pub(super) level: usize,
    /// Iterations of that loop per block.
    pub(super) turns: i64,
    /// The sums.
    pub(super) accs: Vec<AccId>,
}

impl<'f, 'k> Emit<'f, 'k> {
    /// The innermost loop of the present stage that, with those inside it, adds more than two blocks' terms to a lane;
    /// unknown sizes count as long. `None` where no float sum is that long.
    pub(super) fn cut_of_stage(&mut self) -> Option<SumBlocks> {
        let stage = self.present_stage()?;
        let wanted = |a: &AccId| {
            let decl = &self.kernel.accs[a.0 as usize];
            crate::vir::wants_blocks(decl.op, decl.dtype)
        };
        let accs: Vec<AccId> = reduced(stage).into_iter().filter(wanted).collect();
        if accs.is_empty() {
            return None;
        }
        let lanes = if self.axis_is_inner() && stage.vector { self.stage_lanes() } else { 1 };
        let (level, turns) = crate::vir::sum_blocks(&stage.loops, i64::from(lanes))?;
        Some(SumBlocks { level, turns, accs })
    }

    /// `for i in (lo..hi).step_by(step)` as loop `level` of the present stage, in blocks if that is the loop to split.
    pub(super) fn cut_loop(
        &mut self,
        (lo, hi, step): (Value, Value, i64),
        level: usize,
        body: &mut dyn FnMut(&mut Emit<'f, 'k>, Value),
    ) {
        let Some(cut) = self.cut_of_stage().filter(|c| c.level == level) else {
            return self.counted(lo, hi, step, body);
        };
        self.counted(lo, hi, step * cut.turns, &mut |e, first| {
            e.each_partial(&cut, Emit::open_block);
            let last = e.b.ins().iadd_imm_s(first, step * cut.turns);
            let last = e.b.ins().smin(last, hi);
            e.counted(first, last, step, body);
            e.each_partial(&cut, Emit::close_block);
        });
    }

    /// The partial sums that a block fills: of the present width where the innermost loop is cut, of all widths where that
    /// loop runs several times within the block.
    pub(super) fn each_partial(&mut self, cut: &SumBlocks, f: fn(&mut Self, AccId)) {
        let innermost = self.present_stage().is_some_and(|s| cut.level + 1 == s.loops.len());
        for acc in &cut.accs {
            let widths = if innermost { vec![self.width] } else { self.acc_widths(*acc) };
            for width in widths {
                let saved = std::mem::replace(&mut self.width, width);
                f(self, *acc);
                self.width = saved;
            }
        }
    }

    /// `total + x`, and `lost` with the rounding error.
    pub(super) fn add_exactly(&mut self, (total, lost): (&Vals, &Vals), x: &Vals) -> (Vals, Vals) {
        let mut r = self.regs();
        (0..x.len()).map(|n| r.add_exactly(total[n], lost[n], x[n])).unzip()
    }

    /// The total with its compensation.
    pub(super) fn whole(&mut self, total: &Vals, lost: &Vals) -> Vals {
        let mut r = self.regs();
        total.iter().zip(lost).map(|(total, lost)| r.whole(*total, *lost)).collect()
    }
}
