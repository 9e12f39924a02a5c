//! Rows: every box gets a rank so that arrows point downwards; boxes without predecessor stand right above their user.

/// What a node of a flat layout is for the ranking.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RankRole {
    /// Ranked by the flow.
    Free,
    /// In the first row (where arrows enter a frame).
    Top,
    /// In the last row (where arrows leave a frame).
    Bottom,
}

/// Rank of every node. Edges that close a cycle are ignored.
pub(super) fn ranks(pins: &[RankRole], edges: &[(usize, usize)]) -> Vec<usize> {
    let count = pins.len();
    let mut next = vec![Vec::new(); count];
    for &(a, b) in edges {
        next[a].push(b);
    }
    let order = topological(&next);
    let mut place = vec![0; count];
    for (at, &n) in order.iter().enumerate() {
        place[n] = at;
    }
    let forward = |a: usize, b: usize| place[a] < place[b];
    let first = usize::from(pins.contains(&RankRole::Top));
    let mut rank: Vec<usize> = pins.iter().map(|&p| if p == RankRole::Top { 0 } else { first }).collect();
    let mut has_pred = vec![false; count];
    for &a in &order {
        for &b in next[a].iter().filter(|&&b| forward(a, b)) {
            rank[b] = rank[b].max(rank[a] + 1);
            has_pred[b] = true;
        }
    }
    // A source stands as low as its users allow: a weight next to its convolution.
    for &a in order.iter().rev().filter(|&&a| !has_pred[a] && pins[a] == RankRole::Free) {
        if let Some(lowest) = next[a].iter().filter(|&&b| forward(a, b)).map(|&b| rank[b]).min() {
            rank[a] = lowest - 1;
        }
    }
    let last = rank.iter().copied().max().unwrap_or(0);
    let above_last = pins.iter().zip(&rank).any(|(&p, &r)| p != RankRole::Bottom && r == last);
    for (r, _) in rank.iter_mut().zip(pins).filter(|(_, p)| **p == RankRole::Bottom) {
        *r = last + usize::from(above_last);
    }
    rank
}

/// Reverse postorder of a depth-first walk without recursion; an edge against it closes a cycle.
fn topological(next: &[Vec<usize>]) -> Vec<usize> {
    let mut state = vec![false; next.len()];
    let mut postorder = Vec::with_capacity(next.len());
    for root in (0..next.len()).rev() {
        if std::mem::replace(&mut state[root], true) {
            continue;
        }
        let mut stack = vec![(root, next[root].len())];
        while let Some((node, left)) = stack.last_mut() {
            if *left == 0 {
                postorder.push(*node);
                stack.pop();
                continue;
            }
            *left -= 1;
            let child = next[*node][*left];
            if !std::mem::replace(&mut state[child], true) {
                stack.push((child, next[child].len()));
            }
        }
    }
    postorder.reverse();
    postorder
}
