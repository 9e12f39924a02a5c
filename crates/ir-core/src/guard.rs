//! Guards: what the builder of a graph took for granted of its symbolic sizes. They travel with the graph into the compiled
//! program and are checked before every call; a call whose sizes break one is refused. Not a prover: what the symbols' ranges
//! decide alone is decided here, everything else is left to the check.

use serde::{Deserialize, Serialize};

use crate::{Bounds, Origin, SymExpr};

/// How a guard's expression compares with zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Relation {
    /// The expression is zero: two sizes are equal, a size is divisible.
    Zero,
    /// The expression is not zero.
    NonZero,
    /// The expression is zero or more: a size is at least another one.
    NonNegative,
}

/// A condition on symbolic sizes that must hold in every call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Guard {
    /// An expression in size symbols alone.
    pub expression: SymExpr,
    /// How it compares with zero.
    pub relation: Relation,
    /// The node that needs it.
    pub origin: Origin,
    /// What to say where it does not hold, as a sentence without its full stop: `x has size 3 where y has size 5`.
    pub message: String,
}

impl Relation {
    /// Every relation.
    pub const ALL: [Relation; 3] = [Relation::Zero, Relation::NonZero, Relation::NonNegative];

    /// Name in the text forms.
    pub const fn name(self) -> &'static str {
        match self {
            Relation::Zero => "zero",
            Relation::NonZero => "nonzero",
            Relation::NonNegative => "nonnegative",
        }
    }
    /// Whether a value of the expression satisfies the relation.
    pub const fn holds(self, value: i64) -> bool {
        match self {
            Relation::Zero => value == 0,
            Relation::NonZero => value != 0,
            Relation::NonNegative => value >= 0,
        }
    }
    /// Whether the relation holds for all values, or for none, that `known` allows; `None` where that depends on the call.
    pub fn decided(self, expression: &SymExpr, known: &dyn Bounds) -> Option<bool> {
        let expression = expression.simplify(known);
        let (low, high) = expression.range(known);
        let non_negative = || low.is_some_and(|low| low >= 0) || expression.is_non_negative(known);
        let positive = || low.is_some_and(|low| low > 0) || (&expression - 1).is_non_negative(known);
        let negative = || {
            high.is_some_and(|high| high < 0) || (SymExpr::from_i64(-1) - &expression).is_non_negative(known)
        };
        match self {
            Relation::Zero if low == Some(0) && high == Some(0) => Some(true),
            Relation::NonZero if low == Some(0) && high == Some(0) => Some(false),
            Relation::Zero if positive() || negative() => Some(false),
            Relation::NonZero if positive() || negative() => Some(true),
            Relation::NonNegative if non_negative() => Some(true),
            Relation::NonNegative if negative() => Some(false),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Atom, SymId};

    struct AtLeast(i64);

    impl Bounds for AtLeast {
        fn range(&self, _: &Atom) -> (Option<i64>, Option<i64>) {
            (Some(self.0), None)
        }
        fn extent(&self, _: u32) -> Option<SymExpr> {
            None
        }
    }

    fn s(n: u32) -> SymExpr {
        SymExpr::sym(SymId(n))
    }

    #[test]
    fn ranges_decide_what_they_can() {
        let known = AtLeast(2);
        assert_eq!(Relation::Zero.decided(&SymExpr::ZERO, &known), Some(true));
        assert_eq!(Relation::Zero.decided(&(s(0) - 1), &known), Some(false));
        assert_eq!(Relation::Zero.decided(&(s(0) - s(1)), &known), None);
        assert_eq!(Relation::NonZero.decided(&(s(0) - 1), &known), Some(true));
        assert_eq!(Relation::NonNegative.decided(&(s(0) + s(1) - 4), &known), Some(true));
        assert_eq!(Relation::NonNegative.decided(&(SymExpr::ONE - s(0)), &known), Some(false));
        assert_eq!(Relation::NonNegative.decided(&(s(0) - 3), &known), None);
    }
}
