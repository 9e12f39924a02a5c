//! Guards: conditions that the builder of a graph assumed about its symbolic sizes. They are part of the graph and of the
//! compiled program and are checked before every call; a call whose sizes violate one is refused. This is not a prover:
//! only what the ranges of the symbols decide is decided here, and the check at the call does the rest.

use serde::{Deserialize, Serialize};

use crate::{Atom, Bounds, Origin, SymExpr};

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
    /// The message for a violation, as a sentence without its full stop: `x has size 3 where y has size 5`.
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
        if let Some(value) = expression.as_const() {
            return Some(self.holds(value));
        }
        let expression = expression.simplify(known);
        let (low, high) = expression.range(known);
        let non_negative = || prove::non_negative(&expression, known);
        let positive = || prove::non_negative(&(&expression - 1), known);
        let negative = || prove::non_negative(&(SymExpr::from_i64(-1) - &expression), known);
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
    /// As [`decided`](Relation::decided), where guards hold too.
    pub fn decided_given(self, expression: &SymExpr, known: &dyn Bounds, guards: &[Guard]) -> Option<bool> {
        self.decided(expression, known).or_else(|| {
            let negated = SymExpr::ZERO - expression;
            guards.iter().find_map(|g| self.implied(expression, &negated, g, known)).or_else(|| {
                let same = guards.iter().fold(expression.clone(), |e, g| g.substituted(e));
                if same == *expression { None } else { self.decided(&same, known) }
            })
        })
    }
    /// What one guard implies for the relation by itself.
    fn implied(self, e: &SymExpr, negated: &SymExpr, guard: &Guard, known: &dyn Bounds) -> Option<bool> {
        let of = &guard.expression;
        match (self, guard.relation) {
            (Relation::NonNegative, Relation::NonNegative) => {
                (of == e || prove::non_negative(&(e - of), known)).then_some(true)
            }
            (Relation::NonNegative, _) | (_, Relation::NonNegative) => None,
            (mine, theirs) => (of == e || of == negated).then_some(mine == theirs),
        }
    }
}

impl Guard {
    /// The expression in which the symbol that the guard equates with something else is replaced by it.
    fn substituted(&self, e: SymExpr) -> SymExpr {
        let Some((symbol, value)) = self.equality() else { return e };
        e.subst(&|atom| (*atom == symbol).then(|| value.clone()))
    }
    /// A symbol and what it equals, where the guard is such an equation.
    fn equality(&self) -> Option<(Atom, SymExpr)> {
        if self.relation != Relation::Zero {
            return None;
        }
        let (terms, _) = self.expression.terms();
        terms.into_iter().find_map(|(coef, factors)| {
            let [symbol @ Atom::Sym(_)] = factors else { return None };
            let (_, rest) = self.expression.affine_in(symbol).filter(|_| coef == 1 || coef == -1)?;
            if rest.any_leaf(|a| a == symbol) {
                return None;
            }
            Some((symbol.clone(), if coef == 1 { SymExpr::ZERO - rest } else { rest }))
        })
    }
}

/// Proofs by cases: a minimum is one of two, a quotient lies near its dividend.
mod prove {
    use crate::{Atom, Bounds, SymExpr};

    /// Cases within cases: more than any rule makes.
    const MAX_DEPTH: u32 = 6;

    /// Whether the expression is never negative, as far as ranges and cases show.
    pub(super) fn non_negative(e: &SymExpr, known: &dyn Bounds) -> bool {
        below(e, known, MAX_DEPTH)
    }

    fn below(e: &SymExpr, known: &dyn Bounds, depth: u32) -> bool {
        if e.range(known).0.is_some_and(|low| low >= 0) || e.is_non_negative(known) {
            return true;
        }
        if depth == 0 {
            return false;
        }
        let (terms, _) = e.terms();
        let mut compound = terms.iter().flat_map(|(_, factors)| factors.iter()).filter(|a| !is_leaf(a));
        compound.any(|atom| {
            let Some((coef, rest)) = e.affine_in(atom) else { return false };
            let falls = below(&(SymExpr::ZERO - &coef), known, 1);
            let rises = !falls && below(&coef, known, 1);
            let with = |value: &SymExpr| below(&(&coef * value + &rest), known, depth - 1);
            match atom {
                Atom::Min(ab) if falls => with(&ab.0) || with(&ab.1),
                Atom::Max(ab) if rises => with(&ab.0) || with(&ab.1),
                Atom::Min(ab) | Atom::Max(ab) => with(&ab.0) && with(&ab.1),
                Atom::FloorDiv(ab) if positive(&ab.1, known) => {
                    // `b * (a // b)` is at most `a` and more than `a - b`; the sign of `b * e` is that of `e`.
                    let bound = if falls { ab.0.clone() } else { &ab.0 - &ab.1 + 1 };
                    (falls || rises) && below(&(&coef * bound + &rest * &ab.1), known, depth - 1)
                }
                Atom::Mod(ab) if positive(&ab.1, known) && rises => with(&SymExpr::ZERO),
                Atom::Mod(ab) if positive(&ab.1, known) && falls => {
                    with(&(&ab.1 - 1)) || (below(&ab.0, known, 1) && with(&ab.0))
                }
                _ => false,
            }
        })
    }

    fn is_leaf(atom: &Atom) -> bool {
        matches!(atom, Atom::Sym(_) | Atom::Loop(_) | Atom::Value(_))
    }

    fn positive(e: &SymExpr, known: &dyn Bounds) -> bool {
        e.range(known).0.is_some_and(|low| low > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SymId;

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

    fn e(text: &str) -> SymExpr {
        text.parse().unwrap()
    }

    #[test]
    fn cases_prove_bounds_of_slices() {
        let known = AtLeast(0);
        let never_negative = |text: &str| Relation::NonNegative.decided(&e(text), &known);
        for text in [
            "s0 - min(s0, 5)",
            "s0 - max(min(s0, s1), 0)",
            "max(min(s0, s1), 3) - 3",
            "s0 - 4*(s0 // 4)",
            "3 - s0 % 4",
            "s0 - s0 % 4",
            "s0 - min(s0, s1) + 1 - 2*((s0 - min(s0, s1) + 1) // 2)",
        ] {
            assert_eq!(never_negative(text), Some(true), "{text}");
        }
        for text in ["s0 - min(s1, 5)", "4*(s0 // 4) - s0", "s0 % 4 - 1"] {
            assert_eq!(never_negative(text), None, "{text}");
        }
    }

    #[test]
    fn guards_decide_what_follows_from_them() {
        let known = AtLeast(0);
        let guard = |text: &str, relation| Guard {
            expression: e(text),
            relation,
            origin: Origin::default(),
            message: String::new(),
        };
        let guards = [guard("s0 - s1", Relation::Zero), guard("s2 - 3", Relation::NonNegative)];
        let decided = |relation: Relation, text: &str| relation.decided_given(&e(text), &known, &guards);
        assert_eq!(decided(Relation::Zero, "s1 - s0"), Some(true));
        assert_eq!(decided(Relation::Zero, "2*s0 - 2*s1"), Some(true));
        assert_eq!(decided(Relation::NonZero, "s0 - s1"), Some(false));
        assert_eq!(decided(Relation::NonNegative, "s2 + s0 - 2"), Some(true));
        assert_eq!(decided(Relation::NonNegative, "s2 - 4"), None);
    }
}
