//! Guards of an archive: the conditions on input sizes that `torch.export` recorded (`guards_code`), and assertions of the
//! program about them, become guards of the graph. Conditions that are not about sizes are dropped, with a log message.

use fx_ir::{Graph, ValueType};
use ir_core::{Guard, Origin, Relation, SymExpr};
use tracing::debug;

use super::signature::UserInput;
use crate::error::shorten;
use crate::sym::{self, Bounds};

/// Adds a guard unless the ranges of the symbols prove it.
pub(super) fn add(
    graph: &mut Graph,
    expression: SymExpr,
    relation: Relation,
    origin: &Origin,
    message: &str,
) {
    if relation.decided(&expression, &graph.symbols) != Some(true) {
        graph.add_guard(Guard { expression, relation, origin: origin.clone(), message: message.into() });
    }
}

/// The Python expressions that the archive's inputs must meet.
pub(super) fn read(graph: &mut Graph, inputs: &[UserInput], codes: &[String], bounds: &Bounds) {
    for code in codes {
        match conditions(graph, inputs, code, bounds) {
            Ok(list) => {
                let message = format!("the program was exported for inputs of which `{}`", shorten(code));
                for (expression, relation) in list {
                    add(graph, expression, relation, &Origin::default(), &message);
                }
            }
            Err(why) => debug!(guard = %shorten(code), %why, "a guard is not about sizes: it is left out"),
        }
    }
}

/// The conditions on the graph's symbols that a guard expresses.
fn conditions(
    graph: &Graph,
    inputs: &[UserInput],
    code: &str,
    bounds: &Bounds,
) -> Result<Vec<(SymExpr, Relation)>, String> {
    let (text, sources) = plain(code)?;
    sym::conditions(&text, bounds, &mut |name| {
        let number = name.strip_prefix(NAME).and_then(|n| n.parse::<usize>().ok());
        let source =
            number.and_then(|n| sources.get(n)).ok_or_else(|| format!("`{name}` is not known here"))?;
        value(graph, inputs, source)
    })
}

/// Prefix of the names that stand for sources in the rewritten text.
const NAME: &str = "input_";

/// The property of an input that an expression reads.
struct Source<'a> {
    /// `x`, `d['a']`
    path: String,
    /// The accessor: `.size()[0]`, or nothing for the input itself.
    rest: &'a str,
}

/// The text with every `L['x'].size()[0]` replaced by a name, and the sources that the names represent.
fn plain(code: &str) -> Result<(String, Vec<Source<'_>>), String> {
    let (mut text, mut sources, mut rest) = (String::new(), Vec::new(), code);
    while let Some(at) = rest.find("L[") {
        text.push_str(&rest[..at]);
        let (key, mut behind) = subscript(&rest[at + 1..]).ok_or("a source without its end")?;
        let mut path = key.trim_matches(['\'', '"']).to_string();
        while let Some((key, next)) = subscript(behind) {
            path.push_str(&format!("[{key}]"));
            behind = next;
        }
        // A method and its subscript.
        let mut end = behind;
        if behind.starts_with('.') {
            end = behind.split_once("()").ok_or("an attribute that is no method")?.1;
            end = subscript(end).map_or(end, |(_, next)| next);
        }
        text.push_str(&format!("{NAME}{}", sources.len()));
        sources.push(Source { path, rest: &behind[..behind.len() - end.len()] });
        rest = end;
    }
    text.push_str(rest);
    Ok((text, sources))
}

/// What is in the brackets that the text begins with, and what is after them.
fn subscript(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix('[')?.split_once(']')
}

/// The size, or the integer, that a source names.
fn value(graph: &Graph, inputs: &[UserInput], source: &Source<'_>) -> Result<SymExpr, String> {
    let missing = || format!("there is no input `{}`", shorten(&source.path));
    let input = inputs.iter().find(|i| i.path == source.path).ok_or_else(missing)?;
    let value = input.value.and_then(|v| graph.values.get(v)).ok_or_else(missing)?;
    match (&value.ty, source.rest) {
        (ValueType::Int(e), "") => Ok(e.clone()),
        (ValueType::Tensor(meta), rest) => {
            let dim = rest.strip_prefix(".size()[").and_then(|d| d.strip_suffix(']'));
            let size = dim.and_then(|d| d.parse::<usize>().ok()).and_then(|d| meta.sizes.get(d));
            size.cloned()
                .ok_or_else(|| format!("`{}` is no size of `{}`", shorten(rest), shorten(&source.path)))
        }
        _ => Err(format!("`{}` is no size", shorten(&source.path))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_become_names() {
        let (text, sources) = plain("L['x'].size()[0] == (2*L['d']['a'].size()[1]) + L['pair'][0]").unwrap();
        assert_eq!(text, "input_0 == (2*input_1) + input_2");
        let sources: Vec<(&str, &str)> = sources.iter().map(|s| (s.path.as_str(), s.rest)).collect();
        assert_eq!(sources, [("x", ".size()[0]"), ("d['a']", ".size()[1]"), ("pair[0]", "")]);
    }

    #[test]
    fn broken_sources_are_refused() {
        assert!(plain("L['x").is_err());
        assert!(plain("L['x'].shape[0] == 1").is_err());
    }
}
