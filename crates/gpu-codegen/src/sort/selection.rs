//! The first few elements of each row, without sorting the rest: a wave keeps the best so far in order over its lanes. Elements that
//! precede the last of those wait in shared memory until there is one for each lane; then they are sorted by exchanges between lanes
//! and merged with the kept ones. Where rows are few and long, several waves of a block share one and join what they kept.
//!
//! Not here: how it is known that only the first are wanted (`first`), and the steps in the dialect (`Selection`).

use super::{SHARED, Sort};
use crate::loops::hint;
use crate::text::body::Uses;
use crate::text::template::{assemble, blocks_of, unravel, volume};
use crate::text::types::memory_type;
use crate::{ENTRY, GenError, Kernel, Launch, THREADS, Target};

/// The largest number of elements that are selected: four registers of a lane in waves of 32.
const MOST: i64 = 128;
/// Elements that a lane loads at once, while those before them are looked at.
const EACH: i64 = 4;
/// Waves per multiprocessor up to which the waves that share a row are doubled.
const FILLING: i64 = 16;
/// The largest block.
const MAX_THREADS: i64 = 1024;

/// The number of items that each lane keeps.
fn kept(count: i64, lanes: i64) -> i64 {
    (count.max(1) as u64).div_ceil(lanes as u64).next_power_of_two() as i64
}

/// The comparisons, one per item, of a bitonic network that sorts `n` items, a power of two.
fn network(n: i64) -> i64 {
    let passes = i64::from(n.ilog2());
    n * passes * (passes + 1) / 2
}

/// The comparisons of all lanes by which the first `count` of a row in random order are selected: one for each element, and for each
/// wave of elements that wait a sort and a merge with the kept ones. The `i`-th element precedes the `count`-th of those before it
/// with probability `count / i`, so that `count · (1 + ln(length / count))` elements wait. Rows in which every element precedes all
/// before it take as many merges as there are waves of elements.
fn selecting(length: i64, count: i64, lanes: i64) -> i64 {
    let (n, k) = (length.max(1) as f64, count.clamp(1, length.max(1)) as f64);
    let waiting = (k * (1.0 + (n / k).ln())) as i64;
    let items = kept(count, lanes) * lanes;
    let merge = network(lanes) + items * (1 + i64::from(items.ilog2()));
    length + (waiting / lanes + 1) * merge
}

/// Of so many times as many elements a selection is of few.
const FEW: i64 = 3;

impl Sort<'_> {
    /// The number of elements to select; `None` where there are too many, or whole rows are wanted.
    pub(super) fn selected(&self) -> Option<i64> {
        self.first.filter(|n| *n <= MOST)
    }

    /// Whether selecting is quicker than sorting the row: where few of its elements are wanted, or where it takes fewer comparisons than a
    /// network that sorts the row. In both kernels every lane compares in every step; merging pieces of a longer row takes no fewer
    /// comparisons than a network. Of eighteen shapes on an H200 (1 to 65,536 rows of 64 to 10⁶ elements of float32, 1 to 128 wanted)
    /// selecting took 0.04 to 0.76 of the time of the quickest sort, 0.34 where 20 of 64 were wanted, which comparisons alone do not say.
    pub(super) fn is_selected(&self, count: i64, target: &Target) -> bool {
        let length = hint(self.program, self.length);
        let sorting = network((length.max(2) as u64).next_power_of_two() as i64);
        count.saturating_mul(FEW) <= length || selecting(length, count, target.lanes()) < sorting
    }

    /// How many waves share a row: more where rows are too few to fill the device, as long as each has something to do and the block
    /// has room for what they keep.
    fn sharing(&self, count: i64, target: &Target) -> i64 {
        let (rows, length) = (hint(self.program, &volume(&self.others)), hint(self.program, self.length));
        let lanes = target.lanes();
        let room = kept(count, lanes).max(2) * lanes * self.item_bytes;
        let fits = |waves: i64| {
            waves * lanes <= MAX_THREADS && waves * room <= SHARED && waves * lanes * EACH <= length
        };
        let mut waves = 1;
        while rows.saturating_mul(waves) < FILLING * i64::from(target.multiprocessors) && fits(2 * waves) {
            waves *= 2;
        }
        waves
    }

    /// The kernel in which one wave or several select the first `count` of a row.
    pub(super) fn by_selection(&self, count: i64, target: &Target) -> Result<Kernel, GenError> {
        let mut uses = Uses::default();
        let (rows, until) = (self.counts(&mut uses).0, self.until(&mut uses));
        let parts = self.sharing(count, target);
        let look = self.look(parts, &mut uses)?;
        let (write, item) = (self.write(&mut uses), self.item);
        let waves = parts.max(i64::from(THREADS / target.wave));
        let together = waves / parts;
        // What the waves of a row join passes through shared memory, which the next row must leave alone until it was read.
        let (join, end) = match parts {
            1 => (String::new(), ""),
            _ => (format!("kept.template join<{parts}>(part);\n"), "block_sync();\n"),
        };
        let body = format!(
            "using Kept = Selection<{count}, {item}>;
__shared__ {item} rooms[{waves} * Kept::ROOM];
const int lane = threadIdx.x % WAVE, wave = threadIdx.x / WAVE, part = wave % {parts};
for (idx first = blockIdx.x * (idx){together}; first < {rows}; first += (idx)gridDim.x * {together}) {{
const idx row = first + wave / {parts};
Kept kept;
kept.begin(rooms + wave * Kept::ROOM);
if (row < {rows}) {{
{look}kept.end();
}}
{join}if (row < {rows} && part == 0) {{
#pragma unroll
for (int e = 0; e < Kept::EACH; ++e) {{
const idx at = e * WAVE + lane;
if (at < {until}) {{
const {item} item = kept.best[e];
{write}}}
}}
}}
{end}}}
"
        );
        let blocks = blocks_of(&volume(&self.others), together);
        let threads = waves * target.lanes();
        assemble(self.program, ENTRY, &uses, Launch::flat(blocks, threads as u32), &body)
    }

    /// Returns statements in which wave `part` of the `parts` of row `row` gives its elements to `kept`. It loads those that come next
    /// before it looks at its own.
    fn look(&self, parts: i64, uses: &mut Uses) -> Result<String, GenError> {
        let length = self.counts(uses).1;
        let rows = unravel(&self.writer(), &self.others, 0, "row", uses);
        let x = self.at(self.input, "at", uses);
        let element = memory_type(self.program.buffers[self.input.buf].dtype)?;
        let (item, descending) = (self.item, self.descending);
        Ok(format!(
            "{rows}auto read = [&](idx at) {{
{element} x = {{}};
if (at < {length}) x = {x};
return x;
}};
{element} next[{EACH}];
#pragma unroll
for (int e = 0; e < {EACH}; ++e) next[e] = read((part * {EACH} + e) * WAVE + lane);
for (idx start = part * {EACH} * WAVE; start < {length}; start += {parts} * {EACH} * WAVE) {{
{element} own[{EACH}];
#pragma unroll
for (int e = 0; e < {EACH}; ++e) {{
own[e] = next[e];
next[e] = read(start + ({parts} * {EACH} + e) * WAVE + lane);
}}
#pragma unroll
for (int e = 0; e < {EACH}; ++e) {{
const idx at = start + e * WAVE + lane;
{item} item;
last_item(item);
if (at < {length}) item = sort_item<{descending}, {item}>(own[e], (u32)at);
kept.give(item);
}}
}}
"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Few elements of long rows are selected; short rows are sorted, and so is what would be most of a row.
    #[test]
    fn comparisons_decide() {
        let selects = |length: i64, count, lanes| {
            selecting(length, count, lanes) < network((length as u64).next_power_of_two() as i64)
        };
        for lanes in [32, 64] {
            assert!(selects(1024, 20, lanes) && selects(50_257, 1, lanes) && selects(50_257, 128, lanes));
            assert!(!selects(32, 1, lanes) && !selects(64, 20, lanes));
        }
        assert!(selects(128, 20, 32) && !selects(128, 100, 32));
    }

    #[test]
    fn lanes_keep_powers_of_two() {
        let counts = [1, 32, 33, 65, 100, 128];
        assert_eq!(counts.map(|n| kept(n, 32)), [1, 1, 2, 4, 4, 4]);
        assert_eq!(counts.map(|n| kept(n, 64)), [1, 1, 1, 2, 2, 2]);
    }
}
