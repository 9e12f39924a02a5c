//! The text of control flow: `bind`, `assert`, `cond`, `for`, `while`, each with its lists of steps closed by `end`, and of
//! `together`, which holds steps in the same way. Kernels are read in `steps` and printed in `print`.

use std::fmt;

use ir_core::SymId;
use ir_core::text::{Cursor, TextProblem, quote};

use super::parse::{Result, expr, operand};
use super::print::from;
use super::steps::{name, origins, step};
use crate::verify::MAX_DEPTH;
use crate::{Assert, Bind, Cond, For, Step, Together, While};

/// `bind "n" s3 b2[]{}+0` or `assert "positive" "message" b2[]{}+0`.
pub(super) fn single(c: &mut Cursor<'_>) -> Result<Step> {
    if c.eat_word("bind") {
        let name = name(c)?;
        return Ok(Step::Bind(Bind { name, symbol: symbol(c)?, from: operand(c)? }));
    }
    c.expect_word("assert")?;
    let (name, message) = (name(c)?, c.quoted("the message")?);
    Ok(Step::Assert(Assert { name, message, pred: operand(c)? }))
}

fn symbol(c: &mut Cursor<'_>) -> Result<SymId> {
    c.numbered("s").map(SymId)
}

/// `cond`, `for`, `while` or `together` with its lists of steps.
pub(super) fn nested(c: &mut Cursor<'_>, depth: usize) -> Result<Step> {
    if depth >= MAX_DEPTH {
        let mark = c.mark();
        return Err(c.error_at(mark, TextProblem::TooDeep { what: "control flow is", limit: MAX_DEPTH }));
    }
    let list = |c: &mut Cursor<'_>, title: &str| -> Result<Vec<Step>> {
        c.expect_word(title)?;
        c.expect(":")?;
        let mut steps = Vec::new();
        while let Some(next) = step(c, depth + 1)? {
            steps.push(next);
        }
        Ok(steps)
    };
    let step = if c.eat_word("cond") {
        let (name, pred, origins) = (name(c)?, operand(c)?, origins(c)?);
        let (then, otherwise) = (list(c, "then")?, list(c, "else")?);
        Step::Cond(Cond { name, origins, pred, then, otherwise })
    } else if c.eat_word("for") {
        let (name, symbol) = (name(c)?, symbol(c)?);
        c.expect("[")?;
        let count = expr(c)?;
        c.expect("]")?;
        let origins = origins(c)?;
        Step::For(For { name, origins, symbol, count, body: list(c, "do")? })
    } else if c.eat_word("together") {
        let name = name(c)?;
        Step::Together(Together { name, steps: list(c, "do")? })
    } else {
        c.expect_word("while")?;
        let (name, pred, origins) = (name(c)?, operand(c)?, origins(c)?);
        let (cond, body) = (list(c, "test")?, list(c, "do")?);
        Step::While(While { name, origins, cond, pred, body })
    };
    c.expect_word("end")?;
    Ok(step)
}

fn list(title: &str, steps: &[Step], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "{title}:")?;
    steps.iter().try_for_each(|s| write!(f, "{s}"))
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "bind {} {} {}", quote(&self.name), self.symbol, self.from)
    }
}

impl fmt::Display for Assert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "assert {} {} {}", quote(&self.name), quote(&self.message), self.pred)
    }
}

impl fmt::Display for Cond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "cond {} {}{}", quote(&self.name), self.pred, from(&self.origins))?;
        list("then", &self.then, f)?;
        list("else", &self.otherwise, f)?;
        writeln!(f, "end")
    }
}

impl fmt::Display for For {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "for {} {} [{}]{}", quote(&self.name), self.symbol, self.count, from(&self.origins))?;
        list("do", &self.body, f)?;
        writeln!(f, "end")
    }
}

impl fmt::Display for While {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "while {} {}{}", quote(&self.name), self.pred, from(&self.origins))?;
        list("test", &self.cond, f)?;
        list("do", &self.body, f)?;
        writeln!(f, "end")
    }
}

impl fmt::Display for Together {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "together {}", quote(&self.name))?;
        list("do", &self.steps, f)?;
        writeln!(f, "end")
    }
}
