//! Size expressions of an archive: sympy's `srepr` (`Add(Symbol('s77', positive=True, integer=True), Integer(1))`) and
//! the plain form (`2*s77 + 1`), read into [`SymExpr`].
//!
//! Exact: quotients are kept as ratios until a rounding function makes them integers, truth values are 0 or 1, and a
//! `Piecewise` is a sum over them. A result that is not an integer (a float symbol, a square root) is an error that says
//! so. Depth, length and the work of expanding products are bounded, because the text comes from a file.

mod arith;
mod lex;
mod parse;

use ir_core::{Relation, SymExpr};

pub(crate) use parse::Bounds;

/// The value of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// An integer.
    Int(SymExpr),
    /// Numerator and denominator of a number that may have a fraction.
    Ratio(SymExpr, SymExpr),
    /// A truth value, as 0 or 1.
    Truth(SymExpr),
}

/// `left >= right`, as it is at the top of a truth expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AtLeast {
    /// The larger side.
    pub(crate) left: SymExpr,
    /// The smaller side.
    pub(crate) right: SymExpr,
}

/// Reads an expression. `symbol` returns the expression of a name, or the reason why there is none.
///
/// # Errors
/// The problem in words.
pub(crate) fn parse(
    text: &str,
    bounds: &Bounds,
    symbol: &mut dyn FnMut(&str) -> Result<SymExpr, String>,
) -> Result<Value, String> {
    parse::Parser::new(text, bounds, symbol)?.whole()
}

/// The comparisons that all must hold for a truth expression to be true, where it is a conjunction of them.
/// `a == b` yields both directions; `a != b` yields none.
pub(crate) fn facts(
    text: &str,
    bounds: &Bounds,
    symbol: &mut dyn FnMut(&str) -> Result<SymExpr, String>,
) -> Result<Vec<AtLeast>, String> {
    let mut parser = parse::Parser::new(text, bounds, symbol)?;
    parser.whole()?;
    Ok(parser.into_facts())
}

/// The comparisons with zero that a truth expression is equivalent to: one condition for each comparison of a conjunction,
/// else
/// one for the whole.
///
/// # Errors
/// As [`parse`]; an expression that is not a truth value.
pub(crate) fn conditions(
    text: &str,
    bounds: &Bounds,
    symbol: &mut dyn FnMut(&str) -> Result<SymExpr, String>,
) -> Result<Vec<(SymExpr, Relation)>, String> {
    let mut parser = parse::Parser::new(text, bounds, symbol)?;
    let truth = arith::truth(parser.whole()?)?;
    let mut list: Vec<(SymExpr, Relation)> = Vec::new();
    for AtLeast { left, right } in parser.into_facts() {
        // Both directions are an equality.
        match list.last_mut() {
            Some(last) if last.0 == &right - &left => last.1 = Relation::Zero,
            _ => list.push((left - right, Relation::NonNegative)),
        }
    }
    if list.is_empty() {
        list.push((truth - 1, Relation::Zero));
    }
    Ok(list)
}

#[cfg(test)]
mod tests;
