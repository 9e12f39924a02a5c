//! Size symbols and the table of what is known of them, which graphs and programs share. Expressions are in `sym`.

use serde::{Deserialize, Serialize};

use crate::{Arena, Atom, Bounds, SymExpr, SymId};

/// A symbolic size: `s0`. The sizes of the inputs determine its value or, if it is `unbacked`, the running program does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Symbol {
    /// The name in the user's program or archive: `s77`, `batch`.
    pub name: String,
    /// Smallest value, inclusive.
    pub min: i64,
    /// Largest value, inclusive; `None` is unbounded.
    pub max: Option<i64>,
    /// The value at capture, for heuristics only.
    pub hint: Option<i64>,
    /// Known only when the program runs (`nonzero`), not from the inputs' sizes: a node or a step binds it.
    #[serde(default)]
    pub unbacked: bool,
}

/// The size symbols of a graph or a program. As [`Bounds`] it knows their ranges, and that loop variables are not negative.
pub type Symbols = Arena<SymId, Symbol>;

impl Symbol {
    /// The value to plan for: the one at capture, else the smallest one that is at least `least`.
    pub fn likely(&self, least: i64) -> i64 {
        self.hint.unwrap_or(self.min.max(least))
    }
    /// Whether `value` is within the symbol's range.
    pub fn contains(&self, value: i64) -> bool {
        value >= self.min && self.max.is_none_or(|max| value <= max)
    }
}

impl Symbols {
    /// Whether `leaf` is a symbol known only at run time.
    pub fn is_unbacked(&self, leaf: &Atom) -> bool {
        matches!(leaf, Atom::Sym(id) if self.get(*id).is_some_and(|s| s.unbacked))
    }
    /// [`Symbol::likely`] of a leaf, where it is a symbol of the table.
    pub fn likely(&self, leaf: &Atom, least: i64) -> Option<i64> {
        match leaf {
            Atom::Sym(id) => self.get(*id).map(|s| s.likely(least)),
            _ => None,
        }
    }
}

impl Bounds for Symbols {
    fn range(&self, leaf: &Atom) -> (Option<i64>, Option<i64>) {
        match leaf {
            Atom::Sym(id) => self.get(*id).map_or((Some(0), None), |s| (Some(s.min), s.max)),
            Atom::Loop(_) => (Some(0), None),
            _ => (None, None),
        }
    }
    fn extent(&self, _: u32) -> Option<SymExpr> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_knows_ranges_hints_and_who_binds() {
        let symbol = |min, max, hint, unbacked| Symbol { name: "n".into(), min, max, hint, unbacked };
        let table: Symbols =
            [symbol(2, Some(8), Some(4), false), symbol(0, None, None, true)].into_iter().collect();
        let leaf = |n| Atom::Sym(SymId(n));
        assert_eq!(table.range(&leaf(0)), (Some(2), Some(8)));
        assert_eq!(table.range(&leaf(9)), (Some(0), None), "a symbol of another table is a size");
        assert_eq!((table.is_unbacked(&leaf(0)), table.is_unbacked(&leaf(1))), (false, true));
        assert_eq!((table.likely(&leaf(0), 16), table.likely(&leaf(1), 16)), (Some(4), Some(16)));
        assert!(table[SymId(0)].contains(8) && !table[SymId(0)].contains(9) && !table[SymId(0)].contains(1));
    }
}
