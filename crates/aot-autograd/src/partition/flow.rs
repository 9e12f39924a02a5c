//! Maximum flow through a network by Dinic's method, and the minimum cut nearest to the sink. It knows no graphs of
//! operators.

use std::collections::VecDeque;

/// More than any finite capacity; sums of a few do not overflow.
pub(super) const INFINITE: i64 = i64::MAX / 8;

/// A directed network. Vertex 0 is the source, vertex 1 the sink.
pub(super) struct Network {
    /// The target and residual capacity of each edge; edge `e ^ 1` is its reverse.
    edges: Vec<(usize, i64)>,
    /// Edges out of each vertex.
    out: Vec<Vec<usize>>,
}

pub(super) const SOURCE: usize = 0;
pub(super) const SINK: usize = 1;

impl Network {
    /// A network of this many vertices, source and sink among them.
    pub(super) fn new(vertices: usize) -> Network {
        Network { edges: Vec::new(), out: vec![Vec::new(); vertices.max(2)] }
    }

    /// An edge with a capacity.
    pub(super) fn edge(&mut self, from: usize, to: usize, capacity: i64) {
        self.out[from].push(self.edges.len());
        self.edges.push((to, capacity));
        self.out[to].push(self.edges.len());
        self.edges.push((from, 0));
    }

    /// Sends as much flow as possible from source to sink; at least [`INFINITE`] if no finite cut separates them.
    pub(super) fn max_flow(&mut self) -> i64 {
        let mut total = 0i64;
        while let Some(level) = self.levels() {
            let mut next = vec![0; self.out.len()];
            loop {
                let sent = self.augment(&level, &mut next);
                if sent == 0 {
                    break;
                }
                total = total.saturating_add(sent);
                if total >= INFINITE {
                    return total;
                }
            }
        }
        total
    }

    /// Distance of every vertex from the source over edges with residual capacity; `None` if the sink is unreachable.
    fn levels(&self) -> Option<Vec<u32>> {
        let mut level = vec![u32::MAX; self.out.len()];
        level[SOURCE] = 0;
        let mut queue = VecDeque::from([SOURCE]);
        while let Some(at) = queue.pop_front() {
            for &e in &self.out[at] {
                let (to, left) = self.edges[e];
                if left > 0 && level[to] == u32::MAX {
                    level[to] = level[at] + 1;
                    queue.push_back(to);
                }
            }
        }
        (level[SINK] != u32::MAX).then_some(level)
    }

    /// One path to the sink along rising levels; returns the flow sent over it. The stack is explicit: paths are as long as
    /// the graph is deep.
    fn augment(&mut self, level: &[u32], next: &mut [usize]) -> i64 {
        let mut path: Vec<usize> = Vec::new();
        let mut at = SOURCE;
        while at != SINK {
            let step = self.out[at][next[at]..].iter().position(|&e| {
                let (to, left) = self.edges[e];
                left > 0 && level[to] == level[at] + 1
            });
            match step {
                Some(skip) => {
                    next[at] += skip;
                    let e = self.out[at][next[at]];
                    path.push(e);
                    at = self.edges[e].0;
                }
                None => {
                    // A dead end for this phase: step back past the edge that led here.
                    next[at] = self.out[at].len();
                    let Some(e) = path.pop() else { return 0 };
                    at = self.edges[e ^ 1].0;
                    next[at] += 1;
                }
            }
        }
        let sent = path.iter().map(|&e| self.edges[e].1).min().unwrap_or(0);
        for &e in &path {
            self.edges[e].1 -= sent;
            self.edges[e ^ 1].1 = self.edges[e ^ 1].1.saturating_add(sent);
        }
        sent
    }

    /// After [`max_flow`](Network::max_flow): whether each vertex lies on the sink's side of the minimum cut that has
    /// the fewest vertices there.
    pub(super) fn sink_side(&self) -> Vec<bool> {
        let mut side = vec![false; self.out.len()];
        side[SINK] = true;
        let mut stack = vec![SINK];
        while let Some(at) = stack.pop() {
            for &e in &self.out[at] {
                let from = self.edges[e].0;
                // The edge from `from` to here has residual capacity.
                if self.edges[e ^ 1].1 > 0 && !side[from] {
                    side[from] = true;
                    stack.push(from);
                }
            }
        }
        side
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The least cut over all ways to part the vertices.
    fn brute_force(n: usize, edges: &[(usize, usize, i64)]) -> i64 {
        let cut = |sides: u32| {
            let on = |v: usize| sides >> v & 1 == 1;
            edges.iter().filter(|(a, b, _)| on(*a) && !on(*b)).map(|e| e.2).sum()
        };
        (0..1u32 << n).filter(|s| s & 1 == 1 && s & 2 == 0).map(cut).min().unwrap_or(0)
    }

    #[test]
    fn flow_is_the_least_cut() {
        let mut state = 7u64;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        for _ in 0..300 {
            let n = 2 + below(7);
            let edges: Vec<(usize, usize, i64)> = (0..below(20))
                .map(|_| (below(n), below(n), below(9) as i64))
                .filter(|e| e.0 != e.1)
                .collect();
            let mut network = Network::new(n);
            edges.iter().for_each(|&(a, b, c)| network.edge(a, b, c));
            let flow = network.max_flow();
            assert_eq!(flow, brute_force(n, &edges), "{n} {edges:?}");
            let side = network.sink_side();
            let cut: i64 = edges.iter().filter(|(a, b, _)| !side[*a] && side[*b]).map(|e| e.2).sum();
            assert_eq!(flow, cut, "{n} {edges:?}");
        }
    }

    #[test]
    fn the_cut_lies_near_the_sink() {
        let mut network = Network::new(4);
        network.edge(SOURCE, 2, 5);
        network.edge(2, 3, 5);
        network.edge(3, SINK, 5);
        assert_eq!(network.max_flow(), 5);
        assert_eq!(network.sink_side(), [false, true, false, false]);
    }

    #[test]
    fn what_cannot_be_parted_is_infinite() {
        let mut network = Network::new(3);
        network.edge(SOURCE, 2, INFINITE);
        network.edge(2, SINK, INFINITE);
        assert!(network.max_flow() >= INFINITE);
    }
}
