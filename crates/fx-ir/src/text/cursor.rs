//! Reads words, strings and raw expressions off a text and knows where it is. Knows no statement.

use super::words::is_bare;
use super::{TextError, TextProblem};

/// Longest size expression or device taken, in bytes.
const MAX_RAW: usize = 8192;

/// A place in a text.
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Cursor<'a> {
        Cursor { text, at: 0 }
    }
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }
    /// The place, for an error that is found later.
    pub(super) fn mark(&mut self) -> usize {
        self.skip_space();
        self.at
    }
    /// Goes back to a mark.
    pub(super) fn reset(&mut self, mark: usize) {
        self.at = mark;
    }
    /// Skips white space and comments.
    pub(super) fn skip_space(&mut self) {
        loop {
            self.at += self.rest().len() - self.rest().trim_start().len();
            if !self.rest().starts_with('#') {
                return;
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }
    /// The next character after white space.
    pub(super) fn peek(&mut self) -> Option<char> {
        self.skip_space();
        self.rest().chars().next()
    }
    /// Takes `token` where it stands next.
    pub(super) fn eat(&mut self, token: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }
    /// Takes `token` or fails.
    pub(super) fn expect(&mut self, token: &str) -> Result<(), TextError> {
        if self.eat(token) { Ok(()) } else { Err(self.expected(&format!("`{token}`"))) }
    }
    /// Takes a run of bare characters; empty where there is none.
    pub(super) fn word(&mut self) -> &'a str {
        self.skip_space();
        self.take_while(is_bare)
    }
    /// Takes `word` where it stands next as a whole word.
    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let mark = self.mark();
        let found = self.word() == word;
        if !found {
            self.at = mark;
        }
        found
    }
    /// Takes characters while `keep` holds.
    pub(super) fn take_while(&mut self, keep: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !keep(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }
    /// A bare or quoted name.
    pub(super) fn name(&mut self, what: &str) -> Result<String, TextError> {
        if self.peek() == Some('"') {
            return self.quoted(what);
        }
        match self.word() {
            "" => Err(self.expected(what)),
            word => Ok(word.to_string()),
        }
    }
    /// A text in quotes.
    pub(super) fn quoted(&mut self, what: &str) -> Result<String, TextError> {
        if !self.eat("\"") {
            return Err(self.expected(&format!("{what} in quotes")));
        }
        let mut out = String::new();
        loop {
            out.push_str(self.take_while(|c| c != '"' && c != '\\' && c != '\n'));
            if self.rest().starts_with('"') {
                self.at += 1;
                return Ok(out);
            }
            if !self.rest().starts_with('\\') {
                return Err(self.expected("`\"` at the end of the text"));
            }
            self.at += 1;
            out.push(self.escape()?);
        }
    }
    /// The character after a backslash.
    fn escape(&mut self) -> Result<char, TextError> {
        let Some(c) = self.rest().chars().next() else { return Err(self.expected("an escape")) };
        self.at += c.len_utf8();
        match c {
            '"' | '\\' => Ok(c),
            'n' => Ok('\n'),
            't' => Ok('\t'),
            'r' => Ok('\r'),
            'u' => {
                self.expect("{")?;
                let hex = self.take_while(|c| c.is_ascii_hexdigit());
                let code = u32::from_str_radix(hex, 16).ok().and_then(char::from_u32);
                let c = code.ok_or_else(|| self.expected("the number of a character"))?;
                self.expect("}").map(|()| c)
            }
            _ => {
                self.at -= c.len_utf8();
                Err(self.expected("an escape: one of \\\" \\\\ \\n \\t \\r \\u{…}"))
            }
        }
    }
    /// The raw text up to what ends an expression: `,` `)` `]` `}` `=` `@` `#` or the line's end outside parentheses.
    pub(super) fn raw(&mut self) -> Result<&'a str, TextError> {
        self.skip_space();
        let start = self.at;
        let mut depth = 0usize;
        for (offset, c) in self.rest().char_indices() {
            let ends = match c {
                '(' => {
                    depth += 1;
                    false
                }
                ')' if depth > 0 => {
                    depth -= 1;
                    false
                }
                ',' => depth == 0,
                ')' | ']' | '}' | '=' | '@' | '#' | '\n' => true,
                _ => false,
            };
            if ends {
                self.at = start + offset;
                return Ok(self.text[start..self.at].trim_end());
            }
            if offset > MAX_RAW {
                let problem = TextProblem::TooLong { what: "an expression", limit: MAX_RAW };
                return Err(self.error_at(start, problem));
            }
        }
        self.at = self.text.len();
        Ok(self.text[start..].trim_end())
    }
    /// An integer with an optional sign.
    pub(super) fn integer(&mut self, what: &str) -> Result<i64, TextError> {
        let mark = self.mark();
        let sign = if self.eat("-") { "-" } else { "" };
        let digits = self.take_while(|c| c.is_ascii_digit());
        let number = format!("{sign}{digits}").parse();
        number.map_err(|_| {
            self.at = mark;
            self.expected(what)
        })
    }
    /// Whether only white space is left.
    pub(super) fn at_end(&mut self) -> bool {
        self.skip_space();
        self.rest().is_empty()
    }

    /// An error here that says what was expected and what stands here.
    pub(super) fn expected(&mut self, what: &str) -> TextError {
        self.skip_space();
        let found = match self.rest().lines().next() {
            None => "the end of the text".to_string(),
            Some(line) => match line.char_indices().nth(24) {
                Some((end, _)) => format!("`{}…`", &line[..end]),
                None => format!("`{line}`"),
            },
        };
        self.error_at(self.at, TextProblem::Expected { what: what.to_string(), found })
    }
    /// An error at a marked place.
    pub(super) fn error_at(&self, at: usize, problem: TextProblem) -> TextError {
        let before = &self.text[..at];
        let line_start = before.rfind('\n').map_or(0, |n| n + 1);
        let line = before.matches('\n').count() + 1;
        TextError { line, column: before[line_start..].chars().count() + 1, problem }
    }
}
