//! Recursive descent over the tokens, computing the [`Value`] on the way. Python's precedence.

use ir_core::SymExpr;

use super::arith::{self, Budget};
use super::lex::{self, Token};
use super::{AtLeast, Value};

/// Bounds on one expression.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Longest text in bytes.
    pub(crate) bytes: usize,
    /// Deepest nesting.
    pub(crate) depth: usize,
}

pub(super) struct Parser<'a> {
    rest: &'a str,
    token: Token<'a>,
    depth: usize,
    max_depth: usize,
    budget: Budget,
    symbol: &'a mut dyn FnMut(&str) -> Result<SymExpr, String>,
    /// Comparisons seen, each with its value, to tell later which of them make up the whole.
    facts: Vec<AtLeast>,
    /// Set by whatever keeps the comparisons seen so far from being a conjunction.
    not_a_conjunction: bool,
}

type Out = Result<Value, String>;

impl<'a> Parser<'a> {
    pub(super) fn new(
        text: &'a str,
        bounds: &Bounds,
        symbol: &'a mut dyn FnMut(&str) -> Result<SymExpr, String>,
    ) -> Result<Parser<'a>, String> {
        if text.len() > bounds.bytes {
            return Err(format!("it is longer than {} bytes", bounds.bytes));
        }
        let (token, rest) = lex::next(text)?;
        let budget = Budget(4096 + 64 * text.len() as u64);
        Ok(Parser {
            rest,
            token,
            depth: 0,
            max_depth: bounds.depth,
            budget,
            symbol,
            facts: Vec::new(),
            not_a_conjunction: false,
        })
    }

    pub(super) fn whole(&mut self) -> Out {
        let value = self.expr()?;
        match self.token {
            Token::End => Ok(value),
            _ => Err(format!("unexpected {}", self.here())),
        }
    }

    pub(super) fn into_facts(self) -> Vec<AtLeast> {
        if self.not_a_conjunction { Vec::new() } else { self.facts }
    }

    fn here(&self) -> String {
        match self.token {
            Token::Name(t) | Token::Text(t) => format!("`{}`", crate::error::shorten(t)),
            Token::Mark(t) => format!("`{t}`"),
            Token::Int(n) => format!("`{n}`"),
            Token::Float(x) => format!("`{x}`"),
            Token::End => "end".into(),
        }
    }

    fn advance(&mut self) -> Result<(), String> {
        (self.token, self.rest) = lex::next(self.rest)?;
        Ok(())
    }

    fn eat(&mut self, mark: &str) -> Result<bool, String> {
        let found = matches!(self.token, Token::Mark(m) if m == mark);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn eat_name(&mut self, name: &str) -> Result<bool, String> {
        let found = self.token == Token::Name(name);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn expect(&mut self, mark: &str) -> Result<(), String> {
        if self.eat(mark)? { Ok(()) } else { Err(format!("expected `{mark}`, found {}", self.here())) }
    }

    /// Disjunction, the loosest binding.
    fn expr(&mut self) -> Out {
        self.depth += 1;
        if self.depth > self.max_depth {
            return Err(format!("it is nested more than {} deep", self.max_depth));
        }
        let mut left = self.conjunction()?;
        while self.eat("|")? || self.eat_name("or")? {
            self.not_a_conjunction = true;
            let right = self.conjunction()?;
            left = self.fold_truth(left, right, Budget::or)?;
        }
        self.depth -= 1;
        Ok(left)
    }

    fn conjunction(&mut self) -> Out {
        let mut left = self.negation()?;
        while self.eat("&")? || self.eat_name("and")? {
            let right = self.negation()?;
            left = self.fold_truth(left, right, Budget::and)?;
        }
        Ok(left)
    }

    fn fold_truth(
        &mut self,
        a: Value,
        b: Value,
        join: fn(&mut Budget, &SymExpr, &SymExpr) -> Result<SymExpr, String>,
    ) -> Out {
        let (a, b) = (arith::truth(a)?, arith::truth(b)?);
        Ok(Value::Truth(join(&mut self.budget, &a, &b)?))
    }

    fn negation(&mut self) -> Out {
        let mut negate = false;
        while self.eat("~")? || self.eat_name("not")? {
            self.not_a_conjunction = true;
            negate = !negate;
        }
        let value = self.comparison()?;
        if !negate {
            return Ok(value);
        }
        let value = arith::truth(value)?;
        Ok(Value::Truth(self.budget.not(&value)?))
    }

    fn comparison(&mut self) -> Out {
        let left = self.sum()?;
        for mark in ["<=", ">=", "==", "!=", "<", ">"] {
            if self.eat(mark)? {
                let right = self.sum()?;
                return self.compare(mark, left, right);
            }
        }
        Ok(left)
    }

    fn sum(&mut self) -> Out {
        let mut left = self.product()?;
        loop {
            if self.eat("+")? {
                let right = self.product()?;
                left = self.budget.add(left, right)?;
            } else if self.eat("-")? {
                let right = self.product()?;
                let right = self.budget.neg(right)?;
                left = self.budget.add(left, right)?;
            } else {
                return Ok(left);
            }
        }
    }

    fn product(&mut self) -> Out {
        let mut left = self.unary()?;
        loop {
            left = if self.eat("*")? {
                let right = self.unary()?;
                self.budget.mul(left, right)?
            } else if self.eat("//")? {
                let right = self.unary()?;
                self.budget.floor_div(left, right)?
            } else if self.eat("/")? {
                let right = self.unary()?;
                self.budget.true_div(left, right)?
            } else if self.eat("%")? {
                let right = self.unary()?;
                self.budget.modulo(left, right)?
            } else {
                return Ok(left);
            }
        }
    }

    fn unary(&mut self) -> Out {
        let mut negate = false;
        loop {
            if self.eat("-")? {
                negate = !negate;
            } else if !self.eat("+")? {
                break;
            }
        }
        let mut value = self.atom()?;
        if self.eat("**")? {
            // One level only: `a**b**c` does not occur and its exponent would be no small number.
            let minus = self.eat("-")?;
            let mut exponent = self.atom()?;
            if minus {
                exponent = self.budget.neg(exponent)?;
            }
            value = self.budget.pow(value, exponent)?;
        }
        if negate { self.budget.neg(value) } else { Ok(value) }
    }

    fn atom(&mut self) -> Out {
        let token = self.token;
        match token {
            Token::Int(n) => self.advance().map(|()| Value::Int(SymExpr::from_i64(n))),
            Token::Float(x) => self.advance().and_then(|()| arith::float(x)),
            Token::Mark("(") => {
                self.advance()?;
                let value = self.expr()?;
                // A pair of parentheses with a comma is an arm of a `Piecewise`, read by `piecewise`.
                self.expect(")")?;
                Ok(value)
            }
            Token::Name(name) => {
                self.advance()?;
                if self.eat("(")? { self.call(name) } else { self.name(name) }
            }
            _ => Err(format!("expected an expression, found {}", self.here())),
        }
    }

    fn name(&mut self, name: &str) -> Out {
        match name {
            "True" | "true" => Ok(Value::Truth(SymExpr::ONE)),
            "False" | "false" => Ok(Value::Truth(SymExpr::ZERO)),
            _ => (self.symbol)(name).map(Value::Int),
        }
    }

    /// A call, its opening parenthesis just read.
    fn call(&mut self, name: &str) -> Out {
        match name {
            "Symbol" => {
                let Token::Text(symbol) = self.token else { return Err("`Symbol` without a name".into()) };
                self.advance()?;
                self.skip_keywords()?;
                (self.symbol)(symbol).map(Value::Int)
            }
            "Float" => {
                let value = match self.token {
                    Token::Text(t) => t.trim().parse::<f64>().map_err(|_| format!("`{t}` is not a float"))?,
                    Token::Float(x) => x,
                    Token::Int(n) => n as f64,
                    _ => return Err("`Float` without a number".into()),
                };
                self.advance()?;
                self.skip_keywords()?;
                arith::float(value)
            }
            "Piecewise" => self.piecewise(),
            _ => {
                let known = self.facts.len();
                let args = self.args()?;
                // Comparisons inside anything but a conjunction (`Or`, `Not`) need not hold.
                if name != "And" && self.facts.len() > known {
                    self.not_a_conjunction = true;
                }
                self.apply(name, args)
            }
        }
    }

    /// The arguments up to and with the closing parenthesis; keyword arguments say nothing about the value.
    fn args(&mut self) -> Result<Vec<Value>, String> {
        let mut args = Vec::new();
        if self.eat(")")? {
            return Ok(args);
        }
        loop {
            if self.at_keyword() {
                self.skip_keyword()?;
            } else {
                args.push(self.expr()?);
            }
            if self.eat(")")? {
                return Ok(args);
            }
            self.expect(",")?;
        }
    }

    fn at_keyword(&self) -> bool {
        let rest = self.rest.trim_start();
        matches!(self.token, Token::Name(_)) && rest.starts_with('=') && !rest.starts_with("==")
    }

    fn skip_keyword(&mut self) -> Result<(), String> {
        self.advance()?;
        self.expect("=")?;
        self.advance()
    }

    /// `, positive=True, integer=True)`.
    fn skip_keywords(&mut self) -> Result<(), String> {
        while self.eat(",")? {
            if !self.at_keyword() {
                return Err(format!("unexpected {}", self.here()));
            }
            self.skip_keyword()?;
        }
        self.expect(")")
    }

    /// `ExprCondPair(value, condition), …)`, also as plain or named tuples; the first arm whose condition holds.
    fn piecewise(&mut self) -> Out {
        self.not_a_conjunction = true;
        let mut arms = Vec::new();
        loop {
            for name in ["ExprCondPair", "Tuple"] {
                self.eat_name(name)?;
            }
            self.expect("(")?;
            let value = self.expr()?;
            self.expect(",")?;
            let condition = self.expr()?;
            self.expect(")")?;
            arms.push((arith::int(value)?, arith::truth(condition)?));
            if self.eat(")")? {
                break;
            }
            self.expect(",")?;
        }
        let (mut sum, mut open) = (Value::Int(SymExpr::ZERO), SymExpr::ONE);
        for (value, condition) in arms {
            let taken = self.budget.and(&open, &condition)?;
            let part = self.budget.mul(Value::Int(taken), Value::Int(value))?;
            sum = self.budget.add(sum, part)?;
            let not = self.budget.not(&condition)?;
            open = self.budget.and(&open, &not)?;
        }
        if open != SymExpr::ZERO {
            return Err("a `Piecewise` without a last arm that always holds".into());
        }
        Ok(sum)
    }

    fn compare(&mut self, relation: &str, left: Value, right: Value) -> Out {
        // Multiplying both sides by positive denominators would need their signs; comparisons are of integers.
        let (a, b) = (arith::int(left)?, arith::int(right)?);
        let one = SymExpr::ONE;
        let sides: &[(SymExpr, SymExpr)] = match relation {
            ">=" => &[(a, b)],
            "<=" => &[(b, a)],
            ">" => &[(a, b + one)],
            "<" => &[(b, a + one)],
            "==" | "!=" => &[(a.clone(), b.clone()), (b, a)],
            _ => return Err(format!("unknown comparison `{relation}`")),
        };
        let mut all = SymExpr::ONE;
        for (left, right) in sides {
            let holds = self.budget.at_least(left, right)?;
            all = self.budget.and(&all, &holds)?;
        }
        if relation == "!=" {
            self.not_a_conjunction = true;
            return Ok(Value::Truth(self.budget.not(&all)?));
        }
        self.facts.extend(sides.iter().cloned().map(|(left, right)| AtLeast { left, right }));
        Ok(Value::Truth(all))
    }

    /// A function of sympy or of `torch.utils._sympy.functions`.
    fn apply(&mut self, name: &str, args: Vec<Value>) -> Out {
        let count = args.len();
        let mut args = args.into_iter();
        let mut next = || args.next().ok_or_else(|| format!("`{name}` with too few arguments"));
        let budget = &mut self.budget;
        let value = match name {
            "Integer" | "Identity" | "ToFloat" => next(),
            "Rational" | "IntTrueDiv" | "FloatTrueDiv" => budget.true_div(next()?, next()?),
            "Add" | "Mul" | "Max" | "Min" | "And" | "Or" => return self.fold(name, args),
            "max" => return self.fold("Max", args),
            "min" => return self.fold("Min", args),
            "FloorDiv" => budget.floor_div(next()?, next()?),
            "CleanDiv" => budget.floor_div(next()?, next()?),
            "CeilDiv" => budget.true_div(next()?, next()?).and_then(|v| budget.ceil(v)),
            "Mod" | "PythonMod" => budget.modulo(next()?, next()?),
            "ModularIndexing" => {
                let whole = budget.floor_div(next()?, next()?)?;
                budget.modulo(whole, next()?)
            }
            "Pow" | "PowByNatural" | "FloatPow" => budget.pow(next()?, next()?),
            "LShift" | "RShift" => {
                let (value, by) = (next()?, next()?);
                let power = budget.pow(Value::Int(SymExpr::from_i64(2)), by)?;
                if name == "LShift" { budget.mul(value, power) } else { budget.floor_div(value, power) }
            }
            "floor" | "FloorToInt" => next().and_then(|v| budget.floor(v)),
            "ceiling" | "CeilToInt" => next().and_then(|v| budget.ceil(v)),
            "TruncToInt" | "TruncToFloat" => next().and_then(|v| budget.trunc(v)),
            "RoundToInt" => next().and_then(|v| budget.round(v)),
            "Abs" => {
                let value = next()?;
                let minus = budget.neg(value.clone())?;
                budget.extremum(value, minus, false)
            }
            "Not" => arith::truth(next()?).and_then(|v| budget.not(&v)).map(Value::Truth),
            "Where" => {
                let (condition, default_true, no) = (arith::truth(next()?)?, next()?, next()?);
                let not = budget.not(&condition)?;
                let (default_true, no) =
                    (budget.mul(Value::Int(condition), default_true)?, budget.mul(Value::Int(not), no)?);
                budget.add(default_true, no)
            }
            _ => match relation(name) {
                Some(mark) => {
                    let (a, b) = (next()?, next()?);
                    self.compare(mark, a, b)
                }
                None => Err(format!("`{name}` is not known here")),
            },
        }?;
        if args.next().is_some() {
            return Err(format!("`{name}` with {count} arguments"));
        }
        Ok(value)
    }

    fn fold(&mut self, name: &str, mut args: std::vec::IntoIter<Value>) -> Out {
        let mut out = args.next().ok_or_else(|| format!("`{name}` without arguments"))?;
        for arg in args {
            out = match name {
                "Add" => self.budget.add(out, arg),
                "Mul" => self.budget.mul(out, arg),
                "Max" => self.budget.extremum(out, arg, false),
                "Min" => self.budget.extremum(out, arg, true),
                "And" => self.fold_truth(out, arg, Budget::and),
                _ => self.fold_truth(out, arg, Budget::or),
            }?;
        }
        Ok(out)
    }
}

/// The mark of a relation that `srepr` writes as a call.
fn relation(name: &str) -> Option<&'static str> {
    Some(match name {
        "GreaterThan" | "Ge" => ">=",
        "LessThan" | "Le" => "<=",
        "StrictGreaterThan" | "Gt" => ">",
        "StrictLessThan" | "Lt" => "<",
        "Equality" | "Eq" => "==",
        "Unequality" | "Ne" => "!=",
        _ => return None,
    })
}
