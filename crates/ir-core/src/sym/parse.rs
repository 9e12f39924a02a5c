//! Reads the text form of expressions back. Depth and length are bounded: the text may come from a file.

use std::str::FromStr;

use super::{Atom, SymExpr, SymId};

/// Deeper nesting than any real expression has; keeps hostile text off the stack.
const MAX_DEPTH: u32 = 64;

/// More terms than any real product has; `(s0 + s1)*(s0 + s1)*…` in hostile text grows without bound otherwise.
const MAX_TERMS: usize = 1024;

impl FromStr for SymExpr {
    type Err = String;

    fn from_str(text: &str) -> Result<SymExpr, String> {
        let mut parser = Parser { rest: text, depth: 0 };
        let expr = parser.sum()?;
        match parser.rest.trim_start() {
            "" => Ok(expr),
            rest => Err(format!("unexpected `{}` in size expression `{text}`", head(rest))),
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
    depth: u32,
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
                left = left + self.product()?;
            } else if self.eat("-") {
                left = left - self.product()?;
            } else {
                self.depth -= 1;
                return Ok(left);
            }
        }
    }

    fn product(&mut self) -> Result<SymExpr, String> {
        let mut left = self.factor()?;
        loop {
            if self.eat("//") {
                left = left.floor_div(&self.divisor()?);
            } else if self.eat("*") {
                let right = self.factor()?;
                if (left.terms().0.len() + 1) * (right.terms().0.len() + 1) > MAX_TERMS {
                    return Err(format!("a product in a size expression has more than {MAX_TERMS} terms"));
                }
                left = left * right;
            } else if self.eat("%") {
                left = left.modulo(&self.divisor()?);
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
                return self.close().map(|()| pick(&left, &right));
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
