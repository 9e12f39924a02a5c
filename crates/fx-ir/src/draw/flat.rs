//! Layout of boxes without frames: ranks, then order, then columns; long arrows get a bend in every row they cross, and
//! arrows from one place share their trunk. Of very long ones only the ends are drawn.

use rustc_hash::FxHashMap;

use super::order::Rows;
use super::place::{WeightedLink, columns};
use super::rank::{RankRole, ranks};

/// Space between boxes of a row.
const GAP_X: f64 = 18.0;
/// Space between rows; grows with the arrows that bend there.
const GAP_Y: f64 = 34.0;
/// Width of a passing arrow.
const LANE: f64 = 4.0;

/// The most rows that an arrow crosses: what a forward pass saves for its backward would cross thousands, and no eye follows that.
const LONGEST: usize = 40;
/// Height of the ends of an arrow that crosses more.
const STUB: f64 = 16.0;

/// A point, x to the right and y downwards.
pub(super) type Point = (f64, f64);

/// A box to place.
#[derive(Clone, Copy)]
pub(super) struct Item {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) pin: RankRole,
    /// How strongly its arrows want to be vertical; small boxes yield.
    pub(super) weight: f64,
}

/// An arrow; `from_dx` and `to_dx` say where it meets the box, from the middle, where that is fixed.
#[derive(Clone, Copy)]
pub(super) struct Link {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) from_dx: Option<f64>,
    pub(super) to_dx: Option<f64>,
}

/// Centres of the boxes, the ways of the arrows, and the overall extent.
pub(super) struct Placed {
    pub(super) middles: Vec<Point>,
    /// The pieces of each: one, or the two ends of a long one.
    pub(super) routes: Vec<Vec<Vec<Point>>>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// Boxes and bends in rows.
struct Grid {
    rows: Rows,
    rank: Vec<usize>,
    /// For each link, its vertices from the upper to the lower end; of a long one these ends alone.
    chains: Vec<Vec<usize>>,
}

impl Grid {
    /// The pairs of vertices that a link joins from one row to the next.
    fn joined<'a>(&'a self, chain: &'a [usize]) -> impl Iterator<Item = (usize, usize)> + 'a {
        let next = |p: &&[usize]| self.rank[p[0]] + 1 == self.rank[p[1]];
        chain.windows(2).filter(next).map(|p| (p[0], p[1]))
    }

    /// Whether only the ends of a link are drawn.
    fn is_long(&self, chain: &[usize]) -> bool {
        matches!(chain, [top, bottom] if self.rank[*bottom] > self.rank[*top] + 1)
    }
}

/// Places the boxes; the upper left corner of everything is (0, 0).
pub(super) fn place(items: &[Item], links: &[Link]) -> Placed {
    let mut grid = rows(items, links);
    grid.rows.reduce_crossings();
    let x = middles_x(items, links, &grid);
    finish(items, links, &grid, &x)
}

fn rows(items: &[Item], links: &[Link]) -> Grid {
    let pins: Vec<RankRole> = items.iter().map(|i| i.pin).collect();
    let pairs: Vec<(usize, usize)> = links.iter().map(|l| (l.from, l.to)).collect();
    let mut rank = ranks(&pins, &pairs);
    let mut up = vec![Vec::new(); items.len()];
    let mut down = vec![Vec::new(); items.len()];
    let mut trunks: FxHashMap<(usize, u64, usize), usize> = FxHashMap::default();
    let mut chains = Vec::with_capacity(links.len());
    for link in links {
        // An arrow that closes a cycle is laid out from its lower rank and drawn upwards.
        let (top, bottom) =
            if rank[link.from] <= rank[link.to] { (link.from, link.to) } else { (link.to, link.from) };
        let port = if top == link.from { link.from_dx } else { link.to_dx };
        let mut chain = vec![top];
        let crossed = if rank[bottom] - rank[top] > LONGEST { 0..0 } else { rank[top] + 1..rank[bottom] };
        for r in crossed {
            let key = (top, port.unwrap_or(0.0).to_bits(), r);
            let bend = *trunks.entry(key).or_insert_with(|| {
                rank.push(r);
                up.push(Vec::new());
                down.push(Vec::new());
                rank.len() - 1
            });
            chain.push(bend);
        }
        chain.push(bottom);
        chains.push(chain);
    }
    let mut rows = vec![Vec::new(); rank.iter().max().map_or(0, |m| m + 1)];
    rank.iter().enumerate().for_each(|(v, &r)| rows[r].push(v));
    let mut grid = Grid { rows: Rows { rows, up: Vec::new(), down: Vec::new() }, rank, chains };
    for (a, b) in grid.chains.iter().flat_map(|chain| grid.joined(chain)) {
        if !down[a].contains(&b) {
            down[a].push(b);
            up[b].push(a);
        }
    }
    (grid.rows.up, grid.rows.down) = (up, down);
    grid
}

fn middles_x(items: &[Item], links: &[Link], grid: &Grid) -> Vec<f64> {
    let width = |v: usize| items.get(v).map_or(LANE, |i| i.width) + GAP_X;
    let widths: Vec<f64> = (0..grid.rank.len()).map(width).collect();
    let mut up: Vec<Vec<WeightedLink>> = (0..widths.len()).map(|_| Vec::new()).collect();
    let mut down: Vec<Vec<WeightedLink>> = (0..widths.len()).map(|_| Vec::new()).collect();
    for (link, chain) in links.iter().zip(&grid.chains) {
        let fixed = |v: usize| match v {
            v if v == link.from => link.from_dx.unwrap_or(0.0),
            v if v == link.to => link.to_dx.unwrap_or(0.0),
            _ => 0.0,
        };
        for (a, b) in grid.joined(chain) {
            let bends = [a, b].iter().filter(|&&v| v >= items.len()).count();
            // Long arrows should be straight first (Gansner and others, "A technique for drawing directed graphs",
            // 1993, weigh 1, 2 and 8); a bend that only passes a weight on gives way like the weight.
            let weight = items[link.from].weight * [1.0, 2.0, 8.0][bends];
            let shift = fixed(a) - fixed(b);
            // A small box follows its user, and moves it hardly at all.
            let passive = if items[link.from].weight < 0.1 { 0.01 } else { 1.0 };
            up[b].push(WeightedLink { other: a, shift, weight: weight * passive });
            down[a].push(WeightedLink { other: b, shift: -shift, weight });
        }
    }
    columns(&grid.rows.rows, &widths, &up, &down)
}

fn finish(items: &[Item], links: &[Link], grid: &Grid, x: &[f64]) -> Placed {
    let half = |v: usize| items.get(v).map_or(0.0, |i| i.width / 2.0);
    let left = (0..x.len()).map(|v| x[v] - half(v)).fold(f64::INFINITY, f64::min);
    let right = (0..x.len()).map(|v| x[v] + half(v)).fold(f64::NEG_INFINITY, f64::max);
    let left = if left.is_finite() { left } else { 0.0 };
    let mut bands: Vec<(f64, f64)> = Vec::with_capacity(grid.rows.rows.len());
    let mut y = 0.0;
    for row in &grid.rows.rows {
        let height = row.iter().filter_map(|&v| items.get(v)).map(|i| i.height).fold(0.0, f64::max);
        let spread = row.iter().flat_map(|&v| grid.rows.down[v].iter().map(move |&w| (x[v] - x[w]).abs()));
        bands.push((y, y + height));
        // A wide bend needs height, or it looks like a line.
        y += height + (GAP_Y + spread.fold(0.0, f64::max) * 0.06).min(3.0 * GAP_Y);
    }
    let middle = |v: usize| (x[v] - left, (bands[grid.rank[v]].0 + bands[grid.rank[v]].1) / 2.0);
    let routes = route(items, links, grid, &bands, &middle);
    let height = bands.last().map_or(0.0, |b| b.1);
    let width = if right.is_finite() { right - left } else { 0.0 };
    Placed { middles: (0..items.len()).map(middle).collect(), routes, width, height }
}

/// The pieces of every arrow: bottom of the upper box, through each bend's row, top of the lower box.
fn route(
    items: &[Item],
    links: &[Link],
    grid: &Grid,
    bands: &[(f64, f64)],
    middle: &dyn Fn(usize) -> Point,
) -> Vec<Vec<Vec<Point>>> {
    let ports = spread_ports(items, links, grid, middle);
    let mut routes = Vec::with_capacity(links.len());
    for ((link, chain), to_dx) in links.iter().zip(&grid.chains).zip(ports) {
        let dx = |v: usize| if v == link.from { link.from_dx.unwrap_or(0.0) } else { to_dx };
        let mut points = Vec::with_capacity(chain.len() * 2);
        for (n, &v) in chain.iter().enumerate() {
            let ((x, y), (top, bottom)) = (middle(v), bands[grid.rank[v]]);
            match items.get(v) {
                // Straight down to the end of the row first, or the bend would cut a taller neighbour.
                Some(item) if n == 0 => {
                    points.push((x + dx(v), y + item.height / 2.0));
                    points.extend((bottom - y > item.height / 2.0 + 1.0).then_some((x + dx(v), bottom)));
                }
                Some(item) => {
                    points.extend((y - top > item.height / 2.0 + 1.0).then_some((x + dx(v), top)));
                    points.push((x + dx(v), y - item.height / 2.0));
                }
                None if bottom > top => points.extend([(x, top), (x, bottom)]),
                None => points.push((x, top)),
            }
        }
        let mut pieces = match (grid.is_long(chain), &points[..]) {
            (true, [first, .., last]) => {
                vec![vec![*first, (first.0, first.1 + STUB)], vec![(last.0, last.1 - STUB), *last]]
            }
            _ => vec![points],
        };
        if chain.first() != Some(&link.from) {
            pieces.reverse();
            pieces.iter_mut().for_each(|piece| piece.reverse());
        }
        routes.push(pieces);
    }
    routes
}

/// Where each arrow meets its lower box: side by side in the order in which they come.
fn spread_ports(items: &[Item], links: &[Link], grid: &Grid, middle: &dyn Fn(usize) -> Point) -> Vec<f64> {
    let mut incoming: FxHashMap<usize, Vec<(f64, usize)>> = FxHashMap::default();
    for (n, (link, chain)) in links.iter().zip(&grid.chains).enumerate() {
        if let (None, [.., before, _]) = (link.to_dx, &chain[..]) {
            incoming.entry(link.to).or_default().push((middle(*before).0, n));
        }
    }
    let mut ports: Vec<f64> = links.iter().map(|l| l.to_dx.unwrap_or(0.0)).collect();
    for (node, mut arrows) in incoming {
        arrows.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let step = (items[node].width * 0.7 / arrows.len() as f64).min(16.0);
        let middle = (arrows.len() - 1) as f64 / 2.0;
        for (n, (_, link)) in arrows.into_iter().enumerate() {
            ports[link] = (n as f64 - middle) * step;
        }
    }
    ports
}
