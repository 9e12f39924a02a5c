//! File tests: every `tests/files/*.fx` says in its first lines what is tested (`# test verify`), holds a graph, and ends
//! with what is expected (`# expected:` and comment lines). `BLESS=1` rewrites the expectations.
//!
//! - `roundtrip`: the graph prints as the file has it and reads back equal.
//! - `error`: the text does not parse; the error is expected.
//! - `verify`: the violations are expected, or `well-formed`.
//! - `print`: the readable form is expected.
//! - `draw`: the DOT text is expected, and the SVG is well-formed XML with every node's name.

#![allow(clippy::unwrap_used)] // a failing test may panic

use std::path::Path;

use fx_ir::{Graph, text, well_formed};
use testing::files::{self, File};

#[test]
fn every_file_gives_what_it_expects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    files::check(&folder, "fx", 8, |file| run(file.directive()?, file));
}

fn run(test: &str, file: &File) -> Result<String, String> {
    if test == "error" {
        return match text::parse(&file.input) {
            Ok(_) => Err("parses, although an error is expected".into()),
            Err(error) => Ok(error.to_string()),
        };
    }
    let graph: Graph = file.input.parse().map_err(|e| format!("{e}"))?;
    match test {
        "roundtrip" => roundtrip(&graph, file),
        "verify" => Ok(match well_formed(&graph) {
            Ok(()) => "well-formed".into(),
            Err(errors) => errors.iter().map(|e| format!("{e}\n")).collect(),
        }),
        "print" => Ok(graph.print_readable()),
        "draw" => draw(&graph),
        other => Err(format!("`{other}` is no test")),
    }
}

/// The file's text itself is the expectation, so that the format of a file in the tree cannot change unseen.
fn roundtrip(graph: &Graph, file: &File) -> Result<String, String> {
    let printed = text::print(graph);
    if printed.trim() != file.body().trim() {
        return Err(format!("prints as\n{printed}"));
    }
    let again = text::parse(&printed).map_err(|e| e.to_string())?;
    if again != *graph { Err("reads back as another graph".into()) } else { Ok(String::new()) }
}

fn draw(graph: &Graph) -> Result<String, String> {
    let diagram = fx_ir::draw::graph_diagram(graph);
    let svg = diagram.to_svg();
    for node in &diagram.nodes {
        let title = node.lines.first().map_or("", |l| l.as_str());
        let title = title.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        if !svg.contains(&title) {
            return Err(format!("`{title}` is not in the SVG"));
        }
    }
    balanced(&svg)?;
    Ok(diagram.to_dot())
}

/// Every tag that opens closes, in order.
fn balanced(svg: &str) -> Result<(), String> {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let tag = tag.split('>').next().unwrap_or("");
        if let Some(name) = tag.strip_prefix('/') {
            let last = open.pop();
            if last != Some(name) {
                return Err(format!("</{name}> closes {last:?}"));
            }
        } else if !tag.ends_with('/') && !tag.starts_with('?') {
            open.push(tag.split_whitespace().next().unwrap_or(""));
        }
    }
    if open.is_empty() { Ok(()) } else { Err(format!("{open:?} stay open")) }
}
