//! Frames: each is laid out on its own, innermost first, and is then a box of the frame around it. An arrow that leaves
//! a frame does so through a port in its last row, and enters one through a port in its first.

use rustc_hash::FxHashMap;

use super::flat::{Item, Link, Placed, Point, place};
use super::rank::RankRole;
use super::{Diagram, DrawNode};

/// Space between a frame and what it holds.
const PAD: f64 = 16.0;
/// Height of a frame's label.
const LABEL: f64 = 20.0;

/// A rectangle: its upper left corner and extent.
#[derive(Clone, Copy, Default)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// A drawn piece of an arrow.
pub(super) struct Wire {
    pub(super) points: Vec<Point>,
    /// Whether it ends at a box.
    pub(super) arrow: bool,
    pub(super) dashed: bool,
    /// Whether it begins away from the box where the arrow starts, which is named there.
    pub(super) named: bool,
    /// The box where the arrow starts.
    pub(super) source: usize,
}

/// A laid-out drawing: every element with its position.
pub(super) struct Scene {
    pub(super) nodes: Vec<Rect>,
    pub(super) clusters: Vec<Rect>,
    pub(super) wires: Vec<Wire>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// Extent of a box by its label.
pub(super) fn node_size(node: &DrawNode) -> (f64, f64) {
    let (title, body, pad, least) = if node.small { (5.6, 5.2, 12.0, 30.0) } else { (7.5, 6.3, 24.0, 70.0) };
    let width = |(n, line): (usize, &String)| line.chars().count() as f64 * if n == 0 { title } else { body };
    let widest = node.lines.iter().enumerate().map(width).fold(0.0, f64::max);
    let rows = node.lines.len().max(1) as f64;
    let height = if node.small { 6.0 + 11.0 * rows } else { 14.0 + 15.0 * rows };
    ((widest + pad).max(least), height)
}

/// A box of a frame's layout.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Part {
    Node(usize),
    Cluster(usize),
    /// Entry of arrows from a box outside.
    In(usize),
    /// Exit of arrows from a box inside.
    Out(usize),
}

/// One frame (or the whole) with its parts and arrows.
#[derive(Default)]
struct Frame {
    parts: Vec<Part>,
    index: FxHashMap<Part, usize>,
    links: Vec<(Part, Part, usize, bool)>,
    seen: rustc_hash::FxHashSet<(Part, Part, usize)>,
}

impl Frame {
    fn part(&mut self, part: Part) {
        if !self.index.contains_key(&part) {
            self.index.insert(part, self.parts.len());
            self.parts.push(part);
        }
    }
    fn link(&mut self, from: Part, to: Part, source: usize, dashed: bool) {
        self.part(from);
        self.part(to);
        if from != to && self.seen.insert((from, to, source)) {
            self.links.push((from, to, source, dashed));
        }
    }
}

/// A laid-out frame: its parts relative to its corner.
struct FrameLayout {
    placed: Placed,
    width: f64,
    height: f64,
    /// Horizontal places of the ports, from the frame's middle.
    ports: FxHashMap<Part, f64>,
}

/// Positions every box, frame and arrow.
pub(super) fn lay_out(diagram: &Diagram) -> Scene {
    let frames = frames(diagram);
    let count = diagram.clusters.len();
    let mut layouts: Vec<Option<FrameLayout>> = (0..=count).map(|_| None).collect();
    // A frame is before the frames that it holds, so the reverse order is innermost first; `count` is the whole.
    for cluster in (0..count).rev().chain([count]) {
        layouts[cluster] = Some(lay_out_frame(diagram, &frames[cluster], &layouts, cluster == count));
    }
    let layouts: Vec<FrameLayout> = layouts.into_iter().flatten().collect();
    let mut scene = Scene {
        nodes: vec![Rect::default(); diagram.nodes.len()],
        clusters: vec![Rect::default(); count],
        wires: Vec::new(),
        width: layouts[count].width,
        height: layouts[count].height,
    };
    place_frame(diagram, &frames, &layouts, count, (0.0, 0.0), &mut scene);
    scene
}

/// Cuts every arrow at the frames it crosses.
fn frames(diagram: &Diagram) -> Vec<Frame> {
    let count = diagram.clusters.len();
    let mut frames: Vec<Frame> = (0..=count).map(|_| Frame::default()).collect();
    for (c, cluster) in diagram.clusters.iter().enumerate() {
        frames[diagram.frame(cluster.parent, c).unwrap_or(count)].part(Part::Cluster(c));
    }
    for (n, node) in diagram.nodes.iter().enumerate() {
        frames[diagram.frame(node.cluster, count).unwrap_or(count)].part(Part::Node(n));
    }
    for edge in &diagram.edges {
        if edge.from >= diagram.nodes.len() || edge.to >= diagram.nodes.len() {
            continue;
        }
        let (outer_from, outer_to) = (around(diagram, edge.from), around(diagram, edge.to));
        let common = outer_from.iter().rev().zip(outer_to.iter().rev()).take_while(|(a, b)| a == b).count();
        let mut from = Part::Node(edge.from);
        for &c in &outer_from[..outer_from.len() - common] {
            frames[c].link(from, Part::Out(edge.from), edge.from, edge.dashed);
            from = Part::Cluster(c);
        }
        let mut to = Part::Node(edge.to);
        for &c in &outer_to[..outer_to.len() - common] {
            frames[c].link(Part::In(edge.from), to, edge.from, edge.dashed);
            to = Part::Cluster(c);
        }
        let meeting = outer_from[outer_from.len() - common];
        frames[meeting].link(from, to, edge.from, edge.dashed);
    }
    frames
}

/// The frames around a box, innermost first; the whole is last.
fn around(diagram: &Diagram, node: usize) -> Vec<usize> {
    let count = diagram.clusters.len();
    let mut frames = Vec::new();
    let mut at = diagram.frame(diagram.nodes[node].cluster, count);
    while let Some(c) = at {
        frames.push(c);
        at = diagram.frame(diagram.clusters[c].parent, c);
    }
    frames.push(count);
    frames
}

fn lay_out_frame(
    diagram: &Diagram,
    frame: &Frame,
    layouts: &[Option<FrameLayout>],
    whole: bool,
) -> FrameLayout {
    let item = |part: &Part| {
        let (width, height, pin, weight) = match *part {
            Part::Node(n) => {
                let node = &diagram.nodes[n];
                let (width, height) = node_size(node);
                (width, height, RankRole::Free, if node.small { 0.05 } else { 1.0 })
            }
            Part::Cluster(c) => {
                let (width, height) = layouts[c].as_ref().map_or((0.0, 0.0), |l| (l.width, l.height));
                (width, height, RankRole::Free, 1.0)
            }
            Part::In(_) => (2.0, 0.0, RankRole::Top, 0.5),
            Part::Out(_) => (2.0, 0.0, RankRole::Bottom, 0.5),
        };
        Item { width, height, pin, weight }
    };
    let items: Vec<Item> = frame.parts.iter().map(item).collect();
    let port = |part: Part, port: Part| match part {
        Part::Cluster(c) => layouts[c].as_ref().and_then(|l| l.ports.get(&port).copied()),
        _ => None,
    };
    let links = frame.links.iter().map(|&(from, to, source, _)| Link {
        from: frame.index[&from],
        to: frame.index[&to],
        from_dx: port(from, Part::Out(source)),
        to_dx: port(to, Part::In(source)),
    });
    let placed = place(&items, &links.collect::<Vec<_>>());
    let label = if whole { 0.0 } else { LABEL };
    let (width, height) = (placed.width + 2.0 * PAD, placed.height + 2.0 * PAD + label);
    let ports = frame.parts.iter().zip(&placed.middles);
    let ports = ports.map(|(&p, m)| (p, m.0 + PAD - width / 2.0)).collect();
    FrameLayout { placed, width, height, ports }
}

/// Moves a frame's contents to where the frame is, frames within it likewise.
fn place_frame(
    diagram: &Diagram,
    frames: &[Frame],
    layouts: &[FrameLayout],
    at: usize,
    corner: Point,
    scene: &mut Scene,
) {
    let whole = at == diagram.clusters.len();
    let (left, top) = (corner.0 + PAD, corner.1 + PAD + if whole { 0.0 } else { LABEL });
    let (frame, here) = (&frames[at], &layouts[at]);
    for (&part, &(x, y)) in frame.parts.iter().zip(&here.placed.middles) {
        let rect = |(width, height): (f64, f64)| Rect {
            x: left + x - width / 2.0,
            y: top + y - height / 2.0,
            width,
            height,
        };
        match part {
            Part::Node(n) => scene.nodes[n] = rect(node_size(&diagram.nodes[n])),
            Part::Cluster(c) => {
                let r = rect((layouts[c].width, layouts[c].height));
                scene.clusters[c] = r;
                place_frame(diagram, frames, layouts, c, (r.x, r.y), scene);
            }
            Part::In(_) | Part::Out(_) => {}
        }
    }
    for (&(from, to, source, dashed), route) in frame.links.iter().zip(&here.placed.routes) {
        let last = route.len().saturating_sub(1);
        for (n, piece) in route.iter().enumerate() {
            let mut points: Vec<Point> = piece.iter().map(|&(x, y)| (left + x, top + y)).collect();
            // Ports lie within the frame's padding; the arrow goes on to the frame's edge.
            if let (0, Part::In(_), Some(&(x, _))) = (n, from, points.first()) {
                points.insert(0, (x, corner.1));
            }
            if let (true, Part::Out(_), Some(&(x, _))) = (n == last, to, points.last()) {
                points.push((x, corner.1 + here.height));
            }
            let arrow = n == last && matches!(to, Part::Node(_));
            scene.wires.push(Wire { points, arrow, dashed, named: n > 0, source });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::{DrawCluster, DrawEdge};

    /// Boxes in a ladder of frames with arrows between any two, forwards and backwards.
    fn random(seed: u64) -> Diagram {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = move |n: usize| {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            ((state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize) % n
        };
        let mut d = Diagram::default();
        for c in 0..below(5) {
            let parent = (c > 0 && below(2) == 0).then(|| below(c));
            d.clusters.push(DrawCluster { label: format!("frame {c}"), parent });
        }
        for n in 0..1 + below(24) {
            let cluster = (!d.clusters.is_empty() && below(3) > 0).then(|| below(d.clusters.len()));
            let lines = vec!["x".repeat(1 + below(20)); 1 + below(3)];
            d.nodes.push(DrawNode { lines, small: n % 5 == 0, cluster, ..DrawNode::default() });
        }
        for _ in 0..below(40) {
            let (from, to) = (below(d.nodes.len() + 1), below(d.nodes.len()));
            d.edges.push(DrawEdge { from, to, dashed: false });
        }
        d
    }

    fn overlap(a: &Rect, b: &Rect) -> bool {
        a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height
    }
    fn inside(a: &Rect, b: &Rect) -> bool {
        a.x >= b.x && a.y >= b.y && a.x + a.width <= b.x + b.width && a.y + a.height <= b.y + b.height
    }

    #[test]
    fn boxes_never_overlap_and_stay_in_their_frames() {
        for seed in 0..300 {
            let d = random(seed);
            let scene = lay_out(&d);
            let whole = Rect { x: 0.0, y: 0.0, width: scene.width + 1e-6, height: scene.height + 1e-6 };
            for (n, r) in scene.nodes.iter().enumerate() {
                let frame = d.nodes[n].cluster.map_or(&whole, |c| &scene.clusters[c]);
                assert!(inside(r, frame), "seed {seed}: box {n} leaves its frame");
                let others = scene.nodes[..n].iter();
                assert!(others.clone().all(|o| !overlap(r, o)), "seed {seed}: box {n} overlaps another");
                let apart = |c: usize| !around(&d, n).contains(&c) && overlap(r, &scene.clusters[c]);
                assert!(!(0..d.clusters.len()).any(apart), "seed {seed}: box {n} stands in a foreign frame");
            }
            let finite =
                scene.wires.iter().flat_map(|w| &w.points).all(|p| p.0.is_finite() && p.1.is_finite());
            assert!(finite, "seed {seed}: an arrow leads nowhere");
        }
    }

    #[test]
    fn a_chain_is_straight_and_runs_down() {
        let mut d = Diagram::default();
        for n in 0..50 {
            d.nodes.push(DrawNode { lines: vec!["w".repeat(1 + n % 7)], ..DrawNode::default() });
            if n > 0 {
                d.edges.push(DrawEdge { from: n - 1, to: n, dashed: false });
            }
        }
        let scene = lay_out(&d);
        for pair in scene.nodes.windows(2) {
            assert!(pair[0].y + pair[0].height < pair[1].y);
            let shift = pair[0].x + pair[0].width / 2.0 - pair[1].x - pair[1].width / 2.0;
            assert!(shift.abs() < 0.5, "the chain bends by {shift}");
        }
    }

    /// Of an arrow from the first box of a long chain to the last the ends are drawn, and the last says where it comes from.
    #[test]
    fn an_arrow_across_many_rows_is_its_ends() {
        let long = |boxes: usize| {
            let nodes =
                (0..boxes).map(|n| DrawNode { lines: vec![format!("box {n}")], ..DrawNode::default() });
            let next = (1..boxes).map(|n| DrawEdge { from: n - 1, to: n, dashed: false });
            let across = [DrawEdge { from: 0, to: boxes - 1, dashed: false }];
            Diagram { nodes: nodes.collect(), edges: next.chain(across).collect(), ..Diagram::default() }
        };
        let scene = lay_out(&long(20));
        assert!(scene.wires.len() == 20 && scene.wires.iter().all(|w| !w.named && w.arrow));
        let (diagram, boxes) = (long(3000), 3000);
        let scene = lay_out(&diagram);
        assert_eq!(scene.wires.len(), boxes + 1);
        let named: Vec<&Wire> = scene.wires.iter().filter(|w| w.named).collect();
        assert!(matches!(&named[..], [end] if end.source == 0 && end.arrow && end.points.len() == 2));
        assert!(diagram.to_svg().len() < 500 * boxes);
    }

    #[test]
    fn an_empty_diagram_is_a_document() {
        assert!(Diagram::default().to_svg().ends_with("</svg>\n"));
        assert!(Diagram::default().to_dot().starts_with("digraph"));
    }
}
