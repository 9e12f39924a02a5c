//! What a mask says of integers: `and`s of comparisons, as `LoopCx::in_range` and conditions of `select` make them.

use ir_core::{Atom, SymExpr};

use super::known::Known;
use crate::{Inst, InstKind, ScalarOp, Val};

/// Most parts of a conjunction that are looked at.
const MAX_PARTS: usize = 16;

/// What holds of an index expression.
pub(super) struct Fact {
    pub(super) expr: SymExpr,
    pub(super) known: Known,
}

/// A comparison of two integers that holds.
pub(super) struct Condition {
    op: ScalarOp,
    a: Val,
    b: Val,
}

/// A value as an index expression.
pub(super) fn expr_of(insts: &[Inst], v: Val) -> SymExpr {
    match &insts[v.0 as usize].kind {
        InstKind::Index(e) => e.clone(),
        InstKind::Const(c) => SymExpr::from_i64(c.as_i64()),
        _ => SymExpr::value(v.0),
    }
}

/// Whether an index expression uses values of the body.
pub(super) fn values_in(e: &SymExpr) -> bool {
    e.any_leaf(|a| matches!(a, Atom::Value(_)))
}

/// The masks that all hold where `mask` does: the parts of what is joined by `and`.
pub(super) fn conjuncts(insts: &[Inst], mask: Val) -> Vec<Val> {
    let (mut parts, mut open) = (Vec::new(), vec![mask]);
    while let Some(v) = open.pop() {
        match &insts[v.0 as usize].kind {
            InstKind::Op { op: ScalarOp::And, args } if parts.len() + open.len() < MAX_PARTS => {
                open.extend(args.iter().copied());
            }
            _ if parts.contains(&v) => {}
            _ => parts.push(v),
        }
    }
    parts
}

/// The comparisons of integers that hold where `mask` is `holds`.
pub(super) fn conditions(insts: &[Inst], mask: Val, holds: bool) -> Vec<Condition> {
    let parts = if holds { conjuncts(insts, mask) } else { vec![mask] };
    parts.into_iter().filter_map(|part| condition(insts, part, holds)).collect()
}

fn condition(insts: &[Inst], mask: Val, holds: bool) -> Option<Condition> {
    use ScalarOp::{Eq, Ge, Gt, Le, Lt, Ne, Not};
    let InstKind::Op { op, args } = &insts[mask.0 as usize].kind else { return None };
    if let (Not, [of]) = (op, &args[..]) {
        return condition(insts, *of, !holds);
    }
    let [a, b] = args[..] else { return None };
    if !insts[a.0 as usize].dtype.is_int() {
        return None;
    }
    let op = match (*op, holds) {
        (op @ (Lt | Le | Gt | Ge | Eq | Ne), true) => op,
        (Lt, false) => Ge,
        (Le, false) => Gt,
        (Gt, false) => Le,
        (Ge, false) => Lt,
        (Ne, false) => Eq,
        (Eq, false) => Ne,
        _ => return None,
    };
    Some(Condition { op, a, b })
}

impl Condition {
    /// The side that is no number, compared with the other one.
    fn swapped(&self, known: &[Known]) -> (ScalarOp, Val, Val) {
        use ScalarOp::{Ge, Gt, Le, Lt};
        let fixed = |v: Val| known[v.0 as usize].as_number().is_some();
        if !fixed(self.a) || fixed(self.b) {
            return (self.op, self.a, self.b);
        }
        let op = match self.op {
            Lt => Gt,
            Le => Ge,
            Gt => Lt,
            Ge => Le,
            same => same,
        };
        (op, self.b, self.a)
    }

    /// What is known of one of both values where the comparison holds.
    pub(super) fn refine(&self, insts: &[Inst], known: &[Known]) -> Option<(Val, Known)> {
        let (op, x, y) = self.swapped(known);
        let (own, other) = (&known[x.0 as usize], &known[y.0 as usize]);
        let exact = match expr_of(insts, y) {
            e if matches!(insts[y.0 as usize].kind, InstKind::Index(_)) => Some(e),
            _ => None,
        };
        let less = |by: i64| {
            let below = exact.as_ref().map(|e| e + (1 - by)).or_else(|| other.below.as_ref().map(|e| e - by));
            Known { high: other.high.and_then(|h| h.checked_sub(by)), below, ..Known::default() }
        };
        let more = |by: i64| Known { low: other.low.and_then(|l| l.checked_add(by)), ..Known::default() };
        let fact = match op {
            ScalarOp::Lt => less(1),
            ScalarOp::Le => less(0),
            ScalarOp::Gt => more(1),
            ScalarOp::Ge => more(0),
            ScalarOp::Eq => Known { low: other.low, ..less(0) },
            ScalarOp::Ne => apart(own, other.as_number()?),
            _ => return None,
        };
        Some((x, own.meet(&fact).needing(&other.needs)))
    }
}

/// What is not equal to one end of its range.
fn apart(own: &Known, number: i64) -> Known {
    Known {
        low: own.low.filter(|low| *low == number).and_then(|low| low.checked_add(1)),
        high: own.high.filter(|high| *high == number).and_then(|high| high.checked_sub(1)),
        ..Known::default()
    }
}

/// What one mask, no conjunction, says.
pub(super) fn facts(insts: &[Inst], known: &[Known], mask: Val) -> Option<Fact> {
    let (x, known) = condition(insts, mask, true)?.refine(insts, known)?;
    Some(Fact { expr: expr_of(insts, x), known })
}
