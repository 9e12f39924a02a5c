//! Chooses which values are saved: a minimum cut between the values that the forward must compute and those that the
//! backward needs.
//!
//! Every value is an edge whose capacity is its bytes; to cut it is to save it. A node on the sink's side is recomputed in
//! the backward. Nodes that must not be computed twice are connected to the source: by default templates, routines,
//! scatters, scans, strongly reducing reductions, the end of a long chain of arithmetic, and what is read again after
//! a template that follows from it (a residual: its recomputation would reach back through all layers before it). These
//! are the heuristics of PyTorch's min-cut partitioner. Parameters and inputs cost nothing because they are kept anyway. Of cuts with equal bytes the one
//! with the least recomputation is chosen.
//!
//! A memory budget below 1 lifts these bans one by one, least work per saved byte first, until the budget is met:
//! a greedy knapsack whose weights are cuts. The bans lifted for one budget are also lifted for every smaller one, so a
//! smaller budget never saves more bytes.

use fx_ir::{Graph, NodeId, NodeKind, ValueId};
use ir_core::{Arena, EntityId};
use prims::facts::{Work, bytes_hint, is_heavy, numel_hint, operations_hint};

use super::flow::{INFINITE, Network, SINK, SOURCE};
use super::{Contradiction, Partition, split};
use crate::JointGraph;
use crate::symbols::defines_size;

/// Longest chain of arithmetic nodes that is recomputed; a longer one is cut by saving.
const LONGEST_CHAIN: u32 = 100;
/// A reduction to less than this fraction of its operand is not computed twice.
const REDUCES_MUCH: i64 = 4;

/// How much to recompute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MinCut {
    /// 1: recompute only what is cheap. Below 1: the fraction of the bytes saved at 1 that may be saved; 0 saves only
    /// inputs, as far as values can be recomputed at all. Numbers outside 0..=1 are clamped.
    pub memory_budget: f64,
    /// Bytes up to which the result of an operator of tens of cycles is saved at budget 1: it stays in a cache, and loading it
    /// takes less time than computing it again. 0 saves as few bytes as possible.
    pub cached: i64,
}

impl Default for MinCut {
    fn default() -> Self {
        MinCut { memory_budget: 1.0, cached: 0 }
    }
}

/// Splits a joint graph so that few bytes are saved; see [`MinCut`]. Symbolic sizes count by their hints.
///
/// # Errors
/// [`Contradiction`], which no joint graph should give.
pub fn partition_min_cut(joint: &JointGraph, options: &MinCut) -> Result<Partition, Contradiction> {
    let candidates = Candidates::of(joint, options.cached);
    let (bytes, mut backward) = candidates.cut(joint, 0);
    let budget = if options.memory_budget.is_nan() { 1.0 } else { options.memory_budget.clamp(0.0, 1.0) };
    let target = (bytes as f64 * budget).floor() as i64;
    if bytes > target {
        // The fewest lifted bans that meet the target; all of them where none does.
        let (mut low, mut high) = (0, candidates.liftable.len());
        while low < high {
            let middle = (low + high) / 2;
            if candidates.cut(joint, middle).0 <= target { high = middle } else { low = middle + 1 }
        }
        backward = candidates.cut(joint, low).1;
    }
    split::split(joint, &backward)
}

/// What may be computed in either half.
struct Candidates {
    /// Whether a node depends on a tangent: the backward alone can compute it.
    dependent: Arena<NodeId, bool>,
    /// Nodes of the forward that are never computed twice.
    fixed: Vec<NodeId>,
    /// Nodes that the default does not compute twice, cheapest per byte first.
    liftable: Vec<NodeId>,
    /// Values that a dependent node or a gradient reads.
    needed: Vec<ValueId>,
}

impl Candidates {
    fn of(joint: &JointGraph, cached: i64) -> Candidates {
        let graph = &joint.graph;
        let dependent = joint.tangent_dependent();
        let (mut fixed, mut liftable) = (Vec::new(), Vec::new());
        let reach = Reach::of(joint);
        let mut depth: Arena<NodeId, u32> = graph.nodes.ids().map(|_| 0).collect();
        for (id, _) in graph.iter().filter(|(id, _)| !dependent[*id] && !joint.is_backward(*id)) {
            let chain = chain(graph, id, &depth);
            match recomputable(graph, id, cached) {
                Recompute::Cheap if reach.is_read_late(graph, id) => liftable.push(id),
                Recompute::Never => fixed.push(id),
                Recompute::Costly => liftable.push(id),
                Recompute::Cheap if chain > LONGEST_CHAIN => liftable.push(id),
                Recompute::Cheap => depth[id] = chain,
            }
        }
        let density = |id: &NodeId| cost_a_byte(graph, *id);
        liftable.sort_by(|a, b| density(a).total_cmp(&density(b)));
        let needed = needed(joint, &dependent);
        Candidates { dependent, fixed, liftable, needed }
    }

    /// The minimum cut with the first `lifted` bans lifted: the saved bytes, and for every node whether it is computed in
    /// the backward where that needs it.
    fn cut(&self, joint: &JointGraph, lifted: usize) -> (i64, Arena<NodeId, bool>) {
        let graph = &joint.graph;
        let node = |id: NodeId| 2 + id.index();
        let value = |v: ValueId| 2 + graph.nodes.len() + v.index();
        let mut network = Network::new(2 + graph.nodes.len() + graph.values.len());
        for (id, n) in graph.iter().filter(|(id, _)| !self.dependent[*id]) {
            for &v in &n.outputs {
                network.edge(node(id), value(v), saving_cost(joint, v));
            }
            if matches!(n.kind, NodeKind::Placeholder { .. }) {
                network.edge(SOURCE, node(id), INFINITE);
            }
            n.for_each_use(&mut |v| network.edge(value(v), node(id), INFINITE));
        }
        for &id in self.fixed.iter().chain(&self.liftable[lifted..]) {
            network.edge(SOURCE, node(id), INFINITE);
        }
        self.needed.iter().for_each(|&v| network.edge(value(v), SINK, INFINITE));
        let bytes = network.max_flow();
        let side = network.sink_side();
        let backward = graph.nodes.ids().map(|id| self.dependent[id] || side[node(id)]);
        (bytes, backward.collect())
    }
}

/// The cost of saving a value: its bytes, or nothing where the caller keeps it anyway.
fn saving_cost(joint: &JointGraph, v: ValueId) -> i64 {
    let graph = &joint.graph;
    let name = match &graph.nodes[graph.values[v].def].kind {
        NodeKind::Placeholder { name, .. } => name,
        NodeKind::Call { .. } => return bytes_hint(graph, v),
    };
    // An input that the forward overwrites does not survive: its old value has to be saved.
    let written = graph.outputs.iter().any(|o| match &o.kind {
        fx_ir::OutputKind::BufferMutation(n) | fx_ir::OutputKind::InputMutation(n) => n == name,
        _ => false,
    });
    if written { bytes_hint(graph, v) } else { 0 }
}

/// For every node of the forward the position of the first template or routine that follows from it through
/// arithmetic and reductions alone, and the positions of its readers.
struct Reach {
    position: Arena<NodeId, usize>,
    first: Arena<NodeId, usize>,
    readers: Arena<NodeId, Vec<NodeId>>,
}

impl Reach {
    fn of(joint: &JointGraph) -> Reach {
        let graph = &joint.graph;
        let mut reach = Reach {
            position: graph.nodes.ids().map(|_| usize::MAX).collect(),
            first: graph.nodes.ids().map(|_| usize::MAX).collect(),
            readers: graph.nodes.ids().map(|_| Vec::new()).collect(),
        };
        for (n, (id, node)) in graph.iter().filter(|(id, _)| !joint.is_backward(*id)).enumerate() {
            reach.position[id] = n;
            node.for_each_use(&mut |v| reach.readers[graph.values[v].def].push(id));
        }
        let forward: Vec<NodeId> =
            graph.iter().map(|(id, _)| id).filter(|id| !joint.is_backward(*id)).collect();
        for &id in forward.iter().rev() {
            let of_reader = |reader: &NodeId| match work(graph, *reader) {
                Work::Pointwise | Work::Reduction => reach.first[*reader],
                Work::Compute => reach.position[*reader],
                Work::Ordered | Work::Unknown => usize::MAX,
            };
            reach.first[id] = reach.readers[id].iter().map(of_reader).min().unwrap_or(usize::MAX);
        }
        reach
    }

    /// Whether arithmetic reads the node after the first template that follows from it.
    fn is_read_late(&self, graph: &Graph, id: NodeId) -> bool {
        let fuses = |r: NodeId| matches!(work(graph, r), Work::Pointwise | Work::Reduction);
        self.readers[id].iter().any(|r| fuses(*r) && self.position[*r] > self.first[id])
    }
}

/// The class of work of a node.
fn work(graph: &Graph, id: NodeId) -> Work {
    let op = graph.nodes[id].as_call().and_then(|(target, _)| prims::lookup(target));
    op.map_or(Work::Unknown, |op| op.work())
}

/// Length of the chain of arithmetic nodes that ends in this one.
fn chain(graph: &Graph, id: NodeId, depth: &Arena<NodeId, u32>) -> u32 {
    let mut longest = 0;
    graph.nodes[id].for_each_use(&mut |v| longest = longest.max(depth[graph.values[v].def]));
    longest + 1
}

enum Recompute {
    Cheap,
    Costly,
    Never,
}

/// Whether a node may be computed twice.
fn recomputable(graph: &Graph, id: NodeId, cached: i64) -> Recompute {
    let node = &graph.nodes[id];
    let Some((target, _)) = node.as_call() else { return Recompute::Never };
    let Some(op) = prims::lookup(target).filter(|op| op.is_prim()) else { return Recompute::Never };
    if node.outputs.iter().any(|&v| defines_size(graph, v)) {
        return Recompute::Never;
    }
    match op.work() {
        Work::Pointwise if op.scalar_op().is_some_and(is_heavy) && bytes(graph, id) <= cached => {
            Recompute::Costly
        }
        Work::Pointwise => Recompute::Cheap,
        Work::Reduction => {
            let (mut read, made) = (0, node.outputs.iter().map(|&v| numel_hint(graph, v)).sum::<i64>());
            node.for_each_use(&mut |v| read += numel_hint(graph, v));
            if made.saturating_mul(REDUCES_MUCH) < read { Recompute::Costly } else { Recompute::Cheap }
        }
        Work::Ordered | Work::Compute | Work::Unknown => Recompute::Costly,
    }
}

/// Bytes of all results of a node.
fn bytes(graph: &Graph, id: NodeId) -> i64 {
    graph.nodes[id].outputs.iter().map(|&v| bytes_hint(graph, v)).sum()
}

/// Operations to recompute a node per byte of its results.
fn cost_a_byte(graph: &Graph, id: NodeId) -> f64 {
    let node = &graph.nodes[id];
    let Some((target, args)) = node.as_call() else { return f64::INFINITY };
    let Some(op) = prims::lookup(target) else { return f64::INFINITY };
    operations_hint(graph, op, args, &node.outputs) as f64 / bytes(graph, id).max(1) as f64
}

/// Values independent of the tangents that dependent nodes and gradients read.
fn needed(joint: &JointGraph, dependent: &Arena<NodeId, bool>) -> Vec<ValueId> {
    let graph = &joint.graph;
    let mut read: Arena<ValueId, bool> = graph.values.ids().map(|_| false).collect();
    let mut visit = |v: ValueId| read[v] = !dependent[graph.values[v].def];
    graph.iter().filter(|(id, _)| dependent[*id]).for_each(|(_, n)| n.for_each_use(&mut visit));
    graph.outputs[joint.forward_outputs..].iter().for_each(|o| o.arg.for_each_value(&mut visit));
    graph.values.ids().filter(|&v| read[v]).collect()
}
