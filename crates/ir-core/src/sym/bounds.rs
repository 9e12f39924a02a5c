//! Simplification under known ranges: `i0 // 4` is zero where `0 <= i0 < 4`.

use super::{Atom, Repr, SymExpr};

/// What is known of the leaves of an expression.
pub trait Bounds {
    /// Smallest and largest value of a leaf atom, where known.
    fn range(&self, leaf: &Atom) -> (Option<i64>, Option<i64>);
    /// The extent of a loop variable (it runs from 0 to extent - 1), where it has one.
    fn extent(&self, loop_var: u32) -> Option<SymExpr>;
}

impl<B: Bounds + ?Sized> Bounds for &B {
    fn range(&self, leaf: &Atom) -> (Option<i64>, Option<i64>) {
        (**self).range(leaf)
    }
    fn extent(&self, loop_var: u32) -> Option<SymExpr> {
        (**self).extent(loop_var)
    }
}

/// Knows only that sizes and loop variables are not negative.
pub struct NoBounds;

impl Bounds for NoBounds {
    fn range(&self, leaf: &Atom) -> (Option<i64>, Option<i64>) {
        (matches!(leaf, Atom::Sym(_) | Atom::Loop(_)).then_some(0), None)
    }
    fn extent(&self, _: u32) -> Option<SymExpr> {
        None
    }
}

type Interval = (Option<i64>, Option<i64>);

impl SymExpr {
    /// An interval that holds every value, by interval arithmetic.
    pub fn range(&self, known: &dyn Bounds) -> Interval {
        let Repr::Poly(p) = &self.0 else { return (self.as_const(), self.as_const()) };
        let mut sum: Interval = (Some(p.constant), Some(p.constant));
        for term in &p.terms {
            let mut product: Interval = (Some(term.coef), Some(term.coef));
            for atom in &term.factors {
                product = mul(product, atom.range(known));
            }
            sum = (add(sum.0, product.0), add(sum.1, product.1));
        }
        sum
    }

    /// Whether the value is never negative, as far as `known` can show.
    pub fn is_non_negative(&self, known: &dyn Bounds) -> bool {
        self.range(known).0.is_some_and(|lo| lo >= 0)
            || self.least(known).is_some_and(|e| e.range(known).0.is_some_and(|lo| lo >= 0))
    }

    /// Whether `self < rhs` always holds, as far as `known` can show.
    pub fn is_less_than(&self, rhs: &SymExpr, known: &dyn Bounds) -> bool {
        (rhs - self - 1).is_non_negative(known)
    }

    /// A lower bound in sizes alone: loop variables are replaced by the end of their range that makes each term smallest.
    /// `None` where that end is not known.
    pub fn least(&self, known: &dyn Bounds) -> Option<SymExpr> {
        let Repr::Poly(p) = &self.0 else { return None };
        let mut sum = SymExpr::from_i64(p.constant);
        for term in &p.terms {
            let mut product = SymExpr::from_i64(term.coef);
            for atom in &term.factors {
                product = product
                    * match atom {
                        Atom::Loop(v) if term.coef < 0 => known.extent(*v)? - 1,
                        Atom::Loop(_) => SymExpr::ZERO,
                        // Other factors must not be negative for the choice of the end to be right.
                        other => other
                            .range(known)
                            .0
                            .is_some_and(|lo| lo >= 0)
                            .then(|| SymExpr::atom(other.clone()))?,
                    };
            }
            sum = sum + product;
        }
        Some(sum)
    }

    /// The same value with divisions and remainders removed where `known` allows.
    pub fn simplify(&self, known: &dyn Bounds) -> SymExpr {
        let Repr::Poly(p) = &self.0 else { return self.clone() };
        if !p.terms.iter().flat_map(|t| &t.factors).any(Atom::is_compound) {
            return self.clone();
        }
        let mut sum = SymExpr::from_i64(p.constant);
        for term in &p.terms {
            let mut product = SymExpr::from_i64(term.coef);
            for atom in &term.factors {
                product = product * atom.simplify(known);
            }
            sum = sum + product;
        }
        sum.recombine()
    }

    /// Joins what a division took apart: `k*c*(x // c) + k*(x % c)` is `k*x`.
    fn recombine(&self) -> SymExpr {
        let (terms, _) = self.terms();
        for (coef, factors) in &terms {
            for (at, atom) in factors.iter().enumerate() {
                let Atom::Mod(ab) = atom else { continue };
                let rest = factors.iter().enumerate().filter(|(i, _)| *i != at);
                let scale = rest.fold(SymExpr::from_i64(*coef), |x, (_, a)| x * SymExpr::atom(a.clone()));
                let quotient = &scale * &ab.1 * ab.0.floor_div(&ab.1);
                let without = self - &quotient - &scale * SymExpr::atom(atom.clone());
                // Every term of the quotient must have been there.
                if without.terms().0.len() + quotient.terms().0.len() < terms.len() {
                    return (without + scale * &ab.0).recombine();
                }
            }
        }
        self.clone()
    }
}

impl Atom {
    fn is_compound(&self) -> bool {
        !matches!(self, Atom::Sym(_) | Atom::Loop(_) | Atom::Value(_))
    }

    fn range(&self, known: &dyn Bounds) -> Interval {
        let positive = |e: &SymExpr| e.range(known).0.is_some_and(|lo| lo > 0);
        match self {
            Atom::Sym(_) | Atom::Value(_) => known.range(self),
            Atom::Loop(v) => match known.extent(*v) {
                Some(extent) => (Some(0), add(extent.range(known).1, Some(-1))),
                None => known.range(self),
            },
            Atom::FloorDiv(ab) if positive(&ab.1) => {
                let ((lo, hi), (dlo, _)) = (ab.0.range(known), ab.1.range(known));
                let lo =
                    lo.and_then(|lo| if lo >= 0 { Some(0) } else { super::poly::floor_div_i64(lo, dlo?) });
                (lo, hi.and_then(|hi| super::poly::floor_div_i64(hi, dlo?)).map(|hi| hi.max(-1)))
            }
            Atom::Mod(ab) if positive(&ab.1) => (Some(0), add(ab.1.range(known).1, Some(-1))),
            Atom::Min(ab) | Atom::Max(ab) => {
                let ((alo, ahi), (blo, bhi)) = (ab.0.range(known), ab.1.range(known));
                let either = |a: Option<i64>, b: Option<i64>, pick: fn(i64, i64) -> i64| match (a, b) {
                    (Some(a), Some(b)) => Some(pick(a, b)),
                    (one, None) | (None, one) => one,
                };
                match self {
                    Atom::Min(_) => (alo.zip(blo).map(|(a, b)| a.min(b)), either(ahi, bhi, i64::min)),
                    _ => (either(alo, blo, i64::max), ahi.zip(bhi).map(|(a, b)| a.max(b))),
                }
            }
            Atom::FloorDiv(_) | Atom::Mod(_) => (None, None),
        }
    }

    fn simplify(&self, known: &dyn Bounds) -> SymExpr {
        let inside = |a: &SymExpr, b: &SymExpr| a.is_non_negative(known) && a.is_less_than(b, known);
        let parts = |ab: &(SymExpr, SymExpr)| (ab.0.simplify(known), ab.1.simplify(known));
        match self {
            Atom::Sym(_) | Atom::Loop(_) | Atom::Value(_) => SymExpr::atom(self.clone()),
            Atom::FloorDiv(ab) => {
                let (a, b) = parts(ab);
                if inside(&a, &b) { SymExpr::ZERO } else { a.floor_div(&b).simplify_top(known) }
            }
            Atom::Mod(ab) => {
                let (a, b) = parts(ab);
                if inside(&a, &b) { a } else { a.modulo(&b).simplify_top(known) }
            }
            Atom::Min(ab) | Atom::Max(ab) => {
                let (a, b) = parts(ab);
                let smaller = matches!(self, Atom::Min(_));
                let (less, more) = ((&b - &a).is_non_negative(known), (&a - &b).is_non_negative(known));
                match (less, more) {
                    (true, _) => {
                        if smaller {
                            a
                        } else {
                            b
                        }
                    }
                    (_, true) => {
                        if smaller {
                            b
                        } else {
                            a
                        }
                    }
                    _ if smaller => a.sym_min(&b),
                    _ => a.sym_max(&b),
                }
            }
        }
    }
}

impl SymExpr {
    /// One more look at divisions that splitting has just made: `(4*i0 + i1) // 4` gives `i0 + i1 // 4`.
    fn simplify_top(&self, known: &dyn Bounds) -> SymExpr {
        let (terms, constant) = self.terms();
        let mut sum = SymExpr::from_i64(constant);
        for (coef, factors) in terms {
            let mut product = SymExpr::from_i64(coef);
            for atom in factors {
                let inside =
                    |ab: &(SymExpr, SymExpr)| ab.0.is_non_negative(known) && ab.0.is_less_than(&ab.1, known);
                product = product
                    * match atom {
                        Atom::FloorDiv(ab) if inside(ab) => SymExpr::ZERO,
                        Atom::Mod(ab) if inside(ab) => ab.0.clone(),
                        other => SymExpr::atom(other.clone()),
                    };
            }
            sum = sum + product;
        }
        sum
    }
}

fn add(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    a?.checked_add(b?)
}

/// Product of intervals; an end that is unknown or does not fit stays unknown.
fn mul(a: Interval, b: Interval) -> Interval {
    if let ((Some(al), Some(ah)), (Some(bl), Some(bh))) = (a, b) {
        let products = [al.checked_mul(bl), al.checked_mul(bh), ah.checked_mul(bl), ah.checked_mul(bh)];
        if products.iter().all(Option::is_some) {
            let all = products.into_iter().flatten();
            return (all.clone().min(), all.max());
        }
        return (None, None);
    }
    let non_negative = |x: Interval| x.0.is_some_and(|lo| lo >= 0);
    let non_positive = |x: Interval| x.1.is_some_and(|hi| hi <= 0);
    let times = |x: Option<i64>, y: Option<i64>| x?.checked_mul(y?);
    match () {
        () if non_negative(a) && non_negative(b) => (times(a.0, b.0).or(Some(0)), times(a.1, b.1)),
        () if non_positive(a) && non_negative(b) => (times(a.0, b.1), times(a.1, b.0).or(Some(0))),
        () if non_negative(a) && non_positive(b) => mul(b, a),
        () => (None, None),
    }
}
