//! The keywords of the text form that represent enumerations; the printer and the parser read the same tables.

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

/// Words that begin or end a statement, so that a target of this name is in quotes.
pub(super) const RESERVED: &[&str] = &["symbol", "guard", "subgraph", "return", "from"];

/// Whether `c` may be in a name without quotes.
pub(super) fn is_bare(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.'
}

/// `text` without quotes where that is allowed, else in quotes.
pub(super) fn name(text: &str) -> String {
    ir_core::text::name(text, is_bare)
}
