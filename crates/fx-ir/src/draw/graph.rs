//! A graph as a diagram: one box a node, small boxes for weights, one box a result, a frame around each subgraph.
//! Weights that nothing reads (counters of batches, say) are one box together, or they would fill a row of their own.

use ir_core::EntityId;
use rustc_hash::FxHashMap;

use super::{Diagram, DrawCluster, DrawEdge, DrawNode, Style};
use crate::text::{Names, type_text};
use crate::{Arg, Graph, InputKind, Node, NodeKind, OutputKind, Uses, ValueId};

/// Longest line of a label, in characters.
const LINE: usize = 44;

/// A diagram of the graph; an operator's colour follows from its name.
pub fn graph_diagram(graph: &Graph) -> Diagram {
    graph_diagram_with(graph, &|target| Style::of_name(short_target(target)))
}

/// The same with colours by `style` of the operator's full name, for callers that know what operators are.
pub fn graph_diagram_with(graph: &Graph, style: &dyn Fn(&str) -> Style) -> Diagram {
    diagram(graph, style, 0)
}

/// The same with a frame around each module down to `depth` names of its path (`layer1.0` has two). A module that is
/// left and entered again in execution order has several frames, so that frames never depend on each other in a circle.
pub fn graph_diagram_by_module(graph: &Graph, style: &dyn Fn(&str) -> Style, depth: usize) -> Diagram {
    diagram(graph, style, depth)
}

fn diagram(graph: &Graph, style: &dyn Fn(&str) -> Style, module_depth: usize) -> Diagram {
    let title = Diagram { title: graph.name.clone(), ..Diagram::default() };
    let mut maker = DiagramBuilder { diagram: title, style, module_depth };
    maker.graph(graph, None);
    maker.diagram
}

struct DiagramBuilder<'a> {
    diagram: Diagram,
    style: &'a dyn Fn(&str) -> Style,
    module_depth: usize,
}

impl DiagramBuilder<'_> {
    /// Adds a graph's boxes and arrows; gives the boxes of its results.
    fn graph(&mut self, graph: &Graph, cluster: Option<usize>) -> Vec<usize> {
        let names = Names::of(graph);
        let mut results_of = Vec::new();
        for (id, sub) in graph.subgraphs.iter() {
            let label = format!("{id} {}", sub.name);
            self.diagram.clusters.push(DrawCluster { label, parent: cluster });
            let frame = self.diagram.clusters.len() - 1;
            results_of.push(self.graph(sub, Some(frame)));
        }
        let mut boxes: FxHashMap<ValueId, usize> = FxHashMap::default();
        let uses = Uses::of(graph);
        let mut unused = Vec::new();
        let mut modules = Vec::new();
        let first = self.diagram.nodes.len();
        for (_, node) in graph.iter() {
            if let NodeKind::Placeholder { kind, name } = &node.kind
                && *kind != InputKind::User
                && node.outputs.iter().all(|&v| uses.is_dead(v))
            {
                unused.push(name.as_str());
                continue;
            }
            let at = self.diagram.nodes.len();
            let drawn = self.node(graph, &names, node);
            let frame = match node.as_call() {
                Some(_) => self.module_frame(graph, node, cluster, &mut modules),
                None => cluster,
            };
            self.diagram.nodes.push(DrawNode { cluster: frame, ..drawn });
            boxes.extend(node.outputs.iter().map(|&v| (v, at)));
            let mut from = Vec::new();
            if let NodeKind::Call { args, .. } = &node.kind {
                args.iter().for_each(|a| sources(a, &boxes, &results_of, &mut from));
            }
            self.arrows(&from, at);
        }
        self.weights_to_users(first);
        if !unused.is_empty() {
            let lines = vec![format!("{} unused weights", unused.len())];
            let tooltip = unused.join("\n");
            self.diagram.nodes.push(DrawNode { lines, tooltip, style: Style::Weight, small: true, cluster });
        }
        graph.outputs.iter().map(|output| self.output(output, &boxes, cluster)).collect()
    }

    /// The frame of a call's module. `open` are the names and frames of the call before; what the paths share stays.
    fn module_frame(
        &mut self,
        graph: &Graph,
        node: &Node,
        cluster: Option<usize>,
        open: &mut Vec<(String, usize)>,
    ) -> Option<usize> {
        let module = graph.origins.get(node.origin).map_or("", |o| o.module.as_str());
        let path = || module.split('.').filter(|part| !part.is_empty()).take(self.module_depth);
        let shared = open.iter().zip(path()).take_while(|((name, _), part)| name == part).count();
        open.truncate(shared);
        let new: Vec<String> = path().skip(shared).map(str::to_string).collect();
        for name in new {
            let parent = open.last().map(|(_, frame)| *frame).or(cluster);
            self.diagram.clusters.push(DrawCluster { label: name.clone(), parent });
            open.push((name, self.diagram.clusters.len() - 1));
        }
        open.last().map(|(_, frame)| *frame).or(cluster)
    }

    /// A weight stands in the frame of its users where that is one frame. Boxes from `first` on are looked at.
    fn weights_to_users(&mut self, first: usize) {
        let mut frames: FxHashMap<usize, Vec<Option<usize>>> = FxHashMap::default();
        for edge in self.diagram.edges.iter().filter(|e| e.from >= first) {
            frames.entry(edge.from).or_default().push(self.diagram.nodes[edge.to].cluster);
        }
        for (at, users) in frames {
            let node = &mut self.diagram.nodes[at];
            if node.small && users.iter().all(|u| *u == users[0]) {
                node.cluster = users[0];
            }
        }
    }

    fn arrows(&mut self, from: &[(usize, bool)], to: usize) {
        for (n, &(from_box, dashed)) in from.iter().enumerate() {
            if !from[..n].contains(&(from_box, dashed)) {
                self.diagram.edges.push(DrawEdge { from: from_box, to, dashed });
            }
        }
    }

    fn node(&self, graph: &Graph, names: &Names, node: &Node) -> DrawNode {
        let types: Vec<String> =
            node.outputs.iter().filter_map(|&v| graph.values.get(v)).map(|v| type_text(&v.ty)).collect();
        let given: Vec<String> = node.outputs.iter().map(|&v| format!("%{}", names.get(v))).collect();
        let origin = graph.origins.get(node.origin).map(ToString::to_string).unwrap_or_default();
        match &node.kind {
            NodeKind::Placeholder { kind, name } => {
                let small = *kind != InputKind::User;
                let tooltip = format!("{}\n{name}: {}", input_word(*kind), types.join(", "));
                let style = if small { Style::Weight } else { Style::Input };
                let label = if small { last_parts(name) } else { name };
                let lines = vec![shorten(label), shorten(&types.join(", "))];
                DrawNode { lines, tooltip, style, small, cluster: None }
            }
            NodeKind::Call { target, .. } => {
                let mut lines = vec![shorten(short_target(target)), shorten(&given.join(", "))];
                lines.extend(types.iter().take(3).map(|t| shorten(t)));
                if types.len() > 3 {
                    lines.push(format!("… {} more", types.len() - 3));
                }
                let mut tooltip = format!("{target}\n{}", types.join(", "));
                if !origin.is_empty() {
                    tooltip.push_str(&format!("\n{origin}"));
                }
                DrawNode { lines, tooltip, style: (self.style)(target), small: false, cluster: None }
            }
        }
    }

    fn output(
        &mut self,
        output: &crate::Output,
        boxes: &FxHashMap<ValueId, usize>,
        cluster: Option<usize>,
    ) -> usize {
        let (title, name) = match &output.kind {
            OutputKind::User => ("output", ""),
            OutputKind::Loss => ("loss", ""),
            OutputKind::Saved => ("saved", ""),
            OutputKind::BufferMutation(n) => ("new buffer", n.as_str()),
            OutputKind::InputMutation(n) => ("new input", n.as_str()),
            OutputKind::ParameterGradient(n) | OutputKind::InputGradient(n) => ("gradient", n.as_str()),
        };
        let mut lines = vec![title.to_string()];
        lines.extend((!name.is_empty()).then(|| shorten(name)));
        let at = self.diagram.nodes.len();
        let tooltip = format!("{title} {name}");
        let small = !matches!(output.kind, OutputKind::User | OutputKind::Loss);
        self.diagram.nodes.push(DrawNode { lines, tooltip, style: Style::Output, small, cluster });
        let mut from = Vec::new();
        sources(&output.arg, boxes, &[], &mut from);
        self.arrows(&from, at);
        at
    }
}

/// The boxes that an argument comes from; from a subgraph's results the arrow is dashed.
fn sources(
    arg: &Arg,
    boxes: &FxHashMap<ValueId, usize>,
    results: &[Vec<usize>],
    out: &mut Vec<(usize, bool)>,
) {
    match arg {
        Arg::Value(v) => out.extend(boxes.get(v).map(|&b| (b, false))),
        Arg::List(items) => items.iter().for_each(|a| sources(a, boxes, results, out)),
        Arg::Graph(g) => out.extend(results.get(g.index()).into_iter().flatten().map(|&b| (b, true))),
        _ => {}
    }
}

/// `aten.conv2d.default` is `conv2d`, `aten.add.Tensor` is `add.Tensor`.
fn short_target(target: &str) -> &str {
    let without_namespace = target.split_once('.').map_or(target, |(_, rest)| rest);
    without_namespace.strip_suffix(".default").unwrap_or(without_namespace)
}

/// `bn1.weight` of `layer1.0.bn1.weight`: what tells weights of one box apart; the tooltip has the whole name.
fn last_parts(name: &str) -> &str {
    name.rmatch_indices('.').nth(1).map_or(name, |(at, _)| &name[at + 1..])
}

fn input_word(kind: InputKind) -> &'static str {
    match kind {
        InputKind::User => "input",
        InputKind::Parameter => "parameter",
        InputKind::Buffer { .. } => "buffer",
        InputKind::Constant => "constant",
        InputKind::Seed => "seed",
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(LINE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}
