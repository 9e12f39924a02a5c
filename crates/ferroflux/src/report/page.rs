//! The page itself: drawings, data and the script that connects them, in one file.

use std::collections::BTreeMap;

use fx_ir::draw::{Diagram, DrawNode, graph_diagram};
use fx_ir::{Graph, InputKind, NodeKind, Uses};
use kernel_ir::{Program, Step};
use serde_json::{Value, json};

use super::{About, diagram, memory};
use crate::profiler::Averages;

const TEMPLATE: &str = include_str!("page.html");

/// The whole file.
pub(super) fn html(about: &About, times: &Averages) -> String {
    let captured = drawing(graph_diagram(&about.graph));
    let kernels = drawing(diagram::kernels(&about.kernels));
    let data = json!({
        "name": about.name,
        "backend": about.backend,
        "mode": about.mode,
        "nodes": nodes(&about.graph),
        "kernels": kernel_list(&about.kernels, &about.seconds),
        "boxes": [boxes_of_graph(&about.graph), boxes_of_kernels(&about.kernels)],
        "memory": memory::over_steps(&about.kernels),
        "constants": constants(&about.kernels),
        "times": times.rows.iter().map(|r| json!([r.name, r.category.name(), r.calls, r.total, r.own])).collect::<Vec<_>>(),
        "guards": about.guards,
        "function": about.function.as_ref().map(|f| json!({
            "guards": f.guards, "recompiles": f.recompiles, "captures": f.captures,
        })),
    });
    // A script must not end before its end, whatever names the model has.
    let data = data.to_string().replace("</", "<\\/");
    TEMPLATE
        .replacen("@TITLE@", &escaped(&about.name), 2)
        .replacen("@CAPTURED@", &captured, 1)
        .replacen("@KERNELS@", &kernels, 1)
        .replacen("@DATA@", &data, 1)
}

/// A drawing without tooltips: the page shows what they say.
fn drawing(mut diagram: Diagram) -> String {
    diagram.nodes.iter_mut().for_each(|node: &mut DrawNode| node.tooltip = String::new());
    diagram.to_svg()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The calls of the graph by name: operator, module, line, type.
fn nodes(graph: &Graph) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for (id, node) in graph.iter() {
        let Some((target, _)) = node.as_call() else { continue };
        let origin = graph.origin(id);
        let types = node.outputs.iter().filter_map(|&v| graph.meta(v)).map(ToString::to_string);
        let types: Vec<String> = types.collect();
        let place = [origin.module.as_str(), &origin.function, origin.source.as_deref().unwrap_or_default()];
        all.insert(graph.node_name(id).to_owned(), json!([target, place, types.join(", ")]));
    }
    all
}

/// The name of the node that each box of the captured graph's drawing stands for, in the order of the drawing: boxes of
/// subgraphs stand first, weights that nothing reads have none, results stand last.
fn boxes_of_graph(graph: &Graph) -> Vec<String> {
    let inner: usize = graph.subgraphs.values().map(|sub| graph_diagram(sub).nodes.len()).sum();
    let mut names = vec![String::new(); inner];
    let uses = Uses::of(graph);
    for (id, node) in graph.iter() {
        names.push(match &node.kind {
            NodeKind::Call { .. } => graph.node_name(id).to_owned(),
            NodeKind::Placeholder { kind, .. }
                if *kind != InputKind::User && node.outputs.iter().all(|&v| uses.is_dead(v)) =>
            {
                continue;
            }
            NodeKind::Placeholder { .. } => String::new(),
        });
    }
    names
}

/// Kernels in order, those that run once first: name, kind, nodes, text, whether it runs once, seconds where it was timed.
fn kernel_list(program: &Program, seconds: &[Option<f64>]) -> Vec<Value> {
    let one = |step: &Step, once: bool, seconds: Option<f64>| {
        let mut nodes = step.origins().to_vec();
        if let Step::Together(t) = step {
            nodes = t.steps.iter().flat_map(Step::origins).cloned().collect();
        }
        json!([step.name(), step.kind(), nodes, step.to_string(), once, seconds])
    };
    let once = program.init.iter().map(|s| one(s, true, None));
    let of = |n: usize| seconds.get(n).copied().flatten();
    once.chain(program.steps.iter().enumerate().map(|(n, s)| one(s, false, of(n)))).collect()
}

/// For each box of the kernels' drawing the number of its kernel; -1 for inputs, weights and outputs.
fn boxes_of_kernels(program: &Program) -> Vec<i64> {
    let names: Vec<&str> = program.init.iter().chain(&program.steps).map(Step::name).collect();
    let mut next = 0;
    let diagram = diagram::kernels(program);
    let number = |node: &DrawNode| {
        let is_next = node.lines.first().map(String::as_str) == names.get(next).copied()
            && matches!(node.style, fx_ir::draw::Style::Family(_));
        if is_next {
            next += 1;
            return next as i64 - 1;
        }
        -1
    };
    diagram.nodes.iter().map(number).collect()
}

/// Bytes of weights, where sizes are numbers.
fn constants(program: &Program) -> u64 {
    let weight = |b: &&kernel_ir::Buffer| {
        matches!(b.storage, kernel_ir::Storage::Constant(_) | kernel_ir::Storage::Persistent)
    };
    let bytes =
        |b: &kernel_ir::Buffer| b.span().as_const().unwrap_or(0).max(0) as u64 * b.dtype.size() as u64;
    program.buffers.values().filter(weight).map(bytes).sum()
}
