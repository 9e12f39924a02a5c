//! Arithmetic on canonical polynomials. Constants saturate at the ends of `i64`: a size that large fits no memory and
//! is refused where it is used.

use std::ops::{Add, Mul, Neg, Sub};
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Atom, Factors, Poly, Repr, SymExpr, Term};

fn build(mut poly: Poly) -> SymExpr {
    poly.terms.retain(|t| t.coef != 0);
    if poly.terms.is_empty() {
        SymExpr(Repr::Const(poly.constant))
    } else {
        SymExpr(Repr::Poly(Arc::new(poly)))
    }
}

fn add_poly(a: &Poly, b: &Poly, sign: i64) -> SymExpr {
    let mut terms = SmallVec::with_capacity(a.terms.len() + b.terms.len());
    let (mut x, mut y) = (a.terms.iter().peekable(), b.terms.iter().peekable());
    let signed = |t: &Term| Term { factors: t.factors.clone(), coef: t.coef.saturating_mul(sign) };
    loop {
        match (x.peek(), y.peek()) {
            (Some(s), Some(t)) if s.factors == t.factors => {
                let coef = s.coef.saturating_add(t.coef.saturating_mul(sign));
                terms.push(Term { factors: s.factors.clone(), coef });
                x.next();
                y.next();
            }
            (Some(s), Some(t)) if s.factors < t.factors => {
                terms.push((*s).clone());
                x.next();
            }
            (_, Some(t)) => {
                terms.push(signed(t));
                y.next();
            }
            (Some(s), None) => {
                terms.push((*s).clone());
                x.next();
            }
            (None, None) => break,
        }
    }
    build(Poly { terms, constant: a.constant.saturating_add(b.constant.saturating_mul(sign)) })
}

fn mul_poly(a: &Poly, b: &Poly) -> SymExpr {
    let one = |c: i64| Term { factors: Factors::new(), coef: c };
    let all = |p: &Poly| p.terms.iter().cloned().chain([one(p.constant)]).collect::<Vec<_>>();
    let (left, right) = (all(a), all(b));
    let mut sum = SymExpr::ZERO;
    for s in &left {
        for t in &right {
            let mut factors: Factors = s.factors.iter().chain(&t.factors).cloned().collect();
            factors.sort();
            sum = sum + monomial(s.coef.saturating_mul(t.coef), factors);
        }
    }
    sum
}

fn monomial(coef: i64, factors: Factors) -> SymExpr {
    if factors.is_empty() {
        return SymExpr(Repr::Const(coef));
    }
    build(Poly { terms: SmallVec::from_iter([Term { factors, coef }]), constant: 0 })
}

fn as_poly(e: &SymExpr) -> Poly {
    match &e.0 {
        Repr::Const(c) => Poly { terms: SmallVec::new(), constant: *c },
        Repr::Poly(p) => (**p).clone(),
    }
}

fn add(a: &SymExpr, b: &SymExpr, sign: i64) -> SymExpr {
    match (&a.0, &b.0) {
        (Repr::Const(x), Repr::Const(y)) => SymExpr(Repr::Const(x.saturating_add(y.saturating_mul(sign)))),
        (_, Repr::Const(0)) => a.clone(),
        (Repr::Const(0), _) if sign == 1 => b.clone(),
        _ => add_poly(&as_poly(a), &as_poly(b), sign),
    }
}

fn mul(a: &SymExpr, b: &SymExpr) -> SymExpr {
    match (&a.0, &b.0) {
        (Repr::Const(x), Repr::Const(y)) => SymExpr(Repr::Const(x.saturating_mul(*y))),
        (Repr::Const(0), _) | (_, Repr::Const(0)) => SymExpr::ZERO,
        (Repr::Const(1), _) => b.clone(),
        (_, Repr::Const(1)) => a.clone(),
        _ => mul_poly(&as_poly(a), &as_poly(b)),
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident |$a:ident, $b:ident| $body:expr;)*) => {$(
        impl $trait<&SymExpr> for &SymExpr {
            type Output = SymExpr;
            fn $method(self, rhs: &SymExpr) -> SymExpr { let ($a, $b) = (self, rhs); $body }
        }
        impl $trait<&SymExpr> for SymExpr {
            type Output = SymExpr;
            fn $method(self, rhs: &SymExpr) -> SymExpr { $trait::$method(&self, rhs) }
        }
        impl $trait<SymExpr> for &SymExpr {
            type Output = SymExpr;
            fn $method(self, rhs: SymExpr) -> SymExpr { $trait::$method(self, &rhs) }
        }
        impl $trait<SymExpr> for SymExpr {
            type Output = SymExpr;
            fn $method(self, rhs: SymExpr) -> SymExpr { $trait::$method(&self, &rhs) }
        }
        impl $trait<i64> for SymExpr {
            type Output = SymExpr;
            fn $method(self, rhs: i64) -> SymExpr { $trait::$method(&self, &SymExpr::from_i64(rhs)) }
        }
        impl $trait<i64> for &SymExpr {
            type Output = SymExpr;
            fn $method(self, rhs: i64) -> SymExpr { $trait::$method(self, &SymExpr::from_i64(rhs)) }
        }
    )*};
}

operators! {
    Add add |a, b| add(a, b, 1);
    Sub sub |a, b| add(a, b, -1);
    Mul mul |a, b| mul(a, b);
}

impl Neg for SymExpr {
    type Output = SymExpr;
    fn neg(self) -> SymExpr {
        SymExpr::ZERO - self
    }
}

pub(super) fn floor_div_i64(a: i64, b: i64) -> Option<i64> {
    let q = a.checked_div(b)?;
    Some(if a % b != 0 && (a < 0) != (b < 0) { q - 1 } else { q })
}

pub(super) fn mod_i64(a: i64, b: i64) -> Option<i64> {
    let r = a.checked_rem(b)?;
    Some(if r != 0 && (r < 0) != (b < 0) { r + b } else { r })
}

/// `a = quotient * b + rest` with every term that `b` divides in the quotient. `b` must be one monomial or a number.
fn split(a: &SymExpr, b: &SymExpr) -> Option<(SymExpr, SymExpr)> {
    let (terms, constant) = b.terms();
    let (coef, factors): (i64, &[Atom]) = match (&terms[..], constant) {
        ([], c) => (c, &[]),
        ([(c, f)], 0) => (*c, f),
        _ => return None,
    };
    if coef == 0 {
        return None;
    }
    let p = as_poly(a);
    let (mut quotient, mut rest) = (SymExpr::ZERO, SymExpr::ZERO);
    for t in &p.terms {
        let left = quotient_of(t.coef, coef).zip(without(&t.factors, factors));
        match left {
            Some((times, left)) => quotient = quotient + monomial(times, left),
            None => rest = rest + monomial(t.coef, t.factors.clone()),
        }
    }
    if factors.is_empty() {
        quotient = quotient + floor_div_i64(p.constant, coef)?;
        rest = rest + mod_i64(p.constant, coef)?;
    } else {
        rest = rest + p.constant;
    }
    Some((quotient, rest))
}

/// `factors` less those of `remove`, where all of them are there.
fn without(factors: &Factors, remove: &[Atom]) -> Option<Factors> {
    let mut left = factors.clone();
    for r in remove {
        let at = left.iter().position(|f| f == r)?;
        left.remove(at);
    }
    Some(left)
}

/// `q` with `q * b == a` where the leading terms suggest one.
fn exact(a: &SymExpr, b: &SymExpr) -> Option<SymExpr> {
    let (pa, pb) = (as_poly(a), as_poly(b));
    let (lead_a, lead_b) = (pa.terms.last()?, pb.terms.last()?);
    let q = monomial(quotient_of(lead_a.coef, lead_b.coef)?, without(&lead_a.factors, &lead_b.factors)?);
    (mul(&q, b) == *a).then_some(q)
}

/// `a / b` where it has no rest and fits (`i64::MIN / -1` does not).
fn quotient_of(a: i64, b: i64) -> Option<i64> {
    if a.checked_rem(b)? == 0 { a.checked_div(b) } else { None }
}

fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    i64::try_from(a).unwrap_or(1)
}

/// Greatest number that divides every coefficient and the constant.
fn content(e: &SymExpr) -> i64 {
    let p = as_poly(e);
    p.terms.iter().fold(p.constant, |g, t| gcd(g, t.coef))
}

fn scale_down(e: &SymExpr, by: i64) -> SymExpr {
    let mut p = as_poly(e);
    p.constant /= by;
    p.terms.iter_mut().for_each(|t| t.coef /= by);
    build(p)
}

pub(super) fn floor_div(a: &SymExpr, b: &SymExpr) -> SymExpr {
    if let (Some(x), Some(y)) = (a.as_const(), b.as_const())
        && let Some(q) = floor_div_i64(x, y)
    {
        return SymExpr::from_i64(q);
    }
    if *b == SymExpr::ONE || *a == SymExpr::ZERO {
        return a.clone();
    }
    if let Some(q) = exact(a, b) {
        return q;
    }
    let Some((quotient, rest)) = split(a, b) else { return div_atom(a, b) };
    if rest == SymExpr::ZERO {
        return quotient;
    }
    quotient + div_atom(&rest, b)
}

/// `a // b` as an atom, after common factors are cancelled and nested divisions merged.
fn div_atom(a: &SymExpr, b: &SymExpr) -> SymExpr {
    let g = gcd(content(a), content(b));
    if g > 1 {
        return floor_div(&scale_down(a, g), &scale_down(b, g));
    }
    // (x // c) // d = x // (c * d) for positive c and d.
    if let (Some(Atom::FloorDiv(inner)), Some(d)) = (a.as_atom(), b.as_const())
        && let Some(c) = inner.1.as_const()
        && c > 0
        && d > 0
    {
        return floor_div(&inner.0, &SymExpr::from_i64(c.saturating_mul(d)));
    }
    if let (Some(x), Some(y)) = (a.as_const(), b.as_const())
        && let Some(q) = floor_div_i64(x, y)
    {
        return SymExpr::from_i64(q);
    }
    SymExpr::atom(Atom::FloorDiv(Arc::new((a.clone(), b.clone()))))
}

pub(super) fn modulo(a: &SymExpr, b: &SymExpr) -> SymExpr {
    if let (Some(x), Some(y)) = (a.as_const(), b.as_const())
        && let Some(r) = mod_i64(x, y)
    {
        return SymExpr::from_i64(r);
    }
    if *b == SymExpr::ONE || *a == SymExpr::ZERO || exact(a, b).is_some() {
        return SymExpr::ZERO;
    }
    let rest = split(a, b).map_or_else(|| a.clone(), |(_, rest)| rest);
    if rest == SymExpr::ZERO {
        return SymExpr::ZERO;
    }
    if let (Some(x), Some(y)) = (rest.as_const(), b.as_const())
        && let Some(r) = mod_i64(x, y)
    {
        return SymExpr::from_i64(r);
    }
    SymExpr::atom(Atom::Mod(Arc::new((rest, b.clone()))))
}

pub(super) fn extremum(a: &SymExpr, b: &SymExpr, smaller: bool) -> SymExpr {
    // Both differ by a number: the sign decides.
    if let Some(d) = (a - b).as_const() {
        return if (d <= 0) == smaller { a.clone() } else { b.clone() };
    }
    let pair = if a <= b { (a.clone(), b.clone()) } else { (b.clone(), a.clone()) };
    SymExpr::atom(if smaller { Atom::Min(Arc::new(pair)) } else { Atom::Max(Arc::new(pair)) })
}
