//! Sizes of tensors as numbers that may be symbolic. In a function that is captured with dynamic sizes, arithmetic keeps
//! symbols; a comparison is decided by the sizes of the example and becomes a guard; reading one as a number fixes it.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, Div, Mul, Rem, Sub};

use ir_core::{Relation, SymExpr};

use crate::{Operand, frame};

/// The size of a dimension, or what is computed from sizes.
#[derive(Clone)]
pub struct Size {
    expression: SymExpr,
    hint: i64,
    /// The capture whose symbols the expression has; 0 where it is a number.
    frame: u64,
}

impl Size {
    /// A size of a captured function.
    pub(crate) fn symbolic(expression: SymExpr, hint: i64, frame: u64) -> Size {
        match expression.as_const() {
            Some(n) => n.into(),
            None => Size { expression, hint, frame },
        }
    }

    /// The number. In a function that is captured with dynamic sizes, the compiled function is valid for this size alone:
    /// pass the size itself to operators where that is possible.
    pub fn get(&self) -> i64 {
        self.decide(Relation::Zero, &(&self.expression - self.hint), true);
        self.hint
    }

    /// The value in the example of the capture, without a guard.
    pub fn hint(&self) -> i64 {
        self.hint
    }

    /// The expression in the symbols of this capture; the number elsewhere.
    pub(crate) fn within(&self, frame: u64) -> SymExpr {
        if self.frame == frame { self.expression.clone() } else { SymExpr::from_i64(self.hint) }
    }

    /// Rounds up: `(self + other - 1) / other`.
    pub fn div_ceil(&self, other: impl Into<Size>) -> Size {
        let other = other.into();
        (self.clone() + &other - 1) / other
    }
    /// The smaller of both.
    pub fn min(&self, other: impl Into<Size>) -> Size {
        let other = other.into();
        self.combined(&other, SymExpr::sym_min, self.hint.min(other.hint))
    }
    /// The larger of both.
    pub fn max(&self, other: impl Into<Size>) -> Size {
        let other = other.into();
        self.combined(&other, SymExpr::sym_max, self.hint.max(other.hint))
    }

    fn combined(&self, other: &Size, f: impl Fn(&SymExpr, &SymExpr) -> SymExpr, hint: i64) -> Size {
        let frame = self.frame.max(other.frame);
        Size::symbolic(f(&self.within(frame), &other.within(frame)), hint, frame)
    }

    /// Records in the capture that the relation holds, or that it does not.
    fn decide(&self, relation: Relation, expression: &SymExpr, holds: bool) {
        if expression.as_const().is_none() {
            frame::with(|frame| frame.decide(self.frame, relation, expression, holds));
        }
    }

    /// Whether the difference to another compares so with zero.
    fn compare(
        &self,
        other: &Size,
        relation: Relation,
        difference: impl Fn(&SymExpr, &SymExpr) -> SymExpr,
        holds: bool,
    ) -> bool {
        let frame = self.frame.max(other.frame);
        let expression = difference(&self.within(frame), &other.within(frame));
        let of = Size { expression: expression.clone(), hint: 0, frame };
        of.decide(relation, &expression, holds);
        holds
    }
}

impl From<i64> for Size {
    fn from(n: i64) -> Size {
        Size { expression: SymExpr::from_i64(n), hint: n, frame: 0 }
    }
}
impl From<i32> for Size {
    fn from(n: i32) -> Size {
        i64::from(n).into()
    }
}
impl From<usize> for Size {
    fn from(n: usize) -> Size {
        (n as i64).into()
    }
}
impl From<&Size> for Size {
    fn from(size: &Size) -> Size {
        size.clone()
    }
}
impl From<Size> for Operand {
    fn from(size: Size) -> Operand {
        Operand::Size(size)
    }
}

impl PartialEq for Size {
    fn eq(&self, other: &Size) -> bool {
        self.compare(other, Relation::Zero, |a, b| a - b, self.hint == other.hint)
    }
}
impl PartialEq<i64> for Size {
    fn eq(&self, other: &i64) -> bool {
        self.eq(&Size::from(*other))
    }
}
impl PartialOrd for Size {
    fn partial_cmp(&self, other: &Size) -> Option<Ordering> {
        if self < other {
            return Some(Ordering::Less);
        }
        Some(if self == other { Ordering::Equal } else { Ordering::Greater })
    }
    fn lt(&self, other: &Size) -> bool {
        self.compare(other, Relation::NonNegative, |a, b| b - a - 1, self.hint < other.hint)
    }
    fn le(&self, other: &Size) -> bool {
        self.compare(other, Relation::NonNegative, |a, b| b - a, self.hint <= other.hint)
    }
    fn gt(&self, other: &Size) -> bool {
        other < self
    }
    fn ge(&self, other: &Size) -> bool {
        other <= self
    }
}
impl PartialOrd<i64> for Size {
    fn partial_cmp(&self, other: &i64) -> Option<Ordering> {
        self.partial_cmp(&Size::from(*other))
    }
    fn lt(&self, other: &i64) -> bool {
        self.lt(&Size::from(*other))
    }
    fn le(&self, other: &i64) -> bool {
        self.le(&Size::from(*other))
    }
    fn gt(&self, other: &i64) -> bool {
        Size::from(*other).lt(self)
    }
    fn ge(&self, other: &i64) -> bool {
        Size::from(*other).le(self)
    }
}

macro_rules! arithmetic {
    ($($trait:ident $method:ident |$a:ident, $b:ident| $expression:expr, |$x:ident, $y:ident| $number:expr;)*) => {$(
        impl<T: Into<Size>> $trait<T> for Size {
            type Output = Size;
            fn $method(self, other: T) -> Size {
                let other = other.into();
                let ($x, $y) = (self.hint, other.hint);
                self.combined(&other, |$a, $b| $expression, $number)
            }
        }
        impl<T: Into<Size>> $trait<T> for &Size {
            type Output = Size;
            fn $method(self, other: T) -> Size {
                self.clone().$method(other)
            }
        }
    )*};
}

arithmetic! {
    Add add |a, b| a + b, |x, y| x.wrapping_add(y);
    Sub sub |a, b| a - b, |x, y| x.wrapping_sub(y);
    Mul mul |a, b| a.clone() * b, |x, y| x.wrapping_mul(y);
    Div div |a, b| a.floor_div(b), |x, y| if y == 0 { 0 } else { (x as i128).div_euclid(y as i128) as i64 };
    Rem rem |a, b| a.modulo(b), |x, y| if y == 0 { 0 } else { (x as i128).rem_euclid(y as i128) as i64 };
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hint.fmt(f)
    }
}
impl fmt::Debug for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hint.fmt(f)
    }
}
