//! The rules for one source file, judged on its tokens, so that text in strings and comments is never taken for code.

use std::str::FromStr;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::Finding;

/// Lines of a file above which it is reported, and above which it fails.
const LONG_FILE: usize = 600;
const TOO_LONG_FILE: usize = 800;
/// Lines of a function, from `fn` to its closing brace, above which it is reported.
const LONG_FUNCTION: usize = 60;

/// Folders whose long files are tables: one entry per operator.
const TABLES: &str = "crates/prims/src/ops/";
/// Other files that may be long, with the reason.
const LONG_ON_PURPOSE: [(&str, &str); 0] = [];

/// Macros for unfinished work or debugging.
const UNFINISHED: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// The violations in the file at `path` (relative to the project, with slashes).
pub(crate) fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !text.starts_with("//!") {
        findings.push(Finding::error(path, "does not open with `//!`: say what it is and what it is not"));
    }
    check_length(path, text.lines().count(), &mut findings);
    match TokenStream::from_str(text) {
        Ok(tokens) => {
            let lines = text.lines().collect();
            Scan { path, lines, findings: &mut findings }.stream(tokens);
        }
        Err(error) => findings.push(Finding::error(path, format!("cannot be read as Rust: {error}"))),
    }
    findings
}

fn check_length(path: &str, lines: usize, findings: &mut Vec<Finding>) {
    if path.starts_with(TABLES) || LONG_ON_PURPOSE.iter().any(|(file, _)| *file == path) {
        return;
    }
    let what = format!("{lines} lines; split it by what it is about (the limit is {LONG_FILE})");
    if lines > TOO_LONG_FILE {
        findings.push(Finding::error(path, what));
    } else if lines > LONG_FILE {
        findings.push(Finding::warning(path, what));
    }
}

/// A walk over the tokens of a file.
struct Scan<'a> {
    path: &'a str,
    lines: Vec<&'a str>,
    findings: &'a mut Vec<Finding>,
}

impl Scan<'_> {
    fn stream(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(ident) if ident == "fn" => self.function(&tokens[at..]),
                TokenTree::Ident(ident) if ident == "unsafe" => self.unsafety(&tokens[at..]),
                TokenTree::Ident(ident) if is_punct(tokens.get(at + 1), '!') => {
                    let name = ident.to_string();
                    if UNFINISHED.contains(&name.as_str()) {
                        let place = self.place(ident.span().start().line);
                        self.findings.push(Finding::error(place, format!("`{name}!` is left in the code")));
                    }
                }
                TokenTree::Group(group) => self.stream(group.stream()),
                _ => {}
            }
        }
    }

    fn place(&self, line: usize) -> String {
        format!("{}:{line}", self.path)
    }

    /// `tokens` begins with `fn`, of a definition or of a pointer type.
    fn function(&mut self, tokens: &[TokenTree]) {
        let Some(TokenTree::Ident(name)) = tokens.get(1) else { return };
        for token in tokens {
            match token {
                // Only declared.
                TokenTree::Punct(punct) if punct.as_char() == ';' => return,
                TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => {
                    let first = tokens[0].span().start().line;
                    let lines = body.span_close().end().line + 1 - first;
                    if lines > LONG_FUNCTION {
                        let what =
                            format!("`{name}` has {lines} lines (the house's size is {LONG_FUNCTION})");
                        self.findings.push(Finding::warning(self.place(first), what));
                    }
                    return;
                }
                _ => {}
            }
        }
    }

    /// `tokens` begins with `unsafe`. Blocks and implementations say why they are sound; functions and traits say in
    /// their docs what they demand, which clippy checks.
    fn unsafety(&mut self, tokens: &[TokenTree]) {
        let what = match tokens.get(1) {
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => "block",
            Some(TokenTree::Ident(ident)) if ident == "impl" => "impl",
            _ => return,
        };
        let line = tokens[0].span().start().line;
        if !self.explained(line) {
            let what = format!("an unsafe {what} without a `// SAFETY:` comment above it");
            self.findings.push(Finding::error(self.place(line), what));
        }
    }

    /// Whether a `SAFETY:` comment is on the line (counted from 1), or above the statement that it belongs to.
    fn explained(&self, line: usize) -> bool {
        let above = &self.lines[..line - 1];
        let says = |text: &str| text.contains("// SAFETY:");
        if says(self.lines[line - 1]) {
            return true;
        }
        for text in above.iter().rev().map(|text| text.trim()) {
            if text.starts_with("//") {
                if says(text) {
                    return true;
                }
            } else if text.is_empty() || text.ends_with([';', '{', '}']) {
                return false;
            }
        }
        false
    }
}

fn is_punct(token: Option<&TokenTree>, c: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == c)
}

#[cfg(test)]
mod tests {
    use super::check;

    fn found(text: &str) -> Vec<String> {
        check("crates/x/src/lib.rs", text).into_iter().map(|f| format!("{} {}", f.place, f.what)).collect()
    }

    #[test]
    fn clean_code_has_no_findings() {
        let text = "//! A file.\n\n/// Reads.\nfn f(p: *const u8) -> u8 {\n    // SAFETY: the caller's pointer.\n    \
                    let x =\n        unsafe { *p };\n    x\n}\nconst TEXT: &str = \"todo!() unsafe { }\"; // dbg!\n\
                    type F = unsafe fn(u8);\n";
        assert_eq!(found(text), Vec::<String>::new());
    }

    #[test]
    fn each_rule_finds_its_breach() {
        let text = "fn f(p: *const u8) -> u8 {\n    let y = 1;\n    unsafe { *p }\n}\nunsafe impl Send for X {}\n\
                    fn g() { todo!() }\n";
        let found = found(text);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].contains("does not open"));
        assert!(found[1].starts_with("crates/x/src/lib.rs:3 an unsafe block"));
        assert!(found[2].starts_with("crates/x/src/lib.rs:5 an unsafe impl"));
        assert!(found[3].contains("`todo!`"));
    }

    #[test]
    fn a_comment_does_not_reach_past_a_statement() {
        let text =
            "//! A file.\nfn f() {\n    // SAFETY: one.\n    unsafe { a() };\n    unsafe { b() };\n}\n";
        assert_eq!(found(text).len(), 1);
    }

    #[test]
    fn lengths_are_counted() {
        let body = "    let _ = 1;\n".repeat(59);
        let (fits, long) =
            (format!("//! A.\nfn f() {{\n{}}}\n", &body[16..]), format!("//! A.\nfn f() {{\n{body}}}\n"));
        assert_eq!(found(&fits), Vec::<String>::new());
        assert!(found(&long)[0].contains("`f` has 61 lines"));
        let file = format!("//! A.\n{}", "// line\n".repeat(800));
        assert!(check("crates/x/src/lib.rs", &file)[0].fails);
        assert!(check("crates/prims/src/ops/x.rs", &file).is_empty());
    }
}
