//! Drawings of compiled programs: primitive operators in frames of the kernels that contain them, and the kernels with the
//! buffers between them. `fx_ir::draw` has the layout and the file formats.

use std::collections::{HashMap, HashSet};

use fx_ir::draw::{Diagram, DrawCluster, DrawEdge, DrawNode, Style};
use fx_ir::{Graph, InputKind, Node, NodeId, NodeKind, Uses, ValueId};
use kernel_ir::{BufId, Buffer, Program, Step, Storage};

/// Most lines of a box that list fused operators; the tooltip has all of them.
const LISTED: usize = 6;

/// The graph of primitive operators with a frame around each kernel's.
///
/// A kernel names its captured calls, and so does a primitive: a call whose primitives are in several kernels is split by
/// kind (run once, templates, loops); an operator that several kernels compute is shown in the first. A weight is in the
/// frame of its users if they share one.
pub fn fused(prims: &Graph, program: &Program) -> Diagram {
    let mut diagram = Diagram { title: prims.name.clone(), ..Diagram::default() };
    let groups = Groups::of(prims, program, &mut diagram);
    let uses = Uses::of(prims);
    let mut boxes: HashMap<ValueId, usize> = HashMap::new();
    for (id, node) in prims.iter().filter(|(_, node)| is_drawn(node, &uses)) {
        let cluster = match &node.kind {
            NodeKind::Call { .. } => groups.group(id),
            NodeKind::Placeholder { kind: InputKind::User, .. } => None,
            NodeKind::Placeholder { .. } => groups.of_users(node, &uses),
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

/// Weights that nothing reads (counters of batches, say) are left out.
fn is_drawn(node: &Node, uses: &Uses) -> bool {
    node.as_call().is_some() || node.outputs.iter().any(|&v| !uses.is_dead(v))
}

/// The frame of a primitive.
struct Groups<'g> {
    prims: &'g Graph,
    /// For each captured call the frames of the kernels that name it, in order.
    by_name: HashMap<&'g str, Vec<(usize, Part)>>,
    /// Primitives that depend on weights alone.
    fixed: HashSet<NodeId>,
}

/// The kind of kernel that a primitive is likely to be in.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Once,
    Template,
    Loop,
}

impl<'g> Groups<'g> {
    /// Adds a frame for every kernel of the program.
    fn of(prims: &'g Graph, program: &'g Program, diagram: &mut Diagram) -> Groups<'g> {
        let mut by_name: HashMap<&str, Vec<(usize, Part)>> = HashMap::new();
        for (once, step) in
            program.init.iter().map(|s| (true, s)).chain(program.steps.iter().map(|s| (false, s)))
        {
            frames(step, once, None, &mut by_name, diagram);
        }
        Groups { prims, by_name, fixed: fixed(prims) }
    }

    fn group(&self, id: NodeId) -> Option<usize> {
        let target = self.prims.nodes[id].as_call()?.0;
        let likely = match target {
            _ if self.fixed.contains(&id) => Part::Once,
            "prims.conv"
            | "prims.matmul"
            | "prims.grouped_matmul"
            | "prims.grouped_sums"
            | "prims.attention"
            | "prims.sort" => Part::Template,
            _ => Part::Loop,
        };
        let frames = self.by_name.get(self.prims.node_name(id))?;
        let frame =
            |wanted: &dyn Fn(Part) -> bool| frames.iter().find(|(_, part)| wanted(*part)).map(|f| f.0);
        let other = || frame(&|part| part == Part::Loop).or_else(|| frame(&|part| part != Part::Once));
        frame(&|part| part == likely).or_else(other).or_else(|| frame(&|_| true))
    }

    /// The frame that all users of a weight are in.
    fn of_users(&self, weight: &Node, uses: &Uses) -> Option<usize> {
        let users = weight.outputs.iter().flat_map(|&v| uses.users(v));
        let mut frames = users.map(|&user| self.group(user));
        let first = frames.next().flatten();
        first.filter(|first| frames.all(|frame| frame == Some(*first)))
    }
}

/// Adds the frame of a kernel, or that of a group of concurrent steps with the frames of its members in it.
fn frames<'g>(
    step: &'g Step,
    once: bool,
    parent: Option<usize>,
    by_name: &mut HashMap<&'g str, Vec<(usize, Part)>>,
    diagram: &mut Diagram,
) {
    let part = match (once, step) {
        (true, _) => Part::Once,
        (false, Step::Loop(_)) => Part::Loop,
        _ => Part::Template,
    };
    let word = if once { "once: " } else { "" };
    let label = format!("{word}{} ({})", step.name(), step.kind());
    let frame = diagram.clusters.len();
    diagram.clusters.push(DrawCluster { label, parent });
    for name in step.origins() {
        by_name.entry(name).or_default().push((frame, part));
    }
    if let Step::Together(t) = step {
        t.steps.iter().for_each(|s| frames(s, once, Some(frame), by_name, diagram));
    }
}

/// The calls that depend on weights alone.
pub(super) fn fixed(graph: &Graph) -> HashSet<NodeId> {
    let mut fixed = HashSet::new();
    let mut varies: HashSet<ValueId> = HashSet::new();
    for (id, node) in graph.iter() {
        let mut depends = matches!(node.kind, NodeKind::Placeholder { kind: InputKind::User, .. });
        node.for_each_use(&mut |v| depends |= varies.contains(&v));
        if depends {
            varies.extend(node.outputs.iter().copied());
        } else if node.as_call().is_some() {
            fixed.insert(id);
        }
    }
    fixed
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

/// A hue for each kind of kernel.
fn hue(step: &Step) -> Style {
    Style::Family(match step {
        Step::Loop(_) => 0,
        Step::Matmul(_) => 1,
        Step::Conv(_) => 2,
        Step::Attention(_) => 3,
        Step::Extern(_) => 4,
        Step::Bind(_) | Step::Assert(_) | Step::Cond(_) | Step::For(_) | Step::While(_) => 5,
        // Members are of one kind.
        Step::Together(t) => return t.steps.first().map_or(Style::Family(0), hue),
    })
}

/// The program: one box per kernel, an arrow from the writer of a buffer to each reader. The steps that run once, when the
/// weights are bound, is in a frame.
pub fn kernels(program: &Program) -> Diagram {
    let title = program.name.clone();
    let mut maker =
        KernelDiagram { program, diagram: Diagram { title, ..Diagram::default() }, writer: HashMap::new() };
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

struct KernelDiagram<'p> {
    program: &'p Program,
    diagram: Diagram,
    /// The box that wrote a buffer last.
    writer: HashMap<BufId, usize>,
}

impl KernelDiagram<'_> {
    fn node(&mut self, node: DrawNode) -> usize {
        self.diagram.nodes.push(node);
        self.diagram.nodes.len() - 1
    }

    /// The box that a buffer comes from; a constant's is created when it is first read.
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
        let mut lines = vec![step.name().to_owned(), step.kind().to_owned()];
        let listed: Vec<&str> = match step {
            Step::Together(t) => t.steps.iter().map(Step::name).collect(),
            _ => {
                lines.extend(writes.iter().map(|&buf| type_of(&self.program.buffers[buf])));
                step.origins().iter().map(String::as_str).collect()
            }
        };
        lines.extend(listed.iter().take(LISTED).map(|o| format!("· {o}")));
        if listed.len() > LISTED {
            lines.push(format!("· … {} more", listed.len() - LISTED));
        }
        let tooltip = step.to_string();
        let node = self.node(DrawNode { lines, tooltip, style: hue(step), small: false, cluster });
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
