//! Parses a JSON entry into a schema type, and names the place of an error by its JSON path.
//!
//! serde_json reports line and column. The path is found by walking the text to that position, only when there is an error,
//! so that reading a good archive costs nothing extra. serde_json itself refuses to nest deeper than 128.

use serde::Deserialize;

use crate::error::{Place, Pt2Error, Result};

/// Parses all of `text`.
///
/// # Errors
/// `Json` with the path of the offending value.
pub(crate) fn parse<'a, T: Deserialize<'a>>(entry: &str, text: &'a [u8]) -> Result<T> {
    serde_json::from_slice(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        // serde_json repeats the position at the end of its message.
        let message = error.to_string();
        let problem = message.rsplit_once(" at line ").map_or(message.as_str(), |(m, _)| m).to_owned();
        let problem = crate::error::shorten(&problem);
        Pt2Error::Json { at: Place::json(entry, path_at(text, line, column)), line, column, problem }
    })
}

/// One level of the value that is being walked.
enum Level<'a> {
    Object { key: &'a [u8], wants_key: bool },
    Array { index: usize },
}

/// The JSON path of the value at `line` and `column` (both from 1).
fn path_at(text: &[u8], line: usize, column: usize) -> String {
    let line_start = match line {
        0 | 1 => 0,
        _ => text
            .iter()
            .enumerate()
            .filter(|(_, b)| **b == b'\n')
            .nth(line - 2)
            .map_or(text.len(), |(i, _)| i + 1),
    };
    let end = line_start.saturating_add(column).min(text.len());
    let mut levels: Vec<Level<'_>> = Vec::new();
    let mut at = 0;
    while at < end {
        match text[at] {
            b'{' => levels.push(Level::Object { key: b"", wants_key: true }),
            b'[' => levels.push(Level::Array { index: 0 }),
            // The error may be detected only at the closing delimiter of the value that it is about.
            b'}' | b']' if at + 1 < end => drop(levels.pop()),
            b',' if at + 1 < end => match levels.last_mut() {
                Some(Level::Object { wants_key, .. }) => *wants_key = true,
                Some(Level::Array { index }) => *index += 1,
                None => {}
            },
            b'"' => {
                let stop = string_end(text, at);
                if let Some(Level::Object { key, wants_key }) = levels.last_mut()
                    && std::mem::take(wants_key)
                {
                    *key = &text[at + 1..stop.min(text.len())];
                }
                at = stop;
            }
            _ => {}
        }
        at += 1;
    }
    render(&levels)
}

/// Index of the closing quote of the string that opens at `at`.
fn string_end(text: &[u8], at: usize) -> usize {
    let mut i = at + 1;
    while i < text.len() && text[i] != b'"' {
        i += if text[i] == b'\\' { 2 } else { 1 };
    }
    i
}

fn render(levels: &[Level<'_>]) -> String {
    let mut path = String::new();
    for level in levels.iter().take(128) {
        match level {
            Level::Object { key, .. } => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(&crate::error::shorten(&String::from_utf8_lossy(key)));
            }
            Level::Array { index } => path.push_str(&format!("[{index}]")),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> (String, String) {
        #[derive(Debug, Deserialize)]
        #[expect(dead_code, reason = "only its types matter")]
        struct Inner {
            n: i64,
        }
        #[derive(Debug, Deserialize)]
        #[expect(dead_code, reason = "only its types matter")]
        struct Outer {
            list: Vec<Inner>,
        }
        match parse::<Outer>("e.json", text.as_bytes()) {
            Err(Pt2Error::Json { at, problem, .. }) => (at.json.clone(), problem),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn errors_name_their_path() {
        assert_eq!(place(r#"{"list": [{"n": 1}, {"n": "x"}]}"#).0, "list[1].n");
        assert_eq!(place("{\n \"list\": [\n{\"n\": 1},\n {\"m\": 2, \"k\": [1,2]}]}").0, "list[1].k");
        assert_eq!(place(r#"{"list": [{"n": 1}"#).0, "list[0].n");
        assert_eq!(place(r#"{"a\"[{": 3, "list": 7}"#).0, "list");
        assert!(place(r#"{"list": [{}]}"#).1.contains("missing field `n`"));
        assert!(place(&"[".repeat(100_000)).1.contains("invalid type"));
    }
}
