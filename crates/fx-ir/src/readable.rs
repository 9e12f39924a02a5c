//! The graph as code for human readers, like torch.fx's `print_readable`. This form is not parsed back; [`crate::text`] is.

use std::fmt::Write as _;

use crate::text::{Names, arg_text, type_text};
use crate::{Graph, InputKind, Node, NodeKind, OutputKind, ValueId};

impl Graph {
    /// The graph as code: a function with typed inputs, one `let` per call, a comment wherever the module changes, and
    /// what the results are for.
    pub fn print_readable(&self) -> String {
        let mut out = String::new();
        function(self, 0, &mut out);
        out
    }
}

fn function(graph: &Graph, depth: usize, out: &mut String) {
    let indent = "    ".repeat(depth);
    let names = Names::of(graph);
    for (id, s) in graph.symbols.iter() {
        let max = s.max.map_or_else(String::new, |m| format!("={m}"));
        let hint = s.hint.map_or_else(String::new, |h| format!(", at capture {h}"));
        let unbacked = if s.unbacked { ", known at run time only" } else { "" };
        let min = if s.min == i64::MIN { String::new() } else { s.min.to_string() };
        let _ = writeln!(out, "{indent}// {id} = {}: {min}..{max}{hint}{unbacked}", s.name);
    }
    let name = if graph.name.is_empty() { "graph" } else { &graph.name };
    let _ = writeln!(out, "{indent}fn {name}(");
    for (_, node) in graph.iter() {
        if let NodeKind::Placeholder { kind, name } = &node.kind {
            let _ =
                writeln!(out, "{indent}    {},{}", definitions(graph, &names, node), input_note(*kind, name));
        }
    }
    let _ = writeln!(out, "{indent}) {{");
    for (id, sub) in graph.subgraphs.iter() {
        let _ = writeln!(out, "{indent}    // {id}");
        function(sub, depth + 1, out);
    }
    statements(graph, &names, &format!("{indent}    "), out);
    returns(graph, &names, &format!("{indent}    "), out);
    let _ = writeln!(out, "{indent}}}");
}

/// `  // parameter conv1.weight`; nothing for the caller's own inputs.
fn input_note(kind: InputKind, name: &str) -> String {
    match kind {
        InputKind::User => String::new(),
        InputKind::Parameter => format!("  // parameter {name}"),
        InputKind::Buffer { persistent: true } => format!("  // buffer {name}"),
        InputKind::Buffer { persistent: false } => format!("  // buffer {name} (not in checkpoints)"),
        InputKind::Constant => format!("  // constant {name}"),
        InputKind::Seed => "  // seed of the random numbers".into(),
    }
}

fn statements(graph: &Graph, names: &Names, indent: &str, out: &mut String) {
    let mut module: Option<&str> = None;
    for (_, node) in graph.iter() {
        let Some((target, args)) = node.as_call() else { continue };
        let origin = graph.origins.get(node.origin);
        let here = origin.map_or("", |o| o.module.as_str());
        if module != Some(here) && !here.is_empty() {
            let source =
                origin.and_then(|o| o.source.as_deref()).map_or_else(String::new, |s| format!("  ({s})"));
            let _ = writeln!(out, "\n{indent}// {here}{source}");
        }
        module = Some(here);
        let args: Vec<String> = args.iter().map(|a| arg_text(a, &|v| names.get(v))).collect();
        let left = match node.outputs.len() {
            0 => String::new(),
            1 => format!("let {} = ", definitions(graph, names, node)),
            _ => format!("let ({}) = ", definitions(graph, names, node)),
        };
        let _ = writeln!(out, "{indent}{left}{target}({});", args.join(", "));
    }
}

/// `x: f32[2], y: i64[2]`
fn definitions(graph: &Graph, names: &Names, node: &Node) -> String {
    let one = |v: &ValueId| {
        let ty = graph.values.get(*v).map_or_else(|| "?".into(), |value| type_text(&value.ty));
        format!("{}: {ty}", names.get(*v))
    };
    node.outputs.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn returns(graph: &Graph, names: &Names, indent: &str, out: &mut String) {
    let mut results = Vec::new();
    for output in &graph.outputs {
        let arg = arg_text(&output.arg, &|v| names.get(v));
        match &output.kind {
            OutputKind::User => results.push(arg),
            OutputKind::Loss => results.push(format!("{arg} /* loss */")),
            OutputKind::Saved => results.push(format!("{arg} /* saved for backward */")),
            OutputKind::ParameterGradient(n) | OutputKind::InputGradient(n) => {
                results.push(format!("{arg} /* gradient of {n} */"));
            }
            OutputKind::BufferMutation(n) | OutputKind::InputMutation(n) => {
                let _ = writeln!(out, "{indent}{n} := {arg};");
            }
        }
    }
    let _ = match &results[..] {
        [one] => writeln!(out, "{indent}return {one};"),
        many => writeln!(out, "{indent}return ({});", many.join(", ")),
    };
}
