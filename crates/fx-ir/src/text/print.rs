//! Writes the text form. Never fails: an ill-formed graph prints as far as it goes, so that it can be looked at.

use std::fmt::Write as _;

use ir_core::text::{self, quote};
use ir_core::{Guard, Origin};

use super::Names;
use super::words::{self, INPUTS, LAYOUTS, MEMORY_FORMATS};
use crate::{Arg, Graph, Node, NodeKind, Output, OutputKind, ValueId, ValueType};

/// Appends `graph "name" { … }`.
pub(super) fn graph(graph: &Graph, out: &mut String) {
    out.push_str(&format!("graph {} ", quote(&graph.name)));
    body(graph, 1, out);
}

/// Appends the body in braces; `depth` is that of its statements.
fn body(graph: &Graph, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth);
    let names = Names::of(graph);
    out.push_str("{\n");
    for (id, symbol) in graph.symbols.iter() {
        let _ = writeln!(out, "{indent}symbol {id} {}", text::symbol(symbol));
    }
    for guard in &graph.guards {
        let _ = writeln!(out, "{indent}guard {}", guard_text(guard));
    }
    for (id, sub) in graph.subgraphs.iter() {
        let _ = write!(out, "{indent}subgraph {id} {} ", quote(&sub.name));
        body(sub, depth + 1, out);
    }
    let mut in_inputs = false;
    for (_, node) in graph.iter() {
        let is_input = matches!(node.kind, NodeKind::Placeholder { .. });
        if in_inputs && !is_input {
            out.push('\n');
        }
        in_inputs = is_input;
        let _ = writeln!(out, "{indent}{}", statement(graph, &names, node));
    }
    for output in &graph.outputs {
        let _ = writeln!(out, "{indent}return {}", output_text(output, &names));
    }
    let _ = writeln!(out, "{}}}", "  ".repeat(depth - 1));
}

/// `s0 - s1, zero "the sizes differ" from add`.
fn guard_text(guard: &Guard) -> String {
    let Guard { expression, relation, origin, message } = guard;
    format!("{expression}, {} {}{}", relation.name(), quote(message), origin_text(origin))
}

fn statement(graph: &Graph, names: &Names, node: &Node) -> String {
    let mut text = String::new();
    for (n, &value) in node.outputs.iter().enumerate() {
        let sep = if n > 0 { ", " } else { "" };
        let ty = graph.values.get(value).map_or_else(|| "?".to_string(), |v| type_text(&v.ty));
        let _ = write!(text, "{sep}{}: {ty}", reference(names, value));
    }
    if !node.outputs.is_empty() {
        text.push_str(" = ");
    }
    match &node.kind {
        NodeKind::Placeholder { kind, name } => {
            let _ = write!(text, "{} {}", text::word_of(INPUTS, kind), quote(name));
        }
        NodeKind::Call { target, args } => {
            let args: Vec<String> = args.iter().map(|a| arg_text(a, &|v| reference(names, v))).collect();
            let _ = write!(text, "{}({})", target_text(target), args.join(", "));
        }
    }
    if let Some(origin) = graph.origins.get(node.origin) {
        text.push_str(&origin_text(origin));
    }
    text
}

fn target_text(target: &str) -> String {
    if words::RESERVED.contains(&target) { quote(target) } else { words::name(target) }
}

fn reference(names: &Names, value: ValueId) -> String {
    format!("%{}", words::name(&names.get(value)))
}

/// ` from module:function:"source":"operator":"precision"`, empty for the empty origin; parts that are missing at the end are left out.
fn origin_text(origin: &Origin) -> String {
    if *origin == Origin::default() {
        return String::new();
    }
    let part = |text: &str| if text.is_empty() { String::new() } else { words::name(text) };
    let mut text = format!(" from {}", part(&origin.module));
    let precision = !origin.precisions.is_empty();
    let operator = !origin.operator.is_empty() || precision;
    if !origin.function.is_empty() || origin.source.is_some() || operator {
        text.push_str(&format!(":{}", part(&origin.function)));
    }
    match &origin.source {
        Some(source) => text.push_str(&format!(":{}", quote(source))),
        None if operator => text.push(':'),
        None => {}
    }
    if !origin.operator.is_empty() {
        text.push_str(&format!(":{}", quote(&origin.operator)));
    } else if precision {
        text.push(':');
    }
    if precision {
        text.push_str(&format!(":{}", quote(&origin.precisions.to_string())));
    }
    text
}

/// `f32[2]`, `int(s0)`, `float`, `bool`, `none`.
pub(crate) fn type_text(ty: &ValueType) -> String {
    match ty {
        ValueType::Tensor(meta) => meta.to_string(),
        ValueType::Int(expr) => format!("int({expr})"),
        ValueType::Float => "float".into(),
        ValueType::Bool => "bool".into(),
        ValueType::None => "none".into(),
    }
}

/// One argument; `value` writes a reference to a value.
pub(crate) fn arg_text(arg: &Arg, value: &dyn Fn(ValueId) -> String) -> String {
    match arg {
        Arg::None => "none".into(),
        Arg::Value(v) => value(*v),
        Arg::Int(e) => e.to_string(),
        Arg::Scalar(s) => text::scalar(*s),
        Arg::Str(s) => quote(s),
        Arg::DType(d) => d.to_string(),
        Arg::Device(d) => format!("@{d}"),
        Arg::Layout(l) => text::word_of(LAYOUTS, l).into(),
        Arg::MemoryFormat(m) => text::word_of(MEMORY_FORMATS, m).into(),
        Arg::List(items) => {
            let items: Vec<String> = items.iter().map(|a| arg_text(a, value)).collect();
            format!("[{}]", items.join(", "))
        }
        Arg::Graph(g) => format!("&{g}"),
    }
}

fn output_text(output: &Output, names: &Names) -> String {
    let arg = arg_text(&output.arg, &|v| reference(names, v));
    match &output.kind {
        OutputKind::User => arg,
        OutputKind::Loss => format!("loss {arg}"),
        OutputKind::Saved => format!("saved {arg}"),
        OutputKind::BufferMutation(name) => format!("buffer {} = {arg}", quote(name)),
        OutputKind::InputMutation(name) => format!("input {} = {arg}", quote(name)),
        OutputKind::ParameterGradient(name) => format!("parameter_gradient {} = {arg}", quote(name)),
        OutputKind::InputGradient(name) => format!("input_gradient {} = {arg}", quote(name)),
    }
}
