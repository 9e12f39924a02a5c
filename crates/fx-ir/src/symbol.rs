//! Size symbols of a graph and what is known of them.

use ir_core::{Arena, Atom, Bounds, SymExpr, SymId};
use serde::{Deserialize, Serialize};

/// A symbolic size: `s0`. Inputs bind it, or, where it is `unbacked`, the node that first produces it does.
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
    /// Known only when the program runs (`nonzero`), not from the inputs' sizes.
    pub unbacked: bool,
}

/// The ranges of a graph's symbols, for [`SymExpr::simplify`].
pub struct SymbolBounds<'a>(pub &'a Arena<SymId, Symbol>);

impl Bounds for SymbolBounds<'_> {
    fn range(&self, leaf: &Atom) -> (Option<i64>, Option<i64>) {
        match leaf {
            Atom::Sym(id) => self.0.get(*id).map_or((Some(0), None), |s| (Some(s.min), s.max)),
            Atom::Loop(_) => (Some(0), None),
            _ => (None, None),
        }
    }
    fn extent(&self, _: u32) -> Option<SymExpr> {
        None
    }
}
