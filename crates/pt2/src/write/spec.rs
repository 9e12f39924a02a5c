//! The calling convention: structures of arguments and results as text of `treespec_dumps`.

use serde_json::{Value, json};

use crate::program::{ExportedProgram, TreeSpec};

/// The module call graph: the whole module.
pub(super) fn module_calls(program: &ExportedProgram) -> Value {
    let leaves = |n: usize| vec![TreeSpec::Leaf; n];
    let inputs = program.call.inputs.clone().unwrap_or_else(|| {
        let args = TreeSpec::Sequence(leaves(program.inputs.len()));
        TreeSpec::Sequence(vec![args, TreeSpec::Dict(Vec::new())])
    });
    let users = program
        .graph
        .outputs
        .iter()
        .filter(|o| matches!(o.kind, fx_ir::OutputKind::User | fx_ir::OutputKind::Loss));
    let outputs = program.call.outputs.clone().unwrap_or_else(|| match users.count() {
        1 => TreeSpec::Leaf,
        n => TreeSpec::Sequence(leaves(n)),
    });
    let names = match program.call.arg_names.is_empty() {
        true => program.inputs.iter().map(|i| i.name.clone()).collect(),
        false => program.call.arg_names.clone(),
    };
    json!([{
        "fqn": "",
        "signature": {
            "inputs": [],
            "outputs": [],
            "in_spec": text(&inputs),
            "out_spec": text(&outputs),
            "forward_arg_names": names,
        },
    }])
}

fn text(spec: &TreeSpec) -> String {
    json!([1, node(spec)]).to_string()
}

fn node(spec: &TreeSpec) -> Value {
    match spec {
        TreeSpec::Leaf => json!({ "type": null, "context": null, "children_spec": [] }),
        TreeSpec::Sequence(children) => {
            let children: Vec<Value> = children.iter().map(node).collect();
            json!({ "type": "builtins.tuple", "context": "null", "children_spec": children })
        }
        TreeSpec::Dict(entries) => {
            let keys: Vec<&str> = entries.iter().map(|(key, _)| key.as_str()).collect();
            let children: Vec<Value> = entries.iter().map(|(_, child)| node(child)).collect();
            json!({ "type": "builtins.dict", "context": json!(keys).to_string(), "children_spec": children })
        }
    }
}
