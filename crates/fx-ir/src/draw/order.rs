//! Order within the rows: barycenter sweeps down and up, the order with the fewest crossings wins.

/// Sweeps over all rows; more change little.
const SWEEPS: usize = 12;

/// Rows of vertices and the links between neighbouring rows.
pub(super) struct Rows {
    /// Vertices of each row, left to right.
    pub(super) rows: Vec<Vec<usize>>,
    /// For every vertex its neighbours one row up.
    pub(super) up: Vec<Vec<usize>>,
    /// For every vertex its neighbours one row down.
    pub(super) down: Vec<Vec<usize>>,
}

impl Rows {
    /// Reorders every row against crossings.
    pub(super) fn reduce_crossings(&mut self) {
        let mut at = vec![0.0; self.up.len()];
        self.note(&mut at);
        let mut best = (self.crossings(&at), self.rows.clone());
        for sweep in 0..SWEEPS {
            if best.0 == 0 {
                break;
            }
            let downwards = sweep % 2 == 0;
            for n in 0..self.rows.len() {
                let row = if downwards { n } else { self.rows.len() - 1 - n };
                let links = if downwards { &self.up } else { &self.down };
                sort_row(&mut self.rows[row], links, &mut at);
            }
            let crossings = self.crossings(&at);
            if crossings < best.0 {
                best = (crossings, self.rows.clone());
            }
        }
        self.rows = best.1;
    }

    fn note(&self, at: &mut [f64]) {
        for row in &self.rows {
            row.iter().enumerate().for_each(|(n, &v)| at[v] = n as f64);
        }
    }

    /// Crossings of all links: inversions between the ends in neighbouring rows.
    fn crossings(&self, at: &[f64]) -> usize {
        let mut total = 0;
        for row in &self.rows {
            let mut ends: Vec<usize> = Vec::new();
            for &v in row {
                let mut below: Vec<usize> = self.down[v].iter().map(|&w| at[w] as usize).collect();
                below.sort_unstable();
                ends.extend(below);
            }
            total += inversions(&ends);
        }
        total
    }
}

/// Sorts a row by the mean place of each vertex's neighbours; one without any keeps its place.
fn sort_row(row: &mut [usize], links: &[Vec<usize>], at: &mut [f64]) {
    let key = |v: usize| match links[v].len() {
        0 => at[v],
        n => links[v].iter().map(|&w| at[w]).sum::<f64>() / n as f64,
    };
    let mut keyed: Vec<(f64, usize)> = row.iter().map(|&v| (key(v), v)).collect();
    keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (n, (_, v)) in keyed.into_iter().enumerate() {
        row[n] = v;
        at[v] = n as f64;
    }
}

/// Pairs in the wrong order, by a Fenwick tree: O(n log n).
fn inversions(ends: &[usize]) -> usize {
    let size = ends.iter().max().map_or(0, |m| m + 1);
    let mut tree = vec![0usize; size + 1];
    let mut total = 0;
    for (seen, &end) in ends.iter().enumerate() {
        let (mut not_above, mut i) = (0, end + 1);
        while i > 0 {
            not_above += tree[i];
            i -= i & i.wrapping_neg();
        }
        total += seen - not_above;
        let mut i = end + 1;
        while i <= size {
            tree[i] += 1;
            i += i & i.wrapping_neg();
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inversions_are_counted() {
        assert_eq!(inversions(&[0, 1, 2]), 0);
        assert_eq!(inversions(&[2, 1, 0]), 3);
        assert_eq!(inversions(&[1, 1, 0]), 2);
    }

    #[test]
    fn the_crossing_of_two_links_is_removed() {
        let mut rows = Rows {
            rows: vec![vec![0, 1], vec![2, 3]],
            up: vec![vec![], vec![], vec![1], vec![0]],
            down: vec![vec![3], vec![2], vec![], vec![]],
        };
        rows.reduce_crossings();
        assert_eq!(rows.rows, [vec![0, 1], vec![3, 2]]);
    }
}
