//! Reads words, texts, numbers and raw expressions off a text and knows where it is. Knows no statement.

use super::words::float_of;
use super::{TextError, TextProblem};
use crate::{Relation, Scalar, Symbol};

type Result<T> = std::result::Result<T, TextError>;

/// A place in a text. Every method that looks at what stands next skips white space and comments (`#` to the line's end)
/// before it, and takes nothing where it gives `None`, `false` or an empty word.
///
/// # Errors
/// Every method that can fail says what was expected and what stands there, with line and column.
pub struct Cursor<'a> {
    text: &'a str,
    /// Always on a character's border.
    at: usize,
    /// The characters of words.
    is_word: fn(char) -> bool,
}

impl<'a> Cursor<'a> {
    /// The beginning of `text`, in whose form words are runs of the characters that `is_word` holds for.
    pub fn new(text: &'a str, is_word: fn(char) -> bool) -> Cursor<'a> {
        Cursor { text, at: 0, is_word }
    }
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }
    fn skip_space(&mut self) {
        loop {
            let rest = self.rest();
            self.at += rest.len() - rest.trim_start().len();
            if !self.rest().starts_with('#') {
                return;
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }
    /// The place, for an error that is found later.
    pub fn mark(&mut self) -> usize {
        self.skip_space();
        self.at
    }
    /// Goes back to a mark.
    pub fn reset(&mut self, mark: usize) {
        self.at = mark;
    }
    /// The next character.
    pub fn peek(&mut self) -> Option<char> {
        self.skip_space();
        self.rest().chars().next()
    }
    /// Whether `token` stands next.
    pub fn next_is(&mut self, token: &str) -> bool {
        self.skip_space();
        self.rest().starts_with(token)
    }
    /// Takes `token` where it stands next.
    pub fn eat(&mut self, token: &str) -> bool {
        let found = self.next_is(token);
        self.at += if found { token.len() } else { 0 };
        found
    }
    /// Takes `token` or fails.
    pub fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) { Ok(()) } else { Err(self.expected(&format!("`{token}`"))) }
    }
    /// Takes a word; empty where there is none.
    pub fn word(&mut self) -> &'a str {
        self.skip_space();
        self.take_while(self.is_word)
    }
    /// Takes `word` where it stands next as a whole word.
    pub fn eat_word(&mut self, word: &str) -> bool {
        let mark = self.mark();
        let found = self.word() == word;
        if !found {
            self.at = mark;
        }
        found
    }
    /// Whether `word` stands next as a whole word.
    pub fn next_is_word(&mut self, word: &str) -> bool {
        let mark = self.mark();
        let found = self.word() == word;
        self.at = mark;
        found
    }
    /// Takes `word` or fails.
    pub fn expect_word(&mut self, word: &str) -> Result<()> {
        if self.eat_word(word) { Ok(()) } else { Err(self.expected(&format!("`{word}`"))) }
    }
    /// Takes characters while `keep` holds, from right here.
    pub fn take_while(&mut self, keep: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !keep(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }
    /// What `item` reads, separated by commas, up to `close`.
    pub fn items<T>(
        &mut self,
        close: &str,
        mut item: impl FnMut(&mut Cursor<'a>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut items = Vec::new();
        if self.eat(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if !self.eat(",") {
                return self.expect(close).map(|()| items);
            }
        }
    }
    /// Whether only white space is left.
    pub fn at_end(&mut self) -> bool {
        self.skip_space();
        self.rest().is_empty()
    }
    /// An error here that says what was expected and what stands here.
    pub fn expected(&mut self, what: &str) -> TextError {
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
    /// Goes back to a mark and says what was expected there.
    pub fn expected_at(&mut self, mark: usize, what: &str) -> TextError {
        self.at = mark;
        self.expected(what)
    }
    /// An error at a marked place.
    pub fn error_at(&self, at: usize, problem: TextProblem) -> TextError {
        let before = &self.text[..at];
        let line_start = before.rfind('\n').map_or(0, |n| n + 1);
        let line = before.matches('\n').count() + 1;
        TextError { line, column: before[line_start..].chars().count() + 1, problem }
    }
}

/// Names and texts.
impl<'a> Cursor<'a> {
    /// A bare or quoted name.
    pub fn name(&mut self, what: &str) -> Result<String> {
        if self.peek() == Some('"') {
            return self.quoted(what);
        }
        match self.word() {
            "" => Err(self.expected(what)),
            word => Ok(word.to_string()),
        }
    }
    /// A text in quotes.
    pub fn quoted(&mut self, what: &str) -> Result<String> {
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
    fn escape(&mut self) -> Result<char> {
        let start = self.at;
        let what = "an escape: one of \\\" \\\\ \\n \\t \\r \\u{…}";
        let Some(c) = self.rest().chars().next() else { return Err(self.expected(what)) };
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
            _ => Err(self.expected_at(start, what)),
        }
    }
    /// The raw text up to what ends an expression: the line's end, a comment, `=`, `@`, a closing bracket that was not opened
    /// within it, and `,` outside of parentheses.
    pub fn raw(&mut self) -> &'a str {
        self.skip_space();
        let rest = self.rest();
        let mut depth = 0usize;
        let ends = |&(_, c): &(usize, char)| match c {
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
        let end = rest.char_indices().find(ends).map_or(rest.len(), |(at, _)| at);
        self.at += end;
        rest[..end].trim_end()
    }
}

/// Numbers and what is made of them.
impl Cursor<'_> {
    /// `prefix` and a number, as one word: `b3`.
    pub fn eat_numbered(&mut self, prefix: &str) -> Option<u32> {
        let mark = self.mark();
        let number = numbered(self.word(), prefix);
        if number.is_none() {
            self.at = mark;
        }
        number
    }
    /// `prefix` and a number, or fails.
    pub fn numbered(&mut self, prefix: &str) -> Result<u32> {
        self.eat_numbered(prefix).ok_or_else(|| self.expected(&format!("`{prefix}` and a number")))
    }
    /// `prefix` and a number that must be the next of its table.
    pub fn next_number(&mut self, prefix: &str, expected: usize) -> Result<()> {
        let mark = self.mark();
        let found = self.numbered(prefix)?;
        if found as usize == expected {
            return Ok(());
        }
        Err(self.error_at(mark, TextProblem::OutOfOrder { expected, found }))
    }
    /// A number of the integer type `T`, with an optional sign.
    pub fn number<T: std::str::FromStr>(&mut self, what: &str) -> Result<T> {
        let mark = self.mark();
        self.at += usize::from(self.rest().starts_with('-'));
        self.take_while(|c| c.is_ascii_digit());
        let number = self.text[mark..self.at].parse();
        number.map_err(|_| self.expected_at(mark, what))
    }
    /// A float, which has a point, an exponent or a name.
    pub fn float(&mut self) -> Result<f64> {
        let mark = self.mark();
        let is_word = self.is_word;
        if self.eat("nan(") {
            self.take_while(is_word);
            self.expect(")")?;
        } else {
            self.take_while(|c| is_word(c) || matches!(c, '.' | '-' | '+'));
        }
        float_of(&self.text[mark..self.at]).ok_or_else(|| self.expected_at(mark, "a float such as `0.5`"))
    }
    /// An integer or a float.
    pub fn real(&mut self) -> Result<Scalar> {
        let mark = self.mark();
        self.take_while(|c| c == '-' || c.is_ascii_digit());
        if let Ok(number) = self.text[mark..self.at].parse()
            && !self.rest().starts_with(['.', 'e'])
        {
            return Ok(Scalar::Int(number));
        }
        self.at = mark;
        self.float().map(Scalar::Float)
    }
    /// The parts of a complex number behind its word: `(1.0, -0.0)`.
    pub fn complex(&mut self) -> Result<Scalar> {
        self.expect("(")?;
        let re = self.float()?;
        self.expect(",")?;
        let im = self.float()?;
        self.expect(")").map(|()| Scalar::Complex(re, im))
    }
    /// A symbol's declaration behind its number: `"batch" 2..=64 hint 8 unbacked`.
    pub fn symbol(&mut self) -> Result<Symbol> {
        let name = self.quoted("the symbol's name")?;
        let min = self.number("the smallest value")?;
        self.expect("..")?;
        let max = if self.eat("=") { Some(self.number("the largest value")?) } else { None };
        let hint = if self.eat_word("hint") { Some(self.number("the hint")?) } else { None };
        Ok(Symbol { name, min, max, hint, unbacked: self.eat_word("unbacked") })
    }
    /// The relation of a guard.
    pub fn relation(&mut self) -> Result<Relation> {
        let mark = self.mark();
        let word = self.word();
        let relation = Relation::ALL.into_iter().find(|r| r.name() == word);
        relation.ok_or_else(|| self.expected_at(mark, "`zero`, `nonzero` or `nonnegative`"))
    }
}

/// The number of `b3` for the prefix `b`.
fn numbered(word: &str, prefix: &str) -> Option<u32> {
    let digits = word.strip_prefix(prefix)?;
    digits.parse().ok().filter(|_| digits.starts_with(|c: char| c.is_ascii_digit()))
}
