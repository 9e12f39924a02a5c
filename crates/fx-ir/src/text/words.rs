//! The words of the text form that stand for enumerations; one table read by the printer and the parser alike.

use ir_core::{Layout, MemoryFormat};

use crate::InputKind;

/// Placeholders.
pub(super) const INPUTS: &[(&str, InputKind)] = &[
    ("input", InputKind::User),
    ("parameter", InputKind::Parameter),
    ("buffer", InputKind::Buffer { persistent: true }),
    ("buffer transient", InputKind::Buffer { persistent: false }),
    ("constant", InputKind::Constant),
    ("seed", InputKind::Seed),
];

/// Storage layouts.
pub(super) const LAYOUTS: &[(&str, Layout)] =
    &[("strided", Layout::Strided), ("sparse", Layout::Sparse), ("other_layout", Layout::Other)];

/// Memory formats.
pub(super) const MEMORY_FORMATS: &[(&str, MemoryFormat)] = &[
    ("contiguous", MemoryFormat::Contiguous),
    ("preserve", MemoryFormat::Preserve),
    ("channels_last", MemoryFormat::ChannelsLast),
    ("channels_last_3d", MemoryFormat::ChannelsLast3d),
];

/// Words that begin or end a statement, so that a target of this name stands in quotes.
pub(super) const RESERVED: &[&str] = &["symbol", "guard", "subgraph", "return", "from"];

/// The word of `value` in a table.
pub(super) fn word_of<T: PartialEq>(table: &'static [(&'static str, T)], value: &T) -> &'static str {
    table.iter().find(|(_, v)| v == value).map_or("", |(word, _)| word)
}

/// The value of `word` in a table.
pub(super) fn value_of<T: Copy>(table: &[(&str, T)], word: &str) -> Option<T> {
    table.iter().find(|(w, _)| *w == word).map(|(_, v)| *v)
}

/// Whether `c` may stand in a name without quotes.
pub(super) fn is_bare(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.'
}

/// `name` where it may stand bare, else in quotes.
pub(super) fn name(text: &str) -> String {
    if !text.is_empty() && text.chars().all(is_bare) { text.to_string() } else { quote(text) }
}

/// `text` in quotes with what would end or break the line escaped.
pub(super) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => out.push_str(&format!("\\u{{{:x}}}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
