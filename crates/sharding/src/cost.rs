//! The costs by which placements are chosen: seconds of exchanges, from bytes and the links' figures, and seconds of work,
//! which ranks may share. Estimates that rank alternatives, no promises.

use fx_ir::{Graph, InputKind, NodeId, NodeKind};
use prims::Placement;
use prims::facts::{bytes_hint, operations_hint};
use serde::Deserialize;

use crate::redistribute::{Kind, is_possible, kind, stations};
use crate::{Axis, Layout, Local, Mesh};

/// The figures of the links along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Link {
    /// Seconds of an exchange without data.
    pub latency: f64,
    /// Bytes a second that a rank sends.
    pub bandwidth: f64,
}

/// The figures of a mesh.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// One for each axis; those missing are as [`Link::default`].
    pub links: Vec<Link>,
    /// Floating-point operations a second of one rank.
    pub operations: f64,
    /// Bytes a second of its memory.
    pub memory: f64,
}

impl Default for Link {
    /// Devices of one host over fast links: 10 µs, which an exchange of 8 KiB takes within a device graph, and 150 GB/s.
    fn default() -> Link {
        Link { latency: 1e-5, bandwidth: 1.5e11 }
    }
}

impl Default for Costs {
    /// A recent accelerator: 2·10^14 operations a second, 3 TB/s.
    fn default() -> Costs {
        Costs { links: Vec::new(), operations: 2e14, memory: 3e12 }
    }
}

impl Costs {
    pub(crate) fn link(&self, axis: usize) -> Link {
        self.links.get(axis).copied().unwrap_or_default()
    }
    /// Seconds of an exchange along an axis, for a tensor of `whole` bytes (as large as without this axis).
    pub fn exchange(&self, mesh: &Mesh, axis: usize, what: Kind, whole: f64) -> f64 {
        if what == Kind::Local {
            return 0.0;
        }
        let (link, Axis { size, .. }) = (self.link(axis), &mesh.axes()[axis]);
        link.latency + what.bytes(whole, *size) / link.bandwidth
    }
    /// Seconds of a change of placement along an axis; infinite where it has no meaning.
    pub fn change(&self, mesh: &Mesh, axis: usize, from: &Placement, to: &Placement, whole: f64) -> f64 {
        if from == to {
            return 0.0;
        }
        if !is_possible(from, to) {
            return f64::INFINITY;
        }
        let (mut cost, mut now) = (0.0, from.clone());
        for next in stations(from, to) {
            cost += self.exchange(mesh, axis, kind(&now, &next), whole);
            now = next;
        }
        cost
    }
    /// Seconds that one rank needs for a whole call.
    pub fn work(&self, graph: &Graph, id: NodeId) -> f64 {
        let node = &graph.nodes[id];
        let NodeKind::Call { target, args } = &node.kind else { return 0.0 };
        let Some(op) = prims::lookup(target) else { return 0.0 };
        let operations = operations_hint(graph, op, args, &node.outputs) as f64;
        let made: i64 = node.outputs.iter().map(|v| bytes_hint(graph, *v)).sum();
        operations / self.operations + made as f64 / self.memory
    }
    /// Seconds that a rank needs for a whole layout, whose graph of the first rank is `local`: its exchanges, its share of the
    /// work, and one reading of the weights that it has.
    pub fn layout(&self, graph: &Graph, mesh: &Mesh, layout: &Layout, local: &Local) -> f64 {
        let exchanges = local.exchanges.iter().map(|e| self.exchange(mesh, e.axis, e.kind, e.whole));
        let work = layout.calls.iter().map(|(id, choice)| {
            let split = |axis: &usize| {
                choice.operands.iter().chain(&choice.results).any(|s| s[*axis].dim().is_some())
            };
            let axes = (0..mesh.axes().len()).filter(split);
            let shared: usize = axes.map(|axis| mesh.axes()[axis].size).product();
            self.work(graph, *id) / shared as f64
        });
        let weights = local.graph.inputs().filter(|(_, kind, _)| *kind != InputKind::User);
        let kept: f64 = weights.map(|(v, _, _)| bytes_hint(&local.graph, v) as f64).sum();
        exchanges.sum::<f64>() + work.sum::<f64>() + kept / self.memory
    }
}
