//! Writes a diagram in the DOT language of graphviz. Graphviz then computes its own layout.

use std::fmt::Write as _;

use super::Diagram;
use super::svg::colours;

/// The whole `digraph`.
pub(super) fn text(diagram: &Diagram) -> String {
    let mut out = format!(
        "digraph {} {{\n  rankdir=TB;\n  node [shape=box, style=\"rounded,filled\", fontname=\"Helvetica\"];\n",
        quote(&diagram.title)
    );
    group(diagram, None, 1, &mut out);
    for e in &diagram.edges {
        if e.from < diagram.nodes.len() && e.to < diagram.nodes.len() {
            let style = if e.dashed { " [style=dashed]" } else { "" };
            let _ = writeln!(out, "  n{} -> n{}{style};", e.from, e.to);
        }
    }
    out.push_str("}\n");
    out
}

/// Writes the boxes and nested frames of one frame. Frames nest by increasing index, so the recursion ends.
fn group(diagram: &Diagram, frame: Option<usize>, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth);
    for (n, node) in diagram.nodes.iter().enumerate() {
        if diagram.frame(node.cluster, diagram.clusters.len()) != frame {
            continue;
        }
        let [fill, border, title] = colours(node.style);
        let size = if node.small { ", fontsize=8, height=0.2" } else { "" };
        let _ = writeln!(
            out,
            "{indent}n{n} [label={}, tooltip={}, fillcolor=\"{fill}\", color=\"{border}\", fontcolor=\"{title}\"{size}];",
            quote(&node.lines.join("\n")),
            quote(&node.tooltip)
        );
    }
    for (c, cluster) in diagram.clusters.iter().enumerate() {
        if diagram.frame(cluster.parent, c) == frame {
            let _ =
                writeln!(out, "{indent}subgraph cluster_{c} {{\n{indent}  label={};", quote(&cluster.label));
            group(diagram, Some(c), depth + 1, out);
            let _ = writeln!(out, "{indent}}}");
        }
    }
}

fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
