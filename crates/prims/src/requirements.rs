//! Conditions on sizes: what a rule takes for granted is proved from the symbols' ranges and the guards known so far, or
//! refused, or recorded. What inputs decide becomes a guard of the graph; what is known only at run time (sizes of unbacked
//! symbols) becomes an assertion in front of the call that needs it. Nothing here knows an operator.

use std::cell::RefCell;

use fx_ir::{Arg, Graph, NodeKind};
use ir_core::{Atom, Guard, Origin, Relation, SymExpr, TensorMeta};

use crate::{Builder, Call, OpError, scalars};

/// A condition on sizes that ranges and guards do not decide.
#[derive(Clone, Debug, PartialEq)]
pub struct Requirement {
    /// An expression in size symbols.
    pub expression: SymExpr,
    /// How it must compare with zero.
    pub relation: Relation,
    /// The message for a violation: `n elements do not fill the shape [2, m]`.
    pub what: String,
}

/// The context of a meta rule, and the conditions that it requires.
pub struct MetaCx<'a> {
    /// The graph that holds the operands.
    pub graph: &'a Graph,
    needs: RefCell<Vec<Requirement>>,
}

/// Whether the condition holds in every call, or in none, as far as the graph knows.
fn decided(graph: &Graph, relation: Relation, expression: &SymExpr) -> Option<bool> {
    if let Some(value) = expression.as_const() {
        return Some(relation.holds(value));
    }
    if !expression.any_leaf(|_| true) {
        // A division by zero, the only number that has no value.
        return Some(false);
    }
    relation.decided_given(expression, &graph.symbols, &graph.guards)
}

impl<'a> MetaCx<'a> {
    /// For operands in this graph.
    pub fn new(graph: &'a Graph) -> MetaCx<'a> {
        MetaCx { graph, needs: RefCell::new(Vec::new()) }
    }
    /// The conditions that the rule requires and that are not decided.
    pub fn needs(self) -> Vec<Requirement> {
        self.needs.into_inner()
    }
    /// The meta of a tensor operand.
    pub fn meta(&self, call: &Call<'_>, arg: &str) -> Result<&'a TensorMeta, OpError> {
        let value = call.value(arg)?;
        self.graph.meta(value).ok_or_else(|| call.bad_arg(arg, "is not a tensor"))
    }
    /// Whether the condition holds in every call, or in none, as far as is known.
    pub(crate) fn decided(&self, relation: Relation, expression: &SymExpr) -> Option<bool> {
        decided(self.graph, relation, expression)
    }
    /// Requires that the expression compares in this way with zero; `what` is the message otherwise.
    pub(crate) fn require(
        &self,
        call: &Call<'_>,
        relation: Relation,
        expression: SymExpr,
        what: impl FnOnce() -> String,
    ) -> Result<(), OpError> {
        match decided(self.graph, relation, &expression) {
            Some(true) => Ok(()),
            Some(false) => Err(call.invalid(what())),
            None => {
                self.needs.borrow_mut().push(Requirement { expression, relation, what: what() });
                Ok(())
            }
        }
    }
    /// Requires that two sizes are equal.
    pub(crate) fn equal(
        &self,
        call: &Call<'_>,
        a: &SymExpr,
        b: &SymExpr,
        what: impl FnOnce() -> String,
    ) -> Result<(), OpError> {
        if a == b { Ok(()) } else { self.require(call, Relation::Zero, a - b, what) }
    }
    /// Requires that two shapes are equal.
    pub(crate) fn equal_sizes(
        &self,
        call: &Call<'_>,
        a: &[SymExpr],
        b: &[SymExpr],
        what: impl Fn() -> String,
    ) -> Result<(), OpError> {
        if a.len() != b.len() {
            return Err(call.invalid(what()));
        }
        a.iter().zip(b).try_for_each(|(a, b)| self.equal(call, a, b, &what))
    }
    /// Requires that a number of elements, a distance or a size is not negative.
    pub(crate) fn non_negative(
        &self,
        call: &Call<'_>,
        e: &SymExpr,
        what: impl FnOnce() -> String,
    ) -> Result<(), OpError> {
        self.require(call, Relation::NonNegative, e.clone(), what)
    }
    /// Requires that sizes of a result are not negative.
    pub(crate) fn sizes(&self, call: &Call<'_>, sizes: &[SymExpr]) -> Result<(), OpError> {
        let what = || format!("the sizes {} must not be negative", self.graph.sizes_text(sizes));
        sizes.iter().try_for_each(|s| self.non_negative(call, s, what))
    }
    /// Sizes as text, by the names of their symbols.
    pub(crate) fn text(&self, sizes: &[SymExpr]) -> String {
        self.graph.sizes_text(sizes)
    }
}

impl Builder<'_> {
    /// Requires that the expression compares in this way with zero in every call of the graph: proved, or refused, or
    /// recorded as a guard (as an assertion, where it is known only at run time). `what` is the message for a violation.
    ///
    /// # Errors
    /// It never holds.
    pub fn require(
        &mut self,
        relation: Relation,
        expression: SymExpr,
        what: impl FnOnce(&Graph) -> String,
    ) -> Result<(), OpError> {
        match decided(self.graph(), relation, &expression) {
            Some(true) => Ok(()),
            Some(false) => Err(OpError::Invalid { op: self.name().into(), what: what(self.graph()) }),
            None => {
                let what = what(self.graph());
                self.record(Requirement { expression, relation, what });
                Ok(())
            }
        }
    }

    /// Requires that two sizes are equal in every call of the graph, as in [`require`](Builder::require).
    ///
    /// # Errors
    /// They never are.
    pub fn require_equal(
        &mut self,
        a: &SymExpr,
        b: &SymExpr,
        what: impl FnOnce(&Graph) -> String,
    ) -> Result<(), OpError> {
        if a == b { Ok(()) } else { self.require(Relation::Zero, a - b, what) }
    }

    /// A choice between two implementations, made for all calls: whether the expression compares in this way with zero.
    /// Where that is not decided, the sizes at capture decide, or `otherwise`, and calls for which it is not true are
    /// refused with `what`.
    ///
    /// # Errors
    /// None at present: either choice is a valid graph.
    pub(crate) fn choose(
        &mut self,
        relation: Relation,
        expression: &SymExpr,
        otherwise: bool,
        what: impl FnOnce(&Graph) -> String,
    ) -> Result<bool, OpError> {
        if let Some(known) = decided(self.graph(), relation, expression) {
            return Ok(known);
        }
        let hint = |a: &Atom| match a {
            Atom::Sym(id) => self.graph().symbols.get(*id)?.hint,
            _ => None,
        };
        let chosen = expression.eval(&hint).map_or(otherwise, |value| relation.holds(value));
        let (relation, expression) = match (chosen, relation) {
            (true, relation) => (relation, expression.clone()),
            (false, Relation::Zero) => (Relation::NonZero, expression.clone()),
            (false, Relation::NonZero) => (Relation::Zero, expression.clone()),
            (false, Relation::NonNegative) => (relation, SymExpr::from_i64(-1) - expression),
        };
        self.require(relation, expression, what)?;
        Ok(chosen)
    }

    /// Requires that a size is at least this number.
    pub(crate) fn require_at_least(
        &mut self,
        size: &SymExpr,
        least: impl Into<SymExpr>,
        what: impl FnOnce(&Graph) -> String,
    ) -> Result<(), OpError> {
        self.require(Relation::NonNegative, size - least.into(), what)
    }

    /// Records a condition on calls.
    pub(crate) fn record(&mut self, need: Requirement) {
        let unbacked = |a: &Atom| self.graph().symbols.is_unbacked(a);
        if need.expression.any_leaf(unbacked) {
            let pred = Arg::Int(truth(need.relation, &need.expression));
            if !asserts(self.graph(), &pred) {
                self.assert(pred, &need.what);
            }
            return;
        }
        let Requirement { expression, relation, what: message } = need;
        let mut origin = self.origin();
        if origin == Origin::default() {
            origin.function = self.name().into();
        }
        self.add_guard(Guard { expression, relation, origin, message });
    }
}

/// Whether the graph asserts this already.
fn asserts(graph: &Graph, pred: &Arg) -> bool {
    graph.iter().any(|(_, node)| match &node.kind {
        NodeKind::Call { target, args } => target == scalars::ASSERT && args.first() == Some(pred),
        NodeKind::Placeholder { .. } => false,
    })
}

/// 1 where the expression compares so with zero, else 0.
fn truth(relation: Relation, e: &SymExpr) -> SymExpr {
    let one = SymExpr::ONE;
    let differs = || e.sym_max(&(SymExpr::ZERO - e)).sym_min(&one);
    match relation {
        Relation::Zero => &one - differs(),
        Relation::NonZero => differs(),
        Relation::NonNegative => e.sym_max(&SymExpr::from_i64(-1)).sym_min(&SymExpr::ZERO) + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truth_is_one_where_the_relation_holds() {
        for relation in Relation::ALL {
            let e = truth(relation, &SymExpr::sym(ir_core::SymId(0)));
            for value in [-7, -1, 0, 1, 9] {
                assert_eq!(
                    e.eval(&|_| Some(value)),
                    Some(i64::from(relation.holds(value))),
                    "{relation:?} {value}"
                );
            }
        }
    }
}
