//! Index expressions as C++ text.

use std::fmt::Write;

use ir_core::{Atom, Bounds, SymExpr};

/// How the leaves of an expression are written.
pub(crate) struct Names<'a> {
    /// The prefix of the names of a body's values.
    pub(crate) values: &'a str,
}

/// The expression as C++ over variables `s<n>` (sizes), `i<n>` (loops) and the body's values, all of type `idx`.
///
/// Divisions are plain where `known` proves that both operands are non-negative.
pub(crate) fn text(e: &SymExpr, names: &Names<'_>, known: &dyn Bounds) -> String {
    let (terms, constant) = e.terms();
    let mut out = String::new();
    for (coef, factors) in &terms {
        if !out.is_empty() {
            out.push_str(" + ");
        }
        if *coef != 1 {
            let _ = write!(out, "{} * ", literal(*coef));
        }
        let factors: Vec<String> = factors.iter().map(|f| atom(f, names, known)).collect();
        out.push_str(&factors.join(" * "));
    }
    if constant != 0 || terms.is_empty() {
        if !out.is_empty() {
            out.push_str(" + ");
        }
        out.push_str(&literal(constant));
    }
    // A product too: what stands before it may divide.
    let single = match &terms[..] {
        [] => true,
        [(1, factors)] => factors.len() == 1 && constant == 0,
        _ => false,
    };
    if single { out } else { format!("({out})") }
}

fn atom(a: &Atom, names: &Names<'_>, known: &dyn Bounds) -> String {
    let both = |ab: &(SymExpr, SymExpr)| (text(&ab.0, names, known), text(&ab.1, names, known));
    // C++ rounds `a / b` towards zero, which is the floor where both are non-negative.
    let plain = |ab: &(SymExpr, SymExpr)| ab.0.is_non_negative(known) && ab.1.is_non_negative(known);
    match a {
        Atom::Sym(id) => id.to_string(),
        Atom::Loop(n) => format!("i{n}"),
        Atom::Value(n) => format!("(idx){}{n}", names.values),
        Atom::FloorDiv(ab) | Atom::Mod(ab) => {
            let (x, mut y) = both(ab);
            // A divisor of 0 occurs only where the result is unused, but would trap on some processors.
            if !(&ab.1 - 1).is_non_negative(known) {
                y = format!("imax({y}, (idx)1)");
            }
            let div = matches!(a, Atom::FloorDiv(_));
            match (div, plain(ab)) {
                (true, true) => format!("({x} / {y})"),
                (false, true) => format!("({x} % {y})"),
                (true, false) => format!("floor_div<idx>({x}, {y})"),
                (false, false) => format!("floor_mod<idx>({x}, {y})"),
            }
        }
        Atom::Min(ab) => both(ab).call("imin"),
        Atom::Max(ab) => both(ab).call("imax"),
    }
}

trait CallText {
    fn call(self, function: &str) -> String;
}

impl CallText for (String, String) {
    fn call(self, function: &str) -> String {
        format!("{function}<idx>({}, {})", self.0, self.1)
    }
}

/// A number of type `idx`.
pub(crate) fn literal(value: i64) -> String {
    match value {
        i64::MIN => "(-9223372036854775807LL - 1)".into(),
        v if v < 0 => format!("({v}{})", if v < -(1 << 31) { "LL" } else { "" }),
        v => format!("{v}{}", if v >= 1 << 31 { "LL" } else { "" }),
    }
}

/// Whether every value of the expression is provably a multiple of `n`.
pub(crate) fn divisible(e: &SymExpr, n: i64) -> bool {
    let (terms, constant) = e.terms();
    constant % n == 0 && terms.iter().all(|(coef, _)| coef % n == 0)
}
