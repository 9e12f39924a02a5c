//! Columns: every row in turn moves as close as it may to the middle of its neighbours, in least squares.

/// Passes over all rows; the drawing is at rest after fewer.
const PASSES: usize = 24;

/// A link as the placement sees it: the other end, the offsets of both ends from the middles, and its pull.
pub(super) struct WeightedLink {
    /// The vertex at the other end.
    pub(super) other: usize,
    /// Where the link meets the other end, minus where it meets this one.
    pub(super) shift: f64,
    /// How strongly the link wants to be vertical.
    pub(super) weight: f64,
}

/// Middle of every vertex. `widths` include the gap to the next vertex; `up`/`down` are the links of each vertex.
pub(super) fn columns(
    rows: &[Vec<usize>],
    widths: &[f64],
    up: &[Vec<WeightedLink>],
    down: &[Vec<WeightedLink>],
) -> Vec<f64> {
    let mut x = vec![0.0; widths.len()];
    for row in rows {
        let total: f64 = row.iter().map(|&v| widths[v]).sum();
        let mut left = -total / 2.0;
        for &v in row {
            x[v] = left + widths[v] / 2.0;
            left += widths[v];
        }
    }
    for pass in 0..PASSES {
        for n in 0..rows.len() {
            let row = &rows[if pass % 2 == 0 { n } else { rows.len() - 1 - n }];
            // Both ways from the first pass on: looking one way only, a long graph drifts sideways block by block.
            place_row(row, widths, &mut x, &|v| up[v].iter().chain(&down[v]));
        }
    }
    x
}

/// Moves one row: the closest places to the wished ones that keep the order and the distances (pooled adjacent
/// violators: Barlow and others, "Statistical inference under order restrictions", 1972).
fn place_row<'a, I: Iterator<Item = &'a WeightedLink>>(
    row: &[usize],
    widths: &[f64],
    x: &mut [f64],
    pulls: &dyn Fn(usize) -> I,
) {
    // Blocks of vertices that touch: sum of weighted wishes, sum of weights, number of vertices.
    let mut blocks: Vec<(f64, f64, usize)> = Vec::with_capacity(row.len());
    let mut offsets = Vec::with_capacity(row.len());
    let mut offset = 0.0;
    for (n, &v) in row.iter().enumerate() {
        offset += if n > 0 { (widths[row[n - 1]] + widths[v]) / 2.0 } else { 0.0 };
        offsets.push(offset);
        let (mut wish, mut weight) = (0.0, 0.0);
        for pull in pulls(v) {
            wish += pull.weight * (x[pull.other] + pull.shift);
            weight += pull.weight;
        }
        // Who has no neighbour to follow stays, weakly.
        let (wish, weight) = if weight > 0.0 { (wish, weight) } else { (x[v] * 0.01, 0.01) };
        blocks.push((wish - weight * offset, weight, 1));
        while let [.., a, b] = blocks[..] {
            if a.0 / a.1 < b.0 / b.1 {
                break;
            }
            blocks.truncate(blocks.len() - 2);
            blocks.push((a.0 + b.0, a.1 + b.1, a.2 + b.2));
        }
    }
    let mut n = 0;
    for (wish, weight, count) in blocks {
        for _ in 0..count {
            x[row[n]] = wish / weight + offsets[n];
            n += 1;
        }
    }
}
