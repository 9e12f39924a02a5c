//! Drawings of what the compiler made: primitive operators in frames of the kernels they became, and the kernels with
//! the buffers between them. Layout and file formats are `fx_ir::draw`'s.

use std::collections::HashMap;

use ferroflux::fx_ir::draw::{Diagram, DrawCluster, DrawEdge, DrawNode, Style};
use ferroflux::fx_ir::{Graph, InputKind, Node, NodeId, NodeKind, Uses, ValueId};
use ferroflux::kernel_ir::{BufId, Buffer, Program, Step, Storage};

/// Most lines of a box that list what was fused into it; the tooltip has all of them.
const LISTED: usize = 6;

/// The graph of primitive operators with a frame around what became one kernel. An operator that is computed in several
/// kernels stands in the first; a weight stands with its users where they are one kernel.
pub(crate) fn fused(prims: &Graph, program: &Program) -> Diagram {
    let mut diagram = Diagram { title: prims.name.clone(), ..Diagram::default() };
    let mut group_by_name: HashMap<&str, usize> = HashMap::new();
    for (word, steps) in [("once: ", &program.init), ("", &program.steps)] {
        for step in steps {
            let label = format!("{word}{} ({})", step.name(), kind(step));
            diagram.clusters.push(DrawCluster { label, parent: None });
            for name in step.origins() {
                group_by_name.entry(name).or_insert(diagram.clusters.len() - 1);
            }
        }
    }
    let uses = Uses::of(prims);
    let group = |id: NodeId| group_by_name.get(prims.node_name(id)).copied();
    let mut boxes: HashMap<ValueId, usize> = HashMap::new();
    for (id, node) in
        prims.iter().filter(|(_, n)| n.as_call().is_some() || n.outputs.iter().any(|&v| !uses.is_dead(v)))
    {
        let cluster = match node.as_call() {
            Some(_) => group(id),
            None => {
                let mut groups = node.outputs.iter().flat_map(|&v| uses.users(v)).map(|&user| group(user));
                let first = groups.next().flatten();
                first.filter(|first| groups.all(|g| g == Some(*first)))
            }
        };
        let at = diagram.nodes.len();
        diagram.nodes.push(DrawNode { cluster, ..graph_node(prims, node) });
        let mut from = Vec::new();
        node.for_each_use(&mut |v| from.push(boxes.get(&v).copied()));
        arrows(&mut diagram, &from, at);
        boxes.extend(node.outputs.iter().map(|&v| (v, at)));
    }
    for output in &prims.outputs {
        let lines = vec!["output".to_owned()];
        diagram.nodes.push(DrawNode { lines, style: Style::Output, ..DrawNode::default() });
        let mut from = Vec::new();
        output.arg.for_each_value(&mut |v| from.push(boxes.get(&v).copied()));
        let at = diagram.nodes.len() - 1;
        arrows(&mut diagram, &from, at);
    }
    diagram
}

fn graph_node(graph: &Graph, node: &Node) -> DrawNode {
    let types = node.outputs.iter().filter_map(|&v| graph.meta(v)).map(ToString::to_string);
    let types: Vec<String> = types.collect();
    let origin = graph.origins.get(node.origin).map(ToString::to_string).unwrap_or_default();
    match &node.kind {
        NodeKind::Placeholder { kind, name } => {
            let weight = *kind != InputKind::User;
            let style = if weight { Style::Weight } else { Style::Input };
            let shown = if weight { last_parts(name) } else { name };
            let lines = std::iter::once(shown.to_owned()).chain(types).collect();
            DrawNode { lines, tooltip: name.clone(), style, small: weight, cluster: None }
        }
        NodeKind::Call { target, .. } => {
            let short = target.split_once('.').map_or(target.as_str(), |(_, rest)| rest);
            let short = short.strip_suffix(".default").unwrap_or(short);
            let lines = std::iter::once(short.to_owned()).chain(types).collect();
            let tooltip = format!("{target}\n{origin}");
            DrawNode { lines, tooltip, style: Style::of_name(short), small: false, cluster: None }
        }
    }
}

/// Arrows to a box, one from each of `from`.
fn arrows(diagram: &mut Diagram, from: &[Option<usize>], to: usize) {
    let mut from: Vec<usize> = from.iter().copied().flatten().filter(|&f| f != to).collect();
    from.sort_unstable();
    from.dedup();
    diagram.edges.extend(from.into_iter().map(|from| DrawEdge { from, to, dashed: false }));
}

/// `bn1.weight` of `layer1.0.bn1.weight`; tooltips have the whole name.
fn last_parts(name: &str) -> &str {
    name.rmatch_indices('.').nth(1).map_or(name, |(at, _)| &name[at + 1..])
}

/// `loop`, `matmul`, `conv`, `attention`, `extern`.
fn kind(step: &Step) -> &'static str {
    match step {
        Step::Loop(_) => "loop",
        Step::Matmul(_) => "matmul",
        Step::Conv(_) => "conv",
        Step::Attention(_) => "attention",
        Step::Extern(_) => "extern",
    }
}

/// The program: a box a kernel, an arrow from whoever writes a buffer to whoever reads it. What runs once, when the
/// weights are bound, stands in a frame.
pub(crate) fn kernels(program: &Program) -> Diagram {
    let title = program.name.clone();
    let mut maker =
        Maker { program, diagram: Diagram { title, ..Diagram::default() }, writer: HashMap::new() };
    for input in &program.inputs {
        let lines = vec![input.name.clone(), type_of(&program.buffers[input.buf])];
        let node = maker.node(DrawNode { lines, style: Style::Input, ..DrawNode::default() });
        maker.writer.insert(program.root(input.buf), node);
    }
    let once = (!program.init.is_empty()).then(|| {
        let label = "once, when the weights are bound".to_owned();
        maker.diagram.clusters.push(DrawCluster { label, parent: None });
        0
    });
    program.init.iter().for_each(|step| maker.step(step, once));
    program.steps.iter().for_each(|step| maker.step(step, None));
    for output in &program.outputs {
        let from = maker.source(output.buf, None);
        let lines = vec!["output".to_owned(), output.name.clone()];
        let node = maker.node(DrawNode { lines, style: Style::Output, ..DrawNode::default() });
        arrows(&mut maker.diagram, &[from], node);
    }
    maker.diagram
}

struct Maker<'p> {
    program: &'p Program,
    diagram: Diagram,
    /// The box that wrote a buffer last.
    writer: HashMap<BufId, usize>,
}

impl Maker<'_> {
    fn node(&mut self, node: DrawNode) -> usize {
        self.diagram.nodes.push(node);
        self.diagram.nodes.len() - 1
    }

    /// The box that a buffer comes from; a constant's is made when it is first read.
    fn source(&mut self, buf: BufId, cluster: Option<usize>) -> Option<usize> {
        let root = self.program.root(buf);
        if let Some(&writer) = self.writer.get(&root) {
            return Some(writer);
        }
        let buffer = &self.program.buffers[root];
        let Storage::Constant(n) = buffer.storage else { return None };
        let name = self.program.constants.get(n as usize).map_or(buffer.name.as_str(), |c| c.name.as_str());
        let lines = vec![last_parts(name).to_owned(), type_of(buffer)];
        let tooltip = name.to_owned();
        let node = self.node(DrawNode { lines, tooltip, style: Style::Weight, small: true, cluster });
        self.writer.insert(root, node);
        Some(node)
    }

    fn step(&mut self, step: &Step, cluster: Option<usize>) {
        let (reads, writes) = step.accesses();
        let from: Vec<Option<usize>> = reads.iter().map(|&buf| self.source(buf, cluster)).collect();
        let mut lines = vec![step.name().to_owned(), kind(step).to_owned()];
        lines.extend(writes.iter().map(|&buf| type_of(&self.program.buffers[buf])));
        lines.extend(step.origins().iter().take(LISTED).map(|o| format!("· {o}")));
        if step.origins().len() > LISTED {
            lines.push(format!("· … {} more", step.origins().len() - LISTED));
        }
        let tooltip = step.to_string();
        let node =
            self.node(DrawNode { lines, tooltip, style: Style::of_name(kind(step)), small: false, cluster });
        arrows(&mut self.diagram, &from, node);
        for buf in writes {
            self.writer.insert(self.program.root(buf), node);
        }
    }
}

fn type_of(buffer: &Buffer) -> String {
    let sizes: Vec<String> = buffer.sizes.iter().map(ToString::to_string).collect();
    format!("{}[{}]", buffer.dtype, sizes.join(", "))
}
