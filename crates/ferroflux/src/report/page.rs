//! The page itself: drawings, data and the script that connects them, in one file.

use std::collections::HashMap;
use std::fmt::Write;

use fx_ir::{Graph, NodeKind, ValueId};
use kernel_ir::{Program, Step};
use plugin_host::Listing;
use serde_json::{Value, json};

use super::stages::{Stage, of_graph, of_kernels, of_prims};
use super::{Function, memory};
use crate::mesh::Member;
use crate::profiler::Averages;

const TEMPLATE: &str = include_str!("page.html");
/// Bytes of machine code and sources on a page. Equal texts count once; what is beyond is left out, and the page says so.
const MOST_CODE: usize = 1_500_000;

/// What a page is made of.
pub(super) struct Facts<'a> {
    pub(super) name: &'a str,
    pub(super) backend: &'a str,
    pub(super) mode: &'static str,
    /// The rank whose program it is, on a mesh: prims and kernels are its own, the stages before those of all.
    pub(super) rank: Option<&'a Member>,
    /// The graph whose lines the user knows.
    pub(super) captured: &'a Graph,
    /// The same without mutation; none of a function, which is recorded without.
    pub(super) functional: Option<&'a Graph>,
    /// The graph that was lowered.
    pub(super) prims: &'a Graph,
    pub(super) kernels: &'a Program,
    pub(super) listings: &'a [Listing],
    /// Seconds of each kernel of a call alone; empty where they were not timed.
    pub(super) seconds: &'a [Option<f64>],
    /// The conditions on sizes.
    pub(super) guards: Vec<String>,
    pub(super) function: Option<&'a Function>,
}

/// A page without its times, which are those of the moment when it is written.
pub(super) struct Page {
    name: String,
    /// Style and arrow heads of all drawings.
    shared: String,
    drawings: String,
    data: Value,
}

impl Page {
    pub(super) fn of(facts: &Facts<'_>) -> Page {
        let functional = facts.functional.map(|graph| of_graph("functional", graph));
        let mut stages = vec![of_graph("captured", facts.captured)];
        stages.extend(functional);
        stages.extend([of_prims(facts.prims, facts.kernels), of_kernels(facts.kernels)]);
        let (shared, drawings) = drawn(&stages);
        let boxes = |s: &Stage| json!({"name": s.name, "boxes": s.boxes});
        let data = json!({
            "name": facts.name,
            "backend": facts.backend,
            "mode": facts.mode,
            "rank": facts.rank.map(|member| format!("{} of the mesh {}", member.name(), member.mesh())),
            "nodes": nodes(facts.captured),
            "kernels": kernel_list(facts.kernels, facts.seconds),
            "code": code(facts.listings),
            "stages": stages.iter().map(boxes).collect::<Vec<_>>(),
            "memory": memory::over_steps(facts.kernels),
            "constants": constants(facts.kernels),
            "guards": facts.guards,
            "function": facts.function.map(|f| json!({
                "guards": f.guards, "recompiles": f.recompiles, "captures": f.captures,
            })),
        });
        Page { name: facts.name.to_owned(), shared, drawings, data }
    }

    /// The whole file.
    pub(super) fn html(&self, times: &Averages) -> String {
        let rows = times.rows.iter().map(|r| json!([r.name, r.category.name(), r.calls, r.total, r.own]));
        let mut data = self.data.clone();
        data["times"] = rows.collect();
        // A script must not end before its end, whatever names the model has.
        let data = data.to_string().replace("</", "<\\/");
        TEMPLATE
            .replacen("@TITLE@", &escaped(&self.name), 2)
            .replacen("@SHARED@", &self.shared, 1)
            .replacen("@STAGES@", &self.drawings, 1)
            .replacen("@DATA@", &data, 1)
    }
}

/// Style and arrow heads, once, and a column for each stage. An arrow head in a column that is hidden would be hidden in the
/// others too.
fn drawn(stages: &[Stage]) -> (String, String) {
    let (mut shared, mut columns) = (String::new(), String::new());
    for stage in stages {
        let svg = stage.diagram.to_svg();
        let parts = svg.split_once("<style>").and_then(|(head, rest)| {
            let (common, tail) = rest.split_once("</defs>")?;
            Some((head, common, tail))
        });
        let (head, common, tail) = parts.unwrap_or((&svg, "", ""));
        if shared.is_empty() && !common.is_empty() {
            shared = format!(
                "<svg width=\"0\" height=\"0\" style=\"position:absolute\"><style>{common}</defs></svg>"
            );
        }
        let name = stage.name;
        let _ = write!(
            columns,
            "<div class=\"stage\" id=\"{name}\"><h2>{name}</h2><div class=\"drawing\">{head}{tail}</div></div>"
        );
    }
    (shared, columns)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The calls of the graph in order: name, operator, place (module, function, line), type, and what it reads.
fn nodes(graph: &Graph) -> Vec<Value> {
    let typed = |v| graph.meta(v).map(ToString::to_string).unwrap_or_default();
    let mut names: HashMap<ValueId, &str> = HashMap::new();
    for (id, node) in graph.iter() {
        let name = match &node.kind {
            NodeKind::Placeholder { name, .. } => name,
            NodeKind::Call { .. } => graph.node_name(id),
        };
        names.extend(node.outputs.iter().map(|&v| (v, name)));
    }
    let calls = graph.iter().filter_map(|(id, node)| Some((id, node, node.as_call()?.0)));
    let one = |(id, node, target): (_, &fx_ir::Node, &str)| {
        let origin = graph.origin(id);
        let types: Vec<String> = node.outputs.iter().map(|&v| typed(v)).collect();
        let place = [origin.module.as_str(), &origin.function, origin.source.as_deref().unwrap_or_default()];
        let mut reads = Vec::new();
        node.for_each_use(&mut |v| {
            reads.push([names.get(&v).copied().unwrap_or_default().to_owned(), typed(v)]);
        });
        json!([graph.node_name(id), target, place, types.join(", "), reads])
    };
    calls.map(one).collect()
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

/// The texts of functions, equal ones once; for each step the languages and numbers of its texts; how many were left out.
fn code(listings: &[Listing]) -> Value {
    let (mut texts, mut known, mut bytes, mut left_out) = (Vec::new(), HashMap::new(), 0, 0);
    let mut steps: HashMap<&str, Vec<Value>> = HashMap::new();
    for listing in listings {
        let text = listing.text.as_str();
        let number = match known.get(text) {
            Some(&number) => number,
            None if bytes + text.len() > MOST_CODE => {
                left_out += 1;
                continue;
            }
            None => {
                bytes += text.len();
                texts.push(text);
                known.insert(text, texts.len() - 1);
                texts.len() - 1
            }
        };
        steps.entry(&listing.step).or_default().push(json!([listing.language, number]));
    }
    json!({"texts": texts, "steps": steps, "leftOut": left_out})
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
