//! How keywords and offsets are written in the text form. Knows no statement; quoting and numbers are in `ir_core::text`.

use ir_core::SymExpr;

/// Whether `c` may be in a keyword or a numbered name.
pub(super) fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// An offset, which something may follow on its line: in parentheses unless it is a number or one symbol.
pub(super) fn offset(e: &SymExpr) -> String {
    let simple = e.as_sym().is_some() || e.as_const().is_some_and(|c| c >= 0);
    if simple { e.to_string() } else { format!("({e})") }
}
