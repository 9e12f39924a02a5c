//! PyTorch's pytree specs: how nested arguments and results map to the flat lists of a graph.
//!
//! Used to name inputs and results (`d['a']`, `[1]`); structures of unknown types keep their leaves, named by number.

use serde::Deserialize;

use crate::error::{Pt2Error, Result, shorten};
use crate::json;
use crate::json_path::JsonPath;

/// A nested structure: a leaf or a container of structures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreeSpec {
    /// One value.
    Leaf,
    /// A tuple, named tuple or any other sequence.
    Sequence(Vec<TreeSpec>),
    /// A dictionary with its keys in order.
    Dict(Vec<(String, TreeSpec)>),
}

#[derive(Deserialize)]
struct Raw {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    context: Option<String>,
    #[serde(default)]
    children_spec: Vec<Raw>,
}

impl TreeSpec {
    /// Reads the text of `treespec_dumps`: `[1, {"type": …, "context": …, "children_spec": […]}]`.
    pub(super) fn read(text: &str, at: &JsonPath<'_>) -> Result<TreeSpec> {
        let parsed: Result<(i64, Raw)> = json::parse("", text.as_bytes());
        match parsed {
            Ok((1, raw)) => Ok(raw.spec()),
            Ok((version, _)) => {
                Err(at.invalid(format!("tree spec version {version}; this reader knows version 1")))
            }
            Err(Pt2Error::Json { problem, .. }) => Err(at.invalid(format!("not a tree spec: {problem}"))),
            Err(other) => Err(other),
        }
    }

    /// Number of values.
    pub fn leaves(&self) -> usize {
        match self {
            TreeSpec::Leaf => 1,
            TreeSpec::Sequence(children) => children.iter().map(TreeSpec::leaves).sum(),
            TreeSpec::Dict(children) => children.iter().map(|(_, c)| c.leaves()).sum(),
        }
    }

    /// Appends the path of every leaf below `prefix`: `prefix[0]['a']`, shortened so that hostile keys do not multiply.
    pub(super) fn paths(&self, prefix: &str, out: &mut Vec<String>) {
        match self {
            TreeSpec::Leaf => out.push(prefix.to_owned()),
            TreeSpec::Sequence(children) => {
                children
                    .iter()
                    .enumerate()
                    .for_each(|(i, c)| c.paths(&shorten(&format!("{prefix}[{i}]")), out));
            }
            TreeSpec::Dict(children) => {
                children.iter().for_each(|(key, c)| c.paths(&shorten(&format!("{prefix}['{key}']")), out));
            }
        }
    }

    /// Paths of the leaves of an input spec, `((args…), {kwargs…})`: `x`, `d['a']`. `None` where it has another form.
    pub(super) fn argument_paths(&self, names: &[String]) -> Option<Vec<String>> {
        let TreeSpec::Sequence(both) = self else { return None };
        let [TreeSpec::Sequence(args), TreeSpec::Dict(kwargs)] = &both[..] else { return None };
        let mut out = Vec::new();
        for (i, arg) in args.iter().enumerate() {
            let name = names.get(i).cloned().unwrap_or_else(|| format!("arg{i}"));
            arg.paths(&name, &mut out);
        }
        for (name, arg) in kwargs {
            arg.paths(name, &mut out);
        }
        Some(out)
    }
}

impl Raw {
    fn spec(self) -> TreeSpec {
        let Some(kind) = self.kind else { return TreeSpec::Leaf };
        let children = self.children_spec.into_iter().map(Raw::spec);
        let is_dict =
            matches!(kind.as_str(), "builtins.dict" | "collections.OrderedDict" | "collections.defaultdict");
        let keys = self.context.as_deref().filter(|_| is_dict).and_then(keys);
        match keys {
            Some(keys) if keys.len() == children.len() => {
                TreeSpec::Dict(keys.into_iter().zip(children).collect())
            }
            _ => TreeSpec::Sequence(children.collect()),
        }
    }
}

/// The keys in a dictionary's context: a JSON list of text or numbers; `defaultdict` has it as its second part.
fn keys(context: &str) -> Option<Vec<String>> {
    let value: serde_json::Value = serde_json::from_str(context).ok()?;
    let list = value.as_array()?;
    let list = match &list[..] {
        [_, serde_json::Value::Array(inner)] => inner,
        _ => list,
    };
    let key = |v: &serde_json::Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    Some(list.iter().map(key).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_arguments_are_named() {
        let leaf = r#"{"type": null, "context": null, "children_spec": []}"#;
        let dict = format!(
            r#"{{"type": "builtins.dict", "context": "[\"a\", 3]", "children_spec": [{leaf}, {leaf}]}}"#
        );
        let args =
            format!(r#"{{"type": "builtins.tuple", "context": "null", "children_spec": [{leaf}, {dict}]}}"#);
        let kwargs =
            format!(r#"{{"type": "builtins.dict", "context": "[\"k\"]", "children_spec": [{leaf}]}}"#);
        let text = format!(
            r#"[1, {{"type": "builtins.tuple", "context": "null", "children_spec": [{args}, {kwargs}]}}]"#
        );
        let spec = TreeSpec::read(&text, &JsonPath::Entry("e")).unwrap();
        let paths = spec.argument_paths(&["x".into(), "d".into()]).unwrap();
        assert_eq!(paths, ["x", "d['a']", "d['3']", "k"]);
        assert_eq!(spec.leaves(), 4);
        assert!(TreeSpec::read("[2, {\"type\": null}]", &JsonPath::Entry("e")).is_err());
        assert!(TreeSpec::read("{", &JsonPath::Entry("e")).is_err());
    }
}
