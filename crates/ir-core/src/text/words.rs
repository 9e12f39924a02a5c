//! How names, strings, numbers and symbols are written in a text form. The [`Cursor`](super::Cursor) reads what is written
//! here.

use crate::{Scalar, Symbol};

/// The word of `value` in a table that printer and parser share; empty where the table lacks it.
pub fn word_of<T: PartialEq>(table: &'static [(&'static str, T)], value: &T) -> &'static str {
    table.iter().find(|(_, v)| v == value).map_or("", |(word, _)| word)
}

/// The value of `word` in such a table.
pub fn value_of<T: Copy>(table: &[(&str, T)], word: &str) -> Option<T> {
    table.iter().find(|(w, _)| *w == word).map(|(_, v)| *v)
}

/// `text` without quotes if all its characters allow that, else in quotes.
pub fn name(text: &str, is_bare: impl Fn(char) -> bool) -> String {
    if !text.is_empty() && text.chars().all(is_bare) { text.to_string() } else { quote(text) }
}

/// `text` in quotes, with the characters that would end the string or the line escaped.
pub fn quote(text: &str) -> String {
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
pub fn float(x: f64) -> String {
    if x.is_nan() && x.to_bits() != f64::NAN.to_bits() {
        // Hardware makes `NaN`s of the other sign, and constants compare by their bits.
        return format!("nan(0x{:x})", x.to_bits());
    }
    format!("{x:?}")
}

/// What [`float`] writes. A float has a point, an exponent or a name, so that it is never taken for an integer.
pub fn float_of(raw: &str) -> Option<f64> {
    if let Some(bits) = raw.strip_prefix("nan(0x").and_then(|r| r.strip_suffix(')')) {
        return u64::from_str_radix(bits, 16).ok().map(f64::from_bits).filter(|x| x.is_nan());
    }
    let named = matches!(raw, "inf" | "-inf" | "NaN");
    let shaped = raw.contains(['.', 'e']) && raw.contains(|c: char| c.is_ascii_digit());
    if named || shaped { raw.parse().ok() } else { None }
}

/// A constant: `true`, `3`, `0.5`, `complex(1.0, -0.0)`.
pub fn scalar(value: Scalar) -> String {
    match value {
        Scalar::Bool(b) => b.to_string(),
        Scalar::Int(i) => i.to_string(),
        Scalar::Float(x) => float(x),
        Scalar::Complex(re, im) => format!("complex({}, {})", float(re), float(im)),
    }
}

/// `2, s0, 4`.
pub fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A symbol's declaration after its number: `"batch" 2..=64 hint 8 unbacked`.
pub fn symbol(symbol: &Symbol) -> String {
    let Symbol { name, min, max, hint, unbacked } = symbol;
    let max = max.map_or(String::new(), |m| format!("={m}"));
    let hint = hint.map_or(String::new(), |h| format!(" hint {h}"));
    format!("{} {min}..{max}{hint}{}", quote(name), if *unbacked { " unbacked" } else { "" })
}
