//! Texts and numbers as they stand in the text form. Knows no statement.

use ir_core::{Scalar, SymExpr};

/// Whether `c` may stand in a keyword or a numbered name.
pub(super) fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
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
            c if c.is_control() => out.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The shortest digits that read back to the same bits; always with a point, an exponent or a name.
pub(super) fn float(x: f64) -> String {
    if x.is_nan() && x.to_bits() != f64::NAN.to_bits() {
        // Hardware makes `NaN`s of the other sign, and constants compare by their bits.
        return format!("nan(0x{:x})", x.to_bits());
    }
    format!("{x:?}")
}

/// What [`float`] prints.
pub(super) fn float_of(raw: &str) -> Option<f64> {
    if let Some(bits) = raw.strip_prefix("nan(0x").and_then(|r| r.strip_suffix(')')) {
        return u64::from_str_radix(bits, 16).ok().map(f64::from_bits).filter(|x| x.is_nan());
    }
    let named = matches!(raw, "inf" | "-inf" | "NaN");
    let shaped = raw.contains(['.', 'e']) && raw.starts_with(|c: char| c.is_ascii_digit() || c == '-');
    if named || shaped { raw.parse().ok() } else { None }
}

/// A constant.
pub(super) fn scalar(value: Scalar) -> String {
    match value {
        Scalar::Bool(b) => b.to_string(),
        Scalar::Int(i) => i.to_string(),
        Scalar::Float(x) => float(x),
        Scalar::Complex(re, im) => format!("complex({}, {})", float(re), float(im)),
    }
}

/// `2, s0, 4`.
pub(super) fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// An offset, which something may follow on its line: in parentheses unless it is a number or one symbol.
pub(super) fn offset(e: &SymExpr) -> String {
    let simple = e.as_sym().is_some() || e.as_const().is_some_and(|c| c >= 0);
    if simple { e.to_string() } else { format!("({e})") }
}
