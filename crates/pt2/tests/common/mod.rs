//! What the tests of this crate share: the corpus' place, a check of a read program, and the golden archives.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::HashSet;
use std::path::PathBuf;

use fx_ir::{Graph, NodeKind};
use pt2::ExportedProgram;

/// The folder beside the project that holds corpus and models; `None`, with a printed line, where it is absent.
pub fn corpus() -> Option<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    if root.join("corpus/README.md").exists() {
        return Some(root);
    }
    println!("no corpus at {}: skipped", root.display());
    None
}

/// A golden archive of `tests/data` at the repository's root.
pub fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/pt2").join(name)
}

/// What is wrong with a program that was read: uses before definitions, weights without a graph input.
pub fn problems_of(program: &ExportedProgram) -> Vec<String> {
    let mut problems = Vec::new();
    check(&program.graph, &mut problems);
    for input in &program.inputs {
        if input.value.is_none() == input.constant.is_none() {
            problems.push(format!("input {} is neither a value nor a constant", input.path));
        }
    }
    let weights = program.graph.inputs().filter(|(_, kind, _)| *kind != fx_ir::InputKind::User).count();
    if weights != program.weights.len() {
        problems.push(format!("{weights} weight inputs, {} weights", program.weights.len()));
    }
    problems
}

fn check(graph: &Graph, problems: &mut Vec<String>) {
    let mut defined = HashSet::new();
    let mut calls_begun = false;
    for (id, node) in graph.iter() {
        match &node.kind {
            NodeKind::Placeholder { name, .. } if calls_begun => {
                problems.push(format!("input {name} stands after a call"));
            }
            NodeKind::Placeholder { .. } => {}
            NodeKind::Call { .. } => calls_begun = true,
        }
        node.for_each_use(&mut |v| {
            if !defined.contains(&v) {
                problems.push(format!("{} reads {v} before its definition", graph.node_name(id)));
            }
        });
        defined.extend(node.outputs.iter().copied());
    }
    for output in &graph.outputs {
        output.arg.for_each_value(&mut |v| {
            if !defined.contains(&v) {
                problems.push(format!("the graph returns {v}, which nothing defines"));
            }
        });
    }
    graph.subgraphs.values().for_each(|g| check(g, problems));
}
