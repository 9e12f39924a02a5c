//! Long rows of attention by `wgmma` (`dialect/common/flash_sections.cu`): how a result's columns are shared among blocks and
//! warpgroups. Not here: the kernel's text, which is that of shorter rows (`tma`) but for what is asked here.

use kernel_ir::Attention;

use crate::Target;
use crate::attention::tma::{LINE, TileShape, TmaAttention, padded};
use crate::text::template::volume;

/// The longest rows. The block's 64 queries and two stages of the ring still fit in shared memory.
pub(crate) const MAX_WIDTH: i64 = 1024;
/// Warpgroups that multiply.
pub(crate) const CONSUMERS: i64 = 2;
/// Keys of a tile whose scores a warpgroup computes.
pub(crate) const HALF: i64 = 64;
/// Queries of a block.
const ROWS: i64 = 64;
/// Panels of columns that a warpgroup has registers for.
const MAX_PANELS: i64 = 4;
/// Bytes of a stage of the ring: two panels of all keys of a tile.
const STAGE: i64 = 2 * CONSUMERS * HALF * 2 * LINE as i64;
/// Bytes that two warpgroups exchange: weights, and two numbers of each row.
const EXCHANGE: i64 = CONSUMERS * ROWS * (HALF * 2 + 2 * 4);
/// Stages of the ring, of which not all are needed.
const STAGES: std::ops::RangeInclusive<i64> = 2..=4;
/// Candidates that are generated.
const CHOICES: usize = 3;

/// A result's columns in `count` sections, each computed by a block, whose warpgroups have `panels` panels each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sections {
    pub(crate) count: i64,
    pub(crate) panels: i64,
    stages: i64,
}

impl Sections {
    /// The candidates, best first by the time in which a multiprocessor computes what falls to it: every block computes all scores
    /// of its rows, and its own columns.
    pub(crate) fn choices(tma: &TmaAttention<'_>, k: &Attention, target: &Target) -> Vec<Sections> {
        let line = i64::from(LINE);
        let all = (tma.width + line - 1) / line;
        let room = |stages: &i64| Sections { count: 1, panels: 1, stages: *stages }.shared(tma.depth);
        let Some(stages) = STAGES.rev().find(|stages| room(stages) <= i64::from(target.lds)) else {
            return Vec::new();
        };
        let rows = k.q.sizes[2].as_const().unwrap_or(4096);
        let tiles = (rows + ROWS - 1) / ROWS * volume(&k.q.sizes[..2]).as_const().unwrap_or(32);
        let multiprocessors = i64::from(target.multiprocessors).max(1);
        let time = |s: &Sections| {
            let rounds = (tiles * s.count + multiprocessors - 1) / multiprocessors;
            rounds * (tma.depth + s.columns())
        };
        let mut choices: Vec<Sections> = (1..=MAX_PANELS.min((all + 1) / 2))
            .rev()
            .map(|panels| Sections { count: (all + 2 * panels - 1) / (2 * panels), panels, stages })
            .collect();
        // Of as many sections those of the fewest panels.
        choices.dedup_by(|fewer, more| {
            let same = fewer.count == more.count;
            if same {
                *more = *fewer;
            }
            same
        });
        choices.sort_by_key(time);
        choices.truncate(CHOICES);
        choices
    }

    pub(crate) fn name(&self) -> String {
        format!("wgmma_{ROWS}x{}_of_{}", CONSUMERS * HALF, self.columns())
    }

    /// Columns of a section.
    fn columns(&self) -> i64 {
        CONSUMERS * self.panels * i64::from(LINE)
    }

    pub(crate) fn shape(&self) -> TileShape {
        TileShape { own: ROWS, far: CONSUMERS * HALF, stages: self.stages }
    }

    /// Bytes of shared memory.
    pub(crate) fn shared(&self, depth: i64) -> i64 {
        self.shape().shared(ROWS * 2 * padded(depth) + EXCHANGE, STAGE, 0)
    }

    /// The first column of the block's section, as text.
    pub(crate) fn first_column(&self) -> String {
        if self.count == 1 { "0".into() } else { format!("section * {}", self.columns()) }
    }

    /// A condition, appended to others, that one warpgroup of all that compute a row meets.
    pub(crate) fn is_first_text(&self) -> &'static str {
        if self.count == 1 { " && half == 0" } else { " && half == 0 && section == 0" }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failing test may panic

    use super::*;
    use crate::attention::variants;

    /// The names of the kernels by TMA for `heads` of `rows` queries and keys, best first.
    fn names(heads: i64, rows: i64, [depth, width]: [i64; 2]) -> Vec<String> {
        let tensor = |n: i64| {
            let all = [heads * rows * n, rows * n, n, 1].map(|s| s.to_string()).join(", ");
            format!("bf16[1, {heads}, {rows}, {n}]{{{all}}}+0")
        };
        let operand = |b: &str, n: i64| tensor(n).replacen("bf16", b, 1);
        let text = format!(
            "kir 1.0
program \"a\"
buffer b0 \"q\" {} input 0
buffer b1 \"k\" {} input 1
buffer b2 \"v\" {wide} input 2
buffer b3 \"y\" {wide} output
input \"q\" b0
input \"k\" b1
input \"v\" b2
output \"y\" {}
init:
steps:
attention \"a\" acc f32 scale 0.125
  q {}
  k {}
  v {}
  epilogue [1, {heads}, {rows}, {width}]
    v0: f32 = template
    v1: bf16 = cast v0
    v2: bf16 = store b3[i0, i1, i2, i3], v1
plan:
",
            tensor(depth),
            tensor(depth),
            operand("b3", width),
            operand("b0", depth),
            operand("b1", depth),
            operand("b2", width),
            wide = tensor(width),
        );
        let program: kernel_ir::Program = text.parse().unwrap();
        let kernel_ir::Step::Attention(k) = &program.steps[0] else { unreachable!() };
        let all = variants(&program, k, &Target::HOPPER).unwrap();
        all.into_iter().map(|v| v.name).filter(|name| name.starts_with("wgmma")).collect()
    }

    #[test]
    fn sections_fill_the_device() {
        // Two rounds of blocks would take longer than one of blocks with all columns.
        let [whole, half, quarter] = [512, 256, 128].map(|n| format!("wgmma_64x128_of_{n}"));
        assert_eq!(names(2, 2304, [512, 512])[0], whole);
        assert_eq!(names(1, 16384, [512, 512])[0], whole);
        assert_eq!(names(1, 2304, [512, 512])[0], half);
        assert_eq!(names(1, 512, [512, 512])[0], quarter);
        // No section is wider than the registers of two warpgroups.
        assert!(!names(8, 2304, [1024, 1024]).is_empty());
        assert!(names(8, 2304, [1024, 1024]).iter().all(|name| *name != "wgmma_64x128_of_1024"));
        assert_eq!(names(8, 2304, [1032, 64]), Vec::<String>::new());
    }
}
