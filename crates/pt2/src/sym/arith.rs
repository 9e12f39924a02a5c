//! Arithmetic on [`Value`]s with a budget, so that no expression expands into more than its text justifies.

use ir_core::SymExpr;

use super::Value;

/// Remaining work, in terms of polynomials touched.
pub(super) struct Budget(pub(super) u64);

/// The most terms one polynomial may have.
const MAX_TERMS: usize = 256;
/// Numbers beyond this are refused: the arithmetic below saturates at the ends of `i64`, and no size is that large.
const MAX_NUMBER: i64 = 1 << 62;

type Out = Result<Value, String>;

impl Budget {
    fn spend(&mut self, work: usize) -> Result<(), String> {
        self.0 = self.0.checked_sub(work as u64 + 1).ok_or("it expands into too many terms")?;
        Ok(())
    }

    /// Accepts a result: not too many terms, no number near the ends of `i64`.
    fn admit(&mut self, e: SymExpr) -> Result<SymExpr, String> {
        let (terms, constant) = e.terms();
        if terms.len() > MAX_TERMS {
            return Err("it expands into too many terms".into());
        }
        let small = |n: i64| n.unsigned_abs() < MAX_NUMBER as u64;
        if !small(constant) || !terms.iter().all(|(coef, _)| small(*coef)) {
            return Err("a number in it does not fit 64 bits".into());
        }
        self.spend(terms.iter().map(|(_, factors)| factors.len()).sum())?;
        Ok(e)
    }

    fn sum(&mut self, a: &SymExpr, b: &SymExpr) -> Result<SymExpr, String> {
        self.admit(a + b)
    }

    fn product(&mut self, a: &SymExpr, b: &SymExpr) -> Result<SymExpr, String> {
        let (m, n) = (a.terms().0.len() + 1, b.terms().0.len() + 1);
        if m * n > MAX_TERMS {
            return Err("it expands into too many terms".into());
        }
        self.spend(m * n * (m * n).ilog2() as usize)?;
        self.admit(a * b)
    }

    /// `a // b`, rounding to minus infinity.
    fn quotient(&mut self, a: &SymExpr, b: &SymExpr) -> Result<SymExpr, String> {
        if *b == SymExpr::ZERO {
            return Err("it divides by zero".into());
        }
        let (m, n) = (a.terms().0.len() + 1, b.terms().0.len() + 1);
        self.spend(m * n)?;
        self.admit(a.floor_div(b))
    }

    fn remainder(&mut self, a: &SymExpr, b: &SymExpr) -> Result<SymExpr, String> {
        if *b == SymExpr::ZERO {
            return Err("it divides by zero".into());
        }
        let (m, n) = (a.terms().0.len() + 1, b.terms().0.len() + 1);
        self.spend(m * n)?;
        self.admit(a.modulo(b))
    }
}

/// Numerator and denominator; a truth value counts as 0 or 1, as in Python.
fn ratio(v: Value) -> (SymExpr, SymExpr) {
    match v {
        Value::Int(e) | Value::Truth(e) => (e, SymExpr::ONE),
        Value::Ratio(n, d) => (n, d),
    }
}

fn from_ratio(n: SymExpr, d: SymExpr) -> Value {
    if d == SymExpr::ONE {
        return Value::Int(n);
    }
    match (n.as_const(), d.as_const()) {
        (Some(a), Some(b)) if b != 0 && a % b == 0 => Value::Int(SymExpr::from_i64(a / b)),
        _ => Value::Ratio(n, d),
    }
}

/// The integer, where the value is one.
pub(super) fn int(v: Value) -> Result<SymExpr, String> {
    match v {
        Value::Int(e) | Value::Truth(e) => Ok(e),
        Value::Ratio(n, d) => Err(format!("`({n}) / ({d})` is not an integer")),
    }
}

/// The truth value, 0 or 1.
pub(super) fn truth(v: Value) -> Result<SymExpr, String> {
    match v {
        Value::Truth(e) => Ok(e),
        Value::Int(e) if e == SymExpr::ZERO || e == SymExpr::ONE => Ok(e),
        _ => Err("a comparison is expected".into()),
    }
}

impl Budget {
    pub(super) fn add(&mut self, a: Value, b: Value) -> Out {
        let ((n, d), (m, e)) = (ratio(a), ratio(b));
        if d == e {
            return Ok(from_ratio(self.sum(&n, &m)?, d));
        }
        let (left, right) = (self.product(&n, &e)?, self.product(&m, &d)?);
        Ok(from_ratio(self.sum(&left, &right)?, self.product(&d, &e)?))
    }

    pub(super) fn mul(&mut self, a: Value, b: Value) -> Out {
        let ((n, d), (m, e)) = (ratio(a), ratio(b));
        Ok(from_ratio(self.product(&n, &m)?, self.product(&d, &e)?))
    }

    pub(super) fn neg(&mut self, a: Value) -> Out {
        self.mul(a, Value::Int(SymExpr::from_i64(-1)))
    }

    /// Division without rounding.
    pub(super) fn true_div(&mut self, a: Value, b: Value) -> Out {
        let ((n, d), (m, e)) = (ratio(a), ratio(b));
        let (n, d) = (self.product(&n, &e)?, self.product(&d, &m)?);
        if d == SymExpr::ZERO {
            return Err("it divides by zero".into());
        }
        // The denominator is kept positive where its sign is known.
        let negative = d.as_const().is_some_and(|d| d < 0);
        Ok(if negative { from_ratio(-n, -d) } else { from_ratio(n, d) })
    }

    pub(super) fn floor(&mut self, a: Value) -> Out {
        let (n, d) = ratio(a);
        Ok(Value::Int(self.quotient(&n, &d)?))
    }

    pub(super) fn ceil(&mut self, a: Value) -> Out {
        let down = self.neg(a)?;
        let down = self.floor(down)?;
        self.neg(down)
    }

    /// Rounds towards zero: `max(n, 0) // d - max(-n, 0) // d`.
    pub(super) fn trunc(&mut self, a: Value) -> Out {
        let (n, d) = ratio(a);
        if d == SymExpr::ONE {
            return Ok(Value::Int(n));
        }
        let up = self.quotient(&n.sym_max(&SymExpr::ZERO), &d)?;
        let down = self.quotient(&(-n).sym_max(&SymExpr::ZERO), &d)?;
        Ok(Value::Int(self.admit(up - down)?))
    }

    /// Rounds to nearest, halves to the even neighbour, as Python's `round`.
    pub(super) fn round(&mut self, a: Value) -> Out {
        let (n, d) = ratio(a);
        if d == SymExpr::ONE {
            return Ok(Value::Int(n));
        }
        let two = SymExpr::from_i64(2);
        let (shifted, double) = (self.admit(&two * &n + &d)?, self.admit(&two * &d)?);
        let up = self.quotient(&shifted, &double)?;
        let tie = SymExpr::ONE - self.remainder(&shifted, &double)?.sym_min(&SymExpr::ONE);
        let odd = self.remainder(&up, &two)?;
        let back = self.product(&tie, &odd)?;
        Ok(Value::Int(self.admit(up - back)?))
    }

    pub(super) fn floor_div(&mut self, a: Value, b: Value) -> Out {
        let whole = self.true_div(a, b)?;
        self.floor(whole)
    }

    pub(super) fn modulo(&mut self, a: Value, b: Value) -> Out {
        Ok(Value::Int(self.remainder(&int(a)?, &int(b)?)?))
    }

    pub(super) fn extremum(&mut self, a: Value, b: Value, smaller: bool) -> Out {
        let (a, b) = (int(a)?, int(b)?);
        self.spend(a.terms().0.len() + b.terms().0.len())?;
        Ok(Value::Int(self.admit(if smaller { a.sym_min(&b) } else { a.sym_max(&b) })?))
    }

    pub(super) fn pow(&mut self, base: Value, exponent: Value) -> Out {
        let n = int(exponent)?.as_const().ok_or("an exponent that is not a number")?;
        if n.unsigned_abs() > 64 {
            return Err("an exponent above 64".into());
        }
        let mut out = Value::Int(SymExpr::ONE);
        for _ in 0..n.unsigned_abs() {
            out = self.mul(out, base.clone())?;
        }
        if n < 0 { self.true_div(Value::Int(SymExpr::ONE), out) } else { Ok(out) }
    }

    /// `a >= b` as 0 or 1: `min(max(a - b + 1, 0), 1)`.
    pub(super) fn at_least(&mut self, a: &SymExpr, b: &SymExpr) -> Result<SymExpr, String> {
        let above = self.admit(a - b + 1)?;
        self.admit(above.sym_max(&SymExpr::ZERO).sym_min(&SymExpr::ONE))
    }

    pub(super) fn and(&mut self, a: &SymExpr, b: &SymExpr) -> Result<SymExpr, String> {
        self.product(a, b)
    }

    pub(super) fn not(&mut self, a: &SymExpr) -> Result<SymExpr, String> {
        self.admit(SymExpr::ONE - a)
    }

    pub(super) fn or(&mut self, a: &SymExpr, b: &SymExpr) -> Result<SymExpr, String> {
        let (a, b) = (self.not(a)?, self.not(b)?);
        let neither = self.and(&a, &b)?;
        self.not(&neither)
    }
}

/// A float as an exact ratio, where it has few binary digits (`1.5`, `0.25`, `2.0`).
pub(super) fn float(x: f64) -> Out {
    const MAX_SHIFT: u32 = 20;
    let limit = (1u64 << 40) as f64;
    let mut scaled = x;
    for shift in 0..=MAX_SHIFT {
        if scaled.abs() < limit && scaled.fract() == 0.0 {
            return Ok(from_ratio(SymExpr::from_i64(scaled as i64), SymExpr::from_i64(1 << shift)));
        }
        scaled *= 2.0;
    }
    Err(format!("the float {x:?} has no short exact form"))
}
