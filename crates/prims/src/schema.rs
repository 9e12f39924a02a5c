//! ATen's schema text: `aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor`.
//!
//! Parsed once per table entry; has argument names, types, defaults and alias annotations.

use ir_core::Scalar;
use thiserror::Error;

/// A parsed schema.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema {
    /// `aten`.
    pub namespace: String,
    /// `add`.
    pub name: String,
    /// `Tensor`; empty for the default overload.
    pub overload: String,
    /// Arguments in order, keyword-only ones last.
    pub args: Vec<SchemaArg>,
    /// Results in order.
    pub returns: Vec<SchemaReturn>,
}

/// One argument.
#[derive(Clone, Debug, PartialEq)]
pub struct SchemaArg {
    /// Name.
    pub name: String,
    /// Type.
    pub ty: ArgType,
    /// Value where the caller gives none.
    pub default: Option<SchemaDefault>,
    /// Whether it is after `*`.
    pub keyword_only: bool,
    /// Alias set: `Tensor(a)` gives `("a", false)`, `Tensor(a!)` gives `("a", true)`.
    pub alias: Option<(String, bool)>,
}

/// One result.
#[derive(Clone, Debug, PartialEq)]
pub struct SchemaReturn {
    /// Type.
    pub ty: ArgType,
    /// Alias set and whether it is written, as for arguments.
    pub alias: Option<(String, bool)>,
}

/// Type of an argument: a base name with list and optional marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgType {
    /// `Tensor`, `int`, `SymInt`, `float`, `bool`, `Scalar`, `str`, `ScalarType`, `Device`, `Layout`, `MemoryFormat`…
    pub base: String,
    /// `T[]` or `T[2]`.
    pub list: bool,
    /// The fixed length of `T[2]`: one number stands for all of them.
    pub length: Option<usize>,
    /// `T?`.
    pub optional: bool,
    /// `T?[]`: the items may be absent.
    pub optional_items: bool,
}

/// A default value.
#[derive(Clone, Debug, PartialEq)]
pub enum SchemaDefault {
    /// `None`.
    None,
    /// A number or truth value.
    Scalar(Scalar),
    /// Text or an enumeration's name (`Mean` is the number 1 in schemas, so names are rare: `contiguous_format`).
    Name(String),
    /// A list of numbers.
    List(Vec<Scalar>),
}

/// Why text is not a schema.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{schema}` is not an operator schema: {what}")]
pub struct SchemaError {
    schema: String,
    what: String,
}

impl Schema {
    /// Parses ATen's schema text.
    pub fn parse(text: &str) -> Result<Schema, SchemaError> {
        parse(text)
            .map_err(|what| SchemaError { schema: text.chars().take(120).collect(), what: what.into() })
    }
    /// The name that graphs use: `aten.add.Tensor`, `aten.relu.default`, and `prims.add` for prims.
    pub fn target(&self) -> String {
        match (self.namespace.as_str(), self.overload.as_str()) {
            ("prims", "") => format!("prims.{}", self.name),
            (ns, "") => format!("{ns}.{}.default", self.name),
            (ns, overload) => format!("{ns}.{}.{overload}", self.name),
        }
    }
    /// Position of the argument with this name.
    pub fn arg_index(&self, name: &str) -> Option<usize> {
        self.args.iter().position(|a| a.name == name)
    }
    /// Whether any argument is written.
    pub fn mutates(&self) -> bool {
        self.args.iter().any(|a| a.alias.as_ref().is_some_and(|(_, write)| *write))
    }
    /// Whether a result shares memory with an argument without writing it (a view).
    pub fn is_view(&self) -> bool {
        !self.mutates() && self.returns.iter().any(|r| r.alias.is_some())
    }
}

fn parse(text: &str) -> Result<Schema, &'static str> {
    let (name, rest) = text.split_once('(').ok_or("no `(`")?;
    let (namespace, name) = name.trim().split_once("::").ok_or("no `::`")?;
    let (name, overload) = name.split_once('.').unwrap_or((name, ""));
    let close = matching_close(rest).ok_or("no `)`")?;
    let returns = rest[close + 1..].trim().strip_prefix("->").ok_or("no `->`")?.trim();
    let mut keyword_only = false;
    let mut args = Vec::new();
    for part in split_commas(&rest[..close]) {
        if part == "*" {
            keyword_only = true;
        } else {
            args.push(parse_arg(part, keyword_only)?);
        }
    }
    let inner = returns.strip_prefix('(').and_then(|r| r.strip_suffix(')'));
    let parts = inner.map_or_else(|| vec![returns], split_commas);
    let returns = parts.into_iter().filter(|p| !p.is_empty()).map(parse_return).collect::<Result<_, _>>()?;
    Ok(Schema { namespace: namespace.into(), name: name.into(), overload: overload.into(), args, returns })
}

fn matching_close(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => return Some(i),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Splits at commas outside brackets and quotes.
fn split_commas(text: &str) -> Vec<&str> {
    let (mut depth, mut quoted, mut start, mut parts) = (0i32, false, 0, Vec::new());
    for (i, c) in text.char_indices() {
        match c {
            '"' | '\'' => quoted = !quoted,
            '(' | '[' if !quoted => depth += 1,
            ')' | ']' if !quoted => depth -= 1,
            ',' if depth == 0 && !quoted => {
                parts.push(text[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|p| !p.is_empty());
    parts
}

fn parse_arg(text: &str, keyword_only: bool) -> Result<SchemaArg, &'static str> {
    let (decl, default) = match split_default(text) {
        Some((decl, default)) => (decl, Some(parse_default(default)?)),
        None => (text, None),
    };
    let (ty, name) = decl.rsplit_once(' ').ok_or("an argument without a name")?;
    let (ty, alias) = parse_type(ty.trim())?;
    Ok(SchemaArg { name: name.into(), ty, default, keyword_only, alias })
}

fn split_default(text: &str) -> Option<(&str, &str)> {
    let at = text.find('=')?;
    Some((&text[..at], &text[at + 1..]))
}

fn parse_return(text: &str) -> Result<SchemaReturn, &'static str> {
    let ty = text.split_once(' ').map_or(text, |(ty, name)| if name.starts_with("->") { text } else { ty });
    let (ty, alias) = parse_type(ty)?;
    Ok(SchemaReturn { ty, alias })
}

fn parse_type(text: &str) -> Result<(ArgType, Option<(String, bool)>), &'static str> {
    let mut rest = text;
    let mut ty =
        ArgType { base: String::new(), list: false, length: None, optional: false, optional_items: false };
    let mut alias = None;
    let base_end = rest.find(['(', '[', '?']).unwrap_or(rest.len());
    ty.base = rest[..base_end].to_string();
    rest = &rest[base_end..];
    loop {
        match rest.chars().next() {
            None => return Ok((ty, alias)),
            Some('(') => {
                let end = rest.find(')').ok_or("an alias set without `)`")?;
                let set = rest[1..end].split([' ', '-', '|']).next().unwrap_or("");
                alias = Some((set.trim_end_matches('!').to_string(), rest[1..end].contains('!')));
                rest = &rest[end + 1..];
            }
            Some('[') => {
                let end = rest.find(']').ok_or("a list without `]`")?;
                ty.optional_items = ty.optional;
                ty.optional = false;
                ty.list = true;
                ty.length = rest[1..end].parse().ok();
                rest = &rest[end + 1..];
            }
            Some('?') => {
                ty.optional = true;
                rest = &rest[1..];
            }
            Some(_) => return Err("an unexpected character in a type"),
        }
    }
}

fn parse_default(text: &str) -> Result<SchemaDefault, &'static str> {
    if let Some(items) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        let items = split_commas(items)
            .into_iter()
            .map(|i| parse_scalar(i).ok_or("a list default that is not numbers"));
        return Ok(SchemaDefault::List(items.collect::<Result<_, _>>()?));
    }
    Ok(match text {
        "None" => SchemaDefault::None,
        // The enumerations that schemas write by name are numbers in the archive format.
        "Mean" => SchemaDefault::Scalar(Scalar::Int(1)),
        "Sum" => SchemaDefault::Scalar(Scalar::Int(2)),
        "long" => SchemaDefault::Name("int64".into()),
        other => match parse_scalar(other) {
            Some(scalar) => SchemaDefault::Scalar(scalar),
            None => SchemaDefault::Name(other.trim_matches(['"', '\'']).into()),
        },
    })
}

fn parse_scalar(text: &str) -> Option<Scalar> {
    match text {
        "True" | "true" => return Some(Scalar::Bool(true)),
        "False" | "false" => return Some(Scalar::Bool(false)),
        _ => {}
    }
    if let Ok(i) = text.parse::<i64>() {
        return Some(Scalar::Int(i));
    }
    // `inf` and `nan` would also parse as numbers; as bare names they are not schema defaults.
    text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '.')
        .then(|| text.parse().ok().map(Scalar::Float))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_usual_forms() {
        let s = Schema::parse("aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor")
            .unwrap();
        assert_eq!(s.target(), "aten.add.Tensor");
        assert_eq!(s.args[2].default, Some(SchemaDefault::Scalar(Scalar::Int(1))));
        assert!(s.args[2].keyword_only);
        let s = Schema::parse("aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor").unwrap();
        assert!(s.args[1].ty.list && s.args[1].ty.optional_items && !s.args[1].ty.optional);
        let s = Schema::parse("aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor").unwrap();
        assert!(s.args[1].ty.list && s.args[1].ty.optional && s.args[1].ty.length == Some(1));
        let s = Schema::parse("aten::relu_(Tensor(a!) self) -> Tensor(a!)").unwrap();
        assert!(s.mutates() && !s.is_view());
        let s = Schema::parse(
            "aten::split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]",
        )
        .unwrap();
        assert!(s.is_view() && s.returns[0].ty.list);
        let s = Schema::parse(
            "aten::max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
        )
        .unwrap();
        assert_eq!(s.returns.len(), 2);
        assert!(Schema::parse("nonsense").is_err());
    }
}
