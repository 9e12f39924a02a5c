//! Describes which values a size may have in terms of what the caller provides: of `2*s0` the caller knows the product, not
//! the symbol.

use super::{Atom, Bounds, SymExpr};

impl SymExpr {
    /// `from 2 to 64`, `at least 2`, `a multiple of 2 from 4 to 128`, `from 5 to 129 in steps of 2`; `None` for expressions of
    /// several symbols, or of one that is not counted by whole steps.
    pub fn allowed(&self, known: &dyn Bounds) -> Option<String> {
        if let Some(n) = self.as_const() {
            return Some(n.to_string());
        }
        let (terms, constant) = self.terms();
        let [(step, [symbol @ Atom::Sym(_)])] = terms[..] else { return None };
        if step < 1 {
            return None;
        }
        let (low, high) = SymExpr::atom(symbol.clone()).range(known);
        let of = |n: i64| n.checked_mul(step)?.checked_add(constant);
        // A smallest symbol may be as small as numbers are.
        let (low, high) = (low.and_then(of), high.and_then(of));
        let range = match (low, high) {
            (Some(low), Some(high)) if low == high => return Some(low.to_string()),
            (Some(low), Some(high)) => format!("from {low} to {high}"),
            (Some(low), None) => format!("at least {low}"),
            (None, Some(high)) => format!("at most {high}"),
            (None, None) => String::new(),
        };
        let counted = match (step, constant.rem_euclid(step)) {
            (1, _) => range,
            (_, 0) if range.starts_with("from") => format!("a multiple of {step} {range}"),
            (_, 0) if range.is_empty() => format!("a multiple of {step}"),
            (_, 0) => format!("a multiple of {step}, {range}"),
            (_, rest) if range.is_empty() => format!("{rest} more than a multiple of {step}"),
            _ => format!("{range} in steps of {step}"),
        };
        Some(if counted.is_empty() { "any integer".into() } else { counted })
    }

    /// The message for a size that a caller gave for this expression: `dimension 0 is 130; it must be a multiple of
    /// 2 from 4 to 128`. `others` is the value of the expression by the sizes seen before, where they determine it.
    pub fn describe_mismatch(
        &self,
        dim: usize,
        given: i64,
        others: Option<i64>,
        known: &dyn Bounds,
    ) -> String {
        let must = match others {
            Some(wanted) => format!("{wanted}, which the sizes before it make of `{self}`"),
            None => self.allowed(known).unwrap_or_else(|| format!("a value of `{self}`")),
        };
        format!("dimension {dim} is {given}; it must be {must}")
    }
}
