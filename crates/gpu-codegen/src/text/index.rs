//! Index expressions as C++ text.

use std::cell::RefCell;
use std::fmt::Write;

use ir_core::{Atom, Bounds, SymExpr};

/// How the leaves of an expression are written.
#[derive(Clone, Copy)]
pub(crate) struct Names<'a> {
    /// The prefix of the names of a body's values.
    pub(crate) values: &'a str,
    /// The numbers that are arguments of the kernel, to which those of the expression are added; `None` where all are constants.
    pub(crate) numbers: Option<&'a RefCell<Numbers>>,
}

impl Names<'_> {
    fn number(&self, value: i64) -> String {
        let argument = self.numbers.and_then(|numbers| numbers.borrow_mut().index(value));
        argument.unwrap_or_else(|| literal(value))
    }
}

/// Numbers that are arguments of a kernel, `arg<place>` in its text, so that kernels which differ in sizes alone have one text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Numbers(Vec<Number>);

#[derive(Clone, Copy, Debug, PartialEq)]
struct Number {
    value: i64,
    /// Whether it has a place of its own, whatever other numbers are.
    own: bool,
}

/// Integers up to the first, and floats between the second and its reciprocal, are constants: they are few, and often select an
/// instruction.
pub(crate) const SMALL: i64 = 4;
const SMALL_FLOAT: f32 = 16.0;

impl Numbers {
    /// The arguments, in the order of their places.
    pub(crate) fn all(&self) -> impl Iterator<Item = i64> {
        self.0.iter().map(|n| n.value)
    }

    fn place(&mut self, value: i64) -> usize {
        let shared = Number { value, own: false };
        self.0.iter().position(|n| *n == shared).unwrap_or_else(|| {
            self.0.push(shared);
            self.0.len() - 1
        })
    }

    /// The name of a number of type `idx`; `None` for one that stays a constant.
    pub(crate) fn index(&mut self, value: i64) -> Option<String> {
        (value.unsigned_abs() > SMALL.unsigned_abs()).then(|| format!("arg{}", self.place(value)))
    }

    /// The name of an argument of its own, of type `idx`, whatever its value is and other numbers are.
    pub(crate) fn own(&mut self, value: i64) -> String {
        self.0.push(Number { value, own: true });
        format!("arg{}", self.0.len() - 1)
    }

    /// The same for a number of type `float`.
    pub(crate) fn float(&mut self, value: f32) -> Option<String> {
        let differs =
            value.is_finite() && value != 0.0 && !(SMALL_FLOAT.recip()..=SMALL_FLOAT).contains(&value.abs());
        differs.then(|| format!("as_float((u32)arg{}_)", self.place(i64::from(value.to_bits()))))
    }
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
            let _ = write!(out, "{} * ", names.number(*coef));
        }
        let factors: Vec<String> = factors.iter().map(|f| atom(f, names, known)).collect();
        out.push_str(&factors.join(" * "));
    }
    if constant != 0 || terms.is_empty() {
        if !out.is_empty() {
            out.push_str(" + ");
        }
        out.push_str(&names.number(constant));
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
    let constant = Names { numbers: None, ..*names };
    // C++ rounds `a / b` towards zero, which is the floor where both are non-negative.
    let plain = |ab: &(SymExpr, SymExpr)| ab.0.is_non_negative(known) && ab.1.is_non_negative(known);
    match a {
        Atom::Sym(id) => id.to_string(),
        Atom::Loop(n) => format!("i{n}"),
        Atom::Value(n) => format!("(idx){}{n}", names.values),
        Atom::FloorDiv(ab) | Atom::Mod(ab) => {
            // To divide by a constant takes a few instructions, by another number some twenty.
            let (x, mut y) = (text(&ab.0, names, known), text(&ab.1, &constant, known));
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
