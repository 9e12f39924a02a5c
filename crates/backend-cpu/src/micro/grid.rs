//! How products are cut into tasks: blocks of rows and of panels that fit the caches, and enough of them for every thread. It knows the sizes of a
//! product; what a task does is `driver`'s.

use std::ops::Range;

use super::driver::{KC, Product, part};
use super::kernel::{MAX_MR, panel_width};

/// A block's slice of A (rows x KC values) should fill at most a third of a 1 MiB second-level cache.
const A_BLOCK: usize = 96 * 1024;
/// A block of C (values): it is added to once for each pass over k.
const C_BLOCK: usize = 64 * 1024;
/// Work of a task (multiply-adds) below which splitting further costs more than it balances; about 20 microseconds.
const MIN_TASK: usize = 1 << 20;

/// The number of blocks of rows and of panels of each product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grid {
    products: usize,
    row_blocks: usize,
    pub(super) panel_blocks: usize,
    /// Groups of row blocks, one for each thread, whose tasks follow each other.
    groups: usize,
}

impl Grid {
    /// Groups of rows for the threads, where it takes less time that each reads all of B than that each reads all of A and leaves columns of C to
    /// readers of rows: A and C are in the cache of the core that wrote them, from where another reads them at half of the speed of B.
    fn row_groups(count: usize, p: &Product<'_>, threads: usize) -> usize {
        let groups = threads.div_ceil(count);
        let rows = p.depth() * p.n < p.m * (2 * p.kc + p.n);
        if rows && groups <= p.tiles() { groups } else { 1 }
    }

    /// Rows of a block with all columns, where a hook takes more by pieces of rows than B takes to be packed for each block: it reads and
    /// stores its rows in memory, and the processor fetches ahead what follows in memory, not the next piece.
    fn whole_rows(p: &Product<'_>) -> Option<usize> {
        let rows = C_BLOCK / p.n;
        (p.epilogue.hook.is_some() && rows >= p.depth().max(2 * MAX_MR)).then_some(rows)
    }

    /// Blocks small enough for the caches, and enough of them for every thread; splits the side whose operand is the
    /// larger, so that the larger one is read by one thread only.
    pub(super) fn choose(count: usize, p: &Product<'_>, threads: usize) -> Grid {
        let (tiles, panels) = (p.tiles(), p.panels());
        let nr = panel_width(p.isa);
        let rows_max = (A_BLOCK / p.depth().clamp(1, KC)).max(2 * MAX_MR);
        let rows_max = Grid::whole_rows(p).map_or(rows_max, |rows| rows_max.min(rows));
        let groups = Grid::row_groups(count, p, threads);
        let row_blocks = p.m.div_ceil(rows_max).next_multiple_of(groups);
        let row_blocks = row_blocks.min(tiles / groups * groups);
        let mut grid = Grid { products: count, row_blocks, panel_blocks: 1, groups };
        let block_rows = p.m.div_ceil(grid.row_blocks);
        grid.panel_blocks = (block_rows * p.n).div_ceil(C_BLOCK).clamp(1, panels);
        let wanted = if threads == 1 { 1 } else { 4 * threads };
        while grid.tasks() < wanted {
            let (r, c) = (grid.row_blocks, grid.panel_blocks);
            let work = p.m.div_ceil(r) * p.n.div_ceil(c) * p.depth();
            let (can_rows, can_panels) = (2 * r <= tiles, 2 * c <= panels);
            let must = grid.tasks() < threads;
            if (!must && work < 2 * MIN_TASK) || !(can_rows || can_panels) {
                break;
            }
            // Each block of rows packs B again.
            let prefer_panels = p.source.is_some() || p.n.div_ceil(c).max(nr) >= p.m.div_ceil(r);
            if can_panels && (prefer_panels || !can_rows) {
                grid.panel_blocks = even_blocks(panels, 2 * c);
            } else {
                grid.row_blocks = 2 * r;
            }
        }
        grid.row_blocks = p.cut.rows(grid.row_blocks / groups, tiles / groups) * groups;
        grid.panel_blocks = p.cut.columns(grid.panel_blocks, panels);
        grid
    }

    pub(super) fn tasks(&self) -> usize {
        self.products * self.row_blocks * self.panel_blocks
    }

    /// Row blocks of a group vary fastest, so that neighbouring tasks share B.
    pub(super) fn task(&self, i: usize, p: &Product<'_>) -> (usize, Range<usize>, Range<usize>) {
        let group_rows = self.row_blocks / self.groups;
        let (row, rest) = (i % group_rows, i / group_rows);
        let (panel, rest) = (rest % self.panel_blocks, rest / self.panel_blocks);
        let (group, product) = (rest % self.groups, rest / self.groups);
        let row = group * group_rows + row;
        (
            product,
            p.rows_of(part(p.tiles(), self.row_blocks, row)),
            part(p.panels(), self.panel_blocks, panel),
        )
    }
}

/// The largest number of blocks `<= wanted` whose blocks of panels are equally long where that is near `wanted`.
fn even_blocks(panels: usize, wanted: usize) -> usize {
    (wanted.div_ceil(2) + 1..=wanted).rev().find(|b| panels.is_multiple_of(*b)).unwrap_or(wanted)
}
