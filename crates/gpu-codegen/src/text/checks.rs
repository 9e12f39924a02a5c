//! Checks of indices from data: their text, and which of them guard a load or a store.
//!
//! A failed check records the first such index in the program's record, and the thread goes on, so that all threads of a
//! block reach the same barriers. Loads and stores whose index depends on the check are disabled by its outcome,
//! `ok_<value>`; the value itself becomes 0, which is what further computation sees.
//!
//! Not here: the record (`dialect/common/memory.cu`) and its reader (the runtime).

use std::fmt::Write;

use ir_core::{Atom, SymExpr};
use kernel_ir::{Inst, InstKind, LoopBounds, Val};

use crate::text::body::{BodyWriter, Uses};

/// Whether a body checks an index.
pub(crate) fn any(insts: &[Inst]) -> bool {
    insts.iter().any(|i| matches!(i.kind, InstKind::Check { .. }))
}

/// Whether an index depends on a value of its body.
pub(crate) fn from_data(index: &[SymExpr]) -> bool {
    index.iter().any(|e| e.any_leaf(|a| matches!(a, Atom::Value(_))))
}

/// The checks that an index depends on, directly or through other values of the body, in the order of the body.
fn before(insts: &[Inst], index: &[SymExpr]) -> Vec<Val> {
    if !any(insts) {
        return Vec::new();
    }
    let mut used = vec![false; insts.len()];
    let mut mark = |v: u32| {
        if let Some(used) = used.get_mut(v as usize) {
            *used = true;
        }
    };
    index.iter().for_each(|e| {
        e.for_each_leaf(&mut |a| {
            if let Atom::Value(n) = a {
                mark(*n);
            }
        });
    });
    let mut checks = Vec::new();
    // A value uses earlier ones alone.
    for n in (0..insts.len()).rev() {
        if used[n] {
            insts[n].kind.for_each_val(&mut |v| used[v.0 as usize] = true);
            if matches!(insts[n].kind, InstKind::Check { .. }) {
                checks.push(Val(n as u32));
            }
        }
    }
    checks.reverse();
    checks
}

impl BodyWriter<'_> {
    /// The conditions under which memory may be accessed at an index.
    pub(crate) fn checked(&self, insts: &[Inst], index: &[SymExpr]) -> Vec<String> {
        before(insts, index).into_iter().map(|v| self.outcome(v)).collect()
    }

    /// The variable that says whether a check holds.
    fn outcome(&self, v: Val) -> String {
        format!("ok_{}", self.name(v))
    }

    /// Writes the statements of a check. Idle threads record nothing.
    pub(crate) fn check(&self, out: &mut String, insts: &[Inst], v: Val, uses: &mut Uses) {
        let InstKind::Check { value, size, mask, site } = &insts[v.0 as usize].kind else { return };
        let (name, value, ok) = (self.name(v), self.name(*value), self.outcome(v));
        let bounds = self.program.bounds();
        let known = LoopBounds { extents: self.extents, symbols: &bounds };
        let limit = self.expr(size, uses);
        let inside = match size.is_non_negative(&known) {
            // As an unsigned number a negative one is larger than any limit.
            true => format!("(u64){value} < (u64)({limit})"),
            false => format!("{value} >= 0 && {value} < (i64)({limit})"),
        };
        let condition = match mask {
            Some(m) => format!("!{} || ({inside})", self.name(*m)),
            None => inside,
        };
        let acts = self.guard.map_or(String::new(), |guard| format!(" && {guard}"));
        let ordinal = uses.checks.len();
        uses.checks.push(*site);
        let _ = writeln!(
            out,
            "const bool {ok} = {condition};
if (UNLIKELY(!{ok}){acts}) index_fault(faults, first_check + {ordinal}, {value}, {limit});
const i64 {name} = {ok} ? {value} : 0;"
        );
    }
}
