//! Symbolic integers: sizes, strides and index expressions.
//!
//! A [`SymExpr`] is a polynomial over [`Atom`]s in canonical form, so equality is structural and `2*s0 - s0 == s0`
//! holds without a solver. Floor division, remainder, minimum and maximum that do not simplify become atoms.
//! Simplification that needs ranges is asked for with [`SymExpr::simplify`]. Not a general algebra system: no
//! rational numbers, no equation solving.

mod allowed;
mod bounds;
mod code;
mod parse;
mod poly;
mod text;

use std::sync::Arc;

use smallvec::SmallVec;

pub use bounds::{Bounds, NoBounds};
pub use code::SizeCode;

crate::define_id! {
    /// A size symbol of a graph: prints as `s3`.
    pub struct SymId, "s"
}

/// An integer expression in canonical form. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SymExpr(Repr);

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Repr {
    Const(i64),
    /// At least one term, or it would be `Const`.
    Poly(Arc<Poly>),
}

/// `constant + Σ coef * Π factors`, terms sorted by their factors, no zero coefficient.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Poly {
    terms: SmallVec<[Term; 2]>,
    constant: i64,
}

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Term {
    /// Sorted; a power repeats its factor.
    factors: Factors,
    coef: i64,
}

type Factors = SmallVec<[Atom; 2]>;

/// What a polynomial is made of.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Atom {
    /// A size symbol.
    Sym(SymId),
    /// A loop variable of a kernel, numbered from the outermost: prints as `i0`.
    Loop(u32),
    /// An integer SSA value of a kernel body, for data-dependent indices: prints as `v5`.
    Value(u32),
    /// Division rounding to minus infinity: `a // b`.
    FloorDiv(Arc<(SymExpr, SymExpr)>),
    /// Remainder with the sign of the divisor: `a % b`.
    Mod(Arc<(SymExpr, SymExpr)>),
    /// The smaller one.
    Min(Arc<(SymExpr, SymExpr)>),
    /// The larger one.
    Max(Arc<(SymExpr, SymExpr)>),
}

impl SymExpr {
    /// 0
    pub const ZERO: SymExpr = SymExpr(Repr::Const(0));
    /// 1
    pub const ONE: SymExpr = SymExpr(Repr::Const(1));

    /// The number `value`.
    pub const fn from_i64(value: i64) -> SymExpr {
        SymExpr(Repr::Const(value))
    }
    /// A size symbol.
    pub fn sym(id: SymId) -> SymExpr {
        SymExpr::atom(Atom::Sym(id))
    }
    /// A loop variable.
    pub fn loop_var(number: u32) -> SymExpr {
        SymExpr::atom(Atom::Loop(number))
    }
    /// An SSA value of a kernel body.
    pub fn value(number: u32) -> SymExpr {
        SymExpr::atom(Atom::Value(number))
    }
    /// An atom alone.
    pub fn atom(atom: Atom) -> SymExpr {
        let term = Term { factors: SmallVec::from_iter([atom]), coef: 1 };
        SymExpr(Repr::Poly(Arc::new(Poly { terms: SmallVec::from_iter([term]), constant: 0 })))
    }
    /// The number, where it is one.
    pub fn as_const(&self) -> Option<i64> {
        match self.0 {
            Repr::Const(c) => Some(c),
            Repr::Poly(_) => None,
        }
    }
    /// The size symbol, where the expression is one alone.
    pub fn as_sym(&self) -> Option<SymId> {
        match self.as_atom() {
            Some(Atom::Sym(id)) => Some(*id),
            _ => None,
        }
    }
    /// The atom, where the expression is one alone.
    pub fn as_atom(&self) -> Option<&Atom> {
        match &self.0 {
            Repr::Poly(p) if p.constant == 0 && p.terms.len() == 1 && p.terms[0].coef == 1 => {
                match &p.terms[0].factors[..] {
                    [atom] => Some(atom),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// `self // rhs`, rounding to minus infinity. Division by a constant zero gives an atom that evaluates to `None`.
    pub fn floor_div(&self, rhs: &SymExpr) -> SymExpr {
        poly::floor_div(self, rhs)
    }
    /// `self % rhs` with the sign of `rhs`.
    pub fn modulo(&self, rhs: &SymExpr) -> SymExpr {
        poly::modulo(self, rhs)
    }
    /// `(self + rhs - 1) // rhs`.
    pub fn ceil_div(&self, rhs: &SymExpr) -> SymExpr {
        (self.clone() + rhs - SymExpr::ONE).floor_div(rhs)
    }
    /// The smaller of both.
    pub fn sym_min(&self, rhs: &SymExpr) -> SymExpr {
        poly::extremum(self, rhs, true)
    }
    /// The larger of both.
    pub fn sym_max(&self, rhs: &SymExpr) -> SymExpr {
        poly::extremum(self, rhs, false)
    }

    /// The value with every leaf atom (`Sym`, `Loop`, `Value`) given by `leaf`; `None` where one is missing, a divisor
    /// is zero or the result does not fit `i64`.
    pub fn eval(&self, leaf: &dyn Fn(&Atom) -> Option<i64>) -> Option<i64> {
        match &self.0 {
            Repr::Const(c) => Some(*c),
            Repr::Poly(p) => p.terms.iter().try_fold(p.constant, |sum, term| {
                let product = term.factors.iter().try_fold(term.coef, |x, a| x.checked_mul(a.eval(leaf)?))?;
                sum.checked_add(product)
            }),
        }
    }
    /// The same expression with leaf atoms replaced where `leaf` gives something.
    pub fn subst(&self, leaf: &dyn Fn(&Atom) -> Option<SymExpr>) -> SymExpr {
        let Repr::Poly(p) = &self.0 else { return self.clone() };
        let mut sum = SymExpr::from_i64(p.constant);
        for term in &p.terms {
            let mut product = SymExpr::from_i64(term.coef);
            for factor in &term.factors {
                product = product * factor.subst(leaf);
            }
            sum = sum + product;
        }
        sum
    }
    /// Calls `visit` for every leaf atom (`Sym`, `Loop`, `Value`), also within divisions.
    pub fn for_each_leaf(&self, visit: &mut dyn FnMut(&Atom)) {
        let Repr::Poly(p) = &self.0 else { return };
        for atom in p.terms.iter().flat_map(|t| &t.factors) {
            match atom {
                Atom::Sym(_) | Atom::Loop(_) | Atom::Value(_) => visit(atom),
                Atom::FloorDiv(ab) | Atom::Mod(ab) | Atom::Min(ab) | Atom::Max(ab) => {
                    ab.0.for_each_leaf(visit);
                    ab.1.for_each_leaf(visit);
                }
            }
        }
    }
    /// Whether `pred` holds for any leaf atom.
    pub fn any_leaf(&self, pred: impl Fn(&Atom) -> bool) -> bool {
        let mut found = false;
        self.for_each_leaf(&mut |a| found |= pred(a));
        found
    }
    /// The terms `(coefficient, factors)` and the constant of the canonical sum.
    pub fn terms(&self) -> (Vec<(i64, &[Atom])>, i64) {
        match &self.0 {
            Repr::Const(c) => (Vec::new(), *c),
            Repr::Poly(p) => (p.terms.iter().map(|t| (t.coef, &t.factors[..])).collect(), p.constant),
        }
    }
    /// Splits `self` as `coef * atom + rest` where neither `coef` nor `rest` contains `atom`; `None` where `atom`
    /// occurs under a division or in a power. `coef` is zero where `atom` does not occur.
    pub fn affine_in(&self, atom: &Atom) -> Option<(SymExpr, SymExpr)> {
        let (mut coef, mut rest) = (SymExpr::ZERO, SymExpr::ZERO);
        let (terms, constant) = self.terms();
        for (c, factors) in terms {
            let product = |skip: Option<usize>| {
                let kept = factors.iter().enumerate().filter(|(i, _)| Some(*i) != skip);
                kept.fold(SymExpr::from_i64(c), |x, (_, a)| x * SymExpr::atom(a.clone()))
            };
            let at = factors.iter().position(|f| f == atom);
            let part = product(at);
            if part.any_leaf(|leaf| leaf == atom) {
                return None;
            }
            match at {
                Some(_) => coef = coef + part,
                None => rest = rest + part,
            }
        }
        Some((coef, rest + SymExpr::from_i64(constant)))
    }
}

impl Atom {
    fn eval(&self, leaf: &dyn Fn(&Atom) -> Option<i64>) -> Option<i64> {
        let both = |ab: &(SymExpr, SymExpr)| Some((ab.0.eval(leaf)?, ab.1.eval(leaf)?));
        match self {
            Atom::Sym(_) | Atom::Loop(_) | Atom::Value(_) => leaf(self),
            Atom::FloorDiv(ab) => both(ab).and_then(|(a, b)| poly::floor_div_i64(a, b)),
            Atom::Mod(ab) => both(ab).and_then(|(a, b)| poly::mod_i64(a, b)),
            Atom::Min(ab) => both(ab).map(|(a, b)| a.min(b)),
            Atom::Max(ab) => both(ab).map(|(a, b)| a.max(b)),
        }
    }
    fn subst(&self, leaf: &dyn Fn(&Atom) -> Option<SymExpr>) -> SymExpr {
        match self {
            Atom::Sym(_) | Atom::Loop(_) | Atom::Value(_) => {
                leaf(self).unwrap_or_else(|| SymExpr::atom(self.clone()))
            }
            Atom::FloorDiv(ab) => ab.0.subst(leaf).floor_div(&ab.1.subst(leaf)),
            Atom::Mod(ab) => ab.0.subst(leaf).modulo(&ab.1.subst(leaf)),
            Atom::Min(ab) => ab.0.subst(leaf).sym_min(&ab.1.subst(leaf)),
            Atom::Max(ab) => ab.0.subst(leaf).sym_max(&ab.1.subst(leaf)),
        }
    }
}

impl Default for SymExpr {
    fn default() -> Self {
        SymExpr::ZERO
    }
}
impl From<i64> for SymExpr {
    fn from(value: i64) -> Self {
        SymExpr::from_i64(value)
    }
}
impl From<SymId> for SymExpr {
    fn from(id: SymId) -> Self {
        SymExpr::sym(id)
    }
}

#[cfg(test)]
mod tests;
