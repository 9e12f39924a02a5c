//! The stages of a program as drawings that stand side by side, and what each of their boxes stands for.
//!
//! Weights are left out of the drawings, where they would be most of the boxes, and so is what runs once, when they are bound: the
//! page lists it.

use std::collections::HashSet;

use fx_ir::draw::{Diagram, DrawEdge, DrawNode, Style, graph_diagram};
use fx_ir::{Graph, InputKind, NodeId, NodeKind, Uses};
use kernel_ir::{Program, Step};
use serde_json::{Value, json};

use super::diagram;

/// One stage.
pub(super) struct Stage {
    /// Its name.
    pub(super) name: &'static str,
    pub(super) diagram: Diagram,
    /// For each box the name of a captured call, the number of a kernel, or null.
    pub(super) boxes: Vec<Value>,
}

/// A graph. Its calls are named after those of the captured graph that they were made of.
pub(super) fn of_graph(name: &'static str, graph: &Graph) -> Stage {
    let diagram = graph_diagram(graph);
    let mut calls = boxes_of_graph(graph);
    calls.resize(diagram.nodes.len(), None);
    let boxes = named(graph, &calls);
    kept(Stage { name, diagram, boxes }, &|_, node| !node.small)
}

/// The graph of prims that a program was made of. Calls that depend on weights alone are left out where they run once.
pub(super) fn of_prims(graph: &Graph, program: &Program) -> Stage {
    let diagram = graph_diagram(graph);
    let mut calls = boxes_of_graph(graph);
    calls.resize(diagram.nodes.len(), None);
    let once = if program.init.is_empty() { HashSet::new() } else { diagram::fixed(graph) };
    let runs = |at: usize, node: &DrawNode| !node.small && calls[at].is_none_or(|id| !once.contains(&id));
    let boxes = named(graph, &calls);
    kept(Stage { name: "prims", diagram, boxes }, &runs)
}

/// The kernels of a call.
pub(super) fn of_kernels(program: &Program) -> Stage {
    let diagram = diagram::kernels(program);
    let boxes = boxes_of_kernels(program, &diagram);
    kept(Stage { name: "kernels", diagram, boxes }, &|_, node| !node.small && node.cluster.is_none())
}

/// A stage with some of its boxes, and the frames around them.
fn kept(stage: Stage, wanted: &dyn Fn(usize, &DrawNode) -> bool) -> Stage {
    let Stage { name, diagram, boxes } = stage;
    let mut place = Vec::with_capacity(diagram.nodes.len());
    let (mut nodes, mut left) = (Vec::new(), Vec::new());
    for (n, (mut node, stands_for)) in diagram.nodes.into_iter().zip(boxes).enumerate() {
        let stays = wanted(n, &node);
        place.push(stays.then_some(nodes.len()));
        if stays {
            // The page shows what tooltips say.
            node.tooltip = String::new();
            nodes.push(node);
            left.push(stands_for);
        }
    }
    let at = |n: usize| place.get(n).copied().flatten();
    let edge = |e: &DrawEdge| Some(DrawEdge { from: at(e.from)?, to: at(e.to)?, ..*e });
    let edges = diagram.edges.iter().filter_map(edge).collect();
    let clusters = if nodes.iter().any(|n| n.cluster.is_some()) { diagram.clusters } else { Vec::new() };
    Stage { name, diagram: Diagram { title: String::new(), nodes, edges, clusters }, boxes: left }
}

/// The call that each box of a graph's drawing stands for, in the order of the drawing: boxes of subgraphs stand first, weights
/// that nothing reads have none, results stand last.
fn boxes_of_graph(graph: &Graph) -> Vec<Option<NodeId>> {
    let inner: usize = graph.subgraphs.values().map(|sub| graph_diagram(sub).nodes.len()).sum();
    let mut calls = vec![None; inner];
    let uses = Uses::of(graph);
    for (id, node) in graph.iter() {
        calls.push(match &node.kind {
            NodeKind::Call { .. } => Some(id),
            NodeKind::Placeholder { kind, .. }
                if *kind != InputKind::User && node.outputs.iter().all(|&v| uses.is_dead(v)) =>
            {
                continue;
            }
            NodeKind::Placeholder { .. } => None,
        });
    }
    calls
}

fn named(graph: &Graph, calls: &[Option<NodeId>]) -> Vec<Value> {
    calls.iter().map(|call| call.map_or(Value::Null, |id| json!(graph.node_name(id)))).collect()
}

/// For each box of the kernels' drawing the number of its kernel, those that run once first; null for inputs, weights and outputs.
fn boxes_of_kernels(program: &Program, diagram: &Diagram) -> Vec<Value> {
    let names: Vec<&str> = program.init.iter().chain(&program.steps).map(Step::name).collect();
    let mut next = 0;
    let number = |node: &DrawNode| {
        let is_next = node.lines.first().map(String::as_str) == names.get(next).copied()
            && matches!(node.style, Style::Family(_));
        if is_next {
            next += 1;
            return json!(next - 1);
        }
        Value::Null
    };
    diagram.nodes.iter().map(number).collect()
}
