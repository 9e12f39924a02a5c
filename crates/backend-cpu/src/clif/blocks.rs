//! Float sums in two levels: a lane's partial sum takes about [`BLOCK`] terms, and partial sums are added to a total with
//! compensation (the error of an addition is itself a float and is computed by six operations: Knuth, The Art of Computer
//! Programming, volume 2, 4.2.2, theorem B). The error of a sum is then that of its blocks, however long it is.
//!
//! Here: the loop of a stage that is split into blocks, and the total. Not here: the accumulators (`reduce`) and the loops
//! (`emit`).

use cranelift_codegen::ir::condcodes::FloatCC;
use cranelift_codegen::ir::{InstBuilder, Value};
use kernel_ir::{AccId, ScalarOp};

use super::emit::{Emit, reduced};
use super::values::{Class, Vals};

/// Additions into a partial sum of a lane. Opening and closing a block costs about ten operations for each register, a sixth
/// of the additions in it; a random walk of 64 roundings of half a unit ends at one or two units of the block's own sum.
const BLOCK: i64 = 64;

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
        let mut inside = 1i64;
        for (level, dim) in stage.loops.iter().enumerate().rev() {
            let lanes = if level + 1 == stage.loops.len() { i64::from(lanes) } else { 1 };
            let turns = dim.extent.as_const().map(|n| (n.max(1) + lanes - 1) / lanes);
            let terms = turns.map(|n| inside.saturating_mul(n)).filter(|n| *n <= 2 * BLOCK);
            let Some(terms) = terms else {
                return Some(SumBlocks { level, turns: (BLOCK / inside).max(1), accs });
            };
            inside = terms;
        }
        None
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
    pub(super) fn add_exactly(
        &mut self,
        class: Class,
        (total, lost): (&Vals, &Vals),
        x: &Vals,
    ) -> (Vals, Vals) {
        let dtype = class.float();
        let mut op = |op, x: &Vals, y: &Vals| self.op(op, dtype, &[x.clone(), y.clone()]);
        let sum = op(ScalarOp::Add, total, x);
        let taken = op(ScalarOp::Sub, &sum, total);
        let kept = op(ScalarOp::Sub, &sum, &taken);
        let of_total = op(ScalarOp::Sub, total, &kept);
        let of_x = op(ScalarOp::Sub, x, &taken);
        let error = op(ScalarOp::Add, &of_total, &of_x);
        (sum, op(ScalarOp::Add, lost, &error))
    }

    /// The total with its compensation. Where the sum is infinite, the error is not a number and the sum is used alone.
    pub(super) fn whole(&mut self, class: Class, total: &Vals, lost: &Vals) -> Vals {
        let sum = self.op(ScalarOp::Add, class.float(), &[total.clone(), lost.clone()]);
        let sum: Vec<(Value, Value)> = sum.into_iter().zip(lost.iter().copied()).collect();
        let pairs = sum.into_iter().zip(total.iter().copied());
        let mut r = self.regs();
        pairs
            .map(|((sum, lost), total)| {
                let number = r.fcmp(FloatCC::Equal, lost, lost);
                r.select(number, sum, total)
            })
            .collect()
    }
}
