//! What is known of an integer value of a body: an interval of numbers and, where the upper bound is a symbolic size, an
//! expression that the value is less than. Arithmetic on both; no knowledge of instructions.

use ir_core::{Bounds, SymExpr};
use smallvec::SmallVec;

use crate::Val;

/// What is known of a value. The default is that nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// Smallest.
    pub(super) low: Option<i64>,
    /// Largest.
    pub(super) high: Option<i64>,
    /// A symbolic expression that the value is less than.
    pub(super) below: Option<SymExpr>,
    /// The bounds hold only where these masks do: values of checks that consider only some lanes.
    pub(super) needs: SmallVec<[Val; 1]>,
}

impl Known {
    /// Between two numbers, both included.
    pub(super) fn between(low: i64, high: i64) -> Known {
        Known { low: Some(low), high: Some(high), ..Known::default() }
    }
    /// Exactly this number.
    pub(super) fn number(n: i64) -> Known {
        Known::between(n, n)
    }
    /// Between 0 and 1, for truth values.
    pub(super) fn truth() -> Known {
        Known::between(0, 1)
    }
    /// A decided truth value; either where it is not.
    pub(super) fn decided(truth: Option<bool>) -> Known {
        truth.map_or_else(Known::truth, |t| Known::number(i64::from(t)))
    }
    /// The number, where there is one alone.
    pub(super) fn as_number(&self) -> Option<i64> {
        self.low.filter(|low| self.high == Some(*low))
    }
    /// Whether it is never negative.
    pub(super) fn non_negative(&self) -> bool {
        self.low.is_some_and(|low| low >= 0)
    }
    /// An expression that the value is less than: the symbolic one, else one more than the largest number.
    pub(super) fn upper(&self) -> Option<SymExpr> {
        self.below.clone().or_else(|| Some(SymExpr::from_i64(self.high?.checked_add(1)?)))
    }
    /// Whether it lies between both numbers.
    pub(super) fn within(&self, low: i64, high: i64) -> bool {
        self.low.is_some_and(|l| l >= low) && self.high.is_some_and(|h| h <= high)
    }
    /// The same value under more masks.
    pub(super) fn needing(mut self, other: &[Val]) -> Known {
        for mask in other {
            if !self.needs.contains(mask) {
                self.needs.push(*mask);
            }
        }
        self
    }

    /// The union of two values.
    pub(super) fn join(&self, other: &Known, sizes: &dyn Bounds) -> Known {
        let low = self.low.zip(other.low).map(|(a, b)| a.min(b));
        let high = self.high.zip(other.high).map(|(a, b)| a.max(b));
        Known { low, high, below: larger(self, other, sizes), needs: self.needs.clone() }
            .needing(&other.needs)
    }
    /// The intersection: a value of which both are known.
    pub(super) fn meet(&self, other: &Known) -> Known {
        let low = either(self.low, other.low, i64::max);
        let high = either(self.high, other.high, i64::min);
        let below = other.below.clone().or_else(|| self.below.clone());
        Known { low, high, below, needs: self.needs.clone() }.needing(&other.needs)
    }

    /// `self + other`, where that cannot wrap.
    pub(super) fn add(&self, other: &Known) -> Known {
        let Some(low) = self.low.zip(other.low).and_then(|(a, b)| a.checked_add(b)) else {
            return Known::default();
        };
        let high = self.high.zip(other.high).and_then(|(a, b)| a.checked_add(b));
        let uppers = self.upper().zip(other.upper());
        let below = uppers.map(|(a, b)| a + b - 1).filter(symbolic);
        Known { low: Some(low), high, below, ..Known::default() }.bounded()
    }
    /// `self - other`, where that cannot wrap.
    pub(super) fn sub(&self, other: &Known) -> Known {
        let (Some(first), Some(second), Some(_)) = (self.low, other.low, other.upper()) else {
            return Known::default();
        };
        let low = other.high.and_then(|high| first.checked_sub(high));
        let high = self.high.and_then(|high| high.checked_sub(second));
        let below = self.below.as_ref().map(|e| e - second);
        Known { low, high, below, ..Known::default() }.bounded()
    }
    /// `self * other`, where that cannot wrap.
    pub(super) fn mul(&self, other: &Known) -> Known {
        if let (Some(a), Some(b), Some(c), Some(d)) = (self.low, self.high, other.low, other.high) {
            let ends = [a.checked_mul(c), a.checked_mul(d), b.checked_mul(c), b.checked_mul(d)];
            let ends: Option<Vec<i64>> = ends.into_iter().collect();
            let ends = ends.unwrap_or_default();
            return match (ends.iter().min(), ends.iter().max()) {
                (Some(&low), Some(&high)) => Known::between(low, high),
                _ => Known::default(),
            };
        }
        if !self.non_negative() || !other.non_negative() {
            return Known::default();
        }
        let Some((a, b)) = self.upper().zip(other.upper()) else { return Known::default() };
        let below = Some((a - 1) * (b - 1) + 1).filter(symbolic);
        Known { low: Some(0), below, ..Known::default() }.bounded()
    }
    /// The quotient, rounded towards zero, of numbers that are not negative.
    pub(super) fn div(&self, other: &Known) -> Known {
        let positive = other.low.is_some_and(|low| low > 0);
        if !self.non_negative() || !positive {
            return Known::default();
        }
        let high = self.high.zip(other.low).map(|(a, b)| a / b);
        Known { low: Some(0), high, below: self.below.clone(), ..Known::default() }
    }
    /// The remainder, with the sign of `self`, by a number that is not negative.
    pub(super) fn rem(&self, other: &Known) -> Known {
        if !other.non_negative() {
            return Known::default();
        }
        let most = other.high.map(|high| (high - 1).max(0));
        let low = if self.non_negative() { Some(0) } else { most.map(|m| -m) };
        let high = either(most, self.high.filter(|_| self.non_negative()), i64::min);
        // By zero it is zero, which is not less than a divisor that may be zero.
        let positive = other.low.is_some_and(|low| low > 0);
        let below = other.below.as_ref().filter(|_| positive).map(|e| e - 1);
        Known { low, high, below, ..Known::default() }
    }
    /// The smaller of two values.
    pub(super) fn min(&self, other: &Known) -> Known {
        let low = self.low.zip(other.low).map(|(a, b)| a.min(b));
        let high = either(self.high, other.high, i64::min);
        let below = other.below.clone().or_else(|| self.below.clone());
        Known { low, high, below, ..Known::default() }
    }
    /// The larger of two values.
    pub(super) fn max(&self, other: &Known, sizes: &dyn Bounds) -> Known {
        let low = either(self.low, other.low, i64::max);
        let high = self.high.zip(other.high).map(|(a, b)| a.max(b));
        Known { low, high, below: larger(self, other, sizes), ..Known::default() }
    }

    /// Without a largest value there is nothing that keeps arithmetic from wrapping.
    fn bounded(self) -> Known {
        if self.high.is_none() && self.below.is_none() { Known::default() } else { self }
    }
}

/// What both are less than, as far as it is symbolic.
fn larger(a: &Known, b: &Known, sizes: &dyn Bounds) -> Option<SymExpr> {
    if a.below.is_none() && b.below.is_none() {
        return None;
    }
    a.upper().zip(b.upper()).map(|(a, b)| a.sym_max(&b).simplify(sizes))
}

fn symbolic(e: &SymExpr) -> bool {
    e.as_const().is_none()
}

fn either(a: Option<i64>, b: Option<i64>, pick: fn(i64, i64) -> i64) -> Option<i64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(pick(a, b)),
        (one, None) | (None, one) => one,
    }
}
