//! Parses the text form of expressions. Depth and length are bounded because the text may come from an untrusted file.

use std::str::FromStr;

use super::{Atom, Repr, SymExpr, SymId};

/// More nested divisions and extrema than any real expression has. The bound protects the stack from hostile text, also in
/// code that walks the expression later.
const MAX_HEIGHT: usize = 64;

/// Deepest parentheses: the printer writes at most two pairs per level, so that everything that was read prints and reads back.
const MAX_DEPTH: usize = 2 * MAX_HEIGHT + 2;

/// Most atoms and numbers of an expression, counted as the printer writes them: `(x // s0)*(s0 + s1)` doubles `x`, so sixty
/// nested ones would not terminate.
const MAX_NODES: usize = 4096;

/// Longest text of an expression, in bytes; any expression of `MAX_NODES` prints shorter.
const MAX_BYTES: usize = 1 << 17;

/// More terms than any real product has; `(s0 + s1)*(s0 + s1)*…` in hostile text grows without bound otherwise.
const MAX_TERMS: usize = 1024;

impl FromStr for SymExpr {
    type Err = String;

    fn from_str(text: &str) -> Result<SymExpr, String> {
        if text.len() > MAX_BYTES {
            return Err(format!("a size expression is longer than {MAX_BYTES} bytes"));
        }
        let mut parser = Parser { rest: text, depth: 0 };
        let expr = parser.sum()?;
        match parser.rest.trim_start() {
            "" => Ok(expr),
            rest => Err(format!("unexpected `{}` in size expression `{text}`", head(rest))),
        }
    }
}

/// Digits of `i64::MIN`.
const MIN_MAGNITUDE: &str = "9223372036854775808";

/// How large and how deeply nested an expression is.
#[derive(Default)]
struct Measure {
    nodes: usize,
    height: usize,
}

impl Measure {
    /// Stops counting where a bound is passed.
    fn of(e: &SymExpr) -> Measure {
        let mut measure = Measure::default();
        measure.add(e, 0);
        measure
    }
    fn add(&mut self, e: &SymExpr, height: usize) {
        self.height = self.height.max(height);
        self.nodes += 1;
        let Repr::Poly(p) = &e.0 else { return };
        for atom in p.terms.iter().flat_map(|t| &t.factors) {
            self.nodes += 1;
            if let Atom::FloorDiv(ab) | Atom::Mod(ab) | Atom::Min(ab) | Atom::Max(ab) = atom
                && self.nodes <= MAX_NODES
                && height <= MAX_HEIGHT
            {
                self.add(&ab.0, height + 1);
                self.add(&ab.1, height + 1);
            }
        }
    }
}

fn too_long() -> String {
    format!("a size expression has more than {MAX_NODES} parts")
}

/// The expression, where it is of a size that can be walked, printed and read back.
fn bounded(e: SymExpr) -> Result<SymExpr, String> {
    let measure = Measure::of(&e);
    if measure.nodes > MAX_NODES {
        return Err(too_long());
    }
    if measure.height > MAX_HEIGHT {
        return Err(format!("a size expression is nested more than {MAX_HEIGHT} deep"));
    }
    Ok(e)
}

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

impl Parser<'_> {
    fn eat(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn sum(&mut self) -> Result<SymExpr, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("a size expression is nested more than {MAX_DEPTH} deep"));
        }
        let mut left = self.product()?;
        loop {
            if self.eat("+") {
                left = bounded(left + self.product()?)?;
            } else if self.eat("-") {
                // The magnitude of `i64::MIN` is no `i64`.
                left = match self.rest.trim_start().starts_with(MIN_MAGNITUDE) {
                    true => bounded(left + self.product_of_min()?)?,
                    false => bounded(left - self.product()?)?,
                };
            } else {
                self.depth -= 1;
                return Ok(left);
            }
        }
    }

    fn product(&mut self) -> Result<SymExpr, String> {
        let first = self.factor()?;
        self.product_from(first)
    }

    /// A product that begins with the magnitude of `i64::MIN` after its sign.
    fn product_of_min(&mut self) -> Result<SymExpr, String> {
        self.eat(MIN_MAGNITUDE);
        self.product_from(SymExpr::from_i64(i64::MIN))
    }

    fn product_from(&mut self, first: SymExpr) -> Result<SymExpr, String> {
        let mut left = first;
        loop {
            if self.eat("//") {
                left = bounded(left.floor_div(&self.divisor()?))?;
            } else if self.eat("*") {
                let right = self.factor()?;
                let (few, more) = (left.terms().0.len() + 1, right.terms().0.len() + 1);
                if few * more > MAX_TERMS {
                    return Err(format!("a product in a size expression has more than {MAX_TERMS} terms"));
                }
                // Each side is copied for every term of the other.
                let (a, b) = (Measure::of(&left).nodes, Measure::of(&right).nodes);
                if a.saturating_mul(more).max(b.saturating_mul(few)) > MAX_NODES {
                    return Err(too_long());
                }
                left = bounded(left * right)?;
            } else if self.eat("%") {
                left = bounded(left.modulo(&self.divisor()?))?;
            } else {
                return Ok(left);
            }
        }
    }

    fn divisor(&mut self) -> Result<SymExpr, String> {
        match self.factor()? {
            zero if zero == SymExpr::ZERO => Err("a size expression divides by zero".into()),
            divisor => Ok(divisor),
        }
    }

    fn factor(&mut self) -> Result<SymExpr, String> {
        let mut negative = false;
        while self.eat("-") {
            negative = !negative;
            if negative && self.rest.trim_start().starts_with(MIN_MAGNITUDE) {
                self.eat(MIN_MAGNITUDE);
                return Ok(SymExpr::from_i64(i64::MIN));
            }
        }
        let value = self.atom()?;
        Ok(if negative { -value } else { value })
    }

    fn atom(&mut self) -> Result<SymExpr, String> {
        if self.eat("(") {
            let inner = self.sum()?;
            return self.close().map(|()| inner);
        }
        for (name, pick) in
            [("min(", SymExpr::sym_min as fn(&SymExpr, &SymExpr) -> SymExpr), ("max(", SymExpr::sym_max)]
        {
            if self.eat(name) {
                let left = self.sum()?;
                if !self.eat(",") {
                    return Err(format!("expected `,` at `{}`", head(self.rest)));
                }
                let right = self.sum()?;
                self.close()?;
                return bounded(pick(&left, &right));
            }
        }
        self.rest = self.rest.trim_start();
        for (prefix, make) in
            [('s', (|n| Atom::Sym(SymId(n))) as fn(u32) -> Atom), ('i', Atom::Loop), ('v', Atom::Value)]
        {
            if let Some(rest) = self.rest.strip_prefix(prefix) {
                self.rest = rest;
                let number =
                    u32::try_from(self.number()?).map_err(|_| format!("`{prefix}` needs a small number"))?;
                return Ok(SymExpr::atom(make(number)));
            }
        }
        self.number().map(SymExpr::from_i64)
    }

    fn close(&mut self) -> Result<(), String> {
        if self.eat(")") { Ok(()) } else { Err(format!("expected `)` at `{}`", head(self.rest))) }
    }

    fn number(&mut self) -> Result<i64, String> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        if digits.is_empty() {
            return Err(format!("expected a number or a symbol such as `s0` at `{}`", head(self.rest)));
        }
        self.rest = rest;
        digits.parse().map_err(|_| format!("`{}` does not fit 64 bits", head(digits)))
    }
}

fn head(text: &str) -> &str {
    match text.char_indices().nth(16) {
        Some((end, _)) => &text[..end],
        None if text.is_empty() => "the end",
        None => text,
    }
}
